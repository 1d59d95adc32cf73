"""A small network as quantisers write it: QuantizeLinear and DequantizeLinear around each op."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STEP = 0.05                    # of the last quantised tensor
_ZERO = 10                     # points of what may be negative


class _Writer:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def coded(self, x: str, scale: float, zero: int) -> str:
        """x rounded to signed bytes and back."""
        parameters = self.constant(np.float32(scale)), self.constant(np.int8(zero))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *parameters),
                         *parameters)

    def weights(self, *shape: int, per_output: bool = False) -> str:
        """Signed bytes around 0."""
        count = shape[0] if per_output else 1
        scales = self.rng.uniform(0.005, 0.01, count).astype(np.float32)
        w = np.clip(self.rng.normal(0, 40, shape), -127, 127).astype(np.int8)
        scale = self.constant(scales if per_output else scales[0])
        return self.node("DequantizeLinear", self.constant(w), scale,
                         **({"axis": 0} if per_output else {}))


def small_network() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """(a model of one input, what to feed it)."""
    w = _Writer()
    x = w.coded("x", 0.02, _ZERO)
    first = w.coded(w.node("Relu", w.node(
        "Conv", x, w.weights(32, 3, 3, 3), pads=[1, 1, 1, 1])), 0.03, -128)
    wide = w.coded(w.node("Relu", w.node(
        "Conv", first, w.weights(48, 32, 1, 1, per_output=True))), 0.05, -128)
    deep = w.coded(w.node("Relu", w.node(
        "Conv", wide, w.weights(48, 1, 3, 3), pads=[1, 1, 1, 1], group=48)), 0.04, -128)
    narrow = w.coded(w.node("Conv", deep, w.weights(32, 48, 1, 1)), 0.08, _ZERO)
    total = w.coded(w.node("Add", first, narrow), 0.09, _ZERO)
    dense = w.coded(w.node("Relu", w.node(
        "Conv", w.coded(w.node("Relu", total), 0.04, -128), w.weights(24, 32, 3, 3),
        pads=[1, 1, 1, 1], strides=[2, 2])), 0.15, -128)
    rows = w.coded(w.node("Reshape", dense, w.constant(np.array([24, 30], np.int64))), 0.15, -128)
    w.nodes.append(helper.make_node("Identity", [w.coded(w.node(
        "Gemm", rows, w.weights(20, 30), transB=1), STEP, _ZERO)], ["y"]))
    graph = helper.make_graph(
        w.nodes, "qdq", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 20])], w.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model, {"x": w.rng.normal(0, 1, (1, 3, 12, 10)).astype(np.float32)}
