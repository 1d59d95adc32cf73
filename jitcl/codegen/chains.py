"""Groups that one template computes together, so that what is between them is never stored.

    scores = matmul(q, k)              one Chain, stored: y
    p = softmax(scores)         =>     (templates/attention_cpu)
    y = matmul(p, v)

Without such a template the groups stay as they are: each writes what the next reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jitcl.codegen.writer import Writer
from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Chain, Group
from jitcl.templates import CPU_CHAINS


def joined(graph: Graph, groups: Sequence[Group], writer: Writer) -> list[Group]:
    """The groups, chains in the place of the last of theirs."""
    possible = writer.templates and writer.target.packed_weights    # else `unpack` takes them apart
    if not possible or writer.language != "numba":
        return list(groups)
    stored = {group.root: group for group in groups}
    readers = Counter(n for group in groups for n in group.operands)
    readers.update(n for _, n in graph.outputs)
    chains: dict[Group, Chain] = {}
    for group in groups:
        chain = next(_chains(group, stored, readers, writer), None)
        if chain is not None:
            chains[group] = chain
    gone = {part for chain in chains.values() for part in chain.parts[:-1]}
    return [chains.get(group, group) for group in groups if group not in gone]


def _chains(last: Group, stored: dict[Node, Group], readers: Counter[Node],
            writer: Writer) -> Iterator[Chain]:
    """The chains that end with this group and that a template writes."""
    for length in {t.length for t in CPU_CHAINS}:
        parts = _parts(last, length, stored, readers)
        chain = Chain.of(parts) if parts else None
        if chain is not None and writer.chain(chain) is not None:
            yield chain


def _parts(last: Group, length: int, stored: dict[Node, Group],
           readers: Counter[Node]) -> tuple[Group, ...]:
    """`length` groups up to the last; each is what the next one's anchor reads first, or all that
    it reads. () where there are none, or where others read what is between.
    """
    parts = [last]
    while len(parts) < length:
        source = _source(parts[0])
        if source is None or source not in stored or readers[source] != 1:
            return ()
        parts.insert(0, stored[source])
    return tuple(parts)


def _source(group: Group) -> Node | None:
    """What a group's product reads first, or its only operand."""
    if group.anchor is not None and group.anchor.op == "matmul":
        return group.anchor.inputs[0]
    return group.operands[0] if len(group.operands) == 1 else None
