"""The input's projection of a recurrent cell with weights of 8 bits becomes products of bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jitcl.ir.graph import Node, const
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.integer_products import FEWEST_ROWS, MOST_TERMS
from jitcl.target import Target

VIEWS = ("cast", "reshape", "transpose")
TINY = 1e-30                   # a row of less counts as zeros: 32767 / TINY is no infinity


@dataclass(frozen=True)
class ProjectedBytes(RewritePass):
    """On CPUs that add products of bytes by fours, as the template of the steps has its states:
    each row of x in 16 bits of its largest element, whose two bytes are factors on their own.

        %w = dequantize(i8, %s)             %u = round(%x * 32767 / most) + 32768   by rows
        %p = matmul(%x, %w)            =>   %p = matmul_integer(high byte of %u, i8, 128) * 256 k
        %y = lstm_states(%p + b, ..)             + matmul_integer(low byte of %u, i8) * k
        {scaled=true}                            k = most / 32767 * %s

    Elsewhere products of few bits stay products of floats: 16 bits are enough only where one knows
    what they are for.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if node.op != "lstm_states" or not node.kwargs.get("scaled") or not self.target.byte_dot:
            return None
        above, product = [], node.inputs[0]
        while product.op in ("reshape", "add"):
            above.append(product)
            product = product.inputs[0]
        if product.op != "matmul" or product.type.rank != 2:
            return None
        weights = scaled_columns(product.inputs[1])
        terms, rows = product.inputs[1].type.dims[0], product.type.dims[0]
        if weights is None or not 0 < terms <= MOST_TERMS or rows < FEWEST_ROWS:
            return None
        y = by_two_bytes(g, product.inputs[0], *weights)
        for n in reversed(above):
            y = n.with_inputs((y, *n.inputs[1:]))
        return node.with_inputs((y, *node.inputs[1:]))


def scaled_columns(w: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Signed bytes [terms, columns] and a scale for each column, of views of constants that are
    dequantised so; None of anything else."""
    views = []
    while w.op in VIEWS:
        views.append(w)
        w = w.inputs[0]
    if w.op != "dequantize" or w.inputs[0].type.dtype != "i8" or w.type.dtype != "f32" or any(
            i.op != "const" for i in w.inputs) or any(np.any(z.data) for z in w.inputs[2:]):
        return None
    integers, scales = w.inputs[0].data, np.broadcast_to(w.inputs[1].data, w.type.dims)
    for view in reversed(views):
        if view.op == "cast" and view.type.dtype != "f32":
            return None
        if view.op != "cast":
            integers, scales = (_seen(view, a) for a in (integers, scales))
    if np.any(scales != scales[:1]):
        return None
    return np.ascontiguousarray(integers), scales[0].astype(np.float32)


def _seen(view: Node, array: np.ndarray) -> np.ndarray:
    return array.reshape(view.type.dims) if view.op == "reshape" else array.transpose(
        view.attr("perm"))


def by_two_bytes(g: Rewriter, x: Node, w: np.ndarray, scales: np.ndarray) -> Node:
    """x @ (w * scales)."""
    most = g.reduce_max(g.abs(x), axes=(1,), keepdims=True)
    factor = g.where(g.greater(most, TINY), g.div(g.const(32767.0, "f32"), most), 0.0)
    whole = g.add(g.round(g.mul(x, factor)), 32768.0)
    high = g.floor(g.mul(whole, 1 / 256))
    low = g.sub(whole, g.mul(high, 256.0))
    parts = []
    for byte, zero, weight in ((high, 128, 256 / 32767), (low, 0, 1 / 32767)):
        sums = g.matmul_integer(g.cast(byte, to="u8"), const(w, "i8"), const(zero, "u8"),
                                const(0, "i8"))
        step = g.mul(most, const(scales * np.float32(weight), "f32"))
        parts.append(g.mul(g.cast(sums, to="f32"), step))
    return g.add(*parts)
