"""`OpenClDevice`: one device with its session; loads plans into executables."""

from __future__ import annotations

import weakref
from typing import Any, Literal

import pyopencl as cl

from jitcl import config, forking
from jitcl.codegen.plan import Plan
from jitcl.devices.base import Cache, Progress, Tally
from jitcl.devices.faults import FaultDatabase, fault_database
from jitcl.devices.load_options import LoadOptions, configured
from jitcl.devices.opencl.errors import lost_error, translated
from jitcl.devices.opencl.executable import OpenClExecutable
from jitcl.devices.opencl.loaded import LoadedPlan
from jitcl.devices.opencl.loading import Loading
from jitcl.devices.opencl.memory import check_room
from jitcl.devices.opencl.platform import Found, find_devices
from jitcl.devices.opencl.probe import probe_target
from jitcl.devices.opencl.session import Session
from jitcl.devices.opencl.streaming import StreamedExecutable
from jitcl.errors import DeviceError, OptionError
from jitcl.target.target import Target

_open: weakref.WeakValueDictionary[tuple[object, ...], OpenClDevice] = weakref.WeakValueDictionary()
_opening = forking.lock()
FORKED = "this process was forked since the device was opened"


class OpenClDevice:
    """A device ready to load plans. Safe to share between threads; made by `open_device`."""

    memory_mode: Literal["slots"] = "slots"  # sub-buffers are where old drivers fail

    def __init__(self, found: Found, target: Target | None = None,
                 faults: FaultDatabase | None = None,
                 progress: Progress | Tally | None = None, queue: Any = None) -> None:
        """`target` and `faults` are what a parent process knows; found out where they aren't given.
        `queue`: the caller's.
        """
        if target is None:
            with translated(f"opening {found}"):
                target = probe_target(found, progress)
        self.session = Session(
            found, target, fault_database(target) if faults is None else faults, queue=queue)

    @property
    def target(self) -> Target:
        return self.session.target

    @property
    def faults(self) -> FaultDatabase:
        return self.session.faults

    @property
    def host_target(self) -> Target:
        return self.session.host_target

    def reopen(self) -> None:
        """A new context; what was loaded in the old one is lost."""
        lost = self.session
        if lost.queue is not None:
            raise DeviceError(f"{self.name}: the context is the caller's, and what was in it is "
                              "lost\n  Make a queue in a new one, and compile for that.")
        self.session = Session(lost.found, lost.target, lost.faults, lost)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def hardware(self) -> str:
        return self.session.spec

    @property
    def counters(self) -> dict[str, int]:
        """Programs and kernels built and loaded in this process, and binaries refused."""
        return self.session.store.counters.as_dict()

    def ahead(self, cache: Cache | None) -> None:
        """Nothing yet: whether a kernel may be built here is known when all are."""

    def load(
        self, plan: Plan, cache: Cache | None = None, progress: Progress | Tally | None = None,
        options: LoadOptions | None = None,
    ) -> LoadedPlan:
        """Build or load the plan's kernels, allocate its buffers, upload its constants.

        `cache` has get(kind, key) and put(kind, key, bytes); `progress(done, total, what)` is
        called while kernels are built; `options` say in which process (default: as JITCL_ISOLATION
        does, and nothing is compared). Kernels of the CPU path run on the host, in their steps'
        places.

        Raises OutOfMemoryError before anything is allocated where the plan does not fit;
        KernelFault, once for all kernels that the driver failed on, which are in `faults` then;
        DeviceError for what else the driver refuses.
        """
        wrong = {k.entry for k in plan.kernels if k.language not in ("opencl", "numba")}
        if wrong:
            raise DeviceError(
                f"{self.name}: got kernels in another language ({', '.join(sorted(wrong)[:3])}), "
                "wanted OpenCL C: compile the model for this device"
            )
        session = self.session
        if session.forked:
            raise lost_error(f"{self.name}: {FORKED}")
        check_room(session, plan)
        tally = Tally.of(progress)
        options = options or configured()
        programs = Loading(session, plan, cache, tally, options).programs()
        tally.now("loading the model")
        kind = StreamedExecutable if plan.streamed else OpenClExecutable
        return kind(session, plan, programs, cache, tally, options.priority)


def shared_device(found: Found, progress: Progress | Tally | None = None, queue: Any = None
                  ) -> OpenClDevice:
    """The device that models of this process share, with one context, for as long as one of them is
    there: they have programs, constants, and arrays that stay on the device in common. `queue`: the
    caller's, which has a device of its own.
    """
    with translated(f"opening {found}"):
        target = probe_target(found, progress)
    faults = fault_database(target)
    key = (found.spec, found.handle, target.key, str(config.get("target")), id(faults),
           queue if queue is None else queue.int_ptr, forking.generation)
    with _opening:
        device = _open.get(key)
        if device is None:
            device = _open[key] = OpenClDevice(found, target, faults, queue=queue)
        return device


def device_of_queue(queue: Any, progress: Progress | Tally | None = None) -> OpenClDevice:
    """The device of a caller's pyopencl.CommandQueue: all runs are enqueued there, in its context.
    DeviceError for one that jitcl doesn't find, OptionError for a queue that keeps no order.
    """
    if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise OptionError("device: this queue runs commands out of order, and kernels rely on "
                          "theirs\n  Pass one without OUT_OF_ORDER_EXEC_MODE_ENABLE.")
    for found in find_devices():
        if found.handle == queue.device:
            return shared_device(found, progress, queue)
    raise DeviceError(f"device: no driver that jitcl has found has '{queue.device.name}'\n  Call "
                      "jitcl.devices() before OpenCL is used, so that both look in one place.")
