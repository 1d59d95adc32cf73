"""`Target`: a frozen record of what a device can do, as found on it and corrected by quirks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass


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
    vector_width: int = 1                  # preferred f32 lanes
    max_vector_width: int = 16             # widest f32 vector the compiler survives
    registers: int = 32                    # vector registers of a core, for tile sizes
    local_memory: int = 0
    local_is_real: bool = False            # on-chip local memory, worth staging into
    max_work_group: int = 1                # work-items
    max_work_item_sizes: tuple[int, ...] = (1, 1, 1)
    global_memory: int = 0
    max_allocation: int = 0
    alignment: int = 64                    # of buffers and sub-buffers
    fp16_storage: bool = True              # vload_half / vstore_half, or the CPU's conversions
    fp16_arithmetic: bool = False
    fp64: bool = True
    bf16_storage: bool = False
    fast_fma: bool = False                 # fma() is an instruction, not a library call
    isa: tuple[str, ...] = ()              # CPU features that generated code relies on

    @property
    def key(self) -> str:
        """Digest of every field: two devices that differ in anything never share an entry."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
