"""What a CPU kernel reads beside its template's own operands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jitcl.ir.graph import Node


def operands_of(lines: Sequence[str], hooks: Any) -> list[Node]:
    """The operands that an epilogue's lines name, in the group's order."""
    read = set(re.findall(r"\w+", "\n".join(lines)))
    return [node for node, name in hooks.names.items() if name in read]


def alike(lines: Sequence[str]) -> list[str]:
    """Names of buffers that vector epilogues read where they store: at `yo`."""
    return sorted(set(re.findall(r"load\((\w+), yo,", "\n".join(lines))))
