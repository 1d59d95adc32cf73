"""Memory for results: what nobody has any more is taken again.

New memory costs more than the results that it is for: 2 GB/s as the system gives pages, one by one,
where copies from a GPU take 9 and a kernel writes faster still.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from jitcl.cores import usable_cores
from jitcl.devices.usage import Allocation, enlist

ALIGN = 64                  # bytes: a cache line, and the widest vector
LEAST = 1 << 20             # bytes of a result whose memory is taken again; less, allocators keep
AT_ONCE = 8 << 20           # bytes of new memory from which threads that ask for pages pay
THREADS = 4                 # of those
PAGE = 4096
HUGE = 4 << 20              # bytes from which NumPy asks for large pages


def placed_empty(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> tuple[np.ndarray, int]:
    """An uninitialised array on a multiple of ALIGN, and its address: `ndarray.ctypes` takes longer
    to say it than all of this."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = ctypes.addressof(ctypes.c_char.from_buffer(raw.data))
    skip = -start % ALIGN
    return np.ndarray(shape, dtype, raw, skip), start + skip


def mapping(nbytes: int, huge: bool) -> mmap.mmap | np.ndarray:
    """Uninitialised bytes on a multiple of ALIGN, in large pages where there are many, or in small
    ones; on Linux a mapping, which can become larger. Raises MemoryError.

    A virtual machine that has given its free memory back asks its host for each page, 0.4 GB/s.
    That is where large pages come from; small ones are left over from what was freed.
    """
    if sys.platform != "linux":
        return placed_empty((nbytes,), np.dtype(np.uint8), nbytes)[0]
    try:
        room = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(*error.args) from error
    if nbytes >= HUGE:
        with suppress(OSError):     # a kernel without large ones
            room.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return room


class _Dropped(dict[int, np.ndarray]):
    """Blocks that nobody has, by their results' numbers."""


class _Lent:
    """A block that an array lies in. When that and all views of it are gone, it is given back, if
    anybody still gives results: those that somebody has must not hold what others were.
    """

    def __init__(self, back: _Dropped, number: int, block: np.ndarray, nbytes: int) -> None:
        self._back, self._number, self._block = weakref.ref(back), number, block
        self.address = block.ctypes.data
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def __del__(self) -> None:
        back = self._back()
        if back is not None:
            back[self._number] = self._block


class Results:
    """Gives arrays for results by their number; keeps one block of each that was dropped."""

    place = "cpu"

    def __init__(self) -> None:
        self._dropped = _Dropped()
        self._small = False
        enlist(self)

    def allocations(self) -> list[Allocation]:
        return [Allocation(id(block), block.nbytes, False)
                for block in list(self._dropped.values())]

    def vary(self) -> None:
        """From here on, what is new comes in small pages: other shapes need other blocks."""
        self._small = True

    def large(self, number: int, shape: tuple[int, ...], dtype: np.dtype
              ) -> tuple[np.ndarray, int, bool]:
        """An uninitialised array of LEAST bytes or more on a multiple of ALIGN, its address, and
        whether its memory is new.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        block, new = self._dropped.pop(number, None), False
        if block is None or not nbytes <= block.nbytes <= 2 * nbytes:
            small = self._small and nbytes >= HUGE
            block = (np.frombuffer(mapping(nbytes, huge=False), np.uint8) if small else
                     placed_empty((nbytes,), np.dtype(np.uint8), nbytes)[0])
            new = True
        lent = _Lent(self._dropped, number, block, nbytes)
        return np.asarray(lent).view(dtype).reshape(shape), lent.address, new

    def all(self, wanted: Sequence[tuple[tuple[int, ...], np.dtype]],
            meanwhile: Callable[[], object]) -> list[np.ndarray]:
        """An uninitialised array for each; what is large has its pages. `meanwhile` begins what the
        device does while it waits for many.
        """
        found, fresh = [], []
        for number, (shape, dtype) in enumerate(wanted):
            if math.prod(shape) * dtype.itemsize < LEAST:
                found.append(np.empty(shape, dtype))
                continue
            array, _, new = self.large(number, shape, dtype)
            found.append(array)
            if new:
                fresh.append(array.reshape(-1).view(np.uint8))
        if sum(x.nbytes for x in fresh) >= AT_ONCE:
            meanwhile()
            with (suppress(RuntimeError),   # no thread begins at Python's end: pages come later
                  ThreadPoolExecutor(min(THREADS, usable_cores())) as threads):
                list(threads.map(_ask_for_pages, fresh))
        return found

    def clear(self) -> None:
        """Keep nothing that was dropped, nor what still will be."""
        self._dropped = _Dropped()


def _ask_for_pages(data: np.ndarray) -> None:
    data[::PAGE] = 0


__all__ = ["ALIGN", "LEAST", "Results", "mapping", "placed_empty"]
