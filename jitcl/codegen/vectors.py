"""Short innermost loops as explicit vectors.

    for v < 28 { y[v] = x[v] + 1 }    =>    vec v < 16 { .. }  vec v < 8 { .. }  vec v < 4 { .. }

LLVM unrolls loops of few iterations before it looks for vectors, and so leaves scalars. It is right
about longer ones, and about loops that do more than load and store side by side. A reduction of few
terms becomes vectors whose lanes are combined at once.
"""

from __future__ import annotations

from jitcl.codegen.loops import Body, Names, linear_in, piece, strip, subexpressions
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, For, Stmt, Store

WIDEST = 16                    # lanes; several registers of a CPU with narrower ones
LONGEST = 96                   # iterations; longer loops LLVM makes vectors of
NARROWEST = 4                  # lanes
FEW = 32                       # terms of a reduction; of more, LLVM keeps vectors of partial sums


def short_vectors(body: Body, names: Names, outermost: bool = True) -> Body:
    """Loops of few iterations that only store what lies side by side, as `vec` loops."""
    out: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, For):
            out.append(stmt)
        elif any(isinstance(s, For) for s in stmt.body):
            out.append(For(stmt.var, stmt.kind, short_vectors(stmt.body, names, False)))
        elif outermost or not _side_by_side(stmt):
            out.append(stmt)
        else:
            out.extend(_vectors(stmt, names))
    return tuple(out)


def _side_by_side(loop: For) -> bool:
    """Whether each access of the loop is to one element or to consecutive ones, whatever it is."""
    if not NARROWEST <= loop.extent <= LONGEST:
        return False
    for s in loop.body:
        if isinstance(s, Accum) and _lanes_combine(s, loop):
            continue
        if not isinstance(s, Store) or _stride(s.indices[0], loop.var) != 1:
            return False
        if s.guard is not None and loop.var.value in s.guard.free:
            return False
    for e in subexpressions(loop.body):
        if e.op == "load":
            if _stride(e.indices[0], loop.var) not in (0, 1) or (
                    e.guard is not None and loop.var.value in e.guard.free):
                return False
        elif e.dtype != "index" and loop.var.value in e.free and any(
                a.dtype == "index" and loop.var.value in a.free for a in e.args):
            return False                     # the number of the iteration is a value
    return True


def _lanes_combine(s: Accum, loop: For) -> bool:
    """Whether a reduction is short, of floats, and of lanes that differ."""
    return (loop.extent <= FEW and loop.extent % NARROWEST == 0 and s.var.dtype in ("f32", "f64")
            and s.combine in ("add", "max", "min") and loop.var.value in s.value.free)


def _stride(index: Expr, var: Expr) -> int | None:
    form = linear_in(index, var)
    return None if form is None else form[0]


def _vectors(loop: For, names: Names) -> Body:
    """Whole widest vectors in a loop, then ever narrower ones, then single elements."""
    out: list[Stmt] = []
    done, lanes = 0, WIDEST
    while done < loop.extent:
        count = (loop.extent - done) // lanes
        if count and lanes < NARROWEST:
            return (*out, *piece(loop, done, loop.extent, names))
        if count:
            out.extend(_run(loop, done, count, lanes, names))
            done += count * lanes
        lanes //= 2
    return tuple(out)


def _run(loop: For, start: int, count: int, lanes: int, names: Names) -> Body:
    """`count` vectors of the loop from iteration `start` on."""
    (part,) = piece(loop, start, start + count * lanes, names)
    assert isinstance(part, For)
    if count == 1:
        return (For(part.var, "vec", part.body),)
    outer = strip(part, lanes, next(names))
    inner = outer.body[0]
    assert isinstance(inner, For)
    return (For(outer.var, "loop", (For(inner.var, "vec", inner.body),)),)
