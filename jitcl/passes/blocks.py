"""Blocked layouts for targets whose kernels compute on blocks of channels (the CPU's vectors).

Convolutions and pooling want NCHW16c; elementwise nodes and concatenations between them go along,
and so do views of tensors whose channels lie last: a block is a vector of theirs. A tensor whose
readers pad gets a halo of zeros as wide as the widest padding, so that no reader copies it.
"""

from __future__ import annotations

import math

from jitcl.ir.graph import Graph, Node, rebuild
from jitcl.ir.sizes import same
from jitcl.ir.types import Layout
from jitcl.ops.builder import lookup
from jitcl.passes.regions import decoded_weights
from jitcl.target import Target

SPATIAL = ("resize_nearest", "interpolate")  # they move pixels, never channels
CONVOLUTIONS = ("conv", "conv_integer")
STORED = ("f32", "f16", "i32", "u8", "i8")  # in blocks
WINDOWS = ("max_pool", "average_pool", "lp_pool")
MAX_HALO = 8  # a wider padding is copied instead: a halo costs memory on all four sides


def block_channels(graph: Graph, target: Target) -> Graph:
    """The graph with blocked layouts where that pays. Inputs and outputs stay row-major."""
    chosen = _Blocks(graph, target.vector_width, bool(target.byte_dot)).chosen()
    if not chosen:
        return graph
    return rebuild(
        graph,
        lambda node, inputs: Node.make(
            node.op, inputs, node.kwargs,
            type=node.type.with_(layout=chosen.get(node, node.type.layout))),
    )


class _Blocks:
    def __init__(self, graph: Graph, width: int, bytes_too: bool) -> None:
        self.graph, self.width, self.bytes = graph, width, bytes_too
        self.order = [n for n in graph.nodes if n.op not in ("input", "const")]
        self.readers = graph.readers()
        self.outputs = {n for _, n in graph.outputs}
        self.decoded = decoded_weights(self.order)

    def chosen(self) -> dict[Node, Layout]:
        """Node -> its blocked layout."""
        blocked: set[Node] = set()
        for node in self.order:  # forwards: who could be blocked
            if node not in self.outputs and self._possible(node, blocked):
                blocked.add(node)
        for node in reversed(self.order):  # backwards: who has a reader that wants it
            if node in blocked and not any(self._wants(r, blocked) for r in self.readers[node]):
                blocked.discard(node)
        return {n: Layout("NCHWc", self.width, self._halo(n)) for n in blocked}

    def _possible(self, node: Node, blocked: set[Node]) -> bool:
        t = node.type
        if t.rank not in (3, 4) or t.dtype not in STORED or same(t.size, 0):
            return False
        if node.op in CONVOLUTIONS:
            return self._wide(node) and self._conv(node)
        if node.op == "conv_transpose":
            return self._wide(node) and self._transposed(node)
        if node.op in WINDOWS or node.op in SPATIAL:
            return node.inputs[0] in blocked
        if node.op == "reduce_mean":    # to one pixel: its blocks lie as its rows would
            return (node.inputs[0] in blocked and t.dims[1] % self.width == 0
                    and math.prod(t.dims[2:]) == 1)
        if from_channels_last(node):
            return t.dims[1] % self.width == 0
        kind = lookup(node.op).kind
        if kind == "elementwise":
            full = [i for i in node.inputs if i.type.shape == t.shape and i.op != "const"]
            return bool(full) and all(i in blocked for i in full)
        if node.op == "concat":
            return node.attr("axis") == 1 and all(
                i in blocked and i.type.dims[1] % self.width == 0 for i in node.inputs)
        return False

    def _wide(self, node: Node) -> bool:
        """Whether its channels fill at least half a block."""
        return node.type.dims[1] >= self.width // 2

    def _conv(self, node: Node) -> bool:
        """Whether it computes on blocks: dense, grouped by whole blocks, or depthwise."""
        x, w = node.inputs[:2]
        if node.op == "conv_integer" and not self.bytes:
            return False
        group, k, c = node.attr("group"), node.type.dims[1], x.type.dims[1]
        if w.op != "const" and not (node.op == "conv" and w in self.decoded):
            return False
        if group == 1 or (group == c == k and node.op == "conv"):
            return True
        return c // group % self.width == 0 and k // group % self.width == 0

    def _transposed(self, node: Node) -> bool:
        return (
            node.inputs[1].op == "const"
            and node.attr("group") == 1
            and all(d == 1 for d in node.attr("dilations"))
        )

    def _wants(self, reader: Node, blocked: set[Node]) -> bool:
        """Whether a reader is faster on blocks."""
        if reader.op in CONVOLUTIONS:
            return reader in blocked or self._conv(reader)
        if reader.op in ("reshape", "transpose"):
            return self._to_channels_last(reader)
        return (
            reader in blocked
            or reader.op == "reduce_mean"
            or (reader.op == "conv_transpose" and self._transposed(reader))
        )

    def _to_channels_last(self, reader: Node) -> bool:
        """Whether a reader, or all of its own, turn channels into the last axis: a block is then a
        vector of theirs."""
        if reader.op == "reshape" and splits_last(reader.type.dims, reader.inputs[0].type.dims):
            readers = self.readers[reader]
            return bool(readers) and all(self._to_channels_last(r) for r in readers)
        rank = reader.type.rank
        return (reader.op == "transpose" and reader.inputs[0].type.dims[1] % self.width == 0
                and tuple(reader.attr("perm")) == (0, *range(2, rank), 1))

    def _halo(self, node: Node) -> int:
        widest = 0
        for reader in self.readers[node]:
            if reader.inputs[0] is not node:
                continue
            pads = 0
            if reader.op in CONVOLUTIONS:
                pads = max(reader.attr("pads"), default=0)
            elif reader.op == "conv_transpose" and self._transposed(reader):
                sizes = zip(reader.inputs[1].type.dims[2:], reader.attr("strides"))
                pads = max(-(-k // stride) for k, stride in sizes)
            widest = max(widest, pads if pads <= MAX_HALO else 0)
        return widest


def from_channels_last(node: Node) -> bool:
    """Whether a node is the view of a tensor whose last axis is the node's channels.

    transpose(x[n, h, w, c]) {perm=[0, 3, 1, 2]}
    reshape(transpose(x[n, h * w, c]) {perm=[0, 2, 1]}) : [n, c, h, w]
    """
    if node.op == "reshape" and splits_last(node.inputs[0].type.dims, node.type.dims):
        return from_channels_last(node.inputs[0])
    rank = node.type.rank
    return node.op == "transpose" and tuple(node.attr("perm")) == (0, rank - 1, *range(1, rank - 1))


def splits_last(flat: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Whether [n, c, h * w] and [n, c, h, w]."""
    return len(flat) == 3 and len(dims) == 4 and flat[:2] == dims[:2]
