"""Shape arithmetic over sizes that are not known yet, on NumPy arrays of them (dtype object)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.ir.sizes import Size, SizePinned, has_size

Array = np.ndarray[Any, Any]


def array_of(values: tuple[int, ...]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _each(fn: Callable[..., Any], *arrays: Array) -> Array:
    return np.asarray(np.frompyfunc(fn, len(arrays), 1)(*arrays), object)


def _divide(a: Any, b: Any) -> Any:
    """Whole numbers divided as ONNX does, towards zero."""
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_BY_ELEMENT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide,
    "neg": operator.neg, "abs": abs, "min": min, "max": max,
    "mod": operator.mod, "equal": operator.eq, "less": operator.lt, "greater": operator.gt,
    "less_or_equal": operator.le, "greater_or_equal": operator.ge}
_MOVEMENT = ("gather", "concat", "reshape", "transpose", "slice", "tile", "expand")


def arithmetic(node: Node, ref: Callable[..., Any], *arrays: Array) -> Array:
    """The value of an op of sizes: an array of dtype object where one is left in it. Raises
    SizePinned for ops that are no shape arithmetic.
    """
    dtype = node.type.dtype
    whole = dtypes.is_int(dtype) or dtype == "bool"
    if node.op == "sizes":
        found = array_of(node.attr("values"))
    elif node.op == "cast" and dtypes.is_int(dtype):
        found = arrays[0]
    elif node.op == "where":
        found = np.where(*(arrays[0].astype(bool), *arrays[1:]))
    elif node.op in _BY_ELEMENT and whole and not node.kwargs:
        found = _each(_BY_ELEMENT[node.op], *arrays)
    elif node.op in _MOVEMENT and not has_size(tuple(node.kwargs.values())):
        found = np.asarray(ref(*arrays, **node.kwargs))
    elif node.op == "reduce_prod":
        found = np.asarray(functools.reduce(operator.mul, arrays[0].reshape(-1), 1), object)
        found = found.reshape(node.type.dims)
    else:
        raise SizePinned(f"'{node.op}' of sizes is no shape arithmetic")
    if found.dtype != object or any(type(v) is Size for v in found.reshape(-1)):
        return found
    return found.astype(dtypes.to_numpy(dtype))
