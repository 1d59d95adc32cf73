"""A new op in one function, fused with its neighbours, on the CPU and on OpenCL.

    python examples/custom_op.py

An op is its body over scalars and an independent NumPy reference. Its types, its code for every
device, its FLOP count and its fusion come from there; `onnx="..."` would make it importable.
"""

from __future__ import annotations

import numpy as np

import jitcl
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import F32, elementwise, sample


@elementwise(ref=lambda x, *, bend: np.log1p(np.abs(x) * bend) * np.sign(x),
             samples=[sample(F32(3, 5), bend=4.0)])
def symmetric_log(s, x, *, bend):
    """sign(x) * log(1 + bend * |x|): a logarithm for values of both signs."""
    return s.mul(s.sign(x), s.log(s.add(s.mul(s.abs(x), bend), 1.0)))


def build() -> Graph:
    """y = symmetric_log(a * b) + a, as a graph."""
    g = GraphBuilder()
    a = graph_input("a", TensorType("f32", (512, 512)))
    b = graph_input("b", TensorType("f32", (512,)))
    return Graph("custom", (a, b), (("y", g.add(g.symmetric_log(g.mul(a, b), bend=4.0), a)),))


def main() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(512, 512)).astype(np.float32)
    b = rng.normal(size=512).astype(np.float32)
    want = np.log1p(np.abs(a * b) * 4) * np.sign(a * b) + a
    for device in ("cpu", "opencl"):
        try:
            model = jitcl.compile(build(), device=device)
        except jitcl.DeviceError as error:
            print(f"{device}: not run: {error}")
            continue
        error = np.abs(model(a, b)["y"] - want).max()
        print(f"{device}: largest error {error:.1e}, {len(model.plan.steps)} kernel")
        assert error < 1e-5 and len(model.plan.steps) == 1
        print(model.plan.steps[0].head + model.plan.kernels[0].body)


if __name__ == "__main__":
    main()
