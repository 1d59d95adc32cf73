"""How far cores are from each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from jitcl import config
from jitcl.bench import handover
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.cli import bench_tables
from jitcl.devices.cpu.host import probe_target


@pytest.mark.skipif(config.usable_cores() < 2, reason="there is one core to use")
def test_a_line_goes_to_another_core_and_back():
    seconds = handover.measure_handover(probe_target(), None)
    assert 1e-8 < seconds < 1e-4


def test_a_thread_whose_partner_does_not_run_gives_up():
    def alone(fields, tid, patience):
        assert patience == handover.PATIENCE

    assert handover._try(alone) == 0.0


def test_one_core_has_no_other(monkeypatch):
    monkeypatch.setattr(config, "usable_cores", lambda: 1)
    assert handover.measure_handover(probe_target(), None) == 0.0


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
