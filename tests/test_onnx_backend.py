"""jitcl.onnx_backend: onnx's backend interface. All of onnx's backend tests go through it in
test_onnx_conformance.py; here onnx's own runner does what it does with a backend.
"""

from __future__ import annotations

import functools
import re
import unittest
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend
from onnx.backend.test import BackendTest
from onnx.backend.test.runner import Runner

import jitcl
from jitcl import onnx_backend
from tests import conformance, devices

# Sequences with a scalar in them: onnx's runner asks for len() of each (conformance compares them)
SCALARS = {"test_loop16_seq_none"}


@functools.cache
def suite() -> dict[str, type[unittest.TestCase]]:
    """All tests of onnx's runner by category, but those that fetch models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases: dict[str, type[unittest.TestCase]] = BackendTest(onnx_backend, __name__).test_cases
    return cases


def names(category: str) -> list[str]:
    found = [n for n in dir(suite()[category]) if re.fullmatch(r"test_\w+_cpu", n)]
    return [n for n in found if n.removesuffix("_cpu") not in {*conformance.MAY_FAIL, *SCALARS}]


def by_onnx(category: str, chosen: list[str]) -> None:
    """Run with onnx's runner: none fails, and none is skipped as incompatible."""
    result, tests = unittest.TestResult(), unittest.TestSuite(map(suite()[category], chosen))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tests.run(result)
    assert [(str(t), text[-500:]) for t, text in result.failures + result.errors] == []
    assert result.testsRun == len(chosen) > 0
    assert result.skipped == []


@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize(("category", "step"), [
    ("OnnxBackendNodeModelTest", 300), ("OnnxBackendSimpleModelTest", 12),
    ("OnnxBackendPyTorchConvertedModelTest", 16), ("OnnxBackendPyTorchOperatorModelTest", 8)])
def test_a_sample_by_onnx_s_own_runner(category, step):
    by_onnx(category, names(category)[3::step])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("category", [
    "OnnxBackendNodeModelTest", "OnnxBackendSimpleModelTest",
    "OnnxBackendPyTorchConvertedModelTest", "OnnxBackendPyTorchOperatorModelTest"])
def test_all_by_onnx_s_own_runner(category):
    by_onnx(category, names(category))


def test_onnx_s_runner_has_the_tests_that_conformance_runs():
    """So that what runs there is the whole suite: none is only here."""
    kinds = {"Node": "node", "Simple": "simple", "PyTorchConverted": "pytorch-converted",
             "PyTorchOperator": "pytorch-operator"}
    for category, kind in kinds.items():
        here = {n.removesuffix("_cpu") for n in dir(suite()[f"OnnxBackend{category}ModelTest"])
                if n.endswith("_cpu")}
        assert here == set(conformance.runner().cases(kind)), kind


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_onnx_s_runner_can_t_compare_sequences_of_scalars(name):
    """The proof: it can't compare the expectation with itself."""
    case = conformance.runner().cases("node")[name]
    (wanted,) = [case.data_sets[0][1]]
    assert any(np.ndim(x) == 0 for x in wanted[0])
    with pytest.raises(TypeError, match="Unable to compare"):
        Runner.assert_similar_outputs(wanted, wanted, 1e-3, 1e-7)


def test_other_devices_of_the_suite_are_skipped():
    result = unittest.TestResult()
    unittest.TestSuite([suite()["OnnxBackendNodeModelTest"]("test_abs_cuda")]).run(result)
    assert [why for _, why in result.skipped] == ["Backend doesn't support device CUDA"]


# ---- the interface


def doubled(dims: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["0"]), helper.make_node("Mul", ["x", "w"], ["m"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims),
              helper.make_tensor_value_info("w", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in ("0", "m")],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("device", ["CPU", "CPU:0", "cpu", "REFERENCE", "OPENCL:POCL",
                                    "OPENCL:Intel"])
def test_models_run_by_position_by_name_and_alone(device):
    spec = device.lower()
    if spec.startswith("opencl") and spec not in devices.present():
        assert not onnx_backend.supports_device(device)
        devices.opened(spec)
    assert onnx_backend.supports_device(device)
    x = np.arange(4, dtype=np.float32)
    prepared = onnx_backend.prepare(doubled([4]), device)
    for inputs in ([x], (x,), {"x": x}, x):
        found = prepared.run(inputs)
        assert isinstance(found, tuple)
        np.testing.assert_array_equal(found[0], 2 * x)
        np.testing.assert_array_equal(found["m"], 3 * x)    # "0" is no name of Python's
        assert found["0"] is found[0]
    found = prepared.run({"x": x, "w": np.float32([5])})
    np.testing.assert_array_equal(found["m"], 5 * x)
    np.testing.assert_array_equal(onnx_backend.run_model(doubled([4]), [x], device)[0], 2 * x)


@pytest.mark.parametrize("device", ["CUDA", "CUDA:1", "OPENCL:no-such-driver", "OPENCL:9", "NPU",
                                    "OPENCL:0:0:0", ""])
def test_devices_that_are_not_there(device):
    assert not onnx_backend.supports_device(device)
    with pytest.raises(jitcl.DeviceError, match="device"):
        onnx_backend.prepare(doubled([4]), device)


def test_the_class_and_the_module_are_one_backend():
    assert issubclass(onnx_backend.JitclBackend, Backend)
    for name in ("is_compatible", "prepare", "run_model", "run_node", "supports_device"):
        assert getattr(onnx_backend, name) == getattr(onnx_backend.JitclBackend, name)


def test_nodes_run():
    x, y = np.float32([[1, 2]]), np.float32([[3], [4]])
    node = helper.make_node("Add", ["x", "y"], ["z"])
    want = [(np.float32, (2, 2))]
    np.testing.assert_array_equal(onnx_backend.run_node(node, [x, y], "CPU", want)[0], x + y)
    np.testing.assert_array_equal(onnx_backend.run_node(node, {"y": y, "x": x})["z"], x + y)
    with pytest.raises(jitcl.InputError, match=r"'z' of Add is float32\[2, 2\], outputs_info says "
                                               r"float64\[2, 2\]"):
        onnx_backend.run_node(node, [x, y], "CPU", [(np.float64, (2, 2))])
    clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    (found,) = onnx_backend.run_node(clip, [x, None, np.float32(1.5)])
    np.testing.assert_array_equal(found, [[1, 1.5]])
    old = helper.make_node("Clip", ["x"], ["y"], min=1.5)       # an attribute until opset 10
    np.testing.assert_array_equal(onnx_backend.run_node(old, [x], opset_version=9)[0], [[1.5, 2]])
    at = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    np.testing.assert_array_equal(onnx_backend.run_node(at, [[x, y], np.int64(1)])[0], y)
    binarise = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=1.5)
    np.testing.assert_array_equal(onnx_backend.run_node(binarise, [x])[0], [[0, 1]])


def test_mistakes_are_told():
    x, prepared = np.zeros(4, np.float32), onnx_backend.prepare(doubled(["n"]))
    with pytest.raises(jitcl.InputError, match="2 inputs were passed to a model that takes 1: x"):
        prepared.run([x, x])
    with pytest.raises(jitcl.InputError, match="was not fed"):
        prepared.run([None])
    with pytest.raises(jitcl.OptionError, match=r"prepare\(\) has no option 'threads'"):
        onnx_backend.prepare(doubled([4]), threads=3)
    with pytest.raises(jitcl.OptionError, match="tuning=.fast."):    # as compile says it
        onnx_backend.prepare(doubled([4]), tuning="fast")
    with pytest.raises(jitcl.OptionError, match=r"run\(\) has no option 'rtol'"):
        prepared.run([x], rtol=1)
    node = helper.make_node("Neg", ["x"], ["y"])
    with pytest.raises(jitcl.InputError, match="2 inputs were passed to a node that names 1: x"):
        onnx_backend.run_node(node, [x, x])
    with pytest.raises(jitcl.InputError, match="an empty sequence"):
        onnx_backend.run_node(helper.make_node("SequenceLength", ["s"], ["n"]), [[]])


def test_what_can_t_be_compiled_is_not_compatible():
    model = doubled([4])
    assert onnx_backend.is_compatible(model)
    model.graph.node[0].domain = "my.ops"
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    assert not onnx_backend.is_compatible(model)
    with pytest.raises(jitcl.UnsupportedError, match=r"my\.ops"):
        onnx_backend.prepare(model)
