"""What precision "normal" and "low" store and compute, from graph to kernels. The pass itself, text
in and text out: tests/passes/precision.jitcl.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from jitcl.ir.graph import Graph, Node, const, graph_input, toposort
from jitcl.ir.printer import print_kernel
from jitcl.ir.sizes import Space
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.fuse import fuse
from jitcl.passes.precision import assign_precision
from jitcl.target import Target
from jitcl.target.profiles import find_profile
from tests.compiling import compile_graph
from tests.devices import device, present, run_graph
from tests.generated.kernels import TARGETS
from tests.test_tensor_cores import TARGET as TENSOR

g = GraphBuilder()


def x(name: str, *shape: int, dtype: str = "f32") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def weights(*shape: int, seed: int = 0) -> Node:
    rng = np.random.default_rng(seed)
    return g.const((rng.normal(size=shape) / 8).astype(np.float32))


def graph_of(y: Node) -> Graph:
    return Graph("g", tuple(n for n in toposort([y]) if n.op == "input"), (("y", y),))


def convolutions(c: int = 16, k: int = 32) -> Graph:
    """Two 3x3 convolutions with ReLU."""
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = g.relu(g.conv(x("x", 1, c, 28, 28), weights(k, c, 3, 3), **window))
    return graph_of(g.relu(g.conv(y, weights(k, k, 3, 3, seed=1), **window)))


def perceptron(m: int = 64) -> Graph:
    """Two products with a bias and ReLU."""
    y = g.relu(g.add(g.matmul(x("x", m, 512), weights(512, 256)), weights(256)))
    return graph_of(g.relu(g.add(g.matmul(y, weights(256, 128, seed=1)), weights(128))))


def test_an_inlined_sum_is_not_rounded() -> None:
    """relu(a + b) between two products: one kernel, which rounds what it stores alone."""
    a, b = (g.matmul(x(name, 64, 64), weights(64, 64)) for name in "ab")
    y = g.relu(g.add(g.sigmoid(a), g.sigmoid(b)))
    graph = graph_of(g.matmul(g.softmax(g.matmul(y, weights(64, 64)), axis=-1), weights(64, 64)))
    found = compile_graph(graph, TARGETS["gpu"], "normal", templates=False)
    text = "\n".join(print_kernel(k.kernel) for k in found.kernels if k is not None)
    rounded = [line for line in text.splitlines() if re.search(r"(?<!f32\()\bf16\(", line)]
    assert len(rounded) >= 2
    for line in rounded:
        assert re.fullmatch(r"\s*y\[.*\] = f16\((?!.*\bf16\().*\)", line), line


def own_templates(target: Target) -> Target:
    """The CPU path's templates write for OpenCL in "high" alone, with other copies and paddings."""
    return dataclasses.replace(target, cpu_templates=False)


@pytest.mark.parametrize("make", [convolutions, perceptron])
@pytest.mark.parametrize("target", ["gpu", "gpu-fp16", "mali", "cpu", "cpu-fp16"])
def test_lower_precision_launches_no_more_kernels(target: str, make) -> None:
    wanted = own_templates(TARGETS[target])
    launches = {p: [s.name for s in compile_graph(make(), wanted, p).plan.steps]
                for p in ("high", "normal", "low")}
    assert launches["normal"] == launches["low"] == launches["high"]


@pytest.mark.parametrize("spec", [s for s in present() if s != "reference"])
def test_convolutions_launch_as_many_kernels_on_a_device(spec: str) -> None:
    place = device(spec)
    assert place is not None
    counts = {sum(step.flops > 0 for step in
                  compile_graph(convolutions(), place.target, p).plan.steps)
              for p in ("high", "normal", "low")}                # but those that join split sums
    assert len(counts) == 1


@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize("precision", ["normal", "low"])
@pytest.mark.parametrize("spec", [s for s in present() if s != "reference"])
def test_a_mask_of_the_lowest_number_masks(spec: str, precision: str) -> None:
    """finfo.min as f16 would be -inf, and a row that is masked whole NaN."""
    scores = g.matmul(x("q", 64, 64), weights(64, 64))
    lowest = float(np.finfo(np.float32).min)
    masked = g.add(g.matmul(g.tanh(scores), weights(64, 64)), x("mask", 64, 64))
    masked = g.where(x("keep", 64, 64, dtype="bool"), masked, lowest)
    y = g.matmul(g.softmax(g.transpose(masked, perm=(1, 0)), axis=-1), weights(64, 64, seed=2))
    rng = np.random.default_rng(3)
    bias = rng.normal(size=(64, 64)).astype(np.float32)
    bias[:, 1] = lowest / 2
    keep = rng.random((64, 64)) < 0.5
    keep[:, 2] = False
    feeds = {"q": rng.normal(size=(64, 64)).astype(np.float32), "mask": bias, "keep": keep}
    want = run_graph(spec, graph_of(y), feeds)["y"]
    got = run_graph(spec, graph_of(y), feeds, precision=precision)["y"]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-3 * np.abs(want).max())


def depthwise() -> Graph:
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 128}
    y = g.relu(g.conv(x("x", 1, 128, 28, 28), weights(128, 1, 3, 3), **window))
    return graph_of(g.relu(g.conv(y, weights(128, 1, 3, 3, seed=1), **window)))


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("make", [convolutions, perceptron, depthwise])
@pytest.mark.parametrize("target", ["gpu", "mali", "cpu", "cpu-fp16"])
def test_weights_take_two_bytes_an_element(target: str, make, images: bool) -> None:
    """Of f32 models below "high", and of f16 models at any precision."""
    wanted = own_templates(TARGETS[target])
    if images:
        wanted = dataclasses.replace(wanted, images=True, image_pixels=65536)
    size = {p: sum(a.nbytes for a in compile_graph(make(), wanted, p).plan.constants.values()
                   if a.nbytes >= 2048) for p in ("high", "normal", "low")}
    assert size["normal"] == size["low"] == size["high"] // 2 > 0


def recurrent() -> Graph:
    y = g.lstm_states(x("x", 4, 2, 1, 128), weights(1, 128, 32), x("h", 1, 2, 32),
                      x("c", 1, 2, 32), direction="forward", activations=((
                          ("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0)),))
    return graph_of(g.relu(y))


def lookup() -> Graph:
    """Rows of a table, as of words."""
    rows = g.gather(weights(512, 64), x("i", 64, dtype="i64"), axis=0)
    return graph_of(g.matmul(rows, weights(64, 64)))


def tied() -> Graph:
    """A table of which few rows are read, and which is multiplied with, too."""
    table = weights(512, 64)
    row = g.gather(table, x("i", 1, dtype="i64"), axis=0)
    return graph_of(g.add(g.matmul(x("x", 1, 512), table), row))


@pytest.mark.parametrize("make", [recurrent, lookup, tied])
@pytest.mark.parametrize("target", ["gpu", "mali"])
def test_so_do_weights_of_recurrences_and_tables(target: str, make) -> None:
    size = {p: sum(a.nbytes for a in compile_graph(make(), TARGETS[target], p).plan.constants
                   .values() if a.nbytes >= 2048) for p in ("high", "normal", "low")}
    assert size["normal"] == size["low"] == size["high"] // 2 > 0


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("make", [recurrent, lookup, tied])
@pytest.mark.parametrize("spec", [s for s in present() if s != "reference"])
def test_their_results_are_those_of_high_precision(spec: str, make) -> None:
    graph, rng = make(), np.random.default_rng(4)
    feeds = {n.attr("name"): rng.integers(0, 512, n.type.shape) if n.type.dtype == "i64"
             else rng.normal(size=n.type.shape).astype(np.float32) for n in graph.inputs}
    want = run_graph(spec, graph, feeds)["y"]
    for precision in ("normal", "low"):
        got = run_graph(spec, graph, feeds, precision=precision)["y"]
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("rows", [512, 2048])
def test_a_gate_of_rows_stays_f32_however_many_they_are(rows: int) -> None:
    """So do the weights that it is made of, if they are not many. What is no number for a row is
    halved."""
    a = g.relu(g.matmul(x("x", rows, 64), weights(64, 64)))
    gate = g.sigmoid(g.matmul(g.matmul(a, weights(64, 32)), weights(32, 1)))
    plan = compile_graph(graph_of(g.matmul(g.mul(a, gate), weights(64, 64))), TARGETS["gpu"],
                         "normal").plan
    gates = [s for s in plan.steps if plan.buffers[s.buffers[-1]].nbytes in (2 * rows, 4 * rows)]
    assert [plan.buffers[s.buffers[-1]].dtype for s in gates] == ["f32"]
    halves = [b for b in plan.buffers if b.kind == "temp" and b.dtype == "f16"]
    assert {b.nbytes for b in halves} >= {2 * rows * 32}


def test_rows_whose_length_is_open_are_no_gate() -> None:
    """Though there is one of them now: asking for that would be a guard."""
    space = Space()
    n = space.symbol("n", 1)
    a = graph_input("x", TensorType("f32", (64, 64, n)))
    y = g.mul(g.sigmoid(g.relu(a)), a)
    graph, target = Graph("t", (a,), (("y", y),)), TARGETS["gpu"]
    assign_precision(graph, fuse(graph, target), target, "normal")
    assert not space.guards


def test_steps_say_why_nothing_is_f16() -> None:
    """Only where that was asked for."""
    y = g.matmul(x("x", 64, 64), weights(64, 64))
    total = g.reduce_sum(g.exp(y), axes=[0, 1])
    graph = graph_of(g.mul(g.sigmoid(total), x("z", 8)))
    steps = compile_graph(graph, TARGETS["gpu"], "normal").plan.steps
    assert [s.kept for s in steps] == ["", "no more than 4096 bytes"]
    sums = compile_graph(graph_of(g.reduce_sum(y, axes=[1])), TARGETS["gpu"], "normal").plan.steps
    assert sums[-1].kept == "a reduction"
    assert not any(s.kept for s in compile_graph(graph, TARGETS["gpu"], "high").plan.steps)


@pytest.mark.parametrize("precision", ["high", "normal", "low"])
@pytest.mark.parametrize("target", ["gpu", "mali", "cpu"])
def test_weights_of_an_f16_model_stay_f16(target: str, precision: str) -> None:
    rng = np.random.default_rng(0)
    w = g.const(rng.normal(size=(512, 256)).astype(np.float16))
    plan = compile_graph(graph_of(g.matmul(x("x", 64, 512, dtype="f16"), w)), TARGETS[target],
                         precision).plan
    assert [a.nbytes for a in plan.constants.values()] == [2 * 512 * 256]


@pytest.mark.sampled(quick=8)
@pytest.mark.parametrize("precision", ["high", "normal", "low"])
@pytest.mark.parametrize("make", [convolutions, perceptron, depthwise])
@pytest.mark.parametrize("spec", [s for s in present() if s.startswith("opencl")])
def test_results_are_those_of_high_precision(spec: str, make, precision: str) -> None:
    graph = make()
    rng = np.random.default_rng(5)
    feeds = {str(n.attr("name")): rng.normal(size=n.type.dims).astype(np.float32)
             for n in graph.inputs}
    want = run_graph("reference", graph, feeds)["y"]
    got = run_graph(spec, graph, feeds, precision=precision)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=np.abs(want).max() * (
        1e-5 if precision == "high" else 2e-3))


@pytest.mark.parametrize(("rows", "heads"), [(16, 8), (24, 4)])
def test_a_view_of_halves_is_read_as_halves(rows: int, heads: int) -> None:
    """Products read heads side by side where they lie: these are stored as f16, while the view of
    them says f32."""
    rng = np.random.default_rng(5)
    last = g.const((rng.normal(size=(32 * heads, 64)) / 16).astype(np.float32))
    first = g.matmul(g.softmax(x("p", 1, heads, rows, rows)), x("v", 1, heads, rows, 32))
    joined = g.reshape(g.transpose(first, perm=(0, 2, 1, 3)), shape=(rows, 32 * heads))
    graph = graph_of(g.matmul(joined, last))
    feeds = {str(n.attr("name")): rng.normal(size=n.type.dims).astype(np.float32) / 4
             for n in graph.inputs}
    want = run_graph("reference", graph, feeds)["y"]
    got = run_graph("cpu", graph, feeds, precision="normal")["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=np.abs(want).max() * 2e-3)


@pytest.mark.parametrize("scale, precision, dtype", [
    (0.01, "low", "f16"), (0.01, "normal", "f16"), (0.01, "high", "f32"),
    (300.0, "low", "f32"), (1e-6, "low", "f32")])
def test_weights_that_are_decoded_into_memory_become_f16_where_it_holds_them(
        scale: float, precision: str, dtype: str) -> None:
    """By the codes' type and the largest scale; scales stay as they are."""
    codes = const(np.random.default_rng(0).integers(0, 256, (96, 2, 32)).astype(np.uint8))
    some = np.random.default_rng(1).uniform(0.5, 1, (96, 2, 1))
    scales = const((scale * some).astype(np.float32))
    w = g.reshape(g.dequantize(codes, scales, const(np.uint8(128))), shape=(96, 64))
    graph = graph_of(g.matmul(g.tanh(x("x", 80, 64)), g.transpose(w, perm=(1, 0))))
    plan = compile_graph(graph, TENSOR, precision).plan
    decoded = next(s for s in plan.steps if "dequantize" in s.kernel)
    kernel = next(k for k in plan.kernels if k.entry == decoded.kernel)
    assert f"// {dtype}" in kernel.body.split(" y,")[1].splitlines()[0]
    assert "__global const float *restrict x1" in kernel.body
    products = {k.template for k in plan.kernels} - {"", None}
    assert ("gemm_tensor_opencl" in products) == (dtype == "f16")


@pytest.mark.parametrize("profile", ["mali-g610", "intel-hd-630", None])
def test_small_weights_are_halves_as_large_ones_on_gpus(profile: str | None) -> None:
    """Gates of 20 and of 200 channels, in "low"."""
    def gate(channels: int, precision: str) -> set[str]:
        window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
        y = g.sigmoid(g.conv(x("x", 1, channels, 1, 1), weights(4 * channels, channels, 1, 1),
                             **window))
        target = TARGETS["gpu-fp16"] if profile is None else find_profile(profile).target
        made = compile_graph(graph_of(g.mul(y, x("z", 1, 4 * channels, 16, 16))), target, precision)
        held = {a.dtype.name for a in made.plan.constants.values()}
        assert len(held) == 1
        return held

    for channels in (20, 200):
        assert [gate(channels, p) for p in ("high", "low")] == [{"float32"}, {"float16"}]


@pytest.mark.parametrize("channels", [32, 2048])
def test_biases_are_f32_however_many(channels: int) -> None:
    """In "low", where kernels compute in f32."""
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    y = g.conv(x("x", 1, 64, 16, 16), weights(channels, 64, 1, 1), **window)
    bias = weights(1, channels, 1, 1)
    target = dataclasses.replace(TARGETS["gpu-fp16"], fp16_arithmetic=False)
    plan = compile_graph(graph_of(g.relu(g.add(y, bias))), target, "low").plan
    held = {a.size: a.dtype.name for a in plan.constants.values()}
    assert held == {64 * channels: "float16", channels: "float32"}
