"""PoCL with LLVM 14 on a CPU that is newer than its compiler: name a CPU that both know.

PoCL 3.0 (the one on pip) asks LLVM for the host's name. A CPU from after 2022 is "generic" to
LLVM 14, which its front end then refuses: no kernel builds ("unknown target CPU 'generic'", pocl
issue 1049, for which people interpose LLVM's function with LD_PRELOAD). An AMD CPU with AVX-512
that LLVM 14 takes for its AVX2 ancestor (Zen 4: "znver3") fares little better: the built-in
library is compiled for skylake-avx512, can't be inlined, and 16-wide arithmetic aborts the
process. PoCL has no option for the name. It is a short heap string that its device record points
to, so `name_cpu` overwrites it in place, after checking all that can be checked: the version,
that exactly one pointer of the record leads to exactly that string, and that the new name fits.

Without AVX-512 an AMD CPU's own name ("znver3") keeps the library from being inlined as well:
vload8, vstore8, fma() and all others are calls, around which no register of a loop lasts.

Measured on Zen 3: a register tile of 12 vectors 94 instead of 8 GFLOP/s. On Zen 5: exp() 0.3
instead of 2.4 ns an element, fma() as fast as a*b+c instead of 8 times slower (4 on an Emerald
Rapids, "icelake-client" to LLVM 14).
"""

from __future__ import annotations

import ctypes
import logging
import re
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any

from jitcl import config
from jitcl.target.quirks import version_key

RECORD_BYTES = 2048  # of the device record, enough for every 3.x
LIBRARY_CPUS = (  # what PoCL's built-in libraries are compiled for, best first
    ("skylake-avx512", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("haswell", {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"}),
    ("x86-64-v2", {"sse4_2", "popcnt"}),
)
TUNED_OTHERWISE = ("znver", "bdver4")   # AVX2, but LLVM inlines nothing made for haswell into it
# Ice Lake's client has no CLWB, which the library's CPU has: LLVM inlines nothing into it. LLVM 14
# calls newer Intel servers so.
INLINES_AVX512 = re.compile(
    "skylake-avx512|cascadelake|cooperlake|icelake-server|sapphirerapids|tigerlake")

log = logging.getLogger("jitcl.opencl")


@cache
def host_features() -> frozenset[str]:
    """The CPU's feature flags as Linux names them; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.M)
    return frozenset(found[1].split()) if found else frozenset()


def compiler_cpu(device: Any) -> str:
    """The CPU that PoCL's compiler was told to generate code for when the device was set up; ''
    where that is unknown, as it is of every other driver: only PoCL's device version names one.
    """
    found = re.search(r"HSTR: \S*?-(?:gnu|musl)\w*-(\S+)", device.version)
    return found[1] if found else ""


def can_be_named(device: Any) -> bool:
    """Whether `name_cpu` knows this driver's device record: that of PoCL before 3.2 on Linux."""
    return (bool(compiler_cpu(device)) and sys.platform.startswith("linux")
            and (3,) <= version_key(device.driver_version) < (3, 2))


def name_cpu(device: Any) -> str:
    """Make PoCL's compiler and built-in library agree on a CPU; returns the CPU now compiled for,
    '' for a device of another driver. JITCL_POCL_CPU names one that is taken in any case.

    Leaves a device alone that needs no help, that is not `can_be_named`, or whose record looks
    different.
    """
    current = compiler_cpu(device)
    if not can_be_named(device):
        return current
    asked = config.get("pocl_cpu")
    wanted = asked or wanted_cpu(current, host_features())
    if wanted == current or not wanted:
        return current
    if _overwrite(device.int_ptr, current, wanted):
        return wanted
    if asked:
        log.warning("JITCL_POCL_CPU: '%s' can't be set; PoCL compiles for '%s'", asked, current)
    return current


def wanted_cpu(current: str, features: frozenset[str]) -> str:
    """The CPU that code should be generated for: `current` unless that fails or disagrees with
    the library.
    """
    broken = current == "generic"
    tuned = current.startswith(TUNED_OTHERWISE)
    mismatched = "avx512f" in features and not INLINES_AVX512.search(current)
    if not broken and not mismatched and not tuned:
        return current
    for name, needed in LIBRARY_CPUS:
        if needed <= features:
            return name if broken or tuned or name == "skylake-avx512" else current
    return "x86-64" if broken else current


def _overwrite(record: int, old: str, new: str) -> bool:
    """Replace the heap string `old` that the record points to; False where that is not safe."""
    usable = _malloc_usable_size()
    if usable is None:
        return False
    with open("/proc/self/mem", "rb", buffering=0) as memory:

        def read(address: int, size: int) -> bytes:
            try:
                memory.seek(address)
                return memory.read(size)
            except (OSError, OverflowError, ValueError):
                return b""  # no such address: not a pointer

        pointers = {p for (p,) in struct.iter_unpack("<Q", read(record, RECORD_BYTES))}
        text = old.encode() + b"\0"
        places = [p for p in pointers if p > 4096 and read(p, len(text)) == text]
    if len(places) != 1 or usable(places[0]) <= len(new):
        log.debug("PoCL's CPU name not found where expected: %d candidates", len(places))
        return False
    ctypes.memmove(places[0], new.encode() + b"\0", len(new) + 1)
    log.info(
        "PoCL compiles for '%s' instead of '%s': its built-in library is made for it", new, old)
    return True


@cache
def _malloc_usable_size() -> Any:
    try:
        function = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return None
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return function
