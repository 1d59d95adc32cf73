"""NonZero: where the elements are that are not zero, as many as data says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl.ir.graph import Node, const
from jitcl.ir.sizes import same
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import Bounded, composite, fixed, onnx_rule, sample
from jitcl.ops.selection import total

Shape = tuple[int, ...]


def _index_ref(places: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    return np.stack(np.unravel_index(places, shape)).astype(np.int64)


@composite(ref=_index_ref, samples=[
    sample(fixed(0, 5, 23, dtype="i32"), shape=(2, 3, 4)),
    sample(fixed(6, dtype="i32"), shape=(7,))])
def unravelled(g: GraphBuilder, places: Node, shape: Shape) -> Node:
    """The index of each place in a tensor of that shape, row-major: i64[rank, places]."""
    rows = []
    for axis, dim in enumerate(shape):
        row = g.div(places, math.prod(shape[axis + 1:]))
        if axis:
            row = g.mod(row, dim)
        rows.append(g.reshape(row, shape=(1, places.type.dims[0])))
    return g.cast(g.concat(*rows, axis=0) if len(rows) > 1 else rows[0], to="i64")


@onnx_rule("NonZero")
def _nonzero(g: GraphBuilder, node: Any) -> Bounded | Node:
    """One column an element, in row-major order; a scalar counts as a vector of one."""
    x = node.inputs[0]
    dims = x.type.dims or (1,)
    if same(x.type.size, 0):
        return const(np.zeros((len(dims), 0), np.int64))
    flat = g.reshape(x, shape=(x.type.size,))
    kept = flat if x.type.dtype == "bool" else g.not_(g.equal(flat, 0))
    return Bounded((g.unravelled(g.kept_places(kept), shape=dims),), total(g, kept), (1,))
