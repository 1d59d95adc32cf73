"""A plan on an OpenCL device: buffers allocated and arguments set once, each run one pass over
the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes
from jitcl.codegen.plan import Plan, Shapes, TensorSpec
from jitcl.devices import recording
from jitcl.devices.base import Binding, DeviceArray, Given, Repeat
from jitcl.devices.opencl.arrays import OpenClArray, fed_together, pinned, shares_memory
from jitcl.devices.opencl.host_steps import HostSection
from jitcl.devices.opencl.launches import Launch, ended, fit_work_group
from jitcl.devices.opencl.lending import Lending
from jitcl.devices.opencl.loaded import Action, LoadedPlan, StepTime
from jitcl.devices.opencl.memory import ResidentMemory, check_room
from jitcl.devices.opencl.repetition import Repetition
from jitcl.devices.opencl.run_faults import StepFailed
from jitcl.devices.opencl.series import Series, in_series
from jitcl.devices.opencl.watched import Command, told
from jitcl.devices.recording import Recorder, Span, now
from jitcl.devices.results import Results

REPEATS = 16  # launches of one step, or passes, that are timed together, of at most
TOGETHER = 5e-3  # seconds
IN_FLIGHT = 512  # commands of runs that follow each other
STAGED = 1 << 16  # bytes of a result that comes by way of pinned memory, of which there is little
PINNED = 1 << 20  # and of one that is bound there

# the buffers that kernels find in place of the plan's own; arrays that are acquired first
Lent = tuple[dict[int, Any], list[OpenClArray]]

__all__ = ["HostSection", "Launch", "OpenClExecutable", "StepTime", "fit_work_group"]


class OpenClExecutable(LoadedPlan):
    """A loaded specialisation of a model."""

    memory: ResidentMemory
    _zeroed = False     # the guard's flags are known to be zeros, as the last run left them

    def _placed(self) -> None:
        plan = self.plan
        self.memory = ResidentMemory(self.session, plan, {
            *(b for action in self._prepared for b in action.buffers),
            *(t.buffer for t in (*plan.inputs, *plan.outputs))})
        self._dropped = Results()
        self._lending = Lending(plan, self._prepared)
        self._flags = [n for n, t in enumerate(plan.outputs) if t.name in plan.looked_at]
        self._clears = bool(self._prepared) and isinstance(self._prepared[0], Launch) and (
            [*self._prepared[0].buffers] == [plan.outputs[n].buffer for n in self._flags])
        self._series: dict[bool, list[Series | HostSection]] = {}   # without the clear, and with it
        self._profiling: Any = None                 # the queue of profiled runs
        self._into: list[Any] | None = None         # where a run's results go, if they are to stay
        self._together: tuple[Any, np.ndarray] | None = None    # where inputs lie, and come from
        self._behind: list[Callable[[Any], list[Any]]] = []
        self._bind()

    def check_room(self, plan: Plan) -> None:
        check_room(self.session, plan)

    def _moved(self, plan: Plan) -> None:
        self.memory.move(plan)

    def _fitted(self) -> None:
        self._lending.fit(self.plan)
        self._series.clear()

    def _bind(self) -> None:
        self._zeroed = False
        try:
            self.memory.allocate()
            self._staged = {} if shares_memory(self.session) else {
                n: pinned(self.session, self.queue, nbytes) for n, t in enumerate(self.plan.outputs)
                if 0 < (nbytes := self.plan.buffers[t.buffer].nbytes) <= STAGED}
            self._order = sorted(range(len(self.plan.outputs)), key=lambda n: n not in self._staged)
            for action in self._prepared:
                action.bind(self.memory)
            self._lending.again(self.memory)
        except BaseException:
            self.memory.release()  # the caller's traceback would hold half a model
            raise

    # ---- running

    def _pass(self, sources: list[np.ndarray], careful: bool) -> list[np.ndarray]:
        if self.memory.released:  # by a run that failed
            self._bind()
        self._lending.settle(self.memory)
        zeroed, self._zeroed = self._zeroed, False          # until its flags are read
        if recording.run_here() is not None and (recorder := recording.active) is not None:
            return self._recorded(sources, careful, recorder)
        if not careful:
            copied = [c.event for c in self._upload(sources)]
            return self._download([*copied, *self._enqueue(self.queue, zeroed)])
        with self._idle():
            ended(self.queue, [c.event for c in self._upload(sources)])
        for action in self._launches:
            self._awaited(action, self.queue)
        return self._download([])

    def _repeated(self, arrays: Sequence[np.ndarray], how: Repeat, careful: bool
                  ) -> list[np.ndarray]:
        """All runs are enqueued behind each other; rows and what is stacked lie on the device."""
        if self.memory.released:
            self._bind()
        self._lending.settle(self.memory)
        self._zeroed = False
        first = [x[0] if i in how.rows else x for i, x in enumerate(arrays)]
        with self._idle():
            ended(self.queue, [c.event for c in self._upload(self._check(first))])
        what = f"{how.runs} runs of {len(self._launches)} steps"
        with (recording.span("kernel", what, place=self.session.name),
              Repetition(self.memory, self.plan, how) as repetition):
            repetition.upload(self.queue, [arrays[i] for i in how.rows])
            events: list[Any] = []
            for number in range(how.runs):
                events += repetition.before(self.queue, number)
                if careful:
                    for action in self._launches:
                        self._awaited(action, self.queue)
                else:
                    events += self._enqueue(self.queue)
                events += repetition.behind(self.queue, number)
                if len(events) > IN_FLIGHT:
                    ended(self.queue, events)
                    events.clear()
            ended(self.queue, events)
            return repetition.download(self.queue)

    def _upload(self, sources: list[Any]) -> list[Command]:
        """Start copying the inputs that kernels don't read where they are; returns the copies. An
        event that is dropped is waited for.
        """
        copied, lent = [], self._lending.lent
        if self._together is not None:
            buffer, host = self._together
            event = cl.enqueue_copy(self.queue, buffer, host, is_blocking=False)
            copied.append(Command("copy", "inputs", event, nbytes=host.nbytes))
        for data, spec in zip(sources, self.plan.inputs):
            if spec.buffer not in lent and data.size:
                to = self.memory[spec.buffer]
                event = (cl.enqueue_copy(self.queue, to, data, is_blocking=False)
                         if isinstance(data, np.ndarray) else
                         cl.enqueue_copy(self.queue, to, data.buffer, byte_count=data.nbytes))
                copied.append(Command("copy", f"input '{spec.name}'", event, nbytes=data.nbytes))
        return copied

    def _enqueue(self, queue: Any, zeroed: bool = False) -> list[Any]:
        """Launch every step in order, but the first where it clears flags that are `zeroed`;
        returns their events, None for steps on the host. Where one event tells of all before it,
        there is one a series of launches.
        """
        launches = self._launches[1:] if zeroed else self._launches
        if not self.session.target.failures_last:
            return self._enqueue_all(queue, launches)
        if zeroed not in self._series:
            self._series[zeroed] = list(in_series(launches, self.session.target.flush_every))
        return self._enqueue_all(queue, self._series[zeroed])

    def _enqueue_all(self, queue: Any, actions: Sequence[Action | Series]) -> list[Any]:
        events: list[Any] = []
        marks: list[Any] = []
        every, depth = self.session.target.flush_every, self.session.target.queue_depth
        unflushed = 0
        for action in actions:
            try:
                event = action.start(queue)
            except StepFailed as failed:
                raise self._refused(failed, queue) from failed.error
            events.append(event)
            unflushed += len(action.launches) if isinstance(action, Series) else 1
            if event is None:
                marks.clear()  # it waited for all before
                unflushed = 0
            elif unflushed >= every:
                queue.flush()
                unflushed = 0
                marks.append(event)
                if len(marks) * every > depth:
                    marks.pop(0).wait()
        return events

    def _download(self, events: list[Any]) -> list[np.ndarray]:
        """Fresh arrays with the outputs; waits for all steps, whose `events` tell if they failed.
        """
        results = self._results()
        ended(self.queue, [*events, *(c.event for c in self._read(results))])
        self._unstage(results)
        self._zeroed = self._clears and not any(any(results[n].tolist()) for n in self._flags)
        return results

    def _results(self) -> list[Any]:
        if self._into is not None:
            return self._into
        wanted = [(t.shape, dtypes.to_numpy(t.dtype)) for t in self.plan.outputs]
        return self._dropped.all(wanted, self.queue.flush)

    def close(self) -> None:
        super().close()
        self._dropped.clear()

    def _read(self, results: list[Any]) -> list[Command]:
        """Start copying the outputs that kernels did not write where they are to be, small ones to
        pinned memory, and first: a driver waits for all before it copies to other memory.
        """
        copied = [Command("copy", "behind the run", event) for commands in self._behind
                  for event in commands(self.queue)]
        lent = self._lending.lent
        for n in self._order:
            spec, out = self.plan.outputs[n], results[n]
            if spec.buffer not in lent and out.size:
                source = self.memory[spec.buffer]
                event = (cl.enqueue_copy(self.queue, self._staged[n][:out.nbytes] if n in
                                         self._staged else _flat(out), source, is_blocking=False)
                         if isinstance(out, np.ndarray) else
                         cl.enqueue_copy(self.queue, out.buffer, source, byte_count=out.nbytes))
                copied.append(Command("copy", f"output '{spec.name}'", event, nbytes=out.nbytes))
        return copied

    def _unstage(self, results: list[Any]) -> None:
        """Copy what has come to pinned memory to the results."""
        for n, staged in self._staged.items():
            if isinstance(results[n], np.ndarray):
                _flat(results[n])[:] = staged[:results[n].nbytes]

    # ---- arrays that stay on the device

    def run_on_device(self, inputs: Sequence[Any], keep: bool, shapes: Shapes | None = None
                      ) -> Sequence[Any]:
        """Kernels read and write arrays of the device where they lie, if the plan allows it;
        otherwise the device copies them.
        """
        with self._turn("running a model"):
            if shapes is not None:
                self._resize(shapes)
            return self._run_on(self._check(inputs), self._fresh() if keep else None)

    def _fresh(self) -> list[Any]:
        """Room for results; for the guard's flags on the host, which reads them."""
        return [np.empty(spec.shape, dtypes.to_numpy(spec.dtype)) if n in self._flags else
                OpenClArray(self.session, spec, self._lending.least[spec.buffer])
                for n, spec in enumerate(self.plan.outputs)]

    def _run_on(self, sources: list[Any], into: list[Any] | None, lent: Lent | None = None
                ) -> list[Any]:
        """lent: what `_lent` says of these arrays."""
        instead, acquired = lent or self._lent(sources, into)
        self._into = into
        try:
            with ExitStack() as stack:
                for x in acquired:
                    stack.enter_context(x.acquired(self.queue))
                stack.enter_context(self._lending.instead(instead, self.memory))
                return self._ran(sources)
        finally:
            self._into = None

    def _lent(self, sources: list[Any], into: list[Any] | None, whole: bool = True) -> Lent:
        """whole: whether inputs of whole numbers, too, are read where they are."""
        arrays = [(spec, x) for spec, x in (*zip(self.plan.inputs, sources),
                                            *zip(self.plan.outputs, into or ()))
                  if isinstance(x, OpenClArray)]
        return ({spec.buffer: x.buffer for spec, x in arrays
                 if self._lending.takes(spec.buffer, x.capacity)
                 and (whole or dtypes.is_float(spec.dtype))},
                [x for _, x in arrays if x.acquires])

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        """The plan on arrays of its own. Where the device shares the host's memory, kernels work on
        them; otherwise they are pinned, and copied without a detour. Whole numbers are copied: they
        may be indices, which another thread must not change once they were checked. None for arrays
        of the host that are the caller's, which no buffer has.
        """
        if self.session.ended or any(x.home is not self.session if isinstance(x, DeviceArray)
                                     else True for x in (given or {}).values()):
            return None                         # a run opens the device anew, or says why not
        if given or keep:
            return self._beside(given or {}, shapes, keep)
        if shapes:
            return None
        ins = [OpenClArray(self.session, spec, self.plan.buffers[spec.buffer].nbytes)
               for spec in self.plan.inputs]
        into = self._fresh()
        outs = [y for y in into if isinstance(y, OpenClArray)]
        views = [*(x.open(read=False) for x in ins), *(
            y.open(read=False) if isinstance(y, OpenClArray) else y for y in into)]
        for view in views:
            view[...] = np.zeros((), view.dtype)

        def compute() -> None:
            with self._turn("running a model"):
                try:
                    for x in ins:
                        x.shut(again=True, wait=False)
                    for y in outs:
                        y.shut(write=False, again=True, wait=False)
                    self.session.transfers.finish()     # one wait for all
                    self._run_on(ins, into, self._lent(ins, into, whole=False))
                finally:
                    for x in ins:
                        x.open(read=False, wait=False)
                    for y in outs:
                        y.open(wait=False)
                    self.session.transfers.finish()

        return Binding({t.name: x for t, x in zip(self.plan.inputs, views)},
                       {t.name: y for t, y in zip(self.plan.outputs, views[len(ins):])}, compute,
                       shares_memory(self.session))

    def _beside(self, given: Given, shapes: Shapes | None, keep: Collection[str]) -> Binding:
        """The same where some arrays lie on the device: the others are the host's, and copied, all
        inputs at once: a copy takes the host as long as some launches.
        """
        with self._turn("binding a model"):
            if shapes is not None:
                self._resize(shapes)
            plan = self.plan
            own = [t for t in plan.inputs if t.name not in given]
            fed, views, together = fed_together(
                self.session, self.queue, own, [self._lending.least[t.buffer] for t in own])
            kept = [t for t in plan.outputs if t.name in keep]
            stay = iter(OpenClArray.together(
                self.session, kept, [self._lending.least[t.buffer] for t in kept]))
            into = [next(stay) if t.name in keep else self._result(t) for t in plan.outputs]
            there = {**given, **fed}
            sources = self._check([there[t.name] for t in plan.inputs])
            lent = self._lent(sources, into)
        behind: list[Callable[[Any], list[Any]]] = []

        def compute() -> None:
            with self._turn("running a model"):
                if shapes is not None:
                    self._resize(shapes)
                self._together, self._behind = together, behind
                try:
                    self._run_on(sources, into, lent)
                finally:
                    self._together, self._behind = None, []

        seen = {**given, **views}
        return Binding({t.name: seen[t.name] for t in plan.inputs},
                       {t.name: y for t, y in zip(plan.outputs, into)}, compute, False, behind)

    def _result(self, spec: TensorSpec) -> np.ndarray:
        """Zeros for a result: of pinned memory, which a driver writes itself, unless it is staged
        or large."""
        found = np.zeros(spec.shape, dtypes.to_numpy(spec.dtype))
        if not shares_memory(self.session) and STAGED < found.nbytes <= PINNED:
            there = pinned(self.session, self.queue, found.nbytes)
            there[:] = 0
            return there.view(found.dtype).reshape(found.shape)
        return found

    # ---- measuring

    def _recorded(self, sources: list[np.ndarray], careful: bool, recorder: Recorder
                  ) -> list[np.ndarray]:
        """`_pass` for a profile: by events, or step by step where these can't be trusted."""
        place = self.session.name
        if not self.session.target.trusted_events:
            recorder.doubt(place, "a probe, or the table of driver faults, says so")
        if careful or place in recorder.doubts:
            return self._recorded_by_steps(sources)
        with recording.span("profile", "a queue that profiles"):
            if self.session.queue is not None:          # what the caller has enqueued comes before
                self.queue.finish()
            usual, self.queue = self.queue, self._profiling or self._profiling_queue()
            self._profiling = None
        try:
            results, self._profiling = self._recorded_by_events(sources, recorder), self.queue
        except BaseException:
            self._rest()
            raise
        finally:
            self.queue = usual
        return results

    def _profiling_queue(self) -> Any:
        properties = cl.command_queue_properties.PROFILING_ENABLE
        return cl.CommandQueue(self.session.context, self.session.handle, properties)

    def _recorded_by_events(self, sources: list[np.ndarray], recorder: Recorder
                            ) -> list[np.ndarray]:
        called, place = now(), self.session.name
        with recording.span("host", "enqueueing"):
            inputs = self._upload(sources)
            started = self._enqueue_all(self.queue, self._launches)
            results = self._results()
            outputs = self._read(results)
        with recording.span("wait", "the device"):
            ended(self.queue, [*started, *(c.event for c in (*inputs, *outputs))])
            self._unstage(results)
        end = now()
        with recording.span("profile", "reading times of events"):
            commands = [*inputs, *(Command("kernel", action.step.name, event, action.step)
                        for action, event in zip(self._launches, started) if event is not None),
                        *outputs]
            found, run = told(commands, place, called, end), recording.run_here()
            if isinstance(found, str):
                recorder.doubt(place, found)
                found = [Span("kernel", "all steps and copies, not told apart", called, end, place)]
            if run is not None:
                run.spans += found
            del commands, inputs, outputs, started      # events: giving them back takes time, too
        return results

    def _recorded_by_steps(self, sources: list[np.ndarray]) -> list[np.ndarray]:
        """The host's clock around each step, which is waited for."""
        place = self.session.name
        with recording.span("copy", "inputs", place=place), self._idle():
            ended(self.queue, [c.event for c in self._upload(sources)])
        for action in self._launches:
            step = None if isinstance(action, HostSection) else action.step
            kind = "host" if step is None else "kernel"
            with recording.span(kind, action.step.name, place=place if step else "", step=step):
                self._awaited(action, self.queue)
        with recording.span("copy", "outputs", place=place):
            return self._download([])

    def profile(self, arrays: Sequence[np.ndarray], runs: int = 5) -> list[StepTime]:
        """Time of every step: the median over `runs`, after one to warm up. From the driver's
        events, or where these can't be trusted, from launches repeated.
        """
        sources = self._check(arrays)
        with self._turn("profiling a model"):
            self._ran(sources)
            self._zeroed = False
            measure = self._event_times if self.session.target.trusted_events else self._wall_times
            return self._times(measure(runs))

    def _event_times(self, runs: int) -> list[list[float]]:
        """Seconds of each run's steps, as a profiling queue tells them."""
        queue = self._profiling_queue()

        def seconds(action: Action, event: Any) -> float:
            if isinstance(action, HostSection):
                return action.seconds
            return (event.profile.end - event.profile.start) * 1e-9

        times = []
        for _ in range(runs + 1):  # the first warms the queue up
            events = self._enqueue_all(queue, self._launches)
            ended(queue, events)
            times.append([seconds(*pair) for pair in zip(self._launches, events)])
        return times[1:]

    def _wall_times(self, runs: int) -> list[list[float]]:
        """The same by the clock: each step launched several times and once, the difference divided.
        What a step computes is then computed again from the same operands.
        """
        def started(action: Action) -> None:
            try:
                action.start(self.queue)
            except StepFailed as failed:
                raise self._refused(failed, self.queue) from failed.error

        return [[self._each(partial(started, action)) for action in self._launches]
                for _ in range(runs)]

    def steady(self, arrays: Sequence[np.ndarray], runs: int = 5) -> float:
        """Seconds of a pass over all steps behind another one, by the clock: the median over
        `runs`. What launches cost is in it, what waiting for the last one costs is not.
        """
        sources = self._check(arrays)
        with self._turn("timing a model"):
            self._ran(sources)
            self._zeroed = False
            return float(np.median([self._each(partial(self._enqueue, self.queue))
                                    for _ in range(runs)]))

    def _each(self, start: Callable[[], object]) -> float:
        """Seconds of one of some starts behind each other: how much longer many take than one."""
        def seconds(times: int) -> float:
            begin = time.perf_counter()
            for _ in range(times):
                start()
            self.queue.finish()
            return time.perf_counter() - begin

        alone = seconds(1)
        more = max(1, min(REPEATS, int(TOGETHER / alone)))
        return max(1e-9, (seconds(1 + more) - alone) / more)


def _flat(array: np.ndarray) -> np.ndarray:
    """Its bytes."""
    return array.reshape(-1).view(np.uint8)
