"""Products of one to eight rows with a matrix that lies in memory, on GPUs with local memory: what
decoding does. The matrix is read once, 16 bytes a work-item at a time, and that is what they take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import at_most, hints, parameters
from jitcl.ir.sizes import has_size, is_size
from jitcl.ir.types import ROW
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
from jitcl.templates.gemm_tiled_opencl.template import (
    GemmTiledOpenCl,
    Product,
    matmul,
    places,
)

MOST_ROWS = 8
AHEAD = 8                      # vectors of B that a work-item reads before it multiplies
GROUPS = 2                     # work-groups a core that keep it busy


@dataclass(frozen=True)
class Slices(Match):
    """A group's work-items: along a row of B, and along its columns, who each sum a slice of k."""

    lanes: int
    slices: int


class GemvOpenCl(Template[Slices, OpenClHooks]):
    """matmul of f32 or f16 storage with few rows; sums in f32."""

    name = "gemv_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Slices, ...]:
        node = group.anchor
        if node is None or node.op != "matmul" or not target.stages_tiles or node.type.size == 0:
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        if any(i.type.dtype not in ("f32", "f16") for i in (node, *node.inputs)):
            return ()
        product, b = matmul(node), node.inputs[1]
        if product is None or has_size((product.batch, product.n, product.k)):
            return ()
        rows = MOST_ROWS if is_size(product.m) else product.m
        if product.batch > 1 or rows > MOST_ROWS or not product.k:
            return ()
        width = lanes_of(b.type.dtype, target)
        if b not in group.operands or product.n % width:
            return ()
        if not fits_int(*hints([n.type.size for n in group.operands])):
            return ()
        if is_size(product.m) and not GemmTiledOpenCl().candidates(group, target):
            return ()
        return slices(replace(product, m=rows), width, target)

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
        width = lanes_of(hooks.anchor.inputs[1].type.dtype, target)
        alone = slices(replace(p, m=1), width, target)[0]
        one, few = at_most(p.m, 1), at_most(p.m, MOST_ROWS)
        return [*launched(self._rows(alone, hooks, p, 1), one),
                *launched(self._rows(match, hooks, p, MOST_ROWS), few - one)], 1 - few

    def _rows(self, match: Slices, hooks: OpenClHooks, p: Product, most: int) -> list[Emitted]:
        """The kernels for `most` rows, or as many as there are."""
        b = hooks.anchor.inputs[1]
        rows = 1 if most == 1 else p.m
        _, m, n = places(replace(p, m=rows))
        epilogue = hooks.epilogue_lines(p.c(E.index(0), m, n), 1)
        assert epilogue is not None
        k = E.var("k", extent=p.k)
        at = E.var("m", extent=most) if is_size(rows) else m
        inside = (at < rows,) if is_size(rows) else ()
        load = hooks.load_lines(p.nodes[0], p.shapes[0], p.a(E.index(0), at, k)[0], *inside)
        width = lanes_of(b.type.dtype, hooks.target)
        nodes = dict.fromkeys((*load.nodes, b, *epilogue.nodes))
        groups, items = -(-p.n // (match.lanes * width)), match.lanes * match.slices
        sizes = parameters(rows, *load.sizes.values(), *epilogue.sizes.values()) | epilogue.sizes
        body = hooks.render(
            "gemv_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, load=load,
            sources=[(hooks.names[x], hooks.ctype(x.type.dtype)) for x in nodes],
            b=hooks.names[b], b_type=hooks.ctype(b.type.dtype), BITS=width == 8, M=most, ROWS=rows,
            N=p.n, K=p.k, V=width, LANES=match.lanes, SLICES=match.slices,
            AHEAD=max(1, min(AHEAD // most, -(-p.k // match.slices))),
            MET=1 << match.slices.bit_length() // 2,
            HALF=hooks.half, sizes=sizes)
        y = hooks.group.root
        return [Emitted(f"gemv_{most}x{match.lanes}", body, (*nodes, y), (y,), sizes,
                        (groups * items,), (items,), main=1)]


def slices(p: Product, width: int, target: Target) -> tuple[Slices, ...]:
    """Best first: as many neighbours along a row as leave all cores busy, of large groups."""
    def rank(lanes: int) -> tuple[bool, int]:
        idle = -(-p.n // (lanes * width)) < GROUPS * target.compute_units
        return idle, lanes if idle else -lanes

    return tuple(Slices(lanes, items // lanes) for lanes in sorted((1, 2, 4, 8, 16), key=rank)
                 for items in (256, 128) if items <= target.max_work_group
                 and 4 * items * width * p.m <= target.local_memory)


def lanes_of(dtype: str, target: Target) -> int:
    """Elements of B that are read at once: 16 bytes, where their halves can be taken apart."""
    return 8 if dtype == "f16" and target.tensor_cores else 4


__all__ = ["GemvOpenCl", "Slices"]
