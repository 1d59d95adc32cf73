"""What code for the CPU reckons a core with: its caches, its rates, what waiting costs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CpuCore:
    """Bytes, unless said otherwise. Only the second-level cache is asked of the machine; the rest
    is alike on the x86-64 and aarch64 cores that we know, or was measured on Zen 4 and decides
    between ways that differ by more than cores do.
    """

    l2: int
    l1: int = 32 << 10
    l1_way: int = 4096                      # rows so far apart fall into one set of it
    l1_ways: int = 8
    l2_way: int = 128 << 10
    far: int = 16384                        # rows so far apart find no sets for a block in the l2
    near: int = 4096                        # rows of a matrix so far apart are read well in place
    last_level: int = 2 << 20               # a core's share; what is larger is read from memory
    l2_rate: int = 24                       # bytes a cycle
    last_rate: int = 8                      # bytes a cycle
    memory_rate: int = 10                   # bytes a cycle, for all cores together
    fma_chain: float = 4.5                  # cycles from one FMA to the next that needs its result
    call: int = 12                          # cycles of a register tile, beside its steps
    meeting: int = 10_000                   # cycles until all threads have met behind a kernel
    loop_flops: float = 2e10                # a second, of generated loops
    lane_flops: float = 1.2e10              # a second, in each lane of a template's vectors
    bandwidth: float = 4e10                 # bytes a second, from wherever they lie
    split: float = 3e-6                     # seconds of a step that is worth several threads
    wake: float = 8e-5                      # seconds of a plan that is worth waking threads for
    split_awake: float = 1e-5               # seconds of a step of a shorter plan, threads awake

    @property
    def stack(self) -> int:
        """Of a thread's stack that a kernel takes: it stays in the second-level cache."""
        return min(224 << 10, self.l2 * 7 // 32)

    @property
    def rows(self) -> int:
        """Of rows that are worked on while panels of another operand go by."""
        return self.l2 * 7 // 16

    @property
    def panel(self) -> int:
        """Of a panel beside those rows, and as much for the next one."""
        return self.l2 * 3 // 16

    @property
    def weights(self) -> int:
        """Of weights that stay beside rows of an image in work."""
        return min(384 << 10, self.l2 * 3 // 8)

    @property
    def stream(self) -> int:
        """Of weights that stay in the first-level cache while tiles go by."""
        return self.l1 // 2

    def rows_in_l1(self, pitch: int) -> int:
        """Rows that lie `pitch` bytes apart and stay in the first-level cache, two places of each
        set left to what goes through it beside them."""
        return (self.l1_ways - 2) * (self.l1_way // math.gcd(pitch, self.l1_way))

    def sets_used(self, pitch: int, nbytes: int) -> float:
        """The share of the second-level cache's sets that so many bytes of each row fall into: all
        but where rows lie a large power of two apart, and little of each is in work."""
        return min(1.0, nbytes / math.gcd(pitch, self.l2_way))
