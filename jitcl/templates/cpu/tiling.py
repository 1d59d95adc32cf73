"""Which register tile a CPU template computes with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitcl.ir.sizes import hint, is_size
from jitcl.target import CpuCore, Target

MOST_COLUMNS = 28


@dataclass(frozen=True)
class Tile:
    """rows x columns pixels (or rows of a matrix) times `blocks` vectors; all sums stay in
    registers."""

    rows: int
    columns: int
    blocks: int


def step_cycles(tile: Tile, fmas: int = 2) -> float:
    """Time of one step of a tile's sums, one for two FMAs: beside them go two loads a cycle, and
    some overhead for every address and block.

    `fmas`: that a core starts in a cycle. With one, what goes beside costs half as much.
    """
    pixels, nb = tile.rows * tile.columns, tile.blocks
    cycles = max(pixels * nb / fmas, (pixels + nb) / 2, CpuCore.fma_chain)
    return (cycles + 0.15 * nb + 0.1 * tile.rows + 0.4) * fmas / 2


def fits(pixels: int, blocks: int, target: Target) -> bool:
    """Whether a tile's sums and what they are made of stay in registers."""
    free = target.registers - (2 if target.vector_width == 16 else 3)
    return (pixels + 1) * blocks <= free and (blocks <= 4 or pixels <= 2)


def lasting(extent: int) -> int:
    """The longest side of a tile along an extent: of one that is not known, so short that it fits
    extents down to an eighth of what that is now.
    """
    if not is_size(extent):
        return extent
    return max(1 if extent.space.general else 2, hint(extent) // 8)


def choose_tile(
    rows: int, columns: int, blocks: int, target: Target, *, even: bool = False, most_rows: int = 4,
    most_columns: int = MOST_COLUMNS, most_blocks: int = 8, fmas: int = 2
) -> Tile:
    """The tile with the fewest cycles over an output of rows x columns x blocks.

    `even`: its blocks must divide the output's. `fmas`: as `step_cycles` takes it. Of rows and
    columns that are not known, `lasting` ones are taken.
    """
    if is_size(rows) or is_size(columns):
        most_blocks = min(4, most_blocks)
    most_rows, most_columns = min(lasting(rows), most_rows), min(lasting(columns), most_columns)
    rows, columns = hint(rows), hint(columns)
    best, least = Tile(1, 1, 1), math.inf
    for nb in range(1, most_blocks + 1):
        if nb > blocks or (even and blocks % nb):
            continue
        for tr in range(1, most_rows + 1):
            for tc in range(1, most_columns + 1):
                if not fits(tr * tc, nb, target):
                    continue
                tiles = -(-rows // tr) * -(-columns // tc) * -(-blocks // nb)
                total = step_cycles(Tile(tr, tc, nb), fmas) * tiles
                if total < least:
                    best, least = Tile(tr, tc, nb), total
    return best
