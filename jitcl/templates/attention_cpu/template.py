"""Attention: scores, their softmax and its product with the values, without the scores in memory.

Of scores no more than a tile's rows exist at a time (Rabe and Staats, "Self-attention does not need
O(n^2) memory", 2021, with whole rows as long as they fit into the cache of a CPU). What scores are
less before their exponentials are taken is a number of about the right size, and not the largest of
the row, which would have to be known first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import at_most, hints
from jitcl.ir.sizes import hint, is_size, same
from jitcl.ir.types import ROW
from jitcl.target import CpuCore, Target
from jitcl.templates.attention import Attention, pattern
from jitcl.templates.attention_cpu.few import MOST_ROWS, Few, few_of
from jitcl.templates.attention_cpu.few import emit as emit_few
from jitcl.templates.base import ENTRY, Argument, CpuHooks, Emitted, Match, Template, launched
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.cpu.tiling import MOST_COLUMNS, Tile, fits, lasting, step_cycles
from jitcl.templates.gemm_cpu.template import Writer, product_of

LIMIT = 2.0**40             # of a row's sum of powers: beyond it, values above 2**88 might overflow
MASKED = -1000              # what is less is no score
FEWEST_ROWS = 8             # of queries in tiles


@dataclass(frozen=True)
class Queries:
    """Queries as they are stored, `heads` of them in an image: a head begins `head` elements behind
    the one before it, a row `pitch`, an image `image`."""

    node: Node
    pitch: int
    heads: int
    head: int
    image: int


@dataclass(frozen=True)
class Tiles(Match):
    """The register tiles of both products, of equally many rows. few: what computes up to MOST_ROWS
    of rows whose number is not known."""

    scores: Tile
    result: Tile
    few: Few | None = None


class AttentionCpu(Template[Tiles | Few, CpuHooks]):
    """matmul, softmax along its rows, matmul; with epilogues of both products. What is stored is
    f32 or f16, sums and powers are f32. Few rows have kernels of their own (few.py); where their
    number is not known, a plan has both kinds, of which a run launches one."""

    name = "attention_cpu"
    lengths = (3,)
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Tiles | Few, ...]:
        a = attention_of(group, target)
        if a is None:
            return ()
        few = few_of(a.scores, a.result, target)
        return (few if few and not is_size(a.scores.m) else choose_tiles(a, few, target),)

    def emit(self, match: Tiles | Few, hooks: CpuHooks) -> list[Emitted] | None:
        """None where an epilogue is no function of whole vectors."""
        a = attention_of(hooks.group, hooks.target)
        assert a is not None
        if isinstance(match, Few):
            return self._few(match, a, hooks)
        when = at_most(a.scores.m, MOST_ROWS)
        if match.few is None or same(when, 0):
            return self._tiles(match, a, hooks)
        few, many = self._few(match.few, a, hooks), self._tiles(match, a, hooks)
        return few and many and [*launched(few, when), *launched(many, 1 - when)]

    def _few(self, match: Few, a: Attention, hooks: CpuHooks) -> list[Emitted] | None:
        first, _, last = hooks.group.parts
        scores = Writer(a.scores, hooks.part(first, "x", "scores"))
        result = Writer(a.result, hooks.part(last, "z", "y"))
        return emit_few(match, scores, result, a.guarded, hooks)

    def _tiles(self, match: Tiles, a: Attention, hooks: CpuHooks) -> list[Emitted] | None:
        width, (first, _, last) = hooks.target.vector_width, hooks.group.parts
        before, after = hooks.part(first, "x", "scores"), hooks.part(last, "z", "y")
        lines = before.row_epilogue(width, "s"), after.row_epilogue(width)
        if lines[0] is None or lines[1] is None:
            return None
        tile, v_tile = match.scores, match.result
        clamped = is_size(a.scores.m)           # there may be fewer rows than a tile has
        keys, values = Writer(a.scores, before), Writer(a.result, hooks.part(last, "x", "y"))
        emitted: list[Emitted] = []
        stored = None if clamped else stored_queries(keys, tile.columns)
        if stored:
            q: Argument = stored.node
        else:
            q, arranged = keys.rows(tile.columns)
            emitted.append(arranged)
        panels, block = key_blocks(a, tile, width, hooks.target.core.stack)
        blocks, n = -(-panels // block), a.scores.n
        k: Argument = keys.columns(tile.blocks, emitted)
        in_rows = values.wide() and a.result.n % (v_tile.blocks * width) == 0
        v: Argument = values.b if in_rows else values.columns(v_tile.blocks, emitted)
        own = [(part.names[n], n) for part, text in ((before, lines[0]), (after, lines[1]))
               for n in operands_of(text, part)]
        params = numbers(a, tile, v_tile, width, stored, in_rows)
        body = hooks.render(
            "attention_cpu/numba.py.j2", entry=ENTRY, params=params, guarded=a.guarded,
            operands=[(name, n.type.dtype) for name, n in own], score_lines=lines[0],
            whole_lines=before.row_epilogue(width, "s", True), lines=lines[1], ROWS=tile.columns,
            NB=tile.blocks, VB=v_tile.blocks, W=width, N=n, NBS=-(-n // width),
            FULL=n // (tile.blocks * width), RAGGED=is_size(n) or n % width > 0,
            clamped=clamped,
            WHOLE=is_size(n) or n // (tile.blocks * width) > 0,
            KP=panels, BLOCK=block, BLOCKS=blocks, SEVERAL=is_size(blocks) or blocks > 1,
            STRIDE=stride(block * tile.blocks * width, width),
            VN=a.result.n, VBS=-(-a.result.n // width), LIMIT=f"f32({LIMIT})",
            LEAST=f"f32({1 / LIMIT})", MASKED=f"f32({MASKED})", stored=stored, in_rows=in_rows,
            VP=-(-a.result.n // (width * v_tile.blocks)), y_dtype=last.root.type.dtype)
        arguments: tuple[Argument, ...] = (q, k, v, *(n for _, n in own), last.root)
        stem = f"attention_{tile.columns}x{tile.blocks}x{v_tile.blocks}"
        return [*emitted, Emitted(stem, body, arguments, (last.root,),
                                  params | hooks.sizes.params())]


def attention_of(group: Group, target: Target) -> Attention | None:
    """The products of a chain that the template computes; None of any other."""
    found = pattern(group, lambda part: product_of(part, target, columns=1))
    if found is None or found.computed or 4 * FEWEST_ROWS * found.result.n > target.core.stack:
        return None
    scores, result, narrow = found.scores, found.result, target.vector_width // 2
    if few_of(scores, result, target) is None and (
            scores.m < FEWEST_ROWS or scores.n < narrow or result.n < narrow):
        return None
    return found


def stride(columns: int, width: int) -> int:
    """Elements from a row of powers to the next: whole vectors, and not in one set of a first-level
    cache."""
    whole = -(-columns // width) * width
    return whole + width if 4 * whole % CpuCore.l1_way == 0 else whole


def key_blocks(a: Attention, tile: Tile, width: int, most: int) -> tuple[int, int]:
    """Panels of keys, and how many of them are in a block, whose powers take `most` bytes: equally
    many in all but the last. Of an unknown number as many as there may be."""
    panels: int = -(-a.scores.n // (tile.blocks * width))
    panel_bytes = 4 * tile.columns * tile.blocks * width
    if is_size(a.scores.n):
        return panels, most // panel_bytes
    return panels, -(-panels // -(-panel_bytes * hint(panels) // most))


def choose_tiles(a: Attention, few: Few | None, target: Target) -> Tiles:
    """Tiles of equally many rows for both products, with the fewest cycles together."""
    width, rows_at_most, a = target.vector_width, lasting(a.scores.m), hints(a)
    counts = ((-(-a.scores.n // width), a.scores.k), (-(-a.result.n // width), a.result.k))
    best, least = Tiles(Tile(1, 1, 1), Tile(1, 1, 1), few), math.inf
    most = min(MOST_COLUMNS, rows_at_most, target.core.stack // (4 * a.result.n))
    for rows in (r for r in range(1, most + 1) if fits(r, 1, target)):
        pair, cycles = [], 0.0
        for blocks, terms in counts:
            tiles = [Tile(1, rows, nb) for nb in range(1, min(8, blocks) + 1)
                     if fits(rows, nb, target)]
            costs = [step_cycles(t, target.fmas) * -(-blocks // t.blocks) * terms for t in tiles]
            cycles += min(costs)
            pair.append(tiles[costs.index(min(costs))])
        cycles *= -(-a.scores.m // rows)
        if cycles < least:
            best, least = Tiles(pair[0], pair[1], few), cycles
    return best


def stored_queries(scores: Writer, rows: int) -> Queries | None:
    """Where tiles of so many rows read queries as they lie: [..., M, D], or [B, M, H, D] whose view
    [B, H, M, D] they are. None where they are not stored so, or would throw each other out of the
    first-level cache."""
    a, s = scores.a, scores.s
    heads = a.op == "transpose" and a.type.rank == 4 and a.attr("perm") == (0, 2, 1, 3)
    node = a.inputs[0] if heads else a
    t = node.type
    if node not in scores.hooks.names or t.layout != ROW or t.dtype != "f32":
        return None
    if not heads and not s.merged and a.type.dims[:-2] != scores.leading:
        return None
    if heads and (s.merged or (t.dims[0], t.dims[2]) != scores.leading):
        return None
    count = t.dims[2] if heads else 1
    found = Queries(node, count * s.k, count, s.k, s.m * count * s.k)
    return found if rows <= scores.core.rows_in_l1(4 * found.pitch) else None


def numbers(a: Attention, tile: Tile, v_tile: Tile, width: int, stored: Queries | None,
            in_rows: bool) -> dict[str, int]:
    """The kernel's integer parameters, by name."""
    s, r = a.scores, a.result
    k_panel, v_panel = s.k * tile.blocks * width, r.k * v_tile.blocks * width
    v_image = r.k * r.n if in_rows else -(-r.n // (v_tile.blocks * width)) * v_panel
    return {
        "batch": s.batch, "m_count": s.m, "depth": s.k, "m_tiles": -(-s.m // tile.columns),
        "k_image": 0 if s.merged else -(-s.n // (tile.blocks * width)) * k_panel,
        "k_panel": k_panel,
        "v_image": 0 if r.merged else v_image,
        "q_heads": stored.heads if stored else 1, "q_head": stored.head if stored else 0,
        "q_image": stored.image if stored else 0,
    }
