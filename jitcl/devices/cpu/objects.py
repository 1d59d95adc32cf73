"""Kernel text -> object code (in build workers) -> callable addresses (through llvmlite, without
Numba).

A blob is what the kernel cache stores of a kernel: a header line with its symbol, then the native
object file.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import itertools
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import llvmlite.binding as llvm

from jitcl import forking
from jitcl.codegen.plan import KernelSource
from jitcl.cores import usable_cores
from jitcl.devices.base import Cache, Progress, Tally
from jitcl.devices.cpu import host
from jitcl.devices.cpu.resident import give_back
from jitcl.devices.messages import child_command, read_message, write_message
from jitcl.errors import BuildError
from jitcl.target import Target

_MAGIC = b"jitcl-object-1 "
_MOST_WORKERS = 16  # about 40 MB each, beside what they share
_IDLE_SECONDS = 20.0


# -------------------------------------------------------------------------------------------- build
class _Died(BuildError):
    """A build process ended before it had answered."""


class _Loaded:
    """A process that has loaded the compiler, and forks itself for each build process: Numba takes
    0.4 s of CPU and 100 MB to load, once. Never a fork of this one, nor a re-import of the caller's
    __main__. Elsewhere than on Linux each loads it for itself: Windows has no forks, and macOS may
    abort one whose parent has loaded its frameworks.
    """

    forks = sys.platform.startswith("linux")

    def __init__(self) -> None:
        package = str(Path(__file__).resolve().parents[3])  # of jitcl
        paths = os.pathsep.join([package, *(p for p in sys.path if p)])
        environment = dict(os.environ, PYTHONPATH=paths, NUMBA_DISABLE_JIT="0",
                           OPENBLAS_NUM_THREADS="1")    # forks have no threads
        self.asks, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                child_command("jitcl.devices.cpu.worker"), env=environment,
                stdin=theirs.fileno() if self.forks else subprocess.PIPE,
                stdout=None if self.forks else subprocess.PIPE,
                start_new_session=True)     # an interrupt from the keyboard is the caller's

    def streams(self) -> tuple[BinaryIO, BinaryIO]:
        """(what to write to, what to read from) of a new build process. Raises OSError."""
        if not self.forks:
            return self.process.stdin, self.process.stdout      # type: ignore[return-value]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with suppress(ConnectionError):     # it has died: who reads finds nothing
                socket.send_fds(self.asks, [b"."], [theirs.fileno()])
            return ours.makefile("wb"), ours.makefile("rb")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """Ends when its forks have."""
        self.asks.close()
        self.process.wait()

    def kill(self) -> None:
        """With its forks."""
        with suppress(PermissionError, ProcessLookupError):     # the program has become another
            if self.forks:                                      # user since; all of its input ends
                os.killpg(self.process.pid, signal.SIGKILL)     # with this process
            else:
                self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """It is the parent's of this process, as `_Worker.forget`."""
        self.asks.close()
        self.process.returncode = 0             # not ours to wait for


class _Worker:
    """One build process."""

    def __init__(self, loaded: _Loaded) -> None:
        self.loaded, self.ended = loaded, False
        self.to, self.back = loaded.streams()

    def build(self, source: KernelSource, absent: str) -> bytes:
        try:
            write_message(self.to, (source.entry, source.body, absent))
            answer = read_message(self.back)
        except OSError:
            answer = None
        if answer is None:
            self.ended = True
            if forking.ending():
                raise SystemExit
            raise _Died(
                f"kernel '{source.entry}': the build process died\n"
                f"  Out of memory, or a crash of LLVM; free memory, or use fewer cores."
            )
        entry, blob, message = answer
        if message is not None:
            raise BuildError(message)
        return blob

    def forget(self) -> None:
        """It is the parent's of this process: keep no pipe of it open, and flush nothing there."""
        with open(os.devnull, "rb+", buffering=0) as nothing:
            for pipe in (self.to, self.back):
                os.dup2(nothing.fileno(), pipe.fileno())

    def close(self) -> None:
        with suppress(OSError):  # it ended in the middle of a job
            self.to.close()
        self.back.close()
        if not self.loaded.forks:
            self.loaded.close()


@dataclass(order=True)
class _Job:
    """A kernel to build; the longest come first, and what ends a thread last."""

    size: float                                 # minus the text's length
    number: int
    source: KernelSource | None = field(compare=False, default=None)
    absent: str = field(compare=False, default="")
    future: Future[bytes] = field(compare=False, default_factory=Future)


class _Workers:
    """The build processes of this process, and for each a thread that hands it kernels. They start
    as kernels come, and end after a pause.
    """

    def __init__(self) -> None:
        self.most = _MOST_WORKERS
        self.lock = threading.Lock()
        self.jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self.known: dict[tuple[str, str, str], Future[bytes]] = {}      # until they are claimed
        self.waiting = self.threads = 0         # kernels that are not built yet; threads
        self.loaded: _Loaded | None = None      # what these are forks of
        self.processes: list[_Worker] = []
        self.numbers = itertools.count()

    def start(self) -> None:
        """Have a process that waits for kernels."""
        with self.lock:
            self._start(1)

    def submit(self, source: KernelSource, absent: str) -> Future[bytes]:
        """The object code of a kernel, when it is built. One that is under way is not built again.
        """
        key = source.entry, source.body, absent
        with self.lock:
            if key not in self.known:
                job = _Job(-len(source.body), next(self.numbers), source, absent)
                self.known[key] = job.future
                self.waiting += 1
                self.jobs.put(job)
            self._start((self.waiting + 1) // 2)
            return self.known[key]

    def claimed(self, sources: Iterable[KernelSource], absent: str) -> None:
        """Keep nothing of these any more."""
        with self.lock:
            for source in sources:
                self.known.pop((source.entry, source.body, absent), None)

    def _start(self, wanted: int) -> None:
        if self.threads < min(usable_cores(), wanted, self.most):
            self.threads += 1
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        """Of one thread: kernels for a process of its own."""
        worker = None
        try:
            worker = _Worker(self._load())
            self.processes.append(worker)
            alive = True
            while alive and (job := self._next()).source is not None:
                alive = self._build(job, worker)
        except OSError as error:                # no memory, no files: fewer processes do
            if self.threads == 1:
                self._refuse(error)
        finally:
            if worker is not None:
                self.processes.remove(worker)
                worker.close()
            with self.lock:
                unused = self.loaded if self.threads == 1 else None
                if unused is not None:
                    self.loaded = None          # who starts from here on loads another
            if unused is not None:
                unused.close()
            with self.lock:
                self.threads -= 1
                self._start(self.waiting > 0)

    def _load(self) -> _Loaded:
        """What new build processes are forks of."""
        with self.lock:
            loaded = self.loaded
            if loaded is None or loaded.ended or not loaded.forks:
                loaded = self.loaded = _Loaded()
            return loaded

    def _next(self) -> _Job:
        try:
            return self.jobs.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            with self.lock:
                self.known.clear()              # built ahead, and never asked for
            return _Job(0, 0)

    def _build(self, job: _Job, worker: _Worker) -> bool:
        """Whether the process goes on."""
        assert job.source is not None
        try:
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(worker.build(job.source, job.absent))
        except (BuildError, SystemExit) as error:
            job.future.set_exception(error)
        finally:
            with self.lock:
                self.waiting -= 1
        return not worker.ended

    def _refuse(self, error: OSError | None = None) -> None:
        """Build nothing of what waits: for an error, or since nobody wants it any more."""
        with suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                with self.lock:
                    self.waiting -= job.source is not None
                if error is None:
                    job.future.cancel()
                elif job.future.set_running_or_notify_cancel():
                    job.future.set_exception(error)

    def close(self, kill: bool = False) -> None:
        """No process is left, and of what was not built yet nothing comes."""
        self._refuse()
        for _ in range(self.threads):
            self.jobs.put(_Job(math.inf, next(self.numbers)))
        while self.threads:
            if kill:
                self.end()
            time.sleep(0.001)
        self._refuse()                          # threads that had ended by themselves

    def end(self) -> None:
        """When this process ends, whatever they are at."""
        for loaded in self.all_loaded():
            loaded.kill()

    def all_loaded(self) -> set[_Loaded]:
        """What build processes are forks of, and what others would be."""
        return {w.loaded for w in self.processes} | ({self.loaded} if self.loaded else set())


_workers = _Workers()


def _forget_workers() -> None:
    """In a forked child the build processes are the parent's."""
    global _workers
    for worker in _workers.processes:
        worker.forget()
    for loaded in _workers.all_loaded():
        loaded.forget()
    _workers = _Workers()


forking.in_child(_forget_workers)
forking.at_end(lambda: _workers.end())


def compile_kernels(
    sources: Sequence[KernelSource], progress: Progress | Tally | None = None, lanes: int = 0
) -> dict[str, bytes]:
    """Builds all kernels in build processes; entry -> blob. Raises BuildError for the first that
    fails.

    lanes: the target's vectors of f32, by which the CPU features are known that it does without
    (0: nothing).
    """
    pending = tuple({s.entry: s for s in sources}.values())
    if not pending:
        return {}
    absent, pool = host.absent_feature(lanes), _workers
    try:
        return _built(pending, pool, progress, absent)
    except (_Died, CancelledError):     # of too little memory for all of them, most likely
        pool.close(kill=True)
        pool.most = 1
        try:
            return _built(pending, pool, progress, absent)
        finally:
            pool.most = _MOST_WORKERS


def _built(pending: Sequence[KernelSource], pool: _Workers, progress: Progress | Tally | None,
           absent: str) -> dict[str, bytes]:
    done: dict[str, bytes] = {}
    futures = {pool.submit(source, absent): source.entry for source in pending}
    try:
        with Tally.of(progress).part(len(pending), "building kernels") as part:
            for future in as_completed(futures):
                entry = futures[future]
                done[entry] = _MAGIC + entry.encode() + b"\n" + future.result()
                part.step()
    except BaseException as error:
        for future in futures:
            future.cancel()
        if not isinstance(error, BuildError):   # nobody waits for the answers
            pool.close(kill=True)
        raise
    finally:
        pool.claimed(pending, absent)
    return done


class Ahead:
    """Builds the kernels of a plan while the rest of the plan is written. What the cache has is not
    built; `cached_kernels` finds the others under way.
    """

    def __init__(self, cache: Cache | None, target: Target) -> None:
        self.cache, self.target = cache, target
        _workers.start()

    def __call__(self, source: KernelSource) -> None:
        if source.language == "numba" and _stored(source, self.cache, self.target) is None:
            _workers.submit(source, host.absent_feature(self.target.vector_width))


def build_key(source: KernelSource, target: Target) -> str:
    """What a blob depends on: the kernel's text, the target and the compilers."""
    parts = "\0".join((source.entry, source.body, target.key, host.versions()))
    return hashlib.sha256(parts.encode()).hexdigest()


def _stored(source: KernelSource, cache: Cache | None, target: Target) -> bytes | None:
    """The kernel's blob, if the cache has it."""
    blob = cache.get("cpu-object", build_key(source, target)) if cache is not None else None
    return blob if blob and blob.startswith(_MAGIC + source.entry.encode() + b"\n") else None


def cached_kernels(
        sources: Iterable[KernelSource], cache: Cache | None, target: Target,
        progress: Progress | Tally | None = None
) -> dict[str, bytes]:
    """Blobs of all kernels: those that the cache has from there, the rest built and put there."""
    found: dict[str, bytes] = {}
    missing = []
    for source in sources:
        blob = _stored(source, cache, target)
        if blob is not None:
            found[source.entry] = blob
        else:
            missing.append(source)
    built = compile_kernels(missing, progress, target.vector_width)
    if cache is not None:
        for source in missing:
            cache.put("cpu-object", build_key(source, target), built[source.entry],
                      provides=[source.entry])
    return {**found, **built}


# --------------------------------------------------------------------------------------------- load
@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _publish_libm()


def _machine() -> Any:
    """A target machine; an engine owns the one that it is given."""
    _initialise()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=0)


def _publish_libm() -> None:
    """Objects call the C math library by name; name it, for interpreters that are not linked with
    it."""
    path = ctypes.util.find_library("m") if not hasattr(ctypes.CDLL(None), "sinf") else None
    if path:
        llvm.load_library_permanently(path)


class LoadedKernels(Mapping[str, int]):
    """entry -> address. The code lives as long as this object."""

    def __init__(self, engine: Any, objects: list[Any], addresses: dict[str, int]) -> None:
        self._engine, self._objects, self._addresses = engine, objects, addresses

    def __getitem__(self, entry: str) -> int:
        return self._addresses[entry]

    def __iter__(self) -> Any:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)


def load_kernels(blobs: Mapping[str, bytes]) -> LoadedKernels:
    """Links blobs into this process. Raises BuildError for one that is not a kernel object."""
    with forking.LLVM:
        return _linked(blobs)


def _linked(blobs: Mapping[str, bytes]) -> LoadedKernels:
    module = llvm.parse_assembly("")
    module.triple = llvm.get_process_triple()
    engine = llvm.create_mcjit_compiler(module, _machine())
    objects = []
    for entry, blob in blobs.items():
        header, _, code = blob.partition(b"\n")
        if header != _MAGIC + entry.encode():
            raise BuildError(
                f"kernel '{entry}': not a CPU kernel object (header {header[:40]!r})\n"
                f"  Clear the kernel cache with `jitcl cache clear`."
            )
        objects.append(llvm.ObjectFileRef.from_data(code))
        engine.add_object_file(objects[-1])
    engine.finalize_object()
    addresses = {entry: engine.get_function_address(entry) for entry in blobs}
    give_back()                                 # the linker's pages
    return LoadedKernels(engine, objects, addresses)
