"""`GraphBuilder`: makes nodes of declared ops with inferred types; and evaluates constant nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import JitclError, NeedsValue, ShapeError, TypeError_
from jitcl.ir.graph import Data, Node, const, graph_input, toposort
from jitcl.ir.sizes import has_size, is_size
from jitcl.ir.types import MOST_AXES, MOST_BYTES, TensorType
from jitcl.ops.core import OPS, Op
from jitcl.ops.size_arithmetic import arithmetic

Operand = Node | int | float | bool
MOST_COMPUTED = 1 << 31         # bytes of a value that import computes


def lookup(name: str) -> Op:
    """The declared op; JitclError naming near matches for an unknown one."""
    op = OPS.get(name)
    if op is None:
        import difflib
        near = difflib.get_close_matches(name, OPS)
        hint = f": did you mean {' or '.join(near)}?" if near else ""
        raise JitclError(f"no op '{name}'{hint}")
    return op


def infer(op: str, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> TensorType:
    """The result type of an op on operand types."""
    try:
        declared = lookup(op)
        if declared.infer is not None:
            found = declared.infer(*types, **attrs)
        else:
            assert declared.expand is not None
            inputs = (graph_input(f"x{i}", t) for i, t in enumerate(types))
            found = declared.expand(GraphBuilder(), *inputs, **attrs).type
        if found.dtype not in dtypes.STORED:
            raise TypeError_(f"'{found.dtype}' is no element type; there are "
                             f"{', '.join(dtypes.STORED)}")
        if not has_size(found.shape):
            _check_shape(found)
        return found
    except (ShapeError, TypeError_) as error:
        operands = ", ".join(map(str, types))
        raise type(error)(f"{op}({operands}): {error}") from None


def _check_shape(type: TensorType) -> None:
    """ShapeError for sizes below 0, and for more than any machine holds."""
    dims = [d for d in type.shape if isinstance(d, int)]
    if len(dims) > MOST_AXES:
        raise ShapeError(f"it would make a tensor of {len(dims)} axes; {MOST_AXES} is the most")
    if any(d < 0 for d in dims):
        raise ShapeError(f"it would make {type}: sizes are 0 or more")
    if math.prod(dims) * dtypes.itemsize(type.dtype) > MOST_BYTES:
        raise ShapeError(f"it would make {type}: more than any machine holds "
                         f"({MOST_BYTES >> 40} TiB)")


class GraphBuilder:
    """`g.conv(x, w, strides=(2, 2))`: any declared op by name.

    Python numbers become constants of the last operand's dtype.
    """

    def op(self, name: str, *inputs: Operand, **attrs: Any) -> Node:
        lookup(name)
        like = next((i for i in reversed(inputs) if isinstance(i, Node)), None)
        if like is None and any(not isinstance(i, Node) for i in inputs):
            raise JitclError(f"op '{name}': at least one operand must be a node, got {inputs}")
        dtype = like.type.dtype if like is not None else None
        nodes = tuple(i if isinstance(i, Node) else self.const(i, dtype) for i in inputs)
        attrs = {k: freeze(v) for k, v in attrs.items()}
        return Node.make(name, nodes, attrs, type=infer(name, tuple(n.type for n in nodes), attrs))

    def const(self, value: Any, dtype: str | None = None) -> Node:
        """A constant; of a size that is not known yet, a node that gives it."""
        if is_size(value):
            return self.op("cast", self.op("reshape", self.op("sizes", values=(value,)), shape=()),
                           to=dtype or "i64")
        return const(value, dtype)

    def full(self, shape: tuple[int, ...], value: Any, dtype: str) -> Node:
        """One value everywhere; a constant where the shape is known."""
        if has_size(shape):
            return self.op("expand", self.const(value, dtype), shape=shape)
        return self.const(np.full(shape, value), dtype)

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name.rstrip("_") not in OPS:
            lookup(name)                     # raises, with near matches
        return lambda *inputs, **attrs: self.op(name.rstrip("_"), *inputs, **attrs)


def freeze(value: Any) -> Any:
    """Lists and NumPy scalars as the plain hashable values that attributes hold."""
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v) for v in value)
    if isinstance(value, np.ndarray):
        return freeze(value.tolist()) if value.ndim else freeze(value.item())
    if isinstance(value, np.generic):
        return value.item()
    return value


def evaluate(node: Node, values: dict[Node, np.ndarray] | None = None) -> np.ndarray:
    """A node's value by the ops' NumPy references; NeedsValue where it depends on a graph input.

    `values` holds known values (of inputs, say) and is filled as a memo.
    """
    memo = {} if values is None else values
    if node in memo:
        return memo[node]
    for n in toposort([node]):
        if n in memo:
            continue
        if n.op == "const":
            memo[n] = n.data
        elif n.op == "input":
            raise NeedsValue(n.attr("name"), "an op's parameters are computed from it")
        else:
            arrays = [memo[i] for i in n.inputs]
            if not has_size(n.type.shape):
                affordable(n.type)
            if (n.op == "sizes" or has_size(tuple(n.kwargs.values()))
                    or any(a.dtype == object for a in arrays)):
                memo[n] = arithmetic(n, lookup(n.op).ref, *arrays)
            else:
                memo[n] = reference(n, *arrays)
    return memo[node]


def affordable(type: TensorType) -> None:
    """ShapeError for more than import should compute with NumPy."""
    if type.nbytes > MOST_COMPUTED:
        raise ShapeError(f"{type} would be computed while the model is read: {type.nbytes >> 20} "
                         f"MiB, {MOST_COMPUTED >> 20} MiB is the most")


def reference(node: Node, *arrays: np.ndarray) -> np.ndarray:
    """The node's value by its op's NumPy reference. 16-bit floats compute as f32, as in kernels."""
    op = lookup(node.op)
    if op.kind != "movement":
        arrays = tuple(_wide(a) for a in arrays)
    with np.errstate(all="ignore"):
        return checked(node, np.asarray(op.ref(*arrays, **node.kwargs)))


def _wide(array: np.ndarray) -> np.ndarray:
    """The elements in the type that arithmetic on them runs in."""
    dtype = dtypes.from_numpy(array.dtype)
    return array if dtype is None else dtypes.converted(array, dtypes.compute(dtype))


def checked(node: Node, out: np.ndarray) -> np.ndarray:
    """A reference's result, with dtype and shape as inference said."""
    want = dtypes.to_numpy(node.type.dtype)
    if out.dtype != want:
        out = dtypes.converted(out, node.type.dtype)
    if out.shape != node.type.dims:
        raise JitclError(f"reference of '{node.op}' gave shape {out.shape}, "
                         f"inference said {node.type.dims}")
    return out


__all__ = ["Data", "GraphBuilder", "affordable", "evaluate", "freeze", "infer", "lookup",
           "reference"]
