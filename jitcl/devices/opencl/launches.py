"""Steps made ready: a kernel object each, its arguments, and a work-group that it can run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.codegen.plan import Plan, Step
from jitcl.devices.faults import Fault
from jitcl.devices.opencl.errors import translated
from jitcl.devices.opencl.memory import Memory
from jitcl.devices.opencl.run_faults import StepFailed, fault_of
from jitcl.devices.opencl.session import Session
from jitcl.errors import DeviceError, KernelFault


@dataclass(frozen=True)
class Launch:
    """A step with its kernel. `bind` sets its buffers: once, or each run where these change.

    `global_size` and `params` are those of the last run: the step's own, unless it was resized.
    """

    step: Step
    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    params: tuple[int, ...] = ()

    @property
    def buffers(self) -> tuple[int, ...]:
        return self.step.buffers

    def bind(self, memory: Memory) -> None:
        for i, b in enumerate(self.step.buffers):
            self.kernel.set_arg(i, memory.image(b) if b in self.step.images else memory[b])

    def resized(self, params: tuple[int, ...], global_size: tuple[int, ...], anew: bool = False
                ) -> Launch:
        """The launch with other integers (set at once) and work-items. anew: whatever its kernel
        has now."""
        items = padded(global_size, self.local_size)
        if not anew and params == self.params and items == self.global_size:
            return self
        first = len(self.step.buffers)
        for i, (value, before) in enumerate(zip(params, self.params), first):
            if anew or value != before:
                self.kernel.set_arg(i, np.int32(value))
        return Launch(self.step, self.kernel, items, self.local_size, params)

    def start(self, queue: Any) -> Any:
        """Enqueue it; returns the event. Raises StepFailed."""
        try:
            return cl.enqueue_nd_range_kernel(
                queue, self.kernel, self.global_size, self.local_size)
        except cl.Error as error:
            raise StepFailed(self, error) from error


def prepared(session: Session, plan: Plan, programs: Mapping[str, Any]) -> dict[int, Launch]:
    """Launches by their steps' numbers; steps without work-items have none.

    Raises KernelFault where kernels need larger work-groups than they can be run with: these are
    recorded, all of them.
    """
    launches, misfits = {}, []
    for number, step in enumerate(plan.steps):
        if step.kernel not in programs or 0 in step.global_size:
            continue
        launch = _prepare(session, plan, step, programs[step.kernel])
        if isinstance(launch, Launch):
            launches[number] = launch
        else:
            misfits.append(launch)
    if misfits:
        session.faults.record(*misfits)
        lines = "".join(f"\n  kernel '{f.entry}': {f.signature}" for f in misfits)
        raise KernelFault(
            f"{session.name} cannot run kernels with the work-groups that they need{lines}\n"
            "  Compile again: smaller ones are taken then.")
    return launches


def _prepare(session: Session, plan: Plan, step: Step, program: Any) -> Launch | Fault:
    """The step's own kernel object, sizes set: setting an argument costs more than a launch."""
    with translated(f"{session.name}: preparing step '{step.name}'"):
        kernel = cl.Kernel(program, step.kernel)
        wanted = len(step.buffers) + len(step.params)
        if kernel.num_args != wanted:
            raise DeviceError(
                f"step '{step.name}': kernel '{step.kernel}' takes {kernel.num_args} arguments,"
                f" the plan gives {wanted}"
            )
        for i, value in enumerate(step.params, len(step.buffers)):
            kernel.set_arg(i, np.int32(value))  # kernels take their sizes as `int`
        if not step.local_size:
            return Launch(step, kernel, step.global_size, None, step.params)
        info, handle = cl.kernel_work_group_info, session.handle
        limit = kernel.get_work_group_info(info.WORK_GROUP_SIZE, handle)
        required = tuple(kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, handle))
    local = fit_work_group(step.local_size, limit, session.max_items)
    if local != step.local_size and (any(required) or _meets(plan, step)):
        needs = f"needs groups of {math.prod(step.local_size)}, runs with at most {limit}"
        return fault_of(plan, step, "launch", "resources", needs)
    return Launch(step, kernel, padded(step.global_size, local), local, step.params)


def _meets(plan: Plan, step: Step) -> bool:
    """Whether work-items of a group wait for each other: then it must be whole, declared or not."""
    return any(k.entry == step.kernel and "barrier" in k.features for k in plan.kernels)


def padded(global_size: tuple[int, ...], local: tuple[int, ...] | None) -> tuple[int, ...]:
    """Work-items in whole groups."""
    if local is None:
        return global_size
    return tuple(-(-g // l) * l for g, l in zip(global_size, local))


def ended(queue: Any, events: Iterable[Any]) -> None:
    """Wait for all that was enqueued. Raises pyopencl's error where some of it failed: clFinish
    need not tell that, and pyopencl's copies swallow it where their events are dropped.
    """
    watched = [e for e in events if e is not None]
    if watched:
        cl.wait_for_events(watched)
    queue.finish()


def fit_work_group(
    local: tuple[int, ...], limit: int, max_items: tuple[int, ...]
) -> tuple[int, ...]:
    """`local`, its largest side halved until it has at most `limit` work-items and no side is
    over max_items (the guards of kernels without barriers allow more groups).

    An odd side is cut to the power of two below it, so that reductions over a work-group stay
    trees.
    """
    sides = [min(s, m) for s, m in zip(local, max_items)]
    while math.prod(sides) > limit:
        widest = max(range(len(sides)), key=lambda d: sides[d])
        side = sides[widest]
        sides[widest] = side // 2 if side % 2 == 0 else 1 << ((side - 1).bit_length() - 1)
    return tuple(sides)
