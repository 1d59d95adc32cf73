"""Which function draws the nodes of which op."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.drawing import Drawer

Draws = Callable[[Drawer, str], object]
DRAWS: dict[str, Draws] = {}            # op type -> function that adds a node of it


def draws(*ops: str) -> Callable[[Draws], Draws]:
    """`fn(d, op)` adds a node of one of these ops to the drawn graph."""
    def enter(fn: Draws) -> Draws:
        for op in " ".join(ops).split():
            assert op not in DRAWS, f"{op} is drawn in two places"
            DRAWS[op] = fn
        return fn
    return enter
