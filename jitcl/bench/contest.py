"""A contest: engines opened one by one, compared by result, timed in turns.

    with Contest(entrants, threads) as contest:
        contest.open()
        contest.time(rounds=10)
        for entry in contest.entries: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitcl.bench.compare import largest_difference
from jitcl.bench.processes import EngineProcess, Entrant, Opened
from jitcl.bench.turns import (
    SETTLE_SECONDS,
    TURN_SECONDS,
    Ratio,
    Timing,
    fastest,
    ratio,
    take_turns,
)
from jitcl.errors import JitclError

Say = Callable[[str], object]


@dataclass
class Entry:
    """One engine's way through a contest."""

    entrant: Entrant
    process: Any = None                 # while it can be asked
    opened: Opened | None = None
    timing: Timing | None = None
    ratio: Ratio | None = None          # to the fastest peer
    difference: float | None = None     # of its results from those of the judge
    error: JitclError | None = None     # what ended it

    @property
    def name(self) -> str:
        return self.entrant.name


@dataclass
class Contest:
    """Engines that compete with `threads` threads each. Use as a context: it ends their processes.
    `start` makes an engine's process.
    """

    entrants: Sequence[Entrant]
    threads: int
    say: Say = lambda text: None
    start: Callable[[Entrant, int], Any] = EngineProcess
    entries: list[Entry] = field(init=False)
    judge: str | None = None            # whose results the others' are compared with

    def __post_init__(self) -> None:
        self.entries = [Entry(e) for e in self.entrants]

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self.entries:
            self._end(entry)

    @property
    def running(self) -> list[Entry]:
        return [e for e in self.entries if e.error is None]

    @property
    def fastest_peer(self) -> str | None:
        return fastest({e.name: e.timing for e in self.running
                        if e.entrant.peer and e.timing is not None})

    def open(self) -> None:
        """Open all, each while the others are quiet, and compare their first results: with those of
        the first peer, else of the first engine. An engine that fails is out, with its error.
        """
        for entry in self.entries:
            self.say(f"opening {entry.name}")
            entry.process = self.start(entry.entrant, self.threads)
            try:
                entry.opened = entry.process.open()
            except JitclError as error:
                self._out(entry, error)
        there = self.running
        judges = [e for e in there if e.entrant.peer] or there
        if len(there) < 2:
            return
        self.judge = judges[0].name
        assert judges[0].opened is not None
        for entry in there:
            if entry.opened is not None and entry is not judges[0]:
                entry.difference = largest_difference(entry.opened.outputs,
                                                      judges[0].opened.outputs)

    def time(self, rounds: int, seconds: float = TURN_SECONDS, settle: float = SETTLE_SECONDS,
             ) -> None:
        """Give all their turns. An engine that fails in one is out, and the others begin anew."""
        def after(number: int) -> None:
            self.say(f"round {number} of {rounds}" if number else "warmed up")

        while self.running:
            turns = [_Turn(e) for e in self.running]
            try:
                timings = take_turns(turns, rounds, seconds, settle, after_round=after)
            except _Failed as failed:
                self._out(failed.entry, failed.error)
                continue
            for entry in self.running:
                entry.timing = timings[entry.name]
            break
        base = next((e for e in self.entries if e.name == self.fastest_peer), None)
        for entry in self.running:
            if base is not None and base.timing is not None and entry.timing is not None:
                entry.ratio = ratio(entry.timing, base.timing)

    def _out(self, entry: Entry, error: JitclError) -> None:
        entry.error, entry.timing = error, None
        self._end(entry)

    def _end(self, entry: Entry) -> None:
        if entry.process is not None:
            entry.process.close()
            entry.process = None


class _Failed(Exception):
    """An engine failed in its turn."""

    def __init__(self, entry: Entry, error: JitclError) -> None:
        super().__init__(str(error))
        self.entry, self.error = entry, error


class _Turn:
    """An entry as `take_turns` sees it."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.name = entry, entry.name

    def turn(self, seconds: float) -> list[float]:
        try:
            return list(self.entry.process.turn(seconds))
        except JitclError as error:
            raise _Failed(self.entry, error) from error
