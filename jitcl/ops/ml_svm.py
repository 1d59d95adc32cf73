"""Support vector machines of ai.onnx.ml: a kernel with all support vectors, then a product."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import combinations
from operator import add
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node, const
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import F32, Index, Loader, indexed, onnx_rule, same_dtype, sample
from jitcl.ops.ml_scores import (
    ML,
    affine,
    best,
    class_labels,
    either,
    looked_up,
    rows_of,
    transform_of,
    transformed,
    two_columns,
)

Array = np.ndarray[Any, Any]
COUPLED = 8                                  # classes whose probabilities one kernel couples
SWEEPS = 100                                 # of the coupling, at most


def _distance_type(x: TensorType, y: TensorType) -> TensorType:
    if x.rank != 2 or y.rank != 2 or x.shape[1] != y.shape[0]:
        raise ShapeError(f"wanted rows [N, F] and columns [F, S] of as many features, got {x}, {y}")
    return TensorType(same_dtype(x, y), (x.shape[0], y.shape[1]))


@indexed("contraction", range="grows", infer=_distance_type,
         ref=lambda x, y: np.square(x[:, :, None] - y[None]).sum(axis=1),
         samples=[sample(F32(5, 3), F32(3, 7)), sample(F32(33, 12), F32(12, 40))])
def squared_distance(s: KernelBuilder, ix: Index, x: Loader, y: Loader) -> Expr:
    """|x_n - y_s|^2 of rows x [N, F] and columns y [F, S], term by term: exact near 0, where
    |x|^2 - 2 x y + |y|^2 is not."""
    def term(f: Expr) -> Expr:
        difference = x(ix[0], f) - y(f, ix[1])
        return difference * difference
    return s.reduce("add", [x.shape[1]], term)


def _couple_ref(r: Array, classes: int) -> Array:
    out = np.empty((len(r), classes))
    pairs = list(combinations(range(classes), 2))
    for row, result in zip(np.asarray(r, np.float64), out):
        wins = np.zeros((classes, classes))
        for (i, j), value in zip(pairs, row):
            wins[i, j], wins[j, i] = value, 1 - value
        q = -wins * wins.T
        np.fill_diagonal(q, (wins ** 2).sum(axis=0))
        p = np.full(classes, 1 / classes)
        for _ in range(SWEEPS):
            total = p @ q @ p
            if np.abs(q @ p - total).max() < 0.005 / classes:
                break
            qp = q @ p
            for t in range(classes):
                change = (total - qp[t]) / q[t, t]
                p[t] += change
                total = (total + change * (change * q[t, t] + 2 * qp[t])) / (1 + change) ** 2
                qp = (qp + change * q[t]) / (1 + change)
                p /= 1 + change
        result[:] = p
    return out


def _couple_type(r: TensorType, classes: int) -> TensorType:
    if r.rank != 2 or r.shape[1] != classes * (classes - 1) // 2:
        raise ShapeError(f"wanted a probability for each pair of {classes} classes, got {r}")
    return r.with_(shape=(r.shape[0], classes))


@indexed("contraction", range="exact", infer=_couple_type, ref=_couple_ref, samples=[
    sample(F32(9, 1, low=0.01, high=0.99), classes=2),
    sample(F32(9, 3, low=0.05, high=0.95), classes=3, rtol=1e-4),
    sample(F32(5, 6, low=0.1, high=0.9), classes=4, rtol=1e-4)])
def pairwise_coupling(s: KernelBuilder, ix: Index, r: Loader, classes: int) -> Expr:
    """Probabilities of classes from those that i beats j, r [N, pairs] (T.-F. Wu, C.-J. Lin and
    R. C. Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004,
    algorithm 2), with libsvm's steps and its end: max |Q p - p Q p| < 0.005 / classes.
    """
    n = range(classes)
    wins: dict[tuple[int, int], Expr] = {}
    for k, (i, j) in enumerate(combinations(n, 2)):
        wins[i, j] = r(ix[0], k)
        wins[j, i] = 1.0 - wins[i, j]
    q = {(i, j): -(wins[j, i] * wins[i, j]) for i in n for j in n if i != j}
    for t in n:
        q[t, t] = reduce(add, [wins[j, t] * wins[j, t] for j in n if j != t])

    def sweep(k: Expr, *p: Expr) -> tuple[Expr, ...]:
        qp = [reduce(add, [q[t, j] * p[j] for j in n]) for t in n]
        whole = reduce(add, [p[t] * qp[t] for t in n])
        error = reduce(s.max, [s.abs(qp[t] - whole) for t in n])
        new = list(p)
        for t in n:
            change = (whole - qp[t]) / q[t, t]
            new[t] = new[t] + change
            grown = 1.0 + change
            whole = (whole + change * (change * q[t, t] + 2.0 * qp[t])) / (grown * grown)
            qp = [(qp[j] + change * q[t, j]) / grown for j in n]
            new = [v / grown for v in new]
        done = error < 0.005 / classes
        return tuple(s.select(done, old, now) for old, now in zip(p, new))
    start = [s.const(1.0 / classes, r.dtype)] * classes
    p = s.fold(3 if classes == 2 else SWEEPS, start, sweep)      # two classes: one sweep is exact
    found = p[0]
    for t in n[1:]:
        found = s.select(s.eq(ix[1], t), p[t], found)
    return found


# ---- kernels

def _kernel(g: GraphBuilder, x: Node, attrs: Mapping[str, Any], vectors: Array) -> Node:
    """The kernel function of rows x [N, F] and support vectors [S, F]: [N, S]."""
    kind = attrs.get("kernel_type", "LINEAR")
    given = attrs.get("kernel_params", ())
    if given and len(given) != 3:
        raise ModelError(f"kernel_params has {len(given)} elements, wanted gamma, coef0 and degree")
    gamma, offset, degree = map(float, given or (0.0, 0.0, 0.0))
    columns = const(np.ascontiguousarray(vectors.T))
    if kind == "RBF":
        return g.exp(g.mul(g.squared_distance(x, columns), -gamma))
    if kind not in ("LINEAR", "POLY", "SIGMOID"):
        raise ModelError(f"kernel_type is {kind!r}, wanted LINEAR, POLY, RBF or SIGMOID")
    dots = g.matmul(x, columns)
    if kind == "LINEAR":
        return dots
    dots = g.add(g.mul(dots, gamma), offset)
    return g.tanh(dots) if kind == "SIGMOID" else g.pow(dots, degree)


def _vectors(attrs: Mapping[str, Any], count: int, x: Node) -> Array:
    table = np.asarray(attrs.get("support_vectors", ()), np.float32)
    width = x.type.shape[1]
    if not isinstance(width, int) or len(table) != count * width:
        raise ShapeError(f"support_vectors has {len(table)} elements, wanted {count} vectors of "
                         f"{width} features")
    return table.reshape(count, -1)


@onnx_rule("SVMRegressor", domain=ML)
def _svm_regressor(g: GraphBuilder, node: Any) -> Node:
    attrs, x = node.attrs, rows_of(g, node.inputs[0])
    count = int(attrs.get("n_supports", 0))
    if transform_of(attrs) not in ("NONE", "LOGISTIC"):
        raise UnsupportedError(f"its post_transform is {attrs['post_transform']}: wanted NONE")
    values = _kernel(g, x, attrs, _vectors(attrs, count, x)) if count else x
    score = affine(g, values, attrs.get("coefficients", ()), attrs.get("rho", ())[:1], 1)
    if attrs.get("one_class", 0):
        return g.where(g.greater(score, 0.0), 1.0, const(np.float32(-1)))
    return score


@onnx_rule("SVMClassifier", domain=ML)
def _svm_classifier(g: GraphBuilder, node: Any) -> tuple[Node, Node]:
    """Without support vectors, one score a class; with them, classes compete in pairs, and the one
    with most wins is the label, whatever the probabilities say (as in libsvm and onnxruntime)."""
    attrs, post = node.attrs, transform_of(node.attrs)
    labels = class_labels(attrs, "classlabels_ints")
    x = rows_of(g, node.inputs[0])
    sizes = [int(v) for v in attrs.get("vectors_per_class", ())]
    if not sum(sizes):
        score = affine(g, x, attrs["coefficients"], attrs.get("rho", ())[:1], max(len(labels), 1))
        return best(g, score, labels), transformed(g, score, post) if len(labels) > 1 else score
    classes = len(sizes)
    if classes < 2 or len(labels) not in (0, classes):
        raise ModelError(f"it has {len(labels)} labels and support vectors of {classes} classes")
    kernel = _kernel(g, x, attrs, _vectors(attrs, sum(sizes), x))
    duels = affine(g, kernel, _duels(attrs, sizes).T, attrs.get("rho", ()),
                   classes * (classes - 1) // 2)
    label = _winner(g, duels, classes, labels or tuple(range(classes)))
    if attrs.get("prob_a"):
        return label, transformed(g, _probabilities(g, duels, attrs, classes), post)
    if classes == 2:
        return label, two_columns(g, duels, post, post.startswith("SOFTMAX"))
    return label, transformed(g, duels, post)


def _duels(attrs: Mapping[str, Any], sizes: list[int]) -> Array:
    """[S, pairs]: how much each support vector speaks for class i of the pair (i, j).

    The vectors lie class by class; one of class i has a coefficient for each other class, those
    after i in the rows i, i + 1 .., those before in rows 0 .. i - 1.
    """
    table = np.asarray(attrs["coefficients"], np.float32)
    if len(table) != (len(sizes) - 1) * sum(sizes):
        raise ModelError(f"coefficients has {len(table)} elements, wanted {len(sizes) - 1} for "
                         f"each of {sum(sizes)} support vectors")
    table = table.reshape(len(sizes) - 1, -1)
    starts = np.cumsum([0, *sizes])
    pairs = list(combinations(range(len(sizes)), 2))
    found = np.zeros((sum(sizes), len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        own, other = (slice(starts[c], starts[c + 1]) for c in (i, j))
        found[own, k] = table[j - 1, own]
        found[other, k] = table[i, other]
    return found


def _winner(g: GraphBuilder, duels: Node, classes: int, labels: tuple[int, ...]) -> Node:
    """The label of the class with most wins, the first of equal ones."""
    won = g.greater(duels, 0.0)
    if classes == 2:
        return either(g, g.not_(won), labels)
    gain = np.zeros((duels.type.dims[1], classes), np.float32)
    for k, (i, j) in enumerate(combinations(range(classes), 2)):
        gain[k, i], gain[k, j] = 1, -1
    start = (gain < 0).sum(axis=0, dtype=np.float32).reshape(1, -1)      # all duels lost to j
    wins = g.add(g.matmul(g.cast(won, to="f32"), const(gain)), const(start))
    return looked_up(g, g.argmax(wins, axis=1, keepdims=False), labels)


def _probabilities(g: GraphBuilder, duels: Node, attrs: Mapping[str, Any], classes: int) -> Node:
    if classes > COUPLED:
        raise UnsupportedError(f"it couples the probabilities of {classes} classes: wanted at most "
                               f"{COUPLED}")
    a, b = (const(np.asarray(attrs[f"prob_{c}"], np.float32).reshape(1, -1)) for c in "ab")
    beats = g.sigmoid(g.neg(g.add(g.mul(duels, a), b)))
    return g.pairwise_coupling(g.clip(beats, 1e-7, 1 - 1e-7), classes=classes)
