"""Kernel IR -> OpenCL C 1.2: statements and whole kernels."""

from __future__ import annotations

import math
from dataclasses import replace

from jitcl import dtypes
from jitcl.codegen.flags import as_text, text_params
from jitcl.codegen.loops import renamed
from jitcl.codegen.opencl_expressions import LOGIC, RELATION
from jitcl.codegen.opencl_vectors import NotVectorisable, VectorRenderer
from jitcl.codegen.render import render
from jitcl.codegen.render_numba import bits_of, only_stored
from jitcl.errors import JitclError, UnsupportedError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import (
    OVERFLOW,
    Accum,
    Assign,
    Barrier,
    For,
    Let,
    Stmt,
    Store,
    mutated,
    statements,
    variables_read,
)
from jitcl.ir.lanes import work_loops
from jitcl.ir.sizes import at_least_always, is_size
from jitcl.templates.base import ENTRY, GROUP


class OpenClRenderer(VectorRenderer):
    """Statements of one kernel as lines of OpenCL C."""

    lifted = False                               # buffers' shapes are no part of the text

    # ---- statements

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        pad = "    " * indent
        if isinstance(s, For):
            return self.loop(s, indent)
        if isinstance(s, Let):
            if s.var.value in self.wide:
                return [pad + self.wide_let(s)]
            return [f"{pad}{self.ctype(s.var.dtype)} {s.var.value} = {self.expr(s.value)};"]
        if isinstance(s, Accum):
            return [f"{pad}{self.accumulate(s.var, s.combine, s.value)}"]
        if isinstance(s, Assign):
            return self.assign(s, indent)
        if isinstance(s, Store):
            return self.store(s, pad)
        if isinstance(s, Barrier):
            return [f"{pad}{self.fence()};"]
        raise JitclError(f"the OpenCL renderer has no form for a {type(s).__name__} statement")

    def loop(self, s: For, indent: int) -> list[str]:
        """A C loop over the body, from where it says to its end by its step."""
        if s.kind == "vec":
            return self.vec(s, indent)
        if s.first is not None and s.end is None and at_least_always(s.step, s.extent):
            return self.once(s, s.first, indent)
        pad, name = "    " * indent, s.var.value
        first = "0" if s.first is None else self.expr(s.first)
        advance = f"{name} += {s.step}" if s.step > 1 else f"++{name}"
        end = self.sizes.write(s.extent)
        if s.end is not None and at_least_always(s.extent, E.bounds(s.end)[1]):
            end = self.operand(s.end, RELATION + 1)
        elif s.end is not None:
            end = f"min({self.expr(s.end)}, ({self.index}){end})"
        head = f"{pad}for ({self.index} {name} = {first}; {name} < {end}; {advance}) {{"
        return [head, *self.block(s.body, indent + 1), pad + "}"]

    def vec(self, s: For, indent: int) -> list[str]:
        """The body with what differs from lane to lane as vectors."""
        if self.lane is not None:
            raise NotVectorisable("lanes in lanes")
        self.spread(s.body, s.var)
        inside = {b.var.value for b in statements(s.body) if isinstance(b, Let)}
        if any(v.value not in inside for b in statements(s.body) for v in mutated(b)):
            raise NotVectorisable("lanes are combined")
        named = any(isinstance(b, Let) for b in s.body)
        lines = self.block(s.body, indent + named)
        self.lane, self.wide = None, frozenset()
        pad = "    " * indent
        return [pad + "{", *lines, pad + "}"] if named else lines

    def once(self, s: For, first: Expr, indent: int) -> list[str]:
        """A loop that runs once at most: a condition, where it can fail."""
        pad, body = "    " * indent, s.body
        if first.op == "var":
            body = tuple(renamed(b, {s.var.value: first}) for b in body)
            declared = []
        else:
            declared = [f"{pad}    {self.index} {s.var.value} = {self.expr(first)};"]
        always = at_least_always(s.extent - 1, E.bounds(first)[1])
        if always and not declared:
            return self.block(body, indent)
        lines = [*declared, *self.block(body, indent + 1)]
        head = pad if always else (
            f"{pad}if ({self.operand(first, RELATION + 1)} < {self.sizes.write(s.extent)}) ")
        if len(lines) == 1:
            return [head + lines[0].lstrip()]
        return [head + "{", *lines, pad + "}"]

    def accumulate(self, var: Expr, combine: str, value: Expr) -> str:
        if combine in ("add", "mul"):
            return f"{var.value} {'+' if combine == 'add' else '*'}= {self.expr(value)};"
        return f"{var.value} = {self.expr(E.make(combine, (var, value), var.dtype))};"

    def assign(self, s: Assign, indent: int) -> list[str]:
        """Assignments one after the other; a variable that a later value reads changes last."""
        pad, now, last = "    " * indent, [], []
        for k, (var, value) in enumerate(zip(s.vars, s.values)):
            name, text = str(var.value), self.expr(value)
            if value is var:
                continue
            if any(name in e.free for e in s.values[k + 1:]):
                now.append(f"{pad}{self.ctype(var.dtype)} next_{name} = {text};")
                last.append(f"{pad}{name} = next_{name};")
            else:
                now.append(f"{pad}{name} = {text};")
        return now + last

    def store(self, s: Store, pad: str) -> list[str]:
        if self.kernel.flags(s.buffer):
            lines = self.flagged(s)
        elif self.lane is not None:
            lines = [self.wide_store(s)]
        else:
            lines = [self.store_one(s)]
        if s.guard is None:
            return [pad + line for line in lines]
        return [f"{pad}if ({self.expr(s.guard)})", *(
            pad + ("" if len(lines) > 1 else "    ") + line for line in lines)]

    def flagged(self, s: Store) -> list[str]:
        """A store, and the flag where it is not finite."""
        dtype, value = s.value.dtype, s.value
        if only_stored(dtype) and value.op == "cast" and not self.half:
            value = E.cast(value.args[0], dtypes.compute(dtype))    # storing rounds by itself
        wide = self.lane is not None and self.is_wide(value)
        stored, text = E.var("stored", value.dtype), self.expr(value)
        before, self.wide = self.wide, self.wide | {"stored"} if wide else self.wide
        inner = replace(s, value=E.cast(stored, dtype), guard=None)
        store = f"{self.wide_store(inner)}" if self.lane is not None else self.store_one(inner)
        self.wide = before
        assert self.kernel.flagging is not None
        flag = self.store_one(as_text(self.kernel.flagging))
        kind = self.vector_type(value.dtype) if wide else self.ctype(value.dtype)
        held = "stored"
        if value.dtype != "f32" and self.half:
            to = self.language.vector.format(type="float", width=self.width) if wide else "float"
            held = self.language.convert.format(type=to, value=held)
        limit = "INFINITY" if math.isinf(OVERFLOW[dtype]) else f"{OVERFLOW[dtype]}f"
        finite = f"fabs({held}) < {limit}"
        return ["{", f"    {kind} stored = {text};", f"    {store}",
                f"    if (!{f'all({finite})' if wide else f'({finite})'}) {flag}", "}"]

    def store_one(self, s: Store) -> str:
        at = self.expr(flat(self.shapes[s.buffer], s.indices))
        return f"{self.put(s.buffer, at, s.value)};"

    def put(self, buffer: str, at: str, value: Expr) -> str:
        dtype = self.stored[buffer]
        self.ctype(dtype)
        if dtype == "f16" and self.half:
            return f"{buffer}[{at}] = {self.expr(value)}"
        bits = bits_of(value)
        if bits is not None and value.dtype == dtype:
            return f"{buffer}[{at}] = {self._bits(bits)}"
        if only_stored(dtype) and value.op == "cast" and value.dtype == dtype:
            value = E.cast(value.args[0], dtypes.compute(dtype))  # storing rounds by itself
        if dtype == "f16" and self.soft_half:
            return f"{buffer}[{at}] = {self.call_helper('to_f16', self.expr(value))[0]}"
        if dtype == "f16":
            return self.language.write_half.format(value=self.expr(value), at=at, buffer=buffer)
        if dtype == "bf16" or dtype in dtypes.LOW:
            return f"{buffer}[{at}] = {self.call_helper(f'to_{dtype}', self.expr(value))[0]}"
        if dtype == "bool":
            return f"{buffer}[{at}] = {self.operand(value, LOGIC - 1)} ? 1 : 0"
        return f"{buffer}[{at}] = {self.expr(value)}"

    def block(self, body: tuple[Stmt, ...], indent: int) -> list[str]:
        return [line for s in body for line in self.stmt(s, indent)]

    # ---- whole kernels

    def fence(self) -> str:
        """A barrier for the memories that the group's lanes share."""
        return self.language.fence({b.role for b in (*self.kernel.buffers, *self.kernel.arrays)})

    def scheduled(self, local_size: tuple[int, ...]) -> str:
        """The text of a scheduled kernel that is launched with a work-group of `local_size`: axes
        of the NDRange, the innermost loop's first. Work-items beyond the last one return.
        """
        groups, lanes = work_loops(self.kernel)
        qualifiers = self.language.qualifiers
        lines = [f"    {qualifiers[b.role]}{self.array_type(b.dtype)} {b.name}[{b.size}];"
                 for b in self.kernel.arrays]
        inner = (lanes or groups)[-1].body
        read = variables_read(inner)
        beyond = []
        for loops in (groups, lanes):
            for axis, f in zip(range(len(loops) - 1, -1, -1), loops):
                name = f.var.value
                rounded = f.kind == "item" and (
                    is_size(f.extent) or f.extent % local_size[axis] != 0)
                if rounded:
                    beyond.append(f"{name} >= {self.sizes.write(f.extent)}")
                if name in read or rounded:
                    place = self.language.places[f.kind].format(axis=axis)
                    lines.append(f"    {self.index} {name} = {place};")
        if beyond:
            lines.append(f"    if ({' || '.join(beyond)}) return;")
        return self.kernel_text([*lines, *self.block(inner, 1)])

    def array_type(self, dtype: str) -> str:
        """The type of an array's elements: what they are computed in."""
        if dtype == "bool":
            return self.language.stored[dtype]
        return self.ctype(dtypes.compute(dtype))

    def kernel_text(self, lines: list[str]) -> str:
        """The kernel around its statements: helpers, extensions, arguments."""
        if self.doubles and not self.fp64:
            raise UnsupportedError(
                f"kernel '{self.kernel.name}' computes in float64, which this device can't: "
                f"convert the model to float32, or use device='cpu'"
            )
        arguments = [(self.language.element(b.dtype, self.soft_half), b)
                     for b in self.kernel.buffers]
        return render(
            self.language.frame,
            entry=ENTRY,
            group=GROUP,
            arguments=arguments,
            lifted=self.lifted,
            lines=lines,
            sizes=[*self.sizes.params(), *text_params(self.kernel)],
            doubles=self.doubles,
            half=self.half,
            helpers=[self.language.helper(name) for name in self.helpers],
        )
