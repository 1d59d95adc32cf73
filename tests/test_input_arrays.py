"""`Model.input_arrays`: arrays that a run of the CPU reads where they are, and others copy."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl import config
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import GraphBuilder
from tests.devices import present

SHAPE = (3, 4)
A, B = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)


def difference(*shape, device="cpu", dtype="f32"):
    """y = a - b."""
    g = GraphBuilder()
    a, b = (graph_input(n, TensorType(dtype, shape or SHAPE)) for n in "ab")
    return jitcl.compile(Graph("difference", (a, b), (("y", g.sub(a, b)),)), device=device)


def filled(model, a=A, b=B, shapes=None):
    arrays = model.input_arrays(shapes)
    arrays["a"][...], arrays["b"][...] = a, b
    return arrays


def copies(model):
    """What the executable holds of its inputs."""
    return [view.copy() for view in model.last.executable._inputs]


@pytest.mark.parametrize("device", present())
def test_a_run_reads_them_where_they_are(device):
    """On the CPU its own memory stays as it was; results are those of any other arrays."""
    model = difference(device=device)
    arrays = filled(model)
    assert all(x.shape == SHAPE and x.dtype == np.float32 for x in arrays.values())
    if device != "cpu":
        np.testing.assert_array_equal(model.run(arrays)["y"], A - B)
        return
    model.run({"a": B, "b": B})
    np.testing.assert_array_equal(model.run(arrays)["y"], A - B)
    np.testing.assert_array_equal(copies(model), [B, B])
    arrays["a"] += 1
    np.testing.assert_array_equal(model.run(arrays)["y"], A + 1 - B)
    np.testing.assert_array_equal(model(arrays["b"], arrays["a"])["y"], B - (A + 1))


def test_they_are_zeros_at_first():
    model = difference()
    assert not any(x.any() for x in model.input_arrays().values())


def test_sets_of_them_and_other_arrays_take_turns():
    """As frames do that are filled while another is computed."""
    model = difference()
    one, two = filled(model), filled(model, B, 2 * A)
    for _ in range(2):
        np.testing.assert_array_equal(model.run(one)["y"], A - B)
        np.testing.assert_array_equal(model.run(two)["y"], B - 2 * A)
        np.testing.assert_array_equal(model.run({"a": 3 * A, "b": A})["y"], 3 * A - A)
        np.testing.assert_array_equal(model.run({"a": one["a"], "b": A})["y"], A - A)


def test_one_array_may_be_fed_twice():
    model = difference()
    arrays = filled(model)
    assert not model.run({"a": arrays["a"], "b": arrays["a"]})["y"].any()


def test_results_are_not_theirs():
    """Not even where the model hands an input through: that one is copied."""
    x = graph_input("x", TensorType("f32", SHAPE))
    model = jitcl.compile(Graph("same", (x,), (("y", x),)), device="cpu")
    arrays = model.input_arrays()
    arrays["x"][...] = A
    y = model.run(arrays)["y"]
    arrays["x"][...] = B
    np.testing.assert_array_equal(y, A)


def test_whole_numbers_are_copied():
    """They may be indices, which no other thread may change once they were checked."""
    model = difference(dtype="i32")
    arrays = filled(model, np.int32(7) * np.ones(SHAPE, np.int32), np.arange(12).reshape(SHAPE))
    np.testing.assert_array_equal(model.run(arrays)["y"], 7 - np.arange(12).reshape(SHAPE))
    assert model.last.executable.lend() == {}
    np.testing.assert_array_equal(copies(model)[0], np.full(SHAPE, 7))


@pytest.mark.parametrize("changed", [
    lambda x: np.asfortranarray(x), lambda x: x[:], lambda x: x.copy(),
    lambda x: np.lib.stride_tricks.as_strided(x)])
def test_arrays_made_of_them_are_copied(changed):
    model = difference(4, 4)
    arrays = filled(model, np.tri(4), np.eye(4))
    arrays["a"] = changed(arrays["a"])
    np.testing.assert_array_equal(model.run(arrays)["y"], np.tri(4) - np.eye(4))
    assert model.last.executable._reads[0] is None


@pytest.mark.filterwarnings("ignore:Setting the strides:DeprecationWarning")
@pytest.mark.parametrize("used_before", [False, True])
def test_strides_that_were_set_are_followed(used_before):
    model = difference(4, 4)
    arrays = filled(model, np.tri(4), np.zeros((4, 4)))
    if used_before:
        model.run(arrays)
    arrays["a"].strides = arrays["a"].strides[::-1]
    np.testing.assert_array_equal(model.run(arrays)["y"], np.tri(4).T)


def test_a_wrong_shape_is_refused_as_ever():
    model = difference()
    arrays = filled(model)
    model.run(arrays)
    arrays["a"].shape = (4, 3)
    with pytest.raises(jitcl.InputError, match=r"axis 0 is 4, wanted 3"):
        model.run(arrays)


def test_they_outlive_the_model_and_the_model_them():
    model = difference()
    arrays = filled(model)
    model.run(arrays)
    gone = weakref.ref(arrays["a"])
    del arrays
    np.testing.assert_array_equal(model.run({"a": B, "b": A})["y"], B - A)
    gc.collect()
    assert gone() is None
    kept = filled(model)
    model.run(kept)
    del model
    gc.collect()
    np.testing.assert_array_equal(kept["a"], A)


def test_threads_with_arrays_of_their_own_do_not_meet():
    model = difference(64, 64)
    wrong = []

    def work(k):
        arrays = filled(model, k, 0)
        for n in range(50):
            arrays["a"] += 1
            y = model.run(arrays)["y"]
            if not (y == k + n + 1).all():
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_other_shapes_and_forgotten_ones_copy():
    """Arrays of a specialisation that was dropped meanwhile are arrays like any other."""
    model = difference(Sym("rows"), 4)
    with config.override(specialisations=1):
        arrays = filled(model, shapes={"a": SHAPE, "b": SHAPE})
        np.testing.assert_array_equal(model.run(arrays)["y"], A - B)
        other = filled(model, A[:2], B[:2], {"a": (2, 4), "b": (2, 4)})
        np.testing.assert_array_equal(model.run(other)["y"], A[:2] - B[:2])
        np.testing.assert_array_equal(model.run(arrays)["y"], A - B)


@pytest.mark.parametrize(("shapes", "said"), [
    (None, "input_arrays: the model leaves the shape of 'a' f32[rows,4], 'b' f32[rows,4] open\n"
           "  Pass shapes={name: shape}."),
    ({"a": (2, 4)}, "input_arrays: the model leaves the shape of 'b' f32[rows,4] open\n"
                    "  Pass shapes={name: shape}."),
    ({"a": (2, 4), "c": (2, 4)}, "shapes: there is no input 'c'; the inputs are a, b"),
    ({"a": (2, 4), "b": (2, 5)}, "shapes: axis 1 of input 'b' f32[rows,4] is 5, the model says 4"),
])
def test_shapes_that_are_not_known(shapes, said):
    with pytest.raises(jitcl.InputError) as caught:
        difference(Sym("rows"), 4).input_arrays(shapes)
    assert str(caught.value) == said


def test_where_a_value_decides_shapes_they_are_copied():
    floats = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", "n"])
    model = jitcl.compile(helper.make_model(helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", [floats, shape], [y])),
                          device="cpu")
    arrays = model.input_arrays()
    arrays["x"][...], arrays["shape"][...] = A, (2, 6)
    np.testing.assert_array_equal(model.run(arrays)["y"], A.reshape(2, 6))
    arrays["shape"][...] = 6, 2
    np.testing.assert_array_equal(model.run(arrays)["y"], A.reshape(6, 2))


def test_what_is_no_array_is_said_to_be_none():
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    n = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    model = jitcl.compile(helper.make_model(helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])], "g", [s], [n])), device="cpu")
    with pytest.raises(jitcl.InputError) as caught:
        model.input_arrays()
    assert str(caught.value) == ("input_arrays: input 's' sequence of f32[...] is no array: "
                                 "feed it to run() as it is")
