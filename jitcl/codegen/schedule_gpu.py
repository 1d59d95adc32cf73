"""Which work-item of a GPU computes what: kernels to kernels.

elements   one element of the output a work-item (of millions, several, a stride apart)

    for i < 64 @parallel { for j < 100 @parallel { y[i, j] = x[i, j] + b[j] } }
    =>  for i < 64 @item { for j < 100 @item { y[i, j] = x[i, j] + b[j] } }

vectors    where all that is touched lies side by side and is aligned, and there is enough of it:
           several elements a work-item

    for i < 4000 @parallel { y[i] = x[i] * 2.0 }
    =>  for i < 1000 @item { for lane < 4 @vec { y[i * 4 + lane] = x[i * 4 + lane] * 2.0 } }

tiles      transposes, through local memory: schedule_tiles.py

rows       one row a work-group: its lanes share reductions, and the loops over the row's elements

    for i < 64 @parallel { let acc = 0.0  for r < 100 @loop { acc add= x[i, r] }  y[i] = acc }
    =>  for i < 64 @group { for lane < 32 @lane {
          let acc = 0.0
          for r < 100 @loop from lane by 32 { acc add= x[i, r] }
          part_acc[lane] = acc
          barrier
          for some8 < 8 @loop from lane by 32 {
            part_acc[some8] = part_acc[some8] + part_acc[some8 + 8]
                            + (part_acc[some8 + 16] + part_acc[some8 + 24])
          }
          barrier
          ..
          y[i] = part_acc[0] + part_acc[1] if lane == 0 } }

           eight of them, where they come through local memory: schedule_row_tiles.py

chains     one chain of a recurrence a work-group: its lanes share each part of a step, and meet
           behind it; where groups don't work, one chain a work-item
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from jitcl import dtypes
from jitcl.codegen.axes import apart, fewest_idle, merge, spread
from jitcl.codegen.copies import copied
from jitcl.codegen.loops import (
    Body,
    inline_lets,
    merged,
    nest_of,
    perfect_nest,
    rebuild,
    renamed,
    rewrite,
)
from jitcl.codegen.schedule_row_tiles import RowTiles, row_tiles
from jitcl.codegen.schedule_rows import Quads, quads, widths
from jitcl.codegen.schedule_tiles import turned
from jitcl.codegen.share import share
from jitcl.codegen.vectorise import has_form
from jitcl.errors import VerifyError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import (
    Accum,
    Assign,
    Barrier,
    Buffer,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    expressions,
    is_parallel,
    scanned,
    statements,
)
from jitcl.ir.scalar import identity
from jitcl.ir.sizes import hint
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.target import Target

ROW_GROUP = 256        # lanes that share a row, at most
SMALL_GROUP = 64       # where local memory is emulated (Mali): reductions in small groups
FEWEST = 32            # lanes: less than a GPU runs in step anyway
FEWEST_SMALL = 16      # lanes where local memory is emulated: what they share is dear
WAVE = 64              # lanes that an Adreno runs in step
TERMS = 8              # that each lane takes, at least, of many rows
RADIX = 4              # partial results that are combined at a time: fewer barriers than by twos
MANY = 1 << 23         # elements from which a work-item takes STRIDES of them: starting one costs
BUSY = 2               # times what keeps the GPU busy: with fewer, vectors would leave it idle
STRIDES = 8            # as much as moving it, and a million work-items still fill any GPU
LONG = 48              # terms of a reduction that are worth sharing
ROWS = 4096            # with fewer rows, work-items would be idle without sharing
LANE = "lane"
Cut = Callable[[list[For], Target], tuple[int, ...]]     # how many loops become each axis


def schedule_gpu(kernel: Kernel, target: Target) -> Kernel:
    """The kernel's parallel loops as work-items of a GPU."""
    nest, inner = parallel_nest(kernel)
    if scanned(kernel):
        if not target.local_works:
            return elements(kernel, nest, inner, target)
        return chains(kernel, nest, inner, min(ROW_GROUP, target.max_work_group))
    flattened = merged(kernel, guards=True)
    shorter, body = parallel_nest(flattened)
    row = (kernel, nest, inner)
    if loops_of(flattened) < loops_of(kernel):
        row = flattened, shorter, body
    lanes = row_lanes(*row, target) if target.local_works else 0
    if lanes:
        if (tiles := row_tiles(flattened, target)) is not None:
            return rows(tiles.kernel, tiles.nest, tiles.inner, FEWEST, tiles=tiles)
        in_quads = quads(row[0], row[2], lanes, target)
        return rows(*row, in_quads.lanes if in_quads else lanes, in_quads)
    copy = copied(kernel) if target.few_programs else None
    if copy is not None:
        return vectors(copy, target, apart, 0) or elements(
            copy, *parallel_nest(copy, addresses=False), target, apart)
    if len(shorter) < len(nest):
        kernel, nest, inner = flattened, shorter, body
    return turned(flattened, target) or vectors(flattened, target) or elements(
        kernel, nest, inner, target)


def loops_of(kernel: Kernel) -> int:
    """How many loops a kernel has."""
    return sum(isinstance(s, For) for s in statements(kernel.body))


def parallel_nest(kernel: Kernel, addresses: bool = True) -> tuple[list[For], Body]:
    """The outer independent loops, and what stands inside them.

    Values that were named between the loops move into the innermost, so that the nest is perfect.
    `addresses`: sums and products of indices are named, too.
    """
    nest, body = perfect_nest(inline_lets(kernel.body))
    return nest, share(Kernel(kernel.name, kernel.buffers, body), addresses=addresses).body


# ---- elements


def elements(kernel: Kernel, nest: list[For], inner: Body, target: Target,
             cut: Cut = fewest_idle) -> Kernel:
    """One work-item an iteration of the nest; of very many, each takes several, a stride apart.
    Loops inside are its own.
    """
    inner = in_turn(inner)
    if not nest:
        nest = [For(E.var("once", extent=1), "parallel", ())]
    total = math.prod(f.extent for f in nest)
    if total < MANY:
        return replace(kernel, body=spread(nest, "item", inner, cut(nest, target)))
    long = next((f for f in nest if f.extent >= STRIDES), None)
    if long is None:
        merged, inner = merge(nest, inner)
        nest, long = [merged], merged
    items = -(-long.extent // STRIDES)
    start = E.var(f"first_{long.var.value}", extent=items)
    inner = (For(long.var, "loop", inner, start, items),)
    starts = [For(start, f.kind, ()) if f is long else f for f in nest]
    return replace(kernel, body=spread(starts, "item", inner, cut(starts, target)))


def vectors(kernel: Kernel, target: Target, cut: Cut = fewest_idle, busy: int = BUSY
            ) -> Kernel | None:
    """The elements of a kernel without loops of its own as aligned vectors; None where they are
    none, or fewer than `busy` times what keeps the GPU busy.
    """
    found = (_vectors(kernel, target, cut, busy, width) for width in widths(kernel, target))
    return next((f for f in found if f is not None), None)


def _vectors(kernel: Kernel, target: Target, cut: Cut, busy: int, width: int) -> Kernel | None:
    """The same, in vectors of so many."""
    nest, inner = parallel_nest(kernel, addresses=False)
    most = math.prod(f.extent for f in nest)
    if not nest or nest[-1].extent % width or (
            most // width < busy * target.busy) or any(
            isinstance(s, For) for s in inner):
        return None
    last, lane = nest[-1].var, E.var(LANE, extent=width)
    item = E.var(last.value, extent=nest[-1].extent // width)
    vec = For(lane, "vec", tuple(
        rewrite(renamed(s, {last.value: item * width + lane}), partial(by_first_lane, lane))
        for s in inner))
    nest = [*nest[:-1], For(item, "parallel", ())]
    done = elements(kernel, nest, (vec,), target, cut)
    if not has_form(kernel, vec, target, aligned=True):
        return None
    try:
        verify_schedule(done)
    except VerifyError:                      # some access is not aligned, or lies apart
        return None
    return done


def by_first_lane(lane: Expr, x: Expr) -> Expr:
    """x with the comparisons that come out alike for all lanes of a vector as its first lane's.

        p * 4 + lane < 64  =>  p * 4 < 64
    """
    def change(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op in ("lt", "ge") and e.args[0].dtype == "index" and lane.value in e.free:
            terms, constant = E.linear(e.args[0] - e.args[1])
            assert lane.extent is not None
            if terms.pop(lane, 0) == 1 and not any(k % lane.extent for k in (
                    constant, *terms.values())) and not any(lane.value in t.free for t in terms):
                return E.call(e.op, E.from_linear(terms, 0), E.index(-constant))
        return rebuild(e, args)

    return E.mapped(x, change)


def in_turn(body: Body) -> Body:
    """Loops as sequential ones."""
    return tuple(replace(s, kind="vec" if s.kind == "vec" else "loop", body=in_turn(s.body))
                 if isinstance(s, For) else s for s in body)


# ---- rows


def row_lanes(kernel: Kernel, nest: list[For], inner: Body, target: Target) -> int:
    """How many lanes share a row's work; 0 where they can't, or gain nothing by it. One of two
    powers of two, so that programs are few, the lower one for short rows and for many.
    """
    loops = [s for s in inner if isinstance(s, For)]
    shared = [s for s in loops if s.kind != "parallel"]
    if not shared or not all(shareable(s) for s in shared) or _accumulated_twice(shared):
        return 0
    most = ROW_GROUP if target.local_is_real else SMALL_GROUP
    lanes = 1 << min(most, target.reduction_group, target.max_work_group).bit_length() - 1
    longest, count = max(trips_of(s) for s in loops), math.prod(f.extent for f in nest)
    if lanes >= longest or lanes * TERMS > longest and (
            count * lanes > BUSY * target.busy):
        fewest = WAVE if target.local_is_real else FEWEST_SMALL
        lanes = min(lanes, fewest)           # a meeting less; half would save none
    if any(s.kind == "parallel" for s in loops):
        return lanes if longest >= FEWEST or not nest else 0
    if longest < LONG:
        return 0
    return lanes if count < ROWS or along_rows(kernel, nest, shared) else 0


def rows(kernel: Kernel, nest: list[For], inner: Body, lanes: int, in_quads: Quads | None = None,
         tiles: RowTiles | None = None) -> Kernel:
    """One work-group a row, or a tile of rows with lanes of their own: reductions and inner
    parallel loops are shared by a row's lanes.
    """
    lane = E.var(LANE, extent=lanes)
    own = (tiles.row,) if tiles else ()
    combines = {s.var.value: s.combine for s in statements(inner) if isinstance(s, Accum)}
    reduced = {v.value for s in inner if _is_reduction(s) for v in accumulators(s)}
    arrays: list[Buffer] = []
    body: list[Stmt] = []
    known: dict[str, Expr] = {}                  # accumulator -> what all lanes have together
    for s in inner:
        s = renamed(s, known)
        if isinstance(s, Let) and s.var.value in reduced:
            body.append(Let(s.var, _start(s, combines[s.var.value], lane)))
        elif isinstance(s, For):
            body += in_quads.dealt(s) if in_quads else [deal(s, lane, lanes)]
            if _is_reduction(s):
                sums = accumulators(s)
                arrays += [Buffer(f"part_{v.value}", dtypes.compute(v.dtype),
                                  (*(r.extent or 1 for r in own), lanes), "local") for v in sums]
                steps, wholes = tree([(v, combines[v.value]) for v in sums], lane, lanes, own)
                body += steps
                for v, whole in zip(sums, wholes):
                    known[v.value] = E.var(f"{v.value}_all", v.dtype)
                    body.append(Let(known[v.value], E.cast(whole, v.dtype)))
        elif isinstance(s, Store):
            body.append(by_first(s, lane))
        else:
            body.append(s)
    if tiles:
        body = [*tiles.brought(lane), *body]
    lanes_loop = For(lane, "lane", tuple(body))
    for r in own:
        lanes_loop = For(r, "lane", (lanes_loop,))
    arrays += in_quads.arrays if in_quads else tiles.arrays if tiles else []
    return replace(kernel, body=spread(nest, "group", (lanes_loop,)) if nest else (lanes_loop,),
                   arrays=tuple(arrays))


def _start(s: Let, combine: str, lane: Expr) -> Expr:
    """The first lane starts from the declared value, the others from what changes nothing."""
    neutral = E.const(identity(combine, s.var.dtype), s.var.dtype)
    return s.value if s.value is neutral else E.call(
        "select", E.call("eq", lane, E.index(0)), s.value, neutral)


def deal(loop: For, lane: Expr, lanes: int) -> For:
    """A loop, with those perfectly nested in it, whose iterations lanes take in turn."""
    loop = sunk(loop)
    nest = nest_of(loop, loop.kind)
    body = in_turn(nest[-1].body)
    if len(nest) > 1:
        loop, body = merge(nest, body)
    return For(loop.var, "loop", body, lane, lanes)


def sunk(loop: For) -> For:
    """Values named between parallel loops stand in the innermost, so that the nest is perfect.

        for i @parallel { let t = i + 1  for j @parallel { .. } }
        =>  for i @parallel { for j @parallel { let t = i + 1  .. } }
    """
    *named, last = loop.body
    if not (loop.kind == "parallel" and isinstance(last, For) and last.kind == "parallel"
            and all(isinstance(s, Let) for s in named)):
        return loop
    return replace(loop, body=(sunk(replace(last, body=(*named, *last.body))),))


def tree(values: list[tuple[Expr, str]], lane: Expr, lanes: int, own: tuple[Expr, ...] = ()
         ) -> tuple[list[Stmt], list[Expr]]:
    """Statements after which few partial results of each value are left, and what combines these:
    the whole that each lane computes. own: the row of a group's that the lane belongs to.
    """
    body: list[Stmt] = [Store(f"part_{v.value}", (*own, lane), E.cast(v, dtypes.compute(v.dtype)))
                        for v, _ in values]
    body.append(Barrier())
    while lanes > RADIX:
        left = lanes // RADIX
        some = E.var(f"some{left}_{values[0][0].value}", extent=left)
        combined = [Store(f"part_{v.value}", (*own, some), _combined(v, combine, [
            (*own, some + left * k) for k in range(RADIX)])) for v, combine in values]
        body += [For(some, "loop", tuple(combined), lane, lane.extent or lanes), Barrier()]
        lanes = left
    return body, [_combined(v, combine, [(*own, E.index(k)) for k in range(lanes)])
                  for v, combine in values]


def _combined(v: Expr, combine: str, places: list[tuple[Expr, ...]]) -> Expr:
    """The combination of a value's partial results at the places, neighbours first."""
    dtype = dtypes.compute(v.dtype)
    parts = [E.load(f"part_{v.value}", at, dtype) for at in places]
    while len(parts) > 1:
        pairs = [tuple(parts[k:k + 2]) for k in range(0, len(parts), 2)]
        parts = [E.make(combine, pair, dtype) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def by_first(s: Store, lane: Expr) -> Store:
    """A store by the first lane, or work-item, alone."""
    first = E.call("eq", lane, E.index(0))
    return replace(s, guard=first if s.guard is None else first & s.guard)


def _is_reduction(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind != "parallel"


def accumulators(loop: Stmt) -> list[Expr]:
    """The variables that a loop nest accumulates into."""
    return list(dict.fromkeys(s.var for s in statements((loop,)) if isinstance(s, Accum)))


def _accumulated_twice(loops: list[For]) -> bool:
    names = [v.value for s in loops for v in accumulators(s)]
    return len(names) != len(set(names))


def shareable(loop: For) -> bool:
    """Whether a reduction's iterations are independent: nothing reads what the loop accumulates,
    nothing stores or is carried along.
    """
    own = {v.value for v in accumulators(loop)}
    combines: dict[str, str] = {}
    for s in statements((loop,)):
        if isinstance(s, (Assign, Store)) or any(x.free & own for x in expressions(s)):
            return False
        if isinstance(s, Accum) and combines.setdefault(s.var.value, s.combine) != s.combine:
            return False
        if isinstance(s, Let) and s.var.value in own:
            return False  # an accumulator of the loop's own: a reduction inside the reduction
    return "index" not in {v.dtype for v in accumulators(loop)}


def trips_of(loop: For) -> int:
    """Iterations of a loop and of those perfectly nested in it."""
    return math.prod(f.extent for f in nest_of(loop))


def along_rows(kernel: Kernel, nest: list[For], reductions: list[For]) -> bool:
    """Whether the reductions read memory along their own loops, and nothing along the innermost
    parallel one.
    """
    column = nest[-1].var if nest else None
    inside = {s.var for loop in reductions for s in statements((loop,)) if isinstance(s, For)}
    along = columns = 0
    shapes = {b.name: b.shape for b in kernel.buffers}
    for loop in reductions:
        for s in statements((loop,)):
            for x in (e for top in expressions(s) for e in E.walk(top) if e.op == "load"):
                strides, _ = E.linear(flat(shapes[x.value], x.indices))
                along += any(strides.get(v) == 1 for v in inside)
                columns += column is not None and strides.get(column) == 1
    return along > 0 and columns == 0


# ---- chains


def chains(kernel: Kernel, nest: list[For], inner: Body, most: int) -> Kernel:
    """A recurrence, one chain a work-group."""
    parts = [s for s in statements(inner) if is_parallel(s)]
    widest = max((hint(s.extent) for s in parts), default=1)
    lanes = max(1, min(most, max(FEWEST, 1 << (widest - 1).bit_length())))
    lane = E.var(LANE, extent=lanes)
    body: Body = (For(lane, "lane", tuple(_steps(inner, lane, lanes))),)
    return replace(kernel, body=spread(nest, "group", body) if nest else body)


def _steps(body: Iterable[Stmt], lane: Expr, lanes: int) -> list[Stmt]:
    """Statements of one chain: parts dealt out to the lanes, steps one after the other.

    What stands between the parts (a sum that all of a part's elements need) each lane computes.
    """
    out: list[Stmt] = []
    for s in body:
        if is_parallel(s):
            out += [_part(s, lane, lanes), Barrier()]
        elif isinstance(s, Store):
            out += [by_first(s, lane), Barrier()]
        elif isinstance(s, For) and any(isinstance(x, Store) for x in statements((s,))):
            out.append(For(s.var, s.kind, tuple(_steps(s.body, lane, lanes))))
        else:
            out.append(s)
    return out


def _part(s: For, lane: Expr, lanes: int) -> For:
    """A part's innermost parallel loop, dealt out to the lanes."""
    inner = s.body[0] if len(s.body) == 1 else None
    if is_parallel(inner):
        return For(s.var, "loop", (_part(inner, lane, lanes),))
    return For(s.var, "loop", s.body, lane, lanes)
