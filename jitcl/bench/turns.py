"""Turns: engines run one after the other, round by round, so that a noisy machine disturbs all
alike; and what is made of their times.

    round 1   A A A A ..  B B ..  C C C ..
    round 2   A A A A ..  C C C ..  B B ..

An engine leaves caches cold and, where its threads spin, cores busy to whoever comes next. So
every other round goes back from the last to the second: each comes behind its neighbours alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TURN_SECONDS = 0.05
SETTLE_SECONDS = 0.02       # between turns: waiting threads of the engine before spin for a while
Clock = Callable[[], float]


class Contestant(Protocol):
    """Who can be given a turn."""

    name: str

    def turn(self, seconds: float) -> list[float]:
        """Seconds of each run of a turn that lasts `seconds` at least."""


def timed_turn(run: Callable[[], Any], seconds: float, clock: Clock = time.perf_counter,
               ) -> list[float]:
    """Seconds of each run, for at least `seconds` of runs. The first warms up what the engine
    before has driven out of caches and put to sleep; it counts only where it fills the turn alone.
    """
    start = clock()
    run()
    first = clock() - start
    if first >= seconds:
        return [first]
    times: list[float] = []
    total = 0.0
    while total < seconds:
        start = clock()
        run()
        times.append(clock() - start)
        total += times[-1]
    return times


@dataclass(frozen=True)
class Timing:
    """One engine's rounds: the median seconds of a run in each, and how many runs those were."""

    rounds: tuple[float, ...]
    runs: int

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def worst(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True)
class Ratio:
    """Times of one engine over those of another in the same rounds: below 1 is faster."""

    median: float
    best: float
    worst: float


def take_turns(contestants: Sequence[Contestant], rounds: int, seconds: float = TURN_SECONDS,
               settle: float = SETTLE_SECONDS, sleep: Callable[[float], object] = time.sleep,
               after_round: Callable[[int], object] = lambda number: None) -> dict[str, Timing]:
    """Timings by name, of `rounds` rounds after one to warm up. `after_round` is told how many
    rounds are done.
    """
    times: dict[str, list[list[float]]] = {c.name: [] for c in contestants}
    orders = tuple(contestants), (*contestants[:1], *contestants[:0:-1])
    for number in range(rounds + 1):
        for contestant in orders[number % 2]:
            sleep(settle)
            times[contestant.name].append(contestant.turn(seconds))
        after_round(number)
    return {name: Timing(tuple(map(statistics.median, turns[1:])), sum(map(len, turns[1:])))
            for name, turns in times.items()}


def ratio(mine: Timing, theirs: Timing) -> Ratio:
    """Round by round, so that what disturbed both in a round cancels out."""
    found = [a / b for a, b in zip(mine.rounds, theirs.rounds)]
    return Ratio(statistics.median(found), min(found), max(found))


def fastest(timings: Mapping[str, Timing]) -> str | None:
    """The name with the smallest median; None of none."""
    return min(timings, key=lambda name: timings[name].median, default=None)
