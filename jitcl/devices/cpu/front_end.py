"""Kernel text -> LLVM IR, in one walk of its syntax tree.

    task = share(tasks, tid, nthreads)          %task = alloca i64
    while task < stop:                     =>   ...
        task += 1                               store i64 %1, ptr %task
                                                br label %while

A kernel's text is a small part of Python: numbers, tuples, `for` over a `range`, `while`, `if`, and
calls of what `vector.py` and its kin define. Types are known as it is read, so it takes no
bytecode, no single assignment, no inference; Numba says what calls and operators give, and emits
them, as in functions that it compiles itself. A variable has the type of what it is first given.
One that is given a value at one place, and read in no block around that, is this value; others are
memory of the thread's, which LLVM makes registers of.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typeconv.castgraph import Conversion

from jitcl.devices.cpu.emit import I1, I64, constant
from jitcl.devices.cpu.vector import tell_scopes
from jitcl.devices.cpu.vtypes import Vector

_BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor}
_UNARY: dict[type[ast.unaryop], Callable[..., Any]] = {
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert,
    ast.UAdd: operator.pos}
_COMPARED: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne}
#: modules whose functions are whole loops of vectors
TILES = ("jitcl.devices.cpu.tiles", "jitcl.devices.cpu.packed_tile")
ARGUMENTS = 3                   # a kernel's: the table's address, this thread, how many there are


class Unknown(Exception):
    """A text has something that kernels can't say."""


class _Outlived(Exception):
    """A variable is read behind the block in which it was given its only value."""


@dataclass(frozen=True)
class Value:
    """Of a Numba type; `of`: what LLVM knows it by, a tuple's values, None of a text."""

    type: Any
    of: Any


@dataclass(frozen=True)
class Variable:
    """`of`: memory for a value, or for those of a tuple; a `Value` that never changes. `place`: the
    blocks of text around the statement that gave it its type."""

    type: Any
    of: Any
    place: tuple[int, ...]


class FrontEnd:
    """Emits functions of any number of kernels; what Numba found once it is not asked again."""

    def __init__(self, typing: Any, context: Any) -> None:
        self.typing, self.context, codegen = typing, context, context.codegen()
        self.triple, self.data_layout = codegen._tm.triple, str(codegen._data_layout)
        self._found: dict[Any, tuple[Any, Any]] = {}
        self._constants: dict[Any, Value] = {}

    def module(self, entry: str, tree: ast.Module) -> tuple[ir.Module, bool]:
        """(a module with the function `entry` of a kernel's text, whether it has loops of numbers
        that LLVM may make vectors of). Raises Unknown."""
        names: dict[str, Any] = {"__name__": f"jitcl_kernel_{entry}"}
        functions = [s for s in tree.body if isinstance(s, ast.FunctionDef)]
        imports = [s for s in tree.body if s not in functions]
        exec(compile(ast.Module(imports, []), f"<kernel {entry}>", "exec"), names)
        self.typing.refresh()                         # what these have brought
        self.context.refresh()
        found = [s for s in functions if s.name == entry]
        if len(found) != 1 or len(found[0].args.args) != ARGUMENTS:
            raise Unknown(f"it has no function {entry}(args, tid, nthreads)")
        remembered: set[str] = set()
        while True:
            module = ir.Module(entry)
            module.triple, module.data_layout = self.triple, self.data_layout
            walk = _Walk(self, module, found[0], names, remembered)
            try:
                walk.run()
            except _Outlived as variable:
                remembered.add(*variable.args)
                continue
            except Exception as error:                # Numba's, too
                raise Unknown(f"line {walk.line}: {error}") from error
            tell_scopes(module)
            return module, walk.scalar_loops

    def function(self, called: Any, given: tuple[Any, ...]) -> tuple[Any, Any]:
        """(the signature, what emits it) of a function or operator on values of these types."""
        key = called, given
        if (found := self._found.get(key)) is None:
            kind = called if called in _OPERATORS else self.typing.resolve_value_type(called)
            signature = self.typing.resolve_function_type(kind, given, {})
            if signature is None:
                raise Unknown(f"{getattr(called, '__name__', called)} takes no "
                              f"{', '.join(map(str, given))}")
            found = self._found[key] = signature, self.context.get_function(kind, signature)
        return found


    def constant(self, x: Any) -> Value:
        """A literal's value. 1, 1.0 and True are equal, and 0.0 and -0.0."""
        key = type(x), repr(x)
        if (found := self._constants.get(key)) is None:
            kind = types.float64 if isinstance(x, float) else types.literal(x)
            of = None if isinstance(x, str) else self.context.get_constant(
                types.unliteral(kind), x)
            found = self._constants[key] = Value(kind, of)
        return found


def _given(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Variables that are given values, once for each place."""
    for s in statements:
        if isinstance(s, ast.Assign):
            for target in s.targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            yield from (s.target.id, s.target.id)
        elif isinstance(s, (ast.For, ast.While, ast.If)):
            if isinstance(s, ast.For) and isinstance(s.target, ast.Name):
                yield s.target.id
            yield from _given(s.body)
            yield from _given(s.orelse)


def _is_tuple(kind: Any) -> bool:
    return isinstance(kind, types.BaseTuple)


_OPERATORS = frozenset((*_BINARY.values(), *_UNARY.values(), *_COMPARED.values()))


class _Walk:
    """Emits one kernel."""

    def __init__(self, front: FrontEnd, module: ir.Module, text: ast.FunctionDef,
                 names: Mapping[str, Any], remembered: Set[str]) -> None:
        self.front, self.context, self.text, self.names = front, front.context, text, names
        self.function = ir.Function(
            module, ir.FunctionType(ir.VoidType(), [I64] * ARGUMENTS), text.name)
        set.add(self.function.attributes, '"prefer-vector-width"="512"')   # llvmlite has no pairs
        self.entry = self.function.append_basic_block("entry")
        self.b = ir.IRBuilder(self.function.append_basic_block("body"))
        self.variables: dict[str, Variable] = {}
        self.retyped: set[str] = set()                # variables that have had two types
        self.loops: list[tuple[ir.Block, ir.Block]] = []   # to go on, to leave
        self.place: tuple[int, ...] = ()
        self.blocks = self.line = 0
        self.vectors = self.scalar_loops = False      # what the innermost loop has; one without
        times = Counter((*(a.arg for a in text.args.args), *_given(text.body)))
        self.once = {name for name, count in times.items() if count == 1} - remembered

    def run(self) -> None:
        for arg, value in zip(self.text.args.args, self.function.args):
            value.name = arg.arg
            self.assign(arg.arg, Value(types.int64, value))
        self.statements(self.text.body)
        if not self.b.block.is_terminated:
            self.b.ret_void()
        ir.IRBuilder(self.entry).branch(self.function.basic_blocks[1])

    # ---- statements

    def block(self, statements: Sequence[ast.stmt], start: ir.Block, then: ir.Block,
              *given: tuple[str, Value]) -> None:
        """Statements from `start` on, and on to `then`."""
        self.b.position_at_end(start)
        self.blocks += 1
        self.place = (*self.place, self.blocks)
        for name, value in given:
            self.assign(name, value)
        self.statements(statements)
        self.place = self.place[:-1]
        if not self.b.block.is_terminated:
            self.b.branch(then)

    def statements(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.b.block.is_terminated:
                return
            self.line = statement.lineno
            self.statement(statement)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign) and len(s.targets) == 1:
            self.give(s.targets[0], self.value(s.value))
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            old = self.read(s.target.id)
            self.assign(s.target.id, self.call(_BINARY[type(s.op)], old, self.value(s.value)))
        elif isinstance(s, ast.Expr):
            if not isinstance(s.value, ast.Constant):         # a docstring
                self.value(s.value)
        elif isinstance(s, ast.If):
            self.branch(s)
        elif isinstance(s, ast.For) and not s.orelse:
            self.counted(s)
        elif isinstance(s, ast.While) and not s.orelse:
            self.repeated(s)
        elif isinstance(s, ast.Return) and s.value is None:
            self.b.ret_void()
        elif isinstance(s, (ast.Break, ast.Continue)) and self.loops:
            self.b.branch(self.loops[-1][isinstance(s, ast.Break)])
        elif not isinstance(s, ast.Pass):
            raise Unknown(f"a kernel can't say `{ast.unparse(s).splitlines()[0]}`")

    def branch(self, s: ast.If) -> None:
        test = self.value(s.test)
        if isinstance(test.type, types.Literal):
            self.statements(s.body if test.type.literal_value else s.orelse)
            return
        then, end = self.new("then"), self.new("endif")
        other = self.new("else") if s.orelse else end
        self.b.cbranch(self.truth(test), then, other)
        self.block(s.body, then, end)
        if s.orelse:
            self.block(s.orelse, other, end)
        self.b.position_at_end(end)

    def repeated(self, s: ast.While) -> None:
        head, body, end = self.new("while"), self.new("do"), self.new("done")
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.truth(self.value(s.test)), body, end)
        self.loop(s.body, body, head, end)

    def loop(self, statements: Sequence[ast.stmt], body: ir.Block, on: ir.Block, end: ir.Block,
             *given: tuple[str, Value]) -> None:
        """A loop's body, in which these variables have these values at first."""
        self.loops.append((on, end))
        self.vectors = False
        self.block(statements, body, on, *given)
        self.scalar_loops |= not self.vectors
        self.vectors = True                           # what is around has a loop, and stays one
        self.loops.pop()
        self.b.position_at_end(end)

    def counted(self, s: ast.For) -> None:
        """A loop over a range, whose number of turns is known before the first."""
        call = s.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                and self.names.get(call.func.id, range) is range and call.func.id == "range"
                and 1 <= len(call.args) <= 3 and not call.keywords
                and isinstance(s.target, ast.Name)):
            raise Unknown("a loop is over `range(...)`, of one variable")
        b = self.b
        given = [self.cast(self.value(a), types.int64) for a in call.args]
        start, stop = given[:2] if len(given) > 1 else (constant(I64, 0), given[0])
        step = given[2] if len(given) == 3 else constant(I64, 1)
        by_one = isinstance(step, ir.Constant) and step.constant == 1
        turns = stop if by_one else self.turns(start, stop, step)
        counter = self.memory(I64, f"{s.target.id}.turn")
        b.store(start if by_one else constant(I64, 0), counter)
        head, body, on, end = map(self.new, ("for", "do", "next", "done"))
        b.branch(head)
        b.position_at_end(head)
        turn = b.load(counter)
        b.cbranch(b.icmp_signed("<", turn, turns), body, end)
        b.position_at_end(on)
        b.store(b.add(b.load(counter), constant(I64, 1), flags=["nsw"]), counter)
        b.branch(head)
        b.position_at_end(body)
        index = turn if by_one else b.add(
            start, b.mul(turn, step, flags=["nsw"]), flags=["nsw"])
        self.loop(s.body, body, on, end, (s.target.id, Value(types.int64, index)))

    def turns(self, start: ir.Value, stop: ir.Value, step: ir.Value) -> ir.Value:
        """How often a loop runs. Ends the process where the step is 0: what the kernel would leave
        behind is no result."""
        b, zero = self.b, constant(I64, 0)
        if isinstance(step, ir.Constant) and step.constant > 0:
            way, length = b.sub(stop, start), step
        else:
            up = b.icmp_signed(">", step, zero)
            way = b.select(up, b.sub(stop, start), b.sub(start, stop))
            length = b.select(up, step, b.neg(step))
            with b.if_then(b.icmp_signed("==", step, zero), likely=False):
                nothing = ir.FunctionType(ir.VoidType(), ())
                b.call(b.module.declare_intrinsic("llvm.trap", (), nothing), ())
                b.unreachable()
        whole = b.add(b.udiv(b.sub(way, constant(I64, 1)), length), constant(I64, 1))
        return b.select(b.icmp_signed(">", way, zero), whole, zero)

    # ---- variables

    def memory(self, ty: ir.Type, name: str) -> ir.Value:
        """Memory for a variable, of zeros: LLVM takes what is not defined to be what it likes, also
        in turns of a loop in which it is."""
        with self.b.goto_block(self.entry):
            found = self.b.alloca(ty, name=name)
            self.b.store(ir.Constant(ty, None), found)
        return found

    def give(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, ast.Tuple) and _is_tuple(value.type) and len(
                target.elts) == len(value.of):
            for each, one in zip(target.elts, value.of):
                self.give(each, one)
        else:
            raise Unknown(f"`{ast.unparse(target)}` can't be given {value.type}")

    def assign(self, name: str, value: Value) -> None:
        old = self.variables.get(name)
        kind = types.unliteral(value.type)
        if old is not None and old.type != kind:
            if old.place != self.place and old.place == self.place[:len(old.place)]:
                way = self.context.typing_context.can_convert(kind, old.type)
                if way is None or way >= Conversion.unsafe:
                    raise Unknown(f"`{name}` is {old.type}, and is given {kind}")
                kind = old.type
            else:                       # nothing that is read behind here is of the old type
                old = None
                self.retyped.add(name)
        if name in self.once:
            self.variables[name] = Variable(kind, self.fixed(value, kind), self.place)
            return
        if old is None:
            old = self.variables[name] = Variable(kind, self.room(name, kind, value), self.place)
        self.fill(old.of, old.type, value)

    def fixed(self, value: Value, kind: Any) -> Value:
        """A value as one of another type, of tuples each of their own."""
        if _is_tuple(kind):
            return Value(kind, tuple(self.fixed(v, t) for v, t in zip(value.of, kind)))
        return Value(kind, self.cast(value, kind))

    def room(self, name: str, kind: Any, value: Value) -> Any:
        """Memory for values of a type: of a tuple, for each of its own."""
        if _is_tuple(kind):
            return tuple(self.room(f"{name}.{k}", t, v)
                         for k, (t, v) in enumerate(zip(kind, value.of)))
        return self.memory(self.context.get_value_type(kind), name)

    def fill(self, memory: Any, kind: Any, value: Value) -> None:
        if _is_tuple(kind):
            for one, t, v in zip(memory, kind, value.of):
                self.fill(one, t, v)
        else:
            self.b.store(self.cast(value, kind), memory)

    def read(self, name: str) -> Value:
        found = self.variables[name]
        if found.place != self.place[:len(found.place)]:
            if name in self.retyped:
                raise Unknown(f"`{name}` may be of one type or another here")
            if name in self.once:
                raise _Outlived(name)
        return found.of if name in self.once else self.held(found.of, found.type)

    def held(self, memory: Any, kind: Any) -> Value:
        if _is_tuple(kind):
            return Value(kind, tuple(self.held(m, t) for m, t in zip(memory, kind)))
        return Value(kind, self.b.load(memory))

    # ---- expressions

    def value(self, x: ast.expr) -> Value:
        if isinstance(x, ast.Constant):
            return self.front.constant(x.value)
        if isinstance(x, ast.Name):
            if x.id in self.variables:
                return self.read(x.id)
            if isinstance(self.names.get(x.id), (int, float)):
                return self.front.constant(self.names[x.id])
            raise Unknown(f"`{x.id}` is not given a value before")
        if isinstance(x, ast.Tuple):
            values = tuple(map(self.value, x.elts))
            return Value(types.BaseTuple.from_types([v.type for v in values]), values)
        if isinstance(x, ast.BinOp):
            return self.call(_BINARY[type(x.op)], self.value(x.left), self.value(x.right))
        if isinstance(x, ast.UnaryOp):
            of = x.operand
            if isinstance(of, ast.Constant) and isinstance(x.op, ast.USub):
                return self.front.constant(-of.value)          # type: ignore[operator]
            return self.call(_UNARY[type(x.op)], self.value(of))
        if isinstance(x, ast.Compare):
            return self.compared(x)
        if isinstance(x, ast.BoolOp):
            return self.either(x.values, isinstance(x.op, ast.And))
        if isinstance(x, ast.IfExp):
            return self.chosen(x)
        if (isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and not x.keywords
                and (called := self.names.get(x.func.id)) is not None):
            return self.call(called, *map(self.value, x.args))
        raise Unknown(f"a kernel can't say `{ast.unparse(x)}`")

    def call(self, called: Any, *values: Value) -> Value:
        signature, emit = self.front.function(called, tuple(v.type for v in values))
        self.vectors |= called.__module__ in TILES or any(
            isinstance(t, Vector) for t in (signature.return_type, *signature.args))
        given = [self.cast(v, t) for v, t in zip(values, signature.args)]
        return Value(signature.return_type, emit(self.b, given))

    def cast(self, value: Value, kind: Any) -> Any:
        """A value as one of another type, or as Numba knows it: a tuple as one of LLVM's."""
        if _is_tuple(kind):
            values = [self.cast(v, t) for v, t in zip(value.of, kind)]
            return self.context.make_tuple(self.b, kind, values)
        if value.type == kind or value.of is None:
            return value.of
        return self.context.cast(self.b, value.of, value.type, kind)

    def truth(self, value: Value) -> ir.Value:
        if value.type == types.boolean:
            return value.of
        return self.context.is_true(self.b, types.unliteral(value.type), value.of)

    def compared(self, x: ast.Compare) -> Value:
        values = [self.value(v) for v in (x.left, *x.comparators)]
        found = [self.call(_COMPARED[type(op)], *pair)
                 for op, pair in zip(x.ops, zip(values, values[1:]))]
        if len(found) == 1:
            return found[0]
        return Value(types.boolean, self.b.and_(*(self.truth(v) for v in found)))

    def either(self, values: Sequence[ast.expr], every: bool) -> Value:
        """`and`, `or` of conditions: what is behind one that settles it is not evaluated."""
        end, known = self.new("known"), []
        for k, x in enumerate(values):
            known.append((self.truth(self.value(x)), self.b.block))
            if k == len(values) - 1:
                self.b.branch(end)
                break
            more = self.new("more")
            self.b.cbranch(known[-1][0], *((more, end) if every else (end, more)))
            self.b.position_at_end(more)
        self.b.position_at_end(end)
        result = self.b.phi(I1)
        for value, block in known:
            result.add_incoming(value, block)
        return Value(types.boolean, result)

    def chosen(self, x: ast.IfExp) -> Value:
        blocks = [self.new(name) for name in ("then", "else", "chosen")]
        self.b.cbranch(self.truth(self.value(x.test)), *blocks[:2])
        values, ends = [], []
        for each, block in zip((x.body, x.orelse), blocks):
            self.b.position_at_end(block)
            values.append(self.value(each))
            ends.append(self.b.block)
        kind = self.front.typing.unify_types(*(types.unliteral(v.type) for v in values))
        if kind is None or _is_tuple(kind):
            raise Unknown(f"`{ast.unparse(x)}` may be of one type or another")
        casts = []
        for value, block in zip(values, ends):
            self.b.position_at_end(block)
            casts.append(self.cast(value, kind))
            self.b.branch(blocks[2])
        self.b.position_at_end(blocks[2])
        result = self.b.phi(self.context.get_value_type(kind))
        for value, block in zip(casts, ends):
            result.add_incoming(value, block)
        return Value(kind, result)

    def new(self, name: str) -> ir.Block:
        return self.function.append_basic_block(name)
