"""Kernel IR -> Numba source over the intrinsics of `jitcl.devices.cpu.vector`.

The outermost parallel loops are split among threads by index, so that results do not depend on
their number; the innermost loop is left whole for LLVM to vectorise.
"""

from __future__ import annotations

import builtins
import keyword
import math

from jitcl import dtypes
from jitcl.codegen.flags import as_text, text_params
from jitcl.codegen.loops import linear_in, nest_of
from jitcl.codegen.render import SizesWritten, render
from jitcl.codegen.transpose import TILE, turned
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Accum, Assign, Buffer, For, Kernel, Let, Stmt, Store, is_parallel
from jitcl.ir.scalar import reinterprets
from jitcl.ir.sizes import at_least_always, is_size, same

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">=", "eq": "==", "ne": "!="}
_FLOATS = ("f32", "f64")
_ORDERED = ("lt", "le", "gt", "ge")
MIN_PIECES = 8          # fewer independent pieces than this are not worth splitting by whole rows
PIECES = 64             # as many are enough for the threads
VECTOR = 16             # elements that innermost loops should run over without interruption


def public(name: str) -> str:
    """A scalar operation's name in kernel text: `max_`, where Python owns `max`."""
    return name + "_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


class NumbaRenderer:
    """Expressions and statements of one kernel as lines of Numba source."""

    def __init__(self, kernel: Kernel, scratch: tuple[Buffer, ...] = (),
                 sizes: SizesWritten | None = None) -> None:
        self.kernel = kernel
        self.shapes = {b.name: b.shape for b in (*kernel.buffers, *scratch)}
        self.rows, self.scratch = scratch, {b.name for b in scratch}
        self.sizes = SizesWritten() if sizes is None else sizes

    # ---- expressions

    def expr(self, x: Expr) -> str:
        """Source of a scalar expression; operands of infix operators are parenthesised."""
        if x.op == "const":
            return self.literal(x)
        if x.op == "var":
            return str(x.value)
        if x.op == "load":
            return self.load(x)
        if x.op == "cast":
            return f"to_{'i64' if x.dtype == 'index' else x.dtype}({self.expr(x.args[0])})"
        if x.op == "select" and x.dtype == "index":
            return f"select({', '.join(self.expr(a) for a in x.args)})"
        kind = x.args[0].dtype
        if reinterprets(x.op):
            return self.reinterpreted(x.args[0], x.dtype)
        if x.op in ("add", "sub") and kind in _FLOATS and any(a.op == "mul" for a in x.args):
            return self.fma(x)
        if x.op in _INFIX and (kind in _FLOATS or (kind == "index" and x.op != "div")):
            return f"{self.operand(x.args[0])} {_INFIX[x.op]} {self.operand(x.args[1])}"
        name = x.op
        if kind == "index" and name in ("floordiv", "mod") and (
                at_least_always(E.bounds(x.args[0])[0], 0)):
            name = "div" if name == "floordiv" else "fmod"      # no operand is negative
        return f"{public(name)}({', '.join(self.expr(a) for a in x.args)})"

    def reinterpreted(self, x: Expr, to: str) -> str:
        """The bits of a value as another type; those of an element come as they lie in memory."""
        if x.op == "load" and x.guard is None and only_stored(x.dtype):
            at = self.expr(flat(self.shapes[x.value], x.indices))
            unsigned = f"u{8 * dtypes.itemsize(x.dtype)}"
            return f"as_type(load(bits({x.value}), {at}), '{unsigned}', '{to}')"
        return f"as_type({self.expr(x)}, '{x.dtype}', '{to}')"

    def fma(self, x: Expr) -> str:
        """a * b + c, rounded once. LLVM, left to itself, fuses vectors and scalars differently."""
        product, other = x.args if x.args[0].op == "mul" else x.args[::-1]
        a, b = product.args
        if x.op == "sub":
            if product is x.args[0]:
                other = E.call("neg", other)
            else:
                a = E.call("neg", a)
        return f"fma({self.expr(a)}, {self.expr(b)}, {self.expr(other)})"

    def operand(self, x: Expr) -> str:
        return f"({self.expr(x)})" if x.op in _INFIX else self.expr(x)

    def literal(self, x: Expr) -> str:
        if x.dtype == "index":
            return self.sizes.write(x.value)
        if x.dtype == "bool":
            return str(bool(x.value))
        value = self.sizes.write(x.value) if is_size(x.value) else repr(x.value)
        return f"{dtypes.compute(x.dtype)}({value})"

    def load(self, x: Expr) -> str:
        at = self.expr(flat(self.shapes[x.value], x.indices))
        text = f"load({x.value}, {at})"
        if x.guard is None:
            return text
        assert x.other is not None
        return f"(load({x.value}, {at}) if {self.expr(x.guard)} else {self.literal(x.other)})"

    # ---- statements

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        pad = "    " * indent
        if isinstance(s, For):
            return self.loop(s, indent)
        if isinstance(s, Let):
            return [f"{pad}{s.var.value} = {self.expr(s.value)}"]
        if isinstance(s, Accum):
            return [f"{pad}{s.var.value} = {self.combined(s)}"]
        if isinstance(s, Assign):
            names = ", ".join(str(v.value) for v in s.vars)
            return [f"{pad}{names} = {', '.join(self.expr(e) for e in s.values)}"]
        if isinstance(s, Store):
            return self.store(s, pad)
        raise JitclError(f"the CPU renderer has no form for a {type(s).__name__} statement")

    def combined(self, s: Accum) -> str:
        """An accumulator and one more term; of floats in a form that LLVM knows as a reduction."""
        if s.var.dtype in _FLOATS and s.combine == "add" and s.value.op == "mul":
            return f"sum_fma({', '.join(self.expr(a) for a in (*s.value.args, s.var))})"
        name = f"sum_{s.combine}" if s.var.dtype in _FLOATS else public(s.combine)
        return f"{name}({s.var.value}, {self.expr(s.value)})"

    def loop(self, s: For, indent: int) -> list[str]:
        """A loop; a guard that all its statements share becomes its range, as far as it is one."""
        pad = "    " * indent
        tile = turned(s)
        if tile is not None and set(tile) <= self.scratch:
            return [f"{pad}transpose({tile[0]}, {tile[1]}, {TILE})"]
        guard = common_guard(s)
        if guard is None:
            head = f"{pad}for {s.var.value} in range({self.sizes.write(s.extent)}):"
            return [head, *self.block(s.body, indent + 1)]
        low, high, outside, rest = guard_range(guard, s.var)
        stores = (b for b in s.body if isinstance(b, Store))
        body = tuple(Store(b.buffer, b.indices, b.value, rest) for b in stores)
        lines = []
        if outside is not None:
            lines.append(f"{pad}if {self.expr(outside)}:")
            indent += 1
        span = f"{self.expr(low)}, {self.expr(high)}"
        lines.append("    " * indent + f"for {s.var.value} in range({span}):")
        return lines + self.block(body, indent + 1)

    def store(self, s: Store, pad: str) -> list[str]:
        at = self.expr(flat(self.shapes[s.buffer], s.indices))
        line = f"store({s.buffer}, {at}, {self.expr(stored_value(s.value))})"
        bits = bits_of(s.value)
        if bits is not None:
            unsigned = f"u{8 * dtypes.itemsize(s.value.dtype)}"
            line = f"store(bits({s.buffer}), {at}, {self.reinterpreted(bits, unsigned)})"
        lines = [line]
        if self.kernel.flags(s.buffer):
            lines = [f"stored = {self.expr(looked_at(s.value))}",
                     f"store({s.buffer}, {at}, stored)", "keep(stored)"]
        if s.guard is None:
            return [pad + line for line in lines]
        return [f"{pad}if {self.expr(s.guard)}:", *(f"{pad}    {line}" for line in lines)]

    def block(self, body: tuple[Stmt, ...], indent: int) -> list[str]:
        return [line for s in body for line in self.stmt(s, indent)] or ["    " * indent + "pass"]

    # ---- threads

    def body(self) -> list[str]:
        """The kernel's statements, each outermost parallel nest split among the threads.

        What stands before a parallel nest (a reduction over everything), every thread computes.
        """
        lines: list[str] = []
        stmts = self.kernel.body
        last = max((k for k, s in enumerate(stmts) if is_parallel(s)), default=-1)
        for s in stmts[:last + 1]:
            if is_parallel(s):
                lines += self.split(s)
            elif isinstance(s, Store):
                lines += ["    if tid == 0:", *self.stmt(s, 2)]
            else:
                lines += self.stmt(s, 1)
        if last + 1 < len(stmts):
            lines += ["    if tid == 0:", *self.block(stmts[last + 1:], 2)]
        if self.kernel.flagging is not None:
            y = next(b for b in self.kernel.buffers if self.kernel.flags(b.name))
            lines += flag_lines(self.kernel.flagging, y)
        return lines

    def split(self, loop: For) -> list[str]:
        """Split the outermost loops that are pieces enough.

        A loop that LLVM vectorises is split only if there is no other.
        """
        nest = nest_of(loop, "parallel")
        outer = nest[:outer_loops(nest)]
        depth = 1
        while depth < len(outer) and math.prod(f.extent for f in outer[:depth]) < PIECES:
            depth += 1
        if math.prod(f.extent for f in outer[:depth]) < MIN_PIECES:
            widest = max(range(len(nest)), key=lambda k: nest[k].extent)
            return self.split_one(nest, widest)
        return self.split_many(outer[:depth])

    def split_one(self, nest: list[For], k: int) -> list[str]:
        """Split one loop of the nest; the others stay as they are."""
        lines = []
        for depth, f in enumerate(nest):
            span = self.span(f.extent) if depth == k else self.sizes.write(f.extent)
            lines.append("    " * (depth + 1) + f"for {f.var.value} in range({span}):")
        return lines + self.block(nest[-1].body, len(nest) + 1)

    def split_many(self, nest: list[For]) -> list[str]:
        """Split the collapsed iterations of all loops of the nest."""
        if len(nest) == 1:
            return self.split_one(nest, 0)
        total = math.prod(f.extent for f in nest)
        lines = [f"    for p in range({self.span(total)}):"]
        for depth, f in enumerate(nest):
            rest = math.prod(f.extent for f in nest[depth + 1:])
            at = "p" if same(rest, 1) else f"p // {self.sizes.write(rest)}"
            if depth > 0:
                at = f"({at}) % {self.sizes.write(f.extent)}"
            lines.append(f"        {f.var.value} = {at}")
        return lines + self.block(nest[-1].body, 2)

    def span(self, extent: int) -> str:
        """This thread's part of 0 .. extent."""
        text = self.sizes.write(extent)
        return f"share({text}, tid, nthreads), share({text}, tid + 1, nthreads)"


def outer_loops(nest: list[For]) -> int:
    """How many loops of a nest threads may take apart: not those that LLVM makes vectors of."""
    if len(nest) == 1 or any(isinstance(s, For) for s in nest[-1].body):
        return len(nest)
    outer, inside = len(nest) - 1, nest[-1].extent
    while outer > 1 and inside < VECTOR:
        outer, inside = outer - 1, inside * nest[outer - 1].extent
    return outer


def only_stored(dtype: str) -> bool:
    """Whether values of a type are computed in another."""
    return dtypes.compute(dtype) != dtype


def bits_of(value: Expr) -> Expr | None:
    """What has the bits that a store of `value` writes, where no arithmetic lies between: an
    element of bfloat16 or a low type that is copied, or what is reinterpreted as one. NaNs keep
    their bits so, and copying bytes is cheaper than what they stand for."""
    if value.dtype != "bf16" and value.dtype not in dtypes.LOW:
        return None
    if value.op == "load" and value.guard is None:
        return value
    return value.args[0] if reinterprets(value.op) else None


def stored_value(value: Expr) -> Expr:
    """What to give to a store, which itself rounds: a value before its cast to a type that is only
    stored."""
    return value.args[0] if value.op == "cast" and only_stored(value.dtype) else value


def flag_lines(flagging: Store, y: Buffer) -> list[str]:
    """The end of a kernel that has kept the magnitudes of what it stores in y."""
    flags = Kernel("flags", (Buffer(flagging.buffer, "i32", (1,), "out"),), ())
    lines = NumbaRenderer(flags).store(as_text(flagging), " " * 8)
    return [f"    if kept_overflows('{y.dtype}'):", *lines]


def looked_at(value: Expr) -> Expr:
    """What a store of `value` rounds, as f32."""
    return E.cast(stored_value(value), "f32")


# ---- guards that are ranges

def common_guard(loop: For) -> Expr | None:
    """The guard of a loop's statements, where all are stores under one guard."""
    guards = {s.guard if isinstance(s, Store) else None for s in loop.body}
    return guards.pop() if len(guards) == 1 else None


def guard_range(guard: Expr, var: Expr) -> tuple[Expr, Expr, Expr | None, Expr | None]:
    """(low, high, outside, rest): guard = low <= var < high and outside and rest.

    Only `rest` depends on var; None where there is nothing to test.
    """
    assert var.extent is not None
    low, high = E.index(0), E.index(var.extent)
    outside: Expr | None = None
    rest: Expr | None = None
    for part in _conjuncts(guard):
        if var.value not in part.free:
            outside = part if outside is None else outside & part
            continue
        form = linear_in(part.args[0] - part.args[1], var) if part.op in _ORDERED and (
            part.args[0].dtype == "index") else None
        if form is None:
            rest = part if rest is None else rest & part
            continue
        k, c = form                          # k * var + c  op  0
        if part.op in ("lt", "le"):
            k, c = -k, -c
        if part.op in ("lt", "gt"):
            c = c - 1                        # k * var + c >= 0
        if k > 0:
            low = E.call("max", low, E.call("floordiv", k - 1 - c, E.index(k)))
        else:
            high = E.call("min", high, E.call("floordiv", c, E.index(-k)) + 1)
    return low, high, outside, rest


def _conjuncts(x: Expr) -> list[Expr]:
    return [part for a in x.args for part in _conjuncts(a)] if x.op == "and" else [x]


def render_kernel(kernel: Kernel, entry: str, scratch: tuple[Buffer, ...] = (),
                  renderer: type[NumbaRenderer] = NumbaRenderer) -> str:
    """The kernel as a Numba module's text with one function `entry(args, tid, nthreads)`.

    `scratch`: memory of each thread's own that the kernel writes and reads, beside its buffers.
    """
    return kernel_text(renderer(kernel, scratch), entry)


def kernel_text(r: NumbaRenderer, entry: str) -> str:
    """The text of a renderer's kernel."""
    lines = r.body()
    return render("loops/numba.py.j2", entry=entry, buffers=r.kernel.buffers, scratch=r.rows,
                  lines=lines, sizes=[*r.sizes.params(), *text_params(r.kernel)])
