"""Runs a whole plan as one call without the GIL per thread: a pool of waiting threads.

    executor = Executor(cache, target)
    executor.run(Job(steps), nthreads)

`steps` is an int64 table, three a step: kernel address, argument table, flags. A step is cut into
a few pieces a thread; each thread takes its own share first (what it wrote last is in its caches),
then what is left of others'. Nobody waits for a thread, only for pieces: one that the system runs
late, or not at all, costs its share of the work and no more. As kernels split work by index alone,
results are the same whoever runs which piece.

Thread 0 is the caller's. The others are Python threads that sit in one native loop: they spin for
some microseconds after a run, then sleep (a futex on Linux, a Python semaphore elsewhere), so that
idle models cost nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jitcl import forking
from jitcl.codegen.plan import KernelSource
from jitcl.devices.base import Cache
from jitcl.devices.cpu.objects import LoadedKernels, cached_kernels, load_kernels
from jitcl.target import Target

ALONE = 1  # step flag: thread 0 runs it, the others pass by
MEET = 2  # step flag: all threads meet behind it

_STEPS = '''
from jitcl.devices.cpu.native import *

def jitcl_steps(args, tid, nthreads):
    """args: steps, count, counters, address of sched_yield, pieces a thread.

    Counters, a cache line each: of every step, pieces done, then pieces claimed of each thread's
    share.
    """
    steps = peek(args, 0)
    count = peek(args, 1)
    counters = peek(args, 2)
    pieces = peek(args, 4)
    total = nthreads * pieces
    stride = 8 * (nthreads + 1)
    met = 0
    for i in range(count):
        function = peek(steps, 3 * i)
        operands = peek(steps, 3 * i + 1)
        flags = peek(steps, 3 * i + 2)
        if nthreads == 1:
            call_kernel(function, operands, 0, 1)
            continue
        done = i * stride
        if flags & 1 == 0:
            for turn in range(nthreads):
                owner = tid + turn
                if owner >= nthreads:
                    owner -= nthreads
                claimed = done + 8 * (owner + 1)
                while load_acquire(counters, claimed) < pieces:
                    piece = fetch_add(counters, claimed, 1)
                    if piece < pieces:
                        call_kernel(function, operands, owner * pieces + piece, total)
                        fetch_add(counters, done, 1)
        elif tid == 0:
            call_kernel(function, operands, 0, 1)
            fetch_add(counters, done, total)
        if flags & 2 != 0 or i == count - 1:
            for k in range(met, i + 1):
                spins = 0
                while load_acquire(counters, k * stride) < total:
                    pause()
                    spins += 1
                    if spins > 2000:
                        call_yield(peek(args, 3))
                        spins = 0
            met = i + 1
'''

# pool table: 0 generation, 1 job's function, 2 job's args, 3 job's threads, 6 stop, 7 sched_yield,
# 8 syscall, 9 SYS_futex, 10 spins before sleep, 11 sched_getcpu, 12 CPU that sleepers keep off,
# 13 sched_getaffinity, 14 sched_setaffinity, 15 jitcl_part, 16 generation that may be joined (0:
# none), 24 threads inside, 32 sleepers, 40 a set of CPUs, 56 that of who made the pool, 72 and on:
# threads' numbers, from thread 1
_POOL = '''
from jitcl.devices.cpu.native import *

def jitcl_worker(args, tid, nthreads):
    """A pool thread's life: wait for a new generation, join its job unless it is over already."""
    seen = 0
    while True:
        spins = 0
        while load_acquire(args, 0) == seen:
            pause()
            spins += 1
            if spins > peek(args, 10):
                fetch_add(args, 32, 1)
                if load_acquire(args, 0) == seen:
                    futex(peek(args, 8), peek(args, 9), args, 0, 128, seen)
                fetch_add(args, 32, -1)
                spins = 0
        seen = load_acquire(args, 0)
        if peek(args, 6) != 0:
            return
        fetch_add(args, 24, 1)
        if load_acquire(args, 16) == seen:
            call_kernel(peek(args, 1), peek(args, 2), tid, peek(args, 3))
        fetch_add(args, 24, -1)

def jitcl_part(args, cpu, nthreads):
    """Sleepers wake on any CPU but the caller's, of the caller's set or, where that is too small,
    of the set that the pool was made with; where both are, they wake where they may now.

    Linux may wake a thread on the CPU that the caller keeps busy, though another is idle, and leave
    it there for milliseconds (seen: Linux 6, 2 cores, once in four pauses).
    """
    poke(args, 12, -1)
    word, bit = cpu >> 6, 1 << (cpu & 63)
    if cpu < 0 or cpu >= 1024:
        return
    cpus = args + 8 * 40
    failed = call_system(peek(args, 13), 0, 128, cpus)
    for attempt in range(2):
        if failed != 0 or attempt == 1:
            cpus = args + 8 * 56
        before = peek(cpus, word)
        poke(cpus, word, before & ~bit)
        others = 0
        for k in range(16):
            left = peek(cpus, k)
            while left != 0:
                left &= left - 1
                others += 1
        if others >= nthreads - 1:
            for k in range(1, nthreads):
                call_system(peek(args, 14), peek(args, 71 + k), 128, cpus)
            poke(args, 12, cpu)
        poke(cpus, word, before)
        if others >= nthreads - 1:
            return

def jitcl_launch(args, tid, nthreads):
    """The caller's side: clear the job's counters, open it, wake sleepers, take part as thread 0,
    close, wait for who is inside."""
    if peek(args, 6) == 0:
        job = peek(args, 2)
        for i in range(peek(job, 1) * (nthreads + 1)):
            poke(peek(job, 2), 8 * i, 0)
    generation = load_acquire(args, 0) + 1
    fetch_add(args, 16, generation)
    fetch_add(args, 0, 1)
    if load_acquire(args, 32) > 0:
        cpu = call_system(peek(args, 11), 0, 0, 0)
        if cpu != peek(args, 12):
            call_kernel(peek(args, 15), args, cpu, nthreads)
        futex(peek(args, 8), peek(args, 9), args, 0, 129, 2147483647)
    if peek(args, 6) != 0:
        return
    call_kernel(peek(args, 1), peek(args, 2), 0, nthreads)
    fetch_add(args, 16, -generation)
    spins = 0
    while load_acquire(args, 24) > 0:
        pause()
        spins += 1
        if spins > 2000:
            call_yield(peek(args, 7))
            spins = 0
'''
_COPY = '''
from jitcl.devices.cpu.native import *

def jitcl_copy(args, tid, nthreads):
    """args: address of memmove, to, from, bytes."""
    call_system(peek(args, 0), peek(args, 1), peek(args, 2), peek(args, 3))
'''
RUNTIME = tuple(
    KernelSource(entry=entry, body=text, language="numba")
    for entry, text in (("jitcl_steps", _STEPS), ("jitcl_worker", _POOL), ("jitcl_part", _POOL),
                        ("jitcl_launch", _POOL), ("jitcl_copy", _COPY))
)
_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98, "i686": 240}
_SPINS = 3000  # 50 to 100 microseconds awake between runs
_AWAKE = 40_000  # nanoseconds after a run in which its threads are still awake, or nearly
_PIECES = 2  # each thread's share of a step: the second half may be taken by whoever is idle
_NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_ALONE = (ctypes.c_int64(0), ctypes.c_int64(1))     # tid and nthreads; a Python int takes 0.1 us


def _address(name: str) -> int:
    windows = sys.platform == "win32"
    library = getattr(ctypes, "WinDLL")("kernel32") if windows else ctypes.CDLL(None)  # noqa: B009
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _yield_address() -> int:
    """Gives the core to another thread: without this a busy neighbour costs whole time slices."""
    return _address("SwitchToThread" if sys.platform == "win32" else "sched_yield")


_YIELD = _yield_address()


def _aligned(count: int) -> np.ndarray:
    """`count` int64 zeros on a cache line boundary."""
    raw = np.zeros(count + 8, np.int64)
    skip = (-raw.ctypes.data % 64) // 8
    return raw[skip : skip + count]


class Job:
    """A table of steps with what the native loop wants beside it, made once: a run of a small model
    takes less time than making these arrays. One run of a job at a time. short: worth several
    threads only while they are awake.
    """

    def __init__(self, steps: np.ndarray, short: bool, *kept: Any) -> None:
        self.steps, self.kept = steps, kept             # alive: what follows are addresses
        self.short = short
        self._alone = np.array((steps.ctypes.data, len(steps), 0, _YIELD, 1), np.int64)
        self.counters = self._shared = np.empty(0, np.int64)
        self._nthreads = 0
        self.alone = (ctypes.c_int64(self._alone.ctypes.data), *_ALONE)     # for one thread
        self._shared_address = 0

    def shared(self, nthreads: int) -> int:
        """Arguments for several threads, with counters that are to be cleared."""
        if self._nthreads != nthreads:
            self.counters = _aligned(8 * len(self.steps) * (nthreads + 1))
            self._shared = self._alone.copy()
            self._shared[2], self._shared[4] = self.counters.ctypes.data, _PIECES
            self._shared_address, self._nthreads = self._shared.ctypes.data, nthreads
        return self._shared_address


class _FutexPool:
    """nthreads - 1 threads that never return from native code until they are stopped."""

    def __init__(self, kernels: LoadedKernels, nthreads: int) -> None:
        self.kernels, self.nthreads = kernels, nthreads
        self.table = _aligned(72 + nthreads)
        self.fields = self.table.data                 # a third of the time of writing to an array
        self.table[1], self.table[3] = kernels["jitcl_steps"], nthreads
        self.table[7:11] = _YIELD, _address("syscall"), _FUTEX[platform.machine()], _SPINS
        self.table[11], self.table[12] = _address("sched_getcpu"), -1
        self.table[13:16] = (_address("sched_getaffinity"), _address("sched_setaffinity"),
                             kernels["jitcl_part"])
        mine = os.sched_getaffinity(0)
        cpus = [cpu in mine for cpu in range(1024)]
        self.table[56:72] = np.packbits(cpus, bitorder="little").view(np.int64)
        self.launch = _NATIVE(kernels["jitcl_launch"])
        worker = _NATIVE(kernels["jitcl_worker"])
        self.threads = [
            threading.Thread(
                target=worker, args=(self.table.ctypes.data, tid, nthreads), daemon=True,
                name=f"jitcl-{tid}")
            for tid in range(1, nthreads)
        ]
        self._all = tuple(map(ctypes.c_int64, (self.table.ctypes.data, 0, nthreads)))
        for tid, thread in enumerate(self.threads, 1):
            thread.start()
            self.table[71 + tid] = thread.native_id or 0

    def run(self, job: Job) -> None:
        self.fields[2] = job.shared(self.nthreads)
        self.launch(*self._all)

    def stop(self) -> None:
        self.table[6] = 1
        self.launch(*self._all)
        for thread in self.threads:
            thread.join()


class _SemaphorePool:
    """The same where there is no futex: threads wait in Python."""

    def __init__(self, kernels: LoadedKernels, nthreads: int) -> None:
        self.nthreads = nthreads
        self.steps = _NATIVE(kernels["jitcl_steps"])
        self.args: int | None = None
        self.ready = [threading.Semaphore(0) for _ in range(nthreads)]
        self.finished = threading.Semaphore(0)
        self.threads = [
            threading.Thread(target=self._live, args=(tid,), daemon=True, name=f"jitcl-{tid}")
            for tid in range(1, nthreads)
        ]
        for thread in self.threads:
            thread.start()

    def _live(self, tid: int) -> None:
        while True:
            self.ready[tid].acquire()
            if self.args is None:
                return
            self.steps(self.args, tid, self.nthreads)
            self.finished.release()

    def run(self, job: Job) -> None:
        self.args = job.shared(self.nthreads)
        job.counters.fill(0)
        for semaphore in self.ready[1:]:
            semaphore.release()
        self.steps(self.args, 0, self.nthreads)
        for _ in self.threads:
            self.finished.acquire()

    def stop(self) -> None:
        self.args = None
        for semaphore in self.ready[1:]:
            semaphore.release()
        for thread in self.threads:
            thread.join()


class Executor:
    """The process's pools, one for each number of threads, and the native plan loop. One plan at a
    time gets a pool; another that runs meanwhile from another Python thread runs on its own thread
    alone, with equal results."""

    def __init__(self, cache: Cache | None, target: Target) -> None:
        self.kernels = load_kernels(cached_kernels(RUNTIME, cache, target))
        _keep_forever(self.kernels)
        self._steps = _NATIVE(self.kernels["jitcl_steps"])
        self._lock = forking.lock()
        self._pools: dict[int, _FutexPool | _SemaphorePool] = {}
        self._ended = 0                                     # when the last run did, in ns
        _executors.append(self)

    def run(self, job: Job, nthreads: int) -> None:
        """Returns when all steps have run."""
        if nthreads > 1 and self._lock.acquire(blocking=False):
            try:
                if not job.short or self.awake:
                    self._run_parallel(job, nthreads)
                else:
                    self._steps(*job.alone)
                self._ended = time.perf_counter_ns()
            finally:
                self._lock.release()
            return
        self._steps(*job.alone)

    @property
    def awake(self) -> bool:
        """Whether the pool's threads spin yet after the last run."""
        return time.perf_counter_ns() - self._ended < _AWAKE

    def call(self, job: Job, nthreads: int) -> Callable[[], None]:
        """`run` of this job on so many threads, with the least between the call and the first step.
        """
        if nthreads > 1:
            return partial(self.run, job, nthreads)
        steps = self._steps
        return lambda: steps(*job.alone)                    # of the job, so that it stays alive

    def _run_parallel(self, job: Job, nthreads: int) -> None:
        if nthreads not in self._pools:
            self._pools[nthreads] = _make_pool(self.kernels, nthreads)
        self._pools[nthreads].run(job)

    def stop(self) -> None:
        """Ends the pools' threads; the next run starts new ones."""
        while self._pools:
            self._pools.popitem()[1].stop()

    def end(self) -> None:
        """Ends the pool's threads for good, when no run uses them: what still runs afterwards runs
        on its own thread alone.
        """
        if self._lock.acquire(timeout=forking.END_SECONDS):
            self.stop()

    def forget(self) -> None:
        """In a forked child the threads do not exist."""
        self._pools.clear()


def _make_pool(kernels: LoadedKernels, nthreads: int) -> _FutexPool | _SemaphorePool:
    before = threading.stack_size()
    try:
        threading.stack_size(16 << 20)  # kernels keep tiles on their stack
        if sys.platform == "linux" and platform.machine() in _FUTEX:
            return _FutexPool(kernels, nthreads)
        return _SemaphorePool(kernels, nthreads)
    finally:
        threading.stack_size(before)


_executors: list[Executor] = []
_immortal: list[Any] = []


def _keep_forever(kernels: LoadedKernels) -> None:
    """Pool threads may sit in this code while the interpreter tears modules down: never unmap."""
    _immortal.append(kernels)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernels))


def _forget_all() -> None:
    for executor in _executors:
        executor.forget()


def _end_all() -> None:
    for executor in _executors:
        executor.end()


forking.in_child(_forget_all)
forking.at_end(_end_all)
