"""Loops whose steps follow each other on the device: a body that is one part, state of fixed
shapes, no condition that data decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitcl
from jitcl.devices.base import Repeat
from jitcl.devices.cpu import repetition
from jitcl.devices.repeated import one_by_one
from jitcl.ir.types import Sym
from tests.devices import present
from tests.programs import (
    BOOL,
    I64,
    agrees,
    by_onnxruntime,
    graph,
    in_turn,
    info,
    model,
    node,
    opened,
    same,
)

LOOP = [info("i", [], I64), info("c", [], BOOL)]


def looped(nodes: list[Any], state: list[tuple[str, str]], each: list[str], shape: Any,
           steps: int | None = 40, dtype: int = 1, constants: Any = None,
           condition: str = "c") -> onnx.ModelProto:
    """A Loop named 'walk' of state (before, behind) and results of each step, all of one shape; fed
    are x [40, ..] and the state, and `n` where there are no `steps`.
    """
    body = graph("body", nodes, [*LOOP, *(info(a, shape, dtype) for a, _ in state)],
                 [info(condition, [], BOOL), *(info(b, shape, dtype) for _, b in state),
                  *(info(e, None, dtype) for e in each)])
    outs = [f"last_{a}" for a, _ in state] + [f"all_{e}" for e in each]
    inputs = [info("x", [40, *shape], dtype), *(info(f"{a}0", shape, dtype) for a, _ in state)]
    known = {} if steps is None else {"n": np.array(steps)}
    return model([node("Loop", ["n", "", *(f"{a}0" for a, _ in state)], outs, name="walk",
                       body=body)],
                 inputs + ([info("n", [], I64)] if steps is None else []),
                 [info(o, None, dtype) for o in outs], {**known, **(constants or {})})


def fed(proto: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for i in proto.graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        feeds[i.name] = rng.integers(-3, 4, dims).astype(kind) if kind.kind == "i" else (
            rng.standard_normal(dims).astype(kind))
    return feeds


def on_device(made: jitcl.Model) -> bool:
    """Whether the loop ran without the host."""
    report = made.report()
    return not report.host and "loop" in [r.kind for r in report.program]


def lstm(steps: int, hidden: int, batch: Any = 1) -> onnx.ModelProto:
    """An LSTM as exporters write it that know no LSTM: a Loop over the rows of x."""
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((hidden, 4 * hidden)).astype(np.float32) / hidden**0.5
            for _ in range(2))
    body = graph(
        "body",
        [node("Gather", ["x", "i"], ["xi"], axis=0), node("MatMul", ["xi", "w"], ["xw"]),
         node("MatMul", ["h", "r"], ["hr"]), node("Add", ["xw", "hr"], ["s"]),
         node("Split", ["s"], ["a", "f", "g", "o"], axis=1, num_outputs=4),
         node("Sigmoid", ["a"], ["ia"]), node("Sigmoid", ["f"], ["fa"]),
         node("Tanh", ["g"], ["ga"]), node("Sigmoid", ["o"], ["oa"]),
         node("Mul", ["fa", "k"], ["fk"]), node("Mul", ["ia", "ga"], ["ig"]),
         node("Add", ["fk", "ig"], ["k1"]), node("Tanh", ["k1"], ["tk"]),
         node("Mul", ["oa", "tk"], ["h1"]), node("Identity", ["h1"], ["y"]),
         node("Identity", ["c"], ["c1"])],
        [*LOOP, info("h", [batch, hidden]), info("k", [batch, hidden])],
        [info("c1", [], BOOL), info("h1", [batch, hidden]), info("k1", [batch, hidden]),
         info("y", [batch, hidden])])
    return model([node("Loop", ["n", "go", "h0", "k0"], ["h", "k", "ys"], name="lstm", body=body)],
                 [info("x", [steps, batch, hidden]), info("h0", [batch, hidden]),
                  info("k0", [batch, hidden])],
                 [info("h", None), info("k", None), info("ys", None)],
                 {"w": w, "r": r, "n": np.array(steps), "go": np.array(True)})


@pytest.mark.parametrize("spec", in_turn())
def test_an_lstm_that_is_a_loop(spec: str) -> None:
    proto = lstm(50, 16)
    made = agrees(proto, fed(proto), spec, [by_onnxruntime], strict=True)
    assert on_device(made)
    assert "loop: 'lstm' (Loop): its steps follow without the host" in str(made.report())
    assert {op for s in made.report().steps for _, op in s.nodes} >= {"MatMul", "Tanh"}


def test_more_steps_than_a_table_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "STEPS", 64)
    proto = lstm(333, 8)
    made = agrees(proto, fed(proto), "cpu", [by_onnxruntime], strict=True)
    assert on_device(made)


def test_large_steps_are_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = lstm(40, 256, 8)
    monkeypatch.setenv("JITCL_THREADS", "1")
    alone = agrees(proto, fed(proto), "cpu", [by_onnxruntime], strict=True).run(fed(proto))
    monkeypatch.setenv("JITCL_THREADS", "3")
    for _ in range(3):
        together = opened(proto, strict=True).run(fed(proto))
        for name, want in alone.items():
            np.testing.assert_array_equal(together[name], want)


CASES = {
    # (nodes, state, results of each step)
    "two states that change places": (
        [node("Add", ["a", "b"], ["s"]), node("Tanh", ["s"], ["t"])], [("a", "b"), ("b", "t")], []),
    "three in a ring": (
        [node("Neg", ["a"], ["m"]), node("Add", ["b", "k"], ["e"])],
        [("a", "b"), ("b", "k"), ("k", "m")], ["e"]),
    "a state that stays": (
        [node("Mul", ["a", "b"], ["a1"]), node("Tanh", ["a1"], ["t"])], [("a", "t"), ("b", "b")],
        ["a1"]),
    "a state that nobody reads": (
        [node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "a"], ["a1"])],
        [("a", "a1"), ("b", "g")], []),
    "what a state was before": (
        [node("Gather", ["x", "i"], ["g"]), node("Mul", ["g", "a"], ["a1"]),
         node("Identity", ["a"], ["was"])], [("a", "a1")], ["was", "g"]),
    "two results that are one": (
        [node("Sub", ["b", "a"], ["a1"]), node("Identity", ["a1"], ["y"])],
        [("a", "a1"), ("b", "a1")], ["y"]),
    "the step's number": (
        [node("Cast", ["i"], ["f"], to=1), node("Div", ["a", "two"], ["h"]),
         node("Add", ["h", "f"], ["a1"])], [("a", "a1")], []),
}


@pytest.mark.parametrize("spec", in_turn())
@pytest.mark.parametrize("case", CASES)
def test_state_of_all_kinds(case: str, spec: str) -> None:
    nodes, state, each = CASES[case]
    for steps in (33, 40):
        proto = looped(nodes, state, each, [3], steps, constants={"two": np.float32(2)})
        made = agrees(proto, fed(proto), spec, [by_onnxruntime], strict=True)
        assert on_device(made)


def test_whole_numbers_and_a_condition_that_is_a_constant() -> None:
    nodes = [node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "a"], ["a1"]),
             node("Constant", [], ["true"], value=onnx.numpy_helper.from_array(np.array(True)))]
    proto = looped(nodes, [("a", "a1")], ["g"], [2, 2], dtype=I64, condition="true")
    assert on_device(agrees(proto, fed(proto), "cpu", [by_onnxruntime], strict=True))


def test_a_trip_count_that_is_fed() -> None:
    proto = looped([node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "a"], ["a1"])],
                   [("a", "a1")], ["a1"], [3], steps=None)
    made = opened(proto, strict=True)
    for steps in (1, 40, 7, 0, -2):
        feeds = {**fed(proto), "n": np.array(steps)}
        got = made.run(feeds)
        rows = feeds["a0"] + np.cumsum(feeds["x"][:max(steps, 0)], axis=0)
        same(got["all_a1"], rows)
        same(got["last_a"], rows[-1] if len(rows) else feeds["a0"])
    (body,) = [m for m in made.program._parts.values() if len(m.inputs) > 1]
    assert len(body._kept) == 1                     # one plan, whatever the count


def test_a_step_whose_number_is_no_row() -> None:
    proto = looped([node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "a"], ["a1"])],
                   [("a", "a1")], [], [3], steps=50)
    with pytest.raises(jitcl.InputError, match=r"'i', which .*: index 40 at \[40\] is out"):
        opened(proto).run(fed(proto))


@pytest.mark.parametrize("spec", in_turn())
def test_indices_that_steps_compute(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clamped, as all that are computed; with JITCL_CHECK_INDICES they are errors."""
    nodes = [node("Add", ["a", "one"], ["a1"]), node("Gather", ["table", "a"], ["g"]),
             node("Gather", ["table", "a1"], ["after"])]
    constants = {"one": np.array([1]), "table": np.arange(60) * 2}
    proto = looped(nodes, [("a", "a1")], ["g", "after"], [1], steps=None, dtype=I64,
                   constants=constants)
    feeds = {"x": np.zeros((40, 1), np.int64), "a0": np.array([0]), "n": np.array(70)}
    got = opened(proto, spec).run(feeds)
    same(got["all_g"].reshape(-1), np.minimum(np.arange(70), 59) * 2)
    monkeypatch.setenv("JITCL_CHECK_INDICES", "1")
    checked = opened(proto, spec)
    same(checked.run({**feeds, "n": np.array(59)})["all_after"].reshape(-1), np.arange(1, 60) * 2)
    with pytest.raises(jitcl.InputError, match="60"):
        checked.run(feeds)
    only_state = looped(nodes[:2], [("a", "a1")], ["g"], [1], steps=None, dtype=I64,
                        constants=constants)
    with pytest.raises(jitcl.InputError, match=r"'a', which .* index 60 at \[60, 0\] is out of"):
        opened(only_state, spec).run(feeds)


def test_more_steps_than_memory_holds_results_of() -> None:
    proto = looped([node("Gather", ["x", "i"], ["g"]), node("Add", ["g", "a"], ["a1"])],
                   [("a", "a1")], ["a1"], [3], steps=None)
    with pytest.raises(jitcl.OutOfMemoryError, match=r"'walk' \(Loop\): there is no memory"):
        opened(proto).run({**fed(proto), "n": np.array(2**50)})


def test_a_condition_that_is_false_at_first() -> None:
    body = graph("body", [node("Neg", ["a"], ["a1"])], [*LOOP, info("a", [2])],
                 [info("c", [], BOOL), info("a1", [2]), info("a", [2])])
    proto = model([node("Loop", ["n", "go", "a0"], ["y", "ys"], body=body)],
                  [info("a0", [2]), info("go", [], BOOL)], [info("y", None), info("ys", None)],
                  {"n": np.array(41)})
    made, x = opened(proto), np.array([1, -2], np.float32)
    same(made.run({"a0": x, "go": np.array(True)})["y"], -x)
    got = made.run({"a0": x, "go": np.array(False)})
    same(got["y"], x)
    same(got["ys"], np.zeros((0, 2), np.float32))


# -- what the host still drives


@pytest.mark.parametrize(("nodes", "behind", "condition"), [
    ([node("Neg", ["a"], ["a1"]), node("ReduceSum", ["a1"], ["s"], keepdims=0),
      node("Less", ["s", "limit"], ["go"])], "a1", "go"),
    ([node("Concat", ["a", "a"], ["d"], axis=0), node("Slice", ["d", "one", "three"], ["a1"])],
     "a1", "c"),
    ([node("Cast", ["a"], ["f"], to=11), node("Cast", ["f"], ["a1"], to=1),
      node("NonMaxSuppression", ["box", "score"], ["sel"])], "a1", "c"),
])
def test_other_loops_are_right_all_the_same(nodes: list[Any], behind: str, condition: str) -> None:
    proto = looped(nodes, [("a", behind)], [], [3], constants={
        "limit": np.float32(1e9), "one": np.array([1]), "three": np.array([4]),
        "box": np.zeros((1, 2, 4), np.float32), "score": np.zeros((1, 1, 2), np.float32)},
        condition=condition)
    made = agrees(proto, fed(proto), "cpu", [by_onnxruntime])
    assert bool(made.report().host) == (condition == "go")
    if condition == "go":
        with pytest.raises(jitcl.UnsupportedError, match=r"'walk' \(Loop\): its 40 steps"):
            opened(proto, strict=True).run(fed(proto))


def test_state_that_grows_is_the_hosts() -> None:
    body = graph("body", [node("Concat", ["a", "a"], ["a1"], axis=0),
                          node("ReduceSum", ["a1"], ["s"], keepdims=0)],
                 [*LOOP, info("a", None)], [info("c", [], BOOL), info("a1", None), info("s", [])])
    proto = model([node("Loop", ["n", "", "a0"], ["y", "sums"], body=body)],
                  [info("a0", [1]), info("n", [], I64)], [info("y", None), info("sums", None)])
    got = opened(proto).run({"a0": np.ones(1, np.float32), "n": np.array(5)})
    same(got["y"], np.ones(32, np.float32))
    same(got["sums"], np.array([2, 4, 8, 16, 32], np.float32))


# -- shapes that go on changing


def summed(trips: str, spec: str = "cpu", **options: Any) -> Any:
    """A Loop whose state is a sum of `x` with what it was: as long as the longer of both."""
    body = graph("body", [node("Add", ["a", "x"], ["a1"]), node("Mul", ["a1", "a1"], ["y"])],
                 [*LOOP, info("a", None)], [info("c", [], BOOL), info("a1", None), info("y", None)])
    nodes = [node("Shape", ["x"], ["all"], start=0, end=1), node("Squeeze", ["all"], ["rows"]),
             node("Loop", [trips, "", "a0"], ["last", "each"], name="walk", body=body)]
    return opened(model(nodes, [info("x", ["rows", 2]), info("a0", ["first", 2]),
                                info("n", [], I64)],
                        [info("last", None), info("each", None)]), spec, **options)


def by_hand(feeds: dict[str, np.ndarray], trips: int) -> tuple[np.ndarray, np.ndarray]:
    a, each = feeds["a0"], []
    for _ in range(trips):
        a = a + feeds["x"]
        each.append(a * a)
    shape = np.broadcast_shapes(feeds["x"].shape, feeds["a0"].shape)
    return a, np.array(each, np.float32).reshape(trips, *shape)


def summed_of(rows: int, first: int, trips: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {"x": rng.uniform(-1, 1, (rows, 2)).astype(np.float32), "n": np.array(trips),
            "a0": rng.uniform(-1, 1, (first, 2)).astype(np.float32)}


@pytest.mark.parametrize("spec", [s for s in in_turn() if "reference" not in str(s)])
@pytest.mark.parametrize("trips", ["n", "rows"])
def test_a_new_shape_of_a_loop_is_neither_compiled_nor_kept(
        spec: str, trips: str, tmp_path: Path) -> None:
    made = summed(trips, spec, cache_dir=tmp_path)
    counts = []
    for rows in (40, 50, 60, 41, 90, 33):
        feeds = summed_of(rows, rows, 7 + rows)
        for got, want in zip(made.run(feeds).values(), by_hand(
                feeds, rows if trips == "rows" else 7 + rows)):
            same(got, want)
        stats = made.cache.stats
        counts.append((stats.builds, stats.writes))
        assert on_device(made)
    assert counts[2:] == counts[2:3] * 4


def test_a_state_that_keeps_its_shape_at_some_shapes_only() -> None:
    made = summed("n")
    for rows, first in ((40, 40), (41, 41), (42, 42), (40, 1), (1, 40), (43, 43)):
        feeds = summed_of(rows, first, 35)
        for got, want in zip(made.run(feeds).values(), by_hand(feeds, 35)):
            same(got, want)


def test_strict_refuses_a_state_that_changes_its_shape() -> None:
    made = summed("n", strict=True)
    made.run(summed_of(40, 40, 35))
    made.run(summed_of(41, 41, 35))
    with pytest.raises(jitcl.UnsupportedError, match=r"'walk' \(Loop\)"):
        made.run(summed_of(40, 1, 35))


def test_no_step_at_other_shapes() -> None:
    """What there is none of has the shape of these inputs, not of those that came first."""
    made = summed("n")
    for rows, trips in ((40, 35), (41, 36), (50, 0), (60, 37)):
        feeds = summed_of(rows, rows, trips)
        for got, want in zip(made.run(feeds).values(), by_hand(feeds, trips)):
            same(got, want)


# -- Scan


@pytest.mark.parametrize("spec", in_turn())
def test_distances_of_all_pairs(spec: str) -> None:
    """scipy's cdist, as skl2onnx writes it: the other points are a state that stays."""
    body = graph("body", [node("Sub", ["points", "p"], ["d"]),
                          node("ReduceSumSquare", ["d"], ["s"], axes=[1], keepdims=0),
                          node("Identity", ["points"], ["points1"])],
                 [info("points", [9, 4]), info("p", [4])],
                 [info("points1", [9, 4]), info("s", [9])])
    proto = model([node("Scan", ["y", "x"], ["same", "d"], name="pairs", body=body,
                        num_scan_inputs=1)],
                  [info("y", [9, 4]), info("x", ["rows", 4])],
                  [info("same", None), info("d", None)], opset=17)
    made = opened(proto, spec, strict=True)
    for rows in (33, 50, 70, 71, 90):
        rng = np.random.default_rng(rows)
        feeds = {"y": rng.standard_normal((9, 4)).astype(np.float32),
                 "x": rng.standard_normal((rows, 4)).astype(np.float32)}
        got = made.run(feeds)
        same(got["d"], ((feeds["x"][:, None] - feeds["y"]) ** 2).sum(-1))
        same(got["same"], feeds["y"])
        assert on_device(made)
    (part,) = made.program._parts.values()
    assert len(part._kept) == 1                     # for any number of rows


@pytest.mark.parametrize("spec", in_turn())
def test_a_scan_of_few_rows_and_then_of_too_many_to_be_unrolled(spec: str) -> None:
    body = graph("body", [node("Add", ["s", "x"], ["a"]), node("Tanh", ["a"], ["t"]),
                          node("Mul", ["t", "x"], ["y"])],
                 [info("s", None), info("x", None)], [info("t", None), info("y", None)])
    made = opened(model([node("Scan", ["first", "rows"], ["last", "found"], body=body,
                              num_scan_inputs=1)],
                        [info("first", ["h"]), info("rows", ["n", "h"])],
                        [info("last", None), info("found", None)], opset=17), spec)
    for rows, width in ((5, 3), (40, 3), (6, 3), (41, 4), (1, 1)):
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, width)).astype(np.float32)
        state, found = np.zeros(width, np.float32), []
        got = made.run({"first": state, "rows": x})
        for row in x:
            state = np.tanh(state + row)
            found.append(state * row)
        same(got["last"], state)
        same(got["found"], np.array(found))


def test_scans_along_axes_of_different_lengths_are_refused() -> None:
    body = graph("body", [node("Add", ["a", "b"], ["s"])], [info("a", [2]), info("b", [2])],
                 [info("s", [2])])
    proto = model([node("Scan", ["x", "y"], ["z"], name="both", body=body, num_scan_inputs=2)],
                  [info("x", ["m", 2]), info("y", ["n", 2])], [info("z", None)])
    with pytest.raises(jitcl.ModelError, match=r"'both' \(Scan\): its inputs have \[40, 41\]"):
        opened(proto).run({"x": np.zeros((40, 2), np.float32), "y": np.zeros((41, 2), np.float32)})


def test_batches_that_go_on_changing() -> None:
    """From the third batch on, the body's plan is one for many shapes."""
    proto = lstm(40, 8, "batch")
    made = opened(proto, strict=True)
    for batch in (2, 3, 4, 5, 6, 3):
        rng = np.random.default_rng(batch)
        feeds = {"x": rng.standard_normal((40, batch, 8)).astype(np.float32),
                 "h0": rng.standard_normal((batch, 8)).astype(np.float32),
                 "k0": rng.standard_normal((batch, 8)).astype(np.float32)}
        for got, want in zip(made.run(feeds).values(), by_onnxruntime(proto, feeds)):
            same(got, want)
        assert on_device(made)


def test_a_warm_start_compiles_nothing(tmp_path: Path) -> None:
    proto = lstm(40, 8)
    want = opened(proto, cache_dir=tmp_path).run(fed(proto))
    again = opened(proto.SerializeToString(), cache_dir=tmp_path, strict=True)
    builds = again.cache.stats.builds
    for name, got in again.run(fed(proto)).items():
        np.testing.assert_array_equal(got, want[name])
    assert again.cache.stats.builds == builds
    assert again.report().from_cache and on_device(again)


# -- runs of a plan that follow each other, on each device


SOURCES = st.one_of(st.integers(0, 2), st.integers(-3, -1))
REPEATS = st.builds(
    lambda runs, rows, carried, stacked: Repeat(
        runs, (2,) if rows else (), tuple((i, s) for i, s in sorted(carried.items())
                                          if not (rows and s == ~2)), tuple(stacked)),
    st.integers(1, 5), st.booleans(), st.dictionaries(st.integers(0, 1), SOURCES),
    st.lists(SOURCES, max_size=3))


@pytest.fixture(scope="module", params=present())
def three(request: pytest.FixtureRequest) -> Any:
    """A loaded plan of three inputs and outputs, one of which is an input."""
    nodes = [node("Add", ["a", "b"], ["s"]), node("Mul", ["s", "c"], ["p"]),
             node("Tanh", ["p"], ["t"]), node("Identity", ["b"], ["same"])]
    shape = [2, 3]
    made = opened(model(nodes, [info(n, shape) for n in "abc"],
                        [info("s", shape), info("t", shape), info("same", shape)]), request.param)
    assert not any(isinstance(d, Sym) for t in made.inputs for d in t.shape)
    assert made.last is not None
    return made.last.executable


@settings(max_examples=25, deadline=None)
@given(how=REPEATS, seed=st.integers(0, 99))
def test_a_device_repeats_as_runs_do(three: Any, how: Repeat, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((how.runs, 2, 3) if i in how.rows else (2, 3)).astype(np.float32)
              for i in range(3)]
    got, want = three.repeat(inputs, how), one_by_one(three.run, inputs, how)
    assert len(got) == len(want) == 3 + len(how.carried) + len(how.stacked)
    for g, w in zip(got, want):
        np.testing.assert_array_equal(g, w)
