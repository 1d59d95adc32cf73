"""Integers that stand for real numbers: 4-bit packing, dequantisation, quantisation, and the
products of such integers.

    real = (integer - zero) * scale

Weights stay as they are stored: `dequantize(unpack(w))` is inlined into whatever reads it, so that
kernels read packed weights. Import rules of the ONNX ops stand in `quantised`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.types import TensorType
from jitcl.ops.contraction import matmul_type
from jitcl.ops.core import (
    F16,
    F32,
    I32,
    Index,
    Loader,
    Sample,
    Spec,
    aligned,
    broadcast,
    elementwise,
    fixed,
    indexed,
    sample,
)
from jitcl.ops.pooling import flat_index
from jitcl.ops.window import Ints, conv_ref, conv_type, convolved

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

QUANTISED = ("u8", "i8", "u16", "i16", *dtypes.LOW_INTS, *dtypes.MINIFLOATS)


def U8(*shape: int) -> Spec:
    return Spec(shape, "u8", 0, 255)


def I8(*shape: int) -> Spec:
    return Spec(shape, "i8", -128, 127)


# ---- two values in a byte


def _unpacked_type(x: TensorType, shape: Shape) -> TensorType:
    y = TensorType("u8", tuple(shape))
    if x.dtype != "u8" or x.shape != (-(-y.size // 2),):
        raise ShapeError(
            f"{list(shape)} is {y.size} values of 4 bits, two in each byte: wanted "
            f"u8[{-(-y.size // 2)}], got {x}"
        )
    return y


def _nibbles(x: Array, shape: Shape) -> Array:
    both = np.stack([x & 15, x >> 4], axis=-1).reshape(-1)
    return both[: int(np.prod(shape))].reshape(shape)


@indexed("movement", infer=_unpacked_type, ref=_nibbles, samples=[
    sample(U8(12), shape=(4, 6)), sample(U8(8), shape=(3, 5)), sample(U8(1), shape=()),
    sample(Spec((128,), "u8", values=tuple(range(128, 256))), shape=(2, 4, 32))])
def unpack_uint4(s: KernelBuilder, ix: Index, x: Loader, shape: Shape) -> Expr:
    """Unsigned values of 4 bits from bytes that hold two each, the low half first."""
    at = flat_index(list(ix), shape) if ix else E.index(0)
    shift = s.cast(at % 2 * 4, "i32")
    return s.cast(s.call("uint4", s.cast(x(at // 2), "i32"), shift), "u8")


# ---- between integers and real numbers


def _dequantised_type(
    x: TensorType, scale: TensorType, zero: TensorType | None = None, to: str = ""
) -> TensorType:
    coded = dtypes.is_int(x.dtype) or x.dtype in dtypes.LOW_FLOATS
    if not dtypes.is_float(scale.dtype) or not coded:
        raise TypeError_(f"dequantize takes integers or low floats and a scale of floats, got {x} "
                         f"and {scale}")
    shapes = (t.shape for t in (x, scale, zero) if t is not None)
    return TensorType(to or scale.dtype, broadcast(*shapes))


def _dequantised_ref(x: Array, scale: Array, zero: Array | None = None, to: str = "") -> Array:
    wide = np.float64 if scale.dtype == np.float64 else np.float32
    numbers: Array = x.astype(wide)
    if zero is not None:
        numbers = numbers - zero.astype(wide)
    return np.asarray(numbers * scale.astype(wide))


_DEQUANTISE: list[Sample] = [
    sample(U8(2, 3), fixed(0.25, 0.5, 2.0), Spec((3,), "u8", values=(0, 128, 255))),
    sample(I8(2, 9), F32(2, 1), I8(2, 1)), sample(I8(9), F32()), sample(I32(9), F32()),
    sample(Spec((5,), "u16", 0, 65535), F32(), Spec((), "u16", values=(40000,))),
    sample(Spec((5,), "i16", -32768, 32767), F32(1), Spec((1,), "i16", values=(-30000,))),
    sample(U8(3, 4), F16(3, 1), U8(3, 1), rtol=1e-3),
    sample(U8(3, 4), F16(4), F16(4, low=0, high=15), rtol=2e-3), sample(U8(3, 4), F16(4), to="f32"),
    *(sample(Spec((3, 4), t, -8, 8), F32(4), Spec((), t, values=(1,))) for t in dtypes.LOW_INTS),
    *(sample(Spec((3, 4), t), F32(3, 1)) for t in dtypes.LOW_FLOATS),
    sample(Spec((3, 4), "f4e2m1"), F16(3, 1), Spec((3, 1), "f4e2m1"), rtol=1e-3)]


@elementwise(range="exact", infer=_dequantised_type, ref=_dequantised_ref, samples=_DEQUANTISE)
def dequantize(
    s: KernelBuilder, x: Expr, scale: Expr, zero: Expr | None = None, to: str = ""
) -> Expr:
    """(x - zero) * scale: the real numbers that integers stand for. Computed in f32, stored as
    `to` or as the scale is."""
    wide = _wide(s.out.dtype)
    centred = E.cast(x, wide)
    if zero is not None:
        centred = centred - E.cast(zero, wide)
    return E.cast(centred * E.cast(scale, wide), s.compute(s.out.dtype))


def _wide(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def _quantised_type(
    x: TensorType, scale: TensorType, zero: TensorType | None = None, *, to: str, **_: Any
) -> TensorType:
    if to not in QUANTISED:
        raise TypeError_(f"numbers are quantised to {', '.join(QUANTISED)}, not to {to}")
    if not dtypes.is_float(scale.dtype) or (zero is not None and zero.dtype != to):
        raise TypeError_(
            f"quantize to {to} takes a scale of floats and a zero point of {to}, got {scale}"
            + ("" if zero is None else f" and {zero}")
        )
    return TensorType(to, broadcast(*(t.shape for t in (x, scale, zero) if t is not None)))


def _saturated_ref(x: Array, zero: Array | None, to: str) -> Array:
    low, high = dtypes.limits(to)
    centre = 0.0 if zero is None else zero.astype(np.float64)
    whole = np.clip(np.rint(x).astype(np.float64) + centre, low, high)
    return dtypes.converted(whole, to)


def _quantised_ref(
    x: Array, scale: Array, zero: Array | None = None, *, to: str, precision: str = "f32",
    saturate: bool = True
) -> Array:
    wide = dtypes.to_numpy(_wide(precision))
    quotient = (x.astype(wide) / scale.astype(wide)).astype(dtypes.to_numpy(precision))
    if dtypes.is_int(to):
        return _saturated_ref(quotient, zero, to)
    moved = quotient.astype(wide) + (0 if zero is None else zero.astype(wide))
    most = dtypes.largest(to)
    return dtypes.converted(np.clip(moved, -most, most) if saturate else moved, to)


def _saturated(s: KernelBuilder, x: Expr, zero: Expr | None, to: str) -> Expr:
    """The whole number nearest to x, half to even, moved by zero, within the type's range."""
    whole = s.round(x)
    if zero is not None:
        whole = whole + E.cast(zero, whole.dtype)
    return s.cast(_between(s, whole, *dtypes.limits(to)), to)


def _between(s: KernelBuilder, x: Expr, low: float, high: float) -> Expr:
    return s.min(s.max(x, float(low)), float(high))


_HALVES = fixed(-1.5, -0.5, 0.5, 1.5, 2.5, 300.0, -300.0)
_QUANTISE: list[Sample] = [
    sample(_HALVES, fixed(1.0), Spec((1,), "u8", values=(128,)), to="u8"),
    sample(_HALVES, fixed(1.0), Spec((1,), "i8", values=(1,)), to="i8"),
    sample(F32(3, 4, low=-9, high=9), fixed(0.5, 0.25, 2.0, 0.125), to="i8"),
    sample(F32(9, low=-9e4, high=9e4), fixed(2.0), Spec((), "u16", values=(30000,)), to="u16"),
    sample(F32(9, low=-9e4, high=9e4), fixed(2.0), Spec((), "i16", values=(-5,)), to="i16"),
    sample(I32(9, low=-400, high=400), fixed(4.0), to="i8"),
    sample(F16(9), Spec((), "f16", values=(0.25,)), to="u8", precision="f16"),
    sample(F16(9), Spec((), "f16", values=(0.3,)), to="i8", precision="f16"),
    *(sample(_HALVES, fixed(0.5), Spec((), t, values=(1,)), to=t) for t in dtypes.LOW_INTS),
    *(sample(F32(5, 9, low=-9, high=9), fixed(0.25), to=t) for t in dtypes.MINIFLOATS),
    *(sample(fixed(-math.inf, -9e5, 9e5, math.nan, 2.0), fixed(2.0), to=t, saturate=s)
      for t in dtypes.MINIFLOATS for s in (True, False)),
    sample(_HALVES, fixed(1.0), Spec((), "f4e2m1", values=(1.5,)), to="f4e2m1"),
]


@elementwise(infer=_quantised_type, ref=_quantised_ref, samples=_QUANTISE)
def quantize(
        s: KernelBuilder, x: Expr, scale: Expr, zero: Expr | None = None, *, to: str,
        precision: str = "f32", saturate: bool = True
) -> Expr:
    """x / scale + zero as elements of type `to`: half to even, saturated (low floats only where
    `saturate`). The quotient is rounded to `precision`."""
    wide = _wide(precision)
    quotient = s.div(E.cast(x, wide), E.cast(scale, wide))
    quotient = E.cast(E.cast(quotient, precision), wide)
    if dtypes.is_int(to):
        return _saturated(s, quotient, zero, to)
    if zero is not None:
        quotient = quotient + E.cast(zero, wide)
    most = dtypes.largest(to)
    return s.cast(_between(s, quotient, -most, most) if saturate else quotient, to)


def _requantised_ref(x: Array, scale: Array, zero: Array | None = None, *, to: str) -> Array:
    return _saturated_ref(x.astype(np.float32) * scale.astype(np.float32), zero, to)


_REQUANTISE: list[Sample] = [
    sample(I32(2, 9, low=-9000, high=9000), fixed(0.03125), Spec((), "u8", values=(7,)), to="u8"),
    sample(I32(4, 3, low=-99, high=99), fixed(0.5, 1.0, 2.0), Spec((), "i8", values=(-1,)),
           to="i8"),
    sample(I32(9, low=-99, high=99), fixed(0.5), to="i8"),
]


@elementwise(infer=_quantised_type, ref=_requantised_ref, samples=_REQUANTISE)
def requantize(
    s: KernelBuilder, x: Expr, scale: Expr, zero: Expr | None = None, *, to: str
) -> Expr:
    """x * scale + zero as integers of type `to`: sums of products become what the next layer
    reads."""
    return _saturated(s, E.cast(x, "f32") * E.cast(scale, "f32"), zero, to)


# ---- products of integers, exact in i32


def _check_operands(op: str, *types: TensorType) -> None:
    for t in types:
        if t.dtype not in ("u8", "i8"):
            raise TypeError_(f"{op} takes operands and zero points of u8 or i8, got {t}")


def _zero_points(op: str, x: TensorType, zero: TensorType, name: str) -> None:
    _check_operands(op, zero)
    if broadcast(x.shape, zero.shape) != x.shape:
        raise ShapeError(f"{op}: the zero point of '{name}' {x} does not broadcast to it: {zero}")


def _matmul_integer_type(
    a: TensorType, b: TensorType, a_zero: TensorType, b_zero: TensorType
) -> TensorType:
    _check_operands("matmul_integer", a, b)
    _zero_points("matmul_integer", a, a_zero, "a")
    _zero_points("matmul_integer", b, b_zero, "b")
    if a_zero.rank and a_zero.shape[-1] != 1 or b_zero.rank > 1 and b_zero.shape[-2] != 1:
        raise ShapeError(
            f"matmul_integer: zero points are one a row of 'a' and one a column of 'b', "
            f"got {a_zero} and {b_zero}"
        )
    return matmul_type(a.with_(dtype="i32"), b.with_(dtype="i32"))


def _matmul_integer_ref(a: Array, b: Array, a_zero: Array, b_zero: Array) -> Array:
    left, right = a.astype(np.int32) - a_zero, b.astype(np.int32) - b_zero
    return np.asarray(np.matmul(left.astype(np.int32), right.astype(np.int32)))


@indexed(
    "contraction",
    infer=_matmul_integer_type,
    ref=_matmul_integer_ref,
    samples=[
        sample(U8(3, 7), I8(7, 5), Spec((), "u8", values=(130,)), Spec((), "i8", values=(0,))),
        sample(I8(2, 3, 4), U8(4, 6), I8(3, 1), U8(1, 6)),
        sample(U8(2, 1, 9), U8(2, 9, 3), U8(2, 1, 1), U8(2, 1, 3))],
)
def matmul_integer(
    s: KernelBuilder, ix: Index, a: Loader, b: Loader, a_zero: Loader, b_zero: Loader
) -> Expr:
    """i32 product of (a - a_zero) and (b - b_zero), zero points by rows of a and columns of b."""
    *batch, i, j = ix
    ia, ib = aligned(tuple(batch), a.shape[:-2]), aligned(tuple(batch), b.shape[:-2])

    def term(k: Expr) -> Expr:
        left, right = (*ia, i, k), (*ib, k, j)
        return _centred(s, a(*left), a_zero(*aligned(left, a_zero.shape))) * _centred(
            s, b(*right), b_zero(*aligned(right, b_zero.shape)))

    return s.reduce("add", (a.shape[-1],), term)


def _centred(s: KernelBuilder, x: Expr, zero: Expr) -> Expr:
    wide = s.cast(x, "i32")
    return wide if zero.is_const and zero.value == 0 else wide - s.cast(zero, "i32")


def _conv_integer_type(
    x: TensorType, w: TensorType, x_zero: TensorType, w_zero: TensorType, **attrs: Any
) -> TensorType:
    _check_operands("conv_integer", x, w)
    _zero_points("conv_integer", x, x_zero, "x")
    _zero_points("conv_integer", w, w_zero, "w")
    if x_zero.rank:
        raise ShapeError(f"conv_integer: the zero point of 'x' is one number, got {x_zero}")
    return conv_type(x.with_(dtype="i32"), w.with_(dtype="i32"), **attrs)


def _conv_integer_ref(x: Array, w: Array, x_zero: Array, w_zero: Array, **attrs: Any) -> Array:
    left, right = x.astype(np.int32) - x_zero, w.astype(np.int32) - w_zero
    return conv_ref(left.astype(np.int32), right.astype(np.int32), **attrs)


_PLAIN: dict[str, Any] = {"strides": (1, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1), "group": 1}


@indexed(
    "contraction",
    infer=_conv_integer_type,
    ref=_conv_integer_ref,
    samples=[
        sample(U8(2, 3, 6, 7), I8(4, 3, 3, 3), Spec((), "u8", values=(9,)), I8(4, 1, 1, 1),
               **_PLAIN),
        sample(I8(1, 4, 7, 7), U8(6, 2, 3, 2), Spec((), "i8", values=(-9,)),
               Spec((), "u8", values=(128,)), **{**_PLAIN, "strides": (2, 1), "group": 2}),
        sample(U8(1, 4, 8, 8), U8(4, 1, 3, 3), Spec((), "u8", values=(0,)),
               Spec((), "u8", values=(3,)), **{**_PLAIN, "dilations": (2, 1), "group": 4}),
        sample(U8(1, 2, 9), I8(3, 2, 3), U8(), I8(), strides=(1,), pads=(1, 1), dilations=(1,),
               group=1),
    ],
)
def conv_integer(
        s: KernelBuilder, ix: Index, x: Loader, w: Loader, x_zero: Loader, w_zero: Loader,
        strides: Ints, pads: Ints, dilations: Ints, group: int
) -> Expr:
    """i32 convolution of (x - x_zero) with (w - w_zero); padding counts as x_zero, that is 0."""

    def product(pixel: Index, inside: Expr, weight: Index) -> Expr:
        value = _centred(s, x(*pixel, guard=inside), x_zero())
        return s.select(inside, value, 0) * _centred(
            s, w(*weight), w_zero(*aligned(weight, w_zero.shape)))

    return convolved(s, ix, x, w, strides, pads, dilations, group, product)
