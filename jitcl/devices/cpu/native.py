"""Intrinsics of the plan executor: atomics, calls through an address, waiting. Kernels of models do
not use these."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from jitcl.devices.cpu.emit import I32, I64, constant, declare
from jitcl.devices.cpu.numba_parts import intrinsic

i64 = types.int64
__all__ = [
    "peek", "poke", "fetch_add", "load_acquire", "call_kernel", "pause", "call_yield",
    "call_system", "futex"]


def _slot(b: ir.IRBuilder, table: ir.Value, k: ir.Value) -> ir.Value:
    return b.gep(b.inttoptr(table, I64.as_pointer()), [k])


@intrinsic
def peek(typingctx, table, k):
    """int64 `k` of a table."""
    return i64(i64, i64), lambda context, b, sig, v: b.load(_slot(b, *v))


@intrinsic
def poke(typingctx, table, k, value):
    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        b.store(v[2], _slot(b, v[0], v[1]))
        return context.get_dummy_value()

    return types.void(i64, i64, i64), codegen


@intrinsic
def fetch_add(typingctx, table, k, value):
    """Atomically adds to int64 `k` of a table; gives what was there before. A full fence."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        return b.atomic_rmw("add", _slot(b, v[0], v[1]), v[2], "seq_cst")

    return i64(i64, i64, i64), codegen


@intrinsic
def load_acquire(typingctx, table, k):
    return i64(i64, i64), lambda context, b, sig, v: b.load_atomic(_slot(b, *v), "seq_cst", 8)


@intrinsic
def call_kernel(typingctx, address, args, tid, nthreads):
    """Calls a kernel (or any function of its signature)."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        fnty = ir.FunctionType(ir.VoidType(), [I64] * 3)
        b.call(b.inttoptr(v[0], fnty.as_pointer()), v[1:])
        return context.get_dummy_value()

    return types.void(i64, i64, i64, i64), codegen


@intrinsic
def pause(typingctx):
    """Tells the core that this is a spin loop."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        if b.module.triple.startswith("x86"):
            b.call(declare(b, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif b.module.triple.startswith(("aarch64", "arm64")):
            b.call(declare(b, "llvm.aarch64.hint", ir.VoidType(), [I32]), [constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_yield(typingctx, address):
    """Calls sched_yield (or its like) at an address."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        b.call(b.inttoptr(v[0], ir.FunctionType(I32, []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(i64), codegen


@intrinsic
def call_system(typingctx, address, x, y, z):
    """Calls a function of the C library, of up to three integers or pointers, that returns an int.
    """

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        function = b.inttoptr(v[0], ir.FunctionType(I32, [I64] * 3).as_pointer())
        return b.sext(b.call(function, v[1:]), I64)

    return i64(i64, i64, i64, i64), codegen


@intrinsic
def futex(typingctx, syscall, number, table, k, operation, value):
    """syscall(SYS_futex, &table[k], operation, value, NULL): the low half of the int64 is what it
    compares."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        fnty = ir.FunctionType(I64, [I64] * 7)
        address = b.ptrtoint(_slot(b, v[2], v[3]), I64)
        zero = constant(I64, 0)
        b.call(b.inttoptr(v[0], fnty.as_pointer()), [v[1], address, v[4], v[5], zero, zero, zero])
        return context.get_dummy_value()

    return types.void(*([i64] * 6)), codegen
