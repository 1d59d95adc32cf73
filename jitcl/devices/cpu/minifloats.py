"""Low types in memory and in registers: bytes that hold floats of eight bits or fewer, or integers
of four or two, against f32 and i32.

All is integer arithmetic on whole lanes, so that loops over such bytes vectorise; only subnormals
are converted and rounded by float instructions.
"""

from __future__ import annotations

from llvmlite import ir

from jitcl import dtypes
from jitcl.devices.cpu.emit import F32, I8, I32, Emit, constant, vector_of
from jitcl.dtypes import MINIFLOATS, Minifloat

NAN = 0x7FC00000                             # of f32, as bits


class _Lanes:
    """Integers of 32 bits and floats in as many lanes as a value has."""

    def __init__(self, b: ir.IRBuilder, x: ir.Value) -> None:
        self.b = b
        self.lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
        self.ints, self.floats = vector_of(I32, self.lanes), vector_of(F32, self.lanes)
        self.emit = Emit(b, self.floats)

    def int(self, value: int) -> ir.Constant:
        return constant(self.ints, value)

    def widened(self, x: ir.Value) -> ir.Value:
        return self.b.zext(x, self.ints)

    def byte(self, x: ir.Value) -> ir.Value:
        return self.b.trunc(x, vector_of(I8, self.lanes))


def load_low(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """Bytes (one, or lanes of them) as the values that they stand for, in f32 or i32."""
    e = _Lanes(b, x)
    code = e.widened(x)
    if dtype in dtypes.LOW_INTS:
        return _extended(e, code, dtype)
    found = _power(e, code) if dtype == "f8e8m0" else _decoded(e, code, MINIFLOATS[dtype])
    return b.bitcast(found, e.floats)


def store_low(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """Values in f32 or i32 as bytes: floats to nearest even, integers wrapped around."""
    e = _Lanes(b, x)
    if dtype in dtypes.LOW_INTS:
        return e.byte(b.and_(x, e.int((1 << dtypes.bits(dtype)) - 1)))
    bits = b.bitcast(x, e.ints)
    found = _exponent(e, bits) if dtype == "f8e8m0" else _encoded(e, bits, MINIFLOATS[dtype])
    return e.byte(found)


def _extended(e: _Lanes, code: ir.Value, dtype: str) -> ir.Value:
    """The low bits of a byte, with a sign or without."""
    b, width = e.b, dtypes.bits(dtype)
    kept = b.and_(code, e.int((1 << width) - 1))
    if dtype in dtypes.UNSIGNED:
        return kept
    half = e.int(1 << (width - 1))
    return b.sub(b.xor(kept, half), half)


def _decoded(e: _Lanes, code: ir.Value, f: Minifloat) -> ir.Value:
    """The bits of the f32 that a code stands for: the exponent is rebiased."""
    b = e.b
    size, sign = b.and_(code, e.int(f.sign - 1)), b.and_(code, e.int(f.sign))
    normal = b.add(b.shl(size, e.int(23 - f.mantissa)), e.int((127 - f.bias) << 23))
    tiny = e.emit.mul(e.emit.to_float(size), f.step)
    subnormal = b.icmp_unsigned("<", size, e.int(1 << f.mantissa))
    value = b.select(subnormal, b.bitcast(tiny, e.ints), normal)
    if f.specials == "ieee":
        special = b.add(normal, e.int((255 - (1 << f.exponent) + 1 - 127 + f.bias) << 23))
        value = b.select(b.icmp_unsigned(">", size, e.int(f.top)), special, value)
    elif f.specials == "nan":
        value = b.select(b.icmp_unsigned(">", size, e.int(f.top)), e.int(NAN), value)
    value = b.or_(value, b.shl(sign, e.int(31 - (f.exponent + f.mantissa))))
    if f.specials == "zero":
        minus_zero = b.icmp_unsigned("==", b.and_(code, e.int(2 * f.sign - 1)), e.int(f.sign))
        value = b.select(minus_zero, e.int(NAN), value)
    return value


def _encoded(e: _Lanes, bits: ir.Value, f: Minifloat) -> ir.Value:
    """The code nearest to a float, ties to even; beyond the largest what `specials` has for it."""
    b, drop = e.b, 23 - f.mantissa
    size = b.and_(bits, e.int(0x7FFFFFFF))
    even = b.and_(b.lshr(size, e.int(drop)), e.int(1))
    rebias = e.int(((1 << (drop - 1)) - 1) - ((127 - f.bias) << 23))
    normal = b.lshr(b.add(b.add(size, rebias), even), e.int(drop))
    magic = f.step * 2.0**23                 # the sum's last place is the type's smallest number
    added = e.emit.add(b.bitcast(size, e.floats), magic)
    tiny = b.and_(b.bitcast(added, e.ints), e.int(0xFF))
    subnormal = b.icmp_unsigned("<", size, e.int((128 - f.bias) << 23))
    code = b.select(subnormal, tiny, normal)
    above = b.icmp_unsigned(">", code, e.int(f.top))
    nan = b.icmp_unsigned(">", size, e.int(0x7F800000))
    sign = b.and_(b.lshr(bits, e.int(31 - (f.exponent + f.mantissa))), e.int(f.sign))
    if f.specials == "zero":
        signed = b.select(b.icmp_unsigned("==", code, e.int(0)), e.int(0), b.or_(code, sign))
        return b.select(b.or_(above, nan), e.int(f.sign), signed)
    beyond: ir.Value = e.int(f.top if f.specials == "none" else f.top + 1)
    code = b.select(above, beyond, code)
    if f.specials == "none":
        return b.select(nan, e.int(f.sign), b.or_(code, sign))
    quiet = f.sign - 1 if f.specials == "nan" else f.sign - 2
    return b.or_(b.select(nan, e.int(quiet), code), sign)


def _power(e: _Lanes, code: ir.Value) -> ir.Value:
    """The bits of 2**(code - 127): the code is f32's exponent, but for the ends."""
    b = e.b
    value = b.select(b.icmp_unsigned("==", code, e.int(0)), e.int(1 << 22),
                     b.shl(code, e.int(23)))
    return b.select(b.icmp_unsigned("==", code, e.int(255)), e.int(NAN), value)


def _exponent(e: _Lanes, bits: ir.Value) -> ir.Value:
    """The nearest power of two's exponent, halves up, as ml_dtypes and ONNX have it (those below
    2**-126 count from 0); NaN (255) where there is none: of zero, negative numbers, infinity and
    what rounds beyond 2**127."""
    b = e.b
    subnormal = b.icmp_unsigned("<", bits, e.int(1 << 23))
    half = b.select(subnormal, e.int((1 << 22) - 1), e.int(1 << 22))
    code = b.lshr(b.add(bits, half), e.int(23))
    bad = b.or_(b.icmp_signed("<=", bits, e.int(0)),
                b.icmp_unsigned(">=", bits, e.int(0x7F800000)))
    return b.select(bad, e.int(255), code)
