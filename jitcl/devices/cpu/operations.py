"""The operations of `ir.scalar.SCALARS` as Numba intrinsics over scalars and vectors.

The result has the operands' type: i32 + i32 wraps as i32. Where one operand is a vector, scalars
are splatted. Integer division by zero gives 0 and never traps.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from jitcl.devices.cpu import elementary
from jitcl.devices.cpu.convert import cast_value
from jitcl.devices.cpu.emit import F32, Emit, constant, declare, mangle, splat
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.vtypes import Vector, element_type, lanes_of, with_element
from jitcl.ir.scalar import SCALARS

Generate = Callable[
    [ir.IRBuilder, Any, list[ir.Value]], ir.Value
]  # (builder, element type, operands)
# No contraction by LLVM: which products of a*b + c*d it fuses differs between a loop's vectors and
# its scalar rest, so that results would depend on the thread count. Kernels say fma where they mean
# it.
EXACT: tuple[str, ...] = ()
REDUCE = ("reassoc",)  # of a sum's order LLVM may dispose (so that it vectorises)


def public(name: str) -> str:
    """The name in kernel text: `max` -> `max_`, where Python owns `max`."""
    return name + "_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


def _typed(operands: tuple[Any, ...]) -> tuple[Any, Any]:
    """(element type, shape-giving type) of operands that must agree."""
    shape = next((o for o in operands if isinstance(o, Vector)), operands[-1])
    elements = {element_type(o) for o in operands}
    if len(elements) == 1:
        return elements.pop(), shape
    # literals in index arithmetic are i64; Numba's own rules unify the rest
    if all(isinstance(e, types.Integer) for e in elements):
        return types.int64, shape
    return (types.float64 if types.float64 in elements else types.float32), shape


def _operands(b: ir.IRBuilder, kinds: Sequence[Any], args: Sequence[ir.Value], element: Any,
              lanes: int) -> list[ir.Value]:
    out = []
    for ty, x in zip(kinds, args):
        x = cast_value(b, x, element_type(ty), element)
        out.append(splat(b, x, lanes) if lanes and not isinstance(ty, Vector) else x)
    return out


def make(name: str, arity: int, generate: Generate, result: Any = None, doc: str = "") -> Any:
    """An intrinsic of 1 to 3 operands of one type; `result` is an element type or None for the
    same."""

    def typed(*operands: Any) -> Any:
        element, shape = _typed(operands)
        out = with_element(shape, result if result is not None else element)

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
            return generate(b, element, _operands(b, sig.args, args, element, lanes_of(shape)))

        return out(*operands), codegen

    def op1(typingctx, x):
        return typed(x)

    def op2(typingctx, x, y):
        return typed(x, y)

    def op3(typingctx, x, y, z):
        return typed(x, y, z)

    op: Any = {1: op1, 2: op2, 3: op3}[arity]
    op.__name__ = op.__qualname__ = public(name)
    op.__doc__ = doc or f"Scalar operation `{name}`."
    return intrinsic(op)


def _is_float(element: Any) -> bool:
    return isinstance(element, types.Float)


def _arith(float_op: str, int_op: str, flags: tuple[str, ...] = EXACT) -> Generate:
    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if _is_float(element):
            return getattr(b, float_op)(x[0], x[1], flags=flags)
        return getattr(b, int_op)(x[0], x[1])

    return generate


def _llvm(float_name: str, signed: str = "", unsigned: str = "") -> Generate:
    """An overloaded LLVM intrinsic."""

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if element == types.boolean:
            return b.or_(*x) if float_name == "maximum" else b.and_(*x)
        name = float_name if _is_float(element) else signed if element.signed else unsigned
        ty = x[0].type
        return b.call(declare(b, f"llvm.{name}.{mangle(ty)}", ty, [ty] * len(x)), x)

    return generate


def _extreme(predicate: str, of_integers: Generate) -> Generate:
    """min and max: NaN where either operand is NaN. One instruction where the second is a literal,
    three elsewhere; llvm.maximum takes six, for the sign of zero, but LLVM knows it in reductions
    (`sum_max`)."""

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if not _is_float(element):
            return of_integers(b, element, x)
        first, second = x
        chosen = b.select(b.fcmp_ordered(predicate, second, first), second, first)
        return b.select(b.fcmp_unordered("uno", second, second), second, chosen)

    return generate


def _identity_for_ints(generate: Generate) -> Generate:
    return lambda b, element, x: generate(b, element, x) if _is_float(element) else x[0]


def _compare(predicate: str) -> Generate:
    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if _is_float(element):
            test = b.fcmp_unordered if predicate == "!=" else b.fcmp_ordered
            return test(predicate, x[0], x[1])
        signed = element != types.boolean and element.signed
        return (b.icmp_signed if signed else b.icmp_unsigned)(predicate, x[0], x[1])

    return generate


def _safe_divisor(
    b: ir.IRBuilder, element: Any, x: ir.Value, y: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """(y is zero, a divisor that cannot trap): 1 for 0, and for lowest / -1, whose result wraps to
    lowest."""
    one, zero = constant(y.type, 1), constant(y.type, 0)
    by_zero = b.icmp_signed("==", y, zero)
    bad = by_zero
    if element.signed:
        lowest = constant(y.type, -(1 << (element.bitwidth - 1)))
        wraps = b.and_(b.icmp_signed("==", y, constant(y.type, -1)), b.icmp_signed("==", x, lowest))
        bad = b.or_(by_zero, wraps)
    return by_zero, b.select(bad, one, y)


def _divide(kind: str) -> Generate:
    """div (toward zero), floordiv, mod (sign of the divisor) and fmod (sign of the dividend)."""

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if _is_float(element):
            return _divide_floats(b, kind, x)
        by_zero, y = _safe_divisor(b, element, *x)
        zero = constant(y.type, 0)
        if not element.signed:
            value = b.udiv(x[0], y) if kind in ("div", "floordiv") else b.urem(x[0], y)
            return b.select(by_zero, zero, value)
        rest = b.srem(x[0], y)
        value = b.sdiv(x[0], y) if kind in ("div", "floordiv") else rest
        if kind in ("floordiv", "mod"):
            differ = b.icmp_signed("<", b.xor(rest, y), zero)
            adjust = b.and_(b.icmp_signed("!=", rest, zero), differ)
            changed = b.sub(value, constant(y.type, 1)) if kind == "floordiv" else b.add(value, y)
            value = b.select(adjust, changed, value)
        return b.select(by_zero, zero, value)

    return generate


def _divide_floats(b: ir.IRBuilder, kind: str, x: list[ir.Value]) -> ir.Value:
    if kind == "div":
        return b.fdiv(x[0], x[1])
    if kind == "floordiv":
        return Emit(b, x[0].type).call("floor", b.fdiv(x[0], x[1]))
    rest = _libm("fmod")(b, None, x)
    if kind == "fmod":
        return rest
    e = Emit(b, x[0].type)
    negative = lambda v: b.icmp_signed("<", e.bits_of(v), e.integer(0))  # noqa: E731
    differ = b.xor(negative(rest), negative(x[1]))
    nonzero = b.fcmp_ordered("!=", rest, e.value(0.0))
    moved = b.fadd(rest, x[1])
    zero = e.copysign(0.0, x[1])
    return b.select(
        b.and_(nonzero, differ), moved, b.select(nonzero, rest, e.select(e.isnan(rest), rest, zero))
    )


def _libm(name: str) -> Generate:
    """A call of the C library's function, lane by lane."""

    def one(b: ir.IRBuilder, x: list[ir.Value]) -> ir.Value:
        ty = x[0].type
        return b.call(declare(b, name + ("f" if ty == F32 else ""), ty, [ty] * len(x)), x)

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if not isinstance(x[0].type, ir.VectorType):
            return one(b, x)
        out: ir.Value = ir.Constant(x[0].type, ir.Undefined)
        for i in range(x[0].type.count):
            lane = constant(ir.IntType(32), i)
            out = b.insert_element(out, one(b, [b.extract_element(v, lane) for v in x]), lane)
        return out

    return generate


def _elementary(name: str) -> Generate:
    """Inline polynomials for f32, the C library for f64."""

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        if element == types.float32:
            return elementary.F32[name](Emit(b, x[0].type), *x)
        return _libm(name)(b, element, x)

    return generate


def _sigmoid(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    e = Emit(b, x[0].type)
    if element == types.float32:
        return elementary.sigmoid(e, x[0])
    t = _libm("exp")(b, element, [e.neg(e.abs(x[0]))])
    return e.div(e.select(e.lt(x[0], 0.0), t, 1.0), e.add(t, 1.0))


def _pow(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    if element == types.float32:
        return elementary.pow(Emit(b, x[0].type), *x)
    if _is_float(element):
        return _libm("pow")(b, element, x)
    return _int_pow(b, x, element.bitwidth)


def _int_pow(b: ir.IRBuilder, x: list[ir.Value], bits: int) -> ir.Value:
    """Square and multiply; a negative exponent gives 0 (NumPy raises)."""
    base, exponent = x
    one, zero = constant(base.type, 1), constant(base.type, 0)
    result: ir.Value = one
    for _ in range(min(bits, 32)):
        odd = b.icmp_signed("!=", b.and_(exponent, one), zero)
        result = b.select(odd, b.mul(result, base), result)
        base = b.mul(base, base)
        exponent = b.ashr(exponent, one)
    return b.select(b.icmp_signed("<", x[1], zero), zero, result)


def _neg(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    return b.fneg(x[0]) if _is_float(element) else b.sub(constant(x[0].type, 0), x[0])


def _abs(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    if _is_float(element):
        return Emit(b, x[0].type).abs(x[0])
    if not element.signed:
        return x[0]
    zero = constant(x[0].type, 0)
    return b.select(b.icmp_signed("<", x[0], zero), b.sub(zero, x[0]), x[0])


def _sign(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    """-1, 0 or 1; NaN for NaN; zeros come back as they are."""
    if _is_float(element):
        e = Emit(b, x[0].type)
        zero_or_nan = b.fcmp_unordered("ueq", x[0], e.value(0.0))
        return b.select(zero_or_nan, x[0], e.copysign(1.0, x[0]))
    ty = x[0].type
    zero, one, minus = constant(ty, 0), constant(ty, 1), constant(ty, -1)
    some = b.select(b.icmp_signed("==", x[0], zero), zero, one)
    return b.select(b.icmp_signed("<", x[0], zero), minus, some) if element.signed else some


def _relu(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    if not _is_float(element):
        zero = constant(x[0].type, 0)
        return b.select(b.icmp_signed("<", x[0], zero), zero, x[0]) if element.signed else x[0]
    return Emit(b, x[0].type).at_least(x[0], 0.0)


def _shift(name: str) -> Generate:
    """Shifts by the type's width or more give 0 (or the sign), where the CPU would take the count
    modulo."""

    def generate(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
        ty, last = x[0].type, constant(x[0].type, element.bitwidth - 1)
        over = b.icmp_unsigned(">", x[1], last)
        if name == "shr" and element.signed:
            return b.ashr(x[0], b.select(over, last, x[1]))
        safe = b.select(over, constant(ty, 0), x[1])
        value = b.shl(x[0], safe) if name == "shl" else b.lshr(x[0], safe)
        return b.select(over, constant(ty, 0), value)

    return generate


def _four_bits(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    """Four bits of x from bit 0 or 4 on."""
    return b.and_(b.lshr(x[0], x[1]), constant(x[0].type, 15))


def _signed_four_bits(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    """Four bits of x from bit 0 or 4 on, the highest of them the sign."""
    eight = constant(x[0].type, 8)
    return b.sub(b.xor(_four_bits(b, element, x), eight), eight)


def _isinf(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    e = Emit(b, x[0].type)
    return e.eq(e.abs(x[0]), float("inf"))


def _logical(op: str) -> Generate:
    return lambda b, element, x: getattr(b, op)(x[0], x[1])


def _sum_fma(b: ir.IRBuilder, element: Any, x: list[ir.Value]) -> ir.Value:
    """x * y + z as a term of a sum z whose order LLVM may choose."""
    ty = x[0].type
    fn = declare(b, f"llvm.fmuladd.{mangle(ty)}", ty, [ty] * 3)
    return b.call(fn, x, fastmath=REDUCE)


_B = types.boolean
_LIBM = tuple(s.name for s in SCALARS.values() if s.libm)
TABLE: dict[str, tuple[int, Generate, Any]] = {
    "add": (2, _arith("fadd", "add"), None), "sub": (2, _arith("fsub", "sub"), None),
    "mul": (2, _arith("fmul", "mul"), None), "div": (2, _divide("div"), None),
    "floordiv": (2, _divide("floordiv"), None), "mod": (2, _divide("mod"), None),
    "fmod": (2, _divide("fmod"), None), "pow": (2, _pow, None),
    "min": (2, _extreme("<", _llvm("minimum", "smin", "umin")), None),
    "max": (2, _extreme(">", _llvm("maximum", "smax", "umax")), None), "neg": (1, _neg, None),
    "abs": (1, _abs, None), "sign": (1, _sign, None), "relu": (1, _relu, None),
    "floor": (1, _identity_for_ints(_llvm("floor")), None),
    "ceil": (1, _identity_for_ints(_llvm("ceil")), None),
    "trunc": (1, _identity_for_ints(_llvm("trunc")), None),
    "round": (1, _identity_for_ints(_llvm("rint")), None), "sqrt": (1, _llvm("sqrt"), None),
    "sigmoid": (1, _sigmoid, None),
    **{name: (1, _elementary(name), None) for name in ("exp", "log", "erf", "tanh")},
    **{name: (1, _libm(name), None) for name in _LIBM}, "eq": (2, _compare("=="), _B),
    "ne": (2, _compare("!="), _B), "lt": (2, _compare("<"), _B), "le": (2, _compare("<="), _B),
    "gt": (2, _compare(">"), _B), "ge": (2, _compare(">="), _B), "and": (2, _logical("and_"), _B),
    "or": (2, _logical("or_"), _B), "xor": (2, _logical("xor"), _B),
    "not": (1, lambda b, element, x: b.not_(x[0]), _B),
    "isnan": (1, lambda b, element, x: Emit(b, x[0].type).isnan(x[0]), _B),
    "isinf": (1, _isinf, _B), "bitand": (2, _logical("and_"), None),
    "bitor": (2, _logical("or_"), None), "bitxor": (2, _logical("xor"), None),
    "bitnot": (1, lambda b, element, x: b.not_(x[0]), None), "shl": (2, _shift("shl"), None),
    "shr": (2, _shift("shr"), None), "int4": (2, _signed_four_bits, None),
    "uint4": (2, _four_bits, None),
    "fma": (3, lambda b, element, x: Emit(b, x[0].type).fma(*x), None),
    "sum_add": (2, _arith("fadd", "add", REDUCE), None), "sum_fma": (3, _sum_fma, None),
    "sum_mul": (2, _arith("fmul", "mul", REDUCE), None),
    "sum_min": (2, _llvm("minimum", "smin", "umin"), None),
    "sum_max": (2, _llvm("maximum", "smax", "umax"), None)}
OPERATIONS = {
    public(name): make(name, arity, generate, result)
    for name, (arity, generate, result) in TABLE.items()
} | {"exp_less": make("exp_less", 2, _elementary("exp_less"), doc=str(elementary.exp_less.__doc__))}


@intrinsic
def select(typingctx, condition, x, y):
    """`condition ? x : y`, lane by lane; neither side is skipped."""
    element, shape = _typed((x, y))
    if isinstance(condition, Vector) and not isinstance(shape, Vector):
        shape = Vector(element, condition.lanes)

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        mask = cast_value(b, args[0], element_type(sig.args[0]), types.boolean)
        return b.select(mask, *_operands(b, sig.args[1:], args[1:], element, lanes_of(shape)))

    return with_element(shape, element)(condition, x, y), codegen


OPERATIONS["select"] = select
