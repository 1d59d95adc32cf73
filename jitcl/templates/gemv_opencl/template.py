"""Products of one to eight rows with a matrix that lies in memory, on GPUs with local memory: what
decoding does. The matrix is read once, 16 bytes a work-item at a time, and that is what they take:
of a row, or of a column where columns lie in memory one behind the other (passes/weight_rows.py).

A group reads all of A, so what it sums of it on the way is what a norm in front of the product
divides rows by, and two products of the same A, a gate and what it gates, are one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitcl.ir import expr as E
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.size_ranges import at_most, hints, parameters
from jitcl.ir.sizes import has_size, is_size, same
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.passes.weight_rows import FEW_ROWS
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Emitted,
    Loader,
    Match,
    OpenClHooks,
    Template,
    launched,
)
from jitcl.templates.gemm_opencl.product import fits_int, unfused
from jitcl.templates.gemm_tiled_opencl.product import Product, matmul, places
from jitcl.templates.gemm_tiled_opencl.template import QUAD, GemmTiledOpenCl
from jitcl.templates.packed import Weights

AHEAD = 8                      # vectors of B that a work-item reads before it multiplies
GROUPS = 2                     # work-groups a core that keep it busy
PIECES_AHEAD = 4               # as AHEAD, of all columns of a group
COLUMNS = 2                    # of a group
LEAST_TENSOR_ROWS = 3          # fewer rows of halves are too few for gemm_tensor_opencl
SUMS = ("reduce_mean", "reduce_sum")        # of a norm


@dataclass(frozen=True)
class Slices(Match):
    """A group's work-items: along a row of B, and along its columns, who each sum a slice of k; how
    many columns each of them has.
    """

    lanes: int
    slices: int
    columns: int


class GemvOpenCl(Template[Slices, OpenClHooks]):
    """matmul of f32 or f16 storage with few rows; sums in f32. Chains: behind a norm, or two beside
    each other, or both.
    """

    name = "gemv_opencl"
    lengths = (1, 2, 3)
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Slices, ...]:
        node = group.anchor
        if node is None or node.op != "matmul" or not target.stages_tiles:
            return ()
        sums = Sums.of(group)
        if sums is None:
            return ()
        if same(node.type.size, 0):
            return ()
        if any(n.type.layout != ROW for n in (*group.members, *group.operands)):
            return ()
        if any(i.type.dtype not in ("f32", "f16") for i in (node, *node.inputs)):
            return ()
        product, b = matmul(node), Right.of(group, target, node)
        if product is None or has_size((product.batch, product.n, product.k)):
            return ()
        rows = FEW_ROWS if is_size(product.m) else product.m
        if product.batch > 1 or rows > FEW_ROWS or not product.k:
            return ()
        if b is None or not b.width or (product.k if b.by_k else product.n) % b.width:
            return ()
        if not fits_int(product.n * product.k, *hints([n.type.size for n in group.operands])):
            return ()
        if len(group.parts) > 1 and not self._joins(group, target, sums, b, product):
            return ()
        if is_size(product.m) and not GemmTiledOpenCl().candidates(group, target):
            return ()
        return slices(replace(product, m=rows), b, target, sums)

    def _joins(self, group: Group, target: Target, sums: Sums, b: Right, product: Product) -> bool:
        """Whether a chain is better one kernel: not where tensor cores compute its products."""
        if is_size(product.m) or not b.by_k:
            return False
        if target.tensor_cores and b.const.type.dtype == "f16" and product.m >= LEAST_TENSOR_ROWS:
            return False
        others = [Right.of(group, target, other) for other in sums.products]
        return all(o is not None and o.form == b.form for o in others)

    def emit(self, match: Slices, hooks: OpenClHooks) -> list[Emitted] | None:
        """One kernel; two where k falls into parts. Where the number of rows is not known, tiles
        for many beside them.
        """
        p = matmul(hooks.anchor)
        assert p is not None
        if len(hooks.group.parts) > 1:
            return self._rows(match, hooks, p, p.m)
        if hooks.epilogue_lines(p.c(*places(p)), 1) is None:
            return unfused(hooks, lambda alone: self.emit(match, alone) or [])
        if not is_size(p.m):
            return self._rows(match, hooks, p, p.m)
        tiled = GemmTiledOpenCl()
        few, many = self.few(match, hooks, p)
        return [*few, *tiled.emit(tiled.candidates(hooks.group, hooks.target)[0], hooks, many)]

    def few(self, match: Slices, hooks: OpenClHooks, p: Product) -> tuple[list[Emitted], int]:
        """(kernels for one row and for a few, of a number of rows that is not known; 1 where there
        are more, else 0)"""
        target = hooks.target
        b = Right.of(hooks.group, target, hooks.anchor)
        assert b is not None
        alone = slices(replace(p, m=1), b, target)[0]
        one, few = at_most(p.m, 1), at_most(p.m, FEW_ROWS)
        single, several = (self._rows(match, hooks, p, most) for match, most in (
            (alone, 1), (match, FEW_ROWS)))
        assert single is not None and several is not None
        return [*launched(single, one), *launched(several, few - one)], 1 - few

    def _rows(self, match: Slices, hooks: OpenClHooks, p: Product, most: int
              ) -> list[Emitted] | None:
        """The kernels for `most` rows, or as many as there are; None of a chain whose norm or
        epilogue can't be written."""
        sums = Sums.of(hooks.group)
        assert sums is not None
        *beside, _ = sums.products
        rights = [b for node in (hooks.anchor, *beside)
                  if (b := Right.of(hooks.group, hooks.target, node)) is not None]
        b, norm = rights[0], sums.norm
        w, rows = b.weights, 1 if most == 1 else p.m
        _, m, n = places(replace(p, m=rows))
        epilogue = hooks.epilogue_lines(p.c(E.index(0), m, n), 1, beside=beside)
        if epilogue is None:
            return None
        at, k = E.var("m", extent=most) if is_size(rows) else m, E.var("k", extent=p.k)
        left, shape, (ix, _) = p.nodes[0], p.shapes[0], p.a(E.index(0), at, k)
        left = norm.left if norm else left
        place = hooks.place_lines(left, shape, ix) if b.by_k and norm is None else None
        if place is not None and place.runs.get("k", 1) % QUAD:
            place = None
        terms = factor = None
        load: Loader | None = None
        if norm is not None:
            load = hooks.quad_lines(left, ix)
            terms = hooks.quad_lines(norm.sum.inputs[0], ix)
            factor = hooks.value_lines((*ix[:-1], E.index(0)), norm.factor, norm.sum)
            if load is None or terms is None or factor is None:
                return None
        elif place is None:
            load = hooks.load_lines(left, shape, ix, *((at < rows,) if is_size(rows) else ()))
        read = place or load
        assert read is not None
        beyond = [x for x in (terms, factor) if x is not None]
        nodes = dict.fromkeys((*((place.node,) if place else load.nodes if load else ()),
                               *(x for r in rights for x in r.nodes),
                               *(x for r in beyond for x in r.nodes), *epilogue.nodes))
        sizes = parameters(rows, *read.sizes.values(), *epilogue.sizes.values()) | epilogue.sizes
        step = match.slices * (b.width if b.by_k else 1)    # terms that a group reads at once
        ahead = max(1, (PIECES_AHEAD if b.by_k else AHEAD) // (
            most * (match.columns * len(rights) if b.by_k else 1)))
        named = {x: (hooks.names[x], hooks.ctype(x.type.dtype)) for x in nodes}
        body = hooks.render(
            "gemv_opencl/opencl.cl.j2", entry=ENTRY, epilogue=epilogue, load=load, place=place,
            sources=list(named.values()), a=named[place.node] if place else None,
            b=[named[r.const] for r in rights], coded=w, decoded=decoded,
            scales=[named[r.weights.scales] for r in rights if r.weights],
            shifts=[named[r.weights.shifts] for r in rights if r.weights and r.weights.shifts],
            terms=terms, factor=factor, helpers=list(dict.fromkeys(
                h for r in beyond for h in r.helpers)),
            totals=", ".join(f"total{k} * factor" if norm else f"total{k}"
                             for k in range(len(rights))),
            TERMS=p.k if norm and norm.sum.op == "reduce_mean" else 1,
            BITS=b.width == 8 and w is None, BY_K=b.by_k, M=most, ROWS=rows, N=p.n, K=p.k,
            V=b.width, LANES=match.lanes, SLICES=match.slices, COLUMNS=match.columns, STEP=step,
            AHEAD=min(ahead, -(-p.k // step)), MET=1 << match.slices.bit_length() // 2,
            HALF=hooks.half, sizes=sizes)
        y, columns = hooks.group.root, match.lanes * match.columns
        items = match.lanes * match.slices
        stem = "norm_" * (norm is not None) + "gemv" + f"_{len(rights)}" * (len(rights) > 1)
        return [Emitted(f"{stem}_{most}x{columns}", body, (*nodes, y), (y,), sizes,
                        (-(-p.n // columns) * items,), (items,), main=1)]


@dataclass(frozen=True)
class Norm:
    """mul(left, factor), where the factor is one a row, made of a sum of it (or a mean)."""

    left: Node
    factor: Node
    sum: Node

    @staticmethod
    def of(group: Group) -> Norm | None:
        """Of a group that computes nothing else, from what lies in memory."""
        found = [n for n in group.members if lookup(n.op).kind == "reduction"]
        dims = group.root.type.dims
        if len(found) != 1 or found[0].op not in SUMS or group.root.op != "mul":
            return None
        (total,) = found
        behind = {total}                    # members that are made of the sum
        for node in group.members:
            if any(i in behind for i in node.inputs):
                behind.add(node)
        row = (*dims[:-1], 1)
        if total.type.dims != row or total.inputs[0].type.dims != dims:
            return None
        factors, tree = [], [group.root]
        while tree:
            node = tree.pop()
            if node.op == "mul" and node in behind and node.type.dims == dims:
                tree += node.inputs
            else:
                factors.append(node)
        scale = [n for n in factors if n in behind]
        rest = sorted((n for n in factors if n not in behind), key=lambda n: n.type.dims != dims)
        if len(scale) != 1 or scale[0].type.dims != row or not rest or rest[0].type.dims != dims:
            return None
        if not all(map(group.lies, rest)) or any(
                lookup(n.op).kind != "elementwise" or n.type.dims != row
                for n in behind - {total, group.root} if n.type.dims != dims):
            return None
        left = rest[0]
        for node in rest[1:]:
            left = Node.make("mul", (left, node), type=group.root.type.with_(dtype="f32"))
        return Norm(left, scale[0], total)


@dataclass(frozen=True)
class Sums:
    """What a group or chain sums along k: products of one operand, the anchor's the last of them,
    and that of a norm in front of them."""

    products: tuple[Node, ...]
    norm: Norm | None

    @staticmethod
    def of(group: Group) -> Sums | None:
        """None where that is not all that a chain does."""
        first, *rest = group.parts
        if not rest:
            return Sums((group.anchor,), None) if group.anchor else None
        parts = rest if first.anchor is None or first.anchor.op != "matmul" else group.parts
        norm = Norm.of(first) if parts is rest else None
        products = tuple(p.anchor for p in parts if p.anchor and p.anchor.op == "matmul")
        alike = {(n.inputs[0], n.type.dims, n.inputs[1].type.dims) for n in products}
        if len(products) != len(parts) or len(products) > 2 or len(alike) != 1:
            return None
        if parts is rest and (norm is None or products[0].inputs[0] is not first.root):
            return None
        behind = set(products)
        for node in (n for p in parts for n in p.members):
            if node not in behind and any(i in behind for i in node.inputs):
                if lookup(node.op).kind != "elementwise" or node.type.dims != products[0].type.dims:
                    return None
                behind.add(node)
        return Sums(products, norm)


@dataclass(frozen=True)
class Right:
    """How a right operand lies in memory: rows, or columns one behind the other (by_k); in few
    bits as `weights`. width: elements that are read at once, 0 if there is no such number.
    """

    const: Node
    by_k: bool
    width: int
    weights: Weights | None = None

    @staticmethod
    def of(group: Group, target: Target, product: Node) -> Right | None:
        """Of a group's product; None where what it reads does not lie in memory so."""
        b = product.inputs[1]
        if b in group.operands:
            return Right(b, False, lanes_of(b.type.dtype, target))
        weights = Weights.of(b) if group.decodes(b) else None
        if weights is not None:
            width = next((w for w in (128 // weights.bits, 64 // weights.bits)
                          if weights.block % w == 0), 0)
            return Right(weights.const, True, width, weights)
        if b.op == "transpose" and b.type.rank == 2 and b.inputs[0] in group.operands:
            return Right(b.inputs[0], True, lanes_of(b.inputs[0].type.dtype, target))
        return None

    @property
    def form(self) -> tuple[object, ...]:
        """What those of two products have in common that a kernel reads alike."""
        w = self.weights
        coded = w and (w.bits, w.offset, w.zero, w.block, w.scales.type, w.shifts and w.shifts.type)
        return self.by_k, self.width, self.const.type, coded

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What is read."""
        if self.weights is None:
            return (self.const,)
        return (self.const, self.weights.scales,
                *((self.weights.shifts,) if self.weights.shifts else ()))


def decoded(word: str, e: int, w: Weights) -> tuple[str, str, str]:
    """Arguments of jitcl_uint4_code or jitcl_uint8_code, which then gives code e of a word less its
    zero: (bits of the word, factor, what is subtracted)."""
    whole = 24 // w.bits - 1            # codes that a mantissa has room for
    at, behind = e % whole * w.bits, e // whole * whole * w.bits
    word = f"({word} >> {behind})" if behind else word
    mask = ((1 << w.bits) - 1) << at
    return f"{word} & {mask:#x}u", f"{0.5 ** at!r}f", f"{2.0 ** (23 - at) + w.zero!r}f"


def slices(p: Product, b: Right, target: Target, sums: Sums | None = None) -> tuple[Slices, ...]:
    """Best first. Of rows as many neighbours as leave all cores busy, of large groups; of columns
    two, four where each element of A has to be worth more (codes), of groups that have all their
    work-items read.
    """
    if b.by_k:
        some = [n for n in (128, 64, 32) if n <= target.max_work_group] or [1]
        items = next((n for n in some if n * b.width <= p.k), some[-1])
        products = len(sums.products) if sums else 1
        more = int(sums is not None and sums.norm is not None)
        columns = (2 * COLUMNS if b.weights is not None and p.m <= 2 else COLUMNS) // products
        return tuple(Slices(1, n, c) for n in dict.fromkeys((items, *some))
                     for c in dict.fromkeys((columns, 1))
                     if 4 * n * (c * products + more) * p.m <= target.local_memory)
    width = b.width

    def rank(lanes: int) -> tuple[bool, int]:
        idle = -(-p.n // (lanes * width)) < GROUPS * target.compute_units
        return idle, lanes if idle else -lanes

    return tuple(Slices(lanes, items // lanes, width)
                 for lanes in sorted((1, 2, 4, 8, 16), key=rank)
                 for items in (256, 128) if items <= target.max_work_group
                 and 4 * items * width * p.m <= target.local_memory)


def lanes_of(dtype: str, target: Target) -> int:
    """Elements of B that are read at once: 16 bytes, where their halves can be taken apart."""
    return 8 if dtype == "f16" and target.tensor_cores else 4


__all__ = ["GemvOpenCl", "Slices"]
