"""Composites (softmax, LayerNorm, GELU, attention) become the small graphs that define them."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Graph, Node, rebuild, toposort
from jitcl.ops.builder import GraphBuilder, lookup
from jitcl.passes.base import Pass


@dataclass(frozen=True)
class Decompose(Pass):
    """Expand every composite, and what composites expand to, except those in `keep`.

        %1 = softmax(%x) {axis=1}    =>    %m = reduce_max(%x) {axes=[1]} ... %1 = div(%e, %s)
    """

    keep: frozenset[str] = frozenset()

    def run(self, graph: Graph) -> Graph:
        g = GraphBuilder()

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            node = node if node.inputs == inputs else node.with_inputs(inputs)
            if node.op in ("input", "const") or node.op in self.keep:
                return node
            return self._expand(g, node)

        return rebuild(graph, change)

    def _expand(self, g: GraphBuilder, node: Node) -> Node:
        expand = lookup(node.op).expand
        if expand is None:
            return node
        result: Node = expand(g, *node.inputs, **node.kwargs)
        new: dict[Node, Node] = {n: n for n in node.inputs}
        for n in toposort([result]):
            if n in new:
                continue
            n2 = n.with_inputs(new[i] for i in n.inputs)
            inner = n2.op not in ("input", "const", *self.keep) and lookup(n2.op).expand is not None
            new[n] = self._expand(g, n2) if inner else n2
        return new[result]
