"""What one element of an op costs, from its own body: run it once on a builder that only counts."""

from __future__ import annotations

import functools
from typing import Any

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, Number
from jitcl.ir.graph import Node
from jitcl.ir.scalar import SCALARS
from jitcl.ir.size_ranges import hints
from jitcl.ir.types import TensorType
from jitcl.ops.builder import lookup


class _Probe:
    """A loader that reads nothing: its value is a fresh load expression."""

    def __init__(self, name: str, type: TensorType) -> None:
        self.name, self.type, self.dtype = name, type, dtypes.compute(type.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.dims

    def __call__(self, *ix: Expr | int, guard: Expr | None = None, other: Number = 0) -> Expr:
        at = tuple(E.index(i) if isinstance(i, int) else i for i in ix)
        return E.load(self.name, at, self.dtype)


def element_cost(node: Node) -> int:
    """FLOPs of one element of an elementwise node, by its body's scalar operations; with sizes, of
    what they are now: an estimate takes nothing for granted.
    """
    return _cost(*hints((node.op, node.type, tuple(i.type for i in node.inputs), node.attrs)))


@functools.lru_cache(maxsize=4096)               # of types: a cache of nodes would keep weights
def _cost(name: str, out: TensorType, types: tuple[TensorType, ...],
          attrs: tuple[tuple[str, Any], ...]) -> int:
    op = lookup(name)
    if op.kind != "elementwise" or op.body is None:
        return 0
    s = KernelBuilder()
    s.out = out
    ix = tuple(E.var(f"i{a}", extent=max(d, 2)) for a, d in enumerate(out.dims))
    value = op.body(s, ix, *(_Probe(f"x{k}", t) for k, t in enumerate(types)), **dict(attrs))
    return expr_cost(value)


def expr_cost(value: Expr) -> int:
    """FLOPs of evaluating an expression once, each shared part counted once."""
    return sum(SCALARS[e.op].cost for e in E.walk(value)
               if e.op in SCALARS and e.dtype not in ("bool", "index"))
