"""Values between this process and its build workers: an 8-byte little-endian length, then a pickle.

For pipes between a process and its own children, never for files or for what others wrote.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tempfile
from typing import Any, BinaryIO

HEAD = struct.Struct("<Q")


def child_command(module: str) -> list[str]:
    """What starts a child that runs a module's `main`. `-c` has Python look into the directory that
    it is started in first: a child must not import what happens to lie there (another jitcl, a
    numba.py).
    """
    return [sys.executable, "-c", "import sys; sys.path = [p for p in sys.path if p]; "
            f"from {module} import main; main()"]


def unnamed_file() -> BinaryIO:
    """A file for what a child prints: in memory where the system has that, so that no disk is full.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("jitcl-stderr"), "w+b")
    return tempfile.TemporaryFile()


def encode(value: Any) -> bytes:
    """A value as a message."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(data)) + data


def decode(data: bytes | bytearray) -> Any:
    """The value of a message's bytes behind the length."""
    return pickle.loads(data)


def write_message(stream: BinaryIO, value: Any) -> None:
    stream.write(encode(value))
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """The next value, or None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    return decode(stream.read(HEAD.unpack(head)[0]))
