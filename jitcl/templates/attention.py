"""Which chains of groups are attention, for templates of every language:

    scores = epilogue(matmul(q, k)),  p = softmax(scores),  y = epilogue(matmul(p, v))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.passes.matching import scalar
from jitcl.templates.matmul import Shape


@dataclass(frozen=True)
class Attention:
    """The products of a chain; `guarded`: rows of NaN are zeros."""

    scores: Shape
    result: Shape
    guarded: bool


def pattern(chain: Group, product_of: Callable[[Group], Shape | None]) -> Attention | None:
    """The products of a chain that is attention; None of any other group. product_of: the product
    that a group is, where its template computes it.
    """
    first, softmax, last = chain.parts
    scores, result = product_of(first), product_of(last)
    if scores is None or result is None or not _plain(first) or not _plain(last):
        return None
    assert last.anchor is not None
    if last.anchor.inputs[0] is not softmax.root or first.root in last.operands:
        return None
    same_rows = (scores.batch, scores.m) == (result.batch, result.m)
    guarded = softmax_of(softmax, first.root)
    if not same_rows or scores.n != result.k or guarded is None:
        return None
    return Attention(scores, result, guarded)


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
