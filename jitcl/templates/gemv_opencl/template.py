"""Products of one to eight rows with a matrix that lies in memory, on GPUs with local memory: what
decoding does. The matrix is read once, 16 bytes a work-item at a time, and that is what they take.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir import expr as E
from jitcl.ir.group import Group
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, Match, OpenClHooks, Scratch, Template
from jitcl.templates.gemm_opencl.product import counter, fits_int, unfused
from jitcl.templates.gemm_tiled_opencl.template import joined, matmul

MOST_ROWS = 8
AHEAD = 4                      # vectors of B that a work-item reads before it multiplies
LEAST_K = 512                  # terms of a part of a sum that is split
GROUPS = 4                     # work-groups a core that keep it busy


@dataclass(frozen=True)
class Slices(Match):
    """A group's work-items: along a row of B, and along its columns, who each sum a slice of k; in
    how many parts for groups of their own k falls before that.
    """

    lanes: int
    slices: int
    splits: int


class GemvOpenCl(Template[Slices, OpenClHooks]):
    """matmul of f32 or f16 storage with few rows; sums in f32."""

    name = "gemv_opencl"

    def candidates(self, group: Group, target: Target) -> tuple[Slices, ...]:
        node = group.anchor
        if node is None or node.op != "matmul" or not target.stages_tiles or node.type.size == 0:
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        if any(i.type.dtype not in ("f32", "f16") for i in (node, *node.inputs)):
            return ()
        product, b = matmul(node), node.inputs[1]
        if product is None or product.batch > 1 or product.m > MOST_ROWS or not product.k:
            return ()
        width = lanes_of(b.type.dtype, target)
        if b not in group.operands or product.n % width:
            return ()
        if not fits_int(*(n.type.size for n in group.operands)):
            return ()
        found = []
        for lanes in (16, 8, 32) if product.k >= 2 * LEAST_K else (8, 16, 32):
            groups = -(-product.n // (lanes * width))
            for items in (256, 128):
                fits = 4 * items * width * product.m <= target.local_memory
                if fits and items <= target.max_work_group:
                    wanted = min(GROUPS * target.compute_units // groups, product.k // LEAST_K)
                    found += [Slices(lanes, items // lanes, n)
                              for n in sorted({1, max(1, wanted)}, reverse=True)]
        return tuple(found)

    def emit(self, match: Slices, hooks: OpenClHooks) -> list[Emitted]:
        """One kernel; two where k falls into parts."""
        node = hooks.anchor
        p, (_, b) = matmul(node), node.inputs
        assert p is not None
        m, n = counter("m", p.m), counter("n", p.n)
        whole = match.splits == 1
        epilogue = hooks.epilogue_lines(p.c(E.index(0), m, n), 1)
        if epilogue is None:
            return unfused(hooks, lambda alone: self.emit(match, alone))
        k = E.var("k", extent=p.k)
        load = hooks.load_lines(p.nodes[0], p.shapes[0], p.a(E.index(0), m, k)[0])
        width = lanes_of(b.type.dtype, hooks.target)
        nodes = dict.fromkeys((*load.nodes, b, *(epilogue.nodes if whole else ())))
        y: Argument = hooks.group.root
        if not whole:
            y = Scratch(f"parts of {hooks.group.root.type}", "f32", (match.splits, p.m * p.n))
        groups, items = -(-p.n // (match.lanes * width)), match.lanes * match.slices
        body = hooks.render(
            "gemv_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, load=load,
            sources=[(hooks.names[x], hooks.ctype(x.type.dtype)) for x in nodes],
            b=hooks.names[b], b_type=hooks.ctype(b.type.dtype), BITS=width == 8, M=p.m, N=p.n,
            K=p.k, V=width, LANES=match.lanes, SLICES=match.slices, AHEAD=max(1, AHEAD // p.m),
            SPLITS=match.splits, GROUPS=groups, K_PART=-(-p.k // match.splits), HALF=hooks.half)
        product = Emitted(f"gemv_{p.m}x{match.lanes}", body, (*nodes, y), (y,), {},
                          (groups * match.splits * items,), (items,))
        return [product] if whole else [product, joined(hooks, epilogue, y, p, match.splits)]


def lanes_of(dtype: str, target: Target) -> int:
    """Elements of B that are read at once: 16 bytes, where their halves can be taken apart."""
    return 8 if dtype == "f16" and target.tensor_cores else 4


__all__ = ["GemvOpenCl", "Slices"]
