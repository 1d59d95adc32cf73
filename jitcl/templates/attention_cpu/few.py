"""Attention of few query rows, as when a text is written token by token: a matter of bytes.

Keys and values are read where they lie, of a cache and of what is new one after the other. Blocks
of keys are tasks of their own, whose sums a second kernel puts together (Dao et al., 2023,
"Flash-Decoding for long-context inference"); they depend on the number of keys alone, so that
results are the same for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import is_size
from jitcl.target import Target
from jitcl.templates.attention import Index, pieces
from jitcl.templates.base import ENTRY, Argument, CpuHooks, Emitted, Lines, Match, Scratch
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.cpu.tiling import fits
from jitcl.templates.gemm_cpu.template import Writer
from jitcl.templates.matmul import Shape

MOST_ROWS = 8
HEIGHTS = (4, 2, 1)                 # rows at a time, of a number that is not known
FEWEST_LANES = 4
FLOATS = ("f32", "f16", "bf16")     # that rows are read from
BLOCK = 256                 # keys of a task; places in a cache come in multiples of it


@dataclass(frozen=True)
class Few(Match):
    """Lanes of the vectors along keys' and values' rows."""

    key_lanes: int
    value_lanes: int


@dataclass(frozen=True)
class Part:
    """Rows `first` to `end` of an operand of each image, as a kernel's text has them: those of
    image i begin at element `base` of a buffer, `pitch` apart."""

    name: str
    node: Argument
    dtype: str
    first: str
    end: str
    base: str
    pitch: str


def few_of(scores: Shape, result: Shape, target: Target) -> Few | None:
    """None where there are more rows, or rows that are no whole vectors."""
    many = not is_size(scores.m) and scores.m > MOST_ROWS
    lanes = [_lanes(n, target) for n in (scores.k, result.n)]
    return None if many or min(lanes) < FEWEST_LANES else Few(*lanes)


def _lanes(n: int, target: Target) -> int:
    return 1 if is_size(n) else max(
        w for w in (1, 2, 4, 8, 16) if w <= target.vector_width and n % w == 0)


def emit(match: Few, scores: Writer, result: Writer, guarded: bool, hooks: CpuHooks
         ) -> list[Emitted] | None:
    """The kernels of both products; None where an epilogue is no function of whole vectors. hooks:
    of the chain."""
    s, r, width = scores.s, result.s, scores.width
    heights, vectors = HEIGHTS if is_size(s.m) else (s.m,), r.n // match.value_lanes
    blocks = {h: max(b for b in range(1, 9) if b == 1 or (
        vectors % b == 0 and fits(h, b, hooks.target))) for h in heights}
    score_lines = scores.hooks.row_epilogue(width, "s")
    lines = result.hooks.row_epilogue(match.value_lanes)
    if score_lines is None or lines is None:
        return None
    emitted: list[Emitted] = []

    def images(product: Writer, i: Expr) -> list[Expr]:
        return product.operand_index(product.b, i, E.index(0))[:-1]

    (query,) = _parts(scores, scores.a, s.m, s.k, lambda i, row, d: (
        *scores.operand_index(scores.a, i, row), d), "q", emitted, whole=True)
    keys = _parts(scores, scores.b, s.n, s.k, lambda i, row, d: (
        *images(scores, i), d, row), "k", emitted)
    values = _parts(result, result.b, r.k, r.n, lambda i, row, d: (
        *images(result, i), row, d), "v", emitted)
    several = is_size(s.n) or s.n > BLOCK
    rows = MOST_ROWS if is_size(s.m) else s.m
    parts = Scratch("sums of blocks of keys", "f32", (s.batch, rows, -(-s.n // BLOCK), r.n + 2))
    root = result.group.root
    y, some = ("y", root.type.dtype, root), ("parts", "f32", parts)
    stem = f"attention_{heights[0]}_rows"
    common = dict(
        entry=ENTRY, params=("batch", "m_count", "count"), HEIGHTS=heights, D=s.k, VN=r.n,
        K=match.key_lanes, V=match.value_lanes, VB=blocks, W=width, BLOCK=BLOCK,
        STRIDE=BLOCK + width, SEVERAL=several, guarded=guarded, lines=lines,
        score_lines=score_lines, query=query, keys=keys, values=values)

    def kernel(file: str, stem: str, given: list[tuple[str, str, Argument]],
               stored: tuple[str, str, Argument], *read: tuple[Lines, CpuHooks]) -> Emitted:
        """Of a file; `read` are lines and the hooks that name what they read."""
        own = [(part.names[n], n.type.dtype, n) for text, part in read
               for n in operands_of(text, part)]
        buffers = [*given, *own, stored]
        body = hooks.render(
            f"attention_cpu/{file}", buffers=[b[:2] for b in buffers],
            operands=[b[:2] for b in own], **common)
        params = {"batch": s.batch, "m_count": s.m, "count": s.n} | hooks.sizes.params()
        return Emitted(stem, body, tuple(b[2] for b in buffers), (stored[2],), params)

    given = [(p.name, p.dtype, p.node) for p in (query, *keys, *values)]
    if not several:
        read = (score_lines, scores.hooks), (lines, result.hooks)
        return [*emitted, kernel("few.py.j2", stem, given, y, *read)]
    sums = kernel("few.py.j2", stem, given, some, (score_lines, scores.hooks))
    return [*emitted, replace(sums, main=1),
            kernel("parts.py.j2", f"{stem}_whole", [some], y, (lines, result.hooks))]


def _parts(product: Writer, node: Node, rows: int, columns: int, index: Index, name: str,
           emitted: list[Emitted], whole: bool = False) -> list[Part]:
    """Where rows and columns of each image of an operand lie, which has them at an `index`."""
    hooks, batch = product.hooks, product.s.batch
    found = pieces(hooks, node, E.var("i", extent=batch), (batch, rows, columns), index, name,
                   emitted, FLOATS, whole)
    return [Part(f"{name}{k}", p.node, p.dtype, *map(hooks.text, (
        E.index(p.first), E.index(p.end), p.base, E.index(p.pitch)))) for k, p in enumerate(found)]
