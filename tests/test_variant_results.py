"""Every variant of the kernels computes the same: on the drivers that are here, on the CPU, on real
models; and halves by integer arithmetic are exact.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen import variants
from jitcl.codegen.variants import features
from jitcl.devices.cpu.device import CpuDevice
from jitcl.ir.graph import Graph
from jitcl.ops.builder import evaluate
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.memory import plan_memory
from jitcl.runtime.source import open_source
from jitcl.target.features import features_of
from jitcl.target.variants import VARIANTS, Variant
from tests import devices
from tests.generated import ragged
from tests.generated.kernels import TARGETS, op_graphs
from tests.real_models import MODELS, goldens, needs_models
from tests.rounding import of_model
from tests.variants import (
    BY_NAME,
    GRAPHS,
    HALVES,
    LACKS,
    OPENCL,
    Driver,
    G,
    forced,
    host,
    plan_of,
    w,
    x,
)

# -- results -----------------------------------------------------------------------------------

PLACES = [s for s in devices.present() if s.startswith("opencl")]
pytestmark = pytest.mark.in_turn
PARTS = 16                              # of the op table
LOWEST = ("no-vectors", "f32-simple", "split", "cpu")
QUICK = ("conv-strided-f16", "gemm", "depthwise-f16", "max-pool-f16", "softmax-f16", "layer-norm",
         "elementwise-f16", "int8", "int4")


def results(spec: str, graph: Graph, feeds: dict[str, np.ndarray], variant: Variant,
            low: bool = False) -> list[np.ndarray]:
    """What a device computes with all groups in one variant, which is set already."""
    place = devices.device(spec)
    assert place is not None
    low = low and place.target.fp16_arithmetic
    plan = plan_of(graph, place.target, Driver(), low=low, host=host())
    assert {s.variant for s in plan.steps} == ({variant.name} if plan.steps else set())
    plan = plan_memory(plan, place.memory_mode, alignment=max(64, place.target.alignment))
    executable = place.load(plan, kernel_cache().for_target(place.target))
    return executable.run([feeds[t.name] for t in plan.inputs])


def check(spec: str, graph: Graph, feeds: dict[str, np.ndarray], variant: Variant,
          low: bool = False) -> None:
    got = results(spec, graph, feeds, variant, low)
    given = {n: feeds[str(n.attr("name"))] for n in graph.inputs}
    for (name, node), y in zip(graph.outputs, got):
        want = evaluate(node, given)
        assert y.dtype == want.dtype and y.shape == want.shape
        if not dtypes.is_float(node.type.dtype):
            assert np.array_equal(y, want), name
            continue
        scale = max(float(np.abs(want.astype(np.float64)[np.isfinite(want)]).max(initial=0)), 1e-30)
        narrow = "f16" in {n.type.dtype for n in graph.nodes}
        bound = (1e-2 if low else 3e-3 if narrow else 1e-5) * scale
        np.testing.assert_allclose(y.astype(np.float64), want.astype(np.float64), rtol=0,
                                   atol=bound, err_msg=name)


@pytest.mark.sampled(quick=4, slow=7)
@pytest.mark.parametrize("spec", PLACES)
@pytest.mark.parametrize("variant", [
    pytest.param(v, id=v.name or "first", marks=() if v.name in LOWEST else pytest.mark.slow)
    for v in OPENCL])
def test_every_variant_computes_the_same(variant, spec, monkeypatch):
    place = devices.device(spec)
    assert place is not None
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    for name in QUICK:
        graph = GRAPHS[name]()
        check(spec, graph, ragged.feeds_of(graph), variant)
        if place.target.fp16_arithmetic and "f16" in name:
            check(spec, graph, ragged.feeds_of(graph), variant, low=True)


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", GRAPHS)
def test_groups_on_the_cpu_compute_the_same(name, monkeypatch):
    """All of a plan for a GPU, on the CPU: such a plan needs no OpenCL."""
    graph, place = GRAPHS[name](), CpuDevice()
    driver = forced(BY_NAME["cpu"], monkeypatch)
    plan = plan_of(graph, TARGETS["mali"], driver, host=place.target)
    plan = plan_memory(plan, place.memory_mode, alignment=64)
    feeds = ragged.feeds_of(graph)
    got = place.load(plan, kernel_cache().for_target(place.target)).run(
        [feeds[t.name] for t in plan.inputs])
    want = evaluate(graph.outputs[0][1], {n: feeds[str(n.attr("name"))] for n in graph.inputs})
    bound = (3e-3 if "f16" in name else 1e-5) * np.abs(want.astype(np.float64)).max()
    np.testing.assert_allclose(got[0].astype(np.float64), want.astype(np.float64), rtol=0,
                               atol=bound)


@pytest.mark.slow
@pytest.mark.sampled(slow=2 * PARTS + 1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("spec", PLACES)
@pytest.mark.parametrize("variant", [BY_NAME["f32-simple"], BY_NAME["split"]], ids=lambda r: r.name)
def test_the_op_table_on_the_lowest_variants(variant, spec, part, monkeypatch):
    place = devices.device(spec)
    assert place is not None
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    for graph, feeds in list(op_graphs(place.target).values())[part::PARTS]:
        plan = plan_of(graph, place.target, Driver())
        for kernel in plan.kernels:
            assert not features(kernel) & LACKS["f32-simple"]
        check_loosely(spec, graph, feeds, variant)


def check_loosely(spec: str, graph: Graph, feeds: dict[str, np.ndarray], variant: Variant) -> None:
    """As test_ops does it, in one bound for all rows of an op."""
    given = {n: feeds[str(n.attr("name"))] for n in graph.inputs}
    for (name, node), y in zip(graph.outputs, results(spec, graph, feeds, variant)):
        want = evaluate(node, given)
        if not dtypes.is_float(node.type.dtype):
            assert np.array_equal(y, want), f"{graph.name} {name}"
            continue
        scale = max(float(np.abs(want.astype(np.float64)[np.isfinite(want)]).max(initial=0)), 1e-30)
        np.testing.assert_allclose(y.astype(np.float64), want.astype(np.float64), rtol=1e-2,
                                   atol=5e-3 * scale, err_msg=f"{graph.name} {name}")


@pytest.mark.parametrize("spec", PLACES)
def test_one_group_of_several_on_the_cpu(spec):
    """Between kernels of the device: what it writes is read on the CPU, and the other way round."""
    rows = G.softmax(G.matmul(x(9, 24), w(24, 131)), axis=-1)
    graph = ragged.graph(G.matmul(rows, w(131, 8)), rows)   # no attention: two outputs
    place = devices.device(spec)
    assert place is not None
    plan = plan_of(graph, place.target, Driver(("call:exp",)), host=host())
    assert {s.variant for s in plan.steps} == {"", "cpu"}
    plan = plan_memory(plan, place.memory_mode, alignment=max(64, place.target.alignment))
    feeds = ragged.feeds_of(graph)
    executable = place.load(plan, kernel_cache().for_target(place.target))
    for _ in range(2):
        found = executable.run([feeds[t.name] for t in plan.inputs])
        for got, (_, node) in zip(found, graph.outputs, strict=True):
            want = evaluate(node, {graph.inputs[0]: feeds["x"]})
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.sampled(quick=2, slow=2)
@needs_models
@pytest.mark.parametrize("variant", [BY_NAME["f32-simple"], BY_NAME["split"]], ids=lambda r: r.name)
@pytest.mark.parametrize("spec", PLACES)
def test_a_model_on_the_lowest_variants(variant, spec, monkeypatch):
    check_model("mnist8", spec, variant, monkeypatch)


ON_MODELS = [("squeezenet1.0_fp16", r) for r in VARIANTS] + [
    (name, BY_NAME[r]) for name in ("minilm_l6_v2", "ultraface_rfb320") for r in LOWEST]


@pytest.mark.long
@needs_models
@pytest.mark.parametrize("spec", PLACES)
@pytest.mark.parametrize(("name", "variant"), [
    pytest.param(name, variant, id=f"{name}-{variant.name or 'first'}")
    for name, variant in ON_MODELS])
def test_models_on_every_variant(spec, name, variant, monkeypatch):
    check_model(name, spec, variant, monkeypatch)


def check_model(name: str, spec: str, variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model's golden results with all its groups on one variant."""
    feeds, wanted = goldens(name)[0]
    graph = open_source(MODELS / f"{name}.onnx").graph({n: a.shape for n, a in feeds.items()}, {})
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    got = results(spec, graph, feeds, variant)
    for (output, _), y in zip(graph.outputs, got, strict=True):
        want = wanted[output].astype(np.float64)
        bound = of_model(name) * max(float(np.abs(want).max()), 1e-30)
        np.testing.assert_allclose(y.astype(np.float64), want, rtol=0, atol=bound)


# -- halves by integer arithmetic --------------------------------------------------------------

@pytest.mark.parametrize("spec", PLACES)
def test_all_halves_are_read_exactly(spec, monkeypatch):
    forced(BY_NAME["f32"], monkeypatch)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    graph = ragged.graph(G.cast(x(1 << 16, dtype="f16"), to="f32"))
    (got,) = results(spec, graph, {"x": halves}, BY_NAME["f32"])
    want = halves.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    assert np.array_equal(got[known].view(np.uint32), want[known].view(np.uint32))


def boundary_floats() -> np.ndarray:
    """Halves, what lies halfway between neighbours, and the floats right beside both."""
    halves = np.arange(0x7c00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = np.append((halves[:-1] + halves[1:]) / 2, 65520.0)
    exact = np.concatenate([halves, middles]).astype(np.float32)
    inf = np.float32(np.inf)
    near = np.concatenate([exact, np.nextafter(exact, inf), np.nextafter(exact, -inf)])
    rng = np.random.default_rng(11)
    some = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    scaled = rng.standard_normal(1 << 16) * 10.0 ** rng.integers(-9, 6, 1 << 16)
    special = np.array([0.0, np.nan, np.inf, 1e-45, 3.4e38, 2.0 ** -25, 2.0 ** -24], np.float32)
    every = np.concatenate([near, some, scaled.astype(np.float32), special])
    return np.concatenate([every, -every])


@pytest.mark.parametrize("spec", PLACES)
def test_floats_are_rounded_to_the_nearest_half(spec, monkeypatch):
    forced(BY_NAME["f32"], monkeypatch)
    floats = boundary_floats()
    graph = ragged.graph(G.cast(x(floats.size), to="f16"))
    (got,) = results(spec, graph, {"x": floats}, BY_NAME["f32"])
    with np.errstate(over="ignore"):
        want = floats.astype(np.float16)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    assert np.array_equal(got[known].view(np.uint16), want[known].view(np.uint16))


@pytest.mark.slow
@pytest.mark.parametrize("spec", PLACES)
def test_vectors_of_halves_are_converted_like_single_ones(spec, monkeypatch):
    """Vectors and no type half: nobody's variant, but what a quirk may ask for."""
    variant = Variant("soft", "with soft halves", {"soft_half": True, "fp16_arithmetic": False})
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    for name in ("gemm-f16", "elementwise-f16"):
        graph = GRAPHS[name]()
        check(spec, graph, ragged.feeds_of(graph), variant)
    plan = plan_of(GRAPHS["gemm-f16"](), TARGETS["mali"], Driver())
    assert any("jitcl_from_f16x" in k.body for k in plan.kernels)
    assert not any(HALVES & features_of(k.body) for k in plan.kernels)
