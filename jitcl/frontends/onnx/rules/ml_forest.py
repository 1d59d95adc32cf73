"""Tree ensembles in one form: ai.onnx.ml describes them in two ways, kernels read a third.

TreeEnsembleRegressor and -Classifier list nodes with the numbers of their tree and of themselves,
leaves among them, and votes apart; TreeEnsemble (opset 5) lists inner nodes and leaves by
position. Both become the tables of `trees.tree_leaves`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl.errors import ModelError
from jitcl.ops.trees import EQUAL, GREATER, LESS, MISSING

Array = np.ndarray[Any, Any]

# what is true of a node's feature, by the order in which TreeEnsemble numbers modes
_MASKS = {"BRANCH_LEQ": LESS | EQUAL, "BRANCH_LT": LESS, "BRANCH_GTE": GREATER | EQUAL,
          "BRANCH_GT": GREATER, "BRANCH_EQ": EQUAL,
          "BRANCH_NEQ": LESS | GREATER | MISSING}        # NaN != v, as IEEE 754 has it
_MEMBER = 6                                  # TreeEnsemble's mode: the feature is one of a set
_TESTS = {LESS | EQUAL: "le", LESS: "lt", GREATER | EQUAL: "ge", GREATER: "gt"}
_EITHER = LESS | EQUAL | GREATER | MISSING


@dataclass(frozen=True)
class Forest:
    """Tables of nodes, inner ones first, and of leaves.

    `weights` [leaves, targets] hold a leaf's votes, the combine's neutral element where it has
    none; `votes` says where it has.
    """

    feature: Array
    threshold: Array
    children: Array
    roots: Array
    masks: Array
    weights: Array
    votes: Array

    @property
    def inner(self) -> int:
        return len(self.feature) - len(self.weights)

    @property
    def test(self) -> str:
        """How all nodes compare, or "masked"."""
        found = _distinct(self.masks[:self.inner])
        if not len(found):
            return "le"
        return _TESTS.get(int(found[0]), "masked") if len(found) == 1 else "masked"

    @property
    def always(self) -> Array:
        """Targets that are known to get a vote from every row, [targets]: those that some tree
        votes for from each of its leaves."""
        everywhere = self.votes.all(axis=0)
        owner = np.full(len(self.feature), -1)
        at = np.asarray(self.roots)
        owner[at] = np.arange(len(at))
        while (at := at[at < self.inner]).size:
            below, mine = self.children[at].ravel(), np.repeat(owner[at], 2)
            if ((owner[below] >= 0) & (owner[below] != mine)).any():
                return np.asarray(everywhere)    # trees share nodes: of no leaf one owner is known
            owner[below] = mine
            at = _distinct(below)
        ends = owner[self.inner:]
        for tree in _distinct(ends[ends >= 0]):
            if everywhere.all():
                break
            everywhere |= self.votes[ends == tree].all(axis=0)
        return np.asarray(everywhere)

    @property
    def depth(self) -> int:
        """Steps to the farthest leaf. Raises ModelError where the trees have a circle."""
        at, depth = _distinct(self.roots), 0
        while (at := at[at < self.inner]).size:
            at, depth = _distinct(self.children[at]), depth + 1
            if depth > self.inner:
                raise ModelError("its trees have a circle: some node is its own descendant")
        return depth


def _distinct(x: Array) -> Array:
    """In order. By sorting: where NumPy (2.3 on) hashes, a daemon thread in `unique` aborts a
    process that ends ("terminate called", Python before 3.14)."""
    found, _ = np.unique(x, return_index=True)
    return found


def numbered(attrs: Mapping[str, Any], votes: str, targets: int, combine: str,
             dtype: type) -> Forest:
    """The forest of a TreeEnsembleRegressor or -Classifier; `votes` is the prefix of the
    attributes that hold them, "target" or "class"."""
    tree, number = _ints(attrs, "nodes_treeids"), _ints(attrs, "nodes_nodeids")
    modes = np.asarray(attrs.get("nodes_modes", ()), dtype=str)
    count = len(tree)
    features = _ints(attrs, "nodes_featureids")
    values = _floats(attrs, "nodes_values", dtype)
    ways = [_ints(attrs, f"nodes_{kind}nodeids") for kind in ("true", "false")]
    for name, array in (("nodes_nodeids", number), ("nodes_modes", modes),
                        ("nodes_featureids", features), ("nodes_values", values),
                        ("nodes_truenodeids", ways[0]), ("nodes_falsenodeids", ways[1])):
        _same_length(name, array, count)
    is_leaf = modes == "LEAF"
    unknown = sorted(set(modes[~is_leaf].tolist()) - _MASKS.keys())
    if unknown:
        raise ModelError(f"nodes_modes holds '{unknown[0]}', wanted LEAF or {', '.join(_MASKS)}")
    order = np.concatenate([np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)])
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    inner = int(count - is_leaf.sum())
    find = _Finder(tree, number)
    children = np.repeat(np.arange(count)[:, None], 2, axis=1)
    for side, to in enumerate(ways):
        at = order[:inner]
        children[:inner, side] = place[find(tree[at], to[at], "a child")]
    masks = np.full(count, _EITHER)
    masks[:inner] = [_MASKS[m] for m in modes[order[:inner]].tolist()]
    masks[:inner] |= _missing(attrs, count)[order[:inner]]
    _, first = np.unique(tree, return_index=True)
    return Forest(features[order], values[order], children, place[np.sort(first)], masks,
                  *_voted(attrs, votes, targets, combine, dtype, find, place, inner, count))


def _voted(attrs: Mapping[str, Any], votes: str, targets: int, combine: str, dtype: type,
           find: _Finder, place: Array, inner: int, count: int) -> tuple[Array, Array]:
    """(weights, votes) of the leaves; what is voted at inner nodes does not count."""
    to = _ints(attrs, f"{votes}_ids")
    weight = _floats(attrs, f"{votes}_weights", dtype)
    trees, numbers = (_ints(attrs, f"{votes}_{kind}ids") for kind in ("tree", "node"))
    for name, array in ((f"{votes}_weights", weight), (f"{votes}_treeids", trees),
                        (f"{votes}_nodeids", numbers)):
        _same_length(name, array, len(to))
    leaf = place[find(trees, numbers, "a leaf")] - inner
    return _table(leaf[leaf >= 0], to[leaf >= 0], weight[leaf >= 0], count - inner, targets,
                  combine)


def positioned(attrs: Mapping[str, Any], targets: int, combine: str, dtype: type) -> Forest:
    """The forest of a TreeEnsemble; a test for membership becomes a chain of tests for equality."""
    features = _ints(attrs, "nodes_featureids")
    inner = len(features)
    modes = np.asarray(attrs["nodes_modes"]).astype(np.int64).ravel()
    values: Array = np.asarray(attrs["nodes_splits"], dtype).ravel().copy()
    ways, ends = ([_ints(attrs, f"nodes_{side}{kind}") for side in ("true", "false")]
                  for kind in ("nodeids", "leafs"))
    for name, array in (("nodes_modes", modes), ("nodes_splits", values),
                        *((f"nodes_{s}nodeids", w) for s, w in zip(("true", "false"), ways)),
                        *((f"nodes_{s}leafs", e) for s, e in zip(("true", "false"), ends))):
        _same_length(name, array, inner)
    if len(modes) and not 0 <= modes.min() <= modes.max() <= _MEMBER:
        raise ModelError(f"nodes_modes holds {modes.min()} to {modes.max()}, wanted 0 to {_MEMBER}")
    masks = np.array([*_MASKS.values(), EQUAL])[modes] | _missing(attrs, inner)
    leaf_to = _ints(attrs, "leaf_targetids")
    leaves = len(leaf_to)
    sets = _members(attrs.get("membership_values"), int((modes == _MEMBER).sum()), dtype)
    extra = sum(len(s) - 1 for s in sets if len(s))
    whole = inner + extra
    children = np.stack([np.where(end != 0, way + whole, way) for way, end in zip(ways, ends)], 1)
    _inside(children, np.stack(ends, 1) != 0, inner, whole, leaves)
    chains = _chained(np.flatnonzero(modes == _MEMBER), sets, features, values, children, masks)
    features, values, children, masks = chains
    pad = np.arange(whole, whole + leaves)
    roots = _ints(attrs, "tree_roots")
    if len(roots) and not 0 <= roots.min() <= roots.max() < inner:
        raise ModelError(f"tree_roots holds {roots.min()} to {roots.max()}, but there are {inner} "
                         "nodes")
    return Forest(np.concatenate([features, np.zeros(leaves, np.int64)]),
                  np.concatenate([values, np.zeros(leaves, dtype)]),
                  np.concatenate([children, np.stack([pad, pad], 1)]), roots,
                  np.concatenate([masks, np.full(leaves, _EITHER)]),
                  *_table(np.arange(leaves), leaf_to,
                          np.asarray(attrs["leaf_weights"], dtype).ravel(), leaves, targets,
                          combine))


def _members(values: Any, count: int, dtype: type) -> list[Array]:
    """The sets of membership tests: they are delimited by NaNs."""
    flat: Array = np.zeros(0, dtype) if values is None else np.asarray(values, dtype).ravel()
    ends = np.flatnonzero(np.isnan(flat))
    if len(flat) and (not len(ends) or ends[-1] != len(flat) - 1):
        ends = np.append(ends, len(flat))        # the last NaN may be left out
    if len(ends) != count:
        raise ModelError(f"membership_values holds {len(ends)} sets, but {count} nodes test for "
                         "membership: end each set with a NaN")
    starts = [0, *(ends[:-1] + 1).tolist()] if count else []
    return [flat[a:b] for a, b in zip(starts, ends.tolist())]


def _chained(at: Array, sets: Sequence[Array], features: Array, values: Array, children: Array,
             masks: Array) -> tuple[Array, Array, Array, Array]:
    """Nodes `at` test for the first of their set; appended nodes for the others in turn."""
    rows: list[tuple[int, float, tuple[int, int], int]] = []
    first = len(features)
    for node, members in zip(at.tolist(), sets):
        if not len(members):                     # in the empty set is nothing
            values[node] = np.nan
            continue
        values[node] = members[0]
        true, last = (int(c) for c in children[node])
        for k, member in enumerate(members[1:], 1):
            here = first + len(rows)
            after = last if k == len(members) - 1 else here + 1
            rows.append((int(features[node]), float(member), (true, after), int(masks[node])))
            if k == 1:
                children[node, 1] = here
    if not rows:
        return features, values, children, masks
    f, v, c, m = zip(*rows)
    return (np.concatenate([features, f]), np.concatenate([values, np.asarray(v, values.dtype)]),
            np.concatenate([children, c]), np.concatenate([masks, m]))


def _inside(children: Array, is_leaf: Array, inner: int, whole: int, leaves: int) -> None:
    node, leaf = children[~is_leaf], children[is_leaf] - whole
    for found, count, what in ((node, inner, "nodes"), (leaf, leaves, "leaves")):
        if len(found) and not 0 <= found.min() <= found.max() < count:
            raise ModelError(f"branches lead to {what} {found.min()} to {found.max()}, "
                             f"but there are {count}")


class _Finder:
    """Positions of nodes by the numbers of their tree and of themselves."""

    def __init__(self, tree: Array, number: Array) -> None:
        self.span = int(number.max(initial=0)) + 1
        keys = tree * self.span + number
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        twice = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        if len(twice):
            tree_id, node = divmod(int(self.keys[twice[0]]), self.span)
            raise ModelError(f"node {node} of tree {tree_id} is listed twice")

    def __call__(self, tree: Array, number: Array, what: str) -> Array:
        keys = tree * self.span + number
        at = np.searchsorted(self.keys, keys).clip(0, max(0, len(self.keys) - 1))
        wrong = (number < 0) | (number >= self.span)
        wrong |= self.keys[at] != keys if len(self.keys) else True
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ModelError(f"node {number[first]} of tree {tree[first]} is {what}, but it is "
                             "not listed")
        return np.asarray(self.order[at])


def _table(leaf: Array, target: Array, weight: Array, leaves: int, targets: int,
           combine: str) -> tuple[Array, Array]:
    _same_length("leaf_weights", weight, len(target))
    if len(target) and not 0 <= target.min() <= target.max() < targets:
        raise ModelError(f"leaves vote for targets {target.min()} to {target.max()}, but there "
                         f"are {targets}")
    neutral = {"add": 0.0, "max": -np.inf, "min": np.inf}[combine]
    table = np.full((leaves, targets), neutral, np.float64)
    {"add": np.add, "max": np.maximum, "min": np.minimum}[combine].at(table, (leaf, target), weight)
    votes = np.zeros((leaves, targets), bool)
    votes[leaf, target] = True
    return table.astype(weight.dtype), votes


def _missing(attrs: Mapping[str, Any], count: int) -> Array:
    tracks = _ints(attrs, "nodes_missing_value_tracks_true")
    if not len(tracks):
        return np.zeros(count, np.int64)
    _same_length("nodes_missing_value_tracks_true", tracks, count)
    return np.where(tracks != 0, MISSING, 0)


def _ints(attrs: Mapping[str, Any], name: str) -> Array:
    return np.asarray(attrs.get(name, ()), np.int64)


def _floats(attrs: Mapping[str, Any], name: str, dtype: type) -> Array:
    """Of double precision where the attribute `name`_as_tensor is given."""
    found = attrs.get(f"{name}_as_tensor")
    return np.asarray(attrs.get(name, ()) if found is None else found, dtype).ravel()


def _same_length(name: str, array: Array, count: int) -> None:
    if len(array) != count:
        raise ModelError(f"attribute {name} has {len(array)} elements, wanted {count} as the "
                         "others have")
