"""Runs of a plan that follow each other, as one table of steps.

    run 0   copy x[0] -> x | steps of the plan | copy y -> ys[0] | copy h1 -> h
    run 1   copy x[1] -> x | the same          | copy y -> ys[1] | copy h1 -> h

The table holds as many runs as STEPS allow; the same table serves the next so many, with other
addresses in its copies. Steps of the plan have the same operands in every run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jitcl.devices.base import Repeat
from jitcl.devices.cpu.executor import ALONE, MEET, Job

STEPS = 2048                    # of a table
_MOVE = ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0


@dataclass(frozen=True)
class Copy:
    """Bytes that a run copies; strides from one run to the next."""

    to: int
    source: int
    nbytes: int
    to_stride: int = 0
    source_stride: int = 0


@dataclass(frozen=True)
class Copies:
    """What is copied in each run. results: where outputs and state of the last run lie."""

    before: list[Copy]
    behind: list[Copy]
    results: list[np.ndarray]


def carried_copies(how: Repeat, rows: Sequence[np.ndarray], inputs: Sequence[np.ndarray],
          outputs: Sequence[np.ndarray], stacked: Sequence[np.ndarray]) -> Copies:
    """inputs, outputs: views of the plan's buffers. What lies in a buffer that the next run's state
    is written to (an output may be an input) is copied aside first.
    """
    targets = [inputs[i] for i, _ in how.carried]
    aside: list[Copy] = []

    def safe(view: np.ndarray) -> np.ndarray:
        if not any(np.may_share_memory(view, target) for target in targets):
            return view
        copy = np.empty_like(view)
        aside.append(Copy(_at(copy), _at(view), view.nbytes))
        return copy

    lasting = [safe(view) for view in outputs]
    state = [lasting[source] if source >= 0 else to if source == ~i else safe(inputs[~source])
             for to, (i, source) in zip(targets, how.carried)]
    before = [Copy(_at(inputs[i]), _at(x), inputs[i].nbytes, 0, inputs[i].nbytes)
              for i, x in zip(how.rows, rows)]
    kept = [(to, outputs[s] if s >= 0 else inputs[~s]) for to, s in zip(stacked, how.stacked)]
    behind = [Copy(_at(to), _at(view), view.nbytes, view.nbytes) for to, view in kept] + aside
    behind += [Copy(_at(to), _at(x), x.nbytes) for to, x in zip(targets, state) if x is not to]
    return Copies([c for c in before if c.nbytes], [c for c in behind if c.nbytes],
                 [*lasting, *state])


def _at(array: np.ndarray) -> int:
    return array.ctypes.data


class Table:
    """The steps of some runs, for any number of runs in turn."""

    def __init__(self, steps: np.ndarray, copy: int, carried: Copies, runs: int,
                 short: bool) -> None:
        before, copies = carried.before, [*carried.before, *carried.behind]
        width = len(steps) + len(copies)
        self.count = max(1, min(runs, STEPS // max(width, 1)))
        self._runs, self._width, self._short = runs, width, short
        self._base = np.array([[_MOVE, c.to, c.source, c.nbytes] for c in copies],
                              np.int64).reshape(-1, 4)
        self._stride = np.array([[0, c.to_stride, c.source_stride, 0] for c in copies],
                                np.int64).reshape(-1, 4)
        self._args = np.zeros((self.count, len(copies), 4), np.int64)
        table = np.empty((self.count, width, 3), np.int64)
        own = table[:, len(before):len(before) + len(steps)]
        own[...] = steps
        if len(steps):
            own[:, -1, 2] |= MEET
        at = self._args.ctypes.data + 32 * np.arange(self.count * len(copies)).reshape(
            self.count, len(copies))
        for part, first in ((table[:, :len(before)], 0),
                            (table[:, len(before) + len(steps):], len(before))):
            part[..., 0], part[..., 2] = copy, ALONE | MEET
            part[..., 1] = at[:, first:first + part.shape[1]]
        self._steps = table.reshape(-1, 3)

    def run(self, execute: Callable[[Job], None]) -> None:
        numbers = np.arange(self.count, dtype=np.int64).reshape(-1, 1, 1)
        job = Job(self._steps, self._short, self._args)
        for start in range(0, self._runs, self.count):
            left = min(self.count, self._runs - start)
            if left < self.count:
                job = Job(self._steps[:left * self._width], self._short, self._args)
            self._args[...] = self._base + self._stride * (numbers + start)
            execute(job)


__all__ = ["Copy", "Copies", "Table", "carried_copies"]
