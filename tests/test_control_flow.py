"""If, Loop and Scan: folded or unrolled at import, else driven by the host over compiled bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import jitcl
from tests.programs import (
    BOOL,
    I64,
    agrees,
    by_onnxruntime,
    by_reference,
    graph,
    in_turn,
    info,
    model,
    node,
    opened,
    same,
    sequence,
)

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


# ---- If


def either(condition: list[Any], inputs: list[Any]) -> onnx.ModelProto:
    """x * w where the condition holds, else the places of what is not zero, as floats."""
    yes = graph("yes", [node("Mul", ["x", "w"], ["a"], name="times")], [], [info("a", None)])
    no = graph("no", [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["b"], to=1)], [],
               [info("b", None)])
    return model(
        [*condition, node("If", ["c"], ["r"], name="choose", then_branch=yes, else_branch=no),
         node("Neg", ["r"], ["y"])],
        [info("x", [2, 3]), *inputs], [info("y", None)], {"w": np.float32(3)})


@pytest.mark.parametrize("spec", in_turn())
def test_if_with_a_condition_that_is_fed(spec: str) -> None:
    proto = either([], [info("c", [], BOOL)])
    for c in (True, False):
        agrees(proto, {"x": X, "c": np.array(c)}, spec)


def test_if_with_a_computed_condition() -> None:
    proto = either([node("ReduceSum", ["x"], ["s"], keepdims=0),
                    node("Greater", ["s", "w"], ["c"])], [])
    made = agrees(proto, {"x": X + 4})
    same(list(made.run({"x": X}).values()), by_reference(proto, {"x": X}))
    assert [r.op_type for r in made.report().program if r.kind == "cut"][0] == "If"


# ---- Loop


def powers(limit: bool = False) -> onnx.ModelProto:
    """v = v * x + w, n times, or until its sum is over 50; and v of every step."""
    nodes = [node("Mul", ["v", "x"], ["p"], name="times"), node("Add", ["p", "w"], ["v1"]),
             node("Identity", ["v1"], ["each"])]
    nodes += [node("ReduceSum", ["v1"], ["s"], keepdims=0), node("Less", ["s", "fifty"], ["go"])
              ] if limit else [node("Identity", ["c"], ["go"])]
    body = graph("body", nodes, [info("i", [], I64), info("c", [], BOOL), info("v", [2, 3])],
                 [info("go", [], BOOL), info("v1", [2, 3]), info("each", [2, 3])],
                 {"fifty": np.float32(50)})
    return model([node("Loop", ["n", "", "x"], ["last", "all"], name="grow", body=body)],
                 [info("x", [2, 3]), info("n", [], I64)],
                 [info("last", [2, 3]), info("all", None)], {"w": np.float32(0.5)})


@pytest.mark.parametrize("spec", in_turn())
@pytest.mark.parametrize("limit", [False, True])
def test_loop_with_a_fed_trip_count(spec: str, limit: bool) -> None:
    proto = powers(limit)
    made = agrees(proto, {"x": X + 2, "n": np.array(5)}, spec, [by_onnxruntime])
    rows = [(n, op) for n, op, _ in made.report().host]
    assert rows == ([("grow", "Loop")] if limit else [])
    assert {op for s in made.report().steps for _, op in s.nodes} >= {"Mul", "Add"}
    same(list(made.run({"x": X, "n": np.array(2)}).values()),
         by_onnxruntime(proto, {"x": X, "n": np.array(2)}))


def test_the_body_of_a_loop_is_compiled_once() -> None:
    made = opened(powers())
    made.run({"x": X, "n": np.array(40)})
    assert made.program is not None
    (part,) = made.program._parts.values()
    assert len(part._kept) == 1


def test_a_loop_that_makes_no_step() -> None:
    got = opened(powers()).run({"x": X, "n": np.array(0)})
    same(got["last"], X)
    same(got["all"], np.zeros((0, 2, 3), np.float32))


def test_a_short_loop_is_unrolled() -> None:
    proto = powers()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4), "n"))
    del proto.graph.input[1]
    made = agrees(proto, {"x": X}, "cpu", [by_onnxruntime])
    assert made.program is None and made.report().host == ()


def test_strict_names_the_loop() -> None:
    with pytest.raises(jitcl.UnsupportedError, match=r"'grow' \(Loop\): its trip count is known"):
        opened(powers(limit=True), strict=True)


def test_a_loop_that_keeps_a_sequence() -> None:
    """Results of each step, of growing length, kept in a sequence."""
    body = graph(
        "body",
        [node("Add", ["i", "one"], ["k"]), node("Unsqueeze", ["k", "zero"], ["ends"]),
         node("Slice", ["x", "zero", "ends"], ["head"]), node("Exp", ["head"], ["e"]),
         node("SequenceInsert", ["s", "e"], ["s1"])],
        [info("i", [], I64), info("c", [], BOOL), sequence("s")],
        [info("c", [], BOOL), sequence("s1")], {"one": np.array(1), "zero": np.array([0])})
    proto = model(
        [node("SequenceEmpty", [], ["none"]),
         node("Loop", ["n", "", "none"], ["kept"], name="heads", body=body),
         node("ConcatFromSequence", ["kept"], ["y"], axis=0)],
        [info("x", [5]), info("n", [], I64)], [info("y", None)])
    agrees(proto, {"x": np.arange(5, dtype=np.float32), "n": np.array(4)}, "cpu", [by_onnxruntime])


def test_a_loop_in_a_loop_that_captures_from_both_scopes() -> None:
    inner = graph(
        "inner", [node("Mul", ["a", "x"], ["m"]), node("Add", ["m", "outer"], ["a1"])],
        [info("j", [], I64), info("d", [], BOOL), info("a", [3])],
        [info("d", [], BOOL), info("a1", [3])])
    outer = graph(
        "outer", [node("Sin", ["b"], ["outer"]),
                  node("Loop", ["n", "", "b"], ["b1"], name="inside", body=inner)],
        [info("i", [], I64), info("c", [], BOOL), info("b", [3])],
        [info("c", [], BOOL), info("b1", [3])])
    proto = model([node("Loop", ["n", "", "x"], ["y"], name="around", body=outer)],
                  [info("x", [3]), info("n", [], I64)], [info("y", [3])])
    made = agrees(proto, {"x": np.array([0.1, 0.5, -1], np.float32), "n": np.array(3)}, "cpu",
                  [by_onnxruntime])
    assert [n for n, _, _ in made.report().host] == ["around"]
    text = str(made.report())
    assert "\n  host: 'around' (Loop)" in text and "\n    loop: 'inside' (Loop)" in text


# ---- Scan


def sums(steps: int, **attrs: Any) -> onnx.ModelProto:
    """Running sums of x, scaled by w, along the scanned axis."""
    body = graph("body", [node("Add", ["s", "v"], ["s1"]), node("Mul", ["s1", "w"], ["o"])],
                 [info("s", [2]), info("v", [2])], [info("s1", [2]), info("o", [2])])
    shape = [2, steps] if attrs.get("scan_input_axes") else [steps, 2]
    return model([node("Scan", ["z", "x"], ["last", "all"], name="sums", body=body,
                       num_scan_inputs=1, **attrs)],
                 [info("z", [2]), info("x", shape)], [info("last", [2]), info("all", None)],
                 {"w": np.float32(0.5)})


@pytest.mark.parametrize("steps", [3, 40])
@pytest.mark.parametrize("attrs", [
    {}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]},
    {"scan_input_axes": [1], "scan_output_axes": [-1]}])
def test_scan_in_all_directions(steps: int, attrs: dict[str, Any]) -> None:
    proto = sums(steps, **attrs)
    x = np.arange(2 * steps, dtype=np.float32).reshape(
        [2, steps] if "scan_input_axes" in attrs else [steps, 2])
    made = agrees(proto, {"z": np.ones(2, np.float32), "x": x}, "cpu", [by_onnxruntime])
    assert not made.report().host
    assert [r.kind for r in made.report().program] == (["loop", "part"] if steps > 32 else [])


def test_scan_of_opset_8_has_a_batch() -> None:
    body = graph("body", [node("Add", ["s", "v"], ["s1"]), node("Identity", ["s1"], ["o"])],
                 [info("s", [2]), info("v", [2])], [info("s1", [2]), info("o", [2])])
    proto = model([node("Scan", ["n", "z", "x"], ["last", "all"], body=body, num_scan_inputs=1)],
                  [info("n", [3], I64), info("z", [3, 2]), info("x", [3, 4, 2])],
                  [info("last", [3, 2]), info("all", [3, 4, 2])], opset=8)
    x, lengths = np.arange(24, dtype=np.float32).reshape(3, 4, 2), [4, 2, 3]
    got = opened(proto).run({"n": np.array(lengths), "z": np.zeros((3, 2), np.float32), "x": x})
    for k, n in enumerate(lengths):
        want = np.cumsum(x[k, :n], axis=0)
        same(got["last"][k], want[-1])
        same(got["all"][k], np.concatenate([want, np.zeros((4 - n, 2), np.float32)]))
