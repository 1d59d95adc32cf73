"""The scalar operations that kernels are made of: name, operands, meaning in NumPy, result type.

A renderer maps each name to its language; the interpreter calls `fn`. `same` in `result` is the
operands' type. `as_u32` is the same bits read as another stored type of as many bits. Float `div`
is IEEE division; integer `div` truncates toward zero as C does; `floordiv` and `mod` round toward
minus infinity. `min` and `max` of floats give NaN where either operand is NaN, as ONNX wants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes


@dataclass(frozen=True)
class Scalar:
    """One operation. `cost` is in FLOPs as roofline counts use them."""

    name: str
    arity: int
    fn: Callable[..., Any]
    result: str = "same"
    cost: int = 1


def _ints(a: Any, b: Any) -> bool:
    return np.result_type(a, b).kind in "iu"         # bfloat16 is no np.floating, but no int either


def _nonzero(b: Any) -> Any:
    return np.where(np.equal(b, 0), np.ones_like(b), b)     # by zero: any value, never a trap


def _trunc_div(a: Any, b: Any) -> Any:
    if not _ints(a, b):
        return np.divide(a, b)
    safe = _nonzero(b)
    quotient = np.floor_divide(a, safe)
    inexact = np.not_equal(quotient * safe, a)
    return np.where(inexact & ((np.less(a, 0)) != (np.less(safe, 0))), quotient + 1, quotient)


def _floor_div(a: Any, b: Any) -> Any:
    return np.floor_divide(a, _nonzero(b) if _ints(a, b) else b)


def _mod(a: Any, b: Any) -> Any:
    return np.mod(a, _nonzero(b) if _ints(a, b) else b)


def _fmod(a: Any, b: Any) -> Any:
    return np.fmod(a, _nonzero(b) if _ints(a, b) else b)


def _pow(a: Any, b: Any) -> Any:
    """Integers to negative powers are truncated toward zero: 0 but for the bases 1 and -1."""
    if not _ints(a, b):
        return np.power(a, b)
    power = np.power(a, np.maximum(b, 0))
    unit = np.where(np.equal(a, -1) & np.equal(np.mod(b, 2), 1), a, np.equal(np.abs(a), 1))
    return np.where(np.less(b, 0), unit, power)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x).astype(np.asarray(x).dtype)


def _uint4(x: Any, shift: Any) -> Any:
    return np.bitwise_and(np.right_shift(x, shift), 15)


def _int4(x: Any, shift: Any) -> Any:
    return np.bitwise_xor(_uint4(x, shift), 8) - np.asarray(8, np.asarray(x).dtype)


def _viewed(dtype: str) -> Callable[..., Any]:
    """The elements' bits as another type."""
    def view(x: Any) -> Any:
        bits = np.asarray(x, order="C").view(f"u{dtypes.itemsize(dtype)}")
        return bits != 0 if dtype == "bool" else bits.view(dtypes.to_numpy(dtype))
    return view


_BOOL = "bool"
SCALARS: dict[str, Scalar] = {s.name: s for s in (
    Scalar("add", 2, np.add), Scalar("sub", 2, np.subtract), Scalar("mul", 2, np.multiply),
    Scalar("div", 2, _trunc_div, cost=1), Scalar("floordiv", 2, _floor_div), Scalar("mod", 2, _mod),
    Scalar("fmod", 2, _fmod), Scalar("pow", 2, _pow, cost=8),
    Scalar("min", 2, np.minimum), Scalar("max", 2, np.maximum),
    Scalar("neg", 1, np.negative), Scalar("abs", 1, np.abs), Scalar("sign", 1, np.sign),
    Scalar("floor", 1, np.floor), Scalar("ceil", 1, np.ceil), Scalar("trunc", 1, np.trunc),
    Scalar("round", 1, np.rint),                                   # half to even
    Scalar("sqrt", 1, np.sqrt), Scalar("exp", 1, np.exp, cost=8), Scalar("log", 1, np.log, cost=8),
    Scalar("erf", 1, _erf, cost=8), Scalar("tanh", 1, np.tanh, cost=8),
    Scalar("sin", 1, np.sin, cost=8), Scalar("cos", 1, np.cos, cost=8),
    Scalar("tan", 1, np.tan, cost=8),
    Scalar("asin", 1, np.arcsin, cost=8), Scalar("acos", 1, np.arccos, cost=8),
    Scalar("atan", 1, np.arctan, cost=8), Scalar("sinh", 1, np.sinh, cost=8),
    Scalar("cosh", 1, np.cosh, cost=8), Scalar("asinh", 1, np.arcsinh, cost=8),
    Scalar("acosh", 1, np.arccosh, cost=8), Scalar("atanh", 1, np.arctanh, cost=8),
    Scalar("eq", 2, np.equal, _BOOL), Scalar("ne", 2, np.not_equal, _BOOL),
    Scalar("lt", 2, np.less, _BOOL), Scalar("le", 2, np.less_equal, _BOOL),
    Scalar("gt", 2, np.greater, _BOOL), Scalar("ge", 2, np.greater_equal, _BOOL),
    Scalar("and", 2, np.logical_and, _BOOL), Scalar("or", 2, np.logical_or, _BOOL),
    Scalar("xor", 2, np.logical_xor, _BOOL), Scalar("not", 1, np.logical_not, _BOOL),
    Scalar("isnan", 1, np.isnan, _BOOL), Scalar("isinf", 1, np.isinf, _BOOL),
    Scalar("bitand", 2, np.bitwise_and), Scalar("bitor", 2, np.bitwise_or),
    Scalar("bitxor", 2, np.bitwise_xor), Scalar("bitnot", 1, np.bitwise_not),
    Scalar("shl", 2, np.left_shift), Scalar("shr", 2, np.right_shift),
    # four bits of a value from bit b on, with and without a sign
    Scalar("int4", 2, _int4), Scalar("uint4", 2, _uint4),
    Scalar("select", 3, np.where),                                 # condition, then, else
    *(Scalar(f"as_{t}", 1, _viewed(t), t, cost=0) for t in dtypes.STORED),
)}

COMBINES = ("add", "mul", "max", "min", "and", "or")


def result_dtype(op: str, dtype: str) -> str:
    """The type of an operation's result on operands of `dtype`."""
    result = SCALARS[op].result
    return dtype if result == "same" else result


def reinterprets(op: str) -> bool:
    """Whether an operation reads bits as another type."""
    return op.startswith("as_")


def identity(combine: str, dtype: str) -> float | int | bool:
    """The value that a reduction starts from."""
    low, high = dtypes.limits(dtype)
    zero: float | int = 0.0 if dtypes.is_float(dtype) else 0
    return {"add": zero, "mul": zero + 1, "max": low, "min": high,
            "and": True, "or": False}[combine]
