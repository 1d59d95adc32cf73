"""Strings: values of the program, computed by onnx.reference, between compiled parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import jitcl
from tests.devices import present
from tests.programs import BOOL, I64, STRING, agrees, by_reference, info, model, node, opened, same

WORDS = np.array(["jit", "cl", "", "Ünïcode"], object)


@pytest.mark.parametrize("spec", present())
def test_strings_beside_numbers(spec: str) -> None:
    """Numbers of strings are computed with; the numbers' part is compiled."""
    proto = model(
        [node("Cast", ["s"], ["v"], to=1, name="read"), node("Exp", ["v"], ["e"]),
         node("Add", ["e", "x"], ["y"])],
        [info("s", ["n"], STRING), info("x", ["n"])], [info("y", ["n"])])
    feeds = {"s": np.array(["1", "-2.5", "0.25"], object), "x": np.ones(3, np.float32)}
    made = agrees(proto, feeds, spec)
    assert [row[:2] for row in made.report().host] == [("read", "Cast")]
    assert {op for s in made.report().steps for _, op in s.nodes} == {"Exp", "Add"}


@pytest.mark.parametrize("nodes", [
    [node("StringConcat", ["s", "w"], ["y"])],
    [node("Identity", ["s"], ["y"])],
    [node("Gather", ["s", "i"], ["y"])],
    [node("Reshape", ["s", "two"], ["y"])],
    [node("Concat", ["s", "w"], ["y"], axis=0)],
    [node("StringNormalizer", ["s"], ["y"], case_change_action="UPPER", stopwords=["CL"])],
    [node("Gather", ["w", "i"], ["g"]), node("StringConcat", ["g", "g"], ["y"])],
], ids=lambda nodes: nodes[-1].op_type)
def test_ops_on_strings(nodes: list[Any]) -> None:
    proto = model(nodes, [info("s", [4], STRING)], [info("y", None, STRING)],
                  {"i": np.array([3, 0]), "two": np.array([2, 2])})
    constant = onnx.helper.make_tensor("w", STRING, [4], [b"a", b"b", b"c", b"d"])
    proto.graph.initializer.append(constant)
    agrees(proto, {"s": WORDS}, "cpu", [by_reference])


@pytest.mark.parametrize(("op", "attrs"), [
    ("RegexFullMatch", {"pattern": "[a-z]+"}), ("Equal", {})])
def test_comparisons_of_strings(op: str, attrs: dict[str, Any]) -> None:
    inputs = ["s"] if attrs else ["s", "s"]
    proto = model([node(op, inputs, ["b"], **attrs), node("Not", ["b"], ["y"])],
                  [info("s", [4], STRING)], [info("y", [4], BOOL)])
    made = agrees(proto, {"s": WORDS}, "cpu", [by_reference])
    assert {o for s in made.report().steps for _, o in s.nodes} == {"Not"}


def test_splitting_makes_as_many_as_there_are() -> None:
    proto = model([node("StringSplit", ["s"], ["words", "n"], delimiter=" "),
                   node("Mul", ["n", "n"], ["m"])],
                  [info("s", [2], STRING)], [info("words", None, STRING), info("m", [2], I64)])
    agrees(proto, {"s": np.array(["a b c", "d"], object)}, "cpu", [by_reference])


def test_strings_of_a_constant_node() -> None:
    proto = model([node("Constant", [], ["c"], value_strings=["x", "y"]),
                   node("StringConcat", ["s", "c"], ["y"])],
                  [info("s", [2], STRING)], [info("y", [2], STRING)])
    same(opened(proto).run({"s": WORDS[:2]})["y"], np.array(["jitx", "cly"], object))


@pytest.mark.parametrize("fed", [
    np.array(["a", "b"]), np.array([b"a", b"b"]), ["a", "b"],
    np.array(["a", "b"], np.dtypes.StringDType())], ids=["str_", "bytes_", "list", "StringDType"])
def test_any_of_numpys_strings_may_be_fed(fed: Any) -> None:
    proto = model([node("Identity", ["s"], ["y"])], [info("s", [2], STRING)],
                  [info("y", [2], STRING)])
    same(opened(proto).run({"s": fed})["y"], np.array(["a", "b"], object))


@pytest.mark.parametrize(("fed", "text"), [
    (np.ones(2), "input 's' string\\[2\\]: got dtype float64 with a float in it, wanted strings"),
    (np.array(["a", None], object), "with None in it, wanted strings"),
    (np.array(["a"]), r"axis 0 is 1, wanted 2")])
def test_what_are_no_strings(fed: Any, text: str) -> None:
    proto = model([node("Identity", ["s"], ["y"])], [info("s", [2], STRING)],
                  [info("y", [2], STRING)])
    with pytest.raises(jitcl.InputError, match=text):
        opened(proto).run({"s": fed})


def test_strict_refuses_strings() -> None:
    proto = model([node("Identity", ["s"], ["y"], name="pass")], [info("s", [2], STRING)],
                  [info("y", [2], STRING)])
    with pytest.raises(jitcl.UnsupportedError, match=r"'pass' \(Identity\): reads strings"):
        opened(proto, strict=True).run({"s": WORDS[:2]})
