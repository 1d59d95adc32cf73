"""Matrix products in registers, for OpenCL devices without local memory worth staging into."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import hints, require
from jitcl.ir.sizes import has_size, is_size, same
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import Emitted, OpenClHooks, Packed, Template
from jitcl.templates.gemm_opencl.codes import CODED, Coded
from jitcl.templates.gemm_opencl.product import (
    Operand,
    Product,
    emit_product,
    fits_int,
    pack_columns,
    pack_rows,
)
from jitcl.templates.matmul import Shape, decoded, operand_index
from jitcl.templates.opencl.tiling import MAX_INDEX, Tile, choose_tiles, in_half

PACK_FROM = 16                 # tiles of rows that read b again before packing it pays
NARROW = 4                     # fewer columns are dot products: generated loops do those


class GemmOpenCl(Template[Tile, OpenClHooks]):
    """matmul of f32 or f16 storage, sums in f32 (of halves: a few terms at a time in half)."""

    name = "gemm_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Tile, ...]:
        node, root = group.anchor, group.root.type
        if node is None or node.op != "matmul" or target.stages_tiles or same(node.type.size, 0):
            return ()
        a, b = (i.type for i in node.inputs)
        if node.type.dtype not in ("f32", "f16") or root.dims != node.type.dims:
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        *leading, m, n = node.type.dims
        coded = Coded.of(group, target)
        if math.prod(leading) * m == 1 and coded is None and group.decodes(node.inputs[1]):
            return ()                      # once each: loops decode weights where they read them
        if a.rank < 2 or b.rank < 2 or a.dims[-1] == 0 or n < NARROW:
            return ()
        s = Shape.of(node)
        sizes = (s.batch * (s.m + 8) * s.k, s.batch * s.k * (n + 48), s.batch * s.m * n)
        if not fits_int(*hints((*sizes, *(x.type.size for x in group.operands)))):
            return ()
        now: Shape = hints(s)
        known = not has_size((s.batch, s.m, s.n, s.k))
        return choose_tiles(now.batch, now.m, now.n, lambda w: -(-now.n // w), target,
                            in_half(group, target), terms=now.k if known else 0,
                            only=0 if coded is None else CODED,
                            spare=0 if coded is None else 1)

    def emit(self, match: Tile, hooks: OpenClHooks) -> list[Emitted]:
        s = Shape.of(hooks.anchor)
        for size in (s.batch * (s.m + 8) * s.k, s.batch * s.k * (s.n + 48), s.batch * s.m * s.n):
            require(MAX_INDEX - 1, size)
        return _Writer(match, hooks).emit()


class _Writer:
    def __init__(self, tile: Tile, hooks: OpenClHooks) -> None:
        anchor = hooks.anchor
        self.s, self.tile, self.hooks = Shape.of(anchor), tile, hooks
        self.a, self.b = anchor.inputs
        self.leading, self.height = anchor.type.dims[:-2], anchor.type.dims[-2]
        self.coded = Coded.of(hooks.group, hooks.target)

    def emit(self) -> list[Emitted]:
        s = self.s
        return emit_product(Product(s.batch, s.m, s.n, s.k, self.rows, self.columns, self.index),
                            self.tile, self.hooks)

    def index(self, image: Expr, m: Expr, n: Expr) -> tuple[Expr, ...]:
        """The result's index at row `m` of an image, which counts over all leading axes."""
        dims = (*self.leading, self.height) if self.s.merged else self.leading
        leading = decoded(m if self.s.merged else image, dims)
        return (*leading, n) if self.s.merged else (*leading, m, n)

    def whole(self, node: Node) -> bool:
        """Whether the operand has a matrix for each image, in their order."""
        return self.s.merged or node.type.dims[:-2] == self.leading

    def in_place(self, node: Node) -> bool:
        return node in self.hooks.names and node.type.layout == ROW

    def rows(self, tile: Tile) -> tuple[list[Emitted], Operand]:
        """a where it lies; views copied, which are then read like that; constants packed in tiles,
        but beside codes."""
        s, alone = self.s, math.prod(self.a.type.dims[:-2]) == 1
        period = 1 if alone else s.batch
        if self.a.op == "const" and (self.whole(self.a) or alone):
            height = tile.rows if self.coded is None else 1
            make = partial(pack_matrices, rows=height, shape=(period, s.m, s.k))
            packed = Packed(self.a, f"gemm rows {height} {s.m}", make)
            return [], Operand(packed, self.coded is None, packed_size(s.m, height) * s.k, period)
        if self.in_place(self.a) and (self.whole(self.a) or alone):
            return [], Operand(self.a, False, s.m * s.k, period)
        shape = (s.batch, s.m, s.k)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            return (*self.operand(self.a, at[0], at[1]), at[2]), E.const(True, "bool")

        copy, emitted = self.hooks.arranged(self.a, f"rows {self.a.type}", self.a.type.dtype, shape,
                                            where)
        return [emitted], Operand(copy, False, s.m * s.k, s.batch)

    def columns(self, tile: Tile) -> tuple[list[Emitted], Operand]:
        """b packed in panels: at compile time, or where it is read often enough; else in place."""
        if self.coded is not None:
            return [], Operand(self.coded.words, True, 0, coded=self.coded)
        s = self.s
        whole = self.whole(self.b)
        panels = -(-s.n // tile.span)
        size = panels * tile.span * s.k
        if self.b.op == "const" and whole:
            make = partial(pack_panels, tile=tile, shape=(-1, s.k, s.n))
            return [], Operand(Packed(self.b, f"gemm columns {tile}", make), True, size)
        many = s.m >= PACK_FROM * tile.rows and s.n >= 4 * tile.span
        if self.in_place(self.b) and whole and not many:
            return [], Operand(self.b, False, s.k * s.n)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            vector = at[1] * tile.vectors + at[3] // tile.width
            column = within(vector * tile.width, s.n, tile.width) + at[3] % tile.width
            if is_size(s.n):
                column = E.call("min", column, E.index(s.n - 1))
            leading = self.operand(self.b, at[0], E.index(0))[:-1]
            return (*leading, at[2], column), E.const(True, "bool")

        copy, emitted = self.hooks.arranged(
            self.b, f"panels {tile} {self.b.type}", self.b.type.dtype,
            (s.batch, panels, s.k, tile.span), where)
        return [emitted], Operand(copy, True, size)

    def operand(self, node: Node, image: Expr, row: Expr) -> list[Expr]:
        return operand_index(node, self.leading, self.height, self.s.merged, image, row)


def within(first: Expr, count: int, length: int) -> Expr:
    """Where a tile of so many places begins, so that it ends among `count`; 0 where these may be
    fewer."""
    first = E.call("min", first, E.index(count - length))
    return E.call("max", first, E.index(0)) if is_size(count) else first


def packed_size(m: int, rows: int) -> int:
    """Rows of all tiles, those that overlap counted twice."""
    return -(-m // rows) * rows


def pack_matrices(a: np.ndarray, rows: int, shape: tuple[int, ...]) -> np.ndarray:
    return pack_rows(a.reshape(shape), rows)


def pack_panels(b: np.ndarray, tile: Tile, shape: tuple[int, ...]) -> np.ndarray:
    return pack_columns(b.reshape(shape), tile)
