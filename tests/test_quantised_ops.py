"""ONNX's and com.microsoft's quantised ops: every integer as the formulas say, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl.errors import JitclError, ModelError, ShapeError, TypeError_
from jitcl.frontends.onnx import import_model, load
from tests.drawn import rng
from tests.test_quantise import DEVICES, model

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.in_turn
DTYPES = (np.uint8, np.int8)


def integers(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng().integers(info.min, info.max + 1, shape).astype(dtype)


def number(x: Array, scale: Any, zero: Any) -> Array:
    return (x.astype(np.float32) - np.float32(zero)) * np.float32(scale)


def saturated(x: Array, zero: Any, dtype: Any) -> Array:
    """Half to even, moved by the zero point, within the type's range."""
    info = np.iinfo(dtype)
    return np.clip(np.rint(x) + np.float32(zero), info.min, info.max).astype(dtype)


def quantised(x: Array, scale: Any, zero: Any, dtype: Any) -> Array:
    return saturated(x.astype(np.float32) / np.float32(scale), zero, dtype)


def ran(proto: onnx.ModelProto, device: str, **feeds: Array) -> Array:
    """The first output; what was computed came from kernels."""
    compiled = jitcl.compile(proto, device=device)
    found = next(iter(compiled.run(feeds).values()))
    assert compiled.plan is not None and compiled.plan.steps
    return found


def elem(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def one_op(op: str, inputs: list[str], feeds: dict[str, Array], constants: dict[str, Any],
           dtype: Any, domain: str = "", **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(op, inputs, ["y"], domain=domain, **attrs)
    return model([node], feeds, {"y": elem(dtype)},
                 {k: np.asarray(v) for k, v in constants.items()})


# -- sums of products ----------------------------------------------------------------------------


def conv_sum(x: Array, w: Array, stride: int) -> Array:
    """3x3 windows of x, padded by one zero around, times w: exact."""
    n, _, h, width = x.shape
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    out = np.zeros((n, w.shape[0], -(-h // stride), -(-width // stride)), np.int32)
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            window = padded[:, :, i * stride:i * stride + 3, j * stride:j * stride + 3]
            out[:, :, i, j] = np.einsum("nchw,mchw->nm", window, w)
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_qlinear_conv(device: str, dtype: Any) -> None:
    """A scale an output channel, a zero point each, a bias in i32."""
    x, w = integers(dtype, 2, 3, 8, 7), integers(dtype, 6, 3, 3, 3)
    xs, ys, xz, yz = np.float32(0.02), np.float32(0.5), dtype(7), dtype(3)
    ws, wz = rng().uniform(0.01, 0.02, 6).astype(np.float32), integers(dtype, 6)
    bias = rng().integers(-3000, 3000, 6).astype(np.int32)
    proto = one_op(
        "QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], {"x": x},
        {"xs": xs, "xz": xz, "w": w, "ws": ws, "wz": wz, "ys": ys, "yz": yz, "b": bias}, dtype,
        pads=[1, 1, 1, 1], strides=[2, 2])
    each = (6, 1, 1, 1)
    total = conv_sum(x.astype(np.int32) - int(xz), w.astype(np.int32) - wz.reshape(each), 2)
    total += bias.reshape(1, 6, 1, 1)
    want = saturated(total.astype(np.float32) * (xs * ws / ys).reshape(1, 6, 1, 1), yz, dtype)
    np.testing.assert_array_equal(ran(proto, device, x=x), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_qlinear_matmul(device: str, dtype: Any) -> None:
    """A scale and zero point for each row of a and each column of b."""
    a, b = integers(dtype, 4, 20), integers(dtype, 20, 6)
    scales = [rng().uniform(0.01, 0.02, n).astype(np.float32) for n in (4, 6)]
    zeros = [integers(dtype, n) for n in (4, 6)]
    ys, yz = np.float32(0.1), dtype(5)
    proto = one_op(
        "QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], {"a": a},
        {"as": scales[0], "az": zeros[0], "b": b, "bs": scales[1], "bz": zeros[1], "ys": ys,
         "yz": yz}, dtype)
    total = (a.astype(np.int32) - zeros[0][:, None]) @ (b.astype(np.int32) - zeros[1])
    want = saturated(total.astype(np.float32) * (scales[0][:, None] * scales[1] / ys), yz, dtype)
    np.testing.assert_array_equal(ran(proto, device, a=a), want)


@pytest.mark.parametrize("device", DEVICES)
def test_matmul_integer_of_vectors_and_batches(device: str) -> None:
    a, b = integers(np.uint8, 20), integers(np.int8, 2, 20, 6)
    zero = np.int8(-3)
    proto = model([helper.make_node("MatMulInteger", ["a", "b", "", "z"], ["y"])],
                  {"a": a, "b": b}, {"y": TensorProto.INT32}, {"z": np.asarray(zero)})
    want = a.astype(np.int32) @ (b.astype(np.int32) - zero)
    np.testing.assert_array_equal(ran(proto, device, a=a, b=b), want)


# -- between integers and numbers ------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_linear_along_an_axis(device: str, dtype: Any) -> None:
    top = float(np.iinfo(dtype).max)
    x = np.concatenate([rng().normal(size=(3, 40)) * top, np.array([[0.25, -0.25, 0.75] * 5] * 3)],
                       axis=1).astype(np.float32)
    scale, zero = np.array([0.5, 0.25, 2], np.float32), integers(dtype, 3)
    proto = one_op("QuantizeLinear", ["x", "s", "z"], {"x": x}, {"s": scale, "z": zero}, dtype,
                   axis=0)
    want = quantised(x, scale[:, None], zero[:, None], dtype)
    np.testing.assert_array_equal(ran(proto, device, x=x), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [4, 5])
def test_dequantize_linear_in_blocks(device: str, block: int) -> None:
    """Also where the last block is short."""
    x = integers(np.int8, 3, 12, 2)
    shape = (3, -(-12 // block), 2)
    scale, zero = rng().uniform(0.1, 1, shape).astype(np.float32), integers(np.int8, *shape)
    proto = one_op("DequantizeLinear", ["x", "s", "z"], {"x": x}, {"s": scale, "z": zero},
                   np.float32, axis=1, block_size=block)
    full = [np.repeat(v, block, axis=1)[:, :12] for v in (scale, zero)]
    np.testing.assert_allclose(ran(proto, device, x=x), number(x, *full), rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_dynamic_quantize_linear(device: str) -> None:
    x = rng().normal(size=(3, 40)).astype(np.float32)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    proto = model([node], {"x": x}, {"y": TensorProto.UINT8, "s": TensorProto.FLOAT,
                                     "z": TensorProto.UINT8}, {})
    got = jitcl.compile(proto, device=device).run({"x": x})
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = np.rint(-low / scale)
    np.testing.assert_allclose(got["s"], scale, rtol=1e-6)
    assert got["z"] == zero
    np.testing.assert_array_equal(got["y"], quantised(x, scale, zero, np.uint8))


# -- com.microsoft ---------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def averages(x: Array) -> Array:
    """2x2 windows."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5), dtype=np.float32)


UNARY: dict[str, tuple[Callable[[Array], Array], dict[str, Any], float]] = {
    "QLinearSigmoid": (sigmoid, {}, 1 / 256),
    "QLinearLeakyRelu": (lambda x: np.where(x < 0, x * np.float32(0.1), x), {"alpha": 0.1}, 0.043),
    "QLinearAveragePool": (averages, {"kernel_shape": [2, 2], "strides": [2, 2]}, 0.043),
    # no whole ratio to the scale of x: every sixteenth mean would lie at a half
    "QLinearGlobalAveragePool": (lambda x: x.mean(axis=(2, 3), keepdims=True), {}, 0.0103),
}


def nearly_equal(got: Array, want: Array) -> None:
    """Equal but where a quotient lies so near a half that the last digit of an exp decides."""
    off = np.abs(got.astype(np.int32) - want.astype(np.int32))
    assert off.max() <= 1 and (off > 0).mean() < 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", UNARY)
def test_qlinear_unary(device: str, dtype: Any, op: str) -> None:
    function, attrs, ys = UNARY[op]
    x = integers(dtype, 2, 3, 8, 8)
    zero = np.iinfo(dtype).min if op == "QLinearSigmoid" else 0
    constants = {"xs": np.float32(0.02), "xz": dtype(7), "ys": np.float32(ys), "yz": dtype(zero)}
    proto = one_op(op, ["x", "xs", "xz", "ys", "yz"], {"x": x}, constants, dtype, "com.microsoft",
                   **attrs)
    want = quantised(function(number(x, 0.02, 7)), ys, zero, dtype)
    assert len(np.unique(want)) > 4                  # not all at the ends of the type's range
    nearly_equal(ran(proto, device, x=x), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "function"), [("QLinearAdd", np.add), ("QLinearMul", np.multiply)])
def test_qlinear_binary(device: str, op: str, function: Callable[..., Array]) -> None:
    a, b = integers(np.uint8, 2, 30), integers(np.uint8, 30)
    constants = {"as": np.float32(0.02), "az": np.uint8(7), "bs": np.float32(0.03),
                 "bz": np.uint8(9), "ys": np.float32(0.05), "yz": np.uint8(3)}
    proto = one_op(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], {"a": a, "b": b}, constants,
                   np.uint8, "com.microsoft")
    want = quantised(function(number(a, 0.02, 7), number(b, 0.03, 9)), 0.05, 3, np.uint8)
    nearly_equal(ran(proto, device, a=a, b=b), want)


@pytest.mark.parametrize("device", DEVICES)
def test_qlinear_concat(device: str) -> None:
    """The second operand has the result's scale and passes unchanged."""
    a, b = integers(np.uint8, 2, 5), integers(np.uint8, 2, 7)
    constants = {"ys": np.float32(0.05), "yz": np.uint8(3), "as": np.float32(0.02),
                 "az": np.uint8(9)}
    proto = one_op("QLinearConcat", ["ys", "yz", "a", "as", "az", "b", "ys", "yz"],
                   {"a": a, "b": b}, constants, np.uint8, "com.microsoft", axis=1)
    want = np.concatenate([quantised(number(a, 0.02, 9), 0.05, 3, np.uint8), b], axis=1)
    nearly_equal(ran(proto, device, a=a, b=b), want)


# -- what is refused -------------------------------------------------------------------------------


A = np.zeros((2, 3), np.uint8)
ONE, ZERO = np.float32(1), np.uint8(0)


@pytest.mark.parametrize(("proto", "error", "text"), [
    (one_op("QLinearConcat", ["ys", "yz", "a", "as"], {"a": A},
            {"ys": ONE, "yz": ZERO, "as": ONE}, np.uint8, "com.microsoft", axis=0),
     ModelError, "QLinearConcat takes 2 + 3n inputs, got 4"),
    (one_op("QLinearMatMul", ["a", "as", "az", "a", "as", "az", "ys", "az"], {"a": A},
            {"as": ONE, "az": ZERO, "ys": np.ones(2, np.float32)}, np.uint8),
     ShapeError, "'a' i32[2,3] has 3 columns, but 'b' i32[2,3] has 2 rows"),
    (one_op("DequantizeLinear", ["a", "s", "z"], {"a": A},
            {"s": ONE, "z": np.int8(0)}, np.float32),
     TypeError_, "x is u8[2,3], but its zero point i8[]: they must be alike"),
    (one_op("DequantizeLinear", ["a", "s"], {"a": A},
            {"s": np.ones((2, 2), np.float32)}, np.float32, axis=1, block_size=3),
     ShapeError, "blocks of 3 along axis 1 of u8[2,3] want scales and zero points [2, 1], "
                 "got f32[2,2]"),
])
def test_what_rules_say(proto: onnx.ModelProto, error: type[JitclError], text: str) -> None:
    with pytest.raises(error) as caught:
        import_model(load(proto), {"a": A.shape})
    assert text in str(caught.value)


