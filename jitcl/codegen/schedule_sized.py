"""Kernels whose sizes are parameters: plain loops that are right for every size.

    sizes of one shape          for i in range(24): ..           tuned for 24, built for 24
    sizes that are parameters   for i in range((4 * size0)): ..  built once

The schedules of fixed sizes ask what divides what and which loop is long. Here the loops stay as
they are lowered, but for merging; on OpenCL devices each element of the output, or each row that
reductions share, is a work-item's. Sizes stand in the text as polynomials over `size0`, `size1`,
.. (`ir/sizes.py`), which are the kernel's integer parameters behind its buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jitcl.codegen.axes import spread
from jitcl.codegen.loops import merged
from jitcl.codegen.render_numba import NumbaRenderer, kernel_text, outer_loops
from jitcl.codegen.render_numba import parallel_nest as nest_of
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule_gpu import parallel_nest
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import For, Kernel, expressions, statements
from jitcl.ir.sizes import Size, Space, has_size, is_size, judged_by_hint
from jitcl.target import Target

GROUP = 64                      # work-items a group


@dataclass(frozen=True)
class Sized:
    """A kernel's text; `params` are what it takes behind its buffers."""

    body: str
    params: Mapping[str, int]
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


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
    for stmt, _ in statements(kernel.body):
        if isinstance(stmt, For):
            found += [d for d in (stmt.extent,) if is_size(d)]
        for x in expressions(stmt):
            found += [e.value for e in E.walk(x) if e.is_const and is_size(e.value)]
    return found


def sized_for_cpu(kernel: Kernel, entry: str) -> Sized:
    """For the CPU path."""
    r = SizedRenderer(share(merged(kernel), addresses=False))
    text = kernel_text(r, entry)
    return Sized(text, r.sizes.params())


def sized_for_opencl(kernel: Kernel, target: Target) -> Sized:
    """For OpenCL devices: a work-item an iteration of the outer parallel loops."""
    plain = merged(kernel)
    nest, inner = parallel_nest(plain)
    nest = nest or [For(E.var("item", extent=1), "parallel", ())]       # of one element
    total = math.prod(f.extent for f in nest)
    plain = replace(plain, body=spread(nest, "item", inner, (len(nest),)))
    r = OpenClRenderer(plain, target.fp64, target.soft_half, target.half_builtins)
    local = min(GROUP, target.max_work_group)
    text = r.scheduled((local,))
    items = (total + local - 1) // local * local
    return Sized(text, r.sizes.params(), (items,), (local,))


class SizedRenderer(NumbaRenderer):
    """Threads share all the outer loops that NumbaRenderer might split."""

    def split(self, loop: For) -> list[str]:
        nest = nest_of(loop)
        with judged_by_hint():
            count = outer_loops(nest)
        return self.split_many(nest[:count])


__all__ = ["Sized", "group_is_sized", "sized_for_cpu", "sized_for_opencl", "sizes_of"]
