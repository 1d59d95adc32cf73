"""Sorting without data-dependent stores: every place of the result looks for its element.

Short axes are sorted by rank: each element counts those before it. Long ones are cut into blocks,
and sorted blocks merged in pairs: a place finds out by bisection how many of the places before it
come from the first block ("merge path"; Green et al., 2012). A merge is one parallel kernel, so an
axis of n costs about n * log(n)^2. Where only the first k are wanted, no more of a block are kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import halvings, least
from jitcl.ir.sizes import whole
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F32,
    I32,
    Index,
    Loader,
    Spec,
    clamped,
    composite,
    fixed,
    indexed,
    norm_axis,
    onnx_rule,
    sample,
)

_NAN = Spec((6,), values=(1.0, float("nan"), -1.0, 1.0, float("inf"), float("nan")))
_ROWS = [sample(F32(3, 9), axis=1), sample(F32(9, 2), axis=0, largest=False),
         sample(I32(2, 30, low=0, high=5), axis=-1), sample(_NAN, axis=0),
         sample(_NAN, axis=0, largest=False)]


def _order(x: np.ndarray, axis: int, largest: bool) -> np.ndarray:
    """A stable order along an axis; NaN is greater than all else."""
    if not largest:
        return np.argsort(x, axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


def _rank_type(x: TensorType, axis: int, largest: bool = True) -> TensorType:
    norm_axis(axis, x.rank)
    return x.with_(dtype="i32")


@indexed("sort", infer=_rank_type, samples=_ROWS,
         ref=lambda x, axis, largest=True: np.argsort(_order(x, axis, largest), axis))
def sort_rank(s: KernelBuilder, ix: Index, x: Loader, axis: int, largest: bool = True) -> Expr:
    """Each element's place in order along an axis: how many precede it, equal ones by position."""
    axis = norm_axis(axis, len(x.shape))
    here = x(*ix)

    def precedes(k: Expr) -> Expr:
        there = x(*ix[:axis], k, *ix[axis + 1:])
        before = there > here if largest else there < here
        equal = s.eq(there, here)
        if dtypes.is_float(x.dtype):
            high, low = (there, here) if largest else (here, there)
            before = s.or_(before, s.and_(s.isnan(high), s.not_(s.isnan(low))))
            equal = s.or_(equal, s.and_(s.isnan(there), s.isnan(here)))
        return E.cast(s.or_(before, s.and_(equal, k < ix[axis])), "i32")
    return s.reduce("add", [x.shape[axis]], precedes)


def _indices_type(rank: TensorType, k: int, axis: int) -> TensorType:
    axis = norm_axis(axis, rank.rank)
    if not 0 <= k <= rank.dims[axis]:
        raise ShapeError(f"k is {k}, but axis {axis} of {rank} has {rank.dims[axis]} elements")
    return TensorType("i64", tuple(k if a == axis else d for a, d in enumerate(rank.shape)))


def _first(order: np.ndarray, k: int, axis: int) -> np.ndarray:
    return np.take(order, range(k), axis)


@indexed("sort", infer=_indices_type, ref=lambda r, k, axis: _first(np.argsort(r, axis), k, axis),
         samples=[
    sample(Spec((2, 4), "i32", values=(3, 1, 0, 2, 0, 2, 3, 1)), k=3, axis=1),
    sample(fixed(0, dtype="i32"), k=1, axis=0)])
def rank_indices(s: KernelBuilder, ix: Index, rank: Loader, k: int, axis: int) -> Expr:
    """Where the elements of the first k ranks lie."""
    axis = norm_axis(axis, len(rank.shape))

    def place(i: Expr) -> Expr:
        is_it = s.eq(s.index(rank(*ix[:axis], i, *ix[axis + 1:])), ix[axis])
        return s.select(is_it, E.cast(i, "i32"), 0)
    return s.cast(s.reduce("add", [rank.shape[axis]], place), "i64")


# ---- long axes

BLOCK = 64          # elements sorted by rank before merging begins
LONG = 4096         # elements from which blocks are merged: each merge is a kernel to compile


def precedes(s: KernelBuilder, x: Loader, row: Expr, i: Expr, j: Expr, largest: bool) -> Expr:
    """Whether x[row, i] is strictly before x[row, j]: -1 if it is, 1 if it is behind, 0 if they are
    equal, in lexicographic order along the last axis. NaN is greater than all else."""
    def compare(k: Expr, order: Expr) -> tuple[Expr]:
        a, b = x(row, i, k), x(row, j, k)
        less, greater = a < b, a > b
        if dtypes.is_float(x.dtype):
            less = s.or_(less, s.and_(s.isnan(b), s.not_(s.isnan(a))))
            greater = s.or_(greater, s.and_(s.isnan(a), s.not_(s.isnan(b))))
        first, second = (greater, less) if largest else (less, greater)
        sign = s.select(first, s.const(-1, "i32"), s.select(second, s.const(1, "i32"), 0))
        return (s.select(s.eq(order, 0), sign, order),)
    return s.fold(x.shape[2], (s.const(0, "i32"),), compare)[0]


def _merge_type(x: TensorType, order: TensorType, run: int, keep: int,
                largest: bool = False) -> TensorType:
    if x.rank != 3 or order.rank != 2 or order.dtype != "i32" or order.shape[0] != x.shape[0] or (
            order.dims[1] % (2 * run) or not 0 < keep <= 2 * run):
        raise ShapeError(f"wanted x [rows, n, length] and places i32[rows, m] in runs of {run}, "
                         f"an even number of them, got {x} and {order}")
    return order.with_(shape=(order.shape[0], order.dims[1] // (2 * run) * keep))


def _merge_ref(x: np.ndarray, order: np.ndarray, run: int, keep: int,
               largest: bool = False) -> np.ndarray:
    pairs = order.reshape(len(x), -1, 2 * run)
    rows = [[pair[_row_order(x[r, pair], largest)][:keep] for pair in pairs[r]]
            for r in range(len(x))]
    return np.array(rows, order.dtype).reshape(len(x), -1)


def _row_order(x: np.ndarray, largest: bool = False) -> np.ndarray:
    """A stable order of rows: by the last column first, so that the first one decides."""
    order = np.arange(len(x))
    for column in reversed(range(x.shape[1])):
        order = order[_order(x[order, column], 0, largest)]
    return order


_RUNS = Spec((2, 4), "i32", values=(0, 1, 2, 3, 1, 0, 3, 2))


@indexed("sort", infer=_merge_type, ref=_merge_ref, samples=[
    sample(Spec((2, 4, 1), values=(1, 3, 0, 3, 2, -1, 9, 5)), _RUNS, run=2, keep=4),
    sample(Spec((2, 4, 1), "i64", values=(3, 1, 3, 0, -1, 2, 5, 9)), _RUNS, run=2, keep=3,
           largest=True),
    sample(I32(2, 4, 3, low=0, high=2), Spec((2, 4), "i32", values=(0, 1, 2, 3) * 2), run=1,
           keep=2)])
def merge_runs(s: KernelBuilder, ix: Index, x: Loader, order: Loader, run: int, keep: int,
               largest: bool = False) -> Expr:
    """The first `keep` of each pair of runs of `run` places in order; equal ones stay in order."""
    row, place = ix
    start = place // keep * (2 * run)
    wanted = E.cast(place % keep, "i32")

    def first(i: Expr) -> Expr:
        return clamped(s, order(row, start + clamped(s, i, run)), x.shape[1])

    def second(j: Expr) -> Expr:
        return clamped(s, order(row, start + run + clamped(s, j, run)), x.shape[1])

    def halve(k: Expr, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        middle = s.shr(low + high, 1)
        after = precedes(s, x, row, first(middle), second(wanted - 1 - middle), largest) <= 0
        open_ = low < high
        return (s.select(s.and_(open_, after), middle + 1, low),
                s.select(s.and_(open_, s.not_(after)), middle, high))
    begin = (s.max(wanted - run, 0), s.min(wanted, run))
    taken, _ = s.fold(run.bit_length(), begin, halve)
    rest = wanted - taken
    one, other = first(taken), second(rest)
    stays = s.or_(rest >= run, precedes(s, x, row, one, other, largest) <= 0)
    return E.cast(s.select(s.and_(taken < run, stays), one, other), "i32")


def _row_rank_type(x: TensorType) -> TensorType:
    if x.rank != 3:
        raise ShapeError(f"wanted rows [rows, n, length], got {x}")
    return TensorType("i32", x.shape[:2])


@indexed("sort", infer=_row_rank_type,
         ref=lambda x: np.stack([np.argsort(_row_order(rows)) for rows in x]).astype(np.int32),
         samples=[sample(I32(2, 7, 3, low=0, high=2)),
                  sample(Spec((1, 3, 2), values=(1, float("nan"), 1, 2, 0, float("nan"))))])
def row_rank(s: KernelBuilder, ix: Index, x: Loader) -> Expr:
    """Each row's place in lexicographic order: how many precede it, equal ones by position."""
    group, i = ix

    def before(k: Expr) -> Expr:
        order = precedes(s, x, group, k, i, False)
        return E.cast(s.or_(order < 0, s.and_(s.eq(order, 0), k < i)), "i32")
    return s.reduce("add", [x.shape[1]], before)


def _by_rank(g: GraphBuilder, x: Node, largest: bool, first: int) -> Node:
    """The first places, i32 [rows, first], of [rows, n, length]; least first if longer than 1."""
    rows, n, length = x.type.dims
    if length > 1:
        rank = g.row_rank(x)
    else:
        rank = g.sort_rank(g.reshape(x, shape=(rows, n)), axis=1, largest=largest)
    return g.cast(g.rank_indices(rank, k=first, axis=1), to="i32")


def _sort_ref(x: np.ndarray, largest: bool = False, first: int | None = None,
              long: int = LONG) -> np.ndarray:
    return np.stack([_row_order(row, largest)[:first] for row in x]).astype(np.int32)


@composite(ref=_sort_ref, samples=[
    sample(I32(2, 37, 2, low=0, high=4)), sample(F32(1, 1, 1)),
    sample(F32(1, 200, 1), long=100), sample(F32(2, 200, 1), largest=True, first=5, long=100),
    sample(I32(1, 100, 2, low=0, high=9), long=64),
    sample(Spec((1, 6, 1), values=_NAN.values)),
    sample(Spec((1, 6, 1), values=_NAN.values), largest=True)])
def sort_order(g: GraphBuilder, x: Node, largest: bool = False, first: int | None = None,
               long: int = LONG) -> Node:
    """The places of the elements [rows, n, length] in order, least (or greatest; of rows of one
    element) first; of all, or of the `first` so many.

    From `long` elements on by merging. What fills the axis up to a power of two sorts behind all
    else: it is as far behind as a value can be, and it stands behind its equals.
    """
    if x.type.rank != 3 or not x.type.dims[2] or (largest and x.type.dims[2] > 1):
        raise ShapeError(f"wanted [rows, n, length], of a length of 1 if greatest first, got "
                         f"{x.type}")
    rows, n, length = x.type.dims
    first = n if first is None else least(first, n)
    if n < long:
        return _by_rank(g, x, largest, first)
    size = max(BLOCK, 1 << halvings(n))
    low, high = dtypes.limits(x.type.dtype)
    worst = low if largest else float("nan") if dtypes.is_float(x.type.dtype) else high
    x = g.pad(x, g.const(worst, x.type.dtype), pads=(0, 0, 0, 0, size - n, 0))
    blocks = g.reshape(x, shape=(rows * size // BLOCK, BLOCK, length))
    order = g.reshape(_by_rank(g, blocks, largest, BLOCK), shape=(rows, size // BLOCK, BLOCK))
    order = g.add(order, g.const(np.arange(0, size, BLOCK).reshape(-1, 1), "i32"))
    order = g.reshape(order, shape=(rows, size))
    run, enough = BLOCK, 1 << halvings(max(first, 1))
    while run < order.type.dims[1]:
        keep = min(2 * run, enough)
        if keep < run:                                   # a block holds more than are wanted
            order = g.reshape(order, shape=(rows, order.type.dims[1] // run, run))
            order = g.slice(order, starts=(0,), ends=(keep,), axes=(2,))
            order = g.reshape(order, shape=(rows, order.type.size // rows))
            run = keep
        order = g.merge_runs(x, order, run=run, keep=keep, largest=largest)
        run = keep
    return g.slice(order, starts=(0,), ends=(first,), axes=(1,))


@composite(ref=lambda x, k, axis=-1, largest=True: _first(
    _order(x, axis, largest), k, axis), samples=[
    sample(F32(3, 9), k=4), sample(I32(2, 30, low=0, high=5), k=30),
    sample(F32(5, 2), k=2, axis=0, largest=False),
    sample(_NAN, k=3), sample(F32(3, 1), k=1),
    sample(Spec((4100, 1), "i32", low=0, high=500), k=3, axis=0)])
def topk_indices(g: GraphBuilder, x: Node, k: int, axis: int = -1, largest: bool = True) -> Node:
    """Indices of the k greatest (or least) along an axis, sorted, equal ones by position."""
    axis = norm_axis(axis, x.type.rank)
    n = x.type.dims[axis]
    if n < LONG or x.type.size == 0:
        return g.rank_indices(g.sort_rank(x, axis=axis, largest=largest), k=k, axis=axis)
    others = [a for a in range(x.type.rank) if a != axis]
    dims = [x.type.dims[a] for a in others]
    rows = g.reshape(g.transpose(x, perm=(*others, axis)), shape=(math.prod(dims), n, 1))
    order = g.sort_order(rows, largest=largest, first=k)
    back = tuple((*others, axis).index(a) for a in range(x.type.rank))
    return g.cast(g.transpose(g.reshape(order, shape=(*dims, k)), perm=back), to="i64")


@onnx_rule("TopK")
def _topk(g: GraphBuilder, node: Any) -> tuple[Node, Node]:
    """`sorted=0` leaves the order open, so sorted serves."""
    x: Node = node.inputs[0]
    axis, k = node.attrs.get("axis", -1), whole(node.static(1).reshape(-1)[0])
    places = g.topk_indices(x, k=k, axis=axis, largest=bool(node.attrs.get("largest", 1)))
    return g.gather_elements(x, places, axis=axis), places
