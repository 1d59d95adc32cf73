"""What a CPU kernel reads beside its template's own operands."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.templates.base import CpuHooks, Lines


def operands_of(lines: Lines, hooks: CpuHooks) -> list[Node]:
    """The operands that an epilogue's lines read, in the group's order."""
    return [node for node, name in hooks.names.items() if name in lines.reads]
