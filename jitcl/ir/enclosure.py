"""Values with how far a correct device may be from them: what results are judged by.

A device may sum in any order, keep or lose an fma, flush denormals and be some units off in a
builtin, and still be right. So each value of a kernel is computed in float64 together with a
radius that holds every one of these answers, operation by operation (N. Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapter 3):

    a + b       ra + rb + u |a + b|                   u: unit roundoff of the type
    a * b       |a| rb + |b| ra + ra rb + u |a b|
    sum of n    sum of the terms' radii + gamma sum |terms|,  gamma = n u / (1 - n u), in any order
    f(a)        what f does to [a - ra, a + ra] + the units that OpenCL allows f
    a < b       known where |a - b| > ra + rb, else both answers are right

f32 and f64 round to nearest (u is half a unit in the last place), as the full profile demands; f16
may truncate. What lies behind an undecided comparison, rounding, index or overflow has radius
infinity where its sides differ too much to bound: anything is right there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.expr import Expr
from jitcl.ir.scalar import SCALARS, reinterprets

Array = np.ndarray
UNIT = {"f16": 2.0 ** -10, "bf16": 2.0 ** -8,
        "f32": 2.0 ** -24 + 2.0 ** -44,      # the midpoint itself is rounded, to f64
        "f64": 2.0 ** -52,
        **dict.fromkeys(dtypes.LOW_FLOATS, 0.5)}     # all that are computed in hold their values
TINY = {"f16": 2.0 ** -14, "bf16": 2.0 ** -126, "f32": 2.0 ** -126, "f64": 2.0 ** -1022}
LARGEST = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028234e38, "f64": 1.7e308}
WHOLE = {"f16": 2 ** 11, "bf16": 2 ** 8, "f32": 2 ** 24, "f64": 2 ** 53}   # integers that are exact
FLUSHED = 16                                 # terms that are added in f16 before they are in f32
FEW = 1 << 13                                # elements for which exact results are looked for


@dataclass(frozen=True)
class Enclosed:
    """Arrays that broadcast: floats in float64, integers of less than eight bits in int32, all
    else in its own type. The radius is
    `rad + rel * |mid|`; none of both means that any correct device gives `mid` itself. Where `mid`
    is NaN or infinite and the radius is finite, the device's value is so too."""

    mid: Array
    rad: Array | None = None
    rel: float = 0.0

    @property
    def exact(self) -> bool:
        return self.rad is None and self.rel == 0.0

    @property
    def radius(self) -> Array:
        """The radius, everywhere a number or inf."""
        own = np.zeros((), np.float64) if self.rad is None else self.rad
        if self.rel:
            size = np.abs(self.mid)
            spread = np.where(np.isfinite(size), self.rel * size + TINY["f32"], 0.0)
            own = own + spread
        return own


def evaluated(e: Expr, args: Sequence[Enclosed]) -> Enclosed:
    """A constant, a cast or a scalar operation, of its operands' values."""
    if e.op == "const":
        return _constant(e)
    if e.op == "cast":
        return _cast(args[0], e.args[0].dtype, e.dtype)
    if e.op == "select":
        return _select(*args)
    kind = e.args[0].dtype
    if reinterprets(e.op):
        return _reinterpreted(args[0], kind, e.dtype)
    if dtypes.is_float(kind):
        return _FLOAT[e.op](kind, *args) if e.op in _FLOAT else _comparison(e.op, *args)
    if all(a.exact for a in args):
        return _integers(e, [a.mid for a in args])
    return _uncertain(e, *args)


def _constant(e: Expr) -> Enclosed:
    if not dtypes.is_float(e.dtype):
        dtype = "i32" if e.dtype in dtypes.LOW_INTS else e.dtype
        return Enclosed(np.asarray(e.value, dtypes.to_numpy(dtype)))
    if e.dtype == "f64":
        return Enclosed(np.asarray(e.value, np.float64))
    single = np.asarray(e.value, np.float32).astype(np.float64)
    if e.dtype == "f32":
        return Enclosed(single)
    half = single.astype(dtypes.to_numpy(e.dtype)).astype(np.float64)
    off = np.abs(half - single)              # code that computes in f32 writes it as f32
    return Enclosed(single, off) if np.isfinite(off) and off > 0 else Enclosed(single)


# ---- rounding

def _rounded(dtype: str, mid: Array, rad: Array | None, *operands: Enclosed,
             unit: float | None = None) -> Enclosed:
    """A result before rounding, after it: to `unit` (relative), where it is not exact."""
    if rad is None and unit is None and mid.size <= FEW:
        with np.errstate(all="ignore"):
            lost = mid.astype(dtypes.to_numpy(dtype)).astype(np.float64) != mid
        lost &= np.isfinite(mid)
        if dtype == "f64" or not lost.any():
            return _settled(dtype, mid, None if dtype != "f64" else UNIT["f64"] * np.abs(mid),
                            *operands)
        rad = np.where(lost, UNIT[dtype] * np.abs(mid) + TINY[dtype], 0.0)
        return _settled(dtype, mid, rad, *operands)
    inner = np.zeros((), np.float64) if rad is None else rad
    spread = (UNIT[dtype] if unit is None else unit) * (np.abs(mid) + inner) + TINY[dtype]
    return _settled(dtype, mid, inner + spread, *operands)


def _settled(dtype: str, mid: Array, rad: Array | None, *operands: Enclosed) -> Enclosed:
    """The radius made a number everywhere: infinite where the type may overflow or an operand is
    unknown, 0 at an infinity or NaN that known operands give."""
    largest = float(np.abs(mid).max()) if mid.size else 0.0
    spread = 0.0 if rad is None or not rad.size else float(rad.max())
    if largest + spread <= LARGEST[dtype]:
        return Enclosed(mid, rad)
    known = _known(*operands)
    radius = np.broadcast_to(np.zeros(()) if rad is None else rad,
                             np.broadcast_shapes(mid.shape, np.shape(rad) if rad is not None
                                                 else (), known.shape)).copy()
    finite = np.broadcast_to(np.isfinite(mid), radius.shape)
    radius[np.isnan(radius) | (finite & ~(np.abs(mid) + radius <= LARGEST[dtype]))] = np.inf
    radius[~finite] = np.where(np.broadcast_to(known, radius.shape), 0.0, np.inf)[~finite]
    return Enclosed(mid, radius)


def _known(*operands: Enclosed) -> Array:
    """Where all operands have finite radii."""
    known = np.ones((), bool)
    for x in operands:
        known = known & np.isfinite(x.radius)
    return known


# ---- arithmetic of floats

def _add(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    return _rounded(dtype, a.mid + b.mid, _total(a, b), a, b)


def _sub(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    return _rounded(dtype, a.mid - b.mid, _total(a, b), a, b)


def _total(a: Enclosed, b: Enclosed) -> Array | None:
    return None if a.exact and b.exact else a.radius + b.radius


def _mul(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    mid = a.mid * b.mid
    if a.rad is None and b.rad is None:
        if mid.size > FEW and dtype != "f16":         # the terms of a long sum
            rel = (1 + a.rel) * (1 + b.rel) * (1 + UNIT[dtype]) - 1
            return Enclosed(mid, None, rel)
        if a.exact and b.exact:
            return _rounded(dtype, mid, None, a, b)
    ra, rb = a.radius, b.radius
    rad = np.abs(a.mid) * rb + np.abs(b.mid) * ra + ra * rb
    if not np.isfinite(mid).all():                    # inf * (0 +- r) may be NaN, or of either sign
        sure = ((ra == 0) | (np.abs(a.mid) > ra)) & ((rb == 0) | (np.abs(b.mid) > rb))
        rad = np.where(np.isfinite(mid) | sure, rad, np.inf)
        return _settled(dtype, mid, rad, a, b, Enclosed(mid, np.where(sure, 0.0, np.inf)))
    return _rounded(dtype, mid, rad, a, b)


def _div(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    """3 units, and half a one where a schedule multiplies with the reciprocal."""
    mid, unit = a.mid / b.mid, 8 * UNIT[dtype]
    if a.exact and b.exact:
        return _rounded(dtype, mid, None, a, b, unit=unit)
    ra, rb = a.radius, b.radius
    away = np.abs(b.mid) - rb
    rad = np.where(away > 0, (ra + np.abs(mid) * rb) / np.where(away > 0, away, 1.0),
                   np.where(rb == 0, ra, np.inf))
    sure = (away > 0) | (rb == 0) & (ra == 0)
    return _rounded(dtype, mid, rad, a, b, Enclosed(mid, np.where(sure, 0.0, np.inf)), unit=unit)


def _sup(fn: Callable[..., Any]) -> Callable[..., Enclosed]:
    """max and min: the ends of both intervals bound them."""
    def rule(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
        mid = fn(a.mid, b.mid)
        if a.exact and b.exact:
            return _settled(dtype, mid, None, a, b)
        ra, rb = a.radius, b.radius
        above, below = fn(a.mid + ra, b.mid + rb) - mid, mid - fn(a.mid - ra, b.mid - rb)
        return _settled(dtype, mid, np.maximum(above, below), a, b)
    return rule


def _neg(dtype: str, a: Enclosed) -> Enclosed:
    return Enclosed(-a.mid, a.rad, a.rel)


def _abs(dtype: str, a: Enclosed) -> Enclosed:
    return Enclosed(np.abs(a.mid), a.rad, a.rel)


# ---- functions of floats

def _monotone(fn: Callable[[Array], Array], ulps: float) -> Callable[..., Enclosed]:
    """A rising or falling function: the ends of the interval bound it."""
    def rule(dtype: str, a: Enclosed) -> Enclosed:
        mid, unit = fn(a.mid), 2 * ulps * UNIT[dtype]
        if a.exact:
            if not ulps:
                return Enclosed(mid)
            return _rounded(dtype, mid, None, a, unit=unit)
        ra = a.radius
        low, high = fn(a.mid - ra), fn(a.mid + ra)
        rad = np.maximum(np.abs(high - mid), np.abs(mid - low))
        sure = np.isnan(low) & np.isnan(high) & np.isnan(mid) | np.isfinite(rad)
        sure |= ~np.isfinite(a.mid)
        rad = np.where(sure & np.isfinite(mid), rad, np.where(sure, 0.0, np.inf))
        if not ulps:
            return Enclosed(mid, rad)
        known = Enclosed(mid, np.where(sure & np.isfinite(ra), 0.0, np.inf))
        return _rounded(dtype, mid, rad, known, unit=unit)
    return rule


def _wave(fn: Callable[[Array], Array]) -> Callable[..., Enclosed]:
    """sin and cos: their slope is 1 at most."""
    def rule(dtype: str, a: Enclosed) -> Enclosed:
        rad = None if a.exact else a.radius
        return _rounded(dtype, fn(a.mid), rad, a, unit=2 * 4 * UNIT[dtype])
    return rule


def _tan(dtype: str, a: Enclosed) -> Enclosed:
    ra = a.radius
    same = np.floor((a.mid - ra) / np.pi + 0.5) == np.floor((a.mid + ra) / np.pi + 0.5)
    found = _monotone(np.tan, 5)(dtype, a)
    return Enclosed(found.mid, np.where(same | ~np.isfinite(a.mid), found.radius, np.inf))


def _cosh(dtype: str, a: Enclosed) -> Enclosed:
    return _monotone(np.cosh, 4)(dtype, _abs(dtype, a))


def _pow(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    """Of a positive base, monotone in both: the corners bound it. Of any other, known operands."""
    mid, unit = np.power(a.mid, b.mid), 2 * 16 * UNIT[dtype]
    if a.exact and b.exact:
        return _rounded(dtype, mid, None, a, b, unit=unit)
    ra, rb = a.radius, b.radius
    low = np.maximum(a.mid - ra, TINY[dtype])
    ends = [np.abs(np.power(x, b.mid + s * rb) - mid) for x in (low, a.mid + ra) for s in (-1, 1)]
    positive = np.maximum.reduce(np.broadcast_arrays(*ends))
    slope = np.abs(b.mid) * np.power(np.abs(a.mid) + ra, np.abs(b.mid - 1)) * ra
    whole = (rb == 0) & (b.mid == np.rint(b.mid)) & (b.mid >= 1)
    rad = np.where(a.mid - ra > 0, positive, np.where(whole, slope,
                                                     np.where((ra == 0) & (rb == 0), 0.0, np.inf)))
    return _rounded(dtype, mid, rad, a, b, unit=unit)


def _fmod(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    return _remainder(dtype, np.fmod(a.mid, b.mid), np.trunc, a, b)


def _mod(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    return _remainder(dtype, np.mod(a.mid, b.mid), np.floor, a, b)


def _remainder(dtype: str, mid: Array, whole: Callable[[Array], Array], a: Enclosed,
               b: Enclosed) -> Enclosed:
    """Exact of known operands; else a - q b with a known q."""
    if a.exact and b.exact:
        return _rounded(dtype, mid, None, a, b)
    ra, rb = a.radius, b.radius
    away = np.abs(b.mid) - rb
    q, off = a.mid / b.mid, (ra + np.abs(a.mid / b.mid) * rb) / np.where(away > 0, away, 1.0)
    same = (away > 0) & (whole(q - off) == whole(q + off))
    rad = np.where(same, ra + np.abs(whole(q)) * rb, np.inf)
    return _rounded(dtype, mid, rad, a, b)


def _floordiv(dtype: str, a: Enclosed, b: Enclosed) -> Enclosed:
    return _monotone(np.floor, 0)(dtype, _div(dtype, a, b))


_FLOAT: dict[str, Callable[..., Enclosed]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "max": _sup(np.maximum),
    "min": _sup(np.minimum), "neg": _neg, "abs": _abs, "pow": _pow, "fmod": _fmod, "mod": _mod,
    "floordiv": _floordiv, "sin": _wave(np.sin), "cos": _wave(np.cos), "tan": _tan, "cosh": _cosh,
    **{s.name: _monotone(s.fn, s.ulps) for s in SCALARS.values() if s.ulps is not None}}


# ---- truth values and choices

def _truth(mid: Array, known: Array) -> Enclosed:
    known = np.asarray(known)
    return Enclosed(mid) if known.all() else Enclosed(mid, np.where(known, 0.0, np.inf))


def _comparison(op: str, a: Enclosed, *rest: Enclosed) -> Enclosed:
    mid = np.asarray(SCALARS[op].fn(a.mid, *(x.mid for x in rest)))
    if all(x.exact for x in (a, *rest)):
        return Enclosed(mid)
    if not rest:                             # isnan, isinf
        return _truth(mid, np.isfinite(a.radius))
    b = rest[0]
    ra, rb = a.radius, b.radius
    gap = np.abs(np.subtract(a.mid, b.mid, dtype=np.float64))
    apart = (gap > ra + rb) | ((ra == 0) & (rb == 0)) | ~np.isfinite(gap)
    return _truth(mid, apart & np.isfinite(ra) & np.isfinite(rb))


def _logic(op: str, args: Sequence[Enclosed]) -> Enclosed:
    mid = np.asarray(SCALARS[op].fn(*(x.mid for x in args)))
    known = [x.radius == 0 for x in args]
    if op in ("and", "or") and len(args) == 2:
        decides = [k & (np.asarray(x.mid) == (op == "or")) for k, x in zip(known, args)]
        return _truth(mid, known[0] & known[1] | decides[0] | decides[1])
    return _truth(mid, np.logical_and.reduce(np.broadcast_arrays(*known)))


def _select(c: Enclosed, a: Enclosed, b: Enclosed) -> Enclosed:
    mid = np.where(c.mid, a.mid, b.mid)
    if c.exact and a.exact and b.exact:
        return Enclosed(mid)
    ra, rb = a.radius, b.radius
    rad = np.where(c.mid, ra, rb)
    if not c.exact:
        gap = np.abs(np.subtract(a.mid, b.mid, dtype=np.float64))
        either = np.where(np.isfinite(gap), gap + np.maximum(ra, rb), np.inf)
        rad = np.where(c.radius == 0, rad, either)
    return Enclosed(mid, rad)


# ---- integers

_DIVIDES = ("div", "floordiv", "mod", "fmod")


def _integers(e: Expr, mids: list[Array]) -> Enclosed:
    """Exact, as the interpreter has it; what C leaves open is unknown."""
    mid = np.asarray(SCALARS[e.op].fn(*mids)).astype(dtypes.to_numpy(e.dtype), copy=False)
    if e.op in _DIVIDES and (zero := np.equal(mids[1], 0)).any():
        return _truth(mid, ~zero)
    if e.op in ("shl", "shr"):
        bits = 8 * dtypes.itemsize(e.args[0].dtype)
        inside = (mids[1] >= 0) & (mids[1] < bits)
        return _truth(mid, inside) if not np.all(inside) else Enclosed(mid)
    return Enclosed(mid)


def _uncertain(e: Expr, *args: Enclosed) -> Enclosed:
    """Integers and truth values that hang on an undecided float."""
    if e.args[0].dtype == "bool":
        return _logic(e.op, args)
    if SCALARS[e.op].result == "bool":
        return _comparison(e.op, *args)
    mid = np.asarray(SCALARS[e.op].fn(*(a.mid for a in args))).astype(
        dtypes.to_numpy(e.dtype), copy=False)
    r = [a.radius for a in args]
    if e.op in ("add", "sub"):
        return Enclosed(mid, r[0] + r[1])
    if e.op in ("max", "min"):
        return Enclosed(mid, np.maximum(*r))
    if e.op in ("neg", "abs"):
        return Enclosed(mid, r[0])
    if e.op == "mul":
        sizes = [np.abs(a.mid.astype(np.float64)) for a in args]
        rad = sizes[0] * r[1] + sizes[1] * r[0] + r[0] * r[1]
        return Enclosed(mid, np.where(np.isnan(rad), np.inf, rad))
    return Enclosed(mid, np.where(np.add.reduce(np.broadcast_arrays(*r)) == 0, 0.0, np.inf))


# ---- casts

def _cast(x: Enclosed, have: str, to: str) -> Enclosed:
    if to == "bool":
        return _comparison("ne", x, Enclosed(np.zeros((), np.float64)))
    if to in dtypes.LOW:
        return _to_low(x, have, to)
    if dtypes.is_float(to):
        return _to_float(x, have, to)
    if dtypes.is_float(have):
        return _float_to_int(x, to)
    return Enclosed(x.mid.astype(dtypes.to_numpy(to)), x.rad, x.rel)


def _to_float(x: Enclosed, have: str, to: str) -> Enclosed:
    if dtypes.is_float(have):
        if UNIT[to] <= UNIT[have] and to != "f16":           # wider
            return x
        return _rounded(to, x.mid, None if x.exact else x.radius, x)
    mid = x.mid.astype(np.float64)
    rad = None if x.exact else x.radius
    if have == "bool":
        return Enclosed(mid, rad if rad is None else np.where(rad == 0, 0.0, 1.0))
    if rad is None and mid.size and float(np.abs(mid).max()) <= WHOLE[to]:
        return Enclosed(mid)
    return _rounded(to, mid, rad, x)


def _to_low(x: Enclosed, have: str, to: str) -> Enclosed:
    """Low types have so few values that both ends of the interval are converted: conversion never
    falls. Where integers may wrap around, and where only one end is a number, anything is right."""
    if to in dtypes.LOW_INTS:
        x = _float_to_int(x, "i32") if dtypes.is_float(have) else x
        low, high = dtypes.limits(to)
        wrapped = dtypes.converted(dtypes.converted(x.mid, to), "i32")
        if x.exact:
            return Enclosed(wrapped)
        inside = (x.mid - x.radius >= low) & (x.mid + x.radius <= high)
        return Enclosed(wrapped, np.where(inside | (x.radius == 0), x.radius, np.inf))

    def low_float(values: Array) -> Array:
        return dtypes.converted(np.asarray(values), to).astype(np.float64)
    mid = low_float(x.mid)
    if x.exact:
        return Enclosed(mid)
    ends = [low_float(x.mid.astype(np.float64) + s * x.radius) for s in (-1, 1)]
    off = np.maximum(ends[1] - mid, mid - ends[0])
    same = [(e == mid) | (np.isnan(e) & np.isnan(mid)) for e in ends]
    sure = np.isfinite(x.radius)
    off = np.where(sure & same[0] & same[1], 0.0, off)
    return Enclosed(mid, np.where(sure & np.isfinite(off), off, np.inf))


def _reinterpreted(x: Enclosed, have: str, to: str) -> Enclosed:
    """The same bits as another type: known where the number is, and no NaN, which has many."""
    bits = np.asarray(SCALARS[f"as_{to}"].fn(dtypes.converted(np.asarray(x.mid), have)))
    known = (x.radius == 0) & ~np.isnan(x.mid.astype(np.float64))
    if dtypes.is_float(to):
        bits = bits.astype(np.float64)
    elif to in dtypes.LOW_INTS:
        bits = bits.astype(np.int32)
    return _truth(bits, known)


def _float_to_int(x: Enclosed, to: str) -> Enclosed:
    """Truncated; unknown outside the type, where languages differ."""
    low, high = dtypes.limits("i64" if to == "index" else to)
    ends = [np.trunc(x.mid)] if x.exact else [np.trunc(x.mid - x.radius), np.trunc(x.mid),
                                              np.trunc(x.mid + x.radius)]
    inside = np.isfinite(ends[0]) & np.isfinite(ends[-1]) & (ends[0] >= low) & (
        ends[-1] < float(high) + 1)
    middle = ends[len(ends) // 2]
    mid = np.where(inside, middle, 0.0).astype(dtypes.to_numpy(to))
    if x.exact:
        return _truth(mid, inside)
    rad = np.maximum(ends[2] - ends[1], ends[1] - ends[0])
    return Enclosed(mid, np.where(inside, rad, np.inf))
