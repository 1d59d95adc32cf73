"""Rows of which a work-group takes eight, through local memory: short ones, which are read several
times, and those of which each element lies far from the last, as channels of a pixel do, but beside
that of the next row.

    for i < 3136 @parallel { let acc = 0.0  for r < 96 @loop { acc add= x[r, i] }  y[i] = acc }
    =>  for i_tile < 393 @group { for row < 8 @lane { for lane < 32 @lane {
          for r < 96 @loop from row * 4 + lane / 8 by 32 {
            tile0[lane % 8, r] = x[r, min(i_tile * 8 + lane % 8, 3135)] }
          barrier
          let acc = 0.0
          for r < 96 @loop from lane by 32 { acc add= tile0[row, r] }
          ..

Rows of a tile are so long that what eight lanes store lies in different banks. They have one of two
lengths, and one group more than whole tiles looks at the axis' end, so that programs are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jitcl import dtypes
from jitcl.codegen.loops import Body, inline_lets, perfect_nest, renamed, rewrite
from jitcl.codegen.schedule_rows import SHORT
from jitcl.codegen.schedule_tiles import NEAR
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Barrier, Buffer, For, Kernel, Stmt, Store, expressions, statements
from jitcl.ir.sizes import is_size
from jitcl.target import Target

ROWS = 8                       # of a group: 16 bytes of halves, side by side
LANES = 32                     # of a row
PITCHES = (388, 1156)          # elements of a tile's rows: 4 more than a multiple of 32
PART = 4 * ROWS * LANES        # bytes of a sum's parts
AT, PLACE = E.var("at_row"), E.var("place", extent=ROWS)


@dataclass(frozen=True)
class RowTiles:
    """A kernel's nest over groups, and what a row of a group does. tiles: what is loaded, of the
    row PLACE and its element AT.
    """

    kernel: Kernel
    nest: list[For]
    inner: Body
    row: Expr
    tiles: dict[str, Expr]
    extent: int
    pitch: int

    @property
    def arrays(self) -> list[Buffer]:
        return [Buffer(name, "f32", (ROWS, self.pitch), "local") for name in self.tiles]

    def brought(self, lane: Expr) -> Iterator[Stmt]:
        """The statements that bring the tiles."""
        r = E.var("brought", extent=self.extent)
        places = {AT.value: r, PLACE.value: lane % ROWS}
        stores = tuple(renamed(Store(name, (PLACE, AT), E.cast(load, "f32")), places)
                       for name, load in self.tiles.items())
        yield For(r, "loop", stores, self.row * (LANES // ROWS) + lane // ROWS, LANES)
        yield Barrier()


def row_tiles(kernel: Kernel, target: Target) -> RowTiles | None:
    """None where loops are not over one row, rows are too long, or nothing of them is worth it."""
    nest, body = perfect_nest(inline_lets(kernel.body))
    inner = share(Kernel(kernel.name, kernel.buffers, body), addresses=False).body
    loops = [s for s in inner if isinstance(s, For)]
    extents = {f.extent for f in loops}
    if not target.stages_tiles or not nest or len(extents) != 1 or not all(
            f.plain and not any(isinstance(s, For) for s in f.body) for f in loops):
        return None
    extent, column = extents.pop(), nest[-1]
    if is_size(extent) or is_size(column.extent) or column.extent < ROWS or (
            ROWS * LANES > target.max_work_group):
        return None
    shapes = {b.name: b.shape for b in kernel.buffers if b.role == "in"}
    seen: Counter[Expr] = Counter()
    beside: dict[Expr, None] = {}            # the next row's
    for loop in loops:
        for e in dict.fromkeys(e for s in statements((loop,)) for x in expressions(s)
                               for e in E.walk(x) if e.op == "load"):
            if e.value in shapes and not e.guarded and dtypes.compute(e.dtype) == "f32":
                terms, _ = E.linear(flat(shapes[e.value], e.indices))
                if column.var in terms and loop.var in terms:
                    own = E.exchanged(e, {loop.var: AT})
                    seen[own] += 1
                    if terms[column.var] == 1 and terms[loop.var] > NEAR:
                        beside[own] = None
    again = [e for e, count in seen.items() if count > 1 and extent <= SHORT]
    found = {e: f"tile{k}" for k, e in enumerate(beside or again)}
    sums = sum(s.kind != "parallel" for s in loops)
    pitch = next((n for n in PITCHES if extent <= n and sums * PART + 4 * ROWS * n * len(found)
                  <= target.local_memory), 0)
    if not found or not pitch:
        return None
    group = E.var(f"{column.var.value}_tile", extent=column.extent // ROWS + 1)
    row, last = E.var("row", extent=ROWS), E.index(column.extent - 1)

    def at(place: Expr) -> dict[str, Expr]:
        return {column.var.value: E.call("min", group * ROWS + place, last)}

    inside = group * ROWS + row <= last

    def change(s: Stmt, loop: For | None) -> Stmt:
        if isinstance(s, For):
            return replace(s, body=tuple(change(b, s) for b in s.body))
        if loop is not None:
            places: dict[Expr, Expr] = {}
            for e, name in found.items():
                own = E.exchanged(e, {AT: loop.var})
                value = E.load(name, (row, loop.var), "f32")
                places |= {own: E.cast(value, own.dtype), E.cast(own, "f32"): value}
            s = rewrite(s, lambda x: E.exchanged(x, places))
        s = renamed(s, at(row))
        if isinstance(s, Store):
            s = replace(s, guard=inside if s.guard is None else inside & s.guard)
        return s

    tiles = {}
    for e, name in found.items():
        (brought,) = expressions(renamed(Store(name, (), e), at(PLACE)))
        tiles[name] = brought
    return RowTiles(kernel, [*nest[:-1], For(group, "parallel", ())],
                  tuple(change(s, None) for s in inner), row, tiles, extent, pitch)
