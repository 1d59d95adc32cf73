"""`KernelBuilder`: what an op's body writes its result with (the `s` of every body).

Values are scalar `Expr`s. Reductions become loops, and each statement is placed in the outermost
scope that its operands allow: a row's maximum that does not depend on the column lands outside the
column loop. That alone makes softmax and LayerNorm row-wise kernels. Loads are guarded wherever
they are read under a guard, so any statement may be placed early without touching memory out of
bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jitcl import dtypes
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, Number
from jitcl.ir.kernel import Accum, Assign, For, Let, LoopKind, Stmt, expressions, variables_read
from jitcl.ir.scalar import SCALARS, identity
from jitcl.ir.sizes import same
from jitcl.ir.types import TensorType

_TRUE = E.const(True, "bool")


@dataclass
class Scope:
    """An open loop (or the kernel's top level) and the statements placed in it so far."""

    var: Expr | None
    kind: LoopKind
    stmts: list[Stmt] = field(default_factory=list)


class KernelBuilder:
    """Builds one kernel's statements. `out` is the type of the node whose body runs."""

    out: TensorType

    def __init__(self, *, half: bool = False, flushed: bool = False) -> None:
        self.half = half                         # f16 values are computed in f16, sums in f32
        self.flushed = flushed                   # or in f16, a few terms at a time
        self.scopes: list[Scope] = [Scope(None, "loop")]
        self.levels: dict[str, int] = {}         # variable -> index of the scope that declares it
        self.guards: list[Expr] = []
        self.outermost = 0                       # no statement is placed further out than this
        self._count: dict[str, int] = {}

    # ---- names and scopes

    def fresh(self, stem: str) -> str:
        """A new variable name: acc0, acc1, ..."""
        n = self._count[stem] = self._count.get(stem, -1) + 1
        return f"{stem}{n}"

    def level(self, *exprs: Expr) -> int:
        """The innermost scope that any of the expressions depends on."""
        return max((self.outermost, *(self.levels[v] for e in exprs for v in e.free)))

    def open(self, stem: str, extent: int, kind: LoopKind = "loop", *,
             always: bool = False) -> Expr:
        """Enter a loop; returns its variable (the constant 0 where the loop would run once, and
        is not wanted `always`)."""
        if same(extent, 1) and not always:
            return E.index(0)
        var = E.var(self.fresh(stem), extent=extent)
        self.levels[var.value] = len(self.scopes)
        self.scopes.append(Scope(var, kind))
        return var

    def close(self) -> For:
        """Leave the innermost loop and return it, not yet placed."""
        scope = self.scopes.pop()
        assert scope.var is not None
        return For(scope.var, scope.kind, tuple(scope.stmts))

    def leave(self, level: int, *stmts: Stmt) -> None:
        """Place statements in the innermost loop, and leave it and those around it, up to the scope
        of this level."""
        self.place(-1, *stmts)
        while len(self.scopes) > level + 1:
            loop = self.close()
            self.place(-1, loop)

    @contextlib.contextmanager
    def inside_scope(self) -> Iterator[None]:
        """What is made here stays inside the innermost open scope: it reads what this one stores.
        """
        outer, self.outermost = self.outermost, len(self.scopes) - 1
        try:
            yield
        finally:
            self.outermost = outer

    def place(self, level: int, *stmts: Stmt) -> None:
        self.scopes[level].stmts.extend(stmts)

    # ---- guards

    @property
    def guard(self) -> Expr:
        """All conditions under which the current value is read."""
        total = _TRUE
        for g in self.guards:
            total = E.call("and", total, g)
        return total

    @contextlib.contextmanager
    def guarded(self, condition: Expr) -> Iterator[None]:
        """Loads inside are only done where `condition` holds; elsewhere they are safe."""
        self.guards.append(condition)
        try:
            yield
        finally:
            self.guards.pop()

    # ---- values

    def compute(self, dtype: str) -> str:
        """The type that arithmetic on stored `dtype` runs in, in this kernel."""
        return dtype if self.half and dtype == "f16" else dtypes.compute(dtype)

    def const(self, value: Number, dtype: str) -> Expr:
        return E.const(value, dtype)

    def index(self, x: Expr | int) -> Expr:
        """An integer value as an index."""
        return E.index(x) if isinstance(x, int) else E.cast(x, "index")

    def cast(self, x: Expr, dtype: str) -> Expr:
        """Convert; f16 and bf16 are rounded to their precision, then held in their compute type."""
        return E.cast(E.cast(x, dtype), self.compute(dtype))

    def call(self, op: str, *args: Expr | Number) -> Expr:
        """A scalar operation; Python numbers take the type of the other operands.

        A select's condition gives no type.
        """
        typed = [a for a in (args[1:] if op == "select" else args) if isinstance(a, Expr)]
        if not typed:
            raise JitclError(f"scalar {op}{args}: at least one operand must be a value, "
                             "not a Python number")
        exprs = [E.lift(a, typed[0]) for a in args]
        values = exprs[1:] if op == "select" else exprs
        if any(v.dtype != values[0].dtype for v in values):
            kinds = ", ".join(v.dtype for v in values)
            raise JitclError(f"scalar {op}: operands have types {kinds}; they must agree: cast one")
        return E.call(op, *exprs)

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        if op.rstrip("_") not in SCALARS:
            raise AttributeError(f"KernelBuilder has no scalar '{op}'")
        return lambda *args: self.call(op.rstrip("_"), *args)     # and_, or_, not_ are keywords

    def inside(self, i: Expr, extent: int) -> Expr:
        """0 <= i < extent."""
        return (i >= 0) & (i < extent)

    # ---- reductions

    def reduce(self, combine: str, extents: Sequence[int], term: Callable[..., Expr],
               init: Number | None = None) -> Expr:
        """combine over k in extents of term(*k): a loop nest placed as far out as it may stand."""
        ks: list[Expr] = []
        opened: list[str] = []
        for extent in extents:
            k = self.open("r", extent)
            ks.append(k)
            opened += [k.value] if not k.is_const else []
        value = term(*ks)
        held = value.dtype
        if held == "f16" and combine in ("add", "mul") and not (self.flushed and combine == "add"):
            value = E.cast(value, "f32")         # a running sum in half loses its small terms
        start = E.const(identity(combine, value.dtype) if init is None else init, value.dtype)
        if any(same(extent, 0) for extent in extents):
            for _ in opened:
                self.close()
            return E.cast(start, held)
        acc = E.var(self.fresh("acc"), value.dtype)
        if not opened:
            value = E.call(combine, start, value) if init is not None else value
            return E.cast(value, held)
        self.scopes[-1].stmts.append(Accum(acc, combine, value))
        nest = self.close()
        for _ in opened[1:]:
            self.scopes[-1].stmts.append(nest)
            nest = self.close()
        level = self._nest_level(nest, {acc.value})
        self.levels[acc.value] = level
        self.place(level, Let(acc, start), nest)
        return E.cast(acc, held)

    def fold(self, extent: int, init: Sequence[Expr],
             step: Callable[..., Sequence[Expr]]) -> tuple[Expr, ...]:
        """`state = step(k, *state)` for k in 0 .. extent - 1, from `init` on: the last state.

        For what no reduction can say: a walk down a tree, a recurrence, the best with its place.
        The iterations run one after the other. As a reduction, a fold is no elementwise op's:
        templates' epilogues take expressions only.
        """
        init = tuple(init)
        if extent == 0:
            return init
        k = self.open("r", extent)
        if k.is_const:
            return self._stepped(init, step(k, *init))
        states = tuple(E.var(self.fresh("state"), e.dtype) for e in init)
        now = tuple(E.var(self.fresh("now"), e.dtype) for e in init)
        inside = len(self.scopes) - 1
        self.levels.update((e.value, inside) for e in now)   # nothing made of them leaves the loop
        values = self._stepped(init, step(k, *now))
        self.place(inside, Assign(states, values))
        loop = self.close()
        read = variables_read(loop.body)
        named = tuple(Let(n, s) for n, s in zip(now, states) if n.value in read)
        loop = For(loop.var, loop.kind, (*named, *loop.body))
        level = max(self._nest_level(loop, {e.value for e in states}), self.level(*init))
        self.levels.update((e.value, level) for e in states)
        self.place(level, *(Let(s, e) for s, e in zip(states, init)), loop)
        return states

    def _stepped(self, init: tuple[Expr, ...], values: Sequence[Expr]) -> tuple[Expr, ...]:
        """What a fold's step gave; it must have the types that the state began with."""
        got, want = (", ".join(e.dtype for e in found) for found in (values, init))
        if got != want:
            raise JitclError(f"a fold's step gives ({got}), its state is ({want}): cast the values")
        return tuple(values)

    def _nest_level(self, nest: For, own: set[str]) -> int:
        """The scope a finished loop nest must stand in: the deepest that declares what it reads."""
        needed: set[str] = set()
        declared = set(own)
        stack: list[Stmt] = [nest]
        while stack:
            stmt = stack.pop()
            if isinstance(stmt, For):
                declared.add(stmt.var.value)
                stack.extend(stmt.body)
            elif isinstance(stmt, Let):
                declared.add(stmt.var.value)
                needed |= stmt.value.free
            else:
                needed |= {v for e in expressions(stmt) for v in e.free}
        return max((self.outermost, *(self.levels[v] for v in needed - declared)))
