"""From a graph to kernels, as the runtime makes them: what tests of the compiler ask for."""

from __future__ import annotations

from jitcl.codegen.generate import Generated, generate
from jitcl.codegen.plan import Plan
from jitcl.codegen.variants import Faults
from jitcl.devices.base import Device
from jitcl.ir.graph import Graph
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.precision import assign_precision
from jitcl.passes.verify import check
from jitcl.passes.watch import flag
from jitcl.runtime.memory import laid_out
from jitcl.target import Target
from jitcl.templates.base import FIRST, Chooser


def compile_graph(graph: Graph, target: Target, precision: str = "high", *, passes: bool = True,
                  templates: bool = True, faults: Faults | None = None,
                  host: Target | None = None, chooser: Chooser = FIRST,
                  flags: bool = False) -> Generated:
    """The kernels and the plan of a graph for a target; memory is not laid out. passes=False: of a
    graph that is as passes should have left it, with layouts, say, that the test chose. flags: all
    groups tell, in one more result, that they store an infinity or NaN.
    """
    if passes:
        graph = run_passes(graph, pipeline(target, Options(precision=precision)), verify=check)
    graph, groups = assign_precision(graph, fuse(graph, target), target, precision)
    if flags:
        graph, groups, _ = flag(graph, groups, range(len(groups)))
    return generate(graph, groups, target, templates=templates, faults=faults, host=host,
                    chooser=chooser)


def plan_on(device: Device, graph: Graph, target: Target | None = None, precision: str = "high",
            *, passes: bool = True, templates: bool = True, faults: Faults | None = None,
            chooser: Chooser = FIRST, flags: bool = False) -> Plan:
    """The plan of a graph with its memory laid out as the device has it. target: what the device
    poses as.
    """
    made = compile_graph(graph, target or device.target, precision, passes=passes,
                         templates=templates, faults=faults, chooser=chooser, flags=flags)
    return laid_out(made.plan, device, "normal")
