"""The reference device: runs a plan's kernels, as text IR, in the NumPy interpreter.

Slow and exact: what other devices are compared with. Kernels are taken unscheduled and without
templates, so that nothing but their meaning is under test; memory is laid out as the plan says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from jitcl import dtypes, forking
from jitcl.codegen.plan import Plan, Shapes
from jitcl.devices import recording
from jitcl.devices.base import Binding, Cache, Executable, Given, Progress, Repeat, Tally
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.repeated import one_by_one
from jitcl.devices.usage import Allocation, enlist
from jitcl.errors import DeviceError, OutOfMemoryError, closed_error
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Kernel
from jitcl.ir.parser import parse_kernel
from jitcl.ir.verify_kernel import verify_kernel
from jitcl.target import Target

TARGET = Target(kind="reference", name="NumPy interpreter", driver=np.__version__,
                fp16_arithmetic=True, bf16_storage=True)


class ReferenceDevice:
    """NumPy, one core."""

    name = hardware = "reference"
    target = TARGET
    memory_mode: Literal["arena", "slots"] = "arena"
    faults: FaultDatabase | None = None
    host_target: Target | None = None

    def reopen(self) -> None:
        """Nothing: there is nothing to lose."""

    def ahead(self, cache: Cache | None) -> None:
        """Nothing is built."""

    def load(self, plan: Plan, cache: Cache | None = None, progress: Progress | Tally | None = None,
             options: LoadOptions | None = None) -> ReferenceExecutable:
        """Parses and verifies the kernels and allocates all buffers; nothing is built or cached.

        DeviceError for kernels in another language, OutOfMemoryError with what was needed.
        """
        kernels: dict[str, Kernel] = {}
        with Tally.of(progress).part(len(plan.kernels), "building kernels") as part:
            for source in plan.kernels:
                if source.language != "jitcl":
                    raise DeviceError(f"kernel '{source.entry}' is written in {source.language}: "
                                      "the reference device runs text IR (language jitcl)")
                kernels[source.entry] = parse_kernel(source.body, source=source.entry)
                verify_kernel(kernels[source.entry])
                part.step()
        try:
            return ReferenceExecutable(plan, kernels)
        except MemoryError:
            raise OutOfMemoryError(f"the plan needs {plan.peak_bytes / 2**20:.0f} MiB, which the "
                                   "system refused\n  Use a smaller input or memory='low'."
                                   ) from None


class ReferenceExecutable(Executable):
    """A loaded plan. `run` may be called from any thread; calls take turns."""

    def __init__(self, plan: Plan, kernels: dict[str, Kernel]) -> None:
        self.plan, self.kernels = plan, kernels
        slots = [np.zeros(n, np.uint8) for n in plan.slots]
        self._memory: list[np.ndarray] = []
        for i, spec in enumerate(plan.buffers):
            if spec.kind == "const":
                array = np.ascontiguousarray(plan.constants[i]).reshape(spec.shape)
                array = dtypes.from_bits(array, spec.dtype)
            elif spec.kind == "temp" and spec.slot >= 0:    # -1: empty, no step touches it
                raw = slots[spec.slot][spec.offset:spec.offset + spec.nbytes]
                array = raw.view(dtypes.to_numpy(spec.dtype)).reshape(spec.shape)
            else:
                array = np.zeros(spec.shape, dtypes.to_numpy(spec.dtype))
            self._memory.append(array)
        self._lock = forking.lock()
        enlist(self)

    def run(self, inputs: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        """Outputs, as fresh arrays, of checked inputs in the plan's order."""
        assert shapes is None, "kernels as text IR have fixed sizes"
        with self._lock:
            if not self._memory and self.plan.buffers:
                raise closed_error("reference")
            for spec, array in zip(self.plan.inputs, inputs):
                np.copyto(self._memory[spec.buffer].reshape(spec.shape), array)
            for step in self.plan.steps:
                kernel = self.kernels[step.kernel]
                with recording.span("kernel", step.name, place="reference", step=step):
                    run_kernel(kernel, {b.name: self._memory[i].reshape(b.shape)
                                        for b, i in zip(kernel.buffers, step.buffers)})
            return [self._memory[s.buffer].reshape(s.shape).copy() for s in self.plan.outputs]

    def repeat(self, inputs: Sequence[np.ndarray], how: Repeat, shapes: Shapes | None = None
               ) -> list[np.ndarray]:
        return one_by_one(lambda given: self.run(given, shapes), inputs, how)

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        """None: inputs and outputs are copied."""
        return None

    @property
    def place(self) -> str:
        return "reference"

    def allocations(self) -> list[Allocation]:
        """Every buffer; temporaries share slots, and are counted as what they take."""
        return [Allocation(array.ctypes.data, array.nbytes, spec.kind == "const")
                for array, spec in zip(self._memory, self.plan.buffers)]

    def close(self) -> None:
        """Let go of memory, when a run that is under way has ended."""
        with self._lock:
            self._memory.clear()
