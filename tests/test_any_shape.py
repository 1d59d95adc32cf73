"""A third shape is the last that compiles anything: what guards of other plans rule out, small
pictures, lengths of 0 and 1, and sizes that floats decide have one general plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from tests.devices import present
from tests.test_families_ops import node, weights

DEVICES = [s for s in present() if s != "reference"]
Shape = list[int | str]
PICTURE: dict[str, Shape] = {"x": [1, 2, "n", "m"]}
ROWS: dict[str, Shape] = {"x": ["n", "m"]}
ONES = numpy_helper.from_array(np.float32([1]))


def made(nodes: list[onnx.NodeProto], shapes: dict[str, Shape], outputs: str = "y",
         **constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def body(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: str
         ) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "b", inputs, [helper.make_empty_tensor_value_info(n) for n in outputs.split()])


def feeds(proto: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    return {v.name: rng.standard_normal([
        eval(d.dim_param, {}, sizes) if d.dim_param else d.dim_value
        for d in v.type.tensor_type.shape.dim]).astype(np.float32) for v in proto.graph.input}


def resized(scale: float, mode: str) -> onnx.ModelProto:
    return made([node("Resize", "x - s", "y", mode=mode)], PICTURE,
                s=np.float32([1, 1, scale, scale]))


# with lengths of 0
LENGTHS: dict[str, onnx.ModelProto] = {
    "a causal mask": made(
        [node("Shape", "x", "s", start=0, end=1), node("Concat", "s s", "ss", axis=0),
         node("ConstantOfShape", "ss", "o", value=ONES), node("Trilu", "o one", "t", upper=1),
         node("MatMul", "t x", "y")], ROWS, one=np.array(1)),
    "a mean of rows": made([node("ReduceMean", "x a", "h"), node("Sub", "x h", "y")],
                           ROWS, a=np.array([0])),
    "the best 20 at most": made(
        [node("Shape", "x", "s", start=1), node("Concat", "s most", "b", axis=0),
         node("ReduceMin", "b", "k"), node("Sigmoid", "x", "p"), node("TopK", "p k", "y i")],
        ROWS, "y i", most=np.array([20])),
    "16 at most": made([node("Slice", "x zero end one", "h"), node("Exp", "h", "y")], ROWS,
                       zero=np.array([0]), end=np.array([16]), one=np.array([1])),
    "the last 8": made([node("Slice", "x begin end one", "y")], ROWS, begin=np.array([-8]),
                       end=np.array([2 ** 63 - 1]), one=np.array([1])),
    "halves": made(
        [node("Shape", "x", "s", start=1), node("Div", "s two", "h"), node("Sub", "s h", "r"),
         node("Concat", "h r", "parts", axis=0), node("Split", "x parts", "a b", axis=1),
         node("Relu", "a", "y"), node("ReduceSum", "b one", "z")], ROWS, "y z",
        two=np.array([2]), one=np.array([1])),
    "rows that are numbered": made(
        [node("Shape", "x", "s", start=0, end=1), node("Squeeze", "s", "n"),
         node("Range", "zero n one", "r"), node("Unsqueeze", "r last", "c"),
         node("Cast", "c", "f", to=1), node("Add", "x f", "y")], ROWS,
        zero=np.array(0), one=np.array(1), last=np.array([-1])),
    "what is positive": made(
        [node("Greater", "x zero", "g"), node("NonZero", "g", "z"),
         node("Transpose", "z", "t", perm=[1, 0]), node("GatherND", "x t", "v"),
         node("Neg", "v", "y")], ROWS, "y t", zero=np.float32(0)),
    "by 2.3, nearest": resized(2.3, "nearest"), "by 2.3, linear": resized(2.3, "linear"),
    "by 0.7, linear": resized(0.7, "linear")}
# without
PICTURES: dict[str, onnx.ModelProto] = {
    "by half, padded": made(
        [node("Conv", "x w", "c", auto_pad="SAME_UPPER", strides=[2, 2]),
         node("Relu", "c", "y")], PICTURE, w=weights(4, 2, 3, 3)),
    "far apart": made([node("Conv", "x w", "y", pads=[4] * 4, dilations=[4, 4])], PICTURE,
                      w=weights(4, 2, 3, 3)),
    "doubled": made([node("ConvTranspose", "x w", "y", strides=[2, 2], auto_pad="SAME_UPPER")],
                    PICTURE, w=weights(2, 3, 4, 4)),
    "pooled, rounded up": made(
        [node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], PICTURE),
    "to 0.7 of it and more": made(
        [node("Shape", "x", "s", start=2), node("Cast", "s", "f", to=1), node("Mul", "f k", "g"),
         node("Ceil", "g", "h"), node("Cast", "h", "hw", to=7), node("Shape", "x", "nc", end=2),
         node("Concat", "nc hw", "to", axis=0), node("Resize", "x - - to", "y", mode="linear")],
        PICTURE, k=np.float32(0.7)),
    "the shorter side to 32, the longer to 50 at most": made(
        [node("Shape", "x", "s", start=2), node("Cast", "s", "f", to=1),
         node("ReduceMin", "f", "short", keepdims=0), node("ReduceMax", "f", "long", keepdims=0),
         node("Div", "c32 short", "a"), node("Div", "c50 long", "b"), node("Min", "a b", "by"),
         node("Mul", "f by", "g"), node("Ceil", "g", "h"), node("Cast", "h", "hw", to=7),
         node("Shape", "x", "nc", end=2), node("Concat", "nc hw", "to", axis=0),
         node("Resize", "x - - to", "y", mode="linear",
              coordinate_transformation_mode="pytorch_half_pixel")], PICTURE,
        c32=np.float32(32), c50=np.float32(50)),
    "places of square pictures": made(
        [node("Shape", "x", "s", start=1, end=2), node("Cast", "s", "f", to=1),
         node("Sqrt", "f", "r"), node("Cast", "r", "side", to=7),
         node("Concat", "one side side four", "to", axis=0), node("Reshape", "x to", "p"),
         node("Transpose", "p", "t", perm=[0, 3, 1, 2]), node("Add", "t v", "y")],
        {"x": [1, "n * n", 4]}, one=np.array([1]), four=np.array([4]), v=weights(4, 1, 1))}
WITH_ZEROS = (
    (40, 37), (3, 2), (0, 5), (1, 1), (5, 0), (0, 0), (64, 9), (2, 300), (17, 1), (30, 30))
WITHOUT = ((40, 37), (3, 2), (1, 1), (2, 5), (1, 64), (64, 1), (9, 200), (128, 3), (33, 33))
LATER_ON_OPENCL = ("by 2.3, linear", "by 0.7, linear", "what is positive",
                   "rows that are numbered")
QUICK = ("the best 20 at most", "halves", "what is positive", "by 2.3, linear", "by half, padded",
         "the shorter side to 32, the longer to 50 at most", "places of square pictures")


@pytest.mark.sampled(quick=3, slow=3)
@pytest.mark.parametrize("device, name", [
    pytest.param(d, n, marks=() if d == "cpu" and n in QUICK else (pytest.mark.slow,))
    for d in DEVICES for n in (*LENGTHS, *PICTURES)])
def test_nothing_is_compiled_after_the_third_shape(device: str, name: str, tmp_path: Path) -> None:
    """On OpenCL devices some forms are compiled for later shapes, too."""
    proto = {**LENGTHS, **PICTURES}[name]
    check(proto, device, WITH_ZEROS if name in LENGTHS else WITHOUT, tmp_path,
          settled=device == "cpu" or name not in LATER_ON_OPENCL)


def check(proto: onnx.ModelProto, device: str, shapes: Any, folder: Path, settled: bool = True,
          **options: Any) -> jitcl.Model:
    """Compared with onnxruntime; `settled`: no build after the third shape."""
    model = jitcl.compile(proto, device=device, cache_dir=folder, **options)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [o.name for o in exact.get_outputs()]
    for count, (n, m) in enumerate(shapes):
        fed = feeds(proto, {"n": n, "m": m})
        found = model.run(fed)
        for key, wanted in zip(names, exact.run(None, fed)):
            assert found[key].shape == wanted.shape and found[key].dtype == wanted.dtype, (n, m)
            np.testing.assert_allclose(found[key], wanted, rtol=1e-5, atol=2e-5, err_msg=f"{n} {m}")
        if count == 2:
            before = model.cache.stats.builds
        assert count < 3 or not settled or model.cache.stats.builds == before, (n, m)
    return model


LOOPS = {
    "a loop over rows": made(
        [node("Shape", "x", "s", start=0, end=1), node("Squeeze", "s", "n"),
         node("Shape", "x", "width", start=1), node("ConstantOfShape", "width", "first"),
         node("Loop", "n yes first", "last y", body=body(
             [node("Identity", "c", "on"), node("Gather", "x i", "row"),
              node("Add", "a row", "sum"), node("Tanh", "sum", "next"),
              node("Identity", "next", "each")],
             [helper.make_tensor_value_info("i", TensorProto.INT64, []),
              helper.make_tensor_value_info("c", TensorProto.BOOL, []),
              helper.make_tensor_value_info("a", 1, ["m"])], "on next each"))],
        ROWS, "last y", yes=np.array(True)),
    "a scan of rows": made(
        [node("Shape", "x", "width", start=1), node("ConstantOfShape", "width", "first"),
         node("Scan", "first x", "last y", num_scan_inputs=1, body=body(
             [node("Add", "a row", "next"), node("Relu", "next", "each")],
             [helper.make_tensor_value_info("a", 1, ["m"]),
              helper.make_tensor_value_info("row", 1, ["m"])], "next each"))], ROWS, "last y")}


@pytest.mark.parametrize("device, name", [
    pytest.param(d, n, marks=() if d == "cpu" else (pytest.mark.slow,))
    for d in DEVICES for n in LOOPS])
def test_a_few_steps_whose_number_shapes_say(device: str, name: str, tmp_path: Path) -> None:
    """Unrolled for the first shape, repeated by the device once shapes change."""
    shapes = [(5, 6), (6, 6), (7, 9), (9, 4), (30, 7), (3, 12), (12, 3), (40, 5), (2, 8)]
    model = check(LOOPS[name], device, shapes, tmp_path, strict=True)
    assert model.program is not None and not model.report().host


def test_a_fixed_number_of_steps_stays_unrolled(tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(LOOPS["a scan of rows"])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    model = check(proto, "cpu", [(5, m) for m in (6, 9, 4, 7, 12)], tmp_path, strict=True)
    assert model.program is None
