"""Text to IR, first half: messages that point at a place, words, types, and the graph level.

`GraphReader` walks lark's tree in text order, with a table of the values defined so far;
`kernel_reader` is the same for kernels.
"""

from __future__ import annotations

import ast
import difflib
import functools
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NoReturn

import lark
import numpy as np
from lark.visitors import Transformer_NonRecursive, v_args

from jitcl import dtypes
from jitcl.errors import JitclError, ParseError
from jitcl.ir.graph import Data, Graph, Node, graph_input
from jitcl.ir.printer import result_name
from jitcl.ir.types import ROW, Dim, Layout, Sym, TensorType

Infer = Callable[[str, tuple[TensorType, ...], dict[str, Any]], TensorType]

_WORDS = {                                   # what messages call the terminals that are patterns
    "NAME": "a name", "STRING": "a quoted string", "VALUE": "a value (%name)",
    "SYMBOL": "a name after '@'",
    "INT": "an integer", "FLOAT": "a number", "BOOL": "true or false", "CMP": "a comparison",
    "SUM": "'+' or '-'", "PRODUCT": "'*', '/' or '%'", "ROLE": "'in', 'out' or 'scan'",
    "LAYOUT": "a layout", "COMBINE": "'add=', 'max=' or the like",
    "DIGEST": "a constant's #digest", "$END": "the end of the text"}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@functools.cache
def grammar() -> lark.Lark:
    text = (resources.files("jitcl.ir") / "grammar.lark").read_text(encoding="utf-8")
    return lark.Lark(text, start="module", parser="lalr", maybe_placeholders=True)


@dataclass(frozen=True)
class Where:
    """A text, for messages that point into it."""

    text: str
    source: str

    def fail(self, line: int, column: int, message: str) -> NoReturn:
        prefix = f"{self.source}:" if self.source else ""
        lines = self.text.splitlines() or [""]
        shown = lines[min(line, len(lines)) - 1].expandtabs(1)
        start = len(shown) - len(shown.lstrip())
        caret = " " * max(column - 1 - start, 0) + "^"
        raise ParseError(f"{prefix}{line}:{column}: {message}\n  {shown.strip()}\n  {caret}")

    def unexpected(self, e: lark.UnexpectedInput) -> NoReturn:
        if isinstance(e, lark.UnexpectedToken):
            wanted: Collection[str] = e.accepts or e.expected
            got = "the end of the text" if e.token.type == "$END" else f"'{e.token}'"
        else:
            assert isinstance(e, lark.UnexpectedCharacters)
            wanted, got = e.allowed or (), f"'{e.char}'"
        wanted = set(wanted) - ({"INT"} if "FLOAT" in wanted else set())
        words = sorted({_word(w) for w in wanted}, key=lambda w: (w.startswith("'"), w))
        line, column = e.line, e.column
        if got == "the end of the text":
            lines = self.text.rstrip().splitlines() or [""]
            line, column = len(lines), len(lines[-1]) + 1
        expected = f"expected {_either(words)}, got " if words else "unexpected "
        self.fail(line, column, expected + got)


def _word(terminal: str) -> str:
    if terminal in _WORDS:
        return _WORDS[terminal]
    return f"'{grammar().get_terminal(terminal).pattern.value}'"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def near(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, [n for n in names if n != name], n=3)
    return f"; did you mean {_either([repr(n) for n in found])}?" if found else ""


@v_args(inline=True)
class WordReader(Transformer_NonRecursive[lark.Token, Any]):
    """Names, numbers and types: what both levels are written with."""

    def __init__(self, where: Where) -> None:
        super().__init__(visit_tokens=False)
        self.where = where
        self.at = lark.Token("", "")         # the type read last, for messages

    def fail(self, at: lark.Token, message: str) -> NoReturn:
        self.where.fail(at.line or 1, at.column or 1, message)

    def name(self, token: lark.Token) -> lark.Token:
        return self.unquote(token, "") if token.type == "STRING" else token

    def unquote(self, token: lark.Token, prefix: str) -> lark.Token:
        """A token whose text is the name that it spells."""
        text = token[len(prefix):]
        if not text.startswith(("'", '"')):
            return lark.Token.new_borrow_pos(token.type, text, token)
        try:
            return lark.Token.new_borrow_pos(token.type, ast.literal_eval(text), token)
        except (SyntaxError, ValueError) as e:
            self.fail(token, f"this string is not well formed: {e.args[0]}")

    def number(self, token: lark.Token) -> lark.Token:
        return token

    def value_of(self, token: lark.Token) -> int | float | bool:
        """The number that a literal spells; `nan(0x...)` gives a double's bits."""
        if token.type == "BOOL":
            return str(token) == "true"
        if token.type == "INT":
            return int(token)
        if "(" in token:
            bits = int(token[token.index("x"):-1][1:], 16)
            if bits >> 64:
                self.fail(token, "a NaN of more than 64 bits")
            found: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
            return found
        return float(token)

    def dim(self, token: lark.Token) -> Dim:
        if token.type != "INT":
            return Sym(str(token))
        if int(token) < 0:
            self.fail(token, f"a dimension can't be negative, got {token}")
        return int(token)

    def dims(self, *dims: Dim) -> tuple[Dim, ...]:
        return dims

    def type(self, dtype: lark.Token, dims: tuple[Dim, ...],
             layout: lark.Token | None) -> TensorType:
        self.check_dtype(dtype, dtypes.STORED)
        self.at = dtype
        try:
            parsed = ROW if layout is None else Layout.parse(str(layout))
        except JitclError as e:
            self.fail(layout or dtype, str(e))
        return TensorType(str(dtype), dims, parsed)

    def check_dtype(self, token: lark.Token, allowed: tuple[str, ...] = dtypes.ALL) -> str:
        if token not in allowed:
            self.fail(token, f"'{token}' is no element type: use one of {', '.join(allowed)}")
        return str(token)


@v_args(inline=True)
class GraphReader(WordReader):
    """Nodes, with their operands looked up among the values defined above."""

    def __init__(self, where: Where, constants: Mapping[str, np.ndarray],
                 known_ops: Collection[str] | None, infer: Infer | None) -> None:
        super().__init__(where)
        self.constants, self.known_ops, self.infer = constants, known_ops, infer
        self.values: dict[str, Node] = {}    # %name -> node

    def graph_head(self, name: lark.Token, *params: Node) -> tuple[str, tuple[Node, ...]]:
        return str(self.unquote(name, "@")), params

    def param(self, value: lark.Token, type: TensorType) -> Node:
        node = graph_input(str(self.unquote(value, "%")), type)
        self.define(value, node)
        return node

    def define(self, value: lark.Token, node: Node) -> None:
        key = self.key(value)
        if key in self.values:
            self.fail(value, f"{value} is defined twice")
        self.values[key] = node

    def key(self, value: lark.Token) -> str:
        """%x and %"x" are one value; %7 and %"7" are two."""
        return str(value) if value[1:].isdigit() else f"%.{self.unquote(value, '%')}"

    def read(self, value: lark.Token) -> Node:
        node = self.values.get(self.key(value))
        if node is None:
            others = near(str(value), (k.replace("%.", "%", 1) for k in self.values))
            self.fail(value, f"{value} is not defined above this line{others}")
        return node

    def operands(self, *values: lark.Token) -> tuple[Node, ...]:
        return tuple(self.read(v) for v in values)

    def node(self, value: lark.Token, op: lark.Token, *rest: Any) -> None:
        *operands, attrs, type = rest
        inputs: tuple[Node, ...] = operands[0] if operands else ()
        attrs = attrs or {}
        if op == "input":
            self.fail(op, "inputs are declared in the graph's head: graph @name(%x: f32[2,3])")
        if self.known_ops is not None and op != "const" and op not in self.known_ops:
            self.fail(op, f"no op '{op}'{near(str(op), self.known_ops)}")
        if type is None:
            type = self.inferred(value, op, inputs, attrs)
        self.define(value, Node.make(str(op), inputs, attrs, type=type))

    def inferred(self, value: lark.Token, op: lark.Token, inputs: tuple[Node, ...],
                 attrs: dict[str, Any]) -> TensorType:
        """The type of a node whose line names none."""
        if op == "const" and isinstance(attrs.get("data"), Data):
            data = attrs["data"]
            return TensorType(dtypes.from_numpy(data.dtype) or "", data.shape)
        if self.infer is None:
            self.fail(value, f"the type of {value} is missing: end the line with ': f32[...]'")
        try:
            return self.infer(str(op), tuple(i.type for i in inputs), attrs)
        except JitclError as e:
            self.fail(op, str(e))
        except TypeError as e:                           # attributes that the op does not have
            self.fail(op, f"op '{op}' can't be called so: {e}")

    def attrs(self, *pairs: tuple[lark.Token, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                self.fail(key, f"attribute '{key}' is given twice")
            found[str(key)] = self.value_of(value) if isinstance(value, lark.Token) else value
        return found

    def attr(self, name: lark.Token, value: Any) -> tuple[lark.Token, Any]:
        return name, value

    def string(self, token: lark.Token) -> str:
        return str.__str__(self.unquote(token, "").value)

    def none(self) -> None:
        return None

    def list(self, *items: Any) -> tuple[Any, ...]:
        return tuple(self.value_of(i) if isinstance(i, lark.Token) else i for i in items)

    def elements(self, type: TensorType, *tokens: lark.Token) -> Data:
        """An inline constant."""
        if type.size != len(tokens):
            self.fail(self.at, f"a constant of {type} has {type.size} elements, got {len(tokens)}")
        np_dtype = dtypes.to_numpy(type.dtype)
        if dtypes.is_float(type.dtype):
            plain = [0.0 if "(" in t else float(self.value_of(t)) for t in tokens]
            flat = np.array(plain, np.float64).astype(np_dtype)
            bits = flat.view(_UNSIGNED[np_dtype.itemsize])
            for k, t in enumerate(tokens):
                if "(" in t:
                    bits[k] = int(t[t.index("x") + 1:-1], 16)
        else:
            low, high = dtypes.limits(type.dtype)
            for t in tokens:
                if (t.type == "BOOL") != (type.dtype == "bool") or t.type == "FLOAT" or not (
                        low <= self.value_of(t) <= high):
                    self.fail(t, f"{t} is no element of {type.dtype} ({low} to {high})")
            flat = np.array([self.value_of(t) for t in tokens], np_dtype)
        return Data(flat.reshape(type.dims))

    def reference(self, type: TensorType, digest: lark.Token) -> Data:
        """A constant that lies in the side file."""
        array = self.constants.get(digest[1:])
        if array is None:
            self.fail(digest, f"constant {digest} is not among the {len(self.constants)} that came "
                              "with this text: keep the .npz file that was written beside it")
        array = dtypes.from_bits(array, type.dtype)
        data = Data(array)
        if data.digest != digest[1:] or array.shape != type.shape:
            self.fail(digest, f"constant {digest} is damaged: wanted {type}, got "
                              f"{array.dtype}{list(array.shape)} with digest {data.digest}")
        return data

    def result(self, name: lark.Token | None,
               value: lark.Token) -> tuple[lark.Token, str | None, Node]:
        return value, None if name is None else str(name), self.read(value)

    def graph(self, head: tuple[str, tuple[Node, ...]], *rest: Any) -> Graph:
        outputs: dict[str, Node] = {}
        for at, given, node in (r for r in rest if r is not None):
            name = given if given is not None else result_name(str(at), len(outputs))
            if name is None:
                name = str(self.unquote(at, "%"))
            if name in outputs:
                self.fail(at, f"two outputs are named '{name}'")
            outputs[name] = node
        self.values.clear()
        return Graph(head[0], head[1], tuple(outputs.items()))
