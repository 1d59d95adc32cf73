"""Which chains are attention for GPUs, and which ways of computing it fit a target, best first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jitcl.ir.group import Group
from jitcl.ir.size_ranges import at_most, hints
from jitcl.ir.sizes import has_size, hint, is_size
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.attention import pattern
from jitcl.templates.base import Match
from jitcl.templates.gemm_opencl.product import fits_int
from jitcl.templates.gemm_tensor_opencl.template import WARP
from jitcl.templates.gemm_tiled_opencl.product import Product, matmul
from jitcl.templates.gemm_tiled_opencl.template import QUAD
from jitcl.templates.matmul import Shape

ROW_GROUPS = 8                 # work-items of a column of a group
DEPTH, KEYS = 32, 16           # of keys and values in local memory at once
ITEMS = 512                    # work-items a core that keep it busy, without local memory
LEAST_PART = 16                # keys of a part
MAX_SPLITS = 32
FEW_ROWS = 8                   # queries: without local memory, more are products' task
FEW_KEYS = (256, 128)          # of a group of as many work-items, for few queries
LEAST_KEYS = 64                # where there is no room for these
FEW_STEPS = 2                  # of keys: a second kernel takes longer than they do
LANES = 4                      # work-items that share a key's elements
REGISTERS = 200                # of a lane, for what tensor cores take and leave
NEAR = 1.04                    # times the best time, which is not known more closely
COMMON = 8                     # 8s of rows that suit most sizes
MANY = 4                       # 8s of rows, 16s on tensor cores: fewer are slow for many queries


@dataclass(frozen=True)
class Form(Match):
    """`form` "tensor": `rows` are 16s of a warp, `columns` keys of a step, `warps` of a group,
    `stages` steps in local memory at once. "tiles": `rows` and `columns` of a work-item's scores.
    "rows": `rows` and keys at a time of a work-item. "few": all `rows` and `columns` keys of a
    group. `splits`: parts that keys are dealt out in (of "few" as many as it takes). Where sizes
    are not known, "tiles" has up to as many (`parts`), "rows" what `keys_of_rows` says.
    """

    form: str
    rows: int
    columns: int
    warps: int = 1
    stages: int = 1
    splits: int = 1


@dataclass(frozen=True)
class Heads:
    """The two products of a chain, whether rows of NaN are zeros, whether keys or values are
    concatenated within, and whether queries are computed there."""

    scores: Product
    result: Product
    guarded: bool
    concatenated: bool
    computed: bool

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

    @property
    def sized(self) -> bool:
        """Whether some of these is not known."""
        return has_size((self.batch, self.m, self.n))


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
    return Heads(scores, result, found.guarded, any(n.op == "concat" for n in chain.members),
                 found.computed)


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


def few_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Up to FEW_ROWS queries, where tiles are staged in local memory: the sums of all of them are
    too much for a Mali's registers. Best first: the largest groups of which there is one a core;
    where there are fewer groups, the most."""
    if is_size(a.m) or a.m > FEW_ROWS or not target.stages_tiles:
        return ()
    if a.scores.k % QUAD or a.result.n % QUAD:
        return ()
    batch, n = hints((a.batch, a.n))

    def fits(keys: int) -> bool:
        room = _few_bytes(a, keys) <= target.local_memory and keys <= target.max_work_group
        return room and QUAD * keys >= a.result.n

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
    depth, width = padded(a.scores.k), padded(a.result.n)
    found = list[Form]()
    for rows, warps in ((2, 4), (1, 4), (1, 2), (1, 1)):
        if found and rows * warps < MANY and has_size((a.batch, a.m)):
            break
        for columns in (64, 32, 16):
            form = Form("tensor", rows, columns, warps, 2)
            held = rows * (depth // 4 + width // 2 + columns // 2)
            fits = tensor_bytes(a, form)[0] <= target.local_memory and held <= REGISTERS
            if fits and warps * WARP <= target.max_work_group:
                found.append(form)
                break
    return tuple(sorted(found, key=lambda f: max(
        0, target.compute_units - _groups(a, 16 * f.rows * f.warps))))


def tiles_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Best first by `tiles_time`, of those that are near to the best the common one, which makes
    programs few: of each number of rows keys dealt out as suits it best, and whole."""
    found = list[tuple[float, Form]]()
    for rows in (8, 4, 2, 1):
        t = Tiles.of(a, rows)
        if t.local > target.local_memory or t.items > target.max_work_group:
            continue
        if rows > 1 and not is_size(a.m) and ROW_GROUPS * rows >= 2 * a.m:
            continue
        if found and rows < MANY and has_size((a.batch, a.m)):
            break
        steps = -(-hint(a.n) // t.keys)
        dealt = {-(-steps // -(-steps // n)) for n in range(1, min(MAX_SPLITS, steps) + 1)}
        forms = [Form("tiles", rows, 4, splits=n) for n in sorted(dealt)]
        times = [tiles_time(a, f, target) for f in forms]
        best = forms[times.index(min(times))]
        if a.sized:
            best = replace(best, splits=MAX_SPLITS)
        found += dict.fromkeys(((min(times), best), (times[0], forms[0])))
    least = NEAR * min((time for time, _ in found), default=0)
    return tuple(f for _, f in sorted(found, key=lambda pair: (
        max(least, pair[0]), pair[1].rows != COMMON, pair[0])))


def parts(a: Heads, f: Form, target: Target) -> tuple[int, int, int]:
    """Of the form "tiles", where sizes are not known: (the parts, up to `splits`, that give each
    core as many groups as take no longer at once than one alone; 1 where keys are worth a second
    kernel that joins the parts, else 0; a bound of parts times rows where they are)"""
    steps = -(-a.n // Tiles.of(a, f.rows).keys)
    alone, shared = step_times(f.rows)
    wanted = round(alone / shared * target.compute_units)
    groups = a.batch * -(-a.m // (ROW_GROUPS * f.rows))
    found = 1 + (f.splits - 1) // (1 + groups * f.splits // wanted)
    return found, (1 - at_most(found, 1)) * (
        1 - at_most(steps, FEW_STEPS)), 2 * wanted * ROW_GROUPS * f.rows


def keys_of_rows(a: Heads, target: Target) -> tuple[int, int]:
    """Of the form "rows", where sizes are not known: (keys of a part, a bound of parts times
    rows)"""
    rows, items = a.batch * a.m, ITEMS * max(1, target.compute_units)
    wanted = 1 + (items - 1) // rows
    return -(-a.n // (LEAST_PART * wanted)) * LEAST_PART, rows + items


def tiles_time(a: Heads, f: Form, target: Target) -> float:
    """Microseconds of the form "tiles" on a H100, within a fifth for heads of 64 (12 to 16 heads,
    128 to 2048 queries): others are told apart by it. A step takes a group alone `alone`, and a
    core that has many groups `shared`, for each.
    """
    steps = -(-hint(a.n) // (Tiles.of(a, f.rows).keys * f.splits))
    groups = _groups(a, ROW_GROUPS * f.rows) * f.splits / target.compute_units
    alone, shared = (steps * time for time in step_times(f.rows))
    batch, m = hints((a.batch, a.m))
    join = 7 + 8 * f.splits * batch * m * a.result.n / 3e6 if f.splits > 1 else 0.0
    return max(alone, groups * shared) + shared * (math.ceil(groups) - 1) / 2 + join


def step_times(rows: int) -> tuple[float, float]:
    """(alone, shared), see `tiles_time`"""
    return 3.2 + 0.45 * rows, 0.85 + 0.024 * rows ** 2


def rows_forms(a: Heads, target: Target) -> tuple[Form, ...]:
    """Few queries, whose keys are dealt out to work-items."""
    if is_size(a.m) or a.m > FEW_ROWS or target.max_vector_width < QUAD:
        return ()
    if a.scores.k % QUAD or a.result.n % QUAD:
        return ()
    batch, n = hints((a.batch, a.n))
    wanted = ITEMS * target.compute_units // (batch * a.m)
    part = max(LEAST_PART, -(-n // max(1, wanted)))
    found = [Form("rows", rows, keys, splits=-(-n // (-(-part // keys) * keys)))
             for rows, keys in ((1, 8), (2, 4), (1, 4)) if rows <= a.m]
    return tuple(f for f in found if f.splits <= -(-n // LEAST_PART))


def _groups(a: Heads, rows: int) -> int:
    return hint(a.batch) * -(-hint(a.m) // rows)


def padded(size: int) -> int:
    """What tensor cores multiply 16 of."""
    return -(-size // 16) * 16


def _pitch(halves: int) -> int:
    """As in opencl/tensor.j2."""
    return halves if halves % 64 == 0 or halves == 32 else halves + 8


def _bytes(by_k: bool, tile: int, terms: int) -> int:
    """Of a step of an operand in local memory."""
    return 2 * (tile * _pitch(terms) if by_k else terms * _pitch(tile))


def tensor_bytes(a: Heads, f: Form, turned: tuple[bool, bool, bool] | None = None
                  ) -> tuple[int, int, int]:
    """(in all, of a step, of its keys). turned: whether terms of queries, keys and values are
    neighbours; None: whichever takes most."""
    depth, width, rows = padded(a.scores.k), padded(a.result.n), 16 * f.rows * f.warps
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
