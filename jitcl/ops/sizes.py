"""Sizes as values: what Shape, Size and Range are where a size is not known yet, and shape
arithmetic over them.

Such values are op nodes, never constants, so that nothing folds what holds for one shape only. In
a kernel they are literals, which are parameters there.
"""

from __future__ import annotations

import numpy as np

from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.types import TensorType
from jitcl.ops.core import Index, indexed, sample


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
