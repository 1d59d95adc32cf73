"""Products by seven of halves on the CPU: results, what rows do to one another, the choice."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitcl import config
from jitcl.codegen.generate import generate
from jitcl.devices.cpu import CpuDevice
from jitcl.devices.cpu.host import probe_target
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.fuse import fuse
from jitcl.runtime.memory import plan_memory
from jitcl.templates.cpu.tiling import Tile
from jitcl.templates.gemm_cpu.template import Shape
from jitcl.templates.strassen_cpu import template
from jitcl.templates.strassen_cpu.template import (
    LIMIT,
    Blocking,
    StrassenCpu,
    alike_columns,
    choose,
    cycles,
    plain_cycles,
)

with config.override(strassen=1):
    DEVICE = CpuDevice()
WIDTH = DEVICE.target.vector_width
WIDE = dataclasses.replace(DEVICE.target, vector_width=16, registers=32, fmas=2, strassen=None,
                           cache_bytes=1 << 20, compute_units=2)
g = GraphBuilder()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(m, k, n, *, weights=None, constant=True, bias=False, residual=False, act=None,
            view=None, batch=()):
    """(the product's nodes, its inputs). weights: of a constant."""
    shape = (*batch, m, k)
    inputs = [graph_input("a", TensorType("f32", VIEWS[view][0](shape) if view else shape))]
    a = VIEWS[view][1](inputs[0]) if view else inputs[0]
    if constant:
        b = const(normal(k, n, seed=1) / np.sqrt(np.float32(k)) if weights is None else weights)
    else:
        inputs.append(graph_input("b", TensorType("f32", (k, n))))
        b = inputs[-1]
    y = g.matmul(a, b)
    if bias:
        y = g.add(y, const(normal(n, seed=2)))
    if residual:
        inputs.append(graph_input("r", y.type))
        y = g.add(y, inputs[-1])
    return g.op(act, y) if act else y, inputs


VIEWS = {                                     # how a is stored, and how it becomes [.., m, k]
    "heads": (lambda s: (1, s[1] // 32, s[0], 32), lambda x: g.reshape(
        g.transpose(x, perm=(0, 2, 1, 3)), shape=(x.type.dims[2], 32 * x.type.dims[1]))),
    "narrow heads": (lambda s: (1, s[1] // 24, s[0], 24), lambda x: g.reshape(
        g.transpose(x, perm=(0, 2, 1, 3)), shape=(x.type.dims[2], 24 * x.type.dims[1]))),
    "transposed": (lambda s: (s[1], s[0]), lambda x: g.transpose(x, perm=(1, 0))),
}


def load(y, inputs, target=DEVICE.target):
    graph = Graph("t", tuple(inputs), (("y", y),))
    plan = plan_memory(generate(graph, fuse(graph, target), target).plan, "arena", "normal", 64)
    return DEVICE.load(plan), [k for k in plan.kernels if k.template == "strassen_cpu"]


def run(y, inputs, arrays, target=DEVICE.target):
    """The result; asserts that the template wrote its kernel."""
    loaded, kernels = load(y, inputs, target)
    assert any(k.entry.startswith("strassen_") for k in kernels)
    return loaded.run(arrays)[0]


CASES = {
    "whole tiles": {"m": 112, "k": 128, "n": 16 * WIDTH, "act": "relu"},
    "odd rows": {"m": 117, "k": 64, "n": 8 * WIDTH, "bias": True},
    "few rows": {"m": 2, "k": 64, "n": 8 * WIDTH},
    "ragged columns": {"m": 60, "k": 64, "n": 9 * WIDTH + 3, "bias": True, "act": "tanh"},
    "as wide as two vectors": {"m": 40, "k": 32, "n": 2 * WIDTH},
    "long sums": {"m": 75, "k": 3200, "n": 6 * WIDTH, "bias": True, "residual": True},
    "parts that are not equal": {"m": 75, "k": 1120, "n": 6 * WIDTH},
    "blocks of rows": {"m": 900, "k": 320, "n": 8 * WIDTH, "residual": True},
    "heads": {"m": 90, "k": 192, "n": 8 * WIDTH, "bias": True, "view": "heads"},
    "heads that are no whole vectors": {"m": 90, "k": 192, "n": 8 * WIDTH, "view": "narrow heads"},
    "transposed rows": {"m": 90, "k": 192, "n": 8 * WIDTH, "view": "transposed"},
    "a batch": {"m": 30, "k": 96, "n": 8 * WIDTH, "batch": (2, 3), "bias": True},
    "two inputs": {"m": 90, "k": 192, "n": 8 * WIDTH, "constant": False, "bias": True},
    "two inputs, ragged": {"m": 61, "k": 224, "n": 9 * WIDTH + 5, "constant": False},
    "two inputs, long sums": {"m": 61, "k": 2240, "n": 8 * WIDTH, "constant": False},
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_reference(name):
    y, inputs = product(**CASES[name])
    arrays = [normal(*i.type.dims, seed=k) for k, i in enumerate(inputs)]
    want = evaluate(y, dict(zip(inputs, arrays))).astype(np.float64)
    got = run(y, inputs, arrays)
    assert np.abs(got - want).max() <= 3e-6 * max(1.0, np.abs(want).max())


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 70), st.integers(1, 5), st.integers(2 * WIDTH, 5 * WIDTH), st.booleans())
def test_any_shape(m, k, n, constant):
    y, inputs = product(m, 2 * WIDTH * k, n, constant=constant)
    arrays = [normal(*i.type.dims, seed=k) for k, i in enumerate(inputs)]
    want = evaluate(y, dict(zip(inputs, arrays))).astype(np.float64)
    assert np.abs(run(y, inputs, arrays) - want).max() <= 3e-6 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("m", [61, 230, 900])
def test_bits_are_the_same_for_any_number_of_threads(m):
    y, inputs = product(m, 640, 8 * WIDTH, bias=True, residual=True)
    arrays = [normal(*i.type.dims, seed=k) for k, i in enumerate(inputs)]
    loaded, _ = load(y, inputs)
    results = []
    for threads in (1, 2, 3, 5, 8):
        with config.override(threads=threads):
            results.append(loaded.run(arrays)[0].copy())
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_the_last_tile_leaves_its_neighbour_what_it_has(monkeypatch):
    """Else two threads would write other bits to the same rows."""
    monkeypatch.setattr(template, "choose", lambda s, target: Blocking(Tile(1, 4, 2), 2, 32))
    a, results = normal(37, 64), []
    for m in (32, 37):
        y, inputs = product(m, 64, 8 * WIDTH)
        results.append(run(y, inputs, [a[:m]])[:32])
    np.testing.assert_array_equal(*results)


def test_it_is_nearer_to_the_truth_than_one_long_sum():
    y, inputs = product(64, 3072, 8 * WIDTH)
    a = normal(64, 3072)
    want = a.astype(np.float64) @ y.inputs[1].data.astype(np.float64)
    errors = []
    for strassen in (1, 0):
        loaded, kernels = load(y, inputs, dataclasses.replace(DEVICE.target, strassen=strassen))
        assert bool(kernels) == bool(strassen)
        errors.append(np.abs(loaded.run([a])[0] - want).max())
    assert errors[0] < errors[1]


# ---------------------------------------------------------------- what is added to what
@pytest.mark.parametrize("constant", [True, False])
def test_what_is_not_finite_stays_in_its_row(constant):
    y, inputs = product(60, 128, 8 * WIDTH, constant=constant)
    arrays = [normal(*i.type.dims, seed=k) for k, i in enumerate(inputs)]
    loaded, _ = load(y, inputs)
    want = loaded.run(arrays)[0].copy()
    places = itertools.product([0, 20, 59], [3, 127])
    for (row, column), bad in itertools.product(places, [np.nan, np.inf, -np.inf, 3e38]):
        spoilt = arrays[0].copy()
        spoilt[row, column] = bad
        got = loaded.run([spoilt, *arrays[1:]])[0]
        others = np.arange(60) != row
        np.testing.assert_allclose(got[others], want[others], rtol=0, atol=1e-4)
        assert not np.isfinite(got[row]).all() or bad == 3e38


def test_what_is_not_finite_stays_in_its_column():
    y, inputs = product(60, 128, 8 * WIDTH, constant=False)
    a, b = normal(60, 128), normal(128, 8 * WIDTH, seed=1)
    loaded, _ = load(y, inputs)
    want = loaded.run([a, b])[0].copy()
    for bad, column in itertools.product([np.nan, np.inf], [0, 3 * WIDTH + 1, 8 * WIDTH - 1]):
        spoilt = b.copy()
        spoilt[77, column] = bad
        got = loaded.run([a, spoilt])[0]
        others = np.arange(8 * WIDTH) != column
        np.testing.assert_allclose(got[:, others], want[:, others], rtol=0, atol=1e-4)
        assert not np.isfinite(got[:, column]).any()


def test_small_rows_and_columns_are_as_exact_as_large_ones():
    a, b = normal(60, 128), normal(128, 8 * WIDTH, seed=1)
    a[::3] *= 1e-5
    a[7] = 0
    b[:, 1::2] *= 1e4
    for constant in (True, False):
        y, inputs = product(60, 128, 8 * WIDTH, weights=b if constant else None, constant=constant)
        got = run(y, inputs, [a] if constant else [a, b])
        want = a.astype(np.float64) @ b.astype(np.float64)
        for axis in (0, 1):                   # relative to the largest of each column, of each row
            scale = np.abs(want).max(axis, keepdims=True)
            assert (np.abs(got - want) <= 3e-6 * scale).all()


def test_columns_that_are_alike():
    b = np.ones((4, 12), np.float32)                     # panels of two and two columns
    b[2, 1] = LIMIT
    b[3, 6] = -LIMIT - 1
    b[0, 10] = np.nan
    assert alike_columns(b, 1, 2).tolist() == [1, 0, 0]
    assert alike_columns(np.ones((4, 6), np.float32), 1, 2).tolist() == [1, 1]    # two are missing
    assert alike_columns(np.zeros((4, 4), np.float32), 1, 2).tolist() == [1]


def test_a_constant_whose_columns_are_unlike_is_left_to_gemm():
    b = normal(128, 8 * WIDTH)
    for factor, mine in ((1, True), (1000, False)):
        weights = b.copy()
        weights[:, ::WIDTH // 2 + 1] *= factor
        y, inputs = product(60, 128, 8 * WIDTH, weights=weights)
        assert bool(load(y, inputs)[1]) == mine


# ---------------------------------------------------------------- choice
@pytest.mark.parametrize("m, k, n, mine", [
    (1500, 384, 1536, True),
    (2048, 2048, 2048, True),
    (128, 768, 3072, True),
    (64, 768, 3072, False),                    # few rows: weights come late
    (3136, 96, 384, False),                    # short sums: tiles hardly begin
    (1500, 390, 1536, False),                  # halves that are not whole vectors
    (1, 768, 3072, False),
])
def test_where_it_pays(m, k, n, mine):
    assert (choose(Shape(1, m, n, k, True), WIDE) is not None) == mine


def test_what_is_in_work_fits():
    for k in (32, 768, 4096, 32 * 999):
        s = Shape(1, 300, 640, k, True)
        b = choose(s, dataclasses.replace(WIDE, strassen=1))
        assert 4 * 7 * b.tiles * b.tile.columns * b.terms <= WIDE.cache_bytes
        assert 4 * 9 * b.tiles * b.tile.columns * template.pitch(b.terms, 16) <= 512 << 10
        assert b.terms % 16 == 0 and b.terms <= template.MOST_TERMS


def test_an_eighth_is_saved_at_most():
    s = Shape(1, 4096, 4096, 4096, True)
    b = Blocking(Tile(1, 14, 2), 4, 256)
    assert 7 / 8 < cycles(s, b, WIDE) / plain_cycles(s, WIDE) < 1


@pytest.mark.parametrize("changes", [
    {"dtype": "f16"}, {"batch": 3}, {"transposed": True}])
def test_what_it_does_not_take(changes):
    dtype, batch = changes.get("dtype", "f32"), changes.get("batch", 1)
    a = graph_input("a", TensorType(dtype, (batch, 64, 128)))
    shape = (batch, 256, 128) if "transposed" in changes else (batch, 128, 256)
    b = graph_input("b", TensorType(dtype, shape))
    y = g.matmul(a, g.transpose(b, perm=(0, 2, 1)) if "transposed" in changes else b)
    graph = Graph("t", (a, b), (("y", y),))
    group = fuse(graph, DEVICE.target)[-1]
    assert StrassenCpu().accepts(group, DEVICE.target) is None


def test_the_environment_decides():
    for value in (0, 1, None):
        with config.override(strassen=value):
            assert probe_target().strassen == value
    y, inputs = product(60, 128, 8 * WIDTH)
    assert not load(y, inputs, dataclasses.replace(DEVICE.target, strassen=0))[1]
    assert not load(y, inputs, dataclasses.replace(DEVICE.target, strassen=None))[1]
    assert load(y, inputs)[1]
