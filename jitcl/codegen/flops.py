"""FLOPs of groups, as rooflines count them: of what is asked for, not of what a kernel repeats.

A kernel may compute an inlined value again for each of its readers, choose between a value and
the zero of a padding, or fill a halo. None of that counts: each node's arithmetic counts once.
"""

from __future__ import annotations

import math
from functools import lru_cache

from jitcl.codegen.lower import lower
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node, graph_input
from jitcl.ir.group import Chain, Group, is_literal
from jitcl.ir.kernel import Accum, Kernel, counted, expressions
from jitcl.ir.sizes import has_size
from jitcl.ops.builder import lookup
from jitcl.ops.cost import element_cost, expr_cost


def group_flops(group: Group) -> int:
    """FLOPs of all nodes of a group."""
    if isinstance(group, Chain):
        return sum(group_flops(part) for part in group.parts)
    return sum(node_flops(node) for node in group.members)


def node_flops(node: Node) -> int:
    """FLOPs of a node by itself: of an elementwise one by its body, of others by their kernel."""
    kind = lookup(node.op).kind
    if kind == "elementwise":
        return node.type.size * element_cost(node)
    if kind == "movement":
        return 0
    types = [n.type for n in (node, *node.inputs)]
    if has_size([[t.shape for t in types], [value for _, value in node.attrs]]):
        return _computed(node)
    return _computed_once(node.with_inputs(
        i if is_literal(i) else graph_input(f"x{node.inputs.index(i)}", i.type)
        for i in node.inputs))


def _computed(node: Node) -> int:
    flops, stored = kernel_flops(lower(Group(node, frozenset(), node), "count").kernel), node.type
    if stored.physical == stored.dims:
        return flops
    return flops * stored.size // math.prod(stored.physical)     # without halo and padding lanes


_computed_once = lru_cache(maxsize=4096)(_computed)      # of nodes on inputs, which keep no weights


def kernel_flops(kernel: Kernel) -> int:
    """FLOPs of one run: each statement's arithmetic times its trips."""
    total = 0
    for stmt, trips in counted(kernel.body):
        total += trips * (sum(map(_arithmetic, expressions(stmt))) + isinstance(stmt, Accum))
    return total


def _arithmetic(value: Expr) -> int:
    """FLOPs of an expression without its choices."""
    choices = sum(e.op == "select" and e.dtype not in ("bool", "index") for e in E.walk(value))
    return expr_cost(value) - choices


__all__ = ["group_flops", "kernel_flops", "node_flops"]
