"""Models of a single ONNX node, and what jitcl, onnxruntime and ONNX's reference make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import jitcl
from tests import programs

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array | None]


def one_node(op: str, feeds: Feeds, outputs: int = 1, opset: int = 22, domain: str = "",
             constants: tuple[str, ...] = (), result: int = TensorProto.UNDEFINED,
             **attrs: Any) -> onnx.ModelProto:
    """The node over `feeds`, in order; None is an input that is left out, and those named in
    `constants` are initialisers."""
    given = {n: a for n, a in feeds.items() if a is not None}
    node = helper.make_node(op, [n if a is not None else "" for n, a in feeds.items()],
                            [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in given.items() if n not in constants]
    graph = helper.make_graph(
        [node], "g", inputs,
        [helper.make_tensor_value_info(f"y{i}", result, None) for i in range(outputs)],
        [onnx.numpy_helper.from_array(given[n], n) for n in constants])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def fed(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    return {i.name: feeds[i.name] for i in model.graph.input}  # type: ignore[misc]


def by_jitcl(model: onnx.ModelProto, feeds: Feeds, device: str = "cpu") -> list[Array]:
    """The outputs; nothing of it ran on the host."""
    compiled = jitcl.compile(model, device=device, strict=True)
    return list(compiled.run(fed(model, feeds)).values())


def by_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    return programs.by_onnxruntime(typed(model), fed(model, feeds), threads=1)


def by_reference(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    found: list[Array] = ReferenceEvaluator(model).run(None, fed(model, feeds))
    return found


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its outputs' types, which onnxruntime wants, as inference finds them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
    copy.graph.output.extend(types[o.name] for o in model.graph.output)
    return copy
