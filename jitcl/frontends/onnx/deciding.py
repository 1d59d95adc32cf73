"""Which inputs' values become part of a specialisation, since they decide shapes: sizes that are
fed, and what is computed from few numbers as exporters compute sizes. Never data: where tokens
decide how long a result is, kernels compute the length, and the model is cut there.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitcl import dtypes
from jitcl.errors import UnsupportedError
from jitcl.frontends.onnx.problems import Cut
from jitcl.ir.graph import Node, toposort
from jitcl.ir.sizes import at_least_always, same
from jitcl.ops.builder import lookup

MOST_READ = 4096                        # elements of an input that a node's rule reads itself
MOST_DERIVED = {True: 16, False: 4}     # of one that its operand is computed from: integers, floats
SHAPE_ARITHMETIC = ("elementwise", "movement", "creation")      # kinds of ops, on few elements


def varying(node: Node) -> list[Node]:
    """What depends on inputs among the nodes that a node is computed from, itself among them."""
    found: dict[Node, None] = {}
    for n in toposort([node]):
        if n.op == "input" or any(i in found for i in n.inputs):
            found[n] = None
    return list(found)


def weigh(nodes: Sequence[Node], read: bool) -> None:
    """Raise unless the inputs among `nodes` are worth a specialisation for each of their values:
    UnsupportedError where a large input is read itself, Cut where a value is computed that kernels
    had better compute. nodes: of `varying`; what they cost here is bounded.
    """
    arithmetic = read or all(n.op == "input" or _shape_arithmetic(n) for n in nodes)
    for node in nodes:
        if node.op != "input":
            continue
        most = MOST_READ if read else MOST_DERIVED[not dtypes.is_float(node.type.dtype)]
        if arithmetic and at_least_always(most, node.type.size):
            continue
        text = (f"its parameters depend on the data of input '{node.attr('name')}' {node.type}, "
                f"which has {node.type.size} elements here")
        raise UnsupportedError(text) if read else Cut(text)


def _shape_arithmetic(node: Node) -> bool:
    """Whether a node may be on the way from an input to a size: few elements, combined one by one.
    What looks up rows of a table, sums over a text or is a layer makes data, even where a shape
    comes of it in the end.
    """
    kind = lookup(node.op).kind
    few = all(at_least_always(MOST_DERIVED[True], n.type.size) for n in (node, *node.inputs))
    folds = kind == "reduction" and (node.op == "reduce_prod" or same(node.inputs[0].type.size, 1))
    return few and (kind in SHAPE_ARITHMETIC or folds)


__all__ = ["varying", "weigh"]
