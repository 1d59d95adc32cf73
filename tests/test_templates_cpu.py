"""The CPU's templates against the ops' NumPy references, over layouts, shapes and fused
epilogues. Matrix products: tests/test_gemm_cpu.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jitcl import config
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import ROW, TensorType
from jitcl.target import CpuCore, Target
from jitcl.templates.conv_cpu import template as conv
from tests.compiling import compile_graph
from tests.cpu_templates import DEVICE, WIDTH, b, blocks, check, laid_out, run

CONVS = {
    "1x1": {"x": (1, 64, 14, 14), "k": 64, "kernel": (1, 1)},
    "1x1 flat, residual": {
        "x": (1, 32, 14, 14),
        "k": 64,
        "kernel": (1, 1),
        "source": 0,
        "halo": 0,
        "residual": True,
    },
    "3x3": {"x": (1, 64, 14, 14), "k": 64, "kernel": (3, 3), "source": 1, "halo": 1},
    "odd sizes, batch": {
        "x": (2, 24, 13, 9),
        "k": 40,
        "kernel": (3, 3),
        "source": 1,
        "halo": 2,
        "residual": True,
        "act": "tanh",
    },
    "row-major both sides": {
        "x": (2, 24, 13, 9),
        "k": 40,
        "kernel": (3, 3),
        "residual": True,
        "act": "sigmoid",
    },
    "few channels": {"x": (1, 3, 32, 30), "k": 32, "kernel": (3, 3), "strides": (2, 2), "halo": 1},
    "stem 7x7": {
        "x": (1, 3, 35, 32),
        "k": 32,
        "kernel": (7, 7),
        "strides": (2, 2),
        "pads": (3, 3, 2, 3),
        "halo": 0,
    },
    "groups": {
        "x": (1, 64, 12, 12),
        "k": 64,
        "kernel": (3, 3),
        "group": 64 // WIDTH,
        "source": 1,
        "halo": 0,
    },
    "dilated": {
        "x": (1, 64, 12, 12),
        "k": 48,
        "kernel": (3, 3),
        "dilations": (2, 3),
        "source": 3,
        "halo": 0,
    },
    "asymmetric": {
        "x": (1, 30, 12, 12),
        "k": 48,
        "kernel": (3, 2),
        "dilations": (2, 3),
        "pads": (0, 1, 2, 3),
    },
    "odd count of blocks": {"x": (1, 144, 7, 7), "k": 16, "kernel": (1, 1), "source": 0, "halo": 0},
    "one pixel, few outputs": {
        "x": (1, 16, 1, 1),
        "k": 5,
        "kernel": (1, 1),
        "source": 0,
        "halo": 0,
    },
    "one output": {
        "x": (1, 16, 6, 6),
        "k": 1,
        "kernel": (3, 3),
        "source": 1,
        "halo": 0,
        "act": "relu",
    },
    "strided 1x1": {
        "x": (1, 64, 14, 14),
        "k": 64,
        "kernel": (1, 1),
        "strides": (2, 2),
        "source": 0,
        "halo": 0,
    },
    "half, row-major": {
        "x": (1, 16, 9, 9),
        "k": 5,
        "kernel": (3, 3),
        "dtype": "f16",
        "residual": True,
    },
    "half, blocks": {
        "x": (1, 32, 9, 9),
        "k": 64,
        "kernel": (3, 3),
        "dtype": "f16",
        "source": 1,
        "halo": 1,
    },
    "1-D": {"x": (2, 24, 50), "k": 40, "kernel": (5,), "source": 2, "halo": 1, "residual": True},
    "1-D row-major": {"x": (1, 24, 50), "k": 33, "kernel": (3,), "strides": (2,)},
    "in parts": {"x": (1, 264, 9, 9), "k": 112, "kernel": (3, 3), "source": 1, "halo": 0,
                 "residual": True},
    "in parts, row-major": {"x": (2, 520, 7, 7), "k": 270, "kernel": (1, 1), "residual": True},
    "in parts, groups": {"x": (1, 256, 7, 7), "k": 192, "kernel": (3, 3), "group": 2, "source": 1,
                         "halo": 0},
}
PARTS = [name for name in CONVS if name.startswith("in parts")]


def conv_case(
    x,
    k,
    kernel,
    strides=None,
    pads=None,
    dilations=None,
    group=1,
    act="relu",
    residual=False,
    source=None,
    halo=None,
    dtype="f32",
):
    """(outputs, inputs) of conv + bias [+ residual] + act; `source` and `halo` block its input and
    result."""
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads = pads or tuple((n - 1) // 2 * d for n, d in zip(kernel, dilations)) * 2
    rng = np.random.default_rng(1)
    kind = "f4" if dtype == "f32" else "f2"
    inputs = [graph_input("x", TensorType(dtype, x))]
    w = (
        rng.standard_normal((k, x[1] // group, *kernel)) / np.sqrt(x[1] // group * np.prod(kernel))
    ).astype(kind)
    bias = const(rng.standard_normal((1, k) + (1,) * rank).astype(kind))
    data = inputs[0] if source is None else laid_out(b.neg(inputs[0]), blocks(source))
    layout = ROW if halo is None else blocks(halo)
    y = laid_out(
        b.conv(data, const(w), strides=strides, pads=pads, dilations=dilations, group=group), layout
    )
    y = laid_out(b.add(y, bias), layout)
    if residual:
        inputs.append(graph_input("r", y.type.with_(layout=ROW)))
        other = inputs[1] if halo is None else laid_out(b.neg(inputs[1]), layout)
        y = laid_out(b.add(y, other), layout)
    y = laid_out(b.op(act, y), layout)
    return ([y] if halo is None else [b.exp(y), b.neg(y)]), inputs, dtype


@pytest.mark.sampled(quick=8)
@pytest.mark.parametrize("name", CONVS)
def test_convolution(name):
    check(*conv_case(**CONVS[name]), "conv_cpu")


GATES = {
    "rows of pixels": {"x": (1, 64, 14, 14), "k": 24},
    "images, odd sizes": {"x": (2, 40, 9, 11), "k": 20, "halo": 1},
    "every second pixel": {"x": (1, 48, 13, 12), "k": 32, "strides": (2, 2), "halo": 0},
    "many channels": {"x": (1, 600, 11, 10), "k": 40, "halo": 0, "residual": True},
    "sums in row-major order": {"x": (1, 32, 8, 8), "k": 20, "blocked": False},
    "one axis": {"x": (2, 32, 50), "k": 24},
    "single pixels": {"x": (3, 32, 1, 2), "k": 24},
}


def gated_case(x, k, strides=None, halo=None, residual=False, blocked=True):
    """(outputs, inputs) of a 1x1 convolution of data times a gate of each image's channels."""
    rank = len(x) - 2
    data, gate = (graph_input(name, TensorType("f32", shape))
                  for name, shape in (("x", x), ("gate", (*x[:2], *(1,) * rank))))
    inputs = [data, gate]
    layout = blocks(0) if blocked else ROW
    product = b.mul(laid_out(b.neg(data), layout), laid_out(b.sigmoid(gate), layout))
    w = const(np.random.default_rng(1).standard_normal((k, x[1], *(1,) * rank)).astype("f4") / 8)
    layout = ROW if halo is None else blocks(halo)
    y = laid_out(b.conv(laid_out(product, blocks(0) if blocked else ROW), w,
                        strides=strides or (1,) * rank, pads=(0, 0) * rank, dilations=(1,) * rank,
                        group=1), layout)
    if residual:
        inputs.append(graph_input("r", y.type.with_(layout=ROW)))
        y = laid_out(b.add(y, laid_out(b.neg(inputs[-1]), layout)), layout)
    y = laid_out(b.relu(y), layout)
    return ([y] if halo is None else [b.exp(y), b.neg(y)]), inputs, "f32"


@pytest.mark.sampled(quick=5)
@pytest.mark.parametrize("name", GATES)
def test_a_convolutions_weights_take_the_gate(name):
    outputs, inputs, dtype = gated_case(**GATES[name])
    graph = Graph("t", tuple(inputs), tuple((f"y{i}", y) for i, y in enumerate(outputs)))
    plan = compile_graph(graph, DEVICE.target, passes=False).plan
    assert [k for k in plan.kernels if k.entry.startswith("conv_gated_")]
    results = []
    for threads in (1, 2, 3):
        with config.override(threads=threads):
            results.append([y.tobytes() for y in check(outputs, inputs, dtype, "conv_cpu")])
    assert results[0] == results[1] == results[2]


def test_the_gate_of_a_convolution_may_be_zero_or_endless():
    outputs, (x, gate), _ = gated_case((1, 32, 4, 4), 16)
    graph = Graph("t", (x, gate), (("y", outputs[0]),))
    feeds = [np.ones(i.type.dims, np.float32) for i in (x, gate)]
    feeds[1][:] = -np.inf                                   # sigmoid: 0
    assert not run(graph, feeds, "conv_cpu")[0].any()
    feeds[1][0, 3] = np.nan
    assert np.isnan(run(graph, feeds, "conv_cpu")[0]).all()


def test_convolution_is_equal_on_any_thread_count():
    results = []
    for n in (1, 2, 3):
        with config.override(threads=n):
            results.append([r.tobytes() for r in check(*conv_case(**CONVS["3x3"]), "conv_cpu")])
    assert results[0] == results[1] == results[2]


def test_nan_passes_a_convolution_and_relu():
    outputs, inputs, _ = conv_case(x=(1, 16, 5, 5), k=16, kernel=(1, 1))
    x = np.zeros((1, 16, 5, 5), np.float32)
    x[0, 3, 2, 2] = np.nan
    (y,) = run(Graph("t", tuple(inputs), (("y", outputs[0]),)), [x], "conv_cpu")
    assert (
        np.isnan(y[0, :, 2, 2]).all()
        and np.isfinite(np.delete(y.reshape(16, 25), 12, axis=1)).all()
    )


DEPTHWISE = {
    "3x3": {"x": (1, 32, 15, 17), "k": 32, "kernel": (3, 3), "group": 32, "source": 1, "halo": 1},
    "strided": {
        "x": (1, 48, 15, 17),
        "k": 48,
        "kernel": (3, 3),
        "group": 48,
        "strides": (2, 2),
        "source": 1,
        "halo": 0,
    },
    "odd channels, batch": {
        "x": (2, 24, 9, 9),
        "k": 24,
        "kernel": (5, 5),
        "group": 24,
        "source": 2,
        "halo": 1,
        "residual": True,
    },
    "row-major both sides": {
        "x": (1, 24, 9, 30),
        "k": 24,
        "kernel": (3, 3),
        "group": 24,
        "act": "tanh",
    },
    "dilated": {
        "x": (1, 32, 12, 12),
        "k": 32,
        "kernel": (3, 3),
        "group": 32,
        "dilations": (2, 3),
        "source": 3,
        "halo": 0,
    },
    "half": {
        "x": (1, 32, 9, 9),
        "k": 32,
        "kernel": (3, 3),
        "group": 32,
        "dtype": "f16",
        "source": 1,
        "halo": 0,
    },
    "1-D": {"x": (2, 24, 50), "k": 24, "kernel": (5,), "group": 24, "source": 2, "halo": 1},
}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolution(name):
    check(*conv_case(**DEPTHWISE[name]), "depthwise_cpu")


TRANSPOSED = {
    "stride 2": {
        "x": (1, 32, 9, 8),
        "k": 24,
        "kernel": (3, 3),
        "strides": (2, 2),
        "pads": (1, 1, 1, 1),
        "extra": (1, 1),
    },
    "kernel 2": {
        "x": (1, 16, 9, 8),
        "k": 1,
        "kernel": (2, 2),
        "strides": (2, 2),
        "pads": (0, 0, 0, 0),
    },
    "kernel 4, blocks": {
        "x": (2, 32, 9, 8),
        "k": 32,
        "kernel": (4, 4),
        "strides": (2, 2),
        "pads": (1, 1, 1, 1),
        "halo": 1,
    },
    "stride beyond kernel": {
        "x": (1, 16, 5, 5),
        "k": 16,
        "kernel": (2, 1),
        "strides": (3, 3),
        "pads": (0, 0, 0, 0),
        "halo": 0,
    },
    "big pads": {
        "x": (1, 16, 7, 7),
        "k": 16,
        "kernel": (5, 5),
        "strides": (2, 3),
        "pads": (3, 4, 2, 1),
    },
    "few channels": {
        "x": (1, 3, 7, 7),
        "k": 16,
        "kernel": (3, 3),
        "strides": (2, 2),
        "pads": (0, 0, 1, 1),
    },
    "1-D": {"x": (1, 16, 20), "k": 16, "kernel": (4,), "strides": (2,), "pads": (1, 1)},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name):
    spec = TRANSPOSED[name]
    rank = len(spec["kernel"])
    x = graph_input("x", TensorType("f32", spec["x"]))
    rng = np.random.default_rng(3)
    w = const(rng.standard_normal((spec["x"][1], spec["k"], *spec["kernel"])).astype("f4") / 8)
    bias = const(rng.standard_normal((1, spec["k"]) + (1,) * rank).astype("f4"))
    y = b.conv_transpose(
        x,
        w,
        strides=spec["strides"],
        pads=spec["pads"],
        dilations=(1,) * rank,
        group=1,
        output_padding=spec.get("extra", (0,) * rank),
    )
    if "halo" in spec:
        y = laid_out(y, blocks(spec["halo"]))
        y = laid_out(b.add(y, bias), blocks(spec["halo"]))
        check([b.exp(y), b.neg(y)], [x], "f32", "conv_transpose_cpu")
    else:
        check([b.relu(b.add(y, bias))], [x], "f32", "conv_transpose_cpu")


POOLS = {
    "3x3": {"kernel": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)},
    "dilated": {"kernel": (2, 3), "strides": (1, 2), "pads": (0, 2, 1, 1), "dilations": (2, 3)},
    "wide": {"kernel": (9, 9), "strides": (1, 1), "pads": (4, 4, 4, 4), "dilations": (1, 1)},
    "ceil": {"kernel": (3, 3), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)},
}


@pytest.mark.sampled(quick=5)
@pytest.mark.parametrize("op", ["max_pool", "average_pool", "average_pool, pads counted"])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("channels", [32, 24])
def test_pooling(op, name, channels):
    op, _, counted = op.partition(",")
    x = graph_input("x", TensorType("f32", (2, channels, 10, 9)))
    data = laid_out(b.neg(x), blocks(1))
    more = {"count_pad": True} if counted else {}
    y = laid_out(b.op(op, data, ceil=name == "ceil", **POOLS[name], **more), blocks(1))
    y = laid_out(b.sigmoid(y), blocks(1))
    check([b.exp(y), b.neg(y)], [x], "f32", "pool_cpu")


def test_pooling_in_one_dimension_keeps_nan():
    x = graph_input("x", TensorType("f32", (1, 16, 20)))
    data = laid_out(b.neg(x), blocks(0))
    window = {"kernel": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,)}
    y = laid_out(b.max_pool(data, **window), blocks(2))
    outputs = [b.exp(y), b.neg(y)]
    check(outputs, [x], "f32", "pool_cpu")
    array = np.zeros((1, 16, 20), np.float32)
    array[0, 2, 6] = np.nan
    graph = Graph("t", (x,), (("a", outputs[0]), ("b", outputs[1])))
    got = run(graph, [array], "pool_cpu")[1]
    assert np.flatnonzero(np.isnan(got)).tolist() == [2 * 10 + 3]


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", PARTS)
def test_a_convolution_in_parts_is_the_whole_one_bit_for_bit(name, monkeypatch):
    def run_once():
        return [y.tobytes() for y in check(*conv_case(**CONVS[name]), "conv_cpu")]

    parts, sources = run_once(), texts(name)
    assert "sums = scratch" in sources
    monkeypatch.setattr(Target, "core", CpuCore(1 << 20, l1=2 << 30))
    assert "sums = scratch" not in texts(name)
    assert run_once() == parts


@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("name", PARTS)
def test_a_convolution_of_a_large_input_is_the_same_bit_for_bit(name, groups, monkeypatch):
    """Several groups of output channels use a part of the input before the next is read."""
    def run_once():
        return [y.tobytes() for y in check(*conv_case(**CONVS[name]), "conv_cpu")]

    monkeypatch.setattr(Target, "core", CpuCore(l2=0, l1=2))
    parts = run_once()
    assert "range(first, " not in texts(name)
    monkeypatch.setattr(Target, "core", CpuCore(l2=0, l1=2, last_level=0))
    for attribute, value in (("WIDE_TILES", 1), ("WIDE", groups)):
        monkeypatch.setattr(conv, attribute, value)
    assert ("range(first, " in texts(name)) == (CONVS[name].get("group", 1) == 1)
    for n in (1, 2, 3):
        with config.override(threads=n):
            assert run_once() == parts


@pytest.mark.parametrize("groups, at_once", [
    (3, 3), (8, 8), (9, 5), (10, 5), (12, 6), (13, 7), (14, 7), (24, 8), (28, 7)])
def test_groups_share_an_input_in_equal_numbers(groups, at_once):
    """Threads split tiles, whatever the number of groups that these are computed for: of 8 and 4
    groups one thread would have twice the work."""
    assert conv.groups_at_once(groups) == at_once


def texts(name):
    """Sources of a convolution's kernels."""
    outputs, inputs, _ = conv_case(**CONVS[name])
    graph = Graph("t", tuple(inputs), tuple((f"y{k}", n) for k, n in enumerate(outputs)))
    kernels = compile_graph(graph, DEVICE.target, passes=False).plan.kernels
    return "".join(k.body for k in kernels)


def depthwise_plan(height, mean):
    """A depthwise convolution in blocks, whose pixels are summed if `mean`."""
    x = graph_input("x", TensorType("f32", (1, 2 * WIDTH, height, 9)))
    w = np.ones((2 * WIDTH, 1, 3, 3), np.float32)
    y = b.conv(x, const(w), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1),
               group=2 * WIDTH)
    y = laid_out(y, blocks())
    z = b.reduce_mean(y, axes=(2, 3), keepdims=True) if mean else b.neg(y)
    graph = Graph("t", (x,), (("y", y), ("z", z)))
    target = dataclasses.replace(DEVICE.target, compute_units=2)
    plan = compile_graph(graph, target, passes=False).plan
    return next(k.body for k in plan.kernels if k.template == "depthwise_cpu"
                and "lane_tile(" in k.body)


@pytest.mark.parametrize("height, mean, rows", [(8, False, True), (7, False, False),
                                                (8, True, False)])
def test_threads_share_rows_of_depthwise_results_unless_their_pixels_are_summed(
        height, mean, rows):
    assert ("share(oh, tid, nthreads)" in depthwise_plan(height, mean)) == rows
