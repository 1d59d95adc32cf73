"""Scalar expressions -> OpenCL C 1.2, within what drivers of small GPUs survive.

Conversions are calls of convert_*, never casts between floats and integers (some Mali compilers
get those wrong); literals carry their type; halves are read and written by vload_half and
vstore_half, so that no half arithmetic is needed (a kernel that has some uses the type half
throughout: precision "low" where the device can); no pointer is cast but to an aligned vector's, no
private array is indexed. Index arithmetic is `int` unless a buffer needs more.
"""

from __future__ import annotations

import math

import numpy as np

from jitcl import dtypes
from jitcl.codegen.language import OPENCL_C, KernelLanguage
from jitcl.codegen.loops import subexpressions
from jitcl.codegen.opencl_helpers import needs
from jitcl.codegen.render import SizesWritten
from jitcl.codegen.render_numba import only_stored
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Kernel
from jitcl.ir.scalar import SCALARS, reinterprets
from jitcl.ir.sizes import at_least_always, is_size

# C's precedence: a child is put in parentheses where it binds less than its place wants
ATOM, UNARY, MUL, ADD, SHIFT, RELATION, EQUALITY, LOGIC, CHOICE = 16, 14, 13, 12, 11, 10, 9, 5, 3
_BITS = 8  # this and less: operators that are easily misread beside each other
_INFIX = {
    "add": ("+", ADD),
    "sub": ("-", ADD),
    "mul": ("*", MUL),
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "xor": ("!=", EQUALITY),
    "and": ("&&", LOGIC),
    "or": ("||", LOGIC - 1),
    "bitand": ("&", _BITS),
    "bitxor": ("^", 7),
    "bitor": ("|", 6),
}
_COMMUTES = ("add", "mul", "and", "or", "bitand", "bitor", "bitxor")  # of integers and truth values
_WHOLE = ("floor", "ceil", "trunc", "round")  # nothing to do for integers
_NARROW = ("i8", "u8", "i16", "u16")  # C computes these as int
_BIG = 1 << 31
Text = tuple[str, int]  # source and how tightly it binds


class ExpressionRenderer:
    """Expressions of one kernel as OpenCL C; collects the helpers that they call."""

    language: KernelLanguage = OPENCL_C

    def __init__(self, kernel: Kernel, fp64: bool = True, soft_half: bool = False,
                 half_builtins: bool = True) -> None:
        self.kernel, self.fp64, self.soft_half = kernel, fp64, soft_half
        self.half_builtins = half_builtins
        self.shapes = {b.name: b.shape for b in (*kernel.buffers, *kernel.arrays)}
        self.stored = {b.name: b.dtype for b in kernel.buffers} | {
            b.name: dtypes.compute(b.dtype) for b in kernel.arrays}
        self.half = computes_in_half(kernel)
        self.helpers: dict[str, None] = {}
        self.sizes = SizesWritten()
        self.read: set[str] = set()              # buffers that are read
        self.named: set[str] = set()             # variables
        self.doubles = False
        self.index = "long" if any(b.size >= _BIG for b in kernel.buffers) else "int"

    # ---- types and literals

    def ctype(self, dtype: str) -> str:
        """The C type of a value (not of a buffer's elements)."""
        if dtype == "index":
            return self.index
        if dtype == "f64":
            self.doubles = True
        return "half" if dtype == "f16" and self.half else self.language.types[dtype]

    def literal(self, value: float | int | bool, dtype: str) -> Text:
        if dtype == "bool":
            return ("true" if value else "false"), ATOM
        if dtypes.is_float(dtype):
            return self._float_literal(float(value), dtype)
        if is_size(value):
            return self.sizes.write(value), ATOM
        value = int(value)
        wide = dtype == "index" and abs(value) >= _BIG
        suffix = self.language.suffixes.get("i64" if wide else dtype, "")
        if dtype in ("i32", "i64") and value == dtypes.limits(dtype)[0]:
            return self.language.lowest[dtype], ATOM
        return f"{value}{suffix}", UNARY if value < 0 else ATOM

    def _float_literal(self, value: float, dtype: str) -> Text:
        if dtype == "f16" and self.half:
            text, binds = self._float_literal(value, "f32")
            return f"(half){text}" if binds >= UNARY else f"(half)({text})", UNARY
        double = self.ctype(dtype) == "double"
        if math.isnan(value):
            return ("(double)NAN", UNARY) if double else ("NAN", ATOM)
        if math.isinf(value):
            text = "(double)INFINITY" if double else "INFINITY"
            return ("-" + text, UNARY) if value < 0 else (text, UNARY if double else ATOM)
        if double:
            text = repr(value)
        else:
            with np.errstate(over="ignore"):
                single = np.float32(value)
            if np.isinf(single):
                return ("-INFINITY", UNARY) if value < 0 else ("INFINITY", ATOM)
            text = str(single)
        if not any(c in text for c in ".e"):
            text += ".0"
        return text + ("" if double else "f"), UNARY if text[0] == "-" else ATOM

    def call_helper(self, name: str, *args: str) -> Text:
        self.helpers.update(dict.fromkeys((*needs(name), name)))
        self.doubles |= name.endswith("f64")
        return f"jitcl_{name}({', '.join(args)})", ATOM

    # ---- expressions

    def expr(self, x: Expr) -> str:
        """Source of a scalar expression."""
        return self.text(x)[0]

    def operand(self, x: Expr, wanted: int) -> str:
        text, binds = self.text(x)
        return text if binds >= wanted else f"({text})"

    def text(self, x: Expr) -> Text:
        if x.op == "const":
            return self.literal(x.value, x.dtype)
        if x.op == "var":
            self.named.add(x.value)
            return str(x.value), ATOM
        if x.op == "load":
            return self.load(x)
        if x.op == "cast":
            return self.cast(x)
        if x.op == "select":
            condition, yes, no = x.args
            return (
                f"{self.operand(condition, LOGIC - 1)} ? {self.operand(yes, LOGIC - 1)} : "
                f"{self.operand(no, CHOICE)}"
            ), CHOICE
        if reinterprets(x.op):
            return self._reinterpreted(x)
        if x.op in _INFIX and not (x.args[0].dtype == "bool" and x.op in ("lt", "le", "gt", "ge")):
            return self._narrowed(self._infix(x), x)
        if x.args[0].dtype == "bool":
            return self._truth(x)
        return self._call(x)

    def _infix(self, x: Expr) -> Text:
        sign, binds = _INFIX[x.op]
        exact = x.op in _COMMUTES and not dtypes.is_float(x.args[0].dtype)
        left = self._beside(x.args[0], binds, binds)
        right = self._beside(x.args[1], binds, binds if exact else binds + 1)
        return f"{left} {sign} {right}", binds

    def _beside(self, x: Expr, sign: int, wanted: int) -> str:
        """An operand of an infix operator; && within ||, and mixed & | ^, get parentheses that C
        does not need and readers (and compilers' warnings) ask for.
        """
        text, binds = self.text(x)
        mixed = binds != sign and sign <= _BITS and binds <= _BITS
        return f"({text})" if mixed or binds < wanted else text

    def _narrowed(self, text: Text, x: Expr) -> Text:
        """C computes narrow integers as int: back to their type, so that they wrap."""
        if x.dtype not in _NARROW:
            return text
        return f"({self.language.types[x.dtype]})({text[0]})", UNARY

    def _truth(self, x: Expr) -> Text:
        """Operations of truth values that C has no like of."""
        args = [self.operand(a, UNARY) for a in x.args]
        if x.op == "not":
            return f"!{args[0]}", UNARY
        form = {
            "max": ("{} || {}", LOGIC - 1),
            "min": ("{} && {}", LOGIC),
            "lt": ("!{} && {}", LOGIC),
            "le": ("!{} || {}", LOGIC - 1),
            "gt": ("{} && !{}", LOGIC),
            "ge": ("{} || !{}", LOGIC - 1),
        }.get(x.op)
        if form is None:
            raise JitclError(f"scalar '{x.op}' of bool has no meaning")
        text, binds = form
        return text.format(*args), binds

    def _reinterpreted(self, x: Expr) -> Text:
        """The bits of a value as another type, by way of the unsigned integer of as many bits."""
        bits, to = self._bits(x.args[0]), x.dtype
        if to == "bool":
            return f"{bits} != 0", EQUALITY
        if only_stored(to) and not (to == "f16" and self.half):
            return self.call_helper(f"from_{to}", bits)
        return self.language.reinterpret.format(type=self.ctype(to), value=bits), ATOM

    def _bits(self, x: Expr) -> str:
        """A value's bits as an unsigned integer; those of an element as they lie in memory."""
        have = x.dtype
        unsigned = self.language.types[f"u{8 * dtypes.itemsize(have)}"]
        if x.op == "load" and x.guard is None and (have == "bf16" or have in dtypes.LOW):
            self.read.add(x.value)
            return f"{x.value}[{self.expr(flat(self.shapes[x.value], x.indices))}]"
        text, binds = self.text(x)
        if have == "bool":
            return f"(uchar)({text} ? 1 : 0)"
        if only_stored(have) and not (have == "f16" and self.half):
            return self.call_helper(f"to_{have}", text)[0]
        if dtypes.is_float(have):
            self.ctype(have)
            return self.language.reinterpret.format(type=unsigned, value=text)
        return f"({unsigned}){text if binds >= UNARY else f'({text})'}"

    def _call(self, x: Expr) -> Text:
        kind = x.args[0].dtype
        if x.op == "neg":
            return self._narrowed((f"-{self.operand(x.args[0], UNARY + 1)}", UNARY), x)
        if x.op == "bitnot":
            return self._narrowed((f"~{self.operand(x.args[0], UNARY)}", UNARY), x)
        if dtypes.is_float(kind):
            args = [self.expr(a) for a in x.args]
            self.ctype(kind)
            if x.op == "div":
                return f"{self.operand(x.args[0], MUL)} / {self.operand(x.args[1], MUL + 1)}", MUL
            if x.op in ("max", "min", "sign", "floordiv", "mod"):
                text = self.call_helper(f"{x.op}_{'f64' if kind == 'f64' else 'f32'}", *args)
                return (f"(half){text[0]}", UNARY) if self.ctype(kind) == "half" else text
            name = self.language.functions.get(x.op, x.op)
            if self.ctype(kind) == "half" and not self.half_builtins:
                floats = ", ".join(f"(float){self.operand(a, UNARY)}" for a in x.args)
                call = f"{name}({floats})"
                return (f"(half){call}", UNARY) if x.dtype == "f16" else (call, ATOM)
            return f"{name}({', '.join(args)})", ATOM
        return self._integer_call(x, kind)

    def _integer_call(self, x: Expr, kind: str) -> Text:
        if x.op in _WHOLE:
            return self.text(x.args[0])
        if x.op in ("isnan", "isinf"):
            return "false", ATOM
        args = [self.expr(a) for a in x.args]
        if kind == "index":
            kind = "i64" if self.index == "long" else "i32"
            plain = {"div": "/", "floordiv": "/", "mod": "%", "fmod": "%"}.get(x.op)
            divisor = x.args[1] if plain else None
            if (
                divisor is not None
                and divisor.is_const
                and divisor.value > 0
                and (x.op in ("div", "fmod") or at_least_always(E.bounds(x.args[0])[0], 0))
            ):
                return f"{self.operand(x.args[0], MUL)} {plain} {args[1]}", MUL
        return self.call_helper(f"{x.op}_{kind}", *args)

    def cast(self, x: Expr) -> Text:
        source, to = x.args[0], x.dtype
        have = source.dtype
        if to == "bool":
            return f"{self.operand(source, EQUALITY + 1)} != 0", EQUALITY
        if have == "bool" and to in dtypes.LOW:
            return self._narrow(self.cast(E.cast(source, dtypes.compute(to))), to)
        if have == "bool":
            one, zero = self.literal(1, to)[0], self.literal(0, to)[0]
            return f"{self.operand(source, LOGIC - 1)} ? {one} : {zero}", CHOICE
        if dtypes.is_float(to):
            return self._to_float(source, have, to)
        if dtypes.is_float(have):
            return self._float_to_int(source, have, to)
        text = self.text(source)
        if self.ctype(have) != self.ctype(to):
            text = f"({self.ctype(to)}){self.operand(source, UNARY)}", UNARY
        return self._narrow(text, to) if to in dtypes.LOW else text

    def _to_float(self, source: Expr, have: str, to: str) -> Text:
        text = self.text(source)
        old, new = self.ctype(have), self.ctype(to)
        if old != new and "half" in (old, new):
            text = self._half_cast(source, old, new)
        elif old != new:
            text = self.language.convert.format(type=new, value=text[0]), ATOM
        if to == "f16" and have != "f16" and not self.half:
            return self.call_helper("round_f16", text[0])
        if to != have and (to == "bf16" or to in dtypes.LOW):
            return self._narrow(text, to)
        return text

    def _narrow(self, text: Text, to: str) -> Text:
        """A value as what is left of it in memory."""
        return self.call_helper(f"from_{to}", self.call_helper(f"to_{to}", text[0])[0])

    def _half_cast(self, source: Expr, old: str, new: str) -> Text:
        """Between half and another type by way of a float and a cast: NVIDIA's compiler has no
        convert_half and finds convert_float(half) ambiguous, some Malis cast integers to half
        wrongly.
        """
        if new == "half" and old not in ("float", "double"):
            text = self.language.convert.format(type="float", value=self.expr(source))
            return f"(half){text}", UNARY
        return f"({new}){self.operand(source, UNARY)}", UNARY

    def _float_to_int(self, source: Expr, have: str, to: str) -> Text:
        """As NumPy does it: truncated; what is out of range becomes the lowest int or long, cut
        to the type.
        """
        wide = "long" if to in ("u32", "i64", "u64") or self.ctype(to) == "long" else "int"
        kind = "f64" if self.ctype(have) == "double" else "f32"
        text = self.call_helper(f"{wide}_from_{kind}", self.expr(source))
        text = text if self.ctype(to) == wide else (f"({self.ctype(to)}){text[0]}", UNARY)
        return self._narrow(text, to) if to in dtypes.LOW else text

    def load(self, x: Expr) -> Text:
        at = self.expr(flat(self.shapes[x.value], x.indices))
        value = self._element(x.value, at)
        if x.dtype == "f16" and self.half and self.stored[x.value] == "f32":
            value = f"(half){value}"  # a private row holds floats
        if x.guard is None:
            return value, ATOM
        assert x.other is not None
        return (
            f"{self.operand(x.guard, LOGIC - 1)} ? {value} : {self.operand(x.other, CHOICE)}"
        ), CHOICE

    def _element(self, buffer: str, at: str) -> str:
        dtype = self.stored[buffer]
        self.ctype(dtype)
        self.read.add(buffer)
        if dtype == "f16" and self.soft_half:
            return self.call_helper("from_f16", f"{buffer}[{at}]")[0]
        if dtype == "f16" and not self.half:
            return self.language.read_half.format(at=at, buffer=buffer)
        if dtype == "bf16" or dtype in dtypes.LOW:
            return self.call_helper(f"from_{dtype}", f"{buffer}[{at}]")[0]
        return f"{buffer}[{at}]"


def computes_in_half(kernel: Kernel) -> bool:
    """Whether any arithmetic of the kernel is on f16 values."""
    return any(e.op in SCALARS and not reinterprets(e.op) and any(a.dtype == "f16" for a in e.args)
               for e in subexpressions(kernel.body))
