"""What is known of all values of a size (ir/sizes.py): bounds from below."""

from __future__ import annotations

import math
from typing import Any, cast

Monomial = tuple[int, ...]      # numbers of atoms, sorted; () is 1
Terms = dict[Monomial, int]     # without zeros


def low_of(size: Any) -> float:
    """A bound from below for all values of the symbols; -inf where none is known."""
    if not hasattr(size, "terms"):
        return cast(float, size)
    known: dict[Any, float] = size.space.lows
    if size.key not in known:
        known[size.key] = max(lowest(size), _by_parts(size))
    return known[size.key]


def lowest(size: Any) -> float:
    """The same, as if atoms knew nothing of each other."""
    if not hasattr(size, "terms"):
        return cast(float, size)
    atoms = size.space.atoms
    shifted = _shifted(size)
    if shifted is None:
        return -math.inf
    least: float = shifted.pop((), 0)
    for monomial, k in shifted.items():
        if k < 0:
            least += k * math.prod(atoms[n].high - atoms[n].low for n in monomial)
    return least


def _by_parts(size: Any) -> float:
    """A bound from below by what the last atom that is no symbol is made of: 2 * (n // 2) is n - 1
    at least, and min(n, m) is n at most.
    """
    atoms = size.space.atoms
    last = max((n for monomial in size.terms for n in monomial if not atoms[n].symbol), default=-1)
    if last < 0:
        return -math.inf
    atom, others, beside = atoms[last], 0, dict[int, Any]()     # of terms by their sign
    for monomial, k in size.key:
        rest = without(monomial, (last,))
        found = size.space.size({monomial if rest is None else rest: k})
        if rest is None:
            others += found
            continue
        if last in rest or any(atoms[n].low < 0 for n in rest):
            return -math.inf
        sign = 1 if k > 0 else -1
        beside[sign] = beside.get(sign, 0) + found
    a, b = atom.numerator, atom.denominator
    if atom.how != "//":
        each = [low_of(others + sum(beside.values()) * x) for x in (a, b)]
        one_side = beside.keys() == {-1 if atom.how == "min" else 1}
        return max(each) if one_side else min(each)
    if hasattr(b, "terms"):
        return -math.inf
    low = low_of(others * b + beside.get(1, 0) * (a - b + 1) + beside.get(-1, 0) * a)
    return low if low == -math.inf else -(-low // b)


def _shifted(size: Any) -> Terms | None:
    """The polynomial over what each atom exceeds its least value by."""
    total: Terms = {(): 0}
    for monomial, k in size.terms.items():
        product: Terms = {(): k}
        for number in monomial:
            low = cast(int, size.space.atoms[number].low)
            if math.isinf(low):
                return None
            grown: Terms = {}
            for m, c in product.items():
                grown[m] = grown.get(m, 0) + c * low
                longer = tuple(sorted((*m, number)))
                grown[longer] = grown.get(longer, 0) + c
            product = grown
        for m, c in product.items():
            total[m] = total.get(m, 0) + c
    return total


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """What is left of a product of atoms without some of them; None where these are not in it."""
    left = list(monomial)
    for number in part:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


__all__ = ["Monomial", "Terms", "low_of", "lowest", "without"]
