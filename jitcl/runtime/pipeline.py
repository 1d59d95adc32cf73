"""`Pipeline`: models and functions behind each other, each at work on another item.

    stage 0   item 0 | item 1 | item 2 | ..                 a thread a stage; each item visits them
    stage 1          | item 0 | item 1 | item 2 | ..        in order, so that results come out in
    stage 2                   | item 0 | item 1 | ..        the order in which items went in

with jitcl.Pipeline([detect, crop, classify], devices=["opencl", None, "cpu"]) as pipeline:
    for scores in pipeline.map({"image": frame} for frame in frames):
        ...
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

from jitcl import forking
from jitcl.errors import DeviceError, InputError, OptionError, closed_error
from jitcl.runtime.arguments import is_whole
from jitcl.runtime.calls import Calls

_here = threading.local()       # .threads: what this thread works for
AHEAD = 2                       # items a stage that are under way, the one at work among them


class Pipeline:
    """Stages that an item passes, each in a thread of its own.

    stages: models, what `jitcl.compile` takes (a path, a graph), or functions of one value.
    devices: one for each stage, or one for all: of those that are to be compiled; None for "auto",
    and for others. A model feeds the next one by the names of its outputs, or where each has one,
    whatever their names; what a function gets is what the stage before gave: outputs by name.

    `close`, or `with`, closes the models that this compiled; those that were given stay open.
    Raises OptionError, and what `jitcl.compile` raises.
    """

    def __init__(self, stages: Sequence[Any], devices: Any = None, **options: Any) -> None:
        """options: further ones of `jitcl.compile`, of all stages that are to be compiled."""
        if isinstance(stages, (str, bytes, Mapping)) or not isinstance(stages, Sequence) or (
                not stages):
            raise OptionError(f"stages: got {stages!r:.60}, wanted a list of models and functions")
        several = isinstance(devices, (list, tuple))
        if several and len(devices) != len(stages):
            raise OptionError(f"devices: got {len(devices)} for {len(stages)} stages\n"
                              "  Name one for all, or one for each: None for a function.")
        self.closed = False
        self._own: list[Calls] = []
        self._running: weakref.WeakSet[_Threads] = weakref.WeakSet()
        self._idle: list[_Workers] = []             # of maps that have ended, for those to come
        self._lending = forking.lock()
        self.stages: tuple[Any, ...] = ()
        try:
            for number, stage in enumerate(stages):
                device = devices[number] if several else devices
                made = self._stage(number, stage, device, several, options)
                self.stages = (*self.stages, made)
        except BaseException:
            self.close()
            raise
        self._steps = [self._step(n) for n in range(len(self.stages))]

    def _stage(self, number: int, stage: Any, device: Any, named: bool,
               options: Mapping[str, Any]) -> Any:
        compiled = isinstance(stage, Calls)
        if compiled or (callable(stage) and not hasattr(stage, "SerializeToString")):
            if named and device is not None:
                what = "compiled already" if compiled else "a function"
                raise OptionError(f"devices: stage {number} is {what}, and is not compiled for "
                                  f"{device!r}\n  Say None there, or pass the model's file.")
            return stage
        from jitcl.runtime.model import compile_now

        model = compile_now(stage, device="auto" if device is None else device, **options)
        self._own.append(model)
        return model

    def _step(self, number: int) -> Callable[[Any], Any]:
        """What a stage does to a value."""
        stage = self.stages[number]
        if not isinstance(stage, Calls):
            return stage                            # type: ignore[no-any-return]
        fed_by_model = number > 0 and isinstance(self.stages[number - 1], Calls)
        stays = _stays(stage, self.stages[number + 1:])
        return lambda value: stage.run(_renamed(stage, value) if fed_by_model else value,
                                       keep_on_device=stays)

    def __repr__(self) -> str:
        return f"<jitcl.Pipeline: {' -> '.join(map(self._called, range(len(self.stages))))}>"

    def _called(self, number: int) -> str:
        stage = self.stages[number]
        return stage.called if isinstance(stage, Calls) else getattr(
            stage, "__name__", type(stage).__name__)

    def map(self, items: Iterable[Any], *, ahead: int = AHEAD,
            on_error: Literal["raise", "return"] = "raise") -> Iterator[Any]:
        """What the last stage gives for each item, in order. Items are taken from the iterable in
        this thread when a result is asked for, at most `ahead` a stage beyond it, so that memory
        stays bounded however many there are.

        on_error: "raise" raises the error of an item in its turn, behind the results before it, and
        ends; "return" gives the exception in the result's place, and goes on. It has a note with
        the item's number and the stage. Leaving the loop early waits for what is under way only.
        """
        if self.closed:
            raise closed_error(repr(self))
        if on_error not in ("raise", "return"):
            raise OptionError(f"on_error: got {on_error!r}, wanted 'raise' or 'return'")
        if not is_whole(ahead):
            raise OptionError(f"ahead: got {ahead!r}, wanted a whole number from 1 up")
        return self._map(iter(items), ahead * len(self.stages), on_error == "return")

    def _map(self, items: Iterator[Any], most: int, returned: bool) -> Iterator[Any]:
        threads, waiting, more = _Threads(self), deque[Future[Any]](), True
        self._running.add(threads)
        try:
            while True:
                while more and len(waiting) < most:
                    try:
                        item = next(items)
                    except StopIteration:
                        more = False
                        break
                    waiting.append(threads.begin(item))
                if not waiting:
                    return
                threads.check()
                future = waiting.popleft()
                try:
                    result = future.result()
                except CancelledError:
                    raise closed_error(repr(self)) from None
                except Exception as error:             # of any kind: it is his who asks
                    if not returned:
                        raise
                    result = error
                yield result
        finally:
            threads.end()

    def workers(self) -> _Workers:
        """A thread a stage, for one map. Drivers keep memory for each thread that ever called them
        (Intel's CPU runtime 4 KiB): they are used again.
        """
        with self._lending:
            while self._idle:
                found = self._idle.pop()
                if found.made_in == forking.generation:
                    return found
        return _Workers(len(self.stages))

    def give_back(self, workers: _Workers) -> None:
        """They have nothing to do any more."""
        with self._lending:
            if not self.closed:
                self._idle.append(workers)
                return
        workers.end()

    def close(self) -> None:
        """End what is mapped, behind the items that stages are at work on, and close the models
        that this compiled. Twice is fine.
        """
        with self._lending:
            self.closed, idle, self._idle = True, self._idle, []
        for threads in list(self._running):
            threads.end()
        for workers in idle:
            workers.end()
        for model in self._own:
            model.close()

    def __enter__(self) -> Pipeline:
        if self.closed:
            raise closed_error(repr(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Workers:
    """A thread a stage."""

    def __init__(self, count: int) -> None:
        self.made_in = forking.generation
        self.stages = [ThreadPoolExecutor(1, f"jitcl-stage-{n}") for n in range(count)]

    def end(self, wait: bool = True) -> None:
        if self.made_in == forking.generation:
            for stage in self.stages:
                stage.shutdown(wait, cancel_futures=not wait)


class _Threads:
    """What one `map` has under way."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._workers = pipeline, pipeline.workers()
        self._steps, self._called = pipeline._steps, pipeline._called
        self._begun, self._ended, self._left = 0, False, False
        self._ending = forking.lock()
        self._unfinished: set[Future[Any]] = set()

    def begin(self, item: Any) -> Future[Any]:
        """The item's result to come."""
        self.check()
        result: Future[Any] = Future()
        self._unfinished.add(result)
        result.add_done_callback(self._unfinished.discard)
        number, self._begun = self._begun, self._begun + 1
        self._pass_on(0, number, item, result)
        return result

    def check(self) -> None:
        if self._workers.made_in != forking.generation:
            raise DeviceError("this process was forked while a pipeline was at work: its threads "
                              "are its parent's\n  Call map() in this process.")

    def _pass_on(self, stage: int, number: int, value: Any, result: Future[Any]) -> None:
        try:
            self._workers.stages[stage].submit(self._work, stage, number, value, result)
        except RuntimeError:                        # it was ended, or the process ends
            result.cancel()

    def _work(self, stage: int, number: int, value: Any, result: Future[Any]) -> None:
        if self._ended:
            result.cancel()
            return
        _here.threads = self
        try:
            value = self._steps[stage](value)
        except BaseException as error:  # noqa: BLE001  it is raised where its item is asked for
            note = f"item {number}, stage {stage} ({self._called(stage)})"
            error.__notes__ = [*getattr(error, "__notes__", []), note]     # add_note: Python 3.11
            result.set_exception(error)
            return
        if stage + 1 < len(self._steps):
            self._pass_on(stage + 1, number, value, result)
        else:
            result.set_result(value)

    def end(self) -> None:
        """Stages end the item that they are at work on; results of others are cancelled. Twice is
        fine.
        """
        self._ended = True
        workers = self._workers
        if workers.made_in != forking.generation or self._left:
            return
        if getattr(_here, "threads", None) is self:     # a stage ends its own map: nobody waits
            self._left = True
            workers.end(wait=False)
            return
        with self._ending:
            first, self._left = not self._left, True
            if not first:
                return
            for stage in workers.stages:            # the first first: then none gets more
                with suppress(RuntimeError):        # the process ends, and they with it
                    stage.submit(lambda: None).result()
        for result in list(self._unfinished):
            result.cancel()
        self._pipeline.give_back(workers)


def _stays(stage: Any, behind: Sequence[Any]) -> bool:
    """Whether results go on as tensors: to a model of the same OpenCL device, if no guard is to
    look at them.
    """
    reader = behind[0] if behind else None
    return (isinstance(reader, Calls) and getattr(reader, "device", None) is stage.device
            and hasattr(stage.device, "session") and stage.options.guard == "off")


def _renamed(model: Calls, outputs: Any) -> Any:
    """Outputs of a model as feeds of the next: by name, or one for one. InputError."""
    if not isinstance(outputs, Mapping):
        return outputs
    required = [t.name for t in model.inputs if not t.optional]
    if set(required) <= outputs.keys():
        known = {t.name for t in model.inputs}
        return {name: value for name, value in outputs.items() if name in known}
    if len(required) == len(outputs) == 1:
        return {required[0]: next(iter(outputs.values()))}
    raise InputError(
        f"{model.called}: the model before gives {', '.join(map(repr, outputs))}, this one reads "
        f"{', '.join(map(repr, required))}\n  Put a function between them that says which is "
        "which: lambda y: {'input': y['output']}.")


__all__ = ["Pipeline"]
