"""Files that are read whole: regular ones, of a size that can be meant. A named pipe, a device or a
file of holes would keep a reader waiting for ever, or until memory is gone.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = (1 << 31) - 1          # what a protocol buffer, an ONNX model then, may be at most
KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
         stat.S_IFSOCK: "a socket"}


def open_regular(path: str | os.PathLike[str], most: int | None = MOST_BYTES) -> BinaryIO:
    """A file opened for reading; OSError with a `strerror` for people where it is no regular file,
    or has more than `most` bytes (None: any number).
    """
    _check(os.stat(path), path, most)
    # not blocking: it may have become a pipe that nobody writes to
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check(os.fstat(handle), path, most)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """All bytes of a file; raises what `open_regular` raises."""
    with open_regular(path, most) as file:
        return file.read()


def check_regular(path: str | os.PathLike[str], most: int | None = None) -> Path:
    """The path, for who opens it by himself; raises what `open_regular` raises."""
    open_regular(path, most).close()
    return Path(path)


def _check(found: os.stat_result, path: str | os.PathLike[str], most: int | None) -> None:
    kind = stat.S_IFMT(found.st_mode)
    name = os.fspath(path)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if kind != stat.S_IFREG:
        what = KINDS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"It is {what}; only regular files are read", name)
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"It has {found.st_size} bytes; such a file has at most {most}",
                      name)


__all__ = ["MOST_BYTES", "check_regular", "open_regular", "read_regular"]
