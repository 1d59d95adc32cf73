"""Inputs whose values decide shapes: sizes that are fed are part of a plan, or symbols of one; data
never is, however little there is of it, but is cut where kernels have computed the size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jitcl
from jitcl.errors import NeedsValue
from jitcl.frontends.onnx import import_model, load
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
OPENCL = [s for s in DEVICES if s.startswith("opencl")][:1]
INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
Constants = dict[str, Any]


def made(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str],
         constants: Constants | None = None) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(
        nodes, "values", [helper.make_tensor_value_info(n, t, dims)
                          for n, (t, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def speech(width: int = 16, tokens: Any = "t") -> onnx.ModelProto:
    """Tokens, layers, how long each token sounds, and a row of them for each unit of time."""
    r = np.random.default_rng(0)
    constants: Constants = {
        "table": r.standard_normal((40, width)).astype("f4"), "three": np.float32(3),
        "to_length": (r.standard_normal((width, 1)) * 0.5).astype("f4"), "last": np.array([-1]),
        "zero": np.array(0), "one": np.array(1), "v0": np.array([0]), "v1": np.array([1])}
    nodes = [node("Gather", "table ids", "h0")]
    for k in range(2):
        constants[f"w{k}"] = (r.standard_normal((width, width)) / 4).astype("f4")
        nodes += [node("MatMul", f"h{k} w{k}", f"m{k}"), node("Relu", f"m{k}", f"h{k + 1}")]
    nodes += [
        node("MatMul", "h2 to_length", "l"), node("Sigmoid", "l", "s"), node("Mul", "s three", "u"),
        node("Ceil", "u", "ceiled"), node("Squeeze", "ceiled last", "lengths"),
        node("CumSum", "lengths zero", "ends"), node("ReduceMax", "ends", "total", keepdims=0),
        node("Cast", "total", "n", to=INT64), node("Range", "zero n one", "time"),
        node("Cast", "time", "at", to=FLOAT), node("Unsqueeze", "at v1", "column"),
        node("Unsqueeze", "ends v0", "row"), node("Less", "column row", "before"),
        node("Cast", "before", "before_f", to=FLOAT),
        node("ArgMax", "before_f", "which", axis=1, keepdims=0), node("Gather", "h2 which", "y")]
    return made(nodes, {"ids": (INT64, [tokens])}, ["y"], constants)


def texts(count: int, tokens: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    r = np.random.default_rng(seed)
    return [{"ids": r.integers(0, 40, tokens)} for _ in range(count)]


def files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file()}


def same(proto: onnx.ModelProto, model: jitcl.Model, feeds: dict[str, np.ndarray]) -> int:
    """Compared with onnx's reference; the length of the first output."""
    found = model.run(feeds)
    names = [o.name for o in proto.graph.output]
    for name, wanted in zip(names, ReferenceEvaluator(proto).run(names, feeds)):
        assert found[name].shape == wanted.shape and found[name].dtype == wanted.dtype
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4, err_msg=name)
    return len(found[names[0]])


@pytest.mark.sampled(quick=2, slow=2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [3, pytest.param(12, marks=pytest.mark.slow), 20])
def test_each_new_text_runs_what_the_first_compiled(
        device: str, tokens: int, tmp_path: Path) -> None:
    proto = speech()
    model = jitcl.compile(proto, device=device, strict=True, cache_dir=tmp_path)
    first, *rest = texts(8, tokens)
    same(proto, model, first)
    before, stats = files(tmp_path), model.cache.stats
    counted = stats.misses, stats.writes
    assert len({same(proto, model, feeds) for feeds in rest}) > 1           # other lengths
    assert files(tmp_path) == before and (stats.misses, stats.writes) == counted
    report = model.report()
    assert [row.kind for row in report.program] == ["part", "cut", "part"] and not report.host
    assert report.program[0].flops > 2 * tokens * 2 * 16 * 16               # on the device
    assert [name for name, *_ in report.program[2].sizes] == ["n[]"]
    later = jitcl.compile(proto, device=device, strict=True, cache_dir=tmp_path)
    for feeds in texts(3, tokens, seed=7):
        same(proto, later, feeds)
    assert files(tmp_path) == before                                        # nor in a new process


def test_texts_of_any_length_end_up_with_plans_for_all(tmp_path: Path) -> None:
    proto = speech()
    model = jitcl.compile(proto, device="cpu", strict=True, cache_dir=tmp_path)
    for tokens in (12, 9, 20, 7, 11):
        same(proto, model, texts(1, tokens)[0])
    before = files(tmp_path)
    for tokens in (8, 30, 12, 3, 17, 10, 60):
        same(proto, model, texts(1, tokens, seed=tokens)[0])
    assert files(tmp_path) == before


def test_a_fixed_number_of_tokens_is_data_too(tmp_path: Path) -> None:
    proto = speech(tokens=12)
    model = jitcl.compile(proto, device="cpu", strict=True, cache_dir=tmp_path)
    for feeds in texts(3, 12):
        same(proto, model, feeds)
    assert model.program is not None and not model._by_value


# what a size may be computed from without being data for it: name -> (nodes, feeds)
X = np.arange(24, dtype=np.float32)
SIZES: dict[str, tuple[list[Any], list[dict[str, Any]]]] = {
    "a target": ([node("Reshape", "x s", "y")], [
        {"s": np.array(s)} for s in ((4, 6), (6, 4), (3, 8), (8, 3), (12, 2))]),
    "a target with -1": ([node("Concat", "s minus", "t", axis=0), node("Reshape", "x t", "y")], [
        {"s": np.array([n])} for n in (4, 6, 3, 8, 12)]),
    "a limit": ([node("Range", "zero s one", "r"), node("Mul", "r s", "y")], [
        {"s": np.array(n)} for n in (5, 6, 7, 8, 40)]),
    "twice a size": ([node("Mul", "s two", "d"), node("Range", "zero d one", "r"),
                      node("Cast", "r", "y", to=FLOAT)], [
        {"s": np.array(n)} for n in (5, 6, 7, 8, 40)]),
    "ends": ([node("Slice", "x v0 s", "y")], [{"s": np.array([n])} for n in (5, 6, 7, 30, 9)]),
    "k": ([node("TopK", "x s", "y i", axis=0)], [{"s": np.array([n])} for n in (5, 6, 7, 3)]),
    "repeats": ([node("Tile", "x s", "y")], [{"s": np.array([n])} for n in (2, 3, 4, 5)]),
    "a branch": ([node("Equal", "s two", "is"), helper.make_node(
        "If", ["is"], ["y"],
        then_branch=helper.make_graph([node("Neg", "x", "a")], "a", [],
                                      [helper.make_empty_tensor_value_info("a")]),
        else_branch=helper.make_graph([node("Exp", "x", "b")], "b", [],
                                      [helper.make_empty_tensor_value_info("b")]))],
        [{"s": np.array(n)} for n in (2, 3, 2)]),
    "pixels": ([node("Reshape", "x image", "x4"), node("Cast", "s", "s64", to=INT64),
                node("Resize", "x4 none none s64", "y", mode="nearest")], [
        {"s": np.array([1, 1, h, w])} for h, w in ((8, 12), (4, 3), (6, 18))])}
SHARED = {"a target", "a limit", "twice a size", "ends", "repeats", "k", "pixels"}  # by one plan
CONSTANTS = {"zero": np.array(0), "one": np.array(1), "two": np.array(2), "v0": np.array([0]),
             "minus": np.array([-1]), "image": np.array([1, 1, 4, 6]),
             "none": np.zeros(0, np.float32)}


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("device", DEVICES[:1] + OPENCL)
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_fed_stay_one_graph(device: str, name: str, tmp_path: Path) -> None:
    nodes, fed = SIZES[name]
    inputs = {"x": (FLOAT, [24]), "s": (INT64, list(np.shape(fed[0]["s"])))}
    proto = made(nodes, inputs, ["y"], CONSTANTS)
    model = jitcl.compile(proto, device=device, strict=True, cache_dir=tmp_path)
    for values in fed:
        same(proto, model, {"x": X, **values})
    assert model.program is None and model._by_value == ["s"]
    assert bool(model.report().sizes) == (name in SHARED), model.report().no_family
    if name in SHARED:                              # another value: nothing compiled
        before = files(tmp_path)
        for values in fed[1:3]:
            same(proto, model, {"x": X, **values})
        assert files(tmp_path) == before


def test_a_size_is_read_as_data_where_it_is_data() -> None:
    proto = made([node("Range", "zero s one", "r"), node("Mul", "r s", "y")], {"s": (INT64, [])},
                 ["y", "r"], CONSTANTS)
    with pytest.raises(NeedsValue):
        import_model(load(proto), {"s": ()})
    graph = import_model(load(proto), {"s": ()}, {"s": np.array(5)})
    assert [n.attr("name") for n in graph.inputs] == ["s"]
    (_, product), (_, counted) = graph.outputs
    assert product.op == "mul" and graph.inputs[0] in product.inputs
    assert counted.op == "const" and counted.data.tolist() == [0, 1, 2, 3, 4]


# data that decides a size, on its way there: name -> (nodes up to 'n', the input's type and shape)
DATA: dict[str, tuple[list[Any], int, list[Any]]] = {
    "lengths that are summed": ([node("ReduceSum", "d", "n", keepdims=0)], INT64, ["t"]),
    "the longest": ([node("ReduceMax", "d", "n", keepdims=0)], INT64, [3]),
    "a table's rows": ([node("Gather", "table d", "found"), node("ReduceSum", "found", "n",
                                                                 keepdims=0)], INT64, [4]),
    "one row of a table": ([node("Gather", "table d", "n")], INT64, []),
    "where they end": ([node("CumSum", "d zero", "ends"), node("Gather", "ends last", "n")],
                       INT64, ["t"]),
    "a product of matrices": ([
        node("Cast", "d", "f", to=FLOAT), node("MatMul", "f f", "dot"),
        node("Cast", "dot", "n", to=INT64)], INT64, [3]),
    "how many": ([node("Greater", "d two", "more"), node("Cast", "more", "counted", to=INT64),
                  node("ReduceSum", "counted", "few", keepdims=0), node("Add", "few two", "n")],
                 INT64, ["t"])}


@pytest.mark.parametrize("name", DATA)
def test_data_that_decides_a_size_is_cut_there(name: str, tmp_path: Path) -> None:
    nodes, dtype, dims = DATA[name]
    tail = [node("Range", "zero n one", "r"), node("Cast", "r", "f_", to=FLOAT),
            node("Sqrt", "f_", "y")]
    constants = {**CONSTANTS, "table": np.arange(2, 26), "last": np.array(-1)}
    proto = made([*nodes, *tail], {"d": (dtype, dims)}, ["y"], constants)
    model = jitcl.compile(proto, device="cpu", strict=True, cache_dir=tmp_path)
    r = np.random.default_rng(3)
    shape = [5 if isinstance(d, str) else d for d in dims]
    feeds = [{"d": r.integers(1, 7, shape)} for _ in range(8)]
    same(proto, model, feeds[0])
    before = files(tmp_path)
    assert len({same(proto, model, f) for f in feeds[1:]}) > 1
    assert files(tmp_path) == before
    assert [row.kind for row in model.report().program] == ["part", "cut", "part"]


def test_a_longer_input_is_weighed_again(tmp_path: Path) -> None:
    """By value with few elements; with many, the next run makes a program of the model."""
    proto = made([node("Gather", "s at", "n"), node("Range", "zero n one", "y")],
                 {"s": (INT64, ["k"])}, ["y"], {**CONSTANTS, "at": np.array(-1)})
    model = jitcl.compile(proto, device="cpu", strict=True, cache_dir=tmp_path)
    same(proto, model, {"s": np.array([3, 4])})
    assert model.program is None and model._by_value == ["s"]
    for last in (7, 8, 9):
        same(proto, model, {"s": np.array([3] * 20 + [last])})
    assert model.program is not None


def test_a_value_that_is_no_size_is_a_number(tmp_path: Path) -> None:
    """Slices to the end of the world, and backwards."""
    proto = made([node("Slice", "x v0 s", "y")], {"x": (FLOAT, [24]), "s": (INT64, [1])}, ["y"],
                 CONSTANTS)
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    for end in (5, 6, 7, 2 ** 63 - 1, -3, 0, 1, 8, 2 ** 31, -24):
        same(proto, model, {"x": X, "s": np.array([end])})
