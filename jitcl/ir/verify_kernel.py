"""Checks of kernels. A `VerifyError` names the statement, what was got and wanted.

    kernel 'mlp_0': 'y[i, j] = acc0': a value of type f32 is stored, wanted f16 as buffer 'y' has it
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NoReturn, get_args

import numpy as np

from jitcl import dtypes
from jitcl.errors import VerifyError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.interpreter import index_values
from jitcl.ir.kernel import (
    ARRAYS,
    OPERANDS,
    OVERFLOW,
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
    carries,
    expressions,
    mutated,
    statements,
)
from jitcl.ir.printer import expr_text, statement_text
from jitcl.ir.scalar import COMBINES, SCALARS, reinterprets, result_dtype


def verify_kernel(kernel: Kernel) -> None:
    """VerifyError unless names are declared, types agree and no index is known to be outside."""
    _KernelCheck(kernel).run()


class _KernelCheck:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers: dict[str, Buffer] = {}
        self.scope: dict[str, Expr] = {}                 # visible variables
        self.loops: list[For] = []                       # open loops, outermost first
        self.depth: dict[str, int] = {}                  # variable -> open loops at declaration
        self.known: dict[str, Expr] = {}                 # index variable of a let -> value
        self.checked: set[Expr] = set()                  # expressions found good in an open scope
        self.written: set[str] = set()                   # buffers that were stored to
        self.stmt: Stmt | None = None

    def fail(self, message: str) -> NoReturn:
        where = ""
        if self.stmt is not None:
            stored = {b.name: b.dtype for b in (*self.kernel.buffers, *self.kernel.arrays)}
            where = f"'{statement_text(self.stmt, stored)}': "
        raise VerifyError(f"kernel '{self.kernel.name}': {where}{message}")

    def run(self) -> None:
        for b in (*self.kernel.buffers, *self.kernel.arrays):
            if b.name in self.buffers:
                self.fail(f"two buffers are named '{b.name}'")
            roles = ARRAYS if b in self.kernel.arrays else OPERANDS
            if b.dtype not in dtypes.STORED or b.role not in roles:
                self.fail(f"buffer '{b.name}' is {b.role} {b.dtype}, wanted "
                          f"{', '.join(roles[:-1])} or {roles[-1]} and one of "
                          f"{', '.join(dtypes.STORED)}")
            if any(not isinstance(d, int) or d < 0 for d in b.shape):
                self.fail(f"buffer '{b.name}' has shape {b.shape}, wanted ints >= 0")
            self.buffers[b.name] = b
        if self.kernel.flagging is not None:
            self.flagging(self.kernel.flagging)
        self.block(self.kernel.body)
        self.stmt = None
        flagging = () if self.kernel.flagging is None else (self.kernel.flagging,)
        stored = {s.buffer for s in statements((*self.kernel.body, *flagging))
                  if isinstance(s, Store)}
        for b in self.kernel.buffers:
            if b.role != "in" and b.name not in stored:
                self.fail(f"out buffer '{b.name}' is never stored to")

    # ---- statements

    def flagging(self, stmt: Store) -> None:
        """What is done where a result is not finite: a constant, so that no order can show."""
        self.stmt = stmt
        for e in expressions(stmt):
            self.expression(e)
        self.store(stmt)
        constant = all(e.is_const for e in (stmt.value, *stmt.indices))
        if not constant or stmt.guard is not None:
            self.fail("several iterations flag at once: wanted constants, and no guard")
        for s in statements(self.kernel.body):
            self.stmt = s
            if isinstance(s, Store) and (s.buffer == stmt.buffer or self.kernel.flags(
                    s.buffer) and self.buffers[s.buffer].dtype not in OVERFLOW):
                self.fail(f"is flagged in '{stmt.buffer}': wanted a store to another buffer, of "
                          f"{' or '.join(OVERFLOW)}")

    def block(self, body: tuple[Stmt, ...]) -> None:
        declared: list[str] = []
        mutable = {v.value for s in statements(body) for v in mutated(s)}
        for stmt in body:
            self.stmt = stmt
            for e in expressions(stmt):
                self.expression(e)
            if isinstance(stmt, For):
                self.loop(stmt)
            elif isinstance(stmt, Let):
                self.let(stmt)
                declared.append(stmt.var.value)
                if stmt.var.dtype == "index" and stmt.var.value not in mutable:
                    self.known[stmt.var.value] = stmt.value
            elif isinstance(stmt, Accum):
                self.accum(stmt)
            elif isinstance(stmt, Assign):
                self.assign(stmt)
                if stmt is not body[-1]:
                    self.fail("a loop's assignment is its last statement: others would read "
                              "some values of this iteration and some of the next")
            elif isinstance(stmt, Store):
                self.store(stmt)
            elif not isinstance(stmt, Barrier):
                self.fail(f"{stmt!r} is no statement")
        for name in declared:
            self.forget(name)

    def declare(self, var: Expr) -> None:
        if var.op != "var" or not isinstance(var.value, str):
            self.fail(f"declares {var!r}, wanted a variable")
        if var.value in self.scope or var.value in self.buffers:
            self.fail(f"'{var.value}' is declared already")
        self.scope[var.value] = var
        self.depth[var.value] = len(self.loops)

    def forget(self, name: str) -> None:
        del self.scope[name]
        self.known.pop(name, None)
        self.checked.clear()

    def loop(self, loop: For) -> None:
        if loop.kind not in get_args(LoopKind):
            self.fail(f"loop kind '{loop.kind}', wanted one of {', '.join(get_args(LoopKind))}")
        if loop.var.dtype != "index" or not isinstance(loop.var.extent, int) or loop.var.extent < 0:
            self.fail(f"counts {loop.var.dtype} to {loop.var.extent}, wanted index and an int >= 0")
        if not loop.plain and (loop.kind != "loop" or loop.step < 1):
            self.fail("only sequential loops begin elsewhere than at 0, end before their extent or "
                      "go by another step than 1, and all go up")
        for at, verb in ((loop.first, "begins"), (loop.end, "ends")):
            if at is not None and at.dtype != "index":
                self.fail(f"{verb} at a value of type {at.dtype}, wanted index")
        self.loops.append(loop)
        self.declare(loop.var)
        self.block(loop.body)
        self.forget(loop.var.value)
        self.loops.pop()

    def let(self, stmt: Let) -> None:
        if stmt.var.extent is not None:
            self.fail(f"'{stmt.var.value}' has extent {stmt.var.extent}: only loops have one")
        if stmt.var.dtype != stmt.value.dtype:
            self.fail(f"a value of type {stmt.value.dtype} is given, wanted {stmt.var.dtype}")
        self.declare(stmt.var)

    def accum(self, stmt: Accum) -> None:
        self.variable(stmt.var)
        if stmt.var.extent is not None:
            self.fail(f"'{stmt.var.value}' counts a loop, wanted a variable that let declares")
        dtype = stmt.var.dtype
        if stmt.combine not in COMBINES:
            self.fail(f"combine '{stmt.combine}', wanted one of {', '.join(COMBINES)}")
        if (stmt.combine in ("and", "or")) > (dtype == "bool") or (
                stmt.combine in ("add", "mul") and dtype == "bool"):
            self.fail(f"combine '{stmt.combine}' on {dtype}: wanted and, or for bool, else numbers")
        if stmt.value.dtype != dtype:
            self.fail(f"a value of type {stmt.value.dtype} is combined, wanted {dtype}")
        for loop in self.loops[self.depth[stmt.var.value]:]:
            self.sequential(stmt.var, loop)
            if carries(loop):
                self.fail(f"'{stmt.var.value}' is accumulated in 'for {loop.var.value}', which "
                          "carries values: declare it inside, or carry it, too")

    def sequential(self, var: Expr, loop: For) -> None:
        """Fails where a variable from outside changes in iterations that run at once."""
        if loop.kind in ("item", "group", "lane", "parallel"):
            self.fail(f"'{var.value}' is shared by the iterations of "
                      f"'for {loop.var.value} @{loop.kind}', which run at once: "
                      "declare it inside, or make the loop sequential")

    def assign(self, stmt: Assign) -> None:
        names = [v.value for v in stmt.vars]
        if not names or len(set(names)) != len(names) or len(names) != len(stmt.values):
            self.fail(f"{len(stmt.values)} values for {', '.join(map(str, names)) or 'nothing'}: "
                      "wanted one for each of some variables that differ")
        if not self.loops:
            self.fail("stands in no loop: only loops carry values")
        for var, value in zip(stmt.vars, stmt.values):
            self.variable(var)
            if var.extent is not None or self.depth[var.value] != len(self.loops) - 1:
                self.fail(f"'{var.value}' is not declared by a let beside the loop that carries it")
            if value.dtype != var.dtype:
                self.fail(f"a value of type {value.dtype} is given to '{var.value}', "
                          f"wanted {var.dtype}")
            self.sequential(var, self.loops[-1])
        if self.loops[-1].kind == "vec":
            self.fail("lanes can't carry values from one to the next: make the loop sequential")

    def store(self, stmt: Store) -> None:
        buffer = self.buffers.get(stmt.buffer)
        if buffer is None or buffer.role == "in":
            self.fail(f"'{stmt.buffer}' is {'no' if buffer is None else 'not an out'} buffer")
        self.written.add(stmt.buffer)
        if stmt.value.dtype != buffer.dtype:
            self.fail(f"a value of type {stmt.value.dtype} is stored, wanted {buffer.dtype} as "
                      f"buffer '{buffer.name}' has it")
        if stmt.guard is not None and stmt.guard.dtype != "bool":
            self.fail(f"the guard is {stmt.guard.dtype}, wanted bool")
        self.place(buffer, stmt.indices, stmt.guard is not None)

    # ---- expressions

    def expression(self, x: Expr) -> None:
        for e in E.walk(x):
            if e in self.checked:
                continue
            self.one(e)
            if not isinstance(self.stmt, Store) or self.stmt.guard is None:
                self.checked.add(e)          # what a guard makes good may be wrong elsewhere

    def one(self, e: Expr) -> None:
        if e.dtype not in dtypes.ALL:
            self.fail(f"'{expr_text(e)}' has type '{e.dtype}', wanted {', '.join(dtypes.ALL)}")
        if e.op == "const":
            self.literal(e)
        elif e.op == "var":
            self.variable(e)
        elif e.op == "load":
            self.load(e)
        elif e.op == "cast":
            if len(e.args) != 1:
                self.fail(f"a cast has 1 operand, got {len(e.args)}")
        elif e.op in SCALARS:
            self.scalar(e)
        else:
            self.fail(f"no scalar operation '{e.op}'")

    def literal(self, e: Expr) -> None:
        want = float if dtypes.is_float(e.dtype) else bool if e.dtype == "bool" else int
        if type(e.value) is not want:
            self.fail(f"the literal {e.value!r} of type {e.dtype} is a Python "
                      f"{type(e.value).__name__}, wanted {want.__name__}: use expr.const")
        if want is int:
            low, high = dtypes.limits(e.dtype)
            if not low <= e.value <= high:
                self.fail(f"the literal {e.value} does not fit {e.dtype} ({low} to {high})")

    def variable(self, e: Expr) -> None:
        found = self.scope.get(e.value)
        if found is None:
            self.fail(f"'{e.value}' is not declared here")
        if found is not e:
            self.fail(f"'{e.value}' is read as {e.dtype} with extent {e.extent}, "
                      f"declared as {found.dtype} with extent {found.extent}")

    def load(self, e: Expr) -> None:
        buffer = self.buffers.get(e.value)
        if buffer is None:
            self.fail(f"'{e.value}' is no buffer")
        if buffer.role == "out":
            self.fail(f"out buffer '{buffer.name}' is read: stores are not visible to all at once")
        if buffer.role not in ("in", "out") and buffer.name not in self.written:
            self.fail(f"{buffer.role} buffer '{buffer.name}' is read before anything is stored to "
                      "it")
        if e.dtype != buffer.dtype:
            self.fail(f"'{expr_text(e)}' is read as {e.dtype}, the buffer is {buffer.dtype}")
        if e.guard is not None and e.guard.dtype != "bool":
            self.fail(f"the guard of '{expr_text(e)}' is {e.guard.dtype}, wanted bool")
        if e.other is not None and e.other.dtype != buffer.dtype:
            self.fail(f"'{expr_text(e)}' gives {e.other.dtype} else, wanted {buffer.dtype}")
        self.place(buffer, e.indices, e.guarded)

    def scalar(self, e: Expr) -> None:
        scalar, text = SCALARS[e.op], expr_text(e)
        if len(e.args) != scalar.arity:
            self.fail(f"'{e.op}' takes {scalar.arity} operands, got {len(e.args)}")
        values = e.args[1:] if e.op == "select" else e.args
        if e.op == "select" and e.args[0].dtype != "bool":
            self.fail(f"the condition of '{text}' is {e.args[0].dtype}, wanted bool")
        dtype = values[0].dtype
        if any(v.dtype != dtype for v in values):
            self.fail(f"the operands of '{text}' have types {', '.join(v.dtype for v in values)}; "
                      "they must agree")
        result = result_dtype(e.op, dtype)
        if e.dtype != result:
            self.fail(f"'{text}' has type {e.dtype}, wanted {result}")
        wanted = _takes(e.op, dtype)
        if wanted:
            self.fail(f"'{text}': {e.op} of {dtype}, wanted {wanted}")

    # ---- places in buffers

    def place(self, buffer: Buffer, indices: tuple[Expr, ...], guarded: bool) -> None:
        if len(indices) != len(buffer.shape):
            self.fail(f"'{buffer.name}' has {len(buffer.shape)} axes {buffer.shape}, "
                      f"indexed with {len(indices)}")
        for axis, (i, d) in enumerate(zip(indices, buffer.shape)):
            if i.dtype != "index":
                self.fail(f"index {axis} of '{buffer.name}', '{expr_text(i)}', is {i.dtype}: "
                          "wanted index, cast it")
            if not guarded and not any(loop.extent == 0 for loop in self.loops):
                self.inside(buffer, axis, i, d)

    def inside(self, buffer: Buffer, axis: int, i: Expr, d: int) -> None:
        """Fails where some iteration is known to leave the buffer."""
        low, high = E.bounds(i)
        if 0 <= low and high < d:
            return
        found = self.outlier(i, d)
        if found is not None:
            at, values = found
            where = ", ".join(f"{k} = {v}" for k, v in values.items())
            self.fail(f"index {axis} of '{buffer.name}', '{expr_text(i)}', is {at}"
                      f"{' at ' + where if where else ''}, outside 0..{d - 1}: guard the access")

    def outlier(self, i: Expr, d: int) -> tuple[int, dict[str, int]] | None:
        """An iteration of the loops where an index is outside 0..d-1, if one is found by trying.

        Tried is every combination of the loops' values, or of their ends and middles if these are
        too many; so an error is real, and what depends on data is left to the run.
        """
        resolved = self.resolve(i)
        if resolved is None:
            return None
        running = [self.resolve(x) for x in self.conditions()]
        if None in running:
            return None
        held = [x for x in running if x is not None]
        names = sorted({name for x in (resolved, *held) for name in x.free})
        loops = [next(f for f in self.loops if f.var.value == n) for n in names]
        few = math.prod(f.extent for f in loops) <= 1 << 16
        axes = []
        for f in loops:
            step = f.step if f.first is None else 1
            last = max(0, f.extent - 1) // step
            turns = np.arange(last + 1) if few else np.array(
                sorted({0, 1, last // 2, last - 1, last})).clip(0, last)
            axes.append(turns * step)
        if math.prod(len(a) for a in axes) > 1 << 18:
            return None
        grid = dict(zip(names, np.meshgrid(*axes, indexing="ij")))
        at = index_values(resolved, grid)
        outside = (at < 0) | (at >= d)
        for x in held:
            outside = outside & index_values(x, grid)
        bad = np.argwhere(outside)
        if not len(bad):
            return None
        first = tuple(bad[0])
        return int(at[first]), {n: int(grid[n][first]) for n in names}

    def conditions(self) -> Iterator[Expr]:
        """What holds where the statement does anything."""
        for loop in self.loops:
            if loop.first is not None:
                yield E.make("ge", (loop.var, loop.first), "bool")
                gone = E.make("sub", (loop.var, loop.first), "index")
                turn = E.make("mod", (gone, E.index(loop.step)), "index")
                yield E.make("eq", (turn, E.index(0)), "bool")
            if loop.end is not None:
                yield E.make("lt", (loop.var, loop.end), "bool")
        if isinstance(self.stmt, Store) and self.stmt.guard is not None:
            yield self.stmt.guard

    def resolve(self, i: Expr) -> Expr | None:
        """The index in terms of loop variables alone; None where it depends on data."""
        for _ in range(len(self.known) + 1):
            if any(e.op == "load" for e in E.walk(i)):
                return None
            lets = [n for n in i.free if self.scope[n].extent is None]
            if not lets:
                return i
            if any(n not in self.known for n in lets):
                return None
            i = E.exchanged(i, {self.scope[n]: self.known[n] for n in lets})
        return None


def _takes(op: str, dtype: str) -> str:
    """What a scalar operation takes instead, where it does not take `dtype`; else ""."""
    if reinterprets(op):
        width = dtypes.bits(SCALARS[op].result)
        fits = dtype != "index" and dtypes.bits(dtype) == width
        return "" if fits else f"a stored type of {width} bits"
    if dtype in dtypes.LOW and op != "select":
        return f"{dtypes.compute(dtype)}, which it is computed in: cast first"
    takes = SCALARS[op].takes
    fits = {"bool": dtype == "bool", "integers": dtypes.is_int(dtype),
            "floats": dtypes.is_float(dtype), "numbers": dtype != "bool"}.get(takes, True)
    return "" if fits else takes + ": cast first" * (takes in ("floats", "numbers"))
