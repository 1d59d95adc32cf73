"""`Target`: a frozen record of what a device can do, as found on it and corrected by quirks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from jitcl.forking import cached_property
from jitcl.target.cpu_core import CpuCore

QUAD, LEAST_ITEMS = 4, 64      # of tiles in local memory: elements of a vector, work-items
LEAST_TILES = 9216             # .. bytes: two tiles of 32 by 32 floats, with a quad behind each row


@dataclass(frozen=True)
class Target:
    """One device as code generation sees it. Part of every cache key; plain values only.

    Sizes are in bytes unless said otherwise; vector widths are in elements of f32.
    """

    kind: str                              # "cpu" (Numba), "opencl" or "reference"
    name: str                              # as the driver calls it
    vendor: str = ""
    driver: str = ""                       # driver (or compiler) version
    device_type: str = "cpu"               # "cpu", "gpu", "accelerator"
    compute_units: int = 1
    unit_items: int = 256                  # work-items that keep one of a GPU's busy
    vector_width: int = 1                  # preferred f32 lanes
    max_vector_width: int = 16             # widest f32 vector the compiler survives
    registers: int = 32                    # vector registers of a core, for tile sizes
    fmas: int = 2                          # of such registers that a core starts in a cycle
    cache_bytes: int = 1 << 20             # of a core's own cache
    byte_dot: str = ""                     # what is multiplied and added to i32: "bytes", u8 x i8
                                           # by fours; "signed", i8 x i8; "pairs", i16 by twos
    winograd: int | None = None            # outputs along its tiles: 2, 4, 0 for none of it
    local_memory: int = 0
    local_is_real: bool = False            # on-chip local memory, where groups may meet
    local_is_cache: bool = False           # it is a part of the cache: no faster to read
    max_work_group: int = 1                # work-items
    max_work_item_sizes: tuple[int, ...] = (1, 1, 1)
    global_memory: int = 0
    max_allocation: int = 0
    alignment: int = 64                    # of buffers and sub-buffers
    fp16_storage: bool = True              # vload_half / vstore_half, or the CPU's conversions
    fp16_arithmetic: bool = False
    fp64: bool = True
    bf16_storage: bool = True              # bytes and shifts: no device needs the type
    multiply_add: str = "plain"            # the fastest form: "fma", "mad" or a * b + c ("plain")
    isa: tuple[str, ...] = ()              # CPU features that generated code relies on

    # what a kernel may be
    max_operands: int = 12                 # buffers that one fused kernel reads
    max_members: int = 48                  # nodes fused into one kernel
    max_concat: int = 0                    # inputs that one kernel concatenates; 0 = any number
    reduction_group: int = 256             # work-items that share a reduction, at most
    kernel_prefix: str = ""                # before each kernel's name

    # how programs are built
    cl_std: str = "CL1.2"
    build_options: tuple[str, ...] = ()
    unoptimised_ops: tuple[str, ...] = ()  # kernels with these are built with -cl-opt-disable
    register_limit: str = ""               # option that keeps a kernel to {} registers
    program_kernels: int = 32              # kernels built as one program
    cached_binaries: bool = True           # the driver may be given binaries that it made

    # how kernels are launched
    flush_every: int = 24                  # launches
    queue_depth: int = 960                 # launches in flight
    failures_last: bool = False            # a kernel that fails fails whatever comes behind it
    trusted_events: bool = True            # a profiling queue works, and its times are right
    dependable: bool = True                # device "auto" takes it
    fork_safe: bool = False                # its driver works in a child that was forked after use

    # who builds kernels: the user's process or a worker (names of features: target/features.py)
    trusted: bool = False                  # a driver that is known good
    proven: tuple[str, ...] = ()           # features that a probe found good on this driver
    suspects: tuple[str, ...] = ()         # features that crash its compiler in some kernels
    reloadable: bool = True                # a binary built in another process is worth loading

    # what a schedule may use
    local_works: bool = True               # local memory and barriers give right results
    images: bool = False                   # weights are read faster through image1d_buffer
    image_pixels: int = 0                  # of the largest image1d_buffer
    tensor_cores: bool = False             # mma.sync, ldmatrix and cp.async in inline PTX
    warpgroup_memory: int = 0              # bytes that wgmma takes operands from; 0 = none
    packed_weights: bool = True            # int4 and int8 weights are unpacked in kernels
    cpu_templates: bool = True             # those of the CPU path write for OpenCL on CPUs, too
    half_builtins: bool = True             # exp(half) and its like; else by way of a float
    half_pairs: bool = False               # registers are two halves: these are computed in pairs
    soft_half: bool = False                # halves are read and written by integer arithmetic
    gated_weights: bool = False            # a convolution's weights take a gate of its input

    @property
    def core(self) -> CpuCore:
        """A core of a CPU."""
        return CpuCore(self.cache_bytes)

    @property
    def as_cpu(self) -> Target | None:
        """What the CPU path's templates take an OpenCL device for that is a CPU: their kernels run
        on it, a work-item for each thread (codegen/opencl_threads.py). None of others."""
        width = min(self.vector_width, self.max_vector_width)
        opencl = self.kind == "opencl" and self.device_type == "cpu" and self.cpu_templates
        if not opencl or width not in (4, 8, 16):
            return None
        return dataclasses.replace(self, kind="cpu", vector_width=width)

    @property
    def busy(self) -> int:
        """Work-items that keep a GPU busy."""
        return self.compute_units * self.unit_items

    @property
    def computes_f16(self) -> bool:
        """Whether kernels may compute in the type half."""
        return self.fp16_arithmetic and not self.soft_half

    @property
    def stages_tiles(self) -> bool:
        """Whether products stage tiles in local memory (template gemm_tiled_opencl): it is on-chip,
        faster than the cache, and holds the tiles of the smallest group.

        Weights that come through a texture cache (Adreno) are staged there already: LiteRT and
        llama.cpp read them as images, and use no local memory for them.
        """
        if self.device_type == "cpu" or self.local_is_cache or self.images and self.image_pixels:
            return False
        works = self.local_works and self.max_vector_width >= QUAD
        holds = self.max_work_group >= LEAST_ITEMS and self.local_memory >= LEAST_TILES
        return self.local_is_real and works and holds

    @property
    def few_programs(self) -> bool:
        """Whether programs are to be few: numbers are parameters also where they cost something,
        and layers that differ by little are one program. GPUs that stage no tiles are those of
        phones, boards and small computers, whose compilers take up to a second for a kernel.
        """
        return self.device_type != "cpu" and not self.stages_tiles

    @cached_property
    def key(self) -> str:
        """Digest of every field that code depends on: two devices that differ in one never share
        an entry. Not of the memory, which is only compared with what a plan needs: PoCL reports
        what is free, another number each day.
        """
        fields = dataclasses.asdict(self)
        for name in ("global_memory", "max_allocation"):
            del fields[name]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
