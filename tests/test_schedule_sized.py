"""Kernels whose sizes are parameters, on GPUs: what work-items and lanes do, for every size."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from jitcl.codegen.lower import lower
from jitcl.codegen.schedule_sized import (
    schedule_sized,
    sized_for_cpu,
    sized_for_opencl,
    with_sizes,
)
from jitcl.ir.graph import Node, graph_input
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Kernel
from jitcl.ir.lanes import work_loops
from jitcl.ir.printer import print_kernel
from jitcl.ir.sizes import Space, at, hint
from jitcl.ir.types import TensorType
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.ops.builder import GraphBuilder
from jitcl.target.profiles import find_profile
from tests.generated.kernels import GPU

TARGETS = {"mali-g610": find_profile("mali-g610").target,
           "adreno-740": find_profile("adreno-740").target, "a GPU": GPU,
           "no local memory": dataclasses.replace(GPU, local_works=False),
           "a CPU": dataclasses.replace(GPU, device_type="cpu")}
G = GraphBuilder()


KINDS = ("softmax", "sum", "max of all", "transpose", "relu")
NOW = (3, 100)


def lowered(kind: str, space: Space) -> Kernel:
    """A kernel over tensors of n sequences of t terms, of which there are 100 now."""
    n, t = (space.symbol(name, size) for name, size in zip("nt", NOW))
    x = graph_input("x", TensorType("f32", (n, 3, t, 5) if kind == "transpose" else (n, 7, t)))
    inlined: frozenset[Node] = frozenset()
    if kind == "softmax":
        less = G.op("sub", x, G.op("reduce_max", x, axes=(2,), keepdims=True))
        e = G.op("exp", less)
        root = G.op("div", e, total := G.op("reduce_sum", e, axes=(2,), keepdims=True))
        inlined = frozenset({less, less.inputs[1], e, total})
    elif kind == "transpose":
        root = G.op("transpose", x, perm=(3, 2, 1, 0))
    elif kind == "relu":
        root = G.op("relu", x)
    else:
        axes = (2,) if kind == "sum" else (0, 1, 2)
        root = G.op("reduce_sum" if kind == "sum" else "reduce_max", x, axes=axes, keepdims=False)
    return lower(Group(root, inlined), "k").kernel


def expected(kind: str, x: np.ndarray) -> np.ndarray:
    if kind == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    return {"sum": lambda: x.sum(-1), "max of all": lambda: x.max(), "transpose": lambda: x.T,
            "relu": lambda: np.maximum(x, 0)}[kind]()


@pytest.mark.parametrize("values", [NOW, (2, 2), (5, 37)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", TARGETS)
def test_a_scheduled_kernel_is_right_for_every_size(device: str, kind: str,
                                                    values: tuple[int, ...]) -> None:
    scheduled = schedule_sized(lowered(kind, Space()), TARGETS[device])
    kernel = with_sizes(scheduled, lambda size: at(size, values))
    verify_schedule(kernel, TARGETS[device].local_memory)
    n, t = values
    shape = (n, 3, t, 5) if kind == "transpose" else (n, 7, t)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    y = np.full(kernel.buffers[-1].shape, np.nan, np.float32)
    run_kernel(kernel, {"x0": x.ravel(), "y": y})
    np.testing.assert_allclose(y, expected(kind, x).ravel(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("to", ["nt 28", "n t 4 7", "nt 4 7", "n 1 t 28"])
def test_a_reshape_takes_nothing_for_granted(to: str) -> None:
    """So that any dimension may be 1; which axes belong together is judged by the hints."""
    space = Space()
    n, t = (space.symbol(name, size) for name, size in zip("nt", NOW))
    shape = [{"n": n, "t": t, "nt": n * t}.get(d) or int(d) for d in to.split()]
    x = graph_input("x", TensorType("f32", (n, t, 28)))
    kernel = lower(Group(G.reshape(x, shape=shape), frozenset()), "k").kernel
    assert space.guards == {}
    for values in ((1, 1), (1, 5), (6, 1), (4, 3)):
        found = with_sizes(kernel, lambda size, values=values: at(size, values))
        x0, y = (np.zeros(b.shape, np.float32) for b in found.buffers)
        x0.flat = np.arange(x0.size)
        run_kernel(found, {"x0": x0, "y": y})
        np.testing.assert_array_equal(y.ravel(), x0.ravel())


def text_of(kind: str, device: str) -> str:
    kernel = schedule_sized(lowered(kind, Space()), TARGETS[device])
    return print_kernel(with_sizes(kernel, hint))


@pytest.mark.parametrize("device", ["mali-g610", "adreno-740", "a GPU"])
def test_lanes_share_a_long_row(device: str) -> None:
    for kind, barriers in (("softmax", 2), ("sum", 1), ("max of all", 1)):
        text = text_of(kind, device)
        assert "@lane" in text and text.count("barrier") >= barriers, text
    assert "for r0 < 100 @loop from lane by" in text_of("sum", device)


@pytest.mark.parametrize("device", ["no local memory", "a CPU"])
def test_a_row_is_a_work_items_where_lanes_gain_nothing(device: str) -> None:
    assert "@lane" not in text_of("softmax", device)


def test_elements_lie_on_three_axes() -> None:
    text = text_of("transpose", "a GPU")
    assert text.count("@item") == 3
    assert len(re.findall("floordiv| / ", text)) == 1        # of four loops two are one


def test_loops_inside_rows_are_short_now() -> None:
    """Which schedule a kernel gets is asked of the sizes of now, and restricts no others."""
    space = Space()
    n, t = space.symbol("n", 3), space.symbol("t", 4)
    x = graph_input("x", TensorType("f32", (n, t)))
    root = G.op("reduce_sum", x, axes=(1,), keepdims=False)
    kernel = lower(Group(root, frozenset()), "k").kernel
    known = set(space.guards)
    assert "@lane" not in print_kernel(with_sizes(schedule_sized(kernel, GPU), hint))
    assert set(space.guards) == known


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", TARGETS)
def test_a_launch_covers_every_size(device: str, kind: str) -> None:
    space = Space()
    done = sized_for_opencl(lowered(kind, space), TARGETS[device])
    for symbols in ({"n": 3, "t": 100}, {"n": 8, "t": 257}):
        values = space.values(symbols)
        kernel = with_sizes(schedule_sized(lowered(kind, Space()), TARGETS[device]),
                            lambda size, v=values: at(size, v))
        groups, lanes = work_loops(kernel)
        needed = [f.extent for f in reversed(lanes)]
        if groups:
            needed = [lanes[0].extent * groups[-1].extent]
        launched = [at(size, values) for size in done.global_size]
        assert all(a >= b for a, b in zip(launched, needed))
        assert all(a % b == 0 for a, b in zip(launched, done.local_size))
        assert len(launched) == max(len(groups), len(lanes))


def joined_on_cpu(batch_now: int) -> str:
    """The text for a concatenation of channels, of pictures of h rows and w columns."""
    space = Space()
    n, h, w = (space.symbol(name, now) for name, now in zip("nhw", (batch_now, 30, 40)))
    parts = [graph_input(name, TensorType("f32", (n, channels, h, w)))
             for name, channels in (("a", 3), ("b", 4))]
    return sized_for_cpu(lower(Group(G.concat(*parts, axis=1), frozenset()), "k").kernel).body


def test_loops_over_channels_are_cut_on_cpus():
    """No element asks which operand it is of; and where the batch may be one, threads share each
    picture's elements, not pictures."""
    text = joined_on_cpu(16)
    assert "select" not in text and " if " not in text
    loops = [line.strip() for line in text.splitlines() if line.strip().startswith("for ")]
    assert loops == [
        "for i0 in range(size0):",
        "for p3 in range(share((3 * size1 * size2), tid, nthreads), "
        "share((3 * size1 * size2), tid + 1, nthreads)):",
        "for i0 in range(size0):",
        "for p6 in range(share((4 * size1 * size2), tid, nthreads), "
        "share((4 * size1 * size2), tid + 1, nthreads)):"]
