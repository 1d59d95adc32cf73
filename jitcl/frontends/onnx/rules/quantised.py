"""Import rules of ONNX's quantised ops; those of onnxruntime stand in `contrib_quantised`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_, UnsupportedError
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import product
from jitcl.ops.contrib import both_domains
from jitcl.ops.core import norm_axis, onnx_dtype, onnx_rule
from jitcl.ops.quantise import QUANTISED
from jitcl.ops.window import checked_kernel, window_attrs, with_bias

# ---- scales and zero points


def parameter(g: GraphBuilder, v: Node, name: str, x: Node, axis: int) -> Node:
    """A scale or zero point, one for all or one for each index of `axis`, that broadcasts to x."""
    if v.type.size == 1:
        return g.reshape(v, shape=())
    axis = norm_axis(axis, x.type.rank)
    if v.type.shape != (x.type.shape[axis],):
        raise ShapeError(
            f"{name} {v.type} is neither one number nor one for each of the "
            f"{x.type.shape[axis]} elements along axis {axis} of {x.type}"
        )
    return g.reshape(v, shape=[d if a == axis else 1 for a, d in enumerate(x.type.shape)])


def _blocked(
    g: GraphBuilder, op: str, x: Node, parameters: list[Node], axis: int, block: int, **attrs: Any
) -> Node:
    """The op with one scale and zero point for each `block` elements along an axis.

    Where blocks are whole, x is seen with an axis for them; else each parameter is seen repeated.
    """
    dims = x.type.dims
    axis = norm_axis(axis, x.type.rank)
    blocks = -(-dims[axis] // block)
    wanted = (*dims[:axis], blocks, *dims[axis + 1 :])
    for v in parameters:
        if v.type.dims != wanted:
            raise ShapeError(
                f"blocks of {block} along axis {axis} of {x.type} want scales and zero points "
                f"{list(wanted)}, got {v.type}"
            )
    split = [g.reshape(v, shape=(*dims[:axis], blocks, 1, *dims[axis + 1 :])) for v in parameters]
    if blocks * block == dims[axis]:
        seen = g.reshape(x, shape=(*dims[:axis], blocks, block, *dims[axis + 1 :]))
        return g.reshape(g.op(op, seen, *split, **attrs), shape=dims)
    full = []
    for v in split:
        repeated = g.expand(v, shape=(*dims[:axis], blocks, block, *dims[axis + 1 :]))
        flat = g.reshape(repeated, shape=(*dims[:axis], blocks * block, *dims[axis + 1 :]))
        full.append(g.slice(flat, starts=(0,), ends=(dims[axis],), axes=(axis,), steps=(1,)))
    return g.op(op, x, *full, **attrs)


def _scaled(g: GraphBuilder, op: str, node: Any, zero: Node | None, **attrs: Any) -> Node:
    """QuantizeLinear or DequantizeLinear: per tensor, along an axis, or in blocks."""
    x, scale = node.inputs[:2]
    axis, block = int(node.attrs.get("axis", 1)), int(node.attrs.get("block_size", 0))
    if block < 0:
        raise ModelError(f"attribute block_size={block} must not be negative")
    if block and scale.type.rank == x.type.rank:
        parameters = [scale] if zero is None else [scale, zero]
        return _blocked(g, op, x, parameters, axis, block, **attrs)
    found = [parameter(g, scale, "the scale", x, axis)]
    if zero is not None:
        found.append(parameter(g, zero, "the zero point", x, axis))
    return g.op(op, x, *found, **attrs)


@both_domains("DequantizeLinear")
def _dequantize_linear(g: GraphBuilder, node: Any) -> Node:
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    to = node.attrs.get("output_dtype", 0)
    dtype = onnx_dtype(to) if to else scale.type.dtype
    if zero is not None and zero.type.dtype != x.type.dtype:
        raise TypeError_(f"x is {x.type}, but its zero point {zero.type}: they must be alike")
    if zero is not None and (_all_zero(zero) or _is_f8(x.type.dtype)):
        zero = None
    return _scaled(g, "dequantize", node, zero, to=dtype)


def _is_f8(dtype: str) -> bool:
    """Whether elements are floats of eight bits, whose zero points ONNX wants to be 0."""
    return dtype in dtypes.LOW_FLOATS and dtypes.bits(dtype) == 8


def _all_zero(node: Node) -> bool:
    return node.op == "const" and not np.count_nonzero(node.data)


@both_domains("QuantizeLinear")
def _quantize_linear(g: GraphBuilder, node: Any) -> Node:
    scale, zero = node.inputs[1], node.input(2)
    code = node.attrs.get("output_dtype", 0)
    to = onnx_dtype(code) if code else zero.type.dtype if zero is not None else "u8"
    if to not in QUANTISED:
        raise UnsupportedError(f"quantises to {to}; jitcl quantises to {', '.join(QUANTISED)}")
    if zero is not None and zero.type.dtype != to:
        raise TypeError_(f"output_dtype is {to}, but the zero point {zero.type}: they must agree")
    named = node.attrs.get("precision", 0)
    precision = onnx_dtype(named) if named else scale.type.dtype
    if named:                                # which the operands are rounded to as well
        x, scale = (v if v.type.dtype == precision else g.cast(v, to=precision)
                    for v in (node.inputs[0], scale))
        node = node.with_(inputs=(x, scale, *node.inputs[2:]))
    if dtypes.is_float(to):
        zero = None if _is_f8(to) or zero is None or _all_zero(zero) else zero
        saturate = bool(node.attrs.get("saturate", 1))
        return _scaled(g, "quantize", node, zero, to=to, precision=precision, saturate=saturate)
    return _scaled(g, "quantize", node, zero, to=to, precision=precision)


def dynamically_quantised(g: GraphBuilder, x: Node) -> tuple[Node, Node, Node]:
    """x as u8 over its own range with zero in it, the scale and the zero point (u8). A range of
    zeros alone has the scale 1, as in onnxruntime: ONNX's formula divides by 0 there."""
    low = g.min(g.reduce_min(x, keepdims=False), 0.0)
    high = g.max(g.reduce_max(x, keepdims=False), 0.0)
    span = g.div(g.sub(high, low), 255.0)
    scale = g.where(g.equal(span, 0.0), g.const(1, x.type.dtype), span)
    zero = g.cast(g.clip(g.round(g.div(g.neg(low), scale)), 0.0, 255.0), to="u8")
    return g.quantize(x, scale, zero, to="u8"), scale, zero


@onnx_rule("DynamicQuantizeLinear")
def _dynamic_quantize_linear(g: GraphBuilder, node: Any) -> tuple[Node, Node, Node]:
    return dynamically_quantised(g, node.inputs[0])


# ---- sums of products of integers


def _zero_of(g: GraphBuilder, zero: Node | None, x: Node, shape: list[int]) -> Node:
    """A zero point that broadcasts to x: `shape` is that of one for each row, column or channel."""
    if zero is None:
        return const(0, x.type.dtype)
    if zero.type.size == 1:
        return g.reshape(zero, shape=())
    return g.reshape(zero, shape=shape) if zero.type.rank == 1 else zero


def integer_product(
    g: GraphBuilder, a: Node, b: Node, a_zero: Node | None, b_zero: Node | None
) -> Node:
    def multiply(left: Node, right: Node) -> Node:
        rows = _zero_of(g, a_zero, a, [-1, 1])
        columns = _zero_of(g, b_zero, b, [1, -1])
        return g.matmul_integer(left, right, rows, columns)

    return product(g, a, b, multiply)


def integer_conv(
    g: GraphBuilder, node: Any, x: Node, w: Node, x_zero: Node | None, w_zero: Node | None
) -> Node:
    kernel = checked_kernel(node, x, w)
    outputs = [-1, *(1,) * (w.type.rank - 1)]
    window = window_attrs(node, x.type.dims[2:], kernel)
    zeros = _zero_of(g, x_zero, x, [-1]), _zero_of(g, w_zero, w, outputs)
    return g.conv_integer(x, w, *zeros, group=node.attrs.get("group", 1), **window)


@onnx_rule("MatMulInteger")
def _matmul_integer(g: GraphBuilder, node: Any) -> Node:
    return integer_product(g, node.inputs[0], node.inputs[1], node.input(2), node.input(3))


@onnx_rule("ConvInteger")
def _conv_integer(g: GraphBuilder, node: Any) -> Node:
    return integer_conv(g, node, node.inputs[0], node.inputs[1], node.input(2), node.input(3))


def _factor(g: GraphBuilder, a: Node, b: Node, y: Node) -> Node:
    """a * b / y: what a sum of products is multiplied by to become the result's integer."""
    return g.div(g.mul(a, b), y)


def one_number(g: GraphBuilder, v: Node, name: str) -> Node:
    if v.type.size != 1:
        raise ShapeError(f"{name} is {v.type}, wanted one number")
    return g.reshape(v, shape=())


@onnx_rule("QLinearMatMul")
def _qlinear_matmul(g: GraphBuilder, node: Any) -> Node:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    total = integer_product(g, a, b, a_zero, b_zero)
    if a_scale.type.size > 1 and a_scale.type.rank == 1:
        a_scale = g.reshape(a_scale, shape=(-1, 1))
    a_scale, b_scale = (
        g.reshape(v, shape=()) if v.type.size == 1 else v for v in (a_scale, b_scale))
    factor = _factor(g, a_scale, b_scale, one_number(g, y_scale, "y_scale"))
    zero = one_number(g, y_zero, "y_zero_point")
    return g.requantize(total, factor, zero, to=zero.type.dtype)


@onnx_rule("QLinearConv")
def qlinear_conv(g: GraphBuilder, node: Any) -> Node:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    total = with_bias(g, integer_conv(g, node, x, w, x_zero, w_zero), node.input(8))
    per_output = parameter(g, w_scale, "w_scale", total, 1)
    one_scale = one_number(g, x_scale, "x_scale")
    factor = _factor(g, one_scale, per_output, one_number(g, y_scale, "y_scale"))
    zero = one_number(g, y_zero, "y_zero_point")
    return g.requantize(total, factor, zero, to=zero.type.dtype)
