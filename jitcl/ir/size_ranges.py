"""What is taken for granted of sizes (ir/sizes.py) now, and how large they get while their symbols
are no larger than some numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from jitcl.ir.size_bounds import low_of
from jitcl.ir.sizes import (
    Size,
    SizePinned,
    Space,
    at_least,
    by_hint,
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


def least(a: Any, b: Any, general: bool = False) -> Any:
    """min(a, b): where that isn't always the same, a guard says which; in a general space, or where
    asked, an atom is what it is.
    """
    return _one_of("min", a, b, general)


def largest(a: Any, b: Any, general: bool = False) -> Any:
    """max(a, b), likewise."""
    return _one_of("max", a, b, general)


def _one_of(how: str, a: Any, b: Any, general: bool) -> Any:
    for lesser, larger in ((a, b), (b, a)):
        if low_of(larger - lesser) >= 0:
            return lesser if how == "min" else larger
    space = a.space if type(a) is Size else b.space
    if (general or space.general) and not by_hint():
        return space.one_of(how, a, b)
    return min(a, b) if how == "min" else max(a, b)


def present(size: int) -> int:
    """1 where a size, which is 0 or more, is not 0, else 0: as a size."""
    return cast(int, least(size, 1, general=True))


def require(a: Any, b: Any) -> None:
    """From here on a >= b is taken for granted; SizePinned where it isn't so now."""
    with judged_by_hint(False):
        if not at_least(a, b):
            raise SizePinned(f"'{a}' is less than '{b}'")


def halvings(n: int, spare: int = 0) -> int:
    """How often n places are halved until one is left. Of a size that isn't known: as often as
    suits all up to 2**spare times what it is now, which is a guard; in a general space, more.
    """
    steps = (hint(n) - 1).bit_length()
    if is_size(n):
        steps = max(steps + spare, 4 * spare if n.space.general else 0)
        require(1 << steps, n)
    return steps


def named(line: str, space: Space) -> str:
    """A line of text with sizes by the names of their dimensions, quotients written out."""
    def name(found: re.Match[str]) -> str:
        atom = space.atoms[int(found[1])]
        a, b = atom.numerator, atom.denominator
        both = f"({a} // {b})" if atom.how == "//" else f"{atom.how}({a}, {b})"
        return atom.symbol if atom.free else named(atom.symbol or both, space)
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
    return all(a.symbol or (grows(space, a.numerator) and (
        grows(space, a.denominator) if a.how != "//" else type(a.denominator) is not Size))
        for a in inside)


def most(space: Space, size: Any, largest: Sequence[int]) -> int:
    """A bound from above for a size while no symbol is more than among `largest`, the atoms'
    values. Raises SizePinned where none is known.
    """
    ranges: list[tuple[int, int]] = []
    for atom, value in zip(space.atoms, largest):
        if atom.symbol:
            ranges.append((int(atom.low), value))
            continue
        low, high = _range(atom.numerator, ranges)
        lesser, greater = _range(atom.denominator, ranges)
        if atom.how != "//":
            pick = min if atom.how == "min" else max
            ranges.append((pick(low, lesser), pick(high, greater)))
            continue
        lesser = max(lesser, 1)             # a guard rules 0 out
        greater = max(greater, lesser)
        ends = [x // d for x in (low, high) for d in (lesser, greater)]
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
           "largest", "least",
           "most", "named", "parameters", "present", "require", "settled"]
