"""Planes of pixels copied with their padding, or as the taps of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, OpenClHooks, Scratch
from jitcl.templates.convolution import ConvShape
from jitcl.templates.opencl.memory import piece
from jitcl.templates.opencl.tiling import launch

PARAMS = ("each", "rows", "height", "width", "oh", "ow", "kh", "kw", "sh", "sw", "dh", "dw",
          "top", "left")
PADDED = ("each", "planes", "height", "width", "oh", "ow", "top", "left")
FILL = {"add": "0.0f", "max": "-INFINITY"}
PITCH = 4                      # GPUs: rows of copied planes begin at multiples of so many elements
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


def padded(s: ConvShape) -> tuple[int, int]:
    """Height and width of padded planes; a strided row is read in pairs, one beyond its end."""
    return (s.size[0] + s.pads[0] + s.pads[2],
            s.size[1] + s.pads[1] + s.pads[3] + (s.strides[1] > 1))


def row_of_taps(s: ConvShape, width: int, pitch: int, target: Target) -> tuple[int, int]:
    """(elements of a row that the taps of a vector of outputs need, elements of one access): GPUs
    read each once, where that is fewer accesses than a vector for each tap. Else (0, 1).

    Accesses begin at multiples of theirs, as rows of `pitch` elements do: none goes beyond its row.
    """
    aligned = piece(width, target, pitch, s.strides[1] * math.gcd(width, s.out[1]))
    needed = s.strides[1] * (width - 1) + s.dilations[1] * (s.kernel[1] - 1) + 1
    fewer = -(-needed // aligned) <= s.kernel[1] * width and s.kernel[1] <= MOST_ROW
    return (needed, aligned) if target.device_type != "cpu" and fewer else (0, 1)


def patches(hooks: OpenClHooks, x: Node, s: ConvShape, window: Window, combine: str = "add"
            ) -> tuple[Scratch, Emitted]:
    """Rows of taps, [planes, kh, kw, oh, ow]; padding holds what changes nothing in a `combine`."""
    planes, kernel, out = s.n * s.c, window.kernel, window.out
    rows = planes * kernel[0] * kernel[1] * out[0]
    copy = Scratch(f"{combine} {window} of {x.type} {s.pads}", x.type.dtype,
                   (planes, *kernel, *out))
    ctype = "ushort" if x.type.dtype == "f16" else "float"
    body = hooks.render("opencl/patches.cl.j2", entry=ENTRY, type=ctype, params=PARAMS,
                        fill=fill(combine, ctype))
    each, sizes, local = launch(rows, hooks.target)
    values = (each, rows, *s.size, *out, *kernel, *window.strides, *window.dilations, *s.pads[:2])
    params = dict(zip(PARAMS, values, strict=True))
    return copy, Emitted("patches", body, (x, copy), (copy,), params, sizes, local)


def whole_planes(hooks: OpenClHooks, x: Node, s: ConvShape, combine: str = "add"
                 ) -> tuple[list[Emitted], Argument, tuple[int, int]]:
    """(kernels before, planes without a tap outside, their height and width)."""
    size = padded(s)
    if size == s.size:
        return [], x, size
    if hooks.target.device_type != "cpu":
        size = size[0], -(-size[1] // PITCH) * PITCH
        copy, emitted = patches(hooks, x, s, Window((1, 1), (1, 1), (1, 1), size), combine)
        return [emitted], copy, size
    planes = s.n * s.c
    copy = Scratch(f"padded {combine} {size} of {x.type} {s.pads}", x.type.dtype, (planes, *size))
    ctype = "ushort" if x.type.dtype == "f16" else "float"
    body = hooks.render("opencl/padded.cl.j2", entry=ENTRY, type=ctype, params=PADDED,
                        fill=fill(combine, ctype))
    each, sizes, local = launch(planes, hooks.target)
    params = dict(zip(PADDED, (each, planes, *s.size, *size, *s.pads[:2]), strict=True))
    return [Emitted("padded", body, (x, copy), (copy,), params, sizes, local)], copy, size
