"""Types of what a model takes and gives beyond tensors: strings, sequences, optionals, maps.

Values at run time: an ndarray for a tensor (of `str` objects for strings), a list for a sequence,
None for an empty optional, a dict for a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.types import Dim, Sym

Signature = list[Any]       # of one value, as JSON: what an import attempt sees of it


@dataclass(frozen=True)
class ValueType:
    """kind: "tensor", "sequence", "optional" or "map". dtype: of a tensor's elements (jitcl's name,
    "string", or NumPy's name of what jitcl does not compute with), or of a map's keys. shape None:
    of any rank. of: what a sequence, optional or map holds.
    """

    kind: str
    dtype: str = ""
    shape: tuple[Dim, ...] | None = None
    of: ValueType | None = None

    def __str__(self) -> str:
        if self.kind == "tensor":
            dims = "..." if self.shape is None else ",".join(map(str, self.shape))
            return f"{self.dtype}[{dims}]"
        if self.kind == "map":
            return f"map of {self.dtype} to {self.of}"
        return f"{self.kind} of {self.of}" if self.of is not None else self.kind

    def row(self) -> list[Any]:
        """As JSON; `ValueType.of_row` reads it."""
        shape = None if self.shape is None else [
            str(d) if isinstance(d, Sym) else d for d in self.shape]
        return [self.kind, self.dtype, shape, self.of.row() if self.of is not None else None]

    @staticmethod
    def of_row(row: list[Any]) -> ValueType:
        kind, dtype, shape, of = row
        dims = None if shape is None else tuple(
            Sym(d) if isinstance(d, str) else d for d in shape)
        return ValueType(kind, dtype, dims, ValueType.of_row(of) if of is not None else None)


def signature(value: Any) -> Signature:
    """What import sees of a value: ["f32", [2, 3]] of a tensor; what else there is never enters a
    compiled part, and only its kind is told.
    """
    if value is None:
        return ["none"]
    if isinstance(value, (list, tuple)):
        return ["sequence", signature(value[0]) if len(value) else None, len(value)]
    if isinstance(value, dict):
        return ["map"]
    array = np.asarray(value)
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        dtype = "string" if is_text(array) else array.dtype.name
    return [dtype, list(array.shape)]


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array holds strings, as `str` objects or in one of NumPy's types for them."""
    return array.dtype.kind in "OUST"


def texts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The array with its strings as `str` objects, itself where it holds nothing else; None where
    elements must be looked at one by one.
    """
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind != "O":
        return None
    kinds = [*map(type, array.reshape(-1).tolist())]
    return array if kinds.count(str) == len(kinds) else None


def plain(found: Signature) -> bool:
    """Whether a value of that signature is a tensor that kernels can read."""
    return len(found) == 2 and found[0] in dtypes.STORED


def described(found: Signature) -> str:
    """"strings", "a sequence" ...: what a node reads that no kernel can."""
    if found[0] == "none":
        return "an empty optional"
    if found[0] in ("sequence", "map"):
        return f"a {found[0]}"
    return "strings" if found[0] == "string" else f"elements of type {found[0]}"


__all__ = ["Signature", "ValueType", "described", "is_text", "plain", "signature", "texts"]
