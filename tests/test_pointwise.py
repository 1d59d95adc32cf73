"""A segmentation network's head on every device: products before resizes, and two as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitcl
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.ops.resize_axes import Axis, tap_tables
from tests.devices import present

CHANNELS, SIZE = 96, 16
g = GraphBuilder()


def resized(x: Node) -> Node:
    """Bilinear, to SIZE along both axes."""
    for axis in (2, 3):
        have = x.type.dims[axis]
        stretched = Axis(have, SIZE, np.float32(SIZE / have))
        index, weight = tap_tables(stretched, "linear", "half_pixel", 0.0, False, False)
        x = g.interpolate(x, g.const(index), g.const(weight, "f32"), axis=axis)
    return x


def head() -> tuple[Graph, int]:
    """(the head, FLOPs of its products as they are written): four maps as tokens, projected, made
    maps, resized, joined and convolved.
    """
    rng = np.random.default_rng(0)

    def weights(*shape: int, inputs: int) -> Node:
        return const((rng.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32))

    inputs, maps, flops = [], [], 0
    for k, (size, width) in enumerate(((2, 40), (4, 32), (8, 24), (SIZE, 8))):
        x = graph_input(f"x{k}", TensorType("f32", (1, width, size, size)))
        rows = g.transpose(g.reshape(x, shape=(1, width, size * size)), perm=(0, 2, 1))
        rows = g.add(g.matmul(rows, weights(width, CHANNELS, inputs=width)),
                     weights(CHANNELS, inputs=1))
        y = g.reshape(g.transpose(rows, perm=(0, 2, 1)), shape=(1, CHANNELS, size, size))
        inputs.append(x)
        maps.append(y if size == SIZE else resized(y))
        flops += 2 * width * CHANNELS * size * size
    y = g.conv(g.concat(*maps, axis=1), weights(32, 4 * CHANNELS, 1, 1, inputs=4 * CHANNELS),
               strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1)
    y = g.relu(g.add(y, weights(32, 1, 1, inputs=1)))
    return Graph("head", tuple(inputs), (("y", y),)), flops + 2 * 4 * CHANNELS * 32 * SIZE**2


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", present())
def test_a_head_takes_less_arithmetic_and_gives_the_same(device: str, tmp_path: Path) -> None:
    graph, written = head()
    rng = np.random.default_rng(1)
    feeds = {n.attr("name"): rng.standard_normal(n.type.dims).astype(np.float32)
             for n in graph.inputs}
    model = jitcl.compile(graph, device=device, cache_dir=tmp_path)
    got = model.run(feeds)["y"]
    wanted = evaluate(graph.outputs[0][1], {n: feeds[n.attr("name")] for n in graph.inputs})
    assert np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max()
    if device != "reference":
        assert sum(s.flops for s in model.plan.steps) < written / 3
