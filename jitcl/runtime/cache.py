"""The kernel cache: one directory a device, entries found by what they were made from.

    <root>/pocl-3.0--amd-epyc--<target.key>/<kind>/<digest>.jitcl

A `Key` is a set of named parts (source, options, code version ...); its digest names the file, and
its parts are kept in the file's header, so that `why` can say which part missed. The header says,
too, what an entry uses of others (a plan its weights and kernels): nothing goes before its users.
Damaged or foreign files are noticed when read, counted, dropped and built anew. A directory that
cannot be written costs one warning; the process then goes on with what it keeps in memory.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitcl import config, forking, ownership
from jitcl.devices.faults import slug
from jitcl.errors import CacheError
from jitcl.runtime import digests, entry, locks, pruning
from jitcl.runtime.arguments import folder_of
from jitcl.runtime.entry import Buffer, DamagedEntry, Entry
from jitcl.target import Target

SUFFIX = ".jitcl"
KEEP = 0.8                   # of the bound, after an eviction
STALE_S = 3600.0             # a temporary or lock file older than this belongs to nobody
IN_MEMORY = 256 << 20        # bytes kept for the process where the directory cannot be written
LONG_PART = 200              # characters above which a part is stored as its digest

log = logging.getLogger("jitcl.cache")


@dataclass(frozen=True, eq=False)
class Key:
    """What an entry was made from: named parts, all text.

    `subject` says what the entry is for ("model yolox_nano", "kernel conv_3x3"): `why` compares a
    missing key with entries of the same subject. It is no part of the digest.
    """

    parts: Mapping[str, str]
    subject: str = ""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        for name, value in self.parts.items():
            if not isinstance(value, str):
                raise CacheError(
                    f"part '{name}' of a cache key is {type(value).__name__}, wanted text")
        canonical = json.dumps(sorted(self.parts.items()), separators=(",", ":"))
        object.__setattr__(self, "digest", hashlib.sha256(canonical.encode()).hexdigest()[:40])

    def shown(self) -> dict[str, str]:
        """The parts as stored in the entry: long ones by their digest."""
        return {name: _shown(value) for name, value in sorted(self.parts.items())}


def _shown(value: str) -> str:
    if len(value) <= LONG_PART:
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]} ({len(value)} characters)"


@dataclass
class Stats:
    """Counters of this process. `builds` is what a warm start must leave at 0."""

    hits: int = 0
    misses: int = 0
    builds: int = 0          # times `building` let its caller build
    writes: int = 0
    corrupt: int = 0         # damaged or foreign entries noticed and dropped
    evicted: int = 0
    failed_writes: int = 0   # entries that went to memory: directory read-only, disk full
    _lock: threading.Lock = field(default_factory=forking.lock, repr=False, compare=False)

    def add(self, name: str, by: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + by)

    def as_dict(self) -> dict[str, int]:
        return {n: v for n, v in vars(self).items() if not n.startswith("_")}


@dataclass(frozen=True)
class Why:
    """The answer of `why`: a hit, or the nearest entry and the parts that differ from it; or that
    weights of the entry are gone.
    """

    kind: str
    subject: str
    hit: bool
    nearest: Entry | None = None
    differs: tuple[tuple[str, str, str], ...] = ()   # (part, wanted now, stored then)
    gone: int = 0

    def __str__(self) -> str:
        name = f"{self.kind} of {self.subject or '(no subject)'}"
        if self.hit:
            return f"{name}: in the cache"
        if self.gone:
            return f"{name}: in the cache, but {self.gone} of its weights are not; built anew"
        if self.nearest is None:
            return f"{name}: never built, or evicted; no entry has this subject"
        age = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.nearest.used))
        lines = [f"{name}: missed; the nearest entry, last used {age}, differs in"]
        for part, wanted, stored in self.differs:
            lines.append(f"  {part}\n    now    {wanted}\n    stored {stored}")
        return "\n".join(lines)


def device_directory(target: Target) -> str:
    """'pocl-3.0--amd-epyc-9v74--<target.key>': readable, and different for any two targets."""
    maker = target.vendor if target.kind == "opencl" and target.vendor else target.kind
    return f"{slug(f'{maker} {target.driver}', 'device')}--{slug(target.name)}--{target.key}"


class KernelCache:
    """The whole cache directory. `for_target` gives the part that one device uses.

    `limit`: bytes on disk over all devices (JITCL_CACHE_SIZE); 0 keeps everything in memory.
    `wait_s`: how long `building` waits for another process before it builds by itself.
    """

    def __init__(self, root: str | Path | None = None, limit: int | None = None,
                 wait_s: float = 120.0) -> None:
        self.root = ownership.cache_root() if root is None else ownership.usable(Path(root))
        self._key = ownership.key(self.root)
        limit = config.get("cache_size") if limit is None else limit
        self.limit = pruning.share_of_disk(self.root) if limit is None else limit
        self.wait_s = wait_s
        self.stats = Stats()
        self._memory: dict[Path, bytes] = {}
        self._estimate: int | None = None      # bytes on disk, as far as this process knows
        self._warned: set[str] = set()
        self._lock = forking.lock()

    def for_target(self, target: Target) -> DeviceCache:
        return DeviceCache(self, device_directory(target), target.key)

    # -- what people ask -----------------------------------------------------------------------

    def devices(self) -> tuple[str, ...]:
        """Names of the device directories."""
        try:
            return tuple(sorted(d.name for d in os.scandir(self.root)
                                if d.is_dir(follow_symlinks=False) and "--" in d.name))
        except OSError:
            return ()

    def ls(self, device: str | None = None) -> list[Entry]:
        """Entries with subject and parts, most recently used first."""
        return [e.with_head() for e in sorted(self._files(device), key=lambda e: -e.used)]

    def size(self, device: str | None = None) -> int:
        """Bytes on disk."""
        return sum(e.nbytes for e in self._files(device))

    def clear(self, device: str | None = None) -> int:
        """Delete the entries of one device (a name `devices` gave) or all; returns how many.

        Only files that this cache wrote are touched. Raises CacheError for an unknown device.
        """
        if device is not None and device not in self.devices():
            raise CacheError(f"no device '{device}' in the cache {self.root}\n"
                             f"  There are: {', '.join(self.devices()) or 'none'}")
        entries = list(self._files(device))
        removed = sum(_unlink(e.path) for e in entries)
        for name in self.devices() if device is None else (device,):
            self._tidy(name, older_than_s=0.0)
        if device is None:
            digests.forget(self.root)
        with self._lock:
            self._memory.clear()
            self._estimate = None
        return removed

    # -- the files -----------------------------------------------------------------------------

    def _files(self, device: str | None = None) -> Iterator[Entry]:
        for name in self.devices() if device is None else (device,):
            for file in _scan(self.root / name):
                if not file.name.endswith(SUFFIX):
                    continue
                try:
                    stat = file.stat()
                except OSError:                # gone since the scan
                    continue
                path = Path(file.path)
                # a use in the future was noted by a clock that went wrong: it says nothing
                used = stat.st_mtime if stat.st_mtime < time.time() + STALE_S else 0.0
                yield Entry(name, path.parent.name, path.stem, stat.st_size, used, path)

    def _tidy(self, device: str, older_than_s: float) -> None:
        """Remove leftovers of processes that died, and directories that became empty."""
        for file in list(_scan(self.root / device)):
            if file.name.endswith((".tmp", ".lock")):
                try:
                    old = time.time() - file.stat().st_mtime >= older_than_s
                except OSError:
                    continue
                if old:
                    _unlink(Path(file.path))
        for directory in (*(self.root / device).glob("*"), self.root / device):
            with suppress(OSError):            # not empty: still in use
                directory.rmdir()

    def _wrote(self, nbytes: int) -> None:
        """Count a new file; evict what was used least recently if the bound is exceeded."""
        with self._lock:
            known = self._estimate
            self._estimate = None if known is None else known + nbytes
            if self._estimate is not None and self._estimate <= self.limit:
                return
            total = self.size()
            if total > self.limit:
                files = [e.with_head() for e in self._files()]
                for e in pruning.doomed(files, int(self.limit * KEEP)):
                    self.stats.add("evicted", _unlink(e.path))
                    total -= e.nbytes
                for device in self.devices():
                    self._tidy(device, STALE_S)
            self._estimate = total

    def key_of(self, path: Path) -> bytes:
        """What an entry must have been made with: root's may have been made with root's key."""
        return self._key if not self._key or ownership.is_mine(path) else b""

    def _keep_in_memory(self, path: Path, chunks: Iterable[Buffer]) -> None:
        data = b"".join(chunks)
        with self._lock:
            self._memory.pop(path, None)
            self._memory[path] = data
            total = sum(map(len, self._memory.values()))
            while total > IN_MEMORY:           # the oldest first
                total -= len(self._memory.pop(next(iter(self._memory))))

    def _warn_once(self, topic: str, text: str) -> None:
        level = logging.DEBUG if topic in self._warned else logging.WARNING
        self._warned.add(topic)
        log.log(level, text)

    def _warn_refused(self, doing: str, error: OSError) -> None:
        """The system refuses to "read" or "write to" the cache; what permissions forbid, once."""
        topic = "permission" if isinstance(error, PermissionError) else doing
        self._warn_once(topic, f"cannot {doing} the kernel cache {self.root}: "
                        f"{error.strerror or error}. Kernels are kept for this process only. "
                        "JITCL_CACHE_DIR names another directory.")


@dataclass(frozen=True)
class DeviceCache:
    """The entries of one device. All methods may be called from many threads and processes.

    `kind` is a short name such as "plan" or "kernel"; a key is a `Key` or a digest as plain text.
    """

    cache: KernelCache
    name: str                # of the directory
    device: str              # Target.key, checked in every entry

    @property
    def directory(self) -> Path:
        return self.cache.root / self.name

    @property
    def stats(self) -> Stats:
        return self.cache.stats

    def get(self, kind: str, key: Key | str) -> bytes | None:
        """The payload, or None where there is no intact entry."""
        found = self._find(kind, key, mapped=False, first=True)
        return None if found is None else bytes(found)

    def get_mmap(self, kind: str, key: Key | str) -> memoryview | None:
        """Like `get`, but mapped read-only: the pages stay in the system's file cache.

        Payloads over 1 MiB begin on a page. The view stays valid if the entry is evicted.
        """
        return self._find(kind, key, mapped=True, first=True)

    def put_mmap(self, kind: str, key: Key | str, data: Buffer) -> memoryview | None:
        """`put`, and what `get_mmap` gives then: what was written just now is not summed again."""
        self.put(kind, key, data)
        return self._find(kind, key, mapped=True, first=True, whole=False)

    def has_room(self, nbytes: int) -> bool:
        """Whether entries of so many bytes stay in the directory together."""
        return nbytes < self.cache.limit * KEEP

    def holds(self, nbytes: int) -> bool:
        """Whether they stay in the directory, or in this process's memory; tells where not."""
        if self.has_room(nbytes):
            return True
        held = nbytes <= IN_MEMORY
        where = "kept in memory" if held else "made anew by each process"
        self.cache._warn_once("large", f"an entry of {nbytes} bytes does not fit into a cache of "
                              f"{self.cache.limit}: {where}. JITCL_CACHE_SIZE sets the bound.")
        return held

    def touch(self, kind: str, key: Key | str) -> bool:
        """Note a use of what was read before; False where the entry is gone."""
        path = self._path(kind, key)
        try:
            os.utime(path, follow_symlinks=False)
        except OSError:
            return path in self.cache._memory or path.exists()      # read-only
        return True

    def put(self, kind: str, key: Key | str, data: Buffer | list[Buffer], *,
            uses: Sequence[str] = (), provides: Sequence[str] = ()) -> None:
        """Store a payload (a list is stored as one). Never raises for a directory that refuses.

        uses: what this one is worth less without: other entries, "kind/digest", and names that
        they provide.
        """
        path, cache = self._path(kind, key), self.cache
        chunks = [memoryview(c).cast("B") for c in (data if isinstance(data, list) else [data])]
        nbytes = sum(len(c) for c in chunks)
        if not self.has_room(nbytes):
            if self.holds(nbytes):
                cache._keep_in_memory(path, chunks)
            return
        parts = key.shown() if isinstance(key, Key) else {}
        head: dict[str, Any] = dict(self._identity(path), parts=parts, uses=list(uses))
        head.update(subject=key.subject if isinstance(key, Key) else "", provides=list(provides))
        try:
            self._make_directory(path)
            written = entry.write(path, head, chunks, cache._key)
        except OSError as error:
            cache.stats.add("failed_writes")
            cache._warn_refused("write to", error)
            cache._keep_in_memory(path, chunks)
            return
        cache.stats.add("writes")
        cache._wrote(written)

    @contextmanager
    def building(self, kind: str, key: Key | str) -> Iterator[memoryview | None]:
        """Let one of all processes and threads build an entry; the others wait and get its result.

            with cache.building("kernel", key) as found:
                if found is None:
                    found = build()
                    cache.put("kernel", key, found)

        A builder that dies frees the others at once; one that hangs holds them `wait_s` seconds,
        then they build too (the last to finish wins). Yields what `get_mmap` gives.
        """
        path = self._path(kind, key)
        lock = path.with_suffix(".lock")
        try:
            self._make_directory(path)
        except OSError:                        # `put` will tell; threads exclude each other
            lock = ownership.NOWHERE / self.name / kind / lock.name
        with locks.exclusive(lock, self.cache.wait_s):
            found = self._find(kind, key, mapped=True, first=False)
            if found is None:
                self.stats.add("builds")
            yield found

    def why(self, kind: str, key: Key) -> Why:
        """Which parts of the key differ from the nearest entry of its kind and subject.

        Entries of this device come first; in another device's, the device is a part that differs.
        """
        path = self._path(kind, key)
        if self._read(path, mapped=True) is not None:
            gone = self._gone(path)
            return Why(kind, key.subject, hit=not gone, gone=gone)
        wanted = {**key.shown(), "device": self.name}
        best: tuple[int, float, Why] | None = None
        for e in self.cache.ls():
            if e.kind != kind or e.subject != key.subject or e.damaged:
                continue
            stored = {**e.parts, "device": e.device}
            differs = tuple((n, wanted.get(n, "(not a part)"), stored.get(n, "(not a part)"))
                            for n in sorted(wanted.keys() | stored.keys())
                            if wanted.get(n) != stored.get(n))
            rank = (len(differs) + (1000 if e.device != self.name else 0), -e.used)
            if best is None or rank < best[:2]:
                best = (*rank, Why(kind, key.subject, False, e, differs))
        return Why(kind, key.subject, hit=False) if best is None else best[2]

    def _gone(self, path: Path) -> int:
        """How many of the entries that one uses are not there."""
        try:
            uses = entry.read_head(path).get("uses", ())
        except (OSError, DamagedEntry):         # it is in memory
            return 0
        paths = [self.directory / (name + SUFFIX) for name in uses if "/" in name]
        return sum(not p.exists() and p not in self.cache._memory for p in paths)

    def _path(self, kind: str, key: Key | str) -> Path:
        digest = key.digest if isinstance(key, Key) else key
        for what, text in (("kind", kind), ("key", digest)):
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", text):
                raise CacheError(f"cache {what} '{text[:40]}' is not a file name: "
                                 "wanted letters, digits, '_' and '-'")
        return self.directory / kind / (digest + SUFFIX)

    def _make_directory(self, path: Path) -> None:
        ownership.below(self.cache.root, self.name, path.parent.name)

    def _identity(self, path: Path) -> dict[str, str]:
        return {"device": self.device, "kind": path.parent.name, "key": path.stem}

    def _find(self, kind: str, key: Key | str, mapped: bool, first: bool, whole: bool = True
              ) -> memoryview | None:
        """`first` is False for the second look, under the lock: its miss was counted before."""
        path, cache = self._path(kind, key), self.cache
        found = cache._memory.get(path)
        view = self._read(path, mapped, whole) if found is None else memoryview(found)
        if view is not None:
            cache.stats.add("hits")
        elif first:
            cache.stats.add("misses")
        return view

    def _read(self, path: Path, mapped: bool, whole: bool = True) -> memoryview | None:
        cache = self.cache
        try:
            ownership.below(cache.root, self.name, path.parent.name, make=False)
            view = entry.read(path, mapped)
            payload = entry.check(view, self._identity(path), cache.key_of(path), whole)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedEntry as error:
            cache.stats.add("corrupt")
            cache._warn_once("damaged", f"dropped a damaged entry of the kernel cache, {path}: "
                             f"{error}. It will be built anew.")
            _unlink(path)
            return None
        except OSError as error:
            cache._warn_refused("read", error)
            return None
        with suppress(OSError):                # read-only, or evicted in between
            os.utime(path, follow_symlinks=False)           # the eviction's order
        return payload


def _scan(device: Path) -> Iterator[os.DirEntry[str]]:
    """All files in the kinds' directories of one device; nothing where there is none."""
    try:
        directories = sorted(d.path for d in os.scandir(device) if d.is_dir(follow_symlinks=False))
    except OSError:
        return
    for directory in directories:
        try:
            yield from (f for f in os.scandir(directory) if f.is_file(follow_symlinks=False))
        except OSError:
            continue


def _unlink(path: Path) -> int:
    """1 if the file was removed, 0 if it was gone or may not be removed."""
    try:
        path.unlink()
    except OSError:
        return 0
    return 1


def kernel_cache(root: str | Path | None = None) -> KernelCache:
    """The process's cache at a directory: one object, so that its counters count everything."""
    path = ownership.cache_root() if root is None else ownership.usable(folder_of(root))
    return _shared_cache(path, config.get("cache_size"))


@functools.cache
def _shared_cache(root: Path, limit: int | None) -> KernelCache:
    return KernelCache(root, limit)


@functools.cache
def code_version() -> str:
    """Digest of jitcl's own sources and templates: a changed compiler never reuses old kernels."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for s in ("py", "j2", "lark") for p in package.rglob(f"*.{s}")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("cli/"):
            digest.update(f"{name}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
