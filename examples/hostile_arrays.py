"""The same bits from arrays of every kind, and from threads that change theirs meanwhile.

    python examples/hostile_arrays.py           # the page: hostile_arrays.md
"""

from __future__ import annotations

import gc
import threading

import numpy as np

import jitcl

TEXT = """graph @g(%x: f32[64,96], %w: f32[96,32]) {
  %1 = matmul(%x, %w)
  %2 = softmax(%1) {axis=-1}
  %y = tanh(%2)
  return %y
}"""


def same_values(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same elements, as NumPy may hand them over."""
    wide = np.zeros((128, 192), np.float32)
    wide[::2, ::2] = x
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    locked = x.copy()
    locked.flags.writeable = False
    return {"as it is": x, "Fortran order": np.asfortranarray(x), "every other": wide[::2, ::2],
            "backwards": x[::-1, ::-1].copy()[::-1, ::-1], "a view of bytes": odd,
            "read-only": locked, "transposed": x.T.copy().T}


def main() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 96), (96, 32)))
    for device in jitcl.devices():
        if device.spec == "reference":
            continue
        with jitcl.compile(jitcl.parse(TEXT), device=device.spec) as model:
            want = model.run({"x": x, "w": w})["y"].tobytes()
            for name, array in same_values(x).items():
                assert model.run({"x": array, "w": w})["y"].tobytes() == want, name
            assert overwritten(model, x, w) == {want}
            assert in_threads(model, x, w) == {want}
            print(f"{device.spec}: the same bits from {len(same_values(x))} kinds of arrays, from "
                  "arrays that were overwritten behind submit, and in 4 threads")
            for wrong in (x.astype(">f4"), x.astype(np.float64), x[:, :95], x.astype(object)):
                refused(model, wrong, w)


def overwritten(model: jitcl.Model, x: np.ndarray, w: np.ndarray) -> set[bytes]:
    """Results of queued runs whose arrays are spoilt and dropped before they begin."""
    runs = []
    for _ in range(20):
        mine = x.copy()
        runs.append(model.submit({"x": mine, "w": w}))
        mine[...] = np.nan
        del mine
    gc.collect()
    return {run.result()["y"].tobytes() for run in runs}


def in_threads(model: jitcl.Model, x: np.ndarray, w: np.ndarray) -> set[bytes]:
    """Results while three other threads run the model on other values."""
    found: set[bytes] = set()

    def work(number: int) -> None:
        for _ in range(25):
            y = model.run({"x": x if number == 0 else x * number, "w": w})["y"]
            if number == 0:
                found.add(y.tobytes())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def refused(model: jitcl.Model, x: np.ndarray, w: np.ndarray) -> None:
    try:
        model.run({"x": x, "w": w})
    except jitcl.InputError as error:
        print(f"  {str(error).splitlines()[0]}")
    else:
        raise AssertionError(f"{x.dtype} {x.shape} was taken")


if __name__ == "__main__":
    main()
