"""Kernels of the CPU path's templates as OpenCL C, for OpenCL devices that are CPUs.

    def f(args, tid, nthreads):                     __kernel void f(__global float *restrict a,
        a = ptr(args, 0, "f32")                                     const int n_)
        n = param(args, 1)                          {
        for i in range(share(n, tid, nthreads),  =>     long n = n_;
                       share(n, tid + 1, nthreads)):    for (long i = jitcl_share(..); ..)
            store(a, i, f32(0))                             a[i] = 0.0f;

A work-item stands for a thread; work-groups have one. What a text may say is what the templates'
say (devices/cpu/vector.py, tiles.py): anything else is refused by NotThreaded, and the group gets
another template. Variables have the type of what they are first given; addresses are 64 bits wide;
what is only fetched ahead is left to the CPU.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from string import Template
from typing import Any

from jitcl.codegen.flags import flag_params
from jitcl.codegen.hooks import CpuGroupHooks
from jitcl.codegen.opencl_helpers import helper
from jitcl.codegen.schedule_opencl import schedule
from jitcl.codegen.schedule_sized import sized_for_opencl, sizes_of
from jitcl.codegen.thread_expressions import (
    INDEX,
    ONE,
    ZERO,
    Kind,
    NotThreaded,
    ThreadExpressions,
    Value,
    element,
    least_among,
    least_of,
    literal,
    name_of,
)
from jitcl.ir.group import Group
from jitcl.ir.kernel import Kernel
from jitcl.target import Target
from jitcl.templates.base import ENTRY, GROUP, Argument, Emitted, Scratch

FETCHED = 12                # argument of `tile`: what it would fetch ahead
RESERVED = ("half", "kernel", "global", "local", "constant", "private", "char", "short", "long")


class ThreadHooks(CpuGroupHooks):
    """What the CPU's templates read a group through, where OpenCL C is made of what they write."""

    def __init__(self, group: Group, target: Target) -> None:
        assert target.as_cpu is not None
        super().__init__(group, target.as_cpu)
        self.device = target

    def emitted(self, kernel: Kernel, arguments: tuple[Argument, ...], copy: Scratch) -> Emitted:
        """The launch of a copying kernel: OpenCL's own loops. Halves are moved one by one: PoCL's
        vstore_half8_rte wants them aligned (3.0, AVX2: SIGSEGV), which rows of any length aren't.
        """
        write = sized_for_opencl if sizes_of(kernel) else schedule
        halves = any(b.dtype == "f16" for b in kernel.buffers)
        done = write(kernel, dataclasses.replace(self.device, max_vector_width=1) if halves
                     else self.device)
        return done.emitted("arranged", arguments, copy)

    def launches(self, kernels: list[Emitted]) -> list[Emitted]:
        """A template's kernels as OpenCL C. Raises NotThreaded where one of them can't be."""
        return [k if k.local_size else self._threaded(k) for k in kernels]

    def flags(self, e: Emitted) -> bool:
        """Whether a kernel tells what is not finite."""
        return self.group.flag is not None and self.group.flag.flags in e.arguments

    def _threaded(self, e: Emitted) -> Emitted:
        threads = max(1, self.device.compute_units)
        given = {**e.params, **(flag_params(self.group) if self.flags(e) else {})}
        body, params = translated(self.device, e.body, len(e.arguments), given)
        launched = (e.global_size or (1,))[0]            # 0 where a run leaves it out
        return dataclasses.replace(e, body=body, params=params, local_size=(1,),
                                   global_size=(launched * threads,))


def runs_threads(group: Group, target: Target) -> bool:
    """Whether the CPU's templates may write a group for an OpenCL device: not one that is to be
    computed in half, which they never do, but for attention, whose scores they keep as f32."""
    cpu, nodes = target.as_cpu, (*group.members, *group.operands)
    if group.compute == "f16" and target.computes_f16 and len(group.parts) == 1:
        return False
    return cpu is not None and all(
        n.type.layout.kind == "row" or n.type.layout.block == cpu.vector_width for n in nodes)


def translated(target: Target, text: str, arguments: int, params: Mapping[str, Any]
               ) -> tuple[str, dict[str, Any]]:
    """The kernel of a template's text, of so many buffers, and those parameters that it reads."""
    given = tuple((name, least_of(value)) for name, value in params.items())
    body, taken = _translated(target, text, arguments, given)
    return body, {n: params[n] for n in params if n in taken}


@functools.lru_cache(128)       # equal layers have equal texts
def _translated(target: Target, text: str, arguments: int,
                params: tuple[tuple[str, int | None], ...]) -> tuple[str, Set[str]]:
    (function,) = (f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef))
    body, lowest = needed(function), dict[str, int | None]()
    while True:
        writer = Translator(target, arguments, params, lowest)
        lines = writer.block(body, 1)
        if not writer.misled:
            return writer.kernel(lines), writer.taken


class Translator(ThreadExpressions):
    """Writes one kernel. `params`: their names, and what each doesn't lie below. `lowest`: of
    variables, what none of their values lies below, as `Value.least`, if seen already; what lies
    lower is noted."""

    def __init__(self, target: Target, given: int, params: tuple[tuple[str, int | None], ...],
                 lowest: dict[str, int | None]) -> None:
        super().__init__(target)
        self.given, self.params, self.lowest = given, params, lowest
        self.misled = False                              # a variable was lower than it had seemed
        self.tuples: dict[str, list[Value]] = {}
        self.declared: dict[str, Kind] = {}              # C variables
        self.arrays: dict[str, str] = {}                 # declarations
        self.blank: set[str] = set()                     # arrays read where nothing is written
        self.blocks = 0
        self.buffers: dict[int, str] = {}                # arguments' declarations
        self.count = 0
        self.taken: set[str] = set()                     # of `params`, those that are read

    def kernel(self, lines: list[str]) -> str:
        """The text around these lines, and variables' types where they are declared."""
        if len(self.buffers) != self.given:
            raise NotThreaded("an argument that is not read")
        within = self.within_a_block()
        heads = [*(self.buffers[k] for k in range(self.given)),
                 *(f"const int {name}_i" for name, _ in self.params if name in self.taken)]
        ahead = [f"    {kind.ctype} {name};" for name, kind in self.declared.items()
                 if name not in within]
        arrays = [f"    {text}{' = {0}' if name in self.blank else ''};"
                  for name, text in self.arrays.items()]
        types = {name: f"{kind.ctype} " if name in within else ""
                 for name, kind in self.declared.items()}
        body = Template("\n".join((*arrays, *ahead, *lines))).substitute(types)
        helpers = "".join(map(helper, self.calls.missing()))
        return "".join((
            helpers, *(f"#ifndef {n.upper()}\n#define {n.upper()}\n{t}\n#endif\n"
                       for n, t in self.functions.items()),
            f"__kernel {GROUP}void {ENTRY}(\n    ", ",\n    ".join(heads), ")\n{\n",
            body, "\n}\n"))

    def within_a_block(self) -> set[str]:
        """Variables that are only named in the block of their first value, behind it: there they
        are declared."""
        found = set()
        for name, ((block, given), *others) in self.mentions.items():
            if given and all(b[:len(block)] == block for b, _ in others):
                found.add(name)
        return found

    # ---- statements

    def block(self, body: Sequence[ast.stmt], indent: int) -> list[str]:
        self.blocks += 1
        outer, self.place = self.place, (*self.place, self.blocks)
        lines = [line for s in body for line in self.stmt(s, indent)]
        self.place = outer
        return lines

    def stmt(self, s: ast.stmt, indent: int) -> list[str]:
        pad = "    " * indent
        if isinstance(s, ast.Assign):
            return [pad + line for line in self.assign(s.targets[0], s.value)]
        if isinstance(s, ast.AugAssign):
            value = ast.BinOp(ast.Name(name_of(s.target)), s.op, s.value)
            return [pad + line for line in self.assign(s.target, value)]
        if isinstance(s, ast.Expr):
            return [pad + line for line in self.effect(s.value)]
        if isinstance(s, ast.For):
            return self.loop(s, indent)
        if isinstance(s, ast.While):
            return [f"{pad}while {self.condition(s.test)} {{", *self.block(s.body, indent + 1),
                    pad + "}"]
        if isinstance(s, ast.If):
            lines = [f"{pad}if {self.condition(s.test)} {{", *self.block(s.body, indent + 1)]
            if s.orelse:
                lines += [pad + "} else {", *self.block(s.orelse, indent + 1)]
            return [*lines, pad + "}"]
        if isinstance(s, (ast.Break, ast.Continue)):
            return [pad + ("break;" if isinstance(s, ast.Break) else "continue;")]
        if isinstance(s, ast.Pass):
            return []
        raise NotThreaded(f"a statement {ast.unparse(s)}")

    def condition(self, x: ast.expr) -> str:
        """In one pair of parentheses: compilers warn of two around ==."""
        text = self.truth(x)
        return text if isinstance(x, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else f"({text})"

    def assign(self, target: ast.expr, value: ast.expr) -> list[str]:
        if isinstance(target, ast.Tuple):
            if not isinstance(value, ast.Tuple):
                raise NotThreaded(f"several values of {ast.unparse(value)}")
            values = [self.value(v) for v in value.elts]
            names = [name_of(t) for t in target.elts]
            held = [f"next_{n}" for n in names]
            lines = [line for h, v in zip(held, values) for line in self.named(h, v)]
            return [*lines, *(line for n, h in zip(names, held)
                              for line in self.named(n, self.value(ast.Name(h))))]
        name = name_of(target)
        if isinstance(value, ast.Tuple):
            if any(isinstance(v, ast.Tuple) for v in value.elts):
                return []                                # what is fetched ahead
            lines, self.tuples[name] = [], []
            for k, v in enumerate(value.elts):
                found = self.value(v)
                lines += self.named(f"{name}_{k}", found)
                self.tuples[name].append(self.names[f"{name}_{k}"])
            return lines
        if isinstance(value, ast.Call) and (special := getattr(
                self, f"name_{name_of(value.func)}", None)):
            return list(special(name, *value.args))
        return self.named(name, self.value(value))

    def named(self, name: str, value: Value) -> list[str]:
        """A variable's new value: another C variable where its type is another."""
        own = self.variable(name, value.kind)
        first, seemed = own not in self.mentions, self.lowest.get(own, 1)
        least = self.lowest[own] = least_among((value, Value(own, value.kind, seemed)))
        self.misled |= not first and least != seemed
        self.names[name] = Value(own, value.kind, least)
        self.mention(own, True)
        declared = f"${{{own}}}" if first else ""       # its type, if that stands here
        return [f"{declared}{own} = {value.text};"]

    def variable(self, name: str, kind: Kind) -> str:
        own = f"{name}_" if name in RESERVED else name
        if self.declared.setdefault(own, kind) != kind:
            own = f"{name}_{kind.dtype}x{kind.lanes}{kind.memory[:3]}"
            if self.declared.setdefault(own, kind) != kind:
                raise NotThreaded(f"'{name}' is of several types")
        return own

    def name_ptr(self, name: str, args: ast.expr, k: ast.expr, dtype: ast.expr) -> list[str]:
        number, kind = literal(k), Kind(literal(dtype), 0, "__global")
        self.buffers[number] = f"{kind.ctype}restrict {name}"
        self.names[name] = Value(name, kind)
        return []

    def name_param(self, name: str, args: ast.expr, k: ast.expr) -> list[str]:
        given, least = self.params[literal(k) - self.given]
        self.taken.add(given)
        return self.named(name, Value(f"{given}_i", INDEX, least))

    def name_scratch(self, name: str, count: ast.expr, dtype: ast.expr) -> list[str]:
        kind = Kind(literal(dtype), 0, "__private")
        self.arrays[name] = (f"{element(kind.dtype)} {name}[{literal(count)}] "
                             "__attribute__((aligned(64)))")
        self.names[name] = Value(name, kind)
        return []

    def name_in_memory(self, name: str, call: ast.Call) -> list[str]:
        return self.name_scratch(name, *call.args)

    def name_place(self, name: str, *args: ast.expr) -> list[str]:
        return []                                        # only fetched ahead

    def loop(self, s: ast.For, indent: int) -> list[str]:
        if not isinstance(s.iter, ast.Call) or name_of(s.iter.func) != "range":
            raise NotThreaded(f"a loop over {ast.unparse(s.iter)}")
        given = [self.value(a) for a in s.iter.args]
        first, end, step = [*(given if len(given) > 1 else [ZERO, *given]), ONE][:3]
        name, pad = name_of(s.target), "    " * indent
        self.count += 1
        own = f"{name if name != '_' else 'turn'}_{self.count}"
        before, self.names[name] = self.names.get(name), Value(own, INDEX, first.least)
        lines = [f"{pad}for (long {own} = {first.text}, end_{self.count} = {end.text}; {own} < "
                 f"end_{self.count}; {own} += {step.text}) {{", *self.block(s.body, indent + 1),
                 pad + "}"]
        self.names.pop(name)
        if before is not None:
            self.names[name] = before
        return lines

    def effect(self, x: ast.expr) -> list[str]:
        """A call that only does something."""
        if isinstance(x, ast.Constant):
            return []
        call: Callable[..., list[str]] | None = None
        if isinstance(x, ast.Call) and not x.keywords:
            call = getattr(self, f"do_{name_of(x.func)}", None)
        if call is None:
            raise NotThreaded(f"a statement {ast.unparse(x)}")
        assert isinstance(x, ast.Call)
        return call(*x.args)

    def do_store(self, p: ast.expr, i: ast.expr, value: ast.expr) -> list[str]:
        to, at, v = self.value(p), self.value(i), self.value(value)
        text = self.stored(v, to.kind.dtype)
        if v.kind.lanes:
            return [f"vstore{v.kind.lanes}({text}, 0, {to.text} + {at.text});"]
        return [f"{to.text}[{at.text}] = {text};"]

    def stored(self, v: Value, dtype: str) -> str:
        """A value as a buffer's element."""
        if dtype == "f16":
            return self.bits(v)
        text = self.converted(v, dtype).text
        return f"({text}) ? 1 : 0" if dtype == "bool" and not v.kind.lanes else text

    def do_keep(self, x: ast.expr) -> list[str]:
        """The largest magnitude, as bits, which grow with it."""
        v = self.converted(self.value(x), "f32")
        n, name = v.kind.lanes or "", f"kept{v.kind.lanes or ''}"
        self.kept[v.kind.lanes] = name
        self.arrays[name] = f"uint{n} {name} = 0"
        return [f"{name} = max({name}, as_uint{n}({v.text}) & 0x7fffffffu);"]

    def do_vstore_part(self, p: ast.expr, i: ast.expr, value: ast.expr, count: ast.expr
                       ) -> list[str]:
        to, at, v, n = map(self.value, (p, i, value, count))
        lanes, text = v.kind.lanes, self.stored(v, to.kind.dtype)
        name = f"jitcl_store_part_{to.kind.dtype}x{lanes}{to.kind.memory}"
        one = "\n".join(f"    if (n > {k}) p[{k}] = v.s{k:x};" for k in range(lanes))
        self.functions[name] = (
            f"void {name}({to.kind.ctype}p, {element(to.kind.dtype)}{lanes} v, long n)\n{{\n"
            f"    if (n >= {lanes}) {{ vstore{lanes}(v, 0, p); return; }}\n{one}\n}}")
        return [f"{name}({to.text} + {at.text}, {text}, {n.text});"]

    def do_transpose(self, to: ast.expr, source: ast.expr, lanes: ast.expr) -> list[str]:
        y, x, n = self.value(to), self.value(source), literal(lanes)
        name = f"jitcl_transpose_{y.kind.dtype}x{n}"
        if {y.kind.memory, x.kind.memory} != {"__private"}:
            raise NotThreaded("a transposition in global memory")
        # the last rows of a tile's last columns: in lanes that nothing stores
        names = {v.id for v in ast.walk(source) if isinstance(v, ast.Name)}
        self.blank |= names & self.arrays.keys()
        rows = "\n".join(f"    vstore{n}(({element(x.kind.dtype)}{n})(" + ", ".join(
            f"x[{c * n + r}]" for c in range(n)) + f"), {r}, y);" for r in range(n))
        self.functions[name] = f"void {name}({y.kind.ctype}y, {x.kind.ctype}x)\n{{\n{rows}\n}}"
        return [f"{name}({y.text}, {x.text});"]

    # ---- register tiles (devices/cpu/tiles.py)

    def do_tile(self, *args: ast.expr) -> list[str]:
        acc, a, w = map(self.value, args[:3])
        counts, strides = map(self.several, args[3:5])
        rows, columns, blocks, zs, ps, lanes = map(literal, args[5:11])
        always = isinstance(args[11], ast.Constant) and args[11].value is True
        streamed = len(strides) == 4
        self.floats(acc, a, w)
        pixels = [divmod(p, columns) for p in range(rows * columns)]
        sums = [f"t{j}_{p}" for j in range(blocks) for p in range(len(pixels))]
        v = f"float{lanes}"
        body = [f"    {v} {', '.join(sums)};"]
        if not always:
            body += ["    if (!fresh) {", *(f"        {t} = vload{lanes}({k}, acc);"
                                            for k, t in enumerate(sums)), "    } else {"]
        body += [f"    {t} = 0.0f;" for t in sums] + ["    }"] * (not always)
        body += ["    for (long x = 0; x < n0; ++x) {", "    long n = x == n0 - 1 ? last : n3;",
                 "    for (long y = 0; y < n1; ++y)", "    for (long k = 0; k < n2; ++k) {",
                 f"        {a.kind.ctype}p0 = a + x * s0 + y * s1 + k * s2;",
                 *(f"        {a.kind.ctype}p{r} = p0 + {r} * rs;" for r in range(1, rows))]

        def steps(head: str, inputs: list[Value]) -> list[str]:
            found = [head, *(f"            {v} w{j} = "
                             + self.loaded(f"vload{lanes}({j}, w)", lanes, w.kind.dtype).text + ";"
                             for j in range(blocks))]
            for p, given in enumerate(inputs):
                found.append(f"            {'' if p else v + ' '}u = {given.text};")
                found += [f"            t{j}_{p} = {self.fused.format('u', f'w{j}', f't{j}_{p}')};"
                          for j in range(blocks)]
            return [*found, f"            w += {blocks * lanes if streamed else 'ws'};"]

        first = "0"
        if a.kind.dtype == "f16" and zs == 1:           # neighbours are converted together
            first = f"n & -{lanes}"
            body[:0] = [f"    float room[{len(pixels) * lanes}] __attribute__((aligned(64)));"]
            body.append(f"        for (long z = 0; z < ({first}); z += {lanes}) {{")
            for p, (r, c) in enumerate(pixels):
                many = self.loaded(f"vload{lanes}(0, p{r} + {c * ps})", lanes, a.kind.dtype)
                body.append(f"            vstore{lanes}({many.text}, {p}, room);")
            body += steps(f"        for (long i = 0; i < {lanes}; ++i) {{", [
                Value(f"room[{p * lanes} + i]", Kind("f32")) for p in range(len(pixels))])
            body += ["        }", *(f"            p{r} += {lanes};" for r in range(rows)),
                     "        }"]
        body += steps(f"        for (long z = {first}; z < n; ++z) {{", [
            self.loaded(f"p{r}[{c * ps}]", 0, a.kind.dtype) for r, c in pixels])
        body += [*(f"            p{r} += {zs};" for r in range(rows)), "        }", "    }",
                 "    }"]
        body += [f"    vstore{lanes}({t}, {k}, acc);" for k, t in enumerate(sums)]
        numbers = ["n0", "n1", "n2", "n3", "last", "s0", "s1", "s2", "rs"] + ["ws"] * (not streamed)
        head = [f"{acc.kind.ctype}acc", f"{a.kind.ctype}a", f"{w.kind.ctype}w",
                *(f"long {n}" for n in numbers), *["bool fresh"] * (not always)]
        given = [x.text for x in (acc, a, w, *counts, *strides)]
        given += [] if always else [self.truth(args[11])]
        return self.function(f"tile_{rows}x{columns}x{blocks}", head, body, given)

    def do_lane_tile(self, *args: ast.expr) -> list[str]:
        acc, a, w, taps, stride = map(self.value, args[:5])
        columns, kw, step, dilation, lanes = map(literal, args[5:])
        v = f"float{lanes}"
        body = [f"    {v} t{c} = 0.0f;" for c in range(columns)]
        body.append("    for (long y = 0; y < taps; ++y, a += stride, "
                    f"w += {kw * lanes}) {{")
        seen = set()
        for x in range(kw):
            taken = self.loaded(f"vload{lanes}({x}, w)", lanes, w.kind.dtype)
            body.append(f"        {v} w{x} = {taken.text};")
            for c in range(columns):
                at = c * step + x * dilation
                if at not in seen:
                    taken = self.loaded(f"vload{lanes}({at}, a)", lanes, a.kind.dtype)
                    body.append(f"        {v} u{at} = {taken.text};")
                    seen.add(at)
                body.append(f"        t{c} = {self.fused.format(f'u{at}', f'w{x}', f't{c}')};")
        body += ["    }", *(f"    vstore{lanes}(t{c}, {c}, acc);" for c in range(columns))]
        self.floats(acc, a, w)
        head = [f"{acc.kind.ctype}acc", f"{a.kind.ctype}a", f"{w.kind.ctype}w", "long taps",
                "long stride"]
        return self.function(f"lane_tile_{columns}x{kw}", head, body,
                             [x.text for x in (acc, a, w, taps, stride)])

    def floats(self, acc: Value, *operands: Value) -> None:
        if acc.kind.dtype != "f32" or not {v.kind.dtype for v in operands} <= {"f32", "f16"}:
            raise NotThreaded("a tile of other numbers")

    def function(self, stem: str, head: list[str], body: list[str], given: list[str]) -> list[str]:
        """A call of a function of this text, written once for all kernels."""
        text = ", ".join(head) + ")\n{\n" + "\n".join(body) + "\n}"
        name = f"jitcl_{stem}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        self.functions[name] = f"void {name}({text}"
        return [f"{name}({', '.join(given)});"]

    def several(self, x: ast.expr) -> list[Value]:
        """A tuple's values."""
        if isinstance(x, ast.Tuple):
            return [self.value(v) for v in x.elts]
        if name_of(x) not in self.tuples:
            raise NotThreaded(f"a tuple {ast.unparse(x)}")
        for v in self.tuples[name_of(x)]:
            self.mention(v.text)
        return self.tuples[name_of(x)]


def needed(function: ast.FunctionDef) -> list[ast.stmt]:
    """A kernel's statements without what a tile would fetch ahead, and without names that nothing
    reads then: compilers warn of these."""
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and name_of(call.func) == "tile":
            call.args[FETCHED] = ast.Constant(None)
    read = Counter(_read(function))
    while True:
        before = read.total()
        function.body = _without(function.body, read)
        if read.total() == before:
            return function.body


def _read(x: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(x) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]


def _without(body: Sequence[ast.stmt], read: Counter[str]) -> list[ast.stmt]:
    """Statements without those that only set names that are not `read`, and what they read taken
    from it; values have no effects."""
    kept: list[ast.stmt] = []
    for s in body:
        if isinstance(s, (ast.If, ast.For, ast.While)):
            s.body, s.orelse = _without(s.body, read), _without(s.orelse, read)
            if not s.body and not s.orelse:
                read.subtract(_read(s))
                continue
            s.body = s.body or [ast.Pass()]
        targets = s.targets if isinstance(s, ast.Assign) else (
            [s.target] if isinstance(s, ast.AugAssign) else [])
        names = {x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)}
        if not names or any(read[n] for n in names):
            kept.append(s)
        else:
            read.subtract(_read(s))
    return kept


__all__ = ["NotThreaded", "ThreadHooks", "runs_threads", "translated"]
