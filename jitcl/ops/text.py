"""TfIdfVectorizer of numbers: how often each n-gram of a pool occurs in a row. Pools of strings
are no tensors of numbers, and run on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_, UnsupportedError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import I64, Index, Loader, Spec, fixed, indexed, onnx_rule, sample

Array = np.ndarray[Any, Any]


def _counts_type(x: TensorType, grams: TensorType, lengths: TensorType,
                 skips: int = 0) -> TensorType:
    if x.rank != 2 or grams.rank != 2 or lengths.shape != grams.shape[:1] or (
            {x.dtype, grams.dtype} != {"i64"}):
        raise ShapeError(f"wanted rows i64[n, items], grams i64[m, longest] and their lengths [m], "
                         f"got {x}, {grams} and {lengths}")
    return TensorType("f32", (x.shape[0], grams.shape[0]))


def _counts_ref(x: Array, grams: Array, lengths: Array, skips: int = 0) -> Array:
    y = np.zeros((len(x), len(grams)), np.float32)
    for b, g in np.ndindex(*y.shape):
        gram = grams[g, :lengths[g]].tolist()
        for step in range(1, 2 + (skips if len(gram) > 1 else 0)):
            reach = step * (len(gram) - 1)
            y[b, g] += sum(x[b, i:i + reach + 1:step].tolist() == gram
                           for i in range(x.shape[1] - reach))
    return y


@indexed("scan", infer=_counts_type, ref=_counts_ref, samples=[
    sample(I64(3, 12, low=0, high=3), Spec((4, 3), "i64", values=(1, 0, 0, 1, 2, 0, 0, 1, 2,
                                                                   2, 2, 0)),
           fixed(1, 2, 3, 2, dtype="i32"), skips=s) for s in (0, 2)])
def ngram_counts(s: KernelBuilder, ix: Index, x: Loader, grams: Loader, lengths: Loader,
                 skips: int = 0) -> Expr:
    """How often each gram (of `lengths` items) occurs in each row: its items 1 to `skips` + 1
    places apart, all as far apart; a gram of one item counts once a place."""
    row, number = ix
    items, longest = x.shape[1], grams.shape[1]
    length = s.index(lengths(number))

    def found(apart: Expr, start: Expr) -> Expr:
        def matches(k: Expr) -> Expr:
            at = start + k * (apart + 1)
            equal = s.eq(x(row, at, guard=at < items), grams(number, k))
            return s.or_(s.and_(at < items, equal), k >= length)
        once = s.or_(s.eq(apart, 0), length > 1)
        return s.select(s.and_(once, s.reduce("and", [longest], matches)),
                        s.const(1, "i32"), 0)
    return s.cast(s.reduce("add", [skips + 1, items], found), "f32")


def _pool(node: Any) -> list[list[int]]:
    """The pool's n-grams in order, an empty one for each that is too short or too long."""
    items, starts = node.attrs["pool_int64s"], node.attrs["ngram_counts"]
    shortest, longest = node.attrs["min_gram_length"], node.attrs["max_gram_length"]
    grams: list[list[int]] = []
    for n, (start, end) in enumerate(zip(starts, (*starts[1:], len(items))), 1):
        if start > end or (end - start) % n:
            raise ModelError(f"TfIdfVectorizer: ngram_counts {list(starts)} leave {end - start} "
                             f"items of the pool for {n}-grams")
        for at in range(start, end, n):
            grams.append(list(items[at:at + n]) if shortest <= n <= longest else [])
    return grams


@onnx_rule("TfIdfVectorizer")
def _tf_idf(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    mode, weights = node.attrs["mode"], node.attrs.get("weights")
    if "pool_int64s" not in node.attrs:
        raise UnsupportedError("its pool holds strings; jitcl computes with numbers")
    if not dtypes.is_int(x.type.dtype) or x.type.rank > 2:
        raise TypeError_(f"TfIdfVectorizer takes integers [items] or [rows, items], got {x.type}")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ModelError(f"TfIdfVectorizer's mode is '{mode}': wanted TF, IDF or TFIDF")
    grams, columns = _pool(node), list(node.attrs["ngram_indexes"])
    if len(columns) != len(grams) or min(columns, default=0) < 0:
        raise ModelError(f"TfIdfVectorizer: {len(grams)} n-grams in the pool, but {len(columns)} "
                         "ngram_indexes; they must be as many, and not negative")
    width = max(columns, default=-1) + 1
    if weights is not None and len(weights) != len(grams):
        raise ModelError(f"TfIdfVectorizer: {len(weights)} weights for {len(grams)} n-grams; "
                         "they must be as many")
    batch = x.type.dims[:-1] if x.type.rank == 2 else ()
    rows = g.reshape(g.cast(x, to="i64"), shape=(*(batch or (1,)), x.type.dims[-1] if batch
                                                 else x.type.size))
    pool = {tuple(gram): (column, weights[k] if weights is not None else 1.0)
            for k, (gram, column) in enumerate(zip(grams, columns)) if gram}
    y = _columns(g, rows, pool, width, node.attrs["max_skip_count"], mode)
    return g.reshape(y, shape=(*batch, width))


def _columns(g: GraphBuilder, rows: Node, pool: dict[tuple[int, ...], tuple[int, float]],
             width: int, skips: int, mode: str) -> Node:
    """The result by column, from each n-gram's column and weight. Of an n-gram that the pool holds
    twice the last counts; a column may have several, or none. Several add up, but for IDF: there
    the weight is that of the last one that occurs."""
    count, items = rows.type.dims
    if not pool or items == 0 or width == 0:
        return g.expand(g.const(0, "f32"), shape=(count, width))
    table = np.zeros((len(pool), max(map(len, pool))), np.int64)
    members: list[list[int]] = [[] for _ in range(width)]
    for k, (gram, (column, _)) in enumerate(pool.items()):
        table[k, :len(gram)] = gram
        members[column].append(k)
    lengths = np.array([len(gram) for gram in pool], np.int32)
    weights = np.array([weight for _, weight in pool.values()], np.float32)
    counts = g.ngram_counts(rows, g.const(table), g.const(lengths), skips=skips)
    if mode == "TFIDF":
        counts = g.mul(counts, g.const(weights))
    counts = g.pad(counts, 0.0, pads=(0, 0, 0, 1))                   # one more, which counts 0
    deepest = max(map(len, members))
    which = np.array([m + [len(pool)] * (deepest - len(m)) for m in members], np.int32)
    found = g.gather(counts, g.const(which), axis=1)
    if mode != "IDF":
        return g.reduce_sum(found, axes=(2,), keepdims=False)
    number = g.where(g.greater(found, 0.0), g.const(which + 1), g.const(0, "i32"))
    last = g.reduce_max(number, axes=(2,), keepdims=False)
    return g.gather(g.const(np.append(np.float32(0), weights)), last)
