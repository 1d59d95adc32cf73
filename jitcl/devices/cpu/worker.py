"""A process that has the compiler loaded. Where stdin is a socket, it forks itself for each socket
that comes there; else it is a build process, on stdin and stdout.

A build process reads kernels and writes objects. Frames in: (entry, text, absent CPU feature); out:
(entry, object, None) or (entry, None, message). End of input ends it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import sys
from contextlib import suppress
from typing import BinaryIO

from jitcl.devices.messages import read_message, write_message
from jitcl.errors import BuildError


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)               # whatever prints cannot damage the frames
    from jitcl.devices.cpu.compiler import load

    load()
    gc.freeze()                 # the collector need not look at what never goes,
    gc.set_threshold(50_000)    # nor so often: a kernel's IR is thousands of objects
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        build(sys.stdin.buffer, out)
        return
    out.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)       # nobody asks how forks end
    asked = socket.socket(fileno=0)
    while fds := socket.recv_fds(asked, 1, 1)[1]:
        try:
            child = os.fork()
        except OSError:         # of memory, or of processes: who asked reads the end of its socket
            child = -1
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked.close()
            with socket.socket(fileno=fds[0]) as ends:
                build(ends.makefile("rb"), ends.makefile("wb"))
            return
        os.close(fds[0])
    with suppress(ChildProcessError):
        os.waitpid(-1, 0)       # ends when all of them have


def build(source: BinaryIO, out: BinaryIO) -> None:
    """Builds what comes, until nothing does."""
    from jitcl.devices.cpu.compiler import compile_kernel

    while (job := read_message(source)) is not None:
        entry, text, absent = job
        try:
            write_message(out, (entry, compile_kernel(entry, text, absent), None))
        except BuildError as error:
            write_message(out, (entry, None, str(error)))
