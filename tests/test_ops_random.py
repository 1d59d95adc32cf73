"""Random tensors, optimisers, determinants and n-grams beside NumPy and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from jitcl.errors import JitclError, ModelError, ShapeError, TypeError_
from jitcl.frontends.onnx import import_model, load
from tests.one_node import by_jitcl, by_onnxruntime, by_reference, one_node

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array | None]
TRAINING = "ai.onnx.preview.training"


# ---- random tensors


@pytest.mark.parametrize(("op", "attrs"), [
    ("RandomNormal", {"shape": [3, 50], "mean": 1.5, "scale": 0.5}),
    ("RandomUniform", {"shape": [3, 50], "low": -2.0, "high": 3.0}),
    ("RandomUniform", {"shape": [7], "dtype": TensorProto.DOUBLE})])
def test_a_seed_gives_the_references_numbers(op: str, attrs: dict[str, Any]) -> None:
    model = one_node(op, {}, seed=7.0, **attrs)
    np.testing.assert_allclose(by_jitcl(model, {})[0], by_reference(model, {})[0], rtol=1e-6,
                               atol=1e-6)


def test_bernoulli_with_a_seed_gives_the_references_numbers() -> None:
    feeds: Feeds = {"p": np.random.default_rng(0).random((40, 5)).astype(np.float32)}
    model = one_node("Bernoulli", feeds, seed=3.0, dtype=TensorProto.INT16)
    np.testing.assert_array_equal(by_jitcl(model, feeds)[0], by_reference(model, feeds)[0])


@pytest.mark.parametrize(("op", "mean", "deviation"), [
    ("RandomUniformLike", 0.5, 12 ** -0.5), ("RandomNormalLike", 0.0, 1.0)])
def test_without_a_seed_numbers_are_spread_and_repeatable(op: str, mean: float,
                                                          deviation: float) -> None:
    """Too many to be folded: a kernel draws them."""
    feeds: Feeds = {"x": np.zeros((300, 500), np.float32)}
    model = one_node(op, feeds)
    model.graph.node[0].name = "noise"
    y = by_jitcl(model, feeds)[0]
    np.testing.assert_array_equal(y, by_jitcl(model, feeds)[0])
    assert abs(y.mean() - mean) < 5e-3 and abs(y.std() - deviation) < 5e-3
    assert abs(np.corrcoef(y[:, :-1].ravel(), y[:, 1:].ravel())[0, 1]) < 0.01
    model.graph.node[0].name = "another"
    assert (by_jitcl(model, feeds)[0] != y).mean() > 0.99


def test_multinomial_draws_in_proportion() -> None:
    feeds: Feeds = {"x": np.log(np.array([[1, 2, 5, 0.001], [7, 1, 1, 1]], np.float32))}
    model = one_node("Multinomial", feeds, sample_size=20000, dtype=TensorProto.INT64)
    y = by_jitcl(model, feeds)[0]
    assert y.dtype == np.int64 and y.shape == (2, 20000)
    share = np.stack([np.bincount(row, minlength=4) / 20000 for row in y])
    np.testing.assert_allclose(share, [[1 / 8, 2 / 8, 5 / 8, 0], [0.7, 0.1, 0.1, 0.1]], atol=0.015)


def test_dropout_in_training_without_a_seed() -> None:
    feeds: Feeds = {"x": np.ones((100, 300), np.float32), "r": np.array(0.25, np.float32),
                    "t": np.array(True)}
    model = one_node("Dropout", feeds, outputs=2, constants=("r", "t"))
    y, mask = by_jitcl(model, feeds)
    np.testing.assert_allclose(y, mask / 0.75, rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 0.01


# ---- optimisers


@pytest.mark.parametrize(("op", "states", "attrs"), [
    ("Momentum", 1, {"alpha": 0.9, "beta": 0.8, "mode": "nesterov", "norm_coefficient": 0.01}),
    ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-4}),
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.02, "alpha": 0.8,
                 "beta": 0.99, "epsilon": 1e-5})])
@pytest.mark.parametrize("count", [0, 3])
def test_optimisers(op: str, states: int, attrs: dict[str, Any], count: int) -> None:
    """Two tensors of other shapes in one node, in f64; a first update and a later one."""
    rng = np.random.default_rng(count)
    feeds: Feeds = {"r": np.array(0.1), "t": np.array(count, np.int64)}
    for kind in range(2 + states):
        for k, shape in enumerate(((3, 4), (5,))):
            feeds[f"v{kind}_{k}"] = np.abs(rng.standard_normal(shape))
    if op == "Adam":                        # the reference rounds to f32 where there are several
        feeds = {n: v for n, v in feeds.items() if not n.endswith("_1")}
    many = 1 if op == "Adam" else 2
    model = one_node(op, feeds, outputs=many * (1 + states), domain=TRAINING, **attrs)
    for got, want in zip(by_jitcl(model, feeds), by_reference(model, feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-7)      # its attributes are f32


# ---- determinants, n-grams


@pytest.mark.parametrize(("shape", "dtype", "rtol"), [
    ((30, 30), np.float64, 1e-10), ((4, 2, 6, 6), np.float32, 1e-4), ((0, 3, 3), np.float32, 0),
    ((2, 2), np.float16, 1e-2)])
def test_det(shape: tuple[int, ...], dtype: Any, rtol: float) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    got = by_jitcl(one_node("Det", {"x": x}), {"x": x})[0]
    want = np.linalg.det(x.astype(np.float64))
    assert got.dtype == dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shape", [(30,), (4, 25)])
def test_tf_idf(mode: str, shape: tuple[int, ...]) -> None:
    """1- to 3-grams with skips; two n-grams in one column, and a column of none."""
    feeds: Feeds = {"x": np.random.default_rng(2).integers(0, 4, shape)}
    model = one_node(
        "TfIdfVectorizer", feeds, opset=9, result=TensorProto.FLOAT, mode=mode, min_gram_length=1,
        max_gram_length=3, max_skip_count=2, ngram_counts=[0, 3, 7],
        ngram_indexes=[0, 4, 2, 1, 2, 5], pool_int64s=[1, 2, 3, 1, 2, 3, 3, 0, 1, 2],
        weights=[1.0, 2.0, 0.5, 3.0, 1.5, 2.5])
    np.testing.assert_allclose(by_jitcl(model, feeds)[0], by_onnxruntime(model, feeds)[0])


# ---- errors

X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(("op", "feeds", "attrs", "error", "text"), [
    ("RandomNormal", {}, {"shape": [2], "seed": -1.0}, ModelError, r"seed is -1.0: wanted 0 to"),
    ("RandomUniform", {}, {"shape": [2], "dtype": TensorProto.INT32}, TypeError_,
     "RandomUniform makes floats, not i32"),
    ("Bernoulli", {"x": X.astype(np.int32)}, {}, TypeError_, "Bernoulli takes probabilities"),
    ("Multinomial", {"x": X[0]}, {}, ShapeError, r"Multinomial takes \[batch, classes\]"),
    ("Det", {"x": X}, {}, ShapeError, r"takes square matrices \[..., n, n\], got f32\[2,3\]"),
    ("Momentum", {"r": X[0, 0], "t": np.int64(1), "x": X, "g": X}, {}, ShapeError,
     "Momentum takes R, T and 3 tensors for each"),
    ("Momentum", {"r": X[0, 0], "t": np.int64(1), "x": X, "g": X, "v": X[0]}, {}, TypeError_,
     r"X is f32\[2,3\]; its gradient and state must be alike, got f32\[3\]"),
])
def test_errors(op: str, feeds: Feeds, attrs: dict[str, Any], error: type[JitclError],
                text: str) -> None:
    given = {n: np.asarray(v) for n, v in feeds.items()}
    if op == "Momentum":
        attrs = {"alpha": 0.9, "beta": 0.9, "mode": "standard", "norm_coefficient": 0.0}
    model = one_node(op, given, domain=TRAINING if op == "Momentum" else "", **attrs)
    with pytest.raises(error, match=text):
        import_model(load(model), {})
