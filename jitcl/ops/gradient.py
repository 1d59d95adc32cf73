"""Reverse-mode differentiation of graphs: what the training op Gradient asks for.

A rule gives, for the gradient of a node's result, those of its operands (Griewank and Walther,
2008, "Evaluating derivatives"); composites are differentiated through the graphs that they stand
for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from jitcl import dtypes
from jitcl.errors import UnsupportedError
from jitcl.ir.graph import Node, toposort
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import OPS, norm_axes, norm_axis, reduced

# rule(g, node, gradient of its result) -> gradients of its operands, None where there is none
Rule = Callable[[GraphBuilder, Node, Node], Sequence[Node | None]]
_SAME = ("input", "const")


def gradients(g: GraphBuilder, y: Node, xs: Sequence[Node]) -> tuple[Node, ...]:
    """The derivative of the sum of y's elements by each of xs, shaped as it; zeros where y does not
    depend on it. UnsupportedError naming an op on the way that has no derivative here."""
    y = _expanded(g, y, set(xs))
    order = toposort([y])
    reached = _depending(order, set(xs))
    found: dict[Node, Node] = {y: g.const(np.ones(y.type.dims), y.type.dtype)}
    for node in reversed(order):
        given = found.get(node)
        if given is None or node not in reached or node.op in _SAME or node in xs:
            continue
        rule = RULES.get(node.op)
        if rule is None:
            raise UnsupportedError(f"differentiates through '{node.op}', of which jitcl has no "
                                   f"derivative: it has {', '.join(sorted(RULES))}")
        for source, part in zip(node.inputs, rule(g, node, given), strict=False):
            if part is None or source not in reached:
                continue
            part = _fitted(g, part, source)
            found[source] = g.add(found[source], part) if source in found else part
    return tuple(found[x] if x in found else g.const(np.zeros(x.type.dims), x.type.dtype)
                 for x in xs)


def _expanded(g: GraphBuilder, y: Node, keep: set[Node]) -> Node:
    """y with composites that have no rule of their own replaced by what they stand for."""
    made: dict[Node, Node] = {}
    for node in toposort([y]):
        if node in keep or node.op in _SAME:
            made[node] = node
            continue
        inputs = tuple(made[i] for i in node.inputs)
        op = OPS[node.op]
        if op.expand is not None and node.op not in RULES:
            made[node] = _expanded(g, op.expand(g, *inputs, **node.kwargs), {*keep, *inputs})
        else:
            made[node] = node if inputs == node.inputs else node.with_inputs(inputs)
    return made[y]


def _depending(order: Sequence[Node], xs: set[Node]) -> set[Node]:
    """Nodes of floats that one of xs reaches."""
    reached = set(xs)
    for node in order:
        if any(i in reached for i in node.inputs) and dtypes.is_float(node.type.dtype):
            reached.add(node)
    return reached


def _fitted(g: GraphBuilder, part: Node, source: Node) -> Node:
    """A gradient summed over the axes along which its operand was broadcast."""
    have, want = part.type.dims, source.type.dims
    if have == want:
        return part
    lead = len(have) - len(want)
    axes = tuple(a for a, d in enumerate(have) if a < lead or (want[a - lead] == 1 and d != 1))
    return g.reshape(g.reduce_sum(part, axes=axes, keepdims=False) if axes else part, shape=want)


# ---- rules


def _matmul(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node]:
    a, b = node.inputs

    def flipped(x: Node) -> Node:
        rank = x.type.rank
        return g.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))
    return g.matmul(d, flipped(b)), g.matmul(flipped(a), d)


def _spread(g: GraphBuilder, node: Node, d: Node) -> Node:
    """A reduction's gradient at every element that it read."""
    x = node.inputs[0]
    axes = norm_axes(node.kwargs.get("axes"), x.type.rank)
    return g.expand(g.reshape(d, shape=reduced(x.type.dims, axes, True)), shape=x.type.dims)


def _mean(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node]:
    x = node.inputs[0]
    count = math.prod(x.type.dims[a] for a in norm_axes(node.kwargs.get("axes"), x.type.rank))
    return (g.mul(_spread(g, node, d), 1.0 / count),)


def _extreme(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node]:
    """All of it to each element that is the extreme."""
    x = node.inputs[0]
    axes = norm_axes(node.kwargs.get("axes"), x.type.rank)
    top = g.reshape(node, shape=reduced(x.type.dims, axes, True))
    return (g.where(g.equal(x, top), _spread(g, node, d), g.const(0, x.type.dtype)),)


def _transpose(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node]:
    perm = node.kwargs["perm"]
    return (g.transpose(d, perm=tuple(int(a) for a in np.argsort(perm))),)


def _concat(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node]:
    axis, start, found = norm_axis(node.kwargs["axis"], d.type.rank), 0, []
    for x in node.inputs:
        end = start + x.type.dims[axis]
        found.append(g.slice(d, starts=(start,), ends=(end,), axes=(axis,)))
        start = end
    return found


def _pow(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node | None]:
    x, p = node.inputs
    if p.op != "const":
        raise UnsupportedError("differentiates x^y where y is no constant")
    return g.mul(d, g.mul(p, g.pow(x, g.sub(p, 1.0)))), None


def _chosen(g: GraphBuilder, node: Node, d: Node, first: str) -> Sequence[Node]:
    """max and min: all of it to the operand that won; to the first where they are equal."""
    a, b = node.inputs
    wins, zero = g.op(first, a, b), g.const(0, d.type.dtype)
    return g.where(wins, d, zero), g.where(wins, zero, d)


def _select(g: GraphBuilder, node: Node, d: Node) -> Sequence[Node | None]:
    zero = g.const(0, d.type.dtype)
    return None, g.where(node.inputs[0], d, zero), g.where(node.inputs[0], zero, d)


def _one_minus_square(g: GraphBuilder, y: Node) -> Node:
    return g.sub(g.const(1, y.type.dtype), g.mul(y, y))


RULES: dict[str, Rule] = {
    "add": lambda g, n, d: (d, d), "sub": lambda g, n, d: (d, g.neg(d)),
    "mul": lambda g, n, d: (g.mul(d, n.inputs[1]), g.mul(d, n.inputs[0])),
    "div": lambda g, n, d: (g.div(d, n.inputs[1]), g.neg(g.div(g.mul(d, n), n.inputs[1]))),
    "neg": lambda g, n, d: (g.neg(d),), "abs": lambda g, n, d: (g.mul(d, g.sign(n.inputs[0])),),
    "exp": lambda g, n, d: (g.mul(d, n),), "log": lambda g, n, d: (g.div(d, n.inputs[0]),),
    "sqrt": lambda g, n, d: (g.div(d, g.mul(n, 2.0)),),
    "sin": lambda g, n, d: (g.mul(d, g.cos(n.inputs[0])),),
    "cos": lambda g, n, d: (g.neg(g.mul(d, g.sin(n.inputs[0]))),),
    "tanh": lambda g, n, d: (g.mul(d, _one_minus_square(g, n)),),
    "sigmoid": lambda g, n, d: (g.mul(d, g.sub(n, g.mul(n, n))),),
    "reciprocal": lambda g, n, d: (g.neg(g.mul(d, g.mul(n, n))),),
    "relu": lambda g, n, d: (g.where(g.greater(n.inputs[0], 0.0), d, g.const(0, d.type.dtype)),),
    "pow": _pow, "max": lambda g, n, d: _chosen(g, n, d, "greater_or_equal"),
    "min": lambda g, n, d: _chosen(g, n, d, "less_or_equal"), "where": _select, "matmul": _matmul,
    "cast": lambda g, n, d: (g.cast(d, to=n.inputs[0].type.dtype),),
    "reshape": lambda g, n, d: (g.reshape(d, shape=n.inputs[0].type.dims),),
    "expand": lambda g, n, d: (d,), "transpose": _transpose, "concat": _concat,
    "reduce_sum": lambda g, n, d: (_spread(g, n, d),), "reduce_mean": _mean, "reduce_max": _extreme,
    "reduce_min": _extreme}
