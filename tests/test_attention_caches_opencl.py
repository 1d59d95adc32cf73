"""Attention over a cache of keys and values, and new ones, on GPUs: both are read in place."""

from __future__ import annotations

import numpy as np
import pytest

from jitcl.dtypes import to_numpy
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.sizes import Space
from jitcl.ir.types import TensorType
from jitcl.ops.builder import evaluate
from jitcl.runtime.memory import laid_out
from tests.compiling import compile_graph, plan_on
from tests.test_attention import cache_graph, cached, g
from tests.test_attention_opencl import Take, forms, graph_of, trial_of_the_chain
from tests.test_candidates import GPU, MALI, POCL, as_target, needs_pocl


@needs_pocl
@pytest.mark.parametrize("past", [9, 600])
def test_a_cache_and_new_keys_are_read_where_they_lie(past):
    graph, fed, want = cached(past)
    assert "few" not in {f.form for f in forms(graph, as_target(**MALI))}
    plan = plan_on(POCL, graph, as_target(**GPU), chooser=Take())
    assert [s.kernel.split("_")[0] for s in plan.steps if "attention" in s.kernel
            or "join" in s.kernel] == ["attention"] + ["join"] * (past > 9)
    text = next(k.body for k in plan.kernels if "attention" in k.entry)
    assert text.count(f" < {past} ? x") == 4 and f" < {past} ? z" in text       # in two pieces
    assert all(b.nbytes < past * 2 * 16 * 2 for b in plan.buffers if b.kind == "temp" and past > 9)
    (got,) = POCL.load(plan).run([fed[str(n.attr("name"))] for n in graph.inputs])
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def cache_of(past: int, new: int = 1, dtype: str = "f16", shared: int = 3) -> Graph:
    """Attention of new tokens (of one query, where `shared` is 0) over two heads of keys, `shared`
    of queries each, behind a cache of keys and values in one tensor, as the tokens' own lie."""
    queries = shared * new or 1
    q = graph_input("q", TensorType("f32", (1, 2, queries, 16)))
    old, more = (graph_input(n, TensorType(dtype, (1, rows, 4, 16)))
                 for n, rows in (("old", past), ("new", new)))
    mask = graph_input("mask", TensorType("f32", (queries, past + new)))

    def joined(first: int) -> Node:
        parts = [g.slice(n, starts=(0, 0, first, 0), steps=(1,) * 4,
                         ends=(1, n.type.dims[1], first + 2, 16)) for n in (old, more)]
        return g.transpose(g.cast(g.concat(*parts, axis=1), to="f32"), perm=(0, 2, 1, 3))

    k, v = joined(0), joined(2)
    scores = g.add(g.mul(g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2))), 0.25), mask)
    return graph_of(g.matmul(g.softmax(scores, axis=-1), v), [q, old, more, mask])


def fed_to(graph: Graph) -> list[np.ndarray]:
    """Arrays for `cache_of`, in which some keys of each row are masked."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n.type.dims).astype(to_numpy(n.type.dtype))
              for n in graph.inputs]
    arrays[3][:, ::5] = -np.inf
    arrays[3][:, -1] = 1
    return arrays


@needs_pocl
@pytest.mark.parametrize("past", [9, 600])
def test_they_are_without_local_memory(past):
    """New ones that are computed are copied alone, of the type that the cache has."""
    graph, fed, want = cached(past)
    target = as_target(**MALI, compute_units=1)
    for place in range(len(forms(graph, target))):
        plan = plan_on(POCL, graph, target, chooser=Take(place))
        names = [s.kernel.split("_")[0] for s in plan.steps]
        assert [n for n in names if n in ("attention", "join")] == ["attention", "join"]
        assert past == 9 or all(b.nbytes < past * 64 for b in plan.buffers if b.kind == "temp")
        (got,) = POCL.load(plan).run([fed[str(n.attr("name"))] for n in graph.inputs])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@needs_pocl
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("past, new, shared", [
    (1, 1, 1), (7, 2, 3), (16, 1, 8), (61, 8, 1), (256, 3, 1), (300, 20, 0)])
def test_blocks_of_keys_lie_in_one_buffer(past, new, shared, dtype):
    """Also where new ones are more than a part has, and than queries; what they give lies in the
    enclosure."""
    graph = cache_of(past, new, dtype, shared)
    target, arrays = as_target(**MALI, compute_units=2), fed_to(graph)
    want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, arrays)))
    found = forms(graph, target)
    assert {f.form for f in found} == {"rows"}
    for place in range(len(found)):
        made = compile_graph(graph, target, chooser=Take(place))
        assert [s.kernel.split("_")[0] for s in made.plan.steps] == ["attention", "join"]
        trial = trial_of_the_chain(made)
        loaded = POCL.load(laid_out(made.plan, POCL, "normal"))
        np.testing.assert_allclose(loaded.run(arrays)[0], want, rtol=2e-5, atol=2e-5)
        drawn = {t.buffer: a for t, a in zip(trial.plan.inputs, trial.inputs())}
        named = {n.attr("name"): drawn[buffer] for n, buffer in trial.operands.items()}
        own = [named[n.attr("name")] for n in graph.inputs]
        assert trial.reason == "" and trial.wrong(loaded.run(own)) == ""


@pytest.mark.slow
@needs_pocl
@pytest.mark.parametrize("rows, new, dtype", [(1, 1, "f16"), (1, 2, "f32"), (256, 1, "f16"),
                                              (256, 3, "f32")])
def test_one_plan_is_for_any_cache_without_local_memory(rows, new, dtype):
    """Of a multiple of 256 keys, as language models have, and of any number, none among them."""
    space, target = Space(general=True), as_target(**MALI, compute_units=2)
    rooms = space.symbol("rooms", 3)
    plan = compile_graph(cache_of(rows * rooms, new, dtype, 2), target, chooser=Take()).plan
    assert [s.kernel.split("_")[0] for s in plan.steps] == ["attention", "join"]
    for now in (0, 1, 2, 7, 8, 211, 1100) if rows == 1 else (0, 1, 4, 17):
        graph = cache_of(rows * now, new, dtype, 2)
        arrays = fed_to(graph)
        want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, arrays)))
        at_now = laid_out(plan.at(space.values({"rooms": now})), POCL, "normal")
        (got,) = POCL.load(at_now).run(arrays)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@needs_pocl
def test_one_plan_is_for_any_number_of_keys():
    """Its results are those of a plan for their number, bit for bit."""
    space = Space()
    graph = cache_graph(space.symbol("past", 211))
    plan = compile_graph(graph, as_target(**GPU), chooser=Take()).plan
    assert {"attention", "join"} <= {s.kernel.split("_")[0] for s in plan.steps}
    for past in (1, 127, 128, 700):
        alone, fed, want = cached(past)
        arrays = [fed[str(n.attr("name"))] for n in graph.inputs]
        now = laid_out(plan.at(space.values({"past": past})), POCL, "normal")
        (got,) = POCL.load(now).run(arrays)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        (form,) = (f for f in forms(alone, as_target(**GPU)) if f.columns == 128)
        place = forms(alone, as_target(**GPU)).index(form)
        own = plan_on(POCL, alone, as_target(**GPU), chooser=Take(place))
        (found,) = POCL.load(own).run(arrays)
        if past >= 128:                     # one group alone divides by the sum, and is not joined
            np.testing.assert_array_equal(got, found)
