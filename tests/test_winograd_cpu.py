"""3x3 convolutions by Winograd on the CPU: against the op's reference, what is chosen, what is
refused.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.devices.cpu import CpuDevice, probe_target
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.types import Layout, TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.target import Target
from jitcl.templates.cpu.tiling import Tile
from jitcl.templates.winograd_cpu import choice, template
from jitcl.templates.winograd_cpu.template import LARGEST_ERROR, WinogradCpu
from jitcl.templates.winograd_cpu.transforms import F2, F4, TRANSFORMS, relative_error
from tests.compiling import plan_on

with config.override(winograd=None):
    DEVICE = CpuDevice()
WIDTH = DEVICE.target.vector_width
WIDE = Target("cpu", "wide", compute_units=2, vector_width=16, registers=32, multiply_add="fma")
g = GraphBuilder()


def laid_out(node: Node, halo: int, width: int = WIDTH) -> Node:
    return Node.make(node.op, node.inputs, node.kwargs,
                     type=node.type.with_(layout=Layout("NCHWc", width, halo)))


def filters(k: int, c: int, seed: int = 1, taps=(3, 3)) -> np.ndarray:
    w = np.random.default_rng(seed).standard_normal((k, c, *taps))
    return (w / np.sqrt(c * np.prod(taps))).astype(np.float32)


def conv(x: Node, w: np.ndarray, pads=(1, 1, 1, 1), **attrs) -> Node:
    ones = (1,) * (len(x.type.dims) - 2)
    return g.conv(x, const(w), **{"strides": ones, "dilations": ones, "group": 1,
                                  "pads": pads, **attrs})


def case(x, k, *, pads=(1, 1, 1, 1), source=1, halo=1, residual="", act="relu", along_rows=False):
    """(outputs, inputs) of conv + bias [+ residual in "blocks" or "rows"] + act, in blocks."""
    inputs = [graph_input("x", TensorType("f32", x))]
    data = inputs[0] if source is None else laid_out(g.neg(inputs[0]), source)
    ones = (1,) * (len(x) - 2)
    taps = (*ones[1:], 3) if along_rows else (3, 3)
    w = filters(k, x[1], taps=taps)
    y = laid_out(conv(data, w, pads), halo)
    bias = np.random.default_rng(2).standard_normal((1, k, *ones)).astype(np.float32)
    bias = const(bias)
    y = laid_out(g.add(y, bias), halo)
    if residual:
        inputs.append(graph_input("r", TensorType("f32", y.type.dims)))
        other = laid_out(g.neg(inputs[1]), halo) if residual == "blocks" else inputs[1]
        y = laid_out(g.add(y, other), halo)
    y = laid_out(g.op(act, y), halo)
    return [g.exp(g.neg(g.abs(y))), g.neg(y)], inputs


def load(outputs, inputs, target):
    """(the loaded graph, kernels that Winograd's template wrote)."""
    graph = Graph("t", tuple(inputs), tuple((f"y{i}", n) for i, n in enumerate(outputs)))
    plan = plan_on(DEVICE, graph, target, passes=False)
    return DEVICE.load(plan), [k for k in plan.kernels if k.template == "winograd_cpu"]


def run(outputs, inputs, arrays, target):
    """(results on the CPU, kernels that Winograd's template wrote)."""
    loaded, kernels = load(outputs, inputs, target)
    return loaded.run(arrays), kernels


def forced(outputs: int) -> Target:
    return dataclasses.replace(DEVICE.target, winograd=outputs)


def random_arrays(inputs):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(i.type.dims).astype(np.float32) for i in inputs]


def compare(nodes, inputs, arrays, results):
    for node, got in zip(nodes, results):
        want = evaluate(node, dict(zip(inputs, arrays))).astype(np.float64)
        assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max())


CASES = {
    "whole tiles": {"x": (1, 32, 16, 16), "k": 32},
    "ragged": {"x": (1, 32, 13, 18), "k": 32, "halo": 2},
    "no padding": {"x": (1, 32, 15, 13), "k": 48, "pads": (0, 0, 0, 0), "source": 0, "halo": 0},
    "asymmetric": {"x": (1, 32, 12, 11), "k": 32, "pads": (0, 2, 1, 0), "source": 2},
    "batch": {"x": (3, 32, 9, 14), "k": 32, "residual": "blocks"},
    "odd channels": {"x": (2, 19, 13, 11), "k": 37, "act": "tanh", "residual": "blocks"},
    "element by element": {"x": (1, 24, 10, 11), "k": 37, "residual": "rows"},
    "row-major input": {"x": (1, 24, 14, 9), "k": 40, "source": None, "act": "sigmoid"},
    "odd count of blocks": {"x": (1, 16, 12, 12), "k": 5 * WIDTH, "act": "sigmoid"},
    "many channels": {"x": (1, 300, 9, 10), "k": 64},
}


QUICK_F2 = ("ragged", "odd channels")          # F(2x2) differs in its numbers only


@pytest.mark.sampled(quick=8, slow=4)
@pytest.mark.parametrize("name, outputs", [
    *((name, 4) for name in CASES),
    *(pytest.param(name, 2, marks=() if name in QUICK_F2 else pytest.mark.slow) for name in CASES),
])
def test_results_are_the_reference(name, outputs):
    nodes, inputs = case(**CASES[name])
    arrays = random_arrays(inputs)
    results, kernels = run(nodes, inputs, arrays, forced(outputs))
    assert kernels[-1].entry.startswith(f"winograd_{outputs}x{outputs}")
    compare(nodes, inputs, arrays, results)


def test_an_epilogue_of_single_elements_is_written_so():
    nodes, inputs = case(**CASES["element by element"])
    _, kernels = run(nodes, inputs, random_arrays(inputs), forced(4))
    assert "load(acc, (r * 4 + c)" in kernels[-1].body
    assert "vload(acc, (r * 4 + c)" not in kernels[-1].body


ALONG_ROWS = {
    "whole tiles": {"x": (1, 32, 48), "k": 32},
    "ragged, batch": {"x": (3, 19, 37), "k": 37, "halo": 2, "residual": "blocks"},
    "no padding": {"x": (1, 32, 41), "k": 48, "pads": (0, 0), "source": 0, "halo": 0},
    "asymmetric": {"x": (2, 32, 40), "k": 32, "pads": (0, 2), "source": 2, "act": "tanh"},
    "element by element": {"x": (1, 24, 33), "k": 37, "residual": "rows"},
    "row-major input": {"x": (1, 24, 50), "k": 40, "source": None, "act": "sigmoid"},
    "rows of an image": {"x": (2, 32, 7, 21), "k": 32, "pads": (0, 1, 0, 1)},
    "rows of an image, padded": {"x": (1, 32, 3, 30), "k": 32, "pads": (2, 0, 1, 1), "source": 2},
}


@pytest.mark.sampled(quick=10)
@pytest.mark.parametrize("name", ALONG_ROWS)
@pytest.mark.parametrize("outputs", [2, 4])
def test_filters_along_rows(name, outputs):
    nodes, inputs = case(**{"pads": (1, 1), **ALONG_ROWS[name]}, along_rows=True)
    arrays = random_arrays(inputs)
    results, kernels = run(nodes, inputs, arrays, forced(outputs))
    assert kernels[-1].entry.startswith(f"winograd_1x{outputs}_")
    compare(nodes, inputs, arrays, results)


def with_blocking(monkeypatch, blocking):
    monkeypatch.setattr(template, "choices", lambda s, target: [blocking])


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("name", ["ragged", "batch"])
def test_bits_depend_on_neither_threads_nor_blocks(name, monkeypatch):
    """One kernel or two, many tiles at once or few, 1 to 3 threads, first run or second."""
    nodes, inputs = case(**CASES[name])
    arrays = random_arrays(inputs)
    found = set()
    for whole, columns, groups in ((True, 3, 2), (False, 5, 1)):
        with_blocking(monkeypatch, choice.Blocking(4, Tile(1, columns, 2), groups, whole))
        loaded, kernels = load(nodes, inputs, DEVICE.target)
        assert len(kernels) == (1 if whole else 2)
        for threads in (1, 2, 3, 1):
            with config.override(threads=threads):
                results = loaded.run(arrays)
                found.add(tuple(r.tobytes() for r in results))
    compare(nodes, inputs, arrays, results)
    assert len(found) == 1


@pytest.mark.slow
def test_halves_are_computed_in_f32():
    """Results of the same numbers in f32, rounded."""
    found = {}
    for dtype, numpy in (("f32", np.float32), ("f16", np.float16)):
        x = graph_input("x", TensorType(dtype, (1, 32, 13, 18)))
        w = filters(32, 32).astype(np.float16).astype(numpy)
        y = laid_out(conv(laid_out(g.neg(x), 1), w), 0)
        array = np.random.default_rng(0).standard_normal(x.type.dims).astype(np.float16)
        (found[dtype], _), kernels = run([g.neg(y), g.abs(y)], [x], [array.astype(numpy)],
                                         forced(4))
        assert kernels
    assert (found["f16"] == found["f32"].astype(np.float16)).all()


def test_nan_stays_in_its_tiles():
    nodes, inputs = case(x=(2, 16, 12, 12), k=16, act="relu")
    array = np.zeros((2, 16, 12, 12), np.float32)
    array[1, 3, 5, 6] = np.nan
    (_, y), _ = run(nodes, inputs, [array], forced(4))
    assert np.isnan(y[1, :, 4:7, 5:8]).all()                   # as the convolution has it
    assert np.isfinite(y[0]).all() and np.isfinite(y[1, :, 8:]).all()


# ---- what is chosen


def group_of(x, k, *, dtype="f32", w=None, blocked=True, target=WIDE, **attrs) -> Group:
    data = graph_input("x", TensorType(dtype, x))
    weights = filters(k, x[1] // attrs.get("group", 1)) if w is None else w
    y = conv(data, weights.astype({"f32": "f4", "f16": "f2", "f64": "f8"}[dtype]), **attrs)
    y = laid_out(y, 0, target.vector_width) if blocked else y
    return Group(y, frozenset(), y)


def outputs_of(group: Group, target: Target = WIDE) -> int:
    """Outputs along a side of the tiles that are chosen; 0 where the template declines."""
    found = WinogradCpu().candidates(group, target)
    return found[0].outputs if found else 0


RESNET = [(64, 56, {4}), (128, 28, {4}), (256, 14, {2, 4}), (512, 7, {0})]


@pytest.mark.parametrize("channels, size, wanted", RESNET)
def test_layers_of_a_resnet(channels, size, wanted):
    assert outputs_of(group_of((1, channels, size, size), channels)) in wanted


@pytest.mark.parametrize("channels, k, length, stride, wanted", [
    (80, 384, 3000, 1, 4), (384, 384, 3000, 2, 0), (512, 512, 1500, 1, 4), (64, 64, 1000, 1, 4),
    (32, 32, 5, 1, 0)])
def test_layers_of_speech_models(channels, k, length, stride, wanted):
    group = group_of((1, channels, length), k, w=filters(k, channels, taps=(3,)), pads=(1, 1),
                     strides=(stride,))
    assert outputs_of(group) == wanted


DECLINED = {
    "thin, in": {"x": (1, 15, 56, 56), "k": 64},
    "thin, out": {"x": (1, 64, 56, 56), "k": 15},
    "small": {"x": (1, 64, 5, 5), "k": 64},
    "low": {"x": (1, 64, 3, 400), "k": 64},
    "1x1": {"x": (1, 64, 56, 56), "k": 64, "w": filters(64, 64)[:, :, :1, :1]},
    "strided": {"x": (1, 64, 56, 56), "k": 64, "strides": (2, 1)},
    "dilated": {"x": (1, 64, 56, 56), "k": 64, "dilations": (1, 2)},
    "short rows": {"x": (1, 64, 56, 5), "k": 64, "w": filters(64, 64, taps=(1, 3))},
    "along columns": {"x": (1, 64, 56, 56), "k": 64, "w": filters(64, 64, taps=(3, 1))},
    "every second": {"x": (1, 64, 56, 56), "k": 64, "w": filters(64, 64, taps=(1, 3)),
                     "strides": (1, 2)},
    "grouped": {"x": (1, 64, 56, 56), "k": 64, "group": 2},
    "depthwise": {"x": (1, 64, 56, 56), "k": 64, "group": 64},
    "double": {"x": (1, 64, 56, 56), "k": 64, "dtype": "f64"},
    "row-major": {"x": (1, 64, 56, 56), "k": 64, "blocked": False},
    "empty": {"x": (0, 64, 56, 56), "k": 64},
}


@pytest.mark.parametrize("name", DECLINED)
def test_everything_else_is_left_to_direct_convolution(name):
    assert outputs_of(group_of(**DECLINED[name])) == 0


def test_weights_that_are_no_constant_are_declined():
    x, w = (graph_input(n, TensorType("f32", s)) for n, s in (("x", (1, 64, 56, 56)),
                                                              ("w", (64, 64, 3, 3))))
    y = laid_out(g.conv(x, w, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1), 0, 16)
    assert outputs_of(Group(y, frozenset(), y)) == 0


def test_the_target_decides():
    group = group_of((1, 64, 56, 56), 64)
    assert [outputs_of(group, dataclasses.replace(WIDE, winograd=n)) for n in (0, 2, 4)] == [
        0, 2, 4]
    with config.override(winograd=2):
        assert probe_target().winograd == 2
    with config.override(winograd=None):
        assert probe_target().winograd is None


@pytest.mark.parametrize("width, registers", [(4, 16), (4, 32), (8, 16), (16, 32)])
def test_blocks_fit_the_stack_and_registers(width, registers):
    target = dataclasses.replace(WIDE, vector_width=width, registers=registers, cache_bytes=1 << 18)
    for channels, size, _ in RESNET:
        s = template.shape_of(group_of((1, channels, size, size), channels).root)
        for b in choice.choices(s, target):
            assert b.groups == 1 or b.stack_bytes(s, width) <= target.core.stack
            assert b.stack_bytes(s, width) <= 224 << 10
            assert b.tiles <= b.counts(s)[1]
            assert (b.tile.columns + 1) * b.tile.blocks < registers


# ---- accuracy


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", TRANSFORMS.values(), ids=lambda t: f"F{t.outputs}")
@pytest.mark.parametrize("taps", [(3, 3), (3,)], ids=str)
def test_errors_of_plain_filters_are_those_of_sums_in_f32(t, fused, taps):
    assert 0 < relative_error(filters(32, 64, taps=taps), t, fused=fused) < 3e-6


def test_the_measured_error_is_the_kernels():
    """What is foretold for some filters on random data holds for a kernel, within its spread."""
    w = filters(32, 64)
    x = np.abs(np.random.default_rng(5).standard_normal((1, 64, 20, 20))).astype(np.float32)
    data = graph_input("x", TensorType("f32", x.shape))
    y = laid_out(conv(laid_out(g.neg(data), 1), w), 0)
    (got, _), kernels = run([g.neg(y), g.exp(y)], [data], [x], forced(4))
    assert kernels
    pads = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(pads, (3, 3), axis=(1, 2))
    want = np.tensordot(w.astype(np.float64), windows, ((1, 2, 3), (0, 3, 4)))
    error = np.abs(got[0] - want).max() / np.abs(want).max()
    foretold = relative_error(w, F4, fused=DEVICE.target.multiply_add == "fma")
    assert foretold / 3 < error < 3 * foretold


def test_f4_is_refused_for_weights_that_it_loses():
    """Its transformed weights are smaller than the weights: of numbers at the lower end of f32, all
    but a few bits are lost."""
    w = filters(64, 64) * np.float32(1e-38)
    assert relative_error(w, F4) > LARGEST_ERROR >= relative_error(w, F2)
    group = group_of((1, 64, 56, 56), 64, w=w)
    assert outputs_of(group) == 2
    assert outputs_of(group, dataclasses.replace(WIDE, winograd=4)) == 0


def test_sums_that_cancel_are_left_to_direct_convolution():
    w = np.ones((16, 1024, 3, 3), np.float32)
    w[:, 512:] = -1
    assert min(relative_error(w, t) for t in TRANSFORMS.values()) > LARGEST_ERROR
    assert outputs_of(group_of((1, 1024, 28, 28), 16, w=w)) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_weights_that_overflow_are_left_to_direct_convolution(value):
    w = filters(64, 64)
    w[0, 0] = value
    assert outputs_of(group_of((1, 64, 56, 56), 64, w=w)) == 0
    assert relative_error(np.zeros((16, 16, 3, 3), np.float32), F4) == 0


def test_memory_low_keeps_weights_as_large_as_the_models():
    """Transformed weights are four times as large."""
    x = graph_input("x", TensorType("f32", (1, 64, 28, 28)))
    y = conv(conv(x, filters(64, 64)), filters(64, 64))
    graph = Graph("t", (x,), (("y", g.neg(y)),))
    found = {}
    for memory in ("normal", "low"):
        with config.override(winograd=4):
            model = jitcl.compile(graph, device="cpu", memory=memory)
            model.run({"x": np.zeros((1, 64, 28, 28), np.float32)})
        found[memory] = {s.template for s in model.report().steps}
    assert "winograd_cpu" in found["normal"] and "winograd_cpu" not in found["low"]
