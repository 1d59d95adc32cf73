"""Import rules of onnxruntime's other ops: embeddings, forms of ONNX's ops that it had first, small
numerical ones. What belongs to a generation loop or to one device is refused, with the way out."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.frontends.onnx.rules.contrib_quantised import number
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contrib import inputs_of, microsoft, standard
from jitcl.ops.core import ONNX, Bounded, norm_axis
from jitcl.ops.gather import in_range
from jitcl.ops.movement import ints

# ---- embeddings


@microsoft("EmbedLayerNormalization")
def _embed(g: GraphBuilder, node: Any) -> Any:
    """layer_norm(word[ids] + position[places] + segment[segments]); outputs: it, the number of ones
    in each row of the mask, and the sum."""
    ids, segments, word, position, segment, gamma, beta, mask, places = inputs_of(
        node, 9, needs=(0, 2, 3, 5, 6))
    tables = [(word, ids), (position, places), (segment, segments)]
    return _embedded(g, node, tables, ids, gamma, beta, mask)


@microsoft("QEmbedLayerNormalization")
def _quantised_embed(g: GraphBuilder, node: Any) -> Any:
    """EmbedLayerNormalization whose tables, gamma and beta are 8-bit integers."""
    ids, segments, word, position, segment, gamma, beta, mask = inputs_of(
        node, 8, needs=(0, 2, 3, 5, 6, 8, 9, 11, 12))
    real: list[Node | None] = []
    for i, x in enumerate((word, position, segment, gamma, beta)):
        scale = node.input(8 + i)
        real.append(None if x is None or scale is None
                    else number(g, x, scale, node.input(13 + i)))
    word, position, segment, gamma, beta = real
    assert word is not None                                 # as its scale is there
    tables = [(word, ids), (position, None), (segment, segments)]
    return _embedded(g, node, tables, ids, gamma, beta, mask)


def _embedded(g: GraphBuilder, node: Any, tables: list[tuple[Node | None, Node | None]], ids: Node,
              gamma: Node | None, beta: Node | None, mask: Node | None) -> Any:
    batch, length = ids.type.dims
    parts = []
    for i, (table, rows) in enumerate(tables):
        if table is None or (rows is None and i != 1):
            continue
        if rows is None:                                    # positions count from 0
            rows = g.reshape(g.arange(start=0, delta=1, count=length), shape=(1, length))
        rows = in_range(g, rows, 0, table.type.dims[0] - 1)
        parts.append(g.gather(table, rows, axis=0))
    total = reduce(g.add, parts)
    y = g.layer_norm(total, gamma, *([] if beta is None else [beta]), axis=-1,
                     epsilon=float(node.attrs.get("epsilon", 1e-12)))
    if mask is None:
        count = g.full((batch,), 0, "i32")
    else:
        count = g.cast(g.reduce_sum(mask, axes=(1,), keepdims=False), to="i32")
    return (y, count, total)[:max(1, node.n_outputs)] if node.n_outputs > 1 else y


@microsoft("TorchEmbedding")
def _torch_embedding(g: GraphBuilder, node: Any) -> Node:
    table, rows = node.inputs[:2]
    return g.gather(table, in_range(g, rows, 0, table.type.dims[0] - 1), axis=0)


@microsoft("RelativePositionBias")
def _relative_position_bias(g: GraphBuilder, node: Any) -> Node:
    """T5's bias [1, heads, queries, keys]: a row of the table for each bucket of distances (Raffel
    et al., 2020)."""
    table = node.inputs[0]
    queries, keys = (int(np.asarray(node.static(i)).reshape(())) for i in (1, 2))
    buckets, far = table.type.dims[0], int(node.attrs["max_distance"])
    distance = np.arange(keys) - np.arange(queries)[:, None]
    found = _buckets(distance, buckets, far, bool(node.attrs.get("is_bidirectional", 0)))
    rows = g.gather(table, g.const(found), axis=0)
    return g.reshape(g.transpose(rows, perm=(2, 0, 1)),
                     shape=(1, table.type.dims[1], queries, keys))


def _buckets(distance: np.ndarray[Any, Any], count: int, far: int, both: bool
             ) -> np.ndarray[Any, Any]:
    """Near distances have a bucket each, far ones share buckets that grow with the logarithm."""
    base = np.zeros_like(distance)
    if both:
        count //= 2
        base = (distance > 0) * count
        near = np.abs(distance)
    else:
        near = np.maximum(-distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(near, 1).astype(np.float32) / exact) / np.float32(
        math.log(far / exact))
    shared = np.minimum(exact + (ratio * (count - exact)).astype(np.int64), count - 1)
    return np.asarray(base + np.where(near < exact, near, shared))


# ---- forms of ONNX's ops


@microsoft("GatherND", "Trilu", "Range")
def _as_is(g: GraphBuilder, node: Any) -> Node:
    """The op that ONNX has by the same name."""
    inputs = list(node.inputs)
    if node.op_type == "Range" and node.input(2) is None:
        inputs = [*inputs[:2], g.const(1, inputs[0].type.dtype)]
    return standard(g, node, node.op_type, *inputs, *(None,) * (2 - len(inputs)))


@microsoft("Unique")
def _unique(g: GraphBuilder, node: Any) -> Any:
    """Unique elements in the order in which they come, the place of each among them, counts."""
    inner = node.with_(op_type="Unique", domain="", attrs={"sorted": 0}, n_outputs=4)
    found = ONNX["", "Unique"](g, inner)
    if isinstance(found, tuple):
        return tuple(found[i] for i in (0, 2, 3))[:node.n_outputs]
    picked = (0, 2, 3)[:node.n_outputs]
    return Bounded(tuple(found.padded[i] for i in picked), found.count,
                   tuple(found.axes[i] for i in picked))


@microsoft("SampleOp")
def _sample_op(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    return x


@microsoft("ExpandDims")
def _expand_dims(g: GraphBuilder, node: Any) -> Node:
    x, axis = node.inputs[0], int(np.asarray(node.static(1)).reshape(()))
    axis = norm_axis(axis, x.type.rank + 1)
    return g.reshape(x, shape=(*x.type.dims[:axis], 1, *x.type.dims[axis:]))


@microsoft("Pad")
def _pad(g: GraphBuilder, node: Any) -> Node:
    x, pads, value = inputs_of(node, 3)
    flat = None if pads is None else g.reshape(pads, shape=(2 * x.type.rank,))
    one = None if value is None else g.reshape(value, shape=())
    return standard(g, node, "Pad", x, flat, one, None)


@microsoft("GridSample")
def _grid_sample(g: GraphBuilder, node: Any) -> Node:
    mode = node.attrs.get("mode", "bilinear")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return standard(g, node, "GridSample", *node.inputs, attrs={**node.attrs, "mode": renamed})


@microsoft("UnfoldTensor")
def _unfold(g: GraphBuilder, node: Any) -> Node:
    """Slices of `size` elements, `step` apart along an axis, as a new last axis."""
    x, size, step = node.inputs[0], int(node.attrs["size"]), int(node.attrs.get("step", 1))
    axis = norm_axis(int(node.attrs.get("dim", -1)), x.type.rank)
    extent = x.type.dims[axis]
    if not 1 <= size <= extent or step < 1:
        raise ShapeError(f"slices of {size}, {step} apart, do not fit axis {axis} of {x.type}")
    starts = np.arange((extent - size) // step + 1) * step
    taken = g.gather(x, g.const(starts[:, None] + np.arange(size)), axis=axis)
    rest = [a for a in range(taken.type.rank) if a != axis + 1]
    return g.transpose(taken, perm=(*rest, axis + 1))


@microsoft("CropAndResize")
def _crop_and_resize(g: GraphBuilder, node: Any) -> Node:
    """Boxes [y1, x1, y2, x2] (0 to 1, corners aligned) of pictures, resized to one size; a point
    outside is `extrapolation_value`."""
    x, boxes, which, _ = node.inputs[:4]
    height, width = ints(node.static(3))
    if x.type.rank != 4 or boxes.type.dims[1:] != (4,):
        raise ShapeError(f"x must be [N, C, H, W] and rois [count, 4], got {x.type} and "
                         f"{boxes.type}")
    mode = {"bilinear": "linear", "nearest": "nearest"}.get(node.attrs.get("mode", "bilinear"))
    if mode is None:
        raise ModelError(f"mode='{node.attrs['mode']}' is neither bilinear nor nearest")
    count, kind = boxes.type.dims[0], x.type.dtype

    def along(low: int, size: int) -> Node:
        """Where outputs lie along an axis, 0 to 1: [count, size]."""
        start, end = (g.slice(boxes, starts=(c,), ends=(c + 1,), axes=(1,))
                      for c in (low, low + 2))
        if size == 1:
            return g.mul(g.add(start, end), 0.5)
        steps = g.const(np.arange(size).reshape(1, size) / (size - 1), kind)
        return g.add(start, g.mul(g.sub(end, start), steps))

    shape = (count, height, width)
    rows = g.reshape(along(0, height), shape=(count, height, 1))
    cols = g.reshape(along(1, width), shape=(count, 1, width))
    grid = g.concat(*(g.reshape(g.sub(g.mul(g.expand(v, shape=shape), 2.0), 1.0),
                                shape=(*shape, 1)) for v in (cols, rows)), axis=3)
    which = in_range(g, which, 0, x.type.dims[0] - 1)
    y = g.grid_sample(g.gather(x, which, axis=0), grid, mode=mode, padding="border", align=True)
    outside = g.or_(*(g.or_(g.less(v, 0.0), g.greater(v, 1.0)) for v in (rows, cols)))
    beyond = g.const(float(node.attrs.get("extrapolation_value", 0.0)), kind)
    return g.where(g.reshape(outside, shape=(count, 1, height, width)), beyond, y)


# ---- small numerical ops


@microsoft("CDist")
def _cdist(g: GraphBuilder, node: Any) -> Node:
    """Distances of all rows of A [M, K] and B [N, K]."""
    a, b = node.inputs[:2]
    metric = node.attrs.get("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise UnsupportedError(f"metric='{metric}' is neither euclidean nor sqeuclidean")
    (m, k), n = a.type.dims, b.type.dims[0]
    off = g.sub(g.reshape(a, shape=(m, 1, k)), g.reshape(b, shape=(1, n, k)))
    y = g.reduce_sum(g.mul(off, off), axes=(2,), keepdims=False)
    return g.sqrt(y) if metric == "euclidean" else y


@microsoft("ComplexMul", "ComplexMulConj")
def _complex_mul(g: GraphBuilder, node: Any) -> Node:
    """Products of complex numbers, whose parts are the last axis."""
    (ar, ai), (br, bi) = ([g.slice(x, starts=(i,), ends=(i + 1,), axes=(-1,)) for i in (0, 1)]
                          for x in node.inputs[:2])
    if node.op_type == "ComplexMulConj":
        bi = g.neg(bi)
    real = g.sub(g.mul(ar, br), g.mul(ai, bi))
    return g.concat(real, g.add(g.mul(ar, bi), g.mul(ai, br)), axis=real.type.rank - 1)


@microsoft("Rfft", "Irfft")
def _rfft(g: GraphBuilder, node: Any) -> Node:
    """The Fourier transform of a real signal along the last axis, or back; complex numbers are a
    last axis of two."""
    x, back = node.inputs[0], node.op_type == "Irfft"
    ndim = int(node.attrs.get("signal_ndim", 1))
    if ndim != 1 or node.attrs.get("normalized", 0) or not node.attrs.get("onesided", 1):
        raise UnsupportedError("only signal_ndim=1, onesided=1, normalized=0 are defined")
    if not back:
        return g.dft(g.reshape(x, shape=(*x.type.dims, 1)), onesided=True)
    y = g.dft(x, inverse=True, onesided=True)
    return g.reshape(y, shape=y.type.dims[:-1])


@microsoft("IsAllFinite")
def _is_all_finite(g: GraphBuilder, node: Any) -> Node:
    """Whether no element of any operand is infinite or no number."""
    tests = [test for test, other in ((g.isinf, "isnan_only"), (g.isnan, "isinf_only"))
             if not node.attrs.get(other, 0)]
    bad = [g.reduce_max(reduce(g.or_, [test(x) for test in tests]), keepdims=False)
           for x in node.inputs]
    return g.not_(reduce(g.or_, bad))


@microsoft("NGramRepeatBlock")
def _ngram_repeat_block(g: GraphBuilder, node: Any) -> Node:
    """scores [B, V], -inf for each token that would repeat an n-gram of input_ids [B, S]."""
    ids, scores = node.inputs[:2]
    size, (batch, length), words = int(node.attrs["ngram_size"]), ids.type.dims, scores.type.dims[1]
    starts = length - size + 1
    if size < 1:
        raise ModelError(f"ngram_size={size} must be 1 or more")
    if starts < 1:
        result: Node = scores
        return result

    def window(first: int, count: int) -> Node:
        return g.slice(ids, starts=(first,), ends=(first + count,), axes=(1,))
    # the n - 1 tokens so far
    repeats = [g.equal(window(i, starts), window(starts + i, 1)) for i in range(size - 1)]
    after = g.reshape(window(size - 1, starts), shape=(batch, 1, starts))
    hit = g.equal(after, g.const(np.arange(words).reshape(words, 1), ids.type.dtype))
    if repeats:
        hit = g.and_(hit, g.reshape(reduce(g.and_, repeats), shape=(batch, 1, starts)))
    return g.where(g.reduce_max(hit, axes=(2,), keepdims=False),
                   g.const(-math.inf, scores.type.dtype), scores)


# ---- what is not compiled

_GENERATION = ("runs a whole generation loop: export the decoder alone, with past and present, and "
               "loop in your program")
_ONE_DEVICE = "is in the form of one device's library: export the model without that optimisation"
_ADVICE = {
    **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _GENERATION),
    **dict.fromkeys(
        ("QOrderedMatMul", "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization",
         "QOrderedLongformerAttention", "QuantizeWithOrder", "DequantizeWithOrder", "EPContext",
         "Snpe", "MatMulFpQ4", "GemmFloat8", "PagedAttention", "SparsePagedAttention"),
        _ONE_DEVICE),
    **dict.fromkeys(
        ("SparseAttention", "LongformerAttention", "DynamicSparseAttention"),
        "is sparse attention, which jitcl does not compile: export the model with dense attention"),
}


@microsoft(*_ADVICE)
def _refused(g: GraphBuilder, node: Any) -> Node:
    raise UnsupportedError(_ADVICE[node.op_type])
