"""The programs of one context, and their binaries in the cache.

Kernels are built in batches where the driver is trusted, since a program costs 35 ms more than its
kernels on PoCL, but are found one by one:

    cache "opencl-kernel" / key of one kernel  ->  {"program": digest, "by": ..., "checked": ...}
    cache "opencl-program" / digest            ->  SHA-256, the driver's binary of several kernels

So two models, or two input shapes, share every kernel whose text they share. `by` says who showed
that the driver survives the kernel (devices/opencl/trust.py), `checked` that its results were
compared; `program` is "" where the driver's binaries are of no use: what was proven is then built
from source again. A binary that the driver refuses (after an update) is dropped: its kernels go
the way of new ones. A damaged one must never reach the driver: PoCL 3.0 and Arm's drivers die in
clCreateProgramWithBinary (a truncated file is enough).

Threads don't help: PoCL and Intel's runtime hold a global lock while they compile (measured).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyopencl as cl

from jitcl import forking
from jitcl.codegen.plan import KernelSource
from jitcl.devices.base import Cache
from jitcl.devices.opencl import trust
from jitcl.devices.opencl.building import (
    binary_of,
    from_binary,
    from_source,
    kernel_names,
    program_options,
)
from jitcl.target.target import Target

KERNEL_KIND, PROGRAM_KIND = "opencl-kernel", "opencl-program"
SPARE = 8                                   # programs kept that no loaded plan uses
SHARED_MACRO = re.compile(r"^\s*#\s*define\s+(?!JITCL_)", re.M)

Sources = Mapping[str, KernelSource]        # by key

log = logging.getLogger("jitcl.opencl")


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


@dataclass(frozen=True)
class Kept:
    """A kernel's entry in the cache."""

    program: str = ""           # digest of the binary that holds it, "" for none
    by: str = ""                # trust.acceptable
    checked: bool = False       # its results were compared with the interpreter's

    @classmethod
    def read(cls, entry: bytes | None) -> Kept:
        """The entry; an empty one for a missing or strange one."""
        try:
            row = json.loads(entry or b"{}")
            kept = cls(str(row["program"]), str(row["by"]), row["checked"] is True)
        except (ValueError, KeyError, TypeError):
            return cls()
        return kept if re.fullmatch("(?:[0-9a-f]{40})?", kept.program) else cls()

    def written(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class ProgramStore:
    """Programs by kernel. Its methods want `lock` to be held."""

    def __init__(self, context: Any, device: Any, target: Target) -> None:
        self.context, self.device, self.target = context, device, target
        self.target_key = target.key
        self.options = program_options(target)
        self.counters = Counters()
        self.lock = forking.rlock()
        self.checked: set[str] = set()      # kernels whose results were compared
        self._programs: dict[str, Any] = {}  # kernel key -> cl program that holds it
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()   # loaded plans: `programs` of each

    def key(self, source: KernelSource) -> str:
        """Digest of what a kernel is built from: text, options, device and driver."""
        parts = (self.target_key, source.entry, source.body, *self.options, *source.options)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    def __contains__(self, key: str) -> bool:
        return key in self._programs

    def __getitem__(self, key: str) -> Any:
        return self._programs[key]

    def enlist(self, user: Any) -> None:
        """A loaded plan, whose `programs` are in use as long as it lives."""
        with self.lock:
            self._users.add(user)

    def trim(self, keys: Sequence[str]) -> None:
        """Let go of programs that no loaded plan uses, and none that will (`keys`), but for those
        used last: of Intel's runtime a program takes 4 MB, and each new shape makes some.
        """
        for key in keys:
            self._programs[key] = self._programs.pop(key)       # at the end: used last
        used = {id(p) for user in self._users for p in user.programs.values()}
        used.update(id(self._programs[key]) for key in keys)
        spare = {id(p): None for p in reversed(self._programs.values()) if id(p) not in used}
        gone = set(list(spare)[SPARE:])
        self.drop([k for k, p in self._programs.items() if id(p) in gone], None)

    def drop(self, keys: Iterable[str], cache: Cache | None) -> None:
        """Forget kernels that turned out to be wrong."""
        for key in keys:
            self._programs.pop(key, None)
            self.checked.discard(key)
            if cache is not None and cache.get(KERNEL_KIND, key) is not None:
                cache.put(KERNEL_KIND, key, b"{}")

    # ---- from the cache

    def find(self, sources: Sources, cache: Cache | None, mode: str) -> list[str]:
        """Have those of the kernels whose binaries the cache holds, and that may be given to the
        driver here with this JITCL_ISOLATION. Returns those that a worker has proven and that
        have no binary: they can be built from source here.
        """
        holders: dict[str, list[str]] = {}
        proven = []
        for key in sources.keys() - self._programs.keys() if cache is not None else ():
            kept = Kept.read(cache.get(KERNEL_KIND, key))  # type: ignore[union-attr]
            if not trust.acceptable(kept.by, mode):
                continue
            if kept.checked:
                self.checked.add(key)
            if kept.program and self.target.cached_binaries:
                holders.setdefault(kept.program, []).append(key)
            elif kept.by == "worker" and not kept.program:
                proven.append(key)
        for digest, keys in holders.items():
            binary = opened(cache.get(PROGRAM_KIND, digest))  # type: ignore[union-attr]
            if binary:
                self.adopt({k: sources[k] for k in keys}, binary)
            self.checked.difference_update(set(keys) - self._programs.keys())
        return proven

    def adopt(self, sources: Sources, binary: bytes) -> bool:
        """Have kernels from a binary; False where the driver refuses it."""
        try:
            program = from_binary(self.context, self.device, binary)
        except (cl.Error, RuntimeError) as error:
            log.warning("the driver refuses a stored program (%s); it is built anew", error)
            self.counters.binaries_refused += 1
            return False
        names = kernel_names(program)
        held = [k for k, source in sources.items() if source.entry in names]
        self._programs.update((k, program) for k in held)
        self.counters.programs_loaded_from_binary += 1
        self.counters.kernels_loaded += len(held)
        return True

    # ---- from source

    def build(self, batch: Sources) -> None:
        """Build kernels as one program, in this process. Raises RefusedBuild."""
        program = from_source(self.context, self.device, list(batch.values()), self.options)
        self.counters.programs_built_from_source += 1
        self.counters.kernels_built += len(batch)
        self._programs.update((k, program) for k in batch)

    # ---- into the cache

    def keep(self, sources: Sources, cache: Cache | None, by: str,
             each: Callable[[], None] | None = None) -> None:
        """Remember kernels that were built from source in this process, with the binaries that
        the driver gives of their programs. `each` is called for each program: PoCL takes longer to
        give it than to build it.
        """
        if cache is None:
            return
        holders: dict[int, dict[str, str]] = {}
        for key, source in sources.items():
            holders.setdefault(id(self._programs[key]), {})[key] = source.entry
        for held in holders.values():
            # what a driver makes that is not known good, it gets back only after a worker did
            usable = self.target.cached_binaries and (self.target.trusted or by == "unproven")
            binary = binary_of(self._programs[next(iter(held))]) if usable else b""
            if binary or by == "worker":
                self.keep_binary(held, cache, by, binary)
            if each is not None:
                each()

    def keep_binary(self, keys: Mapping[str, str], cache: Cache | None, by: str, binary: bytes
                    ) -> None:
        """Remember kernels (key -> entry) with the binary that holds them, b"" for none."""
        if cache is None:
            return
        digest = hashlib.sha256("\0".join(keys).encode()).hexdigest()[:40] if binary else ""
        if binary:
            cache.put(PROGRAM_KIND, digest, sealed(binary), provides=list(keys.values()))
        for key, entry in keys.items():
            kept = Kept(digest, by, key in self.checked)
            cache.put(KERNEL_KIND, key, kept.written(), provides=[entry])


def sealed(binary: bytes) -> bytes:
    """A binary with its digest before it."""
    return hashlib.sha256(binary).digest() + binary


def opened(entry: bytes | None) -> bytes:
    """The binary of a sealed entry; b'' for a missing or damaged one."""
    if not entry:
        return b""
    digest, binary = bytes(entry[:32]), bytes(entry[32:])
    return binary if hashlib.sha256(binary).digest() == digest else b""


def batches(sources: Sources, size: int) -> list[dict[str, KernelSource]]:
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
