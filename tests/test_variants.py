"""Which variant a group gets of which kernels are known to fail, and what its source
then lacks.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jitcl.codegen.plan import Plan, Step
from jitcl.codegen.variants import features, unpack
from jitcl.errors import BuildError, UnsupportedError
from jitcl.ir.graph import Origin
from jitcl.ir.group import Group
from jitcl.ops.builder import evaluate
from jitcl.target.variants import VARIANTS
from tests.generated import clang, oclgrind, ragged
from tests.generated.kernels import TARGETS
from tests.variants import (
    BY_NAME,
    GRAPHS,
    HALVES,
    LACKS,
    OPENCL,
    VECTORS,
    Driver,
    G,
    forced,
    host,
    packed,
    plan_of,
    w,
    x,
)

# -- which variant -----------------------------------------------------------------------------

TAKEN = [
    ("conv", "gpu", [("local",)], "no-local"),
    ("conv", "gpu", [("template:gemm_tiled_opencl",), ("vec4",)], "no-vectors"),
    ("conv", "cpu-fp16", [("vec16",)], "vectors-8"),
    ("conv", "cpu-fp16", [("vec16",), ("vec8",)], "vectors-4"),
    ("conv", "cpu", [("template:conv_cpu",)], "no-vectors"),
    ("conv", "cpu", [("template:conv_cpu",), ("template:conv_opencl",)], "loops"),
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
    ("largest-f16", "gpu-fp16", [("half", "local")], "no-local"),
    ("largest-f16", "gpu-fp16", [("half",), ("local",)], "f32-arithmetic-simple"),
    ("concat", "cpu", [("vec8",)], "vectors-4"),
    ("int8", "gpu", [("int8",)], "unpacked"),
    ("int8", "mali", [("int8",), ("vec4",)], "simple"),
    ("int4", "gpu", [("int4",)], "unpacked"),
    ("int4", "mali", [("int4", "int8")], "unpacked"),
    ("int4", "cpu", [("int8",)], "unpacked"),
]


@pytest.mark.parametrize(("name", "target", "fails", "variant"), TAKEN)
def test_a_group_steps_down_to_what_works(name, target, fails, variant):
    low = TARGETS[target].fp16_arithmetic and "f16" in name
    first = plan_of(GRAPHS[name](), TARGETS[target], low=low)
    plan = plan_of(GRAPHS[name](), TARGETS[target], Driver(*fails), low=low)
    assert any(set(f) <= features(k) for f in fails for k in first.kernels)
    assert {s.variant for s in plan.steps} == {variant}
    assert not any(set(f) <= features(k) for f in fails for k in plan.kernels)
    for step in plan.steps:
        assert f"// written {BY_NAME[variant].says}, since the driver fails: SIGABRT" in step.head


def main_steps(plan: Plan) -> list[Step]:
    return [s for s in plan.steps if s.flops]


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
    for _ in range(len(VARIANTS)):
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


@pytest.mark.sampled(quick=8)
@pytest.mark.parametrize("target", ["gpu-fp16", "mali", "cpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernel_by_kernel_down_to_the_cpu(name, target):
    """Every kernel that is tried fails: none comes twice, the variants come in their order, and
    the CPU at last."""
    driver, order, low = Driver(), [], TARGETS[target].fp16_arithmetic
    for _ in range(4 * len(VARIANTS)):
        plan = plan_of(GRAPHS[name](), TARGETS[target], driver, low=low, host=host())
        steps = [s for s in plan.steps if s.group == plan.steps[0].group]
        if steps[0].variant == "cpu":
            break
        order.append(steps[0].variant)
        new = {s.kernel for s in steps}
        assert not new & driver.entries
        driver.entries |= new
    assert {s.variant for s in steps} == {"cpu"}
    places = [[r.name for r in VARIANTS].index(v) for v in order]
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


TYPICAL = [t if t == "cpu-fp16" else pytest.param(t, marks=pytest.mark.long)
           for t in TARGETS]

# -- what is written ---------------------------------------------------------------------------

@pytest.mark.sampled(quick=12)
@pytest.mark.parametrize("target", TYPICAL)
@pytest.mark.parametrize("variant", OPENCL, ids=lambda r: r.name or "first")
def test_what_the_sources_of_a_variant_lack(variant, target, monkeypatch):
    driver = forced(variant, monkeypatch)
    found = set()
    for make in (*GRAPHS.values(), *ragged.GRAPHS.values()):
        for low in {False, TARGETS[target].fp16_arithmetic}:
            plan = plan_of(make(), TARGETS[target], driver, low=low)
            assert {s.variant for s in plan.steps} == {variant.name}
            for kernel in plan.kernels:
                found |= features(kernel)
                text = bare(kernel.body)
                if "half" in LACKS.get(variant.name, ()) and variant.effect.get("soft_half"):
                    assert "half" not in text
                if variant.loops_only:
                    assert kernel.template == ""
            most = variant.caps.get("max_work_group", 256)
            assert all(s.local_size[0] <= most for s in plan.steps)
            assert all(g % n == 0 for s in plan.steps
                       for g, n in zip(s.global_size, s.local_size))
    assert not found & LACKS.get(variant.name, set())
    assert "vec4" in found or LACKS.get(variant.name, set()) >= VECTORS or variant.loops_only


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
    variant = BY_NAME["cpu"]
    for make in GRAPHS.values():
        plan = plan_of(make(), TARGETS["mali"], forced(variant, monkeypatch), host=host())
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

@pytest.mark.sampled(quick=8)
@clang.needed
@pytest.mark.parametrize("target", TYPICAL)
@pytest.mark.parametrize("variant", OPENCL, ids=lambda r: r.name or "first")
def test_sources_of_every_variant_pass_clang(variant, target, monkeypatch):
    driver = forced(variant, monkeypatch)
    for low in {False, TARGETS[target].fp16_arithmetic}:
        plans = [plan_of(make(), TARGETS[target], driver, low=low) for make in GRAPHS.values()]
        kernels = {k.entry: k for plan in plans for k in plan.kernels}.values()
        halves = any("half" in features(k) for k in kernels)
        assert clang.objections(kernels, fp16=halves) == ""
        if variant.effect.get("soft_half"):
            for kernel in kernels:           # not even what every OpenCL has for halves
                assert clang.diagnose("#define half no such type\n" + kernel.body,
                                      extra=("-Wno-unused-parameter",)) == ""


# -- Oclgrind ----------------------------------------------------------------------------------



@pytest.mark.slow
@oclgrind.needed
def test_plain_kernels_access_what_is_theirs():
    check_simulated("graphs", "gpu/f32-simple", "conv-3x3", "gemm", "softmax", "elementwise-f16")


# Oclgrind 21.10's check of values crashes on (float4)(v.even, w.even), as strided rows are read in
# narrow vectors: these are the graphs without
UNSTRIDED = ("conv-3x3", "conv-groups", "conv-f16", "depthwise", "gemm", "gemm-f16", "softmax",
             "sum-long", "argmax", "concat", "elementwise-f16")
SIMULATED = [*((f"gpu/{variant}", ()) for variant in (
    "f32-simple", "no-local", "f32", "groups-16", "no-vectors")),
    ("cpu/no-vectors", ()), ("cpu/vectors-4", UNSTRIDED)]


@pytest.mark.slow
@pytest.mark.sampled()
@oclgrind.needed
@pytest.mark.parametrize(("target", "names"), SIMULATED, ids=[target for target, _ in SIMULATED])
def test_kernels_of_a_variant_access_what_is_theirs(target, names):
    check_simulated("graphs", target, *names)


def check_simulated(kind: str, target: str, *names: str) -> None:
    found = oclgrind.objections([kind, target, *names])
    assert len(found) == len(names) or not names
    assert {name: text[:2000] for name, text in found.items() if text} == {}
