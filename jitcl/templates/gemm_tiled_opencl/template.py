"""Matrix products and convolutions on GPUs whose local memory is worth staging tiles into.

A convolution is a product too, of weights [m, taps] and pixels [taps, n], whose right side is never
stored: the loader of a tile finds each tap's pixel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.enclosure import FLUSHED
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor, hints, parameters, require
from jitcl.ir.sizes import has_size, same
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Argument,
    Emitted,
    Epilogue,
    Loader,
    Match,
    OpenClHooks,
    Place,
    Scratch,
    Template,
    launched,
)
from jitcl.templates.gemm_opencl.product import counter, fits_int, unfused
from jitcl.templates.gemm_tiled_opencl.product import Product, places, product_of
from jitcl.templates.gemm_tiled_opencl.sized import bands, by_size
from jitcl.templates.opencl.tiling import MAX_INDEX

QUAD = 4                       # elements of a vector in local memory
GROUPS = 2                     # work-groups a core that keep it busy
LEAST_K = 128                  # terms of a part of a sum that is split
REGISTERS = 128                # of a work-item: a core has 65536
MAX_SPLITS = 16
READ = 32                      # multiply-adds of a core in the time of an element of a tile
ARRIVES = 100_000              # .. of a step, from memory
LAUNCH = 1_000_000             # .. of a launch
ALONE = 1 / 3                  # of a core, what a group alone leaves unused
JOIN = 128                     # work-items a group of the kernel that joins the parts
PAIR = 2                       # terms that are read at once of products of one column


@dataclass(frozen=True)
class Blocks(Match):
    """Work-group tile, terms at a time."""

    bm: int
    bn: int
    bk: int


@dataclass(frozen=True)
class Tiling(Blocks):
    """With the tile of a work-item."""

    tm: int
    tn: int
    slices: int = 1                              # of the terms, summed by other work-items

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return self.bm // self.tm * (self.bn // self.tn) * self.slices

    @property
    def step(self) -> int:
        """Bytes of a step in local memory, at most."""
        return 4 * self.bk * (self.bm + self.bn + 8)

    @property
    def sums(self) -> int:
        """Bytes that the slices' sums pass through."""
        return 4 * (self.items - self.items // self.slices) * self.tm


# at most 256 work-items: more NVIDIA takes only where the group is declared
LARGE = Tiling(128, 128, 16, 8, 8)
TALL = Tiling(64, 64, 16, 8, 4)
HALVED = Tiling(32, 32, 32, 4, 4, 2)
LOW = Tiling(16, 32, 64, 4, 4, 8)
SMALL = Tiling(32, 32, 32, 4, 4)
TILINGS = (LARGE, TALL, HALVED, LOW)
COMMON = (HALVED, TALL, LOW, LARGE, SMALL)       # those that suit most products first
NEAR = 1.12                    # times the best tiles' time, which is not known more closely
MICROSECOND = LAUNCH / 4       # beside it, next to nothing of a model's time


@dataclass(frozen=True)
class Split(Match):
    """The tiles of a product, and how many parts the terms of its sums are split in."""

    tiling: Tiling
    splits: int


class GemmTiledOpenCl(Template[Split, OpenClHooks]):
    """matmul and conv of f32 or f16 storage, sums in f32; in half, a few terms at a time, where the
    group computes so.
    """

    name = "gemm_tiled_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Split, ...]:
        node = group.anchor
        if node is None or not target.stages_tiles:
            return ()
        if node.op not in ("matmul", "conv") or node.type.dtype not in ("f32", "f16"):
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        if 0 in (node.type.size, *(i.type.size for i in node.inputs)):
            return ()
        sizes = (MAX_SPLITS * node.type.size, *(n.type.size for n in group.operands))
        if not fits_int(*hints(sizes)):
            return ()
        if node.op == "conv" and (
                node.inputs[1] not in group.operands or has_size(node.inputs[1].type.dims)):
            return ()
        product = product_of(node)
        found = () if product is None else choose_splits(product.now, target)
        if product is not None and same(product.n, 1) and found[0].splits > 1:
            return ()                # loops whose lanes share each row's terms, in one launch
        return found

    def emit(self, match: Split, hooks: OpenClHooks, when: int = 1) -> list[Emitted]:
        """when: 1 where these kernels are launched, 0 where others are: as a size."""
        product = product_of(hooks.anchor)
        assert product is not None
        if not has_size(product.numbers):
            return _Writer(match, hooks).emit()
        indexed(hooks.group)
        return _by_size(match, hooks, product, when)


def indexed(group: Group) -> None:
    """Have sizes that are not known be such that elements are counted in int."""
    for node in (group.root, *group.operands):
        require(MAX_INDEX - 1, node.type.size)


def _by_size(match: Split, hooks: OpenClHooks, p: Product, when: int) -> list[Emitted]:
    """A product of sizes that are not known, by the kernels of `bands`; sums are in as many parts
    as keep the device busy.
    """
    target, wanted = hooks.target, GROUPS * hooks.target.compute_units
    if hooks.epilogue_lines(p.c(*places(p)), 1) is None:
        return unfused(hooks, lambda alone: _by_size(match, alone, p, when))
    if not has_size(p.elements):
        return launched(_Writer(match, hooks).emit(), when)

    def taken(kind: tuple[Tiling, bool], q: Product) -> float:
        t, divided = kind
        parts = splits(t, q, target) if divided else 1
        joins = LAUNCH if divided and parts == 1 else 0         # of one part, too
        return math.inf if idle(t, q, target) else cycles(Split(t, parts), q, target) + joins

    def kernels(kind: tuple[Tiling, bool], limit: int) -> list[Emitted]:
        t, divided = kind
        most = min(MAX_SPLITS, max(1, p.now.k // LEAST_K)) if divided else 1
        parts = 1 + (most - 1) // (1 + tiles(t, p) * most // wanted)
        room = limit + wanted * t.bm * t.bn     # parts - 1 are less than wanted / tiles
        return _Writer(Split(t, parts), hooks, room).emit()
    largest = replace(p.now, m=max(p.now.m, LARGE.bm), n=max(p.now.n, LARGE.bn))
    whole = [(t, False) for t in TILINGS if fits(t, largest, target)] or [(SMALL, False)]
    found = bands(p, full(target), (match.tiling, match.splits > 1), whole,
                  [(t, True) for t, _ in whole], taken)
    return by_size(p, found, kernels, when)


def full(target: Target) -> int:
    """Elements of results that fill a device."""
    return GROUPS * target.compute_units * LARGE.bm * LARGE.bn


def choose_splits(p: Product, target: Target) -> tuple[Split, ...]:
    """The tiles that fit, with sums whole and split as far as that makes too few groups enough;
    those that take least come first, of those that are near to it the common ones, which makes
    programs few.
    """
    some = [t for t in TILINGS if fits(t, p, target) and not idle(t, p, target)]
    found = dict.fromkeys(Split(t, n) for t in some or [SMALL] for n in (1, splits(t, p, target)))
    times = {split: cycles(split, p, target) for split in found}
    least = max(NEAR * min(times.values()), MICROSECOND + min(times.values()))
    return tuple(sorted(found, key=lambda split: (
        max(least, times[split]), COMMON.index(split.tiling), times[split])))


def tiles(t: Blocks, p: Product) -> int:
    """Tiles of the result."""
    return p.batch * -(-p.m // t.bm) * -(-p.n // t.bn)


def fits(t: Tiling, p: Product, target: Target) -> bool:
    """Whether the target has room for a tile, and the product as much as fills half of it."""
    room = t.items <= target.max_work_group and t.step + t.sums <= target.local_memory
    return room and 2 * min(p.m, p.n) > min(t.bm, t.bn)


def idle(t: Tiling, p: Product, target: Target) -> bool:
    """Whether there are too few of the largest tiles: `cycles` takes them for better then than they
    are, also where sums are split."""
    return t is LARGE and tiles(t, p) < GROUPS * target.compute_units


def splits(t: Tiling, p: Product, target: Target) -> int:
    """Parts that sums are split in: more groups where there are few."""
    groups, wanted = tiles(t, p), GROUPS * target.compute_units
    most = min(MAX_SPLITS, max(1, p.k // LEAST_K))
    parts = min(most, -(-wanted // groups)) if 2 * groups <= wanted else 1
    return -(-p.k // terms(t, p, parts))


def terms(t: Blocks, p: Product, parts: int) -> int:
    """Terms of one part: whole steps of a tile."""
    return ((p.k + parts - 1) // parts + t.bk - 1) // t.bk * t.bk


def cycles(split: Split, p: Product, target: Target) -> float:
    """What a core takes, in multiply-adds: for each step the time until it arrives, and arithmetic
    and reads from local memory of all groups; as much for two steps to begin and to end; for split
    sums another launch.
    """
    t = split.tiling
    groups = tiles(t, p) * split.splits / target.compute_units
    steps = terms(t, p, split.splits) // t.bk
    load = t.bk * (t.bm * t.bn + READ * (t.bm + t.bn))
    taken = steps * (ARRIVES + load * max(groups, ALONE)) + 2 * load
    return taken if split.splits == 1 else taken + LAUNCH


class _Writer:
    """room: elements of all parts of sums, where their number is not known."""

    def __init__(self, match: Split, hooks: OpenClHooks, room: int = 0) -> None:
        product = product_of(hooks.anchor)
        assert product is not None
        self.p, self.match, self.hooks, self.room = product, match, hooks, room
        self.tiling, self.splits = match.tiling, match.splits
        self.groups = tiles(self.tiling, product)
        self.part = terms(self.tiling, product, self.splits)
        if has_size(self.splits):
            self.splits = -(-product.k // self.part)

    def emit(self) -> list[Emitted]:
        p, t, hooks = self.p, self.tiling, self.hooks.lifting(self.p.nodes[0])
        root, whole = hooks.group.root, self.splits == 1
        epilogue, v = epilogue_of(p, hooks, QUAD, whole)
        if epilogue is None:
            return unfused(hooks, lambda alone: _Writer(self.match, alone).emit())
        whole_tiles = all(divisor(n) % s == 0 for n, s in ((p.m, t.bm), (p.n, t.bn), (p.k, t.bk)))
        edges = t is not LARGE or not whole_tiles
        # gates of any number of channels are one program: most of their tile has nothing to do
        run = PAIR if same(p.n, 1) else QUAD
        a, b = (side(p, hooks, which, tile, t.bk, run, t.items, edges)
                for which, tile in enumerate((t.bm, t.bn)))
        nodes = dict.fromkeys((*a.nodes, *b.nodes, *(epilogue.nodes if whole else ())))
        sources = [(hooks.names[n], hooks.ctype(n.type.dtype)) for n in nodes]
        helpers = dict.fromkeys((*a.helpers, *b.helpers))
        sizes = numbers(p, t, hooks, self.part)
        read = (epilogue.sizes if whole else {}, a.sizes, b.sizes)
        taken = parameters(*sizes.values(), *(v for found in read for v in found.values())
                           ) | read[0]
        body = hooks.render(
            "gemm_tiled_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, sources=sources,
            helpers=list(helpers), a=a, b=b, V=v, WHOLE=whole, SLICES=t.slices,
            HALF=hooks.half, FLUSHED=min(FLUSHED, t.bk // t.slices), BM=t.bm, BN=t.bn, BK=t.bk,
            TM=t.tm, TN=t.tn, BUFFERS=buffers(t, hooks.target),
            LIMITED=bool(hooks.target.register_limit),
            sizes=taken, **sizes)
        total = p.batch * p.m * p.n
        y: Argument = root
        if not whole:
            y = (Scratch("parts of sums", "f32", (self.room,)) if has_size(self.splits) else
                 Scratch(f"parts of {root.type}", "f32", (self.splits, total)))
        stem = f"gemm_tiled_{t.bm}x{t.bn}"
        product = Emitted(stem, body, (*nodes, y), (y,), arguments(taken, p),
                          (self.splits * self.groups * t.items,), (t.items,), limit(hooks.target),
                          main=1)
        if whole:
            return [product]
        return [product, joined(hooks, y, p, self.splits)]


def epilogue_of(p: Product, hooks: OpenClHooks, most: int, whole: bool = True
                ) -> tuple[Epilogue | None, int]:
    """(what stores neighbours of a row, or None; how many: `most` or 1). Pixels are one row where
    nothing tells their axes apart. whole: it stores sums, not parts of them."""
    ix, types, rows = p.c(*places(p)), None, hooks.group.root.type.dims[-1]
    if hooks.anchor.op == "conv" and (flat := hooks.flat_pixels()) is not None:
        ix, types, rows = (*ix[:2], places(p)[2]), flat, p.n
    for width in (most, 1) if divisor(rows if whole else p.n) % most == 0 else (1,):
        aligned = {"n": width, "at": math.gcd(divisor(p.n), width)}
        found = hooks.epilogue_lines(ix, width, types, aligned)
        if found is not None:
            return found, width
    return None, 1


def numbers(p: Product, t: Blocks, hooks: OpenClHooks, part: int) -> dict[str, int]:
    """What a product's text has of its sizes."""
    found = dict(M=p.m, N=p.n, K=p.k, K_PART=part, M_TILES=-(-p.m // t.bm),
                 N_TILES=-(-p.n // t.bn))
    batch = p.batch if same(p.batch, 1) else hooks.number(p.batch)
    return {name: hooks.number(n) for name, n in found.items()} | {"BATCH": batch}


def arguments(taken: dict[str, int], p: Product) -> dict[str, int]:
    """Values of parameters: numbers, where the product's sizes are."""
    return taken if has_size(p.numbers) else hints(taken)


@dataclass(frozen=True)
class Side:
    """How an operand's tiles come into local memory: `run` neighbours at a time, from their
    `place`; or each by itself, from a function that loads it. by_k:
    terms are neighbours in a tile.
    """

    name: str                                    # "m" or "n"
    count: int
    edges: bool                                  # whether tiles may go beyond the operand
    tile: int
    by_k: bool
    run: int
    buffer: str
    ctype: str
    place: Place | None
    load: Loader | None

    @property
    def sizes(self) -> Mapping[str, int]:
        read = self.place or self.load
        return parameters(self.count) | dict(read.sizes if read else {})

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.place.node,) if self.place else self.load.nodes if self.load else ()

    @property
    def helpers(self) -> tuple[str, ...]:
        read = self.place or self.load
        return read.helpers if read else ()


def side(p: Product, hooks: OpenClHooks, which: int, tile: int, step: int, most: int, items: int,
         edges: bool = False) -> Side:
    """How `items` work-items bring tiles of A (which = 0) or B, `step` terms each: up to `most`
    neighbours at a time. edges: tiles may go beyond the operand, also where this one's don't."""
    name, count = ("m", p.m) if which == 0 else ("n", p.n)
    edges = edges or divisor(count) % tile != 0 or divisor(p.k) % step != 0
    k = E.var("k", extent=p.k)
    at = counter("image", p.batch), E.var(name, extent=count), k
    ix, inside = (p.a, p.b)[which](*at)
    node, shape = p.nodes[which], p.shapes[which]
    place = hooks.place_lines(node, shape, ix) if inside.is_const else None
    if place is not None:
        runs = {v: math.gcd(place.runs.get(v, 1), divisor(extent), most)
                for v, extent in (("k", p.k), (name, count))}
        along = max(runs, key=lambda v: runs[v])
        if runs[along] > 1 and tile * step // runs[along] % items == 0:
            return Side(name, hooks.number(count), edges, tile, along == "k", runs[along],
                        hooks.names[place.node], hooks.ctype(place.node.type.dtype), place, None)
    beyond = edges * max(tile, step)            # what lies there is not read
    for n, extent in ((name, count), ("k", p.k)):
        inside = inside & (E.var(n, extent=extent + beyond) < extent)
    load = hooks.load_lines(node, shape, ix, inside)
    return Side(name, hooks.number(count), edges, tile, load.fast_k, 1, "", "", None, load)


def limit(target: Target) -> tuple[str, ...]:
    """Build options that let two groups of 256 work-items share a core's registers."""
    return (target.register_limit.format(REGISTERS),) if target.register_limit else ()


def buffers(t: Tiling, target: Target) -> int:
    """Steps in local memory at once: two, where there is room."""
    return 2 if 2 * t.step + t.sums <= target.local_memory else 1


def joined(hooks: OpenClHooks, part: Argument, p: Product, splits: int) -> Emitted:
    """The kernel that adds the parts of sums, and writes the epilogue (of one element)."""
    hooks = hooks.lifting()
    epilogue, _ = epilogue_of(p, hooks, 1)
    assert epilogue is not None
    total = p.batch * p.m * p.n
    numbers = dict(TOTAL=hooks.number(total), M=hooks.number(p.m), N=hooks.number(p.n),
                   SPLITS=hooks.number(splits))
    sizes = parameters(*numbers.values(), *epilogue.sizes.values()) | epilogue.sizes
    body = hooks.render("gemm_tiled_opencl/join.cl.j2", entry=ENTRY, epilogue=epilogue,
                        sizes=sizes, **numbers)
    group, root = min(JOIN, hooks.target.max_work_group), hooks.group.root
    items = -(-total // group) * group
    return Emitted("join", body, (part, *epilogue.nodes, root), (root,), arguments(sizes, p),
                   (items,), (group,))
