"""Algebra that saves work: scales into weights, padding into windows, bounds into one clip.

These change rounding (a weight times a scale is rounded once more), never meaning; Canonicalise
holds what is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node, const
from jitcl.ir.sizes import hint
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.matching import per_axis, scalar, split_const
from jitcl.passes.precision import fits

Array = np.ndarray[Any, Any]
CONVOLUTIONS = ("conv", "conv_transpose")


# ---- scales and shifts

@dataclass(frozen=True)
class FoldScale(RewritePass):
    """Multiply a constant scale behind a convolution or matmul into its weights, and gather its
    shifts into one.

        %1 = conv(%x, w)                               %1 = conv(%x, w * s)
        %2 = add(%1, b)        (batch_norm)       =>   %2 = add(%1, b * s + t)
        %3 = mul(%2, s)
        %4 = add(%3, t)

    The scale has one value for each output channel (or column, or one for all). Only where
    nothing else reads the unscaled result. So an inference BatchNormalization, expanded, vanishes
    into the convolution before it.
    """

    max_weight_bytes: int = 256 << 20     # scaled weights are a copy

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if not dtypes.is_float(node.type.dtype):
            return None
        if node.op in ("sub", "div"):
            return self._as_sum_or_product(node, g)
        found = split_const(node)
        if found is None or node.op not in ("add", "mul") or found[0].type != node.type:
            return None
        x, c = found
        if g.readers(x) > 1:
            return None
        if node.op == "add":
            return self._two_shifts(x, c, g)
        if x.op == "add":
            return self._scale_behind_shift(x, c, g)
        return self._scaled(x, c)

    def _as_sum_or_product(self, node: Node, g: Rewriter) -> Node | None:
        """y - c is y + -c; y / c is y * (1 / c), where a scale or shift can be folded then."""
        y, c = node.inputs
        if c.op != "const" or not self._over_weights(y) or channel_values(c, node) is None:
            return None
        if node.op == "sub":
            return g.add(y, const(-c.data, c.type.dtype))
        with np.errstate(divide="ignore"):
            inverse = 1.0 / c.data.astype(np.float64)
        return g.mul(y, const(inverse, c.type.dtype)) if np.isfinite(inverse).all() else None

    def _over_weights(self, y: Node) -> bool:
        """A convolution or matmul by constant weights, a shift or scale in between allowed."""
        found = split_const(y) if y.op in ("add", "mul") else None
        return weights_of(found[0] if found else y) is not None

    def _two_shifts(self, x: Node, c: Node, g: Rewriter) -> Node | None:
        inner = split_const(x) if x.op == "add" else None
        if inner is None or weights_of(inner[0]) is None or inner[0].type != x.type:
            return None
        total = inner[1].data.astype(np.float64) + c.data.astype(np.float64)
        return g.add(inner[0], const(total, c.type.dtype))

    def _scale_behind_shift(self, x: Node, c: Node, g: Rewriter) -> Node | None:
        """(y + b) * s  =>  y * s + b * s"""
        inner = split_const(x)
        if inner is None or inner[0].type != x.type or g.readers(inner[0]) > 1:
            return None
        y = self._scaled(inner[0], c)
        if y is None:
            return None
        shift = inner[1].data.astype(np.float64) * c.data.astype(np.float64)
        return g.add(y, const(shift, c.type.dtype))

    def _scaled(self, y: Node, c: Node) -> Node | None:
        """The node with `c` in its weights; None where they have no place for it."""
        w = weights_of(y)
        if w is None or w.type.nbytes > self.max_weight_bytes:
            return None
        values = channel_values(c, y)
        if values is None:
            return None
        scaled = times(w, along_weights(y, w, values))
        return scaled and y.with_inputs((y.inputs[0], scaled))


@dataclass(frozen=True)
class FoldScaleBefore(RewritePass):
    """A scale of input channels goes into the weights of the convolution behind it.

        %1 = mul(%x, s)
        %2 = conv(%1, w)     =>     %2 = conv(%x, w * s)

    Padding stays zero under a scale, so this holds for any padding (of a shift it would not).
    """

    max_weight_bytes: int = 64 << 20

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        w = weights_of(node)
        if w is None or node.op not in CONVOLUTIONS or w.type.nbytes > self.max_weight_bytes:
            return None
        x = node.inputs[0]
        found = split_const(x) if x.op == "mul" else None
        if found is None or found[0].type != x.type or g.readers(x) > 1:
            return None
        values = per_axis(found[1].data, x.type.rank, 1, x.type.dims[1])
        if values is None:
            return None
        scaled = times(w, _along_inputs(node, w, values))
        return scaled and node.with_inputs((found[0], scaled))


def weights_of(node: Node) -> Node | None:
    """The constant weights of a convolution or of a matmul by a matrix; floats only."""
    if node.op not in (*CONVOLUTIONS, "matmul") or not dtypes.is_float(node.type.dtype):
        return None
    w = node.inputs[1]
    return w if w.op == "const" and (node.op != "matmul" or w.type.rank == 2) else None


def times(w: Node, factor: Array) -> Node | None:
    """Constant weights times a factor; None where a product isn't finite, or f16, which holds the
    weights, doesn't hold these: a layer scale of 1e-6 costs a multiplication behind the sum, not
    the product in halves. They are computed again when they are needed, where the weights
    themselves are read again then."""
    def scaled() -> Array:
        product: Array = np.empty(w.type.dims, dtypes.to_numpy(w.type.dtype))
        with np.errstate(over="ignore"):
            return np.multiply(w.data, factor, product, dtype=np.float64, casting="unsafe")

    array = scaled()
    made = const(array, w.type.dtype, scaled if w.attr("data").reloads else None)
    return made if np.isfinite(array).all() and (fits(made) or not fits(w)) else None


def channel_values(c: Node, node: Node) -> Array | None:
    """One value for each output channel (columns of a matmul), where `c` is no finer than that."""
    axis = node.type.rank - 1 if _product(node).op == "matmul" else 1
    return per_axis(c.data, node.type.rank, axis, node.type.dims[axis])


def _product(node: Node) -> Node:
    """The convolution or matmul behind a chain of scales and shifts."""
    while node.op in ("add", "mul", "sub", "div"):
        node = node.inputs[0]
    return node


def along_weights(node: Node, w: Node, values: Array) -> Array:
    """Output channel values, shaped to broadcast over the weights."""
    if node.op == "matmul":
        return values
    if node.op == "conv":
        return values.reshape(-1, *(1,) * (w.type.rank - 1))
    return _by_group(node, w, values)


def _along_inputs(node: Node, w: Node, values: Array) -> Array:
    """Input channel values, shaped to broadcast over the weights."""
    if node.op == "conv_transpose":
        return values.reshape(-1, *(1,) * (w.type.rank - 1))
    return _by_group(node, w, values)


def _by_group(node: Node, w: Node, values: Array) -> Array:
    """Values along the second axis of the weights, for each group of the first."""
    group, first = node.attr("group"), w.type.dims[0]
    each = np.repeat(values.reshape(group, 1, -1), first // group, axis=1)
    return each.reshape(first, -1, *(1,) * (w.type.rank - 2))


@dataclass(frozen=True)
class DivideOnce(RewritePass):
    """What a norm divides by is one value for many elements: take its reciprocal, and multiply.

        %1 = sqrt(%variance)                %1 = sqrt(%variance)
        %2 = div(%x, %1)            =>      %2 = reciprocal(%1)
                                            %3 = mul(%x, %2)

    Of sums and square roots only: the reciprocal of a number below 1e-38 would be infinite.
    """

    times: int = 4                        # elements that share a divisor, at least

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if node.op != "div" or node.type.dtype not in ("f32", "f64"):
            return None
        x, divisor = node.inputs
        if divisor.op not in ("sqrt", "reduce_sum"):
            return None
        if x.type != node.type or hint(self.times * divisor.type.size) > hint(node.type.size):
            return None
        return g.mul(x, g.reciprocal(divisor))


# ---- padding

@dataclass(frozen=True)
class FoldPad(RewritePass):
    """Zeros around a tensor become the padding of the convolution or pooling that reads it.

        %1 = pad(%x, 0.0) {pads=[0, 0, 1, 1, 0, 0, 1, 1]}
        %2 = conv(%1, w) {pads=[0, 0, 0, 0]}                =>    %2 = conv(%x, w) {pads=[1, 1, 1,
        1]}

    An average then counts the padding; a maximum wants its lowest value around it, which is what
    its padding is.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        rule = _PAD_INTO.get(node.op)
        x = node.inputs[0] if node.inputs else node
        if rule is None or x.op != "pad" or x.attr("mode", "constant") != "constant":
            return None
        pads, rank = x.attr("pads"), x.type.rank
        before, after = pads[:rank], pads[rank:]
        if any(before[:2]) or any(after[:2]) or min(pads) < 0:
            return None
        value = scalar(x.inputs[1]) if len(x.inputs) > 1 else 0
        changes = rule(node, value)
        if changes is None:
            return None
        total = tuple(p + q for p, q in zip(node.attr("pads"), (*before[2:], *after[2:])))
        attrs = {**node.kwargs, **changes, "pads": total}
        return g.op(node.op, x.inputs[0], *node.inputs[1:], **attrs)


def _into_conv(node: Node, value: Any) -> dict[str, Any] | None:
    return {} if value == 0 else None


def _into_maximum(node: Node, value: Any) -> dict[str, Any] | None:
    """With padding of its own the order of paddings is lost, but all of them are the lowest
    value.
    """
    return {} if value == dtypes.limits(node.type.dtype)[0] and not node.attr("ceil") else None


def _into_average(node: Node, value: Any) -> dict[str, Any] | None:
    own = any(node.attr("pads"))
    if value != 0 or node.attr("ceil") or (own and not node.attr("count_pad")):
        return None
    return {"count_pad": True}


_PAD_INTO: dict[str, Callable[[Node, Any], dict[str, Any] | None]] = {
    "conv": _into_conv, "max_pool": _into_maximum, "average_pool": _into_average}


# ---- bounds and activations

@dataclass(frozen=True)
class MergeBounds(RewritePass):
    """Chains of max, min, relu and clip with constant bounds become one.

        %1 = relu(%x)
        %2 = min(%1, 6.0)     =>     %2 = clip(%x, 0.0, 6.0)
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        outer = bounds_of(node)
        if outer is None:
            return None
        x = node.inputs[0]
        inner = bounds_of(x)
        if inner is None:
            relu = node.op == "max" and outer[0] == 0 and not math.copysign(1, outer[0]) < 0
            return g.relu(x) if relu and x.type == node.type else None
        if x.type != node.type or x.inputs[0].type != x.type:
            return None
        low, high = max(inner[0], outer[0]), min(inner[1], outer[1])
        if low > high or math.isnan(low) or math.isnan(high):
            return None                    # they cross: which bound wins depends on the order
        if low == -math.inf:
            return g.min(x.inputs[0], _like(high, node))
        if high == math.inf:
            return g.max(x.inputs[0], _like(low, node))
        return g.clip(x.inputs[0], _like(low, node), _like(high, node))


def bounds_of(node: Node) -> tuple[float, float] | None:
    """What a node confines its first operand to: (lowest, highest); infinite where open."""
    if node.op == "relu":
        return 0.0, math.inf
    values = [scalar(i) for i in node.inputs[1:]]
    if node.op not in ("min", "max", "clip") or any(v is None or v != v for v in values):
        return None
    if node.op == "clip":
        return (values[0], values[1]) if values[0] <= values[1] else None
    return (values[0], math.inf) if node.op == "max" else (-math.inf, values[0])


def _like(value: float, node: Node) -> Node:
    return const(np.asarray(value), node.type.dtype)


@dataclass(frozen=True)
class NameActivations(RewritePass):
    """Spelled-out activations become the ops that they are.

        mul(%x, sigmoid(%x))                                          =>    swish(%x)
        mul(mul(%x, 0.5), add(erf(div(%x, 1.4142135)), 1.0))          =>    gelu(%x)
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if node.op != "mul" or not dtypes.is_float(node.type.dtype):
            return None
        for x, y in (node.inputs, node.inputs[::-1]):
            if y.op == "sigmoid" and y.inputs[0] is x:
                return g.swish(x)
        return self._gelu(node, g)

    def _gelu(self, node: Node, g: Rewriter) -> Node | None:
        """The factors x, 1/2 and erf(x / sqrt(2)) + 1, in any order."""
        for share in _factors(node, None):
            x = _erf_of(share)
            if x is None or x.type != node.type:
                continue
            rest = [f for f in _factors(node, x) if f is not share]
            half = math.prod(v for f in rest if (v := scalar(f)) is not None)
            if half == 0.5 and [f for f in rest if scalar(f) is None] == [x]:
                return g.gelu(x)
        return None


def _factors(node: Node, whole: Node | None) -> list[Node]:
    """What a small tree of products multiplies; `whole` is not taken apart."""
    found: list[Node] = []
    stack = [node]
    while stack and len(found) < 6:
        n = stack.pop()
        if n.op == "mul" and n is not whole:
            stack.extend(n.inputs)
        else:
            found.append(n)
    return found


def _erf_of(node: Node) -> Node | None:
    """The x of erf(x / sqrt(2)) + 1."""
    if node.op != "add" or scalar(node.inputs[1]) != 1 or node.inputs[0].op != "erf":
        return None
    scaled = node.inputs[0].inputs[0]
    if scaled.op not in ("div", "mul"):
        return None
    factor = scalar(scaled.inputs[1])
    wanted = math.sqrt(2) if scaled.op == "div" else math.sqrt(0.5)
    close = factor is not None and math.isclose(factor, wanted, rel_tol=1e-3)
    return scaled.inputs[0] if close else None


__all__ = ["DivideOnce", "FoldPad", "FoldScale", "FoldScaleBefore", "MergeBounds",
           "NameActivations"]
