"""Casts between element types, and what memory holds of each: defined for every input, NaN and
overflow too.

Floats become integers as NumPy does it on x86: truncated toward zero; out of range (or NaN) gives
the lowest i32 or i64, and narrower types keep the low bits of that.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from jitcl import dtypes
from jitcl.devices.cpu.emit import F16, F32, I8, I16, I32, constant, vector_of
from jitcl.devices.cpu.host import soft_half
from jitcl.devices.cpu.minifloats import load_low, store_low
from jitcl.devices.cpu.vtypes import llvm_type


def cast_value(b: ir.IRBuilder, x: ir.Value, source: Any, target: Any) -> ir.Value:
    """`x` of Numba scalar type `source` (in any number of lanes) as `target`."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    ty = vector_of(llvm_type(target), lanes)
    if source == target:
        return x
    if target == types.boolean:
        if isinstance(source, types.Float):
            return b.fcmp_unordered("!=", x, constant(x.type, 0.0))  # NaN is true, as in NumPy
        return b.icmp_signed("!=", x, constant(x.type, 0))
    if source == types.boolean:
        return b.uitofp(x, ty) if isinstance(target, types.Float) else b.zext(x, ty)
    if isinstance(source, types.Float):
        if isinstance(target, types.Float):
            return b.fpext(x, ty) if target.bitwidth > source.bitwidth else b.fptrunc(x, ty)
        return _float_to_int(b, x, target, lanes)
    if isinstance(target, types.Float):
        return b.sitofp(x, ty) if source.signed else b.uitofp(x, ty)
    if target.bitwidth == source.bitwidth:
        return x
    if target.bitwidth < source.bitwidth:
        return b.trunc(x, ty)
    return b.sext(x, ty) if source.signed else b.zext(x, ty)


def _float_to_int(b: ir.IRBuilder, x: ir.Value, target: Any, lanes: int) -> ir.Value:
    ty = vector_of(llvm_type(target), lanes)
    if target == types.uint64:
        above = b.fcmp_ordered(">=", x, constant(x.type, 2.0**63))
        low = _checked(b, b.select(above, b.fsub(x, constant(x.type, 2.0**63)), x), 64, lanes)
        return b.select(above, b.xor(low, constant(ty, 1 << 63)), low)
    if target.bitwidth == 64 or target == types.uint32:
        return _narrow(b, _checked(b, x, 64, lanes), ty, 64, target.bitwidth)
    return _narrow(b, _checked(b, x, 32, lanes), ty, 32, target.bitwidth)


def _narrow(b: ir.IRBuilder, x: ir.Value, ty: ir.Type, have: int, want: int) -> ir.Value:
    return b.trunc(x, ty) if want < have else x


def _checked(b: ir.IRBuilder, x: ir.Value, bits: int, lanes: int) -> ir.Value:
    """cvttss2si: truncation, and the lowest integer for what does not fit."""
    ty = vector_of(ir.IntType(bits), lanes)
    limit = 2.0 ** (bits - 1)
    fits = b.and_(
        b.fcmp_ordered(">=", x, constant(x.type, -limit)),
        b.fcmp_ordered("<", x, constant(x.type, limit)))
    return b.select(fits, b.fptosi(x, ty), constant(ty, -(1 << (bits - 1))))


def from_storage(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """An element (or lanes) as it lies in memory -> the value that kernels compute with."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    if dtype == "f16":
        return _half_to_f32(b, x, lanes) if soft_half() else b.fpext(x, vector_of(F32, lanes))
    if dtype == "bf16":
        wide = b.zext(x, vector_of(I32, lanes))
        return b.bitcast(b.shl(wide, constant(wide.type, 16)), vector_of(F32, lanes))
    if dtype == "bool":
        return b.icmp_unsigned("!=", x, constant(x.type, 0))
    return load_low(b, x, dtype) if dtype in dtypes.LOW else x


def to_storage(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """The value that kernels compute with -> memory: floats to nearest even, integers wrapped."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    if dtype == "f16":
        return _f32_to_half(b, x, lanes) if soft_half() else b.fptrunc(x, vector_of(F16, lanes))
    if dtype == "bf16":
        bits = b.bitcast(x, vector_of(I32, lanes))
        c = lambda v: constant(bits.type, v)  # noqa: E731
        even = b.and_(b.lshr(bits, c(16)), c(1))
        rounded = b.lshr(b.add(bits, b.add(even, c(0x7FFF))), c(16))
        quiet = b.or_(b.lshr(bits, c(16)), c(0x40))
        nan = b.fcmp_unordered("uno", x, x)
        return b.trunc(b.select(nan, quiet, rounded), vector_of(I16, lanes))
    if dtype == "bool":
        return b.zext(x, vector_of(I8, lanes))
    return store_low(b, x, dtype) if dtype in dtypes.LOW else x


def _half_to_f32(b: ir.IRBuilder, x: ir.Value, lanes: int) -> ir.Value:
    """By integer arithmetic: the exponent is rebiased by 112, by 224 for inf and NaN."""
    wide, floats = vector_of(I32, lanes), vector_of(F32, lanes)

    def c(value: int) -> ir.Constant:
        return constant(wide, value)

    bits = b.zext(b.bitcast(x, vector_of(I16, lanes)), wide)
    size = b.and_(bits, c(0x7FFF))
    special = b.icmp_unsigned(">=", size, c(0x7C00))
    bias = b.select(special, c(224 << 23), c(112 << 23))
    normal = b.add(b.shl(size, c(13)), bias)
    tiny = b.fmul(b.sitofp(size, floats), constant(floats, 2.0**-24))
    small = b.icmp_unsigned("<", size, c(0x400))
    value = b.select(small, b.bitcast(tiny, wide), normal)
    sign = b.shl(b.and_(bits, c(0x8000)), c(16))
    return b.bitcast(b.or_(value, sign), floats)


def _f32_to_half(b: ir.IRBuilder, x: ir.Value, lanes: int) -> ir.Value:
    """By integer arithmetic, to nearest even; the float adder rounds the subnormals."""
    wide, floats = vector_of(I32, lanes), vector_of(F32, lanes)

    def c(value: int) -> ir.Constant:
        return constant(wide, value)

    bits = b.bitcast(x, wide)
    size = b.and_(bits, c(0x7FFFFFFF))
    even = b.and_(b.lshr(size, c(13)), c(1))
    normal = b.lshr(b.add(b.sub(size, c(112 << 23)), b.add(even, c(0xFFF))), c(13))
    added = b.fadd(b.bitcast(size, floats), constant(floats, 0.5))
    tiny = b.sub(b.bitcast(added, wide), c(0x3F000000))
    half = b.select(b.icmp_unsigned("<", size, c(0x38800000)), tiny, normal)
    half = b.select(b.icmp_unsigned(">=", size, c(0x47800000)), c(0x7C00), half)
    half = b.select(b.icmp_unsigned(">", size, c(0x7F800000)), c(0x7E00), half)
    half = b.or_(half, b.and_(b.lshr(bits, c(16)), c(0x8000)))
    return b.bitcast(b.trunc(half, vector_of(I16, lanes)), vector_of(F16, lanes))
