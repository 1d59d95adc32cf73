"""Graphs and kernels as text that `parser` reads back exactly (grammar.lark is its syntax).

    graph @mlp(%x: f16[4,64], %w: f16[32,64]) {
      %0 = transpose(%w) {perm=[1, 0]} : f16[64,32]
      %y = matmul(%x, %0) : f16[4,32]      // 'fc1' (Gemm)
      return %y
    }

A node that is an output bears the output's name. Large constants are written by digest, and lie
in a file beside the text (`save_graph`). Floats are written so that they read back bit for bit,
NaN payloads included.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Data, Graph, Node
from jitcl.ir.kernel import Accum, Assign, Barrier, For, Kernel, Let, Stmt, Store
from jitcl.ir.types import ROW, Sym, TensorType

INLINE = 16                                  # constants of more elements are written by digest

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_RESERVED = frozenset("and barrier else false for if inf let nan or true".split())

# infix operators of kernels: scalar op -> symbol, binding strength (a larger one binds tighter)
INFIX = {"or": ("or", 1), "and": ("and", 2),
         "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3),
         "eq": ("==", 3), "ne": ("!=", 3),
         "add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5), "mod": ("%", 5)}
_COMPARE, _ATOM = 3, 6


# ---- words that both levels use

def quoted(text: str) -> str:
    """A double-quoted literal of any text, in Python's escapes."""
    return '"' + repr('"' + text)[2:-1].replace('"', '\\"') + '"'


def name_text(name: str) -> str:
    """A name at the graph level: as it is where it is an identifier, else quoted."""
    return name if _IDENTIFIER.fullmatch(name) else quoted(name)


def word_text(name: str) -> str:
    """A name inside a kernel's body, where the language has words of its own."""
    return quoted(name) if name in _RESERVED else name_text(name)


def type_text(type: TensorType) -> str:
    """`str(type)`, with dimension names quoted where they are no identifiers."""
    dims = ",".join(name_text(d.name) if isinstance(d, Sym) else str(d) for d in type.shape)
    return f"{type.dtype}[{dims}{'' if type.layout == ROW else f'; {type.layout}'}]"


def float_text(value: float) -> str:
    """The shortest decimal that reads back to the same double; unusual NaNs by their bits."""
    if value == value:
        return repr(value)
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return "nan" if bits == 0x7FF8 << 48 else f"nan(0x{bits:x})"


def number_text(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return float_text(value) if isinstance(value, float) else str(value)


# ---- graph level

def print_graph(graph: Graph, *, constants: dict[str, np.ndarray] | None = None,
                inline: int | None = INLINE, origins: bool = True) -> str:
    """The graph as text. Constants of more than `inline` elements (None: no limit) go by digest.

    `constants` is filled with those, {digest: array}; `parse_graph` wants it back. `origins` adds
    comments that say which nodes of the model each node came from.
    """
    names = value_names(graph)
    params = ", ".join(f"{names[n]}: {type_text(n.type)}" for n in graph.inputs)
    lines = [f"graph @{name_text(graph.name)}({params}) {{"]
    for node in graph.nodes:
        if node.op == "input":
            continue
        operands = f"({', '.join(names[i] for i in node.inputs)})" if node.inputs else ""
        attrs = attrs_text(node, inline, constants)
        line = f"  {names[node]} = {name_text(node.op)}{operands}{attrs} : {type_text(node.type)}"
        origin = graph.origins.get(node) if origins else None
        if origin is not None:
            line += f"      // {quoted(origin.name)} ({quoted(origin.op_type)[1:-1]})"
        lines.append(line)
    results = []
    for k, (name, node) in enumerate(graph.outputs):
        bare = result_name(names[node], k) == name
        results.append(names[node] if bare else f"{name_text(name)}: {names[node]}")
    lines.append("  return" + (" " + ", ".join(results) if results else ""))
    return "\n".join([*lines, "}", ""])


def attrs_text(node: Node, inline: int | None = INLINE,
               constants: dict[str, np.ndarray] | None = None) -> str:
    """A node's attributes behind its operands: " {perm=[1, 0]}"; "" where it has none."""
    words = [f"{name_text(k)}={_attr_text(v, inline, constants)}" for k, v in node.attrs]
    return f" {{{', '.join(words)}}}" if words else ""


def result_name(value: str, position: int) -> str | None:
    """The output's name that `return %value` gives: its own, or out<position> for a number."""
    if value[1:].isdigit():
        return f"out{position}"
    return value[1:] if not value.startswith('%"') else None


def value_names(graph: Graph) -> dict[Node, str]:
    """What the text calls each node: inputs and outputs by name, others by number."""
    names: dict[Node, str] = {}
    taken = set()
    for node in graph.inputs:
        name = node.attr("name")
        if not isinstance(name, str):
            raise JitclError(f"graph '{graph.name}': input {node} has no name: text needs one")
        names[node] = f"%{name_text(name)}"
        taken.add(name)
    for k, (name, node) in enumerate(graph.outputs):
        plain = name != f"out{k}" and _IDENTIFIER.fullmatch(name)
        if node not in names and name not in taken and plain:
            names[node] = f"%{name}"
            taken.add(name)
    number = 0
    for node in graph.nodes:
        if node not in names:
            names[node] = f"%{number}"
            number += 1
    return names


def _attr_text(value: Any, inline: int | None, constants: dict[str, np.ndarray] | None) -> str:
    if value is None:
        return "None"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_attr_text(v, inline, constants) for v in value) + "]"
    if isinstance(value, Data):
        return _data_text(value, inline, constants)
    if isinstance(value, (bool, int, float)):
        return number_text(value)
    raise JitclError(f"attribute value {value!r} of type {type(value).__name__} has no text form: "
                     "use int, float, bool, str, None, Data or a tuple of these")


def _data_text(data: Data, inline: int | None, constants: dict[str, np.ndarray] | None) -> str:
    array = data.array
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        raise JitclError(f"a constant of NumPy type {array.dtype} has no text form: convert it")
    head = f"{dtype}[{','.join(map(str, array.shape))}]"
    if inline is not None and array.size > inline:
        if constants is not None:
            constants[data.content] = array
        return f"{head}(#{data.content})"
    return f"{head}({', '.join(_elements(array.reshape(-1), dtype))})"


def _elements(flat: np.ndarray, dtype: str) -> Iterator[str]:
    """Each element, so that float(text) rounded to `dtype` is it; unusual NaNs by their bits."""
    if not dtypes.is_float(dtype):
        yield from (number_text(v) for v in flat.tolist())
        return
    np_dtype = dtypes.to_numpy(dtype)
    unsigned = np.dtype(f"u{np_dtype.itemsize}")
    usual_nan = np.array(float("nan")).astype(np_dtype).view(unsigned)
    for x, bits in zip(flat, flat.view(unsigned)):
        if x != x:
            yield "nan" if bits == usual_nan else f"nan(0x{int(bits):x})"
            continue
        short = str(x) if dtype in ("f16", "f32") else repr(float(x))
        exact = np.float64(short).astype(np_dtype) == x
        yield short if exact else repr(float(x))


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph's text, and its large constants (if any) beside it to `<path>.npz`."""
    path = Path(path)
    constants: dict[str, np.ndarray] = {}
    text = print_graph(graph, constants=constants)
    side = side_file(path)
    if constants:       # np.savez knows no bfloat16: its bits are written, the text says what
        arrays = {k: dtypes.as_bits(a) for k, a in constants.items()}
        np.savez(side, **arrays)             # type: ignore[arg-type]
    else:
        side.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")


def side_file(path: Path) -> Path:
    """Where the large constants of a saved graph lie."""
    return path.with_suffix(path.suffix + ".npz")


# ---- kernel level

def print_kernel(kernel: Kernel) -> str:
    """The kernel as text that reads back to an equal kernel."""
    buffers = ", ".join(f"{b.role} {name_text(b.name)}: {b.dtype}[{','.join(map(str, b.shape))}]"
                        for b in (*kernel.buffers, *kernel.arrays))
    stored = {b.name: b.dtype for b in (*kernel.buffers, *kernel.arrays)}
    flagging = "" if kernel.flagging is None else (
        f"flagging {statement_text(kernel.flagging, stored)} ")
    lines = [f"kernel @{name_text(kernel.name)}({buffers}) {flagging}{{"]
    stack: list[tuple[int, Stmt | None]] = [(1, s) for s in reversed(kernel.body)]
    while stack:
        depth, stmt = stack.pop()
        if stmt is None:
            lines.append("  " * depth + "}")
            continue
        lines.append("  " * depth + statement_text(stmt, stored))
        if isinstance(stmt, For):
            stack.append((depth, None))
            stack.extend((depth + 1, s) for s in reversed(stmt.body))
    return "\n".join([*lines, "}", ""])


def statement_text(stmt: Stmt, stored: dict[str, str] | None = None) -> str:
    """One statement on one line (of a loop, its head). `stored`: dtypes of buffers by name."""
    if isinstance(stmt, For):
        first = "" if stmt.first is None else f" from {expr_text(stmt.first, 'index')}"
        end = "" if stmt.end is None else f" to {expr_text(stmt.end, 'index')}"
        step = "" if stmt.step == 1 else f" by {stmt.step}"
        name = word_text(stmt.var.value)
        return f"for {name} < {stmt.var.extent} @{stmt.kind}{first}{end}{step} {{"
    if isinstance(stmt, Let):
        var = stmt.var
        return f"let {word_text(var.value)}: {var.dtype} = {expr_text(stmt.value, var.dtype)}"
    if isinstance(stmt, Accum):
        value = expr_text(stmt.value, stmt.var.dtype)
        return f"{word_text(stmt.var.value)} {stmt.combine}= {value}"
    if isinstance(stmt, Assign):
        names = ", ".join(word_text(v.value) for v in stmt.vars)
        values = (expr_text(e, v.dtype) for v, e in zip(stmt.vars, stmt.values))
        return f"set {names} = {', '.join(values)}"
    if isinstance(stmt, Store):
        at = ", ".join(expr_text(i, "index") for i in stmt.indices)
        value = expr_text(stmt.value, (stored or {}).get(stmt.buffer, ""))
        guard = "" if stmt.guard is None else f" if {expr_text(stmt.guard, 'bool')}"
        return f"{word_text(stmt.buffer)}[{at}] = {value}{guard}"
    assert isinstance(stmt, Barrier)
    return "barrier"


def default_dtype(value: int | float | bool) -> str:
    """The type of a literal where nothing around it says another."""
    return "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "index"


def expr_text(x: Expr, implied: str = "") -> str:
    """An expression; `implied` is the dtype of a bare literal in this place ("": by its form)."""
    if x.is_const:
        return _literal(x, implied)
    done: dict[Expr, tuple[str, int]] = {}
    for e in E.walk(x):
        done[e] = _form(e, done)
    return done[x][0]


def _literal(x: Expr, implied: str) -> str:
    text = number_text(x.value)
    return text if x.dtype == (implied or default_dtype(x.value)) else f"{text}:{x.dtype}"


def _form(e: Expr, done: dict[Expr, tuple[str, int]]) -> tuple[str, int]:
    """An expression's text and how tightly its operator binds, given those of its operands."""
    def text(a: Expr, implied: str, strength: int = 0) -> str:
        if a.is_const:
            return _literal(a, implied)
        inner, binds = done[a]
        return inner if binds >= strength else f"({inner})"

    if e.is_const:
        return "", _ATOM                     # its reader writes it, and knows the implied type
    if e.op == "var":
        return word_text(e.value), _ATOM
    if e.op == "load":
        at = ", ".join(text(i, "index") for i in e.indices)
        if e.guard is not None and e.other is not None:
            at += f"{' ' if at else ''}if {text(e.guard, 'bool')} else {text(e.other, e.dtype)}"
        return f"{word_text(e.value)}[{at}]", _ATOM
    if e.op == "cast":
        return f"{e.dtype}({text(e.args[0], '')})", _ATOM
    implied = implied_dtype(e.op, [None if a.is_const else a.dtype for a in e.args])
    if e.op in INFIX:
        symbol, binds = INFIX[e.op]
        left, right = e.args
        at_least = binds + (binds == _COMPARE)                     # a < b < c is no chain
        return f"{text(left, implied, at_least)} {symbol} {text(right, implied, binds + 1)}", binds
    args = [text(a, "bool" if e.op == "select" and k == 0 else implied)
            for k, a in enumerate(e.args)]
    return f"{word_text(e.op)}({', '.join(args)})", _ATOM


def implied_dtype(op: str, operands: list[str | None]) -> str:
    """The type of bare literals among the operands (None): that of the first typed one, or ""."""
    values = operands[1:] if op == "select" else operands
    return next((d for d in values if d), "")
