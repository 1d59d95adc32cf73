"""Attributes: every value that the text of any opset allows, at every opset, gives what onnxruntime
or ONNX's reference give, or a JitclError. benchmarks/attribute_values.py prints them all."""

from __future__ import annotations

import collections
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jitcl.errors import ModelError, ShapeError
from tests.one_node import Feeds, by_jitcl, by_onnxruntime, one_node

pytest.importorskip("onnxruntime", reason="compares with onnxruntime")


def script() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "attribute_values.py"
    spec = importlib.util.spec_from_file_location("attribute_values", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attribute_values"] = module
    spec.loader.exec_module(module)
    return module


def tried(ops: list[str]) -> collections.Counter[str]:
    """How often each outcome came; none of them may be bad."""
    run, counts, bad = script(), collections.Counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in run.trials(ops):
            what, why = run.outcome(trial)
            counts[what] += 1
            if what in run.BAD:
                bad.append(f"{what} {trial}: {why}")
    assert bad == []
    return counts


@pytest.mark.slow
def test_values_of_all_ops() -> None:
    counts = tried([])
    assert counts["same"] > 4600 and counts["refused"] < 220


@pytest.mark.parametrize("size, kernel, stride, dilation", [
    (4, 3, 2, 2), (5, 3, 3, 3), (4, 3, 2, 1), (6, 5, 4, 3)])
def test_a_dilated_window_that_reaches_out(size: int, kernel: int, stride: int, dilation: int
                                           ) -> None:
    """One window, of which a part lies outside: cutting it must not make room for a second."""
    feeds: Feeds = {"x": np.arange(size, dtype=np.float32).reshape(1, 1, size)}
    model = one_node("MaxPool", feeds, kernel_shape=[kernel], strides=[stride], ceil_mode=1,
                     dilations=[dilation])
    (want,) = by_onnxruntime(model, feeds)
    np.testing.assert_array_equal(by_jitcl(model, feeds)[0], want)
    folded = one_node("MaxPool", feeds, constants=("x",), kernel_shape=[kernel], strides=[stride],
                      ceil_mode=1, dilations=[dilation])
    np.testing.assert_array_equal(by_jitcl(folded, feeds)[0], want)


@pytest.mark.parametrize("op, attrs, outputs, text", [
    ("ReverseSequence", {"batch_axis": 1, "time_axis": 1}, 1, "must be two axes of f32"),
    ("Split", {"num_outputs": 2}, 3, "num_outputs is 2, but it has 3 outputs"),
    ("Split", {"split": [2, 2], "opset": 11}, 3, "has 3 outputs and makes 2 parts")])
def test_attributes_that_contradict(op: str, attrs: dict[str, Any], outputs: int, text: str
                                    ) -> None:
    feeds: Feeds = {"x": np.ones((4, 4), np.float32)}
    if op == "ReverseSequence":
        feeds["lengths"] = np.full(4, 2, np.int64)
    with pytest.raises((ShapeError, ModelError), match=text):
        by_jitcl(one_node(op, feeds, outputs, result=1, **attrs), feeds)
