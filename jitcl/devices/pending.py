"""What a process gives to a driver right now, in a file: if the driver ends the process, the next
one knows of which kernels to be careful.

Beside the device's file of faults, one file for each batch of kernels that is built or launched for
the first time in the user's process; it is gone again some milliseconds later:

    <faults>.<process id>-<number>.pending     {"pid": 123, "born": "45678", "entries": [...]}

A file whose process has ended tells of kernels that it died over, or was ended by somebody else.
The driver is not trusted then: all kernels go to a worker process first, until some were right
there; those on file go there until it is known what is true of them. A crash there is a fault, for
which the driver is not trusted either. Where nothing can be written, nothing is known later.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jitcl import ownership
from jitcl.devices.fault_file import replace_file

KEPT_SECONDS = 30 * 24 * 3600       # a model that nobody loads any more leaves its file behind

log = logging.getLogger("jitcl.faults")
_numbers = itertools.count()


class Note(NamedTuple):
    """One file: the process, when it was started (`_born`), and what it had under way."""

    pid: int
    born: str
    entries: list[str]
    forgiven: bool = False


class Pending:
    """The kernels under way on one device and driver; `path` is its file of faults, None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @contextmanager
    def over(self, entries: Iterable[str]) -> Iterator[None]:
        """Have the kernels on file during the block."""
        given = sorted(entries)
        mark = self._written(given) if given else None
        try:
            yield
        finally:
            if mark is not None:
                with suppress(OSError):
                    mark.unlink()

    def died_over(self) -> Counter[str]:
        """Kernels that were under way when another process ended, and how many processes did."""
        return Counter(e for note in self._left_behind().values() for e in set(note.entries))

    def unfinished(self) -> bool:
        """Whether a process ended, and no kernel was right in a worker since."""
        return any(not note.forgiven for note in self._left_behind().values())

    def forgive(self) -> None:
        """A worker built kernels, and they were right: only those on file are still suspected."""
        for path, note in self._left_behind().items():
            if not note.forgiven:
                _rewrite(path, note._replace(forgiven=True))

    def settle(self, entries: frozenset[str]) -> None:
        """Forget that a process ended over these: it is known meanwhile what is true of them."""
        for path, note in self._left_behind().items():
            left = [e for e in note.entries if e not in entries]
            if len(left) < len(note.entries):
                _rewrite(path, note._replace(entries=left))

    def _written(self, entries: list[str]) -> Path | None:
        if self.path is None:
            return None
        pid = os.getpid()
        mark = self.path.with_suffix(f".{pid}-{next(_numbers)}.pending")
        try:
            replace_file(mark, json.dumps(Note(pid, _born(pid), entries)._asdict()).encode())
        except OSError as error:
            log.debug("%s cannot be written: %s", mark, error)
            return None
        return mark

    def _left_behind(self) -> dict[Path, Note]:
        """The files of processes that have ended. Files that are old, or say nothing,
        are removed.
        """
        found: dict[Path, Note] = {}
        if self.path is None:
            return found
        for path in self.path.parent.glob(f"{self.path.stem}.*.pending"):
            with suppress(OSError):
                ownership.below(path.parent.parent, path.parent.name, make=False)
                note = _read(path)
                if note is None or path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    path.unlink()
                elif not alive(note.pid, note.born):
                    found[path] = note
        return found


def _read(path: Path) -> Note | None:
    """What the file says; None where that is no note."""
    try:
        said = json.loads(ownership.read(path))
        pid, born, entries = said["pid"], said["born"], said["entries"]
        return Note(int(pid), str(born), [str(e) for e in entries],
                    said.get("forgiven", False) is True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _rewrite(path: Path, note: Note) -> None:
    with suppress(OSError):
        if note.entries:
            replace_file(path, json.dumps(note._asdict()).encode())
        else:
            path.unlink()


def _born(pid: int) -> str:
    """When a process was started, as the system counts; "" where it has ended or nobody says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def alive(pid: int, born: str = "") -> bool:
    """Whether a process runs; the one that was started then, where that is known."""
    if born:
        return _born(pid) == born           # a number is given to another process some day
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
