"""A plan on an OpenCL device: buffers allocated and arguments set once, each run one pass over
the steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import BufferSpec, Plan, Step
from jitcl.devices.opencl.errors import device_error, translated
from jitcl.errors import DeviceError, InputError

if TYPE_CHECKING:
    from jitcl.devices.opencl.device import OpenClDevice

REPEATS = 16  # launches of one step that are timed together
SMALLEST = 16  # bytes of an allocation: a buffer may not be empty


@dataclass(frozen=True)
class Launch:
    """A step with its kernel's arguments set."""

    step: Step
    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None


@dataclass(frozen=True)
class StepTime:
    """Time of one step, in seconds: the median over the runs of a profile."""

    name: str
    seconds: float
    flops: int
    bytes: int


class OpenClExecutable:
    """A loaded specialisation of a model. `run` may be called from any thread; runs take turns."""

    def __init__(self, device: OpenClDevice, plan: Plan, programs: dict[str, Any]) -> None:
        self.device, self.plan = device, plan
        self._lock = threading.Lock()
        with translated(f"{device.name}: preparing a model"):
            self.queue = cl.CommandQueue(device.context, device.handle)
            self._slots = [
                self._allocate(n, f"temporary memory {i}") for i, n in enumerate(plan.slots)
            ]
            self._buffers = [self._place(i, b) for i, b in enumerate(plan.buffers)]
        self._launches = [self._prepare(s, programs) for s in plan.steps if 0 not in s.global_size]

    # ---- loading

    def _allocate(self, nbytes: int, what: str) -> Any:
        with translated(f"{self.device.name}: allocating {nbytes} bytes for {what}"):
            return cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, max(nbytes, SMALLEST))

    def _place(self, index: int, spec: BufferSpec) -> Any:
        """The device buffer of a plan's buffer; constants are uploaded here, once."""
        if spec.kind == "temp":
            return self._slot_part(spec)
        if index not in self.plan.constants:
            return self._allocate(spec.nbytes, f"buffer '{spec.name}'")
        data = np.ascontiguousarray(self.plan.constants[index]).reshape(-1).view(np.uint8)
        if data.nbytes != spec.nbytes:
            raise DeviceError(
                f"constant '{spec.name}' has {data.nbytes} bytes, its buffer {spec.nbytes}"
            )
        if data.nbytes < SMALLEST:
            data = np.concatenate([data, np.zeros(SMALLEST - data.nbytes, np.uint8)])
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        with translated(
            f"{self.device.name}: uploading constant '{spec.name}' ({data.nbytes} bytes)"
        ):
            return cl.Buffer(self.device.context, flags, hostbuf=data)

    def _slot_part(self, spec: BufferSpec) -> Any:
        slot = self._slots[spec.slot]
        if spec.offset == 0 or spec.nbytes == 0:
            return slot  # a kernel may see more bytes than it uses
        if spec.offset % self.device.target.alignment:
            raise DeviceError(
                f"buffer '{spec.name}' lies {spec.offset} bytes into its allocation; "
                f"{self.device.name} wants multiples of {self.device.target.alignment}"
            )
        return slot.get_sub_region(spec.offset, spec.nbytes)

    def _prepare(self, step: Step, programs: dict[str, Any]) -> Launch:
        """The step's own kernel object, all arguments set: setting one costs more than a launch."""
        with translated(f"{self.device.name}: preparing step '{step.name}'"):
            kernel = cl.Kernel(programs[step.kernel], step.kernel)
            wanted = len(step.buffers) + len(step.params)
            if kernel.num_args != wanted:
                raise DeviceError(
                    f"step '{step.name}': kernel '{step.kernel}' takes {kernel.num_args} arguments,"
                    f" the plan gives {wanted}"
                )
            for i, b in enumerate(step.buffers):
                kernel.set_arg(i, self._buffers[b])
            for i, value in enumerate(step.params, len(step.buffers)):
                kernel.set_arg(i, np.int32(value))  # kernels take their sizes as `int`
            local = self._fitting(step, kernel)
        if not local:
            return Launch(step, kernel, step.global_size, None)
        padded = tuple(-(-g // l) * l for g, l in zip(step.global_size, local))
        return Launch(step, kernel, padded, local)

    def _fitting(self, step: Step, kernel: Any) -> tuple[int, ...]:
        """The step's work-group, halved until the built kernel can run it (its guards allow more
        groups).
        """
        if not step.local_size:
            return ()
        info, handle = cl.kernel_work_group_info, self.device.handle
        limit = kernel.get_work_group_info(info.WORK_GROUP_SIZE, handle)
        required = tuple(kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, handle))
        local = fit_work_group(step.local_size, limit, self.device.max_items)
        if local != step.local_size and any(required):
            raise DeviceError(
                f"step '{step.name}': kernel '{step.kernel}' needs groups of {step.local_size}, "
                f"{self.device.name} runs it with at most {limit} work-items"
            )
        return local

    # ---- running

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Inputs in the order of plan.inputs (shape and dtype as there) -> fresh arrays, as
        plan.outputs.

        Raises InputError for an array that does not fit, DeviceError for what the driver refuses.
        """
        sources = self._check(arrays)
        with self._lock, translated(f"{self.device.name}: running a model"):
            self._upload(sources)
            self._enqueue(self.queue)
            return self._download()

    def profile(self, arrays: Sequence[np.ndarray], runs: int = 5) -> list[StepTime]:
        """Time of every step: the median over `runs`, after one to warm up. From the driver's
        events, or where these can't be trusted, from launches repeated.
        """
        sources = self._check(arrays)
        with self._lock, translated(f"{self.device.name}: profiling a model"):
            self._upload(sources)
            self._enqueue(self.queue)
            self.queue.finish()
            measure = self._event_times if self.device.target.trusted_events else self._wall_times
            times = measure(runs)
        medians = np.median(np.array(times), axis=0)
        return [
            StepTime(l.step.name, float(t), l.step.flops, l.step.bytes)
            for l, t in zip(self._launches, medians)
        ]

    def _event_times(self, runs: int) -> list[list[float]]:
        """Seconds of each run's steps, as a profiling queue tells them."""
        properties = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(self.device.context, self.device.handle, properties)
        times = []
        for _ in range(runs + 1):  # the first warms the queue up
            events = self._enqueue(queue, keep=True)
            queue.finish()
            times.append([(e.profile.end - e.profile.start) * 1e-9 for e in events])
        return times[1:]

    def _wall_times(self, runs: int) -> list[list[float]]:
        """The same by the clock: each step launched 1 + REPEATS times and once, the difference
        divided. What a step computes is then computed again from the same operands.
        """
        def seconds(launch: Launch, times: int) -> float:
            begin = time.perf_counter()
            for _ in range(times):
                cl.enqueue_nd_range_kernel(
                    self.queue, launch.kernel, launch.global_size, launch.local_size)
            self.queue.finish()
            return time.perf_counter() - begin

        def difference(launch: Launch) -> float:
            return max(1e-9, (seconds(launch, 1 + REPEATS) - seconds(launch, 1)) / REPEATS)

        return [[difference(launch) for launch in self._launches] for _ in range(runs)]

    def time(self, arrays: Sequence[np.ndarray], runs: int = 10) -> float:
        """Wall seconds of one pass over the steps, copies left out: the median over `runs`."""
        sources = self._check(arrays)
        with self._lock, translated(f"{self.device.name}: timing a model"):
            self._upload(sources)
            self._enqueue(self.queue)
            self.queue.finish()
            seconds = []
            for _ in range(runs):
                begin = time.perf_counter()
                self._enqueue(self.queue)
                self.queue.finish()
                seconds.append(time.perf_counter() - begin)
        return float(np.median(seconds))

    def _check(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The inputs as flat bytes; they are read before `run` returns, never kept."""
        specs = self.plan.inputs
        if len(arrays) != len(specs):
            raise InputError(
                f"got {len(arrays)} inputs, wanted {len(specs)}: {', '.join(s.name for s in specs)}"
            )
        flat = []
        for array, spec in zip(arrays, specs):
            want = dtypes.to_numpy(spec.dtype)
            if array.shape != spec.shape or array.dtype != want:
                raise InputError(
                    f"input '{spec.name}': got {array.dtype}{list(array.shape)}, "
                    f"wanted {want}{list(spec.shape)}"
                )
            flat.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return flat

    def _upload(self, sources: list[np.ndarray]) -> None:
        for data, spec in zip(sources, self.plan.inputs):
            if data.size:
                cl.enqueue_copy(self.queue, self._buffers[spec.buffer], data, is_blocking=False)

    def _enqueue(self, queue: Any, keep: bool = False) -> list[Any]:
        """Launch every step in order; returns the events where they are kept."""
        enqueue, events, marks = cl.enqueue_nd_range_kernel, [], []
        every, depth = self.device.target.flush_every, self.device.target.queue_depth
        for n, launch in enumerate(self._launches, 1):
            try:
                event = enqueue(queue, launch.kernel, launch.global_size, launch.local_size)
            except cl.Error as error:
                step = launch.step
                raise device_error(
                    f"{self.device.name}: step '{step.name}' (kernel '{step.kernel}', global size "
                    f"{launch.global_size}, local size {launch.local_size})",
                    error,
                ) from error
            if keep:
                events.append(event)
            if n % every == 0:
                queue.flush()
                marks.append(event)
                if len(marks) * every > depth:
                    marks.pop(0).wait()
        return events

    def _download(self) -> list[np.ndarray]:
        """Fresh arrays with the outputs; waits for all steps."""
        results = []
        for spec in self.plan.outputs:
            out = np.empty(spec.shape, dtypes.to_numpy(spec.dtype))
            if out.size:
                view = out.reshape(-1).view(np.uint8)
                cl.enqueue_copy(self.queue, view, self._buffers[spec.buffer], is_blocking=False)
            results.append(out)
        self.queue.finish()
        return results


def fit_work_group(
    local: tuple[int, ...], limit: int, max_items: tuple[int, ...]
) -> tuple[int, ...]:
    """`local`, its largest side halved until it has at most `limit` work-items and no side is
    over max_items.

    An odd side is cut to the power of two below it, so that reductions over a work-group stay
    trees.
    """
    sides = [min(s, m) for s, m in zip(local, max_items)]
    while math.prod(sides) > limit:
        widest = max(range(len(sides)), key=lambda d: sides[d])
        side = sides[widest]
        sides[widest] = side // 2 if side % 2 == 0 else 1 << ((side - 1).bit_length() - 1)
    return tuple(sides)
