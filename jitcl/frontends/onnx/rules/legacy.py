"""Import rules of ops that ONNX dropped: the experimental ones of its first opsets, which old
exporters (of Caffe2, CoreML, CNTK and PyTorch 0.4 to 1.2) wrote, and some that only say what to do
instead. All are of ONNX's own domain; renamed ones stand in the frontend's `opsets`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import scaled
from jitcl.ops.contrib import standard
from jitcl.ops.core import onnx_dtype, onnx_rule
from jitcl.ops.movement import ints

# ---- elementwise


@onnx_rule("Affine")
def _affine(g: GraphBuilder, node: Any) -> Node:
    """alpha * x + beta."""
    y = scaled(g, node.inputs[0], float(node.attrs.get("alpha", 1.0)))
    return g.add(y, float(node.attrs.get("beta", 0.0)))


@onnx_rule("Scale")
def _scale(g: GraphBuilder, node: Any) -> Node:
    return scaled(g, node.inputs[0], float(node.attrs.get("scale", 1.0)))


@onnx_rule("ScaledTanh")
def _scaled_tanh(g: GraphBuilder, node: Any) -> Node:
    """alpha * tanh(beta * x)."""
    inner = scaled(g, node.inputs[0], float(node.attrs.get("beta", 1.0)))
    return scaled(g, g.tanh(inner), float(node.attrs.get("alpha", 1.0)))


@onnx_rule("ParametricSoftplus")
def _parametric_softplus(g: GraphBuilder, node: Any) -> Node:
    """alpha * log(exp(beta * x) + 1)."""
    inner = scaled(g, node.inputs[0], float(node.attrs.get("beta", 1.0)))
    return scaled(g, g.softplus(inner), float(node.attrs.get("alpha", 1.0)))


@onnx_rule("ImageScaler")
def _image_scaler(g: GraphBuilder, node: Any) -> Node:
    """scale * x + bias[channel], of x [N, C, H, W]."""
    x, bias = node.inputs[0], node.attrs.get("bias", ())
    y = scaled(g, x, float(node.attrs.get("scale", 1.0)))
    if not bias:
        return y
    if x.type.rank != 4 or len(bias) != x.type.dims[1]:
        raise ShapeError(f"x {x.type} wants one bias for each channel, got {len(bias)}")
    return g.add(y, g.const(np.array(bias).reshape(-1, 1, 1), x.type.dtype))


# ---- parts of tensors


@onnx_rule("Crop")
def _crop(g: GraphBuilder, node: Any) -> Node:
    """x [N, C, H, W] without its border (left, top, right, bottom), or of `scale` (height, width)
    behind the left and top ones."""
    x, border = node.inputs[0], ints(np.array(node.attrs["border"]))
    if x.type.rank != 4 or len(border) != 4:
        raise ShapeError(f"x must be [N, C, H, W] and border 4 numbers, got {x.type} and "
                         f"{list(border)}")
    left, top, right, bottom = border
    height, width = x.type.dims[2:]
    ends = (height - bottom, width - right)
    if node.attrs.get("scale"):
        size = node.attrs["scale"]
        ends = (top + int(size[0]), left + int(size[1]))
    if not (0 <= top < ends[0] <= height and 0 <= left < ends[1] <= width):
        raise ShapeError(f"rows {top} to {ends[0]} and columns {left} to {ends[1]} do not lie in "
                         f"{x.type}")
    return g.slice(x, starts=(top, left), ends=ends, axes=(2, 3))


@onnx_rule("DynamicSlice")
def _dynamic_slice(g: GraphBuilder, node: Any) -> Node:
    return standard(g, node, "Slice", *node.inputs, attrs={})


# ---- constants


def _filled_shape(node: Any) -> tuple[int, ...]:
    """The shape that a filling op makes: its attribute, its input's shape, or its input's value."""
    if not node.inputs or node.input(0) is None:
        shape: tuple[int, ...] = tuple(node.attrs.get("shape", ()))
    elif node.attrs.get("input_as_shape", 0):
        shape = ints(node.static(0))
    else:
        shape = node.inputs[0].type.dims
    return (*(int(d) for d in shape), *(int(d) for d in node.attrs.get("extra_shape", ())))


@onnx_rule("ConstantFill")
def _constant_fill(g: GraphBuilder, node: Any) -> Node:
    """One value all over."""
    dtype = onnx_dtype(int(node.attrs.get("dtype", 1)))
    value = g.const(np.asarray(node.attrs.get("value", 0.0)).reshape(()), dtype)
    return g.expand(value, shape=_filled_shape(node))


@onnx_rule("GivenTensorFill")
def _given_tensor_fill(g: GraphBuilder, node: Any) -> Node:
    """The values of an attribute in a shape."""
    values, shape = np.asarray(node.attrs.get("values", ()), np.float32), _filled_shape(node)
    if values.size != int(np.prod(shape)):
        raise ModelError(f"has {values.size} values for the shape {list(shape)}")
    return g.const(values.reshape(shape))


# ---- normalisation


@onnx_rule("MeanVarianceNormalization")
def _mean_variance(g: GraphBuilder, node: Any) -> Any:
    """(x - mean) / deviation; before opset 9 over a row's spatial axes, and with `across_channels`
    over its channels too."""
    if node.opset >= 9:
        return NotImplemented
    x: Node = node.inputs[0]
    first = 1 if node.attrs.get("across_channels", 0) else 2
    axes = (0, *range(first, x.type.rank))
    off = g.sub(x, g.reduce_mean(x, axes=axes, keepdims=True))
    if not node.attrs.get("normalize_variance", 1):
        return off
    variance = g.reduce_mean(g.mul(off, off), axes=axes, keepdims=True)
    return g.div(off, g.sqrt(g.add(variance, 1e-9)))


# ---- what can't be compiled


_ADVICE = {
    "ATen": "is a call into PyTorch that its exporter could not translate: export the model again "
            "with operator_export_type=ONNX, or with torch.onnx.export(..., dynamo=True)",
    "GRUUnit": "is an experimental op of Caffe2 that ONNX dropped: export the layer as GRU",
    "Caffe2": "is a call into Caffe2: export the model again with a newer PyTorch",
}


@onnx_rule(*_ADVICE)
def _refused(g: GraphBuilder, node: Any) -> Node:
    raise UnsupportedError(_ADVICE[node.op_type])
