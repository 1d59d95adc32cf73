"""The numbers of a matrix product, for templates of every language."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitcl.ir.graph import Node


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
