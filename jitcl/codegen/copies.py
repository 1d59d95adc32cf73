"""Copies in one form, so that those of many layers are one program: loops along which both buffers
are walked in steps.

    for p < 64 @parallel { for c < 256 @parallel {
      y[p, c] = x[p * 32 + floordiv(c, 32) * 2048 + c % 32]
    } }
    =>
    for p < 64 { for h < 8 { for d < 32 { y[p * 256 + h * 32 + d] = x[p * 32 + h * 2048 + d] } } }

Loops are cut where places are found by division, ordered as the copy lies, and joined where both
buffers go on.
"""

from __future__ import annotations

from dataclasses import replace

from jitcl.codegen.axes import AXES
from jitcl.codegen.loops import Body, flatten, inline_lets, perfect_nest, renamed, renest
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import For, Kernel, Let, Store, statements
from jitcl.ir.sizes import has_size

MOST = 4               # loops: three axes, the innermost of two loops


def copied(kernel: Kernel) -> Kernel | None:
    """The kernel in that form; None where it is no copy, of one piece, or of more loops."""
    nest, body = perfect_nest(inline_lets(flatten(kernel).body))
    load = copy_of(body)
    if load is None or has_size(tuple(f.extent for f in nest)):
        return None
    while cut := _cut(nest, body):
        nest, body = cut
    (store,), load = body, copy_of(body)
    assert isinstance(store, Store) and load is not None
    (to, start), (of, first) = E.linear(store.indices[0]), E.linear(load.indices[0])
    loops = [f.var for f in nest]
    if not {*to, *of} <= {*loops}:
        return None
    steps = sorted(((to.get(v, 0), of.get(v, 0), v) for v in loops if extent_of(v) > 1),
                   key=lambda s: -s[0])
    joined: list[tuple[int, int, Expr]] = []
    for y, x, v in steps:
        n = extent_of(v)
        if joined and (y * n, x * n) == joined[-1][:2]:
            v = E.var(v.value, extent=n * extent_of(joined.pop()[2]))
        joined.append((y, x, v))
    if not 1 < len(joined) <= MOST:
        return None
    if len(joined) < AXES:                   # one more, of one element: the program of others
        y, x, v = joined[0]
        n = extent_of(v)
        joined.insert(0, (y * n, x * n or 1, E.var(f"{v.value}_of_1", extent=1)))
    at = E.from_linear({v: y for y, _, v in joined}, start)
    source = E.from_linear({v: x for _, x, v in joined if x}, first)
    value = E.exchanged(store.value, {load: E.load(load.value, (source,), load.dtype)})
    done = replace(store, indices=(at,), value=value)
    body = (renest([For(v, "parallel", ()) for *_, v in joined], (done,)),)
    return replace(flatten(kernel), body=body)


def extent_of(v: Expr) -> int:
    assert v.extent is not None
    return v.extent


def copy_of(body: Body) -> Expr | None:
    """What the one statement, a store, moves as it is, or to another type."""
    if len(body) != 1 or not isinstance(body[0], Store) or body[0].guard is not None:
        return None
    value = body[0].value
    while value.op == "cast":
        value = value.args[0]
    return value if value.op == "load" and not value.guarded else None


def copies(kernel: Kernel) -> bool:
    """Whether a scheduled kernel is a copy of elements, or vectors, in steps."""
    found = [s for s in statements(kernel.body) if not isinstance(s, Let)]
    loops = [s for s in found if isinstance(s, For)]
    *_, last = found
    load = copy_of((last,))
    return load is not None and len(found) == len(loops) + 1 and all(
        f.kind in ("item", "vec") for f in loops) and isinstance(last, Store) and all(
        t.op == "var" for i in (*load.indices, *last.indices) for t in E.linear(i)[0])


def _cut(nest: list[For], body: Body) -> tuple[list[For], Body] | None:
    """The nest with a loop as two where its variable is divided."""
    load = copy_of(body)
    assert load is not None and isinstance(body[0], Store)
    loops = {f.var: f for f in nest}
    for e in (e for i in (*load.indices, *body[0].indices) for e in E.walk(i)):
        if e.op not in ("floordiv", "mod") or e.args[0] not in loops or not e.args[1].is_const:
            continue
        f, d = loops[e.args[0]], e.args[1].value
        if f.extent % d:
            continue
        name = f.var.value
        pair = E.var(f"{name}_{d}", extent=f.extent // d), E.var(f"{name}_of_{d}", extent=d)
        k = nest.index(f)
        inner = [For(v, "parallel", ()) for v in pair]
        whole = {name: pair[0] * d + pair[1]}
        return [*nest[:k], *inner, *nest[k + 1:]], (renamed(body[0], whole),)
    return None
