"""Constant weights become packed ones, which whoever reads them decodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from jitcl.ir.graph import Graph, Node, const, rebuild
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.base import Pass
from jitcl.passes.packing import SMALLEST, Array, Packing, Rows, key_of

SMALL = 1024                        # elements: weights of fewer stay as they are
FEW_CHANNELS = 8                    # convolutions that sum over fewer input channels do, too
TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Weight:
    """Operand `slot` of a node: constant weights, which are rows in one of these orders.

        columns   [.., k, n]                       of matmul's second operand
        rows      [n, k]                           of its first, and of a look-up's
        window    [n, channels, kh, kw]            of a convolution, rows by (kh, kw, channels)
    """

    node: Node
    slot: int
    order: str
    bits: int = 8

    @staticmethod
    def of(node: Node, inputs: tuple[Node, ...]) -> Weight | None:
        """What a node that reads `inputs` sums over; None where that is nothing to pack."""
        found = None
        if node.op == "matmul":
            found = ((1, "columns") if inputs[1].op == "const" else
                     (0, "rows") if inputs[0].type.rank == 2 else None)
        elif node.op == "conv" and inputs[1].type.dims[1] >= FEW_CHANNELS:
            found = 1, "window"
        elif node.op == "gather" and node.attr("axis", 0) == 0 and inputs[0].type.rank == 2:
            found = 0, "rows"
        if found is None or all(i.op == "const" for i in inputs):
            return None
        weight, w = Weight(node, *found), inputs[found[0]]
        if w.op != "const" or w.type.dtype not in TYPES or w.type.size < SMALL or w.type.rank < 2:
            return None
        return weight if weight.terms(w) >= SMALLEST else None

    def terms(self, w: Node) -> int:
        dims = w.type.dims
        return {"columns": dims[-2], "rows": dims[-1], "window": math.prod(dims[1:])}[self.order]

    def rows(self, w: Array) -> Array:
        """f32 [n, k], contiguous."""
        if self.order == "columns":
            w = np.swapaxes(w, -1, -2)
        elif self.order == "window":
            w = np.moveaxis(w, 1, -1).reshape(len(w), -1)
        return np.ascontiguousarray(w.reshape(-1, w.shape[-1]), np.float32)

    def decoded(self, g: GraphBuilder, w: Node, rows: Rows) -> Node:
        """The operand, decoded of packed constants. Of convolutions, outputs lie side by side:
        kernels that arrange their weights in blocks of outputs read them so."""
        window, dims, k = self.order == "window", w.type.dims, self.terms(w)
        order = (1, 2, 0) if window else (0, 1, 2)
        n, blocks, block = rows.codes.shape
        codes = np.ascontiguousarray(rows.codes.transpose(order))
        scales = const(np.ascontiguousarray(rows.scales.transpose(order)))
        zeros = rows.zeros if rows.zeros is None else rows.zeros.transpose(order)
        operands = []
        if rows.bits == 8 and zeros is None:
            operands.append(const((codes ^ 128).view(np.int8)))
        elif rows.bits == 8:
            operands.append(const(codes))
        else:
            operands.append(_nibbles(g, codes))
        if zeros is not None:
            operands.append(const(zeros) if rows.bits == 8 else _nibbles(g, zeros))
        elif rows.bits == 4:
            operands.append(const(8, "u8"))
        y = g.dequantize(operands[0], scales, *operands[1:], to=w.type.dtype)
        axis = 0 if window else 1
        flat = (blocks * block, n) if window else (n, blocks * block)
        y = g.reshape(y, shape=flat)
        if blocks * block != k:
            y = g.slice(y, starts=(0,), ends=(k,), axes=(axis,), steps=(1,))
        if window:
            y = g.reshape(y, shape=(*dims[2:], dims[1], n))
            last = y.type.rank - 1
            return g.transpose(y, perm=(last, last - 1, *range(last - 1)))
        if self.order == "rows":
            return y
        rank = len(dims)
        if rank > 2:
            y = g.reshape(y, shape=(*dims[:-2], dims[-1], k))
        return g.transpose(y, perm=(*range(rank - 2), rank - 1, rank - 2))

    def whole(self, numbers: Array, dims: tuple[int, ...]) -> Array:
        """Weights of these dimensions, of their rows as numbers."""
        if self.order == "columns":
            return np.swapaxes(numbers.reshape(*dims[:-2], dims[-1], dims[-2]), -1, -2)
        if self.order == "window":
            return np.moveaxis(numbers.reshape(dims[0], *dims[2:], dims[1]), -1, 1)
        return numbers.reshape(dims)

    # ---- what it sums over

    @property
    def source(self) -> Node | None:
        """The other operand, where rows may be rounded for its elements; None of a look-up, and of
        several matrices."""
        node = self.node
        if node.op == "gather" or (self.order == "columns" and node.inputs[1].type.rank > 2):
            return None
        return node.inputs[1 - self.slot]

    def sums(self, x: Array, most: int) -> Iterator[Array]:
        """Of each group of outputs, the terms [m, k] of at most so many sums, evenly spaced."""
        if self.order == "columns":
            yield _spaced(x.reshape(-1, x.shape[-1]), most)
        elif self.order == "rows":
            yield _spaced(np.swapaxes(x, -1, -2).reshape(-1, x.shape[-2]), most)
        else:
            yield from self._windows(x, most)

    def _windows(self, x: Array, most: int) -> Iterator[Array]:
        node = self.node
        kernel, steps = node.inputs[1].type.dims[2:], node.attr("dilations")
        pads, space, groups = node.attr("pads"), len(kernel), node.attr("group")
        x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:space], pads[space:])])
        spans = [(n - 1) * d + 1 for n, d in zip(kernel, steps)]
        seen = sliding_window_view(x, spans, tuple(range(2, 2 + space)))
        every = (slice(None, None, n) for n in (1, 1, *node.attr("strides"), *steps))
        seen = seen[tuple(every)]
        seen = np.moveaxis(seen, 1, 1 + space)             # [N, oh, ow, C, kh, kw]
        places = np.unravel_index(_evenly(math.prod(seen.shape[:1 + space]), most),
                                  seen.shape[:1 + space])
        picked = seen[places]
        picked = picked.reshape(len(picked), groups, -1, *kernel)
        for g in range(groups):
            yield np.moveaxis(picked[:, g], 1, -1).reshape(len(picked), -1)


def _nibbles(g: GraphBuilder, values: Array) -> Node:
    flat = values.reshape(-1)
    flat = np.pad(flat, (0, flat.size % 2))
    return g.unpack_uint4(const(flat[::2] | flat[1::2] << 4), shape=values.shape)


def _evenly(count: int, most: int) -> Array:
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _spaced(x: Array, most: int) -> Array:
    return x[_evenly(len(x), most)]


@dataclass(frozen=True)
class PackWeights(Pass):
    """Weights of matmul, conv and look-ups in 4 or 8 bits, with a scale for each block of a sum.

        %y = matmul(%x, w)      =>      %0 = unpack_uint4(codes) {shape=[N, K / 32, 32]}
                                        %1 = dequantize(%0, scales: f16[N, K / 32, 1], 8)
                                        %2 = reshape(%1) {shape=[N, K]}
                                        %3 = transpose(%2) {perm=[1, 0]}
                                        %y = matmul(%x, %3)

    After scales are folded into weights, and before products are moved about, which depends on
    shapes: the same weights for all of them. bits: of the weights of some of the model's nodes, 0
    of those that stay.
    """

    packing: Packing
    bits: Mapping[str, int] = field(default_factory=dict)

    def run(self, graph: Graph) -> Graph:
        g, packed = GraphBuilder(), dict[tuple[Node, str, int], Node]()

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            weight = self._weight(graph, node)
            if weight is not None:
                w = node.inputs[weight.slot]
                kind = w, weight.order, weight.bits
                if kind not in packed:
                    packed[kind] = self._packed(g, weight, w)
                inputs = tuple(packed[kind] if k == weight.slot else i
                               for k, i in enumerate(inputs))
            return node if node.inputs == inputs else node.with_inputs(inputs)

        return rebuild(graph, change)

    def weights(self, graph: Graph) -> Mapping[str, Weight]:
        """Weights that may be rounded for what they are multiplied with, by the `key_of` their
        rows."""
        found: dict[str, Weight] = {}
        for weight in self.read(graph):
            if weight.source is not None:
                rows = weight.rows(weight.node.inputs[weight.slot].data)
                if replace(self.packing, bits=weight.bits).packed(rows) is not None:
                    found[key_of(rows, weight.bits)] = weight
        return found

    def read(self, graph: Graph) -> Iterator[Weight]:
        """What nodes read that is packed, where scales of f16 reach it."""
        return (w for n in graph.nodes if (w := self._weight(graph, n)) is not None)

    def _packed(self, g: GraphBuilder, weight: Weight, w: Node) -> Node:
        rows = weight.rows(w.data)
        found = replace(self.packing, bits=weight.bits).packed(rows)
        return w if found is None else weight.decoded(g, w, found)

    def _weight(self, graph: Graph, node: Node) -> Weight | None:
        if node.op in ("input", "const"):
            return None
        origin = graph.origins.get(node)
        names = () if origin is None else (origin.name, *origin.twins)
        said = [self.bits[n] for n in names if n in self.bits]
        weight = Weight.of(node, node.inputs) if 0 not in said else None
        return weight and replace(weight, bits=max(said, default=self.packing.bits))


__all__ = ["PackWeights", "Weight"]
