"""Probes of launches and programs: sub-groups, odd work-groups, loops, events, binaries, command
buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes.bench import (
    Bench,
    Out,
    Refused,
    extensions,
    first_wrong,
)
from jitcl.devices.opencl.probes.commands import record_and_run
from jitcl.devices.opencl.probes.record import Probe, Verdict

ITEMS = 256
GROUP = 64
SPINNING = 64                       # work-items
LATER = ("-cl-std=CL3.0", "-cl-std=CL2.0")
SPIN_LOOPS = 50                     # of next to no time: what is left is a launch
SPIN_MOST = 16_000                  # at most, also where a launch takes long
SPIN_LAUNCHES = 3                   # launches' time that a kernel takes, for its work to show
COSTLY = 3.0                        # a binary that takes longer than so many builds isn't worth it

SUBGROUPS = """
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
__kernel void subgroups(__global const float *x, __global float *sum, __global int *where)
{
    int i = get_global_id(0);
    sum[i] = sub_group_reduce_add(x[i]);
    where[i] = get_sub_group_id() * 4096 + get_sub_group_size();
}
"""
ODD = """
__kernel void odd_groups(__global int *y)
{
    y[get_global_id(0)] = get_local_size(0) * 1000 + get_local_id(0);
}
"""
UNROLLED = """
__kernel void unrolled(__global const float *x, __global float *y)
{
    int i = get_global_id(0);
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    #pragma unroll
    for (int k = 0; k < 16; ++k) {
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            s[j] += x[i + k] * (float)(j + 1);
    }
    vstore4((float4)(s[0], s[1], s[2], s[3]), i, y);
}
"""
SPIN = """
__kernel void spin(__global float *y, int loops)
{
    float a = y[get_global_id(0)];
    for (int k = 0; k < loops; ++k)
        a = a * 0.999f + 0.001f;
    y[get_global_id(0)] = a;
}
"""
BINARY = """
__kernel void binary(__global const float *x, __global float *y)
{
    int i = get_global_id(0);
    y[i] = x[i] * 3.0f + 1.0f;
}
"""


def _subgroups(bench: Bench, _: Any) -> Verdict:
    program = _first_built(bench, SUBGROUPS, (*LATER, "-cl-std=CL1.2"))
    x = np.random.default_rng(1).integers(-9, 10, ITEMS).astype(np.float32)
    group = min(GROUP, bench.max_group)
    sums, where = bench.run(program, "subgroups", ITEMS, group, x, Out(ITEMS),
                            Out(ITEMS, np.int32))
    wanted = np.empty(ITEMS)
    for begin in range(0, ITEMS, group):
        ids, part = where[begin:begin + group] // 4096, x[begin:begin + group]
        wanted[begin:begin + group] = [part[ids == n].sum() for n in ids]
    sizes = where % 4096
    wrong = first_wrong(sums, wanted)
    if not wrong and not 1 <= sizes.max() <= group:
        wrong = f"a sub-group says that it has {sizes.max()} work-items"
    return Verdict(not wrong, wrong or f"sums of sub-groups of {sizes.max()} are exact")


def _no_subgroups(found: Found) -> str:
    listed = any("subgroups" in e for e in extensions(found))
    return "" if listed else "no extension for sub-groups is listed"


def _first_built(bench: Bench, source: str, options: tuple[str, ...]) -> Any:
    """The program in the first language that builds it."""
    refusal: Refused | None = None
    for option in options:
        try:
            return bench.build(source, option)
        except Refused as error:
            refusal = refusal or error
    raise refusal or Refused("no language to build it in")


def _odd_groups(bench: Bench, _: Any) -> Verdict:
    program = _first_built(bench, ODD, LATER)
    (y,) = bench.run(program, "odd_groups", 100, 32, Out(100, np.int32))
    sizes = np.repeat([32, 32, 32, 4], [32, 32, 32, 4])
    wrong = first_wrong(y, sizes * 1000 + np.arange(100) % 32)
    return Verdict(not wrong, wrong or "100 work-items in groups of 32: the last group has 4")


def _old_language(found: Found) -> str:
    text = str(found.handle.opencl_c_version)        # "OpenCL C 1.2 ..."
    return "the language is 1.x" if text.startswith("OpenCL C 1.") else ""


def _unrolled(bench: Bench, program: Any) -> Verdict:
    x = np.random.default_rng(2).integers(-9, 10, GROUP + 16).astype(np.float32)
    (y,) = bench.run(program, "unrolled", GROUP, 0, x, Out(4 * GROUP))
    sums = np.array([x[i:i + 16].sum() for i in range(GROUP)])
    wrong = first_wrong(y, np.outer(sums, [1, 2, 3, 4]).reshape(-1))
    return Verdict(not wrong, wrong or "nested loops under the pragma are right")


def _events(bench: Bench, program: Any) -> Verdict:
    """Two kernels, the second with four times the work: times in order, longer where there is more
    to do, never longer than by the clock.
    """
    memory, kernel = bench.buffer(np.zeros(SPINNING, np.float32)), cl.Kernel(program, "spin")
    loops = loops_that_show(lambda loops: bench.seconds(
        program, "spin", SPINNING, 1, memory, np.int32(loops)))
    times: dict[int, list[float]] = {1: [], 4: []}      # in ms, by how much work
    wall = 0.0
    try:
        queue = cl.CommandQueue(
            bench.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        for work in (1, 4) * 3:
            kernel.set_args(memory, np.int32(work * loops))
            for _ in range(2):
                taken, wall, wrong = _event_time(queue, kernel)
                if wrong:
                    return Verdict(False, wrong)
                times[work].append(taken)
    except (cl.Error, RuntimeError) as error:
        raise bench.refused(error) from error
    short, long = min(times[1]), min(times[4])
    return Verdict(0 < 1.3 * short < long,
                   f"a kernel takes {short:.3f} ms, and with four times the work {long:.3f} ms "
                   f"({wall:.3f} by the clock)")


def loops_that_show(seconds: Callable[[int], float]) -> int:
    """How many loops take some times what a launch does, which is all that events see of less: a
    CPU of 16 cores takes 50 us to wake them, and the time of 500 loops to run 64 of these.
    """
    least, loops = seconds(SPIN_LOOPS), SPIN_LOOPS
    while loops < SPIN_MOST and seconds(loops) < SPIN_LAUNCHES * least:
        loops = min(SPIN_MOST, 4 * loops)
    return loops


def _event_time(queue: Any, kernel: Any) -> tuple[float, float, str]:
    """(ms by the event, ms by the clock, what can't be true of the event's times)."""
    begin = time.perf_counter()
    event = cl.enqueue_nd_range_kernel(queue, kernel, (SPINNING,), (1,))
    event.wait()
    p = event.profile
    wall = (time.perf_counter() - begin) * 1e3
    taken, wrong = (p.end - p.start) * 1e-6, ""
    if not p.queued <= p.submit <= p.start <= p.end:
        wrong = (f"an event's times are out of order: queued {p.queued}, submitted {p.submit}, "
                 f"{p.start} to {p.end} ns")
    elif taken > 1.5 * wall + 1:
        wrong = f"an event says {taken:.3f} ms, the clock {wall:.3f} ms"
    return taken, wall, wrong


def _binaries(bench: Bench, _: Any) -> Verdict:
    """Get a program's binary, load it, run it; compare what that costs with a build."""
    begin = time.perf_counter()
    program = bench.build(BINARY)
    built = time.perf_counter()
    try:
        binary = program.get_info(cl.program_info.BINARIES)[0]
        got = time.perf_counter()
        if not binary:
            return Verdict(False, "the driver gives no binaries")
        loaded = cl._cl._Program(bench.context, [bench.device], [bytes(binary)])
        loaded._build(b"", [bench.device])
    except (cl.Error, RuntimeError) as error:
        raise bench.refused(error) from error
    end = time.perf_counter()
    x = np.arange(GROUP, dtype=np.float32)
    (y,) = bench.run(loaded, "binary", GROUP, 0, x, Out(GROUP))
    wrong = first_wrong(y, x * 3 + 1)
    worth = (end - built) < COSTLY * (built - begin)
    return Verdict(not wrong, wrong or f"{len(binary)} bytes: {(got - built) * 1e3:.0f} ms to get, "
                                       f"{(end - got) * 1e3:.0f} ms to load, "
                                       f"{(built - begin) * 1e3:.0f} ms to build",
                   {"reloadable": worth})


def _no_command_buffers(found: Found) -> str:
    listed = "cl_khr_command_buffer" in extensions(found)
    return "" if listed else "cl_khr_command_buffer is not listed"


def _command_buffer(bench: Bench, program: Any) -> Verdict:
    memory = bench.buffer(np.zeros(GROUP, np.float32))
    kernel = cl.Kernel(program, "spin")
    kernel.set_args(memory, np.int32(1))
    record_and_run(bench, kernel, GROUP, runs=2)
    y = np.full(GROUP, np.nan, np.float32)
    cl.enqueue_copy(bench.queue, y, memory)
    wrong = first_wrong(y, np.full(GROUP, 0.001 + 0.999 * 0.001), 1e-6)
    return Verdict(not wrong, wrong or "a kernel recorded once and run twice is right")


LAUNCHING = (
    Probe("subgroups", "sums of sub-groups", _subgroups, features=("subgroup",),
          skip=_no_subgroups),
    Probe("odd_groups", "global sizes need not be multiples of local ones", _odd_groups,
          skip=_old_language),
    Probe("unroll", "#pragma unroll", _unrolled, UNROLLED),
    Probe("events", "times of events are right", _events, SPIN,
          present={"trusted_events": True}, absent={"trusted_events": False}),
    Probe("binaries", "programs' binaries can be loaded again", _binaries,
          absent={"reloadable": False, "cached_binaries": False}),
    Probe("command_buffers", "command buffers", _command_buffer, SPIN,
          skip=_no_command_buffers),
)
