"""Checks of graphs. A `VerifyError` names the node, what was got and wanted.

    graph 'mlp': node %2 = relu, from 'fc1/act' (Relu): its type is f16[4,32], wanted f16[4,64]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from jitcl import dtypes
from jitcl.errors import JitclError, VerifyError
from jitcl.ir.graph import Data, Graph, Node
from jitcl.ir.printer import value_names
from jitcl.ir.sizes import Size
from jitcl.ir.types import ROW, Sym, TensorType

Infer = Callable[[str, tuple[TensorType, ...], dict[str, Any]], TensorType]
#: nodes never change: who was well formed after one pass is so after the next; by what inferred
_WELL_FORMED: weakref.WeakKeyDictionary[Node, Infer | None] = weakref.WeakKeyDictionary()


def verify_graph(graph: Graph, infer: Infer | None = None) -> None:
    """VerifyError unless the graph is well formed; `infer(op, operand types, attrs)` checks types.

    Types are checked where the operands' shapes are known; layouts are a pass's choice.
    """
    _GraphCheck(graph, infer).run()


class _GraphCheck:
    def __init__(self, graph: Graph, infer: Infer | None) -> None:
        self.graph, self.infer = graph, infer

    def run(self) -> None:
        graph = self.graph
        seen: set[str] = set()
        for node in graph.inputs:
            name = node.attr("name")
            if node.op != "input" or not isinstance(name, str):
                self.fail(node, f"stands among the inputs: wanted op 'input', a name; got {name!r}")
            if name in seen:
                self.fail(node, f"is a second input named '{name}': names must differ")
            seen.add(name)
        outputs: set[str] = set()
        for name, node in graph.outputs:
            if not isinstance(name, str) or name in outputs:
                self.fail(node, f"is output {name!r}: outputs need names that differ")
            outputs.add(name)
        known = set(graph.inputs)
        for node in graph.nodes:
            if node.op == "input" and node not in known:
                self.fail(node, f"the graph does not declare its input {node.attr('name')!r}")
            if _WELL_FORMED.get(node, self) is not self.infer:
                self.node(node)
                _WELL_FORMED[node] = self.infer

    def fail(self, node: Node, message: str) -> NoReturn:
        origin = self.graph.origins.get(node)
        came = f", from '{origin.name}' ({origin.op_type})" if origin is not None else ""
        try:
            name = value_names(self.graph)[node]
        except JitclError:                   # an input without a name has none in the text either
            name = "?"
        raise VerifyError(f"graph '{self.graph.name}': node {name} = {node.op}{came}: {message}")

    def node(self, node: Node) -> None:
        self.type(node)
        for name, value in node.attrs:
            if not isinstance(name, str):
                self.fail(node, f"an attribute is named {name!r}, wanted text")
            self.attr(node, name, value)
        if node.op == "const":
            self.const(node)
        elif node.op == "input":
            if node.inputs:
                self.fail(node, f"an input reads nothing, got {len(node.inputs)} operands")
        elif self.infer is not None:
            self.inferred(node, self.infer)

    def type(self, node: Node) -> None:
        type = node.type
        if type.dtype not in dtypes.STORED:
            self.fail(node, f"its element type is '{type.dtype}', wanted one of "
                            f"{', '.join(dtypes.STORED)}")
        for d in type.shape:
            if not isinstance(d, Sym) and (isinstance(d, bool) or not isinstance(d, int) or d < 0):
                self.fail(node, f"its shape {type} has dimension {d!r}, wanted an int >= 0 or Sym")
        layout = type.layout
        if layout.kind == "row" and layout != ROW or layout.kind == "rows" and layout.halo:
            self.fail(node, f"its layout {layout.kind} has block {layout.block} and halo "
                            f"{layout.halo}: only NCHWc may")
        kinds = ("row", "rows", "NCHWc")
        if layout.kind not in kinds or layout.block < 1 or layout.halo < 0:
            self.fail(node, f"its layout is {layout!r}, wanted row, rows or NCHWc, block >= 1")
        if layout.kind == "rows" and type.rank == 0:
            self.fail(node, f"its layout is {layout}, but a scalar has no rows")

    def attr(self, node: Node, name: str, value: Any) -> None:
        """Attributes are plain values: NumPy scalars and lists would break interning and text."""
        if type(value) is tuple:
            for v in value:
                self.attr(node, name, v)
        elif value is not None and type(value) not in (int, float, bool, str, Data, Size):
            self.fail(node, f"attribute '{name}' holds {value!r} of type {type(value).__name__}, "
                            "wanted int, float, bool, str, None, Data or tuples of these")

    def const(self, node: Node) -> None:
        data = node.attr("data")
        if not isinstance(data, Data) or node.inputs:
            self.fail(node, f"a constant has attribute data and no operands, got data={data!r}")
        want = node.type
        shapes = want.dims, want.physical
        if dtypes.from_numpy(data.dtype) != want.dtype or data.shape not in shapes:
            self.fail(node, f"its data is {data.dtype}{list(data.shape)}, wanted {want}")

    def inferred(self, node: Node, infer: Infer) -> None:
        types = tuple(i.type for i in node.inputs)
        if any(isinstance(d, Sym) for t in types for d in t.shape):
            return
        try:
            want = infer(node.op, types, node.kwargs)
        except JitclError as e:
            self.fail(node, str(e))
        except TypeError as e:               # operands or attributes that the op does not have
            self.fail(node, f"op '{node.op}' does not take these operands and attributes: {e}")
        if (want.dtype, want.shape) != (node.type.dtype, node.type.shape):
            operands = ", ".join(map(str, types))
            self.fail(node, f"its type is {node.type}, wanted {want} for operands {operands}")
