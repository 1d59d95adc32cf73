"""Anything as any argument of the API and of the command line: it succeeds, or it is a JitclError
(on the command line a message). Nothing else, and never a traceback.
"""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import jitcl
from jitcl.cli.main import cli

TEXT = "graph @two(%a: f32[n,3], %b: i64[3]) {\n  %c = cast(%b) {to='f32'}\n" \
       "  %sum = add(%a, %c)\n  return %sum\n}"
A, B = np.ones((2, 3), np.float32), np.arange(3)
ODD_INTS = st.sampled_from([0, -1, 2 ** 31, 2 ** 40, 2 ** 62, 2 ** 63, 2 ** 64, -2 ** 63])
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from([
    "", "cpu", "reference", "opencl:", "opencl:99", "profile:", "low", "auto:0", "\0", "\ud800",
    "~nobody/x", "/dev/null/x", "/proc/1/x", "a" * 300]))
ATOMS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), ODD_INTS, TEXTS,
                  st.floats(allow_nan=True), st.binary(max_size=4), st.complex_numbers())
ARRAYS = st.sampled_from([A, B, A[0], A.T, A.astype(">f4"), A.astype("f8"), A.astype(object),
                          np.array("x"), np.array([], "f4"), np.zeros((2, 3), "f2"), np.float64(3),
                          np.ma.masked_array(A, A > 0), np.zeros((1,) * 20, "f4"),
                          np.broadcast_to(np.float32(1), (2 ** 40, 3)),
                          np.zeros(2, [("x", "f4")]), np.zeros((0, 3), "f4"), A.astype("M8[s]")])
OBJECTS = st.sampled_from([object(), int, np.float32, io.BytesIO(b""), pathlib.Path("cpu"),
                           lambda: None, lambda *_: None, range(3), iter(()), Ellipsis])
ANYTHING = st.recursive(st.one_of(ATOMS, ARRAYS, OBJECTS), lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(
        st.one_of(st.sampled_from(["a", "b", "c"]), ATOMS.filter(lambda v: v == v)), inner,
        max_size=3)), max_leaves=5)
DIMS = st.one_of(st.integers(0, 4), ODD_INTS, ANYTHING)
SHAPES = st.one_of(ANYTHING, st.fixed_dictionaries({}, optional={
    "a": st.one_of(st.tuples(DIMS, DIMS), st.lists(DIMS, max_size=3), ANYTHING),
    "b": st.one_of(st.tuples(DIMS), ANYTHING)}))
FEEDS = st.one_of(ANYTHING, st.fixed_dictionaries({}, optional={
    "a": st.one_of(ARRAYS, ANYTHING, st.just([[1, 2.5, 3]])),
    "b": st.one_of(ARRAYS, ANYTHING, st.just([1, 2, 3]))}))
FUZZ = settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module", autouse=True)
def graph(tmp_path_factory) -> Any:
    """A cache for the file; nothing that is fuzzed leaves files beside it."""
    return jitcl.parse(TEXT)


@pytest.fixture(scope="module")
def model(graph) -> jitcl.Model:
    return jitcl.compile(graph, device="reference")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> None:
    """Relative paths lead to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def orderly(call: Any, *args: Any, **options: Any) -> Any:
    """The result, or None where it is a JitclError with a message."""
    try:
        return call(*args, **options)
    except jitcl.JitclError as error:
        assert str(error).strip() and len(str(error)) < 10_000
        return None


@pytest.mark.parametrize("name", ["precision", "memory", "tuning", "shapes", "strict", "isolation",
                                  "priority", "progress", "device"])
def test_an_array_as_any_option(graph, name):
    """`value in (..)` and `value == ..` are arrays then, which are neither true nor false."""
    with pytest.raises(jitcl.JitclError):
        jitcl.compile(graph, **{"device": "reference", name: A})


@pytest.mark.parametrize("name", ["precision", "memory", "tuning", "shapes", "strict", "isolation",
                                  "priority", "progress"])
@FUZZ
@given(data=st.data())
def test_any_option_of_compile(graph, name, data):
    value = data.draw(SHAPES if name == "shapes" else ANYTHING)
    orderly(jitcl.compile, graph, **{"device": "reference", name: value})


@FUZZ
@given(value=ANYTHING)
@example(value=None)
def test_any_device(graph, value):
    orderly(jitcl.compile, graph, device=value)


@FUZZ
@given(value=st.one_of(ATOMS, OBJECTS))
@example(value="a\0b")
def test_any_cache_folder(graph, value):
    orderly(jitcl.compile, graph, device="reference", cache_dir=value)


@FUZZ
@given(value=ANYTHING)
@example(value=b"\x08\x08")
def test_any_model(value):
    orderly(jitcl.compile, value, device="reference")


@FUZZ
@given(feeds=FEEDS)
def test_any_feeds(model, feeds):
    found = orderly(model.run, feeds)
    assert found is None or found["sum"].dtype == np.float32
    orderly(model.why, feeds)


@FUZZ
@given(args=st.lists(st.one_of(ARRAYS, ANYTHING), max_size=3))
def test_any_arrays_by_position(model, args):
    orderly(model, *args)


@FUZZ
@given(shapes=SHAPES)
def test_any_shapes(model, shapes):
    bound = orderly(model.bind, shapes)
    assert bound is None or set(bound.inputs) == {"a", "b"}
    orderly(model.prepare, shapes)


@FUZZ
@given(name=st.one_of(st.sampled_from(["a", "b"]), ANYTHING), value=ANYTHING)
def test_anything_assigned_to_a_bound_input(model, name, value):
    bound = model.bind({"a": (2, 3)})
    orderly(bound.inputs.__setitem__, name, value)
    orderly(bound.inputs.__getitem__, name)
    assert bound.run()["sum"].shape == (2, 3)


WORDS = st.sampled_from(TEXT.replace("(", " ( ").replace(",", " , ").split() + [
    "2", "-1", "99999999999999999999", "'", "}", "f32[", "const", "1e999", "%", "@"])


@settings(FUZZ, max_examples=200)
@given(text=st.one_of(ANYTHING, st.lists(WORDS, max_size=30).map(" ".join)))
def test_any_text(text):
    orderly(jitcl.parse, text)


@settings(FUZZ, max_examples=200)
@given(start=st.integers(0, len(TEXT)), end=st.integers(0, len(TEXT)), new=st.text(max_size=3))
def test_a_text_with_a_part_replaced(start, end, new):
    orderly(jitcl.parse, TEXT[:start] + new + TEXT[max(start, end):])


OPTIONS = st.sampled_from([
    "--random", "--seed", "--shape", "-i", "--scale", "--mean", "--std", "--bgr", "-o", "--labels",
    "--repeat", "--isolation", "--json", "--precision", "--memory", "--tuning", "--after", "-d",
    "--save-pictures", "--cache-dir", "--all", "--faults", "--help"])
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["-1", "0", "1", "1e9", "nan", "a=2,3", "2,3", "a=2,3,4", "b=3", "a=[[1,2,3]]",
                     "a=[[1,2,3],[4]]", "b=[1,2,3]", "b=[1.5,2,3]", "a=x.npy", "/dev/null", ".",
                     "/nowhere/x", "x.npz", "x.npy", "import", "fuse", "low", "reference", "0,0,0",
                     "9" * 30, "a=" + "[" * 3000, "opencl:99", "a=" + "9" * 18 + ",3"]))


@settings(FUZZ, max_examples=150)
@given(command=st.sampled_from([["run"], ["dump"], ["devices"], ["cache", "why"], ["cache", "ls"],
                                ["cache", "size"], ["cache"], []]),
       words=st.lists(st.one_of(OPTIONS, VALUES), max_size=6))
def test_any_command_line(command, words):
    pathlib.Path("two.jitcl").write_text(TEXT)
    given_model = ["two.jitcl"] if command in (["run"], ["dump"], ["cache", "why"]) else []
    device = ["-d", "reference"] if given_model else []
    result = CliRunner().invoke(cli, [*command, *given_model, *device, *words])
    assert result.exit_code in (0, 1, 2), result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
