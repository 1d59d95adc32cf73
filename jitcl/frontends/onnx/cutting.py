"""An ONNX model in two pieces, where one tensor is all that the second needs of the first.

    image -> [conv] -> .. -> columns | columns -> [lstm] -> .. -> classes
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import ModelProto
from onnx.utils import Extractor

from jitcl import dtypes
from jitcl.frontends.onnx.inner import layers, whole
from jitcl.frontends.onnx.model import OnnxModel


@dataclass(frozen=True)
class Cut:
    """A tensor behind which a model can be cut. head: names of the nodes that make it; nbytes: its
    size, 0 where that is not known.
    """

    tensor: str
    head: frozenset[str]
    nbytes: int = 0


def cuts(model: OnnxModel) -> list[Cut]:
    """In the model's order; of tensors whose type is known without running it."""
    graph = model.proto.graph
    found, order = [], layers(model)
    last = {name: k for k, layer in enumerate(order) for name in layer.inputs}
    last.update((v.name, len(order)) for v in graph.output)
    alive = {v.name for v in graph.input if v.name in last}
    head: set[str] = set()
    for k, layer in enumerate(order[:-1]):
        head.add(layer.name)
        alive = {name for name in alive if last[name] > k}
        alive.update(o for o in layer.outputs if layer.fed and last.get(o, -1) > k)
        if len(alive) == 1 and not alive.isdisjoint(layer.outputs):
            (tensor,) = alive
            if last[tensor] < len(order):
                found.append(Cut(tensor, frozenset(head)))
    sizes = _sizes(model) if found else {}
    return [Cut(c.tensor, c.head, sizes[c.tensor]) for c in found if c.tensor in sizes]


def pieces(model: OnnxModel, tensor: str) -> tuple[ModelProto, ModelProto]:
    """What makes the tensor, and what reads it."""
    found = Extractor(onnx.shape_inference.infer_shapes(whole(model)))
    graph = model.proto.graph
    stored = {t.name for t in graph.initializer}
    fed = [v.name for v in graph.input if v.name not in stored]
    return (found.extract_model(fed, [tensor]),
            found.extract_model([tensor], [v.name for v in graph.output]))


def _sizes(model: OnnxModel) -> dict[str, int]:
    """Bytes of inner tensors of a known type, 0 where dimensions are open."""
    found = {}
    for info in onnx.shape_inference.infer_shapes(model.proto).graph.value_info:
        held = info.type.tensor_type
        dtype = dtypes.ONNX.get(held.elem_type)
        if dtype is not None and held.HasField("shape"):
            dims = [d.dim_value for d in held.shape.dim]
            found[info.name] = math.prod(dims) * dtypes.to_numpy(dtype).itemsize
    return found


__all__ = ["Cut", "cuts", "pieces"]
