"""Ops on the host: onnx.reference's implementation of one node, at the opset of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from jitcl.errors import ModelError
from jitcl.frontends.onnx import functions, host_ml, integrity, tensors
from jitcl.frontends.onnx.model import constant
from jitcl.frontends.values import is_text, signature, texts

Run = Callable[[Sequence[Any]], list[Any]]
# Ops whose results hold elements of their operands: strings need no second look.
MOVING = frozenset({"Compress", "Concat", "Expand", "Flatten", "Gather", "GatherElements",
                    "GatherND", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def has_implementation(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    """Whether onnx.reference can run the node; not where it would take a wrong word for another."""
    words = {a.name: tensors.attribute(a, None, "") for a in node.attribute
             if a.type in (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)}
    try:
        integrity.check_attributes(node, functions.domain_of(node), words, host=True)
    except ModelError:
        return False
    return _evaluator_or_error(node, opsets)[0] is not None


def evaluator(node: NodeProto, opsets: Mapping[str, int], name: str) -> Run:
    """A function from the node's operands (None where left out) to its results.

    It raises ModelError, naming the node and its operands, where the implementation fails.
    """
    found, problem = _evaluator_or_error(node, opsets)
    if found is None:
        raise ModelError(f"node '{name}' ({node.op_type}): can't run on the host: {problem}")
    names = list(node.input)
    made = _moved if node.op_type in MOVING and not node.domain else _result

    def run(operands: Sequence[Any]) -> list[Any]:
        feeds = {n: _given(v) for n, v in zip(names, operands) if n}
        try:
            with np.errstate(all="ignore"):
                results = list(found.run(None, feeds))
        except Exception as error:      # whatever an implementation of an op raises
            raise ModelError(_failure(node, name, operands, error)) from error
        by_name = dict(zip((o for o in node.output if o), results))
        return [made(by_name[o]) if o else None for o in node.output]

    return run


def stored(proto: Any, base: Any, what: str) -> Any:
    """An initialiser's elements, strings as an array of `str`."""
    if isinstance(proto, onnx.TensorProto) and proto.data_type == onnx.TensorProto.STRING:
        texts = [s.decode("utf-8", "replace") for s in proto.string_data]
        return np.array(texts, object).reshape(tuple(proto.dims))
    if isinstance(proto, onnx.TensorProto) and tensors.dtype_of(proto.data_type) is None:
        return numpy_helper.to_array(proto)
    return constant(proto, base, what).data


def _evaluator_or_error(
    node: NodeProto, opsets: Mapping[str, int]
) -> tuple[ReferenceEvaluator | None, str]:
    inputs = [helper.make_empty_tensor_value_info(n) for n in dict.fromkeys(node.input) if n]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([node], "host", inputs, outputs)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    try:
        return ReferenceEvaluator(model, new_ops=host_ml.OPS), ""
    except Exception as error:  # noqa: BLE001  it raises what comes: NotImplementedError, KeyError
        return None, " ".join(str(error).split())[:200] or type(error).__name__


def _given(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_given(v) for v in value]
    return value


def _result(value: Any) -> Any:
    """A result as a value of programs: arrays, lists of them, dicts, None."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        maps = all(type(v) is dict for v in value)          # one for each of many rows
        return list(value) if maps else [_result(v) for v in value]
    array = np.asarray(value)
    return _text(array) if is_text(array) else array


def _moved(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else _result(value)


def _text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Strings as `str` objects, whatever NumPy had them in."""
    found = texts(array)
    if found is not None:
        return found
    flat = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v)
            for v in array.reshape(-1).tolist()]
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)


def _failure(node: NodeProto, name: str, operands: Sequence[Any], error: Exception) -> str:
    said = " ".join(str(error).split())[:300]
    lines = [f"node '{name}' ({node.op_type}): failed on the host: {type(error).__name__}: {said}"]
    for source, value in zip(node.input, operands):
        if source:
            lines.append(f"  '{source}': {_shown(value)}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    found = signature(value)
    if len(found) == 2:
        return f"{found[0]}[{','.join(map(str, found[1]))}]"
    return {"none": "an empty optional", "map": "a map"}.get(
        found[0], f"a sequence of {found[-1]}")


__all__ = ["Run", "evaluator", "has_implementation", "stored"]
