"""How far two engines' results lie apart, so that a fast run with a wrong result is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Differences of float32 networks lie far below; above, the result is to be looked at first. Half
# storage and arithmetic round to 11 bits at each step.
SUSPECT = {"high": 1e-3, "normal": 3e-2, "low": 1e-1}


def largest_difference(got: Mapping[str, Any], want: Mapping[str, Any]) -> float:
    """The largest difference of a number over all outputs in `want`, relative to the largest number
    of its output. Infinite where an output is missing, has another shape or other words, or where
    only one of two numbers is NaN.
    """
    return max((_difference(got.get(name), value) for name, value in want.items()), default=0.0)


def _difference(got: Any, want: Any) -> float:
    if want is None or got is None:
        return 0.0 if want is got else np.inf
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping) or got.keys() != want.keys():
            return np.inf
        return largest_difference(got, want)
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return np.inf
        return max(map(_difference, got, want), default=0.0)
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return np.inf
    if a.dtype.kind in "OUSc" or b.dtype.kind in "OUSc":
        return 0.0 if np.array_equal(a, b) else np.inf
    return _of_numbers(a.astype(np.float64), b.astype(np.float64))


def _of_numbers(a: np.ndarray, b: np.ndarray) -> float:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a) & np.isfinite(b))[~same].all():
        return np.inf
    largest = np.abs(b[np.isfinite(b)]).max()
    with np.errstate(over="ignore", divide="ignore"):
        return float(np.abs(a[~same] - b[~same]).max() / largest)
