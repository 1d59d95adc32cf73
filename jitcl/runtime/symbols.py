"""Which dimensions of what is fed are symbols of a plan for many shapes, and which are numbers."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jitcl import dtypes
from jitcl.ir.sizes import HIGHEST, LOWEST, Space
from jitcl.ir.types import Sym
from jitcl.runtime.source import Tensor

FIRST = (3, 5, 7, 11, 13, 17, 19, 23)                       # hints of leading dimensions,
OTHERS = (211, 223, 227, 229, 233, 239, 241, 251)           # of others: like no number of a model
NAMED = re.compile(r"(?:(\d+) \* )?([A-Za-z_]\w*)")          # "past", "256 * blocks"
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


class Manner(enum.Enum):
    """Which hints symbols have. What is made of hints that are always the same is so, too, in
    whatever order shapes come."""

    APART = enum.auto()         # one of its own for each symbol; 1 is a symbol
    ALIKE = enum.auto()         # one for each number: what is equal now may have to be
    NOW = enum.auto()           # the number that it is now
    ANY = enum.auto()           # the same, but 2 for less, in a general space: 0 and 1 are symbols

    def hint(self, space: Space, value: int, leading: bool) -> int:
        """Of the next symbol of a space."""
        if self in (Manner.NOW, Manner.ANY):
            return max(value, 2)
        taken = {a.hint: space.now[a.symbol] for a in space.atoms if a.symbol}
        alike = [h for h, v in taken.items() if v == value and self is Manner.ALIKE]
        free = [h for h in (FIRST if leading else OTHERS) if h not in taken]
        return (alike or free or [value])[0]


def symbolic(space: Space, inputs: Sequence[Tensor], shapes: Mapping[str, Dims],
             changed: Collection[tuple[str, int]], fixed: Collection[str] = (),
             manner: Manner = Manner.NOW) -> dict[str, Dims]:
    """The shapes with symbols for what changes between runs: one for each name that the model
    has for a dimension, multiples and sums of these for names that are such ("256 * blocks", "past
    + new"). Names are hints: dimensions of one name that differ, or are no such multiples, are
    symbols of their own. fixed: symbols that are numbers.
    """
    def least(name: str) -> int:
        if name.endswith(VALUE):
            return LOWEST + 1
        return {Manner.APART: LOWEST, Manner.ANY: 0}.get(manner, LOWEST + 1)

    def size(symbol: str, value: int, name: str, axis: int, few: bool = False) -> int:
        if symbol in fixed:
            return value
        leading = few or axis == 0 and len(shapes[name]) > 1 and not name.endswith(VALUE)
        return space.symbol(symbol, manner.hint(space, value, leading), value)

    known: dict[str, int] = {}
    found: dict[tuple[str, int], int] = {}
    places = [(t.name, axis, dim) for t in inputs if t.name in shapes
              for axis, dim in enumerate(t.shape)]
    sizes: dict[Any, set[int]] = {}
    for name, axis, dim in places:
        sizes.setdefault(dim, set()).add(shapes[name][axis])
    for name, axis, dim in places:
        value = shapes[name][axis]
        named = NAMED.fullmatch(dim.name) if isinstance(dim, Sym) else None
        times = int(named[1] or 1) if named else 0
        if named and len(sizes[dim]) == 1 and times and not value % times:
            moves = any((n, a) in changed for n, a, d in places if d == dim)
            stays = not moves or value < least(name)
            one = value // times if stays else size(
                named[2], value // times, name, axis, times > 1)
            if space.actual(known.setdefault(named[2], one)) == value // times:
                found[name, axis] = times * known[named[2]]
    for name, axis, dim in places:
        value = shapes[name][axis]
        if (name, axis) in found:
            continue
        found[name, axis] = value
        if isinstance(dim, Sym) and (name, axis) in changed and (
                least(name) <= value <= HIGHEST):
            total = expression(dim.name, known)
            agrees = total is not None and space.actual(total) == value
            alone = dim.name if len(sizes[dim]) == 1 else f"{dim.name} of {name}.{axis}"
            found[name, axis] = (
                total if agrees and total is not None else size(alone, value, name, axis))
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


__all__ = ["VALUE", "Dims", "Manner", "elements", "expression", "pattern_of", "symbolic"]
