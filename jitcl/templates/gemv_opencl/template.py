"""Products of one to eight rows with a matrix that lies in memory, on GPUs with local memory: what
decoding does. The matrix is read once, 16 bytes a work-item at a time, and that is what they take:
of a row, or of a column where columns lie in memory one behind the other (passes/weight_rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import at_most, hints, parameters
from jitcl.ir.sizes import has_size, is_size, same
from jitcl.ir.types import ROW
from jitcl.passes.weight_rows import FEW_ROWS
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Emitted,
    Match,
    OpenClHooks,
    Template,
    launched,
)
from jitcl.templates.gemm_opencl.product import fits_int, unfused
from jitcl.templates.gemm_tiled_opencl.product import Product, matmul, places
from jitcl.templates.gemm_tiled_opencl.template import QUAD, GemmTiledOpenCl
from jitcl.templates.packed import Weights

AHEAD = 8                      # vectors of B that a work-item reads before it multiplies
GROUPS = 2                     # work-groups a core that keep it busy
PIECES_AHEAD = 4               # as AHEAD, of all columns of a group
COLUMNS = 2                    # of a group


@dataclass(frozen=True)
class Slices(Match):
    """A group's work-items: along a row of B, and along its columns, who each sum a slice of k; how
    many columns each of them has.
    """

    lanes: int
    slices: int
    columns: int


class GemvOpenCl(Template[Slices, OpenClHooks]):
    """matmul of f32 or f16 storage with few rows; sums in f32."""

    name = "gemv_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Slices, ...]:
        node = group.anchor
        if node is None or node.op != "matmul" or not target.stages_tiles:
            return ()
        if same(node.type.size, 0):
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        if any(i.type.dtype not in ("f32", "f16") for i in (node, *node.inputs)):
            return ()
        product, b = matmul(node), Right.of(group, target)
        if product is None or has_size((product.batch, product.n, product.k)):
            return ()
        rows = FEW_ROWS if is_size(product.m) else product.m
        if product.batch > 1 or rows > FEW_ROWS or not product.k:
            return ()
        if b is None or not b.width or (product.k if b.by_k else product.n) % b.width:
            return ()
        if not fits_int(product.n * product.k, *hints([n.type.size for n in group.operands])):
            return ()
        if is_size(product.m) and not GemmTiledOpenCl().candidates(group, target):
            return ()
        return slices(replace(product, m=rows), b, target)

    def emit(self, match: Slices, hooks: OpenClHooks) -> list[Emitted]:
        """One kernel; two where k falls into parts. Where the number of rows is not known, tiles
        for many beside them.
        """
        p = matmul(hooks.anchor)
        assert p is not None
        if hooks.epilogue_lines(p.c(*places(p)), 1) is None:
            return unfused(hooks, lambda alone: self.emit(match, alone))
        if not is_size(p.m):
            return self._rows(match, hooks, p, p.m)
        tiled = GemmTiledOpenCl()
        few, many = self.few(match, hooks, p)
        return [*few, *tiled.emit(tiled.candidates(hooks.group, hooks.target)[0], hooks, many)]

    def few(self, match: Slices, hooks: OpenClHooks, p: Product) -> tuple[list[Emitted], int]:
        """(kernels for one row and for a few, of a number of rows that is not known; 1 where there
        are more, else 0)"""
        target = hooks.target
        b = Right.of(hooks.group, target)
        assert b is not None
        alone = slices(replace(p, m=1), b, target)[0]
        one, few = at_most(p.m, 1), at_most(p.m, FEW_ROWS)
        return [*launched(self._rows(alone, hooks, p, 1), one),
                *launched(self._rows(match, hooks, p, FEW_ROWS), few - one)], 1 - few

    def _rows(self, match: Slices, hooks: OpenClHooks, p: Product, most: int) -> list[Emitted]:
        """The kernels for `most` rows, or as many as there are."""
        b = Right.of(hooks.group, hooks.target)
        assert b is not None
        w, rows = b.weights, 1 if most == 1 else p.m
        _, m, n = places(replace(p, m=rows))
        epilogue = hooks.epilogue_lines(p.c(E.index(0), m, n), 1)
        assert epilogue is not None
        at, k = E.var("m", extent=most) if is_size(rows) else m, E.var("k", extent=p.k)
        left, shape, (ix, _) = p.nodes[0], p.shapes[0], p.a(E.index(0), at, k)
        place = hooks.place_lines(left, shape, ix) if b.by_k else None
        if place is not None and place.runs.get("k", 1) % QUAD:
            place = None
        load = None if place else hooks.load_lines(left, shape, ix, *(
            (at < rows,) if is_size(rows) else ()))
        read = place or load
        assert read is not None
        nodes = dict.fromkeys((*((place.node,) if place else load.nodes if load else ()),
                               *b.nodes, *epilogue.nodes))
        sizes = parameters(rows, *read.sizes.values(), *epilogue.sizes.values()) | epilogue.sizes
        step = match.slices * (b.width if b.by_k else 1)    # terms that a group reads at once
        ahead = max(1, (PIECES_AHEAD if b.by_k else AHEAD) // (most * (match.columns if b.by_k
                                                                       else 1)))
        named = {x: (hooks.names[x], hooks.ctype(x.type.dtype)) for x in nodes}
        body = hooks.render(
            "gemv_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, load=load, place=place,
            sources=list(named.values()), a=named[place.node] if place else None,
            b=named[b.const], coded=w, decoded=decoded, scales=w and named[w.scales],
            shifts=w and w.shifts and named[w.shifts],
            BITS=b.width == 8 and w is None, BY_K=b.by_k, M=most, ROWS=rows, N=p.n, K=p.k,
            V=b.width, LANES=match.lanes, SLICES=match.slices, COLUMNS=match.columns, STEP=step,
            AHEAD=min(ahead, -(-p.k // step)), MET=1 << match.slices.bit_length() // 2,
            HALF=hooks.half, sizes=sizes)
        y, columns = hooks.group.root, match.lanes * match.columns
        items = match.lanes * match.slices
        return [Emitted(f"gemv_{most}x{columns}", body, (*nodes, y), (y,), sizes,
                        (-(-p.n // columns) * items,), (items,), main=1)]


@dataclass(frozen=True)
class Right:
    """How a right operand lies in memory: rows, or columns one behind the other (by_k); in few
    bits as `weights`. width: elements that are read at once, 0 if there is no such number.
    """

    const: Node
    by_k: bool
    width: int
    weights: Weights | None = None

    @staticmethod
    def of(group: Group, target: Target) -> Right | None:
        """Of a product; None where what it reads does not lie in memory so."""
        assert group.anchor is not None
        b = group.anchor.inputs[1]
        if b in group.operands:
            return Right(b, False, lanes_of(b.type.dtype, target))
        weights = Weights.of(b) if group.decodes(b) else None
        if weights is not None:
            width = next((w for w in (128 // weights.bits, 64 // weights.bits)
                          if weights.block % w == 0), 0)
            return Right(weights.const, True, width, weights)
        if b.op == "transpose" and b.type.rank == 2 and b.inputs[0] in group.operands:
            return Right(b.inputs[0], True, lanes_of(b.inputs[0].type.dtype, target))
        return None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What is read."""
        if self.weights is None:
            return (self.const,)
        return (self.const, self.weights.scales,
                *((self.weights.shifts,) if self.weights.shifts else ()))


def decoded(word: str, e: int, w: Weights) -> tuple[str, str, str]:
    """Arguments of jitcl_uint4_code or jitcl_uint8_code, which then gives code e of a word less its
    zero: (bits of the word, factor, what is subtracted)."""
    whole = 24 // w.bits - 1            # codes that a mantissa has room for
    at, behind = e % whole * w.bits, e // whole * whole * w.bits
    word = f"({word} >> {behind})" if behind else word
    mask = ((1 << w.bits) - 1) << at
    return f"{word} & {mask:#x}u", f"{0.5 ** at!r}f", f"{2.0 ** (23 - at) + w.zero!r}f"


def slices(p: Product, b: Right, target: Target) -> tuple[Slices, ...]:
    """Best first. Of rows as many neighbours as leave all cores busy, of large groups; of columns
    two, four where each element of A has to be worth more (codes), of groups that have all their
    work-items read.
    """
    if b.by_k:
        some = [n for n in (128, 64, 32) if n <= target.max_work_group] or [1]
        items = next((n for n in some if n * b.width <= p.k), some[-1])
        columns = 2 * COLUMNS if b.weights is not None and p.m <= 2 else COLUMNS
        return tuple(Slices(1, n, c) for n in dict.fromkeys((items, *some)) for c in (columns, 1)
                     if 4 * n * c * p.m <= target.local_memory)
    width = b.width

    def rank(lanes: int) -> tuple[bool, int]:
        idle = -(-p.n // (lanes * width)) < GROUPS * target.compute_units
        return idle, lanes if idle else -lanes

    return tuple(Slices(lanes, items // lanes, width)
                 for lanes in sorted((1, 2, 4, 8, 16), key=rank)
                 for items in (256, 128) if items <= target.max_work_group
                 and 4 * items * width * p.m <= target.local_memory)


def lanes_of(dtype: str, target: Target) -> int:
    """Elements of B that are read at once: 16 bytes, where their halves can be taken apart."""
    return 8 if dtype == "f16" and target.tensor_cores else 4


__all__ = ["GemvOpenCl", "Slices"]
