"""`import_model`: an `OnnxModel` at concrete input shapes becomes a graph.

Every node goes one of four ways: its op's import rule; a function body (the model's or ONNX's
own), imported in place; the taken branch of an If with a known condition; or the list of what is
not supported, raised once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from jitcl import dtypes
from jitcl.errors import InputError, JitclError, ModelError, NeedsValue, UnsupportedError
from jitcl.frontends.onnx import functions, opsets, tensors
from jitcl.frontends.onnx.model import OnnxModel, constant, label, reads
from jitcl.frontends.onnx.node import OnnxNode
from jitcl.ir.graph import Graph, Node, Origin, const, graph_input, spread_origin, toposort
from jitcl.ir.types import TensorType
from jitcl.ops import builder

MAX_VALUE_ELEMENTS = 4096  # larger inputs do not become part of a specialisation's key
MISSING = Node(
    "missing", (), (), TensorType("f32", ())
)  # the result of a node that is not supported


@dataclass
class Scope:
    """Names in sight of a node: a graph's, a branch's (which sees its surroundings), or a
    function's."""

    values: dict[str, Node | None]  # None: a function's input that the caller left out
    stored: Callable[[str], Node | None]  # initialisers, made when first read
    opsets: Mapping[str, int]
    bound: dict[str, AttributeProto] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""  # of node names, in a function of the model
    origin: Origin | None = None  # in a body that ONNX defines: the node it stands for

    def find(self, name: str) -> tuple[bool, Node | None]:
        """Whether the name is known, and its value."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return True, scope.values[name]
            node = scope.stored(name)
            if node is not None:
                scope.values[name] = node
                return True, node
            scope = scope.parent
        return False, None


@dataclass
class Problem:
    """One kind of thing that is not supported, and where it is met."""

    reason: str
    nodes: list[str] = field(default_factory=list)


def import_model(
    model: OnnxModel,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Graph:
    """The graph of a model at concrete input shapes (elements an axis).

    Inputs named in `values` are constants of the graph and none of its inputs. Raises InputError
    where shapes do not fit the model, NeedsValue where the value of an input decides shapes (give
    it in `values`), UnsupportedError listing all that is missing, and ShapeError, TypeError_ or
    ModelError naming the node that does not fit.
    """
    return _Importer(model, dict(values or {})).run(dict(shapes))


class _Importer:
    def __init__(self, model: OnnxModel, values: dict[str, np.ndarray[Any, Any]]) -> None:
        self.model, self.fixed = model, values
        self.g = builder.GraphBuilder()
        self.memo: dict[Node, np.ndarray[Any, Any]] = {}
        self.origins: dict[Node, Origin] = {}
        self.problems: dict[tuple[str, str, str], Problem] = {}
        self.located: JitclError | None = None  # an error that already names its node
        self.functions = {(f.domain, f.name, f.overload): f for f in model.proto.functions}

    def run(self, shapes: dict[str, tuple[int, ...]]) -> Graph:
        graph = self.model.proto.graph
        inputs, values = self._inputs(shapes)
        scope = Scope(values, self._initialiser, self.model.opsets)
        outputs = [v.name for v in graph.output]
        self.nodes(graph.node, outputs, scope)
        if self.problems:
            raise UnsupportedError(self._report())
        found = []
        for name in outputs:
            known, node = scope.find(name)
            if not known or node is None or node is MISSING:
                raise ModelError(f"{self.model.source}: output '{name}' is made by no node")
            found.append((name, node))
        return Graph(graph.name or "model", tuple(inputs), tuple(found), self.origins)

    # ---- values

    def _inputs(
        self, shapes: dict[str, tuple[int, ...]]
    ) -> tuple[list[Node], dict[str, Node | None]]:
        declared = {**self.model.inputs, **self.model.defaults}
        for name in (*shapes, *self.fixed):
            if name not in declared:
                known = ", ".join(declared) or "none"
                raise InputError(f"{self.model.source}: no input '{name}'; it has {known}")
        inputs: list[Node] = []
        values: dict[str, Node | None] = {}
        for name, type in declared.items():
            if name in self.fixed:
                array = np.asarray(self.fixed[name], dtypes.to_numpy(type.dtype))
                _fits(name, type, array.shape)
                values[name] = const(array)
            elif name in shapes or name in self.model.inputs:
                shape = shapes.get(name)
                if shape is None:
                    shape = _static(name, type)
                _fits(name, type, shape)
                node = graph_input(name, TensorType(type.dtype, tuple(shape)))
                values[name] = node
                inputs.append(node)
        return inputs, values

    def _initialiser(self, name: str) -> Node | None:
        return self.model.constant(name) if name in self.model.initialisers else None

    def evaluate(self, node: Node) -> np.ndarray[Any, Any]:
        """A node's value; NeedsValue where a small input decides it, UnsupportedError where data
        does."""
        if node.op == "const":
            return node.data
        try:
            return builder.evaluate(node, self.memo)
        except NeedsValue as error:
            type = {**self.model.inputs, **self.model.defaults}[error.input_name]
            size = next(
                (n.type.size for n in _reached(node) if n.attr("name") == error.input_name), 0
            )
            if size <= MAX_VALUE_ELEMENTS:
                raise
            raise UnsupportedError(
                f"its parameters depend on the data of input '{error.input_name}' {type}, "
                f"which has {size} elements here"
            ) from error

    # ---- nodes

    def nodes(self, nodes: Sequence[NodeProto], outputs: Iterable[str], scope: Scope) -> None:
        """Import those nodes that the outputs need."""
        needed = {o for o in outputs if o}
        keep = []
        for node in reversed(nodes):
            if any(o in needed for o in node.output):
                keep.append(node)
                needed.update(reads(node))
        for node in reversed(keep):
            self.node(node, scope, needed)

    def node(self, proto: NodeProto, scope: Scope, needed: set[str]) -> None:
        """Import one node into the scope."""
        name = scope.prefix + label(proto)
        origin = scope.origin or Origin(name, proto.op_type)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = scope.opsets.get(domain, 0)
        inputs: list[Node | None] = []
        ready = True
        for value in proto.input:
            known, node = scope.find(value) if value else (True, None)
            if not known:
                raise ModelError(
                    f"node '{name}' ({proto.op_type}) reads '{value}', which nothing makes"
                )
            ready = ready and node is not MISSING
            inputs.append(node)
        results = None
        try:
            if ready:
                results = self._results(proto, domain, opset, inputs, scope, origin)
            elif not self._has_way(proto, domain, opset):
                self._problem(origin, domain, "")
        except UnsupportedError as error:
            self._problem(origin, domain, str(error))
        for i, out in enumerate(proto.output):
            if not out:
                continue
            result = results[i] if results is not None and i < len(results) else None
            if result is None and results is not None and out in needed:
                self._problem(origin, domain, f"its output {i} ('{out}') is not computed")
            scope.values[out] = MISSING if result is None else result
            if result is not None and result is not MISSING:
                spread_origin(result, origin, self.origins)

    def _has_way(self, proto: NodeProto, domain: str, opset: int) -> bool:
        """Whether a node's op can be imported, as far as that shows without its operands."""
        return (
            opsets.has_rule(proto.op_type, domain)
            or proto.op_type in ("Constant", "If")
            or (domain, proto.op_type, proto.overload) in self.functions
            or functions.has_body(proto.op_type, domain, opset)
        )

    def _results(
        self,
        proto: NodeProto,
        domain: str,
        opset: int,
        inputs: list[Node | None],
        scope: Scope,
        origin: Origin,
    ) -> Sequence[Node | None]:
        attributes = functions.resolve(proto, scope.bound)
        local = self.functions.get((proto.domain, proto.op_type, proto.overload))
        if local is not None:
            return self._call(
                proto,
                local,
                inputs,
                attributes,
                {o.domain if o.domain != "ai.onnx" else "": o.version for o in local.opset_import},
                prefix=f"{scope.prefix}{label(proto)}/",
                origin=scope.origin,
            )
        where = f"node '{origin.name}' ({proto.op_type})"
        if proto.op_type == "Constant" and not domain:
            return (_constant(attributes, self.model.base, where),)
        plain = {a.name: tensors.attribute(a, self.model.base, where) for a in attributes}
        if proto.op_type == "If" and not domain:
            return self._branch(inputs, plain, scope)
        if opsets.has_rule(proto.op_type, domain):
            outputs = len(proto.output)
            while outputs and not proto.output[outputs - 1]:
                outputs -= 1
            node = OnnxNode(
                proto.op_type,
                domain,
                origin.name,
                self._padded(proto, domain, opset, inputs),
                plain,
                opset,
                outputs,
                self.evaluate,
            )
            results = self._apply(node, proto)
            if results is not None:
                return results
        body = functions.standard_body(proto, opset, inputs, attributes)
        if body is None:
            raise UnsupportedError("")
        return self._call(
            proto,
            body,
            inputs,
            attributes,
            {o.domain if o.domain != "ai.onnx" else "": o.version for o in body.opset_import},
            prefix=scope.prefix,
            origin=origin,
        )

    def _padded(
        self, proto: NodeProto, domain: str, opset: int, inputs: list[Node | None]
    ) -> tuple[Node | None, ...]:
        """Inputs up to the most that the op takes, so that rules may ask for any of them."""
        schema = functions.schema_of(proto.op_type, domain, opset)
        most = schema.max_input if schema is not None and schema.max_input < 100 else 0
        return (*inputs, *(None,) * (most - len(inputs)))

    def _apply(self, node: OnnxNode, proto: NodeProto) -> Sequence[Node | None] | None:
        """Run the node's rule; errors name the node and what it reads. None: the rule leaves it to
        ONNX's body."""
        try:
            modern = opsets.modern(self.g, node)
            rule = opsets.rule_for(modern.op_type, modern.domain, modern.opset)
            assert rule is not None
            result = rule(self.g, modern)
        except (NeedsValue, UnsupportedError):
            raise
        except JitclError as error:
            if error is self.located:
                raise
            self.located = type(error)(self._message(node, proto, str(error)))
            raise self.located from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            text = f"its attributes or inputs make no sense: {type(error).__name__}: {error}"
            self.located = ModelError(self._message(node, proto, text))
            raise self.located from error
        if result is NotImplemented:
            return None
        return (result,) if isinstance(result, Node) else tuple(result)

    def _message(self, node: OnnxNode, proto: NodeProto, text: str) -> str:
        lines = [f"node '{node.name}' ({node.op_type}): {text}"]
        schema = functions.schema_of(proto.op_type, node.domain, node.opset)
        for i, (value, source) in enumerate(zip(proto.input, node.inputs)):
            if source is None:
                continue
            formal = schema.inputs[min(i, len(schema.inputs) - 1)].name if schema else f"input {i}"
            kind = {"input": "graph input ", "const": "constant "}.get(source.op, "")
            lines.append(f"  {formal}: {source.type}   from {kind}'{value}'")
        return "\n".join(lines)

    # ---- bodies

    def _call(
        self,
        proto: NodeProto,
        function: FunctionProto,
        inputs: list[Node | None],
        attributes: list[AttributeProto],
        versions: dict[str, int],
        prefix: str,
        origin: Origin | None,
    ) -> Sequence[Node | None]:
        """The results of a function's body on these inputs."""
        opset = self.model.opsets.get("" if proto.domain == "ai.onnx" else proto.domain, 0)
        bound = functions.defaults(proto, function, opset)
        bound.update({a.name: a for a in attributes})
        given = dict(zip(function.input, inputs))
        values: dict[str, Node | None] = {name: given.get(name) for name in function.input}
        inner = Scope(values, lambda _: None, versions, bound, None, prefix, origin)
        self.nodes(function.node, function.output[: len(proto.output)], inner)
        return [inner.find(name)[1] for name in function.output]

    def _branch(
        self, inputs: list[Node | None], attrs: dict[str, Any], scope: Scope
    ) -> Sequence[Node | None]:
        """The results of the branch that a known condition takes."""
        condition = inputs[0]
        assert condition is not None
        taken: GraphProto = attrs[
            "then_branch" if self.evaluate(condition).reshape(-1)[0] else "else_branch"
        ]
        stored = {t.name: t for t in taken.initializer} | {
            t.values.name: t for t in taken.sparse_initializer
        }

        def find(name: str) -> Node | None:
            return (
                constant(stored[name], self.model.base, f"initialiser '{name}'")
                if name in stored
                else None
            )

        inner = Scope({}, find, scope.opsets, scope.bound, scope, scope.prefix, scope.origin)
        names = [v.name for v in taken.output]
        self.nodes(taken.node, names, inner)
        return [inner.find(name)[1] for name in names]

    # ---- what is not supported

    def _problem(self, origin: Origin, domain: str, reason: str) -> None:
        key = (origin.op_type, domain, reason)
        names = self.problems.setdefault(key, Problem(reason)).nodes
        if origin.name not in names:
            names.append(origin.name)

    def _report(self) -> str:
        count = sum(len(p.nodes) for p in self.problems.values())
        lines = [
            f"{self.model.source}: {count} node{'s are' if count > 1 else ' is'} not supported"
        ]
        for (op_type, domain, reason), problem in self.problems.items():
            names = ", ".join(f"'{n}'" for n in problem.nodes[:8])
            more = f" and {len(problem.nodes) - 8} more" if len(problem.nodes) > 8 else ""
            where = f" of domain '{domain}'" if domain else ""
            lines.append(
                f"  {op_type}{where}, {len(problem.nodes)} times: {names}{more}"
                + (f": {reason}" if reason else "")
            )
        lines.append(
            "  Replace these nodes when exporting, or declare the ops: see CONTRIBUTING.md."
        )
        return "\n".join(lines)


def _reached(node: Node) -> list[Node]:
    return [n for n in toposort([node]) if n.op == "input"]


def _constant(attributes: list[AttributeProto], base: Path | None, where: str) -> Node:
    """A Constant node in any of its forms."""
    for a in attributes:
        if a.name == "value":
            return tensors.to_node(a.t, base, f"{where}, attribute 'value'")
    attrs = {a.name: tensors.attribute(a, base, where) for a in attributes}
    for key, dtype in (
        ("value_int", "i64"),
        ("value_ints", "i64"),
        ("value_float", "f32"),
        ("value_floats", "f32"),
        ("sparse_value", None),
    ):
        if key in attrs:
            return const(attrs[key], dtype)
    if "value_string" in attrs or "value_strings" in attrs:
        raise UnsupportedError("holds strings; jitcl computes with numbers")
    raise ModelError(f"{where} holds no value")


def _static(name: str, type: TensorType) -> tuple[int, ...]:
    unknown = [str(d) for d in type.shape if not isinstance(d, int)]
    if unknown:
        raise InputError(
            f"input '{name}' {type} has unknown dimensions ({', '.join(unknown)}): give its shape"
        )
    return type.dims


def _fits(name: str, type: TensorType, shape: Sequence[int]) -> None:
    """InputError unless a shape has the declared rank and fixed dimensions."""
    if len(shape) != type.rank:
        raise InputError(
            f"input '{name}' has rank {len(shape)} {list(shape)}; the model wants rank "
            f"{type.rank}: {type}"
        )
    for axis, (got, want) in enumerate(zip(shape, type.shape)):
        if isinstance(want, int) and got != want:
            raise InputError(
                f"input '{name}' has shape {list(shape)}; the model wants {type}: axis {axis} "
                f"is {got} instead of {want}"
            )


__all__ = ["import_model"]
