"""Neighbours in a buffer of f32 or f16, read and written as vectors of floats in OpenCL C.

vloadN and vload_halfN promise no more than an element's alignment: compilers for Mali and Adreno
make as many accesses of them as there are elements. A pointer to vectors promises the vector's, and
is one access: where their address is known to be a multiple of it. Pieces of a vector are written
so, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.size_ranges import divisor
from jitcl.target import Target

Call = Callable[..., str]                        # (helper's name, arguments) -> its call
LANES = "0123456789abcdef"


def piece(width: int, target: Target, *multiples: int) -> int:
    """Elements of a vector of `width` that one access reads, at addresses that are sums of
    multiples of these. 1 on CPUs, which read vectors anywhere."""
    return 1 if target.device_type == "cpu" else math.gcd(width, *multiples)


def alignment(at: Expr, lane: Expr, multiples: Mapping[str, int]) -> int:
    """What the address of lane 0 is known to be a multiple of (0: it is 0), where variables are
    multiples of these numbers, by name."""
    terms, constant = E.linear(at)
    return math.gcd(divisor(constant), *(
        divisor(k) * (multiples.get(str(a.value), 1) if a.op == "var" else 1)
        for a, k in terms.items() if a is not lane))


def raw_vector(buffer: str, at: str, ctype: str, width: int, n: int) -> str:
    """A vector of elements as they lie, at a multiple of n. Whole or by elements: Oclgrind 21.10
    crashes where vectors are joined, (float4)(a, b) of float2."""
    if n < width:
        return f"vload{width}(0, {buffer} + {at})"
    return f"*(__global const {ctype}{n} *)({buffer} + {at})"


def stored_vector(buffer: str, at: str, value: str, ctype: str, width: int, n: int) -> str:
    """The statement, less its semicolon, that stores a vector of elements, n at a time."""
    if n == 1:
        return f"vstore{width}({value}, 0, {buffer} + {at})"
    if n == width:
        return f"*(__global {ctype}{n} *)({buffer} + {at}) = {value}"
    pieces = "; ".join(f"*(__global {ctype}{n} *)({buffer} + {at}{f' + {k}' if k else ''}) = "
                       f"stored.s{LANES[k:k + n]}" for k in range(0, width, n))
    return f"{ctype}{width} stored = {value}; {pieces}"


def read_vector(call: Call, target: Target, buffer: str, at: str, ctype: str, width: int,
                aligned: int = 1, kept: bool = False) -> str:
    """The floats from element `at` on, which is a multiple of `aligned`. ctype: of the buffer's
    elements, "float", "half" or "ushort" (the bits of a half); kept: the vector's are halves, too.
    """
    if kept:
        whole = raw_vector(buffer, at, ctype, width, math.gcd(width, aligned))
        return whole if width > 1 else f"{buffer}[{at}]"
    if width == 1 and ctype == "ushort":
        return call("from_f16", f"{buffer}[{at}]")
    if width == 1:
        return f"vload_half({at}, {buffer})" if ctype == "half" else f"{buffer}[{at}]"
    n = math.gcd(width, aligned) if ctype != "half" else piece(width, target, aligned)
    if n < width and ctype == "half":
        return f"vload_half{width}(0, {buffer} + {at})"
    if ctype == "half" and not target.fp16_arithmetic:
        return call(f"load_f16x{width}", f"{buffer} + {at}")
    found = raw_vector(buffer, at, ctype, width, n)
    from_halves = {"half": "from_half", "ushort": "from_f16"}.get(ctype)
    return call(f"{from_halves}x{width}", found) if from_halves else found
