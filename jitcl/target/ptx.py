"""Instructions of one generation of NVIDIA's GPUs, which its compiler of OpenCL C doesn't take.

It writes PTX for sm_90 where wgmma asks for sm_90a. So these instructions stand in inline assembly
as comments, and the program that comes back, which is PTX, is built once more without their signs.
"""

from __future__ import annotations

import re

ARCHITECTURE = "sm_90a"
OPTION = f"-DPTX_TARGET={ARCHITECTURE}"          # of kernels with such instructions
COMMENT = f"//{ARCHITECTURE} "                   # before each


def uncommented(binary: bytes) -> bytes:
    """A program's PTX, for this architecture. Raises ValueError where it is something else."""
    found, count = re.subn(rb"^\.target sm_\d+a?\b", f".target {ARCHITECTURE}".encode(), binary,
                           count=1, flags=re.M)
    if not count:
        raise ValueError("the driver's binary of a program is no PTX")
    return found.replace(COMMENT.encode(), b"")
