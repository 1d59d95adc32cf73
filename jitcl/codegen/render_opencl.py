"""Kernel IR -> OpenCL C 1.2 within the portable subset that old drivers compile.

No pointer casts of private vectors, no dynamic indexing of private arrays, conversions through `convert_*`, literals
of exactly the expression's type, guards instead of non-uniform work-groups. Half precision is storage, read and written
by `vload_half` and `vstore_half`, which every device has.
"""

from __future__ import annotations

import math

from jitcl import dtypes
from jitcl.codegen.opencl_scalars import FLOAT_BUILTINS, INFIX, TYPES, function, literal
from jitcl.codegen.render import flat, render
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Accum, For, Kernel, Let, Stmt, Store

_SMALL = ("i8", "u8", "i16", "u16")            # C promotes their arithmetic to int: each result is converted back


class OpenClRenderer:
    """Expressions and statements of one kernel as OpenCL C, and the helper functions that they call."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {b.name: b for b in kernel.buffers}
        wide = any(b.size >= 2**31 for b in kernel.buffers)
        self.index = "long" if wide else "int"
        self.functions: dict[tuple[str, str], None] = {}

    def ctype(self, dtype: str) -> str:
        """The C type of a value (16-bit floats are held as float)."""
        return self.index if dtype == "index" else TYPES[dtypes.compute(dtype)]

    # ---- expressions

    def expr(self, x: Expr) -> str:
        """C of a scalar expression; safe as an operand."""
        if x.op == "const":
            return literal(x.value, x.dtype)
        if x.op == "var":
            return str(x.value)
        if x.op == "load":
            return self.load(x)
        if x.op == "cast":
            return self.cast(x.args[0], x.dtype)
        if x.op == "select":
            condition, yes, no = (self.expr(a) for a in x.args)
            return f"({condition} ? {yes} : {no})"
        text = self.operation(x.op, x.args[0].dtype, [self.expr(a) for a in x.args], x.args)
        return f"convert_{TYPES[x.dtype]}({text})" if x.dtype in _SMALL else text

    def operation(self, op: str, dtype: str, args: list[str], exprs: tuple[Expr, ...]) -> str:
        floating = dtypes.is_float(dtype)
        if op in INFIX:
            return f"({args[0]} {INFIX[op]} {args[1]})"
        if op == "div" and floating:
            return f"({args[0]} / {args[1]})"
        if floating and op in FLOAT_BUILTINS:
            return f"{FLOAT_BUILTINS[op]}({', '.join(args)})"
        if op in ("floor", "ceil", "trunc", "round") or (op == "abs" and dtype in (*dtypes.UNSIGNED, "bool")):
            return args[0]
        if op in ("isnan", "isinf"):
            return f"({op}({args[0]}) != 0)" if floating else "0"
        if op in ("neg", "not", "bitnot"):
            return f"({dict(neg='-', bitnot='~')[op] if op != 'not' else '!'}{args[0]})"
        if op == "xor":
            return f"(({args[0]} != 0) != ({args[1]} != 0))"
        if dtype == "index" and op in ("floordiv", "mod") and _plain(exprs):
            return f"({args[0]} {'/' if op == 'floordiv' else '%'} {args[1]})"
        if op == "div" and exprs[1].is_const and exprs[1].value > 0:
            return f"({args[0]} / {args[1]})"
        return self.helper(op, dtype, args)

    def helper(self, op: str, dtype: str, args: list[str]) -> str:
        """A call of a helper function, which the program then carries."""
        kind = dtype if dtype != "index" else {"int": "i32", "long": "i64"}[self.index]
        unsigned = kind in dtypes.UNSIGNED or kind == "bool"
        name = op
        if op in ("floordiv", "mod"):
            name += "_float" if dtypes.is_float(kind) else "_unsigned" if unsigned else "_signed"
        elif op in ("shl", "shr", "sign") and unsigned:
            name += "_unsigned"
        elif op == "pow":
            name = "pow_int"
        elif op == "abs":
            name = "abs_signed"
        self.functions[name, kind] = None
        return f"{op}_{kind}({', '.join(args)})"

    def cast(self, x: Expr, dtype: str) -> str:
        text = self.expr(x)
        source = x.dtype
        if source in ("f16", "bf16") and x.op == "load" or source == dtype:
            return text if dtype == "f32" else self.convert(text, "f32", dtype)
        if dtype in ("f16", "bf16"):                 # rounds, and stays a float
            text = self.convert(text, source, "f32")
            self.functions[f"round_{dtype}", "f32"] = None
            return f"round_{dtype}({text})"
        return self.convert(text, "f32" if source in ("f16", "bf16") else source, dtype)

    def convert(self, text: str, source: str, dtype: str) -> str:
        if self.ctype(source) == self.ctype(dtype) and "bool" not in (source, dtype):
            return text
        if dtype == "bool":
            return text if source == "bool" else f"({text} != 0)"
        return f"convert_{self.ctype(dtype)}({text})"

    def load(self, x: Expr) -> str:
        buffer = self.buffers[x.value]
        at = self.expr(flat(buffer.shape, x.indices))
        text = f"{x.value}[{at}]"
        if buffer.dtype == "f16":
            text = f"vload_half({at}, {x.value})"
        elif buffer.dtype == "bf16":
            self.functions["load_bf16", "f32"] = None
            text = f"load_bf16({text})"
        if x.guard is None:
            return text
        assert x.other is not None
        return f"({self.expr(x.guard)} ? {text} : {literal(x.other.value, dtypes.compute(x.dtype))})"

    # ---- statements

    def stmt(self, s: Stmt, indent: int) -> list[str]:
        pad = "  " * indent
        if isinstance(s, For):
            v, t = s.var.value, self.index
            return [f"{pad}for ({t} {v} = 0; {v} < {s.extent}; ++{v}) {{", *self.block(s.body, indent + 1),
                    pad + "}"]
        if isinstance(s, Let):
            return [f"{pad}{self.ctype(s.var.dtype)} {s.var.value} = {self.expr(s.value)};"]
        if isinstance(s, Accum):
            return [pad + self.accumulate(s)]
        if isinstance(s, Store):
            return self.store(s, pad)
        raise JitclError(f"the OpenCL renderer has no form for a {type(s).__name__} statement")

    def accumulate(self, s: Accum) -> str:
        name, value, dtype = s.var.value, self.expr(s.value), s.var.dtype
        if s.combine in ("add", "mul") and dtype not in _SMALL:
            return f"{name} {INFIX[s.combine]}= {value};"
        text = self.operation(s.combine, dtype, [name, value], (s.var, s.value))
        return f"{name} = {text};" if dtype not in _SMALL else f"{name} = convert_{TYPES[dtype]}({text});"

    def store(self, s: Store, pad: str) -> list[str]:
        buffer = self.buffers[s.buffer]
        at = self.expr(flat(buffer.shape, s.indices))
        value = s.value
        if value.op == "cast" and value.dtype == buffer.dtype in ("f16", "bf16"):
            text = self.convert(self.expr(value.args[0]), value.args[0].dtype, "f32")
        else:
            text = self.expr(value)
        if buffer.dtype == "f16":
            line = f"vstore_half_rte({text}, {at}, {s.buffer});"
        elif buffer.dtype == "bf16":
            self.functions["store_bf16", "f32"] = None
            line = f"{s.buffer}[{at}] = store_bf16({text});"
        else:
            line = f"{s.buffer}[{at}] = {text};"
        if s.guard is None:
            return [pad + line]
        return [f"{pad}if ({self.expr(s.guard)}) {{", f"{pad}  {line}", pad + "}"]

    def block(self, body: tuple[Stmt, ...], indent: int) -> list[str]:
        return [line for s in body for line in self.stmt(s, indent)]

    def helpers(self) -> list[str]:
        """The text of every helper function that was called, each once."""
        return [function(name, dtype) for name, dtype in self.functions]


def _plain(exprs: tuple[Expr, ...]) -> bool:
    """Whether C's own division serves: no negative operand, no zero divisor."""
    return E.bounds(exprs[0])[0] >= 0 and exprs[1].is_const and exprs[1].value > 0


def render_kernel(kernel: Kernel, entry: str, local: tuple[int, int, int]) -> tuple[str, tuple[int, int, int]]:
    """(program text, global size). The leading parallel loops become the NDRange, innermost first:

        dimension 0    the innermost parallel loop: neighbouring work-items touch neighbouring elements
        dimension 1    the loop around it
        dimension 2    all loops further out, collapsed

    Global sizes are padded to the work-group; a guard drops the work-items outside.
    """
    r = OpenClRenderer(kernel)
    head, nest = _nest(kernel)
    lines = r.block(head, 1)
    extents = [f.extent for f in nest]
    dims = [extents[-1] if nest else 1, extents[-2] if len(nest) > 1 else 1, math.prod(extents[:-2])]
    outside = []
    names = ["g0", "g1", "g2"]
    for d, f in enumerate(reversed(nest[-2:])):
        names[d] = f.var.value
    for d in range(3):
        if d < 2 and d >= len(nest) or d == 2 and len(nest) < 3:
            continue
        lines.append(f"  {r.index} {names[d]} = convert_{r.index}(get_global_id({d}));")
        if dims[d] % local[d]:
            outside.append(f"{names[d]} >= {dims[d]}")
    if outside:
        lines.append(f"  if ({' || '.join(outside)}) {{ return; }}")
    lines += _unflatten(nest[:-2], r.index)
    body = nest[-1].body if nest else kernel.body[len(head):]
    lines += r.block(body, 1)
    arguments = [f"__global {'' if b.role == 'out' else 'const '}{TYPES[b.dtype]} *restrict {b.name}"
                 for b in kernel.buffers]
    text = render("loops/opencl.cl.j2", entry=entry, arguments=arguments, lines=lines, helpers=r.helpers(),
                  doubles=any("double" in line for line in (*lines, *arguments, *r.helpers())))
    size = tuple(-(-max(n, 1) // k) * k for n, k in zip(dims, local))
    return text, size  # type: ignore[return-value]


def _nest(kernel: Kernel) -> tuple[tuple[Stmt, ...], list[For]]:
    """What stands before the parallel loops, and those of them that nest perfectly.

    A loop with reductions in its body is the last of the nest: what is inside runs in one work-item.
    """
    body = kernel.body
    head = body[:-1]
    nest: list[For] = []
    while len(body) >= 1 and isinstance(body[-1], For) and body[-1].kind == "parallel":
        if nest and len(body) != 1:
            break
        nest.append(body[-1])
        body = body[-1].body
    return (head, nest) if nest else ((), [])


def _unflatten(nest: list[For], index: str) -> list[str]:
    """The variables of the collapsed outer loops from g2."""
    lines = []
    rest = math.prod(f.extent for f in nest)
    for k, f in enumerate(nest):
        rest //= f.extent
        at = "g2" if rest == 1 else f"g2 / {rest}"
        lines.append(f"  {index} {f.var.value} = {at if k == 0 else f'({at}) % {f.extent}'};")
    return lines
