"""onnx.checker's verdict on a model, less what it objects to and what jitcl can read all the same:
ops that ONNX dropped, or that onnxruntime registers in ONNX's domain; domains that the model does
not import; outputs without a type; IR versions newer than the installed onnx."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from jitcl.errors import ModelError
from jitcl.frontends.onnx import functions

SLOW_CHECK_BYTES = 1 << 16  # larger initialisers are not shown to onnx.checker
OLDEST_CHECKED_IR = 4       # before, initialisers had to be inputs, and many models' were not
UNCHECKED = "jitcl.unchecked"  # a domain that the checker does not know
OWN = ("", "ai.onnx")


def check_opsets(proto: ModelProto, name: str) -> None:
    """ModelError for an opset that the installed onnx does not know, or none for ONNX's own ops."""
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in OWN and opset.version < 1:
            raise ModelError(f"{name}: says that its ops are of opset {opset.version}; ONNX's are "
                             f"numbered from 1 to {newest}\n  Export the model again.")
        if opset.domain in OWN and opset.version > newest:
            raise ModelError(
                f"{name}: uses opset {opset.version}; the installed onnx {onnx.__version__} "
                f"knows up to {newest}\n  Upgrade onnx, or export for opset {newest}."
            )
    if any(o.domain in OWN for o in proto.opset_import):
        return
    used = next((n for n in proto.graph.node if n.domain in OWN), None)
    if used is not None and proto.ir_version >= 3:
        raise ModelError(
            f"{name}: does not say which opset its ops of ONNX's domain are of ({used.op_type} "
            f"is one)\n  Add it: model.opset_import.append(onnx.helper.make_opsetid('', {newest})),"
            f" with the opset that it was exported for."
        )


def check(proto: ModelProto, source: str) -> None:
    """ModelError where onnx.checker objects to what jitcl would read."""
    try:
        onnx.checker.check_model(_to_check(proto))
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()
        raise ModelError(
            f"{source}: is not a valid ONNX model: {' '.join(first[:2])}\n"
            f"  onnx.checker.check_model says so; export the model again."
        ) from error


def _to_check(proto: ModelProto) -> ModelProto:
    """What the checker is shown: large and external initialisers as inputs, as reading those takes
    time (they are checked when they become constants), and a type for outputs without one, which
    exporters leave out."""
    slim = ModelProto()
    slim.ir_version = min(max(proto.ir_version, OLDEST_CHECKED_IR), onnx.IR_VERSION)
    slim.opset_import.extend(proto.opset_import)
    slim.functions.extend(proto.functions)
    graph = proto.graph
    slim.graph.name = graph.name or "graph"
    slim.graph.node.extend(graph.node)
    slim.graph.sparse_initializer.extend(graph.sparse_initializer)
    large = {
        t.name: t
        for t in graph.initializer
        if t.ByteSize() > SLOW_CHECK_BYTES or onnx.external_data_helper.uses_external_data(t)
    }
    slim.graph.initializer.extend(t for t in graph.initializer if t.name not in large)
    slim.graph.input.extend(v for v in graph.input if v.name not in large)
    slim.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in large.values()
    )
    slim.graph.output.extend(graph.output)
    for value in slim.graph.output:
        _complete(value)
    for value in slim.graph.input:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            _complete(value)
    _hide_unknown(slim)
    return slim


def _complete(value: onnx.ValueInfoProto) -> None:
    """Write any type into a value that has none, any rank into a tensor that has none."""
    if value.type.WhichOneof("value") is None:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    if value.type.HasField("tensor_type"):
        tensor = value.type.tensor_type
        tensor.elem_type = tensor.elem_type or onnx.TensorProto.FLOAT
        if not tensor.HasField("shape"):
            tensor.shape.SetInParent()


# ---- ops and domains that the checker does not know


def _hide_unknown(slim: ModelProto) -> None:
    """Move nodes that the checker would refuse by their name alone to a domain of their own: the
    importer knows them, or says which they are."""
    _hide(slim, list(_nodes(slim.graph)))
    for function in slim.functions:
        _hide(function, list(_body(function.node)))


def _hide(owner: ModelProto | FunctionProto, nodes: list[NodeProto]) -> None:
    opsets = {o.domain: o.version for o in owner.opset_import}
    own = opsets.get("", opsets.get("ai.onnx", 1))
    if not any(d in opsets for d in OWN):
        owner.opset_import.append(onnx.helper.make_opsetid("", own))
    hidden = False
    for opset in owner.opset_import:
        opset.domain = "" if opset.domain in OWN else opset.domain
    for node in nodes:
        node.domain = "" if node.domain in OWN else node.domain
        if node.domain in OWN and _unknown(node.op_type, own):
            node.domain, hidden = UNCHECKED, True
        elif node.domain not in OWN and node.domain not in opsets:
            opsets[node.domain] = 1
            owner.opset_import.append(onnx.helper.make_opsetid(node.domain, 1))
    if hidden:
        owner.opset_import.append(onnx.helper.make_opsetid(UNCHECKED, 1))


def _unknown(op_type: str, opset: int) -> bool:
    """Whether ONNX has no such op at the opset: never had, or dropped it."""
    schema = functions.schema_of(op_type, "", opset)
    return schema is None or bool(schema.deprecated)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    return _body(graph.node)


def _body(nodes: Iterable[Any]) -> Iterator[NodeProto]:
    """Nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for a in node.attribute:
            for graph in [a.g] if a.HasField("g") else a.graphs:
                yield from _nodes(graph)
