"""Pointwise products (1x1 convolutions, matmuls of pixels) where they take the least arithmetic.

Such a product mixes the channels of a pixel, and no pixels. So it changes places with what mixes
pixels and no channels (a resize), and two in a row with nothing but a shift between them are one.
Heads of segmentation networks are made of both. These change rounding, never meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node, const
from jitcl.ir.size_ranges import alike
from jitcl.ir.sizes import hint
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.matching import per_axis, split_const

Array = np.ndarray[Any, Any]
DTYPES = ("f32", "f64")     # sums of halves in parts would lose digits that one product keeps
MOVED = 128                 # operations that take as long as one more element through memory


@dataclass(frozen=True)
class PixelProducts(RewritePass):
    """A matmul of pixels, between views from and to NCHW, is a 1x1 convolution.

        %1 = reshape(%x: [N,C,H,W]) {shape=[N,C,HW]}
        %2 = transpose(%1) {perm=[0, 2, 1]}
        %3 = add(matmul(%2, w: [C,M]), b: [M])           =>    %y = add(conv(%x, w'), b')
        %4 = transpose(%3) {perm=[0, 2, 1]}                    w': [M,C,1,1]   b': [M,1,1]
        %y = reshape(%4) {shape=[N,M,H,W]}

    Or between transposes to [N,H,W,C] and back.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        rows = _rows_of(node)
        if rows is None or node.type.dtype not in DTYPES or g.readers(rows) > 1:
            return None
        product, shift = _shifted(rows, rows.type.rank - 1, g)
        if product.op != "matmul" or g.readers(product) > 1 or not _constant_matrix(product):
            return None
        x = _map_of(product.inputs[0])
        if x is None or x.type.dims[2:] != node.type.dims[2:]:
            return None
        space = node.type.rank - 2
        w = product.inputs[1].data
        y = _convolution(g, x, np.ascontiguousarray(w.T).reshape(*w.T.shape, *(1,) * space))
        return y if shift is None else _add_shift(g, y, shift)


@dataclass(frozen=True)
class ConvolveSmall(RewritePass):
    """A 1x1 convolution of what was resized is made before it, of fewer pixels.

        %1 = interpolate(%a, ..)                 %1 = conv(%a, w[:, :A])
        %2 = concat(%1, %b) {axis=1}       =>    %2 = conv(%b, w[:, A:])
        %y = conv(%2, w)                         %y = add(%2, interpolate(%1, ..))

    Where that saves more arithmetic than moving the sums costs. Parts that are resized alike stay
    one, and so do those that are not resized.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if not _pointwise(node):
            return None
        x, w = node.inputs
        joined = x.op == "concat" and x.attr("axis") == 1
        if joined and g.readers(x) > 1:
            return None
        whole, resized = _parted(x.inputs if joined else (x,), g)
        added = MOVED * hint(node.type.size) if whole.channels or len(resized) > 1 else 0
        worth = [p for p in resized if p.saved(node) > added]
        if not worth:
            return None
        for part in resized:
            if part not in worth:
                whole.take(part)
        sums = [part.product(g, w.data) for part in (whole, *worth) if part.channels]
        return reduce(g.add, sums)


@dataclass(frozen=True)
class MergeProducts(RewritePass):
    """A 1x1 convolution of a convolution is one, where that takes less arithmetic.

        %1 = add(conv(%x, v), b)
        %y = conv(%1, w)              =>    %y = add(conv(%x, w * v), w * b)

    The first may have any window, strides and padding; nothing else reads it.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if not _pointwise(node) or g.readers(node.inputs[0]) > 1:
            return None
        w = node.inputs[1]
        inner, shift = _shifted(node.inputs[0], 1, g)
        if inner.op != "conv" or inner.attr("group") != 1 or inner.inputs[1].op != "const":
            return None
        v = inner.inputs[1]
        middle, window = v.type.dims[0], v.type.size // v.type.dims[0]
        outputs = w.type.dims[0]
        if g.readers(inner) > 1 or outputs * window >= middle * (window + outputs):
            return None
        first = w.data.reshape(outputs, middle).astype(np.float64)
        merged = first @ v.data.reshape(middle, -1).astype(np.float64)
        with np.errstate(over="ignore"):
            finite = np.isfinite(merged.astype(dtypes.to_numpy(v.type.dtype))).all()
        if not finite:
            return None
        weights = const(merged.reshape(outputs, *v.type.dims[1:]), v.type.dtype)
        y = g.op("conv", inner.inputs[0], weights, **inner.kwargs)
        return y if shift is None else _add_shift(g, y, first @ shift)


# ---- parts of a sum

@dataclass
class _Part:
    """Inputs of a product that are resized alike (`steps`: from the last back to the first)."""

    steps: tuple[Node, ...]
    sources: list[Node] = field(default_factory=list)      # before they are resized
    parts: list[Node] = field(default_factory=list)        # resized, as they were joined
    columns: list[range] = field(default_factory=list)     # input channels in the weights

    @property
    def channels(self) -> int:
        return sum(len(c) for c in self.columns)

    def saved(self, node: Node) -> int:
        """Operations that resizing behind the product `node` saves, less what it costs to resize
        more channels.
        """
        outputs, pixels, small = node.type.dims[1], _pixels(node), _pixels(self.sources[0])
        more = max(0, outputs - self.channels) * len(self.steps)
        return 2 * self.channels * outputs * (pixels - small) - MOVED * pixels * more

    def take(self, other: _Part) -> None:
        """The other's inputs, as they are after they were resized."""
        self.sources += other.parts
        self.parts += other.parts
        self.columns += other.columns

    def product(self, g: Rewriter, w: Array) -> Node:
        x = self.sources[0] if len(self.sources) == 1 else g.op("concat", *self.sources, axis=1)
        y = _convolution(g, x, w[:, [c for columns in self.columns for c in columns]])
        for step in reversed(self.steps):
            y = _resized_like(g, y, step)
        return y


def _parted(inputs: Sequence[Node], g: Rewriter) -> tuple[_Part, list[_Part]]:
    """(inputs that are not resized, the others by how they are)."""
    found: dict[Any, _Part] = {}
    at = 0
    for x in inputs:
        source, steps = x, []
        while _is_resize(source) and g.readers(source) == 1:
            steps.append(source)
            source = source.inputs[0]
        key = (source.type.dims[2:], *((s.op, s.inputs[1:], _moves(s)) for s in steps))
        part = found.setdefault(key if steps else (), _Part(tuple(steps)))
        part.sources.append(source)
        part.parts.append(x)
        part.columns.append(range(at, at + x.type.dims[1]))
        at += x.type.dims[1]
    whole = found.pop((), _Part(()))
    return whole, list(found.values())


def _pixels(node: Node) -> int:
    images, _, *space = node.type.dims
    return hint(images) * math.prod(map(hint, space))


def _moves(step: Node) -> Any:
    """What a resize does, whatever the channels."""
    return step.attr("axis") if step.op == "interpolate" else (
        step.attr("shape")[2:], step.attr("steps"))


def _is_resize(node: Node) -> bool:
    """Whether it mixes or moves pixels, each channel alike."""
    if node.op == "interpolate":
        return bool(node.attr("axis") >= 2)
    return node.op == "resize_nearest" and node.attr("steps")[:2] == ((1, 0, 1),) * 2 and (
        node.type.dims[:2] == node.inputs[0].type.dims[:2])


def _resized_like(g: Rewriter, x: Node, step: Node) -> Node:
    attrs = step.kwargs
    if step.op == "resize_nearest":
        attrs["shape"] = (*x.type.dims[:2], *attrs["shape"][2:])
    return g.op(step.op, x, *step.inputs[1:], **attrs)


# ---- what stands there

def _pointwise(node: Node) -> bool:
    """A 1x1 convolution by constant weights, without groups, strides and padding."""
    if node.op != "conv" or node.type.dtype not in DTYPES or node.inputs[1].op != "const":
        return False
    window = node.inputs[1].type.dims[2:]
    return (all(d == 1 for d in (*window, *node.attr("strides"))) and not any(node.attr("pads"))
            and node.attr("group") == 1 and hint(node.type.size) > 0)


def _convolution(g: Rewriter, x: Node, w: Array) -> Node:
    space = w.ndim - 2
    return g.op("conv", x, const(w, x.type.dtype), strides=(1,) * space, pads=(0,) * (2 * space),
                dilations=(1,) * space, group=1)


def _constant_matrix(product: Node) -> bool:
    w = product.inputs[1]
    return w.op == "const" and w.type.rank == 2 and w.type.dtype == product.type.dtype


def _shifted(node: Node, axis: int, g: Rewriter) -> tuple[Node, Array | None]:
    """(y, b) of y + b with one constant for each place on the axis; (node, None) of others."""
    found = split_const(node) if node.op == "add" else None
    if found is None or found[0].type != node.type:
        return node, None
    values = per_axis(found[1].data, node.type.rank, axis, node.type.dims[axis])
    return (found[0], values) if values is not None else (node, None)


def _add_shift(g: Rewriter, y: Node, shift: Array) -> Node:
    return g.add(y, const(shift.reshape(-1, *(1,) * (y.type.rank - 2)), y.type.dtype))


def _rows_of(node: Node) -> Node | None:
    """Pixels as rows [N, HW, C] or [N, H, W, C], where `node` is them as a map [N, C, H, W]."""
    if node.op == "transpose" and node.attr("perm") == _CHANNELS_FIRST.get(node.type.rank):
        return node.inputs[0]
    if node.op != "reshape" or node.type.rank < 4 or node.inputs[0].op != "transpose":
        return None
    view = node.inputs[0]
    rows = view.attr("perm") == (0, 2, 1) and alike(node.type.dims[:2], view.type.dims[:2])
    return view.inputs[0] if rows else None


def _map_of(node: Node) -> Node | None:
    """The map [N, C, H, W] that `node` has as rows."""
    if node.op != "transpose":
        return None
    view = node.inputs[0]
    if node.attr("perm") == _CHANNELS_LAST.get(node.type.rank):
        return view
    if node.attr("perm") != (0, 2, 1) or view.op != "reshape" or view.inputs[0].type.rank < 4:
        return None
    x = view.inputs[0]
    return x if alike(x.type.dims[:2], view.type.dims[:2]) else None


_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_CHANNELS_FIRST = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}

__all__ = ["ConvolveSmall", "MergeProducts", "PixelProducts"]
