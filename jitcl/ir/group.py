"""`Group`: the nodes of one kernel. Fusion makes groups, templates claim or lowering writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jitcl.forking import cached_property
from jitcl.ir.graph import Node, toposort


@dataclass(frozen=True)
class Flag:
    """Where a group tells that what it stores is infinite or NaN: flags[number] is 1 then."""

    flags: Node                              # i32, zeros before the first group runs
    number: int


@dataclass(frozen=True)
class Group:
    """`root` is stored, `inlined` nodes are computed where they are read.

    `anchor` is the heavy node (convolution, matmul, reduction) that a template may claim, if there
    is one; what lies between it and the root is its epilogue. `compute`: the type, f32 or f16,
    that f16 values are computed in; sums of them are f32 (of FLUSHED of ir/enclosure.py: f16).
    `kept`: why a group neither reads nor writes f16, where that was asked for; `in_f32`: why it
    computes nothing in half, where that was.
    """

    root: Node
    inlined: frozenset[Node]                 # without the root
    anchor: Node | None = None
    summed: bool = False                     # a reader sums its pixels, channel by channel
    compute: str = "f32"
    kept: str = field(default="", compare=False)
    in_f32: str = field(default="", compare=False)
    flag: Flag | None = None

    @property
    def parts(self) -> tuple[Group, ...]:
        """The groups that a template writes together: one, but of a Chain."""
        return (self,)

    @cached_property
    def members(self) -> list[Node]:
        """All nodes of the group, each after what it reads, the root last."""
        return toposort([self.root], self.inlined)

    @cached_property
    def operands(self) -> list[Node]:
        """What the group reads from buffers, in the order first read; not scalar constants."""
        found: dict[Node, None] = {}
        for node in self.members:
            for source in node.inputs:
                if source not in self.inlined and not is_literal(source):
                    found[source] = None
        return list(found)

    @property
    def pads_with_zeros(self) -> bool:
        """Whether what pads the root's rows has to be zeros, because a flag would tell of it."""
        return self.flag is not None and self.root.type.layout.kind == "rows"

    def lies(self, node: Node) -> bool:
        """Whether a node is in memory, or rows of what is."""
        while node in self.inlined and node.op in ("reshape", "transpose", "slice", "gather"):
            node = node.inputs[0]
        return node not in self.inlined

    def decodes(self, node: Node) -> bool:
        """Whether the group itself makes a node of constants alone: weights stored in few bits."""
        return node in self.inlined and all(
            i.op == "const" or self.decodes(i) for i in node.inputs)


@dataclass(frozen=True)
class Chain(Group):
    """Groups of which each is read by the next alone, that one template computes together: only the
    last one's root is stored.
    """

    parts: tuple[Group, ...] = ()

    @staticmethod
    def of(parts: tuple[Group, ...]) -> Chain:
        *_, last = parts
        nodes = {n for part in parts for n in (part.root, *part.inlined)}
        return Chain(last.root, frozenset(nodes - {last.root}), last.anchor, parts=parts,
                     kept=last.kept if all(p.kept for p in parts) else "", flag=last.flag)


@dataclass(frozen=True)
class Join(Group):
    """A concatenation that no kernel computes: its operands are written into its buffer."""


@dataclass(frozen=True)
class Watched:
    """What an output that is there for the guard says of what a group stores, in its element
    `place`: a flag, the largest finite magnitude, or how many elements are not finite. group: its
    number; nodes: of the model, in it, with op types; result: which of the graph's outputs the
    group stores, or -1.
    """

    output: str
    group: int
    nodes: tuple[tuple[str, str], ...]
    result: int = -1
    place: int = 0


def with_sums_marked(groups: Sequence[Group]) -> list[Group]:
    """The groups, each of which knows whether its pixels are summed."""
    summed = {n for group in groups if _sums_pixels(group.anchor) for n in group.operands}
    return [replace(group, summed=True) if group.root in summed else group for group in groups]


def _sums_pixels(node: Node | None) -> bool:
    """Whether it reduces all axes behind the channels."""
    if node is None or not node.op.startswith("reduce_") or node.inputs[0].type.rank < 3:
        return False
    rank = node.inputs[0].type.rank
    axes = {int(a) % rank for a in node.attr("axes") or ()} or set(range(rank))
    return set(range(2, rank)) <= axes


def is_literal(node: Node) -> bool:
    """Constants of one element are written into the code."""
    return node.op == "const" and node.type.size == 1
