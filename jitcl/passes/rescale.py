"""Powers of two that keep layers within f16's range: weights of a product are divided by one, and
constants of those that read it multiplied. In f32 that changes no bit of what is not tiny.

    %1 = matmul(%x, %w)                    %1 = matmul(%x, %w / 64)
    %2 = relu(%1)                  =>      %2 = relu(%1)
    %3 = matmul(%2, %v)                    %3 = matmul(%2, %v * 64)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Data, Graph, Node, const, derived, rebuild
from jitcl.ir.group import is_literal
from jitcl.passes.matching import kind
from jitcl.passes.precision import HUGE, TINY, largest_of

NEAR = 4096.0                           # what the largest are brought to: sums grow beyond
Powers = Sequence[tuple[tuple[str, ...], int]]      # (nodes of a kernel, log2 of what divides it)
KEEPS = ("relu", "leaky_relu", "neg", "abs", "max", "min", "add", "sub", "clip", "concat",
         "reshape", "transpose", "expand", "slice", "cast", "max_pool", "average_pool",
         "reduce_max", "reduce_min", "reduce_sum", "reduce_mean")   # f(c x, ..) = c f(x, ..), c > 0


def power_of(largest: float) -> int:
    """Of two, by which magnitudes are divided to lie well within f16's range."""
    if not largest:
        return 0
    power = math.log2(largest / NEAR)
    return math.ceil(power) if power > 0 else math.floor(math.log2(largest))


def rescaled(graph: Graph, powers: Powers) -> Graph:
    """The graph with the results of these products divided, as far as all that reads them allows
    it: the others are as they are.
    """
    scaled: dict[Node, tuple[int, tuple[str, ...]]] = {}
    for node in graph.nodes:
        origin = graph.origins.get(node)
        if origin is not None and _weights(node) is not None:
            for names, power in powers:
                if origin.name in names:
                    scaled[node] = power, names
    while scaled:
        blamed = _Region(graph, scaled).blamed
        if not blamed:
            return rebuild(graph, _Region(graph, scaled).change)
        for node in blamed:
            del scaled[node]
    return graph


def _weights(node: Node) -> int | None:
    """Which operand of a product is constant, floats as they are."""
    if kind(node) == "contraction" and len(node.inputs) == 2:
        return next((i for i, n in enumerate(node.inputs)
                     if n.op == "const" and n.type.dtype in ("f16", "f32")), None)
    return None


class _Region:
    """What is divided, and by what. blamed: the products whose results can't be."""

    def __init__(self, graph: Graph, scaled: dict[Node, tuple[int, tuple[str, ...]]]) -> None:
        self.graph, self.scaled = graph, scaled
        self.power: dict[Node, int] = {}                # of results; 0 of others
        self.of: dict[Node, set[Node]] = {}             # for which products
        self.blamed: set[Node] = set()
        for node in graph.nodes:
            if node.op not in ("input", "const") and not self._goes(node):
                self.blamed |= {*self._sources(node), *({node} & scaled.keys())}
        for _, node in graph.outputs:
            if self.power.get(node):
                self.blamed |= self.of[node]

    def change(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """The node with its constants as they are to be."""
        made = [times(n, by) for n, by in zip(inputs, self._factors(node))] if (
            self.power.get(node) or any(map(self.power.get, node.inputs))) else inputs
        return node if tuple(made) == node.inputs else Node.make(
            node.op, made, node.kwargs, type=node.type)

    def _sources(self, node: Node) -> set[Node]:
        return set().union(*(self.of.get(n, ()) for n in node.inputs))

    def _goes(self, node: Node) -> bool:
        """Whether the node can take its operands as they are, its constants multiplied."""
        powers = {self.power.get(n, 0) for n in node.inputs if n.op != "const"}
        own, names = self.scaled.get(node, (0, ()))
        if not own and not any(powers):
            return True
        if len(powers) != 1:
            return False
        (power,) = powers
        at = _weights(node)
        if at is None and node.op == "mul" and len(node.inputs) == 2:
            at = next((i for i, n in enumerate(node.inputs) if n.op == "const"), None)
            if at is None:
                return False
            own = power if self._within(node) else 0    # one of the kernel's own
        elif at is None:
            if node.op not in KEEPS or not dtypes.is_float(node.type.dtype):
                return False
            own = power
        if own:
            self.power[node] = own
            self.of[node] = {node} if node in self.scaled else self._sources(node)
        return all(_holds(n, by) for n, by in zip(node.inputs, self._factors(node))
                   if n.op == "const")

    def _within(self, node: Node) -> bool:
        """Whether it is computed in the kernel of a product that is divided."""
        origin = self.graph.origins.get(node)
        return origin is not None and any(
            origin.name in self.scaled[n][1] for n in self._sources(node))

    def _factors(self, node: Node) -> list[int]:
        """The powers of two by which operands are multiplied; 0 of all but constants."""
        power = next((self.power[n] for n in node.inputs if self.power.get(n)), 0)
        own = self.power.get(node, 0)
        by = power - own if _weights(node) is not None or node.op == "mul" else -own
        return [by if n.op == "const" and n.type.dtype in ("f16", "f32") else 0
                for n in node.inputs]


def times(node: Node, power: int) -> Node:
    """A constant by a power of two."""
    if not power:
        return node
    data = node.attr("data")
    if is_literal(node):
        return const(np.ldexp(node.data, power).astype(node.data.dtype), node.type.dtype)
    return derived(node.type, f"by 2^{power}", [data], partial(_times, data, power))


def _times(data: Data, power: int) -> np.ndarray:
    return np.asarray(np.ldexp(data.array, power))


def _holds(node: Node, power: int) -> bool:
    """Whether f16 holds the constant then, too, if it does now."""
    if not power:
        return True
    largest = largest_of(node)
    most = largest * 2.0 ** power
    return largest == 0 or (TINY <= most <= HUGE) or not TINY <= largest <= HUGE


__all__ = ["power_of", "rescaled"]
