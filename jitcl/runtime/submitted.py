"""Runs that a model was asked for and that are computed behind the caller's back, in order.

    Model.submit ─► RunQueue ─► one thread ─► Model.run ─► Run: result, error, callbacks

The queue is bounded, and one thread works it off, as runs of a model take turns anyway. The process
waits for queued runs before it ends; a forked child does not have them.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Expired
from typing import Any

from jitcl import config, forking
from jitcl.errors import BusyError, ClosedError, DeviceError, JitclError, closed_error
from jitcl.runtime.precedence import Turn, exempt

Work = Callable[[], dict[str, Any]]
Callback = Callable[["Run"], Any]

log = logging.getLogger("jitcl")
_queues: weakref.WeakSet[RunQueue] = weakref.WeakSet()
_listed = forking.lock()
_here = threading.local()           # .queue: the one that this thread works off


class Run(Future[dict[str, Any]]):
    """What `Model.submit` gives: outputs to come. A `concurrent.futures.Future`, so that `wait` and
    `as_completed` take it, and awaitable. Methods may be called from any thread.

    done(): whether there is a result, an error, or nothing to wait for. cancel(): True where the
    run had not begun; its inputs are let go at once, its place in the queue when its turn comes.
    Kernels under way are not stopped. add_done_callback(f): f(run) in the thread that computes the
    model's runs, or at once where it is done; what it raises is logged. In there, nothing waits for
    that thread: `submit` raises BusyError where the queue is full, `close` returns at once.

    A run that is dropped is computed nevertheless; an error that nobody asked for is logged.
    """

    def __init__(self, name: str, work: Work, nbytes: int = 0) -> None:
        super().__init__()
        # made anew in a forked child, whose parent's threads may be inside
        self._condition = threading.Condition(forking.rlock())
        self.name, self.nbytes = name, nbytes       # of the model; bytes of its inputs
        self._work: Work | None = work
        self._queue: RunQueue | None = None
        self._asked = False                         # somebody has seen how it went

    def __repr__(self) -> str:
        state = "under way" if self.running() else "queued"
        if self.done():
            failed = not self.cancelled() and super().exception(0) is not None
            state = "cancelled" if self.cancelled() else "failed" if failed else "done"
        return f"<jitcl.Run of {self.name}: {state}>"

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Outputs by name; waits for them, at most `timeout` seconds. Raises what `Model.run`
        raises, TimeoutError (ask again later), CancelledError.
        """
        self._ask()
        try:
            return super().result(timeout)
        except Expired as error:
            raise self._not_yet(error, timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` would raise, None where it has outputs. Waits as `result` does."""
        self._ask()
        try:
            return super().exception(timeout)
        except Expired as error:
            raise self._not_yet(error, timeout) from None

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self._work, self.nbytes = None, 0
        return True

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        """Outputs by name. Any number of tasks may await a run; one that is cancelled, or whose
        time is up, does not cancel it for the others.
        """
        import asyncio

        return asyncio.shield(asyncio.wrap_future(self)).__await__()

    def __del__(self) -> None:
        if not self._asked and self.done() and not self.cancelled():
            error = super().exception(0)
            if error is not None:
                log.warning("a run of %s failed, and nobody asked for its result: %s: %s",
                            self.name, type(error).__name__, error)

    def _ask(self) -> None:
        if not self.done() and self._queue is not None and self._queue.is_worked_off_here:
            raise JitclError(f"{self!r}: a callback waits for a run that comes after it\n"
                             "  Give that run a callback of its own, or wait in another thread.")
        self._asked = True

    def _not_yet(self, error: BaseException, timeout: float | None) -> BaseException:
        """The error of a wait; as it is where the run itself raised it."""
        return error if self.done() else TimeoutError(
            f"{self!r}: it is not done after {timeout} s\n  Ask again later, or cancel() it.")

    def take(self) -> Work:
        """What to compute: with the inputs, which live no longer than that."""
        work, self._work = self._work, None
        assert work is not None
        return work

    def lost(self) -> None:
        """In a forked child, whose parent has the result, and calls back."""
        self._done_callbacks: list[Callback] = []
        self._work, self._asked = None, True
        self.set_exception(DeviceError(
            f"a run of {self.name} was under way when this process was forked: its parent has the "
            "result\n  Submit it again in this process."))


class RunQueue:
    """The runs of a model that have not ended: those that wait, at most JITCL_QUEUE, and one."""

    def __init__(self, name: str, turn: Turn) -> None:
        self.name, self.closed, self._turn = name, False, turn
        self._changed = threading.Condition(forking.rlock())
        self._waiting: deque[Run] = deque()
        self._computing: Run | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._ended: Future[None] | None = None
        with _listed:
            _queues.add(self)

    @property
    def is_worked_off_here(self) -> bool:
        """Whether this thread does it, and so must not wait for it."""
        return getattr(_here, "queue", None) is self

    @property
    def runs(self) -> list[Run]:
        """That have not ended."""
        runs = [*self._waiting, self._computing]
        return [run for run in runs if run is not None and not run.done()]

    def put(self, run: Run, timeout: float | None) -> None:
        """Queue it; where there is no room, wait for it so many seconds, then raise BusyError."""
        most = config.get("queue")
        inside = called_back()                      # two queues would wait for each other
        with self._changed:
            if not self._changed.wait_for(lambda: self.closed or len(self._waiting) < most,
                                          0 if inside else timeout):
                raise BusyError(
                    f"{self.name}: {len(self._waiting)} runs are queued, no more than JITCL_QUEUE "
                    f"allows{', and a callback does not wait' if inside else ''}\n"
                    "  Wait for results, pass a longer timeout, or none to wait.")
            if self.closed:
                raise closed_error(self.name)
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "jitcl-run")
            run._queue = self
            self._waiting.append(run)
            try:
                self._worker.submit(self._work_off)
            except RuntimeError as error:           # the call may stand in the worker's queue
                self._waiting.remove(run)
                if "shutdown" not in str(error):
                    raise
                raise ClosedError(f"{self.name}: this process ends, and starts no more runs\n"
                                  "  Use run() in handlers of its end.") from error

    def _work_off(self) -> None:
        _here.queue = self
        exempt()
        while self._waiting:
            self._turn.wait(lambda: all(run.done() for run in self._waiting))
            self._compute_next()

    def _compute_next(self) -> None:
        """An error's traceback keeps this frame and those that call it. None keeps the run, which
        keeps the error: a run that is dropped is gone at once.
        """
        with self._changed:
            run = self._computing = self._waiting[0]
            self._waiting.popleft()                 # a fork between these loses nothing
            self._changed.notify_all()
        try:
            if run.set_running_or_notify_cancel():
                try:
                    outputs = run.take()()
                except BaseException as error:  # noqa: BLE001  `result` raises it
                    run.set_exception(error)
                else:
                    run.set_result(outputs)
        finally:
            self._computing = None
            del run

    def close(self, finish: Callable[[], None], cancel: bool) -> None:
        """Take no more runs, cancel those that wait or let them end, and call `finish` behind the
        last. Returns after that, but in a callback at once.
        """
        with self._changed:
            first, self.closed = not self.closed, True
            waiting, worker = list(self._waiting), self._worker
            self._changed.notify_all()
            if first and worker is not None:
                try:
                    self._ended = worker.submit(finish)
                except RuntimeError:                # the process ends, and all runs have ended
                    worker = None
        if cancel:
            for run in waiting:
                run.cancel()
        if worker is None:
            if first:
                finish()
            return
        worker.shutdown(wait=not called_back())
        if self._ended is not None and not called_back():
            self._ended.result()

    def forget(self) -> None:
        """In a forked child: no thread works it off."""
        lost, self._waiting, self._computing, self._worker = self.runs, deque(), None, None
        for run in lost:
            run.lost()


def called_back() -> bool:
    """Whether this thread computes runs, and is in a callback of one: it must not wait."""
    return hasattr(_here, "queue")


def queued() -> list[Run]:
    """All runs that have not ended."""
    with _listed:
        queues = list(_queues)
    return [run for queue in queues for run in queue.runs]


def _in_child() -> None:
    if hasattr(_here, "queue"):
        del _here.queue
    for queue in list(_queues):
        queue.forget()


forking.in_child(_in_child)

__all__ = ["Run", "RunQueue", "called_back", "queued"]
