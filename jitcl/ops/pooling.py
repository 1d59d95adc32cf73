"""Pooling: maximum (and where it was), average, Lp norm; over windows and over all spatial axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import is_size
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F16, F32, I32, Index, Loader, indexed, onnx_rule, sample
from jitcl.ops.window import Ints, all_inside, window_attrs, window_extent

Array = np.ndarray[Any, Any]


def _pool_type(
        x: TensorType, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False,
        **_: Any
) -> TensorType:
    n = x.rank - 2
    if not 1 <= n <= 3 or len(kernel) != n:
        raise ShapeError(
            f"pooling with a window {list(kernel)} takes a tensor of rank {len(kernel) + 2}, "
            f"got {x}"
        )
    spatial = (
        window_extent(
            x.shape[2 + d], kernel[d], strides[d], pads[d], pads[n + d], dilations[d], ceil)
        for d in range(n)
    )
    return TensorType(x.dtype, (*x.shape[:2], *spatial))


def _windows(
        x: Array, fill: Any, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool,
        beyond: Any = None
) -> Array:
    """All windows side by side: [N, C, o..., taps]; `fill` in padding, `beyond` past its end."""
    n = x.ndim - 2
    out = _pool_type(TensorType("f32", x.shape), kernel, strides, pads, dilations, ceil).dims[2:]
    reach = [
        max(
            0,
            (out[d] - 1) * strides[d]
            + (kernel[d] - 1) * dilations[d]
            + 1
            - x.shape[2 + d]
            - pads[d]
            - pads[n + d],
        )
        for d in range(n)
    ]
    x = np.pad(
        x, [(0, 0), (0, 0), *((pads[d], pads[n + d]) for d in range(n))], constant_values=fill)
    x = np.pad(
        x, [(0, 0), (0, 0), *((0, r) for r in reach)],
        constant_values=fill if beyond is None else beyond)
    taps = []
    for k in itertools.product(*map(range, kernel)):
        at = tuple(
            slice(first, first + max(0, (out[d] - 1) * strides[d] + 1), strides[d])
            for d, first in enumerate(i * by for i, by in zip(k, dilations))
        )
        taps.append(x[(slice(None), slice(None), *at)])
    return np.stack(taps, axis=-1)


def _places(out: Sequence[Expr], ks: Sequence[Expr], strides: Ints, pads: Ints, dilations: Ints
            ) -> list[Expr]:
    return [o * strides[d] + k * dilations[d] - pads[d] for d, (o, k) in enumerate(zip(out, ks))]


# ---- maximum

_W2: dict[str, Any] = {
    "kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1), "ceil": False}
_W1: dict[str, Any] = {
    "kernel": (3,), "strides": (2,), "pads": (0, 0), "dilations": (1,), "ceil": False}
_W3: dict[str, Any] = {
    "kernel": (2, 2, 2), "strides": (1, 2, 1), "pads": (0,) * 6, "dilations": (1, 1, 1),
    "ceil": False}
_SAMPLES = [
    sample(F32(2, 3, 6, 5), **_W2), sample(F32(1, 2, 8), **_W1),
    sample(F32(1, 2, 8), **{**_W1, "ceil": True}),
    sample(F32(1, 2, 7, 7), **{**_W2, "dilations": (2, 2), "strides": (1, 1)}),
    sample(F16(1, 2, 5), rtol=2e-3, **_W1), sample(F32(1, 1, 3, 4, 3), **_W3)]


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


@indexed(
    "window",
    infer=_pool_type,
    ref=lambda x, kernel, strides, pads, dilations, ceil=False: _windows(
        x, _lowest(x.dtype), kernel, strides, pads, dilations, ceil).max(axis=-1),
    samples=[*_SAMPLES, sample(I32(1, 1, 8), **_W1)],
)
def max_pool(
        s: KernelBuilder, ix: Index, x: Loader, kernel: Ints, strides: Ints, pads: Ints,
        dilations: Ints, ceil: bool = False
) -> Expr:
    """The largest element under each window; padding never wins."""
    n, c, *out = ix
    low = dtypes.limits(x.dtype)[0]

    def term(*ks: Expr) -> Expr:
        at = _places(out, ks, strides, pads, dilations)
        return x(n, c, *at, guard=all_inside(s, at, x.shape[2:]), other=low)

    return s.reduce("max", kernel, term)


def _indices_ref(
        x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False,
        column_major: bool = False
) -> Array:
    spatial = x.shape[2:]
    numbers = np.arange(math.prod(spatial))
    flat = numbers.reshape(spatial[::-1]).T if column_major else numbers.reshape(spatial)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(spatial))
    where = np.broadcast_to(planes * math.prod(spatial) + flat, x.shape)
    values = _windows(x, _lowest(x.dtype), kernel, strides, pads, dilations, ceil)
    places = _windows(where, -1, kernel, strides, pads, dilations, ceil)
    best = values.argmax(axis=-1)[..., None]
    return np.take_along_axis(places, best, axis=-1)[..., 0].astype(np.int64)


@indexed(
    "window",
    ref=_indices_ref,
    infer=lambda x, **attrs: _pool_type(x, **attrs).with_(dtype="i64"),
    samples=[*_SAMPLES, sample(F32(1, 2, 6, 5), column_major=True, **_W2)],
)
def max_pool_indices(
        s: KernelBuilder, ix: Index, x: Loader, kernel: Ints, strides: Ints, pads: Ints,
        dilations: Ints, ceil: bool = False, column_major: bool = False
) -> Expr:
    """Where the (first) largest element under each window is, as a flat index into x: i64."""
    n, c, *out = ix
    spatial = x.shape[2:]
    low = dtypes.limits(x.dtype)[0]
    largest = math.prod(spatial)

    def read(ks: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        at = _places(out, ks, strides, pads, dilations)
        inside = all_inside(s, at, spatial)
        return x(n, c, *at, guard=inside, other=low), inside, flat_index(at, spatial)

    best = s.reduce("max", kernel, lambda *ks: read(ks)[0])

    def place(*ks: Expr) -> Expr:
        value, inside, flat = read(ks)
        return s.select(s.and_(inside, s.eq(value, best)), s.cast(flat, "i64"), largest)

    first = s.index(s.reduce("min", kernel, place))
    if column_major:
        coordinates = []
        for d in range(len(spatial)):
            coordinates.append(first // math.prod(spatial[d + 1 :]) % spatial[d])
        first = flat_index(coordinates[::-1], spatial[::-1])
    return s.cast((n * x.shape[1] + c) * largest + first, "i64")


def flat_index(at: list[Expr], shape: Ints) -> Expr:
    """The row-major number of an element."""
    total = at[0]
    for i, extent in zip(at[1:], shape[1:]):
        total = total * extent + i
    return total


# ---- average and Lp


def _average_ref(
        x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False,
        count_pad: bool = False
) -> Array:
    fill = 0 if count_pad else np.nan
    found = _windows(wide(x), fill, kernel, strides, pads, dilations, ceil, beyond=np.nan)
    return np.asarray(np.nanmean(found, axis=-1)).astype(x.dtype)


@indexed(
    "window",
    ref=_average_ref,
    infer=_pool_type,
    samples=[
        *_SAMPLES, sample(F32(1, 2, 6, 5), count_pad=True, **_W2),
        sample(F32(1, 2, 8), count_pad=True, **{**_W1, "ceil": True, "pads": (1, 1)})],
)
def average_pool(
        s: KernelBuilder, ix: Index, x: Loader, kernel: Ints, strides: Ints, pads: Ints,
        dilations: Ints, ceil: bool = False, count_pad: bool = False
) -> Expr:
    """The mean under each window, over the elements inside x, or with `count_pad` inside x and its
    padding."""
    n, c, *out = ix

    def term(*ks: Expr) -> Expr:
        at = _places(out, ks, strides, pads, dilations)
        return x(n, c, *at, guard=all_inside(s, at, x.shape[2:]))

    total = s.reduce("add", kernel, term)
    counts = []
    for d, o in enumerate(out):
        before, after = (pads[d], pads[len(out) + d]) if count_pad else (0, 0)
        start = o * strides[d] - pads[d] + before  # of the window, from the first counted element
        counts.append(
            taps_inside(s, start, kernel[d], dilations[d], x.shape[2 + d] + before + after))
    return s.div(total, s.cast(reduce(mul, counts), total.dtype))


def taps_inside(s: KernelBuilder, start: Expr, taps: int, dilation: int, extent: int) -> Expr:
    """How many of start, start + dilation, ... (`taps` of them) lie in [0, extent)."""
    first = s.max((dilation - 1 - start) // dilation, 0)
    last = s.min((extent - 1 - start) // dilation, taps - 1)
    return last - first + 1


def _lp_ref(
        x: Array, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil: bool = False,
        p: int = 2
) -> Array:
    powers = _windows(np.abs(wide(x)) ** p, 0, kernel, strides, pads, dilations, ceil)
    return np.asarray(powers.sum(axis=-1) ** (1.0 / p)).astype(x.dtype)


@indexed(
    "window", ref=_lp_ref,
    infer=_pool_type,
    samples=[*_SAMPLES, sample(F32(1, 2, 6, 5), p=3, **_W2), sample(F32(1, 2, 6, 5), p=1, **_W2)])
def lp_pool(
        s: KernelBuilder, ix: Index, x: Loader, kernel: Ints, strides: Ints, pads: Ints,
        dilations: Ints, ceil: bool = False, p: int = 2
) -> Expr:
    """sum(|x|^p)^(1/p) under each window."""
    n, c, *out = ix

    def term(*ks: Expr) -> Expr:
        at = _places(out, ks, strides, pads, dilations)
        return power(s, s.abs(x(n, c, *at, guard=all_inside(s, at, x.shape[2:]))), p)

    return root(s, s.reduce("add", kernel, term), p)


def power(s: KernelBuilder, x: Expr, p: int) -> Expr:
    """x^p by products where p is small."""
    return s.pow(x, float(p)) if p > 4 else math.prod([x] * (p - 1), start=x)


def root(s: KernelBuilder, x: Expr, p: int) -> Expr:
    return x if p == 1 else s.sqrt(x) if p == 2 else s.pow(x, 1.0 / p)


# ---- import


def _attrs(node: Any, x: Node) -> dict[str, Any]:
    if not 3 <= x.type.rank <= 5:
        raise ShapeError(f"pooling takes a tensor of rank 3 to 5, got {x.type}")
    kernel = tuple(node.attrs["kernel_shape"])
    if len(kernel) != x.type.rank - 2:
        raise ModelError(f"attribute kernel_shape={list(kernel)} does not fit the input's {x.type}")
    window: dict[str, Any] = dict(window_attrs(node, x.type.dims[2:], kernel))
    ceil = bool(node.attrs.get("ceil_mode", 0))
    if ceil:                   # a window may be far larger than all that there is (EfficientNet's)
        kernel = tuple(_reaching(*axis) for axis in zip(
            kernel, x.type.shape[2:], window["pads"], window["pads"][len(kernel):],
            window["strides"], window["dilations"]))
    return {"kernel": kernel, "ceil": ceil, **window}


def _reaching(taps: int, extent: Any, before: int, after: int, stride: int, dilation: int) -> int:
    """Of the taps of an axis' only window, those that reach no farther than the padded input; all,
    where a second window would fit without the others."""
    if not isinstance(extent, int) or is_size(extent):
        return taps
    beyond = (taps - 1) * dilation + 1 - (before + extent + after)
    cut = -(-beyond // dilation)
    room = cut * dilation - beyond              # for a second window, unless that starts outside
    fits = 0 < room and not room <= stride >= before + extent
    return taps - cut if 0 < beyond < stride and not fits else taps


@onnx_rule("MaxPool")
def _max_pool(g: GraphBuilder, node: Any) -> Any:
    x = node.inputs[0]
    attrs = _attrs(node, x)
    y = g.max_pool(x, **attrs)
    if node.n_outputs < 2:
        return y
    return y, g.max_pool_indices(x, column_major=bool(node.attrs.get("storage_order", 0)), **attrs)


@onnx_rule("AveragePool")
def _average_pool(g: GraphBuilder, node: Any) -> Any:
    x = node.inputs[0]
    return g.average_pool(
        x, count_pad=bool(node.attrs.get("count_include_pad", 0)), **_attrs(node, x))


@onnx_rule("LpPool")
def _lp_pool(g: GraphBuilder, node: Any) -> Any:
    x = node.inputs[0]
    return g.lp_pool(x, p=int(node.attrs.get("p", 2)), **_attrs(node, x))


def _global(make: Callable[..., Node]) -> Callable[..., Node]:
    """A pooling over all axes behind the second."""

    def rule(g: GraphBuilder, node: Any) -> Node:
        x = node.inputs[0]
        if x.type.rank < 3:
            raise ShapeError(f"global pooling takes a tensor of rank 3 or more, got {x.type}")
        return make(g, x, tuple(range(2, x.type.rank)), node)

    return rule


onnx_rule("GlobalAveragePool")(
    _global(lambda g, x, axes, node: g.reduce_mean(x, axes=axes, keepdims=True)))
onnx_rule("GlobalMaxPool")(
    _global(lambda g, x, axes, node: g.reduce_max(x, axes=axes, keepdims=True)))


def _global_lp(g: GraphBuilder, x: Node, axes: Ints, node: Any) -> Node:
    p = int(node.attrs.get("p", 2))
    if p == 1:
        return g.reduce_l1(x, axes=axes, keepdims=True)
    if p == 2:
        return g.reduce_l2(x, axes=axes, keepdims=True)
    total = g.reduce_sum(g.pow(g.abs(x), float(p)), axes=axes, keepdims=True)
    return g.pow(total, 1.0 / p)


onnx_rule("GlobalLpPool")(_global(_global_lp))
