"""Worker processes that a driver may crash in: what is tried there cannot hurt the user's process.

    pool = isolated(found)                     one pool a device; nothing is started yet
    pool.call(("probe", "half"))               the worker's answer, or a WorkerFault

A worker (devices/opencl/worker.py) is a long-lived child with a session of its own. It says what
it is about to do before it does it, so that of a crash or a hang the stage and the kernel are
known. A crash costs that one worker; the next job starts another. Workers end after a pause, when
this process ends, and at once when it is killed: they hold the reading end of a pipe, the
"lifeline", that only this process could write to.
"""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jitcl import config, forking, ownership
from jitcl.cores import usable_cores
from jitcl.devices.messages import HEAD, child_command, decode, encode, unnamed_file
from jitcl.devices.opencl.platform import Found
from jitcl.devices.shortage import CODES
from jitcl.errors import DeviceError

MOST_WORKERS = 4
IDLE_SECONDS = 20.0
END_SECONDS = 2.0                    # that a worker gets to end by itself
GLANCE_SECONDS = 0.2                 # between looks at a silent worker
LOG_KEPT = 4000                      # bytes of stderr, the last ones
SIGNATURE_KEPT = 160                 # characters
CHUNK = 1 << 20
TELLING = re.compile(r"LLVM ERROR|[Aa]ssert|[Ff]atal|terminate called|\b[Ee]rror\b|[Uu]nreachable")
MARK = "JITCL_WORKER_OF"                 # in a worker's environment: its parent's process id
INHERITED = ("pocl_cpu", "quirks")       # settings that a worker must share

log = logging.getLogger("jitcl.opencl")

_pools: weakref.WeakSet[Isolated] = weakref.WeakSet()
_by_device: dict[tuple[int, int], Isolated] = {}
_guard = forking.lock()


class Aborted(DeviceError):
    """The job was ended on purpose: nothing is known of its kernels."""


class WorkerFault(DeviceError):
    """A job that failed in a worker.

    kind: "crash" (the worker died), "hang" (its deadline passed), "refused" (an error of the
    driver), "resources" (registers, say), "memory", "lost", or "error" (jitcl's own). stage:
    "build", "load", "launch", "probe", or "start" where no worker could be had. entry: the kernel
    it was at, "" if unknown.
    """

    def __init__(self, kind: str, stage: str, entry: str, signature: str, log: str = "") -> None:
        where = f" of kernel '{entry}'" if entry else ""
        super().__init__(f"{kind} in the {stage}{where}: {signature}" + (f"\n{log}" if log else ""))
        self.kind, self.stage, self.entry = kind, stage, entry
        self.signature, self.log = signature, log

    @property
    def leaves_worker(self) -> bool:
        """Whether the worker is as good as new: a compiler's complaint changes nothing in it."""
        return self.kind == "refused" and self.stage in ("build", "probe")

    @property
    def unannounced(self) -> bool:
        """Whether the worker ended before it had said what it would do: no kernel's fault."""
        return self.kind in ("crash", "hang") and self.stage == "try"


def isolated(found: Found) -> Isolated:
    """The pool of worker processes for a device, one in this process."""
    with _guard:
        key = (found.platform_index, found.device_index)
        if key not in _by_device:
            _by_device[key] = Isolated(found)
        return _by_device[key]


class Isolated:
    """A pool of workers for one device; `call` from any number of threads, `size` at a time."""

    def __init__(self, found: Found, command: Sequence[str] = ()) -> None:
        self.found = found
        self.command = tuple(command) or tuple(child_command("jitcl.devices.opencl.worker"))
        self.size = max(1, min(usable_cores(), MOST_WORKERS))
        self.started = 0                     # processes, in this pool's life
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._places = self.size             # workers that may still be started
        self._timer: threading.Timer | None = None

    def call(self, request: tuple[Any, ...], seconds: float | None = None,
             owner: object = None) -> Any:
        """A worker's answer to a request. `seconds` bounds each stage that the worker names
        (default: JITCL_BUILD_SECONDS). A worker that ends before it has begun is replaced, once.
        Raises WorkerFault; Aborted after `abort(owner)`.
        """
        limit = float(config.get("build_seconds")) if seconds is None else seconds
        try:
            return self._call(request, limit, owner)
        except WorkerFault as fault:
            if not fault.unannounced:
                raise
            log.info("a worker process ended before its job began (%s): another does it",
                     fault.signature)
        return self._call(request, limit, owner)

    def _call(self, request: tuple[Any, ...], limit: float, owner: object) -> Any:
        worker = self._take(limit)
        worker.owner = owner
        try:
            answer = worker.exchange(request, limit)
        except WorkerFault as fault:
            self._leave(worker, fault.leaves_worker)
            raise
        except BaseException:                # interrupted: an answer may still come
            self._leave(worker, False)
            raise
        self._leave(worker, True)
        return answer

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that live now."""
        with self._changed:
            return tuple(w.process.pid for w in (*self._idle, *self._busy))

    def abort(self, owner: object) -> None:
        """End the jobs that `owner` waits for in other threads: their `call` raises Aborted."""
        with self._changed:
            for worker in self._busy:
                if worker.owner is owner:
                    worker.aborted = True
                    worker.end_group()

    def end(self) -> None:
        """End all workers, whatever they are at: this process ends."""
        with self._changed:
            for worker in self._busy:
                worker.aborted = True
                worker.end_group()
        self.close()

    def close(self) -> None:
        """End all idle workers; busy ones end when their job does."""
        with self._changed:
            ending, self._idle = self._idle, []
            self._places += len(ending)
            if self._timer is not None:
                self._timer.cancel()
            self._changed.notify_all()
        _end(ending)

    def _take(self, seconds: float) -> _Worker:
        with self._changed:
            while not self._idle and not self._places:
                self._changed.wait()
            if self._timer is not None:
                self._timer.cancel()
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    self._busy.add(worker)
                    return worker
                worker.discard()             # the system ended it: no kernel's fault
                self._places += 1
            self._places -= 1
        try:
            worker = _Worker(self.command, self.found, seconds)
        except BaseException:
            with self._changed:
                self._places += 1
                self._changed.notify()
            raise
        with self._changed:
            self.started += 1
            self._busy.add(worker)
        return worker

    def _leave(self, worker: _Worker, usable: bool) -> None:
        worker.owner = None                  # an idle worker keeps no plan, nor its weights, alive
        if not usable:
            worker.discard()
        with self._changed:
            self._busy.discard(worker)
            if usable:
                self._idle.append(worker)
            else:
                self._places += 1
            if not self._busy:
                self._timer = threading.Timer(IDLE_SECONDS, self.close)
                self._timer.daemon = True
                self._timer.start()
            self._changed.notify()

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's; keep none of their pipes open."""
        for worker in (*self._idle, *self._busy):
            worker.forget()
        self._reset()


class _Worker:
    """One worker process. Never a fork of this one, nor a re-import of the caller's __main__."""

    def __init__(self, command: Sequence[str], found: Found, seconds: float) -> None:
        _check_possible()
        self.owner: object = None            # of the job that it does
        self.aborted = False
        try:
            self.errors = unnamed_file()
            held, self.lifeline = os.pipe()
        except OSError as error:
            raise _no_process(error) from error
        try:
            self.process = subprocess.Popen(
                [*command, str(held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.errors, env=_environment(), pass_fds=(held,), bufsize=0,
                start_new_session=True,      # a group of its own: linkers end with it
            )
        except OSError as error:
            os.close(self.lifeline)
            self.errors.close()
            raise _no_process(error) from error
        finally:
            os.close(held)
        self._stage, self._entry = "start", ""
        try:
            os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]
            self.exchange(("hello", found.identity), seconds, stage="start")
        except BaseException:
            self.discard()
            raise

    def exchange(self, request: tuple[Any, ...], seconds: float, stage: str = "") -> Any:
        """Send a request, wait for its answer; each stage may take `seconds`."""
        self._stage, self._entry = stage or str(request[0]), ""
        if self._stage == "probe":
            self._entry = str(request[1])
        self._mark = self.errors.seek(0, os.SEEK_END)
        try:
            self._send(encode(request), time.monotonic() + seconds)
            while True:
                tag, *said = self._receive(time.monotonic() + seconds)
                if tag == "done":
                    return said[0]
                if tag == "failed":
                    kind, signature, log = said
                    raise WorkerFault(kind, self._stage, self._entry, signature, log)
                self._stage, self._entry = said
        except TimeoutError:
            self.kill()
            raise WorkerFault("hang", self._stage, self._entry,
                              f"no end after {seconds:g} s", self._tail()) from None
        except (EOFError, BrokenPipeError):
            fault = self._crash()
            if forking.ending():
                raise SystemExit from None
            if self.aborted:
                raise Aborted("the job in the worker process was given up") from None
            raise fault from None

    def _crash(self) -> WorkerFault:
        """The fault of a process that has ended, or closed its pipe, which it never should."""
        code = self._exit_code()
        self.kill()
        log = self._tail()
        how = "its pipe was closed" if code is None else (
            _signal_name(-code) if code < 0 else f"exit status {code}")
        line = _telling_line(log)
        return WorkerFault("crash", self._stage, self._entry,
                           f"{how}: {line}"[:SIGNATURE_KEPT] if line else how, log)

    def _exit_code(self) -> int | None:
        """Its status; None where it still runs, with its pipe closed."""
        deadline = time.monotonic() + END_SECONDS
        while self._status() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._status()

    def _send(self, data: bytes, deadline: float) -> None:
        pipe = self.process.stdin.fileno()  # type: ignore[union-attr]
        view = memoryview(data)
        while view:
            self._wait(pipe, deadline, writing=True)
            with suppress(BlockingIOError):
                view = view[os.write(pipe, view[:CHUNK]):]

    def _receive(self, deadline: float) -> Any:
        size = HEAD.unpack(self._read(HEAD.size, deadline))[0]
        return decode(self._read(size, deadline))

    def _read(self, count: int, deadline: float) -> bytearray:
        pipe, data = self.process.stdout.fileno(), bytearray()  # type: ignore[union-attr]
        while len(data) < count:
            self._wait(pipe, deadline)
            part = os.read(pipe, min(count - len(data), CHUNK))
            if not part:
                raise EOFError
            data += part
        return data

    def _wait(self, pipe: int, deadline: float, writing: bool = False) -> None:
        """Until the pipe can be used. TimeoutError at the deadline, EOFError where the process
        ended and something that it started still holds the pipe.
        """
        poll = select.poll()                 # select() fails on descriptors above 1023
        poll.register(pipe, select.POLLOUT if writing else select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if poll.poll(min(left, GLANCE_SECONDS) * 1000):
                return
            if self._status() is not None and not poll.poll(0):
                raise EOFError
        raise TimeoutError

    def _status(self) -> int | None:
        """How it ended (negative: by which signal), None while it runs. Looked at without reaping
        it, so that its number, and that of its group, still belong to it.
        """
        info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    @property
    def alive(self) -> bool:
        return not self.aborted and self._status() is None

    def _tail(self) -> str:
        """What the driver wrote to stderr in this job, the end of it."""
        end = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(self._mark, end - LOG_KEPT))
        return self.errors.read().decode(errors="replace").strip()

    def end_group(self) -> None:
        """Send SIGKILL to the process and to what it started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and what it started, now."""
        self.end_group()
        self.process.wait()
        self._close_pipes()

    def discard(self) -> None:
        """End it, and let go of what it wrote."""
        self.kill()
        self.errors.close()

    def ask_to_end(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.discard()

    def forget(self) -> None:
        self._close_pipes()
        self.process.returncode = 0          # not ours to wait for

    def _close_pipes(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.stdout.close()  # type: ignore[union-attr]
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


def impossible() -> str:
    """Why this program can't start Python, or the system has no such processes; "" if it can."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return "this program is no Python interpreter that could start another"
    if not hasattr(os, "waitid"):
        return "worker processes need Linux, or another system with waitid()"
    return ""


def _no_process(error: OSError) -> WorkerFault:
    lacking = ("  The system lacks memory, processes or files that may be opened (`ulimit -a`)."
               if error.errno in CODES else _ADVICE)
    return WorkerFault("refused", "start", "", f"no process can be started: {error}", lacking)


def _check_possible() -> None:
    why = impossible()
    if why:
        raise WorkerFault("refused", "start", "", why, _ADVICE)


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.ask_to_end()
    for worker in workers:
        worker.end()


def _environment() -> dict[str, str]:
    """This process's, with the way to this package, and settings that were overridden in Python."""
    package = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join([package, *(p for p in sys.path if p)])
    settings = {config.variable(n).name: config.get(n) for n in INHERITED}
    return {**os.environ, "PYTHONPATH": paths, "PYOPENCL_NO_CACHE": "1", MARK: str(os.getpid()),
            config.variable("cache_dir").name: str(ownership.cache_root()),
            **{name: str(value) for name, value in settings.items() if value}}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _telling_line(log: str) -> str:
    """The line of a crash's stderr that says what happened: the last that reads like it."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    return (telling or lines or [""])[-1]


_ADVICE = ("  JITCL_ISOLATION=never builds in this process: it ends where the driver crashes.")


def _end_all() -> None:
    for pool in list(_pools):
        pool.end()


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


forking.at_end(_end_all)
forking.in_child(_forget_all)
