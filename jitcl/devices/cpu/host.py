"""What the host CPU is and what generated code may rely on: through llvmlite alone, no Numba."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from jitcl import config, forking
from jitcl.cores import usable_cores
from jitcl.devices.core_cache import second_level_cache
from jitcl.target import Target

_LANGUAGE = ("compiler", "convert", "elementary", "emit", "front_end", "kept", "minifloats",
             "native", "numba_parts", "operations", "packed_tile", "scheduling", "tiles", "vector",
             "vtypes")
#: CPU features that change which code we write (LLVM itself knows them all)
_RELEVANT = ("avx512f", "avx512vl", "avx512vnni", "avxvnni", "avx2", "avx", "fma", "f16c",
             "sse4.1", "neon", "fp-armv8", "dotprod", "i8mm", "fullfp16")
#: On x86, vectors of so few f32 lanes stand for a CPU without this feature of LLVM's, and without
#: those whose names begin so, which need it.
_WITHOUT = {8: "avx512f", 4: "avx"}
_NEED = {"avx512f": ("avx512", "avx10"), "avx": ("avx", "fma", "f16c", "xop", "vaes", "vpclmulqdq")}
#: What adds products of bytes, or of what becomes of them, by vectors of so many f32 lanes, and how
#: (`Target.byte_dot`); the first one counts.
_BYTE_DOTS = {16: {"avx512vnni": "bytes"}, 8: {"avxvnni": "bytes", "avx2": "pairs"},
              4: {"i8mm": "bytes", "dotprod": "signed"}}
#: CPUs, as LLVM names them, that start one FMA of 16 f32 lanes a cycle: Zen 4 takes it in two
#: halves, Intel's client cores join their two units of eight lanes for it. Of one with AVX512-FP16,
#: which none of them has, a hypervisor hides what it is: a Xeon passes for a Rocket Lake.
_ONE_WIDE_FMA = ("znver4", "cannonlake", "icelake-client", "tigerlake", "rocketlake")
#: What every aarch64 has: LLVM takes it from /proc/cpuinfo, which sandboxes and emulators make up.
_AARCH64 = frozenset({"neon", "fp-armv8"})
#: Features of aarch64 that LLVM does not report, by what Linux tells a program of them (getauxval):
#: AT_HWCAP and AT_HWCAP2 (asm/hwcap.h: FPHP and ASIMDHP, ASIMDDP; I8MM).
_AT_HWCAP, _AT_HWCAP2 = 16, 26
_AUXILIARY = (("fullfp16", _AT_HWCAP, 1 << 9 | 1 << 10), ("dotprod", _AT_HWCAP, 1 << 20),
              ("i8mm", _AT_HWCAP2, 1 << 13))
_absent: ContextVar[str] = ContextVar("absent", default="")
# a child that was forked while another thread asked LLVM for the CPU waited for ever
forking.held(llvm.ffi.lib._lock._lock)


@functools.cache
def _native() -> frozenset[str]:
    known = frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    return known | unreported()


@functools.cache
def unreported() -> frozenset[str]:
    """Features that the host has and LLVM may not know of: it is told when it makes code."""
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return frozenset()
    return _AARCH64 | {name for name, kind, bits in _AUXILIARY if _auxiliary(kind) & bits == bits}


def _auxiliary(kind: int) -> int:
    """An entry of the auxiliary vector; 0 where the system has none."""
    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError, TypeError):        # not Linux
        return 0
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(getauxval(kind))


def features(absent: str = "") -> frozenset[str]:
    """Names of the host's CPU features as LLVM spells them; without `absent` and what needs it."""
    absent = absent or _absent.get()
    return _native() if not absent else frozenset(
        name for name in _native() if not name.startswith(_NEED[absent]))


def absent() -> str:
    """What the block of `without` leaves out; "" outside of one."""
    return _absent.get()


@contextmanager
def without(absent: str) -> Iterator[None]:
    """Within the block, `features` leaves out `absent` ("": nothing) and what needs it."""
    token = _absent.set(absent)
    try:
        yield
    finally:
        _absent.reset(token)


def absent_feature(lanes: int) -> str:
    """The feature that code for vectors of so many f32 lanes does without; "" for none."""
    absent = _WITHOUT.get(lanes, "")
    return absent if lanes < _widest() and absent in _native() else ""


def _widest() -> int:
    have = _native()
    return 16 if "avx512f" in have else 8 if "avx2" in have else 4


def _width() -> tuple[int, int]:
    """(f32 lanes of a vector register, how many registers)."""
    width = config.get("cpu_width") or _widest()
    have = features(absent_feature(width))
    return width, 32 if "avx512f" in have or "neon" in have else 16


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


@functools.cache
def versions() -> str:
    """What object code depends on beside the kernel's text: compilers, and what operations mean.

    Read from files; Numba is not imported.
    """
    return f"numba {_numba()} llvmlite {llvmlite.__version__} operations {_operations()}"


def _numba() -> str:
    """The version of the Numba that builds, by its own module that tells it. A reader of packages'
    metadata comes with a parser of mails: 1.6 MB, and 30 ms of a start."""
    numba = PathFinder.find_spec("numba", [p for p in sys.path if p])
    assert numba is not None and numba.origin is not None, "it is installed with jitcl"
    said = runpy.run_path(str(Path(numba.origin).with_name("_version.py")))
    return str(said["get_versions"]()["version"])


@functools.cache
def _operations() -> str:
    """Digest of the modules that give a kernel's text its meaning."""
    digest = hashlib.sha256()
    for name in _LANGUAGE:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def soft_half() -> bool:
    """Whether the CPU cannot convert halves itself: x86 without F16C, where LLVM would call a
    library that no process has."""
    return llvm.get_process_triple().startswith(("x86", "i686")) and "f16c" not in features()


def probe_target() -> Target:
    """The host as a Target, with the cores that this process may use. The thread count is no part
    of it: kernels serve any number of threads.
    """
    width, registers = _width()
    have = features(absent_feature(width))
    name = llvm.get_host_cpu_name()
    memory = _memory()
    return Target(
        kind="cpu", name=name, vendor=llvm.get_process_triple().split("-")[0],
        driver=versions(), device_type="cpu", compute_units=usable_cores(), vector_width=width,
        max_vector_width=16, registers=registers,
        fmas=1 if width == 16 and name in _ONE_WIDE_FMA and "avx512fp16" not in have else 2,
        gated_weights=True,
        byte_dot=next((how for each, how in _BYTE_DOTS[width].items() if each in have), ""),
        cache_bytes=second_level_cache() or Target.cache_bytes, winograd=config.get("winograd"),
        global_memory=memory, max_allocation=memory, alignment=64, fp16_storage=True,
        fp16_arithmetic=False, fp64=True, bf16_storage=True, soft_half=soft_half(),
        multiply_add="fma" if "fma" in have or "neon" in have else "plain",
        isa=tuple(f for f in _RELEVANT if f in have))
