"""Attention's probabilities of 16-bit models stay in f32 between softmax and the product with V."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Graph, Node, rebuild
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.base import Pass

NARROW = ("f16", "bf16")


@dataclass(frozen=True)
class WidenSoftmax(Pass):
    """Probabilities lose a third of their digits in f16, and the product with V sums many of them.

        %p = softmax(%s) : f16            %w = softmax(cast(%s) : f32) : f32
        %q = where(%m, %p, %z) : f16  =>  %v = where(%m, %w, cast(%z)) : f32
        %y = matmul(%q, %V) : f16         %y = cast(matmul(%v, cast(%V))) : f16

    Only matmuls take the wide value, through `where` (masks); all other readers get f16 as before.
    The casts cost nothing: arithmetic runs in f32 anyway, and loaders convert. For precision
    "high", where the model's own accuracy matters more than the bytes of one tensor.
    """

    def run(self, graph: Graph) -> Graph:
        g = GraphBuilder()
        wide: dict[Node, Node] = {}

        def f32(node: Node) -> Node:
            return wide.get(node) or g.cast(node, to="f32")

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            node = node if node.inputs == inputs else node.with_inputs(inputs)
            if node.type.dtype not in NARROW:
                return node
            if node.op == "softmax":
                wide[node] = g.op("softmax", f32(inputs[0]), **node.kwargs)
            elif node.op == "where" and any(i in wide for i in inputs[1:]):
                wide[node] = g.where(inputs[0], f32(inputs[1]), f32(inputs[2]))
            elif node.op == "matmul" and inputs[0] in wide:
                product = g.op("matmul", wide[inputs[0]], f32(inputs[1]), **node.kwargs)
                return g.cast(product, to=node.type.dtype)
            return node

        return rebuild(graph, change)
