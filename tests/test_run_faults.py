"""What happens when a plan runs on a driver that fails: who is blamed, what is raised, what stays.

The codes come from pyopencl's own functions, replaced: no driver returns them on demand.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import jitcl
from jitcl.codegen.generate import generate
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.cpu.host import probe_target
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.opencl import launches, list_devices, open_device
from jitcl.devices.opencl.building import RefusedBuild
from jitcl.devices.opencl.device import OpenClDevice
from jitcl.devices.opencl.programs import ProgramStore
from jitcl.errors import BuildError, DeviceError, DeviceLostError, KernelFault, OutOfMemoryError
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.runtime.memory import laid_out
from tests.caches import Memory
from tests.compiling import plan_on
from tests.test_opencl_device import expected, plan_of
from tests.test_templates_opencl import POSES

DEVICES = list_devices()
pytestmark = pytest.mark.in_turn
OBJECTS = Memory()                  # kernels of the host: built once
X = np.linspace(-1, 1, 1000, dtype=np.float32)
RESOURCES, GROUP, ARGUMENTS = -5, -54, -52
MEMORY, LOST, NVIDIA = -4, -36, -9999
g = GraphBuilder()


def failure(code: int, routine: str) -> Any:
    """The exception that pyopencl makes of a code."""
    kind = cl.MemoryError if code == MEMORY else cl.LogicError if code <= -30 else cl.RuntimeError
    return kind(cl._cl._ErrorRecord(routine, code, ""))


class Driver:
    """Fails on cue. `refuse`: kernel -> code at enqueue; `late`: kernel -> code at the next finish,
    as often as `times` says; `dead`: code of every call.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.refuse: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.times, self.dead, self.unreadable = 1 << 30, 0, 0
        self.started: list[str] = []
        self._pending = 0
        for owner, name in ((cl, "enqueue_nd_range_kernel"), (cl, "enqueue_copy"),
                            (cl.CommandQueue, "finish")):
            replacement = self._replacement(name.removeprefix("enqueue_"), getattr(owner, name))
            patch.setattr(owner, name, replacement)

    def _replacement(self, name: str, original: Any) -> Any:
        before = getattr(self, f"_{name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise failure(self.dead, name)
            code = before(*args)
            if code:
                raise failure(code, name)
            return original(*args, **kwargs)
        return call

    def _nd_range_kernel(self, queue: Any, kernel: Any, *sizes: Any) -> int:
        entry = kernel.function_name
        self.started.append(entry)
        if entry in self.late and self.times > 0:
            self.times -= 1
            self._pending = self.late[entry]
        return self.refuse.get(entry, 0)

    def _copy(self, queue: Any, to: Any, from_: Any, **_: Any) -> int:
        return self.unreadable if isinstance(to, np.ndarray) else 0

    def _finish(self, queue: Any) -> int:
        code, self._pending = self._pending, 0
        return code


@pytest.fixture(params=[d.spec for d in DEVICES], ids=[d.platform.split()[0] for d in DEVICES])
def device(request: Any) -> OpenClDevice:
    return opened(request.param)


def opened(spec: str) -> OpenClDevice:
    """A device that knows of no faults, and keeps what it learns to itself."""
    device = open_device(spec)
    device.session.faults = FaultDatabase(None)
    return device


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def seen(device: OpenClDevice) -> list[tuple[str, str, str, str]]:
    assert device.faults is not None
    return [(f.entry, f.stage, f.kind, f.signature) for f in device.faults.faults]


# ---- codes


@pytest.mark.parametrize("code, kind, name", [
    (RESOURCES, "resources", "OUT_OF_RESOURCES"), (GROUP, "resources", "INVALID_WORK_GROUP_SIZE"),
    (ARGUMENTS, "refused", "INVALID_KERNEL_ARGS"), (-7777, "refused", "error -7777")])
def test_a_refused_launch_names_its_step(device, driver, code, kind, name):
    plan = plan_of()
    plan = replace(plan, steps=(plan.steps[0], replace(plan.steps[1], variant="narrow")))
    executable = device.load(plan)
    driver.refuse["square_1"] = code
    with pytest.raises(KernelFault, match=rf"step 'square_1'[^\n]*{name} at enqueue"):
        executable.run([X])
    assert seen(device) == [("square_1", "run", kind, f"{name} at enqueue")]
    assert device.faults.faults[0].variant == "narrow"
    driver.refuse.clear()
    np.testing.assert_allclose(executable.run([X])[0], expected(X), rtol=2e-7)


@pytest.mark.parametrize("code, name", [(RESOURCES, "OUT_OF_RESOURCES"),
                                        (-14, "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST")])
@pytest.mark.parametrize("entry", ["scale_add_1", "square_1"])
def test_a_late_failure_is_found_out(device, driver, entry, code, name):
    executable = device.load(plan_of())
    driver.late[entry] = code
    with pytest.raises(KernelFault, match=f"{name} at finish"):
        executable.run([X])
    assert [(e, s) for e, s, _, _ in seen(device)] == [(entry, "run")]


def test_a_refusal_that_an_earlier_step_caused(device, driver):
    executable = device.load(plan_of())
    driver.late["scale_add_1"] = driver.refuse["square_1"] = RESOURCES
    with pytest.raises(KernelFault):
        executable.run([X])
    assert [e for e, *_ in seen(device)] == ["scale_add_1"]


def test_a_failure_that_does_not_happen_again(device, driver, caplog):
    executable = device.load(plan_of())
    driver.late["scale_add_1"], driver.times = RESOURCES, 1
    with caplog.at_level(logging.WARNING, "jitcl"):
        (y,) = executable.run([X])
    np.testing.assert_allclose(y, expected(X), rtol=2e-7)
    assert "OUT_OF_RESOURCES" in caplog.text and not seen(device)
    assert driver.started == ["scale_add_1", "square_1"] * 2


def test_a_failure_in_no_step(device, driver):
    executable = device.load(plan_of())
    driver.unreadable = RESOURCES
    with pytest.raises(DeviceError, match="run again, in no step") as caught:
        executable.run([X])
    assert not isinstance(caught.value, (KernelFault, DeviceLostError)) and not seen(device)


@pytest.mark.parametrize("when", ["refuse", "late"])
def test_memory_that_is_missing_at_first_use(device, driver, when):
    executable = device.load(plan_of())
    getattr(driver, when)["square_1"] = MEMORY
    with pytest.raises(OutOfMemoryError):
        executable.run([X])
    assert not seen(device)


def test_faults_of_profiles_and_timings_are_found_too(device, driver):
    executable = device.load(plan_of())
    driver.late["square_1"] = RESOURCES
    for measure in (executable.profile, executable.steady):
        with pytest.raises(KernelFault):
            measure([X])
    assert len(seen(device)) == 1


def test_a_refusal_while_times_are_taken_by_the_clock(device, driver, monkeypatch):
    monkeypatch.setattr(device.session, "target", replace(device.target, trusted_events=False))
    executable = device.load(plan_of())
    settled = executable._settled

    def then_refuse(sources):
        settled(sources)
        driver.refuse["square_1"] = RESOURCES
    monkeypatch.setattr(executable, "_settled", then_refuse)
    with pytest.raises(KernelFault, match="step 'square_1'"):
        executable.profile([X], runs=1)
    assert [e for e, *_ in seen(device)] == ["square_1"]


@pytest.mark.parametrize("old, new", [
    ("__kernel void", "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void"),
    ("int i = ", "barrier(CLK_LOCAL_MEM_FENCE);\n    int i = ")])
def test_a_work_group_that_does_not_fit_is_recorded(device, monkeypatch, old, new):
    """One that is declared, or whose work-items wait for each other."""
    sized = [replace(k, body=k.body.replace(old, new)) for k in plan_of().kernels]
    assert all(new in k.body for k in sized)
    plan = replace(plan_of(), kernels=tuple(sized))
    np.testing.assert_allclose(device.load(plan).run([X])[0], expected(X), rtol=2e-7)
    device = opened(device.session.spec)                 # nothing is known to be good
    monkeypatch.setattr(launches, "fit_work_group", lambda *_: (32,))
    with pytest.raises(KernelFault, match="needs groups of 64"):
        device.load(plan)
    assert {(f.entry, f.kind) for f in device.faults.faults} == {
        ("scale_add_1", "resources"), ("square_1", "resources")}


def test_tiles_in_local_memory_need_all_their_work_items(device, monkeypatch):
    """Half a work-group would compute half of each tile, and nobody would know."""
    a = graph_input("a", TensorType("f32", (64, 48)))
    y = g.matmul(a, const(np.ones((48, 64), np.float32)))
    graph = Graph("product", (a,), (("y", y),))
    posing = replace(device.target, **POSES["gpu"])
    plan = plan_on(device, graph, posing, passes=False)
    monkeypatch.setattr(launches, "fit_work_group", lambda *_: (32,))
    with pytest.raises(KernelFault, match="needs groups of"):
        device.load(plan)
    assert "template:gemm_tiled_opencl" in device.faults.faults[0].features


# ---- a lost device


@pytest.mark.parametrize("code", [LOST, NVIDIA, -2, -34])
def test_a_lost_device_is_opened_again(device, driver, code):
    executable = device.load(plan_of())
    driver.late["square_1"] = code
    with pytest.raises(DeviceLostError, match="what it held is lost"):
        executable.run([X])
    driver.late.clear()
    with pytest.raises(DeviceLostError, match="lost while this model ran"):
        executable.run([X])
    device.reopen()
    with pytest.raises(DeviceLostError, match="opened again since"):
        executable.run([X])
    assert not seen(device)
    (y,) = device.load(plan_of()).run([X])
    np.testing.assert_allclose(y, expected(X), rtol=2e-7)


def test_a_kernel_that_takes_the_device_down_twice_is_known(device, driver):
    """The first loss names no step; after it, the first run waits for each."""
    driver.late["square_1"] = LOST
    with pytest.raises(DeviceLostError):
        device.load(plan_of()).run([X])
    device.reopen()
    with pytest.raises(DeviceLostError, match="step 'square_1'") as caught:
        device.load(plan_of()).run([X])
    assert caught.value.kernel == "square_1"
    assert [(e, k) for e, _, k, _ in seen(device)] == [("square_1", "lost")]
    assert device.faults.rejects("square_1", frozenset())


def test_a_model_goes_round_a_kernel_that_takes_the_device_down(device, driver, tmp_path):
    graph, y, feeds = layers()
    model = jitcl.compile(graph, device=device, cache_dir=tmp_path)
    entry = model.plan.steps[1].kernel
    driver.late[entry] = LOST
    (x,) = feeds.values()
    np.testing.assert_allclose(model.run({"x": x})["y"], evaluate(y, feeds), rtol=2e-5, atol=1e-6)
    assert [(e, k) for e, _, k, _ in seen(device)] == [(entry, "lost")]
    assert device.session.losses == 2 and entry not in [s.kernel for s in model.plan.steps]


def test_a_context_in_which_nothing_works_is_lost(device, driver, monkeypatch):
    executable = device.load(plan_of())
    driver.late["scale_add_1"] = RESOURCES
    monkeypatch.setattr(executable, "_new_queue", lambda: setattr(driver, "dead", RESOURCES))
    with pytest.raises(DeviceLostError, match="before any step"):
        executable.run([X])
    assert not seen(device)


def test_a_build_in_a_dead_context_is_no_fault_of_the_kernel(device, driver, monkeypatch):
    """NVIDIA refuses every build behind an illegal access: recorded, it kept kernels from being
    tried in the next process."""
    session = device.session
    monkeypatch.setattr(session, "store",
                        ProgramStore(session.context, session.handle, session.target))

    def refuse(store: ProgramStore, batch: dict[str, KernelSource]) -> None:
        raise RefusedBuild(BuildError("BUILD_PROGRAM_FAILURE"), "refused", "no log")

    monkeypatch.setattr(ProgramStore, "build", refuse)
    driver.dead = NVIDIA
    with pytest.raises(DeviceLostError, match=r"(?s)building kernel '.*what it held is lost"):
        device.load(plan_of())
    assert not seen(device)
    driver.dead = 0
    with pytest.raises(KernelFault):
        device.load(plan_of())
    assert {e for e, *_ in seen(device)} == {k.entry for k in plan_of().kernels}


# ---- memory


class Allocations:
    """Counts the bytes of buffers; the one numbered `fail` is refused."""

    def __init__(self, patch: pytest.MonkeyPatch, fail: int = -1) -> None:
        self.live = self.peak = self.made = 0
        self.fail = fail
        counts = self

        class Counted(cl.Buffer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                if counts.made == counts.fail:
                    raise failure(MEMORY, "create_buffer")
                super().__init__(*args, **kwargs)
                counts.made += 1
                counts.live += self.size
                counts.peak = max(counts.peak, counts.live)

            def release(self) -> None:
                counts.live -= self.size
                super().release()

        patch.setattr(cl, "Buffer", Counted)


def test_a_run_that_fails_makes_room(device, driver, monkeypatch):
    """For the plan that takes its place; run again, it takes its memory back."""
    allocations = Allocations(monkeypatch)
    executable = device.load(plan_of())
    for code, error in ((MEMORY, OutOfMemoryError), (RESOURCES, KernelFault)):
        assert allocations.live >= 3 * 4000
        driver.refuse["square_1"] = code
        with pytest.raises(error):
            executable.run([X])
        assert allocations.live == 0
        driver.refuse.clear()
        np.testing.assert_allclose(executable.run([X])[0], expected(X), rtol=2e-7)


@pytest.mark.parametrize("number", range(4))
def test_nothing_stays_of_a_load_that_fails(device, monkeypatch, number):
    allocations = Allocations(monkeypatch, fail=number)
    with pytest.raises(OutOfMemoryError):
        device.load(plan_of())
    assert allocations.made == number and allocations.live == 0


def test_a_closed_executable_holds_nothing(device, monkeypatch):
    allocations = Allocations(monkeypatch)
    with device.load(plan_of()) as executable:
        executable.run([X])
        assert allocations.live >= 3 * 4000
    assert allocations.live == 0
    executable.close()
    with pytest.raises(DeviceError, match="was closed"):
        executable.run([X])


# ---- streamed


def convolutions(count: int = 6) -> tuple[Graph, dict[str, np.ndarray]]:
    """Layers with a residual from the first to the last; outputs of the middle too, a constant and
    the input itself.
    """
    rng = np.random.default_rng(5)
    x = graph_input("x", TensorType("f32", (1, 8, 12, 20)))
    y, middle = x, x
    for n in range(count):
        w = const((rng.standard_normal((8, 8, 3, 3)) / 9).astype(np.float32))
        y = g.tanh(g.conv(y, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1))
        middle = y if n == count // 2 else middle
    outputs = (("y", g.add(y, x)), ("middle", middle), ("x", x),
               ("c", const(np.arange(5, dtype=np.float32))))
    return Graph("convolutions", (x,), outputs), {
        "x": rng.standard_normal((1, 8, 12, 20)).astype(np.float32)}


def test_streamed_plans_give_equal_results_in_less_memory(device, monkeypatch):
    graph, feeds = convolutions()
    plan = plan_on(device, graph, passes=False)
    streamed = replace(plan, streamed=True, slots=())
    want = device.load(plan).run([feeds["x"]])
    allocations = Allocations(monkeypatch)
    executable = device.load(streamed)
    assert allocations.live == 0
    for _ in range(2):
        for a, b in zip(executable.run([feeds["x"]]), want):
            assert a.tobytes() == b.tobytes() and a.shape == b.shape
        assert allocations.live == 0
    assert allocations.peak <= streamed.peak_bytes + 16 < plan.peak_bytes / 1.5


def test_streamed_plans_are_measured(device, driver):
    graph, feeds = convolutions()
    plan = replace(plan_on(device, graph, passes=False), streamed=True)
    executable = device.load(plan)
    begin = time.perf_counter()
    times = executable.profile([feeds["x"]], runs=2)
    assert [t.name for t in times] == [s.name for s in plan.steps]
    assert all(0 < t.seconds < time.perf_counter() - begin for t in times)


def test_faults_of_streamed_plans(device, driver, monkeypatch):
    allocations = Allocations(monkeypatch)
    executable = device.load(replace(plan_of(), streamed=True))
    driver.late["square_1"] = RESOURCES
    with pytest.raises(KernelFault, match="at finish"):
        executable.run([X])
    assert [e for e, *_ in seen(device)] == ["square_1"] and allocations.live == 0
    driver.late.clear()
    allocations.fail = allocations.made + 2
    with pytest.raises(OutOfMemoryError):
        executable.run([X])
    assert allocations.live == 0
    allocations.fail = -1
    np.testing.assert_allclose(executable.run([X])[0], expected(X), rtol=2e-7)


def test_a_streamed_plan_fits_where_the_whole_does_not(device, monkeypatch):
    graph, feeds = convolutions()
    plan = plan_on(device, graph, passes=False)
    streamed = replace(plan, streamed=True)
    small = replace(device.target, global_memory=streamed.peak_bytes)
    monkeypatch.setattr(device.session, "target", small)
    with pytest.raises(OutOfMemoryError, match="the model needs"):
        device.load(plan)
    device.load(streamed).run([feeds["x"]])


# ---- steps on the host


def mixed(device: OpenClDevice, graph: Graph, hosts: set[int]) -> Plan:
    """The plan of a graph, some of whose groups are on the CPU path; generated loops everywhere."""
    graph = run_passes(graph, pipeline(device.target, Options()))
    groups = fuse(graph, device.target)
    ours = generate(graph, groups, device.target, templates=False).plan
    theirs = generate(graph, groups, probe_target(), templates=False).plan
    assert [s.buffers for s in ours.steps] == [s.buffers for s in theirs.steps]
    steps = tuple(replace(b if n in hosts else a, group=n)
                  for n, (a, b) in enumerate(zip(ours.steps, theirs.steps)))
    used = {s.kernel for s in steps}
    kernels = tuple(k for k in (*ours.kernels, *theirs.kernels) if k.entry in used)
    plan = replace(ours, steps=steps, kernels=kernels)
    return laid_out(plan, device, "normal")


def layers() -> tuple[Graph, Node, dict[Node, np.ndarray]]:
    """Six kernels in a row, a residual across, a concatenation written in parts."""
    rng = np.random.default_rng(6)
    x = graph_input("x", TensorType("f32", (6, 40)))
    y: Node = x
    for n in range(4):
        w = const((rng.standard_normal((40, 40)) / 6).astype(np.float32))
        y = g.matmul(g.softmax(y, axis=-1) if n % 2 else y, w)
    y = g.concat(g.add(y, x), g.softmax(x, axis=-1), axis=0)
    return Graph("layers", (x,), (("y", y),)), y, {
        x: rng.standard_normal((6, 40)).astype(np.float32)}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("hosts", [{2}, {0}, {1, 2, 4}, {3, 5}, set(range(20))],
                         ids=["middle", "first", "several", "last", "all"])
def test_steps_on_the_host(device, hosts, streamed):
    graph, y, feeds = layers()
    plan = replace(mixed(device, graph, hosts), streamed=streamed)
    assert {k.language for k in plan.kernels} == (
        {"numba"} if len(hosts) > 9 else {"opencl", "numba"})
    executable = device.load(plan, OBJECTS)
    x, = feeds.values()
    for scale in (1, 2):
        (got,) = executable.run([scale * x])
        want = evaluate(y, {n: scale * a for n, a in feeds.items()})
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    times = executable.profile([x], runs=1)
    assert [t.name for t in times] == [s.name for s in plan.steps]
    assert all(t.seconds > 0 for t in times)


def test_steps_of_one_group_stay_on_the_host(device, monkeypatch):
    """What only they touch never reaches the device."""
    graph, y, feeds = layers()
    plan = mixed(device, graph, {1, 2, 3})
    steps = tuple(replace(s, group=1) if n in (1, 2, 3) else s for n, s in enumerate(plan.steps))
    inner = {plan.buffers[b].name for s in plan.steps[1:3] for b in s.writes}
    executable = device.load(replace(plan, steps=steps, streamed=True), OBJECTS)
    (section,) = [a for a in executable._launches if not isinstance(a, launches.Launch)]
    assert len(section.plan.steps) == 3 and len(inner) == 2
    assert not inner & {plan.buffers[b].name for b in section.buffers}
    (got,) = executable.run(list(feeds.values()))
    np.testing.assert_allclose(got, evaluate(y, feeds), rtol=2e-5, atol=1e-6)


SECOND_HALF = KernelSource("second_1", """
from jitcl.devices.cpu.vector import *


def second_1(args, tid, nthreads):
    y = ptr(args, 0, "f32")
    for i in range(share(4, tid, nthreads), share(4, tid + 1, nthreads)):
        store(y, i + 4, f32(9.0))
""", "numba")
FIRST_HALF = KernelSource("first_1", """
__kernel void first_1(__global float *y) { y[get_global_id(0)] = get_global_id(0); }
""", "opencl")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_buffer_that_both_sides_write_in_part(device, streamed):
    steps = (Step("first", "first_1", (0,), (), (4,), (1,), writes=(0,)),
             Step("second", "second_1", (0,), writes=(0,)))
    plan = Plan((), (TensorSpec("y", "f32", (8,), 0),), (FIRST_HALF, SECOND_HALF), steps,
                (BufferSpec("y", "f32", (8,), 32, "output"),), (), streamed=streamed)
    (y,) = device.load(plan, OBJECTS).run([])
    assert y.tolist() == [0, 1, 2, 3, 9, 9, 9, 9]


def test_a_fault_before_a_step_on_the_host(device, driver):
    graph, _, feeds = layers()
    plan = mixed(device, graph, {2})
    executable = device.load(plan, OBJECTS)
    culprit = plan.steps[1].kernel
    driver.late[culprit] = RESOURCES
    with pytest.raises(KernelFault, match="at finish"):
        executable.run(list(feeds.values()))
    assert [e for e, *_ in seen(device)] == [culprit]


# ---- what trials rely on


def test_an_output_may_be_fed(device):
    """So that a kernel that never ran shows: its output is what was fed."""
    source = KernelSource("half_1", "__kernel void half_1(__global float *y)"
                          "{ int i = get_global_id(0); if (i < 4) y[i] = i; }", "opencl")
    spec = TensorSpec("y", "f32", (8,), 0)
    plan = Plan((spec,), (spec,), (source,),
                (Step("half", "half_1", (0,), (), (8,), (1,), writes=(0,)),),
                (BufferSpec("y", "f32", (8,), 32, "output"),), ())
    for streamed in (False, True):
        (y,) = device.load(replace(plan, streamed=streamed)).run([np.full(8, 7, np.float32)])
        assert y.tolist() == [0, 1, 2, 3, 7, 7, 7, 7]
