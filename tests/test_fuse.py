"""Fusion: what lands in which group, that groups compute the graph, and that they do no work again.

Groups are judged by their lowered kernels: run in the interpreter, and counted in FLOPs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitcl import dtypes
from jitcl.codegen.flops import kernel_flops
from jitcl.codegen.lower import lower
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.types import Layout, TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.base import run_passes
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.target import Target
from tests.compiling import compile_graph
from tests.groups import check_groups
from tests.test_passes import evaluate_graph, random_feeds

g = GraphBuilder()
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def tensor(name: str, *shape: int, dtype: str = "f32") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def weight(*shape: int) -> Node:
    return const(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


def fused(*outputs: Node, passes: bool = True, target: Target | None = None) -> list[Group]:
    """The groups of the graph with these outputs, checked."""
    inputs = tuple(sorted((n for n in Graph("f", (), tuple(enumerate(outputs))).nodes
                           if n.op == "input"), key=lambda n: str(n.attr("name"))))
    graph = Graph("f", inputs, tuple((f"y{k}", n) for k, n in enumerate(outputs)))
    if passes:
        graph = run_passes(graph, pipeline(Target("reference", "test"), Options()))
    groups = fuse(graph, target)
    check_groups(graph, groups)
    return groups


def shown(groups: list[Group]) -> list[str]:
    """Each group as its ops, the anchor marked."""
    return [" ".join(f"[{n.op}]" if n is group.anchor else n.op for n in group.members)
            for group in groups]


# ---- decisions

def test_a_convolution_takes_its_epilogue() -> None:
    x = tensor("x", 1, 4, 8, 8)
    y = g.add(g.conv(x, weight(4, 4, 3, 3), **WINDOW), weight(4, 1, 1))
    assert shown(fused(g.relu(y))) == ["[conv] add relu"]


def test_an_activation_that_reads_the_convolution_twice_is_its_epilogue() -> None:
    x = tensor("x", 1, 4, 8, 8)
    y = g.conv(x, weight(4, 4, 3, 3), **WINDOW)
    assert shown(fused(g.mul(y, g.tanh(y)), passes=False)) == ["[conv] tanh mul"]


def test_a_residual_is_read_by_the_second_convolution() -> None:
    x = tensor("x", 1, 4, 8, 8)
    a = g.relu(g.conv(x, weight(4, 4, 3, 3), **WINDOW))
    b = g.conv(a, weight(4, 4, 3, 3), **WINDOW)
    assert shown(fused(g.relu(g.add(b, a)))) == ["[conv] relu", "[conv] add relu"]


def test_an_epilogue_ends_where_two_kernels_need_it() -> None:
    x = tensor("x", 1, 4, 8, 8)
    a = g.relu(g.conv(x, weight(4, 4, 3, 3), **WINDOW))
    outs = [g.conv(a, weight(4, 4, 3, 3), **WINDOW), g.conv(a, weight(5, 4, 3, 3), **WINDOW)]
    assert shown(fused(*outs)) == ["[conv] relu", "[conv]", "[conv]"]


def test_squeeze_and_excite() -> None:
    x = tensor("x", 1, 8, 9, 9)
    y = g.relu(g.conv(x, weight(8, 8, 3, 3), **WINDOW))
    pooled = g.reduce_mean(y, axes=(2, 3))
    plain = {**WINDOW, "pads": (0, 0, 0, 0)}
    gate = g.sigmoid(g.conv(pooled, weight(8, 8, 1, 1), **plain))
    out = g.conv(g.mul(y, gate), weight(8, 8, 1, 1), **plain)
    assert shown(fused(out)) == ["[conv] relu", "[reduce_mean]", "[conv] sigmoid", "mul", "[conv]"]


GATED = Target("cpu", "test", gated_weights=True)


def gate_and_convolution(c: int = 16, k: int = 8, taps: int = 1, axes: tuple[int, ...] = (2, 3),
                         **attrs: object) -> tuple[Node, Node]:
    """(x * sigmoid(gate), a convolution of it)."""
    x = tensor("x", 2, c, 9, 9)
    y = g.relu(g.conv(x, weight(c, c, 3, 3), **WINDOW))
    gate = g.sigmoid(g.reduce_mean(y, axes=axes))
    product = g.mul(y, gate)
    return product, g.relu(g.conv(product, weight(k, c, taps, taps),
                                  **{**WINDOW, "pads": (0, 0, 0, 0), **attrs}))


def test_weights_take_the_gate_of_a_convolutions_input() -> None:
    _, out = gate_and_convolution()
    assert shown(fused(out, target=GATED)) == ["[conv] relu", "[reduce_mean] sigmoid",
                                               "mul [conv] relu"]
    assert shown(fused(out))[2:] == ["mul", "[conv] relu"]          # a target that has no such code


def test_a_gate_that_weights_cannot_take_multiplies_the_input() -> None:
    for case in ({"taps": 3}, {"pads": (1, 1, 1, 1)}, {"k": 129}, {"c": 8}, {"axes": (3,)}):
        _, out = gate_and_convolution(**case)                       # type: ignore[arg-type]
        assert shown(fused(out, target=GATED))[-1] == "[conv] relu", case
    product, out = gate_and_convolution()
    assert shown(fused(product, out, target=GATED))[-2:] == ["mul", "[conv] relu"]


@pytest.mark.parametrize(("name", "attrs"), [
    ("softmax", {"axis": -1}), ("log_softmax", {"axis": -1})])
def test_softmax_is_one_group(name: str, attrs: dict[str, int]) -> None:
    assert len(fused(g.op(name, tensor("x", 6, 40), **attrs))) == 1


def test_layer_norm_and_what_follows_is_one_group() -> None:
    x = tensor("x", 2, 5, 16)
    y = g.layer_norm(g.add(x, x), weight(16), weight(16), axis=-1, epsilon=1e-5)
    assert len(fused(g.relu(y))) == 1


def test_instance_norm_is_one_group_behind_a_convolution() -> None:
    x = tensor("x", 1, 4, 8, 8)
    y = g.conv(x, weight(4, 4, 3, 3), **WINDOW)
    y = g.relu(g.group_norm(y, weight(4), weight(4), groups=4, epsilon=1e-5))
    groups = fused(g.conv(y, weight(4, 4, 3, 3), **WINDOW))
    assert [group.root.op for group in groups] == ["conv", "relu", "conv"]


def test_softmax_over_another_axis_stores_its_reductions() -> None:
    groups = fused(g.softmax(tensor("x", 6, 40, 3), axis=1))
    assert [sum(n.op.startswith("reduce") for n in group.members) for group in groups] == [1, 1, 0]


def test_the_end_of_a_stored_reduction_is_computed_with_it() -> None:
    x = tensor("x", 6, 40, 30)
    y = g.div(x, g.sqrt(g.add(g.reduce_sum(g.mul(x, x), axes=(1,)), 1e-5)))
    assert shown(fused(y)) == ["mul [reduce_sum] add sqrt reciprocal", "mul"]


def test_one_long_row_is_no_row_wise_group() -> None:
    groups = fused(g.softmax(tensor("x", 1, 100_000), axis=-1))
    assert shown(groups) == ["[reduce_max]", "sub exp [reduce_sum] reciprocal", "sub exp mul"]


def test_a_dear_prologue_of_a_row_is_stored() -> None:
    x = g.gelu(g.mul(tensor("x", 64, 512), 1.5))
    y = g.layer_norm(x, weight(512), weight(512), axis=-1, epsilon=1e-5)
    assert [group.root.op for group in fused(y)] == ["gelu", "add"]


def test_transposes_reach_into_a_matmul() -> None:
    q, k = tensor("q", 2, 8, 4, 16), tensor("k", 2, 8, 4, 16)
    scores = g.matmul(g.transpose(q, perm=(0, 2, 1, 3)), g.transpose(k, perm=(0, 2, 3, 1)))
    assert shown(fused(g.mul(scores, 0.25))) == ["transpose transpose [matmul] mul"]


@pytest.mark.parametrize("rows, tensor_cores", [(8, True), (9, True), (9, False)])
def test_codes_are_decoded_before_a_product_of_many_rows_on_tensor_cores(
        rows: int, tensor_cores: bool) -> None:
    """Not in each of its tiles again. Views stay addresses."""
    codes = const(np.arange(96 * 64).reshape(96, 2, 32).astype(np.uint8))
    w = g.reshape(g.dequantize(codes, weight(96, 2, 1)), shape=(96, 64))
    y = g.matmul(tensor("x", rows, 64), g.transpose(w, perm=(1, 0)))
    target = Target("opencl", "test", tensor_cores=tensor_cores)
    found = shown(fused(y, passes=False, target=target))
    assert found == (["dequantize", "reshape", "transpose [matmul]"]
                     if rows > 8 and tensor_cores else ["dequantize reshape transpose [matmul]"])


@pytest.mark.parametrize("columns, stored", [(8, False), (9, True)])
def test_so_are_codes_on_the_left_of_many_columns(columns: int, stored: bool) -> None:
    codes = const(np.arange(96 * 64).reshape(96, 64).astype(np.uint8))
    y = g.matmul(g.dequantize(codes, weight(96, 1)), tensor("x", 64, columns))
    found = shown(fused(y, passes=False, target=Target("opencl", "test", tensor_cores=True)))
    assert found == (["dequantize", "[matmul]"] if stored else ["dequantize [matmul]"])


@pytest.mark.parametrize("rows", [(8, 9), (9, 8)])
def test_one_product_of_many_rows_has_codes_decoded_for_all(rows: tuple[int, int]) -> None:
    """In whichever order they read the view."""
    codes = const(np.arange(96 * 64).reshape(96, 64).astype(np.uint8))
    w = g.transpose(g.dequantize(codes, weight(96, 1)), perm=(1, 0))
    first, second = (g.matmul(tensor(f"x{n}", n, 64), w) for n in rows)
    found = shown(fused(first, second, passes=False,
                        target=Target("opencl", "test", tensor_cores=True)))
    assert found == ["dequantize", "transpose [matmul]", "transpose [matmul]"]


def test_nothing_is_computed_again_for_each_column_of_a_matmul() -> None:
    x = g.reshape(g.relu(tensor("x", 8, 4, 4)), shape=(8, 16))
    assert shown(fused(g.matmul(x, weight(16, 5)))) == ["relu", "reshape", "[matmul]"]


def test_attention() -> None:
    def heads(x: Node, perm: tuple[int, ...]) -> Node:
        y = g.add(g.matmul(x, weight(32, 32)), weight(32))
        return g.transpose(g.reshape(y, shape=(2, 6, 4, 8)), perm=perm)
    x = tensor("x", 2, 6, 32)
    scores = g.matmul(g.relu(heads(x, (0, 2, 1, 3))), heads(g.neg(x), (0, 2, 3, 1)))
    weights = g.softmax(g.add(g.mul(scores, 0.35), tensor("mask", 2, 1, 1, 6)), axis=-1)
    y = g.matmul(weights, heads(g.abs(x), (0, 2, 1, 3)))
    y = g.reshape(g.transpose(y, perm=(0, 2, 1, 3)), shape=(2, 6, 32))
    groups = fused(g.matmul(y, weight(32, 32)))
    assert len([group for group in groups if group.anchor is not None]) == 6
    assert "reduce_max sub exp reduce_sum reciprocal mul" in shown(groups)


def test_concat_copies_only_what_is_stored_for_others() -> None:
    x = tensor("x", 1, 4, 8, 8)
    parts = [g.relu(g.conv(x, weight(k, 4, 1, 1), **{**WINDOW, "pads": (0,) * 4}))
             for k in (3, 5)]
    out = g.conv(g.concat(*parts, axis=1), weight(4, 8, 3, 3), **WINDOW)
    assert shown(fused(out)) == ["[conv] relu", "[conv] relu", "concat", "[conv]"]


def test_cheap_values_are_computed_in_each_reader() -> None:
    x = tensor("x", 64, 64)
    y = g.cast(x, to="f16")
    outs = [g.reduce_sum(y, axes=(0,)), g.transpose(y, perm=(1, 0))]
    assert shown(fused(*outs)) == ["cast [reduce_sum]", "cast transpose"]


def test_dear_values_are_not() -> None:
    y = g.tanh(g.exp(g.sin(tensor("x", 64, 64))))
    outs = [g.reduce_sum(y, axes=(0,)), g.transpose(y, perm=(1, 0))]
    assert shown(fused(*outs)) == ["sin exp tanh", "[reduce_sum]", "transpose"]


def test_outputs_are_stored_where_others_read_them() -> None:
    y = g.relu(tensor("x", 64, 64))
    assert shown(fused(y, g.neg(y))) == ["relu", "neg"]


def test_reshapes_of_stored_buffers_are_other_names() -> None:
    x = tensor("x", 4, 64)
    y = g.reshape(g.matmul(x, weight(64, 64)), shape=(4, 8, 8))
    groups = fused(g.add(y, weight(8)))
    assert shown(groups) == ["[matmul]", "reshape", "add"]
    graph = Graph("f", (x,), (("y", groups[-1].root),))
    assert len(compile_graph(graph, Target("reference", "test"), passes=False).plan.steps) == 2


def test_kernels_have_few_operands() -> None:
    total = tensor("x0", 16)
    for k in range(1, 60):
        total = g.add(total, tensor(f"x{k}", 16))
    groups = fused(total)
    assert max(len(group.operands) for group in groups) <= Target.max_operands
    assert len(groups) <= 7


def test_doubling_through_transposes_is_bounded() -> None:
    x = tensor("x", 8, 8)
    for _ in range(40):
        x = g.add(x, g.mul(g.transpose(x, perm=(1, 0)), 0.5))
    groups = fused(x)
    assert sum(kernel_flops(lower(group, "k").kernel) for group in groups) < 64 * 40 * 40


def test_long_chains_need_no_stack() -> None:
    x = tensor("x", 8)
    y = x
    for k in range(2500):
        y = g.add(y, float(k))
    groups = fused(y, passes=False)
    assert max(len(group.members) for group in groups) < 64


def test_blocked_layouts_do_not_walk_rows() -> None:
    x = tensor("x", 2, 32, 4, 4)
    y = g.mul(x, 2.0)
    blocked = y.type.with_(layout=Layout("NCHWc", 16))
    y = Node.make(y.op, y.inputs, y.kwargs, type=blocked)
    z = g.sub(y, g.reduce_mean(y, axes=(2, 3)))
    z = Node.make(z.op, z.inputs, z.kwargs, type=blocked)
    groups = fused(g.relu(z), z, passes=False)
    assert any(group.root.op == "reduce_mean" for group in groups)


def test_check_groups_notices_what_is_missing() -> None:
    x = tensor("x", 8)
    y = g.relu(x)
    graph = Graph("f", (x,), (("y", g.neg(y)),))
    with pytest.raises(AssertionError, match="reads 'relu' f32.8., which no group before"):
        check_groups(graph, [Group(graph.outputs[0][1], frozenset())])
    with pytest.raises(AssertionError, match="output 'y' .* is stored by no group"):
        check_groups(graph, [Group(y, frozenset())])


# ---- any graph

SHAPES = ((2, 3, 4), (2, 1, 4), (3, 4), (1,), (4,))


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of ops that fusion treats differently, with shared and broadcast operands."""
    nodes = [tensor(f"x{k}", *shape) for k, shape in enumerate(((2, 3, 4), (2, 3, 4), (4,)))]
    inputs = tuple(nodes)
    for _ in range(draw(st.integers(2, 22))):
        x = nodes[-1] if draw(st.booleans()) else draw(st.sampled_from(nodes))
        made = _grow(draw, x, nodes)
        if made is not None and made.type.size <= 4096 and made.type.rank <= 5:
            nodes.append(made)
    last = nodes[-draw(st.integers(1, 3)):]
    return Graph("random", inputs, tuple((f"y{k}", n) for k, n in enumerate(last)))


def _grow(draw: st.DrawFn, x: Node, nodes: list[Node]) -> Node | None:
    dims = x.type.dims
    rank = len(dims)
    kind = draw(st.sampled_from(("unary", "binary", "binary", "reduce", "reduce", "transpose",
                                 "reshape", "slice", "concat", "matmul", "expand", "softmax",
                                 "pad", "scan")))
    if kind == "unary":
        return g.op(draw(st.sampled_from(("relu", "tanh", "neg", "abs"))), x)
    if kind == "binary":
        y = draw(st.sampled_from(nodes))
        fits = all(a == b or 1 in (a, b) for a, b in zip(dims[::-1], y.type.dims[::-1]))
        return g.op(draw(st.sampled_from(("add", "sub", "max"))), x, y) if fits else None
    if rank == 0:
        return None
    axis = draw(st.integers(0, rank - 1))
    if kind == "reduce":
        axes = tuple(range(axis, rank)) if draw(st.booleans()) else (axis,)
        name = draw(st.sampled_from(("reduce_mean", "reduce_max")))
        return g.op(name, x, axes=axes, keepdims=draw(st.booleans()))
    if kind == "transpose":
        return g.transpose(x, perm=draw(st.permutations(range(rank))))
    if kind == "reshape":
        return g.reshape(x, shape=(*dims[:axis], math.prod(dims[axis:])))
    if kind == "slice":
        start = draw(st.integers(0, dims[axis] - 1))
        return g.slice(x, starts=(start,), ends=(dims[axis],), axes=(axis,))
    if kind == "concat":
        return g.concat(x, g.neg(x), axis=axis)
    if kind == "pad":
        return g.pad(x, pads=(*(0,) * axis, 1, *(0,) * (2 * rank - axis - 1)))
    if kind == "scan":
        return g.running_direct(x, axis=axis)
    if kind == "expand":
        return g.expand(x, shape=(2, *dims)) if rank < 4 else None
    if kind == "softmax":
        return g.softmax(x, axis=axis)
    if rank < 2:
        return None
    return g.matmul(x, g.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2)))


def run_groups(graph: Graph, groups: list[Group], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, by the groups' unscheduled kernels in the interpreter."""
    values = {n: feeds[n.attr("name")] for n in graph.inputs}
    for group in groups:
        lowered = lower(group, "k")
        buffers = {}
        for buffer, node in zip(lowered.kernel.buffers, lowered.operands):
            array = node.data if node.op == "const" else values[node]
            buffers[buffer.name] = array.reshape(buffer.shape)
        out = lowered.kernel.buffer("y")
        buffers["y"] = np.zeros(out.shape, dtypes.to_numpy(out.dtype))
        run_kernel(lowered.kernel, buffers)
        values[group.root] = buffers["y"].reshape(group.root.type.dims)
    return [n.data if n.op == "const" else values[n] for _, n in graph.outputs]


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_graphs(), st.booleans())
def test_groups_compute_the_graph(graph: Graph, passes: bool) -> None:
    feeds = random_feeds(graph)
    wanted = evaluate_graph(graph, feeds)
    if passes:
        graph = run_passes(graph, pipeline(Target("reference", "test"), Options()))
    else:
        graph = run_passes(graph, [p for p in pipeline(Target("reference", "test"), Options())
                                   if p.name == "decompose"])
    groups = fuse(graph)
    check_groups(graph, groups)
    for want, got in zip(wanted, run_groups(graph, groups, feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_graphs())
def test_groups_do_little_work_again(graph: Graph) -> None:
    graph = run_passes(graph, pipeline(Target("reference", "test"), Options()))
    for group in fuse(graph):
        alone = sum(kernel_flops(lower(Group(n, frozenset(), n), "k").kernel)
                    for n in group.members)
        together = kernel_flops(lower(group, "k").kernel)
        assert together <= 6 * alone + 200 * group.root.type.size, shown([group])
