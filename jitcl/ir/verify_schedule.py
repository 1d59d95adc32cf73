"""Checks of scheduled kernels: what work-items share, and how vectors lie in memory.

    kernel 'softmax_0': 'barrier': stands in 'for r', which begins at 'lane' and so ends at another
    time in each lane: a barrier is for all lanes
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from jitcl import dtypes
from jitcl.errors import VerifyError
from jitcl.ir import expr as E
from jitcl.ir.alignment import Alignment, lane_stride
from jitcl.ir.expr import Expr, flat
from jitcl.ir.interpreter import index_values
from jitcl.ir.kernel import (
    Barrier,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    expressions,
    mutated,
    statements,
)
from jitcl.ir.lanes import work_loops
from jitcl.ir.printer import expr_text, statement_text
from jitcl.ir.verify_kernel import verify_kernel

AXES = 3                       # of an NDRange
TRIED = 1 << 16                # lanes and turns of loops for which a place is computed


def verify_schedule(kernel: Kernel, local_memory: int | None = None, aligned: bool = True) -> None:
    """VerifyError unless the kernel is well formed and does what it does on any device: work-items
    are the outermost loops, barriers are met by all lanes of a group, no lane loads or overwrites
    what another has stored without a barrier between them, `local` arrays fit into `local_memory`
    bytes, vectors are `aligned` to their size.
    """
    verify_kernel(kernel)
    _ScheduleCheck(kernel).run(local_memory, aligned)


@dataclass(frozen=True)
class _Access:
    """One place in a program where lanes touch shared memory."""

    stmt: Stmt
    buffer: str
    at: Expr                   # in elements
    stores: bool
    loops: tuple[tuple[For, int], ...]       # around it, with which of two rounds is meant


class _ScheduleCheck:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.groups, self.lanes = work_loops(kernel)
        self.buffers = {b.name: b for b in (*kernel.buffers, *kernel.arrays)}
        self.shared = {b.name for b in self.buffers.values() if b.role in ("local", "scan")}

    def fail(self, message: str, stmt: Stmt | None = None) -> NoReturn:
        stored = {b.name: b.dtype for b in self.buffers.values()}
        where = "" if stmt is None else f"'{statement_text(stmt, stored)}': "
        raise VerifyError(f"kernel '{self.kernel.name}': {where}{message}")

    def run(self, local_memory: int | None, aligned: bool) -> None:
        self.work_items()
        self.local(local_memory)
        shared = bool(self.lanes) and self.lanes[-1].kind == "lane"
        body = self.lanes[-1].body if shared else ()
        for stmt in statements(self.kernel.body):
            if isinstance(stmt, Barrier) and not any(stmt is s for s in statements(body)):
                self.fail("stands outside of all lanes", stmt)
        self.barriers(body, {f.var.value for f in self.lanes})
        self.races(body)
        facts = Alignment(self.kernel)
        for loop in _loops(self.kernel.body):
            if loop.kind == "vec" and aligned:
                self.vectors(loop, facts)

    def work_items(self) -> None:
        """Groups and lanes are the outermost loops, and no more than an NDRange has axes."""
        for loops, what in ((self.groups, "work-groups"), (self.lanes, "work-items")):
            if len(loops) > AXES:
                self.fail(f"{len(loops)} loops over {what}: an NDRange has {AXES} axes", loops[-1])
        outer = [*self.groups, *self.lanes]
        kinds = [f.kind for f in outer]
        if kinds != sorted(kinds, key=("item", "group", "lane").index) or (
                "item" in kinds and len(set(kinds)) > 1):
            self.fail(f"loops of kinds {', '.join(kinds)}: wanted items alone, or groups around "
                      "lanes")
        inner = outer[-1].body if outer else self.kernel.body
        for loop in _loops(inner):
            if loop.kind in ("item", "group", "lane", "parallel"):
                self.fail(f"stands inside: loops of kind '{loop.kind}' are the outermost, each the "
                          "only statement of the one around it", loop)

    def local(self, most: int | None) -> None:
        arrays = [b for b in self.kernel.arrays if b.role == "local"]
        if arrays and "lane" not in {f.kind for f in self.lanes}:
            self.fail(f"local array '{arrays[0].name}' has no lanes that could share it")
        size = sum(b.size * dtypes.itemsize(b.dtype) for b in arrays)
        if most is not None and size > most:
            self.fail(f"local arrays take {size} bytes, the device has {most}")

    # ---- barriers

    def barriers(self, body: tuple[Stmt, ...], varying: set[str]) -> None:
        """Every loop around a barrier begins and ends in step."""
        for stmt in body:
            if isinstance(stmt, Let) and stmt.value.free & varying:
                varying = varying | {stmt.var.value}
            elif isinstance(stmt, For) and _meets(stmt):
                for at, verb in ((stmt.first, "begins"), (stmt.end, "ends")):
                    if at is None or not at.free & varying:
                        continue
                    barrier = next(s for s in statements(stmt.body) if isinstance(s, Barrier))
                    self.fail(f"stands in 'for {stmt.var.value}', which {verb} at "
                              f"'{expr_text(at)}' and so ends at another time in each "
                              "lane: a barrier is for all lanes", barrier)
                self.barriers(stmt.body, varying)

    # ---- what lanes share

    def races(self, body: tuple[Stmt, ...]) -> None:
        """No two lanes touch an element between two barriers, unless both load it.

        Loops with barriers are gone through twice, so that the end of one round meets the
        beginning of the next. Places that depend on data are left to the run.
        """
        pending: list[_Access] = []
        for access in self.accesses(body, {}, ()):
            if access is None:
                pending.clear()
                continue
            for before in pending:
                if before.buffer == access.buffer and (before.stores or access.stores):
                    self.apart(before, access)
            if access.stores:
                self.apart(access, access)
            pending.append(access)

    def accesses(self, body: tuple[Stmt, ...], known: dict[str, Expr],
                 loops: tuple[tuple[For, int], ...]) -> Iterator[_Access | None]:
        """Loads and stores of what lanes share, in order; None at a barrier."""
        changing = {v.value for s in statements(body) for v in mutated(s)}
        for stmt in body:
            for x in expressions(stmt):
                for e in E.walk(x):
                    if e.op == "load" and e.value in self.shared:
                        yield self.access(stmt, str(e.value), e.indices, False, known, loops)
            if isinstance(stmt, Barrier):
                yield None
            elif isinstance(stmt, Let) and stmt.var.value not in changing:
                known = {**known, stmt.var.value: _with(stmt.value, known)}
            elif isinstance(stmt, Store) and stmt.buffer in self.shared:
                yield self.access(stmt, stmt.buffer, stmt.indices, True, known, loops)
            elif isinstance(stmt, For):
                rounds = 2 if _meets(stmt) else 1
                for k in range(min(rounds, stmt.trips)):
                    yield from self.accesses(stmt.body, known, (*loops, (stmt, k)))

    def access(self, stmt: Stmt, buffer: str, indices: tuple[Expr, ...], stores: bool,
               known: dict[str, Expr], loops: tuple[tuple[For, int], ...]) -> _Access:
        at = flat(self.buffers[buffer].shape, tuple(_with(i, known) for i in indices))
        inner = tuple((replace(f, first=None if f.first is None else _with(f.first, known),
                               end=None if f.end is None else _with(f.end, known)), k)
                      for f, k in loops)
        return _Access(stmt, buffer, at, stores, inner)

    def apart(self, first: _Access, second: _Access) -> None:
        """Fails where one lane stores to a place that another touches."""
        if any(e.op == "load" for a in (first, second) for e in E.walk(a.at)):
            return
        common = list(itertools.takewhile(
            lambda pair: pair[0][0].var is pair[1][0].var and pair[0][1] == pair[1][1]
            and _meets(pair[0][0]),
            zip(first.loops, second.loops)))
        together = [f for (f, _), _ in common if f.plain]
        turns = [sorted({0, f.extent // 2, f.extent - 1}) for f in together]
        for values in itertools.product(*turns):
            fixed = {f.var.value: n for f, n in zip(together, values)}
            a, b = self.touched(first, fixed), self.touched(second, fixed)
            for place in a.keys() & b.keys():
                lanes = {*a[place], *b[place]}
                if len(lanes) > 1:
                    one, other = sorted(lanes)[:2]
                    verb = "stores to" if first.stores else "loads"
                    text = statement_text(first.stmt)
                    self.fail(f"lane {other} touches element {place} of '{first.buffer}', which "
                              f"lane {one} {verb} in '{text}': a barrier is missing between them",
                              second.stmt)

    def touched(self, access: _Access, fixed: dict[str, int]) -> dict[int, tuple[int, int]]:
        """Place -> the least and the greatest lane that touches it."""
        loops = [f for f, _ in access.loops if f.var.value not in fixed]
        count = math.prod(f.extent for f in self.lanes)
        rank = 1 + len(loops)
        at = np.arange(count).reshape(-1, *(1,) * len(loops))
        values: dict[str, np.ndarray] = {n: np.asarray(v) for n, v in fixed.items()}
        values |= {f.var.value: np.zeros((), np.int64) for f in self.groups}
        rest = count
        for f in self.lanes:
            rest //= f.extent
            values[f.var.value] = at // rest % f.extent
        held: np.ndarray = np.ones((1,) * rank, bool)
        room = max(1, TRIED // count)
        for k, f in enumerate(loops):
            turns = np.arange(f.trips) if f.trips <= room else np.array(
                sorted({0, 1, f.trips // 2, f.trips - 1}))
            room = max(1, room // len(turns))
            first = index_values(f.first, values) if f.first is not None else 0
            now = first + f.step * turns.reshape((1,) * (k + 1) + (-1,) + (1,) * (rank - k - 2))
            held = held & (now < f.extent)
            if f.end is not None:
                held = held & (now < index_values(f.end, values))
            values[f.var.value] = np.minimum(now, f.extent - 1)
        guard = access.stmt.guard if isinstance(access.stmt, Store) else None
        if guard is not None and guard.free <= values.keys() and not _loads(guard):
            held = held & index_values(guard, values)
        place, lane, held = np.broadcast_arrays(index_values(access.at, values), at, held)
        order = np.lexsort((lane[held], place[held]))
        places, lanes = place[held][order], lane[held][order]
        found, begin = np.unique(places, return_index=True)
        ends = [*begin[1:], len(places)]
        return {int(p): (int(lanes[i]), int(lanes[j - 1])) for p, i, j in zip(found, begin, ends)}

    # ---- vectors

    def vectors(self, loop: For, facts: Alignment) -> None:
        """Each element that depends on the lane of a vector lies beside the one before it, and the
        first of them where a whole number of vectors lies before it."""
        width, lane = loop.extent, loop.var
        for stmt in statements(loop.body):
            places = [(e.value, e.indices) for x in expressions(stmt) for e in E.walk(x)
                      if e.op == "load"]
            if isinstance(stmt, Store):
                places.append((stmt.buffer, stmt.indices))
            for buffer, indices in places:
                at = flat(self.buffers[buffer].shape, indices)
                stride = lane_stride(at, lane)
                if stride == 0 or self.buffers[buffer].role == "local":
                    continue                     # local memory is read and written by elements
                if stride != 1:
                    self.fail(f"lanes of 'for {lane.value} @vec' do not lie side by side in "
                              f"'{buffer}'", stmt)
                if facts.multiple(at - lane) % width:
                    self.fail(f"'{buffer}' is touched {width} elements at a time at "
                              f"'{expr_text(at)}': that is no multiple of {width}", stmt)


def _with(x: Expr, known: dict[str, Expr]) -> Expr:
    """x with what is known of variables in their place."""
    if not x.free & known.keys():
        return x
    return E.exchanged(x, {e: known[e.value] for e in E.walk(x)
                           if e.op == "var" and e.value in known})


def _meets(loop: For) -> bool:
    return any(isinstance(s, Barrier) for s in statements(loop.body))


def _loads(x: Expr) -> bool:
    return any(e.op == "load" for e in E.walk(x))


def _loops(body: tuple[Stmt, ...]) -> Iterator[For]:
    return (s for s in statements(body) if isinstance(s, For))
