"""onnxruntime's attention ops, as `attention` behind what each does to its operands: projections,
biases, rotary positions, past keys and values, masks.

Heads are B N S H: batch, heads, sequence, size of a head. A padding mask adds
`mask_filter_value` (finite) as onnxruntime's does; causality and windows mask with -inf. A row
of which all is -inf is NaN there, and here.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.frontends.onnx.rules.contrib_quantised import columns, scaled_product
from jitcl.ir.graph import Node
from jitcl.ir.sizes import whole
from jitcl.ops.attention import joined_heads, split_heads
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import product
from jitcl.ops.contrib import inputs_of, microsoft, refuse
from jitcl.ops.creation import counting
from jitcl.ops.gather import in_range
from jitcl.ops.normalisation import stats_type

# ---- heads


def parts(g: GraphBuilder, x: Node, sizes: list[int], axis: int = -1) -> list[Node]:
    """x cut along an axis into parts of these sizes."""
    if sum(sizes) != x.type.dims[axis]:
        raise ShapeError(f"{x.type} is not {' + '.join(map(str, sizes))} along axis {axis}")
    ends = np.cumsum(sizes).tolist()
    return [g.slice(x, starts=(end - size,), ends=(end,), axes=(axis,))
            for size, end in zip(sizes, ends)]


def _scale(node: Any, size: int) -> float:
    return float(node.attrs.get("scale") or 1 / math.sqrt(size))


# ---- masks, as biases of the scores


def _where_allowed(g: GraphBuilder, allowed: Node, kind: str, low: float = -math.inf) -> Node:
    return g.where(allowed, g.const(0, kind), g.const(low, kind))


def _causal(g: GraphBuilder, queries: int, keys: int, kind: str) -> Node:
    """Each query sees the keys up to its own, the last query the last key: [1, 1, S, T]."""
    place = g.add(counting(g, queries, (-1, 1)), g.const(keys - queries, "i64"))
    allowed = g.less_or_equal(counting(g, keys), place)
    return g.reshape(_where_allowed(g, allowed, kind), shape=(1, 1, queries, keys))


def _padding(g: GraphBuilder, mask: Node, batch: int, queries: int, keys: int, low: float,
             kind: str) -> Node:
    """A mask_index or key_padding_mask of any form as a bias [B, 1, 1 or S, T]."""
    dims, column = mask.type.dims, counting(g, keys)
    if len(dims) == 1:
        if dims[0] not in (1, batch, 2 * batch, 3 * batch + 2):
            raise ShapeError(f"mask {mask.type} has not 1, 2 or 3 numbers for each of {batch} rows")
        count = 1 if dims[0] == 1 else batch

        def bound(start: int) -> Node:
            part = g.slice(mask, starts=(start,), ends=(start + count,), axes=(0,))
            return g.reshape(g.cast(part, to="i64"), shape=(count, 1, 1, 1))
        allowed = g.less(column, bound(0))                   # ends, or lengths
        if dims[0] == 2 * batch and dims[0] != 1:
            allowed = g.and_(allowed, g.less_or_equal(bound(batch), column))
        return _where_allowed(g, allowed, kind, low)
    if len(dims) == 2:
        mask = g.reshape(mask, shape=(dims[0], 1, 1, dims[1]))
    elif len(dims) == 3:
        mask = g.reshape(mask, shape=(dims[0], 1, *dims[1:]))
    elif len(dims) == 4:                                    # of the longest sequence
        mask = g.slice(mask, starts=(keys - queries, 0), ends=(keys, keys), axes=(2, 3))
    if mask.type.dims[-1] != keys:
        raise ShapeError(f"the mask {list(dims)} covers {mask.type.dims[-1]} keys of {keys}")
    return _where_allowed(g, g.greater(mask, g.const(0, mask.type.dtype)), kind, low)


def _sum(g: GraphBuilder, found: list[Node | None], kind: str) -> Node | None:
    given = [g.cast(bias, to=kind) for bias in found if bias is not None]
    return reduce(g.add, given) if given else None


def _attended(g: GraphBuilder, node: Any, q: Node, k: Node, v: Node, mask: Node | None,
              extra: Node | None) -> Node:
    """[B, S, N * H] of multi-head attention with the node's mask value, direction and scale."""
    (batch, _, queries, size), keys, kind = q.type.dims, k.type.dims[2], stats_type(q.type.dtype)
    low = float(node.attrs.get("mask_filter_value", -10000.0))
    found = [extra]
    if mask is not None:
        found.append(_padding(g, mask, batch, queries, keys, low, kind))
    if node.attrs.get("unidirectional", 0):
        found.append(_causal(g, queries, keys, kind))
    bias = _sum(g, found, kind)
    y = g.attention(q, k, v, *([] if bias is None else [bias]), scale=_scale(node, size),
                    guarded=False)
    return joined_heads(g, y)


# ---- Attention and QAttention: the projection is part of the op


def _self_attention(g: GraphBuilder, node: Any, qkv: Node, mask: Node | None, past: Node | None,
                    extra: Node | None) -> Any:
    """What is left of Attention behind its projection [B, S, D + D + V]."""
    heads, width = int(node.attrs["num_heads"]), qkv.type.dims[-1]
    refuse(bool(node.attrs.get("do_rotary", 0)), "has do_rotary=1",
            "export rotary positions as RotaryEmbedding, or use GroupQueryAttention")
    refuse(bool(node.attrs.get("past_present_share_buffer", 0)), "shares a buffer of past and "
            "present", "export it without past_present_share_buffer")
    sizes = [int(s) for s in node.attrs.get("qkv_hidden_sizes", ())] or [width // 3] * 3
    q, k, v = (split_heads(g, x, heads) for x in parts(g, qkv, sizes))
    if past is not None:
        k, v = (g.concat(g.reshape(p, shape=p.type.dims[1:]), x, axis=2)
                for p, x in zip(parts(g, past, [1, 1], axis=0), (k, v)))
    y = _attended(g, node, q, k, v, mask, extra)
    if node.n_outputs < 2:
        return y
    both = [g.reshape(x, shape=(1, *x.type.dims)) for x in (k, v)]
    return y, g.concat(*both, axis=0)


@microsoft("Attention")
def _attention(g: GraphBuilder, node: Any) -> Any:
    x, w, bias, mask, past, extra, _ = inputs_of(node, 7, needs=(0, 1))
    qkv = product(g, x, w)
    return _self_attention(g, node, qkv if bias is None else g.add(qkv, bias), mask, past, extra)


@microsoft("QAttention")
def _qattention(g: GraphBuilder, node: Any) -> Any:
    """Attention with an integer projection."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = inputs_of(
        node, 9, needs=(0, 1, 2, 3, 4))
    factor = g.mul(columns(g, x_scale), columns(g, w_scale))
    qkv = g.add(scaled_product(g, x, w, x_zero, w_zero, factor), bias)
    return _self_attention(g, node, qkv, mask, past, None)


# ---- MultiHeadAttention


@microsoft("MultiHeadAttention")
def _multi_head_attention(g: GraphBuilder, node: Any) -> Any:
    q, k, v, bias, mask, extra, past_k, past_v, past_length, beams = inputs_of(node, 10)
    refuse(beams is not None or past_length is not None, "keeps past and present in one buffer of "
            "a beam search", "export it without past_sequence_length and cache_indirection")
    refuse(node.n_outputs > 3, "gives its scores as output 3", "export it without them")
    q, k, v = _projected(g, q, k, v, bias, int(node.attrs["num_heads"]))
    if past_k is not None and past_v is not None:
        k, v = g.concat(past_k, k, axis=2), g.concat(past_v, v, axis=2)
    y = _attended(g, node, q, k, v, mask, extra)
    return (y, k, v)[:max(1, node.n_outputs)]


def _projected(g: GraphBuilder, q: Node, k: Node | None, v: Node | None, bias: Node | None,
               heads: int) -> tuple[Node, Node, Node]:
    """Query, key and value as heads, from whatever form they come in, with their bias."""
    if k is None:                                           # [B, S, N, 3, H]
        found = _unstacked(g, q, 3)
    elif v is None:                                         # [B, T, N, 2, H]
        found = [q, *_unstacked(g, k, 2)]
    else:
        found = [q, k, v]
    widths = [x.type.dims[-1] if x.type.rank == 3 else x.type.dims[1] * x.type.dims[3]
              for x in found]
    biases = [None] * 3 if bias is None else parts(g, bias, widths)
    made = []
    for x, b in zip(found, biases):
        if x.type.rank == 4:                                # heads already: no projection, no bias
            made.append(x)
        else:
            made.append(split_heads(g, x if b is None else g.add(x, b), heads))
    return made[0], made[1], made[2]


def _unstacked(g: GraphBuilder, x: Node, count: int) -> list[Node]:
    """[B, S, N, count, H] as `count` times [B, S, N * H]."""
    if x.type.rank != 5 or x.type.dims[3] != count:
        raise ShapeError(f"packed heads must be [batch, length, heads, {count}, size], "
                         f"got {x.type}")
    batch, length, heads, _, size = x.type.dims
    return [g.reshape(p, shape=(batch, length, heads * size)) for p in parts(g, x, [1] * count, 3)]


@microsoft("DecoderMaskedMultiHeadAttention")
def _decoder_attention(g: GraphBuilder, node: Any) -> Any:
    """MultiHeadAttention of one query; its past may be a buffer of which a number says how much
    holds."""
    q, k, v, mask, extra, past_k, past_v, past_length, beam, beams, bias = inputs_of(node, 11)
    wide = beam is not None and int(node.static(8).reshape(())) > 1
    refuse(wide or beams is not None, "reorders its past for a beam search",
            "export it without cache_indirection")
    refuse(node.n_outputs > 3, "gives its scores as output 3", "export it without them")
    heads = int(node.attrs["num_heads"])
    if k is None:
        q, k, v = parts(g, q, [q.type.dims[-1] // 3] * 3)
    q, k, v = _projected(g, q, k, v, bias, heads)
    if past_k is None or past_v is None:
        return (_attended(g, node, q, k, v, mask, extra), k, v)[:max(1, node.n_outputs)]
    if not node.attrs.get("past_present_share_buffer", 0):
        k, v = g.concat(past_k, k, axis=2), g.concat(past_v, v, axis=2)
        return (_attended(g, node, q, k, v, mask, extra), k, v)[:max(1, node.n_outputs)]
    total = int(node.static(7).reshape(())) + 1
    start = g.full(q.type.dims[:1], total - 1, "i64")
    k, v = (g.cache_update(p, x, start, axis=2) for p, x in ((past_k, k), (past_v, v)))
    seen_k, seen_v = (g.slice(x, starts=(0,), ends=(total,), axes=(2,)) for x in (k, v))
    if mask is not None:
        mask = g.slice(mask, starts=(0,), ends=(total,), axes=(-1,))
    return (_attended(g, node, q, seen_k, seen_v, mask, extra), k, v)[:max(1, node.n_outputs)]


# ---- GroupQueryAttention


@microsoft("GroupQueryAttention")
def _group_query_attention(g: GraphBuilder, node: Any) -> Any:
    """Causal attention over a cache: keys and values are appended (or written into a buffer) at
    each row's own length, positions are rotated in the op."""
    q, k, v, past_k, past_v, ends, _, cos, sin, places, extra, sink = inputs_of(
        node, 12, needs=(0, 5, 6))
    q_norm, k_norm = node.input(14), node.input(15)
    _check_cache(node, past_k)
    total = whole(np.asarray(node.static(6)).reshape(-1)[0])
    q, k, v = _grouped(g, node, q, k, v)
    if q_norm is not None and k_norm is not None:
        epsilon = float(node.attrs.get("qk_norm_epsilon", 1e-6))
        q, k = (g.rms_norm(x, w, axis=-1, epsilon=epsilon) for x, w in ((q, q_norm), (k, k_norm)))
    batch, _, queries, size = q.type.dims
    first = total == queries
    ends = in_range(g, ends, 0, total - 1)
    count = g.add(g.cast(g.reshape(ends, shape=(batch,)), to="i64"), 1)   # keys of each row
    start = g.const(0, "i64") if first else g.sub(count, g.const(queries, "i64"))
    begin = g.expand(start, shape=(batch,))
    if node.attrs.get("do_rotary", 0):
        if cos is None or sin is None:
            raise ModelError("has do_rotary=1 but no cos_cache and sin_cache")
        if places is not None:
            places = in_range(g, places, 0, cos.type.dims[0] - 1)
        at = _positions(g, begin, places, queries, first)
        turn = bool(node.attrs.get("rotary_interleaved", 0))
        q, k = (g.rotate_pairs(x, g.gather(cos, at, axis=0), g.gather(sin, at, axis=0),
                               interleaved=turn) for x in (q, k))
    k, v = (_appended(g, p, x, begin, total, first) for p, x in ((past_k, k), (past_v, v)))
    keys = [g.slice(x, starts=(0,), ends=(total,), axes=(2,)) if x.type.dims[2] > total else x
            for x in (k, v)]
    kind = stats_type(q.type.dtype)
    given = g.const(0, kind)
    if extra is not None:
        given = g.cast(g.slice(extra, starts=(0,), ends=(total,), axes=(-1,)), to=kind)
    allowed = _window(g, node, begin, count, queries, total)
    bias = g.where(allowed, given, g.const(-math.inf, kind))
    if sink is None and node.attrs.get("smooth_softmax", 0) == 1:
        sink = g.const(np.zeros(q.type.dims[1]), stats_type(q.type.dtype))
    y = g.attention(q, *keys, bias, *([] if sink is None else [sink]), scale=_scale(node, size),
                    softcap=float(node.attrs.get("softcap", 0.0)), guarded=False)
    return (joined_heads(g, y), k, v)[:max(1, node.n_outputs)]


def _check_cache(node: Any, past: Node | None) -> None:
    """UnsupportedError for caches of other forms than plain keys and values."""
    quantised = any(node.attrs.get(f"{x}_quant_type", "NONE") not in ("", "NONE") for x in "kv")
    refuse(quantised or (past is not None and past.type.dtype in ("i8", "u8")),
            "keeps its cache quantised", "export it with a cache of floats")
    refuse(bool(node.attrs.get("sliding_window_cache", 0)), "keeps a cache as long as its window",
            "export it without sliding_window_cache")
    refuse(node.n_outputs > 3, "gives its scores as output 3", "export it without qk_output")


def _grouped(g: GraphBuilder, node: Any, q: Node, k: Node | None, v: Node | None
             ) -> tuple[Node, Node, Node]:
    """Query, key and value as heads, from three inputs or one."""
    heads, shared = (int(node.attrs[name]) for name in ("num_heads", "kv_num_heads"))
    if k is None or v is None:
        each = q.type.dims[-1] // (heads + 2 * shared)
        q, k, v = parts(g, q, [heads * each, shared * each, shared * each])
    return split_heads(g, q, heads), split_heads(g, k, shared), split_heads(g, v, shared)


def _positions(g: GraphBuilder, begin: Node, given: Node | None, queries: int, first: bool) -> Node:
    """The position of each query [B, S]; of a prompt only the first given one counts."""
    batch = begin.type.dims[0]
    if given is not None and not first:
        return g.reshape(g.cast(given, to="i64"), shape=(batch, queries))
    start = begin
    if given is not None:
        flat = g.reshape(g.cast(given, to="i64"), shape=(-1,))
        start = g.slice(flat, starts=(0,), ends=(1,), axes=(0,))
    steps = g.add(g.reshape(start, shape=(-1, 1)), counting(g, queries))
    return g.expand(steps, shape=(batch, queries))


def _appended(g: GraphBuilder, past: Node | None, new: Node, begin: Node, total: int,
              first: bool) -> Node:
    """The cache with the new rows in it: as long as the past's buffer, or as `total` if that is
    more."""
    batch, _, length, _ = new.type.dims
    held = 0 if past is None else past.type.dims[2]
    if past is None or held == 0:
        return new if length == total else g.pad(new, pads=(0,) * 6 + (total - length, 0))
    if batch == 1 and not first and held + length == total:
        return g.concat(past, new, axis=2)
    if held < total:
        past = g.pad(past, pads=(0,) * 6 + (total - held, 0))
    return g.cache_update(past, new, begin, axis=2)


def _window(g: GraphBuilder, node: Any, begin: Node, count: Node, queries: int, keys: int) -> Node:
    """Which keys a query sees by causality, the local window and its row's length [B, 1, S, T]."""
    batch = begin.type.dims[0]
    column = counting(g, keys)
    place = g.add(g.reshape(begin, shape=(batch, 1, 1, 1)), counting(g, queries, (-1, 1)))
    if not node.attrs.get("causal", 1):
        return g.less(column, g.reshape(count, shape=(batch, 1, 1, 1)))
    allowed = g.less_or_equal(column, place)
    width = int(node.attrs.get("local_window_size", -1))
    if width >= 0:
        allowed = g.and_(allowed, g.less(g.sub(place, column), width))
    return allowed
