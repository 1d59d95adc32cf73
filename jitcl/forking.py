"""What must be in order where this process forks, or ends, while its other threads are at work.

    lock(), rlock()     locks that a forked child finds free, whichever other thread held them
    with OPENCL: ...    this thread is in the driver: a fork, and the process's end, wait for it
    generation          how many forks lie behind this process's memory
    in_child(f)         call f in each forked child
    at_end(f)           call f when the process ends, after other threads have left the libraries

A fork copies one thread. Locks that others hold stay locked in the child for ever, in libraries,
too: so no thread may be in one at that moment. At the end, Python (before 3.14) ends daemon threads
where they next ask for the interpreter's lock; in a C++ library that is "terminate called without
an active exception", status 134. So they are let out first, and a thread that wants to go in again
ends as by sys.exit().
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from jitcl.errors import DeviceError

FORK_SECONDS = 30.0             # that a fork waits for other threads
REST_SECONDS = 0.1              # and for a library's own, which nobody gives work any more
END_SECONDS = 30.0              # that the process's end does

generation = 0

log = logging.getLogger("jitcl")
T = TypeVar("T")


class Library:
    """One with locks and threads of its own. As a context: this thread is in it. Nests. Raises
    DeviceError in a child whose fork could not wait for other threads.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.caught = False                     # the fork that made this process came at a bad time
        self.used = False
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}       # thread -> how deep
        self._closed_by = 0                     # the thread that forks or ends the process
        _libraries.append(self)

    def __enter__(self) -> None:
        if self.caught:
            raise DeviceError(
                f"this process was forked while another thread of its parent was in {self.name}, "
                "and can't use it\n  Fork when no model is compiled or run, or start processes "
                "with multiprocessing.get_context('spawn') or 'forkserver'.")
        me = threading.get_ident()
        with self._changed:
            while self._closed_by not in (0, me) and me not in self._inside:
                if ending():
                    raise SystemExit            # of a daemon thread: silent, and lets locks go
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
            self.used = True

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                if self._closed_by:
                    self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Let no other thread in, and wait until none is; whether that came about."""
        me, deadline = threading.get_ident(), time.monotonic() + seconds
        with self._changed:
            while self._closed_by not in (0, me):           # two threads fork
                self._changed.wait()
            self._closed_by = me
            while self._others() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._others()

    def open(self) -> None:
        with self._changed:
            self._closed_by = _ended_by
            self._changed.notify_all()

    def in_child(self) -> None:
        """There is one thread, the one that forked."""
        me = threading.get_ident()
        self.caught = self.caught or self._others()
        self._changed = threading.Condition()
        self._inside = {thread: n for thread, n in self._inside.items() if thread == me}
        self._closed_by = 0

    def _others(self) -> bool:
        return any(thread != threading.get_ident() for thread in self._inside)


class cached_property(functools.cached_property[T]):
    """functools', whose lock (one a class, before Python 3.12) no thread of a parent keeps."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        super().__init__(function)
        held = getattr(self, "lock", None)
        if held is not None:
            _locks.add(held)


_libraries: list[Library] = []
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: list[Callable[[], None]] = []
_at_end: list[Callable[[], None]] = []
_foreign: list[Any] = []                        # locks of other libraries
_taken: list[Any] = []                          # of these, by who forks now
_ended_by = 0                                   # the thread that ends the process


def lock() -> threading.Lock:
    """For what calls nothing of the user's: who forks while he holds it can't give it back."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> Any:
    """Re-entrant: also for what calls back to the user, who may fork there."""
    made = threading.RLock()
    _locks.add(made)
    return made


def held(lock: Any) -> None:
    """A re-entrant lock of another library: whoever forks holds it, so that no thread is inside."""
    _foreign.append(lock)


def in_child(function: Callable[[], None]) -> None:
    _in_child.append(function)


def at_end(function: Callable[[], None]) -> None:
    """Those that were registered last are called first."""
    _at_end.append(function)


def ending() -> bool:
    """Whether the process ends, and this thread is not the one that ends it."""
    return _ended_by not in (0, threading.get_ident())


def _before_fork() -> None:
    global _taken
    deadline = time.monotonic() + FORK_SECONDS
    for library in _libraries:
        if not library.close(max(0.0, deadline - time.monotonic())):
            log.warning("a thread has been in %s for %.0f s: a child that is forked now can't "
                        "use it", library.name, FORK_SECONDS)
    # behind the libraries, whose threads may still want these
    _taken = [k for k in _foreign if k.acquire(timeout=max(0.0, deadline - time.monotonic()))]
    if OPENCL.used:
        _let_workers_rest()


def _let_workers_rest() -> None:
    """A driver's worker threads hold its locks for a moment when their work is done (TBB's, of
    Intel's runtime, while they go to sleep: one fork in fifty beside busy threads left a child
    that waits for ever). Linux tells which threads run; what other libraries' threads do, which
    may run on, is no reason to wait longer.
    """
    begin, quiet = time.monotonic(), 0
    known = {thread.native_id for thread in threading.enumerate()}
    while quiet < 2 and time.monotonic() < begin + REST_SECONDS:
        quiet = 0 if _running(known) else quiet + 1
        time.sleep(0.001)


def _running(known: set[int | None]) -> bool:
    """Whether a thread runs that is none of `known`; True where the system does not tell."""
    try:
        threads = [int(name) for name in os.listdir("/proc/self/task")]
        for thread in threads:
            if thread not in known:
                with open(f"/proc/self/task/{thread}/stat") as file:
                    if file.read().rpartition(")")[2].split()[0] == "R":
                        return True
    except (FileNotFoundError, ProcessLookupError):         # no /proc, or a thread that has ended
        return True
    return False


def _after_in_parent() -> None:
    for library in _libraries:
        library.open()
    for taken in _taken:
        taken.release()


def _after_in_child() -> None:
    global generation, _ended_by
    generation += 1
    _ended_by = 0
    for own in list(_locks):
        if not _free_or_mine(own):
            own._at_fork_reinit()
    for foreign in _foreign:
        if foreign in _taken:
            foreign.release()
        else:
            foreign._at_fork_reinit()
    for library in _libraries:
        library.in_child()
    for function in _in_child:
        function()


def _free_or_mine(held: Any) -> bool:
    if held.acquire(blocking=False):
        held.release()
        return True
    return False


def _end() -> None:
    global _ended_by
    _ended_by = threading.get_ident()
    deadline = time.monotonic() + END_SECONDS
    for library in _libraries:
        if not library.close(max(0.0, deadline - time.monotonic())):
            log.warning("a thread is still in %s when the process ends", library.name)
    for function in reversed(_at_end):
        function()


OPENCL = Library("an OpenCL driver")
LLVM = Library("LLVM")

atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent,
                        after_in_child=_after_in_child)
