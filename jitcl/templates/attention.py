"""Which chains of groups are attention, for templates of every language, and where what they read
lies:

    scores = epilogue(matmul(q, k)),  p = softmax(scores),  y = epilogue(matmul(p, v))
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.sizes import same
from jitcl.ops.core import norm_axis
from jitcl.passes.matching import scalar
from jitcl.passes.regions import VIEWS
from jitcl.templates.base import Argument, Emitted, Hooks
from jitcl.templates.matmul import Shape

Index = Callable[[Expr, Expr, Expr], tuple[Expr, ...]]      # of image, row and column


@dataclass(frozen=True)
class Attention:
    """The products of a chain; `guarded`: rows of NaN are zeros; `computed`: queries are, where the
    first product reads them."""

    scores: Shape
    result: Shape
    guarded: bool
    computed: bool


def pattern(chain: Group, product_of: Callable[[Group], Shape | None]) -> Attention | None:
    """The products of a chain that is attention; None of any other group. product_of: the product
    that a group is, where its template computes it.
    """
    first, softmax, last = chain.parts
    scores, result = product_of(first), product_of(last)
    if scores is None or result is None or not _plain(first) or not _plain(last):
        return None
    assert first.anchor is not None and last.anchor is not None
    if last.anchor.inputs[0] is not softmax.root or first.root in last.operands:
        return None
    same_rows = (scores.batch, scores.m) == (result.batch, result.m)
    guarded = softmax_of(softmax, first.root)
    if not same_rows or scores.n != result.k or guarded is None:
        return None
    query = first.anchor.inputs[0]
    while query in first.inlined and query.op in VIEWS:
        query = query.inputs[0]
    return Attention(scores, result, guarded, query in first.inlined)


def _plain(group: Group) -> bool:
    """Whether what is stored is f32 or f16."""
    return group.anchor is not None and {
        group.anchor.type.dtype, group.root.type.dtype} <= {"f32", "f16"}


def softmax_of(group: Group, x: Node) -> bool | None:
    """Whether rows of NaN become zeros, of a group that is the softmax of x along its last axis;
    None of any other.

        p = mul(e, reciprocal(reduce_sum(e)))  with  e = exp(sub(x, reduce_max(x)))
        p, or where(isnan(p), 0, p);  in f16, div(e, reduce_sum(e))
    """
    root = group.root
    guarded = root.op == "where"
    if group.operands != [x] or root.type.dims != x.type.dims:
        return None
    if guarded:
        test, zero, p = root.inputs
        if test.op != "isnan" or test.inputs != (p,) or scalar(zero) != 0:
            return None
        root = p
    if root.op not in ("mul", "div") or not is_softmax(root, x):
        return None
    nodes = (6 if root.op == "mul" else 5) + 2 * guarded
    return guarded if len(group.members) == nodes else None


def is_softmax(root: Node, x: Node) -> bool:
    """Whether mul(e, reciprocal(reduce_sum(e))) or div(e, reduce_sum(e)) with e = exp(sub(x,
    reduce_max(x))).
    """
    e, total = root.inputs
    if root.op == "mul":
        e, factor = (e, total) if e.op == "exp" else (total, e)
        if factor.op != "reciprocal":
            return False
        (total,) = factor.inputs
    if e.op != "exp" or e.inputs[0].op != "sub":
        return False
    minuend, most = e.inputs[0].inputs
    row = (*x.type.dims[:-1], 1)
    return (total.op == "reduce_sum" and total.inputs == (e,) and minuend is x
            and most.op == "reduce_max" and most.inputs == (x,)
            and all(n.type.dims == row and tuple(n.attr("axes")) == (x.type.rank - 1,)
                    for n in (total, most)))


# ---- operands of few rows of queries, which are read where they lie

@dataclass(frozen=True)
class Piece:
    """Rows `first` to `end` of an operand of each image: those of an image begin at element `base`
    of a buffer, `pitch` apart."""

    node: Argument
    dtype: str
    first: int
    end: int
    base: Expr
    pitch: int


def pieces(hooks: Hooks, node: Node, image: Expr, shape: tuple[int, int, int], index: Index,
           name: str, emitted: list[Emitted], dtypes: Collection[str], whole: bool = False
           ) -> list[Piece]:
    """Where an operand of a `shape` (images, rows, columns) lies, which has them at an `index`: in
    one piece, or a few one after another (a cache and what is new), unless it is to be `whole`.
    What doesn't lie in rows, or in another than these dtypes, is copied."""
    images, rows, columns = shape
    found: list[Piece] = []
    first = 0
    for count, dtype in [(rows, "f32")] if whole else _joined(hooks, node, rows):
        def at(i: Expr, row: Expr, column: Expr, first: int = first) -> tuple[Expr, ...]:
            return index(i, row + first, column)

        def where(to: tuple[Expr, ...], at: Index = at) -> tuple[tuple[Expr, ...], Expr]:
            return at(*to), E.const(True, "bool")

        place = _in_place(hooks, node, image, (count, columns), at)
        if place is None or place[0].type.dtype not in dtypes:
            dtype = dtype if dtype in dtypes else "f32"
            copy, launch = hooks.arranged(node, f"{name}{first} {node.type}", dtype,
                                          (images, count, columns), where)
            emitted.append(launch)
            found.append(Piece(copy, dtype, first, first + count, image * (count * columns),
                               columns))
        else:
            source, base, pitch = place
            found.append(Piece(source, source.type.dtype, first, first + count, base, pitch))
        first += count
    return found


def _in_place(hooks: Hooks, node: Node, image: Expr, shape: tuple[int, int], index: Index
              ) -> tuple[Node, Expr, int] | None:
    """(the buffer, where an image begins, elements from a row to the next) of elements of a node,
    of rows and columns of a `shape`; None where they don't lie in rows."""
    row, column = (E.var(name, extent=n) for name, n in zip(("t", "d"), shape))
    place = hooks.place(node, index(image, row, column))
    if place is None:
        return None
    terms, constant = E.linear(place[1])
    pitch, step = terms.pop(row, 0), terms.pop(column, 0)
    if not same(step, 1) or any({"t", "d"} & atom.free for atom in terms):
        return None
    return place[0], E.from_linear(terms, constant), pitch


def _joined(hooks: Hooks, node: Node, count: int) -> list[tuple[int, str]]:
    """Lengths and types of what is concatenated to `count` rows of an operand."""
    while node not in hooks.names and node.inputs:
        if node.op == "concat":
            axis = norm_axis(node.attr("axis"), node.type.rank)
            found = [(n.type.dims[axis], n.type.dtype) for n in node.inputs]
            if same(sum(length for length, _ in found), count):
                return [part for part in found if not same(part[0], 0)]
        node = node.inputs[0]
    return [(count, "f32")]
