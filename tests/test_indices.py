"""Indices out of range: an error that names input, index and range where they come from the caller,
one at import where they are constants, one in checked mode where they are computed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl import config
from jitcl.errors import InputError, ModelError
from jitcl.ir.indices import NONE, outside
from tests.devices import opened, present
from tests.one_node import Array, Feeds, by_jitcl, by_onnxruntime, fed, one_node

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
BOX = [0.0, 0, 3, 3]


def i64(*values: Any) -> Array:
    return np.array(values, np.int64)


# op -> (its operands with right indices, the index operand, wrong indices, the text, attributes)
CASES: dict[str, tuple[Feeds, str, Array, str, dict[str, Any]]] = {
    "Gather": ({"x": TABLE, "i": i64(0, -10, 9)}, "i", i64(0, 3, 10),
               "index 10 at [2] is out of range", {}),
    "Gather from the end": ({"x": TABLE, "i": i64([1], [-4])}, "i", i64([1], [-5]),
                            "index -5 at [1, 0] is out of range", {"axis": 1}),
    "Gather one": ({"x": TABLE, "i": np.array(3, np.int32)}, "i", np.array(-11, np.int32),
                   "index -11 is out of range", {}),
    "GatherElements": ({"x": TABLE, "i": i64([0, 1], [-1, 3])}, "i", i64([0, 4], [0, 0]),
                       "index 4 at [0, 1]", {"axis": 1}),
    "GatherND": ({"x": TABLE, "i": i64([9, 3], [-10, -4])}, "i", i64([9, 3], [3, 9]),
                 "index 9 at [1, 1]", {}),
    "ScatterElements": ({"x": TABLE, "i": i64([0, 1]), "u": TABLE[:1, :2]}, "i", i64([0, -11]),
                        "index -11 at [0, 1]", {}),
    "ScatterElements many": (
        {"x": TABLE, "i": np.zeros((40, 1), np.int64), "u": TABLE.reshape(-1, 1)}, "i",
        np.full((40, 1), 10), "index 10 at [0, 0]", {"reduction": "add"}),
    "ScatterND": ({"x": TABLE, "i": i64([0, 1], [9, -1]), "u": i64(1, 2).astype("f4")}, "i",
                  i64([0, 1], [1, 4]), "index 4 at [1, 1]", {}),
    "ScatterND rows": ({"x": TABLE, "i": i64([2]), "u": TABLE[:1]}, "i", i64([12]),
                       "index 12 at [0, 0]", {}),
    "TensorScatter": ({"x": TABLE[None], "u": TABLE[None, :3], "i": i64(7)}, "i", i64(8),
                      "index 8 at [0]", {"opset": 24}),
    "ReverseSequence": ({"x": TABLE, "i": i64(0, 1, 9, 10)}, "i", i64(0, 1, 9, 11),
                        "index 11 at [3]", {}),
    "RoiAlign": ({"x": TABLE.reshape(2, 1, 4, 5), "b": np.array([BOX, BOX], "f4"), "i": i64(0, 1)},
                 "i", i64(0, 2), "index 2 at [1]", {}),
    "MaxRoiPool": ({"x": TABLE.reshape(2, 1, 4, 5), "i": np.array([[1, *BOX]], "f4")}, "i",
                   np.array([[2, *BOX]], "f4"), "index 2.0 at [0, 0]", {"pooled_shape": [2, 2]}),
    "MaxUnpool": (
        {"x": TABLE[:2, :2].reshape(1, 1, 2, 2), "i": i64(0, 3, 9, 15).reshape(1, 1, 2, 2)}, "i",
        i64(0, 3, 9, 16).reshape(1, 1, 2, 2), "index 16 at [0, 0, 1, 1]",
        {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "ArrayFeatureExtractor": ({"x": TABLE, "i": i64(0, 3)}, "i", i64(0, -1), "index -1 at [1]",
                              {"domain": "ai.onnx.ml"}),
    "CropAndResize": ({"x": TABLE.reshape(2, 1, 4, 5), "b": np.array([[0, 0, 1, 1]], "f4"),
                       "i": np.array([1], np.int32), "s": np.array([2, 2], np.int32)}, "i",
                      np.array([-1], np.int32), "index -1 at [0]",
                      {"domain": "com.microsoft", "constants": ("s",)}),
    "EmbedLayerNormalization": (
        {"i": np.array([[0, 9, 1]], np.int32), "none": None, "words": TABLE, "places": TABLE,
         "no": None, "gamma": TABLE[1], "beta": TABLE[0]}, "i", np.array([[0, 9, -1]], np.int32),
        "index -1 at [0, 2]", {"domain": "com.microsoft", "constants": ("words", "places")}),
    "RotaryEmbedding": (
        {"x": TABLE[:6].reshape(1, 3, 8), "i": i64([0, 1, 9]), "cos": TABLE, "sin": TABLE}, "i",
        i64([0, 1, 10]), "index 10 at [0, 2]", {"domain": "com.microsoft"}),
}


def build(case: str, **changes: Any) -> tuple[onnx.ModelProto, Feeds, str, Array, str]:
    feeds, index, wrong, text, attrs = CASES[case]
    attrs = {"result": TensorProto.FLOAT, **attrs, **changes}
    return one_node(case.split()[0], feeds, **attrs), feeds, index, wrong, text


@pytest.mark.parametrize("case", CASES)
def test_indices_that_the_caller_feeds(case: str) -> None:
    model, feeds, index, wrong, text = build(case)
    compiled = jitcl.compile(model, device="cpu")
    right = compiled.run(fed(model, feeds))["y0"]
    for _ in range(2):                              # the second run is like one before
        with pytest.raises(InputError, match=re.escape(f"input '{index}': {text}")) as error:
            compiled.run({**fed(model, feeds), index: wrong})
        assert f"({case.split()[0]}) takes" in str(error.value)
    np.testing.assert_array_equal(compiled.run(fed(model, feeds))["y0"], right)


@pytest.mark.parametrize("case", [c for c in CASES if c not in (
    "MaxRoiPool", "RoiAlign", "CropAndResize", "TensorScatter", "EmbedLayerNormalization")])
def test_right_indices_are_right_and_wrong_ones_wrong_to_onnxruntime(case: str) -> None:
    model, feeds, index, wrong, _ = build(case)
    model.ir_version = 10
    want = by_onnxruntime(model, feeds)[0]
    np.testing.assert_allclose(by_jitcl(model, feeds)[0], want, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="(?i)ind|out of|range|length|position"):
        by_onnxruntime(model, {**feeds, index: wrong})


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("MaxRoiPool",)])
def test_indices_that_are_constants(case: str) -> None:
    feeds, index, wrong, text, attrs = CASES[case]
    constants = (*attrs.get("constants", ()), index)
    model, *_ = build(case, constants=constants)
    assert jitcl.compile(model, device="cpu").run(fed(model, feeds))
    broken = one_node(case.split()[0], {**feeds, index: wrong},
                      **{"result": TensorProto.FLOAT, **attrs, "constants": constants})
    with pytest.raises(ModelError, match=re.escape(text)) as error:
        jitcl.compile(broken, device="cpu")
    assert f"({case.split()[0]})" in str(error.value)


def graph(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], *constants: tuple[str, Any],
          output: str = "y") -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants]),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def chained() -> onnx.ModelProto:
    """y = table[reshape(cast(ids) + 2)]"""
    return graph([
        helper.make_node("Cast", ["ids"], ["c"], to=TensorProto.INT64),
        helper.make_node("Add", ["c", "two"], ["a"]),
        helper.make_node("Unsqueeze", ["a", "axes"], ["u"]),
        helper.make_node("Gather", ["table", "u"], ["y"], name="embed")],
        {"ids": (TensorProto.INT32, ["n"])},
        ("two", i64(2)), ("axes", i64(0)), ("table", TABLE))


@pytest.mark.parametrize("device", present())
def test_through_casts_reshapes_and_sums(device: str) -> None:
    model = jitcl.compile(chained(), device=device)
    right = np.array([-2, 7], np.int32)
    np.testing.assert_array_equal(model.run({"ids": right})["y"], TABLE[None, right + 2])
    with pytest.raises(InputError) as error:
        model.run({"ids": np.array([0, 8], np.int32)})
    assert str(error.value) == ("input 'ids': index 8 at [1] is out of range\n"
                                "  node 'embed' (Gather) takes -12 to 7")


def computed() -> onnx.ModelProto:
    """y = table[ids * 3]"""
    return graph([
        helper.make_node("Mul", ["ids", "three"], ["i"]),
        helper.make_node("Gather", ["table", "i"], ["y"], name="embed")],
        {"ids": (TensorProto.INT64, ["n"])}, ("three", i64(3)), ("table", TABLE))


@pytest.mark.parametrize("device", present())
def test_what_is_computed_is_clamped_alike_everywhere(device: str) -> None:
    ids = i64(3, 4, -1, -4)
    y = jitcl.compile(computed(), device=device).run({"ids": ids})["y"]
    np.testing.assert_array_equal(y, TABLE[[9, 9, 7, 0]])


@pytest.mark.parametrize("device", present())
def test_what_is_computed_is_checked_where_that_is_asked_for(device: str) -> None:
    with config.override(check_indices=True):
        model = jitcl.compile(computed(), device=device, shapes={"ids": (3,)})
        found = model.run({"ids": i64(3, 0, -1)})
        assert list(found) == ["y"]
        np.testing.assert_array_equal(found["y"], TABLE[[9, 0, 7]])
        with pytest.raises(InputError) as error:
            model.run({"ids": i64(3, 0, -4)})
        assert "node 'embed' (Gather): the indices that the model computes" in str(error.value)
        assert "lie in -12 to 9\n  It takes 0 to 9, or -10 to -1 from the end" in str(error.value)
        bound = model.bind({"ids": (3,)})
        assert list(bound.outputs) in ([], ["y"])
        bound.inputs["ids"][:] = 2
        np.testing.assert_array_equal(bound.run()["y"], TABLE[[6, 6, 6]])
        assert list(bound.outputs) == ["y"]
        bound.inputs["ids"][1] = 5
        with pytest.raises(InputError, match="lie in 6 to 15"):
            bound.run()


@pytest.mark.parametrize("device", present())
def test_bound_arrays_are_checked(device: str) -> None:
    bound = jitcl.compile(chained(), device=device).bind({"ids": (2,)})
    bound.inputs["ids"][:] = 7
    np.testing.assert_array_equal(bound.run()["y"], TABLE[None, [9, 9]])
    bound.inputs["ids"][1] = 9
    with pytest.raises(InputError, match=r"input 'ids': index 9 at \[1\] is out of range"):
        bound.run()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("device", ["cpu", "opencl:pocl"])
def test_plans_for_many_shapes_check_at_the_shape_of_the_run(device: str, checked: bool) -> None:
    """The axis that is indexed is as long as an input."""
    opened(device)
    model = graph([helper.make_node("Gather", ["x", "i"], ["y"], name="pick"),
                   helper.make_node("Neg", ["i"], ["m"]),
                   helper.make_node("Gather", ["x", "m"], ["z"], name="back"),
                   helper.make_node("Concat", ["y", "z"], ["o"], axis=0)],
                  {"x": (TensorProto.FLOAT, ["n"]), "i": (TensorProto.INT64, [2])}, output="o")
    with config.override(check_indices=checked):
        compiled = jitcl.compile(model, device=device)
        for n in (3, 4, 5, 6, 7, 9):
            x = np.arange(n, dtype=np.float32)
            y = compiled.run({"x": x, "i": i64(1, n - 1)})["o"]
            np.testing.assert_array_equal(y, [1, n - 1, n - 1, 1])
            with pytest.raises(InputError, match=rf"index {n} at \[1\]"):
                compiled.run({"x": x, "i": i64(0, n)})
            if checked:
                with pytest.raises(InputError, match=f"computes .* lie in 0 to {n}"):
                    compiled.run({"x": x, "i": i64(0, -n)})
        assert "sizes" in str(compiled.report()) or compiled.last.sizes


def test_programs_check_what_is_fed_and_what_parts_read() -> None:
    """A shape that data decides cuts the model: the second part reads what the first computed."""
    model = graph([
        helper.make_node("NonZero", ["x"], ["nz"]),
        helper.make_node("Reshape", ["nz", "flat"], ["at"]),
        helper.make_node("Add", ["at", "more"], ["far"]),
        helper.make_node("Gather", ["table", "far"], ["a"], name="cut"),
        helper.make_node("Gather", ["table", "ids"], ["b"], name="direct"),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=0)],
        {"x": (TensorProto.FLOAT, [5]), "ids": (TensorProto.INT64, [1])},
        ("flat", i64(-1)), ("more", i64(6)), ("table", TABLE))
    compiled = jitcl.compile(model, device="cpu")
    x = np.array([0, 0, 1, 1, 0], np.float32)
    np.testing.assert_array_equal(compiled.run({"x": x, "ids": i64(1)})["y"], TABLE[[8, 9, 1]])
    with pytest.raises(InputError, match=r"input 'ids': index 11 at \[0\]"):
        compiled.run({"x": x, "ids": i64(11)})
    with pytest.raises(InputError, match="which the model computes: index 4 .* is out of range"):
        compiled.run({"x": x[::-1].copy() + 1, "ids": i64(1)})


def test_an_input_that_decides_shapes_is_still_the_callers() -> None:
    """Its value is part of the specialisation; what else reads it is checked as any input."""
    model = graph([
        helper.make_node("Gather", ["table", "k"], ["row"], name="pick"),
        helper.make_node("Tile", ["row", "k"], ["y"])],
        {"k": (TensorProto.INT64, [1])}, ("table", TABLE[:, 0].copy()))
    compiled = jitcl.compile(model, device="cpu")
    np.testing.assert_array_equal(compiled.run({"k": i64(3)})["y"], np.full(3, 12))
    with pytest.raises(InputError, match=r"input 'k': index 12 at \[0\] is .*\n  node 'pick'"):
        compiled.run({"k": i64(12)})


def test_constants_that_the_model_moves_before_it_indexes() -> None:
    model = graph([
        helper.make_node("Unsqueeze", ["k", "zero"], ["u"]),
        helper.make_node("Gather", ["table", "u"], ["y"], name="pick")],
        {"x": (TensorProto.FLOAT, [1])}, ("k", i64(3, 10)), ("zero", i64(0)), ("table", TABLE))
    with pytest.raises(ModelError, match=r"node 'pick' \(Gather\): .*index 10"):
        jitcl.compile(model, device="cpu").run({"x": np.zeros(1, np.float32)})


def test_one_hot_is_off_outside() -> None:
    feeds: Feeds = {"i": i64(0, -1, 3, -4), "d": i64(3), "v": np.array([2, 5], np.float32)}
    model = one_node("OneHot", feeds, constants=("d",), result=TensorProto.FLOAT)
    want = by_onnxruntime(model, feeds)[0]
    np.testing.assert_array_equal(by_jitcl(model, feeds)[0], want)
    assert want.sum(axis=1).tolist() == [9, 9, 6, 6]


def test_tables_without_rows_ask_for_no_indices() -> None:
    feeds: Feeds = {"x": np.zeros((0, 3), np.float32), "i": np.zeros(0, np.int64)}
    assert by_jitcl(one_node("Gather", feeds), feeds)[0].shape == (0, 3)


def test_outside() -> None:
    assert outside(i64(), (0,), (-1,)) is None
    assert outside(i64([1, 2], [3, -1]), (-1,), (3,)) is None
    assert outside(i64([1, 2], [3, -2]), (-1,), (3,)) == (-2, (1, 1), 0)
    assert outside(np.array(7, np.uint8), (0,), (6,)) == (7, (), 0)
    assert outside(np.array([2**63], np.uint64), (0,), (9,)) == (2**63, (0,), 0)
    columns = np.array([[0, np.nan], [2, 5]], np.float32)
    assert outside(columns, (0, NONE), (2, NONE)) is None
    assert outside(columns, (0, NONE), (1, NONE)) == (2.0, (1, 0), 0)
    assert outside(np.array([np.nan], np.float32), (0,), (1,)) is not None
