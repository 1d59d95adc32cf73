"""FLOPs of groups: what rooflines and reports count."""

from __future__ import annotations

import numpy as np
import pytest

from jitcl.codegen.flops import group_flops, node_flops
from jitcl.ir.graph import Node, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.types import Layout, TensorType
from jitcl.ops.builder import GraphBuilder

g = GraphBuilder()


def tensor(*shape: int) -> Node:
    return graph_input("x", TensorType("f32", shape))


def weight(*shape: int) -> Node:
    return const(np.ones(shape, np.float32))


def laid_out(node: Node, layout: Layout) -> Node:
    return Node.make(node.op, node.inputs, node.kwargs, type=node.type.with_(layout=layout))


@pytest.mark.parametrize("layout", [Layout("row"), Layout("NCHWc", 16), Layout("NCHWc", 16, 2)])
def test_padding_halos_and_lanes_beyond_the_channels_do_not_count(layout: Layout) -> None:
    y = g.conv(tensor(1, 8, 10, 12), weight(20, 8, 3, 3), strides=(1, 1), pads=(1,) * 4,
               dilations=(1, 1), group=1)
    assert node_flops(laid_out(y, layout)) == 2 * 20 * 8 * 9 * 10 * 12


def test_what_a_kernel_computes_again_counts_once() -> None:
    x = tensor(1, 16, 10, 12)
    product = g.mul(x, graph_input("gate", TensorType("f32", (1, 16, 1, 1))))
    y = g.conv(product, weight(32, 16, 1, 1), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1),
               group=1)
    z = g.add(y, 1.0)
    group = Group(z, frozenset((product, y)), y)
    assert group_flops(group) == 16 * 120 + 2 * 16 * 32 * 120 + 32 * 120


def test_moving_data_is_no_arithmetic() -> None:
    x = tensor(4, 6)
    for y in (g.transpose(x, perm=(1, 0)), g.concat(x, x, axis=0), g.reshape(x, shape=(24,)),
              g.pad(x, 0.0, pads=(1, 1, 1, 1))):
        assert node_flops(y) == 0
    assert node_flops(g.reduce_sum(x, axes=(1,))) == 24
