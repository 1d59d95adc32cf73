"""Buffers that are no plan's in place of a plan's own, for one run: results are computed where they
stay, and read where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jitcl import dtypes
from jitcl.codegen.plan import Plan
from jitcl.devices.opencl.launches import Launch
from jitcl.devices.opencl.loaded import Action
from jitcl.devices.opencl.memory import SMALLEST, ResidentMemory


class Lending:
    """Which buffers of a plan can lie elsewhere, and the kernels' arguments that say where."""

    def __init__(self, plan: Plan, actions: Sequence[Action]) -> None:
        self._places: dict[int, list[tuple[Any, int]]] = {}         # buffer -> kernels' arguments
        self.lent: Mapping[int, Any] = {}
        self._pointed: dict[int, Any] = {}          # what kernels' arguments say instead
        fixed: set[int] = set()                                     # read otherwise than by these
        written: set[int] = set()
        for action in actions:
            if not isinstance(action, Launch):
                fixed.update(action.buffers)
                continue
            fixed.update(action.step.images)
            written.update(action.step.writes or action.step.buffers)
            for place, b in enumerate(action.step.buffers):
                self._places.setdefault(b, []).append((action.kernel, place))
        ins, outs = [t.buffer for t in plan.inputs], [t.buffer for t in plan.outputs]
        inputs = {b for b in ins if ins.count(b) == 1} - fixed - written - set(outs)
        outputs = {b for b in outs if outs.count(b) == 1 and plan.buffers[b].kind == "output"}
        self._lendable = inputs | outputs - fixed - set(ins)
        self.fit(plan)

    def fit(self, plan: Plan) -> None:
        """Count the bytes of its inputs and outputs anew: the shapes that it has now."""
        self.least = {t.buffer: max(math.prod(t.shape) * dtypes.itemsize(t.dtype), SMALLEST)
                      for t in (*plan.inputs, *plan.outputs)}

    def takes(self, buffer: int, capacity: int) -> bool:
        """Whether so many bytes can stand for an input or an output."""
        return buffer in self._lendable and capacity >= self.least[buffer]

    @contextmanager
    def instead(self, buffers: Mapping[int, Any], memory: ResidentMemory) -> Iterator[None]:
        """Have kernels find these buffers in place of the plan's own. They find them there until
        the next run, which may lend the same: setting arguments takes longer than launching.
        """
        try:
            self.lent = buffers
            if not memory.released:                 # else all is bound anew
                self.settle(memory)
            yield
        finally:
            self.lent = {}

    def settle(self, memory: ResidentMemory) -> None:
        """Have kernels find what is lent now, and all else in the plan's own buffers."""
        for index in [i for i in self._pointed if i not in self.lent]:
            self._point(index, memory[index])
            del self._pointed[index]
        for index, buffer in self.lent.items():
            if self._pointed.get(index) is not buffer:
                self._pointed[index] = None             # until all that read it say so
                self._point(index, buffer)
                self._pointed[index] = buffer

    def again(self, memory: ResidentMemory) -> None:
        """After the plan's own buffers were bound anew, in the middle of a run."""
        self._pointed.clear()
        self.settle(memory)

    def _point(self, index: int, buffer: Any) -> None:
        for kernel, place in self._places.get(index, ()):
            kernel.set_arg(place, buffer)


__all__ = ["Lending"]
