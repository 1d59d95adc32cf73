"""Powers of two that bring layers into f16's range, by way of constants."""

from __future__ import annotations

import numpy as np
import pytest

import jitcl
from jitcl.ir.graph import Graph, Node, Origin, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.rescale import rescaled
from tests.overflowing import feeds_of, halved, image, large_logits, model_of, normal

g = GraphBuilder()
X = graph_input("x", TensorType("f32", (8, 8)))
W, V = (const(normal(8, 8, seed=k), "f32") for k in (1, 2))
FIRST = g.matmul(X, W)
POWERS = ((("first",), 5),)


def graph_of(result: Node, first: Node = FIRST) -> Graph:
    return Graph("g", (X,), (("y", result),), {first: Origin("first", "MatMul")})


def largest(graph: Graph) -> list[float]:
    """Of all constants, in the order in which they are read."""
    return [float(np.abs(n.data).max()) for n in graph.nodes if n.op == "const"]


def same_bits(one: Graph, two: Graph) -> bool:
    x = {"x": normal(8, 8)}
    a, b = (jitcl.compile(graph, device="reference").run(x)["y"] for graph in (one, two))
    return bool(np.abs(a).max() > 0) and a.tobytes() == b.tobytes()


BIAS = const(normal(8, seed=3), "f32")


@pytest.mark.parametrize("result, powers", [
    (g.matmul(FIRST, V), [-5, 5]),
    (g.matmul(W, g.relu(FIRST)), [-5, 5]),
    (g.matmul(g.relu(g.add(FIRST, BIAS)), V), [-5, -5, 5]),     # a bias is divided, too
    (g.mul(g.reduce_max(FIRST, axes=(1,), keepdims=True), 0.25), [-5, 5]),
    (g.matmul(g.add(FIRST, g.abs(FIRST)), V), [-5, 5]),
    (g.matmul(g.clip(FIRST, -1.0, 6.0), V), [-5, -5, -5, 5]),
    (g.add(g.matmul(FIRST, V), BIAS), [-5, 5, 0]),
])
def test_what_reads_a_divided_result_makes_up_for_it(result, powers):
    graph = graph_of(result)
    made = rescaled(graph, POWERS)
    by = [b / a for a, b in zip(largest(graph), largest(made))]
    if result.op == "matmul" and result.inputs[0] is W:         # the same weights, in two ways
        assert sorted(largest(made)) == sorted(largest(graph)[0] * 2.0 ** p for p in powers)
    else:
        assert by == [2.0 ** p for p in powers]
    assert same_bits(graph, made)


@pytest.mark.parametrize("result", [
    FIRST,                                          # the model's result
    g.matmul(g.exp(FIRST), V),
    g.matmul(g.mul(FIRST, FIRST), V),
    g.matmul(g.add(FIRST, X), V),                   # and something that is not divided
    g.matmul(FIRST, FIRST),
    g.matmul(FIRST, const(normal(8, 8) * np.float32(1e4), "f32")),  # more than f16 holds
    g.matmul(g.cast(g.cast(FIRST, to="i32"), to="f32"), V),
    g.add(g.matmul(FIRST, V), g.sigmoid(FIRST)),    # one of two readers
])
def test_what_can_not_make_up_for_it_leaves_all_as_it_is(result):
    graph = graph_of(result)
    assert rescaled(graph, POWERS) is graph


def test_each_of_several_goes_by_itself():
    """One whose reader can't make up for it keeps none of the others back; two in a row add up."""
    second = g.matmul(FIRST, V)
    origins = {FIRST: Origin("first", "MatMul"), second: Origin("second", "MatMul")}
    powers = (*POWERS, (("second",), 3))
    refused = Graph("g", (X,), (("y", g.exp(second)),), origins)
    made = rescaled(refused, powers)
    assert [b / a for a, b in zip(largest(refused), largest(made))] == [2.0 ** -5, 2.0 ** 5]
    graph = Graph("g", (X,), (("y", g.mul(second, 0.5)),), origins)
    made = rescaled(graph, powers)
    assert [b / a for a, b in zip(largest(graph), largest(made))] == [2.0 ** p for p in (-5, 2, 3)]
    assert same_bits(graph, made)


def test_a_factor_in_the_same_kernel_leaves_the_result_divided():
    """What f16 stores is behind it."""
    factor = g.mul(FIRST, 0.5)
    graph = Graph("g", (X,), (("y", g.matmul(factor, V)),), {
        FIRST: Origin("first", "MatMul"), factor: Origin("factor", "Mul")})
    made = rescaled(graph, ((("first", "factor"), 5),))
    assert [b / a for a, b in zip(largest(graph), largest(made))] == [2.0 ** -5, 1.0, 2.0 ** 5]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_auto_divides_what_f16_cant_hold(device, tmp_path):
    """An image model needs no layer in f32 then; found again in the cache, it is the same. Inputs
    that are larger still are the guard's."""
    case = image()
    want = jitcl.compile(model_of(case), device="reference")
    for model in (model_of(case), halved(model_of(case))):
        for _ in range(2):
            found = jitcl.compile(model, device=device, precision="auto", cache_dir=tmp_path,
                                  calibrate=feeds_of(case))
            assert found.report().promoted == () and found.report().chosen.share == 1
            (names, power), = found.options.scaled
            assert names[0] == "second" and power == 7
            said = "'second' is stored times 2^-7, by way of weights: its magnitudes are up to 3"
            assert said in str(found.report())
            got = found.run(feeds_of(case))["y"]
            exact = want.run(feeds_of(case))["y"]
            assert np.abs(got - exact).max() < 1e-3 * np.abs(exact).max()
            assert found.report().promoted == ()
        large = {"pixels": case.x * np.float32(50)}
        got, exact = found.run(large)["y"], want.run(large)["y"]
        assert np.abs(got - exact).max() < 1e-2 * np.abs(exact).max()
        assert "second" in found.report().promoted


def test_what_a_softmax_reads_goes_to_f32():
    case = large_logits()
    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          calibrate=feeds_of(case))
    assert found.options.scaled == () and found.report().promoted == ("logits",)
