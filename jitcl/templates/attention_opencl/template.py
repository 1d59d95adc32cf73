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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import divisor, hints, parameters, require
from jitcl.ir.sizes import at_least_always, has_size, is_size, same
from jitcl.target import Target
from jitcl.templates.attention import Piece, pieces
from jitcl.templates.attention_opencl.forms import (
    FEW_ROWS,
    LANES,
    ROW_GROUPS,
    Form,
    Heads,
    Tiles,
    few_forms,
    heads_of,
    keys_of_rows,
    padded,
    parts,
    rows_forms,
    tensor_bytes,
    tensor_forms,
    tiles_forms,
)
from jitcl.templates.base import (
    ENTRY,
    Argument,
    Emitted,
    Epilogue,
    Loader,
    OpenClHooks,
    Scratch,
    Template,
    launched,
)
from jitcl.templates.gemm_opencl.product import counter
from jitcl.templates.gemm_tensor_opencl.template import RUN, WARP, plain
from jitcl.templates.gemm_tiled_opencl.product import Product
from jitcl.templates.gemm_tiled_opencl.template import JOIN, QUAD, Side, side
from jitcl.templates.opencl.tiling import MAX_INDEX, spread

MOST_HEAD = 256                # of a head: beyond it sums fill the registers
FLOATS = ("f32", "f16")        # that keys and values are read from


class AttentionOpenCl(Template[Form, OpenClHooks]):
    """matmul, softmax along its rows, matmul; with epilogues of both products. What is stored is
    f32 or f16; sums and powers are f32, but for the powers that tensor cores multiply: halves,
    where the softmax would be stored so.
    """

    name = "attention_opencl"
    lengths = (3,)
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Form, ...]:
        """Numbers of images and keys may be open; of queries, where tiles are staged."""
        a = heads_of(group)
        if a is None or target.device_type == "cpu":
            return ()
        if has_size((a.scores.k, a.result.n)) or max(a.scores.k, a.result.n) > MOST_HEAD:
            return ()
        few = few_forms(a, target)
        if not target.stages_tiles:
            return rows_forms(a, target)
        if a.concatenated or a.computed:        # each group of tiles would compute them again
            return few
        found = few + tiles_forms(a, target)
        first, softmax, last = group.parts
        halves = (softmax.root.type.dtype == "f16" and plain(first, a.scores.nodes)
                  and plain(last, a.result.nodes[1:]))
        if target.tensor_cores and halves and (is_size(a.m) or a.m > FEW_ROWS):
            return tensor_forms(a, target) + found
        return found

    def emit(self, match: Form, hooks: OpenClHooks) -> list[Emitted] | None:
        a = heads_of(hooks.group)
        assert a is not None
        if match.form != "tiles" or match.splits == 1 or not a.sized:
            return _Writer(a, match, hooks).emit()
        splits, several, room = parts(a, match, hooks.target)
        dealt = _Writer(a, dataclasses.replace(match, splits=splits), hooks, room).emit()
        whole = _Writer(a, dataclasses.replace(match, splits=1), hooks).emit()
        return dealt and whole and [*launched(dealt, several), *launched(whole, 1 - several)]


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


def cached(keys: Lying, values: Lying) -> int | None:
    """The rows of a cache, behind which new ones lie in another buffer; 0 where all lie in one.
    None where there are more pieces, or keys and values have others, or rows of pieces don't lie
    alike, or more than new rows are copied."""
    past, of_values = (x.pieces[0][4] for x in (keys, values))
    if not len(keys.pieces) == len(values.pieces) <= 2 or not same(past, of_values):
        return None
    for x in (keys, values):
        (buffer, _, pitch, *_), (*_, other, start, end) = x.pieces[0], x.pieces[-1]
        if buffer in x.copies.values() or not (same(other, pitch) or same(end - start, 1)):
            return None
    return past if len(keys.pieces) > 1 else 0


class _Writer:
    """room: parts times rows, where their number is not known."""

    def __init__(self, a: Heads, form: Form, hooks: OpenClHooks, room: int = 0) -> None:
        self.a, self.f, self.root = a, form, hooks.group.root
        self.hooks = self.lifting(hooks)
        first, _, last = (dataclasses.replace(part, compute="f32") for part in hooks.group.parts)
        self.before, self.after = self.hooks.part(first, "x"), self.hooks.part(last, "z")
        self.splits = -(-a.n // form.columns) if form.form == "few" else form.splits
        self.part = a.n if form.splits == 1 else -(-a.n // form.splits)
        self.room = room
        self.plain = first.root is first.anchor

    def emit(self) -> list[Emitted] | None:
        score = None if self.plain else self.before.value_lines(
            self.a.scores.c(*self.places(self.a.scores)))
        if score is None and not self.plain:
            return None
        return {"tensor": self.tensor, "tiles": self.tiles, "rows": self.rows,
                "few": self.few}[self.f.form](score)

    def lifting(self, hooks: OpenClHooks) -> OpenClHooks:
        """Of kernels of tiles numbers are parameters, but those of a head."""
        return hooks.lifting() if self.f.form in ("tensor", "tiles") else hooks

    def numbers(self, **more: int) -> dict[str, int]:
        """The numbers of a kernel of tiles."""
        found = dict(BATCH=self.a.batch, M=self.a.m, N=self.a.n, **more)
        return {name: self.hooks.number(n) for name, n in found.items()}

    def places(self, p: Product) -> tuple[Expr, Expr, Expr]:
        return counter("image", p.batch), counter("m", p.m), counter("n", p.n)

    def epilogue(self, width: int, hooks: OpenClHooks | None = None) -> Epilogue | None:
        p = self.a.result
        aligned = {"n": width, "at": width}
        return (hooks or self.after).epilogue_lines(p.c(*self.places(p)), width, None, aligned)

    def sides(self, rows: int, columns: int, width: int, steps: tuple[int, int, int], run: int
              ) -> tuple[Side, Side, Side]:
        """How tiles of queries, keys and values come."""
        scores, result = self.a.scores, self.a.result
        return (side(scores, self.before, 0, rows, steps[0], run, 1),
                side(scores, self.before, 1, columns, steps[1], run, 1),
                side(result, self.after, 1, width, steps[2], run, 1))

    def sizes(self, score: Loader | None, sides: Iterable[Side | Lying], epilogue: Epilogue | None,
              *counts: int) -> dict[str, int]:
        """What a kernel takes for sizes, `counts` among them."""
        for node in (self.root, *self.hooks.group.operands):
            require(MAX_INDEX - 1, node.type.size)
        stored: Mapping[str, int] = epilogue.sizes if epilogue else {}
        read = (*(s.sizes for s in sides), score.sizes if score else {}, stored)
        found = parameters(*counts, *(v for found in read for v in found.values())) | dict(stored)
        return found if self.a.sized else hints(found)

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
            D=a.scores.k, E=a.result.n, **dict(BATCH=a.batch, M=a.m, N=a.n) | numbers)
        return text, (*(n for nodes in read for n in nodes), *copies)

    def tensor(self, score: Loader | None) -> list[Emitted] | None:
        a, f = self.a, self.f
        pair = 2 - a.result.n % 2
        epilogue = self.epilogue(pair)
        if epilogue is None:
            return None
        depth, width, rows = padded(a.scores.k), padded(a.result.n), 16 * f.rows * f.warps
        sides = self.sides(rows, f.columns, width, (depth, depth, f.columns), RUN)
        q, k, v = sides
        local, stage, of_keys = tensor_bytes(a, f, (q.by_k, k.by_k, v.by_k))
        items, tiles, steps = WARP * f.warps, -(-a.m // rows), -(-a.n // f.columns)
        numbers = self.numbers(M_TILES=tiles, STEPS=steps)
        sizes = self.sizes(score, sides, epilogue, *numbers.values())
        body, operands = self.rendered(
            "tensor", score, sides, epilogue, T=items, MT=f.rows, BM=rows, BN=f.columns, DP=depth,
            EP=width, STAGES=f.stages, LOCAL=local, STAGE=stage, K_BYTES=of_keys,
            PAIR=pair, RAGGED=divisor(a.n) % f.columns > 0,
            CLAMPED=divisor(a.m) % rows > 0, sizes=sizes, **numbers)
        return [Emitted(f"attention_tensor_{rows}x{f.columns}", body, (*operands, self.root),
                        (self.root,), sizes, (a.batch * tiles * items,), (items,))]

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
        if is_size(self.splits):
            self.splits = -(-a.n // part)
        numbers = self.numbers(M_TILES=tiles, PART=part)
        sizes = self.sizes(score, sides, epilogue, *numbers.values())
        body, operands = self.rendered(
            "tiles", score, sides, epilogue, T=t.items, TM=t.rows, W=t.vector, C=t.columns,
            BN=t.keys, DK=t.depth, VK=t.values, EP=t.width, TILE=t.tile,
            SEVERAL=not whole, V=v, RAGGED=divisor(a.n) % t.keys > 0,
            CLAMPED=divisor(a.m) % rows > 0, sizes=sizes, **numbers)
        stem, size = f"attention_{rows}x{t.keys}", (a.batch * tiles * self.splits * t.items,)
        if whole:
            return [Emitted(stem, body, (*operands, self.root), (self.root,), sizes, size,
                            (t.items,))]
        return self.joined(stem, body, operands, size, (t.items,), sizes)

    def lies(self, name: str, copied: list[Emitted], whole: bool = False) -> Lying | None:
        """How the rows of queries, keys or values ("q", "k", "v") lie: see `pieces`."""
        scores, result = self.a.scores, self.a.result
        hooks, p, which = {"q": (self.before, scores, 0), "k": (self.before, scores, 1),
                           "v": (self.after, result, 1)}[name]

        def index(image: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
            if name == "v":
                row, column = column, row
            return tuple((p.a, p.b)[which](image, row, column)[0])

        shape = p.batch, *((p.k, p.n) if name == "v" else ((p.m, p.n)[which], p.k))
        return lying(name, hooks, pieces(hooks, p.nodes[which], counter("image", p.batch), shape,
                                         index, name, copied, FLOATS, whole))

    def rows(self, score: Loader | None) -> list[Emitted] | None:
        a, f, copied = self.a, self.f, list[Emitted]()
        q = self.lies("q", copied, whole=True)
        k, v = (self.lies(name, copied) for name in "kv")
        if q is None or k is None or v is None or q.copies:
            return None
        past = cached(k, v)
        sides = q, k, v
        if past is None or any(s.run % QUAD for s in sides):
            return None
        shift = -(-past // f.columns) * f.columns - past        # new keys begin a block
        part = -(-self.part // f.columns) * f.columns
        if a.sized:
            part, self.room = keys_of_rows(a, self.hooks.target)
            self.room += 0 if same(shift, 0) else a.batch * a.m
            require(MAX_INDEX - 1, self.room * a.result.n)
        self.splits = -(-(a.n + shift) // part)
        counts = dict(keys=a.n, past=past, shift=shift, part=part, splits=self.splits)
        taken = [name for name, n in counts.items() if is_size(n)]      # not made in registers
        written = {name.upper(): name if name in taken else n for name, n in counts.items()}
        k_row, v_row = (s.pieces[0][2] * (4 if s.ctype == "float" else 2) for s in (k, v))
        sizes = self.sizes(score, sides, None, a.batch, a.m) | {
            name: counts[name] for name in taken} | dict(
            head=a.scores.k, width=a.result.n, k_row=k_row, v_row=v_row, block=f.columns)
        alone = same(a.n - past, 1) and same(shift, 0) and "float" not in (k.ctype, v.ctype)
        ragged = not same(shift, 0) or divisor(a.n) % f.columns > 0
        body, operands = self.rendered(
            "rows", score, sides, None, R=f.rows, B=f.columns, RAGGED=ragged, ALONE=alone,
            SHORT=len(k.pieces) > 1 and ragged or not at_least_always(a.n, f.columns),
            sizes=sizes, **written)
        size, local = spread(self.splits, -(-a.m // f.rows), a.batch, self.hooks.target)
        found = self.joined(f"attention_{f.rows}x{f.columns}", body, operands, size, local, sizes)
        return None if found is None else [*copied, *found]

    def few(self, score: Loader | None) -> list[Emitted] | None:
        a, t, emitted = self.a, self.f.columns, list[Emitted]()
        several = is_size(a.n) or self.splits > 1
        require(MAX_INDEX - 1, self.splits * a.batch * a.m * a.result.n)
        query = side(a.scores, self.before, 0, a.m, 1, 1, 1)
        keys, values = (self.lies(name, emitted) for name in "kv")
        epilogue = None if several else self.epilogue(1)
        if keys is None or values is None or not (several or epilogue):
            return None
        halves = {"half": 8} if self.hooks.target.max_vector_width >= 8 else {}
        k_run = math.gcd(halves.get(keys.ctype, QUAD), keys.run, a.scores.k)
        v_run = math.gcd(halves.get(values.ctype, QUAD) if a.m <= QUAD else QUAD, values.run,
                         a.result.n)
        sizes = self.sizes(score, (query, keys, values), epilogue, a.batch, a.m, a.n,
                           self.splits)
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
        hooks = self.lifting(self.after)
        epilogue = self.epilogue(1, hooks)
        if epilogue is None:
            return None
        rows = a.batch * a.m
        room = self.room or splits * rows
        sums = Scratch(f"parts of {self.root.type}", "f32", (room * a.result.n,))
        totals = Scratch(f"totals of {self.root.type}", "f32", (room * 2,))
        numbers = dict(ROWS=hooks.number(rows), M=hooks.number(a.m), SPLITS=hooks.number(splits))
        joins = self.sizes(None, (), epilogue, *numbers.values())
        join = hooks.render("attention_opencl/join.cl.j2", entry=ENTRY, epilogue=epilogue,
                            E=a.result.n, GUARDED=a.guarded, sizes=joins, **numbers)
        group = min(JOIN, self.hooks.target.max_work_group)
        items = -(-rows * a.result.n // group) * group
        return [Emitted(stem, body, (*operands, totals, sums), (totals, sums), sizes, size, local,
                        main=1),
                Emitted("join", join, (sums, totals, *epilogue.nodes, self.root), (self.root,),
                        joins, (items,), (group,))]
