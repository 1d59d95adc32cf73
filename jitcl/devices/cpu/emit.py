"""`Emit`: LLVM instructions that read alike for one float and for a vector of them.

The elementary functions in `elementary.py` are written once against this, and serve scalar loops
(which LLVM vectorises, because everything is inline arithmetic) as well as explicit vectors in
templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from jitcl.devices.cpu.host import features

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
AS_THE_THREAD = 4               # how an instruction rounds: as the thread's control word says
_SUFFIX = {str(F16): "f16", str(F32): "f32", str(F64): "f64"}


def vector_of(element: ir.Type, lanes: int) -> ir.Type:
    """`<lanes x element>`, or the element itself for lanes = 0."""
    return ir.VectorType(element, lanes) if lanes else element


def constant(ty: ir.Type, value: Any) -> ir.Constant:
    """A literal of a scalar type, or the same literal in every lane of a vector type."""
    if isinstance(ty, ir.VectorType):
        return ir.Constant(ty, [ir.Constant(ty.element, value)] * ty.count)
    return ir.Constant(ty, value)


def splat(builder: ir.IRBuilder, x: ir.Value, lanes: int) -> ir.Value:
    """One scalar in all lanes."""
    ty = ir.VectorType(x.type, lanes)
    first = builder.insert_element(ir.Constant(ty, ir.Undefined), x, ir.Constant(I32, 0))
    mask = ir.Constant(ir.VectorType(I32, lanes), None)
    return builder.shuffle_vector(first, ir.Constant(ty, ir.Undefined), mask)


def room(b: ir.IRBuilder, ty: ir.Type) -> ir.Value:
    """Memory on the thread's stack, aligned to 64 bytes, uninitialised."""
    with b.goto_entry_block():
        memory = b.alloca(ty)
    memory.align, memory.type = 64, POINTER     # of elements of any type
    return memory


def mangle(ty: ir.Type) -> str:
    """A type's part in the name of an LLVM intrinsic: f32, v16f32, i64, v8i32."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{mangle(ty.element)}"
    return _SUFFIX.get(str(ty)) or f"i{ty.width}"


def declare(
    builder: ir.IRBuilder, name: str, result: ir.Type, operands: list[ir.Type]
) -> ir.Function:
    """The module's declaration of an external or intrinsic function."""
    found = builder.module.globals.get(name)
    if found is None:
        found = ir.Function(builder.module, ir.FunctionType(result, operands), name)
    return found


class Emit:
    """Float arithmetic on one LLVM type. Literals may stand for values anywhere."""

    def __init__(self, builder: ir.IRBuilder, ty: ir.Type) -> None:
        self.b = builder
        self.ty = ty
        self.lanes = ty.count if isinstance(ty, ir.VectorType) else 0
        self.element = ty.element if self.lanes else ty
        self.bits = 64 if self.element == F64 else 32
        self.ity = vector_of(ir.IntType(self.bits), self.lanes)

    def value(self, x: Any) -> ir.Value:
        return constant(self.ty, float(x)) if isinstance(x, (int, float)) else x

    def integer(self, x: Any) -> ir.Value:
        return constant(self.ity, x) if isinstance(x, int) else x

    def call(self, name: str, *args: Any) -> ir.Value:
        """An LLVM intrinsic of one overloaded float type."""
        values = [self.value(a) for a in args]
        fn = declare(self.b, f"llvm.{name}.{mangle(self.ty)}", self.ty, [self.ty] * len(values))
        return self.b.call(fn, values)

    def add(self, x: Any, y: Any) -> ir.Value:
        return self.b.fadd(self.value(x), self.value(y))

    def sub(self, x: Any, y: Any) -> ir.Value:
        return self.b.fsub(self.value(x), self.value(y))

    def mul(self, x: Any, y: Any) -> ir.Value:
        return self.b.fmul(self.value(x), self.value(y))

    def div(self, x: Any, y: Any) -> ir.Value:
        return self.b.fdiv(self.value(x), self.value(y))

    def neg(self, x: Any) -> ir.Value:
        return self.b.fneg(x)

    def fma(self, x: Any, y: Any, z: Any) -> ir.Value:
        """x * y + z: one instruction where the CPU has it, two where it does not; never a library
        call."""
        return self.call("fmuladd", x, y, z)

    def abs(self, x: Any) -> ir.Value:
        return self.call("fabs", x)

    def rint(self, x: Any) -> ir.Value:
        return self.call("rint", x)

    def sqrt(self, x: Any) -> ir.Value:
        return self.call("sqrt", x)

    def copysign(self, x: Any, y: Any) -> ir.Value:
        return self.call("copysign", x, y)

    def lt(self, x: Any, y: Any) -> ir.Value:
        return self.b.fcmp_ordered("<", self.value(x), self.value(y))

    def gt(self, x: Any, y: Any) -> ir.Value:
        return self.b.fcmp_ordered(">", self.value(x), self.value(y))

    def eq(self, x: Any, y: Any) -> ir.Value:
        return self.b.fcmp_ordered("==", self.value(x), self.value(y))

    def isnan(self, x: Any) -> ir.Value:
        return self.b.fcmp_unordered("uno", x, x)

    def select(self, condition: Any, x: Any, y: Any) -> ir.Value:
        return self.b.select(condition, self.value(x), self.value(y))

    def at_most(self, x: Any, bound: float) -> ir.Value:
        """min(x, bound) that keeps NaN."""
        return self.select(self.gt(x, bound), bound, x)

    def at_least(self, x: Any, bound: float) -> ir.Value:
        """max(x, bound) that keeps NaN."""
        return self.select(self.lt(x, bound), bound, x)

    def poly(self, x: Any, *coefficients: float) -> ir.Value:
        """Horner's rule, highest power first."""
        total: Any = coefficients[0]
        for c in coefficients[1:]:
            total = self.fma(total, x, c)
        return total

    def bits_of(self, x: Any) -> ir.Value:
        return self.b.bitcast(x, self.ity)

    def from_bits(self, i: Any) -> ir.Value:
        return self.b.bitcast(i, self.ty)

    def to_int(self, x: Any) -> ir.Value:
        """fptosi of a value known to be in range; NaN gives any integer, never undefined
        behaviour.
        """
        ordered = self.select(self.isnan(x), 0.0, x)
        return self.b.fptosi(ordered, self.ity)

    def to_float(self, i: Any) -> ir.Value:
        return self.b.sitofp(i, self.ty)

    def scale(self, x: Any, n: Any) -> ir.Value:
        """x * 2**n for an integer n in [-300, 300] (f32) or [-2000, 2000] (f64): right into the
        denormals."""
        half = self.b.ashr(n, self.integer(1))
        return self.mul(
            self.mul(x, self.power_of_two(half)), self.power_of_two(self.b.sub(n, half)))

    @property
    def avx512(self) -> bool:
        """Whether these are vectors that AVX-512 has instructions of its own for: a power of two,
        a bound of magnitudes, a table of 16 in a register.
        """
        return self.lanes == 16 and self.element == F32 and {"avx512f", "avx512dq"} <= features()

    def times_power(self, x: Any, n: Any) -> ir.Value:
        """x * 2**floor(n) for any n, NaN and infinities too (vscalefps); where `avx512`."""
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        fn = declare(self.b, name, self.ty, [self.ty, self.ty, self.ty, I16, I32])
        return self.b.call(fn, [x, n, x, constant(I16, -1), constant(I32, AS_THE_THREAD)])

    def within(self, x: Any, bound: float) -> ir.Value:
        """x no farther from 0 than `bound`, and any such number for NaN (vrangeps: one instruction
        where a minimum and a maximum are two); where `avx512`.
        """
        name = "llvm.x86.avx512.mask.range.ps.512"
        fn = declare(self.b, name, self.ty, [self.ty, self.ty, I32, self.ty, I16, I32])
        least_magnitude = constant(I32, 2)                          # with the sign of x
        return self.b.call(fn, [x, self.value(bound), least_magnitude, x, constant(I16, -1),
                                constant(I32, AS_THE_THREAD)])

    def entry(self, table: Sequence[float], bits: Any) -> ir.Value:
        """Of a table of 16, the entry that the lowest four bits of each lane name (vpermps, beside
        the units that multiply); where `avx512`.
        """
        fn = declare(self.b, "llvm.x86.avx512.permvar.sf.512", self.ty, [self.ty, self.ity])
        return self.b.call(fn, [ir.Constant(self.ty, [ir.Constant(F32, v) for v in table]), bits])

    def power_of_two(self, n: Any) -> ir.Value:
        bias, shift = (1023, 52) if self.bits == 64 else (127, 23)
        return self.from_bits(self.b.shl(self.b.add(n, self.integer(bias)), self.integer(shift)))

    def to_double(self, x: Any) -> tuple[Emit, ir.Value]:
        """The f64 emitter of as many lanes, and x in it."""
        wide = Emit(self.b, vector_of(F64, self.lanes))
        return wide, self.b.fpext(x, wide.ty)
