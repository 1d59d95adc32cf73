"""A build worker: a Python process whose `main` reads kernels on stdin and writes objects to
stdout.

Frames in: (entry, text, absent CPU feature); out: (entry, object, None) or (entry, None, message).
End of input ends the worker.
"""

from __future__ import annotations

import gc
import os
import sys

from jitcl.devices.messages import read_message, write_message


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints cannot damage the frames
    from jitcl.devices.cpu.compiler import compile_kernel
    from jitcl.errors import BuildError

    gc.freeze()                 # the collector need not look at what never goes,
    gc.set_threshold(50_000)    # nor so often: a kernel's IR is thousands of objects
    while (job := read_message(sys.stdin.buffer)) is not None:
        entry, text, absent = job
        try:
            write_message(out, (entry, compile_kernel(entry, text, absent), None))
        except BuildError as error:
            write_message(out, (entry, None, str(error)))
