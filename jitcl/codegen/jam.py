"""Folds of neighbours side by side: iterations that wait for each other leave a CPU idle.

    for n < 800 @parallel {                   for o < 100 @parallel {
      let s = 0                                 let s0 = 0 .. let s7 = 0
      for k < 20 { set s = next[s, n] }   =>    for k < 20 { set s0, .. = next[s0, 8 o], .. }
      y[n] = s                                  y[8 o] = s0 .. y[8 o + 7] = s7
    }                                         }

Eight walks down a tree at once take a third of the time that they take one after the other: what
costs time is not the steps, but that each waits for the memory that the last one read.
"""

from __future__ import annotations

from jitcl.codegen.loops import (
    Body,
    Names,
    inside,
    piece,
    renamed,
    strip,
    subexpressions,
    substitute,
)
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Assign, For, Let, Stmt

LANES = 8                      # neighbours: a CPU has registers for their states and operands
SIZE = 400                     # operations that all of them together may have


def jam_folds(body: Body, names: Names) -> Body:
    """Innermost parallel loops around folds, some of their iterations at a time."""
    out: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, For) or stmt.kind != "parallel":
            out.append(stmt)
        elif any(isinstance(s, For) and s.kind == "parallel" for s in inside(stmt.body)):
            out.append(For(stmt.var, stmt.kind, jam_folds(stmt.body, names)))
        elif any(isinstance(s, Assign) for s in inside(stmt.body)):
            out.extend(_jam(stmt, names))
        else:
            out.append(stmt)
    return tuple(out)


def _jam(loop: For, names: Names) -> Body:
    size = sum(1 for e in subexpressions(loop.body) if e.args and e.dtype != "index")
    lanes = min(LANES, loop.extent, SIZE // max(1, size))
    if lanes < 2:
        return (loop,)
    whole = loop.extent - loop.extent % lanes
    out: list[Stmt] = []
    for part in piece(loop, 0, whole, names):
        assert isinstance(part, For)
        if whole == lanes:
            out.extend(_side_by_side(part.body, _lanes(part, lanes), names))
            continue
        outer = strip(part, lanes, next(names))
        inner = outer.body[0]
        assert isinstance(inner, For)
        out.append(For(outer.var, outer.kind,
                       _side_by_side(inner.body, _lanes(inner, lanes), names)))
    return (*out, *(piece(loop, whole, loop.extent, names) if whole < loop.extent else ()))


def _lanes(loop: For, lanes: int) -> list[dict[str, Expr]]:
    return [{loop.var.value: E.index(lane)} for lane in range(lanes)]


def _side_by_side(body: Body, lanes: list[dict[str, Expr]], names: Names) -> Body:
    """Each statement once for each lane, with variables of its own; loops once for all."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            out.append(For(stmt.var, stmt.kind, _side_by_side(stmt.body, lanes, names)))
        elif isinstance(stmt, Let):
            for own in lanes:
                var = E.var(f"{stmt.var.value}_{next(names)}", stmt.var.dtype)
                out.append(Let(var, substitute(stmt.value, own)))
                own[stmt.var.value] = var
        elif isinstance(stmt, Assign):
            out.append(Assign(tuple(own.get(v.value, v) for own in lanes for v in stmt.vars),
                              tuple(substitute(e, own) for own in lanes for e in stmt.values)))
        elif isinstance(stmt, Accum):
            out.extend(Accum(own.get(stmt.var.value, stmt.var), stmt.combine,
                             substitute(stmt.value, own)) for own in lanes)
        else:
            out.extend(renamed(stmt, own) for own in lanes)
    return tuple(out)
