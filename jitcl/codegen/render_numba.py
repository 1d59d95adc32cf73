"""Kernel IR -> Numba source over the intrinsics of `jitcl.devices.cpu.vector`.

The outermost parallel loops are split among threads by index, so that results do not depend on their number; the
innermost loop is left whole for LLVM to vectorise.
"""

from __future__ import annotations

import builtins
import keyword
import math

from jitcl.codegen.render import flat, render
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, For, Kernel, Let, Stmt, Store

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "eq": "==", "ne": "!="}
_FLOATS = ("f32", "f64")
MIN_PIECES = 8          # fewer independent pieces than this are not worth splitting by whole rows


def public(name: str) -> str:
    """A scalar operation's name in kernel text: `max_`, where Python owns `max`."""
    return name + "_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


class NumbaRenderer:
    """Expressions and statements of one kernel as lines of Numba source."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.shapes = {b.name: b.shape for b in kernel.buffers}

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
        if x.op in _INFIX and (kind in _FLOATS or (kind == "index" and x.op != "div")):
            return f"{self.operand(x.args[0])} {_INFIX[x.op]} {self.operand(x.args[1])}"
        name = x.op
        if kind == "index" and name in ("floordiv", "mod") and E.bounds(x.args[0])[0] >= 0:
            name = "div" if name == "floordiv" else "fmod"      # no fix-up for negative operands needed
        return f"{public(name)}({', '.join(self.expr(a) for a in x.args)})"

    def operand(self, x: Expr) -> str:
        text = self.expr(x)
        infix = x.op in _INFIX and " " in text and not text.endswith(")") or (x.guarded and x.op == "load")
        return f"({text})" if infix or (x.op in _INFIX and " " in text) else text

    def literal(self, x: Expr) -> str:
        if x.dtype == "index":
            return str(x.value)
        if x.dtype == "bool":
            return str(bool(x.value))
        value = repr(x.value)
        if isinstance(x.value, float):
            value = {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(value, value)
        kind = {"f16": "f32", "bf16": "f32"}.get(x.dtype, x.dtype)
        return f"{kind}({value})"

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
            return [f"{pad}for {s.var.value} in range({s.extent}):", *self.block(s.body, indent + 1)]
        if isinstance(s, Let):
            return [f"{pad}{s.var.value} = {self.expr(s.value)}"]
        if isinstance(s, Accum):
            float_sum = s.combine in ("add", "mul") and s.var.dtype in _FLOATS
            name = f"sum_{s.combine}" if float_sum else public(s.combine)
            return [f"{pad}{s.var.value} = {name}({s.var.value}, {self.expr(s.value)})"]
        if isinstance(s, Store):
            return self.store(s, pad)
        raise JitclError(f"the CPU renderer has no form for a {type(s).__name__} statement")

    def store(self, s: Store, pad: str) -> list[str]:
        value = s.value.args[0] if s.value.op == "cast" and s.value.dtype in ("f16", "bf16") else s.value
        at = self.expr(flat(self.shapes[s.buffer], s.indices))
        line = f"store({s.buffer}, {at}, {self.expr(value)})"
        if s.guard is None:
            return [pad + line]
        return [f"{pad}if {self.expr(s.guard)}:", f"{pad}    {line}"]

    def block(self, body: tuple[Stmt, ...], indent: int) -> list[str]:
        return [line for s in body for line in self.stmt(s, indent)] or ["    " * indent + "pass"]

    # ---- threads

    def body(self) -> list[str]:
        """The kernel's statements with the outer parallel loops split among threads."""
        lines = []
        stmts = self.kernel.body
        while len(stmts) > 1 and not isinstance(stmts[0], For):
            lines += self.stmt(stmts[0], 1)
            stmts = stmts[1:]
        if len(stmts) != 1 or not isinstance(stmts[0], For) or stmts[0].kind != "parallel":
            if any(isinstance(s, For) and s.kind == "parallel" for s in stmts[-1:]):
                for s in stmts[:-1]:
                    lines += self.stmt(s, 1)
                return lines + self.split(stmts[-1])  # type: ignore[arg-type]
            return [*lines, "    if tid == 0:", *self.block(stmts, 2)]
        return lines + self.split(stmts[0])

    def split(self, loop: For) -> list[str]:
        nest = [loop]
        while len(nest[-1].body) == 1 and isinstance(nest[-1].body[0], For) and nest[-1].body[0].kind == "parallel":
            nest.append(nest[-1].body[0])
        outer = nest[:-1] if len(nest) > 1 and _is_leaf(nest[-1]) else nest
        if math.prod(f.extent for f in outer) < MIN_PIECES:
            widest = max(range(len(nest)), key=lambda k: nest[k].extent)
            return self.split_one(nest, widest)
        return self.split_many(outer)

    def split_one(self, nest: list[For], k: int) -> list[str]:
        """Split one loop of the nest; the others stay as they are."""
        lines = [f"    lo = {nest[k].extent} * tid // nthreads", f"    hi = {nest[k].extent} * (tid + 1) // nthreads"]
        for depth, f in enumerate(nest):
            span = "lo, hi" if depth == k else str(f.extent)
            lines.append("    " * (depth + 1) + f"for {f.var.value} in range({span}):")
        return lines + self.block(nest[-1].body, len(nest) + 1)

    def split_many(self, nest: list[For]) -> list[str]:
        """Split the collapsed iterations of all loops of the nest."""
        total = math.prod(f.extent for f in nest)
        lines = [f"    for p in range({total} * tid // nthreads, {total} * (tid + 1) // nthreads):"]
        rest = total
        for depth, f in enumerate(nest):
            rest //= f.extent
            at = "p" if rest == 1 else f"p // {rest}"
            lines.append(f"        {f.var.value} = {at if depth == 0 else f'({at}) % {f.extent}'}")
        return lines + self.block(nest[-1].body, 2)


def _is_leaf(loop: For) -> bool:
    """An innermost loop without loops inside is what LLVM vectorises."""
    return not any(isinstance(s, For) for s in loop.body)


def render_kernel(kernel: Kernel, entry: str) -> str:
    """The kernel as a Numba module's text with one function `entry(args, tid, nthreads)`."""
    renderer = NumbaRenderer(kernel)
    return render("loops/numba.py.j2", entry=entry, buffers=kernel.buffers, lines=renderer.body())
