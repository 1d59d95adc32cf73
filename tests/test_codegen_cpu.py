"""Generated loops on the CPU: transformations keep a kernel's meaning, threads change nothing."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.interchange import Rows, interchange
from jitcl.codegen.loops import flatten, inline_lets, merge_loops, nest_of
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.schedule_cpu import loops_for_cpu, schedule_cpu
from jitcl.codegen.split import split_at_conditions, strip_divisions
from jitcl.devices.cpu.compiler import compile_kernel
from jitcl.devices.cpu.objects import load_kernels
from jitcl.ir.graph import Graph, Node, graph_input, toposort
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import For, Kernel, Stmt, Store, counted
from jitcl.ir.types import Layout, TensorType
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.decompose import Decompose
from jitcl.passes.fuse import fuse
from tests import test_ops
from tests.test_ir_interpreter import plain

G = GraphBuilder()
C16 = Layout("NCHWc", 16)
HALO = Layout("NCHWc", 16, 1)
POOL = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
CASES: dict[str, Callable[[], Node]] = {}


def case(fn: Callable[[], Node]) -> Callable[[], Node]:
    CASES[fn.__name__] = fn
    return fn


def x(*shape: int, dtype: str = "f32", name: str = "x", layout: Layout | None = None) -> Node:
    return graph_input(name, TensorType(dtype, shape, layout or Layout()))


def laid_out(node: Node, layout: Layout) -> Node:
    return Node.make(node.op, node.inputs, node.kwargs, type=node.type.with_(layout=layout))


@case
def bias_and_relu() -> Node:
    return G.relu(G.add(G.add(x(2, 5, 7, 9), x(1, 5, 1, 1, name="b")), x(2, 5, 7, 9, name="r")))


@case
def scalar_output() -> Node:
    return G.reduce_sum(x(33, 7), keepdims=False)


@case
def everything_before_the_loops() -> Node:
    t = x(9, 31)
    return G.sub(t, G.reduce_max(t))


@case
def nothing() -> Node:
    return G.add(x(3, 0, 4), 1.0)


@case
def sum_of_nothing() -> Node:
    return G.reduce_sum(x(5, 0), axes=(1,))


@case
def softmax() -> Node:
    t = x(6, 37)
    e = G.exp(G.sub(t, G.reduce_max(t, axes=(1,))))
    return G.div(e, G.reduce_sum(e, axes=(1,)))


@case
def softmax_of_short_rows() -> Node:
    t = x(40, 24)
    e = G.exp(G.sub(t, G.reduce_max(t, axes=(1,))))
    return G.div(e, G.reduce_sum(e, axes=(1,)))


@case
def short_sums() -> Node:
    return G.reduce_mean(x(300, 8), axes=(1,))


@case
def layer_norm() -> Node:
    t = x(5, 70)
    d = G.sub(t, G.reduce_mean(t, axes=(1,)))
    scaled = G.div(d, G.sqrt(G.add(G.reduce_mean(G.mul(d, d), axes=(1,)), 1e-5)))
    return G.add(G.mul(scaled, x(70, name="g")), x(70, name="b"))


@case
def column_sums() -> Node:
    return G.reduce_sum(x(19, 83), axes=(0,))


@case
def column_extremes_of_a_middle_axis() -> Node:
    return G.reduce_max(x(3, 11, 130), axes=(1,))


@case
def long_columns() -> Node:
    return G.reduce_mean(x(3, 1237), axes=(0,), keepdims=False)


@case
def any_of_columns() -> Node:
    return G.reduce_max(x(7, 40, dtype="bool"), axes=(0,))


@case
def arg_max_of_columns() -> Node:
    return G.argmax(x(7, 40), axis=0, keepdims=False)


@case
def max_pool() -> Node:
    return G.max_pool(x(1, 3, 21, 19), kernel=(3, 3), **POOL)


@case
def average_pool_without_padding() -> Node:
    return G.average_pool(x(1, 3, 21, 19), kernel=(3, 2), **POOL)


@case
def convolution() -> Node:
    return G.conv(x(1, 4, 9, 17), x(6, 2, 3, 3, name="w"), strides=(1, 1), pads=(1, 1, 1, 1),
                  dilations=(1, 1), group=2)


@case
def matrix_product() -> Node:
    return G.add(G.matmul(x(2, 9, 21), x(21, 45, name="w")), x(45, name="b"))


@case
def product_with_a_transpose() -> Node:
    return G.matmul(x(9, 40), G.transpose(x(21, 40, name="w"), perm=(1, 0)))


@case
def concat() -> Node:
    parts = [x(2, c, 6, 5, name=f"p{c}") for c in (4, 1, 9)]
    return G.relu(G.concat(*parts, axis=1))


@case
def concat_of_columns() -> Node:
    return G.concat(x(7, 20), x(7, 33, name="z"), axis=1)


@case
def blocked_concat() -> Node:
    parts = [x(1, c, 5, 4, name=f"p{c}", layout=C16) for c in (16, 24)]
    return laid_out(G.concat(*parts, axis=1), C16)


@case
def to_blocks_with_a_halo() -> Node:
    return laid_out(G.add(x(1, 20, 6, 37), 1.0), HALO)


@case
def from_blocks() -> Node:
    return laid_out(G.transpose(x(1, 20, 6, 37, layout=HALO), perm=(0, 1, 2, 3)), Layout())


@case
def pad() -> Node:
    return G.pad(G.mul(x(2, 3, 7, 9), 2.0), pads=(0, 0, 1, 2, 0, 0, 1, 3))


@case
def transpose() -> Node:
    return G.transpose(x(50, 3, 37), perm=(2, 1, 0))


@case
def two_transposes() -> Node:
    y = G.transpose(x(40, 33), perm=(1, 0))
    return G.add(G.sub(y, G.transpose(x(40, 33, name="z"), perm=(1, 0))), x(33, 40, name="b"))


@case
def transpose_of_bytes() -> Node:
    return G.transpose(x(33, 40, dtype="u8"), perm=(1, 0))


@case
def transpose_of_halves() -> Node:
    return G.transpose(x(3, 33, 16, dtype="f16"), perm=(0, 2, 1))


@case
def short_channels_last() -> Node:
    return G.transpose(x(1, 3, 40, 11), perm=(0, 2, 3, 1))


@case
def depth_to_space() -> Node:
    y = G.reshape(x(1, 12, 5, 7), shape=(1, 2, 2, 3, 5, 7))
    return G.reshape(G.transpose(y, perm=(0, 3, 4, 1, 5, 2)), shape=(1, 3, 10, 14))


@case
def resize() -> Node:
    steps = ((1, 0, 1), (1, 0, 1), (1, 0, 2), (3, 1, 7))
    return G.resize_nearest(x(1, 2, 6, 12), shape=(1, 2, 12, 28), steps=steps)


@case
def odd_reshape() -> Node:
    return G.transpose(G.reshape(x(6, 35), shape=(14, 15)), perm=(1, 0))


@case
def gather() -> Node:
    return G.gather(x(30, 20), x(9, dtype="i64", name="i"), axis=0)


@case
def reversed_slice() -> Node:
    return G.slice(x(9, 30), starts=(8, 29), ends=(-99, -99), steps=(-2, -3))


@case
def integers() -> Node:
    y = x(40, dtype="i32", name="z")
    return G.add(G.div(x(7, 40, dtype="i32"), y), G.mul(y, y))


@case
def doubles() -> Node:
    y = x(40, dtype="f64", name="z")
    return G.add(G.mul(x(7, 40, dtype="f64"), y), G.mul(y, y))


@case
def products_of_products() -> Node:
    y, z = x(1001, name="y"), x(1001, name="z")
    return G.sub(G.mul(x(1001), y), G.mul(y, z))


@case
def bfloats() -> Node:
    return G.add(G.mul(x(5, 21, dtype="bf16"), x(21, dtype="bf16", name="y")), 1.0)


@case
def booleans() -> Node:
    y = x(5, 21, dtype="bool", name="y")
    return G.where(G.and_(x(5, 21, dtype="bool"), y), x(5, 21, name="a"), x(21, name="b"))


def lowered(node: Node) -> Lowered:
    """The node and all that it is made of as one kernel."""
    inlined = frozenset(n for n in toposort([node]) if n.op not in ("input", "const")) - {node}
    return lower(Group(node, inlined), "k")


def operands(made: Lowered) -> list[np.ndarray]:
    """Random arrays in the buffers' shapes."""
    rng = np.random.default_rng(len(made.operands))
    found = []
    for node, buffer in zip(made.operands, made.kernel.buffers):
        dtype = dtypes.to_numpy(buffer.dtype)
        if node.op == "const":
            found.append(np.ascontiguousarray(node.data).reshape(buffer.shape))
        elif buffer.dtype == "bool":
            found.append(rng.random(buffer.shape) < 0.5)
        elif dtypes.is_float(buffer.dtype):
            found.append(rng.standard_normal(buffer.shape).astype(dtype))
        else:
            found.append(rng.integers(1, 9, buffer.shape).astype(dtype))
    return found


def interpreted(kernel: Kernel, arrays: list[np.ndarray]) -> np.ndarray:
    out = kernel.buffer("y")
    y = np.full(out.shape, 77, dtypes.to_numpy(out.dtype))
    inputs = [b for b in kernel.buffers if b.role == "in"]
    named = {b.name: a.reshape(b.shape) for b, a in zip(inputs, arrays)}
    rest = {b.name: np.zeros(b.shape, dtypes.to_numpy(b.dtype)) for b in kernel.buffers
            if b.role == "out"}
    run_kernel(kernel, {**rest, **named, "y": y})
    return y


def scheduled(kernel: Kernel, arrays: list[np.ndarray]) -> np.ndarray:
    """What the kernel gives after all transformations, statement by statement."""
    done = schedule_cpu(kernel)
    flat = {b.name: np.full(b.shape, 77, dtypes.to_numpy(b.dtype))
            for b in (*done.kernel.buffers, *done.scratch)}
    flat.update({b.name: a.reshape(-1) for b, a in zip(done.kernel.buffers, arrays)})
    plain(done.kernel, flat)
    return flat["y"].reshape(kernel.buffer("y").shape)


def native(kernel: Kernel, arrays: list[np.ndarray], threads: int) -> np.ndarray:
    """What the compiled kernel gives, its parts run in turn, the last thread's first."""
    code = NATIVE.get(kernel)
    if code is None:
        blob = b"jitcl-object-1 k\n" + compile_kernel("k", loops_for_cpu(kernel, "k"))
        code = NATIVE[kernel] = load_kernels({"k": blob})
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(code["k"])
    out = kernel.buffer("y")
    y = np.zeros(out.size, dtypes.to_numpy(out.dtype))
    y.view(np.uint8)[...] = 0 if out.dtype == "bool" else 0x55
    flat = [np.ascontiguousarray(a) for a in arrays]
    table = np.array([a.ctypes.data for a in (*flat, y)], np.int64)
    for tid in reversed(range(threads)):
        call(table.ctypes.data, tid, threads)
    return y.reshape(out.shape)


NATIVE: dict[Kernel, object] = {}


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Equal but for the order of sums and the rounding of products in them."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    rtol = {1: 1e-2, 2: 1e-2, 4: 1e-5, 8: 1e-12}[got.dtype.itemsize]
    a, b = got.astype(np.float64), want.astype(np.float64)
    largest = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * largest)


# ---- meaning

@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", CASES)
def test_native_code_gives_the_same_on_any_number_of_threads(name: str) -> None:
    made = lowered(CASES[name]())
    arrays = operands(made)
    alone = native(made.kernel, arrays, 1)
    assert_close(alone, interpreted(made.kernel, arrays))
    for threads in (2, 3, 16):
        again = native(made.kernel, arrays, threads)
        assert again.tobytes() == alone.tobytes(), f'{threads} threads'


@pytest.mark.slow
def test_schedule_keeps_the_meaning_of_every_op() -> None:
    """On the small samples of the op table, statement by statement."""
    count = 0
    for op in OPS.values():
        for number, sample in enumerate(op.samples):
            node, feeds = test_ops.case(op, sample, number)
            inputs = tuple(n for n in toposort([node]) if n.op == "input")
            graph = Decompose().run(Graph("g", inputs, (("y", node),), {}))
            values = {n: feeds[n.attr("name")] for n in inputs}
            for group in fuse(graph):
                made = lower(group, op.name)
                arrays = [np.ascontiguousarray(evaluate(n, values)).reshape(b.shape)
                          for n, b in zip(made.operands, made.kernel.buffers)]
                if sum(trips for _, trips in counted(made.kernel.body)) > 2000:
                    continue
                assert_close(scheduled(made.kernel, arrays), interpreted(made.kernel, arrays))
                count += 1
    assert count > 300


# ---- what each transformation does

def flat_body(node: Node) -> tuple[Stmt, ...]:
    return inline_lets(flatten(lowered(node).kernel).body)


def test_concat_is_plain_copies() -> None:
    names = itertools.count()
    body = merge_loops(split_at_conditions(flat_body(concat()), names), names)
    text = loops_for_cpu(lowered(CASES["concat_of_columns"]()).kernel, "k")
    assert "select" not in text and " if " not in text
    assert [s.extent for s in nest_of(body[0])] == [2]        # the batch, then three copies
    assert [s.extent for s in body[0].body] == [120, 30, 270]


def test_neighbouring_loops_are_one() -> None:
    body = merge_loops(flat_body(G.transpose(x(4, 5, 6, 7), perm=(1, 0, 2, 3))), itertools.count())
    assert [f.extent for f in nest_of(body[0])] == [5, 4, 42]


def test_divisions_are_stripped() -> None:
    names = itertools.count()
    body = flat_body(CASES["depth_to_space"]())
    text = str(strip_divisions(merge_loops(body, names), names))
    assert "floordiv" in str(body) and "floordiv" not in text and "mod(" not in text


def test_reductions_turn_inside_out_where_memory_says_so() -> None:
    def turned(node: Node) -> bool:
        rows = Rows(itertools.count())
        interchange(merge_loops(flat_body(node), rows.names), rows)
        return bool(rows.buffers)
    assert turned(column_sums()) and turned(matrix_product()) and turned(max_pool())
    assert not turned(layer_norm()) and not turned(product_with_a_transpose())


def test_padding_of_a_window_is_a_range() -> None:
    text = loops_for_cpu(lowered(max_pool()).kernel, "k")
    assert "if ((i1 * 2)" in text.replace("(((", "((") or "if " in text
    assert all("range(" in line for line in text.splitlines() if "floordiv" in line)


def test_exponentials_are_kept() -> None:
    assert loops_for_cpu(lowered(softmax()).kernel, "k").count("exp(") == 1


def test_transposes_turn_in_registers() -> None:
    assert loops_for_cpu(lowered(transpose()).kernel, "k").count("transpose(") == 1
    assert loops_for_cpu(lowered(two_transposes()).kernel, "k").count("transpose(") == 2


def test_equal_arithmetic_is_one_text_whatever_the_names() -> None:
    one = lowered(G.add(x(4, 5), x(4, 5, name="z")))
    other = lowered(G.add(x(20, name="a"), x(20, name="b")))
    assert loops_for_cpu(one.kernel, "k") == loops_for_cpu(other.kernel, "k")


def test_rows_of_scratch_are_not_read_as_constants() -> None:
    """A value read from a changing row has no name that would outlive the change."""
    done = schedule_cpu(replace(lowered(column_sums()).kernel, name="k"))
    stores = [s for s in _all(done.kernel.body) if isinstance(s, Store)]
    assert any(s.value.op == "add" for s in stores)


def _all(body: tuple[Stmt, ...]) -> list[Stmt]:
    return [t for s in body for t in ([s, *_all(s.body)] if isinstance(s, For) else [s])]


def test_short_loops_are_vectors() -> None:
    text = loops_for_cpu(lowered(G.add(x(40, 29), x(29, name="b"))).kernel, "k")
    assert [f", {lanes})" in text for lanes in (16, 8, 4)] == [True, True, True]


def test_borders_are_loops_of_their_own_for_threads() -> None:
    """Two blocks of channels are too few pieces: rows are shared out, beside the halo's zeros."""
    text = loops_for_cpu(lowered(to_blocks_with_a_halo()).kernel, "k")
    spans = [line for line in text.splitlines() if line.startswith("    for ") and "share(" in line]
    assert len(spans) > 2


def test_what_nothing_reads_is_not_computed() -> None:
    table = {"index": x(8, 2, dtype="i32", name="i"), "weight": x(8, 2, name="w")}
    node = laid_out(G.interpolate(x(1, 20, 4, 5, layout=C16), *table.values(), axis=3), C16)
    text = loops_for_cpu(lowered(node).kernel, "k")
    assert "fma(f32(0.0)" not in text
