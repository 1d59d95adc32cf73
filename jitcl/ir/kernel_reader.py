"""Text to IR, second half: kernels, with buffers and variables looked up as the tree is walked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast, get_args

import lark
from lark.visitors import v_args

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import (
    ARRAYS,
    Accum,
    Assign,
    Barrier,
    Buffer,
    For,
    Kernel,
    Let,
    LoopKind,
    Role,
    Stmt,
    Store,
)
from jitcl.ir.printer import INFIX, default_dtype, implied_dtype
from jitcl.ir.reader import Where, WordReader, near
from jitcl.ir.scalar import COMBINES, SCALARS, result_dtype
from jitcl.ir.types import ROW, TensorType

_OPERATORS = {symbol: op for op, (symbol, _) in INFIX.items()}


@dataclass(frozen=True)
class _Term:
    """An operand: a typed expression, or a bare literal whose type its place will say."""

    at: lark.Token
    expr: Expr | None = None
    number: int | float | bool | None = None

    @property
    def dtype(self) -> str | None:
        return None if self.expr is None else self.expr.dtype


@dataclass(frozen=True)
class _Index:
    terms: tuple[_Term, ...]
    guard: _Term | None
    other: _Term | None


@v_args(inline=True)
class KernelReader(WordReader):
    """Statements and expressions; a bare literal takes the type that its place implies."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self.buffers: dict[str, Buffer] = {}
        self.scopes: list[dict[str, Expr]] = []

    def buffer(self, role: lark.Token, name: lark.Token, type: TensorType) -> None:
        if name in self.buffers:
            self.fail(name, f"buffer '{name}' is declared twice")
        if type.layout != ROW or not all(isinstance(d, int) for d in type.shape):
            self.fail(name, f"buffer '{name}' is {type}: buffers are physical, with known "
                            "row-major shapes")
        self.buffers[str(name)] = Buffer(str(name), type.dtype, type.dims,
                                         cast(Role, str(role)))

    def kernel_head(self, name: lark.Token, *rest: Store | None) -> tuple[str, Store | None]:
        self.scopes = [{}]
        return str(self.unquote(name, "@")), next((s for s in rest if s is not None), None)

    def kernel(self, head: tuple[str, Store | None], *body: Stmt) -> Kernel:
        declared, (name, flagging) = self.buffers.values(), head
        kernel = Kernel(name, tuple(b for b in declared if b.role not in ARRAYS), body,
                        tuple(b for b in declared if b.role in ARRAYS), flagging)
        self.buffers.clear()
        return kernel

    def loop_head(self, name: lark.Token, _: lark.Token, extent: lark.Token, kind: lark.Token,
                  first: _Term | None, end: _Term | None, step: lark.Token | None) -> For:
        kinds = get_args(LoopKind)
        found = next((k for k in kinds if k == kind[1:]), None)
        if found is None:
            self.fail(kind, f"no loop kind '{kind[1:]}': use one of {', '.join(kinds)}")
        if int(extent) < 0:
            self.fail(extent, f"a loop's extent can't be negative, got {extent}")
        ends: list[Expr | None] = []
        for term, what in ((first, "a loop's beginning"), (end, "a loop's end")):
            ends.append(None if term is None else self.typed(term, "index"))
            if term is not None:
                self.expect(term, self.typed(term, "index"), "index", what)
        if step is not None and int(step) < 1:
            self.fail(step, f"a loop goes by 1 or more, got {step}")
        var = E.var(str(name), extent=int(extent))
        self.scopes.append({})
        self.declare(name, var)
        return For(var, found, (), ends[0], 1 if step is None else int(step), ends[1])

    def declare(self, at: lark.Token, var: Expr) -> None:
        if any(at in scope for scope in self.scopes):
            self.fail(at, f"'{at}' is declared twice")
        self.scopes[-1][str(at)] = var

    def loop(self, head: For, *body: Stmt) -> For:
        self.scopes.pop()
        return replace(head, body=body)

    def let(self, name: lark.Token, dtype: lark.Token | None, value: _Term) -> Let:
        typed = self.typed(value, "" if dtype is None else self.check_dtype(dtype))
        self.expect(value, typed, typed.dtype if dtype is None else str(dtype), f"'{name}'")
        var = E.var(str(name), typed.dtype)
        self.declare(name, var)
        return Let(var, typed)

    def accum(self, name: lark.Token, combine: lark.Token, value: _Term) -> Accum:
        var = self.variable(name).expr
        assert var is not None
        if combine[:-1] not in COMBINES:
            self.fail(combine, f"no combine '{combine[:-1]}': use one of {', '.join(COMBINES)}")
        typed = self.typed(value, var.dtype)
        self.expect(value, typed, var.dtype, f"'{name}'")
        return Accum(var, str(combine[:-1]), typed)

    def assigned(self, *names: lark.Token) -> tuple[lark.Token, ...]:
        return names

    def assign(self, names: tuple[lark.Token, ...], values: tuple[_Term, ...]) -> Assign:
        if len(names) != len(values):
            self.fail(names[0], f"{len(names)} variables are set to {len(values)} values")
        pairs = []
        for name, value in zip(names, values):
            var = self.variable(name).expr
            assert var is not None
            typed = self.typed(value, var.dtype)
            self.expect(value, typed, var.dtype, f"'{name}'")
            pairs.append((var, typed))
        return Assign(tuple(v for v, _ in pairs), tuple(e for _, e in pairs))

    def store(self, name: lark.Token, index: _Index, value: _Term, guard: _Term | None) -> Store:
        buffer = self.buffer_of(name, index)
        if index.guard is not None:
            self.fail(name, "a store's guard stands behind its value: y[i] = value if guard")
        typed = self.typed(value, buffer.dtype)
        self.expect(value, typed, buffer.dtype, f"buffer '{name}'")
        at = tuple(self.typed(t, "index") for t in index.terms)
        condition = None if guard is None else self.typed(guard, "bool")
        if guard is not None and condition is not None:
            self.expect(guard, condition, "bool", "a guard")
        return Store(str(name), at, typed, condition)

    def barrier(self) -> Barrier:
        return Barrier()

    def index(self, terms: tuple[_Term, ...], guard: _Term | None, other: _Term | None) -> _Index:
        return _Index(terms, guard, other)

    def buffer_of(self, name: lark.Token, index: _Index) -> Buffer:
        buffer = self.buffers.get(str(name))
        if buffer is None:
            self.fail(name, f"no buffer '{name}'{near(str(name), self.buffers)}")
        if len(buffer.shape) != len(index.terms):
            axes = f"{len(buffer.shape)} ax{'i' if len(buffer.shape) == 1 else 'e'}s"
            self.fail(name, f"'{name}' has {axes} {buffer.shape}, indexed with {len(index.terms)}")
        for term in index.terms:
            self.expect(term, self.typed(term, "index"), "index", f"an index of '{name}'")
        return buffer

    # ---- kernel level: expressions

    def typed(self, term: _Term, implied: str) -> Expr:
        """The term as an expression; a bare literal takes the type that its place implies."""
        if term.expr is not None:
            return term.expr
        value = term.number
        assert value is not None
        dtype = implied or default_dtype(value)
        if dtypes.is_float(dtype) and not isinstance(value, bool):
            return E.const(value, dtype)
        if isinstance(value, float) or isinstance(value, bool) != (dtype == "bool"):
            self.fail(term.at, f"literal {term.at} stands where a value of type {dtype} is wanted")
        return E.const(value, dtype)

    def expect(self, term: _Term, got: Expr, want: str, what: str) -> None:
        if got.dtype != want:
            self.fail(term.at, f"{what} is {want}, got a value of type {got.dtype}: "
                               f"cast it, {want}(...)")

    def exprs(self, *terms: _Term) -> tuple[_Term, ...]:
        return terms

    def literal(self, number: lark.Token, dtype: lark.Token | None) -> _Term:
        bare = _Term(number, number=self.value_of(number))
        return bare if dtype is None else _Term(number, self.typed(bare, self.check_dtype(dtype)))

    def variable(self, name: lark.Token) -> _Term:
        found = next((scope[str(name)] for scope in self.scopes if name in scope), None)
        if found is None and name in self.buffers:
            self.fail(name, f"'{name}' is a buffer: read an element, {name}[...]")
        if found is None:
            names = [n for scope in self.scopes for n in scope]
            self.fail(name, f"'{name}' is not declared here{near(str(name), names)}")
        return _Term(name, found)

    def load(self, name: lark.Token, index: _Index) -> _Term:
        buffer = self.buffer_of(name, index)
        args = [self.typed(t, "index") for t in index.terms]
        if index.guard is None or index.other is None:
            return _Term(name, E.make("load", args, buffer.dtype, str(name)))
        guard, other = self.typed(index.guard, "bool"), self.typed(index.other, buffer.dtype)
        self.expect(index.guard, guard, "bool", "a guard")
        self.expect(index.other, other, buffer.dtype, f"'{name}'")
        args += [guard, other]
        return _Term(name, E.make("load", args, buffer.dtype, str(name), guarded=True))

    def binary(self, left: _Term, symbol: lark.Token, right: _Term) -> _Term:
        return self.scalar(_OPERATORS[str(symbol)], symbol, (left, right))

    def call(self, name: lark.Token, terms: tuple[_Term, ...]) -> _Term:
        if name in dtypes.ALL:
            if len(terms) != 1:
                self.fail(name, f"a cast takes 1 operand, got {len(terms)}")
            return _Term(name, E.make("cast", (self.typed(terms[0], ""),), str(name)))
        if name not in SCALARS:
            self.fail(name, f"no scalar operation '{name}'{near(str(name), SCALARS)}")
        return self.scalar(str(name), name, terms)

    def scalar(self, op: str, at: lark.Token, terms: tuple[_Term, ...]) -> _Term:
        scalar = SCALARS[op]
        if len(terms) != scalar.arity:
            self.fail(at, f"'{op}' takes {scalar.arity} operands, got {len(terms)}")
        implied = implied_dtype(op, [t.dtype for t in terms])
        args = [self.typed(t, "bool" if op == "select" and k == 0 else implied)
                for k, t in enumerate(terms)]
        values = args[1:] if op == "select" else args
        if op == "select":
            self.expect(terms[0], args[0], "bool", "a condition")
        if any(v.dtype != values[0].dtype for v in values):
            kinds = " and ".join(v.dtype for v in values)
            self.fail(at, f"operands of '{op}' have types {kinds}: cast one")
        return _Term(at, E.make(op, args, result_dtype(op, values[-1].dtype)))
