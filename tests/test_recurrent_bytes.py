"""LSTMs whose weights are bytes: on CPUs that add products of bytes by fours, what they are
multiplied with is two bytes each; results are those of the floats that the bytes stand for.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, reference
from tests import devices
from tests.generated.kernels import plan_for
from tests.test_trials import opened

G = GraphBuilder()
DEVICES = devices.present()


@pytest.mark.parametrize(("batch", "hidden"), [(1, 64), (3, 37), (13, 130), (2, 5)])
def test_bytes_are_multiplied_with_bytes(batch: int, hidden: int) -> None:
    """Weights of 8 bits with states rounded to 16: of sequences whose states are large, tiny, 0
    and NaN, each on its own."""
    rng = np.random.default_rng(hidden)
    r = const(rng.integers(-128, 128, (2, 4 * hidden, hidden)).astype(np.int8))
    xw = graph_input("xw", TensorType("f32", (3, batch, 2, 4 * hidden)))
    h, c = (graph_input(n, TensorType("f32", (2, batch, hidden))) for n in "hc")
    scales = const(rng.uniform(0.0005, 0.001, (2, 4 * hidden)).astype(np.float32))
    activations = ((("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0)),) * 2
    node = G.lstm_states(xw, r, h, c, scales, direction="bidirectional", activations=activations,
                         scaled=True)
    graph = Graph("lstm", (xw, h, c), (("y", node),))
    target = opened("cpu").target
    (kernel,) = plan_for(graph, target).kernels
    assert kernel.template == "recurrent_cpu"
    wide = hidden > target.vector_width // 2                   # else vectors are shorter
    assert ("_bytes_" in kernel.entry) == bool(target.byte_dot and wide)
    feeds = {n: rng.standard_normal(i.type.dims).astype(np.float32)
             for n, i in (("xw", xw), ("h", h), ("c", c))}
    for b, size in enumerate((1, 1e-3, 30, 0, np.nan, 1e-36)[:batch]):
        feeds["h"][:, b] *= np.float32(size)
    got = devices.run_graph("cpu", graph, feeds)["y"]
    want = reference(node, feeds["xw"], r.data, feeds["h"], feeds["c"], scales.data)
    step = np.abs(r.data * scales.data[..., None]).sum(2).max() / 65534     # half a state's bits
    for b in range(batch):
        largest = np.nan_to_num(np.abs(feeds["h"][:, b]), nan=0).max()
        np.testing.assert_allclose(got[:, b], want[:, b], rtol=0, atol=step * max(1, largest))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_an_lstm_of_bytes_is_that_of_the_floats_they_stand_for(kind: type) -> None:
    """Rows of the input that are large, tiny, 0 and NaN among others; every device."""
    rng = np.random.default_rng(0)
    steps, batch, size, hidden, middle = 6, 2, 70, 48, 128 if kind is np.uint8 else 0
    w, r = ((rng.integers(-127, 128, (2, n, 4 * hidden)) + middle).astype(kind)
            for n in (size, hidden))
    scales = rng.uniform(0.0005, 0.001, (2, 4 * hidden)).astype(np.float32)
    bias = rng.uniform(-0.1, 0.1, (2, 8 * hidden)).astype(np.float32)
    x = rng.standard_normal((steps, batch, size)).astype(np.float32)
    x[:, 0] *= np.array([3, 1, 0, 1e-3, 1e-36, 1], np.float32)[:, None]
    x[4, 1, 7] = np.nan
    zeros = np.full(scales.shape, middle, kind)
    more = {"w": w, "r": r, "b": bias, "ws": scales, "wz": zeros, "rz": zeros}
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "ws", "rz"], ["y"],
        domain="com.microsoft", hidden_size=hidden, direction="bidirectional")
    model = helper.make_model(helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in more.items()]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9)

    def turned(v: np.ndarray) -> np.ndarray:
        real = (v.astype(np.float32) - middle) * scales[:, None, :]
        return np.ascontiguousarray(real.transpose(0, 2, 1))
    floats = one_layer("LSTM", x, turned(w), turned(r), bias, hidden)
    want = jitcl.compile(floats, device="reference").run({"x": x})["y"]
    assert np.isnan(want[:, :, 1]).any() and not np.isnan(want[:, :, 0]).any()
    for device in DEVICES:
        got = jitcl.compile(model, device=device).run({"x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-5 if device == "cpu" else 1e-5)


def one_layer(op: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray,
              hidden: int) -> onnx.ModelProto:
    """A bidirectional layer over x."""
    node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden,
                            direction="bidirectional")
    return helper.make_model(helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in (("w", w), ("r", r), ("b", bias))]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
