"""Fallbacks at load and at run, on a device that fails on cue."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jitcl
from jitcl import config
from jitcl.codegen.plan import Plan
from jitcl.codegen.variants import features
from jitcl.devices.faults import Fault
from jitcl.errors import (
    BuildError,
    DeviceError,
    DeviceLostError,
    JitclError,
    KernelFault,
    OptionError,
    OutOfMemoryError,
)
from jitcl.runtime.cache import KernelCache
from jitcl.target.variants import VARIANTS
from tests.posing import GRAPH, TARGET, PosingDevice, failing, softmax_of_relu

ROOT = Path(__file__).parent.parent
SMALL = jitcl.parse(GRAPH)
X = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((16, 32)).astype(np.float32)
LOCAL = "SIGABRT: LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586"


def posing(root: Path | None = None, **hooks) -> PosingDevice:
    return PosingDevice(softmax_of_relu, root, **hooks)


def opened(device: PosingDevice, root: Path, **options) -> jitcl.Model:
    return jitcl.compile(SMALL, device=device, cache_dir=root, **options)


def check(model: jitcl.Model) -> None:
    x, w = X.copy(), W.copy()
    (y,) = model.run({"x": x, "w": w}).values()
    np.testing.assert_allclose(y, softmax_of_relu([X, W])[0], rtol=0, atol=1e-6)
    assert (x == X).all() and (w == W).all()


def variants(model: jitcl.Model) -> set[str]:
    return {s.variant for s in model.plan.steps}


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records
            if r.name == "jitcl" and r.levelno >= logging.WARNING]


@pytest.fixture
def local_fails():
    return failing(lambda f: "local" in f, LOCAL)


# ---- at load


def test_a_good_driver_is_not_told_of(tmp_path, caplog):
    device = posing(tmp_path)
    model = opened(device, tmp_path)
    check(model)
    assert len(device.loads) == 1 and variants(model) == {""} and not warnings(caplog)
    report = model.report()
    assert (report.stepped_down, report.host, report.memory) == ((), (), "")


def test_kernels_that_fail_are_written_otherwise_and_the_user_is_told_once(
        tmp_path, caplog, local_fails):
    device = posing(tmp_path, on_load=local_fails)
    model = opened(device, tmp_path)
    check(model)
    assert warnings(caplog) == [
        "Mali-G78 r0p1: its driver failed on 2 kernels (SIGABRT in the compiler: LLVM ERROR: "
        "Cannot select: intrinsic %llvm.bifrost.2586); matmul_0, mul_1 run without local memory; "
        "remembered: `jitcl devices` shows it, `jitcl cache retry` tries again"]
    row, _ = model.report().stepped_down
    assert (row.step, row.variant, row.why) == ("matmul_0", "no-local", LOCAL)
    assert "  stepped down: matmul_0 runs without local memory: SIGABRT" in str(model.report())
    assert not any("local" in features(k) for k in model.plan.kernels)


def test_the_second_run_meets_no_crash_and_is_not_told_of(tmp_path, caplog, local_fails):
    first = opened(posing(tmp_path, on_load=local_fails), tmp_path)
    caplog.clear()
    device = posing(tmp_path, on_load=local_fails)
    model = opened(device, tmp_path)
    check(model)
    assert len(device.loads) == 1 and model.report().from_cache and not warnings(caplog)
    assert model.report().stepped_down == first.report().stepped_down != ()
    assert "stepped down: matmul_0" in str(model.report())


def test_plans_for_many_shapes_tell_of_it_too(tmp_path, caplog, local_fails):
    """And remember it: their reports say so after another start."""
    target = replace(TARGET, local_is_real=False)
    graph = jitcl.parse(GRAPH.replace("f32[4,16]", "f32[n,16]"))

    def model() -> jitcl.Model:
        device = posing(tmp_path, target=target, on_load=local_fails)
        return jitcl.compile(graph, device=device, cache_dir=tmp_path)
    first, second = model(), model()
    check(first)
    assert first.report().sizes and variants(first) - {""}
    (line,) = warnings(caplog)
    assert "its driver failed on" in line and "such kernels before" not in line
    caplog.clear()
    check(second)
    assert second.report().from_cache and not warnings(caplog)
    assert second.report().stepped_down == first.report().stepped_down != ()


def test_another_model_starts_lower_where_features_are_shared(tmp_path, caplog, local_fails):
    opened(posing(tmp_path, on_load=local_fails), tmp_path)
    caplog.clear()
    other = jitcl.parse(GRAPH.replace("[4,16]", "[8,16]"))
    device = posing(tmp_path, on_load=local_fails)
    device.faults.found_good(["template:gemm_tiled_opencl", "vec4", "barrier"])
    model = jitcl.compile(other, device=device, cache_dir=tmp_path)
    assert len(device.loads) == 1
    (line,) = warnings(caplog)
    assert "its driver failed on such kernels before (local: SIGABRT" in line
    assert "matmul_0, mul_1 run without local memory" in line
    assert model.report().stepped_down[0].why.startswith("local: SIGABRT")


def test_what_failed_is_never_loaded_again(tmp_path):
    failed: set[str] = set()

    def stubborn(device: PosingDevice, plan: Plan) -> None:
        mine = [k for k in plan.kernels if k.language == "opencl"]
        assert not failed & {k.entry for k in mine}
        if mine and len(device.loads) < 40:
            failed.add(mine[0].entry)
            device.faults.record(Fault(mine[0].entry, "launch", "hang", "no end after 60 s"))
            raise KernelFault("hang")
    model = opened(posing(tmp_path, on_load=stubborn), tmp_path)
    check(model)
    assert variants(model) == {"cpu"}


def test_where_nothing_else_is_left_the_cpu_does_it_and_says_so(tmp_path, caplog):
    model = opened(posing(tmp_path, on_load=failing(lambda f: True)), tmp_path)
    check(model)
    assert variants(model) == {"cpu"}
    report = model.report()
    assert report.kernels == 0 and len(report.steps) == len(report.host) > 0
    assert all(why.startswith("on the CPU: the driver failed on every kernel for it (SIGABRT")
               for _, _, why in report.host)
    assert "run on the CPU; remembered" in warnings(caplog)[0]
    assert "\n  host: 'matmul_0'" in str(report)


def test_strict_keeps_it_off_the_cpu(tmp_path):
    everything = failing(lambda f: True)
    with pytest.raises(BuildError, match="fails on every variant of its kernels") as error:
        opened(posing(tmp_path, on_load=everything), tmp_path, strict=True)
    assert "device='cpu'" in str(error.value)
    assert variants(opened(posing(tmp_path, on_load=everything), tmp_path)) == {"cpu"}
    with pytest.raises(BuildError):          # the plan in the cache is no way around it
        opened(posing(tmp_path, on_load=everything), tmp_path, strict=True)


def test_a_failure_that_teaches_nothing_ends_the_search(tmp_path):
    def mute(device: PosingDevice, plan: Plan) -> None:
        raise KernelFault("kernel 'x' failed\n  the log of its compiler")
    device = posing(tmp_path, on_load=mute)
    with pytest.raises(BuildError) as error:
        opened(device, tmp_path)
    assert not isinstance(error.value, KernelFault)
    assert str(error.value) == (
        "Mali-G78 r0p1: its driver fails on the kernels of this model, and compiling it again gave "
        "the same ones\n  kernel 'x' failed\n  the log of its compiler\n"
        "  Use device='cpu', or another driver.")
    assert len(device.loads) == 2
    assert KernelCache(tmp_path).ls() == [] or all(
        e.kind != "plan" for e in KernelCache(tmp_path).ls())


def test_it_gives_up_in_the_end(tmp_path, monkeypatch):
    from jitcl.runtime import specialise
    monkeypatch.setattr(specialise, "ATTEMPTS", 3)
    with pytest.raises(BuildError, match=r"(?s)failed on each of 3 variants .*SIGABRT"):
        opened(posing(tmp_path, on_load=failing(lambda f: True)), tmp_path)


FEATURES = ["half", "local", "barrier", "vec4", "template:gemm_tiled_opencl", "call:exp"]


@pytest.mark.slow
@given(st.lists(st.frozensets(st.sampled_from(FEATURES), min_size=1), max_size=4),
       st.lists(st.frozensets(st.sampled_from(FEATURES), min_size=1), max_size=3))
@settings(deadline=None, max_examples=25,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_driver_gives_a_right_result(tmp_path_factory, at_load, at_run):
    """Whatever combinations of features it fails on, when loading or when running."""
    root = tmp_path_factory.mktemp("any")
    on_load = failing(lambda f: any(bad <= f for bad in at_load))
    on_run = failing(lambda f: any(bad <= f for bad in at_run), stage="run", kind="resources")
    device = posing(root, on_load=on_load, on_run=on_run)
    check(opened(device, root))
    assert len(device.loads) <= 2 * len(VARIANTS) + 1
    again = posing(root, on_load=on_load, on_run=on_run)
    check(opened(again, root))
    assert len(again.loads) == 1


# ---- plans in the cache


def test_a_stored_plan_is_not_used_after_a_kernel_of_it_failed_elsewhere(tmp_path):
    model = opened(posing(tmp_path), tmp_path)
    used = model.plan.kernels[0].entry
    posing(tmp_path).faults.record(Fault(used, "run", "wrong", "differs"))
    device = posing(tmp_path)
    again = opened(device, tmp_path)
    check(again)
    assert not again.report().from_cache
    assert used not in {k.entry for plan in device.loads for k in plan.kernels}


def test_a_stored_plan_that_does_not_load_any_more_is_compiled_anew(tmp_path, local_fails):
    opened(posing(tmp_path), tmp_path)
    device = posing(tmp_path, on_load=local_fails)         # a crash when a binary is loaded, say
    model = opened(device, tmp_path)
    check(model)
    assert variants(model) == {"no-local"} and len(device.loads) == 2


def test_retry_tries_everything_again(tmp_path, local_fails):
    before = opened(posing(tmp_path, on_load=local_fails), tmp_path)
    assert posing(tmp_path).faults.retry() == 2
    device = posing(tmp_path)                              # the driver was repaired
    model = opened(device, tmp_path)
    assert variants(before) != variants(model) == {""}
    assert not model.report().from_cache and model.report().stepped_down == ()
    why = before.why({"x": X, "w": W})
    assert why.hit                                         # of the new epoch


def test_trials_are_for_new_plans_only(tmp_path):
    device = posing(tmp_path)
    opened(device, tmp_path)
    opened(device, tmp_path)
    with config.override(checks=False):
        opened(device, tmp_path, memory="low")
    assert [bool(options.trials) for options in device.load_options] == [True, False, False]


def test_isolation_is_passed_on_and_no_part_of_keys(tmp_path, monkeypatch):
    device = posing(tmp_path)
    opened(device, tmp_path, isolation="always")
    with config.override(isolation="never"):
        assert opened(device, tmp_path).report().from_cache
    opened(device, tmp_path)
    assert [c.isolation for c in device.load_options] == ["always", "never", "untrusted"]


@pytest.mark.parametrize("word", ["sometimes", "", 1])
def test_a_wrong_isolation(tmp_path, word):
    with pytest.raises(OptionError) as error:
        opened(posing(), tmp_path, isolation=word)
    assert str(error.value) == (f"isolation: got {word!r}, wanted one of always, untrusted, never, "
                                "or None for JITCL_ISOLATION")


# ---- at run


def test_a_kernel_that_fails_when_it_runs_is_written_otherwise_and_the_run_repeated(
        tmp_path, caplog):
    resources = failing(lambda f: "local" in f, "CL_OUT_OF_RESOURCES", "run", "resources")
    device = posing(tmp_path, on_run=resources)
    model = opened(device, tmp_path)
    check(model)
    assert len(device.loads) == 2 and variants(model) == {"no-local"}
    (line,) = warnings(caplog)
    assert "its driver failed on 2 kernels (in a run: CL_OUT_OF_RESOURCES); matmul_0, mul" in line
    again = posing(tmp_path, on_run=resources)
    check(opened(again, tmp_path))
    assert len(again.loads) == 1


def test_threads_that_meet_a_fault_at_once_compile_once(tmp_path):
    def resources(device: PosingDevice, plan: Plan) -> None:
        meeting.wait()
        failing(lambda f: "local" in f, "CL_OUT_OF_RESOURCES", "run", "resources")(device, plan)
    meeting = threading.Barrier(4, timeout=30)
    device = posing(tmp_path, on_run=resources)
    model = opened(device, tmp_path)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(check, model) for _ in range(4)]:
            done.result(timeout=60)
    assert len(device.loads) == 2


# ---- memory


def memory(limit: str, at: str = "on_load") -> dict[str, object]:
    """A device that has room for memory plan `limit`, and lower ones."""
    def small(device: PosingDevice, plan: Plan) -> None:
        if limit == "cpu" or (limit == "streamed" and not plan.streamed):
            raise OutOfMemoryError(f"{device.name}: the model needs 9 GiB, the device has 1 GiB\n"
                                   "  Use smaller inputs.")
    return {at: small}


@pytest.mark.parametrize("at", ["on_load", "on_run"])
def test_a_smaller_plan_where_memory_is_short(tmp_path, caplog, at):
    device = posing(tmp_path, **memory("streamed", at))
    model = opened(device, tmp_path)
    check(model)
    assert [p.streamed for p in device.loads] == [False, False, True]
    assert model.plan.streamed and model.report().memory == "streamed"
    assert warnings(caplog)[-1] == (
        "Mali-G78 r0p1: out of memory (the model needs 9 GiB, the device has 1 GiB); the model's "
        "buffers are made when they are needed, which is slower")
    assert "memory: the model's buffers are made when" in str(model.report())
    caplog.clear()
    again = posing(tmp_path, **memory("streamed", at))
    model = opened(again, tmp_path)
    check(model)
    assert [p.streamed for p in again.loads] == [True] and not warnings(caplog)
    assert model.report().memory_why == "the model needs 9 GiB, the device has 1 GiB"


def test_memory_low_is_not_tried_twice(tmp_path):
    device = posing(tmp_path, **memory("streamed"))
    opened(device, tmp_path, memory="low")
    assert [p.streamed for p in device.loads] == [False, True]


@pytest.mark.parametrize("at", ["on_load", "on_run"])
def test_the_cpu_where_nothing_fits(tmp_path, caplog, at):
    device = posing(tmp_path, **memory("cpu", at))
    model = opened(device, tmp_path)
    check(model)
    report = model.report()
    assert (report.device, report.asked, report.memory) == ("cpu", "Mali-G78 r0p1", "cpu")
    assert "small on cpu:" in str(report)
    assert "the whole model runs on the CPU: Mali-G78 r0p1 ran out of memory" in str(report)
    assert warnings(caplog)[-1].endswith("; the whole model runs on the CPU")
    assert report.host == () and report.kernels == len({s.kernel for s in report.steps})
    again = posing(tmp_path, **memory("cpu", at))
    model = opened(again, tmp_path)
    check(model)
    assert again.loads == [] and model.report().device == "cpu" and model.report().from_cache


@pytest.mark.parametrize("at", ["on_load", "on_run"])
def test_a_plan_is_freed_before_a_smaller_one_is_loaded(tmp_path, at):
    alive: list[int] = []

    def small(device: PosingDevice, plan: Plan) -> None:
        alive.append(len(device.alive))
        memory("streamed")["on_load"](device, plan)
    device = posing(tmp_path, **{at: small})
    check(opened(device, tmp_path))
    assert alive == [1, 1, 1]


def test_a_plan_is_freed_before_other_kernels_are_loaded(tmp_path):
    alive: list[int] = []

    def resources(device: PosingDevice, plan: Plan) -> None:
        alive.append(len(device.alive))
        failing(lambda f: "local" in f, stage="run", kind="resources")(device, plan)
    check(opened(posing(tmp_path, on_run=resources), tmp_path))
    assert alive == [1, 1]


def test_a_smaller_plan_is_left_when_the_device_has_room_again(tmp_path):
    def small(device: PosingDevice, plan: Plan) -> None:
        if plan.peak_bytes > device.target.global_memory:
            raise OutOfMemoryError(f"{device.name}: {plan.peak_bytes} bytes are too many")

    def run(room: int) -> tuple[str, int]:
        device = PosingDevice(softmax_of_relu, tmp_path, small,
                              target=replace(TARGET, global_memory=room))
        model = opened(device, tmp_path)
        check(model)
        return model.report().memory, len(device.loads)
    peak = opened(posing(), tmp_path / "other").plan.peak_bytes
    assert [run(peak), run(peak)] == [("", 1), ("", 1)]
    assert run(peak - 1) == ("streamed", 4)         # the stored one, then all variants
    assert [run(peak - 1), run(peak - 1)] == [("streamed", 1)] * 2
    assert [run(peak), run(peak + 1)] == [("", 1)] * 2
    assert [run(1), run(1), run(peak - 1)] == [("cpu", 4), ("cpu", 0), ("streamed", 3)]


def test_strict_runs_out_of_memory(tmp_path):
    with pytest.raises(OutOfMemoryError, match="the model needs 9 GiB, the device has 1 GiB"):
        opened(posing(tmp_path, **memory("cpu")), tmp_path, strict=True)
    check(opened(posing(tmp_path, **memory("cpu")), tmp_path))
    with pytest.raises(OutOfMemoryError):           # the plan in the cache is no way around it
        opened(posing(tmp_path, **memory("cpu")), tmp_path, strict=True)


def test_memory_and_kernels_at_once(tmp_path, caplog):
    def both(device: PosingDevice, plan: Plan) -> None:
        failing(lambda f: "local" in f, LOCAL)(device, plan)
        memory("streamed")["on_load"](device, plan)
    model = opened(posing(tmp_path, on_load=both), tmp_path)
    check(model)
    assert model.plan.streamed and "no-local" in variants(model)
    (line,) = warnings(caplog)
    assert "out of memory" in line and "run without local memory" in line


# ---- devices that are lost


def lost(*at: int) -> object:
    """A hook that loses the device at these of its calls."""
    calls = Counter[str]()

    def hook(device: PosingDevice, plan: Plan) -> None:
        calls["all"] += 1
        if calls["all"] in at:
            raise DeviceLostError(f"{device.name}: CL_DEVICE_NOT_AVAILABLE")
    return hook


@pytest.mark.parametrize("at", ["on_load", "on_run"])
def test_a_lost_device_is_opened_again_and_the_run_repeated(tmp_path, at):
    device = posing(tmp_path, **{at: lost(1)})
    check(opened(device, tmp_path))
    assert device.opened == 1 and len(device.loads) == 2
    assert device.faults.faults == ()


@pytest.mark.parametrize("at", ["on_load", "on_run"])
def test_a_device_that_is_lost_twice_in_a_run_is_given_up(tmp_path, at):
    device = posing(tmp_path, **{at: lost(1, 2)})
    with pytest.raises(DeviceLostError) as error:
        check(opened(device, tmp_path))
    assert str(error.value) == (
        "Mali-G78 r0p1: CL_DEVICE_NOT_AVAILABLE\n  The device was opened again, and lost once "
        "more. Use another device, or look into the system's log for its driver.")
    assert device.opened == 1


def test_runs_after_a_loss_may_lose_it_again(tmp_path):
    device = posing(tmp_path, on_run=lost(1, 3, 5))
    model = opened(device, tmp_path)
    for _ in range(4):
        check(model)
    assert device.opened == 3


def test_other_models_of_the_device_load_again_without_opening_it(tmp_path):
    device = posing(tmp_path, on_run=lost(3))
    one = opened(device, tmp_path)
    two = jitcl.compile(SMALL, device=device, cache_dir=tmp_path, memory="low")
    check(one)
    check(two)
    loads = len(device.loads)
    check(one)                                      # the third run
    assert (device.opened, len(device.loads)) == (1, loads + 1)
    check(two)
    check(two)
    check(one)
    assert (device.opened, len(device.loads)) == (1, loads + 2)


def test_a_device_that_can_not_be_opened_again(tmp_path, monkeypatch):
    device = posing(tmp_path, on_run=lost(1))

    def gone() -> None:
        raise DeviceError("Mali-G78 r0p1: opening it again: CL_DEVICE_NOT_FOUND")
    monkeypatch.setattr(device, "reopen", gone)
    model = opened(device, tmp_path)
    with pytest.raises(JitclError, match="CL_DEVICE_NOT_FOUND"):
        check(model)


EVENTS = st.lists(st.sampled_from(["ok", "lost", "memory", "local", "vec4", "any"]), max_size=10)


@pytest.mark.slow
@given(EVENTS, EVENTS)
@settings(deadline=None, max_examples=12)
def test_anything_may_happen_at_any_time(tmp_path_factory, at_load, at_run):
    """Right results whatever happens in whatever order, but for a device that is lost twice in a
    call; and after everything, the model still runs.
    """
    root = tmp_path_factory.mktemp("chaos")

    def happening(events: list[str]):
        left = iter(events)

        def hook(device: PosingDevice, plan: Plan) -> None:
            event = next(left, "ok")
            if event == "lost":
                raise DeviceLostError(f"{device.name}: lost")
            if event == "memory":
                raise OutOfMemoryError(f"{device.name}: no room")
            if event != "ok":
                failing(lambda f: event in f or event == "any")(device, plan)
        return hook
    device = posing(root, on_load=happening(at_load), on_run=happening(at_run))
    calls = [lambda: opened(device, root), *[lambda: check(opened(device, root))] * 3]
    for call in calls:
        try:
            call()
        except DeviceLostError:
            assert (at_load + at_run).count("lost") >= 2
    device.on_load = device.on_run = None
    check(opened(device, root))
    assert len(device.alive) <= 1


# ---- processes


WORKER = """
import sys
from pathlib import Path
import jitcl
from jitcl.errors import KernelFault
from tests.posing import GRAPH, PosingDevice, failing, softmax_of_relu
from tests.test_stepping_down import check
root = Path(sys.argv[1])

def crash(device, plan):
    with open(root / "attempts", "a") as file:
        file.write("".join(k.entry + "\\n" for k in plan.kernels if "local" in k.body))
    failing(lambda f: "local" in f)(device, plan)

sys.stdin.readline()
check(jitcl.compile(jitcl.parse(GRAPH), device=PosingDevice(softmax_of_relu, root, on_load=crash),
                    cache_dir=root))
print("right")
"""


@pytest.mark.slow
def test_processes_that_meet_a_crash_at_once_meet_it_once(tmp_path):
    started = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], text=True, cwd=ROOT,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for _ in range(3)]
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        out, err = process.communicate(timeout=120)
        assert out == "right\n", err
    attempts = Counter((tmp_path / "attempts").read_text().split())
    assert attempts and set(attempts.values()) == {1}
