"""A lock on a file's name that holds across threads and processes, and never longer than asked."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitcl import forking, ownership

log = logging.getLogger("jitcl.cache")

_guard = forking.lock()
_threads: weakref.WeakValueDictionary[Path, _ThreadLock] = weakref.WeakValueDictionary()


class _ThreadLock:
    """Re-entrant: a thread that holds the lock and asks again goes on at once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0


forking.in_child(_threads.clear)     # no lock of its parent's threads may bind a child


@contextmanager
def exclusive(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold `path` alone; yields False where that failed within `wait_s` seconds.

    The caller goes on either way: the lock saves work, it guards nothing. The system frees the lock
    of a process that dies. Where the file cannot be made (a read-only directory), threads still
    exclude each other.
    """
    deadline = time.monotonic() + wait_s
    with _guard:
        mine = _threads.get(path)
        if mine is None:
            mine = _threads[path] = _ThreadLock()
    if not mine.lock.acquire(timeout=wait_s):
        log.warning("waited %.0f s for another thread to build %s: building it too",
                    wait_s, path.stem)
        yield False
        return
    mine.depth += 1
    try:
        if mine.depth > 1:
            yield True
        else:
            with _between_processes(path, max(deadline - time.monotonic(), 0.0)) as held:
                yield held
    finally:
        mine.depth -= 1
        mine.lock.release()


@contextmanager
def _between_processes(path: Path, wait_s: float) -> Iterator[bool]:
    import filelock  # here: 30 ms that a warm start does without

    try:
        lock = filelock.FileLock(ownership.no_link(path), timeout=wait_s, mode=0o600)
        lock.acquire(poll_interval=0.02)
    except filelock.Timeout:
        log.warning("waited %.0f s for another process to build %s: building it too",
                    wait_s, path.stem)
        yield False
        return
    except (OSError, NotImplementedError):  # read-only or full, or a file system without locks
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
