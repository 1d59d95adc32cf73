"""`jitcl bench --where`: on which device a model is fastest, and why."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from jitcl import config
from jitcl.bench.cutting import InTwo, best_cut, cut_verdict, cuts_of, measured
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.bench.roofline import roofline
from jitcl.bench.steps import StepTime, StepTimes
from jitcl.bench.where import parts_of, place, verdict
from jitcl.cli.main import cli
from jitcl.frontends.onnx.cutting import Cut, pieces
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


# ---- in two pieces


def line_of_text(steps=12, hidden=48):
    """Convolutions, then a recurrence over columns: [1,1,8,4 * steps] -> [steps,1,1,hidden]."""
    rng = np.random.default_rng(0)

    def weights(name, *dims):
        return onnx.numpy_helper.from_array(rng.standard_normal(dims).astype("f4") / 4, name)

    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1] * 4, strides=[2, 2]),
             node("Relu", ["c0"], ["r0"], "relu0"),
             node("Conv", ["r0", "w1"], ["c1"], "conv1", strides=[4, 2]),
             node("Squeeze", ["c1", "two"], ["s"], "squeeze"),
             node("Transpose", ["s"], ["columns"], "columns", perm=[2, 0, 1]),
             node("LSTM", ["columns", "W", "R"], ["states"], "lstm", hidden_size=hidden),
             node("Mul", ["states", "states"], ["y"], "square")]
    graph = onnx.helper.make_graph(
        nodes, "line", [info("x", 1, [1, 1, 8, 4 * steps])], [info("y", 1, None)],
        [weights("w0", 8, 1, 3, 3), weights("w1", 16, 8, 4, 2),
         onnx.numpy_helper.from_array(np.array([2]), "two"),
         weights("W", 1, 4 * hidden, 16), weights("R", 1, 4 * hidden, hidden)])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)],
                                  ir_version=8)


def test_cuts_are_where_one_tensor_goes_on():
    source = open_model(line_of_text(), device="cpu").source
    found = cuts_of(source)
    assert [c.tensor for c in found] == ["c0", "r0", "c1", "s", "columns", "states"]
    assert found[4].head == {"conv0", "relu0", "conv1", "squeeze", "columns"}
    assert found[4].nbytes == 12 * 16 * 4
    assert cuts_of(open_model(parse(TEXT), device="cpu").source) == ()
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 48)).astype("f4")
    want = open_model(line_of_text(), device="cpu").run({"x": x})["y"]
    head, tail = (open_model(p, device="cpu") for p in pieces(source.model, "columns"))
    assert np.allclose(tail.run(head.run({"x": x}))["y"], want, rtol=1e-4, atol=1e-6)


def test_no_cut_where_two_tensors_go_on():
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Relu", ["x"], ["a"], "a"), node("Neg", ["a"], ["b"], "b"),
             node("Add", ["a", "b"], ["c"], "c"), node("Exp", ["c"], ["y"], "y")]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [4])], [info("y", 1, [4])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)],
                                   ir_version=8)
    assert [c.tensor for c in cuts_of(open_model(model, device="cpu").source)] == ["a", "c"]


def test_the_best_cut_is_found_from_the_times_of_steps():
    def step(name, seconds):
        nodes = (name,) if name else ()
        return StepTime(name, "k", "", (), nodes, 0, 0, seconds)

    found = [Cut("a", frozenset({"conv"}), 400), Cut("b", frozenset({"conv", "pool"}), 100)]
    steps = {"gpu": (step("conv", 0.001), step("pool", 0.0), step("", 0.001), step("lstm", 0.020)),
             "cpu": (step("conv", 0.008), step("pool", 0.0), step("lstm", 0.002))}
    gpu = place("gpu", 0.023, {"kernel": 0.022}, None)
    cpu = place("cpu", 0.0105, {"kernel": 0.010}, None)
    cut = best_cut(found, [cpu, gpu], steps)
    assert (cut.tensor, cut.devices) == ("b", ("gpu", "cpu"))
    assert cut.predicted == pytest.approx(0.001 + 0.002 + 0.001 + 0.0005)
    assert best_cut(found, [cpu], steps) is None and best_cut([], [cpu, gpu], steps) is None
    assert cut_verdict(cut, cpu) == [
        "two pieces would not pay: cut behind 'b', gpu and then cpu, it takes by the times of its "
        "steps 4.5 ms at best"]
    faster, same = (cut_verdict(replace(cut, seconds=s, alone=0.01), cpu) for s in (0.005, 0.0099))
    assert faster[0].startswith("in two pieces it is faster: cut behind 'b', gpu and then cpu, it "
                                "takes 5 ms, 0.50 of what cpu does")
    assert "devices=['gpu', 'cpu']" in faster[1]
    assert same[0].startswith("two pieces do not pay: ") and "0.99 of what cpu does" in same[0]


@pytest.mark.slow
def test_a_cut_is_measured_in_turns_with_the_fastest_device(tmp_path):
    path = tmp_path / "line.onnx"
    onnx.save(line_of_text(), path)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 1, 8, 48)).astype("f4")}
    best = place("cpu", 1.0, {"kernel": 1.0}, None)
    cut = InTwo("columns", ("cpu", "reference"), 0.1)
    found = measured(str(path), feeds, cut, best, 1, 1, lambda text: None)
    assert not found.failed and found.seconds > found.alone > 0
    wrong = measured(str(path), feeds, replace(cut, devices=("cpu", "nowhere")), best, 1, 1,
                     lambda text: None)
    assert "nowhere" in wrong.failed and "were not measured" in cut_verdict(wrong, best)[0]
    assert measured(str(path), feeds, replace(cut, predicted=2.0), best, 1, 1,
                    lambda text: None).seconds is None
