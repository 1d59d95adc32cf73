"""Operands that are one number, one a channel or one a pixel, wherever they may be fused: before,
behind and as guards of every layer that has a template, on channel counts that fill no block.
"""

from __future__ import annotations

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.codegen.render import SizesWritten
from jitcl.codegen.render_vector import EpilogueRenderer, NotVectorisable, VectorRenderer
from jitcl.frontends.onnx.rules.quantised import dynamically_quantised
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.kernel import Buffer, Kernel, Let, Store
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from tests.devices import present

N, H, W = 2, 7, 16
CHANNELS = (3, 17, 24, 40)
WINDOW = {"strides": (1, 1), "dilations": (1, 1)}
g = GraphBuilder()


class Fed:
    """Inputs of a graph under construction, each with the array that it is fed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[Node, np.ndarray] = {}

    def __call__(self, *shape: int, low: float = -1, high: float = 1, dtype: str = "f32") -> Node:
        node = graph_input(f"x{len(self.arrays)}", TensorType(dtype, shape))
        array = self.rng.uniform(low, high, shape)
        self.arrays[node] = np.asarray(array, {"f32": "f4", "i32": "i4", "u8": "u1"}[dtype])
        return node

    def weights(self, *shape: int) -> Node:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return g.const((self.rng.standard_normal(shape) * scale).astype("f4"))


def forms(y: Node) -> list[tuple[int, ...]]:
    n, c, h, w = y.type.dims
    return [(), (1,), (c, 1, 1), (1, c, 1, 1), (n, c, 1, 1), (1, 1, h, w), (w,), (h, 1),
            (n, 1, 1, 1)]


def fused(y: Node, fed: Fed, turn: int) -> Node:
    """y through operands of a third of the forms, and through a condition on others."""
    shapes = forms(y)
    for shape in shapes[turn::3]:
        y = g.add(g.mul(y, fed(*shape, low=0.5)), fed(*shape))
    a, b, c = (fed(*shapes[(3 * turn + k) % len(shapes)]) for k in range(3))
    return g.max(g.where(g.less(a, b), y, c), fed(low=-2, high=-1))


def padded(c: int, k: int, fed: Fed, x: Node) -> Node:
    return g.conv(x, fed.weights(k, c, 3, 3), pads=(1, 1, 1, 1), group=1, **WINDOW)


def quantised(c: int, k: int, fed: Fed, x: Node) -> Node:
    """DynamicQuantizeLinear and ConvInteger: scale and zero point are known at run time."""
    q, scale, zero = dynamically_quantised(g, x)
    w = g.const(fed.rng.integers(-99, 99, (k, c, 3, 3)).astype("i1"))
    sums = g.conv_integer(q, w, zero, g.const(0, "i8"), pads=(1, 1, 1, 1), group=1, **WINDOW)
    sums = g.add(sums, fed(k, 1, 1, low=-999, high=999, dtype="i32"))
    return g.mul(g.cast(sums, to="f32"), g.mul(scale, fed(k, 1, 1, low=0.001, high=0.002)))


def per_channel(c: int, k: int, fed: Fed, x: Node) -> Node:
    parameters = fed(c, 1, 1, low=0.02, high=0.03), fed(c, 1, 1, low=90, high=130, dtype="u8")
    return g.dequantize(g.quantize(x, *parameters, to="u8"), *parameters, to="f32")


LAYERS = {
    "conv": padded,
    "depthwise": lambda c, k, fed, x: g.conv(
        x, fed.weights(c, 1, 3, 3), pads=(1, 1, 1, 1), group=c, **WINDOW),
    "pool": lambda c, k, fed, x: g.max_pool(x, kernel=(3, 3), pads=(1, 1, 1, 1), **WINDOW),
    "conv_integer": quantised,
    "per channel": per_channel,
    "columns": lambda c, k, fed, x: g.transpose(
        g.matmul(g.transpose(x, perm=(0, 2, 3, 1)), fed.weights(c, k)), perm=(0, 3, 1, 2)),
    "loops": lambda c, k, fed, x: g.add(x, g.reduce_mean(x, axes=(1,), keepdims=True)),
}


def case(layer: str, c: int, turn: int) -> tuple[Graph, Fed]:
    """Two convolutions, so that layouts are blocked between them, and the layer in their midst."""
    fed = Fed(turn)
    x = g.conv(fed(N, 5, H, W), fed.weights(c, 5, 1, 1), pads=(0,) * 4, group=1, **WINDOW)
    y = fused(LAYERS[layer](c, c, fed, fused(x, fed, turn % 3)), fed, (turn + 1) % 3)
    z = g.conv(y, fed.weights(8, c, 1, 1), pads=(0,) * 4, group=1, **WINDOW)
    z = fused(z, fed, (turn + 2) % 3)
    return Graph("t", tuple(fed.arrays), (("z", z),)), fed


def check(layer: str, c: int, device: str) -> None:
    graph, fed = case(layer, c, turn=c + len(layer))
    got = jitcl.compile(graph, device=device).run(
        {str(n.attr("name")): a for n, a in fed.arrays.items()})["z"]
    want = evaluate(graph.outputs[0][1], dict(fed.arrays))
    error = np.abs(got - want).max() / np.abs(want).max()
    steps = 0.02 if layer in ("conv_integer", "per channel") else 0    # ties round either way
    assert error < 2e-5 + steps


@pytest.mark.sampled(quick=18)
@pytest.mark.parametrize("width", [16, 8, 4])
@pytest.mark.parametrize("c", CHANNELS)
@pytest.mark.parametrize("layer", LAYERS)
def test_on_the_cpu(layer: str, c: int, width: int) -> None:
    with config.override(cpu_width=width):
        check(layer, c, "cpu")


@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("device", [d for d in present() if d.startswith("opencl")])
def test_on_opencl(layer: str, device: str) -> None:
    check(layer, 17, device)


# ---- what vectors are read with


LANE, BLOCK = E.var("lane", extent=16), E.var("kb", extent=2)


def rendered(load: Expr, *buffers: Buffer) -> str:
    y = Buffer("y", "f32", (2, 16), "out")
    kernel = Kernel("k", (*buffers, y), (Store("y", (BLOCK, LANE), load),))
    return VectorRenderer(kernel, LANE, 16).load(load)


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_one_element_for_lanes_that_a_guard_tells_apart(shape: tuple[int, ...]) -> None:
    at = {(): (), (1,): (E.index(0),), (2,): (BLOCK,)}[shape]
    load = E.load("s", at, "f32", BLOCK * 16 + LANE < 24, E.const(0, "f32"))
    text = rendered(load, Buffer("s", "f32", shape))
    assert text.startswith("select((lt(") and "splat(load(s, " in text


def test_an_element_that_only_a_guard_keeps_inside_is_not_read_without_it() -> None:
    load = E.load("s", (BLOCK,), "f32", BLOCK * 16 + LANE < 16, E.const(0, "f32"))
    with pytest.raises(NotVectorisable, match="a guard depends on the lane"):
        rendered(load, Buffer("s", "f32", (1,)))


def test_what_keeps_a_block_inside_its_buffer_is_asked_first_also_where_it_has_a_name() -> None:
    """Of a padded tensor whose last block has channels that are none: the row may be no row."""
    row, named = E.var("i", extent=5) - 1, E.var("t", "bool")
    guard = (BLOCK * 16 + LANE < 24) & (row >= 0) & (row < 3)
    load = E.load("x", (BLOCK, row, LANE), "f32", named, E.const(0, "f32"))
    body = Let(named, guard), Store("y", (BLOCK, row + 1, LANE), load)
    kernel = Kernel("k", (Buffer("x", "f32", (2, 3, 16)), Buffer("y", "f32", (2, 5, 16), "out")),
                    body)
    store = VectorRenderer(kernel, LANE, 16).block(body, 0)[-1]
    read, asked = store.split("(select(")[1].split(" if ")
    assert "vload(x, " in read and ">= 0" in asked and "< 3" in asked.split(" else ")[0]


def test_no_vector_reaches_behind_a_row_that_is_as_long_as_a_vector() -> None:
    """Of pixels w .. w + count of a row: a row of 16 is no block whose padding may be read."""
    w, ch = E.var("w"), E.var("ch", extent=3)
    buffers = (Buffer("x", "f32", (16,)), Buffer("y", "f32", (1, 3, 7, 16), "out"))
    at = (E.index(0), ch, E.var("h", extent=7), w + LANE)
    value = E.call("add", E.var("v", "f32"), E.load("x", (w + LANE,), "f32"))
    (line,) = EpilogueRenderer(
        SizesWritten(),
        buffers, at, value, LANE, 16, channels_left="count", partial=True).lines()
    assert "vload_part(x, w, count, 16)" in line
