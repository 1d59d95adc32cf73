"""From a source and concrete shapes to a plan with its memory laid out: the compiler, end to end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from jitcl import config
from jitcl.codegen.generate import Generated, generate
from jitcl.codegen.plan import Plan
from jitcl.devices.base import Device
from jitcl.ir.graph import Graph
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.verify import check
from jitcl.runtime.memory import plan_memory
from jitcl.runtime.source import Source


def lower_model(source: Source, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray],
                device: Device, options: Options,
                observe: Callable[[str, Graph, float], None] | None = None) -> tuple[Generated, Plan]:
    """Import, run the passes, fuse, generate, plan memory. `observe` sees the graph after each pass."""
    graph = source.graph(shapes, values)
    if observe is not None:
        observe("import", graph, 0.0)
    graph = run_passes(graph, pipeline(device.target, options), observe=_debugging(observe),
                       verify=check if config.get("verify") else None)
    generated = generate(graph, fuse(graph), device.target, templates=config.get("templates"))
    plan = plan_memory(generated.plan, device.memory_mode, options.memory,  # type: ignore[arg-type]
                       max(64, device.target.alignment))
    return generated, plan


def _debugging(observe: Callable[[str, Graph, float], None] | None) -> Callable[[str, Graph, float], None]:
    """JITCL_DEBUG=2 names each pass, what it left and how long it took."""
    level = config.get("debug")

    def see(name: str, graph: Graph, seconds: float) -> None:
        if level >= 2:
            print(f"jitcl: {name}: {len(graph.nodes)} nodes, {seconds * 1e3:.1f} ms", file=sys.stderr)
        if observe is not None:
            observe(name, graph, seconds)
    return see
