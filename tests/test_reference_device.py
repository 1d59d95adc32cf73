"""The reference device: text graphs run through the compiler and the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.lower import lower
from jitcl.codegen.plan import KernelSource, Plan
from jitcl.devices.reference import ReferenceDevice
from jitcl.errors import DeviceError
from jitcl.ir.graph import graph_input
from jitcl.ir.group import Group
from jitcl.ir.parser import parse_graph, parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.types import TensorType
from jitcl.ir.verify_kernel import verify_kernel
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder, infer
from tests import devices


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if op.body is not None])
def test_every_ops_kernel_is_valid_and_has_text(name: str) -> None:
    for sample in OPS[name].samples:
        inputs = [graph_input(f"x{i}", TensorType(s.dtype, s.shape))
                  for i, s in enumerate(sample.args)]
        node = GraphBuilder().op(name, *inputs, **sample.attrs)
        kernel = lower(Group(node, frozenset()), name).kernel
        verify_kernel(kernel)
        assert parse_kernel(print_kernel(kernel)) == kernel


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_a_text_graph_runs(dtype: str) -> None:
    graph = parse_graph(f"""graph @mlp(%x: {dtype}[5,8], %w: {dtype}[8,3]) {{
        %h = matmul(%x, %w)
        %y = relu(%h)
        return %y, %h
    }}""", infer=infer)
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(dtypes.to_numpy(dtype)) for s in ((5, 8), (8, 3)))
    got = devices.run_graph("reference", graph, {"x": x, "w": w})
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert got["h"].dtype == x.dtype
    tolerance = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2, "f64": 1e-14}[dtype]
    assert np.allclose(got["h"].astype(np.float64), want, rtol=tolerance, atol=tolerance)
    assert np.array_equal(got["y"], np.maximum(got["h"], 0))


def test_runs_keep_nothing() -> None:
    graph = parse_graph("graph @g(%x: f32[4]) { %y = relu(%x) return %y, %x }", infer=infer)
    x = np.array([-1, 2, -3, 4], np.float32)
    first = devices.run_graph("reference", graph, {"x": x})
    x[:] = 0
    assert first["y"].tolist() == [0, 2, 0, 4] and first["x"].tolist() == [-1, 2, -3, 4]


def test_other_languages_are_refused() -> None:
    plan = Plan((), (), (KernelSource("k", "def k(): ...", "numba"),), (), (), ())
    with pytest.raises(DeviceError, match="kernel 'k' is written in numba: the reference device"):
        ReferenceDevice().load(plan)
