"""Runs whose commands tell their times, for profiles.

    the device's clock    queued  submitted  start  end        of each command's event
    the host's            called ................... ended     around all of them

The first command is queued when it is enqueued: that gives the difference of the clocks. Where what
events say can't be true by the host's clock, no time of that device is believed any more: its runs
are then taken step by step, by the host's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from jitcl.codegen.plan import Step
from jitcl.devices.recording import Span

SLACK = 200_000                 # nanoseconds that clocks may differ by, beside
SHARE = 0.02                    # this part of what was measured
FASTER, LATE = 4, 20_000_000    # a clock that goes so much slower, on a host that is busy, is wrong


@dataclass(frozen=True)
class Command:
    """What was enqueued: a kernel or a copy."""

    kind: str
    name: str
    event: Any
    step: Step | None = None
    nbytes: int = 0


@dataclass(frozen=True)
class Times:
    """Of an event, by the device's clock."""

    queued: int
    submitted: int
    start: int
    end: int

    @classmethod
    def of(cls, event: Any) -> Times:
        told = event.profile
        return cls(told.queued, told.submit, told.start, told.end)


def told(commands: list[Command], place: str, called: int, ended: int) -> list[Span] | str:
    """Spans of commands that have ended, by the host's clock; or why their times can't be believed.
    called, ended: when the host began to enqueue, and when it knew that all had ended.
    """
    if not commands:
        return []
    try:
        times = [Times.of(command.event) for command in commands]
    except cl.Error as error:
        return f"the driver tells no times of events ({error})"
    why = contradiction(times, ended - called)
    if why:
        return why
    shift = called - min(t.queued for t in times)
    return [Span(c.kind, c.name, t.start + shift, t.end + shift, place, c.step, c.nbytes,
                 t.queued + shift, t.submitted + shift) for c, t in zip(commands, times)]


def contradiction(times: list[Times], host: int) -> str:
    """What in the events' times can't be, where the host waited `host` ns for them; "" if nothing.
    """
    for t in times:
        if not 0 < t.queued <= t.submitted + SLACK or not t.submitted <= t.start + SLACK or (
                t.start > t.end):
            return (f"an event was queued at {t.queued}, submitted at {t.submitted}, started at "
                    f"{t.start} and ended at {t.end} ns")
    device = max(t.end for t in times) - min(t.queued for t in times)
    said = f"events span {device / 1e6:.3f} ms, by the host's clock {host / 1e6:.3f} ms"
    if device > host * (1 + SHARE) + SLACK or device * FASTER + LATE < host:
        return said
    busy = sum(t.end - t.start for t in times)
    if busy > host * (1 + SHARE) + SLACK:
        return f"events took {busy / 1e6:.3f} ms, by the host's clock {host / 1e6:.3f} ms"
    return ""


__all__ = ["Command", "Times", "contradiction", "told"]
