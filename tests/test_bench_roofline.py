"""The roofline: where kernels lie under which roof, what is drawn, and what peaks are made of."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from jitcl.bench.peaks import (
    CHAINS,
    PART_BYTES,
    SETS,
    Bandwidth,
    Peaks,
    fma_plan,
    measure_peaks,
    stream_plan,
)
from jitcl.bench.roofline import LABELLED, Axes, axes_of, draw, points, roof_lines, roofline
from jitcl.bench.steps import StepTime, StepTimes, profiled, step_times
from jitcl.codegen.plan import Plan
from jitcl.errors import UnsupportedError
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.model import open_model
from jitcl.target.profiles import find_profile
from tests.devices import device, present

PEAKS = Peaks("a device", 2, 1e11, 5e10, (Bandwidth(1 << 20, 1e11), Bandwidth(1 << 28, 1e10)))
SVG = "{http://www.w3.org/2000/svg}"


def step(name: str, flops: int, nbytes: int, seconds: float, template: str = "") -> StepTime:
    return StepTime(name, f"{name}_kernel", template, ("Conv",), (f"/{name}/Conv",), flops,
                    nbytes, seconds)


STEPS = StepTimes("a device", (
    step("small", 10**5, 10**6, 2e-5),                      # 0.1 FLOP/B in caches: 10 us at most
    step("heavy", 10**9, 10**7, 2e-2, "gemm_cpu"),          # 100 FLOP/B: compute, 10 ms
    step("copy", 0, 10**8, 2e-2),                           # traffic only: 10 ms
    step("thin", 10**7, 10**8, 4e-2),                       # 0.1 FLOP/B: memory, 10 ms
    step("unseen", 1, 1, 0.0),
))


def test_steps_are_placed_under_the_roof_that_bounds_them():
    placed = roofline("model", STEPS, PEAKS).placed
    assert [p.step.name for p in placed] == ["thin", "heavy", "copy", "small"]
    by_name = {p.step.name: p for p in placed}
    assert {n: p.bound for n, p in by_name.items()} == {
        "thin": "memory", "heavy": "compute", "copy": "memory", "small": "cache"}
    assert {n: round(p.of_roof, 6) for n, p in by_name.items()} == {
        "thin": 0.25, "heavy": 0.5, "copy": 0.5, "small": 0.5}
    assert by_name["heavy"].flops == 5e10 and by_name["heavy"].intensity == 100
    assert by_name["copy"].rate == 5e9
    assert sum(p.share for p in placed) == pytest.approx(1)


@pytest.mark.parametrize(("nbytes", "rate"), [(1, 1e11), (1 << 20, 1e11), ((1 << 20) + 1, 1e10),
                                              (1 << 40, 1e10)])
def test_the_bandwidth_of_a_step_is_that_of_the_smallest_set_that_holds_it(nbytes, rate):
    assert PEAKS.bandwidth(nbytes).rate == rate


def test_axes_are_logarithmic():
    axes = Axes(0.1, 1000, 1e8, 1e12, left=100, top=50, width=400, height=200)
    assert [axes.x(v) for v in (0.1, 1, 10, 1000)] == pytest.approx([100, 200, 300, 500])
    assert [axes.y(v) for v in (1e8, 1e10, 1e12)] == pytest.approx([250, 150, 50])
    assert axes.x(math.sqrt(10)) == pytest.approx(250)
    assert axes.ticks(0.1, 1000) == pytest.approx([0.1, 1, 10, 100, 1000])


def test_axes_hold_all_points_and_corners():
    line = roofline("model", STEPS, PEAKS)
    axes = axes_of(line)
    assert (axes.x_low, axes.x_high) == pytest.approx((0.1, 1000))
    assert (axes.y_low, axes.y_high) == pytest.approx((1e8, 1e12))


def test_roofs_meet_in_corners():
    axes = Axes(0.1, 1000, 1e8, 1e12)
    peak, alone, cache, memory = roof_lines(PEAKS, axes)
    assert (peak.kind, alone.kind, cache.kind) == ("peak", "alone", "bandwidth")
    assert peak.y1 == peak.y2 == cache.y2 == memory.y2 == axes.y(1e11)
    assert cache.x2 == pytest.approx(axes.x(1)) == pytest.approx(peak.x1)
    assert memory.x2 == pytest.approx(axes.x(10))
    assert memory.x1 == axes.x(0.1) and memory.y1 == pytest.approx(axes.y(1e9))
    assert alone.y1 == axes.y(5e10) and alone.x1 == pytest.approx(axes.x(0.5))
    assert cache.label == "100 GB/s (1 MiB)" and alone.label == "50 GFLOP/s, 1 thread"
    assert cache.angle == pytest.approx(memory.angle)
    assert alone.label_y - peak.label_y >= 13
    assert peak.label == "100 GFLOP/s, 2 threads"
    assert roof_lines(replace(PEAKS, threads=0), axes)[0].label == "100 GFLOP/s, f32"
    close = replace(PEAKS, flops_alone=0.99e11)             # their labels stay apart
    assert roof_lines(close, axes)[1].label_y == peak.label_y + 13


def test_a_slope_begins_at_the_lower_edge_where_that_comes_first():
    axes = Axes(0.01, 1000, 1e10, 1e12)
    memory = roof_lines(PEAKS, axes)[-1]
    assert memory.x1 == pytest.approx(axes.x(1)) and memory.y1 == axes.y(1e10)


def test_points_are_where_their_kernels_are():
    line = roofline("model", STEPS, PEAKS)
    axes = axes_of(line)
    found = {p.text: p for p in points(line, axes)}
    assert set(found) == {"thin", "heavy", "small"}             # "copy" has no arithmetic
    assert (found["heavy"].x, found["heavy"].y) == (axes.x(100), axes.y(5e10))
    assert found["heavy"].kind == "template" and found["thin"].kind == "loops"
    assert found["thin"].radius > found["heavy"].radius > found["small"].radius
    assert "25% of the roof (memory)" in found["thin"].title


def test_labels_do_not_overlap():
    same = StepTimes("a device", tuple(step(f"conv_{k}", 10**9, 10**7, 2e-2) for k in range(12)))
    line = roofline("model", same, PEAKS)
    labels = [(p.text_x, p.text_y) for p in points(line, axes_of(line)) if p.text]
    assert len(labels) == LABELLED
    heights = sorted(y for _, y in labels)
    assert min(b - a for a, b in zip(heights, heights[1:])) >= 12.9
    led = [p.led for p in points(line, axes_of(line)) if p.text]
    assert led[-1] is False and sum(led) == LABELLED - 3      # all but the nearest three


def test_the_picture_is_xml_with_a_panel_a_device():
    line = roofline('<odd> & "name"', STEPS, PEAKS)
    root = ElementTree.fromstring(draw([line, line]))
    assert root.tag == f"{SVG}svg" and root.get("viewBox") == "0 0 960 1120"
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert texts.count('<odd> & "name"') == 2 and texts.count("heavy") == 2
    assert texts.count("1 without arithmetic") == 2
    circles = [c for c in root.iter(f"{SVG}circle") if c.find(f"{SVG}title") is not None]
    axes = axes_of(line)
    assert len(circles) == 6
    assert f"{axes.x(100):.1f}" in [c.get("cx") for c in circles]
    assert not [e for e in root.iter() if e.tag in (f"{SVG}image", f"{SVG}script")]


# -- steps -------------------------------------------------------------------------------------


TWO = "graph @two(%a: f32[4,8], %b: f32[8]) {\n  %s = add(%a, %b)\n  return %s\n}\n"


@pytest.mark.parametrize("spec", [s for s in present() if s != "reference"])
@pytest.mark.in_turn
def test_steps_are_told_with_their_work(spec, tmp_path):
    path = tmp_path / "two.jitcl"
    path.write_text(TWO)
    model = open_model(path, device=device(spec))
    times = step_times(model, {"a": np.ones((4, 8), np.float32), "b": np.ones(8, np.float32)})
    (only,) = times.steps
    assert only.flops == 32 and only.bytes == 4 * (32 + 8 + 32) and only.seconds > 0
    assert only.template == "" and times.seconds == only.seconds


def test_devices_that_do_not_tell_times(tmp_path):
    path = tmp_path / "two.jitcl"
    path.write_text(TWO)
    model = open_model(path, device="reference")
    with pytest.raises(UnsupportedError, match="does not tell the time of its steps\n  The cpu"):
        step_times(model, {"a": np.ones((4, 8), np.float32), "b": np.ones(8, np.float32)})
    reference = device("reference")
    assert reference is not None
    with pytest.raises(UnsupportedError, match="has no peaks to measure"):
        measure_peaks(reference, None, 1)


# -- peaks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [s for s in present() if s != "reference"])
@pytest.mark.in_turn
def test_the_kernels_of_peaks_compute_what_they_say(spec):
    """Every lane of every lot runs its chains to their end; every element is passed over."""
    place = device(spec)
    assert place is not None
    cache = kernel_cache().for_target(place.target)
    lanes = place.target.vector_width
    plan = fma_plan(place.target, lanes, 10, threads=2)
    (sums,) = place.load(plan, cache).run([])
    chains = np.arange(CHAINS) + 0.5
    for _ in range(10):
        chains = chains * 0.999 + 0.001
    np.testing.assert_allclose(sums, chains.sum(), rtol=1e-5)
    assert plan.steps[0].flops == 2 * 10 * CHAINS * sums.size
    plan = stream_plan(place.target, lanes, 48 << 10)
    loaded = place.load(plan, cache)
    ones = np.ones(plan.inputs[0].shape, np.float32)
    (y,) = loaded.run([ones, ones])
    np.testing.assert_allclose(y, 2, rtol=1e-6)         # y = y / 2 + 1, hundreds of times
    assert len(profiled(loaded, [ones, ones], 1)) == len(plan.steps) == 1
    assert plan.steps[0].bytes == 12 * y.size * plan.steps[0].params[2]


def test_a_large_set_is_streamed_once_in_parts_on_a_cpu():
    cpu = device("cpu")
    assert cpu is not None
    plan = stream_plan(cpu.target, 8, SETS[-1])
    assert len(plan.steps) == SETS[-1] // PART_BYTES
    starts = [s.params[0] for s in plan.steps]
    assert starts == [k * plan.steps[0].params[1] for k in range(len(starts))]
    assert {s.params[2] for s in plan.steps} == {1}
    assert sum(s.bytes for s in plan.steps) == SETS[-1] * 3 // 2
    gpu = find_profile("mali-g610").target
    (only,) = stream_plan(gpu, 4, SETS[-1]).steps
    assert only.bytes == SETS[-1] * 3 // 2 * only.params[2] and only.local_size[0] > 1


def test_multiply_adds_are_repeated_until_a_clock_sees_them():
    """A device of 2e12 FLOP/s whose launches take 5 us more."""
    from jitcl.bench import peaks
    gpu = find_profile("mali-g610").target
    tried: list[int] = []

    def seconds(plan: Plan) -> float:
        tried.append(plan.steps[0].params[1])
        return 5e-6 + plan.steps[0].flops / 2e12
    assert peaks._flops(seconds, gpu, 4, 1) == pytest.approx(2e12, rel=0.01)
    assert tried == sorted(set(tried)) and len(tried) > 1
