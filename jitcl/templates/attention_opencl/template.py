"""Attention on GPUs in one kernel, or two where keys are dealt out to groups: scores, their softmax
and its product with the values, without the scores in memory.

Of few queries all scores of a group's keys exist at once, and a second kernel joins the groups'
sums (Dao et al., 2023, "Flash-Decoding for long-context inference"). Else rows keep the largest
score so far and the sum of powers less it, and scale what they summed where it grows (Milakov and
Gimelshein, 2018, "Online normalizer calculation for softmax"; Rabe and Staats, 2021,
"Self-attention does not need O(n^2) memory"; Dao et al., 2022, "FlashAttention").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor, hints, parameters, require
from jitcl.ir.sizes import has_size, is_size
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.attention import Piece, pattern, pieces
from jitcl.templates.base import (
    ENTRY,
    Argument,
    Emitted,
    Epilogue,
    Loader,
    Match,
    OpenClHooks,
    Scratch,
    Template,
)
from jitcl.templates.gemm_opencl.product import counter, fits_int
from jitcl.templates.gemm_tensor_opencl.template import RUN, WARP, plain
from jitcl.templates.gemm_tiled_opencl.template import (
    JOIN,
    QUAD,
    Product,
    Side,
    matmul,
    side,
)
from jitcl.templates.matmul import Shape
from jitcl.templates.opencl.tiling import MAX_INDEX, spread

MOST_HEAD = 256                # of a head: beyond it sums fill the registers
ROW_GROUPS = 8                 # work-items of a column of a group
DEPTH, KEYS = 32, 16           # of keys and values in local memory at once
ITEMS = 512                    # work-items a core that keep it busy, without local memory
LEAST_PART = 16                # keys of a part
MAX_SPLITS = 32
FEW_ROWS = 8                   # queries: without local memory, more are products' task
FEW_KEYS = (256, 128)          # of a group of as many work-items, for few queries
LEAST_KEYS = 64                # where there is no room for these
LANES = 4                      # work-items that share a key's elements
FLOATS = ("f32", "f16")        # that keys and values are read from
REGISTERS = 200                # of a lane, for what tensor cores take and leave


@dataclass(frozen=True)
class Form(Match):
    """`form` "tensor": `rows` are 16s of a warp, `columns` keys of a step, `warps` of a group,
    `stages` steps in local memory at once. "tiles": `rows` and `columns` of a work-item's scores.
    "rows": `rows` and keys at a time of a work-item. "few": all `rows` and `columns` keys of a
    group. `splits`: parts that keys are dealt out in (of "few" as many as it takes).
    """

    form: str
    rows: int
    columns: int
    warps: int = 1
    stages: int = 1
    splits: int = 1


@dataclass(frozen=True)
class Heads:
    """The two products of a chain, whether rows of NaN are zeros, and whether keys or values are
    concatenated within."""

    scores: Product
    result: Product
    guarded: bool
    concatenated: bool

    @property
    def batch(self) -> int:
        return self.scores.batch

    @property
    def m(self) -> int:
        """Queries."""
        return self.scores.m

    @property
    def n(self) -> int:
        """Keys."""
        return self.scores.n


class AttentionOpenCl(Template[Form, OpenClHooks]):
    """matmul, softmax along its rows, matmul; with epilogues of both products. What is stored is
    f32 or f16; sums and powers are f32, but for the powers that tensor cores multiply: halves,
    where the softmax would be stored so.
    """

    name = "attention_opencl"
    length = 3
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Form, ...]:
        """Numbers of images and keys may be open, for few queries."""
        a = heads_of(group)
        if a is None or target.device_type == "cpu":
            return ()
        if has_size((a.m, a.scores.k, a.result.n)) or max(a.scores.k, a.result.n) > MOST_HEAD:
            return ()
        few = few_forms(a, target)
        if a.concatenated or has_size((a.batch, a.n)):
            return few
        if not target.stages_tiles:
            return rows_forms(a, target) or few
        found = few + tiles_forms(a, target)
        first, softmax, last = group.parts
        halves = (softmax.root.type.dtype == "f16" and plain(first, a.scores.nodes)
                  and plain(last, a.result.nodes[1:]))
        if target.tensor_cores and halves and a.m > FEW_ROWS:
            return tensor_forms(a, target) + found
        return found

    def emit(self, match: Form, hooks: OpenClHooks) -> list[Emitted] | None:
        a = heads_of(hooks.group)
        assert a is not None
        return _Writer(a, match, hooks).emit()


def heads_of(chain: Group) -> Heads | None:
    """The products of a chain that the template computes; None of any other."""
    found = pattern(chain, _shape)
    if found is None:
        return None
    first, _, last = chain.parts
    assert first.anchor is not None and last.anchor is not None
    scores, result = matmul(first.anchor), matmul(last.anchor)
    if scores is None or result is None:
        return None
    sizes = (MAX_SPLITS * last.anchor.type.size, *(n.type.size for n in chain.operands))
    if not fits_int(*hints(sizes)):
        return None
    return Heads(scores, result, found.guarded, any(n.op == "concat" for n in chain.members))


def _shape(group: Group) -> Shape | None:
    """The product that a group is."""
    node = group.anchor
    if node is None or node.op != "matmul" or group.root.type.dims != node.type.dims:
        return None
    if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
        return None
    if 0 in (node.type.size, *(i.type.size for i in node.inputs)):
        return None
    return Shape.of(node) if min(i.type.rank for i in node.inputs) > 1 else None


# ---- candidates

def few_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Up to FEW_ROWS queries. Best first: the largest groups of which there is one a core; where
    there are fewer groups, the most."""
    if a.m > FEW_ROWS or a.scores.k % QUAD or a.result.n % QUAD or not target.local_works:
        return ()
    batch, n = hints((a.batch, a.n))

    def fits(keys: int) -> bool:
        room = _few_bytes(a, keys) <= target.local_memory and keys <= target.max_work_group
        return room and QUAD * keys >= a.result.n and QUAD <= target.max_vector_width

    found = [Form("few", a.m, keys, splits=-(-n // keys))
             for keys in [*filter(fits, FEW_KEYS)] or filter(fits, (LEAST_KEYS,))]
    return tuple(sorted(found, key=lambda f: max(0, target.compute_units - batch * f.splits)))


def _few_bytes(a: Heads, keys: int) -> int:
    """Of the form "few" in local memory, at most."""
    sums = max(LANES * (keys + 8), QUAD * keys, 8 * keys if a.m <= QUAD else 0)
    return 4 * a.m * (a.scores.k + keys + sums + max(16, 8 * keys // a.result.n)) + 64



def tensor_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Best first: the largest groups of which there is one a core, with as many keys as fit; where
    there are fewer groups, the most."""
    depth, width = _padded(a.scores.k), _padded(a.result.n)
    found = []
    for rows, warps in ((2, 4), (1, 4), (1, 2), (1, 1)):
        for columns in (64, 32, 16):
            form = Form("tensor", rows, columns, warps, 2)
            held = rows * (depth // 4 + width // 2 + columns // 2)
            fits = _tensor_bytes(a, form)[0] <= target.local_memory and held <= REGISTERS
            if fits and warps * WARP <= target.max_work_group:
                found.append(form)
                break
    return tuple(sorted(found, key=lambda f: max(
        0, target.compute_units - _groups(a, 16 * f.rows * f.warps))))


def tiles_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Best first by `tiles_time`: of each number of rows keys dealt out as suits it best, and
    whole."""
    found = list[Form]()
    for rows in (8, 4, 2, 1):
        t = Tiles.of(a, rows)
        if t.local > target.local_memory or t.items > target.max_work_group:
            continue
        if rows > 1 and ROW_GROUPS * rows >= 2 * a.m:
            continue
        steps = -(-a.n // t.keys)
        parts = {-(-steps // -(-steps // n)) for n in range(1, min(MAX_SPLITS, steps) + 1)}
        forms = [Form("tiles", rows, 4, splits=n) for n in sorted(parts)]
        best = min(forms, key=lambda f: tiles_time(a, f, target))
        found += dict.fromkeys((best, forms[0]))
    return tuple(sorted(found, key=lambda f: tiles_time(a, f, target)))


def tiles_time(a: Heads, f: Form, target: Target) -> float:
    """Microseconds of the form "tiles" on a H100, within a fifth for heads of 64 (12 to 16 heads,
    128 to 2048 queries): others are told apart by it. A step takes a group alone `alone`, and a
    core that has many groups `shared`, for each.
    """
    steps = -(-a.n // (Tiles.of(a, f.rows).keys * f.splits))
    groups = _groups(a, ROW_GROUPS * f.rows) * f.splits / target.compute_units
    alone, shared = steps * (3.2 + 0.45 * f.rows), steps * (0.85 + 0.024 * f.rows ** 2)
    join = 7 + 8 * f.splits * a.batch * a.m * a.result.n / 3e6 if f.splits > 1 else 0.0
    return max(alone, groups * shared) + shared * (math.ceil(groups) - 1) / 2 + join


def rows_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Few queries, whose keys are dealt out to work-items."""
    if a.m > FEW_ROWS or a.scores.k % QUAD or a.result.n % QUAD or target.max_vector_width < QUAD:
        return ()
    wanted = ITEMS * target.compute_units // (a.batch * a.m)
    part = max(LEAST_PART, -(-a.n // max(1, wanted)))
    found = [Form("rows", rows, keys, splits=-(-a.n // (-(-part // keys) * keys)))
             for rows, keys in ((1, 8), (2, 4), (1, 4)) if rows <= a.m]
    return tuple(f for f in found if f.splits <= -(-a.n // LEAST_PART))


def _groups(a: Heads, rows: int) -> int:
    return a.batch * -(-a.m // rows)


def _padded(size: int) -> int:
    """What tensor cores multiply 16 of."""
    return -(-size // 16) * 16


def _pitch(halves: int) -> int:
    """As in opencl/tensor.j2."""
    return halves if halves % 64 == 0 or halves == 32 else halves + 8


def _bytes(by_k: bool, tile: int, terms: int) -> int:
    """Of a step of an operand in local memory."""
    return 2 * (tile * _pitch(terms) if by_k else terms * _pitch(tile))


def _tensor_bytes(a: Heads, f: Form, turned: tuple[bool, bool, bool] | None = None
                  ) -> tuple[int, int, int]:
    """(in all, of a step, of its keys). turned: whether terms of queries, keys and values are
    neighbours; None: whichever takes most."""
    depth, width, rows = _padded(a.scores.k), _padded(a.result.n), 16 * f.rows * f.warps
    tiles = (rows, depth), (f.columns, depth), (width, f.columns)
    q, k, v = (max(_bytes(w, *tile) for w in ((True, False) if turned is None else (turned[i],)))
               for i, tile in enumerate(tiles))
    return max(q, f.stages * (k + v)), k + v, k


@dataclass(frozen=True)
class Tiles:
    """Numbers of the form "tiles": see tiles.cl.j2."""

    rows: int
    columns: int               # work-items of a row
    depth: int
    head: int                  # of queries

    @staticmethod
    def of(a: Heads, rows: int) -> Tiles:
        columns = 1 << (-(-a.result.n // 8) - 1).bit_length()
        return Tiles(rows, columns, min(DEPTH if columns <= 16 else DEPTH // 2, a.scores.k),
                     a.scores.k)

    @property
    def items(self) -> int:
        return ROW_GROUPS * self.columns

    @property
    def keys(self) -> int:
        """Of a step."""
        return 4 * self.columns

    @property
    def values(self) -> int:
        """In local memory at once."""
        return min(KEYS if self.columns <= 16 else KEYS // 2, self.keys)

    @property
    def width(self) -> int:
        """Of sums, padded."""
        return 8 * self.columns

    @property
    def vector(self) -> int:
        """Rows that are read at once."""
        return min(4, self.rows)

    @property
    def tile(self) -> int:
        """Elements."""
        return max(self.depth * (self.keys + 4), self.values * (self.width + 4))

    @property
    def local(self) -> int:
        """Bytes."""
        row = ROW_GROUPS * self.rows + 4
        return 4 * ((self.head + self.keys + self.columns) * row + self.tile) + 64


# ---- text

@dataclass(frozen=True)
class Lying:
    """An operand that is read where it lies: (buffer, where an image begins, pitch, first row, row
    behind the last) of its pieces, all of one type; `run`: neighbours that are aligned."""

    pieces: tuple[tuple[str, str, int, int, int], ...]
    ctype: str
    run: int
    nodes: tuple[Node, ...]
    copies: Mapping[Scratch, str]
    sizes: Mapping[str, int]
    helpers: tuple[str, ...] = ()


def lying(name: str, hooks: OpenClHooks, found: Sequence[Piece]) -> Lying | None:
    """None where pieces have several types."""
    nodes = tuple(p.node for p in found if isinstance(p.node, Node))
    copies: dict[Scratch, str] = {
        p.node: f"{name}_copy{k}" for k, p in enumerate(found) if isinstance(p.node, Scratch)}
    ctypes = {hooks.ctype(p.dtype) for p in found}
    if len(ctypes) > 1:
        return None
    run, sizes, written = 8, dict[str, int](), []
    for p in found:
        terms, constant = E.linear(p.base)
        run = math.gcd(run, *map(divisor, (constant, p.pitch, *terms.values())))
        base, read = hooks.text(p.base)
        sizes |= {**read, **parameters(p.pitch, p.end)}
        assert isinstance(p.node, (Node, Scratch))
        buffer = hooks.names[p.node] if isinstance(p.node, Node) else copies[p.node]
        written.append((buffer, base, p.pitch, p.first, p.end))
    return Lying(tuple(written), ctypes.pop(), run, nodes, copies, sizes)



class _Writer:
    def __init__(self, a: Heads, form: Form, hooks: OpenClHooks) -> None:
        self.a, self.f, self.hooks, self.root = a, form, hooks, hooks.group.root
        first, _, last = (dataclasses.replace(part, compute="f32") for part in hooks.group.parts)
        self.before, self.after = hooks.part(first, "x"), hooks.part(last, "z")
        self.splits = -(-a.n // form.columns) if form.form == "few" else form.splits
        self.part = -(-a.n // form.splits)
        self.plain = first.root is first.anchor

    def emit(self) -> list[Emitted] | None:
        score = None if self.plain else self.before.value_lines(
            self.a.scores.c(*self.places(self.a.scores)))
        if score is None and not self.plain:
            return None
        return {"tensor": self.tensor, "tiles": self.tiles, "rows": self.rows,
                "few": self.few}[self.f.form](score)

    def places(self, p: Product) -> tuple[Expr, Expr, Expr]:
        return counter("image", p.batch), counter("m", p.m), counter("n", p.n)

    def epilogue(self, width: int) -> Epilogue | None:
        p = self.a.result
        aligned = {"n": width, "at": width}
        return self.after.epilogue_lines(p.c(*self.places(p)), width, None, aligned)

    def sides(self, rows: int, columns: int, width: int, steps: tuple[int, int, int], run: int
              ) -> tuple[Side, Side, Side]:
        """How tiles of queries, keys and values come."""
        scores, result = self.a.scores, self.a.result
        return (side(scores, self.before, 0, rows, steps[0], run, 1),
                side(scores, self.before, 1, columns, steps[1], run, 1),
                side(result, self.after, 1, width, steps[2], run, 1))

    def rendered(self, file: str, score: Loader | None, sides: tuple[Side | Lying, ...],
                 epilogue: Epilogue | None, **numbers: object) -> tuple[str, tuple[Argument, ...]]:
        """(the kernel's text, the operands that it reads)"""
        q, k, v = sides
        a, hooks = self.a, (self.before, self.after)
        read = (dict.fromkeys((*q.nodes, *k.nodes, *(score.nodes if score else ()))),
                dict.fromkeys((*v.nodes, *(epilogue.nodes if epilogue else ()))))
        copies = {x: name for s in sides if isinstance(s, Lying) for x, name in s.copies.items()}
        sources = [(h.names[n], h.ctype(n.type.dtype)) for h, nodes in zip(hooks, read)
                   for n in nodes]
        sources += [(name, self.before.ctype(x.dtype)) for x, name in copies.items()]
        helpers = dict.fromkeys(x for s in (*sides, score) if s is not None for x in s.helpers)
        text = self.hooks.render(
            f"attention_opencl/{file}.cl.j2", entry=ENTRY, HALF=False, q=q, k=k, v=v, score=score,
            epilogue=epilogue, sources=sources, helpers=list(helpers), GUARDED=a.guarded,
            BATCH=a.batch, M=a.m, N=a.n, D=a.scores.k, E=a.result.n, **numbers)
        return text, (*(n for nodes in read for n in nodes), *copies)

    def tensor(self, score: Loader | None) -> list[Emitted] | None:
        a, f = self.a, self.f
        pair = 2 - a.result.n % 2
        epilogue = self.epilogue(pair)
        if epilogue is None:
            return None
        depth, width, rows = _padded(a.scores.k), _padded(a.result.n), 16 * f.rows * f.warps
        sides = self.sides(rows, f.columns, width, (depth, depth, f.columns), RUN)
        q, k, v = sides
        local, stage, of_keys = _tensor_bytes(a, f, (q.by_k, k.by_k, v.by_k))
        items, tiles = WARP * f.warps, -(-a.m // rows)
        body, operands = self.rendered(
            "tensor", score, sides, epilogue, T=items, MT=f.rows, BM=rows, BN=f.columns, DP=depth,
            EP=width, STAGES=f.stages, LOCAL=local, STAGE=stage, K_BYTES=of_keys, M_TILES=tiles,
            PAIR=pair, RAGGED=a.n % f.columns > 0)
        return [Emitted(f"attention_tensor_{rows}x{f.columns}", body, (*operands, self.root),
                        (self.root,), {}, (a.batch * tiles * items,), (items,))]

    def tiles(self, score: Loader | None) -> list[Emitted] | None:
        a, t, whole = self.a, Tiles.of(self.a, self.f.rows), self.f.splits == 1
        widths = (QUAD, 1) if a.result.n % QUAD == 0 else (1,)
        found = [(e, v) for v in widths if (e := self.epilogue(v)) is not None]
        if not found:
            return None
        epilogue, v = found[0] if whole else (None, widths[0])
        rows = ROW_GROUPS * t.rows
        sides = self.sides(rows, t.keys, t.width, (a.scores.k, t.depth, t.values), QUAD)
        tiles, part = -(-a.m // rows), -(-self.part // t.keys) * t.keys
        body, operands = self.rendered(
            "tiles", score, sides, epilogue, T=t.items, TM=t.rows, W=t.vector, C=t.columns,
            BN=t.keys, DK=t.depth, VK=t.values, EP=t.width, TILE=t.tile, PART=part, M_TILES=tiles,
            SPLITS=self.f.splits, V=v)
        stem, size = f"attention_{rows}x{t.keys}", (a.batch * tiles * self.f.splits * t.items,)
        if whole:
            return [Emitted(stem, body, (*operands, self.root), (self.root,), {}, size, (t.items,))]
        return self.joined(stem, body, operands, size, (t.items,))

    def rows(self, score: Loader | None) -> list[Emitted] | None:
        a, f = self.a, self.f
        sides = self.sides(1, 1, QUAD, (QUAD, QUAD, 1), QUAD)
        along = tuple(s.run == QUAD and s.by_k == by_k for s, by_k in zip(sides, (1, 1, 0)))
        if not all(along):
            return None
        part = -(-self.part // f.columns) * f.columns
        body, operands = self.rendered("rows", score, sides, None, R=f.rows, B=f.columns, PART=part,
                                       SPLITS=f.splits)
        size, local = spread(f.splits, -(-a.m // f.rows), a.batch, self.hooks.target)
        return self.joined(f"attention_{f.rows}x{f.columns}", body, operands, size, local)

    def few(self, score: Loader | None) -> list[Emitted] | None:
        a, t, emitted = self.a, self.f.columns, list[Emitted]()
        several, image = is_size(a.n) or self.splits > 1, counter("image", a.batch)
        for node in (self.root, *self.hooks.group.operands):
            require(MAX_INDEX - 1, node.type.size)
        require(MAX_INDEX - 1, self.splits * a.batch * a.m * a.result.n)
        query = side(a.scores, self.before, 0, a.m, 1, 1, 1)
        keys = lying("k", self.before, pieces(
            self.before, a.scores.nodes[1], image, (a.batch, a.n, a.scores.k),
            lambda i, row, d: tuple(a.scores.b(i, row, d)[0]), "k", emitted, FLOATS))
        values = lying("v", self.after, pieces(
            self.after, a.result.nodes[1], image, (a.batch, a.n, a.result.n),
            lambda i, row, d: tuple(a.result.b(i, d, row)[0]), "v", emitted, FLOATS))
        epilogue = None if several else self.epilogue(1)
        if keys is None or values is None or not (several or epilogue):
            return None
        halves = {"half": 8} if self.hooks.target.max_vector_width >= 8 else {}
        k_run = math.gcd(halves.get(keys.ctype, QUAD), keys.run, a.scores.k)
        v_run = math.gcd(halves.get(values.ctype, QUAD) if a.m <= QUAD else QUAD, values.run,
                         a.result.n)
        read = (query.sizes, keys.sizes, values.sizes, score.sizes if score else {},
                epilogue.sizes if epilogue else {})
        sizes = parameters(a.batch, a.n, self.splits, *(
            v for found in read for v in found.values()))
        columns, maxima = max(v_run, QUAD), 16 if 16 * a.m <= t else 8
        slices = t // (a.result.n // columns)
        body, operands = self.rendered(
            "few", score, (query, keys, values), epilogue, T=t, SEVERAL=several, L=LANES,
            KV=max(k_run, QUAD), k_aligned=k_run, VV=columns, v_aligned=v_run, S=slices,
            G=maxima, SUMS=a.m * max(LANES * (t + 8), slices * a.result.n),
            MOST=a.m * max(maxima, slices), sizes=sizes)
        stem, size, local = f"attention_{a.m}x{t}", (self.splits * t, a.batch), (t, 1)
        if several:
            found = self.joined(stem, body, operands, size, local, sizes)
            return None if found is None else [*emitted, *found]
        return [*emitted, Emitted(stem, body, (*operands, self.root), (self.root,), sizes, size,
                                  local)]

    def joined(self, stem: str, body: str, operands: tuple[Argument, ...], size: tuple[int, ...],
               local: tuple[int, ...], sizes: Mapping[str, int] = MappingProxyType({})
               ) -> list[Emitted] | None:
        """The kernel of parts, and that which joins them."""
        a, splits = self.a, self.splits
        epilogue = self.epilogue(1)
        if epilogue is None:
            return None
        rows = a.batch * a.m
        parts = Scratch(f"parts of {self.root.type}", "f32", (splits, rows * a.result.n))
        totals = Scratch(f"totals of {self.root.type}", "f32", (splits, rows * 2))
        joins = parameters(a.batch, splits, *epilogue.sizes.values())
        join = self.after.render("attention_opencl/join.cl.j2", entry=ENTRY, epilogue=epilogue,
                                 BATCH=a.batch, M=a.m, E=a.result.n, SPLITS=splits,
                                 GUARDED=a.guarded, sizes=joins)
        group = min(JOIN, self.hooks.target.max_work_group)
        items = -(-rows * a.result.n // group) * group
        return [Emitted(stem, body, (*operands, totals, parts), (totals, parts), sizes, size, local,
                        main=1),
                Emitted("join", join, (parts, totals, *epilogue.nodes, self.root), (self.root,),
                        joins, (items,), (group,))]


__all__ = ["AttentionOpenCl", "Form"]
