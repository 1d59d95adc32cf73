"""Which dimensions of what is fed are symbols of a plan for many shapes, and which are numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitcl import dtypes
from jitcl.ir.sizes import HIGHEST, LOWEST, Space, hint
from jitcl.ir.types import Sym
from jitcl.runtime.source import Tensor

PART = re.compile(r"\s*([+*-])?\s*([A-Za-z_]\w*|\d+)")
VALUE = "\0value"               # ends the key under which an input's elements stand among shapes

Dims = tuple[int, ...]


def pattern_of(sized: Mapping[str, Dims]) -> str:
    """What of the inputs' shapes is a number and what a symbol."""
    return json.dumps({n: [str(d) for d in dims] for n, dims in sorted(sized.items())})


def elements(t: Tensor, count: int) -> Tensor:
    """An input's elements as dimensions: whole numbers may be symbols."""
    whole = dtypes.is_int(t.dtype)
    dims = tuple(Sym(f"{t.name}[{k if t.shape else ''}]") if whole else 0 for k in range(count))
    return Tensor(t.name + VALUE, t.dtype, dims)


def symbolic(space: Space, inputs: Sequence[Tensor], shapes: Mapping[str, Dims],
             changed: set[tuple[str, int]]) -> dict[str, Dims]:
    """The shapes with symbols for what has changed between runs: one for each name that the model
    has for a dimension, sums of these for names that are sums ("past + new"). Names are hints:
    dimensions of one name that differ are symbols of their own.
    """
    known: dict[str, int] = {}
    found: dict[tuple[str, int], int] = {}
    places = [(t.name, axis, dim) for t in inputs if t.name in shapes
              for axis, dim in enumerate(t.shape)]
    sizes: dict[Any, set[int]] = {}
    for name, axis, dim in places:
        sizes.setdefault(dim, set()).add(shapes[name][axis])
    for name, axis, dim in places:
        value = shapes[name][axis]
        if isinstance(dim, Sym) and dim.name.isidentifier() and len(sizes[dim]) == 1:
            moves = any((n, a) in changed for n, a, d in places if d == dim)
            fixed = not moves or value < LOWEST
            found[name, axis] = known[dim.name] = value if fixed else space.symbol(dim.name, value)
    for name, axis, dim in places:
        value = shapes[name][axis]
        if (name, axis) in found:
            continue
        found[name, axis] = value
        if isinstance(dim, Sym) and (name, axis) in changed and LOWEST <= value <= HIGHEST:
            total = expression(dim.name, known)
            agrees = total is not None and hint(total) == value
            alone = dim.name if len(sizes[dim]) == 1 else f"{dim.name} of {name}.{axis}"
            found[name, axis] = (
                total if agrees and total is not None else space.symbol(alone, value))
    return {n: tuple(found.get((n, a), d) for a, d in enumerate(dims))
            for n, dims in shapes.items()}


def expression(text: str, known: Mapping[str, int]) -> int | None:
    """The value of a dimension's name that is a sum or product of other names: "past + 2 * new";
    None where it is no such thing.
    """
    total, term, sign, place = 0, 1, 1, 0
    while place < len(text.rstrip()):
        part = PART.match(text, place)
        if part is None or (part[2] not in known and not part[2].isdigit()):
            return None
        value = known[part[2]] if part[2] in known else int(part[2])
        if part[1] == "*" and place:
            term = term * value
        elif (part[1] is None) == (place == 0):
            total = total + term * sign if place else 0
            term, sign = value, -1 if part[1] == "-" else 1
        else:
            return None
        place = part.end()
    return total + term * sign if place else None


__all__ = ["VALUE", "Dims", "elements", "expression", "pattern_of", "symbolic"]
