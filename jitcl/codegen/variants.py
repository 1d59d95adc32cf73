"""Which variant of a group's kernels a driver gets: the first of target/variants.py
none of whose kernels is known to fail there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jitcl import dtypes
from jitcl.codegen.plan import KernelSource
from jitcl.codegen.writer import GroupKernels, Memo, Templated, Writer
from jitcl.errors import BuildError
from jitcl.ir.graph import Node, Origin, const
from jitcl.ir.group import Chain, Group
from jitcl.ops.builder import reference
from jitcl.target import Target
from jitcl.target.variants import VARIANTS, Variant
from jitcl.templates.base import FIRST, Chooser

RESOURCES = re.compile("OUT_OF_RESOURCES|INVALID_WORK_(GROUP|ITEM)")      # of launches
GROWTH = 8                     # unpacked weights are at most this many times as large: int4 as f32
SMALL_BYTES = 64 << 10         # results that may be larger than that
SHOWN = 160                    # characters of a signature in an error or a comment


class Faults(Protocol):
    """The part of devices/faults.FaultDatabase that this asks."""

    def rejects(self, entry: str, features: frozenset[str]) -> str: ...


@dataclass(frozen=True)
class GroupVariant:
    """A group's kernels in one variant; several parts where it is split. `why`: what speaks
    against the variants above.
    """

    variant: Variant
    parts: tuple[GroupKernels, ...]
    why: str = ""


@dataclass(frozen=True)
class Refusal:
    """A kernel that must not be tried."""

    variant: Variant
    kernel: str
    signature: str


@dataclass
class VariantChooser:
    """Chooses for each group; `faults` None keeps to the first variant, `host` is the Target of
    the CPU path where this device can hand groups to it, `chooser` which candidates of templates
    are taken.
    """

    target: Target
    templates: bool = True
    faults: Faults | None = None
    host: Target | None = None
    chooser: Chooser = FIRST
    unpacked: dict[Node, Node] = field(default_factory=dict)  # nodes of constants alone -> values
    tried: dict[tuple[Writer, Chain], Templated | None] = field(default_factory=dict)

    def choose(self, group: Group, name: str, origin: Origin | None) -> GroupVariant:
        """The group on its first variant that nothing speaks against. Raises BuildError where there
        is none.
        """
        refusals: list[Refusal] = []
        found = self._first(group, name, refusals)
        if found is None:
            raise BuildError(no_variant(group, origin, refusals, self.target))
        return found

    def joins(self, chain: Chain) -> bool:
        """Whether there is such a variant of a chain: else each of its groups has one of its own.
        """
        return self._first(chain, "chain", []) is not None

    def _first(self, group: Group, name: str, refusals: list[Refusal]) -> GroupVariant | None:
        memo: Memo = {}
        for variant, writer in self._variants(refusals):
            parts = tuple(self._write(variant, writer, group, name, memo))
            refused = self._refused(variant, parts)
            if refused is not None:
                refusals.append(refused)
            elif parts:
                return GroupVariant(variant, parts, refusals[0].signature if refusals else "")
        return None

    def _variants(self, refusals: Sequence[Refusal]) -> Iterator[tuple[Variant, Writer]]:
        """The variants that differ from those above them, each with what writes its kernels. Where
        launches were refused so far, smaller groups are declared: most kernels' texts don't depend
        on their group, and the same kernel is not tried twice.
        """
        seen = set()
        for variant in VARIANTS if self.faults is not None else VARIANTS[:1]:
            exact = "max_work_group" in variant.caps and any(
                RESOURCES.search(r.signature) for r in refusals)
            writer = self._writer(variant, exact)
            if writer is not None and (writer, variant.split) not in seen:
                seen.add((writer, variant.split))
                yield variant, writer

    def _writer(self, variant: Variant, exact: bool) -> Writer | None:
        if variant.cpu:
            return None if self.host is None else Writer(
                self.host, self.templates, chooser=self.chooser)
        target = variant.apply(self.target)
        return Writer(target, self.templates and not variant.loops_only, exact, self.chooser)

    def _write(self, variant: Variant, writer: Writer, group: Group, name: str,
               memo: Memo) -> Iterator[GroupKernels]:
        """The group's kernels; of a chain none where not one template of the device writes it."""
        if isinstance(group, Chain):
            on_device = writer.target.packed_weights and not variant.cpu    # else `unpack`s apart
            if (writer, group) not in self.tried:       # `joins` asks before it is to be written
                self.tried[writer, group] = writer.templated(group) if on_device else None
            found = self.tried[writer, group]
            yield from () if found is None else (writer.kernels(group, name, found),)
            return
        if not writer.target.packed_weights:
            group = unpack(group, self.unpacked)
        if not variant.split:
            yield writer.write(group, name, memo)
            return
        for k, node in enumerate(group.members):
            whole = dataclasses.replace(group, root=node, inlined=frozenset(),
                                        anchor=node if node is group.anchor else None,
                                        flag=group.flag if node is group.root else None)
            if node is group.root or node.type.size:
                part = name if node is group.root else f"{name}_{node.op}_{k}"
                yield writer.write(whole, part, memo)

    def _refused(self, variant: Variant, parts: tuple[GroupKernels, ...]) -> Refusal | None:
        """The first kernel that is known to fail."""
        if self.faults is None:
            return None
        for kernel in (launch.kernel for part in parts for launch in part.launches):
            signature = self.faults.rejects(kernel.entry, features(kernel))
            if signature:
                return Refusal(variant, kernel.entry, one_line(signature))
        return None


def features(kernel: KernelSource) -> frozenset[str]:
    """What a kernel uses of a driver's compiler; nothing, if that compiler never sees it."""
    return kernel.features


def unpack(group: Group, values: dict[Node, Node]) -> Group:
    """The group with what it computes from constants alone computed now (weights that lie packed),
    as far as that does not fill memory. `values` keeps what was computed.
    """
    new: dict[Node, Node] = {}
    for node in group.members:
        inputs = tuple(new.get(i, i) for i in node.inputs)
        changed = node if inputs == node.inputs else node.with_inputs(inputs)
        new[node] = _value(changed, values) if _is_weight(changed) else changed
    if all(a is b for a, b in new.items()):
        return group
    root, anchor = new[group.root], new.get(group.anchor or group.root)
    if root.op == "const":                       # stored for several readers: a copy
        dtype = group.root.type.dtype
        return Group(Node.make("cast", (root,), {"to": dtype}, type=group.root.type), frozenset(),
                     flag=group.flag)
    members = {n for n in new.values() if n.op != "const"}
    keeps_anchor = group.anchor is not None and anchor in members
    return dataclasses.replace(group, root=root, inlined=frozenset(_below(root, members)),
                               anchor=anchor if keeps_anchor else None)


def _value(node: Node, values: dict[Node, Node]) -> Node:
    """The constant that a node of constants is."""
    if node not in values:
        values[node] = const(reference(node, *(i.data for i in node.inputs)), node.type.dtype)
    return values[node]


def _is_weight(node: Node) -> bool:
    """Whether a node depends on constants alone, and is not much larger than they are."""
    if not node.inputs or any(i.op != "const" for i in node.inputs):
        return False
    made = node.type.size * dtypes.itemsize(node.type.dtype)
    return made <= GROWTH * sum(i.type.nbytes for i in node.inputs) + SMALL_BYTES


def _below(root: Node, members: set[Node]) -> set[Node]:
    """The members that the root is still computed from."""
    found: set[Node] = set()
    stack = [root]
    while stack:
        for source in stack.pop().inputs:
            if source in members and source not in found:
                found.add(source)
                stack.append(source)
    return found


def one_line(text: str) -> str:
    """The start of a signature."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."


def no_variant(group: Group, origin: Origin | None, refusals: list[Refusal],
               target: Target) -> str:
    """The message where every variant has failed."""
    node = group.anchor or group.root
    what = f"node '{origin.name}' ({origin.op_type})" if origin else f"op '{node.op}' {node.type}"
    known = {r.kernel: r for r in reversed(refusals)}.values()     # each as it was first written
    tried = [f"  written {r.variant.says}: {r.kernel}: {r.signature}" for r in reversed(known)]
    driver = f"the driver of {target.name}" + (f" ({target.driver})" if target.driver else "")
    return "\n".join([
        f"{what}: {driver} fails on every variant of its kernels", *tried,
        "  Use device='cpu', or another driver. `jitcl cache retry` forgets what failed, so that "
        "all of it is tried again."])
