"""A plan's buffers on an OpenCL device: allocated, filled with constants, released.

    ResidentMemory   everything from load to close; temporaries share the plan's slots
    StreamedMemory   each buffer from the first action that touches it to the last, every run anew
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.codegen.plan import BufferSpec, Plan
from jitcl.devices.opencl.errors import translated
from jitcl.devices.opencl.session import Session, Weight
from jitcl.devices.usage import Allocation, enlist
from jitcl.errors import DeviceError, OutOfMemoryError

ADVICE = "Use smaller inputs or batches, or another device."
SMALLEST = 16  # bytes of an allocation: a buffer may not be empty, and a pixel has up to as many
PIXEL = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
HALVES = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.HALF_FLOAT)


class Memory:
    """Buffers by their number in the plan. Whatever it holds, `release` gives back; constants that
    other plans use, too, with the last of these.
    """

    def __init__(self, session: Session, plan: Plan) -> None:
        self.session, self.plan = session, plan
        self._buffers: dict[int, Any] = {}
        self._images: dict[int, Any] = {}
        self._slots: dict[int, tuple[Any, int]] = {}        # and their bytes
        self._weights: dict[int, Weight] = {}       # those of the buffers that are shared
        enlist(self)

    @property
    def place(self) -> str:
        return self.session.spec

    def allocations(self) -> list[Allocation]:
        """Slots, and what lies in none."""
        plan = self.plan
        found = [Allocation(id(slot), max(nbytes, SMALLEST), False)     # not as the plan has them:
                 for slot, nbytes in list(self._slots.values())]        # another thread may move it
        parts = {n for n, spec in enumerate(plan.buffers) if spec.kind == "temp" and self._slots}
        return found + [
            Allocation(id(buffer), max(plan.buffers[n].nbytes, SMALLEST), n in plan.constants)
            for n, buffer in list(self._buffers.items()) if n not in parts]

    def __getitem__(self, index: int) -> Any:
        return self._buffers[index]

    def image(self, index: int) -> Any:
        """The same bytes as an image1d_buffer of four floats or halves a pixel, read as float4."""
        if index not in self._images:
            spec = self.plan.buffers[index]
            pixel, nbytes = (HALVES, 8) if spec.dtype == "f16" else (PIXEL, 16)
            with translated(f"{self.session.name}: an image of buffer '{spec.name}'"):
                self._images[index] = cl.create_image(
                    self.session.context, cl.mem_flags.READ_ONLY, pixel,
                    shape=(max(spec.nbytes, SMALLEST) // nbytes,), buffer=self._buffers[index])
        return self._images[index]

    def release(self) -> None:
        """Give all memory back; the driver waits for launches that use it."""
        self._give_back(list(self._buffers))

    def _give_back(self, indices: Iterable[int]) -> None:
        """Buffers, and all slots."""
        wanted = list(indices)
        self._forget(wanted)
        found = [held.pop(n) for held in (self._images, self._buffers) for n in wanted if n in held]
        found += [slot for slot, _ in self._slots.values()]     # parts before what they are part of
        self._slots.clear()
        for memory in dict.fromkeys(found):
            release(memory)

    def _forget(self, indices: Iterable[int]) -> None:
        """Let go of what is shared: its last holder gives it back."""
        for index in indices:
            if index in self._weights:
                image = self._images.pop(index, None)
                if image is not None:
                    release(image)
                del self._buffers[index], self._weights[index]

    def room(self, nbytes: int, what: str) -> Any:
        """An allocation of so many bytes, which the caller releases."""
        doing = f"{self.session.name}: allocating {nbytes} bytes for {what}"
        with translated(doing, allocating=True):
            return cl.Buffer(self.session.context, cl.mem_flags.READ_WRITE, max(nbytes, SMALLEST))

    def _own(self, index: int) -> Any:
        """An allocation for one buffer alone; with its data where it is a constant."""
        spec = self.plan.buffers[index]
        if index not in self.plan.constants:
            return self.room(spec.nbytes, f"buffer '{spec.name}'")
        digest = self.plan.weights.get(index)
        if digest is None:
            return self._upload(index)
        self._weights[index] = self.session.uploaded.take(digest, lambda: self._upload(index))
        return self._weights[index].buffer

    def _upload(self, index: int) -> Any:
        """A constant in an allocation of its own; on a CPU, where it lies: the mapped file that all
        plans use is not copied.
        """
        spec = self.plan.buffers[index]
        data = np.ascontiguousarray(self.plan.constants[index]).reshape(-1).view(np.uint8)
        if data.nbytes != spec.nbytes:
            raise DeviceError(
                f"constant '{spec.name}' has {data.nbytes} bytes, its buffer {spec.nbytes}"
            )
        if data.nbytes < SMALLEST:
            data = np.concatenate([data, np.zeros(SMALLEST - data.nbytes, np.uint8)])
        cpu = self.session.target.device_type == "cpu"
        flags = cl.mem_flags.READ_ONLY | (
            cl.mem_flags.USE_HOST_PTR if cpu else cl.mem_flags.COPY_HOST_PTR)
        doing = f"{self.session.name}: uploading constant '{spec.name}' ({data.nbytes} bytes)"
        with translated(doing, allocating=True):
            return cl.Buffer(self.session.context, flags, hostbuf=data)


class ResidentMemory(Memory):
    """All buffers that are `used`, allocated at once."""

    def __init__(self, session: Session, plan: Plan, used: Iterable[int]) -> None:
        super().__init__(session, plan)
        self.used = sorted(used)

    @property
    def released(self) -> bool:
        return len(self._buffers) < len(self.used)

    def move(self, plan: Plan) -> None:
        """Give back all but constants, and inputs and results that are as large as they will be: an
        allocation of a GPU's takes up to a millisecond. What is allocated next is for another
        layout of the plan, which may be what an interrupt left in the midst of.
        """
        self.plan = plan
        self._give_back(n for n in self.used if n not in plan.constants and not (
            plan.buffers[n].kind != "temp" and n in self._buffers
            and self._buffers[n].size == max(plan.buffers[n].nbytes, SMALLEST)))

    def allocate(self) -> None:
        """Allocate what is not, upload constants. What there is when it fails is for `release`."""
        for index in self.used:
            if index in self._buffers:
                continue
            spec = self.plan.buffers[index]
            temporary = spec.kind == "temp"
            self._buffers[index] = self._part(spec) if temporary else self._own(index)

    def _part(self, spec: BufferSpec) -> Any:
        """A temporary's place in its slot."""
        if spec.slot not in self._slots:
            what, nbytes = f"temporary memory {spec.slot}", self.plan.slots[spec.slot]
            self._slots[spec.slot] = self.room(nbytes, what), nbytes
        slot, _ = self._slots[spec.slot]
        if spec.offset == 0 or spec.nbytes == 0:
            return slot  # a kernel may see more bytes than it uses
        if spec.offset % self.session.target.alignment:
            raise DeviceError(
                f"buffer '{spec.name}' lies {spec.offset} bytes into its allocation; "
                f"{self.session.name} wants multiples of {self.session.target.alignment}"
            )
        with translated(f"{self.session.name}: the part of a slot for buffer '{spec.name}'"):
            return slot.get_sub_region(spec.offset, spec.nbytes)


class StreamedMemory(Memory):
    """Buffers of one run."""

    def enter(self, indices: Iterable[int], inputs: dict[int, np.ndarray], queue: Any) -> None:
        """Allocate buffers, upload those of them that are constants or inputs."""
        for index in indices:
            self._buffers[index] = self._own(index)
            data = inputs.get(index)
            if data is not None and data.size:
                cl.enqueue_copy(queue, self._buffers[index], data, is_blocking=True)

    def leave(self, indices: Sequence[int]) -> None:
        """Release buffers that no launch in flight uses."""
        self._forget(indices)
        for index in indices:
            for held in (self._images, self._buffers):
                memory = held.pop(index, None)
                if memory is not None:
                    release(memory)


def release(memory: Any) -> None:
    """Give memory back now, not when the last reference goes."""
    with contextlib.suppress(cl.Error):  # of a context that is lost: it was freed with that
        memory.release()


def check_room(session: Session, plan: Plan) -> None:
    """Raise OutOfMemoryError where the plan, or one of its allocations, is larger than the device
    allows.
    """
    target = session.target
    if plan.peak_bytes > target.global_memory:
        raise OutOfMemoryError(
            f"{session.name}: the model needs {_size(plan.peak_bytes)}, the device has "
            f"{_size(target.global_memory)}\n  {ADVICE}"
        )
    nbytes, what = max(plan.allocations(), default=(0, ""))
    if nbytes > target.max_allocation:
        raise OutOfMemoryError(
            f"{session.name}: {what} needs {_size(nbytes)}, the device allocates at most "
            f"{_size(target.max_allocation)}\n  {ADVICE}"
        )


def _size(nbytes: int) -> str:
    """Bytes for people, exact below a MiB."""
    if nbytes < 1 << 20:
        return f"{nbytes} bytes"
    return f"{nbytes / (1 << 20):.0f} MiB" if nbytes < 1 << 32 else f"{nbytes / (1 << 30):.1f} GiB"

