"""The CPU path's buffers between guard zones: stores outside a buffer are seen in the zones, loads
from outside it, or of what nobody wrote, in results that depend on what lay there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from jitcl.codegen.plan import Plan
from jitcl.devices.cpu import device as cpu
from jitcl.ir.graph import Graph
from jitcl.runtime.cache import kernel_cache
from tests.generated.kernels import plan_for

ZONE = 4096  # bytes on either side of a buffer
DEVICE = cpu.CpuDevice()


class Guards:
    """In place of the device's allocator: every buffer filled with one byte value, alone between
    zones of a value near it. Neighbours' zones differ, so that copying one to another shows.
    """

    def __init__(self, fill: int) -> None:
        self.fill = fill
        self.zones: list[tuple[np.ndarray, int]] = []

    def empty(self, nbytes: int) -> np.ndarray:
        value = self.fill ^ (len(self.zones) // 2 % 8)
        raw = np.full(nbytes + 2 * ZONE + 64, value, np.uint8)
        start = ZONE + -(raw.ctypes.data + ZONE) % 64
        self.zones += [(raw[:start], value), (raw[start + nbytes:], value)]
        raw[start:start + nbytes] = self.fill
        return raw[start:start + nbytes]

    def arena(self, nbytes: int) -> SimpleNamespace:
        room = self.empty(nbytes)
        return SimpleNamespace(nbytes=nbytes, part=lambda offset, n: room[offset:offset + n])

    def copy(self, array: np.ndarray) -> np.ndarray:
        out = self.empty(array.nbytes)
        out[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return out

    def broken(self) -> list[int]:
        """Bytes that were written in the zones, counted from a zone's start; some of them."""
        return [int(at) for zone, value in self.zones for at in np.flatnonzero(zone != value)[:4]]


def apart(plan: Plan) -> Plan:
    """The plan with an allocation of its own for each temporary; parts are in their wholes'."""
    buffers, slots = list(plan.buffers), []
    for index, spec in enumerate(buffers):
        if spec.kind == "temp" and spec.whole < 0:
            buffers[index] = dataclasses.replace(spec, slot=len(slots), offset=0)
            slots.append(spec.nbytes)
    for index, spec in enumerate(buffers):
        if spec.whole >= 0:
            whole = buffers[spec.whole]
            buffers[index] = dataclasses.replace(spec, slot=whole.slot, offset=spec.part_offset)
    return dataclasses.replace(plan, buffers=tuple(buffers), slots=tuple(slots))


def run(plan: Plan, feeds: Mapping[str, np.ndarray], fill: int) -> list[np.ndarray]:
    """Outputs of one run among bytes of `fill`. Asserts that no zone was written."""
    guards = Guards(fill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "aligned_empty", guards.empty)
        patch.setattr(cpu, "Arena", guards.arena)
        patch.setattr(cpu, "_aligned", guards.copy)
        executable = DEVICE.load(apart(plan), kernel_cache().for_target(DEVICE.target))
        outputs = executable.run([feeds[t.name] for t in plan.inputs])
    broken = guards.broken()
    assert not broken, f"stored outside of buffers, at bytes {broken} of guard zones"
    return outputs


def check(graph: Graph, feeds: Mapping[str, np.ndarray], *, templates: bool = True) -> None:
    """Runs a graph among NaNs and among zeros: no store outside, equal results bit for bit."""
    check_plan(plan_for(graph, DEVICE.target, templates=templates), feeds)


def check_plan(plan: Plan, feeds: Mapping[str, np.ndarray]) -> None:
    among_nans, among_zeros = run(plan, feeds, 0xFF), run(plan, feeds, 0)
    for spec, a, b in zip(plan.outputs, among_nans, among_zeros):
        assert np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)), (
            f"{spec.name} depends on what lies outside its operands, or was never written")
