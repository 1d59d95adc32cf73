"""Generated loops on an OpenCL CPU device: the CPU path's loop transformations, in OpenCL C.

A work-item takes a share of each outer parallel nest, as a thread does on the CPU path;
work-groups have one work-item. The driver's compiler vectorises loops whose iterations are
independent, but no sum, so reductions along memory are written with vectors: partial results in
each lane, joined at the end, in the same order every time.
"""

from __future__ import annotations

import math

from jitcl import dtypes
from jitcl.codegen.opencl_expressions import ADD, LOGIC
from jitcl.codegen.opencl_helpers import CTYPE
from jitcl.codegen.render_numba import common_guard, guard_range
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule_cpu import schedule_cpu
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, Buffer, For, Kernel, Stmt, Store, statements
from jitcl.ir.scalar import identity
from jitcl.target import Target

SHARE = 4096  # statements a work-item should run, about 2 us
SHARES = 4  # work-items a core, so that cores finish together
GATHERED = 4  # lanes further apart than this are left to the driver's compiler
VECTOR = 16  # elements that a share of a flat loop is a multiple of


def cpu_form(kernel: Kernel, target: Target) -> tuple[str, int]:
    """(the kernel's text, work-items)."""
    scheduled = schedule_cpu(kernel)
    r = CpuRenderer(scheduled.kernel, scheduled.scratch, target)
    lines = r.body()
    rows = [f"    {CTYPE[b.dtype]} {b.name}[{b.size}];" for b in scheduled.scratch]
    return r.kernel_text([*rows, *lines]), r.shares


class NoVector(JitclError):
    """A reduction's term is no function of neighbouring elements: the loop stays scalar."""


class CpuRenderer(OpenClRenderer):
    """As OpenClRenderer; loops take their guards' ranges, and sums along memory are vectors."""

    def __init__(self, kernel: Kernel, scratch: tuple[Buffer, ...], target: Target) -> None:
        super().__init__(kernel, target.fp64, target.soft_half, target.half_builtins)
        self.shapes |= {b.name: b.shape for b in scratch}
        self.stored |= {b.name: dtypes.compute(b.dtype) for b in scratch}
        self.width = min(target.vector_width, target.max_vector_width)
        self.shares = self._count(kernel.body, SHARES * target.compute_units)

    # ---- shares

    def _count(self, body: tuple[Stmt, ...], most: int) -> int:
        """Work-items: not more than there is work for; few where each must compute a common part.
        """
        common = sum(_cost(s) for s in body if not _is_parallel(s))
        shared = sum(_cost(s) for s in body if _is_parallel(s))
        if shared <= common:
            return 1
        widest = max(math.prod(f.extent for f in _nest(s)) for s in body if _is_parallel(s))
        fair = shared // max(SHARE, 4 * common)
        return max(1, min(most, fair, widest))

    def body(self) -> list[str]:
        """The kernel's statements; stores outside parallel loops are the first work-item's."""
        lines = [f"    {self.index} p = get_global_id(0);"] if self.shares > 1 else []
        for s in self.kernel.body:
            if _is_parallel(s) and self.shares > 1:
                lines += self.share(s)  # type: ignore[arg-type]
            elif isinstance(s, (Store, For)) and self.shares > 1 and _stores(s):
                lines += ["    if (p == 0) {", *self.stmt(s, 2), "    }"]
            else:
                lines += self.stmt(s, 1)
        return lines

    def share(self, loop: For) -> list[str]:
        """This work-item's part of a parallel nest: a range of the outermost loops that are enough.
        """
        nest = _nest(loop)
        depth = 1
        while depth < len(nest) and math.prod(f.extent for f in nest[:depth]) < 4 * self.shares:
            depth += 1
        leaf = depth == len(nest) and not any(isinstance(s, For) for s in nest[-1].body)
        if leaf and depth > 1 and math.prod(f.extent for f in nest[:-1]) >= self.shares:
            depth, leaf = depth - 1, False  # the innermost loop stays whole, for vectors
        outer = nest[:depth]
        total = math.prod(f.extent for f in outer)
        part = -(-total // self.shares)
        part = -(-part // VECTOR) * VECTOR if leaf and depth == 1 else part
        name = outer[0].var.value if depth == 1 else f"q_{outer[0].var.value}"
        end = f"min(p * {part} + {part}, ({self.index}){total})"
        head = f"    for ({self.index} {name} = p * {part}; {name} < {end}; ++{name}) {{"
        lines, rest = [head], total
        for k, f in enumerate(outer if depth > 1 else ()):
            rest //= f.extent
            at = name if rest == 1 else f"{name} / {rest}"
            lines.append(
                f"        {self.index} {f.var.value} = {at if k == 0 else f'{at} % {f.extent}'};"
            )
        return [*lines, *self.block(outer[-1].body, 2), "    }"]

    # ---- loops

    def loop(
        self, s: For, indent: int, first: str = "0", end: str = "", step: str = ""
    ) -> list[str]:
        """A guard that all statements of a loop share becomes its range, as far as it is one."""
        guard = common_guard(s)
        if guard is not None:
            return self._ranged(s, guard, indent)
        if first != "0" or end or step:
            return super().loop(s, indent, first, end, step)
        if s.body and all(isinstance(b, Store) for b in s.body):
            return self._along(s, indent, E.index(0), E.index(s.extent))
        return self._vector_sum(s, indent) or super().loop(s, indent)

    def _ranged(self, s: For, guard: Expr, indent: int) -> list[str]:
        low, high, outside, rest = guard_range(guard, s.var)
        body = tuple(
            Store(b.buffer, b.indices, b.value, rest) for b in s.body if isinstance(b, Store)
        )
        plain = For(s.var, s.kind, body)
        if outside is None:
            return self._along(plain, indent, low, high)
        return [
            f"{'    ' * indent}if ({self.expr(outside)}) {{",
            *self._along(plain, indent + 1, low, high),
            "    " * indent + "}",
        ]

    def _along(self, s: For, indent: int, low: Expr, high: Expr) -> list[str]:
        """A loop from low to high: whole vectors first, if it stores one element after the other.
        """
        store, v, w = s.body[0], s.var.value, self.width
        first, end = self.expr(low), self.expr(high)
        if (
            len(s.body) != 1
            or not isinstance(store, Store)
            or not 1 < w <= s.extent
            or store.guard is not None
        ):
            return super().loop(s, indent, first, end)
        try:
            line = Vector(self, s.var, w).store(store)
        except NoVector:
            return super().loop(s, indent, first, end)
        pad = "    " * indent
        if low.is_const and high.is_const:
            count = (high.value - low.value) // w * w
            whole, rest = str(low.value + count), low.value + count < high.value
            lines = [
                f"{pad}for ({self.index} {v} = {first}; {v} < {whole}; {v} += {w}) {{",
                f"{pad}    {line}",
                pad + "}",
            ]
            return lines + (super().loop(s, indent, whole, end) if rest else [])
        return [
            f"{pad}{{",
            f"{pad}    {self.index} {v} = {first}, {v}_end = {end};",
            f"{pad}    for (; {v} + {w} <= {v}_end; {v} += {w}) {{",
            f"{pad}        {line}",
            f"{pad}    }}",
            f"{pad}    for (; {v} < {v}_end; ++{v}) {{",
            *self.block(s.body, indent + 2),
            f"{pad}    }}",
            f"{pad}}}",
        ]

    # ---- reductions along memory

    def _vector_sum(self, s: For, indent: int) -> list[str]:
        """The loop with its iterations in vector lanes; [] where that can't be or doesn't pay."""
        if (
            s.extent < 2 * self.width
            or not all(isinstance(b, Accum) for b in s.body)
            or self.width < 4
        ):
            return []
        accums = [b for b in s.body if isinstance(b, Accum)]
        own = {a.var.value for a in accums}
        if len(own) < len(accums) or any(
            a.var.dtype != "f32" or a.value.free & own for a in accums
        ):
            return []
        try:
            values = [Vector(self, s.var, self.width).wide(a.value) for a in accums]
        except NoVector:
            return []
        n, w, pad, v = s.extent, self.width, "    " * indent, s.var.value
        lines = []
        for a in accums:
            start = self.literal(identity(a.combine, "f32"), "f32")[0]
            lines.append(f"{pad}float{w} {a.var.value}_v = (float{w})({start});")
        lines.append(f"{pad}for ({self.index} {v} = 0; {v} < {n - n % w}; {v} += {w}) {{")
        lines += [
            f"{pad}    {self._join(a, f'{a.var.value}_v', value, w)}"
            for a, value in zip(accums, values)
        ]
        lines.append(pad + "}")
        for a in accums:
            lines += self._fold(a, w, pad)
        if n % w:
            lines += super().loop(s, indent, str(n - n % w))
        return lines

    def _join(self, a: Accum, name: str, value: str, lanes: int) -> str:
        if a.combine in ("add", "mul"):
            return f"{name} {'+' if a.combine == 'add' else '*'}= {value};"
        self.helpers[f"{a.combine}_f32x{lanes}"] = None
        return f"{name} = jitcl_{a.combine}_f32x{lanes}({name}, {value});"

    def _fold(self, a: Accum, w: int, pad: str) -> list[str]:
        """Halve a vector of partial results until one is left."""
        lines, name = [], f"{a.var.value}_v"
        while w > 2:
            w //= 2
            half = f"{a.var.value}_v{w}"
            lines.append(f"{pad}float{w} {half} = {name}.lo;")
            lines.append(f"{pad}{self._join(a, half, f'{name}.hi', w)}")
            name = half
        pair = (E.var(f"{name}.x", "f32"), E.var(f"{name}.y", "f32"))
        both = E.make(a.combine, pair, "f32")
        return [*lines, f"{pad}{self.accumulate(a.var, a.combine, both)}"]


class Vector:
    """An expression over `width` neighbouring iterations of one loop, as OpenCL vector code."""

    SAME = ("exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "trunc")
    COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
    INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}

    def __init__(self, renderer: OpenClRenderer, var: Expr, width: int) -> None:
        self.r, self.var, self.width = renderer, var, width

    def wide(self, x: Expr) -> str:
        """A vector of floats. Raises NoVector for what only scalar code can do."""
        if x.dtype not in ("f32", "f16", "bf16"):
            raise NoVector("not a float")
        if self.var.value not in x.free:
            return f"(float{self.width})({self.r.expr(x)})"
        if x.op == "load":
            return self.load(x)
        if (
            x.op == "cast"
            and x.args[0].dtype == "f16"
            and x.dtype == "f32"
            and x.args[0].op == "load"
        ):
            return self.load(x.args[0])
        if x.op in self.INFIX:
            return f"({self.wide(x.args[0])} {self.INFIX[x.op]} {self.wide(x.args[1])})"
        if x.op == "neg":
            return f"(-{self.wide(x.args[0])})"
        if x.op == "abs":
            return f"fabs({self.wide(x.args[0])})"
        if x.op in self.SAME:
            return f"{x.op}({self.wide(x.args[0])})"
        if x.op in ("max", "min"):
            self.r.helpers[f"{x.op}_f32x{self.width}"] = None
            args = ", ".join(self.wide(a) for a in x.args)
            return f"jitcl_{x.op}_f32x{self.width}({args})"
        if x.op == "select":
            condition, yes, no = x.args
            if self.var.value not in condition.free:
                return f"({self.r.expr(condition)} ? {self.wide(yes)} : {self.wide(no)})"
            return f"select({self.wide(no)}, {self.wide(yes)}, {self.mask(condition)})"
        raise NoVector(x.op)

    def mask(self, x: Expr) -> str:
        """A truth value as lanes of 0 and -1."""
        if self.var.value not in x.free:
            return f"(int{self.width})({self.r.operand(x, LOGIC)} ? -1 : 0)"
        if x.op in self.COMPARE and x.args[0].dtype == "f32":
            return f"({self.wide(x.args[0])} {self.COMPARE[x.op]} {self.wide(x.args[1])})"
        if x.op in ("and", "or"):
            return (
                f"({self.mask(x.args[0])} {'&' if x.op == 'and' else '|'} {self.mask(x.args[1])})"
            )
        if x.op == "not":
            return f"(~{self.mask(x.args[0])})"
        if x.op in ("isnan", "isinf") and x.args[0].dtype == "f32":
            return f"{x.op}({self.wide(x.args[0])})"
        raise NoVector(x.op)

    def store(self, s: Store) -> str:
        """A statement that stores the lanes one after the other."""
        dtype = self.r.stored[s.buffer]
        if len(s.indices) != 1 or self._stride(s.indices[0]) != 1 or dtype not in ("f32", "f16"):
            raise NoVector("not along memory")
        value = s.value
        if dtype == "f16" and value.op == "cast" and value.dtype == "f16":
            value = E.cast(value.args[0], "f32")
        if any(
            e.op == "load" and e.value == s.buffer and e.indices != s.indices for e in E.walk(value)
        ):
            raise NoVector("reads what it writes")
        at = self.r.operand(s.indices[0], ADD + 1)
        return f"{self.r.write_vector(s.buffer, at, self.wide(value), self.width)};"

    def _stride(self, index: Expr) -> int:
        """Elements from one lane to the next. Raises NoVector where that differs."""
        terms, _ = E.linear(index)
        if any(self.var.value in t.free for t in terms if t is not self.var):
            raise NoVector("no stride")
        return terms.get(self.var, 0)

    def load(self, x: Expr) -> str:
        dtype = self.r.stored[x.value]
        if x.guard is not None or len(x.indices) != 1 or dtype not in ("f32", "f16"):
            raise NoVector("guarded")
        stride = self._stride(x.indices[0])
        if stride != 1:
            if abs(stride) > GATHERED:
                raise NoVector("far apart")
            lanes = (x.indices[0] + stride * k for k in range(self.width))
            each = (self.r.expr(E.load(x.value, (i,), x.dtype)) for i in lanes)
            return f"(float{self.width})({', '.join(each)})"
        return self.r.read_vector(x.value, self.r.operand(x.indices[0], ADD + 1), self.width)


def _is_parallel(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "parallel"


def _nest(s: Stmt) -> list[For]:
    """A parallel loop and those perfectly nested in it."""
    assert isinstance(s, For)
    nest = [s]
    while len(nest[-1].body) == 1 and _is_parallel(nest[-1].body[0]):
        nest.append(nest[-1].body[0])  # type: ignore[arg-type]
    return nest


def _cost(s: Stmt) -> int:
    """Statements that one pass runs."""
    return sum(trips for inner, trips in statements((s,)) if not isinstance(inner, For))


def _stores(s: Stmt) -> bool:
    return any(isinstance(inner, Store) for inner, _ in statements((s,)))
