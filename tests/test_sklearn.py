"""scikit-learn's models, exported by skl2onnx, predict what onnxruntime predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitcl
from tests.sklearn_models import MODELS, exported

ort = pytest.importorskip("onnxruntime", reason="onnxruntime says what is right")

QUICK = ("DecisionTreeClassifier", "string labels", "SVC", "imputed", "columns")
HOST = {"ZipMap", "Gather", "Identity", "OneHotEncoder"}      # of strings and maps
TREES = {"TreeEnsembleClassifier", "TreeEnsembleRegressor"}


@pytest.fixture(autouse=True, scope="module")
def exporter() -> Any:
    """It takes seconds to import: not while tests are collected."""
    return pytest.importorskip("skl2onnx", reason="skl2onnx exports scikit-learn's models")


def assert_same(got: Any, want: Any) -> None:
    """Labels are equal, numbers to float32's precision; maps are lists of dicts."""
    if isinstance(want, list):
        assert [list(row) for row in got] == [list(row) for row in want]
        got = np.array([list(row.values()) for row in got])
        want = np.array([list(row.values()) for row in want])
    if want.dtype.kind in "iuO":
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        return
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * largest)


def check(name: str, count: int) -> None:
    model = exported(name, count)
    compiled = jitcl.compile(model.data, device="cpu")
    got = compiled.run(model.feeds)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1         # with more, it sums trees in another order
    session = ort.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
    for spec, want in zip(session.get_outputs(), session.run(None, model.feeds)):
        assert_same(got[spec.name], want)
    hosted = {op for _, op, _ in compiled.report().host}
    assert not hosted & TREES and hosted <= HOST


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", QUICK)
def test_predictions(name: str) -> None:
    check(name, 500)


@pytest.mark.sampled(slow=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_predictions_for_many_rows(name: str) -> None:
    check(name, 1000 if name.startswith("KNeighbors") else 10_000)
