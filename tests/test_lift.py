"""Numbers of kernels as parameters: layers of one form are one program, with the right results
(those are tests/test_render_opencl.py's, whose GPU forms are lifted)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jitcl.cli.lowered import lower_for_dump
from jitcl.codegen.lift import LEAST, LIMIT, SMALL, reciprocal, spelled
from jitcl.codegen.lower import lower
from jitcl.codegen.schedule_opencl import Scheduled, schedule
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Group
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.runtime.model import open_model
from jitcl.target import Target
from jitcl.target.profiles import find_profile
from tests.compiling import compile_graph
from tests.real_models import MODELS, needs_models
from tests.test_tensor_cores import TARGET

G = GraphBuilder()
GPU = Target("opencl", "a GPU", device_type="gpu", compute_units=4, max_work_group=256,
             max_work_item_sizes=(256, 256, 256), vector_width=4, max_vector_width=4)
DEVICES = "mali-g610", "adreno-740", "intel-hd-630"          # whose compilers are slow


def x(*shape: int, name: str = "x") -> Node:
    return graph_input(name, TensorType("f32", shape))


def written(node: Node) -> Scheduled:
    return schedule(lower(Group(node, frozenset()), "k").kernel, GPU)


FORMS = {
    "scale": (lambda c, h, w: G.mul(x(1, c, h, w), x(1, c, 1, 1, name="s")),
              (32, 112, 112), (96, 56, 56), (64, 64, 64)),
    "transpose": (lambda h, w: G.transpose(x(h, w), perm=(1, 0)), (256, 64), (128, 96), (64, 64)),
    "mean": (lambda n, c: G.reduce_mean(x(n, c), axes=(1,)), (24, 4000), (48, 5000)),
    "tail": (lambda c, n: G.mul(x(c, n), x(c, 1, name="s")), (301, 19), (257, 21)),
}


def products(*sizes: tuple[int, ...], dtype: str = "f32") -> Graph:
    """A product with a sum behind it for each (m, k, n)."""
    feeds, results = list[Node](), list[Node]()
    for i, (m, k, n) in enumerate(sizes):
        a, w, c = (graph_input(f"{name}{i}", TensorType(dtype, dims)) for name, dims in (
            ("a", (m, k)), ("w", (k, n)), ("c", (m, n))))
        feeds += (a, w, c)
        results.append(G.add(G.matmul(a, w), c))
    return Graph("t", tuple(feeds), tuple((f"y{i}", y) for i, y in enumerate(results)))


def of_pixels(m: int, k: int, n: int, side: int) -> Graph:
    """A product, and a convolution of single pixels: a product, too, whose weights come second."""
    a, w = x(m, k, name="a"), x(k, n, name="w")
    image, taps = x(1, k, side, side, name="image"), x(m, k, 1, 1, name="taps")
    y = G.conv(image, taps, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
    return Graph("t", (a, w, image, taps), (("y0", G.matmul(a, w)), ("y1", y)))


def convolutions(*sizes: tuple[int, int, int]) -> Graph:
    """3x3 of (channels, results, side)."""
    feeds, results = list[Node](), list[Node]()
    for i, (c, k, side) in enumerate(sizes):
        feeds += (x(1, c, side, side, name=f"x{i}"), x(k, c, 3, 3, name=f"w{i}"))
        results.append(G.relu(G.conv(*feeds[-2:], strides=(1, 1), pads=(1,) * 4,
                                     dilations=(1, 1), group=1)))
    return Graph("t", tuple(feeds), tuple((f"y{i}", y) for i, y in enumerate(results)))


def attentions(*rows: int) -> Graph:
    """Four heads of 32 over so many rows each."""
    feeds, results = list[Node](), list[Node]()
    for i, n in enumerate(rows):
        q, k, v = (x(1, 4, n, 32, name=f"{name}{i}") for name in "qkv")
        feeds += (q, k, v)
        scores = G.softmax(G.matmul(q, G.transpose(k, perm=(0, 1, 3, 2))), axis=-1)
        results.append(G.matmul(scores, v))
    return Graph("t", tuple(feeds), tuple((f"y{i}", y) for i, y in enumerate(results)))


def gates(*sizes: tuple[int, int]) -> Graph:
    """1x1 of one pixel, of (channels, results)."""
    feeds, results = list[Node](), list[Node]()
    for i, (c, k) in enumerate(sizes):
        feeds += (x(1, c, 1, 1, name=f"x{i}"), x(k, c, 1, 1, name=f"w{i}"))
        results.append(G.sigmoid(G.conv(*feeds[-2:], strides=(1, 1), pads=(0,) * 4,
                                        dilations=(1, 1), group=1)))
    return Graph("t", tuple(feeds), tuple((f"y{i}", y) for i, y in enumerate(results)))


TILED = {
    "products": (lambda: products((512, 256, 512), (640, 768, 1024)), "gemm_tiled_opencl"),
    "edges": (lambda: products((500, 300, 516), (612, 700, 1020)), "gemm_tiled_opencl"),
    "parts of sums": (lambda: products((64, 4096, 64), (96, 2048, 64)), "gemm_tiled_opencl"),
    "halves": (lambda: products((512, 256, 512), (640, 768, 1024), dtype="f16"),
               "gemm_tensor_opencl"),
    "pixels": (lambda: of_pixels(256, 128, 1024, 36), "gemm_tiled_opencl"),
    "convolutions": (lambda: convolutions((64, 64, 56), (128, 96, 40)), "gemm_tiled_opencl"),
    "attention": (lambda: attentions(1024, 2048), "attention_opencl"),
    "gates": (lambda: gates((28, 672), (10, 240)), "gemm_tiled_opencl"),
}


@pytest.mark.parametrize("name", TILED)
def test_products_and_attentions_of_a_form_are_one_program(name: str) -> None:
    """Where tiles are staged, with numbers that are arguments: those of a layer each."""
    build, template = TILED[name]
    plan = compile_graph(build(), TARGET).plan
    found = {k.entry for k in plan.kernels if k.template == template}
    heads = {entry for entry in found if "join" not in entry}
    assert len(heads) == 1 and len(found) <= 2, found
    first, second = (s for s in plan.steps if s.kernel in heads)
    assert first.params != second.params
    assert all(type(n) is int for n in (*first.params, *second.params))


def test_gates_of_many_channels_are_rows_that_lanes_share() -> None:
    """In one launch, not tiles whose parts another joins."""
    plan = compile_graph(gates((480, 20), (1152, 48)), TARGET).plan
    (kernel,) = plan.kernels
    assert not kernel.template and len(plan.steps) == 2


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_a_form_are_one_program(form: str) -> None:
    """Also where two numbers are equal by chance: 64 channels of 64 by 64."""
    build, *sizes = FORMS[form]
    first, *others = (written(build(*s)) for s in sizes)
    for other in others:
        assert other.body == first.body
        assert list(other.params) == list(first.params) and other.params != first.params
    assert all(type(n) is int for n in first.params.values())


ROWS = {
    "gates": (lambda n: G.mul(n, x(*n.type.dims[:-1], 1, name="s")),
              (32, 12544), (96, 3136), (240, 196), (480, 196), (1152, 56)),
    "means": (lambda n: G.reduce_mean(n, axes=(-1,), keepdims=False),
              (16384, 96), (4096, 64), (1024, 160), (256, 256), (8, 64, 300)),
    "softmax": (lambda n: G.softmax(n, axis=-1), (16384, 256), (2, 4096, 64), (300, 100)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ROWS)
def test_rows_of_any_length_are_one_program_where_compilers_are_slow(form: str, device: str
                                                                     ) -> None:
    """Of fewer elements than lanes, of as many, and of more; along one axis and along two. Where no
    lanes share them, no two axes are merged for the few work-items that are idle."""
    build, *sizes = ROWS[form]
    target = find_profile(device).target
    plans = []
    for shape in sizes:
        result = build(x(*shape))
        inputs = tuple(dict.fromkeys(n for n in result.inputs if n.op == "input"))
        plans.append(compile_graph(Graph("t", inputs, (("y", result),)), target).plan)
    assert len({s.kernel for p in plans for s in p.steps}) == 1
    assert form == "gates" or len({s.local_size for p in plans for s in p.steps}) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_copies_of_heads_are_one_program_where_compilers_are_slow(device: str) -> None:
    """Steps and extents of a copy are parameters: that of 1, small ones, and those of a head's
    vectors, also where they are one, and where there is one head or row."""
    kernels = set()
    for heads, rows, size in ((4, 64, 32), (2, 300, 64), (8, 49, 4), (3, 10, 8)):
        node = x(rows, heads, size)
        turned = G.transpose(node, perm=(1, 0, 2))
        plan = compile_graph(Graph("t", (node,), (("y", turned),)),
                             find_profile(device).target).plan
        kernels |= {s.kernel for s in plan.steps}
    assert len(kernels) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_transpose_is_the_program_of_copies_of_three_axes(device: str) -> None:
    kernels = set()
    for shape, perm in (((64, 31), (1, 0)), ((3, 64, 31), (0, 2, 1)), ((5, 7, 9), (2, 1, 0))):
        node = x(*shape)
        plan = compile_graph(Graph("t", (node,), (("y", G.transpose(node, perm=perm)),)),
                             find_profile(device).target).plan
        kernels |= {s.kernel for s in plan.steps}
    assert len(kernels) == 1


@pytest.mark.parametrize("device", ["adreno-740", "intel-hd-630"])
def test_small_products_are_the_program_of_larger_ones(device: str) -> None:
    """Where a smaller tile would save less than a part of what a launch takes."""
    target = find_profile(device).target

    def written(m: int, n: int, k: int) -> str:
        a, b = x(m, k), x(k, n, name="b")
        plan = compile_graph(Graph("t", (a, b), (("y", G.matmul(a, b)),)), target).plan
        return plan.steps[-1].kernel

    small, larger, long = written(256, 32, 32), written(256, 64, 64), written(16, 16, 2048)
    assert small == larger != long


def test_names_of_places_are_written_out_and_no_others() -> None:
    """Not that of an index that changes, though it begins with a constant."""
    kernel = parse_kernel("""
kernel @k(in x: f32[64,9], out y: i64[64]) {
  for i < 64 @item {
    let row: index = i * 9
    let found: index = 9
    for r < 9 @loop {
      found min= select(x[i, r] == 0.0, r, 9)
    }
    y[i] = i64(found + row)
  }
}""")
    text = print_kernel(dataclasses.replace(kernel, body=spelled(kernel.body)))
    assert "let found: index = 9" in text and "let row" not in text
    assert "y[i] = i64(found + i * 9)" in text


def test_numbers_stay_where_they_pay() -> None:
    """Lanes, the windows of short loops, and what finds one's place in them."""
    window = written(G.reduce_mean(x(600, 5, 5), axes=(1, 2)))
    assert "< 25;" in window.body or "< 5;" in window.body
    row = written(G.reduce_mean(x(24, 4000), axes=(1,)))
    lanes = row.local_size[0]
    assert f"+= {lanes})" in row.body and f"part_acc0[{lanes}]" in row.body
    assert 4000 in row.params.values() and "4000" not in row.body


def test_arguments_fit_every_device() -> None:
    """A kernel whose parameters would be more than a device takes has its numbers written out."""
    many = [x(30 + k, 50, name=f"x{k}") for k in range(60)]
    done = written(G.concat(*many, axis=0))
    assert not done.params and "size0" not in done.body


def test_a_quotient_by_a_parameter_is_exact() -> None:
    rng = np.random.default_rng(3)
    divisors = [*range(LEAST + 1, 300), 1 << 16, (1 << 16) + 1, LIMIT - 1, *map(
        int, rng.integers(SMALL + 1, LIMIT, 300))]
    for d in divisors:
        factor, shift = reciprocal(d)
        assert 1 <= shift and 2 <= factor < 1 << 31
        whole = np.arange(0, LIMIT, max(d, LIMIT // 50 // d * d or d), dtype=np.uint64)
        near = np.concatenate([whole, whole[1:] - 1, whole + d - 1, [LIMIT - 1]]).astype(np.uint64)
        near = near[near < LIMIT]
        got = near * np.uint64(factor) >> np.uint64(32 + shift)
        assert np.array_equal(got, near // np.uint64(d)), d


# programs of whole models where compilers take up to a second for each; selfie's products are tiles
# of four rows where there are many pixels, on a Mali of two where there are few, of which some
# share their terms
PROGRAMS = {"squeezenet1.0_fp32": (10, 11, 11), "ultraface_rfb320": (25, 24, 24),
            "selfie_segmentation": (27, 26, 26), "minilm_l6_v2": (11, 11, 11),
            "yolox_nano": (28, 28, 28)}


@needs_models
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name.startswith("selfie") else pytest.mark.slow)
    for name in PROGRAMS])
def test_a_model_has_few_programs_on_a_gpu(name: str) -> None:
    for device, most in zip(DEVICES, PROGRAMS[name], strict=True):
        model = open_model(MODELS / f"{name}.onnx", device=f"profile:{device}")
        shapes = {i.name: (1, 128) for i in model.inputs} if name == "minilm_l6_v2" else {}
        assert len(lower_for_dump(model, shapes, []).plan.kernels) <= most, device
