"""onnx's backend tests, as `benchmarks/onnx_node_tests.py` runs them, against `conformance`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import jitcl
from tests import conformance, devices

NODE_DEVICES = ("cpu", "opencl:pocl", "opencl:intel")
OF_NODE_TESTS = {"opencl:pocl": 8, "opencl:intel": 4}      # slow tests run every n-th on these
SUITES = ("simple", "light", "pytorch-converted", "pytorch-operator")


def outcomes(kind: str, names: list[str], device: str, limit_s: float = 120) -> dict[str, Any]:
    devices.opened(device)
    found: dict[str, Any] = conformance.runner().run_all(names, device, 1, limit_s, kind)
    return found


def assert_as_expected(results: dict[str, Any], device: str) -> None:
    """Only excused tests fail, by another result and no error; and none that is excused passes."""
    passed = conformance.runner().PASSED
    failed = {n: f"{r['outcome']}: {r['detail'][:300]}" for n, r in results.items()
              if r["outcome"] not in passed}
    excused = conformance.excused(device)
    assert {n: d for n, d in failed.items()
            if n not in excused or not d.startswith("wrong: ")} == {}
    unexpected = [n for n in excused if n in results and n not in failed]
    assert [n for n in unexpected if n not in conformance.RANDOM] == []


def node_tests() -> list[str]:
    return sorted(conformance.runner().cases("node"))


@pytest.mark.slow
def test_expectations_leave_enough() -> None:
    """Passing all but the excused is passing the floor; excuses are for tests that exist."""
    names = node_tests()
    assert [n for n in conformance.MAY_FAIL if n not in names] == []
    for device in NODE_DEVICES:
        assert len(names) - len(conformance.excused(device)) >= conformance.FLOOR


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("name", ["test_dft_inverse", "test_dft_inverse_opset19"])
def test_expectation_of_inverse_dft_is_off(name: str) -> None:
    """The proof for the excuse: NumPy's transform in float64 does not meet it either."""
    case = conformance.runner().cases("node")[name]
    (((x, *_), (want,)),) = case.data_sets
    found = np.fft.ifft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
    error = np.abs(np.stack([found.real, found.imag], -1) - want)
    assert (error > case.atol + case.rtol * np.abs(want)).sum() >= 10


@pytest.mark.parametrize("name", sorted(conformance.RANDOM))
def test_expectation_of_bernoulli_is_a_draw_of_another_generator(name: str) -> None:
    """The first proof for the excuse: it is what NumPy's generator gives behind the drawing of the
    input, a state that no model names; a fresh generator, of the same seed, gives others.
    """
    case = conformance.runner().cases("node")[name]
    (((x,), (want,)),) = case.data_sets
    generator = np.random.RandomState(0)
    np.testing.assert_array_equal(generator.uniform(0, 1, 10).astype(x.dtype), x)
    np.testing.assert_array_equal(generator.binomial(1, p=x), want)
    assert (np.random.RandomState(0).binomial(1, p=x) != want).any()


@pytest.mark.slow
@pytest.mark.parametrize("device", NODE_DEVICES)
@pytest.mark.parametrize("name", sorted(conformance.RANDOM))
def test_bernoulli_is_right_where_its_expectation_says_nothing(name: str, device: str) -> None:
    """The second: over many copies of the test's input the mean is the probability, of the expanded
    forms (random > x) the other event's.
    """
    devices.opened(device)
    case, copies = conformance.runner().cases("node")[name], 20_000
    (((x,), (want,)),) = case.data_sets
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = x.size * copies
    (y,) = jitcl.compile(model, device=device).run({"x": np.tile(x, copies)}).values()
    assert y.dtype == want.dtype and set(np.unique(y)) == {0, 1}
    p = (1 - x if name.endswith("expanded") else x).astype(np.float64)
    mean = y.reshape(copies, x.size).mean(0)
    assert (np.abs(mean - p) < 5 * np.sqrt(p * (1 - p) / copies)).all()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("device", "every"), [
    *(pytest.param(d, OF_NODE_TESTS.get(d, 1), marks=pytest.mark.slow) for d in NODE_DEVICES),
    *(pytest.param(d, 1, marks=pytest.mark.long) for d in OF_NODE_TESTS)])
def test_node_tests(device: str, every: int) -> None:
    """On numbers, 95 % and more run the op under test in generated kernels alone. OpenCL's
    drivers have a part of them, PoCL's with its slow compiler the least, and all on request."""
    results = outcomes("node", node_tests()[::every], device)
    assert_as_expected(results, device)
    could = [r["outcome"] for r in results.values()
             if r["outcome"] in conformance.runner().PASSED and not r["on_values"]]
    assert could.count("kernel") >= 0.95 * len(could), conformance.runner().summary(results, device)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", SUITES)
def test_other_suites(kind: str) -> None:
    """All of them pass, without exception."""
    results = outcomes(kind, sorted(conformance.runner().cases(kind)), "cpu", 300)
    passed = conformance.runner().PASSED
    assert {n: r for n, r in results.items() if r["outcome"] not in passed} == {}


def test_a_few_of_other_suites() -> None:
    names = sorted(conformance.runner().cases("pytorch-operator"))[::6]
    results = outcomes("pytorch-operator", names, "cpu")
    assert {r["outcome"] for r in results.values()} <= {"kernel", "folded"}
