"""A recurrence's kernel at some places of its output, as `sampling` does it for all others.

Some chains are taken, and the first steps of each, whole: a step needs all of the one before it.
What later steps do is the same code at other indices, and bounds grow from step to step. Places
that are written again and again (a state that takes turns with the next) are judged only where all
steps were done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from jitcl.errors import JitclError
from jitcl.ir.enclosure import Array, Enclosed
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import (
    Accum,
    For,
    Kernel,
    Stmt,
    Store,
    carries,
    counted,
    scanned,
    statements,
)
from jitcl.ir.noise import Noise
from jitcl.ir.printer import statement_text
from jitcl.ir.sampling import POINTS, WORK, Sample, Walk, operands, some_indices

CHAINS = 4                     # at most
STEPS = 3                      # at least: of two states that take turns, both are written twice


def sample_scan(kernel: Kernel, buffers: Mapping[str, Array | Noise], seed: int,
                points: int = POINTS, work: int = WORK) -> Sample:
    """Elements of a few chains' first steps; `points` and `work` bound how many, if not below 3
    steps of one chain.

    Raises InputError where a buffer doesn't fit, JitclError where the kernel reads outside of one
    or writes to places that depend on inexact values.
    """
    loops, inner = chain_loops(kernel)
    each = max(1, sum(n for s, n in counted(inner) if isinstance(s, Accum)))
    steps = max((f.extent for f in inner if isinstance(f, For) and carries(f)), default=1)
    per_step = max(1, each // max(1, steps))
    count = math.prod(f.extent for f in loops)
    chains = max(1, min(CHAINS, count, work // per_step))
    limit = max(STEPS, work // (per_step * chains), points // chains)
    walk = _ScanWalk(kernel, operands(kernel, buffers), some_indices(loops, chains, count, seed),
                     limit)
    with np.errstate(all="ignore"):
        walk.block(kernel.body)
    return walk.sample(steps <= limit)


def sample_scan_places(kernel: Kernel, buffers: Mapping[str, Array | Noise], positions: Array,
                       seed: int) -> Sample:
    """Those of the given flat positions that `sample_scan` computes."""
    found = sample_scan(kernel, buffers, seed)
    wanted = set(positions.tolist())
    kept = np.array([p in wanted for p in found.positions.tolist()], bool)
    return Sample(found.positions[kept], found.mid[kept], found.radius[kept])


def chain_loops(kernel: Kernel) -> tuple[list[For], tuple[Stmt, ...]]:
    """The loops over chains, and what stands inside them."""
    loops: list[For] = []
    body = kernel.body
    while True:
        inner = [s for s in body if isinstance(s, For)]
        if len(inner) != 1 or inner[0].kind != "parallel":
            return loops, body
        loops.append(inner[0])
        body = inner[0].body


class _ScanWalk(Walk):
    """Keeps what is stored, with its radius, for the loads behind."""

    def __init__(self, kernel: Kernel, flat: Mapping[str, Array | Noise], chains: dict[str, Array],
                 limit: int) -> None:
        super().__init__(kernel, flat, [chains])
        self.chains, self.limit = chains, limit
        (self.name,) = scanned(kernel)
        size = kernel.buffer(self.name).size
        self.mid, self.rad = np.zeros(size), np.full(size, np.inf)
        self.writes = np.zeros(size, np.int32)

    def sampled(self, loop: For) -> None:
        """Loops over chains as they are sampled, those over the elements of a part whole."""
        if loop.var.value in self.chains:
            super().sampled(loop)
            return
        self.sizes.append(loop.extent)
        self.bind(loop.var.value, self.axis(np.arange(loop.extent, dtype=np.int64)))
        self.block(loop.body)
        self.sizes.pop()

    def loop(self, loop: For) -> None:
        if not carries(loop) or not any(isinstance(s, Store) for s in statements(loop.body)):
            super().loop(loop)
            return
        for i in range(min(loop.extent, self.limit)):
            self.bind(loop.var.value, Enclosed(np.asarray(i, np.int64)))
            self.block(loop.body)

    def store(self, stmt: Store) -> None:
        value = self.value(stmt.value, stmt)
        indices = [self.value(i, stmt) for i in stmt.indices]
        if not all(i.exact for i in indices):
            raise JitclError(f"kernel '{self.kernel.name}': where '{statement_text(stmt)}' stores "
                             "depends on rounding")
        place = self.address(stmt.buffer, [i.mid for i in indices], None, stmt)
        shape = tuple(self.sizes)
        at, mid, rad = (np.broadcast_to(a, shape).reshape(-1)
                        for a in (place, value.mid, np.asarray(value.radius, np.float64)))
        self.mid[at], self.rad[at] = mid, rad
        self.writes[at] += 1

    def load(self, e: Expr, done: dict[Expr, Enclosed], stmt: Stmt) -> Enclosed:
        if e.value != self.name:
            return super().load(e, done, stmt)
        place = self.address(e.value, [done[i].mid for i in e.indices], None, stmt)
        return Enclosed(self.mid.take(place), self.rad.take(place))

    def sample(self, whole: bool) -> Sample:
        """All that was stored; without `whole` only what later steps leave alone."""
        kept = np.flatnonzero(self.writes if whole else self.writes == 1)
        return Sample(kept, self.mid[kept], self.rad[kept])
