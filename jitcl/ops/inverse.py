"""Inverses of matrices, by Gauss-Jordan elimination with row pivots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.contrib import microsoft
from jitcl.ops.core import (
    F16,
    F32,
    Index,
    Loader,
    Part,
    Scan,
    clamped,
    composite,
    recurrence,
    sample,
)
from jitcl.ops.linear_algebra import check_square, pivot_row

Array = np.ndarray[Any, Any]


def _jordan_type(x: TensorType) -> TensorType:
    check_square(x, "an inverse")
    count, n = x.dims[0], x.dims[-1]
    return x.with_(shape=(count, 2, n + 1, 2 * n))


def _jordan_ref(x: Array) -> Array:
    """Row by row, with the rows swapped in place."""
    count, n, _ = x.shape
    y = np.zeros((count, 2, n + 1, 2 * n), wide(x).dtype)
    for b in range(count):
        y[b, 0, :n] = np.concatenate([wide(x[b]), np.eye(n)], axis=1)
        for t in range(n):
            a = y[b, t % 2, :n].copy()
            p = t + int(np.argmax(np.abs(a[t:, t])))
            y[b, t % 2, n, 0] = p
            a[[t, p]] = a[[p, t]]
            a[t] = a[t] / a[t, t]
            for i in range(n):
                if i != t:
                    a[i] = a[i] - a[i, t] * a[t]
            y[b, 1 - t % 2, :n] = a
    return y.astype(x.dtype)


@recurrence(infer=_jordan_type, ref=_jordan_ref, samples=[
    sample(F32(2, 4, 4), rtol=1e-3), sample(F32(1, 7, 7), rtol=1e-2)])
def jordan_elimination(s: KernelBuilder, own: Callable[..., Expr], x: Loader) -> Scan:
    """[matrices, n, n] -> [matrices, 2, n + 1, 2n]: what n steps leave of each matrix and, beside
    it, the identity, which becomes the inverse.

    Step t reads one plane and writes the other; row n holds which row the last step took as pivot:
    the greatest of its column.
    """
    n = x.shape[-1]
    zero = s.const(0, x.dtype)

    def init(chain: Index) -> list[Part]:
        b = chain[0]

        def start(i: Expr, j: Expr) -> Expr:
            own_side = x(b, i, s.min(j, n - 1), guard=j < n)
            return s.select(j < n, own_side, s.cast(s.cast(s.eq(i + n, j), "i32"), x.dtype))
        return [Part((n, 2 * n), lambda i, j: (b, E.index(0), i, j), start),
                Part((n + 1, 2 * n), lambda i, j: (b, E.index(1), i, j), lambda i, j: zero),
                Part((2 * n,), lambda j: (b, E.index(0), E.index(n), j), lambda j: zero)]

    def step(chain: Index, t: Expr) -> list[Part]:
        b, old = chain[0], t % 2
        new = 1 - old

        def pivot() -> Expr:
            return pivot_row(s, lambda i: own(b, old, i, t), n, t)

        def rows(i: Expr, j: Expr) -> Expr:
            p = clamped(s, own(b, old, n, 0), n)
            top = own(b, old, p, j) / own(b, old, p, t)
            source = s.select(s.eq(i, p), t, i)              # the row that the swap put here
            rest = own(b, old, source, j) - own(b, old, source, t) * top
            return s.select(s.eq(i, t), top, rest)
        return [Part((), lambda: (b, old, E.index(n), E.index(0)), pivot),
                Part((n, 2 * n), lambda i, j: (b, new, i, j), rows)]
    return Scan((x.shape[0],), n, init, step)


@composite(ref=lambda x: np.linalg.inv(wide(x).astype(np.float64)).astype(x.dtype), samples=[
    sample(F32(2, 2), rtol=1e-4), sample(F32(2, 3, 4, 4), rtol=1e-3), sample(F32(3, 1, 1)),
    sample(F16(3, 3), rtol=3e-2), sample(F32(2, 9, 9), rtol=1e-2), sample(F32(2, 0, 0))])
def inverse(g: GraphBuilder, x: Node) -> Node:
    """Inverses of the matrices [..., n, n]; infinite or NaN where one is singular."""
    check_square(x.type, "an inverse")
    *batch, n, _ = x.type.dims
    count, stored = math.prod(batch), x.type.dtype
    if x.type.size == 0:
        return x
    flat = g.reshape(g.cast(x, to=dtypes.compute(stored)), shape=(count, n, n))
    y = g.slice(g.jordan_elimination(flat), starts=(n % 2, 0, n), ends=(n % 2 + 1, n, 2 * n),
                axes=(1, 2, 3))
    return g.cast(g.reshape(y, shape=x.type.dims), to=stored)


@microsoft("Inverse")
def _inverse(g: GraphBuilder, node: Any) -> Node:
    return g.inverse(node.inputs[0])
