"""How far two cores are from each other: the time that a cache line takes to the other and back.

Two virtual CPUs may lie on one chiplet or on two, and a host may move them while a program runs:
what one core wrote is then there at once, or late, and small models that several threads share take
up to twice as long (docs/measurements.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from jitcl import config

TURNS = 1000                    # there and back, of one measurement
TRIES = 40                      # the quickest counts: in others a thread was not running at all
QUICK = 5, 200                  # tries and turns that tell far from near, in 1 ms
NEAR = 2.5e-7                   # seconds: of one chiplet 0.07 to 0.14 us, of two 0.34 up
PATIENCE = 100_000              # spins, after which a thread gives up: the other one doesn't run
ENTRY = "jitcl_handover"
TEXT = '''
from jitcl.devices.cpu.native import *

def jitcl_handover(args, tid, nthreads):
    """args: 0 whose turn it is, counted over all turns; 8 threads that are ready; 16 turns."""
    fetch_add(args, 8, 1)
    spins = 0
    while load_acquire(args, 8) < 2 and spins < nthreads:
        spins += 1
        pause()
    for turn in range(peek(args, 16)):
        spins = 0
        while load_acquire(args, 0) != 2 * turn + tid:
            spins += 1
            if spins > nthreads:
                return
        fetch_add(args, 0, 1)
'''
Native = Callable[[int, int, int], object]


def measure_handover(function: Native, tries: int = TRIES, turns: int = TURNS) -> float:
    """Seconds for a cache line to another core and back; 0 where only one may be used, or the two
    threads never ran at the same time. function: the native code of TEXT."""
    if config.usable_cores() < 2:
        return 0.0
    return min(filter(None, (_try(function, turns) for _ in range(tries))), default=0.0)


def _try(function: Native, turns: int) -> float:
    """One measurement; 0 if a thread gave up."""
    table = np.zeros(32, np.int64)
    start = -table.ctypes.data % 64 // 8                    # a line of its own for each counter
    fields = table[start:start + 24]
    fields[16] = turns
    other = threading.Thread(target=function, args=(fields.ctypes.data, 1, PATIENCE), daemon=True)
    other.start()
    begin = time.perf_counter()
    while fields[8] == 0 and time.perf_counter() - begin < 0.01:
        pass
    begin = time.perf_counter()
    function(fields.ctypes.data, 0, PATIENCE)
    took = time.perf_counter() - begin
    other.join()
    return took / turns if fields[0] == 2 * turns else 0.0
