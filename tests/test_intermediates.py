"""`Model.run(feeds, intermediates=[..])`: inner tensors under their ONNX names."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jitcl
from jitcl.errors import InputError, UnsupportedError
from tests.devices import present

F = TensorProto.FLOAT


def network(seed: int = 0):
    """conv, relu, conv, mean, an If, and one node whose two outputs nobody needs both of."""
    rng = np.random.default_rng(seed)
    weights = {"w1": rng.standard_normal((4, 3, 3, 3)), "w2": rng.standard_normal((4, 4, 1, 1))}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "conv2"),
        helper.make_node("Split", ["c"], ["top", "bottom"], "split", axis=2, num_outputs=2),
        helper.make_node("Sub", ["top", "bottom"], ["y"], "sub"),
        helper.make_node("Sqrt", ["b"], ["unread"], "unread_sqrt"),
    ]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", F, [1, 3, 6, 5])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def picture(seed: int = 1):
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 6, 5)).astype(np.float32)}


def wanted(model, feeds, names):
    found = ReferenceEvaluator(model).run(None, feeds, intermediate=True)
    return {n: found[n] for n in names}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", present())
def test_inner_tensors_come_under_their_names(device):
    model = network()
    got = jitcl.compile(model, device=device).run(
        picture(), intermediates=["b", "conv2", "split", "unread", "y"])
    names = ["y", "b", "c", "top", "bottom", "unread"]
    assert got.keys() == {*names} and next(iter(got)) == "y"
    for name, want in wanted(model, picture(), names).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5)


def test_a_model_keeps_its_plan():
    """The run with inner tensors neither changes nor compiles anew what runs without them."""
    model = jitcl.compile(network(), device="cpu")
    plan, before = model.plan, model.run(picture())
    model.run(picture(), intermediates=["a"])
    assert model.plan is plan
    after = model.run(picture(), intermediates=[])
    assert after.keys() == {"y"}
    np.testing.assert_array_equal(after["y"], before["y"])


def test_what_was_asked_once_is_not_compiled_again():
    model = jitcl.compile(network(), device="cpu")
    model.run(picture(), intermediates=["a", "relu1"])
    inner, = model._inner._kept.values()
    plan = inner.plan
    model.run(picture(2), intermediates=("relu1", "a"))
    model.run(picture(2), intermediates=frozenset(("a", "relu1")))
    assert list(model._inner._kept.values()) == [inner] and inner.plan is plan is not None


def test_dtypes_are_the_models_at_low_precision():
    got = jitcl.compile(network(), device="reference", precision="low").run(
        picture(), intermediates=["a"])
    assert got["a"].dtype == got["y"].dtype == np.float32
    want = wanted(network(), picture(), ["a"])["a"]
    assert not np.array_equal(got["a"], want)
    np.testing.assert_allclose(got["a"], want, rtol=2e-2, atol=2e-2)


def test_of_a_program():
    """A model of several parts: the size of NonZero's result is data's to decide."""
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["a"], "abs"),
         helper.make_node("NonZero", ["a"], ["n"], "where"),
         helper.make_node("Cast", ["n"], ["f"], "cast", to=F),
         helper.make_node("Neg", ["f"], ["y"], "neg")], "g",
        [helper.make_tensor_value_info("x", F, [6])], [helper.make_tensor_value_info("y", F, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {"x": np.array([0, -2, 0, 3, 0, 1], np.float32)}
    got = jitcl.compile(model, device="cpu").run(feeds, intermediates=["abs", "where"])
    np.testing.assert_array_equal(got["a"], np.abs(feeds["x"]))
    np.testing.assert_array_equal(got["n"], [[1, 3, 5]])
    np.testing.assert_array_equal(got["y"], [[-1, -3, -5]])


def with_body():
    then, other = (helper.make_graph(
        [helper.make_node(op, ["x"], [f"{op}_in"], f"{op}_node"),
         helper.make_node("Neg", [f"{op}_in"], [f"{op}_out"])],
        op, [], [helper.make_tensor_value_info(f"{op}_out", F, None)]) for op in ("Exp", "Abs"))
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)], "g",
        [helper.make_tensor_value_info("x", F, [2]),
         helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", F, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("asked", "says"), [
    (["conv3"], ["no inner tensor and no node 'conv3'", "'conv2'", "'conv1'"]),
    (["a", "botom"], ["'botom'", "'bottom'"]),
    (["x"], ["'x': it is an input"]),
    (["w1"], ["'w1': it is a stored constant"]),
    ("conv1", ["got 'conv1', wanted a list of names"]),
    ([7], ["got 7 in the list"]),
    (None, ["got None, wanted a list"]),
])
def test_what_is_no_inner_tensor(asked, says):
    model = jitcl.compile(network(), device="reference")
    with pytest.raises(InputError) as error:
        model.run(picture(), intermediates=asked)
    assert all(text in str(error.value) for text in says)
    assert model.run(picture()).keys() == {"y"}


@pytest.mark.parametrize("name", ["Exp_in", "Abs_node"])
def test_inside_a_body(name):
    model = jitcl.compile(with_body(), device="reference")
    with pytest.raises(InputError, match=rf"'{name}': it is inside the body of 'choice' \(If\)\n"
                                         r"  Ask for what that node gives: y"):
        model.run({"x": np.ones(2, np.float32), "c": np.array(True)}, intermediates=[name])


def test_a_text_graph_has_no_names():
    graph = jitcl.parse("graph @g(%x: f32[2]) {\n  %1 = exp(%x)\n  %y = neg(%1)\n  return %y\n}")
    model = jitcl.compile(graph, device="reference")
    with pytest.raises(UnsupportedError, match="'g' keeps no names of inner tensors"):
        model.run({"x": np.ones(2, np.float32)}, intermediates=["1"])
