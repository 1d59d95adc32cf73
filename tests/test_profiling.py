"""`jitcl.profile`: parts that add up, times that are believed or not, files made of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.bench.profiled import under_roof
from jitcl.cli.main import cli
from jitcl.devices import recording
from jitcl.devices.opencl import watched
from jitcl.devices.opencl.watched import Times, contradiction
from jitcl.devices.recording import KINDS, RunSpan, Span
from jitcl.profiling.parts import UNEXPLAINED, Others, parts, union
from jitcl.profiling.profile import Profile, _waits
from tests.devices import present

OPENCL = [s for s in present() if s.startswith("opencl")]
TEXT = """graph @{name}(%x: f32[{n},{m}], %w: f32[{m},{m}]) {{
  %1 = matmul(%x, %w)
  %2 = relu(%1)
  %3 = matmul(%2, %w)
  %y = tanh(%3)
  return %y
}}"""


def compiled(device: str, name: str = "g", n: int | str = 16, m: int = 32) -> jitcl.Model:
    return jitcl.compile(jitcl.parse(TEXT.format(name=name, n=n, m=m)), device=device)


def feeds(n: int = 16, m: int = 32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n + m)
    return {"x": rng.standard_normal((n, m)).astype(np.float32),
            "w": (rng.standard_normal((m, m)) / m).astype(np.float32)}


def profiled(model: jitcl.Model, fed: dict[str, np.ndarray], runs: int = 2) -> Profile:
    with jitcl.profile() as p:
        for _ in range(runs):
            model.run(fed)
    return p


# ---- parts of a run


@pytest.mark.parametrize(("spans", "want"), [
    ([], {UNEXPLAINED: 100}),
    ([("host", 0, 100, "")], {"host": 100}),
    ([("host", 0, 40, ""), ("wait", 40, 90, ""), ("kernel", 30, 60, "d"), ("copy", 55, 70, "d")],
     {"host": 30, "kernel": 30, "copy": 10, "wait": 20, UNEXPLAINED: 10}),
    ([("compile", 10, 90, ""), ("load", 20, 80, ""), ("cache", 30, 40, "")],
     {"compile": 20, "load": 50, "cache": 10, UNEXPLAINED: 20}),
    ([("kernel", 10, 30, "d"), ("kernel", 20, 40, "d")], {"kernel": 30, UNEXPLAINED: 70}),
    ([("copy", -50, 20, "d"), ("kernel", 80, 500, "d")],
     {"copy": 20, "kernel": 20, UNEXPLAINED: 60}),
])
def test_each_moment_of_a_run_counts_once(spans, want):
    run = RunSpan("m", "d", 1, 1000, 1100)
    run.spans = [Span(kind, kind, 1000 + b, 1000 + e, place) for kind, b, e, place in spans]
    found = parts(run)
    assert {k: v for k, v in found.items() if v} == want
    assert set(found) == {*KINDS, UNEXPLAINED} and sum(found.values()) == 100


def test_parts_of_random_spans_add_up_and_busy_time_is_a_union():
    rng = np.random.default_rng(3)
    for _ in range(50):
        run = RunSpan("m", "d", 1, 0, 1000)
        for _ in range(rng.integers(1, 30)):
            begin, end = sorted(rng.integers(-100, 1100, 2).tolist())
            kind = list(KINDS)[rng.integers(len(KINDS))]
            place = "d" if kind in ("kernel", "copy") else ""
            run.spans.append(Span(kind, kind, begin, end, place))
        assert sum(parts(run).values()) == 1000
        covered = np.zeros(1200, bool)
        for s in run.spans:
            covered[s.begin + 100:s.end + 100] = True
        assert union(run.spans) == covered.sum()


def test_a_wait_while_another_run_has_the_device_is_told_apart():
    run, other = RunSpan("a", "d", 1, 0, 100), RunSpan("b", "d", 2, 0, 100)
    run.spans = [Span("host", "h", 0, 30), Span("wait", "w", 30, 90),
                 Span("kernel", "k", 50, 60, "d")]
    other.spans = [Span("kernel", "k", 10, 45, "d"), Span("kernel", "k", 40, 55, "elsewhere"),
                   Span("copy", "c", 60, 80, "d"), Span("kernel", "k", 80, 120, "d")]
    found = parts(run, Others([run, other]))
    assert {k: v for k, v in found.items() if v} == {
        "host": 30, "behind": 15 + 10, "wait": 5 + 20, "kernel": 10, UNEXPLAINED: 10}


def test_who_waits_for_whom_on_a_device():
    a, b = "a", "b"
    pairs = [(Span("kernel", "k", 0, 100, "d", submitted=0), a),
             (Span("kernel", "k", 100, 150, "d", submitted=20), b),     # 80 behind a
             (Span("kernel", "k", 150, 200, "d", submitted=90), b),     # behind its own first
             (Span("kernel", "k", 200, 250, "d", submitted=120), a),    # 80 behind b
             (Span("kernel", "k", 300, 350, "d"), b)]                   # nobody says
    assert _waits(pairs) == {(b, a): 80, (a, b): 80}


# ---- runs


@pytest.mark.parametrize("device", present())
def test_a_profile_has_all_steps_and_its_parts_add_up(device):
    model, fed = compiled(device), feeds()
    want = model.run(fed)["y"]
    with jitcl.profile() as p:
        got = model.run(fed)["y"]
        bound = model.bind()
        for name, array in fed.items():
            bound.inputs[name] = array
        bound.run()
    assert got.tobytes() == want.tobytes() == bound.outputs["y"].tobytes()
    (found,) = p.models
    assert (found.model, found.device, found.runs) == ("g", model.device.name, 2)
    assert sum(found.parts.values()) + found.unexplained == pytest.approx(found.seconds, abs=1e-9)
    assert found.parts["kernel"] > 0 and found.unexplained >= 0
    assert found.seconds <= p.seconds
    steps = {s.name: s for s in model.plan.steps}
    assert {k.name for k in p.kernels} == set(steps)
    for k in p.kernels:
        assert k.launches == 2 and k.seconds > 0
        assert (k.flops, k.bytes) == (2 * steps[k.name].flops, 2 * steps[k.name].bytes)
        assert k.nodes == tuple(name for name, _ in steps[k.name].origins)
    (place,) = p.devices
    assert place.device == model.device.name and not place.doubt and place.turns == 0
    assert place.busy + place.idle == pytest.approx(p.seconds)
    assert "unexplained" in str(p) and "100 %" in str(p)


@pytest.mark.slow
@pytest.mark.parametrize("device", [s for s in present() if s != "reference"])
def test_what_is_unexplained_is_at_most_5_percent(device):
    """The best of some profiles: on a busy machine a thread may lose its core at any moment."""
    model, fed = compiled(device, n=256, m=512), feeds(256, 512)
    model.run(fed)
    shares = []
    while len(shares) < 20 and min(shares, default=1) > 0.05:
        (found,) = profiled(model, fed, 5).models
        shares.append(found.unexplained / found.seconds)
    assert min(shares) <= 0.05, shares


def test_compiling_and_the_cache_are_apart(tmp_path):
    graph = jitcl.parse("graph @fresh(%x: f32[n,24]) {\n  %y = relu(%x)\n  return %y\n}")
    fed = {"x": feeds(7, 24)["x"]}
    for kind in ("compile", "cache"):
        model = jitcl.compile(graph, device="cpu", cache_dir=tmp_path)
        (found,) = profiled(model, fed, 1).models
        assert found.parts[kind] > 0
        assert (found.parts["compile"] > 0) == (kind == "compile")
        assert found.parts["load"] > 0
        assert sum(found.parts.values()) + found.unexplained == pytest.approx(found.seconds)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", *OPENCL[:1]])
def test_work_of_a_plan_for_many_shapes_is_that_of_the_run(device):
    model = compiled(device, "many", n="n", m=32)
    for n in (5, 6, 7, 9):
        model.run(feeds(n, 32))
    flops = {}
    for n in (11, 22):
        p = profiled(model, feeds(n, 32), 1)
        assert model.last.sizes, "no family"
        flops[n] = sum(k.flops for k in p.kernels)
    assert flops[11] > 2 * 2 * 11 * 32 * 32 and flops[22] == 2 * flops[11]


def test_submitted_runs_of_two_models_are_seen_with_their_time_in_the_queue():
    models = [compiled("cpu", name) for name in ("first", "second")]
    fed = feeds()
    for model in models:
        model.run(fed)
    with jitcl.profile() as p:
        runs = [model.submit(fed) for _ in range(3) for model in models]
        for run in runs:
            run.result(60)
    assert {(m.model, m.runs) for m in p.models} == {("first", 3), ("second", 3)}
    assert all(m.queued > 0 for m in p.models)
    assert len({r.thread for r in p.runs}) == 2 and all(r.asked <= r.begin for r in p.runs)
    (cpu,) = p.devices
    assert set(cpu.models) == {"first", "second"} and cpu.turns >= 1
    assert p.outside["copy"] > 0                    # of inputs, in the thread that submits


def test_models_of_one_name_are_told_apart_and_failures_counted():
    models, fed = [compiled("cpu"), compiled("cpu")], feeds()
    with jitcl.profile() as p:
        for model in models:
            model.run(fed)
        with pytest.raises(jitcl.InputError):
            models[0].run({"x": fed["x"]})
    assert {(m.model, m.runs, m.failed) for m in p.models} == {("g", 2, 1), ("g #2", 1, 0)}


def test_waiting_for_the_turn_is_seen():
    model, fed = compiled("cpu"), feeds()
    model.run(fed)
    executable = model.last.executable
    with jitcl.profile() as p:
        with executable._lock:
            thread = threading.Thread(target=model.run, args=(fed,))
            thread.start()
            thread.join(0.05)
        thread.join(60)
    (found,) = p.models
    assert found.parts["wait"] >= 0.03


# ---- clocks that are not believed


@pytest.mark.parametrize(("times", "host", "said"), [
    ([(1000, 1500, 2000, 900_000), (3000, 900_100, 900_200, 1_900_000)], 2_000_000, ""),
    ([(1000, 1500, 2000, 1000)], 10**6, "started at 2000 and ended at 1000 ns"),
    ([(0, 0, 0, 0)], 10**6, "was queued at 0"),
    ([(1000, 2000, 3000, 10**10)], 10**7, "events span 9999.999 ms, by the host's clock 10.000 ms"),
    ([(1000, 1100, 1200, 31_000)], 30 * 10**6, "events span 0.030 ms"),    # microseconds
    ([(1000, 1100, 2000, 900_000)] * 3, 10**6, "events took 2.694 ms, by the host's clock 1.000"),
])
def test_times_that_cannot_be(times, host, said):
    found = contradiction([Times(*t) for t in times], host)
    assert said in found and bool(found) == bool(said)


@pytest.mark.parametrize("device", OPENCL)
def test_a_clock_that_contradicts_the_hosts_is_not_believed(device, monkeypatch):
    model, fed = compiled(device), feeds()
    want = model.run(fed)["y"]
    real = Times.of

    def far_too_fast(event):
        t = real(event)
        return Times(t.queued, t.queued, t.queued, t.queued + 1000 * (t.end - t.queued) + 10**9)

    monkeypatch.setattr(watched.Times, "of", far_too_fast)
    p = profiled(model, fed, 2)
    assert model.run(fed)["y"].tobytes() == want.tobytes()
    (place,) = p.devices
    assert "events span" in place.doubt
    assert "its own clock is not believed (events span" in str(p)
    first, second = p.runs
    assert [s.name for s in first.spans if s.kind == "kernel"] == [
        "all steps and copies, not told apart"]
    assert [s.name for s in second.spans if s.kind == "kernel"] == [
        s.name for s in model.plan.steps]
    (found,) = p.models
    assert sum(found.parts.values()) + found.unexplained == pytest.approx(found.seconds)


@pytest.mark.parametrize("device", OPENCL[:1])
def test_a_device_that_a_probe_found_out_is_timed_by_the_host(device, monkeypatch):
    from dataclasses import replace

    model, fed = compiled(device), feeds()
    model.run(fed)
    session = model.last.executable.session
    monkeypatch.setattr(session, "target", replace(session.target, trusted_events=False))
    p = profiled(model, fed, 1)
    assert "a probe, or the table of driver faults, says so" in p.devices[0].doubt
    assert {k.name for k in p.kernels} == {s.name for s in model.plan.steps}


# ---- files


def test_files_of_a_profile(tmp_path):
    model, fed = compiled("cpu", "</script><b>"[2:8]), feeds()
    p = profiled(model, fed)
    under_roof(p, {"cpu": Peaks("cpu", 2, 1e15, 1e15, (Bandwidth(1 << 28, 1e15),))})
    assert all(0 < k.of_roof < 1 and k.bound for k in p.kernels)
    document = json.loads(p.save(tmp_path / "p.json").read_text())
    assert document == json.loads(json.dumps(p.document()))
    (row,) = document["models"]
    assert sum(row["parts"].values()) + row["unexplained"] == pytest.approx(row["seconds"])
    assert [len(r["spans"]) > 2 for r in document["runs"]] == [True, True]
    events = json.loads(p.save(tmp_path / "p.trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == 2 * len(model.plan.steps)
    assert {e["ph"] for e in events} == {"M", "X"}
    names = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    assert {(e["pid"], e["tid"]) for e in kernels} <= names
    assert all(e["dur"] >= 0 and 0 <= e["ts"] <= p.seconds * 1e6 for e in kernels)
    assert p.save(tmp_path / "p.txt").read_text().startswith(str(p).splitlines()[0])
    with pytest.raises(jitcl.OptionError, match=r"wanted \.html"):
        p.save(tmp_path / "p.svg")
    with pytest.raises(jitcl.OptionError, match="cannot write"):
        p.save(tmp_path / "no" / "p.json")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed here")
def test_the_timeline_is_drawn_by_a_browser(tmp_path):
    """All spans of two models, whose names are no markup."""
    device = "opencl:pocl" if "opencl:pocl" in present() else "cpu"
    models, fed = [compiled(device, name) for name in ("first", "second")], feeds()
    for model in models:
        model.run(fed)
    with jitcl.profile() as p:
        for model in models * 2:
            model.run(fed)
    for run in p.runs:
        run.model = run.model.replace("second", "</script><b>second")
    page = p.save(tmp_path / "t.html")
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,900"]
    done = subprocess.run([*browser, "--dump-dom", f"file://{page}"], capture_output=True,
                          text=True, timeout=120)
    drawn = re.search(r'data-drawn="(\d+)"', done.stdout)
    shown = {int(n) for n in re.findall(r'data-span="(\d+)"', done.stdout)}
    assert drawn is not None and int(drawn[1]) == len(shown) > 20
    lanes = re.findall(r'data-lane="([^"]+)"', done.stdout)
    assert lanes == ["thread 1", models[0].device.name]
    assert "&lt;/script&gt;&lt;b&gt;second" in done.stdout and "<b>second" not in done.stdout
    picture = tmp_path / "t.png"
    subprocess.run([*browser, f"--screenshot={picture}", f"file://{page}"], capture_output=True,
                   timeout=120, check=True)
    from PIL import Image

    colours = {c for _, c in Image.open(picture).convert("RGB").getcolors(1 << 24)}
    assert {(0x8f, 0xb4, 0xde), (0xe8, 0xae, 0x74)} <= colours      # both models


# ---- use and misuse


def test_one_profile_at_a_time_and_read_behind_its_block():
    with jitcl.profile() as p:
        with pytest.raises(jitcl.JitclError, match="under way already"), jitcl.profile():
            pass
        with pytest.raises(jitcl.JitclError, match="has not ended"):
            str(p.models)
    assert p.models == () and "no run of a model ended" in str(p)
    assert recording.active is None
    with pytest.raises(jitcl.JitclError, match="for one block"), p:
        pass
    with pytest.raises(ZeroDivisionError), jitcl.profile():
        raise ZeroDivisionError
    assert recording.active is None
    with pytest.raises(AttributeError):
        str(p.nothing)


def test_the_command(tmp_path):
    path = tmp_path / "g.jitcl"
    path.write_text(TEXT.format(name="g", n=16, m=32))
    files = [tmp_path / name for name in ("t.html", "t.json")]
    done = CliRunner().invoke(cli, [
        "profile", str(path), str(path), "-d", "cpu", "--repeat", "2", "--no-roof", "--together",
        *(option for file in files for option in ("--save", str(file)))])
    assert done.exit_code == 0, done.output
    assert re.search(r"g on cpu: 2 runs", done.output) and "g #2 on cpu: 2 runs" in done.output
    assert "unexplained" in done.output and all(f.stat().st_size > 1000 for f in files)


@pytest.mark.parametrize(("options", "said"), [
    (["--save", "t.svg"], "wanted .html (a timeline)"),
    (["--save", "no/t.html"], "there is no folder 'no'"),
    (["-d", "cpu", "-d", "cpu", "-d", "cpu"], "--device was given 3 times for 2 models"),
    (["-i", "x=1"], "-i names an input of one model"),
])
def test_wrong_options_of_the_command(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.jitcl").write_text(TEXT.format(name="g", n=16, m=16))
    done = CliRunner().invoke(cli, ["profile", "g.jitcl", "g.jitcl", *options])
    assert done.exit_code == 1 and said in done.output
