"""Floats that a model computes of sizes (ir/sizes.py), where no quotient of sizes says what they
are: `Floor(Cast(Shape(x)) * 0.7)`, `Sqrt`, the lesser of two scales. Only their formula is known; a
size that is made of one is computed where the symbols' values are known, as the model's op computes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl.ir.sizes import LOWEST, Size, SizePinned, Space, at

DTYPES: Mapping[str, type[np.floating[Any]]] = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64}
OPS: Mapping[str, Callable[..., Any]] = {
    "cast": lambda x: x, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "min": np.minimum, "max": np.maximum, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "round": np.round}


@dataclass(frozen=True)
class Formula:
    """An op of OPS on formulas, sizes and numbers, each rounded to a dtype of DTYPES first."""

    op: str
    dtype: str
    operands: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.operands))})"

    def __float__(self) -> float:
        raise SizePinned(f"'{self}' is needed as a number")

    def at(self, values: Sequence[int]) -> Any:
        """Its value where atoms have these values."""
        kind = DTYPES[self.dtype]
        with np.errstate(all="ignore"):
            given = [kind(x.at(values) if isinstance(x, Formula) else at(x, values))
                     for x in self.operands]
            return kind(OPS[self.op](*given))

    def size(self, values: Sequence[int]) -> int:
        """The same as a whole number, towards zero; -1 where it is none."""
        found = self.at(values)
        return int(found) if abs(found) < 1 << 31 else -1


def computed(formula: Formula) -> int:
    """What is left of a formula's value without its fraction, as a size: a symbol, so that nothing
    is known of it but its value. It is taken for granted that it is no less than symbols are.
    """
    space = space_of(formula)
    now = formula.size(space.values(space.now))
    value = formula.size([a.hint for a in space.atoms])
    if value < LOWEST:
        raise SizePinned(f"'{formula}' is {value}")
    return space.symbol(str(formula), value, now, formula)


def space_of(formula: Formula) -> Space:
    """The space of the sizes in it."""
    found = spaces(formula)
    if not found:
        raise SizePinned(f"'{formula}' is made of numbers")
    return found[0]


def spaces(x: Any) -> list[Space]:
    """Of the sizes in a formula."""
    if isinstance(x, Formula):
        return [space for operand in x.operands for space in spaces(operand)]
    return [x.space] if type(x) is Size else []


__all__ = ["DTYPES", "OPS", "Formula", "computed", "space_of"]
