"""What every device offers to the runtime."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from jitcl.codegen.plan import KernelSource, Plan, Shapes
from jitcl.devices.progress import Progress, Tally
from jitcl.target import Target

if TYPE_CHECKING:
    from jitcl.devices.faults import Fault, FaultDatabase
    from jitcl.devices.load_options import LoadOptions
    from jitcl.target.quirks import Quirk

__all__ = ["Binding", "Cache", "Device", "DeviceArray", "DeviceInfo", "Executable", "Progress",
           "Tally"]


class Cache(Protocol):
    """The part of `runtime.cache.DeviceCache` that devices use."""

    def get(self, kind: str, key: Any) -> bytes | None: ...
    def put(self, kind: str, key: Any, data: Any, *, provides: Sequence[str] = ()) -> None: ...


@dataclass(frozen=True)
class Repeat:
    """How runs of a plan follow each other. Inputs and outputs are numbered as in the plan; a
    source is an output, or ~i for what input i was in that run.

    rows: inputs that are given with an axis before theirs: each run reads the next row.
    carried: (input, source): what it is in the next run.
    stacked: sources of which every run's value is kept, along an axis before theirs.
    """

    runs: int                                   # 1 at least
    rows: tuple[int, ...]
    carried: tuple[tuple[int, int], ...]
    stacked: tuple[int, ...]


class DeviceArray:
    """An array that is no plan's: of this process, as it stands here; a device's own overrides it.
    One thread at a time; no launch may use it between `open` and `shut`. home: what an executable
    must have in common with it to read it.
    """

    home: object = None
    in_place = True                             # the host's memory is the device's

    def __init__(self, array: np.ndarray) -> None:
        self._host: np.ndarray | None = array
        self.dtype: np.dtype[Any] = array.dtype
        self.shape, self.nbytes = array.shape, array.nbytes

    @property
    def device(self) -> str:
        """For people."""
        return "host"

    def check(self) -> None:
        """DeviceError where its device is gone."""

    def read(self) -> np.ndarray:
        """A copy."""
        return self.open().copy()

    def open(self, read: bool = True) -> np.ndarray:
        """The elements for the host, until `shut`: those of the device, unless `read` says that
        they are not asked for. The array may be kept, and then holds old values.
        """
        assert self._host is not None
        return self._host

    def shut(self, write: bool = True, again: bool = False) -> None:
        """Give it back to the device, with what the host has written. again: the host memory that
        it went through will be asked for soon.
        """

    def part(self, first: int, count: int) -> DeviceArray:
        """Places of the first axis, in the same memory."""
        return DeviceArray(self.open()[first:first + count])

    def put(self, source: DeviceArray | np.ndarray, pieces: Sequence[tuple[int, int, int]],
            queue: Any = None) -> list[Any]:
        """Copy bytes: (to, from, how many). They are there when `settle` has returned; where a run
        gives its queue, behind that run. Gives events, where there are any."""
        mine, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (
            self.open(), source if isinstance(source, np.ndarray) else source.open()))
        for to, start, nbytes in pieces:
            mine[to:to + nbytes] = other[start:start + nbytes]
        return []

    def put_each(self, sources: Sequence[DeviceArray | np.ndarray], to: int, pitch: int,
                 start: int, nbytes: int, queue: Any = None) -> list[Any]:
        """`nbytes` from byte `start` on of each source to byte `to`, `to + pitch`, .."""
        return [event for k, source in enumerate(sources)
                for event in self.put(source, [(to + k * pitch, start, nbytes)], queue)]

    def fill(self, first: int, nbytes: int) -> None:
        """Bytes that are zero, in the same manner."""
        self.open().reshape(-1).view(np.uint8)[first:first + nbytes] = 0

    def settle(self) -> None:
        """Wait for what was put."""

    def close(self) -> None:
        """Give its memory back."""
        self._host = None


Given = Mapping[str, np.ndarray | DeviceArray]      # inputs that are the caller's


class Executable(Protocol):
    """A loaded plan. Thread-safe: concurrent runs take turns."""

    @property
    def home(self) -> object:
        """See `DeviceArray`; None where there are none of this device."""
        return None

    def check_room(self, plan: Plan) -> None:
        """Raise OutOfMemoryError where the device has no room for its plan in another layout, which
        runs are to bring.
        """
        return

    def run_on_device(self, inputs: Sequence[np.ndarray | DeviceArray], keep: bool,
                      shapes: Shapes | None = None) -> Sequence[np.ndarray | DeviceArray]:
        """`run` with inputs that lie on the device already (of the same `home`), and with results
        that stay there where `keep` says so and this executable can; here everything is copied.
        """
        return self.run([x.read() if isinstance(x, DeviceArray) else x for x in inputs], shapes)

    def run(self, inputs: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        """Inputs in plan order, already checked; outputs are fresh arrays in plan order.

        shapes: of this run, where the plan is the largest member of a family; nothing in it may be
        larger than the plan's, or than its own layout's.
        """

    def repeat(self, inputs: Sequence[np.ndarray], how: Repeat, shapes: Shapes | None = None
               ) -> list[np.ndarray]:
        """Runs that follow each other without the host between them: the outputs of the last one,
        what each carried input would be next, what is stacked. `shapes` as `run` takes it.
        """

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        """The plan on arrays of its own, which the caller fills and reads, and on those that are
        `given` by inputs' names; None where the device can't: it doesn't share the host's memory.
        `shapes` as `run` takes it; keep: outputs that may stay on the device.
        """

    def close(self) -> None:
        """Give memory back, when a run that is under way has ended. A later run raises ClosedError.
        """


@dataclass(frozen=True)
class Binding:
    """Arrays by name, and a call that computes the outputs from the inputs. in_place: kernels work
    on these very arrays, where they can. behind: what runs enqueue behind their kernels, given the
    queue; it gives events. None where a run has no queue.
    """

    inputs: Given
    outputs: Given
    compute: Callable[[], None]
    in_place: bool = True
    behind: list[Callable[[Any], list[Any]]] | None = None


class Device(Protocol):
    """A place to run plans."""

    @property
    def target(self) -> Target: ...

    @property
    def name(self) -> str: ...  # for people: "cpu", "NVIDIA H200"

    @property
    def hardware(self) -> str:
        """What runs of several devices share where it is equal: contexts and queues are of one."""

    @property
    def faults(self) -> FaultDatabase | None:
        """What failed on its driver; None where there is no driver."""

    @property
    def host_target(self) -> Target | None:
        """Of the CPU path, where kernels go that this device's driver fails on; None where there
        is nothing below this device.
        """

    @property
    def memory_mode(self) -> Literal["arena", "slots"]: ...  # how temporaries are best placed

    def ahead(self, cache: Cache | None) -> Callable[[KernelSource], None] | None:
        """A plan is about to be written: takes its kernels one by one, and begins to build them.
        None where they are built when they are loaded.
        """

    def load(
        self, plan: Plan, cache: Cache | None = None, progress: Progress | Tally | None = None,
        options: LoadOptions | None = None,
    ) -> Executable:
        """Build what the cache lacks, allocate, upload constants.

        Raises BuildError, OutOfMemoryError, DeviceLostError; and KernelFault once for all kernels
        that the driver failed on, after they were recorded in `faults`.
        """

    def reopen(self) -> None:
        """After a DeviceLostError: be a working device again. What it loaded before is stale."""


@dataclass(frozen=True, repr=False)
class DeviceInfo:
    """A row of `jitcl devices`: `device=` takes it, or its `spec`."""

    spec: str
    target: Target
    note: str = ""
    quirks: tuple[Quirk, ...] = ()          # rows of the table of driver faults that hold
    faults: tuple[Fault, ...] = ()          # what failed on this driver here, the oldest first

    def __repr__(self) -> str:
        t = self.target
        facts = [t.name if t.name != self.spec else "", self.note,
                 f"driver {textwrap.shorten(t.driver, 40)}" if t.driver else "", t.device_type,
                 f"{t.global_memory / 2 ** 30:.3g} GiB" if t.global_memory else "",
                 *(f"{len(rows)} {kind}{'s' * (len(rows) != 1)}" for kind, rows in (
                     ("quirk", self.quirks), ("fault", self.faults)) if rows)]
        return f"<jitcl device '{self.spec}': {', '.join(f for f in facts if f)}>"
