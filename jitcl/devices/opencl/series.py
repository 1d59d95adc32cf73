"""A series of launches, given to the driver by one native call: no Python between them, and an
event for the last one only.

    Series.start ─► loop (LLVM) ─► clEnqueueNDRangeKernel of the loader that pyopencl has

For drivers where a kernel that fails fails whatever comes behind it (`Target.failures_last`). There
an event for each launch tells nothing more, and costs: 2.2 of 6.0 us a launch on an H100.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyopencl as cl

from jitcl.devices.opencl.host_steps import HostSection
from jitcl.devices.opencl.launches import Launch
from jitcl.devices.opencl.run_faults import log

SIDES = 3                           # of a work-group


class Series:
    """Launches that follow each other. Not for two threads at once, as their kernels."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = launches
        count = len(launches)
        pad = (1,) * SIDES
        self._kernels = (ctypes.c_void_p * count)(*(x.kernel.int_ptr for x in launches))
        self._dims = (ctypes.c_uint32 * count)(*(len(x.global_size) for x in launches))
        self._items = (ctypes.c_size_t * (SIDES * count))(*(
            side for x in launches for side in (*x.global_size, *pad)[:SIDES]))
        self._groups = (ctypes.c_size_t * (SIDES * count))(*(
            side for x in launches for side in (*(x.local_size or (0,)), *pad)[:SIDES]))

    def start(self, queue: Any) -> Any:
        """Enqueue them; returns the event of the last. Raises StepFailed."""
        loop, _, enqueue = _loop()
        event, begun, count = ctypes.c_void_p(), 0, len(self.launches)
        while True:
            done = begun + loop(
                enqueue, queue.int_ptr, ctypes.byref(self._kernels, 8 * begun),
                ctypes.byref(self._dims, 4 * begun), ctypes.byref(self._items, 24 * begun),
                ctypes.byref(self._groups, 24 * begun), count - begun, ctypes.byref(event))
            if done == count:
                assert event.value is not None
                return cl.Event.from_int_ptr(event.value, retain=False)
            refused = self.launches[done]
            again = refused.start(queue)            # says why it is refused
            log.warning("step '%s' was refused once, and taken when it was enqueued again",
                        refused.step.name)
            begun = done + 1
            if begun == count:
                return again


def in_series(actions: Sequence[Launch | HostSection], most: int
            ) -> Iterator[Series | HostSection]:
    """The same, launches by series of at most so many."""
    series: list[Launch] = []
    for action in actions:
        if isinstance(action, Launch):
            series.append(action)
        if series and (len(series) == most or not isinstance(action, Launch)):
            yield Series(series)
            series = []
        if not isinstance(action, Launch):
            yield action
    if series:
        yield Series(series)


@functools.cache
def _loop() -> tuple[Any, Any, int]:
    """The native loop, what holds its code, and the address of clEnqueueNDRangeKernel."""
    loader = ctypes.CDLL(cl._cl.__file__)           # its symbols are those of what it is linked to
    enqueue = ctypes.cast(loader.clEnqueueNDRangeKernel, ctypes.c_void_p).value
    assert enqueue is not None
    from jitcl.devices.cpu.launch_loop import launch_loop  # loads LLVM

    return *launch_loop(), enqueue


__all__ = ["Series", "in_series"]
