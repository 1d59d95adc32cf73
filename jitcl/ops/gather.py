"""Gather and scatter. Indices are clamped: no value of theirs can read outside a buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F16,
    F32,
    I64,
    Index,
    Loader,
    Sample,
    Spec,
    indexed,
    norm_axis,
    onnx_rule,
    same_dtype,
    sample,
)


def _position(s: KernelBuilder, raw: Expr, extent: int) -> Expr:
    """An index value as a place on an axis: negative ones from the end, all clamped into it."""
    i = s.index(raw)
    i = s.select(i < 0, i + extent, i)
    return s.min(s.max(i, 0), extent - 1)


def _check_indices(x: TensorType, indices: TensorType, extent: int, axis: int) -> None:
    if not dtypes.is_int(indices.dtype):
        raise TypeError_(f"indices are {indices}, wanted integers")
    if extent == 0 and indices.size:
        raise ShapeError(f"axis {axis} of {x} is empty: there is nothing to index")


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
    at = _position(s, indices(*ix[axis:end]), x.shape[axis])
    return x(*ix[:axis], at, *ix[end:])


@onnx_rule("Gather")
def _gather(g: GraphBuilder, node: Any) -> Node:
    return g.gather(*node.inputs, axis=node.attrs.get("axis", 0))


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
    at = _position(s, indices(*ix), x.shape[axis])
    return x(*ix[:axis], at, *ix[axis + 1:])


@onnx_rule("GatherElements")
def _gather_elements(g: GraphBuilder, node: Any) -> Node:
    return g.gather_elements(*node.inputs, axis=node.attrs.get("axis", 0))


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
    at = [_position(s, indices(*ix[:lead], k), x.shape[batch_dims + k]) for k in range(depth)]
    return x(*ix[:batch_dims], *at, *ix[lead:])


@onnx_rule("GatherND")
def _gather_nd(g: GraphBuilder, node: Any) -> Node:
    return g.gather_nd(*node.inputs, batch_dims=node.attrs.get("batch_dims", 0))


# ---- scatter, in gather form: each element looks for the updates that are meant for it

_COMBINE: dict[str, Callable[..., Any]] = {
    "none": lambda old, new: new, "add": np.add, "mul": np.multiply,
    "max": np.maximum, "min": np.minimum}


def _scattered(s: KernelBuilder, old: Expr, extents: Sequence[int], reduction: str,
               hits: Callable[..., Expr], update: Callable[..., Expr]) -> Expr:
    """`old` combined with update(*k) for all k that hit; with "none" the last update wins."""
    if reduction != "none":
        start = old if reduction in ("max", "min") else s.const(reduction == "mul", old.dtype)
        total = s.reduce(reduction, extents, lambda *ks: s.select(hits(*ks), update(*ks), start))
        return s.call(reduction, old, total)

    def number(*ks: Expr) -> Expr:
        n = E.index(0)
        for k, extent in zip(ks, extents):
            n = n * extent + k
        return s.select(hits(*ks), E.cast(n, "i32"), -1)
    last = s.index(s.reduce("max", extents, number, init=-1))
    n, ks = s.max(last, 0), []
    for extent in reversed(extents):
        ks.append(n % extent)
        n = n // extent
    return s.select(last >= 0, update(*reversed(ks)), old)


def _scatter_type(x: TensorType, indices: TensorType, updates: TensorType,
                  reduction: str) -> TensorType:
    if reduction not in _COMBINE:
        raise ShapeError(f"reduction '{reduction}' is none of {', '.join(_COMBINE)}")
    if not dtypes.is_int(indices.dtype):
        raise TypeError_(f"indices are {indices}, wanted integers")
    same_dtype(x, updates)
    return x


def _scatter_elements_type(x: TensorType, indices: TensorType, updates: TensorType, axis: int = 0,
                           reduction: str = "none") -> TensorType:
    axis = norm_axis(axis, x.rank)
    if indices.shape != updates.shape or indices.rank != x.rank:
        raise ShapeError(f"{indices} and {updates} must have one shape, and as many axes as {x}")
    return _scatter_type(x, indices, updates, reduction)


def _scatter_elements_ref(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int = 0,
                          reduction: str = "none") -> np.ndarray:
    y = x.copy()
    for at in np.ndindex(indices.shape):
        to = list(at)
        to[axis] = int(indices[at])
        where = tuple(to)
        y[where] = _COMBINE[reduction](y[where], updates[at])
    return y


def _reductions(*args: Spec, **attrs: Any) -> list[Sample]:
    return [sample(*args, reduction=r, **attrs) for r in _COMBINE]


@indexed("scan", infer=_scatter_elements_type, ref=_scatter_elements_ref, samples=[
    *_reductions(F32(5, 3), I64(4, 2, low=-5, high=5), F32(4, 2)),
    *_reductions(F32(3, 5), I64(3, 9, low=0, high=5), F32(3, 9), axis=1)])
def scatter_elements(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, updates: Loader,
                     axis: int = 0, reduction: str = "none") -> Expr:
    """x with y[indices[i, j], j] = updates[i, j], or combined by `reduction`."""
    axis = norm_axis(axis, len(x.shape))
    extent = indices.shape[axis]
    reached = s.const(extent > 0, "bool")
    for a, (i, d) in enumerate(zip(ix, indices.shape)):
        reached = reached if a == axis else reached & (i < d)

    def at(k: Expr) -> Index:
        return (*ix[:axis], k, *ix[axis + 1:])

    def hits(k: Expr) -> Expr:
        return reached & s.eq(_position(s, indices(*at(k), guard=reached), x.shape[axis]), ix[axis])
    return _scattered(s, x(*ix), [max(extent, 1)], reduction, hits,
                      lambda k: updates(*at(k), guard=reached))


@onnx_rule("ScatterElements")
def _scatter_elements(g: GraphBuilder, node: Any) -> Node:
    return g.scatter_elements(*node.inputs, axis=node.attrs.get("axis", 0),
                              reduction=node.attrs.get("reduction", "none"))


def _scatter_nd_type(x: TensorType, indices: TensorType, updates: TensorType,
                     reduction: str = "none") -> TensorType:
    depth = indices.dims[-1] if indices.rank else 0
    if not 1 <= depth <= x.rank or updates.shape != indices.shape[:-1] + x.shape[depth:]:
        raise ShapeError(f"{indices} and {updates} cannot update {x}: wanted updates of shape "
                         f"indices[:-1] + x[{depth}:]")
    return _scatter_type(x, indices, updates, reduction)


def _scatter_nd_ref(x: np.ndarray, indices: np.ndarray, updates: np.ndarray,
                    reduction: str = "none") -> np.ndarray:
    y = x.copy()
    for at in np.ndindex(indices.shape[:-1]):
        where = tuple(indices[at])
        y[where] = _COMBINE[reduction](y[where], updates[at])
    return y


@indexed("scan", infer=_scatter_nd_type, ref=_scatter_nd_ref, samples=[
    *_reductions(F32(4, 3), I64(6, 1, low=-4, high=4), F32(6, 3)),
    *_reductions(F32(3, 4, 2), I64(2, 3, 2, low=-3, high=3), F32(2, 3, 2))])
def scatter_nd(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, updates: Loader,
               reduction: str = "none") -> Expr:
    """x with its slices at the coordinates in `indices` set to `updates`, or combined with them."""
    lead, depth = indices.shape[:-1], indices.shape[-1]

    def hits(*ks: Expr) -> Expr:
        hit = s.const(True, "bool")
        for c in range(depth):
            hit = hit & s.eq(_position(s, indices(*ks, c), x.shape[c]), ix[c])
        return hit
    if 0 in lead:
        return x(*ix)
    return _scattered(s, x(*ix), lead, reduction, hits, lambda *ks: updates(*ks, *ix[depth:]))


@onnx_rule("ScatterND")
def _scatter_nd(g: GraphBuilder, node: Any) -> Node:
    x, indices, updates = node.inputs[:3]
    reduction = node.attrs.get("reduction", "none")
    if indices.op != "const" or reduction != "none" or 0 in (*indices.type.dims, x.type.size):
        return g.scatter_nd(x, indices, updates, reduction=reduction)
    g.scatter_nd(x, indices, updates)                    # checks the shapes
    return _scatter_known(g, x, indices.data, updates)


def _scatter_known(g: GraphBuilder, x: Node, indices: np.ndarray, updates: Node) -> Node:
    """A scatter to known places: each element reads its update, the last one that is meant for it.

    Exporters write assignments to slices so; looking through all updates costs far more.
    """
    depth = indices.shape[-1]
    head, rest = x.type.dims[:depth], x.type.dims[depth:]
    extents = np.array(head)
    places = np.where(indices < 0, indices + extents, indices).clip(0, extents - 1)
    flat = np.ravel_multi_index(tuple(places.reshape(-1, depth).T), head)
    source = np.full(math.prod(head), -1, np.int64)
    for number, place in enumerate(flat):
        source[place] = number
    source = source.reshape(head)
    found = g.gather(g.reshape(updates, shape=(flat.size, *rest)), g.const(source.clip(0)), axis=0)
    meant = g.const((source >= 0).reshape(*head, *(1,) * len(rest)))
    return g.where(meant, found, x)


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
    operands = [i for i in node.inputs if i is not None]
    return g.cache_update(*operands, axis=node.attrs.get("axis", -2),
                          circular=node.attrs.get("mode", "linear") == "circular")
