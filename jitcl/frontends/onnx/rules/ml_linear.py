"""Import rules of ai.onnx.ml's linear models: a matrix product, then scores and labels."""

from __future__ import annotations

from typing import Any

from jitcl.errors import ModelError
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import onnx_rule
from jitcl.ops.ml_scores import (
    ML,
    affine,
    best,
    class_labels,
    either,
    rows_of,
    transform_of,
    transformed,
    two_columns,
)


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
