"""Memory for a plan's temporaries that keeps its pages where it grows.

New pages are most of what a larger shape costs: a machine gives 2 to 10 GB/s of them, one that has
to ask its host for large ones 0.4. Large pages are worth up to 6% of a run.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

from jitcl.devices.results import mapping


class Arena:
    """Uninitialised bytes on a multiple of ALIGN. Raises MemoryError."""

    def __init__(self, nbytes: int) -> None:
        self._room: mmap.mmap | np.ndarray | None = None
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Have so many bytes, in the pages that there are. Parts are to be gone before: who has one
        yet (what `bind` gave) keeps it, and the arena is another.
        """
        room, self._room, self.nbytes = self._room, None, nbytes
        if isinstance(room, mmap.mmap):
            with suppress(BufferError, OSError):
                room.resize(max(nbytes, 1))
                self._room = room
                return
        del room                    # before there is another
        self._room = mapping(nbytes, huge=True)

    def vary(self) -> None:
        """From here on, what is touched first comes in small pages: other shapes touch other parts.
        """
        if isinstance(self._room, mmap.mmap):
            with suppress(OSError):
                self._room.madvise(mmap.MADV_NOHUGEPAGE)

    def part(self, offset: int, nbytes: int) -> np.ndarray:
        """These of its bytes."""
        assert self._room is not None
        return np.frombuffer(self._room, np.uint8)[offset:offset + nbytes]


__all__ = ["Arena"]
