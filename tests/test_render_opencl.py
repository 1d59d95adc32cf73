"""Generated OpenCL C: each form of schedule gives the right results, on the drivers present.

The forms for GPUs are run on CPU drivers, by a target that says it is a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.lower import lower
from jitcl.codegen.opencl_helpers import Calls, helper
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule_opencl import schedule
from jitcl.ir import expr as E
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Group
from jitcl.ir.kernel import Buffer, For, Kernel, Store
from jitcl.ir.types import TensorType
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder, reference
from jitcl.passes.decompose import Decompose
from jitcl.passes.fuse import fuse
from jitcl.target import Target
from jitcl.templates.base import ENTRY, GROUP
from tests.compiling import compile_graph, plan_on
from tests.devices import device, needs_driver, present
from tests.test_ops import assert_close, case, computes

G = GraphBuilder()
DRIVERS = [s for s in present() if s.startswith("opencl")]
pytestmark = needs_driver()

GPU = {"device_type": "gpu", "local_is_real": True}
MALI = {"device_type": "gpu", "local_is_real": False, "max_work_group": 64}
CPU_8 = {"device_type": "cpu", "vector_width": 8, "max_vector_width": 8}
FORMS = {"gpu": GPU, "mali": MALI, "cpu-8": CPU_8}


def x(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def run_form(form: str, graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The graph's outputs on the first driver, with kernels as for the form's device."""
    place = device(DRIVERS[0])
    assert place is not None
    target = replace(place.target, **FORMS[form])
    graph = Decompose().run(graph)
    plan = plan_on(place, graph, target, passes=False, templates=False)
    outputs = place.load(plan).run([feeds[t.name] for t in plan.inputs])
    return {t.name: v for t, v in zip(plan.outputs, outputs)}


KINDS = (
    "softmax",
    "layer_normalization",
    "reduce_sum",
    "reduce_max",
    "argmax",
    "conv",
    "matmul",
    "concat",
    "cumsum",
    "max_pool",
    "sort_rank",
    "where",
    "cast",
    "gather",
    "all",
    "any",
    "reduce_mean",
    "pad",
)


@pytest.mark.sampled(quick=4, slow=4)
@pytest.mark.parametrize(("form", "name"), [
    pytest.param(form, name, marks=[] if (j + k) % len(FORMS) == 0 else pytest.mark.slow)
    for j, form in enumerate(FORMS) for k, name in enumerate(n for n in KINDS if n in OPS)])
def test_forms(form: str, name: str) -> None:
    op = OPS[name]
    rows = [
        (*case(op, sample, k), sample)
        for k, sample in enumerate(op.samples)
        if computes(DRIVERS[0], sample)
    ]
    feeds = {key: array for _, fed, _ in rows for key, array in fed.items()}
    inputs = {n.attr("name"): n for node, _, _ in rows for n in node.inputs}
    outputs = tuple((f"y{k}", node) for k, (node, _, _) in enumerate(rows))
    got = run_form(form, Graph(name, tuple(inputs.values()), outputs), feeds)
    for k, (node, fed, sample) in enumerate(rows):
        want = reference(node, *(fed[n.attr("name")] for n in node.inputs))
        assert_close(got[f"y{k}"], want, sample.rtol)


@pytest.mark.parametrize(("form", "shape"), [
    pytest.param(form, shape, marks=[] if (j + k) % len(FORMS) == 0 else pytest.mark.slow)
    for j, form in enumerate(FORMS)
    for k, shape in enumerate([(3, 1000), (1, 257), (700, 33), (2, 5, 64), (1, 1)])])
def test_rows(form: str, shape: tuple[int, ...]) -> None:
    """Softmax and a norm by hand: several reductions a row, shared by lanes or vectors."""
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    node = x(*shape)
    centred = G.sub(node, G.reduce_mean(node, axes=(-1,), keepdims=True))
    graph = Graph(
        "rows",
        (node,),
        (
            ("s", G.softmax(node, axis=-1)),
            ("c", centred),
            ("m", G.reduce_max(node, axes=(-1,), keepdims=False)),
        ),
    )
    got = run_form(form, graph, {"x": data})
    e = np.exp(data - data.max(-1, keepdims=True))
    np.testing.assert_allclose(got["s"], e / e.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(got["c"], data - data.mean(-1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(got["m"], data.max(-1))


@pytest.mark.parametrize("form", FORMS)
def test_nan_stays(form: str) -> None:
    """fmax would drop it; ONNX wants Relu(NaN) = NaN, and a maximum over NaN to be NaN."""
    data = np.full((4, 200), -1, np.float32)
    data[1, 150] = data[2, 0] = np.nan
    node = x(4, 200)
    graph = Graph(
        "nan", (node,), (("r", G.relu(node)), ("m", G.reduce_max(node, axes=(1,), keepdims=False)))
    )
    got = run_form(form, graph, {"x": data})
    np.testing.assert_array_equal(np.isnan(got["r"]), np.isnan(data))
    np.testing.assert_array_equal(np.isnan(got["m"]), [False, True, True, False])


@pytest.mark.parametrize("form", FORMS)
def test_half_rounds_to_nearest_even(form: str) -> None:
    """Through storage and through a cast in between, without half arithmetic."""
    rng = np.random.default_rng(1)
    data = np.concatenate(
        [
            rng.standard_normal(500) * 10.0 ** rng.integers(-9, 6, 500),
            [
                65504,
                65519.9,
                65520,
                1e-8,
                2.0**-25,
                2.0**-24 * 1.5,
                0.0,
                -0.0,
                np.inf,
                np.nan,
                1 + 2.0**-11,
                1 + 3 * 2.0**-11,
            ],
        ]
    ).astype(np.float32)
    node = x(data.size)
    half = G.cast(node, to="f16")
    graph = Graph("half", (node,), (("h", half), ("w", G.cast(half, to="f32"))))
    got = run_form(form, graph, {"x": data})
    with np.errstate(over="ignore"):
        want = data.astype(np.float16)
    np.testing.assert_array_equal(got["h"], want)
    np.testing.assert_array_equal(got["w"], want.astype(np.float32))


@pytest.mark.parametrize("to", ["i8", "u8", "i16", "i32", "i64", "u64", "bool"])
def test_floats_become_integers_as_in_numpy(to: str) -> None:
    data = np.array([0.0, -0.5, 1.99, -1.99, 100.5, -100.5, 2.0**30, -(2.0**31)], np.float32)
    node = x(data.size)
    got = run_form("gpu", Graph("c", (node,), (("y", G.cast(node, to=to)),)), {"x": data})["y"]
    kept = data if to in ("i32", "i64") else data[:4] if to[0] in "bu" else data[:6]
    kept = kept[kept >= 0] if to[0] == "u" else kept
    want = kept.astype(dtypes.to_numpy(to))
    np.testing.assert_array_equal(got[np.isin(data, kept)], want)


def test_integer_division_never_traps() -> None:
    a = np.array([7, -7, 7, -7, 5, -(2**31)], np.int32)
    b = np.array([2, 2, -2, -2, 0, -1], np.int32)
    p, q = x(6, dtype="i32", name="p"), x(6, dtype="i32", name="q")
    got = run_form("gpu", Graph("d", (p, q), (("y", G.div(p, q)),)), {"p": a, "q": b})["y"]
    np.testing.assert_array_equal(got, [3, -3, -3, 3, 0, -(2**31)])


# ---- the text


def text_of(node: Node, target: Target) -> str:
    return schedule(lower(Group(node, frozenset()), "k").kernel, target).body


def target_of(**fields: object) -> Target:
    return Target(
        "opencl", "device", device_type="gpu", local_is_real=True, max_work_group=256,
        max_work_item_sizes=(256, 256, 64), **fields
    )  # type: ignore[arg-type]


def test_text_is_readable() -> None:
    text = text_of(G.mul(G.add(x(9), x(9, name="z")), x(9)), target_of())
    assert (f"__kernel {GROUP}void {ENTRY}(\n"
            "    __global const float *restrict x0,    // f32\n") in text
    assert "    if (i0 >= size0) return;\n    y[i0] = x0[i0] * x1[i0];\n" in text


def test_sums_of_narrow_integers_wrap_whatever_they_are_sums_of() -> None:
    """C computes them as int; a helper's name in front says nothing of the whole."""
    p, q, r = (x(4, dtype="i8", name=name) for name in "pqr")
    wrapped = G.cast(G.add(G.max(p, q), r), to="i32")
    feeds = {"p": np.array([127, -128, 5, 100], np.int8), "q": np.array([1, -128, 6, 90], np.int8),
             "r": np.array([1, -1, 1, 28], np.int8)}
    got = run_form("gpu", Graph("n", (p, q, r), (("y", wrapped),)), feeds)["y"]
    np.testing.assert_array_equal(got, [-128, 127, 7, -128])


def test_a_text_has_the_helpers_that_it_calls_and_does_not_hold() -> None:
    calls = Calls()
    assert calls.call("from_f16x4", "vload4(0, x)") == "jitcl_from_f16x4(vload4(0, x))"
    calls.call("max_f32x4", "a", "b")
    assert calls.define("max_f32x4") == helper("max_f32x4")
    assert calls.missing() == ["from_f16", "from_f16x4"]


def test_literals_carry_their_type() -> None:
    text = text_of(G.mul(x(8), G.const(np.float32(1e-5))), target_of())
    assert "x0[i0] * 1e-05f" in text


def test_sizes_of_groups_are_written_out() -> None:
    """Adreno's compiler fails where get_local_size() is folded into a loop."""
    text = text_of(G.reduce_sum(x(4, 1000), axes=(1,), keepdims=False), target_of())
    assert "get_local_id" in text and "get_local_size" not in text


def test_small_groups_where_local_memory_is_emulated() -> None:
    node = G.softmax(x(4, 1000), axis=-1)
    graph = Decompose().run(Graph("g", (x(4, 1000),), (("y", node),)))
    target = replace(target_of(), local_is_real=False)
    (group,) = fuse(graph)
    done = schedule(lower(group, "k").kernel, target)
    assert done.local_size == (64,) and done.global_size == (4 * 64,)


def test_helpers_are_guarded() -> None:
    """Kernels with the same helper may be one program, whose macros are all jitcl's own."""
    for name in ("max_f32", "floordiv_i64", "int_from_f64", "round_f16", "to_bf16", "min_f32x8"):
        lines = helper(name).splitlines()
        assert lines[0] == f"#ifndef JITCL_{name.upper()}" and lines[-1] == "#endif"
        assert f"jitcl_{name}(" in lines[2]


def test_math_of_halves_by_way_of_floats_where_the_driver_has_none():
    x = E.load("x", (E.var("i", "index", 64),), "f16")
    body = (For(E.var("i", "index", 64), "parallel",
                (Store("y", (E.var("i", "index", 64),), E.call("exp", x)),)),)
    kernel = Kernel("k", (Buffer("x", "f16", (64,), "in"), Buffer("y", "f16", (64,), "out")), body)
    own, wide = (OpenClRenderer(kernel, half_builtins=b) for b in (True, False))
    own.half = wide.half = True
    assert own.expr(E.call("exp", x)) == "exp(x[i])"
    assert wide.expr(E.call("exp", x)) == "(half)exp((float)x[i])"
    assert wide.expr(E.cast(x, "f32")) == "(float)x[i]"


def test_what_was_a_half_is_not_rounded_again() -> None:
    half = E.load("x", (E.index(0),), "f16")
    single = E.load("y", (E.index(0),), "f32")
    assert E.cast(E.cast(half, "f32"), "f16") is half
    assert E.cast(E.cast(single, "f16"), "f32").op == "cast"        # rounds


def test_vectors_round_to_halves_in_between() -> None:
    a = x(16, 4096)
    rounded = G.cast(G.cast(G.mul(a, a), to="f16"), to="f32")
    graph = Graph("t", (a,), (("y", G.add(rounded, a)),))
    target = replace(device(DRIVERS[0]).target, **GPU)
    (kernel,) = compile_graph(graph, target).plan.kernels
    assert "jitcl_round_f16x4(" in kernel.body
    values = np.random.default_rng(3).standard_normal((16, 4096)).astype(np.float32)
    squares = (values * values).astype(np.float16).astype(np.float32)
    got = run_form("gpu", graph, {"x": values})["y"]
    np.testing.assert_allclose(got, squares + values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(2_800_001, 3), (8_400_003,)], ids=["rows", "flat"])
def test_of_many_elements_a_work_item_takes_several(shape: tuple[int, ...]) -> None:
    a = x(*shape)
    graph = Graph("t", (a,), (("y", G.add(G.mul(a, a), a)),))
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    got = run_form("gpu", graph, {"x": values})["y"]
    np.testing.assert_allclose(got, values * values + values, rtol=1e-6, atol=1e-6)
    target = replace(device(DRIVERS[0]).target, **GPU)
    (step,) = compile_graph(graph, target, passes=False, templates=False).plan.steps
    assert step.global_size[0] < values.size / 7
