"""Element types: one short name each, and what NumPy calls it. Languages map the names in their
renderers.

`index` is the type of loop variables and of addresses inside kernels; it is never stored.

*Low* types have eight bits or fewer: integers of 4 and 2 bits, and the floats of neural networks'
weights (FP8 Formats for Deep Learning, Micikevicius et al., 2022; OCP Microscaling Formats, 2023).
An element takes a byte in memory, as ml_dtypes has it. They are how values are stored: kernels
compute in i32 or f32, and convert to a low type by way of these.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

LOW_FLOATS = ("f8e4m3", "f8e4m3z", "f8e5m2", "f8e5m2z", "f8e8m0", "f4e2m1")
LOW_INTS = ("i4", "u4", "i2", "u2")
LOW = LOW_FLOATS + LOW_INTS
FLOATS = ("f16", "bf16", "f32", "f64", *LOW_FLOATS)
SIGNED = ("i8", "i16", "i32", "i64", "i4", "i2")
UNSIGNED = ("u8", "u16", "u32", "u64", "u4", "u2")
INTEGERS = SIGNED + UNSIGNED
STORED = FLOATS + INTEGERS + ("bool",)
ALL = STORED + ("index",)

_NUMPY = {
    "f16": "float16", "f32": "float32", "f64": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "bool": "bool", "index": "int64"}
_ML_DTYPES = {                               # types that NumPy has through ml_dtypes
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn", "f8e4m3z": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2z": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
    "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}
# by ONNX's numbers (onnx.in.proto, TensorProto.DataType)
ONNX = {1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16",
        11: "f64", 12: "u32", 13: "u64", 16: "bf16", 17: "f8e4m3", 18: "f8e4m3z", 19: "f8e5m2",
        20: "f8e5m2z", 21: "u4", 22: "i4", 23: "f4e2m1", 24: "f8e8m0", 25: "u2", 26: "i2"}
_SHORT = {long: short for short, long in (_NUMPY | _ML_DTYPES).items() if short != "index"}
_SIZE = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
         "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1, "index": 8, **dict.fromkeys(LOW, 1)}
_BITS = {"f4e2m1": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}


@dataclass(frozen=True)
class Minifloat:
    """A float of a sign, exponent and mantissa bits, the highest exponent used as `specials` says:
    "ieee" for infinities and NaNs, "nan" with its highest mantissa as the only NaN, "zero" for
    numbers (what would be -0 is the only NaN), "none" for numbers (there is no NaN)."""

    exponent: int
    mantissa: int
    bias: int
    specials: str

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.exponent + self.mantissa)

    @property
    def top(self) -> int:
        """The code of the largest finite number."""
        last = self.sign - 1
        if self.specials == "ieee":
            return last - (1 << self.mantissa)
        return last - 1 if self.specials == "nan" else last

    @property
    def step(self) -> float:
        """The smallest positive number: what subnormals are multiples of."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    @property
    def largest(self) -> float:
        fraction = self.top & ((1 << self.mantissa) - 1)
        power = (self.top >> self.mantissa) - self.bias
        return float((1 + fraction / (1 << self.mantissa)) * 2.0 ** power)


MINIFLOATS = {
    "f8e4m3": Minifloat(4, 3, 7, "nan"), "f8e4m3z": Minifloat(4, 3, 8, "zero"),
    "f8e5m2": Minifloat(5, 2, 15, "ieee"), "f8e5m2z": Minifloat(5, 2, 16, "zero"),
    "f4e2m1": Minifloat(2, 1, 1, "none")}


@functools.cache
def to_numpy(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a jitcl dtype name (bf16 and low types through ml_dtypes)."""
    if dtype in _ML_DTYPES:
        import ml_dtypes  # only models that hold such types pay for the import
        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    return np.dtype(_NUMPY[dtype])


def from_numpy(dtype: Any) -> str | None:
    """The jitcl name of a NumPy dtype, or None where jitcl has no such type (strings, complex)."""
    return _SHORT.get(np.dtype(dtype).name)


def numpy_name(dtype: str) -> str:
    """What a user writes for the NumPy dtype: float32, ml_dtypes.int4."""
    return f"ml_dtypes.{_ML_DTYPES[dtype]}" if dtype in _ML_DTYPES else _NUMPY[dtype]


def itemsize(dtype: str) -> int:
    """Bytes of one stored element."""
    return _SIZE[dtype]


def bits(dtype: str) -> int:
    """Bits that an element has: of low types fewer than it takes in memory."""
    return _BITS.get(dtype, 8 * _SIZE[dtype])


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_int(dtype: str) -> bool:
    """Whether arithmetic on the type is integer arithmetic (bool excluded, index included)."""
    return dtype in INTEGERS or dtype == "index"


def compute(dtype: str) -> str:
    """The type that arithmetic on stored `dtype` runs in: small floats compute as f32, integers of
    fewer than eight bits as i32."""
    if dtype in LOW_INTS:
        return "i32"
    return "f32" if dtype in ("f16", "bf16") or dtype in LOW_FLOATS else dtype


def limits(dtype: str) -> tuple[float | int, float | int]:
    """Lowest and highest value of a type: -inf and inf for floats."""
    if is_float(dtype):
        return float("-inf"), float("inf")
    if dtype == "bool":
        return 0, 1
    if dtype in LOW_INTS:
        width = _BITS[dtype]
        half = 1 << (width - 1)
        return (-half, half - 1) if dtype in SIGNED else (0, 2 * half - 1)
    info = np.iinfo(to_numpy(dtype))
    return int(info.min), int(info.max)


def largest(dtype: str) -> float:
    """The largest finite number of a low float."""
    return 2.0 ** 127 if dtype == "f8e8m0" else MINIFLOATS[dtype].largest


def converted(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The elements as `dtype`: to and from low types by way of what they compute in. Low floats
    round to nearest even, and give infinity or NaN beyond their range; low integers wrap around."""
    wanted = to_numpy(dtype)
    if array.dtype == wanted:
        return array
    have = from_numpy(array.dtype) if array.dtype.itemsize == 1 else None
    if have in LOW:
        array = array.astype(to_numpy(compute(have)))
    if dtype in LOW:
        array = array.astype(to_numpy(compute(dtype)))
    return array.astype(wanted, copy=False)


def as_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Elements of types that NumPy has not of itself as unsigned integers; others as they are."""
    foreign = from_numpy(array.dtype) in _ML_DTYPES
    return np.asarray(array, order="C").view(f"u{array.dtype.itemsize}") if foreign else array


def from_bits(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Undoes `as_bits`."""
    if dtype in _ML_DTYPES and array.dtype == np.dtype(f"u{_SIZE[dtype]}"):
        return array.view(to_numpy(dtype))
    return array
