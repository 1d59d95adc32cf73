"""Fusion: which nodes are stored and which are computed where they are read.

    conv -> add -> relu            one group: conv is the anchor, add and relu its epilogue
    max, sub, exp, sum, div        one row-wise group: the reductions run along the trailing axes of the root
    transpose, slice, cast         inlined into whoever reads them

Decided from the outputs back: a node that all its readers' groups agree on is inlined there unless that would
recompute something dear, or hide a heavy node from the template that could claim it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Group
from jitcl.ops.builder import lookup
from jitcl.ops.cost import element_cost

HEAVY = ("contraction", "window", "scan", "sort")
DEAR = 6                       # FLOPs of one element above which a value is not computed twice
MAX_MEMBERS = 48
MAX_OPERANDS = 12              # kernel arguments; drivers of small GPUs fail on many


def fuse(graph: Graph) -> list[Group]:
    """The graph's groups, each after those that it reads."""
    return _Fuser(graph).run()


@dataclass
class _Home:
    """A group under construction."""

    root: Node
    members: set[Node] = field(default_factory=set)
    anchor: Node | None = None
    rows: int | None = None    # a row-wise group: how many leading axes of the root its reductions keep


class _Fuser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = [n for n in graph.nodes if n.op not in ("input", "const")]
        self.readers = graph.readers()
        self.outputs = {n for _, n in graph.outputs}
        self.homes: dict[Node, _Home] = {}
        self.inside: dict[Node, list[_Home]] = {}      # node -> the groups that compute it
        self.kind = {n: lookup(n.op).kind for n in self.order}
        self.epilogue = self._epilogues()

    def _epilogues(self) -> set[Node]:
        """Nodes that are heavy, or elementwise of the same shape over a heavy node that only they read."""
        found: set[Node] = set()
        for node in self.order:
            if self.kind[node] in HEAVY:
                found.add(node)
            elif self.kind[node] == "elementwise" and any(
                    i in found and len(self.readers[i]) == 1 and i.type.shape == node.type.shape
                    for i in node.inputs):
                found.add(node)
        return found

    def run(self) -> list[Group]:
        for node in reversed(self.order):
            homes = self._homes_of(node)
            if homes and node not in self.outputs and self._inline(node, homes):
                for home in homes:
                    home.members.add(node)
                self.inside[node] = homes
            else:
                self._open(node)
        return [Group(h.root, frozenset(h.members), h.anchor)
                for n in self.order if (h := self.homes.get(n)) is not None]

    def _open(self, node: Node) -> None:
        home = self.homes[node] = _Home(node)
        if self.kind[node] in HEAVY or self.kind[node] == "reduction":
            home.anchor = node
        self.inside[node] = [home]

    def _homes_of(self, node: Node) -> list[_Home]:
        found: dict[int, _Home] = {}
        for reader in self.readers[node]:
            for home in self.inside.get(reader, ()):
                found[id(home)] = home
        return list(found.values())

    # ---- the decision

    def _inline(self, node: Node, homes: list[_Home]) -> bool:
        if any(len(h.members) >= MAX_MEMBERS or self._operands(h, node) > MAX_OPERANDS for h in homes):
            return False
        kind = self.kind[node]
        if kind == "sort" or any(self._must_store(node, r) for r in self.readers[node]):
            return False
        if len(homes) > 1:
            return kind == "movement" and self._views_only(node)
        home = homes[0]
        if kind in HEAVY:
            return self._claim(node, home)
        if kind == "reduction":
            return self._claim(node, home) or self._row_wise(node, home)
        if kind == "elementwise" and node in self.epilogue:
            return self._pointwise_path(node, home)
        return not self._dear_broadcast(node)

    def _operands(self, home: _Home, node: Node) -> int:
        """Buffers that the group would read with `node` inlined."""
        members = {*home.members, home.root, node}
        return len({i for m in members for i in m.inputs if i not in members and i.type.size != 1})

    def _must_store(self, node: Node, reader: Node) -> bool:
        """Readers that read each element many times want a buffer, unless the value costs an address only."""
        kind = self.kind[reader]
        if kind == "contraction":
            return not (self.kind[node] == "movement" and self._views_only(node))
        return kind in ("window", "scan", "sort")

    def _views_only(self, node: Node) -> bool:
        """Movement of one buffer, down to something stored: costs no more than another address."""
        while self.kind.get(node) == "movement" and len(node.inputs) == 1:
            node = node.inputs[0]
        return node.op in ("input", "const") or self.kind[node] != "movement"

    def _claim(self, node: Node, home: _Home) -> bool:
        """A heavy node with an elementwise epilogue becomes its group's anchor."""
        if home.anchor is not None or home.rows is not None or len(self.readers[node]) != 1:
            return False
        if not self._pointwise_path(node, home):
            return False
        home.anchor = node
        return True

    def _pointwise_path(self, node: Node, home: _Home) -> bool:
        """Whether all between the node and the root is elementwise and of the node's shape."""
        seen = {node}
        stack = [r for r in self.readers[node]]
        while stack:
            reader = stack.pop()
            if reader in seen:
                continue
            seen.add(reader)
            if self.kind[reader] != "elementwise" or reader.type.shape != node.type.shape:
                return False
            if reader is not home.root:
                stack.extend(self.readers[reader])
        return True

    def _row_wise(self, node: Node, home: _Home) -> bool:
        """A reduction along the trailing axes of the root, read by pointwise nodes: computed once a row.

        Rows run in parallel, so one row alone is not worth fusing when it is long.
        """
        root = home.root
        if home.anchor is not None and home.anchor is not root and self.kind[home.anchor] in HEAVY:
            return False
        if home.anchor is root and self.kind[root] in HEAVY:
            return False
        shape, full = node.type.dims, root.type.dims
        if self.kind[root] == "reduction":
            full = root.inputs[0].type.dims
        if len(shape) != len(full):
            return False
        rows = next((a for a, (d, f) in enumerate(zip(shape, full)) if d != f), len(full))
        if shape != full[:rows] + (1,) * (len(full) - rows) or home.rows not in (None, rows):
            return False
        if _product(full[:rows]) < 2 and _product(full) > 4096:
            return False
        source = node.inputs[0].type.dims
        if len(source) != len(full) or source[:rows] != full[:rows]:
            return False
        if any(self.kind[m] not in ("elementwise", "reduction") for m in (*home.members, root)):
            return False
        home.rows = rows
        return True

    def _dear_broadcast(self, node: Node) -> bool:
        """A dear value that its reader repeats over a broadcast axis, or that is read from several places."""
        if self.kind[node] != "elementwise":
            return False
        cost = element_cost(node)
        return any(cost > DEAR and r.type.size > 4 * node.type.size for r in self.readers[node]
                   if self.kind[r] == "elementwise" or self.kind[r] == "movement")


def _product(dims: tuple[int, ...]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n
