"""The table of driver faults: each row with and without."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from jitcl import config, forking
from jitcl.cli.main import cli
from jitcl.codegen.plan import KernelSource, Plan
from jitcl.devices import select
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.opencl import executable as running
from jitcl.devices.opencl import open_device, platform, probe, trust
from jitcl.devices.opencl.programs import PROGRAM_KIND, ProgramStore, batches
from jitcl.devices.opencl.session import Session
from jitcl.errors import DeviceError, OptionError
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.target import Target
from jitcl.target.features import GATED, PATTERNS
from jitcl.target.profiles import PROFILES
from jitcl.target.quirks import QUIRKS, Driver, Quirk, When, applying
from tests.caches import Memory
from tests.compiling import compile_graph
from tests.devices import needs, needs_driver, opened
from tests.test_opencl_device import plan_of

ROOT = Path(__file__).resolve().parent.parent
ROWS = {q.id: q for q in QUIRKS}
g = GraphBuilder()

# -- what a row can be seen by -----------------------------------------------------------------


def x(name: str, *shape: int, dtype: str = "f32") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def plan(y: Node, target: Target, precision: str = "high") -> Plan:
    inputs = tuple(n for n in Graph("", (), (("y", y),)).nodes if n.op == "input")
    graph = Graph("g", inputs, (("y", y),))
    return compile_graph(graph, target, precision).plan


def source(made: Plan) -> str:
    return "\n".join(k.body for k in made.kernels)


def product(target: Target) -> Plan:
    return plan(g.matmul(x("a", 256, 512), x("b", 512, 256)), target)


def tiles(target: Target) -> list[str]:
    """Of two products whose tiles are few, and share no terms."""
    target = replace(target, local_is_real=False, local_works=False)
    return [plan(g.matmul(x("a", n, 64), x("b", 64, n)), target).kernels[-1].entry[:10]
            for n in (128, 256)]


def textured(target: Target) -> bool:
    """Whether constant weights are read as an image."""
    weights = g.const(np.ones((512, 256), np.float32))
    return any(s.images for s in plan(g.matmul(x("a", 256, 512), weights), target).steps)


def rows(target: Target) -> Plan:
    return plan(g.softmax(x("a", 8, 4096), axis=-1), target)


def most_read(made: Plan) -> int:
    return max(len(s.buffers) - 1 for s in made.steps)


def sums(target: Target) -> int:
    """Operands of the largest kernel of a sum."""
    total = x("x0", 64)
    for n in range(1, 16):
        total = g.add(total, g.tanh(x(f"x{n}", 64)))
    return most_read(plan(total, target))


def joined(target: Target) -> int:
    """Operands of the largest kernel of a concatenation."""
    return most_read(plan(g.concat(*[x(f"x{n}", 2, 3) for n in range(20)], axis=1), target))


def chain(target: Target) -> int:
    """Kernels of forty operations in a row."""
    y = x("x", 64)
    for n in range(20):
        y = g.add(g.tanh(y), float(n + 1))
    return len(plan(y, target).steps)


def options(target: Target) -> tuple[str, ...]:
    return product(target).kernels[0].options


def unoptimised(target: Target) -> list[bool]:
    """Whether a convolution, a concatenation and a sum are built without optimisation."""
    w = g.const(np.ones((8, 8, 3, 3), np.float32))
    graphs = (g.conv(x("x", 1, 8, 9, 9), w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1),
                     group=1),
              g.concat(x("a", 2, 3), x("b", 2, 3), axis=1), g.add(x("a", 6), x("b", 6)))
    return ["-cl-opt-disable" in plan(y, target).kernels[-1].options for y in graphs]


def halves(target: Target) -> bool:
    """Whether arithmetic on f16 tensors is f16 under precision 'low'."""
    y = g.tanh(g.add(x("a", 64, dtype="f16"), x("b", 64, dtype="f16")))
    return "cl_khr_fp16" in source(plan(y, target, "low"))


def in_pairs(target: Target) -> bool:
    """Whether sums in half of two channels are a pair, whichever pixels their taps read."""
    y = g.conv(x("a", 1, 16, 32, 32, dtype="f16"), g.const(np.ones((16, 16, 3, 3), np.float16)),
               strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)
    target = replace(target, local_is_real=False, registers=5)
    return "half2 h00" in source(plan(y, target, "low"))


def events(target: Target) -> int:
    """Of a run of 200 launches."""
    ex = running.OpenClExecutable.__new__(running.OpenClExecutable)
    ex.session = SimpleNamespace(name="fake", target=target)
    kernel = SimpleNamespace(int_ptr=1)
    launch = running.Launch(SimpleNamespace(name="s", kernel="k"), kernel, (1,), (1,))
    ex._launches, ex._series = [launch] * 200, {}
    one = SimpleNamespace(wait=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.cl, "enqueue_nd_range_kernel", lambda *args: one)
        patch.setattr(running.Series, "start", lambda *args: one)
        return len(ex._enqueue(SimpleNamespace(flush=lambda: None)))


def queue(target: Target) -> tuple[int, int]:
    """(launches between flushes, most launches that nobody waited for) of a plan of 2000."""
    events: list[Any] = []
    waited, most, flushes = 0, 0, 0

    class Event:
        def __init__(self) -> None:
            nonlocal most
            events.append(self)
            self.number = len(events)
            most = max(most, self.number - waited)

        def wait(self) -> None:
            nonlocal waited
            waited = self.number

    class Queue:
        def flush(self) -> None:
            nonlocal flushes
            flushes += 1

    ex = running.OpenClExecutable.__new__(running.OpenClExecutable)
    ex.session = SimpleNamespace(name="fake", target=target)
    launch = running.Launch(SimpleNamespace(name="s", kernel="k"),
                            SimpleNamespace(int_ptr=1), (1,), (1,))
    ex._launches, ex._series = [launch] * 2000, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.cl, "enqueue_nd_range_kernel", lambda *args: Event())
        patch.setattr(running.Series, "start", lambda it, _: [Event() for _ in it.launches][-1])
        ex._enqueue(Queue())
    return 2000 // flushes, most


def profiling(target: Target) -> list[str]:
    """How times of steps are taken."""
    used: list[str] = []
    ex = running.OpenClExecutable.__new__(running.OpenClExecutable)
    ex.session = SimpleNamespace(name="fake", target=target, ended="")
    ex._closed, ex._lost, ex._launches = False, "", []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_check", "_settled"):
            patch.setattr(ex, name, lambda *args: None)
        ex._lock = threading.Lock()
        patch.setattr(ex, "_event_times", lambda runs: used.append("events") or [[]])
        patch.setattr(ex, "_wall_times", lambda runs: used.append("clock") or [[]])
        ex.profile([])
    return used


def corrected(driver: Driver, target: Target) -> Target:
    """The target with the effects of all rows that hold."""
    for quirk in applying(driver, target):
        target = quirk.apply(target)
    return target


def batch_sizes(target: Target) -> list[int]:
    kernels = {str(n): KernelSource(f"k{n}", "", "opencl") for n in range(40)}
    return [len(b) for b in batches(kernels, target.program_kernels)][:2]


def kept(target: Target) -> bool:
    """Whether built programs are kept: a real build, on PoCL."""
    place = open_device("opencl:pocl")
    session = place.session
    session.store = ProgramStore(session.context, session.handle, replace(target, trusted=True))
    cache = Memory()
    place.load(plan_of(), cache)
    return any(kind == PROGRAM_KIND for kind, _ in cache.data)


def reloads(target: Target) -> bool:
    """Whether a device asks its driver for binaries."""
    device = SimpleNamespace(target=target, faults=FaultDatabase(None))
    return Session.reloads.fget(device)


def in_a_forked_child(target: Target) -> bool:
    """Whether a device that the parent found may be used."""
    found = SimpleNamespace(name="fake", platform="fake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forking, "generation", forking.generation + 1)
        try:
            platform.check_fork(found, target)
        except DeviceError:
            return False
    return True


GATED_USE = frozenset(("half", "int4", "int8", "subgroup", "local", "quotient",
                        "int64", "call:exp"))


def where_built(target: Target) -> str:
    """Why kernels that use much are built in another process, on a driver that is known good."""
    return trust.isolated("untrusted", GATED_USE,
                          replace(target, trusted=True, proven=tuple(GATED)))


def known_good(target: Target) -> str:
    return trust.isolated("untrusted", GATED_USE, replace(target, proven=tuple(GATED)))


def auto(target: Target) -> str:
    """What device 'auto' is with one GPU."""
    found = SimpleNamespace(kind="gpu", name=target.name, spec="opencl:0:0")
    with pytest.MonkeyPatch.context() as patch, config.override(device=None):
        patch.setattr(platform, "find_devices", lambda: (found,))
        patch.setattr(probe, "probe_target", lambda found, progress: target)
        return select.resolve_auto()[0]


def widest(target: Target) -> int:
    text = source(product(target))
    return max(n for n in (1, 2, 4, 8, 16) if n == 1 or f"float{n} " in text)


SEEN: dict[str, Callable[[Target], Any]] = {
    "local_is_real": lambda t: product(t).kernels[-1].template,
    "local_is_cache": lambda t: product(t).kernels[-1].template,
    "unit_items": tiles,
    "images": textured,
    "reduction_group": lambda t: rows(t).steps[0].local_size,
    "max_work_group": lambda t: rows(t).steps[0].local_size,
    "registers": lambda t: product(replace(t, local_is_real=False)).kernels[-1].entry[:10],
    "half_pairs": in_pairs,
    "max_operands": sums,
    "max_concat": joined,
    "max_members": chain,
    "build_options": options,
    "unoptimised_ops": unoptimised,
    "fp16_arithmetic": halves,
    "queue_depth": lambda t: queue(t)[1],
    "flush_every": lambda t: queue(t)[0],
    "failures_last": events,
    "trusted_events": profiling,
    "cached_binaries": kept,
    "reloadable": reloads,
    "suspects": where_built,
    "trusted": known_good,
    "program_kernels": batch_sizes,
    "kernel_prefix": lambda t: product(t).kernels[0].entry.startswith("jitcl_"),
    "cl_std": lambda t: ProgramStore(None, None, t).options[0],
    "dependable": auto,
    "fork_safe": in_a_forked_child,
    "max_vector_width": widest,
    "multiply_add": lambda t: "fma(" in source(product(t)),
}
WITH_AND_WITHOUT: dict[tuple[str, str], tuple[Any, Any]] = {
    ("intel-cpu-fork-safe", "fork_safe"): (False, True),
    ("pocl-3.0-library-cpu-mismatch", "max_vector_width"): (16, 8),
    ("pocl-3.0-library-cpu-mismatch", "multiply_add"): (True, False),
    ("pocl-3-half", "fp16_arithmetic"): (True, False),
    ("mali-local-memory", "local_is_real"): ("gemm_tiled_opencl", "gemm_opencl"),
    ("intel-local-memory", "local_is_cache"): ("gemm_tiled_opencl", "gemm_opencl"),
    ("intel-units", "unit_items"): (["gemm_1x1x4", "gemm_2x1x4"], ["gemm_2x1x4", "gemm_4x2x4"]),
    ("videocore-local-memory", "local_is_real"): ("gemm_tiled_opencl", "gemm_opencl"),
    ("videocore-units", "unit_items"): (["gemm_2x1x4", "gemm_4x2x4"], ["gemm_4x2x4"] * 2),
    ("mali-reductions", "reduction_group"): ((256,), (64,)),
    ("mali-midgard-reductions", "reduction_group"): ((256,), (32,)),
    ("mali-operands", "max_operands"): (12, 8),
    ("mali-operands", "max_concat"): (20, 8),
    ("mali-kernel-size", "max_members"): (1, 2),
    ("mali-registers", "registers"): ("gemm_4x2x4", "gemm_2x1x4"),
    ("mali-half-pairs", "half_pairs"): (False, True),
    ("mali-register-allocation", "build_options"): ((), ("-fregister-allocation=64",)),
    ("mali-queue-depth", "queue_depth"): (984, 120),
    ("mali-queue-wait", "queue_depth"): (984, 36),
    ("mali-queue-wait", "flush_every"): (24, 12),
    ("nvidia-half-vectors", "fp16_arithmetic"): (True, False),
    ("nvidia-failures-last", "flush_every"): (24, 64),
    ("nvidia-failures-last", "failures_last"): (200, 4),
    ("mali-event-times", "trusted_events"): (["events"], ["clock"]),
    ("mali-t6xx-profiling-queue", "trusted_events"): (["events"], ["clock"]),
    ("mali-binary-crash", "cached_binaries"): (True, False),
    ("mali-t860-work-group", "max_work_group"): ((256,), (128,)),
    ("mali-t860-unstable", "dependable"): ("opencl:0:0", "cpu"),
    ("mali-g72-mp3-idle", "dependable"): ("opencl:0:0", "cpu"),
    ("mali-t760-language", "cl_std"): ("-cl-std=CL1.2", "-cl-std=CL1.1"),
    ("adreno-texture-cache", "images"): (False, True),
    ("adreno-program-size", "program_kernels"): ([32, 8], [1, 1]),
    ("adreno-builtin-names", "kernel_prefix"): (False, True),
    ("adreno-3xx-event-times", "trusted_events"): (["events"], ["clock"]),
    ("powervr-fp16", "fp16_arithmetic"): (True, False),
    ("powervr-ge8320-optimiser", "unoptimised_ops"): ([False] * 3, [True, True, False]),
    ("powervr-event-times", "trusted_events"): (["events"], ["clock"]),
    ("intel-hd530-fp16", "fp16_arithmetic"): (True, False),
    ("mali-select-fp16", "suspects"): ("", "suspected on this driver: half"),
    ("mali-select-low-bit", "suspects"): ("", "suspected on this driver: int4, int8"),
    ("adreno-low-bit", "suspects"): ("", "suspected on this driver: int4"),
    ("adreno-subgroup-reduce", "suspects"): ("", "suspected on this driver: subgroup"),
    ("intel-cpu-loops", "suspects"): ("", "suspected on this driver: int64, quotient"),
    **{(f"{driver}-known-good", "trusted"): ("the driver is not known good", "")
       for driver in ("pocl", "intel-cpu", "nvidia")},
}

# -- devices that rows hold for, and near ones that they don't hold for ------------------------

Place = tuple[Driver, Target]


def like(profile: str, *, device: str = "", version: str = "", details: str = "",
         **limits: Any) -> Place:
    """A profile's device under another name or driver."""
    p = PROFILES[profile]
    changed = {k: v for k, v in (("device", device), ("version", version), ("details", details))
               if v}
    return replace(p.driver, **changed), replace(p.reported, **limits)


def adreno(model: int, compiler: str = "E031.45.02.00") -> Place:
    return like("adreno-640", version=f"build: Compiler {compiler}",
                details=f"OpenCL 2.0 Adreno(TM) {model}")


def pocl(version: str = "3.0-rc2", cpu: str = "znver3", isa: tuple[str, ...] = ("avx512f",)
         ) -> Place:
    target = Target("opencl", "a CPU", compute_units=2, vector_width=16, registers=32, isa=isa,
                    fp16_arithmetic=True, multiply_add="fma", max_work_group=4096)
    return Driver("Portable Computing Language", version, "pthread-AMD EPYC", cpu), target


def intel_cpu(isa: tuple[str, ...] = ("avx512f",)) -> Place:
    return Driver("Intel(R) OpenCL", "2026.22.10.0.01", "AMD EPYC"), pocl(isa=isa)[1]


def nvidia() -> Place:
    return Driver("NVIDIA CUDA", "550.54.15", "NVIDIA H200"), PROFILES["intel-hd-630"].reported


MALI = ["mali-g610"], ["adreno-640", "powervr-ge8320", pocl()]
OLD_MALI = ["mali-t860", "mali-g76"], ["mali-g78", "mali-g610", "adreno-530"]
LATER_MALI = ["mali-g52", "mali-g78"], ["mali-t860", like("mali-g78", device="Mali-G720")]
NVIDIA = [nvidia()], [pocl(), "intel-hd-630"]
HD530 = "Intel(R) HD Graphics 530"
DEVICES: dict[str, tuple[list[str | Place], list[str | Place]]] = {   # (it holds, it doesn't)
    "pocl-3.0-library-cpu-mismatch": (
        [pocl(), pocl(cpu="generic"), pocl("3.1")],
        [pocl("3.2"), pocl("unknown"), pocl(cpu="skylake-avx512"), pocl(isa=("avx2",)),
         intel_cpu()]),
    "pocl-3-half": ([pocl()], [pocl("4.0"), intel_cpu()]),
    "pocl-known-good": ([pocl(), pocl("6.0")], [intel_cpu(), "mali-g78"]),
    **dict.fromkeys(("mali-local-memory", "mali-reductions", "mali-operands", "mali-kernel-size",
                     "mali-registers", "mali-queue-depth", "mali-event-times"), MALI),
    **dict.fromkeys(("mali-queue-wait", "mali-binary-crash"), OLD_MALI),
    **dict.fromkeys(("mali-select-fp16", "mali-select-low-bit"), LATER_MALI),
    "mali-midgard-reductions": (["mali-t860"], ["mali-g52", "mali-g610"]),
    "mali-half-pairs": (["mali-g52", "mali-g610"], ["mali-t860", "adreno-640"]),
    "mali-register-allocation": (["mali-g610"], ["mali-g76", "adreno-640"]),
    "mali-t6xx-profiling-queue": ([like("mali-t860", device="Mali-T628")], ["mali-t860"]),
    "mali-t860-work-group": (
        ["mali-t860"], [like("mali-t860", details="OpenCL 1.2 v1.r13p0-00rel0"), "mali-g52"]),
    "mali-t860-unstable": (
        ["mali-t860", like("mali-t860", details="OpenCL 1.2 v1.r13p0-00rel0")],
        [like("mali-t860", details="OpenCL 1.2 v1.r18p0-01rel0"), "mali-g52"]),
    "mali-g72-mp3-idle": ([like("mali-g76", device="Mali-G72", compute_units=3)],
                          [like("mali-g76", device="Mali-G72", compute_units=12)]),
    "mali-t760-language": ([like("mali-t860", device="Mali-T760")], ["mali-t860"]),
    "adreno-program-size": ([adreno(640), adreno(618)], [adreno(530), adreno(740)]),
    "adreno-builtin-names": ([adreno(330), adreno(530)], [adreno(640)]),
    "adreno-3xx-event-times": ([adreno(330)], [adreno(430)]),
    "adreno-texture-cache": ([adreno(530), adreno(740)], [adreno(330), "mali-g78"]),
    "adreno-subgroup-reduce": ([adreno(640, "E031.37.12.01")], [adreno(640, "E031.38.11.00")]),
    "adreno-low-bit": ([adreno(740, "E031.38.15"), adreno(740, "E031.41.03")],
                       [adreno(740, "E031.45"), adreno(740, "E031.37.12")]),
    "powervr-fp16": (["powervr-ge8320", like("powervr-ge8320", device="PowerVR Rogue GM9446")],
                     [like("powervr-ge8320", device="PowerVR B-Series BXM-8-256")]),
    "powervr-ge8320-optimiser": (
        ["powervr-ge8320"], [like("powervr-ge8320", device="PowerVR Rogue GE8100")]),
    "powervr-event-times": (["powervr-ge8320"], ["mali-g78"]),
    "intel-local-memory": (
        ["intel-hd-630", like("intel-hd-630", device=HD530)],
        [like("intel-hd-630", device="Intel(R) Iris(R) Xe Graphics"), intel_cpu(), nvidia()]),
    "intel-units": (["intel-hd-630", like("intel-hd-630", device="Intel(R) Iris(R) Xe Graphics")],
                    [intel_cpu(), nvidia()]),
    **dict.fromkeys(("videocore-local-memory", "videocore-units"),
                    (["videocore-vi", "videocore-vii"], ["mali-g610", "intel-hd-630"])),
    "intel-hd530-fp16": ([like("intel-hd-630", device=HD530, version="23.20.16.4849")],
                         [like("intel-hd-630", device=HD530, version="24.20.100.6025"),
                          like("intel-hd-630", version="23.20.16.4849")]),
    "intel-cpu-known-good": ([intel_cpu()], [pocl(), "intel-hd-630"]),
    "intel-cpu-loops": ([intel_cpu(isa=("avx2",)), intel_cpu()], [pocl(isa=("avx2",))]),
    "intel-cpu-fork-safe": ([intel_cpu()], [pocl(), "intel-hd-630"]),
    "nvidia-known-good": NVIDIA,
    "nvidia-half-vectors": NVIDIA,
    "nvidia-failures-last": NVIDIA,
}


def place(device: str | Place) -> Place:
    if isinstance(device, str):
        return PROFILES[device].driver, PROFILES[device].reported
    return device


# -- each row ----------------------------------------------------------------------------------


def test_the_table_says_why():
    assert len(ROWS) == len(QUIRKS)
    for q in QUIRKS:
        assert q.why and q.seen_on and q.fields
        assert set(q.fields) <= set(Target.__dataclass_fields__)
        assert q.links or "mali" not in q.id
        assert not q.reproducer or (ROOT / q.reproducer).is_file()
        assert set(q.adds.get("suspects", ())) <= set(PATTERNS)


def test_every_row_is_tested():
    assert set(DEVICES) == set(ROWS)
    assert set(WITH_AND_WITHOUT) == {
        (q.id, name) for q in QUIRKS for name in q.fields}


@pytest.mark.parametrize("id", ROWS)
def test_a_row_holds_where_it_should(id):
    holds, other = DEVICES[id]
    assert holds and other
    for it in holds:
        driver, target = place(it)
        assert ROWS[id] in applying(driver, target), (driver.device, driver.number)
        assert ROWS[id].apply(target) != target
        with config.override(quirks=f"-{id}"):
            assert ROWS[id] not in applying(driver, target)
    for it in other:
        driver, target = place(it)
        assert ROWS[id] not in applying(driver, target), (driver.device, driver.number)
        with config.override(quirks=f"+{id}"):
            assert ROWS[id] in applying(driver, target)


@pytest.mark.parametrize(("id", "name"), WITH_AND_WITHOUT)
def test_a_row_changes_what_it_says(id, name):
    if name == "cached_binaries":
        opened("opencl:pocl")
    _, target = place(DEVICES[id][0][0])
    observed = SEEN[name](target), SEEN[name](ROWS[id].apply(target))
    assert observed == WITH_AND_WITHOUT[id, name]


def test_rows_set_lower_and_add():
    quirk = Quirk("q", When(), "why", "here", effect={"fp64": False}, caps={"max_work_group": 64},
                  adds={"build_options": ("-a", "-b")})
    target = Target("opencl", "x", max_work_group=32, build_options=("-a",))
    changed = quirk.apply(target)
    assert (changed.fp64, changed.max_work_group) == (False, 32)
    assert changed.build_options == ("-a", "-b")
    assert quirk.apply(replace(target, max_work_group=128)).max_work_group == 64


# -- on a driver that is there -----------------------------------------------------------------

needs_pocl = needs("opencl:pocl")
SWITCHED = ("mali-event-times", "mali-queue-wait", "mali-binary-crash", "mali-t760-language",
            "adreno-program-size")


@needs_pocl
def test_switched_rows_run():
    """A healthy driver with the quirks of sick ones gives the same results."""
    with config.override(quirks=",".join(f"+{id}" for id in SWITCHED)):
        opened = open_device("opencl:pocl")
    assert opened.target.cl_std == "CL1.1" and opened.target.queue_depth == 24
    ready = opened.load(plan_of(), cache := Memory())
    assert opened.counters["programs_built_from_source"] == 2 and not cache.data
    data = np.linspace(-1, 1, 1000, dtype=np.float32)
    wanted = np.square(2 * data + np.arange(1000, dtype=np.float32))
    np.testing.assert_allclose(ready.run([data])[0], wanted, rtol=1e-6)
    begin = time.perf_counter()
    times = ready.profile([data], runs=2)
    assert [t.name for t in times] == ["scale_0", "square_1"]
    assert all(0 < t.seconds < time.perf_counter() - begin for t in times)
    np.testing.assert_allclose(ready.run([data])[0], wanted, rtol=1e-6)


# -- JITCL_QUIRKS and the command line ---------------------------------------------------------


def test_switching_is_part_of_cache_keys():
    base = config.key_parts()
    with config.override(quirks="+mali-operands"):
        assert config.key_parts() != base
        driver, target = pocl()
        assert corrected(driver, target).max_operands == 8


def test_a_row_that_there_is_not():
    with config.override(quirks="+mali-operand"), pytest.raises(OptionError) as error:
        applying(*pocl())
    assert "no quirk 'mali-operand'" in str(error.value) and "mali-operands" in str(error.value)


@needs_driver()
def test_devices_lists_the_rows_that_hold(monkeypatch):
    monkeypatch.setenv("JITCL_QUIRKS", "+mali-operands")
    done = CliRunner().invoke(cli, ["devices", "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    for row in told["devices"]:
        if row["spec"].startswith("opencl"):
            (quirk,) = (q for q in row["quirks"] if q["id"] == "mali-operands")
            assert quirk["changes"] == {"max_concat": 8, "max_operands": "<= 8"} and quirk["why"]
            assert row["max_operands"] == 8
        else:
            assert row["quirks"] == []
    text = CliRunner().invoke(cli, ["devices"], catch_exceptions=False).stdout
    assert "mali-operands" in text and "max_operands <= 8" in text
