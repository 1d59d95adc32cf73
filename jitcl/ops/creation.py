"""Tensors from parameters: constants of a shape, ranges, one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import largest
from jitcl.ir.sizes import has_size, whole
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, affordable
from jitcl.ops.core import (
    F32,
    I64,
    Index,
    Loader,
    fixed,
    indexed,
    norm_axis,
    onnx_dtype,
    onnx_rule,
    sample,
)
from jitcl.ops.movement import ints

FEW = 1 << 16                   # numbers of a range that are kept as a constant


def counting(g: GraphBuilder, count: int, shape: Sequence[int] = (-1,)) -> Node:
    """0, 1, .. as i64; `count` may be a size that is not known yet."""
    if has_size((count,)):
        return g.reshape(g.arange(start=0, delta=1, count=count), shape=shape)
    return g.const(np.arange(count).reshape(shape))


@onnx_rule("ConstantOfShape")
def _constant_of_shape(g: GraphBuilder, node: Any) -> Node:
    """One element, broadcast: no buffer is needed."""
    value = node.attrs.get("value")
    one = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    return g.expand(g.const(one), shape=ints(node.static(0)))


@onnx_rule("Shape")
def _shape(g: GraphBuilder, node: Any) -> Node:
    dims = node.inputs[0].type.dims[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
    return g.sizes(values=dims) if has_size(dims) else g.const(dims, "i64")


@onnx_rule("Size")
def _size(g: GraphBuilder, node: Any) -> Node:
    return g.const(node.inputs[0].type.size, "i64")


@onnx_rule("Range")
def _range(g: GraphBuilder, node: Any) -> Node:
    """start + i * delta, as ONNX defines it: rounding does not build up."""
    start, limit, delta = (np.asarray(node.static(i)).reshape(()) for i in (0, 1, 2))
    dtype = node.inputs[0].type.dtype
    if object in (start.dtype, limit.dtype, delta.dtype):
        first, step = whole(start.item()), whole(delta.item())
        count = (whole(limit.item()) - first + step - (1 if step > 0 else -1)) // step
        return g.cast(g.arange(start=first, delta=step, count=largest(0, count)), to=dtype)
    if not delta or not np.isfinite([start, limit, delta]).all():
        raise ShapeError(f"a range from {start} to {limit} by {delta} has no end: "
                         f"wanted finite numbers, delta not 0")
    if not dtypes.is_float(dtype):
        first, last, step = (int(v) for v in (start, limit, delta))
        count = max(0, -((first - last) // step))
        if count > FEW:                      # made where it is read
            return g.cast(g.arange(start=first, delta=step, count=count), to=dtype)
        return g.const([first + i * step for i in range(count)], dtype)
    wide = np.float64
    count = max(0, int(np.ceil((wide(limit) - wide(start)) / wide(delta))))
    affordable(TensorType("f64", (count,)))
    return g.const(wide(start) + np.arange(count) * wide(delta), dtype)


@onnx_rule("EyeLike")
def _eye_like(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    if x.type.rank != 2:
        raise ShapeError(f"EyeLike needs a matrix, got {x.type}")
    to = onnx_dtype(node.attrs["dtype"]) if "dtype" in node.attrs else x.type.dtype
    (rows, columns), k = x.type.dims, int(node.attrs.get("k", 0))
    if has_size(x.type.dims):
        on = g.equal(g.add(counting(g, rows, (rows, 1)), k), counting(g, columns))
        return g.cast(on, to=to)
    affordable(x.type.with_(dtype="f64"))
    return g.const(np.eye(rows, columns, k=k), to)


def _one_hot_type(indices: TensorType, off_on: TensorType, depth: int,
                  axis: int = -1) -> TensorType:
    if off_on.shape != (2,):
        raise ShapeError(f"wanted two values, off and on, got {off_on}")
    axis = norm_axis(axis, indices.rank + 1)
    return TensorType(off_on.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]))


def _one_hot_ref(indices: np.ndarray, off_on: np.ndarray, depth: int, axis: int = -1) -> np.ndarray:
    valid = (indices >= -depth) & (indices < depth)
    rows = np.eye(depth, dtype=bool)[np.where(valid, indices, 0).astype(int)] & valid[..., None]
    return np.moveaxis(np.where(rows, off_on[1], off_on[0]), -1, axis)


@indexed("movement", infer=_one_hot_type, ref=_one_hot_ref, samples=[
    sample(I64(4, low=-6, high=6), F32(2), depth=5),
    sample(I64(2, 3, low=0, high=4), I64(2), depth=4, axis=1),
    sample(fixed(0.0, 2.0, -1.0), F32(2), depth=3, axis=0)])
def one_hot(s: KernelBuilder, ix: Index, indices: Loader, off_on: Loader, depth: int,
            axis: int = -1) -> Expr:
    """off_on[1] where an index (negative: from the end) points on the new axis, else off_on[0]."""
    axis = norm_axis(axis, len(ix))
    i = s.index(s.cast(indices(*ix[:axis], *ix[axis + 1:]), "i64"))
    i = s.select(i < 0, i + depth, i)
    return s.select(s.eq(i, ix[axis]), off_on(1), off_on(0))


@onnx_rule("OneHot")
def _one_hot(g: GraphBuilder, node: Any) -> Node:
    indices, _, values = node.inputs
    depth = whole(np.asarray(node.static(1)).reshape(()).item())
    return g.one_hot(indices, values, depth=depth, axis=node.attrs.get("axis", -1))
