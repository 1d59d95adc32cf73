"""Digests of model files, remembered by what the file system says of them.

    <root>/files/<digest of the path>.json
        {"stat": [bytes, modified, changed, inode], "digest": ".."}

A model of 400 MB takes seconds to hash and nothing to ask the size and times of. As in git's index,
a file that was changed within the last seconds is not remembered: it could be changed once more
without its times telling.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from jitcl import ownership
from jitcl.ir.files import MOST_BYTES, check_regular

SETTLED_NS = 3_000_000_000    # file systems tell times by up to 2 s
CHUNK = 4 << 20               # the thread asks for the interpreter's lock after each
SMALL = 32 << 20              # bytes whose digest is there sooner than what reads a model is loaded
FOLDER = "files"

log = logging.getLogger("jitcl.cache")


def digest(data: bytes) -> str:
    """What a model's bytes are known by."""
    return hashlib.sha256(data).hexdigest()[:32]


def file_digest(path: Path, root: Path | None, most: int | None = MOST_BYTES) -> str:
    """The digest of a file's bytes; read again only where its size or times differ from those that
    are remembered under `root` (None: always). Raises OSError, also for what is no regular file,
    or has more than `most` bytes (None: any number).
    """
    found = begun(path, root, most)
    return found if isinstance(found, str) else found.result()


def begun(path: Path, root: Path | None, most: int | None = MOST_BYTES) -> str | Future[str]:
    """The same, of large files taken by a thread where it isn't remembered."""
    check_regular(path, most)
    before = _stat(path)
    note = None if root is None else _note(path, root)
    known = None if note is None else _remembered(note, before)
    if known is not None:
        return known
    if before[0] <= SMALL:
        return _taken(path, note, before)
    from concurrent.futures import ThreadPoolExecutor  # a warm start does without it

    thread = ThreadPoolExecutor(1, "jitcl-digest")
    found = thread.submit(_taken, path, note, before)
    thread.shutdown(wait=False)
    return found


def _taken(path: Path, note: Path | None, before: list[int]) -> str:
    total, chunk = hashlib.sha256(), memoryview(bytearray(min(CHUNK, before[0] + 1)))
    with open(path, "rb") as file:
        while count := file.readinto(chunk):
            total.update(chunk[:count])
    found = total.hexdigest()[:32]
    settled = time.time_ns() - max(before[1:3]) > SETTLED_NS
    if note is not None and settled and _stat(path) == before:
        _remember(note, before, found)
    return found


def forget(root: Path) -> None:
    """Drop all that is remembered under `root`."""
    with suppress(OSError):
        folder = ownership.below(root, FOLDER, make=False)
        for note in folder.glob("*.json"):
            note.unlink(missing_ok=True)
        folder.rmdir()


def stamp(files: tuple[str, ...]) -> str:
    """Size and time of the files beside a model: external data changes the key without being read.
    """
    found = []
    for name in files:
        path = Path(name)
        if path.exists():
            stat = path.stat()
            found.append([path.name, stat.st_size, stat.st_mtime_ns])
    return json.dumps(found)


def _stat(path: Path) -> list[int]:
    s = path.stat()
    return [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]


def _note(path: Path, root: Path) -> Path:
    return root / FOLDER / f"{digest(os.fsencode(path.resolve()))}.json"


def _remembered(note: Path, stat: list[int]) -> str | None:
    try:
        ownership.below(note.parent.parent, FOLDER, make=False)
        known = json.loads(ownership.read(note))
        return str(known["digest"]) if known["stat"] == stat else None
    except (OSError, ValueError, KeyError, TypeError):      # none yet, or damaged: hashed again
        return None


def _remember(note: Path, stat: list[int], found: str) -> None:
    try:
        ownership.below(note.parent.parent, FOLDER)
        ownership.replace(note, json.dumps({"stat": stat, "digest": found}).encode())
    except OSError as error:                                # a directory that refuses: hashed again
        log.debug("cannot remember a digest in %s: %s", note.parent, error)
