"""Import rules of ONNX's quantised ops, and of those that onnxruntime adds in com.microsoft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitcl.errors import ModelError, ShapeError, TypeError_, UnsupportedError
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import product
from jitcl.ops.core import ONNX, Rule, norm_axis, onnx_dtype, onnx_rule
from jitcl.ops.quantise import QUANTISED
from jitcl.ops.window import checked_kernel, window_attrs, with_bias

MICROSOFT = "com.microsoft"
DOMAINS = ("", MICROSOFT)


def _both_domains(op_type: str) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        for domain in DOMAINS:
            onnx_rule(op_type, domain=domain)(rule)
        return rule

    return enter


# ---- scales and zero points


def _parameter(g: GraphBuilder, v: Node, name: str, x: Node, axis: int) -> Node:
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
    found = [_parameter(g, scale, "the scale", x, axis)]
    if zero is not None:
        found.append(_parameter(g, zero, "the zero point", x, axis))
    return g.op(op, x, *found, **attrs)


@_both_domains("DequantizeLinear")
def _dequantize_linear(g: GraphBuilder, node: Any) -> Node:
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    to = node.attrs.get("output_dtype", 0)
    dtype = onnx_dtype(to) if to else scale.type.dtype
    if zero is not None and zero.type.dtype != x.type.dtype:
        raise TypeError_(f"x is {x.type}, but its zero point {zero.type}: they must be alike")
    if zero is not None and _all_zero(zero):
        zero = None
    return _scaled(g, "dequantize", node, zero, to=dtype)


def _all_zero(node: Node) -> bool:
    return node.op == "const" and not node.data.any()


@_both_domains("QuantizeLinear")
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
    return _scaled(g, "quantize", node, zero, to=to, precision=precision)


# ---- sums of products of integers


def _zero_of(g: GraphBuilder, zero: Node | None, x: Node, shape: list[int]) -> Node:
    """A zero point that broadcasts to x: `shape` is that of one for each row, column or channel."""
    if zero is None:
        return const(0, x.type.dtype)
    if zero.type.size == 1:
        return g.reshape(zero, shape=())
    return g.reshape(zero, shape=shape) if zero.type.rank == 1 else zero


def _integer_product(
    g: GraphBuilder, a: Node, b: Node, a_zero: Node | None, b_zero: Node | None
) -> Node:
    def multiply(left: Node, right: Node) -> Node:
        rows = _zero_of(g, a_zero, a, [-1, 1])
        columns = _zero_of(g, b_zero, b, [1, -1])
        return g.matmul_integer(left, right, rows, columns)

    return product(g, a, b, multiply)


def _integer_conv(
    g: GraphBuilder, node: Any, x: Node, w: Node, x_zero: Node | None, w_zero: Node | None
) -> Node:
    kernel = checked_kernel(node, x, w)
    outputs = [-1, *(1,) * (w.type.rank - 1)]
    window = window_attrs(node, x.type.dims[2:], kernel)
    zeros = _zero_of(g, x_zero, x, [-1]), _zero_of(g, w_zero, w, outputs)
    return g.conv_integer(x, w, *zeros, group=node.attrs.get("group", 1), **window)


@onnx_rule("MatMulInteger")
def _matmul_integer(g: GraphBuilder, node: Any) -> Node:
    return _integer_product(g, node.inputs[0], node.inputs[1], node.input(2), node.input(3))


@onnx_rule("ConvInteger")
def _conv_integer(g: GraphBuilder, node: Any) -> Node:
    return _integer_conv(g, node, node.inputs[0], node.inputs[1], node.input(2), node.input(3))


def _factor(g: GraphBuilder, a: Node, b: Node, y: Node) -> Node:
    """a * b / y: what a sum of products is multiplied by to become the result's integer."""
    return g.div(g.mul(a, b), y)


def _one(g: GraphBuilder, v: Node, name: str) -> Node:
    if v.type.size != 1:
        raise ShapeError(f"{name} is {v.type}, wanted one number")
    return g.reshape(v, shape=())


@onnx_rule("QLinearMatMul")
def _qlinear_matmul(g: GraphBuilder, node: Any) -> Node:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs[:8]
    total = _integer_product(g, a, b, a_zero, b_zero)
    if a_scale.type.size > 1 and a_scale.type.rank == 1:
        a_scale = g.reshape(a_scale, shape=(-1, 1))
    a_scale, b_scale = (
        g.reshape(v, shape=()) if v.type.size == 1 else v for v in (a_scale, b_scale)
    )
    factor = _factor(g, a_scale, b_scale, _one(g, y_scale, "y_scale"))
    zero = _one(g, y_zero, "y_zero_point")
    return g.requantize(total, factor, zero, to=zero.type.dtype)


@onnx_rule("QLinearConv")
def _qlinear_conv(g: GraphBuilder, node: Any) -> Node:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    total = with_bias(g, _integer_conv(g, node, x, w, x_zero, w_zero), node.input(8))
    per_output = _parameter(g, w_scale, "w_scale", total, 1)
    factor = _factor(g, _one(g, x_scale, "x_scale"), per_output, _one(g, y_scale, "y_scale"))
    zero = _one(g, y_zero, "y_zero_point")
    return g.requantize(total, factor, zero, to=zero.type.dtype)


# ---- com.microsoft: products by weights of 4 or 8 bits


@onnx_rule("MatMulNBits", domain=MICROSOFT)
def _matmul_nbits(g: GraphBuilder, node: Any) -> Node:
    """a @ w' + bias, where w [N, K] is unsigned integers with a scale for each block along K."""
    a, packed, scales, zeros, order, bias = (node.input(i) for i in range(6))
    k, n, bits = (int(node.attrs.get(name, 4)) for name in ("K", "N", "bits"))
    block = int(node.attrs["block_size"])
    if bits not in (4, 8):
        raise UnsupportedError(f"weights of {bits} bits are not supported: quantise to 4 or 8")
    if order is not None:
        raise UnsupportedError(
            "its weights are permuted (input g_idx): quantise without act_order"
        )
    blocks = -(-k // block)
    if packed.type.size != n * blocks * block * bits // 8 or packed.type.dtype != "u8":
        raise ShapeError(
            f"K={k}, N={n} in blocks of {block} with {bits} bits want "
            f"u8[{n},{blocks},{block * bits // 8}], got {packed.type}"
        )
    w = _unpacked(g, packed, bits, (n, blocks, block))
    zero = _nbits_zero(g, zeros, bits, n, blocks)
    w = g.dequantize(w, g.reshape(scales, shape=(n, blocks, 1)), zero, to=a.type.dtype)
    w = g.reshape(w, shape=(n, blocks * block))
    if blocks * block != k:
        w = g.slice(w, starts=(0,), ends=(k,), axes=(1,), steps=(1,))
    y = product(g, a, g.transpose(w, perm=(1, 0)))
    return y if bias is None else g.add(y, bias)


def _unpacked(g: GraphBuilder, packed: Node, bits: int, shape: tuple[int, ...]) -> Node:
    if bits == 8:
        return g.reshape(packed, shape=shape)
    flat = g.reshape(packed, shape=(packed.type.size,))
    return g.unpack_uint4(flat, shape=shape)


def _nbits_zero(g: GraphBuilder, zeros: Node | None, bits: int, n: int, blocks: int) -> Node:
    """One zero point for each block: packed as the weights are, each row in whole bytes; or as
    numbers; the middle of the range where there are none."""
    if zeros is None:
        return const(1 << (bits - 1), "u8")
    if zeros.type.dtype == "u8":
        row = -(-blocks * bits // 8)
        each = row * 8 // bits
        if zeros.type.size != n * row:
            raise ShapeError(f"zero points of {n} rows of {blocks} blocks with {bits} bits want "
                             f"u8[{n * row}], got {zeros.type}")
        full = _unpacked(g, zeros, bits, (n, each))
        kept = g.slice(full, starts=(0,), ends=(blocks,), axes=(1,), steps=(1,))
        return g.reshape(kept, shape=(n, blocks, 1))
    return g.reshape(zeros, shape=(n, blocks, 1))


# ---- com.microsoft: ops on quantised tensors, computed on the numbers that they stand for


def _number(g: GraphBuilder, x: Node, scale: Node, zero: Node | None) -> Node:
    given = [] if zero is None else [_one(g, zero, "a zero point")]
    return g.dequantize(x, _one(g, scale, "a scale"), *given)


def _quantised(g: GraphBuilder, y: Node, scale: Node, zero: Node | None, like: Node) -> Node:
    to = like.type.dtype if zero is None else zero.type.dtype
    given = [] if zero is None else [_one(g, zero, "y_zero_point")]
    return g.quantize(y, _one(g, scale, "y_scale"), *given, to=to)


@onnx_rule("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(g: GraphBuilder, node: Any) -> Node:
    """Operands that already have the result's scale and zero point go through as they are."""
    y_scale, y_zero, *rest = node.inputs
    if len(rest) % 3 or not rest:
        raise ModelError(f"QLinearConcat takes 2 + 3n inputs, got {len(node.inputs)}")
    parts = []
    for x, scale, zero in zip(rest[::3], rest[1::3], rest[2::3]):
        same = scale is y_scale and zero is y_zero
        number = x if same else _number(g, x, scale, zero)
        parts.append(x if same else _quantised(g, number, y_scale, y_zero, x))
    return g.concat(*parts, axis=node.attrs["axis"])


@onnx_rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _qlinear_binary(g: GraphBuilder, node: Any) -> Node:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    op = {"QLinearAdd": "add", "QLinearMul": "mul"}[node.op_type]
    y = g.op(op, _number(g, a, a_scale, a_zero), _number(g, b, b_scale, b_zero))
    return _quantised(g, y, y_scale, y_zero, a)


@onnx_rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool",
           "QLinearSoftmax", domain=MICROSOFT)
def _qlinear_unary(g: GraphBuilder, node: Any) -> Node:
    """The op of the same name on the numbers that x stands for."""
    x, x_scale, x_zero, y_scale, y_zero = (node.input(i) for i in range(5))
    if node.attrs.get("channels_last", 0):
        raise UnsupportedError("has channels_last=1: export it with channels in axis 1")
    plain = node.op_type.removeprefix("QLinear")
    attrs = {k: v for k, v in node.attrs.items() if k not in ("channels_last", "opset")}
    inner = node.with_(op_type=plain, domain="", inputs=(_number(g, x, x_scale, x_zero),),
                       attrs=attrs, opset=_NEWEST)
    y = ONNX["", plain](g, inner)
    return _quantised(g, y[0] if isinstance(y, tuple) else y, y_scale, y_zero, x)


_NEWEST = 22                                  # the attributes of these ops are those of opset 22


