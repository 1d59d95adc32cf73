"""Vectors in buffers, as OpenCL templates read and write them: text out, and which pieces they take
of what addresses are known to be multiples of.
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from jitcl.codegen.opencl_helpers import Calls
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.templates.opencl.memory import piece, read_vector, stored_vector
from tests.compiling import compile_graph
from tests.drawn import rng
from tests.generated.kernels import TARGETS

g = GraphBuilder()


@pytest.mark.parametrize(("ctype", "width", "aligned", "halves", "wanted"), [
    ("float", 1, 1, False, "x[i]"),
    ("float", 4, 1, False, "vload4(0, x + i)"),
    ("float", 4, 4, False, "*(__global const float4 *)(x + i)"),
    ("float", 4, 16, False, "*(__global const float4 *)(x + i)"),
    ("float", 4, 2, False, "vload4(0, x + i)"),
    ("half", 1, 1, True, "vload_half(i, x)"),
    ("half", 4, 1, True, "vload_half4(0, x + i)"),
    ("half", 4, 4, False, "jitcl_load_f16x4(x + i)"),            # no half4 without cl_khr_fp16
    ("half", 4, 4, True, "jitcl_from_halfx4(*(__global const half4 *)(x + i))"),
    ("ushort", 4, 4, False, "jitcl_from_f16x4(*(__global const ushort4 *)(x + i))"),
    ("ushort", 4, 1, False, "jitcl_from_f16x4(vload4(0, x + i))"),
])
def test_a_vector_is_read_in_the_pieces_that_are_aligned(ctype, width, aligned, halves, wanted):
    target = dataclasses.replace(TARGETS["mali"], fp16_arithmetic=halves)
    assert read_vector(Calls().call, target, "x", "i", ctype, width, aligned) == wanted


@pytest.mark.parametrize(("n", "wanted"), [
    (1, "vstore4(v, 0, y + i)"),
    (4, "*(__global float4 *)(y + i) = v"),
    (2, "float4 stored = v; *(__global float2 *)(y + i) = stored.s01; "
        "*(__global float2 *)(y + i + 2) = stored.s23"),
])
def test_a_vector_is_written_in_the_pieces_that_are_aligned(n, wanted):
    assert stored_vector("y", "i", "v", "float", 4, n) == wanted


@pytest.mark.parametrize(("multiples", "wanted"), [
    ((), 4), ((0,), 4), ((8, 4), 4), ((8, 6), 2), ((8, 3), 1)])
def test_a_piece_divides_every_term_of_an_address(multiples, wanted):
    assert piece(4, TARGETS["mali"], *multiples) == wanted
    assert piece(4, TARGETS["cpu"], *multiples) == 1


F4 = "(__global const float4 *)"


@pytest.mark.parametrize(("columns", "constant", "read", "written"), [
    (32, True, F4, "(__global float4 *)"),
    (30, True, F4, "(__global float2 *)"),               # weights are packed
    (31, True, F4, "vstore4("),
    (32, False, F4, "(__global float4 *)"),
    (30, False, "vload4(", "(__global float2 *)"),
    (31, False, "vload4(", "vstore4("),
])
def test_a_product_points_at_vectors_where_its_rows_allow_it(columns, constant, read, written):
    a = graph_input("a", TensorType("f32", (8, 16)))
    b = graph_input("b", TensorType("f32", (16, columns)))
    weights = const(rng().standard_normal((16, columns)).astype("f4")) if constant else b
    graph = Graph("t", (a,) if constant else (a, b), (("y", g.matmul(a, weights)),))
    (kernel,) = compile_graph(graph, TARGETS["mali"]).plan.kernels
    assert read in kernel.body and written in kernel.body
    on_cpu = dataclasses.replace(TARGETS["mali"], device_type="cpu", compute_units=1,
                                 cpu_templates=False)
    (kernel,) = compile_graph(graph, on_cpu).plan.kernels
    assert "vload4(" in kernel.body
    assert not re.search(r"\(__global (const )?[a-z]+\d+ \*\)", kernel.body)
