"""Depthwise convolution on GPUs that stage tiles: strips of columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from jitcl.ir.group import Group
from jitcl.ir.size_ranges import hints, parameters
from jitcl.ir.sizes import has_size
from jitcl.ir.types import ROW
from jitcl.templates.base import ENTRY, Emitted, Match, OpenClHooks, Packed
from jitcl.templates.convolution import ConvShape, shape_of
from jitcl.templates.gemm_opencl.product import counter, fits_int, unfused
from jitcl.templates.opencl.tiling import GROUP
from jitcl.templates.opencl.window import in_quads

ROWS = (7, 4, 2, 1)            # pictures of 224 have rows of 7, 14, 28, 56 and 112
MOST_TAPS = 49                 # whose weights are in registers
MOST_READ = 32                 # rows of the input that a strip reads


@dataclass(frozen=True)
class Strip(Match):
    """Rows of a column that a work-item computes."""

    rows: int


def strips(group: Group) -> tuple[Strip, ...]:
    """Best first, of a conv of one channel a group by a constant; () where that is not read from
    a buffer, or is of a size that is not known."""
    node = group.anchor
    assert node is not None
    s, x = shape_of(node), node.inputs[0]
    if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
        return ()
    if any(has_size(n.type.dims) for n in (node, x)) or 0 in (node.type.size, x.type.size):
        return ()
    if x not in group.operands or node.type.dtype not in ("f32", "f16") or not fits_int(
            node.type.size, x.type.size):
        return ()
    if s.kernel[0] * s.kernel[1] > MOST_TAPS:
        return ()
    return tuple(Strip(n) for n in ROWS if n <= s.out[0] and len(read(s, n)) <= MOST_READ)


def read(s: ConvShape, rows: int) -> dict[int, list[tuple[int, int]]]:
    """Rows of the input, counted from the first tap on -> those that are made of it: (row, row of
    the window), in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in range(rows):
        for ky in range(s.kernel[0]):
            found.setdefault(row * s.strides[0] + ky * s.dilations[0], []).append((row, ky))
    return dict(sorted(found.items()))


def emit_strips(match: Strip, hooks: OpenClHooks) -> list[Emitted]:
    """The kernel; two where what is fused behind can't be written."""
    (x, w), s = hooks.anchor.inputs, shape_of(hooks.anchor)
    hooks = hooks.lifting(x)
    space = (counter("h", s.out[0]), counter("w", s.out[1]))[4 - x.type.rank:]
    epilogue = hooks.epilogue_lines((counter("image", s.n), counter("m", s.k), *space), 1)
    if epilogue is None:
        return unfused(hooks, lambda alone: emit_strips(match, alone))
    numbers = dict(
        PLANES=s.n * s.k, CHANNELS=s.k, HEIGHT=s.size[0], WIDTH=s.size[1], OH=s.out[0],
        OW=s.out[1], TURNS=-(-s.out[0] // match.rows))
    numbers = {name: hooks.number(n) for name, n in numbers.items()}
    sizes = parameters(*numbers.values(), *epilogue.sizes.values()) | epilogue.sizes
    kh, kw = s.kernel
    quads = -(-kh * kw // 4)
    body = hooks.render(
        "depthwise_opencl/strips.cl.j2", entry=ENTRY, epilogue=epilogue, sizes=sizes, HALF=False,
        ROWS=match.rows, READ=read(s, match.rows), KW=kw, QUADS=quads, SH=s.strides[0],
        SW=s.strides[1], DW=s.dilations[1], TOP=s.pads[0], LEFT=s.pads[1], COPIES=s.k // s.c,
        x_type=hooks.ctype(x.type.dtype), w_type=hooks.ctype(w.type.dtype),
        multiply_add=hooks.target.multiply_add, **numbers)
    weights = Packed(w, f"1 lines of taps in {quads} quads",
                     partial(in_quads, lines=1, quads=quads))
    items = s.n * s.k * -(-s.out[0] // match.rows) * s.out[1]
    local = min(GROUP, hooks.target.max_work_group)
    root = hooks.group.root
    return [Emitted(f"depthwise_{kh}x{kw}x{match.rows}", body,
                    (x, weights, *epilogue.nodes, root), (root,), hints(sizes),
                    (-(-items // local) * local,), (local,))]
