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

from jitcl.codegen.loops import Body, Names, piece, side_by_side, strip, subexpressions
from jitcl.ir import expr as E
from jitcl.ir.kernel import Assign, For, Stmt, is_parallel, statements

LANES = 8                      # neighbours: a CPU has registers for their states and operands
SIZE = 400                     # operations that all of them together may have


def jam_folds(body: Body, names: Names) -> Body:
    """Innermost parallel loops around folds, some of their iterations at a time."""
    out: list[Stmt] = []
    for stmt in body:
        if not is_parallel(stmt):
            out.append(stmt)
        elif any(map(is_parallel, statements(stmt.body))):
            out.append(For(stmt.var, stmt.kind, jam_folds(stmt.body, names)))
        elif any(isinstance(s, Assign) for s in statements(stmt.body)):
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

    def together(part: For) -> Body:
        return side_by_side(part.body, [{part.var.value: E.index(lane)} for lane in range(lanes)],
                            lambda name: f"{name}_{next(names)}")

    out: list[Stmt] = []
    for part in piece(loop, 0, whole, names):
        assert isinstance(part, For)
        if whole == lanes:
            out.extend(together(part))
            continue
        outer = strip(part, lanes, next(names))
        inner = outer.body[0]
        assert isinstance(inner, For)
        out.append(For(outer.var, outer.kind, together(inner)))
    return (*out, *(piece(loop, whole, loop.extent, names) if whole < loop.extent else ()))
