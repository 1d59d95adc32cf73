"""What the fuzzer has found, each as the smallest model that showed it."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests import devices
from tests.fuzz.drawing import OPSET, Case
from tests.fuzz.engines import judge

DEVICES = ("refs", *devices.present())


def case(text: str, feeds: dict[str, np.ndarray]) -> Case:
    head = f'<ir_version: 10, opset_import: ["" : {OPSET}]>\nfind '
    return Case(onnx.parser.parse_model(head + text), feeds)


FINDS = {
    # an output that nothing computes, and no other temporary: the plan had no slot to lay it in
    "only_empty_temporaries": case(
        "(float[0,3] x) => (float[0,3] z) { y = Neg(x) z = Gemm<beta: float = 2.0>(y, w, b) }"
        .replace("{", "<float[3,3] w = {1,2,3,4,5,6,7,8,9}, float[1] b = {1.5}> {", 1),
        {"x": np.zeros((0, 3), np.float32)}),
    # the references lost digits where 1 + tanh(x / 2) cancels, and exp(x) underflows
    "sigmoid_far_below": case(
        "(float[3] x) => (float[3] y, float[3] z) { y = Sigmoid(x) z = Swish(x) }",
        {"x": np.float32([-30, -12, 5])}),
    "log_sum_exp_far_below": case(
        "(float[3] x) => (float[3] y) { y = ReduceLogSumExp<noop_with_empty_axes: int = 1>(x) }",
        {"x": np.float32([-751.6, 800, 3])}),
    # two elements near each other: a mean that is rounded to f32 is off by some of their distance
    "instance_norm_of_neighbours": case(
        "() => (float[1,1,2] y) <float[1,1,2] x = {1.8796214, 1.9796215}, float[1] s = {1.934243}, "
        "float[1] b = {1.8112835}> { y = InstanceNormalization(x, s, b) }", {}),
    "log_softmax_far_below": case(
        "(float[2] x) => (float[2] y, float[2] z) "
        "<float[2] c = {962.2, 10.6}> { y = LogSoftmax(x) z = LogSoftmax(c) }",
        {"x": np.float32([10.6, 962.2])}),
    # an empty range is as false as none
    "nothing_of_a_slice": case(
        "(float[3,4] x) => (float[0,2] z) <int64[1] one = {1}, int64[1] two = {2}, "
        "int64[1] three = {3}, int64[1] zero = {0}> "
        "{ y = Slice(x, one, three, one) z = Slice(y, two, two, zero) }",
        {"x": np.ones((3, 4), np.float32)}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FINDS)
def test_find(name: str, device: str) -> None:
    verdict = judge(FINDS[name], device)
    assert verdict.outcome == "ok", verdict.detail
