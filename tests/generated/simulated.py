"""What runs inside Oclgrind: small graphs, compiled for one of TARGETS, and planted faults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.opencl.device import OpenClDevice
from jitcl.devices.select import open_device
from jitcl.ir.graph import Graph
from jitcl.ir.sizes import Space
from jitcl.ops import OPS
from jitcl.ops.builder import evaluate
from jitcl.runtime.memory import plan_memory
from jitcl.target import Target
from jitcl.target.variants import VARIANTS
from tests.generated.kernels import TARGETS, op_graphs, plan_for
from tests.generated.ragged import GRAPHS, attention, cache, feeds_of


@dataclass
class Case:
    """A plan, what to feed it, and what it must give; `want` None where that is not the point."""

    plan: Plan
    feeds: dict[str, np.ndarray]
    graph: Graph | None = None


@functools.cache
def simulator() -> OpenClDevice:
    return open_device("opencl:oclgrind")  # type: ignore[return-value]


# Oclgrind 21.10 takes what was known of a freed buffer for the state of the next in its place.
_kept: list[Any] = []


def run_case(case: Case) -> str:
    """Runs a case in the simulator; says which outputs are wrong ('' if none)."""
    plan = plan_memory(case.plan, "slots")
    executable = simulator().load(plan)
    _kept.append(executable)
    outputs = executable.run([case.feeds[t.name] for t in plan.inputs])
    if case.graph is None:
        return ""
    feeds = {n: case.feeds[str(n.attr("name"))] for n in case.graph.inputs}
    return "".join(f"output {name} is wrong\n"
                   for (name, node), got in zip(case.graph.outputs, outputs)
                   if not close(got, evaluate(node, feeds)))


def close(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal but for rounding, NaN and infinities in the same places."""
    if not dtypes.is_float(dtypes.from_numpy(want.dtype)):
        return np.array_equal(got, want)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=1e-30)
    return (np.array_equal(got[~finite], want[~finite], equal_nan=True)
            and bool((np.abs(got[finite] - want[finite]) <= 5e-3 * scale).all()))


# -- cases -------------------------------------------------------------------------------------

Make = Callable[[], Case]           # planned when it is its turn
SMALL = 1000                        # elements: sorting 10,000 takes minutes here


def simulable(target: str) -> Target:
    """One of TARGETS with vectors of at most 8 lanes, on a variant of the kernels: "gpu/no-local".

    Oclgrind 21.10 takes halves of 16 lanes for unset, even those of a constant:
    `float16 v = (float16)(1.0f);  isgreater(v.lo, v.hi)`.
    """
    name, _, variant = target.partition("/")
    found = next(r for r in VARIANTS if r.name == variant).apply(TARGETS[name])
    return dataclasses.replace(found, vector_width=min(found.vector_width, 8))


def plan_on(graph: Graph, target: str) -> Plan:
    """The plan for such a target, by templates where the variant has them."""
    loops = any(r.name == target.partition("/")[2] and r.loops_only for r in VARIANTS)
    return plan_for(graph, simulable(target), templates=not loops)


def of_ops(target: str) -> Iterator[tuple[str, Make]]:
    """The op table without recurrences, which have tests of their own, on small operands."""
    for name, (graph, feeds) in op_graphs(simulable(target), SMALL).items():
        if simulated(name):
            yield name, functools.partial(_case, graph, feeds, target)


def simulated(name: str) -> bool:
    """Whether an op is in "ops". Transforms are products with tables of hundreds of rows."""
    return OPS[name].kind != "recurrence" and name not in ("dft", "stft")


def _case(graph: Graph, feeds: dict[str, np.ndarray], target: str) -> Case:
    return Case(plan_on(graph, target), feeds, graph)


def of_scans(target: str) -> Iterator[tuple[str, Make]]:
    """Recurrences: the only kernels that read what they wrote, behind barriers."""
    for name, (graph, feeds) in op_graphs(simulable(target)).items():
        if OPS[name].kind == "recurrence":
            yield name, functools.partial(_case, graph, feeds, target)


def of_graphs(target: str) -> Iterator[tuple[str, Make]]:
    for name, make in GRAPHS.items():
        graph = make()
        yield name, functools.partial(_case, graph, feeds_of(graph), target)


def of_sizes(target: str) -> Iterator[tuple[str, Make]]:
    """Plans for any number of keys, and of queries, too, at some."""
    for queries, keys in ((1, 1), (40, 27), (19, 37), (1, 150)):
        yield f"any {queries}, any {keys}", functools.partial(_sized, queries, keys, True, target)
    for keys in (1, 17, 150):
        yield f"3, any {keys}", functools.partial(_sized, 3, keys, False, target)
    for past, new in ((1, 3), (16, 1), (150, 3)):
        yield f"{new} behind any {past}", functools.partial(_cached, past, new, 1, target)
    for new in (1, 3):
        yield f"{new} behind any 8s", functools.partial(_cached, 136, new, 8, target)


def _sized(queries: int, keys: int, any_queries: bool, target: str) -> Case:
    def made(queries: int, keys: int) -> Graph:
        return attention(queries, keys, 12, 20, masked=queries)

    space, graph = Space(), made(queries, keys)
    m, n = space.symbol("queries", 223), space.symbol("keys", 211)
    sized = made(m if any_queries else queries, n)
    plan = plan_on(sized, target).at(space.values({"queries": queries, "keys": keys}))
    steps = tuple(s for s in plan.steps if 0 not in s.global_size)
    return Case(dataclasses.replace(plan, steps=steps), feeds_of(graph), graph)


def _cached(past: int, new: int, step: int, target: str) -> Case:
    """A cache of halves, of any multiple of `step` keys."""
    space, graph = Space(), cache(past, new, 12, "f16")
    plan = plan_on(cache(step * space.symbol("steps", 211), new, 12, "f16"), target)
    return Case(plan.at(space.values({"steps": past // step})), feeds_of(graph), graph)


PLANTED = {
    "sound": "__local float s[8]; int i = get_local_id(0); s[i] = x[i];"
             " barrier(CLK_LOCAL_MEM_FENCE); y[i] = s[7 - i];",
    "race": "__local float s[8]; int i = get_local_id(0); s[i] = x[i];"
            " barrier(CLK_LOCAL_MEM_FENCE); s[i] = s[7 - i]; y[i] = s[i];",
    "groups race": "y[get_local_id(0)] = x[get_global_id(0)];",
    "read": "int i = get_local_id(0); y[i] = x[i + 1];",
    "write": "int i = get_local_id(0); y[i + 1] = x[i];",
    "unset": "__local float s[8]; int i = get_local_id(0); if (i < 4) s[i] = x[i];"
             " barrier(CLK_LOCAL_MEM_FENCE); if (s[7 - i] > 0) y[i] = 1;",
}


def of_faults(target: str) -> Iterator[tuple[str, Make]]:
    """Hand-written kernels over 8 floats, all but one of them wrong."""
    for name, body in PLANTED.items():
        entry, items = name.replace(" ", "_"), 4 if "groups" in name else 8
        text = f"__kernel void {entry}(__global const float *x, __global float *y)\n{{ {body} }}\n"
        buffers = (BufferSpec("x", "f32", (8,), 32, "input"),
                   BufferSpec("y", "f32", (8,), 32, "output"))
        plan = Plan((TensorSpec("x", "f32", (8,), 0),), (TensorSpec("y", "f32", (8,), 1),),
                    (KernelSource(entry, text, "opencl"),),
                    (Step(name, entry, (0, 1), (), (8,), (items,), writes=(1,)),), buffers, ())
        case = Case(plan, {"x": np.arange(8, dtype=np.float32)})
        yield name, functools.partial(dataclasses.replace, case)


CASES: dict[str, Callable[[str], Iterator[tuple[str, Make]]]] = {
    "ops": of_ops, "scans": of_scans, "graphs": of_graphs, "sizes": of_sizes,
    "faults": of_faults}
