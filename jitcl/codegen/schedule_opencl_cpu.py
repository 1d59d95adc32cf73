"""Kernels for OpenCL devices that are CPUs: the CPU path's loops, with vectors, in work-items.

    for i < 64 @parallel { for j < 100 @parallel { y[i, j] = x[i, j] + b[j] } }
    =>  for item < 8 @item {
          for i < 64 @loop from item * 8 to item * 8 + 8 {
            for j < 96 @loop by 8 { for lane0 < 8 @vec { .. } }
            for j < 100 @loop from 96 { .. } } }

A work-item takes a share of each outer parallel nest, as a thread does on the CPU path;
work-groups have one work-item. The driver's compiler vectorises loops whose iterations are
independent, but no sum, and functions one lane at a time: so vectors are written.
"""

from __future__ import annotations

import math
from dataclasses import replace

from jitcl.codegen.axes import merge
from jitcl.codegen.loops import Body, nest_of
from jitcl.codegen.schedule_cpu import schedule_cpu
from jitcl.codegen.schedule_gpu import by_first, in_turn
from jitcl.codegen.vectorise import vectorise
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import For, Kernel, Stmt, Store, counted, is_parallel, statements
from jitcl.target import Target

SHARE = 4096  # statements a work-item should run, about 2 us
SHARES = 4  # work-items a core, so that cores finish together
VECTOR = 16  # elements that a share of a flat loop is a multiple of


def schedule_opencl_cpu(kernel: Kernel, target: Target) -> Kernel:
    """The kernel's loops shared among work-items, the innermost ones as vectors."""
    scheduled = schedule_cpu(kernel, short=False)
    rows = tuple(replace(b, role="private") for b in scheduled.scratch)
    kernel = replace(scheduled.kernel, arrays=rows)
    shares = work_items(kernel.body, SHARES * target.compute_units)
    return vectorise(replace(kernel, body=shared(kernel, shares)), target)


def work_items(body: Body, most: int) -> int:
    """Not more than there is work for; few where each must compute a common part."""
    common = sum(_cost(s) for s in body if not is_parallel(s))
    nests = [s for s in body if is_parallel(s)]
    total = sum(map(_cost, nests))
    if total <= common:
        return 1
    widest = max(math.prod(f.extent for f in nest_of(s, "parallel")) for s in nests)
    return max(1, min(most, total // max(SHARE, 4 * common), widest))


def shared(kernel: Kernel, shares: int) -> Body:
    """Parallel nests shared among work-items; stores outside of them are the first one's."""
    item = E.var("item", extent=shares)
    body: list[Stmt] = []
    for s in kernel.body:
        if is_parallel(s) and shares > 1:
            body.append(share(s, item))
        elif shares > 1 and any(isinstance(i, Store) and any(i.buffer == b.name
                                for b in kernel.buffers) for i in statements((s,))):
            body.append(_by_first_item(s, item))
        else:
            body += in_turn((s,))
    return (For(item, "item", tuple(body)),)


def _by_first_item(s: Stmt, item: Expr) -> Stmt:
    if isinstance(s, Store):
        return by_first(s, item)
    assert isinstance(s, For)
    end = E.call("select", E.call("eq", item, E.index(0)), E.index(s.extent), E.index(0))
    return replace(s, kind="loop", body=in_turn(s.body), end=end)


def share(loop: For, item: Expr) -> For:
    """A work-item's part of a parallel nest: a range of the outermost loops that are enough."""
    nest, shares = nest_of(loop, "parallel"), item.extent
    assert shares is not None
    depth = 1
    while depth < len(nest) and math.prod(f.extent for f in nest[:depth]) < 4 * shares:
        depth += 1
    leaf = depth == len(nest) and not any(isinstance(s, For) for s in nest[-1].body)
    if leaf and depth > 1 and math.prod(f.extent for f in nest[:-1]) >= shares:
        depth, leaf = depth - 1, False  # the innermost loop stays whole, for vectors
    outer, body = nest[0], nest[depth - 1].body
    if depth > 1:
        outer, body = merge(nest[:depth], body)
    part = -(-outer.extent // shares)
    part = -(-part // VECTOR) * VECTOR if leaf and depth == 1 else part
    return For(outer.var, "loop", in_turn(body), item * part, 1, item * part + part)


def _cost(s: Stmt) -> int:
    """Statements that one pass runs."""
    return sum(trips for inner, trips in counted((s,)) if not isinstance(inner, For))
