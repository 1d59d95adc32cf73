"""What failed on a device's driver, remembered: no kernel that crashed is ever tried again.

One small JSON file a device and driver, beside the kernel cache:

    <cache root>/faults/<driver>--<device>--<digest>.json
    {"version": 1, "epoch": 0, "good": ["barrier", "local", ...], "faults": [
    {"entry": "softmax_12_0f3a...", "stage": "build", "kind": "crash", ...},     one a line
    ...]}

Beside the kernel itself, kernels that share the features which failed are not tried: those are
blamed that stand in a kernel that failed and in none that was right (`good`). Processes write
under a lock, after reading what others wrote, and rename into place. Of a damaged file every line
that is whole is kept. Where nothing can be written, faults are kept for this process.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jitcl import forking, ownership
from jitcl.devices.fault_file import DamagedFile, Record, decode, encode, replace_file
from jitcl.devices.shortage import shortage
from jitcl.target import Target

if TYPE_CHECKING:
    import filelock

BINARIES = "program-binaries"       # entry of faults that concern every stored program
LOG_KEPT = 2000                     # characters of a driver's log, the last ones
SIGNATURE_KEPT = 300
LOGS_KEPT = 100                     # of the newest faults; older ones keep their signature
FAULTS_KEPT = 2000
LOCK_SECONDS = 10.0
# features that a variant can take out of a kernel; of others only the kernel is blamed
REMOVABLE = frozenset(("half", "half_cast", "half_storage", "local", "barrier", "image", "vec16",
                       "vec8", "vec4", "int4", "int8", "subgroup", "assembly",
                       "warpgroups"))
# kinds that say something of this kernel's size or of that moment, and nothing of its features
KERNEL_ONLY = frozenset(("resources", "lost"))
# kinds that a lack of disk, memory or files may look like
SYSTEMS_TOO = frozenset(("crash", "hang", "refused", "resources"))

log = logging.getLogger("jitcl.faults")


@dataclass(frozen=True)
class Fault:
    """One failed attempt. `entry` names the kernel's text and build options exactly (its digest
    is part of it).

    stage: "build", "load" (of a binary), "launch" (the first), "check" (result), "run" or "probe".
    kind: "crash", "hang", "refused" (an error with a log), "resources", "wrong", "lost".
    signature: one line, such as "SIGABRT: LLVM ERROR: Cannot select: intrinsic ...".
    """

    entry: str
    stage: str
    kind: str
    signature: str
    features: tuple[str, ...] = ()
    variant: str = ""               # the variant that the kernel was, "" = as scheduled
    log: str = ""
    when: float = 0.0               # seconds since 1970

    @property
    def candidates(self) -> frozenset[str]:
        """Features that may be to blame."""
        return frozenset() if self.kind in KERNEL_ONLY else frozenset(filter(blamable,
                                                                             self.features))

    def features_in(self, proven: frozenset[str]) -> bool:
        """Whether the kernel has no feature that may be to blame, beyond these."""
        return set(filter(blamable, self.features)) <= proven

    @property
    def key(self) -> tuple[str, str, str]:
        """Of faults with the same key, the last one is kept."""
        return self.entry, self.stage, self.kind


def blamable(feature: str) -> bool:
    """Whether another variant lacks the feature."""
    return feature in REMOVABLE or feature.startswith("template:")


class FaultDatabase:
    """The faults of one device and driver; `path` None keeps them in memory. Thread-safe, and safe
    between processes.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = forking.rlock()
        self._epoch = 0
        self._faults: dict[tuple[str, str, str], Fault] = {}
        self._passing: dict[tuple[str, str, str], Fault] = {}   # of this process alone
        self.shortage = ""                             # what the system lacked at one of those
        self._good: set[str] = set()
        self._proven: frozenset[str] = frozenset()     # features that probes found good
        self._trusted = False                          # whether that settles more than refusals
        self._probed = False
        self._crash: Fault | None = None
        self._by_entry: dict[str, Fault] = {}
        self._blames: tuple[tuple[frozenset[str], Fault], ...] = ()
        self._stamp: object = None                     # of the file when it was read
        self._warned = False
        with self._lock:
            self._refresh()

    # ---- what is known

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, the oldest first."""
        with self._lock:
            self._refresh()
            return tuple(_by_age([*self._faults.values(), *self._passing.values()]))

    @property
    def good(self) -> frozenset[str]:
        """Features that kernels had which were right."""
        with self._lock:
            self._refresh()
            return frozenset(self._good)

    @property
    def epoch(self) -> int:
        """How often everything was forgotten (`retry`); part of the keys of plans."""
        with self._lock:
            self._refresh()
            return self._epoch

    def rejects(self, entry: str, features: frozenset[str]) -> str:
        """Why a kernel must not be tried: one line; "" where nothing speaks against it."""
        with self._lock:
            self._refresh()
            fault = self._by_entry.get(entry)
            if fault is not None:
                return fault.signature
            for blamed, fault in self._blames:
                if blamed <= features:
                    return f"{'+'.join(sorted(blamed))}: {fault.signature}"
        return ""

    def crash_of_proven(self) -> Fault | None:
        """The last crash of a kernel that used nothing but what probes have proven: no kernel is
        safe from that driver, whatever list of good ones it is on.
        """
        with self._lock:
            self._refresh()
            return self._crash

    def blame_of(self, fault: Fault) -> frozenset[str]:
        """The features that a fault is put down to now; none where only its kernel is."""
        with self._lock:
            self._refresh()
            return self._blame(fault)

    def _blame(self, fault: Fault) -> frozenset[str]:
        settled = self._trusted or fault.kind == "refused"
        return fault.candidates - self._good - (self._proven if settled else frozenset())

    # ---- what is learnt

    def probed(self, proven: Iterable[str], trusted: bool) -> None:
        """Features that probes found good. They are not blamed for what a compiler refuses with a
        message (that names its own reason), nor for anything on a driver that is known good.
        """
        with self._lock:
            self._proven, self._trusted, self._probed = frozenset(proven), trusted, True
            self._derive()

    def record(self, *faults: Fault) -> None:
        """Remember faults, for other processes and later ones too; for this process alone where the
        system lacked something (`shortage`): what failed is tried again by the next.
        """
        if not faults:
            return
        # after those that are known, whatever the clock says: the last is the last
        now = max(time.time(), max((f.when + 0.001 for f in self.faults), default=0.0))
        kept = [dataclasses.replace(
            f, when=f.when or now, log=f.log[-LOG_KEPT:], features=tuple(sorted(f.features)),
            signature=" ".join(f.signature.split())[:SIGNATURE_KEPT]) for f in faults]
        short = shortage(*(text for f in kept if f.kind in SYSTEMS_TOO for text in (
            f.signature, f.log)))
        if short and all(f.kind in SYSTEMS_TOO for f in kept):
            with self._lock:
                self.shortage = short
                self._passing.update({f.key: f for f in kept})
                self._derive()
            log.info("not remembered, as the system is short of something (%s): %s", short,
                     ", ".join(f.entry for f in kept))
            return
        self._change(lambda: self._faults.update({f.key: f for f in kept}))

    def found_good(self, features: Iterable[str]) -> None:
        """Features of kernels that were built, launched and right."""
        new = set(filter(blamable, features))
        with self._lock:
            self._refresh()
            if new <= self._good:
                return
        self._change(lambda: self._good.update(new))

    def retry(self) -> int:
        """Forget all faults, so that everything is tried again; returns how many there were."""
        count = 0

        def forget() -> None:
            nonlocal count
            count = len(self._faults)
            self._faults.clear()
            self._passing.clear()
            self.shortage = ""
            self._epoch += 1
        self._change(forget)
        return count

    # ---- this process's view

    def _merge(self, record: Record) -> None:
        """Take over what a file says. Later epochs know better; within one, all faults hold."""
        if record.epoch > self._epoch:
            self._epoch, self._faults = record.epoch, {}
        if record.epoch == self._epoch:
            for row in record.faults:
                fault = Fault(**row)
                known = self._faults.get(fault.key)
                if known is None or known.when <= fault.when:
                    self._faults[fault.key] = fault
        self._good |= set(record.good)
        self._derive()

    def _derive(self) -> None:
        """Bound what is kept, and find out what is blamed."""
        newest = _by_age(self._faults.values())[-FAULTS_KEPT:]
        for i, fault in enumerate(newest[:-LOGS_KEPT]):
            newest[i] = dataclasses.replace(fault, log="")
        self._faults = {f.key: f for f in newest}
        newest = _by_age([*newest, *self._passing.values()])
        self._by_entry = {f.entry: f for f in newest}
        self._crash = next((f for f in reversed(newest) if f.kind == "crash" and f.entry != BINARIES
                            and f.features_in(self._proven | self._good)
                            ), None) if self._probed else None
        sets = {self._blame(f): f for f in reversed(newest)}
        sets.pop(frozenset(), None)
        self._blames = tuple((blamed, fault) for blamed, fault in reversed(sets.items())
                             if not any(other < blamed for other in sets))

    # ---- the file

    @forking.cached_property
    def _file_lock(self) -> filelock.BaseFileLock:
        import filelock  # here: 30 ms that a warm start does without

        lock = ownership.no_link(Path(f"{self.path}.lock"))
        return filelock.FileLock(lock, timeout=LOCK_SECONDS, mode=0o600, thread_local=False)

    def _change(self, change: Callable[[], None]) -> None:
        """Read what others wrote, change it, write it: under the file's lock."""
        with self._lock:
            if self.path is None:
                change()
                self._derive()
                return
            done = False
            try:
                ownership.below(self.path.parent.parent, self.path.parent.name)
                with self._file_lock:
                    self._read(locked=True)
                    change()
                    done = True
                    self._derive()
                    self._write()
                    return
            # a timeout is an OSError; filelock raises the other where a file system has no locks
            except (OSError, NotImplementedError) as error:
                self._warn_once(f"cannot write what failed on the driver to {self.path}: "
                                f"{_reason(error)}. It is remembered for this process only. "
                                "JITCL_CACHE_DIR names another directory.")
            if not done:
                change()
                self._derive()

    def _write(self) -> None:
        assert self.path is not None
        rows = [dataclasses.asdict(f) for f in _by_age(self._faults.values())]
        replace_file(self.path, encode(Record(self._epoch, sorted(self._good), rows)))
        self._stamp = self._state()

    def _state(self) -> object:
        try:
            stat = os.stat(self.path)  # type: ignore[arg-type]
        except (OSError, TypeError):
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _refresh(self) -> None:
        """Take over what other processes wrote since the last look."""
        state = self._state()
        if state is not None and state != self._stamp:
            self._read(locked=False)

    def _read(self, locked: bool) -> None:
        assert self.path is not None
        state = self._state()
        if state is None or state == self._stamp:
            return
        try:
            ownership.below(self.path.parent.parent, self.path.parent.name, make=False)
            record = decode(ownership.read(self.path))
        except OSError as error:
            self._warn_once(f"cannot read what failed on the driver, {self.path}: {_reason(error)}")
            return
        except DamagedFile as error:
            self._repair(error, locked)
            return
        self._merge(record)
        self._stamp = state

    def _repair(self, error: DamagedFile, locked: bool) -> None:
        """Put the damaged file aside and write its whole lines, and what is known here, anew."""
        assert self.path is not None
        if not locked:
            try:
                with self._file_lock:
                    self._read(locked=True)         # another process may have repaired it
            except (OSError, NotImplementedError) as reason:    # as in writing, above
                self._merge(error.salvaged)
                self._stamp = self._state()
                self._warn_once(f"{self.path} is damaged ({error}) and can't be repaired: "
                                f"{_reason(reason)}")
            return
        self._merge(error.salvaged)
        aside = self.path.with_suffix(".damaged")
        os.replace(self.path, aside)
        self._write()
        log.warning("the file of driver faults %s was damaged (%s): it is %s now; %d faults of it "
                    "were kept, the others are found out anew", self.path, error, aside.name,
                    len(error.salvaged.faults))

    def _warn_once(self, text: str) -> None:
        log.log(logging.DEBUG if self._warned else logging.WARNING, text)
        self._warned = True


def _by_age(faults: Iterable[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda f: (f.when, f.key))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"another process held its lock for {LOCK_SECONDS:.0f} s"
    return getattr(error, "strerror", None) or str(error)


# ---- where


def slug(text: str, nameless: str = "unnamed") -> str:
    """A part of a file's name that says what a driver calls something."""
    plain = re.sub(r"\((?:r|tm)\)", "", text.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")[:32].rstrip("-.") or nameless


def database_path(root: Path, vendor: str, name: str, driver: str) -> Path:
    """Where a device's faults are kept: by what the driver says of itself, whatever was probed."""
    digest = hashlib.sha256("\0".join((vendor, name, driver)).encode()).hexdigest()[:16]
    return root / "faults" / f"{slug(f'{vendor} {driver}')}--{slug(name)}--{digest}.json"


def fault_database(target: Target) -> FaultDatabase:
    """The database of a target's device and driver: one object in a process."""
    database = _shared(database_path(ownership.cache_root(), target.vendor, target.name,
                                     target.driver))
    database.probed(target.proven, target.trusted)
    return database


def databases(root: Path | None = None) -> list[FaultDatabase]:
    """All that lie beside the kernel cache."""
    folder = ownership.cache_root() if root is None else ownership.usable(Path(root))
    return [_shared(path) for path in sorted((folder / "faults").glob("*--*.json"))]


@functools.cache
def _shared(path: Path) -> FaultDatabase:
    return FaultDatabase(path)


__all__ = ["Fault", "FaultDatabase", "blamable", "database_path", "databases", "fault_database",
           "slug"]
