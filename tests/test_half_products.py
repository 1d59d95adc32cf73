"""Products in half under "low": sums of a few terms in half, of these sums in f32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from jitcl.codegen.trial import GroupTrial, trials
from jitcl.devices.base import Device
from jitcl.ir.enclosure import FLUSHED, UNIT
from jitcl.ir.graph import Graph, Node, graph_input, toposort
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.memory import laid_out
from jitcl.target.profiles import find_profile
from tests.compiling import compile_graph
from tests.devices import device, present
from tests.generated.kernels import TARGETS

g = GraphBuilder()
HALF = [s for s in present() if s.startswith("opencl") and device(s).target.computes_f16]
GPU = {"device_type": "gpu", "vector_width": 4, "compute_units": 8, "max_work_group": 256}
POSES = {"as it is": {}, "in registers": {**GPU, "local_is_real": False, "registers": 5},
         "in pairs": {**GPU, "local_is_real": False, "registers": 5, "half_pairs": True},
         "with images": {**GPU, "local_is_real": False, "images": True, "image_pixels": 65536},
         "tiled": {**GPU, "local_is_real": True}}


def x(name: str, *shape: int) -> Node:
    return graph_input(name, TensorType("f16", shape))


def weights(*shape: int) -> Node:
    rng = np.random.default_rng(3)
    return g.const((rng.normal(size=shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float16))


def conv(data: Node, w: Node, stride: int = 1, group: int = 1) -> Node:
    pads = [d // 2 for d in w.type.dims[2:]]
    return g.relu(g.conv(data, w, strides=(stride,) * len(pads), pads=(*pads, *pads),
                         dilations=(1,) * len(pads), group=group))


GRAPHS: dict[str, Callable[[], Node]] = {
    "matmul": lambda: g.relu(g.add(g.matmul(x("a", 96, 576), weights(576, 72)), weights(72))),
    "matmul of odd sizes": lambda: g.matmul(x("a", 3, 37, 91), weights(91, 53)),
    "matmul of two": lambda: g.matmul(x("a", 2, 48, 64), x("b", 2, 64, 80)),
    "matmul of few rows": lambda: g.matmul(x("a", 1, 100), weights(100, 40)),
    "conv 3x3": lambda: conv(x("x", 1, 16, 14, 14), weights(24, 16, 3, 3)),
    "conv 3x3 in steps of 2": lambda: conv(x("x", 1, 16, 56, 56), weights(64, 16, 3, 3), 2),
    "conv 5x5 in steps of 2": lambda: conv(x("x", 1, 8, 24, 25), weights(12, 8, 5, 5), 2),
    "conv 1x1": lambda: conv(x("x", 2, 40, 9, 9), weights(24, 40, 1, 1)),
    "conv 2x2 in groups": lambda: conv(x("x", 1, 32, 18, 20), weights(32, 16, 2, 2), group=2),
    "conv 1x1 in steps of 2": lambda: conv(x("x", 1, 40, 16, 16), weights(24, 40, 1, 1), 2),
    "conv 3": lambda: conv(x("x", 1, 24, 60), weights(16, 24, 3)),
    "depthwise 3x3": lambda: conv(x("x", 1, 24, 20, 20), weights(24, 1, 3, 3), group=24),
    "depthwise 5x5": lambda: conv(x("x", 1, 24, 20, 20), weights(24, 1, 5, 5), 2, group=24),
}
QUICK = {("matmul", "in registers"), ("conv 3x3", "tiled"), ("depthwise 5x5", "as it is"),
         ("conv 3x3 in steps of 2", "in registers"), ("conv 3x3 in steps of 2", "in pairs"),
         ("depthwise 3x3", "in pairs"), ("depthwise 5x5", "in pairs")}
IN_F32 = {("matmul of few rows", "tiled"),       # by gemv_opencl, which waits for memory
          ("depthwise 3x3", "tiled"), ("depthwise 5x5", "tiled")}


def graph_of(y: Node) -> Graph:
    return Graph("half", tuple(n for n in toposort([y]) if n.op == "input"), (("y", y),))


def tried(place: Device, pose: str, graph: Graph) -> list[tuple[GroupTrial, np.ndarray]]:
    """The trials of a graph's kernels under "low", and what the device gives them."""
    target = dataclasses.replace(place.target, **POSES[pose])
    made = compile_graph(graph, target, "low")
    cache = kernel_cache().for_target(place.target)
    found = trials(made, laid_out(made.plan, place, "normal"))
    return [(t, place.load(t.plan, cache).run(t.inputs())[0]) for t in found]


@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize(("kind", "pose"), [
    pytest.param(k, p, marks=() if (k, p) in QUICK else pytest.mark.slow)
    for k in GRAPHS for p in POSES])
@pytest.mark.parametrize("spec", HALF)
def test_products_in_half_lie_in_their_enclosures(spec: str, kind: str, pose: str) -> None:
    place = device(spec)
    assert place is not None
    graph = graph_of(GRAPHS[kind]())
    (last,) = tried(place, pose, graph)
    trial, y = last
    bodies = "".join(k.body for k in trial.plan.kernels if k.template)
    halves = "h00 +=" in bodies or "part +=" in bodies        # in half ..
    assert halves == ((kind, pose) not in IN_F32)
    assert not halves or "c00 +=" in bodies or "v +=" in bodies           # .. and then in f32
    assert not trial.reason and not trial.wrong([y])
    assert trial.wrong([y + np.float16(0.1) * np.abs(y).max()])


def masked() -> Graph:
    """Scores of which some are replaced by a number that f16 does not hold."""
    q, k = (g.relu(graph_input(n, TensorType("f32", shape)))
            for n, shape in (("q", (2, 48, 64)), ("k", (2, 64, 80))))
    keep = graph_input("keep", TensorType("bool", (48, 80)))
    return graph_of(g.where(keep, g.matmul(q, k), float(np.finfo(np.float32).min)))


@pytest.mark.parametrize("pose", ["in registers", "with images", "tiled"])
@pytest.mark.parametrize("spec", HALF)
def test_scores_are_products_in_half_where_programs_are_few_and_their_mask_f32(
        spec: str, pose: str) -> None:
    place = device(spec)
    assert place is not None
    trial, y = tried(place, pose, masked())[-1]
    bodies = "".join(k.body for k in trial.plan.kernels if k.template)
    assert ("h00 +=" in bodies) == (pose != "tiled") and "float *restrict y" in bodies
    assert not trial.reason and not trial.wrong([y])
    assert (y == np.finfo(np.float32).min).any() and np.isfinite(y).all()
    assert trial.wrong([y + 0.1 * np.abs(y[y > -1e30]).max()])


def test_a_first_layer_has_four_rows_of_sums_whatever_its_weights_are_stored_as():
    """They are f16 below "high"; its sums are f32, and its input takes registers as such."""
    data = graph_input("x", TensorType("f32", (1, 3, 112, 112)))
    rng = np.random.default_rng(3)
    w = g.const(rng.normal(size=(64, 3, 7, 7)).astype(np.float32) / 12)
    graph = graph_of(conv(data, w, 2))
    for precision in ("high", "normal", "low"):
        made = compile_graph(graph, find_profile("mali-g610").target, precision).plan
        assert [k.entry.rpartition("_")[0] for k in made.kernels] == ["patches", "gemm_4x1x4"]


@pytest.mark.parametrize(("columns", "vectors"), [(56, True), (52, False)])
def test_rows_of_taps_read_weights_by_vectors_where_registers_are_left(columns, vectors):
    """Six halves of a row, of a vector of eight; where rows of 26 end within a vector, what pads
    them takes the registers."""
    target = dataclasses.replace(TARGETS["gpu-fp16"], **POSES["in registers"])
    graph = graph_of(conv(x("x", 1, 16, 56, columns), weights(64, 16, 3, 3), 2))
    body = "".join(k.body for k in compile_graph(graph, target, "low").plan.kernels)
    assert ("(__global const half8 *)" in body) == vectors


@pytest.mark.parametrize("pose", [
    pytest.param(p, marks=() if p == "in registers" else pytest.mark.slow) for p in POSES])
@pytest.mark.parametrize("spec", HALF)
def test_a_long_sum_loses_nothing_in_half(spec: str, pose: str) -> None:
    """4096 terms: in half alone, 1 + 1 + .. stays at 2048 where 1 is half a unit."""
    place = device(spec)
    assert place is not None
    terms = 4096
    target = dataclasses.replace(place.target, **POSES[pose])
    rng = np.random.default_rng(7)
    a = rng.uniform(0.5, 1, (16, terms)).astype(np.float16)
    b = rng.uniform(0.5, 1, (terms, 32)).astype(np.float16)
    graph = graph_of(g.cast(g.matmul(x("a", 16, terms), g.const(b)), to="f32"))
    made = compile_graph(graph, target, "low")
    plan = laid_out(made.plan, place, "normal")
    (got,) = place.load(plan, kernel_cache().for_target(place.target)).run([a])
    want = a.astype(np.float64) @ b.astype(np.float64)
    alone = np.zeros_like(want, np.float16)
    for k in range(terms):
        alone += a[:, k:k + 1] * b[k]
    single = np.abs(a.astype(np.float32) @ b.astype(np.float32) - want).max()
    assert single < 1e-5 * want.max()
    off = np.abs(got - want) / want
    bound = FLUSHED * UNIT["f16"]
    assert off.max() < bound / 8 and (np.abs(alone - want) / want).min() > 5 * bound
    for trial in trials(made, plan):
        (y,) = place.load(trial.plan, kernel_cache().for_target(place.target)).run(trial.inputs())
        assert not trial.wrong([y])
