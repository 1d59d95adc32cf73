"""Import rules of onnxruntime's ops on quantised tensors. Sums of products are exact integers;
other ops are computed on the numbers that the integers stand for, as onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ModelError, UnsupportedError
from jitcl.frontends.onnx.rules.quantised import (
    dynamically_quantised,
    integer_product,
    one_number,
    qlinear_conv,
)
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contrib import (
    channels_first,
    channels_last,
    flat_softmax,
    inputs_of,
    microsoft,
    standard,
)

# ---- computed on the numbers that they stand for


def number(g: GraphBuilder, x: Node, scale: Node, zero: Node | None) -> Node:
    """The numbers that integers stand for; one scale and zero point for all."""
    given = [] if zero is None else [one_number(g, zero, "a zero point")]
    return g.dequantize(x, one_number(g, scale, "a scale"), *given)


def quantised(g: GraphBuilder, y: Node, scale: Node, zero: Node | None, like: Node) -> Node:
    """Numbers as integers of the zero point's type, or of that of `like`."""
    to = like.type.dtype if zero is None else zero.type.dtype
    given = [] if zero is None else [one_number(g, zero, "y_zero_point")]
    return g.quantize(y, one_number(g, scale, "y_scale"), *given, to=to)


@microsoft("QLinearConcat")
def _qlinear_concat(g: GraphBuilder, node: Any) -> Node:
    """Operands that already have the result's scale and zero point go through as they are."""
    y_scale, y_zero, *rest = node.inputs
    if len(rest) % 3 or not rest:
        raise ModelError(f"QLinearConcat takes 2 + 3n inputs, got {len(node.inputs)}")
    parts = []
    for x, scale, zero in zip(rest[::3], rest[1::3], rest[2::3]):
        parts.append(_moved(g, x, (scale, zero), (y_scale, y_zero)))
    return g.concat(*parts, axis=node.attrs["axis"])


def _moved(g: GraphBuilder, x: Node, old: tuple[Node, Node], new: tuple[Node, Node]) -> Node:
    """Integers of one scale and zero point as those of another; unchanged where they are the
    same."""
    if all(a is b or (a.op == b.op == "const" and np.array_equal(a.data, b.data))
           for a, b in zip(old, new)):
        return x
    return quantised(g, number(g, x, *old), *new, x)


@microsoft("QLinearWhere")
def _qlinear_where(g: GraphBuilder, node: Any) -> Node:
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = node.inputs[:9]
    new = (z_scale, z_zero)
    return g.where(condition, _moved(g, x, (x_scale, x_zero), new),
                   _moved(g, y, (y_scale, y_zero), new))


@microsoft("QLinearAdd", "QLinearMul")
def _qlinear_binary(g: GraphBuilder, node: Any) -> Node:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs_of(
        node, 8, needs=(0, 1, 3, 4, 6))
    op = {"QLinearAdd": "add", "QLinearMul": "mul"}[node.op_type]
    y = g.op(op, number(g, a, a_scale, a_zero), number(g, b, b_scale, b_zero))
    return quantised(g, y, y_scale, y_zero, a)


@microsoft("QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool",
           "QLinearSoftmax", "QLinearReduceMean")
def _qlinear_unary(g: GraphBuilder, node: Any) -> Node:
    """The op of the same name on the numbers that x stands for."""
    x, x_scale, x_zero, y_scale, y_zero = inputs_of(node, 5, needs=(0, 1, 3))
    last = bool(node.attrs.get("channels_last", 0))
    attrs = {k: v for k, v in node.attrs.items() if k not in ("channels_last", "opset", "axes")}
    axes = node.attrs.get("axes")
    more = [] if axes is None else [g.const(np.array(axes, np.int64))]
    real = number(g, channels_first(g, x) if last else x, x_scale, x_zero)
    plain = node.op_type.removeprefix("QLinear")
    if plain == "Softmax" and int(node.attrs.get("opset", 13)) < 13:
        y = flat_softmax(g, real, int(attrs.get("axis", 1)))
    else:
        y = standard(g, node, plain, real, *more, attrs=attrs)
    y = quantised(g, y, y_scale, y_zero, x)
    return channels_last(g, y) if last else y


# ---- sums of products of integers


def columns(g: GraphBuilder, v: Node) -> Node:
    """A scale of a matrix, one number or one a column, to broadcast to a product."""
    return g.reshape(v, shape=()) if v.type.size == 1 else v


def scaled_product(g: GraphBuilder, a: Node, b: Node, a_zero: Node | None, b_zero: Node | None,
                   factor: Node) -> Node:
    """factor * (a - a_zero) @ (b - b_zero) in float; the product itself is exact."""
    return g.mul(g.cast(integer_product(g, a, b, a_zero, b_zero), to=factor.type.dtype), factor)


@microsoft("MatMulIntegerToFloat")
def _matmul_integer_to_float(g: GraphBuilder, node: Any) -> Node:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs_of(
        node, 7, needs=(0, 1, 2, 3))
    factor = g.mul(columns(g, a_scale), columns(g, b_scale))
    y = scaled_product(g, a, b, a_zero, b_zero, factor)
    return y if bias is None else g.add(y, bias)


@microsoft("DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(g: GraphBuilder, node: Any) -> Node:
    x, b, b_scale, b_zero, bias = inputs_of(node, 5, needs=(0, 1, 2))
    a, a_scale, a_zero = dynamically_quantised(g, x)
    factor = g.mul(a_scale, columns(g, b_scale))
    y = scaled_product(g, a, b, a_zero, b_zero, factor)
    return y if bias is None else g.add(y, bias)


@microsoft("QGemm")
def _qgemm(g: GraphBuilder, node: Any) -> Node:
    """alpha * (A' - a_zero) @ (B' - b_zero) * scales + C; a float without y_scale."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = inputs_of(
        node, 9, needs=(0, 1, 2, 3, 4))
    if node.attrs.get("transA", 0):
        a = g.transpose(a, perm=(1, 0))
    if node.attrs.get("transB", 0):
        b = g.transpose(b, perm=(1, 0))
    total = integer_product(g, a, b, a_zero, b_zero)
    if c is not None:
        total = g.add(total, c)
    scale = g.mul(columns(g, a_scale), columns(g, b_scale))
    alpha = float(node.attrs.get("alpha", 1.0))
    scale = scale if alpha == 1.0 else g.mul(scale, alpha)
    if y_scale is None:
        return g.mul(g.cast(total, to=scale.type.dtype), scale)
    if y_zero is None:
        raise ModelError("has y_scale but no y_zero_point: give both, or neither")
    factor = g.div(scale, one_number(g, y_scale, "y_scale"))
    return g.requantize(total, factor, one_number(g, y_zero, "y_zero_point"),
                        to=y_zero.type.dtype)


@microsoft("QLinearConv")
def _qlinear_conv(g: GraphBuilder, node: Any) -> Node:
    """ONNX's QLinearConv, whose operand may have its channels last."""
    if not node.attrs.get("channels_last", 0):
        y: Node = qlinear_conv(g, node)
        return y
    turned = node.with_(inputs=(channels_first(g, node.inputs[0]), *node.inputs[1:]))
    return channels_last(g, qlinear_conv(g, turned))


@microsoft("MulInteger")
def _mul_integer(g: GraphBuilder, node: Any) -> Node:
    a, a_zero, b, b_zero = inputs_of(node, 4, needs=(0, 2))

    def centred(x: Node, zero: Node | None) -> Node:
        wide = g.cast(x, to="i32")
        return wide if zero is None else g.sub(wide, g.cast(zero, to="i32"))
    return g.mul(centred(a, a_zero), centred(b, b_zero))


@microsoft("MatMulInteger16")
def _matmul_integer16(g: GraphBuilder, node: Any) -> Node:
    a, b = (g.cast(x, to="i32") for x in node.inputs[:2])
    return standard(g, node, "MatMul", a, b, attrs={})


@microsoft("ReduceSumInteger")
def _reduce_sum_integer(g: GraphBuilder, node: Any) -> Node:
    x = node.inputs[0]
    if x.type.dtype not in ("u8", "i8"):
        raise UnsupportedError(f"sums 8-bit integers, got {x.type}")
    wide = "u32" if x.type.dtype == "u8" else "i32"
    return g.reduce_sum(g.cast(x, to=wide), axes=tuple(node.attrs["axes"]),
                        keepdims=bool(node.attrs["keepdims"]))
