"""Results as long as data says: Compress and Unique.

Kernels compute as much as there can be and how much there is (`Bounded`). Elements are picked
without a sequential pass: running counts say how many come before each place, and each place of the
result finds its element by bisection.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import halvings
from jitcl.ir.sizes import same
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    BOOL,
    Bounded,
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
from jitcl.ops.sorting import precedes

Array = np.ndarray[Any, Any]
SPARE = 6                       # doublings that a search in a vector of unknown length is for


# ---- places of what is kept


def _places_type(counts: TensorType, size: int) -> TensorType:
    if counts.rank != 1 or counts.dtype != "i32" or same(counts.shape[0], 0):
        raise ShapeError(f"wanted running counts i32[n], got {counts}")
    return TensorType("i32", (size,))


def _places_ref(counts: Array, size: int) -> Array:
    found = np.searchsorted(counts, np.arange(1, size + 1))
    return np.minimum(found, len(counts) - 1).astype(np.int32)


@indexed("scan", infer=_places_type, ref=_places_ref, samples=[
    sample(fixed(0, 1, 1, 2, 3, 3, dtype="i32"), size=3), sample(fixed(1, dtype="i32"), size=1),
    sample(fixed(0, 0, 0, dtype="i32"), size=2)])
def counted_places(s: KernelBuilder, ix: Index, counts: Loader, size: int) -> Expr:
    """Where running counts first reach 1, 2, ...; the last place where they never do."""
    n = counts.shape[0]
    wanted = E.cast(ix[0], "i32") + 1

    def halve(k: Expr, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        middle = s.div(low + high, s.const(2, "i32"))
        reached = counts(clamped(s, middle, n)) >= wanted
        return s.select(reached, low, s.min(middle + 1, high)), s.select(reached, middle, high)
    found, _ = s.fold(halvings(n, SPARE), (s.const(0, "i32"), s.const(n - 1, "i32")), halve)
    return found


@composite(ref=lambda kept: _padded(np.flatnonzero(kept), kept.size), samples=[
    sample(BOOL(7)), sample(BOOL(300)), sample(BOOL(1))])
def kept_places(g: GraphBuilder, kept: Node) -> Node:
    """Places of the true elements of a vector, in order; behind them the vector's last place."""
    return g.counted_places(running_count(g, kept), size=kept.type.dims[0])


def _padded(places: Array, size: int) -> Array:
    return np.pad(places, (0, size - len(places)), constant_values=size - 1).astype(np.int32)


def running_count(g: GraphBuilder, kept: Node) -> Node:
    """How many elements up to each are true: i32 of the vector's shape."""
    return g.running(g.cast(kept, to="i32"), axis=0)


def total(g: GraphBuilder, kept: Node) -> Node:
    """How many elements are true: i64[1]."""
    return g.cast(g.reduce_sum(g.cast(kept, to="i32"), axes=(0,)), to="i64")


@onnx_rule("Compress")
def _compress(g: GraphBuilder, node: Any) -> Bounded | Node:
    """The slices that the condition names; what it is too short for is left out."""
    x, condition = node.inputs[:2]
    if condition.type.rank != 1 or condition.type.dtype != "bool":
        raise TypeError_(f"Compress takes a condition bool[n], got {condition.type}")
    axis = node.attrs.get("axis")
    if axis is None:
        x, axis = g.reshape(x, shape=(x.type.size,)), 0
    axis = norm_axis(axis, x.type.rank)
    length = min(x.type.dims[axis], condition.type.dims[0])
    if length == 0:
        return g.slice(x, starts=(0,), ends=(0,), axes=(axis,))
    if length < condition.type.dims[0]:
        condition = g.slice(condition, starts=(0,), ends=(length,))
    y = g.gather(x, g.kept_places(condition), axis=axis)
    return Bounded((y,), total(g, condition), (axis,))


# ---- Unique


def _rows_type(x: TensorType, order: TensorType) -> TensorType:
    if x.rank != 3 or order != TensorType("i32", x.shape[:2]) or x.shape[0] != 1:
        raise ShapeError(f"wanted rows [1, n, length] and their order i32[1, n], got {x} and "
                         f"{order}")
    return TensorType("i32", x.shape[1:2])


def _same(a: Array, b: Array) -> bool:
    return bool(np.all((a == b) | ((a != a) & (b != b))))


_PAIRS = Spec((1, 5, 2), "i32", values=(2, 1, 0, 5, 2, 1, 2, 0, 0, 5))
_PAIR_ORDER = Spec((1, 5), "i32", values=(1, 4, 3, 0, 2))
_NUMBERS = Spec((1, 4, 1), values=(1.0, float("nan"), -0.0, float("nan")))
_NUMBER_ORDER = Spec((1, 4), "i32", values=(2, 0, 1, 3))


@indexed("scan", infer=lambda x, order: _rows_type(x, order).with_(dtype="bool"),
         ref=lambda x, order: np.array([p == 0 or not _same(x[0, i], x[0, order[0, p - 1]])
                                        for p, i in enumerate(order[0])]),
         samples=[sample(_PAIRS, _PAIR_ORDER), sample(_NUMBERS, _NUMBER_ORDER)])
def run_starts(s: KernelBuilder, ix: Index, x: Loader, order: Loader) -> Expr:
    """Which places of the sorted rows differ from the place before; NaN is equal to NaN."""
    (p,) = ix
    zero = E.index(0)
    here, before = (clamped(s, order(0, i), x.shape[1])
                    for i in (p, s.max(p - 1, 0)))
    return s.or_(s.eq(p, 0), s.ne(precedes(s, x, zero, before, here, False), 0))


@indexed("scan", infer=_rows_type,
         ref=lambda x, order: np.array([next(p for p, j in enumerate(order[0])
                                             if _same(x[0, i], x[0, j]))
                                        for i in range(x.shape[1])], np.int32),
         samples=[sample(_PAIRS, _PAIR_ORDER), sample(_NUMBERS, _NUMBER_ORDER)])
def sorted_place(s: KernelBuilder, ix: Index, x: Loader, order: Loader) -> Expr:
    """For each row the first place, in order, of a row that is equal to it."""
    (i,) = ix
    n = x.shape[1]

    def halve(k: Expr, low: Expr, high: Expr) -> tuple[Expr, Expr]:
        middle = s.shr(low + high, 1)
        there = clamped(s, order(0, clamped(s, middle, n)), n)
        behind = precedes(s, x, E.index(0), there, i, False) < 0
        return s.select(behind, s.min(middle + 1, high), low), s.select(behind, high, middle)
    found, _ = s.fold(halvings(n, SPARE), (s.const(0, "i32"), s.const(n - 1, "i32")), halve)
    return found


@onnx_rule("Unique")
def _unique(g: GraphBuilder, node: Any) -> Bounded | tuple[Node, ...]:
    """Rows (slices along the axis, or single elements) are sorted; equal ones are a run, whose
    first is the one that occurs first."""
    x: Node = node.inputs[0]
    axis = node.attrs.get("axis")
    if axis is None:
        x, axis = g.reshape(x, shape=(x.type.size,)), 0
    axis = norm_axis(axis, x.type.rank)
    n = x.type.dims[axis]
    if n and x.type.size == 0:
        raise ShapeError(f"Unique of {x.type} along axis {axis}: its slices have no elements")
    if n == 0:
        return (x, *(g.const(np.zeros(0, np.int64)) for _ in range(node.n_outputs - 1)))
    perm = (axis, *(a for a in range(x.type.rank) if a != axis))
    rows = g.reshape(g.transpose(x, perm=perm), shape=(1, n, x.type.size // n))
    if rows.type.dtype == "bool":
        rows = g.cast(rows, to="i32")
    order = g.sort_order(rows)
    starts, place = g.run_starts(rows, order), g.sorted_place(rows, order)
    in_order = g.reshape(order, shape=(n,))
    begins = g.kept_places(starts)
    lengths = g.run_lengths(begins, total(g, starts))
    number = g.gather(g.sub(running_count(g, starts), 1), place)     # of each row's run
    if node.attrs.get("sorted", 1):
        first = g.gather(in_order, begins)
    else:
        own = g.gather(in_order, place)                   # the first row that is equal to each
        stays = g.equal(own, g.const(np.arange(n), "i32"))
        first = g.kept_places(stays)
        lengths = g.gather(lengths, g.gather(number, first))
        number = g.gather(g.sub(running_count(g, stays), 1), own)
    counts = (g.cast(v, to="i64") for v in (first, number, lengths))
    found = (g.gather(x, first, axis=axis), *counts)
    axes: tuple[int | None, ...] = (axis, 0, None, 0)
    return Bounded(found[:node.n_outputs], total(g, starts), axes[:node.n_outputs])


def _lengths_ref(begins: Array, count: Array) -> Array:
    n = len(begins)
    last = np.append(begins[1:], n)
    return np.where(np.arange(n) + 1 < count[0], last, n) - begins


@indexed("movement", infer=lambda begins, count: begins, ref=_lengths_ref, samples=[
    sample(fixed(0, 2, 3, 4, 4, dtype="i32"), fixed(3, dtype="i64"))])
def run_lengths(s: KernelBuilder, ix: Index, begins: Loader, count: Loader) -> Expr:
    """How long the first `count` runs of a vector are that begin at `begins`."""
    (i,) = ix
    n = begins.shape[0]
    end = s.select(i + 1 < s.index(count(0)), s.index(begins(s.min(i + 1, n - 1))), E.index(n))
    return E.cast(end - s.index(begins(i)), "i32")
