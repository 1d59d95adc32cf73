"""Kernels whose sizes are parameters: plain loops that are right for every size.

    sizes of one shape          for i in range(24): ..           tuned for 24, built for 24
    sizes that are parameters   for i in range((4 * size0)): ..  built once

The schedules of fixed sizes ask what divides what and which loop is long. Here the loops stay as
they are lowered, but for merging. On OpenCL devices they are axes of the NDRange, an element of the
output a work-item; of rows that are long now, when the kernel is made, lanes share the reductions.
Sizes stand in the text as polynomials over `size0`, `size1`, .. (`ir/sizes.py`), which are the
kernel's integer parameters behind its buffers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jitcl.codegen.axes import spread
from jitcl.codegen.loops import (
    distribute,
    drop_unused,
    flatten,
    inline_lets,
    merge_loops,
    merged,
    nest_of,
    rewrite,
)
from jitcl.codegen.render_numba import MIN_PIECES, NumbaRenderer, kernel_text, outer_loops
from jitcl.codegen.schedule_gpu import (
    ROW_GROUP,
    chains,
    in_turn,
    parallel_nest,
    row_lanes,
    rows,
)
from jitcl.codegen.schedule_opencl import Scheduled, rendered
from jitcl.codegen.share import share
from jitcl.codegen.split import split_at_conditions
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import For, Kernel, Stmt, expressions, scanned, statements
from jitcl.ir.sizes import (
    Size,
    Space,
    at_least_always,
    has_size,
    hint,
    is_size,
    judged_by_hint,
)
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.target import Target
from jitcl.templates.base import ENTRY


def group_is_sized(group: Group) -> bool:
    """Whether a size that is not known has to do with a group."""
    return any(_node_is_sized(n) for n in (*group.members, *group.operands))


def _node_is_sized(node: Node) -> bool:
    return has_size((node.type.shape, tuple(v for _, v in node.attrs)))


def space_of(group: Group) -> Space | None:
    """Of the sizes that a group has; None where it has none."""
    for node in (*group.members, *group.operands):
        for value in (node.type.shape, *(v for _, v in node.attrs)):
            for size in value if isinstance(value, tuple) else (value,):
                if is_size(size):
                    return size.space
    return None


def sizes_of(kernel: Kernel) -> list[Size]:
    """The sizes that a kernel's buffers, loops and literals have; none of most kernels."""
    found = [d for b in kernel.buffers for d in b.shape if is_size(d)]
    for stmt in statements(kernel.body):
        if isinstance(stmt, For):
            found += [d for d in (stmt.extent,) if is_size(d)]
        for x in expressions(stmt):
            found += [e.value for e in E.walk(x) if e.is_const and is_size(e.value)]
    return found


def sized_for_cpu(kernel: Kernel) -> Scheduled:
    """For the CPU path: loops over what is a number (channels) are cut where a condition changes.
    """
    r = SizedRenderer(share(_flat(kernel) if scanned(kernel) else _cut(kernel), addresses=False))
    return Scheduled(kernel_text(r, ENTRY), (), (), r.sizes.params())


def sized_for_opencl(kernel: Kernel, target: Target) -> Scheduled:
    """For OpenCL devices: what `schedule_sized` makes of it, verified for the sizes of now."""
    scheduled = schedule_sized(kernel, target)
    verify_schedule(with_sizes(scheduled, hint), target.local_memory or None)
    return rendered(scheduled, target)


def schedule_sized(kernel: Kernel, target: Target) -> Kernel:
    """A row of the outer parallel loops a work-group, where lanes may share its reductions and it
    is long now; else an iteration a work-item.
    """
    plain = _flat(kernel)
    nest, inner = parallel_nest(plain)
    if scanned(kernel) and target.local_works:
        return chains(plain, nest, inner, min(ROW_GROUP, target.max_work_group))
    lanes = 0
    if target.local_works and target.device_type != "cpu":
        with judged_by_hint():
            lanes = row_lanes(plain, nest, inner, target)
    if lanes:
        return rows(plain, nest, inner, lanes)
    nest = nest or [For(E.var("item", extent=1), "parallel", ())]       # of one element
    return replace(plain, body=spread(nest, "item", in_turn(inner)))


def _flat(kernel: Kernel) -> Kernel:
    """One axis a buffer; neighbouring loops merged, but where the order of stores matters."""
    return flatten(kernel) if scanned(kernel) else merged(kernel)


def _cut(kernel: Kernel) -> Kernel:
    """As `_flat`, but for cuts."""
    kernel, names = flatten(kernel), itertools.count()
    body = drop_unused(distribute(split_at_conditions(inline_lets(kernel.body), names)))
    return replace(kernel, body=merge_loops(body, names))


def with_sizes(kernel: Kernel, number: Callable[[Any], int]) -> Kernel:
    """The kernel with a number in the place of each size."""
    memo: dict[Expr, Expr] = {}

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr:
        value = number(e.value) if e.is_const and is_size(e.value) else e.value
        extent = None if e.extent is None else number(e.extent)
        return E.make(e.op, args, e.dtype, value, extent, e.guarded)

    def fixed(x: Expr) -> Expr:
        return E.mapped(x, change, memo)

    def statement(s: Stmt) -> Stmt:
        if not isinstance(s, For):
            return rewrite(s, fixed)
        first, end = (None if e is None else fixed(e) for e in (s.first, s.end))
        return replace(s, var=fixed(s.var), body=tuple(map(statement, s.body)), first=first,
                       end=end)
    buffers = tuple(replace(b, shape=tuple(map(number, b.shape))) for b in kernel.buffers)
    return replace(kernel, buffers=buffers, body=tuple(map(statement, kernel.body)))


class SizedRenderer(NumbaRenderer):
    """Threads share all the outer loops that NumbaRenderer might split, or the longest one where
    these may be a batch of one."""

    def split(self, loop: For) -> list[str]:
        nest = nest_of(loop, "parallel")
        with judged_by_hint():
            count = outer_loops(nest)
            longest = max(range(len(nest)), key=lambda k: nest[k].extent)
        few = not at_least_always(math.prod(f.extent for f in nest[:count]), MIN_PIECES)
        if few and longest == len(nest) - 1 >= count and is_size(nest[longest].extent):
            return self.split_one(nest, longest)
        return self.split_many(nest[:count])


__all__ = ["group_is_sized", "schedule_sized", "sized_for_cpu", "sized_for_opencl", "sizes_of",
           "with_sizes"]
