"""Non-maximum suppression, the best box first: one kernel for all images and classes.

The selection of one class of one image is a chain of a recurrence. Each of its steps takes the box
with the greatest score that is left, and crosses out those that overlap it too much; so a class of
n boxes of which k are taken costs about n * k, and needs no sorting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import least
from jitcl.ir.sizes import whole
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F32,
    Bounded,
    Index,
    Loader,
    Part,
    Scan,
    Spec,
    clamped,
    composite,
    fixed,
    onnx_rule,
    recurrence,
    sample,
)
from jitcl.ops.selection import total

Array = np.ndarray[Any, Any]
PARTS = 64                # stretches that a class's boxes are searched in, side by side
MOST = 1 << 24            # boxes: their numbers are stored as f32


# ---- overlap


def _span(s: KernelBuilder, a: Expr, b: Expr, centred: bool) -> tuple[Expr, Expr]:
    """Both ends of a box along an axis, from two corners, or from its centre and size."""
    if centred:
        return a - b * 0.5, a + b * 0.5
    return s.min(a, b), s.max(a, b)


def overlaps(s: KernelBuilder, one: list[Expr], other: list[Expr], threshold: Expr,
             centred: bool) -> Expr:
    """Whether two boxes' intersection over union is above a threshold; empty boxes overlap none."""
    pairs = ((0, 2), (1, 3))
    spans = [[_span(s, box[a], box[b], centred) for a, b in pairs] for box in (one, other)]
    sides = [s.max(s.min(p[1], q[1]) - s.max(p[0], q[0]), 0.0) for p, q in zip(*spans)]
    areas = [(x[1] - x[0]) * (y[1] - y[0]) for x, y in spans]
    common = sides[0] * sides[1]
    union = areas[0] + areas[1] - common
    solid = s.and_(s.and_(areas[0] > 0.0, areas[1] > 0.0), s.and_(common > 0.0, union > 0.0))
    return s.and_(solid, common / union > threshold)


def _overlap_ref(box: Array, boxes: Array, centred: bool) -> Array:
    """Intersection over union of one box with many, in the boxes' own type."""
    if centred:
        box, boxes = (np.concatenate([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)
                      for b in (box, boxes))
    low, high = (f(box[:2], box[2:]) for f in (np.minimum, np.maximum))
    lows, highs = (f(boxes[:, :2], boxes[:, 2:]) for f in (np.minimum, np.maximum))
    sides = np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0)
    common, one, many = sides.prod(1), (high - low).prod(), (highs - lows).prod(1)
    union = one + many - common
    solid = (one > 0) & (many > 0) & (common > 0) & (union > 0)
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=solid))


# ---- selection


def _selection_type(boxes: TensorType, scores: TensorType, limits: TensorType, count: int,
                    centred: bool = False) -> TensorType:
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4 or (
            scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]):
        raise ShapeError(f"wanted boxes [images, n, 4] and scores [images, classes, n], got "
                         f"{boxes} and {scores}")
    if {boxes.dtype, scores.dtype, limits.dtype} != {"f32"} or limits.shape != (2,):
        raise TypeError_(f"wanted boxes, scores and two thresholds of f32, got {boxes}, {scores} "
                         f"and {limits}")
    if boxes.dims[1] > MOST:
        raise ShapeError(f"{boxes.dims[1]} boxes: wanted {MOST} or fewer")
    images, classes, n = scores.dims
    return TensorType("f32", (images, classes, count + n + PARTS))


def _stretch(n: int) -> int:
    return -(-n // PARTS)


def _selection_ref(boxes: Array, scores: Array, limits: Array, count: int,
                   centred: bool = False) -> Array:
    images, classes, n = scores.shape
    y = np.zeros((images, classes, count + n + PARTS), np.float32)
    y[..., :count] = -1
    starts = np.minimum(np.arange(PARTS) * _stretch(n), n)
    for b, c in np.ndindex(images, classes):
        left = np.where(scores[b, c] > limits[1], scores[b, c], -np.inf)
        y[b, c, count + n:] = n
        for k in range(count):
            for p, start in enumerate(starts):
                part = left[start:start + _stretch(n)]
                some = part.size and part.max() > -np.inf
                y[b, c, count + n + p] = start + part.argmax() if some else n
            if left.max() == -np.inf:
                continue
            best = int(left.argmax())
            y[b, c, k] = best
            left[_overlap_ref(boxes[b, best], boxes[b], centred) > limits[0]] = -np.inf
            left[best] = -np.inf
        y[b, c, count:count + n] = left
    return y


_BOXES = Spec((1, 6, 4), values=(0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, -0.1, 1, 0.9, 0, 10, 1, 11,
                                 1, 11.1, 0, 10.1, 0, 100, 1, 101))
_SCORES = Spec((1, 1, 6), values=(0.9, 0.75, 0.6, 0.95, 0.5, 0.3))


@recurrence(infer=_selection_type, ref=_selection_ref, samples=[
    sample(_BOXES, _SCORES, fixed(0.5, 0.0), count=3),
    sample(_BOXES, _SCORES, fixed(0.5, 0.4), count=6, centred=True),
    sample(F32(2, 150, 4, low=0), F32(2, 3, 150), fixed(0.3, float("-inf")), count=20)])
def box_selection(s: KernelBuilder, own: Callable[..., Expr], boxes: Loader, scores: Loader,
                  limits: Loader, count: int, centred: bool = False) -> Scan:
    """For each image and class: the numbers of the `count` boxes taken first (-1 behind the last),
    then what is left of the scores (-inf for boxes taken or crossed out), then working space: the
    best place of each stretch of boxes. `limits` are the greatest overlap of boxes that are both
    taken, and the score above which boxes count.
    """
    n = scores.shape[2]
    long = _stretch(n)
    low = s.const(float("-inf"), "f32")

    def left(chain: Index, i: Expr) -> Expr:
        return own(*chain, i + count)

    def init(chain: Index) -> list[Part]:
        def score(i: Expr) -> Expr:
            return s.select(scores(*chain, i) > limits(1), scores(*chain, i), low)
        return [Part((count,), lambda k: (*chain, k), lambda k: s.const(-1, "f32")),
                Part((n,), lambda i: (*chain, i + count), score),
                Part((PARTS,), lambda p: (*chain, p + (count + n)), lambda p: s.const(n, "f32"))]

    def step(chain: Index, t: Expr) -> list[Part]:
        def best_of(extent: int, place: Callable[[Expr], Expr]) -> Expr:
            """The place with the greatest score of `extent`, the first of equal ones; n if none is
            left."""
            def better(k: Expr, score: Expr, best: Expr) -> tuple[Expr, Expr]:
                at = place(k)
                here = s.select(at < n, left(chain, clamped(s, at, n)), low)
                new = here > score
                return s.select(new, here, score), s.select(new, E.cast(at, "i32"), best)
            return s.fold(extent, (low, s.const(n, "i32")), better)[1]

        def best_of_stretch(p: Expr) -> Expr:
            return E.cast(best_of(long, lambda k: p * long + k), "f32")

        def taken() -> Expr:
            best = best_of(PARTS, lambda p: s.index(own(*chain, p + (count + n))))
            return s.select(best < n, E.cast(best, "f32"), s.const(-1, "f32"))

        def remaining(i: Expr) -> Expr:
            raw = own(*chain, t)
            best = clamped(s, raw, n)
            one, other = ([boxes(chain[0], b, a) for a in range(4)] for b in (best, i))
            gone = s.or_(s.eq(best, i), overlaps(s, one, other, limits(0), centred))
            return s.select(s.and_(raw >= 0.0, gone), low, left(chain, i))
        return [Part((PARTS,), lambda p: (*chain, p + (count + n)), best_of_stretch),
                Part((), lambda: (*chain, t), taken),
                Part((n,), lambda i: (*chain, i + count), remaining)]
    return Scan(tuple(scores.shape[:2]), count, init, step)


def _rows_ref(taken: Array, where: Array) -> Array:
    at = np.unravel_index(where, taken.shape)
    return np.stack([at[0], at[1], taken[at]], 1).astype(np.int64)


@composite(ref=_rows_ref, samples=[
    sample(Spec((2, 1, 3), values=(4, 2, -1, 7, -1, -1)), fixed(0, 1, 3, 5, dtype="i32"))])
def selected_rows(g: GraphBuilder, taken: Node, where: Node) -> Node:
    """(image, class, box) of the places `where` in [images, classes, count]."""
    _, classes, count = taken.type.dims
    at = g.cast(where, to="i64")
    box = g.cast(g.gather(g.reshape(taken, shape=(taken.type.size,)), where), to="i64")
    columns = [g.div(at, classes * count), g.mod(g.div(at, count), classes), box]
    return g.concat(*(g.reshape(c, shape=(c.type.size, 1)) for c in columns), axis=1)


# ---- import


def _number(node: Any, i: int, default: float) -> Node | float:
    """A threshold: a node of one element, or its default."""
    given: Node | None = node.input(i)
    if given is None or given.type.size == 0:
        return default
    if given.type.size != 1 or not dtypes.is_float(given.type.dtype):
        raise ShapeError(f"its input {i} is one number, got {given.type}")
    return given


@onnx_rule("NonMaxSuppression")
def _non_max_suppression(g: GraphBuilder, node: Any) -> Bounded | Node:
    boxes, scores = node.inputs[:2]
    centred = node.attrs.get("center_point_box", 0)
    if centred not in (0, 1):
        raise ModelError(f"center_point_box is {centred}: wanted 0 (corners) or 1 (centre, size)")
    most = node.static(2)
    if most is not None and np.size(most) > 1:
        raise ShapeError(f"max_output_boxes_per_class is one number, got {np.size(most)}")
    count = 0 if most is None or not np.size(most) else whole(np.reshape(most, -1)[0])
    count = least(max(count, 0), boxes.type.dims[1] if boxes.type.rank == 3 else 0)
    limits = [g.reshape(v, shape=(1,)) if isinstance(v, Node) else g.const([v], "f32")
              for v in (_number(node, 3, 0.0), _number(node, 4, -math.inf))]
    chosen = _selection_type(boxes.type, scores.type, TensorType("f32", (2,)), count)
    if count == 0 or 0 in chosen.dims:
        return g.const(np.zeros((0, 3), np.int64))
    state = g.box_selection(boxes, scores, g.concat(*limits, axis=0), count=count,
                            centred=bool(centred))
    taken = g.slice(state, starts=(0,), ends=(count,), axes=(2,))
    valid = g.reshape(g.greater_or_equal(taken, 0.0), shape=(taken.type.size,))
    return Bounded((g.selected_rows(taken, g.kept_places(valid)),), total(g, valid), (0,))
