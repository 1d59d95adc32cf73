"""Innermost loops with their iterations in the lanes of vectors: kernels to kernels.

    for j < 100 @loop { y[j] = x[j] + b }
    =>  for j < 96 @loop by 8 { for lane0 < 8 @vec { y[j + lane0] = x[j + lane0] + b } }
        for j < 100 @loop from 96 { y[j] = x[j] + b }

A reduction keeps a partial result in each lane, and joins them at the end, in the same order every
time. A guard that all of a loop's stores share becomes the range that the loop goes over.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from jitcl.codegen.loops import Body, renamed
from jitcl.codegen.opencl_vectors import NotVectorisable
from jitcl.codegen.render_numba import common_guard, guard_range
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Assign, Buffer, For, Kernel, Let, Stmt, Store, expressions
from jitcl.ir.scalar import identity
from jitcl.target import Target


def vectorise(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with vectors wherever its innermost loops have a form as such."""
    return _Vectors(kernel, target).kernel()


def has_form(kernel: Kernel, loop: For, target: Target, aligned: bool) -> bool:
    """Whether a `vec` loop can be written as vectors."""
    r = OpenClRenderer(kernel, target.fp64, target.soft_half, target.half_builtins)
    r.aligned = aligned
    try:
        r.stmt(loop, 0)
    except NotVectorisable:
        return False
    return True


def vectors_of(body: Body) -> list[For]:
    """The `vec` loops in it."""
    found: list[For] = []
    for s in body:
        if isinstance(s, For):
            found += [s] if s.kind == "vec" else vectors_of(s.body)
    return found


class _Vectors:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.old, self.target = kernel, target
        self.width = min(target.vector_width, target.max_vector_width)
        self.arrays = list(kernel.arrays)
        self.names = itertools.count()

    def kernel(self) -> Kernel:
        return replace(self.old, body=self.block(self.old.body), arrays=tuple(self.arrays))

    def block(self, body: Body) -> Body:
        out: list[Stmt] = []
        begun = {s.var.value for s in body if isinstance(s, Let)}
        for s in body:
            if not isinstance(s, For):
                out.append(s)
            elif any(isinstance(b, For) for b in s.body):
                out.append(replace(s, body=self.block(s.body)))
            else:
                out += self.innermost(s, begun)
        return tuple(out)

    def innermost(self, loop: For, begun: set[str]) -> Body:
        """begun: names that are declared beside the loop. A sum that goes on in an outer loop stays
        as it is: what its lanes are joined in would be carried there."""
        loop = ranged(loop)
        sums = [s for s in loop.body if isinstance(s, Accum)]
        if self.width == 1 or loop.extent < self.width or not independent(loop):
            return (loop,)
        if not sums:
            return self.along(loop)
        long = loop.plain and loop.extent >= 2 * self.width and self.width >= 4
        here = all(s.var.value in begun for s in sums)
        return self.sums(loop, sums) if long and here and partial(sums) else (loop,)

    def lanes(self, loop: For, extent: int, inner: Body, first: Expr | None = None,
              end: Expr | None = None) -> tuple[Expr, For]:
        """A loop over whole vectors around statements of one lane, and the lane."""
        v = E.var(f"lane{next(self.names)}", extent=self.width)
        var = E.var(loop.var.value, extent=extent)
        body = tuple(renamed(s, {loop.var.value: var + v}) for s in inner)
        return v, For(var, "loop", body, first, self.width, end)

    # ---- stores

    def along(self, loop: For) -> Body:
        """Whole vectors, then what is left."""
        w, low = self.width, E.index(0) if loop.first is None else loop.first
        high = E.index(loop.extent) if loop.end is None else E.call(
            "min", loop.end, E.index(loop.extent))
        before: list[Stmt] = []
        if low.is_const and high.is_const:
            whole = E.index(low.value + max(0, high.value - low.value) // w * w)
            if whole.value <= low.value:
                return (loop,)
            extent = whole.value if low.value == 0 else whole.value - w + 1
            v, outer = self.lanes(loop, extent, loop.body, loop.first)
        else:
            n = next(self.names)
            start, whole = E.var(f"low{n}"), E.var(f"whole{n}")
            count = E.call("max", high - start, E.index(0)) // w
            before = [Let(start, low), Let(whole, start + count * w)]
            v, outer = self.lanes(loop, loop.extent - w + 1, loop.body, start, whole)
        outer = replace(outer, body=(For(v, "vec", outer.body),))
        if not has_form(self.old, outer, self.target, False):
            return (loop,)
        done = whole.is_const and high.is_const and whole.value == high.value
        rest = () if done else (replace(loop, first=whole),)
        return (*before, outer, *rest)

    # ---- reductions

    def sums(self, loop: For, sums: list[Accum]) -> Body:
        n, w = loop.extent, self.width
        own = {s.var.value: E.var(f"{s.var.value}_v", s.var.dtype) for s in sums}
        inner = tuple(Accum(own[s.var.value], s.combine, s.value) if isinstance(s, Accum) else s
                      for s in loop.body)
        v, outer = self.lanes(loop, n - n % w, inner)
        parts = {s.var.value: Buffer(f"part{next(self.names)}_{s.var.value}", "f32", (w,),
                                     "private") for s in sums}
        vec = For(v, "vec", (
            *(Let(own[s.var.value], E.const(identity(s.combine, "f32"), "f32")) for s in sums),
            outer,
            *(Store(parts[s.var.value].name, (v,), own[s.var.value]) for s in sums)))
        kernel = replace(self.old, arrays=(*self.arrays, *parts.values()))
        if not has_form(kernel, vec, self.target, False):
            return (loop,)
        self.arrays += parts.values()
        joins = [j for s in sums for j in self.join(s, parts[s.var.value].name)]
        rest = (replace(loop, first=E.index(n - n % w)),) if n % w else ()
        return (vec, *joins, *rest)

    def join(self, s: Accum, part: str) -> list[Stmt]:
        """Halves a vector of partial results until two are left, which the accumulator takes."""
        joined: list[Stmt] = []
        half = self.width // 2
        while half > 1:
            v = E.var(f"lane{next(self.names)}", extent=half)
            pair = (E.load(part, (v,), "f32"), E.load(part, (v + half,), "f32"))
            joined.append(For(v, "vec", (Store(part, (v,), E.make(s.combine, pair, "f32")),)))
            half //= 2
        pair = (E.load(part, (E.index(0),), "f32"), E.load(part, (E.index(1),), "f32"))
        return [*joined, Accum(s.var, s.combine, E.make(s.combine, pair, "f32"))]


def partial(sums: list[Accum]) -> bool:
    """Whether accumulators may be kept as partial results: none is read, or takes two terms."""
    own = {s.var.value for s in sums}
    return len(own) == len(sums) and all(
        s.var.dtype == "f32" and s.combine in ("add", "mul", "max", "min")
        and not s.value.free & own for s in sums)


def independent(loop: For) -> bool:
    """Whether no iteration needs another: of what a loop stores it loads the same places only."""
    if any(isinstance(s, Assign) for s in loop.body):
        return False
    stored: dict[str, tuple[Expr, ...]] = {}
    for s in loop.body:
        if isinstance(s, Store) and stored.setdefault(s.buffer, s.indices) != s.indices:
            return False
    return all(stored.get(e.value, e.indices) == e.indices
               for s in loop.body for x in expressions(s) for e in E.walk(x) if e.op == "load")


def ranged(loop: For) -> For:
    """A loop over the range in which the guard of all its stores holds.

        for j < 9 @loop { y[j] = x[j] if j < n }  =>  for j < 9 @loop from 0 to min(9, n) { .. }
    """
    guard = common_guard(loop)
    if guard is None:
        return loop
    low, high, outside, rest = guard_range(guard, loop.var)
    if outside is not None:
        high = E.call("select", outside, high, E.index(0))
    if loop.first is not None:
        low = E.call("max", low, loop.first)
    if loop.end is not None:
        high = E.call("min", high, loop.end)
    body = tuple(replace(s, guard=rest) for s in loop.body if isinstance(s, Store))
    return replace(loop, body=body, first=None if low is E.index(0) else low,
                   end=None if high is E.index(loop.extent) else high)
