"""Small questions that rewrites ask of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.ops.builder import lookup

Array = np.ndarray[Any, Any]

_MANTISSA = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53, "f8e8m0": 1,   # of whole numbers held
             **{name: f.mantissa + 1 for name, f in dtypes.MINIFLOATS.items()}}
_EXPONENT = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11, "f8e8m0": 8,
             **{name: f.exponent for name, f in dtypes.MINIFLOATS.items()}}


def kind(node: Node) -> str:
    """The op's kind; "" of inputs and constants."""
    return "" if node.op in ("input", "const") else lookup(node.op).kind


def scalar(node: Node) -> Any:
    """The value of a constant of one element, else None."""
    return node.data.reshape(()).item() if node.op == "const" and node.type.size == 1 else None


def split_const(node: Node) -> tuple[Node, Node] | None:
    """(the operand, the constant) of a binary node with one constant operand, whichever side it
    is on.
    """
    if len(node.inputs) != 2:
        return None
    x, c = node.inputs
    if x.op == "const":
        x, c = c, x
    return (x, c) if c.op == "const" and x.op != "const" else None


def exact(source: str, target: str) -> bool:
    """Whether every value of dtype `source` is one of `target`."""
    if source == target or source == "bool" and target != "f8e8m0":     # which has no 0
        return True
    if target == "bool" or target in dtypes.LOW_FLOATS:
        return False
    if dtypes.is_float(source):
        return (dtypes.is_float(target) and _MANTISSA[source] <= _MANTISSA[target]
                and _EXPONENT[source] <= _EXPONENT[target])
    low, high = dtypes.limits(source)
    if dtypes.is_float(target):
        return max(abs(low), high) <= 2 ** _MANTISSA[target]
    least, most = dtypes.limits(target)
    return least <= low and high <= most


def per_axis(values: Array, rank: int, axis: int, extent: int) -> Array | None:
    """A broadcast operand as one value for each place on `axis`: [extent]; None where it varies
    elsewhere.

        [8,1,1] against rank 4, axis 1, extent 8  ->  [8]        [1,1,1,5] against the same  ->
        None
    """
    if values.ndim > rank:
        return None
    shape = (1,) * (rank - values.ndim) + values.shape
    if any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, extent):
        return None
    return np.broadcast_to(values.reshape(-1), (extent,))
