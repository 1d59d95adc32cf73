"""Matrix products and convolutions as products of one form, for tiles in local memory: where
operands are read, and the result is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import hints
from jitcl.ir.sizes import same
from jitcl.templates.gemm_opencl.product import counter
from jitcl.templates.matmul import decoded

TRUE = E.const(True, "bool")

At = tuple[list[Expr], Expr]                     # an operand's index, and whether it is inside


@dataclass(frozen=True)
class Product:
    """A product: where the nodes A and B, seen in `shapes`, are read at (image, row or column,
    k), and where C is stored."""

    batch: int
    m: int
    n: int
    k: int
    nodes: tuple[Node, Node]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    a: Callable[[Expr, Expr, Expr], At]
    b: Callable[[Expr, Expr, Expr], At]
    c: Callable[[Expr, Expr, Expr], tuple[Expr, ...]]
    neighbours: bool = True                      # columns of B, in memory

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.batch, self.m, self.n, self.k

    @property
    def elements(self) -> int:
        """Of C."""
        return self.batch * self.m * self.n

    @property
    def now(self) -> Product:
        """With the hints of sizes that are not known."""
        batch, m, n, k = hints(self.numbers)
        return replace(self, batch=batch, m=m, n=n, k=k)


def product_of(node: Node) -> Product | None:
    """The product that a matmul or conv is; None where it is too small to be one."""
    return matmul(node) if node.op == "matmul" else conv(node)


def matmul(node: Node) -> Product | None:
    """The product of a matmul; leading axes are rows where b has none."""
    a, b = node.inputs
    if a.type.rank < 2 or b.type.rank < 2:
        return None
    *leading, height, n = node.type.dims
    merged = same(math.prod(b.type.dims[:-2]), 1)
    batch = 1 if merged else math.prod(leading)

    def rows(image: Expr, m: Expr) -> list[Expr]:
        return decoded(m, (*leading, height)) if merged else [*decoded(image, tuple(leading)), m]

    def fitted(operand: Node, ix: list[Expr]) -> list[Expr]:
        dims = operand.type.dims[:-2]
        ix = ix[len(ix) - len(dims):]
        return [E.index(0) if same(d, 1) else i for i, d in zip(ix, dims)]

    def left(image: Expr, m: Expr, k: Expr) -> At:
        *outer, row = rows(image, m)
        return [*fitted(a, outer), row, k], TRUE

    def right(image: Expr, n: Expr, k: Expr) -> At:
        outer = decoded(image, tuple(leading)) if not merged else [E.index(0)] * len(leading)
        return [*fitted(b, outer), k, n], TRUE

    rows_in_all = math.prod(leading) * height if merged else height
    return Product(batch, rows_in_all, n, a.type.dims[-1], (a, b), (a.type.dims, b.type.dims),
                   left, right, lambda image, m, n: (*rows(image, m), n))


def conv(node: Node) -> Product | None:
    """Weights times pixels, an image a group of channels; None where groups are tiny."""
    x, w = node.inputs
    groups = int(node.attr("group"))
    if groups > 1 and w.type.dims[1] * w.type.dims[0] // groups < 16:
        return None
    kernel, out, spatial = w.type.dims[2:], node.type.dims[2:], x.type.dims[2:]
    strides, dilations, pads = node.attr("strides"), node.attr("dilations"), node.attr("pads")
    m, c = w.type.dims[0] // groups, w.type.dims[1]

    def channel(image: Expr, offset: Expr, size: int) -> list[Expr]:
        if groups == 1:
            return [image, offset]
        return [image // groups, image % groups * size + offset]

    def left(image: Expr, m_: Expr, k: Expr) -> At:
        row = m_ if groups == 1 else image % groups * m + m_
        return [row, k], TRUE

    plain = math.prod((*kernel, *strides)) == 1 and not any(pads)     # pixels are one axis

    def right(image: Expr, n: Expr, k: Expr) -> At:
        if plain:
            return [*channel(image, k, c), n], TRUE
        tap, *ks = decoded(k, (c, *kernel))
        at = [o * strides[d] + q * dilations[d] - pads[d]
              for d, (o, q) in enumerate(zip(decoded(n, out), ks))]
        inside = TRUE
        for i, extent in zip(at, spatial):
            inside = inside & (i >= 0) & (i < extent)
        return [*channel(image, tap, c), *at], inside

    taps = c * math.prod(kernel)
    pixels = (*x.type.dims[:2], math.prod(out)) if plain else x.type.dims
    shapes = (w.type.dims[0], taps), pixels
    return Product(x.type.dims[0] * groups, m, math.prod(out), taps, (w, x), shapes, left, right,
                   lambda image, m_, n: (*channel(image, m_, m), *decoded(n, out)), plain)


def places(p: Product) -> tuple[Expr, Expr, Expr]:
    """The variables of an element of C."""
    return counter("image", p.batch), counter("m", p.m), counter("n", p.n)
