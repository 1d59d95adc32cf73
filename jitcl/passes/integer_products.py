"""Products of dequantised integers become products of integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from jitcl.ir.graph import Node, const
from jitcl.ir.sizes import at_least_always
from jitcl.ops.builder import reference
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.target import Target

MOST_TERMS = (2**31 - 1) // (255 * 128)        # whose sum of products an i32 holds
FEWEST_ROWS = 5                # of fewer, weights are decoded where loops read them
FEWEST_CHANNELS = 8            # of fewer, an instruction's fours are mostly padding
FILTERED = 16, 8               # channels and outputs a side of which Winograd's floats beat pairs
EXACT = 1 << 24                # f32 holds every integer up to here
MOST_PARTS = 8
FLOATS = {"matmul_integer": "matmul", "conv_integer": "conv"}


@dataclass(frozen=True)
class UnsignedBytes(RewritePass):
    """Bytes between layers without a sign, which instructions that add products by fours want.

        %q = quantize(%x, %s, -3) {to=i8}          %q = quantize(%x, %s, 125) {to=u8}
        %y = dequantize(%q, %s, -3)          =>    %y = dequantize(%q, %s, 125)

    The same numbers for every %x: both types saturate at the same places.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if not self.target.byte_dot or node.op != "dequantize":
            return None
        q, scale, *zero = node.inputs
        if q.op != "quantize" or q.type.dtype != "i8":
            return None
        zeros = [z[0] if z else const(0, "i8") for z in (q.inputs[2:], zero)]
        if any(z.op != "const" or z.type.dtype != "i8" for z in zeros):
            return None
        stored, read = (const(z.data.astype(np.int16) + 128, "u8") for z in zeros)
        unsigned = g.op("quantize", *q.inputs[:2], stored, **{**q.kwargs, "to": "u8"})
        return g.op("dequantize", unsigned, scale, read, **node.kwargs)


@dataclass(frozen=True)
class IntegerProducts(RewritePass):
    """On CPUs that add products of bytes by fours; the sums are exact, as those of f32 are not.

        %a = dequantize(%x, %s, %z)                %i = conv_integer(%x, %w, %z, 0)
        %b = dequantize(%w, %t)             =>     %y = mul(cast(%i) {to=f32}, %s * %t)
        %y = conv(%a, %b)

    The same for matmul. Convolutions of dequantised inputs that stay as they are, on any CPU, get
    their weights as numbers, which templates ask for. Where weights alone are bytes, to save
    memory, they remain so.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if self.target.kind != "cpu" or node.op not in ("conv", "matmul"):
            return None
        w = _decoded(node)
        if w is None:
            return None
        x, turned = node.inputs[0], w is not node.inputs[1]
        if self.target.byte_dot and _symmetric(w) and _one_scale(x):
            if node.op == "matmul":
                return self._matmul(node, x, w, g)
            if not turned and (made := self._conv(node, x, w, g)) is not None:
                return made
        if node.op == "matmul" or turned:
            return None
        return _with_numbers(node, w)

    def _matmul(self, node: Node, x: Node, w: Node, g: Rewriter) -> Node | None:
        weights, scales = w.inputs[0].data, w.inputs[1].data
        if node.inputs[1].op == "transpose":
            perm = node.inputs[1].attr("perm")
            weights = np.transpose(weights, perm)
            scales = np.transpose(scales, perm) if scales.ndim == weights.ndim else scales
        *batch, terms, columns = weights.shape
        per_output = scales.size == 1 or scales.shape[-1] == scales.size == columns
        rows = node.type.size // columns if columns else 0
        if not per_output or math.prod(batch) != 1 or terms > MOST_TERMS or rows < FEWEST_ROWS:
            return None
        sums = g.op("matmul_integer", x.inputs[0], const(np.ascontiguousarray(weights), "i8"),
                    const(_zero(x), "u8"), const(0, "i8"))
        factor = np.float32(x.inputs[1].data.reshape(())) * scales.astype(np.float32).reshape(-1)
        shape = (-1,) if factor.size > 1 else ()
        return g.mul(g.cast(sums, to="f32"), const(factor.reshape(shape), "f32"))

    def _conv(self, node: Node, x: Node, w: Node, g: Rewriter) -> Node | None:
        weights, scales = w.inputs[0], w.inputs[1].data
        k, c, *window = weights.type.dims
        per_output = scales.size == 1 or scales.shape == (k, *(1,) * (len(window) + 1))
        zero, groups = _zero(x), node.attr("group")
        if not per_output:
            return None
        width = self.target.vector_width
        if c * math.prod(window) > MOST_TERMS or c < FEWEST_CHANNELS or k < width // 2:
            return None
        if groups > 1 and (c % width or k // groups % width):
            return None
        if self.target.byte_dot == "pairs" and self.target.winograd != 0 and _filtered(node):
            return None
        if zero and any(node.attr("pads")):
            return None                # padding would have to be the zero point
        sums = g.op("conv_integer", x.inputs[0], weights, const(zero, "u8"), const(0, "i8"),
                    **node.kwargs)
        factor = np.float32(x.inputs[1].data.reshape(())) * scales.astype(np.float32).reshape(-1)
        shape = (1, -1, *(1,) * len(window)) if factor.size > 1 else ()
        return g.mul(g.cast(sums, to="f32"), const(factor.reshape(shape), "f32"))


@dataclass(frozen=True)
class FloatProducts(RewritePass):
    """On OpenCL, whose templates multiply floats, products of bytes with constants are products of
    floats: exact, as no sum leaves the integers that f32 holds.

        %y = matmul_integer(%x, w, %z, 0)     =>     %a = sub(cast(%x) {to=f32}, cast(%z) {to=f32})
                                                     %y = cast(matmul(%a, w)) {to=i32}

    In parts along the terms where one sum would be too large. Weights that are dequantised for
    dequantised inputs become numbers, too.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if self.target.kind != "opencl":
            return None
        if node.op in ("matmul", "matmul_integer"):
            columns = node.type.dims[-1]
            if at_least_always(FEWEST_ROWS * columns, node.type.size + 1):
                return None            # few rows: bytes of weights are read sooner than floats
        if node.op in FLOATS:
            return self._sums(node, g)
        w = _decoded(node) if node.op in FLOATS.values() else None
        return None if w is None else _with_numbers(node, w)

    def _sums(self, node: Node, g: Rewriter) -> Node | None:
        x, w, zero, around = node.inputs
        if w.op != "const" or around.op != "const":
            return None
        weights = w.data.astype(np.int32) - around.data
        axes = (weights.ndim - 2, x.type.rank - 1) if node.op == "matmul_integer" else (1, 1)
        parts = _exact_parts(weights, axes[0], FLOATS[node.op])
        if parts is None or (len(parts) > 1 and node.kwargs.get("group", 1) > 1):
            return None
        sums = []
        for part in parts:
            terms = x if len(parts) == 1 else g.slice(
                x, starts=(part.start,), ends=(part.stop,), axes=(axes[1],))
            terms = g.cast(terms, to="f32")
            if zero.op != "const" or np.any(zero.data):
                terms = g.sub(terms, g.cast(zero, to="f32"))
            taken = np.ascontiguousarray(weights[(slice(None),) * axes[0] + (part,)])
            y = g.op(FLOATS[node.op], terms, const(taken.astype(np.float32), "f32"), **node.kwargs)
            sums.append(g.cast(y, to="i32"))
        return reduce(g.add, sums)


def _filtered(node: Node) -> bool:
    """Whether a convolution is one that Winograd's minimal filtering makes fast."""
    channels, outputs = FILTERED
    k, c, *window = node.inputs[1].type.dims
    return (window == [3, 3] and node.attr("group") == 1
            and set(node.attr("strides")) == set(node.attr("dilations")) == {1}
            and min(k, c) >= channels
            and all(at_least_always(size, outputs) for size in node.type.dims[2:]))


def _exact_parts(weights: np.ndarray, axis: int, product: str) -> list[slice] | None:
    """Equal parts of the terms, few enough each that bytes' sums stay below EXACT."""
    size = np.moveaxis(np.abs(weights.astype(np.int64)), axis, 0)
    if product == "conv":
        size = size.sum(tuple(range(2, size.ndim)))            # [C, K]
    total = np.concatenate([np.zeros((1, *size.shape[1:]), np.int64), np.cumsum(size, 0)])
    for count in range(1, MOST_PARTS + 1):
        edges = np.linspace(0, len(size), count + 1).astype(int)
        if 255 * np.max(np.diff(total[edges], axis=0), initial=0) < EXACT:
            return [slice(int(a), int(b)) for a, b in zip(edges, edges[1:])]
    return None


def _decoded(node: Node) -> Node | None:
    """What dequantises a product's constant weights, before they are transposed, where its input
    is dequantised, too.
    """
    x, w = node.inputs
    w = w.inputs[0] if w.op == "transpose" else w
    decodes = x.op == w.op == "dequantize" and all(i.op == "const" for i in w.inputs)
    return w if decodes and node.type.dtype == "f32" else None


def _with_numbers(node: Node, w: Node) -> Node:
    """The product with dequantised weights as numbers."""
    x, turned = node.inputs
    numbers = reference(w, *(i.data for i in w.inputs))
    if turned is not w:
        numbers = np.ascontiguousarray(np.transpose(numbers, turned.attr("perm")))
    return node.with_inputs((x, const(numbers, "f32")))


def _symmetric(w: Node) -> bool:
    """Whether weights are signed bytes around 0."""
    return w.inputs[0].type.dtype == "i8" and not any(np.any(z.data) for z in w.inputs[2:])


def _one_scale(x: Node) -> bool:
    """Whether an input is unsigned bytes with one constant scale and zero point."""
    return x.inputs[0].type.dtype == "u8" and all(
        i.op == "const" and i.type.size == 1 for i in x.inputs[1:])


def _zero(x: Node) -> int:
    return int(x.inputs[2].data.reshape(())) if len(x.inputs) > 2 else 0
