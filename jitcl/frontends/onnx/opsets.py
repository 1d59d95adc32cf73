"""All differences between opsets: each node is brought into the newest opset's form before its
rule sees it.

`ATTRIBUTES` lists attributes that became inputs; `CHANGES` holds what a table row can't say. An
entry applies to nodes of models older than its opset; opsets 1 to 6 stand in `oldest`.
(onnx.version_converter does whole models, and not all ops.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.frontends.onnx.node import OnnxNode
from jitcl.frontends.onnx.oldest import as_of_7
from jitcl.frontends.onnx.rules import ONNX
from jitcl.ir.graph import Node, const
from jitcl.ops.core import norm_axis

# op type -> (first opset of the new form, {attribute: (input number, dtype)}); dtype "x" is that
# of input 0
ATTRIBUTES: dict[str, tuple[int, dict[str, tuple[int, str]]]] = {
    "Squeeze": (13, {"axes": (1, "i64")}),
    "Unsqueeze": (13, {"axes": (1, "i64")}),
    "ReduceSum": (13, {"axes": (1, "i64")}),
    **{
        f"Reduce{kind}": (18, {"axes": (1, "i64")})
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
    "Split": (13, {"split": (1, "i64")}),
    "Slice": (10, {"starts": (1, "i64"), "ends": (2, "i64"), "axes": (3, "i64")}),
    "Pad": (11, {"pads": (1, "i64"), "value": (2, "x")}),
    "Clip": (11, {"min": (1, "x"), "max": (2, "x")}),
    "TopK": (10, {"k": (1, "i64")}),
    "Dropout": (12, {"ratio": (1, "f32")}),
    "Upsample": (9, {"scales": (1, "f32")}),
    "DFT": (20, {"axis": (2, "i64")}),
}


def _upsample(g: Any, node: OnnxNode) -> OnnxNode:
    """Upsample is Resize with scales, asymmetric, rounding down."""
    x, scales = node.inputs[0], node.input(1)
    mode = {"bilinear": "linear"}.get(
        node.attrs.get("mode", "nearest"), node.attrs.get("mode", "nearest"))
    return node.with_(
        op_type="Resize",
        inputs=(x, None, scales, None),
        attrs={
            "mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    )


def _resize_10(g: Any, node: OnnxNode) -> OnnxNode:
    """As Upsample; which element is the nearest, its text leaves open."""
    node = _upsample(g, node)
    return node.with_(attrs={**node.attrs, "nearest_mode": "simple"})


def _split(g: Any, node: OnnxNode) -> OnnxNode:
    """Equal parts: as many as there are outputs."""
    if node.input(1) is not None or "num_outputs" in node.attrs:
        return node
    return node.with_(attrs={**node.attrs, "num_outputs": node.n_outputs})


def _top_k(g: Any, node: OnnxNode) -> OnnxNode:
    """k was a plain number once; it is a tensor of one element now."""
    k = node.input(1)
    if k is None or k.type.rank == 1 or k.op != "const":
        return node
    return node.with_(inputs=(node.inputs[0], const(k.data.reshape(1))))


def _batch_norm(g: Any, node: OnnxNode) -> OnnxNode:
    return node.with_(n_outputs=1)


def _roi_align(g: Any, node: OnnxNode) -> OnnxNode:
    return node.with_(attrs={"coordinate_transformation_mode": "output_half_pixel", **node.attrs})


def _group_norm(g: Any, node: OnnxNode) -> OnnxNode:
    """Scale and bias were one a group; they are one a channel now."""
    x, groups = node.inputs[0], int(node.attrs["num_groups"])
    assert x is not None
    channels = x.type.dims[1]

    def spread(v: Node | None) -> Node:
        assert v is not None
        if v.type.dims != (groups,) or channels % groups:
            raise ShapeError(
                f"GroupNormalization: x {x.type} in {groups} groups wants {groups} scales and "
                f"biases, got {v.type}"
            )
        wide = g.expand(g.reshape(v, shape=(groups, 1)), shape=(groups, channels // groups))
        result: Node = g.reshape(wide, shape=(channels,))
        return result

    return node.with_(inputs=(x, spread(node.input(1)), spread(node.input(2))))


def _scatter(g: Any, node: OnnxNode) -> OnnxNode:
    return node.with_(op_type="ScatterElements")


def _grid_sample(g: Any, node: OnnxNode) -> OnnxNode:
    """bilinear and bicubic became linear and cubic, as there may be three axes."""
    mode = node.attrs.get("mode", "bilinear")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return node.with_(attrs={**node.attrs, "mode": renamed})


def _dft(g: Any, node: OnnxNode) -> OnnxNode:
    """The axis was an attribute, 1 where it is left out; its input's default is -2."""
    if node.input(2) is not None:
        return node
    return node.with_(inputs=(*node.inputs[:1], node.input(1), const(np.int64(1))))


Change = Callable[[Any, OnnxNode], OnnxNode]
CHANGES: dict[str, tuple[tuple[int, Change], ...]] = {
    "Upsample": ((99, _upsample),), "Resize": ((11, _resize_10),), "Split": ((18, _split),),
    "TopK": ((10, _top_k),), "BatchNormalization": ((14, _batch_norm),),
    "RoiAlign": ((16, _roi_align),), "GroupNormalization": ((21, _group_norm),),
    "Scatter": ((99, _scatter),), "GridSample": ((20, _grid_sample),), "DFT": ((20, _dft),)}


def modern(g: Any, node: OnnxNode) -> OnnxNode:
    """The node in the newest opset's form."""
    if node.domain:
        return node
    if node.opset < 7:
        node = as_of_7(g, node)
    since, table = ATTRIBUTES.get(node.op_type, (0, {}))
    if node.opset < since:
        node = _to_inputs(node, table)
    for before, change in CHANGES.get(node.op_type, ()):
        if node.opset < before:
            node = change(g, node)
    return node


def _to_inputs(node: OnnxNode, table: dict[str, tuple[int, str]]) -> OnnxNode:
    inputs = list(node.inputs)
    first = inputs[0]
    for name, (at, dtype) in table.items():
        if name not in node.attrs:
            continue
        if dtype == "x":
            assert first is not None
            dtype = first.type.dtype
        value = node.attrs[name]
        if dtypes.is_int(dtype) and isinstance(value, float):  # Clip's limits of integers
            low, high = dtypes.limits(dtype)
            value = min(max(value, low), high)
        inputs += [None] * (at + 1 - len(inputs))
        inputs[at] = const(np.asarray(value), dtype)
    attrs = {k: v for k, v in node.attrs.items() if k not in table}
    return node.with_(inputs=tuple(inputs), attrs=attrs)


def _flattened(g: Any, node: OnnxNode) -> Any:
    """Softmax and its like before opset 13: over all axes from `axis` on, as one."""
    x = node.inputs[0]
    assert x is not None
    axis = norm_axis(node.attrs.get("axis", 1), x.type.rank) if x.type.rank else 0
    dims = x.type.dims
    rule = ONNX["", node.op_type]
    if math.prod(dims[axis:]) == (dims[axis] if dims else 1):
        at = axis if dims else -1
        return rule(g, node.with_(attrs={"axis": at}, opset=13))
    flat = g.reshape(x, shape=(math.prod(dims[:axis]), math.prod(dims[axis:])))
    y = rule(g, node.with_(inputs=(flat,), attrs={"axis": -1}, opset=13))
    return g.reshape(y, shape=dims)


def _batch_norm_7(g: Any, node: OnnxNode) -> Any:
    """With spatial=0 each element of a row has statistics of its own, not each channel."""
    rule = ONNX["", "BatchNormalization"]
    attrs = {k: v for k, v in node.attrs.items() if k != "spatial"}
    x = node.inputs[0]
    assert x is not None
    if node.attrs.get("spatial", 1) or x.type.rank == 2:
        return rule(g, node.with_(attrs=attrs))
    each = (g.reshape(v, shape=(-1,)) for v in node.inputs[1:5])
    flat = g.reshape(x, shape=(x.type.dims[0], -1))
    y = rule(g, node.with_(inputs=(flat, *each), attrs=attrs))
    return g.reshape(y, shape=x.type.dims)


# op type -> (first opset of the new meaning, rule of the old one)
OLD_RULES: dict[str, tuple[int, Callable[[Any, OnnxNode], Any]]] = {
    "Softmax": (13, _flattened), "LogSoftmax": (13, _flattened), "Hardmax": (13, _flattened),
    "BatchNormalization": (9, _batch_norm_7)}


def rule_for(op_type: str, domain: str, opset: int) -> Callable[[Any, OnnxNode], Any] | None:
    """The import rule of a node in `modern` form, or None where there is none."""
    rule = ONNX.get((domain, op_type))
    before, old = OLD_RULES.get(op_type, (0, None))
    return old if rule is not None and old is not None and not domain and opset < before else rule


def has_rule(op_type: str, domain: str) -> bool:
    """Whether nodes of the type, or of the type that it is renamed to, have a rule."""
    renamed = {"Upsample": "Resize", "Scatter": "ScatterElements"}.get(op_type, op_type)
    return (domain, renamed) in ONNX


_PYTORCH = ("is a call into PyTorch that its exporter could not translate: export the model again "
            "with torch.onnx.export(..., dynamo=True), or without that call")
_LAYOUT = ("was saved after onnxruntime's layout optimisation for one CPU: save it with "
           "graph_optimization_level ORT_ENABLE_EXTENDED or lower")
ADVICE = {                                   # domain -> what to do about an op without a rule
    "org.pytorch.aten": _PYTORCH,
    "org.pytorch._caffe2": _PYTORCH,
    "aten": _PYTORCH,
    "prim": _PYTORCH,
    "pkg.onnxscript.torch_lib": _PYTORCH,
    "ai.onnx.contrib": "is an op of onnxruntime-extensions: run that step in your program, and "
                       "export the model without it",
    "com.microsoft.extensions": "is an op of onnxruntime-extensions: run that step in your "
                                "program, and export the model without it",
    "com.microsoft.nchwc": _LAYOUT,
    "com.ms.internal.nhwc": _LAYOUT,
    "trt.plugins": "is a plugin of TensorRT: export the model without it",
}


def advice(op_type: str, domain: str) -> str:
    """Where an op without a rule comes from and what to do about it; "" where that is unknown."""
    return ADVICE.get(domain, _PYTORCH if domain.startswith("org.pytorch") else "")
