"""Kernels as people will read them: the source of small graphs, compared with tests/golden/.

`pytest tests/test_golden.py --update-golden` writes the files anew; read the diff then. The targets
are written down here, so that the sources are the same on every machine.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jitcl import config
from jitcl.cli.dump_files import kernel_text
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.target import Target
from tests.compiling import compile_graph

FOLDER = Path(__file__).parent / "golden"

CPU = Target("cpu", "golden", vendor="x86_64", compute_units=4, vector_width=8, max_vector_width=8,
             registers=16, multiply_add="fma", gated_weights=True,
             isa=("avx", "avx2", "f16c", "fma"))
GPU = Target("opencl", "golden", vendor="golden", device_type="gpu", compute_units=8,
             vector_width=4, local_memory=32 << 10, local_is_real=True, max_work_group=256,
             max_work_item_sizes=(256, 256, 64), fp64=False)
TARGETS = {"cpu.py": CPU, "gpu.cl": GPU}
REGISTERS = dataclasses.replace(GPU, compute_units=1, local_is_real=False, registers=5)   # a Mali
IMAGES = dataclasses.replace(GPU, compute_units=1, images=True, image_pixels=65536)

g = GraphBuilder()


def x(name: str, *shape: int, dtype: str = "f32") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def weights(*shape: int, seed: int = 0) -> Node:
    """A constant; its elements do not show in the source."""
    return g.const(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def halves(*shape: int) -> Node:
    return g.const(np.random.default_rng(0).normal(size=shape).astype(np.float16))


def codes(n: int, k: int, seed: int = 0) -> Node:
    """Weights [k, n] of 4 bits, in blocks of 32 terms, as a GGUF file's Q4_0 has them."""
    bits = g.const(np.random.default_rng(seed).integers(0, 256, n * k // 2).astype(np.uint8))
    w = g.dequantize(g.unpack_uint4(bits, shape=(n, k // 32, 32)), weights(n, k // 32, 1),
                     g.const(8, "u8"), to="f32")
    return g.transpose(g.reshape(w, shape=(n, k)), perm=(1, 0))


def conv(data: Node, w: Node, **attrs: object) -> Node:
    rank = data.type.rank - 2
    return g.conv(data, w, **{"strides": (1,) * rank, "pads": (1, 1) * rank,
                              "dilations": (1,) * rank, "group": 1, **attrs})


def pooled_conv(c: int, k: int) -> Node:
    """A convolution whose result lies in blocks, as a reader wants it."""
    y = g.add(conv(x("x", 1, c, 28, 28), weights(k, c, 3, 3)), weights(k, 1, 1))
    return g.reduce_mean(g.relu(y), axes=(2, 3), keepdims=True)


def residual(c: int, size: int) -> Node:
    """1x1 convolutions in blocks, the second of which adds what the first gave."""
    y = conv(x("x", 1, c, size, size), weights(c, c, 1, 1), pads=(0,) * 4)
    z = conv(g.relu(y), weights(c, c, 1, 1), pads=(0,) * 4)
    return g.reduce_mean(g.relu(g.add(z, y)), axes=(2, 3), keepdims=True)


def gate(c: int, k: int) -> Node:
    """Squeeze and excite: channels weighed by a function of their means."""
    y = g.relu(conv(x("x", 1, c, 14, 14), weights(c, c, 1, 1), pads=(0,) * 4))
    weighed = conv(g.reduce_mean(y, axes=(2, 3), keepdims=True), weights(c, c, 1, 1), pads=(0,) * 4)
    return g.relu(conv(g.mul(y, g.sigmoid(weighed)), weights(k, c, 1, 1), pads=(0,) * 4))


def attention(q: Node, k: Node, v: Node, mask: Node) -> Node:
    scores = g.matmul(g.mul(q, 0.25), g.transpose(k, perm=(0, 1, 3, 2)))
    return g.matmul(g.softmax(g.add(scores, mask), axis=-1), v)


def cache(past: int, size: int) -> Node:
    """Attention of a token over those of a cache of halves and itself, each of two heads."""
    q, mask = x("q", 1, 2, 1, size), x("mask", past + 1)
    k, v = (g.transpose(g.cast(g.concat(
        x(f"{n}_past", 1, past, 2, size, dtype="f16"), x(n, 1, 1, 2, size, dtype="f16"), axis=1),
        to="f32"), perm=(0, 2, 1, 3)) for n in ("k", "v"))
    return attention(q, k, v, mask)


def gated_unit(rows: int, k: int, n: int) -> Node:
    """silu(h @ v) * (h @ w) of a row's norm h."""
    a = x("a", rows, k)
    mean = g.reduce_mean(g.mul(a, a), axes=(1,), keepdims=True)
    h = g.mul(g.mul(a, g.reciprocal(g.sqrt(g.add(mean, 1e-6)))), weights(k))
    return g.mul(g.swish(g.matmul(h, codes(n, k))), g.matmul(h, codes(n, k, seed=1)))


GRAPHS: dict[str, Callable[[], Node]] = {
    "elementwise": lambda: g.relu(g.add(g.mul(x("a", 4, 33), x("b", 33)), 1.0)),
    "half": lambda: g.tanh(g.add(x("a", 4, 33, dtype="f16"), x("b", 33, dtype="f16"))),
    "half_matmul": lambda: g.relu(g.matmul(x("a", 64, 96, dtype="f16"), halves(96, 40))),
    "half_conv": lambda: g.relu(conv(x("x", 1, 16, 14, 14, dtype="f16"), halves(32, 16, 3, 3))),
    "softmax": lambda: g.softmax(x("scores", 8, 100), axis=-1),
    "layer_norm": lambda: g.layer_norm(x("x", 8, 96), weights(96), weights(96, seed=1), axis=-1,
                                       epsilon=1e-5),
    "conv_bias_relu": lambda: g.relu(g.add(conv(x("x", 1, 16, 14, 14), weights(32, 16, 3, 3)),
                                           weights(32, 1, 1))),
    "pointwise": lambda: g.relu(g.add(conv(x("x", 1, 16, 28, 28), weights(32, 16, 1, 1),
                                           pads=(0,) * 4), weights(32, 1, 1))),
    "winograd": lambda: pooled_conv(16, 24),
    "winograd_in_two_steps": lambda: pooled_conv(32, 40),
    "residual": lambda: residual(16, 28),
    "residual_of_many_channels": lambda: residual(640, 4),
    "gate": lambda: gate(32, 24),
    "depthwise": lambda: conv(x("x", 1, 16, 14, 14), weights(16, 1, 3, 3), group=16),
    "few_rows": lambda: g.relu(g.matmul(x("a", 2, 2048), weights(2048, 40))),
    "few_rows_of_codes": lambda: g.matmul(x("a", 1, 2048), codes(40, 2048)),
    "gated_unit": lambda: gated_unit(2, 2048, 40),
    "matmul_bias": lambda: g.add(g.matmul(x("a", 64, 96), weights(96, 40)), weights(40)),
    "attention": lambda: attention(x("q", 1, 2, 40, 24), x("k", 1, 2, 52, 24),
                                   x("v", 1, 2, 52, 16), x("mask", 52)),
    "cache": lambda: cache(256, 64),
    "max_pool": lambda: g.max_pool(x("x", 1, 16, 14, 14), kernel=(2, 2), strides=(2, 2),
                                   pads=(0, 0, 0, 0), dilations=(1, 1), ceil=False),
    "transpose": lambda: g.transpose(x("x", 2, 24, 40), perm=(0, 2, 1)),
    "concat": lambda: g.concat(x("a", 2, 3, 8), x("b", 2, 5, 8), axis=1),
}


FILES = {f"{name}.{suffix}": (name, target)
         for name in GRAPHS for suffix, target in TARGETS.items()}
for name in ("residual", "residual_of_many_channels", "winograd", "winograd_in_two_steps",
             "attention", "gate"):
    del FILES[f"{name}.gpu.cl"]                # a convolution, or products, as any other there
for name in ("few_rows", "few_rows_of_codes", "gated_unit"):
    del FILES[f"{name}.cpu.py"]
for suffix in TARGETS:
    del FILES[f"pointwise.{suffix}"]           # a product as any other there
    del FILES[f"cache.{suffix}"]
FILES["cache.registers.cl"] = "cache", REGISTERS
FILES["pointwise.registers.cl"] = "pointwise", REGISTERS
FILES["conv_bias_relu.images.cl"] = "conv_bias_relu", IMAGES
for name in ("half_matmul", "half_conv"):      # computed in half: see source()
    for suffix in TARGETS:
        del FILES[f"{name}.{suffix}"]
    FILES[f"{name}.registers.cl"] = name, dataclasses.replace(REGISTERS, fp16_arithmetic=True,
                                                              half_pairs=True)
FILES["half_matmul.gpu.cl"] = "half_matmul", dataclasses.replace(GPU, fp16_arithmetic=True)


def source(graph: Graph, target: Target) -> str:
    """All launches of a graph with their kernels, as `jitcl dump` writes them."""
    plan = compile_graph(graph, target, "low" if target.fp16_arithmetic else "high").plan
    kernels = {k.entry: k for k in plan.kernels}
    first: dict[str, str] = {}
    texts = [kernel_text(s, kernels[s.kernel], first.setdefault(s.kernel, s.name), s.name)
             for s in plan.steps]
    return "\n".join(texts).rstrip() + "\n"


@pytest.mark.parametrize("file", FILES)
def test_sources_are_as_they_were(file, request):
    name, target = FILES[file]
    y = GRAPHS[name]()
    inputs = tuple(n for n in Graph("", (), (("y", y),)).nodes if n.op == "input")
    with config.override(templates=True, cpu_width=None):
        text = source(Graph(name, inputs, (("y", y),)), target)
    if file.endswith(".py"):
        ast.parse(text)
    path = FOLDER / file
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), "no golden source yet: pytest tests/test_golden.py --update-golden"
    assert text == path.read_text(encoding="utf-8"), (
        "if that was meant: pytest tests/test_golden.py --update-golden, and read the diff")


def test_every_golden_source_has_its_graph():
    assert {p.name for p in FOLDER.iterdir()} == set(FILES)
