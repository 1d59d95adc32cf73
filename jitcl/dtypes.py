"""Element types: one short name each, and what NumPy calls it. Languages map the names in their
renderers.

`index` is the type of loop variables and of addresses inside kernels; it is never stored.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
STORED = FLOATS + INTEGERS + ("bool",)
ALL = STORED + ("index",)

_NUMPY = {
    "f16": "float16", "f32": "float32", "f64": "float64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "bool": "bool", "index": "int64",
}
_SHORT = {long: short for short, long in _NUMPY.items() if short != "index"}
_SIZE = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
         "u8": 1, "u16": 2, "u32": 4, "u64": 8, "bool": 1, "index": 8}


@functools.cache
def to_numpy(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a jitcl dtype name (bf16 through ml_dtypes)."""
    if dtype == "bf16":
        import ml_dtypes  # only models that hold bf16 pay for the import
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_NUMPY[dtype])


def from_numpy(dtype: Any) -> str | None:
    """The jitcl name of a NumPy dtype, or None where jitcl has no such type (strings, complex)."""
    name = np.dtype(dtype).name
    return "bf16" if name == "bfloat16" else _SHORT.get(name)


def itemsize(dtype: str) -> int:
    """Bytes of one stored element."""
    return _SIZE[dtype]


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_int(dtype: str) -> bool:
    """Whether arithmetic on the type is integer arithmetic (bool excluded, index included)."""
    return dtype in INTEGERS or dtype == "index"


def compute(dtype: str) -> str:
    """The type that arithmetic on stored `dtype` runs in: the 16-bit floats compute as f32."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def limits(dtype: str) -> tuple[float | int, float | int]:
    """Lowest and highest value of a type: -inf and inf for floats."""
    if is_float(dtype):
        return float("-inf"), float("inf")
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(to_numpy(dtype))
    return int(info.min), int(info.max)
