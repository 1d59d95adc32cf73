"""onnxruntime's names over jitcl, beside the real onnxruntime: names, shapes, types, results, kinds
of errors; scripts with one line changed; what is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import runpy
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper

import jitcl
import jitcl.onnxruntime as ours
from jitcl import config
from jitcl.onnxruntime.described import NUMBER_OF, SHORT_OF, tensor_type
from tests import devices

ROOT = Path(__file__).resolve().parent.parent
SUPERRES = ROOT / "examples" / "superres-x3.onnx"
SCRIPTS = sorted((ROOT / "tests" / "onnxruntime_scripts").glob("*.py"))


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    real.set_default_logger_severity(3)


def info(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def plain() -> bytes:
    """Sizes by name and without one, an input with a default, an output without a shape."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Mul", ["z", "w"], ["u"])],
        "plain", [info("x", TensorProto.FLOAT, ["n", 3]), info("y", TensorProto.FLOAT, [None, 3]),
                  info("w", TensorProto.FLOAT, [3])],
        [info("u", TensorProto.FLOAT, None), info("z", TensorProto.FLOAT, ["n", 3])],
        initializer=[helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])],
        doc_string="of the graph")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
                              producer_name="hand", doc_string="of the model", domain="a.b",
                              model_version=7)
    helper.set_model_props(model, {"license": "none"})
    return model.SerializeToString()


def old() -> bytes:
    """Of the time when every initialiser had to be an input."""
    model = onnx.ModelProto.FromString(plain())
    model.ir_version, model.opset_import[0].version = 3, 8
    return model.SerializeToString()


def types() -> bytes:
    """Element types, a scalar, strings, a sequence."""
    kinds = [TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8,
             TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING]
    nodes = [helper.make_node("Identity", [f"x{k}"], [f"y{k}"]) for k in kinds]
    graph = helper.make_graph(
        [*nodes, helper.make_node("SequenceConstruct", ["f"], ["s"])], "types",
        [*(info(f"x{k}", k, ["n"]) for k in kinds), info("f", TensorProto.FLOAT, [])],
        [*(info(f"y{k}", k, ["n"]) for k in kinds),
         helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                             ir_version=8).SerializeToString()


def both(model: bytes | str, **kwargs: Any) -> tuple[Any, Any]:
    return (real.InferenceSession(model, providers=["CPUExecutionProvider"], **kwargs),
            ours.InferenceSession(model, providers=["CPUExecutionProvider"], **kwargs))


def args(found: Any) -> list[tuple[str, str, list[Any]]]:
    return [(a.name, a.type, a.shape) for a in found]


def caught(attempt: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as error:
        attempt()
    return error.value


# ---- scripts


def said(script: str, arguments: list[str], tmp_path: Path, monkeypatch: Any) -> str:
    path = tmp_path / "script.py"
    path.write_text(script)
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(path))
    return out.getvalue()


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_says_the_same_with_one_line_changed(path, tmp_path, monkeypatch):
    script = path.read_text()
    changed = script.replace("import onnxruntime as", "import jitcl.onnxruntime as")
    lines = zip(script.splitlines(), changed.splitlines())
    assert sum(a != b for a, b in lines) == 1
    wanted = said(script, [str(SUPERRES)], tmp_path, monkeypatch)
    assert said(changed, [str(SUPERRES)], tmp_path, monkeypatch) == wanted
    assert len(wanted) > 100


def test_there_are_three_scripts():
    assert len(SCRIPTS) == 3


# ---- what a model says of itself


@pytest.mark.parametrize("model", [plain, old, types], ids=lambda f: f.__name__)
def test_inputs_outputs_and_metadata_are_described_alike(model):
    theirs, mine = both(model())
    assert args(mine.get_inputs()) == args(theirs.get_inputs())
    assert args(mine.get_outputs()) == args(theirs.get_outputs())
    assert args(mine.get_overridable_initializers()) == args(theirs.get_overridable_initializers())
    for name in ("custom_metadata_map", "description", "domain", "graph_description", "graph_name",
                 "producer_name", "version"):
        assert getattr(mine.get_modelmeta(), name) == getattr(theirs.get_modelmeta(), name), name
    assert mine.get_providers() == theirs.get_providers() == ["CPUExecutionProvider"]


def test_element_types_have_onnx_s_numbers_and_names():
    for number, short in SHORT_OF.items():
        name = TensorProto.DataType.Name(number)
        spelled = tensor_type(short)[len("tensor("):-1]
        assert spelled.upper() == name, short
    assert len(NUMBER_OF) == len(SHORT_OF) == 24


def test_results_are_those_of_onnxruntime():
    theirs, mine = both(types())
    rng = np.random.default_rng(0)
    feeds = {f"x{k}": rng.integers(0, 2, 5).astype(helper.tensor_dtype_to_np_dtype(k))
             for k in (11, 10, 3, 2, 6, 7, 9)}
    feeds |= {"x8": np.array(["a", "", "c", "d", "e"], object), "f": np.array(3, np.float32)}
    wanted, found = theirs.run(None, feeds), mine.run(None, feeds)
    assert len(found) == len(wanted)
    for a, b in zip(found[:-1], wanted[:-1]):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    assert type(found[-1]) is type(wanted[-1]) is list and found[-1] == wanted[-1]
    (only,) = mine.run(["y7"], feeds)
    np.testing.assert_array_equal(only, feeds["x7"])
    assert len(mine.run([], feeds)) == len(wanted)


# ---- errors


def feeding(**kwargs: Any) -> Callable[[Any, Any], Any]:
    x = np.ones((2, 3), np.float32)
    given = {"x": x, "y": x} | kwargs
    feeds = {n: v for n, v in given.items() if v is not None}
    return lambda ort, session: session.run(None, feeds)


def terminated(ort: Any, session: Any) -> Any:
    options, x = ort.RunOptions(), np.ones((2, 3), np.float32)
    options.terminate = True
    return session.run(None, {"x": x, "y": x}, options)


def bound(ort: Any, session: Any, name: str = "", output: str = "", device: str = "cpu") -> Any:
    binding, x = session.io_binding(), np.ones((2, 3), np.float32)
    for known in ("x", "y"):
        binding.bind_cpu_input(known, x)
    if name:
        binding.bind_cpu_input(name, x)
    if output:
        binding.bind_output(output, device)
    return session.run_with_iobinding(binding)


MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    "dtype": feeding(x=np.ones((2, 3))),
    "rank": feeding(x=np.ones(3, np.float32)),
    "size": feeding(y=np.ones((2, 4), np.float32)),
    "unknown input": feeding(nope=np.ones(1, np.float32)),
    "missing input": feeding(y=None),
    "all missing": feeding(x=None, y=None),
    "no broadcast": feeding(y=np.ones((5, 3), np.float32)),
    "unknown output": lambda ort, s: s.run(["nope"], {"x": np.ones((2, 3), np.float32)} | {
        "y": np.ones((2, 3), np.float32)}),
    "terminate": terminated,
    "no file": lambda ort, s: ort.InferenceSession("/no/such.onnx"),
    "no protobuf": lambda ort, s: ort.InferenceSession(b"no model"),
    "a number": lambda ort, s: ort.InferenceSession(3),
    "a ModelProto": lambda ort, s: ort.InferenceSession(onnx.ModelProto()),
    "no such attribute": lambda ort, s: setattr(ort.SessionOptions(), "nope", 1),
    "attribute's type": lambda ort, s: setattr(ort.SessionOptions(), "intra_op_num_threads", "x"),
    "bound input": lambda ort, s: bound(ort, s, name="nope"),
    "bound output": lambda ort, s: bound(ort, s, output="nope"),
    "nothing bound": bound,
    "no such device": lambda ort, s: ort.OrtValue.ortvalue_from_numpy(
        np.ones(2, np.float32), "cuda"),
    "no config entry": lambda ort, s: ort.SessionOptions().get_session_config_entry("nope"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_errors_are_of_the_same_kind(what):
    theirs, mine = both(plain())
    wanted = caught(lambda: MISTAKES[what](real, theirs))
    found = caught(lambda: MISTAKES[what](ours, mine))
    if type(wanted).__module__ == "builtins":
        assert isinstance(found, type(wanted))
    else:
        state = ours.capi.onnxruntime_pybind11_state
        assert isinstance(found, getattr(state, type(wanted).__name__))
    if "attribute" not in what:
        assert isinstance(found, jitcl.JitclError)      # so that either is caught


def test_an_error_is_jitcl_s_own_as_well_and_says_what_to_do():
    _, mine = both(plain())
    error = caught(lambda: mine.run(None, {"x": np.ones((2, 3)), "y": np.ones((2, 3), "f")}))
    assert isinstance(error, jitcl.InputError)
    assert str(error) == ("input 'x' f32[n,3]: got dtype float64, wanted float32; convert it with "
                          "array.astype('float32')")


def test_foreign_ops_are_told_of():
    model = onnx.ModelProto.FromString(plain())
    del model.graph.input[2], model.graph.input[1]
    model.graph.node[0].input[1] = "x"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.node[0].domain = "my.ops"
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    for _ in range(2):                          # the second time it is known to be no single graph
        error = caught(lambda: ours.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]))
        assert isinstance(error, jitcl.UnsupportedError) and "my.ops" in str(error)
        assert type(error).__name__ == "NotImplemented"


# ---- options


def test_options_have_onnxruntime_s_names_and_defaults():
    for name in ("SessionOptions", "RunOptions"):
        theirs, mine = getattr(real, name)(), getattr(ours, name)()
        fields = {k for k in dir(theirs) if k[0] != "_" and not callable(getattr(theirs, k))}
        assert fields == set(type(mine)._fields) and fields <= set(dir(mine))
        for field in fields:
            wanted, found = getattr(theirs, field), getattr(mine, field)
            assert getattr(found, "name", found) == getattr(wanted, "name", wanted), field
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        members = {k: int(v) for k, v in getattr(real, name).__members__.items()}
        assert {k: int(v) for k, v in getattr(ours, name).__members__.items()} == members


def test_free_dimensions_are_set_by_name():
    sessions = []
    for ort in (real, ours):
        options = ort.SessionOptions()
        options.add_free_dimension_override_by_name("n", 5)
        sessions.append(ort.InferenceSession(plain(), options, ["CPUExecutionProvider"]))
    theirs, mine = sessions
    assert args(mine.get_inputs()) == args(theirs.get_inputs())
    assert args(mine.get_outputs()) == args(theirs.get_outputs())
    x, y = np.ones((5, 3), np.float32), np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(mine.run(None, {"x": x, "y": y}),
                                  theirs.run(None, {"x": x, "y": y}))
    error = caught(lambda: mine.run(None, {"x": x[:2], "y": y}))
    assert isinstance(error, ours.capi.onnxruntime_pybind11_state.InvalidArgument)
    assert "'n' was set to 5 by add_free_dimension_override_by_name" in str(error)


def test_threads_are_those_of_the_session_alone(monkeypatch):
    seen = []
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    session = ours.InferenceSession(plain(), options, ["CPUExecutionProvider"])
    run = session.model.run
    monkeypatch.setattr(session.model, "run",
                        lambda feeds: seen.append(config.get("threads")) or run(feeds))
    with config.override(threads=3):
        feeding()(ours, session)
        seen.append(config.get("threads"))
    assert seen == [1, 3]


@pytest.mark.parametrize(("field", "value", "says"), [
    ("optimized_model_filepath", "out.onnx", "jitcl dump"),
    ("enable_profiling", True, "jitcl bench"),
])
def test_files_that_would_not_come_are_refused(field, value, says):
    options = ours.SessionOptions()
    setattr(options, field, value)
    error = caught(lambda: ours.InferenceSession(plain(), options))
    assert isinstance(error, jitcl.OptionError) and type(error).__name__ == "NotImplemented"
    assert field in str(error) and says in str(error)


def test_what_would_change_results_is_not_passed_over():
    options = ours.SessionOptions()
    with pytest.warns(UserWarning, match="computes with denormal numbers"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.dynamic_block_base", "4")
    assert options.get_session_config_entry("session.dynamic_block_base") == "4"
    for attempt in (lambda: options.register_custom_ops_library("x.so"),
                    lambda: options.add_initializer("w", None),
                    lambda: options.add_external_initializers([], []),
                    lambda: options.add_free_dimension_override_by_denotation("B", 1),
                    lambda: ours.RunOptions().add_active_adapter(None)):
        assert "is not there in jitcl" in str(caught(attempt))
    with pytest.raises(TypeError, match="no argument 'presets'"):
        ours.InferenceSession(plain(), presets=1)
    with pytest.raises(TypeError, match=r"wanted jitcl\.onnxruntime\.SessionOptions"):
        ours.InferenceSession(plain(), real.SessionOptions())
    with pytest.raises(AttributeError, match=r"jitcl\.onnxruntime has no 'LoraAdapter'"):
        _ = ours.LoraAdapter


# ---- providers


def test_unknown_providers_are_warned_of_and_the_next_is_taken():
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider"):
        session = ours.InferenceSession(
            plain(), providers=[("CUDAExecutionProvider", {"device_id": 0}),
                                "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {"device": "cpu"}}
    assert ours.get_available_providers()[-1] == "CPUExecutionProvider"
    assert ours.get_device() == "CPU"


@pytest.mark.parametrize(("providers", "options", "says"), [
    ("CPUExecutionProvider", None, "wanted a list"),
    ([3], None, "wanted a name"),
    (["CPUExecutionProvider"], [{}, {}], "2 entries for 1 providers"),
    ([("CPUExecutionProvider", {"strict": True})], [{"strict": True}], "options are given both"),
    ([("CPUExecutionProvider", {"arena": 1})], None, "has no option 'arena'"),
    ([("CPUExecutionProvider", {"device": "opencl"})], None, "is no device of it"),
    ([("CPUExecutionProvider", {"precision": "odd"})], None, "precision"),
])
def test_wrong_providers_are_refused(providers, options, says):
    error = caught(lambda: ours.InferenceSession(plain(), None, providers, options))
    assert isinstance(error, jitcl.OptionError) and type(error).__name__ == "InvalidArgument"
    assert says in str(error)


def test_a_session_on_the_cpu_looks_for_no_driver(monkeypatch):
    """Nor loads one: it takes time, and keeps the process's forks from using it."""
    monkeypatch.setattr("jitcl.devices.opencl.list_devices", lambda: pytest.fail("looked"))
    session = ours.InferenceSession(plain(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(feeding()(ours, session)[0], [[2, 4, 6]] * 2)
    with pytest.raises(pytest.fail.Exception, match="looked"):
        ours.InferenceSession(plain(), providers=["OpenCLExecutionProvider"])


def test_an_opencl_device_is_a_provider():
    devices.opened("opencl:pocl")
    session = jitcl.InferenceSession(
        plain(), providers=[("OpenCLExecutionProvider", {"device": "opencl:pocl"})])
    assert session.get_providers() == ["OpenCLExecutionProvider", "CPUExecutionProvider"]
    found = feeding()(ours, session)
    np.testing.assert_array_equal(found[0], [[2, 4, 6]] * 2)
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_array_equal(feeding()(ours, session)[0], found[0])


# ---- values and bindings


def test_values_are_as_onnxruntime_has_them():
    for dtype in (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int64, np.bool_):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        theirs, mine = (ort.OrtValue.ortvalue_from_numpy(array) for ort in (real, ours))
        for what in ("shape", "data_type", "element_type", "device_name", "is_tensor", "has_value",
                     "is_tensor_sequence", "is_sparse_tensor", "tensor_size_in_bytes"):
            assert getattr(mine, what)() == getattr(theirs, what)(), what
        mine.update_inplace(array[::-1].copy())
        np.testing.assert_array_equal(mine.numpy(), array)      # the same memory, as there
    empty = ours.OrtValue.ortvalue_from_shape_and_type([2, 3], TensorProto.FLOAT)
    assert empty.data_type() == "tensor(float)" and empty.shape() == [2, 3]
    assert "got int64[6], wanted float32[2, 3]" in str(
        caught(lambda: empty.update_inplace(np.arange(6))))


def test_memory_of_the_caller_s_is_read_and_filled_when_it_runs():
    _, session = both(plain())
    x, y = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    room = (ctypes.c_float * 6)()
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_cpu_input("y", y)
    binding.bind_output("z", "cpu", 0, np.float32, (2, 3), ctypes.addressof(room))
    binding.bind_output("u")
    x[:] = 4
    session.run_with_iobinding(binding)
    assert list(room) == [5.0] * 6
    z, u = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(u, z * [1, 2, 3])
    y[:] = 0
    session.run_with_iobinding(binding)
    assert list(room) == [4.0] * 6 and z[0, 0] == 5
    binding.bind_output("z", "cpu", 0, np.float32, (6,), ctypes.addressof(room))
    assert "output 'z': got float32[2, 3], wanted float32[6]" in str(
        caught(lambda: session.run_with_iobinding(binding)))


def test_values_go_in_and_come_out():
    theirs, mine = both(plain())
    x = np.ones((2, 3), np.float32)
    for ort, session in ((real, theirs), (ours, mine)):
        value = ort.OrtValue.ortvalue_from_numpy(x)
        (found,) = session.run_with_ort_values(["u"], {"x": value, "y": value}, None)
        np.testing.assert_array_equal(found.numpy(), [[2, 4, 6]] * 2)
    np.testing.assert_array_equal(mine.run(["u"], {"x": value, "y": x})[0], [[2, 4, 6]] * 2)


@pytest.mark.parametrize("right", [True, False])
def test_runs_in_a_thread_call_back(right):
    x, told = np.ones((2, 3), np.float32), []
    feeds = {"x": x, "y": x if right else x[:, :2]}
    for session in both(plain()):
        done = threading.Event()

        def callback(results: Any, data: Any, error: str, done: Any = done) -> None:
            told.append((results, data, error))
            done.set()

        session.run_async(["u"], feeds, callback, "mine")
        assert done.wait(60)
    for results, data, error in told:
        assert data == "mine" and bool(error) is not right and len(results) == right
        if right:
            np.testing.assert_array_equal(results[0], [[2, 4, 6]] * 2)


def test_a_run_in_a_thread_always_calls_back():
    _, session = both(plain())
    told, done = [], threading.Event()
    session.run_async(["u"], {}, lambda *found: (told.append(found), done.set()), None, "options")
    assert done.wait(60)
    ((results, data, error),) = told
    assert results == [] and data is None and error.startswith("run_options: got a str, wanted ")


def test_what_is_bound_is_filled_and_forgotten():
    x = np.ones((2, 3), np.float32)
    for ort, session in zip((real, ours), both(plain())):
        binding, room = session.io_binding(), ort.OrtValue.ortvalue_from_numpy(x * 0)
        for name in ("x", "y"):
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x))
        binding.bind_ortvalue_output("z", room)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        np.testing.assert_array_equal(room.numpy(), x * 2)
        binding.clear_binding_outputs()
        assert binding.get_outputs() == []
        binding.bind_output("z")
        binding.clear_binding_inputs()
        caught(lambda session=session, binding=binding: session.run_with_iobinding(binding))
