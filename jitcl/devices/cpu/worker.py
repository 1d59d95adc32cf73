"""A build worker: a Python process whose `main` reads kernels on stdin and writes objects to
stdout.

Frames in both directions are an 8-byte little-endian length and a pickle: in (entry, text); out
(entry, object, None) or (entry, None, message). End of input ends the worker.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import Any, BinaryIO


def write_frame(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """The next value, or None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints cannot damage the frames
    from jitcl.devices.cpu.compiler import compile_kernel
    from jitcl.errors import BuildError

    while (job := read_frame(sys.stdin.buffer)) is not None:
        entry, text = job
        try:
            write_frame(out, (entry, compile_kernel(entry, text), None))
        except BuildError as error:
            write_frame(out, (entry, None, str(error)))
