"""Attention on GPUs: one kernel, or two where keys are dealt out. Texts of every form, results of
those that drivers here run (PoCL poses as a GPU), and of each variant where a driver refuses.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess

import numpy as np
import pytest

from jitcl import config
from jitcl.codegen import variants
from jitcl.codegen.generate import Generated
from jitcl.codegen.trial import GroupTrial, trials
from jitcl.dtypes import to_numpy
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.group import Chain
from jitcl.ir.sizes import Space, at, judged_by_hint
from jitcl.ir.types import TensorType
from jitcl.ops.builder import evaluate
from jitcl.runtime.memory import laid_out
from jitcl.target import Target
from jitcl.target.profiles import PROFILES
from jitcl.target.variants import VARIANTS
from jitcl.templates.attention_opencl.forms import (
    MAX_SPLITS,
    Form,
    heads_of,
    keys_of_rows,
    parts,
)
from tests.compiling import compile_graph, plan_on
from tests.devices import OTHERS, cpus, opened
from tests.generated import clang
from tests.lacking import unless
from tests.test_attention import attention, expected, g
from tests.test_candidates import GPU, MALI, POCL, as_target, needs_pocl
from tests.test_tensor_cores import FLAGS
from tests.test_tensor_cores import TARGET as TENSOR
from tests.variants import Driver, host, plan_of

# batch, heads, queries, keys, channels of queries and of values
SHAPES = {
    "even": (1, 2, 64, 64, 64, 64), "ragged": (2, 3, 30, 50, 16, 24), "odd": (1, 2, 9, 33, 7, 19),
    "one query": (1, 4, 1, 300, 64, 64), "few queries": (2, 3, 5, 209, 32, 40),
    "wide": (1, 1, 20, 50, 128, 136), "widest": (1, 1, 10, 20, 256, 256),
}


class Take:
    """Takes attention's candidate of a place, of others the first; notes those of attention."""

    def __init__(self, place: int = 0) -> None:
        self.place = place
        self.found: tuple[Form, ...] = ()

    def choose(self, template, group, candidates):
        if template != "attention_opencl":
            return candidates[0]
        self.found = candidates
        return candidates[self.place]


def forms(graph: Graph, target: Target, precision: str = "high") -> tuple[Form, ...]:
    chooser = Take()
    compile_graph(graph, target, precision, chooser=chooser)
    return chooser.found


def graph_of(y: Node, inputs: list[Node]) -> Graph:
    return Graph("attention", tuple(inputs), (("y", y),))


def masked(shape, guarded=False) -> Graph:
    b, h, m, n, _, _ = shape
    return graph_of(*attention(shape, graph_input("mask", TensorType("f32", (b, h, m, n))),
                               guarded))


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {str(n.attr("name")): rng.standard_normal(n.type.dims).astype("f4")
            for n in graph.inputs}


def check(graph: Graph, fed: dict[str, np.ndarray], target: Target, place: int = 0,
          guarded: bool = False, faults=None) -> list[str]:
    """The templates of the kernels, whose result on PoCL is right."""
    plan = plan_on(POCL, graph, target, chooser=Take(place), faults=faults)
    (got,) = POCL.load(plan).run([fed[str(n.attr("name"))] for n in graph.inputs])
    np.testing.assert_allclose(got, expected(**fed, guarded=guarded), rtol=2e-5, atol=2e-5)
    return [k.template for k in plan.kernels]


@needs_pocl
@pytest.mark.sampled(quick=24)
@pytest.mark.parametrize("pose", [GPU, MALI], ids=["local memory", "without"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_candidate_is_right(shape, pose):
    graph, target = graph_of(*attention(shape)), as_target(**pose)
    found = forms(graph, target)
    few = shape[2] <= 8 and shape[4] % 4 == 0
    assert len(set(found)) == len(found) and bool(found) == (pose is GPU or few)
    for place, form in enumerate(found):
        names = check(graph, feeds(graph), target, place)
        joins = form.splits > 1 or form.form == "rows"
        assert names == ["attention_opencl"] * (1 + joins)


@needs_pocl
def test_few_queries_are_turned_where_they_are_loaded():
    """By each group, in every candidate; what many are made of is stored."""
    for rows in (2, 30):
        x, *kv = (graph_input(n, TensorType("f32", dims)) for n, dims in (
            ("x", (1, rows, 64)), ("k", (1, 4, 300, 16)), ("v", (1, 4, 300, 16))))
        turns = [graph_input(n, TensorType("f32", (1, rows, 8))) for n in ("cos", "sin")]
        q = g.transpose(g.reshape(x, shape=(1, rows, 4, 16)), perm=(0, 2, 1, 3))
        q = g.mul(g.rotate_pairs(q, *turns), 0.25)
        p = g.softmax(g.matmul(q, g.transpose(kv[0], perm=(0, 1, 3, 2))), axis=-1)
        graph = graph_of(g.matmul(p, kv[1]), [x, *turns, *kv])
        fed = list(feeds(graph).values())
        want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, fed)))
        for pose, within in ((GPU, rows == 2), (MALI, False)):
            target = as_target(**pose)
            found = forms(graph, target)
            assert not within or {f.form for f in found} == {"few"}
            for place in range(len(found)):
                plan = plan_on(POCL, graph, target, chooser=Take(place))
                turned = [s for s in plan.steps if "rotate_pairs" in s.kernel]
                assert len(turned) == (not within)
                (got,) = POCL.load(plan).run(fed)
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(quick=3)
@needs_pocl
@pytest.mark.parametrize("guarded", [False, True], ids=["NaN", "zeros"])
@pytest.mark.parametrize(
    "pose, queries, place", [(GPU, 30, 0), (GPU, 3, -1), (GPU, 3, 0), (MALI, 3, 0)],
    ids=["tiles", "parts of keys", "few", "without local memory"])
def test_masks_rows_that_are_masked_whole_and_nan(pose, queries, place, guarded):
    graph, target = masked((2, 3, queries, 300, 16, 24), guarded), as_target(**pose)
    fed = feeds(graph)
    fed["mask"].reshape(-1)[::5] = -np.inf
    fed["mask"][0, 1, :, :100] = -3e38            # the first keys, and what is beyond exp's range
    fed["mask"][0, 0, :, 290:] = 200
    fed["mask"][1, 2, 1], fed["q"][0, 1, 2, 3] = -np.inf, np.nan
    assert "attention_opencl" in check(graph, fed, target, place, guarded=guarded)


@pytest.mark.sampled(quick=2)
@needs_pocl
@pytest.mark.parametrize(
    "pose, queries, place", [(GPU, 30, 0), (GPU, 3, -1), (GPU, 3, 0), (MALI, 3, 0)],
    ids=["tiles", "parts of keys", "few", "without local memory"])
def test_what_is_not_finite_is_flagged(pose, queries, place):
    graph = graph_of(*attention((2, 3, queries, 300, 16, 24)))
    plan = plan_on(POCL, graph, as_target(**pose), chooser=Take(place), flags=True)
    assert "attention_opencl" in {k.template for k in plan.kernels}
    fed, loaded = feeds(graph), POCL.load(plan)
    for spoilt in (1, np.inf):
        fed["q"][0, 1, 2, 3] *= spoilt
        got, flags = loaded.run([fed[str(n.attr("name"))] for n in graph.inputs])
        assert flags.any() == (not np.isfinite(got).all()) == (spoilt > 1)


# of numbers of images, queries and keys
OPEN = {"keys": lambda b, m, n: (2, 3, 70, n, 16, 24),
        "all": lambda b, m, n: (b, 2, m, n, 16, 24),
        "itself": lambda b, m, n: (b, 2, n, n, 7, 19)}
NUMBERS = ((1, 1, 1), (3, 1, 300), (1, 7, 96), (1, 9, 97), (2, 33, 64), (5, 64, 9), (2, 90, 211),
           (1, 200, 700))


@pytest.mark.slow
@pytest.mark.parametrize("spec", cpus())
@pytest.mark.parametrize("name", OPEN)
def test_one_plan_is_for_any_number_of_queries(name, spec):
    """Where groups of queries are few, keys are dealt out by another kernel. Whole, results are
    those of a plan for the numbers alone, bit for bit. Some rows are masked whole."""
    device, space, guarded = opened(spec), Space(), name == "itself"
    target = dataclasses.replace(device.target, **{**GPU, "compute_units": 16})
    graph = masked(OPEN[name](*map(space.symbol, "bmn", (3, 223, 211))), guarded)
    found = forms(graph, target)
    whole = dataclasses.replace(found[0], splits=1)
    assert found[0].splits == MAX_SPLITS and whole in found
    plans = [compile_graph(graph, target, chooser=Take(found.index(f))).plan
             for f in (found[0], whole)]
    assert [k.template for p in plans for k in p.kernels] == ["attention_opencl"] * 4
    launches = set()
    for numbers in NUMBERS:
        values = space.values(dict(zip("bmn", numbers)))
        alone = masked(OPEN[name](*numbers), guarded)
        fed = feeds(alone)
        fed["mask"].reshape(-1)[::5] = -np.inf
        fed["mask"][..., 0], fed["mask"][-1, -1, -1] = 3, -np.inf
        arrays = [fed[str(n.attr("name"))] for n in alone.inputs]
        dealt, own = (device.load(laid_out(p.at(values), device, "normal")).run(arrays)[0]
                      for p in plans)
        for y in (dealt, own):
            np.testing.assert_allclose(y, expected(**fed, guarded=guarded), rtol=2e-5, atol=2e-5)
        steps = [s for s in plans[0].at(values).steps if 0 not in s.global_size]
        launches.add(len(steps))
        assert sum(s.flops for s in steps) == plans[1].at(values).steps[0].flops
        if len(steps) == 1:
            np.testing.assert_array_equal(dealt, own)
        if whole in (others := forms(alone, target)):
            plan = plan_on(device, alone, target, chooser=Take(others.index(whole)))
            np.testing.assert_array_equal(device.load(plan).run(arrays)[0], own)
    assert launches == {1, 2}


@pytest.mark.slow
@needs_pocl
@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_have_one_plan_without_local_memory(queries):
    """For any numbers of images and keys, whichever the form."""
    space, target = Space(), as_target(**MALI, compute_units=2)
    b, n = space.symbol("b", 3), space.symbol("n", 211)
    graph = masked((b, 2, queries, n, 16, 24))
    found = forms(graph, target)
    assert {(f.form, f.rows, f.columns) for f in found} == {
        ("rows", 1, 8), ("rows", 1, 4), *([("rows", 2, 4)] if queries > 1 else [])}
    for place in range(len(found)):
        plan = compile_graph(graph, target, chooser=Take(place)).plan
        assert [k.template for k in plan.kernels] == ["attention_opencl"] * 2
        sizes = {}
        for images, keys in ((1, 1), (1, 15), (2, 17), (5, 211), (1, 5000), (700, 33)):
            alone = masked((images, 2, queries, keys, 16, 24))
            fed, values = feeds(alone), space.values({"b": images, "n": keys})
            fed["mask"].reshape(-1)[::5] = -np.inf
            fed["mask"][..., 0], fed["mask"][-1, -1, -1] = 3, -np.inf
            now = laid_out(plan.at(values), POCL, "normal")
            (got,) = POCL.load(now).run([fed[str(i.attr("name"))] for i in alone.inputs])
            np.testing.assert_allclose(got, expected(**fed), rtol=2e-5, atol=2e-5)
            sizes[images, keys] = now.steps[0].global_size
        assert sizes[1, 5000][0] > 128 and sizes[700, 33][0] <= 64


def test_parts_of_keys_have_room_whatever_their_number():
    space = Space()
    b, m, n = map(space.symbol, "bmn", (3, 223, 211))
    a = heads_of(trial_of_the_chain(compile_graph(masked((b, 4, m, n, 64, 64)), TENSOR)).group)
    for rows, keys in itertools.product((8, 4), (64, 97, 5000)):
        form = Form("tiles", rows, 4, splits=MAX_SPLITS)
        with judged_by_hint():
            found, several, room = parts(a, form, TENSOR)
        for images, queries in itertools.product((1, 2, 5, 8, 30), (1, 31, 33, 411, 512, 5000)):
            values = space.values({"b": images, "m": queries, "n": keys})
            splits, groups = at(found, values), 4 * images * -(-queries // (8 * rows))
            assert at(several, values) == (splits > 1 and keys > 64)
            assert splits == 1 or splits <= MAX_SPLITS and splits * groups * 8 * rows < room


@pytest.mark.parametrize("open_", ["batch", "queries"])
def test_many_queries_may_come(open_):
    """So that few rows a group are no form; nor is that of few queries."""
    space = Space()
    b, m = (space.symbol("b", 3), 40) if open_ == "batch" else (1, space.symbol("m", 5))
    graph = masked((b, 2, m, 300, 64, 64))
    assert {f.form for f in forms(graph, TENSOR)} == {"tiles"}
    assert {f.rows for f in forms(graph, TENSOR)} == {8, 4}
    tensor = forms(halves((b, 2, m, 300, 64, 64)), TENSOR, "low")
    assert {(f.rows, f.warps) for f in tensor if f.form == "tensor"} == {(2, 4), (1, 4)}
    assert forms(graph, PROFILES["mali-g610"].target) == ()


def test_parts_of_few_queries_have_room_whatever_their_number():
    space, target = Space(), PROFILES["mali-g610"].target
    b, n = space.symbol("b", 3), space.symbol("n", 211)
    made = compile_graph(masked((b, 4, 3, n, 64, 64)), target)
    keys, room = keys_of_rows(heads_of(trial_of_the_chain(made).group), target)
    for images, count in itertools.product((1, 7, 100, 5000), (1, 16, 17, 1000, 100_000)):
        values = space.values({"b": images, "n": count})
        dealt = -(-count // at(keys, values))
        assert at(keys, values) % 8 == 0 and dealt * images * 4 * 3 <= at(room, values)


@needs_pocl
def test_heads_that_share_keys_and_what_is_fused():
    rng = np.random.default_rng(1)
    q, k, v, r = (graph_input(n, TensorType("f32", s)) for n, s in (
        ("q", (1, 20, 6, 16)), ("k", (1, 33, 2, 16)), ("v", (1, 33, 2, 16)),
        ("r", (1, 2, 3, 20, 16))))
    queries = g.reshape(g.transpose(q, perm=(0, 2, 1, 3)), shape=(1, 2, 3, 20, 16))
    keys, values = (g.reshape(g.transpose(n, perm=(0, 2, 1, 3)), shape=(1, 2, 1, 33, 16))
                    for n in (k, v))
    scores = g.mul(g.matmul(queries, g.transpose(keys, perm=(0, 1, 2, 4, 3))), 0.25)
    y = g.relu(g.add(g.matmul(g.softmax(scores, axis=-1), values), r))
    graph = graph_of(y, [q, k, v, r])
    arrays = [rng.standard_normal(n.type.dims).astype("f4") for n in graph.inputs]
    plan = plan_on(POCL, graph, as_target(**GPU))
    assert {x.template for x in plan.kernels} == {"attention_opencl"}
    (got,) = POCL.load(plan).run(arrays)
    a, b, c = (x.swapaxes(1, 2) for x in arrays[:3])
    wanted = expected(a * 0.25, b.repeat(3, 1), c.repeat(3, 1)).reshape(1, 2, 3, 20, 16)
    np.testing.assert_allclose(got, np.maximum(wanted + arrays[3], 0), rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(quick=3)
@needs_pocl
@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.cpu], ids=lambda v: v.name)
def test_lower_variants_are_right(variant, monkeypatch):
    """A chain is taken apart where a variant has no template for it, or writes each op alone."""
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    graph = masked((1, 2, 9, 21, 12, 8))
    names = check(graph, feeds(graph), as_target(**GPU), faults=Driver())
    assert ("attention_opencl" in names) != (variant.loops_only or variant.name in (
        "no-local", "no-vectors", "groups-16", "unpacked"))


@needs_pocl
def test_a_driver_that_refuses_it_gets_the_groups_apart():
    graph = masked((1, 2, 9, 21, 12, 8))
    driver = Driver(("template:attention_opencl",))
    assert "attention_opencl" not in check(graph, feeds(graph), as_target(**GPU), faults=driver)


@needs_pocl
def test_a_driver_without_exp_keeps_the_products():
    """Each group has a variant of its own, where the chain would be the CPU's."""
    graph = masked((1, 2, 9, 21, 12, 8))
    plan = plan_of(graph, as_target(**GPU), Driver(("call:exp",)), host=host())
    templates = {k.entry: k.template for k in plan.kernels}
    assert [(templates[s.kernel], s.variant) for s in plan.steps] == [
        ("gemm_tiled_opencl", ""), ("", "cpu"), ("gemm_tiled_opencl", "")]


def test_cpus_and_large_heads_get_none():
    y, inputs = attention((1, 1, 16, 16, 260, 16))
    assert forms(graph_of(y, inputs), as_target(**GPU) if POCL else TENSOR) == ()
    y, inputs = attention((1, 1, 16, 16, 16, 16))
    assert forms(graph_of(y, inputs), dataclasses.replace(TENSOR, device_type="cpu")) == ()


# ---- tensor cores

def halves(shape, packed=False, mask=()) -> Graph:
    b, h, m, n, d, e = shape
    q, k, v = inputs = [graph_input(name, TensorType("f16", (b, rows, h, c) if packed else (
        b, h, rows, c))) for name, rows, c in (("q", m, d), ("k", n, d), ("v", n, e))]
    if packed:
        q, k, v = (g.transpose(x, perm=(0, 2, 1, 3)) for x in inputs)
    scores = g.mul(g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2))), 0.125)
    if mask:
        inputs.append(graph_input("mask", TensorType("f16", mask)))
        scores = g.add(scores, inputs[-1])
    return graph_of(g.matmul(g.softmax(scores, axis=-1), v), inputs)


HALVES = {
    "even": lambda: halves((1, 4, 256, 256, 64, 64)),
    "ragged": lambda: halves((2, 3, 77, 101, 40, 80), packed=True, mask=(2, 1, 1, 101)),
    "odd": lambda: halves((1, 2, 20, 30, 7, 9)), "widest": lambda: halves((1, 2, 40, 90, 256, 256)),
}


GPUS = [s for s in OTHERS if opened(s).target.device_type == "gpu"]


@unless(GPUS, "there is no GPU with OpenCL")
@pytest.mark.parametrize("spec", GPUS or ["none"])
@pytest.mark.parametrize("name", [*SHAPES, *HALVES])
def test_every_candidate_is_right_on_a_gpu(name, spec):
    """Tensor cores among them; a row may be masked whole: NaN."""
    graph = HALVES[name]() if name in HALVES else masked(SHAPES[name])
    fed = [np.random.default_rng(0).standard_normal(n.type.dims).astype(to_numpy(n.type.dtype))
           for n in graph.inputs]
    if len(fed) > 3:
        fed[3].reshape(-1)[::5] = fed[3][-1, -1, -1] = -np.inf
    want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, fed)))
    found = forms(graph, opened(spec).target, "low")
    for place in range(len(found)):
        plan = plan_on(opened(spec), graph, precision="low", chooser=Take(place))
        assert plan.kernels[0].template == "attention_opencl"
        (got,) = opened(spec).load(plan).run(fed)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-3, err_msg=str(found[place]))


@clang.needed
@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("name", HALVES)
def test_forms_for_tensor_cores_become_ptx(name):
    graph = HALVES[name]()
    found = forms(graph, TENSOR, "low")
    tensor = [f for f in found if f.form == "tensor"]
    assert len(tensor) > 2 and found[:len(tensor)] == tuple(tensor)
    for place, form in enumerate(tensor):
        plan = compile_graph(graph, TENSOR, "low", chooser=Take(place)).plan
        (kernel,) = plan.kernels
        done = subprocess.run([str(clang.CLANG), *FLAGS], input=kernel.body, text=True, check=False,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        (d, e) = (-(-graph.inputs[k].type.dims[-1] // 16) for k in (0, 2))
        assert len(re.findall(r"mma\.sync", done.stdout)) == form.rows * form.columns // 8 * (d + e)
        (local,) = re.findall(r"memory\[(\d+)\]", kernel.body)
        assert int(local) * 16 <= TENSOR.local_memory


@clang.needed
@pytest.mark.parametrize("queries", [40, "open"])
def test_one_form_for_tensor_cores_takes_any_number_of_keys(queries):
    """And of queries. What masks leave a warp nothing of is passed by."""
    space = Space()
    m = space.symbol("queries", 223) if queries == "open" else queries
    graph = halves((1, 2, m, space.symbol("keys", 211), 64, 64), mask=(1, 1, m, 1))
    assert {f.form for f in forms(graph, TENSOR, "low")} == {"tensor", "tiles"}
    (kernel,) = compile_graph(graph, TENSOR, "low").plan.kernels
    assert kernel.entry.startswith("attention_tensor") and "_any(high0_0" in kernel.body
    done = subprocess.run([str(clang.CLANG), *FLAGS], input=kernel.body, text=True, check=False,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "vote.sync.any" in done.stdout and "mma.sync" in done.stdout


def encoder() -> Graph:
    """Products, heads of what they give, attention, a product of all heads."""
    x = graph_input("x", TensorType("f32", (1, 128, 256)))
    rng = np.random.default_rng(0)
    w = [const(rng.standard_normal((256, 256)) / 16, "f32") for _ in range(4)]
    q, k, v = (g.transpose(g.reshape(g.tanh(g.matmul(x, i)), shape=(1, 128, 4, 64)),
                           perm=(0, 2, 1, 3)) for i in w[:3])
    p = g.softmax(g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2))), axis=-1)
    heads = g.reshape(g.transpose(g.matmul(p, v), perm=(0, 2, 1, 3)), shape=(1, 128, 256))
    return graph_of(g.relu(g.matmul(heads, w[3])), [x])


@pytest.mark.parametrize("computes", [True, False])
def test_views_of_halves_are_halves(computes):
    """Where halves are only stored, too, inlined transposes, reshapes and slices are f32 of buffers
    of halves: tensor cores take them as they lie."""
    target = dataclasses.replace(TENSOR, fp16_arithmetic=computes)
    plan = compile_graph(encoder(), target, "low").plan
    kernels = {k.entry: k for k in plan.kernels}
    last = [kernels[s.kernel] for s in plan.steps][-2:]
    assert [k.template for k in last] == ["attention_opencl", "gemm_tensor_opencl"]
    for kernel in last:
        assert "cp.async.cg" in kernel.body
        assert not re.search(r"vstore_half\(|\)memory\)\[into\]", kernel.body)


def test_powers_are_rounded_only_where_the_softmax_would_be():
    assert {f.form for f in forms(HALVES["even"](), TENSOR, "high")} == {"tiles"}
    other = dataclasses.replace(TENSOR, tensor_cores=False)
    assert {f.form for f in forms(HALVES["even"](), other, "low")} == {"tiles"}


@pytest.mark.parametrize("shape, keys", [((1, 32, 1, 2048, 128, 128), 256),
                                         ((1, 4, 8, 2048, 64, 64), 128)],
                         ids=["many groups", "few"])
def test_few_queries_have_a_form_of_their_own(shape, keys):
    found = forms(graph_of(*attention(shape)), TENSOR)
    assert (found[0].form, found[0].rows, found[0].columns) == ("few", shape[2], keys)


@pytest.mark.parametrize("shape, rows, splits", [
    ((1, 16, 2048, 2048, 64, 64), 8, 1), ((1, 6, 1500, 1500, 64, 64), 8, 3),
    ((1, 12, 128, 128, 64, 64), 2, 4), ((1, 12, 64, 64, 64, 64), 1, 1)],
    ids=["many groups", "a group a core", "few groups", "least"])
def test_keys_are_dealt_out_where_groups_are_few(shape, rows, splits):
    first = forms(graph_of(*attention(shape)), TENSOR)[0]
    assert (first.form, first.rows, first.splits) == ("tiles", rows, splits)


def trial_of_the_chain(made: Generated) -> GroupTrial:
    (trial,) = (t for t in trials(made, made.plan) if isinstance(t.group, Chain))
    return trial


def test_a_trial_allows_powers_in_half_and_no_key_too_few():
    trial = trial_of_the_chain(compile_graph(halves((1, 2, 24, 40, 32, 32)), TENSOR, "low"))
    q, k, v = (a.astype("f4") for a in trial.inputs()[:3])

    def computed(keys: int) -> np.ndarray:
        s = q @ k[:, :, :keys].swapaxes(-1, -2) * np.float32(0.125)
        p = np.exp(s - s.max(-1, keepdims=True))
        powers = p.astype("f2").astype("f4") @ v[:, :, :keys]
        return (powers / p.sum(-1, keepdims=True)).astype("f2")

    assert trial.reason == "" and trial.wrong([computed(40)]) == ""
    assert "differ" in trial.wrong([computed(39)])


# ---- texts for devices that aren't here

@clang.needed
@pytest.mark.parametrize("name, quirks", [
    ("mali-g610", ""), ("mali-g52", ""), ("intel-hd-630", ""),
    ("intel-hd-630", "-intel-local-memory")])
def test_texts_pass_clang(name, quirks):
    with config.override(quirks=quirks):
        target = PROFILES[name].target
    assert target.stages_tiles == bool(quirks)
    keys = Space().symbol("keys", 211)
    for shape in ((1, 8, 1, 512, 64, 64), (2, 3, 30, 50, 16, 24), (1, 8, 1, keys, 64, 64)):
        plan = compile_graph(graph_of(*attention(shape)), target).plan
        assert clang.objections(plan.kernels, fp16=target.fp16_arithmetic) == ""
        used = {k.template for k in plan.kernels}
        assert ("attention_opencl" in used) == (shape[2] == 1 or target.stages_tiles)
