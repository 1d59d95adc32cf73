"""The OpenCL templates against the ops' NumPy references, over shapes and fused epilogues."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jitcl.codegen.trial import trials
from jitcl.devices.profile import ProfileDevice
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.runtime.memory import laid_out
from jitcl.target.profiles import PROFILES
from jitcl.templates.opencl.tiling import choose_tiles
from tests.compiling import compile_graph, plan_on
from tests.devices import cpus, device
from tests.drawn import rng
from tests.lacking import unless
from tests.rounding import TOLERANCE

DEVICES = cpus()
b = GraphBuilder()

pytestmark = [unless(DEVICES, "there is no OpenCL driver of a CPU"), pytest.mark.in_turn]


# The same devices, posing as GPUs: without local memory worth using (as Mali), and with
POSES = {
    "cpu": {},
    "mali": dict(device_type="gpu", vector_width=4, max_vector_width=4, local_is_real=False,
                 registers=5),
    "adreno": dict(device_type="gpu", vector_width=4, max_vector_width=4, local_is_real=False),
    "gpu": dict(device_type="gpu", vector_width=4, max_vector_width=4, local_is_real=True,
                local_memory=32 << 10, max_work_group=256),
}


class Own:
    """Declines the CPU path's templates, which come first on a CPU: tests/test_opencl_threads.py.
    """

    def choose(self, template, group, candidates):
        return None if template.endswith("_cpu") else candidates[0]


def run(spec: str, graph: Graph, arrays, template: str | None, templates: bool = True,
        pose: str = "cpu"):
    """Outputs on a device; asserts that `template` wrote one of the kernels."""
    place = device(spec)
    target = dataclasses.replace(place.target, **POSES[pose])
    plan = plan_on(place, graph, target, passes=False, templates=templates, chooser=Own())
    if templates and template is not None:
        assert any(k.template.startswith(template) for k in plan.kernels)
    return place.load(plan).run(arrays)


def check(spec: str, outputs: list[Node], inputs: list[Node], dtype: str, template: str | None,
          pose: str = "cpu"):
    """Feed random arrays; compare with the references, and with generated loops."""
    arrays = [rng().standard_normal(n.type.dims).astype("f4" if n.type.dtype == "f32" else "f2")
              for n in inputs]
    graph = Graph("t", tuple(inputs), tuple((f"y{i}", n) for i, n in enumerate(outputs)))
    results = run(spec, graph, arrays, template, pose=pose)
    loops = run(spec, graph, arrays, template, templates=False)
    for node, got, other in zip(outputs, results, loops):
        want = evaluate(node, dict(zip(inputs, arrays))).astype(np.float64)
        bound = TOLERANCE[dtype] * max(1.0, np.abs(want).max())
        assert np.abs(got - want).max() <= bound
        assert np.abs(got.astype(np.float64) - other).max() <= bound
    return results


CONVS = {
    "1x1": dict(x=(1, 64, 14, 14), k=64, kernel=(1, 1), residual=True),
    "1x1, a bias over pixels": dict(x=(1, 16, 5, 7), k=9, kernel=(1, 1), bias=(1, 9, 1, 7)),
    "3x3": dict(x=(1, 16, 20, 33), k=24, kernel=(3, 3), residual=True),
    "3x3, short rows": dict(x=(1, 64, 7, 7), k=40, kernel=(3, 3), residual=True),
    "odd sizes, batch": dict(x=(2, 24, 13, 19), k=41, kernel=(3, 3), residual=True, act="tanh"),
    "few channels": dict(x=(1, 3, 32, 50), k=32, kernel=(3, 3), strides=(2, 2), act="sigmoid"),
    "stem 7x7": dict(x=(1, 3, 35, 42), k=32, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 2, 3)),
    "groups": dict(x=(1, 64, 12, 18), k=48, kernel=(3, 3), group=4),
    "groups of few pixels": dict(x=(2, 24, 5, 5), k=36, kernel=(3, 3), group=3, residual=True),
    "dilated": dict(x=(1, 20, 17, 24), k=48, kernel=(3, 3), dilations=(2, 3)),
    "asymmetric": dict(x=(1, 30, 12, 19), k=48, kernel=(3, 2), dilations=(2, 3), pads=(0, 1, 2, 3)),
    "one pixel, few outputs": dict(x=(1, 16, 1, 1), k=5, kernel=(1, 1)),
    "one output": dict(x=(1, 16, 6, 18), k=1, kernel=(3, 3)),
    "strided 1x1": dict(x=(1, 64, 14, 14), k=64, kernel=(1, 1), strides=(2, 2)),
    "stride 3": dict(x=(1, 6, 19, 40), k=10, kernel=(3, 3), strides=(3, 3)),
    "weights not constant": dict(x=(1, 6, 9, 10), k=10, kernel=(3, 3), constant=False),
    "half": dict(x=(1, 16, 9, 19), k=5, kernel=(3, 3), dtype="f16", residual=True),
    "half, 1x1": dict(x=(1, 32, 9, 9), k=20, kernel=(1, 1), dtype="f16"),
    "half, strided": dict(x=(1, 8, 9, 39), k=20, kernel=(3, 3), strides=(2, 2), dtype="f16"),
    "1-D": dict(x=(2, 24, 50), k=40, kernel=(5,), residual=True),
    "1-D strided": dict(x=(1, 24, 51), k=33, kernel=(3,), strides=(2,)),
}


def conv_case(x, k, kernel, strides=None, pads=None, dilations=None, group=1, act="relu",
              residual=False, bias=None, constant=True, dtype="f32"):
    """(output, inputs) of conv + bias [+ residual] + act."""
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads = pads or tuple((n - 1) // 2 * d for n, d in zip(kernel, dilations)) * 2
    kind = "f4" if dtype == "f32" else "f2"
    inputs = [graph_input("x", TensorType(dtype, x))]
    taps = x[1] // group * np.prod(kernel)
    w = (rng().standard_normal((k, x[1] // group, *kernel)) / np.sqrt(taps)).astype(kind)
    weights = const(w) if constant else graph_input("w", TensorType(dtype, w.shape))
    inputs += [] if constant else [weights]
    y = b.conv(inputs[0], weights, strides=strides, pads=pads, dilations=dilations, group=group)
    shape = bias or (1, k) + (1,) * rank
    y = b.add(y, const(rng().standard_normal(shape).astype(kind)))
    if residual:
        inputs.append(graph_input("r", y.type))
        y = b.add(y, inputs[-1])
    return b.op(act, y), inputs, dtype


def cases(names, few=()):
    """(name, device, pose): all on every device as it is, on one of them as Mali, and some there
    as a GPU, whose groups of 256 work-items CPUs are slow with."""
    found = [(n, spec, "cpu") for n in names for spec in DEVICES]
    found += [(n, DEVICES[-1], "mali") for n in names] if DEVICES else []
    found += [(n, DEVICES[-1], "gpu") for n in few] if DEVICES else []
    return [pytest.param(*c, id="-".join(c),
                         marks=pytest.mark.slow if c[2] != "cpu" and k % 2 else ())
            for k, c in enumerate(found)]


@pytest.mark.sampled(quick=10, slow=5)
@pytest.mark.parametrize("name, spec, pose", cases(CONVS, (
    "1x1", "3x3, short rows", "groups", "asymmetric", "weights not constant", "half, strided",
    "1-D strided", "1x1, a bias over pixels")))
def test_convolution(name, spec, pose):
    y, inputs, dtype = conv_case(**CONVS[name])
    template = "gemm_tiled_opencl" if pose == "gpu" else "conv_opencl"
    check(spec, [y], inputs, dtype, template, pose)


def padded_planes(x=(2, 6, 13, 13), dtype="f32"):
    """(output, inputs) of what reads and writes planes of padded rows: 3x3, strided, depthwise and
    1x1 convolutions, pooling, sums, concatenations, means."""
    kind = "f4" if dtype == "f32" else "f2"

    def conv(data, k, size=3, stride=1, group=1):
        c = data.type.dims[1] // group
        w = (rng().standard_normal((k, c, size, size)) / np.sqrt(c * size * size)).astype(kind)
        y = b.conv(data, const(w), strides=(stride,) * 2, pads=(size // 2,) * 4,
                   dilations=(1, 1), group=group)
        return b.add(y, const(rng().standard_normal((1, k, 1, 1)).astype(kind)))

    data = graph_input("x", TensorType(dtype, x))
    y = b.tanh(conv(data, 8))
    y = b.relu(b.add(conv(b.relu(conv(y, 8, group=8)), 8, 1), y))
    y = b.concat(y, b.max_pool(y, kernel=(3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1)),
                 axis=1)
    y = b.mul(b.sigmoid(b.reduce_mean(y, axes=(2, 3))), y)
    y = b.mul(b.add(y, const(np.array(1, kind))), conv(y, 16, 1))
    y = b.relu(conv(y, 7, stride=2))
    return b.mul(y, conv(b.sigmoid(y), 7, 1)), [data]


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("pose, spec", [
    *(("mali", s) for s in DEVICES), *(("adreno", s) for s in DEVICES[-1:])])
@pytest.mark.parametrize("dtype, precision", [("f32", "high"), ("f16", "high"), ("f32", "low")])
def test_planes_of_padded_rows(spec, pose, dtype, precision):
    """Convolutions of all forms, on rows of 13 and 7 that lie 16 and 8 apart; also as loops, and
    as trials judge them."""
    y, inputs = padded_planes(dtype=dtype)
    arrays = [rng().standard_normal(n.type.dims).astype("f4" if dtype == "f32" else "f2")
              for n in inputs]
    place = device(spec)
    target = dataclasses.replace(place.target, **POSES[pose])
    y = b.reduce_mean(b.concat(y, b.relu(y), axis=2), axes=(3,))
    want = evaluate(y, dict(zip(inputs, arrays))).astype(np.float64)
    bound = (3e-2 if precision == "low" else TOLERANCE[dtype]) * np.abs(want).max()
    for templates in (True, False):
        made = compile_graph(Graph("t", tuple(inputs), (("y", y),)), target, precision,
                             templates=templates)
        assert {g.root.type.dims[3] for g in made.groups
                if g.root.type.layout.kind == "rows"} == {13, 7}
        if templates:
            assert {"conv_opencl", "depthwise_opencl", "pool_opencl"} <= {
                k.template for k in made.plan.kernels}
        plan = laid_out(made.plan, place, "normal")
        (got,) = place.load(plan).run(arrays)
        assert np.abs(got - want).max() <= bound
        for trial in trials(made, plan):
            assert trial.wrong(place.load(trial.plan).run(trial.inputs())) == ""


def test_padded_rows_and_whole_ones_are_one_program():
    """Windows over rows of 13 and 7 that lie 16 and 8 apart, and over rows of 16 and 8. (Tiles of
    products are chosen by the number of pixels.)"""
    target = dataclasses.replace(device(DEVICES[-1]).target, **POSES["mali"])

    def windows(size: int) -> set[str]:
        y, inputs = padded_planes(x=(2, 6, size, size))
        graph = Graph("t", tuple(inputs), (("y", b.reduce_mean(y, axes=(2, 3))),))
        return {k.entry for k in compile_graph(graph, target, "high").plan.kernels
                if k.template and not k.entry.startswith("gemm")}

    assert windows(13) == windows(16)


def matrix(name: str, *shape: int, dtype: str = "f32") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def weights(*shape: int, dtype: str = "f32") -> Node:
    values = rng().standard_normal(shape) / np.sqrt(shape[-2])
    return const(values.astype("f4" if dtype == "f32" else "f2"))


def heads(name: str) -> tuple[Node, Node]:
    """[batch, rows, heads * width] as [batch, heads, rows, width], and the input behind it."""
    x = matrix(name, 2, 13, 60)
    return b.transpose(b.reshape(x, shape=(2, 13, 3, 20)), perm=(0, 2, 1, 3)), x


def attention() -> tuple[Node, list[Node]]:
    (q, a), (k, c) = heads("q"), heads("k")
    scores = b.matmul(q, b.transpose(k, perm=(0, 1, 3, 2)))
    mask = matrix("mask", 2, 1, 1, 13)
    return b.add(b.mul(scores, 0.25), mask), [a, c, mask]


GEMMS = {
    "constant": lambda: (b.relu(b.add(b.matmul(x := matrix("a", 37, 64), weights(64, 50)),
                                      weights(1, 50))), [x]),
    "one row": lambda: (b.matmul(x := matrix("a", 1, 64), weights(64, 70)), [x]),
    "few tiles, many terms": lambda: (b.add(b.matmul(x := matrix("a", 9, 150), weights(150, 42)),
                                            y := matrix("r", 9, 42)), [x, y]),
    "half, many terms": lambda: (b.matmul(x := matrix("a", 9, 148, dtype="f16"),
                                          weights(148, 42, dtype="f16")), [x]),
    "narrow": lambda: (b.matmul(x := matrix("a", 19, 30), weights(30, 5)), [x]),
    "both read": lambda: (b.matmul(x := matrix("a", 33, 64), y := matrix("b", 64, 65)), [x, y]),
    "large": lambda: (b.matmul(x := matrix("a", 300, 64), y := matrix("b", 64, 300)), [x, y]),
    "transposed": lambda: (b.mul(b.matmul(b.transpose(x := matrix("a", 40, 18), perm=(1, 0)),
                                          b.transpose(y := matrix("b", 21, 40), perm=(1, 0))),
                                 0.5), [x, y]),
    "batch, merged": lambda: (b.add(b.tanh(b.matmul(x := matrix("a", 3, 7, 32), weights(32, 24))),
                                    y := matrix("r", 3, 7, 24)), [x, y]),
    "batch": lambda: (b.matmul(x := matrix("a", 3, 7, 32), y := matrix("b", 3, 32, 24)), [x, y]),
    "batch of b": lambda: (b.matmul(x := matrix("a", 7, 32), y := matrix("b", 3, 32, 24)), [x, y]),
    "constant a": lambda: (b.matmul(weights(17, 32), y := matrix("b", 3, 32, 24)), [y]),
    "attention": attention,
    "mask of truth": lambda: (b.where(b.less(b.matmul(x := matrix("a", 9, 16), weights(16, 20)),
                                             0.0), 0.0, y := matrix("r", 9, 20)), [x, y]),
    "double epilogue": lambda: (b.cast(b.mul(b.cast(
        b.matmul(x := matrix("a", 9, 16), weights(16, 20)), to="f64"), 1 / 3), to="f32"), [x]),
    "half": lambda: (b.mul(b.matmul(x := matrix("a", 9, 32, dtype="f16"),
                                    weights(32, 20, dtype="f16")), 2.0), [x]),
    "half, both read": lambda: (b.matmul(x := matrix("a", 9, 32, dtype="f16"),
                                         y := matrix("b", 32, 20, dtype="f16")), [x, y]),
}


@pytest.mark.sampled(quick=4, slow=5)
@pytest.mark.parametrize("name, spec, pose", cases(GEMMS, (
    "constant", "one row", "transposed", "batch, merged", "batch of b", "attention",
    "double epilogue", "half")))
def test_matrix_product(name, spec, pose):
    y, inputs = GEMMS[name]()
    template = "gemm_tiled_opencl" if pose == "gpu" else "gemm_opencl"
    check(spec, [y], inputs, y.type.dtype, template, pose)


@pytest.mark.parametrize("op", ["less_or_equal", "equal", "bool", "bool, by columns"])
@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("pose, n", [("mali", 22), ("mali", 24), ("cpu", 22)])
def test_a_mask_of_integers_or_truth_values_is_fused(pose, n, precision, op):
    """Positions of keys beside a query's, as language models mask scores; or what says it."""
    m = 4 if "columns" in op else 12                # lanes that lie not too far apart
    a, w, keys, query = inputs = [
        graph_input(name, TensorType(dtype, dims)) for name, dtype, dims in (
            ("a", "f32", (m, 16)), ("w", "f32", (16, n)), ("keys", "i32", (1, n)),
            ("query", "i32", (m, 1)))]
    if op.startswith("bool"):
        dims = (m, n) if op == "bool" else (n, m)
        seen = inputs[2] = graph_input("keys", TensorType("bool", dims))
        inputs.pop()
        seen = seen if op == "bool" else b.transpose(seen, perm=(1, 0))
    else:
        seen = b.op(op, keys, query)
    y = b.add(b.matmul(a, w), b.where(seen, b.const(0, "f32"), b.const(-math.inf, "f32")))
    place = device(DEVICES[-1])
    target = dataclasses.replace(place.target, **POSES[pose])
    plan = plan_on(place, Graph("t", tuple(inputs), (("y", y),)), target, precision, chooser=Own())
    products = [k for k in plan.kernels if k.template]
    assert [k.template for k in products] == ["gemm_opencl"]
    assert not any("where" in s.kernel for s in plan.steps)
    random = rng()
    fed = [random.standard_normal(i.type.dims).astype("f4") if i.type.dtype == "f32"
           else random.integers(0, 2 if op.startswith("bool") else 9, i.type.dims).astype(
               "i4" if i.type.dtype == "i32" else bool)
           for i in inputs]
    (got,) = place.load(plan).run(fed)
    want = evaluate(y, dict(zip(inputs, fed)))
    assert np.isinf(want).any() and np.isfinite(want).any()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if precision == "low" else 1e-5)


@pytest.mark.parametrize("pose", ["mali", "adreno"])
@pytest.mark.parametrize("local_works", [True, False])
@pytest.mark.parametrize("precision", ["high", "low"])
def test_few_tiles_share_their_terms(pose, local_works, precision):
    """In slices, the last of which is shorter, or empty; rows and columns that no tile has. Local
    memory may be ordinary memory. Weights are images, so that no tiles are staged in it.
    """
    x = graph_input("x", TensorType("f32", (1, 90, 5, 5)))
    conv = b.conv(x, weights(180, 90, 1, 1), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1),
                  group=1)
    y = b.matmul(b.reshape(b.relu(conv), shape=(180, 25)), weights(25, 300))
    y = b.matmul(b.reduce_mean(b.reshape(y, shape=(1, 540, 100)), axes=(2,), keepdims=False),
                 weights(540, 33))
    graph = Graph("t", (x,), (("y", y),))
    place = device(DEVICES[-1])
    fields = {**POSES[pose], "local_works": local_works, "images": True,
              "image_pixels": 1 << 16}
    made = compile_graph(graph, dataclasses.replace(place.target, **fields), precision)
    plan = laid_out(made.plan, place, "normal")
    used = [k for s in plan.steps for k in plan.kernels if k.entry == s.kernel]
    assert ("k_part" in used[-1].params) == local_works
    data = rng().standard_normal(x.type.dims).astype("f4")
    want = evaluate(y, {x: data}).astype(np.float64)
    (got,) = place.load(plan).run([data])
    bound = (3e-2 if precision == "low" else TOLERANCE["f32"]) * np.abs(want).max()
    assert np.abs(got - want).max() <= bound


def test_slices_are_for_tiles_that_leave_registers_for_them():
    """160 x 56 products on seven cores: not those in half, which take 37 of a Mali's 32."""
    target = PROFILES["mali-g715"].target
    for half, shape in ((False, (2, 1, 4, 2)), (True, (1, 1, 4, 1))):
        best = choose_tiles(1, 160, 56, lambda w: 56 // w, target, half, terms=960)[0]
        assert (best.rows, best.vectors, best.width, best.slices) == shape


@pytest.mark.parametrize(("behind", "sliced"), [(b.relu, True), (b.sigmoid, False)])
def test_no_slices_where_what_is_behind_a_product_takes_their_registers(behind, sliced):
    a, z = matrix("a", 1, 512), matrix("z", 1, 64)
    y = b.mul(behind(b.matmul(a, weights(512, 64))), z)
    made = compile_graph(Graph("t", (a, z), (("y", y),)), PROFILES["mali-g715"].target)
    (kernel,) = (k for k in made.plan.kernels if k.template == "gemm_opencl")
    assert ("k_part" in kernel.params) == sliced


def test_how_many_share_a_tile_is_in_the_launch_alone():
    """Products in slices are one program, however many slices and lanes their groups have."""
    used = []
    for channels, size in ((480, 14), (1152, 6), (240, 28)):
        x = graph_input("x", TensorType("f32", (1, channels, size, size)))
        y = b.conv(x, weights(channels // 6, channels, 1, 1), strides=(1, 1), pads=(0,) * 4,
                   dilations=(1, 1), group=1)
        made = compile_graph(Graph("t", (x,), (("y", y),)), ProfileDevice("adreno-740").target)
        used += [s for s in made.plan.steps if s.kernel.startswith("gemm")]
    assert len({s.local_size[2] for s in used}) == 3, [s.local_size for s in used]
    assert len({s.kernel for s in used}) == 1


def depthwise(x, kernel, strides=(1, 1), pads=None, dilations=(1, 1), copies=1, dtype="f32"):
    """conv of one channel a group + bias + relu."""
    data = matrix("x", *x, dtype=dtype)
    pads = pads or tuple((n - 1) // 2 * d for n, d in zip(kernel, dilations)) * 2
    rank = len(kernel)
    kind = "f4" if dtype == "f32" else "f2"
    w = const(rng().standard_normal((x[1] * copies, 1, *kernel)).astype(kind))
    y = b.conv(data, w, strides=strides[:rank], pads=pads, dilations=dilations[:rank], group=x[1])
    bias = const(rng().standard_normal((1, x[1] * copies) + (1,) * rank).astype(kind))
    return b.relu(b.add(y, bias)), [data]


def pool(op, x, kernel, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), dtype="f32", **attrs):
    data = matrix("x", *x, dtype=dtype)
    return b.op(op, data, kernel=kernel, strides=strides, pads=pads, dilations=dilations,
                **attrs), [data]


WINDOWS = {
    "3x3": lambda: depthwise((1, 24, 15, 33), (3, 3)),
    "short rows": lambda: depthwise((2, 40, 7, 7), (3, 3)),
    "strided": lambda: depthwise((1, 8, 20, 41), (5, 5), strides=(2, 2)),
    "dilated": lambda: depthwise((1, 8, 20, 41), (3, 3), dilations=(2, 3)),
    "two outputs a channel": lambda: depthwise((2, 6, 9, 20), (3, 3), copies=2),
    "wide window": lambda: depthwise((1, 6, 9, 20), (7, 5), pads=(3, 0, 2, 1)),
    "7x7": lambda: depthwise((2, 3, 16, 15), (7, 7)),
    "few planes": lambda: depthwise((1, 2, 50, 60), (3, 3)),
    "1-D": lambda: depthwise((2, 8, 50), (5,)),
    "half": lambda: depthwise((1, 8, 9, 21), (3, 3), dtype="f16"),
    "half, strided": lambda: depthwise((1, 8, 9, 21), (3, 3), strides=(2, 2), dtype="f16"),
    "max": lambda: pool("max_pool", (1, 8, 15, 33), (3, 3), (2, 2), (1, 1, 1, 1)),
    "max, large": lambda: pool("max_pool", (1, 8, 13, 13), (9, 9), (1, 1), (4, 4, 4, 4)),
    "max, ceil": lambda: pool("max_pool", (1, 8, 14, 14), (3, 3), (2, 2), ceil=True),
    "max of halves": lambda: pool("max_pool", (1, 8, 15, 33), (2, 2), (2, 2), dtype="f16"),
    "mean": lambda: pool("average_pool", (1, 8, 14, 30), (2, 2), (2, 2)),
    "mean with padding": lambda: pool("average_pool", (1, 8, 14, 30), (3, 3), (1, 1), (1,) * 4,
                                      count_pad=True),
}


@pytest.mark.sampled(quick=4, slow=5)
@pytest.mark.parametrize("name, spec, pose", cases(
    WINDOWS, tuple(n for n in WINDOWS if not n.startswith(("max", "mean")))))
def test_windows(name, spec, pose):
    y, inputs = WINDOWS[name]()
    template = "pool_opencl" if name.startswith(("max", "mean")) else "depthwise_opencl"
    check(spec, [y], inputs, y.type.dtype, template, pose)


@pytest.mark.parametrize("spec", DEVICES)
def test_nan_passes_convolution_pooling_and_relu(spec):
    data = matrix("x", 1, 16, 9, 20)
    w = const(np.ones((16, 16, 1, 1), np.float32))
    plain = dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
    y = b.relu(b.conv(data, w, group=1, **plain))
    z = b.max_pool(data, kernel=(1, 1), **plain)
    x = np.zeros((1, 16, 9, 20), np.float32)
    x[0, 3, 2, 2] = np.nan
    y, z = run(spec, Graph("t", (data,), (("y", y), ("z", z))), [x], "conv_opencl")
    assert np.isnan(y[0, :, 2, 2]).all() and np.isnan(y).sum() == 16
    assert np.isnan(z[0, 3, 2, 2]) and np.isnan(z).sum() == 1


def bottleneck():
    """A residual block as in ResNet: 1x1, 3x3, 1x1, sum, each with bias and relu."""
    x = matrix("x", 1, 32, 14, 20)

    def layer(data, k, size):
        c = data.type.dims[1]
        w = rng().standard_normal((k, c, size, size)) / np.sqrt(c * size * size)
        y = b.conv(data, const(w.astype("f4")), strides=(1, 1), pads=(size // 2,) * 4,
                   dilations=(1, 1), group=1)
        return b.add(y, const(rng().standard_normal((1, k, 1, 1)).astype("f4")))

    y = b.relu(layer(b.relu(layer(x, 16, 1)), 16, 3))
    y = b.relu(b.add(layer(y, 32, 1), x))
    return b.max_pool(y, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1)), [x]


@pytest.mark.parametrize("pose, wanted", [
    ("cpu", ["conv_opencl"] * 4 + ["pool_opencl"] * 2),
    ("mali", ["conv_opencl"] * 4 + ["pool_opencl"] * 2),
    ("gpu", ["gemm_tiled_opencl"] * 3 + [""])])
def test_templates_are_taken(pose, wanted):
    """One kernel a layer, and one more where planes are padded, or rows read in pairs."""
    y, inputs = bottleneck()
    graph = Graph("t", tuple(inputs), (("y", y),))
    target = dataclasses.replace(device(DEVICES[-1]).target, **POSES[pose])
    plan = compile_graph(graph, target, passes=False, chooser=Own()).plan
    template = {k.entry: k.template for k in plan.kernels}
    assert [template[s.kernel] for s in plan.steps] == wanted
    check(DEVICES[-1], [y], inputs, "f32", wanted[0], pose)


def test_erf_behind_a_product_is_as_near_where_registers_are_few():
    """A vector's erf is jitcl's own there: 16 ulp, as OpenCL C allows; never beyond 1."""
    x = np.concatenate([np.linspace(-5, 5, 4064), 10.0 ** -np.arange(32)]).astype("f4")
    a = graph_input("a", TensorType("f32", (64, 64)))
    product = b.matmul(a, const(np.eye(64, dtype="f4")))
    graph = Graph("t", (a,), (("y", b.erf(product)),))
    (found,) = run(DEVICES[-1], graph, [x.reshape(64, 64)], "gemm_opencl", pose="mali")
    y = found.ravel()
    wanted = np.array([math.erf(v) for v in x.astype(float)])
    assert (np.abs(y - wanted) <= 16 * np.spacing(np.abs(wanted).astype("f4"))).all()
    assert np.abs(y).max() <= 1


@pytest.mark.parametrize("n", [22, 24])
def test_one_row_with_a_long_function_behind_it_is_stored_by_halves_of_vectors(n):
    """Where registers are few; 22: the last vector overlaps the one before."""
    a, z = matrix("a", 1, 40), matrix("z", 1, n)
    y = b.mul(b.sigmoid(b.matmul(a, weights(40, n))), z)
    check(DEVICES[-1], [y], [a, z], "f32", "gemm_opencl", "mali")
    target = dataclasses.replace(device(DEVICES[-1]).target, **POSES["mali"])
    graph = Graph("t", (a, z), (("y", y),))
    (kernel,) = (k for k in compile_graph(graph, target, "high").plan.kernels
                 if k.template == "gemm_opencl")
    assert "_store(c00.lo," in kernel.body and "_store(c00.hi," in kernel.body
