"""Epilogues of OpenCL templates as vector code: neighbours along the root's last axis are lanes.

The renderer writes one statement, `y[indices] = value`, where the value is a function of the vector
variable `v`. Operands of y's shape read at y's own indices are read at y's address (`at`), operands
that do not depend on the lane are scalars, others must lie side by side along the lane. Whatever
is none of these is refused, and the template computes its epilogue in a kernel of its own.
"""

from __future__ import annotations

from jitcl.codegen.opencl_expressions import ATOM, CHOICE, LOGIC, MUL, UNARY, Text
from jitcl.codegen.render import flat
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.share import share
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Buffer, Kernel, Let, Stmt, Store, statements

_SAME = ("exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "trunc")
_FLOAT_INFIX = ("add", "sub", "mul", "div")
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGIC = {"and": "&", "or": "|"}


class NotVectorisable(JitclError):
    """The epilogue depends on the lane in a way that a vector can't express."""


class EpilogueRenderer(OpenClRenderer):
    """`lane` is spread over a vector of `width`; with a width of 1, all is plain scalar code."""

    def __init__(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...], value: Expr,
                 lane: Expr, width: int, soft_half: bool = False) -> None:
        self.y, self.lane, self.width = buffers[-1], lane, width
        body = (Store(self.y.name, indices, E.cast(value, self.y.dtype)),)
        kernel = share(Kernel("epilogue", buffers, body), addresses=False)
        super().__init__(kernel, fp64=False, soft_half=soft_half)
        store = kernel.body[-1]
        assert isinstance(store, Store)
        self.indices = store.indices             # with the names that shared parts have
        self.wide: set[str] = {lane.value, "v"} if width > 1 else set()
        for s, _ in statements(self.kernel.body):
            if isinstance(s, (Let, Accum)) and self.is_wide(s.value):
                self.wide.add(s.var.value)

    def lines(self) -> list[str]:
        """The statements; raises NotVectorisable."""
        lines: list[str] = []
        for s in reversed(self.kernel.body):     # what is read at y's address needs no index
            if not isinstance(s, Let) or s.var.value in self.named:
                lines = self.stmt(s, 1) + lines
        if self.doubles:
            raise NotVectorisable("double precision")
        return lines

    def is_wide(self, x: Expr) -> bool:
        return bool(x.free & self.wide)

    # ---- expressions

    def text(self, x: Expr) -> Text:
        return self.vector(x) if self.is_wide(x) else super().text(x)

    def vector(self, x: Expr) -> Text:
        """Source of a value that differs from lane to lane."""
        if x.op == "var" and x is not self.lane:
            self.named.add(x.value)
            return str(x.value), ATOM
        if x.op == "load":
            return self.load(x)
        if x.op == "cast":
            return self._wide_cast(x)
        kind = x.args[-1].dtype if x.args else x.dtype
        if x.op in _LOGIC:
            left, right = (self._truth_vector(a) for a in x.args)
            return f"({left} {_LOGIC[x.op]} {right})", ATOM
        if x.op == "not":
            return f"~{self.operand(x.args[0], ATOM)}", UNARY
        if kind != "f32":
            raise NotVectorisable(f"'{x.op}' of {kind}")
        return self._float_vector(x)

    def _float_vector(self, x: Expr) -> Text:
        if x.op in _COMPARE:
            return self._infix(x)
        if x.op in _FLOAT_INFIX[:3]:
            return self._infix(x)
        if x.op == "div":
            return f"{self.operand(x.args[0], MUL)} / {self.operand(x.args[1], MUL + 1)}", MUL
        if x.op == "neg":
            return f"-{self.operand(x.args[0], UNARY + 1)}", UNARY
        if x.op == "abs":
            return f"fabs({self.expr(x.args[0])})", ATOM
        if x.op in _SAME or x.op == "isnan":
            return f"{x.op}({self.expr(x.args[0])})", ATOM
        if x.op in ("max", "min"):
            return self.call_helper(f"{x.op}_f32x{self.width}", *map(self.splat, x.args))
        if x.op == "pow":
            return f"pow({', '.join(map(self.splat, x.args))})", ATOM
        if x.op == "select":
            return self._select(x)
        raise NotVectorisable(x.op)

    def _select(self, x: Expr) -> Text:
        condition, yes, no = x.args
        a, b = self.splat(yes), self.splat(no)
        if self.is_wide(condition):
            return f"select({b}, {a}, {self.expr(condition)})", ATOM
        return f"{self.operand(condition, LOGIC - 1)} ? {a} : {b}", CHOICE

    def _truth_vector(self, x: Expr) -> str:
        """A condition as a vector of ints, -1 where it holds."""
        if self.is_wide(x):
            return self.operand(x, ATOM)
        return f"(int{self.width})({self.operand(x, LOGIC - 1)} ? -1 : 0)"

    def _wide_cast(self, x: Expr) -> Text:
        source = x.args[0]
        if source.op == "load" and source.dtype == "f16" and x.dtype == "f32":
            return self.text(source)             # reading converts
        raise NotVectorisable(f"conversion of {source.dtype} to {x.dtype}")

    def splat(self, x: Expr) -> str:
        """The value as a vector."""
        text = self.expr(x)
        return text if self.is_wide(x) else f"(float{self.width})({text})"

    # ---- memory

    def load(self, x: Expr) -> Text:
        if self._is_same(x):
            return self._read(x.value, "at"), ATOM
        if not self.is_wide(x):
            return super().load(x)
        base = self._read(x.value, self._base(flat(self.shapes[x.value], x.indices)))
        if x.guard is None:
            return base, ATOM
        assert x.other is not None
        if self.is_wide(x.guard):
            raise NotVectorisable("a guard depends on the lane")
        return f"{self.operand(x.guard, LOGIC - 1)} ? {base} : {self.splat(x.other)}", CHOICE

    def _is_same(self, x: Expr) -> bool:
        same = self.shapes[x.value] == self.y.shape and x.indices == self.indices
        return same and x.guard is None

    def _base(self, at: Expr) -> str:
        """The address of lane 0, where lanes lie side by side."""
        terms, constant = E.linear(at)
        rest = {a: k for a, k in terms.items() if a is not self.lane}
        if terms.get(self.lane) != 1 or any(a.free & self.wide for a in rest):
            raise NotVectorisable("lanes do not lie side by side")
        return self.expr(E.from_linear(rest, constant))

    def _read(self, buffer: str, at: str) -> str:
        dtype = self.stored[buffer]
        if self.width == 1:
            return self._element(buffer, at)
        if dtype not in ("f32", "f16"):
            raise NotVectorisable(f"a buffer of {dtype}")
        return self.read_vector(buffer, at, self.width)

    # ---- statements

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        if isinstance(s, Let) and s.var.value in self.wide:
            kind = "int" if s.var.dtype == "bool" else "float"
            if s.var.dtype not in ("bool", "f32", "f16"):
                raise NotVectorisable(f"a value of {s.var.dtype}")
            return [f"{'    ' * indent}{kind}{self.width} {s.var.value} = {self.expr(s.value)};"]
        return super().stmt(s, indent)

    def store(self, s: Store, pad: str) -> list[str]:
        value = s.value
        if self.width == 1:
            return [f"{pad}{self.put(s.buffer, 'at', value)};"]
        if self.y.dtype == "f16" and value.op == "cast" and value.dtype == "f16":
            value = value.args[0]                # storing rounds by itself
        if self.y.dtype not in ("f32", "f16") or value.dtype not in ("f32", "f16"):
            raise NotVectorisable(f"a result of {self.y.dtype}")
        return [f"{pad}{self.write_vector(s.buffer, 'at', self.splat(value), self.width)};"]
