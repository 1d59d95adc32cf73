"""What profiles are made of: spans of time, noted by whoever spends it, while somebody records.

    with recording.span("copy", "inputs", nbytes=n):        a span of the run of this thread
        ...

Mostly nobody records: `active` is None then, and a span costs a look at that. All times are
nanoseconds of `time.perf_counter_ns`; those of a device's own clock are brought to it first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, TypeVar

from jitcl import forking
from jitcl.errors import JitclError

if TYPE_CHECKING:
    from jitcl.codegen.plan import Step

# kinds of spans, and what they are for people
KINDS = {
    "kernel": "kernels",
    "copy": "copies of inputs and outputs",
    "behind": "waiting while another run had the device",
    "wait": "other waiting",            # for the model's turn, or to be told that the device ended
    "compile": "compiling",
    "load": "building and loading kernels",
    "cache": "reading the cache",
    "guard": "checks of shapes and indices",
    "host step": "steps on the host",
    "host": "the host's part of a run",
    "profile": "what the profile itself costs",
}

QUIET = frozenset(("compile", "load"))        # kernels that run in there are tried
T = TypeVar("T")


@dataclass(eq=False)
class Span:
    """place: the device that was busy; "" is this thread of the host. queued, submitted: when a
    command was enqueued and given to the device, 0 where nobody says. stacked: how many runs of a
    loop it stands for.
    """

    kind: str
    name: str
    begin: int
    end: int = 0
    place: str = ""
    step: Step | None = None
    nbytes: int = 0
    queued: int = 0
    submitted: int = 0
    special: Any = None                 # the specialisation that the step is of


@dataclass(eq=False)
class RunSpan:
    """One run of a model, from its call to its return. asked: when it was submitted, 0: never.
    device: which it was compiled for.
    """

    model: str
    device: str
    thread: int
    begin: int
    end: int = 0
    asked: int = 0
    failed: str = ""
    spans: list[Span] = field(default_factory=list)
    outer: RunSpan | None = None

    def add(self, span: Span) -> None:
        self.spans.append(span)


class Recorder:
    """All that is noted between `start` and `stop`. outside: spans of no run (compiling, mostly).
    doubts: device -> why its clock is not believed.
    """

    def __init__(self) -> None:
        self.begin, self.end = now(), 0
        self.runs: list[RunSpan] = []
        self.outside: list[Span] = []
        self.doubts: dict[str, str] = {}
        self.devices: dict[str, Any] = {}           # by name
        self._labels: dict[int, tuple[str, Any]] = {}       # id -> name, and what has that id
        self._naming = forking.lock()

    def label(self, source: Any) -> str:
        """The name of a model, with a number where another has the same."""
        with self._naming:
            if id(source) not in self._labels:
                alike = sum(s.name == source.name for _, s in self._labels.values())
                name = f"{source.name} #{alike + 1}" if alike else source.name
                self._labels[id(source)] = name, source
            return self._labels[id(source)][0]

    def doubt(self, place: str, why: str) -> None:
        self.doubts.setdefault(place, why)


active: Recorder | None = None
_starting = forking.lock()
_here = threading.local()               # .run: of this thread; .quiet: what runs is no run of its
_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()


def start() -> Recorder:
    """Record from now on. JitclError while another records."""
    global active
    with _starting:
        if active is not None:
            raise JitclError("a profile is under way already: one at a time\n"
                             "  End its `with` block first; it sees the runs of all threads.")
        active = Recorder()
        return active


def stop(recorder: Recorder) -> None:
    """Runs that are under way are not seen any more."""
    global active
    with _starting:
        recorder.end = now()
        active = None


def span(kind: str, name: str, *, place: str = "", step: Step | None = None, nbytes: int = 0
         ) -> AbstractContextManager[Any]:
    """Note what is done in the block. A span in another takes its time out of that."""
    recorder = active
    if recorder is None:
        return _NOTHING
    return _Noted(recorder, Span(kind, name, 0, 0, place, step, nbytes))


class _Noted:
    """A span that ends with its block. Not made of a generator: that takes three times as long."""

    __slots__ = ("recorder", "span")

    def __init__(self, recorder: Recorder, made: Span) -> None:
        self.recorder, self.span = recorder, made

    def __enter__(self) -> Span:
        if self.span.kind in QUIET:
            _here.quiet = getattr(_here, "quiet", 0) + 1
        self.span.begin = now()
        return self.span

    def __exit__(self, *_: object) -> None:
        made = self.span
        made.end = now()
        if made.kind in QUIET:
            _here.quiet -= 1
        run = getattr(_here, "run", None)
        (self.recorder.outside if run is None else run.spans).append(made)


def run_here() -> RunSpan | None:
    """The run that this thread is in, where it is recorded; None while kernels are tried, too."""
    if active is None:
        return None
    quiet: int = getattr(_here, "quiet", 0)
    run: RunSpan | None = getattr(_here, "run", None)
    return None if quiet else run


def opened(source: Any, device: Any) -> AbstractContextManager[Any] | None:
    """Around a run of a model (of that source), where it is to be recorded; None for a part of one
    that is.
    """
    recorder = active
    if recorder is None or getattr(_here, "run", None) is not None:
        return None
    begin = now()
    return _opened(recorder, recorder.label(source), device, begin)


@contextlib.contextmanager
def _opened(recorder: Recorder, model: str, device: Any, begin: int) -> Iterator[None]:
    recorder.devices[device.name] = device
    asked: int = getattr(_here, "asked", 0)
    _here.asked = 0
    run = _here.run = RunSpan(model, device.name, threading.get_ident(), begin, asked=asked)
    run.add(Span("profile", "opening the run's record", begin, now()))
    recorder.runs.append(run)
    try:
        yield
    except BaseException as error:
        run.failed = type(error).__name__
        raise
    finally:
        run.end = now()
        _here.run = None


def submitted(work: Callable[[], T]) -> Callable[[], T]:
    """The work of a run that another thread will do; when it was submitted is part of the record.
    """
    if active is None:
        return work
    asked = now()

    def begin() -> T:
        _here.asked = asked
        return work()
    return begin


def used(special: Any) -> None:
    """What this thread's run has launched so far was of this specialisation: of a plan for many
    shapes, steps don't know their work.
    """
    run = run_here() if special.sizes else None
    for noted in reversed(run.spans if run is not None else []):
        if noted.special is not None:
            break
        noted.special = special


def turn(lock: Any) -> AbstractContextManager[Any]:
    """The lock as a context; waiting for it is noted."""
    return lock if active is None else _turn(lock)


@contextlib.contextmanager
def _turn(lock: Any) -> Iterator[None]:
    with span("wait", "its turn"):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _in_child() -> None:
    global active
    active, _here.run = None, None


forking.in_child(_in_child)

__all__ = ["KINDS", "Recorder", "RunSpan", "Span", "now", "opened", "run_here", "span", "start",
           "stop", "submitted", "turn", "used"]
