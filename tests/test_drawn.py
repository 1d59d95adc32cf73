"""Random data is the running test's own, and no test module shares a generator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import drawn

MAKERS = {"default_rng", "RandomState", "Random", "Generator"}


def shared(source: str) -> Iterator[int]:
    """Lines that keep a generator for a whole module, or seed a library's own."""
    tree = ast.parse(source)
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(value, ast.Call) and (
                isinstance(value.func, (ast.Attribute, ast.Name))
                and ast.unparse(value.func).split(".")[-1] in MAKERS):
            yield node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.random.seed",
                                                                     "random.seed"):
            yield node.lineno


def test_no_module_of_tests_keeps_a_generator():
    """What it draws would depend on which tests ran before."""
    here = Path(__file__).parent
    found = {str(path.relative_to(here)): lines for path in here.rglob("*.py")
             if (lines := list(shared(path.read_text())))}
    assert found == {}, "draw from tests.drawn.rng(), or from a generator seeded in the test"


@pytest.mark.parametrize("source, lines", [
    ("rng = np.random.default_rng(3)", [1]),
    ("\nR: object = RandomState(0)", [2]),
    ("def f():\n    np.random.seed(3)", [2]),
    ("def f():\n    rng = np.random.default_rng(3)", []),
    ("X = np.random.default_rng(0).random(3)", [])])
def test_generators_are_found(source, lines):
    assert list(shared(source)) == lines


def test_a_test_draws_the_same_wherever_it_stands():
    first = drawn.rng().random(3)
    drawn.rng().random(100)
    drawn.start()
    np.testing.assert_array_equal(drawn.rng().random(3), first)


def test_nothing_is_drawn_outside_a_test():
    drawn.stop()
    with pytest.raises(AssertionError, match="inside a test"):
        drawn.rng()
