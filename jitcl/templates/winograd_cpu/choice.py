"""Which tiles a convolution of 3x3, or of 3 along its rows, is computed with by Winograd, and
whether that pays: counted are cycles of one core for the whole convolution, as `step_cycles` counts
them for register tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jitcl.ir.size_ranges import hints
from jitcl.ir.sizes import is_size
from jitcl.target import Target
from jitcl.templates.base import Match
from jitcl.templates.convolution import ConvShape
from jitcl.templates.cpu.tiling import Tile, choose_tile, step_cycles
from jitcl.templates.winograd_cpu.transforms import TRANSFORMS, Transforms

PADDING = 16                   # floats between positions: else they share the caches' sets
FEWEST_CHANNELS = 16           # with fewer, on either side, transforms cost more than they save
SMALLEST = {2: 6, 4: 8}        # outputs along an axis; of fewer, too many are computed twice
MOST_GROUPS = 8                # register tiles side by side
MANY = 256                     # tiles for which is chosen where their number is not known
# cycles for one tile and block of channels: loads, operations and stores of both axes, or of one
DATA_CYCLES = {2: 50, 4: 150}
RESULT_CYCLES = {2: 60, 4: 190}
ROW_DATA_CYCLES = {2: 12, 4: 25}
ROW_RESULT_CYCLES = {2: 25, 4: 50}
GAIN = 0.9                     # of a direct convolution's cycles: what is closer may be slower


@dataclass(frozen=True)
class Blocking(Match):
    """F(outputs x outputs, 3x3), or F(outputs, 3) along `rows`, on blocks of `groups` register
    tiles of tile.columns tiles.

    `whole`: one kernel transforms a block's data and multiplies it; else a kernel before it writes
    the data of all blocks to memory, and groups of output channels are tasks of their own.
    """

    outputs: int
    tile: Tile
    groups: int
    whole: bool
    rows: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of outputs in a block."""
        return self.tile.columns * self.groups

    @property
    def transforms(self) -> Transforms:
        return TRANSFORMS[self.outputs]

    @property
    def positions(self) -> int:
        return self.transforms.size ** (1 if self.rows else 2)

    def counts(self, s: ConvShape) -> tuple[int, int]:
        """Tiles along a row, and tiles of all images."""
        rows = -(-s.out[0] // (1 if self.rows else self.outputs))
        columns = -(-s.out[1] // self.outputs)
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
    open_sizes, s = any(map(is_size, (s.n, *s.out))), hints(s)
    shortest = min(s.out) if s.kernel[0] > 1 else s.out[1]
    many = _with_many(s) if open_sizes else s
    for outputs in TRANSFORMS:
        if target.winograd in (None, outputs) and shortest >= SMALLEST[outputs]:
            cycles, blocking = min(
                ((winograd_cycles(many, b, target), b) for b in _blockings(many, outputs, target)),
                key=lambda pair: pair[0])
            if target.winograd is not None or cycles < GAIN * direct_cycles(many, target):
                found.append((cycles, blocking))
    return [b for _, b in sorted(found, key=lambda pair: pair[0])]


def _with_many(s: ConvShape) -> ConvShape:
    """The shape with so many images that there are MANY of the largest tiles: a block's weights are
    read once for all of its tiles."""
    largest = Blocking(max(TRANSFORMS), Tile(1, 1, 1), 1, False, s.kernel[0] == 1)
    return replace(s, n=max(s.n, s.n * MANY // largest.counts(s)[1]))


def _blockings(s: ConvShape, outputs: int, target: Target) -> Iterator[Blocking]:
    width, rows = target.vector_width, s.kernel[0] == 1
    one = Blocking(outputs, Tile(1, 1, 1), 1, False, rows)
    _, total = one.counts(s)
    tile = choose_tile(1, total, -(-s.k // width), target)
    yield Blocking(outputs, tile, 1, False, rows)
    for groups in range(1, min(MOST_GROUPS, total // tile.columns) + 1):
        for whole in (True, False):
            b = Blocking(outputs, tile, groups, whole, rows)
            if b.stack_bytes(s, width) <= target.core.stack:
                yield b


def direct_cycles(s: ConvShape, target: Target) -> float:
    """As conv_cpu computes it."""
    kbs = -(-s.k // target.vector_width)
    tile = choose_tile(*s.out, kbs, target)
    tiles = s.n * -(-s.out[0] // tile.rows) * -(-s.out[1] // tile.columns) * -(-kbs // tile.blocks)
    taps = math.prod(s.kernel)
    steps = tiles * (s.c * taps * step_cycles(tile) + target.core.call)
    return steps + _read_once(4 * taps * s.c * s.k, target)


def winograd_cycles(s: ConvShape, b: Blocking, target: Target) -> float:
    """Transforms, products, and bytes that come from beyond a core's cache."""
    width, core = target.vector_width, target.core
    cbs, kbs = -(-s.c // width), -(-s.k // width)
    kgs, blocks = -(-kbs // b.tile.blocks), b.blocks(s)
    tiles = blocks * b.tiles
    steps = s.c * step_cycles(b.tile) + core.call
    data_cycles, result_cycles = (
        (ROW_DATA_CYCLES, ROW_RESULT_CYCLES) if b.rows else (DATA_CYCLES, RESULT_CYCLES))
    cycles: float = tiles * (cbs * data_cycles[b.outputs] + kbs * result_cycles[b.outputs])
    cycles += blocks * kgs * b.positions * b.groups * steps
    weights = 4 * b.positions * s.c * s.k
    data = 4 * b.positions * b.position(s, width)
    if b.whole:                       # each block reads all weights, beside its own data
        near = weights + b.stack_bytes(s, width) <= core.l2
        cycles += blocks * weights / (core.l2_rate if near else core.last_rate)
    else:                             # each group of channels reads all data, its weights stay
        near = blocks * data + weights // kgs <= core.l2
        cycles += (kgs + 1) * blocks * data / (core.l2_rate if near else core.last_rate)
        cycles += core.meeting * max(1, target.compute_units)
    tasks = blocks if b.whole else blocks * kgs
    return cycles * _idle(tasks, target) + _read_once(weights, target)


def _idle(tasks: int, target: Target) -> float:
    """How much longer it takes as tasks cannot be shared out equally."""
    cores = max(1, target.compute_units)
    return math.ceil(tasks / cores) * cores / tasks


def _read_once(weights: int, target: Target) -> float:
    """Cycles that all cores wait for weights, if they don't stay in a core's cache."""
    if weights <= target.core.l2 // 2:
        return 0.0
    return weights * max(1, target.compute_units) / target.core.memory_rate
