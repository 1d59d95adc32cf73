"""Determinants, by Gaussian elimination with row pivots."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from jitcl.ops.contraction import wide
from jitcl.ops.core import (
    F16,
    F32,
    Index,
    Loader,
    Part,
    Scan,
    Spec,
    clamped,
    composite,
    recurrence,
    sample,
)

Array = np.ndarray[Any, Any]
_SINGULAR = Spec((2, 3, 3), values=(1, 2, 3, 2, 4, 6, 0, 1, 1, 0, 0, 1, 0, 2, 0, 3, 0, 0))


def check_square(x: TensorType, what: str) -> None:
    """`what` takes square matrices of floats."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{what} takes square matrices [..., n, n], got {x}")
    if not dtypes.is_float(x.dtype):
        raise TypeError_(f"{what} takes floats, got {x}")


def _elimination_type(x: TensorType) -> TensorType:
    check_square(x, "a determinant")
    count, n = x.dims[0], x.dims[-1]
    return x.with_(shape=(count, 2, n + 1, n))


def _elimination_ref(x: Array) -> Array:
    """Row by row, with the rows swapped in place."""
    count, n, _ = x.shape
    y = np.zeros((count, 2, n + 1, n), wide(x).dtype)
    for b in range(count):
        planes = [np.array(wide(x[b])), np.zeros((n, n), wide(x).dtype)]
        product, pivots = 1.0, [0.0, 0.0]
        y[b, 0, n, 0] = product
        for t in range(n):
            a = planes[t % 2].copy()
            p = t + int(np.argmax(np.abs(a[t:, t])))
            pivots[t % 2] = p
            product *= a[p, t] if p == t else -a[p, t]
            a[[t, p]] = a[[p, t]]
            if a[t, t]:
                a[t + 1:, t + 1:] -= np.outer(a[t + 1:, t] / a[t, t], a[t, t + 1:])
            a[:t + 1] = a[:, :t + 1] = 0
            planes[(t + 1) % 2] = a
            y[b, (t + 1) % 2, n, 0] = product
        for k in (0, 1):
            y[b, k, :n], y[b, k, n, 1] = planes[k], pivots[k]
    return y.astype(x.dtype)


def pivot_row(s: KernelBuilder, column: Callable[[Expr], Expr], n: int, t: Expr) -> Expr:
    """Which of n rows, from row t on, is the greatest of its column: the first, as a value that
    stands among the column's.
    """
    dtype = column(t).dtype

    def size(i: Expr) -> Expr:
        return s.select(i >= t, s.abs(column(i)), s.const(-1, dtype))

    most = s.reduce("max", [n], size)
    place = s.reduce("min", [n], lambda i: s.select(
        s.eq(size(i), most), s.cast(i, "i32"), s.const(n, "i32")))
    return s.cast(s.max(s.min(place, n - 1), s.cast(t, "i32")), dtype)


@recurrence(infer=_elimination_type, ref=_elimination_ref, samples=[
    sample(F32(2, 4, 4), rtol=1e-4), sample(_SINGULAR), sample(F32(1, 7, 7), rtol=1e-3)])
def elimination(s: KernelBuilder, own: Callable[..., Expr], x: Loader) -> Scan:
    """[matrices, n, n] -> [matrices, 2, n + 1, n]: what n steps of elimination leave.

    Step t reads one plane and writes the other. Its rows 0 to n - 1 are the matrix, of which rows
    and columns up to t are done with and 0; row n holds the product of pivots so far (times -1 for
    each swap), and which row the last step took as pivot: the greatest of its column.
    """
    n = x.shape[-1]
    zero = s.const(0, x.dtype)

    def init(chain: Index) -> list[Part]:
        b = chain[0]
        return [Part((n, n), lambda i, j: (b, E.index(0), i, j), lambda i, j: x(b, i, j)),
                Part((n + 1, n), lambda i, j: (b, E.index(1), i, j), lambda i, j: zero),
                Part((n,), lambda j: (b, E.index(0), E.index(n), j),
                     lambda j: s.select(s.eq(j, 0), s.const(1, x.dtype), zero))]

    def step(chain: Index, t: Expr) -> list[Part]:
        b, old = chain[0], t % 2
        new = 1 - old

        def pivot() -> Expr:
            return pivot_row(s, lambda i: own(b, old, i, t), n, t)

        def row() -> Expr:
            return clamped(s, own(b, old, n, 1), n)

        def rest(i: Expr, j: Expr) -> Expr:
            p = row()
            source = s.select(s.eq(i, p), t, i)              # the row that the swap put here
            top = own(b, old, p, t)
            factor = s.select(s.eq(top, 0.0), zero, own(b, old, source, t) / top)
            value = own(b, old, source, j) - factor * own(b, old, p, j)
            return s.select(s.and_(i > t, j > t), value, zero)

        def product() -> Expr:
            p = row()
            top = own(b, old, p, t)
            return own(b, old, n, 0) * s.select(s.eq(p, t), top, -top)
        return [Part((), lambda: (b, old, E.index(n), E.index(1)), pivot),
                Part((n, n), lambda i, j: (b, new, i, j), rest),
                Part((), lambda: (b, new, E.index(n), E.index(0)), product)]
    return Scan((x.shape[0],), n, init, step)


@composite(onnx="Det", ref=lambda x: np.linalg.det(wide(x).astype(np.float64)).astype(x.dtype),
           samples=[
    sample(F32(2, 2)), sample(F32(2, 3, 4, 4), rtol=1e-4), sample(F32(3, 1, 1)), sample(_SINGULAR),
    sample(F16(3, 3), rtol=1e-2), sample(F32(2, 9, 9), rtol=1e-4), sample(F32(2, 0, 0))])
def det(g: GraphBuilder, x: Node) -> Node:
    """Determinants of the matrices [..., n, n]; 1 of an empty one."""
    check_square(x.type, "a determinant")
    *batch, n, _ = x.type.dims
    stored, held = x.type.dtype, dtypes.compute(x.type.dtype)
    count = math.prod(batch)
    x = g.reshape(g.cast(x, to=held), shape=(count, n, n))
    if n == 0 or count == 0:
        return g.expand(g.const(1, stored), shape=tuple(batch))
    if n <= 2:
        a, *more = (g.slice(x, starts=(i, j), ends=(i + 1, j + 1), axes=(1, 2))
                    for i, j in np.ndindex(n, n))
        y = g.sub(g.mul(a, more[2]), g.mul(more[0], more[1])) if more else a
    else:
        y = g.slice(g.elimination(x), starts=(n % 2, n, 0), ends=(n % 2 + 1, n + 1, 1),
                    axes=(1, 2, 3))
    return g.cast(g.reshape(y, shape=tuple(batch)), to=stored)
