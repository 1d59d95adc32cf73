"""How far a compilation is, told to the caller's callback: probes asked, kernels built, results
checked, programs kept, all in one count.

    tally = Tally.of(progress)                       a callback, a Tally, or None
    with tally.part(12, "building kernels") as part:
        part.step()                                  one more is done
        part.now("checking results")                 what is under way

What is done never exceeds the total. The total grows where a part begins, and what a part leaves
undone (a kernel that failed) counts as done when it ends, so that both are equal at the end. They
are those of all that this callback was ever told of. Calls come from the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jitcl.errors import OptionError

Progress = Callable[[int, int, str], None]  # (done, in all, what is under way)


class Tally:
    """The count of one callback."""

    def __init__(self, callback: Progress | None) -> None:
        self.callback = callback
        self.done = self.total = 0
        self._what = ""
        self._told: tuple[int, int, str] | None = None

    @staticmethod
    def of(progress: Progress | Tally | None) -> Tally:
        """OptionError for what can't be called."""
        if progress is not None and not isinstance(progress, Tally) and not callable(progress):
            raise OptionError(f"progress: got {progress!r:.60}, wanted a function "
                              "progress(done, total, what), or None")
        return progress if isinstance(progress, Tally) else Tally(progress)

    def now(self, what: str) -> None:
        """Tell what is under way, if there is anything to count: a warm start is silent."""
        self._what = what
        telling = self.done, self.total, what
        if self.callback is not None and self.total and telling != self._told:
            self._told = telling
            self.callback(*telling)

    @contextmanager
    def part(self, units: int, what: str) -> Iterator[Part]:
        """So many units of work more; nothing is told where there are none."""
        part = Part(self, units)
        self.total += units
        try:
            if units:
                self.now(what)
            yield part
            if part.left:
                part.step(part.left)
        finally:
            self.done += part.left
            part.left = 0


class Part:
    """Units of work that a Tally counts."""

    def __init__(self, tally: Tally, left: int) -> None:
        self.tally, self.left = tally, left

    def step(self, units: int = 1) -> None:
        """So many are done, at most those that are left."""
        units = min(units, self.left)
        self.left -= units
        self.tally.done += units
        self.tally.now(self.tally._what)

    def now(self, what: str) -> None:
        self.tally.now(what)
