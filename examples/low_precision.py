"""A model that half precision turns to zeros, and the layer that does it.

    python examples/low_precision.py [DEVICE]   # the page: low_precision.md
"""

from __future__ import annotations

import logging
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import jitcl

N = 64


def picture() -> bytes:
    """y = x w / (1 + max((64 x w)^2)): the square leaves f16's range, and x / infinity is zero."""
    w = np.random.default_rng(0).standard_normal((N, N)).astype(np.float32)
    constants = {"w": w, "gain": np.float32(64), "one": np.float32(1)}
    nodes = [helper.make_node(op, inputs.split(), [out], f"/{out}/{op}") for op, inputs, out in (
        ("MatMul", "x w", "features"), ("Mul", "features gain", "bright"),
        ("MatMul", "bright bright", "energy"), ("ReduceMax", "energy", "largest"),
        ("Add", "largest one", "scale"), ("Div", "features scale", "y"))]
    graph = helper.make_graph(
        nodes, "picture", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (N, N))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (N, N))],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def main(device: str) -> None:
    logging.basicConfig(format="  %(message)s")
    feeds = {"x": np.random.default_rng(1).standard_normal((N, N)).astype(np.float32)}
    want = jitcl.compile(picture(), device=device).run(feeds)["y"]
    told("high", want, want)
    for guard in ("off", "outputs"):
        model = jitcl.compile(picture(), device=device, precision="normal", guard=guard)
        told(f"normal, guard={guard}", model.run(feeds)["y"], want)
    print(model.report())


def told(how: str, y: np.ndarray, want: np.ndarray) -> None:
    apart = np.abs(y - want).max() / np.abs(want).max()
    print(f"{how}: {np.count_nonzero(y):,} of {y.size:,} are not zero, largest error {apart:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["opencl"])
