"""The CPU as a device: builds a plan's kernels, places its buffers, runs it.

executable = CpuDevice().load(plan, cache, progress)
outputs = executable.run([array, ...])
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jitcl import config, dtypes, forking
from jitcl.codegen.plan import Plan, Shapes, Step, TensorSpec
from jitcl.devices import recording
from jitcl.devices.base import (
    Binding,
    Cache,
    DeviceArray,
    Executable,
    Given,
    Progress,
    Repeat,
    Tally,
)
from jitcl.devices.cpu.arena import Arena
from jitcl.devices.cpu.executor import ALONE, RUNTIME, Executor, Job
from jitcl.devices.cpu.host import probe_target
from jitcl.devices.cpu.objects import Ahead, LoadedKernels, cached_kernels, load_kernels
from jitcl.devices.cpu.repetition import Table, carried_copies
from jitcl.devices.cpu.resident import give_back
from jitcl.devices.cpu.sharing import at_work, is_short, step_flags
from jitcl.devices.cpu.stepwise import Stepwise
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.results import ALIGN, LEAST, Results, placed_empty
from jitcl.devices.usage import Allocation, enlist
from jitcl.errors import DeviceError, InputError, OutOfMemoryError, closed_error
from jitcl.target import Target

__all__ = ["CpuDevice", "CpuExecutable", "probe_target"]
_SMALL = 16 << 10  # bytes of an output that are copied sooner than an argument table is patched
_LARGE = 1 << 20  # bytes of an input whose copy takes as long as a kernel takes to read it


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised bytes on a 64-byte boundary."""
    return placed_empty((nbytes,), np.dtype(np.uint8), nbytes)[0]


def _zeros(like: np.ndarray) -> np.ndarray:
    """On such a boundary."""
    array, _ = placed_empty(like.shape, like.dtype, like.nbytes)
    array[...] = 0
    return array


def _aligned(array: np.ndarray) -> np.ndarray:
    """The array's bytes, contiguous and aligned; copied only if they are not so already."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGN == 0:
        return array.reshape(-1).view(np.uint8)
    out = aligned_empty(array.nbytes)
    out[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return out


_shared: dict[str, Executor] = {}  # target key -> the process's pool
_shared_lock = forking.lock()


def _executor(target: Target, cache: Cache | None) -> Executor:
    """The thread pool of this process; its own native code is built or loaded at first use."""
    with _shared_lock:
        if target.key not in _shared:
            _shared[target.key] = Executor(cache, target)
        return _shared[target.key]


class CpuDevice:
    """This host's cores."""

    name = hardware = "cpu"
    memory_mode: Literal["arena", "slots"] = "arena"
    faults: FaultDatabase | None = None  # Numba's compiler is part of this process's trust
    host_target: Target | None = None

    def __init__(self, target: Target | None = None) -> None:
        self.target = target if target is not None else probe_target()
        give_back()                             # LLVM's constructors, of no use while we compile

    def reopen(self) -> None:
        """Nothing: cores are never lost."""

    def ahead(self, cache: Cache | None) -> Ahead:
        """Takes kernels as they are written."""
        found = Ahead(cache, self.target)
        for source in RUNTIME if self.target.key not in _shared else ():
            found(source)
        return found

    def load(
        self, plan: Plan, cache: Cache | None = None, progress: Progress | Tally | None = None,
        options: LoadOptions | None = None,
    ) -> CpuExecutable:
        """Builds what the cache lacks, links it and allocates every buffer. `options`: for drivers.

        Raises BuildError, and OutOfMemoryError with what was needed.
        """
        foreign = [k.entry for k in plan.kernels if k.language != "numba"]
        if foreign:
            raise DeviceError(f"kernel '{foreign[0]}' is not written for the CPU (language numba)")
        check_room(self.target, plan)
        tally = Tally.of(progress)
        kernels = load_kernels(cached_kernels(plan.kernels, cache, self.target, tally))
        tally.now("loading the model")
        executor = _executor(self.target, cache)
        return CpuExecutable(plan, kernels, executor, self.target)


def check_room(target: Target, plan: Plan) -> None:
    """Raise OutOfMemoryError where the machine has less memory than the plan needs."""
    needed, have = plan.peak_bytes, target.global_memory
    if have and needed > have:
        raise _too_large(plan, f"this machine {have / 2**20:.0f}")


def _too_large(plan: Plan, why: str) -> OutOfMemoryError:
    return OutOfMemoryError(f"the plan needs {plan.peak_bytes / 2**20:.0f} MiB, {why}\n"
                            f"  Use a smaller input or memory='low'.")


class CpuExecutable(Executable):
    """A loaded plan. `run` may be called from any thread; calls take turns."""

    def __init__(
        self, plan: Plan, kernels: LoadedKernels, executor: Executor, target: Target
    ) -> None:
        self.plan, self._target, self._lanes = plan, target, target.vector_width
        self._executor, self._kernels = executor, kernels
        self._loaded = plan                         # where its buffers lay at first,
        self._layout: Plan | None = plan            # and lie now; None while they move
        self._shapes: Shapes | None = None          # of the last run of a plan for many
        self._param_places = self._places_of_params()
        self._slots: list[Arena] = []
        self._move(plan)
        self._look([t.shape for t in plan.inputs], [t.shape for t in plan.outputs])
        self._share([s.global_size for s in plan.steps], [(s.flops, s.bytes) for s in plan.steps])
        self._results = Results()
        self._lock = forking.lock()
        self._closed = False
        enlist(self)

    def check_room(self, plan: Plan) -> None:
        check_room(self._target, plan)

    def _move(self, plan: Plan) -> None:
        """It is the plan in another layout from here on. Raises OutOfMemoryError."""
        nothing = list[np.ndarray]()                # nobody has a part of a slot any more
        self._memory, self._inputs, self._outputs = nothing, nothing, nothing
        self._flags: dict[Any, tuple[list[int], bool]] = {}
        self.plan = plan
        try:
            for slot, nbytes in zip(self._slots, plan.slots):
                slot.resize(nbytes)
            self._slots = self._slots or [Arena(n) for n in plan.slots]
            self._memory = [self._place(i) for i in range(len(plan.buffers))]
        except MemoryError:
            raise _too_large(plan, "which the system refused") from None
        self._args, self._every = self._tables(self._memory)
        self._fields = self._args.data          # a third of the time of writing to an array
        places = {i: self._places_alone(t.buffer) for i, t in enumerate(plan.outputs)}
        self._direct = {i: p for i, p in places.items() if p is not None}
        self._lent = {i: self._places(t.buffer) for i, t in enumerate(plan.inputs)
                      if plan.buffers[t.buffer].nbytes >= _LARGE and self._only_read(t)}

    def _share(self, sizes: Sequence[tuple[int, ...]], work: Sequence[tuple[int, int]]) -> None:
        """Which steps runs have from here on, and which of these threads share."""
        self._works = np.array(works := [0 not in size for size in sizes], bool)
        if (key := (*works, *work)) not in self._flags:
            of_now = at_work(self.plan, works, work)
            self._flags[key] = step_flags(of_now, self._lanes), is_short(of_now, self._lanes)
        flags, self._short = self._flags[key]
        self._steps = self._every[self._works]
        self._steps[:, 2], self._count = flags, len(self._steps)
        self._job = Job(self._steps, self._short)
        vars(self).pop("_stepwise", None)
        self._splits = any(f & ALONE == 0 for f in flags)       # a step is worth splitting

    def _place(self, i: int) -> np.ndarray:
        """The bytes of buffer i."""
        spec = self.plan.buffers[i]
        if spec.kind == "const":
            array = self.plan.constants[i]
            placed = _aligned(array)
            if not np.may_share_memory(placed, array):   # the plan keeps the copy alone
                self.plan.constants[i] = placed.view(array.dtype).reshape(array.shape)
            return placed
        if spec.kind == "temp" and spec.slot >= 0:      # -1: empty, no step touches it
            return self._slots[spec.slot].part(spec.offset, spec.nbytes)
        return aligned_empty(spec.nbytes)

    def _places(self, buffer: int) -> tuple[int, ...]:
        """Where the address of a buffer stands in the argument table."""
        found: list[int] = []
        at = 0
        for step in self.plan.steps:
            found += [at + k for k, b in enumerate(step.buffers) if b == buffer]
            at += len(step.buffers) + len(step.params)
        return tuple(found)

    def _places_alone(self, buffer: int) -> tuple[int, ...] | None:
        """The same for an output that could lie elsewhere, where writing to the caller's array is
        worth more than it costs.
        """
        large = self.plan.buffers[buffer].nbytes > _SMALL
        return self._places(buffer) if large and self._stands_alone(buffer) else None

    def _stands_alone(self, output: int) -> bool:
        """Whether it is nothing else: no input, constant or second output."""
        alone = [t.buffer for t in self.plan.outputs].count(output) == 1
        return alone and self.plan.buffers[output].kind == "output"

    def _only_read(self, spec: TensorSpec) -> bool:
        """Whether an input may lie elsewhere: kernels only read it, and never as whole numbers,
        which may become addresses that another thread must not change once they were checked.
        """
        return dtypes.is_float(spec.dtype) and spec.buffer not in self._written

    @forking.cached_property
    def _written(self) -> set[int]:
        """Buffers that steps write, and outputs."""
        steps = {b for step in self.plan.steps for b in step.writes or step.buffers}
        return steps | {t.buffer for t in self.plan.outputs}

    def _tables(self, memory: Sequence[np.ndarray], shapes: Shapes | None = None
                ) -> tuple[np.ndarray, np.ndarray]:
        """(argument tables of all steps in one array, the executor's step table without flags), for
        buffers there.
        """
        plan = self.plan
        where = [bytes_.ctypes.data for bytes_ in memory]
        params = shapes.params if shapes is not None else [s.params for s in plan.steps]
        rows = [[*(where[b] for b in s.buffers), *p] for s, p in zip(plan.steps, params)]
        args = np.array([v for row in rows for v in row] or [0], np.int64)
        starts = np.cumsum([0, *map(len, rows)])
        steps = [
            (self._kernels[s.kernel], args.ctypes.data + 8 * int(starts[i]), 0)
            for i, s in enumerate(plan.steps)
        ]
        return args, np.array(steps, np.int64).reshape(-1, 3)

    def _places_of_params(self) -> np.ndarray:
        """Where the steps' integers stand in the argument table."""
        found: list[int] = []
        at = 0
        for step in self.plan.steps:
            at += len(step.buffers)
            found += range(at, at + len(step.params))
            at += len(step.params)
        return np.array(found, np.int64)

    def _resize(self, shapes: Shapes) -> None:
        """Take other shapes from here on: the integers of the kernels, views of the buffers, which
        steps are worth several threads, and another layout. Until that is done they are None: a
        signal's handler may end this anywhere, and the next run then begins anew.
        """
        if shapes is self._shapes:
            return
        before, self._shapes = self._shapes, None
        layout = shapes.layout or self._loaded
        moves = layout is not self._layout
        if moves:
            self._layout = None
            self._move(layout)
            self._layout = layout
        if before is not None:
            self._results.vary()
            for slot in self._slots:
                slot.vary()
        if moves or before is None or shapes.work is not before.work:
            self._share(shapes.global_sizes, shapes.work)
        self._args[self._param_places] = [v for params in shapes.params for v in params]
        self._look(shapes.inputs, shapes.outputs)
        self._shapes = shapes

    def _look(self, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> None:
        """Views of the inputs' and outputs' buffers, of these shapes."""
        def view(spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray:
            kind = dtypes.to_numpy(spec.dtype)
            nbytes = math.prod(shape) * kind.itemsize
            return self._memory[spec.buffer][:nbytes].view(kind).reshape(shape)

        self._inputs = [view(t, shape) for t, shape in zip(self.plan.inputs, inputs)]
        self._outputs = [view(t, shape) for t, shape in zip(self.plan.outputs, outputs)]

    def run(self, arrays: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        """Outputs, as fresh arrays, of inputs in the plan's order (dtype and shape the plan's, or
        as `shapes` says).

        Small inputs and whole numbers are copied, so that no other thread can change them under a
        kernel's hands. Large ones of floats are read where they lie, and large outputs are written
        to the arrays that this returns.
        """
        with recording.turn(self._lock):
            with recording.span("copy", "inputs", place="cpu"):
                self._take(arrays, shapes, lent=True)
            with recording.span("host", "memory for outputs"):
                direct = {i: self._fresh(i) for i in self._direct}
            if self._count:
                self._execute()
            with recording.span("copy", "outputs", place="cpu"):
                return [direct[i] if i in direct else view.copy()
                        for i, view in enumerate(self._outputs)]

    def _execute(self) -> None:
        run = recording.run_here()
        if run is None:
            self._executor.run(self._job, self._threads())
        else:
            self._stepwise.run(self._executor, self._threads(), run)

    @forking.cached_property
    def _stepwise(self) -> Stepwise:
        return Stepwise(self._working(), self._steps, self._short)

    def _working(self) -> list[Step]:
        """The steps that runs have now."""
        return [s for s, works in zip(self.plan.steps, self._works) if works]

    def repeat(self, arrays: Sequence[np.ndarray], how: Repeat, shapes: Shapes | None = None
               ) -> list[np.ndarray]:
        """As `Executable.repeat` says. Inputs and rows are copied."""
        with recording.turn(self._lock):
            rows = [np.ascontiguousarray(arrays[i]) for i in how.rows]
            first = list(arrays)
            for i, x in zip(how.rows, rows):
                if len(x) != how.runs:
                    raise InputError(f"input '{self.plan.inputs[i].name}': got {len(x)} rows for "
                                     f"{how.runs} runs")
                first[i] = x[0]
            self._take(first, shapes)
            for i, places in self._direct.items():
                self._point(places, self._outputs[i].ctypes.data)
            views = [self._outputs[s] if s >= 0 else self._inputs[~s] for s in how.stacked]
            stacked = [np.empty((how.runs, *v.shape), v.dtype) for v in views]
            copied = carried_copies(how, rows, self._inputs, self._outputs, stacked)
            copy, threads = self._executor.kernels["jitcl_copy"], self._threads()
            what = f"{how.runs} runs of {self._count} steps"
            with recording.span("kernel", what, place="cpu"):
                Table(self._steps, copy, copied, how.runs, self._short).run(
                    lambda job: self._executor.run(job, threads))
            return [*(x.copy() for x in copied.results), *stacked]

    def _fresh(self, i: int) -> np.ndarray:
        """A new array that output i is written to."""
        view = self._outputs[i]
        if view.nbytes < LEAST:
            array, address = placed_empty(view.shape, view.dtype, view.nbytes)
        else:
            array, address, _ = self._results.large(i, view.shape, view.dtype)
        self._point(self._direct[i], address)
        return array

    def _point(self, places: tuple[int, ...], address: int) -> None:
        """Kernels find a buffer there from now on."""
        for place in places:
            self._fields[place] = address

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        """The plan on arrays of its own, or `given`. Kernels find floats there; whole numbers are
        copied. None for arrays of another device.
        """
        found: dict[str, np.ndarray] = {}
        for name, x in (given or {}).items():
            if isinstance(x, DeviceArray) and x.home is not None:
                return None
            found[name] = x.open() if isinstance(x, DeviceArray) else x
        with self._lock:
            if shapes is not None:
                self._resize(shapes)
            return self._bound(found, self._inputs, self._outputs, shapes)

    def _bound(self, given: Mapping[str, np.ndarray], into: Sequence[np.ndarray],
               out: Sequence[np.ndarray], shapes: Shapes | None) -> Binding:
        """Bound to arrays of the shapes of these views of the buffers."""
        plan, memory = self.plan, list(self._memory)
        inputs = [given[t.name] if t.name in given else _zeros(view)
                  for t, view in zip(plan.inputs, into)]
        outputs = [_zeros(view) for view in out]
        before, after = [], []                              # (copied to, from)
        for spec, view, array in zip(plan.inputs, into, inputs):
            if self._only_read(spec):
                memory[spec.buffer] = array
            else:
                before.append((view, array))
        for spec, view, array in zip(plan.outputs, out, outputs):
            if self._stands_alone(spec.buffer):
                memory[spec.buffer] = array
            else:
                after.append((array, view))
        args, every = self._tables(memory, shapes)
        steps, done = every[self._works], self._working()
        steps[:, 2] = self._steps[:, 2]
        job, threads = Job(steps, self._short, args, memory, self._kernels), self._threads()
        lock, executor, short = self._lock, self._executor, self._short
        launch = executor.call(job, threads)                # no `self`: `close` gives memory back

        def execute() -> None:
            run = recording.run_here()
            if run is None:
                launch()
            else:
                Stepwise(done, steps, short).run(executor, threads, run)

        def compute() -> None:
            with recording.turn(lock):
                execute()

        def compute_between_copies() -> None:
            with recording.turn(lock):
                with recording.span("copy", "inputs", place="cpu"):
                    for to, array in before:
                        to[...] = array
                execute()
                with recording.span("copy", "outputs", place="cpu"):
                    for to, array in after:
                        to[...] = array

        return Binding({t.name: x for t, x in zip(plan.inputs, inputs)},
                       {t.name: y for t, y in zip(plan.outputs, outputs)},
                       compute_between_copies if before or after else compute)

    def _take(self, arrays: Sequence[np.ndarray], shapes: Shapes | None = None,
              lent: bool = False) -> None:
        """Copy the inputs, of these shapes; lent: or have kernels read large ones where they lie.
        """
        if self._closed:
            raise closed_error("cpu")
        if shapes is not None:
            self._resize(shapes)
        if len(arrays) != len(self._inputs):
            raise InputError(f"the plan has {len(self._inputs)} inputs, got {len(arrays)} arrays")
        for i, (spec, view, array) in enumerate(zip(self.plan.inputs, self._inputs, arrays)):
            if array.shape != view.shape or array.dtype != view.dtype:
                raise InputError(
                    f"input '{spec.name}': got {array.dtype}{list(array.shape)}, "
                    f"wanted {view.dtype}{list(view.shape)}"
                )
            if i in self._lent:
                flags = array.flags
                if lent and array.nbytes >= _LARGE and flags.c_contiguous and flags.aligned:
                    self._point(self._lent[i], array.ctypes.data)
                    continue
                self._point(self._lent[i], view.ctypes.data)
            view[...] = array               # half the time of copyto, for a small one

    def _threads(self) -> int:
        """All that were asked for, or one where no step is worth splitting."""
        return config.get("threads") if self._splits else 1

    def profile(self, arrays: Sequence[np.ndarray], repeats: int = 10) -> list[float]:
        """Seconds of each step (the least of `repeats` runs of the whole plan, step by step)."""
        best = [float("inf")] * self._count
        with self._lock:
            jobs = [Job(self._steps[i : i + 1], self._short) for i in range(self._count)]
            for _ in range(repeats):
                self._take(arrays)
                for i, places in self._direct.items():
                    self._point(places, self._outputs[i].ctypes.data)
                for i, job in enumerate(jobs):
                    start = time.perf_counter()
                    self._executor.run(job, self._threads())
                    best[i] = min(best[i], time.perf_counter() - start)
        return best

    @property
    def place(self) -> str:
        return "cpu"

    def allocations(self) -> list[Allocation]:
        """Slots, and what lies in none; constants that are mapped from the cache among them."""
        return [*(Allocation(id(slot), slot.nbytes, False) for slot in self._slots),
                *(Allocation(array.ctypes.data, array.nbytes, spec.kind == "const")
                  for array, spec in zip(self._memory, self.plan.buffers) if spec.kind != "temp")]

    def close(self) -> None:
        """Let go of memory and kernels, when a run that is under way has ended; what `bind` gave
        keeps what it uses.
        """
        with self._lock:
            self._closed = True
            for held in (self._slots, self._memory, self._inputs, self._outputs):
                held.clear()
            self._results.clear()
            self._kernels = LoadedKernels(None, [], {})
