"""Scalar expressions of kernels: interned, with index arithmetic simplified as it is built.

An `Expr` is a constant, a variable, a load or a scalar operation. Variables that count loops know
their range, so that `(16*a + b) // 16` becomes `a` where 0 <= b < 16, and guards that always hold
vanish.
"""

from __future__ import annotations

import math
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jitcl import dtypes
from jitcl.forking import cached_property
from jitcl.ir.scalar import SCALARS, result_dtype
from jitcl.ir.sizes import Size, at_least_always, divided, is_size, same

Number = int | float | bool


@dataclass(frozen=True, eq=False)
class Expr:
    """`op` is "const" (value), "var" (value = name, extent = its range or None), "load" (value =
    buffer; args = indices, then guard and other where `guarded`), "cast" (to `dtype`) or a name of
    `scalar.SCALARS`."""

    op: str
    args: tuple[Expr, ...]
    dtype: str
    value: Any = None
    extent: int | None = None               # var: 0 <= var < extent
    guarded: bool = False                   # load: args end with guard and other

    @cached_property
    def free(self) -> frozenset[str]:
        """Names of the variables that this depends on."""
        if self.op == "var":
            return frozenset((self.value,))
        return frozenset().union(*(a.free for a in self.args))

    @property
    def indices(self) -> tuple[Expr, ...]:
        return self.args[:-2] if self.guarded else self.args

    @property
    def guard(self) -> Expr | None:
        return self.args[-2] if self.guarded else None

    @property
    def other(self) -> Expr | None:
        return self.args[-1] if self.guarded else None

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    def __add__(self, other: Expr | Number) -> Expr:
        return call("add", self, lift(other, self))

    def __radd__(self, other: Number) -> Expr:
        return call("add", lift(other, self), self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return call("sub", self, lift(other, self))

    def __rsub__(self, other: Number) -> Expr:
        return call("sub", lift(other, self), self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return call("mul", self, lift(other, self))

    def __rmul__(self, other: Number) -> Expr:
        return call("mul", lift(other, self), self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return call("div", self, lift(other, self))

    def __rtruediv__(self, other: Number) -> Expr:
        return call("div", lift(other, self), self)

    def __floordiv__(self, other: Expr | Number) -> Expr:
        return call("floordiv", self, lift(other, self))

    def __mod__(self, other: Expr | Number) -> Expr:
        return call("mod", self, lift(other, self))

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Expr | Number) -> Expr:
        return call("lt", self, lift(other, self))

    def __le__(self, other: Expr | Number) -> Expr:
        return call("le", self, lift(other, self))

    def __gt__(self, other: Expr | Number) -> Expr:
        return call("gt", self, lift(other, self))

    def __ge__(self, other: Expr | Number) -> Expr:
        return call("ge", self, lift(other, self))

    def __and__(self, other: Expr) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Expr) -> Expr:
        return call("or", self, other)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __bool__(self) -> bool:
        raise TypeError(f"'{self!r}' has no truth value while code is generated: "
                        "use s.select or s.guarded")

    def __repr__(self) -> str:
        if self.op in ("const", "var"):
            return str(self.value)
        inside = ", ".join(map(repr, self.args))
        return f"{self.value}[{inside}]" if self.op == "load" else f"{self.op}({inside})"

    def __reduce__(self) -> Any:
        return make, (self.op, self.args, self.dtype, self.value, self.extent, self.guarded)


_INTERNED: weakref.WeakValueDictionary[Any, Expr] = weakref.WeakValueDictionary()


def make(op: str, args: Iterable[Expr], dtype: str, value: Any = None, extent: int | None = None,
         guarded: bool = False) -> Expr:
    """The one Expr with these fields, unsimplified; the builders below simplify."""
    args = tuple(args)
    tag = (type(value).__name__,
           struct.pack("<d", value) if isinstance(value, float) else value)
    key = (op, args, dtype, tag, extent, guarded)
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED[key] = Expr(op, args, dtype, value, extent, guarded)
    return found


def const(value: Number, dtype: str) -> Expr:
    """A literal of a type: floats become float, ints wrap into range, bools bool. Sizes are
    literals of type index; of another, they are converted.
    """
    if is_size(value):
        literal = make("const", (), "index", value)
        return literal if dtype == "index" else make("cast", (literal,), dtype)
    if dtypes.is_float(dtype):
        return make("const", (), dtype, float(value))
    if dtype == "bool":
        return make("const", (), dtype, bool(value))
    if isinstance(value, float) and not math.isfinite(value):
        value = dtypes.limits(dtype)[value > 0]
    return make("const", (), dtype, int(value))


def index(value: int) -> Expr:
    return const(value, "index")


def var(name: str, dtype: str = "index", extent: int | None = None) -> Expr:
    return make("var", (), dtype, name, extent)


def load(buffer: str, indices: Iterable[Expr], dtype: str, guard: Expr | None = None,
         other: Expr | None = None) -> Expr:
    """`guard ? buffer[indices] : other`, or only one of them where the guard is a constant."""
    indices = tuple(indices)
    if guard is None or (guard.is_const and guard.value):
        return make("load", indices, dtype, buffer)
    assert other is not None
    if guard.is_const:
        return other
    return make("load", (*indices, guard, other), dtype, buffer, guarded=True)


def lift(x: Expr | Number, like: Expr) -> Expr:
    """A Python number as a literal of the type of `like`."""
    return x if isinstance(x, Expr) else const(x, like.dtype)


def cast(x: Expr, dtype: str) -> Expr:
    if x.dtype == dtype:
        return x
    if x.op == "cast" and x.args[0].dtype == dtype and x.dtype == dtypes.compute(dtype):
        return x.args[0]                     # it was such a value before
    if x.is_const and type(x.value) is not Size and dtypes.compute(dtype) == dtype and not (
            dtypes.is_float(x.dtype) and not dtypes.is_float(dtype) and not math.isfinite(x.value)):
        return const(bool(x.value) if dtype == "bool" else x.value, dtype)
    return make("cast", (x,), dtype)


def call(op: str, *args: Expr) -> Expr:
    """A scalar operation, simplified where that is exact."""
    scalar = SCALARS[op]
    assert len(args) == scalar.arity, f"{op} takes {scalar.arity} operands, got {len(args)}"
    dtype = result_dtype(op, args[-1].dtype)
    if args[0].dtype == "index" and op in _INDEX:
        return _INDEX[op](*args)
    simple = _simplify(op, args)
    return simple if simple is not None else make(op, args, dtype)


def _simplify(op: str, args: tuple[Expr, ...]) -> Expr | None:
    if op == "select":
        condition, yes, no = args
        if condition.is_const:
            return yes if condition.value else no
        return yes if yes is no else None
    if op in ("and", "or"):
        for a, b in (args, args[::-1]):
            if a.is_const:
                return b if bool(a.value) == (op == "and") else a
        return args[0] if args[0] is args[1] else None
    if op == "not" and args[0].is_const:
        return const(not args[0].value, "bool")
    if args[0].dtype == "index" and op in ("lt", "le", "gt", "ge", "eq", "ne"):
        return _compare(op, *args)
    if len(args) == 2 and args[0] is args[1]:
        return _same(op, args[0])
    return None


def _same(op: str, x: Expr) -> Expr | None:
    """A value compared with itself: a NaN is neither smaller nor greater, and not equal."""
    if op in ("lt", "gt"):
        return const(False, "bool")
    if op in ("le", "ge", "eq", "ne") and not dtypes.is_float(x.dtype):
        return const(op != "ne", "bool")
    return None


def bounds(x: Expr) -> tuple[float, float]:
    """An interval that holds the value of an index expression (infinite where nothing is known)."""
    if x.is_const:
        return x.value, x.value
    if x.op == "var" and x.extent is not None:
        return 0, x.extent - 1
    if x.op in ("add", "sub"):
        (a, b), (c, d) = bounds(x.args[0]), bounds(x.args[1])
        return (a + c, b + d) if x.op == "add" else (a - d, b - c)
    if x.op == "mul" and x.args[1].is_const:
        (a, b), c = bounds(x.args[0]), x.args[1].value
        if at_least_always(c, 0):
            return a * c, b * c
        return (b * c, a * c) if at_least_always(0, c) else (-math.inf, math.inf)
    if x.op in ("floordiv", "mod") and x.args[1].is_const and at_least_always(x.args[1].value, 1):
        (a, b), c = bounds(x.args[0]), x.args[1].value
        if x.op == "mod":
            return (0, _least(b, c - 1)) if at_least_always(a, 0) else (0, c - 1)
        return _quotient(a, c), _quotient(b, c)
    if x.op in ("min", "max"):
        (a, b), (c, d) = bounds(x.args[0]), bounds(x.args[1])
        if x.op == "min":
            return -_largest(-a, -c), _least(b, d)
        return -_least(-a, -c), _largest(b, d)
    if x.op == "select":
        (a, b), (c, d) = bounds(x.args[1]), bounds(x.args[2])
        return -_largest(-a, -c), _largest(b, d)
    return -math.inf, math.inf


def _least(a: float, b: float) -> float:
    """The lesser of two upper bounds; of sizes that can't be told apart, either."""
    return a if at_least_always(b, a) else b


def _largest(a: float, b: float) -> float:
    """An upper bound of both."""
    if at_least_always(a, b):
        return a
    return b if at_least_always(b, a) else math.inf


def _quotient(a: float, c: int) -> float:
    return a if isinstance(a, float) and math.isinf(a) else a // c


def linear(x: Expr) -> tuple[dict[Expr, int], int]:
    """An index expression as sum(coefficient * atom) + constant."""
    if x.is_const:
        return {}, x.value
    if x.op in ("add", "sub"):
        (left, c), (right, d) = linear(x.args[0]), linear(x.args[1])
        sign = 1 if x.op == "add" else -1
        terms = dict(left)
        for atom, k in right.items():
            terms[atom] = terms.get(atom, 0) + sign * k
        return {a: k for a, k in terms.items() if not same(k, 0)}, c + sign * d
    if x.op == "mul" and x.args[1].is_const:
        terms, c = linear(x.args[0])
        k = x.args[1].value
        return ({}, 0) if same(k, 0) else ({a: v * k for a, v in terms.items()}, c * k)
    return {x: 1}, 0


def from_linear(terms: dict[Expr, int], constant: int) -> Expr:
    """The canonical sum: terms in the order first met, the constant last."""
    total: Expr | None = None
    for atom, k in terms.items():
        term = atom if same(k, 1) else make("mul", (atom, index(k)), "index")
        total = term if total is None else make("add", (total, term), "index")
    if total is None:
        return index(constant)
    return make("add", (total, index(constant)), "index") if not same(constant, 0) else total


def _add(a: Expr, b: Expr) -> Expr:
    return from_linear(*linear(make("add", (a, b), "index")))


def _sub(a: Expr, b: Expr) -> Expr:
    return from_linear(*linear(make("sub", (a, b), "index")))


def _mul(a: Expr, b: Expr) -> Expr:
    if a.is_const:
        a, b = b, a
    product = make("mul", (a, b), "index")
    return from_linear(*linear(product)) if b.is_const else product


def _split(x: Expr, c: int) -> tuple[Expr, Expr]:
    """x = c * quotient + rest, exactly, with all multiples of c in the quotient."""
    terms, constant = linear(x)
    quotient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    for atom, k in terms.items():
        q, r = divided(k, c)
        if type(r) is not Size and r == 0:
            quotient[atom] = q
        else:
            rest[atom] = k
    whole, left = divided(constant, c)
    return from_linear(quotient, whole), from_linear(rest, left)


def _floordiv(a: Expr, b: Expr) -> Expr:
    if not b.is_const or not at_least_always(b.value, 1):
        return make("floordiv", (a, b), "index")
    c = b.value
    if same(c, 1):
        return a
    quotient, rest = _split(a, c)
    strip = _strip(rest, c)
    if strip is not None:
        return _add(quotient, index(strip))
    if rest.op == "floordiv" and rest.args[1].is_const:            # (x // d) // c = x // (d * c)
        return _add(quotient, _floordiv(rest.args[0], index(rest.args[1].value * c)))
    return _add(quotient, make("floordiv", (rest, b), "index"))


def _mod(a: Expr, b: Expr) -> Expr:
    if not b.is_const or not at_least_always(b.value, 1):
        return make("mod", (a, b), "index")
    c = b.value
    if same(c, 1):
        return index(0)
    _, rest = _split(a, c)
    strip = _strip(rest, c)
    if strip is not None:
        return _sub(rest, index(c * strip))
    if rest.op == "mod" and rest.args[1].is_const and _divides(c, rest.args[1].value):
        return _mod(rest.args[0], b)
    return make("mod", (rest, b), "index")


def _strip(x: Expr, c: int) -> int | None:
    """The one number that floor(x / c) can be; None where it can be several."""
    low, high = bounds(x)
    if not (is_size(low) or is_size(high) or is_size(c)):
        finite = math.isfinite(low + high)
        return math.floor(low / c) if finite and math.floor(low / c) == math.floor(
            high / c) else None
    return 0 if at_least_always(low, 0) and at_least_always(c - 1, high) else None


def _divides(c: int, k: int) -> bool:
    rest = divided(k, c)[1]
    return type(rest) is not Size and rest == 0


def _min(a: Expr, b: Expr) -> Expr:
    (la, ha), (lb, hb) = bounds(a), bounds(b)
    if at_least_always(lb, ha):
        return a
    return b if at_least_always(la, hb) else make("min", (a, b), "index")


def _max(a: Expr, b: Expr) -> Expr:
    (la, ha), (lb, hb) = bounds(a), bounds(b)
    if at_least_always(la, hb):
        return a
    return b if at_least_always(lb, ha) else make("max", (a, b), "index")


_INDEX: dict[str, Callable[..., Expr]] = {
    "add": _add, "sub": _sub, "mul": _mul, "floordiv": _floordiv, "mod": _mod, "min": _min,
    "max": _max, "neg": lambda a: _sub(index(0), a)}


def _compare(op: str, a: Expr, b: Expr) -> Expr | None:
    low, high = bounds(_sub(a, b))
    positive, negative = at_least_always(low, 1), at_least_always(-1, high)
    from_zero, to_zero = at_least_always(low, 0), at_least_always(0, high)
    always, never = {"lt": (negative, from_zero), "le": (to_zero, positive),
                     "gt": (positive, to_zero), "ge": (from_zero, negative),
                     "eq": (from_zero and to_zero, positive or negative),
                     "ne": (positive or negative, from_zero and to_zero)}[op]
    return const(True, "bool") if always else const(False, "bool") if never else None


def walk(x: Expr) -> Iterator[Expr]:
    """Every distinct expression below x, each after its operands."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(x, False)]
    while stack:
        e, done = stack.pop()
        if done:
            yield e
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            stack.extend((a, False) for a in e.args)


def mapped(x: Expr, change: Callable[[Expr, tuple[Expr, ...]], Expr],
           memo: dict[Expr, Expr] | None = None) -> Expr:
    """x made anew, operands first: `change` is given each expression, and what became of its
    operands.
    """
    memo = {} if memo is None else memo
    for e in walk(x):
        if e not in memo:
            memo[e] = change(e, tuple(memo[a] for a in e.args))
    return memo[x]


def remade(x: Expr, args: Iterable[Expr]) -> Expr:
    """x with other operands, unsimplified."""
    return make(x.op, args, x.dtype, x.value, x.extent, x.guarded)


def exchanged(x: Expr, instead: Mapping[Expr, Expr]) -> Expr:
    """x with every mapped subexpression exchanged (outermost matches win), unsimplified."""
    memo: dict[Expr, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(x, False)]
    while stack:
        e, done = stack.pop()
        if e in memo:
            continue
        if e in instead:
            memo[e] = instead[e]
        elif done:
            args = tuple(memo[a] for a in e.args)
            memo[e] = e if all(a is b for a, b in zip(args, e.args)) else remade(e, args)
        else:
            stack.append((e, True))
            stack.extend((a, False) for a in e.args)
    return memo[x]


def flat(shape: tuple[int, ...], indices: tuple[Expr, ...]) -> Expr:
    """The element offset of an index in a row-major buffer of physical `shape`."""
    total = index(0)
    for extent, i in zip(shape, indices):
        total = call("add", call("mul", total, index(extent)), i)
    return total
