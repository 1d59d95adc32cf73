"""Products of bytes on CPUs that add them by fours: exact, over shapes, layouts and zero points;
and a model that was quantised by another tool.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.devices.cpu import CpuDevice
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import ROW, Layout, TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.base import run_passes
from jitcl.passes.integer_products import IntegerProducts
from tests.compiling import plan_on
from tests.programs import by_onnxruntime

DEVICE = CpuDevice()
WIDTH = DEVICE.target.vector_width
pytestmark = pytest.mark.skipif(
    not DEVICE.target.byte_dot, reason="this CPU does not add products of bytes by fours")
g = GraphBuilder()


def in_blocks(node: Node, halo: int = 0) -> Node:
    layout = Layout("NCHWc", WIDTH, halo)
    return Node.make(node.op, node.inputs, node.kwargs, type=node.type.with_(layout=layout))


def check(y: Node, inputs: list[Node], template: str, seed: int = 0) -> None:
    """The template computes y exactly as the references do."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 256, i.type.dims).astype(np.uint8) for i in inputs]
    graph = Graph("t", tuple(inputs), (("y", y),))
    plan = plan_on(DEVICE, graph, passes=False)
    assert template in {k.template for k in plan.kernels}
    (got,) = DEVICE.load(plan).run(arrays)
    np.testing.assert_array_equal(got, evaluate(y, dict(zip(inputs, arrays))))


def extremes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Signed bytes, many of them at the ends of their range."""
    return np.clip(rng.normal(0, 120, shape), -128, 127).astype(np.int8)


CONVS = {
    "1x1": ((1, 64, 14, 14), 64, (1, 1), {}),
    "1x1, a zero point": ((1, 24, 9, 7), 40, (1, 1), {"zero": 131}),
    "3x3": ((2, 32, 13, 9), 48, (3, 3), {"pads": (1, 1, 1, 1)}),
    "3x3, strides, a zero point": ((1, 20, 15, 12), 24, (3, 3), {"strides": (2, 2), "zero": 9}),
    "deep": ((1, 512, 7, 7), 256, (3, 3), {"pads": (1, 1, 1, 1)}),
    "odd channels": ((1, 13, 8, 11), 19, (2, 3), {"pads": (0, 1, 1, 0), "dilations": (2, 1)}),
    "groups": ((1, 64, 8, 8), 64, (3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "rows": ((2, 16, 40), 32, (3,), {"pads": (1, 1), "strides": (1,), "dilations": (1,)}),
}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("layouts", ["rows", "blocks"])
@pytest.mark.parametrize("name", CONVS)
def test_convolution(name: str, layouts: str) -> None:
    dims, k, kernel, more = CONVS[name]
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, **more}
    zero = attrs.pop("zero", 0)
    x = graph_input("x", TensorType("u8", dims))
    source: Node = x
    if layouts == "blocks":                     # what a layer before would have stored
        source = in_blocks(g.max(x, const(3, "u8")), halo=max(attrs["pads"]))
    w = const(extremes(np.random.default_rng(1), k, dims[1] // attrs["group"], *kernel), "i8")
    sums = g.op("conv_integer", source, w, const(zero, "u8"), const(0, "i8"), **attrs)
    scale = np.random.default_rng(2).uniform(0.001, 0.002, (1, k, *(1,) * len(kernel)))
    numbers = g.mul(g.cast(sums, to="f32"), const(scale.astype(np.float32), "f32"))
    y = g.op("quantize", numbers, const(np.float32(0.25), "f32"), const(100, "u8"), to="u8")
    if layouts == "blocks":
        y = g.max(in_blocks(y), const(0, "u8"))
        y = Node.make(y.op, y.inputs, y.kwargs, type=y.type.with_(layout=ROW))
    check(y, [x], "conv_integer_cpu")


def test_sums_beyond_24_bits_in_a_block_with_padding() -> None:
    """Blocks of i32 whose last one is not full: exact, where f32 would have rounded them."""
    x = graph_input("x", TensorType("u8", (1, 2048, 3, 5)))
    w = const(np.random.default_rng(1).integers(90, 128, (24, 2048, 1, 1)).astype(np.int8), "i8")
    sums = in_blocks(g.op(
        "conv_integer", x, w, const(0, "u8"), const(0, "i8"), strides=(1, 1), pads=(0,) * 4,
        dilations=(1, 1), group=1))
    blocked = in_blocks(g.add(sums, const(1, "i32")))
    y = g.sub(blocked, g.reduce_max(blocked, axes=(2, 3), keepdims=True))   # read twice: stored
    check(Node.make(y.op, y.inputs, y.kwargs, type=y.type.with_(layout=ROW)), [x],
          "conv_integer_cpu")


GEMMS = {
    "plain": ((40, 64), 48, 0),
    "a zero point, ragged": ((37, 52), 41, 77),
    "no whole fours": ((20, 30), 32, 5),
    "deep": ((30, 3072), 96, 128),
    "rows of a page": ((20, 4096), 32, 1),
    "batches": ((2, 3, 15, 64), 40, 3),
    "few rows": ((3, 64), 40, 3),
}


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("name", GEMMS)
def test_matrix_product(name: str) -> None:
    dims, n, zero = GEMMS[name]
    x = graph_input("x", TensorType("u8", dims))
    w = const(extremes(np.random.default_rng(1), dims[-1], n), "i8")
    sums = g.op("matmul_integer", x, w, const(zero, "u8"), const(0, "i8"))
    check(g.add(sums, const(np.arange(n, dtype=np.int32), "i32")), [x], "gemm_integer_cpu")


@pytest.mark.parametrize("channels, side, stride, more, integers", [
    (16, 8, 1, {}, False),
    (16, 7, 1, {}, True),
    (12, 8, 1, {}, True),
    (16, 16, 2, {}, True),
    (16, 8, 1, {"winograd": 0}, True),
    (16, 8, 1, {"byte_dot": "bytes"}, True),
])
def test_pairs_leave_to_winograd_what_it_computes_faster(
        channels: int, side: int, stride: int, more: dict[str, object], integers: bool) -> None:
    target = dataclasses.replace(DEVICE.target, **{"byte_dot": "pairs", "winograd": None, **more})
    x = graph_input("x", TensorType("u8", (1, channels, side, side)))
    w = const(extremes(np.random.default_rng(0), channels, channels, 3, 3), "i8")
    scale = const(np.float32(0.5), "f32")
    y = g.op("conv", g.dequantize(x, scale, const(0, "u8")), g.dequantize(w, scale),
             strides=(stride, stride), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    graph = run_passes(Graph("t", (x,), (("y", y),)), (IntegerProducts(target),))
    assert any(node.op == "conv_integer" for node in graph.nodes) == integers


def test_threads_give_the_same() -> None:
    dims, n, zero = GEMMS["deep"]
    model = jitcl.parse(f"""graph @g(%x: u8[{dims[0]},{dims[1]}], %w: i8[{dims[1]},{n}]) {{
  %z = const {{data=u8[]({zero})}}
  %o = const {{data=i8[](0)}}
  %y = matmul_integer(%x, %w, %z, %o)
  return y: %y
}}""")
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, dims).astype(np.uint8), extremes(rng, dims[1], n)
    want = (x.astype(np.int32) - zero) @ w.astype(np.int32)
    for threads in (1, 2, 3):
        with config.override(threads=threads):
            got = jitcl.compile(model, device="cpu").run({"x": x, "w": w})["y"]
        np.testing.assert_array_equal(got, want)


def test_a_model_in_qdq_form() -> None:
    """Layers between QuantizeLinear and DequantizeLinear: convolutions, a residual sum, Gemm."""
    from tests import qdq
    model, feeds = qdq.small_network()
    compiled = jitcl.compile(model, device="cpu")
    got = compiled.run(feeds)["y"]
    templates = {s.template for s in compiled.report().steps}
    assert {"conv_integer_cpu", "gemm_integer_cpu"} <= templates
    (want,) = by_onnxruntime(model, feeds)
    assert np.abs(got - want).max() <= qdq.STEP        # a tie that rounds the other way
    assert np.mean(got != want) < 0.02
