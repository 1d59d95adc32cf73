"""The candidates of templates: named parameters, best first, each of them right; who chooses."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from jitcl.codegen.plan import Plan
from jitcl.codegen.variants import VariantChooser
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.fuse import fuse
from jitcl.target import Target
from jitcl.target.features import features_of
from jitcl.target.profiles import PROFILES
from jitcl.templates.base import FIRST, Match
from jitcl.templates.conv_opencl.template import ConvOpenCl, Form
from jitcl.templates.depthwise_opencl.template import DepthwiseOpenCl
from jitcl.templates.gemm_opencl.template import GemmOpenCl
from jitcl.templates.gemm_tiled_opencl.template import (
    HALVED,
    LARGE,
    LOW,
    SMALL,
    GemmTiledOpenCl,
    Split,
)
from jitcl.templates.opencl.tiling import Tile
from tests.compiling import compile_graph, plan_on
from tests.devices import device, needs
from tests.rounding import TOLERANCE

b = GraphBuilder()
MALI_G610 = PROFILES["mali-g610"].target
POCL, needs_pocl = device("opencl:pocl"), needs("opencl:pocl")
MALI = dict(device_type="gpu", vector_width=4, max_vector_width=4, local_is_real=False,
            registers=5)
GPU = dict(device_type="gpu", vector_width=4, max_vector_width=4, local_is_real=True,
           local_memory=32 << 10, max_work_group=256, compute_units=8)


class Take:
    """Takes the candidate of a place in the list, counted as Python does; notes what it was
    asked. The CPU path's templates it declines.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.seen: list[tuple[str, Group, tuple[Match, ...]]] = []

    def choose(self, template, group, candidates):
        if template.endswith("_cpu"):
            return None
        self.seen.append((template, group, candidates))
        return candidates[self.place]


def product(m=37, k=300, n=70) -> Graph:
    """relu(a @ w + residual)."""
    rng = np.random.default_rng(5)
    a, r = (graph_input(name, TensorType("f32", dims)) for name, dims in (
        ("a", (m, k)), ("r", (m, n))))
    w = const((rng.standard_normal((k, n)) / np.sqrt(k)).astype("f4"))
    return Graph("t", (a, r), (("y", b.relu(b.add(b.matmul(a, w), r))),))


def columns(m=3, k=296, n=77, bits=0) -> Graph:
    """relu(a @ w' + residual) of weights [n, k]; with bits, of codes in blocks of 16 terms."""
    rng = np.random.default_rng(5)
    a, r = (graph_input(name, TensorType("f32", dims)) for name, dims in (
        ("a", (m, k)), ("r", (m, n))))
    if bits:
        dims = (n, k // 16, 16)
        codes = const(rng.integers(0, 256, n * k * bits // 8).astype("u1"))
        codes = (b.unpack_uint4(codes, shape=dims) if bits == 4 else
                 b.reshape(codes, shape=dims))
        scales, shifts = (const(rng.uniform(-0.01, 0.01, (n, k // 16, 1)).astype("f4"))
                          for _ in "ab")
        w = b.reshape(b.add(b.dequantize(codes, scales, to="f32"), shifts), shape=(n, k))
    else:
        w = const((rng.standard_normal((n, k)) / np.sqrt(k)).astype("f4"))
    y = b.matmul(a, b.transpose(w, perm=(1, 0)))
    return Graph("t", (a, r), (("y", b.relu(b.add(y, r))),))


def convolution(x=(2, 6, 11, 13), k=10, kernel=(3, 3), strides=(1, 1), group=1) -> Graph:
    """relu(conv(x, w) + bias)."""
    rng = np.random.default_rng(6)
    data = graph_input("x", TensorType("f32", x))
    w = const((rng.standard_normal((k, x[1] // group, *kernel)) / 7).astype("f4"))
    y = b.conv(data, w, strides=strides, pads=(kernel[0] // 2, kernel[1] // 2) * 2,
               dilations=(1, 1), group=group)
    bias = const(rng.standard_normal((1, k, 1, 1)).astype("f4"))
    return Graph("t", (data,), (("y", b.relu(b.add(y, bias))),))


def pooling() -> Graph:
    x = graph_input("x", TensorType("f32", (2, 5, 9, 21)))
    y = b.max_pool(x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
    return Graph("t", (x,), (("y", y),))


def group_of(graph: Graph) -> Group:
    (found,) = [g for g in fuse(graph) if g.anchor is not None]
    return found


def as_target(**changes: object) -> Target:
    return dataclasses.replace(POCL.target, **changes)


def run(graph: Graph, target: Target, chooser) -> Plan:
    """The plan, whose result on PoCL is right."""
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(n.type.dims).astype("f4") for n in graph.inputs]
    plan = plan_on(POCL, graph, target, passes=False, chooser=chooser)
    (got,) = POCL.load(plan).run(arrays)
    want = evaluate(graph.outputs[0][1], dict(zip(graph.inputs, arrays)))
    assert np.abs(got - want).max() <= TOLERANCE["f32"] * max(1.0, np.abs(want).max())
    return plan


CASES = {
    "gemm_opencl": (product, {}),
    "gemm_opencl as a Mali": (product, MALI),
    "gemm_tiled_opencl": (product, GPU),
    "gemv_opencl": (lambda: product(m=3, n=76), GPU),
    "gemv_opencl by columns": (columns, GPU),
    "gemv_opencl of 8 bits": (lambda: columns(m=1, k=288, bits=8), GPU),
    "gemv_opencl of 4 bits": (lambda: columns(m=8, k=288, bits=4), GPU),
    "gemm_tiled_opencl of a conv": (lambda: convolution(k=40), GPU),
    "conv_opencl": (convolution, {}),
    "conv_opencl as a Mali": (convolution, MALI),
    "conv_opencl in groups": (lambda: convolution(k=8, group=2, strides=(2, 2)), MALI),
    "conv_opencl 1x1": (lambda: convolution(kernel=(1, 1)), {}),
    "depthwise_opencl": (lambda: convolution(k=6, group=6), MALI),
    "depthwise_opencl in strips": (lambda: convolution(k=6, group=6), GPU),
    "pool_opencl": (pooling, {}),
}


@needs_pocl
@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("case", CASES)
def test_every_candidate_is_right(case):
    make, changes = CASES[case]
    offered, kernels = set(), set()
    place, count = 0, 1
    while place < count:
        chooser = Take(place)
        plan = run(make(), as_target(**changes), chooser)
        ((name, _, found),) = chooser.seen
        offered.add(found)                  # the same candidates, in the same order
        assert name == case.split()[0] and name in {k.template for k in plan.kernels}
        kernels.add(tuple((k.entry, plan.steps[-1].global_size) for k in plan.kernels))
        place, count = place + 1, len(found)
    assert len(offered) == 1 and len(kernels) == count > 1


@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_that_decodes_weights_is_known_by_it(bits):
    """A compiler that dies of such kernels gets others."""
    target = dataclasses.replace(MALI_G610, **GPU, images=False)
    (kernel,) = compile_graph(columns(m=1, k=288, bits=bits), target).plan.kernels
    assert kernel.template == "gemv_opencl"
    assert f"int{bits}" in features_of(kernel.body, kernel.options, kernel.template)


def test_a_tuner_sees_names_and_parameters():
    """Numbers and texts by name, which JSON keeps; the group beside them says the shapes."""
    chooser = Take(0)
    target = MALI_G610
    for graph in (product(), convolution()):
        compile_graph(graph, target, chooser=chooser)
    (gemm, group, tiles), (conv, _, forms) = chooser.seen
    assert (gemm, conv) == ("gemm_opencl", "conv_opencl") and group.anchor.op == "matmul"
    assert set(tiles[0].parameters()) == {"rows", "vectors", "width", "slices"}
    assert {f.parameters()["form"] for f in forms} == {"direct", "patches"}
    for match in (*tiles, *forms):
        assert json.loads(json.dumps(match.parameters())) == match.parameters()
        assert dataclasses.is_dataclass(match) and hash(match) == hash(dataclasses.replace(match))
    assert all(len(set(found)) == len(found) > 1 for found in (tiles, forms))
    again = Tile(**tiles[-1].parameters())       # what a tuner stored names the candidate again
    assert again == tiles[-1]


def test_the_first_is_taken_where_nobody_chooses():
    graph = convolution()
    target = MALI_G610
    plan = compile_graph(graph, target).plan
    assert plan.kernels == compile_graph(graph, target, chooser=Take(0)).plan.kernels
    other = compile_graph(graph, target, chooser=Take(-1)).plan
    assert plan.kernels != other.kernels
    assert VariantChooser(target).chooser is FIRST


def test_both_forms_of_a_convolution_are_tried_early():
    target = MALI_G610
    found = ConvOpenCl().candidates(group_of(convolution()), target)
    assert {f.form for f in found[:2]} == {"direct", "patches"}
    assert all(isinstance(f, Form) for f in found)
    flat = ConvOpenCl().candidates(group_of(convolution(kernel=(1, 1))), target)
    assert {f.form for f in flat} == {"flat"} and len(flat) > 1


def gpu() -> Target:
    return dataclasses.replace(MALI_G610, **{
        **GPU, "images": False, "local_works": True, "compute_units": 40})


@pytest.mark.parametrize("shape, first", [
    ((2048, 256, 2048), Split(LARGE, 1)),        # enough large tiles to keep the device busy
    ((256, 64, 256), Split(HALVED, 1)),          # too few; terms too few to share
    ((64, 4096, 64), Split(HALVED, 16)),         # few tiles: their sums are shared
    ((16, 1024, 1024), Split(LOW, 1)),           # rows fill half of a lower tile
    ((8, 1024, 4096), Split(SMALL, 1)),          # .. and not of that
])
def test_tiles_of_products(shape, first):
    found = GemmTiledOpenCl().candidates(group_of(product(*shape)), gpu())
    assert found[0] == first
    assert len(set(found)) == len(found)


def test_a_template_that_does_not_implement_a_group_offers_nothing():
    target = MALI_G610
    assert GemmOpenCl().candidates(group_of(convolution()), target) == ()
    assert DepthwiseOpenCl().candidates(group_of(product()), target) == ()
    assert GemmTiledOpenCl().candidates(group_of(product()), target) == ()
