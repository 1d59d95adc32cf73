"""Top-k by ranks: each element counts those before it, so that sorting is parallel."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F32,
    I32,
    Index,
    Loader,
    Spec,
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


@composite(ref=lambda x, k, axis=-1, largest=True: _first(
    _order(x, axis, largest), k, axis), samples=[
    sample(F32(3, 9), k=4), sample(I32(2, 30, low=0, high=5), k=30),
    sample(F32(5, 2), k=2, axis=0, largest=False),
    sample(_NAN, k=3), sample(F32(3, 1), k=1)])
def topk_indices(g: GraphBuilder, x: Node, k: int, axis: int = -1, largest: bool = True) -> Node:
    """Indices of the k greatest (or least) along an axis, sorted, equal ones by position."""
    return g.rank_indices(g.sort_rank(x, axis=axis, largest=largest), k=k, axis=axis)


@onnx_rule("TopK")
def _topk(g: GraphBuilder, node: Any) -> tuple[Node, Node]:
    """`sorted=0` leaves the order open, so sorted serves."""
    x: Node = node.inputs[0]
    axis, k = node.attrs.get("axis", -1), int(node.static(1).reshape(()))
    places = g.topk_indices(x, k=k, axis=axis, largest=bool(node.attrs.get("largest", 1)))
    return g.gather_elements(x, places, axis=axis), places
