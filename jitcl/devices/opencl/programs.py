"""Build kernels into OpenCL programs, and keep the programs' binaries in the cache.

Kernels are built in batches, since a program costs 35 ms more than its kernels on PoCL, but are
found one by one:

    cache "opencl-kernel" / key of one kernel  ->  {"program": digest}
    cache "opencl-program" / digest            ->  SHA-256, the driver's binary of several kernels

So two models, or two input shapes, share every kernel whose text they share. A binary that the
driver refuses (after an update) is dropped: its kernels are built from source and the entries
written anew. A damaged one must never reach the driver: PoCL 3.0 and Arm's drivers die in
clCreateProgramWithBinary (a truncated file is enough).

Threads don't help: PoCL and Intel's runtime hold a global lock while they compile (measured).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyopencl as cl

from jitcl.codegen.plan import KernelSource
from jitcl.devices.opencl.errors import build_error
from jitcl.errors import BuildError
from jitcl.target.target import Target

KERNEL_KIND, PROGRAM_KIND = "opencl-kernel", "opencl-program"
SHARED_MACRO = re.compile(r"^\s*#\s*define\s+(?!JITCL_)", re.M)

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what is being done

log = logging.getLogger("jitcl.opencl")


class Cache(Protocol):
    """What this needs of a cache: runtime.cache.DeviceCache has it."""

    def get(self, kind: str, key: str) -> bytes | None: ...

    def put(self, kind: str, key: str, data: bytes) -> None: ...


@dataclass
class Counters:
    """What a device did in this process. A warm start leaves `programs_built_from_source` at 0."""

    programs_built_from_source: int = 0
    programs_loaded_from_binary: int = 0
    kernels_built: int = 0
    kernels_loaded: int = 0
    binaries_refused: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class ProgramStore:
    """The programs of one context, by kernel; safe to use from several threads."""

    def __init__(self, context: Any, device: Any, target: Target) -> None:
        self.context, self.device, self.target = context, device, target
        self.target_key = target.key
        self.options = (f"-cl-std={target.cl_std}", "-w")  # of every program
        self.counters = Counters()
        self._programs: dict[str, Any] = {}  # kernel key -> cl program that holds it
        self._lock = threading.Lock()

    def key(self, source: KernelSource) -> str:
        """Digest of what a kernel is built from: text, options, device and driver."""
        parts = (self.target_key, source.entry, source.body, *self.options, *source.options)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    def programs(
        self,
        sources: Iterable[KernelSource],
        cache: Cache | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """A built program per kernel, by entry name. Raises BuildError if one won't compile."""
        with self._lock:
            cache = cache if self.target.cached_binaries else None
            wanted = {self.key(s): s for s in sources}
            if cache is not None:
                self._load({k: s for k, s in wanted.items() if k not in self._programs}, cache)
            missing = {k: s for k, s in wanted.items() if k not in self._programs}
            done = len(wanted) - len(missing)
            for batch in batches(missing, self.target.program_kernels):
                if progress is not None:
                    progress(done, len(wanted), "building kernels")
                self._build(batch, cache)
                done += len(batch)
            if progress is not None and missing:
                progress(done, len(wanted), "building kernels")
            return {s.entry: self._programs[k] for k, s in wanted.items()}

    def _load(self, wanted: dict[str, KernelSource], cache: Cache) -> None:
        """Load the binaries that hold the wanted kernels, each once."""
        holders: dict[str, list[str]] = {}
        for key in wanted:
            digest = _program_of(cache.get(KERNEL_KIND, key))
            if digest:
                holders.setdefault(digest, []).append(key)
        for digest, keys in holders.items():
            binary = opened(cache.get(PROGRAM_KIND, digest))
            program = self._from_binary(binary) if binary else None
            if program is None:
                continue
            names = set(program.get_info(cl.program_info.KERNEL_NAMES).split(";"))
            held = [k for k in keys if wanted[k].entry in names]
            self._programs.update((k, program) for k in held)
            self.counters.programs_loaded_from_binary += 1
            self.counters.kernels_loaded += len(held)

    def _from_binary(self, binary: bytes) -> Any:
        """The built program, or None where the driver refuses the binary."""
        try:
            program = cl._cl._Program(self.context, [self.device], [binary])
            program._build(b"", [self.device])
        except (cl.Error, RuntimeError) as error:
            log.warning("the driver refuses a cached program (%s); building it from source", error)
            self.counters.binaries_refused += 1
            return None
        return program

    def _build(self, batch: dict[str, KernelSource], cache: Cache | None) -> None:
        """Build a batch as one program; where that fails, each kernel by itself, to name the one
        at fault.
        """
        try:
            program = self._from_source(list(batch.values()))
        except BuildError:
            if len(batch) == 1:
                raise
            for key, source in batch.items():
                self._build({key: source}, cache)
            return
        self.counters.programs_built_from_source += 1
        self.counters.kernels_built += len(batch)
        self._programs.update((k, program) for k in batch)
        if cache is not None:
            self._keep(batch, program, cache)

    def _from_source(self, sources: list[KernelSource]) -> Any:
        text = "\n".join(s.body for s in sources)
        options = " ".join((*self.options, *sources[0].options)).encode()
        program = cl._cl._Program(self.context, text)  # past pyopencl's own cache and its warnings
        try:
            program._build(options, [self.device])
        except (cl.Error, RuntimeError) as error:
            said = program.get_build_info(self.device, cl.program_build_info.LOG) or error
            raise build_error(sources[0].entry, text, str(said), self.device.name) from error
        return program

    def _keep(self, batch: dict[str, KernelSource], program: Any, cache: Cache) -> None:
        """Store the binary, if the driver gives one, and where each kernel is found."""
        try:
            binary = program.get_info(cl.program_info.BINARIES)[0]
        except cl.Error as error:
            log.debug("the driver gives no binary: %s", error)
            return
        if not binary:
            return
        digest = hashlib.sha256("\0".join(batch).encode()).hexdigest()[:40]
        cache.put(PROGRAM_KIND, digest, sealed(bytes(binary)))
        for key in batch:
            cache.put(KERNEL_KIND, key, json.dumps({"program": digest}).encode())


def sealed(binary: bytes) -> bytes:
    """A binary with its digest before it."""
    return hashlib.sha256(binary).digest() + binary


def opened(entry: bytes | None) -> bytes:
    """The binary of a sealed entry; b'' for a missing or damaged one."""
    if not entry:
        return b""
    digest, binary = bytes(entry[:32]), bytes(entry[32:])
    return binary if hashlib.sha256(binary).digest() == digest else b""


def _program_of(entry: bytes | None) -> str:
    """The digest that a kernel's cache entry names; '' for a missing or strange one."""
    try:
        digest = json.loads(entry or b"{}")["program"]
    except (ValueError, KeyError, TypeError):
        return ""
    return digest if isinstance(digest, str) and re.fullmatch("[0-9a-f]{40}", digest) else ""


def batches(sources: dict[str, KernelSource], size: int) -> list[dict[str, KernelSource]]:
    """Groups of kernels that may be one program: equal options, no macro of the one visible to
    the next.

    Macros named JITCL_... are guarded by #ifndef and mean the same wherever they are defined. Any
    other `#define` means that the kernel is built alone.
    """
    groups: dict[tuple[str, ...], list[dict[str, KernelSource]]] = {}
    alone: list[dict[str, KernelSource]] = []
    for key, source in sources.items():
        if SHARED_MACRO.search(source.body):
            alone.append({key: source})
            continue
        filled = groups.setdefault(source.options, [])
        if not filled or len(filled[-1]) >= size:
            filled.append({})
        filled[-1][key] = source
    return [b for g in groups.values() for b in g] + alone
