"""The numbers of a matrix product, for templates of every language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import same


@dataclass(frozen=True)
class Shape:
    """batch products of [m, k] and [k, n]. `merged`: b has no batch, so that a's counts as rows."""

    batch: int
    m: int
    n: int
    k: int
    merged: bool

    @staticmethod
    def of(node: Node) -> Shape:
        """The numbers of a matmul."""
        a, b = (i.type for i in node.inputs)
        *leading, m, n = node.type.dims
        merged, batch = math.prod(b.dims[:-2]) == 1, math.prod(leading)
        return Shape(1 if merged else batch, m * batch if merged else m, n, a.dims[-1], merged)


def operand_index(node: Node, leading: Sequence[int], height: int, merged: bool, image: Expr,
                  row: Expr) -> list[Expr]:
    """The indices of an operand but the last, at a row of an image of a result [*leading, height,
    n]; where there is one, rows count over the leading axes."""
    ix = decoded(row, (*leading, height)) if merged else [*decoded(image, tuple(leading)), row]
    ix = ix[len(ix) - (node.type.rank - 1):]
    return [E.index(0) if same(d, 1) else i for i, d in zip(ix, node.type.dims[:-1])]


def decoded(position: Expr, dims: tuple[int, ...]) -> list[Expr]:
    """The index of a row-major position."""
    ix: list[Expr] = []
    for k, d in enumerate(dims):
        ix.append(E.index(0) if same(d, 1) else (position // math.prod(dims[k + 1:])) % d)
    return ix
