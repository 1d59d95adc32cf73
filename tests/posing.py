"""A device that fails on cue, for tests of the runtime: no driver is needed.

Its kernels are OpenCL C that nothing builds; what it returns is computed by the test's own
function. `on_load(device, plan)` and `on_run(device, plan)` may raise what a driver would make
happen.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jitcl.codegen.plan import Plan, Shapes
from jitcl.codegen.variants import features
from jitcl.devices.base import Cache, Progress
from jitcl.devices.cpu.host import probe_target
from jitcl.devices.faults import Fault, FaultDatabase, database_path
from jitcl.devices.load_options import LoadOptions
from jitcl.errors import KernelFault
from jitcl.target import Target

TARGET = Target(
    kind="opencl", name="Mali-G78 r0p1", vendor="ARM", driver="3.0 posing", device_type="gpu",
    compute_units=8, vector_width=4, max_vector_width=8, local_memory=32 << 10, local_is_real=True,
    max_work_group=128, max_work_item_sizes=(128, 128, 128), global_memory=1 << 30,
    max_allocation=1 << 28, fp16_arithmetic=True)

Hook = Callable[["PosingDevice", Plan], None]
Answer = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class PosingDevice:
    """Loads any plan; `faults` lie under `root`, or in memory."""

    memory_mode: Literal["arena", "slots"] = "slots"

    def __init__(self, answer: Answer, root: Path | None = None, on_load: Hook | None = None,
                 on_run: Hook | None = None, target: Target = TARGET) -> None:
        self.target, self.answer = target, answer
        self.faults = FaultDatabase(
            root and database_path(root, target.vendor, target.name, target.driver))
        self.host_target = probe_target()
        self.on_load, self.on_run = on_load, on_run
        self.loads: list[Plan] = []
        self.load_options: list[LoadOptions | None] = []
        self.opened = 0
        self.alive: weakref.WeakSet[PosingExecutable] = weakref.WeakSet()
        self.lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.target.name

    hardware = name

    def ahead(self, cache: Cache | None) -> None:
        """Built when they are loaded."""

    def load(self, plan: Plan, cache: Cache | None = None, progress: Progress | None = None,
             options: LoadOptions | None = None) -> PosingExecutable:
        with self.lock:
            self.loads.append(plan)
            self.load_options.append(options)
        made = PosingExecutable(self, plan)     # first: what fails then is to be freed
        if self.on_load is not None:
            self.on_load(self, plan)
        return made

    def reopen(self) -> None:
        self.opened += 1


class PosingExecutable:
    def __init__(self, device: PosingDevice, plan: Plan) -> None:
        self.device, self.plan = device, plan
        device.alive.add(self)

    def run(self, inputs: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        if self.device.on_run is not None:
            self.device.on_run(self.device, self.plan)
        return self.device.answer(inputs)


def failing(wrong: Callable[[Any], bool], signature: str = "SIGABRT: LLVM ERROR: Cannot select",
            stage: str = "build", kind: str = "crash") -> Hook:
    """A driver that fails on the kernels for which `wrong(features)` holds, and says so as a
    device does: all faults in the database, then one KernelFault. The others are found good.
    """
    def hook(device: PosingDevice, plan: Plan) -> None:
        found = {k.entry: features(k) for k in plan.kernels if k.language == "opencl"}
        bad = {entry: f for entry, f in found.items() if wrong(f)}
        for entry, f in found.items():
            if entry not in bad:
                device.faults.found_good(f)
        if bad:
            variants = {s.kernel: s.variant for s in plan.steps}
            device.faults.record(*(
                Fault(entry, stage, kind, signature, tuple(f), variants[entry], "a log")
                for entry, f in bad.items()))
            raise KernelFault(f"{device.name}: {len(bad)} kernels failed: {signature}")
    return hook


GRAPH = """
graph @small(%x: f32[4,16], %w: f32[16,32]) {
  %1 = matmul(%x, %w)
  %2 = relu(%1)
  %y = softmax(%2) {axis=-1}
  return %y
}
"""


def softmax_of_relu(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What GRAPH computes."""
    x, w = inputs
    e = np.exp(np.maximum(x @ w, 0))
    return [e / e.sum(-1, keepdims=True)]
