"""Import rules of ai.onnx.ml's linear models: a matrix product, then scores and labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import onnx_rule
from jitcl.ops.ml_scores import (
    ML,
    best,
    class_labels,
    either,
    transform_of,
    transformed,
    two_columns,
)


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


@onnx_rule("LinearRegressor", domain=ML)
def _linear_regressor(g: GraphBuilder, node: Any) -> Node:
    """One target knows no transform but PROBIT, as in onnxruntime."""
    attrs, targets = node.attrs, int(node.attrs.get("targets", 1))
    score = affine(g, rows_of(g, node.inputs[0]), attrs.get("coefficients", ()),
                   attrs.get("intercepts", ()), targets)
    post = transform_of(attrs)
    return score if targets == 1 and post != "PROBIT" else transformed(g, score, post)


@onnx_rule("LinearClassifier", domain=ML)
def _linear_classifier(g: GraphBuilder, node: Any) -> tuple[Node, Node]:
    """One score for two classes is the second one's: above 0 it wins."""
    attrs, post = node.attrs, transform_of(node.attrs)
    labels = class_labels(attrs, "classlabels_ints")
    x = rows_of(g, node.inputs[0])
    score = affine(g, x, attrs["coefficients"], attrs.get("intercepts", ()), None)
    classes = score.type.shape[1]
    if classes == 1 and len(labels) <= 2:
        names = labels if len(labels) == 2 else (0, *(labels or (1,)))
        label = either(g, g.greater(score, 0.0), names)
        return label, two_columns(g, score, post, True) if len(labels) == 2 else transformed(
            g, score, post)
    if labels and len(labels) != classes:
        raise ModelError(f"it has {len(labels)} labels for {classes} scores")
    return best(g, score, labels), transformed(g, score, post)
