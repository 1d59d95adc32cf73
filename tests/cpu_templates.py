"""What tests of the CPU's templates share: a graph run on the CPU beside the ops' references."""

from __future__ import annotations

import numpy as np

from jitcl import config
from jitcl.devices.cpu import CpuDevice
from jitcl.ir.graph import Graph, Node
from jitcl.ir.types import Layout
from jitcl.ops.builder import GraphBuilder, evaluate
from tests.compiling import plan_on
from tests.rounding import TOLERANCE

with config.override(winograd=0):              # of it tests/test_winograd_cpu.py
    DEVICE = CpuDevice()
WIDTH = DEVICE.target.vector_width
b = GraphBuilder()


def blocks(halo=0):
    return Layout("NCHWc", WIDTH, halo)


def laid_out(node: Node, layout: Layout) -> Node:
    return Node.make(node.op, node.inputs, node.kwargs, type=node.type.with_(layout=layout))


def run(graph: Graph, arrays, template: str | None):
    """Outputs on the CPU; asserts that `template` wrote one of the kernels."""
    plan = plan_on(DEVICE, graph, passes=False)
    if template is not None:
        assert template in {k.template for k in plan.kernels}
    return DEVICE.load(plan).run(arrays)


def check(outputs, inputs, dtype, template, seed=0):
    """Build a graph of `outputs`, feed it random arrays, compare with the references."""
    rng = np.random.default_rng(seed)
    arrays = [
        rng.standard_normal(i.type.dims).astype("f4" if dtype == "f32" else "f2") for i in inputs
    ]
    graph = Graph("t", tuple(inputs), tuple((f"y{k}", n) for k, n in enumerate(outputs)))
    results = run(graph, arrays, template)
    for node, got in zip(outputs, results):
        want = evaluate(node, dict(zip(inputs, arrays))).astype(np.float64)
        assert np.abs(got - want).max() <= TOLERANCE[dtype] * max(1.0, np.abs(want).max())
    return results
