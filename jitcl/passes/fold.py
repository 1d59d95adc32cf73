"""Constant folding: what depends on constants alone is computed now, by the ops' NumPy references."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Graph, Node, const, rebuild
from jitcl.ops.builder import checked, lookup
from jitcl.passes.base import Pass


@dataclass(frozen=True)
class FoldConstants(Pass):
    """%2 = add(const 1.0, const 2.0)    =>    const 3.0

    Not where the result is much larger than the operands (an expanded constant would fill memory and the cache);
    such nodes are cheap to inline where they are read.
    """

    max_growth_bytes: int = 64 << 10

    def run(self, graph: Graph) -> Graph:
        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            node = node if node.inputs == inputs else node.with_inputs(inputs)
            if node.op in ("input", "const") or any(i.op != "const" for i in inputs):
                return node
            if node.type.nbytes > sum(i.type.nbytes for i in inputs) + self.max_growth_bytes:
                return node
            value = lookup(node.op).ref(*(i.data for i in inputs), **node.kwargs)
            return const(checked(node, value), node.type.dtype)
        return rebuild(graph, change)
