"""From a source and concrete shapes to a plan with its memory laid out: the compiler, end to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from jitcl import config
from jitcl.codegen.generate import Generated, generate
from jitcl.codegen.plan import Plan
from jitcl.codegen.text import amount
from jitcl.devices.base import Device
from jitcl.ir.graph import Graph
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.precision import half_arithmetic
from jitcl.passes.verify import check
from jitcl.runtime.memory import plan_memory
from jitcl.runtime.source import Source


def lower_model(
    source: Source,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, np.ndarray],
    device: Device,
    options: Options,
    observe: Callable[[str, Graph, float], None] | None = None,
) -> tuple[Generated, Plan]:
    """Import, run the passes, fuse, generate, plan memory. `observe` sees the graph after each
    pass.
    """
    start = time.perf_counter()
    graph = source.graph(shapes, values)
    if observe is not None:
        observe("import", graph, 0.0)
    graph = run_passes(
        graph,
        pipeline(device.target, options),
        observe=_debugging(observe),
        verify=check if config.get("verify") else None,
    )
    generated = generate(
        graph,
        fuse(graph, device.target),
        device.target,
        templates=config.get("templates"),
        half=half_arithmetic(device.target, options.precision),
    )
    plan = plan_memory(
        generated.plan,
        device.memory_mode,
        options.memory,  # type: ignore[arg-type]
        max(64, device.target.alignment),
    )
    tell(plan, time.perf_counter() - start)
    return generated, plan


def _debugging(
    observe: Callable[[str, Graph, float], None] | None,
) -> Callable[[str, Graph, float], None]:
    """JITCL_DEBUG=2 names each pass, what it left and how long it took."""

    def see(name: str, graph: Graph, seconds: float) -> None:
        config.say(2, f"{name}: {len(graph.nodes)} nodes, {seconds * 1e3:.1f} ms")
        if observe is not None:
            observe(name, graph, seconds)

    return see


def tell(plan: Plan, seconds: float) -> None:
    """JITCL_DEBUG: 1 sums the compilation up, 3 shows each launch's head, 4 all sources."""
    config.say(
        1,
        f"compiled in {seconds:.2f} s: {len(plan.steps)} steps of {len(plan.kernels)} kernels, "
        f"peak memory {amount(plan.peak_bytes, 'B')}",
    )
    for step in plan.steps:
        config.say(3, f"step {step.name} runs {step.kernel}\n{step.head}")
    for kernel in plan.kernels:
        config.say(4, f"kernel {kernel.entry}\n{kernel.body}")
