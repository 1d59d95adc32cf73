"""Sizes as values: what Shape, Size and Range are where a size is not known yet, and shape
arithmetic over them.

Such values are op nodes, never constants, so that nothing folds what holds for one shape only. In
a kernel they are literals, which are parameters there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import Size, SizePinned, has_size
from jitcl.ir.types import TensorType
from jitcl.ops.core import Index, indexed, sample

Array = np.ndarray[Any, Any]


@indexed("creation", infer=lambda values: TensorType("i64", (len(values),)),
         ref=lambda values: np.array(values, np.int64), samples=[sample(values=(3, 1, 4))])
def sizes(s: KernelBuilder, ix: Index, values: tuple[int, ...]) -> Expr:
    """A shape as a vector."""
    found = E.const(values[-1], "i64")
    for k in reversed(range(len(values) - 1)):
        found = s.select(s.eq(ix[0], k), E.const(values[k], "i64"), found)
    return found


@indexed("creation", infer=lambda start, delta, count: TensorType("i64", (count,)),
         ref=lambda start, delta, count: start + np.arange(count) * delta,
         samples=[sample(start=2, delta=-3, count=5)])
def arange(s: KernelBuilder, ix: Index, start: int, delta: int, count: int) -> Expr:
    """start, start + delta, ..: `count` whole numbers."""
    return E.cast(ix[0] * delta + start, "i64")


# ---- the same on NumPy arrays of sizes (dtype object)

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
