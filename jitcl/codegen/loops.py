"""What loop transformations are made of: substitution, flat addresses, strides, merging, splitting.

Kernels here are *flat*: every buffer has one axis, so that an address is one linear expression of
the loop variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as changed

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import (
    Accum,
    Assign,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    expressions,
    is_parallel,
    mutated,
    statements,
    variables_read,
)
from jitcl.ir.scalar import SCALARS
from jitcl.ir.sizes import at_least_always, is_size, same

Body = tuple[Stmt, ...]
Names = Iterator[int]                        # numbers that make new variable names distinct


# ---- expressions

def rebuild(x: Expr, args: tuple[Expr, ...]) -> Expr:
    """x with other operands, simplified as if it were written anew."""
    if all(a is b for a, b in zip(args, x.args)):
        return x
    if x.op == "load":
        count = len(x.indices)
        return E.load(x.value, args[:count], x.dtype, *args[count:])
    if x.op == "cast":
        return E.cast(args[0], x.dtype)
    if x.op in SCALARS:
        return E.call(x.op, *args)
    return E.remade(x, args)


def substitute(x: Expr, values: Mapping[str, Expr]) -> Expr:
    """x with variables exchanged by name, simplified again under what is now known of them."""
    if not values or not (x.free & values.keys()):
        return x
    return E.mapped(x, lambda e, args: values.get(e.value, e) if e.op == "var" else
                    rebuild(e, args))


def trusting_guards(x: Expr) -> Expr:
    """x with the indices of each load simplified by what its guard says.

        x[t % 1500] if t < 1500 else 0  =>  x[t] if t < 1500 else 0
    """
    def change(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == "load" and e.guarded:
            args = (*(_given(i, args[-2]) for i in args[:-2]), *args[-2:])
        return rebuild(e, args)

    return E.mapped(x, change)


def _given(x: Expr, guard: Expr) -> Expr:
    """x where a guard holds: quotients of what it says to be less than their divisor are 0."""
    below = {c.args[0]: c.args[1].value for c in _conditions(guard)
             if c.op == "lt" and c.args[1].is_const and at_least_always(E.bounds(c.args[0])[0], 0)}

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr:
        least = below.get(args[0]) if e.op in ("mod", "floordiv") and args[1].is_const else None
        if least is not None and at_least_always(args[1].value, least):
            return args[0] if e.op == "mod" else E.index(0)
        return rebuild(e, args)

    return E.mapped(x, change)


def _conditions(guard: Expr) -> Iterator[Expr]:
    """What holds where a guard does."""
    if guard.op == "and":
        for a in guard.args:
            yield from _conditions(a)
    else:
        yield guard


def rewrite(stmt: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `fn` applied to each expression that it, or one inside it, evaluates."""
    if isinstance(stmt, For):
        first, end = (None if e is None else fn(e) for e in (stmt.first, stmt.end))
        return changed(stmt, body=tuple(rewrite(s, fn) for s in stmt.body), first=first, end=end)
    if isinstance(stmt, Let):
        return Let(stmt.var, fn(stmt.value))
    if isinstance(stmt, Accum):
        return Accum(stmt.var, stmt.combine, fn(stmt.value))
    if isinstance(stmt, Assign):
        return Assign(stmt.vars, tuple(fn(e) for e in stmt.values))
    if isinstance(stmt, Store):
        guard = None if stmt.guard is None else fn(stmt.guard)
        return Store(stmt.buffer, tuple(fn(i) for i in stmt.indices), fn(stmt.value), guard)
    return stmt


def renamed(stmt: Stmt, values: Mapping[str, Expr]) -> Stmt:
    return rewrite(stmt, lambda e: substitute(e, values))


def linear_in(x: Expr, var: Expr) -> tuple[int, Expr] | None:
    """(k, rest) with x = k * var + rest and rest free of var; None where x is not linear in var."""
    terms, constant = E.linear(x)
    k = terms.pop(var, 0)
    if any(var.value in a.free for a in terms):
        return None
    return k, E.from_linear(terms, constant)


# ---- statements

def all_expressions(body: Body) -> Iterator[Expr]:
    for stmt in statements(body):
        yield from expressions(stmt)


def subexpressions(body: Body) -> Iterator[Expr]:
    """Every distinct expression in the statements, operands first."""
    seen: set[Expr] = set()
    for x in all_expressions(body):
        if x not in seen:
            for e in E.walk(x):
                if e not in seen:
                    seen.add(e)
                    yield e


def nest_of(loop: For, kind: str = "") -> list[For]:
    """A loop and the loops that are perfectly nested inside it, outermost first; with a `kind`, as
    far as they are of it.
    """
    nest = [loop]
    while len(body := nest[-1].body) == 1 and isinstance(body[0], For) and (
            body[0].kind == (kind or body[0].kind)):
        nest.append(body[0])
    return nest


def perfect_nest(body: Body) -> tuple[list[For], Body]:
    """The independent loops around all of a body, and what stands inside them."""
    if len(body) != 1 or not is_parallel(body[0]):
        return [], body
    nest = nest_of(body[0], "parallel")
    return nest, nest[-1].body


def renest(nest: list[For], body: Body) -> Stmt:
    """The nest around another body."""
    for loop in reversed(nest):
        body = (For(loop.var, loop.kind, body),)
    return body[0]


def inline_lets(body: Body) -> Body:
    """Statements without `let`s but of variables that change: transformations see whole
    expressions. (What a loop carries changes at its end only, so its `let`s may be inlined.)"""
    return _inline(body, {v.value for s in statements(body) for v in mutated(s)}, {})


def _inline(body: Body, changing: set[str], known: dict[str, Expr]) -> Body:
    out: list[Stmt] = []
    known = dict(known)
    for stmt in body:
        if isinstance(stmt, Let) and stmt.var.value not in changing:
            known[stmt.var.value] = substitute(stmt.value, known)
        elif isinstance(stmt, For):
            out.append(For(stmt.var, stmt.kind, _inline(stmt.body, changing, known)))
        else:
            out.append(renamed(stmt, known))
    return tuple(out)


# ---- flat buffers

def flatten(kernel: Kernel) -> Kernel:
    """The kernel with one axis a buffer: indices become element offsets."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    memo: dict[Expr, Expr] = {}

    def offset(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op != "load":
            return rebuild(e, args)
        count = len(e.indices)
        return E.load(e.value, (flat(shapes[e.value], args[:count]),), e.dtype, *args[count:])

    def offsets(x: Expr) -> Expr:
        return E.mapped(x, offset, memo)

    def statement(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            return For(stmt.var, stmt.kind, tuple(map(statement, stmt.body)))
        if isinstance(stmt, Store):
            at = flat(shapes[stmt.buffer], tuple(offsets(i) for i in stmt.indices))
            guard = None if stmt.guard is None else offsets(stmt.guard)
            return Store(stmt.buffer, (at,), offsets(stmt.value), guard)
        return rewrite(stmt, offsets)
    buffers = tuple(changed(b, shape=(b.size,)) for b in kernel.buffers)
    return changed(kernel, buffers=buffers, body=tuple(map(statement, kernel.body)))


# ---- merging loops

class _Apart(Exception):
    """The two variables are not used as one."""


def merge(outer: For, inner: For, number: int, guards: bool = False) -> For | None:
    """`for i < I { for j < J }` as one over p = i * J + j; None unless that is all their use, but
    for `guards`: i < 3 is p < 3 * J.
    """
    i, j = outer.var, inner.var
    p = E.var(f"p{number}", extent=outer.extent * inner.extent)
    memo: dict[Expr, Expr] = {}

    def fold(x: Expr) -> Expr:
        if not (x.free & {i.value, j.value}):
            return x
        if x not in memo and guards and (guard := compared(x)) is not None:
            memo[x] = guard
        if x not in memo:
            sums = x.dtype == "index" and x.op in ("add", "sub", "mul", "var")
            memo[x] = index(x) if sums else rebuild(x, tuple(fold(a) for a in x.args))
        return memo[x]

    def compared(x: Expr) -> Expr | None:
        if x.op not in ("lt", "ge") or not x.args[1].is_const or x.args[1].dtype != "index":
            return None
        terms, constant = E.linear(x.args[0])
        numbers = (x.args[1].value, constant, inner.extent)
        if terms != {i: 1} or any(map(is_size, numbers)):
            return None
        return E.call(x.op, p, E.index((x.args[1].value - constant) * inner.extent))

    def index(x: Expr) -> Expr:
        terms, constant = E.linear(x)
        ki, kj = terms.pop(i, 0), terms.pop(j, 0)
        if not same(ki, kj * inner.extent) or (x.op == "mul" and x in terms):
            raise _Apart
        total = E.index(constant)
        for atom, k in ({} if same(kj, 0) else {p: kj}).items():
            total = total + atom * k
        for atom, k in terms.items():
            total = total + fold(atom) * k
        return total
    try:
        return For(p, inner.kind, tuple(rewrite(s, fold) for s in inner.body))
    except _Apart:
        return None


def merge_loops(body: Body, names: Names, guards: bool = False) -> Body:
    """Neighbouring loops of one kind merged wherever that is possible, innermost first."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            stmt = For(stmt.var, stmt.kind, merge_loops(stmt.body, names, guards))
            inner = stmt.body[0] if len(stmt.body) == 1 else None
            if isinstance(inner, For) and inner.kind == stmt.kind:
                stmt = merge(stmt, inner, next(names), guards) or stmt
        out.append(stmt)
    return tuple(out)


def merged(kernel: Kernel, guards: bool = False) -> Kernel:
    """One axis a buffer, neighbouring loops merged."""
    kernel = flatten(kernel)
    body = merge_loops(inline_lets(kernel.body), itertools.count(), guards)
    return changed(kernel, body=body)


def distribute(body: Body, enough: int = 16) -> Body:
    """Parallel loops around several loops as one around each, while threads want for pieces.

        for c < 2 { for p < 9 { y[..] = 0 }  for h < 400 { .. } }
        =>  for c < 2 { for p < 9 { y[..] = 0 } }   for c < 2 { for h < 400 { .. } }

    An extent that is no number may be one.
    """
    out: list[Stmt] = []
    for stmt in body:
        if not is_parallel(stmt):
            out.append(stmt)
            continue
        extent = 1 if is_size(stmt.extent) else stmt.extent
        if extent >= enough:
            out.append(stmt)
            continue
        inner = distribute(stmt.body, -(-enough // max(extent, 1)))
        apart = len(inner) > 1 and all(isinstance(s, Store) or is_parallel(s) for s in inner)
        out.extend(For(stmt.var, stmt.kind, (s,)) for s in inner) if apart else out.append(
            For(stmt.var, stmt.kind, inner))
    return tuple(out)


def drop_unused(body: Body) -> Body:
    """Without the reductions that nothing reads (a value that is 0 in this piece of a loop)."""
    while True:
        kept = _without(body, {s.var.value for s in statements(body) if isinstance(s, Let)}
                        - variables_read(body))
        if kept == body:
            return body
        body = kept


def _without(body: Body, names: set[str]) -> Body:
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            stmt = For(stmt.var, stmt.kind, _without(stmt.body, names))
            if not stmt.body:
                continue
        elif isinstance(stmt, (Let, Accum)) and stmt.var.value in names:
            continue
        elif isinstance(stmt, Assign):
            kept = [(v, e) for v, e in zip(stmt.vars, stmt.values) if v.value not in names]
            if not kept:
                continue
            stmt = Assign(tuple(v for v, _ in kept), tuple(e for _, e in kept))
        out.append(stmt)
    return tuple(out)


# ---- splitting loops

def strip(loop: For, width: int, number: int) -> For:
    """`for v < E` as `for vo < E / width { for vi < width }`; width divides E."""
    assert loop.extent % width == 0
    outer = E.var(f"o{number}", extent=loop.extent // width)
    inner = E.var(f"v{number}", extent=width)
    at = outer * width + inner
    body = tuple(renamed(s, {loop.var.value: at}) for s in loop.body)
    return For(outer, loop.kind, (For(inner, loop.kind, body),))


def piece(loop: For, low: int, high: int, names: Names) -> Body:
    """The part of a loop that runs low .. high; its body alone where that is one iteration."""
    var = E.var(f"v{next(names)}", extent=high - low)
    at = E.index(low) if high - low == 1 else var + low
    body = side_by_side(loop.body, [{loop.var.value: at}], lambda _: f"acc{next(names)}_")
    return body if high - low == 1 else (For(var, loop.kind, body),)


def side_by_side(body: Body, copies: list[dict[str, Expr]], called: Callable[[str], str]) -> Body:
    """Each statement once for each of some copies, in which variables have these values, with
    variables of its own, named after the old one's name; loops once for all.
    """
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            out.append(For(stmt.var, stmt.kind, side_by_side(stmt.body, copies, called)))
        elif isinstance(stmt, Let):
            for own in copies:
                var = E.var(called(stmt.var.value), stmt.var.dtype)
                out.append(Let(var, substitute(stmt.value, own)))
                own[stmt.var.value] = var
        elif isinstance(stmt, Assign):
            out.append(Assign(tuple(own.get(v.value, v) for own in copies for v in stmt.vars),
                              tuple(substitute(e, own) for own in copies for e in stmt.values)))
        elif isinstance(stmt, Accum):
            out.extend(Accum(own.get(stmt.var.value, stmt.var), stmt.combine,
                             substitute(stmt.value, own)) for own in copies)
        else:
            out.extend(renamed(stmt, own) for own in copies)
    return tuple(out)
