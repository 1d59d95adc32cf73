"""Pooling of regions of interest: RoiAlign (He et al., 2017) and MaxRoiPool (Girshick, 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.indices import NONE
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import (
    F32,
    Index,
    Loader,
    Spec,
    among_floats,
    clamped,
    composite,
    indexed,
    onnx_rule,
    sample,
)
from jitcl.ops.gather import in_range

Array = np.ndarray[Any, Any]
REACH = 7  # samples of an adaptive grid that can touch one pixel: they lie more than 1/2 apart
FAR = 1 << 30  # an index beyond every region

_BOXES = Spec((3, 4), values=(0.5, 1.0, 5.5, 6.5, -3.0, 2.2, 9.9, 3.1, 4.0, 5.0, 3.0, 4.5))
_IMAGES = Spec((3,), "i64", values=(1, 0, 1))


# ---- RoiAlign


@dataclass(frozen=True)
class _Bin:
    """A bin's samples along one axis: where the first lies, how far they are apart, how many."""

    first: Expr
    apart: Expr
    count: Expr | int


def _bin(s: KernelBuilder, low: Expr, high: Expr, at: Expr, bins: int, ratio: int, scale: float,
         half_pixel: bool) -> _Bin:
    """Bin `at` of the region from `low` to `high`; an adaptive grid's count is a float."""
    start, end = (v * scale - (0.5 if half_pixel else 0.0) for v in (low, high))
    length = end - start
    if not half_pixel:
        length = s.max(length, 1.0)
    size = length / bins
    count: Expr | int = ratio or s.ceil(size)
    apart = size / count
    return _Bin(start + s.cast(at, low.dtype) * size + apart * 0.5, apart, count)


def _outside(s: KernelBuilder, at: Expr, size: int) -> Expr:
    """Samples more than a pixel outside count as 0."""
    return s.or_(at < -1.0, at > among_floats(size, at.dtype))


def _first_sample(s: KernelBuilder, b: _Bin, low: Expr | float) -> Expr:
    """The number of a bin's first sample from `low` on, as a float."""
    first = s.ceil((low - b.first) / b.apart) - 1.0          # one early, should it be rounded up
    known = s.select(s.isnan(first), s.const(0, b.first.dtype), first)
    return s.max(s.min(known, float(FAR)), 0.0)


def _align_type(x: TensorType, boxes: TensorType, images: TensorType, size: tuple[int, int],
                **_: Any) -> TensorType:
    if x.rank != 4 or boxes.rank != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        raise ShapeError(f"roi_align: wanted x [N, C, H, W], rois [R, 4] and batch indices [R], "
                         f"got {x}, {boxes} and {images}")
    if boxes.dtype != x.dtype:
        raise TypeError_(f"roi_align: x is {x.dtype} and rois are {boxes.dtype}: cast one of them")
    if min(size) < 1:
        raise ShapeError(f"roi_align: an output of {size[0]} x {size[1]} bins: wanted 1 or more")
    return x.with_(shape=(boxes.shape[0], x.shape[1], *size))


def _align_ref(x: Array, boxes: Array, images: Array, size: tuple[int, int], ratio: int = 0,
               scale: float = 1.0, half_pixel: bool = True, mode: str = "avg") -> Array:
    """Region by region: all samples' taps as one fancy index."""
    y = np.zeros((len(boxes), x.shape[1], *size), wide(x).dtype)
    for r, (box, image) in enumerate(zip(wide(boxes), images)):
        taps = []
        for d, (low, high) in enumerate(((box[1], box[3]), (box[0], box[2]))):
            start = low * scale - 0.5 * half_pixel
            length = high * scale - 0.5 * half_pixel - start
            each = (length if half_pixel else max(length, 1.0)) / size[d]
            n = ratio or max(int(np.ceil(each)), 0)
            within = (np.arange(n) + 0.5) * each / max(n, 1)
            at = start + np.arange(size[d])[:, None] * each + within
            extent = x.shape[2 + d]
            inside = (at >= -1) & (at <= extent)
            at = np.clip(at, 0, extent - 1)
            base = np.floor(at).astype(int)
            taps.append([(base, (1 - at + base) * inside),
                         (np.minimum(base + 1, extent - 1), (at - base) * inside)])
        if 0 in taps[0][0][0].shape + taps[1][0][0].shape:
            continue
        found = [wide(x)[image][:, i[:, None, :, None], j[None, :, None, :]]
                 * (u[:, None, :, None] * v[None, :, None, :])
                 for i, u in taps[0] for j, v in taps[1]]
        y[r] = sum(found).mean((-2, -1)) if mode == "avg" else np.max(found, 0).max((-2, -1))
    return y.astype(x.dtype)


@indexed("window", range="exact", infer=_align_type, ref=_align_ref, samples=[
    sample(F32(2, 3, 6, 7), _BOXES, _IMAGES, size=(3, 2), ratio=r, scale=c, half_pixel=h, mode=m)
    for r, c, h, m in ((2, 1.0, True, "avg"), (1, 0.5, False, "avg"), (3, 1.0, False, "max"))])
def roi_align_grid(s: KernelBuilder, ix: Index, x: Loader, boxes: Loader, images: Loader,
                   size: tuple[int, int], ratio: int, scale: float = 1.0, half_pixel: bool = True,
                   mode: str = "avg") -> Expr:
    """RoiAlign with `ratio` x `ratio` samples a bin. As ONNX has it, the greatest ("max") is taken
    of the weighted pixels around the samples, not of the samples."""
    r, c, *at = ix
    image = clamped(s, images(r), x.shape[0])
    bins = [_bin(s, boxes(r, 1 - d), boxes(r, 3 - d), at[d], size[d], ratio, scale, half_pixel)
            for d in (0, 1)]

    def term(*ks: Expr) -> Expr:
        taps = [_taps(s, b, k, extent) for b, k, extent in zip(bins, ks, x.shape[2:])]
        found = [x(image, c, i, j) * (u * v) for i, u in taps[0] for j, v in taps[1]]
        return reduce(add if mode == "avg" else s.max, found)
    total = s.reduce("add" if mode == "avg" else "max", (ratio, ratio), term)
    return total / (ratio * ratio) if mode == "avg" else total


def _taps(s: KernelBuilder, b: _Bin, k: Expr, size: int) -> list[tuple[Expr, Expr]]:
    """(pixel, weight) of the two pixels beside sample k; whatever the region, they are inside."""
    place = b.first + s.cast(k, b.first.dtype) * b.apart
    inside = s.select(_outside(s, place, size), s.const(0, place.dtype), 1)
    place = s.min(s.max(place, 0.0), among_floats(size, place.dtype) - 1.0)
    base = s.floor(place)
    low = clamped(s, base, size)
    return [(low, (1.0 - place + base) * inside),
            (s.min(low + 1, size - 1), (place - base) * inside)]


def _weights_type(boxes: TensorType, bins: int, extent: int, axis: int, **_: Any) -> TensorType:
    return boxes.with_(shape=(boxes.shape[0], bins, extent))


def _weights_ref(boxes: Array, bins: int, extent: int, axis: int, scale: float = 1.0,
                 half_pixel: bool = True) -> Array:
    """Sample by sample."""
    y = np.zeros((len(boxes), bins, extent))
    for r, box in enumerate(wide(boxes).astype(np.float64)):
        start, end = (box[k - axis] * scale - 0.5 * half_pixel for k in (1, 3))
        each = (end - start if half_pixel else max(end - start, 1.0)) / bins
        count = max(int(np.ceil(each)), 0)
        for b, k in np.ndindex(bins, count):
            at = start + b * each + (k + 0.5) * each / count
            if -1 <= at <= extent:
                at = min(max(at, 0), extent - 1)
                y[r, b] += np.maximum(1 - np.abs(np.arange(extent) - at), 0) / count
    return y.astype(boxes.dtype)


@indexed("window", range="exact", infer=_weights_type, ref=_weights_ref, samples=[
    sample(_BOXES, bins=3, extent=6, axis=0), sample(_BOXES, bins=1, extent=7, axis=1, scale=0.7),
    sample(_BOXES, bins=2, extent=1, axis=1, half_pixel=False),
    sample(Spec((1, 4), values=(-40.0, -9.0, 300.0, 77.0)), bins=2, extent=9, axis=1)])
def roi_weights(s: KernelBuilder, ix: Index, boxes: Loader, bins: int, extent: int, axis: int,
                scale: float = 1.0, half_pixel: bool = True) -> Expr:
    """What each of `extent` pixels along an axis (0 down, 1 across) counts in each bin, where the
    grid is adaptive: as many samples as keep them at most a pixel apart."""
    r, at, pixel = ix
    b = _bin(s, boxes(r, 1 - axis), boxes(r, 3 - axis), at, bins, 0, scale, half_pixel)
    assert isinstance(b.count, Expr)
    centre = s.cast(pixel, b.first.dtype)
    low = s.select(s.eq(pixel, 0), s.const(-1, centre.dtype), centre - 1.0)
    first = _first_sample(s, b, low)

    def term(k: Expr) -> Expr:
        number = first + s.cast(k, centre.dtype)
        place = b.first + number * b.apart
        counts = s.and_(number < b.count, s.not_(_outside(s, place, extent)))
        last = among_floats(extent, place.dtype) - 1.0
        away = s.abs(s.min(s.max(place, 0.0), last) - centre)
        return s.select(counts, s.max(1.0 - away, 0.0) / b.count, 0)
    return s.reduce("add", [REACH], term)


@composite(ref=_align_ref, samples=[
    sample(F32(2, 3, 6, 7), _BOXES, _IMAGES, size=(3, 2), half_pixel=h, scale=0.8, mode=m)
    for h in (True, False) for m in ("avg", "max")])
def roi_align(g: GraphBuilder, x: Node, boxes: Node, images: Node, size: tuple[int, int],
              ratio: int = 0, scale: float = 1.0, half_pixel: bool = True,
              mode: str = "avg") -> Node:
    """[N, C, H, W], boxes [R, 4] as (x1, y1, x2, y2) on images [R] -> [R, C, *size]: the mean or
    greatest of samples, interpolated linearly, on a grid in each bin.

    With `ratio` 0 the grid is as fine as a box is large, which only data tells. The mean over it
    is a product of weights down and weights across, so two matrix products give it exactly.
    """
    result = _align_type(x.type, boxes.type, images.type, size)
    if mode not in ("avg", "max") or ratio < 0:
        raise ModelError(f"roi_align: mode '{mode}', sampling_ratio {ratio}: "
                         "wanted avg or max, 0 or more")
    if 0 in result.dims:
        return g.expand(g.const(0, x.type.dtype), shape=result.dims)
    common = {"scale": float(scale), "half_pixel": half_pixel}
    if ratio:
        return g.roi_align_grid(x, boxes, images, size=size, ratio=ratio, mode=mode, **common)
    if mode == "max":
        return g.roi_align_greatest(x, boxes, images, size=size, **common)
    count, channels = boxes.type.dims[0], x.type.dims[1]
    down, across = (g.roi_weights(boxes, bins=size[d], extent=x.type.dims[2 + d], axis=d, **common)
                    for d in (0, 1))
    picked = g.gather(x, images, axis=0)
    rows = g.matmul(g.reshape(down, shape=(count, 1, *down.type.dims[1:])), picked)
    across = g.transpose(across, perm=(0, 2, 1))
    y = g.matmul(g.reshape(rows, shape=(count, channels * size[0], x.type.dims[3])), across)
    return g.reshape(y, shape=(count, channels, *size))


def _greatest_ref(x: Array, boxes: Array, images: Array, size: tuple[int, int], scale: float = 1.0,
                  half_pixel: bool = True) -> Array:
    return _align_ref(x, boxes, images, size, 0, scale, half_pixel, "max")


@indexed("scan", range="exact", infer=_align_type, ref=_greatest_ref, samples=[
    sample(F32(2, 3, 6, 7), _BOXES, _IMAGES, size=(3, 2), scale=0.8, half_pixel=h)
    for h in (True, False)])
def roi_align_greatest(s: KernelBuilder, ix: Index, x: Loader, boxes: Loader, images: Loader,
                       size: tuple[int, int], scale: float = 1.0,
                       half_pixel: bool = True) -> Expr:
    """RoiAlign's "max" on an adaptive grid. Samples lie more than half a pixel apart, or are one a
    bin, so that 2 * extent + 4 of them cover a picture; the loops run over those."""
    r, c, *at = ix
    image = clamped(s, images(r), x.shape[0])
    extents = x.shape[2:]
    bins = [_bin(s, boxes(r, 1 - d), boxes(r, 3 - d), at[d], size[d], 0, scale, half_pixel)
            for d in (0, 1)]
    zero = s.const(0, bins[0].first.dtype)
    firsts = [_first_sample(s, b, -1.0) for b in bins]

    def term(*ks: Expr) -> Expr:
        numbers = [f + s.cast(k, f.dtype) for f, k in zip(firsts, ks)]
        counts = s.and_(*(n < b.count for n, b in zip(numbers, bins)))
        taps = [_taps(s, b, n, extent) for b, n, extent in zip(bins, numbers, extents)]
        found = [x(image, c, i, j) * (u * v) for i, u in taps[0] for j, v in taps[1]]
        return s.select(counts, reduce(s.max, found), float("-inf"))
    greatest = s.reduce("max", [2 * d + 4 for d in extents], term)
    # samples left and right of the picture count as 0; those before it were passed over
    some = s.and_(*(s.cast(s.max(b.count, 0.0), zero.dtype) > 0.0 for b in bins))
    cut = s.or_(*(s.or_(f > 0.0, f + (2.0 * among_floats(d, f.dtype) + 4.0) < b.count)
                  for f, b, d in zip(firsts, bins, extents)))
    greatest = s.select(cut, s.max(greatest, 0.0), greatest)
    return s.select(some, greatest, zero)


@onnx_rule("RoiAlign")
def _roi_align(g: GraphBuilder, node: Any) -> Node:
    coordinates = node.attrs.get("coordinate_transformation_mode", "half_pixel")
    if coordinates not in ("half_pixel", "output_half_pixel"):
        raise ModelError(f"coordinate_transformation_mode '{coordinates}' is not defined: "
                         "use half_pixel or output_half_pixel")
    size = (node.attrs.get("output_height", 1), node.attrs.get("output_width", 1))
    x, boxes, images = node.inputs[:3]
    return g.roi_align(
        x, boxes, in_range(g, images, 0, x.type.dims[0] - 1), size=size,
        ratio=node.attrs.get("sampling_ratio", 0), scale=node.attrs.get("spatial_scale", 1.0),
        half_pixel=coordinates == "half_pixel", mode=node.attrs.get("mode", "avg"))


# ---- MaxRoiPool

_ROIS = Spec((3, 5), values=(1, 0, 0, 4, 5, 0, 2.5, 1.5, 30, 3, 1, -8, -8, -3, -3))


def _pool_type(x: TensorType, rois: TensorType, bins: int, axis: int,
               scale: float = 1.0) -> TensorType:
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5:
        raise ShapeError(f"roi_max: wanted x [N, C, H, W] and rois [R, 5], got {x} and {rois}")
    if bins < 1:
        raise ShapeError(f"roi_max: pooled_shape holds {bins}: wanted 1 or more")
    shape = [rois.shape[0], *x.shape[1:]]
    shape[axis] = bins
    return x.with_(shape=tuple(shape))


def _pool_ref(x: Array, rois: Array, bins: int, axis: int, scale: float = 1.0) -> Array:
    parts = []
    for r, roi in enumerate(wide(rois)):
        rows = np.moveaxis(x[int(roi[0]) if axis == 2 else r], axis - 1, 1)
        first, last = (int(np.trunc(v * scale + np.copysign(0.5, v)))
                       for v in (roi[4 - axis], roi[6 - axis]))
        each = max(last - first + 1, 1) / bins
        y = np.zeros_like(rows, shape=(len(rows), bins, rows.shape[2]))
        for b in range(bins):
            low, high = (np.clip(int(f(k * each)) + first, 0, rows.shape[1])
                         for f, k in ((np.floor, b), (np.ceil, b + 1)))
            if low < high:
                y[:, b] = rows[:, low:high].max(1)
        parts.append(np.moveaxis(y, 1, axis - 1))
    return np.stack(parts)


@indexed("scan", range="exact", infer=_pool_type, ref=_pool_ref, samples=[
    sample(F32(2, 3, 6, 7), _ROIS, bins=2, axis=2), sample(F32(3, 2, 4, 7), _ROIS, bins=3, axis=3),
    sample(F32(2, 1, 9, 4), _ROIS, bins=4, axis=2, scale=0.5)])
def roi_max(s: KernelBuilder, ix: Index, x: Loader, rois: Loader, bins: int, axis: int,
            scale: float = 1.0) -> Expr:
    """The greatest of each bin of a region along one axis, 0 for an empty one. Along axis 2 x holds
    images and a roi says which; along axis 3 it holds the regions."""
    r, c, *at = ix
    size = x.shape[axis]

    def whole(v: Expr) -> Expr:
        """Rounded, halves away from zero."""
        away = s.select(v < 0.0, s.const(-0.5, v.dtype), 0.5)
        return s.trunc(v * scale + away)
    first, last = whole(rois(r, 4 - axis)), whole(rois(r, 6 - axis))
    each = s.max(last - first + 1.0, 1.0) / bins
    place = s.cast(at[axis - 2], each.dtype)
    low, high = (s.min(s.max(v + first, 0.0), among_floats(size, v.dtype))
                 for v in (s.floor(place * each), s.ceil((place + 1.0) * each)))
    number = clamped(s, rois(r, 0), x.shape[0]) if axis == 2 else r

    def term(k: Expr) -> Expr:
        here = s.cast(k, low.dtype)
        there = (k, at[1]) if axis == 2 else (at[0], k)
        value = x(number, c, *there)
        return s.select(s.and_(here >= low, here < high), value, float("-inf"))
    return s.select(low < high, s.reduce("max", [size], term), E.const(0, x.dtype))


@onnx_rule("MaxRoiPool")
def _max_roi_pool(g: GraphBuilder, node: Any) -> Node:
    x, rois = node.inputs[:2]
    bins = tuple(node.attrs["pooled_shape"])
    if len(bins) != 2:
        raise ShapeError(f"pooled_shape is {list(bins)}: wanted [height, width]")
    scale = node.attrs.get("spatial_scale", 1.0)
    other = (NONE,) * 4                         # the columns behind are corners
    rois = in_range(g, rois, (0, *other), (x.type.dims[0] - 1, *other))
    rows = g.roi_max(x, rois, bins=bins[0], axis=2, scale=scale)
    return g.roi_max(rows, rois, bins=bins[1], axis=3, scale=scale)
