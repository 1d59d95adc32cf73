"""Normalisations, as composites: statistics in f32, then scale and shift. A template may claim the
whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, UnsupportedError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F16, F32, Index, Loader, composite, indexed, norm_axis, onnx_rule, sample

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def _along(v: Any, rank: int) -> Any:
    return v.reshape(-1, *(1,) * (rank - 2))


def per_channel(g: GraphBuilder, v: Node, rank: int) -> Node:
    """A vector shaped to broadcast along axis 1 of a tensor of that rank."""
    return g.reshape(v, shape=(*v.type.shape, *(1,) * (rank - 2)))


def stats_type(dtype: str) -> str:
    """The type in which statistics are computed."""
    return dtypes.compute(dtype)


# ---- batch_norm


def _batch_norm_ref(
    x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float
) -> Array:
    xs, rank = wide(x), x.ndim
    normal = (xs - _along(wide(mean), rank)) / np.sqrt(
        _along(wide(var), rank) + np.float32(epsilon))
    return np.asarray(normal * _along(wide(scale), rank) + _along(wide(bias), rank)).astype(x.dtype)


_VAR = F32(3, low=0.1, high=2.0)


@composite(
    ref=_batch_norm_ref,
    samples=[
        sample(F32(2, 3, 4, 5), F32(3), F32(3), F32(3), _VAR, epsilon=1e-5),
        sample(F32(4, 3), F32(3), F32(3), F32(3), _VAR, epsilon=1e-3),
        sample(F16(2, 3, 4), F16(3), F16(3), F16(3), F16(3, low=0.1), epsilon=1e-5, rtol=3e-3)],
)
def batch_norm(
    g: GraphBuilder, x: Node, scale: Node, bias: Node, mean: Node, var: Node, epsilon: float
) -> Node:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with one value of each a channel (axis
    1)."""
    if x.type.rank < 2 or any(v.type.shape != (x.type.shape[1],) for v in (scale, bias, mean, var)):
        raise ShapeError(
            f"batch_norm: x {x.type} wants one scale, bias, mean and variance a channel, got "
            + ", ".join(str(v.type) for v in (scale, bias, mean, var))
        )
    wide_type, rank = stats_type(x.type.dtype), x.type.rank
    scale, bias, mean, var = (g.cast(v, to=wide_type) for v in (scale, bias, mean, var))
    factor = g.div(scale, g.sqrt(g.add(var, float(epsilon))))
    shift = g.sub(bias, g.mul(mean, factor))
    y = g.add(
        g.mul(g.cast(x, to=wide_type), per_channel(g, factor, rank)), per_channel(g, shift, rank))
    return g.cast(y, to=x.type.dtype)


@onnx_rule("BatchNormalization")
def _batch_normalization(g: GraphBuilder, node: Any) -> Any:
    x, scale, bias, mean, var = node.inputs[:5]
    epsilon = float(node.attrs.get("epsilon", 1e-5))
    if not node.attrs.get("training_mode", 0):
        return g.batch_norm(x, scale, bias, mean, var, epsilon=epsilon)
    momentum = float(node.attrs.get("momentum", 0.9))
    axes = (0, *range(2, x.type.rank))
    now_mean = g.reduce_mean(g.cast(x, to=stats_type(x.type.dtype)), axes=axes, keepdims=True)
    off = g.sub(g.cast(x, to=stats_type(x.type.dtype)), now_mean)
    now_var = g.reduce_mean(g.mul(off, off), axes=axes, keepdims=True)
    flat_mean, flat_var = (
        g.cast(g.reshape(v, shape=mean.type.shape), to=mean.type.dtype) for v in (now_mean, now_var)
    )
    running = [
        g.add(g.mul(old, momentum), g.mul(new, 1.0 - momentum))
        for old, new in ((mean, flat_mean), (var, flat_var))
    ]
    return g.batch_norm(x, scale, bias, flat_mean, flat_var, epsilon=epsilon), *running


# ---- norms along axes of one tensor


def _normal(g: GraphBuilder, x: Node, axes: Axes, epsilon: float) -> Node:
    """(x - mean) / sqrt(var + epsilon) over axes; x is in a compute type."""
    off = g.sub(x, g.reduce_mean(x, axes=axes, keepdims=True))
    var = g.reduce_mean(g.mul(off, off), axes=axes, keepdims=True)
    return g.div(off, g.sqrt(g.add(var, float(epsilon))))


def _normal_ref(x: Array, axes: Axes, epsilon: float) -> Array:
    x = x.astype(np.float64)            # a mean rounded to f32 is wrong where x varies little
    return np.asarray(
        (x - x.mean(axis=axes, keepdims=True))
        / np.sqrt(x.var(axis=axes, keepdims=True) + np.float32(epsilon))
    )


def _layer_norm_ref(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float
) -> Array:
    y = _normal_ref(wide(x), tuple(range(axis % x.ndim, x.ndim)), epsilon) * wide(scale)
    return np.asarray(y if bias is None else y + wide(bias)).astype(x.dtype)


@composite(
    ref=_layer_norm_ref,
    samples=[
        sample(F32(3, 8), F32(8), F32(8), axis=-1, epsilon=1e-5),
        sample(F32(2, 3, 4), F32(3, 4), axis=1, epsilon=1e-3),
        sample(F16(4, 16), F16(16), F16(16), axis=1, epsilon=1e-5, rtol=2e-3)],
)
def layer_norm(
    g: GraphBuilder, x: Node, scale: Node, bias: Node | None = None, *, axis: int, epsilon: float
) -> Node:
    """Normal over the axes from `axis` on, scaled and shifted elementwise (Ba et al., 2016)."""
    kind = stats_type(x.type.dtype)
    axes = tuple(range(norm_axis(axis, x.type.rank), x.type.rank))
    y = g.mul(_normal(g, g.cast(x, to=kind), axes, epsilon), g.cast(scale, to=kind))
    if bias is not None:
        y = g.add(y, g.cast(bias, to=kind))
    return g.cast(y, to=x.type.dtype)


@onnx_rule("LayerNormalization")
def _layer_normalization(g: GraphBuilder, node: Any) -> Any:
    x, scale, bias = (*node.inputs, None)[:3]
    axis, epsilon = node.attrs.get("axis", -1), float(node.attrs.get("epsilon", 1e-5))
    y = g.layer_norm(x, scale, *([bias] if bias is not None else []), axis=axis, epsilon=epsilon)
    if node.n_outputs == 1:
        return y
    return (y, *statistics(g, x, axis, epsilon))


def statistics(g: GraphBuilder, x: Node, axis: int, epsilon: float) -> tuple[Node, Node]:
    """Mean and 1 / deviation over the axes from `axis` on, in the type that they are summed in."""
    axes = tuple(range(norm_axis(axis, x.type.rank), x.type.rank))
    wide_x = g.cast(x, to=stats_type(x.type.dtype))
    mean = g.reduce_mean(wide_x, axes=axes, keepdims=True)
    off = g.sub(wide_x, mean)
    var = g.reduce_mean(g.mul(off, off), axes=axes, keepdims=True)
    return mean, g.reciprocal(g.sqrt(g.add(var, epsilon)))


def _rms_norm_ref(x: Array, scale: Array, axis: int, epsilon: float) -> Array:
    xs = wide(x)
    mean = np.square(xs).mean(axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return np.asarray(xs / np.sqrt(mean + np.float32(epsilon)) * wide(scale)).astype(x.dtype)


@composite(
    ref=_rms_norm_ref,
    samples=[
        sample(F32(3, 8), F32(8), axis=-1, epsilon=1e-5),
        sample(F32(2, 3, 4), F32(3, 4), axis=1, epsilon=1e-3),
        sample(F16(4, 16), F16(16), axis=1, epsilon=1e-5, rtol=2e-3)],
)
def rms_norm(g: GraphBuilder, x: Node, scale: Node, axis: int, epsilon: float) -> Node:
    """x / sqrt(mean(x^2) + epsilon) over the axes from `axis` on, scaled (Zhang and Sennrich,
    2019)."""
    kind = stats_type(x.type.dtype)
    axes = tuple(range(norm_axis(axis, x.type.rank), x.type.rank))
    xs = g.cast(x, to=kind)
    mean = g.reduce_mean(g.mul(xs, xs), axes=axes, keepdims=True)
    y = g.mul(g.div(xs, g.sqrt(g.add(mean, float(epsilon)))), g.cast(scale, to=kind))
    return g.cast(y, to=x.type.dtype)


@onnx_rule("RMSNormalization")
def _rms_normalization(g: GraphBuilder, node: Any) -> Node:
    return g.rms_norm(
        node.inputs[0], node.inputs[1], axis=node.attrs.get("axis", -1),
        epsilon=float(node.attrs.get("epsilon", 1e-5)))


def _group_norm_ref(x: Array, scale: Array, bias: Array, groups: int, epsilon: float) -> Array:
    split = wide(x).reshape(x.shape[0], groups, math.prod(x.shape[1:]) // max(groups, 1))
    y = _normal_ref(split, (2,), epsilon).reshape(x.shape)
    return np.asarray(y * _along(wide(scale), x.ndim) + _along(wide(bias), x.ndim)).astype(x.dtype)


@composite(
    ref=_group_norm_ref,
    samples=[
        sample(F32(2, 4, 3, 5), F32(4), F32(4), groups=2, epsilon=1e-5),
        sample(F32(2, 3, 4, 5), F32(3), F32(3), groups=3, epsilon=1e-5),
        sample(F16(1, 6, 9), F16(6), F16(6), groups=3, epsilon=1e-5, rtol=2e-3)],
)
def group_norm(
    g: GraphBuilder, x: Node, scale: Node, bias: Node, groups: int, epsilon: float
) -> Node:
    """Normal within each group of channels, scaled and shifted by channel (Wu and He, 2018)."""
    channels, kind = x.type.dims[1], stats_type(x.type.dtype)
    alone = groups == channels
    if (
        not alone and (groups < 1 or channels % groups)
        or scale.type.dims != (channels,)
        or bias.type.dims != (channels,)
    ):
        raise ShapeError(
            f"group_norm: x {x.type} in {groups} groups wants {channels} scales and biases and "
            f"equal groups, got {scale.type} and {bias.type}"
        )
    dims = x.type.dims
    split = dims if alone else (dims[0], groups, channels // groups, *dims[2:])
    y = g.reshape(g.cast(x, to=kind), shape=split)
    y = g.reshape(_normal(g, y, tuple(range(2, len(split))), epsilon), shape=dims)
    y = g.add(
        g.mul(y, per_channel(g, g.cast(scale, to=kind), x.type.rank)),
        per_channel(g, g.cast(bias, to=kind), x.type.rank))
    return g.cast(y, to=x.type.dtype)


@onnx_rule("GroupNormalization")
def _group_normalization(g: GraphBuilder, node: Any) -> Node:
    return g.group_norm(
        *node.inputs[:3], groups=int(node.attrs["num_groups"]),
        epsilon=float(node.attrs.get("epsilon", 1e-5)))


@onnx_rule("InstanceNormalization")
def _instance_normalization(g: GraphBuilder, node: Any) -> Node:
    """Normal over each channel's spatial axes (Ulyanov et al., 2016)."""
    x, scale, bias = node.inputs[:3]
    if x.type.rank < 3:
        raise ShapeError(f"InstanceNormalization takes a tensor of rank 3 or more, got {x.type}")
    return g.group_norm(x, scale, bias, groups=x.type.dims[1],
                        epsilon=float(node.attrs.get("epsilon", 1e-5)))


@onnx_rule("LpNormalization")
def _lp_normalization(g: GraphBuilder, node: Any) -> Node:
    """x / ||x||_p along an axis; 0 where the norm is 0."""
    x, p = node.inputs[0], int(node.attrs.get("p", 2))
    axis = norm_axis(node.attrs.get("axis", -1), x.type.rank)
    reduce = {1: g.reduce_l1, 2: g.reduce_l2}.get(p)
    if reduce is None:
        raise UnsupportedError(f"LpNormalization with p={p}: only 1 and 2 are defined")
    norm = reduce(x, axes=(axis,), keepdims=True)
    zero = g.equal(norm, 0.0)
    return g.div(x, g.where(zero, g.const(1, x.type.dtype), norm))


# ---- across channels


def _lrn_ref(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    squares, channels = np.square(wide(x)), x.shape[1]
    before, after = (size - 1) // 2, size // 2
    sums = np.stack(
        [
            squares[:, max(0, c - before) : min(channels, c + after + 1)].sum(axis=1)
            for c in range(channels)
        ],
        axis=1,
    )
    return np.asarray(wide(x) / (bias + alpha / size * sums) ** beta).astype(x.dtype)


@indexed(
    "window",
    infer=lambda x, **_: x,
    ref=_lrn_ref,
    samples=[
        sample(F32(2, 5, 3, 3), size=3, alpha=0.5, beta=0.75, bias=1.0),
        sample(F32(1, 4, 2), size=4, alpha=0.1, beta=0.5, bias=2.0)],
)
def lrn(
    s: KernelBuilder, ix: Index, x: Loader, size: int, alpha: float, beta: float, bias: float
) -> Expr:
    """x / (bias + alpha / size * sum of x^2 over `size` channels around)^beta (Krizhevsky et al.,
    2012)."""
    n, c, *rest = ix

    def term(k: Expr) -> Expr:
        at = c + k - (size - 1) // 2
        value = x(n, at, *rest, guard=s.inside(at, x.shape[1]))
        return value * value

    total = s.reduce("add", (size,), term)
    return x(*ix) / s.pow(total * (alpha / size) + bias, beta)


@onnx_rule("LRN")
def _lrn(g: GraphBuilder, node: Any) -> Node:
    a, x = node.attrs, node.inputs[0]
    size = int(a["size"])
    window = min(size, 2 * x.type.dims[1] + size % 2)    # wider ones see all channels, too
    return g.lrn(
        x, size=window, alpha=float(a.get("alpha", 1e-4)) * window / size,
        beta=float(a.get("beta", 0.75)), bias=float(a.get("bias", 1.0)))
