"""The scalar operations that kernels are made of: name, operands, meaning in NumPy, result type.

A function of floats is whole in its line here (`function`): the interpreter calls `fn`, the CPU's
kernels call the C library, OpenCL kernels its builtin, enclosures widen by `ulps`. Renderers know
the others by name. `same` in `result` is the operands' type. `as_u32` is the same bits read as
another stored type of as many bits. Float `div` is IEEE division; integer `div` truncates toward
zero as C does; `floordiv` and `mod` round toward minus infinity. `min` and `max` of floats give NaN
where either operand is NaN, as ONNX wants.
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
    """One operation. `cost` is in FLOPs as roofline counts use them; `takes` is the kind of its
    operands, any where it is empty. Where a function of floats rises or falls throughout, `ulps`
    is the larger error that OpenCL C 1.2 (7.4) allows it in its full and its embedded profile.
    """

    name: str
    arity: int
    fn: Callable[..., Any]
    result: str = "same"
    cost: int = 1
    takes: str = "numbers"          # "floats", "integers", "bool" or ""
    ulps: float | None = None
    libm: bool = False              # the C library has it, under this name


def function(name: str, fn: Callable[[Any], Any], ulps: float | None = None, *,
             libm: bool = True) -> Scalar:
    """A function of one float. Without `ulps`, ir/enclosure.py has its rule; libm=False where the
    CPU's kernels compute it inline (devices/cpu/operations.py)."""
    return Scalar(name, 1, fn, cost=8, takes="floats", ulps=ulps, libm=libm)


def _rounding(name: str, fn: Callable[[Any], Any]) -> Scalar:
    return Scalar(name, 1, fn, takes="floats", ulps=0)


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
    Scalar("min", 2, np.minimum, takes=""), Scalar("max", 2, np.maximum, takes=""),
    Scalar("neg", 1, np.negative), Scalar("abs", 1, np.abs), Scalar("sign", 1, np.sign, ulps=0),
    _rounding("floor", np.floor), _rounding("ceil", np.ceil), _rounding("trunc", np.trunc),
    _rounding("round", np.rint),                                   # half to even
    Scalar("sqrt", 1, np.sqrt, takes="floats", ulps=4),
    function("exp", np.exp, 4, libm=False), function("log", np.log, 4, libm=False),
    function("erf", _erf, 16, libm=False), function("tanh", np.tanh, 5, libm=False),
    function("sin", np.sin), function("cos", np.cos), function("tan", np.tan),
    function("asin", np.arcsin, 4), function("acos", np.arccos, 4), function("atan", np.arctan, 5),
    function("sinh", np.sinh, 4), function("cosh", np.cosh), function("asinh", np.arcsinh, 4),
    function("acosh", np.arccosh, 4), function("atanh", np.arctanh, 5),
    Scalar("eq", 2, np.equal, _BOOL, takes=""), Scalar("ne", 2, np.not_equal, _BOOL, takes=""),
    Scalar("lt", 2, np.less, _BOOL), Scalar("le", 2, np.less_equal, _BOOL),
    Scalar("gt", 2, np.greater, _BOOL), Scalar("ge", 2, np.greater_equal, _BOOL),
    *(Scalar(name, n, fn, _BOOL, takes="bool") for name, n, fn in (
        ("and", 2, np.logical_and), ("or", 2, np.logical_or), ("xor", 2, np.logical_xor),
        ("not", 1, np.logical_not))),
    Scalar("isnan", 1, np.isnan, _BOOL, takes="floats"),
    Scalar("isinf", 1, np.isinf, _BOOL, takes="floats"),
    *(Scalar(name, n, fn, takes="integers") for name, n, fn in (
        ("bitand", 2, np.bitwise_and), ("bitor", 2, np.bitwise_or), ("bitxor", 2, np.bitwise_xor),
        ("bitnot", 1, np.bitwise_not), ("shl", 2, np.left_shift), ("shr", 2, np.right_shift))),
    # four bits of a value from bit b on, with and without a sign
    Scalar("int4", 2, _int4), Scalar("uint4", 2, _uint4),
    Scalar("select", 3, np.where, takes=""),                       # condition, then, else
    *(Scalar(f"as_{t}", 1, _viewed(t), t, cost=0, takes="") for t in dtypes.STORED),
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
