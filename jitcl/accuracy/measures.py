"""How far a tensor is from what it should be: one `Difference`, of many measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes

HALF_MAX = 65504.0                      # the largest number of f16
HALF_LEAST = 2.0 ** -24                 # the least above zero
BINS = tuple(range(-12, 2))             # powers of ten: edges of histograms of relative errors
_WORDS = {"float16": np.int16, "float32": np.int32, "float64": np.int64, "bfloat16": np.int16}


@dataclass(frozen=True)
class Difference:
    """Of elements that were got from those that are exact. Errors are of finite elements alone.

    relative: the largest error, in units of the exact tensor's largest element; infinite where one
    is not finite and the other is, or shapes differ. mean: of absolute errors. ulps: the largest
    error in units of the last place of the tensor's own type; None for types that have none.
    overflow, underflow: how many are infinite or NaN, or zero, and exactly are not. outside_half:
    how many exact ones f16 can't hold. histogram: how many errors lie between powers of ten (BINS),
    relative to the largest element; smaller ones are in the first.
    """

    size: int
    largest: float
    mean: float
    relative: float
    cosine: float
    ulps: int | None
    range: tuple[float, float]
    exact_range: tuple[float, float]
    overflow: int
    underflow: int
    zeros: int
    exact_zeros: int
    outside_half: int
    histogram: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return self.relative == 0.0


def parts(results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Outputs as arrays: of sequences and maps, all that is in them under names of their own."""
    found: dict[str, np.ndarray] = {}
    for name, value in results.items():
        if isinstance(value, (list, Mapping)):
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            found |= parts({f"{name}[{key!r}]": one for key, one in pairs})
        else:
            found[name] = np.asarray(value)
    return found


def errors(got: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, float]:
    """The relative error of each part of outputs; infinite where one has it and the other has not.
    """
    a, b = parts(got), parts(exact)
    return {n: difference(a[n], b[n]).relative if n in a and n in b else float("inf")
            for n in {**b, **a}}


def tells(exact: Mapping[str, Any]) -> bool:
    """Whether outputs have anything that could come out wrong: text, or a number but zero."""
    return any(x.dtype.kind in "OUS" or bool((np.isfinite(x) & (x != 0)).any())
               for x in (y if y.dtype.kind in "OUS" else y.astype(np.float64)
                         for y in parts(exact).values()))


def difference(got: Any, exact: Any) -> Difference:
    """What differs between two arrays of numbers; of text, zero where it is the same."""
    got, exact = np.asarray(got), np.asarray(exact)
    if got.dtype.kind in "OUS" or exact.dtype.kind in "OUS":
        same = got.shape == exact.shape and np.equal(got, exact, dtype=object).astype(bool)
        got, exact = np.ones(got.shape) - same, np.zeros(exact.shape)
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, exact))
    fits = got.shape == exact.shape
    if not fits:
        a = np.full_like(b, np.nan)
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    peak = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    largest = float(error.max(initial=0.0))
    relative = largest / peak if peak else (float("inf") if largest else 0.0)
    if not same.all() or not fits:
        relative = float("inf")
    return Difference(
        size=b.size, largest=largest, mean=float(error.mean()) if error.size else 0.0,
        relative=relative, cosine=_cosine(a[finite], b[finite]),
        ulps=_ulps(got, exact, finite) if fits else None,
        range=_range(a), exact_range=_range(b),
        overflow=int((~np.isfinite(a) & np.isfinite(b)).sum()),
        underflow=int(((a == 0) & (b != 0)).sum()),
        zeros=int((a == 0).sum()), exact_zeros=int((b == 0).sum()),
        outside_half=int(((np.abs(b) > HALF_MAX) | ((b != 0) & (np.abs(b) < HALF_LEAST))).sum()),
        histogram=_histogram(error / peak if peak else error))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the angle between two vectors; 1 where both are zero."""
    top = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    if not top:
        return 1.0
    a, b = a / top, b / top                     # squares neither overflow nor vanish
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, float(a @ b) / norms) if norms else 0.0


def _ulps(got: np.ndarray, exact: np.ndarray, finite: np.ndarray) -> int | None:
    """The most numbers of the exact tensor's type that lie between two elements."""
    word = _WORDS.get(exact.dtype.name)
    if word is None:
        if dtypes.is_int(dtypes.from_numpy(exact.dtype) or ""):
            return _most(got.reshape(-1)[finite], exact.reshape(-1)[finite])
        return None
    if got.dtype != exact.dtype:
        return None
    return _most(*(_ordered(x.reshape(-1)[finite], word) for x in (got, exact)))


def _ordered(x: np.ndarray, word: Any) -> np.ndarray:
    """Integers in the order of the floats: neighbours differ by one, and both zeros are 0."""
    bits = np.ascontiguousarray(x).view(word).astype(np.int64)
    least = int(np.iinfo(word).min)
    return np.where(bits < 0, least - bits, bits)


def _most(a: np.ndarray, b: np.ndarray) -> int:
    if not a.size:
        return 0
    if not a.dtype == b.dtype == np.uint64:
        a, b = a.astype(np.int64), b.astype(np.int64)
    low, high = np.minimum(a, b).view(np.uint64), np.maximum(a, b).view(np.uint64)
    return int((high - low).max())              # unsigned: it may be more than an i64 holds


def _range(x: np.ndarray) -> tuple[float, float]:
    """Of what is a number."""
    x = x[~np.isnan(x)]
    return (float(x.min()), float(x.max())) if x.size else (float("nan"), float("nan"))


def _histogram(relative: np.ndarray) -> tuple[int, ...]:
    shown = np.clip(relative, 10.0 ** BINS[0], 10.0 ** BINS[-1])
    counts, _ = np.histogram(np.log10(shown), bins=BINS)
    return tuple(int(n) for n in counts)


def bit_equal(a: Any, b: Any) -> bool:
    """Whether two results are the same to the last bit: arrays, lists of them, other values."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == object:
            return same and a.tolist() == b.tolist()
        return same and a.tobytes() == b.tobytes()
    if isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        return len(a) == len(b) and all(bit_equal(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and bool(a == b)


__all__ = ["BINS", "Difference", "bit_equal", "difference", "errors", "parts", "tells"]
