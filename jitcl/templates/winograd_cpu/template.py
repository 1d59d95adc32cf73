"""3x3 convolutions by Winograd's minimal filtering, F(4x4, 3x3) and F(2x2, 3x3), on blocks of
channels: a quarter, or four ninths, of a direct convolution's products. Those of 3 taps along a row
by F(4, 3) and F(2, 3): a half, or two thirds.

An infinite input or NaN makes NaN of all outputs of its tile, not only of its neighbours.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import require
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Argument,
    CpuHooks,
    Emitted,
    Lines,
    Packed,
    Scratch,
    Template,
)
from jitcl.templates.conv_cpu.template import padded_input
from jitcl.templates.convolution import packable, shape_of
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.winograd_cpu.choice import Blocking, choices
from jitcl.templates.winograd_cpu.transforms import Transforms, relative_error

LARGEST_ERROR = 1e-5           # of a result, over the largest one
TILES = ("tiles", "tile_columns", "total", "blocks", "oh", "ow", "cbs", "position")
DATA = ("a_image", "a_block", "a_first", "a_row")
PRODUCTS = (
    *("n_count", "channels", "kbs", "kgs", "last", "wt_position"),
    *("y_first", "y_block", "y_width", "y_height"))


def pack_weights(w: np.ndarray, t: Transforms, width: int, blocks: int) -> np.ndarray:
    """[K, C, 3, 3] -> [kgs][N * N][C][blocks][width] f32, zeros behind K; of one axis N for N * N.
    """
    k, c = w.shape[:2]
    kgs = -(-k // (width * blocks))
    transformed = t.weights(taps(w))
    full = np.zeros((kgs * blocks * width, *transformed.shape[1:]), np.float32)
    full[:k] = transformed
    full = full.reshape(kgs, blocks, width, c, -1)
    return np.ascontiguousarray(full.transpose(0, 4, 3, 1, 2))


def taps(w: np.ndarray) -> np.ndarray:
    """[K, C, 1, 3] without its axis of one; else the filters as they are."""
    return w[:, :, 0] if w.shape[2:] == (1, 3) else w


class WinogradCpu(Template[Blocking, CpuHooks]):
    """conv 3x3 or 1x3 (3 in one dimension) of f32 or f16, in f32; stride 1, no dilation, no groups,
    constant weights that lose no accuracy, results in blocks."""

    name = "winograd_cpu"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Blocking, ...]:
        node, root = packable(group.anchor, "conv"), group.root.type
        if node is None or target.kind != "cpu":
            return ()
        x, w = node.inputs
        if any(t.dtype not in ("f32", "f16") for t in (x.type, w.type, node.type)):
            return ()
        if root.layout.kind != "NCHWc" or root.layout.block != target.vector_width:
            return ()
        s = shape_of(node)
        if s.kernel not in ((3, 3), (1, 3)):
            return ()
        if (s.strides, s.dilations, s.groups) != ((1, 1), (1, 1), 1):
            return ()
        fused = target.multiply_add == "fma"
        for blocking in choices(s, target):      # one: the error of each takes long to find
            error = relative_error(taps(w.data), blocking.transforms, fused=fused)
            if error <= LARGEST_ERROR:
                return (blocking,)
        return ()

    def emit(self, match: Blocking, hooks: CpuHooks) -> list[Emitted]:
        return _Writer(match, hooks).emit()


class _Writer:
    def __init__(self, match: Blocking, hooks: CpuHooks) -> None:
        self.s, self.b, self.hooks = shape_of(hooks.anchor), match, hooks
        self.group = hooks.group
        self.x, self.w = hooks.anchor.inputs
        self.transforms = self.b.transforms
        self.width: int = hooks.target.vector_width
        self.root = self.group.root.type
        self.halo_rows = self.root.layout.halo if self.root.rank == 4 else 0

    def emit(self) -> list[Emitted]:
        require(self.s.out[0], 1 if self.b.rows else self.b.outputs)
        require(self.s.out[1], self.b.outputs)
        before, a, physical, inset = padded_input(self.s, self.x, self.hooks, planes=False)
        values = self.values(physical, inset)
        if self.b.whole:
            return [*before, self.products(a, values)]
        shape = (self.b.blocks(self.s), self.b.positions, values["position"])
        data = Scratch(f"winograd {self.b}", "f32", shape)
        return [*before, self.data(a, data, values), self.products(data, values)]

    def data(self, a: Argument, data: Scratch, values: dict[str, int]) -> Emitted:
        """The step that transforms all data."""
        names = (*TILES, *DATA)
        body = self.render("data", names, [])
        params = {name: values[name] for name in names} | self.hooks.sizes.params()
        return Emitted("transformed", body, (a, data), (data,), params)

    def products(self, source: Argument, values: dict[str, int]) -> Emitted:
        """The step that multiplies; `source` is the input, or its transformed data."""
        s, b, width = self.s, self.b, self.width
        left = f"channels - kb * {width}" if s.k % width else ""
        vector = self.hooks.vector_epilogue(width, flat_space=False, channels_left=left)
        scalar = Lines() if vector else self.hooks.scalar_epilogue(width)
        operands = operands_of(vector or scalar, self.hooks)
        names = (*TILES, *(DATA if b.whole else ()), *PRODUCTS)
        body = self.render(
            "numba", names, operands, vector_lines=vector or [], scalar_lines=scalar,
            whole=b.whole, NB=b.tile.blocks, COLUMNS=b.tile.columns, GROUPS=b.groups,
            SUMS=b.sums(width), DATA=b.positions * values["position"],
            uneven=values["kbs"] % b.tile.blocks != 0, clear_lanes=s.k % width != 0,
            halo=self.root.layout.halo, halo_rows=self.halo_rows, y_dtype=self.root.dtype)
        make = partial(pack_weights, t=self.transforms, width=width, blocks=b.tile.blocks)
        packed = Packed(self.w, f"winograd {b.outputs} {width} {b.tile.blocks}", make)
        arguments: tuple[Argument, ...] = (source, packed, *operands, self.group.root)
        outputs = f"{1 if b.rows else b.outputs}x{b.outputs}"
        stem = f"winograd_{outputs}_{b.tile.columns}x{b.tile.blocks}"
        params = {name: values[name] for name in names} | self.hooks.sizes.params()
        return Emitted(stem, body, arguments, (self.group.root,), params)

    def render(self, file: str, names: tuple[str, ...], operands: list[Node],
               **more: object) -> str:
        t = self.transforms
        return self.hooks.render(
            f"winograd_cpu/{file}.py.j2", entry=ENTRY, params=names, W=self.width, N=t.size,
            OUT=t.outputs, ROWS=self.b.rows, P=self.b.positions, a_dtype=self.x.type.dtype,
            TILES=self.b.tiles, data_steps=t.data, result_steps=t.results,
            operands=[(self.hooks.names[n], n.type.dtype) for n in operands], **more)

    def values(self, physical: tuple[int, ...], inset: tuple[int, int]) -> dict[str, int]:
        """The kernels' integer parameters, by name."""
        s, b, lanes = self.s, self.b, self.width
        _, cbs, height, width = physical
        kbs, (columns, total) = -(-s.k // lanes), b.counts(s)
        halo = self.root.layout.halo
        y_width, y_height = s.out[1] + 2 * halo, s.out[0] + 2 * self.halo_rows
        return {
            "tiles": total // s.n, "tile_columns": columns, "total": total, "blocks": b.blocks(s),
            "oh": s.out[0], "ow": s.out[1], "cbs": cbs, "position": b.position(s, lanes),
            "a_image": cbs * height * width * lanes, "a_block": height * width * lanes,
            "a_first": ((inset[0] - s.pads[0]) * width + inset[1] - s.pads[1]) * lanes,
            "a_row": width * lanes, "n_count": s.n, "channels": s.k, "kbs": kbs,
            "kgs": -(-kbs // b.tile.blocks), "last": s.c - (cbs - 1) * lanes,
            "wt_position": s.c * b.tile.blocks * lanes,
            "y_first": (self.halo_rows * y_width + halo) * lanes,
            "y_block": y_height * y_width * lanes, "y_width": y_width, "y_height": y_height}
