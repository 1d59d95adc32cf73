"""How far cores are from each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.cli import bench_tables
from jitcl.devices.cpu import device, handover
from jitcl.devices.cpu.device import cores_are_far, executor_of
from jitcl.devices.cpu.host import probe_target
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder


@pytest.mark.skipif(config.usable_cores() < 2, reason="there is one core to use")
def test_a_line_goes_to_another_core_and_back():
    function = executor_of(probe_target(), None).handover
    assert 1e-8 < handover.measure_handover(function) < 1e-4


def test_a_thread_whose_partner_does_not_run_gives_up():
    def alone(fields, tid, patience):
        assert patience == handover.PATIENCE

    assert handover._try(alone, handover.TURNS) == 0.0


def test_one_core_has_no_other(monkeypatch):
    monkeypatch.setattr(config, "usable_cores", lambda: 1)
    assert handover.measure_handover(executor_of(probe_target(), None).handover) == 0.0


@pytest.mark.parametrize("seconds, far", [(0.0, False), (1e-7, False), (3.5e-7, True)])
def test_cores_are_far_where_a_line_takes_long(monkeypatch, seconds, far):
    monkeypatch.setattr(device, "_far", {})
    monkeypatch.setattr(device, "measure_handover", lambda function, *quick: seconds)
    with config.override(threads=2, far_cores=None):
        assert cores_are_far(probe_target(), None) == far
    with config.override(threads=1, far_cores=None):
        assert not cores_are_far(probe_target(), None)
    with config.override(threads=2, far_cores=0 if far else 1):
        assert cores_are_far(probe_target(), None) != far
    monkeypatch.setattr(device, "measure_handover", None)         # it is measured once
    with config.override(threads=2, far_cores=None):
        assert cores_are_far(probe_target(), None) == far


def stages():
    """A model whose tensors shrink: five kinds of them."""
    g = GraphBuilder()
    x = graph_input("x", TensorType("f32", (1, 64, 256)))
    rng, y = np.random.default_rng(0), x
    for n in (256, 192, 128, 96, 64):
        for _ in range(3):
            w = rng.standard_normal((y.type.dims[-1], n)).astype(np.float32) / 16
            y = g.relu(g.matmul(y, const(w)))
    return Graph("stages", (x,), (("y", y),))


def test_models_for_far_cores_share_less_and_compute_the_same(tmp_path):
    x = np.random.default_rng(1).standard_normal((1, 64, 256)).astype(np.float32)
    found = {}
    for far in (0, 1, 0):                      # the second and third find the first one's plan
        with config.override(threads=2, far_cores=far, cache_dir=tmp_path):
            model = jitcl.compile(stages(), device="cpu")
            found.setdefault(far, []).append((model.run({"x": x})["y"], model.report()))
    (near, first), (again, third) = found[0]
    (apart, second), = found[1]
    assert (first.from_cache, second.from_cache, third.from_cache) == (False, True, True)
    assert second.peak_bytes > first.peak_bytes == third.peak_bytes
    assert np.array_equal(near, apart) and np.array_equal(near, again)


def test_where_memory_is_short_tensors_lie_as_tightly_as_before(tmp_path, monkeypatch):
    def peak(far, memory):
        room = replace(probe_target(), global_memory=memory)
        monkeypatch.setattr(device, "probe_target", lambda: room)
        with config.override(threads=2, far_cores=far, cache_dir=tmp_path):
            return jitcl.compile(stages(), device="cpu").report().peak_bytes

    tight, zones = peak(0, 1 << 30), peak(1, 1 << 30)
    assert tight < zones
    assert peak(1, 2 * zones) == zones
    assert peak(1, 2 * zones - 1) == peak(1, tight) == tight


@pytest.mark.parametrize("memory", ["low", "high"])
def test_who_says_how_much_memory_gets_that(tmp_path, memory):
    peaks = []
    for far in (0, 1):
        with config.override(threads=2, far_cores=far, cache_dir=tmp_path / str(far)):
            peaks.append(jitcl.compile(stages(), device="cpu", memory=memory).report().peak_bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("seconds, says", [
    (0.0, None), (8e-8, "in 80 ns; the cores are near"), (4e-7, "far: what one writes comes late")])
def test_people_are_told(seconds, says):
    lines: list[str] = []
    out = SimpleNamespace(print=lambda text: lines.append(str(text)))
    peaks = Peaks("cpu", 2, 1e11, 5e10, (Bandwidth(1 << 20, 1e11),))
    line = SimpleNamespace(title="m", peaks=replace(peaks, handover=seconds), placed=())
    bench_tables._print_kernels(out, line, 5)
    told = [text for text in lines if "another core" in text]
    assert (says in told[0]) if says else not told
