"""Gradient of ai.onnx.preview.training: derivatives against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jitcl.errors import JitclError, ModelError, UnsupportedError
from jitcl.frontends.onnx import import_model, load
from jitcl.ir.graph import Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.ops.gradient import gradients

Array = np.ndarray[Any, Any]
Make = Callable[..., Node]

FUNCTIONS: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "broadcast": (lambda g, x, y: g.mul(g.add(x, y), g.sub(x, y)), ((2, 3), (3,))),
    "quotient": (lambda g, x, y: g.div(g.exp(x), g.add(g.mul(y, y), 1.0)), ((2, 3), (2, 1))),
    "matmul": (lambda g, x, y: g.tanh(g.matmul(x, y)), ((2, 3), (3, 4))),
    "batched": (lambda g, x, y: g.sigmoid(g.matmul(x, y)), ((2, 2, 3), (3, 4))),
    "softmax": (lambda g, x, y: g.mul(g.log_softmax(x), y), ((2, 5), (2, 5))),
    "layer_norm": (lambda g, x, y: g.layer_norm(x, y, axis=-1, epsilon=1e-2), ((3, 6), (6,))),
    "shapes": (lambda g, x, y: g.mul(g.transpose(g.reshape(x, shape=(3, 2)), perm=(1, 0)),
                                     g.concat(y, y, axis=0)), ((2, 3), (1, 3))),
    "choices": (lambda g, x, y: g.add(g.max(x, y), g.where(g.greater(x, 0.0), g.relu(x), y)),
                ((4, 3), (4, 3))),
    "reductions": (lambda g, x, y: g.mul(g.reduce_mean(x, axes=(1,)), g.reduce_max(y, axes=(0,))),
                   ((4, 3), (4, 3))),
    "unary": (lambda g, x, y: g.add(g.pow(g.abs(x), 3.0), g.sqrt(g.add(g.mul(y, y), 1.0))),
              ((5,), (5,))),
    "one of two": (lambda g, x, y: g.sin(g.cos(x)), ((5,), (5,))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str) -> None:
    """Central differences in f64."""
    make, shapes = FUNCTIONS[name]
    g, rng = GraphBuilder(), np.random.default_rng(4)
    xs = [graph_input(f"x{i}", TensorType("f64", s)) for i, s in enumerate(shapes)]
    y = make(g, *xs)
    values = [rng.uniform(0.2, 1.5, s) * rng.choice([-1, 1], s) for s in shapes]

    def total(arrays: list[Array]) -> float:
        return float(evaluate(y, dict(zip(xs, arrays))).sum())
    for i, found in enumerate(gradients(g, y, xs)):
        got = evaluate(found, dict(zip(xs, values)))
        want = np.zeros(shapes[i])
        for at in np.ndindex(*shapes[i]):
            step = np.zeros(shapes[i])
            step[at] = 1e-6
            sides = [total([v + s * step if k == i else v for k, v in enumerate(values)])
                     for s in (1, -1)]
            want[at] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def model(op: str, wrt: str = "y", **attrs: Any) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node(op, ["x"], ["y"], **attrs),
             helper.make_node("Gradient", ["x"], ["d"], domain="ai.onnx.preview.training", name="g",
                              xs=["x"], y=wrt)]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, [2, 3])],
                              [info("d", TensorProto.FLOAT, [2, 3])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_node() -> None:
    x = np.random.default_rng(4).normal(size=(2, 3)).astype(np.float32)
    graph = import_model(load(model("Exp")), {"x": x.shape})
    memo = {graph.inputs[0]: x}
    np.testing.assert_allclose(evaluate(graph.outputs[0][1], memo), np.exp(x), rtol=1e-6)


@pytest.mark.parametrize(("proto", "error", "text"), [
    (model("Erf"), UnsupportedError, "differentiates through 'erf'"),
    (model("Exp", "z"), ModelError, "'g' (Gradient): differentiates 'z', which no node before it"),
])
def test_refused(proto: onnx.ModelProto, error: type[JitclError], text: str) -> None:
    with pytest.raises(error) as caught:
        import_model(load(proto), {"x": (2, 3)})
    assert text in str(caught.value)


@pytest.mark.parametrize("place", [0, 1])
def test_behind_what_is_not_supported(place: int) -> None:
    """Gradient waits for its operand, or for what it differentiates; only Odd is at fault."""
    proto = model("Exp")
    nodes = proto.graph.node
    if place:
        nodes[0].op_type, nodes[0].domain = "Odd", "somewhere"
    else:
        nodes.insert(0, helper.make_node("Odd", ["x"], ["odd"], domain="somewhere"))
        nodes[1].input[0] = nodes[2].input[0] = "odd"
        del nodes[2].attribute[:]
        nodes[2].attribute.extend([helper.make_attribute("xs", ["odd"]),
                                   helper.make_attribute("y", "y")])
    proto.opset_import.append(helper.make_opsetid("somewhere", 1))
    with pytest.raises(UnsupportedError, match="1 node is not supported\n  Odd"):
        import_model(load(proto), {"x": (2, 3)})
