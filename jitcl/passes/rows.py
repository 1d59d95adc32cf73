"""Planes whose rows are padded to whole vectors, for GPUs that read and write a vector at once only
where its address is a multiple of it.
"""

from __future__ import annotations

from jitcl.ir.graph import Graph, Node, rebuild
from jitcl.ir.sizes import same
from jitcl.ir.types import Layout
from jitcl.ops.builder import lookup

ROWS = Layout("rows", 4)                         # elements of a vector
MOST = 4 / 3                                     # of its elements that a plane has with padding
WINDOWS = ("conv", "max_pool", "average_pool")


def pad_rows(graph: Graph) -> Graph:
    """The graph with padded planes where neither their rows nor they are whole vectors, and all who
    read them go along. Inputs and outputs stay row-major.
    """
    readers, outputs = graph.readers(), {n for _, n in graph.outputs}
    chosen = {n for n in graph.nodes if n not in outputs and _odd(n)}
    left: set[Node] = set()
    while left != chosen:
        left = set(chosen)
        chosen = {n for n in left if _written(n, left)
                  and all(_read(n, r, left) for r in readers[n])}
    if not chosen:
        return graph
    return rebuild(graph, lambda node, inputs: Node.make(
        node.op, inputs, node.kwargs,
        type=node.type.with_(layout=ROWS) if node in chosen else node.type))


def _odd(node: Node) -> bool:
    dims = node.type.shape
    if node.op in ("input", "const") or len(dims) != 4 or same(node.type.size, 0):
        return False
    if not all(type(d) is int for d in dims):
        return False
    plane = node.type.dims[2] * node.type.dims[3]
    return (node.type.dtype in ("f32", "f16") and plane % ROWS.block != 0
            and node.type.with_(layout=ROWS).physical[3] <= MOST * node.type.dims[3])


def _written(node: Node, chosen: set[Node]) -> bool:
    """Whether its kernel writes padding: of a window, or of what is padded alike itself."""
    if node.op in WINDOWS:
        return True
    if node.op == "concat":
        return node.attr("axis") != 3 and all(i in chosen for i in node.inputs)
    full = [i for i in node.inputs if i.type.rank and i.type.shape[-1] != 1]
    return lookup(node.op).kind == "elementwise" and bool(full) and all(i in chosen for i in full)


def _read(node: Node, reader: Node, chosen: set[Node]) -> bool:
    """Whether a reader takes padded planes as well as others."""
    if reader.op in WINDOWS:
        return node is reader.inputs[0] and node not in reader.inputs[1:]
    return reader in chosen or lookup(reader.op).kind == "reduction"
