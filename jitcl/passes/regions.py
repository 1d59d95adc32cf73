"""What fusion knows of a graph before it decides: costs, rows, epilogues of heavy nodes."""

from __future__ import annotations

from collections.abc import Sequence

from jitcl.ir.graph import Graph, Node
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.ops.core import norm_axes
from jitcl.ops.cost import element_cost

HEAVY = ("contraction", "window", "scan", "sort")
VIEWS = ("reshape", "transpose", "slice", "expand", "tile")    # one operand at another index
COPY_FLOPS = {"pad": 2, "concat": 1}        # FLOPs of an element; of concat: for each operand
EPILOGUE = 24                          # nodes behind a heavy one that are looked at
DECODERS = ("dequantize", "unpack", "unpack_uint4")
SHORT_ROW = 4096                       # elements that one worker may well do alone


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes of its operand that a reduction node combines."""
    rank = node.inputs[0].type.rank
    if node.attr("axis") is not None:
        return norm_axes((node.attr("axis"),), rank)
    return norm_axes(node.attr("axes"), rank)


def row_count(node: Node) -> int | None:
    """How many leading axes a reduction over trailing axes keeps; None for other reductions.

        reduce_max(x[8,12,64,64]) {axes=[3]}  ->  3        {axes=[1]}  ->  None
    """
    dims = node.inputs[0].type.dims
    axes = {a for a in reduced_axes(node) if dims[a] != 1}
    if not axes:
        return None
    first = min(axes)
    return first if all(a in axes or dims[a] == 1 for a in range(first, len(dims))) else None


def decoded_weights(order: Sequence[Node]) -> set[Node]:
    """What is made of constants alone by decoding: weights that are stored in few bits, which
    whoever reads them decodes. order: nodes, each after what it reads.
    """
    constant: set[Node] = set()
    found: set[Node] = set()
    for node in order:
        if not all(i.op == "const" or i in constant for i in node.inputs):
            continue
        if node.op in (*DECODERS, *VIEWS, "add", "cast"):
            constant.add(node)
            if node.op in DECODERS or any(i in found for i in node.inputs):
                found.add(node)
    return found


class Regions:
    """Facts on a graph's nodes, each computed in one sweep.

    `cost`: FLOPs of one element with all that would be inlined into it. `rows`: of reductions
    that may be computed once a row. `epilogues`: elementwise nodes that end in one value computed
    from a heavy node; `behind`: the same for reductions, each with its reduction. `tails`:
    elementwise nodes behind a row's reductions.
    """

    def __init__(self, graph: Graph) -> None:
        self.order = [n for n in graph.nodes if n.op not in ("input", "const")]
        self.readers = graph.readers()
        self.outputs = {n for _, n in graph.outputs}
        self.kind = {n: lookup(n.op).kind for n in self.order}
        self.decoded = decoded_weights(self.order)
        self.place = {n: k for k, n in enumerate(self.order)}
        self.cost = self._costs()
        self.rows = self._rows()
        self.epilogues = {e for n in self.order if self.heavy(n) for e in self._epilogue(n)}
        self.behind = {e: n for n in self.order if self.kind[n] == "reduction"
                       for e in self._epilogue(n)}
        self.tails = self._tails()

    def heavy(self, node: Node) -> bool:
        """Templates may claim it, and it is never computed twice."""
        return self.kind.get(node) in HEAVY

    def is_view(self, node: Node) -> bool:
        """One buffer at another index: costs no more than an address."""
        return node.op in VIEWS

    def _costs(self) -> dict[Node, int]:
        found: dict[Node, int] = {}
        for node in self.order:
            if self.kind[node] == "movement":
                own = COPY_FLOPS.get(node.op, 0) * (len(node.inputs) if node.op == "concat" else 1)
            elif self.kind[node] == "elementwise":
                own = element_cost(node)
            else:
                found[node] = 0
                continue
            # what several nodes read is stored more often than not
            below = (i for i in set(node.inputs) if len(self.readers[i]) == 1)
            found[node] = own + sum(found.get(i, 0) for i in below)
        return found

    def _rows(self) -> dict[Node, int]:
        found: dict[Node, int] = {}
        for node in self.order:
            if self.kind[node] != "reduction":
                continue
            rows = row_count(node)
            dims = node.inputs[0].type.dims
            if rows is not None and (_product(dims[:rows]) > 1 or _product(dims) <= SHORT_ROW):
                found[node] = rows
        return found

    def _epilogue(self, heavy: Node) -> list[Node]:
        """Elementwise nodes of the heavy node's shape, as far as they come together in one again.

            conv -> sigmoid -> mul, conv -> mul     both: nothing else needs the convolution
        """
        region, done = [heavy], 0
        while len(region) <= EPILOGUE:
            leaving = [n for n in region
                       if n in self.outputs or any(r not in region for r in self.readers[n])]
            if leaving == region[-1:]:
                done = len(region)                # the last node alone leaves the region
            if not leaving or any(n in self.outputs for n in leaving):
                break
            nearest = min((r for n in leaving for r in self.readers[n] if r not in region),
                          key=self.place.__getitem__)
            if self.kind[nearest] != "elementwise" or nearest.type.shape != heavy.type.shape:
                break
            region.append(nearest)
        return region[1:done]

    def _tails(self) -> set[Node]:
        found: set[Node] = set()
        for node in self.order:
            if self.kind[node] == "elementwise" and node.type.layout == ROW and any(
                    i in found or (i in self.rows and i.type.rank == node.type.rank)
                    for i in node.inputs):
                found.add(node)
        return found


def _product(dims: tuple[int, ...]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n
