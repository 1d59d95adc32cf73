"""Gather, and caches of keys and values. Indices are clamped: no value of theirs can read outside a
buffer. Import rules say by `in_range` which values are indices of the model's, so that those that
lie outside are found where they come from the caller, or the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import IndexRangeError, ShapeError, TypeError_
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.indices import Bounds, outside, range_text
from jitcl.ir.size_ranges import largest
from jitcl.ir.sizes import same
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F16,
    F32,
    I64,
    Index,
    Loader,
    Spec,
    clamped,
    elementwise,
    indexed,
    norm_axis,
    onnx_rule,
    same_dtype,
    sample,
)


def position(s: KernelBuilder, raw: Expr, extent: int) -> Expr:
    """An index value as a place on an axis: negative ones from the end, all clamped into it."""
    i = s.index(raw)
    return clamped(s, s.select(i < 0, i + extent, i), extent)


def _check_indices(x: TensorType, indices: TensorType, extent: int, axis: int) -> None:
    if not dtypes.is_int(indices.dtype):
        raise TypeError_(f"indices are {indices}, wanted integers")
    if not largest(extent, 1 - indices.size) > 0:
        raise ShapeError(f"axis {axis} of {x} is empty: there is nothing to index")


# ---- indices of the model

def _in_range_ref(x: np.ndarray, low: Bounds, high: Bounds) -> np.ndarray:
    found = outside(x, low, high)
    if found is None:
        return x
    value, place, n = found
    where = f" at {list(place)}" if place else ""
    raise IndexRangeError(f"index {value}{where} is out of range: wanted "
                          f"{range_text(low[n], high[n])}")


@elementwise(infer=lambda x, low, high: x, ref=_in_range_ref, samples=[
    sample(I64(3, 4, low=-5, high=5), low=(-5,), high=(4,)),
    sample(I64(4, 2, low=0, high=3), low=(0, -3), high=(3, 2))])
def index_range(s: KernelBuilder, x: Expr, low: Bounds, high: Bounds) -> Expr:
    """x, whose elements are indices from `low` to `high`; of several bounds, each is one column's
    of the last axis. No kernel has it: it becomes a check of a run's inputs (`passes/indices`)."""
    return x


def in_range(g: GraphBuilder, x: Node, low: Any, high: Any) -> Node:
    """x, marked as indices from low to high; constants are looked at now, and raise
    IndexRangeError."""
    low, high = (v if isinstance(v, tuple) else (v,) for v in (low, high))
    if x.op == "const":
        _in_range_ref(x.data, low, high)
        return x
    return g.index_range(x, low=low, high=high)


def places(g: GraphBuilder, x: Node, *extents: int) -> Node:
    """x, marked as places on an axis, or in each column on one; negative ones from its end."""
    if not extents or any(same(e, 0) for e in extents):
        return x                                # the op says what is wrong
    return in_range(g, x, tuple(-e for e in extents), tuple(e - 1 for e in extents))


# ---- gather

def _gather_type(x: TensorType, indices: TensorType, axis: int = 0) -> TensorType:
    axis = norm_axis(axis, x.rank)
    _check_indices(x, indices, x.dims[axis], axis)
    return x.with_(shape=x.shape[:axis] + indices.shape + x.shape[axis + 1:])


@indexed("movement", infer=_gather_type, ref=lambda x, i, axis=0: np.take(x, i, axis), samples=[
    sample(F32(5, 3), I64(2, 2, low=-5, high=5)),
    sample(F32(2, 5, 3), I64(4, low=0, high=5), axis=1),
    sample(F32(4, 5), I64(low=-5, high=5), axis=-1), sample(F16(5), I64(3, low=0, high=5))])
def gather(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, axis: int = 0) -> Expr:
    """x[..., indices, ...]: whole slices of an axis, by index."""
    axis = norm_axis(axis, len(x.shape))
    end = axis + len(indices.shape)
    at = position(s, indices(*ix[axis:end]), x.shape[axis])
    return x(*ix[:axis], at, *ix[end:])


@onnx_rule("Gather")
def _gather(g: GraphBuilder, node: Any) -> Node:
    x, indices = node.inputs[:2]
    axis = norm_axis(node.attrs.get("axis", 0), x.type.rank)
    return g.gather(x, places(g, indices, x.type.dims[axis]), axis=axis)


def _elements_type(x: TensorType, indices: TensorType, axis: int = 0) -> TensorType:
    axis = norm_axis(axis, x.rank)
    if indices.rank != x.rank:
        raise ShapeError(f"{indices} and {x} must have equally many axes")
    if any(i > d for a, (i, d) in enumerate(zip(indices.dims, x.dims)) if a != axis):
        raise ShapeError(f"{indices} reaches beyond {x} on another axis than {axis}")
    _check_indices(x, indices, x.dims[axis], axis)
    return x.with_(shape=indices.shape)


def _elements_ref(x: np.ndarray, indices: np.ndarray, axis: int = 0) -> np.ndarray:
    cut = [slice(d) for d in indices.shape]
    cut[axis] = slice(None)
    return np.take_along_axis(x[tuple(cut)], indices, axis)


@indexed("movement", infer=_elements_type, ref=_elements_ref, samples=[
    sample(F32(5, 3), I64(2, 3, low=-5, high=5)),
    sample(F32(5, 3), I64(4, 7, low=-3, high=3), axis=1)])
def gather_elements(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, axis: int = 0) -> Expr:
    """y[i, j] = x[indices[i, j], j]: one index for each element."""
    axis = norm_axis(axis, len(x.shape))
    at = position(s, indices(*ix), x.shape[axis])
    return x(*ix[:axis], at, *ix[axis + 1:])


@onnx_rule("GatherElements")
def _gather_elements(g: GraphBuilder, node: Any) -> Node:
    x, indices = node.inputs[:2]
    axis = norm_axis(node.attrs.get("axis", 0), x.type.rank)
    return g.gather_elements(x, places(g, indices, x.type.dims[axis]), axis=axis)


def _gather_nd_type(x: TensorType, indices: TensorType, batch_dims: int = 0) -> TensorType:
    depth = indices.dims[-1] if indices.rank else 0
    if not 1 <= batch_dims + depth <= x.rank or indices.shape[:batch_dims] != x.shape[:batch_dims]:
        raise ShapeError(f"{indices} cannot index {x}: after {batch_dims} batch axes, its last "
                         f"axis must hold 1 to {x.rank - batch_dims} coordinates")
    _check_indices(x, indices, math.prod(x.dims[batch_dims:batch_dims + depth]), batch_dims)
    return x.with_(shape=indices.shape[:-1] + x.shape[batch_dims + depth:])


def _gather_nd_ref(x: np.ndarray, indices: np.ndarray, batch_dims: int = 0) -> np.ndarray:
    batch = indices.shape[:batch_dims]
    depth = indices.shape[-1]
    y = np.empty(indices.shape[:-1] + x.shape[batch_dims + depth:], x.dtype)
    for at in np.ndindex(indices.shape[:-1]):
        y[at] = x[at[:len(batch)]][tuple(indices[at])]
    return y


@indexed("movement", infer=_gather_nd_type, ref=_gather_nd_ref, samples=[
    sample(F32(3, 4, 5), I64(2, 2, low=-3, high=3)), sample(F32(3, 4), I64(6, 2, low=0, high=3)),
    sample(F32(2, 3, 4), I64(2, 2, 1, low=-3, high=3), batch_dims=1),
    sample(F32(3, 2), I64(1, low=0, high=3))])
def gather_nd(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, batch_dims: int = 0) -> Expr:
    """x at coordinates along the last axis of `indices`; the first `batch_dims` axes in step."""
    lead, depth = len(indices.shape) - 1, indices.shape[-1]
    at = [position(s, indices(*ix[:lead], k), x.shape[batch_dims + k]) for k in range(depth)]
    return x(*ix[:batch_dims], *at, *ix[lead:])


@onnx_rule("GatherND")
def _gather_nd(g: GraphBuilder, node: Any) -> Node:
    x, indices = node.inputs[:2]
    batch = node.attrs.get("batch_dims", 0)
    _gather_nd_type(x.type, indices.type, batch)
    extents = x.type.dims[batch:batch + indices.type.dims[-1]]
    return g.gather_nd(x, places(g, indices, *extents), batch_dims=batch)


# ---- key-value caches

def _cache_type(past: TensorType, update: TensorType, *start: TensorType, axis: int = -2,
                circular: bool = False) -> TensorType:
    axis = norm_axis(axis, past.rank)
    if axis == 0 or update.rank != past.rank or any(
            u > p if a == axis else u != p
            for a, (u, p) in enumerate(zip(update.dims, past.dims))):
        raise ShapeError(f"{update} does not fit {past} along axis {axis}")
    if start and (not dtypes.is_int(start[0].dtype) or start[0].shape != past.shape[:1]):
        raise ShapeError(f"write indices are {start[0]}, wanted {past.shape[0]} integers")
    return past.with_(dtype=same_dtype(past, update))


def _cache_ref(past: np.ndarray, update: np.ndarray, start: Any = None, *, axis: int = -2,
               circular: bool = False) -> np.ndarray:
    y = np.moveaxis(past.copy(), axis, 1)
    new = np.moveaxis(update, axis, 1)
    for b in range(len(y)):
        at = np.arange(new.shape[1]) + (0 if start is None else start[b])
        y[b, at % y.shape[1] if circular else at] = new[b]
    return np.moveaxis(y, 1, axis)


@indexed("movement", infer=_cache_type, ref=_cache_ref, samples=[
    sample(F32(2, 5, 3), F32(2, 2, 3)),
    sample(F32(2, 5, 3), F32(2, 2, 3), Spec((2,), "i64", values=(3, 1)), axis=1),
    sample(F32(2, 3, 5, 1), F32(2, 3, 4, 1), Spec((2,), "i64", values=(2, 9)), circular=True)])
def cache_update(s: KernelBuilder, ix: Index, past: Loader, update: Loader, *start: Loader,
                 axis: int = -2, circular: bool = False) -> Expr:
    """`past` with `update` written along `axis` from start[b] (default 0) on, batch by batch."""
    axis = norm_axis(axis, len(ix))
    at = ix[axis] - s.index(start[0](ix[0])) if start else ix[axis]
    at = at % past.shape[axis] if circular else at
    fresh = s.inside(at, update.shape[axis])
    new = update(*ix[:axis], at, *ix[axis + 1:], guard=fresh)
    return s.select(fresh, new, past(*ix))


@onnx_rule("TensorScatter")
def _tensor_scatter(g: GraphBuilder, node: Any) -> Node:
    past, update, *start = (i for i in node.inputs if i is not None)
    axis = norm_axis(node.attrs.get("axis", -2), past.type.rank)
    circular = node.attrs.get("mode", "linear") == "circular"
    _cache_type(past.type, update.type, *(s.type for s in start), axis=axis)
    if not circular:                            # where any start is right
        last = past.type.dims[axis] - update.type.dims[axis]
        start = [in_range(g, s, 0, last) for s in start]
    return g.cache_update(past, update, *start, axis=axis, circular=circular)
