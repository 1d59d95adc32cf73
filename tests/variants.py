"""What tests of variants share: graphs, drivers that fail on some kernels, plans on one variant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from jitcl.codegen import variants
from jitcl.codegen.plan import Plan
from jitcl.devices.cpu.device import CpuDevice
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.target import Target
from jitcl.target.variants import VARIANTS, Variant
from tests.compiling import compile_graph
from tests.generated import ragged

G = GraphBuilder()
BY_NAME = {r.name: r for r in VARIANTS}
OPENCL = [r for r in VARIANTS if not r.cpu]
VECTORS = {"vec4", "vec8", "vec16"}
HALVES = {"half", "half_storage"}

# What kernels of a variant may not have
LACKS = {
    "no-local": {"local", "barrier"},
    "vectors-8": {"vec16"},
    "vectors-4": {"vec8", "vec16"},
    "no-vectors": VECTORS,
    "f32-arithmetic": {"half"},
    "simple": {"local", "barrier", "image", *VECTORS},
    "f32-arithmetic-simple": {"local", "barrier", "image", "half", *VECTORS},
    "f32": HALVES,
    "f32-simple": {"local", "barrier", "image", *HALVES, *VECTORS},
    "split": {"local", "barrier", "image", *HALVES, *VECTORS},
}


def x(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def w(*shape: int, seed: int = 0) -> Node:
    return const(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def int8_gemm() -> Graph:
    """A product with weights that lie as int8, with a scale a column."""
    rng = np.random.default_rng(3)
    weight = const(rng.integers(-128, 128, (24, 40)).astype(np.int8))
    return ragged.graph(G.relu(G.matmul(x(9, 24), G.dequantize(weight, w(40)))))


def layer_norm() -> Graph:
    return ragged.graph(G.layer_norm(x(6, 96), w(96), w(96, seed=1), axis=-1, epsilon=1e-5))


def packed(rows: int, columns: int) -> Node:
    """Weights of 4 bits, two in a byte, with a scale a column."""
    rng = np.random.default_rng(4)
    values = const(rng.integers(0, 256, rows * columns // 2).astype(np.uint8))
    return G.dequantize(G.unpack_uint4(values, shape=(rows, columns)), w(columns), const(8, "u8"))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "conv": lambda: ragged.conv(5, 7, (9, 35), (3, 3), pads=(1, 1, 1, 1)),
    "conv-strided-f16": lambda: ragged.conv(6, 8, (9, 37), (3, 3), "f16", pads=(1, 1, 1, 1),
                                            strides=(2, 2)),
    "gemm": lambda: ragged.matmul(17, 24, 40),
    "gemm-f16": lambda: ragged.matmul(9, 33, 24, "f16"),
    "depthwise-f16": lambda: ragged.conv(9, 9, (8, 19), (3, 3), "f16", group=9,
                                         pads=(1, 1, 1, 1)),
    "max-pool-f16": lambda: ragged.graph(G.max_pool(
        x(1, 3, 9, 21, dtype="f16"), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1),
        dilations=(1, 1))),
    "softmax": lambda: ragged.graph(G.softmax(x(5, 131), axis=-1)),
    "layer-norm": layer_norm,
    "elementwise-f16": lambda: ragged.graph(G.tanh(G.mul(
        x(4, 33, dtype="f16"), x(33, dtype="f16", name="z")))),
    "largest-f16": lambda: ragged.graph(G.reduce_max(G.mul(
        x(5, 131, dtype="f16"), x(131, dtype="f16", name="z")), axes=(1,))),
    "softmax-f16": lambda: ragged.graph(G.softmax(x(5, 131, dtype="f16"), axis=-1)),
    "concat": lambda: ragged.graph(G.concat(x(2, 3, 8), x(2, 5, 8, name="z"), axis=1)),
    "int8": int8_gemm,
    "int4": lambda: ragged.graph(G.matmul(x(9, 256), packed(256, 320))),
}


class Driver:
    """A database of faults: kernels with all of some features fail, and those of `entries`."""

    def __init__(self, *combined: Iterable[str], entries: Iterable[str] = ()) -> None:
        self.combined = [frozenset(c) for c in combined]
        self.entries = set(entries)

    def rejects(self, entry: str, features: frozenset[str]) -> str:
        if entry in self.entries:
            return f"SIGSEGV in {entry}"
        found = next((c for c in self.combined if c <= features), None)
        return "" if found is None else f"SIGABRT: no {'+'.join(sorted(found))}"


def plan_of(graph: Graph, target: Target, faults: variants.Faults | None = None, *,
            low: bool = False, host: Target | None = None, templates: bool = True) -> Plan:
    """The plan of a graph; `low`: halves computed as halves."""
    return compile_graph(graph, target, "low" if low else "high", faults=faults, host=host,
                         templates=templates).plan


def forced(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A database for which there is one variant only."""
    monkeypatch.setattr(variants, "VARIANTS", (variant,))
    return Driver()


@functools.cache
def host() -> Target:
    return CpuDevice().target
