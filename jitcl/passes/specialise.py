"""Symbolic dimensions become numbers: `specialise(graph, {"batch": 4})`."""

from __future__ import annotations

from collections.abc import Mapping

from jitcl.errors import ShapeError
from jitcl.ir.graph import Graph, Node, graph_input, rebuild
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import infer


def specialise(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """The graph with dimensions bound by name, and every type inferred anew; others stay symbolic.

    ShapeError where a name is unknown, a size is negative, or the sizes do not fit an op. Layouts
    are kept.
    """
    known = symbols(graph)
    for name, size in dims.items():
        if name not in known:
            raise ShapeError(f"dimension '{name}' is not one of this graph's: "
                             f"{', '.join(known) or 'it has none'}")
        if size < 0:
            raise ShapeError(f"dimension '{name}' is bound to {size}, wanted 0 or more")
    if not dims:
        return graph

    def bound(type: TensorType) -> TensorType:
        return type.with_(shape=tuple(
            dims.get(d.name, d) if isinstance(d, Sym) else d for d in type.shape))

    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "input":
            return graph_input(node.attr("name"), bound(node.type))
        if node.op == "const":
            return node
        attrs = {k: _bound_attr(v, dims) for k, v in node.attrs}
        try:
            type = infer(node.op, tuple(i.type for i in inputs), attrs)
        except ShapeError as e:
            origin = graph.origins.get(node)
            where = f"'{origin.name}' ({origin.op_type})" if origin else f"'{node.op}' {node.type}"
            raise ShapeError(f"node {where}: {e}") from e
        return Node.make(node.op, inputs, attrs, type=type.with_(layout=node.type.layout))

    return rebuild(graph, change)


def symbols(graph: Graph) -> list[str]:
    """Names of the dimensions of the inputs that are not known yet, in the order first met."""
    return list(dict.fromkeys(d.name for n in graph.inputs for d in n.type.shape
                              if isinstance(d, Sym)))


def _bound_attr(value: object, dims: Mapping[str, int]) -> object:
    """Shapes among attributes may name dimensions too."""
    if isinstance(value, Sym):
        return dims.get(value.name, value)
    return tuple(_bound_attr(v, dims) for v in value) if isinstance(value, tuple) else value
