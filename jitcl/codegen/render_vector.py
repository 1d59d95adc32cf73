"""Kernel IR -> Numba source over vectors: one lane a channel of a blocked layout (NCHW16c).

A blocked buffer's innermost axis is `width` channels, which take the same path through a kernel. So
the loop over them becomes one vector: loads along it are vector loads, loads that do not depend on
it scalars that are broadcast.
"""

from __future__ import annotations

import functools
from itertools import takewhile
from typing import Any

from jitcl import dtypes
from jitcl.codegen.flags import flagging_of, text_params
from jitcl.codegen.loops import nest_of
from jitcl.codegen.render import NotVectorisable, SizesWritten, render
from jitcl.codegen.render_numba import NumbaRenderer, bits_of, looked_at, only_stored, stored_value
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import (
    Accum,
    Assign,
    Buffer,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    is_parallel,
    read_by,
    statements,
)
from jitcl.ir.sizes import at_least_always, same
from jitcl.templates.base import Lines

_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_INFIX = {"lt": "<", "ge": ">="}


class VectorRenderer(NumbaRenderer):
    """As NumbaRenderer, with the variable `lane` spread over a vector of `width`."""

    def __init__(self, kernel: Kernel, lane: Expr, width: int, wide: tuple[str, ...] = (),
                 sizes: SizesWritten | None = None) -> None:
        super().__init__(kernel, sizes=sizes)
        self.lane, self.width = lane, width
        self.wide: set[str] = {lane.value, *wide}  # variables whose values are vectors
        self.named: dict[Any, Expr] = {}           # .. and what those so far are
        changed = True
        while changed:
            before = len(self.wide)
            for s in statements(kernel.body):
                if isinstance(s, (Let, Accum)) and self.is_wide(s.value):
                    self.wide.add(s.var.value)
            changed = len(self.wide) > before

    def is_wide(self, x: Expr) -> bool:
        return bool(x.free & self.wide)

    def expr(self, x: Expr) -> str:
        if x.dtype == "index" and self.is_wide(x):
            return self.lane_numbers(x)
        if x.op in _COMPARE and self.is_wide(x):
            return self.compare(x)
        return super().expr(x)

    def lane_numbers(self, x: Expr) -> str:
        """An index that grows by one from lane to lane, as a vector of i64."""
        return f"(lane_index({self.width}) + {self.base(x)})"

    def compare(self, x: Expr) -> str:
        """Whole blocks are compared by their first lane: 16 * kb + lane < 64 is 16 * kb < 64."""
        a, b = x.args
        if a.dtype == "index" and x.op in ("lt", "ge"):
            terms, constant = E.linear(E.call("sub", a, b))
            rest = {t: k for t, k in terms.items() if t is not self.lane}
            if (
                same(terms.get(self.lane, 0), 1)
                and not any(t.free & self.wide for t in rest)
                and all(same(k % self.width, 0) for k in (constant, *rest.values()))
            ):
                return f"({self.expr(E.from_linear(rest, constant))}) {_INFIX[x.op]} 0"
        return f"{x.op}({self.expr(a)}, {self.expr(b)})"

    def splat(self, x: Expr) -> str:
        """The value as a vector."""
        text = self.expr(x)
        return text if self.is_wide(x) else f"splat({text}, {self.width})"

    def load(self, x: Expr) -> str:
        if not self.is_wide(x):
            return super().load(x)
        if x.guard is None:
            return self.along(x.value, x.indices)
        assert x.other is not None
        inside = self.always_inside(x)
        wide, narrow = self.split_guard(x.guard if inside else self.spelled(x.guard))
        one = not any(self.is_wide(i) for i in x.indices)       # element for all lanes
        readable = inside if one else self.whole_block(x)
        if wide and not readable:
            raise NotVectorisable("a guard depends on the lane")
        text = self.splat(E.load(x.value, x.indices, x.dtype)) if one else self.along(
            x.value, x.indices)
        other = f"splat({self.literal(x.other)}, {self.width})"
        for condition in wide:
            text = f"select({condition}, {text}, {other})"
        return f"({text} if {' and '.join(narrow)} else {other})" if narrow else text

    def whole_block(self, x: Expr) -> bool:
        """Whether a load's lanes are a block's channels, all of which may be read."""
        return x.indices[-1:] == (self.lane,) and self.shapes[x.value][-1] == self.width

    def always_inside(self, x: Expr) -> bool:
        """Whether a load's indices lie inside its buffer whatever its guard says."""
        spans = zip(map(E.bounds, x.indices), self.shapes[x.value])
        return all(at_least_always(low, 0) and at_least_always(extent - 1, high)
                   for (low, high), extent in spans)

    def reinterpreted(self, x: Expr, to: str) -> str:
        if not self.is_wide(x):
            return super().reinterpreted(x, to)
        if x.op == "load" and x.guard is None and only_stored(x.dtype):
            base = self.base(flat(self.shapes[x.value], x.indices))
            unsigned = f"u{8 * dtypes.itemsize(x.dtype)}"
            return f"as_type(vload(bits({x.value}), {base}, {self.width}), '{unsigned}', '{to}')"
        return f"as_type({self.expr(x)}, '{x.dtype}', '{to}')"

    def split_guard(self, guard: Expr) -> tuple[list[str], list[str]]:
        """The conditions of a conjunction that differ from lane to lane, and those that do not."""
        if guard.op == "and":
            parts = [self.split_guard(a) for a in guard.args]
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        text = self.operand(guard)
        return ([text], []) if self.is_wide(guard) else ([], [f"({text})"])

    def spelled(self, guard: Expr) -> Expr:
        """A guard whose parts have no names: what keeps a block inside its buffer is seen."""
        if guard.op == "and":
            return E.remade(guard, [self.spelled(a) for a in guard.args])
        found = self.named.get(guard.value) if guard.op == "var" else None
        return guard if found is None else self.spelled(found)

    def along(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """A vector load of the lanes at these indices."""
        base = self.base(flat(self.shapes[buffer], indices))
        return f"vload({buffer}, {base}, {self.width})"

    def base(self, at: Expr) -> str:
        """The address of lane 0, where lanes lie side by side."""
        terms, constant = E.linear(at)
        rest = {a: k for a, k in terms.items() if a is not self.lane}
        if not same(terms.get(self.lane, 0), 1) or any(a.free & self.wide for a in rest):
            raise NotVectorisable("lanes do not lie side by side")
        return self.expr(E.from_linear(rest, constant))

    def combined(self, s: Accum) -> str:
        if s.var.value in self.wide and s.combine in ("max", "min"):
            return f"{s.combine}_({s.var.value}, {self.expr(s.value)})"    # lane by lane
        return super().combined(s)

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        pad = "    " * indent
        if isinstance(s, For) and s.var is self.lane:
            return self.block(s.body, indent)
        if isinstance(s, Let) and s.var.value in self.wide:
            self.named[s.var.value] = s.value
            return [f"{pad}{s.var.value} = {self.splat(s.value)}"]
        if isinstance(s, Assign) and any(self.is_wide(e) for e in (*s.vars, *s.values)):
            raise NotVectorisable("a loop carries values that differ from lane to lane")
        return super().stmt(s, indent)

    def store(self, s: Store, pad: str) -> list[str]:
        if s.guard is not None and self.is_wide(s.guard):
            raise NotVectorisable("a guard depends on the lane")
        value = stored_value(s.value)
        base = self.base(flat(self.shapes[s.buffer], s.indices))
        line = f"store({s.buffer}, {base}, {self.splat(value)})"
        bits = bits_of(s.value)
        if bits is not None and self.is_wide(bits):
            unsigned = f"u{8 * dtypes.itemsize(s.value.dtype)}"
            line = f"store(bits({s.buffer}), {base}, {self.reinterpreted(bits, unsigned)})"
        lines = [line]
        if self.kernel.flags(s.buffer):
            lines = [f"{self.lanes} = {self.splat(looked_at(s.value))}",
                     f"store({s.buffer}, {base}, {self.lanes})", f"keep({self.lanes})"]
        if s.guard is None:
            return [pad + line for line in lines]
        return [f"{pad}if {self.expr(s.guard)}:", *(f"{pad}    {line}" for line in lines)]

    @property
    def lanes(self) -> str:
        """What a vector is called that is stored and looked at."""
        return f"stored{self.width}"

    def some_lanes(self, value: str, dtype: str, count: str) -> str:
        """The first `count` lanes, 0 behind them."""
        zero = self.literal(E.const(0, dtype))      # of its type: f32 rounds large i32
        return f"select(lt(lane_index({self.width}), {count}), {value}, {zero})"

    def split(self, loop: For) -> list[str]:
        """Split the loops around the lanes."""
        _, *inner = nest_of(loop, "parallel")
        return self.split_many([loop, *takewhile(lambda f: f.var is not self.lane, inner)])


@functools.lru_cache(64)
def vector_kernel(kernel: Kernel, entry: str, width: int) -> str | None:
    """The kernel with its innermost parallel loop as vectors; None where that loop is not `width`
    lanes."""
    body = kernel.body
    lane: Expr | None = None
    depth = 0
    while body and is_parallel(body[-1]):
        lane, body, depth = body[-1].var, body[-1].body, depth + 1
    if lane is None or lane.extent != width or depth < 2:
        return None
    try:
        lines = VectorRenderer(kernel, lane, width).body()
    except NotVectorisable:
        return None
    return render("loops/numba.py.j2", entry=entry, buffers=kernel.buffers, lines=lines,
                  sizes=text_params(kernel))


class EpilogueRenderer(VectorRenderer):
    """Statements that store a template's result: `y[indices] = value`, a function of the vector
    variable `v`.

    Operands of y's shape, read at y's indices, are read at y's own address (the text `at`), so that
    the kernel serves any size; `into` is a variable that takes the value in place of y.
    `channels_left` is the text of how many channels a block has, where the last one may have fewer
    than `width`: its other lanes are stored as 0, or with `partial` not at all. Names in `space`
    are spatial indices that the kernel does not have (it flattens them): any other dependence on
    them is refused.
    """

    def __init__(
            self, sizes: SizesWritten, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...],
            value: Expr, lane: Expr, width: int, *, at: str = "yo", into: str = "",
            channels_left: str = "", space: tuple[str, ...] = (), partial: bool = False
    ) -> None:
        self.y, self.at, self.channels_left = buffers[-1], at, channels_left
        self.space = frozenset(space)
        self.partial, self.into = partial, into
        body = (Store(self.y.name, indices, E.cast(value, self.y.dtype)),)
        # addresses are left whole: a named one would not be seen to be a vector's
        kernel = share(Kernel("epilogue", buffers, body, flagging=None if into else flagging_of(
            buffers)), addresses=False)
        self.indices = next(s.indices for s in kernel.body if isinstance(s, Store))
        super().__init__(kernel, lane, width, ("v",), sizes)
        self.beside: set[str] = set()            # buffers that are read where the result is stored

    def lines(self) -> Lines:
        lines = self.block(self.kernel.body, 0)
        return Lines(lines, read_by(self.kernel), self.beside)

    def load(self, x: Expr) -> str:
        if self.is_same(x) and self.partial and self.channels_left:
            return f"vload_part({x.value}, {self.at}, {self.channels_left}, {self.width})"
        if self.is_same(x):
            self.beside.add(x.value)
            return f"vload({x.value}, {self.at}, {self.width})"
        if x.free & self.space:
            raise NotVectorisable("an operand of another shape is read along a spatial axis")
        return super().load(x)

    def reinterpreted(self, x: Expr, to: str) -> str:
        return f"as_type({self.expr(x)}, '{x.dtype}', '{to}')"

    def is_same(self, x: Expr) -> bool:
        return (
            x.guard is None and self.shapes[x.value] == self.y.shape and x.indices == self.indices)

    def along(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        base = self.base(flat(self.shapes[buffer], indices))
        block = indices[-1] is self.lane and self.shapes[buffer][-1] == self.width
        if self.channels_left and not block:        # a block's padding may be read
            return f"vload_part({buffer}, {base}, {self.channels_left}, {self.width})"
        return f"vload({buffer}, {base}, {self.width})"

    def store(self, s: Store, pad: str) -> list[str]:
        value = stored_value(s.value)
        text = self.splat(value)
        if self.into:
            return [f"{pad}{self.into} = {text}"]
        flags, partial = self.kernel.flags(s.buffer), self.partial and self.channels_left
        if self.channels_left and (flags or not partial):
            text = self.some_lanes(text, value.dtype, self.channels_left)
        stored = self.lanes if flags else text
        line = f"store({s.buffer}, {self.at}, {stored})"
        if partial:
            line = f"vstore_part({s.buffer}, {self.at}, {stored}, {self.channels_left})"
        lines = [f"{self.lanes} = {text}", line, f"keep({self.lanes})"] if flags else [line]
        return [pad + line for line in lines]
