"""The smallest set of layers which, computed as the model says, brings the outputs within the
tolerance: by bisection of the layers in the order of their own errors, then by leaving out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jitcl.accuracy.report import Cure, Layer
from jitcl.passes.options import Options

T = TypeVar("T")
Works = Callable[[Sequence[str]], bool]


def precision_with(base: str, names: Sequence[str]) -> dict[str, str]:
    """A configuration's precision, but for layers that are high."""
    options = Options(base)
    return {**dict.fromkeys(names, "high"),
            **{n: p for n, p in options.layers if n not in names}, "*": options.precision}


def find_cure(layers: Sequence[Layer], works: Works) -> Cure:
    """layers: of a configuration that errs, in the model's order. works: whether outputs are within
    the tolerance with these nodes high. No node of the result can be left out.
    """
    tried = 0

    def holds(names: Sequence[str]) -> bool:
        nonlocal tried
        tried += 1
        return works(names)

    order = list(dict.fromkeys(row.node for row in sorted(layers, key=_own, reverse=True)))
    if not holds(order):
        return Cure((), len(order), tried, False)
    kept = without_needless(fewest(order, holds), holds)
    place = {row.node: k for k, row in enumerate(layers)}
    return Cure(tuple(sorted(kept, key=place.__getitem__)), len(order), tried, True)


def fewest(order: list[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """The shortest beginning that holds, by bisection, where all of it does and nothing does not.
    """
    few, enough = 0, len(order)
    while enough - few > 1:
        middle = (few + enough) // 2
        if holds(order[:middle]):
            enough = middle
        else:
            few = middle
    return order[:enough]


def without_needless(names: list[str], holds: Works) -> list[str]:
    """A set of which nothing can be left out: larger parts are tried first (delta debugging)."""
    part = len(names) // 2
    while part:
        at = 0
        while at < len(names) and len(names) > 1:
            fewer = names[:at] + names[at + part:]
            if fewer and holds(fewer):
                names = fewer
            else:
                at += part
        part //= 2
    return names


def _own(row: Layer) -> float:
    return row.own.relative if row.own is not None else 0.0


__all__ = ["fewest", "find_cure", "precision_with", "without_needless"]
