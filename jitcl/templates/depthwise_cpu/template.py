"""Depthwise convolution in 1 and 2 dimensions: one filter a channel, lanes are channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl.ir.group import Group
from jitcl.ir.size_ranges import require
from jitcl.ir.sizes import hint
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, CpuHooks, Emitted, Lines, Match, Packed, Template
from jitcl.templates.conv_cpu.template import padded_input
from jitcl.templates.convolution import packable, shape_of
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.cpu.tiling import lasting

MOST_COLUMNS = 14
FEWEST_ROWS, ROWS_A_CORE = 8, 3     # of an image that threads share by rows, not by channels


def pack_filters(w: np.ndarray, width: int) -> np.ndarray:
    """[C, 1, kh, kw] -> [C / width][kh][kw][width] f32, zeros behind C."""
    c, taps = w.shape[0], int(np.prod(w.shape[2:]))
    full = np.zeros((-(-c // width) * width, taps), np.float32)
    full[:c] = w.reshape(c, taps)
    return np.ascontiguousarray(full.reshape(-1, width, taps).transpose(0, 2, 1))


@dataclass(frozen=True)
class Columns(Match):
    """Pixels of a tile."""

    columns: int


def row_columns(ow: int) -> list[int]:
    """Pixels of a tile: the fewest in all, then the fewest tiles."""
    return sorted(range(1, min(lasting(ow), MOST_COLUMNS) + 1),
                  key=lambda c: (-(-hint(ow) // c) * (c + 1.5), -c))


class DepthwiseCpu(Template[Columns, CpuHooks]):
    """conv with as many groups as channels and a constant weight."""

    name = "depthwise_cpu"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Columns, ...]:
        node = packable(group.anchor, "conv")
        if node is None or target.kind != "cpu":
            return ()
        s = shape_of(node)
        if s.groups != s.c or s.k != s.c or s.c < target.vector_width // 2 or s.kernel[1] > 16:
            return ()
        return tuple(map(Columns, row_columns(s.out[1])))

    def emit(self, match: Columns, hooks: CpuHooks) -> list[Emitted]:
        group, s, columns = hooks.group, shape_of(hooks.anchor), match.columns
        x, w = hooks.anchor.inputs
        root, width = group.root.type, hooks.target.vector_width
        require(s.out[1], columns)
        before, a, physical, inset = padded_input(s, x, hooks, planes=False)
        left = f"channels - kb * {width}" if s.k % width else ""
        vector = hooks.vector_epilogue(width, flat_space=False, channels_left=left)
        pixels = None if vector else hooks.pixel_epilogue(width, flat_space=False)
        scalar = Lines() if vector or pixels else hooks.scalar_epilogue(width)
        operands = operands_of(vector or pixels or scalar, hooks)
        halo = root.layout.halo if root.layout.kind == "NCHWc" else 0
        halo_rows = halo if root.rank == 4 else 0
        _, blocks, a_height, a_width = physical
        oh, ow = s.out
        y_width, y_height = ow + 2 * halo, oh + 2 * halo_rows
        params = {
            "n_count": s.n, "channels": s.k, "kbs": blocks, "oh": oh, "ow": ow,
            "column_tiles": -(-ow // columns), "a_block": a_height * a_width * width,
            "a_first": ((inset[0] - s.pads[0]) * a_width + inset[1] - s.pads[1]) * width,
            "a_row": s.strides[0] * a_width * width, "taps": s.kernel[0],
            "tap_row": s.dilations[0] * a_width * width,
            "y_first": (halo_rows * y_width + halo) * width, "y_block": y_height * y_width * width,
            "y_width": y_width, "y_height": y_height}
        body = hooks.render(
            "depthwise_cpu/numba.py.j2",
            entry=ENTRY,
            a_dtype=x.type.dtype,
            y_dtype=root.dtype,
            operands=[(hooks.names[n], n.type.dtype) for n in operands],
            params=params,
            COLUMNS=columns,
            W=width,
            kw=s.kernel[1],
            step=s.strides[1],
            dilation=s.dilations[1],
            halo=halo,
            by_rows=not group.summed and s.out[0] >= max(
                FEWEST_ROWS, ROWS_A_CORE * hooks.target.compute_units),
            halo_rows=halo_rows,
            vector_lines=vector or [],
            pixel_lines=pixels or [],
            scalar_lines=scalar,
            clear_lanes=root.layout.kind == "NCHWc" and s.k % width != 0,
        )
        packed = Packed(w, f"depthwise {width}", partial(pack_filters, width=width))
        arguments: tuple[Argument, ...] = (a, packed, *operands, group.root)
        return [*before, Emitted(f"depthwise_{columns}", body, arguments, (group.root,),
                                 params | hooks.sizes.params())]
