"""From a source and concrete shapes to plans with their memory laid out: the compiler, end to end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from jitcl import config
from jitcl.codegen.generate import Generated, generate
from jitcl.codegen.plan import Keep, KernelSource, Plan
from jitcl.codegen.text import amount
from jitcl.devices.base import Device
from jitcl.ir.graph import Graph
from jitcl.ir.group import Watched
from jitcl.ir.sizes import judged_by_hint
from jitcl.passes.base import Observe, run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.indices import take_checks
from jitcl.passes.layers import layer_precisions, weight_bits
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.precision import WIDE, assign_precision
from jitcl.passes.rescale import rescaled
from jitcl.passes.verify import check
from jitcl.passes.watch import flag, may_spoil, telling, watch
from jitcl.runtime.memory import laid_out
from jitcl.runtime.source import Source
from jitcl.templates.base import FIRST, Chooser

LARGE = 1 << 16                 # elements that the host takes longer to read than flags take


class Lowering:
    """A model for one set of shapes and one device: imported, optimised and fused once; plans are
    generated as often as the device's faults ask for it.
    """

    def __init__(
            self, source: Source, shapes: Mapping[str, tuple[int, ...]],
            values: Mapping[str, np.ndarray], device: Device, options: Options,
            observe: Observe | None = None,
            written: Callable[[KernelSource], None] | None = None
    ) -> None:
        """Import, run the passes, fuse. `observe` sees the graph after each pass, `written` each
        kernel while a plan is generated.
        """
        self.device, self.options, self.written = device, options, written
        self.chooser: Chooser = FIRST
        self._start = time.perf_counter()
        graph, self._checks = take_checks(source.graph(shapes, values),
                                          config.get("check_indices"))
        imported = _names(graph)
        if observe is not None:
            observe("import", graph, 0.0)
        weights = options.weights
        bits: dict[str, int] = {}
        if weights is not None and (weights.skip or weights.wide):
            bits = weight_bits(source.nodes(), weights)
        self.graph = run_passes(
            graph, pipeline(device.target, options, bits), observe=_debugging(observe),
            verify=check if config.get("verify") else None)
        self.graph = rescaled(self.graph, options.scaled)
        with judged_by_hint():               # what is worth storing is no question of right
            groups = fuse(self.graph, device.target)
        started = time.perf_counter()
        layers: dict[str, str] = {}
        if options.layers:
            nodes = source.nodes()
            layers = layer_precisions(nodes, options, _names(self.graph),
                                      nodes if source.whole else imported)
        self._watched: tuple[Watched, ...] = ()
        layers.update((name, WIDE) for name in options.promoted)
        self.graph, self.groups = assign_precision(
            self.graph, groups, device.target,
            WIDE if "*" in options.promoted else options.precision, layers)
        self.halves = {i for i, g in enumerate(self.groups) if g.root.type.dtype == "f16"}
        if options.guard != "off" and self.halves:
            looked_at = self._large_results()
            if options.guard == "layers":
                spoiling = {i for i in self.halves if may_spoil(self.groups[i])}
                looked_at |= spoiling if options.each else telling(self.groups, spoiling)
            self.graph, self.groups, self._watched = flag(self.graph, self.groups, looked_at)
        _debugging(observe)("assign-precision", self.graph, time.perf_counter() - started)

    def _large_results(self) -> set[int]:
        """The groups whose results kernels look at sooner than the host reads them again."""
        outputs = {node for _, node in self.graph.outputs}
        with judged_by_hint():
            return {i for i, g in enumerate(self.groups)
                    if g.root in outputs and g.root.type.size >= LARGE}

    def watch(self, groups: Collection[int]) -> None:
        """Have the plan give the magnitude of what these groups store, too."""
        self.graph, self.groups, self._watched = watch(self.graph, self.groups, groups)

    def generate(self, *, host: bool = True, memory: str | None = None,
                 keep: Keep | None = None) -> Generated:
        """Kernels that the device's fault database does not reject; memory is not laid out.

        memory: in place of the option. "low": no weights that are larger than the model's, and
        nothing that lives longer than it is needed. keep: as `codegen.generate` takes it.
        """
        device, target = self.device, self.device.target
        memory = memory or self.options.memory
        if memory == "low":
            target = dataclasses.replace(target, winograd=0)
        found = generate(
            self.graph, self.groups, target, templates=config.get("templates"),
            faults=device.faults, host=device.host_target if host else None, memory=memory,
            chooser=self.chooser, written=self.written, keep=keep)
        return dataclasses.replace(
            found, plan=dataclasses.replace(
                found.plan, checks=self._checks, watched=self._watched))

    def plan(
        self, memory: str | None = None, streamed: bool = False, *, host: bool = True,
        keep: Keep | None = None
    ) -> tuple[Generated, Plan]:
        """Kernels that the device's fault database does not reject, in a memory plan.

        memory: in place of the option; streamed: buffers live from first to last use. host:
        whether what no kernel of the device can do may go to the CPU path.
        """
        generated = self.generate(host=host, memory=memory, keep=keep)
        plan = laid_out(generated.plan, self.device, memory or self.options.memory)
        plan = dataclasses.replace(plan, streamed=streamed)
        tell(plan, time.perf_counter() - self._start)
        self._start = time.perf_counter()
        return generated, plan


def _names(graph: Graph) -> set[str]:
    """Of the model's nodes that are in the graph."""
    found = [o for n in graph.nodes if (o := graph.origins.get(n)) is not None]
    return {name for o in found for name in (o.name, *o.twins)}


def _debugging(observe: Observe | None) -> Observe:
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
