"""A function call as the nodes of its body, in the names of the graph that calls it: so that a
program can cut inside of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from jitcl.frontends.onnx import functions


def body_nodes(
    call: NodeProto, function: FunctionProto, opset: int, prefix: str
) -> list[NodeProto]:
    """The nodes of a function's body on the operands of a call; `prefix` makes inner names unique.
    """
    bound = functions.defaults(call, function, opset)
    bound.update({a.name: a for a in call.attribute})
    names: dict[str, str] = {"": ""}
    names.update(dict.fromkeys(function.input, ""))
    names.update(zip(function.input, call.input))
    renamed = {o for n in function.node for o in n.output if o}
    names.update({o: prefix + o for o in renamed if o not in names})
    names.update({o: c for o, c in zip(function.output, call.output) if c and o in renamed})
    nodes = [_renamed(n, names, bound) for n in function.node]
    return [*nodes, *_passed_on(call, function, renamed, names)]


def _passed_on(
    call: NodeProto, function: FunctionProto, made: set[str], names: Mapping[str, str]
) -> list[NodeProto]:
    """Outputs of a function that are inputs of it."""
    return [
        NodeProto(op_type="Identity", input=[names[o]], output=[c])
        for o, c in zip(function.output, call.output) if c and o not in made
    ]


def _renamed(
    node: NodeProto, names: Mapping[str, str], bound: Mapping[str, AttributeProto]
) -> NodeProto:
    """A node in the caller's names, its attributes resolved; subgraphs included."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(i, i) for i in node.input]
    copy.output[:] = [names.get(o, o) for o in node.output]
    del copy.attribute[:]
    copy.attribute.extend(functions.resolve(node, dict(bound)))
    for a in copy.attribute:
        if a.HasField("g"):
            _rename_graph(a.g, names, bound)
        for graph in a.graphs:
            _rename_graph(graph, names, bound)
    return copy


def _rename_graph(
    graph: GraphProto, names: Mapping[str, str], bound: Mapping[str, AttributeProto]
) -> None:
    """What a body captures gets the caller's names; what it makes itself keeps its own."""
    own = functions.own_names(graph)
    outer = {k: v for k, v in names.items() if k not in own}
    nodes: Sequence[NodeProto] = [_renamed(n, outer, bound) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


__all__ = ["body_nodes"]
