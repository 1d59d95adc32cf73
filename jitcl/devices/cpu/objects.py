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
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

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
_MOST_WORKERS = 16  # about 150 MB each
_IDLE_SECONDS = 20.0


# -------------------------------------------------------------------------------------------- build
class _Died(BuildError):
    """A build process ended before it had answered."""


class _Worker:
    """One build process. Never a fork of this one, nor a re-import of the caller's __main__."""

    def __init__(self) -> None:
        package = str(Path(__file__).resolve().parents[3])  # of jitcl
        paths = os.pathsep.join([package, *(p for p in sys.path if p)])
        environment = dict(os.environ, PYTHONPATH=paths, NUMBA_DISABLE_JIT="0")
        self.process = subprocess.Popen(
            child_command("jitcl.devices.cpu.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # an interrupt from the keyboard is the caller's to handle
        )

    def build(self, source: KernelSource, absent: str) -> bytes:
        try:
            job = (source.entry, source.body, absent)
            write_message(self.process.stdin, job)  # type: ignore[arg-type]
            answer = read_message(self.process.stdout)  # type: ignore[arg-type]
        except OSError:
            answer = None
        if answer is None:
            if forking.ending():
                raise SystemExit
            raise _Died(
                f"kernel '{source.entry}': the build process died, status {self.process.wait()}\n"
                f"  Out of memory, or a crash of LLVM; free memory, or use fewer cores."
            )
        entry, blob, message = answer
        if message is not None:
            raise BuildError(message)
        return blob

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def forget(self) -> None:
        """It is the parent's of this process: keep no pipe of it open, and flush nothing there."""
        with open(os.devnull, "rb+", buffering=0) as nothing:
            for pipe in (self.process.stdin, self.process.stdout):
                os.dup2(nothing.fileno(), pipe.fileno())  # type: ignore[union-attr]
        self.process.returncode = 0             # not ours to wait for

    def close(self) -> None:
        with suppress(OSError):  # it ended in the middle of a job
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


class _Workers:
    """The build processes of this process: started when first needed, kept for the next build, gone
    after a pause."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one build at a time uses them
        self.processes: list[_Worker] = []
        self.timer: threading.Timer | None = None

    def take(self, kernels: int) -> list[_Worker]:
        if self.timer is not None:
            self.timer.cancel()
        wanted = max(1, min(usable_cores(), (kernels + 1) // 2, _MOST_WORKERS))
        while len(self.processes) < wanted:
            try:
                self.processes.append(_Worker())
            except OSError:             # no memory, no files: fewer do
                if not self.processes:
                    raise
                break
        return self.processes[:wanted]

    def rest(self) -> None:
        self.timer = threading.Timer(_IDLE_SECONDS, self.close)
        self.timer.daemon = True
        self.timer.start()

    def kill(self) -> None:
        while self.processes:
            self.processes.pop().kill()

    def close(self) -> None:
        with self.lock:
            while self.processes:
                self.processes.pop().close()

    def end(self) -> None:
        """When this process ends, whatever they are at."""
        for worker in list(self.processes):
            try:
                worker.process.kill()
            except PermissionError:     # the program has become another user since
                continue                # its input ends with this process, and so does it
            worker.process.wait()


_workers = _Workers()


def _forget_workers() -> None:
    """In a forked child the build processes are the parent's."""
    global _workers
    for worker in _workers.processes:
        worker.forget()
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
    pending = sorted({s.entry: s for s in sources}.values(), key=lambda s: -len(s.body))
    if not pending:
        return {}
    pool = _workers
    with pool.lock:
        try:
            try:
                workers = pool.take(len(pending))
                return _build_all(pending, workers, progress, host.absent_feature(lanes))
            except _Died:               # of too little memory for all of them, most likely
                pool.kill()
                workers = pool.take(1)
                return _build_all(pending, workers, progress, host.absent_feature(lanes))
        except BaseException:  # a worker may be in the middle of an answer: start afresh
            pool.kill()
            raise
        finally:
            pool.rest()


def _build_all(
    pending: list[KernelSource], workers: list[_Worker], progress: Progress | Tally | None,
    absent: str,
) -> dict[str, bytes]:
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def build(source: KernelSource) -> tuple[str, bytes]:
        worker = idle.get()
        try:
            code = worker.build(source, absent)
            return source.entry, _MAGIC + source.entry.encode() + b"\n" + code
        finally:
            idle.put(worker)

    done: dict[str, bytes] = {}
    with (Tally.of(progress).part(len(pending), "building kernels") as part,
          ThreadPoolExecutor(len(workers)) as threads):
        futures = [threads.submit(build, source) for source in pending]
        try:
            for future in as_completed(futures):
                entry, blob = future.result()
                done[entry] = blob
                part.step()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return done


def build_key(source: KernelSource, target: Target) -> str:
    """What a blob depends on: the kernel's text, the target and the compilers."""
    parts = "\0".join((source.entry, source.body, target.key, host.versions()))
    return hashlib.sha256(parts.encode()).hexdigest()


def cached_kernels(
        sources: Iterable[KernelSource], cache: Cache | None, target: Target,
        progress: Progress | Tally | None = None
) -> dict[str, bytes]:
    """Blobs of all kernels: those that the cache has from there, the rest built and put there."""
    found: dict[str, bytes] = {}
    missing = []
    for source in sources:
        blob = cache.get("cpu-object", build_key(source, target)) if cache is not None else None
        if blob is not None and blob.startswith(_MAGIC + source.entry.encode() + b"\n"):
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
