"""What a model's file says of itself, and the types of outputs that it leaves open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import onnx

from jitcl.frontends.onnx.model import OnnxModel, value_type
from jitcl.frontends.values import ValueType

NO_VERSION = 2**63 - 1            # what onnxruntime says of a file that has none


def metadata(model: OnnxModel) -> dict[str, Any]:
    """Producer, names, descriptions, version, properties, by onnxruntime's names."""
    proto = model.proto
    version = proto.model_version if proto.HasField("model_version") else NO_VERSION
    return {"producer_name": proto.producer_name, "graph_name": proto.graph.name,
            "domain": proto.domain, "description": proto.doc_string,
            "graph_description": proto.graph.doc_string, "version": version,
            "custom_metadata_map": {p.key: p.value for p in proto.metadata_props}}


def has_overridable(model: OnnxModel) -> bool:
    """Whether inputs with an initialiser are meant to be fed: before IR version 4 each initialiser
    had to be an input."""
    version: int = model.proto.ir_version
    return version >= 4


def inferred_outputs(model: OnnxModel) -> dict[str, ValueType]:
    """Outputs without a full type in the file, by onnx's inference; {} where that gives up."""
    given = model.value_types[1]
    open_ = {n for n, t in given.items() if t.kind == "unknown" or
             t.kind == "tensor" and t.shape is None}
    found: dict[str, ValueType] = {}
    with suppress(onnx.shape_inference.InferenceError, ValueError):     # ValueError: above 2 GB
        proto = onnx.shape_inference.infer_shapes(model.proto)
        for value in proto.graph.output:
            if value.name in open_ and value.HasField("type"):
                found[value.name] = value_type(value.type, value.name)
    return found


__all__ = ["has_overridable", "inferred_outputs", "metadata"]
