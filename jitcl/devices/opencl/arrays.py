"""Arrays on an OpenCL device that are no plan's: results that stay there, what `bind` fills.

    memory is shared      a buffer over this process's memory: map it, and both see the same bytes
    otherwise             a buffer of the device's; through pinned memory, which it reads itself

Host memory that was given out stays readable for as long as somebody has it, whatever becomes of
the buffer: it belongs to NumPy, or to a mapping that is not undone.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import TensorSpec
from jitcl.devices.base import DeviceArray
from jitcl.devices.opencl.errors import translated
from jitcl.devices.opencl.memory import SMALLEST, release
from jitcl.devices.opencl.session import Session
from jitcl.devices.usage import Allocation, enlist
from jitcl.errors import DeviceError, InputError

_FLAGS = cl.mem_flags
_READ_WRITE: Any = cl.map_flags.READ | cl.map_flags.WRITE
_enqueue_map: Any = cl.enqueue_map_buffer


class OpenClArray(DeviceArray):
    """`capacity` bytes on a device, of which the first are elements. Not for two threads at once.
    """

    home: Session
    acquires = False                # whether `acquired` does anything: runs ask this of each array

    def __init__(self, session: Session, spec: TensorSpec, capacity: int, buffer: Any = None
                 ) -> None:
        """buffer: one that is its owner's, who gives it back."""
        self.home, self.spec = session, spec
        self.whole: OpenClArray | None = None           # that it is a part of, from byte `first` on
        self.first = 0
        self.dtype, self.shape = dtypes.to_numpy(spec.dtype), spec.shape
        self.nbytes = math.prod(spec.shape) * self.dtype.itemsize
        self.capacity = max(capacity, self.nbytes, SMALLEST)
        self.in_place, self._own = buffer is None and shares_memory(session), buffer is None
        self._host: np.ndarray | None = None            # its own bytes, or pinned ones
        self._mapped: Any = None
        self.buffer: Any = buffer
        if buffer is None:
            self._allocate()

    def _allocate(self) -> None:
        session, spec = self.home, self.spec
        with translated(f"{session.name}: memory for '{spec.name}' ({self.capacity} bytes)",
                        allocating=True):
            if self.in_place:
                self._host = _pages(self.capacity)
                self.buffer = cl.Buffer(
                    session.context, _FLAGS.READ_WRITE | _FLAGS.USE_HOST_PTR, hostbuf=self._host)
            else:
                self.buffer = cl.Buffer(session.context, _FLAGS.READ_WRITE, self.capacity)
        enlist(self)

    @property
    def place(self) -> str:
        return self.home.spec

    @property
    def device(self) -> str:
        return self.home.name

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def allocations(self) -> list[Allocation]:
        if self.buffer is None or not self._own:
            return []
        return [Allocation(id(self.buffer), self.capacity, False)]

    def check(self) -> None:
        if self.home.ended:
            raise DeviceError(f"{self.device}: {self.home.ended.replace('model', 'array')}\n"
                              "  Compute it again: what lay on the device is lost.")

    def read(self) -> np.ndarray:
        self.check()
        array = np.empty(self.shape, self.dtype)
        queue = self.home.transfers
        if array.size:
            with translated(f"{self.device}: reading '{self.spec.name}'"), self.acquired(queue):
                cl.enqueue_copy(queue, array.reshape(-1).view(np.uint8), self.buffer,
                                is_blocking=True)
        return array

    def open(self, read: bool = True, wait: bool = True) -> np.ndarray:
        """wait: until the host may read and write; else the queue of transfers says when."""
        self.check()
        queue = self.home.transfers
        with translated(f"{self.device}: mapping '{self.spec.name}'", allocating=True):
            if self.in_place:
                self._mapped, _ = _enqueue_map(queue, self.buffer, _READ_WRITE, 0,
                                               (self.capacity,), np.uint8, is_blocking=wait)
            else:
                if self._host is None:
                    self._host = pinned(self.home, queue, self.capacity)
                if read:
                    with self.acquired(queue):
                        cl.enqueue_copy(queue, self._host, self.buffer, is_blocking=wait)
        assert self._host is not None
        return self._host[:self.nbytes].view(self.dtype).reshape(self.shape)

    def shut(self, write: bool = True, again: bool = False, wait: bool = True) -> None:
        queue = self.home.transfers
        with translated(f"{self.device}: giving '{self.spec.name}' back"):
            if self.in_place:
                mapped, self._mapped = self._mapped, None
                if mapped is not None:
                    mapped.base.release(queue)
                    if wait:
                        queue.finish()
            elif write and self._host is not None:
                with self.acquired(queue):
                    cl.enqueue_copy(queue, self.buffer, self._host, is_blocking=wait)
        if not (self.in_place or again):                # pinned memory is scarce
            self._host = None

    def part(self, first: int, count: int) -> OpenClArray:
        row = self.nbytes // self.shape[0]
        if first * row % self.home.target.alignment:
            raise InputError(f"'{self.spec.name}' from place {first} on: a part begins at a "
                             f"multiple of {self.home.target.alignment} bytes, not {first * row}")
        spec = replace(self.spec, shape=(count, *self.shape[1:]))
        with translated(f"{self.device}: a part of '{self.spec.name}'"):
            buffer = (self.buffer.get_sub_region(first * row, count * row)
                      if count < self.shape[0] else self.buffer)
        return OpenClArray(self.home, spec, count * row, buffer)

    @classmethod
    def together(cls, session: Session, specs: Sequence[TensorSpec], sizes: Sequence[int]
                 ) -> list[OpenClArray]:
        """Arrays of at least these bytes in one buffer."""
        if not specs:
            return []
        align = session.target.alignment
        firsts = [0, *accumulate(-(-max(n, SMALLEST) // align) * align for n in sizes)]
        whole = cls(session, TensorSpec("results", "u8", (firsts[-1],), -1), firsts[-1])
        made = []
        for spec, first, nbytes in zip(specs, firsts, sizes):
            with translated(f"{session.name}: a part for '{spec.name}'"):
                part = cls(session, spec, nbytes, whole.buffer.get_sub_region(
                    first, max(nbytes, SMALLEST)))
            part.whole, part.first = whole, first
            made.append(part)
        return made

    def put(self, source: DeviceArray | np.ndarray, pieces: Sequence[tuple[int, int, int]],
            queue: Any = None) -> list[Any]:
        """As for any array; what comes from the host is there at once."""
        self.check()
        queue, events = queue or self.home.transfers, list[Any]()
        with translated(f"{self.device}: writing '{self.spec.name}'"), self.acquired(queue):
            given = (np.ascontiguousarray(source).reshape(-1).view(np.uint8)
                     if isinstance(source, np.ndarray) else None)
            for to, start, nbytes in pieces:
                if given is not None:
                    cl.enqueue_copy(queue, self.buffer, given[start:start + nbytes],
                                    dst_offset=to, is_blocking=True)
                else:
                    assert isinstance(source, OpenClArray)
                    events.append(cl.enqueue_copy(
                        queue, self.buffer, source.buffer, byte_count=nbytes, src_offset=start,
                        dst_offset=to))
        return events

    def put_each(self, sources: Sequence[DeviceArray | np.ndarray], to: int, pitch: int,
                 start: int, nbytes: int, queue: Any = None) -> list[Any]:
        """`nbytes` from byte `start` on of each source to byte `to`, `to + pitch`, ..: one command
        where they lie evenly in one buffer, and the last one's pitch ends in its buffer, too:
        NVIDIA's driver (580.159) refuses a rectangle whose last row is cut short.
        """
        first, count = sources[0], len(sources)
        whole = first.whole if isinstance(first, OpenClArray) else None
        at = [s.first for s in sources if isinstance(s, OpenClArray) and s.whole is whole]
        step = at[1] - at[0] if len(at) > 1 else 0
        even = (0 < nbytes <= min(step, pitch)
                and at == [*range(at[0], at[0] + count * step, step)])
        if (whole is None or not even or (to // pitch + count) * pitch > self.capacity
                or ((at[0] + start) // step + count) * step > whole.capacity):
            return super().put_each(sources, to, pitch, start, nbytes, queue)
        self.check()
        queue = queue or self.home.transfers
        with translated(f"{self.device}: writing '{self.spec.name}'"), self.acquired(queue):
            (y, x), (b, a) = divmod(to, pitch), divmod(at[0] + start, step)
            return [cl.enqueue_copy(queue, self.buffer, whole.buffer, dst_origin=(x, y, 0),
                                    src_origin=(a, b, 0), region=(nbytes, count, 1),
                                    dst_pitches=(pitch, 0), src_pitches=(step, 0))]

    def fill(self, first: int, nbytes: int) -> None:
        self.check()
        queue = self.home.transfers
        with translated(f"{self.device}: clearing '{self.spec.name}'"), self.acquired(queue):
            if nbytes:
                cl.enqueue_fill_buffer(queue, self.buffer, np.zeros(1, np.uint8), first, nbytes)

    def settle(self) -> None:
        """Wait for what was put."""
        with translated(f"{self.device}: copies to '{self.spec.name}'"):
            self.home.transfers.finish()

    def close(self) -> None:
        if self.buffer is None:
            return
        if self._mapped is not None:
            with contextlib.suppress(DeviceError):
                self.shut(write=False)
        if self._own:
            release(self.buffer)
        self.buffer = None

    def acquired(self, queue: Any) -> AbstractContextManager[None]:
        """The memory is the device's while this lasts, for commands of the queue."""
        return contextlib.nullcontext()


def fed_together(session: Session, queue: Any, specs: Sequence[TensorSpec], sizes: Sequence[int]
                 ) -> tuple[dict[str, OpenClArray], dict[str, np.ndarray], Any]:
    """Arrays in one buffer, by name; those of the host's that they come from, zeros at first; (the
    buffer, the pinned memory), to be copied at once, None of no arrays."""
    found = OpenClArray.together(session, specs, sizes)
    whole = found[0].whole if found else None
    if whole is None:
        return {}, {}, None
    host = pinned(session, queue, whole.nbytes)
    host[:] = 0
    views = {x.spec.name: host[x.first:x.first + x.nbytes].view(x.dtype).reshape(x.shape)
             for x in found}
    return {x.spec.name: x for x in found}, views, (whole.buffer, host)


def pinned(session: Session, queue: Any, nbytes: int) -> np.ndarray:
    """Memory that the device reads itself; it is given back when nobody has it any more."""
    with translated(f"{session.name}: pinning {nbytes} bytes", allocating=True):
        memory = cl.Buffer(session.context, _FLAGS.READ_WRITE | _FLAGS.ALLOC_HOST_PTR, nbytes)
        found: np.ndarray
        found, _ = _enqueue_map(queue, memory, _READ_WRITE, 0, (nbytes,), np.uint8,
                                is_blocking=True)
        return found


def shares_memory(session: Session) -> bool:
    """Whether the device works on this process's memory: CPUs, and GPUs beside them."""
    if session.target.device_type == "cpu":
        return True
    with contextlib.suppress(cl.Error):
        return bool(session.handle.host_unified_memory)
    return False


def _pages(nbytes: int) -> np.ndarray:
    """Zeros that begin and end with a page, as drivers want what they are to share."""
    page = mmap.PAGESIZE
    whole = -(-nbytes // page) * page
    raw = np.zeros(whole + page, np.uint8)
    start = -raw.ctypes.data % page
    return raw[start:start + whole]


__all__ = ["OpenClArray", "fed_together", "pinned", "shares_memory"]
