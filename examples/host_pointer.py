"""A result that stays on the device, read by the host, and a model whose inputs change their size.

    python examples/host_pointer.py             # the page: host_pointer.md
"""

from __future__ import annotations

import numpy as np

import jitcl

TEXT = """graph @frames(%x: f32[n,n]) {
  %1 = matmul(%x, %x)
  %y = relu(%1)
  return %y
}"""


def main() -> None:
    for device in jitcl.devices():
        if device.spec != "reference":
            print(f"{device.spec}: {device.target.name}")
            with jitcl.compile(jitcl.parse(TEXT), device=device.spec) as model:
                pointers(model)
                sizes(model)


def pointers(model: jitcl.Model) -> None:
    """What lies on the device is reached in a block, and an error behind it."""
    x = np.eye(64, dtype=np.float32) * 3
    kept = model.run({"x": x}, keep_on_device=True)["y"]
    print(f"  {kept}, mapped {'in place' if kept.in_place else 'through pinned memory'}")
    with kept.map() as array:
        array += 1
        told(lambda: model.run({"x": kept}))            # a run would read what is half written
    told(lambda: array.sum())                           # the pointer outlived the mapping
    assert np.array_equal(kept.numpy(), 9 * np.eye(64) + 1)
    model.run({"x": -x})                                # later runs leave it as it is
    assert np.array_equal(kept.numpy(), 9 * np.eye(64) + 1)
    kept.close()
    told(lambda: kept.numpy())


def sizes(model: jitcl.Model) -> None:
    """Forty sizes, three times: results are right, and memory is what it was."""
    rng, held = np.random.default_rng(0), []
    for _ in range(3):
        for n in range(8, 48):
            x = rng.standard_normal((n, n)).astype(np.float32)
            assert np.allclose(model.run({"x": x})["y"], np.maximum(x @ x, 0), atol=1e-4)
        held.append(sum(d.bytes for d in jitcl.memory_stats().devices.values()))
    print(f"  120 resizes: models hold {', then '.join(f'{n:,}' for n in held)} bytes")
    assert held[1] == held[2]


def told(wrong: object) -> None:
    try:
        wrong()                                         # type: ignore[operator]
    except jitcl.JitclError as error:
        print(f"  {type(error).__name__}: {str(error).splitlines()[0]}")
    else:
        raise AssertionError("nobody minded")


if __name__ == "__main__":
    main()
