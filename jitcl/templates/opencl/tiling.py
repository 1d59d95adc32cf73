"""Register tiles of a work-item, and how tiles are dealt out to work-items."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from jitcl.ir.group import Group
from jitcl.ir.size_ranges import hints
from jitcl.target import Target
from jitcl.templates.base import Argument, Match, Packed

WIDTHS = (16, 8, 4, 2, 1)
MOST_CANDIDATES = 8            # of all tiles that fit
GROUP = 64                     # work-items a group
MAX_INDEX = 1 << 31            # kernels count in int
PIXEL = 4                      # floats of an image's pixel
SLICES = (2, 4, 8, 16)         # of a sum's terms
LEAST_TERMS = 16               # of a slice
LITTLE = 256                   # steps of a work-item, a fraction of what its launch takes
LEAST_STEP = 6                 # of a GPU, where two rows take 8: a vector alone waits for memory
PLACE = 1, 3                   # registers of a slice's place in its group: in f32, in half
JOIN = 12                      # writing and reading a vector of sums, in multiply-adds of vectors


@dataclass(frozen=True)
class Tile(Match):
    """`rows` rows times `vectors` vectors of `width` neighbours, the terms of whose sums are dealt
    to `slices` work-items of a group."""

    rows: int
    vectors: int
    width: int
    slices: int = field(default=1, repr=False)

    @property
    def span(self) -> int:
        """Columns."""
        return self.vectors * self.width

    @property
    def registers(self) -> int:
        """Vectors that a term of its sums in f32 needs: the sums, a row of B, an element of A."""
        return self.rows * self.vectors + self.vectors + 1


def in_half(group: Group, target: Target) -> bool:
    """Whether products of the group's f16 operands are to be computed in the type half."""
    return group.compute == "f16" and target.computes_f16


def choose_tiles(batch: int, rows: int, most: int, vectors: Callable[[int], int],
                 target: Target, half: bool = False, spare: int = 0, terms: int = 0,
                 only: int = 0) -> tuple[Tile, ...]:
    """The tiles that are done soonest, best first. `vectors(width)`: how many vectors a row of the
    result has, `most`: the widest that fits it; `half`: sums in f32 have sums in half beside them,
    of half their size; `spare`: registers that the kernel needs less than others for addresses;
    `terms`: of a sum, where slices of them may be added up in local memory; not of a single column,
    whose terms are read once however large the tile is, nor by a tile that leaves no registers for
    its place in the group;
    `only`: the width of the one vector that a tile has, where the kernel takes no other.
    () where there is no such vector. Where work-items may share terms, the largest tile that leaves
    those registers comes first of those that differ by little: programs are fewer.

    Edge tiles overlap their neighbours, so a tile has at most as many rows as there are.
    """
    cpu = target.device_type == "cpu"
    widest = min(most, target.max_vector_width, target.vector_width)
    found: list[tuple[float, Tile, bool]] = []
    for width in (w for w in ((only,) if only else WIDTHS) if w <= widest):
        for height in (r for r in ((8, 4, 2, 1) if cpu else (4, 2, 1)) if r <= rows):
            for count in (1,) if only else (3, 2, 1) if cpu else (2, 1):
                sums = height * count * (3 if half else 2) // 2
                if sums + count + 1 > target.registers + spare:
                    continue
                tiles = batch * -(-rows // height) * -(-vectors(width) // count)
                room = sums + count + 1 + PLACE[half] <= target.registers
                dealt = terms if room and width > 1 else 0
                found += [(_cost(tiles, height, count, target, slices, terms),
                           Tile(height, count, width, slices), room)
                          for slices in slices_of(height * count * width, dealt, target)]
    if found and terms and widest > 1 and shares(target):
        little = LITTLE * target.busy / terms
        least = min(cost for cost, *_ in found) + little
        found = [(max(cost, least) if room else cost + little, tile, room)
                 for cost, tile, room in found]
    best = heapq.nsmallest(MOST_CANDIDATES, found, key=lambda each: each[0])   # stable
    return tuple(tile for _, tile, _ in best)


def shares(target: Target) -> bool:
    """Whether work-items of a group may share terms. Local memory may be ordinary memory (Mali):
    sums pass through it once, behind the loop."""
    return (target.device_type != "cpu" and target.local_works
            and target.max_work_group >= GROUP)


def slices_of(sums: int, terms: int, target: Target) -> tuple[int, ...]:
    """How many work-items of a group may share the terms of a tile's sums, by local memory."""
    fits = shares(target) and 4 * sums * GROUP <= target.local_memory
    return (1, *(s for s in SLICES if fits and terms >= LEAST_TERMS * s
                 and s <= (*target.max_work_item_sizes, 1, 1)[2]))


def _cost(tiles: int, rows: int, vectors: int, target: Target, slices: int = 1, terms: int = 0
          ) -> float:
    """Cycles of a step of the sum over all tiles: two multiply-adds or two loads a cycle, and at
    least four cycles, in which the tile before this one is awaited."""
    step = max(rows * vectors / 2, (rows + vectors) / 2, 4)
    if target.device_type == "cpu":
        return -(-tiles // target.compute_units) * step
    step = max(rows * vectors + 2 * rows + 2 * vectors, LEAST_STEP) / slices
    if slices > 1:
        step += JOIN * rows * vectors / terms
    return max(tiles * slices, target.busy) * step


def spread(columns: int, rows: int, planes: int, target: Target, slices: int = 1
           ) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(global size, local size) of a task a work-item, or `slices` of them, whose place is its
    indices: no division finds it. Of the groups along columns and rows that which idles least at
    their ends; of equals the largest, then the widest. Kernels return beyond the last column and
    row.
    """
    most = min(GROUP, target.max_work_group) // slices
    powers = [1 << k for k in range(GROUP.bit_length())]

    def size(local: tuple[int, int], extents: tuple[int, int]) -> tuple[int, int]:
        return -(-extents[0] // local[0]) * local[0], -(-extents[1] // local[1]) * local[1]

    def order(local: tuple[int, int]) -> tuple[float, ...]:
        items = math.prod(size(local, hints((columns, rows))))
        return items * (1 + (local[0] * local[1] < most / 2)), -local[0] * local[1], -local[0]

    limits = target.max_work_item_sizes
    local = min(((x, y) for x in powers for y in powers if x * y <= most and x <= limits[0]
                 and y <= (*limits, 1)[1]), key=order)
    return (*size(local, (columns, rows)), planes * slices), (*local, slices)


def read_whole(tile: Tile, target: Target) -> bool:
    """Whether the packed weights of a tile's rows are read as a vector: CPUs broadcast each from
    memory."""
    return 1 < tile.rows <= target.max_vector_width and target.device_type != "cpu"


def image_of(weights: Argument, count: int, run: int, target: Target) -> tuple[Argument, ...]:
    """(weights,) where a kernel that reads `run` neighbours of them at a time gets them as an
    image of float4; () where it reads the buffer. `count`: floats in all.
    """
    wanted = target.images and target.max_vector_width >= PIXEL
    if not (wanted and isinstance(weights, Packed)):
        return ()
    return (weights,) if run % PIXEL == 0 and count <= PIXEL * target.image_pixels else ()
