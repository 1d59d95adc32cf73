"""Trials: right kernels are never accused, miscompiled ones are."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Callable

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.generate import Generated
from jitcl.codegen.plan import Plan
from jitcl.codegen.trial import GroupTrial, pattern, trials
from jitcl.devices.base import Device
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl.device import OpenClDevice
from jitcl.ir.graph import Graph
from jitcl.ir.noise import POOL, Noise, Supply, noise
from jitcl.ir.parser import parse_kernel
from jitcl.ir.sampling import Sample, sample_kernel, sample_places
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.source import open_source
from jitcl.target import Target
from tests.compiling import compile_graph
from tests.devices import device, present
from tests.generated.kernels import GPU, op_graphs
from tests.generated.ragged import GRAPHS, G, graph, w, x
from tests.real_models import MODELS, goldens, needs_models

DEVICES = present()
DRIVERS = [s for s in DEVICES if s.startswith("opencl")]
NAMES = ("mnist8", "squeezenet1.0_fp16", "oww_embedding", "squeezenet1.0_fp32", "ultraface_rfb320",
         "yolox_nano", "selfie_segmentation", "super_resolution_espcn", "fns_candy_stdops",
         "hyperlpr_y5fu_320", "oww_melspectrogram", "minilm_l6_v2")
QUICK = 3
PARTS = 12                              # of the op table


def model(name: str, target: Target, precision: str = "high") -> Generated:
    feeds, _ = goldens(name)[0]
    shapes = {k: v.shape for k, v in feeds.items()}
    return compile_graph(open_source(MODELS / f"{name}.onnx").graph(shapes, {}), target, precision)


def opened(spec: str) -> Device:
    found = device(spec)
    assert found is not None
    return found


def outcome(trial: GroupTrial, place: Device) -> str:
    """What a trial says of a run on a device."""
    executable = place.load(trial.plan, kernel_cache().for_target(place.target))
    return trial.wrong(executable.run(trial.inputs()))


def undetermined(trial: GroupTrial) -> float:
    """The share of the sampled places where the bound is infinite."""
    trial.prepare()
    if isinstance(trial._expected, str):
        return 1.0
    radius = trial._expected[1].radius
    return float(np.isinf(radius).mean()) if radius.size else 0.0


def check_all(found: Generated, place: Device) -> list[GroupTrial]:
    """Every kernel is tried, and none is accused."""
    tried = trials(found, found.plan)
    assert {e for t in tried for e in t.entries} == {k.entry for k in found.plan.kernels}
    assert [t.reason for t in tried if t.reason] == []
    assert [w for t in tried if (w := outcome(t, place))] == []
    return list(tried)


def layer_norm() -> Graph:
    rows = x(7, 45)
    centred = G.sub(rows, G.reduce_mean(rows, axes=(1,)))
    variance = G.reduce_mean(G.mul(centred, centred), axes=(1,))
    return graph(G.div(centred, G.sqrt(G.add(variance, 1e-5))))


PLANTED = {name: GRAPHS[name] for name in (
    "conv-3x3", "conv-1x1", "conv-f16", "conv-groups", "depthwise", "gemm", "gemm-inputs",
    "gemm-f16", "max-pool", "average-pool", "softmax", "sum-long", "sum-all", "elementwise",
    "elementwise-f16", "transpose")}
PLANTED["layer-norm"] = layer_norm

# -- no false alarm ----------------------------------------------------------------------------

# Comparisons of rounded values choose what these give, so that few of their elements can be judged.
CHOOSING = ("roi_max", "roi_align_greatest", "box_selection", "pairwise_coupling")


@pytest.mark.sampled(quick=23, slow=37)
@pytest.mark.parametrize("precision", ["low", "high"])
@pytest.mark.parametrize("name", op_graphs(opened("reference").target))
def test_the_interpreter_passes_the_op_table(name: str, precision: str) -> None:
    place = opened("reference")
    graph, _ = op_graphs(place.target)[name]
    tried = check_all(compile_graph(graph, place.target, precision), place)
    if not tried:                       # all of it is known when it is compiled
        assert name in ("sizes", "arange", "nearest_places", "tap_places", "tap_weights")
    elif name not in CHOOSING:
        assert np.mean([undetermined(t) for t in tried]) < 0.2


@pytest.mark.slow
@pytest.mark.sampled(slow=9 * PARTS)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("precision", ["high", "low", "normal"])
@pytest.mark.parametrize("spec", [s for s in DEVICES if s != "reference"])
def test_devices_pass_the_op_table(spec: str, precision: str, part: int) -> None:
    place = opened(spec)
    for found, _ in list(op_graphs(place.target).values())[part::PARTS]:
        check_all(compile_graph(found, place.target, precision), place)


@pytest.mark.sampled(quick=3)
@pytest.mark.in_turn
@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("name", PLANTED)
def test_devices_pass_templates_and_loops(name: str, spec: str) -> None:
    place = opened(spec)
    check_all(compile_graph(PLANTED[name](), place.target), place)


@pytest.mark.sampled(quick=8, slow=5)
@needs_models
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "spec", "precision"), [
    pytest.param(*case, marks=() if case[0] in (NAMES[:QUICK] if case[1] == "opencl:pocl"
                                                else NAMES[:1]) else pytest.mark.long)
    for case in itertools.product(NAMES, [s for s in DEVICES if s != "reference"],
                                  ["high", "normal", "low"])])
def test_devices_pass_models(name: str, spec: str, precision: str) -> None:
    place = opened(spec)
    tried = check_all(model(name, place.target, precision), place)
    assert np.mean([undetermined(t) for t in tried]) < 0.05


# -- planted faults ----------------------------------------------------------------------------

STORE = re.compile(r"^.*(\by\[.*\] = |\bvstore.*, y|_store(_part\w*)?\().*;\n", re.M)
WIDTHS = (2, 4, 8, 16)


def instead(text: str, call: str, arguments: str, value: str) -> str:
    """A builtin exchanged for something else, wherever the text calls it."""
    changed = re.sub(rf"\b{call}\(", f"other_{call}(", text)
    macro = f"#define other_{call}({arguments}) {value}\n"
    return text if changed == text else macro + changed


def first_changed(text: str, *changes: tuple[str, str]) -> str:
    """The kernel (its helpers left alone) after the first of the changes that does anything."""
    start = text.rfind("__kernel")
    for old, new in changes:
        body = re.sub(old, new, text[start:], count=1)
        if body != text[start:]:
            return text[:start] + body
    return text


def no_exponential(text: str) -> str:
    return instead(text, "exp", "a", "(a)")


def no_product(text: str) -> str:
    return instead(text, "fma", "a, b, c", "((a) + (c))")


def no_last_store(text: str) -> str:
    *_, last = None, *STORE.finditer(text)
    return text if last is None else text[:last.start()] + "    ;\n" + text[last.end():]


def nan_stored(text: str) -> str:
    """Computed NaNs: PoCL's compiler crashes on some constant ones."""
    halves = ("vstore_half_rte", *(f"vstore_half{n}_rte" for n in WIDTHS))
    bits = "_to_half_bits" in text              # which are stored as integers
    for call in (*halves, *(() if bits else (f"vstore{n}" for n in WIDTHS))):
        text = instead(text, call, "v, i, p", f"{call}(((v) - (v)) / ((v) - (v)), i, p)")
    single = r"\1 = ((\2) - (\2)) / ((\2) - (\2));"
    return text if bits else re.sub(r"(\by\[[^;]*?\]) = ([^;]*);", single, text)


def last_term_lost(text: str) -> str:
    """Of loops in steps of one: in steps of a vector there would be as many trips."""
    shorter = r"\1 - 1;"
    return first_changed(text, (r"(\bkx < kw);", shorter),
                         (r"(k < k_count);\)((?:.|\n)*?k \+ 16, k_count)",   # sums in half
                          r"\1 - 1;)\2 - 1"),
                         (r"(\bk < k_count);", shorter),
                         (r"(\br1 < \d+);(?= \+\+)", shorter),
                         (r"(\br0 < \d+);(?= \+\+)", shorter))


def first_tap_lost(text: str) -> str:
    return first_changed(text, (r" v = (fma|jitcl_max_f32x\d+)\(.*;\n", " ;\n"))


def a_lane_off(text: str) -> str:
    """Vectors come with their second lane in place of the first, whatever their type is: of
    floats and halves, of bits that are decoded later."""
    for n in WIDTHS:
        lanes = "1123456789abcdef"[:n]
        for call in (f"vload{n}", f"vload_half{n}"):
            text = instead(text, call, "i, p", f"({call}(i, p).s{lanes})")
    return text


def neighbours_read(text: str) -> str:
    start = text.rfind("__kernel")
    body = re.sub(r"\bx0\[([^\[\]]+)\]", r"x0[max((int)(\1) - 1, 0)]", text[start:])
    return text[:start] + re.sub(r"vload_half\(([^(),]+), x0\)",
                                 r"vload_half(max((int)(\1) - 1, 0), x0)", body)


def smaller_taken(text: str) -> str:
    return text.replace("return (a > b ||", "return (a < b ||").replace(
        "isgreater(a, b)", "isless(a, b)") if "max_f32" in text else text


def no_barrier(text: str) -> str:
    return text.replace("barrier(CLK_LOCAL_MEM_FENCE);", "")


FAULTS: dict[str, Callable[[str], str]] = {f.__name__: f for f in (
    no_exponential, no_product, no_last_store, nan_stored, last_term_lost,
    first_tap_lost, a_lane_off, neighbours_read, smaller_taken, no_barrier)}
SOUND = {                                    # no fault after all
    # one tile: local memory still holds it from the sound run before
    *((name, "gpu", "no_barrier") for name in ("conv-1x1", "gemm", "gemm-inputs", "gemm-f16",
                                               "sum-all")),
}
SOUND_ON_GPUS = {"no_barrier": PLANTED.keys(),              # lanes of a warp run in step
                 "no_last_store": ("gemm-f16",)}            # of halves at an edge that isn't there


def planted(plan: Plan, fault: Callable[[str], str]) -> Plan | None:
    """The plan with a fault in its last kernel; None where that has no place for it."""
    entry = plan.steps[-1].kernel
    bad = f"{entry}_{fault.__name__}"
    kernels = []
    for k in plan.kernels:
        body = fault(k.body) if k.entry == entry else k.body
        if k.entry == entry and body == k.body:
            return None
        kernels.append(k if k.entry != entry else
                       dataclasses.replace(k, entry=bad, body=body.replace(entry, bad)))
    steps = tuple(dataclasses.replace(s, kernel=bad) if s.kernel == entry else s
                  for s in plan.steps)
    return dataclasses.replace(plan, kernels=tuple(kernels), steps=steps)


FORMS: dict[str, Callable[[Target], Target]] = {
    "loops": lambda t: t,
    "gpu": lambda t: dataclasses.replace(
        t, device_type="gpu", local_is_real=True, vector_width=4, max_work_group=256,
        max_work_item_sizes=(256, 256, 256), local_memory=32 << 10)}


def quick(name: str, spec: str, form: str) -> bool:
    """One of each kind; PoCL unrolls barriers for seconds."""
    return spec == "opencl:pocl" and (form == "loops" and name in (
        "conv-3x3", "gemm-f16", "softmax", "transpose") or name in ("sum-long", "elementwise-f16"))


HEAVY = ("conv-3x3", "conv-f16", "gemm")        # as groups of 256 on a CPU: up to a minute each


@pytest.mark.sampled(quick=8, slow=11)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "spec", "form"), [
    pytest.param(*case, marks=() if quick(*case) else pytest.mark.long
                 if case[0] in HEAVY and case[2] == "gpu" else pytest.mark.slow)
    for case in itertools.product(PLANTED, DRIVERS, FORMS)])
def test_planted_faults_are_caught(name: str, spec: str, form: str) -> None:
    place = opened(spec)
    precision = "low" if name.endswith("f16") else "high"
    found = compile_graph(PLANTED[name](), FORMS[form](place.target), precision)
    trial = trials(found, found.plan)[-1]
    assert outcome(trial, place) == ""
    assert isinstance(place, OpenClDevice)
    forgetful = OpenClDevice(place.session.found, place.target, FaultDatabase(None))
    gpu = place.target.device_type == "gpu"
    plans = {title: planted(trial.plan, fault) for title, fault in FAULTS.items()
             if (name, form, title) not in SOUND
             and not (gpu and name in SOUND_ON_GPUS.get(title, ()))}
    plans["no launch"] = dataclasses.replace(trial.plan, steps=trial.plan.steps[:-1])
    never = LoadOptions("never")
    said = {title: trial.wrong(forgetful.load(plan, options=never).run(trial.inputs()))
            for title, plan in plans.items() if plan is not None}
    unseen = [t for t, text in said.items() if not text.startswith(f"{trial.subject}: ")]
    assert unseen == [], "planted where nothing is computed, or not seen by the trial"
    # A kernel for tensor cores has few of the texts that faults are planted in.
    assert len(said) >= (2 if "tensor" in trial.plan.steps[-1].kernel else 3)


@pytest.mark.parametrize("name", ["conv-3x3", "depthwise", "gemm", "max-pool", "softmax",
                                  "layer-norm", "elementwise", "elementwise-f16"])
def test_faults_on_the_cpu_path_are_caught(name: str) -> None:
    place = opened("cpu")
    found = compile_graph(PLANTED[name](), place.target)
    trial = trials(found, found.plan)[-1]
    idle = dataclasses.replace(trial.plan, steps=trial.plan.steps[:-1])
    assert "sampled elements differ" in trial.wrong(place.load(idle).run(trial.inputs()))


def test_each_fault_is_planted_somewhere() -> None:
    texts = [k.body for make in PLANTED.values() for t in (GPU, dataclasses.replace(
        GPU, device_type="cpu", local_is_real=False, vector_width=8, multiply_add="fma"))
        for k in compile_graph(make(), t).plan.kernels]
    assert [name for name, fault in FAULTS.items() if all(fault(t) == t for t in texts)] == []


def test_a_group_is_tried_with_what_another_arranged_for_it() -> None:
    """The second product reads the panels that the first one's group made of the same matrix."""
    place, a, b = opened("cpu"), x(21, 21), x(21, 21, name="b")
    found = compile_graph(graph(G.relu(G.matmul(G.neg(G.matmul(a, b)), b))), place.target)
    assert sum("arranged" in s.name for s in found.plan.steps) == 1
    tried = check_all(found, place)
    assert [len([s for s in t.plan.steps if "arranged" in s.name]) for t in tried] == [1, 1]


# -- outputs that are wrong in one place -------------------------------------------------------


@functools.cache
def right(name: str) -> tuple[GroupTrial, np.ndarray]:
    """A trial for the reference device, and what it gives there."""
    place = opened("reference")
    found = compile_graph(PLANTED[name](), place.target)
    trial = trials(found, found.plan)[-1]
    (y,) = place.load(trial.plan).run(trial.inputs())
    return trial, y


@pytest.mark.parametrize("name", PLANTED)
def test_a_right_output_passes(name: str) -> None:
    trial, y = right(name)
    assert trial.wrong([y]) == "" and trial.wrong([y.copy()]) == ""
    assert undetermined(trial) == 0 and trial.reason == ""


@pytest.mark.parametrize("name", PLANTED)
def test_one_untouched_element_is_found_wherever_it_is(name: str) -> None:
    trial, y = right(name)
    for at in {0, y.size - 1, y.size // 2, y.size // 3}:
        out = y.copy()
        out.reshape(-1)[at] = pattern(trial.plan.outputs[0].dtype)[0]
        assert "got nan" in trial.wrong([out])


@pytest.mark.parametrize("name", PLANTED)
def test_one_nan_is_found_wherever_it_is(name: str) -> None:
    trial, y = right(name)
    out = y.copy()
    out.reshape(-1)[y.size * 2 // 3] = np.nan
    assert "elements differ" in trial.wrong([out])


@pytest.mark.parametrize("name", [n for n in PLANTED if n != "sum-all"])
def test_what_is_shifted_by_one_is_found(name: str) -> None:
    trial, y = right(name)
    assert "elements differ" in trial.wrong([np.roll(y.reshape(-1), 1).reshape(y.shape)])


def test_what_a_line_says() -> None:
    trial, y = right("softmax")
    out = y.copy()
    out[1, 7] = 2.0
    said = trial.wrong([out])
    assert re.fullmatch(r"mul_0: 1 of 155 sampled elements differ, worst y\[1,7\]: got 2, "
                        r"wanted 0\.0\d+ \(bound \d\.\de-0\d\)", said), said


def test_padding_that_is_not_zero_is_found() -> None:
    place = opened("cpu")
    plain = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    inner = G.relu(G.conv(x(1, 20, 9, 9), w(23, 20, 3, 3), **plain))
    found = compile_graph(graph(G.conv(inner, w(5, 23, 3, 3), **plain)), place.target)
    trial, = (t for t in trials(found, found.plan) if t.group.root.type.layout.kind == "NCHWc")
    (y,) = place.load(trial.plan).run(trial.inputs())
    assert trial.wrong([y]) == ""
    out = y.copy()
    out[0, -1, 0, 0, -1] = 1.0
    assert "not 0" in trial.wrong([out]) or "wanted 0" in trial.wrong([out])
    far = y.copy()
    far[0, -1, 5, 6, -1] = np.nan
    assert trial.wrong([far])


# -- which trials ------------------------------------------------------------------------------


def test_the_cheapest_use_of_a_kernel_is_tried() -> None:
    weight = w(24, 40)
    dear, cheap = (G.matmul(x(n, 24, name=f"x{n}"), weight) for n in (480, 48))
    target = dataclasses.replace(opened("cpu").target, vector_width=16, registers=32)
    found = compile_graph(graph(dear, cheap), target)
    tried = trials(found, found.plan)
    assert {e for t in tried for e in t.entries} == {k.entry for k in found.plan.kernels}
    used = {s.name: s.kernel for s in found.plan.steps}
    assert used["matmul_0"] == used["matmul_1"]
    assert [t.subject for t in trials(found, found.plan, {used["matmul_0"]})] == ["matmul_1"]


def test_only_wanted_kernels_are_tried() -> None:
    found = compile_graph(graph(G.softmax(x(4, 6)), G.matmul(x(4, 6), x(6, 5, name="z"))),
                      opened("reference").target)
    for kernel in found.plan.kernels:
        assert [t.entries for t in trials(found, found.plan, {kernel.entry})] == [
            frozenset({kernel.entry})]
    assert trials(found, found.plan, set()) == ()


@needs_models
@pytest.mark.parametrize("name", NAMES[:QUICK])
@pytest.mark.parametrize("target", [GPU, dataclasses.replace(GPU, fp16_arithmetic=True)],
                         ids=["gpu", "gpu-fp16"])
def test_every_kernel_of_a_model_has_a_trial(name: str, target: Target) -> None:
    found = model(name, target, "low")
    tried = trials(found, found.plan)
    assert [t.reason for t in tried if t.reason] == []
    assert {e for t in tried for e in t.entries} == {k.entry for k in found.plan.kernels}


@needs_models
def test_the_cost_of_a_model() -> None:
    found = model("yolox_nano", GPU)
    start = time.thread_time()
    for t in trials(found, found.plan):
        t.prepare()
        t.wrong([t.inputs()[-1]])            # the root's buffer is the last input
    assert time.thread_time() - start < 0.5


# -- the arithmetic ----------------------------------------------------------------------------


def sampled(text: str, **arrays: np.ndarray) -> Sample:
    return sample_kernel(parse_kernel(text), arrays, seed=1)


SUM = """kernel @sum(in x: f32[N], out y: f32[1]) {
  let acc: f32 = 0.0
  for r < N @loop { acc add= x[r] }
  y[0] = acc
}"""


@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_sums_in_any_order_are_within_the_bound(n: int) -> None:
    values = Noise(n, "f32", n, "shifted").array(Supply())
    text = SUM.replace("N", str(n))
    s = sampled(text, x=values)
    orders = [values, values[::-1], np.sort(values), np.sort(values)[::-1]]
    for order in orders:
        total = np.add.accumulate(order, dtype=np.float32)[-1]
        assert abs(float(total) - s.mid[0]) <= s.radius[0]
    assert s.radius[0] <= 1.2 * n * 2.0 ** -24 * np.abs(values).sum()


STEP = """kernel @step(in x: f32[4], out y: f32[4]) {
  for i < 4 @parallel { y[i] = STEP }
}"""


@pytest.mark.parametrize(("step", "values", "known"), [
    ("floor(x[i] * 0.1)", [10.0, 5.0, 14.0, 20.0], [False, True, True, False]),
    ("select(x[i] * 0.1 < 0.3, 1.0, -1.0)", [3.0, 2.0, 4.0, 3.0000002],
     [False, True, True, False]),
    ("sqrt(x[i] - 1.0)", [0.5, 2.0, 3.0, 5.0], [True, True, True, True]),
    ("log(max(x[i], 0.0000001))", [-1.0, 0.0, 1.0, 2.0], [True, True, True, True]),
])
def test_what_hangs_on_rounding_is_not_judged(step: str, values: list[float], known: list[bool]
                                              ) -> None:
    array = np.array(values, np.float32)
    s = sampled(STEP.replace("STEP", step), x=array)
    assert [bool(r < 0.5) for r in s.radius] == known


def test_numbers_that_overflow_are_not_judged() -> None:
    s = sampled(STEP.replace("STEP", "exp(x[i])"), x=np.array([1, 80, 89, 200], np.float32))
    assert np.isinf(s.radius).tolist() == [False, False, True, True]


def test_nan_and_infinity_of_known_operands_are_known() -> None:
    s = sampled(STEP.replace("STEP", "1.0 / x[i]"), x=np.array([0, 1, np.inf, np.nan], np.float32))
    assert np.isfinite(s.radius).all()
    np.testing.assert_array_equal(s.mid, [np.inf, 1, 0, np.nan])


def test_places_are_the_samples_places() -> None:
    trial, y = right("conv-3x3")
    positions = np.array([0, 5, y.size - 1])
    one = sample_places(trial._lowered.kernel, trial._arrays("shifted"), positions)
    np.testing.assert_array_equal(one.positions, positions)
    np.testing.assert_allclose(one.mid, y.reshape(-1)[positions], atol=1e-4)


def test_a_scalar_is_looked_at_again() -> None:
    """A sum of all, and a kernel without any loop: there is one place, number 0."""
    for text, fed, want in (
        ("kernel @s(in x: f32[4], out y: f32[]) {\n  let t: f32 = 0.0\n"
         "  for k < 4 @loop { t add= x[k] }\n  y[] = t\n}", [1, 2, 3, 4], 10.0),
        ("kernel @s(in x: f32[], out y: f32[]) {\n  y[] = x[] * 2.0\n}", 3, 6.0),
    ):
        one = sample_places(parse_kernel(text), {"x": np.asarray(fed, np.float32)}, np.array([0]))
        assert one.positions.tolist() == [0] and one.mid.tolist() == [want]


def test_noise() -> None:
    assert len(np.unique(noise(1, 1000))) == 1000
    data = Noise(3 * POOL, "f32", 5, "shifted")
    supply = Supply()
    whole = data.array(supply)
    at = np.array([0, 7, POOL, 2 * POOL + 9])
    np.testing.assert_array_equal(data.take(at), whole[at])
    assert abs(whole.mean() - 0.5) < 0.02 and abs(whole.std() - 1) < 0.02
    assert not whole.flags.writeable
    for dtype in dtypes.STORED:
        assert Noise(10, dtype, 1, "positive").array(supply).dtype == dtypes.to_numpy(dtype)
