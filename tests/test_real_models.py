"""Real models that are not there: a skip, or an error where CI=true."""

from __future__ import annotations

import numpy as np
import pytest

from tests import real_models


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(real_models, "MODELS", tmp_path / "models")
    return tmp_path / "models"


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_without_models_tests_skip(folder, monkeypatch, ci):
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    assert real_models.absent() == f"{folder} is missing"
    folder.mkdir()
    assert real_models.absent() == ""
    assert real_models.absent("mnist8") == f"{folder / 'mnist8.onnx'} is missing"


@pytest.mark.parametrize("name", ["", "mnist8"])
def test_in_ci_missing_models_are_an_error(folder, monkeypatch, name):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(FileNotFoundError, match="is missing: tests want it wherever CI=true"):
        real_models.absent(name)
    folder.mkdir()
    (folder / "mnist8.onnx").touch()
    assert real_models.absent(name) == ""


def test_a_model_without_golden_runs_is_an_error(folder):
    """A test of all runs would assert nothing."""
    (folder / "golden").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="has no run of mnist8"):
        real_models.goldens("mnist8")
    np.savez(folder / "golden" / "mnist8.0.npz", **{"in0:x:y": np.ones(2), "out0:z": np.zeros(3)})
    ((feeds, outputs),) = real_models.goldens("mnist8")
    assert list(feeds) == ["x:y"] and list(outputs) == ["z"]
