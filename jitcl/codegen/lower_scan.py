"""A recurrence becomes one kernel: chains in parallel, the steps of each in a sequential loop.

    for d < 2 @parallel {                     chains: directions, sequences of a batch
      for j < 64 @parallel { y[d, 0, j] = h0[d, j] }
      for step0 < 40 @loop {                  steps
        for j < 64 @parallel {                a part: its iterations are independent of each other
          let acc0: f32 = 0.0
          for r < 64 @loop { acc0 add= y[d, step0, r] * w[d, j, r] }
          y[d, step0 + 1, j] = tanh(x[d, step0, j] + acc0)
        }
      }
    }

The output's role is `scan`: the kernel reads what it has written. The loop over chains and that
over steps are there even where they run once, since schedules look for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.kernel import Stmt, Store
from jitcl.ir.sizes import same
from jitcl.ir.types import ROW, TensorType
from jitcl.ops.builder import lookup
from jitcl.ops.core import Part, Scan


def scan_statements(s: KernelBuilder, root: Node, operands: Sequence[Callable[..., Expr]]
                    ) -> tuple[Stmt, ...]:
    """The statements that compute a recurrence into the buffer `y`."""
    op = lookup(root.op)
    assert op.scan is not None
    if root.type.layout != ROW:
        raise JitclError(f"op '{root.op}' is stored as {root.type}: recurrences are row-major")
    s.out = root.type
    scan: Scan = op.scan(s, _own(s, root.type), *operands, **root.kwargs)
    alone = same(math.prod(scan.chains), 1)
    last = len(scan.chains) - 1
    chain = tuple(s.open("i", d, "parallel", always=alone and a == last)
                  for a, d in enumerate(scan.chains))
    with s.inside_scope():
        _write(s, root.type, scan.init(chain))
        if scan.steps:
            t = s.open("step", scan.steps, always=True)
            with s.inside_scope():
                _write(s, root.type, scan.step(chain, t))
            s.leave(len(s.scopes) - 2)
    s.leave(0)
    return tuple(s.scopes[0].stmts)


def _own(s: KernelBuilder, type: TensorType) -> Callable[..., Expr]:
    """Reads the output, in its compute type."""
    def own(*ix: Expr | int) -> Expr:
        at = tuple(E.index(i) if isinstance(i, int) else i for i in ix)
        return E.cast(E.load("y", at, type.dtype), s.compute(type.dtype))
    return own


def _write(s: KernelBuilder, type: TensorType, parts: Sequence[Part]) -> None:
    """Each part as a nest of independent loops in the innermost open scope."""
    for part in parts:
        level = len(s.scopes) - 1
        j = tuple(s.open("j", d, "parallel") for d in part.extents)
        value = E.cast(part.value(*j), type.dtype)
        s.leave(level, Store("y", part.at(*j), value))
