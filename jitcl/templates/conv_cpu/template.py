"""Direct convolution in 1 and 2 dimensions on channel blocks: dense, and grouped by whole
blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl import dtypes
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import require
from jitcl.passes.gates import gated
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
from jitcl.templates.convolution import ConvShape, packable, shape_of
from jitcl.templates.cpu.arithmetic import FLOATS, Arithmetic
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.cpu.tiling import Tile, choose_tile

FEW_CHANNELS = 8  # fewer than this are read as planes, not as a block that is mostly padding
MOST_TILES = 32  # whose sums wait for the next channels' weights
PIECES = 4  # that the weights of a single pixel come in, for the threads
WIDE = 8  # groups of output channels that use an input from memory before the next is read
WIDE_TILES = 16  # of each of those groups: 224 KiB of sums


def pack_weights(w: np.ndarray, width: int, blocks: int, groups: int, c_block: int) -> np.ndarray:
    """[K, C, kh, kw] -> [groups * kgs][C / c_block][kh][kw][c_block][blocks][width] as one flat
    stream, of f32 or of i32.

    Channels beyond C are left out of the stream (its last block is shorter); outputs beyond K are
    zeros.
    """
    k, c, kh, kw = w.shape if w.ndim == 4 else (*w.shape[:2], 1, w.shape[2])
    dtype = np.int32 if w.dtype == np.int32 else np.float32
    w = w.reshape(groups, k // groups, c, kh, kw).astype(dtype)
    kgs = -(-(k // groups) // (width * blocks))
    full = np.zeros((groups, kgs * blocks * width, c, kh, kw), dtype)
    full[:, : k // groups] = w
    full = full.reshape(groups * kgs, blocks, width, c, kh, kw)
    parts = [
        full[:, :, :, i : i + c_block].transpose(0, 4, 5, 3, 1, 2).reshape(groups * kgs, -1)
        for i in range(0, c, c_block)
    ]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def padded_input(
    s: ConvShape, node: Node, hooks: CpuHooks, *, planes: bool
) -> tuple[list[Emitted], Argument, tuple[int, ...], tuple[int, int]]:
    """(kernels that run before, the padded input, its shape [N, blocks, H, W], where pixel (0, 0)
    lies in it).

    The operand itself, where it lies in blocks (or planes) and its halo is as wide as the padding;
    else a copy.
    """
    x, pads, width = node.type, s.pads, hooks.target.vector_width
    one, layout, stored = x.rank == 3, x.layout, node in hooks.names
    if (
        not planes
        and stored
        and layout.kind == "NCHWc"
        and layout.block == width
        and layout.halo >= max(pads)
    ):
        shape = x.physical[:-1]
        inset = (0 if one else layout.halo, layout.halo)
        return [], node, (*shape[:2], 1, shape[2]) if one else shape, inset
    if planes and stored and layout.kind == "row" and not any(pads):
        return [], node, (*x.dims[:2], *s.size), (0, 0)
    copy, emitted = hooks.blocked(node, 0 if planes else width, (pads[1], pads[3]) if one else pads)
    shape = copy.shape if planes else copy.shape[:-1]
    return [emitted], copy, (*shape[:2], 1, shape[2]) if one else shape, (pads[0], pads[1])


class ConvCpu(Template[Match, CpuHooks]):
    """conv with a constant weight, f32 or f16 storage, sums in f32."""

    name = "conv_cpu"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node = packable(group.anchor, "conv", group)
        if node is None or target.kind != "cpu":
            return ()
        s, width = shape_of(node), target.vector_width
        channels = s.c // s.groups
        if s.groups > 1 and (channels % width or s.k // s.groups % width):
            return ()
        if node.inputs[1].op != "const" and channels > width and channels % width:
            return ()                            # packed weights come in equal blocks
        return (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        s = shape_of(hooks.anchor)
        node, gate = hooks.anchor.inputs[0], None
        found = gated(hooks.anchor) if node in hooks.group.inlined else None
        if found is not None and all(n in hooks.names for n in found):     # else it is copied
            node, gate = found
        before, a, physical, inset = padded_input(s, node, hooks, planes=s.c < FEW_CHANNELS)
        writer = Writer(s, hooks, gate=gate)
        conv = writer.write(a, physical, inset)
        return [*before, *writer.before, conv]


@dataclass(frozen=True)
class Phase:
    """Where outputs go: pixel (h, w) of the sum is pixel (h * up[0] + first[0], w * up[1] +
    first[1]) of y."""

    up: tuple[int, int]
    first: tuple[int, int]


def groups_at_once(groups: int) -> int:
    """Of so many groups of output channels, how many use an input before the next is read: equally
    many each time, if they can be, since threads take equally many tiles."""
    even = next((n for n in range(WIDE, WIDE // 2, -1) if groups % n == 0), 0)
    return even or -(-groups // -(-groups // WIDE))


class Writer:
    """Writes the kernel of one convolution (or of one phase of a transposed one)."""

    arithmetic: Arithmetic = FLOATS

    def __init__(self, s: ConvShape, hooks: CpuHooks, phase: Phase | None = None,
                 gate: Node | None = None) -> None:
        self.s, self.hooks, self.phase, self.gate = s, hooks, phase, gate
        self.group: Group = hooks.group
        assert self.group.anchor is not None
        self.x, self.w = self.group.anchor.inputs[:2]
        self.width, self.core = hooks.target.vector_width, hooks.target.core
        self.root = self.group.root.type
        self.planes = s.c < FEW_CHANNELS
        # a's elements of a pixel in one block, and those of a pixel that an output sums over
        self.lanes = 1 if self.planes else self.width // self.arithmetic.together
        self.depth = -(-s.c // s.groups // self.arithmetic.together)
        self.halo = self.root.layout.halo if self.root.layout.kind == "NCHWc" else 0
        self.before: list[Emitted] = []          # decode packed weights

    def write(self, a: Argument, physical: tuple[int, ...], inset: tuple[int, int]) -> Emitted:
        """`a`: the padded input, of blocks (or planes) [N, blocks, H, W], with pixel (0, 0) at
        `inset`."""
        s, width = self.s, self.width
        left = f"channels - kb * {width}" if s.k % width else ""
        for flat in (True, False) if self.may_flatten(physical) else (False,):
            vector = self.hooks.vector_epilogue(width, flat_space=flat, channels_left=left)
            pixels = self.pixel_lines(flat)
            if vector or pixels:
                break
        rows, columns = (1, s.out[0] * s.out[1]) if flat else s.out
        kbs = -(-s.k // width)
        per_group = kbs // s.groups
        # One pixel uses every weight once: as fast as they come from memory, so by all threads.
        alone = s.n * rows * columns == 1
        most_blocks = min(4, -(-per_group // PIECES)) if alone else 8
        tile = choose_tile(rows, columns, per_group, self.hooks.target, even=s.groups > 1,
                           most_blocks=most_blocks)
        require(rows, tile.rows)
        require(columns, tile.columns)
        kgs = -(-per_group // tile.blocks) * s.groups
        scalar = Lines() if vector or pixels else self.hooks.scalar_epilogue(width)
        inner = (self.w.type.size * 4 <= self.core.weights
                 and rows * columns > 4 * tile.rows * tile.columns)
        deep = not inner and self.blocks_at_once(tile) < self.blocks()
        wide = deep and self.reads_memory() and kgs > 1 and s.groups == 1
        wide = wide and rows * columns > WIDE_TILES * tile.rows * tile.columns
        order = [("ct", "column_tiles"), ("rt", "row_tiles")]
        order.insert(0 if inner else 2, ("kg", "kgs"))
        order.append(("n", "n_count"))
        operands = operands_of(vector or pixels or scalar, self.hooks)
        if self.gate is not None and self.gate not in operands:
            operands.append(self.gate)
        runs = tile.rows == 1 and self.phase is None         # of lines: what a tile's end touches
        touched = ["y", *vector.beside] if vector and runs else []
        zero = self.zero_sums()
        first = self.phase is None or self.phase.first == (0, 0)
        params = self.params(physical, inset, tile, rows, columns, kbs, kgs, flat)
        body = self.hooks.render(
            "conv_cpu/numba.py.j2", entry=ENTRY, a_dtype=self.a_dtype(),
            sum_dtype=self.arithmetic.dtype,
            tile=self.arithmetic.tile if self.gate is None else "gated_tile",
            gate=None if self.gate is None else self.hooks.names[self.gate],
            zero=bool(zero), y_dtype=self.root.dtype,
            operands=[(self.hooks.names[n], n.type.dtype) for n in operands],
            params=params, ROWS=tile.rows, COLUMNS=tile.columns, NB=tile.blocks,
            W=width, PX=s.strides[1] * self.lanes, halo=self.halo if first else 0,
            halo_rows=self.halo if self.root.rank == 4 else 0, grouped=s.groups > 1,
            uneven=per_group % tile.blocks != 0, order=order, by_rows=inner, deep=deep,
            touched=touched, y_bytes=dtypes.itemsize(self.root.dtype),
            TILES=WIDE_TILES if wide else MOST_TILES, GROUPS=groups_at_once(kgs) if wide else 1,
            vector_lines=vector or [], pixel_lines=pixels or [], scalar_lines=scalar,
            clear_lanes=self.root.layout.kind == "NCHWc" and s.k % width != 0,
            up=self.phase.up if self.phase else None)
        arguments: tuple[Argument, ...] = (
            a, self.packed(tile), *operands, *zero, self.group.root)
        kind = self.kind() if self.gate is None else f"{self.kind()}_gated"
        stem = f"{kind}_{tile.rows}x{tile.columns}x{tile.blocks}"
        return Emitted(stem, body, arguments, (self.group.root,),
                       params | self.hooks.sizes.params())

    def kind(self) -> str:
        return "conv" if self.phase is None else "conv_transpose"

    def a_dtype(self) -> str:
        return self.x.type.dtype

    def zero_sums(self) -> tuple[Packed, ...]:
        """What is subtracted from the sums of each output channel, if anything."""
        return ()

    def blocks(self) -> int:
        """Blocks of input channels (or planes) that an output sums over."""
        return -(-self.depth // self.lanes)

    def reads_memory(self) -> bool:
        """Whether an image is too large to stay in a cache until the next group reads it."""
        nbytes = dtypes.itemsize(self.a_dtype()) * self.s.c * math.prod(self.s.size)
        return nbytes > self.core.last_level

    def blocks_at_once(self, tile: Tile) -> int:
        """Of those, how many have few enough weights for a tile."""
        nbytes = 4 * self.lanes * math.prod(self.s.kernel) * tile.blocks * self.width
        return max(1, round(self.core.stream / nbytes))

    def pixel_lines(self, flat: bool) -> Lines | None:
        """The epilogue for row-major results; phases store every second pixel, one by one."""
        if self.phase is not None:
            return None
        return self.hooks.pixel_epilogue(self.width, flat_space=flat)

    def may_flatten(self, physical: tuple[int, ...]) -> bool:
        """1x1, unstrided, no gaps between rows on either side: all pixels are one row."""
        s = self.s
        return (
            self.phase is None
            and s.kernel == (1, 1)
            and s.strides == (1, 1)
            and not any(s.pads)
            and self.halo == 0
            and physical[2:] == s.size
            and s.out[0] > 1
        )

    def packed(self, tile: Tile) -> Argument:
        s = self.s
        if self.w.op != "const":
            return self.decoded(tile)
        pack = partial(
            pack_weights, width=self.width, blocks=tile.blocks, groups=s.groups, c_block=self.lanes)
        key = f"conv {self.width} {tile.blocks} {s.groups} {self.lanes} {self.phase or ''}"
        return Packed(self.w, key, lambda w: pack(self.weights(w)))

    def decoded(self, tile: Tile) -> Scratch:
        """Packed weights as `pack_weights` has them, decoded in each run: a layer's at a time are
        in memory."""
        s, lanes = self.s, tile.blocks * self.width
        c, k = s.c // s.groups, s.k // s.groups
        per_group, c_block = -(-k // lanes), min(c, self.lanes)
        shape = (s.groups * per_group, c // c_block, *s.kernel, c_block, lanes)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            output = at[0] % per_group * lanes + at[5]
            taps = at[2:4] if self.w.type.rank == 4 else at[3:4]
            return (at[0] // per_group * k + output, at[1] * c_block + at[4], *taps), output < k

        copy, emitted = self.hooks.arranged(
            self.w, f"weights {lanes} {self.lanes} {self.w.type}", "f32", shape, where)
        self.before.append(emitted)
        return copy

    def weights(self, w: np.ndarray) -> np.ndarray:
        """The filters as [K, C, kh, kw]."""
        return w

    def params(
            self, physical: tuple[int, ...], inset: tuple[int, int], tile: Tile, rows: int,
            columns: int, kbs: int, kgs: int, flat: bool
    ) -> dict[str, int]:
        s, lanes = self.s, self.lanes
        _, blocks, height, width = physical
        row, block = width * lanes, height * width * lanes
        (kh, kw), (sh, _), (dh, dw) = s.kernel, s.strides, s.dilations
        c = self.depth
        cbs = -(-c // lanes)
        left = c - (cbs - 1) * lanes
        # taps side by side are one loop: their channels follow each other in memory
        joined = dw == 1 and (left == lanes or kw == 1)
        taps, terms, last = (1, kw * lanes, kw * left) if joined else (kw, lanes, left)
        oh, ow = s.out
        y_top, y_left = self.phase.first if self.phase else (0, 0)
        if self.phase:
            oh, ow = (d for d in (1, *self.root.dims[2:])[-2:])
        y_width, y_height = ow + 2 * self.halo, oh + 2 * (self.halo if self.root.rank == 4 else 0)
        y_first = ((self.halo if self.root.rank == 4 else 0) * y_width + self.halo) * self.width
        values = {
            "n_count": s.n, "channels": s.k, "kbs": kbs, "kgs": kgs, "oh": rows, "ow": columns,
            "row_tiles": -(-rows // tile.rows), "column_tiles": -(-columns // tile.columns),
            "a_image": blocks * block,
            "a_first": ((inset[0] - s.pads[0]) * width + inset[1] - s.pads[1]) * lanes,
            "a_row": 0 if flat else sh * row, "cbs": cbs, "cbs_at_once": self.blocks_at_once(tile),
            "tap_rows": kh, "taps": taps, "terms": terms, "last_terms": last, "a_block": block,
            "a_tap_row": dh * row, "a_tap": dw * lanes,
            "wt_group": c * kh * kw * tile.blocks * self.width,
            "y_first": y_first, "y_block": y_height * y_width * self.width, "y_width": y_width,
            "y_height": y_height, "kgs_per_group": kgs // s.groups, "a_group": cbs * block,
            "y_top": y_top, "y_left": y_left}
        if self.gate is not None:
            values["gate_image"] = math.prod(self.gate.type.physical[1:])
        return values
