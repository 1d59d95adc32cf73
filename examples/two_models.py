"""Two models on one device, each in a thread: who had it when, and what waited for what.

    python examples/two_models.py [DEVICE]      # the page: two_models.md
"""

from __future__ import annotations

import sys
import threading

import numpy as np

import jitcl

TEXT = """graph @{name}(%x: f32[n,n]) {{
  %1 = matmul(%x, %x)
  %2 = softmax(%1) {{axis=-1}}
  %y = matmul(%2, %x)
  return %y
}}"""
RUNS = 12


def main(device: str) -> None:
    names, x = ("detector", "tracker"), np.eye(384, dtype=np.float32)
    models = [jitcl.compile(jitcl.parse(TEXT.format(name=name)), device=device) for name in names]
    for model in models:
        model.run({"x": x})                             # compiles
    alone = []
    for model in models:
        with jitcl.profile() as p:
            for _ in range(RUNS):
                model.run({"x": x})
        alone.append(kernels(p, p.models[0].model))

    with jitcl.profile() as p:
        threads = [threading.Thread(target=work, args=(model, x)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(p)
    path = p.save("two_models.html")
    print(f"{path}: both on one timeline, a line under a kernel says since when it waited")
    (shared,) = p.devices
    assert shared.turns > 0 and set(shared.models) == set(names)
    for name, before in zip(names, alone):
        ran = next(m for m in p.models if m.model == name)
        print(f"{name}: its kernels took {before * 1e3 / RUNS:.2f} ms a run alone, "
              f"{kernels(p, name) * 1e3 / RUNS:.2f} beside the other; it waited "
              f"{ran.parts.get('behind', 0) * 1e3 / RUNS:.2f} ms for that one's")
    for model in models:
        model.close()


def work(model: jitcl.Model, x: np.ndarray) -> None:
    for _ in range(RUNS):
        model.run({"x": x})


def kernels(p: jitcl.Profile, model: str) -> float:
    return sum(k.seconds for k in p.kernels if k.model == model)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["opencl"])
