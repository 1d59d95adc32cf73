"""What the host CPU is and what generated code may rely on: through llvmlite alone, no Numba."""

from __future__ import annotations

import functools
import hashlib
import os
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm

from jitcl import config
from jitcl.target import Target

_LANGUAGE = ("compiler", "convert", "elementary", "emit", "operations", "tiles", "vector", "vtypes")
#: CPU features that change which code we write (LLVM itself knows them all)
_RELEVANT = ("avx512f", "avx512vl", "avx2", "avx", "fma", "f16c", "sse4.1", "neon", "fp-armv8")


@functools.cache
def features() -> frozenset[str]:
    """Names of the host's CPU features as LLVM spells them."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _width() -> tuple[int, int]:
    """(f32 lanes of a vector register, how many registers)."""
    have = features()
    width, registers = (16, 32) if "avx512f" in have else (8, 16) if "avx2" in have else (4, 16)
    if "neon" in have:
        registers = 32
    width = config.get("cpu_width") or width
    return width, registers


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _cache() -> int:
    """Bytes of a core's second-level cache; 0 where the system does not say."""
    try:
        return max(0, os.sysconf("SC_LEVEL2_CACHE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 0


@functools.cache
def versions() -> str:
    """What object code depends on beside the kernel's text: compilers, and what operations mean.

    Read from files and package metadata; nothing is imported.
    """
    return f"numba {version('numba')} llvmlite {version('llvmlite')} operations {_operations()}"


@functools.cache
def _operations() -> str:
    """Digest of the modules that give a kernel's text its meaning."""
    digest = hashlib.sha256()
    for name in _LANGUAGE:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def probe_target() -> Target:
    """The host as a Target. The thread count is no part of it: kernels serve any number of threads.
    The host as a Target. The thread count is no part of it: kernels serve any number of threads."""
    have = features()
    width, registers = _width()
    memory = _memory()
    return Target(
        kind="cpu",
        name=llvm.get_host_cpu_name(),
        vendor=llvm.get_process_triple().split("-")[0],
        driver=versions(),
        device_type="cpu",
        compute_units=os.cpu_count() or 1,
        vector_width=width,
        max_vector_width=16,
        registers=registers,
        cache_bytes=_cache() or Target.cache_bytes,
        winograd=config.get("winograd"),
        global_memory=memory,
        max_allocation=memory,
        alignment=64,
        fp16_storage=True,
        fp16_arithmetic=False,
        fp64=True,
        bf16_storage=True,
        fast_fma="fma" in have or "neon" in have,
        isa=tuple(f for f in _RELEVANT if f in have),
    )
