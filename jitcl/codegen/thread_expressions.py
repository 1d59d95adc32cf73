"""Expressions of CPU kernels (devices/cpu/vector.py) as OpenCL C, with their types."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.codegen.opencl_helpers import CTYPE, Calls
from jitcl.ir.kernel import OVERFLOW
from jitcl.ir.sizes import at_least_always
from jitcl.target import Target
from jitcl.templates.base import Declined

STORED = ("f16", "f32", "i32", "i64", "u8", "i8", "bool")       # of buffers
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
NAMED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
INFIX = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
FLOORED = {ast.FloorDiv: "floordiv", ast.Mod: "mod"}
QUOTIENTS = {"div": "/", "fmod": "%", "floordiv": "/", "mod": "%"}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "bitand": "&", "bitor": "|", "bitxor": "^"}
EXTREMES = {"max_": "max", "min_": "min", "sum_max": "max", "sum_min": "min"}
CASTS = {f"to_{dtype}": dtype for dtype in CTYPE}
LOGIC = {"and_": "&", "or_": "|", "xor": "^"}
FUNCTIONS = {"abs_": "fabs", "round_": "rint"} | {name: name for name in (
    "floor", "ceil", "trunc", "sqrt", "exp", "log", "erf", "tanh", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")}


class NotThreaded(Declined):
    """A kernel's text has something that is not written as OpenCL C."""

    def __init__(self, what: str) -> None:
        super().__init__(f"no OpenCL C is written for {what}")


@dataclass(frozen=True)
class Kind:
    """Of a value: its dtype ("bool" in vectors: 0 or -1), lanes (0: a scalar); of a pointer the
    memory that it points to."""

    dtype: str
    lanes: int = 0
    memory: str = ""

    def __str__(self) -> str:
        return f"{self.dtype}x{self.lanes}" if self.lanes else self.dtype

    @property
    def ctype(self) -> str:
        if self.memory:
            return f"{self.memory} {element(self.dtype)} *"
        if self.lanes:
            return f"{CTYPE['i32' if self.dtype == 'bool' else self.dtype]}{self.lanes}"
        return CTYPE[self.dtype]


@dataclass(frozen=True)
class Value:
    """least: 0 or 1, which an integer never lies below; None where that is not known."""

    text: str
    kind: Kind
    least: int | None = None


INDEX, TRUTH = Kind("i64"), Kind("bool")
ZERO, ONE = Value("0", INDEX, 0), Value("1", INDEX, 1)


def element(dtype: str) -> str:
    """The C type of a buffer's elements; halves are moved as their bits, since drivers' vectors of
    them want to be aligned."""
    if dtype not in STORED:
        raise NotThreaded(f"a buffer of {dtype}")
    return {"bool": "uchar", "f16": "ushort"}.get(dtype, CTYPE[dtype])


class ThreadExpressions:
    """Values of one kernel. `names`: of variables; `functions`: what calls of these need."""

    def __init__(self, target: Target) -> None:
        self.fused = {"fma": "fma({}, {}, {})", "mad": "mad({}, {}, {})"}.get(
            target.multiply_add, "({} * {} + {})")
        self.target, self.calls = target, Calls()
        self.functions: dict[str, str] = {}              # by name: their texts
        self.names: dict[str, Value] = {}                # of variables
        self.kept: dict[int, str] = {}                   # lanes: where magnitudes are kept
        self.place: tuple[int, ...] = ()                 # the blocks around a statement
        self.mentions: dict[str, list[tuple[tuple[int, ...], bool]]] = {}

    def mention(self, variable: str, given: bool = False) -> None:
        """A variable is named here; `given`: a value is given to it."""
        self.mentions.setdefault(variable, []).append((self.place, given))

    # ---- expressions

    def truth(self, x: ast.expr) -> str:
        """A condition's text."""
        value = self.value(x)
        if value.kind.lanes or value.kind.memory:
            raise NotThreaded("a vector as a condition")
        return value.text

    def value(self, x: ast.expr) -> Value:
        if isinstance(x, ast.Constant):
            if isinstance(x.value, bool):
                return Value(str(x.value).lower(), TRUTH)
            if isinstance(x.value, int):
                return Value(str(x.value), INDEX, least_of(x.value))
        elif isinstance(x, ast.Name):
            if x.id in ("tid", "nthreads"):
                of, least = ("id", 0) if x.id == "tid" else ("size", 1)
                return Value(f"(long)get_global_{of}(0)", INDEX, least)
            if x.id in self.names:
                self.mention(self.names[x.id].text)
                return self.names[x.id]
        elif isinstance(x, ast.BinOp) and type(x.op) in INFIX:
            return self.infix(INFIX[type(x.op)], self.value(x.left), self.value(x.right))
        elif isinstance(x, ast.BinOp) and type(x.op) in FLOORED:
            return self.call(FLOORED[type(x.op)], (x.left, x.right))
        elif isinstance(x, ast.UnaryOp):
            v = self.value(x.operand)
            return Value(f"({'!' if isinstance(x.op, ast.Not) else '-'}{v.text})", v.kind)
        elif isinstance(x, ast.BoolOp):
            sign = " && " if isinstance(x.op, ast.And) else " || "
            return Value(f"({sign.join(map(self.truth, x.values))})", TRUTH)
        elif isinstance(x, ast.Compare):
            return self.compared(x)
        elif isinstance(x, ast.IfExp):
            yes, no = self.alike(self.value(x.body), self.value(x.orelse))
            return Value(f"({self.truth(x.test)} ? {yes.text} : {no.text})", yes.kind,
                         least_among((yes, no)))
        elif isinstance(x, ast.Call) and not x.keywords:
            return self.call(name_of(x.func), x.args)
        raise NotThreaded(f"an expression {ast.unparse(x)}")

    def compared(self, x: ast.Compare) -> Value:
        values = [self.value(v) for v in (x.left, *x.comparators)]
        parts = [self.relation(COMPARED[type(op)], a, b)
                 for op, a, b in zip(x.ops, values, values[1:])]
        return parts[0] if len(parts) == 1 else Value(
            f"({' && '.join(p.text for p in parts)})", TRUTH)

    def relation(self, sign: str, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        text, lanes = f"({a.text} {sign} {b.text})", a.kind.lanes
        if lanes and a.kind.dtype not in ("f32", "i32", "u32", "bool"):
            text = f"convert_int{lanes}({text})"        # of lanes as wide as the operands'
        return Value(text, Kind("bool", lanes))

    def infix(self, sign: str, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        if a.kind.memory or a.kind.dtype == "bool":
            raise NotThreaded("arithmetic of truth values")
        if sign == "/" and a.kind.dtype != "f32":
            raise NotThreaded("a true quotient of integers")
        least = None
        if a.least is not None and b.least is not None and sign in "+*":
            least = least_of(a.least + b.least if sign == "+" else a.least * b.least)
        return Value(f"({a.text} {sign} {b.text})", a.kind, least)

    def quotient(self, name: str, a: Value, b: Value) -> Value:
        """Of integers, by C's operators where these are right: a divisor of data may be 0, and
        those round to 0."""
        rounds = name in ("floordiv", "mod")
        least = 0 if a.least is not None or name == "mod" and b.least else None
        if b.least and (a.least is not None or not rounds):
            return Value(f"({a.text} {QUOTIENTS[name]} {b.text})", INDEX, least)
        return Value(self.calls.call(f"{name}_i64", a.text, b.text), INDEX)

    def alike(self, *values: Value) -> list[Value]:
        """Values of one type: integers of 64 bits go along with any, scalars become vectors."""
        lanes = max(v.kind.lanes for v in values)
        found = {v.kind.dtype for v in values}
        others = found - {"i64"} if lanes and len(found) > 1 else found
        dtype = others.pop() if len(others) == 1 else ""
        if not dtype:
            raise NotThreaded("operands of different types")
        return [self.splat(self.converted(v, dtype), lanes) for v in values]

    def splat(self, v: Value, lanes: int) -> Value:
        if v.kind.lanes or not lanes:
            return v
        kind = Kind(v.kind.dtype, lanes)
        text = f"({v.text} ? -1 : 0)" if v.kind.dtype == "bool" else v.text
        return Value(f"(({kind.ctype})({text}))", kind)

    def converted(self, v: Value, dtype: str) -> Value:
        """A value as another type, as devices/cpu/convert.py has it."""
        have, to = v.kind.dtype, Kind(dtype, v.kind.lanes)
        if have == dtype:
            return v
        if dtype == "f16":                              # rounded, and computed with as f32
            return self.loaded(self.bits(v), v.kind.lanes, dtype)
        if dtype == "bool" and not v.kind.lanes:
            return Value(f"({v.text} != 0)", to)
        if have == "bool" and not v.kind.lanes:
            return Value(f"({to.ctype})({v.text} ? 1 : 0)", to)
        if "bool" in (have, dtype) or dtypes.compute(dtype) != dtype or "f64" in (have, dtype):
            raise NotThreaded(f"{have} as {dtype}")
        if have == "f32":
            wide = Kind("i64" if dtype in ("u32", "i64", "u64") else "i32", v.kind.lanes)
            if v.kind.lanes and wide.dtype == "i64":
                raise NotThreaded(f"vectors of {have} as {dtype}")
            text = self.truncated(v, wide) if v.kind.lanes else self.calls.call(
                f"{wide.ctype}_from_f32", v.text)
            return self.converted(Value(text, wide), dtype)
        return Value(f"convert_{to.ctype}({v.text})", to)

    def loaded(self, text: str, lanes: int, dtype: str) -> Value:
        """What a buffer's elements stand for, given their text."""
        if dtype == "bool":
            if lanes:
                raise NotThreaded("vectors of truth values in memory")
            return Value(f"({text} != 0)", TRUTH)
        if dtype != "f16":
            return Value(text, Kind(dtype, lanes))
        return Value(self.half("from", text, lanes), Kind("f32", lanes))

    def bits(self, v: Value) -> str:
        """A value as the bits of halves."""
        return self.half("to", self.converted(v, "f32").text, v.kind.lanes)

    def half(self, way: str, text: str, lanes: int) -> str:
        """Floats from the bits of halves, or these of floats."""
        many = f"x{lanes}" if lanes else ""
        if self.target.soft_half:
            return self.calls.call(f"{way}_f16{many}", text)
        n, name = lanes or "", f"jitcl_{way}_half_bits{many}"
        self.functions[name] = (
            f"float{n} {name}(ushort{n} a)\n{{\n    return vload_half{n}(0, (const half *)&a);\n}}"
            if way == "from" else
            f"ushort{n} {name}(float{n} a)\n{{\n    ushort{n} bits;\n"
            f"    vstore_half{n}_rte(a, 0, (half *)&bits);\n    return bits;\n}}")
        return f"{name}({text})"

    def truncated(self, v: Value, to: Kind) -> str:
        """Lanes as int; the lowest one for what does not fit."""
        name = f"jitcl_int_from_f32x{to.lanes}"
        self.functions[name] = (
            f"{to.ctype} {name}({v.kind.ctype} a)\n{{\n"
            f"    return select(({to.ctype})(INT_MIN), convert_{to.ctype}_rtz(a), "
            "(a >= -2147483648.0f) & (a < 2147483648.0f));\n}")
        return f"{name}({v.text})"

    def call(self, name: str, args: Sequence[ast.expr]) -> Value:
        special: Callable[..., Value] | None = getattr(self, f"call_{name}", None)
        if special is not None:
            return special(*args)
        if name in ("i32", "i64", "f32"):
            return self.number(name, args[0])
        if name in CASTS:
            return self.converted(self.value(args[0]), CASTS[name])
        values = self.alike(*map(self.value, args))
        texts, kind = [v.text for v in values], values[0].kind
        floats = kind.dtype == "f32"
        if name in NAMED:
            return self.relation(NAMED[name], *values)
        if name in LOGIC and kind.dtype == "bool":
            return Value(f"({texts[0]} {LOGIC[name]} {texts[1]})", kind)
        if name == "not_":
            return Value(f"({'~' if kind.lanes else '!'}{texts[0]})", kind)
        if name in OPERATORS and (not floats or name in ("add", "sub", "mul")):
            return Value(f"({texts[0]} {OPERATORS[name]} {texts[1]})", kind)
        if name == "neg":
            return Value(f"(-{texts[0]})", kind)
        if name in QUOTIENTS and kind == INDEX:
            return self.quotient(name, *values)
        if name == "div" and floats:
            return Value(f"({texts[0]} / {texts[1]})", kind)
        if name in ("fma", "sum_fma") and floats:
            return Value(self.fused.format(*texts), kind)
        if name in EXTREMES:
            short = EXTREMES[name]
            if not floats:
                return Value(f"{short}({', '.join(f'({kind.ctype}){t}' for t in texts)})", kind,
                             least_among(values, short))
            lanes = f"x{kind.lanes}" if kind.lanes else ""
            return Value(self.calls.call(f"{short}_f32{lanes}", *texts), kind)
        if name in ("sum_add", "sum_mul"):
            return Value(f"({texts[0]} {'+' if name == 'sum_add' else '*'} {texts[1]})", kind)
        if name == "relu" and floats:
            return Value(f"({texts[0]} < 0.0f ? ({kind.ctype})(0.0f) : {texts[0]})", kind)
        if name in ("isnan", "isinf") and floats:
            text = f"{name}({texts[0]})"
            return Value(text if kind.lanes else f"({text} != 0)", Kind("bool", kind.lanes))
        if name == "sigmoid" and floats:
            return Value(self.sigmoid(texts[0], kind), kind)
        if name in FUNCTIONS and floats:
            return Value(f"{FUNCTIONS[name]}({texts[0]})", kind)
        if name == "pow_" and floats:
            return Value(f"pow({texts[0]}, {texts[1]})", kind)
        raise NotThreaded(f"'{name}' of {kind}")

    def sigmoid(self, x: str, kind: Kind) -> str:
        """No overflow on the way."""
        name = f"jitcl_sigmoid_f32x{kind.lanes}"
        self.functions[name] = (
            f"{kind.ctype} {name}({kind.ctype} x)\n{{\n    {kind.ctype} t = exp(-fabs(x));\n"
            f"    return (x < 0.0f ? t : ({kind.ctype})(1.0f)) / (t + 1.0f);\n}}")
        return f"{name}({x})"

    def number(self, dtype: str, x: ast.expr) -> Value:
        """f32(0), i32(-3): a literal, or a value of that type."""
        negative = isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub)
        y = x.operand if isinstance(x, ast.UnaryOp) and negative else x
        sign = "-" if negative else ""
        if isinstance(y, ast.Name) and y.id in ("inf", "nan"):
            return Value(f"({sign}{'INFINITY' if y.id == 'inf' else 'NAN'})", Kind(dtype))
        if isinstance(y, ast.Constant) and isinstance(y.value, (int, float)) and dtype == "f32":
            return Value(f"({sign}{float(y.value)!r}f)", Kind(dtype))
        if isinstance(y, ast.Constant) and isinstance(y.value, int):
            return Value(f"({CTYPE[dtype]})({sign}{y.value}L)", Kind(dtype))
        return self.converted(self.value(x), dtype)

    def call_share(self, n: ast.expr, k: ast.expr, parts: ast.expr) -> Value:
        a, b, c = (self.value(x).text for x in (n, k, parts))
        return Value(f"({a} * ({b}) / {c})", INDEX, 0)

    def call_offset(self, p: ast.expr, i: ast.expr) -> Value:
        to = self.value(p)
        return Value(f"({to.text} + {self.value(i).text})", to.kind)

    def call_load(self, p: ast.expr, i: ast.expr) -> Value:
        to = self.value(p)
        return self.loaded(f"{to.text}[{self.value(i).text}]", 0, to.kind.dtype)

    def call_vload(self, p: ast.expr, i: ast.expr, lanes: ast.expr) -> Value:
        to, n = self.value(p), literal(lanes)
        return self.loaded(f"vload{n}(0, {to.text} + {self.value(i).text})", n, to.kind.dtype)

    def call_vload_part(self, p: ast.expr, i: ast.expr, count: ast.expr, lanes: ast.expr) -> Value:
        to, n = self.value(p), self.value(count)
        kind = Kind(to.kind.dtype, literal(lanes))
        name = f"jitcl_load_part_{to.kind.dtype}x{kind.lanes}{to.kind.memory}"
        one = "\n".join(f"    if (n > {k}) v.s{k:x} = p[{k}];" for k in range(kind.lanes))
        v = f"{element(kind.dtype)}{kind.lanes}"
        self.functions[name] = (
            f"{v} {name}({to.kind.ctype}p, long n)\n{{\n"
            f"    if (n >= {kind.lanes}) return vload{kind.lanes}(0, p);\n"
            f"    {v} v = 0;\n{one}\n    return v;\n}}")
        text = f"{name}({to.text} + {self.value(i).text}, {n.text})"
        return self.loaded(text, kind.lanes, kind.dtype)

    def call_kept_overflows(self, dtype: ast.expr) -> Value:
        """Whether what `keep` has seen is infinite or NaN as that type."""
        limit = f"{int(np.float32(OVERFLOW[literal(dtype)]).view(np.uint32))}u"
        tests = [f"any({name} >= {limit})" if lanes else f"{name} >= {limit}"
                 for lanes, name in self.kept.items()]
        return Value(f"({' || '.join(tests) or 'false'})", TRUTH)

    def call_splat(self, x: ast.expr, lanes: ast.expr) -> Value:
        return self.splat(self.value(x), literal(lanes))

    def call_lane_index(self, lanes: ast.expr) -> Value:
        kind = Kind("i32", literal(lanes))
        return Value(f"(({kind.ctype})({', '.join(map(str, range(kind.lanes)))}))", kind)

    def call_select(self, condition: ast.expr, x: ast.expr, y: ast.expr) -> Value:
        test = self.value(condition)
        yes, no = self.alike(self.value(x), self.value(y))
        lanes = test.kind.lanes or yes.kind.lanes
        yes, no = self.splat(yes, lanes), self.splat(no, lanes)
        if test.kind.lanes and yes.kind.dtype not in ("f32", "i32", "bool"):
            raise NotThreaded(f"lanes of {yes.kind.dtype} that are chosen")
        if test.kind.lanes:
            return Value(f"select({no.text}, {yes.text}, {test.text})", yes.kind)
        return Value(f"({test.text} ? {yes.text} : {no.text})", yes.kind)

    def call_exp_less(self, x: ast.expr, base: ast.expr) -> Value:
        a, b = self.alike(self.value(x), self.value(base))
        return Value(f"exp({a.text} - {b.text})", a.kind)

    def call_in_order(self, x: ast.expr) -> Value:
        return self.value(x)

    def call_lanes_add(self, x: ast.expr) -> Value:
        return self.halved(self.value(x), "add")

    def call_lanes_max(self, x: ast.expr) -> Value:
        return self.halved(self.value(x), "max")

    def halved(self, v: Value, op: str) -> Value:
        """The lanes combined, half by half."""
        n, dtype = v.kind.lanes, v.kind.dtype
        name = f"jitcl_lanes_{op}_{dtype}x{n}"
        lines, held = [], "x"
        if dtype != "f32" and op == "max":
            raise NotThreaded("the largest of integers")
        while n > 1:
            n //= 2
            kind, low, high = Kind(dtype, n if n > 1 else 0), f"{held}.lo", f"{held}.hi"
            both = f"{low} + {high}" if op == "add" else self.calls.call(
                "max_f32" + (f"x{n}" if n > 1 else ""), low, high)
            held = f"x{n}"
            lines.append(f"    {kind.ctype} {held} = {both};")
        self.functions[name] = (f"{CTYPE[dtype]} {name}({v.kind.ctype} x)\n{{\n" + "\n".join(lines)
                                + f"\n    return {held};\n}}")
        return Value(f"{name}({v.text})", Kind(dtype))


def least_of(n: int) -> int | None:
    """What a number, or a size that is not known, is known for, as `Value.least`."""
    return next((least for least in (1, 0) if at_least_always(n, least)), None)


def least_among(values: Sequence[Value], pick: str = "min") -> int | None:
    """What none of them lies below; what the largest of them does not."""
    known = [v.least for v in values if v.least is not None]
    if pick == "max":
        return max(known, default=None)
    return min(known) if len(known) == len(values) else None


def name_of(x: ast.expr) -> str:
    if not isinstance(x, ast.Name):
        raise NotThreaded(f"an expression {ast.unparse(x)}")
    return x.id


def literal(x: ast.expr) -> Any:
    try:
        return ast.literal_eval(x)
    except ValueError:
        raise NotThreaded(f"no literal {ast.unparse(x)}") from None
