"""Numbers of a scheduled kernel as its integer parameters: one program for all layers of a form.

    y[i * 3136 + j * 4] = x[i * 3136 + j * 4] * b[i]     for i < 96, j < 784
    =>
    y[i * size2 + j * 4] = x[i * size2 + j * 4] * b[i]   for i < size0, j < size1

The schedule is made for the numbers, so that nothing has to hold for others. Numbers stay where
they pay: lanes, vectors, kernel windows and other short loops, small steps. A quotient by a
parameter is a product with its reciprocal, as compilers make it of a literal (Granlund and
Montgomery, 1994, "Division by Invariant Integers using Multiplication"). Names are by position, and
terms of addresses in the loops' order, so that equal forms are equal texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace

from jitcl.codegen.copies import copies
from jitcl.codegen.loops import Body, renamed, rewrite, substitute
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import (
    Buffer,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    buffers_read,
    mutated,
    statements,
)
from jitcl.ir.sizes import Space

STEP = 3                        # a template's numbers up to here stay: steps, small windows
SMALL = 8                       # numbers up to here stay: steps, windows, loops that are unrolled
LEAST = 4                       # up to here, a divisor has no reciprocal
LIMIT = 1 << 30                 # of what a reciprocal divides
STEMS = {"item": "i", "group": "i", "loop": "r", "let": "j"}
PLACED = ("item", "group", "lane")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "min", "max")


def lifted(kernel: Kernel) -> Kernel:
    """The kernel with sizes in the place of its larger numbers, whose hints they are. The kernel
    itself where its indices need 64 bits. Lanes take a row in turns also where one is enough, so
    that rows shorter and longer than they are many are one program; all steps of a copy are
    parameters, also that of 1."""
    if any(b.size > LIMIT for b in kernel.buffers):
        return kernel
    kernel = replace(kernel, body=spelled(kernel.body))
    lift = _Lift(kernel, copies(kernel))
    buffers = tuple(Buffer(lift.names[b.name], b.dtype, (1,), b.role) for b in kernel.buffers)
    body = tuple(map(lift.statement, kernel.body))
    return replace(kernel, buffers=buffers, body=body)


class Numbers:
    """The numbers of a template's kernel as its parameters: those of the functions that it reads
    operands and stores results through, and its own."""

    def __init__(self) -> None:
        self.space = Space()

    def parameter(self, number: int) -> int:
        """A size of its own for a number that is 1 or more."""
        return self.space.symbol(str(len(self.space.atoms)), number)

    def lifted(self, kernel: Kernel, lanes: int = 1) -> Kernel:
        """A function's kernel with sizes for its numbers. Those that are multiples of its `lanes`
        still are."""
        lift = _Lift(kernel, False)
        lift.names, lift.space = {b: b for b in lift.names}, self.space
        lift.small, lift.lanes = STEP, lanes
        buffers = tuple(replace(b, shape=(1,)) for b in kernel.buffers)
        return replace(kernel, buffers=buffers, body=tuple(map(lift.statement, kernel.body)))


def spelled(body: Body) -> Body:
    """Sums of work-items' places, and of lanes' turns, in the place of their names: which sums are
    used twice, and so have one, differs with the axes that were merged."""
    places = {s.var.value for s in statements(body)
              if isinstance(s, For) and (s.kind in PLACED or s.first is not None)}
    named = Counter(s.var.value for s in statements(body) if isinstance(s, Let))
    changing = {v.value for s in statements(body) for v in mutated(s)}
    known: dict[str, Expr] = {}

    def written(body: Body) -> Iterator[Stmt]:
        for s in body:
            if isinstance(s, For):
                first, end = (None if e is None else substitute(e, known)
                              for e in (s.first, s.end))
                yield replace(s, first=first, end=end, body=tuple(written(s.body)))
                continue
            s = renamed(s, known)
            if isinstance(s, Let) and s.var.dtype == "index" and named[s.var.value] == 1 and (
                    s.var.value not in changing) and all(
                    t.value in places for t in E.linear(s.value)[0]):
                known[str(s.var.value)] = s.value
            else:
                yield s
    return tuple(written(body))


def reciprocal(d: int) -> tuple[int, int]:
    """(factor, shift) with x // d == x * factor >> 32 + shift for 0 <= x < LIMIT; both are at
    least 1 and below 2**31 for d > LEAST.
    """
    shift = (d - 1).bit_length() - 2
    return (1 << 32 + shift) // d + 1, shift


class _Lift:
    """One kernel's numbers. A number is a parameter for each place that it has among operands, so
    that numbers which happen to be equal in one layer make no other program."""

    def __init__(self, kernel: Kernel, steps: bool) -> None:
        self.steps = steps                       # all of them are parameters
        body = list(statements(kernel.body))
        loops = [s for s in body if isinstance(s, For)]
        # also steps of 1: rows that lanes share may lie along memory or across
        self.strides = steps or (any(s.kind == "lane" for s in loops)
                                 and not any(s.kind == "vec" for s in loops))
        # of which each buffer has its own: pitches of a square transpose are the same by chance
        self.own = self.strides or any(len(b.shape) > 1 for b in kernel.arrays)
        self.shapes = {b.name: b.shape for b in kernel.buffers}
        read = [b.name for b in kernel.buffers if b.role == "in"]
        self.names = {b: b for b in self.shapes} | {b: f"x{k}" for k, b in enumerate(read)}
        self.changing = {v.value for s in body for v in mutated(s)}
        self.order: dict[str, int] = {}          # of loops and named values
        self.variables: dict[str, str] = {}      # i: places of work-items, r: loops, j: indices
        for s in body:
            if isinstance(s, (For, Let)):
                name = str(s.var.value)
                self.order[name] = len(self.order)
                kind = s.kind if isinstance(s, For) else self.named(s) and "let"
                if stem := STEMS.get(kind or ""):
                    taken = sum(n[0] == stem for n in self.variables.values())
                    self.variables[name] = f"{stem}{taken}"
        self.sizes: dict[Hashable, int] = {}
        self.space, self.lanes, self.small = Space(), 1, 0 if self.steps else SMALL
        self.memo: dict[Expr, Expr] = {}
        self.known: dict[str, Expr] = {}     # named values, as variables of their range
        self.fixed: set[str] = set()         # variables whose quotients stay: lanes of vectors
        self.placed: set[str] = set()        # of work-items' places, and what is found from these

    def named(self, s: Let) -> bool:
        """Whether it names an index that stays what it is."""
        return s.var.dtype == "index" and s.var.value not in self.changing

    def size(self, number: int, *place: Hashable) -> int:
        """The parameter for a number at a place; small numbers themselves, but such as a picture's
        width of 7, which is no vector's, where work-items' places are counted."""
        small = abs(number) <= self.small
        if small and not (abs(number) in (5, 6, 7) and any(
                isinstance(e, Expr) and e.free & self.placed for e in place)):
            return number
        return self.parameter(number, *place)

    def parameter(self, number: int, *place: Hashable) -> int:
        key = (number, *place)
        if key not in self.sizes:
            lanes = 1 if number % self.lanes else self.lanes
            found = lanes * self.space.symbol(str(len(self.space.atoms)), abs(number) // lanes)
            self.sizes[key] = found if number > 0 else -found
        return self.sizes[key]

    # ---- statements

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, For):
            return self.loop(s)
        if isinstance(s, Store):
            return self.store(s)
        if isinstance(s, Let) and self.named(s):
            if s.value.free & self.placed:
                self.placed.add(str(s.var.value))
            low, high = self.bounds(s.value)
            if 0 <= low and high < LIMIT:
                self.known[str(s.var.value)] = E.var(s.var.value, extent=int(high) + 1)
            return Let(self.expression(s.var), self.expression(s.value))
        return rewrite(s, self.expression)

    def store(self, s: Store) -> Store:
        guard = None if s.guard is None else self.expression(s.guard)
        return Store(self.names.get(s.buffer, s.buffer), self.place(s.buffer, s.indices),
                     self.expression(s.value), guard)

    def loop(self, s: For) -> For:
        extent, once = s.extent, s.first is not None and s.extent <= s.step
        if buffers_read(s.body) & self.shapes.keys() or all(
                b.buffer in self.shapes for b in s.body if isinstance(b, Store)):
            once = False                         # elements of a row, not what lanes have found
        if s.kind in PLACED:
            self.placed.add(str(s.var.value))
        if s.kind == "vec":
            self.fixed.add(str(s.var.value))
        elif s.kind == "item" and (extent > 1 or self.steps):
            extent = self.parameter(extent, "extent", s.var)
        elif s.kind == "loop" and not once:
            extent = self.size(extent, "extent", s.var)
        first, end = (None if e is None else self.expression(e) for e in (s.first, s.end))
        var = E.var(self.variables.get(s.var.value, s.var.value), extent=extent)
        return replace(s, var=var, first=first, end=end, body=tuple(map(self.statement, s.body)))

    # ---- expressions

    def expression(self, x: Expr) -> Expr:
        stack = [x]
        while stack:
            e = stack[-1]
            wanted = [a for a in self.operands(e) if a not in self.memo]
            stack += reversed(wanted)
            if not wanted:
                stack.pop()
                if e not in self.memo:
                    self.memo[e] = self.lifted(e)
        return self.memo[x]

    def operands(self, e: Expr) -> tuple[Expr, ...]:
        """Those that are lifted as they stand; a load's indices become one offset."""
        return e.args[len(e.indices):] if e.op == "load" else e.args

    def place(self, buffer: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The offset in a buffer; places in arrays are lanes', and stay."""
        if buffer not in self.shapes:
            return tuple(substitute(i, {n: E.var(self.variables[n]) for n in i.free
                                        if n in self.variables}) for i in indices)
        terms, constant = E.linear(flat(self.shapes[buffer], indices))
        last = {t: max((self.order.get(v, -1) for v in t.free), default=-1) for t in terms}
        total = E.index(0)
        for t in sorted(terms, key=lambda t: last[t]):
            lanes = self.steps and t.free & self.fixed
            found = self.parameter if self.strides and len(terms) > 1 else self.size
            total += self.expression(t) * (terms[t] if lanes else found(
                terms[t], t, buffer if self.own else ""))
        return (total + self.size(constant),)

    def lifted(self, e: Expr) -> Expr:
        """One operation, of operands that are lifted already."""
        if e.op == "var":
            return E.make("var", (), e.dtype, self.variables.get(e.value, e.value), e.extent)
        args = [self.memo[a] for a in self.operands(e)]
        if e.op == "load":
            at = self.place(e.value, e.indices)
            return E.make("load", (*at, *args), e.dtype, self.names.get(e.value, e.value), None,
                          e.guarded)
        if e.op in ("floordiv", "mod") and e.dtype == "index":
            return self.quotient(e, *args)
        if e.op == "div" and e.dtype == "f32" and e.args[1].is_const:
            number = e.args[1].value         # of terms, of a mean
            if number.is_integer() and SMALL < number < 1 << 24:
                args[1] = E.const(self.size(int(number), "f32"), "f32")
        elif e.op in ("add", "sub", "mul", *COMPARED) and e.args[0].dtype == "index":
            args = [E.index(self.size(a.value, e.op, *e.args)) if a.is_const else b
                    for a, b in zip(e.args, args)]
        return E.remade(e, args)

    def bounds(self, x: Expr) -> tuple[float, float]:
        return E.bounds(substitute(x, self.known))

    def quotient(self, e: Expr, x: Expr, divisor: Expr) -> Expr:
        """x // d by d's reciprocal, x % d as what is left. Where x may be negative, or d is no
        parameter, what C has.
        """
        low, high = self.bounds(e.args[0])
        if not e.args[1].is_const or low < 0 or high >= LIMIT:
            return E.make(e.op, (x, divisor), e.dtype)
        d = e.args[1].value
        if d <= max(LEAST, self.small) or e.free & self.fixed:
            return E.make("div" if e.op == "floordiv" else "fmod", (x, divisor), e.dtype)
        factor, shift = reciprocal(d)
        found = E.make("quotient", (x, E.index(self.parameter(factor, "factor", d)),
                                    E.index(self.parameter(shift, "shift", d))), "index")
        if e.op == "floordiv":
            return found
        times = E.make("mul", (found, E.index(self.parameter(d, "divisor"))), "index")
        return E.make("sub", (x, times), "index")
