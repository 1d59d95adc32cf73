"""Large matrix products by seven products of halves where there were eight.

Strassen, "Gaussian elimination is not optimal", 1969, once for each register tile. As in Huang et
al., "Strassen's algorithm reloaded", 2016, sums of operands are made as these are packed and none
of the seven products is ever in memory; here the second factors aren't even packed. Sums of a part
of the terms begin anew, so that results are nearer to the truth than those of one long sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.group import Group
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, Packed, Scratch
from jitcl.templates.cpu.operands import alike, operands_of
from jitcl.templates.cpu.tiling import LATENCY, MOST_COLUMNS, Tile, choose_tile, fits
from jitcl.templates.gemm_cpu.template import CACHE_WAY, GemmCpu, Rows, Shape, Writer

PARAMS = ("m_count", "n_count", "k_count", "nbs", "m_tiles", "panels", "b_panel", "row_steps",
          "sum_steps")
LIMIT = 16            # ratio of largest elements up to which rows, or columns, are added
LARGEST = 1e37        # element whose sums are far from infinity
MOST_UNLIKE = 0.5     # of a constant's panels, in which columns are unlike
SHARE = 5 / 8         # of a core's cache, for first factors and two panels
STACK_BYTES = 512 << 10         # of first factors
MOST_TERMS = 512      # of a sum that are added in one go, of each half
MOST_PARTS = 32
MOST_BLOCKS = 4
PIECES = 2            # that each thread's share of a step is cut into
# cycles
CALL, CALL_SUM = 40, 5          # of a turn, and of each of its vectors of sums, beside its steps
FACTORS = 18                    # of a vector of each quarter of a, made first factors
FETCHED = 4                     # lines that a step fetches
NEAR = 24                       # bytes a cycle from a core's cache
FAR = 32                        # bytes a cycle from beyond it, most of them fetched ahead
PLAIN_TERMS = 768               # of a sum that gemm_cpu adds in one go
GAIN = 0.98                     # of gemm_cpu's cycles: what is closer may be slower
FEWEST_ROWS = 96                # for fewer, and for fewer terms, weights come too late anyway
FEWEST_TERMS = 256


@dataclass(frozen=True)
class Blocking:
    """Tiles of 2 * tile.columns rows x 2 * tile.blocks vectors, `tiles` of them in a block of rows;
    2 * terms terms are multiplied in one go."""

    tile: Tile
    tiles: int
    terms: int

    def counts(self, s: Shape, width: int) -> tuple[int, int]:
        """Tiles of all rows, and panels."""
        return -(-s.m // (2 * self.tile.columns)), -(-s.n // (2 * self.tile.blocks * width))


@dataclass(frozen=True)
class Match:
    shape: Shape
    blocking: Blocking
    checked: bool         # columns are compared as the kernel runs


class StrassenCpu:
    """matmul of f32 where one product of eight is worth the sums."""

    name = "strassen_cpu"
    language = "numba"

    def accepts(self, group: Group, target: Target) -> Match | None:
        s, node = GemmCpu().accepts(group, target), group.anchor
        if s is None or node is None or s.batch > 1 or target.strassen == 0:
            return None
        if any(x.type.dtype != "f32" for x in (node, *node.inputs)):
            return None
        blocking = choose(s, target)
        if blocking is None:
            return None
        b = node.inputs[1]
        if b.op != "const":
            stored = b in group.operands and b.type.layout == ROW
            return Match(s, blocking, True) if stored else None
        if math.prod(b.type.dims[:-2]) > 1:
            return None
        unlike = 1 - float(alike_columns(b.data, blocking.tile.blocks, target.vector_width).mean())
        return Match(s, blocking, unlike > 0) if unlike <= MOST_UNLIKE else None

    def emit(self, match: Match, hooks: Any) -> list[Emitted]:
        return _Writer(match, hooks).emit()


@functools.cache
def choose(s: Shape, target: Target) -> Blocking | None:
    """The blocking with the fewest cycles, where these are fewer than gemm_cpu's; where the target
    wants it, whatever they are."""
    found = [(cycles(s, b, target), b) for b in _blockings(s, target)]
    if not found:
        return None
    least, best = min(found, key=lambda pair: pair[0])
    if target.strassen:
        return best
    large = s.m >= FEWEST_ROWS and s.k >= FEWEST_TERMS
    return best if large and least < GAIN * plain_cycles(s, target) else None


def _blockings(s: Shape, target: Target) -> Iterator[Blocking]:
    width = target.vector_width
    nbs = -(-s.n // width)
    if s.k % (2 * width) or s.m < 2 or nbs < 2:
        return
    for blocks in range(1, min(nbs // 2, MOST_BLOCKS) + 1):
        for columns in range(1, min(s.m // 2, MOST_COLUMNS) + 1):
            tile = Tile(1, columns, blocks)
            if not fits(columns, blocks, target):
                break
            for parts in range(1, MOST_PARTS + 1):
                terms = -(-s.k // (2 * parts * width)) * width
                room = SHARE * target.cache_bytes - 4 * 4 * terms * 2 * blocks * width
                tiles = min(int(room) // (4 * 7 * terms * columns),
                            STACK_BYTES // (4 * 9 * columns * pitch(terms, width)))
                if terms <= MOST_TERMS and tiles > 0:
                    m_tiles, _ = Blocking(tile, 1, terms).counts(s, width)
                    yield Blocking(tile, min(tiles, m_tiles), terms)


def cycles(s: Shape, b: Blocking, target: Target) -> float:
    """Of all cores together: turns, first factors (of each piece), what is read again and again."""
    width, pieces = target.vector_width, PIECES * max(1, target.compute_units)
    m_tiles, panels = b.counts(s, width)
    sums = b.tile.columns * b.tile.blocks
    parts = -(-s.k // (2 * b.terms))
    turn = CALL + CALL_SUM * sums
    total = 7 * m_tiles * panels * (s.k / 2 * step(b.tile, target, 2) + parts * turn)
    sides = pieces if -m_tiles % pieces > m_tiles >> 4 else 1
    total += sides * m_tiles * b.tile.columns * s.k / 2 / width * FACTORS
    passes = -(-m_tiles // b.tiles)
    return total + passes * 4 * s.k * s.n / FAR + 8 * s.m * s.n * (parts - 1) / FAR


def plain_cycles(s: Shape, target: Target) -> float:
    """As gemm_cpu computes it."""
    nbs = -(-s.n // target.vector_width)
    tile = choose_tile(1, s.m, nbs, target, fmas=target.fmas)
    tiles = -(-s.m // tile.columns) * -(-nbs // tile.blocks)
    turn, parts = CALL + CALL_SUM * tile.columns * tile.blocks / 2, -(-s.k // PLAIN_TERMS)
    total = tiles * (s.k * step(tile, target, 1) + parts * turn)
    return total + 4 * s.k * s.n / FAR + 8 * s.m * s.n * (parts - 1) / FAR


def step(tile: Tile, target: Target, streams: int) -> float:
    """Cycles of a step of a tile that is long at work, whose vectors are made of so many streams:
    multiply-adds, loads and lines fetched ahead, or what comes from a core's cache."""
    loads = tile.columns + streams * tile.blocks + FETCHED
    nbytes = 4 * target.vector_width * streams * tile.blocks
    sums = tile.columns * tile.blocks
    return max(sums / target.fmas, loads / 2, nbytes / NEAR, LATENCY)


def alike_columns(b: np.ndarray, blocks: int, width: int) -> np.ndarray:
    """Of a constant [..., K, N], what `columns.py.j2` finds of a computed one: i32 [panels]."""
    most = np.abs(b.reshape(b.shape[-2:])).max(0, initial=0.0)
    count, side = len(most), blocks * width
    most = np.append(most, np.zeros(-count % (2 * side), most.dtype)).reshape(-1, 2, side)
    missing = np.arange(most.size).reshape(most.shape)[:, 1] >= count
    low, high = most.min(1), most.max(1)
    return np.all((high <= LIMIT * low) & (high <= LARGEST) | missing, axis=1).astype(np.int32)


class _Writer(Writer):
    def __init__(self, match: Match, hooks: Any) -> None:
        super().__init__(match.shape, hooks)
        self.blocking, self.checked = match.blocking, match.checked

    def emit(self) -> list[Emitted]:
        s, b, width = self.s, self.blocking, self.width
        before: list[Emitted] = []
        first, rows = self.first_operand(before)
        second, flags = self.second_operand(before)
        vector = self.hooks.row_epilogue(width)
        scalar = [] if vector else self.hooks.row_scalar_epilogue(width)
        operands = operands_of(vector or scalar, self.hooks)
        deep = 2 * b.terms < s.k
        body = self.hooks.render(
            "strassen_cpu/numba.py.j2", entry=ENTRY, rows=rows, deep=deep, checked=self.checked,
            operands=[(self.hooks.names[n], n.type.dtype) for n in operands], params=PARAMS,
            touched=alike(vector) if vector else [], vector_lines=vector or [],
            scalar_lines=scalar, ROWS=b.tile.columns, NB=b.tile.blocks, W=width, TILES=b.tiles,
            TERMS=b.terms, PITCH=pitch(b.terms, width), LIMIT=f"f32({LIMIT})",
            LARGEST=f"f32({LARGEST})")
        sums = (self.waiting_sums(),) if deep else ()
        arguments: tuple[Argument, ...] = (
            first, second, *operands, *flags, *sums, self.group.root)
        stem = f"strassen_{b.tile.columns}x{b.tile.blocks}"
        return [*before, Emitted(stem, body, arguments, (*sums, self.group.root), self.numbers())]

    def first_operand(self, before: list[Emitted]) -> tuple[Argument, Rows]:
        """a as it is stored, if vectors of its rows can be read there, else a copy in rows."""
        s, rows = self.s, self.stored_rows()
        if rows is not None and not (rows.chunked and rows.chunk % self.width):
            return rows.node, rows

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            return (*self.operand_index(self.a, at[0]), at[1]), E.const(True, "bool")

        copy, emitted = self.hooks.arranged(
            self.a, f"rows {self.a.type}", "f32", (s.m, s.k), where)
        before.append(emitted)
        return copy, Rows(self.a, s.k, s.k, 0)

    def second_operand(self, before: list[Emitted]) -> tuple[Argument, tuple[Argument, ...]]:
        """b in panels, and where its columns are alike, unless all are."""
        s, width, blocks = self.s, self.width, self.blocking.tile.blocks
        if self.b.op == "const":
            make = partial(alike_columns, blocks=blocks, width=width)
            flags = (Packed(self.b, f"strassen {width} {blocks}", make),) if self.checked else ()
            return self.columns(2 * blocks, before), flags
        _, panels = self.blocking.counts(s, width)
        copy = Scratch(f"panels {blocks} {self.b.type}", "f32", (panels, s.k, 2 * blocks * width))
        alike = Scratch(f"alike {blocks} {self.b.type}", "i32", (panels,))
        body = self.hooks.render("strassen_cpu/columns.py.j2", entry=ENTRY, NB=blocks, W=width,
                                 LIMIT=f"f32({LIMIT})", LARGEST=f"f32({LARGEST})")
        before.append(Emitted("arranged", body, (self.b, copy, alike), (copy, alike),
                              (s.n, s.k, panels)))
        return copy, (alike,)

    def waiting_sums(self) -> Scratch:
        """[panels][m_tiles][a tile's]"""
        m_tiles, panels = self.blocking.counts(self.s, self.width)
        tile = self.blocking.tile
        shape = (panels, m_tiles, 4 * tile.columns * tile.blocks * self.width)
        return Scratch("sums of a part of the terms", "f32", shape)

    def numbers(self) -> tuple[int, ...]:
        """The values of PARAMS."""
        s, b = self.s, self.blocking
        m_tiles, panels = b.counts(s, self.width)
        lines = -(-b.tile.columns * b.tile.blocks * self.width // 28)  # of four sums, a turn
        values = {
            "m_count": s.m,
            "n_count": s.n,
            "k_count": s.k,
            "nbs": -(-s.n // self.width),
            "m_tiles": m_tiles,
            "panels": panels,
            "b_panel": 2 * s.k * b.tile.blocks * self.width,
            "row_steps": max(0, (b.terms // b.tile.columns).bit_length() - 1),
            "sum_steps": max(0, (b.terms // lines).bit_length() - 1),
        }
        return tuple(values[name] for name in PARAMS)


def pitch(terms: int, width: int) -> int:
    """Elements from a row of first factors to the next: whole vectors, and not many of them in one
    set of a first-level cache."""
    whole = -(-terms // width) * width
    return whole + 16 if 4 * whole % (CACHE_WAY // 16) == 0 else whole


