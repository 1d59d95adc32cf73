"""Low types (floats of eight bits or fewer, integers of four or two) and bits as they are:
conversion as ONNX's Cast has it, constants that hold several values in a byte, BitCast.

Plain conversion is `elementwise.cast`; saturation is a clip before it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    BOOL,
    F16,
    F32,
    I32,
    I64,
    Index,
    Loader,
    Sample,
    Spec,
    elementwise,
    fixed,
    indexed,
    onnx_dtype,
    onnx_rule,
    sample,
)
from jitcl.ops.pooling import flat_index

Array = np.ndarray[Any, Any]
PACKED = ("i4", "u4", "i2", "u2", "f4e2m1")
ROUNDINGS = ("up", "down", "nearest")


# ---- powers of two


def _power_type(x: TensorType, rounding: str, saturate: bool) -> TensorType:
    if x.dtype != "f32":
        raise TypeError_(f"powers of two are made of f32, got {x}: cast it")
    if rounding not in ROUNDINGS:
        raise TypeError_(f"rounding is '{rounding}', wanted {', '.join(ROUNDINGS)}")
    return x.with_(dtype="f8e8m0")


def _power_ref(x: Array, rounding: str, saturate: bool) -> Array:
    mantissa, exponent = np.frexp(x.astype(np.float64))          # x = mantissa * 2**exponent
    exponent = exponent - 1                                      # ... = (1 .. 2) * 2**exponent
    fraction = 2 * mantissa - 1
    bump = {"up": fraction > 0, "down": fraction < 0, "nearest": fraction >= 0.5}[rounding]
    if rounding != "down":                   # below 2**-126 there is 2**-127 and, for more, 2**-126
        bump = np.where(exponent < -126, (x > 2.0**-127) & (exponent >= -127), bump)
    power = np.maximum(exponent + bump, -127)
    out = (power + 127).astype(np.int64)
    out = np.where(power > 127, 254 if saturate else 255, out)
    out = np.where(np.isinf(x) & (x > 0), 254 if saturate else 255, out)
    out = np.where(x < 2.0**-127, 0 if saturate else 255, out)
    out = np.where((x < 0) | np.isnan(x), 255, out)
    return out.astype(np.uint8).view(dtypes.to_numpy("f8e8m0"))


_POWERS = fixed(0.0, 1.0, 1.1, 1.5, 1.75, 2.0, 3.0, 0.124, 3e38, math.inf, math.nan, -1.0, 1.2e-38)


@elementwise(range="exact", infer=_power_type, ref=_power_ref, samples=[
    *(sample(_POWERS, rounding=r, saturate=s) for r in ROUNDINGS for s in (True, False)),
    sample(F32(64, low=1e-3, high=1e3), rounding="nearest", saturate=True)])
def power_of_two(s: KernelBuilder, x: Expr, rounding: str, saturate: bool) -> Expr:
    """x as f8e8m0, a power of two from 2**-127 to 2**127 ("nearest" takes halves up): the exponent
    of the f32, one more where the bits behind it ask for it.

    Saturated, what is less or more becomes the first or the last, else NaN. NaN of negative numbers
    (ONNX leaves them open) and of NaN.
    """
    bits = s.as_u32(x)
    more = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}[rounding]
    small = min(more, 0x3FFFFF)              # of a subnormal the first bit behind is 2**-127
    carried = bits + s.select(bits < 0x800000, s.const(small, "u32"), more)
    code = s.shr(carried, 23)
    last, first = (254, 0) if saturate else (255, 255)
    code = s.select(code > 254, last, code)
    code = s.select(bits < 0x400000, first, code)
    code = s.select(bits > 0x7F800000, 255, code)         # NaN, or a sign
    code = s.select(s.eq(bits, 0x80000000), first, code)  # -0 is 0
    return s.cast(s.call("as_f8e8m0", s.cast(code, "u8")), "f8e8m0")


# ---- conversion


def convert(g: GraphBuilder, x: Node, to: str, saturate: bool = True, rounding: str = "up") -> Node:
    """x as ONNX's Cast converts it."""
    have = x.type.dtype
    if have == to:
        return x
    if to == "f8e8m0":
        wide = x if have == "f32" else g.cast(x, to="f32")
        return g.power_of_two(wide, rounding=rounding, saturate=saturate)
    if saturate and _may_exceed(have, to):
        largest = dtypes.largest(to)
        wide = x if have in ("f16", "bf16", "f32", "f64") else g.cast(x, to="f32")
        x = g.clip(wide, g.const(-largest, wide.type.dtype), g.const(largest, wide.type.dtype))
    return g.cast(x, to=to)


def _may_exceed(have: str, to: str) -> bool:
    """Whether values may lie beyond the largest of a low float that has more than numbers."""
    if to not in dtypes.MINIFLOATS or dtypes.MINIFLOATS[to].specials == "none":
        return False
    if have in dtypes.MINIFLOATS:
        finite = dtypes.MINIFLOATS[have].specials != "ieee"
        return not finite or dtypes.largest(have) > dtypes.largest(to)
    return have != "bool" and have not in dtypes.LOW_INTS


@onnx_rule("Cast", "CastLike")
def _cast(g: GraphBuilder, node: Any) -> Node:
    to = onnx_dtype(node.attrs["to"]) if node.op_type == "Cast" else node.inputs[1].type.dtype
    rounding = str(node.attrs.get("round_mode", "up"))
    if rounding not in ROUNDINGS:
        raise ModelError(f"attribute round_mode='{rounding}', wanted {', '.join(ROUNDINGS)}")
    return convert(g, node.inputs[0], to, bool(node.attrs.get("saturate", 1)), rounding)


# ---- bits


def _bitcast_type(x: TensorType, to: str) -> TensorType:
    have, want = dtypes.bits(x.dtype), dtypes.bits(to)
    if have != want:
        raise TypeError_(f"an element of {x} has {have} bits, one of {to} has {want}: "
                         "they must have as many")
    return x.with_(dtype=to)


def _bitcast_ref(x: Array, to: str) -> Array:
    return np.ascontiguousarray(x).view(dtypes.to_numpy(to)).reshape(x.shape)


_BITS: list[Sample] = [
    sample(F32(3, 4), to="i32"), sample(F32(3, 4), to="u32"), sample(I32(9), to="u32"),
    sample(Spec((4,), "i32", values=(1 << 30, -(1 << 31), 0, -1)), to="f32"),
    sample(F16(9), to="i16"), sample(Spec((9,), "u16", 0, 30000), to="f16"),
    sample(Spec((9,), "bf16"), to="u16"), sample(Spec((9,), "i16", -9000, 9000), to="bf16"),
    sample(Spec((5,), "f64"), to="i64"), sample(I64(5), to="f64"), sample(F32(), to="i32"),
    sample(BOOL(9), to="u8"), sample(Spec((9,), "i8", -128, 127), to="u8"),
    sample(Spec((256,), "u8", values=tuple(range(256))), to="f8e4m3"),
    sample(Spec((9,), "f8e5m2"), to="i8"), sample(Spec((9,), "f8e8m0"), to="u8"),
    sample(Spec((9,), "i4", -8, 8), to="u4"), sample(Spec((9,), "u4", 0, 16), to="f4e2m1"),
    sample(Spec((9,), "u2", 0, 4), to="i2")]


# the references of movement get elements as they are stored
@indexed("movement", range="exact", infer=_bitcast_type, ref=_bitcast_ref, samples=_BITS)
def bitcast(s: KernelBuilder, ix: Index, x: Loader, to: str) -> Expr:
    """The same bits as elements of another type of as many."""
    value = E.call(f"as_{to}", E.cast(x(*ix), x.type.dtype))
    return E.cast(value, s.compute(to))


@onnx_rule("BitCast")
def _bit_cast(g: GraphBuilder, node: Any) -> Node:
    x, to = node.inputs[0], onnx_dtype(node.attrs["to"])
    return x if x.type.dtype == to else g.bitcast(x, to=to)


# ---- constants with several values in a byte


def _unpacked_type(x: TensorType, to: str, shape: tuple[int, ...]) -> TensorType:
    if to not in PACKED:
        raise TypeError_(f"bytes hold several of {', '.join(PACKED)}, not of {to}")
    y, each = TensorType(to, tuple(shape)), 8 // dtypes.bits(to)
    if x.dtype != "u8" or x.shape != (-(-y.size // each),):
        raise ShapeError(f"{list(shape)} is {y.size} values of {8 // each} bits, {each} in each "
                         f"byte: wanted u8[{-(-y.size // each)}], got {x}")
    return y


def _unpacked_ref(x: Array, to: str, shape: tuple[int, ...]) -> Array:
    width = dtypes.bits(to)
    parts = [(x >> shift) & ((1 << width) - 1) for shift in range(0, 8, width)]
    codes = np.stack(parts, axis=-1).reshape(-1)[:math.prod(shape)].reshape(shape)
    return codes.astype(np.uint8).view(dtypes.to_numpy(to))


def _bytes(count: int) -> Spec:
    return Spec((count,), "u8", 0, 256)


@indexed("movement", infer=_unpacked_type, ref=_unpacked_ref, samples=[
    *(sample(_bytes(128 * dtypes.bits(t) // 8), to=t, shape=(2, 4, 16)) for t in PACKED),
    *(sample(_bytes(-(-15 * dtypes.bits(t) // 8)), to=t, shape=(3, 5)) for t in PACKED),
    *(sample(_bytes(1), to=t, shape=()) for t in PACKED)])
def unpack(s: KernelBuilder, ix: Index, x: Loader, to: str, shape: tuple[int, ...]) -> Expr:
    """Values from bytes that hold several each, the lowest bits first: ONNX's raw data of 4-bit and
    2-bit types."""
    width = dtypes.bits(to)
    at = flat_index(list(ix), shape) if ix else E.index(0)
    each = 8 // width
    byte, shift = s.cast(x(at // each), "i32"), s.cast(at % each * width, "i32")
    if to == "i4":
        return s.call("int4", byte, shift)
    code = s.call("uint4", byte, shift)
    if to == "u4":
        return code
    if to == "f4e2m1":
        return s.cast(s.call("as_f4e2m1", E.cast(code, "u4")), "f4e2m1")
    return s.cast(code, to)                  # the lower half of what uint4 gives
