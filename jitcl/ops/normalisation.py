"""Normalisations, as composites: statistics in f32, then scale and shift. A template may claim the whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.ops.contraction import wide
from jitcl.ops.core import F16, F32, composite, norm_axis, onnx_rule, sample

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def _along(v: Any, rank: int) -> Any:
    return v.reshape(-1, *(1,) * (rank - 2))


def per_channel(g: Any, v: Node, rank: int) -> Node:
    """A vector shaped to broadcast along axis 1 of a tensor of that rank."""
    result: Node = g.reshape(v, shape=(*v.type.shape, *(1,) * (rank - 2)))
    return result


def stats_type(dtype: str) -> str:
    """The type in which statistics are computed."""
    return dtypes.compute(dtype)


# ---- batch_norm

def _batch_norm_ref(x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float) -> Array:
    xs, rank = wide(x), x.ndim
    normal = (xs - _along(wide(mean), rank)) / np.sqrt(_along(wide(var), rank) + np.float32(epsilon))
    return np.asarray(normal * _along(wide(scale), rank) + _along(wide(bias), rank)).astype(x.dtype)


_VAR = F32(3, low=0.1, high=2.0)


@composite(ref=_batch_norm_ref, samples=[
    sample(F32(2, 3, 4, 5), F32(3), F32(3), F32(3), _VAR, epsilon=1e-5),
    sample(F32(4, 3), F32(3), F32(3), F32(3), _VAR, epsilon=1e-3),
    sample(F16(2, 3, 4), F16(3), F16(3), F16(3), F16(3, low=0.1), epsilon=1e-5, rtol=3e-3)])
def batch_norm(g: Any, x: Node, scale: Node, bias: Node, mean: Node, var: Node, epsilon: float) -> Node:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with one value of each a channel (axis 1)."""
    if x.type.rank < 2 or any(v.type.shape != (x.type.shape[1],) for v in (scale, bias, mean, var)):
        raise ShapeError(f"batch_norm: x {x.type} wants one scale, bias, mean and variance a channel, got "
                         + ", ".join(str(v.type) for v in (scale, bias, mean, var)))
    wide_type, rank = stats_type(x.type.dtype), x.type.rank
    scale, bias, mean, var = (g.cast(v, to=wide_type) for v in (scale, bias, mean, var))
    factor = g.div(scale, g.sqrt(g.add(var, float(epsilon))))
    shift = g.sub(bias, g.mul(mean, factor))
    y = g.add(g.mul(g.cast(x, to=wide_type), per_channel(g, factor, rank)), per_channel(g, shift, rank))
    result: Node = g.cast(y, to=x.type.dtype)
    return result


@onnx_rule("BatchNormalization")
def _batch_normalization(g: Any, node: Any) -> Any:
    x, scale, bias, mean, var = node.inputs[:5]
    epsilon = float(node.attrs.get("epsilon", 1e-5))
    if not node.attrs.get("training_mode", 0):
        if node.n_outputs > 1 and node.opset >= 14:
            raise UnsupportedError("BatchNormalization gives running statistics in training mode only")
        return g.batch_norm(x, scale, bias, mean, var, epsilon=epsilon)
    momentum = float(node.attrs.get("momentum", 0.9))
    axes = (0, *range(2, x.type.rank))
    now_mean = g.reduce_mean(g.cast(x, to=stats_type(x.type.dtype)), axes=axes, keepdims=True)
    off = g.sub(g.cast(x, to=stats_type(x.type.dtype)), now_mean)
    now_var = g.reduce_mean(g.mul(off, off), axes=axes, keepdims=True)
    flat_mean, flat_var = (g.cast(g.reshape(v, shape=mean.type.shape), to=mean.type.dtype)
                           for v in (now_mean, now_var))
    running = [g.add(g.mul(old, momentum), g.mul(new, 1.0 - momentum))
               for old, new in ((mean, flat_mean), (var, flat_var))]
    return g.batch_norm(x, scale, bias, flat_mean, flat_var, epsilon=epsilon), *running
