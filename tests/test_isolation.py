"""Plans loaded with care: who builds which kernel, what a failure teaches, and what was proven once
needs no worker again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitcl import config
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.faults import BINARIES, FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl import list_devices, pocl, trust
from jitcl.devices.opencl.device import OpenClDevice
from jitcl.devices.opencl.isolation import Isolated, WorkerFault, isolated
from jitcl.devices.opencl.probe import probe_target
from jitcl.devices.opencl.programs import KERNEL_KIND, PROGRAM_KIND, sealed
from jitcl.devices.opencl.proving import Proving
from jitcl.devices.opencl.trial_plans import step_plan
from jitcl.errors import KernelFault, OutOfMemoryError
from jitcl.target import Target
from tests.caches import Memory
from tests.devices import found
from tests.drivers import posing

DEVICES = list_devices()
POCL = found("opencl:pocl")
ROOT = Path(__file__).resolve().parent.parent

# -- trust -------------------------------------------------------------------------------------

KNOWN = Target("opencl", "x", trusted=True, proven=("half", "vec4"), suspects=("vec8",))


@pytest.mark.parametrize(("mode", "features", "target", "why"), [
    ("never", {"half", "vec16"}, replace(KNOWN, trusted=False), ""),
    ("always", set(), KNOWN, "isolation is 'always'"),
    ("untrusted", set(), replace(KNOWN, trusted=False), "not known good"),
    ("untrusted", {"half", "vec4", "call:exp", "template:x", "int64"}, KNOWN, ""),
    ("untrusted", {"half", "vec16", "local"}, KNOWN, "no probe has proven: local, vec16"),
    ("untrusted", {"vec8"}, replace(KNOWN, proven=("vec8",)), "suspected on this driver: vec8"),
    ("untrusted", {"call:erf"}, replace(KNOWN, suspects=("call:erf",)), "call:erf"),
])
def test_who_builds_a_kernel(mode, features, target, why):
    found = trust.isolated(mode, frozenset(features), target)
    assert why in found and bool(why) == bool(found)


@pytest.mark.parametrize(("made_by", "modes"), [
    ("worker", {"always", "untrusted", "never"}), ("trusted", {"untrusted", "never"}),
    ("unproven", {"never"}), ("", set()), ("nonsense", set())])
def test_whose_binaries_the_driver_gets_here(made_by, modes):
    assert {m for m in ("always", "untrusted", "never") if trust.acceptable(made_by, m)} == modes


def test_what_is_built_without_trust_is_not_taken_for_trusted():
    assert trust.maker("untrusted", KNOWN) == trust.maker("always", KNOWN) == "trusted"
    assert trust.maker("never", KNOWN) == "unproven"
    assert trust.maker("untrusted", replace(KNOWN, trusted=False)) == "unproven"


# -- plans on the drivers that are here ---------------------------------------------------------

def source(name: str, expression: str) -> KernelSource:
    """y = f(x), one work-item an element."""
    return KernelSource(name, f"""
        __kernel void {name}(__global const float *x, __global float *y, int n)
        {{
            int i = get_global_id(0);
            if (i < n) y[i] = {expression};
        }}""", "opencl")


DOUBLE, SQUARE = source("double_1", "2.0f * x[i]"), source("square_1", "x[i] * x[i]")
BROKEN = source("broken_1", "nonsense + x[i]")
N = 100


def chain(*kernels: KernelSource) -> Plan:
    """Each kernel on the result of the one before."""
    last = len(kernels)
    buffers = tuple(BufferSpec(
        f"b{i}", "f32", (N,), 4 * N, "input" if i == 0 else "output" if i == last else "temp",
        slot=i - 1 if 0 < i < last else -1) for i in range(last + 1))
    steps = tuple(Step(f"step_{i}", k.entry, (i, i + 1), (N,), (128,), (32,), writes=(i + 1,),
                       group=i, variant="plain") for i, k in enumerate(kernels))
    return Plan((TensorSpec("b0", "f32", (N,), 0),), (TensorSpec("y", "f32", (N,), last),),
                kernels, steps, buffers, (4 * N,) * (last - 1))


X = np.linspace(-2, 2, N, dtype=np.float32)


@dataclass
class Compared:
    """A trial of a plan that finds wrong what it is told to."""

    plan: Plan
    verdict: str = ""
    subject: str = "step_0"
    reason: str = ""
    seen: list[np.ndarray] = field(default_factory=list)

    @property
    def entries(self) -> frozenset[str]:
        return frozenset(k.entry for k in self.plan.kernels)

    def prepare(self) -> None:
        pass

    def inputs(self) -> list[np.ndarray]:
        return [X]

    def wrong(self, outputs: Sequence[np.ndarray]) -> str:
        self.seen += outputs
        return self.verdict


@pytest.fixture(scope="module", params=DEVICES, ids=[d.platform.split()[0] for d in DEVICES])
def found(request):
    return request.param


def opened(found: Any, faults: FaultDatabase | None = None, **fields: Any) -> OpenClDevice:
    """A device that nothing is known of, trusted, with some fields of its Target changed."""
    target = replace(probe_target(found), **{"trusted": True, "suspects": (), **fields})
    return OpenClDevice(found, target, faults or FaultDatabase(None))


def test_all_ways_give_the_same_results(found):
    ways = [("never", {}), ("untrusted", {}), ("always", {"reloadable": True}),
            ("always", {"reloadable": False}), ("untrusted", {"trusted": False})]
    for mode, fields in ways:
        device = opened(found, **fields)
        got = device.load(chain(DOUBLE, SQUARE), Memory(), options=LoadOptions(mode)).run([X])
        np.testing.assert_array_equal(got[0], (2 * X) ** 2)
        assert device.faults.faults == ()


def test_a_trusted_driver_needs_no_worker(found, monkeypatch):
    monkeypatch.setattr(Isolated, "call", lambda *a, **k: pytest.fail("a worker was asked"))
    device = opened(found)
    trials = (Compared(chain(DOUBLE)), Compared(chain(SQUARE)))
    device.load(chain(DOUBLE, SQUARE), Memory(), options=LoadOptions("untrusted", trials))
    np.testing.assert_array_equal(trials[0].seen[0], 2 * X)
    np.testing.assert_array_equal(trials[1].seen[0], X * X)
    assert device.counters["programs_built_from_source"] == 1


@pytest.mark.parametrize("fields", [{"reloadable": True}, {"reloadable": False},
                                    {"reloadable": True, "trusted": False},
                                    {"reloadable": False, "trusted": False},
                                    {"cached_binaries": False, "trusted": False}],
                         ids=lambda fields: ",".join(f"{k}={v}" for k, v in fields.items()))
def test_what_was_proven_needs_no_worker_again(found, fields, monkeypatch):
    """With a binary it is loaded, without one it is built from source; nothing is tried."""
    plan, cache, faults = chain(DOUBLE, SQUARE), Memory(), FaultDatabase(None)
    trial = Compared(plan)
    opened(found, faults, **fields).load(plan, cache, options=LoadOptions("always", (trial,)))
    np.testing.assert_array_equal(trial.seen[0], (2 * X) ** 2)
    monkeypatch.setattr(Isolated, "call", lambda *a, **k: pytest.fail("a worker was asked"))
    again, silent = opened(found, faults, **fields), Compared(plan, "must not be asked")
    (y,) = again.load(plan, cache, options=LoadOptions("always", (silent,))).run([X])
    np.testing.assert_array_equal(y, (2 * X) ** 2)
    assert not silent.seen
    binaries = fields.get("cached_binaries", True) and (
        fields.get("reloadable", True) or fields.get("trusted", True))
    assert bool(again.counters["programs_built_from_source"]) != binaries
    assert any(kind == PROGRAM_KIND for kind, _ in cache.data) == binaries


def test_what_no_worker_has_proven_never_reaches_an_untrusted_driver_here(found, monkeypatch):
    """Neither its source nor a binary that was made without a worker."""
    plan, cache = chain(DOUBLE, SQUARE), Memory()
    opened(found, trusted=False).load(plan, cache, options=LoadOptions("never"))
    assert any(kind == KERNEL_KIND for kind, _ in cache.data)

    def crash(*_: Any, **__: Any) -> None:
        raise WorkerFault("crash", "build", "double_1", "SIGSEGV")

    monkeypatch.setattr(Isolated, "call", crash)
    device = opened(found, trusted=False)
    with pytest.raises(KernelFault):
        device.load(plan, cache, options=LoadOptions("untrusted"))
    assert set(device.counters.values()) == {0}


def test_a_binary_that_is_refused_goes_the_way_of_new_kernels(found):
    plan, cache, faults = chain(DOUBLE), Memory(), FaultDatabase(None)
    opened(found, faults, trusted=False).load(plan, cache, options=LoadOptions("untrusted"))
    for (kind, key) in [k for k in cache.data if k[0] == PROGRAM_KIND]:
        cache.data[kind, key] = sealed(b"of another driver" * 100)
    device, trial = opened(found, faults, trusted=False), Compared(plan)
    device.load(plan, cache, options=LoadOptions("untrusted", (trial,))).run([X])
    assert device.counters["binaries_refused"] == 1 and len(trial.seen) == 1
    assert device.counters["programs_built_from_source"] == 0     # the worker's was loaded
    third = opened(found, faults, trusted=False)
    third.load(plan, cache, options=LoadOptions("untrusted"))
    assert third.counters["programs_loaded_from_binary"] == 1


@pytest.mark.parametrize("fields", [{}, {"trusted": False}], ids=["trusted", "untrusted"])
def test_all_failures_are_collected_and_recorded(found, fields):
    device = opened(found, **fields)
    plan = chain(DOUBLE, BROKEN, SQUARE, source("broken_2", "also_nonsense + x[i]"))
    with pytest.raises(KernelFault) as caught:
        device.load(plan, Memory(), options=LoadOptions("untrusted"))
    text = str(caught.value)
    assert "2 of 4 kernels" in text and "'broken_1'" in text and "'broken_2'" in text
    assert "nonsense" in text and ">   5 |" in text         # the log and the numbered source
    assert {(f.entry, f.stage, f.kind, f.variant) for f in device.faults.faults} == {
        ("broken_1", "build", "refused", "plain"), ("broken_2", "build", "refused", "plain")}
    assert all("nonsense" in f.log for f in device.faults.faults)
    before = device.counters
    with pytest.raises(KernelFault, match="not tried again"):
        device.load(plan, Memory(), options=LoadOptions("untrusted"))
    assert device.counters == before


@pytest.mark.parametrize("mode", ["untrusted", "always"])
def test_wrong_results_are_faults_and_are_not_kept(found, mode):
    plan, cache, device = chain(DOUBLE, SQUARE), Memory(), opened(found)
    trials = (Compared(chain(DOUBLE), "element 7: got 1, wanted 2\nmore"),
              Compared(chain(SQUARE)))
    with pytest.raises(KernelFault, match="wrong in the check: element 7: got 1, wanted 2"):
        device.load(plan, cache, options=LoadOptions(mode, trials))
    (fault,) = device.faults.faults
    assert (fault.entry, fault.stage, fault.kind) == ("double_1", "check", "wrong")
    assert fault.signature == "element 7: got 1, wanted 2" and "more" in fault.log
    kept = {k for (kind, k), data in cache.data.items() if kind == KERNEL_KIND and b"by" in data}
    assert kept == {device.session.store.key(SQUARE)}
    with config.override(checks=False):
        opened(found).load(plan, Memory(), options=LoadOptions(mode, trials)).run([X])


def test_a_kernel_that_was_right_elsewhere_is_not_blamed(found):
    device = opened(found)
    trials = (Compared(chain(DOUBLE)), Compared(chain(DOUBLE, SQUARE), "bad"))
    with pytest.raises(KernelFault):
        device.load(chain(DOUBLE, SQUARE), options=LoadOptions("untrusted", trials))
    assert [f.entry for f in device.faults.faults] == ["square_1"]


def test_unchecked_kernels_are_checked_once_checks_are_on(found):
    plan, cache, trial = chain(DOUBLE), Memory(), Compared(chain(DOUBLE), "wrong")
    with config.override(checks=False):
        opened(found).load(plan, cache, options=LoadOptions("untrusted", (trial,)))
    assert not trial.seen
    with pytest.raises(KernelFault, match="wrong"):
        opened(found).load(plan, cache, options=LoadOptions("untrusted", (trial,)))


def test_unproven_features_go_to_workers_and_become_known(found, monkeypatch):
    halves = KernelSource("halves_1", """
        __kernel void halves_1(__global const float *x, __global float *y, int n)
        {
            __local ushort bits[32];
            __local half *kept = (__local half *)bits;
            int i = get_global_id(0), l = get_local_id(0);
            vstore_half(i < n ? x[i] : 0.0f, l, kept);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (i < n) y[i] = vload_half(l, kept);
        }""", "opencl")
    call, asked = Isolated.call, []

    def listen(self: Isolated, request: tuple[str, Any], *a: Any, **k: Any) -> Any:
        asked.append([s.entry for s in request[1].kernels])
        return call(self, request, *a, **k)

    monkeypatch.setattr(Isolated, "call", listen)
    device, trial = opened(found, proven=("barrier",)), Compared(chain(halves))
    device.load(chain(DOUBLE, halves), Memory(), options=LoadOptions("untrusted", (trial,)))
    assert asked == [["halves_1"]]
    assert device.faults.good >= {"barrier", "half_storage", "local"}


def test_kernels_with_the_blamed_features_need_no_crash_of_their_own(found, monkeypatch):
    """Those with the fewest features are tried first: what is good is known by then."""
    wide = [source(f"wide_{i}", f"x[i] + ((float16)({i}.0f)).x") for i in range(4)]
    tried: list[str] = []

    def call(self: Isolated, request: tuple[str, Any], *_: Any, **__: Any) -> None:
        (kernel,) = request[1].kernels
        tried.append(kernel.entry)
        if "wide" in kernel.entry:
            raise WorkerFault("crash", "build", kernel.entry, "SIGABRT: LLVM ERROR: no")
        raise WorkerFault("refused", "build", kernel.entry, "as the test has it")

    monkeypatch.setattr(Isolated, "call", call)
    monkeypatch.setattr(isolated(found), "size", 1)
    device = opened(found, trusted=False)
    with pytest.raises(KernelFault, match="5 of 5"):
        device.load(chain(*wide, DOUBLE), options=LoadOptions("untrusted"))
    assert tried[0] == "double_1" and len(tried) == 2
    assert "vec16" in device.faults.rejects("another", frozenset(("vec16", "call:exp")))


def test_a_driver_that_cannot_reload_is_asked_once(found, monkeypatch):
    """A crash over its own binary is no fault of a kernel; the next process knows."""
    call, jobs = Isolated.call, []

    def crash_at_load(self: Isolated, request: tuple[str, Any], *a: Any, **k: Any) -> Any:
        jobs.append(bool(request[1].wanted))
        if request[1].wanted:
            raise WorkerFault("crash", "load", "double_1", "SIGSEGV")
        return call(self, request, *a, **k)

    monkeypatch.setattr(Isolated, "call", crash_at_load)
    monkeypatch.setattr(isolated(found), "size", 1)
    device, cache = opened(found, trusted=False), Memory()
    device.load(chain(DOUBLE, SQUARE), cache, options=LoadOptions("untrusted")).run([X])
    assert jobs == [True, False, False]
    (fault,) = device.faults.faults
    assert (fault.entry, fault.stage, fault.features) == (BINARIES, "load", ())
    assert not any(kind == PROGRAM_KIND for kind, _ in cache.data)
    assert device.faults.rejects("double_1", frozenset(("vec4",))) == ""


def test_launches_that_lack_memory_are_repeated_alone(found, monkeypatch):
    call, tries, times = Isolated.call, [], [2]

    def scarce(self: Isolated, request: tuple[str, Any], *a: Any, **k: Any) -> Any:
        tries.append(request[1].kernels[0].entry)
        if times[0] > 0:
            times[0] -= 1
            raise WorkerFault("memory", "launch", "", "no", "the device has no memory left")
        return call(self, request, *a, **k)

    monkeypatch.setattr(Isolated, "call", scarce)
    opened(found).load(chain(DOUBLE, SQUARE), options=LoadOptions("always")).run([X])
    assert sorted(tries) == ["double_1"] * 2 + ["square_1"] * 2
    times[0] = 9
    device = opened(found)
    with pytest.raises(OutOfMemoryError, match="no memory left"):
        device.load(chain(DOUBLE, SQUARE), options=LoadOptions("always"))
    assert device.faults.faults == ()


@pytest.mark.parametrize("losses", [1, 9])
def test_a_lost_device_is_a_kernels_fault_the_second_time(found, monkeypatch, losses):
    call, left = Isolated.call, [losses]

    def lose(self: Isolated, request: tuple[str, Any], *a: Any, **k: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise WorkerFault("lost", "launch", "double_1", "DEVICE_NOT_AVAILABLE")
        return call(self, request, *a, **k)

    monkeypatch.setattr(Isolated, "call", lose)
    device = opened(found)
    if losses == 1:
        device.load(chain(DOUBLE), options=LoadOptions("always")).run([X])
        assert device.faults.faults == ()
        return
    with pytest.raises(KernelFault, match="lost in the launch"):
        device.load(chain(DOUBLE), options=LoadOptions("always"))
    assert [f.kind for f in device.faults.faults] == ["lost"] and left == [7]


def test_a_trial_of_trusted_and_other_kernels_runs_once(found):
    """In a worker, and all its kernels count as compared."""
    other = source("other_1", "x[i] + ((float16)(1.0f)).x")
    device = opened(found, proven=())
    trial = Compared(chain(DOUBLE, other))
    device.load(chain(DOUBLE, other), Memory(), options=LoadOptions("untrusted", (trial,)))
    assert len(trial.seen) == 1
    assert device.session.store.checked == {device.session.store.key(k) for k in (DOUBLE, other)}


@pytest.mark.parametrize("mode", ["untrusted", "always"])
def test_progress_counts_kernels(found, mode):
    seen: list[tuple[int, int, str]] = []
    opened(found).load(chain(DOUBLE, SQUARE), None, lambda *a: seen.append(a), LoadOptions(mode))
    total = {"untrusted": 2 + 1, "always": 2}[mode]         # kernels, a program that is kept
    assert seen[0][:2] == (0, total) and seen[-1][:2] == (total, total)
    assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)


def test_an_interrupt_ends_the_jobs_and_records_nothing(found, monkeypatch):
    device = opened(found)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    given_up: list[object] = []
    abort = Isolated.abort

    def noted(pool: Isolated, owner: object) -> None:
        given_up.append(owner)
        abort(pool, owner)

    monkeypatch.setattr(Isolated, "abort", noted)
    monkeypatch.setattr(Proving, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.load(chain(DOUBLE, SQUARE), options=LoadOptions("always"))
    assert [type(owner) for owner in given_up] == [Proving]
    assert not isolated(found)._busy and device.faults.faults == ()


def test_a_step_alone_is_a_plan():
    plan = chain(DOUBLE, SQUARE)
    alone = step_plan(plan, "square_1")
    assert alone is not None
    assert [b.kind for b in alone.buffers] == ["input", "output"]
    assert alone.kernels == (SQUARE,) and alone.steps[0].buffers == (0, 1)
    assert step_plan(plan, "absent") is None
    index = step_plan(replace(plan, constants={0: X}), "double_1")
    assert index is not None and index.constants[0] is X and index.inputs == ()


# -- a compiler that really dies ----------------------------------------------------------------

DEADLY = """
from jitcl.codegen.plan import *
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl import open_device
from jitcl.devices.opencl.isolation import isolated
from jitcl.errors import KernelFault
wide = KernelSource("wide_1", '''__kernel void wide_1(__global const float *x, __global float *y)
    { float16 a = vload16(0, x); vstore16(fma(a, a, exp(a) * a), 0, y); }''', "opencl")
buffers = tuple(BufferSpec(n, "f32", (16,), 64, k) for n, k in (("x", "input"), ("y", "output")))
plan = Plan((TensorSpec("x", "f32", (16,), 0),), (TensorSpec("y", "f32", (16,), 1),), (wide,),
            (Step("wide", "wide_1", (0, 1), (), (1,), (1,), writes=(1,)),), buffers, ())
device = open_device("opencl:pocl")
try:
    device.load(plan, options=LoadOptions("untrusted"))
except KernelFault as error:
    print(error)
print(isolated(device.session.found).started, "workers")
for fault in device.faults.faults:
    print(fault.kind, fault.stage, fault.entry, "vec16" in fault.features, fault.signature)
"""


def deadly(cache: Path) -> str:
    env = {**os.environ, "JITCL_CACHE_DIR": str(cache), "JITCL_POCL_CPU": "znver3",
           "JITCL_BUILD_SECONDS": "4"}
    done = subprocess.run([sys.executable, "-c", DEADLY], cwd=ROOT, env=env, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(POCL is None or not POCL.handle.driver_version.startswith("3.0"),
                    reason="PoCL 3.0 is not installed")
@pytest.mark.skipif("avx512f" not in pocl.host_features(), reason="the CPU has no AVX-512")
@pytest.mark.long                       # test_real_abort.py has the same death, through the runtime
def test_sixteen_lanes_end_pocl_3_and_nobody_else(tmp_path):
    """It aborts, segfaults or hangs over them on this CPU name, as on AMD's Zen 4."""
    text = deadly(tmp_path)
    assert "1 of 1 kernels" in text and "\n0 workers" not in text
    kind, stage, entry, wide, signature = text.splitlines()[-1].split(" ", 4)
    assert kind in ("crash", "hang") and stage in ("build", "load", "launch")
    assert entry == "wide_1"
    assert wide == "True" and (kind == "hang" or signature.startswith("SIG"))
    again = deadly(tmp_path)
    assert "not tried again" in again and "\n0 workers" in again


# -- a driver that poses as a Mali, and fails by rules --------------------------------------------

POSED = """
import json
from dataclasses import replace
from tests.caches import Memory
from tests.test_isolation import Compared, X, chain, source
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl import open_device
from jitcl.devices.opencl.isolation import isolated
from jitcl.errors import KernelFault
import numpy as np

class Checked(Compared):
    def wrong(self, outputs):
        return "" if np.array_equal(outputs[0], 2 * X) else "not twice x"

device = open_device("opencl")
plan = chain(source("{name}", "2.0f * x[i]"))
try:
    (y,) = device.load(plan, Memory(), options=LoadOptions("untrusted", (Checked(plan),))).run([X])
    right = bool(np.array_equal(y, 2 * X))
except KernelFault as error:
    right = False
faults = [(f.entry, f.stage, f.kind, f.signature) for f in device.faults.faults]
print(json.dumps([device.name, right, [f for f in faults if "{name}" in f[0]]]))
"""
HAPPENS = {                  # rule -> stage, kind and part of the signature of the fault
    "abort": ("build", "crash", "SIGABRT: LLVM ERROR: Cannot select: intrinsic"),
    "segv": ("build", "crash", "SIGSEGV"),
    "hang:30": ("build", "hang", "no end after 3 s"),
    "fail": ("build", "refused", "error"),
    "abort at=launch": ("launch", "crash", "SIGABRT"),
    "segv at=launch": ("launch", "crash", "SIGSEGV"),
    "hang:30 at=launch": ("launch", "hang", "no end after 3 s"),
    "oor": ("launch", "resources", "OUT_OF_RESOURCES"),
    "late": ("launch", "resources", "OUT_OF_RESOURCES"),
    "drop": ("check", "wrong", "not twice x"),
}
QUICK = ("", "abort", "segv at=launch", "hang:30", "oor", "drop")


@pytest.fixture(scope="module")
def posed_cache(tmp_path_factory):
    """Shared by the scenarios, so that the device is probed once."""
    return tmp_path_factory.mktemp("posed")


@pytest.mark.sampled(quick=3, slow=2)
@posing.needed()
@pytest.mark.parametrize("rule", [
    pytest.param(rule, marks=() if rule in QUICK else pytest.mark.slow) for rule in ("", *HAPPENS)])
def test_a_driver_that_fails_is_told_apart_by_how(posed_cache, rule):
    name = "kernel_" + "".join(c if c.isalnum() else "_" for c in rule)
    done = posing.run_python(
        POSED.format(name=name), cache=posed_cache, pose=posing.POSES["mali-g78:intel"],
        rules=[f"{rule} /{name}/"] if rule else [], timeout=90,
        variables={"JITCL_BUILD_SECONDS": "3"})
    device, right, faults = done.value
    assert device.startswith("Mali-G78") and done.orphans == () and right == (not rule)
    if not rule:
        assert faults == []
        return
    ((_, stage, kind, signature),) = faults
    assert (stage, kind) == HAPPENS[rule][:2] and HAPPENS[rule][2] in signature
