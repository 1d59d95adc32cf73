"""A graph written by hand: parse it, run it on every device, look at the kernel that comes out.

    python examples/text_ir.py

The text is the form that `jitcl dump` writes and `jitcl run FILE.jitcl` reads. Types may be left
out behind a node: they follow from its operands. Sizes may have names (`rows`): they are known when
the first arrays are fed.
"""

from __future__ import annotations

import numpy as np

import jitcl

TEXT = """
graph @attention_weights(%scores: f32[rows,64], %mask: f32[64]) {
  %0 = add(%scores, %mask)
  %weights = softmax(%0) {axis=-1}
  return %weights
}
"""


def expected(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    e = np.exp(scores + mask - (scores + mask).max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def main() -> None:
    graph = jitcl.parse(TEXT)
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 64)).astype(np.float32)
    mask = np.where(rng.random(64) < 0.25, -1e9, 0).astype(np.float32)
    for device in jitcl.devices():
        model = jitcl.compile(graph, device=device.spec)
        weights = model(scores, mask)["weights"]
        error = np.abs(weights - expected(scores, mask)).max()
        print(f"{device.spec:<12} {device.target.name:<40} largest error {error:.1e}")
        assert error < 1e-6

    model = jitcl.compile(graph, device="cpu", shapes={"scores": (4, 64)})
    print(f"\n{model.report()}\n")
    for kernel in model.plan.kernels:
        print(kernel.body)


if __name__ == "__main__":
    main()
