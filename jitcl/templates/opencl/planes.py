"""Planes of pixels copied with their padding, or as the taps of a window."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.templates.base import ENTRY, Argument, Emitted, OpenClHooks, Scratch
from jitcl.templates.convolution import ConvShape
from jitcl.templates.opencl.tiling import launch

PARAMS = ("each", "rows", "height", "width", "oh", "ow", "kh", "kw", "sh", "sw", "dh", "dw",
          "top", "left")
PADDED = ("each", "planes", "height", "width", "oh", "ow", "top", "left")
FILL = {"add": "0.0f", "max": "-INFINITY"}
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


def patches(hooks: OpenClHooks, x: Node, s: ConvShape, window: Window, combine: str = "add"
            ) -> tuple[Scratch, Emitted]:
    """Rows of taps, [planes, kh, kw, oh, ow]; padding holds what changes nothing in a `combine`."""
    planes, kernel, out = s.n * s.c, window.kernel, window.out
    rows = planes * kernel[0] * kernel[1] * out[0]
    copy = Scratch(f"{combine} {window} of {x.type} {s.pads}", x.type.dtype,
                   (planes, *kernel, *out))
    ctype = hooks.ctype(x.type.dtype)
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
        copy, emitted = patches(hooks, x, s, Window((1, 1), (1, 1), (1, 1), size), combine)
        return [emitted], copy, size
    planes = s.n * s.c
    copy = Scratch(f"padded {combine} {size} of {x.type} {s.pads}", x.type.dtype, (planes, *size))
    ctype = hooks.ctype(x.type.dtype)
    body = hooks.render("opencl/padded.cl.j2", entry=ENTRY, type=ctype, params=PADDED,
                        fill=fill(combine, ctype))
    each, sizes, local = launch(planes, hooks.target)
    params = dict(zip(PADDED, (each, planes, *s.size, *size, *s.pads[:2]), strict=True))
    return [Emitted("padded", body, (x, copy), (copy,), params, sizes, local)], copy, size
