"""Resize and Upsample: nearest as index arithmetic, linear and cubic as taps of constant weights,
axis by axis.

Sizes and coordinates are computed at import, in float32 and in the order of onnxruntime's
arithmetic: floor(10 * 2.3) is 23, and what lies on the border between two elements falls where it
falls there. What the kernel sees of nearest is `(o * num + offset) // den`; of linear and cubic two
tables an axis, indices and weights, which every mode, coordinate transformation, border rule and
antialiasing fits into.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import (
    F16,
    F32,
    Index,
    Loader,
    Spec,
    indexed,
    movement,
    norm_axis,
    onnx_rule,
    sample,
)

Array = np.ndarray[Any, Any]
Step = tuple[int, int, int]
HALF = 1e-6                     # so near to a half is a half to nearest_mode, as in onnxruntime
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize")


# ---- ops


def _nearest_ref(x: Array, shape: tuple[int, ...], steps: tuple[Step, ...]) -> Array:
    for axis, (num, offset, den) in enumerate(steps):
        at = np.clip((np.arange(shape[axis]) * num + offset) // den, 0, x.shape[axis] - 1)
        x = np.take(x, at, axis=axis)
    return x


@movement(
    infer=lambda x, shape, steps: TensorType(x.dtype, shape),
    ref=_nearest_ref,
    samples=[
        sample(
            F32(1, 2, 3, 4), shape=(1, 2, 6, 8), steps=((1, 0, 1), (1, 0, 1), (1, 0, 2), (1, 0, 2))
        ),
        sample(F32(5, 4), shape=(3, 7), steps=((10, 2, 6), (8, -3, 14))),
    ],
)
def resize_nearest(
        ix: Index, source: tuple[int, ...], out: tuple[int, ...], shape: tuple[int, ...],
        steps: tuple[Step, ...]
) -> Index:
    """Reads index clamp((o * num + offset) // den) of each axis; steps holds (num, offset, den) an
    axis."""
    from jitcl.ir import expr as E

    found = []
    for i, extent, (num, offset, den) in zip(ix, source, steps):
        at = (i * num + offset) // den
        found.append(E.call("max", E.call("min", at, E.index(extent - 1)), E.index(0)))
    return tuple(found)


def _taps_type(x: TensorType, index: TensorType, weight: TensorType, axis: int) -> TensorType:
    if index.rank != 2 or index.shape != weight.shape:
        raise ShapeError(
            f"interpolate wants index and weight tables of one shape [outputs, taps], got {index} "
            f"and {weight}"
        )
    shape = list(x.shape)
    shape[axis] = index.shape[0]
    return x.with_(shape=tuple(shape))


def _taps_ref(x: Array, index: Array, weight: Array, axis: int) -> Array:
    dense = np.zeros((index.shape[0], x.shape[axis]), np.result_type(wide(x), weight))
    np.add.at(dense, (np.arange(index.shape[0])[:, None], index), weight)
    y = np.tensordot(wide(x), dense, axes=((axis,), (1,)))
    return np.moveaxis(y, -1, axis).astype(x.dtype)


@indexed(
    "window",
    infer=_taps_type,
    ref=_taps_ref,
    samples=[
        sample(
            F32(2, 3, 4), Spec((5, 2), "i32", values=(0, 1, 2, 2, 1, 0, 0, 0, 1, 2)), F32(5, 2),
            axis=1),
        sample(
            F16(3, 2), Spec((2, 3), "i32", values=(0, 1, 2, 2, 1, 0)), F32(2, 3), axis=0, rtol=2e-3
        ),
    ],
)
def interpolate(
    s: KernelBuilder, ix: Index, x: Loader, index: Loader, weight: Loader, axis: int
) -> Expr:
    """y[.., o, ..] = sum over t of x[.., index[o, t], ..] * weight[o, t] along one axis."""

    def term(t: Expr) -> Expr:
        at = (*ix[:axis], s.index(index(ix[axis], t)), *ix[axis + 1 :])
        value = x(*at)
        return value * s.cast(weight(ix[axis], t), value.dtype)

    return s.reduce("add", index.shape[1:], term)


# ---- import


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: its extents, scale (output an input element) and region of
    interest."""

    size: int
    out: int
    scale: np.float32
    roi: tuple[np.float32, np.float32] = (np.float32(0), np.float32(1))

    def coordinates(self, mode: str) -> Array:
        """Where each output element lies, in input elements: float32."""
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


def _axes_of(node: Any, x: Node) -> list[Axis]:
    """What happens to each axis, from scales or sizes."""
    rank, dims = x.type.rank, x.type.dims
    axes = [norm_axis(a, rank) for a in node.attrs.get("axes") or range(rank)]
    roi, scales, sizes = (
        None if v is None or v.size == 0 else v.astype(np.float32)
        for v in (node.static(1) if _crops(node) else None, node.static(2), node.static(3))
    )
    given = scales if scales is not None else sizes
    if given is None or (scales is not None and sizes is not None):
        raise ModelError("give either scales or sizes, and not both")
    if given.shape != (len(axes),) or not np.isfinite(given).all() or (given <= 0).any():
        raise ModelError(
            f"{'scales' if sizes is None else 'sizes'} {given.tolist()} must be {len(axes)} "
            f"positive numbers, one an axis"
        )
    if roi is not None and roi.shape != (2 * len(axes),):
        raise ModelError(f"roi {roi.tolist()} must be {2 * len(axes)} numbers, two an axis")
    lengths = np.array([dims[a] for a in axes], np.float32)
    policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
    if sizes is None:
        factors, outs = given, np.floor(lengths * given)
    else:
        factors, outs = given / lengths, given
        if policy != "stretch":
            pick = {"not_larger": np.min, "not_smaller": np.max}.get(policy)
            if pick is None:
                raise ModelError(
                    f"keep_aspect_ratio_policy='{policy}' is not one of stretch, not_larger, "
                    f"not_smaller"
                )
            factors = np.full_like(factors, pick(factors))
            outs = np.floor((factors * lengths).astype(np.float64) + 0.5)
    found = [Axis(d, d, np.float32(1)) for d in dims]
    for i, a in enumerate(axes):
        region = Axis.roi if roi is None else (roi[i], roi[len(axes) + i])
        found[a] = Axis(dims[a], int(outs[i]), factors[i], region)
    return found


def _crops(node: Any) -> bool:
    return bool(node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize")


@onnx_rule("Resize")
def _resize(g: GraphBuilder, node: Any) -> Node:
    x, mode = node.inputs[0], node.attrs.get("mode", "nearest")
    coordinates = node.attrs.get("coordinate_transformation_mode", "half_pixel")
    if coordinates not in COORDINATES or mode not in ("nearest", "linear", "cubic"):
        raise ModelError(
            f"mode '{mode}' with coordinate_transformation_mode '{coordinates}' is not defined")
    axes = _axes_of(node, x)
    if 0 in x.type.dims:
        raise ShapeError(f"can't resize {x.type}: it has no elements")
    if mode == "nearest":
        return _nearest(g, node, x, axes, coordinates)
    dtype = x.type.dtype
    y = x if dtypes.is_float(dtype) else g.cast(x, to="f32")
    for a, axis in enumerate(axes):
        if not _changes(axis, coordinates):
            continue
        index, weight = tap_tables(
            axis, mode, coordinates, float(node.attrs.get("cubic_coeff_a", -0.75)),
            bool(node.attrs.get("exclude_outside", 0)), bool(node.attrs.get("antialias", 0)))
        outside = _outside(axis, coordinates)
        weight = np.where(outside[:, None], 0, weight)
        y = g.interpolate(y, g.const(index), g.const(weight, dtypes.compute(y.type.dtype)), axis=a)
        y = _extrapolated(g, node, y, a, outside)
    if dtypes.is_float(dtype):
        return y
    low, high = dtypes.limits(dtype)
    return g.cast(g.clip(g.round(y), float(low), float(high)), to=dtype)


def _changes(axis: Axis, coordinates: str) -> bool:
    cropped = coordinates == "tf_crop_and_resize" and axis.roi != Axis.roi
    return cropped or axis.size != axis.out or axis.scale != 1


def _outside(axis: Axis, coordinates: str) -> Array:
    """Which outputs of an axis lie outside the input: only tf_crop_and_resize knows any."""
    at = axis.coordinates(coordinates)
    if coordinates != "tf_crop_and_resize":
        return np.zeros(len(at), bool)
    return (at < 0) | (at > axis.size - 1)


def _extrapolated(g: GraphBuilder, node: Any, y: Node, a: int, outside: Array) -> Node:
    """y with the extrapolation value where an output lies outside."""
    if not outside.any():
        return y
    mask = g.const(outside.reshape(-1, *(1,) * (y.type.rank - a - 1)))
    value = g.const(node.attrs.get("extrapolation_value", 0.0), y.type.dtype)
    return g.where(mask, value, y)


def _nearest(g: GraphBuilder, node: Any, x: Node, axes: list[Axis], coordinates: str) -> Node:
    steps: list[Step] = []
    late: list[tuple[int, Array]] = []
    mode = node.attrs.get("nearest_mode", "round_prefer_floor")
    shape = []
    for a, axis in enumerate(axes):
        step: Step | None = (1, 0, 1)
        if _changes(axis, coordinates):
            table = nearest_table(
                axis.coordinates(coordinates), axis.size, mode, bool(axis.scale < 1))
            step = affine_step(table, axis.size, axis.scale)
            if step is None:
                late.append((a, table))
        steps.append(step or (1, 0, 1))
        shape.append(axis.out if step is not None else axis.size)
    y = x
    if any(s != (1, 0, 1) for s in steps) or tuple(shape) != x.type.dims:
        y = g.resize_nearest(x, shape=tuple(shape), steps=tuple(steps))
    for a, table in late:
        y = g.gather(y, g.const(table), axis=a)
    for a, axis in enumerate(axes):
        y = _extrapolated(g, node, y, a, _outside(axis, coordinates))
    return y
