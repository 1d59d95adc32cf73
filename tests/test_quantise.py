"""Low-bit weights and quantised ops: import against onnx's own meaning, packed all the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.errors import JitclError, ModelError, ShapeError, TypeError_, UnsupportedError
from jitcl.frontends.onnx import import_model, load
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.base import run_passes
from jitcl.passes.decompose import Decompose
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.target.features import features_of
from tests import devices
from tests.compiling import compile_graph, plan_on
from tests.drawn import rng
from tests.generated.kernels import GPU

G = GraphBuilder()
DEVICES = [s for s in devices.present() if s != "reference"]
pytestmark = pytest.mark.in_turn
Array = np.ndarray[Any, Any]


def model(nodes: list[Any], inputs: dict[str, Array], outputs: dict[str, int],
          constants: dict[str, Array | onnx.TensorProto], opset: int = 21) -> onnx.ModelProto:
    """A model of these nodes; `outputs`: name -> element type."""
    stored = [v if isinstance(v, onnx.TensorProto) else numpy_helper.from_array(v, k)
              for k, v in constants.items()]
    return helper.make_model(
        helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
             for k, v in inputs.items()],
            [helper.make_tensor_value_info(k, t, None) for k, t in outputs.items()], stored),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10)


def int4(name: str, values: Array, signed: bool = True) -> onnx.TensorProto:
    """An initialiser of 4 bits."""
    kind = TensorProto.INT4 if signed else TensorProto.UINT4
    return helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist())


def evaluated(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The model by the ops' references."""
    graph = import_model(load(proto), {k: v.shape for k, v in feeds.items()})
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    return [evaluate(node, memo) for _, node in graph.outputs]


def bodies(model: jitcl.Model) -> str:
    assert model.plan is not None
    return "\n".join(k.body for k in model.plan.kernels)


# -- weights of 4 bits -------------------------------------------------------------------------


def int4_matmul(signed: bool = True, block: int = 16) -> tuple[onnx.ModelProto, Array, Array]:
    """x @ dequantised int4 weights in blocks along K: (model, x, expected)."""
    low, high = (-8, 8) if signed else (0, 16)
    q = rng().integers(low, high, (64, 48))
    zero = rng().integers(low, high, (-(-64 // block), 48))
    scale = rng().uniform(0.01, 0.1, zero.shape).astype(np.float32)
    x = rng().normal(size=(5, 64)).astype(np.float32)
    proto = model(
        [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=block),
         helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": x}, {"y": TensorProto.FLOAT},
        {"q": int4("q", q, signed), "z": int4("z", zero, signed), "s": scale})
    full = [np.repeat(a, block, axis=0)[:64] for a in (zero, scale)]
    return proto, x, x @ ((q - full[0]) * full[1]).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("signed", "block"), [(True, 16), (False, 16), (True, 24)])
def test_int4_weights_are_read_packed(device: str, signed: bool, block: int) -> None:
    proto, x, want = int4_matmul(signed, block)
    compiled = jitcl.compile(proto, device=device)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
    assert compiled.plan is not None
    name = "int4" if signed else "uint4"
    assert f"{name}(" in bodies(compiled) or f"{name}_i32(" in bodies(compiled)
    large = [c for c in compiled.plan.constants.values() if c.nbytes > 1024]
    if 64 % block == 0:                     # else the scales are small enough to be repeated now
        assert [(c.dtype, c.size) for c in large] == [(np.uint8, 64 * 48 // 2)]


def test_int4_in_opencl_is_a_helper_that_features_know() -> None:
    proto, x, _ = int4_matmul()
    graph = import_model(load(proto), {"x": x.shape})
    plan = compile_graph(graph, GPU).plan
    assert any("int4" in features_of(k.body, k.options, k.template) for k in plan.kernels)


@pytest.mark.parametrize("device", DEVICES)
def test_a_target_without_packed_weights_gets_numbers(device: str) -> None:
    from dataclasses import replace

    proto, x, want = int4_matmul()
    place = devices.device(device)
    assert place is not None
    graph = import_model(load(proto), {"x": x.shape})
    graph = run_passes(graph, pipeline(replace(place.target, packed_weights=False), Options()))
    assert {n.op for n in graph.nodes} <= {"input", "const", "matmul", "reshape", "transpose"}
    got = devices.run_graph(device, graph, {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


class _Aborts:
    """A driver whose compiler dies of kernels with a feature."""

    def __init__(self, feature: str) -> None:
        self.feature = feature

    def rejects(self, entry: str, features: frozenset[str]) -> str:
        return f"{self.feature}: SIGABRT" if self.feature in features else ""


@pytest.mark.parametrize("feature", ["int4", "int8"])
@pytest.mark.parametrize("device", [d for d in DEVICES if d.startswith("opencl")])
def test_a_compiler_that_dies_of_packed_weights_gets_numbers(device: str, feature: str) -> None:
    proto, x, want = int4_matmul()
    place = devices.device(device)
    assert place is not None
    graph = import_model(load(proto), {"x": x.shape})
    plan = plan_on(place, graph, faults=_Aborts(feature))
    assert {s.variant for s in plan.steps} == {"unpacked"}
    assert not any(feature in features_of(k.body, k.options, k.template) for k in plan.kernels)
    (y,) = place.load(plan).run([x])
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_int4_of_odd_size_and_in_a_constant_node() -> None:
    q = rng().integers(-8, 8, (3, 5))
    proto = model(
        [helper.make_node("Constant", [], ["q"], value=int4("", q)),
         helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
         helper.make_node("Add", ["w", "x"], ["y"])],
        {"x": np.ones((1,), np.float32)}, {"y": TensorProto.FLOAT}, {"s": np.float32([0.5])})
    (y,) = evaluated(proto, {"x": np.ones((1,), np.float32)})
    np.testing.assert_array_equal(y, q * 0.5 + 1)


def test_int4_data_that_is_cut_off_is_refused() -> None:
    proto, x, _ = int4_matmul()
    stored = next(t for t in proto.graph.initializer if t.name == "q")
    stored.ClearField("int32_data")
    stored.raw_data = b"\0" * 7
    with pytest.raises(ModelError) as caught:
        import_model(load(proto), {"x": x.shape})
    assert "7" in str(caught.value)


# -- convolutions by dequantised weights ---------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group", [1, 4])
def test_qdq_convolution(device: str, group: int) -> None:
    """Weights of 8 bits and one scale an output channel stay in 8 bits."""
    q = rng().integers(-127, 128, (8, 4 // group, 3, 3)).astype(np.int8)
    q = np.tile(q, (8, 1, 1, 1))
    scale = rng().uniform(0.01, 0.1, 64).astype(np.float32)
    x = rng().normal(size=(1, 4, 9, 7)).astype(np.float32)
    proto = model(
        [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0),
         helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=group),
         helper.make_node("Relu", ["c"], ["y"])],
        {"x": x}, {"y": TensorProto.FLOAT}, {"q": q, "s": scale})
    (want,) = evaluated(proto, {"x": x})
    compiled = jitcl.compile(proto, device=device)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
    assert compiled.plan is not None
    large = [c.dtype for c in compiled.plan.constants.values() if c.nbytes > 512]
    assert large == [np.int8]


# -- MatMulNBits ---------------------------------------------------------------------------------


def nbits(bits: int, zeros: str, k: int, rows: int, dtype: Any = np.float32
          ) -> tuple[onnx.ModelProto, Array, Array]:
    """MatMulNBits: (model, a, expected). `zeros`: "", "packed" or "numbers"."""
    n, block = 24, 32
    blocks = -(-k // block)
    q = rng().integers(0, 1 << bits, (n, blocks, block)).astype(np.uint8)
    scale = rng().uniform(0.01, 0.1, (n, blocks)).astype(dtype)
    a = rng().normal(size=(2, rows, k)).astype(dtype)
    bias = rng().normal(size=n).astype(dtype)
    zero = np.full((n, blocks), 1 << (bits - 1), np.uint8)
    constants: dict[str, Any] = {"s": scale.reshape(-1), "b": bias}
    if zeros:
        zero = rng().integers(0, 1 << bits, (n, blocks)).astype(np.uint8)
    packed, packed_zero = q, zero
    if bits == 4:
        packed = q[..., ::2] | q[..., 1::2] << 4
        even = np.pad(zero, [(0, 0), (0, blocks % 2)])
        packed_zero = even[:, ::2] | even[:, 1::2] << 4
    constants["q"] = packed
    if zeros:
        constants["z"] = packed_zero.reshape(-1) if zeros == "packed" else zero.astype(dtype)
    names = ["a", "q", "s", "z" if zeros else "", "", "b"]
    proto = model(
        [helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n,
                          bits=bits, block_size=block)],
        {"a": a}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, constants)
    w = (q.astype(np.float32) - zero[..., None]) * scale.astype(np.float32)[..., None]
    w = w.reshape(n, -1)[:, :k]
    return proto, a, a.astype(np.float32) @ w.T + bias


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("bits", "zeros", "k", "rows"), [
    (4, "", 64, 1), (4, "packed", 96, 7), (4, "numbers", 80, 3), (8, "", 64, 2),
    (8, "packed", 96, 1)])
def test_matmul_nbits(device: str, bits: int, zeros: str, k: int, rows: int) -> None:
    proto, a, want = nbits(bits, zeros, k, rows)
    got = jitcl.compile(proto, device=device).run({"a": a})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_matmul_nbits_in_half(device: str) -> None:
    proto, a, want = nbits(4, "packed", 96, 3, np.float16)
    got = jitcl.compile(proto, device=device).run({"a": a})["y"]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("precision", ["normal", "low"])
@pytest.mark.parametrize("device", DEVICES)
def test_scales_keep_their_digits_under_lower_precision(device: str, precision: str) -> None:
    """Of a scale of 1e-5, half keeps seven bits."""
    proto, a, want = nbits(4, "", 64, 8)
    for t in proto.graph.initializer:
        if t.name == "s":
            small = numpy_helper.to_array(t) * np.float32(3e-4)
            t.CopyFrom(numpy_helper.from_array(small, "s"))
        elif t.name == "b":
            t.CopyFrom(numpy_helper.from_array(np.zeros(24, np.float32), "b"))
    (want,) = evaluated(proto, {"a": a})
    got = jitcl.compile(proto, device=device, precision=precision).run({"a": a})["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1.5e-3 * np.abs(want).max())


def refused(proto: onnx.ModelProto, a: Array, error: type[JitclError], text: str) -> None:
    with pytest.raises(error) as caught:
        import_model(load(proto), {"a": a.shape})
    assert text in str(caught.value)


def test_what_matmul_nbits_refuses() -> None:
    proto, a, _ = nbits(4, "", 64, 1)
    next(x for x in proto.graph.node[0].attribute if x.name == "bits").i = 3
    refused(proto, a, UnsupportedError,
            "weights of 3 bits are not supported: quantise to 2, 4 or 8")
    proto, a, _ = nbits(4, "", 64, 1)
    next(x for x in proto.graph.node[0].attribute if x.name == "N").i = 25
    refused(proto, a, ShapeError,
            "K=64, N=25 in blocks of 32 with 4 bits want u8[25,2,16], got u8[24,2,16]")


# -- what inference and rules say ----------------------------------------------------------------


def x(*shape: int, dtype: str = "f32") -> Node:
    return graph_input(f"x{len(shape)}", TensorType(dtype, shape))


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda: G.unpack_uint4(x(4, dtype="u8"), shape=(3, 3)), ShapeError,
     "unpack_uint4(u8[4]): [3, 3] is 9 values of 4 bits, two in each byte: wanted u8[5], got "
     "u8[4]"),
    (lambda: G.dequantize(x(4), x()), TypeError_,
     "dequantize(f32[4], f32[]): dequantize takes integers or low floats and a scale of floats, "
     "got f32[4] and "
     "f32[]"),
    (lambda: G.quantize(x(4), x(), to="i32"), TypeError_,
     "quantize(f32[4], f32[]): numbers are quantised to u8, i8, u16, i16, i4, u4, i2, u2, f8e4m3, "
     "f8e4m3z, f8e5m2, f8e5m2z, f4e2m1, not to i32"),
    (lambda: G.quantize(x(4), x(), x(1, dtype="i8"), to="u8"), TypeError_,
     "quantize(f32[4], f32[], i8[1]): quantize to u8 takes a scale of floats and a zero point of "
     "u8, got f32[] and i8[1]"),
    (lambda: G.matmul_integer(x(2, 3, dtype="u8"), x(3, 4, dtype="i32"), x(dtype="u8"),
                              x(dtype="i8")), TypeError_,
     "matmul_integer(u8[2,3], i32[3,4], u8[], i8[]): matmul_integer takes operands and zero points "
     "of u8 or i8, got i32[3,4]"),
])
def test_what_inference_says(make: Any, error: type[JitclError], text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == text


def test_scales_that_fit_no_axis_are_refused() -> None:
    a = np.zeros((2, 3), np.float32)
    proto = model([helper.make_node("QuantizeLinear", ["a", "s"], ["y"], axis=1)], {"a": a},
                  {"y": TensorProto.UINT8}, {"s": np.ones(2, np.float32)})
    refused(proto, a, ShapeError, "the scale f32[2] is neither one number nor one for each of the "
                                  "3 elements along axis 1 of f32[2,3]")


# -- decoding where it is read -------------------------------------------------------------------


def test_decoded_weights_are_part_of_each_reader() -> None:
    """Two readers decode the same packed constant; neither stores the numbers."""
    w = G.dequantize(const(rng().integers(0, 255, (64, 64)), "u8"), const(0.5, "f32"))
    a = x(4, 64)
    graph = Graph("g", (a,), (("y", G.matmul(a, w)),
                              ("z", G.matmul(a, G.transpose(w, perm=(1, 0))))))
    graph = run_passes(graph, pipeline(GPU, Options()))
    groups = fuse(graph, GPU)
    assert [g.root.op for g in groups] == ["matmul", "matmul"]
    assert all(g.decodes(g.root.inputs[1]) for g in groups)


READERS: dict[str, Any] = {
    "itself": lambda w, a: w,
    "relu": lambda w, a: G.relu(w),
    "gather": lambda w, a: G.gather(w, G.cast(G.mul(a, 4.0), to="i64"), axis=0),
    "einsum": lambda w, a: G.einsum(a, w, equation="ij,kj->ik"),
    "left of a matmul": lambda w, a: G.matmul(w, G.transpose(a, perm=(1, 0))),
    "both sides": lambda w, a: G.add(G.matmul(w, G.transpose(w, perm=(1, 0))), G.reduce_sum(a)),
    "softmax": lambda w, a: G.add(G.softmax(w, axis=1), G.reduce_max(a)),
    "concat": lambda w, a: G.concat(w, a, axis=0),
    "part of a matmul": lambda w, a: G.matmul(
        a, G.transpose(G.slice(w, starts=(8,), ends=(24,), axes=(0,), steps=(1,)), perm=(1, 0))),
    "sum": lambda w, a: G.mul(G.reduce_sum(w, axes=(0,)), a),
    "convolution": lambda w, a: G.conv(
        G.reshape(a, shape=(1, 1, 4, 32)), G.reshape(w, shape=(32, 1, 4, 8)), strides=(1, 1),
        pads=(0, 0, 0, 0), dilations=(1, 1), group=1),
}


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", READERS)
def test_whoever_reads_decoded_weights_reads_them_right(device: str, name: str) -> None:
    packed = const(rng().integers(0, 256, 32 * 16), "u8")
    scale = const(rng().uniform(0.1, 1, (32, 4, 1)), "f32")
    w = G.dequantize(G.unpack_uint4(packed, shape=(32, 4, 8)), scale, const(8, "u8"))
    w = G.reshape(w, shape=(32, 32))
    a = graph_input("a", TensorType("f32", (4, 32)))
    graph = Graph("g", (a,), (("y", READERS[name](w, a)),))
    feeds = {"a": rng().uniform(0, 7, (4, 32)).astype(np.float32)}
    want = evaluate(Decompose().run(graph).outputs[0][1], {a: feeds["a"]})
    for templates in (True, False):
        got = devices.run_graph(device, graph, feeds, templates=templates)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
