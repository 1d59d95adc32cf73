"""`Quirk`: one row of the table of driver faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitcl.target.driver import When
from jitcl.target.target import Target


@dataclass(frozen=True)
class Quirk:
    """One fault, and how it changes a Target: `effect` sets fields, `caps` lowers numbers that are
    larger, `adds` appends to tuples.
    """

    id: str
    when: When
    why: str
    seen_on: str
    links: tuple[str, ...] = ()                  # project and change, issue or file
    effect: Mapping[str, Any] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    adds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reproducer: str = ""                         # a file of the project's tests

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of Target that the row touches, with what it does to them."""
        return {**self.effect, **{k: f"<= {v}" for k, v in self.caps.items()},
                **{k: f"+ {' '.join(v)}" for k, v in self.adds.items()}}

    def apply(self, target: Target) -> Target:
        """The target as it is to be used where the row holds."""
        changed = dict(self.effect)
        changed |= {k: min(getattr(target, k), v) for k, v in self.caps.items()}
        for name, items in self.adds.items():
            had = getattr(target, name)
            changed[name] = had + tuple(i for i in items if i not in had)
        return dataclasses.replace(target, **changed)
