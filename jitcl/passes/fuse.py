"""Fusion: which nodes are stored and which are computed where they are read.

    conv -> add -> relu            one group: conv is the anchor, add and relu its epilogue
    max, sub, exp, sum, div        one row-wise group: the reductions run along the trailing axes
    of the root transpose, slice, cast         inlined into whoever reads them

Decided from the outputs back: a node is inlined into all the groups that read it, or stored. It
is stored where inlining would compute something dear again, or hide a heavy node from the
template that could claim it.

Groups never read each other in a circle: every member of a group is an ancestor of its root, and
what a group reads are roots that its members read; so each group reads only ancestors of its own
root, and the graph has no cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Group, is_literal
from jitcl.ir.sizes import hint, same
from jitcl.ir.types import ROW
from jitcl.passes.gates import gated
from jitcl.passes.regions import Regions, row_count
from jitcl.target import Target

ALONE = ("sort", "recurrence", "composite", "opaque")        # kinds that are their own group
BY_ADDRESS = ("matmul", "einsum", "matmul_integer")    # contractions that read views well
DEAR = 6                       # FLOPs of one element that are not repeated along an axis
AGAIN = 16                     # FLOPs of one element that may be computed again, all in all
LAUNCH = 20_000                # FLOPs that one more kernel costs
MAX_ROUTES = 6                 # different indices under which a kernel may read one inlined value
MAX_REDUCTIONS = 4             # in one row-wise group
FEW_ROWS = 8                   # of a product that decodes the weights that it reads


def fuse(graph: Graph, target: Target | None = None) -> list[Group]:
    """The graph's groups, each after those that it reads; small GPUs get small kernels."""
    return _Fuser(graph, target or Target("reference", "")).run()


@dataclass
class _Home:
    """A group under construction. `routes`: for each node, the different indices that it is
    computed at.
    """

    root: Node
    members: set[Node] = field(default_factory=set)      # without the root
    anchor: Node | None = None
    rows: int | None = None    # a row-wise group: how many leading axes its reductions keep
    reductions: int = 0
    routes: dict[Node, frozenset[int]] = field(default_factory=dict)
    reads: dict[Node, None] = field(default_factory=dict)    # operands so far, literals excepted

    def add(self, node: Node, routes: frozenset[int]) -> None:
        if node is not self.root:
            self.members.add(node)
        self.routes[node] = routes
        self.reads.pop(node, None)
        self.reads.update((i, None) for i in node.inputs if not is_literal(i))

    def reads_with(self, node: Node) -> int:
        """Buffers that the group would read with `node` inlined."""
        return len(self.reads) - 1 + len(
            {i for i in node.inputs if i not in self.reads and not is_literal(i)})


class _Fuser:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.target = target
        self.regions = Regions(graph)
        self.order = [n for n in graph.nodes if n.op not in ("input", "const")]
        self.readers = self.regions.readers
        self.kind = self.regions.kind
        self.outputs = {n for _, n in graph.outputs}
        self.homes: dict[Node, _Home] = {}
        self.inside: dict[Node, list[_Home]] = {}      # node -> the groups that compute it
        self.gates = {n.inputs[0] for n in self.order if target.gated_weights and gated(n)
                      and len(self.readers[n.inputs[0]]) == 1}
        self.through: dict[Node, bool] = {}    # what a contraction reads through -> no codes?
        self.tokens: dict[object, int] = {}

    def run(self) -> list[Group]:
        for node in reversed(self.order):
            homes = self._homes_of(node)
            if homes and node not in self.outputs and self._inline(node, homes):
                for home in homes:
                    home.add(node, self._routes(node, home))
                self.inside[node] = homes
            else:
                self._open(node)
        self._free_reshapes()
        return [Group(h.root, frozenset(h.members), h.anchor)
                for n in self.order if (h := self.homes.get(n)) is not None]

    def _open(self, node: Node) -> None:
        home = self.homes[node] = _Home(node)
        home.add(node, frozenset((self._token(node),)))
        if self.regions.heavy(node) or self.kind[node] == "reduction":
            home.anchor = node
        home.reductions = int(self.kind[node] == "reduction")
        self.inside[node] = [home]

    def _homes_of(self, node: Node) -> list[_Home]:
        found: dict[int, _Home] = {}
        for reader in self.readers[node]:
            for home in self.inside.get(reader, ()):
                found[id(home)] = home
        return list(found.values())

    # ---- the decision

    def _inline(self, node: Node, homes: list[_Home]) -> bool:
        kind = self.kind[node]
        if kind in ALONE or any(self._must_store(node, r) for r in self.readers[node]):
            return False
        if not all(self._room(node, h) and self._cheap_again(node, h) for h in homes):
            return False
        if len(homes) > 1:
            return self._repeatable(node, homes)
        home = homes[0]
        if node in self.gates:
            return True
        if self._is_alias(home.root):
            return False                   # the reshape then costs nothing: it is the stored buffer
        if self.regions.heavy(node):
            return self._claim(node, home)
        if kind == "reduction":
            return self._claim(node, home) or self._row_wise(node, home)
        if node in self.regions.epilogues and not self._pointwise_path(node, home):
            return False
        if node in self.regions.tails and not self._row_path(node, home):
            return False
        if node in self.regions.behind and self._belongs_to_reduction(node, home):
            return False
        return not self._dear_broadcast(node)

    def _belongs_to_reduction(self, node: Node, home: _Home) -> bool:
        """The end of a reduction that will be stored, read by larger nodes: computed once there."""
        reduction = self.regions.behind[node]
        if all(r.type.size == node.type.size for r in self.readers[node]):
            return False
        return reduction not in self.regions.rows or home.root.type.layout != ROW or (
            home.anchor is not None and self.regions.heavy(home.anchor))

    def _room(self, node: Node, home: _Home) -> bool:
        reads = home.reads_with(node)
        few = reads <= self.target.max_operands or reads <= len(home.reads)
        return few and len(home.members) < self.target.max_members

    def _must_store(self, node: Node, reader: Node) -> bool:
        """Readers that read each element many times want a buffer, unless the value costs an
        address only, or goes into their weights.
        """
        if node in self.gates or reader in self.gates:
            return reader in self.gates
        through = reader in self.through
        if through or self.kind[reader] == "contraction":
            numbers = self.through[reader] if through else self._reads_numbers(node, reader)
            view = self.regions.is_view(node) and (through or reader.op in BY_ADDRESS)
            if not view and (numbers or node not in self.regions.decoded):
                return True
            self.through[node] = numbers or self.through.get(node, False)
            return False
        return self.regions.heavy(reader) or self.kind[reader] in ALONE

    def _reads_numbers(self, operand: Node, product: Node) -> bool:
        """Whether weights of few bits are decoded to memory first: for templates of convolutions,
        and on tensor cores for products that read each element more often than FEW_ROWS."""
        if product.op == "conv":
            return self.target.kind == "opencl"
        if product.op != "matmul" or not self.target.tensor_cores:
            return False
        a, b = product.inputs
        other, axis = (a, -2) if operand is b else (b, -1)
        return other.type.rank > 1 and hint(other.type.shape[axis]) > FEW_ROWS

    def _is_alias(self, node: Node) -> bool:
        """A reshape that is stored by itself becomes another name of the buffer that it reads."""
        source = node.inputs[0] if node.op == "reshape" else None
        if source is None or source.op in ("input", "const") or node in self.outputs:
            return False
        return node.type.layout == source.type.layout == ROW

    def _repeatable(self, node: Node, homes: list[_Home]) -> bool:
        """Computed in several kernels: views, and cheap values made of one large operand.

        Of two, each kernel would read both: along a chain of sums they would grow more and more.
        """
        if self.regions.is_view(node) or node in self.regions.decoded:
            return True
        if self.kind[node] != "elementwise" or len(homes) > 4 or self._dear_broadcast(node):
            return False
        if node in self.regions.epilogues or node in self.regions.tails:
            return False
        large = {i for i in node.inputs if 2 * i.type.size > node.type.size and not is_literal(i)}
        read, made = sum(i.type.nbytes for i in large), node.type.nbytes
        saves = len(homes) * read <= read + (1 + len(homes)) * made
        return len(large) <= 1 and saves and (len(homes) - 1) * self.regions.cost[node] <= AGAIN

    def _claim(self, node: Node, home: _Home) -> bool:
        """A heavy node or reduction with an elementwise epilogue becomes its group's anchor."""
        if home.anchor is not None or home.rows is not None or not self._pointwise_path(node, home):
            return False
        home.anchor = node
        home.reductions += self.kind[node] == "reduction"
        return True

    def _pointwise_path(self, node: Node, home: _Home) -> bool:
        """Whether all between the node and the root is elementwise and of the node's shape."""
        return all(self.kind[m] == "elementwise" and m.type.shape == node.type.shape
                   for m in self._downstream(node, home))

    def _downstream(self, node: Node, home: _Home) -> list[Node]:
        """Members of the home that depend on `node`, the root included."""
        found: dict[Node, None] = {}
        stack = [node]
        while stack:
            for reader in self.readers[stack.pop()]:
                if reader not in found and (reader in home.members or reader is home.root):
                    found[reader] = None
                    stack.append(reader)
        return list(found)

    # ---- row-wise groups

    def _row_wise(self, node: Node, home: _Home) -> bool:
        """A reduction along the trailing axes of all that depends on it: computed once a row.

        Each reader is indexed by the row first, so the lowering places the reduction's loop
        outside the loops over the row's elements. Only in row-major order: elsewhere these are
        not the innermost.
        """
        rows = self.regions.rows.get(node)
        if rows is None or home.rows not in (None, rows) or home.reductions >= MAX_REDUCTIONS:
            return False
        if home.anchor is not None and self.regions.heavy(home.anchor):
            return False
        if home.root.type.layout != ROW or not self._keeps_rows(node, rows, home):
            return False
        home.rows = rows
        home.reductions += 1
        return True

    def _keeps_rows(self, node: Node, rows: int, home: _Home) -> bool:
        """Whether all downstream of a reduction is indexed by its rows, axis by axis.

        A reduction without keepdims leaves nodes of the rows' rank; those stay pointwise.
        """
        source = node.inputs[0].type
        row_dims, rank = source.dims[:rows], source.rank
        path = {node, *self._downstream(node, home)}
        for m in path - {node}:
            from_path = [i for i in m.inputs if i in path]
            if any(i.type.rank != from_path[0].type.rank for i in from_path):
                return False
            over_rows = from_path[0].type.rank == rows != rank
            if self.kind[m] == "reduction":
                if over_rows or row_count(m) != rows or m.inputs[0].type.dims[:rows] != row_dims:
                    return False
                continue
            pointwise = self.kind[m] == "elementwise" and m.type.dims[:rows] == row_dims
            if not pointwise or m.type.rank != (rows if over_rows else rank):
                return False
        return True

    def _row_path(self, node: Node, home: _Home) -> bool:
        """Whether the end of a row-wise computation reaches the root with nothing but such in
        between.
        """
        return all(self.kind[m] == "reduction" or (
            self.kind[m] == "elementwise" and m.type.rank == node.type.rank)
            for m in self._downstream(node, home))

    # ---- what inlining costs

    def _token(self, key: object) -> int:
        return self.tokens.setdefault(key, len(self.tokens))

    def _routes(self, node: Node, home: _Home) -> frozenset[int]:
        """The different indices that the home reads a node at, as numbers."""
        found: set[int] = set()
        for reader in set(self.readers[node]):
            for route in home.routes.get(reader, ()):
                if self.kind[reader] == "elementwise":
                    alike = reader.type.rank == node.type.rank and all(
                        map(same, reader.type.dims, node.type.dims))
                    found.add(route if alike else self._token((route, node.type.shape)))
                else:
                    found |= {self._token((route, reader, slot))
                              for slot, i in enumerate(reader.inputs) if i is node}
        return frozenset(found)

    def _cheap_again(self, node: Node, home: _Home) -> bool:
        """Whether computing the node at each of its routes costs less than storing it."""
        again = len(self._routes(node, home)) - 1
        if again == 0 or self.kind[node] == "reduction":
            return True                    # a row's reduction is one route or refused elsewhere
        if again >= MAX_ROUTES:
            return False
        cost = again * self.regions.cost[node]
        return cost <= AGAIN or cost * node.type.size <= LAUNCH

    def _dear_broadcast(self, node: Node) -> bool:
        """A dear value that a reader repeats over a broadcast axis."""
        cost = self.regions.cost[node]
        return any(cost > DEAR and r.type.size > 4 * node.type.size and cost * r.type.size > LAUNCH
                   for r in self.readers[node] if self.kind[r] in ("elementwise", "movement"))

    # ---- reshapes of stored buffers

    def _free_reshapes(self) -> None:
        """A reshape of a stored row-major buffer leaves its groups: it is that buffer by another
        name.
        """
        for node in self.order:
            if node in self.homes or not self._is_alias(node) or node.inputs[0] not in self.homes:
                continue
            for home in self.inside[node]:
                home.members.discard(node)
            self._open(node)
