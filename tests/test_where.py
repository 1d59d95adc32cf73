"""`jitcl bench --where`: on which device a model is fastest, and why."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from jitcl import config
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.bench.roofline import roofline
from jitcl.bench.steps import StepTime, StepTimes
from jitcl.bench.where import parts_of, place, verdict
from jitcl.cli.main import cli
from jitcl.passes.options import Options
from jitcl.runtime import placement
from jitcl.runtime.model import open_model
from jitcl.runtime.source import parse
from tests.devices import opened, present

PEAKS = Peaks("a device", 2, 1e12, 5e11, (Bandwidth(1 << 28, 1e11),))
STEPS = StepTimes("a device", (
    StepTime("conv_0", "k", "", ("Conv",), ("c",), 4_000_000_000, 1000, 0.012),))
TEXT = """graph @g(%x: f32[64,64]) {
  %1 = matmul(%x, %x)
  %y = relu(%1)
  return %y
}"""


def test_the_reason_is_the_part_that_takes_more():
    line = roofline("m, gpu", STEPS, PEAKS)
    cpu = place("cpu", 0.010, {"kernel": 0.0095, "host": 0.0005}, None)
    gpu = place("gpu", 0.016, {"kernel": 0.012, "copy": 0.0035, "host": 0.0005}, line)
    assert cpu.predicted is None and gpu.predicted == pytest.approx(0.004 + 0.0035 + 0.0005)
    assert verdict([gpu, cpu]) == [
        "cpu is the place: 10 ms a run, copies counted",
        "gpu takes 16 ms, 1.60 times as long: 3.5 ms more for copies of inputs and outputs; "
        "2.5 ms more for kernels, which reach 33% of its roof",
        "  with kernels at its measured peaks it would take 8 ms, less than cpu does"]
    slow = place("gpu", 0.100, {"kernel": 0.002, "host": 0.098}, line)
    assert verdict([cpu, slow])[1:] == [
        "gpu takes 100 ms, 10.00 times as long: 97.5 ms more for the host's part of a run, of 1 "
        "launches",
        "  with kernels at its measured peaks it would take 102 ms, still more than cpu does"]
    assert verdict([cpu]) == ["cpu is the place: 10 ms a run, copies counted"]


def test_parts_are_those_of_a_run():
    feeds = {"x": np.eye(64, dtype=np.float32)}
    model = open_model(parse(TEXT), device="cpu")
    model.run(feeds)
    parts = parts_of(model, feeds, 5)
    assert parts["kernel"] > 0 and "profile" not in parts and "compile" not in parts
    assert sum(parts.values()) < 0.1


@pytest.mark.slow
def test_the_command(tmp_path):
    path, report = tmp_path / "g.jitcl", tmp_path / "g.json"
    path.write_text(TEXT)
    done = CliRunner().invoke(cli, ["bench", str(path), "--where", "--rounds", "1", "--json",
                                    str(report)])
    assert done.exit_code == 0, done.output
    found = json.loads(report.read_text())["where"]
    devices = 1 + sum(s.startswith("opencl") for s in present())
    assert len(found) == devices == len(done.output.split(" times as long")) and all(
        p["parts"]["kernel"] > 0 and p["roof"] > 0 and p["launches"] for p in found)
    assert {p["device"] for p in found} >= {"cpu"}
    best = min(found, key=lambda p: p["seconds"])
    assert f"{best['device']} is the place" in done.output


@pytest.mark.parametrize("device", [s for s in ("cpu", *present()[1:]) if s != "reference"])
def test_auto_is_where_it_was_measured_to_be_fastest(device, tmp_path, monkeypatch):
    monkeypatch.delenv("JITCL_DEVICE", raising=False)
    graph, cache = parse(TEXT), tmp_path / "cache"
    spec = device if device == "cpu" else opened(device).session.spec
    other = "reference" if spec == "cpu" else "cpu"
    source, options = open_model(graph, device="cpu").source, Options()
    placement.remember(source, options, cache, other, "an older measurement")
    placement.remember(source, options, cache, spec, "8 ms, copies counted")
    for auto in ("auto", None):
        assert open_model(graph, device=auto, cache_dir=cache).device.name == (
            open_model(graph, device=spec).device.name)
    assert open_model(graph, device=other, cache_dir=cache).device.name == other
    assert placement.known(source, Options("low"), cache) is None
    with config.override(threads=1 + int(config.get("threads"))):
        assert placement.known(source, options, cache) is None
    monkeypatch.setenv("JITCL_DEVICE", "reference")
    assert open_model(graph, cache_dir=cache).device.name == "reference"
