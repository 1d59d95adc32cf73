"""Numba types of generated kernels: `Vector(dtype, lanes)` and `Pointer(dtype, scope)`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import models, register_model

from jitcl import dtypes
from jitcl.devices.cpu.emit import F16, F32, F64, I1, I8, I16, I64, POINTER, vector_of

#: jitcl dtype -> Numba type of a value in a kernel (16-bit and low types are read as f32 or i32)
DTYPES = {
    "f16": types.float32, "bf16": types.float32, "f32": types.float32, "f64": types.float64,
    "i8": types.int8, "i16": types.int16, "i32": types.int32, "i64": types.int64, "u8": types.uint8,
    "u16": types.uint16, "u32": types.uint32, "u64": types.uint64, "bool": types.boolean,
    "index": types.int64, **dict.fromkeys(dtypes.LOW_FLOATS, types.float32),
    **dict.fromkeys(dtypes.LOW_INTS, types.int32)}
#: jitcl dtype -> LLVM type of an element in memory
STORAGE = {
    "f16": F16, "bf16": I16, "f32": F32, "f64": F64, "bool": I8, "index": I64,
    **{f"{sign}{n}": ir.IntType(n) for sign in "iu" for n in (8, 16, 32, 64)},
    **dict.fromkeys(dtypes.LOW, I8)}


class Vector(types.Type):
    """`lanes` values of one Numba scalar type in an LLVM vector; of booleans, a mask."""

    def __init__(self, dtype: Any, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


class Pointer(types.Type):
    """The address of elements of a jitcl dtype. Pointers of different scopes never alias, unless
    only read."""

    def __init__(self, dtype: str, scope: int) -> None:
        self.dtype, self.scope = dtype, scope
        super().__init__(name=f"Pointer({dtype}, {scope})")


def llvm_type(ty: Any) -> ir.Type:
    """The LLVM type of a Numba scalar's or Vector's value."""
    if isinstance(ty, Vector):
        return vector_of(llvm_type(ty.dtype), ty.lanes)
    if ty == types.boolean:
        return I1
    if isinstance(ty, types.Float):
        return F64 if ty.bitwidth == 64 else F32
    return ir.IntType(ty.bitwidth)


def element_type(ty: Any) -> Any:
    """The Numba scalar type of a value: a Vector's lane, or the scalar itself (literals become
    their type)."""
    if isinstance(ty, Vector):
        return ty.dtype
    return types.unliteral(ty)


def lanes_of(ty: Any) -> int:
    return ty.lanes if isinstance(ty, Vector) else 0


def with_element(ty: Any, element: Any) -> Any:
    """The same shape (scalar or lanes) of another element type."""
    return Vector(element, ty.lanes) if isinstance(ty, Vector) else element


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Vector) -> None:
        super().__init__(manager, ty, llvm_type(ty))


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Pointer) -> None:
        super().__init__(manager, ty, POINTER)
