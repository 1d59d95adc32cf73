"""Models that are no single graph: parts, cuts and host steps."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import jitcl
from jitcl.frontends.onnx.rules import ONNX
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

X = np.array([[0, 1.5, 0, -2], [3, 0, 0.25, 0]], np.float32)


def picked() -> onnx.ModelProto:
    """exp(x) of the elements that are not zero, then their sum: x's data decides a shape."""
    return model(
        [node("NonZero", ["x"], ["where"], name="find"),
         node("Transpose", ["where"], ["places"], perm=[1, 0]),
         node("GatherND", ["x", "places"], ["found"]),
         node("Exp", ["found"], ["y"]),
         node("ReduceSum", ["y"], ["total"], keepdims=0)],
        [info("x", ["n", 4])], [info("y", ["k"]), info("total", [])])


@pytest.fixture
def no_erf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which Erf can't be compiled."""
    monkeypatch.delitem(ONNX, ("", "Erf"))


def with_erf(*shape: int | str) -> onnx.ModelProto:
    shape = shape or (2, 4)
    return model(
        [node("Mul", ["x", "two"], ["a"], name="double"), node("Erf", ["a"], ["b"], name="erf"),
         node("Add", ["b", "a"], ["c"], name="sum"), node("Sigmoid", ["c"], ["y"], name="last")],
        [info("x", shape)], [info("y", shape)], {"two": np.float32(2)})


# ---- cuts


@pytest.mark.parametrize("spec", in_turn())
def test_shapes_that_data_decides(spec: str) -> None:
    made = agrees(picked(), {"x": X}, spec)
    assert [r.kind for r in made.report().program] == ["part", "cut", "part"]
    assert made.report().host == ()
    for x in (X[:1], np.zeros((3, 4), np.float32)):
        same(list(made.run({"x": x}).values()),
             list(opened(picked(), "reference").run({"x": x}).values()))


def test_a_value_that_data_decides_becomes_part_of_the_key() -> None:
    """The length of x's largest run of bins decides a Reshape: too much data to compile for."""
    proto = model(
        [node("Relu", ["x"], ["r"]), node("ReduceMax", ["r"], ["m"], keepdims=0),
         node("Cast", ["m"], ["i"], to=I64), node("Unsqueeze", ["i", "zero"], ["rows"]),
         node("Concat", ["rows", "rest"], ["shape"], axis=0),
         node("Reshape", ["r", "shape"], ["y"], name="fold")],
        [info("x", [8])], [info("y", None)],
        {"zero": np.array([0]), "rest": np.array([-1])})
    x = np.arange(8, dtype=np.float32) % 5
    made = agrees(proto, {"x": x})
    (cut,) = [r for r in made.report().program if r.kind == "cut"]
    assert (cut.node, cut.op_type) == ("fold", "Reshape")
    assert "depend on the data of input 'x' f32[8]" in cut.why
    same(made.run({"x": x / 2})["y"], (x / 2).reshape(2, 4))
    same(made.run({"x": np.minimum(x, 1)})["y"], np.minimum(x, 1).reshape(1, 8))


def test_a_cut_inside_a_function() -> None:
    body = [node("NonZero", ["v"], ["i"]), node("Squeeze", ["i", "axes"], ["s"]),
            node("Gather", ["v", "s"], ["w"]), node("Neg", ["w"], ["r"], name="turn")]
    axes = node("Constant", [], ["axes"], value_ints=[0])
    function = helper.make_function(
        "my.ops", "Kept", ["v"], ["r"], [axes, *body], [helper.make_opsetid("", 21)])
    proto = model(
        [node("Kept", ["x"], ["a"], name="first", domain="my.ops"),
         node("Kept", ["a"], ["y"], name="second", domain="my.ops")],
        [info("x", [6])], [info("y", None)], functions=[function], domains=["my.ops"])
    x = np.array([0, 1, 0, 2, 3, 0], np.float32)
    made = agrees(proto, {"x": x})
    assert made.report().host == ()
    assert {n for s in made.report().steps for n, _ in s.nodes} >= {"first/turn", "second/turn"}


def test_specialisations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITCL_SPECIALISATIONS", "3")
    made = opened(picked(), "reference")
    for kept in range(1, 9):
        x = np.zeros((2, 4), np.float32)
        x.reshape(-1)[:kept] = 1
        assert made.run({"x": x})["y"].shape == (kept,)
    assert made.program is not None
    assert max(len(part._kept) for part in made.program._parts.values()) <= 3


def test_a_level_is_found_once_for_all_shapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nothing in it comes of a shape; a copy at one shape is none at another."""
    from jitcl.frontends.onnx.partition import Partition

    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    found = []
    level = Partition.level
    monkeypatch.setattr(Partition, "level", lambda *a: found.append(a[2]) or level(*a))
    made = opened(picked(), "reference")
    for kept in (3, 4, 5, 6):
        x = np.ones((2, 4), np.float32)
        x.reshape(-1)[kept:] = 0
        same(made.run({"x": x})["y"], np.full(kept, np.e, np.float32))
    assert len(found) == 2

    tiled = model([node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["f"], to=1),
                   node("Expand", ["x", "one"], ["e"]), node("Shape", ["f"], ["s"]),
                   node("Add", ["e", "f"], ["y"]), node("Erf", ["s32"], ["z"]),
                   node("Cast", ["s"], ["s32"], to=1)],
                  [info("x", ["n"])], [info("y", None), info("z", None)],
                  {"one": np.array([1, 1])})
    made = opened(tiled, "reference")
    for length in (1, 3, 2):
        x = np.ones(length, np.float32)
        same(list(made.run({"x": x}).values()), by_onnxruntime(tiled, {"x": x}))


# ---- host steps


def test_a_host_step_between_parts(no_erf: None) -> None:
    made = agrees(with_erf(), {"x": X})
    report = made.report()
    assert report.host == (("erf", "Erf", "no import rule"),)
    assert [r.kind for r in report.program] == ["part", "host", "part"]
    text = str(report).splitlines()
    assert "a program of 2 parts and 1 host step" in text[0]
    assert text[2] == "  host: 'erf' (Erf): no import rule"
    assert text[1].startswith("  part: 1 steps of 1 kernels")
    assert {op for s in report.steps for _, op in s.nodes} == {"Mul", "Add", "Sigmoid"}
    assert made.plan is made.plans[0] and len(made.plans) == 2


def test_the_report_shows_which_shapes_a_part_serves(no_erf: None) -> None:
    made = opened(with_erf("n"))
    for n in (5, 6, 7):
        made.run({"x": np.ones(n, np.float32)})
    parts = [str(r) for r in made.report().program if r.kind == "part"]
    assert len(parts) == 2
    assert all("; one plan for many shapes: " in p and "= 7 (room for" in p for p in parts), parts


def test_strict_lists_what_would_run_on_the_host(no_erf: None) -> None:
    with pytest.raises(jitcl.UnsupportedError) as caught:
        opened(with_erf(), strict=True)
    assert str(caught.value).splitlines() == [
        "test: 1 node would run on the host, which strict=True rules out",
        "  'erf' (Erf): no import rule",
        "  Replace these nodes when exporting, declare the ops (see CONTRIBUTING.md), or leave "
        "strict out."]


def test_strict_takes_cuts() -> None:
    same(opened(picked(), strict=True).run({"x": X})["y"], np.exp(X[X != 0]))


def test_a_failing_host_step_is_named(no_erf: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx.reference.ops.op_erf import Erf

    def broken(self: Any, x: Any) -> Any:
        raise ValueError("out of luck")
    monkeypatch.setattr(Erf, "_run", broken)
    with pytest.raises(jitcl.ModelError) as caught:
        opened(with_erf()).run({"x": X})
    assert str(caught.value) == ("node 'erf' (Erf): failed on the host: ValueError: out of luck\n"
                                 "  'a': f32[2,4]")


def test_what_nothing_implements_is_listed() -> None:
    proto = model([node("Magic", ["x"], ["a"], name="m", domain="my.ops"),
                   node("Relu", ["a"], ["y"])], [info("x", [2])], [info("y", [2])],
                  domains=["my.ops"])
    with pytest.raises(jitcl.UnsupportedError) as caught:
        opened(proto)
    assert "'m' (Magic of domain 'my.ops')" in str(caught.value)
    assert "onnx.reference has no implementation" in str(caught.value)


UNARY, BINARY = ("Neg", "Exp", "Abs", "Sin"), ("Add", "Sub", "Mul")


@pytest.mark.parametrize("seed", range(6))
def test_any_ops_may_run_on_the_host(seed: int, monkeypatch: pytest.MonkeyPatch,
                                     tmp_path: Path) -> None:
    """Random graphs of which random ops can't be compiled: each such node is a host step, once."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    rng = np.random.default_rng(seed)
    names, nodes = ["x"], []
    for i in range(12):
        binary = rng.random() < 0.5
        op = str(rng.choice(BINARY if binary else UNARY))
        operands = [str(rng.choice(names)) for _ in range(1 + binary)]
        if op == "Exp":
            nodes.append(node("Sin", operands, [f"s{i}"], name=f"bound{i}"))
            operands = [f"s{i}"]
        nodes.append(node(op, operands, [f"v{i}"], name=f"node{i}"))
        names.append(f"v{i}")
    outputs = [str(n) for n in rng.choice(names[1:], 3, replace=False)]
    proto = model(nodes, [info("x", [2, 4])], [info(n, [2, 4]) for n in outputs])
    removed = {str(op) for op in rng.choice(UNARY + BINARY, 3, replace=False)}
    for op in removed:
        monkeypatch.delitem(ONNX, ("", op))
    made = agrees(proto, {"x": X}, "reference", [by_reference])
    needed, wanted = set(outputs), []
    for n in reversed(nodes):
        if n.output[0] in needed:
            needed.update(n.input)
            wanted += [(n.name, n.op_type)] if n.op_type in removed else []
    assert sorted(row[:2] for row in made.report().host) == sorted(wanted)


# ---- values


def test_results_share_no_memory_with_what_was_fed() -> None:
    """Identity of a sequence passes what it reads on."""
    tensor = helper.make_tensor_type_proto(1, [3])
    both = helper.make_sequence_type_proto(tensor)
    proto = model([node("Identity", ["s"], ["y"])], [helper.make_value_info("s", both)],
                  [helper.make_value_info("y", both)])
    fed = [np.ones(3, np.float32)]
    (got,) = opened(proto).run({"s": fed})["y"]
    got += 1
    assert fed[0].tolist() == [1, 1, 1]


def test_constants_as_outputs_and_operands_of_the_host(no_erf: None) -> None:
    proto = model([node("Erf", ["w"], ["y"]), node("NonZero", ["x"], ["z"])],
                  [info("x", [2, 4])], [info("y", None), info("w", [2]), info("z", None, I64)],
                  {"w": np.array([0.5, 1], np.float32)})
    agrees(proto, {"x": X})


def test_defaults_may_be_fed() -> None:
    proto = model([node("Add", ["x", "w"], ["a"]), node("NonZero", ["a"], ["y"])],
                  [info("x", [3]), info("w", [3])], [info("y", None, I64)],
                  {"w": np.array([0, 1, 0], np.float32)})
    made, x = opened(proto), np.array([0, -1, 2], np.float32)
    same(made.run({"x": x})["y"], np.array([[2]]))
    same(made.run({"x": x, "w": np.ones(3, np.float32)})["y"], np.array([[0, 2]]))


def test_names_that_are_no_identifiers() -> None:
    proto = model([node("NonZero", ["in put/0:x"], ["#1"]), node("Cast", ["#1"], ["2"], to=1),
                   node("Neg", ["2"], ["out~0"])], [info("in put/0:x", [5])], [info("out~0", None)])
    agrees(proto, {"in put/0:x": np.array([1, 0, 2, 0, 3], np.float32)})


def test_ranks_that_the_file_does_not_say() -> None:
    free = onnx.ValueInfoProto(name="x")
    free.type.tensor_type.elem_type = 1
    made = opened(model([node("Relu", ["x"], ["y"])], [free], [info("y", None)]))
    assert str(made.inputs[0]) == "'x' f32[...]"
    for x in (X, X[0], X[None]):
        same(made.run({"x": x})["y"], np.maximum(x, 0))


def test_repeatable_and_from_threads(no_erf: None) -> None:
    made = opened(with_erf())
    feeds = [{"x": X + i} for i in range(16)]
    alone = [made.run(f)["y"] for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda f: made.run(f)["y"], feeds))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together))
    again = opened(with_erf()).run(feeds[3])["y"]
    assert np.array_equal(again, alone[3])


# ---- the cache


def warm(path: Path, cache: Path) -> str:
    """What a new process says: loaded onnx?, from the cache?, the sum of y."""
    code = (
        "import sys, numpy as np, jitcl\n"
        f"m = jitcl.compile({str(path)!r}, device='cpu')\n"
        "y = m.run({'x': np.arange(8, dtype=np.float32).reshape(2, 4)})['y']\n"
        "print('onnx' in sys.modules, m.report().from_cache, y.shape)\n")
    env = {**os.environ, "JITCL_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, text=True,
                          capture_output=True).stdout.strip()


def test_a_warm_start_needs_no_onnx(tmp_path: Path) -> None:
    path = tmp_path / "picked.onnx"
    onnx.save(picked(), path)
    assert warm(path, tmp_path / "cache") == "True False (7,)"
    assert warm(path, tmp_path / "cache") == "False True (7,)"


def test_a_warm_start_does_not_take_elements_for_granted(tmp_path: Path) -> None:
    """That the elements of 'split' decide shapes is known from the cache; they are not."""
    proto = model([node("SplitToSequence", ["x", "split"], ["pieces"], axis=0)],
                  [info("x", [5, 2]), info("split", [2], I64)], [sequence("pieces")])
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for first in (3, 3, 1):
        made = opened(proto, cache_dir=tmp_path)
        pieces = made.run({"x": x, "split": np.array([first, 5 - first])})["pieces"]
        same(pieces, [x[:first], x[first:]])


def test_levels_survive_as_text() -> None:
    from jitcl.frontends.levels import Level

    body = graph("b", [node("Add", ["v", "x"], ["w"])], [info("i", [], I64), info("c", [], BOOL),
                                                         info("v", [2])],
                 [info("c", [], BOOL), info("w", [2])])
    proto = model([node("Loop", ["n", "", "x"], ["y"], body=body)],
                  [info("x", [2]), info("n", [], I64)], [info("y", [2])])
    made = opened(proto)
    same(made.run({"x": np.ones(2, np.float32), "n": np.array(3)})["y"], np.full(2, 4, np.float32))
    assert made.program is not None
    for level in made.program._levels.values():
        assert Level.decode(level.encode()) == level
