"""Products of bytes on OpenCL, which are products of floats there: equal to the last unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from tests.compiling import compile_graph
from tests.devices import device, needs_driver, present, run_graph

DEVICES = [d for d in present() if d.startswith("opencl")]
Case = tuple[Node, list[Node]]
pytestmark = [needs_driver(), pytest.mark.in_turn]


def matmul(rows: tuple[int, ...], terms: int, columns: int, weights: int | None = None,
           a_zero: tuple[int, ...] = ()) -> Case:
    """`weights`: what all of them are, where the largest sums are wanted."""
    r = np.random.default_rng(terms)
    w = r.integers(-128, 128, (terms, columns)).astype("i1")
    if weights is not None:
        w[...] = weights
    x = graph_input("x", TensorType("u8", (*rows, terms)))
    z = graph_input("z", TensorType("u8", a_zero))
    n = const(np.int8(-3 if weights is None else 0), "i8")
    return GraphBuilder().matmul_integer(x, const(w, "i8"), z, n), [x, z]


def conv(shape: tuple[int, ...], w: tuple[int, ...], pads: tuple[int, ...], group: int = 1) -> Case:
    r, space = np.random.default_rng(w[1]), len(w) - 2
    x, z = graph_input("x", TensorType("i8", shape)), graph_input("z", TensorType("i8", ()))
    weights = const(r.integers(0, 256, w).astype("u1"), "u8")
    around = const(r.integers(0, 256, (w[0], *(1,) * (space + 1))).astype("u1"), "u8")
    return GraphBuilder().conv_integer(
        x, weights, z, around, strides=(1,) * space, pads=pads, dilations=(1,) * space,
        group=group), [x, z]


CASES: dict[str, Any] = {
    "one sum": lambda: matmul((7,), 300, 17),
    "several sums": lambda: matmul((6,), 2100, 33, weights=-128),
    "batches": lambda: matmul((3, 5), 40, 24),
    "a zero point for each row": lambda: matmul((6,), 64, 20, a_zero=(6, 1)),
    "image": lambda: conv((1, 20, 9, 11), (12, 20, 3, 3), (1, 0, 1, 2)),
    "many channels": lambda: conv((1, 700, 3, 4), (8, 700, 1, 1), (0, 0, 0, 0)),
    "groups": lambda: conv((2, 8, 7, 6), (6, 4, 3, 2), (1, 1, 1, 1), group=2),
    "row": lambda: conv((1, 12, 30), (10, 12, 5), (2, 2)),
}


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact(name: str, spec: str, precision: str) -> None:
    y, inputs = CASES[name]()
    graph, r = Graph("bytes", tuple(inputs), (("y", y),)), np.random.default_rng(1)
    place = device(spec)
    assert place is not None
    kernels = compile_graph(graph, place.target, precision).plan.kernels
    if not (name == "groups" and place.target.stages_tiles):             # loops compute these there
        assert any(k.template for k in kernels), "no template took the product"
    feeds = {}
    for node in inputs:
        low = 0 if node.type.dtype == "u8" else -128
        values = r.integers(low, low + 256, node.type.dims)
        if name == "several sums" and node.type.rank:
            values[...] = 255
        feeds[str(node.attr("name"))] = values.astype(node.type.dtype.replace("8", "1"))
    want = evaluate(y, {n: feeds[str(n.attr("name"))] for n in inputs})
    got = run_graph(spec, graph, feeds, precision=precision)["y"]
    np.testing.assert_array_equal(got, want)
