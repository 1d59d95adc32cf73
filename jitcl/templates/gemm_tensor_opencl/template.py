"""Matrix products and convolutions of halves on tensor cores, by inline PTX, where
`Target.tensor_cores` says that it works.

A warp multiplies 16 x 16 by 16 x 8 halves at once and adds in f32 (PTX ISA, mma.sync.m16n8k16), or
four warps 64 x 16 by 16 x 256 (wgmma.mma_async), where `Target.warpgroup_memory` says so; tiles
come into local memory by asynchronous copies, several steps ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor, parameters
from jitcl.ir.sizes import has_size
from jitcl.passes.regions import VIEWS
from jitcl.target import Target, ptx
from jitcl.templates.base import (
    ENTRY,
    Argument,
    Emitted,
    OpenClHooks,
    Scratch,
    Template,
    launched,
)
from jitcl.templates.gemm_opencl.product import unfused
from jitcl.templates.gemm_tiled_opencl.product import Product, places, product_of
from jitcl.templates.gemm_tiled_opencl.sized import bands, by_size
from jitcl.templates.gemm_tiled_opencl.template import (
    NEAR,
    Blocks,
    GemmTiledOpenCl,
    arguments,
    epilogue_of,
    full,
    indexed,
    joined,
    numbers,
    side,
    terms,
    tiles,
)
from jitcl.templates.gemv_opencl.template import LEAST_TENSOR_ROWS, GemvOpenCl

WARP = 32
RUN = 8                        # halves of a piece of 16 bytes
LEAST_K = 128                  # terms of a part of a sum that is split
MAX_SPLITS = 16
SUMS = 32768                   # of groups that a core has at once
LAUNCH = 5000                  # nanoseconds


@dataclass(frozen=True)
class Tiling(Blocks):
    """Warps along m and n, steps in local memory at once; in how many parts sums are split."""

    wm: int
    wn: int
    stages: int
    splits: int = 1
    warpgroups: bool = False       # four warps multiply 64 rows at once, by wgmma

    @property
    def items(self) -> int:
        """Work-items of a group."""
        return WARP * self.wm * self.wn

    @property
    def local(self) -> int:
        """Bytes."""
        return self.stages * 2 * self.bk * (self.bm + self.bn)


# those that suit most products first
TILINGS = (Tiling(32, 64, 64, 2, 2, 4), Tiling(64, 64, 64, 2, 2, 3), Tiling(128, 128, 32, 2, 2, 3),
           Tiling(128, 64, 32, 2, 2, 4), Tiling(64, 64, 32, 2, 2, 4),
           Tiling(128, 256, 64, 8, 1, 4, warpgroups=True),
           Tiling(64, 256, 64, 4, 1, 4, warpgroups=True))


class GemmTensorOpenCl(Template[Tiling, OpenClHooks]):
    """matmul and conv whose operands are halves in buffers; sums in f32."""

    name = "gemm_tensor_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Tiling, ...]:
        node = group.anchor
        if not target.tensor_cores or node is None or not target.local_works:
            return ()
        if not GemmTiledOpenCl().candidates(group, target):
            return ()
        product = product_of(node)
        if product is None or product.now.m < LEAST_TENSOR_ROWS or not plain(group, product.nodes):
            return ()
        run = neighbours(group, product)
        return choose(product.now, tilings(node, product, run, target), run, target)

    def emit(self, match: Tiling, hooks: OpenClHooks) -> list[Emitted]:
        """Where the number of rows is not known, a few are gemv_opencl's, if it takes them."""
        product = product_of(hooks.anchor)
        assert product is not None
        if not has_size(product.numbers):
            return _Writer(match, hooks).emit()
        if hooks.epilogue_lines(product.c(*places(product)), 1) is None:
            return unfused(hooks, lambda alone: self.emit(match, alone))
        indexed(hooks.group)
        gemv, few, many = GemvOpenCl(), list[Emitted](), 1
        if slices := gemv.candidates(hooks.group, hooks.target):
            few, many = gemv.few(slices[0], hooks, product)
        if not has_size(product.elements):
            return [*few, *launched(_Writer(replace(match, splits=1), hooks).emit(), many)]
        run = neighbours(hooks.group, product)
        whole = tilings(hooks.anchor, product, run, hooks.target)
        most = min(MAX_SPLITS, product.now.k // LEAST_K)
        divided = [replace(t, splits=n) for t in whole for n in (most // 4, most) if n > 1]
        found = bands(product, full(hooks.target), match, whole, divided,
                      lambda t, q: cost(t, q, run, hooks.target))
        return [*few, *by_size(product, found, lambda t, limit: _Writer(
            t, hooks, t.splits * limit).emit(), many)]


def plain(group: Group, nodes: Iterable[Node]) -> bool:
    """Whether operands are read from buffers as they are: what is computed on the way would be
    rounded to halves."""
    for node in nodes:
        while node in group.inlined and node.op in VIEWS:
            node = node.inputs[0]
        if node in group.inlined or node.type.dtype != "f16":
            return False
    return True


def neighbours(group: Group, p: Product) -> int:
    """How many elements of the right operand come at once, at most: of a column where columns lie
    one behind the other, else of a row."""
    b = p.nodes[1]
    columns = b in group.inlined and b.op == "transpose" and b.attr("perm")[-1] == b.type.rank - 2
    return math.gcd(RUN, divisor(p.k if columns else p.n)) if p.neighbours else 1


def choose(p: Product, some: Iterable[Tiling], run: int, target: Target) -> tuple[Tiling, ...]:
    """Best first by `cost`; of those that are near to it the common ones, so that programs are
    few."""
    found = [replace(t, splits=n) for t in some for n in dict.fromkeys((splits(t, p, target), 1))]
    times = {t: cost(t, p, run, target) for t in found}
    least = NEAR * min(times.values(), default=0)
    return tuple(sorted(found, key=lambda t: (
        max(least, times[t]), TILINGS.index(replace(t, splits=1)), times[t])))


def tilings(node: Node, p: Product, run: int, target: Target) -> list[Tiling]:
    """Those that the target has room for; groups of warps where operands come by 16 bytes at a
    time: loaders of single elements take the registers that their sums need."""
    runs = node.op == "matmul" and run == RUN and divisor(p.k) % RUN == 0
    return [t for t in TILINGS if t.items <= target.max_work_group and t.local <= (
        target.local_memory if not t.warpgroups else target.warpgroup_memory if runs else 0)]


def splits(t: Tiling, p: Product, target: Target) -> int:
    """Parts that sums are split in: more groups where there are few."""
    most = min(MAX_SPLITS, max(1, p.k // LEAST_K))
    parts = max(1, min(most, target.compute_units // tiles(t, p)))
    return -(-p.k // terms(t, p, parts))


def cost(t: Tiling, p: Product, run: int, target: Target) -> float:
    """Nanoseconds on an H200, as measured (docs/decisions.md): each term takes a core as long as
    its copies are under way, or as the arithmetic of the groups that it has at once; what groups
    are left over take a turn of their own. Sums that are split are written, and read by another
    kernel.
    """
    groups, size, cores = tiles(t, p) * t.splits, t.bm * t.bn, target.compute_units
    arithmetic, copies, at_once = 1.2 + size / 1640, 180 / t.bk + size / 1640, max(1, SUMS // size)
    if t.warpgroups:
        arithmetic, copies, at_once = 8 + size / 4700, 0, 1
    elif run == 1:                                   # loaded one by one
        arithmetic, copies = max(arithmetic, 45 * t.bn / t.items), 1400 / t.bk + 40 * t.bn / t.items
    turns, rest = divmod(groups, at_once * cores)
    last = max(copies, arithmetic * -(-rest // cores)) if rest else 0
    time = terms(t, p, t.splits) * (turns * max(copies, arithmetic * at_once) + last)
    join = LAUNCH + 0.004 * t.splits * p.batch * p.m * p.n if t.splits > 1 else 0
    return LAUNCH + time + join


def described(rows: int, columns: int) -> str:
    """What wgmma's description of an operand says beside its address (PTX ISA, "Matrix Descriptor
    Format"): bytes from 8 rows to the next and from 64 columns to the next; in 128-byte rows.
    """
    return f"{1 << 62 | rows >> 4 << 32 | columns >> 4 << 16:#x}UL"


class _Writer:
    """room: elements of all parts of sums, where their number is not known."""

    def __init__(self, match: Tiling, hooks: OpenClHooks, room: int = 0) -> None:
        product = product_of(hooks.anchor)
        assert product is not None
        self.p, self.t, self.hooks, self.room = product, match, hooks, room

    def emit(self) -> list[Emitted]:
        p, t, hooks = self.p, self.t, self.hooks.lifting(self.p.nodes[0])
        whole = t.splits == 1
        epilogue, pair = epilogue_of(p, hooks, 2, whole)
        if epilogue is None:
            return unfused(hooks, lambda alone: _Writer(t, alone).emit())
        a, b = (side(p, hooks, which, tile, t.bk, RUN, t.items, edges=True)
                for which, tile in enumerate((t.bm, t.bn)))
        nodes = dict.fromkeys((*a.nodes, *b.nodes, *(epilogue.nodes if whole else ())))
        sources = [(hooks.names[n], hooks.ctype(n.type.dtype)) for n in nodes]
        helpers = dict.fromkeys((*a.helpers, *b.helpers))
        part = terms(t, p, t.splits)
        sizes = numbers(p, t, hooks, part)
        read = (epilogue.sizes if whole else {}, a.sizes, b.sizes)
        taken = parameters(*sizes.values(), *(v for found in read for v in found.values())
                           ) | read[0]
        body = hooks.render(
            "gemm_tensor_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, sources=sources,
            helpers=list(helpers), a=a, b=b, WHOLE=whole, PAIR=pair, BM=t.bm, BN=t.bn, BK=t.bk,
            WM=t.wm, WN=t.wn, STAGES=t.stages, T=t.items, HALF=hooks.half, sizes=taken, **sizes,
            WARPGROUP=t.warpgroups, PTX=ptx.COMMENT, BY_TERMS=described(1024, 16),
            BY_COLUMNS=described(1024, t.bk * 128))
        y: Argument = hooks.group.root
        if not whole:
            y = Scratch(f"parts of {hooks.group.root.type}", "f32",
                        (self.room,) if self.room else (t.splits, p.elements))
        product = Emitted(f"gemm_tensor_{t.bm}x{t.bn}", body, (*nodes, y), (y,),
                          arguments(taken, p), (t.splits * tiles(t, p) * t.items,), (t.items,),
                          (ptx.OPTION,) if t.warpgroups else (), main=1)
        return [product] if whole else [product, joined(hooks, y, p, t.splits)]
