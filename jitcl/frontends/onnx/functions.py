"""Function bodies: those in the model, and those that ONNX itself defines ops by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
)

from jitcl.frontends.onnx import tensors
from jitcl.frontends.onnx.scope import Opaque, Seq, Value
from jitcl.ir.graph import Node


def domain_of(proto: NodeProto | OperatorSetIdProto) -> str:
    """The domain of a node or an opset; ONNX's own has two names, of which "" is used here."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def schema_of(op_type: str, domain: str, opset: int) -> Any:
    """ONNX's description of an op as that opset has it, or None for an unknown one."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def has_body(op_type: str, domain: str, opset: int) -> bool:
    """Whether ONNX defines the op by a function body (perhaps one that depends on its operands)."""
    schema = schema_of(op_type, domain, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def standard_body(
        node: NodeProto, opset: int, inputs: Sequence[Value | None],
        attributes: Sequence[AttributeProto]
) -> FunctionProto | None:
    """The function body that ONNX gives for a node, or None; `attributes` are the node's,
    resolved."""
    schema = schema_of(node.op_type, node.domain, opset)
    if schema is None:
        return None
    if schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        return _parsed(schema.get_function_with_opset_version(version))
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        plain = NodeProto()
        plain.CopyFrom(node)
        del plain.attribute[:]
        plain.attribute.extend(attributes)
        data = schema.get_context_dependent_function_with_opset_version(
            version, plain.SerializeToString(), [type_proto(i).SerializeToString() for i in inputs])
        return _parsed(data) if data else None
    return None


def _parsed(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _newest(versions: Sequence[int], opset: int) -> int:
    """The newest body that the opset knows; else the oldest there is."""
    return max((v for v in versions if v <= opset), default=min(versions))


def type_proto(value: Value | None) -> TypeProto:
    """A value's type as ONNX writes it; empty for an input that is left out."""
    helper = onnx.helper
    if isinstance(value, Node):
        made: TypeProto = helper.make_tensor_type_proto(
            tensors.ELEM_TYPES[value.type.dtype], list(value.type.dims))
        return made
    if isinstance(value, Seq):
        if value.items:
            return _sequence_of(type_proto(value.items[0]))
        return _sequence_of(helper.make_tensor_type_proto(
            tensors.ELEM_TYPES[value.dtype or "f32"], None))
    if isinstance(value, Opaque) and value.signature:
        return _signed(value.signature)
    return TypeProto()


def _signed(found: Sequence[Any]) -> TypeProto:
    """The type that a `frontends.values.signature` tells."""
    if found[0] == "sequence":
        return _sequence_of(_signed(found[1] or ("f32", ())))
    code = tensors.ELEM_TYPES.get(found[0], TensorProto.STRING)
    shape = None if len(found) < 2 else list(found[1])
    made: TypeProto = onnx.helper.make_tensor_type_proto(code, shape)
    return made


def _sequence_of(inner: TypeProto) -> TypeProto:
    made: TypeProto = onnx.helper.make_sequence_type_proto(inner)
    return made


def versions(function: FunctionProto, caller: Mapping[str, int]) -> dict[str, int]:
    """Opset of each domain that a body uses; ONNX's body of FlexAttention leaves out the default
    domain's, which is its caller's."""
    own = {domain_of(o): o.version for o in function.opset_import}
    return {"": caller.get("", 0)} | own


def defaults(node: NodeProto, function: FunctionProto, opset: int) -> dict[str, AttributeProto]:
    """What the body's attribute references mean where the caller leaves them out."""
    found = {a.name: a for a in function.attribute_proto}
    schema = schema_of(node.op_type, node.domain, opset)
    for name, attribute in schema.attributes.items() if schema else ():
        default = attribute.default_value
        if default.type != AttributeProto.UNDEFINED:
            found.setdefault(name, default)
    return found


def rounded_defaults(node: NodeProto, opset: int, inputs: Sequence[Value | None]
                     ) -> dict[str, float]:
    """Defaults of float attributes as ONNX holds them, in float32: a float64 operand tells 0.01
    from the nearest float32, so that rules must not use their own. Empty for other operands."""
    if not any(isinstance(i, Node) and i.type.dtype == "f64" for i in inputs):
        return {}
    schema = schema_of(node.op_type, node.domain, opset)
    if schema is None:
        return {}
    return {name: a.default_value.f for name, a in schema.attributes.items()
            if a.default_value.type == AttributeProto.FLOAT}


def resolve(node: NodeProto, bound: dict[str, AttributeProto]) -> list[AttributeProto]:
    """The node's attributes with references to the function's parameters replaced; unbound ones
    vanish."""
    found = []
    for a in node.attribute:
        if not a.ref_attr_name:
            found.append(a)
        elif a.ref_attr_name in bound:
            copy = AttributeProto()
            copy.CopyFrom(bound[a.ref_attr_name])
            copy.name = a.name
            found.append(copy)
    return found


def own_names(graph: GraphProto) -> set[str]:
    """The names that a body gives values itself; others it captures."""
    return {v.name for v in graph.input} | {t.name for t in graph.initializer} | {
        t.values.name for t in graph.sparse_initializer} | {o for n in graph.node for o in n.output}
