"""`Pool`: so many runs of a model at a time, in the manner of OpenVINO's AsyncInferQueue.

pool = jitcl.Pool(model, jobs=4)
pool.set_callback(lambda run, name: save(name, run.result()["logits"]))
for name, image in images:
    pool.start_async({"image": image}, name)        # waits while four are under way
pool.wait_all()
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jitcl import forking
from jitcl.errors import BusyError, JitclError, OptionError
from jitcl.runtime.arguments import is_whole, timeout_of
from jitcl.runtime.submitted import Run, called_back

if TYPE_CHECKING:
    from jitcl.runtime.model import Model

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@dataclass(eq=False)
class Job:
    """One of a pool's places: the run that was started in it last, and what goes with that."""

    run: Run | None = None
    userdata: Any = None


class Pool:
    """At most `jobs` runs of a model that have not ended, their callbacks included. Iterating gives
    the `jobs` places, each with its last `run` and `userdata`. Thread-safe.

    As runs of one model take turns on its device, a pool bounds what is under way and overlaps the
    caller's work with the model's; it does not run a model four times at once.
    """

    def __init__(self, model: Model, jobs: int = 4) -> None:
        if not is_whole(jobs):
            raise OptionError(f"jobs: got {jobs!r}, wanted a whole number from 1 up")
        self.model = model
        self._changed = threading.Condition(forking.rlock())
        self._jobs = [Job() for _ in range(jobs)]
        self._idle = deque(self._jobs)
        self._callback: Callable[[Run, Any], Any] | None = None
        self._failed: Run | None = None             # the first since wait_all
        _pools.add(self)

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __getitem__(self, number: int) -> Job:
        return self._jobs[number]

    def set_callback(self, callback: Callable[[Run, Any], Any] | None) -> None:
        """Of runs that end from now on: callback(run, userdata), as `Run.add_done_callback` says.
        """
        self._callback = callback

    def is_ready(self) -> bool:
        """Whether `start_async` has a place now."""
        return bool(self._idle)

    def start_async(self, feeds: Mapping[str, Any], userdata: Any = None, *,
                    timeout: float | None = None) -> Run:
        """`Model.submit` in the next place that is idle. Waits for one, `timeout` seconds at most
        with what `submit` waits, and in a callback not at all: then raises BusyError.
        """
        seconds, begin = timeout_of(timeout), time.monotonic()
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle, 0 if called_back() else seconds):
                raise BusyError(
                    f"{self.model.called}: all {len(self)} jobs of the pool are under way"
                    f"{', and a callback does not wait' if called_back() else ''}\n"
                    "  Use more jobs, or wait longer.")
            job = self._idle.popleft()
        try:
            left = seconds and max(0.0, begin + seconds - time.monotonic())
            run = self.model.submit(feeds, timeout=left)
        except BaseException:
            self._end(job)
            raise
        job.run, job.userdata = run, userdata
        run.add_done_callback(partial(self._called, job, userdata))
        return run

    def wait_all(self) -> None:
        """Wait until all places are idle. Raises the error of the first run that has failed since
        this was last called; the others' stand in their own results.
        """
        if called_back():
            raise JitclError(f"{self.model.called}: a callback waits for all runs of a pool, its "
                             "own among them\n  Wait in the thread that starts them.")
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self._jobs))
            failed, self._failed = self._failed, None
        if failed is not None:
            failed.result()

    def _called(self, job: Job, userdata: Any, run: Run) -> None:
        """A run has ended; its place is idle when its callback has."""
        try:
            if self._callback is not None:
                self._callback(run, userdata)
        finally:
            failed = not run.cancelled() and run.exception() is not None
            self._end(job, run if failed else None)

    def _end(self, job: Job, failed: Run | None = None) -> None:
        with self._changed:
            self._failed = self._failed or failed
            self._idle.append(job)
            self._changed.notify_all()

    def forget(self) -> None:
        """In a forked child, which has none of the runs."""
        self._idle, self._failed = deque(self._jobs), None


def _in_child() -> None:
    for pool in list(_pools):
        pool.forget()


forking.in_child(_in_child)

__all__ = ["Job", "Pool"]
