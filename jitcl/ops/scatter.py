"""Scatter: elements of a copy are replaced, or combined with updates.

A few updates are looked for by each element: a parallel kernel, which fuses. Many are written one
after the other in the order that they have, so that the result is the same in every run: chains of
a recurrence, whose cost is linear. Either way an index outside (an error to ONNX, found where it
comes from the caller or the model) is passed over.
"""

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
from jitcl.ir.sizes import at_least_always, same
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F32,
    I64,
    Index,
    Loader,
    Part,
    Sample,
    Scan,
    Spec,
    composite,
    indexed,
    norm_axis,
    onnx_rule,
    recurrence,
    same_dtype,
    sample,
)
from jitcl.ops.gather import places, position

FEW = 16            # updates that an element looks through


# ---- by looking: each element looks for the updates that are meant for it

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


def _points_at(s: KernelBuilder, raw: Expr, extent: int, at: Expr) -> Expr:
    """Whether an index value, negative ones from the end, is the place `at`."""
    i = s.index(raw)
    return s.eq(s.select(i < 0, i + extent, i), at)


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
def elements_sought(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, updates: Loader,
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
        raw = indices(*at(k), guard=reached)
        return reached & _points_at(s, raw, x.shape[axis], ix[axis])
    return _scattered(s, x(*ix), [max(extent, 1)], reduction, hits,
                      lambda k: updates(*at(k), guard=reached))


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
def slices_sought(s: KernelBuilder, ix: Index, x: Loader, indices: Loader, updates: Loader,
                  reduction: str = "none") -> Expr:
    """x with its slices at the coordinates in `indices` set to `updates`, or combined with them."""
    lead, depth = indices.shape[:-1], indices.shape[-1]

    def hits(*ks: Expr) -> Expr:
        hit = s.const(True, "bool")
        for c in range(depth):
            hit = hit & _points_at(s, indices(*ks, c), x.shape[c], ix[c])
        return hit
    if 0 in lead:
        return x(*ix)
    return _scattered(s, x(*ix), lead, reduction, hits, lambda *ks: updates(*ks, *ix[depth:]))


# ---- by writing: one update after the other

_ELEMENTS = [*_reductions(F32(5, 3), I64(4, 2, low=-5, high=5), F32(4, 2)),
             *_reductions(F32(3, 5), I64(3, 40, low=0, high=5), F32(3, 40), axis=1, rtol=1e-4),
             sample(F32(7), I64(30, low=-7, high=7), F32(30))]


def _combined(s: KernelBuilder, reduction: str, old: Expr, new: Expr, counts: Expr) -> Expr:
    """What an element becomes. Where nothing reads the old one, PoCL 3.1 (LLVM 14, AVX-512) stores
    updates of the same element in the wrong order; an update that `counts` only by its index reads
    it."""
    return s.select(counts, new if reduction == "none" else s.call(reduction, old, new), old)


def _points_inside(s: KernelBuilder, raw: Expr, extent: int) -> Expr:
    return s.and_(raw >= -extent, raw < extent)


@recurrence(infer=_scatter_elements_type, ref=_scatter_elements_ref, samples=_ELEMENTS)
def elements_written(s: KernelBuilder, own: Callable[..., Expr], x: Loader, indices: Loader,
                     updates: Loader, axis: int = 0, reduction: str = "none") -> Scan:
    """`scatter_elements`, a chain for each line."""
    axis = norm_axis(axis, len(x.shape))
    others = [a for a in range(len(x.shape)) if a != axis]

    def at(chain: Index, k: Expr) -> Index:
        return (*chain[:axis], k, *chain[axis:len(others)])

    def init(chain: Index) -> list[Part]:
        return [Part((x.shape[axis],), lambda k: at(chain, k), lambda k: x(*at(chain, k)))]

    def step(chain: Index, t: Expr) -> list[Part]:
        reached = s.const(True, "bool")
        for a, i in zip(others, chain):
            reached = reached & (i < indices.shape[a])
        raw = indices(*at(chain, t), guard=reached)
        place = at(chain, position(s, raw, x.shape[axis]))
        counts = reached & _points_inside(s, raw, x.shape[axis])
        return [Part((), lambda: place, lambda: _combined(
            s, reduction, own(*place), updates(*at(chain, t), guard=reached), counts))]
    chains = tuple(x.shape[a] for a in others) or (1,)
    return Scan(chains, indices.shape[axis], init, step)


@recurrence(infer=_scatter_nd_type, ref=_scatter_nd_ref, samples=[
    *_reductions(F32(4, 3), I64(30, 1, low=-4, high=4), F32(30, 3), rtol=1e-4),
    *_reductions(F32(3, 4, 2), I64(2, 3, 2, low=-3, high=3), F32(2, 3, 2)),
    sample(F32(5), I64(20, 1, low=0, high=5), F32(20))])
def slices_written(s: KernelBuilder, own: Callable[..., Expr], x: Loader, indices: Loader,
                   updates: Loader, reduction: str = "none") -> Scan:
    """`scatter_nd`, slice after slice."""
    lead, depth = indices.shape[:-1], indices.shape[-1]

    def init(chain: Index) -> list[Part]:
        return [Part(tuple(x.shape), lambda *ix: ix, x)]

    def step(chain: Index, t: Expr) -> list[Part]:
        number: list[Expr] = []
        for extent in reversed(lead):
            number.insert(0, t % extent)
            t = t // extent
        raw = [indices(*number, c) for c in range(depth)]
        place = tuple(position(s, i, d) for i, d in zip(raw, x.shape))
        counts = s.const(True, "bool")
        for i, d in zip(raw, x.shape):
            counts = counts & _points_inside(s, i, d)
        return [Part(tuple(x.shape[depth:]), lambda *j: (*place, *j), lambda *j: _combined(
            s, reduction, own(*place, *j), updates(*number, *j), counts))]
    return Scan((1,), math.prod(lead), init, step)


# ---- either way

@composite(ref=_scatter_elements_ref, samples=_ELEMENTS)
def scatter_elements(g: GraphBuilder, x: Node, indices: Node, updates: Node, axis: int = 0,
                     reduction: str = "none") -> Node:
    """x with y[indices[i, j], j] = updates[i, j], or combined by `reduction`."""
    axis = norm_axis(axis, x.type.rank)
    _scatter_elements_type(x.type, indices.type, updates.type, axis, reduction)
    many = not at_least_always(FEW, indices.type.dims[axis])
    many = many and not any(same(d, 0) for d in indices.type.dims)
    form = g.elements_written if many else g.elements_sought
    return form(x, indices, updates, axis=axis, reduction=reduction)


@onnx_rule("ScatterElements")
def _scatter_elements(g: GraphBuilder, node: Any) -> Node:
    x, indices, updates = node.inputs[:3]
    axis = norm_axis(node.attrs.get("axis", 0), x.type.rank)
    indices = places(g, indices, x.type.dims[axis])
    return g.scatter_elements(x, indices, updates, axis=axis,
                              reduction=node.attrs.get("reduction", "none"))


@composite(ref=_scatter_nd_ref, samples=[
    *_reductions(F32(4, 3), I64(6, 1, low=-4, high=4), F32(6, 3)),
    *_reductions(F32(4, 3), I64(30, 1, low=-4, high=4), F32(30, 3), rtol=1e-4)])
def scatter_nd(g: GraphBuilder, x: Node, indices: Node, updates: Node,
               reduction: str = "none") -> Node:
    """x with its slices at the coordinates in `indices` set to `updates`, or combined with them."""
    _scatter_nd_type(x.type, indices.type, updates.type, reduction)
    many = not at_least_always(FEW, math.prod(indices.type.dims[:-1])) and (
        0 not in (*x.type.dims, *updates.type.dims))
    form = g.slices_written if many else g.slices_sought
    return form(x, indices, updates, reduction=reduction)


@onnx_rule("ScatterND")
def _scatter_nd(g: GraphBuilder, node: Any) -> Node:
    x, indices, updates = node.inputs[:3]
    reduction = node.attrs.get("reduction", "none")
    _scatter_nd_type(x.type, indices.type, updates.type, reduction)
    indices = places(g, indices, *x.type.dims[:indices.type.dims[-1]])
    if indices.op != "const" or reduction != "none" or 0 in (*indices.type.dims, x.type.size):
        return g.scatter_nd(x, indices, updates, reduction=reduction)
    return _scatter_known(g, x, indices.data, updates)


def _scatter_known(g: GraphBuilder, x: Node, indices: np.ndarray, updates: Node) -> Node:
    """A scatter to known places: each element reads its update, the last one that is meant for it.

    Exporters write assignments to slices so; writing all updates in turn costs far more.
    """
    depth = indices.shape[-1]
    head, rest = x.type.dims[:depth], x.type.dims[depth:]
    extents = np.array(head)
    there = np.where(indices < 0, indices + extents, indices).reshape(-1, depth)
    flat = np.ravel_multi_index(tuple(there.T), head)
    source = np.full(math.prod(head), -1, np.int64)
    np.maximum.at(source, flat, np.arange(len(there)))
    source = source.reshape(head)
    found = g.gather(g.reshape(updates, shape=(len(there), *rest)), g.const(source.clip(0)),
                     axis=0)
    meant = g.const((source >= 0).reshape(*head, *(1,) * len(rest)))
    return g.where(meant, found, x)
