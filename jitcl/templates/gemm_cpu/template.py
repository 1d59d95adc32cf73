"""Matrix products: plain, batched, with operands seen through transposes and other views."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import hints
from jitcl.ir.sizes import hint, is_size, same
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Argument,
    CpuHooks,
    Emitted,
    Lines,
    Match,
    Packed,
    Scratch,
    Template,
)
from jitcl.templates.cpu.arithmetic import FLOATS, Arithmetic
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.cpu.tiling import MOST_COLUMNS, Tile, choose_tile, step_cycles
from jitcl.templates.matmul import Shape, operand_index

FEWEST_TERMS = 256  # of a sum that are added in one go
DECODED_ROWS = 4  # for so few rows, weights in few bits are decoded where loops read them
FEW = 4  # rows, for which the pitch is no constant: one kernel serves all depths
MANY = 512  # rows for which is chosen where their number is not known
LOWER = (4, 3, 2, 1)  # rows of tiles that serve then beside the tile, and half of it
SOON_ROWS, SOON_TILES = 8, 2  # at most, of tiles that wait for weights: they fetch their own
SOON = 8192  # bytes before they read them


@dataclass(frozen=True)
class Rows:
    """Where the rows of a lie: `chunk` terms side by side, the next `jump` elements further on; a
    row begins `pitch` elements behind the one before it."""

    node: Node
    pitch: int
    chunk: int
    jump: int                   # 0: a row is one chunk

    @property
    def chunked(self) -> bool:
        return self.jump > 0


def pack_columns(b: np.ndarray, width: int, blocks: int) -> np.ndarray:
    """[..., K, N] -> [batch][N / (blocks * width)][K][blocks * width], zeros behind N."""
    *_, k, n = b.shape
    panel = width * blocks
    whole, rest = divmod(n, panel)
    rows = b.reshape(math.prod(b.shape[:-2]), k, n)
    out = np.empty((len(rows), whole + (rest > 0), k, panel), b.dtype)
    out[:, :whole] = rows[:, :, :n - rest].reshape(len(rows), k, whole, panel).transpose(0, 2, 1, 3)
    if rest:
        out[:, whole, :, :rest] = rows[:, :, n - rest:]
        out[:, whole, :, rest:] = 0
    return out


def product_of(group: Group, target: Target, columns: int = 0) -> Shape | None:
    """The product that the template computes; None where it is none of that kind. columns: fewer
    are no work for the template, by default less than half a vector."""
    node, root = group.anchor, group.root.type
    if node is None or node.op != "matmul" or target.kind != "cpu" or same(node.type.size, 0):
        return None
    a, b = (i.type for i in node.inputs)
    if (
        node.type.dtype not in ("f32", "f16")
        or root.dims != node.type.dims
        or root.layout != ROW
    ):
        return None
    if (
        a.rank < 2
        or b.rank < 2
        or a.dims[-1] == 0
        or node.type.dims[-1] < (columns or target.vector_width // 2)
    ):
        return None
    shape = Shape.of(node)
    few = math.prod(node.type.dims[:-1]) <= DECODED_ROWS
    return None if few and group.decodes(node.inputs[1]) else shape


class GemmCpu(Template[Match, CpuHooks]):
    """matmul of f32 or f16 storage, sums in f32."""

    name = "gemm_cpu"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        return (Match(),) if product_of(group, target) else ()

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        return Writer(Shape.of(hooks.anchor), hooks).emit()


class Writer:
    """Writes the kernels of one product."""

    arithmetic: Arithmetic = FLOATS
    kind = "gemm"

    def __init__(self, s: Shape, hooks: CpuHooks) -> None:
        self.s, self.hooks = s, hooks
        self.now: Shape = hints(s)         # what is fast is chosen for
        if is_size(s.m):
            self.now = replace(self.now, m=MANY)
        self.group = hooks.group
        self.a, self.b = hooks.anchor.inputs[:2]
        self.leading = hooks.anchor.type.dims[:-2]
        self.width = hooks.target.vector_width
        self.core = hooks.target.core
        self.depth = -(-s.k // self.arithmetic.together)  # elements of a row of a

    def in_place(self) -> Rows | None:
        """Where a is read as it lies; None where it is arranged first."""
        rows = self.stored_rows()
        if rows is None or is_size(rows.pitch):     # a constant of the kernel's
            return None
        if self.now.m <= FEW:
            return rows if not rows.chunked else None
        return rows if rows.node.type.dtype in ("f32", "f16") and not self.far(rows) else None

    def far(self, rows: Rows) -> bool:
        """Whether a cache can't hold many rows, so far apart they lie."""
        return 4 * rows.pitch % self.core.far == 0

    def stored_rows(self) -> Rows | None:
        """Rows as they are stored: a itself, or heads [1, H, M, D] whose view [1, M, H * D] it is.
        """
        s, a = self.s, self.a
        if a in self.hooks.names:
            alike = s.merged or a.type.dims[:-2] == self.leading
            return Rows(a, self.depth, self.depth, 0) if alike and a.type.layout == ROW else None
        view = a.inputs[0] if a.op == "reshape" else a
        if view.op != "transpose" or view.attr("perm") != (0, 2, 1, 3) or s.batch != 1:
            return None
        x = view.inputs[0]
        dims = (1, s.k // x.type.dims[-1], s.m, x.type.dims[-1])
        if x not in self.hooks.names or x.type.layout != ROW or x.type.dims != dims:
            return None
        jump = s.m * dims[3] if dims[1] > 1 else 0
        return Rows(x, dims[3], dims[3], jump) if a.type.dims[-1] == s.k else None

    def wide(self) -> bool:
        """Whether a computed b is read as it lies: where it is small, or one tile has all rows of
        a, arranging it in panels takes longer than it saves."""
        s, b = self.now, self.b
        if is_size(self.s.n) or b.op == "const" or b not in self.hooks.names:
            return False
        if b.type.layout != ROW or b.type.dtype != "f32":
            return False
        if self.arithmetic is not FLOATS or s.n % self.width:
            return False
        if not s.merged and b.type.dims[:-2] != self.leading:
            return False
        return s.m <= MOST_COLUMNS or (4 * s.n <= self.core.near and 4 * s.k * s.n <= self.core.l2)

    def emit(self) -> list[Emitted]:
        s, width = self.s, self.width
        nbs, rows, wide = -(-s.n // width), self.in_place(), self.wide()
        tile = self.tile(hint(nbs), rows)
        pixels = tile.rows * tile.columns
        lower = self.lower(tile) if rows and is_size(s.m) else []
        before: list[Emitted] = []
        a: Argument
        if rows:
            a = rows.node
        else:
            a, emitted = self.rows(tile.columns)
            before.append(emitted)
        b = self.b if wide else self.columns(tile.blocks, before, self.b_dtype(wide))
        vector = self.hooks.row_epilogue(width)
        scalar = Lines() if vector else self.hooks.row_scalar_epilogue(width)
        operands, zero = operands_of(vector or scalar, self.hooks), self.zero_sums()
        k_block = self.k_block(tile, rows)
        deep = not same(k_block, self.depth)
        params = self.params(tile, nbs, k_block, rows, wide)
        body = self.hooks.render(
            "gemm_cpu/numba.py.j2",
            entry=ENTRY,
            rows=rows,
            jump=rows.jump if rows else 0,
            wide=wide,
            deep=deep,
            fetch_sums=deep and self.now.batch * self.now.m * self.now.n * 4 > self.core.l2,
            ahead=not wide,
            soon=[] if wide else self.soon(tile, lower),
            SOON_ROWS=SOON_ROWS,
            SOON_TILES=SOON_TILES,
            SOON=SOON,
            touched=["y", *vector.beside] if vector and self.now.m > FEW else [],
            y_bytes=dtypes.itemsize(self.group.root.type.dtype),
            a_dtype=self.a_dtype(rows),
            b_dtype=self.b_dtype(wide),
            b_bytes=dtypes.itemsize(self.b_dtype(wide)),
            sum_dtype=self.arithmetic.dtype,
            tile=self.arithmetic.tile,
            zero=len(zero),
            y_dtype=self.group.root.type.dtype,
            operands=[(self.hooks.names[n], n.type.dtype) for n in operands],
            params=params,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            PIXELS=pixels,
            LOWER=lower,
            CYCLES={t.columns: round(10 * step_cycles(t, self.hooks.target.fmas))
                    for t in (*lower, tile)},
            clamped=is_size(s.m) and not rows,
            NB=tile.blocks,
            W=width,
            vector_lines=vector or [],
            scalar_lines=scalar,
        )
        sums = self.sums(tile, nbs) if deep else ()
        arguments: tuple[Argument, ...] = (a, b, *operands, *zero, *sums, self.group.root)
        stem = f"{self.kind}_{pixels}x{tile.blocks}"
        return [*before, Emitted(stem, body, arguments, (*sums, self.group.root),
                                 params | self.hooks.sizes.params())]

    def tile(self, nbs: int, rows: Rows | None) -> Tile:
        """The tile; its rows are columns to the register tile, where their pitch is a constant."""
        most = MOST_COLUMNS
        if rows and self.now.m > FEW:
            most = self.core.rows_in_l1(4 * rows.pitch)
        tile = choose_tile(
            1, self.now.m, nbs, self.hooks.target, even=self.wide(), most_columns=most,
            fmas=self.hooks.target.fmas)
        return Tile(tile.columns, 1, tile.blocks) if rows and self.now.m <= FEW else tile

    def lower(self, tile: Tile) -> list[Tile]:
        """Those that serve for fewer rows, or waste less of the last one."""
        half = (tile.columns + 1) // 2
        heights = [h for h in (half, *LOWER) if h < tile.columns and (h == half or h < half)]
        return [Tile(1, h, tile.blocks) for h in heights]

    def soon(self, tile: Tile, lower: list[Tile]) -> list[int]:
        """Heights of the tiles that may fetch their own weights, 0 for the tile itself."""
        height = tile.rows * tile.columns
        few = height <= SOON_ROWS and (lower or self.now.m <= SOON_TILES * height)
        return [*([0] if few else ()), *(t.columns for t in lower if t.columns <= SOON_ROWS)]

    def k_block(self, tile: Tile, rows: Rows | None) -> int:
        """Terms of the sums that are added in one go: equal parts (of whole chunks).

        So few that a panel of b stays in the second-level cache beside rows of a; and for few
        terms more rows of a do, so b is read less often, but the sums are written and read again.
        """
        if self.now.m <= FEW or is_size(self.depth):
            return self.depth              # each panel is read once, or no part of it is a number
        whole = rows.chunk if rows and rows.chunked else 1
        most = self.core.panel // (4 * tile.blocks * self.width)
        fewest = max(1, round(self.depth / most))

        def terms(parts: int) -> int:
            return -(-self.depth // (parts * whole)) * whole

        def traffic(parts: int) -> int:
            """Terms of b, and sums written and read, for each column; sums count twice: fetched
            late, if at all."""
            tiles = -(-self.now.m // (tile.rows * tile.columns))
            passes = -(-tiles // self.m_block(tile, terms(parts), rows))
            return passes * self.depth + 4 * self.now.m * (parts - 1)

        parts = range(fewest, max(fewest, self.depth // FEWEST_TERMS) + 1)
        return terms(min(parts, key=traffic))

    def m_block(self, tile: Tile, k_block: int, rows: Rows | None) -> int:
        """Tiles of a that stay in the second-level cache, so many terms of each row."""
        height = tile.rows * tile.columns
        tiles = -(-self.now.m // height)
        block = self.core.rows // (4 * hint(k_block) * height)
        if block < tiles and rows:            # so b is read several times in any case
            block = int(block * self.core.sets_used(4 * rows.pitch, 4 * k_block))
        return max(1, block if is_size(self.s.m) else min(tiles, block))

    def sums(self, tile: Tile, nbs: int) -> tuple[Scratch]:
        """Sums that wait for their other terms, [batch][m_tiles][panels][a tile's]."""
        s, pixels = self.s, tile.rows * tile.columns
        tiles = -(-s.m // pixels) + is_size(s.m)        # lower ones may take that much more
        counts = (s.batch, tiles, -(-nbs // tile.blocks))
        shape = (*counts, tile.blocks * pixels * self.width)
        return (Scratch("sums of a part of the terms", self.arithmetic.dtype, shape),)

    def a_dtype(self, rows: Rows | None) -> str:
        """Of what is read, which may be stored as less than a view of it says."""
        return rows.node.type.dtype if rows else "f32"

    def b_dtype(self, wide: bool) -> str:
        """Of panels: halves stay halves, where a CPU converts them by an instruction."""
        halves = self.b.op == "const" and self.b.type.dtype == "f16" and not wide
        if halves and self.arithmetic is FLOATS and not self.hooks.target.soft_half:
            return "f16"
        return self.arithmetic.dtype

    def zero_sums(self) -> tuple[Packed, ...]:
        """What is subtracted from the sums of each column, if anything."""
        return ()

    def params(
        self, tile: Tile, nbs: int, k_block: int, rows_of_a: Rows | None, wide: bool
    ) -> dict[str, int]:
        s, rows = self.s, tile.rows * tile.columns
        m_tiles, panels = -(-s.m // rows), -(-nbs // tile.blocks)
        panel = self.depth * tile.blocks * self.width
        m_block = self.m_block(tile, k_block, rows_of_a)
        if 4 * hint(panels * panel) <= self.core.rows:
            m_block = 1  # all of b stays in the cache, and rows of y are written from end to end
        return {
            "batch": s.batch,
            "m_count": s.m,
            "n_count": s.n,
            "k_count": self.depth,
            "nbs": nbs,
            "m_tiles": m_tiles,
            "m_block": m_block,
            "k_block": k_block,
            "panels": panels,
            "a_image": self.depth * (s.m if rows_of_a else m_tiles * rows),
            "a_tile": self.depth * rows,
            "b_image": 0 if s.merged else panels * panel,      # s.k * s.n, where b is read in place
            "b_panel": tile.blocks * self.width if wide else panel,
            "row_steps": max(0, (hint(k_block) // rows).bit_length() - 1),
        }

    def rows(self, height: int) -> tuple[Argument, Emitted]:
        """a in tiles of `height` rows side by side, [batch][m_tiles][K][height]."""
        s = self.s
        shape = (s.batch, -(-s.m // height), s.k, height)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            row = E.call("min", at[1] * height, E.index(s.m - height))
            if is_size(s.m):                # fewer rows than a tile: the last one again
                row = E.call("min", E.call("max", row, E.index(0)) + at[3], E.index(s.m - 1))
            else:
                row = row + at[3]
            return (*self.operand_index(self.a, at[0], row), at[2]), E.const(True, "bool")

        order = (0, 1, 3, 2) if is_size(s.m) else ()    # divide for each row, not each element
        return self.hooks.arranged(
            self.a, f"rows {height} {self.a.type}", "f32", shape, where, order)

    def operand_index(self, node: Node, image: Expr, row: Expr) -> list[Expr]:
        return operand_index(node, self.leading, self.hooks.anchor.type.dims[-2], self.s.merged,
                             image, row)

    def columns(self, blocks: int, before: list[Emitted], dtype: str = "f32") -> Argument:
        """b in panels of `blocks` vectors, [batch or 1][panels][K][blocks * width]; constants are
        packed now, as `dtype`."""
        s, panel = self.s, blocks * self.width
        whole = s.merged or self.b.type.dims[:-2] == self.leading
        if self.b.op == "const" and whole:
            stored = dtypes.to_numpy(dtype)

            def make(b: np.ndarray) -> np.ndarray:
                return pack_columns(b.astype(stored, copy=False), self.width, blocks)

            return Packed(self.b, f"gemm {self.width} {blocks} {dtype}", make)
        shape = (1 if s.merged else s.batch, -(-s.n // panel), s.k, panel)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            column = at[1] * panel + at[3]
            leading = self.operand_index(self.b, at[0], E.index(0))[:-1]
            return (*leading, at[2], column), column < s.n

        copy, emitted = self.hooks.arranged(
            self.b, f"panels {panel} {self.b.type}", "f32", shape, where
        )
        before.append(emitted)
        return copy
