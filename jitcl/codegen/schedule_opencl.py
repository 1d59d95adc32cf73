"""Which work-item computes what: a lowered kernel's loops spread over an OpenCL device.

a CPU device     one work-item a group, each with its share of the loops (schedule_opencl_cpu)
a GPU, elements  one element a work-item (of millions, eight, a stride apart), in the order of
                 memory, so that loads coalesce
a GPU, rows      one row a work-group: its lanes share reductions (partial results, then a
                 tree in local memory) and the loops over the row's elements
a GPU, scans     one chain a work-group: its lanes share each part of a step and meet behind it;
                 where groups don't work, one chain a work-item
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from jitcl.codegen.loops import inline_lets
from jitcl.codegen.render import flat
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule_opencl_cpu import cpu_form
from jitcl.codegen.schedule_opencl_scan import chain_lines, lanes_for
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import (
    Accum,
    Assign,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    expressions,
    scanned,
    statements,
)
from jitcl.ir.scalar import identity
from jitcl.target import Target

GROUP = 128  # work-items a group of a GPU, one element each
SMALL_GROUP = 64  # where local memory is emulated (Mali): reductions in small groups
ROW_GROUP = 256  # at most, one row each
MANY = 1 << 23  # elements from which a work-item takes STRIDES of them: starting one costs as much
STRIDES = 8     # as moving it, and a million work-items still fill any GPU
LONG = 64  # terms of a reduction that are worth sharing
ROWS = 4096  # with fewer rows, work-items would be idle without sharing


@dataclass(frozen=True)
class Scheduled:
    """A kernel's text with its launch, in work-items."""

    body: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


def schedule(kernel: Kernel, entry: str, target: Target) -> Scheduled:
    """Spread a lowered kernel over the target's work-items and render it."""
    if target.device_type == "cpu":
        text, items = cpu_form(kernel, entry, target)
        return Scheduled(text, (items,), (1,))
    renderer = OpenClRenderer(kernel, target.fp64, target.soft_half, target.half_builtins)
    nest, inner = parallel_nest(kernel)
    if scanned(kernel) and target.local_works:
        return chains(kernel, entry, renderer, target)
    group = ROW_GROUP if target.local_is_real else SMALL_GROUP
    lanes = min(group, target.reduction_group, target.max_work_group)
    form = RowForm(renderer, lanes, target.volatile_group_size)
    if target.local_works and not scanned(kernel) and form.suits(nest, inner):
        lines = form.lines(nest, inner)
        groups = math.prod(f.extent for f in nest)
        return Scheduled(renderer.kernel_text(entry, lines), (groups * form.lanes,), (form.lanes,))
    total = math.prod(f.extent for f in nest)
    local = min(GROUP, target.max_work_group, 1 << max(0, total - 1).bit_length())
    lines = element_lines(renderer, nest, inner, total)
    items = total // STRIDES if total >= MANY else total
    return Scheduled(renderer.kernel_text(entry, lines), (-(-items // local) * local,), (local,))


def chains(kernel: Kernel, entry: str, r: OpenClRenderer, target: Target) -> Scheduled:
    """A recurrence, one chain a work-group."""
    nest, inner = parallel_nest(kernel)
    lanes = lanes_for(inner, min(ROW_GROUP, target.max_work_group))
    places = decoded(r, nest, "p", "    ")
    parts = chain_lines(r, inner, 1)
    lines = [f"    {r.index} lane = get_local_id(0);"]
    if any("lanes" in line for line in parts):
        volatile = "volatile " if target.volatile_group_size else ""
        lines.append(f"    {volatile}{r.index} lanes = get_local_size(0);")
    if places := [line for line in places if _named(line.split()[1], parts)]:
        lines += [f"    {r.index} p = get_group_id(0);", *places]
    lines += parts
    groups = math.prod(f.extent for f in nest)
    return Scheduled(r.kernel_text(entry, lines), (groups * lanes,), (lanes,))


def _named(name: str, lines: list[str]) -> bool:
    """Whether a variable is read: chains of one step don't all ask which they are."""
    return any(re.search(rf"\b{name}\b", line) for line in lines)


def parallel_nest(kernel: Kernel) -> tuple[list[For], tuple[Stmt, ...]]:
    """The outer independent loops, and what stands inside them.

    Values that were named between the loops move into the innermost, so that the nest is perfect.
    """
    nest: list[For] = []
    body = inline_lets(kernel.body)
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "parallel":
        nest.append(body[0])
        body = body[0].body
    return nest, share(Kernel(kernel.name, kernel.buffers, body)).body


def decoded(renderer: OpenClRenderer, nest: list[For], position: str, pad: str) -> list[str]:
    """Declarations of the loops' variables from a position in row-major order."""
    lines, rest = [], math.prod(f.extent for f in nest)
    for depth, f in enumerate(nest):
        rest //= f.extent
        at = position if rest == 1 else f"{position} / {rest}"
        at = at if depth == 0 else f"{at} % {f.extent}"
        lines.append(f"{pad}{renderer.index} {f.var.value} = {at};")
    return lines


# ---- elements of a GPU


def element_lines(
    r: OpenClRenderer, nest: list[For], inner: tuple[Stmt, ...], total: int
) -> list[str]:
    """One work-item an iteration of the nest; of very many, each takes several, a stride apart."""
    if not nest:
        return ["    if (get_global_id(0) != 0) return;", *r.block(inner, 1)]
    name = "p" if len(nest) > 1 else nest[0].var.value
    if total >= MANY:
        head = (f"    for ({r.index} {name} = get_global_id(0); {name} < {total}; "
                f"{name} += get_global_size(0)) {{")
        places = decoded(r, nest, name, "        ") if len(nest) > 1 else []
        return [head, *places, *r.block(inner, 2), "    }"]
    lines = [f"    {r.index} {name} = get_global_id(0);", f"    if ({name} >= {total}) return;"]
    if len(nest) > 1:
        lines += decoded(r, nest, name, "    ")
    return lines + r.block(inner, 1)


# ---- rows of a GPU


@dataclass
class RowForm:
    """One work-group a row: reductions and inner parallel loops are shared by its lanes."""

    renderer: OpenClRenderer
    lanes: int  # work-items a group, a power of two; halved for short rows
    volatile: bool = False  # the compiler must not know the group's size

    def suits(self, nest: list[For], inner: tuple[Stmt, ...]) -> bool:
        """Whether lanes can share the row's work, and gain by it."""
        loops = [s for s in inner if isinstance(s, For)]
        shared = [s for s in loops if s.kind != "parallel"]
        if not shared or not all(shareable(s) for s in shared) or _accumulated_twice(shared):
            return False
        longest = max(trips_of(s) for s in loops)
        while self.lanes > 32 and self.lanes >= 2 * longest:
            self.lanes //= 2
        if any(s.kind == "parallel" for s in loops):
            return longest >= 32 or not nest
        if longest < LONG:
            return False
        rows = math.prod(f.extent for f in nest)
        return rows < ROWS or along_rows(self.renderer.kernel, nest, shared)

    def lines(self, nest: list[For], inner: tuple[Stmt, ...]) -> list[str]:
        r = self.renderer
        reduced = {
            v.value: v
            for s in inner
            if isinstance(s, For) and s.kind != "parallel"
            for v in accumulators(s)
        }
        lines = [
            f"    __local {_local(r, v.dtype)} part_{v.value}[{self.lanes}];"
            for v in reduced.values()
        ]
        lines += [
            f"    {r.index} lane = get_local_id(0);",
            f"    {'volatile ' if self.volatile else ''}{r.index} lanes = get_local_size(0);",
        ]
        if nest:
            lines.append(f"    {r.index} p = get_group_id(0);")
        lines += decoded(r, nest, "p", "    ")
        combines = {s.var.value: s.combine for s, _ in statements(inner) if isinstance(s, Accum)}
        for s in inner:
            if isinstance(s, Let) and s.var.value in reduced:
                lines += self._start(s, combines[s.var.value])
            elif isinstance(s, For):
                lines += self._shared_loop(s)
                if s.kind != "parallel":
                    for v in accumulators(s):
                        lines += self._tree(v, combines[v.value])
            elif isinstance(s, Store):
                lines += ["    if (lane == 0) {", *r.stmt(s, 2), "    }"]
            else:
                lines += r.stmt(s, 1)
        return lines

    def _start(self, s: Let, combine: str) -> list[str]:
        """Lane 0 starts from the declared value, the others from what changes nothing."""
        r = self.renderer
        neutral = E.const(identity(combine, s.var.dtype), s.var.dtype)
        start = r.expr(s.value)
        if s.value is not neutral:
            start = f"lane == 0 ? {r.operand(s.value, 4)} : {r.expr(neutral)}"
        return [f"    {r.ctype(s.var.dtype)} {s.var.value} = {start};"]

    def _shared_loop(self, s: For) -> list[str]:
        """A loop (with those perfectly nested in it) with its iterations dealt out to the lanes
        in turn.
        """
        r, nest = self.renderer, [s]
        while (
            len(nest[-1].body) == 1
            and isinstance(nest[-1].body[0], For)
            and nest[-1].body[0].kind == s.kind
        ):
            nest.append(nest[-1].body[0])
        if len(nest) == 1:
            return r.loop(s, 1, "lane", "", "lanes")
        total = math.prod(f.extent for f in nest)
        name = f"k_{s.var.value}"
        return [
            f"    for ({r.index} {name} = lane; {name} < {total}; {name} += lanes) {{",
            *decoded(r, nest, name, "        "),
            *r.block(nest[-1].body, 2),
            "    }",
        ]

    def _tree(self, v: Expr, combine: str) -> list[str]:
        """All lanes get the combination of their values."""
        r, part = self.renderer, f"part_{v.value}"
        other = E.var(f"{part}[lane + step]", v.dtype)
        mine = E.var(f"{part}[lane]", v.dtype)
        joined = r.expr(E.make(combine, (mine, other), v.dtype))
        return [
            f"    {part}[lane] = {v.value};",
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            "    for (int step = lanes / 2; step > 0; step /= 2) {",
            f"        if (lane < step) {part}[lane] = {joined};",
            "        barrier(CLK_LOCAL_MEM_FENCE);",
            "    }",
            f"    {v.value} = {part}[0];",
        ]


def _local(renderer: OpenClRenderer, dtype: str) -> str:
    """The type that local memory holds a value in."""
    return "uchar" if dtype == "bool" else renderer.ctype(dtype)


def accumulators(loop: For) -> list[Expr]:
    """The variables that a loop nest accumulates into."""
    return list(dict.fromkeys(s.var for s, _ in statements((loop,)) if isinstance(s, Accum)))


def _accumulated_twice(loops: list[For]) -> bool:
    names = [v.value for s in loops for v in accumulators(s)]
    return len(names) != len(set(names))


def shareable(loop: For) -> bool:
    """Whether a reduction's iterations are independent: nothing reads what the loop accumulates,
    nothing stores or is carried along.
    """
    own = {v.value for v in accumulators(loop)}
    combines: dict[str, str] = {}
    for s, _ in statements((loop,)):
        if isinstance(s, (Assign, Store)) or any(x.free & own for x in expressions(s)):
            return False
        if isinstance(s, Accum) and combines.setdefault(s.var.value, s.combine) != s.combine:
            return False
        if isinstance(s, Let) and s.var.value in own:
            return False  # an accumulator of the loop's own: a reduction inside the reduction
    return "index" not in {v.dtype for v in accumulators(loop)}


def trips_of(loop: For) -> int:
    """Iterations of a loop and of those perfectly nested in it."""
    n = loop.extent
    while len(loop.body) == 1 and isinstance(loop.body[0], For):
        loop = loop.body[0]
        n *= loop.extent
    return n


def along_rows(kernel: Kernel, nest: list[For], reductions: list[For]) -> bool:
    """Whether the reductions read memory along their own loops, and nothing along the innermost
    parallel one.
    """
    column = nest[-1].var if nest else None
    inside = {s.var for loop in reductions for s, _ in statements((loop,)) if isinstance(s, For)}
    rows = columns = 0
    shapes = {b.name: b.shape for b in kernel.buffers}
    for loop in reductions:
        for s, _ in statements((loop,)):
            for x in (e for top in expressions(s) for e in E.walk(top) if e.op == "load"):
                strides, _ = E.linear(flat(shapes[x.value], x.indices))
                rows += any(strides.get(v) == 1 for v in inside)
                columns += column is not None and strides.get(column) == 1
    return rows > 0 and columns == 0
