"""The driver calls that build programs: from source, from a binary, and the binary of a program.

The same calls in the user's process and in workers, so that what a worker has survived is what the
user's process does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from jitcl.codegen.plan import KernelSource
from jitcl.devices.opencl.errors import build_error, out_of_memory
from jitcl.errors import BuildError
from jitcl.forking import OPENCL
from jitcl.target import ptx
from jitcl.target.target import Target

RESOURCE_CODES = frozenset((cl.status_code.OUT_OF_RESOURCES, cl.status_code.OUT_OF_HOST_MEMORY,
                            cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE))
PLACE = re.compile(r"\S*/\S+:\d+:\d+:\s*")        # "/tmp/scratch/tempfile_x.cl:4:26: "

log = logging.getLogger("jitcl.opencl")


class RefusedBuild(BuildError):
    """The compiler's refusal. kind: "refused", or "resources" where it ran out of something."""

    def __init__(self, error: BuildError, kind: str, signature: str) -> None:
        super().__init__(str(error))
        self.kind, self.signature = kind, signature


def program_options(target: Target) -> tuple[str, ...]:
    """Build options of every program on a device."""
    return (f"-cl-std={target.cl_std}", "-w")


def from_source(context: Any, device: Any, sources: Sequence[KernelSource],
                options: Sequence[str]) -> Any:
    """One built program of several kernels with equal options of their own. Raises RefusedBuild,
    which names the first.
    """
    text = "\n".join(s.body for s in sources)
    flags = " ".join((*options, *sources[0].options)).encode()
    program = cl._cl._Program(context, text)  # past pyopencl's own cache and its warnings
    try:
        with OPENCL:
            program._build(flags, [device])
            if ptx.OPTION in sources[0].options:
                program = uncommented(context, device, program)
                program._build(b"", [device])
    except (cl.Error, RuntimeError, ValueError) as error:
        said = _log_of(program, device) or str(error)
        full = build_error(sources[0].entry, text, said, device.name)
        scarce = isinstance(error, cl.Error) and (
            error.code in RESOURCE_CODES or out_of_memory(error))
        raise RefusedBuild(full, "resources" if scarce else "refused",
                           _complaint(said)) from error
    return program


def uncommented(context: Any, device: Any, program: Any) -> Any:
    """What is built once more, for ptx.ARCHITECTURE. Raises ValueError where it is no PTX."""
    text = ptx.uncommented(program.get_info(cl.program_info.BINARIES)[0])
    return cl._cl._Program(context, [device], [text])


def _log_of(program: Any, device: Any) -> str:
    """The compiler's log; "" where the driver doesn't even give that."""
    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG) or "")
    except (cl.Error, RuntimeError) as error:
        log.debug("the driver gives no build log: %s", error)
        return ""


def from_binary(context: Any, device: Any, binary: bytes) -> Any:
    """A built program. Raises cl.Error or RuntimeError where the driver refuses the binary."""
    with OPENCL:
        program = cl._cl._Program(context, [device], [binary])
        program._build(b"", [device])
    return program


def binary_of(program: Any) -> bytes:
    """The driver's binary of a program; b"" where it gives none."""
    try:
        with OPENCL:
            return bytes(program.get_info(cl.program_info.BINARIES)[0] or b"")
    except (cl.Error, RuntimeError) as error:
        log.debug("the driver gives no binary: %s", error)
        return b""


def kernel_names(program: Any) -> frozenset[str]:
    return frozenset(program.get_info(cl.program_info.KERNEL_NAMES).split(";"))


def _complaint(text: str) -> str:
    """The log's first line that speaks of an error, else its first line; without the places of
    temporary files.
    """
    lines = [PLACE.sub("", line).strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), (lines or ["no log"])[0])
