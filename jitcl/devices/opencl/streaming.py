"""A plan whose buffers live only while a step needs them: for devices that the whole does not fit.

    step            0   1   2   3       each run: allocate and upload what a step is the first to
    input           ##                  touch, run it, wait, give back what it is the last to touch
    constant 1          ##
    temporary       ######
    constant 2              ######      memory: the largest column instead of the sum of rows
    output                  ######

Results are equal bit for bit; a run takes longer by the uploads and the waiting.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import lifetimes
from jitcl.devices import recording
from jitcl.devices.opencl.loaded import LoadedPlan, StepTime
from jitcl.devices.opencl.memory import StreamedMemory


class StreamedExecutable(LoadedPlan):
    """A loaded specialisation of a model that holds memory during runs only."""

    memory: StreamedMemory

    def _placed(self) -> None:
        self.memory = StreamedMemory(self.session, self.plan)
        count = len(self._prepared)
        self._first: list[list[int]] = [[] for _ in range(count + 1)]
        self._last: list[list[int]] = [[] for _ in range(count + 1)]
        lives = lifetimes(action.buffers for action in self._prepared)
        for spec in (*self.plan.inputs, *self.plan.outputs):
            lives.setdefault(spec.buffer, (count, count))  # passed through: no step touches it
        for buffer, (first, last) in lives.items():
            self._first[first].append(buffer)
            self._last[last].append(buffer)
        self._seconds: list[float] = []                    # of the last run's steps

    def _pass(self, sources: list[np.ndarray], careful: bool) -> list[np.ndarray]:
        """One run; each step is waited for in any case."""
        inputs = {spec.buffer: data for spec, data in zip(self.plan.inputs, sources)}
        results = [np.empty(s.shape, dtypes.to_numpy(s.dtype)) for s in self.plan.outputs]
        self._seconds, place = [], self.session.name
        try:
            for n in range(len(self._prepared) + 1):
                with recording.span("copy", "inputs and constants", place=place), self._idle():
                    self.memory.enter(self._first[n], inputs, self.queue)
                if n < len(self._prepared):
                    self._step(n)
                with recording.span("copy", "outputs", place=place), self._idle():
                    self._read(self._last[n], results)
                self.memory.leave(self._last[n])
        finally:
            self.memory.release()
        return results

    def _step(self, n: int) -> None:
        action = self._prepared[n]
        if action not in self._launches:
            return
        action.bind(self.memory)
        begin = time.perf_counter()
        with recording.span("kernel", action.step.name, place=self.session.name, step=action.step):
            self._awaited(action, self.queue)
        self._seconds.append(time.perf_counter() - begin)

    def _read(self, buffers: Sequence[int], results: list[np.ndarray]) -> None:
        """Copy those of the buffers that are outputs to the results."""
        for spec, out in zip(self.plan.outputs, results):
            if spec.buffer in buffers and out.size:
                view = out.reshape(-1).view(np.uint8)
                cl.enqueue_copy(self.queue, view, self.memory[spec.buffer], is_blocking=True)

    def profile(self, arrays: Sequence[np.ndarray], runs: int = 5) -> list[StepTime]:
        """Time of every step by the clock, without its uploads: the median over `runs`, after one
        to warm up.
        """
        sources = self._check(arrays)
        with self._turn("profiling a model"):
            times = []
            for _ in range(runs + 1):
                self._ran(sources)
                times.append(self._seconds)
        return self._times(times[1:])
