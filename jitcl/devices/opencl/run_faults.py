"""What the driver says while a plan runs: which kernel is to blame, remembered for the next
compilation.

    at enqueue             the step is known                      -> Fault, KernelFault
    at finish or at reads  unknown: steps are run one by one      -> Fault, KernelFault
    memory codes           no kernel's fault                      -> OutOfMemoryError
    lost codes             known only where steps are run one by one -> DeviceLostError
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from jitcl.codegen.plan import Plan, Step
from jitcl.devices.faults import Fault
from jitcl.devices.opencl.errors import (
    LOST_CODES,
    code_name,
    device_error,
    lost_error,
    out_of_memory,
)
from jitcl.devices.opencl.session import Session
from jitcl.errors import DeviceError, KernelFault

if TYPE_CHECKING:
    from jitcl.devices.opencl.launches import Launch

RESOURCE_CODES = frozenset(
    (
        cl.status_code.OUT_OF_RESOURCES, cl.status_code.INVALID_WORK_GROUP_SIZE,
        cl.status_code.INVALID_WORK_ITEM_SIZE)
)

log = logging.getLogger("jitcl.opencl")


class StepFailed(Exception):
    """The driver refused to enqueue a launch. Never leaves this package: see `blamed`."""

    def __init__(self, launch: Launch, error: Any) -> None:
        super().__init__(str(error))
        self.launch, self.error = launch, error


def fault_of(plan: Plan, step: Step, stage: str, kind: str, signature: str) -> Fault:
    """The record of a step's failure."""
    source = next(k for k in plan.kernels if k.entry == step.kernel)
    return Fault(step.kernel, stage, kind, signature, tuple(sorted(source.features)), step.variant)


def blamed(session: Session, plan: Plan, launch: Launch, error: Any, when: str) -> DeviceError:
    """The error to raise for a launch that failed `when` ("enqueue", "finish"); its kernel is
    recorded where it is to blame.
    """
    step = launch.step
    where = (f"{session.name}: step '{step.name}' (kernel '{step.kernel}', global size "
             f"{launch.global_size}, local size {launch.local_size})")
    if out_of_memory(error):
        return device_error(where, error)
    signature = f"{code_name(error.code)} at {when}"
    if error.code in LOST_CODES:
        lost = lost_error(f"{where}: {signature}")
        if when == "finish":  # at enqueue the device was lost before
            session.faults.record(fault_of(plan, step, "run", "lost", signature))
            lost.kernel = step.kernel
        return lost
    kind = "resources" if error.code in RESOURCE_CODES else "refused"
    session.faults.record(fault_of(plan, step, "run", kind, signature))
    why = ("asks for more registers, local memory or work-items than there are"
           if kind == "resources" else "is refused by the driver")
    return KernelFault(f"{where}: {signature}\n  The kernel {why}. This is recorded: compile "
                       "again, and another variant of it is taken.")
