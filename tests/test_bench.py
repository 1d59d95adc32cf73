"""Engines in turns: order, statistics, results compared, failures told; no time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from jitcl.bench import contest, machine, peers
from jitcl.bench.compare import largest_difference
from jitcl.bench.contest import Contest
from jitcl.bench.processes import EngineProcess, Entrant, Opened
from jitcl.bench.turns import Timing, fastest, ratio, take_turns, timed_turn
from jitcl.bench.worker import limit_cores
from jitcl.cli.bench_tables import Results
from jitcl.cli.main import cli
from jitcl.errors import DeviceError, OptionError
from tests.programs import info, model, node

ROOT = Path(__file__).resolve().parent.parent
SUPERRES = str(ROOT / "examples" / "superres-x3.onnx")
ENGINES = str(ROOT / "tests" / "bench_engines.py")


class Clock:
    """A clock that stands still between runs; each `run` takes the next of `seconds`."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.seconds = 0.0, list(seconds)

    def __call__(self) -> float:
        return self.now

    def run(self) -> None:
        self.now += self.seconds.pop(0)


# -- turns -------------------------------------------------------------------------------------


def test_the_first_run_of_a_turn_warms_up():
    clock = Clock(9 / 64, 1 / 64, 2 / 64, 1 / 64, 5)
    assert timed_turn(clock.run, 0.25, clock) == [1 / 64, 2 / 64, 1 / 64, 5]
    assert clock.seconds == []


def test_a_turn_ends_when_its_time_is_filled():
    clock = Clock(*[1 / 64] * 9)
    assert timed_turn(clock.run, 4 / 64, clock) == [1 / 64] * 4
    assert len(clock.seconds) == 4


def test_a_run_as_long_as_a_turn_counts_at_once():
    clock = Clock(3.0, 1.0)
    assert timed_turn(clock.run, 0.05, clock) == [3.0]


class Player:
    def __init__(self, name: str, log: list[Any], times: list[list[float]]) -> None:
        self.name, self.log, self.times = name, log, times

    def turn(self, seconds: float) -> list[float]:
        self.log.append((self.name, seconds))
        return self.times.pop(0)


def test_engines_come_behind_each_other_equally_often():
    log: list[Any] = []
    take_turns([Player(name, log, [[1.0]] * 4) for name in "abc"], 3, sleep=lambda seconds: None)
    assert "".join(name for name, _ in log) == "abcacbabcacb"


def test_engines_alternate_and_the_warm_up_does_not_count():
    log: list[Any] = []
    a = Player("a", log, [[100.0], [1.0, 3.0, 2.0], [4.0]])
    b = Player("b", log, [[200.0], [4.0], [2.0, 2.0]])
    done: list[int] = []
    found = take_turns([a, b], 2, seconds=0.5, settle=0.25, sleep=log.append,
                       after_round=done.append)
    assert log == [0.25, ("a", 0.5), 0.25, ("b", 0.5)] * 3
    assert done == [0, 1, 2]
    assert found == {"a": Timing((2.0, 4.0), 4), "b": Timing((4.0, 2.0), 3)}
    assert (found["a"].median, found["a"].best, found["a"].worst) == (3.0, 2.0, 4.0)


def test_ratios_are_taken_round_by_round():
    """A neighbour that doubles both times in a round leaves the ratio as it is."""
    quiet, disturbed = Timing((1.0, 2.0, 1.0), 3), Timing((2.0, 4.0, 3.0), 3)
    found = ratio(disturbed, quiet)
    assert (found.median, found.best, found.worst) == (2.0, 2.0, 3.0)
    assert fastest({"x": disturbed, "y": quiet}) == "y" and fastest({}) is None


# -- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("got", "want", "difference"), [
    ({"y": np.float32([1, 2])}, {"y": np.float32([1, 4])}, 0.5),
    ({"y": np.int64([3]), "z": [1.0]}, {"y": np.int64([3])}, 0.0),
    ({"y": np.zeros(2)}, {"y": np.zeros(3)}, np.inf),
    ({}, {"y": np.zeros(3)}, np.inf),
    ({"y": np.array([np.nan, 1, np.inf])}, {"y": np.array([np.nan, 2, np.inf])}, 0.5),
    ({"y": np.array([np.nan, 1])}, {"y": np.array([1.0, 1])}, np.inf),
    ({"y": np.ones(2)}, {"y": np.zeros(2)}, np.inf),
    ({"y": np.array(["a", "b"], object)}, {"y": np.array(["a", "b"], object)}, 0.0),
    ({"y": np.array(["a", "b"], object)}, {"y": np.array(["a", "c"], object)}, np.inf),
    ({"y": [np.ones(1), np.ones(2)]}, {"y": [np.ones(1), np.full(2, 2.0)]}, 0.5),
    ({"y": [{1: 0.5}]}, {"y": [{1: 0.25}]}, 1.0),
    ({"y": None}, {"y": None}, 0.0),
    ({"y": np.bool_([True, False])}, {"y": np.bool_([True, True])}, 1.0),
    ({"y": np.zeros(0)}, {"y": np.zeros(0)}, 0.0),
])
def test_the_largest_difference(got, want, difference):
    assert largest_difference(got, want) == difference


# -- contests ----------------------------------------------------------------------------------


class Fake:
    """An engine's process: `times` of its turns, or an error in the turn of that number."""

    def __init__(self, outputs: Any, times: list[float], fails: int = -1) -> None:
        self.outputs, self.times, self.fails = outputs, times, fails
        self.turns = 0
        self.closed = False

    def open(self) -> Opened:
        if isinstance(self.outputs, Exception):
            raise self.outputs
        return Opened({"y": np.float32(self.outputs)}, 0.5, {"device": "fake"})

    def turn(self, seconds: float) -> list[float]:
        self.turns += 1
        if self.turns == self.fails:
            raise DeviceError("it fell over")
        return [self.times[self.turns % len(self.times)]]

    def close(self) -> None:
        self.closed = True


def held(fakes: dict[str, Fake]) -> Contest:
    """A contest of fakes; names in capitals are peers."""
    entrants = [Entrant(name, "", {}, name.isupper()) for name in fakes]
    return Contest(entrants, 2, start=lambda entrant, threads: fakes[entrant.name])


def test_a_contest_compares_results_and_times():
    fakes = {"ours": Fake([1, 3], [2.0]), "wrong": Fake([1, 2], [1.0]), "PEER": Fake([1, 4], [4.0]),
             "SLOW": Fake([1, 4], [8.0])}
    with held(fakes) as c:
        c.open()
        c.time(3, settle=0.0)
        ours, wrong, peer, slow = c.entries
        assert (c.judge, c.fastest_peer) == ("PEER", "PEER")
        assert (ours.difference, wrong.difference, peer.difference) == (0.25, 0.5, None)
        assert ours.ratio is not None and ours.ratio.median == 0.5
        assert slow.ratio is not None and slow.ratio.median == 2.0
        assert not any(f.closed for f in fakes.values())
    assert all(f.closed for f in fakes.values())


def test_without_peers_the_first_device_is_the_measure():
    with held({"one": Fake([1, 2], [1.0]), "two": Fake([1, 4], [1.0])}) as c:
        c.open()
        c.time(1, settle=0.0)
        assert c.judge == "one" and c.fastest_peer is None
        assert c.entries[1].difference == 1.0 and c.entries[1].ratio is None
    with held({"alone": Fake([1], [1.0])}) as c:
        c.open()
        assert c.judge is None


def test_an_engine_that_fails_is_out_and_the_others_go_on():
    fakes = {"ours": Fake([1], [2.0]), "REFUSING": Fake(DeviceError("no such op"), []),
             "FALLING": Fake([1], [1.0], fails=2)}
    with held(fakes) as c:
        c.open()
        c.time(2, settle=0.0)
        ours, refusing, falling = c.entries
        assert str(refusing.error) == "no such op" and fakes["REFUSING"].closed
        assert str(falling.error) == "it fell over" and falling.timing is None
        assert ours.timing == Timing((2.0, 2.0), 2) and c.fastest_peer is None
        assert fakes["FALLING"].closed and not fakes["ours"].closed


# -- processes ---------------------------------------------------------------------------------


def test_an_engine_in_a_process_of_its_own():
    outputs = {"y": np.arange(3), "words": np.array(["a"], object), "none": None}
    process = EngineProcess(Entrant("echo", f"{ENGINES}:echo", {"outputs": outputs}), 1)
    try:
        opened = process.open()
        assert opened.about == {"device": "nowhere", "threads": 1} and opened.seconds > 0
        assert opened.outputs["y"].tolist() == [0, 1, 2] and opened.outputs["none"] is None
        before = process.ask("told", factor=1)[0]
        assert before == 1
        times = process.turn(0.001)
        assert times and all(t > 0 for t in times)
        assert process.ask("told", factor=10) in (
            [10 * (before + len(times)), "1"], [10 * (before + len(times) + 1), "1"])
    finally:
        process.close()


def test_engines_run_without_settings_that_slow_their_libraries(monkeypatch):
    """OPENBLAS_CORETYPE=Haswell halved NumPy's products on a Zen 5."""
    given = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "1", "KEPT": "yes"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    process = EngineProcess(Entrant("echo", f"{ENGINES}:echo", {"outputs": {}}), 1)
    try:
        process.open()
        found = process.ask("environment", names=list(given))
    finally:
        process.close()
    assert found == {"OPENBLAS_CORETYPE": None, "OPENBLAS_L2_SIZE": None, "KEPT": "yes"}


@pytest.mark.parametrize(("opener", "said"), [
    ("refusing", "this engine takes no model\n  Take another."),
    ("dying", "dying: its process ended with status 3: an assertion of its library"),
])
def test_engines_that_cannot_be_opened(opener, said):
    process = EngineProcess(Entrant(opener, f"{ENGINES}:{opener}"), 1)
    try:
        with pytest.raises(DeviceError) as caught:
            process.open()
    finally:
        process.close()
    assert str(caught.value) == said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a system without affinities")
def test_an_engine_gets_as_many_cores_as_threads(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(cores))
    for threads in (1, 2, 3, 8):
        limit_cores(threads)
    assert asked == [[2], [2, 5]]


# -- peers -------------------------------------------------------------------------------------


def test_peers_are_chosen_by_what_is_installed():
    def there(name: str) -> bool:
        return name == "onnxruntime"
    assert peers.choose_peers("auto", there) == (["onnxruntime"], ["openvino"])
    assert peers.choose_peers("none", there) == ([], [])
    assert peers.choose_peers("onnxruntime, onnxruntime", there) == (["onnxruntime"], [])


@pytest.mark.parametrize(("text", "said"), [
    ("tensorrt", "--peers: got 'tensorrt', wanted auto, none, or names out of onnxruntime, "
                 "openvino with commas"),
    ("openvino", "--peers: openvino is not installed\n  Install it: pip install openvino; or take "
                 "--peers auto for those that are."),
    (",", "--peers: got no name, wanted auto, none, or names out of onnxruntime, openvino with "
          "commas"),
])
def test_peers_that_there_are_not(text, said):
    with pytest.raises(OptionError) as caught:
        peers.choose_peers(text, lambda name: False)
    assert str(caught.value) == said


def test_a_peer_that_does_not_take_a_model_says_so():
    pytest.importorskip("onnxruntime")
    with pytest.raises(DeviceError, match="onnxruntime does not take the model: "):
        peers.open_onnxruntime(b"no model", {}, 1)


def test_blas_says_for_which_cpu_it_computes(monkeypatch):
    pools = [
        {"user_api": "blas", "internal_api": "openblas", "version": "0.3.30", "num_threads": 2,
         "architecture": "SkylakeX"},
        {"user_api": "openmp", "internal_api": "openmp", "version": None, "num_threads": 2},
        {"user_api": "blas", "internal_api": "mkl", "version": "2025.1", "num_threads": 1}]
    fake = SimpleNamespace(threadpool_info=lambda: pools)
    monkeypatch.setattr(peers, "installed", lambda name: True)
    monkeypatch.setitem(sys.modules, "threadpoolctl", fake)
    assert peers.blas_kernels() == (
        "openblas 0.3.30 for SkylakeX with 2 threads, mkl 2025.1 with 1 thread")
    del pools[2], pools[0]
    assert peers.blas_kernels() == "no BLAS that threadpoolctl knows"
    monkeypatch.setattr(peers, "installed", lambda name: False)
    assert peers.blas_kernels() == "BLAS kernels not known: threadpoolctl is not installed"


def test_importing_the_bench_loads_no_peer():
    code = ("import sys, pkgutil, importlib, jitcl.bench, jitcl.cli.bench_tables\n"
            "for m in pkgutil.iter_modules(jitcl.bench.__path__, 'jitcl.bench.'):\n"
            "    importlib.import_module(m.name)\n"
            "heavy = {'onnxruntime', 'openvino', 'numba', 'pyopencl', 'onnx'}\n"
            "print(sorted(heavy & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- the machine -------------------------------------------------------------------------------


def test_a_busy_machine_is_called_busy():
    def loaded(load: float | None) -> machine.Machine:
        return machine.Machine("a CPU", 4, "Linux", "3.11", load)
    assert [loaded(x).busy for x in (None, 0.9, 1.1)] == [False, False, True]
    assert "load average 1.10" in str(loaded(1.1)) and "unknown load" in str(loaded(None))
    assert machine.this_machine().cores >= 1 and machine.this_machine().cpu


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path) -> str:
    """An ONNX model of one kernel."""
    path = tmp_path / "small.onnx"
    onnx.save(model([node("Add", ["x", "x"], ["y"])], [info("x", ["n", 4], TensorProto.FLOAT)],
                    [info("y", ["n", 4], TensorProto.FLOAT)]), path)
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cli-cache"))
    monkeypatch.setenv("JITCL_DEVICE", "cpu")


def bench(*args: object) -> Any:
    return CliRunner().invoke(cli, ["bench", *map(str, args)], catch_exceptions=False)


def checked_roofline(model: str, shape: str, folder: Path) -> dict[str, Any]:
    """What the command with all outputs says of a model."""
    svg, report = folder / "roof.svg", folder / "bench.json"
    done = bench(model, "-d", "cpu", "--shape", shape, "--rounds", 1, "--threads", 1,
                 "--peers", "none", "--roofline", svg, "--json", report)
    assert done.exit_code == 0, done.stderr
    assert "jitcl cpu" in done.stdout and "1 thread each" in done.stdout
    assert "load average" in done.stdout and "slowest kernels" in done.stdout
    assert f"saved {svg}" in done.stdout and "results were compared with nobody's" in done.stdout
    told = json.loads(report.read_text())
    (engine,), (roofline,) = told["engines"], told["rooflines"]
    assert engine["about"]["device"] == "cpu" and engine["seconds"]["runs"] >= 1
    assert engine["ratio"] is None and told["fastest_peer"] is None and told["threads"] == 1
    assert roofline["peaks"]["flops"] > 0 and len(roofline["peaks"]["bandwidths"]) >= 1
    assert engine["about"]["flops"] == sum(k["flops"] for k in roofline["kernels"])
    titles = [e for e in ElementTree.parse(svg).iter() if e.tag.endswith("title")]
    assert len(titles) == sum(k["flops"] > 0 for k in roofline["kernels"])
    return told


@pytest.mark.slow
def test_the_command_with_a_roofline(small, tmp_path):
    told = checked_roofline(small, "2,4", tmp_path)
    assert told["inputs"] == {"x": {"dtype": "float32", "shape": [2, 4]}}
    assert [k["ops"] for k in told["rooflines"][0]["kernels"]] == [["Add"]]
    assert all(k["nodes"] for k in told["rooflines"][0]["kernels"])


@pytest.mark.slow
def test_the_command_with_a_roofline_of_a_whole_model(tmp_path):
    told = checked_roofline(SUPERRES, "1,3,16,16", tmp_path)
    assert told["inputs"]["image"] == {"dtype": "float32", "shape": [1, 3, 16, 16]}
    assert {k["template"] for k in told["rooflines"][0]["kernels"]} >= {"conv_cpu", ""}


def test_the_command_beside_a_peer(small, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(peers.importlib.util, "find_spec",
                        lambda name: object() if name == "onnxruntime" else None)
    done = bench(small, "--shape", "x=2,4", "--rounds", 1, "--threads", 1)
    assert done.exit_code == 0, done.stderr
    assert "jitcl auto is cpu" in done.stdout and "onnxruntime " in done.stdout
    assert "openvino is not installed: pip install openvino; not compared" in done.stdout
    assert "the measure" in done.stdout and "look at them before" not in done.stdout
def test_text_graphs_are_no_model_for_others():
    from jitcl.cli.bench import entrants
    found, absent = entrants(Path("dump/00-import.jitcl"), ("cpu", "opencl"), ["onnxruntime"], {},
                             {"precision": "high"})
    assert [e.name for e in found] == ["jitcl cpu", "jitcl opencl"]
    assert absent == {"onnxruntime": "reads ONNX files only, not text graphs"}
    found, absent = entrants(Path("model.onnx"), ("cpu",), ["onnxruntime"], {}, {})
    assert [(e.name, e.peer) for e in found] == [("jitcl cpu", False), ("onnxruntime", True)]
    assert absent == {} and found[1].arguments["model"] == found[0].arguments["model"]


def results_of(fakes: dict[str, Fake], **changes: Any) -> Results:
    with held(fakes) as c:
        c.open()
        c.time(1, settle=0.0)
    quiet = machine.Machine("a CPU", 2, "Linux", "3.11", 0.1)
    return Results(**{"model": "m.onnx", "machine": quiet, "contest": c, "rounds": 1,
                   "precision": "high", "feeds": {"x": np.zeros((2, 3))}, "given": (), "seed": 0,
                   "absent": {}, "rooflines": [], "unplaced": {}, **changes})


def test_wrong_results_are_seen(capsys):
    fakes = {"right": Fake([1, 2], [2.0]), "wrong": Fake([1, 3], [1.0]),
             "PEER": Fake([1, 2], [4.0])}
    told = results_of(fakes)
    told.print(0)
    out = capsys.readouterr().out
    assert "m.onnx: x float64[2, 3]" in out and "5.0e-01 !" in out
    assert "! wrong: its results differ from those of PEER by more than rounding explains" in out
    assert out.count("look at them before the time") == 1 and "busy" not in out
    document = told.document()
    assert [e["suspect"] for e in document["engines"]] == [False, True, False]
    assert [e["ratio"]["median"] for e in document["engines"]] == [0.5, 0.25, 1.0]


def test_what_else_the_tables_say(capsys):
    fakes = {"ours": Fake([1.01], [2.0]), "PEER": Fake([1.0], [1.0]),
             "REFUSING": Fake(DeviceError("no such op"), [])}
    results_of(fakes, machine=machine.Machine("a CPU", 2, "Linux", "3.11", 1.5), precision="normal",
            absent={"openvino": "is not installed: pip install openvino"},
            unplaced={"ours": "a program of parts"}).print(10)
    out = capsys.readouterr().out
    assert "REFUSING failed: no such op" in out and "the machine was busy" in out
    assert "openvino is not installed: pip install openvino; not compared" in out
    assert "ours: no kernels listed: a program of parts" in out
    assert "peers computed in float32, jitcl with precision normal" in out
    assert "differ from" not in out             # 1% is within what half storage rounds


@pytest.mark.parametrize(("args", "said"), [
    (("--peers", "mxnet"), "jitcl.OptionError: --peers: got 'mxnet', wanted auto, none, or"),
    (("--roofline", "/no/such/folder/roof.svg"), "cannot write '/no/such/folder/roof.svg': there "
                                                 "is no folder '/no/such/folder'"),
    (("-i", "pixels=[1]"), "there is no input 'pixels'"),
    ((), "leaves batch, height, width open\n  Say its shape: --shape image=1,3,1,1"),
])
def test_what_the_command_refuses(args, said):
    done = bench(SUPERRES, "-d", "cpu", *args)
    assert done.exit_code == 1 and said in done.stderr and done.stdout == ""


def test_a_picture_without_kernels_is_an_error_behind_the_times(small, tmp_path):
    done = bench(small, "-d", "reference", "--shape", "2,4", "--rounds", 1, "--peers", "none",
                 "--roofline", tmp_path / "roof.svg")
    assert done.exit_code == 1 and "jitcl reference" in done.stdout
    assert "--roofline: there are no kernels to draw" in done.stderr
    assert "device reference does not tell the time of its steps" in done.stderr
    assert not (tmp_path / "roof.svg").exists()


def test_a_device_that_there_is_not():
    done = bench(SUPERRES, "-d", "opencl:nobody", "--shape", "1,3,16,16", "--peers", "none")
    assert done.exit_code == 1 and done.stderr.startswith("jitcl.DeviceError: ")
    assert "nobody" in done.stderr


def test_settings_of_turns_are_those_that_the_help_tells():
    assert contest.TURN_SECONDS == 0.05
    assert "a twentieth of a second" in " ".join(bench("--help").stdout.split())
