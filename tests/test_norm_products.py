"""A norm in front of products of few rows, and a gate beside what it gates: one kernel on GPUs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jitcl.codegen.trial import trials
from jitcl.dtypes import to_numpy
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.group import Chain
from jitcl.ir.types import TensorType
from jitcl.ops.builder import evaluate
from jitcl.runtime.memory import laid_out
from jitcl.target import Target
from tests.compiling import compile_graph, plan_on
from tests.rounding import TOLERANCE
from tests.test_candidates import GPU, MALI, POCL, as_target, b, needs_pocl


def weights(kind: str, n: int, k: int, seed: int) -> Node:
    """[k, n] of f32, f16, or codes of so many bits in blocks of 32."""
    rng = np.random.default_rng(seed)
    if kind in ("f32", "f16"):
        w = const((rng.standard_normal((n, k)) / np.sqrt(k)).astype(to_numpy(kind)))
        w = w if kind == "f32" else b.cast(w, to="f32")
    else:
        codes = const(rng.integers(0, 256, n * k * int(kind) // 8).astype("u1"))
        dims = (n, k // 32, 32)
        codes = (b.unpack_uint4(codes, shape=dims) if kind == "4" else
                 b.reshape(codes, shape=dims))
        scales = const(rng.uniform(-0.01, 0.01, (*dims[:2], 1)).astype("f2"))
        zero = const(np.array(8 if kind == "4" else 128, "u1"))
        w = b.reshape(b.dequantize(codes, b.cast(scales, to="f32"), zero, to="f32"), shape=(n, k))
    return b.transpose(w, perm=(1, 0))


def norm(x: Node, weighted: bool = True, centred: bool = False) -> Node:
    """x / sqrt(mean of squares) * weights; centred: LayerNorm."""
    if centred:
        x = b.sub(x, b.reduce_mean(x, axes=(1,), keepdims=True))
    mean = b.reduce_mean(b.mul(x, x), axes=(1,), keepdims=True)
    y = b.mul(x, b.reciprocal(b.sqrt(b.add(mean, 1e-5))))
    if not weighted:
        return y
    return b.mul(y, const(np.random.default_rng(9).uniform(0.5, 2, x.type.dims[1]).astype("f4")))


def gated(kind: str, rows: int, n: int, k: int, normed: bool = True, **how: bool) -> Graph:
    """silu(h @ v) * (h @ w + bias) with h = norm(x)."""
    x = graph_input("x", TensorType("f32", (rows, k)))
    h = norm(x, **how) if normed else x
    v, w = (b.matmul(h, weights(kind, n, k, seed)) for seed in (1, 2))
    bias = const(np.random.default_rng(3).standard_normal(n).astype("f4"))
    return Graph("gated", (x,), (("y", b.mul(b.swish(v), b.add(w, bias))),))


def stems(graph: Graph, target: Target, precision: str = "high") -> list[str]:
    """Of kernels, without numbers and digests."""
    steps = compile_graph(graph, target, precision).plan.steps
    return [s.kernel.rpartition("_")[0].rpartition("_")[0] for s in steps]


def right(graph: Graph, target: Target, seed: int = 0) -> None:
    arrays = [np.random.default_rng(seed).standard_normal(n.type.dims).astype("f4") * 3
              for n in graph.inputs]
    arrays[0] *= np.logspace(-1, 1, len(arrays[0]), dtype="f4")[:, None]     # each row its own sum
    want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, arrays)))
    plan = plan_on(POCL, graph, target)
    (got,) = POCL.load(plan).run(arrays)
    assert np.abs(got - want).max() <= TOLERANCE["f32"] * max(1.0, np.abs(want).max())


@needs_pocl
@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize("normed", [True, False], ids=["norm", "alone"])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["f32", "f16", "4", "8"])
def test_a_gate_and_what_it_gates_are_one_kernel(kind, rows, normed):
    graph, target = gated(kind, rows, 77, 288, normed), as_target(**GPU)
    assert stems(graph, target) == ["norm_gemv_2"] if normed else ["gemv_2"]
    right(graph, target)


@needs_pocl
@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rows, k", [(1, 2048), (3, 36), (8, 520)])
def test_a_norm_is_summed_by_the_product_behind_it(rows, k, weighted):
    """Also of rows that are gathered."""
    x = graph_input("x", TensorType("f32", (rows, k)))
    picked = b.gather(x, const(np.arange(rows)[::-1].copy()), axis=0)
    for left in (x, picked):
        y = b.matmul(norm(left, weighted), weights("f32", 70, k, 1))
        graph, target = Graph("normed", (x,), (("y", y),)), as_target(**GPU)
        assert stems(graph, target) == ["norm_gemv"]
        right(graph, target)


def test_what_stays_apart():
    """Where others read the norm; LayerNorm; more rows; where tiles aren't staged; where tensor
    cores compute products."""
    target = as_target(**GPU)
    x = graph_input("x", TensorType("f32", (1, 64)))
    h = norm(x)
    y = b.matmul(h, weights("f32", 40, 64, 1))
    for outputs in ((("y", y), ("h", h)), (("y", y), ("z", b.matmul(h, weights("f32", 8, 64, 2))))):
        assert "norm_gemv" not in stems(Graph("read twice", (x,), outputs), target)
    assert stems(gated("f32", 1, 40, 64, centred=True), target)[-1] == "gemv_2"
    assert not {"norm_gemv_2", "gemv_2"} & set(stems(gated("f32", 9, 40, 64), target))
    assert not {"norm_gemv_2", "gemv_2"} & set(stems(gated("f32", 1, 40, 64), as_target(**MALI)))
    tensors = dataclasses.replace(target, tensor_cores=True)
    for rows in (2, 3):
        found = stems(gated("f16", rows, 64, 256), tensors, "low")
        assert ("norm_gemv_2" in found) == (rows == 2)


@needs_pocl
def test_what_drivers_are_tried_with_is_right_by_its_enclosure():
    for graph in (gated("f16", 2, 40, 96), gated("4", 1, 40, 96)):
        made = compile_graph(graph, as_target(**GPU))
        (trial,) = (t for t in trials(made, made.plan) if isinstance(t.group, Chain))
        loaded = POCL.load(laid_out(made.plan, POCL, "normal"))
        drawn = {t.buffer: a for t, a in zip(trial.plan.inputs, trial.inputs())}
        (x,) = (drawn[at] for n, at in trial.operands.items() if n.op == "input")
        assert trial.reason == "" and trial.wrong(loaded.run([x])) == ""


@needs_pocl
def test_what_is_not_finite_is_flagged():
    graph = gated("f32", 2, 40, 64)
    plan = plan_on(POCL, graph, as_target(**GPU), flags=True)
    loaded, x = POCL.load(plan), np.ones((2, 64), "f4")
    for spoilt in (1, np.inf, np.nan):
        x[1, 7] = spoilt
        *_, flags = loaded.run([x])
        assert bool(flags.any()) == (spoilt != 1)
