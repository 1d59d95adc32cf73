"""What can't be imported, gathered so that a user reads all of it at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from jitcl.errors import UnsupportedError
from jitcl.ir.graph import Origin


class Cut(UnsupportedError):
    """A node needs a value that data decides: once that value is there, it may be imported."""


@dataclass
class Problem:
    """One kind of thing that is not supported, and where it is met."""

    reason: str
    nodes: list[str] = field(default_factory=list)


@dataclass
class Problems:
    """Nodes that can't be imported, by op and reason."""

    found: dict[tuple[str, str, str], Problem] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, origin: Origin, domain: str, reason: str) -> None:
        names = self.found.setdefault((origin.op_type, domain, reason), Problem(reason)).nodes
        if origin.name not in names:
            names.append(origin.name)

    def listing(self, source: str) -> str:
        """The text of the UnsupportedError."""
        count = sum(len(p.nodes) for p in self.found.values())
        lines = [f"{source}: {count} node{'s are' if count > 1 else ' is'} not supported"]
        for (op_type, domain, reason), problem in self.found.items():
            names = ", ".join(f"'{n}'" for n in problem.nodes[:8])
            more = f" and {len(problem.nodes) - 8} more" if len(problem.nodes) > 8 else ""
            where = f" of domain '{domain}'" if domain else ""
            lines.append(
                f"  {op_type}{where}, {len(problem.nodes)} times: {names}{more}"
                + (f": {reason}" if reason else "")
            )
        lines.append(
            "  Replace these nodes when exporting, or declare the ops: see CONTRIBUTING.md.")
        return "\n".join(lines)


__all__ = ["Cut", "Problem", "Problems"]
