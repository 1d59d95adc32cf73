"""Kernels for OpenCL CPUs: shares of loops, ranges, vectors; text in, text out."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from jitcl.codegen.schedule_opencl import rendered
from jitcl.codegen.schedule_opencl_cpu import schedule_opencl_cpu
from jitcl.codegen.vectorise import vectorise
from jitcl.errors import JitclError, VerifyError
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.scalar import SCALARS
from jitcl.ir.types import TensorType
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder
from tests import devices
from tests.generated.kernels import GPU

CPU = dataclasses.replace(GPU, name="a CPU", device_type="cpu", vector_width=8, compute_units=2,
                          local_is_real=False, fp64=True)


def body(text: str) -> str:
    """The statements of a kernel, which reads back as it is written."""
    assert print_kernel(parse_kernel(text)) == text
    return "\n".join(line[2:] for line in text.splitlines()[1:-1])


def vectors(text: str) -> str:
    kernel = vectorise(parse_kernel(text), CPU)
    verify_schedule(kernel, aligned=False)
    return body(print_kernel(kernel))


def test_whole_vectors_then_what_is_left() -> None:
    assert vectors("""
kernel @k(in x: f32[100], in b: f32[1], out y: f32[100]) {
  for j < 100 @loop { y[j] = x[j] + b[0] }
}""") == """\
for j < 96 @loop by 8 {
  for lane0 < 8 @vec {
    y[j + lane0] = x[j + lane0] + b[0]
  }
}
for j < 100 @loop from 96 {
  y[j] = x[j] + b[0]
}"""


def test_a_guard_becomes_the_range() -> None:
    assert vectors("""
kernel @k(in x: f32[100], out y: f32[100]) {
  for n < 3 @loop { for j < 100 @loop { y[j] = x[j - n] if j >= n } }
}""") == """\
for n < 3 @loop {
  let low0: index = n
  let whole0: index = low0 + floordiv(max(low0 * -1 + 100, 0), 8) * 8
  for j < 93 @loop from low0 to whole0 by 8 {
    for lane1 < 8 @vec {
      y[j + lane1] = x[j + lane1 + n * -1]
    }
  }
  for j < 100 @loop from whole0 {
    y[j] = x[j - n]
  }
}"""


def test_a_sum_keeps_partial_results() -> None:
    assert vectors("""
kernel @k(in x: f32[20], out y: f32[1], private row: f32[20]) {
  let acc: f32 = 1.0
  for r < 20 @loop {
    let t: f32 = exp(x[r])
    row[r] = t
    acc add= t
  }
  y[0] = acc / row[0]
}""") == """\
let acc: f32 = 1.0
for lane0 < 8 @vec {
  let acc_v: f32 = 0.0
  for r < 16 @loop by 8 {
    let t: f32 = exp(x[r + lane0])
    row[r + lane0] = t
    acc_v add= t
  }
  part1_acc[lane0] = acc_v
}
for lane2 < 4 @vec {
  part1_acc[lane2] = part1_acc[lane2] + part1_acc[lane2 + 4]
}
for lane3 < 2 @vec {
  part1_acc[lane3] = part1_acc[lane3] + part1_acc[lane3 + 2]
}
acc add= part1_acc[0] + part1_acc[1]
for r < 20 @loop from 16 {
  let t: f32 = exp(x[r])
  row[r] = t
  acc add= t
}
y[0] = acc / row[0]"""


SCALAR = {
    "what another iteration stores is read": "row[j + 1] = row[j] * 2.0",
    "lanes lie far apart": "y[j] = x[j * 9 % 100]",
    "integers": "z[j] = i32(x[j])",
    "the number of the iteration is a value": "y[j] = f32(j)",
}


@pytest.mark.parametrize("why", SCALAR)
def test_loops_that_stay_scalar(why: str) -> None:
    text = vectors(f"""
kernel @k(in x: f32[100], out y: f32[100], out z: i32[100], private row: f32[100]) {{
  row[0] = 1.0
  y[0] = 0.0
  z[0] = 0
  for j < 99 @loop {{ {SCALAR[why]} }}
}}""")
    assert "@vec" not in text and "for j < 99 @loop {" in text


def test_outer_loops_are_shared_among_work_items() -> None:
    assert body(print_kernel(schedule_opencl_cpu(parse_kernel("""
kernel @k(in x: f32[50,600], out y: f32[50,600]) {
  for i < 50 @parallel { for j < 600 @parallel { y[i, j] = x[i, j] * x[i, 0] } }
}"""), CPU))) == """\
for item < 7 @item {
  for i < 50 @loop from item * 8 to item * 8 + 8 {
    for j < 600 @loop by 8 {
      for lane0 < 8 @vec {
        y[i * 600 + j + lane0] = x[i * 600 + j + lane0] * x[i * 600]
      }
    }
  }
}"""


FUNCTIONS = [f for f in SCALARS.values() if f.takes == "floats" and f.result == "same"]


def test_a_function_of_floats_has_lanes() -> None:
    """As its line in ir/scalar.py says that it is one."""
    assert {"cosh", "floor", "round", "tan"} <= {f.name for f in FUNCTIONS}
    for f in FUNCTIONS:
        text = vectors("kernel @k(in x: f32[16], out y: f32[16]) {\n"
                       f"  for j < 16 @loop {{ y[j] = {f.name}(x[j]) }}\n}}")
        assert "@vec" in text, f.name


@pytest.mark.parametrize("spec", [s for s in devices.present() if s.startswith("opencl")])
def test_lanes_compute_as_functions_do(spec: str) -> None:
    x = np.random.default_rng(1).uniform(-0.9, 0.9, 501).astype(np.float32)
    at = {"acosh": x + 2, "log": x + 1, "sqrt": x + 1}
    nodes = {name: graph_input(name, TensorType("f32", x.shape)) for name in (*at, "x")}
    made = {f.name: GraphBuilder().op(f.name, nodes.get(f.name, nodes["x"]))
            for f in FUNCTIONS if f.name in OPS}
    assert len(made) == len(FUNCTIONS) - 1               # no op is called trunc
    graph = Graph("functions", tuple(nodes.values()), tuple(made.items()))
    for name, y in devices.run_graph(spec, graph, {**at, "x": x}).items():
        want = SCALARS[name].fn(at.get(name, x).astype(np.float64))
        np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-6, err_msg=name)


SHARED = """
kernel @k(in x: f32[40], out y: f32[40]) {
  for p < 3 @item {
    for j < 40 @loop from 16 * p to 16 * p + 16 by 8 {
      for v < 8 @vec { y[j + v] = x[j + v] }
    }
  }
}"""


def copied(text: str) -> bool:
    """Whether a kernel copies all of x."""
    x = np.random.default_rng(0).random(40, np.float32)
    y = np.zeros_like(x)
    run_kernel(parse_kernel(text), {"x": x, "y": y})
    return np.array_equal(x, y)


def test_a_part_of_a_loop_ends_with_the_loop() -> None:
    verify_schedule(parse_kernel(SHARED))
    assert copied(SHARED)
    done = rendered(parse_kernel(SHARED), CPU)
    assert (done.global_size, done.local_size) == ((3,), (1,))
    assert "for (int j = 16 * p; j < min(16 * p + 16, (int)40); j += 8)" in re.sub(
        r"p \* 16", "16 * p", done.body)


def test_planted_steps_and_ends() -> None:
    """A wrong step or end leaves elements out, or is unaligned, or leaves the buffer."""
    assert not copied(SHARED.replace("by 8", "by 16"))
    assert not copied(SHARED.replace("to 16 * p + 16", "to 16 * p + 8"))
    for old, new in (("by 8", "by 4"), ("from 16 * p", "from 4 * p"), ("x[j + v]", "x[j + v + 2]")):
        kernel = parse_kernel(SHARED.replace(old, new))
        with pytest.raises(VerifyError, match="no multiple of 8|outside 0..39"):
            verify_schedule(kernel)
    wide = SHARED.replace("y[j + v] = x[j + v]", "y[j + v] = x[j + v + 8]")
    with pytest.raises(VerifyError, match="outside 0..39"):
        verify_schedule(parse_kernel(wide), aligned=False)
    with pytest.raises(JitclError, match="guard the access"):
        copied(wide)


@pytest.mark.parametrize(("op", "want"), [
    ("reduce_sum", np.sum), ("reduce_max", np.max), ("reduce_min", np.min)])
def test_each_reduction_of_lanes_is_there_on_the_cpu(op: str, want) -> None:
    """A kernel's text names it by what it combines with: nothing else in the sources does."""
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, 16)).astype(np.float32)
    data = graph_input("x", TensorType("f32", x.shape))
    y = getattr(GraphBuilder(), op)(data, axes=(2,), keepdims=False)
    found = devices.run_graph("cpu", Graph("g", (data,), (("y", y),)), {"x": x})["y"]
    np.testing.assert_array_equal(found, want(x, axis=2))


def test_a_sum_that_goes_on_in_an_outer_loop_stays() -> None:
    """What its lanes are joined in would be carried from turn to turn there."""
    text = """\
kernel @k(in x: f32[128], out y: f32[1]) {
  let acc: f32 = 0.0
  for i < 8 @loop {
    for j < 16 @loop {
      acc add= x[i * 16 + j]
    }
  }
  y[0] = acc
}
"""
    assert print_kernel(vectorise(parse_kernel(text), CPU)) == print_kernel(parse_kernel(text))
