"""pyopencl's errors as jitcl's: what was done, the driver's code, and what to do now.

    memory codes   OutOfMemoryError     the plan is too large, or lazily allocated memory is
    lost codes     DeviceLostError      the context and all that it held is gone
    the rest       DeviceError; of a kernel that was being run, KernelFault (run_faults.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyopencl as cl

from jitcl.errors import BuildError, DeviceError, DeviceLostError, OutOfMemoryError
from jitcl.forking import OPENCL

MEMORY_CODES = frozenset(
    (
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, cl.status_code.OUT_OF_HOST_MEMORY,
        cl.status_code.INVALID_BUFFER_SIZE)
)
LOST_CODES = frozenset(
    (
        cl.status_code.DEVICE_NOT_AVAILABLE,
        cl.status_code.INVALID_DEVICE,
        cl.status_code.INVALID_CONTEXT,
        cl.status_code.INVALID_COMMAND_QUEUE,
        -1121,  # CL_CONTEXT_TERMINATED_KHR
        -9999,  # NVIDIA: an illegal access; nothing works in the context afterwards
    )
)
CODE_NAMES = {getattr(cl.status_code, n): n for n in dir(cl.status_code) if n.isupper()}
LINE_NUMBERS = re.compile(
    r"(?m)(?:^|[:(])(\d+)(?::\d+)?\)?\s*:\s*(?:fatal )?error|error: \S*?:(\d+):\d+:")
CONTEXT_LINES = 3  # of source, around each line that the compiler complains about


@contextmanager
def translated(doing: str, allocating: bool = False) -> Iterator[None]:
    """Turn what pyopencl raises inside into DeviceError, DeviceLostError or OutOfMemoryError;
    `doing` is the message's start. This thread is in the driver meanwhile.
    """
    try:
        with OPENCL:
            yield
    except cl.Error as error:
        raise device_error(doing, error, allocating) from error


def device_error(doing: str, error: Any, allocating: bool = False) -> DeviceError:
    """The JitclError for one of pyopencl's. `allocating`: no kernel was run, so that what is out
    of resources is memory.
    """
    said = str(error).splitlines()[0]  # "clEnqueue... failed: OUT_OF_RESOURCES"
    exhausted = allocating and error.code == cl.status_code.OUT_OF_RESOURCES
    if exhausted or out_of_memory(error):
        return OutOfMemoryError(
            f"{doing}: the device has no memory left ({said})\n"
            "  Run with smaller inputs, or on a device with more memory."
        )
    if error.code in LOST_CODES:
        return lost_error(f"{doing}: {said}")
    text = f"{doing}: {said}"
    if error.code == cl.status_code.OUT_OF_RESOURCES:
        text += "\n  The kernel asks for more registers, local memory or work-items than there are."
    return DeviceError(text)


def lost_error(text: str) -> DeviceLostError:
    """The device is gone, `text` says how that showed."""
    return DeviceLostError(
        f"{text}\n  The device was reset or removed, and what it held is lost: open it again "
        "(`device.reopen()`) and load the model anew."
    )


def out_of_memory(error: Any) -> bool:
    """Whether an allocation failed; some drivers allocate at first use, so at any call."""
    return error.code in MEMORY_CODES or isinstance(error, cl.MemoryError)


def code_name(code: int) -> str:
    """'OUT_OF_RESOURCES' of -5."""
    return CODE_NAMES.get(code, f"error {code}")


def build_error(entry: str, source: str, log: str, device: str) -> BuildError:
    """Names the kernel and shows the compiler's log and the numbered source around what it
    complains about.
    """
    log = log.strip() or "(the compiler gave no log)"
    return BuildError(
        f"kernel '{entry}' does not build on {device}\n{_indent(log)}\n"
        f"  source:\n{numbered(source, log)}"
    )


def numbered(source: str, log: str) -> str:
    """The source's lines with numbers: those near the log's line numbers, or the first ones."""
    lines = source.splitlines()
    named = {int(n) for n in _line_numbers(log) if 0 < int(n) <= len(lines)}
    shown = {m for n in named for m in range(n - CONTEXT_LINES, n + CONTEXT_LINES + 1)}
    shown = shown or set(range(1, 21))
    return "\n".join(
        f"  {'>' if n in named else ' '}{n:4d} | {line}"
        for n, line in enumerate(lines, 1)
        if n in shown
    )


def _line_numbers(log: str) -> Iterator[str]:
    """Line numbers of `file:12:3: error` (most), `error: file:12:3:` (PoCL) and `(12): error`."""
    for before, after in LINE_NUMBERS.findall(log):
        yield before or after


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
