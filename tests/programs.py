"""Helpers for tests of programs: small models, and what others say they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import jitcl
from tests.devices import device, present

F32, I64, BOOL, STRING = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)
node = helper.make_node


def in_turn() -> list[Any]:
    """The devices that this machine has; those behind OpenCL in the slow tests."""
    return [pytest.param(s, marks=pytest.mark.slow) if s.startswith("opencl") else s
            for s in present()]


def info(name: str, shape: Any, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def sequence(name: str, dtype: int = F32, shape: Any = None) -> onnx.ValueInfoProto:
    tensor = helper.make_tensor_type_proto(dtype, shape)
    return helper.make_value_info(name, helper.make_sequence_type_proto(tensor))


def graph(name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
          constants: Mapping[str, Any] | None = None) -> onnx.GraphProto:
    stored = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), stored)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
          constants: Mapping[str, Any] | None = None, opset: int = 21,
          functions: Sequence[Any] = (), domains: Sequence[str] = ()) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph("test", nodes, inputs, outputs, constants),
                             opset_imports=imports, functions=list(functions), ir_version=10)


def by_reference(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(proto).run(None, dict(feeds)))


def by_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Any], *, threads: int = 0,
                   optimised: bool = True) -> list[Any]:
    """All outputs. threads: 0 for as many as it takes. Its warnings are not shown."""
    ort = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options,
                                   providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def opened(proto: Any, spec: str = "cpu", **options: Any) -> jitcl.Model:
    place = device(spec)
    assert place is not None
    return jitcl.compile(proto, device=place, **options)


def same(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal in kind, type and shape; numbers within the tolerance."""
    if want is None:
        assert got is None
    elif isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w, rtol, atol)
    else:
        want = np.asarray(want)
        assert isinstance(got, np.ndarray) and got.shape == want.shape
        if want.dtype.kind in "OUS":
            assert got.dtype == object and got.tolist() == want.astype(str).tolist()
        else:
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol, atol)


def agrees(proto: onnx.ModelProto, feeds: Mapping[str, Any], spec: str = "cpu",
           others: Sequence[Any] = (by_reference, by_onnxruntime), **options: Any) -> jitcl.Model:
    """jitcl gives what the others give; the model, for what else there is to ask."""
    made = opened(proto, spec, **options)
    got = list(made.run(feeds).values())
    for other in others:
        same(got, other(proto, feeds))
    return made
