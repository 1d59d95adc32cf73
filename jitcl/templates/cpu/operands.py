"""What a CPU kernel reads beside its template's own operands."""

from __future__ import annotations

from typing import Any

from jitcl.ir.graph import Node
from jitcl.templates.base import Lines


def operands_of(lines: Lines, hooks: Any) -> list[Node]:
    """The operands that an epilogue's lines read, in the group's order."""
    return [node for node, name in hooks.names.items() if name in lines.reads]
