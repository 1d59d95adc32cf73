"""The ladder: which variant a group gets of which kernels are known to fail, what its source then
lacks, and that every variant of it computes the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen import variants
from jitcl.codegen.generate import generate
from jitcl.codegen.plan import Plan, Step
from jitcl.codegen.variants import features, unpack
from jitcl.devices.cpu.device import CpuDevice
from jitcl.errors import BuildError, UnsupportedError
from jitcl.ir.graph import Graph, Node, Origin, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.memory import plan_memory
from jitcl.runtime.source import open_source
from jitcl.target import Target
from jitcl.target.features import features_of
from jitcl.target.ladder import RUNGS, Rung
from tests import devices
from tests.generated import clang, oclgrind, ragged
from tests.generated.kernels import MODELS, TARGETS, op_graphs

G = GraphBuilder()
BY_NAME = {r.name: r for r in RUNGS}
OPENCL = [r for r in RUNGS if not r.cpu]
VECTORS = {"vec4", "vec8", "vec16"}
HALVES = {"half", "half_storage"}


def x(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def w(*shape: int, seed: int = 0) -> Node:
    return const(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def int8_gemm() -> Graph:
    """A product with weights that lie as int8, with a scale a column."""
    rng = np.random.default_rng(3)
    weight = const(rng.integers(-128, 128, (24, 40)).astype(np.int8))
    return ragged.graph(G.relu(G.matmul(x(9, 24), G.dequantize(weight, w(40)))))


def layer_norm() -> Graph:
    return ragged.graph(G.layer_norm(x(6, 96), w(96), w(96, seed=1), axis=-1, epsilon=1e-5))


def packed(rows: int, columns: int) -> Node:
    """Weights of 4 bits, two in a byte, with a scale a column."""
    rng = np.random.default_rng(4)
    values = const(rng.integers(0, 256, rows * columns // 2).astype(np.uint8))
    return G.dequantize(G.unpack_int4(values, shape=(rows, columns)), w(columns))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "conv": lambda: ragged.conv(5, 7, (9, 35), (3, 3), pads=(1, 1, 1, 1)),
    "conv-strided-f16": lambda: ragged.conv(6, 8, (9, 37), (3, 3), "f16", pads=(1, 1, 1, 1),
                                            strides=(2, 2)),
    "gemm": lambda: ragged.matmul(17, 24, 40),
    "gemm-f16": lambda: ragged.matmul(9, 33, 24, "f16"),
    "depthwise-f16": lambda: ragged.conv(9, 9, (8, 19), (3, 3), "f16", group=9,
                                         pads=(1, 1, 1, 1)),
    "max-pool-f16": lambda: ragged.graph(G.max_pool(
        x(1, 3, 9, 21, dtype="f16"), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1),
        dilations=(1, 1))),
    "softmax": lambda: ragged.graph(G.softmax(x(5, 131), axis=-1)),
    "layer-norm": layer_norm,
    "elementwise-f16": lambda: ragged.graph(G.tanh(G.mul(
        x(4, 33, dtype="f16"), x(33, dtype="f16", name="z")))),
    "softmax-f16": lambda: ragged.graph(G.softmax(x(5, 131, dtype="f16"), axis=-1)),
    "concat": lambda: ragged.graph(G.concat(x(2, 3, 8), x(2, 5, 8, name="z"), axis=1)),
    "int8": int8_gemm,
    "int4": lambda: ragged.graph(G.matmul(x(9, 256), packed(256, 320))),
}


class Driver:
    """A database of faults: kernels with all of some features fail, and those of `entries`."""

    def __init__(self, *combined: Iterable[str], entries: Iterable[str] = ()) -> None:
        self.combined = [frozenset(c) for c in combined]
        self.entries = set(entries)

    def rejects(self, entry: str, features: frozenset[str]) -> str:
        if entry in self.entries:
            return f"SIGSEGV in {entry}"
        found = next((c for c in self.combined if c <= features), None)
        return "" if found is None else f"SIGABRT: no {'+'.join(sorted(found))}"


def plan_of(graph: Graph, target: Target, faults: variants.Faults | None = None, *,
            low: bool = False, host: Target | None = None, templates: bool = True) -> Plan:
    """The plan of a graph; `low`: halves computed as halves."""
    graph = run_passes(graph, pipeline(target, Options(precision="low" if low else "high")))
    return generate(graph, fuse(graph, target), target, faults=faults, host=host, half=low,
                    templates=templates).plan


def forced(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A database for which the ladder has one rung only."""
    monkeypatch.setattr(variants, "RUNGS", (rung,))
    return Driver()


def main_steps(plan: Plan) -> list[Step]:
    return [s for s in plan.steps if s.flops]


@functools.cache
def host() -> Target:
    return CpuDevice().target


# -- which rung --------------------------------------------------------------------------------

TAKEN = [
    ("conv", "gpu", [("local",)], "no-local"),
    ("conv", "gpu", [("template:gemm_tiled_opencl",), ("vec4",)], "no-vectors"),
    ("conv", "cpu-fp16", [("vec16",)], "vectors-8"),
    ("conv", "cpu-fp16", [("vec16",), ("vec8",)], "vectors-4"),
    ("conv", "cpu", [("template:conv_opencl",)], "loops"),
    ("gemm", "gpu", [("local",), ("template:gemm_opencl",)], "loops"),
    ("gemm", "mali", [("vec4",)], "no-vectors"),
    ("gemm-f16", "mali", [("half_storage",)], "f32"),
    ("softmax", "gpu", [("barrier",)], "no-local"),
    ("softmax", "cpu", [("vec8",)], "vectors-4"),
    ("softmax", "cpu", [(v,) for v in sorted(VECTORS)], "no-vectors"),
    ("layer-norm", "gpu", [("local",)], "no-local"),
    ("layer-norm", "gpu", [("barrier", "local", "call:sqrt")], "no-local"),
    ("elementwise-f16", "gpu-fp16", [("half",)], "f32-arithmetic"),
    ("elementwise-f16", "gpu-fp16", [("half",), ("half_storage",)], "f32"),
    ("gemm-f16", "mali", [("half_storage",), ("vec4",)], "f32-simple"),
    ("softmax-f16", "gpu-fp16", [("half", "local")], "no-local"),
    ("softmax-f16", "gpu-fp16", [("half",), ("local",)], "f32-arithmetic-simple"),
    ("concat", "cpu", [("vec8",)], "vectors-4"),
    ("int8", "gpu", [("int8",)], "unpacked"),
    ("int8", "mali", [("int8",), ("vec4",)], "simple"),
    ("int4", "gpu", [("int4",)], "unpacked"),
    ("int4", "mali", [("int4", "int8")], "unpacked"),
    ("int4", "cpu", [("int8",)], "unpacked"),
]


@pytest.mark.parametrize(("name", "target", "fails", "rung"), TAKEN)
def test_a_group_steps_down_to_what_works(name, target, fails, rung):
    low = TARGETS[target].fp16_arithmetic and "f16" in name
    first = plan_of(GRAPHS[name](), TARGETS[target], low=low)
    plan = plan_of(GRAPHS[name](), TARGETS[target], Driver(*fails), low=low)
    assert any(set(f) <= features(k) for f in fails for k in first.kernels)
    assert {s.variant for s in plan.steps} == {rung}
    assert not any(set(f) <= features(k) for f in fails for k in plan.kernels)
    for step in plan.steps:
        assert f"// written {BY_NAME[rung].says}, since the driver fails: SIGABRT" in step.head


@pytest.mark.parametrize("exact", [True, False])
def test_quotients_that_are_rounded_are_exact_where_a_device_can(exact):
    target = dataclasses.replace(TARGETS["gpu"], exact_division=exact)
    g = GraphBuilder()
    x, scale = graph_input("x", TensorType("f32", (64,))), graph_input("s", TensorType("f32", ()))
    zero = g.const(3, "u8")
    rounded = Graph("q", (x, scale), (("y", g.quantize(x, scale, zero, to="u8")),))
    divided = Graph("d", (x, scale), (("y", g.div(x, scale)),))
    option = "-cl-fp32-correctly-rounded-divide-sqrt"
    assert all((option in k.options) == exact for k in plan_of(rounded, target).kernels)
    assert not any(option in k.options for k in plan_of(divided, target).kernels)


class Launches(Driver):
    """Kernels of `entries` can't be launched."""

    def rejects(self, entry: str, features: frozenset[str]) -> str:
        return f"OUT_OF_RESOURCES at enqueue of {entry}" if entry in self.entries else ""


@pytest.mark.parametrize("name", ["elementwise-f16", "softmax", "conv"])
def test_smaller_groups_are_declared_where_launches_were_refused(name):
    """The text is another one, though it does not depend on the group: so it is another kernel."""
    target = TARGETS["gpu"]
    entries: set[str] = set()
    variants_met = []
    for _ in range(len(RUNGS)):
        plan = plan_of(GRAPHS[name](), target, Launches(entries=entries))
        variants_met += [s.variant for s in main_steps(plan)]
        entries |= {k.entry for k in plan.kernels}
        if "groups-16" in variants_met:
            break
    assert "groups-16" in variants_met
    kernels = {k.entry: k.body for k in plan.kernels}
    for step in plan.steps:
        size = ", ".join(map(str, (*step.local_size, 1, 1)[:3]))
        if step.variant == "groups-16" and step.local_size:
            assert math.prod(step.local_size) <= 16
            assert f"__attribute__((reqd_work_group_size({size}))) void" in kernels[step.kernel]
    crashed = plan_of(GRAPHS[name](), target, Driver(entries=entries))
    assert not any("reqd_work_group_size" in k.body for k in crashed.kernels if not k.template)


def test_images_go_first():
    graph = GRAPHS["gemm"]()
    target = dataclasses.replace(TARGETS["mali"], images=True, image_pixels=1 << 16)
    first = plan_of(graph, target)
    assert any("image" in features(k) for k in first.kernels) and any(s.images for s in first.steps)
    plan = plan_of(graph, target, Driver(("image",)))
    assert {(s.variant, s.images) for s in plan.steps} == {("no-images", ())}
    assert plan.kernels == plan_of(graph, TARGETS["mali"]).kernels


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_driver_without_faults_gets_what_is_scheduled(name, target):
    graph = GRAPHS[name]()
    plan = plan_of(graph, TARGETS[target], Driver(), host=host())
    assert plan.steps == plan_of(graph, TARGETS[target]).steps
    assert {s.variant for s in plan.steps} == {""}
    assert all(s.group >= 0 for s in plan.steps)


@pytest.mark.parametrize("target", ["gpu-fp16", "mali", "cpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernel_by_kernel_down_to_the_cpu(name, target):
    """Every kernel that is tried fails: no kernel comes twice, the rungs come in their order, and
    the CPU at last."""
    driver, order, low = Driver(), [], TARGETS[target].fp16_arithmetic
    for _ in range(4 * len(RUNGS)):
        plan = plan_of(GRAPHS[name](), TARGETS[target], driver, low=low, host=host())
        steps = [s for s in plan.steps if s.group == plan.steps[0].group]
        if steps[0].variant == "cpu":
            break
        order.append(steps[0].variant)
        new = {s.kernel for s in steps}
        assert not new & driver.entries
        driver.entries |= new
    assert {s.variant for s in steps} == {"cpu"}
    places = [[r.name for r in RUNGS].index(v) for v in order]
    assert places == sorted(places)
    assert len(set(places)) == len(places) >= 1


def test_groups_step_down_by_themselves():
    graph = ragged.graph(G.softmax(G.matmul(x(16, 24), w(24, 131)), axis=-1))
    plan = plan_of(graph, TARGETS["mali"], Driver(("local",)))
    assert [(s.name, s.variant) for s in plan.steps] == [
        ("matmul_0", ""), ("mul_1", "no-local")]


def test_nothing_is_left_of_rejected_attempts():
    for name, target, fails, _ in TAKEN:
        plan = plan_of(GRAPHS[name](), TARGETS[target], Driver(*fails))
        used = {b for s in plan.steps for b in s.buffers}
        ends = {t.buffer for t in (*plan.inputs, *plan.outputs)}
        assert used | ends == set(range(len(plan.buffers)))
        assert set(plan.constants) <= used
        assert {k.entry for k in plan.kernels} == {s.kernel for s in plan.steps}


# -- what is written ---------------------------------------------------------------------------

LACKS = {
    "no-local": {"local", "barrier"},
    "vectors-8": {"vec16"},
    "vectors-4": {"vec8", "vec16"},
    "no-vectors": VECTORS,
    "f32-arithmetic": {"half"},
    "simple": {"local", "barrier", "image", *VECTORS},
    "f32-arithmetic-simple": {"local", "barrier", "image", "half", *VECTORS},
    "f32": HALVES,
    "f32-simple": {"local", "barrier", "image", *HALVES, *VECTORS},
    "split": {"local", "barrier", "image", *HALVES, *VECTORS},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rung", OPENCL, ids=lambda r: r.name or "first")
def test_what_the_sources_of_a_rung_lack(rung, target, monkeypatch):
    driver = forced(rung, monkeypatch)
    found = set()
    for make in (*GRAPHS.values(), *ragged.GRAPHS.values()):
        for low in {False, TARGETS[target].fp16_arithmetic}:
            plan = plan_of(make(), TARGETS[target], driver, low=low)
            assert {s.variant for s in plan.steps} == {rung.name}
            for kernel in plan.kernels:
                found |= features(kernel)
                text = bare(kernel.body)
                if "half" in LACKS.get(rung.name, ()) and rung.effect.get("soft_half"):
                    assert "half" not in text
                if rung.loops_only:
                    assert kernel.template == ""
            most = rung.caps.get("max_work_group", 256)
            assert all(s.local_size[0] <= most for s in plan.steps)
            assert all(g % n == 0 for s in plan.steps
                       for g, n in zip(s.global_size, s.local_size))
    assert not found & LACKS.get(rung.name, set())
    assert "vec4" in found or LACKS.get(rung.name, set()) >= VECTORS or rung.loops_only


def bare(body: str) -> str:
    """A kernel's text without its comments."""
    return "\n".join(line.partition("//")[0] for line in body.splitlines())


def test_a_forced_width_is_in_templates_and_loops():
    """JITCL_TARGET=max_vector_width=16,vector_width=16: what PoCL 3.0 dies of on Zen 4."""
    narrow = dataclasses.replace(TARGETS["cpu"], max_vector_width=8)
    wide = dataclasses.replace(narrow, vector_width=16, max_vector_width=16)
    for name in ("conv", "gemm", "softmax"):
        texts = [k.body for k in plan_of(GRAPHS[name](), wide).kernels]
        assert any("float16 " in t for t in texts), name
        assert not any("vec16" in features(k) for k in plan_of(GRAPHS[name](), narrow).kernels)


def test_a_split_group_is_a_kernel_a_node(monkeypatch):
    graph = ragged.graph(G.relu(G.add(G.tanh(G.mul(x(4, 33), x(4, 33))), 1.0)))
    one = plan_of(graph, TARGETS["gpu"])
    plan = plan_of(graph, TARGETS["gpu"], forced(BY_NAME["split"], monkeypatch))
    assert len(one.steps) == 1
    (name,) = (s.name for s in one.steps)
    inner = [f"{name}_{op}_{k}" for k, op in enumerate(("mul", "tanh", "add"))]
    assert [s.name for s in plan.steps] == [*inner, name]
    assert {s.group for s in plan.steps} == {0}
    temporaries = [k for k, b in enumerate(plan.buffers) if b.kind == "temp"]
    assert [b for s in plan.steps[:-1] for b in s.writes] == temporaries
    assert plan.steps[-1].writes == (plan.outputs[0].buffer,)
    assert sum(s.flops for s in plan.steps) == one.steps[0].flops


def test_a_group_on_the_cpu_has_a_kernel_of_the_cpu_path(monkeypatch):
    rung = BY_NAME["cpu"]
    for make in GRAPHS.values():
        plan = plan_of(make(), TARGETS["mali"], forced(rung, monkeypatch), host=host())
        assert {k.language for k in plan.kernels} == {"numba"}
        assert {(s.variant, s.global_size, s.local_size) for s in plan.steps} == {("cpu", (), ())}
        assert all(s.head.startswith("# ") for s in plan.steps)


def test_where_everything_fails_the_error_says_all():
    graph = GRAPHS["softmax"]()
    origins = {n: Origin("encoder/softmax", "Softmax") for n in graph.nodes if n.op == "softmax"}
    graph = dataclasses.replace(graph, origins=origins)
    with pytest.raises(BuildError) as error:
        plan_of(graph, TARGETS["gpu"], Driver(()))
    text = str(error.value)
    assert text.startswith("node 'encoder/softmax' (Softmax): the driver of a GPU")
    for said in ("as scheduled: reduce_max_", "without local memory: reduce_max_",
                 "as a plain loop for each operation: reduce_max_", "SIGABRT", "device='cpu'",
                 "jitcl cache retry"):
        assert said in text
    kernels = [line.split(": ")[1] for line in text.splitlines()[1:-1]]
    assert len(kernels) == len(set(kernels)) >= 3
    with pytest.raises(BuildError, match="for the CPU: "):
        plan_of(graph, TARGETS["gpu"], Driver(()), host=host())


def test_half_models_need_no_type_half_of_the_driver():
    """Where the probe found no way to store halves, integer arithmetic does it from the start."""
    lacking = {"fp16_storage": False, "fp16_arithmetic": False, "soft_half": True}
    for target in TARGETS.values():
        plan = plan_of(GRAPHS["gemm-f16"](), dataclasses.replace(target, **lacking))
        assert not any(HALVES & features(k) for k in plan.kernels)
        assert {s.variant for s in plan.steps} == {""}
    with pytest.raises(UnsupportedError, match="has no f16"):
        plan_of(GRAPHS["gemm-f16"](), dataclasses.replace(TARGETS["gpu"], fp16_storage=False))


# -- weights -----------------------------------------------------------------------------------

def test_unpacked_weights_are_constants_of_floats():
    weight = packed(24, 40)
    product = G.matmul(x(9, 24), weight)
    root = G.relu(product)
    group = Group(root, frozenset((product, weight, *weight.inputs[:1])), product)
    plain = unpack(group, {})
    assert [n.op for n in plain.members] == ["matmul", "relu"]
    assert plain.anchor is plain.root.inputs[0]
    folded = plain.anchor.inputs[1]
    assert folded.op == "const"
    assert np.array_equal(folded.data, evaluate(weight, {}))


def test_weights_of_several_readers_are_copied_once_unpacked():
    weight = packed(24, 40)
    plain = unpack(Group(weight, frozenset(weight.inputs[:1])), {})
    assert [n.op for n in plain.members] == ["cast"]
    assert plain.root.type == weight.type


def test_what_would_fill_memory_stays_computed():
    spread = G.expand(w(1, 64), shape=(4096, 64))
    root = G.add(x(4096, 64), spread)
    group = Group(root, frozenset((spread,)))
    assert unpack(group, {}) is group


# -- clang -------------------------------------------------------------------------------------

@pytest.mark.skipif(clang.CLANG is None, reason="clang is not installed")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rung", OPENCL, ids=lambda r: r.name or "first")
def test_sources_of_every_rung_pass_clang(rung, target, monkeypatch):
    driver = forced(rung, monkeypatch)
    for low in {False, TARGETS[target].fp16_arithmetic}:
        plans = [plan_of(make(), TARGETS[target], driver, low=low) for make in GRAPHS.values()]
        kernels = {k.entry: k for plan in plans for k in plan.kernels}.values()
        halves = any("half" in features(k) for k in kernels)
        assert clang.objections(kernels, fp16=halves) == ""
        if rung.effect.get("soft_half"):
            for kernel in kernels:           # not even what every OpenCL has for halves
                assert clang.diagnose("#define half no such type\n" + kernel.body,
                                      extra=("-Wno-unused-parameter",)) == ""


# -- Oclgrind ----------------------------------------------------------------------------------

needs_oclgrind = pytest.mark.skipif(not oclgrind.LIBRARY.exists(),
                                    reason="oclgrind is not installed")


@needs_oclgrind
def test_plain_kernels_access_what_is_theirs():
    check_simulated("graphs", "gpu/f32-simple", "conv-3x3", "gemm", "softmax", "elementwise-f16")


# Oclgrind 21.10's check of values crashes on (float4)(v.even, w.even), as strided rows are read in
# narrow vectors: these are the graphs without
UNSTRIDED = ("conv-3x3", "conv-groups", "conv-f16", "depthwise", "gemm", "gemm-f16", "softmax",
             "sum-long", "argmax", "concat", "elementwise-f16")
SIMULATED = [*((f"gpu/{rung}", ()) for rung in (
    "no-local", "no-vectors", "groups-16", "f32", "f32-simple")),
    ("cpu/no-vectors", ()), ("cpu/vectors-4", UNSTRIDED)]


@needs_oclgrind
@pytest.mark.slow
@pytest.mark.parametrize(("target", "names"), SIMULATED, ids=lambda v: v if v == str(v) else "")
def test_kernels_of_a_rung_access_what_is_theirs(target, names):
    check_simulated("graphs", target, *names)


def check_simulated(kind: str, target: str, *names: str) -> None:
    found = oclgrind.objections([kind, target, *names])
    assert len(found) == len(names) or not names
    assert {name: text[:2000] for name, text in found.items() if text} == {}


# -- results -----------------------------------------------------------------------------------

PLACES = [s for s in devices.present() if s.startswith("opencl")]
QUICK = ("conv-strided-f16", "gemm", "depthwise-f16", "max-pool-f16", "softmax-f16", "layer-norm",
         "elementwise-f16", "int8", "int4")


def results(spec: str, graph: Graph, feeds: dict[str, np.ndarray], rung: Rung,
            low: bool = False) -> list[np.ndarray]:
    """What a device computes with all groups on one rung, which is set already."""
    place = devices.device(spec)
    assert place is not None
    low = low and place.target.fp16_arithmetic
    plan = plan_of(graph, place.target, Driver(), low=low, host=host())
    assert {s.variant for s in plan.steps} == ({rung.name} if plan.steps else set())
    plan = plan_memory(plan, place.memory_mode, alignment=max(64, place.target.alignment))
    executable = place.load(plan, kernel_cache().for_target(place.target))
    return executable.run([feeds[t.name] for t in plan.inputs])


def check(spec: str, graph: Graph, feeds: dict[str, np.ndarray], rung: Rung,
          low: bool = False) -> None:
    got = results(spec, graph, feeds, rung, low)
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


@pytest.mark.parametrize("spec", PLACES)
@pytest.mark.parametrize("rung", OPENCL, ids=lambda r: r.name or "first")
def test_every_rung_computes_the_same(rung, spec, monkeypatch):
    place = devices.device(spec)
    assert place is not None
    monkeypatch.setattr(variants, "RUNGS", (rung,))
    for name in QUICK:
        graph = GRAPHS[name]()
        check(spec, graph, ragged.feeds_of(graph), rung)
        if place.target.fp16_arithmetic and "f16" in name:
            check(spec, graph, ragged.feeds_of(graph), rung, low=True)


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
@pytest.mark.parametrize("spec", PLACES)
@pytest.mark.parametrize("rung", [BY_NAME["f32-simple"], BY_NAME["split"]], ids=lambda r: r.name)
def test_the_op_table_on_the_lowest_rungs(rung, spec, monkeypatch):
    place = devices.device(spec)
    assert place is not None
    monkeypatch.setattr(variants, "RUNGS", (rung,))
    for graph, feeds in op_graphs(place.target).values():
        plan = plan_of(graph, place.target, Driver())
        for kernel in plan.kernels:
            assert not features(kernel) & LACKS["f32-simple"]
        check_loosely(spec, graph, feeds, rung)


def check_loosely(spec: str, graph: Graph, feeds: dict[str, np.ndarray], rung: Rung) -> None:
    """As test_ops does it, in one bound for all rows of an op."""
    given = {n: feeds[str(n.attr("name"))] for n in graph.inputs}
    for (name, node), y in zip(graph.outputs, results(spec, graph, feeds, rung)):
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
    graph = ragged.graph(G.matmul(G.softmax(G.matmul(x(9, 24), w(24, 131)), axis=-1), w(131, 8)))
    place = devices.device(spec)
    assert place is not None
    plan = plan_of(graph, place.target, Driver(("call:exp",)), host=host())
    assert {s.variant for s in plan.steps} == {"", "cpu"}
    plan = plan_memory(plan, place.memory_mode, alignment=max(64, place.target.alignment))
    feeds = ragged.feeds_of(graph)
    executable = place.load(plan, kernel_cache().for_target(place.target))
    for _ in range(2):
        (got,) = executable.run([feeds[t.name] for t in plan.inputs])
        want = evaluate(graph.outputs[0][1], {graph.inputs[0]: feeds["x"]})
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


needs_models = pytest.mark.skipif(not MODELS.is_dir(),
                                  reason="the folder of real models is not there")


@needs_models
@pytest.mark.parametrize("rung", [BY_NAME["f32-simple"], BY_NAME["split"]], ids=lambda r: r.name)
@pytest.mark.parametrize("spec", PLACES)
def test_a_model_on_the_lowest_rungs(rung, spec, monkeypatch):
    check_model("mnist8", spec, rung, monkeypatch)


LOWEST = ("no-vectors", "f32-simple", "split", "cpu")
ON_MODELS = [("squeezenet1.0_fp16", r) for r in RUNGS] + [
    (name, BY_NAME[r]) for name in ("minilm_l6_v2", "ultraface_rfb320") for r in LOWEST]


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize(("name", "rung"), ON_MODELS,
                         ids=lambda v: v if isinstance(v, str) else v.name or "first")
@pytest.mark.parametrize("spec", PLACES)
def test_models_on_every_rung(spec, name, rung, monkeypatch):
    check_model(name, spec, rung, monkeypatch)


def check_model(name: str, spec: str, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model's golden results with all its groups on one rung."""
    golden = np.load(sorted((MODELS / "golden").glob(f"{name}.*.npz"))[0])
    feeds = {k.split(":", 1)[1]: golden[k] for k in golden.files if k.startswith("in")}
    graph = open_source(MODELS / f"{name}.onnx").graph({n: a.shape for n, a in feeds.items()}, {})
    monkeypatch.setattr(variants, "RUNGS", (rung,))
    got = results(spec, graph, feeds, rung)
    for k, ((output, _), y) in enumerate(zip(graph.outputs, got)):
        want = golden[f"out{k}:{output}"].astype(np.float64)
        bound = (2e-2 if "fp16" in name else 1e-3) * max(float(np.abs(want).max()), 1e-30)
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


@pytest.mark.parametrize("spec", PLACES)
def test_vectors_of_halves_are_converted_like_single_ones(spec, monkeypatch):
    """Vectors and no type half: nobody's rung, but what a quirk may ask for."""
    rung = Rung("soft", "with soft halves", {"soft_half": True, "fp16_arithmetic": False})
    monkeypatch.setattr(variants, "RUNGS", (rung,))
    for name in ("conv-strided-f16", "gemm-f16", "depthwise-f16", "elementwise-f16"):
        graph = GRAPHS[name]()
        check(spec, graph, ragged.feeds_of(graph), rung)
    plan = plan_of(GRAPHS["gemm-f16"](), TARGETS["mali"], Driver())
    assert any("jitcl_from_f16x" in k.body for k in plan.kernels)
    assert not any(HALVES & features_of(k.body) for k in plan.kernels)
