"""`jitcl.memory_stats()`: what models hold now, on devices and in queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jitcl.devices.usage import held
from jitcl.runtime.submitted import queued


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that models hold on a device, and the part of them that is constants, which models and
    specialisations share where their content is equal.
    """

    bytes: int
    constants: int
    allocations: int


@dataclass(frozen=True)
class MemoryStats:
    """devices: device -> what models hold there; those of which nothing is held are left out.
    queued_runs, queued_bytes: runs that were submitted and have not ended, and their inputs.
    """

    devices: Mapping[str, DeviceMemory]
    queued_runs: int
    queued_bytes: int


def memory_stats() -> MemoryStats:
    """What this process's models hold now: of executables that are alive and were not closed, the
    buffers that jitcl allocated. What a driver, LLVM or Python take for themselves is not in it.
    """
    devices = {}
    for place, found in sorted(held().items()):
        if found:
            devices[place] = DeviceMemory(
                sum(a.nbytes for a in found.values()),
                sum(a.nbytes for a in found.values() if a.constant), len(found))
    runs = queued()
    return MemoryStats(devices, len(runs), sum(run.nbytes for run in runs))


__all__ = ["DeviceMemory", "MemoryStats", "memory_stats"]
