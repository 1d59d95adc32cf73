"""Planes of pixels copied with their padding, or as the taps of a window."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor
from jitcl.ir.sizes import at_least_always, is_size
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, OpenClHooks, Scratch
from jitcl.templates.convolution import ConvShape
from jitcl.templates.opencl.memory import piece
from jitcl.templates.opencl.tiling import GROUP, MAX_INDEX

FILL = {"add": "0.0f", "max": "-INFINITY"}
PITCH = 4                      # rows of copied planes begin at multiples of so many elements
MOST_ROW = 7                   # taps of a row that are written out
BITS = {"add": "0", "max": "0xfc00"}             # the same as halves that are copied as ushort


def fill(combine: str, ctype: str) -> str:
    """What padding of planes holds: it changes nothing in a `combine`."""
    return BITS[combine] if ctype == "ushort" else FILL[combine]


@dataclass(frozen=True)
class Window:
    """Which pixels are copied: `kernel` taps of each of `out` windows."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    out: tuple[int, int]


def as_stored(s: ConvShape, root: Node) -> ConvShape:
    """The convolution or pooling whose rows are as long as those of the group's root in memory: it
    computes what they are padded with, too, which the epilogue makes zeros."""
    return dataclasses.replace(s, out=(s.out[0], root.type.physical[-1]))


def staged(group: Group, target: Target) -> bool:
    """Whether the group is left to kernels that stage tiles in local memory, or to loops there:
    these read no padded rows."""
    plain = all(n.type.layout == ROW for n in (*group.members, *group.operands))
    return target.stages_tiles and plain


def in_rows(group: Group) -> bool:
    """Whether the group's tensors are row-major, and what its epilogue makes and reads are planes
    whose rows lie as the root's do, or one element for each row."""
    members, anchor = group.members, group.anchor
    read = {*members, *(i for n in members if n is not anchor for i in n.inputs)}
    return (all(n.type.layout.kind != "NCHWc" for n in (*members, *group.operands))
            and all(n.type.layout == group.root.type.layout for n in read
                    if n.type.rank and n.type.dims[-1] != 1))


def reach(s: ConvShape) -> int:
    """Elements of a row that taps need; a strided row is read in pairs, one beyond its end."""
    last = (s.out[1] - 1) * s.strides[1] + (s.kernel[1] - 1) * s.dilations[1] + 1
    return last + (s.strides[1] > 1)


def padded(s: ConvShape) -> tuple[int, int]:
    """Height and width of padded planes; of widths that are not known, no less than needed."""
    height, width = s.size[0] + s.pads[0] + s.pads[2], s.size[1] + s.pads[1] + s.pads[3]
    if not is_size(width - reach(s)):
        return height, max(width, reach(s))
    return height, width + PITCH * s.strides[1]      # rows of the root's pitch, read in pairs


def row_of_taps(s: ConvShape, width: int, pitch: int, target: Target) -> tuple[int, int]:
    """(elements of a row that the taps of a vector of outputs need, elements of one access): GPUs
    read each once, where that is fewer accesses than a vector for each tap. Else (0, 1).

    Accesses begin at multiples of theirs, as rows of `pitch` elements do: none goes beyond its row.
    """
    aligned = piece(width, target, divisor(pitch),
                    s.strides[1] * math.gcd(width, divisor(s.out[1])))
    needed = s.strides[1] * (width - 1) + s.dilations[1] * (s.kernel[1] - 1) + 1
    fewer = -(-needed // aligned) <= s.kernel[1] * width and s.kernel[1] <= MOST_ROW
    return (needed, aligned) if target.device_type != "cpu" and fewer else (0, 1)


def moves_by_int(height: int, pitch: int) -> bool:
    """Whether the bytes of a plane are known, and an int."""
    return not (is_size(height) or is_size(pitch)) and height * pitch * 4 < MAX_INDEX


def patches(hooks: OpenClHooks, x: Node, s: ConvShape, window: Window, combine: str = "add"
            ) -> tuple[Scratch, Emitted]:
    """Rows of taps, [planes, kh, kw, oh, ow]; padding holds what changes nothing in a `combine`."""
    planes, kernel, out = s.n * s.c, window.kernel, window.out
    rows = planes * kernel[0] * kernel[1] * out[0]
    copy = Scratch(f"{combine} {window} of {x.type} {s.pads}", x.type.dtype,
                   (planes, *kernel, *out))
    ctype = "ushort" if x.type.dtype == "f16" else "float"
    (height, width), (oh, ow), (kh, kw) = s.size, out, kernel
    (sh, sw), (dh, dw), (top, left) = window.strides, window.dilations, s.pads[:2]
    params = dict(rows=rows, height=height, width=width, pitch=x.type.physical[-1], oh=oh, ow=ow,
                  kh=kh, kw=kw, sh=sh, sw=sw, dh=dh, dw=dw, top=top, left=left)
    body = hooks.render("opencl/patches.cl.j2", entry=ENTRY, type=ctype, params=params,
                        fill=fill(combine, ctype))
    local = min(GROUP, hooks.target.max_work_group)
    return copy, Emitted("patches", body, (x, copy), (copy,), params,
                         (-(-rows // local) * local,), (local,))


def whole_planes(hooks: OpenClHooks, x: Node, s: ConvShape, combine: str = "add"
                 ) -> tuple[list[Emitted], Argument, tuple[int, int]]:
    """(kernels before, planes without a tap outside, their height and width)."""
    size, held = padded(s), x.type.physical[-1]
    if not any(s.pads) and at_least_always(held, reach(s)):
        return [], x, (size[0], held)
    size = size[0], -(-size[1] // PITCH) * PITCH
    copy, emitted = patches(hooks, x, s, Window((1, 1), (1, 1), (1, 1), size), combine)
    return [emitted], copy, size
