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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Literal

from jitcl import config, forking
from jitcl.cores import usable_cores
from jitcl.errors import DeviceError, InputError, OptionError, closed_error
from jitcl.runtime.arguments import is_whole
from jitcl.runtime.calls import Calls

_here = threading.local()       # .threads: what this thread works for
_CLOSED = object()              # in place of a result: there are no more
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

        def run(value: Any) -> Any:
            return stage.run(_renamed(stage, value) if fed_by_model else value,
                             keep_on_device=stays)

        if not _beside_another_device(stage, self.stages):
            return run

        def run_on_fewer_cores(value: Any) -> Any:
            with config.here(threads=min(config.get("threads"), _left_over(len(self.stages)))):
                return run(value)

        return run_on_fewer_cores

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
        threads, waiting, more = _Threads(self), 0, True
        self._running.add(threads)
        try:
            while True:
                while more and waiting < most:
                    try:
                        item = next(items)
                    except StopIteration:
                        more = False
                        break
                    threads.begin(item)
                    waiting += 1
                if not waiting:
                    return
                result, error = threads.next_result()
                waiting -= 1
                if error is None:
                    yield result
                elif returned and isinstance(error, Exception):
                    yield error
                else:
                    raise error
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


class _Worker:
    """A thread that makes calls in order, until this is ended or nobody has it any more. A queue in
    C and no future for each call: a stage of a fraction of a millisecond would wait for the
    interpreter's lock while they are made (0.1 ms an item over two stages).
    """

    def __init__(self, name: str) -> None:
        self.calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()     # function, arguments
        self._thread = threading.Thread(target=_serve, args=(self.calls,), name=name, daemon=True)
        self._thread.start()
        self._dismiss = weakref.finalize(self, self.calls.put, None)
        _workers.add(self)

    def finish(self) -> None:
        """Wait until the calls so far have been made."""
        if self._dismiss.alive:
            done: SimpleQueue[None] = SimpleQueue()
            self.calls.put((done.put, None))
            done.get()

    def end(self, wait: bool = True) -> None:
        self._dismiss()
        if wait:
            self._thread.join()


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


def _serve(calls: SimpleQueue[tuple[Any, ...] | None]) -> None:
    while _serve_next(calls):
        pass


def _serve_next(calls: SimpleQueue[tuple[Any, ...] | None]) -> bool:
    """A frame of its own: what the last call was made with is let go while the next is awaited."""
    call = calls.get()
    if call is None:
        return False
    call[0](*call[1:])
    return True


def _end_all() -> None:
    for worker in list(_workers):
        worker.end()


forking.at_end(_end_all)


class _Workers:
    """A thread a stage."""

    def __init__(self, count: int) -> None:
        self.made_in = forking.generation
        self.stages = [_Worker(f"jitcl-stage-{n}") for n in range(count)]

    def end(self, wait: bool = True) -> None:
        if self.made_in == forking.generation:
            for stage in self.stages:
                stage.end(wait)


class _Threads:
    """What one `map` has under way."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._workers = pipeline, pipeline.workers()
        self._steps, self._called = pipeline._steps, pipeline._called
        self._begun, self._ended, self._left = 0, False, False
        self._ending = forking.lock()
        self._results: SimpleQueue[Any] = SimpleQueue()     # value and error, in order

    def begin(self, item: Any) -> None:
        self._check()
        self._pass_on(0, self._begun, item, None)
        self._begun += 1

    def next_result(self) -> tuple[Any, BaseException | None]:
        self._check()
        found = self._results.get()
        if found is _CLOSED:
            raise closed_error(repr(self._pipeline))
        return found                                # type: ignore[no-any-return]

    def _check(self) -> None:
        if self._workers.made_in != forking.generation:
            raise DeviceError("this process was forked while a pipeline was at work: its threads "
                              "are its parent's\n  Call map() in this process.")

    def _pass_on(self, stage: int, number: int, value: Any, error: BaseException | None) -> None:
        if stage < len(self._steps):
            self._workers.stages[stage].calls.put((self._work, stage, number, value, error))
        else:
            self._results.put((value, error))

    def _work(self, stage: int, number: int, value: Any, error: BaseException | None) -> None:
        """An error is passed on as a value is: it is raised behind the results before it."""
        if self._ended:
            return
        if error is None:
            _here.threads = self
            try:
                value = self._steps[stage](value)
            except BaseException as raised:  # noqa: BLE001  it is raised in its item's turn
                note = f"item {number}, stage {stage} ({self._called(stage)})"
                raised.__notes__ = [*getattr(raised, "__notes__", []), note]    # add_note: 3.11
                value, error = None, raised
            finally:
                _here.threads = None                # else the thread keeps what keeps it
        self._pass_on(stage + 1, number, value, error)

    def end(self) -> None:
        """Stages end the item that they are at work on; others have no results. Twice is fine."""
        self._ended = True
        workers = self._workers
        if workers.made_in != forking.generation or self._left:
            return
        if getattr(_here, "threads", None) is self:     # a stage ends its own map: nobody waits
            self._left = True
            workers.end(wait=False)
            self._results.put(_CLOSED)
            return
        with self._ending:
            first, self._left = not self._left, True
            if not first:
                return
            for stage in workers.stages:            # the first first: then none gets more
                stage.finish()
        self._results.put(_CLOSED)
        self._pipeline.give_back(workers)


def _stays(stage: Any, behind: Sequence[Any]) -> bool:
    """Whether results go on as tensors: to a model of the same OpenCL device, if no guard is to
    look at them.
    """
    reader = behind[0] if behind else None
    return (isinstance(reader, Calls) and getattr(reader, "device", None) is stage.device
            and hasattr(stage.device, "session") and stage.options.guard == "off")


def _beside_another_device(stage: Calls, stages: Sequence[Any]) -> bool:
    """Whether a model on `cpu` computes while others' devices do."""
    return _computes_here(stage) and not all(
        _computes_here(other) for other in stages if isinstance(other, Calls))


def _computes_here(model: Calls) -> bool:
    device = getattr(model, "device", None)
    return device is not None and device.target.kind == "cpu"


def _left_over(stages: int) -> int:
    """Threads for a model on `cpu` that leave the pipeline's own threads a core each, but an eighth
    of the cores at most. A driver copies, and NVIDIA's spins while it waits; a thread of `cpu`
    that has no core meanwhile holds up all others for a time slice (docs/decisions.md,
    2026-11-28).
    """
    cores = usable_cores()
    return cores - min(stages, cores // 8)


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
