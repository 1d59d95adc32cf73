"""The native loop that gives kernels to an OpenCL driver (devices/opencl/series.py)."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding, ir

SIDES = 3                           # of a work-group


def launch_loop() -> tuple[Any, Any]:
    """The function, and what holds its code."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(_module())), machine)
    engine.finalize_object()
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_uint32, *[pointer] * 6, ctypes.c_uint32, pointer)
    return kind(engine.get_function_address("launch_series")), engine


def _module() -> ir.Module:
    """launch_series(enqueue, queue, kernels, dims, items, groups, count, event) -> how many were
    taken: `count`, or the number of the one that was refused.

        for (k = 0; k < count; k++)
            if (enqueue(queue, kernels[k], dims[k], 0, items + 3 * k, groups[3 * k] ? .. : 0, 0, 0,
                        k + 1 == count ? event : 0) != CL_SUCCESS)
                break;
        return k;
    """
    byte, u32, size = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
    enqueue = ir.FunctionType(u32, [byte, byte, u32, byte, byte, byte, u32, byte, byte])
    module = ir.Module("series")
    function = ir.Function(module, ir.FunctionType(u32, [
        enqueue.as_pointer(), byte, byte.as_pointer(), u32.as_pointer(), size.as_pointer(),
        size.as_pointer(), u32, byte]), "launch_series")
    call, queue, kernels, dims, items, groups, count, event = function.args
    none = ir.Constant(byte, None)
    begin, more, one, end = map(function.append_basic_block, ("begin", "more", "one", "end"))
    ir.IRBuilder(begin).branch(more)
    b = ir.IRBuilder(more)
    k = b.phi(u32)
    k.add_incoming(u32(0), begin)
    b.cbranch(b.icmp_unsigned("<", k, count), one, end)
    b.position_at_end(one)
    after, place = b.add(k, u32(1)), b.mul(k, u32(SIDES))
    group = b.gep(groups, [place])
    free = b.icmp_unsigned("==", b.load(group), size(0))
    last = b.icmp_unsigned("==", after, count)
    status = b.call(call, [
        queue, b.load(b.gep(kernels, [k])), b.load(b.gep(dims, [k])), none,
        b.bitcast(b.gep(items, [place]), byte), b.select(free, none, b.bitcast(group, byte)),
        u32(0), none, b.select(last, event, none)])
    k.add_incoming(after, one)
    b.cbranch(b.icmp_unsigned("==", status, u32(0)), more, end)
    b.position_at_end(end)
    taken = b.phi(u32)
    taken.add_incoming(k, more)
    taken.add_incoming(k, one)
    b.ret(taken)
    return module


__all__ = ["SIDES", "launch_loop"]
