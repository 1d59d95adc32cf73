"""Loops of kind `vec` as OpenCL C: what differs from lane to lane is a vector.

Values are vectors of floats (in a kernel that computes in halves, of halves), truth values vectors
of ints or shorts that are 0 or -1. A load reads neighbours, or gathers lanes a few elements apart.
What has no form as a vector is refused by NotVectorisable, and stays a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from jitcl.codegen.opencl_expressions import (
    ADD,
    ATOM,
    CHOICE,
    LOGIC,
    UNARY,
    ExpressionRenderer,
    Text,
)
from jitcl.codegen.render import NotVectorisable
from jitcl.ir import expr as E
from jitcl.ir.alignment import lane_stride
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Accum, Let, Stmt, Store, statements
from jitcl.ir.scalar import SCALARS
from jitcl.target import Target
from jitcl.templates.opencl.memory import alignment, piece

FEW_REGISTERS = 16             # of a target, of vectors: long functions of vectors spill
GATHERED = 4                   # lanes further apart than this are left to the driver's compiler
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_OPERATORS = ("add", "sub", "mul", "div", "neg", *COMPARISONS)
_LOGIC = {"and": "&", "or": "|"}


def few_registers(target: Target | None) -> bool:
    """Whether a target's registers do not hold what long functions of several vectors need."""
    return target is not None and target.registers < FEW_REGISTERS


class VectorRenderer(ExpressionRenderer):
    """Expressions that differ from lane to lane, while `lane` is set; others are scalars."""

    lane: Expr | None = None
    width = 1
    wide: frozenset[str] = frozenset()           # the lane, and variables that differ with it
    aligned = False                              # vectors in global memory are (verified)
    multiples: Mapping[str, int] = MappingProxyType({})      # of variables: what divides them
    target: Target | None = None                 # set: vectors are read in pieces that are aligned

    def spread(self, body: tuple[Stmt, ...], lane: Expr, wide: tuple[str, ...] = ()) -> None:
        """From here on `lane` is spread over vectors, and so are variables that depend on it."""
        found, grown = {lane.value, *wide}, True
        while grown:
            grown = False
            for s in statements(body):
                if isinstance(s, (Let, Accum)) and s.var.value not in found and (
                        s.value.free & found):
                    found.add(s.var.value)
                    grown = True
        assert lane.extent is not None
        self.lane, self.width, self.wide = lane, lane.extent, frozenset(found)

    def point(self, target: Target, multiples: Mapping[str, int]) -> None:
        """From here on an access takes as much of a vector as `multiples` show to be aligned."""
        self.target, self.multiples = target, multiples

    def is_wide(self, x: Expr) -> bool:
        return bool(x.free & self.wide)

    def vector_type(self, dtype: str) -> str:
        """The C type of a vector of values."""
        if dtype == "bool":
            return self._lanes("i16" if self.half else "i32")
        if dtype == "i32":                       # read and compared
            return self._lanes("i32")
        if dtype not in ("f16", "f32") or self.half and dtype == "f32":
            raise NotVectorisable(f"a value of {dtype}")
        return self._lanes(dtype)

    def _lanes(self, dtype: str) -> str:
        return self.language.vector.format(type=self.ctype(dtype), width=self.width)

    # ---- expressions

    def text(self, x: Expr) -> Text:
        named = x.op == "var" and x is not self.lane
        if named or x.op in ("load", "cast") or not self.is_wide(x):
            return super().text(x)
        return self.vector(x)

    def splat(self, x: Expr) -> str:
        """The value as a vector."""
        text = self.expr(x)
        if self.is_wide(x):
            return text
        if x.dtype == "bool":
            text = f"{self.operand(x, LOGIC - 1)} ? -1 : 0"
        return self.language.splat.format(type=self.vector_type(x.dtype), value=text)

    def vector(self, x: Expr) -> Text:
        """Source of an operation whose result differs from lane to lane."""
        if x.op in _LOGIC:
            left, right = (self.operand(a, ATOM) if self.is_wide(a) else self.splat(a)
                           for a in x.args)
            return f"({left} {_LOGIC[x.op]} {right})", ATOM
        if x.op == "not":
            return f"~{self.operand(x.args[0], ATOM)}", UNARY
        kind = x.args[-1].dtype if x.args else x.dtype
        if kind in ("index", "i32") and x.dtype == "bool" and x.op in COMPARISONS:
            return self._compared(x, self._places if kind == "index" else self.splat)
        if kind != ("f16" if self.half else "f32"):
            raise NotVectorisable(f"'{x.op}' of {kind}")
        if x.op in _OPERATORS:
            return super().text(x)
        if x.op == "select":
            return self._wide_select(*x.args)
        if self.half and not self.half_builtins:
            raise NotVectorisable(f"'{x.op}' of {kind}")
        if x.op == "erf" and kind == "f32" and few_registers(self.target):
            return self.call_helper(f"erf_f32x{self.width}", self.splat(x.args[0]))
        if x.op == "abs" or SCALARS[x.op].takes == "floats":
            return super().text(x)               # builtins take vectors, too
        if x.op in ("max", "min"):
            return self.call_helper(f"{x.op}_{kind}x{self.width}", *map(self.splat, x.args))
        if x.op == "pow":
            return f"pow({', '.join(map(self.splat, x.args))})", ATOM
        raise NotVectorisable(x.op)

    def _compared(self, x: Expr, whole: Callable[[Expr], str]) -> Text:
        """Indices or integers that differ from lane to lane, compared: each `whole` a vector."""
        left, right = map(whole, x.args)
        text = f"({left} {COMPARISONS[x.op]} {right})"
        if self.half:                            # truth values are shorts
            text = self.language.convert.format(type=self.vector_type("bool"), value=text)
        return text, ATOM

    def _places(self, at: Expr) -> str:
        """An index as a vector of ints."""
        assert self.lane is not None
        stride = lane_stride(at, self.lane, self.wide - {self.lane.value})
        if stride is None:
            raise NotVectorisable("an index depends on the lane otherwise than by a step")
        ints = self._lanes("i32")
        text = self.language.splat.format(type=ints, value=self.expr(self._lane0(at)))
        steps = ", ".join(str(k * stride) for k in range(self.width))
        return f"{text} + {self.language.splat.format(type=ints, value=steps)}" if stride else text

    def _wide_select(self, condition: Expr, yes: Expr, no: Expr) -> Text:
        a, b = self.splat(yes), self.splat(no)
        if self.is_wide(condition):
            return f"select({b}, {a}, {self.expr(condition)})", ATOM
        return f"{self.operand(condition, LOGIC - 1)} ? {a} : {b}", CHOICE

    def cast(self, x: Expr) -> Text:
        source = x.args[0]
        if not self.is_wide(x):
            return super().cast(x)
        if source.dtype == "f16" and x.dtype == "f32" and not self.half:
            return self.text(source)             # a half's value is held as a float
        if source.dtype == "f32" and x.dtype == "f16" and not self.half:
            return self.call_helper(f"round_f16x{self.width}", self.expr(source))
        raise NotVectorisable(f"conversion of {source.dtype} to {x.dtype}")

    # ---- memory

    def _stride(self, buffer: str, at: Expr) -> int:
        assert self.lane is not None
        stride = lane_stride(at, self.lane, self.wide - {self.lane.value})
        if stride is None:
            raise NotVectorisable(f"lanes of '{buffer}' lie at places that only the run shows")
        return stride

    def _lane0(self, at: Expr) -> Expr:
        terms, constant = E.linear(at)
        return E.from_linear({a: k for a, k in terms.items() if a is not self.lane}, constant)

    def load(self, x: Expr) -> Text:
        if not self.is_wide(x):
            return super().load(x)
        at = flat(self.shapes[x.value], x.indices)
        if x.guard is not None and self.is_wide(x.guard):
            raise NotVectorisable("a guard depends on the lane")
        stride = self._stride(x.value, at)
        first = self._lane0(at)
        if stride == 1:
            read = self._read_whole if x.dtype in ("i32", "bool") else self.read_vector
            text = read(x.value, self.operand(first, ADD + 1), self._piece(x.value, at))
        elif abs(stride) > GATHERED and not self._local(x.value):
            raise NotVectorisable("lanes do not lie side by side")
        else:
            each = (self._element(x.value, self.expr(first + stride * k))
                    for k in range(self.width))
            text = self.language.splat.format(type=self.vector_type(x.dtype),
                                              value=", ".join(each))
            if x.dtype == "bool":
                text = self._true(text)
        if x.guard is None:
            return text, ATOM
        assert x.other is not None
        return f"{self.operand(x.guard, LOGIC - 1)} ? {text} : {self.splat(x.other)}", CHOICE

    def _read_whole(self, buffer: str, at: str, n: int) -> str:
        """Neighbours in a buffer of i32 or truth values."""
        self.read.add(buffer)
        dtype = self.stored[buffer]
        element = self.language.element(dtype, self.soft_half)
        found = self.language.read_vector(buffer, at, element, self.width, n)
        if dtype != "bool":
            return found
        return self._true(self.language.convert.format(type=self.vector_type(dtype), value=found))

    def _true(self, ones: str) -> str:
        """Lanes of -1, as comparisons give them, for those that are not 0."""
        nothing = self.language.splat.format(type=self.vector_type("bool"), value="0")
        return f"({ones} != {nothing})"

    def read_vector(self, buffer: str, at: str, n: int) -> str:
        """Neighbours in a buffer of f32 or f16 as floats, or halves; n of them an access."""
        dtype, w = self._checked(buffer), self.width
        halves = self.target is not None and self.target.fp16_arithmetic
        self.read.add(buffer)
        read = self.language.read_vector
        if dtype == "f16" and self.soft_half:
            return self.call_helper(f"from_f16x{w}", read(buffer, at, "ushort", w, n))[0]
        if dtype == "f16" and not self.half:
            if n == w and halves:
                return self.call_helper(f"from_halfx{w}", read(buffer, at, "half", w, n))[0]
            if n == w:
                return self.call_helper(f"load_f16x{w}", f"{buffer} + {at}")[0]
            return self.language.read_halves.format(width=w, buffer=buffer, at=at)
        return read(buffer, at, "half" if dtype == "f16" else "float", w, n)

    def write_vector(self, buffer: str, at: str, value: str, n: int) -> str:
        """What stores a vector's lanes side by side in a buffer of f32 or f16."""
        dtype, w = self._checked(buffer), self.width
        halves = self.target is not None and self.target.fp16_arithmetic
        if dtype == "f16" and not self.half and not self.soft_half:
            if n > 1 and halves:
                value = self.call_helper(f"to_halfx{w}", value)[0]
                return self.language.write_vector(buffer, at, value, "half", w, n)
            if n == w:
                return self.call_helper(f"store_f16x{w}", value, f"{buffer} + {at}")[0]
            return self.language.write_halves.format(width=w, value=value, buffer=buffer,
                                                    at=at)
        kind = "half" if dtype == "f16" else "float"
        if dtype == "f16" and self.soft_half:
            value, kind = self.call_helper(f"to_f16x{w}", value)[0], "ushort"
        return self.language.write_vector(buffer, at, value, kind, w, n)

    def _piece(self, buffer: str, at: Expr) -> int:
        """Elements of a vector that one access through a pointer takes: compilers for Mali and
        Adreno make `width` of vload4, which promises the alignment of an element only."""
        if any(b.name == buffer for b in self.kernel.arrays):
            return 1
        if self.target is None:
            return self.width if self.aligned else 1
        assert self.lane is not None
        return piece(self.width, self.target, alignment(at, self.lane, self.multiples))

    def _local(self, buffer: str) -> bool:
        """Whether it lies in local memory, where lanes may be anywhere."""
        return any(b.name == buffer and b.role == "local" for b in self.kernel.arrays)

    def _checked(self, buffer: str) -> str:
        dtype = self.stored[buffer]
        if dtype not in ("f32", "f16") or self.half and dtype == "f32":
            raise NotVectorisable(f"a buffer of {dtype}")
        return dtype

    # ---- statements

    def wide_let(self, s: Let) -> str:
        return f"{self.vector_type(s.var.dtype)} {s.var.value} = {self.splat(s.value)};"

    def wide_store(self, s: Store) -> str:
        """The statement that stores the lanes one after the other."""
        value, at = s.value, flat(self.shapes[s.buffer], s.indices)
        if s.guard is not None and self.is_wide(s.guard):
            raise NotVectorisable("a guard depends on the lane")
        if self._stride(s.buffer, at) != 1:
            raise NotVectorisable("lanes do not lie side by side")
        n = self._piece(s.buffer, at)
        if value.op == "cast" and value.dtype == "f16" and not self.half:
            value = value.args[0]                # storing rounds by itself
        first = self.operand(self._lane0(at), ADD + 1)
        return f"{self.write_vector(s.buffer, first, self.splat(value), n)};"
