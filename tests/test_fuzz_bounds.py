"""What the fuzzer calls right and wrong: rounded sums are right in any order, and mistakes are not;
what no device can know is not judged.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import helper

from tests.fuzz import oracle
from tests.fuzz.corrected import evaluate
from tests.fuzz.drawing import OPSET, Case
from tests.fuzz.engines import types_of

F4 = np.float32


def wanted(text: str, **feeds: np.ndarray) -> oracle.Wanted:
    """Of the output y."""
    head = f'<ir_version: 10, opset_import: ["" : {OPSET}]>\nbounds '
    case = Case(onnx.parser.parse_model(head + text), feeds)
    return oracle.wanted(case.model, case.feeds, types_of(case))["y"]


def wrong(got: np.ndarray, want: oracle.Wanted) -> str:
    return oracle.difference(np.asarray(got, F4), want, np.dtype(F4))


def drawn(*shape: int, low: float = 0.5) -> np.ndarray:
    return np.random.default_rng(7).uniform(low, 3, shape).astype(F4)


def one_by_one(x: np.ndarray) -> np.ndarray:
    """Sums of the last axis in float32, as a loop has them."""
    return np.add.accumulate(x, axis=-1, dtype=F4)[..., -1]


def normal(x: np.ndarray, count: int) -> np.ndarray:
    mean = one_by_one(x)[..., None] / F4(count)
    square = one_by_one((x - mean) ** 2)[..., None] / F4(count)
    return (x - mean) / np.sqrt(square + F4(1e-5))


def test_sums_of_any_order() -> None:
    x = np.repeat(drawn(7), 200)            # equal terms are all rounded to the same side
    want = wanted("(float[n] x) => (float y) { y = ReduceSum<keepdims: int = 0>(x) }", x=x)
    assert abs(one_by_one(x) - want.value) > 3e-7 * want.value
    assert not wrong(one_by_one(x), want)
    assert not wrong(one_by_one(x.reshape(-1, 7)).sum(), want)
    assert wrong(one_by_one(x[:-1]), want)
    assert wrong(one_by_one(np.append(x, F4(3))), want)


def test_prefixes_that_cancel() -> None:
    x = np.concatenate([1000 * drawn(40), -1000 * drawn(40)])
    want = wanted("(float[n] x) => (float[n] y) <int64 axis = {0}> { y = CumSum(x, axis) }", x=x)
    sums = np.add.accumulate(x, dtype=F4)
    assert not wrong(sums, want)
    assert wrong(np.roll(sums, 1), want)


@pytest.mark.parametrize("size", [2, 17, 300, 2000])
def test_normalisations_of_any_order(size: int) -> None:
    """The bias cancels: what is off in the product is not in proportion to the result."""
    x = drawn(4, size)
    want = wanted("(float[4,n] x, float[n] s, float[n] b) => (float[4,n] y) "
                  "{ y = LayerNormalization(x, s, b) }",
                  x=x, s=np.full(size, 2, F4), b=np.linspace(-3, 3, size, dtype=F4))
    bias = np.linspace(-3, 3, size, dtype=F4)
    assert not wrong(normal(x, size) * 2 + bias, want)
    assert wrong(normal(x, size + 1) * 2 + bias, want)          # a mean of one too many
    padded = np.concatenate([x, np.zeros((4, 1), F4)], 1)       # and of a padding element
    assert wrong(normal(padded, size + 1)[:, :-1] * 2 + bias, want)


def test_products_that_overflow_in_some_order() -> None:
    product = "(float[n] x) => (float y) { y = ReduceProd<keepdims: int = 0>(x) }"
    both = np.float32([1e30, 1e30, 1e-30, 1e-30])
    for got in (1.0, np.inf, np.nan, 0.0):
        assert not wrong(got, wanted(product, x=both))
    assert wrong(np.nan, wanted(product, x=both[1:3]))
    assert wrong(2.0, wanted(product, x=drawn(60) / 2))


@pytest.mark.parametrize("op", ["Tan", "Sin", "Cos"])
def test_phases_that_errors_turn(op: str) -> None:
    text = f"(float[n] x) => (float y) {{ p = ReduceSum<keepdims: int = 0>(x) y = {op}(p) }}"
    turned = wanted(text, x=1e5 * drawn(300))
    assert not wrong(-0.9, turned) and not wrong(0.9, turned)
    assert wrong(0.9, wanted(text, x=drawn(3))) or wrong(-0.9, wanted(text, x=drawn(3)))


def test_remainders_of_an_unknown_quotient() -> None:
    text = "(float x, float b) => (float y) { q = Sqrt(b) y = Mod<fmod: int = 1>(x, q) }"
    far = wanted(text, x=np.float32(985), b=np.float32(1e-20))
    assert not wrong(0, far) and not wrong(9e-11, far)
    assert wrong(9, wanted(text, x=np.float32(985), b=np.float32(100)))


def test_what_is_too_small_may_be_zero() -> None:
    x = np.linspace(-88.5, -87.5, 3000, dtype=F4)       # sigmoid(x) is no normal float32
    assert not wrong(np.zeros(3000), wanted("(float[n] x) => (float[n] y) { y = Swish(x) }", x=x))
    sign = wanted("(float[n] x) => (float[n] y) { s = Sigmoid(x) y = Sign(s) }", x=x)
    assert not wrong(np.zeros(3000), sign) and not wrong(np.ones(3000), sign)
    assert wrong(-np.ones(3000), sign)
    near = wanted("(float[n] x) => (float[n] y) { y = Swish(x) }", x=x + 10)
    assert wrong(np.zeros(3000), near)


def test_quotients_of_what_may_be_zero() -> None:
    text = ("(float x, float[n] a) => (float y) "
            "{ s = ReduceSum<keepdims: int = 0>(a) y = Div(x, s) }")
    one = np.ones((), F4)
    assert not wrong(np.inf, wanted(text, x=one, a=np.float32([0.1, 0.2, 0.3, -0.6])))
    assert wrong(np.inf, wanted(text, x=one, a=np.float32([0.1, 0.2, 0.3, -0.5])))


def test_squares_that_overflow_and_are_lost() -> None:
    x = 1e-18 * drawn(3, 40)
    rms = "(float[3,n] x, float[n] s) => (float[3,n] y) { y = RMSNormalization(x, s) }"
    one = np.ones(40, F4)
    assert not wrong(np.zeros((3, 40)), wanted(rms, x=x * F4(1e38), s=one))
    assert wrong(np.zeros((3, 40)), wanted(rms, x=x * F4(1e35), s=one))
    norm = ("(float[3,n] x) => (float[3] y) <int64[1] axes = {1}> "
            "{ y = ReduceL2<keepdims: int = 0>(x, axes) }")
    assert not wrong(np.zeros(3), wanted(norm, x=x / F4(100)))
    assert wrong(np.zeros(3), wanted(norm, x=x))
    assert not wrong(np.full(3, np.inf), wanted(norm, x=x * F4(1e38)))
    assert wrong(np.full(3, np.inf), wanted(norm, x=x * F4(1e35)))


# ---- the corrections of onnx's reference

def by_onnxruntime(proto: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in feeds.items()]
    graph = helper.make_graph([proto], "one", infos, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("included", [0, 1])
@pytest.mark.parametrize(("kernel", "strides", "pads"), [
    ([3, 2], [3, 1], [0, 0, 0, 0]), ([3, 4], [4, 3], [1, 2, 1, 0]), ([4, 1], [3, 2], [0, 0, 2, 0])])
def test_average_pools_of_ceil_mode(kernel: list[int], strides: list[int], pads: list[int],
                                    included: int) -> None:
    proto = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=kernel, strides=strides,
                             pads=pads, ceil_mode=1, count_include_pad=included)
    x = drawn(1, 2, 8, 7, low=-3)
    np.testing.assert_allclose(evaluate(proto, [x.astype(np.float64)])[0],
                               by_onnxruntime(proto, {"x": x}), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mode", "scales", "attrs"), [
    ("pytorch_half_pixel", [0.5, 0.5], {}),             # of 3: one element, at 0
    ("align_corners", [1.5, 2.5], {}),                  # a length that is no whole number
    ("half_pixel_symmetric", [2.5, 2.0], {}),           # a place of 1e-16
    ("asymmetric", [3.0, 3.0], {"exclude_outside": 1, "cubic_coeff_a": -0.5})])
def test_resize(mode: str, scales: list[float], attrs: dict[str, float]) -> None:
    proto = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic",
                             coordinate_transformation_mode=mode, **attrs)
    x, s = drawn(1, 1, 3, 9, low=-3), np.float32([1, 1, *scales])
    np.testing.assert_allclose(evaluate(proto, [x.astype(np.float64), None, s])[0],
                               by_onnxruntime(proto, {"x": x, "s": s}), rtol=0, atol=2e-5)


def test_cubic_weights_are_float64() -> None:
    """At 11 / 3, with what is outside left out: x[2] / -8 + 9 / 8 x[3]."""
    proto = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5,
        coordinate_transformation_mode="asymmetric")
    x = drawn(4, low=-3).astype(np.float64)
    found = evaluate(proto, [x, None, np.float32([3])])[0]
    assert abs(found[11] - (x[3] * 9 - x[2]) / 8) < 1e-12


@pytest.mark.parametrize("mode", ["floor", "ceil"])
def test_elements_at_an_edge_are_not_judged(mode: str) -> None:
    """Place 3 / 0.5 - 0.5 + 0.5 of half_pixel_symmetric is 3, or less by a rounding."""
    text = ("(float[1,1,n] x) => (float[1,1,m] y) <float[3] s = {1, 1, 0.5}> "
            f'{{ y = Resize<mode: string = "nearest", nearest_mode: string = "{mode}", '
            'coordinate_transformation_mode: string = "half_pixel_symmetric">(x, , s) }')
    x = drawn(1, 1, 25)
    want = wanted(text, x=x)
    assert not wrong(x[..., 1:25:2], want) or not wrong(x[..., 0:24:2], want)
    assert not want.judged.all()
    assert wanted(text, x=drawn(1, 1, 24)).judged.all()
