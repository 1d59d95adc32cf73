"""`Plan`: all that a device needs to run one specialisation of a model, as plain serialisable data.

    inputs  --copy-->  buffers  --steps (kernel, arguments)-->  buffers  --copy-->  outputs

A plan knows its peak memory before anything is allocated, and holds no device handle, so that it
can be cached on disk and loaded by a fresh process without importing the model again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

BufferKind = Literal["input", "output", "const", "temp"]
Language = Literal["opencl", "numba", "jitcl"]      # jitcl: kernel IR as text


@dataclass(frozen=True)
class KernelSource:
    """One generated kernel. Two layers with equal `body` share it: it is built once.

    Names of the model's nodes stand in the steps' heads, never here.
    """

    entry: str                              # function's name in `body`: ops and a digest
    body: str                               # compilable text
    language: Language
    options: tuple[str, ...] = ()           # build options (OpenCL)
    template: str = ""                      # "" = generated loops


@dataclass(frozen=True)
class Step:
    """One launch: `kernel(buffers..., params...)`."""

    name: str                               # "conv_17": for people and profiles
    kernel: str                             # KernelSource.entry
    buffers: tuple[int, ...]                # indices into Plan.buffers, in the arguments' order
    params: tuple[int, ...] = ()            # integer arguments behind the buffers
    global_size: tuple[int, ...] = ()       # work-items (OpenCL), a multiple of local_size
    local_size: tuple[int, ...] = ()        # () lets the driver choose
    head: str = ""                          # the head comment of this use of the kernel
    origins: tuple[tuple[str, str], ...] = ()   # (node name, ONNX op type) of all fused here
    flops: int = 0
    bytes: int = 0                          # read and written, each buffer counted once
    writes: tuple[int, ...] = ()            # those of `buffers` that are written


@dataclass(frozen=True)
class BufferSpec:
    """A tensor's place in memory. `shape` is physical (after layout), in elements."""

    name: str
    dtype: str                              # jitcl dtype name: "f32", "i64", ...
    shape: tuple[int, ...]
    nbytes: int
    kind: BufferKind
    slot: int = -1                          # temp: which allocation of Plan.slots
    offset: int = 0                         # temp: bytes into the slot


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output as the caller sees it: logical row-major shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int                             # index into Plan.buffers


@dataclass(frozen=True)
class Plan:
    """Kernels, steps and memory of one specialisation."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[KernelSource, ...]
    steps: tuple[Step, ...]
    buffers: tuple[BufferSpec, ...]
    slots: tuple[int, ...]                  # bytes of each temporary allocation
    constants: dict[int, np.ndarray] = field(default_factory=dict)  # buffer -> packed physical data

    @property
    def peak_bytes(self) -> int:
        """Bytes a device must hold at once: slots, constants, inputs and outputs."""
        return sum(self.slots) + sum(b.nbytes for b in self.buffers if b.kind != "temp")
