"""Attention on the CPU: one kernel for both products and the softmax between them, and the groups
one by one where that isn't possible.
"""

from __future__ import annotations

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.devices.cpu import CpuDevice
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Chain
from jitcl.ir.sizes import Space
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.templates.attention_cpu.few import BLOCK
from tests.compiling import compile_graph

DEVICE = CpuDevice()
g = GraphBuilder()

# batch, heads, queries, keys, channels of queries and of values
SHAPES = {
    "as BERT": (1, 4, 128, 128, 64, 64),
    "ragged": (2, 3, 30, 50, 16, 24),
    "odd": (1, 2, 9, 33, 7, 19),
    "many keys": (1, 1, 100, 1024, 32, 48),
    "rows a way of the cache apart": (1, 2, 20, 2048, 16, 16),
    "one head": (1, 1, 300, 77, 40, 40),
}


def x(name: str, *shape: int) -> Node:
    return graph_input(name, TensorType("f32", shape))


def attention(shape: tuple[int, ...], mask: Node | None = None,
              guarded: bool = False) -> tuple[Node, list[Node]]:
    """y [b, h, m, e] and its inputs."""
    b, h, m, n, d, e = shape
    q, k, v = x("q", b, h, m, d), x("k", b, h, n, d), x("v", b, h, n, e)
    scores = g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2)))
    weights = g.softmax(scores if mask is None else g.add(scores, mask), axis=-1)
    if guarded:
        weights = g.where(g.isnan(weights), 0.0, weights)
    return g.matmul(weights, v), [q, k, v] + ([] if mask is None else [mask])


def templates(graph: Graph) -> set[str]:
    """Names of the templates that the CPU's plan of the graph uses."""
    return {k.template for k in compile_graph(graph, DEVICE.target).plan.kernels}


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | float = 0.0,
             guarded: bool = False) -> np.ndarray:
    """The same in 64 bits."""
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) + mask
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
    if guarded:
        p = np.where(np.isnan(p), 0.0, p)
    return p @ v


def feeds(inputs: list[Node], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {str(i.attr("name")): rng.standard_normal(i.type.dims).astype(np.float32)
            for i in inputs}


def run(y: Node, inputs: list[Node], fed: dict[str, np.ndarray]) -> np.ndarray:
    graph = Graph("attention", tuple(inputs), (("y", y),))
    assert "attention_cpu" in templates(graph)
    return jitcl.compile(graph, device="cpu").run(fed)["y"]


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_is_one_kernel_and_right(shape):
    y, inputs = attention(shape)
    fed = feeds(inputs)
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("dims", [(50,), (30, 50), (2, 1, 1, 50), (2, 3, 30, 50), (3, 30, 1)],
                         ids=str)
def test_masks_of_any_shape_are_added_within(dims):
    y, inputs = attention(SHAPES["ragged"], x("mask", *dims))
    fed = feeds(inputs)
    fed["mask"].reshape(-1)[::3] = -np.inf if dims[-1] > 1 else -3
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


def test_a_row_that_is_masked_whole_is_nan_or_zeros_where_the_model_says_so():
    for guarded in (False, True):
        y, inputs = attention(SHAPES["ragged"], x("mask", 2, 3, 30, 50), guarded)
        fed = feeds(inputs)
        fed["mask"][1, 2, 7], fed["q"][0, 1, 29, 3] = -np.inf, np.nan
        got = run(y, inputs, fed)
        assert np.isnan(got[1, 2, 7]).all() != guarded
        np.testing.assert_allclose(got, expected(**fed, guarded=guarded), rtol=2e-5, atol=2e-5)


def test_the_largest_score_is_found_wherever_it_is():
    """Without it in the maximum its exponential would overflow. A query for each key."""
    y, inputs = attention((1, 1, 170, 170, 16, 16))
    fed = feeds(inputs)
    ways = fed["k"][0, 0]
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    fed["q"][0, 0] = 2000 * ways             # its own key, by far
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("excess", [20, 40, 200], ids=["within the limit", "beyond", "far beyond"])
def test_scores_may_exceed_those_of_the_first_keys(excess):
    """Rows take what they subtract from their first scores; some then need more."""
    y, inputs = attention((1, 2, 60, 170, 16, 16), x("mask", 60, 170))
    fed = feeds(inputs)
    fed["mask"][:] = 0
    fed["mask"][::7, 160:] = excess
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


def test_a_row_is_the_same_whichever_rows_are_beside_it():
    """The second time a tile is computed, only rows that need it come out otherwise."""
    y, inputs = attention((1, 2, 60, 170, 16, 16), x("mask", 60, 170))
    fed = feeds(inputs)
    fed["mask"][:] = 0
    before = run(y, inputs, fed)
    fed["mask"][::7, 160:] = 100
    got = run(y, inputs, fed)
    same = np.arange(60) % 7 > 0
    np.testing.assert_array_equal(got[:, :, same], before[:, :, same])
    assert (got[:, :, ~same] != before[:, :, ~same]).any(-1).all()


@pytest.mark.parametrize("masked", [-np.inf, -3e38, -1e9, -1e4], ids=str)
@pytest.mark.parametrize("shift", [0, -60, 60], ids=["plain", "tiny powers", "huge powers"])
def test_the_first_keys_may_be_masked(masked, shift):
    y, inputs = attention((1, 2, 60, 170, 16, 16), x("mask", 60, 170))
    fed = feeds(inputs)
    fed["mask"][:] = shift
    fed["mask"][10:40, :50] = masked
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


def test_many_keys_come_in_blocks():
    y, inputs = attention((1, 1, 40, 7000, 16, 16))
    fed = feeds(inputs)
    fed["k"][0, 0, 6990] *= 30           # far from the first, in the last block
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


def test_large_scores_do_not_overflow():
    y, inputs = attention(SHAPES["ragged"])
    fed = feeds(inputs)
    fed["q"] *= 1e4
    assert np.isfinite(run(y, inputs, fed)).all()


def test_results_are_equal_on_any_thread_count():
    y, inputs = attention(SHAPES["ragged"])
    fed = feeds(inputs)
    with config.override(threads=1):
        one = run(y, inputs, fed)
    with config.override(threads=3):
        np.testing.assert_array_equal(run(y, inputs, fed), one)


def test_what_follows_the_product_is_done_within():
    y, inputs = attention(SHAPES["as BERT"])
    more = x("more", 1, 4, 128, 64)
    fed = feeds([*inputs, more])
    got = run(g.relu(g.add(y, more)), [*inputs, more], fed)
    rest = {k: v for k, v in fed.items() if k != "more"}
    np.testing.assert_allclose(got, np.maximum(expected(**rest) + fed["more"], 0), rtol=2e-5,
                               atol=2e-5)


def test_keys_and_values_of_one_shape_have_memory_of_their_own():
    y, inputs = attention((2, 3, 64, 64, 64, 64))
    fed = feeds(inputs)
    np.testing.assert_allclose(run(y, inputs, fed), expected(**fed), rtol=2e-5, atol=2e-5)


def kernels(graph: Graph) -> list[str]:
    """What the kernels of the CPU's plan are, in order."""
    plan = compile_graph(graph, DEVICE.target).plan
    return [s.kernel.split("_")[0] for s in plan.steps]


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("batch, queries, heads, depth, in_place", [
    (1, 50, 3, 20, True),
    (2, 37, 3, 20, True),
    # rows 4 KiB apart: six may be in a tile, as they are where there are 16 registers
    (2, 37, 4, 256, DEVICE.target.registers <= 16),
], ids=["heads", "heads, batched", "rows too far apart"])
def test_queries_are_read_where_their_heads_lie(batch, queries, heads, depth, in_place):
    stored = [x(name, batch, rows, heads, depth)
              for name, rows in (("q", queries), ("k", 45), ("v", 45))]
    q, k, v = (g.transpose(n, perm=(0, 2, 1, 3)) for n in stored)
    weights = g.softmax(g.mul(g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2))), 0.125), axis=-1)
    y = g.matmul(weights, v)
    graph = Graph("attention", tuple(stored), (("y", y),))
    copies = ["arranged", "arranged"] if in_place else ["arranged"] * 3
    assert kernels(graph) == [*copies, "attention"]
    fed = feeds(stored)
    fed["q"] *= 0.125
    want = expected(*(fed[name].swapaxes(1, 2) for name in "qkv"))
    fed["q"] *= 8
    np.testing.assert_allclose(run(y, stored, fed), want, rtol=2e-5, atol=2e-5)


def test_groups_stay_apart_where_others_read_what_is_between():
    q, k, v = x("q", 2, 30, 16), x("k", 2, 16, 50), x("v", 2, 50, 24)
    scores = g.matmul(q, k)
    weights = g.softmax(scores, axis=-1)
    y = g.matmul(weights, v)
    for other in (scores, weights):
        graph = Graph("two", (q, k, v), (("y", y), ("z", other)))
        assert "attention_cpu" not in templates(graph)


def test_rows_of_few_lanes_and_another_axis_are_no_attention():
    few, inputs = attention((1, 2, 4, 64, 15, 16))
    assert "attention_cpu" not in templates(Graph("few", tuple(inputs), (("y", few),)))
    q, k, v = x("q", 2, 32, 16), x("k", 2, 16, 32), x("v", 2, 32, 24)
    y = g.matmul(g.softmax(g.matmul(q, k), axis=1), v)
    assert "attention_cpu" not in templates(Graph("other", (q, k, v), (("y", y),)))


# batch, heads, queries, keys, channels of queries and of values
FEW = {"a token": (1, 4, 1, 128, 64, 64), "odd": (2, 3, 5, 50, 12, 20),
       "eight": (1, 2, 8, 300, 8, 8), "many keys": (2, 1, 3, 2001, 64, 32),
       "five keys": (1, 2, 1, 5, 16, 16)}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("masked", [-np.inf, -1e9, None], ids=str)
@pytest.mark.parametrize("shape", FEW.values(), ids=FEW)
def test_few_queries_read_keys_and_values_where_they_lie(shape, masked):
    _, _, m, n, _, _ = shape
    y, inputs = attention(shape, None if masked is None else x("mask", m, n))
    graph = Graph("attention", tuple(inputs), (("y", y),))
    assert kernels(graph) == ["attention"] * (2 if n > BLOCK else 1)
    fed = feeds(inputs)
    if masked is not None:                   # of many keys a block is masked as a whole
        fed["mask"][:, 1:n - 3] = masked
    one = run(y, inputs, fed)
    np.testing.assert_allclose(one, expected(**fed), rtol=2e-5, atol=2e-5)
    with config.override(threads=3):
        np.testing.assert_array_equal(run(y, inputs, fed), one)


def test_a_row_of_few_that_is_masked_whole_is_nan_or_zeros():
    for guarded in (False, True):
        for keys in (50, 700):
            y, inputs = attention((1, 2, 2, keys, 16, 16), x("mask", 2, keys), guarded)
            fed = feeds(inputs)
            fed["mask"][1] = -np.inf
            got = run(y, inputs, fed)
            assert np.isnan(got[:, :, 1]).all() != guarded
            np.testing.assert_allclose(got, expected(**fed, guarded=guarded), rtol=2e-5, atol=2e-5)


def test_a_plan_for_any_number_of_queries_has_both_kernels():
    """A run launches those for up to eight rows, or those of tiles; its FLOPs stand at these."""
    space = Space()
    y, inputs = attention((1, 4, space.symbol("n", 211), 600, 64, 64))
    plan = compile_graph(Graph("any", tuple(inputs), (("y", y),)), DEVICE.target).plan
    flops = {}
    for n in (1, 8, 9, 300):
        steps = [s for s in plan.at(space.values({"n": n})).steps if 0 not in s.global_size]
        few = [s.kernel.rpartition("_")[0] for s in steps if "_rows" in s.kernel]
        assert few == (["attention_4_rows", "attention_4_rows_whole"] if n <= 8 else [])
        assert len(steps) == (2 if n <= 8 else 3)    # tiles: values lie as they are
        flops[n] = sum(s.flops for s in plan.at(space.values({"n": n})).steps)
        assert flops[n] == sum(s.flops for s in steps) == n * flops[1]
    text = next(k.body for k in plan.kernels if k.entry.startswith("attention_4_rows_")
                and "_whole_" not in k.entry)
    assert "height = 4 if m_count >= 4 else 2 if m_count >= 2 else 1\n" in text
    assert not space.guards


def cache_graph(past: int, heads: int = 6, shared: int = 2, size: int = 16) -> Graph:
    """A token behind `past` others, whose keys and values are halves [1, past, shared, size]."""
    q, new = x("q", 1, heads, 1, size), [x(n, 1, shared, 1, size) for n in ("k", "v")]
    old = [graph_input(n, TensorType("f16", (1, past, shared, size))) for n in ("ks", "vs")]
    joined = [g.transpose(g.cast(g.concat(a, g.cast(g.transpose(b, perm=(0, 2, 1, 3)), to="f16"),
                                          axis=1), to="f32"), perm=(0, 2, 1, 3))
              for a, b in zip(old, new)]
    y = g.attention(q, *joined, scale=0.25, guarded=False)
    return Graph("cached", (q, *new, *old), (("y", y),))


def cached(past: int, heads: int = 6, shared: int = 2, size: int = 16
           ) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    """The same with what it is fed and what it finds."""
    graph = cache_graph(past, heads, shared, size)
    rng = np.random.default_rng(past)
    fed = {str(i.attr("name")): rng.standard_normal(i.type.dims).astype(i.type.dtype.replace(
        "f", "float")) for i in graph.inputs}
    k, v = (np.concatenate([fed[a], fed[b].astype(np.float16).swapaxes(1, 2)], 1).swapaxes(1, 2)
            .repeat(heads // shared, axis=1) for a, b in (("ks", "k"), ("vs", "v")))
    return graph, fed, expected(0.25 * fed["q"], k, v)


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("past", [9, 40, 600])
def test_a_cache_is_read_without_a_copy(past):
    graph, fed, want = cached(past)
    plan = compile_graph(graph, DEVICE.target).plan
    assert [k.template for k in plan.kernels if "attention" in k.entry] == ["attention_cpu"] * (
        1 + (past >= BLOCK))
    assert all(b.nbytes < 2 * past * 2 * 16 for b in plan.buffers if b.kind == "temp" and past > 40)
    got = jitcl.compile(graph, device="cpu").run(fed)["y"]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_what_is_stored_may_be_halves():
    """Below "high", f16 is what a product's result is kept as; scores and powers are f32 within."""
    shape = (1, 4, 64, 96, 32, 32)
    y, inputs = attention(shape)
    w = x("w", 1, 4, 32, 32)
    graph = Graph("halves", (*inputs, w), (("z", g.matmul(y, w)),))
    plan = compile_graph(graph, DEVICE.target, "normal").plan
    assert "attention_cpu" in {k.template for k in plan.kernels}
    fed = feeds([*inputs, w])
    q, k, v = (fed[n] for n in "qkv")
    wanted = expected(q, k, v) @ fed["w"].astype(np.float64)
    got = jitcl.compile(graph, device="cpu", precision="normal").run(fed)["z"]
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=4e-3)
    assert (got != jitcl.compile(graph, device="cpu").run(fed)["z"]).any()


def test_scores_take_no_memory():
    y, inputs = attention((1, 8, 512, 512, 64, 64))
    generated = compile_graph(Graph("a", tuple(inputs), (("y", y),)), DEVICE.target)
    assert any(isinstance(group, Chain) for group in generated.groups)
    assert max(b.nbytes for b in generated.plan.buffers) < 8 * 512 * 512 * 4
    flops = sum(s.flops for s in generated.plan.steps)
    assert flops > 2 * 8 * 512 * 512 * (64 + 64)             # both products are counted
