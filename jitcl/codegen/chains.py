"""Groups that one template computes together, so that what is between them is never stored.

    scores = matmul(q, k)              one Chain, stored: y
    p = softmax(scores)         =>     (templates/attention_*)
    y = matmul(p, v)

Where a template reads keys and values as they lie, it reads those of a cache and new ones without a
copy of both; where its groups load few queries, each once, these are turned there.

    h = norm(x)                        one Chain, stored: y
    a = matmul(h, v)            =>     (templates/gemv_opencl)
    y = mul(silu(a), matmul(h, w))

Without such a template, or where its kernels fail on the driver, the groups stay as they are: each
writes what the next reads, in its own variant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from jitcl.codegen.variants import VariantChooser
from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Chain, Group
from jitcl.ops.builder import lookup
from jitcl.templates import CPU_TEMPLATES, OPENCL_TEMPLATES

LENGTHS = sorted({*chain(*(t.lengths for t in CPU_TEMPLATES)),
                  *chain(*(t.lengths for t in OPENCL_TEMPLATES))} - {1}, reverse=True)


def joined(graph: Graph, groups: Sequence[Group], variants: VariantChooser) -> list[Group]:
    """The groups, chains in the place of the last of theirs."""
    if not variants.templates:
        return list(groups)
    stored = {group.root: group for group in groups}
    readers = Counter(n for group in groups for n in group.operands)
    readers.update(n for _, n in graph.outputs)
    chains: dict[Node, Chain] = {}
    gone: set[Node] = set()
    for group in groups:
        found = next(_chains(group, stored, readers, variants), None)
        if found is not None:
            chains[group.root] = found
            gone |= found.inlined
    return [chains.get(group.root, group) for group in groups if group.root not in gone]


def _chains(last: Group, stored: dict[Node, Group], readers: Counter[Node],
            variants: VariantChooser) -> Iterator[Chain]:
    """The chains that end with this group and that a template writes: first those that read
    through what only moves its operands, and make queries where they load them."""
    for length in LENGTHS:
        parts = _parts(last, length, stored, readers)
        through = tuple(_through(part, stored, readers) for part in parts)
        made = tuple(_with_left(part, stored, readers) for part in through[:1])
        for found in dict.fromkeys(((*made, *through[1:]), through, parts)):
            if found and variants.joins(whole := Chain.of(found)):
                yield whole
    for found in _products(last, stored, readers):
        if variants.joins(whole := Chain.of(found)):
            yield whole


def _through(group: Group, stored: dict[Node, Group], readers: Counter[Node]) -> Group:
    """The group with the concatenations within that only its product reads."""
    anchor = group.anchor
    found = [stored[n] for n in group.operands if n in stored and readers[n] == 1 and any(
        m.op == "concat" for m in stored[n].members)]
    moved = {m for g in found if all(_moves(m) for m in g.members) for m in g.members}
    return replace(group, inlined=group.inlined | moved) if moved and anchor else group


def _with_left(group: Group, stored: dict[Node, Group], readers: Counter[Node]) -> Group:
    """The group with what makes its product's first operand element by element for it alone."""
    node = _left(group)
    if node is None:
        return group
    made: set[Node] = set()
    while True:
        while node in group.inlined and lookup(node.op).kind == "movement":
            node = node.inputs[0]
        found = stored.get(node)
        if found is None or readers[node] != 1 or not all(
                _moves(m) or lookup(m.op).kind == "elementwise" for m in found.members):
            return group                    # no more than other names
        made.update(found.members)
        if found.inlined or found.root.op != "reshape":     # which is another name of a buffer
            return replace(group, inlined=group.inlined | made)
        node = found.root.inputs[0]


def _moves(node: Node) -> bool:
    return node.op == "cast" or lookup(node.op).kind == "movement"


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


def _products(last: Group, stored: dict[Node, Group], readers: Counter[Node]
              ) -> Iterator[tuple[Group, ...]]:
    """Two products of the same operand, of which the last group reads the other, behind what they
    alone read; and without that."""
    beside = [stored[n] for n in last.operands if n in stored and readers[n] == 1
              and _left(stored[n]) is not None and _left(stored[n]) is _left(last)]
    for other in beside[:1]:
        read = _left(last)
        if read in stored and readers[read] == 2:
            yield stored[read], other, last
        yield other, last


def _left(group: Group) -> Node | None:
    """What a group's product reads first."""
    return group.anchor.inputs[0] if group.anchor and group.anchor.op == "matmul" else None


def _source(group: Group) -> Node | None:
    """What a group's product reads first, or its only operand."""
    return _left(group) or (group.operands[0] if len(group.operands) == 1 else None)
