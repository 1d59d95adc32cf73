"""Runs kernels in NumPy: the reference that every device is compared with.

Whole loops are evaluated at once, each loop being one axis of the arrays; the results are those of
the loops run one iteration after the other. Sums are rounded after each term, in the declared type
and the declared order. Loops are cut into chunks, so that temporaries stay below some 64 MB.
Loads out of bounds are errors, never wrong values.

Scheduled kernels run, too. The lanes of a group are an axis, so they go in step; that would hide a
missing barrier, and so a place that one lane stores to and another touches before the next barrier
is an error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError, JitclError
from jitcl.ir.expr import Expr, walk
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
    carries,
    statements,
    variables_read,
)
from jitcl.ir.lanes import Placement
from jitcl.ir.printer import statement_text
from jitcl.ir.scalar import SCALARS

T = TypeVar("T")
CHUNK = 1 << 20                              # elements of one temporary: 8 MB of int64 at most
_INDEPENDENT = ("item", "group", "lane", "parallel", "vec")
_WIDE = 1 << 12                              # arrays of this size hide the cost of a Python loop
_CACHED = 1 << 17                            # independent iterations at once: fits a CPU's cache


def run_kernel(kernel: Kernel, buffers: Mapping[str, np.ndarray]) -> None:
    """Run a (verified) kernel: reads the `in` buffers and fills the `out` buffers in place.

    `buffers` has an array of the declared dtype and shape for each buffer; InputError where it
    does not. JitclError for an access outside a buffer.
    """
    flat: dict[str, np.ndarray] = {}
    strided: dict[str, np.ndarray] = {}
    for buffer in kernel.buffers:
        array = checked_array(kernel, buffer, buffers)
        if buffer.role != "in" and not array.flags.c_contiguous:
            strided[buffer.name] = array
            array = array.copy()
        flat[buffer.name] = array.reshape(-1)
    with np.errstate(all="ignore"):
        _Run(kernel, flat).block(kernel.body)
    for name, array in strided.items():
        array[...] = flat[name].reshape(array.shape)


def checked_array(kernel: Kernel, buffer: Buffer, buffers: Mapping[str, np.ndarray]) -> np.ndarray:
    """The array given for a buffer; InputError unless it has the declared dtype and shape."""
    array = buffers.get(buffer.name)
    if array is None:
        raise InputError(f"kernel '{kernel.name}': no array for buffer '{buffer.name}'; "
                         f"got {', '.join(buffers) or 'none'}")
    want = f"{dtypes.to_numpy(buffer.dtype)}{list(buffer.shape)}"
    if array.dtype != dtypes.to_numpy(buffer.dtype) or array.shape != buffer.shape:
        raise InputError(f"kernel '{kernel.name}': buffer '{buffer.name}' is {want}, "
                         f"got {array.dtype}{list(array.shape)}")
    if buffer.role != "in" and not array.flags.writeable:
        raise InputError(f"kernel '{kernel.name}': out buffer '{buffer.name}' is read-only")
    return array


class _Run:
    """One run. `sizes` are the lengths of the loops that are axes now; a variable declared when
    there were r axes holds an array of r dimensions (or a scalar), and gets trailing axes of
    length 1 where it is read deeper."""

    def __init__(self, kernel: Kernel, flat: dict[str, np.ndarray]) -> None:
        self.kernel, self.flat = kernel, flat
        self.shapes = {b.name: b.shape for b in (*kernel.buffers, *kernel.arrays)}
        self.place = Placement(kernel, flat)
        self.active: list[np.ndarray] = []   # which iterations run, where not all of an axis do
        self.sizes: list[int] = []
        self.env: dict[str, tuple[np.ndarray, int]] = {}           # name -> value, axes it has
        self.plans: dict[int, bool] = {}
        self.guard: np.ndarray | None = None                       # of the store that is evaluated
        self.whole = 0                       # > 0: inside a sequential axis, where order matters

    # ---- statements

    def block(self, body: Iterable[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                self.loop(stmt)
            elif isinstance(stmt, Let):
                self.env[stmt.var.value] = self.value(stmt.value, stmt), len(self.sizes)
            elif isinstance(stmt, Accum):
                self.accumulate(stmt)
            elif isinstance(stmt, Assign):
                self.assign(stmt)
            elif isinstance(stmt, Store):
                self.store(stmt)
            else:
                assert isinstance(stmt, Barrier)                   # axes run in lockstep
                self.place.meet()

    def loop(self, loop: For) -> None:
        if not loop.plain:
            self.turns(loop)
            return
        name, extent, rank = loop.var.value, loop.extent, len(self.sizes)
        chunk = self.chunk(loop)
        if chunk == 0:
            for i in range(extent):
                self.env[name] = np.asarray(i, np.int64), rank
                self.block(loop.body)
            return
        self.whole += loop.kind not in _INDEPENDENT
        for start in range(0, extent, chunk):
            values = np.arange(start, min(start + chunk, extent), dtype=np.int64)
            self.sizes.append(len(values))
            self.env[name] = values.reshape((1,) * rank + (-1,)), rank + 1
            self.block(loop.body)
            self.sizes.pop()
        self.whole -= loop.kind not in _INDEPENDENT

    def turns(self, loop: For) -> None:
        """A loop that begins and ends where its iteration of the loops around it says, one turn at
        a time; those for which it is over already wait."""
        first = np.zeros((), np.int64) if loop.first is None else self.value(loop.first, loop)
        end = np.asarray(loop.extent) if loop.end is None else np.minimum(
            loop.extent, self.value(loop.end, loop))
        for turn in range(loop.trips):
            at = first + turn * loop.step
            running = at < end
            if not running.any():
                break
            self.env[loop.var.value] = np.minimum(at, loop.extent - 1), len(self.sizes)
            self.active.append(running)
            self.block(loop.body)
            self.active.pop()

    def running(self) -> np.ndarray | None:
        """Which iterations of the axes run, and store what is evaluated; None: all."""
        mask = self.guard
        for a in self.active:
            if not a.all():
                a = a.reshape(a.shape + (1,) * (len(self.sizes) - a.ndim)) if a.ndim else a
                mask = a if mask is None else mask & a
        return mask

    def chunk(self, loop: For) -> int:
        """How many iterations become an axis at a time; 0: none, run them one by one.

        Inside a sequential loop that is an axis, loops must be taken whole: cut in pieces, they
        would be accumulated in another order.
        """
        if carries(loop):
            return 0
        if self.whole or loop.kind in ("lane", "vec"):      # lanes meet at barriers, or are in step
            return max(1, loop.extent)
        size = math.prod(self.sizes)
        if loop.kind in _INDEPENDENT:
            return max(1, min(loop.extent, _CACHED // max(1, size * inner_size(loop))))
        if size >= _WIDE or not self.at_once(loop):
            return 0
        return min(loop.extent, CHUNK // (size * max(1, all_inside(loop))))

    def at_once(self, loop: For) -> bool:
        plan = self.plans.get(id(loop))
        if plan is None:
            plan = self.plans[id(loop)] = can_run_at_once(loop)
        return plan

    def accumulate(self, stmt: Accum) -> None:
        """Axes opened since the variable was declared are reduced, in the order of the loops."""
        fn: Any = SCALARS[stmt.combine].fn
        held, rank = self.env[stmt.var.value]
        value = self.value(stmt.value, stmt)
        if rank == len(self.sizes):
            self.change(stmt.var, typed(fn(held, value), stmt.var.dtype))
            return
        outer = value.shape[:rank] if value.ndim else (1,) * rank
        terms = np.broadcast_to(value, (*outer, *self.sizes[rank:])).reshape(*outer, -1)
        if held.ndim:
            outer = np.broadcast_shapes(held.shape, outer)
        start = np.broadcast_to(held, outer)[..., np.newaxis]
        terms = np.concatenate([start, np.broadcast_to(terms, (*outer, terms.shape[-1]))], axis=-1)
        total = fn.accumulate(terms, axis=-1, dtype=terms.dtype)[..., -1]
        self.change(stmt.var, typed(total, stmt.var.dtype))

    def assign(self, stmt: Assign) -> None:
        values = [self.value(e, stmt) for e in stmt.values]
        for var, value in zip(stmt.vars, values):
            self.change(var, value)

    def change(self, var: Expr, value: np.ndarray) -> None:
        """A variable's new value, in the iterations that run."""
        held, rank = self.env[var.value]
        mask = self.running()
        if mask is not None:
            if mask.ndim:
                mask = mask.reshape(mask.shape[:rank])
            value = np.where(mask, value, held)
        self.env[var.value] = value, rank

    def store(self, stmt: Store) -> None:
        mask = None if stmt.guard is None else self.value(stmt.guard, stmt)
        running = self.running()
        if running is not None:
            mask = running if mask is None else mask & running
        self.guard = mask
        value = self.value(stmt.value, stmt)
        self.guard = None
        at = [self.value(i, stmt) for i in stmt.indices]
        place = self.address(stmt.buffer, at, mask, stmt)
        self.met(self.place.stored, stmt.buffer, place, mask, stmt)
        arrays = np.broadcast_arrays(place, value, True if mask is None else mask)
        target = self.flat[stmt.buffer]
        if mask is None:
            target[arrays[0].reshape(-1)] = arrays[1].reshape(-1)
        else:
            chosen = arrays[2]
            target[arrays[0][chosen]] = arrays[1][chosen]
        if self.kernel.flagging is not None and self.kernel.flags(stmt.buffer) and (
                ~np.isfinite(arrays[1]) & arrays[2]).any():
            self.store(self.kernel.flagging)

    # ---- values

    def value(self, x: Expr, stmt: Stmt) -> np.ndarray:
        """The expression over all axes; each axis that it does not depend on has length 1."""
        return in_order(x, lambda e, done: self.node(e, done, stmt))

    def node(self, e: Expr, done: dict[Expr, np.ndarray], stmt: Stmt) -> np.ndarray:
        if e.op == "var":
            return self.variable(e.value)
        if e.op == "load":
            return self.load(e, done, stmt)
        return computed(e, done)

    def load(self, e: Expr, done: dict[Expr, np.ndarray], stmt: Stmt) -> np.ndarray:
        at = [done[i] for i in e.indices]
        running = self.running()
        if e.guard is None or e.other is None:
            place = self.address(e.value, at, running, stmt)
            self.met(self.place.loaded, e.value, place, running, stmt)
            return np.asarray(self.flat[e.value].take(place, mode="clip"))
        guard, other = done[e.guard], done[e.other]
        read = guard if running is None else guard & running
        place = self.address(e.value, at, read, stmt)
        self.met(self.place.loaded, e.value, place, read, stmt)
        if not guard.any():
            shape = np.broadcast_shapes(place.shape, guard.shape, other.shape)
            return np.broadcast_to(other, shape)
        return np.where(guard, self.flat[e.value].take(np.where(guard, place, 0)), other)

    def address(self, buffer: str, at: list[np.ndarray], guard: np.ndarray | None,
                stmt: Stmt) -> np.ndarray:
        """Flat positions; JitclError where one is outside the buffer (and not guarded)."""
        place: np.ndarray = np.zeros((), np.int64)
        for axis, (i, d) in enumerate(zip(at, self.shapes[buffer])):
            if i.size and (i.min() < 0 or i.max() >= d):
                bad = (i < 0) | (i >= d)
                if guard is not None:
                    bad = bad & guard
                if bad.any():
                    self.outside(buffer, axis, np.broadcast_to(i, bad.shape)[bad][0], stmt)
            place = place * d + i
        return place + self.place.base(buffer, self.variable)

    def variable(self, name: str) -> np.ndarray:
        held, rank = self.env[name]
        return held.reshape(held.shape + (1,) * (len(self.sizes) - rank)) if held.ndim else held

    def met(self, check: Callable[..., str], buffer: str, place: np.ndarray,
            mask: np.ndarray | None, stmt: Stmt) -> None:
        """JitclError where lanes meet at a place without a barrier between them."""
        fault = check(buffer, place, mask, self.variable)
        if fault:
            raise JitclError(f"kernel '{self.kernel.name}': '{statement_text(stmt)}' {fault}: "
                             "a barrier is missing")

    def outside(self, buffer: str, axis: int, index: int, stmt: Stmt) -> None:
        raise JitclError(f"kernel '{self.kernel.name}': '{statement_text(stmt)}' reaches index "
                         f"{index} of axis {axis} of '{buffer}' {list(self.shapes[buffer])}: "
                         "guard the access")


# ---- values

def in_order(x: Expr, node: Callable[[Expr, dict[Expr, T]], T]) -> T:
    """An expression's value: `node` computes that of one, given those that it needs."""
    done: dict[Expr, T] = {}
    for e, dead in evaluation_order(x):
        done[e] = node(e, done)
        for d in dead:
            del done[d]
    return done[x]


@functools.lru_cache(maxsize=1024)
def evaluation_order(x: Expr) -> list[tuple[Expr, tuple[Expr, ...]]]:
    """Every subexpression after its operands, and which of them are not needed after it."""
    nodes = list(walk(x))
    last = {a: e for e in nodes for a in e.args}
    dead: dict[Expr, list[Expr]] = {}
    for a, e in last.items():
        dead.setdefault(e, []).append(a)
    return [(e, tuple(dead.get(e, ()))) for e in nodes]


def typed(value: Any, dtype: str) -> np.ndarray:
    return dtypes.converted(np.asarray(value), dtype)


def computed(e: Expr, done: Mapping[Expr, np.ndarray]) -> np.ndarray:
    """A constant, cast or scalar operation, given the values of its operands."""
    if e.op == "const":
        return np.asarray(e.value, dtypes.to_numpy(e.dtype))
    if e.op == "cast":
        return typed(done[e.args[0]], e.dtype)
    return typed(SCALARS[e.op].fn(*(done[a] for a in e.args)), e.dtype)


def index_values(x: Expr, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """An expression without loads, for arrays of values of its variables."""
    with np.errstate(all="ignore"):
        return in_order(x, lambda e, done: values[e.value] if e.op == "var" else computed(e, done))


# ---- which loops may be axes

def inner_size(loop: For) -> int:
    """Iterations of the largest nest of independent loops inside one iteration of `loop`."""
    return max((s.extent * inner_size(s) for s in loop.body
                if isinstance(s, For) and s.kind in _INDEPENDENT), default=1)


def all_inside(loop: For) -> int:
    """Iterations of the largest nest of loops inside one iteration of `loop`."""
    return max((s.extent * all_inside(s) for s in loop.body if isinstance(s, For)), default=1)


def can_run_at_once(loop: For) -> bool:
    """Whether a sequential loop gives the same when all its iterations are evaluated together.

    So it is where nothing reads what the loop accumulates, and every accumulator and every buffer
    is written by one statement only: then the terms meet in the order of the iterations.
    """
    stmts = list(statements(loop.body))
    if carries(loop) or any(isinstance(s, For) and not s.plain for s in stmts):
        return False
    declared = {s.var.value for s in stmts if isinstance(s, Let)}
    outer = [s.var.value for s in stmts if isinstance(s, Accum) and s.var.value not in declared]
    stores = [s.buffer for s in stmts if isinstance(s, Store)]
    return (len(set(outer)) == len(outer) and len(set(stores)) == len(stores)
            and not variables_read(loop.body) & set(outer)
            and not any(isinstance(s, Barrier) for s in stmts))
