"""What loop transformations are made of."""

from __future__ import annotations

import pytest

from jitcl.codegen.loops import trusting_guards
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr

I, J = E.var("i", extent=47), E.var("j", extent=32)
T = I * 32 + J                               # from 0 to 1503


def guarded(index: Expr, guard: Expr) -> Expr:
    return E.load("x", (index,), "f32", guard, E.const(0.0, "f32"))


@pytest.mark.parametrize("index, guard, wanted", [
    (T % 1500, T < 1500, T),
    ((T % 1500) * 384 + T // 1500, T < 1500, T * 384),
    (T % 1500, (J > 3) & (T < 1500), T),
    (T % 1400, T < 1500, T % 1400),                      # not below the divisor
    (T % 1500, T < 1501, T % 1500),
    ((T - 40) % 1500, (T - 40) < 1400, (T - 40) % 1500), # may be negative
    (T % 1500, (T < 1500) | (J > 3), T % 1500),
], ids=["remainder", "quotient", "one of two", "larger", "one more", "negative", "either"])
def test_indices_of_a_load_are_as_simple_as_its_guard_allows(index, guard, wanted):
    assert trusting_guards(guarded(index, guard)) is guarded(wanted, guard)


def test_what_a_guard_says_holds_for_its_load_alone():
    other = E.load("y", (T % 1500,), "f32")
    first = guarded(T % 1500, T < 1500)
    assert trusting_guards(first + other) is guarded(T, T < 1500) + other
