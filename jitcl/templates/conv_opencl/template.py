"""Convolution in 1 and 2 dimensions, for OpenCL devices without local memory worth staging into.

    1x1, unstrided    a matrix product of weights and planes
    direct            taps in loops over padded planes; vectors of neighbours in a row
    patches           a matrix product over rows of taps, where rows are too short for vectors
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl.dtypes import itemsize
from jitcl.ir.enclosure import FLUSHED
from jitcl.ir.expr import Expr
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor, hints, require
from jitcl.ir.sizes import has_size
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.ops.cost import element_cost
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Emitted, Match, OpenClHooks, Packed, Template
from jitcl.templates.convolution import ConvShape, shape_of
from jitcl.templates.gemm_opencl.product import (
    Operand,
    Product,
    counter,
    emit_product,
    epilogues,
    fits_int,
    pack_rows,
    unfused,
)
from jitcl.templates.opencl.planes import (
    PITCH,
    Window,
    as_stored,
    in_rows,
    moves_by_int,
    padded,
    patches,
    row_of_taps,
    staged,
    whole_planes,
)
from jitcl.templates.opencl.tiling import (
    MAX_INDEX,
    Tile,
    choose_tiles,
    image_of,
    in_half,
    read_whole,
    spread,
)

FUNCTION = 8                   # FLOPs of an element from which on an op is a long function
COPY = 32                      # multiply-adds done in the time of copying one element


@dataclass(frozen=True)
class Form(Match):
    """How a convolution is computed, and the tile."""

    form: str                                    # "flat", "direct" or "patches"
    tile: Tile


class ConvOpenCl(Template[Form, OpenClHooks]):
    """conv of f32 or f16 storage, sums in f32 (of halves: a few terms at a time in half)."""

    name = "conv_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Form, ...]:
        node = group.anchor
        if node is None or node.op != "conv" or node.type.rank not in (3, 4):
            return ()
        if node.type.dtype not in ("f32", "f16") or 0 in (node.type.size, node.inputs[0].type.size):
            return ()
        if staged(group, target) or not in_rows(group):
            return ()
        if node.inputs[0] not in group.operands or node.inputs[1] not in group.operands:
            return ()                            # views of either are for generated loops
        s = as_stored(shape_of(node), group.root)
        if s.groups > 1 and s.groups == s.c:
            return ()                            # depthwise: nothing is read twice
        if has_size(s.kernel) or not fits_int(*hints(elements(s))):
            return ()
        same = node.inputs[0].type.physical[-1] == s.out[1]
        half = in_half(group, target)
        return choose_forms(hints(s), node.inputs[1].op == "const", target, half, same,
                            sparing(group), not has_size(tuple(vars(s).values())))

    def emit(self, match: Form, hooks: OpenClHooks) -> list[Emitted]:
        for size in elements(as_stored(shape_of(hooks.anchor), hooks.group.root)):
            require(MAX_INDEX - 1, size)
        return _Writer(match, hooks).emit()


def sparing(group: Group) -> bool:
    """Whether a product needs few registers beside the sums: its floats are stored as such (or
    weights as f16), and its epilogue calls no long function and counts no columns, since it reads
    one element a channel, or what lies as y does. Not of padded rows: with tiles of two rows a
    window reads them in place, with four it would read copies of its taps.
    """
    anchor, root = group.anchor, group.root.type
    read = [n.type for n in group.operands if anchor is None or n not in anchor.inputs]
    return (root.layout == ROW and not has_size(root.dims)
            and all(n.type.dtype == "f32" for n in group.operands
                    if anchor is None or n is not anchor.inputs[1])
            and all(t.dims == root.dims or set(t.dims[2 - root.rank:]) <= {1} for t in read)
            and all(element_cost(n) < FUNCTION for n in group.members
                    if lookup(n.op).kind == "elementwise"))


def pixels(s: ConvShape) -> int:
    return s.out[0] * s.out[1]


def elements(s: ConvShape) -> tuple[int, ...]:
    """Of the result, of rows of taps, and of padded planes."""
    height, width = padded(s)
    return (s.n * s.k * pixels(s), s.n * s.c * s.kernel[0] * s.kernel[1] * pixels(s),
            s.n * s.c * height * (width + PITCH))


def choose_forms(s: ConvShape, const_weights: bool, target: Target, half: bool = False,
                 same: bool = True, sparing: bool = False, known: bool = False
                 ) -> tuple[Form, ...]:
    """The forms, that with the least work first: multiply-adds of its tiles, and elements that it
    copies. Behind the best tiles of the forms come their others. `same`: rows of the input are as
    long in memory as those of the output. `sparing`: nothing but sums takes registers in a product.
    `known`: all sizes are.
    """
    batch, m, total = s.n * s.groups, s.k // s.groups, pixels(s)
    terms = s.c // s.groups * math.prod(s.kernel) if known else 0
    flat = choose_tiles(batch, m, total, lambda w: -(-total // w), target, half,
                        int(sparing and const_weights), terms)
    if s.kernel == (1, 1) and s.strides == (1, 1) and same and not any(s.pads):
        return tuple(Form("flat", tile) for tile in flat)
    patches = [Form("patches", tile) for tile in flat]
    oh, ow = s.out
    direct = [Form("direct", tile) for tile in choose_tiles(
        batch, m, ow, lambda w: oh * -(-ow // w), target, half)]
    if not direct or not const_weights or s.strides[1] > 2:
        return tuple(patches)
    width = min(target.vector_width, target.max_vector_width)

    def waste(vectors: int, used: Tile) -> float:
        return vectors * width / total * (1 + (used.rows < 4 and m >= 4))

    copied = waste(-(-total // flat[0].width), flat[0]) + COPY / m
    in_place = waste(oh * -(-ow // direct[0].tile.width), direct[0].tile)
    first, second = (direct, patches) if in_place <= copied else (patches, direct)
    return (first[0], second[0], *first[1:], *second[1:])


def pack_taps(w: np.ndarray, groups: int, rows: int) -> np.ndarray:
    """[K, C, kh, kw] -> [groups, K / groups / rows, C * kh * kw, rows]."""
    return pack_rows(w.reshape(groups, w.shape[0] // groups, -1), rows)


def pack_rows_of_taps(w: np.ndarray, groups: int, rows: int, quad: int) -> np.ndarray:
    """[K, C, kh, kw] -> [groups, K / groups / rows, C * kh, kw * rows padded to whole quads]."""
    taps = pack_taps(w, groups, rows)
    taps = taps.reshape(*taps.shape[:2], -1, w.shape[-1] * rows)
    return np.pad(taps, ((0, 0), (0, 0), (0, 0), (0, -taps.shape[3] % quad)))


def quad_of(tile: Tile, taps: int, row: int, half: bool, whole: bool, target: Target) -> int:
    """Packed weights of one access where they are read so for a row of taps, in halves twice as
    many; 0 where vectors are shorter, padding is more than a third, or that and the `row` elements
    of the input leave sums too few registers. `whole`: vectors of the result end where its rows do,
    and nothing takes registers to make zeros of what pads these."""
    quad, sums = (8 if half else 4), tile.rows * tile.vectors * tile.width
    if -taps * tile.rows % quad * 3 > taps * tile.rows:
        return 0
    used = min(quad, taps * tile.rows) if whole else quad        # compilers read no more
    held = (3 * sums + row + used) / 2 if half else sums + row + used
    fits = quad <= target.max_vector_width and held <= target.registers * target.vector_width
    return quad if fits else 0


class _Writer:
    def __init__(self, match: Form, hooks: OpenClHooks) -> None:
        self.s = as_stored(shape_of(hooks.anchor), hooks.group.root)
        self.match, self.hooks = match, hooks
        self.form, self.tile = match.form, match.tile
        self.x, self.w = hooks.anchor.inputs
        self.m = self.s.k // self.s.groups

    def emit(self) -> list[Emitted]:
        return self.direct(self.hooks) if self.form == "direct" else self.product()

    # ---- as a matrix product

    def product(self) -> list[Emitted]:
        """Weights times planes or patches, pixels as one axis."""
        s = self.s
        taps = s.c // s.groups * s.kernel[0] * s.kernel[1]

        def index(image: Expr, m: Expr, n: Expr) -> tuple[Expr, ...]:
            return (*self.channel(image, m), n)

        types = self.hooks.flat_pixels()
        p = Product(s.n * s.groups, self.m, pixels(s), taps, self.weights,
                    lambda _: self.planes(taps), index, types)
        if types is None:
            return unfused(self.hooks, lambda alone: _Writer(self.match, alone).emit())
        return emit_product(p, self.tile, self.hooks)

    def channel(self, image: Expr, m: Expr) -> tuple[Expr, Expr]:
        """(n, channel) of row `m` of an image, which counts groups too."""
        if self.s.groups == 1:
            return image, m
        return image // self.s.groups, image % self.s.groups * self.m + m

    def weights(self, tile: Tile) -> tuple[list[Emitted], Operand]:
        s = self.s
        taps = self.w.type.size // s.k
        if self.w.op != "const":
            return [], Operand(self.w, False, self.m * taps, s.groups)
        size = -(-self.m // tile.rows) * tile.rows * taps
        return [], Operand(self.packed(tile), True, size, s.groups)

    def packed(self, tile: Tile) -> Packed:
        return Packed(self.w, f"taps {self.s.groups} {tile.rows}",
                      partial(pack_taps, groups=self.s.groups, rows=tile.rows))

    def planes(self, taps: int) -> tuple[list[Emitted], Operand]:
        """The product's right side: planes as they lie, or rows of taps."""
        s = self.s
        size = taps * pixels(s)
        if self.form == "flat":
            return [], Operand(self.x, False, size)
        window = Window(s.kernel, s.strides, s.dilations, s.out)
        copy, emitted = patches(self.hooks, self.x, s, window)
        return [emitted], Operand(copy, False, size)

    # ---- direct

    def direct(self, hooks: OpenClHooks) -> list[Emitted]:
        s, tile = self.s, self.tile
        oh, ow = s.out
        n, channel = self.channel(counter("image", s.n * s.groups), counter("m", self.m))
        space = (counter("h", oh), counter("w", ow)) if self.x.type.rank == 4 else (
            counter("w", ow),)
        written = epilogues(hooks, (n, channel, *space), tile.width, "w", ow)
        if written is None:
            return unfused(hooks, lambda alone: _Writer(self.match, alone).emit())
        epilogue, single = written
        before, x, (height, width) = whole_planes(hooks, self.x, s)
        m_tiles, lines = -(-self.m // tile.rows), s.c // s.groups * s.kernel[0]
        wt_tile = tile.rows * lines * s.kernel[1]
        weights = self.packed(tile)
        image = image_of(weights, s.groups * m_tiles * wt_tile, tile.rows, hooks.target)
        row, aligned = row_of_taps(s, tile.width, width, hooks.target)
        half = hooks.half and s.kernel[1] <= FLUSHED
        ahead = row and tile.vectors == 1 and single is None and not image
        whole = divisor(ow) % tile.width == 0 and not hooks.group.pads_with_zeros
        quad = quad_of(tile, s.kernel[1], row, half, whole, hooks.target) if (
            ahead and moves_by_int(height, width)) else 0
        if quad:
            line = -(-s.kernel[1] * tile.rows // quad) * quad
            wt_tile = lines * line
            weights = Packed(self.w, f"rows of taps {s.groups} {tile.rows} {quad}", partial(
                pack_rows_of_taps, groups=s.groups, rows=tile.rows, quad=quad))
        pairs = half and hooks.target.half_pairs
        by_pixel = pairs and read_whole(tile, hooks.target)
        held = itemsize(self.x.type.dtype)
        row_vectors = -(-ow // tile.width)
        sizes, local = spread(row_vectors, -(-oh // tile.vectors), s.n * s.groups * m_tiles,
                              hooks.target)
        c, (kh, kw) = s.c // s.groups, s.kernel
        params = dict(
            m_tiles=m_tiles, m_count=self.m, c_count=c, kh=kh, kw=kw, oh=oh, ow=ow,
            h_step=s.strides[0] * width,
            ky_step=s.dilations[0] * width * (held if quad else 1), dw=s.dilations[1],
            plane=(height - kh * s.dilations[0]) * width * held if quad else height * width,
            x_image=c * height * width, groups=s.groups,
            wt_group=m_tiles * wt_tile, wt_tile=wt_tile)
        body = hooks.render(
            "conv_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, single=single,
            FEW_COLUMNS=single is not None, params=params, HALF=half,
            CHANNELS=FLUSHED // math.prod(s.kernel), ROW=row, A=aligned, QUAD=quad,
            BY_PIXEL=by_pixel, PAIRS=pairs and not by_pixel and aligned > 2,
            KW=kw if row else 0, DW=s.dilations[1] if row else 0,
            ROWS=tile.rows, VECTORS=tile.vectors, W=tile.width, SW=s.strides[1],
            x_type=hooks.ctype(self.x.type.dtype), wt_type=hooks.ctype(self.w.type.dtype),
            multiply_add=hooks.target.multiply_add,
            WIDEST=hooks.target.max_vector_width, WT_IMAGE=bool(image),
            wt_whole=not image and read_whole(tile, hooks.target))
        stem = f"conv_{tile.rows}x{tile.vectors}x{tile.width}"
        arguments: tuple[Argument, ...] = (x, weights, *epilogue.nodes, hooks.group.root)
        return [*before, Emitted(stem, body, arguments, (hooks.group.root,),
                                 {**params, **epilogue.sizes}, sizes, local, images=image)]
