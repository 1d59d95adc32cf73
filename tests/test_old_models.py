"""Models of opsets 1 to 8, and ops that ONNX dropped: against NumPy, and against onnxruntime where
it still knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jitcl
from jitcl.errors import JitclError, ShapeError, UnsupportedError
from jitcl.frontends.onnx import import_model, load
from jitcl.ops.builder import evaluate
from tests.programs import by_onnxruntime

Array = np.ndarray[Any, Any]


def f32(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Array:
    """Numbers that depend on the arguments alone: another row of the table changes none."""
    return np.random.default_rng((seed, *shape)).uniform(low, high, shape).astype(np.float32)


def old_model(op: str, opset: int, args: list[Array], fed: int = 1, outputs: int = 1,
              **attrs: Any) -> onnx.ModelProto:
    """One node; the first `fed` operands are inputs, the others stored. As IR version 3 has it, all
    are inputs."""
    node = helper.make_node(op, [f"x{i}" for i in range(len(args))],
                            [f"y{i}" for i in range(outputs)], name="node", **attrs)
    infos = [helper.make_tensor_value_info(
        f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for i, a in enumerate(args)]
    stored = [numpy_helper.from_array(a, f"x{i}") for i, a in enumerate(args) if i >= fed]
    made = [helper.make_empty_tensor_value_info("y0")]
    graph = helper.make_graph([node], "old", infos, made, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def by_references(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    loaded = load(model)
    graph = import_model(loaded, {n: a.shape for n, a in feeds.items()})
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    return evaluate(graph.outputs[0][1], memo)


X, ROW, PLANES = f32(2, 3, 4, 5), f32(5), f32(3, 4)
CHANNELS = [f32(3, low=low, seed=k) for k, low in enumerate((-1, -1, -1, 0.5))]
ELEMENTS = [f32(3, 4, 5, low=low, seed=k) for k, low in enumerate((-1, -1, -1, 0.5))]


def normal(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    at = (-1, 1, 1) if scale.ndim == 1 else scale.shape
    scale, bias, mean, var = (v.reshape(at) for v in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + np.float32(1e-5)) * scale + bias


Row = tuple[str, int, list[Array], dict[str, Any], Callable[..., Any]]
OLD: dict[str, Row] = {
    "add_same": ("Add", 1, [X, f32(*X.shape, seed=1)], {"consumed_inputs": [0, 0]}, np.add),
    "add_last": ("Add", 6, [X, ROW], {"broadcast": 1}, np.add),
    "sub_axis": ("Sub", 6, [X, PLANES], {"broadcast": 1, "axis": 1},
                 lambda x, y: x - y[:, :, None]),
    "mul_channel": ("Mul", 1, [X, CHANNELS[0]], {"broadcast": 1, "axis": 1},
                    lambda x, y: x * y[:, None, None]),
    "mul_negative_axis": ("Mul", 6, [X, PLANES], {"broadcast": 1, "axis": -3},
                          lambda x, y: x * y[:, :, None]),
    "div_scalar": ("Div", 6, [X, np.float32([2.0])], {"broadcast": 1}, np.divide),
    "pow_scalar": ("Pow", 1, [np.abs(X), np.float32(2)], {"broadcast": 1}, np.power),
    "less_axis": ("Less", 1, [X, f32(2)], {"broadcast": 1, "axis": 0},
                  lambda x, y: x < y[:, None, None, None]),
    "and_row": ("And", 1, [X > 0, ROW > 0], {"broadcast": 1}, np.logical_and),
    "equal": ("Equal", 1, [np.int32([[1, 2], [3, 4]]), np.int32([1, 4])], {"broadcast": 1},
              np.equal),
    "relu": ("Relu", 1, [X], {"consumed_inputs": [0]}, lambda x: np.maximum(x, 0)),
    "clip": ("Clip", 1, [X], {"min": -0.5, "max": 0.25, "consumed_inputs": [0]},
             lambda x: np.clip(x, -0.5, 0.25)),
    "clip_one_side": ("Clip", 6, [X], {"max": 0.25}, lambda x: np.minimum(x, 0.25)),
    "cast_name": ("Cast", 1, [X * 9], {"to": "INT32"}, lambda x: x.astype(np.int32)),
    "cast_number": ("Cast", 6, [X * 9], {"to": 6}, lambda x: x.astype(np.int32)),
    "concat_default": ("Concat", 1, [X, X], {}, lambda x, y: np.concatenate([x, y], axis=1)),
    "reshape": ("Reshape", 1, [X], {"shape": [0, -1, 5]}, lambda x: x.reshape(2, 12, 5)),
    "reshape_5": ("Reshape", 5, [X, np.int64([2, -1])], {}, lambda x, s: x.reshape(2, 60)),
    "tile": ("Tile", 1, [X, np.int64([3]), np.int64([2])], {},
             lambda x, n, a: np.tile(x, (1, 1, 3, 1))),
    "tile_6": ("Tile", 6, [X, np.int64([1, 2, 1, 3])], {}, lambda x, n: np.tile(x, (1, 2, 1, 3))),
    "pad": ("Pad", 1, [X], {"paddings": [0, 0, 1, 2, 0, 0, 3, 4], "value": 0.5},
            lambda x: np.pad(x, [(0, 0), (0, 0), (1, 3), (2, 4)], constant_values=0.5)),
    "pad_2": ("Pad", 2, [X], {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "reflect"},
              lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")),
    "slice": ("Slice", 1, [X], {"starts": [1, -3], "ends": [3, 99], "axes": [1, 3]},
              lambda x: x[:, 1:3, :, -3:]),
    "split": ("Split", 2, [X], {"axis": 3, "split": [2, 3]}, lambda x: x[..., :2]),
    "squeeze": ("Squeeze", 1, [f32(1, 3, 1)], {"axes": [0, 2]}, lambda x: x.reshape(3)),
    "top_k": ("TopK", 1, [X], {"k": 2, "axis": 3}, lambda x: np.sort(x, axis=3)[..., :-3:-1]),
    "dropout": ("Dropout", 1, [X], {"is_test": 1, "ratio": 0.3, "consumed_inputs": [0]},
                lambda x: x),
    "batch_norm": ("BatchNormalization", 1, [X, *CHANNELS],
                   {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1], "epsilon": 1e-5}, normal),
    "batch_norm_6": ("BatchNormalization", 6, [X, *CHANNELS],
                     {"is_test": 1, "spatial": 1, "momentum": 0.5}, normal),
    "batch_norm_elements": ("BatchNormalization", 8, [X, *ELEMENTS], {"spatial": 0}, normal),
    "instance_norm": ("InstanceNormalization", 1, [X, *CHANNELS[:2]], {"consumed_inputs": [0]},
                      lambda x, s, b: _instance(x, s, b)),
    "gemm": ("Gemm", 1, [f32(3, 4), f32(4, 5), ROW], {"broadcast": 1, "alpha": 0.5, "beta": 2.0},
             lambda a, b, c: 0.5 * (a @ b) + 2 * c),
    "lp_pool": ("LpPool", 1, [X], {"kernel_shape": [2, 2], "p": 2.0}, lambda x: np.sqrt(sum(
        x[:, :, i:i + 3, j:j + 4] ** 2 for i in (0, 1) for j in (0, 1)))),
    "global_lp_pool": ("GlobalLpPool", 1, [X], {"p": 2.0},
                       lambda x: np.sqrt((x ** 2).sum(axis=(2, 3), keepdims=True))),
    "max_pool": ("MaxPool", 1, [X], {"kernel_shape": [4, 5]},
                 lambda x: x.max(axis=(2, 3), keepdims=True)),
    "average_pool": ("AveragePool", 1, [X], {"kernel_shape": [4, 5]},
                     lambda x: x.mean(axis=(2, 3), keepdims=True)),
    "prelu_channels": ("PRelu", 6, [X, CHANNELS[0]], {},
                       lambda x, s: np.where(x < 0, x * s[:, None, None], x)),
    "prelu_one": ("PRelu", 1, [X, np.float32([0.3])], {"consumed_inputs": [0, 0]},
                  lambda x, s: np.where(x < 0, x * s, x)),
    "softmax": ("Softmax", 1, [f32(2, 3, 2)], {},
                lambda x: (e := np.exp(x)) / e.sum(axis=(1, 2), keepdims=True)),
    "hardmax": ("Hardmax", 1, [f32(4, 5)], {},
                lambda x: (x == x.max(axis=1, keepdims=True)).astype(np.float32)),
    "upsample": ("Upsample", 1, [X], {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"},
                 lambda x: x.repeat(2, axis=2).repeat(3, axis=3)),
    "upsample_7": ("Upsample", 7, [X], {"scales": [1.0, 1.0, 2.0, 2.0]},
                   lambda x: x.repeat(2, axis=2).repeat(2, axis=3)),
    "upsample_9": ("Upsample", 9, [X, np.float32([1, 1, 2, 2])], {},
                   lambda x, s: x.repeat(2, axis=2).repeat(2, axis=3)),
    "max": ("Max", 1, [X, X * 2], {"consumed_inputs": [0, 0]}, np.maximum),
    "sum": ("Sum", 6, [X, X, X], {}, lambda x, y, z: 3 * x),
    "elu": ("Elu", 1, [X], {"alpha": 2.0, "consumed_inputs": [0]},
            lambda x: np.where(x < 0, 2 * np.expm1(x), x)),
    "selu": ("Selu", 1, [X], {"alpha": 2.0, "gamma": 3.0},
             lambda x: 3 * np.where(x < 0, 2 * np.expm1(x), x)),
    "hard_sigmoid": ("HardSigmoid", 1, [X], {"alpha": 0.5, "beta": 0.4},
                     lambda x: np.clip(0.5 * x + 0.4, 0, 1)),
    "thresholded_relu": ("ThresholdedRelu", 1, [X], {"alpha": 0.2},
                         lambda x: np.where(x > 0.2, x, 0)),
    "constant_fill": ("ConstantFill", 1, [np.int64([2, 3])],
                      {"input_as_shape": 1, "value": 0.5, "extra_shape": [4]},
                      lambda s: np.full((2, 3, 4), 0.5, np.float32)),
    "constant_fill_like": ("ConstantFill", 1, [X], {"value": 2.0},
                           lambda x: np.full(x.shape, 2, np.float32)),
    "scatter": ("Scatter", 9, [f32(3, 3), np.int64([[0, 2, 1]]), np.float32([[7, 8, 9]])], {},
                lambda x, i, u: _scattered(x, i, u)),
}


def _instance(x: Array, scale: Array, bias: Array) -> Array:
    mean, var = x.mean(axis=(2, 3), keepdims=True), x.var(axis=(2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * scale[:, None, None] + bias[:, None, None]


def _scattered(x: Array, indices: Array, updates: Array) -> Array:
    y = x.copy()
    np.put_along_axis(y, indices, updates, axis=0)
    return y


STATIC = ("Reshape", "Tile", "ConstantFill", "Upsample", "Scatter")   # operands that are stored


def old_case(name: str) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    op, opset, args, attrs, function = OLD[name]
    fed = 0 if op == "ConstantFill" else 1 if op in STATIC else len(args)
    outputs = 2 if op in ("TopK", "Split") else 1
    model = old_model(op, opset, args, fed, outputs, **attrs)
    return model, {f"x{i}": a for i, a in enumerate(args[:fed])}, np.asarray(function(*args))


@pytest.mark.parametrize("name", OLD)
def test_old_form(name: str) -> None:
    model, feeds, want = old_case(name)
    got = by_references(model, feeds)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["add_last", "mul_channel", "reshape", "batch_norm_elements",
                                  "upsample", "cast_name", "tile"])
def test_compiled(name: str) -> None:
    model, feeds, want = old_case(name)
    got = jitcl.compile(model, device="cpu").run(feeds)["y0"]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


# ---- ops that onnxruntime still knows

DROPPED: dict[str, tuple[str, int, list[Array], dict[str, Any]]] = {
    "affine": ("Affine", 8, [X], {"alpha": 2.0, "beta": -0.5}),
    "scale": ("Scale", 8, [X], {"scale": 3.0}),
    "scaled_tanh": ("ScaledTanh", 8, [X], {"alpha": 2.0, "beta": 0.5}),
    "parametric_softplus": ("ParametricSoftplus", 8, [X], {"alpha": 2.0, "beta": 0.5}),
    "image_scaler": ("ImageScaler", 8, [X], {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
    "crop": ("Crop", 8, [X], {"border": [1, 0, 2, 1]}),
    "crop_scale": ("Crop", 8, [X], {"border": [1, 1, 0, 0], "scale": [2, 3]}),
    "mvn": ("MeanVarianceNormalization", 8, [X], {"across_channels": 0, "normalize_variance": 1}),
    "mvn_across": ("MeanVarianceNormalization", 8, [X],
                   {"across_channels": 1, "normalize_variance": 1}),
    "mvn_mean": ("MeanVarianceNormalization", 8, [X],
                 {"across_channels": 1, "normalize_variance": 0}),
    "thresholded_relu": ("ThresholdedRelu", 8, [X], {"alpha": 0.2}),
    "upsample": ("Upsample", 7, [X], {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "nearest"}),
    "upsample_linear": ("Upsample", 8, [X], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "linear"}),
    "batch_norm": ("BatchNormalization", 7, [X, *CHANNELS], {"spatial": 1}),
    "batch_norm_elements": ("BatchNormalization", 7, [X, *ELEMENTS], {"spatial": 0}),
    "dynamic_slice": ("DynamicSlice", 8,
                      [X, np.int64([1, -2]), np.int64([3, 99]), np.int64([1, 3])], {}),
}


@pytest.mark.parametrize("name", DROPPED)
def test_as_onnxruntime_has_it(name: str) -> None:
    op, opset, args, attrs = DROPPED[name]
    model = old_model(op, opset, args, **attrs)
    want = by_onnxruntime(model, {"x0": args[0]})[0]
    got = by_references(model, {"x0": args[0]})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ---- what is refused

REFUSED: dict[str, tuple[str, int, list[Array], dict[str, Any], type[JitclError], str]] = {
    "no broadcast": ("Add", 6, [X, ROW], {}, ShapeError, "has no attribute broadcast=1 (opset 6)"),
    "bad axis": ("Add", 6, [X, PLANES], {"broadcast": 1, "axis": 3}, ShapeError,
                 "f32[3,4] does not fit f32[2,3,4,5] from axis 3 on"),
    "aten": ("ATen", 9, [X], {"operator": "embedding_bag"}, UnsupportedError,
             "is a call into PyTorch that its exporter could not translate"),
    "gru unit": ("GRUUnit", 6, [X, X], {}, UnsupportedError, "export the layer as GRU"),
    "crop": ("Crop", 8, [X], {"border": [3, 3, 3, 3]}, ShapeError, "do not lie in f32[2,3,4,5]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    op, opset, args, attrs, error, text = REFUSED[name]
    model = old_model(op, opset, args, len(args), **attrs)
    with pytest.raises(error) as caught:
        import_model(load(model), {f"x{i}": a.shape for i, a in enumerate(args)})
    assert text in str(caught.value)
