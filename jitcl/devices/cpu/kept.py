"""The largest magnitude of what a kernel stores, by which it flags what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from jitcl.devices.cpu.emit import I32, Emit, constant, declare, mangle, vector_of
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.vtypes import lanes_of
from jitcl.ir.kernel import OVERFLOW

__all__ = ["keep", "kept_overflows"]


@intrinsic
def keep(typingctx, x):
    """Has the thread keep the largest magnitude of f32 values, in a register for scalars and one
    for vectors: two instructions and no branch, so that loops stay vectors."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        kind = vector_of(I32, lanes_of(sig.args[0]))
        kept = _kept(b)
        if kind not in kept:
            with b.goto_entry_block():
                kept[kind] = b.alloca(kind)
                b.store(ir.Constant(kind, None), kept[kind])
        e = Emit(b, v[0].type)
        bits = b.and_(b.bitcast(v[0], kind), e.integer(0x7FFFFFFF))     # they grow as magnitudes do
        b.store(_larger(b, bits, b.load(kept[kind])), kept[kind])
        return context.get_dummy_value()

    return types.void(x), codegen


@intrinsic(prefer_literal=True)
def kept_overflows(typingctx, dtype):
    """Whether a value that this function has kept above is infinite or NaN as a `dtype`."""
    limit = int(np.float32(OVERFLOW[dtype.literal_value]).view(np.int32))

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        found: ir.Value = constant(I32, 0)
        for kind, place in _kept(b).items():
            worst = b.load(place)
            if isinstance(kind, ir.VectorType):
                worst = b.call(declare(b, f"llvm.vector.reduce.umax.{mangle(kind)}", I32, [kind]),
                               [worst])
            found = _larger(b, worst, found)
        return b.icmp_unsigned(">=", found, constant(I32, limit))

    return types.boolean(dtype), codegen


def _kept(b: ir.IRBuilder) -> dict[ir.Type, ir.Value]:
    """By type, where the function that is written keeps magnitudes."""
    if not hasattr(b.function, "jitcl_kept"):
        b.function.jitcl_kept = {}
    found: dict[ir.Type, ir.Value] = b.function.jitcl_kept
    return found


def _larger(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.call(declare(b, f"llvm.umax.{mangle(x.type)}", x.type, [x.type, x.type]), [x, y])
