"""Blocked layouts for targets whose kernels compute on blocks of channels (the CPU's vectors).

Convolutions and pooling want NCHW16c; elementwise nodes and concatenations between them go along. A tensor whose
readers pad gets a halo of zeros as wide as the widest padding, so that no reader copies it.
"""

from __future__ import annotations

from jitcl import dtypes
from jitcl.ir.graph import Graph, Node, rebuild
from jitcl.ir.types import Layout
from jitcl.ops.builder import lookup
from jitcl.target import Target

WINDOWS = ("max_pool", "average_pool", "lp_pool")
MAX_HALO = 8                   # a wider padding is copied instead: a halo costs memory on all four sides


def block_channels(graph: Graph, target: Target) -> Graph:
    """The graph with blocked layouts where that pays. Inputs and outputs stay row-major."""
    chosen = _Blocks(graph, target.vector_width).chosen()
    if not chosen:
        return graph
    return rebuild(graph, lambda node, inputs: Node.make(
        node.op, inputs, node.kwargs, type=node.type.with_(layout=chosen.get(node, node.type.layout))))


class _Blocks:
    def __init__(self, graph: Graph, width: int) -> None:
        self.graph, self.width = graph, width
        self.order = [n for n in graph.nodes if n.op not in ("input", "const")]
        self.readers = graph.readers()
        self.outputs = {n for _, n in graph.outputs}

    def chosen(self) -> dict[Node, Layout]:
        """Node -> its blocked layout."""
        blocked: set[Node] = set()
        for node in self.order:                                   # forwards: who could be blocked
            if node not in self.outputs and self._possible(node, blocked):
                blocked.add(node)
        for node in reversed(self.order):                         # backwards: who has a reader that wants it
            if node in blocked and not any(self._wants(r, blocked) for r in self.readers[node]):
                blocked.discard(node)
        return {n: Layout("NCHWc", self.width, self._halo(n)) for n in blocked}

    def _possible(self, node: Node, blocked: set[Node]) -> bool:
        t = node.type
        if t.rank not in (3, 4) or t.dtype not in ("f32", "f16") or t.size == 0:
            return False
        if node.op == "conv":
            return self._conv(node)
        if node.op in WINDOWS:
            return node.inputs[0] in blocked
        kind = lookup(node.op).kind
        if kind == "elementwise":
            full = [i for i in node.inputs if i.type.shape == t.shape and i.op != "const"]
            return bool(full) and all(i in blocked for i in full) and dtypes.is_float(t.dtype)
        if node.op == "concat":
            return node.attr("axis") == 1 and all(
                i in blocked and i.type.dims[1] % self.width == 0 for i in node.inputs)
        return False

    def _conv(self, node: Node) -> bool:
        """Dense, by whole blocks of channels, or depthwise; and wide enough for a block not to be mostly padding."""
        x, w = node.inputs
        group, k = node.attr("group"), node.type.dims[1]
        if w.op != "const" or k < self.width // 2:
            return False
        c = x.type.dims[1]
        if group == 1:
            return True
        if group == c == k:
            return True
        return c // group % self.width == 0 and k // group % self.width == 0

    def _wants(self, reader: Node, blocked: set[Node]) -> bool:
        """Whether a reader is faster on blocks."""
        return reader in blocked or reader.op == "conv" and self._conv(reader) or reader.op == "reduce_mean"

    def _halo(self, node: Node) -> int:
        widest = 0
        for reader in self.readers[node]:
            if reader.op == "conv" and reader.inputs[0] is node:
                pads = max(reader.attr("pads"), default=0)
                widest = max(widest, pads if pads <= MAX_HALO else 0)
        return widest


