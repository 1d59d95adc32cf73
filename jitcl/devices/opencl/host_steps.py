"""Steps of an OpenCL plan that run on the CPU path: the last variant of a part of a graph.

    launches ... | finish, read what the section reads | CPU kernels | write what it wrote | ...

Neighbouring host steps of one group are a section: a small plan of its own for the CPU device.
Buffers have the same bytes on both sides; those that only a section touches never reach the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import BufferKind, BufferSpec, Plan, TensorSpec
from jitcl.devices import recording
from jitcl.devices.base import Cache, Executable, Progress, Tally
from jitcl.devices.opencl.memory import Memory
from jitcl.devices.opencl.session import Session
from jitcl.target import Target


class HostSection:
    """Neighbouring steps on the CPU path, loaded. `start` runs them when all before is done."""

    def __init__(self, plan: Plan, numbers: Sequence[int], target: Target, cache: Cache | None,
                 progress: Progress | Tally | None) -> None:
        from jitcl.devices.cpu import CpuDevice

        steps = [plan.steps[n] for n in numbers]
        self.plan = section_plan(plan, numbers)
        self.step = replace(steps[-1], flops=sum(s.flops for s in steps),
                            bytes=sum(s.bytes for s in steps))
        self.reads = [int(t.name) for t in self.plan.inputs]    # buffers of the whole plan
        self.writes = [int(t.name) for t in self.plan.outputs]
        self.seconds = 0.0                                      # of the last run
        self._memory: Memory | None = None
        self._executable: Executable = CpuDevice(target).load(self.plan, cache, progress)

    @property
    def buffers(self) -> tuple[int, ...]:
        """Those that the device must hold."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    def bind(self, memory: Memory) -> None:
        self._memory = memory

    def start(self, queue: Any) -> None:
        """Wait for the launches before, and run. Faults of those show here, as pyopencl's."""
        assert self._memory is not None
        with recording.span("wait", "the device"):
            queue.finish()
        begin = time.perf_counter()
        inputs = []
        for index, spec in zip(self.reads, self.plan.inputs):
            array = np.empty(spec.shape, dtypes.to_numpy(spec.dtype))
            _copy(queue, array, self._memory[index], read=True)
            inputs.append(array)
        for index, array in zip(self.writes, self._executable.run(inputs)):
            _copy(queue, array, self._memory[index], read=False)
        self.seconds = time.perf_counter() - begin


def host_sections(session: Session, plan: Plan, cache: Cache | None,
                  progress: Progress | Tally | None) -> dict[int, HostSection]:
    """The sections of a plan, by the numbers of their first steps."""
    entries = {k.entry for k in plan.kernels if k.language == "numba"}
    if not entries:
        return {}

    def place(number: int) -> tuple[bool, int]:
        return plan.steps[number].kernel in entries, plan.steps[number].group

    runs = [list(run) for (host, _), run in groupby(range(len(plan.steps)), place) if host]
    target = session.host_target
    return {numbers[0]: HostSection(plan, numbers, target, cache, progress) for numbers in runs}


def section_plan(plan: Plan, numbers: Sequence[int]) -> Plan:
    """Some neighbouring steps as a plan. Its inputs and outputs are physical buffers, named by
    their numbers in the whole plan.

    A buffer that a step before wrote is an input even where it is only written: a part of it may
    be that step's.
    """
    steps = [plan.steps[n] for n in numbers]
    before = {b for s in plan.steps[:numbers[0]] for b in s.buffers}
    before |= {t.buffer for t in plan.inputs}
    after = {b for s in plan.steps[numbers[-1] + 1:] for b in s.buffers}
    after |= {t.buffer for t in plan.outputs}
    touched = list(dict.fromkeys(b for s in steps for b in s.buffers))
    written = {b for s in steps for b in s.writes}
    place = {b: i for i, b in enumerate(touched)}
    buffers: list[BufferSpec] = []
    slots: list[int] = []
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for b in touched:
        spec = plan.buffers[b]
        tensor = TensorSpec(str(b), spec.dtype, spec.shape, place[b])
        kind: BufferKind = "temp"
        slot = -1
        if b in plan.constants:
            kind = "const"
        elif b in before:
            kind = "input"
            inputs.append(tensor)
        elif b in after:
            kind = "output"
        else:
            slot = len(slots)
            slots.append(spec.nbytes)
        if b in written and b in after:
            outputs.append(tensor)
        buffers.append(replace(spec, kind=kind, slot=slot, offset=0))
    entries = {s.kernel for s in steps}
    return Plan(
        tuple(inputs), tuple(outputs), tuple(k for k in plan.kernels if k.entry in entries),
        tuple(s.moved(place) for s in steps), tuple(buffers), tuple(slots),
        {place[b]: plan.constants[b] for b in touched if b in plan.constants})


def _copy(queue: Any, array: np.ndarray, buffer: Any, read: bool) -> None:
    if not array.size:
        return
    data = array.reshape(-1).view(np.uint8)  # no copy: the executable's arrays are contiguous
    with recording.span("copy", "between the device and the CPU path", nbytes=data.nbytes):
        cl.enqueue_copy(queue, *((data, buffer) if read else (buffer, data)), is_blocking=True)
