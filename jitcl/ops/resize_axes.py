"""How an axis is resized: where each place of the result lies among the elements, and the tables
that come of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jitcl.errors import ModelError
from jitcl.ir.size_ranges import require
from jitcl.ir.sizes import has_size
from jitcl.ops.size_arithmetic import Ratio

Array = np.ndarray[Any, Any]
Step = tuple[int, int, int]
FEW = 64                        # numerators and denominators of scales whose steps are periodic
PERIODS = 8                     # of them that a step is found from
EXACT = 1 << 20                 # places up to here are told apart in float32, halves too
HALF = 1e-6                     # so near to a half is a half to nearest_mode, as in onnxruntime


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: its extents, scale (output an input element) and region of
    interest. Extents may be sizes; the scale is a Ratio where it is made of them."""

    size: int
    out: int
    scale: np.float32 | Ratio
    roi: tuple[np.float32, np.float32] = (np.float32(0), np.float32(1))

    @property
    def sized(self) -> bool:
        return has_size((self.size, self.out)) or isinstance(self.scale, Ratio)

    def coordinates(self, mode: str) -> Array:
        """Where each output element lies, in input elements: float32."""
        assert not isinstance(self.scale, Ratio)
        o = np.arange(self.out, dtype=np.float32)
        half, last = np.float32(0.5), np.float32(self.size - 1)
        if mode == "align_corners":         # the integer length: torch's and onnxruntime's corners
            return o * 0 if self.out == 1 else o * last / np.float32(self.out - 1)
        if mode == "asymmetric":
            return o / self.scale
        if mode == "tf_half_pixel_for_nn":
            return (o + half) / self.scale
        if mode == "tf_crop_and_resize":
            start, end = self.roi
            if self.out == 1:
                return o * 0 + half * (start + end) * last
            return start * last + o * (end - start) * last / np.float32(self.out - 1)
        if mode == "pytorch_half_pixel" and self.out == 1:
            return o * 0
        if mode == "half_pixel_symmetric":
            size = np.float32(self.size)
            shift = size / 2 * (1 - np.float32(self.out) / (self.scale * size))
            at = float(shift) + (o.astype(np.float64) + 0.5) / float(self.scale) - 0.5
            return at.astype(np.float32)
        return (o + half) / self.scale - half


def nearest_table(at: Array, size: int, mode: str, shrinks: bool = False) -> Array:
    """The element nearest to each coordinate. "simple": as Resize of opset 10, whose text leaves it
    open, does in onnxruntime."""
    at = at.astype(np.float64)
    down = np.floor(at)
    rest = at - down
    near = np.abs(rest - 0.5) <= HALF       # float32 is off by so much where a half is meant
    rounded = {
        "round_prefer_floor": np.where(near | (rest < 0.5), down, down + 1),
        "round_prefer_ceil": np.where(near | (rest > 0.5), down + 1, down), "floor": np.floor(at),
        "ceil": np.ceil(at), "simple": np.ceil(at) if shrinks else np.floor(at)}.get(mode)
    if rounded is None:
        raise ModelError(
            f"nearest_mode='{mode}' is not one of round_prefer_floor, round_prefer_ceil, "
            f"floor, ceil"
        )
    found: Array = np.clip(rounded, 0, size - 1).astype(np.int64)
    return found


def affine_step(table: Array, size: int, scale: np.float32) -> Step | None:
    """(num, offset, den) with clip((o * num + offset) // den, 0, size - 1) = table[o], if there is
    one."""
    o = np.arange(len(table))
    ratio = Fraction(1 / float(scale)).limit_denominator(8192)
    inner, top = table > 0, table < size - 1
    for k in (1, 2):
        num, den = ratio.numerator * k, ratio.denominator * k
        low = (den * table - num * o)[inner].max(initial=-den * size)
        high = (den * (table + 1) - num * o - 1)[top].min(initial=den * size)
        if low <= high:
            return num, int(min(max(0, low), high)), den
    return None


def tap_tables(
    axis: Axis, mode: str, coordinates: str, cubic_a: float, outside: bool, antialias: bool
) -> tuple[Array, Array]:
    """Index and weight tables [outputs, taps] of linear and cubic; `outside`: leave out what isn't
    there."""
    at = axis.coordinates(coordinates).astype(np.float64)
    base = np.floor(at)
    ratio = (at - base)[:, None]
    stretch = min(float(axis.scale), 1.0) if antialias else 1.0
    reach = 2 if mode == "cubic" else 1
    first = math.floor(-reach / stretch) + 1
    offsets = np.arange(first, 2 - first)
    distance = np.abs(offsets - ratio) * stretch
    weight = _cubic(distance, cubic_a) if mode == "cubic" else np.clip(1 - distance, 0, None)
    index = base[:, None] + offsets
    if antialias:
        weight = weight / weight.sum(axis=1, keepdims=True)
    if outside:
        weight = np.where((index < 0) | (index >= axis.size), 0, weight)
        total = weight.sum(axis=1, keepdims=True)
        weight = weight / np.where(total == 0, 1, total)
    return np.clip(index, 0, axis.size - 1).astype(np.int32), weight


def _cubic(d: Array, a: float) -> Array:
    """Keys' cubic convolution kernel at distance d (Keys, 1981)."""
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def periodic_step(axis: Axis, mode: str, coordinates: str) -> Step | None:
    """The `affine_step` of all sizes: by a scale p / q, p places on is q elements on, so that a few
    periods tell of all. None where sizes have a say in more than that.
    """
    free = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
    if isinstance(axis.scale, Ratio) or coordinates not in free:
        return None
    ratio = Fraction(float(axis.scale))
    p, q = ratio.numerator, ratio.denominator
    if max(p, q) > FEW or (coordinates == "pytorch_half_pixel" and axis.out == 1):
        return None
    for length in (axis.size, axis.out):
        require(EXACT, length)
    some = Axis(q * PERIODS, p * PERIODS, axis.scale)
    table = nearest_table(some.coordinates(coordinates), some.size, mode, bool(axis.scale < 1))
    return affine_step(table, some.size, axis.scale)
