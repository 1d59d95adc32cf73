"""Types of eight bits and fewer: every code is decoded, numbers around every value are encoded, on
every device, and compared with ml_dtypes and onnx; then what graphs do with such tensors."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jitcl
from jitcl import dtypes
from jitcl.codegen.opencl_helpers import helper as c_helper
from jitcl.errors import InputError, JitclError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.enclosure import Enclosed, evaluated
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.parser import parse_graph
from jitcl.ir.printer import print_graph
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.matching import exact
from tests import devices

G = GraphBuilder()
DEVICES = devices.present()
ONNX_TYPES = {
    "f8e4m3": TensorProto.FLOAT8E4M3FN, "f8e4m3z": TensorProto.FLOAT8E4M3FNUZ,
    "f8e5m2": TensorProto.FLOAT8E5M2, "f8e5m2z": TensorProto.FLOAT8E5M2FNUZ,
    "f8e8m0": TensorProto.FLOAT8E8M0, "f4e2m1": TensorProto.FLOAT4E2M1,
    "i4": TensorProto.INT4, "u4": TensorProto.UINT4, "i2": TensorProto.INT2,
    "u2": TensorProto.UINT2}


def some(values: Iterable[object], *always: object) -> list[object]:
    """All values as parameters; those that are not among `always` in slow runs only."""
    def param(v: object) -> object:
        marks = () if v in always else (pytest.mark.slow,)
        return pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=marks)
    return [param(v) for v in values]


def codes(dtype: str) -> np.ndarray:
    """Every element that the type has."""
    return np.arange(1 << dtypes.bits(dtype), dtype=np.uint8).view(dtypes.to_numpy(dtype))


def x(name: str, dtype: str, *shape: int) -> Node:
    return graph_input(name, TensorType(dtype, shape))


def run(device: str, outputs: dict[str, Node], **feeds: np.ndarray) -> dict[str, np.ndarray]:
    inputs = tuple(graph_input(k, TensorType(dtypes.from_numpy(a.dtype), a.shape))
                   for k, a in feeds.items())
    return devices.run_graph(device, Graph("g", inputs, tuple(outputs.items())), feeds)


def floats_around(dtype: str) -> np.ndarray:
    """f32 numbers: all values of the type, the middles between neighbours, the numbers beside
    both, what is beyond the ends, and any bits."""
    values = codes(dtype).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:].astype(np.float64) + values[:-1]) / 2
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-38, -1e-38, 3e38, -3e38, 500, 464,
                     464.01, 465, 61440, 61439, 61441, 7, -7, 1e9, -1e9], np.float32)
    found = np.concatenate([values, middles.astype(np.float32), values[-1:] * 1.07, ends])
    found = np.concatenate([found, np.nextafter(found, np.float32(np.inf)),
                            np.nextafter(found, np.float32(-np.inf))])
    random = np.random.default_rng(7).integers(0, 1 << 32, 4096, dtype=np.uint32)
    found = np.concatenate([found, random.view(np.float32)])
    # devices may take subnormals of f32 for 0
    return found[~((np.abs(found) < 2.0 ** -126) & (found != 0))]


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, but for NaN's and, of the type without NaN, the zero that NaN becomes."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    with np.errstate(invalid="ignore"):
        a, b = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(a, b)
    numbers = ~np.isnan(b) & (b != 0)
    np.testing.assert_array_equal(got.view(np.uint8)[numbers], want.view(np.uint8)[numbers])


# ---- the types


@pytest.mark.parametrize("dtype", dtypes.LOW)
def test_a_type_is_what_ml_dtypes_has(dtype: str) -> None:
    kind = dtypes.to_numpy(dtype)
    assert dtypes.from_numpy(kind) == dtype and dtypes.itemsize(dtype) == kind.itemsize == 1
    assert dtypes.numpy_name(dtype) == f"ml_dtypes.{kind.name}"
    if dtype in dtypes.LOW_INTS:
        info = ml_dtypes.iinfo(kind)
        assert dtypes.limits(dtype) == (int(info.min), int(info.max))
        assert dtypes.bits(dtype) == info.bits and dtypes.compute(dtype) == "i32"
    else:
        info = ml_dtypes.finfo(kind)
        assert dtypes.largest(dtype) == float(info.max) and dtypes.bits(dtype) == info.bits
        assert dtypes.compute(dtype) == "f32"
    if dtype in dtypes.MINIFLOATS:
        assert dtypes.MINIFLOATS[dtype].step == float(info.smallest_subnormal)


@pytest.mark.parametrize("source", [*dtypes.LOW, "bool", "i8"])
def test_exact_casts_lose_nothing(source: str) -> None:
    """What passes take for exact is so, for every element."""
    if source in ("bool", "i8"):
        values = np.arange(2 if source == "bool" else 256, dtype=np.uint8).view(
            dtypes.to_numpy(source))
    else:
        values = codes(source)
    targets = [t for t in dtypes.STORED if exact(source, t)]
    assert source in targets
    for target in targets:
        back = dtypes.converted(dtypes.converted(values, target), source)
        np.testing.assert_array_equal(back.astype(np.float32), values.astype(np.float32), target)


# ---- conversion


@pytest.mark.parametrize("device", DEVICES)
def test_every_code_is_decoded(device: str) -> None:
    feeds = {d: codes(d) for d in dtypes.LOW}
    outputs = {f"y_{d}": G.cast(x(d, d, *feeds[d].shape), to=dtypes.compute(d)) for d in feeds}
    got = run(device, outputs, **feeds)
    for d, values in feeds.items():
        want = values.astype(dtypes.to_numpy(dtypes.compute(d)))
        normal = ~((np.abs(want) < 2.0 ** -126) & (want != 0)) if d == "f8e8m0" else slice(None)
        np.testing.assert_array_equal(got[f"y_{d}"][normal], want[normal])


@pytest.mark.parametrize("device", DEVICES)
def test_floats_are_rounded_to_nearest_even(device: str) -> None:
    feeds = {d: floats_around(d) for d in dtypes.LOW_FLOATS}
    outputs = {f"y_{d}": G.cast(x(d, "f32", *feeds[d].shape), to=d) for d in feeds}
    got = run(device, outputs, **feeds)
    for d, values in feeds.items():
        with np.errstate(invalid="ignore", over="ignore"):
            assert_same(got[f"y_{d}"], values.astype(dtypes.to_numpy(d)))


@pytest.mark.parametrize("device", DEVICES)
def test_integers_wrap_around(device: str) -> None:
    wide = np.concatenate([np.arange(-300, 300), [2 ** 31 - 1, -2 ** 31, 123456789]])
    feeds = {t: wide.astype(dtypes.to_numpy(t)) for t in ("i32", "u8", "i64", "f32")}
    outputs = {f"{t}_{d}": G.cast(x(t, t, len(wide)), to=d) for t in feeds for d in dtypes.LOW_INTS}
    got = run(device, outputs, **feeds)
    for t, values in feeds.items():
        for d in dtypes.LOW_INTS:
            low = values.astype(np.int64).clip(-1 << 31) if t == "f32" else values
            mask = (1 << dtypes.bits(d)) - 1
            assert got[f"{t}_{d}"].dtype == dtypes.to_numpy(d)
            np.testing.assert_array_equal(got[f"{t}_{d}"].view(np.uint8), low & mask)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_casts_between_low_types(device: str) -> None:
    feeds = {d: codes(d) for d in dtypes.LOW}
    pairs = [(a, b) for a in dtypes.LOW for b in dtypes.LOW if a != b and not (
        a in dtypes.LOW_FLOATS and b in dtypes.LOW_INTS)]
    got = run(device, {f"{a}_{b}": G.cast(x(a, a, len(feeds[a])), to=b) for a, b in pairs}, **feeds)
    for a, b in pairs:
        want = dtypes.converted(feeds[a], b)
        if a == "f8e8m0":
            assert_same(got[f"{a}_{b}"][1:], want[1:])         # 2**-127 may be taken for 0
        else:
            assert_same(got[f"{a}_{b}"], want)


@pytest.mark.parametrize("device", DEVICES)
def test_bits_survive_copies_and_bitcasts(device: str) -> None:
    """NaN payloads too: elements that are only moved are bytes."""
    feeds = {d: codes(d).reshape(2, -1) for d in dtypes.LOW}
    unsigned = {8: "u8", 4: "u4", 2: "u2"}
    outputs = {}
    for d, a in feeds.items():
        node = x(d, d, *a.shape)
        outputs[f"t_{d}"] = G.transpose(node, perm=(1, 0))
        if d not in unsigned.values():
            bits = G.bitcast(G.transpose(node, perm=(1, 0)), to=unsigned[dtypes.bits(d)])
            outputs[f"b_{d}"] = bits
    for name, a in run(device, outputs, **feeds).items():
        np.testing.assert_array_equal(a.view(np.uint8), feeds[name[2:]].T.view(np.uint8))
    back = {f"y_{d}": G.bitcast(x("raw", "u8", 256), to=d) for d in dtypes.LOW_FLOATS[:5]}
    raw = np.arange(256, dtype=np.uint8)
    for name, a in run(device, back, raw=raw).items():
        np.testing.assert_array_equal(a.view(np.uint8), raw, err_msg=name)


def cast_model(source: int, target: int, **attrs: object) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=target, **attrs)
    return graph_model([node], [("x", source, ["n"])], [("y", target)])


def graph_model(nodes: list[onnx.NodeProto], inputs: list, outputs: list,
                constants: Iterable[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """A model over inputs (name, type, shape) and outputs (name, type)."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs], list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    model.ir_version = 13
    return model


@pytest.mark.parametrize("device", DEVICES)
def test_cast_saturates_as_onnx_says(device: str) -> None:
    kinds = [(d, s) for d in dtypes.LOW_FLOATS[:4] for s in (0, 1)]
    nodes = [helper.make_node("Cast", ["x"], [f"{d}_{s}"], to=ONNX_TYPES[d], saturate=s)
             for d, s in kinds]
    values = np.unique(np.concatenate([floats_around(d) for d in dtypes.LOW_FLOATS[:4]]))
    model = graph_model(nodes, [("x", TensorProto.FLOAT, [values.size])],
                        [(f"{d}_{s}", ONNX_TYPES[d]) for d, s in kinds])
    got = jitcl.compile(model, device=devices.device(device)).run({"x": values})
    for d, s in kinds:
        to = dtypes.to_numpy(d)
        with np.errstate(invalid="ignore", over="ignore"):
            want = numpy_helper.saturate_cast(values, to) if s else values.astype(to)
        assert_same(got[f"{d}_{s}"], want)


@pytest.mark.parametrize("device", DEVICES)
def test_halves_and_doubles_are_saturated_in_their_own_type(device: str) -> None:
    values = np.array([1.0, 449.0, 60000.0, -1e4, np.inf, np.nan, 0.1])
    for code, source in ((TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)):
        compiled = jitcl.compile(cast_model(code, TensorProto.FLOAT8E4M3FN),
                                 device=devices.device(device))
        want = numpy_helper.saturate_cast(values.astype(source), np.dtype(ml_dtypes.float8_e4m3fn))
        assert_same(compiled.run({"x": values.astype(source)})["y"], want)


def test_powers_of_two_follow_the_specification() -> None:
    """ONNX's table of special values of Cast to FLOAT8E8M0, and ties."""
    values = np.array([0.0, np.nan, np.inf, 3e38, 1e-39, 1.5, 3.0, 2.0, 1.25], np.float32)
    up = jitcl.compile(cast_model(TensorProto.FLOAT, TensorProto.FLOAT8E8M0), device="cpu")
    np.testing.assert_array_equal(up.run({"x": values})["y"].view(np.uint8),
                                  [0, 255, 254, 254, 0, 128, 129, 128, 128])
    nearest = jitcl.compile(cast_model(TensorProto.FLOAT, TensorProto.FLOAT8E8M0, saturate=0,
                                       round_mode="nearest"), device="cpu")
    np.testing.assert_array_equal(nearest.run({"x": values})["y"].view(np.uint8),
                                  [255, 255, 255, 255, 255, 128, 129, 128, 127])
    down = jitcl.compile(cast_model(TensorProto.FLOAT, TensorProto.FLOAT8E8M0,
                                    round_mode="down"), device="cpu")
    np.testing.assert_array_equal(down.run({"x": values})["y"].view(np.uint8),
                                  [0, 255, 254, 254, 0, 127, 128, 128, 127])


# ---- graphs


def moved(dtype: str) -> onnx.ModelProto:
    """Ops that move elements, one after the other, and a constant of the type."""
    def ints(name: str, *values: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    weight = numpy_helper.from_array(np.resize(codes(dtype), (1, 4)), "w")
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Concat", ["b", "w"], ["c"], axis=0),
        helper.make_node("Slice", ["c", "from", "to", "axis"], ["d"]),
        helper.make_node("Gather", ["d", "at"], ["e"], axis=0),
        helper.make_node("Unsqueeze", ["e", "axis"], ["f"]),
        helper.make_node("Squeeze", ["f", "axis"], ["h"]),
        helper.make_node("Flatten", ["h"], ["i"], axis=1),
        helper.make_node("Identity", ["i"], ["j"]),
        helper.make_node("Expand", ["j", "wide"], ["y"])]
    constants = [ints("s", 4, 4), ints("from", 1), ints("to", 4), ints("axis", 0),
                 ints("at", 2, 0, 1), ints("wide", 2, 3, 4), weight]
    code = ONNX_TYPES[dtype]
    return graph_model(nodes, [("x", code, [8, 2])], [("y", code), ("c", code)], constants)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", some(dtypes.LOW, "f8e4m3", "i4"))
def test_tensors_are_moved(device: str, dtype: str) -> None:
    model, feed = moved(dtype), np.resize(codes(dtype), (8, 2))
    got = jitcl.compile(model, device=devices.device(device)).run({"x": feed})
    want = ReferenceEvaluator(model).run(["y", "c"], {"x": feed})
    for a, b in zip(got.values(), want):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a.astype(np.float32), b.astype(np.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_inlined_is_rounded_as_what_is_stored(device: str) -> None:
    """Quantise and dequantise in one kernel: f8 between them, with nothing in memory."""
    values = np.linspace(-500, 500, 999, dtype=np.float32)
    for dtype in ("f8e4m3", "f8e5m2z", "f4e2m1"):
        q = G.quantize(x("x", "f32", 999), const(1.0, "f32"), to=dtype)
        got = run(device, {"y": G.dequantize(q, const(2.0, "f32"))}, x=values)["y"]
        want = numpy_helper.saturate_cast(values, dtypes.to_numpy(dtype)).astype(np.float32) * 2
        np.testing.assert_array_equal(got, want)
    total = G.add(x("a", "i4", 16), x("a", "i4", 16))
    got = run(device, {"y": G.cast(total, to="f32")}, a=codes("i4"))["y"]
    want = (codes("i4").astype(np.int32) * 2 + 8) % 16 - 8
    np.testing.assert_array_equal(got, want)


def test_quantisation_in_a_named_precision_rounds_its_operands() -> None:
    """precision=FLOAT16: the operands are halves before they are divided."""
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], precision=TensorProto.FLOAT16,
                            output_dtype=TensorProto.FLOAT8E4M3FN)
    model = graph_model([node], [("x", TensorProto.FLOAT, [4000]), ("s", TensorProto.FLOAT, [])],
                        [("y", TensorProto.FLOAT8E4M3FN)])
    feeds = {"x": np.linspace(-9, 9, 4000, dtype=np.float32), "s": np.float32(0.3)}
    got = jitcl.compile(model, device="cpu").run(feeds)["y"]
    halves = feeds["x"].astype(np.float16) / np.float16(feeds["s"])
    assert_same(got, halves.astype(dtypes.to_numpy("f8e4m3")))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", some(["normal", "low"], "low"))
def test_precision_leaves_low_types_alone(device: str, precision: str) -> None:
    """Tensors around them are halved, they and what looks at bits are not."""
    big = np.random.default_rng(1).uniform(-3, 3, (64, 64)).astype(np.float32)
    node = x("x", "f32", 64, 64)
    f8 = G.cast(G.relu(node), to="f8e4m3")
    scale = G.cast(G.bitcast(x("s", "u8", 64, 64), to="f8e8m0"), to="f32")
    outputs = {"f8": f8, "wide": G.mul(scale, 1.0), "bits": G.bitcast(G.abs(node), to="u32")}
    codes8 = np.arange(4096, dtype=np.int64).reshape(64, 64) % 254 + 1
    graph = Graph("g", (node, x("s", "u8", 64, 64)), tuple(outputs.items()))
    got = devices.run_graph(device, graph, {"x": big, "s": codes8.astype(np.uint8)},
                            precision=precision)
    assert got["f8"].dtype == dtypes.to_numpy("f8e4m3")
    off = np.abs(got["f8"].astype(np.float32) - np.maximum(big, 0))
    assert off.max() <= 2.0 ** -4 * 3
    np.testing.assert_array_equal(got["wide"], 2.0 ** (codes8 - 127.0))
    np.testing.assert_array_equal(got["bits"], np.abs(big).view(np.uint32))


@pytest.mark.parametrize(("dtype", "raw"), some(
    [(d, r) for d in ("i4", "u4", "i2", "u2", "f4e2m1") for r in (True, False)],
    ("i4", True), ("u2", False)))
def test_packed_initialisers_stay_packed(dtype: str, raw: bool) -> None:
    """DequantizeLinear of weights that lie several in a byte: kernels read these bytes."""
    rng = np.random.default_rng(3)
    weights = rng.choice(codes(dtype), (64, 48))
    scale = rng.uniform(0.1, 1, (4, 48)).astype(np.float32)
    stored = numpy_helper.from_array(weights, "w")
    if not raw:
        data = np.frombuffer(stored.raw_data, np.uint8).astype(np.int32)
        stored.ClearField("raw_data")
        stored.int32_data.extend(data.tolist())
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale"], ["f"], axis=0, block_size=16),
             helper.make_node("MatMul", ["x", "f"], ["y"])]
    model = graph_model(nodes, [("x", TensorProto.FLOAT, [3, 64])], [("y", TensorProto.FLOAT)],
                        [stored, numpy_helper.from_array(scale, "scale")])
    feed = rng.standard_normal((3, 64)).astype(np.float32)
    want = feed @ (weights.astype(np.float32) * np.repeat(scale, 16, axis=0))
    for device in DEVICES:
        compiled = jitcl.compile(model, device=devices.device(device))
        np.testing.assert_allclose(compiled.run({"x": feed})["y"], want, rtol=1e-4, atol=1e-4)
        sizes = {b.nbytes for b in compiled.plan.buffers if b.kind == "const"}
        assert sizes == {64 * 48 * dtypes.bits(dtype) // 8, scale.nbytes}


@pytest.mark.parametrize("dtype", dtypes.LOW)
def test_text_holds_every_element(dtype: str) -> None:
    graph = Graph("g", (), (("y", const(codes(dtype))),))
    again = parse_graph(print_graph(graph, inline=None))
    assert again.outputs[0][1] is graph.outputs[0][1]


# ---- what is right


def test_enclosure_of_a_coarse_type_holds_both_neighbours() -> None:
    """A value that a device may have on either side of a tie rounds to one of two; a sure one to
    one; integers that may wrap around are unknown."""
    to_f8 = E.make("cast", (E.var("a", "f32"),), "f8e4m3")
    middle = 17.0                            # between 16 and 18, and the tie goes to 16
    sure = evaluated(to_f8, [Enclosed(np.array([middle, 20.0, np.nan, 1e9]))])
    assert sure.exact and sure.mid.tolist()[:2] == [16.0, 20.0] and np.isnan(sure.mid[2:]).all()
    unsure = evaluated(to_f8, [Enclosed(np.array([middle, 20.0, 447.0, 470.0]),
                                        np.array([1e-3, 1e-3, 20.0, 1.0]))])
    assert unsure.radius.tolist() == [2.0, 0.0, np.inf, 0.0]
    to_i4 = E.make("cast", (E.var("b", "i32"),), "i4")
    found = evaluated(to_i4, [Enclosed(np.array([3, 7, 9], np.int32), np.array([1.0, 1.0, 0.0]))])
    assert found.mid.tolist() == [3, 7, -7] and found.radius.tolist() == [1.0, np.inf, 0.0]
    bits = E.make("as_u8", (E.var("c", "f8e4m3"),), "u8")
    found = evaluated(bits, [Enclosed(np.array([1.0, np.nan]))])
    assert found.mid[0] == 0x38 and found.radius.tolist() == [0.0, np.inf]


def test_opencl_helpers_exist_for_every_low_type() -> None:
    for dtype in dtypes.LOW:
        for way in ("to", "from"):
            assert f"jitcl_{way}_{dtype}(" in c_helper(f"{way}_{dtype}")


# ---- errors


def test_feeding_another_type_says_which() -> None:
    model = jitcl.compile(moved("f8e4m3"), device="reference")
    with pytest.raises(InputError) as caught:
        model.run({"x": np.zeros((8, 2), np.float32)})
    assert str(caught.value) == (
        "input 'x' f8e4m3[8,2]: got dtype float32, wanted float8_e4m3fn; "
        "convert it with array.astype(ml_dtypes.float8_e4m3fn)")


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda: G.bitcast(x("a", "f32", 2), to="i16"), TypeError_,
     "bitcast(f32[2]): an element of f32[2] has 32 bits, one of i16 has 16: they must have as "
     "many"),
    (lambda: G.bitcast(x("a", "u8", 2), to="u4"), TypeError_,
     "bitcast(u8[2]): an element of u8[2] has 8 bits, one of u4 has 4: they must have as many"),
    (lambda: G.quantize(x("a", "f32", 2), const(1.0, "f32"), to="f8e8m0"), TypeError_,
     "quantize(f32[2], f32[]): numbers are quantised to u8, i8, u16, i16, i4, u4, i2, u2, f8e4m3, "
     "f8e4m3z, f8e5m2, f8e5m2z, f4e2m1, not to f8e8m0"),
    (lambda: G.power_of_two(x("a", "f16", 2), rounding="up", saturate=True), TypeError_,
     "power_of_two(f16[2]): powers of two are made of f32, got f16[2]: cast it"),
    (lambda: G.unpack(x("a", "u8", 2), to="i4", shape=(9,)), ShapeError,
     "unpack(u8[2]): [9] is 9 values of 4 bits, 2 in each byte: wanted u8[5], got u8[2]"),
])
def test_what_inference_says(make, error, text) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == text


def test_an_unknown_rounding_is_named() -> None:
    model = cast_model(TensorProto.FLOAT, TensorProto.FLOAT8E8M0, round_mode="away")
    with pytest.raises(JitclError, match="attribute round_mode='away', wanted up, down, nearest"):
        jitcl.compile(model, device="reference", shapes={"x": (2,)})
