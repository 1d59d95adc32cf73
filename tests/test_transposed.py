"""Transposed convolutions with constant weights on every device: templates, phases and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from tests.devices import present, run_graph

CASES: dict[str, dict[str, Any]] = {
    "2x2 by 2": {"x": (1, 12, 9, 10), "w": (12, 5, 2, 2), "strides": (2, 2)},
    "3x3 by 2": {"x": (2, 8, 7, 9), "w": (8, 6, 3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1),
                 "output_padding": (1, 1)},
    "5x4 by 3x2 in groups": {"x": (1, 8, 6, 5), "w": (8, 3, 5, 4), "strides": (3, 2),
                             "pads": (1, 0, 2, 1), "group": 2},
    "one channel each": {"x": (1, 9, 5, 6), "w": (9, 1, 4, 4), "strides": (2, 2),
                         "pads": (1, 1, 1, 1), "group": 9},
    "a row": {"x": (1, 16, 40), "w": (16, 8, 16), "strides": (8,), "pads": (4, 4)},
    "a volume": {"x": (1, 4, 3, 4, 2), "w": (4, 3, 2, 3, 4), "strides": (2, 2, 1),
                 "pads": (0, 1, 1, 0, 1, 1)},
    "strides beyond the kernel": {"x": (1, 4, 3, 5), "w": (4, 2, 2, 1), "strides": (3, 4)},
    "zeros at the end": {"x": (1, 4, 3, 5), "w": (4, 2, 2, 2), "strides": (3, 3),
                         "output_padding": (2, 2)},
    "no stride": {"x": (1, 6, 7, 7), "w": (6, 4, 3, 3), "strides": (1, 1), "pads": (2, 0, 1, 1)},
    "cut to the middle": {"x": (1, 4, 9, 9), "w": (4, 3, 3, 3), "strides": (1, 1),
                          "pads": (3, 3, 4, 3)},
}


@pytest.mark.in_turn
@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("device", present())
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, device: str) -> None:
    case, r, g = CASES[name], np.random.default_rng(0), GraphBuilder()
    space = len(case["strides"])
    x = graph_input("x", TensorType("f32", case["x"]))
    w = const(r.standard_normal(case["w"]).astype("f4"), "f32")
    y = g.conv_transpose(x, w, strides=case["strides"], dilations=(1,) * space,
                         pads=case.get("pads", (0,) * 2 * space), group=case.get("group", 1),
                         output_padding=case.get("output_padding", (0,) * space))
    bias = const(r.standard_normal((y.type.dims[1], *(1,) * space)).astype("f4"), "f32")
    y = g.relu(g.add(y, bias))
    feeds = {"x": r.standard_normal(case["x"]).astype("f4")}
    got = run_graph(device, Graph("transposed", (x,), (("y", y),)), feeds)["y"]
    np.testing.assert_allclose(got, evaluate(y, {x: feeds["x"]}), rtol=1e-4, atol=1e-4)
