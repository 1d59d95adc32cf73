"""What is known of addresses: of which number they are multiples, and how far lanes lie apart."""

from __future__ import annotations

import math

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import For, Kernel, Let, mutated, statements


class Alignment:
    """Facts on a kernel's index expressions, from its loops and lets."""

    def __init__(self, kernel: Kernel) -> None:
        self.loops: dict[str, For] = {}
        self.lets: dict[str, Expr] = {}
        for s in statements(kernel.body):
            if isinstance(s, For):
                self.loops[s.var.value] = s
            elif isinstance(s, Let) and s.var.dtype == "index":
                self.lets[s.var.value] = s.value
        for s in statements(kernel.body):
            for v in mutated(s):
                self.lets.pop(v.value, None)

    def multiple(self, x: Expr) -> int:
        """A number that the value is always a multiple of; 0 for the value 0."""
        terms, constant = E.linear(x)
        return math.gcd(constant, *(k * self._atom(a) for a, k in terms.items()))

    def _atom(self, x: Expr) -> int:
        if x.op == "var":
            loop = self.loops.get(x.value)
            if loop is not None:
                first = 0 if loop.first is None else self.multiple(loop.first)
                return math.gcd(first, loop.step)
            return self.multiple(self.lets[x.value]) if x.value in self.lets else 1
        if x.op == "mul":
            return math.prod(map(self.multiple, x.args))
        if x.op in ("min", "max", "mod"):
            return math.gcd(*map(self.multiple, x.args))
        return math.gcd(*map(self.multiple, x.args[1:])) if x.op == "select" else 1


def lane_stride(at: Expr, lane: Expr, wide: frozenset[str] | set[str] = frozenset()) -> int | None:
    """Elements from one lane's place to the next one's; None where that differs from lane to lane.
    `wide`: other variables that differ.
    """
    if lane.value not in at.free and not at.free & wide:
        return 0
    terms, _ = E.linear(at)
    if any(a is not lane and (lane.value in a.free or a.free & wide) for a in terms):
        return None
    return terms.get(lane, 0)
