"""Shape arithmetic over sizes that are not known yet, on NumPy arrays of them (dtype object).

Floats that are made of sizes (`Floor(Cast(Shape(x)) * 0.5)`) are `Ratio`s. A float that is rounded
once from a quotient of numbers below 2**24 has the floor of that quotient, so that what becomes a
size again is exact.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import require
from jitcl.ir.sizes import Size, SizePinned, divided, has_size

Array = np.ndarray[Any, Any]


def array_of(values: tuple[int, ...]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


MANTISSA = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}       # bits: integers up there are exact


@dataclass(frozen=True)
class Ratio:
    """The float nearest to num / den; den > 0."""

    num: Any
    den: Any

    def __float__(self) -> float:
        raise SizePinned(f"'{self.num} / {self.den}' is needed as a number")

    @classmethod
    def of(cls, x: Any) -> Ratio:
        if isinstance(x, Ratio):
            return x
        if type(x) is Size:
            return cls(x, 1)
        if not np.isfinite(x):
            raise SizePinned(f"arithmetic with {x} is not arithmetic of sizes")
        exact = Fraction(float(x))
        return cls(exact.numerator, exact.denominator)

    @property
    def exact(self) -> bool:
        """Whether the float is the quotient itself."""
        return type(self.den) is not Size and self.den & (self.den - 1) == 0

    def floor(self) -> Any:
        return self.num // self.den

    def ceil(self) -> Any:
        return -(-self.num // self.den)

    def towards_zero(self) -> Any:
        return _divide(self.num, self.den)


def quotient(a: Ratio, b: Ratio, dtype: str) -> Ratio:
    """a / b, rounded to a dtype. Raises SizePinned where that can't be told."""
    return _rounded(a.num * b.den, a.den * b.num, dtype, a.exact and b.exact)


def product(a: Ratio, b: Ratio, dtype: str) -> Ratio:
    """a * b, likewise."""
    return _rounded(a.num * b.num, a.den * b.den, dtype, a.exact and b.exact)


def _sum(a: Ratio, b: Ratio, dtype: str) -> Ratio:
    return _rounded(a.num * b.den + b.num * a.den, a.den * b.den, dtype, a.exact and b.exact)


def _difference(a: Ratio, b: Ratio, dtype: str) -> Ratio:
    return _sum(a, Ratio(-b.num, b.den), dtype)


def _rounded(num: Any, den: Any, dtype: str, exact: bool) -> Ratio:
    """num / den in lowest terms, where what they were made of was exact, and both are so small that
    rounding passes no integer.
    """
    if not exact or not den > 0:
        raise SizePinned(f"'{num} / {den}' is rounded twice, or has no positive divisor")
    whole, rest = divided(num, den)
    if type(rest) is not Size and rest == 0:
        num, den = whole, 1
    elif type(num) is not Size and type(den) is not Size:
        lowest = Fraction(num, den)
        num, den = lowest.numerator, lowest.denominator
    limit = 1 << MANTISSA[dtype]
    for n in (num, den):
        require(limit, n)
        require(n, -limit)
    return Ratio(num, den)


def _each(fn: Callable[..., Any], *arrays: Array) -> Array:
    return np.asarray(np.frompyfunc(fn, len(arrays), 1)(*arrays), object)


def _divide(a: Any, b: Any) -> Any:
    """Whole numbers divided as ONNX does, towards zero."""
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_BY_ELEMENT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide,
    "neg": operator.neg, "abs": abs, "min": min, "max": max,
    "mod": operator.mod, "equal": operator.eq, "less": operator.lt, "greater": operator.gt,
    "less_or_equal": operator.le, "greater_or_equal": operator.ge}
_OF_FLOATS: dict[str, Callable[[Ratio, Ratio, str], Ratio]] = {
    "add": _sum, "sub": _difference, "mul": product, "div": quotient}
_ROUNDED: dict[str, Callable[[Ratio], Any]] = {"floor": Ratio.floor, "ceil": Ratio.ceil}
_TO_ONE: dict[str, Callable[..., Any]] = {
    "reduce_prod": operator.mul, "reduce_sum": operator.add, "reduce_min": min, "reduce_max": max}
_MOVEMENT = ("gather", "concat", "reshape", "transpose", "slice", "tile", "expand")


def arithmetic(node: Node, ref: Callable[..., Any], *arrays: Array) -> Array:
    """The value of an op of sizes: an array of dtype object where one is left in it. Raises
    SizePinned for ops that are no shape arithmetic.
    """
    dtype = node.type.dtype
    whole = dtypes.is_int(dtype) or dtype == "bool"
    if node.op == "sizes":
        found = array_of(node.attr("values"))
    elif node.op == "cast" and dtypes.is_int(dtype):
        found = _each(lambda x: x if type(x) is Size else Ratio.of(x).towards_zero(), arrays[0])
    elif node.op in ("cast", *_ROUNDED, *_OF_FLOATS) and dtype in MANTISSA:
        found = _floats(node.op, dtype, *arrays)
    elif node.op == "where":
        found = np.where(*(arrays[0].astype(bool), *arrays[1:]))
    elif node.op in _BY_ELEMENT and whole and not any(node.kwargs.values()):
        found = _each(_BY_ELEMENT[node.op], *arrays)
    elif node.op in _MOVEMENT and not has_size(tuple(node.kwargs.values())):
        found = np.asarray(ref(*arrays, **node.kwargs))
    elif node.op in _TO_ONE and whole and node.type.size == 1 and arrays[0].size:
        found = np.asarray(functools.reduce(_TO_ONE[node.op], arrays[0].reshape(-1)), object)
        found = found.reshape(node.type.dims)
    else:
        raise SizePinned(f"'{node.op}' of sizes is no shape arithmetic")
    if found.dtype != object or any(type(v) in (Size, Ratio) for v in found.reshape(-1)):
        return found
    return found.astype(dtypes.to_numpy(dtype))


def _floats(op: str, dtype: str, *arrays: Array) -> Array:
    """An op that makes floats of sizes, or of such floats."""
    def element(*elements: Any) -> Any:
        ratios = [Ratio.of(x) for x in elements]
        if op in _OF_FLOATS:
            found = _OF_FLOATS[op](ratios[0], ratios[1], dtype)
        else:
            (x,) = ratios
            found = _rounded(_ROUNDED[op](x), 1, dtype, True) if op in _ROUNDED else _rounded(
                x.num, x.den, dtype, x.exact)
        known = not has_size((found.num, found.den))
        return dtypes.converted(np.asarray(found.num / found.den), dtype) if known else found
    return _each(element, *arrays)
