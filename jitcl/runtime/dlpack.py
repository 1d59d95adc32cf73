"""Tensors of other libraries through DLPack (https://dmlc.github.io/dlpack), copied.

NumPy's own reader knows no bfloat16 and no floats of 8 bits, which is what such tensors are fed
for; the structures are few enough to be read here.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError

# kDLCPU, kDLCUDAHost, kDLROCMHost: memory that this process can read
HOST = (1, 3, 11)
DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed",
           14: "oneAPI", 15: "WebGPU", 16: "Hexagon"}
# (code, bits) of DLDataType; 8-bit floats are those that the standard numbers
TYPES = {(0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
         (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
         (2, 16): "f16", (2, 32): "f32", (2, 64): "f64", (4, 16): "bf16", (6, 8): "bool",
         (10, 8): "f8e4m3", (11, 8): "f8e4m3z", (12, 8): "f8e5m2", (13, 8): "f8e5m2z",
         (14, 8): "f8e8m0"}


class _Tensor(ctypes.Structure):
    """DLTensor, with which a DLManagedTensor begins."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64))


def is_exporter(value: Any) -> bool:
    """Whether an object (no class) gives its elements through DLPack."""
    return hasattr(value, "__dlpack__") and not isinstance(value, type)


def check_device(value: Any, where: str) -> None:
    """InputError, which begins with `where`, for a tensor that lies on another device."""
    try:
        kind = int(value.__dlpack_device__()[0])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{where}: got a {type(value).__name__} that does not say on which device "
                         f"it lies: {error}") from error
    if kind not in HOST:
        raise InputError(f"{where}: got a {type(value).__name__} on a device ("
                         f"{DEVICES.get(kind, f'DLPack type {kind}')}); copy it to this machine's "
                         "memory first: tensor.cpu(), or numpy.asarray")


def to_numpy(value: Any) -> np.ndarray:
    """A copy of the elements. Raises TypeError for types that jitcl lacks, ValueError for what is
    no tensor, and what the object itself raises.
    """
    capsule = value.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    except (TypeError, ctypes.ArgumentError) as error:
        raise ValueError(f"its __dlpack__ gave no DLPack capsule: {error}") from error
    dtype = TYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise TypeError(f"elements of DLPack type {tensor.code} with {tensor.bits} bits are not "
                        "known")
    want = dtypes.to_numpy(dtype)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, want)
    if tensor.strides:
        strides = tuple(tensor.strides[i] * want.itemsize for i in range(tensor.ndim))
    else:
        strides = np.empty(0, want).strides if not shape else _compact(shape, want.itemsize)
    steps = [(n - 1) * s for n, s in zip(shape, strides)]
    below, above = -sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + want.itemsize
    start = tensor.data + tensor.byte_offset - below
    memory = (ctypes.c_char * (below + above)).from_address(start)
    return np.ndarray(shape, want, memory, below, strides if shape else ()).copy()


def _compact(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a tensor in row-major order."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


__all__ = ["check_device", "is_exporter", "to_numpy"]
