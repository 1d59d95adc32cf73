"""Import of the heavy ops against onnx's reference evaluator, over attributes that node tests miss;
and that what templates and fusion look for is what import makes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from jitcl.errors import JitclError, ModelError, ShapeError
from jitcl.frontends.onnx import import_model, load
from jitcl.ir.graph import Graph
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.ops.contraction import parse_equation
from tests.drawn import rng


def model(
    op: str, arrays: list[np.ndarray | None], constants: dict[int, np.ndarray], **attrs: Any
) -> Any:
    """One node on random inputs; `constants` are initialisers at these input numbers."""
    names = ["" if a is None and i not in constants else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, ["y"], **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays)
        if a is not None
    ]
    graph = helper.make_graph(
        [node],
        "one",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, f"x{i}") for i, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def imported(built: Any, arrays: list[np.ndarray | None]) -> tuple[Graph, np.ndarray]:
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    graph = import_model(load(built), {n: a.shape for n, a in feeds.items()})
    return graph, evaluate(graph.outputs[0][1], {n: feeds[n.attr("name")] for n in graph.inputs})


def check(
    op: str,
    arrays: list[np.ndarray | None],
    constants: dict[int, np.ndarray] | None = None,
    **attrs: Any,
) -> Graph:
    """Import and references against onnx's evaluator."""
    built = model(op, arrays, constants or {}, **attrs)
    graph, got = imported(built, arrays)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    (want,) = ReferenceEvaluator(built).run(None, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got, want, rtol=2e-4, atol=1e-5 * max(1, np.abs(want).max(initial=0))
    )
    return graph


def f32(*shape: int) -> np.ndarray:
    return rng().standard_normal(shape).astype(np.float32)


# ---- convolutions and pooling


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_conv_auto_pad(auto_pad: str, stride: int) -> None:
    graph = check(
        "Conv", [f32(1, 2, 9, 8), f32(3, 2, 3, 4), f32(3)], strides=[stride, 1], auto_pad=auto_pad
    )
    assert graph.outputs[0][1].op == "add"  # the bias, for fusion to take


def test_conv_transpose() -> None:
    attrs: dict[str, Any] = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 1, 1]}
    check("ConvTranspose", [f32(1, 4, 4, 5), f32(4, 3, 3, 2)], **attrs)


@pytest.mark.parametrize("auto_pad, pads", [("NOTSET", [0, 1, 0, 0]), ("SAME_UPPER", [0, 0, 0, 1])])
def test_conv_transpose_output_shape(auto_pad: str, pads: list[int]) -> None:
    """The odd element of padding goes behind with SAME_UPPER, else in front."""
    x, w = f32(1, 2, 4, 5), f32(2, 3, 3, 3)
    wanted = {"strides": [2, 3], "output_shape": [9, 14], "auto_pad": auto_pad}
    _, got = imported(model("ConvTranspose", [x, w], {}, **wanted), [x, w])
    _, want = imported(model("ConvTranspose", [x, w], {}, strides=[2, 3], pads=pads), [x, w])
    assert got.shape == (1, 3, 9, 14)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("attrs", "kernel"), [
    ({"kernel_shape": [64, 64], "strides": [64, 64]}, (4, 5)),
    ({"kernel_shape": [9, 3], "strides": [9, 2], "pads": [1, 0, 2, 1]}, (7, 3)),
    ({"kernel_shape": [4, 4], "strides": [9, 9], "dilations": [2, 3]}, (2, 2)),
])
def test_a_window_ends_with_what_it_pools(
    op: str, attrs: dict[str, Any], kernel: tuple[int, int]
) -> None:
    """EfficientNet pools 7 x 7 pixels by a window of 1280 x 1280."""
    x = f32(2, 3, 4, 5)
    graph, got = imported(model(op, [x], {}, ceil_mode=1, **attrs), [x])
    (y,) = (n for n in graph.nodes if n.op != "input")
    assert y.attr("kernel") == kernel
    attributes = {**y.kwargs, "kernel": tuple(attrs["kernel_shape"])}
    whole = GraphBuilder().op(y.op, y.inputs[0], **attributes)
    np.testing.assert_allclose(got, evaluate(whole, {y.inputs[0]: x}), rtol=1e-6)
    assert whole.type == y.type


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]])
@pytest.mark.parametrize("ceil", [0, 1])
def test_pooling(op: str, ceil: int, pads: list[int]) -> None:
    check(op, [f32(1, 2, 9, 8)], kernel_shape=[3, 2], strides=[2, 2], pads=pads, ceil_mode=ceil)


def test_pooling_3d() -> None:
    check("MaxPool", [f32(1, 1, 5, 6, 4)], kernel_shape=[2, 3, 2], strides=[1, 2, 2])
    check(
        "AveragePool",
        [f32(1, 1, 5, 6, 4)],
        kernel_shape=[2, 3, 2],
        count_include_pad=1,
        pads=[1, 1, 0, 0, 1, 1],
    )


def test_windows_that_do_not_fit() -> None:
    for attrs, text in (
        ({"kernel_shape": [3, 3]}, "contradicts the weight"),
        ({"strides": [0, 1]}, r"'strides' is \(0, 1\), wanted 1 or more"),
        ({"pads": [1, 1]}, "2 values, wanted 4"),
        ({"auto_pad": "MAYBE"}, "'auto_pad' is 'MAYBE', wanted one of NOTSET"),
    ):
        x, w = f32(1, 2, 6, 6), f32(3, 2, 2, 2)
        with pytest.raises(ModelError, match=text):
            imported(model("Conv", [x, w], {}, **attrs), [x, w])
    x, w = f32(1, 4, 6, 6), f32(3, 2, 2, 2)
    with pytest.raises(ShapeError, match="has 3 outputs, not a multiple of 2 groups"):
        imported(model("Conv", [x, w], {}, group=2), [x, w])


# ---- contractions

EQUATIONS = [
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
    ("ij,kj", (3, 4), (5, 4)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("i,j->ji", (3,), (4,)),
    ("...i,...i", (2, 3), (2, 3)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("i...,j...->ij...", (2, 3), (4, 3)),
]


@pytest.mark.parametrize("equation, a, b", EQUATIONS, ids=[e for e, *_ in EQUATIONS])
def test_einsum(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check("Einsum", [f32(*a), f32(*b)], equation=equation)


def test_einsum_of_two_matrices_is_a_matmul() -> None:
    for equation, a, b in EQUATIONS[:2]:
        graph = check("Einsum", [f32(*a), f32(*b)], equation=equation)
        assert "matmul" in [n.op for n in graph.nodes]
        assert "einsum" not in [n.op for n in graph.nodes]


@pytest.mark.parametrize(
    "equation, ranks",
    [("ij,jk->ik", (2,)), ("ij->ij", (3,)), ("ij->ii", (2,)), ("ij->k", (2,)), ("i;j->i", (3,))],
)
def test_malformed_equations(equation: str, ranks: tuple[int, ...]) -> None:
    with pytest.raises(JitclError, match="einsum"):
        parse_equation(equation, ranks)


@pytest.mark.parametrize(
    "a, b", [((3,), (3,)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((1, 2, 3), (4, 3, 5))]
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check("MatMul", [f32(*a), f32(*b)])


def test_matmul_shapes_that_do_not_fit() -> None:
    a, b = f32(2, 3), f32(4, 5)
    with pytest.raises(
        ShapeError, match=r"'a' f32\[2,3\] has 3 columns, but 'b' f32\[4,5\] has 4 rows"
    ):
        imported(model("MatMul", [a, b], {}), [a, b])


def test_gemm() -> None:
    for t, u in itertools.product([0, 1], [0, 1]):
        a, b = f32(*((4, 3) if t else (3, 4))), f32(*((5, 4) if u else (4, 5)))
        check("Gemm", [a, b, f32(5)], transA=t, transB=u, alpha=0.5, beta=2.0)
        check("Gemm", [a, b], transA=t, transB=u)
