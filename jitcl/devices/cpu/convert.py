"""Casts between element types, and what memory holds of each: defined for every input, NaN and
overflow too.

Floats become integers as NumPy does it on x86: truncated toward zero; out of range (or NaN) gives
the lowest i32 or i64, and narrower types keep the low bits of that.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from jitcl.devices.cpu.emit import F16, F32, I8, I16, I32, constant, vector_of
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
        b.fcmp_ordered("<", x, constant(x.type, limit)),
    )
    return b.select(fits, b.fptosi(x, ty), constant(ty, -(1 << (bits - 1))))


def from_storage(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """An element (or lanes) as it lies in memory -> the value that kernels compute with."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    if dtype == "f16":
        return b.fpext(x, vector_of(F32, lanes))
    if dtype == "bf16":
        wide = b.zext(x, vector_of(I32, lanes))
        return b.bitcast(b.shl(wide, constant(wide.type, 16)), vector_of(F32, lanes))
    if dtype == "bool":
        return b.icmp_unsigned("!=", x, constant(x.type, 0))
    return x


def to_storage(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """The value that kernels compute with -> memory. 16-bit floats round to nearest even."""
    lanes = x.type.count if isinstance(x.type, ir.VectorType) else 0
    if dtype == "f16":
        return b.fptrunc(x, vector_of(F16, lanes))
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
    return x
