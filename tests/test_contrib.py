"""com.microsoft's ops give what onnxruntime gives, on random operands: by the references of the
ops they become, and compiled on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import jitcl
from jitcl.errors import JitclError
from jitcl.frontends.onnx import import_model, load
from jitcl.ops.builder import evaluate
from tests import (  # noqa: F401  they fill CASES
    contrib_nodes_attention,
    contrib_nodes_experts,
    contrib_nodes_fused,
    contrib_nodes_misc,
    contrib_nodes_quantised,
)
from tests.contrib_cases import CASES, Array, Case
from tests.devices import present

onnxruntime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
KEYS = {c.op: c for c in reversed(CASES)}                # one case an op


def expected(case: Case) -> list[Array]:
    """onnxruntime's outputs, or the judge's."""
    if case.judge is not None:
        found = case.judge(*(a for a in case.args if a is not None))
        return [np.asarray(y) for y in found][:len(case.outputs)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(case.model().SerializeToString(), options,
                                           ["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, case.feeds())]


def typed(model: onnx.ModelProto, results: list[Array]) -> onnx.ModelProto:
    """The model with its outputs' types written in."""
    for value, result in zip(model.graph.output, results):
        elem = helper.np_dtype_to_tensor_dtype(result.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, elem, result.shape))
    return model


def check(case: Case, got: list[Array], want: list[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        if case.rows is not None:
            g, w = case.rows(g), case.rows(w)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=1e-5,
                                   atol=case.atol)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rule(case: Case) -> None:
    """What the references of the ops give that the node becomes."""
    want, feeds = expected(case), case.feeds()
    loaded = load(typed(case.model(), want))
    graph = import_model(loaded, {n: a.shape for n, a in feeds.items()})
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    check(case, [evaluate(node, memo) for _, node in graph.outputs], want)


def compiled(case: Case, device: str) -> None:
    want = expected(case)
    model = jitcl.compile(typed(case.model(), want), device=device)
    check(case, list(model.run(case.feeds()).values()), want)
    assert model.plan is not None and model.plan.steps


QUICK = ("GroupQueryAttention", "MatMulNBits", "RotaryEmbedding", "QLinearAdd",
         "SkipSimplifiedLayerNormalization", "FusedConv", "DynamicQuantizeMatMul", "Inverse")
FOLDED = ("Range", "SampleOp", "Unique")                 # nothing is left to compute


@pytest.mark.parametrize("op", QUICK)
def test_compiled(op: str) -> None:
    compiled(KEYS[op], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(set(KEYS) - {*QUICK, *FOLDED}))
def test_every_op_compiled(op: str) -> None:
    compiled(KEYS[op], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("device", [d for d in present() if d != "cpu"])
@pytest.mark.parametrize("op", QUICK)
def test_other_devices(op: str, device: str) -> None:
    """The ops that these become are tested there one by one, from their samples."""
    compiled(KEYS[op], device)


REFUSED: dict[str, tuple[Any, str]] = {}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, text = REFUSED[name]
    with pytest.raises(JitclError) as caught:
        import_model(load(model), {})
    assert text in str(caught.value)
