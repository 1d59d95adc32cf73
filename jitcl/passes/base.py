"""What a pass is, and how passes run: each verified, each observable before and after."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitcl.errors import VerifyError
from jitcl.ir.graph import Graph, Node, rebuild
from jitcl.ops.builder import GraphBuilder

Observe = Callable[[str, Graph, float], None]    # (pass name, graph after it, seconds)

MAX_SWEEPS = 32                # a pass that still finds something then goes in circles
MAX_STEPS = 64                 # rewrites of one node in one sweep


@dataclass(frozen=True)
class Pass(ABC):
    """A graph rewrite. Subclasses are dataclasses: their fields are their options, their
    docstring shows before and after."""

    @property
    def name(self) -> str:
        """FoldConstants -> fold-constants."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    @abstractmethod
    def run(self, graph: Graph) -> Graph:
        """The rewritten graph."""


class Rewriter(GraphBuilder):
    """What a rewrite builds its nodes with, and asks for readers."""

    def __init__(self, graph: Graph) -> None:
        self._count: dict[Node, int] = {n: len(r) for n, r in graph.readers().items()}
        for _, node in graph.outputs:
            self._count[node] += 1
        self._now: dict[Node, int] = dict(self._count)

    def became(self, old: Node, new: Node) -> None:
        """`new` stands where `old` stood; its readers are counted as the old one's."""
        if new is not old:
            self._now[new] = self._now.get(new, 0) + self._count[old]

    def readers(self, node: Node) -> int:
        """How many operands and outputs a node is (a node made by the rewrite itself: one)."""
        return self._now.get(node, 1)


@dataclass(frozen=True)
class RewritePass(Pass):
    """A pass that replaces one node at a time, until nothing more matches."""

    @abstractmethod
    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        """A node of the same value and type to put in its place; None where nothing matches."""

    def run(self, graph: Graph) -> Graph:
        for _ in range(MAX_SWEEPS):
            before, graph = graph, self._sweep(graph)
            if graph == before:
                return graph
        raise VerifyError(f"pass {self.name} does not come to an end on graph '{graph.name}'")

    def _sweep(self, graph: Graph) -> Graph:
        g = Rewriter(graph)

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            new = node if node.inputs == inputs else node.with_inputs(inputs)
            for _ in range(MAX_STEPS):
                better = self.rewrite(new, g) if new.op not in ("input", "const") else None
                if better is None or better is new:
                    break
                if better.type != node.type:
                    raise VerifyError(f"pass {self.name} made {better.type} of '{node.op}' "
                                      f"{node.type}")
                new = better
            g.became(node, new)
            return new
        return rebuild(graph, change)


def run_passes(graph: Graph, passes: Sequence[Pass], *,
               verify: Callable[[Graph, str], None] | None = None,
               observe: Observe | None = None) -> Graph:
    """Run passes in order. `verify(graph, pass name)` raises VerifyError; `observe` sees every
    result.
    """
    for p in passes:
        start = time.perf_counter()
        graph = p.run(graph)
        if verify is not None:
            verify(graph, p.name)
        if observe is not None:
            observe(p.name, graph, time.perf_counter() - start)
    return graph
