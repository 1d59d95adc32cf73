"""`Model.bind`: arrays that runs of the CPU read and write where they are, and others copy."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl import config
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import GraphBuilder
from tests.devices import opened, present
from tests.test_interrupted import TEXT, WIDTH, W

SHAPE = (3, 4)
A, B = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)


def difference(*shape, device="cpu", dtype="f32"):
    """y = a - b."""
    g = GraphBuilder()
    a, b = (graph_input(n, TensorType(dtype, shape or SHAPE)) for n in "ab")
    return jitcl.compile(Graph("difference", (a, b), (("y", g.sub(a, b)),)), device=device)


def filled(model, a=A, b=B, shapes=None):
    bound = model.bind(shapes)
    bound.inputs["a"][...], bound.inputs["b"][...] = a, b
    return bound


def of_onnx(nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return jitcl.compile(helper.make_model(graph), device="cpu")


def floats(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def copies(model):
    """What the executable holds of its inputs."""
    return [view.copy() for view in model.last.executable._inputs]


@pytest.mark.parametrize("device", present())
def test_a_run_on_arrays_that_stay(device):
    """Where it works in place they are the same at every run, and its own memory stays as it was.
    """
    model = difference(device=device)
    bound = filled(model)
    model.run({"a": B, "b": B})
    assert bound.run() is bound.outputs
    np.testing.assert_array_equal(bound.outputs["y"], A - B)
    first = bound.outputs["y"]
    bound.inputs["a"] += 1
    np.testing.assert_array_equal(bound.run()["y"], A + 1 - B)
    memory = opened(device).target.device_type                # of a CPU: the arrays are the buffers
    assert bound.in_place is (device != "reference" and memory == "cpu")
    if bound.in_place:
        assert bound.outputs["y"] is first
    if device == "cpu":
        np.testing.assert_array_equal(copies(model), [B, B])


def test_all_are_zeros_at_first():
    bound = difference().bind()
    assert {n: (x.shape, x.dtype, x.any()) for n, x in {**bound.inputs, **bound.outputs}.items()
            } == dict.fromkeys("aby", (SHAPE, np.float32, False))
    assert repr(bound) == "<jitcl.Bound difference on cpu: 'a' float32[3, 4], 'b' float32[3, 4]>"


def test_to_assign_is_to_copy():
    """So that a slip does what was meant, and results may be fed back."""
    bound = difference().bind()
    array = bound.inputs["a"]
    bound.inputs["a"], bound.inputs["b"] = A, B
    assert bound.inputs["a"] is array
    np.testing.assert_array_equal(bound.run()["y"], A - B)
    bound.inputs["a"] = bound.outputs["y"]
    np.testing.assert_array_equal(bound.run()["y"], A - B - B)


@pytest.mark.parametrize(("name", "value", "said"), [
    ("c", A, "there is no input 'c'; bound are a, b"),
    ("a", A[:2], "input 'a' f32[3,4]: got float32[2, 4], bound is float32[3, 4]\n"
                 "  bind() once more for other shapes."),
    ("a", A.astype(float), "input 'a' f32[3,4]: got float64[3, 4], bound is float32[3, 4]\n"
                           "  bind() once more for other shapes."),
])
def test_what_does_not_fit_is_refused(name, value, said):
    bound = filled(difference())
    with pytest.raises(jitcl.InputError) as caught:
        bound.inputs[name] = value
    assert str(caught.value) == said
    np.testing.assert_array_equal(bound.run()["y"], A - B)


def test_outputs_are_for_reading():
    bound = difference().bind()
    with pytest.raises(TypeError):
        bound.outputs["y"] = A


def test_several_and_plain_runs_take_turns():
    """As frames do of which one is filled while another is computed."""
    model = difference()
    one, two = filled(model), filled(model, B, 2 * A)
    for _ in range(2):
        np.testing.assert_array_equal(one.run()["y"], A - B)
        np.testing.assert_array_equal(two.run()["y"], B - 2 * A)
        np.testing.assert_array_equal(model.run({"a": 3 * A, "b": A})["y"], 3 * A - A)
        np.testing.assert_array_equal(one.outputs["y"], A - B)
        np.testing.assert_array_equal(two.outputs["y"], B - 2 * A)


def test_an_input_that_is_an_output():
    """Its result is a copy, and so is a second result that is the first."""
    g = GraphBuilder()
    x = graph_input("x", TensorType("f32", SHAPE))
    z = g.neg(x)
    model = jitcl.compile(Graph("same", (x,), (("y", x), ("z", z), ("zz", z))), device="cpu")
    bound = model.bind()
    bound.inputs["x"] = A
    bound.run()
    bound.inputs["x"] = B
    for name, right in {"y": A, "z": -A, "zz": -A}.items():
        np.testing.assert_array_equal(bound.outputs[name], right)
    bound.outputs["z"][...] = 0
    np.testing.assert_array_equal(bound.outputs["zz"], -A)


def test_whole_numbers_are_copied():
    """They may be indices, which no other thread may change once they were checked."""
    model = difference(dtype="i32")
    bound = filled(model, 7, np.arange(12).reshape(SHAPE))
    np.testing.assert_array_equal(bound.run()["y"], 7 - np.arange(12).reshape(SHAPE))
    np.testing.assert_array_equal(copies(model)[0], np.full(SHAPE, 7))
    bound.inputs["b"] += 1
    np.testing.assert_array_equal(bound.run()["y"], 6 - np.arange(12).reshape(SHAPE))


@pytest.mark.filterwarnings("ignore:Setting the strides:DeprecationWarning")
@pytest.mark.parametrize("spoil", [
    lambda x: setattr(x, "strides", x.strides[::-1]), lambda x: setattr(x, "shape", 16),
    lambda x: x.setflags(write=False), lambda x: x.resize(10**6, refcheck=False)])
def test_nothing_done_to_an_array_moves_what_kernels_read(spoil):
    bound = filled(difference(4, 4), np.arange(16).reshape(4, 4), np.ones((4, 4)))
    for array in (bound.inputs["a"], bound.outputs["y"]):
        try:
            spoil(array)
        except ValueError as e:
            assert "does not own its data" in str(e)
    again = np.lib.stride_tricks.as_strided(bound.run()["y"], (16,), (4,))
    np.testing.assert_array_equal(again, np.arange(16) - 1)


def test_arrays_and_runs_outlive_the_model():
    model = difference()
    bound = filled(model)
    inputs, outputs, run = dict(bound.inputs), bound.outputs, bound.run
    del model, bound
    gc.collect()
    run()
    np.testing.assert_array_equal(outputs["y"], A - B)
    del run
    gc.collect()
    np.testing.assert_array_equal(inputs["a"] - inputs["b"], outputs["y"])


def test_threads_with_arrays_of_their_own_do_not_meet():
    model = difference(64, 64)
    wrong = []

    def work(k):
        bound = filled(model, k, 0)
        for n in range(50):
            bound.inputs["a"] += 1
            if not (bound.run()["y"] == k + n + 1).all():
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_runs_of_other_shapes_do_not_come_between(monkeypatch):
    """Of a plan for many, of which large shapes have other steps."""
    feeds = {n: {"x": np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32),
                 "w": W} for n in (900, 5)}
    with jitcl.compile(jitcl.parse(TEXT), device="cpu") as model:
        found = {n: model.run_specialised(fed) for n, fed in feeds.items()}
        executable = found[5][1].executable
        tables = type(executable.executable)._tables

        other = threading.Thread(target=model.computed_by, args=(found[900][1], feeds[900]))

        def meanwhile(*args):
            monkeypatch.undo()
            other.start()
            other.join(1)                               # it waits, where it may not come between
            return tables(*args)

        monkeypatch.setattr(type(executable.executable), "_tables", meanwhile)
        bound = executable.bind()
        other.join()
        for name, array in feeds[5].items():
            bound.inputs[name][...] = array
        bound.compute()
        assert np.array_equal(bound.outputs["y"], found[5][0]["y"])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_are_those_of_other_runs(threads):
    """Of a plan that is split among threads, with products and what follows them."""
    g = GraphBuilder()
    x = graph_input("x", TensorType("f32", (256, 128)))
    y = g.tanh(g.matmul(x, g.transpose(x, perm=(1, 0))))
    model = jitcl.compile(Graph("split", (x,), (("y", y),)), device="cpu")
    values = np.random.default_rng(1).standard_normal((256, 128), np.float32) / 8
    with config.override(threads=threads):
        bound = model.bind()
    bound.inputs["x"] = values
    assert bound.run()["y"].tobytes() == model.run({"x": values})["y"].tobytes()


def test_it_outlives_the_specialisation():
    """A model forgets shapes that it hasn't met for long; what is bound runs on."""
    model = difference(Sym("rows"), 4)
    with config.override(specialisations=1):
        bound = filled(model, shapes={"a": SHAPE, "b": SHAPE})
        other = filled(model, A[:2], B[:2], {"a": (2, 4), "b": (2, 4)})
        np.testing.assert_array_equal(other.run()["y"], A[:2] - B[:2])
        np.testing.assert_array_equal(bound.run()["y"], A - B)


@pytest.mark.parametrize(("shapes", "said"), [
    (None, "bind: the model leaves the shape of 'a' f32[rows,4], 'b' f32[rows,4] open\n"
           "  Pass shapes={name: shape}."),
    ({"a": (2, 4)}, "bind: the model leaves the shape of 'b' f32[rows,4] open\n"
                    "  Pass shapes={name: shape}."),
    ({"a": (2, 4), "c": (2, 4)}, "shapes: there is no input 'c'; the inputs are a, b"),
    ({"a": (2, 4), "b": (2, 5)}, "shapes: axis 1 of input 'b' f32[rows,4] is 5, the model says 4"),
])
def test_shapes_that_are_not_known(shapes, said):
    with pytest.raises(jitcl.InputError) as caught:
        difference(Sym("rows"), 4).bind(shapes)
    assert str(caught.value) == said


def test_where_a_value_decides_shapes_all_is_copied():
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    bound = of_onnx([helper.make_node("Reshape", ["x", "shape"], ["y"])],
                    [floats("x", SHAPE), shape], [floats("y", ["m", "n"])]).bind()
    assert not bound.in_place and not bound.outputs
    bound.inputs["x"], bound.inputs["shape"] = A, np.array([2, 6])
    np.testing.assert_array_equal(bound.run()["y"], A.reshape(2, 6))
    bound.inputs["shape"] = np.array([6, 2])
    np.testing.assert_array_equal(bound.run()["y"], A.reshape(6, 2))


def test_an_input_that_nothing_reads_can_be_filled():
    bound = of_onnx([helper.make_node("Neg", ["x"], ["y"])],
                    [floats("x", SHAPE), floats("unread", [2])], [floats("y", SHAPE)]).bind()
    bound.inputs["unread"][...], bound.inputs["x"] = 1, A
    np.testing.assert_array_equal(bound.run()["y"], -A)


def test_what_is_no_array_can_not_be_bound():
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    n = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    model = of_onnx([helper.make_node("SequenceLength", ["s"], ["n"])], [s], [n])
    with pytest.raises(jitcl.InputError) as caught:
        model.bind()
    assert str(caught.value) == ("bind: input 's' sequence of f32[...] is no array: "
                                 "feed it to run()")


@pytest.mark.parametrize("device", present())
def test_arrays_of_the_callers(device):
    """They are read as they are at each run, of models for one shape and for many."""
    a, b = np.array(A), np.array(B)
    fixed = difference(device=device).bind(inputs={"a": a, "b": b})
    g = GraphBuilder()
    x, y = (graph_input(n, TensorType("f32", (Sym("n"), 4))) for n in "ab")
    model = jitcl.compile(Graph("difference", (x, y), (("y", g.sub(x, y)),)), device=device)
    for rows in (2, 5, 7, 3):
        model.run({n: np.ones((rows, 4), np.float32) for n in "ab"})
    many = model.bind(inputs={"a": a, "b": b})
    for bound in (fixed, many):
        assert bound.inputs["a"] is a
        a[...] = A
        np.testing.assert_array_equal(bound.run()["y"], A - B)
        a[1, 2] = 50
        np.testing.assert_array_equal(bound.run()["y"], a - B)
    assert many.in_place == (device == "cpu")


@pytest.mark.parametrize(("array", "said"), [
    (A.astype(np.float64), r"input 'a' f32\[3,4\]: got float64\[3, 4\], wanted a contiguous array"),
    (A.T, "wanted a contiguous array"), (A[0], r"got float32\[4\]"), ([1.0], "got list"),
    (np.zeros((2, 4), np.float32), "the model says 3")])
def test_arrays_that_no_kernel_could_read(array, said):
    with pytest.raises(jitcl.InputError, match=said):
        difference().bind(inputs={"a": array})


@pytest.mark.parametrize(("inputs", "said"), [
    (3, "got int, wanted a dict"), ([A], "got list"), ({"c": A}, "no input 'c'; there are a, b")])
def test_what_names_no_arrays(inputs, said):
    with pytest.raises(jitcl.InputError, match=rf"bind\(inputs=\): .*{said}"):
        difference().bind(inputs=inputs)


# ---- arrays that lie on the device


@pytest.mark.parametrize("device", [d for d in present() if d.startswith("opencl")])
def test_what_is_on_the_device_is_read_and_left_there(device):
    """Inputs are tensors, a result is one, too, and is put into an input without the host."""
    model = difference(device=device)
    tensor = jitcl.DeviceTensor.zeros(np.float32, SHAPE, model)
    with model.bind(inputs={"a": tensor}, keep=["y"]) as bound:
        bound.inputs["b"][...] = B
        for k in range(1, 4):
            y = bound.run()["y"]
            assert isinstance(y, jitcl.DeviceTensor) and y.device == tensor.device
            np.testing.assert_allclose(y.numpy(), -k * B, rtol=1e-6)
            tensor.put(y, [(0, 0, y.nbytes)])
            tensor.settle()
        with pytest.raises(jitcl.BusyError, match="to be mapped for writing"):
            tensor.map().__enter__()
        with pytest.raises(jitcl.InputError, match="Write it there: `put`"):
            bound.inputs["a"] = A
        row = tensor.nbytes // SHAPE[0]
        tensor.put(A, [(row, 2 * row, row)])            # a row of the host's
        tensor.fill(0, row)
        tensor.settle()
        wanted = np.stack([0 * B[0], A[2], -3 * B[2]])
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(tensor.part(0, 2).numpy(), wanted[:2], rtol=1e-6)
        with pytest.raises(jitcl.InputError, match="a part begins at a multiple of"):
            tensor.part(1, 2)
        plain = model.run({"a": A, "b": B})["y"]        # kernels find the plan's own arrays again
        assert plain.tobytes() == (A - B).tobytes()
        np.testing.assert_allclose(bound.run()["y"].numpy(), wanted - B, rtol=1e-6)
    with tensor.map() as array:                         # nobody reads it any more
        array[...] = 0
    tensor.close()


@pytest.mark.parametrize("device", [d for d in present() if d.startswith("opencl")])
def test_results_that_are_kept_are_copied_together(device, monkeypatch):
    """One command puts rows of them all, evenly, into a tensor; others are put one by one."""
    cl = pytest.importorskip("pyopencl")
    g = GraphBuilder()
    x = graph_input("a", TensorType("f32", SHAPE))
    model = jitcl.compile(Graph("two", (x,), (("y", g.neg(x)), ("z", g.add(x, 1)))), device=device)
    given = jitcl.DeviceTensor.zeros(np.float32, SHAPE, model)
    tensor = jitcl.DeviceTensor.zeros(np.float32, (4, SHAPE[1]), model)
    given.put(A, [(0, 0, A.nbytes)])
    given.settle()
    copied, row = cl.enqueue_copy, A.nbytes // SHAPE[0]
    commands = []
    with model.bind(inputs={"a": given}, keep=["y", "z"]) as bound:
        found = bound.run()
        monkeypatch.setattr(cl, "enqueue_copy", lambda *a, **b: (commands.append(0),
                                                                 copied(*a, **b)))
        tensor.put_each([found["y"], found["z"]], 0, 2 * row, row, row)
        tensor.settle()
        assert len(commands) == 1
        wanted = np.stack([-A[1], 0 * A[0], A[1] + 1, 0 * A[0]])
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6)
        tensor.put_each([A, found["z"]], row, row, 2 * row, row)
        tensor.settle()
        wanted[1:3] = A[2], A[2] + 1
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6)
        commands.clear()
        tensor.put_each([found["y"], found["z"]], 0, 3 * row, row, row)     # the last row is cut
        tensor.settle()
        assert len(commands) == 2
        wanted[0], wanted[3] = -A[1], A[1] + 1
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-6)
    tensor.close()
    given.close()


def test_tensors_of_another_device_are_copied_each_run():
    spec = next((d for d in present() if d.startswith("opencl")), None)
    if spec is None:
        pytest.skip("there is no OpenCL driver")
    model = difference()
    tensor = jitcl.DeviceTensor.zeros(np.float32, SHAPE, opened(spec))
    with model.bind(inputs={"a": tensor}, keep=["y"]) as bound:
        bound.inputs["b"][...] = B
        assert bound.run()["y"].tobytes() == (-B).tobytes()
        tensor.put(A, [(0, 0, A.nbytes)])
        tensor.settle()
        assert bound.run()["y"].tobytes() == (A - B).tobytes()
    assert tensor.copies == {model.device.name: 2}
