"""What both kinds of OpenCL executables share: checked inputs, turns, faults found out, an end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl import dtypes, forking
from jitcl.codegen.plan import Plan, Shapes
from jitcl.devices import recording
from jitcl.devices.base import Binding, Cache, Executable, Given, Progress, Repeat, Tally
from jitcl.devices.opencl.errors import LOST_CODES, code_name, lost_error, out_of_memory, translated
from jitcl.devices.opencl.host_steps import HostSection, host_sections
from jitcl.devices.opencl.launches import Launch, ended, prepared
from jitcl.devices.opencl.memory import Memory
from jitcl.devices.opencl.run_faults import StepFailed, blamed, log
from jitcl.devices.opencl.session import Session
from jitcl.devices.repeated import one_by_one
from jitcl.errors import (
    DeviceError,
    DeviceLostError,
    InputError,
    KernelFault,
    OutOfMemoryError,
    closed_error,
)

Action = Launch | HostSection


@dataclass(frozen=True)
class StepTime:
    """Time of one step, in seconds: the median over the runs of a profile."""

    name: str
    seconds: float
    flops: int
    bytes: int


class LoadedPlan(Executable):
    """A plan that is ready to run. Methods may be called from any thread; runs take turns."""

    memory: Memory

    def __init__(self, session: Session, plan: Plan, programs: Mapping[str, Any],
                 cache: Cache | None = None, progress: Progress | Tally | None = None,
                 priority: str = "normal") -> None:
        self.session, self.plan, self.programs = session, plan, programs
        self.priority = priority
        session.store.enlist(self)
        self._lock = forking.lock()
        self._closed = False
        self._shapes: Shapes | None = None          # of the last run of a plan for many
        self._loaded = plan                         # where its buffers lay at first,
        self._layout: Plan | None = plan            # and lie now; None while they move
        self._lost = ""                             # how, where the context is gone
        self._careful = session.losses > 0          # until a run has ended: a kernel took it down
        sections = host_sections(session, plan, cache, progress)
        with translated(f"{session.name}: preparing a model", allocating=True):
            self.queue = self._new_queue()
        actions: dict[int, Action] = {**prepared(session, plan, programs), **sections}
        self._numbers = sorted(actions)             # of their steps
        self._prepared: list[Action] = [actions[n] for n in self._numbers]
        self._launches = self._prepared             # those that the last shapes have work for
        self._placed()

    # ---- what the two kinds do in their own way

    @abstractmethod
    def _placed(self) -> None:
        """Memory for the plan, whose steps are prepared."""

    def _moved(self, plan: Plan) -> None:
        """It is the plan in another layout from here on."""

    def _fitted(self) -> None:
        """The plan has other shapes."""

    @abstractmethod
    def _pass(self, sources: list[np.ndarray], careful: bool) -> list[np.ndarray]:
        """One run; `careful` waits for each step, so that a failure names it. Raises pyopencl's
        error where it is not known which step failed.
        """

    @abstractmethod
    def profile(self, arrays: Sequence[np.ndarray], runs: int = 5) -> list[StepTime]:
        """Time of every step: the median over `runs`."""

    # ---- running

    def run(self, arrays: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        """Inputs in the order of plan.inputs (shape and dtype as there, or as `shapes` says) ->
        fresh arrays, as plan.outputs.

        Raises InputError for an array that does not fit, KernelFault for a kernel that the driver
        refuses or fails in (it is recorded: compile again), OutOfMemoryError, DeviceLostError, and
        DeviceError for what else the driver refuses.
        """
        with self._turn("running a model"):
            if shapes is not None:
                self._resize(shapes)
            with recording.span("guard", "arrays"):
                sources = self._check(arrays)
            return self._ran(sources)

    @property
    def home(self) -> object:
        return self.session

    def repeat(self, arrays: Sequence[np.ndarray], how: Repeat, shapes: Shapes | None = None
               ) -> list[np.ndarray]:
        """As `Executable.repeat` says. Raises what `run` does."""
        with self._turn("running a model"):
            if shapes is not None:
                self._resize(shapes)
            return self._settled(lambda careful: self._repeated(arrays, how, careful))

    def _repeated(self, arrays: Sequence[np.ndarray], how: Repeat, careful: bool
                  ) -> list[np.ndarray]:
        """Run by run."""
        return one_by_one(lambda given: self._pass(self._check(given), careful), arrays, how)

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        """None: inputs and outputs are copied to the device and back."""
        return None

    def _resize(self, shapes: Shapes) -> None:
        """Take other shapes from here on: the kernels' integers and work-items, and what is copied
        of the buffers. Until that is done they are None: a signal's handler may end this anywhere,
        and the next run then begins anew.
        """
        if shapes is self._shapes:
            return
        anew, self._shapes = self._shapes is None, None
        layout = shapes.layout or self._loaded
        if layout is not self._layout:
            self._layout = None
            self._moved(layout)
            self._layout = layout
        self.plan = replace(
            layout, inputs=tuple(replace(t, shape=s) for t, s in zip(layout.inputs, shapes.inputs)),
            outputs=tuple(replace(t, shape=s) for t, s in zip(layout.outputs, shapes.outputs)))
        for k, number in enumerate(self._numbers):
            action = self._prepared[k]
            if isinstance(action, Launch):
                self._prepared[k] = action.resized(shapes.params[number],
                                                   shapes.global_sizes[number], anew)
        self._launches = [a for a in self._prepared
                          if not isinstance(a, Launch) or 0 not in a.global_size]
        self._fitted()
        self._shapes = shapes

    @contextmanager
    def _turn(self, doing: str) -> Iterator[None]:
        """The right to use the queue, if there still is a device behind it."""
        with recording.turn(self._lock):
            if self._closed:
                raise closed_error(self.session.name)
            self._lost = self.session.ended or self._lost
            if self._lost:
                raise lost_error(f"{self.session.name}: {self._lost}")
            try:
                with translated(f"{self.session.name}: {doing}"):
                    yield
            except BaseException as error:
                if isinstance(error, DeviceLostError):
                    self._lost = "the device was lost while this model ran"
                else:
                    self._rest()
                if isinstance(error, (DeviceLostError, KernelFault, OutOfMemoryError)):
                    self.memory.release()  # room for the plan that takes this one's place
                raise

    def _rest(self) -> None:
        """Wait for what is in flight, where a signal's handler or an error ends a run: it uses
        arrays that go with the caller's frames, and a driver does not keep the host's memory.
        """
        with suppress(cl.Error), forking.OPENCL:
            self.queue.finish()

    def _ran(self, sources: list[np.ndarray]) -> list[np.ndarray]:
        """The results of a run."""
        return self._settled(lambda careful: self._pass(sources, careful))

    def _settled(self, run: Callable[[bool], list[np.ndarray]]) -> list[np.ndarray]:
        """The results of a run (`run(careful)`, as `_pass`) that succeeded; where one fails at a
        step that the driver does not name, it is found out.
        """
        if self._careful:
            results = run(True)
            self._careful = False
            return results
        try:
            return run(False)
        except cl.Error as error:
            if out_of_memory(error) or error.code in LOST_CODES:
                raise
            return self._found_out(run, error)

    def _found_out(self, run: Callable[[bool], list[np.ndarray]], error: Any) -> list[np.ndarray]:
        """Run again step by step: whichever fails is to blame. If none does, that was the run."""
        said = f"{self.session.name}: {code_name(error.code)} while a model ran"
        with suppress(cl.Error):  # which is known
            self.queue.finish()
        self.queue = self._new_queue()  # the old one may refuse whatever follows a failure
        try:
            results = run(True)
        except cl.Error as again:
            if out_of_memory(again):
                raise
            raise DeviceError(
                f"{said}, and {code_name(again.code)} when it was run again, in no step\n"
                "  Run it again, or on another device, such as device='cpu'.") from again
        log.warning("%s; it ran again step by step, and no step failed", said)
        return results

    def _refused(self, failed: StepFailed, queue: Any) -> DeviceError:
        """What to raise for a launch that could not be enqueued. Raises pyopencl's error where an
        earlier one failed, and this is how it shows.
        """
        queue.finish()
        return blamed(self.session, self.plan, failed.launch, failed.error, "enqueue")

    def _awaited(self, action: Action, queue: Any) -> None:
        """Run one step to its end. Raises what `blamed` makes of a failure."""
        try:
            event = action.start(queue)
        except StepFailed as failed:
            raise self._refused(failed, queue) from failed.error
        try:
            ended(queue, [event])
        except cl.Error as error:
            if not isinstance(action, Launch):
                raise
            raise blamed(self.session, self.plan, action, error, "finish") from error

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Copies with no kernel in flight: a driver that fails even there has lost its context,
        as NVIDIA's after an illegal access.
        """
        try:
            yield
        except cl.Error as error:
            if out_of_memory(error):
                raise
            raise lost_error(f"{self.session.name}: {code_name(error.code)} before any step ran"
                             ) from error

    def _new_queue(self) -> Any:
        return self.session.queue or self.session.new_queue(self.priority)

    def _check(self, arrays: Sequence[Any]) -> list[Any]:
        """The inputs as flat bytes; they are read before `run` returns, never kept. What lies on
        the device is left there.
        """
        specs = self.plan.inputs
        if len(arrays) != len(specs):
            raise InputError(
                f"got {len(arrays)} inputs, wanted {len(specs)}: {', '.join(s.name for s in specs)}"
            )
        flat = []
        for array, spec in zip(arrays, specs):
            want = dtypes.to_numpy(spec.dtype)
            if array.shape != spec.shape or array.dtype != want:
                raise InputError(
                    f"input '{spec.name}': got {array.dtype}{list(array.shape)}, "
                    f"wanted {want}{list(spec.shape)}"
                )
            flat.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                        if isinstance(array, (np.ndarray, np.generic)) else array)
        return flat

    def _times(self, runs: list[list[float]]) -> list[StepTime]:
        medians = np.median(np.array(runs), axis=0)
        return [StepTime(a.step.name, float(t), a.step.flops, a.step.bytes)
                for a, t in zip(self._launches, medians)]

    # ---- the end

    def close(self) -> None:
        """Give the device's memory back now. It cannot run afterwards."""
        with self._lock:
            self._closed = True
            self.memory.release()

    def __enter__(self) -> LoadedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
