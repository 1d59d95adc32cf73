"""`Session`: a device with a context on it, and what lives as long as that: programs, uploaded
constants. Whoever builds, loads or launches holds one; it knows none of them.

A device that is lost, or whose process was forked, gets another (`OpenClDevice.reopen`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyopencl as cl

from jitcl import forking
from jitcl.devices.faults import BINARIES, FaultDatabase
from jitcl.devices.opencl.errors import translated
from jitcl.devices.opencl.platform import Found, check_fork
from jitcl.devices.opencl.programs import ProgramStore
from jitcl.forking import cached_property
from jitcl.target.target import Target

HINTS = "cl_khr_priority_hints"
_QUEUE_PRIORITY = 0x1096            # CL_QUEUE_PRIORITY_KHR, which pyopencl has no name for
_LEVELS = {"high": 1, "low": 4}     # CL_QUEUE_PRIORITY_HIGH_KHR, .._LOW_KHR

log = logging.getLogger("jitcl.devices")


@dataclass(eq=False)
class Weight:
    """A constant on the device, for as long as a plan holds it."""

    buffer: Any


@dataclass
class Uploaded:
    """The constants that plans share on one context: digest -> what is uploaded."""

    found: weakref.WeakValueDictionary[str, Weight] = field(
        default_factory=weakref.WeakValueDictionary)
    lock: threading.Lock = field(default_factory=forking.lock)

    def take(self, digest: str, upload: Callable[[], Any]) -> Weight:
        with self.lock:
            weight = self.found.get(digest)
            if weight is None:
                weight = self.found[digest] = Weight(upload())
            return weight


class Session:
    """One context. Safe to share between threads."""

    def __init__(self, found: Found, target: Target, faults: FaultDatabase,
                 before: Session | None = None, queue: Any = None) -> None:
        """`before`: the one that this takes the place of; what was loaded in it is lost. `queue`:
        the caller's, where everything is to run, in its context.
        """
        self.found, self.target, self.faults = found, target, faults
        self.name, self.spec, self.handle = found.name, found.spec, found.handle
        check_fork(found, target)
        with translated(f"opening {found}"):
            self.context = cl.Context([found.handle]) if queue is None else queue.context
        self.queue = queue
        self._opened_in = forking.generation
        self.store = ProgramStore(self.context, found.handle, target)
        self.uploaded = Uploaded()
        self.replaced = False
        self.losses = 0                     # how often the device was lost
        if before is not None:
            before.replaced = True
            self.store.counters = before.store.counters
            self.losses = before.losses + (not before.forked)

    @property
    def forked(self) -> bool:
        """Whether this process was forked since it was opened: it is to be opened again."""
        return self._opened_in != forking.generation

    @property
    def ended(self) -> str:
        """Why nothing that was loaded here can run any more; "" where it can."""
        if self.forked:
            return "this process was forked since this model was loaded"
        return "the device was opened again since this model was loaded" if self.replaced else ""

    @cached_property
    def transfers(self) -> Any:
        """A queue for copies and mappings that belong to no run."""
        if self.queue is not None:
            return self.queue
        with translated(f"{self.name}: a queue"):
            return cl.CommandQueue(self.context, self.handle)

    def must_live(self, doing: str) -> None:
        """Raises DeviceLostError where nothing works in the context any more: whatever is `doing`
        then fails, and nothing is known of it."""
        with translated(f"{self.name}: {doing}"):
            cl.enqueue_barrier(self.transfers)
            self.transfers.finish()

    def new_queue(self, priority: str = "normal") -> Any:
        """A queue for runs, with a hint of their priority to drivers that take hints."""
        if priority in _LEVELS and HINTS in self.handle.extensions.split():
            hint: Any = [_QUEUE_PRIORITY, _LEVELS[priority]]    # names and values, since 2.0
            try:
                return cl.CommandQueue(self.context, self.handle, properties=hint)
            except (cl.Error, ValueError) as error:     # it is no more than a hint
                log.warning("%s has %s, and refuses a queue of %s priority: %s", self.name, HINTS,
                            priority, error)
        return cl.CommandQueue(self.context, self.handle)

    @cached_property
    def max_items(self) -> tuple[int, ...]:
        return tuple(self.handle.max_work_item_sizes)

    @cached_property
    def host_target(self) -> Target:
        """Of the CPU path."""
        from jitcl.devices.cpu.host import probe_target  # loads LLVM

        return probe_target()

    @property
    def reloads(self) -> bool:
        """Whether it is worth asking the driver for binaries, and giving them back to it."""
        target = self.target
        return (target.cached_binaries and target.reloadable
                and not self.faults.rejects(BINARIES, frozenset()))
