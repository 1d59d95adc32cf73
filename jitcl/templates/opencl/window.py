"""The launch of a window over planes: depthwise convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl.dtypes import itemsize
from jitcl.ir.enclosure import FLUSHED
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import hints, require
from jitcl.ir.sizes import has_size, hint
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, Match, OpenClHooks, Packed
from jitcl.templates.convolution import ConvShape
from jitcl.templates.gemm_opencl.product import counter, epilogues, fits_int, unfused
from jitcl.templates.opencl.planes import (
    PITCH,
    in_rows,
    moves_by_int,
    padded,
    row_of_taps,
    staged,
    whole_planes,
)
from jitcl.templates.opencl.tiling import MAX_INDEX, WIDTHS, spread

MOST_TAPS = 25                 # that are written out
MOST_TURNS = 3                 # rows written out in place of a loop: five take more registers


@dataclass(frozen=True)
class Lanes(Match):
    """Pixels of a row that are one vector."""

    width: int


@dataclass(frozen=True)
class Windows:
    """A window over planes. kind "sum" (weighted, by the constant `weights`), "mean" or "max"."""

    kind: str
    s: ConvShape
    width: int                                   # of vectors
    weights: Node | None = None


def suitable(group: Group, s: ConvShape, target: Target) -> bool:
    """Whether planes, vectors of whose rows can be read, are what the group reads and writes."""
    assert group.anchor is not None
    anchor = group.anchor
    if staged(group, target) or s.strides[1] > 2 or not in_rows(group):
        return False
    if anchor.type.dtype not in ("f32", "f16"):
        return False
    if 0 in (anchor.type.size, anchor.inputs[0].type.size):
        return False
    read = anchor.inputs[0] in group.operands
    if has_size(s.kernel):
        return False                             # taps are written out
    return read and fits_int(*hints(elements(s)))


def elements(s: ConvShape) -> tuple[int, int]:
    """Of the result, and of padded planes."""
    height, width = padded(s)
    return s.n * s.k * s.out[0] * s.out[1], s.n * s.c * height * (width + PITCH)


def vector_widths(s: ConvShape, target: Target) -> tuple[Lanes, ...]:
    """The widths with the fewest vectors a row first; of equals the narrower."""
    most = min(target.vector_width, target.max_vector_width)
    columns = hint(s.out[1])
    fitting = [w for w in WIDTHS if w <= min(columns, most)]
    return tuple(map(Lanes, sorted(fitting, key=lambda w: (-(-columns // w), w))))


def in_quads(w: np.ndarray, lines: int, quads: int) -> np.ndarray:
    """[K, 1, kh, kw] -> [K, lines, quads * 4], zeros behind the taps of a line."""
    taps = w.reshape(w.shape[0], lines, -1)
    return np.pad(taps, ((0, 0), (0, 0), (0, quads * 4 - taps.shape[2])))


def emit_windows(p: Windows, hooks: OpenClHooks) -> list[Emitted]:
    """The kernels: planes padded where needed, then the windows."""
    s, width, target = p.s, p.width, hooks.target
    oh, ow = s.out
    x = hooks.anchor.inputs[0]
    space = (counter("h", oh), counter("w", ow))[4 - x.type.rank:]
    written = epilogues(hooks, (counter("image", s.n), counter("m", s.k), *space), width, "w", ow)
    if written is None:
        return unfused(hooks, lambda alone: emit_windows(p, alone))
    epilogue, single = written
    for size in elements(s):
        require(MAX_INDEX - 1, size)
    before, planes, (height, wide) = whole_planes(
        hooks, x, s, "max" if p.kind == "max" else "add")
    kh, kw = s.kernel
    unroll = kh * kw <= MOST_TAPS
    half = hooks.half and unroll and kw <= FLUSHED
    row, aligned = row_of_taps(s, width, wide, target) if unroll else (0, 1)
    held = -(-kh * kw // 4) + kh * (-(-row // 4) or kw)      # vectors, where all is read before
    loop = unroll and kh > 1 and held > target.registers
    lines = kh if loop else 1
    packs = unroll and p.weights is not None and target.max_vector_width >= 4
    quads = -(-kh * kw // lines // 4) if packs else 0
    ahead = bool(quads and row and lines > 1 and single is None and moves_by_int(height, wide))
    quad, size = 0, itemsize(x.type.dtype)
    if ahead and p.weights is not None:
        quad = 4 * itemsize(p.weights.type.dtype)
    sizes, local = spread(-(-ow // width), oh, s.n * s.k, target)
    params = dict(
        channels=s.k, copies=s.k // s.c, oh=oh, ow=ow, kh=kh, kw=kw, dw=s.dilations[1],
        h_step=s.strides[0] * wide, ky_step=s.dilations[0] * wide * (size if ahead else 1),
        x_plane=height * wide)
    if ahead:
        params["quad"] = quad
    body = hooks.render(
        "opencl/window.cl.j2", entry=ENTRY, epilogue=epilogue, single=single, params=params,
        FEW_COLUMNS=single is not None, ROW=row, A=aligned,
        DW=s.dilations[1] if row else 0, QUADS=quads, AHEAD=ahead,
        A_QUAD=quad == aligned * size, kind=p.kind, W=width, HALF=half,
        PAIRS=half and target.half_pairs and aligned > 2, LINES=FLUSHED // kw,
        AT_ONCE=kh * kw <= FLUSHED, WIDEST=target.max_vector_width,
        SW=s.strides[1], UNROLL=unroll, LOOP=loop, TURNS=kh if ahead and kh <= MOST_TURNS else 0,
        KH=kh // lines if unroll else 0, KW=kw if unroll else 0,
        x_type=hooks.ctype(x.type.dtype),
        wt_type="" if p.weights is None else hooks.ctype(p.weights.type.dtype),
        multiply_add=target.multiply_add)
    weights: tuple[Argument, ...] = ()
    if p.weights is not None:
        packed = Packed(p.weights, f"{lines} lines of taps in {quads} quads",
                        partial(in_quads, lines=lines, quads=quads))
        weights = (packed if quads else p.weights,)
    arguments: tuple[Argument, ...] = (planes, *weights, *epilogue.nodes, hooks.group.root)
    return [*before, Emitted(f"{p.kind}_{kh}x{kw}x{width}", body, arguments, (hooks.group.root,),
                             {**params, **epilogue.sizes}, sizes,
                             local)]
