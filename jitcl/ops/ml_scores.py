"""What classifiers and regressors of ai.onnx.ml do with scores: transforms, two columns, labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")     # as opset 5 numbers them
TINY = 1e-7                                  # scores this near 0 count as 0 in SOFTMAX_ZERO


def rows_of(g: GraphBuilder, x: Node) -> Node:
    """Rows of f32 features, [N, F]; a vector is one row."""
    if x.type.rank == 1:
        x = g.reshape(x, shape=(1, *x.type.shape))
    if x.type.rank != 2:
        raise ShapeError(f"wanted rows of features [N, F], got {x.type}")
    return x if x.type.dtype == "f32" else g.cast(x, to="f32")


def affine(g: GraphBuilder, x: Node, coefficients: Any, intercepts: Any, count: int | None) -> Node:
    """x [N, F] times coefficients [count, F], plus intercepts: [N, count]."""
    width = x.type.shape[1]
    table = np.asarray(coefficients, np.float32).ravel()
    rows = count or (len(table) // width if isinstance(width, int) and width else 0)
    if not rows or not isinstance(width, int) or len(table) != rows * width:
        raise ShapeError(f"{len(table)} coefficients are no matrix for rows of {width} features"
                         + (f" and {count} scores" if count else ""))
    score = g.matmul(x, const(np.ascontiguousarray(table.reshape(rows, width).T)))
    added = np.asarray(intercepts, np.float32).ravel()
    if not len(added):
        return score
    if len(added) not in (1, rows):
        raise ModelError(f"intercepts has {len(added)} elements for {rows} scores")
    return g.add(score, const(added.reshape(1, -1)))


def chosen(attrs: Mapping[str, Any], name: str, options: Sequence[str], default: str) -> str:
    """An attribute that is one of `options`, by its name or number; ModelError for what is none."""
    found = attrs.get(name, default)
    if isinstance(found, int) and 0 <= found < len(options):
        return options[found]
    if found not in options:
        raise ModelError(f"{name} is {found!r}, wanted one of {', '.join(options)}")
    return str(found)


def transform_of(attrs: Mapping[str, Any]) -> str:
    """The attribute post_transform, by name."""
    return chosen(attrs, "post_transform", TRANSFORMS, "NONE")


def transformed(g: GraphBuilder, scores: Node, how: str) -> Node:
    """Scores [N, C] after a post_transform; softmax runs over C."""
    if how == "LOGISTIC":
        return g.sigmoid(scores)
    if how == "SOFTMAX":
        return g.softmax(scores, axis=-1)
    if how == "SOFTMAX_ZERO":
        return softmax_zero(g, scores)
    return probit(g, scores) if how == "PROBIT" else scores


def softmax_zero(g: GraphBuilder, x: Node) -> Node:
    """Softmax over the last axis in which zeros stay zeros."""
    top = g.reduce_max(x, axes=(-1,), keepdims=True)
    away = g.greater(g.abs(x), TINY)
    terms = g.where(away, g.exp(g.sub(x, top)), g.mul(x, g.exp(g.neg(top))))
    return g.div(terms, g.reduce_sum(terms, axes=(-1,), keepdims=True))


def probit(g: GraphBuilder, x: Node) -> Node:
    """The quantile of the normal distribution, sqrt(2) erfinv(2 x - 1), as onnxruntime
    approximates it (S. Winitzki, "A handy approximation for the error function", 2008)."""
    t = g.sub(g.mul(x, 2.0), 1.0)
    log = g.log(g.mul(g.sub(1.0, t), g.add(t, 1.0)))
    v = g.add(g.mul(log, 0.5), 2 / (3.14159 * 0.147))
    root = g.sqrt(g.sub(g.sqrt(g.sub(g.mul(v, v), g.mul(log, 1 / 0.147))), v))
    return g.mul(g.where(g.less(t, 0.0), g.neg(root), root), 1.41421356)


# ---- labels

def class_labels(attrs: Mapping[str, Any], ints: str) -> tuple[int, ...]:
    """The integer labels of a classifier (attribute `ints`); UnsupportedError for strings."""
    if attrs.get("classlabels_strings"):
        raise UnsupportedError("its labels are strings; jitcl computes with numbers")
    return tuple(int(v) for v in attrs.get(ints, ()))


def looked_up(g: GraphBuilder, number: Node, labels: Sequence[int]) -> Node:
    """The labels of class numbers [N]; numbers themselves where there are no labels."""
    if not labels or tuple(labels) == tuple(range(len(labels))):
        return g.cast(number, to="i64")
    return g.gather(const(np.asarray(labels, np.int64)), number)


def best(g: GraphBuilder, scores: Node, labels: Sequence[int]) -> Node:
    """The label of each row's greatest score, the first of equal ones."""
    return looked_up(g, g.argmax(scores, axis=1, keepdims=False), labels)


def either(g: GraphBuilder, positive: Node, labels: Sequence[int]) -> Node:
    """The second label where `positive` [N, 1] holds, else the first."""
    yes, no = (const(np.asarray(labels[k], np.int64)) for k in (1, 0))
    return g.reshape(g.where(positive, yes, no), shape=(positive.type.shape[0],))


def two_columns(g: GraphBuilder, score: Node, how: str, probability: bool) -> Node:
    """[N, 2] of the score [N, 1] of the second of two classes, as onnxruntime fills them in.

    A `probability` p is beside 1 - p, any other score s beside -s. LOGISTIC is taken of both -s
    and s; SOFTMAX and SOFTMAX_ZERO leave the columns as they are.
    """
    if how == "LOGISTIC":
        return g.sigmoid(g.concat(g.neg(score), score, axis=1))
    other = g.sub(1.0, score) if probability else g.neg(score)
    both = g.concat(other, score, axis=1)
    return probit(g, both) if how == "PROBIT" else both
