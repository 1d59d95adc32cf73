"""What a process gives to a driver right now, in a file: if the driver ends the process, the next
one knows of which kernels to be careful.

Beside the device's file of faults, one file for each batch of kernels that is built or launched for
the first time in the user's process; it is gone again some milliseconds later:

    <faults>.<process id>-<number>.pending     {"pid": 123, "born": "45678", "entries": [...]}

A file whose process has ended tells of kernels that it died over, or was ended by somebody else.
Where nothing can be written, nothing is known later.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitcl import ownership
from jitcl.devices.fault_file import replace_file

KEPT_SECONDS = 30 * 24 * 3600       # a model that nobody loads any more leaves its file behind

log = logging.getLogger("jitcl.faults")
_numbers = itertools.count()


class Pending:
    """The kernels under way on one device and driver; `path` is its file of faults, None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @contextmanager
    def over(self, entries: Iterable[str]) -> Iterator[None]:
        """Have the kernels on file during the block."""
        mark = self._written(sorted(entries))
        try:
            yield
        finally:
            if mark is not None:
                with suppress(OSError):
                    mark.unlink()

    def died_over(self) -> frozenset[str]:
        """Kernels that were under way when another process ended."""
        return frozenset(e for entries in self._left_behind().values() for e in entries)

    def settle(self, entries: frozenset[str]) -> None:
        """Forget that a process ended over these: it is known meanwhile what is true of them."""
        for path, old in self._left_behind().items():
            left = [e for e in old if e not in entries]
            if len(left) == len(old):
                continue
            with suppress(OSError):
                if left:
                    said = json.loads(ownership.read(path))
                    replace_file(path, json.dumps({**said, "entries": left}).encode())
                else:
                    path.unlink()

    def _written(self, entries: list[str]) -> Path | None:
        if self.path is None:
            return None
        pid = os.getpid()
        mark = self.path.with_suffix(f".{pid}-{next(_numbers)}.pending")
        said = {"pid": pid, "born": _born(pid), "entries": entries}
        try:
            replace_file(mark, json.dumps(said).encode())
        except OSError as error:
            log.debug("%s cannot be written: %s", mark, error)
            return None
        return mark

    def _left_behind(self) -> dict[Path, list[str]]:
        """The entries in files of processes that have ended. Files that are old, or say nothing,
        are removed.
        """
        found: dict[Path, list[str]] = {}
        if self.path is None:
            return found
        for path in self.path.parent.glob(f"{self.path.stem}.*.pending"):
            with suppress(OSError):
                ownership.below(path.parent.parent, path.parent.name, make=False)
                said = _read(path)
                if said is None or path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    path.unlink()
                elif not _alive(said[0], said[1]):
                    found[path] = said[2]
        return found


def _read(path: Path) -> tuple[int, str, list[str]] | None:
    """Process id, its start, entries; None where that is not what the file says."""
    try:
        said = json.loads(ownership.read(path))
        pid, born, entries = said["pid"], said["born"], said["entries"]
        return int(pid), str(born), [str(e) for e in entries]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _born(pid: int) -> str:
    """When a process was started, as the system counts; "" where it has ended or nobody says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _alive(pid: int, born: str) -> bool:
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
