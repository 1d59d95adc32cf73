"""Blocks of channels and padded rows: which tensors get them, read off the printed graph. Weights
must be constants here, so the graphs are built and not written.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import jitcl
from jitcl.codegen.lower import lower
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Flag, Group
from jitcl.ir.printer import print_graph, print_kernel
from jitcl.ir.types import Layout, TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.base import run_passes
from jitcl.passes.layout import AssignLayouts
from jitcl.target import Target

TARGET = Target("cpu", "test", vector_width=16)
GPU = Target("opencl", "test", device_type="gpu", vector_width=4)
g = GraphBuilder()


def x(*shape: int, name: str = "x") -> Node:
    return graph_input(name, TensorType("f32", shape))


def weights(*shape: int) -> Node:
    return g.const(np.random.default_rng(0).normal(size=shape).astype(np.float32) / 8)


def conv(data: Node, w: Node, pad: int = 0, group: int = 1) -> Node:
    return g.conv(data, w, strides=(1, 1), pads=(pad,) * 4, dilations=(1, 1), group=group)


def as_pixels(tokens: Node, h: int, w: int) -> Node:
    """[n, h * w, c] -> [n, c, h, w]"""
    n, _, c = tokens.type.dims
    return g.reshape(g.transpose(tokens, perm=(0, 2, 1)), shape=(n, c, h, w))


def as_tokens(pixels: Node) -> Node:
    """[n, c, h, w] -> [n, h * w, c]"""
    n, c, h, w = pixels.type.dims
    return g.transpose(g.reshape(pixels, shape=(n, c, h * w)), perm=(0, 2, 1))


def layouts(*outputs: Node, target: Target = TARGET) -> list[str]:
    """"op: layout" of each node that has one but the rows'."""
    graph = Graph("f", tuple(inputs(outputs)), tuple((f"y{i}", n) for i, n in enumerate(outputs)))
    text = print_graph(run_passes(graph, [AssignLayouts(target)]))
    return [f"{op}: {layout}"
            for op, layout in re.findall(r"= (\w+)\(.*: f32\[[^;\]]*; (\S+)\]", text)]


def inputs(outputs: tuple[Node, ...]) -> list[Node]:
    graph = Graph("f", (), tuple((f"y{i}", n) for i, n in enumerate(outputs)))
    return [n for n in graph.nodes if n.op == "input"]


def test_what_stands_between_convolutions_goes_along_and_has_their_halo():
    y = conv(g.relu(conv(x(1, 16, 8, 8), weights(32, 16, 3, 3), 1)), weights(32, 32, 3, 3), 1)
    assert layouts(y) == ["conv: NCHW16c", "relu: NCHW16c+1"]


def test_tokens_become_pixels_in_blocks_and_pixels_tokens():
    y = as_tokens(conv(as_pixels(x(1, 64, 32), 8, 8), weights(32, 1, 3, 3), 1, group=32))
    assert layouts(y) == ["reshape: NCHW16c+1", "conv: NCHW16c"]


def test_pictures_with_their_channels_last_are_joined_in_blocks():
    z = g.transpose(x(1, 8, 8, 16), perm=(0, 3, 1, 2))
    y = conv(g.concat(z, z, axis=1), weights(16, 32, 1, 1))
    assert layouts(y) == ["transpose: NCHW16c", "concat: NCHW16c"]


def test_a_normalisation_over_the_last_axis_reads_blocks():
    y = conv(x(1, 16, 8, 8), weights(32, 16, 1, 1))
    assert layouts(g.relu(g.transpose(y, perm=(0, 2, 3, 1)))) == ["conv: NCHW16c"]


def test_means_over_pixels_are_blocks_of_one_pixel():
    data = conv(x(1, 16, 8, 8), weights(32, 16, 1, 1))
    gate = conv(g.reduce_mean(data, axes=(2, 3)), weights(32, 32, 1, 1))
    y = conv(g.mul(data, gate), weights(16, 32, 1, 1))
    assert layouts(g.relu(y)) == [
        "conv: NCHW16c", "reduce_mean: NCHW16c", "conv: NCHW16c", "mul: NCHW16c"]


@pytest.mark.parametrize("y", [
    conv(as_pixels(x(1, 64, 20), 8, 8), weights(32, 20, 1, 1)),          # no whole blocks
    g.relu(as_pixels(x(1, 64, 32), 8, 8)),                               # nobody computes on them
    conv(g.transpose(x(1, 8, 32, 8), perm=(0, 2, 3, 1)), weights(32, 32, 1, 1)),
], ids=["20 channels", "no reader", "another axis"])
def test_rows_stay_rows(y):
    assert layouts(y) == []


def test_planes_of_odd_rows_are_padded_on_gpus():
    y = conv(x(1, 8, 13, 13), weights(8, 8, 3, 3), 1)
    joined = g.concat(g.relu(y), g.relu(y), axis=1)
    pooled = g.max_pool(joined, kernel=(3, 3), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    assert layouts(g.reduce_mean(pooled, axes=(2, 3)), target=GPU) == [
        "conv: rows4", "relu: rows4", "concat: rows4"]                   # 6 x 6: whole vectors
    on_chip = dataclasses.replace(GPU, local_is_real=True, local_memory=32 << 10,
                                  max_work_group=256)
    assert layouts(g.reduce_mean(joined, axes=(2, 3)), target=on_chip) == []


@pytest.mark.parametrize("y", [
    conv(x(1, 8, 13, 13), weights(8, 8, 1, 1)),                          # an output
    g.reduce_mean(conv(x(1, 8, 14, 14), weights(8, 8, 1, 1)), axes=(2, 3)),
    g.reduce_mean(conv(x(1, 8, 5, 5), weights(8, 8, 1, 1)), axes=(2, 3)),
    g.reshape(conv(x(1, 8, 13, 13), weights(8, 8, 1, 1)), shape=(1, 1352)),
    g.reduce_mean(g.add(conv(x(1, 8, 9, 9, name="a"), weights(8, 8, 3, 3), 1), x(1, 8, 9, 9)),
                  axes=(2, 3)),
], ids=["output", "whole vectors", "mostly padding", "a reader of rows", "beside what has none"])
def test_rows_without_padding(y):
    assert layouts(y, target=GPU) == []


def test_rows_end_behind_their_padding_unless_a_flag_would_tell_of_it():
    type = TensorType("f32", (1, 8, 7, 7), Layout("rows", 4))
    y = g.mul(graph_input("x", type), x(1, 8, 1, 1, name="gate"))
    group = Group(Node.make(y.op, y.inputs, y.kwargs, type=type), frozenset())
    assert print_kernel(lower(group, "k").kernel) == """\
kernel @k(in x0: f32[8,56], in x1: f32[8,1], out y: f32[8,56]) {
  for i0 < 8 @parallel {
    for i1 < 56 @parallel {
      y[i0, i1] = x0[i0, i1] * x1[i0, 0]
    }
  }
}
"""
    group = dataclasses.replace(group, flag=Flag(g.const(np.zeros(1, np.int32)), 0))
    stored = "y[i0, i1, i2] = select(i2 < 7, x0[i0, i1, i2] * x1[i0, 0, 0], 0.0)"
    assert stored in print_kernel(lower(group, "k").kernel)


def test_results_are_those_of_rows():
    """Tokens, pixels, a convolution, tokens again, through the device."""
    source = x(2, 63, 32)
    y = g.relu(conv(as_pixels(source, 7, 9), weights(32, 1, 3, 3), 1, group=32))
    y = g.add(as_tokens(y), source)
    graph = Graph("f", (source,), (("y", y),))
    fed = np.random.default_rng(1).standard_normal((2, 63, 32)).astype(np.float32)
    got = jitcl.compile(graph, device="cpu").run({"x": fed})["y"]
    np.testing.assert_allclose(got, evaluate(y, {source: fed}), rtol=1e-5, atol=1e-5)
