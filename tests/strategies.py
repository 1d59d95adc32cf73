"""Hypothesis strategies: random graphs, and random kernels that the verifier accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Data, Graph, Node, Origin, graph_input
from jitcl.ir.kernel import Accum, Assign, Buffer, For, Kernel, Let, Stmt, Store
from jitcl.ir.scalar import SCALARS, identity
from jitcl.ir.types import ROW, Layout, Sym, TensorType

# any text, surrogates and control characters included, and the words that the grammar uses
names = st.one_of(
    st.sampled_from(["x", "a/b:0", "for", "if", "in", "nan", "true", "0", "out0", "input.1", "",
                     '"', "\\"]),
    st.text(max_size=8), st.text("abc\n'\"\\%", max_size=5))
identifiers = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
stored = st.sampled_from(dtypes.STORED)
layouts = st.one_of(st.just(ROW), st.builds(Layout, st.just("rows"), st.integers(1, 8)),
                    st.builds(Layout, st.just("NCHWc"), st.integers(2, 16), st.integers(0, 3)))


def floats_of(dtype: str) -> st.SearchStrategy[float]:
    return st.floats(width={"f32": 32, "f64": 64}.get(dtype, 16))         # type: ignore


@st.composite
def tensor_types(draw: st.DrawFn) -> TensorType:
    dims = st.one_of(st.integers(0, 9), names.map(Sym))
    shape = tuple(draw(st.lists(dims, max_size=4)))
    return TensorType(draw(stored), shape, draw(layouts) if shape else ROW)


@st.composite
def arrays(draw: st.DrawFn, max_side: int = 5) -> np.ndarray:
    """Any bits of any stored type: NaN payloads, subnormals and -0.0 included."""
    dtype = draw(stored)
    shape = tuple(draw(st.lists(st.integers(0, max_side), max_size=3)))
    size = int(np.prod(shape, dtype=int))
    if dtype == "bool":
        bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return np.array(bits, bool).reshape(shape)
    nbytes = size * dtypes.itemsize(dtype)
    raw = np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8)
    if dtypes.bits(dtype) < 8:
        raw = raw & ((1 << dtypes.bits(dtype)) - 1)
    return raw.view(dtypes.to_numpy(dtype)).reshape(shape)


attrs = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), names, arrays().map(Data)),
    lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Nodes of made-up ops, with any attributes and types, over named inputs."""
    inputs = [graph_input(name, draw(tensor_types()))
              for name in draw(st.lists(names, unique=True, max_size=3))]
    nodes: list[Node] = list(inputs)
    origins = {}
    for _ in range(draw(st.integers(0, 8))):
        sources = draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
        op = draw(names.filter(lambda n: n not in ("input", "const")))
        node = Node.make(op, sources, draw(st.dictionaries(names, attrs, max_size=3)),
                         type=draw(tensor_types()))
        nodes.append(node)
        origins[node] = Origin(draw(names), draw(names))
    wanted = draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
    keys = draw(st.lists(names, min_size=len(wanted), max_size=len(wanted), unique=True))
    return Graph(draw(names), tuple(inputs), tuple(zip(keys, wanted)), origins)


_ANY = ("add", "sub", "mul", "min", "max", "select", "compare")
_FLOAT = (*_ANY, "div", "neg", "abs", "sqrt", "exp", "floor", "tanh", "erf")
_INT = (*_ANY, "bitand", "bitor", "bitxor", "floordiv", "mod", "div", "neg")
_BOOL = ("and", "or", "xor", "not", "compare")


class KernelMaker:
    """Draws one valid kernel. Indices stay inside their buffers, or are guarded."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.ins = [Buffer(n, draw(stored), tuple(draw(st.lists(st.integers(1, 4), max_size=3))))
                    for n in draw(st.lists(identifiers.map("x".__add__), max_size=2, unique=True))]
        self.loops: list[Expr] = []
        self.lets: list[Expr] = []
        self.count = 0

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def literal(self, dtype: str) -> Expr:
        if dtypes.is_float(dtype):
            return E.const(self.draw(floats_of(dtype)), dtype)
        if dtype == "bool":
            return E.const(self.draw(st.booleans()), dtype)
        low, high = (-9, 9) if dtype == "index" else dtypes.limits(dtype)
        return E.const(self.draw(st.integers(int(low), int(high))), dtype)

    def index(self) -> Expr:
        """Any arithmetic over loop variables, built without simplification."""
        x = self.pick(self.loops) if self.loops else E.index(self.draw(st.integers(0, 5)))
        for _ in range(self.draw(st.integers(0, 2))):
            op = self.pick(("add", "sub", "mul", "min", "max", "mod", "floordiv"))
            c = E.index(self.draw(st.integers(1, 4)))
            other = self.pick([*self.loops, c]) if op in ("add", "sub", "min", "max") else c
            x = E.make(op, (x, other), "index")
        return x

    def load(self, buffer: Buffer) -> Expr:
        at = [self.index() for _ in buffer.shape]
        guard = E.const(True, "bool")
        for i, d in zip(at, buffer.shape):
            inside = E.make("and", (E.make("ge", (i, E.index(0)), "bool"),
                                    E.make("lt", (i, E.index(d)), "bool")), "bool")
            guard = E.make("and", (guard, inside), "bool")
        args = (*at, guard, self.literal(buffer.dtype))
        return E.make("load", args, buffer.dtype, buffer.name, guarded=True)

    def value(self, dtype: str, depth: int = 3) -> Expr:
        leaves = [v for v in self.lets if v.dtype == dtype]
        sources = [b for b in self.ins if b.dtype == dtype]
        kind = self.pick(("leaf", "load", "op", "op", "cast")[:None if depth else 2])
        if kind == "load" and sources:
            return self.load(self.pick(sources))
        if kind == "cast":
            other = self.pick(dtypes.ALL)
            return E.make("cast", (self.value(other, depth - 1),), dtype)
        if kind == "op" and dtype not in dtypes.LOW:              # these are not computed in
            return self.operation(dtype, depth - 1)
        return self.pick(leaves) if leaves and self.draw(st.booleans()) else self.literal(dtype)

    def operation(self, dtype: str, depth: int) -> Expr:
        op = self.pick(_BOOL if dtype == "bool" else _FLOAT if dtypes.is_float(dtype) else _INT)
        if op == "select":
            args = (self.value("bool", depth), self.value(dtype, depth), self.value(dtype, depth))
            return E.make(op, args, dtype)
        if op == "compare" and dtype == "bool":
            of = self.pick(("f32", "i32", "index"))
            args = (self.value(of, depth), self.value(of, depth))
            return E.make(self.pick(("lt", "le", "gt", "ge", "eq", "ne")), args, "bool")
        op = "max" if op == "compare" else op
        return E.make(op, [self.value(dtype, depth) for _ in range(SCALARS[op].arity)], dtype)

    def reduction(self) -> list[Stmt]:
        """let acc = identity; for r < n { acc combine= value }"""
        dtype = self.pick(("f32", "f64", "i32", "bool"))
        combine = self.pick(("and", "or") if dtype == "bool" else ("add", "mul", "max", "min"))
        acc = E.var(self.fresh("acc"), dtype)
        r = E.var(self.fresh("r"), extent=self.draw(st.integers(0, 4)))
        self.loops.append(r)
        update = Accum(acc, combine, self.value(dtype))
        self.loops.pop()
        self.lets.append(acc)
        loop = For(r, self.pick(("loop", "vec")), (update,))
        return [Let(acc, E.const(identity(combine, dtype), dtype)), loop]

    def fold(self) -> list[Stmt]:
        """let s = ..; for r < n { let now = s; set s, .. = values }"""
        kinds = self.draw(st.lists(st.sampled_from(("f32", "i32", "index", "bool")), min_size=1,
                                   max_size=3))
        states = [E.var(self.fresh("s"), dtype) for dtype in kinds]
        first = [Let(s, self.value(s.dtype, 1)) for s in states]
        r = E.var(self.fresh("r"), extent=self.draw(st.integers(0, 4)))
        outside = list(self.lets)
        self.loops.append(r)
        now = [E.var(self.fresh("now"), dtype) for dtype in kinds]
        self.lets += now
        body = self.reduction() if self.draw(st.booleans()) else []
        update = Assign(tuple(states), tuple(self.value(dtype, 2) for dtype in kinds))
        self.loops.pop()
        self.lets = [*outside, *states]
        named = [Let(n, s) for n, s in zip(now, states)]
        return [*first, For(r, "loop", (*named, *body, update))]

    def block(self) -> list[Stmt]:
        found: list[Stmt] = []
        for kind in self.draw(st.lists(st.sampled_from(("let", "reduce", "fold")), max_size=2)):
            if kind == "fold":
                found += self.fold()
                continue
            if kind == "reduce":
                found += self.reduction()
                continue
            dtype = self.pick(dtypes.ALL)
            var = E.var(self.fresh("t"), dtype)
            found.append(Let(var, self.value(dtype)))
            self.lets.append(var)
        return found

    def kernel(self) -> Kernel:
        shape = tuple(self.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        out = Buffer("y", self.draw(stored), shape, "out")
        heads: list[tuple[list[Stmt], Expr, Any]] = []
        for extent in shape:
            before = self.block()
            var = E.var(self.fresh("i"), extent=extent)
            heads.append((before, var, self.pick(("group", "lane", "loop", "parallel"))))
            self.loops.append(var)
        at = tuple(self.loops)
        guard = self.value("bool") if self.draw(st.booleans()) else None
        body: list[Stmt] = [*self.block(), Store("y", at, self.value(out.dtype), guard)]
        for before, var, kind in reversed(heads):
            body = [*before, For(var, kind, tuple(body))]
        return Kernel(self.draw(identifiers), (*self.ins, out), tuple(body))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A kernel with one output; any valid types, lets, reductions, guards."""
    return KernelMaker(draw).kernel()
