"""The ONNX frontend: what it reads, what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jitcl.errors import (
    InputError,
    JitclError,
    ModelError,
    NeedsValue,
    ShapeError,
    UnsupportedError,
)
from jitcl.frontends.onnx import OnnxModel, import_model, load
from jitcl.ir.graph import Graph
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import evaluate


def info(name: str, shape: Any, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def make(
    nodes: list[onnx.NodeProto],
    inputs: list[Any],
    outputs: list[Any],
    opset: int = 21,
    **graph: Any,
) -> onnx.ModelProto:
    functions = graph.pop("functions", [])
    domains = [helper.make_opsetid(d, 1) for d in graph.pop("domains", [])]
    built = helper.make_graph(nodes, "test", inputs, outputs, **graph)
    return helper.make_model(
        built,
        opset_imports=[helper.make_opsetid("", opset), *domains],
        functions=functions,
        ir_version=8,
    )


def graph_of(model: Any, **shapes: tuple[int, ...]) -> Graph:
    return import_model(load(model), shapes)


def run(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Import for these feeds, and evaluate by references."""
    loaded: OnnxModel = load(model)
    values: dict[str, np.ndarray] = {}
    while True:
        try:
            graph = import_model(loaded, {n: a.shape for n, a in feeds.items()}, values)
            break
        except NeedsValue as needed:
            values[needed.input_name] = feeds[needed.input_name]
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    return [evaluate(n, memo) for _, n in graph.outputs]


RELU = make(
    [helper.make_node("Relu", ["x"], ["y"], name="act")],
    [info("x", ["batch", 3])],
    [info("y", ["batch", 3])],
)
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


# ---- reading


def test_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(RELU, path)
    model = load(path)
    assert model.inputs == {"x": TensorType("f32", (Sym("batch"), 3))}
    assert model.outputs == {"y": TensorType("f32", (Sym("batch"), 3))}
    assert model.external_files == ()
    graph = import_model(model, {"x": (2, 3)})
    (node,) = [n for n in graph.nodes if n.op == "relu"]
    assert graph.origins[node].name == "act" and graph.origins[node].op_type == "Relu"


def test_large_initialisers_are_held_once(tmp_path: Path) -> None:
    """As constants; the given proto stays as it is, and damaged ones are told of when read."""
    large, small = np.arange(40000, dtype=np.float32), np.ones(3, np.float32)
    held = {"large": large, "small": small, "half": large.astype(np.float16)}
    m = make([helper.make_node("Identity", [n], [f"y_{n}"]) for n in held], [],
             [info(f"y_{n}", a.shape, helper.np_dtype_to_tensor_dtype(a.dtype))
              for n, a in held.items()])
    m.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    before = m.SerializeToString()
    for source in (before, m):
        model = load(source)
        for n, a in held.items():
            np.testing.assert_array_equal(model.constant(n).data, a)
        sizes = {t.name: len(t.raw_data) for t in model.proto.graph.initializer}
        kept = source is m
        assert sizes == {"large": 160000 * kept, "small": 12, "half": 80000 * kept}
    assert m.SerializeToString() == before
    m.graph.initializer[0].dims[0] += 1
    with pytest.raises(ModelError, match="initialiser 'large' is malformed"):
        load(m.SerializeToString()).constant("large")


def test_unnamed_dimensions_get_names() -> None:
    m = make([helper.make_node("Relu", ["x"], ["y"])], [info("x", [None, 0, 2])], [info("y", None)])
    assert load(m).inputs["x"].shape == (Sym("x.0"), Sym("x.1"), 2)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(RELU.SerializeToString()[:-9])
    with pytest.raises(
        ModelError, match=r"cut\.onnx: is not an ONNX model, or was cut off \(\d+ bytes\)"
    ):
        load(path)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"version https://git-lfs.github.com/spec/v1\n", b"\x00" * 64]
)
def test_not_onnx(data: bytes) -> None:
    with pytest.raises(ModelError, match="is not an ONNX model"):
        load(data)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx: can't be read: No such file"):
        load(tmp_path / "none.onnx")


def test_cycle_is_named() -> None:
    m = make(
        [
            helper.make_node("Add", ["x", "c"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="second"),
            helper.make_node("Neg", ["b"], ["c"], name="third"),
        ],
        [info("x", [2])],
        [info("b", [2])],
    )
    with pytest.raises(ModelError, match="its nodes form a cycle") as caught:
        load(m)
    assert "'first' (Add) -> 'second' (Relu) -> 'third' (Neg) -> 'first' (Add)" in str(caught.value)


def test_nodes_out_of_order_are_sorted() -> None:
    m = make(
        [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])],
        [info("x", [2, 3])],
        [info("y", [2, 3])],
    )
    np.testing.assert_array_equal(run(m, {"x": X})[0], np.maximum(-X, 0))


def test_checker_problems() -> None:
    m = make(
        [helper.make_node("Relu", ["x"], ["y"], alpha=1.0)], [info("x", [2])], [info("y", [2])]
    )
    with pytest.raises(ModelError, match=r"is not a valid ONNX model: .*alpha"):
        load(m)


def test_opset_out_of_range() -> None:
    new = onnx.ModelProto()
    new.CopyFrom(RELU)
    new.opset_import[0].version = 999
    with pytest.raises(ModelError, match="uses opset 999; the installed onnx"):
        load(new)


def test_string_input() -> None:
    m = make(
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", [1], TensorProto.STRING)],
        [info("y", [1], TensorProto.STRING)],
    )
    with pytest.raises(UnsupportedError, match="'x' has elements of type string"):
        load(m).inputs  # noqa: B018


# ---- shapes


@pytest.mark.parametrize(
    "shapes, text",
    [
        ({}, r"input 'x' .* has unknown dimensions \(batch\): give its shape"),
        ({"x": (2, 4)}, r"axis 1 is 4 instead of 3"),
        ({"x": (2,)}, r"has rank 1 \[2\]; the model wants rank 2"),
        ({"x": (2, 3), "z": (1,)}, r"no input 'z'; it has x"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        import_model(load(RELU), shapes)


def test_rule_errors_name_the_node() -> None:
    w = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")
    m = make(
        [helper.make_node("Conv", ["image", "w"], ["y"], name="backbone/conv1")],
        [info("image", ["n", "c", 8, 8])],
        [info("y", None)],
        initializer=[w],
    )
    with pytest.raises(ShapeError) as caught:
        graph_of(m, image=(1, 4, 8, 8))
    assert str(caught.value) == (
        "node 'backbone/conv1' (Conv): conv(f32[1,4,8,8], f32[4,3,3,3]): input 'x' f32[1,4,8,8] "
        "has 4 channels, but the weight 'w' f32[4,3,3,3] reads 3\n"
        "  X: f32[1,4,8,8]   from graph input 'image'\n"
        "  W: f32[4,3,3,3]   from constant 'w'"
    )


# ---- values


def test_reshape_to_an_input_needs_its_value() -> None:
    m = make(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [info("x", [2, 3]), info("shape", [2], TensorProto.INT64)],
        [info("y", ["a", "b"])],
    )
    with pytest.raises(NeedsValue) as caught:
        graph_of(m, x=(2, 3), shape=(2,))
    assert caught.value.input_name == "shape"
    graph = import_model(load(m), {"x": (2, 3), "shape": (2,)}, {"shape": np.array([3, 2])})
    assert [n.attr("name") for n in graph.inputs] == ["x"] and graph.outputs[0][1].type.shape == (
        3,
        2,
    )


def test_large_data_never_becomes_a_key() -> None:
    m = make(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [info("x", [2, 3]), info("s", ["n"], TensorProto.INT64)],
        [info("y", None)],
    )
    with pytest.raises(UnsupportedError, match="its parameters depend on the data of input 's'"):
        graph_of(m, x=(2, 3), s=(9999,))


def test_shape_arithmetic_is_constant() -> None:
    m = make(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "one"], ["d"]),
            helper.make_node("Concat", ["d", "minus"], ["t"], axis=0),
            helper.make_node("Reshape", ["x", "t"], ["y"]),
        ],
        [info("x", ["a", "b"])],
        [info("y", None)],
        initializer=[
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([-1]), "minus"),
        ],
    )
    assert graph_of(m, x=(4, 6)).outputs[0][1].type.shape == (6, 4)


def test_initialisers_as_inputs_are_defaults() -> None:
    w = numpy_helper.from_array(np.full(3, 2, np.float32), "w")
    m = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", [2, 3]), info("w", [3])],
        [info("y", [2, 3])],
        initializer=[w],
    )
    model = load(m)
    assert list(model.inputs) == ["x"] and list(model.defaults) == ["w"]
    np.testing.assert_array_equal(run(m, {"x": X})[0], 2 * X)
    np.testing.assert_array_equal(run(m, {"x": X, "w": np.ones(3, np.float32)})[0], X)


def test_outputs_that_are_inputs_or_constants() -> None:
    w = numpy_helper.from_array(X, "w")
    m = make(
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", [2, 3])],
        [info("y", [2, 3]), info("w", [2, 3]), info("x", [2, 3])],
        initializer=[w],
    )
    for got in run(m, {"x": X}):
        np.testing.assert_array_equal(got, X)


def test_every_form_of_constant() -> None:
    tensor = numpy_helper.from_array(np.array([1.5], np.float32))
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([4.0], np.float32), "v"),
        numpy_helper.from_array(np.array([2]), "i"),
        [3],
    )
    forms = {
        "value": tensor,
        "value_float": 2.0,
        "value_floats": [3.0],
        "value_int": 7,
        "value_ints": [8, 9],
        "sparse_value": sparse,
    }
    nodes = [helper.make_node("Constant", [], [k], **{k: v}) for k, v in forms.items()]
    kinds = {k: TensorProto.INT64 if "int" in k else TensorProto.FLOAT for k in forms}
    m = make(nodes, [], [info(k, None, kinds[k]) for k in forms])
    got = [a.tolist() for a in run(m, {})]
    assert got == [[1.5], 2.0, [3.0], 7, [8, 9], [0.0, 0.0, 4.0]]


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"value_string": "a"}, "strings"),
        ({"value_strings": ["a", "b"]}, "strings"),
        ({"value": helper.make_tensor("t", TensorProto.STRING, [1], [b"a"])}, "strings"),
        (
            {"value": numpy_helper.from_array(np.array([1j], np.complex64))},
            "elements of type complex64",
        ),
    ],
)
def test_constant_nodes_that_no_kernel_reads(form: dict[str, Any], what: str) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **form),
        helper.make_node("Identity", ["c"], ["y"], name="pass"),
    ]
    m = make(nodes, [], [info("y", None)])
    with pytest.raises(UnsupportedError, match=rf"Identity, 1 times: 'pass': reads {what} \('c'\)"):
        import_model(load(m), {})


def test_sparse_initialiser() -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([5.0], np.float32), "w"),
        numpy_helper.from_array(np.array([[1, 2]]), "i"),
        [2, 3],
    )
    m = make(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", [2, 3])],
        [info("y", [2, 3])],
        sparse_initializer=[sparse],
    )
    want = X.copy()
    want[1, 2] += 5
    np.testing.assert_array_equal(run(m, {"x": X})[0], want)


def test_external_data(tmp_path: Path) -> None:
    w = np.arange(3000, dtype=np.float32)
    m = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", [3000])],
        [info("y", [3000])],
        initializer=[numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert load(path).external_files == (tmp_path / "m.data",)
    np.testing.assert_array_equal(run(path, {"x": w})[0], w * w)
    with pytest.raises(ModelError, match="not loaded from a file"):
        load(path.read_bytes())
    (tmp_path / "m.data").unlink()
    with pytest.raises(
        ModelError, match=r"initialiser 'w' keeps its elements in '.*m\.data', which does not exist"
    ):
        load(path)


def test_external_data_too_short(tmp_path: Path) -> None:
    m = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", [3000])],
        [info("y", [3000])],
        initializer=[numpy_helper.from_array(np.ones(3000, np.float32), "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(ModelError, match="initialiser 'w'"):
        graph_of(path, x=(3000,))


def test_truncated_initialiser() -> None:
    broken = numpy_helper.from_array(np.ones(4, np.float32), "w")
    broken.raw_data = broken.raw_data[:-3]
    m = make(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [info("x", [4])],
        [info("y", [4])],
        initializer=[broken],
    )
    with pytest.raises(ModelError):
        graph_of(m, x=(4,))


# ---- what is not supported


def test_unsupported_ops_are_listed_once() -> None:
    m = make(
        [
            helper.make_node("NonZero", ["x"], ["a"], name="nz1"),
            helper.make_node("NonZero", ["x"], ["b"], name="nz2"),
            helper.make_node("Magic", ["x"], ["c"], name="m", domain="my.ops"),
            helper.make_node("Relu", ["x"], ["d"]),
        ],
        [info("x", [2, 3])],
        [info("a", None, 7), info("b", None, 7), info("c", None), info("d", None)],
        domains=["my.ops"],
    )
    with pytest.raises(UnsupportedError) as caught:
        graph_of(m, x=(2, 3))
    text = str(caught.value)
    assert "3 nodes are not supported" in text
    assert (
        "NonZero, 2 times: 'nz1', 'nz2'" in text
        and "Magic of domain 'my.ops', 1 times: 'm'" in text
    )


def test_nodes_behind_unsupported_ones_are_checked_too() -> None:
    m = make(
        [
            helper.make_node("NonZero", ["x"], ["a"], name="first"),
            helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
            helper.make_node("Magic", ["t"], ["y"], name="second", domain="my.ops"),
        ],
        [info("x", [2, 3])],
        [info("y", None, 7)],
        domains=["my.ops"],
    )
    with pytest.raises(UnsupportedError, match=r"(?s)NonZero.*'first'.*Magic.*'second'"):
        graph_of(m, x=(2, 3))


def test_unused_nodes_do_not_matter() -> None:
    m = make(
        [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Relu", ["x"], ["y"])],
        [info("x", [2, 3])],
        [info("y", [2, 3])],
    )
    np.testing.assert_array_equal(run(m, {"x": X})[0], np.maximum(X, 0))


def test_nonsense_is_an_error_of_ours() -> None:
    """Numbers that no rule expects: a JitclError each, whatever NumPy would raise."""
    for scales in ([1.0, np.nan], [1.0, -2.0], [0.0, 1.0], [1.0, np.inf], [1.0]):
        m = make(
            [helper.make_node("Resize", ["x", "", "s"], ["y"])],
            [info("x", [2, 3])],
            [info("y", None)],
            initializer=[numpy_helper.from_array(np.array(scales, np.float32), "s")],
        )
        with pytest.raises(JitclError, match="positive"):
            graph_of(m, x=(2, 3))
    m = make(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[9])],
        [info("x", [1, 1, 4])],
        [info("y", None)],
    )
    with pytest.raises(ShapeError, match="a window of 9"):
        graph_of(m, x=(1, 1, 4))


# ---- bodies


def test_if_takes_the_known_branch() -> None:
    yes = helper.make_graph([helper.make_node("Neg", ["x"], ["a"])], "yes", [], [info("a", [2, 3])])
    no = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["b"])], "no", [], [info("b", None, 7)]
    )
    m = make(
        [helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)],
        [info("x", [2, 3]), info("c", [], TensorProto.BOOL)],
        [info("y", None)],
    )
    np.testing.assert_array_equal(run(m, {"x": X, "c": np.array(True)})[0], -X)
    with pytest.raises(UnsupportedError, match="NonZero"):
        run(m, {"x": X, "c": np.array(False)})


def test_functions_of_the_model() -> None:
    body = [
        helper.make_node("LeakyRelu", ["v"], ["w"]),
        helper.make_node("Neg", ["w"], ["r"], name="turn"),
    ]
    reference = body[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = (
        "alpha",
        "slope",
        onnx.AttributeProto.FLOAT,
    )
    function = helper.make_function(
        "local",
        "Leak",
        ["v", "unused"],
        ["r"],
        body,
        [helper.make_opsetid("", 21)],
        attributes=["slope"],
    )
    m = make(
        [helper.make_node("Leak", ["x"], ["y"], domain="local", name="call", slope=0.5)],
        [info("x", [2, 3])],
        [info("y", [2, 3])],
        functions=[function],
        domains=["local"],
    )
    np.testing.assert_allclose(run(m, {"x": X})[0], -np.where(X < 0, 0.5 * X, X))
    names = {o.name for o in graph_of(m, x=(2, 3)).origins.values()}
    assert "call/turn" in names


def test_onnx_bodies_are_expanded() -> None:
    """MeanVarianceNormalization has no rule: ONNX's own body stands in, and the origin is the
    node."""
    m = make(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], name="mvn", axes=[0])],
        [info("x", [2, 3])],
        [info("y", [2, 3])],
        13,
    )
    assert {o.op_type for o in graph_of(m, x=(2, 3)).origins.values()} == {
        "MeanVarianceNormalization"
    }
    want = (X - X.mean(0)) / (X.std(0) + 1e-9)
    np.testing.assert_allclose(run(m, {"x": X})[0], want, rtol=1e-5)


# ---- opsets

OLD = [
    (7, "Squeeze", {"axes": [0]}, (1, 3), lambda x: x[0]),
    (7, "Unsqueeze", {"axes": [0, 2]}, (3,), lambda x: x[None, :, None]),
    (11, "ReduceSum", {"axes": [1], "keepdims": 0}, (2, 3), lambda x: x.sum(1)),
    (11, "ReduceMax", {"axes": [1]}, (2, 3), lambda x: x.max(1, keepdims=True)),
    (9, "Slice", {"starts": [1], "ends": [99], "axes": [1]}, (2, 3), lambda x: x[:, 1:]),
    (
        7,
        "Pad",
        {"pads": [0, 1, 0, 2], "value": 4.0},
        (2, 3),
        lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=4),
    ),
    (7, "Clip", {"min": -0.5, "max": 0.5}, (2, 3), lambda x: np.clip(x, -0.5, 0.5)),
    (7, "Clip", {}, (2, 3), lambda x: x),
    (7, "Dropout", {"ratio": 0.9}, (2, 3), lambda x: x),
    (7, "Upsample", {"scales": [1.0, 2.0]}, (2, 3), lambda x: x.repeat(2, 1)),
    (7, "Softmax", {}, (2, 3, 2), lambda x: np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)),
    (13, "Softmax", {}, (2, 3, 2), lambda x: np.exp(x) / np.exp(x).sum(2, keepdims=True)),
    (7, "Flatten", {}, (2, 3, 2), lambda x: x.reshape(2, 6)),
]


@pytest.mark.parametrize(
    "opset, op, attrs, shape, want", OLD, ids=lambda v: v if isinstance(v, (str, int)) else ""
)
def test_old_forms(
    opset: int, op: str, attrs: dict[str, Any], shape: tuple[int, ...], want: Any
) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    m = make(
        [helper.make_node(op, ["x"], ["y"], **attrs)], [info("x", shape)], [info("y", None)], opset
    )
    np.testing.assert_allclose(run(m, {"x": x})[0], want(x), rtol=1e-5)


def test_old_split_and_top_k() -> None:
    m = make(
        [
            helper.make_node("Split", ["x"], ["a", "b", "c"], axis=1),
            helper.make_node("TopK", ["x"], ["v", "i"], k=2),
        ],
        [info("x", [2, 3])],
        [info(n, None, 7 if n == "i" else 1) for n in "abcvi"],
        9,
    )
    a, b, c, v, i = run(m, {"x": X})
    np.testing.assert_array_equal(np.concatenate([a, b, c], 1), X)
    np.testing.assert_array_equal(v, X[:, :0:-1])
    np.testing.assert_array_equal(i, [[2, 1]] * 2)
