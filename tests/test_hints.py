"""What a model says of shapes but does not mean: names of dimensions, declared outputs and inner
values. onnxruntime runs such models, with a warning at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import jitcl
from tests.devices import opened, present
from tests.programs import by_onnxruntime

F32 = TensorProto.FLOAT


def model(nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, list[Any] | None],
          **inner: list[Any]) -> Any:
    def values(shapes: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, F32, s) for n, s in shapes.items()]
    return helper.make_model(helper.make_graph(
        nodes, "g", values(inputs), values(outputs), value_info=values(inner)),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def x(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


MATMUL = [helper.make_node("MatMul", ["a", "b"], ["y"])]
ADD = [helper.make_node("Add", ["a", "b"], ["y"])]


@pytest.mark.parametrize("device", present())
def test_two_inputs_of_one_name_for_a_dimension_differ(device: str) -> None:
    built = model(MATMUL, {"a": ["N", "N"], "b": ["N", "N"]}, {"y": ["N", "N"]})
    compiled = jitcl.compile(built, device=device)
    for m, k, n in ((2, 3, 4), (5, 5, 5), (3, 1, 7), (4, 6, 1)):
        feeds = {"a": x(m, k), "b": x(k, n)}
        (want,) = by_onnxruntime(built, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], want, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "opencl:pocl"])
@pytest.mark.parametrize("names", [("N", "N"), ("N", "N + 1"), ("N + M", "N + M"), ("?", "?")])
def test_plans_for_many_shapes_take_names_for_hints(names: tuple[str, str], device: str) -> None:
    """Equal at first, and while the plan for many is made, and not so later; and the other way
    round."""
    opened(device)
    a, b = names
    nodes = [helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
             helper.make_node("ReduceSum", ["c"], ["s"]),
             helper.make_node("Mul", ["c", "s"], ["y"])]
    built = model(nodes, {"a": [a], "b": [b]}, {"y": [a]})
    equal = [(n, n) for n in (3, 4, 6, 7)]
    apart = [(n, n + d) for n, d in ((3, 2), (9, 1), (5, -2), (6, 3), (2, 11))]
    for order in (equal + apart + equal, apart + equal + apart):
        compiled = jitcl.compile(built, device=device)
        for n, m in order:
            feeds = {"a": x(n), "b": x(m)}
            (want,) = by_onnxruntime(built, feeds)
            np.testing.assert_allclose(compiled.run(feeds)["y"], want, rtol=1e-4, atol=1e-5)
        assert compiled.last.sizes, "no plan for many shapes"


@pytest.mark.parametrize("device", present())
@pytest.mark.parametrize("declared", [["N", 5], [2, 2], ["N", "N"], ["N", 5, 1], []])
def test_a_declared_output_is_wrong(declared: list[Any], device: str) -> None:
    """onnxruntime warns of wrong sizes, and refuses a wrong rank when it infers the right one."""
    built = model(ADD, {"a": ["N", "M"], "b": ["N", "M"]}, {"y": declared})
    feeds = {"a": x(3, 7), "b": x(3, 7)}
    got = jitcl.compile(built, device=device).run(feeds)["y"]
    np.testing.assert_array_equal(got, feeds["a"] + feeds["b"])
    if len(declared) == 2:
        np.testing.assert_array_equal(by_onnxruntime(built, feeds)[0], got)


def test_a_declared_output_of_a_program_is_wrong() -> None:
    """Its length is what data says."""
    nodes = [helper.make_node("NonZero", ["a"], ["at"]),
             helper.make_node("Cast", ["at"], ["y"], to=F32)]
    built = model(nodes, {"a": [4]}, {"y": [1, 4]})
    for values in ([0, 1, 0, 2], [0, 0, 0, 0], [1, 1, 1, 1]):
        feeds = {"a": np.array(values, np.float32)}
        got = jitcl.compile(built, device="cpu").run(feeds)["y"]
        np.testing.assert_array_equal(got, by_onnxruntime(built, feeds)[0])


def test_declared_inner_values_are_wrong() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]),
             helper.make_node("Reshape", ["c", "s"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    built = model(nodes, {"a": ["N", 3], "b": [3, "M"]}, {"y": [None]}, c=["N", 9], r=[4])
    built.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, [1], [-1]))
    feeds = {"a": x(2, 3), "b": x(3, 4)}
    got = jitcl.compile(built, device="cpu").run(feeds)["y"]
    np.testing.assert_allclose(got, np.maximum(feeds["a"] @ feeds["b"], 0).ravel(), atol=1e-6)


def test_shapes_to_compile_for_may_differ_under_one_name() -> None:
    built = model(MATMUL, {"a": ["N", "N"], "b": ["N", "N"]}, {"y": ["N", "N"]})
    bound = jitcl.compile(built, device="cpu").bind({"a": (2, 3), "b": (3, 5)})
    bound.inputs["a"][...], bound.inputs["b"][...] = x(2, 3), x(3, 5)
    np.testing.assert_allclose(bound.run()["y"], x(2, 3) @ x(3, 5), atol=1e-5)
