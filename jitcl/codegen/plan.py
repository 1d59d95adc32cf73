"""`Plan`: all that a device needs to run one specialisation of a model, as plain serialisable data.

    inputs  --copy-->  buffers  --steps (kernel, arguments)-->  buffers  --copy-->  outputs

A plan knows its peak memory before anything is allocated, and holds no device handle, so that it
can be cached on disk and loaded by a fresh process without importing the model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from jitcl.forking import cached_property
from jitcl.ir.group import Watched
from jitcl.ir.indices import IndexCheck
from jitcl.ir.size_ranges import everywhere
from jitcl.ir.sizes import Space, at
from jitcl.target.features import features_of

BufferKind = Literal["input", "output", "const", "temp"]
Language = Literal["opencl", "numba", "jitcl"]      # jitcl: kernel IR as text
LANGUAGE: dict[str, Language] = {                   # of a kind of device
    "cpu": "numba", "opencl": "opencl", "reference": "jitcl"}
# takes a constant while a plan is written, and gives it from where it is to lie, now or soon
Keep = Callable[[np.ndarray], "np.ndarray | Future[np.ndarray]"]


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
    params: tuple[str, ...] = ()            # names of the integer arguments behind the buffers

    @property
    def features(self) -> frozenset[str]:
        """What it uses of a driver's compiler; nothing, if that compiler never sees it."""
        if self.language != "opencl":
            return frozenset()
        return features_of(self.body, self.options, self.template)


@dataclass(frozen=True)
class Step:
    """One launch: `kernel(buffers..., params...)`."""

    name: str                               # "conv_17": for people and profiles
    kernel: str                             # KernelSource.entry
    buffers: tuple[int, ...]                # indices into Plan.buffers, in the arguments' order
    params: tuple[int, ...] = ()            # integer arguments behind the buffers
    global_size: tuple[int, ...] = ()       # work-items (OpenCL), a multiple of local_size; a step
                                            # with a 0 in it is left out by runs, on the CPU, too
    local_size: tuple[int, ...] = ()        # () lets the driver choose
    head: str = ""                          # the head comment of this use of the kernel
    origins: tuple[tuple[str, str], ...] = ()   # (node name, ONNX op type) of all fused here
    flops: int = 0
    bytes: int = 0                          # read and written, each buffer counted once
    writes: tuple[int, ...] = ()            # those of `buffers` that are written
    images: tuple[int, ...] = ()            # those of `buffers` bound as image1d_buffer of float4
    group: int = -1                         # of fuse: all steps of a group have its number
    variant: str = ""                       # of target/variants.py; "" = the first
    kept: str = ""                          # why nothing is f16, where that was asked for
    declined: tuple[str, ...] = ()          # templates before the one that writes it, and why

    def moved(self, places: Mapping[int, int]) -> Step:
        """The step in another plan: `places` has the number there of each of its buffers."""
        def there(buffers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(places[b] for b in buffers)
        return replace(self, buffers=there(self.buffers), writes=there(self.writes),
                       images=there(self.images))


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
    whole: int = -1                         # temp: the buffer that it is a part of; -1: none
    part_offset: int = 0                    # bytes into that


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output as the caller sees it: logical row-major shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int                             # index into Plan.buffers


@dataclass(frozen=True)
class Shapes:
    """What differs between two runs of a plan for many shapes: sizes as numbers."""

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    params: tuple[tuple[int, ...], ...]         # of each step
    global_sizes: tuple[tuple[int, ...], ...]   # of each step
    work: tuple[tuple[int, int], ...] = ()      # (FLOPs, bytes) of each step, within a factor of 2
    layout: Plan | None = None                  # with room for them; None: as it was loaded


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
    weights: dict[int, str] = field(default_factory=dict)   # of constants that plans share: digest
    streamed: bool = False                  # a buffer lives from its first to its last use
    checks: tuple[IndexCheck, ...] = ()     # of indices, by the runtime
    watched: tuple[Watched, ...] = ()       # in the last outputs, by the runtime
    space: Space | None = None              # of a plan for many shapes: its integers are sizes

    @cached_property
    def stores_f16(self) -> bool:
        """Whether kernels exchange halves, or read constants of them."""
        return any(b.dtype == "f16" for b in self.buffers)

    @cached_property
    def looked_at(self) -> tuple[str, ...]:
        """The outputs, the last ones, that the guard of f16 looks at."""
        return tuple(dict.fromkeys(w.output for w in self.watched))

    @cached_property
    def watched_results(self) -> frozenset[int]:
        """The numbers of outputs that have a flag."""
        return frozenset(w.result for w in self.watched if w.result >= 0)

    @cached_property
    def float_results(self) -> tuple[int, ...]:
        """The numbers of outputs of floats, which the guard looks at; of none of its flags."""
        return tuple(n for n, t in enumerate(self.outputs)
                     if t.dtype in ("f16", "f32", "f64") and t.name not in self.looked_at)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """In the order of `inputs`."""
        return tuple(t.name for t in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """In the order of `outputs`."""
        return tuple(t.name for t in self.outputs)

    def at(self, values: Sequence[int]) -> Plan:
        """The plan of one shape, of a plan for many: `values` of its space's atoms."""
        def number(size: Any) -> int:
            return at(size, values)

        def numbers(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple([at(s, values) for s in sizes])

        inputs, outputs = ([replace(t, shape=numbers(t.shape)) for t in tensors]
                           for tensors in (self.inputs, self.outputs))
        steps = [replace(s, params=numbers(s.params), global_size=numbers(s.global_size),
                         flops=number(s.flops), bytes=number(s.bytes)) for s in self.steps]
        buffers = [replace(b, shape=numbers(b.shape), nbytes=number(b.nbytes),
                           part_offset=number(b.part_offset)) for b in self.buffers]
        return replace(self, inputs=tuple(inputs), outputs=tuple(outputs), steps=tuple(steps),
                       buffers=tuple(buffers), checks=everywhere(self.checks, number), space=None)

    @property
    def peak_bytes(self) -> int:
        """Bytes a device must hold at once: slots, constants, inputs and outputs; streamed, the
        most that is alive at a step.
        """
        if self.streamed:
            return self._most_alive()
        return sum(self.slots) + sum(b.nbytes for b in self.buffers if b.kind != "temp")

    def allocations(self) -> Iterator[tuple[int, str]]:
        """(bytes, what for) of each that a device makes which can't place buffers in an arena."""
        for b in self.buffers:
            if self.streamed or b.kind != "temp":
                yield b.nbytes, f"buffer '{b.name}'"
        if not self.streamed:
            for number, nbytes in enumerate(self.slots):
                yield nbytes, f"temporary memory {number}"

    def _most_alive(self) -> int:
        grown = [0] * (len(self.steps) + 1)
        for buffer, (first, last) in lifetimes(s.buffers for s in self.steps).items():
            grown[first] += self.buffers[buffer].nbytes
            grown[last + 1] -= self.buffers[buffer].nbytes
        alive = most = 0
        for change in grown:
            alive += change
            most = max(most, alive)
        return most


def lifetimes(touched: Iterable[Iterable[int]]) -> dict[int, tuple[int, int]]:
    """Buffer -> the numbers of the first and the last step that touches it."""
    found: dict[int, tuple[int, int]] = {}
    for number, buffers in enumerate(touched):
        for buffer in buffers:
            found[buffer] = found.get(buffer, (number, number))[0], number
    return found
