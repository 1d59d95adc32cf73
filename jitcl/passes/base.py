"""What a pass is, and how the pipeline runs: each verified after it ran, each observable before and after."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jitcl.ir.graph import Graph

Observe = Callable[[str, Graph, float], None]    # (pass name, graph after it, seconds)


@dataclass(frozen=True)
class Pass:
    """A graph rewrite. Subclasses are dataclasses: their fields are their options, their docstring shows
    before and after."""

    @property
    def name(self) -> str:
        """FoldConstants -> fold-constants."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    def run(self, graph: Graph) -> Graph:
        raise NotImplementedError(f"pass {self.name} has no run()")   # every pass overrides it


def run_passes(graph: Graph, passes: Sequence[Pass], *, verify: Callable[[Graph, str], None] | None = None,
               observe: Observe | None = None) -> Graph:
    """Run passes in order. `verify(graph, pass name)` raises VerifyError; `observe` sees every result."""
    for p in passes:
        start = time.perf_counter()
        graph = p.run(graph)
        if verify is not None:
            verify(graph, p.name)
        if observe is not None:
            observe(p.name, graph, time.perf_counter() - start)
    return graph
