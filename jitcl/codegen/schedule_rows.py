"""Rows that a work-group shares, as vectors: each lane reads its vectors once, and keeps them.

    for r < 4096 @loop { acc max= x[i, r] }
    =>  for t < 4 @loop { for quad < 4 @vec {
          row0[t * 4 + quad] = x[i, (t * 256 + lane) * 4 + quad] } }
        for quad < 4 @vec {
          let acc_v = -inf
          for t < 4 @loop { acc_v max= row0[t * 4 + quad] }
          part0[quad] = acc_v }
        acc max= max(max(part0[0], part0[1]), max(part0[2], part0[3]))

Later loops over the row read `row0`, which compilers keep in registers: the loops over t are short.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from jitcl import dtypes
from jitcl.codegen.loops import Body, renamed, rewrite
from jitcl.codegen.vectorise import has_form, partial, vectors_of
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Accum, Buffer, For, Kernel, Let, Stmt, Store, expressions
from jitcl.ir.scalar import identity
from jitcl.ir.sizes import is_size
from jitcl.target import Target

QUAD = 4                       # elements of a vector: the widest access of a GPU is 16 bytes
HALVES = 8                     # the same, of halves, where lanes move more than they compute
TURNS = 8                      # vectors of a row that a lane takes, at most
KEPT = 64                      # elements of rows that it keeps, at most
FEWEST = 32                    # lanes
SHORT = 256                    # elements of a row that is read again as soon: rows of any length


def widths(kernel: Kernel, target: Target) -> tuple[int, ...]:
    """Elements of vectors that a kernel's memory may be read and written in, best first. An H200,
    ReLU of 16 million halves, us: by 4 24.7, by 8 20.7 (f32 36; empty kernels of as many
    work-items 23 and 13)."""
    flags = kernel.flagging.buffer if kernel.flagging is not None else ""
    halves = target.stages_tiles and all(b.dtype == "f16" or b.name == flags
                                         for b in kernel.buffers)
    most = (HALVES, QUAD) if halves else (QUAD,)
    return tuple(n for n in most if n <= target.max_vector_width)


class Quads:
    """How lanes take the loops of a row in vectors of `width`."""

    def __init__(self, kernel: Kernel, inner: Body, lane: Expr, turns: int, width: int) -> None:
        assert lane.extent is not None
        self.lane, self.lanes, self.turns, self.width = lane, lane.extent, turns, width
        self.arrays: list[Buffer] = []
        self.row: dict[Expr, str] = {}           # load at the element AT -> the array it is kept in
        self.names = itertools.count()
        self.kept: set[str] = set()
        seen = Counter(e for s in inner if isinstance(s, For)
                       for e in dict.fromkeys(_loads(s)))
        read = {b.name for b in kernel.buffers if b.role == "in"}
        for e in (e for e, count in seen.items() if count > 1 and e.value in read):
            self.row[e] = f"row{len(self.row)}"
            self.arrays.append(Buffer(self.row[e], "f32", (turns * width,), "private"))

    def dealt(self, loop: For) -> list[Stmt]:
        """The statements of a loop of the row."""
        name = loop.var.value
        v, t = E.var(f"quad_{name}", extent=self.width), E.var(f"t_{name}", extent=self.turns)
        here, place = t * self.width + v, (t * self.lanes + self.lane) * self.width + v
        brought: list[Stmt] = []
        places: dict[Expr, Expr] = {}
        for e in (e for e in dict.fromkeys(_loads(loop)) if e in self.row):
            own, value = _at(e, AT, loop.var), E.load(self.row[e], (here,), "f32")
            places |= {own: E.cast(value, own.dtype), E.cast(own, "f32"): value}
            if self.row[e] not in self.kept:
                self.kept.add(self.row[e])
                store = Store(self.row[e], (here,), E.cast(own, "f32"))
                brought.append(renamed(store, {name: place}))
        body = tuple(renamed(rewrite(s, lambda x: E.exchanged(x, places)), {name: place})
                     for s in loop.body)
        before: list[Stmt] = [For(t, "loop", (For(v, "vec", tuple(brought)),))] if brought else []
        sums = [s for s in body if isinstance(s, Accum)]
        if not sums:
            return [*before, For(t, "loop", (For(v, "vec", body),))]
        own_v = {s.var.value: E.var(f"{s.var.value}_v", s.var.dtype) for s in sums}
        parts = {s.var.value: f"quad{next(self.names)}_{s.var.value}" for s in sums}
        self.arrays += [Buffer(part, "f32", (self.width,), "private") for part in parts.values()]
        vec = For(v, "vec", (
            *(Let(own_v[s.var.value], E.const(identity(s.combine, "f32"), "f32")) for s in sums),
            For(t, "loop", tuple(Accum(own_v[s.var.value], s.combine, s.value)
                                 if isinstance(s, Accum) else s for s in body)),
            *(Store(parts[s.var.value], (v,), own_v[s.var.value]) for s in sums)))
        return [*before, vec, *(Accum(s.var, s.combine, _whole(parts[s.var.value], s, self.width))
                                for s in sums)]


AT = E.var("at_row")


def quads(kernel: Kernel, inner: Body, lanes: int, target: Target) -> Quads | None:
    """None where loops are not over one row, or its elements no aligned vectors, or too many. Wider
    vectors are for rows of which as many lanes have some."""
    found = [_quads(kernel, inner, lanes, target, width) for width in widths(kernel, target)]
    return max((f for f in found if f is not None), key=lambda f: f.lanes, default=None)


def _quads(kernel: Kernel, inner: Body, lanes: int, target: Target, width: int) -> Quads | None:
    """The same, in vectors of so many."""
    loops = [s for s in inner if isinstance(s, For)]
    extents = {f.extent for f in loops}
    if not target.stages_tiles or len(extents) != 1 or not all(
            f.plain and not any(isinstance(s, For) for s in f.body) for f in loops):
        return None
    extent = extents.pop()
    if is_size(extent) or extent <= SHORT:
        return None
    while lanes > FEWEST and (extent % (width * lanes) or lanes * width > extent):
        lanes //= 2
    turns, rest = divmod(extent, width * lanes)
    if rest or not 1 <= turns <= TURNS:
        return None
    found = Quads(kernel, inner, E.var("lane", extent=lanes), turns, width)
    shapes = {b.name: b.shape for b in kernel.buffers}
    if sum(b.size for b in found.arrays) > KEPT:
        return None
    for loop in loops:
        sums = [s for s in loop.body if isinstance(s, Accum)]
        if sums and not partial(sums):
            return None
        for s in loop.body:
            touched = [(e.value, e.indices) for x in expressions(s) for e in E.walk(x)
                       if e.op == "load"]
            touched += [(s.buffer, s.indices)] if isinstance(s, Store) else []
            for buffer, indices in touched:
                terms, constant = E.linear(flat(shapes[buffer], indices))
                step = terms.pop(loop.var, 0)
                if step not in (0, 1) or any(loop.var.value in a.free for a in terms) or (
                        step and any(k % width for k in (constant, *terms.values()))):
                    return None
    trial = Quads(kernel, inner, found.lane, turns, width)
    body = tuple(s for loop in loops for s in trial.dealt(loop))
    whole = Kernel(kernel.name, kernel.buffers, body, tuple(trial.arrays), kernel.flagging)
    return found if all(has_form(whole, f, target, True) for f in vectors_of(body)) else None


def _loads(loop: For) -> Iterable[Expr]:
    """The floats that a loop loads at its element, which is called AT in them."""
    for s in loop.body:
        for x in expressions(s):
            for e in E.walk(x):
                if e.op == "load" and loop.var.value in e.free and not e.guarded and (
                        dtypes.compute(e.dtype) == "f32"):
                    yield _at(e, loop.var, AT)


def _at(e: Expr, var: Expr, other: Expr) -> Expr:
    """A load at another element."""
    return E.exchanged(e, {var: other})


def _whole(part: str, s: Accum, width: int) -> Expr:
    """The partial results together, in pairs."""
    values = [E.load(part, (E.index(k),), "f32") for k in range(width)]
    while len(values) > 1:
        values = [E.make(s.combine, tuple(values[k:k + 2]), "f32")
                  for k in range(0, len(values), 2)]
    return values[0]
