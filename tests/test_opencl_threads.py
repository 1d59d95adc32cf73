"""The CPU path's kernels on OpenCL devices that are CPUs: the same results, whatever the sizes."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.opencl_threads import NotThreaded, translated
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import Layout, TensorType
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.layout import AssignLayouts
from jitcl.runtime.report import report_of
from jitcl.runtime.specialise import Specialisation
from jitcl.target import Target
from jitcl.templates.base import ENTRY, GROUP
from tests.compiling import compile_graph, plan_on
from tests.devices import cpus, device
from tests.drawn import rng
from tests.generated import clang
from tests.lacking import unless

b = GraphBuilder()
DEVICES = cpus()
pytestmark = [unless(DEVICES, "there is no OpenCL driver of a CPU"), pytest.mark.in_turn]
AVX2 = Target("opencl", "a CPU", vector_width=8, multiply_add="fma", compute_units=2)


def product(m, k, n, *batch, act="relu", constant=True):
    a = graph_input("a", TensorType("f32", (*batch, m, k)))
    w = (rng().standard_normal((k, n)) / np.sqrt(k)).astype("f4")
    weights = const(w) if constant else graph_input("w", TensorType("f32", w.shape))
    bias = const(rng().standard_normal(n).astype("f4"))
    y = b.op(act, b.add(b.matmul(a, weights), bias))
    return y, [a] if constant else [a, weights]


def convolution(x, k, kernel, *, strides=(1, 1), group=1, act="relu", residual=True):
    pads = tuple((n - 1) // 2 for n in kernel) * 2
    data = graph_input("x", TensorType("f32", x))
    shape = (k, x[1] // group, *kernel)
    w = const((rng().standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4"))
    first = b.conv(data, const(rng().standard_normal((x[1], x[1], 1, 1)).astype("f4")),
                   strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
    y = b.conv(first, w, strides=strides, pads=pads, dilations=(1, 1), group=group)
    y = b.add(y, const(rng().standard_normal((1, k, 1, 1)).astype("f4")))
    return b.op(act, b.add(y, y) if residual else y), [data]


def inner(y, inputs):
    """Between convolutions, in the layout that these have."""
    w = const(rng().standard_normal((16, y.type.dims[1], 1, 1)).astype("f4"))
    return b.conv(y, w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1), inputs


def pooled(op, x):
    y, inputs = convolution(x, x[1], (1, 1), residual=False)
    return inner(b.op(op, y, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1)),
                 inputs)


def attention_of_products(m, heads, d):
    x = graph_input("x", TensorType("f32", (m, heads * d)))

    def projected(perm):
        w = const((rng().standard_normal((heads * d, heads * d)) / 8).astype("f4"))
        return b.transpose(b.reshape(b.matmul(x, w), shape=(m, heads, d)), perm=perm)

    scores = b.matmul(projected((1, 0, 2)), projected((1, 2, 0)))
    weights = b.softmax(b.mul(scores, const(np.float32(d**-0.5))), axis=-1)
    return b.matmul(weights, projected((1, 0, 2))), [x]


def attention(batch, m, d, n):
    q, k, v = (graph_input(name, TensorType("f32", (batch, rows, d)))
               for name, rows in (("q", m), ("k", n), ("v", n)))
    scores = b.mul(b.matmul(q, b.transpose(k, perm=(0, 2, 1))), const(np.float32(d**-0.5)))
    return b.matmul(b.softmax(scores, axis=-1), v), [q, k, v]


CASES = {
    "product": lambda: (product(37, 300, 70), "gemm_cpu"),
    "product of one row": lambda: (product(1, 129, 33), "gemm_cpu"),
    "product in batches": lambda: (product(19, 64, 48, 2, 3, act="tanh"), "gemm_cpu"),
    "product of two inputs": lambda: (product(50, 40, 24, constant=False), "gemm_cpu"),
    "deep product": lambda: (product(65, 2000, 31, act="sigmoid"), "gemm_cpu"),
    "1x1": lambda: (convolution((1, 64, 14, 14), 64, (1, 1)), "conv_cpu"),
    "3x3, odd": lambda: (convolution((2, 24, 13, 19), 41, (3, 3), strides=(2, 2)), "conv_cpu"),
    "groups": lambda: (convolution((1, 64, 12, 18), 64, (3, 3), group=4), "conv_cpu"),
    "depthwise": lambda: (convolution((1, 33, 15, 21), 33, (3, 3), group=33), "depthwise_cpu"),
    "depthwise by two": lambda: (
        convolution((2, 48, 15, 21), 48, (5, 5), strides=(2, 2), group=48), "depthwise_cpu"),
    "winograd": lambda: (inner(*convolution((1, 128, 28, 29), 128, (3, 3))), "winograd_cpu"),
    "winograd, odd": lambda: (inner(*convolution((2, 64, 31, 33), 72, (3, 3))), "winograd_cpu"),
    "largest": lambda: (pooled("max_pool", (1, 40, 19, 21)), "pool_cpu"),
    "mean": lambda: (pooled("average_pool", (2, 16, 19, 21)), "pool_cpu"),
    "attention": lambda: (attention(6, 70, 32, 90), "attention_cpu"),
    "attention of products": lambda: (attention_of_products(40, 3, 32), "attention_cpu"),
    "attention of few rows": lambda: (attention(4, 2, 64, 300), "attention_cpu"),
}


@pytest.mark.in_turn
@pytest.mark.sampled(quick=8)
@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("width", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 16))])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_cpu_path(spec, width, case):
    """width: of the device's vectors, as another CPU has them; 0 as they are."""
    (y, inputs), template = CASES[case]()
    graph = Graph("t", tuple(inputs), (("y", y),))
    arrays = [rng().standard_normal(n.type.dims).astype("f4") for n in inputs]
    place, cpu = device(spec), device("cpu")
    outputs = 4 if template == "winograd_cpu" else 0
    target = dataclasses.replace(place.target, winograd=outputs)
    if width:
        target = dataclasses.replace(target, vector_width=width, max_vector_width=width)
    plan = plan_on(place, graph, target)
    assert template in {k.template for k in plan.kernels}
    (got,) = place.load(plan).run(arrays)
    other = plan_on(cpu, graph, dataclasses.replace(cpu.target, winograd=outputs))
    (want,) = cpu.load(other).run(arrays)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_results_are_equal_on_any_number_of_threads(threads):
    (y, inputs), _ = CASES["3x3, odd"]()
    graph = Graph("t", tuple(inputs), (("y", y),))
    place = device(DEVICES[0])
    arrays = [rng().standard_normal(n.type.dims).astype("f4") for n in inputs]
    target = dataclasses.replace(place.target, compute_units=threads)
    (got,) = place.load(plan_on(place, graph, target)).run(arrays)
    (want,) = place.load(plan_on(place, graph)).run(arrays)
    assert np.array_equal(got, want)


@pytest.mark.in_turn
@pytest.mark.sampled(quick=8)
@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_halves_are_those_of_the_cpu_path(spec, soft, case):
    """soft: by integer arithmetic. Convolutions of inputs are f32, and of rows of odd length."""
    (y, inputs), template = CASES[case]()
    graph = Graph("t", tuple(inputs), (("y", y),))
    arrays = [rng().standard_normal(n.type.dims).astype("f4") for n in inputs]
    place, cpu = device(spec), device("cpu")
    outputs = 4 if template == "winograd_cpu" else 0
    target = dataclasses.replace(place.target, winograd=outputs, soft_half=soft)
    plan = plan_on(place, graph, target, "normal")
    assert {template} <= {k.template for k in plan.kernels} <= {template, "conv_cpu", "gemm_cpu"}
    (got,) = place.load(plan).run(arrays)
    other = dataclasses.replace(cpu.target, winograd=outputs, soft_half=soft)
    (want,) = cpu.load(plan_on(cpu, graph, other, "normal")).run(arrays)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * max(1, np.abs(want).max()))


@pytest.mark.sampled(quick=4)
@clang.needed
@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("precision", ["high", "normal"])
def test_texts_pass_clang(precision, width):
    """Vectors of halves, too, are stored as what they are: a driver may take other pointers."""
    kernels = {}
    for make in CASES.values():
        (y, inputs), template = make()
        plan = compile_graph(Graph("t", tuple(inputs), (("y", y),)), dataclasses.replace(
            AVX2, vector_width=width, max_vector_width=width), precision).plan
        assert template in {k.template for k in plan.kernels} | {"winograd_cpu", "conv_cpu"}
        kernels |= {k.entry: k for k in plan.kernels}
    assert clang.objections(kernels.values()) == ""


def test_what_is_computed_in_half_is_left_to_opencl():
    (y, inputs), _ = CASES["winograd"]()
    graph, half = Graph("t", tuple(inputs), (("y", y),)), dataclasses.replace(
        AVX2, fp16_storage=True, fp16_arithmetic=True)
    for precision, template in (("normal", "winograd_cpu"), ("low", "conv_opencl")):
        found = compile_graph(graph, half, precision).plan.kernels
        assert template in {k.template for k in found}


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.kind == "elementwise"])
def test_functions_of_floats_are_written_behind_a_product(name):
    for sample in OPS[name].samples:
        if sample.attrs or {a.dtype for a in sample.args} != {"f32"}:
            continue
        a = graph_input("a", TensorType("f32", (8, 32)))
        others = [graph_input(f"x{k}", TensorType("f32", (8, 64)))
                  for k in range(1, len(sample.args))]
        y = b.op(name, b.matmul(a, const(np.ones((32, 64), "f4"))), *others)
        plan = compile_graph(Graph("t", (a, *others), (("y", y),)), AVX2).plan
        taken = "gemm_opencl" if name in ("mod", "sign") else "gemm_cpu"
        assert taken in {k.template for k in plan.kernels}


def test_layouts_are_in_blocks_of_a_vector():
    (y, inputs), _ = CASES["3x3, odd"]()
    graph = AssignLayouts(device(DEVICES[0]).target).run(Graph("t", tuple(inputs), (("y", y),)))
    width = device(DEVICES[0]).target.as_cpu.vector_width
    assert Layout("NCHWc", width, 1) in {n.type.layout for n in graph.nodes}


def test_a_gpu_has_no_threads():
    assert AVX2.as_cpu is not None
    assert dataclasses.replace(AVX2, device_type="gpu").as_cpu is None
    assert dataclasses.replace(AVX2, max_vector_width=1).as_cpu is None
    assert dataclasses.replace(AVX2, cpu_templates=False).as_cpu is None


@pytest.mark.parametrize("line", [
    "store(y, 0, dot(load(x, 0)))", "y = ptr(args, 1, 'f64')", "with x: pass",
    "store(y, 0, load(x, 0) + to_i32(load(x, 1)))"])
def test_what_has_no_form_is_refused(line):
    text = f"def KERNEL_ENTRY(args, tid, nthreads):\n    x = ptr(args, 0, 'f32')\n    {line}\n"
    with pytest.raises(NotThreaded):
        translated(AVX2, text, 2, {})


def text_of(*lines):
    return "\n    ".join((f"def {ENTRY}(args, tid, nthreads):", *lines, ""))


def plan_of(lines, *buffers, **params):
    """A kernel of these buffers: (name, dtype, shape, kind)."""
    text = text_of(*(f"{name} = ptr(args, {k}, '{dtype}')"
                     for k, (name, dtype, *_) in enumerate(buffers)), *lines)
    body, _ = translated(AVX2, text, len(buffers), params)
    entry = f"tested_{hashlib.sha256(body.encode()).hexdigest()[:10]}"
    body = body.replace(ENTRY, entry).replace(GROUP, "")
    specs = tuple(BufferSpec(name, dtype, shape, dtypes.itemsize(dtype) * math.prod(shape), kind)
                  for name, dtype, shape, kind in buffers)
    inputs, outputs = (tuple(TensorSpec(b.name, b.dtype, b.shape, k) for k, b in enumerate(specs)
                             if b.kind == kind) for kind in ("input", "output"))
    step = Step(entry, entry, tuple(range(len(specs))), tuple(params.values()), (2,), (1,))
    return Plan(inputs, outputs, (KernelSource(entry, body, "opencl"),), (step,), specs, ())


def integer_plan(lines, length, outputs, **params):
    """A kernel of i64 buffers a, b and y, which has a row for each of `outputs`."""
    inputs = (((name, "i64", (1, length), "input")) for name in "ab")
    return plan_of(lines, *inputs, ("y", "i64", (outputs, length), "output"), **params)


@pytest.mark.parametrize("spec", DEVICES)
def test_what_is_no_finite_half_is_told(spec):
    """Of vectors and of single elements; where a thread has one, the flag is set."""
    lines = ["n = param(args, 3)", "flag = param(args, 4)",
             "for i in range(share(n, tid, nthreads), share(n, tid + 1, nthreads)):",
             "    stored8 = vload(x, i * 9, 8)", "    store(y, i * 9, stored8)",
             "    keep(stored8)",
             "    stored = load(x, i * 9 + 8)", "    store(y, i * 9 + 8, stored)",
             "    keep(stored)", "if kept_overflows('f16'):", "    store(flags, flag, i32(1))"]
    x = rng().standard_normal((6, 9)).astype("f4")
    plan = plan_of(lines, ("x", "f32", x.shape, "input"), ("flags", "i32", (2,), "output"),
                   ("y", "f16", x.shape, "output"), n=6, flag=1)
    loaded = device(spec).load(plan)
    for place, value, told in (((3, 2), 65519.0, False), ((0, 8), -65520.0, True),
                               ((5, 1), 1e9, True), ((4, 8), np.nan, True)):
        given = x.copy()
        given[place] = value
        flags, y = loaded.run([given])
        assert (flags[1] == 1) == told
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(y, given.astype("f2"))


@pytest.mark.parametrize("spec", DEVICES)
def test_quotients_are_rounded_as_in_python(spec):
    """Of what may be negative, and by what may be 0, where C's own operators are wrong."""
    a, c = (x.ravel() for x in np.meshgrid(
        np.array([-7, -6, -1, 0, 1, 6, 7, 2 - 2**63]), np.array([-3, -1, 0, 1, 3])))
    forms = ("x // z", "x % z", "floordiv(x, z)", "mod(x, z)", "div(x, z)", "fmod(x, z)",
             "x // 3", "(0 - i) // down")
    lines = ["n = param(args, 3)", "down = param(args, 4)",
             "for i in range(share(n, tid, nthreads), share(n, tid + 1, nthreads)):",
             "    x = load(a, i)", "    z = load(b, i)",
             *(f"    store(y, {k} * n + i, {form})" for k, form in enumerate(forms))]
    plan = integer_plan(lines, a.size, len(forms), n=a.size, down=-2)
    (got,) = device(spec).load(plan).run([a[None], c[None]])
    with np.errstate(divide="ignore"):
        floors, rests = a // c, np.where(c == 0, 0, a % c)
        towards_0, left = (np.where(c == 0, 0, np.sign(a) * x) for x in (
            np.sign(c) * (abs(a) // abs(c)), np.fmod(abs(a), abs(c))))
    want = [floors, rests, floors, rests, towards_0, left, a // 3, -np.arange(a.size) // -2]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("spec", DEVICES)
def test_positions_are_compared_lane_by_lane(spec):
    """In 64 bits, which masks of floats are not."""
    lines = ["n = param(args, 2)", "p = vload(x, 0, 8)",
             "store(y, 0, select(lt(p, splat(n, 8)), to_f32(p), to_f32(splat(n, 8) - p)))"]
    x = np.array([[-3, 2, 9, 4, 5, 0, 7, -1]])
    plan = plan_of(lines, ("x", "i64", x.shape, "input"), ("y", "f32", x.shape, "output"), n=4)
    (got,) = device(spec).load(plan).run([x])
    np.testing.assert_array_equal(got, np.where(x < 4, x, 4 - x))


@pytest.mark.parametrize("line, written", [
    ("t = i // n", "t = (i_1 / n)"),                    # a loop's counter by a length
    ("t = (i + n * 3) % (n + 1)", "t = ((i_1 + (n * 3)) % (n + 1))"),
    ("t = (i - n) // n", "t = jitcl_floordiv_i64((i_1 - n), n)"),
    ("t = i // zero", "t = jitcl_floordiv_i64(i_1, zero)"),
    ("t = less // n", "t = jitcl_floordiv_i64(less, n)"),       # which a later turn makes negative
    ("t = div(i - n, n)", "t = ((i_1 - n) / n)"),       # as C has it
    ("t = div(n, i)", "t = jitcl_div_i64(n, i_1)"),
])
def test_quotients_of_what_is_not_negative_are_operators(line, written):
    lines = ["n = param(args, 3)", "zero = param(args, 4)", "less = n", "for i in range(n):",
             f"    {line}", "    less = less - 1",
             "    store(y, i, t + less + load(a, i) + load(b, i))"]
    (kernel,) = integer_plan(lines, 8, 1, n=8, zero=0).kernels
    assert f"{written};" in kernel.body


def test_what_is_declined_stands_in_reports():
    a = graph_input("a", TensorType("f32", (8, 32)))
    y = b.op("sign", b.matmul(a, const(np.ones((32, 64), "f4"))))
    place = device(DEVICES[0])
    plan = plan_on(place, Graph("t", (a,), (("y", y),)))
    lanes = place.target.as_cpu.vector_width
    why = f"gemm_cpu: no OpenCL C is written for 'sign' of f32x{lanes}"
    assert {step.declined for step in plan.steps} == {(why,)}
    assert f"// not by {why}\n" in plan.steps[-1].head
    report = report_of("t", place, Specialisation(plan, None, place, False))
    assert f"declined, 100% of the FLOPs: {why}" in str(report)
