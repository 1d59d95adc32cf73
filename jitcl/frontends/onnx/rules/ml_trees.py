"""Import rules of ai.onnx.ml's tree ensembles.

Where ONNX is vague, they do as onnxruntime does: NaN passes a test for inequality; targets that no
leaf of a row votes for get neither a vote nor their base value; a regression of one target knows
no transform but PROBIT; a classifier of two classes that only one of them is voted for compares
that score with 1/2 if no vote is negative, else with 0. As ONNX has it, and not onnxruntime:
where both of two classes get votes, the larger one wins; TreeEnsemble's post_transform 1 is
SOFTMAX, 2 is LOGISTIC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError
from jitcl.frontends.onnx.rules.ml_forest import Forest, numbered, positioned
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import onnx_rule
from jitcl.ops.ml_scores import (
    ML,
    best,
    chosen,
    class_labels,
    either,
    transform_of,
    transformed,
    two_columns,
)

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")            # as TreeEnsemble numbers them
_COMBINES = {"AVERAGE": "add", "SUM": "add", "MIN": "min", "MAX": "max"}


def _features(g: GraphBuilder, x: Node, attrs: Mapping[str, Any]) -> Node:
    """Rows of floats: of f64 if they or the tables are, else of f32."""
    if x.type.rank != 2:
        raise ShapeError(f"wanted rows of features [N, F], got {x.type}")
    double = x.type.dtype == "f64" or any(
        isinstance(v, np.ndarray) and v.dtype == np.float64 for v in attrs.values())
    dtype = "f64" if double else "f32"
    return x if x.type.dtype == dtype else g.cast(x, to=dtype)


def _leaves(g: GraphBuilder, x: Node, forest: Forest) -> Node:
    """Where each row ends in each tree, [trees, N]."""
    used, width = forest.feature[:forest.inner], x.type.shape[1]
    if len(used) and (used.min() < 0 or isinstance(width, int) and used.max() >= width):
        raise ShapeError(f"its trees ask for features {used.min()} to {used.max()}, but rows have "
                         f"{width} features")
    test = forest.test
    masks = (const(forest.masks.astype(np.int32)),) if test == "masked" else ()
    return g.tree_leaves(
        x, const(forest.feature.astype(np.int32)), const(forest.threshold),
        const(forest.children.astype(np.int32)), const(forest.roots.astype(np.int32)), *masks,
        depth=forest.depth, inner=forest.inner, test=test)


def _voted(g: GraphBuilder, leaves: Node, forest: Forest) -> Node | None:
    """Whether a row's leaves vote for a target, [N, targets]; None where they always do."""
    if forest.always.all():
        return None
    votes = const(forest.votes.astype(np.float32))
    return g.greater(g.leaf_sum(leaves, votes, combine="max"), 0.0)


def _regressed(g: GraphBuilder, x: Node, forest: Forest, how: str, base: np.ndarray[Any, Any]
               ) -> Node:
    """The aggregated votes, [N, targets]."""
    leaves, targets = _leaves(g, x, forest), forest.weights.shape[1]
    total = g.leaf_sum(leaves, const(forest.weights), combine=_COMBINES[how])
    voted = _voted(g, leaves, forest) if len(base) or how in ("MIN", "MAX") else None
    if how == "AVERAGE":
        total = g.div(total, float(len(forest.roots)))
    if voted is not None:
        total = g.where(voted, total, 0.0)
    if not len(base):
        return total
    if len(base) not in (1, targets):
        raise ModelError(f"base_values has {len(base)} elements for {targets} targets")
    based = g.add(total, const(base.reshape(1, -1).astype(forest.weights.dtype)))
    return based if voted is None or targets == 1 else g.where(voted, based, 0.0)


def _base(attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    found = attrs.get("base_values_as_tensor")
    return np.asarray(attrs.get("base_values", ()) if found is None else found, np.float64).ravel()


@onnx_rule("TreeEnsembleRegressor", domain=ML)
def _tree_ensemble_regressor(g: GraphBuilder, node: Any) -> Node:
    attrs, how = node.attrs, chosen(node.attrs, "aggregate_function", AGGREGATES, "SUM")
    x = _features(g, node.inputs[0], attrs)
    targets = int(attrs.get("n_targets", 1))
    forest = numbered(attrs, "target", targets, _COMBINES[how], dtypes.to_numpy(x.type.dtype).type)
    total = g.cast(_regressed(g, x, forest, how, _base(attrs)), to="f32")
    post = transform_of(attrs)
    return total if targets == 1 and post != "PROBIT" else transformed(g, total, post)


@onnx_rule("TreeEnsemble", domain=ML)
def _tree_ensemble(g: GraphBuilder, node: Any) -> Node:
    attrs, how = node.attrs, chosen(node.attrs, "aggregate_function", AGGREGATES, "SUM")
    given = node.inputs[0].type.dtype
    x = _features(g, node.inputs[0], attrs if given == "f64" else {})
    targets = int(attrs.get("n_targets", 1))
    forest = positioned(attrs, targets, _COMBINES[how], dtypes.to_numpy(x.type.dtype).type)
    total = _regressed(g, x, forest, how, np.zeros(0))
    post = transform_of(attrs)
    if targets > 1 or post == "PROBIT":
        total = transformed(g, total, post)
    return total if total.type.dtype == given else g.cast(total, to=given)


@onnx_rule("TreeEnsembleClassifier", domain=ML)
def _tree_ensemble_classifier(g: GraphBuilder, node: Any) -> tuple[Node, Node]:
    attrs, post = node.attrs, transform_of(node.attrs)
    labels = class_labels(attrs, "classlabels_int64s")
    ids = sorted(set(attrs.get("class_ids", ())))
    x = _features(g, node.inputs[0], attrs)
    forest = numbered(attrs, "class", len(labels), "add", dtypes.to_numpy(x.type.dtype).type)
    base = _base(attrs)
    if len(base) and len(base) != len(labels) and not (len(base) == 1 and len(labels) == 2):
        raise ModelError(f"base_values has {len(base)} elements for {len(labels)} classes")
    leaves = _leaves(g, x, forest)
    total = g.leaf_sum(leaves, const(forest.weights))
    if len(labels) == 1 or (len(labels) == 2 and len(ids) == 1):
        return _one_score(g, total, forest, labels, ids[0] if ids else 0, base, post)
    if len(base):
        padded = np.zeros((1, len(labels)))
        padded[0, :len(base)] = base
        total = g.add(total, const(padded.astype(forest.weights.dtype)))
    voted = None if len(base) else _voted(g, leaves, forest)
    ranked = total if voted is None else g.where(voted, total, -np.inf)
    total = g.cast(total, to="f32")
    return best(g, ranked, labels), transformed(g, total, post)


def _one_score(g: GraphBuilder, total: Node, forest: Forest, labels: tuple[int, ...], voted: int,
               base: np.ndarray[Any, Any], post: str) -> tuple[Node, Node]:
    """A classifier whose leaves vote for one class only: it is that class, or the other one."""
    positive = bool((forest.weights[forest.votes] >= 0).all())
    score = g.slice(total, starts=(voted,), ends=(voted + 1,), axes=(1,)) if (
        len(labels) > 1) else total
    if len(base) and (voted == 0 or len(base) == 2):
        score = g.add(score, float(base[voted if len(base) == 2 else 0]))
    if len(labels) == 1:
        label = either(g, g.greater(score, 0.0), (0, 1))
        score = g.cast(score, to="f32")
        return label, transformed(g, score, post) if post == "PROBIT" else score
    label = either(g, g.greater(score, 0.5 if positive else 0.0), labels)
    score = g.cast(score, to="f32")
    if voted == 0:
        return label, two_columns(g, score, post, positive)
    return label, transformed(g, g.concat(g.mul(score, 0.0), score, axis=1), post)
