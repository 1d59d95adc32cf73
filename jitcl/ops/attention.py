"""Scaled dot-product attention, as a composite: scores, softmax and sum in f32, whatever the
operands hold.

Grouped-query attention does not repeat keys and values: heads that share them become an axis of
their own, over which the matmuls broadcast. What ONNX's rule here leaves out (the scores as an
output, a softmax of given precision) is imported through ONNX's own function body.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from jitcl.errors import ShapeError
from jitcl.ir.graph import Node
from jitcl.ir.sizes import is_size
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F16, F32, composite, onnx_rule, sample
from jitcl.ops.normalisation import stats_type

Array = np.ndarray[Any, Any]


def _attention_ref(
        q: Array, k: Array, v: Array, bias: Array | None = None, sink: Array | None = None, *,
        scale: float, softcap: float = 0.0, guarded: bool = True
) -> Array:
    repeats = q.shape[1] // k.shape[1]
    ks, vs = (np.repeat(wide(a), repeats, axis=1) for a in (k, v))
    scores = np.einsum("bhsd,bhtd->bhst", wide(q), ks) * np.float32(scale)
    if softcap:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    if bias is not None:
        scores = scores + wide(bias)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest) & guarded, 0, highest))
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(wide(sink).reshape(-1, 1, 1) - highest)
    return np.asarray(
        np.einsum("bhst,bhtd->bhsd", weights / np.where(total == 0, 1, total), vs)).astype(q.dtype)


@composite(
    ref=_attention_ref,
    samples=[
        sample(F32(2, 3, 4, 8), F32(2, 3, 6, 8), F32(2, 3, 6, 5), scale=0.35),
        sample(F32(1, 6, 4, 8), F32(1, 2, 6, 8), F32(1, 2, 6, 8), F32(1, 6, 4, 6), scale=0.35),
        sample(
            F32(2, 4, 3, 8), F32(2, 2, 5, 8), F32(2, 2, 5, 8), F32(2, 1, 3, 5), scale=0.5,
            softcap=2.0),
        sample(F16(1, 2, 4, 8), F16(1, 2, 6, 8), F16(1, 2, 6, 8), scale=0.35, rtol=2e-3),
        sample(
            F32(2, 4, 3, 8), F32(2, 2, 5, 8), F32(2, 2, 5, 8), F32(2, 1, 3, 5), F32(4), scale=0.5),
        sample(F32(1, 2, 9, 8), F32(1, 2, 6, 8), F32(1, 2, 6, 8), scale=0.35, guarded=False),
        sample(F32(2, 6, 1, 8), F32(2, 2, 5, 8), F32(2, 2, 5, 4), F32(2, 1, 1, 5), scale=0.5),
        sample(
            F32(1, 6, 1, 8), F32(1, 2, 5, 8), F32(1, 2, 5, 8), F32(1, 6, 1, 5), F32(6), scale=0.5),
    ],
)
def attention(
        g: GraphBuilder, q: Node, k: Node, v: Node, bias: Node | None = None,
        sink: Node | None = None, *, scale: float, softcap: float = 0.0, guarded: bool = True
) -> Node:
    """softmax(cap(scale * q @ k') + bias) @ v (Vaswani et al., 2017). A row of which all is -inf
    gives 0 where it is `guarded`, else NaN.

    q [batch, heads, queries, size], k [batch, shared heads, keys, size], v [batch, shared heads,
    keys, value size], bias broadcasts to [batch, heads, queries, keys]. `softcap` c: c *
    tanh(scores / c), 0 for none. `sink` [heads]: the score of a key whose value is 0, which takes
    weight from the others (Xiao et al., 2024, "Efficient streaming language models with attention
    sinks").
    """
    (batch, heads, queries, size), (_, shared, keys, _) = q.type.dims, k.type.dims
    if (
        heads % shared
        or v.type.dims[:3] != k.type.dims[:3]
        or k.type.dims[3] != size
        or k.type.dims[0] != batch
    ):
        raise ShapeError(f"attention: q {q.type}, k {k.type} and v {v.type} do not fit together")
    kind = stats_type(q.type.dtype)
    queried, keyed, valued = (g.cast(n, to=kind) for n in (q, k, v))
    repeats, width = heads // shared, v.type.dims[3]
    one = not is_size(queries) and queries == 1     # heads of a group are the rows of its product
    group: tuple[Any, ...] = ()                     # axes of queries behind batch and shared
    groups: tuple[Any, ...]                         # those of heads
    if repeats > 1:
        group = (repeats,) if one else (repeats, queries)
        queried = g.reshape(queried, shape=(batch, shared, *group, size))
        if not one:
            keyed = g.reshape(keyed, shape=(batch, shared, 1, keys, size))
            valued = g.reshape(valued, shape=(batch, shared, 1, keys, width))
    rank = queried.type.rank
    flipped = g.transpose(keyed, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = g.matmul(g.mul(queried, float(scale)), flipped)
    if softcap:
        scores = g.mul(g.tanh(g.div(scores, float(softcap))), float(softcap))
    if bias is not None:
        bias = g.cast(bias, to=kind)
        if repeats > 1:
            first, each, *last = bias.type.dims
            groups = (1, 1) if each == 1 else (shared, repeats)
            bias = g.reshape(bias, shape=(first, *groups, *(last[1:] if one else last)))
        scores = g.add(scores, bias)
    if sink is not None:
        groups = (shared, repeats) if repeats > 1 else (heads,)
        ones = (1,) * (rank - 1 - len(groups))
        sink = g.reshape(g.cast(sink, to=kind), shape=(1, *groups, *ones))
    y = g.matmul(_softmax(g, scores, sink, guarded), valued)
    if repeats > 1:
        y = g.reshape(y, shape=(batch, heads, queries, width))
    return g.cast(y, to=q.type.dtype)


def _softmax(g: GraphBuilder, scores: Node, sink: Node | None, guarded: bool) -> Node:
    """Softmax along the last axis, of which a sink takes its part."""
    if sink is None and not guarded:
        return g.softmax(scores, axis=-1)
    highest = g.reduce_max(scores, axes=(-1,), keepdims=True)
    if sink is not None:
        highest = g.max(highest, sink)
    kind, shift = scores.type.dtype, highest
    if guarded:
        shift = g.where(g.equal(highest, g.const(-math.inf, kind)), g.const(0, kind), highest)
    weights = g.exp(g.sub(scores, shift))
    total = g.reduce_sum(weights, axes=(-1,), keepdims=True)
    if sink is not None:
        total = g.add(total, g.exp(g.sub(sink, highest)))
    if guarded:
        total = g.where(g.equal(total, 0.0), g.const(1, kind), total)
    return g.div(weights, total)


# ---- import


@onnx_rule("Attention")
def _attention(g: GraphBuilder, node: Any) -> Any:
    q, k, v, mask, past_key, past_value, valid = (*node.inputs, *(None,) * 7)[:7]
    a = node.attrs
    if node.n_outputs > 3 or "softmax_precision" in a:
        return NotImplemented  # ONNX's function body gives these
    packed = q.type.rank == 3
    if packed:
        q, k, v = (
            split_heads(g, x, int(a.get(name, 0)))
            for x, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    past = 0
    if past_key is not None:
        past = past_key.type.dims[2]
        k, v = g.concat(past_key, k, axis=2), g.concat(past_value, v, axis=2)
    scale = float(a.get("scale") or 1 / math.sqrt(q.type.dims[3]))
    bias = _bias(g, node, q, k, mask, past, valid)
    y = g.attention(
        q, k, v, *([] if bias is None else [bias]), scale=scale,
        softcap=float(a.get("softcap", 0.0)))
    if packed:
        y = joined_heads(g, y)
    return (y, k, v)[: max(1, node.n_outputs)]


def split_heads(g: GraphBuilder, x: Node, heads: int) -> Node:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = x.type.dims
    if heads < 1 or width % heads:
        raise ShapeError(f"{x.type} can't be divided into {heads} heads along its last axis")
    split = g.reshape(x, shape=(batch, length, heads, width // heads))
    return g.transpose(split, perm=(0, 2, 1, 3))


def joined_heads(g: GraphBuilder, x: Node) -> Node:
    """[batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.type.dims
    return g.reshape(g.transpose(x, perm=(0, 2, 1, 3)), shape=(batch, length, heads * size))


def _bias(
    g: GraphBuilder, node: Any, q: Node, k: Node, mask: Node | None, past: int, valid: Node | None
) -> Node | None:
    """All masks as one additive bias of rank 4, or None: the given one, causality, window and
    padding."""
    a, kind = node.attrs, stats_type(q.type.dtype)
    queries, keys = q.type.dims[2], k.type.dims[2]
    biases = [] if mask is None else [_given(g, mask, keys, kind)]
    row, column = g.const(np.arange(queries).reshape(-1, 1)), g.const(np.arange(keys))
    count = (
        None
        if valid is None
        else g.reshape(g.cast(valid, to="i64"), shape=(valid.type.dims[0], 1, 1, 1))
    )
    place = g.add(row, past) if count is None or past else g.add(row, g.sub(count, queries))
    allowed = []
    if a.get("is_causal", 0):
        allowed.append(g.less_or_equal(column, place))
    left, right = a.get("left_window_size", -1), a.get("right_window_size", -1)
    if left >= 0:
        allowed.append(g.less_or_equal(g.sub(place, column), left))
    if right >= 0:
        allowed.append(g.less_or_equal(g.sub(column, place), right))
    if count is not None:
        allowed.append(g.less(column, count))
    biases += [g.where(condition, g.const(0, kind), g.const(-math.inf, kind))
               for condition in allowed]
    if not biases:
        return None
    bias = reduce(g.add, biases)
    return g.reshape(bias, shape=(*(1,) * (4 - bias.type.rank), *bias.type.dims))


def _given(g: GraphBuilder, mask: Node, keys: int, kind: str) -> Node:
    """A mask as an additive bias as long as the keys: what it does not reach is masked."""
    if mask.type.dtype == "bool":
        mask = g.where(mask, g.const(0, kind), g.const(-math.inf, kind))
    mask = g.cast(mask, to=kind)
    short = keys - mask.type.dims[-1]
    if short > 0:
        rest = g.const(np.full((*mask.type.dims[:-1], short), -math.inf), kind)
        mask = g.concat(mask, rest, axis=mask.type.rank - 1)
    return mask
