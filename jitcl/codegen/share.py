"""Shared subexpressions become `let`s, so that generated code computes and reads each value once.

    y[i] = exp(x[i] - m) / (1.0 + exp(x[i] - m))
    =>  let t0 = exp(x[i] - m);  y[i] = t0 / (1.0 + t0)

A `let` stands in the block where all its uses are visible and its operands are known, right before
the first use.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

from jitcl.codegen.loops import rewrite
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import (
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    expressions,
    mutated,
    scanned,
    statements,
)


def share(kernel: Kernel, changing: frozenset[str] = frozenset(), addresses: bool = True) -> Kernel:
    """The kernel with every value that is used more than once named by a `let`.

    What is read from a `changing` buffer (scratch memory that the kernel writes, or what a scan
    reads of its output) is not named.
    Without `addresses`, neither are sums and products of loop variables, nor comparisons of them:
    compilers do that themselves, and guards stay what they are.
    """
    sharer = _Sharer(kernel, changing, addresses)
    return dataclasses.replace(kernel, body=sharer.block(kernel.body))


_CHEAP = ("add", "sub", "mul", "const", "var", "lt", "le", "gt", "ge", "and")


class _Sharer:
    def __init__(self, kernel: Kernel, changing: frozenset[str], addresses: bool) -> None:
        self.count = 0
        self.changing, self.addresses = changing | scanned(kernel), addresses
        self.changed = {v.value for s in statements(kernel.body) for v in mutated(s)}

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Name what is used twice in this block or loops inside it, and does not vary there."""
        uses: Counter[Expr] = Counter()
        seen: set[Expr] = set()
        for stmt in statements(body):
            for e in expressions(stmt):
                uses[e] += 1
                for sub in () if e in seen else E.walk(e):
                    if sub not in seen:
                        seen.add(sub)
                        uses.update(sub.args)
        inner = {s.var.value for s in statements(body) if isinstance(s, For)}
        deep = {v for s in body if isinstance(s, For) for v in _declared(s.body)}
        names: dict[Expr, Expr] = {}
        out: list[Stmt] = []
        for stmt in body:
            for e in self._candidates(stmt, uses, inner | deep):
                if e in names:
                    continue
                value = _replace_below(e, names)
                name = E.var(f"t{self.count}", e.dtype)
                self.count += 1
                names[e] = name
                out.append(Let(name, value))
            stale = {v.value for s in statements((stmt,)) for v in mutated(s)}
            if names:
                stmt = rewrite(stmt, partial(E.exchanged, instead=names))
            names = {e: name for e, name in names.items() if not e.free & stale}
            if isinstance(stmt, For):
                stmt = For(stmt.var, stmt.kind, self.block(stmt.body))
            out.append(stmt)
        return tuple(out)

    def _candidates(self, stmt: Stmt, uses: Counter[Expr], varying: set[str]) -> list[Expr]:
        """Subexpressions of the statement that deserve a name in this block, operands first."""
        found: dict[Expr, None] = {}
        for s in statements((stmt,)):
            if isinstance(s, Store) and s.guard is not None:
                continue                     # its loads are safe behind the guard only
            for e in expressions(s):
                for sub in E.walk(e):
                    if uses[sub] > 1 and self._worth(sub) and not (sub.free & varying) and (
                            not (sub.free & self.changed) or s is stmt) and self._lasts(sub):
                        found[sub] = None
        return list(found)

    def _worth(self, x: Expr) -> bool:
        """Whether naming saves work: not for constants, variables and plain conversions of them."""
        if x.op in ("const", "var"):
            return False
        if not self.addresses and x.dtype in ("index", "bool") and x.op in _CHEAP:
            return any(e.op not in _CHEAP for e in E.walk(x))
        return not (x.op == "cast" and x.args[0].op in ("const", "var"))

    def _lasts(self, x: Expr) -> bool:
        """Whether x reads no changing buffer."""
        return not self.changing or all(
            e.op != "load" or e.value not in self.changing for e in E.walk(x))


def _declared(body: tuple[Stmt, ...]) -> set[str]:
    return {s.var.value for s in statements(body) if isinstance(s, (For, Let))}


def _replace_below(x: Expr, names: dict[Expr, Expr]) -> Expr:
    """x itself with its operands exchanged."""
    return E.remade(x, [E.exchanged(a, names) for a in x.args])
