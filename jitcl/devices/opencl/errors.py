"""pyopencl's errors as jitcl's: what was done, the driver's code, and what to do now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyopencl as cl

from jitcl.errors import BuildError, DeviceError, OutOfMemoryError

MEMORY_CODES = frozenset(
    (
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_HOST_MEMORY,
        cl.status_code.INVALID_BUFFER_SIZE,
    )
)
LINE_NUMBERS = re.compile(
    r"(?m)(?:^|[:(])(\d+)(?::\d+)?\)?\s*:\s*(?:fatal )?error|error: \S*?:(\d+):\d+:"
)
CONTEXT_LINES = 3  # of source, around each line that the compiler complains about


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn what pyopencl raises inside into DeviceError or OutOfMemoryError; `doing` is the
    message's start.
    """
    try:
        yield
    except cl.Error as error:
        raise device_error(doing, error) from error


def device_error(doing: str, error: Any) -> DeviceError:
    """The JitclError for one of pyopencl's."""
    said = str(error).splitlines()[0]  # "clEnqueue... failed: OUT_OF_RESOURCES"
    if error.code in MEMORY_CODES or isinstance(error, cl.MemoryError):
        return OutOfMemoryError(
            f"{doing}: the device has no memory left ({said})\n"
            "  Run with smaller inputs, or on a device with more memory."
        )
    text = f"{doing}: {said}"
    if error.code == cl.status_code.OUT_OF_RESOURCES:
        text += "\n  The kernel asks for more registers, local memory or work-items than there are."
    return DeviceError(text)


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
