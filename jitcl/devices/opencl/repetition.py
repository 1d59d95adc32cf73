"""Runs of a plan that follow each other: the copies between them, which the device makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import Plan, TensorSpec
from jitcl.devices.base import Repeat
from jitcl.devices.opencl.memory import ResidentMemory, release


class Repetition:
    """Rows that runs read, and what is stacked of them, in memory of their own until it is closed.
    """

    def __init__(self, memory: ResidentMemory, plan: Plan, how: Repeat) -> None:
        self.memory, self.how = memory, how
        self._own: list[Any] = []
        self._rows = [(plan.inputs[i], self._room(plan.inputs[i], how.runs)) for i in how.rows]
        self._stacked = [(_spec(plan, s), self._room(_spec(plan, s), how.runs))
                         for s in how.stacked]
        self._carried = [(plan.inputs[i], _spec(plan, s)) for i, s in how.carried]
        targets = {to.buffer for to, _ in self._carried}
        moved = [spec for to, spec in self._carried if spec.buffer != to.buffer]
        self._outputs = plan.outputs
        # buffers that the next run's state is written to, where they are read after that
        self._aside = {spec.buffer: (spec, self._room(spec, 1))
                       for spec in (*moved, *plan.outputs) if spec.buffer in targets}

    def _room(self, spec: TensorSpec, runs: int) -> Any:
        self._own.append(self.memory.room(runs * nbytes(spec), f"the runs of '{spec.name}'"))
        return self._own[-1]

    def __enter__(self) -> Repetition:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._own:
            release(buffer)

    def upload(self, queue: Any, rows: Sequence[np.ndarray]) -> None:
        """The rows of all runs."""
        for (_, buffer), x in zip(self._rows, rows):
            if x.nbytes:
                data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
                cl.enqueue_copy(queue, buffer, data, is_blocking=True)

    def before(self, queue: Any, number: int) -> list[Any]:
        """The run's own rows. Returns the copies' events."""
        return [_copy(queue, self.memory[spec.buffer], buffer, spec, source=number)
                for spec, buffer in self._rows]

    def behind(self, queue: Any, number: int) -> list[Any]:
        """What is kept of the run, and what the next one reads. Returns the copies' events."""
        events = [_copy(queue, buffer, self.memory[spec.buffer], spec, to=number)
                  for spec, buffer in self._stacked]
        events += [_copy(queue, buffer, self.memory[spec.buffer], spec)
                   for spec, buffer in self._aside.values()]
        return events + [_copy(queue, self.memory[to.buffer], self._lasting(spec), spec)
                         for to, spec in self._carried if to.buffer != spec.buffer]

    def _lasting(self, spec: TensorSpec) -> Any:
        """Where a value lies when the run's state was written."""
        aside = self._aside.get(spec.buffer)
        return self.memory[spec.buffer] if aside is None else aside[1]

    def download(self, queue: Any) -> list[np.ndarray]:
        """The last run's outputs and state, and what was stacked."""
        found = [(self._lasting(spec), spec, spec.shape) for spec in self._outputs]
        found += [(self.memory[to.buffer], to, to.shape) for to, _ in self._carried]
        found += [(buffer, spec, (self.how.runs, *spec.shape)) for spec, buffer in self._stacked]
        results = []
        for buffer, spec, shape in found:
            array = np.empty(shape, dtypes.to_numpy(spec.dtype))
            if array.size:
                cl.enqueue_copy(queue, array.reshape(-1).view(np.uint8), buffer, is_blocking=True)
            results.append(array)
        return results


def _copy(queue: Any, to_buffer: Any, source_buffer: Any, spec: TensorSpec, to: int = 0,
          source: int = 0) -> Any:
    """One run's value between buffers, each at a run's place; None where it is empty."""
    size = nbytes(spec)
    return cl.enqueue_copy(queue, to_buffer, source_buffer, byte_count=size,
                           src_offset=source * size, dst_offset=to * size) if size else None


def _spec(plan: Plan, source: int) -> TensorSpec:
    """Of what a source of `Repeat` stands for."""
    return plan.outputs[source] if source >= 0 else plan.inputs[~source]


def nbytes(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * dtypes.itemsize(spec.dtype)


__all__ = ["Repetition"]
