"""Parts of tensors, and tensors of parts: slice, split, concat, pad, triangles, reversal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import alike, largest, least
from jitcl.ir.sizes import has_size, is_size
from jitcl.ir.types import Dim, TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    BOOL,
    F16,
    F32,
    I32,
    I64,
    Index,
    Loader,
    fixed,
    indexed,
    movement,
    norm_axis,
    onnx_rule,
    same_dtype,
    sample,
)
from jitcl.ops.gather import in_range
from jitcl.ops.movement import Shape, ints

Ints = Sequence[int]

# ---- slice and split

def _ranges(shape: Sequence[Dim], starts: Ints, ends: Ints, axes: Ints | None, steps: Ints | None
            ) -> dict[int, Cut]:
    """The indices that a slice takes of each axis that it cuts."""
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError(f"starts {list(starts)}, ends {list(ends)}, axes {list(axes)} and steps "
                         f"{list(steps)} must be equally many")
    found: dict[int, Cut] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps):
        axis = norm_axis(axis, len(shape))
        dim = shape[axis]
        if axis in found or step == 0 or not isinstance(dim, int):
            why = ("is cut twice" if axis in found else "has step 0" if step == 0
                   else f"({dim}) is not known yet")
            raise ShapeError(f"axis {axis} {why}")
        found[axis] = _cut(start, end, step, dim)
    return found


@dataclass(frozen=True)
class Cut:
    """start, start + step, ..: `count` indices of an axis."""

    start: int
    step: int
    count: int


def _cut(start: int, end: int, step: int, dim: int) -> Cut:
    """What x[start:end:step] takes of an axis of `dim` elements."""
    if not has_size((start, end, dim)) or step < 0:
        indices = range(*slice(start, end, step).indices(dim))
        return Cut(indices.start, indices.step, len(indices))
    first, behind = (least(largest(i + dim if i < 0 else i, 0), dim) for i in (start, end))
    return Cut(first, step, largest(0, (behind - first + step - 1) // step))


def _slice_type(x: TensorType, starts: Ints, ends: Ints, axes: Ints | None = None,
                steps: Ints | None = None) -> TensorType:
    cut = _ranges(x.shape, starts, ends, axes, steps)
    return x.with_(shape=tuple(cut[a].count if a in cut else d for a, d in enumerate(x.shape)))


def _slice_ref(x: np.ndarray, starts: Ints, ends: Ints, axes: Ints | None = None,
               steps: Ints | None = None) -> np.ndarray:
    cut = [slice(None)] * x.ndim
    for k, start in enumerate(starts):
        step = None if steps is None else steps[k]
        cut[k if axes is None else axes[k]] = slice(start, ends[k], step)
    return x[tuple(cut)]


@movement(infer=_slice_type, ref=_slice_ref, samples=[
    sample(F32(6, 5), starts=(1,), ends=(4,)),
    sample(F32(6, 5), starts=(-2,), ends=(99,), axes=(-1,)),
    sample(F32(9), starts=(1,), ends=(8,), steps=(3,)),
    sample(F32(4, 9), starts=(-1, 3), ends=(-99, 0), steps=(-1, -2)),
    sample(I64(5), starts=(4,), ends=(1,)), sample(BOOL(7), starts=(2,), ends=(-1,))])
def slice_(ix: Index, source: Shape, target: Shape, starts: Ints, ends: Ints,
           axes: Ints | None = None, steps: Ints | None = None) -> Index:
    """x[start:end:step] along `axes` (default: the first ones), as Python takes the numbers."""
    cut = _ranges(source, starts, ends, axes, steps)
    return tuple(i * cut[a].step + cut[a].start if a in cut else i for a, i in enumerate(ix))


@onnx_rule("Slice")
def _slice(g: GraphBuilder, node: Any) -> Node:
    given = (node.static(i) for i in (1, 2, 3, 4))
    starts, ends, axes, steps = (None if v is None else ints(v) for v in given)
    return g.slice(node.inputs[0], starts=starts, ends=ends, axes=axes, steps=steps)


@onnx_rule("Split")
def _split(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    x: Node = node.inputs[0]
    axis = norm_axis(node.attrs.get("axis", 0), x.type.rank)
    whole = x.type.dims[axis]
    sizes = node.static(1)
    if sizes is None:
        count = node.attrs.get("num_outputs", node.n_outputs)
        if count < node.n_outputs:
            raise ModelError(f"num_outputs is {count}, but it has {node.n_outputs} outputs")
        each = -(-whole // count)
        rest = whole - (count - 1) * each
        if is_size(whole) and rest >= 0:    # no part is shorter, but the last one
            sizes = [each] * (count - 1) + [rest]
        else:
            sizes = [min(each, max(0, whole - k * each)) for k in range(min(count, whole + 1))]
        sizes += [0] * (node.n_outputs - len(sizes))
    if any(size < 0 for size in ints(sizes)):
        raise ShapeError(f"split sizes {list(ints(sizes))}: sizes are 0 or more")
    if sum(ints(sizes)) != whole:
        raise ShapeError(f"split sizes {list(ints(sizes))} do not add up to axis {axis} "
                         f"of {x.type}")
    parts: list[Node] = []
    start = 0
    for size in ints(sizes):
        parts.append(g.slice(x, starts=(start,), ends=(start + size,), axes=(axis,)))
        start += size
    if len(parts) < node.n_outputs:
        raise ShapeError(f"it has {node.n_outputs} outputs and makes {len(parts)} parts of "
                         f"{x.type}")
    return tuple(parts)


# ---- concat and pad

FEW_PARTS = 64


def _concat_type(*xs: TensorType, axis: int) -> TensorType:
    axis = norm_axis(axis, xs[0].rank)
    for x in xs[1:]:
        if x.rank != xs[0].rank or any(
                x.shape[a] != d for a, d in enumerate(xs[0].shape) if a != axis):
            raise ShapeError(f"{x} and {xs[0]} differ in more than axis {axis}, "
                             f"along which they are joined")
    shape = list(xs[0].shape)
    shape[axis] = sum(x.dims[axis] for x in xs)
    return TensorType(same_dtype(*xs), tuple(shape))


@indexed("movement", infer=_concat_type, ref=lambda *xs, axis: np.concatenate(xs, axis), samples=[
    sample(F32(2, 3), F32(2, 1), axis=1), sample(F32(2, 3), F32(1, 3), F32(3, 3), axis=0),
    sample(F32(4), axis=0),
    sample(I64(2, 2), I64(2, 0), I64(2, 2), axis=-1), sample(BOOL(3), BOOL(2), axis=0)])
def concat(s: KernelBuilder, ix: Index, *xs: Loader, axis: int) -> Expr:
    """Operands one after another along an axis."""
    axis = norm_axis(axis, len(ix))
    end = s.out.dims[axis]
    parts: list[tuple[int, Expr]] = []                 # (where it ends, elements), the last first
    for x in reversed(xs):
        start = end - x.shape[axis]
        if start < end:
            here = ix[axis] - start
            parts.append((end, x(*ix[:axis], here, *ix[axis + 1:],
                                 guard=s.inside(here, x.shape[axis]))))
        end = start
    return _chosen(s, ix[axis], parts) if parts else s.const(0, xs[0].dtype)


def _chosen(s: KernelBuilder, at: Expr, parts: Sequence[tuple[int, Expr]]) -> Expr:
    """The part that an index lies in. Few are told apart one by one, the last part being the
    innermost 'else'; many by halves, as compilers nest expressions to a depth of 200 at most.
    """
    if len(parts) > FEW_PARTS:
        half = len(parts) // 2
        return s.select(at < parts[half][0], _chosen(s, at, parts[half:]),
                        _chosen(s, at, parts[:half]))
    value = parts[0][1]
    for end, part in parts[1:]:
        value = s.select(at < end, part, value)
    return value


@onnx_rule("Concat")
def _concat(g: GraphBuilder, node: Any) -> Node:
    return g.concat(*node.inputs, axis=node.attrs["axis"])


def _pad_type(x: TensorType, *value: TensorType, pads: Sequence[int],
              mode: str = "constant") -> TensorType:
    if len(pads) != 2 * x.rank:
        raise ShapeError(f"pads {list(pads)} must be {2 * x.rank} numbers, "
                         f"all begins then all ends, for {x}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ShapeError(f"pad mode '{mode}' is none of constant, reflect, edge, wrap")
    if value:
        same_dtype(x, *value)
    shape = tuple(d + b + e for d, b, e in zip(x.dims, pads, pads[x.rank:]))
    for a, (old, new) in enumerate(zip(x.dims, shape)):
        if new < 0 or (mode != "constant" and old == 0 and new > 0):
            raise ShapeError(f"pads {list(pads)} (mode {mode}) leave {new} of the {old} elements "
                             f"of axis {a} of {x}")
    return x.with_(shape=shape)


def _pad_ref(x: np.ndarray, value: Any = 0, *, pads: Sequence[int],
             mode: str = "constant") -> np.ndarray:
    widths = [(max(0, b), max(0, e)) for b, e in zip(pads, pads[x.ndim:])]
    more = {"constant_values": np.asarray(value).item()} if mode == "constant" else {}
    y = np.pad(x, widths, mode=mode, **more)                     # type: ignore[call-overload]
    crop = tuple(slice(max(0, -b), d - max(0, -e)) for b, e, d in zip(pads, pads[x.ndim:], y.shape))
    result: np.ndarray = y[crop]
    return result


@indexed("movement", infer=_pad_type, ref=_pad_ref, samples=[
    sample(F32(2, 3), pads=(0, 1, 1, 2)), sample(F32(2, 3), F32(), pads=(1, 0, 0, 1)),
    sample(F32(4, 5), pads=(-1, 1, 1, -2)), sample(F32(4, 5), pads=(2, 0, 1, 7), mode="reflect"),
    sample(F32(4, 5), pads=(-1, 3, 3, 1), mode="edge"),
    sample(F32(4, 5), pads=(1, 2, 6, 2), mode="wrap"),
    sample(F32(1, 2), pads=(2, 0, 1, 1), mode="reflect"),
    sample(I32(3), I32(), pads=(1, 1)),
    sample(BOOL(3), pads=(1, 1)), sample(F16(3), pads=(1, 1), mode="edge")])
def pad(s: KernelBuilder, ix: Index, x: Loader, *value: Loader, pads: Sequence[int],
        mode: str = "constant") -> Expr:
    """x with `pads` elements around it (all begins, then all ends; negative ones crop)."""
    at = [i - before for i, before in zip(ix, pads)]
    if mode != "constant":
        ends = zip(pads, pads[len(at):])
        return x(*(i if alike(by, (0, 0)) else _bent(i, d, mode)
                   for i, d, by in zip(at, x.shape, ends)))
    inside = s.const(True, "bool")
    for i, d in zip(at, x.shape):
        inside = inside & s.inside(i, d)
    if not value:
        return x(*at, guard=inside)
    return s.select(inside, x(*at, guard=inside), value[0](*(0 for _ in value[0].shape)))


def _bent(i: Expr, extent: int, mode: str) -> Expr:
    """An index outside 0..extent-1 brought inside."""
    if mode == "edge":
        return E.call("min", E.call("max", i, E.index(0)), E.index(extent - 1))
    if mode == "wrap" or extent == 1:
        return i % extent
    period = 2 * (extent - 1)
    return E.call("min", i % period, period - i % period)


@onnx_rule("Pad")
def _pad(g: GraphBuilder, node: Any) -> Node:
    x, value, axes = node.inputs[0], node.input(2), node.static(3)
    rank = x.type.rank
    given = ints(node.static(1))
    over = [norm_axis(a, rank) for a in (range(rank) if axes is None else ints(axes))]
    if len(given) != 2 * len(over):
        raise ShapeError(f"pads {list(given)} must be {2 * len(over)} numbers for {len(over)} axes")
    pads = [0] * (2 * rank)
    for k, a in enumerate(over):
        pads[a], pads[rank + a] = given[k], given[len(over) + k]
    mode = node.attrs.get("mode", "constant")
    given_value = [value] if value is not None and mode == "constant" else []
    return g.pad(x, *given_value, pads=pads, mode=mode)


# ---- triangles and reversal

def _trilu_type(x: TensorType, k: int = 0, upper: bool = True) -> TensorType:
    if x.rank < 2:
        raise ShapeError(f"wanted a matrix or a stack of them, got {x}")
    return x


@indexed("movement", infer=_trilu_type,
         ref=lambda x, k=0, upper=True: np.triu(x, k) if upper else np.tril(x, k),
         samples=[sample(F32(2, 4, 5), k=k, upper=u) for k in (-2, 0, 1, 9) for u in (True, False)])
def trilu(s: KernelBuilder, ix: Index, x: Loader, k: int = 0, upper: bool = True) -> Expr:
    """The upper or lower triangle from the k-th diagonal on, 0 elsewhere."""
    row, column = ix[-2:]
    return x(*ix, guard=column >= row + k if upper else column <= row + k)


@onnx_rule("Trilu")
def _trilu(g: GraphBuilder, node: Any) -> Node:
    k = node.static(1)
    return g.trilu(node.inputs[0], k=0 if k is None else int(k),
                   upper=bool(node.attrs.get("upper", 1)))


def _reverse_type(x: TensorType, lengths: TensorType, batch_axis: int,
                  time_axis: int) -> TensorType:
    if not dtypes.is_int(lengths.dtype):
        raise TypeError_(f"lengths are {lengths}, wanted integers")
    if x.rank < 2 or norm_axis(batch_axis, x.rank) == norm_axis(time_axis, x.rank):
        raise ShapeError(f"batch_axis {batch_axis} and time_axis {time_axis} must be two axes of "
                         f"{x}")
    if lengths.rank != 1 or lengths.shape[0] != x.shape[norm_axis(batch_axis, x.rank)]:
        raise ShapeError(f"lengths {lengths} must be one for each element of axis {batch_axis} "
                         f"of {x}")
    return x


def _reverse_ref(x: np.ndarray, lengths: np.ndarray, batch_axis: int, time_axis: int) -> np.ndarray:
    y = np.moveaxis(x, (batch_axis, time_axis), (0, 1)).copy()
    for row, n in zip(y, lengths):
        row[:n] = row[:n][::-1].copy()
    return np.moveaxis(y, (0, 1), (batch_axis, time_axis))


@indexed("movement", infer=_reverse_type, ref=_reverse_ref, samples=[
    sample(F32(4, 3, 2), fixed(1, 4, 3, dtype="i64"), batch_axis=1, time_axis=0),
    sample(F32(3, 4), fixed(0, 2, 4, dtype="i64"), batch_axis=0, time_axis=1)])
def reverse_sequence(s: KernelBuilder, ix: Index, x: Loader, lengths: Loader, batch_axis: int,
                     time_axis: int) -> Expr:
    """The first lengths[b] elements of each sequence backwards, the rest as they are."""
    b, t = norm_axis(batch_axis, len(ix)), norm_axis(time_axis, len(ix))
    n = s.index(lengths(ix[b]))
    back = s.max(s.min(n, x.shape[t]) - 1 - ix[t], 0)
    at = s.select(ix[t] < n, back, ix[t])
    return x(*ix[:t], at, *ix[t + 1:])


@onnx_rule("ReverseSequence")
def _reverse(g: GraphBuilder, node: Any) -> Node:
    x, lengths = node.inputs[:2]
    time = norm_axis(node.attrs.get("time_axis", 0), x.type.rank)
    lengths = in_range(g, lengths, 0, x.type.dims[time])
    return g.reverse_sequence(x, lengths, batch_axis=node.attrs.get("batch_axis", 1),
                              time_axis=time)
