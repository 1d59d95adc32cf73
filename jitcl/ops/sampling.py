"""GridSample reads a picture at computed places, Col2Im adds overlapping patches up, MaxUnpool puts
maxima back."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import require
from jitcl.ir.sizes import same
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F32, Index, Loader, Spec, among_floats, indexed, onnx_rule, sample
from jitcl.ops.gather import in_range
from jitcl.ops.pooling import flat_index
from jitcl.ops.window import Ints, all_inside, tap_slices, window_attrs, window_extent

Array = np.ndarray[Any, Any]
CUBIC_A = -0.75
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


# ---- GridSample


def _grid_type(x: TensorType, grid: TensorType, mode: str, padding: str, align: bool) -> TensorType:
    n = x.rank - 2
    if n < 1 or grid.rank != x.rank or grid.shape[-1] != n or grid.shape[0] != x.shape[0]:
        raise ShapeError(
            f"grid_sample: x {x} wants a grid [{x.shape[0]}, ..., {n}] of rank {x.rank}, got {grid}"
        )
    if mode not in TAPS or padding not in ("zeros", "border", "reflection"):
        raise ModelError(f"grid_sample: mode '{mode}' with padding_mode '{padding}' is not defined")
    return x.with_(shape=(*x.shape[:2], *grid.shape[1:-1]))


def _reflected(at: Array, low: float, high: float) -> Array:
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    turn = np.mod(at - low, 2 * span)
    return low + np.where(turn > span, 2 * span - turn, turn)


def _grid_ref(x: Array, grid: Array, mode: str, padding: str, align: bool) -> Array:
    """All taps of all places at once, by fancy indexing."""
    n, dims = x.ndim - 2, x.shape[2:]
    places, weights = [], []
    for d, size in enumerate(dims):
        g = wide(grid)[..., n - 1 - d]
        at = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        at = np.rint(at) if mode == "nearest" else at
        outside = (at < low) | (at > high)
        if padding == "border":
            at = np.where(outside, np.clip(at, 0, size - 1), at)
        if padding == "reflection":
            at = np.where(outside, _reflected(at, low, high), at)
        base = np.trunc(at) if mode == "nearest" else np.floor(at)
        t = at - base
        if mode == "nearest":
            offsets, factors = [0], [np.ones_like(t)]
        elif mode == "linear":
            offsets, factors = [0, 1], [1 - t, t]
        else:
            offsets = [-1, 0, 1, 2]
            distances = np.stack([t + 1, t, 1 - t, 2 - t])
            near = np.polyval([CUBIC_A + 2, -(CUBIC_A + 3), 0, 1], distances)
            far = np.polyval([CUBIC_A, -5 * CUBIC_A, 8 * CUBIC_A, -4 * CUBIC_A], distances)
            factors = [far[0], near[1], near[2], far[3]]
        index = [base.astype(np.int64) + o for o in offsets]
        if padding == "reflection":
            index = [
                np.trunc(_reflected(i.astype(float), low, high)).astype(np.int64) for i in index]
        if padding == "zeros":
            factors = [np.where((i >= 0) & (i < size), f, 0) for i, f in zip(index, factors)]
        places.append([np.clip(i, 0, size - 1) for i in index])
        weights.append(factors)
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), wide(x).dtype)
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * n)
    for taps in itertools.product(range(TAPS[mode]), repeat=n):
        factor = math.prod(weights[d][t] for d, t in enumerate(taps))
        read = wide(x)[(batch, slice(None), *(places[d][t] for d, t in enumerate(taps)))]
        y += np.moveaxis(read, -1, 1) * factor[:, None]
    return y.astype(x.dtype)


_SAMPLED = [
    (m, p, a) for m in TAPS for p in ("zeros", "border", "reflection") for a in (False, True)]


@indexed(
    "window",
    range="exact",
    infer=_grid_type,
    ref=_grid_ref,
    samples=[
        *(
            sample(F32(2, 3, 4, 5), F32(2, 3, 2, 2, low=-1.7, high=1.7), mode=m, padding=p, align=a)
            for m, p, a in _SAMPLED
        ),
        sample(
            F32(1, 2, 3, 2, 4), F32(1, 2, 2, 3, 3, low=-1.2, high=1.2), mode="linear",
            padding="zeros", align=True),
    ],
)
def grid_sample(
    s: KernelBuilder, ix: Index, x: Loader, grid: Loader, mode: str, padding: str, align: bool
) -> Expr:
    """x read at grid[n, o..., :], in [-1, 1] over the picture, last axis first (Jaderberg et al.,
    2015)."""
    n, c, *out = ix
    dims = x.shape[2:]
    taps = [
        _taps(s, s.cast(grid(n, *out, len(dims) - 1 - d), x.dtype), size, mode, padding, align)
        for d, size in enumerate(dims)
    ]
    found = []
    for chosen in itertools.product(*taps):
        at = [place for place, _ in chosen]
        value = x(n, c, *at, guard=all_inside(s, at, dims))
        found.append(math.prod((w for _, w in chosen if w is not None), start=value))
    return reduce(add, found)


def _taps(
    s: KernelBuilder, g: Expr, size: int, mode: str, padding: str, align: bool
) -> list[tuple[Expr, Expr | None]]:
    """(index, weight) of each tap along one axis; weight None is 1. Indices may lie outside with
    "zeros" only."""
    extent = among_floats(size, g.dtype)
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    at = (g + 1.0) / 2.0 * (extent - 1.0) if align else ((g + 1.0) * extent - 1.0) / 2.0
    if mode == "nearest":
        at = s.round(at)
    if padding != "zeros":
        moved = (
            s.min(s.max(at, 0.0), extent - 1.0) if padding == "border" else
            _mirror(s, at, low, high, same(size, 1) and align))
        at = s.select((at < low) | (at > high), moved, at)
    base = s.trunc(at) if mode == "nearest" else s.floor(at)
    first, t = s.index(base), at - base
    found: list[tuple[Expr, Expr | None]] = [(first, None)]
    if mode == "linear":
        found = [(first, 1.0 - t), (first + 1, t)]
    if mode == "cubic":
        found = [
            (first - 1, _far(t + 1.0)), (first, _near(t)), (first + 1, _near(1.0 - t)),
            (first + 2, _far(2.0 - t))]
    return [(_kept(s, i, size, padding, align), w) for i, w in found]


def _near(d: Expr) -> Expr:
    return ((CUBIC_A + 2) * d - (CUBIC_A + 3)) * d * d + 1.0


def _far(d: Expr) -> Expr:
    return ((CUBIC_A * d - 5 * CUBIC_A) * d + 8 * CUBIC_A) * d - 4 * CUBIC_A


def _mirror(s: KernelBuilder, at: Expr, low: float, high: Any, one: bool) -> Expr:
    """at reflected at low and high until it lies between; one: these are the same."""
    span = high - low
    if one:
        return s.min(s.max(at, 0.0), 0.0)
    turn = at - low
    turn = turn - s.floor(turn / (2 * span)) * (2 * span)
    return s.min(turn, 2 * span - turn) + low


def _kept(s: KernelBuilder, i: Expr, size: int, padding: str, align: bool) -> Expr:
    """A tap's index as the padding has it, whatever number the grid held."""
    if padding == "zeros":
        return i
    if padding == "border" or same(size, 1):
        return s.max(s.min(i, size - 1), 0)
    if align:
        require(size, 2)
    period = 2 * size - 2 if align else 2 * size
    turn = i % period
    return s.min(turn, period - turn) if align else s.min(turn, period - 1 - turn)


@onnx_rule("GridSample")
def _grid_sample(g: GraphBuilder, node: Any) -> Node:
    x, grid = node.inputs[:2]
    return g.grid_sample(
        x, grid, mode=node.attrs.get("mode", "linear"),
        padding=node.attrs.get("padding_mode", "zeros"),
        align=bool(node.attrs.get("align_corners", 0)))


# ---- Col2Im


def _patches(shape: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> Ints:
    n = len(shape)
    return tuple(
        window_extent(shape[d], kernel[d], strides[d], pads[d], pads[n + d], dilations[d])
        for d in range(n)
    )


def _col2im_type(
    x: TensorType, shape: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> TensorType:
    taps, patches = math.prod(kernel), math.prod(_patches(shape, kernel, strides, pads, dilations))
    if x.rank != 3 or x.dims[1] % taps or x.dims[2] != patches:
        raise ShapeError(
            f"col2im: for an image {list(shape)} and blocks {list(kernel)} x must be "
            f"[batch, channels * {taps}, {patches}], got {x}"
        )
    return x.with_(shape=(x.shape[0], x.dims[1] // taps, *shape))


def _col2im_ref(
    x: Array, shape: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> Array:
    n, patches = len(shape), _patches(shape, kernel, strides, pads, dilations)
    y = np.zeros(
        (
            x.shape[0], x.shape[1] // math.prod(kernel),
            *(shape[d] + pads[d] + pads[n + d] for d in range(n))),
        wide(x).dtype,
    )
    columns = wide(x).reshape(x.shape[0], y.shape[1], math.prod(kernel), *patches)
    for t, at in enumerate(tap_slices(kernel, patches, strides, dilations)):
        y[(slice(None), slice(None), *at)] += columns[:, :, t]
    inner = tuple(slice(pads[d], pads[d] + shape[d]) for d in range(n))
    return y[(slice(None), slice(None), *inner)].astype(x.dtype)


@indexed(
    "window",
    infer=_col2im_type,
    ref=_col2im_ref,
    samples=[
        sample(
            F32(1, 10, 20), shape=(5, 5), kernel=(1, 5), strides=(1, 1), pads=(0, 1, 0, 2),
            dilations=(1, 1)),
        sample(
            F32(2, 8, 4), shape=(4, 5), kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0),
            dilations=(1, 2)),
    ],
)
def col2im(
        s: KernelBuilder, ix: Index, x: Loader, shape: Ints, kernel: Ints, strides: Ints,
        pads: Ints, dilations: Ints
) -> Expr:
    """Each pixel is the sum of the patches' elements that lie on it."""
    n, c, *out = ix
    patches = _patches(shape, kernel, strides, pads, dilations)

    def term(*ks: Expr) -> Expr:
        valid, row, column = s.const(True, "bool"), c, s.index(0)
        for d, k in enumerate(ks):
            reach = out[d] + pads[d] - k * dilations[d]
            place = reach // strides[d]
            valid = valid & s.eq(reach % strides[d], 0) & s.inside(place, patches[d])
            row, column = row * kernel[d] + k, column * patches[d] + place
        return x(n, row, column, guard=valid)

    return s.reduce("add", kernel, term)


@onnx_rule("Col2Im")
def _col2im(g: GraphBuilder, node: Any) -> Node:
    shape, kernel = (tuple(int(v) for v in node.static(i)) for i in (1, 2))
    n = len(shape)
    return g.col2im(
        node.inputs[0], shape=shape, kernel=kernel, strides=node.attrs.get("strides", (1,) * n),
        pads=node.attrs.get("pads", (0,) * 2 * n), dilations=node.attrs.get("dilations", (1,) * n))


# ---- MaxUnpool


@onnx_rule("MaxUnpool")
def _max_unpool(g: GraphBuilder, node: Any) -> Node:
    """Each value goes back to where its maximum was: the output looks for the inputs that point at
    it."""
    x, places = node.inputs[:2]
    kernel = tuple(node.attrs["kernel_shape"])
    window = window_attrs(node, x.type.dims[2:], kernel)
    n = len(kernel)
    spatial = tuple(
        (x.type.dims[2 + d] - 1) * window["strides"][d]
        + kernel[d]
        - window["pads"][d]
        - window["pads"][n + d]
        for d in range(n)
    )
    wanted = (
        tuple(int(v) for v in node.static(2)) if len(node.inputs) > 2 and node.inputs[2] else ())
    shape = wanted or (*x.type.dims[:2], *spatial)
    source = (*x.type.dims[:2], *spatial)  # the indices count in the pooled tensor's own shape
    places = in_range(g, places, 0, math.prod(source) - 1)
    return g.max_unpool(x, places, shape=shape, source=source, kernel=kernel, **window)


def _unpool_ref(
        x: Array, places: Array, shape: Ints, source: Ints, kernel: Ints, strides: Ints, pads: Ints,
        dilations: Ints
) -> Array:
    flat = np.zeros(math.prod(shape), x.dtype)
    at = np.unravel_index(places.reshape(-1), source)
    flat[np.ravel_multi_index(at, shape)] = x.reshape(-1)
    return flat.reshape(shape)


@indexed(
    "window",
    infer=lambda x, places, shape, **_: TensorType(x.dtype, shape),
    ref=_unpool_ref,
    samples=[
        sample(
            F32(1, 1, 2, 2), Spec((1, 1, 2, 2), "i64", values=(5, 7, 13, 10)), shape=(1, 1, 4, 4),
            source=(1, 1, 4, 4), kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    ],
)
def max_unpool(
        s: KernelBuilder, ix: Index, x: Loader, places: Loader, shape: Ints, source: Ints,
        kernel: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> Expr:
    """y[i] = x[j] where places[j] is i (an index into a tensor of shape `source`), else 0.

    Only the windows that reach a place can point at it: the search runs over those.
    """
    n, c, *out = ix
    target = s.cast(flat_index([n, c, *out], source), "i64")
    reach = [-(-k // strides[d]) for d, k in enumerate(kernel)]
    within = all_inside(s, list(ix), source)

    def term(*js: Expr) -> Expr:
        at = [(o + pads[d]) // strides[d] - j for d, (o, j) in enumerate(zip(out, js))]
        inside = all_inside(s, at, x.shape[2:]) & within
        hit = s.and_(inside, s.eq(places(n, c, *at, guard=inside, other=-1), target))
        return s.select(hit, x(n, c, *at, guard=inside), 0)

    return s.reduce("add", reach, term)
