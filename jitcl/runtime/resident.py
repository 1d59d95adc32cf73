"""Memory that is free, but still this process's."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Free pages of the C library's heap go back to the system: glibc keeps those that lie between
    used ones, hundreds of MB where weights were arranged. Elsewhere nothing happens."""
    call = _malloc_trim()
    if call is not None:
        call(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):    # musl, macOS; Windows has no CDLL of None
        return None
    return found
