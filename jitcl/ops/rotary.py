"""Rotary positions: pairs of a head's elements turned by an angle that grows with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.attention import joined_heads, split_heads
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.contrib import microsoft
from jitcl.ops.core import F16, F32, Index, Loader, aligned, indexed, sample
from jitcl.ops.creation import counting
from jitcl.ops.gather import in_range

Array = np.ndarray[Any, Any]


def _type(x: TensorType, cos: TensorType, sin: TensorType, interleaved: bool = False) -> TensorType:
    if (x.rank != 4 or cos.rank != 3 or cos.shape != sin.shape or 2 * cos.dims[2] > x.dims[3]
            or cos.shape[1] != x.shape[2] or cos.shape[0] not in (1, x.shape[0])):
        raise ShapeError(
            f"rotate_pairs: x {x} wants cos and sin [{x.shape[0]} or 1, {x.shape[-2]}, up to "
            f"{x.dims[-1] // 2}], got {cos} and {sin}"
        )
    return x


def _ref(x: Array, cos: Array, sin: Array, interleaved: bool = False) -> Array:
    turned = 2 * cos.shape[-1]
    part = wide(x[..., :turned])
    c, s = wide(cos)[:, None], wide(sin)[:, None]
    if interleaved:
        re, im = part[..., ::2], part[..., 1::2]
        y = np.stack([re * c - im * s, re * s + im * c], axis=-1).reshape(part.shape)
    else:
        re, im = np.split(part, 2, axis=-1)
        y = np.concatenate([re * c - im * s, re * s + im * c], axis=-1)
    return np.concatenate([y.astype(x.dtype), x[..., turned:]], axis=-1)


@indexed("movement", infer=_type, ref=_ref, samples=[
    sample(F32(2, 3, 4, 8), F32(2, 4, 4), F32(2, 4, 4)),
    sample(F32(2, 3, 4, 8), F32(1, 4, 4), F32(1, 4, 4), interleaved=True),
    sample(F32(1, 2, 3, 7), F32(1, 3, 2), F32(1, 3, 2)),
    sample(F32(1, 2, 3, 7), F32(1, 3, 2), F32(1, 3, 2), interleaved=True),
    sample(F16(1, 2, 3, 4), F16(1, 3, 2), F16(1, 3, 2), rtol=2e-3)])
def rotate_pairs(s: KernelBuilder, ix: Index, x: Loader, cos: Loader, sin: Loader,
                 interleaved: bool = False) -> Expr:
    """x [B, N, S, H] with pairs of elements turned by the angles of cos and sin [B or 1, S, R / 2];
    elements from R on stay (Su et al., 2021, "RoFormer").

    A pair is (i, i + R / 2), or (2i, 2i + 1) where interleaved.
    """
    b, n, t, i = ix
    half, size = cos.shape[2], x.shape[3]
    if half == 0:
        return x(*ix)
    if interleaved:
        second = s.eq(i % 2, 1)
        pair = i // 2
        other = s.select(second, i - 1, i + 1)
    else:
        second = i >= half
        pair = s.select(second, i - half, i)
        other = s.select(second, i - half, i + half)
    stays = None if 2 * half == size else i >= 2 * half
    if stays is not None:
        pair, other = s.min(pair, half - 1), s.select(stays, i, other)
    value = x(*ix)
    angle = aligned((b, t, pair), cos.shape)
    c, d = (E.cast(table(*angle), value.dtype) for table in (cos, sin))
    mate = x(b, n, t, other)
    turned = value * c + s.select(second, mate, -mate) * d
    return turned if stays is None else s.select(stays, value, turned)


@microsoft("RotaryEmbedding")
def _rotary_embedding(g: GraphBuilder, node: Any) -> Node:
    """x [B, S, N * H] or [B, N, S, H]; positions [B, S], or one that counts up from."""
    x, places, cos, sin = node.inputs[:4]
    flat, dims = x.type.rank == 3, x.type.dims
    if not flat and x.type.rank != 4:
        raise ShapeError(f"x must be [batch, length, width] or [batch, heads, length, size], "
                         f"got {x.type}")
    if flat:
        x = split_heads(g, x, _heads(node, dims[2], 2 * cos.type.dims[1]))
    batch, _, length, _ = x.type.dims
    last = cos.type.dims[0] - (length if places.type.size == 1 else 1)
    places = in_range(g, places, 0, last)
    if places.type.size == 1:
        at = g.add(g.reshape(places, shape=(1, 1)),
                   g.cast(counting(g, length), to=places.type.dtype))
    else:
        at = g.reshape(places, shape=(batch, length))
    y = g.rotate_pairs(x, g.gather(cos, at, axis=0), g.gather(sin, at, axis=0),
                       interleaved=bool(node.attrs.get("interleaved", 0)))
    return joined_heads(g, y) if flat else y


def _heads(node: Any, width: int, turned: int) -> int:
    """How many heads are side by side."""
    heads = int(node.attrs.get("num_heads", 0))
    if node.attrs.get("rotary_embedding_dim", 0):
        if heads < 1:
            raise ModelError("has rotary_embedding_dim but no num_heads: give both")
        return heads
    return max(1, width // turned)
