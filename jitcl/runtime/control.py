"""Control flow that only a run can decide: the host drives, bodies are compiled.

`body(name, given)` runs the body of that name on values of its formal inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError
from jitcl.frontends.levels import HostStep

RunBody = Callable[[str, Sequence[Any]], list[Any]]
Driver = Callable[[HostStep, Sequence[Any], RunBody], list[Any]]


def _if(step: HostStep, operands: Sequence[Any], body: RunBody) -> list[Any]:
    return body("then_branch" if _flag(operands[0]) else "else_branch", ())


def _loop(step: HostStep, operands: Sequence[Any], body: RunBody) -> list[Any]:
    """While the condition holds, for at most the trip count; either may be left out."""
    count, going = trips(operands)
    state = list(operands[2:])
    many = len(step.outputs) - len(state)
    rows: list[list[Any]] = [[] for _ in range(_results(step, "body") - 1 - len(state))]
    at = 0
    while going and (count is None or at < count):
        found = body("body", [np.array(at, np.int64), np.array(True), *state])
        going, state = _flag(found[0]), found[1 : 1 + len(state)]
        for row, value in zip(rows, found[1 + len(state) :]):
            row.append(value)
        at += 1
    types = dict(step.bodies)["body"].types[1 + len(state) :]
    return [*state, *(_stacked(step, r, t) for r, t in zip(rows, types))][: len(state) + many]


def trips(operands: Sequence[Any]) -> tuple[int | None, bool]:
    """A Loop's trip count, None for none, and whether it begins."""
    count = None if operands[0] is None else max(0, int(np.asarray(operands[0]).reshape(-1)[0]))
    return count, _flag(operands[1]) if len(operands) > 1 and operands[1] is not None else True


def _scan(step: HostStep, operands: Sequence[Any], body: RunBody) -> list[Any]:
    if step.attrs["opset"] < 9:
        return _batched_scan(step, operands, body)
    state = list(operands[: len(operands) - int(step.attrs["num_scan_inputs"])])
    state, rows = _scanned(step, state, scanned_rows(step, operands), body)
    types = dict(step.bodies)["body"].types[len(state) :]
    return [*state, *placed(step, [_stacked(step, row, t) for row, t in zip(rows, types)])]


def scanned_rows(step: HostStep, operands: Sequence[Any]) -> list[np.ndarray]:
    """What a Scan goes along, the steps' axis first, in their order. Raises ModelError where there
    are not as many steps of each.
    """
    many = int(step.attrs["num_scan_inputs"])
    over = operands[len(operands) - many :]
    axes = step.attrs.get("scan_input_axes") or (0,) * many
    backwards = step.attrs.get("scan_input_directions") or (0,) * many
    inputs = [np.moveaxis(np.asarray(x), a, 0) for x, a in zip(over, axes)]
    _steps(step, inputs)
    return [x[::-1] if back else x for x, back in zip(inputs, backwards)]


def placed(step: HostStep, stacked: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A Scan's stacked results in the order and on the axis that it asks for."""
    flips = step.attrs.get("scan_output_directions") or (0,) * len(stacked)
    places = step.attrs.get("scan_output_axes") or (0,) * len(stacked)
    return [np.ascontiguousarray(np.moveaxis(x[::-1] if flip else x, 0, at))
            for x, flip, at in zip(stacked, flips, places)]


def _steps(step: HostStep, inputs: Sequence[np.ndarray]) -> int:
    """How many there are."""
    steps = {len(x) for x in inputs}
    if len(steps) != 1:
        raise ModelError(f"node '{step.name}' (Scan): its inputs have {sorted(steps)} steps, "
                         "wanted the same number")
    return steps.pop()


def _batched_scan(step: HostStep, operands: Sequence[Any], body: RunBody) -> list[Any]:
    """Opset 8: every operand has a batch axis, and each element of the batch its own length."""
    lengths, *rest = operands
    many = int(step.attrs["num_scan_inputs"])
    states, over = rest[: len(rest) - many], rest[len(rest) - many :]
    backwards = step.attrs.get("directions") or (0,) * many
    longest = over[0].shape[1]
    batches = []
    for k in range(over[0].shape[0]):
        steps = longest if lengths is None else int(lengths[k])
        inputs = [x[k, :steps][::-1] if back else x[k, :steps]
                  for x, back in zip(over, backwards)]
        state, rows = _scanned(step, [s[k] for s in states], inputs, body)
        types = dict(step.bodies)["body"].types[len(state) :]
        padded = [_padded(_stacked(step, r, t), longest) for r, t in zip(rows, types)]
        batches.append([*state, *padded])
    return [np.stack(values) for values in zip(*batches)]


def _scanned(step: HostStep, state: list[Any], inputs: Sequence[np.ndarray], body: RunBody
             ) -> tuple[list[Any], list[list[Any]]]:
    """The state after the steps along axis 0 of the inputs, and what each step gave."""
    rows: list[list[Any]] = [[] for _ in range(_results(step, "body") - len(state))]
    for at in range(_steps(step, inputs)):
        found = body("body", [*state, *(np.ascontiguousarray(x[at]) for x in inputs)])
        state, results = found[: len(state)], found[len(state) :]
        for row, value in zip(rows, results):
            row.append(value)
    return state, rows


def _results(step: HostStep, name: str) -> int:
    return len(dict(step.bodies)[name].outputs)


def _flag(value: Any) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


def _stacked(step: HostStep, rows: Sequence[Any], type: Any) -> np.ndarray:
    """Rows along a new first axis; of none, by the type that the file declares."""
    if rows:
        shapes = {np.shape(r) for r in rows}
        if len(shapes) != 1:
            raise ModelError(f"node '{step.name}' ({step.op_type}): the results of its steps have "
                             f"different shapes: {sorted(shapes)[:3]}")
        return np.stack(rows)
    dtype, dims = type or ("f32", None)
    return np.zeros((0, *(d or 0 for d in dims or ())), dtypes.to_numpy(dtype))


def _padded(x: np.ndarray, longest: int) -> np.ndarray:
    short = longest - len(x)
    return np.concatenate([x, np.zeros((short, *x.shape[1:]), x.dtype)]) if short else x


DRIVERS: Mapping[str, Driver] = {"If": _if, "Loop": _loop, "Scan": _scan}

__all__ = ["DRIVERS", "RunBody", "placed", "scanned_rows", "trips"]
