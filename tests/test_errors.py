"""Bad input: each is a JitclError that says what was got, what was wanted, and where."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor
from onnx.helper import make_tensor_value_info as value

import jitcl
from jitcl.devices.cpu.device import CpuDevice
from jitcl.devices.select import open_device
from tests.devices import needs, present

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def model(*nodes: onnx.NodeProto, x: list[int | str], dtype: int = F32, opset: int = 17,
          **constants: tuple[int, list[int], list[float]]) -> bytes:
    """An ONNX model of one input x and one output y, which nothing has checked."""
    initialisers = [make_tensor(n, t, shape, values) for n, (t, shape, values) in constants.items()]
    graph = make_graph(list(nodes), "g", [value("x", dtype, x)], [value("y", F32, None)],
                       initialisers)
    made = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()


def refused(kind: type[jitcl.JitclError], source: object, **options: object) -> str:
    """The message with which a model is refused, by this very class of error."""
    with pytest.raises(jitcl.JitclError) as caught:
        jitcl.compile(source, **{"device": "cpu", **options})
    assert type(caught.value) is kind, caught.value
    return str(caught.value)


# -- files that are no models ------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, part):
    data = (EXAMPLES / "superres-x3.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[:int(len(data) * part)])
    text = refused(jitcl.ModelError, path)
    assert text.startswith(f"{path}")
    assert f"is not an ONNX model, or was cut off ({path.stat().st_size} bytes)" in text


@pytest.mark.parametrize("name", ["chelsea.png", "README.md"])
def test_a_file_of_another_kind(name):
    text = refused(jitcl.ModelError, EXAMPLES / name)
    assert "is not an ONNX model" in text and name in text


def test_an_empty_model():
    assert "is not an ONNX model: it has no IR version or no opset" in refused(
        jitcl.ModelError, b"")


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "none.onnx"
    assert refused(jitcl.ModelError, path) == (
        f"cannot read model '{path}': No such file or directory")


def test_something_that_is_no_model():
    assert refused(jitcl.ModelError, 3) == (
        "cannot compile a int: pass a path to an .onnx or .jitcl file, the bytes of an ONNX "
        "model, an onnx.ModelProto, or a jitcl Graph")


# -- models that are wrong ---------------------------------------------------------------------


def test_a_cycle():
    data = model(make_node("Add", ["x", "y"], ["a"], name="first"),
                 make_node("Relu", ["a"], ["y"], name="second"), x=[2])
    text = refused(jitcl.ModelError, data)
    assert "its nodes form a cycle: 'first' (Add) -> 'second' (Relu) -> 'first' (Add)" in text


def test_a_value_that_nobody_makes():
    data = model(make_node("Add", ["x", "nobody"], ["y"], name="add"), x=[2])
    text = refused(jitcl.ModelError, data)
    assert "'nobody'" in text and "add" in text


def test_unsupported_ops_are_all_listed_at_once():
    data = model(make_node("Find", ["x"], ["a"], name="find", domain="my.ops"),
                 make_node("Cast", ["a"], ["b"], to=F32, name="cast"),
                 make_node("Distinct", ["x"], ["c"], name="distinct", domain="my.ops"),
                 make_node("Add", ["b", "c"], ["y"], name="add"), x=[2])
    text = refused(jitcl.UnsupportedError, data)
    assert "2 nodes are not supported, and onnx.reference has no implementation" in text
    assert "'find' (Find of domain 'my.ops')" in text
    assert "'distinct' (Distinct of domain 'my.ops')" in text
    assert "'cast'" not in text


def test_channels_that_do_not_fit():
    data = model(make_node("Conv", ["x", "w"], ["y"], name="backbone/conv1"), x=[1, 4, 8, 8],
                 w=(F32, [2, 3, 3, 3], [0.0] * 54))
    text = refused(jitcl.ShapeError, data)
    assert "node 'backbone/conv1' (Conv)" in text
    assert "has 4 channels, but the weight" in text and "reads 3" in text
    assert "f32[1,4,8,8]   from graph input 'x'" in text


def test_element_types_that_do_not_fit():
    data = model(make_node("Add", ["x", "w"], ["y"], name="add"), x=[1], w=(I64, [1], [1]))
    text = refused(jitcl.TypeError_, data)
    assert "node 'add' (Add)" in text and "f32[1], i64[1]" in text and "cast one of them" in text


def test_an_opset_of_the_future():
    data = model(make_node("Relu", ["x"], ["y"]), x=[1], opset=99)
    assert "uses opset 99" in refused(jitcl.ModelError, data)


# -- parameters that are no numbers, or impossible ones -------------------------------------------


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0])
def test_scales_that_make_no_shape(scale):
    data = model(make_node("Resize", ["x", "", "s"], ["y"], name="up"), x=[1, 1, 4, 4],
                 s=(F32, [4], [1, 1, scale, 2]))
    text = refused(jitcl.ModelError, data)
    assert text.startswith(f"node 'up' (Resize): scales [1.0, 1.0, {scale}, 2.0] must be 4 "
                           "positive numbers")


def test_a_range_to_nan():
    data = model(make_node("Range", ["a", "b", "c"], ["r"], name="range"),
                 make_node("Add", ["x", "r"], ["y"]), x=[1],
                 a=(F32, [], [0.0]), b=(F32, [], [float("nan")]), c=(F32, [], [1.0]))
    text = refused(jitcl.ShapeError, data)
    assert text.startswith("node 'range' (Range): a range from 0.0 to nan by 1.0 has no end")


@pytest.mark.parametrize("op", ["Reshape", "Expand"])
def test_a_shape_computed_from_nan(op):
    data = model(make_node("Cast", ["f"], ["s"], to=I64), make_node(op, ["x", "s"], ["y"]), x=[4],
                 f=(F32, [2], [float("nan"), 4.0]))
    with pytest.raises(jitcl.JitclError, match=r"-9223372036854775808"):
        jitcl.compile(data, device="cpu")


def test_a_reshape_to_another_size():
    data = model(make_node("Reshape", ["x", "s"], ["y"], name="reshape"), x=[4],
                 s=(I64, [2], [3, 2]))
    text = refused(jitcl.ShapeError, data)
    assert "node 'reshape' (Reshape)" in text
    assert "cannot reshape f32[4] (4 elements) to [3, 2] (6 elements)" in text


# -- what is fed -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relu() -> jitcl.Model:
    return jitcl.compile(model(make_node("Relu", ["x"], ["y"]), x=["n", 3]), device="cpu")


GOOD = np.zeros((2, 3), np.float32)
FEEDS = {
    "dtype": ({"x": GOOD.astype(np.float64)}, "input 'x' f32[n,3]: got dtype float64, wanted "
              "float32; convert it with array.astype('float32')"),
    "rank": ({"x": GOOD[0]}, "input 'x' f32[n,3]: got 1 axes (3,), wanted 2"),
    "size": ({"x": GOOD[:, :2]},
             "input 'x' f32[n,3]: axis 1 is 2, wanted 3 (got shape (2, 2))"),
    "name": ({"picture": GOOD}, "there is no input 'picture'; the inputs are 'x' f32[n,3]"),
    "missing": ({}, "input 'x' f32[n,3] was not fed; fed were none"),
    "object": ({"x": object()}, "input 'x' f32[n,3]: got dtype object, wanted float32; convert it "
               "with array.astype('float32')"),
    "no dict": (GOOD, "run() takes a dict of input name -> array, got ndarray; call the model "
                "itself to pass arrays by position"),
}


@pytest.mark.parametrize("case", FEEDS)
def test_feeds_that_do_not_fit(relu, case):
    feeds, message = FEEDS[case]
    with pytest.raises(jitcl.InputError) as caught:
        relu.run(feeds)
    assert str(caught.value) == message
    assert relu.run({"x": GOOD})["y"].shape == (2, 3)        # the model is none the worse


def test_an_input_by_position_and_by_name(relu):
    with pytest.raises(jitcl.InputError, match="input 'x' was passed twice"):
        relu(GOOD, x=GOOD)
    with pytest.raises(jitcl.InputError, match="2 arrays were passed to a model with 1 inputs"):
        relu(GOOD, GOOD)


def test_sizes_that_belong_together():
    """Dimensions of text IR are types; names of ONNX's dimensions are hints (test_hints.py)."""
    both = jitcl.compile(jitcl.parse(
        "graph @g(%x: f32[n,3], %z: f32[n,3]) {\n  %y = add(%x, %z)\n  return %y\n}"),
        device="cpu")
    with pytest.raises(jitcl.InputError) as caught:
        both.run({"x": GOOD, "z": np.zeros((3, 3), np.float32)})
    assert str(caught.value) == ("input 'z' f32[n,3]: axis 0 ('n') is 3, but 'n' is 2 at axis 0 "
                                 "of 'x'")


# -- options and devices -----------------------------------------------------------------------


def test_an_option_that_is_not_known():
    assert refused(jitcl.OptionError, EXAMPLES / "superres-x3.onnx", precision="best") == (
        "precision='best' is not known: use one of high, normal, low\n"
        "  auto is for a whole model, in jitcl.compile, jitcl.lm.load and `jitcl run`.")


def test_a_device_that_is_not_there():
    text = refused(jitcl.DeviceError, EXAMPLES / "superres-x3.onnx", device="npu")
    assert text.startswith("no device 'npu'\n  There are: ")
    assert "cpu" in text.splitlines()[1] and "reference" in text.splitlines()[1]


def test_shapes_that_the_model_does_not_have():
    path = EXAMPLES / "superres-x3.onnx"
    assert refused(jitcl.InputError, path, shapes={"picture": (1, 3, 4, 4)}) == (
        "shapes: there is no input 'picture'; the inputs are image")
    wanted = "input 'image' f32[batch,3,height,width]"
    for shape, text in {
        (1, 3, 4): f"shapes: (1, 3, 4) has 3 axes, {wanted} has 4",
        (1, 4, 8, 8): f"shapes: axis 1 of {wanted} is 4, the model says 3",
        (1, 3, float("nan"), 8): f"shapes: axis 2 of {wanted} is nan, "
                                 "wanted a whole number from 0 up",
        (1, 3, -8, 8): f"shapes: axis 2 of {wanted} is -8, wanted a whole number from 0 up",
    }.items():
        assert refused(jitcl.InputError, path, shapes={"image": shape}) == text
    assert refused(jitcl.InputError, path, shapes={"image": np.zeros((1, 3, 8, 8))}) == (
        f"shapes: {wanted} got an array of shape (1, 3, 8, 8), wanted the shape itself")


def test_a_tensor_that_is_too_large_for_the_device():
    small = CpuDevice()
    small = CpuDevice(dataclasses.replace(small.target, global_memory=1 << 30))
    data = model(make_node("Expand", ["x", "s"], ["y"]), x=[1],
                 s=(I64, [2], [30_000, 25_000]))                           # 3 GB of f32
    text = refused(jitcl.OutOfMemoryError, data, device=small)
    assert "the plan needs 2861 MiB, this machine 1024" in text
    assert "memory='low'" in text


@needs("opencl:pocl")
@pytest.mark.parametrize("limit", ["global_memory", "max_allocation"])
def test_a_tensor_that_is_too_large_for_an_opencl_device(limit):
    small = open_device("opencl:pocl")
    small.session.target = dataclasses.replace(small.target, **{limit: 1 << 30})
    data = model(make_node("Expand", ["x", "s"], ["y"]), x=[1],
                 s=(I64, [2], [30_000, 25_000]))
    # strict: else the whole model runs on the CPU, and the user is told
    text = refused(jitcl.OutOfMemoryError, data, device=small, strict=True)
    assert "2861 MiB" in text and "1024 MiB" in text
    assert "Use smaller inputs or batches, or another device." in text


def test_text_that_does_not_parse():
    with pytest.raises(jitcl.ParseError) as caught:
        jitcl.parse("graph @g(%x: f32[2]) {\n  %y = rellu(%x)\n  return %y\n}")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("2:8: no op 'rellu'; did you mean 'relu'")
    assert lines[1:] == ["  %y = rellu(%x)", "       ^"]


# -- what a person sees of the API --------------------------------------------------------------


def test_the_api_is_listed():
    """Completion offers what is imported only when it is used."""
    shown = [n for n in dir(jitcl) if not n.startswith("_")]
    assert shown == sorted(n for n in jitcl.__all__ if not n.startswith("_"))
    assert {"compile", "devices", "parse", "Model", "Bound"} <= set(shown)
    for name in jitcl.__all__:
        if name == "from_torch" and find_spec("torch") is None:
            with pytest.raises(jitcl.JitclError, match=r"needs the library 'torch'"):
                getattr(jitcl, name)
        else:
            assert getattr(jitcl, name) is not None


def test_a_device_is_a_line():
    found = jitcl.devices()
    for info in found:
        assert repr(info) == str(info) and "\n" not in repr(info) and len(repr(info)) < 200
        assert repr(info).startswith(f"<jitcl device '{info.spec}': ")
    assert [d.spec for d in found][-2:] == ["cpu", "reference"]


@pytest.mark.parametrize("spec", present())
def test_a_listed_device_is_what_device_takes(spec):
    info = next(d for d in jitcl.devices() if open_device(spec).target == d.target)
    made = jitcl.compile(model(make_node("Neg", ["x"], ["y"]), x=[3]), device=info)
    assert made.device.target == info.target
    np.testing.assert_array_equal(made.run({"x": [1, 2, 3]})["y"], np.float32([-1, -2, -3]))


def test_no_device_is_auto(monkeypatch):
    monkeypatch.setenv("JITCL_DEVICE", "reference")
    made = jitcl.compile(model(make_node("Neg", ["x"], ["y"]), x=[3]), device=None)
    assert made.device.target.kind == "reference"


LARGE = {"cpu": "stored as f16, computed in f32: 'cpu' computes f16 in f32",
         "opencl:pocl": "stored as f16, computed in f32: device 'pthread-",
         "opencl:intel": "stored as f16, computed in "}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("spec", [s for s in present() if s in LARGE])
def test_a_report_says_what_became_of_the_precision(spec, tmp_path):
    """The second model reads its plan from the cache, as another process would."""
    data = model(make_node("Conv", ["x", "w"], ["a"]), make_node("Conv", ["a", "w"], ["b"]),
                 make_node("Conv", ["b", "w"], ["y"]), x=[1, 8, 32, 32],
                 w=(F32, [8, 8, 3, 3], [0.5] * 576))
    reports = [jitcl.compile(data, device=spec, precision="low", cache_dir=tmp_path).report()
               for _ in range(2)]
    assert [r.from_cache for r in reports] == [False, True]
    for report in reports:
        assert f"\n  precision: low, tensors are {LARGE[spec]}" in str(report)
        assert report.precision == "low" and report.as_dict()["computes"] == report.computes
    high = jitcl.compile(data, device=spec, cache_dir=tmp_path).report()
    assert str(high).endswith("\n  precision: high, tensors are as the model says")


def test_small_models_stay_f32_and_say_so():
    data = model(make_node("Neg", ["x"], ["y"]), x=[3])
    report = jitcl.compile(data, device="cpu", precision="low").report()
    assert "precision: low, tensors are stored as f32, computed in f32: no tensor" in str(report)
