"""Where probes run: one device with a context and a queue, tiny kernels in and arrays out."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.devices.opencl.building import uncommented
from jitcl.devices.opencl.errors import LOST_CODES, MEMORY_CODES
from jitcl.devices.opencl.platform import Found
from jitcl.target import ptx

ENOUGH = 0.3                        # seconds of launches that a time is taken from
LOG_LINE = 160                      # characters of a driver's log in an answer


class Refused(Exception):
    """The driver said no: to a build, a launch or an allocation."""


@dataclass(frozen=True)
class Out:
    """An output of a kernel: filled with a pattern that no right result has."""

    count: int
    dtype: Any = np.float32


class Bench:
    """Builds and runs probes' kernels on one device. A driver's error becomes Refused."""

    def __init__(self, found: Found) -> None:
        self.found, self.device = found, found.handle
        self.lost = False           # the context is gone, and everything would fail in it
        try:
            self.context = cl.Context([self.device])
            self.queue = cl.CommandQueue(self.context)
        except cl.Error as error:
            raise Refused(said(error)) from error

    @property
    def max_group(self) -> int:
        return int(self.device.max_work_group_size)

    def build(self, source: str, options: str = "-cl-std=CL1.2") -> Any:
        """The built program, past pyopencl's cache and its warnings."""
        program = cl._cl._Program(self.context, source)
        try:
            program._build(f"{options} -w".encode(), [self.device])
            if ptx.OPTION in options:
                program = uncommented(self.context, self.device, program)
                program._build(b"", [self.device])
        except (cl.Error, RuntimeError, ValueError) as error:
            self.refused(error)
            raise Refused(self._build_error(program, error)) from error
        return program

    def refused(self, error: Exception) -> Refused:
        """What to raise for an error of pyopencl's; a lost context is noted."""
        code = getattr(error, "code", 0)
        self.lost |= code in LOST_CODES or code in MEMORY_CODES
        return Refused(said(error))

    def _build_error(self, program: Any, error: Exception) -> str:
        try:
            log = program.get_build_info(self.device, cl.program_build_info.LOG) or ""
        except cl.Error:
            log = ""
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower()] or lines
        return f"clBuildProgram: {_without_path(telling[0])}" if telling else said(error)

    def run(self, program: Any, name: str, items: int, group: int, *args: Any) -> list[np.ndarray]:
        """Launch once; arguments are arrays (copied in), `Out`s, memory objects and NumPy scalars.
        Returns the outputs.
        """
        kept: list[Any] = []        # a kernel doesn't keep its arguments alive
        outs: list[tuple[Any, np.ndarray]] = []
        try:
            for arg in args:
                if isinstance(arg, Out):
                    array = _unset(arg)
                    outs.append((self.buffer(array), array))
                    kept.append(outs[-1][0])
                else:
                    kept.append(self.buffer(arg) if isinstance(arg, np.ndarray) else arg)
            kernel = cl.Kernel(program, name)
            kernel.set_args(*kept)
            cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), (group,) if group else None)
            for memory, array in outs:
                cl.enqueue_copy(self.queue, array, memory)
            self.queue.finish()
        except (cl.Error, RuntimeError) as error:
            raise self.refused(error) from error
        return [array for _, array in outs]

    def seconds(self, program: Any, name: str, items: int, group: int, *args: Any,
                launches: int = 8) -> float:
        """The best wall time of some launches after one that warms up, fewer on a slow device."""
        try:
            kernel = cl.Kernel(program, name)
            kernel.set_args(*args)
            best, end = float("inf"), time.perf_counter() + ENOUGH
            for n in range(launches + 1):       # the first launch compiles on some drivers
                begin = time.perf_counter()
                if n >= 2 and begin > end:
                    break
                cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), (group,)).wait()
                best = min(best, time.perf_counter() - begin)
        except (cl.Error, RuntimeError) as error:
            raise self.refused(error) from error
        return best

    def buffer(self, array: np.ndarray) -> Any:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(self.context, flags, hostbuf=array)


def _unset(out: Out) -> np.ndarray:
    """An array that no right result equals: NaN, or bytes of 0xA5."""
    dtype = np.dtype(out.dtype)
    if dtype.kind == "f":
        return np.full(out.count, np.nan, dtype)
    return np.frombuffer(b"\xa5" * (out.count * dtype.itemsize), dtype).copy()


def _without_path(line: str) -> str:
    """"error: /tmp/x/tempfile_a.cl:6:10: no half" -> "error: line 6: no half"."""
    return re.sub(r"(?:<\w+>|\S*\.cl|\b\d+):(\d+):\d+:", r"line \1:", line)[:LOG_LINE]


def extensions(found: Found) -> frozenset[str]:
    """What the driver lists, true or not."""
    return frozenset(found.handle.extensions.replace("\0", " ").split())


def said(error: Exception) -> str:
    """A driver's error in one line: "clEnqueueNDRangeKernel: OUT_OF_RESOURCES"."""
    return " ".join(str(error).split())[:LOG_LINE] or type(error).__name__


def ulps(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How many representable f16 numbers lie between; NaN is as far as anything can be from a
    number, and equals NaN. A flushed subnormal counts as right.
    """
    got, wanted = np.asarray(got, np.float16), np.asarray(wanted, np.float16)
    apart = np.abs(_ordered(got) - _ordered(wanted))
    nan, other = np.isnan(wanted), np.isnan(got)
    apart = np.where(nan & other, 0, np.where(nan | other, 1 << 16, apart))
    small = np.float16(6.104e-05)
    return np.where((np.abs(wanted) < small) & (np.abs(got) <= small), 0, apart)


def _ordered(x: np.ndarray) -> np.ndarray:
    """Bit patterns of f16 as integers that are ordered as the numbers are."""
    bits = x.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def first_wrong(got: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray,
                tolerance: float = 0.0) -> str:
    """"value 3 is 1.5, wanted 2" for the first that differs by more than
    tolerance * (1 + |wanted|); "" where none does.
    """
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    with np.errstate(invalid="ignore"):
        right = np.abs(got - wanted) <= tolerance * (1 + np.abs(wanted))
    bad = np.flatnonzero(~(right | (got == wanted)))
    return "" if bad.size == 0 else f"value {bad[0]} is {got[bad[0]]:g}, wanted {wanted[bad[0]]:g}"
