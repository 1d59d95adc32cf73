"""Sizes that are not known yet, but pass for numbers: how one plan serves many shapes.

    space = Space()
    n = space.symbol("past", 5)         # 5 now, other values later
    (n + 3) * 8 // 4                    # 2*size0 + 6: arithmetic stays symbolic
    n == 1, n < 64                      # False without more ado; True, and a guard: size0 < 64

A `Size` is a polynomial with integer coefficients over *atoms*: the symbols, quotients that do not
come out even, and, in a `general` space, the lesser or larger of two sizes. Beside its terms it has
a *hint*, its value now. A comparison that holds for all values of the symbols is just answered. Any
other is answered for the hint and becomes a *guard* of the space: what was derived holds wherever
the guards do ("concolic" execution: Godefroid, Klarlund and Sen, 2005, "DART: Directed Automated
Random Testing"). Where Python or NumPy want a number and nothing else (`range(n)`, `n & 7`, an
array's element), SizePinned is raised, so that no size is ever taken for its hint silently.
Sizes claim to be ints, with which all of the compiler computes; `type(n) is Size` tells.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from jitcl.ir.size_bounds import Monomial, Terms, low_of, lowest, without

LOWEST = 1                      # symbols stand for values from here on; of a general space, from 0
HIGHEST = (1 << 31) - 1

_spaces = itertools.count()
_judging = threading.local()


class SizePinned(Exception):
    """Something needs the number that a size is now, and would not hold for another."""


class SizeFixed(SizePinned):
    """A symbol (the argument) has to equal a number: it had better be that number."""


class SizeUnfit(Exception):
    """What is derived from the hints doesn't hold for the sizes that are wanted now."""


@dataclass(frozen=True)
class Atom:
    """A symbol, by its name among the model's dimensions, or what stands for the value of a formula
    (ir/size_formulas.py); floor(numerator / denominator); or the "min" or "max" of the two.
    """

    symbol: str = ""
    numerator: Any = None
    denominator: Any = None
    hint: int = 0
    low: float = LOWEST             # bounds of its values; infinite where none is known
    high: float = HIGHEST
    how: str = "//"
    formula: Any = None

    @property
    def free(self) -> bool:
        """Whether it is a dimension."""
        return bool(self.symbol) and self.formula is None


@dataclass
class Space:
    """The symbols of one compilation, and what was asked about them."""

    atoms: list[Atom] = field(default_factory=list)
    guards: dict[tuple[str, Size], None] = field(default_factory=dict)    # in the order met
    sealed: bool = False            # no more guards: what holds is known
    pinned_at: tuple[Any, ...] = ()     # lines of code that last asked for a number
    now: dict[str, int] = field(default_factory=dict)   # what symbols are; hints may be others
    general: bool = False           # for shapes that others' guards rule out: few guards of its own

    def __post_init__(self) -> None:
        self.number = next(_spaces)
        self.lows: dict[Any, float] = {}                # bounds of sizes, by their keys
        self._made: dict[tuple[str, Any, Any], Size] = {}

    def symbol(self, name: str, hint: int, now: int | None = None, formula: Any = None) -> int:
        """A size for a named dimension, or a formula. now: what it is, if that isn't the hint."""
        for number, atom in enumerate(self.atoms):
            if atom.symbol == name:
                return self.atom(number)
        now = hint if now is None else now
        low = 0 if self.general else LOWEST
        if not low <= now <= HIGHEST:
            raise SizePinned(f"dimension '{name}' is {now}")
        self.now[name] = now
        self.atoms.append(Atom(name, hint=hint, low=low, formula=formula))
        return self.atom(len(self.atoms) - 1)

    def atom(self, number: int) -> int:
        """An atom as a size."""
        return Size(self, {(number,): 1}, self.atoms[number].hint)  # type: ignore[return-value]

    def size(self, terms: Terms) -> Any:
        """A polynomial of atoms; a number where nothing else is left."""
        return _made(self, terms, _value(self, terms))

    def quotient(self, a: Size | int, b: Size | int) -> Size:
        """floor(a / b) as an atom, where no simpler form is known; b > 0."""
        low, high = -math.inf, math.inf
        if lowest(a) >= 0:
            low, high = (0 if type(b) is Size else lowest(a) // b), -lowest(-a)
        return self._derived("//", a, b, hint(a) // hint(b), low, high)

    def one_of(self, how: str, a: Size | int, b: Size | int) -> Size:
        """The "min" or "max" of two as an atom."""
        pick = min if how == "min" else max
        return self._derived(how, a, b, pick(hint(a), hint(b)), pick(lowest(a), lowest(b)),
                             pick(-lowest(-a), -lowest(-b)))

    def _derived(self, how: str, a: Size | int, b: Size | int, value: int, low: float, high: float
                 ) -> Size:
        key = how, a, b
        if key not in self._made:
            self.atoms.append(Atom("", a, b, value, low, high, how))
            self._made[key] = cast(Size, self.atom(len(self.atoms) - 1))
        return self._made[key]

    def guard(self, relation: str, size: Size) -> None:
        """Take `size relation 0` ("==", "!=", ">=") for granted; SizeUnfit if it isn't so now."""
        if (relation, size) in self.guards:
            return
        if self.sealed:
            raise SizePinned(f"'{size} {relation} 0' is asked of a finished compilation")
        *_, (monomial, _) = size.key
        if relation == "==" and len(monomial) == 1 and size.terms.keys() <= {(), monomial} and (
                atom := self.atoms[monomial[0]]).free:
            raise SizeFixed(atom.symbol)
        if not _holds(relation, self.actual(size)):
            raise SizeUnfit(f"'{size} {relation} 0' is not so now")
        self.guards[relation, size] = None

    def values(self, symbols: Mapping[str, int]) -> list[int]:
        """Of all atoms, in order, for values of the symbols. Those of formulas are computed; where
        they have a value here, too, the larger is taken.
        """
        found: list[int] = []
        for atom in self.atoms:
            if atom.formula is not None:
                value = atom.formula.size(found)
                found.append(max(value, symbols.get(atom.symbol, value)))
                continue
            if atom.symbol:
                found.append(symbols[atom.symbol])
                continue
            a, b = at(atom.numerator, found), at(atom.denominator, found)
            if atom.how == "//":
                found.append(a // b if b else 0)            # 0 is what a guard rules out
            else:
                found.append(min(a, b) if atom.how == "min" else max(a, b))
        return found

    def holds(self, values: Sequence[int]) -> bool:
        """Whether what was derived holds where atoms have these values."""
        if any(a.symbol and not a.low <= v <= a.high for a, v in zip(self.atoms, values)):
            return False
        return all(_holds(relation, at(size, values)) for relation, size in self.guards)

    def actual(self, size: Any) -> int:
        """The number that a size is now."""
        return at(size, self.values(self.now)) if type(size) is Size else size


def _holds(relation: str, value: int) -> bool:
    return value == 0 if relation == "==" else value != 0 if relation == "!=" else value >= 0


class Size:
    """A size as a polynomial over atoms; never a constant (that is an int)."""

    __slots__ = ("hint", "key", "space", "terms")

    def __init__(self, space: Space, terms: Terms, value: int) -> None:
        self.space, self.terms, self.hint = space, terms, value
        self.key = tuple(sorted(terms.items()))

    @property                                           # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self, *_: Any) -> int:
        """Stands for all that ints can do beyond arithmetic, too: `n / 2`, `n & 7`, `n.real`."""
        frames = traceback.walk_stack(sys._getframe())
        self.space.pinned_at = tuple((f.f_code, line) for f, line in frames)
        raise SizePinned(f"'{self}' is needed as a number")

    __int__ = __float__ = __trunc__ = __index__

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash((self.space.number, self.key))

    def __repr__(self) -> str:
        return text(self)

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec) if spec else text(self)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, float):
            return _beyond(other)
        if not _whole(other):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, k in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + k
        return _made(self.space, terms, self.hint + hint(other))

    __radd__ = __add__

    def __neg__(self) -> Any:
        return Size(self.space, {m: -k for m, k in self.terms.items()}, -self.hint)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, float):
            return _beyond(other if self > 0 else -other)
        if not _whole(other):
            return NotImplemented
        terms: Terms = {}
        for a, k in self.terms.items():
            for b, c in _terms(other):
                monomial = tuple(sorted((*a, *b)))
                terms[monomial] = terms.get(monomial, 0) + k * c
        return _made(self.space, terms, self.hint * hint(other))

    __rmul__ = __mul__

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if type(other) is not int or other < 0 or modulus is not None:
            raise SizePinned(f"'{self} ** {other}' is no size")
        return math.prod([self] * other)

    def __floordiv__(self, other: Any) -> Any:
        return _floordiv(self, other) if _whole(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _floordiv(other, self) if _whole(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self - other * _floordiv(self, other) if _whole(other) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - self * _floordiv(other, self) if _whole(other) else NotImplemented

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, float) or not _whole(other):
            return False
        if type(other) is Size and other.space is not self.space:
            return False
        difference = self - other
        if type(difference) is not Size:
            return bool(difference == 0)
        if low_of(difference) > 0 or low_of(-difference) > 0:
            return False
        if by_hint():
            return False
        equal = difference.hint == 0
        self.space.guard("==" if equal else "!=", _leading(difference))
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __ge__(self, other: Any) -> bool:
        return at_least(self, other)

    def __gt__(self, other: Any) -> bool:
        return not at_least(other, self)

    def __le__(self, other: Any) -> bool:
        return at_least(other, self)

    def __lt__(self, other: Any) -> bool:
        return not at_least(self, other)


# what else an int can do wants its number: SizePinned, and no AttributeError or TypeError
for _name in set(dir(int)) - set(dir(Size)) - {"__getnewargs__"}:
    _is_method = callable(getattr(int, _name))
    setattr(Size, _name, Size.__index__ if _is_method else property(Size.__index__))


def is_size(x: object) -> TypeGuard[Size]:
    """`type(x) is Size`, also where x is declared to be an int."""
    return type(x) is Size


# ---- arithmetic of polynomials

def _whole(x: object) -> bool:
    return type(x) is Size or hasattr(x, "__index__")


def _terms(x: Any) -> Iterable[tuple[Monomial, int]]:
    if type(x) is Size:
        return x.terms.items()
    return (((), int(x)),) if x else ()


def _made(space: Space, terms: Terms, value: int) -> Any:
    terms = {m: k for m, k in terms.items() if k}
    return Size(space, terms, value) if terms.keys() - {()} else terms.get((), 0)


def _beyond(infinite: float) -> float:
    """What a size and an infinity add up to."""
    if not math.isinf(infinite):
        raise SizePinned(f"arithmetic with {infinite} is not arithmetic of sizes")
    return infinite


def _leading(size: Size) -> Size:
    """The size or its negative: one of both for guards that mean the same."""
    return cast(Size, -size) if size.key[-1][1] < 0 else size


def _floordiv(a: Any, b: Any) -> Any:
    if type(b) is not Size and b < 0:
        a, b = -a, -b
    if not b > 0:
        raise SizePinned(f"'{a} // {b}': the divisor is not known to be positive")
    quotient, rest = divided(a, b)
    if type(rest) is not Size and type(b) is not Size:
        return quotient + rest // b
    if at_least_always(rest, 0) and at_least_always(b - 1, rest):
        return quotient
    space = rest.space if type(rest) is Size else b.space
    if type(rest) is Size and all(k <= 0 for monomial, k in rest.terms.items() if monomial):
        return quotient - _floordiv(-rest + b - 1, b)       # floor(-x / b) = -ceil(x / b)
    return quotient + space.quotient(rest, b)


def divided(a: Any, b: Any) -> tuple[Any, Any]:
    """(q, r) with a = q * b + r: for all values of the symbols, and as much in q as comes out even.
    """
    if type(a) is not Size and type(b) is not Size:
        return a // b, a % b
    space = a.space if type(a) is Size else b.space
    if type(b) is not Size:
        even = {m: k // b for m, k in a.terms.items() if k % b == 0}
        rest = {m: k for m, k in a.terms.items() if k % b}
        constant = rest.pop((), 0)
        even[()] = even.get((), 0) + constant // b
        rest[()] = constant % b
        quotient = _made(space, even, _value(space, even))
        return quotient, a - quotient * b
    quotient, rest = 0, a
    lead, coefficient = max(b.terms.items(), key=lambda t: (len(t[0]), t[0]))
    while type(rest) is Size:
        found = next((m for m, k in sorted(rest.terms.items(), key=lambda t: (-len(t[0]), t[0]))
                      if k % coefficient == 0 and without(m, lead) is not None), None)
        if found is None:
            break
        part = cast(Monomial, without(found, lead))
        factor = {part: rest.terms[found] // coefficient}
        step = _made(space, factor, _value(space, factor))
        after = rest - step * b
        if type(after) is Size and len(after.terms) >= len(rest.terms):
            break                                           # no simpler than it was
        quotient, rest = quotient + step, after
    return quotient, rest


def _value(space: Space, terms: Terms) -> int:
    return sum(k * math.prod(space.atoms[n].hint for n in m) for m, k in terms.items())


# ---- what is known of all values

def at_least_always(a: Any, b: Any) -> bool:
    """Whether a >= b for all values of the symbols (of numbers: whether it is so). Quick: of what
    atoms are made of, only `at_least`, `least` and `largest` know.
    """
    if type(a) is not Size and type(b) is not Size:
        return bool(a >= b)
    if isinstance(a, float) or isinstance(b, float):
        return bool(a == math.inf or b == -math.inf)
    return lowest(a - b) >= 0


def same(a: Any, b: Any) -> bool:
    """Whether a == b for all values of the symbols. Optimisations ask this: `==` makes a guard, and
    is for what would be wrong otherwise.
    """
    if type(a) is not Size and type(b) is not Size:
        return bool(a == b)
    difference = a - b
    return type(difference) is not Size and difference == 0


def at_least(a: Any, b: Any) -> bool:
    """a >= b: answered for all values of the symbols, or for the hints and made a guard."""
    if isinstance(a, float) or isinstance(b, float):
        for x in (a, b):
            if isinstance(x, float):
                _beyond(x)
        return bool(a == math.inf or b == -math.inf)
    difference = a - b
    if type(difference) is not Size:
        return bool(difference >= 0)
    if low_of(difference) >= 0:
        return True
    if low_of(-difference) > 0:
        return False
    holds = difference.hint >= 0
    if not by_hint():
        difference.space.guard(">=", difference if holds else -difference - 1)
    return holds


def by_hint() -> bool:
    """Whether what is larger is answered for the hints now."""
    return bool(getattr(_judging, "by_hint", False))


@contextmanager
def judged_by_hint(judged: bool = True) -> Iterator[None]:
    """What is larger is answered for the hints, and what is not always equal is not, without
    guards: where that decides how fast something is, and all answers are right.
    """
    before = by_hint()
    _judging.by_hint = judged
    try:
        yield
    finally:
        _judging.by_hint = before


# ---- sizes in other things

def whole(x: Any) -> int:
    """int(x), but a size stays what it is."""
    return cast(int, x) if type(x) is Size else int(x)


def hint(x: Any) -> int:
    """The number that a size is now; numbers are what they are."""
    return x.hint if type(x) is Size else cast(int, x)


def text(size: Size) -> str:
    """As it stands in kernels: over `size0`, `size1`, .., the atoms; in parentheses."""
    found = ""
    for monomial, k in sorted(size.terms.items(), key=lambda t: (-len(t[0]), t[0])):
        factors = [f"size{n}" for n in monomial]
        if abs(k) != 1 or not factors:
            factors.insert(0, str(abs(k)))
        sign = "-" if k < 0 else "+"
        found += (f" {sign} " if found else sign.replace("+", "")) + " * ".join(factors)
    return found if found.isidentifier() else f"({found})"


def at(size: Any, values: Sequence[int]) -> int:
    """The number that a size is where atoms have these values."""
    if type(size) is not Size:
        return cast(int, size)
    total = 0
    for monomial, k in size.terms.items():
        for number in monomial:
            k *= values[number]
        total += k
    return total


def has_size(x: Any) -> bool:
    """Whether there is a size in tuples or lists, however deep."""
    if isinstance(x, (tuple, list)):
        return any(map(has_size, x))
    return type(x) is Size
