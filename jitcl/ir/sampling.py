"""A kernel at some places of its output: what these elements are, and how far off they may be.

The loops over the output give way to a sample of their iterations; all else, such as the sums of a
convolution or the statistics of a row, is evaluated whole, for all samples at once, with the
arithmetic of `enclosure`. Loops around a row's statistics are sampled apart from those along the
row, so that few rows are reduced for many places:

    for i < 64 @parallel {                some rows
      for r < 512 { acc add= .. }         all of r, for each of these rows
      for j < 512 @parallel { .. } }      some places of each of these rows
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.enclosure import FLUSHED, LARGEST, TINY, UNIT, Array, Enclosed, evaluated
from jitcl.ir.expr import Expr
from jitcl.ir.interpreter import all_inside, can_run_at_once, checked_array, in_order
from jitcl.ir.kernel import (
    Accum,
    Assign,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    carries,
    counted,
    is_parallel,
    statements,
)
from jitcl.ir.noise import Noise, noise
from jitcl.ir.printer import statement_text
from jitcl.ir.scalar import SCALARS

POINTS = 256                                 # places of an output that are computed
WORK = 1 << 17                               # terms of sums that are computed for them
ROWS = 12                                    # iterations of a loop around statistics
CHUNK = 1 << 18                              # elements of one temporary
Points = list[dict[str, Array]]              # for each level of the nest: variable -> its values


@dataclass(frozen=True)
class Sample:
    """Elements of an output at flat positions: a correct one is in mid +- radius, anything where
    that is infinite; NaN or infinite as `mid` is, where the radius is finite."""

    positions: Array
    mid: Array
    radius: Array


def sample_kernel(kernel: Kernel, buffers: Mapping[str, Array | Noise], seed: int,
                  points: int = POINTS, work: int = WORK) -> Sample:
    """Corners, edges and random places of the output of an unscheduled kernel: about `points`,
    fewer where these take more than `work` terms of sums, at least one.

    `buffers`: for each buffer that is read an array of the declared dtype and shape, or noise.
    Raises InputError where one doesn't fit, JitclError where the kernel reads outside of them.
    """
    return _run(kernel, buffers, choose_points(kernel, seed, points, work))


def sample_places(kernel: Kernel, buffers: Mapping[str, Array | Noise], positions: Array) -> Sample:
    """The same at given flat positions of the output."""
    store = _store(kernel)
    shape = kernel.buffer(store.buffer).shape
    at = np.unravel_index(positions, shape) if shape else ()    # NumPy finds no places in a scalar
    level = {}
    for index, values in zip(store.indices, at):
        if index.op == "var":
            level[index.value] = np.asarray(values, np.int64)
        elif not index.is_const:
            raise JitclError(f"kernel '{kernel.name}': '{statement_text(store)}' does not store at "
                             "its loops' variables, so no place can be found")
    return _run(kernel, buffers, [level] if level else [])


def _run(kernel: Kernel, buffers: Mapping[str, Array | Noise], points: Points) -> Sample:
    store = _store(kernel)
    walk = Walk(kernel, operands(kernel, buffers), points)
    with np.errstate(all="ignore"):
        walk.block(kernel.body)
    assert walk.found is not None, f"kernel '{kernel.name}' stored nothing to '{store.buffer}'"
    return walk.found


def operands(kernel: Kernel, buffers: Mapping[str, Array | Noise]) -> dict[str, Array | Noise]:
    """What the kernel reads, each as a flat array or noise."""
    noisy = {name: b for name, b in buffers.items() if isinstance(b, Noise)}
    arrays = {name: b for name, b in buffers.items() if not isinstance(b, Noise)}
    return noisy | {b.name: checked_array(kernel, b, arrays).reshape(-1)
                    for b in kernel.buffers if b.role == "in" and b.name not in noisy}


def _store(kernel: Kernel) -> Store:
    stores = [s for s in statements(kernel.body) if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].guard is not None:
        raise JitclError(f"kernel '{kernel.name}' has {len(stores)} stores: only fresh kernels, "
                         "with one and without a guard, can be sampled")
    return stores[0]


# ---- which places

def choose_points(kernel: Kernel, seed: int, points: int, work: int) -> Points:
    """Values of the parallel loops' variables, level by level."""
    chosen: Points = []
    outer = 1
    levels = nest_levels(kernel)
    for number, (loops, trips) in enumerate(levels):
        count = math.prod(f.extent for f in loops)
        last = number == len(levels) - 1
        most = max(1, points // outer) if last else ROWS
        most = max(1, min(most, work // max(1, trips * outer), count))
        chosen.append(some_indices(loops, most, count, seed + number))
        outer *= most
    return chosen


def nest_levels(kernel: Kernel) -> list[tuple[list[For], int]]:
    """The parallel loops in groups, cut behind those that hold sums of their own beside the next
    loop; with each group the terms of its sums in one iteration."""
    levels: list[tuple[list[For], int]] = []
    body: tuple[Stmt, ...] = kernel.body
    loops: list[For] = []
    while True:
        inner = [s for s in body if is_parallel(s)]
        if len(inner) > 1:
            raise JitclError(f"kernel '{kernel.name}' has {len(inner)} nests side by side: only "
                             "fresh kernels can be sampled")
        trips = sum(n for s, n in counted(tuple(
            s for s in body if isinstance(s, For) and s.kind != "parallel"))
            if isinstance(s, (Accum, Assign)))
        if loops and (trips or not inner):
            levels.append((loops, trips))
            loops = []
        if not inner:
            return levels
        loops = [*loops, inner[0]]
        body = inner[0].body


def some_indices(loops: list[For], most: int, count: int, seed: int) -> dict[str, Array]:
    """`most` places of a nest: all of them, or both corners, edges and random ones."""
    extents = [f.extent for f in loops]
    if most == count:
        at = list(np.unravel_index(np.arange(count), extents))
    else:
        at = list(np.unravel_index(noise(seed, most) % np.uint64(count), extents))
        for axis, d in enumerate(extents):
            at[axis][:2] = (0, d - 1)[:most]
            at[axis][2 + 2 * axis: 4 + 2 * axis] = (0, d - 1)[:max(0, min(2, most - 2 - 2 * axis))]
    return {f.var.value: np.asarray(v, np.int64) for f, v in zip(loops, at)}


# ---- evaluation

class Walk:
    """One evaluation. As in the interpreter, loops are axes of the arrays; `sizes` are the axes'
    lengths, `extents` those of the sequential loops that are open, whole."""

    def __init__(self, kernel: Kernel, flat: Mapping[str, Array | Noise], points: Points) -> None:
        self.kernel, self.flat, self.points = kernel, flat, points
        self.shapes = {b.name: b.shape for b in kernel.buffers}
        self.sizes: list[int] = []
        self.extents: list[int] = []
        self.env: dict[str, tuple[Enclosed, int, int]] = {}   # value, axes it has, loops open
        self.level = 0
        self.bound: set[str] = set()
        self.found: Sample | None = None

    # ---- statements

    def block(self, body: Iterable[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                self.sampled(stmt) if stmt.kind == "parallel" else self.loop(stmt)
            elif isinstance(stmt, Let):
                self.bind(stmt.var.value, self.value(stmt.value, stmt))
            elif isinstance(stmt, Accum):
                self.accumulate(stmt)
            elif isinstance(stmt, Assign):
                values = [self.value(e, stmt) for e in stmt.values]
                for var, value in zip(stmt.vars, values):
                    self.bind(var.value, value)
            elif isinstance(stmt, Store):
                self.store(stmt)
            else:
                raise JitclError(f"kernel '{self.kernel.name}' is scheduled: it has barriers")

    def bind(self, name: str, value: Enclosed) -> None:
        self.env[name] = value, len(self.sizes), len(self.extents)

    def axis(self, values: Array) -> Enclosed:
        """Values along the innermost axis."""
        return Enclosed(values.reshape((1,) * (len(self.sizes) - 1) + (-1,)))

    def sampled(self, loop: For) -> None:
        """A loop over the output: the sampled iterations of all loops of its level at once."""
        if loop.var.value in self.bound:
            self.block(loop.body)
            return
        level = self.points[self.level]
        self.level += 1
        self.sizes.append(len(level[loop.var.value]))
        for name, values in level.items():
            self.bound.add(name)
            self.bind(name, self.axis(values))
        self.block(loop.body)

    def loop(self, loop: For) -> None:
        """A sequential loop: its iterations at once, in chunks; one by one where they depend on
        each other."""
        if carries(loop):
            for i in range(loop.extent):
                self.bind(loop.var.value, Enclosed(np.asarray(i, np.int64)))
                self.block(loop.body)
            return
        each = math.prod(self.sizes) * max(1, all_inside(loop))
        chunk = max(1, CHUNK // each) if can_run_at_once(loop) else 1
        self.extents.append(loop.extent)
        for start in range(0, loop.extent, chunk):
            values = np.arange(start, min(start + chunk, loop.extent), dtype=np.int64)
            self.sizes.append(len(values))
            self.bind(loop.var.value, self.axis(values))
            self.block(loop.body)
            self.sizes.pop()
        self.extents.pop()

    def accumulate(self, stmt: Accum) -> None:
        held, rank, depth = self.env[stmt.var.value]
        value = self.value(stmt.value, stmt)
        outer = value.mid.shape[:rank] if value.mid.ndim else (1,) * rank
        outer = np.broadcast_shapes(outer, () if value.rad is None else value.rad.shape[:rank])
        shape = (*outer, *self.sizes[rank:])
        axes = tuple(range(rank, len(self.sizes)))
        terms = Enclosed(np.broadcast_to(value.mid, shape),
                         None if value.rad is None else np.broadcast_to(value.rad, shape),
                         value.rel)
        held = Enclosed(_cut(held.mid, rank), None if held.rad is None else _cut(held.rad, rank),
                        held.rel)
        count = math.prod(self.extents[depth:])
        total = _reduced(stmt, held, terms, axes, count)
        self.env[stmt.var.value] = total, rank, depth

    def store(self, stmt: Store) -> None:
        value = self.value(stmt.value, stmt)
        place = self.address(stmt.buffer, [self.value(i, stmt).mid for i in stmt.indices], None,
                             stmt)
        radius = np.asarray(value.radius, np.float64)
        shape = tuple(self.sizes)
        self.found = Sample(*(np.broadcast_to(a, shape).reshape(-1)
                              for a in (place, value.mid, radius)))

    # ---- values

    def value(self, x: Expr, stmt: Stmt) -> Enclosed:
        """The expression over all axes; each axis that it does not depend on has length 1."""
        return in_order(x, lambda e, done: self.node(e, done, stmt))

    def node(self, e: Expr, done: dict[Expr, Enclosed], stmt: Stmt) -> Enclosed:
        if e.op == "var":
            held, rank, _ = self.env[e.value]
            return self.deepened(held, rank)
        if e.op == "load":
            return self.load(e, done, stmt)
        return evaluated(e, [done[a] for a in e.args])

    def deepened(self, x: Enclosed, rank: int) -> Enclosed:
        """A value of `rank` axes among all that are open now."""
        more = (1,) * (len(self.sizes) - rank)

        def grown(a: Array) -> Array:
            return a.reshape(a.shape + more) if a.ndim else a
        return Enclosed(grown(x.mid), None if x.rad is None else grown(x.rad), x.rel)

    def load(self, e: Expr, done: dict[Expr, Enclosed], stmt: Stmt) -> Enclosed:
        indices = [done[i] for i in e.indices]
        guard = None if e.guard is None else done[e.guard]
        place = self.address(e.value, [i.mid for i in indices], guard, stmt,
                             certain=all(i.exact for i in indices))
        mid: Array = self.flat[e.value].take(place)
        if dtypes.is_float(e.dtype):
            mid = mid.astype(np.float64)
        elif e.dtype in dtypes.LOW_INTS:
            mid = mid.astype(np.int32)
        rad = None
        unsure = [i.radius for i in indices if not i.exact]
        if unsure:                           # some neighbour, then: what it holds is not known
            rad = np.where(np.add.reduce(np.broadcast_arrays(*unsure)) == 0, 0.0, np.inf)
        found = Enclosed(mid, rad)
        if guard is None or e.other is None:
            return found
        return _chosen(guard, found, done[e.other])

    def address(self, buffer: str, at: list[Array], guard: Enclosed | None, stmt: Stmt,
                certain: bool = True) -> Array:
        """Flat positions; JitclError where one is outside the buffer and not guarded. Those behind
        a guard, and uncertain ones, are moved inside."""
        place: Array = np.zeros((), np.int64)
        for axis, (i, d) in enumerate(zip(at, self.shapes[buffer])):
            if i.size and (i.min() < 0 or i.max() >= d):
                bad = (i < 0) | (i >= d)
                if guard is not None:
                    bad = bad & guard.mid & (guard.radius == 0)
                if certain and bad.any():
                    index = np.broadcast_to(i, bad.shape)[bad][0]
                    raise JitclError(
                        f"kernel '{self.kernel.name}': '{statement_text(stmt)}' reaches index "
                        f"{index} of axis {axis} of '{buffer}' {list(self.shapes[buffer])}")
                i = np.clip(i, 0, d - 1)
            place = place * d + i
        return place


def _cut(a: Array, rank: int) -> Array:
    return a if a.ndim <= rank else a.reshape(a.shape[:rank])


def _chosen(guard: Enclosed, value: Enclosed, other: Enclosed) -> Enclosed:
    """guard ? value : other."""
    mid = np.where(guard.mid, value.mid, other.mid)
    if guard.exact and value.exact and other.exact:
        return Enclosed(mid)
    rad = np.where(guard.mid, value.radius, other.radius)
    return Enclosed(mid, np.where(guard.radius == 0, rad, np.inf))


def _reduced(stmt: Accum, held: Enclosed, terms: Enclosed, axes: tuple[int, ...], count: int
             ) -> Enclosed:
    """An accumulator and its terms along axes, in any order; `count` terms in all."""
    dtype, combine = stmt.var.dtype, stmt.combine
    if not dtypes.is_float(dtype):
        return _reduced_integers(combine, dtype, held, terms, axes)
    if combine in ("max", "min"):
        fn = np.maximum if combine == "max" else np.minimum
        whole = fn.reduce(terms.mid, axis=axes)
        if terms.exact:
            return evaluated(E.make(combine, (stmt.var, stmt.var), dtype), [held, Enclosed(whole)])
        above = fn.reduce(terms.mid + terms.radius, axis=axes) - whole
        below = whole - fn.reduce(terms.mid - terms.radius, axis=axes)
        rad = np.where(np.isnan(whole), np.broadcast_to(terms.radius, terms.mid.shape).max(axes),
                       np.maximum(above, below))
        rad = np.where(np.isnan(rad), np.where(np.isinf(whole), 0.0, np.inf), rad)
        return evaluated(E.make(combine, (stmt.var, stmt.var), dtype),
                         [held, Enclosed(whole, rad)])
    gamma = count * UNIT[dtype] / (1 - min(0.5, count * UNIT[dtype]))
    if combine == "add":
        if dtype == "f16":                   # a few terms at a time; such sums are added in f32
            gamma = min(count, FLUSHED) * UNIT["f16"] + count * UNIT["f32"]
        mid = held.mid + terms.mid.sum(axes)
        size = np.abs(terms.mid).sum(axes)
        rad = held.radius + (gamma + terms.rel) * size + gamma * np.abs(held.mid)
        rad = rad + count * TINY[dtype]
        if terms.rad is not None:
            rad = rad + (1 + gamma) * terms.rad.sum(axes)
    else:
        mid = held.mid * terms.mid.prod(axes)
        size = (np.abs(held.mid) + held.radius) * np.prod(
            np.abs(terms.mid) + terms.radius, axis=axes)
        rad = size * (1 + gamma) - np.abs(mid) + count * TINY[dtype]
    known = np.isfinite(held.radius)
    if terms.rad is not None:
        known = known & np.isfinite(terms.rad).all(axes)
    finite = np.isfinite(mid)
    rad = np.where(finite, np.where(size <= LARGEST[dtype] / 2, rad, np.inf),
                   np.where(known, 0.0, np.inf))
    return Enclosed(mid, np.where(known, rad, np.inf))


def _reduced_integers(combine: str, dtype: str, held: Enclosed, terms: Enclosed,
                      axes: tuple[int, ...]) -> Enclosed:
    fn: Any = SCALARS[combine].fn
    whole = fn.reduce(terms.mid, axis=axes, dtype=terms.mid.dtype)
    mid = np.asarray(fn(held.mid, whole)).astype(dtypes.to_numpy(dtype), copy=False)
    if held.exact and terms.exact:
        return Enclosed(mid)
    radius = np.broadcast_to(terms.radius, terms.mid.shape)
    if combine in ("and", "or"):
        decides = combine == "or"
        sure = ((terms.mid == decides) & (radius == 0)).any(axes)
        sure = sure | (held.mid == decides) & (held.radius == 0)
        known = sure | (radius == 0).all(axes) & (held.radius == 0)
        return Enclosed(mid, np.where(known, 0.0, np.inf))
    if combine == "mul":
        unsure = (radius > 0).any(axes) | (held.radius > 0)
        return Enclosed(mid, np.where(unsure, np.inf, 0.0))
    if combine == "add":
        return Enclosed(mid, held.radius + radius.sum(axes))
    return Enclosed(mid, np.maximum(held.radius, radius.max(axes)))
