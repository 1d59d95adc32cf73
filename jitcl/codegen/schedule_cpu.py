"""The schedule of generated loops on the CPU: which loops, in which order, so that LLVM vectorises the innermost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jitcl.codegen.interchange import Rows, interchange, keep_rows
from jitcl.codegen.loops import flatten, inline_lets, merge_loops
from jitcl.codegen.render_numba import render_kernel
from jitcl.codegen.share import share
from jitcl.codegen.split import split_at_conditions, strip_divisions
from jitcl.ir.kernel import Buffer, Kernel


@dataclass(frozen=True)
class Scheduled:
    """A kernel over flat buffers, and the scratch rows that it keeps on the stack (`shape` in elements)."""

    kernel: Kernel
    scratch: tuple[Buffer, ...]


def schedule_cpu(kernel: Kernel) -> Scheduled:
    """Transform a lowered kernel for the CPU. Results are those of the kernel as it was, bit for bit but for the
    order of vectorised sums, and do not depend on how many threads share the parallel loops."""
    names = itertools.count()
    rows = Rows(names)
    kernel = flatten(kernel)
    body = inline_lets(kernel.body)
    body = split_at_conditions(body, names)
    body = merge_loops(body, names)
    body = strip_divisions(body, names)
    body = interchange(body, rows)
    body = keep_rows(body, rows)
    scratch = tuple(rows.buffers)
    shared = share(Kernel(kernel.name, kernel.buffers, body), frozenset(b.name for b in scratch), False)
    return Scheduled(shared, scratch)


def loops_for_cpu(kernel: Kernel, entry: str) -> str:
    """The text of a lowered kernel, scheduled and rendered."""
    scheduled = schedule_cpu(kernel)
    return render_kernel(scheduled.kernel, entry, scheduled.scratch)
