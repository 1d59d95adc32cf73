"""The launch of a matrix product over operands that lie ready: what matmul and conv share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.enclosure import FLUSHED
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.size_ranges import divisor
from jitcl.ir.sizes import at_least_always, is_size
from jitcl.ir.types import TensorType
from jitcl.templates.base import (
    ENTRY,
    Argument,
    Emitted,
    Epilogue,
    OpenClHooks,
    Packed,
    with_main,
)
from jitcl.templates.gemm_opencl.codes import Coded, overlapping
from jitcl.templates.opencl.memory import piece
from jitcl.templates.opencl.tiling import GROUP, MAX_INDEX, Tile, image_of, read_whole, spread

HALVES, FLOATS = 8, 4          # of a vector that Mali and Adreno read at once


@dataclass(frozen=True)
class Operand:
    """A matrix, or one for each image, in memory. `image`: elements from one to the next."""

    argument: Argument
    packed: bool                                 # in the tiles or panels of the kernel
    image: int
    period: int = 1                              # of A: images that have matrices of their own
    coded: Coded | None = None                   # B: what its elements are made of

    @property
    def dtype(self) -> str:
        """Of its elements; packed constants keep theirs, codes lie in words."""
        if self.coded is not None:
            return "u32"
        if isinstance(self.argument, Packed):
            return self.argument.node.type.dtype
        return self.argument.type.dtype if isinstance(self.argument, Node) else self.argument.dtype


@dataclass(frozen=True)
class Product:
    """`batch` products of [m, k] and [k, n]. `index`: the root's logical index of lane 0 of the
    vector at (image, m, n); `types`: the shapes that the index is in, where not the root's own.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Callable[[Tile], tuple[list[Emitted], Operand]]
    b: Callable[[Tile], tuple[list[Emitted], Operand]]
    index: Callable[[Expr, Expr, Expr], tuple[Expr, ...]]
    types: dict[Node, TensorType] | None = None


def emit_product(p: Product, tile: Tile, hooks: OpenClHooks) -> list[Emitted]:
    """The kernels of a product: operands arranged where needed, then the product itself."""
    places = (counter("image", p.batch), counter("m", p.m), counter("n", p.n))
    written = epilogues(hooks, p.index(*places), tile.width, "n", p.n, p.types)
    if written is None:
        return unfused(hooks, lambda alone: emit_product(p, tile, alone))
    epilogue, single = written
    if tile.registers > hooks.target.registers:      # choose_tiles had some to spare
        epilogue = dataclasses.replace(epilogue, rows_apart=True)
    if epilogue.rows_apart:          # it leaves no registers for a place in a group: 43 of a G720
        tile = dataclasses.replace(tile, slices=1)
    parts, lone = 1, tile.rows == tile.vectors == 1 and single is None
    if epilogue.rows_apart and lone and tile.width == FLOATS:    # no rows: halves of the vector are
        halved = epilogues(hooks, p.index(*places), tile.width // 2, "n", p.n, p.types)
        if halved is not None:
            epilogue, parts = halved[0], 2
    columns = math.gcd(tile.width, divisor(p.n))     # the last vector of a row overlaps
    before, a = p.a(tile)
    more, b = p.b(tile)
    aligned = piece(tile.width, hooks.target, 0 if b.packed else columns)
    steps = steps_at_once(p.k, tile.rows if a.packed or b.coded else 2, hooks)
    run = tile.rows * (1 if hooks.half else steps)
    a_image = image_of(a.argument, a.image * a.period, run, hooks.target)
    b_image = () if b.coded else image_of(b.argument, b.image * p.batch, tile.width, hooks.target)
    slices = tile.slices
    if hooks.half and (a_image or aligned < tile.width):         # more would take registers
        steps = 1
    coded, at_once, turn = b.coded, steps, steps
    if coded is not None:
        at_once, steps, turn = math.gcd(max(steps, 2), coded.terms), coded.terms, coded.together
    beside = () if coded is None else coded.beside
    arguments: tuple[Argument, ...] = (
        a.argument, b.argument, *(s for *_, s in beside), *epilogue.nodes, hooks.group.root)
    m_tiles, n_tiles = -(-p.m // tile.rows), -(-p.n // tile.span)
    sizes, local = spread(n_tiles, m_tiles, p.batch, hooks.target, slices)
    params = dict(
        m_tiles=m_tiles, n_tiles=n_tiles, m_count=p.m, n_count=p.n, k_count=p.k, a_image=a.image,
        a_tile=p.k * tile.rows, a_period=a.period, b_image=b.image,
        b_panel=tile.span * (p.k if coded is None else n_tiles))
    if slices > 1:
        params["k_part"] = -(-p.k // (slices * turn)) * turn
    if coded is not None:
        params["quad"] = at_once * dtypes.itemsize(a.dtype)
    body = hooks.render(
        "gemm_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, params=params, ROWS=tile.rows,
        single=single, FEW_ROWS=is_size(p.m) and not at_least_always(p.m, tile.rows),
        FEW_COLUMNS=single is not None, SPAN=tile.span, HALF=hooks.half, STEPS=steps, RUN=at_once,
        FLUSHED=FLUSHED if coded is None else turn, coded=coded,
        beside=[(name, hooks.ctype(dtype)) for name, dtype, _ in beside],
        PAIRS=(coded is None and steps % 2 == 0 and tile.vectors == 1 and b.packed and not b_image
               and 2 * tile.span <= HALVES and single is None),
        VECTORS=tile.vectors, W=tile.width, a_packed=a.packed, a_type=hooks.ctype(a.dtype),
        b_packed=b.packed, b_type=hooks.ctype(b.dtype), multiply_add=hooks.target.multiply_add,
        A_IMAGE=bool(a_image), B_IMAGE=bool(b_image),
        a_whole=a.packed and not a_image and (steps > 1 or read_whole(tile, hooks.target)),
        b_aligned=aligned, SLICES=slices > 1, ITEMS=GROUP, PARTS=parts)
    stem = f"gemm_{tile.rows}x{tile.vectors}x{tile.width}"
    if coded is not None:
        stem = f"gemm_{coded.bits}bit_{tile.rows}x{tile.width}"
    return [*before, *more, Emitted(stem, body, arguments, (hooks.group.root,),
                                    {**params, **epilogue.sizes},
                                    sizes, local,
                                    images=(*a_image, *b_image))]


def steps_at_once(k: int, rows: int, hooks: OpenClHooks) -> int:
    """Terms of a turn of a GPU's loop, whose elements of A, of `rows` rows, are read as one vector:
    a divisor of k. Counters and pointers move once for them."""
    target = hooks.target
    if target.device_type == "cpu":
        return 1
    most = min(HALVES if hooks.half else FLOATS, target.max_vector_width)
    return math.gcd(divisor(k), max(1, most // rows))


def epilogues(hooks: OpenClHooks, ix: tuple[Expr, ...], width: int, column: str, columns: int,
              types: dict[Node, TensorType] | None = None
              ) -> tuple[Epilogue, Epilogue | None] | None:
    """(what stores a vector of a row, what stores one element where a row of a length that is not
    known may be shorter than that); None where that can't be written as vectors. `column`: the
    variable of lane 0.
    """
    aligned = {column: math.gcd(width, divisor(columns))}
    whole = hooks.epilogue_lines(ix, width, types, aligned)
    if width == 1 or not is_size(columns) or at_least_always(columns, width):
        return None if whole is None else (whole, None)
    single = hooks.epilogue_lines(ix, 1, types)
    return None if whole is None or single is None else (whole, single)


def unfused(hooks: OpenClHooks, emit: Callable[[OpenClHooks], list[Emitted]]) -> list[Emitted]:
    """The anchor alone into temporary memory, its epilogue as generated loops."""
    value, alone, finish = hooks.separate_epilogue()
    anchor = alone.group.root

    def moved(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(value if a is anchor else a for a in arguments)

    kernels = [dataclasses.replace(e, arguments=moved(e.arguments), writes=moved(e.writes))
               for e in with_main(emit(alone))]
    return [*kernels, finish]


def counter(name: str, extent: int) -> Expr:
    """The kernel's variable for an axis; 0 where the axis has one place."""
    return E.index(0) if extent == 1 else E.var(name, extent=extent)


def fits_int(*sizes: int) -> bool:
    """Whether buffers of so many elements can be indexed by int."""
    return max(sizes) < MAX_INDEX


def pack_rows(a: np.ndarray, rows: int) -> np.ndarray:
    """[image, M, K] -> [image, M / rows, K, rows]."""
    tiles = a[:, overlapping(a.shape[1], rows)]
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2))


def column_numbers(n: int, tile: Tile) -> np.ndarray:
    """The column of each place in the panels, [panels, span]: vectors overlap at the edge."""
    panels = -(-n // tile.span)
    first = np.minimum(np.arange(panels * tile.vectors) * tile.width, n - tile.width)
    return (first[:, None] + np.arange(tile.width)).reshape(panels, tile.span)


def pack_columns(b: np.ndarray, tile: Tile) -> np.ndarray:
    """[image, K, N] -> [image, panels, K, span]."""
    panels = b[:, :, column_numbers(b.shape[2], tile)]
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))
