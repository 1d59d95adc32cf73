"""com.microsoft's ops give what onnxruntime gives, on random operands: by the references of the
ops they become, and compiled on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.errors import JitclError
from jitcl.frontends.onnx import import_model, load
from jitcl.ops.builder import evaluate
from tests import (  # noqa: F401  they fill CASES
    contrib_nodes_attention,
    contrib_nodes_experts,
    contrib_nodes_fused,
    contrib_nodes_misc,
    contrib_nodes_quantised,
)
from tests.contrib_cases import CASES, MICROSOFT, Array, Case
from tests.devices import present
from tests.programs import by_onnxruntime

onnxruntime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
KEYS = {c.op: c for c in reversed(CASES)}                # one case an op


def expected(case: Case) -> list[Array]:
    """onnxruntime's outputs, or the judge's."""
    if case.judge is not None:
        found = case.judge(*(a for a in case.args if a is not None))
        return [np.asarray(y) for y in found][:len(case.outputs)]
    return [np.asarray(y)
            for y in by_onnxruntime(case.model(), case.feeds(), optimised=False)]


def typed(model: onnx.ModelProto, results: list[Array]) -> onnx.ModelProto:
    """The model with its outputs' types written in."""
    for value, result in zip(model.graph.output, results):
        elem = helper.np_dtype_to_tensor_dtype(result.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, elem, result.shape))
    return model


def check(case: Case, got: list[Array], want: list[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        if case.rows is not None:
            g, w = case.rows(g), case.rows(w)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=1e-5,
                                   atol=case.atol)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rule(case: Case) -> None:
    """What the references of the ops give that the node becomes."""
    want, feeds = expected(case), case.feeds()
    loaded = load(typed(case.model(), want))
    graph = import_model(loaded, {n: a.shape for n, a in feeds.items()})
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    check(case, [evaluate(node, memo) for _, node in graph.outputs], want)


def compiled(case: Case, device: str) -> None:
    want = expected(case)
    model = jitcl.compile(typed(case.model(), want), device=device)
    check(case, list(model.run(case.feeds()).values()), want)
    assert model.plan is not None and model.plan.steps


QUICK = ("GroupQueryAttention", "MatMulNBits", "QLinearAdd", "FusedConv")
CHOSEN = (*QUICK, "RotaryEmbedding", "SkipSimplifiedLayerNormalization", "DynamicQuantizeMatMul",
          "Inverse")
FOLDED = ("Range", "SampleOp", "Unique")                 # nothing is left to compute


@pytest.mark.parametrize("op", QUICK)
def test_compiled(op: str) -> None:
    compiled(KEYS[op], "cpu")


@pytest.mark.sampled(slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(set(KEYS) - {*QUICK, *FOLDED}))
def test_every_op_compiled(op: str) -> None:
    compiled(KEYS[op], "cpu")


@pytest.mark.sampled(slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("device", [d for d in present() if d != "cpu"])
@pytest.mark.parametrize("op", CHOSEN)
def test_other_devices(op: str, device: str) -> None:
    """The ops that these become are tested there one by one, from their samples."""
    compiled(KEYS[op], device)


@pytest.mark.slow
def test_unique_of_fed_data() -> None:
    """How long the results are, data decides."""
    x = np.float32([2, 1, 1, 3, 4, 3])
    case = Case("unique", "Unique", (x,), outputs=(0, 1, 2))
    want = expected(case)
    model = typed(case.model(), want)
    for value in model.graph.output[::2]:
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    check(case, list(jitcl.compile(model, device="cpu").run({"x0": x}).values()), want)


@pytest.mark.parametrize("elem", [TensorProto.INT4, TensorProto.UINT4])
def test_gather_of_a_table_of_four_bits(elem: int) -> None:
    """Stored as ONNX's 4-bit types, not as bytes."""
    rng = np.random.default_rng(1)
    low, high = (-8, 8) if elem == TensorProto.INT4 else (0, 16)
    table, zeros = rng.integers(low, high, (40, 32)), rng.integers(low, high, (40, 2))
    scales, rows = rng.uniform(0.1, 1, (40, 2)).astype(np.float32), np.array([[3, 39], [0, -1]])
    stored = [helper.make_tensor("t", elem, table.shape, table.reshape(-1)),
              numpy_helper.from_array(scales, "s"),
              helper.make_tensor("z", elem, zeros.shape, zeros.reshape(-1))]
    node = helper.make_node("GatherBlockQuantized", ["t", "i", "s", "z"], ["y"], domain=MICROSOFT,
                            block_size=16, gather_axis=0, quantize_axis=1)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("i", TensorProto.INT64, rows.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 2, 32))], stored)
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)])
    want = (table - np.repeat(zeros, 16, axis=1)) * np.repeat(scales, 16, axis=1)
    got = jitcl.compile(model, device="cpu").run({"i": rows})["y"]
    np.testing.assert_allclose(got, want[rows], rtol=1e-5)


def _decoder() -> onnx.ModelProto:
    """One layer as onnxruntime-genai exports it: lengths are computed from the attention mask."""
    rng, info = np.random.default_rng(0), helper.make_tensor_value_info
    angle = rng.uniform(0, 3, (64, 8)).astype(np.float32)
    stored = {"zero": np.array(1), "axis": np.array([1]), "one": np.array([1]),
              "w": rng.normal(0, 0.2, (32, 128)).astype(np.float32), "cos": np.cos(angle),
              "sin": np.sin(angle)}
    node = helper.make_node
    nodes = [node("Shape", ["mask"], ["shape"]), node("Gather", ["shape", "zero"], ["whole"]),
             node("Cast", ["whole"], ["total"], to=TensorProto.INT32),
             node("ReduceSum", ["mask", "axis"], ["sum"], keepdims=0),
             node("Sub", ["sum", "one"], ["last"]),
             node("Cast", ["last"], ["ends"], to=TensorProto.INT32),
             node("MatMul", ["x", "w"], ["qkv"]),
             node("GroupQueryAttention",
                  ["qkv", "", "", "past_k", "past_v", "ends", "total", "cos", "sin"],
                  ["y", "k", "v"], domain=MICROSOFT, num_heads=4, kv_num_heads=2, do_rotary=1)]
    floats = {"x": ["b", "s", 32], "past_k": ["b", 2, "p", 16], "past_v": ["b", 2, "p", 16]}
    made = {"y": ["b", "s", 64], "k": ["b", 2, "t", 16], "v": ["b", 2, "t", 16]}
    graph = helper.make_graph(
        nodes, "decoder", [info("mask", TensorProto.INT64, ["b", "t"]),
                           *(info(n, TensorProto.FLOAT, shape) for n, shape in floats.items())],
        [info(n, TensorProto.FLOAT, shape) for n, shape in made.items()],
        [numpy_helper.from_array(a, n) for n, a in stored.items()])
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)])


@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.long if d == "opencl:pocl" else pytest.mark.slow)
    for d in present() if d != "reference"])
def test_growing_cache_compiles_nothing(device: str, tmp_path: Path) -> None:
    """A prompt and ten steps are as onnxruntime's; from the third step on kernels are there."""
    proto, rng = _decoder(), np.random.default_rng(1)
    session = onnxruntime.InferenceSession(proto.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    past_k = past_v = np.zeros((1, 2, 0, 16), np.float32)
    total, written = 0, []
    for length in (5, *(1,) * 10):
        total += length
        feeds = {"x": rng.normal(size=(1, length, 32)).astype(np.float32),
                 "mask": np.ones((1, total), np.int64), "past_k": past_k, "past_v": past_v}
        y, past_k, past_v = session.run(None, feeds)
        got = model.run(feeds)
        for found, want in zip(got.values(), (y, past_k, past_v), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5)
        written.append(model.cache.stats.writes)
    assert written[3] == written[-1]


def _refusal(op: str, *args: Any, **attrs: Any) -> Case:
    return Case(op, op, args, attrs, fed=tuple(range(len(args))))


X, HEADS = np.zeros((2, 3, 8), np.float32), {"num_heads": 2}
REFUSED = {
    "no operand": (_refusal("MatMulNBits", X, None, X, K=8, N=4, block_size=16),
                   "input 1 is left out, which MatMulNBits needs"),
    "odd bits": (_refusal("MatMulNBits", X, np.zeros((4, 1, 6), np.uint8),
                          np.zeros((4, 1), np.float32), K=8, N=4, block_size=16, bits=3),
                 "weights of 3 bits are not supported: quantise to 2, 4 or 8"),
    "odd blocks": (_refusal("MatMulNBits", X, np.zeros((4, 1, 7), np.uint8),
                            np.zeros((4, 1), np.float32), K=8, N=4, block_size=16),
                   "in blocks of 16 with 4 bits want u8[4,1,8], got u8[4,1,7]"),
    "heads": (_refusal("MultiHeadAttention", X, X, X, num_heads=3),
              "f32[2,3,8] can't be divided into 3 heads"),
    "mask": (_refusal("MultiHeadAttention", X, X, X, None, np.zeros((2, 5), np.int32), **HEADS),
             "the mask [2, 5] covers 5 keys of 3"),
    "rotary": (_refusal("Attention", X, np.zeros((8, 24), np.float32), do_rotary=1, **HEADS),
               "has do_rotary=1: export rotary positions as RotaryEmbedding"),
    "activation": (_refusal("FusedGemm", X[0], X[0].T.copy(), activation="Frobnicate"),
                   "the activation 'Frobnicate' is none of Relu, "),
    "metric": (_refusal("CDist", X[0], X[0], metric="hamming"),
               "metric='hamming' is neither euclidean nor sqeuclidean"),
    "generation": (_refusal("GreedySearch", X), "runs a whole generation loop"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    case, text = REFUSED[name]
    model = typed(case.model(), [X])
    with pytest.raises(JitclError) as caught:
        import_model(load(model), {n: a.shape for n, a in case.feeds().items()})
    assert text in str(caught.value)
