"""Sequences and optionals: resolved at import where a model makes them, values where it is fed
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import jitcl
from tests.devices import present
from tests.programs import (
    BOOL,
    I64,
    agrees,
    by_onnxruntime,
    info,
    model,
    node,
    opened,
    same,
    sequence,
)

X = np.arange(12, dtype=np.float32).reshape(4, 3)
A, B = np.ones((2, 2), np.float32), np.full((1, 2), 2, np.float32)


def optional(name: str, shape: Any) -> onnx.ValueInfoProto:
    inner = helper.make_tensor_type_proto(1, shape)
    return helper.make_value_info(name, helper.make_optional_type_proto(inner))


@pytest.mark.parametrize("spec", present())
def test_sequences_made_inside_are_compiled(spec: str) -> None:
    proto = model(
        [node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
         node("SequenceAt", ["parts", "one"], ["second"]),
         node("SequenceErase", ["parts", "zero"], ["rest"]),
         node("SequenceInsert", ["rest", "x", "zero"], ["more"]),
         node("SequenceLength", ["more"], ["n"]), node("Cast", ["n"], ["count"], to=1),
         node("ConcatFromSequence", ["more"], ["all"], axis=0),
         node("Add", ["all", "count"], ["y"])],
        [info("x", [4, 3])], [info("y", None), info("second", None)],
        {"sizes": np.array([1, 3]), "one": np.array(-1), "zero": np.array(0)})
    made = agrees(proto, {"x": X}, spec)
    assert made.program is None and made.report().host == ()


@pytest.mark.parametrize("attrs", [{"keepdims": 1}, {"keepdims": 0}])
def test_splits_of_one(attrs: dict[str, int]) -> None:
    proto = model([node("SplitToSequence", ["x"], ["parts"], axis=1, **attrs),
                   node("ConcatFromSequence", ["parts"], ["y"], axis=0, new_axis=1)],
                  [info("x", [4, 3])], [info("y", None)])
    assert agrees(proto, {"x": X}).program is None


def test_sequences_that_are_fed_and_given() -> None:
    proto = model([node("SequenceInsert", ["s", "x"], ["t"], name="put"),
                   node("SequenceAt", ["t", "i"], ["one"]), node("Exp", ["one"], ["y"])],
                  [sequence("s", 1, [None, 2]), info("x", [1, 2]), info("i", [], I64)],
                  [sequence("t"), info("y", None)])
    feeds = {"s": [A, B], "x": B * 2, "i": np.array(1)}
    made = agrees(proto, feeds)
    assert str(made.inputs[0]).startswith("'s' sequence of f32[")
    assert {op for s in made.report().steps for _, op in s.nodes} == {"Exp"}
    assert ("put", "SequenceInsert") in [row[:2] for row in made.report().host]


def test_a_sequence_of_the_model_is_an_output() -> None:
    proto = model([node("SplitToSequence", ["x"], ["parts"], axis=0)], [info("x", [4, 3])],
                  [sequence("parts")])
    made = agrees(proto, {"x": X})
    assert made.report().host == ()


@pytest.mark.parametrize(("value", "text"), [
    (A, r"input 's' sequence of f32\[.*\]: got a ndarray, wanted a list of arrays"),
    ([A, A.astype(np.float64)], "item 1: got dtype float64, wanted float32"),
    ([A, A[0]], r"item 1: got 1 axes \(2,\), wanted 2"),
    ([None], "item 0: got None, wanted an array")])
def test_odd_sequences_are_refused(value: Any, text: str) -> None:
    proto = model([node("SequenceLength", ["s"], ["n"])], [sequence("s", 1, [None, 2])],
                  [info("n", [], I64)])
    with pytest.raises(jitcl.InputError, match=text):
        opened(proto).run({"s": value})


# ---- optionals


def test_optionals_made_inside_are_compiled() -> None:
    proto = model(
        [node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["there"]),
         node("OptionalGetElement", ["o"], ["v"]), node("Neg", ["v"], ["y"])],
        [info("x", [4, 3])], [info("y", [4, 3]), info("there", [], BOOL)])
    made = agrees(proto, {"x": X}, "cpu", [by_onnxruntime])  # onnx.reference makes it a list
    assert made.program is None


def test_inserting_by_position() -> None:
    """At the end, into an empty sequence, from behind: where onnx.reference is at fault."""
    proto = model([node("SequenceInsert", ["s", "x", "i"], ["t"])],
                  [sequence("s"), info("x", [1]), info("i", [], I64)], [sequence("t")])
    made, x = opened(proto), np.array([9], np.float32)
    fed = [np.array([k], np.float32) for k in range(3)]
    for length, at in ((3, 3), (3, 0), (3, -1), (3, 1), (0, 0)):
        feeds = {"s": fed[:length], "x": x, "i": np.array(at)}
        want = [v.tolist() for v in fed[:length]]
        want.insert(at if at >= 0 else at + length, [9])
        assert [v.tolist() for v in made.run(feeds)["t"]] == want
    with pytest.raises(jitcl.ModelError, match="position 5 is outside a sequence of 3"):
        made.run({"s": fed, "x": x, "i": np.array(5)})


def test_errors_name_the_node() -> None:
    proto = model([node("SequenceConstruct", ["a", "b"], ["s"]),
                   node("ConcatFromSequence", ["s"], ["y"], name="join", axis=0)],
                  [info("a", [2, 3]), info("b", [2, 4])], [info("y", None)])
    with pytest.raises(jitcl.ShapeError, match=r"node 'join' \(ConcatFromSequence\): "):
        opened(proto).run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 4), np.float32)})


def test_optionals_that_are_fed() -> None:
    proto = model([node("OptionalHasElement", ["o"], ["there"])], [optional("o", [2])],
                  [info("there", [], BOOL)])
    made = opened(proto)
    same(made.run({"o": np.ones(2, np.float32)})["there"], np.array(True))
    same(made.run({"o": None})["there"], np.array(False))
    same(made.run({})["there"], np.array(False))


def test_sequence_map() -> None:
    body = helper.make_graph([node("Mul", ["v", "k"], ["w"])], "each",
                             [info("v", None), info("k", None)], [info("w", None)])
    proto = model([node("SequenceMap", ["s", "x"], ["t"], body=body)],
                  [sequence("s", 1, [None, 2]), info("x", [2])], [sequence("t")], opset=17)
    feeds = {"s": [A, B, A], "x": np.array([2, 3], np.float32)}
    agrees(proto, feeds, "cpu", [by_onnxruntime])


def test_sequence_map_inside_is_compiled() -> None:
    body = helper.make_graph([node("Neg", ["v"], ["w"])], "each", [info("v", None)],
                             [info("w", None)])
    proto = model([node("SplitToSequence", ["x"], ["s"], axis=0),
                   node("SequenceMap", ["s"], ["t"], body=body),
                   node("ConcatFromSequence", ["t"], ["y"], axis=0)],
                  [info("x", [4, 3])], [info("y", None)], opset=17)
    made = agrees(proto, {"x": X}, "cpu", [by_onnxruntime])
    assert made.program is None
