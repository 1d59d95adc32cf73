"""Loops split where a condition changes, and stripped where an index is divided.

    for c < 128 { y[c, ..] = c < 64 ? a[c, ..] : b[c - 64, ..] }
    =>  for c < 64 { y[c, ..] = a[c, ..] }
        for c < 64 { y[c + 64, ..] = b[c, ..] }

    for w < 52 { y[w] = x[w // 2] }    =>    for w < 26 { for v < 2 { y[2 w + v] = x[w] } }
"""

from __future__ import annotations

import math

from jitcl.codegen.loops import Body, Names, linear_in, piece, strip, subexpressions
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import For, Stmt
from jitcl.ir.sizes import is_size

PIECES = 9                     # copies that one loop nest may become: a border around two axes
SIZE = 600                     # expressions that all copies together may have
_COMPARE = ("lt", "le", "gt", "ge")


def split_at_conditions(body: Body, names: Names, budget: int = PIECES) -> Body:
    """Loops cut where the condition of a `select` becomes true or false for good."""
    out: list[Stmt] = []
    for stmt in body:
        out.extend(_split(stmt, names, budget) if isinstance(stmt, For) else (stmt,))
    return tuple(out)


def _split(loop: For, names: Names, budget: int) -> Body:
    if is_size(loop.extent):
        return (For(loop.var, loop.kind, split_at_conditions(loop.body, names, budget)),)
    found = set(subexpressions(loop.body))
    cuts = sorted({c for e in found if e.op == "select" for c in _cuts(e.args[0], loop.var)})
    parts = len(cuts) + 1
    if not 1 < parts <= min(budget, SIZE // max(len(found), 1)):
        return (For(loop.var, loop.kind, split_at_conditions(loop.body, names, budget)),)
    out: list[Stmt] = []
    for low, high in zip([0, *cuts], [*cuts, loop.extent]):
        for part in piece(loop, low, high, names):
            if isinstance(part, For):
                inner = split_at_conditions(part.body, names, budget // parts)
                part = For(part.var, part.kind, inner)
            out.append(part)
    return tuple(out)


def _cuts(condition: Expr, var: Expr) -> set[int]:
    """Where, in 1 .. extent - 1, comparisons in the condition change with the variable."""
    assert var.extent is not None
    found: set[int] = set()
    for e in E.walk(condition):
        if e.op in _COMPARE and e.args[0].dtype == "index" and var.value in e.free:
            decided = _decided(e, var)
            if decided is not None and abs(decided[1] - decided[0]) <= max(1, var.extent // 4):
                found |= {c for c in decided if 0 < c < var.extent}
    return found


def _decided(compare: Expr, var: Expr) -> tuple[int, int] | None:
    """The values of var from which on the comparison does not depend on anything else any more."""
    a, b = compare.args
    difference = {"ge": lambda: a - b, "gt": lambda: a - b - 1, "le": lambda: b - a,
                  "lt": lambda: b - a - 1}[compare.op]()           # true where this is >= 0
    form = linear_in(difference, var)
    low, high = E.bounds(form[1]) if form else (math.inf, math.inf)
    if form is None or any(map(is_size, (form[0], low, high))):
        return None
    if form[0] == 0 or not math.isfinite(low + high):
        return None
    k = form[0]
    if k > 0:
        return -(int(high) // k), -(int(low) // k)
    return int(low) // -k + 1, int(high) // -k + 1


def strip_divisions(body: Body, names: Names) -> Body:
    """Loops over v as two, where v // width or v % width is computed.

    Where the width doesn't divide the loop, what is left over becomes a loop of its own.
    """
    out: list[Stmt] = []
    for stmt in body:
        out.extend(_stripped(stmt, names) if isinstance(stmt, For) else (stmt,))
    return tuple(out)


def _stripped(loop: For, names: Names) -> Body:
    width = _width(loop)
    if width is None:
        return (For(loop.var, loop.kind, strip_divisions(loop.body, names)),)
    whole = loop.extent - loop.extent % width
    if whole == loop.extent:
        return _stripped(strip(loop, width, next(names)), names)
    parts = (*piece(loop, 0, whole, names), *piece(loop, whole, loop.extent, names))
    return strip_divisions(parts, names)


def _width(loop: For) -> int | None:
    """The widest strip that rids a division by a constant of the loop's variable."""
    widths: set[int] = set()
    for e in subexpressions(loop.body):
        if e.op in ("floordiv", "mod") and e.dtype == "index" and e.args[1].is_const:
            terms, offset = E.linear(e.args[0])
            k, c = terms.get(loop.var, 0), e.args[1].value
            width = c // k if k > 0 and c % k == 0 else 1
            if 1 < width < loop.extent and (loop.extent % width == 0 or (
                    loop.extent >= 4 * width and len(terms) == 1 and offset == 0)):
                widths.add(width)
    return max(widths, default=None)
