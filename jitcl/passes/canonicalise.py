"""One way to write each thing, so that later passes need to know one way only.

What no output needs is gone by construction: a graph is what its outputs reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.ir.graph import Node, const
from jitcl.ir.size_ranges import alike, hints
from jitcl.ir.sizes import has_size, same
from jitcl.ir.types import Dim
from jitcl.ops.core import broadcast, norm_axis
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.matching import exact, kind, scalar, split_const
from jitcl.passes.regions import reduced_axes

Shape = tuple[Dim, ...]
Rule = Callable[[Node, Rewriter], "Node | None"]

COMMUTATIVE = ("add", "mul", "min", "max", "equal", "and", "or", "xor",
               "bitwise_and", "bitwise_or", "bitwise_xor")
IDEMPOTENT = ("relu", "abs", "floor", "ceil", "round")
INVOLUTIONS = ("neg", "not", "bitwise_not")
MAX_UNIFORM = 4 << 20          # bytes of a constant that is looked at for repetition
MAX_CONCAT = 11                # operands that joined concats may have together


@dataclass(frozen=True)
class Canonicalise(RewritePass):
    """Drop what does nothing, merge what follows its like, put constants on the right.

        %0 = reshape(%x) {shape=[2, 6]}           %1 = reshape(%x) {shape=[3, 4]}
        %1 = reshape(%0) {shape=[3, 4]}      =>
        %2 = transpose(%1) {perm=[0, 1]}          %3 = mul(%1, 2.0)
        %3 = mul(2.0, %2)

    Only what is exact, NaN, infinities and the sign of zero included.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        for rule in _RULES.get(node.op, ()):
            found = rule(node, g)
            if found is not None:
                return found
        if kind(node) == "elementwise":
            return _plain_operands(node, g)
        return None


# ---- shapes

def _reshape(node: Node, g: Rewriter) -> Node | None:
    """Back to the same shape; of a reshape; of a reduction that could have kept its axes."""
    x, shape = node.inputs[0], node.type.shape
    if alike(x.type.shape, shape):
        return x
    if x.op == "reshape":
        return g.reshape(x.inputs[0], shape=shape)
    if node.attr("shape") != shape:
        return g.reshape(x, shape=shape)                     # -1 written out
    if kind(x) == "reduction" and not x.attr("keepdims", True) and g.readers(x) == 1:
        axes = reduced_axes(x)
        kept = tuple(1 if a in axes else d for a, d in enumerate(x.inputs[0].type.shape))
        if alike(kept, shape):
            return g.op(x.op, *x.inputs, **{**x.kwargs, "keepdims": True})
    return None


def _transpose(node: Node, g: Rewriter) -> Node | None:
    """Of a transpose: one. Where only axes of one element move: a reshape."""
    x, perm = node.inputs[0], node.attr("perm")
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "transpose":
        return g.transpose(x.inputs[0], perm=[x.attr("perm")[p] for p in perm])
    moved = [p for p in perm if not same(x.type.shape[p], 1)]
    return g.reshape(x, shape=node.type.shape) if moved == sorted(moved) else None


def _expand(node: Node, g: Rewriter) -> Node | None:
    x = node.inputs[0]
    if alike(x.type.shape, node.type.shape):
        return x
    if x.op == "expand":
        return g.expand(x.inputs[0], shape=node.type.shape)
    return None


def _tile(node: Node, g: Rewriter) -> Node | None:
    x = node.inputs[0]
    if alike(x.type.shape, node.type.shape) and x.type.size:
        return x
    if all(same(r, 1) or same(d, 1) for r, d in zip(node.attr("repeats"), x.type.shape)):
        return g.expand(x, shape=node.type.shape)
    return None


def _slice(node: Node, g: Rewriter) -> Node | None:
    """The whole: nothing. Of a slice: one. Written as starts, ends and steps of the axes that it
    cuts.
    """
    x = node.inputs[0]
    if alike(x.type.shape, node.type.shape) and all(s == 1 for s in node.attr("steps") or (1,)):
        return x
    if has_size((x.type.shape, node.type.shape, node.attr("starts"), node.attr("ends"))):
        return None                        # ranges are of numbers
    cut = slice_ranges(node)
    if x.op == "slice" and not has_size(x.inputs[0].type.shape):
        inner = slice_ranges(x)
        cut = {a: inner[a][cut[a].start:cut[a].stop:cut[a].step] if a in inner and a in cut
               else cut[a] if a in cut else inner[a] for a in sorted({*cut, *inner})}
        if any(len(r) == 0 for r in cut.values()):
            return None
        return _sliced(x.inputs[0], cut, g)
    if any(len(r) == 0 for r in cut.values()):
        return None
    plain = _sliced(x, cut, g)
    return plain if plain is not node else None


def slice_ranges(node: Node) -> dict[int, range]:
    """The indices that a slice node takes of each axis that it names."""
    dims, starts = node.inputs[0].type.dims, node.attr("starts")
    axes = node.attr("axes") or range(len(starts))
    steps = node.attr("steps") or (1,) * len(starts)
    return {(axis := norm_axis(a, len(dims))): range(*slice(b, e, s).indices(dims[axis]))
            for a, b, e, s in zip(axes, starts, node.attr("ends"), steps)}


def _sliced(x: Node, cut: dict[int, range], g: Rewriter) -> Node:
    """The canonical slice: axes in order, those taken whole left out, ends just behind the last
    index.
    """
    dims = x.type.dims
    used = [(a, r) for a, r in sorted(cut.items()) if r != range(dims[a])]
    ends = [r[-1] + 1 if r.step > 0 else (r[-1] - 1 if r[-1] else -dims[a] - 1) for a, r in used]
    return g.slice(x, starts=[r[0] for _, r in used], ends=ends, axes=[a for a, _ in used],
                   steps=[r.step if len(r) > 1 else 1 if r.step > 0 else -1 for _, r in used])


def _concat(node: Node, g: Rewriter) -> Node | None:
    """Without empty operands; of one operand: nothing; concats of concats along the same axis:
    one.
    """
    axis = norm_axis(node.attr("axis"), node.type.rank)
    parts = [x for x in node.inputs if x.type.shape[axis] != 0]
    if len(parts) == 1:
        return parts[0]
    flat = [y for x in parts for y in (x.inputs if _joins(x, axis, g) else (x,))]
    if len(flat) <= max(MAX_CONCAT, len(parts)):
        parts = flat
    if not parts or (len(parts) == len(node.inputs) and node.attr("axis") == axis):
        return None
    return g.concat(*parts, axis=axis)


def _joins(x: Node, axis: int, g: Rewriter) -> bool:
    return x.op == "concat" and norm_axis(x.attr("axis"), x.type.rank) == axis and g.readers(x) == 1


def _pad(node: Node, g: Rewriter) -> Node | None:
    return node.inputs[0] if all(same(p, 0) for p in node.attr("pads")) else None


def _gather(node: Node, g: Rewriter) -> Node | None:
    """By one constant index: a slice, which costs an address."""
    x, index = node.inputs
    at = scalar(index)
    axis = norm_axis(node.attr("axis", 0), x.type.rank)
    extent = x.type.dims[axis]
    if at is None or not -extent <= at < extent:
        return None
    at %= extent
    return g.reshape(g.slice(x, starts=(at,), ends=(at + 1,), axes=(axis,), steps=(1,)),
                     shape=node.type.shape)


def _reduction(node: Node, g: Rewriter) -> Node | None:
    """Over axes of one element: another shape of the operand (of sums, means and extremes)."""
    x = node.inputs[0]
    axes = reduced_axes(node)
    if all(same(x.type.shape[a], 1) for a in axes):
        return x if alike(x.type.shape, node.type.shape) else g.reshape(x, shape=node.type.shape)
    if node.attr("axes") != axes:
        return g.op(node.op, x, axes=axes, keepdims=node.attr("keepdims", True))
    return None


# ---- arithmetic

def _cast(node: Node, g: Rewriter) -> Node | None:
    """To the same type: nothing. Of a cast that lost nothing: one."""
    x = node.inputs[0]
    if x.type.dtype == node.type.dtype:
        return x
    if x.op != "cast" or not exact(x.inputs[0].type.dtype, x.type.dtype):
        return None
    first, last = x.inputs[0].type.dtype, node.type.dtype
    alike = dtypes.is_float(first) == dtypes.is_float(x.type.dtype)
    return g.cast(x.inputs[0], to=last) if alike or first == "bool" or exact(first, last) else None


def _constant_right(node: Node, g: Rewriter) -> Node | None:
    x, y = node.inputs
    return g.op(node.op, y, x, **node.kwargs) if x.op == "const" and y.op != "const" else None


def _neutral(node: Node, g: Rewriter) -> Node | None:
    """x * 1, x / 1, x - 0, x + -0.0, and for integers x + 0: x, where the shape stays."""
    found = split_const(node)
    if found is None or found[0].type != node.type:
        return None
    x, c = found
    if node.op in ("sub", "div") and x is not node.inputs[0]:
        return None
    values, is_float = c.data, dtypes.is_float(x.type.dtype)
    if node.op in ("mul", "div"):
        neutral = values == 1
    elif is_float:                       # 0.0 - 0.0 and -0.0 + -0.0 keep the sign of x
        neutral = (values == 0) & (np.signbit(values) == (node.op == "add"))
    else:
        neutral = values == 0
    return x if neutral.all() else None


def _divide_by_power_of_two(node: Node, g: Rewriter) -> Node | None:
    """x / 2^k is x * 2^-k, exactly."""
    x, c = node.inputs
    if c.op != "const" or not dtypes.is_float(x.type.dtype) or x.op == "const":
        return None
    values = c.data.astype(np.float64)
    mantissa, exponent = np.frexp(values)
    if not (np.abs(mantissa) == 0.5).all() or (np.abs(exponent) > 13).any():
        return None
    return g.mul(x, const(1.0 / values, c.type.dtype))


def _power(node: Node, g: Rewriter) -> Node | None:
    """Powers that are something cheaper; they are what `pow` itself would compute."""
    x, y = node.inputs[0], scalar(node.inputs[1])
    if y is None or not dtypes.is_float(x.type.dtype) or x.type != node.type:
        return None
    if y == 1:
        return x
    if y == 2:
        return g.mul(x, x)
    return g.sqrt(x) if y == 0.5 else g.reciprocal(x) if y == -1 else None


def _clip(node: Node, g: Rewriter) -> Node | None:
    """With one bound: max or min."""
    x, low, high = node.inputs
    if scalar(high) == np.inf:
        return g.max(x, low)
    return g.min(x, high) if scalar(low) == -np.inf else None


def _twice(node: Node, g: Rewriter) -> Node | None:
    """relu(relu(x)) is relu(x); neg(neg(x)) is x."""
    x = node.inputs[0]
    if x.op != node.op:
        return None
    return x if node.op in IDEMPOTENT else x.inputs[0]


def _same_choice(node: Node, g: Rewriter) -> Node | None:
    condition, x, y = node.inputs
    if condition.op == "const" and condition.data.size:
        for operand, all_so in ((x, condition.data.all()), (y, not condition.data.any())):
            if all_so:
                same = operand.type == node.type
                return operand if same else g.expand(operand, shape=node.type.shape)
    return x if x is y and x.type == node.type else None


# ---- operands of elementwise ops

def _plain_operands(node: Node, g: Rewriter) -> Node | None:
    """Elementwise ops broadcast by themselves: operands come without expand, leading ones and
    repetition.
    """
    inputs = list(node.inputs)
    for k, x in enumerate(inputs):
        others = [i.type.shape for j, i in enumerate(inputs) if j != k]
        inputs[k] = _smaller(x, others, node)
    if all(a is b for a, b in zip(inputs, node.inputs)):
        return None
    return g.op(node.op, *inputs, **node.kwargs)


def _smaller(x: Node, others: list[Shape], node: Node) -> Node:
    if x.op == "expand" and _still(x.inputs[0].type.shape, others, node):
        return x.inputs[0]
    if x.op == "reshape" and x.type.rank and same(x.type.shape[0], 1):
        source = x.inputs[0]
        ones = x.type.rank - source.type.rank
        if ones > 0 and alike(x.type.shape, (1,) * ones + source.type.shape) and _still(
                source.type.shape, others, node):
            return source
    if x.op == "const" and 1 < x.type.size and x.type.nbytes <= MAX_UNIFORM:
        return _without_repetition(x, others, node)
    return x


def _still(shape: Shape, others: list[Shape], node: Node) -> bool:
    try:
        if broadcast(hints(shape), *hints(others)) != hints(node.type.shape):
            return False                    # no guard: an expanded operand is right, too
    except ShapeError:
        return False
    return broadcast(shape, *others) == node.type.shape


def _without_repetition(x: Node, others: list[Shape], node: Node) -> Node:
    """A constant with the axes made one along which it repeats itself."""
    array = x.data
    for axis, d in enumerate(array.shape):
        if d == 1:
            continue
        first = array.take([0], axis)
        shape = first.shape
        if _still(shape, others, node) and _same_bits(array, np.broadcast_to(first, array.shape)):
            array = first
    if array.size == 1 and _still((), others, node):
        array = array.reshape(())
    return x if array.shape == x.data.shape else const(array, x.type.dtype)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind not in "iub":
        bits = f"u{a.dtype.itemsize}"
        a, b = (np.ascontiguousarray(v).view(bits) for v in (a, b))
    return bool((a == b).all())


_RULES: dict[str, list[Rule]] = {
    "reshape": [_reshape], "transpose": [_transpose], "expand": [_expand], "tile": [_tile],
    "slice": [_slice], "concat": [_concat], "pad": [_pad], "gather": [_gather], "cast": [_cast],
    "pow": [_power], "where": [_same_choice], "div": [_neutral, _divide_by_power_of_two],
    "sub": [_neutral], "clip": [_clip]}
for _op in COMMUTATIVE:
    _RULES.setdefault(_op, []).append(_constant_right)
for _op in ("add", "mul"):
    _RULES[_op].append(_neutral)
for _op in (*IDEMPOTENT, *INVOLUTIONS):
    _RULES.setdefault(_op, []).append(_twice)
for _op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
    _RULES.setdefault(_op, []).append(_reduction)
