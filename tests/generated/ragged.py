"""Small graphs with ragged sizes: what templates and schedules get wrong first is the remainder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder

G = GraphBuilder()


def x(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return graph_input(name, TensorType(dtype, shape))


def w(*shape: int, dtype: str = "f32", seed: int = 0) -> Node:
    """A constant: templates pack them."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return const(values.astype(dtypes.to_numpy(dtype)))


def graph(*outputs: Node) -> Graph:
    """The graph of these outputs; its inputs are found."""
    named = tuple((f"y{k}", node) for k, node in enumerate(outputs))
    inputs, seen, stack = [], set(), list(outputs)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += node.inputs
        if node.op == "input":
            inputs.append(node)
    return Graph("ragged", tuple(sorted(inputs, key=lambda n: str(n.attr("name")))), named)


def feeds_of(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {str(n.attr("name")):
            rng.standard_normal(n.type.dims).astype(dtypes.to_numpy(n.type.dtype))
            for n in g.inputs}


def conv(channels: int, kernels: int, size: tuple[int, ...], window: tuple[int, ...],
         dtype: str = "f32", **attrs: Any) -> Graph:
    """Convolution with bias and relu over a constant weight."""
    rank = len(size)
    attrs = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank,
             "group": 1, **attrs}
    weight = w(kernels, channels // attrs["group"], *window, dtype=dtype)
    y = G.conv(x(1, channels, *size, dtype=dtype), weight, **attrs)
    bias = w(1, kernels, *[1] * rank, dtype=dtype, seed=1)
    return graph(G.relu(G.add(y, bias)))


def matmul(m: int, k: int, n: int, dtype: str = "f32", weight: bool = True) -> Graph:
    """Product with a bias; the right side a constant or an input."""
    right = w(k, n, dtype=dtype) if weight else x(k, n, dtype=dtype, name="z")
    return graph(G.add(G.matmul(x(m, k, dtype=dtype), right), w(n, dtype=dtype, seed=1)))


def coded(m: int, k: int, n: int, block: int, bits: int) -> Graph:
    """Product with weights of few bits, in blocks along k."""
    codes = np.random.default_rng(2).integers(0, 256, n * k * bits // 8)
    dims = n, k // block, block
    packed = const(codes.astype(np.uint8).reshape(-1 if bits == 4 else dims))
    numbers = G.unpack_uint4(packed, shape=dims) if bits == 4 else packed
    decoded = G.add(G.dequantize(numbers, w(*dims[:2], 1), to="f32"), w(*dims[:2], 1, seed=1))
    right = G.transpose(G.reshape(decoded, shape=(n, k)), perm=(1, 0))
    return graph(G.add(G.matmul(x(m, k), right), w(n, seed=1)))


def gated(rows: int, k: int, n: int) -> Graph:
    """A row's norm, its product, and another that this gates."""
    a = x(rows, k)
    mean = G.reduce_mean(G.mul(a, a), axes=(1,), keepdims=True)
    h = G.mul(G.mul(a, G.reciprocal(G.sqrt(G.add(mean, 1e-5)))), w(k, seed=3))
    return graph(G.mul(G.sigmoid(G.matmul(h, w(k, n, seed=1))), G.matmul(h, w(k, n, seed=2))))


def attention(queries: int, keys: int, size: int, width: int, dtype: str = "f32",
              masked: int = 1) -> Graph:
    """Of two heads, scores masked by keys, and by so many rows."""
    q, k, v = (x(2, rows, columns, dtype=dtype, name=name) for name, rows, columns in (
        ("q", queries, size), ("k", keys, size), ("v", keys, width)))
    scores = G.add(G.matmul(q, G.transpose(k, perm=(0, 2, 1))), x(2, masked, keys, dtype=dtype,
                                                                  name="mask"))
    return graph(G.matmul(G.softmax(scores, axis=-1), v))


def cache(past: int, new: int, size: int, dtype: str = "f32") -> Graph:
    """Attention of two rows over keys, and values, in two buffers."""
    q = x(2, 2, size, name="q")
    keys, values = (G.concat(*(x(2, rows, size, dtype=dtype, name=f"{name} {which}")
                               for which, rows in (("old", past), ("new", new))), axis=1)
                    for name in "kv")
    if dtype != "f32":
        keys, values = (G.cast(n, to="f32") for n in (keys, values))
    scores = G.matmul(q, G.transpose(keys, perm=(0, 2, 1)))
    return graph(G.matmul(G.softmax(scores, axis=-1), values))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "conv-3x3": lambda: conv(5, 7, (9, 11), (3, 3), pads=(1, 1, 1, 1)),
    "conv-3x3-blocks": lambda: conv(16, 24, (7, 9), (3, 3), pads=(1, 1, 1, 1)),
    "conv-5x3-strided": lambda: conv(3, 9, (13, 10), (5, 3), strides=(2, 3), pads=(2, 0, 1, 1)),
    "conv-dilated": lambda: conv(4, 6, (11, 9), (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
    "conv-groups": lambda: conv(12, 8, (6, 7), (3, 3), group=4, pads=(1, 1, 1, 1)),
    "conv-1x1": lambda: conv(13, 19, (5, 7), (1, 1)),
    "conv-1x1-blocks": lambda: conv(32, 16, (5, 3), (1, 1)),
    "conv-1d": lambda: conv(6, 10, (17,), (4,), strides=(2,), pads=(1, 2)),
    "conv-3d": lambda: conv(2, 3, (4, 5, 6), (2, 3, 2), pads=(1, 0, 0, 0, 1, 1)),
    "conv-f16": lambda: conv(5, 7, (6, 7), (3, 3), "f16", pads=(1, 1, 1, 1)),
    "depthwise": lambda: conv(9, 9, (8, 7), (3, 3), group=9, pads=(1, 1, 1, 1)),
    "depthwise-strided": lambda: conv(16, 16, (9, 11), (5, 5), group=16, strides=(2, 2),
                                      pads=(2, 2, 2, 2)),
    "gemm": lambda: matmul(17, 13, 29),
    "gemm-row": lambda: matmul(1, 31, 23),
    "gemm-blocks": lambda: matmul(16, 32, 32),
    "gemm-inputs": lambda: matmul(11, 19, 7, weight=False),
    "gemm-f16": lambda: matmul(9, 21, 13, "f16"),
    "gemm-4bit": lambda: coded(7, 48, 45, 16, 4),
    "gemm-4bit-row": lambda: coded(1, 200, 22, 8, 4),
    "gemm-8bit": lambda: coded(3, 40, 9, 8, 8),
    "gemm-gated": lambda: gated(3, 36, 13),
    "matmul-batched": lambda: graph(G.matmul(x(3, 5, 7), x(3, 7, 9, name="z"))),
    "attention": lambda: attention(19, 37, 12, 20),
    "attention-row": lambda: attention(3, 37, 12, 20),
    "attention-cache": lambda: cache(130, 3, 12),
    "attention-f16": lambda: attention(9, 21, 7, 9, "f16"),
    "softmax": lambda: graph(G.softmax(x(5, 31), axis=-1)),
    "softmax-columns": lambda: graph(G.softmax(x(31, 5), axis=0)),
    "softmax-channels": lambda: graph(G.softmax(x(2, 53, 11), axis=1)),
    "sum-long": lambda: graph(G.reduce_sum(x(3, 301), axes=(1,))),
    "sum-all": lambda: graph(G.reduce_sum(x(7, 29, 3), axes=(0, 1, 2))),
    "max-columns": lambda: graph(G.reduce_max(x(67, 3), axes=(0,))),
    "argmax": lambda: graph(G.argmax(x(3, 97), axis=1)),
    "max-pool": lambda: graph(G.max_pool(x(1, 3, 9, 11), kernel=(3, 3), strides=(2, 2),
                                         pads=(1, 1, 1, 1), dilations=(1, 1))),
    "average-pool": lambda: graph(G.average_pool(x(1, 17, 7, 5), kernel=(2, 3), strides=(1, 2),
                                                 pads=(0, 1, 1, 1), dilations=(1, 1))),
    "transpose": lambda: graph(G.transpose(x(7, 19, 5), perm=(2, 0, 1))),
    "concat": lambda: graph(G.concat(x(3, 5), x(3, 13, name="z"), axis=1)),
    "elementwise": lambda: graph(G.mul(G.sigmoid(x(3, 7, 11)), x(3, 7, 11))),
    "elementwise-f16": lambda: graph(G.add(x(37, dtype="f16"), x(37, dtype="f16", name="z"))),
}
