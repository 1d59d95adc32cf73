"""What the groups of a fused graph must be."""

from __future__ import annotations

from collections.abc import Iterable

from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Group


def check_groups(graph: Graph, groups: Iterable[Group]) -> None:
    """AssertionError unless the groups compute every output, and each reads only what stands before
    it.
    """
    stored: set[Node] = set(graph.inputs)
    for group in groups:
        for node in group.operands:
            if node not in stored and node.op != "const":
                raise AssertionError(f"group of '{group.root.op}' {group.root.type} reads "
                                     f"'{node.op}' {node.type}, which no group before it stores")
        stored.add(group.root)
    for name, node in graph.outputs:
        if node not in stored and node.op != "const":
            raise AssertionError(f"output '{name}' ('{node.op}' {node.type}) is stored by no "
                                 "group")
