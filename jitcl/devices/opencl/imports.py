"""Memory that others made, as arrays that kernels read where it lies: a cl_mem of the caller's
context, or a dma-buf, such as a camera's or a decoder's frame.

    cl_arm_import_memory            clImportMemoryARM takes the handle
    cl_khr_external_memory_dma_buf  a buffer with the handle as a property; the device is given it
                                    before each use, and gives it back behind that

Nobody but its owner frees it. The host reads and writes it through pinned memory.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import TensorSpec
from jitcl.devices.opencl.arrays import OpenClArray
from jitcl.devices.opencl.errors import CODE_NAMES
from jitcl.devices.opencl.session import Session
from jitcl.errors import DeviceError, InputError
from jitcl.forking import OPENCL

_ARM, _KHR = "cl_arm_import_memory", "cl_khr_external_memory_dma_buf"
_IMPORT_TYPE, _DMA_BUF, _CONSISTENT = 0x40B2, 0x40B4, 0x41E3    # CL_IMPORT_.._ARM
_DMA_BUF_KHR, _DEVICES_KHR = 0x2067, 0x2051     # CL_EXTERNAL_MEMORY_HANDLE_.., CL_DEVICE_HANDLE_..


def from_cl_mem(session: Session, spec: TensorSpec, buffer: Any) -> OpenClArray:
    """A pyopencl.Buffer of the session's context. InputError where it is of another, or small."""
    if not isinstance(buffer, cl.MemoryObject) or buffer.type != cl.mem_object_type.BUFFER:
        raise InputError(f"'{spec.name}': got {type(buffer).__name__}, wanted a pyopencl.Buffer")
    if buffer.context != session.context:
        raise InputError(
            f"'{spec.name}': this cl_mem is of another context than {session.name} is used in here"
            "\n  Compile the model for your own queue (device=queue), or make the buffer in "
            "tensor.cl_mem.context.")
    return _fitting(OpenClArray(session, spec, buffer.size, buffer))


def from_dma_buf(session: Session, spec: TensorSpec, handle: int) -> OpenClArray:
    """A dma-buf's first bytes, by its file handle, which may be closed afterwards. DeviceError
    where the driver can't import it.
    """
    nbytes = math.prod(spec.shape) * dtypes.to_numpy(spec.dtype).itemsize
    try:
        os.fstat(handle)
    except (OSError, TypeError, OverflowError) as error:
        raise InputError(f"'{spec.name}': {handle!r} is no open file handle: {error}") from error
    extensions = session.handle.extensions.split()
    if _ARM in extensions:
        make = _arm
    elif _KHR in extensions:
        make = _khr
    else:
        raise DeviceError(f"{session.name}: its driver imports no dma-buf: it has neither {_ARM} "
                          f"nor {_KHR}\n  Feed an array: np.frombuffer(mmap.mmap(handle, size)).")
    with OPENCL:
        code = ctypes.c_int32(0)
        memory = make(session, handle, nbytes, ctypes.byref(code))
    if not memory or code.value:
        name = CODE_NAMES.get(code.value, f"error {code.value}")
        raise DeviceError(f"{session.name}: importing the dma-buf of '{spec.name}' ({nbytes} bytes)"
                          f": {name}\n  Is {handle} a dma-buf, of that size?")
    buffer = cl.MemoryObject.from_int_ptr(memory, retain=False)
    kind = _Acquired if make is _khr else OpenClArray
    return _fitting(kind(session, spec, nbytes, buffer))


def _fitting(array: OpenClArray) -> OpenClArray:
    if array.buffer.size < array.nbytes:
        raise InputError(f"'{array.spec.name}': {array.dtype}{list(array.shape)} takes "
                         f"{array.nbytes} bytes, the memory has {array.buffer.size}")
    return array


class _Acquired(OpenClArray):
    """Memory that belongs to the device only between two commands."""

    acquires = True

    @contextmanager
    def acquired(self, queue: Any) -> Iterator[None]:
        self._command("Acquire", queue)
        try:
            yield
        finally:
            self._command("Release", queue)
            queue.finish()

    def _command(self, which: str, queue: Any) -> None:
        name = f"clEnqueue{which}ExternalMemObjectsKHR"
        function = _extension(self.home.handle.platform.int_ptr, name.encode())(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32,
            ctypes.c_void_p, ctypes.c_void_p)
        memory = ctypes.c_void_p(self.buffer.int_ptr)
        code = function(queue.int_ptr, 1, ctypes.addressof(memory), 0, None, None)
        if code:
            raise DeviceError(f"{self.device}: {name} for '{self.spec.name}': "
                              f"{CODE_NAMES.get(code, f'error {code}')}")


def _arm(session: Session, handle: int, nbytes: int, code: Any) -> Any:
    function = _extension(session.handle.platform.int_ptr, b"clImportMemoryARM")(
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_size_t, ctypes.c_void_p)
    properties = (ctypes.c_ssize_t * 5)(_IMPORT_TYPE, _DMA_BUF, _CONSISTENT, 1, 0)
    return function(session.context.int_ptr, cl.mem_flags.READ_WRITE, properties,
                    ctypes.byref(ctypes.c_int(handle)), nbytes, code)


def _khr(session: Session, handle: int, nbytes: int, code: Any) -> Any:
    function = _library().clCreateBufferWithProperties
    function.restype = ctypes.c_void_p
    properties = (ctypes.c_uint64 * 6)(_DMA_BUF_KHR, handle, _DEVICES_KHR, session.handle.int_ptr,
                                       0, 0)
    return function(ctypes.c_void_p(session.context.int_ptr), properties,
                    ctypes.c_uint64(cl.mem_flags.READ_WRITE), ctypes.c_size_t(nbytes), None, code)


@functools.cache
def _library() -> Any:
    """The loader that pyopencl calls, which has no calls of these extensions."""
    return ctypes.CDLL(cl._cl.__file__)


@functools.cache
def _extension(platform: int, name: bytes) -> Any:
    """A function of the driver, to be given its types."""
    find = _library().clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    address = find(platform, name)
    if not address:
        raise DeviceError(f"the driver names an extension and lacks its {name.decode()}")
    return lambda *types: ctypes.CFUNCTYPE(*types)(address)


__all__ = ["from_cl_mem", "from_dma_buf"]
