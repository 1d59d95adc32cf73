"""Which tiles a 3x3 convolution is computed with by Winograd, and whether that pays: counted are
cycles of one core for the whole convolution, as `step_cycles` counts them for register tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jitcl.target import Target
from jitcl.templates.conv_cpu.template import ConvShape
from jitcl.templates.cpu.tiling import Tile, choose_tile, step_cycles

PADDING = 16                   # floats between positions: else they share the caches' sets
STACK_BYTES = 224 << 10        # of data and sums that a kernel keeps on its stack
FEWEST_CHANNELS = 16           # with fewer, on either side, transforms cost more than they save
SMALLEST = {2: 6, 4: 8}        # outputs along an axis; of fewer, too many are computed twice
MOST_GROUPS = 8                # register tiles side by side
# cycles for one tile and block of channels: loads, operations and stores of both axes
DATA_CYCLES = {2: 50, 4: 150}
RESULT_CYCLES = {2: 60, 4: 190}
CALL_CYCLES = 12               # of a register tile, beside its steps
MEET_CYCLES = 10_000           # of all threads behind a kernel of their own
NEAR, FAR = 24, 8              # bytes a cycle from a core's cache, from beyond
MEMORY = 10                    # bytes a cycle for all cores: weights of a large model
GAIN = 0.9                     # of a direct convolution's cycles: what is closer may be slower


@dataclass(frozen=True)
class Blocking:
    """F(outputs x outputs, 3x3) on blocks of `groups` register tiles of tile.columns tiles.

    `whole`: one kernel transforms a block's data and multiplies it; else a kernel before it writes
    the data of all blocks to memory, and groups of output channels are tasks of their own.
    """

    outputs: int
    tile: Tile
    groups: int
    whole: bool

    @property
    def tiles(self) -> int:
        """Tiles of outputs in a block."""
        return self.tile.columns * self.groups

    @property
    def positions(self) -> int:
        return (self.outputs + 2) ** 2

    def counts(self, s: ConvShape) -> tuple[int, int]:
        """Tiles along a row, and tiles of all images."""
        rows, columns = (-(-d // self.outputs) for d in s.out)
        return columns, s.n * rows * columns

    def blocks(self, s: ConvShape) -> int:
        return -(-self.counts(s)[1] // self.tiles)

    def position(self, s: ConvShape, width: int) -> int:
        """Floats of a block's data at one position."""
        return -(-s.c // width) * self.tiles * width + PADDING

    def sums(self, width: int) -> int:
        """Floats of a block's sums at one position."""
        return self.tile.blocks * self.tiles * width + PADDING

    def stack_bytes(self, s: ConvShape, width: int) -> int:
        data = self.position(s, width) if self.whole else 0
        return 4 * self.positions * (data + self.sums(width))


def choices(s: ConvShape, target: Target) -> list[Blocking]:
    """For each tile size that beats a direct convolution the best blocking, best first. Where the
    target wants a size, that one alone, whatever it costs.
    """
    if target.winograd == 0 or min(s.c, s.k) < FEWEST_CHANNELS:
        return []
    found = []
    for outputs in (2, 4):
        if target.winograd in (None, outputs) and min(s.out) >= SMALLEST[outputs]:
            cycles, blocking = min(
                ((winograd_cycles(s, b, target), b) for b in _blockings(s, outputs, target)),
                key=lambda pair: pair[0])
            if target.winograd is not None or cycles < GAIN * direct_cycles(s, target):
                found.append((cycles, blocking))
    return [b for _, b in sorted(found, key=lambda pair: pair[0])]


def _blockings(s: ConvShape, outputs: int, target: Target) -> Iterator[Blocking]:
    width = target.vector_width
    one = Blocking(outputs, Tile(1, 1, 1), 1, False)
    _, total = one.counts(s)
    tile = choose_tile(1, total, -(-s.k // width), target)
    yield Blocking(outputs, tile, 1, False)
    for groups in range(1, min(MOST_GROUPS, total // tile.columns) + 1):
        for whole in (True, False):
            b = Blocking(outputs, tile, groups, whole)
            if b.stack_bytes(s, width) <= STACK_BYTES:
                yield b


def direct_cycles(s: ConvShape, target: Target) -> float:
    """As conv_cpu computes it."""
    kbs = -(-s.k // target.vector_width)
    tile = choose_tile(*s.out, kbs, target)
    tiles = s.n * -(-s.out[0] // tile.rows) * -(-s.out[1] // tile.columns) * -(-kbs // tile.blocks)
    steps = tiles * (s.c * 9 * step_cycles(tile) + CALL_CYCLES)
    return steps + _read_once(4 * 9 * s.c * s.k, target)


def winograd_cycles(s: ConvShape, b: Blocking, target: Target) -> float:
    """Transforms, products, and bytes that come from beyond a core's cache."""
    width = target.vector_width
    cbs, kbs = -(-s.c // width), -(-s.k // width)
    kgs, blocks = -(-kbs // b.tile.blocks), b.blocks(s)
    tiles = blocks * b.tiles
    steps = s.c * step_cycles(b.tile) + CALL_CYCLES
    cycles: float = tiles * (cbs * DATA_CYCLES[b.outputs] + kbs * RESULT_CYCLES[b.outputs])
    cycles += blocks * kgs * b.positions * b.groups * steps
    weights = 4 * b.positions * s.c * s.k
    data = 4 * b.positions * b.position(s, width)
    if b.whole:                       # each block reads all weights, beside its own data
        near = weights + b.stack_bytes(s, width) <= target.cache_bytes
        cycles += blocks * weights / (NEAR if near else FAR)
    else:                             # each group of channels reads all data, its weights stay
        near = blocks * data + weights // kgs <= target.cache_bytes
        cycles += (kgs + 1) * blocks * data / (NEAR if near else FAR)
        cycles += MEET_CYCLES * max(1, target.compute_units)
    tasks = blocks if b.whole else blocks * kgs
    return cycles * _idle(tasks, target) + _read_once(weights, target)


def _idle(tasks: int, target: Target) -> float:
    """How much longer it takes as tasks cannot be shared out equally."""
    cores = max(1, target.compute_units)
    return math.ceil(tasks / cores) * cores / tasks


def _read_once(weights: int, target: Target) -> float:
    """Cycles that all cores wait for weights, if they don't stay in a core's cache."""
    if weights <= target.cache_bytes // 2:
        return 0.0
    return weights * max(1, target.compute_units) / MEMORY
