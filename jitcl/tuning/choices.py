"""The choosers that a search, and what it found, are to code generation.

A group is known by its text, so that equal layers share what was found of one of them:

    x0: f32[1,64,56,56]
    x1: const f32[64,64,3,3]
    %0 = conv(x0, x1) group=1 .. : f32[1,64,56,56]
    %1 = relu(%0) : f32[1,64,56,56]
    stores %1, anchor %0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.templates.base import M
from jitcl.tuning.found import Choice


@dataclass(frozen=True)
class Only:
    """Writes groups in one way."""

    choice: Choice

    def choose(self, template: str, group: Group, candidates: tuple[M, ...], /) -> M | None:
        return _same(self.choice, template, candidates)


@dataclass(frozen=True)
class Chosen:
    """Writes groups as was found to be fastest; others as their templates hold for best."""

    choices: Mapping[str, Choice]           # text of a group -> how it is written

    def choose(self, template: str, group: Group, candidates: tuple[M, ...], /) -> M | None:
        choice = self.choices.get(described(group)) if self.choices else None
        if choice is None:
            return candidates[0]
        if choice.template != template:
            return None
        return _same(choice, template, candidates) or candidates[0]     # variants offer others


def _same(choice: Choice, template: str, candidates: tuple[M, ...]) -> M | None:
    return next((c for c in candidates if Choice.of(template, c) == choice), None)


def described(group: Group) -> str:
    """A group as text: all that its kernels depend on but its weights' values."""
    names = {n: f"x{k}" for k, n in enumerate(group.operands)}
    lines = [f"{name}: {'const ' if n.op == 'const' else ''}{n.type}" for n, name in names.items()]
    for k, node in enumerate(group.members):
        read = ", ".join(names.get(i) or _literal(i) for i in node.inputs)
        attributes = "".join(f" {name}={value!r}" for name, value in node.attrs)
        names[node] = f"%{k}"
        lines.append(f"%{k} = {node.op}({read}){attributes} : {node.type}")
    anchor = names[group.anchor] if group.anchor is not None else "none"
    lines.append(f"stores {names[group.root]}, anchor {anchor}, computes {group.compute}"
                 + (", summed" if group.summed else ""))
    return "\n".join(lines)


def _literal(node: Node) -> str:
    return f"{node.type} {node.data.reshape(-1)[0]!r}"
