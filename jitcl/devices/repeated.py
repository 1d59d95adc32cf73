"""Runs of a plan that follow each other, one by one: for devices that have no quicker way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jitcl.devices.base import Repeat


def one_by_one(run: Callable[[list[np.ndarray]], list[np.ndarray]], inputs: Sequence[np.ndarray],
               how: Repeat) -> list[np.ndarray]:
    """What `Executable.repeat` returns; `run` gives fresh arrays."""
    given = list(inputs)
    outputs: list[np.ndarray] = []
    stacked: list[list[np.ndarray]] = [[] for _ in how.stacked]
    for number in range(how.runs):
        for i in how.rows:
            given[i] = np.ascontiguousarray(inputs[i][number])
        outputs = run(given)
        for kept, source in zip(stacked, how.stacked):
            kept.append(value(given, outputs, source))
        state = [value(given, outputs, source) for _, source in how.carried]
        for (i, _), x in zip(how.carried, state):
            given[i] = x
    return [*outputs, *(given[i] for i, _ in how.carried), *map(np.stack, stacked)]


def value(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], source: int) -> np.ndarray:
    """What a source of `Repeat` stands for."""
    return outputs[source] if source >= 0 else inputs[~source]


__all__ = ["one_by_one", "value"]
