"""Which types tensors are stored in and computed in: what the model says, or half of it.

    high     as the model says; f16 tensors are stored as f16 and computed in f32
    normal   f32 tensors between kernels are stored as f16, arithmetic stays f32
    low      the same, and arithmetic on f16 tensors is f16 where the device has it (sums stay f32)

Only what is large (or may be, where sizes are not known) is worth halving, and only what survives
it: exponentials, powers and squares, with what is made of them until a logarithm, a root or a
bounded function tames them, reductions and what feeds them alone (a sum of squares passes 65504
soon), and arithmetic with constants that f16 can't hold (an epsilon of 1e-12) stay f32. Inside one
kernel nothing is rounded: an f16 node that is inlined is an f32 value.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from jitcl.errors import UnsupportedError
from jitcl.ir.graph import Graph, Node, const, rebuild
from jitcl.ir.sizes import at_least_always, same
from jitcl.ops.builder import GraphBuilder, lookup
from jitcl.passes.base import Pass
from jitcl.passes.regions import DECODERS, VIEWS
from jitcl.target import Target

log = logging.getLogger("jitcl")

TINY, HUGE = 2.0 ** -14, 65504.0           # f16's smallest normal and largest number
WIDE = ("exp", "pow", "reciprocal", "sinh", "cosh")     # results that leave f16's range soon
TAME = ("log", "sqrt", "tanh", "sigmoid", "erf", "clip", "div", "softplus", "atan")
LISTED = 8                                 # nodes that an error names


def half_arithmetic(target: Target, precision: str) -> bool:
    """Whether generated loops compute f16 tensors in f16: under "low", where the device can."""
    return precision == "low" and target.kind == "opencl" and target.fp16_arithmetic


@dataclass(frozen=True)
class CheckTypes(Pass):
    """UnsupportedError that names the nodes whose element types the device can't hold; the graph
    stays as it is.
    """

    target: Target

    def run(self, graph: Graph) -> Graph:
        for dtype, able in (("f64", self.target.fp64), ("bf16", self.target.bf16_storage),
                            ("f16", self.target.fp16_storage or self.target.soft_half)):
            bad = [n for n in graph.nodes if n.type.dtype == dtype and n.op != "const"]
            if bad and not able:
                raise UnsupportedError(self._message(graph, bad, dtype))
        return graph

    def _message(self, graph: Graph, bad: list[Node], dtype: str) -> str:
        names = [self._place(graph, n) for n in bad]
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        return (f"device '{self.target.name}' has no {dtype}, which {len(bad)} nodes compute: "
                f"{', '.join(names[:LISTED])}{more}\n"
                f"  Export the model in float32, or take a device with {dtype}: see jitcl devices.")

    @staticmethod
    def _place(graph: Graph, node: Node) -> str:
        if node.op == "input":
            return f"input '{node.attr('name')}' {node.type}"
        origin = graph.origins.get(node)
        return f"'{origin.name}' ({origin.op_type})" if origin else f"'{node.op}' {node.type}"


@dataclass(frozen=True)
class AssignPrecision(Pass):
    """Store f32 tensors as f16 where the option allows and the values survive it.

        %1 = conv(%x, w) : f32[1,64,56,56]            %1 = conv(%x, w) : f32[1,64,56,56]
        %2 = conv(%1, v) : f32[1,64,56,56]      =>    %2 = cast(%1) {to='f16'}
                                                      %3 = conv(%2, v16) : f16[1,64,56,56]
                                                      %4 = cast(%3) {to='f32'}      (an output
                                                      keeps its type)
    """

    precision: str
    target: Target
    small_bytes: int = 4096                # tensors up to here stay f32

    def run(self, graph: Graph) -> Graph:
        if self.precision == "high":
            return graph
        if not self.target.fp16_storage:
            log.warning("precision=%s: device '%s' cannot store f16; tensors stay f32",
                        self.precision, self.target.name)
            return graph
        return _Halver(graph, self.small_bytes).run()


class _Halver:
    """Chooses f16 or f32 for every f32 node, and casts where the two meet."""

    def __init__(self, graph: Graph, small_bytes: int) -> None:
        self.graph, self.small = graph, small_bytes
        self.readers = graph.readers()
        self.outputs = {n for _, n in graph.outputs}
        self.g = GraphBuilder()
        self.half: dict[Node, bool] = {}
        self.wide: set[Node] = set()           # values that may leave f16's range

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if self._widens(node):
                self.wide.add(node)
            self.half[node] = node.type.dtype == "f32" and self._halved(node)
        graph = rebuild(self.graph, self._change)
        outputs = tuple((name, self._as(new, old.type.dtype))
                        for (name, new), (_, old) in zip(graph.outputs, self.graph.outputs))
        return Graph(graph.name, graph.inputs, outputs, graph.origins)

    def _kind(self, node: Node) -> str:
        return "" if node.op in ("input", "const") else lookup(node.op).kind

    def _halved(self, node: Node) -> bool:
        kind = self._kind(node)
        if kind in ("", "reduction", "sort", "recurrence") or (
                at_least_always(self.small, node.type.nbytes)):
            return False
        if node.op in DECODERS:
            return False                       # scales are among the smallest numbers of a model
        if any(r.op in ("bitcast", "power_of_two") for r in self.readers[node]):
            return False                       # whose bits are looked at
        if node in self.wide or any(i in self.wide for i in node.inputs):
            return False
        if kind == "elementwise":
            only_output = node in self.outputs and not self.readers[node]
            return not (only_output or self._fragile(node))
        floats = [i for i in node.inputs if i.type.dtype == "f32" and i.op != "const"]
        if kind == "movement":
            return any(self.half[i] for i in floats)
        if not all(_fits(i.data) for i in node.inputs if i.op == "const" and i.type.dtype == "f32"):
            return False
        # what reads the graph's inputs reads them as they come: a cast before it would be one
        # more kernel
        return not floats or any(not self._from_input(i) for i in floats)

    def _widens(self, node: Node) -> bool:
        """Exponentials, powers, squares, and what is computed from them before a tame op."""
        if node.type.dtype != "f32" or self._kind(node) in ("", "reduction"):
            return False
        if node.op in TAME:
            return node.op == "clip" and not all(i.op == "const" for i in node.inputs[1:])
        square = node.op == "mul" and node.inputs[0] is node.inputs[1]
        if node.op == "cast" and node.inputs[0].type.dtype == "f8e8m0":
            return True                        # powers of two from 2^-127 to 2^127
        return square or node.op in WIDE or any(i in self.wide for i in node.inputs)

    def _from_input(self, node: Node) -> bool:
        while node.op in VIEWS:
            node = node.inputs[0]
        return node.op == "input"

    def _fragile(self, node: Node) -> bool:
        """Values that f16 loses: made of sums or of constants outside its range, or made for
        sums alone.
        """
        floats = [i for i in node.inputs if i.type.dtype == "f32"]
        if not all(_fits(i.data) for i in floats if i.op == "const"):
            return True
        if any(self._kind(i) == "reduction" or not same(i.type.size, node.type.size)
               for i in floats if i.op != "const" and not self.half[i]):
            return True
        readers = self.readers[node]
        return bool(readers) and all(self._kind(r) == "reduction" for r in readers)

    def _change(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op in ("input", "const"):
            return node
        if not any(i.type.dtype == "f32" for i in node.inputs) and node.type.dtype != "f32":
            return node if node.inputs == inputs else node.with_inputs(inputs)
        if node.op == "cast":
            return self._cast(node, inputs[0])
        wanted = "f16" if self.half[node] else "f32"
        given = [self._as(new, wanted) if old.type.dtype == "f32" else new
                 for old, new in zip(node.inputs, inputs)]
        return self.g.op(node.op, *given, **node.kwargs)

    def _cast(self, node: Node, x: Node) -> Node:
        to = node.type.dtype
        return self._as(x, "f16" if to == "f32" and self.half[node] else to)

    def _as(self, node: Node, dtype: str) -> Node:
        if node.type.dtype == dtype:
            return node
        if node.op == "const":
            return const(node.data, dtype)
        return self.g.cast(node, to=dtype)


def _fits(values: np.ndarray) -> bool:
    """Whether f16 holds all values: none too large, and no number (but 0) too small to keep its
    digits.
    """
    size = np.abs(values[np.isfinite(values)])
    if size.size == 0:
        return True
    if size.size == 1:
        return bool(size[0] == 0 or TINY <= size[0] <= HUGE)
    return bool(size.max() <= HUGE)        # among many weights, the smallest matter little
