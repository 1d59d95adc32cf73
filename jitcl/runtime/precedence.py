"""Which run begins next on a device that models of several priorities share.

    high     run ..... run          a run begins when none of a higher priority is wanted there:
    normal    .  run .  .  run      queued, or under way. What is under way is not stopped, and
    low       .      .     .   run  runs of one priority overlap as their device lets them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from jitcl import forking
from jitcl.devices import recording
from jitcl.devices.base import Device
from jitcl.devices.load_options import PRIORITIES

PATIENCE = 10.0                         # seconds of waiting that are worth a line in the log

log = logging.getLogger("jitcl")
_places: dict[str, Precedence] = {}
_finding = forking.lock()
_here = threading.local()               # .exempt: this thread does not wait


class Precedence:
    """Of one device: how many runs of each priority are wanted."""

    def __init__(self) -> None:
        self.changed = threading.Condition(forking.rlock())
        self.wanted = [0] * len(PRIORITIES)
        self.waiting = 0                # threads


class Turn:
    """A model's place in the order: `with turn` around a run, from any number of threads."""

    def __init__(self, device: Device, priority: str, name: str) -> None:
        self.priority, self.name = priority, name
        self._level, self._told = PRIORITIES.index(priority), False
        with _finding:
            self._order = _places.setdefault(device.hardware, Precedence())

    def want(self) -> None:
        """A run is queued: those of lower priority wait for it from now on."""
        order = self._order
        with order.changed:
            order.wanted[self._level] += 1

    def leave(self) -> None:
        """It has ended, or never will begin."""
        order, level = self._order, self._level
        with order.changed:
            if order.wanted[level]:                     # else it began before a fork
                order.wanted[level] -= 1
            if order.waiting:
                order.changed.notify_all()

    def __enter__(self) -> None:
        self.want()
        if any(self._order.wanted[self._level + 1:]) and not hasattr(_here, "exempt"):
            try:
                self.wait()
            except BaseException:
                self.leave()
                raise

    def __exit__(self, *_: object) -> None:
        self.leave()

    def wait(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Until no run of a higher priority is wanted, or the caller gives up, which he tells by a
        `leave`.
        """
        order, above = self._order, self._level + 1
        if not any(order.wanted[above:]):
            return

        def free() -> bool:
            return given_up() or not any(order.wanted[above:])

        with recording.span("wait", "runs of a higher priority"), order.changed:
            order.waiting += 1
            try:
                if order.changed.wait_for(free, PATIENCE):
                    return
                if not self._told:
                    self._told = True
                    log.warning(
                        "a run of %s (priority %s) has waited %.0f s for runs of a higher priority "
                        "on its device, and waits on: these leave it no time",
                        self.name, self.priority, PATIENCE)
                order.changed.wait_for(free)
            finally:
                order.waiting -= 1


def exempt() -> None:
    """This thread works off queued runs, and calls their callbacks: what these run must not wait
    for runs behind them.
    """
    _here.exempt = True


def _in_child() -> None:
    """No other thread's runs are under way here."""
    if hasattr(_here, "exempt"):
        del _here.exempt
    for order in _places.values():
        order.wanted[:], order.waiting = [0] * len(PRIORITIES), 0


forking.in_child(_in_child)

__all__ = ["PRIORITIES", "Turn", "exempt"]
