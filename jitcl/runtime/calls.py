"""The ways to ask a model for results, beside `run`; and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jitcl import forking
from jitcl.devices import recording
from jitcl.devices.shortage import telling
from jitcl.errors import InputError, closed_error
from jitcl.runtime.arguments import timeout_of
from jitcl.runtime.bound import not_bound
from jitcl.runtime.inputs import check_feeds, fixed_shapes
from jitcl.runtime.precedence import Turn
from jitcl.runtime.source import Tensor
from jitcl.runtime.tensors import DeviceTensor

if TYPE_CHECKING:
    from jitcl.runtime.submitted import Run, RunQueue  # imported when first used: 10 ms

Shapes = Mapping[str, tuple[int, ...]]
Self = TypeVar("Self", bound="Calls")
_making = forking.lock()


class Calls(ABC):
    """What has a `run` can be called with arrays, asked for runs to come, and closed."""

    inputs: tuple[Tensor, ...]
    turn: Turn
    closed = False                              # what it held is given back
    _queue: RunQueue | None = None              # from the first `submit` on

    @property
    @abstractmethod
    def called(self) -> str:
        """Its name in messages."""

    @abstractmethod
    def run(self, feeds: Mapping[str, Any], *, keep_on_device: bool = False) -> dict[str, Any]: ...

    @abstractmethod
    def _release(self) -> None:
        """Give back what it holds; called once, when no more runs are queued."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """`model(x, y)` or `model(image=x)`: positional arrays in the order of `model.inputs`."""
        if len(args) > len(self.inputs):
            raise InputError(f"{len(args)} arrays were passed to a model with "
                             f"{len(self.inputs)} inputs")
        feeds = dict(zip((t.name for t in self.inputs), args))
        twice = feeds.keys() & kwargs.keys()
        if twice:
            raise InputError(f"input '{min(twice)}' was passed twice: by position and by name")
        return self.run({**feeds, **kwargs})

    @telling
    def submit(self, feeds: Mapping[str, Any], *, timeout: float | None = None,
               keep_on_device: bool = False) -> Run:
        """`run` behind the caller's back: returns at once a `Run`, whose result() waits for the
        outputs. Runs are computed in the order in which they were submitted, behind those of
        models of a higher `priority` on the same device.

        feeds: as `run` takes them. They are checked and copied here: the caller may change his
        arrays afterwards. timeout: seconds to wait where JITCL_QUEUE runs are waiting already; None
        waits for as long as it takes, 0 does not wait. In a callback of a run nothing waits.
        keep_on_device: as `run` takes it. Tensors that are fed are not copied: nobody can map them
        for writing until the run has ended.

        Raises InputError, BusyError (no room within `timeout`), ClosedError. All else (compiling,
        for shapes that are new, and the driver) is raised by result().
        """
        seconds = timeout_of(timeout)
        self._check_open()
        with recording.span("copy", "inputs of a run to come"):
            copies = own(check_feeds(self.inputs, feeds))
        from jitcl.runtime.submitted import Run

        kept = {"keep_on_device": True} if keep_on_device else {}
        work = recording.submitted(lambda: self.run(copies, **kept))
        run = Run(self.called, work, size(copies))
        with ExitStack() as reading:
            for name, x in copies.items():
                if isinstance(x, DeviceTensor):
                    copies[name] = x.held()
                    reading.callback(x.end_reading)
            self.turn.want()
            reading.callback(self.turn.leave)
            self._runs().put(run, seconds)
            held = reading.pop_all()
        run.add_done_callback(lambda _: held.close())
        return run

    def close(self, *, cancel_queued: bool = False) -> None:
        """Give back the memory of this model: on its device, of its kernels, of what `bind` made.
        Waits for the runs that were submitted (`cancel_queued`: only for the one under way, and
        cancels the others), and for a `run` of another thread; in a callback of a run it returns at
        once, and memory is given back behind the last. Closing twice is fine. Whatever else a
        closed model is asked for raises ClosedError. `with` closes a model at its end, and where
        that is an error, cancels what is queued.
        """
        self._runs().close(self._release, cancel_queued)

    def __enter__(self: Self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel_queued=kind is not None)

    def fixed_shapes(self, shapes: Shapes | None) -> dict[str, tuple[int, ...]] | None:
        """All input shapes, from the model and from `shapes`; None while one is unknown."""
        return fixed_shapes(self.inputs, shapes)

    def _all_shapes(self, shapes: Shapes | None, door: str) -> dict[str, tuple[int, ...]]:
        """`fixed_shapes`, all of which must be known; `door`: who asks."""
        self._check_open()
        fixed = self.fixed_shapes(shapes)
        if fixed is None:
            raise not_bound(self.inputs, shapes or {}, door)
        return fixed

    def _check_open(self) -> None:
        if self.closed or (self._queue is not None and self._queue.closed
                           and not self._queue.is_worked_off_here):
            raise closed_error(self.called)

    def _runs(self) -> RunQueue:
        from jitcl.runtime.submitted import RunQueue

        with _making:
            if self._queue is None:
                self._queue = RunQueue(self.called, self.turn)
            return self._queue


def own(value: Any) -> Any:
    """A fed value that shares no memory with the caller's: arrays, and lists and dicts of them."""
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, dict):
        return {name: own(v) for name, v in value.items()}
    return [own(v) for v in value] if isinstance(value, (list, tuple)) else value


def size(value: Any) -> int:
    """Bytes of arrays in it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    parts: Sequence[Any] = list(value.values()) if isinstance(value, dict) else (
        value if isinstance(value, (list, tuple)) else ())
    return sum(map(size, parts))


__all__ = ["Calls", "Shapes", "own", "size"]
