"""ai.onnx.ml: each op in all its forms gives what onnxruntime gives; what is malformed is said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import jitcl
from jitcl.errors import JitclError
from tests import devices

ort = pytest.importorskip("onnxruntime", reason="onnxruntime says what is right")

ML = "ai.onnx.ml"
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32).round(1)
X[3, 0], X[4, 1], X[5] = np.nan, np.nan, 0.0
Case = tuple[str, dict[str, Any], int]       # op, attributes, outputs


def model_of(cases: list[Case], opset: int = 1, kind: int = T.FLOAT) -> onnx.ModelProto:
    """One model with a node for each case, on the same rows."""
    nodes, outputs = [], []
    for k, (op, attrs, count) in enumerate(cases):
        names = [f"y{k}", f"z{k}"][:count]
        given = {a: v for a, v in attrs.items() if v != []}        # make_node knows no empty list
        nodes.append(h.make_node(op, ["X"], names, domain=ML, name=f"n{k}", **given))
        types = [T.INT64, T.FLOAT] if count == 2 else [T.FLOAT]
        outputs += [h.make_tensor_value_info(n, t, None) for n, t in zip(names, types)]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("X", kind, [None, X.shape[1]])],
                         outputs)
    return h.make_model(graph, ir_version=8, opset_imports=[
        h.make_opsetid("", 17), h.make_opsetid(ML, opset)])


def assert_same(cases: list[Case], x: np.ndarray, opset: int = 1, device: str = "cpu") -> None:
    kind = h.np_dtype_to_tensor_dtype(x.dtype)
    data = model_of(cases, opset, kind).SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    got = jitcl.compile(data, device=device, strict=True).run({"X": x})
    for spec, want in zip(session.get_outputs(), session.run(None, {"X": x})):
        found, case = got[spec.name], cases[int(spec.name[1:])]
        assert (found.dtype, found.shape) == (want.dtype, want.shape), case
        if want.dtype == np.int64:
            np.testing.assert_array_equal(found, want, err_msg=str(case))
        else:
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5, err_msg=str(case))


# ---- trees

def tree(votes: str, targets: int, rng: np.random.Generator, mode: str = "LEQ", trees: int = 3,
         depth: int = 3, missing: bool = False, every: bool = True) -> dict[str, Any]:
    """Attributes of random complete trees; each leaf votes for all targets, or for one."""
    rows: dict[str, list[Any]] = {k: [] for k in (
        "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes",
        "nodes_truenodeids", "nodes_falsenodeids", f"{votes}_treeids", f"{votes}_nodeids",
        f"{votes}_ids", f"{votes}_weights")}
    inner = 2 ** depth - 1
    for t, node in itertools.product(range(trees), range(2 * inner + 1)):
        branch = node < inner and not (t == 1 and node == 2)       # one tree is no complete one
        if (t == 1) and node in (5, 6, 11, 12, 13, 14):
            continue
        kind = MODES[int(rng.integers(6))] if mode == "any" else mode
        values = (t, node, int(rng.integers(X.shape[1])), float(np.round(rng.normal(), 1)),
                  f"BRANCH_{kind}" if branch else "LEAF", 2 * node + 1 if branch else 0,
                  2 * node + 2 if branch else 0)
        for key, value in zip(list(rows)[:7], values):
            rows[key].append(value)
        for target in range(targets) if every else (node % targets,):
            if not branch:
                for key, vote in zip(list(rows)[7:], (t, node, target, float(rng.normal()))):
                    rows[key].append(vote)
    if missing:
        rows["nodes_missing_value_tracks_true"] = rng.integers(0, 2, len(rows["nodes_modes"])
                                                               ).tolist()
    return rows


def regressors() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    for how, post in itertools.product(("SUM", "AVERAGE", "MIN", "MAX"), ("NONE", "LOGISTIC")):
        for targets, base in ((1, [0.5]), (3, [0.1, -0.2, 0.3]), (3, [])):
            attrs = tree("target", targets, rng, every=targets == 1)
            yield "TreeEnsembleRegressor", {**attrs, "n_targets": targets, "post_transform": post,
                                            "aggregate_function": how, "base_values": base}, 1
    for mode, missing in itertools.product((*MODES, "any"), (False, True)):
        attrs = tree("target", 1, rng, mode=mode, missing=missing)
        yield "TreeEnsembleRegressor", {**attrs, "n_targets": 1}, 1


def classifiers() -> Iterator[Case]:
    rng = np.random.default_rng(2)
    for post, base in itertools.product(POSTS[:-1], ([], [0.3, 0.1, -0.2])):
        attrs = tree("class", 3, rng, missing=True)
        yield "TreeEnsembleClassifier", {**attrs, "classlabels_int64s": [7, 3, 5],
                                         "post_transform": post, "base_values": base}, 2
    for post, base, sign in itertools.product(POSTS[:-1], ([], [0.3]), (True, False)):
        attrs = tree("class", 1, rng)
        if sign:
            attrs["class_weights"] = np.abs(attrs["class_weights"]).tolist()
        yield "TreeEnsembleClassifier", {**attrs, "classlabels_int64s": [7, 3],
                                         "post_transform": post, "base_values": base}, 2
    attrs = tree("class", 4, rng, every=False)               # some class may get no vote at all
    attrs["class_weights"] = (-np.abs(attrs["class_weights"])).tolist()
    yield "TreeEnsembleClassifier", {**attrs, "classlabels_int64s": [1, 2, 3, 4]}, 2
    one = tree("class", 1, rng)
    yield "TreeEnsembleClassifier", {**one, "classlabels_int64s": [1]}, 2


@pytest.mark.sampled(quick=4, slow=2)
@pytest.mark.parametrize("device", [d if d == "cpu" else pytest.param(d, marks=pytest.mark.slow)
                                    for d in devices.present()])
@pytest.mark.parametrize("kind", ["regressors", "classifiers"])
def test_tree_ensembles(device: str, kind: str) -> None:
    assert_same(list({"regressors": regressors, "classifiers": classifiers}[kind]()), X,
                device=device)


def test_trees_of_doubles_and_integers() -> None:
    rng = np.random.default_rng(3)
    attrs = tree("target", 2, rng)
    weights = np.asarray(attrs.pop("target_weights"), np.float64)
    values = np.asarray(attrs.pop("nodes_values"), np.float64) + 1e-9    # no floats
    double = {**attrs, "n_targets": 2, "target_weights_as_tensor": onnx.numpy_helper.from_array(
        weights), "nodes_values_as_tensor": onnx.numpy_helper.from_array(values)}
    assert_same([("TreeEnsembleRegressor", double, 1)], X.astype(np.float64), opset=3)
    whole = {**tree("class", 3, rng), "classlabels_int64s": [0, 1, 2]}
    assert_same([("TreeEnsembleClassifier", whole, 2)], np.nan_to_num(X * 3).astype(np.int64))


def five(rng: np.random.Generator, how: int, targets: int, post: int = 0) -> dict[str, Any]:
    """A TreeEnsemble: a membership test above a comparison, and a tree that is a leaf.
    (onnxruntime takes integers for members alone, and mistakes SOFTMAX and LOGISTIC.)"""
    def stored(*v: float, dtype: Any = np.float32) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.array(v, dtype))
    return {
        "tree_roots": [0, 2, 3], "aggregate_function": how, "n_targets": targets,
        "post_transform": post, "nodes_featureids": [0, 1, 2, 1],
        "nodes_modes": stored(6, 0, 3, 6, dtype=np.uint8),
        "nodes_splits": stored(0, 0.2, -0.3, 0), "nodes_truenodeids": [0, 1, 3, 0],
        "nodes_falsenodeids": [1, 2, 3, 4], "nodes_trueleafs": [1, 1, 1, 1],
        "nodes_falseleafs": [0, 1, 1, 1], "nodes_missing_value_tracks_true": [1, 0, 0, 0],
        "leaf_targetids": rng.integers(0, targets, 5).tolist(),
        "leaf_weights": stored(*rng.normal(size=5)),
        "membership_values": stored(1, -4, 6, np.nan, 2, 3, np.nan)}


def test_tree_ensemble_of_opset_5() -> None:
    rng = np.random.default_rng(4)
    cases = [("TreeEnsemble", five(rng, how, targets, post), 1)
             for how, targets, post in itertools.product(range(4), (1, 2), (0, 3))]
    assert_same(cases, np.nan_to_num(X * 5).round(), opset=5)


# ---- linear models and support vectors

def test_linear_models() -> None:
    cases: list[Case] = []
    rng = np.random.default_rng(5)
    for post in POSTS[:-1]:
        for scores, labels in ((1, [7, 3]), (2, [7, 3]), (4, [0, 1, 2, 3])):
            cases.append(("LinearClassifier", {
                "coefficients": rng.normal(size=3 * scores).tolist(), "post_transform": post,
                "intercepts": rng.normal(size=scores).tolist(), "classlabels_ints": labels}, 2))
        for targets in (1, 2):
            cases.append(("LinearRegressor", {
                "coefficients": rng.normal(size=3 * targets).tolist(), "targets": targets,
                "intercepts": rng.normal(size=targets).tolist(), "post_transform": post}, 1))
    assert_same(cases, np.nan_to_num(X))


def svm(rng: np.random.Generator, classes: int, kernel: str, proba: bool) -> dict[str, Any]:
    sizes = [2 + c for c in range(classes)]
    pairs = classes * (classes - 1) // 2
    more = {"prob_a": (-1 - rng.random(pairs)).tolist(),
            "prob_b": rng.normal(size=pairs).tolist()} if proba else {}
    return {"classlabels_ints": list(range(10, 10 + classes)), "vectors_per_class": sizes,
            "support_vectors": rng.normal(size=3 * sum(sizes)).tolist(), "kernel_type": kernel,
            "coefficients": rng.normal(size=(classes - 1) * sum(sizes)).tolist(),
            "rho": rng.normal(size=pairs).tolist(), "kernel_params": [0.4, 0.3, 2.0], **more}


@pytest.mark.slow
def test_support_vector_machines() -> None:
    rng = np.random.default_rng(6)
    kernels = ("LINEAR", "POLY", "RBF", "SIGMOID")
    cases: list[Case] = [
        ("SVMClassifier", {**svm(rng, classes, kernel, proba), "post_transform": post}, 2)
        for classes, kernel, proba, post in (
            *itertools.product((2, 3), kernels, (False,), ("NONE", "LOGISTIC")),
            (2, "RBF", True, "NONE"), (4, "RBF", True, "NONE"), (3, "LINEAR", True, "SOFTMAX"))]
    for kernel, one_class in itertools.product(kernels, (0, 1)):
        cases.append(("SVMRegressor", {
            "n_supports": 5, "support_vectors": rng.normal(size=15).tolist(), "rho": [0.1],
            "coefficients": rng.normal(size=5).tolist(), "kernel_type": kernel,
            "kernel_params": [0.4, 0.3, 2.0], "one_class": one_class}, 1))
    assert_same(cases, np.nan_to_num(X))


# ---- features

def test_feature_transforms() -> None:
    cases: list[Case] = [("Normalizer", {"norm": norm}, 1) for norm in ("MAX", "L1", "L2")]
    cases += [("Scaler", {"offset": [1.0], "scale": [2.0]}, 1),
              ("Scaler", {"offset": [1.0, 0.0, -1.0], "scale": [2.0, 1.0, 3.0]}, 1),
              ("Binarizer", {"threshold": 0.3}, 1),
              ("OneHotEncoder", {"cats_int64s": [-1, 0, 1], "zeros": 1}, 1)]
    assert_same(cases, np.nan_to_num(X))
    assert_same([
        ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0],
                     "replaced_value_float": float("nan")}, 1),
        ("Imputer", {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}, 1)], X)
    assert_same([("LabelEncoder", {"keys_floats": [0.0, 1.0, 0.5], "values_floats": [3.0, 4.0, 5.0],
                                   "default_float": -1.0}, 1)], np.nan_to_num(X), opset=2)


def test_strings_and_maps_are_host_steps() -> None:
    """Labels that are strings are looked up behind compiled numbers; ZipMap makes dicts."""
    attrs = tree("class", 3, np.random.default_rng(7))
    trees = h.make_node("TreeEnsembleClassifier", ["X"], ["label", "score"], domain=ML,
                        name="forest", classlabels_strings=["no", "yes", "perhaps"], **attrs)
    zipped = h.make_node("ZipMap", ["score"], ["map"], domain=ML, name="zip",
                         classlabels_strings=["no", "yes", "perhaps"])
    maps = h.make_sequence_type_proto(h.make_map_type_proto(
        T.STRING, h.make_tensor_type_proto(T.FLOAT, [])))
    graph = h.make_graph([trees, zipped], "g", [h.make_tensor_value_info("X", T.FLOAT, [None, 3])],
                         [h.make_tensor_value_info("label", T.STRING, [None]),
                          h.make_value_info("map", maps)])
    data = h.make_model(graph, ir_version=8, opset_imports=[h.make_opsetid(ML, 1)]
                        ).SerializeToString()
    model = jitcl.compile(data, device="cpu")
    got = model.run({"X": X})
    label, rows = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"X": X})
    assert got["label"].tolist() == label.tolist()
    assert [list(row) for row in got["map"]] == [list(row) for row in rows]
    for mine, theirs in zip(got["map"], rows):
        np.testing.assert_allclose(list(mine.values()), list(theirs.values()), rtol=1e-5, atol=1e-6)
    assert sorted(step[1] for step in model.report().host) == ["Gather", "ZipMap"]
    with pytest.raises(JitclError, match="'zip' \\(ZipMap"):
        jitcl.compile(data, device="cpu", strict=True).run({"X": X})


# ---- what is malformed

STUMP = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
         "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
         "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
         "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
         "n_targets": 1}


@pytest.mark.parametrize(("change", "message"), [
    ({"nodes_truenodeids": [0, 0, 0]}, "its trees have a circle: some node is its own descendant"),
    ({"nodes_falsenodeids": [9, 0, 0]}, "node 9 of tree 0 is a child, but it is not listed"),
    ({"nodes_nodeids": [0, 1, 1]}, "node 1 of tree 0 is listed twice"),
    ({"nodes_featureids": [3, 0, 0]}, "its trees ask for features 3 to 3, but rows have 3 feat"),
    ({"nodes_modes": ["BRANCH_ALL", "LEAF", "LEAF"]},
     "nodes_modes holds 'BRANCH_ALL', wanted LEAF or BRANCH_LEQ, BRANCH_LT"),
    ({"nodes_values": [0.0]}, "attribute nodes_values has 1 elements, wanted 3 as the others have"),
    ({"target_ids": [0, 4]}, "leaves vote for targets 0 to 4, but there are 1"),
    ({"target_nodeids": [1, 7]}, "node 7 of tree 0 is a leaf, but it is not listed"),
    ({"aggregate_function": "MEAN"}, "aggregate_function is 'MEAN', wanted one of AVERAGE, SUM"),
    ({"post_transform": "TANH"},
     "attribute 'post_transform' is 'TANH', wanted one of NONE, SOFTMAX, LOGISTIC"),
])
def test_what_is_said_of_malformed_trees(change: dict[str, Any], message: str) -> None:
    model = model_of([("TreeEnsembleRegressor", {**STUMP, **change}, 1)])
    with pytest.raises(JitclError) as e:
        jitcl.compile(model, device="cpu", strict=True).run({"X": X})
    assert message in str(e.value) and "'n0' (TreeEnsembleRegressor)" in str(e.value)


@pytest.mark.parametrize(("op", "attrs", "message"), [
    ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, "offset has 2 elements, wanted 1 or one"),
    ("Normalizer", {"norm": "L3"}, "attribute 'norm' is 'L3', wanted one of MAX, L1, L2"),
    ("LinearRegressor", {"coefficients": [1.0, 2.0]}, "2 coefficients are no matrix for rows of 3"),
    ("SVMRegressor", {"n_supports": 2, "support_vectors": [1.0], "coefficients": [1.0, 1.0],
                      "rho": [0.0]}, "support_vectors has 1 elements, wanted 2 vectors of 3"),
    ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, "has 2 elements, wanted 1 or one for each"),
])
def test_what_is_said_of_malformed_models(op: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(JitclError) as e:
        jitcl.compile(model_of([(op, attrs, 1)]), device="cpu", strict=True).run({"X": X})
    assert message in str(e.value)


def test_one_hot_of_strings() -> None:
    """On the host, in one pass over the elements."""
    def encode(zeros: int, *words: str) -> np.ndarray[Any, Any]:
        node = h.make_node("OneHotEncoder", ["x"], ["y"], "hot", domain=ML,
                                cats_strings=["red", "green"], zeros=zeros)
        graph = h.make_graph(
            [node], "g", [h.make_tensor_value_info("x", T.STRING, [None, 1])],
            [h.make_tensor_value_info("y", T.FLOAT, [None, 1, 2])])
        model = h.make_model(graph, opset_imports=[h.make_opsetid(ML, 3),
                                                        h.make_opsetid("", 18)])
        x = np.array([[w] for w in words], object)
        found = jitcl.compile(model, device="cpu").run({"x": x})
        y: np.ndarray[Any, Any] = found["y"]
        return y

    y = encode(1, "green", "blue", "red")
    np.testing.assert_array_equal(y, np.array([[[0, 1]], [[0, 0]], [[1, 0]]], np.float32))
    with pytest.raises(JitclError, match="zeros is 0, and 'blue' is none of the 2 categ"):
        encode(0, "green", "blue")
