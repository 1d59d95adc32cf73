"""Indices and the ranges that they must lie in: the check of a run's inputs, at import, and of what
is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Numbers or sizes: one for all elements, or one a column of the last axis.
Bounds = tuple[Any, ...]
NONE = float("-inf")        # as a lower bound: the column holds no indices


@dataclass(frozen=True)
class IndexCheck:
    """A tensor whose elements are indices of a node: low <= element <= high.

    source: an input of the plan; where `computed`, two outputs that hold the least and the greatest
    of the indices are called `lowest(source)` and `highest(source)`.
    """

    source: str
    low: Bounds
    high: Bounds
    node: str
    op_type: str
    computed: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The plan's outputs that are there for the check alone."""
        return (f"{self.source} lowest", f"{self.source} highest") if self.computed else ()


def outside(array: np.ndarray[Any, Any], low: Bounds, high: Bounds
            ) -> tuple[Any, tuple[int, ...], int] | None:
    """(value, its place, the bounds' number) of the first element that lies outside; None where
    there is none. Two reductions where all is well."""
    if not array.size:
        return None
    for column, (bottom, top) in enumerate(zip(low, high)):
        if bottom == NONE:
            continue
        part = array if len(low) == 1 else array[..., column]
        least, most = np.minimum.reduce(part, axis=None), np.maximum.reduce(part, axis=None)
        if bottom <= least.item() and most.item() <= top:
            continue
        wrong = next(i for i, v in enumerate(part.flat) if not bottom <= v.item() <= top)
        place = tuple(int(i) for i in np.unravel_index(wrong, part.shape))
        return part[place].item(), place + ((column,) if len(low) > 1 else ()), column
    return None


def range_text(low: Any, high: Any) -> str:
    """Bounds for people: negative ones count from the end."""
    if high < low:
        return "none, as there is nothing to index"
    if low < 0 and -low == high + 1:
        return f"0 to {high}, or {low} to -1 from the end"
    return f"{low} to {high}"


__all__ = ["NONE", "Bounds", "IndexCheck", "outside", "range_text"]
