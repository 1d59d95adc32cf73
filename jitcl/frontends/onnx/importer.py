"""`import_model`: an `OnnxModel` at concrete input shapes becomes a graph.

Every node goes one of these ways: its op's import rule; a function body (the model's or ONNX's
own), imported in place; what `sequences` and `control` resolve at import; or the list of what is
not supported, raised once at the end. `Partition` attempts an import node by node instead, and
makes a program of what can't be one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto

from jitcl import dtypes
from jitcl.errors import (
    IndexRangeError,
    InputError,
    JitclError,
    ModelError,
    NeedsValue,
    NotOneGraph,
    StepsVary,
    UnsupportedError,
)
from jitcl.frontends.onnx import deciding, external, functions, integrity, opsets, tensors
from jitcl.frontends.onnx.control import RULES as CONTROL
from jitcl.frontends.onnx.model import OnnxModel, label, reads, unreadable
from jitcl.frontends.onnx.node import OnnxNode
from jitcl.frontends.onnx.problems import Cut, Problems
from jitcl.frontends.onnx.rules.training import DOMAIN as TRAINING_DOMAIN
from jitcl.frontends.onnx.scope import MISSING, Opaque, Scope, Seq, Sized, Value, tensors_in
from jitcl.frontends.onnx.sequences import RULES as SEQUENCES
from jitcl.frontends.onnx.training import RULES as TRAINING
from jitcl.ir.graph import (
    Graph,
    Node,
    Origin,
    add_twin,
    const,
    graph_input,
    spread_origin,
    toposort,
)
from jitcl.ir.sizes import has_size
from jitcl.ir.types import TensorType
from jitcl.ops import builder
from jitcl.ops.core import Bounded

# (domain, op type) -> a rule that sees more than operands: bodies, sequences, names in sight
SPECIAL: dict[tuple[str, str], Callable[..., Sequence[Value | None] | None]] = {
    **{("", op_type): rule for op_type, rule in (CONTROL | SEQUENCES).items()},
    **{(TRAINING_DOMAIN, op_type): rule for op_type, rule in TRAINING.items()}}


def import_model(
        model: OnnxModel, shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> Graph:
    """The graph of a model at concrete input shapes (elements an axis).

    `values` are what some inputs hold; only shapes are made of them: what else reads these inputs
    reads them when the graph runs. Raises InputError where shapes do not fit the model, NeedsValue
    where the value of an input decides shapes (give it in `values`), NotOneGraph listing all that
    no graph can hold, and ShapeError, TypeError_ or ModelError naming the node that does not fit.
    """
    return Importer(model, dict(values or {})).run(dict(shapes))


class Importer:
    """One import. `values`: of inputs, by name, as far as they decide shapes."""

    def __init__(self, model: OnnxModel, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.model, self.fixed = model, values
        self.g = builder.GraphBuilder()
        self.memo: dict[Node, np.ndarray[Any, Any]] = {}  # of nodes that no input decides
        self.decided: dict[Node, np.ndarray[Any, Any]] = {}  # of inputs, and what they decide
        self.origins: dict[Node, Origin] = {}
        self.problems = Problems()
        self.located: JitclError | None = None  # an error that already names its node
        self.functions = {(f.domain, f.name, f.overload): f for f in model.proto.functions}
        self.unrolled = 0  # nodes of bodies so far
        self._operands: tuple[Value | None, ...] = ()  # of the node of the graph that is imported
        self._inside = False  # whether a node of a body is imported for it

    def run(self, shapes: dict[str, tuple[int, ...]]) -> Graph:
        """The whole model as one graph."""
        graph = self.model.proto.graph
        inputs, values = self._inputs(shapes)
        scope = Scope(values, self._initialiser, self.model.opsets)
        outputs = list(dict.fromkeys(v.name for v in graph.output))
        self.nodes(graph.node, outputs, scope)
        if self.problems:
            raise NotOneGraph(self.problems.listing(self.model.source))
        found = []
        for name in outputs:
            known, node = scope.find(name)
            if not known or node is None or node is MISSING:
                raise ModelError(f"{self.model.source}: output '{name}' is made by no node")
            if not isinstance(node, Node):
                raise NotOneGraph(
                    f"{self.model.source}: output '{name}' is no tensor, but {_what(node)}")
            found.append((name, node))
        return Graph(graph.name or "model", self.read_by(inputs, [n for _, n in found]),
                     tuple(found), self.origins)

    # ---- values

    def _inputs(
        self, shapes: dict[str, tuple[int, ...]]
    ) -> tuple[list[Node], dict[str, Value | None]]:
        declared = {**self.model.inputs, **self.model.defaults}
        for name in (*shapes, *self.fixed):
            if name not in declared:
                known = ", ".join(declared) or "none"
                raise InputError(f"{self.model.source}: no input '{name}'; it has {known}")
        inputs: list[Node] = []
        values: dict[str, Value | None] = {}
        for name, type in declared.items():
            if name in self.fixed or name in shapes or name in self.model.inputs:
                shape = shapes.get(name)
                if name in self.fixed:
                    shape = np.shape(self.fixed[name])
                elif shape is None:
                    shape = _static(name, type)
                _fits(name, type, shape)
                values[name] = node = self.input(name, TensorType(type.dtype, tuple(shape)))
                inputs.append(node)
        return inputs, values

    def input(self, name: str, type: TensorType) -> Node:
        """An input of the graph; its value, where that is given, is known to `evaluate`."""
        node = graph_input(name, type)
        if name in self.fixed:
            array = np.asarray(self.fixed[name])
            if not has_size(tuple(array.flat)):  # but the number itself
                array = array.astype(dtypes.to_numpy(type.dtype))
            self.decided[node] = array
        return node

    def read_by(self, inputs: Iterable[Node], outputs: Iterable[Node]) -> tuple[Node, ...]:
        """The inputs, without those that only decided shapes."""
        read = {*toposort([*outputs])}
        return tuple(n for n in inputs if n not in self.decided or n in read)

    def _initialiser(self, name: str) -> Value | None:
        if name not in self.model.initialisers:
            return None
        return unreadable(self.model.initialisers[name]) or self.model.constant(name)

    def evaluate(self, node: Node) -> np.ndarray[Any, Any]:
        """A node's value; NeedsValue where a small input decides it, Cut where it is computed and
        may be read once it is, UnsupportedError where a large input is it."""
        if node.op == "const":
            return node.data
        if node in self.memo:
            return self.memo[node]
        varying = deciding.varying(node)
        operands = [n for v in self._operands for n in tensors_in(v)]
        computed = self._inside or any(n.op not in ("const", "input") for n in operands)
        deciding.weigh(varying, read=node.op == "input" or not computed)
        return builder.evaluate(node, self.decided if varying else self.memo)

    def known(self, node: Node) -> np.ndarray[Any, Any] | None:
        """A node's value where no input decides it whose value is not known, else None."""
        if any(n is MISSING for n in toposort([node])):
            return None
        try:
            return self.evaluate(node)
        except (NeedsValue, UnsupportedError):
            return None

    # ---- nodes

    def nodes(self, nodes: Sequence[NodeProto], outputs: Iterable[str], scope: Scope) -> None:
        """Import those nodes that the outputs need."""
        for node, needed in needed_nodes(nodes, outputs):
            self.node(node, scope, needed)

    def node(self, proto: NodeProto, scope: Scope, needed: set[str]) -> None:
        """Import one node into the scope."""
        name = scope.prefix + label(proto)
        origin = scope.origin or Origin(name, proto.op_type)
        domain = functions.domain_of(proto)
        opset = scope.opsets.get(domain, 0)
        inputs: list[Value | None] = []
        ready = True
        for value in proto.input:
            known, node = scope.find(value) if value else (True, None)
            if not known:
                raise ModelError(
                    f"node '{name}' ({proto.op_type}) reads '{value}', which nothing makes")
            ready = ready and node is not MISSING and not isinstance(node, Sized)
            inputs.append(node)
        results: Sequence[Value | None] | None = None
        if scope.depth == 0:
            self._operands, self._inside = tuple(inputs), False
        else:
            self._inside = True
        try:
            if ready:
                found = self._results(proto, domain, opset, inputs, scope, origin)
                results = self._cut(found) if isinstance(found, Bounded) else found
                for i, out in enumerate(proto.output):
                    if out in needed and out and (i >= len(results) or results[i] is None):
                        raise UnsupportedError(f"its output {i} ('{out}') is not computed")
            elif not self.has_way(proto, domain, opset):
                raise UnsupportedError("")
        except StepsVary as error:
            error.node = origin.name            # of the outermost, in the end
            raise
        except UnsupportedError as error:
            results = None
            self.failed(proto, origin, error, scope, ready)
        for i, out in enumerate(proto.output):
            if not out:
                continue
            result = results[i] if results is not None and i < len(results) else None
            scope.values[out] = MISSING if result is None else result
            for made in tensors_in(result):
                if made is not MISSING:
                    if not any(a.HasField("g") for a in proto.attribute):   # else a body's
                        add_twin(made, origin.name, self.origins)
                    spread_origin(made, origin, self.origins)

    def failed(
            self, proto: NodeProto, origin: Origin, error: UnsupportedError, scope: Scope,
            ready: bool
    ) -> None:
        """A node could not be imported; `ready`: its operands were there."""
        domain = functions.domain_of(proto)
        self.problems.add(origin, domain, str(error))

    def _cut(self, found: Bounded) -> Sequence[Value | None]:
        """Bounded results at their size, where that is known by now."""
        count = self.known(found.count)
        if count is None:
            return self.bounded(found)
        size = int(count.reshape(-1)[0])
        return [
            x if x is None or axis is None
            else self.g.slice_(x, starts=(0,), ends=(size,), axes=(axis,))
            for x, axis in zip(found.padded, found.axes)
        ]

    def repeated(self, scope: Scope) -> bool:
        """Whether the node that is imported is a loop which had better not be unrolled."""
        return False

    def bounded(self, found: Bounded) -> Sequence[Value | None]:
        """Results as long as data says."""
        raise Cut("how long its results are, data decides")

    def has_way(self, proto: NodeProto, domain: str, opset: int) -> bool:
        """Whether a node's op can be imported, as far as that shows without its operands."""
        return (
            opsets.has_rule(proto.op_type, domain)
            or (domain, proto.op_type) in (*SPECIAL, ("", "Constant"))
            or (domain, proto.op_type, proto.overload) in self.functions
            or functions.has_body(proto.op_type, domain, opset)
        )

    def _results(
            self, proto: NodeProto, domain: str, opset: int, inputs: list[Value | None],
            scope: Scope, origin: Origin
    ) -> Sequence[Value | None] | Bounded:
        attributes = functions.resolve(proto, scope.bound)
        local = self.functions.get((proto.domain, proto.op_type, proto.overload))
        if local is not None:
            prefix = f"{scope.prefix}{label(proto)}/"
            return self._call(proto, local, inputs, attributes, scope, prefix, scope.origin)
        where = f"node '{origin.name}' ({proto.op_type})"
        if proto.op_type == "Constant" and not domain:
            return (constant_node(attributes, self.model.base, where),)
        plain = functions.rounded_defaults(proto, opset, inputs)
        plain |= {a.name: tensors.attribute(a, self.model.base, where) for a in attributes}
        with self._naming(proto, domain, opset, inputs, origin.name):
            integrity.check_attributes(proto, domain, plain)
        special = SPECIAL.get((domain, proto.op_type))
        if special is not None:
            with self._naming(proto, domain, opset, inputs, origin.name):
                given = special(self, proto, inputs, plain, scope)
            if given is not None:
                return given
        if opsets.has_rule(proto.op_type, domain):
            found = self._by_rule(proto, domain, opset, inputs, plain, origin)
            if found is not None:
                return found
        body = functions.standard_body(proto, opset, inputs, attributes)
        if body is None:
            raise UnsupportedError(opsets.advice(proto.op_type, domain))
        return self._call(proto, body, inputs, attributes, scope, scope.prefix, origin)

    def _by_rule(
            self, proto: NodeProto, domain: str, opset: int, inputs: Sequence[Value | None],
            attrs: dict[str, Any], origin: Origin
    ) -> Sequence[Value | None] | Bounded | None:
        """What the import rule of the op gives; None where it leaves the node to ONNX's body."""
        operands: list[Node | None] = []
        for value, name in zip(inputs, proto.input):
            if value is not None and not isinstance(value, Node):
                raise UnsupportedError(f"reads {_what(value)} ('{name}')")
            operands.append(value)
        outputs = len(proto.output)
        while outputs and not proto.output[outputs - 1]:
            outputs -= 1
        padded = self._padded(proto, domain, opset, operands)
        node = OnnxNode(proto.op_type, domain, origin.name, padded, attrs, opset, outputs,
                        self.evaluate)
        return self._apply(node, proto)

    def _padded(
        self, proto: NodeProto, domain: str, opset: int, inputs: list[Node | None]
    ) -> tuple[Node | None, ...]:
        """Inputs up to the most that the op takes, so that rules may ask for any of them."""
        schema = functions.schema_of(proto.op_type, domain, opset)
        most = schema.max_input if schema is not None and schema.max_input < 100 else 0
        return (*inputs, *(None,) * (most - len(inputs)))

    def _apply(self, node: OnnxNode, proto: NodeProto) -> Sequence[Value | None] | Bounded | None:
        """Run the node's rule. None: the rule leaves it to ONNX's body."""
        with self._naming(proto, node.domain, node.opset, node.inputs, node.name):
            modern = opsets.modern(self.g, node)
            rule = opsets.rule_for(modern.op_type, modern.domain, modern.opset)
            assert rule is not None
            result = rule(self.g, modern)
        if result is NotImplemented:
            return None
        if isinstance(result, Bounded):
            return result
        return (result,) if isinstance(result, Node) else tuple(result)

    @contextmanager
    def _naming(
            self, proto: NodeProto, domain: str, opset: int, inputs: Sequence[Value | None],
            name: str
    ) -> Iterator[None]:
        """Errors of a node's rule name the node and what it reads; those of a node in its body are
        left as they are."""

        def message(text: str) -> str:
            return _message(proto, domain, opset, inputs, name, text)

        try:
            yield
        except (NeedsValue, UnsupportedError):
            raise
        except JitclError as error:
            if error is self.located:
                raise
            self.located = self._kind(error, proto)(message(str(error)))
            raise self.located from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            text = f"its attributes or inputs make no sense: {type(error).__name__}: {error}"
            self.located = ModelError(message(text))
            raise self.located from error

    def _kind(self, error: JitclError, proto: NodeProto) -> type[JitclError]:
        """The error's class: an index that comes of a fed value, and is constant as that decides
        shapes, is the caller's."""
        own = any(name in self.model.initialisers for name in proto.input[1:])
        theirs = isinstance(error, IndexRangeError) and self.fixed and not own
        return InputError if theirs else type(error)

    # ---- bodies

    def _call(
            self, proto: NodeProto, function: FunctionProto, inputs: list[Value | None],
            attributes: list[AttributeProto], scope: Scope, prefix: str, origin: Origin | None
    ) -> Sequence[Value | None]:
        """The results of a function's body on these inputs."""
        opset = scope.opsets.get(functions.domain_of(proto), 0)
        bound = functions.defaults(proto, function, opset)
        bound.update({a.name: a for a in attributes})
        given = dict(zip(function.input, inputs))
        values: dict[str, Value | None] = {name: given.get(name) for name in function.input}
        versions = functions.versions(function, scope.opsets)
        inner = Scope(
            values, lambda _: None, versions, bound, None, prefix, origin, scope.depth + 1)
        self.nodes(function.node, function.output[: len(proto.output)], inner)
        return [inner.find(name)[1] for name in function.output]


def _what(value: Value) -> str:
    """What a value that is no tensor is."""
    if isinstance(value, Opaque):
        return value.what
    return "a sequence" if isinstance(value, Seq) else "an empty optional"


def _message(
        proto: NodeProto, domain: str, opset: int, inputs: Sequence[Value | None], name: str,
        text: str
) -> str:
    """An error's text with the node's name in front and its tensors below."""
    lines = [f"node '{name}' ({proto.op_type}): {text}"]
    schema = functions.schema_of(proto.op_type, domain, opset)
    for i, (value, source) in enumerate(zip(proto.input, inputs)):
        if not isinstance(source, Node):
            continue
        formal = schema.inputs[min(i, len(schema.inputs) - 1)].name if schema else f"input {i}"
        kind = {"input": "graph input ", "const": "constant "}.get(source.op, "")
        lines.append(f"  {formal}: {source.type}   from {kind}'{value}'")
    return "\n".join(lines)


def needed_nodes(
    nodes: Sequence[NodeProto], outputs: Iterable[str]
) -> list[tuple[NodeProto, set[str]]]:
    """The nodes that the outputs need, in order, each with all names that are needed."""
    needed = {o for o in outputs if o}
    keep = []
    for node in reversed(nodes):
        if any(o in needed for o in node.output):
            keep.append(node)
            needed.update(reads(node))
    return [(node, needed) for node in reversed(keep)]


def constant_node(
    attributes: list[AttributeProto], base: external.Folder | None, where: str
) -> Value:
    """A Constant node in any of its forms; Opaque for what no kernel can read."""
    for a in attributes:
        if a.name == "value":
            return unreadable(a.t) or tensors.to_node(a.t, base, f"{where}, attribute 'value'")
    attrs = {a.name: tensors.attribute(a, base, where) for a in attributes}
    for key, dtype in (
        ("value_int", "i64"), ("value_ints", "i64"), ("value_float", "f32"),
        ("value_floats", "f32"), ("sparse_value", None)):
        if key in attrs:
            return const(attrs[key], dtype)
    if "value_string" in attrs:
        return Opaque("strings", ("string", ()))
    if "value_strings" in attrs:
        return Opaque("strings", ("string", (len(attrs["value_strings"]),)))
    raise ModelError(f"{where} holds no value")


def _static(name: str, type: TensorType) -> tuple[int, ...]:
    unknown = [str(d) for d in type.shape if not isinstance(d, int)]
    if unknown:
        raise InputError(
            f"input '{name}' {type} has unknown dimensions ({', '.join(unknown)}): give its shape")
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


__all__ = ["Importer", "constant_node", "import_model", "needed_nodes"]
