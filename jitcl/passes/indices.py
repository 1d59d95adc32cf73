"""Checks of indices, taken out of an imported graph before any other pass sees it.

    %ids = input                               %y = gather(%w, %ids)
    %i = cast(%ids, to=i64)               =>   check: ids in -100 to 99 (node 'embed', Gather)
    %r = index_range(%i, low=.., high=..)
    %y = gather(%w, %r)

An input is checked where its elements are the indices: as it is, of another integer type, moved or
repeated, or with one number added. Kernels clamp all the same (`ops/gather.py`): what is computed
is checked only where JITCL_CHECK_INDICES asks for it, by two more outputs a tensor.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial

from jitcl import dtypes
from jitcl.errors import IndexRangeError
from jitcl.ir.graph import Graph, Node, Origin, rebuild
from jitcl.ir.indices import IndexCheck, outside, range_text
from jitcl.ir.size_ranges import largest, least
from jitcl.ops.builder import GraphBuilder

MOVED = ("reshape", "transpose", "expand", "tile")


def take_checks(graph: Graph, computed: bool) -> tuple[Graph, tuple[IndexCheck, ...]]:
    """(the graph without its `index_range` nodes, what they ask for). `computed`: the graph has
    more outputs, for the checks of what it computes. Raises IndexRangeError for constants.
    """
    checks: dict[IndexCheck, None] = {}
    watched: list[tuple[IndexCheck, Node]] = []
    for node in graph.nodes:
        if node.op != "index_range":
            continue
        found = _check(node, graph.origins.get(node, Origin("", "")))
        if found is None and computed and 0 not in node.type.dims:
            origin = graph.origins.get(node, Origin("", ""))
            found = IndexCheck(f"indices {len(watched)}", node.attr("low"), node.attr("high"),
                               origin.name, origin.op_type, True)
            watched.append((found, node))
        if found is not None:
            checks[found] = None
    outputs = list(graph.outputs)
    for check, node in watched:
        outputs += zip(check.outputs, _extremes(node, len(check.low)))
    if not any(n.op == "index_range" for n in graph.nodes):
        return graph, ()
    wider = replace(graph, outputs=tuple(outputs))
    plain = rebuild(wider, lambda node, inputs: inputs[0] if node.op == "index_range" else
                    node if node.inputs == inputs else node.with_inputs(inputs))
    return plain, tuple(_needed(list(checks)))


def _check(node: Node, origin: Origin) -> IndexCheck | None:
    """The check of the input that holds a node's indices; None where they are computed, or are
    constants (which are in range)."""
    low, high = node.attr("low"), node.attr("high")
    source, added, moved = _traced(node.inputs[0])
    if moved and len(low) > 1:                  # whatever the column is, it lies between these
        low = (functools.reduce(partial(least, general=True), low),)
        high = (functools.reduce(partial(largest, general=True), high),)
    if source.op not in ("input", "const"):
        return None
    low, high = (tuple(b - added for b in bounds) for bounds in (low, high))
    if source.op == "input":
        return IndexCheck(str(source.attr("name")), low, high, origin.name, origin.op_type)
    wrong = outside(source.data, low, high)
    if wrong is not None:
        value, _, n = wrong
        raise IndexRangeError(
            f"node '{origin.name}' ({origin.op_type}): the model's index {value + added} is out of "
            f"range: wanted {range_text(node.attr('low')[n], node.attr('high')[n])}")
    return None


def _traced(node: Node) -> tuple[Node, int, bool]:
    """(where a node's elements come from, what was added to them, whether they were moved)."""
    added, moved = 0, False
    while True:
        if node.op == "cast":
            if not all(dtypes.is_int(n.type.dtype) for n in (node, node.inputs[0])):
                return node, added, moved
        elif node.op in MOVED:
            moved = True
        elif node.op in ("add", "sub") and (number := _number(node.inputs[1])) is not None:
            added += number if node.op == "add" else -number
        elif node.op == "add" and (number := _number(node.inputs[0])) is not None:
            added += number
            node = node.inputs[1]
            continue
        elif node.op != "index_range":
            return node, added, moved
        node = node.inputs[0]


def _number(node: Node) -> int | None:
    """The one number that an integer constant holds."""
    if node.op != "const" or node.type.size != 1 or not dtypes.is_int(node.type.dtype):
        return None
    return int(node.data.reshape(())[()])


def _extremes(node: Node, columns: int) -> tuple[Node, Node]:
    """The least and the greatest index, of each column where they differ in bounds."""
    g, axes = GraphBuilder(), None if columns == 1 else tuple(range(node.type.rank - 1))
    return tuple(f(node, axes=axes, keepdims=False)     # type: ignore[return-value]
                 for f in (g.reduce_min, g.reduce_max))


def _needed(checks: list[IndexCheck]) -> list[IndexCheck]:
    """Those checks that none of the others makes needless."""
    def within(a: IndexCheck, b: IndexCheck) -> bool:
        bounds = (*a.low, *a.high, *b.low, *b.high)
        return a.source == b.source and len(a.low) == len(b.low) and (
            not any(type(v) is not int for v in bounds)
            and all(x >= y for x, y in zip(a.low, b.low))
            and all(x <= y for x, y in zip(a.high, b.high)))
    kept: list[IndexCheck] = []
    for check in checks:
        if not any(within(k, check) for k in kept):
            kept = [k for k in kept if not within(check, k)] + [check]
    return kept
