"""cl_khr_command_buffer through ctypes: pyopencl does not know it.

Functions are asked of the loader library that pyopencl loaded: another copy of it would know
nothing of pyopencl's handles.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from jitcl.devices.opencl.probes.bench import Bench, Refused

FUNCTIONS = ("clCreateCommandBufferKHR", "clCommandNDRangeKernelKHR", "clFinalizeCommandBufferKHR",
             "clEnqueueCommandBufferKHR", "clReleaseCommandBufferKHR")


def record_and_run(bench: Bench, kernel: Any, items: int, runs: int) -> None:
    """Record one launch of `items` work-items, and enqueue the record some times; waits."""
    create, command, finalise, enqueue, release = _functions(bench)
    queue = ctypes.c_void_p(bench.queue.int_ptr)
    error = ctypes.c_int(0)
    record = ctypes.c_void_p(create(1, ctypes.byref(queue), None, ctypes.byref(error)))
    _check("clCreateCommandBufferKHR", error.value)
    size = ctypes.c_size_t(items)
    point = ctypes.c_uint(0)
    try:
        _check("clCommandNDRangeKernelKHR", command(
            record, None, None, ctypes.c_void_p(kernel.int_ptr), 1, None, ctypes.byref(size), None,
            0, None, ctypes.byref(point), None))
        _check("clFinalizeCommandBufferKHR", finalise(record))
        for _ in range(runs):
            _check("clEnqueueCommandBufferKHR", enqueue(0, None, record, 0, None, None))
            bench.queue.finish()
    finally:
        release(record)


def _functions(bench: Bench) -> list[Any]:
    """The extension's functions, in the order of FUNCTIONS; Refused where one is missing."""
    loader = _loader()
    find = loader.clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    platform = ctypes.c_void_p(bench.device.platform.int_ptr)
    found = []
    for name in FUNCTIONS:
        address = find(platform, name.encode())
        if not address:
            raise Refused(f"the driver lists the extension and lacks {name}")
        result = ctypes.c_void_p if name == FUNCTIONS[0] else ctypes.c_int
        found.append(ctypes.CFUNCTYPE(result, *_ARGUMENTS[name])(address))
    return found


_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_uint
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "clCreateCommandBufferKHR": (_COUNT, _POINTER, _POINTER, _POINTER),
    "clCommandNDRangeKernelKHR": (_POINTER, _POINTER, _POINTER, _POINTER, _COUNT, _POINTER,
                                  _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER),
    "clFinalizeCommandBufferKHR": (_POINTER,),
    "clEnqueueCommandBufferKHR": (_COUNT, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER),
    "clReleaseCommandBufferKHR": (_POINTER,),
}


def _loader() -> Any:
    """The OpenCL library of this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        raise Refused("the loader's library is found on Linux only") from None
    found = re.search(r"(/\S*libOpenCL[^\s/]*)$", maps, re.M)
    if found is None:
        raise Refused("no libOpenCL is loaded")
    return ctypes.CDLL(found[1])


def _check(what: str, status: int) -> None:
    if status != 0:
        raise Refused(f"{what}: error {status}")
