"""A worker process: builds and launches what the user's process must not be hurt by.

Messages in (devices/messages.py), each answered before the next:

    ("hello", identity)    find the device that the parent means; the first frame
    ("probe", name)        run a probe: its evidence, as a dict
    ("try", Job)           build kernels, make their binaries, launch a plan once: a Tried

Frames out: ("stage", stage, entry) before each step that the driver may not survive, then
("done", answer) or ("failed", kind, signature, log). End of input ends the worker, and so does the
death of the parent, whatever the driver is busy with. Kind "error" is a mistake of this program.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from jitcl import dtypes
from jitcl.codegen.plan import KernelSource, Plan
from jitcl.devices.messages import read_message, write_message
from jitcl.devices.opencl.platform import Found, find_devices
from jitcl.errors import DeviceLostError, JitclError, KernelFault, OutOfMemoryError
from jitcl.target.target import Target

if TYPE_CHECKING:
    from jitcl.devices.opencl.session import Session

LOG_KEPT = 4000
PROGRAMS = 64                # kept for the next jobs: neighbours launch the same kernels


@dataclass(frozen=True)
class Job:
    """Kernels to be built, each as a program of its own, and a plan to be launched with them."""

    target: Target
    kernels: tuple[KernelSource, ...]
    plan: Plan | None = None                # None: nothing is launched
    inputs: tuple[np.ndarray, ...] | None = None        # None: zeros
    wanted: frozenset[str] = frozenset()    # entries whose binaries are made, loaded and returned


@dataclass(frozen=True)
class Tried:
    """What came of a job that the worker survived."""

    binaries: dict[str, bytes]              # by entry; those that the driver made and took back
    outputs: tuple[np.ndarray, ...]         # of the plan
    refused: str = ""                       # why it did not take a binary back


class Failed(Exception):
    """Ends a job: the driver reported an error."""

    def __init__(self, kind: str, signature: str, log: str = "") -> None:
        super().__init__(signature)
        self.kind, self.signature, self.log = kind, signature, log


class Worker:
    """The device of this worker, and the requests that it answers."""

    def __init__(self, out: BinaryIO, identity: dict[str, Any]) -> None:
        self.out = out
        self.found = _the_same_device(identity)
        self._session: Session | None = None
        self._programs: dict[KernelSource, Any] = {}

    def answer(self, request: tuple[Any, ...]) -> Any:
        action, argument = request
        return self.probe(argument) if action == "probe" else self.attempt(argument)

    def stage(self, stage: str, entry: str) -> None:
        """Tell the parent what comes next."""
        write_message(self.out, ("stage", stage, entry))

    def probe(self, name: str) -> dict[str, Any]:
        from jitcl.devices.opencl.probes import run_probe

        return run_probe(self.found, name)

    def attempt(self, job: Job) -> Tried:
        """Build, reload and launch; raises Failed for what the driver reports."""
        session = self.session(job.target)
        programs: dict[str, Any] = {}
        binaries: dict[str, bytes] = {}
        refused = ""
        for source in job.kernels:
            programs[source.entry] = self.built(session, source)
            if source.entry in job.wanted and not refused:
                refused = self.reload(session, source, programs, binaries)
        outputs: tuple[np.ndarray, ...] = ()
        if job.plan is not None:
            outputs = self.launch(session, job.plan, programs, job.inputs)
        while len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]      # the oldest
        return Tried(binaries, outputs, refused)

    def session(self, target: Target) -> Session:
        """The device with a context of this process, as the parent's Target describes it."""
        if self._session is None or self._session.target != target:
            from jitcl.devices.faults import FaultDatabase
            from jitcl.devices.opencl.session import Session

            self.stage("start", "")
            self._programs.clear()
            self._session = Session(self.found, target, FaultDatabase(None))
        return self._session

    def built(self, session: Session, source: KernelSource) -> Any:
        """The kernel's program; kernels that several jobs launch are built once."""
        from jitcl.devices.opencl.building import RefusedBuild, from_source, program_options

        if source not in self._programs:
            self.stage("build", source.entry)
            try:
                self._programs[source] = from_source(
                    session.context, session.handle, [source], program_options(session.target))
            except RefusedBuild as error:
                raise Failed(error.kind, error.signature, str(error)) from error
        return self._programs[source]

    def reload(self, session: Session, source: KernelSource, programs: dict[str, Any],
               binaries: dict[str, bytes]) -> str:
        """Make the binary and load it, as the parent will; returns why the driver refuses it."""
        from pyopencl import Error

        from jitcl.devices.opencl.building import binary_of, from_binary

        self.stage("load", source.entry)
        binary = binary_of(programs[source.entry])
        if not binary:
            return ""
        try:
            program = from_binary(session.context, session.handle, binary)
        except (Error, RuntimeError) as error:
            return _line(error)
        binaries[source.entry] = binary
        programs[source.entry] = self._programs[source] = program
        return ""

    def launch(self, session: Session, plan: Plan, programs: dict[str, Any],
               inputs: tuple[np.ndarray, ...] | None) -> tuple[np.ndarray, ...]:
        """The outputs of one run of the plan."""
        from jitcl.devices.opencl.trial_plans import run_once

        if inputs is None:
            inputs = tuple(np.zeros(t.shape, dtypes.to_numpy(t.dtype)) for t in plan.inputs)
        self.stage("launch", "")
        try:
            return tuple(run_once(session, plan, programs, inputs,
                                  lambda entry: self.stage("launch", entry)))
        except KernelFault as error:         # the executable knows which kernel it is
            fault = session.faults.faults[-1]
            self.stage("launch", fault.entry)
            raise Failed(fault.kind, fault.signature, str(error)) from error
        except JitclError as error:
            kind = "lost" if isinstance(error, DeviceLostError) else (
                "memory" if isinstance(error, OutOfMemoryError) else "refused")
            raise Failed(kind, _line(error), str(error)) from error


def _the_same_device(identity: dict[str, Any]) -> Found:
    """This process's view of the parent's device; ValueError where it is another one."""
    seen = []
    for found in find_devices():
        if found.identity == identity:
            return found
        seen.append(str(found.identity))
    raise ValueError(f"the worker process does not find the device {identity}; it finds: "
                     + ("; ".join(seen) or "none"))


def end_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group once nobody can write to the pipe any more: that
    works while the driver computes for ever. Where the system has no such signal, a thread waits.
    """
    try:
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined]
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()
        return
    ended = select.poll()
    ended.register(lifeline, 0)              # a hang-up is always reported
    if ended.poll(0):                        # it happened before the signal was asked for
        os.killpg(0, signal.SIGKILL)


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    end_with_parent(int(sys.argv[-1]))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                            # whatever prints cannot damage the frames
    _leave_no_core_file()
    worker: Worker | None = None
    while (request := read_message(sys.stdin.buffer)) is not None:
        try:
            if worker is None:
                worker = Worker(out, request[1])
                frame: tuple[Any, ...] = ("done", os.getpid())
            else:
                frame = ("done", worker.answer(request))
        except Failed as error:
            frame = ("failed", error.kind, error.signature, error.log[-LOG_KEPT:])
        except JitclError as error:
            frame = ("failed", "refused", _line(error), str(error)[-LOG_KEPT:])
        except Exception as error:  # noqa: BLE001  (whatever it is, the parent must hear of it)
            frame = ("failed", "error", _line(error), traceback.format_exc()[-LOG_KEPT:])
        write_message(out, frame)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _leave_no_core_file() -> None:
    try:
        import resource
    except ImportError:                      # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
