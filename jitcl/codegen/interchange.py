"""Reductions turned inside out, where the output's axis is the better one to vectorise.

    for w < 768 {                            for w < 768 { acc[w] = 0 }
      let acc = 0                            for r < 512 {
      for r < 512 { acc add= x[768 r + w] }    for w < 768 { acc[w] = acc[w] + x[768 r + w] } }
      y[w] = acc                       =>    for w < 768 { y[w] = acc[w] }
    }

`acc` is a row of scratch memory that stays in L1. Each element still sums its terms in the same
order. A term that a guard makes neutral (padding under a window) is left out: the loop over w runs
where the guard holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jitcl import dtypes
from jitcl.codegen.loops import (
    Body,
    Names,
    all_expressions,
    linear_in,
    renamed,
    rewrite,
    subexpressions,
    substitute,
)
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Assign, Buffer, For, Let, Stmt, Store, is_parallel, statements
from jitcl.ir.scalar import SCALARS, identity

ROW = 512                      # elements of a scratch row: a few rows fit into L1
SHORTEST_ROW = 64              # rows are not cut shorter than this to give every thread one
PIECES = 16                    # independent pieces that are enough for the threads
SHORTEST = 8                   # shorter loops are not worth a vector
HORIZONTAL = 16                # what the end of a vector reduction costs, in loads
CACHED = 8                     # FLOPs of a value that is kept rather than computed again
CACHE = 16384                  # elements of all rows that may be kept: they are on the stack


@dataclass
class Rows:
    """Scratch rows that transformed statements use."""

    names: Names
    buffers: list[Buffer] = field(default_factory=list)

    def new(self, dtype: str, size: int) -> Buffer:
        dtype = "i64" if dtype == "index" else dtype
        found = Buffer(f"row{next(self.names)}", dtype, (size,), "out")
        self.buffers.append(found)
        return found


def interchange(body: Body, rows: Rows, pieces: int = 1) -> Body:
    """Every innermost parallel loop around reductions, inside out where that pays."""
    out: list[Stmt] = []
    for stmt in body:
        if is_parallel(stmt):
            if any(map(is_parallel, statements(stmt.body))):
                stmt = For(stmt.var, stmt.kind, interchange(stmt.body, rows, pieces * stmt.extent))
            elif pays(stmt):
                out.extend(_inside_out(stmt, rows, pieces))
                continue
        out.append(stmt)
    return tuple(out)


# ---- whether

def pays(loop: For) -> bool:
    """Whether vectors along the loop read memory better than vectors along its reductions."""
    reductions = [s for s in loop.body if isinstance(s, For)]
    if not reductions or loop.extent < SHORTEST:
        return False
    if any(isinstance(s, Assign) for s in statements(loop.body)):
        return False                         # jam.py's: what a loop carries is in registers
    along, across = 0.0, 0.0
    for reduction in reductions:
        inner = _innermost(reduction)
        loads = [e for e in subexpressions(reduction.body) if e.op == "load"]
        along += 2 + sum(_cost(e, loop.var) for e in loads)
        across += 2 * HORIZONTAL / inner.extent + sum(_cost(e, inner.var) for e in loads)
    return along < across


def _innermost(loop: For) -> For:
    inner = [s for s in loop.body if isinstance(s, For)]
    return _innermost(inner[-1]) if inner else loop


def _cost(load: Expr, var: Expr) -> float:
    """What an element of a load costs if `var` is the vector's axis."""
    form = linear_in(load.indices[0], var)
    if form is None:
        return 8
    return {0: 0.25, 1: 1, 2: 2, 3: 3, 4: 4}.get(abs(form[0]), 8)


# ---- how

def _inside_out(loop: For, rows: Rows, pieces: int) -> Body:
    width = min(ROW, loop.extent)
    while width > SHORTEST_ROW and pieces * -(-loop.extent // width) < PIECES:
        width = -(-width // 2)
    count = -(-loop.extent // width)
    width = -(-loop.extent // count)
    if count == 1 and pieces > 1:
        return _Spread(loop.var, width, rows).body(loop.body, None)
    strip = E.var(f"o{next(rows.names)}", extent=count)
    var = E.var(f"v{next(rows.names)}", extent=width)
    at = strip * width + var if count > 1 else var
    guard = at < loop.extent
    spread = _Spread(var, width, rows)
    body = tuple(renamed(s, {loop.var.value: at}) for s in loop.body)
    return (For(strip, "parallel", spread.body(body, None if guard.is_const else guard)),)


class _Spread:
    """Statements of one iteration over `var` as statements over whole rows."""

    def __init__(self, var: Expr, width: int, rows: Rows) -> None:
        self.var, self.width, self.rows = var, width, rows
        self.homes: dict[str, Buffer] = {}               # scalar -> its row
        self.reads: dict[str, Expr] = {}                 # scalar -> what reads it from there

    def home(self, var: Expr) -> Buffer:
        if var.value not in self.homes:
            row = self.homes[var.value] = self.rows.new(var.dtype, self.width)
            self.reads[var.value] = E.cast(E.load(row.name, (self.var,), row.dtype), var.dtype)
        return self.homes[var.value]

    def body(self, stmts: Sequence[Stmt], guard: Expr | None) -> Body:
        out: list[Stmt] = []
        pending: list[Store] = []

        def flush() -> None:
            if pending:
                out.append(For(self.var, "loop", tuple(pending)))
                pending.clear()
        for stmt in stmts:
            if isinstance(stmt, For):
                flush()
                out.append(For(stmt.var, stmt.kind, self.body(stmt.body, guard)))
                continue
            store = self.store(stmt, guard)
            if pending and pending[-1].guard is not store.guard:
                flush()
            pending.append(store)
        flush()
        return tuple(out)

    def store(self, stmt: Stmt, guard: Expr | None) -> Store:
        """One scalar statement as a store, under a condition."""
        if isinstance(stmt, Store):
            own = stmt.guard if guard is None else guard
            if guard is not None and stmt.guard is not None:
                own = guard & stmt.guard
            at = tuple(substitute(i, self.reads) for i in stmt.indices)
            return Store(stmt.buffer, at, substitute(stmt.value, self.reads), own)
        assert isinstance(stmt, (Let, Accum))
        row = self.home(stmt.var)
        value = substitute(stmt.value, self.reads)
        if isinstance(stmt, Accum):
            condition = neutral_unless(value, stmt.combine)
            if condition is not None:
                value = unguarded(value, condition)
                guard = condition if guard is None else guard & condition
            value = E.call(stmt.combine, self.reads[stmt.var.value], value)
        return Store(row.name, (self.var,), E.cast(value, row.dtype), guard)


def neutral_unless(value: Expr, combine: str) -> Expr | None:
    """A condition without which a term changes nothing.

    It is the guard of a load that otherwise gives the neutral element, or the factor 0.
    """
    if value.op == "cast" and dtypes.is_float(value.dtype) and dtypes.is_float(value.args[0].dtype):
        return neutral_unless(value.args[0], combine)
    if value.op == "load" and value.guarded:
        other = value.args[-1]
        same = other.is_const and other.value == identity(combine, value.dtype)
        return value.guard if same else None
    if value.op == "mul" and combine == "add" and dtypes.is_float(value.dtype):
        first, second = (neutral_unless(a, "add") for a in value.args)
        return first if first is not None else second
    return None


def unguarded(value: Expr, condition: Expr) -> Expr:
    """The value where the condition is known to hold."""
    return E.mapped(value, lambda e, args: E.load(e.value, args[:-2], e.dtype)
                    if e.op == "load" and e.guard is condition else E.remade(e, args))


# ---- rows that are kept

def keep_rows(body: Body, rows: Rows) -> Body:
    """Dear values of a reduction that a later loop of the block computes again are kept in a row.

        for r { acc add= exp(x[r] - m) }           for r { row[r] = exp(x[r] - m); acc add= row[r] }
        for j { y[j] = exp(x[j] - m) / acc }   =>  for j { y[j] = row[j] / acc }
    """
    out = [For(s.var, s.kind, keep_rows(s.body, rows)) if isinstance(s, For) else s for s in body]
    for k, first in enumerate(out):
        if not isinstance(first, For):
            continue
        for value in _dear(first):
            if sum(b.size for b in rows.buffers) + first.extent > CACHE:
                break
            later = [(n, s, substitute(value, {first.var.value: s.var}))
                     for n, s in enumerate(out[k + 1:], k + 1)
                     if isinstance(s, For) and s.extent == first.extent]
            again = [(n, s, e) for n, s, e in later if e in set(subexpressions(s.body))]
            if not again:
                continue
            row = rows.new(value.dtype, first.extent)
            keep = Store(row.name, (first.var,), value)
            first = out[k] = For(first.var, first.kind, (keep, *first.body))
            for n, loop, e in again:
                kept = {e: E.load(row.name, (loop.var,), row.dtype)}
                out[n] = _rewritten(loop, kept)
    return tuple(out)


def reciprocals(body: Body) -> Body:
    """Divisions of a row by one number that reductions gave become products with its reciprocal.

    So it is with the sum of a softmax and with deviations; the reciprocal is taken once, where a
    division of vectors costs as much as 16 products.

    The result may differ by one unit in the last place.
    """
    sums = {s.var.value for s in statements(body) if isinstance(s, Accum)}

    def loop(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For):
            return stmt
        if any(isinstance(s, For) for s in stmt.body):
            return For(stmt.var, stmt.kind, tuple(map(loop, stmt.body)))
        own = {stmt.var.value} | {s.var.value for s in stmt.body if isinstance(s, (Accum, Let))}
        return _rewritten(stmt, {
            e: E.call("mul", e.args[0], E.call("div", E.const(1.0, e.dtype), e.args[1]))
            for e in subexpressions(stmt.body) if e.op == "div" and e.dtype in ("f32", "f64")
            and e.args[0].free & own and e.args[1].free & sums and not e.args[1].free & own})
    return tuple(map(loop, body))


def _dear(loop: For) -> list[Expr]:
    """The largest subexpressions of a reduction that cost much and depend on its variable."""
    if not all(isinstance(s, (Accum, Store)) for s in loop.body):
        return []
    if not any(isinstance(s, Accum) for s in loop.body):
        return []
    own = {s.var.value for s in loop.body if isinstance(s, (Accum, Let))}
    cost: dict[Expr, int] = {}
    for x in all_expressions(loop.body):
        for e in E.walk(x):
            scalar = SCALARS.get(e.op)
            cost[e] = max([cost[a] for a in e.args], default=0)
            if scalar is not None and e.dtype != "index":
                cost[e] = max(cost[e], scalar.cost)
    dear = [e for e, c in cost.items() if c >= CACHED and e.dtype in ("f32", "f64")
            and loop.var.value in e.free and not e.free & own]
    below = {a for e in dear for a in e.args}
    return [e for e in dear if e not in below]


def _rewritten(loop: For, values: dict[Expr, Expr]) -> For:
    """The loop with whole expressions exchanged."""
    found = rewrite(loop, lambda x: E.exchanged(x, values)) if values else loop
    assert isinstance(found, For)
    return found
