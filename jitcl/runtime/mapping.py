"""Files mapped into memory, read-only, that hold no file handle: a process may map thousands."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from typing import Any, BinaryIO

_FAILED = ctypes.c_void_p(-1).value


def mapped(file: BinaryIO) -> memoryview:
    """An open file's bytes where the system keeps them. Raises OSError. An empty file is empty
    bytes.
    """
    handle = file.fileno()
    nbytes = os.fstat(handle).st_size
    if nbytes == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ, trackfd=False))
    if os.name != "posix" or sys.maxsize < 2**32:
        return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
    return _mapped(handle, nbytes)


def _mapped(handle: int, nbytes: int) -> memoryview:
    """`mmap.mmap` keeps a copy of the handle until Python 3.13."""
    map_, unmap = _calls()
    address = map_(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    held = (ctypes.c_char * nbytes).from_address(address)
    # not at exit: kernels may still run then in threads that nobody waits for
    weakref.finalize(held, unmap, address, nbytes).atexit = False
    return memoryview(held).cast("B").toreadonly()


@functools.cache
def _calls() -> tuple[Any, Any]:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                             ctypes.c_int, ctypes.c_int64]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library.mmap, library.munmap


__all__ = ["mapped"]
