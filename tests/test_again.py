"""Runs that are like the one before skip the checks, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import jitcl
from jitcl.errors import OutOfMemoryError
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.runtime import model as runtime

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def model(tmp_path):
    """In a cache of its own: what ran out of memory is remembered."""
    g = GraphBuilder()
    a, b = (graph_input(n, TensorType("f32", (Sym("rows"), 3))) for n in "ab")
    return jitcl.compile(Graph("difference", (a, b), (("y", g.sub(a, b)),)), device="cpu",
                         cache_dir=tmp_path)


@pytest.fixture
def checks(monkeypatch):
    """Counts the runs whose inputs were checked one by one."""
    made = []
    whole = runtime.check_feeds
    monkeypatch.setattr(runtime, "check_feeds", lambda *a: made.append(1) or whole(*a))
    return made


def test_the_second_run_of_a_shape_is_not_checked_again(model, checks):
    for k in range(3):
        y = model.run({"a": X + k, "b": X})["y"]
        np.testing.assert_array_equal(y, np.full((2, 3), k, np.float32))
    assert len(checks) == 1


def test_inputs_are_found_by_name_in_any_order(model, checks):
    model.run({"a": X, "b": X})
    np.testing.assert_array_equal(model.run({"b": X, "a": 3 * X})["y"], 2 * X)
    np.testing.assert_array_equal(model(3 * X, b=X)["y"], 2 * X)
    assert len(checks) == 1


def test_a_fault_of_a_run_that_is_alike_is_met_once(model, monkeypatch):
    """The plan goes on with no room to spare, once, whatever the order of the feed's names."""
    model.run({"a": X, "b": X})
    failed, loaded = [], model.last.executable.executable       # of a plan for many shapes

    def fail(inputs, shapes):
        failed.append(len(inputs))
        monkeypatch.undo()
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(loaded, "run", fail)
    np.testing.assert_array_equal(model.run({"b": X, "a": 3 * X})["y"], 2 * X)
    np.testing.assert_array_equal(model.run({"a": 3 * X, "b": X})["y"], 2 * X)
    assert failed == [2] and not model._kept
    (family,) = model._families.kept.values()
    assert model.last.executable.executable is loaded and not family.spare


@pytest.mark.parametrize(("feeds", "said"), [
    ({"a": X}, "input 'b' f32[rows,3] was not fed"),
    ({"a": X, "c": X}, "there is no input 'c'"),
    ({"a": X, "b": X, "c": X}, "there is no input 'c'"),
    ({"a": X, "b": X.astype(np.float64)}, "got dtype float64, wanted float32"),
    ({"a": X, "b": X[0]}, "got 1 axes (3,), wanted 2"),
    ([("a", X), ("b", X)], "run() takes a dict of input name -> array, got list"),
])
def test_errors_are_those_of_a_first_run(model, feeds, said):
    model.run({"a": X, "b": X})
    with pytest.raises(jitcl.InputError) as caught:
        model.run(feeds)
    assert said in str(caught.value)


def test_what_no_array_is_may_still_be_right(model, checks):
    model.run({"a": X, "b": X})
    swapped = X.astype(">f4").view(np.ndarray)
    with pytest.raises(jitcl.InputError, match="got dtype >f4"):
        model.run({"a": X, "b": swapped})
    np.testing.assert_array_equal(model.run({"a": X, "b": X.view(np.memmap)})["y"], 0 * X)
    assert len(checks) == 3


def test_inputs_need_not_be_contiguous_and_are_copied(model):
    model.run({"a": X, "b": X})
    wide = np.arange(24, dtype=np.float32).reshape(2, 12)
    y = model.run({"a": wide[:, ::4], "b": X})["y"]
    wide[:] = 0
    np.testing.assert_array_equal(y, [[0, 3, 6], [9, 12, 15]])


def test_shapes_that_change_are_computed_at_their_shapes(model):
    rows = [2, 2, 3, 2, 3, 3, 5, 6, 7, 7, 7, 2]        # specialisations, then a family's members
    for n in rows:
        a = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        np.testing.assert_array_equal(model.run({"a": a, "b": a / 2})["y"], a / 2)
