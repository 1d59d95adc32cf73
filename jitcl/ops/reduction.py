"""Reductions over axes, the places of extremes, and running sums."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import is_size
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    BOOL,
    F16,
    F32,
    I32,
    I64,
    Index,
    Loader,
    Sample,
    Spec,
    composite,
    indexed,
    norm_axes,
    norm_axis,
    onnx_rule,
    reduced,
    reduction,
    sample,
)

SHORT = 64                      # elements of an axis that are summed up one by one
LEVELS = 2                      # of blocks, where the length of an axis is not known
_SHAPES = [sample(F32(2, 3, 4)), sample(F32(2, 3, 4), axes=(1,)),
           sample(F32(2, 3, 4), axes=(0, -1), keepdims=False),
           sample(F32(2, 3), axes=()), sample(F16(3, 9), axes=(1,), rtol=2e-3)]
_EXTREME = [*_SHAPES, sample(I32(3, 4), axes=(1,)), sample(BOOL(3, 4), axes=(0,)),
            sample(Spec((2, 2), values=(math.nan, 1.0, 2.0, 3.0)), axes=(1,))]


def _over(fn: Any) -> Any:
    """A reference with `axes` and `keepdims` from a NumPy function of `axis` and `keepdims`."""
    def ref(x: np.ndarray, axes: Sequence[int] | None = None, keepdims: bool = True) -> Any:
        return fn(x, axis=axes, keepdims=keepdims)
    return ref


# ---- sums, products, extremes

@reduction("add", range="grows", ref=_over(np.sum), samples=[
    *_SHAPES, sample(I64(3, 4), axes=(0,)), sample(F32(2, 0), axes=(1,))])
def reduce_sum(s: KernelBuilder, total: Expr, count: int) -> Expr:
    return total


@reduction("add", ref=_over(np.mean), samples=_SHAPES)
def reduce_mean(s: KernelBuilder, total: Expr, count: int) -> Expr:
    return total / count


@reduction("mul", range="grows", ref=_over(np.prod), samples=[
    *_SHAPES, sample(I32(3, 4), axes=(0,)), sample(F32(2, 0), axes=(1,))])
def reduce_prod(s: KernelBuilder, total: Expr, count: int) -> Expr:
    return total


def _extreme(fn: Any, highest: bool) -> Any:
    def ref(x: np.ndarray, axis: Sequence[int] | None, keepdims: bool) -> Any:
        of_nothing = dtypes.limits(str(dtypes.from_numpy(x.dtype)))[highest]
        return fn(x, axis=axis, keepdims=keepdims, initial=x.dtype.type(of_nothing))
    return _over(ref)


@reduction("max", ref=_extreme(np.max, False), samples=[*_EXTREME, sample(F32(2, 0), axes=(1,))])
def reduce_max(s: KernelBuilder, total: Expr, count: int) -> Expr:
    """The greatest (of bools: any); NaN where one is NaN; the type's lowest value of nothing."""
    return total


@reduction("min", ref=_extreme(np.min, True), samples=[*_EXTREME, sample(F32(2, 0), axes=(1,))])
def reduce_min(s: KernelBuilder, total: Expr, count: int) -> Expr:
    """The least (of bools: all); NaN where one is NaN; the type's highest value of nothing."""
    return total


# ---- norms and logs of sums

@composite(ref=_over(lambda x, **k: np.sum(np.abs(x), **k)), samples=_SHAPES)
def reduce_l1(g: GraphBuilder, x: Node, axes: Sequence[int] | None = None,
              keepdims: bool = True) -> Node:
    return g.reduce_sum(g.abs(x), axes=axes, keepdims=keepdims)


@composite(ref=_over(lambda x, **k: np.sqrt(np.sum(x * x, **k))), samples=_SHAPES)
def reduce_l2(g: GraphBuilder, x: Node, axes: Sequence[int] | None = None,
              keepdims: bool = True) -> Node:
    """sqrt(sum(x^2)); of integers, rounded toward zero."""
    y = x if dtypes.is_float(x.type.dtype) else g.cast(x, to="f64")
    return g.cast(g.sqrt(g.reduce_sum_square(y, axes=axes, keepdims=keepdims)), to=x.type.dtype)


@composite(ref=_over(lambda x, **k: np.sum(x * x, **k)),
           samples=[*_SHAPES, sample(I32(3, 4), axes=(1,))])
def reduce_sum_square(g: GraphBuilder, x: Node, axes: Sequence[int] | None = None,
                      keepdims: bool = True) -> Node:
    return g.reduce_sum(g.mul(x, x), axes=axes, keepdims=keepdims)


@composite(ref=_over(lambda x, **k: np.log(np.sum(x, **k))),
           samples=[sample(F32(2, 9, low=0.1), axes=(1,))])
def reduce_log_sum(g: GraphBuilder, x: Node, axes: Sequence[int] | None = None,
                   keepdims: bool = True) -> Node:
    y = x if dtypes.is_float(x.type.dtype) else g.cast(x, to="f64")
    return g.cast(g.log(g.reduce_sum(y, axes=axes, keepdims=keepdims)), to=x.type.dtype)


@composite(ref=_over(lambda x, **k: np.logaddexp.reduce(x.astype(np.float64), **k)),
           samples=[*_SHAPES, sample(F32(2, 9, low=80, high=90), axes=(1,)),
                    sample(F32(2, 0), axes=(1,)), sample(F32(2, 9, low=-900, high=-800), axes=())])
def reduce_log_sum_exp(g: GraphBuilder, x: Node, axes: Sequence[int] | None = None,
                       keepdims: bool = True) -> Node:
    """log(sum(exp(x))), shifted by the maximum so that exp cannot overflow."""
    y = x if dtypes.is_float(x.type.dtype) else g.cast(x, to="f64")
    top = g.reduce_max(y, axes=axes)
    top = g.where(g.isinf(top), 0.0, top)               # inf - inf would be NaN
    total = g.add(g.log(g.reduce_sum(g.exp(g.sub(y, top)), axes=axes)), top)
    shape = reduced(x.type.shape, norm_axes(axes, x.type.rank), keepdims)
    return g.cast(g.reshape(total, shape=shape), to=x.type.dtype)


@onnx_rule("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1",
           "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def _reduce(g: GraphBuilder, node: Any) -> Node:
    """No axes, or an empty list of them, means all; with `noop_with_empty_axes`, none."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.op_type).lower()
    axes = node.static(1)
    over: tuple[int, ...] | None = () if axes is None else tuple(int(a) for a in axes.reshape(-1))
    if not over and not node.attrs.get("noop_with_empty_axes", 0):
        over = None
    return g.op(name, node.inputs[0], axes=over, keepdims=bool(node.attrs.get("keepdims", 1)))


# ---- places of extremes

def _place_type(x: TensorType, axis: int = 0, keepdims: bool = True,
                last: bool = False) -> TensorType:
    axis = norm_axis(axis, x.rank)
    if x.shape[axis] == 0:
        raise ShapeError(f"axis {axis} of {x} is empty: nothing is greatest or least")
    return TensorType("i64", reduced(x.shape, (axis,), keepdims))


def _place_ref(fn: Any) -> Any:
    def ref(x: np.ndarray, axis: int = 0, keepdims: bool = True, last: bool = False) -> np.ndarray:
        found = x.shape[axis] - 1 - fn(np.flip(x, axis), axis) if last else fn(x, axis)
        return np.expand_dims(found, axis) if keepdims else found
    return ref


def _place(s: KernelBuilder, ix: Index, x: Loader, combine: str, axis: int, keepdims: bool,
           last: bool) -> Expr:
    """Two reductions: the extreme (a NaN is one), then the first or last index that holds it."""
    axis = norm_axis(axis, len(x.shape))
    rest = ix[axis + 1:] if keepdims else ix[axis:]

    def at(k: Expr) -> Expr:
        return x(*ix[:axis], k, *rest)

    n = x.shape[axis]
    extreme = s.reduce(combine, [n], at)

    def match(k: Expr) -> Expr:
        found = s.eq(at(k), extreme)
        if dtypes.is_float(x.dtype):
            found = s.or_(found, s.isnan(at(k)))
        return s.select(found, E.cast(k, "i32"), -1 if last else n)
    return s.cast(s.reduce("max" if last else "min", [n], match, init=-1 if last else n), "i64")


_PLACES = [sample(F32(3, 4)), sample(F32(3, 4), axis=-1, keepdims=False), sample(F32(1, 5), axis=0),
           sample(I32(4, 30, low=0, high=3), axis=1),
           sample(I32(4, 30, low=0, high=3), axis=1, last=True),
           sample(Spec((2, 3), values=(1.0, math.nan, math.nan, 0.0, -0.0, -1.0)), axis=1)]


@indexed("reduction", infer=_place_type, ref=_place_ref(np.argmax), samples=_PLACES)
def argmax(s: KernelBuilder, ix: Index, x: Loader, axis: int = 0, keepdims: bool = True,
           last: bool = False) -> Expr:
    """The index of the greatest along an axis: the first such, or the last."""
    return _place(s, ix, x, "max", axis, keepdims, last)


@indexed("reduction", infer=_place_type, ref=_place_ref(np.argmin), samples=_PLACES)
def argmin(s: KernelBuilder, ix: Index, x: Loader, axis: int = 0, keepdims: bool = True,
           last: bool = False) -> Expr:
    """The index of the least along an axis: the first such, or the last."""
    return _place(s, ix, x, "min", axis, keepdims, last)


@onnx_rule("ArgMax", "ArgMin")
def _arg(g: GraphBuilder, node: Any) -> Node:
    return g.op(node.op_type.lower(), *node.inputs, axis=node.attrs.get("axis", 0),
                keepdims=bool(node.attrs.get("keepdims", 1)),
                last=bool(node.attrs.get("select_last_index", 0)))


# ---- running sums and products

def _running_ref(x: np.ndarray, axis: int, combine: str = "add", exclusive: bool = False,
                 reverse: bool = False) -> np.ndarray:
    y = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0)
    y = (np.cumsum if combine == "add" else np.cumprod)(y, axis=0, dtype=x.dtype)
    if exclusive:
        y = np.concatenate([np.full_like(y[:1], combine == "mul"), y[:-1]])
    y = np.moveaxis(y, 0, axis)
    return np.flip(y, axis) if reverse else y


def _running_samples(n: int, low: float) -> list[Sample]:
    return [sample(F32(2, n, 3, low=low), axis=1, combine=c, exclusive=e, reverse=r, rtol=1e-4)
            for c in ("add", "mul") for e in (False, True) for r in (False, True)]


def _same_type(x: TensorType, axis: int, **_: Any) -> TensorType:
    norm_axis(axis, x.rank)
    return x


@indexed("scan", range="grows", infer=_same_type, ref=_running_ref,
         samples=_running_samples(7, 0.5))
def running_direct(s: KernelBuilder, ix: Index, x: Loader, axis: int, combine: str = "add",
                   exclusive: bool = False, reverse: bool = False) -> Expr:
    """Each element combined with all before it (`exclusive`: without itself), for short axes."""
    axis = norm_axis(axis, len(x.shape))
    here = ix[axis]

    def term(k: Expr) -> Expr:
        last, first = (k, here) if reverse else (here, k)
        counted = first < last if exclusive else first <= last
        return x(*ix[:axis], k, *ix[axis + 1:], guard=counted, other=1 if combine == "mul" else 0)
    return s.reduce(combine, [x.shape[axis]], term)


@composite(ref=_running_ref, samples=[*_running_samples(7, 0.5), *_running_samples(150, 0.99),
                                      sample(I32(300), axis=0)])
def running(g: GraphBuilder, x: Node, axis: int, combine: str = "add", exclusive: bool = False,
            reverse: bool = False) -> Node:
    """Running sum or product along an axis.

    A long axis is cut into blocks of about its square root: each block runs by itself, and a
    running total over the blocks is combined in. So an axis of n costs about n * sqrt(n), all of it
    parallel (Blelloch, 1990). One of unknown length is cut into blocks, and these into blocks,
    however short it is: so one plan is right, and quick enough, for all lengths.
    """
    return _running_sum(g, x, norm_axis(axis, x.type.rank), combine, exclusive, reverse, LEVELS)


def _running_sum(g: GraphBuilder, x: Node, axis: int, combine: str, exclusive: bool, reverse: bool,
                 levels: int) -> Node:
    """As `running`; levels: how often an axis of unknown length is cut."""
    shape = x.type.dims
    n = shape[axis]
    if levels == 0 if is_size(n) else n <= SHORT:
        return g.running_direct(x, axis=axis, combine=combine, exclusive=exclusive, reverse=reverse)
    size = SHORT if is_size(n) else math.isqrt(n - 1) + 1
    count = n // size + 1 if is_size(n) else -(-n // size)      # a block more: nothing divides n
    ends = [0] * x.type.rank
    ends[axis] = size * count - n
    y = g.pad(x, g.const(combine == "mul", x.type.dtype), pads=([0] * x.type.rank + ends))
    y = g.reshape(y, shape=(*shape[:axis], count, size, *shape[axis + 1:]))
    total = (g.reduce_sum if combine == "add" else g.reduce_prod)(y, axes=(axis + 1,))
    before = (_running_sum(g, total, axis, combine, True, reverse, levels - 1) if is_size(n) else
              g.running(total, axis=axis, combine=combine, exclusive=True, reverse=reverse))
    within = g.running_direct(y, axis=axis + 1, combine=combine, exclusive=exclusive,
                              reverse=reverse)
    y = (g.add if combine == "add" else g.mul)(within, before)
    y = g.reshape(y, shape=(*shape[:axis], count * size, *shape[axis + 1:]))
    return g.slice(y, starts=(0,), ends=(n,), axes=(axis,))


@onnx_rule("CumSum", "CumProd")
def _running(g: GraphBuilder, node: Any) -> Node:
    return g.running(node.inputs[0], axis=int(node.static(1)),
                     combine="mul" if node.op_type == "CumProd" else "add",
                     exclusive=bool(node.attrs.get("exclusive", 0)),
                     reverse=bool(node.attrs.get("reverse", 0)))
