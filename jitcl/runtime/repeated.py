"""Loops whose steps follow each other on the device: one call for all steps of a compiled body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitcl import config
from jitcl.devices.base import Repeat
from jitcl.frontends.levels import HostStep, Repeats, Source
from jitcl.ir.indices import IndexCheck
from jitcl.runtime import control
from jitcl.runtime.indices import check_computed, check_indices
from jitcl.runtime.specialise import Specialisation


class Unsteady(Exception):
    """A loop's state does not keep its shape at these shapes: the device can't repeat a step."""


@dataclass(frozen=True)
class Steps:
    """What a loop is fed. state: initial, by formal input; rows: of all steps, steps first; fixed:
    what else the body's formal inputs are.
    """

    count: int
    state: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]
    fixed: Mapping[str, np.ndarray]

    @property
    def first(self) -> dict[str, np.ndarray]:
        """The body's formal inputs in the first step."""
        return {**self.fixed, **self.state, **{n: x[0] for n, x in self.rows.items()}}


def steps_of(step: HostStep, operands: Sequence[Any], repeats: Repeats) -> Steps:
    """The steps of a Loop or Scan with these operands."""
    body = dict(step.bodies)["body"]
    given = dict(zip((name for name, _ in repeats.state), (
        operands[2:] if step.op_type == "Loop" else operands)))
    if step.op_type == "Loop":
        count, going = control.trips(operands)
        number, condition = body.inputs[:2]
        assert count is not None
        count = count if going else 0
        numbered = number in repeats.rows
        return Steps(count, given, {number: np.arange(count, dtype=np.int64)} if numbered else {},
                     {condition: np.array(True)})
    rows = control.scanned_rows(step, operands)
    return Steps(len(rows[0]), given, dict(zip(body.inputs[len(given):], rows)), {})


def how(repeats: Repeats, count: int, inputs: Sequence[str], outputs: Sequence[str]) -> Repeat:
    """The loop in terms of a plan, whose inputs are called as the body calls them."""
    place = {name: i for i, name in enumerate(inputs)}

    def source(found: Source) -> int:
        return outputs.index(f"out{found}") if isinstance(found, int) else ~place[found]

    return Repeat(
        count, tuple(place[n] for n in repeats.rows if n in place),
        tuple((place[n], source(s)) for n, s in repeats.state if n in place and n != s),
        tuple(source(s) for s in repeats.stacked))


def compute(repeats: Repeats, steps: Steps, env: Mapping[str, np.ndarray],
            called: Callable[[str], str]) -> Callable[[Specialisation], list[np.ndarray]]:
    """For `Model.apply`: the state behind all steps, then what is stacked, of one call, and the
    largest of what the plan watches. env:
    what the body reads in its first step. called: an input for people. It raises Unsteady.
    """
    def run(special: Specialisation) -> list[np.ndarray]:
        plan, checks = special.plan, special.checks
        shapes = dict(zip(plan.output_names, special.output_shapes))
        if any(steps.state[name].shape != (
                shapes[f"out{s}"] if isinstance(s, int) else env[s].shape)
               for name, s in repeats.state):
            raise Unsteady
        place = {name: i for i, name in enumerate(plan.input_names)}
        repeat = how(repeats, steps.count, plan.input_names, plan.output_names)
        rows = {plan.input_names[i] for i in repeat.rows}
        arrays = {n: steps.rows[n] if n in rows else env[n] for n in plan.input_names}
        check_indices(checks, arrays, called)
        ends = [name for check in checks if check.computed for name in check.outputs]
        indices = _computed_indices(checks, {plan.input_names[i] for i, _ in repeat.carried})
        flags = map(plan.output_names.index, plan.looked_at)
        more = (*map(plan.output_names.index, ends), *(~place[check.source] for check in indices),
                *flags)
        found = special.executable.repeat(
            list(arrays.values()), replace(repeat, stacked=(*repeat.stacked, *more)))
        outputs = dict(zip(plan.output_names, found))
        last = len(found) - len(more)
        behind, looked_at = found[len(outputs):last], found[last:]
        for extremes in zip(*looked_at[:len(ends)]):
            check_computed(checks, dict(zip(ends, extremes)))
        for check, values in zip(indices, looked_at[len(ends):]):
            check_indices([check], {check.source: values}, called)
        carried = dict(zip((i for i, _ in repeat.carried), behind))
        state = [steps.state[n] if n == s else carried[place[n]] if n in place
                 else outputs[f"out{s}"] for n, s in repeats.state]
        largest = [np.max(x, axis=0) for x in looked_at[len(ends) + len(indices):]]
        return [*state, *behind[len(carried):], *largest]

    return run


def _computed_indices(checks: Sequence[IndexCheck], carried: set[str]) -> list[IndexCheck]:
    """The checks of state that steps compute: made where those of all that is computed are."""
    if not config.get("check_indices"):
        return []
    return [check for check in checks if not check.computed and check.source in carried]


__all__ = ["Steps", "compute", "steps_of"]
