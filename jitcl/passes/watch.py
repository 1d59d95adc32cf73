"""What the guard of f16 looks at, as further outputs.

Flags: one output, of an element for each of some groups, which is 1 where the group has stored an
infinity or NaN. Kernels write it beside their results (codegen/flags.py): behind each run.

Magnitudes: the largest finite one of what each group stores, and how many elements are not finite
(some may be so in f32, too: -inf of a mask, NaN of an input), by reductions of their own, where
layers are looked for:

    %1 = relu(%0) : f16[1,64,56,56]        %1 = relu(%0) : f16[1,64,56,56]
    return %1                         =>   %2 = where(lost(%1), 0, abs(%1))
                                           %3 = reduce_max(%2) : f32[1,64,1,1]
                                           %4 = reduce_max(%3) : f32[1,1,1,1]
                                           %5 = cast(lost(%1)) : i32[1,64,56,56]
                                           .. reduce_sum, reduce_sum: %7
                                           return %1, %4 as "magnitude 1", %7 as "lost 1"
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from jitcl.ir.graph import Graph, Node, const
from jitcl.ir.group import Flag, Group, Watched
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.matching import kind
from jitcl.passes.precision import names_in, overflows

BOUNDED = ("sigmoid", "hard_sigmoid", "tanh", "softsign", "erf", "sin", "cos", "atan", "sign")
FLAGS = "flags of what is stored"         # an output's name
CHOSEN = ("max_pool", "relu", "max", "min")
SPREADS = ("add", "sub", "mul", "neg", "abs", "cast", "reduce_sum", "reduce_mean", "matmul", "conv",
           "reshape", "transpose", "expand", "concat")


def watchable(group: Group) -> bool:
    """Whether a group stores floats that f32 holds."""
    return group.root.type.dtype in ("f16", "f32") and group.root.type.rank > 0 and (
        0 not in group.root.type.shape)


def may_spoil(group: Group) -> bool:
    """Whether f16 may make an infinity of sound operands: not where values are bounded, nor where
    halves are only moved or chosen from.
    """
    root = group.root
    if root.op in BOUNDED or (root.op == "clip" and all(
            i.op == "const" and not overflows(i) for i in root.inputs[1:])):
        return False
    return not all(n.type.dtype == "f16" for n in group.operands) or not all(
        kind(n) == "movement" or n.op in CHOSEN for n in group.members)


def telling(groups: Sequence[Group], chosen: Collection[int]) -> set[int]:
    """The `chosen` groups less those of which another one tells: where an infinity comes to a group
    by sums and products, it stores an infinity or NaN, too (0 * inf is NaN).
    """
    number = {g.root: i for i, g in enumerate(groups)}
    left, told = set(chosen), set(chosen)
    for i in reversed(range(len(groups))):          # readers come first
        if i in told:
            for x in groups[i].operands:
                if x in number and _spreads(groups[i], x):
                    left.discard(number[x])
                    told.add(number[x])
    return left


def _spreads(group: Group, x: Node) -> bool:
    """Whether the group stores something that is not finite where any element of x isn't."""
    reached = {x}
    for n in group.members:
        if n.op in SPREADS and n.type.dtype in ("f16", "f32") and not reached.isdisjoint(n.inputs):
            strides = (*n.attr("strides"), *n.attr("dilations")) if n.op == "conv" else ()
            if all(s == 1 for s in strides):        # else it may leave out elements
                reached.add(n)
    return group.root in reached


def flag(graph: Graph, groups: Sequence[Group], chosen: Collection[int]
         ) -> tuple[Graph, list[Group], tuple[Watched, ...]]:
    """The graph and its groups, of which `chosen` ones tell in an output that what they store is
    not finite. The last group is the flags' own: their zeros, which are written first.
    """
    numbers = [n for n in sorted(chosen) if watchable(groups[n])]
    if not numbers:
        return graph, list(groups), ()
    zero = const(np.zeros((), np.int32), "i32")
    flags = Node.make("expand", (zero,), {"shape": (len(numbers),)},
                      type=TensorType("i32", (len(numbers),)))
    made, watched = list(groups), []
    place = {node: k for k, (_, node) in enumerate(graph.outputs)}
    for k, n in enumerate(numbers):
        made[n] = replace(groups[n], flag=Flag(flags, k))
        watched.append(Watched(FLAGS, n, tuple(names_in(groups[n], graph).items()),
                               place.get(groups[n].root, -1), k))
    made.append(Group(flags, frozenset()))
    return replace(graph, outputs=(*graph.outputs, (FLAGS, flags))), made, tuple(watched)


def watch(graph: Graph, groups: Sequence[Group], chosen: Collection[int]
          ) -> tuple[Graph, list[Group], tuple[Watched, ...]]:
    """The graph and its groups, which also give of what `chosen` ones store the largest finite
    magnitude and, behind it, how many elements are not finite.
    """
    g = GraphBuilder()
    outputs, made, watched = list(graph.outputs), list[Group](), list[Watched]()
    place = {node: k for k, (_, node) in enumerate(graph.outputs)}
    for number, group in enumerate(groups):
        made.append(group)
        if number not in chosen or not watchable(group):
            continue
        x = group.root if group.root.type.dtype == "f32" else g.cast(group.root, to="f32")
        lost = g.or_(g.isnan(x), g.isinf(x))
        rank = group.root.type.rank
        within = tuple(range(2, rank)) if rank > 2 else (rank - 1,)
        for name, value, reduce in (
                (f"magnitude {number}", g.where(lost, 0.0, g.abs(x)), g.reduce_max),
                (f"lost {number}", g.cast(lost, to="i32"), g.reduce_sum)):
            rows = reduce(value, axes=within, keepdims=True)
            inlined = {n for n in (x, value, *value.inputs, *lost.inputs)
                       if n is not group.root and n.op not in ("const", "input")}
            made.append(Group(rows, frozenset(inlined), rows))
            last = rows
            if rank > len(within):
                last = reduce(rows, axes=tuple(range(rank - len(within))), keepdims=True)
                made.append(Group(last, frozenset(), last))
            outputs.append((name, last))
            watched.append(Watched(name, number, tuple(names_in(group, graph).items()),
                                   place.get(group.root, -1)))
    return replace(graph, outputs=tuple(outputs)), made, tuple(watched)


__all__ = ["flag", "may_spoil", "telling", "watch", "watchable"]
