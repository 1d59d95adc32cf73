"""The names of a model's nodes, those in bodies and in functions of its own included: what options
for layers are checked against, and which of its nodes each name stands for.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence

from onnx import GraphProto, NodeProto

from jitcl.frontends.onnx import functions
from jitcl.frontends.onnx.model import OnnxModel, label, reads
from jitcl.ir.graph import ModelNode


def named_nodes(model: OnnxModel) -> dict[str, ModelNode]:
    """All nodes by the names that kernels' heads and reports know them by."""
    found: dict[str, ModelNode] = {}
    own = {(f.domain, f.name): f for f in model.proto.functions}

    def scope(nodes: Sequence[NodeProto], prefix: str, inside: str, outputs: Iterable[str],
              around: ChainMap[str, ModelNode]) -> None:
        made = around.new_child()
        for node in nodes:
            name = prefix + label(node)
            named = found.setdefault(name, ModelNode(name, node.op_type, inside))
            for value in reads(node):
                if value in made:
                    made[value].readers.append(name)
            made.update((o, named) for o in node.output if o)
            for body in bodies(node):
                scope(body.node, prefix, name, [v.name for v in body.output], made)
            called = own.get((functions.domain_of(node), node.op_type))
            if called is not None and len(name) < 4096:         # no function calls itself
                scope(called.node, name + "/", name, called.output, ChainMap())
        for value in outputs:
            if inside and value in made:
                made[value].readers.append(inside)

    scope(model.proto.graph.node, "", "", (), ChainMap())
    return found


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in its attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


__all__ = ["named_nodes"]
