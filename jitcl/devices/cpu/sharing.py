"""Which steps of a plan threads share, and where they wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitcl.codegen.plan import Plan
from jitcl.devices.cpu.executor import ALONE, MEET
from jitcl.target import CpuCore

__all__ = ["at_work", "is_short", "step_flags"]


def _seconds(plan: Plan, lanes: int) -> list[float]:
    """Of each step on one core, reckoned."""
    templates = {k.entry for k in plan.kernels if k.template}
    rates = (CpuCore.loop_flops, CpuCore.lane_flops * lanes)
    return [s.flops / rates[s.kernel in templates] + s.bytes / CpuCore.bandwidth
            for s in plan.steps]


def at_work(plan: Plan, works: Sequence[bool], work: Sequence[tuple[int, int]]) -> Plan:
    """The plan without the steps that have no work, where its steps have these FLOPs and bytes."""
    return replace(plan, steps=tuple(
        replace(s, flops=flops, bytes=count)
        for s, does, (flops, count) in zip(plan.steps, works, work) if does))


def is_short(plan: Plan, lanes: int = 16) -> bool:
    """Whether the plan is worth several threads only while they are awake, from runs right before.
    lanes: of the CPU's vectors.
    """
    return sum(t for t in _seconds(plan, lanes) if t >= CpuCore.split) < CpuCore.wake


def step_flags(plan: Plan, lanes: int = 16) -> list[int]:
    """ALONE for steps too short to split; MEET behind a step where a later one depends on what came
    since: not for flags, which all steps may write once they are zeros. lanes: of the CPU's
    vectors."""
    flagged = {t.buffer for t in plan.outputs if t.name in plan.looked_at}
    least = CpuCore.split_awake if is_short(plan, lanes) else CpuCore.split
    flags = [ALONE if t < least else 0 for t in _seconds(plan, lanes)]
    since: list[tuple[int, list, list]] = []  # (flags, ranges read, ranges written)
    for i, step in enumerate(plan.steps):
        touched = [_range(plan, b) for b in step.buffers if b not in flagged]
        written = [_range(plan, b) for b in step.writes if b not in flagged] or touched
        if any(
            not (old & flags[i] & ALONE) and (_overlap(w, touched) or _overlap(r, written))
            for old, r, w in since
        ):
            flags[i - 1] |= MEET
            since = []
        since.append((flags[i], touched, written))
        if not touched:
            flags[i] |= MEET                    # the zeros
            since = []
    return flags


def _range(plan: Plan, buffer: int) -> tuple[int, int, int]:
    """(allocation, first byte, end) of a buffer; buffers outside the slots are allocations of their
    own."""
    spec = plan.buffers[buffer]
    if spec.kind == "temp":
        return spec.slot, spec.offset, spec.offset + spec.nbytes
    return -1 - buffer, 0, max(spec.nbytes, 1)


def _overlap(a: Sequence[tuple[int, int, int]], b: Sequence[tuple[int, int, int]]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)
