"""Concatenations that nobody copies: what is joined is written into its place.

    a = conv(..)                    y  ┌─────────┬───────────┐
    b = resize(..)            =>       │ a, conv │ b, resize │   one allocation, no kernel for y
    y = concat(a, b, axis=1)           └─────────┴───────────┘

That is so where each operand is one run of bytes of the result: all axes before the joined one are
1, which in blocks of channels means a batch of 1 and whole blocks. Operands that the copy would
have computed on its way (transposes, say) become groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitcl.ir.graph import Graph, Node, toposort
from jitcl.ir.group import Chain, Group, Join
from jitcl.ir.types import ROW, TensorType
from jitcl.ops.core import norm_axis

ALIGNMENT = 64                          # bytes: where vectors may begin


def in_place(graph: Graph, groups: Sequence[Group]) -> list[Group]:
    """The groups, concatenations as `Join` where they can be."""
    fixed = {n for _, n in graph.outputs} | set(graph.inputs)
    roots = {g.root: g for g in groups}
    parts: set[Node] = set()            # that have a place already
    found: list[Group] = []
    for group in groups:
        own = _operands(group, roots, fixed | parts)
        if own is None:
            found.append(group)
            continue
        parts.update(group.root.inputs)
        parts.add(group.root)
        found += [*own, Join(group.root, frozenset())]
    return found


def _operands(group: Group, roots: dict[Node, Group], taken: set[Node]) -> list[Group] | None:
    """Groups that write the operands that have none yet; None where the concatenation must be one
    of copies.
    """
    root = group.root
    if root.op != "concat" or root in taken or isinstance(group, Chain) or group.anchor is not None:
        return None
    axis = norm_axis(root.attr("axis"), root.type.rank)
    if len(set(root.inputs)) < len(root.inputs) or not _contiguous(root.type, axis):
        return None
    made: list[Group] = []
    for x in root.inputs:
        if x in taken or not _contiguous(x.type, axis):
            return None
        if (x.type.layout, x.type.dtype) != (root.type.layout, root.type.dtype):
            return None
        if x in group.inlined:
            inlined = {n for n in toposort([x]) if n in group.inlined}
            made.append(Group(x, frozenset(inlined - {x}), flag=group.flag))
        elif x not in roots:            # an input or a constant
            return None
        if _is_view(made[-1] if x in group.inlined else roots[x]):
            return None
    return made


def _contiguous(t: TensorType, axis: int) -> bool:
    """Whether a part along the axis is one run of bytes; not known of sizes that are no numbers."""
    if not all(type(d) is int for d in t.physical) or t.nbytes == 0 or t.nbytes % ALIGNMENT:
        return False
    if t.layout == ROW:
        return all(d == 1 for d in t.dims[:axis])
    blocks = t.layout.kind == "NCHWc" and not t.layout.halo and t.dims[1] % t.layout.block == 0
    return blocks and axis == 1 and t.dims[0] == 1


def _is_view(group: Group) -> bool:
    """Whether the root has no bytes of its own (generate.view), or may have none."""
    return group.root.op == "reshape" and not group.inlined
