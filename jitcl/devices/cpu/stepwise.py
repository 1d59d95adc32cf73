"""A plan's steps one by one, with a look at the clock around each: for profiles. Kernels split
their work as ever, so that results have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitcl.codegen.plan import Step
from jitcl.devices.cpu.executor import Executor, Job
from jitcl.devices.recording import RunSpan, Span, now, span


class Stepwise:
    """The table of steps that the native loop takes, cut into jobs of one step. short: as `Job`'s,
    of all of them.
    """

    def __init__(self, steps: Sequence[Step], table: np.ndarray, short: bool) -> None:
        self._jobs = [(step, Job(table[i : i + 1], False, table)) for i, step in enumerate(steps)]
        self._short = short

    def run(self, executor: Executor, threads: int, run: RunSpan) -> None:
        """Run the steps on as many threads as would run the whole, and note them."""
        if self._short and not executor.awake:
            threads = 1
        with span("host", "launching steps"):
            for step, job in self._jobs:
                begin = now()
                executor.run(job, threads)
                run.add(Span("kernel", step.name, begin, now(), "cpu", step))


__all__ = ["Stepwise"]
