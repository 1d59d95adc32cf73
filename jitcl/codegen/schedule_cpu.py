"""The schedule of generated loops on the CPU: which loops in which order LLVM gets to vectorise."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

from jitcl.codegen.interchange import Rows, interchange, keep_rows, reciprocals
from jitcl.codegen.jam import jam_folds
from jitcl.codegen.loops import (
    Body,
    Names,
    distribute,
    drop_unused,
    flatten,
    inline_lets,
    merge_loops,
    nest_of,
    renest,
    strip,
)
from jitcl.codegen.render_numba import PIECES, NumbaRenderer, outer_loops, render_kernel
from jitcl.codegen.render_vector import NotVectorisable, VectorRenderer
from jitcl.codegen.share import share
from jitcl.codegen.split import split_at_conditions, strip_divisions
from jitcl.codegen.transpose import tile_transposes
from jitcl.codegen.vectors import short_vectors
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Buffer, For, Kernel, Stmt, is_parallel, scanned, statements


@dataclass(frozen=True)
class Scheduled:
    """A kernel over flat buffers, and the scratch rows that each thread keeps on its stack."""

    kernel: Kernel
    scratch: tuple[Buffer, ...]


@functools.lru_cache(maxsize=4)              # the variants of a kernel differ in what comes after
def schedule_cpu(kernel: Kernel, short: bool = True) -> Scheduled:
    """Transform a lowered kernel for the CPU; `short` loops become vectors.

    Results are those of the kernel as it was, but for the order of vectorised sums and one rounding
    in `reciprocals`; they do not depend on how many threads share the parallel loops.
    """
    names = itertools.count()
    rows = Rows(names)
    kernel = flatten(kernel)
    body = inline_lets(kernel.body)
    if scanned(kernel):                      # loops stay as they are: the order of stores matters
        done = share(replace(kernel, body=body), addresses=False)
        return Scheduled(done, ())
    body = split_at_conditions(body, names)
    body = drop_unused(distribute(body))
    body = merge_loops(body, names)
    body = strip_divisions(body, names)
    body = interchange(body, rows)
    body = keep_rows(body, rows)
    body = reciprocals(body)
    body = tile_transposes(body, rows)
    body = jam_folds(body, names)
    body = share_out(body, names)
    body = short_vectors(body, names) if short else body
    scratch = tuple(rows.buffers)
    changing = frozenset(b.name for b in scratch)
    done = share(replace(kernel, body=body), changing, addresses=False)
    return Scheduled(done, scratch)


def share_out(body: Body, names: Names) -> Body:
    """Outer parallel loops cut into as many pieces as suit threads, each with long loops inside.

        for c < 4 { for p < 3136 { for j < 8 { .. } } }
        =>  for c < 4 { for o < 16 { for p < 196 { for j < 8 { .. } } } }    c and o are shared out

    Pieces are numbered and taken apart by division, so they should be few, and a loop cut so stays
    one that is vectorised with the short loop inside it.
    """
    out: list[Stmt] = []
    for stmt in body:
        if is_parallel(stmt):
            nest = nest_of(stmt, "parallel")
            before, k = 1, 0
            while k < len(nest) - 1 and before * nest[k].extent < PIECES:
                before, k = before * nest[k].extent, k + 1
            width = _cut(nest[k].extent, -(-PIECES // before)) if k < outer_loops(nest) else None
            if width is not None:
                body_inside = nest[k].body
                cut = strip(For(nest[k].var, "parallel", body_inside), width, next(names))
                stmt = renest(nest[:k], (cut,))
                assert isinstance(stmt, For)
        out.append(stmt)
    return tuple(out)


def _cut(extent: int, pieces: int) -> int | None:
    """The widest strips of which there are `pieces` or a few more; None where none divide."""
    if extent < 4 * pieces:
        return None
    return next((extent // n for n in range(pieces, 4 * pieces) if extent % n == 0), None)


@functools.lru_cache(64)
def loops_for_cpu(kernel: Kernel, entry: str) -> str:
    """The text of a lowered kernel, scheduled and rendered."""
    scheduled = schedule_cpu(kernel)
    return render_kernel(scheduled.kernel, entry, scheduled.scratch, LoopRenderer)


class LoopRenderer(NumbaRenderer):
    """Renders `vec` loops as vectors, where their lanes turn out to lie side by side."""

    def loop(self, s: For, indent: int) -> list[str]:
        if s.kind != "vec":
            return super().loop(s, indent)
        alone = Kernel("lanes", (*self.kernel.buffers, *self.rows), (s,),
                       flagging=self.kernel.flagging)
        try:
            return LanesRenderer(alone, s.var, s.extent).stmt(s, indent)
        except NotVectorisable:
            return super().loop(For(s.var, "loop", s.body), indent)


class LanesRenderer(VectorRenderer):
    """Renders one loop as vectors; what the loop accumulates stays a scalar."""

    def __init__(self, kernel: Kernel, lane: Expr, width: int) -> None:
        super().__init__(kernel, lane, width)
        self.wide -= {s.var.value for s in statements(kernel.body) if isinstance(s, Accum)}

    def combined(self, s: Accum) -> str:
        lanes = f"lanes_{s.combine}({self.expr(s.value)})"
        if s.combine == "add":
            return f"{s.var.value} + {lanes}"
        return f"{s.combine}_({s.var.value}, {lanes})"
