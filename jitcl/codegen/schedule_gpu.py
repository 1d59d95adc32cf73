"""Which work-item of a GPU computes what: kernels to kernels.

elements   one element of the output a work-item (of millions, several, a stride apart)

    for i < 64 @parallel { for j < 100 @parallel { y[i, j] = x[i, j] + b[j] } }
    =>  for i < 64 @item { for j < 100 @item { y[i, j] = x[i, j] + b[j] } }

vectors    where all that is touched lies side by side and is aligned, and there is enough of it:
           several elements a work-item

    for i < 4000 @parallel { y[i] = x[i] * 2.0 }
    =>  for i < 1000 @item { for lane < 4 @vec { y[i * 4 + lane] = x[i * 4 + lane] * 2.0 } }

rows       one row a work-group: its lanes share reductions, and the loops over the row's elements

    for i < 64 @parallel { let acc = 0.0  for r < 100 @loop { acc add= x[i, r] }  y[i] = acc }
    =>  for i < 64 @group { for lane < 32 @lane {
          let acc = 0.0
          for r < 100 @loop from lane by 32 { acc add= x[i, r] }
          part_acc[lane] = acc
          barrier
          for some16 < 16 @loop from lane by 32 {
            part_acc[some16] = part_acc[some16] + part_acc[some16 + 16]
          }
          barrier
          ..
          y[i] = part_acc[0] if lane == 0 } }

chains     one chain of a recurrence a work-group: its lanes share each part of a step, and meet
           behind it; where groups don't work, one chain a work-item
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jitcl import dtypes
from jitcl.codegen.loops import Body, flatten, inline_lets, merge_loops, nest_of, renamed
from jitcl.codegen.render import flat
from jitcl.codegen.share import share
from jitcl.codegen.vectorise import has_form
from jitcl.errors import VerifyError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import (
    Accum,
    Assign,
    Barrier,
    Buffer,
    For,
    Kernel,
    Let,
    LoopKind,
    Stmt,
    Store,
    expressions,
    scanned,
    statements,
)
from jitcl.ir.scalar import identity
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.target import Target

AXES = 3               # of an NDRange
LONGEST = 65535        # groups along any axis but the innermost: all that NVIDIA's driver takes
ROW_GROUP = 256        # lanes that share a row, at most
SMALL_GROUP = 64       # where local memory is emulated (Mali): reductions in small groups
FEWEST = 32            # lanes: less than a GPU runs in step anyway
MANY = 1 << 23         # elements from which a work-item takes STRIDES of them: starting one costs
VECTOR = 4             # elements of a vector: the widest access of a GPU is 16 bytes
ITEMS = 512            # work-items a compute unit: with fewer, vectors would leave it idle
STRIDES = 8            # as much as moving it, and a million work-items still fill any GPU
LONG = 64              # terms of a reduction that are worth sharing
ROWS = 4096            # with fewer rows, work-items would be idle without sharing
GROUP = 128            # work-items a group, one element each
STEP = 32              # work-items that a GPU runs in step: others of a group's last few are idle
DIVISION = 0.05        # of an element's time, to find one's place by division
LANE = "lane"


def schedule_gpu(kernel: Kernel, target: Target) -> Kernel:
    """The kernel's parallel loops as work-items of a GPU."""
    nest, inner = parallel_nest(kernel)
    most = ROW_GROUP if target.local_is_real else SMALL_GROUP
    if scanned(kernel):
        if not target.local_works:
            return elements(kernel, nest, inner, target)
        return chains(kernel, nest, inner, min(ROW_GROUP, target.max_work_group))
    lanes = min(most, target.reduction_group, target.max_work_group)
    lanes = row_lanes(kernel, nest, inner, lanes) if target.local_works else 0
    if lanes:
        return rows(kernel, nest, inner, lanes)
    return vectors(kernel, target) or elements(kernel, nest, inner, target)


def parallel_nest(kernel: Kernel, addresses: bool = True) -> tuple[list[For], Body]:
    """The outer independent loops, and what stands inside them.

    Values that were named between the loops move into the innermost, so that the nest is perfect.
    `addresses`: sums and products of indices are named, too.
    """
    nest: list[For] = []
    body = inline_lets(kernel.body)
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        nest.append(body[0])
        body = body[0].body
    return nest, share(Kernel(kernel.name, kernel.buffers, body), addresses=addresses).body


# ---- loops as axes of the NDRange


def spread(nest: list[For], kind: LoopKind, body: Body, cut: tuple[int, ...] | None = None) -> Body:
    """The nest as loops of a kind around the body; `cut`: how many loops become each axis, the
    outermost first, by default as few of them merged as can be.

        for i < 4 { for j < 5 { y[i, j] = .. } }
        =>  for p < 20 @group { let i = p / 5  let j = p % 5  y[i, j] = .. }
    """
    axes = []
    for count in cut or next(cuts(nest)):
        run, nest = nest[:count], nest[count:]
        if count > 1:
            merged, body = merge(run, body)
            run = [merged]
        axes += run
    for f in reversed(axes):
        body = (For(f.var, kind, body),)
    return body


def cuts(nest: list[For]) -> Iterator[tuple[int, ...]]:
    """The ways to make axes of a nest, those with the fewest loops merged first, outer loops before
    inner ones. No axis but the innermost is longer than drivers take.
    """
    for axes in range(min(AXES, len(nest)), 0, -1):
        for ends in itertools.combinations(range(len(nest) - 1, 0, -1), axes - 1):
            bounds = [0, *reversed(ends), len(nest)]
            cut = tuple(b - a for a, b in itertools.pairwise(bounds))
            if all(n <= LONGEST for n in lengths(nest, cut)[:-1]):
                yield cut


def lengths(nest: list[For], cut: tuple[int, ...]) -> list[int]:
    """The extents of the axes."""
    ends = list(itertools.accumulate(cut, initial=0))
    return [math.prod(f.extent for f in nest[a:b]) for a, b in itertools.pairwise(ends)]


def fewest_idle(nest: list[For], target: Target) -> tuple[int, ...]:
    """The way that leaves the fewest work-items idle at the ends of axes: a division to find one's
    place costs as much as some of them.
    """
    def cost(cut: tuple[int, ...]) -> float:
        extents = tuple(reversed(lengths(nest, cut)))
        group = group_of_items(extents, target)
        launched = math.prod(-(-n // g) * g for n, g in zip(extents, group))
        return launched / math.prod(extents) + DIVISION * (len(nest) - len(cut))
    return min(cuts(nest), key=cost)


def group_of_items(extents: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """The work-group for items; `extents` of axes, the innermost first."""
    return _group_of_items(extents, min(GROUP, target.max_work_group), target.max_work_item_sizes)


@functools.lru_cache(maxsize=1024)
def _group_of_items(extents: tuple[int, ...], most: int, limits: tuple[int, ...]
                    ) -> tuple[int, ...]:
    """The group of at most `most` items that leaves the fewest idle: beyond the extents, in steps
    that are not full, and as groups are small. Of equals the longest along axis 0, whose neighbours
    lie side by side in memory.
    """
    choices = []
    for n, limit in zip(extents, (*limits, *(1,) * AXES)):
        most_here = min(most, limit, 1 << max(0, n - 1).bit_length())
        choices.append([c for c in {1 << k for k in range(most.bit_length())} | {n}
                        if c <= most_here])

    def cost(group: tuple[int, ...]) -> tuple[float, int]:
        size = math.prod(group)
        launched = math.prod(-(-n // g) for n, g in zip(extents, group)) * -(-size // STEP) * STEP
        return launched * (1 + STEP / size), -group[0]
    fitting = (g for g in itertools.product(*choices) if math.prod(g) <= most)
    return min(fitting, key=cost)


def merge(nest: list[For], body: Body) -> tuple[For, Body]:
    """One loop over the iterations of a nest, its variables found by division."""
    total = math.prod(f.extent for f in nest)
    place = E.var(f"p_{nest[0].var.value}", extent=total)
    lets: list[Stmt] = []
    values: dict[str, Expr] = {}
    rest = total
    for f in nest:
        rest //= f.extent
        at = place // rest
        values[f.var.value] = E.var(f.var.value)
        lets.append(Let(values[f.var.value], at if f is nest[0] else at % f.extent))
    body = tuple(renamed(s, values) for s in body)
    read = {v for s, _ in statements(body) for x in expressions(s) for v in x.free}
    used = [s for s in lets if isinstance(s, Let) and s.var.value in read]
    return For(place, "loop", ()), (*used, *body)


# ---- elements


def elements(kernel: Kernel, nest: list[For], inner: Body, target: Target) -> Kernel:
    """One work-item an iteration of the nest; of very many, each takes several, a stride apart.
    Loops inside are its own.
    """
    inner = in_turn(inner)
    if not nest:
        nest = [For(E.var("once", extent=1), "parallel", ())]
    total = math.prod(f.extent for f in nest)
    if total < MANY:
        return replace(kernel, body=spread(nest, "item", inner, fewest_idle(nest, target)))
    long = next((f for f in nest if f.extent >= STRIDES), None)
    if long is None:
        merged, inner = merge(nest, inner)
        nest, long = [merged], merged
    items = -(-long.extent // STRIDES)
    start = E.var(f"first_{long.var.value}", extent=items)
    inner = (For(long.var, "loop", inner, start, items),)
    starts = [For(start, f.kind, ()) if f is long else f for f in nest]
    return replace(kernel, body=spread(starts, "item", inner, fewest_idle(starts, target)))


def vectors(kernel: Kernel, target: Target) -> Kernel | None:
    """The elements of a kernel without loops of its own as aligned vectors; None where they are
    none, or too few.
    """
    width = min(VECTOR, target.max_vector_width)
    kernel = flatten(kernel)
    body = merge_loops(inline_lets(kernel.body), itertools.count())
    nest, inner = parallel_nest(replace(kernel, body=body), addresses=False)
    most = math.prod(f.extent for f in nest)
    if width < VECTOR or not nest or nest[-1].extent % width or (
            most // width < ITEMS * target.compute_units) or any(
            isinstance(s, For) for s in inner):
        return None
    last, lane = nest[-1].var, E.var(LANE, extent=width)
    item = E.var(last.value, extent=nest[-1].extent // width)
    vec = For(lane, "vec", tuple(renamed(s, {last.value: item * width + lane}) for s in inner))
    nest = [*nest[:-1], For(item, "parallel", ())]
    done = elements(kernel, nest, (vec,), target)
    if not has_form(kernel, vec, target, aligned=True):
        return None
    try:
        verify_schedule(done)
    except VerifyError:                      # some access is not aligned, or lies apart
        return None
    return done


def in_turn(body: Body) -> Body:
    """Loops as sequential ones."""
    return tuple(replace(s, kind="vec" if s.kind == "vec" else "loop", body=in_turn(s.body))
                 if isinstance(s, For) else s for s in body)


# ---- rows


def row_lanes(kernel: Kernel, nest: list[For], inner: Body, lanes: int) -> int:
    """How many lanes share a row's work; 0 where they can't, or gain nothing by it. A power of
    two, lower for short rows.
    """
    loops = [s for s in inner if isinstance(s, For)]
    shared = [s for s in loops if s.kind != "parallel"]
    if not shared or not all(shareable(s) for s in shared) or _accumulated_twice(shared):
        return 0
    longest = max(trips_of(s) for s in loops)
    while lanes > FEWEST and lanes >= 2 * longest:
        lanes //= 2
    if any(s.kind == "parallel" for s in loops):
        return lanes if longest >= FEWEST or not nest else 0
    if longest < LONG:
        return 0
    count = math.prod(f.extent for f in nest)
    return lanes if count < ROWS or along_rows(kernel, nest, shared) else 0


def rows(kernel: Kernel, nest: list[For], inner: Body, lanes: int) -> Kernel:
    """One work-group a row: reductions and inner parallel loops are shared by its lanes."""
    lane = E.var(LANE, extent=lanes)
    combines = {s.var.value: s.combine for s, _ in statements(inner) if isinstance(s, Accum)}
    reduced = {v.value for s in inner if _is_reduction(s) for v in accumulators(s)}
    arrays: list[Buffer] = []
    body: list[Stmt] = []
    known: dict[str, Expr] = {}                  # accumulator -> what all lanes have together
    for s in inner:
        s = renamed(s, known)
        if isinstance(s, Let) and s.var.value in reduced:
            body.append(Let(s.var, _start(s, combines[s.var.value], lane)))
        elif isinstance(s, For):
            body.append(deal(s, lane, lanes))
            if _is_reduction(s):
                own = accumulators(s)
                arrays += [Buffer(f"part_{v.value}", _held(v.dtype), (lanes,), "local")
                           for v in own]
                body += tree([(v, combines[v.value]) for v in own], lane, lanes)
                for v in own:
                    known[v.value] = E.var(f"{v.value}_all", v.dtype)
                    whole = E.load(f"part_{v.value}", (E.index(0),), _held(v.dtype))
                    body.append(Let(known[v.value], E.cast(whole, v.dtype)))
        elif isinstance(s, Store):
            body.append(by_first(s, lane))
        else:
            body.append(s)
    lanes_loop = For(lane, "lane", tuple(body))
    return Kernel(kernel.name, kernel.buffers, spread(nest, "group", (lanes_loop,)) if nest else
                  (lanes_loop,), tuple(arrays))


def _start(s: Let, combine: str, lane: Expr) -> Expr:
    """The first lane starts from the declared value, the others from what changes nothing."""
    neutral = E.const(identity(combine, s.var.dtype), s.var.dtype)
    return s.value if s.value is neutral else E.call(
        "select", E.call("eq", lane, E.index(0)), s.value, neutral)


def _held(dtype: str) -> str:
    """The type that local memory holds a value in: what it is computed in."""
    return dtypes.compute(dtype)


def deal(loop: For, lane: Expr, lanes: int) -> For:
    """A loop, with those perfectly nested in it, whose iterations lanes take in turn."""
    loop = sunk(loop)
    nest = list(itertools.takewhile(lambda f: f.kind == loop.kind, nest_of(loop)))
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


def tree(values: list[tuple[Expr, str]], lane: Expr, lanes: int) -> list[Stmt]:
    """Element 0 of each value's part becomes the combination of all lanes' values."""
    body: list[Stmt] = [Store(f"part_{v.value}", (lane,), E.cast(v, _held(v.dtype)))
                        for v, _ in values]
    body.append(Barrier())
    half = lanes // 2
    while half:
        some = E.var(f"some{half}_{values[0][0].value}", extent=half)
        pairs = []
        for v, combine in values:
            part, dtype = f"part_{v.value}", _held(v.dtype)
            mine, other = (E.load(part, (i,), dtype) for i in (some, some + half))
            pairs.append(Store(part, (some,), E.make(combine, (mine, other), dtype)))
        body += [For(some, "loop", tuple(pairs), lane, lanes), Barrier()]
        half //= 2
    return body


def by_first(s: Store, lane: Expr) -> Store:
    """A store by the first lane, or work-item, alone."""
    first = E.call("eq", lane, E.index(0))
    return replace(s, guard=first if s.guard is None else first & s.guard)


def _is_reduction(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind != "parallel"


def accumulators(loop: Stmt) -> list[Expr]:
    """The variables that a loop nest accumulates into."""
    return list(dict.fromkeys(s.var for s, _ in statements((loop,)) if isinstance(s, Accum)))


def _accumulated_twice(loops: list[For]) -> bool:
    names = [v.value for s in loops for v in accumulators(s)]
    return len(names) != len(set(names))


def shareable(loop: For) -> bool:
    """Whether a reduction's iterations are independent: nothing reads what the loop accumulates,
    nothing stores or is carried along.
    """
    own = {v.value for v in accumulators(loop)}
    combines: dict[str, str] = {}
    for s, _ in statements((loop,)):
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
    inside = {s.var for loop in reductions for s, _ in statements((loop,)) if isinstance(s, For)}
    along = columns = 0
    shapes = {b.name: b.shape for b in kernel.buffers}
    for loop in reductions:
        for s, _ in statements((loop,)):
            for x in (e for top in expressions(s) for e in E.walk(top) if e.op == "load"):
                strides, _ = E.linear(flat(shapes[x.value], x.indices))
                along += any(strides.get(v) == 1 for v in inside)
                columns += column is not None and strides.get(column) == 1
    return along > 0 and columns == 0


# ---- chains


def chains(kernel: Kernel, nest: list[For], inner: Body, most: int) -> Kernel:
    """A recurrence, one chain a work-group."""
    parts = [s for s, _ in statements(inner) if isinstance(s, For) and s.kind == "parallel"]
    widest = max((s.extent for s in parts), default=1)
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
        if isinstance(s, For) and s.kind == "parallel":
            out += [_part(s, lane, lanes), Barrier()]
        elif isinstance(s, Store):
            out += [by_first(s, lane), Barrier()]
        elif isinstance(s, For) and any(isinstance(x, Store) for x, _ in statements((s,))):
            out.append(For(s.var, s.kind, tuple(_steps(s.body, lane, lanes))))
        else:
            out.append(s)
    return out


def _part(s: For, lane: Expr, lanes: int) -> For:
    """A part's innermost parallel loop, dealt out to the lanes."""
    inner = s.body[0] if len(s.body) == 1 else None
    if isinstance(inner, For) and inner.kind == "parallel":
        return For(s.var, "loop", (_part(inner, lane, lanes),))
    return For(s.var, "loop", s.body, lane, lanes)
