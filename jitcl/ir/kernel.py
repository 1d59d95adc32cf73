"""The kernel level: loops, lets, accumulations and stores over scalar expressions.

    kernel @mlp_0(in x: f16[4,64], in w: f16[32,64], out y: f16[4,32]) {
      for i < 4 @group {
        for j < 32 @lane {
          let acc0: f32 = 0.0
          for k < 64 @loop {
            acc0 add= f32(x[i, k]) * f32(w[j, k])
          }
          y[i, j] = f16(max(acc0, 0.0))
        }
      }
    }

Buffers are physical: their shapes hold padding and halos, and indices are final. A fresh kernel has
loops of kind `loop` (sequential) and `parallel`: the latter marks loops whose iterations are
independent, as those over a kernel's output are. A schedule gives loops the other kinds:

    item     a work-item each, whatever its group: an axis of the NDRange, the innermost is axis 0
    group    a work-group each, an axis of the NDRange
    lane     a work-item of the group each: inside all `group` loops, around all that they do
    vec      a lane of vectors each, all in step

A sequential loop may begin elsewhere than at 0, end before its extent and go by more than 1. So
lanes take turns, what only some lanes do is a loop that goes round once at most, and a work-item
has a part of a loop:

    for r < 100 @loop from lane by 32 { acc add= x[r] }        lane, lane + 32, .. below 100
    for i < 16 @loop from lane by 32 { part[i] = acc }         the first 16 lanes
    for r < 100 @loop from 32 * p to 32 * p + 32 { .. }        a quarter each; the last one's ends
                                                               with the loop

`local` arrays are shared by the lanes of a group, `private` ones are a work-item's own. What one
lane stores, another may load behind the next barrier.

A loop may carry values from one iteration to the next: its last statement assigns all of them at
once, from what they were.

    let state0: index = 0
    for r0 < 3 @loop {
      let now0: index = state0
      set state0 = select(x[i, feature[now0]] <= threshold[now0], left[now0], right[now0])
    }
    y[i] = leaf[state0]

A kernel may tell that a result of its own is infinite or NaN as it is stored, by a store of its
head. All that do so store the same number, so their order says nothing:

    kernel @relu_3(in x: f32[64], out flags: i32[7], out y: f16[64]) flagging flags[3] = 1 { .. }
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeGuard

from jitcl.ir.expr import Expr, walk

Role = Literal["in", "out", "scan", "local", "private"]
OPERANDS, ARRAYS = ("in", "out", "scan"), ("local", "private")     # of a caller, of the kernel
OVERFLOW = {"f16": 65520.0, "f32": math.inf}       # what is stored as infinity begins there
LoopKind = Literal["group", "lane", "loop", "vec", "parallel", "item"]


@dataclass(frozen=True)
class Buffer:
    """A kernel's operand or array: physical shape in elements. A `scan` buffer is written by the
    kernel, and read where it has written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role = "in"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class For:
    """`for var < extent @kind from first to end by step { body }`; var.extent is the extent."""

    var: Expr
    kind: LoopKind
    body: tuple[Stmt, ...]
    first: Expr | None = None                # where a sequential loop begins; None: at 0
    step: int = 1
    end: Expr | None = None                  # before which it ends; None: the extent alone

    @property
    def extent(self) -> int:
        assert self.var.extent is not None
        return self.var.extent

    @property
    def trips(self) -> int:
        """Iterations, at most."""
        return self.extent if self.step == 1 else -(-self.extent // self.step)

    @property
    def plain(self) -> bool:
        """Whether it counts from 0 by 1 to its extent."""
        return self.first is None and self.step == 1 and self.end is None


@dataclass(frozen=True)
class Let:
    """Declares `var` (a "var" Expr without extent) with a first value."""

    var: Expr
    value: Expr


@dataclass(frozen=True)
class Accum:
    """`var combine= value`, with a combine of `scalar.COMBINES`."""

    var: Expr
    combine: str
    value: Expr


@dataclass(frozen=True)
class Assign:
    """`set vars = values`, all at once: values read the variables as they were before.

    The last statement of a sequential loop, whose block declares the variables by `let`. Such a
    loop accumulates nothing else that is declared outside of it.
    """

    vars: tuple[Expr, ...]
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Store:
    """`buffer[indices] = value`, where `guard` (if any) holds."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None


@dataclass(frozen=True)
class Barrier:
    """All work-items of a group meet; local memory is visible to all behind it."""


Stmt = For | Let | Accum | Assign | Store | Barrier


@dataclass(frozen=True)
class Kernel:
    """A whole kernel: what it reads and writes, what it does, and the arrays that it needs for it.
    `flagging`: done where what it stores in another `out` or `scan` buffer is infinite or NaN.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    arrays: tuple[Buffer, ...] = ()
    flagging: Store | None = None

    def flags(self, stored: str) -> bool:
        """Whether a store to this buffer is looked at."""
        return self.flagging is not None and stored != self.flagging.buffer and any(
            b.name == stored and b.role in ("out", "scan") for b in self.buffers)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in (*self.buffers, *self.arrays) if b.name == name)


def scanned(kernel: Kernel) -> frozenset[str]:
    """The buffers that the kernel both writes and reads."""
    return frozenset(b.name for b in kernel.buffers if b.role == "scan")


def is_parallel(stmt: Stmt | None) -> TypeGuard[For]:
    """Whether it is a loop whose iterations are independent of each other."""
    return isinstance(stmt, For) and stmt.kind == "parallel"


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, those in loops too, in order."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For):
            yield from statements(stmt.body)


def counted(body: tuple[Stmt, ...], trips: int = 1) -> Iterator[tuple[Stmt, int]]:
    """Every statement with the number of times that it runs."""
    for stmt in body:
        yield stmt, trips
        if isinstance(stmt, For):
            yield from counted(stmt.body, trips * stmt.trips)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that one statement itself evaluates."""
    if isinstance(stmt, (Let, Accum)):
        return (stmt.value,)
    if isinstance(stmt, Assign):
        return stmt.values
    if isinstance(stmt, Store):
        return (*stmt.indices, stmt.value, *((stmt.guard,) if stmt.guard is not None else ()))
    if isinstance(stmt, For):
        return tuple(e for e in (stmt.first, stmt.end) if e is not None)
    return ()


def variables_read(body: tuple[Stmt, ...]) -> set[str]:
    """Names of the variables that statements and those inside them read."""
    return {name for s in statements(body) for x in expressions(s) for name in x.free}


def buffers_read(body: tuple[Stmt, ...]) -> set[str]:
    """Names of the buffers that statements and those inside them load from."""
    return {e.value for stmt in statements(body) for x in expressions(stmt)
            for e in walk(x) if e.op == "load"}


def read_by(kernel: Kernel) -> set[str]:
    """Names of the buffers that a kernel loads from, or flags in."""
    flagging = () if kernel.flagging is None else (kernel.flagging,)
    return buffers_read((*kernel.body, *flagging)) | {s.buffer for s in flagging}


def mutated(stmt: Stmt) -> tuple[Expr, ...]:
    """The variables whose values one statement itself changes."""
    return (stmt.var,) if isinstance(stmt, Accum) else (
        stmt.vars if isinstance(stmt, Assign) else ())


def carries(loop: For) -> bool:
    """Whether each iteration needs the one before it: for variables, or for what that stored."""
    if any(isinstance(s, Assign) for s in loop.body):
        return True
    if loop.kind != "loop":
        return False
    stored = {s.buffer for s in statements(loop.body) if isinstance(s, Store)}
    return bool(stored) and not stored.isdisjoint(buffers_read(loop.body))
