"""Plans that are run once: a launch alone, for kernels without a trial, and how they are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitcl.codegen.plan import BufferKind, BufferSpec, Plan, TensorSpec
from jitcl.devices.opencl.executable import OpenClExecutable
from jitcl.devices.opencl.loaded import Action, LoadedPlan
from jitcl.devices.opencl.session import Session
from jitcl.devices.opencl.streaming import StreamedExecutable
from jitcl.errors import OutOfMemoryError

Tell = Callable[[str], None]                # the kernel that is launched next


def step_plan(plan: Plan, entry: str) -> Plan | None:
    """The first step that launches a kernel, alone: what it reads is fed, what it writes is read.
    None where no step does.
    """
    step = next((s for s in plan.steps if s.kernel == entry and 0 not in s.global_size), None)
    if step is None:
        return None
    order = list(dict.fromkeys(step.buffers))
    place = {b: n for n, b in enumerate(order)}
    constants = {place[b]: plan.constants[b] for b in order if b in plan.constants}

    def spec(b: int) -> BufferSpec:
        old = plan.buffers[b]
        kind: BufferKind = "output" if b in step.writes else "input"
        kind = "const" if b in plan.constants else kind
        return dataclasses.replace(old, kind=kind, slot=-1, offset=0)

    def tensors(kind: str) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(b.name, b.dtype, b.shape, n)
                     for n, b in enumerate(buffers) if b.kind == kind)

    buffers = tuple(spec(b) for b in order)
    kernels = tuple(k for k in plan.kernels if k.entry == entry)
    return Plan(tensors("input"), tensors("output"), kernels, (step.moved(place),), buffers, (),
                constants)


def run_once(session: Session, plan: Plan, programs: Mapping[str, Any],
             inputs: Sequence[np.ndarray], tell: Tell | None = None) -> list[np.ndarray]:
    """The outputs of one run; a plan that does not fit the device is run step by step. `tell` is
    called before each launch, which is then waited for. Raises what LoadedPlan does.
    """
    try:
        return _run(OpenClExecutable, session, plan, programs, inputs, tell)
    except OutOfMemoryError:
        return _run(StreamedExecutable, session, plan, programs, inputs, tell)


def _run(kind: type[LoadedPlan], session: Session, plan: Plan, programs: Mapping[str, Any],
         inputs: Sequence[np.ndarray], tell: Tell | None) -> list[np.ndarray]:
    with (kind if tell is None else _telling(kind, tell))(session, plan, programs) as loaded:
        return loaded.run(inputs)


def _telling(kind: Any, tell: Tell) -> Any:
    """The kind of executable, made to tell of each step before it launches it and to wait for it.
    """
    class Telling(kind):
        def _pass(self, sources: list[np.ndarray], careful: bool) -> list[np.ndarray]:
            return super()._pass(sources, careful=True)  # type: ignore[no-any-return]

        def _awaited(self, action: Action, queue: Any) -> None:
            tell(action.step.kernel)
            super()._awaited(action, queue)

    return Telling
