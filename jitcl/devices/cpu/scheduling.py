"""What a kernel's text says to LLVM of registers and of the order of instructions: nothing that
changes a result. Both are inline assembly without an instruction.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.vtypes import lanes_of

__all__ = ["in_memory", "in_order"]
# What inline assembly calls a register of vectors. Elsewhere `in_order` does nothing: it changes
# how fast a kernel is, never what it computes.
VECTOR_REGISTER = {"x86_64": "x", "amd64": "x", "aarch64": "w", "arm64": "w"}


@intrinsic
def in_order(typingctx, x):
    """x, which nothing is made of before all that stands above this line is stored: LLVM's
    scheduler would begin many equal lines at once, and keep in memory what no register is left
    for."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        register = VECTOR_REGISTER.get(platform.machine().lower())
        if register is None:
            return values[0]
        kind = "v" if register == "x" and lanes_of(sig.args[0]) == 16 else register
        asm = ir.FunctionType(values[0].type, [values[0].type])
        return b.asm(asm, "", f"={kind},0,~{{memory}}", values, side_effect=True)

    return x(x), codegen


@intrinsic
def in_memory(typingctx, p):
    """The pointer, so that LLVM keeps what is there in memory. It would take numbers that are
    changed in a long loop for registers that others need more, and store them elsewhere."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        asm = ir.FunctionType(values[0].type, [values[0].type])
        return b.asm(asm, "", "=r,0", values, side_effect=True)

    return p(p), codegen
