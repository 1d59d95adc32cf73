"""A run's time, given to what was going on: every moment once, to one part or to none.

    host     [ enqueueing ][ wait for the device            ]          kernels      k1 + k2
    device        [ k1 ]        [ k2 ]   [ copy ]                      copies       copy
                                                                       host, wait   what is left
    run     |------------------------------------------------|        unexplained  no span at all

Where the device computes, that is what the run does, whatever the host does meanwhile; then copies;
then the innermost span of the host; where that waits while the device computes for another run, it
is behind that. So parts and what is unexplained add up to the run's time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from jitcl.devices.recording import KINDS, RunSpan, Span

UNEXPLAINED = "unexplained"


BEHIND = "behind"


class Others:
    """What devices computed, to be asked for the runs that wait meanwhile."""

    def __init__(self, runs: Iterable[RunSpan]) -> None:
        self._spans = sorted(((s, run) for run in runs for s in run.spans
                              if s.place and s.kind == "kernel"), key=lambda pair: pair[0].begin)
        self._begins = [s.begin for s, _ in self._spans]
        self._longest = max((s.end - s.begin for s, _ in self._spans), default=0)

    def behind(self, run: RunSpan) -> list[Span]:
        """Kernels of other runs on its device, while it lasted."""
        first = bisect.bisect_left(self._begins, run.begin - self._longest)
        last = bisect.bisect_left(self._begins, run.end)
        places = {s.place for s in run.spans if s.place} or {run.device}
        return [Span(BEHIND, s.name, s.begin, s.end) for s, other in self._spans[first:last]
                if other is not run and s.place in places and s.end > run.begin]


def parts(run: RunSpan, others: Others | None = None) -> dict[str, int]:
    """Kind of span, or UNEXPLAINED -> nanoseconds. They add up to the run's."""
    found = dict.fromkeys((*KINDS, UNEXPLAINED), 0)
    spans = [s for s in run.spans if s.end > run.begin and s.begin < run.end]
    spans += others.behind(run) if others is not None else []
    changes: list[tuple[int, int, int]] = []            # (when, 0 ends or 1 begins, which)
    for number, span in enumerate(spans):
        changes.append((max(span.begin, run.begin), 1, number))
        changes.append((min(span.end, run.end), 0, number))
    at, open_ = run.begin, dict[int, Span]()
    for when, begins, number in sorted(changes):
        if when > at:
            found[_kind(open_.values())] += when - at
            at = when
        if begins:
            open_[number] = spans[number]
        else:
            open_.pop(number, None)
    found[UNEXPLAINED] += run.end - at
    return found


def _kind(open_: Iterable[Span]) -> str:
    """What counts of the spans that are open."""
    best, rank, behind = UNEXPLAINED, (3, 0), False
    for span in open_:
        behind = behind or span.kind == BEHIND
        mine = ({"kernel": 0, "copy": 1, BEHIND: 4}.get(span.kind, 2), -span.begin)
        if mine < rank:
            best, rank = span.kind, mine
    return BEHIND if best == "wait" and behind else best


def union(spans: Sequence[Span]) -> int:
    """Nanoseconds in which at least one of them is open."""
    found = sorted(spans, key=lambda s: s.begin)
    total, end = 0, found[0].begin if found else 0
    for span in found:
        if span.end > end:
            total += span.end - max(span.begin, end)
            end = span.end
    return total


__all__ = ["UNEXPLAINED", "Others", "parts", "union"]
