"""Decision trees as two kernels: where each row ends in each tree, and what lies there.

All trees of an ensemble share one table of nodes: inner nodes first, then leaves, which are their
own children. So a walk needs no branch and no end: it takes as many steps as the deepest tree is
deep. Nodes lie tree by tree, and a kernel goes through all rows with one tree before the next, so
that the tree stays in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.types import TensorType
from jitcl.ops.core import F32, Index, Loader, Sample, Spec, indexed, sample

TESTS = ("le", "lt", "ge", "gt", "masked")
LESS, EQUAL, GREATER, MISSING = 1, 2, 4, 8       # bits of a mask: which outcomes are "true"


def _ints(*values: int, shape: tuple[int, ...] = ()) -> Spec:
    return Spec(shape or (len(values),), "i32", values=values)


def _floats(*values: float) -> Spec:
    return Spec((len(values),), "f32", values=values)


# two trees: a stump (node 0, leaves 3 and 4), and one of depth 2 (nodes 1 and 2, leaves 5 to 7)
_FOREST = (_ints(0, 2, 1, 0, 0, 0, 0, 0), _floats(0.25, -0.5, 0.0, 0, 0, 0, 0, 0),
           _ints(3, 4, 2, 5, 6, 7, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, shape=(8, 2)), _ints(0, 1))
_MASKS = _ints(LESS | EQUAL, GREATER | MISSING, EQUAL, 15, 15, 15, 15, 15)
_ROWS = Spec((4, 3), "f32", values=(0.25, 0.0, -0.5, float("nan"), 1.0, float("nan"), -3.0, 0.0,
                                    2.0, 9.0, -0.0, -7.0))


def _leaves_type(x: TensorType, feature: TensorType, threshold: TensorType, children: TensorType,
                 roots: TensorType, *masks: TensorType, depth: int, inner: int,
                 test: str) -> TensorType:
    if x.rank != 2:
        raise ShapeError(f"wanted rows of features [N, F], got {x}")
    nodes = feature.shape[0]
    if children.shape != (nodes, 2) or any(t.shape != (nodes,) for t in (threshold, *masks)):
        raise ShapeError(f"tables of {nodes} nodes: feature {feature}, threshold {threshold}, "
                         f"children {children} and masks must agree")
    if x.dtype != threshold.dtype or not dtypes.is_float(x.dtype):
        raise TypeError_(f"features {x} are compared with thresholds {threshold}: "
                         "wanted floats of one type")
    if test not in TESTS or (test == "masked") != bool(masks):
        raise TypeError_(f"test '{test}' with {len(masks)} masks: wanted {', '.join(TESTS)}, "
                         "and masks for the last alone")
    return TensorType("i32", (roots.shape[0], x.shape[0]))


def _leaves_ref(x: np.ndarray, feature: np.ndarray, threshold: np.ndarray, children: np.ndarray,
                roots: np.ndarray, *masks: np.ndarray, depth: int, inner: int,
                test: str) -> np.ndarray:
    rows = np.arange(len(x))
    found = np.empty((len(roots), len(x)), np.int32)
    compare = {"le": np.less_equal, "lt": np.less, "ge": np.greater_equal, "gt": np.greater}
    for tree, root in enumerate(roots):
        at = np.full(len(x), root)
        while (at < inner).any():
            value, limit = x[rows, feature[at]], threshold[at]
            if test == "masked":
                outcome = np.select([value < limit, value == limit, value > limit],
                                    [LESS, EQUAL, GREATER], MISSING)
                true = outcome & masks[0][at] != 0
            else:
                true = compare[test](value, limit)
            at = np.where(at < inner, children[at, np.where(true, 0, 1)], at)
        found[tree] = at - inner
    return found


def _leaves_samples() -> list[Sample]:
    plain = [sample(_ROWS, *_FOREST, depth=2, inner=3, test=test) for test in TESTS[:-1]]
    return [*plain, sample(F32(33, 3), *_FOREST, depth=2, inner=3, test="le"),
            sample(_ROWS, *_FOREST, _MASKS, depth=2, inner=3, test="masked")]


@indexed("contraction", range="exact", infer=_leaves_type, ref=_leaves_ref,
         samples=_leaves_samples())
def tree_leaves(s: KernelBuilder, ix: Index, x: Loader, feature: Loader, threshold: Loader,
                children: Loader, roots: Loader, *masks: Loader, depth: int, inner: int,
                test: str) -> Expr:
    """The number of the leaf that tree t leads row n to, as [trees, N].

    At node k, x[n, feature[k]] is compared with threshold[k] by `test`; children[k] are where to
    go if that is true, and if not. "masked": masks[k] says which of less, equal, greater and
    missing (NaN) are true. Of the nodes, the first `inner` are no leaves.
    """
    tree, row = ix

    def step(k: Expr, at: Expr) -> tuple[Expr]:
        value, limit = x(row, s.index(feature(at))), threshold(at)
        if test == "masked":
            outcome = s.select(value < limit, E.const(LESS, "i32"), s.select(
                s.eq(value, limit), EQUAL, s.select(value > limit, E.const(GREATER, "i32"),
                                                    MISSING)))
            true = s.ne(s.bitand(outcome, masks[0](at)), 0)
        else:
            true = s.call(test, value, limit)
        return (s.index(children(at, s.select(true, E.index(0), E.index(1)))),)
    (leaf,) = s.fold(depth, (s.index(roots(tree)),), step)
    return s.cast(leaf - inner, "i32")


def _sum_type(leaves: TensorType, weights: TensorType, combine: str = "add") -> TensorType:
    if leaves.rank != 2 or weights.rank != 2 or not dtypes.is_int(leaves.dtype):
        raise ShapeError(f"wanted leaves [trees, N] and weights [leaves, targets], "
                         f"got {leaves} and {weights}")
    return TensorType(weights.dtype, (leaves.shape[1], weights.shape[1]))


def _sum_ref(leaves: np.ndarray, weights: np.ndarray, combine: str = "add") -> Any:
    fn = {"add": np.add, "max": np.maximum, "min": np.minimum}[combine]
    return fn.reduce(weights[leaves], axis=0)


_ENDS = Spec((3, 5), "i32", values=(0, 1, 2, 3, 4, 4, 4, 0, 0, 1, 2, 2, 2, 1, 3))


@indexed("contraction", range="exact", infer=_sum_type, ref=_sum_ref, samples=[
    sample(_ENDS, F32(5, 1)), sample(_ENDS, F32(5, 3)), sample(_ENDS, F32(5, 9), combine="max"),
    sample(_ENDS, F32(5, 2), combine="min")])
def leaf_sum(s: KernelBuilder, ix: Index, leaves: Loader, weights: Loader,
             combine: str = "add") -> Expr:
    """What the trees say of row n and target c together: weights[leaves[t, n], c] over all t."""
    row, target = ix

    def vote(t: Expr) -> Expr:
        return weights(s.index(leaves(t, row)), target)
    if combine != "add":
        return s.reduce(combine, [leaves.shape[0]], vote)
    zero = s.const(0.0, weights.dtype)       # tree by tree: equal votes give equal sums
    return s.fold(leaves.shape[0], (zero,), lambda t, total: (total + vote(t),))[0]
