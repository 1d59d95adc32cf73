"""What is taken for granted of sizes (ir/sizes.py) now, and how large they get while their symbols
are no larger than some numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from jitcl.ir.sizes import (
    LOWEST,
    Size,
    SizePinned,
    Space,
    at_least,
    hint,
    is_size,
    judged_by_hint,
    same,
)

NUMBERED = re.compile(r"\bsize(\d+)\b")


def hints(x: Any) -> Any:
    """x with every size in it as the number that it is now."""
    return everywhere(x, hint)


def alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are the same, as `same` has it."""
    return len(a) == len(b) and all(map(same, a, b))


def settled(a: Any, b: Any) -> bool:
    """Whether a == b wherever the guards hold that there are by now."""
    difference = a - b
    return same(a, b) or (type(difference) is Size and any(
        ("==", d) in difference.space.guards for d in (difference, -difference)))


def divisor(x: Any) -> int:
    """The largest number that divides a size whatever it is; of a number, the number itself."""
    return math.gcd(*x.terms.values()) if type(x) is Size else cast(int, x)


def parameters(*found: Any) -> dict[str, int]:
    """The atoms of sizes, by their names, in order: what a kernel takes for them."""
    atoms = {k: n.space.atom(k) for n in found if type(n) is Size for m in n.terms for k in m}
    return {f"size{k}": atoms[k] for k in sorted(atoms)}


def at_most(size: int, limit: int) -> int:
    """1 where a size, which is 1 or more, is no more than a limit, else 0: as a size."""
    return 1 // (1 + (size - 1) // limit)


def require(a: Any, b: Any) -> None:
    """From here on a >= b is taken for granted; SizePinned where it isn't so now."""
    with judged_by_hint(False):
        if not at_least(a, b):
            raise SizePinned(f"'{a}' is less than '{b}'")


def halvings(n: int, spare: int = 0) -> int:
    """How often n places are halved until one is left. Of a size that isn't known: as often as
    suits all up to 2**spare times what it is now, which is a guard.
    """
    steps = (hint(n) - 1).bit_length()
    if is_size(n):
        steps += spare
        require(1 << steps, n)
    return steps


def named(line: str, space: Space) -> str:
    """A line of text with sizes by the names of their dimensions, quotients written out."""
    def name(found: re.Match[str]) -> str:
        atom = space.atoms[int(found[1])]
        return atom.symbol or named(f"({atom.numerator} // {atom.denominator})", space)
    return NUMBERED.sub(name, line)


def conditions(space: Space) -> tuple[str, ...]:
    """What was taken for granted, without negative terms: "n <= 64", "4 * n >= 65"."""
    found = []
    for relation, size in space.guards:
        sides = [_side(size, 1), _side(size, -1)]
        if relation == ">=" and sides[0].isdigit():
            sides, relation = sides[::-1], "<="
        found.append(named(f"{sides[0]} {relation} {sides[1]}", space))
    return tuple(found)


def _side(size: Size, sign: int) -> str:
    """The terms of one sign."""
    terms = {m: sign * k for m, k in size.terms.items() if sign * k > 0}
    if not terms.keys() - {()}:
        return str(terms.get((), 0))
    return str(Size(size.space, terms, 0)).removeprefix("(").removesuffix(")")


def grows(space: Space, size: Any) -> bool:
    """Whether a size is never less where the symbols are more."""
    if type(size) is not Size:
        return True
    if any(k < 0 for monomial, k in size.key if monomial):
        return False
    inside = (space.atoms[n] for monomial, _ in size.key for n in monomial)
    return all(a.symbol or (type(a.denominator) is not Size and grows(space, a.numerator))
               for a in inside)


def most(space: Space, size: Any, largest: Sequence[int]) -> int:
    """A bound from above for a size while no symbol is more than among `largest`, the atoms'
    values. Raises SizePinned where none is known.
    """
    ranges: list[tuple[int, int]] = []
    for atom, value in zip(space.atoms, largest):
        if atom.symbol:
            ranges.append((LOWEST, value))
            continue
        low, high = _range(atom.numerator, ranges)
        least, greatest = _range(atom.denominator, ranges)
        least = max(least, 1)               # a guard rules 0 out
        greatest = max(greatest, least)
        ends = [x // d for x in (low, high) for d in (least, greatest)]
        ranges.append((min(ends), max(ends)))
    found = _range(size, ranges)[1]
    if found < 0:
        raise SizePinned(f"'{size}' has no bound")
    return found


def _range(size: Any, ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """From the least to the largest that a polynomial can be, at most."""
    if type(size) is not Size:
        return size, size
    low = high = 0
    for monomial, k in size.key:
        ends = [k]
        for number in monomial:
            ends = [e * r for e in ends for r in ranges[number]]
            ends = [min(ends), max(ends)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def everywhere(x: Any, change: Callable[[Size], Any]) -> Any:
    """x with every size in it exchanged: in tuples, lists, dicts' values, dataclasses."""
    if type(x) is Size:
        return change(x)
    if type(x) in (str, int, float, bool):
        return x
    if isinstance(x, tuple):
        new = tuple(everywhere(v, change) for v in x)
        return x if all(a is b for a, b in zip(x, new)) else new
    if isinstance(x, list):
        return [everywhere(v, change) for v in x]
    if isinstance(x, dict):
        return {k: everywhere(v, change) for k, v in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        changes = {f.name: new for f in fields(x)
                   if (new := everywhere(old := getattr(x, f.name), change)) is not old}
        return replace(x, **changes) if changes else x
    return x


__all__ = ["alike", "at_most", "conditions", "divisor", "everywhere", "grows", "halvings", "hints",
           "most", "named", "parameters", "require", "settled"]
