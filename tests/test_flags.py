"""Kernels tell by a flag that what they store is infinite or NaN: the text, and what devices do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jitcl.codegen.flags import flagged
from jitcl.codegen.generate import generate
from jitcl.codegen.lower import lower
from jitcl.codegen.schedule_cpu import loops_for_cpu
from jitcl.codegen.schedule_opencl import schedule
from jitcl.devices.select import open_device
from jitcl.errors import VerifyError
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.group import Flag, Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Kernel
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.types import TensorType
from jitcl.ir.verify_kernel import verify_kernel
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.precision import assign_precision
from jitcl.passes.watch import flag, watchable
from jitcl.runtime.memory import laid_out
from jitcl.templates import CPU_TEMPLATES, OPENCL_TEMPLATES
from tests.devices import needs
from tests.test_golden import GPU, GRAPHS

g = GraphBuilder()
HEAD = "in x: f32[8], out flags: i32[3], out y: f16[8]) flagging flags[{}] = 1"


def doubled() -> Kernel:
    """y = x + x in f16, of a group that has a flag."""
    x = graph_input("x", TensorType("f16", (8,)))
    group = Group(g.add(x, x), frozenset(), flag=Flag(g.const(np.zeros(3, np.int32)), 1))
    return flagged(lower(group, "double").kernel, group)


def test_a_kernel_of_a_group_with_a_flag() -> None:
    text = print_kernel(doubled())
    assert text == """\
kernel @double(in x0: f16[8], out flags: i32[3], out y: f16[8]) flagging flags[1] = 1 {
  for i0 < 8 @parallel {
    let t0: f32 = f32(x0[i0])
    y[i0] = f16(t0 + t0)
  }
}
"""
    verify_kernel(doubled())
    assert print_kernel(parse_kernel(text)) == text


def test_loops_of_the_cpu_keep_the_largest_magnitude() -> None:
    lines = loops_for_cpu(doubled(), "f").splitlines()
    first = next(k for k, line in enumerate(lines) if "stored = " in line)
    assert [line.strip() for line in lines[first:]] == [
        "stored = t0 + t0", "store(y, i0, stored)", "keep(stored)",
        "if kept_overflows('f16'):", "store(flags, flag, i32(1))"]


def test_work_items_flag_what_they_store() -> None:
    assert """
    {
        float stored = t0 + t0;
        vstore_half_rte(stored, i0, y);
        if (!(fabs(stored) < 65520.0f)) flags[flag] = 1;
    }
""" in schedule(doubled(), GPU).body


@pytest.mark.parametrize(("value", "told"), [
    (1.0, 0), (32759.9, 0), (32760.0, 1), (-32760.0, 1), (np.inf, 1), (np.nan, 1)])
def test_what_is_stored_is_what_counts(value: float, told: int) -> None:
    """65520 is infinite in f16, what is below is 65504."""
    body = "for i < 8 @vec { y[i] = f16(x[i] + x[i]) }"
    kernel = parse_kernel(f"kernel @k({HEAD.format(1)} {{ {body} }}")
    x, flags, y = np.ones(8, np.float32), np.zeros(3, np.int32), np.zeros(8, np.float16)
    x[5] = value
    run_kernel(kernel, {"x": x, "flags": flags, "y": y})
    assert flags.tolist() == [0, told, 0] and np.isfinite(y).all() == (not told)


def test_what_a_guard_leaves_out_is_not_looked_at() -> None:
    body = "for i < 8 @loop { y[i] = f16(x[i]) if i < 4 }"
    kernel = parse_kernel(f"kernel @k({HEAD.format(2)} {{ {body} }}")
    x, flags = np.full(8, np.inf, np.float32), np.zeros(3, np.int32)
    x[:4] = 0
    arrays = {"x": x, "flags": flags, "y": np.zeros(8, np.float16)}
    run_kernel(kernel, arrays)
    assert not flags.any()
    x[3] = np.nan
    run_kernel(kernel, arrays)
    assert flags.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("head", "body", "message"), [
    (HEAD.format(1).replace("= 1", "= i32(x[0])"), "y[0] = f16(x[0])", "wanted constants, and no"),
    (HEAD.format("index(x[0])"), "y[0] = f16(x[0])", "wanted constants, and no guard"),
    (HEAD.format(1), "y[0] = f16(x[0]); flags[0] = 2", "wanted a store to another buffer, of f16"),
    (HEAD.format(1).replace("f16[8]", "i8[8]"), "y[0] = i8(x[0])", "wanted a store to another"),
])
def test_flags_are_verified(head: str, body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(parse_kernel(f"kernel @k({head} {{ {body} }}"))


QUICK = ("conv_bias_relu", "half", "matmul_bias")


@pytest.mark.sampled(quick=20, slow=9)
@pytest.mark.parametrize("precision", ["normal", pytest.param("low", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", [
    "reference", "cpu", pytest.param("opencl:pocl", marks=needs("opencl:pocl")),
    pytest.param("opencl:intel", marks=needs("opencl:intel"))])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
                                  for n in GRAPHS])
def test_every_template_tells(name: str, spec: str, precision: str) -> None:
    """Nothing of finite results, which keep their bits; the flag of a result that is not."""
    device, target = open_device(spec), open_device(spec).target
    y = GRAPHS[name]()
    graph = Graph("g", tuple(n for n in _inputs(y)), (("y", y),))
    graph = run_passes(graph, pipeline(target, Options(precision=precision)))
    graph, groups = assign_precision(graph, fuse(graph, target), target, precision)
    plain = laid_out(generate(graph, groups, target, faults=device.faults).plan, device, "normal")
    chosen = [k for k, group in enumerate(groups) if watchable(group)]
    graph, groups, watched = flag(graph, groups, chosen)
    plan = generate(graph, groups, target, faults=device.faults).plan
    plan = laid_out(replace(plan, watched=watched), device, "normal")
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal(t.shape).astype("f2" if t.dtype == "f16" else "f4")
             for t in plan.inputs]
    with_flags, without = device.load(plan), device.load(plain)
    for spoilt in (np.float32(0), np.inf, np.nan):
        feeds[0].reshape(-1)[7] += spoilt
        *results, flags = with_flags.run(feeds)
        np.testing.assert_array_equal(results[0], without.run(feeds)[0])
        told = {w.result: flags[w.place] for w in watched}
        assert told[0] == (not np.isfinite(results[0]).all())
        assert flags.any() == bool(spoilt != 0 and told[0])
    assert flags.any() or name == "max_pool"             # a maximum leaves NaN out
    with_flags.close()
    without.close()


@needs("opencl:pocl")
def test_what_pads_rows_is_not_told():
    """1 / 0 behind rows of 7: of the epilogue of a convolution, whose planes are padded with zeros,
    and of a pointwise group."""
    device = open_device("opencl:pocl")
    target = replace(device.target, device_type="gpu", vector_width=4, max_vector_width=4,
                     local_is_real=False)
    x = graph_input("x", TensorType("f32", (1, 8, 7, 7)))
    window = dict(pads=(0,) * 4, strides=(1, 1), dilations=(1, 1))
    y = g.conv(x, g.const(np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)), group=1, **window)
    y = g.div(g.const(np.float32(1)), y)
    y = g.div(g.sigmoid(g.reduce_mean(y, axes=(2, 3))), y)
    y = g.max_pool(y, kernel=(7, 7), **window)
    graph = run_passes(Graph("g", (x,), (("y", y),)), pipeline(target, Options()))
    groups = fuse(graph, target)
    padded = [g for g in groups if g.root.type.layout.kind == "rows"]
    assert [p.anchor and p.anchor.op for p in padded] == ["conv", None]
    graph, groups, _ = flag(graph, groups, range(len(groups)))
    made = generate(graph, groups, target)
    assert "conv_opencl" in {k.template for k in made.plan.kernels}
    loaded = device.load(laid_out(made.plan, device, "normal"))
    fed = np.full((1, 8, 7, 7), 2, np.float32)
    result, flags = loaded.run([fed])
    np.testing.assert_allclose(result, np.full((1, 8, 1, 1), 2 / (1 + np.exp(-0.5))), rtol=1e-6)
    assert not flags.any()
    fed[0, 3, 2, 6] = 0
    assert loaded.run([fed])[1].any()
    loaded.close()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_template_that_cannot_tell_leaves_the_group_to_loops(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose last kernel doesn't take the flags, as its stores are not those of its hooks."""
    target = GPU if device == "gpu" else open_device("cpu").target
    x = graph_input("x", TensorType("f32", (64, 96)))
    y = g.matmul(x, g.const(np.ones((96, 64), np.float32)))
    graph = Graph("g", (x,), (("y", y),))
    groups = fuse(graph, target)
    plain = {k.template for k in generate(graph, groups, target).plan.kernels}
    graph, groups, _ = flag(graph, groups, range(len(groups)))
    for template in {type(t) for t in (*CPU_TEMPLATES, *OPENCL_TEMPLATES)}:
        def mute(self, *given: object, emit=template.emit) -> object:
            *before, last = emit(self, *given)
            kept = tuple(a for a in last.arguments if a is not groups[0].flag.flags)
            return [*before, replace(last, arguments=kept)]
        monkeypatch.setattr(template, "emit", mute)
    made = generate(graph, groups, target)
    told = [s for s in made.plan.steps if made.plan.outputs[1].buffer in s.writes]
    assert plain != {""} and {k.template for k in made.plan.kernels} == {""}
    assert [s.group for s in told] == [1, 0]


def _inputs(y: object) -> list:
    from jitcl.ir.graph import toposort

    return [n for n in toposort([y]) if n.op == "input"]
