"""Sizes that are not known yet: what is computed with them holds for all values that the guards
let through.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitcl.ir import expr as E
from jitcl.ir.graph import const, graph_input
from jitcl.ir.size_ranges import everywhere
from jitcl.ir.sizes import (
    Size,
    SizePinned,
    Space,
    at,
    at_least_always,
    divided,
    hint,
    judged_by_hint,
    same,
)
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.ops.cost import element_cost

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "//": lambda a, b: a // b if b > 0 else a, "%": lambda a, b: a % b if b > 0 else a,
    "min": min, "max": max, "ceil": lambda a, b: -(-a // b) if b > 0 else b,
    "ge": lambda a, b: a if a >= b else b + 1, "eq": lambda a, b: a if a == b else a + b}

PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 30),
                              st.integers(0, 30)), min_size=1, max_size=7)
VALUES = st.tuples(st.integers(1, 70), st.integers(1, 70))


def computed(program: list[tuple[str, int, int]], a: Any, b: Any) -> list[Any]:
    """What a program makes of two sizes and some numbers."""
    values = [a, b, 1, 2, 3, 8, 16]
    for op, i, j in program:
        x, y = values[i % len(values)], values[j % len(values)]
        if abs(hint(x) * hint(y)) < 1 << 40:
            values.append(OPERATIONS[op](x, y))
    return values


@settings(max_examples=300, deadline=None)
@given(PROGRAMS, VALUES, VALUES)
def test_expressions_and_guards_hold_for_other_values(
        program: list[tuple[str, int, int]], now: tuple[int, int], later: tuple[int, int]) -> None:
    space = Space()
    a, b = space.symbol("a", now[0]), space.symbol("b", now[1])
    try:
        symbolic = computed(program, a, b)
    except SizePinned:
        return                                 # a divisor whose sign is open, say: no wrong answer
    assert [hint(v) for v in symbolic] == computed(program, *now)
    values = space.values({"a": now[0], "b": now[1]})
    assert space.holds(values)
    assert [at(v, values) for v in symbolic] == computed(program, *now)
    values = space.values({"a": later[0], "b": later[1]})
    if space.holds(values):
        assert [at(v, values) for v in symbolic] == computed(program, *later)


@settings(max_examples=200, deadline=None)
@given(PROGRAMS, VALUES, st.lists(VALUES, min_size=4, max_size=4))
def test_what_is_known_needs_no_new_guards(
        program: list[tuple[str, int, int]], now: tuple[int, int],
        later: list[tuple[int, int]]) -> None:
    space = Space()
    a, b = space.symbol("a", now[0]), space.symbol("b", now[1])
    try:
        found = computed(program, a, b)
    except SizePinned:
        return
    guards = len(space.guards)
    x, y = found[-1], found[-2]
    known, equal = at_least_always(x, y), same(x, y)
    assert len(space.guards) == guards
    quotient, rest = divided(x, y) if hint(y) > 0 else (0, x)
    for pair in later:
        values = space.values({"a": pair[0], "b": pair[1]})
        if not space.holds(values):
            continue
        p, q = at(x, values), at(y, values)
        assert p >= q or not known
        assert p == q or not equal
        assert p == at(quotient, values) * q + at(rest, values)


def test_arithmetic_has_one_form() -> None:
    space = Space()
    n, m = space.symbol("n", 5), space.symbol("m", 7)
    assert str((n + 3) * 8 // 4) == "(2 * size0 + 6)"
    assert str(8 * n * m // (8 * n)) == "size1"
    assert (n * m * 8 + 4 * n) % n == 0
    assert n - n == 0 and type(n - n) is int
    assert hash(n * 2 + m) == hash(m + n + n)
    assert str((8 * n + 3) // 8) == "size0"
    assert str(-(-n // 8)) == str((n + 7) // 8)
    assert not space.guards


def test_comparisons_that_always_hold_make_no_guard() -> None:
    space = Space()
    n = space.symbol("n", 5)
    assert n != 0 and n > 0 and n >= 1 and n + 1 != 1 and n * 8 != n + 1
    assert n < 2**31 and n < math.inf
    assert min(n, (1 << 63) - 1) is n
    assert not space.guards


def test_other_comparisons_are_guards() -> None:
    space = Space()
    n = space.symbol("n", 5)
    assert n < 64 and n != 9
    assert n != 9 and not n >= 64                              # asked again: the same guards
    assert len(space.guards) == 2
    assert space.holds([63]) and not space.holds([64]) and not space.holds([9])
    assert space.holds([1]) and not space.holds([0])           # 0 is a shape apart


def test_judged_by_hint_makes_no_guard() -> None:
    space = Space()
    n = space.symbol("n", 5)
    with judged_by_hint():
        assert n < 64
        assert n != 9 and n != 5            # not always equal
        assert n == n + 0
    assert space.guards == {}


def test_what_an_element_costs_takes_nothing_for_granted() -> None:
    """So that no estimate of a pass keeps a dimension of 1 from a plan for many shapes."""
    space = Space()
    rows = [space.symbol("n", 1), space.symbol("m", 7), 1]
    pairs = [[graph_input(name, TensorType("f16", (n, 8))) for name in "ab"] for n in rows]
    costs = [element_cost(GraphBuilder().add(*pair)) for pair in pairs]
    assert costs == [1, 1, 1] and space.guards == {}


@pytest.mark.parametrize("use", [
    range, int, float, lambda n: [1, 2, 3][n], lambda n: np.array([n], np.int64),
    lambda n: np.zeros((n, 2)), lambda n: n / 2, math.sqrt, round, lambda n: n & 7,
    lambda n: 1 << n, lambda n: 2 ** n, lambda n: 2 / n, lambda n: divmod(n, 2),
    lambda n: n.bit_length(), lambda n: n.numerator, lambda n: f"{n:d}"])
def test_a_size_is_never_taken_for_a_number(use: Callable[[Any], Any]) -> None:
    n = Space().symbol("n", 5)
    with pytest.raises(SizePinned, match="size0"):
        use(n)


def test_references_are_never_given_a_size() -> None:
    """NumPy's own functions make arrays of objects of it, and fail in ways of their own."""
    node = GraphBuilder().pad(const(np.zeros(3, np.float32)), pads=(Space().symbol("n", 5), 0))
    with pytest.raises(SizePinned, match="'pad' of sizes"):
        evaluate(node)


def test_a_finished_space_answers_what_it_knows_and_asks_no_more() -> None:
    space = Space()
    n = space.symbol("n", 5)
    assert n < 64
    space.sealed = True
    assert n < 64 and n > 0
    with pytest.raises(SizePinned, match="finished"):
        print(n < 32)


def test_sizes_are_found_in_records() -> None:
    n = Space().symbol("n", 5)
    assert everywhere({"a": (1, [n + 1])}, hint) == {"a": (1, [6])}
    assert isinstance(n, int) and type(n) is Size


def test_index_arithmetic_divides_by_sizes() -> None:
    """(i * 8n + j * 8 + k) taken apart gives i, j and k again."""
    space = Space()
    n = space.symbol("n", 5)
    i, j, k = E.var("i", extent=4), E.var("j", extent=n), E.var("k", extent=8)
    flat = i * (8 * n) + j * 8 + k
    assert flat // (8 * n) is i
    assert flat // 8 % n is j
    assert flat % 8 is k
    assert (j < n).value is True and (j >= n + 1).value is False
    assert E.call("min", j, E.index(n - 1)) is j
    assert not (j < 8).is_const                                # it depends
    assert not space.guards
