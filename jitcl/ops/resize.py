"""Resize and Upsample: nearest as index arithmetic, linear and cubic as taps of constant weights,
axis by axis.

Sizes and coordinates are computed at import, in float32 and in the order of onnxruntime's
arithmetic: floor(10 * 2.3) is 23, and what lies on the border between two elements falls where it
falls there. What the kernel sees of nearest is `(o * num + offset) // den`; of linear and cubic two
tables an axis, indices and weights, which every mode, coordinate transformation, border rule and
antialiasing fits into.

Where sizes are not known yet, nearest by a scale of few bits is the same index arithmetic; other
nearest and linear compute their tables in kernels, in the same float32 arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import largest
from jitcl.ir.sizes import SizePinned, has_size, same
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import (
    F16,
    F32,
    Index,
    Loader,
    Spec,
    clamped,
    indexed,
    movement,
    norm_axis,
    onnx_rule,
    sample,
)
from jitcl.ops.resize_axes import (
    HALF,
    Array,
    Axis,
    Step,
    affine_step,
    nearest_table,
    periodic_step,
    tap_tables,
)
from jitcl.ops.size_arithmetic import Ratio, float_of, quotient, whole_of

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


def _axes_of(node: Any, x: Node) -> list[Axis]:
    """What happens to each axis, from scales or sizes."""
    rank, dims = x.type.rank, x.type.dims
    if any(v is not None and v.dtype == object for v in (node.static(2), node.static(3))) or (
            has_size(dims)):
        return _sized_axes(node, x)
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
        with np.errstate(divide="ignore"):
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


def _sized_axes(node: Any, x: Node) -> list[Axis]:
    """What happens to each axis, some of whose sizes are not known."""
    axes = [norm_axis(a, x.type.rank) for a in node.attrs.get("axes") or range(x.type.rank)]
    scales, sizes = ([] if v is None else v.tolist() for v in (node.static(2), node.static(3)))
    if bool(scales) == bool(sizes):
        raise ModelError("give either scales or sizes, and not both")
    if len(scales or sizes) != len(axes):
        raise ModelError(f"scales or sizes {scales or sizes} must be {len(axes)} numbers, one an "
                         "axis")
    if _crops(node) or node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise SizePinned("a Resize that crops, or keeps the aspect ratio, needs numbers")
    found = [Axis(d, d, np.float32(1)) for d in x.type.dims]
    for i, a in enumerate(axes):
        length = x.type.dims[a]
        if scales:
            scale = Ratio.of(scales[i])
            out = whole_of(float_of("mul", "f32", length, scales[i]))
        else:
            out = sizes[i]
            scale = quotient(Ratio.of(out), Ratio.of(length), "f32")
        if not largest(length, 1 - out) > 0:
            raise SizePinned(f"axis {a} has {length} elements and is resized to {out}")
        known = not has_size((scale.num, scale.den))
        found[a] = Axis(x.type.dims[a], out,
                        np.float32(scale.num / scale.den) if known else scale)
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
    if any(same(d, 0) for d in x.type.dims):
        outs = tuple(axis.out for axis in axes)
        if not any(same(out, 0) for out in outs):
            raise ShapeError(f"can't resize {x.type}: it has no elements")
        return g.expand(g.const(0, x.type.dtype), shape=outs)
    if mode == "nearest":
        return _nearest(g, node, x, axes, coordinates)
    dtype = x.type.dtype
    y = x if dtypes.is_float(dtype) else g.cast(x, to="f32")
    for a, axis in enumerate(axes):
        if not _changes(axis, coordinates):
            continue
        if axis.sized:
            y = _interpolated(g, node, y, a, axis, mode, coordinates)
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
    return cropped or not same(axis.size, axis.out) or axis.scale != 1


def _outside(axis: Axis, coordinates: str) -> Array:
    """Which outputs of an axis lie outside the input: only tf_crop_and_resize knows any."""
    if coordinates != "tf_crop_and_resize":
        return np.zeros(1, bool)
    at = axis.coordinates(coordinates)
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
    late: list[tuple[int, Node]] = []
    mode = node.attrs.get("nearest_mode", "round_prefer_floor")
    shape = []
    for a, axis in enumerate(axes):
        step: Step | None = (1, 0, 1)
        if _changes(axis, coordinates) and axis.sized:
            step = periodic_step(axis, mode, coordinates)
            if step is None:
                late.append((a, g.nearest_places(**_placed(axis, coordinates), mode=mode)))
        elif _changes(axis, coordinates):
            scale = np.float32(axis.scale)
            places = nearest_table(
                axis.coordinates(coordinates), axis.size, mode, bool(scale < 1))
            step = affine_step(places, axis.size, scale)
            if step is None:
                late.append((a, g.const(places)))
        steps.append(step or (1, 0, 1))
        shape.append(axis.out if step is not None else axis.size)
    y = x
    if any(s != (1, 0, 1) for s in steps) or not all(map(same, shape, x.type.dims)):
        y = g.resize_nearest(x, shape=tuple(shape), steps=tuple(steps))
    for a, table in late:
        y = g.gather(y, table, axis=a)
    for a, axis in enumerate(axes):
        y = _extrapolated(g, node, y, a, _outside(axis, coordinates))
    return y


# ---- sizes that are not known yet


def _placed(axis: Axis, coordinates: str) -> dict[str, Any]:
    """An axis as attributes of the ops below."""
    scale = Ratio.of(axis.scale)
    if coordinates in ("half_pixel_symmetric", "tf_crop_and_resize"):
        raise SizePinned(f"'{coordinates}' needs numbers")
    return {"size": axis.size, "out": axis.out, "num": scale.num, "den": scale.den,
            "coordinates": coordinates}


def _interpolated(g: GraphBuilder, node: Any, x: Node, a: int, axis: Axis, mode: str,
                  coordinates: str) -> Node:
    """Linear or cubic along one axis."""
    if node.attrs.get("antialias", 0) or node.attrs.get("exclude_outside", 0):
        raise SizePinned(f"Resize by '{mode}' with antialias or exclude_outside needs numbers")
    placed = _placed(axis, coordinates)
    taps = 4 if mode == "cubic" else 2
    sharpness = float(node.attrs.get("cubic_coeff_a", -0.75)) if mode == "cubic" else 0.0
    return g.interpolate(x, g.tap_places(**placed, taps=taps),
                         g.tap_weights(**placed, taps=taps, sharpness=sharpness), axis=a)


def _coordinate(s: KernelBuilder, o: Expr, size: int, out: int, num: int, den: int,
                coordinates: str) -> Expr:
    """As `Axis.coordinates`, of one place."""
    def number(n: int) -> Expr:
        return E.cast(E.const(n, "i64"), "f32")

    at, half, first = E.cast(o, "f32"), s.const(0.5, "f32"), s.const(0.0, "f32")
    several = number(out) > 1.0
    if coordinates == "align_corners":
        return s.select(several, at * number(size - 1) / number(out - 1), first)
    scale = number(num) / number(den)
    if coordinates == "asymmetric":
        return at / scale
    at = (at + half) / scale
    if coordinates != "tf_half_pixel_for_nn":
        at = at - half
    return s.select(several, at, first) if coordinates == "pytorch_half_pixel" else at


def _axis_ref(size: int, out: int, num: int, den: int, **_: Any) -> Axis:
    return Axis(size, out, np.float32(num / den))


_PLACED = [sample(size=s, out=o, num=n, den=d, coordinates=c) for s, o, n, d, c in (
    (5, 12, 12, 5, "half_pixel"), (12, 5, 5, 12, "align_corners"), (6, 9, 3, 2, "asymmetric"),
    (7, 4, 4, 7, "pytorch_half_pixel"), (5, 10, 2, 1, "tf_half_pixel_for_nn"))]


@indexed("creation", infer=lambda out, **_: TensorType("i32", (out,)),
         ref=lambda coordinates, mode, **a: nearest_table(
             _axis_ref(**a).coordinates(coordinates), a["size"], mode,
             a["num"] < a["den"]).astype(np.int32),
         samples=[sample(**dict(p.attrs), mode=m) for p in _PLACED for m in (
             "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")])
def nearest_places(s: KernelBuilder, ix: Index, size: int, out: int, num: int, den: int,
                   coordinates: str, mode: str) -> Expr:
    """`nearest_table`: the element nearest to each place."""
    at = _coordinate(s, ix[0], size, out, num, den, coordinates)
    down = s.floor(at)
    rest, up = at - down, s.ceil(at)
    if mode == "simple":
        mode = "ceil" if num < den else "floor"
    found = {"round_prefer_floor": s.select(rest > 0.5 + HALF, up, down),
             "round_prefer_ceil": s.select(rest >= 0.5 - HALF, down + 1.0, down),
             "floor": down, "ceil": up}.get(mode)
    if found is None:
        raise ModelError(f"nearest_mode='{mode}' is not one of round_prefer_floor, "
                         "round_prefer_ceil, floor, ceil")
    return E.cast(clamped(s, found, size), "i32")


def _tap_tables(coordinates: str, taps: int, sharpness: float = 0.0, **a: Any
                ) -> tuple[Array, Array]:
    mode = "cubic" if taps == 4 else "linear"
    return tap_tables(_axis_ref(**a), mode, coordinates, sharpness, False, False)


@indexed("creation", infer=lambda out, taps, **_: TensorType("i32", (out, taps)),
         ref=lambda **a: _tap_tables(**a)[0],
         samples=[sample(**dict(p.attrs), taps=n) for p in _PLACED for n in (2, 4)])
def tap_places(s: KernelBuilder, ix: Index, size: int, out: int, num: int, den: int,
               coordinates: str, taps: int) -> Expr:
    """The two elements that each place lies between, or the four around it; those of the border
    beyond it."""
    down = s.floor(_coordinate(s, ix[0], size, out, num, den, coordinates))
    place = E.cast(down, "i64") + E.cast(ix[1], "i64")
    return E.cast(clamped(s, place - 1 if taps == 4 else place, size), "i32")


@indexed("creation", infer=lambda out, taps, **_: TensorType("f32", (out, taps)),
         ref=lambda **a: _tap_tables(**a)[1].astype(np.float32),
         samples=[sample(**dict(p.attrs), taps=n, sharpness=-0.75) for p in _PLACED
                  for n in (2, 4)])
def tap_weights(s: KernelBuilder, ix: Index, size: int, out: int, num: int, den: int,
                coordinates: str, taps: int, sharpness: float) -> Expr:
    """What each of them counts: linear of two, cubic of four (Keys, 1981)."""
    at = _coordinate(s, ix[0], size, out, num, den, coordinates)
    rest = at - s.floor(at)
    if taps == 2:
        return s.select(s.eq(ix[1], 0), 1.0 - rest, rest)
    d = s.abs(E.cast(ix[1], "f32") - 1.0 - rest)
    near = ((sharpness + 2) * d - (sharpness + 3)) * d * d + 1.0
    far = ((sharpness * d - 5 * sharpness) * d + 8 * sharpness) * d - 4 * sharpness
    return s.select(d <= 1.0, near, far)
