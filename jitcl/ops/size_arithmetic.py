"""Shape arithmetic over sizes that are not known yet, on NumPy arrays of them (dtype object).

Floats that are made of sizes (`Floor(Cast(Shape(x)) * 0.5)`) are `Ratio`s. A float that is rounded
once from a quotient of numbers below 2**24 has the floor of that quotient, so that what becomes a
size again is exact. Others (`Sqrt`, by 0.7, what is rounded twice) are `Formula`s, and what becomes
a size again is computed for each shape.
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
from jitcl.ir.size_formulas import DTYPES, Formula, computed, spaces
from jitcl.ir.size_formulas import OPS as FORMULAS
from jitcl.ir.size_ranges import largest, least, require
from jitcl.ir.sizes import Size, SizePinned, divided, has_size, is_size

Array = np.ndarray[Any, Any]


def array_of(values: tuple[int, ...]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


GROWTH = 16                     # a Ratio is for sizes that are so many times what they are now
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
        if isinstance(x, Formula):
            raise SizePinned(f"'{x}' is no quotient of sizes")
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
    rounding passes no integer, with room to grow.
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
    if any(is_size(n) and GROWTH * max(abs(n.hint), abs(n.space.actual(n))) > limit
           for n in (num, den)):
        raise SizePinned(f"'{num} / {den}' is too long for {dtype}")
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
    "neg": operator.neg, "abs": abs, "min": least, "max": largest,
    "mod": operator.mod, "equal": operator.eq, "less": operator.lt, "greater": operator.gt,
    "less_or_equal": operator.le, "greater_or_equal": operator.ge}
_OF_FLOATS: dict[str, Callable[[Ratio, Ratio, str], Ratio]] = {
    "add": _sum, "sub": _difference, "mul": product, "div": quotient}
_ROUNDED: dict[str, Callable[[Ratio], Any]] = {"floor": Ratio.floor, "ceil": Ratio.ceil}
_TO_ONE: dict[str, tuple[str, Callable[..., Any]]] = {
    "reduce_prod": ("mul", operator.mul), "reduce_sum": ("add", operator.add),
    "reduce_min": ("min", least), "reduce_max": ("max", largest)}
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
        found = _each(whole_of, arrays[0])
    elif node.op in ("cast", *FORMULAS) and dtype in MANTISSA:
        found = _each(lambda *xs: float_of(node.op, dtype, *xs), *arrays)
    elif node.op == "where":
        found = np.where(*(arrays[0].astype(bool), *arrays[1:]))
    elif node.op in _BY_ELEMENT and whole and not any(node.kwargs.values()):
        found = _each(_BY_ELEMENT[node.op], *arrays)
    elif node.op in _MOVEMENT and not has_size(tuple(node.kwargs.values())):
        found = np.asarray(ref(*arrays, **node.kwargs))
    elif node.op in _TO_ONE and node.type.size == 1 and arrays[0].size and (
            whole or dtype in MANTISSA):
        of_floats, of_whole = _TO_ONE[node.op]
        fold = of_whole if whole else functools.partial(float_of, of_floats, dtype)
        found = np.asarray(functools.reduce(fold, arrays[0].reshape(-1)), object)
        found = found.reshape(node.type.dims)
    else:
        raise SizePinned(f"'{node.op}' of sizes is no shape arithmetic")
    if found.dtype != object or any(
            type(v) in (Size, Ratio, Formula) for v in found.reshape(-1)):
        return found
    return found.astype(dtypes.to_numpy(dtype))


def float_of(op: str, dtype: str, *operands: Any) -> Any:
    """What an op makes of sizes, or of floats of sizes: a number where that is known."""
    try:
        ratios = [Ratio.of(x) for x in operands]
        if op in _OF_FLOATS:
            found = _OF_FLOATS[op](ratios[0], ratios[1], dtype)
        elif op in _ROUNDED:
            found = _rounded(_ROUNDED[op](ratios[0]), 1, dtype, True)
        elif op == "cast":
            found = _rounded(ratios[0].num, ratios[0].den, dtype, ratios[0].exact)
        else:
            raise SizePinned(f"'{op}' makes no quotient")
    except SizePinned:
        return _formula(op, dtype, *operands)
    known = not has_size((found.num, found.den))
    return dtypes.converted(np.asarray(found.num / found.den), dtype) if known else found


def _formula(op: str, dtype: str, *operands: Any) -> Any:
    """An op as a formula; a number where all operands are."""
    if dtype not in DTYPES or op not in FORMULAS:
        raise SizePinned(f"'{op}' of {dtype} of sizes is no shape arithmetic")
    found = Formula(op, dtype, tuple(
        Formula("div", dtype, (x.num, x.den)) if isinstance(x, Ratio) else
        x if isinstance(x, (Formula, Size)) else float(x) for x in operands))
    return found if spaces(found) else found.at(())


def whole_of(x: Any) -> Any:
    """A float of sizes as a whole number, towards zero."""
    if type(x) is Size:
        return x
    return computed(x) if isinstance(x, Formula) else Ratio.of(x).towards_zero()
