"""The kernels that the checks of generated code look at: of op-table rows and of real models, for
devices that need not be there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from jitcl.codegen.plan import KernelSource, Plan
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import Sample
from jitcl.runtime.source import open_source
from jitcl.target import Target
from tests.compiling import compile_graph
from tests.real_models import MODELS, goldens

G = GraphBuilder()

GPU = Target(kind="opencl", name="a GPU", device_type="gpu", compute_units=8, vector_width=4,
             local_memory=32 << 10, local_is_real=True, max_work_group=256,
             max_work_item_sizes=(256, 256, 256), global_memory=4 << 30, max_allocation=1 << 30,
             fp64=False, registers=128)

# Devices as code generation sees them; clang checks each one's kernels without that device.
TARGETS = {
    "gpu": GPU,
    "gpu-fp16": dataclasses.replace(GPU, fp16_arithmetic=True),
    "gpu-fp64": dataclasses.replace(GPU, fp64=True),
    # no units that must be kept busy: elements are vectors, however few there are
    "mali": dataclasses.replace(GPU, name="a small GPU", compute_units=0, local_is_real=False,
                                max_work_group=64),
    "mali-fp16": dataclasses.replace(GPU, name="a small GPU", compute_units=0, local_is_real=False,
                                     max_work_group=64, fp16_arithmetic=True, half_pairs=True),
    "cpu": dataclasses.replace(GPU, name="a CPU", device_type="cpu", vector_width=8,
                               local_is_real=False, fp64=True, registers=16),
    "cpu-fp16": dataclasses.replace(GPU, name="a CPU", device_type="cpu", vector_width=16,
                                    local_is_real=False, fp16_arithmetic=True, multiply_add="fma",
                                    registers=32),
}


def computes(sample: Sample, target: Target) -> bool:
    """Whether the target has the element types that a row of the op table needs."""
    used = {spec.dtype for spec in sample.args} | {sample.attrs.get(a) for a in ("to", "dtype")}
    return (target.bf16_storage or "bf16" not in used) and (target.fp64 or "f64" not in used)


def op_graphs(target: Target, most: int = 1 << 30
              ) -> dict[str, tuple[Graph, dict[str, np.ndarray]]]:
    """Op name -> a graph of all its rows that the target computes, and what to feed it; `most`:
    without rows of operands that have more elements.
    """
    found = {}
    for name, op in OPS.items():
        inputs: list[Node] = []
        outputs, feeds = [], {}
        for k, sample in enumerate(op.samples):
            if not computes(sample, target) or any(np.prod(a.shape) > most for a in sample.args):
                continue
            rng = np.random.default_rng(k)
            args = [graph_input(f"x{k}_{i}", TensorType(a.dtype, a.shape))
                    for i, a in enumerate(sample.args)]
            feeds |= {f"x{k}_{i}": a.array(rng) for i, a in enumerate(sample.args)}
            inputs += args
            outputs.append((f"y{k}", G.op(name, *args, **sample.attrs)))
        if outputs:
            found[name] = Graph(name, tuple(inputs), tuple(outputs)), feeds
    return found


def plan_for(graph: Graph, target: Target, *, precision: str = "high",
             templates: bool = True) -> Plan:
    """The plan of a graph; memory is not laid out."""
    return compile_graph(graph, target, precision, templates=templates).plan


def distinct(plans: Iterable[Plan]) -> tuple[KernelSource, ...]:
    """The kernels of several plans, each once."""
    return tuple({k.entry: k for plan in plans for k in plan.kernels}.values())


@functools.cache
def op_kernels(target_name: str, precision: str = "high") -> tuple[KernelSource, ...]:
    """Every kernel of the op table for one of TARGETS."""
    target = TARGETS[target_name]
    return distinct(plan_for(graph, target, precision=precision)
                    for graph, _ in op_graphs(target).values())


def model_plan(name: str, target: Target, precision: str = "high"
               ) -> tuple[Plan, dict[str, np.ndarray]]:
    """The plan of a real model for its first golden run, and what that run is fed."""
    feeds, _ = goldens(name)[0]
    graph = open_source(MODELS / f"{name}.onnx").graph({n: a.shape for n, a in feeds.items()}, {})
    return plan_for(graph, target, precision=precision), feeds
