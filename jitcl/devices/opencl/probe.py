"""What an OpenCL device can do, found out by building and running tiny kernels; remembered on disk.

Extension strings are not believed: NVIDIA's driver doesn't list cl_khr_fp16, and half arithmetic
works. What was probed is kept per device and driver in the cache directory, so that a warm start
builds nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.devices.opencl import icd, pocl
from jitcl.devices.opencl.platform import Found
from jitcl.target.quirks import Quirk, applying
from jitcl.target.target import Target

VERSION = 3  # of the probes: a change makes remembered results void
FMA_LOOPS = 20_000
SLOW_FMA = 3.0  # a library call takes 5 to 10 times as long as a*b+c

log = logging.getLogger("jitcl.opencl")

ARITHMETIC = """
#pragma OPENCL EXTENSION {extension} : enable
__kernel void arithmetic(__global const float *x, __global float *y)
{{
    {type} a = ({type})x[0], b = ({type})x[1];
    y[0] = (float)(a * b + a);
}}
"""
HALF_STORAGE = """
__kernel void storage(__global const float *x, __global half *h, __global float *y)
{
    vstore_half_rte(x[0], 1, h);
    y[0] = vload_half(1, h);
}
"""
MULTIPLY_ADD = """
#define MAC_0(a, b, c) ((a) * (b) + (c))
#define MAC_1(a, b, c) fma(a, b, c)
#define LOOP(N) \\
__kernel void mac_##N(__global const float *x, __global float *y) \\
{ \\
    float4 a = vload4(0, x), b = (float4)(x[4]), c = (float4)(0.0f), d = a, e = b, f = a + b; \\
    for (int i = 0; i < LOOPS; ++i) { \\
        c = MAC_##N(c, b, a); d = MAC_##N(d, b, a); e = MAC_##N(e, b, a); f = MAC_##N(f, b, a); \\
    } \\
    vstore4(c + d + e + f, 0, y); \\
}
LOOP(0)
LOOP(1)
"""


def probe_target(found: Found) -> Target:
    """The device as code generation sees it: limits, probed features, quirks applied."""
    target, quirks = examine(found)
    for quirk in quirks:
        log.info("%s: quirk %s: %s", found.name, quirk.id, quirk.fields)
        target = quirk.apply(target)
    return target


def examine(found: Found) -> tuple[Target, tuple[Quirk, ...]]:
    """The device with its probed features as they are, and the quirks that hold for it."""
    base = _limits(found)
    target = dataclasses.replace(base, **_remembered(found, base))
    return target, applying(found.driver, target)


def _limits(found: Found) -> Target:
    """What the driver reports and has no reason to lie about."""
    device = found.handle
    cpu = found.kind == "cpu"
    flags = pocl.host_features() if cpu else frozenset()
    version = f"{found.platform_version} / {device.driver_version}"
    local_is_real = device.local_mem_type == cl.device_local_mem_type.LOCAL and not cpu
    widths = (device.native_vector_width_float, device.preferred_vector_width_float)
    return Target(
        kind="opencl",
        name=found.name,
        vendor=device.vendor.strip(),
        driver=f"{version} [{found.compiler_cpu}]" if found.compiler_cpu else version,
        device_type=found.kind,
        compute_units=device.max_compute_units,
        vector_width=max(1, *widths)
        if cpu
        else 4,  # a GPU's best load is 16 bytes, whatever it prefers
        registers=(32 if "avx512f" in flags else 16) if cpu else 128,
        local_memory=device.local_mem_size,
        local_is_real=local_is_real,
        max_work_group=device.max_work_group_size,
        max_work_item_sizes=tuple(device.max_work_item_sizes),
        global_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        alignment=max(64, device.mem_base_addr_align // 8),
        isa=tuple(sorted(flags & {"avx2", "fma", "avx512f", "avx512bw", "avx512vl"})),
    )


def _remembered(found: Found, base: Target) -> dict[str, Any]:
    """Probed fields of Target, from the cache directory where they were kept."""
    digest = hashlib.sha256(f"{VERSION} {base.key}".encode()).hexdigest()[:24]
    path = icd.writable("opencl-probes") / f"{digest}.json"
    try:
        kept = json.loads(path.read_text())
        if kept["key"] == base.key and kept["version"] == VERSION:
            return dict(kept["features"])
    except (OSError, ValueError, KeyError, TypeError):
        log.debug("no probe results for %s in %s", found, path)
    features = Probes(found).run()
    _keep(path, {"version": VERSION, "key": base.key, "device": str(found), "features": features})
    return features


def _keep(path: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        log.warning(
            "cannot keep what was probed on the device in %s: %s", path, error.strerror or error
        )


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Send what libraries write to file descriptor 2 nowhere, for as long as a probe that may
    fail takes.
    """
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Probes:
    """Tiny kernels, built and run on one device; a probe that fails in any way says the feature
    is absent.
    """

    def __init__(self, found: Found) -> None:
        self.device = found.handle
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(self.context)

    def run(self) -> dict[str, Any]:
        """Fields of Target by name."""
        slowdown = self.fma_slowdown()
        with _quiet_stderr():  # PoCL's compiler prints "4 errors generated." there
            return {
                "fp16_storage": self.half_storage(),
                "fp16_arithmetic": self.arithmetic("half", "cl_khr_fp16"),
                "fp64": self.arithmetic("double", "cl_khr_fp64"),
                "fast_fma": slowdown is not None and slowdown < SLOW_FMA,
            }

    def arithmetic(self, type: str, extension: str) -> bool:
        """Whether a type computes: 3 * 2.5 + 3, exact in half too."""
        source = ARITHMETIC.format(extension=extension, type=type)
        got = self.launch(source, "arithmetic", [3.0, 2.5])
        return got == 10.5

    def half_storage(self) -> bool:
        """Whether vstore_half_rte rounds as binary16 does: 1/3 becomes 0.333251953125."""
        got = self.launch(HALF_STORAGE, "storage", [1 / 3], half=True)
        return got == float(np.float16(1 / 3))

    def fma_slowdown(self) -> float | None:
        """How many times longer fma(a, b, c) takes than a * b + c; None where it doesn't build."""
        program = self.build(MULTIPLY_ADD.replace("LOOPS", str(FMA_LOOPS)))
        if program is None:
            return None
        try:
            x = self.buffer(np.array([1.0, 0.9, 0.8, 0.7, 0.5], np.float32))
            y = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 64)
            times = [self._seconds(cl.Kernel(program, f"mac_{n}"), x, y) for n in (0, 1)]
        except cl.Error as error:
            log.debug("probing fma: %s", error)
            return None
        return times[1] / max(times[0], 1e-9)

    def _seconds(self, kernel: Any, *args: Any) -> float:
        kernel.set_args(*args)
        best = float("inf")
        for _ in range(6):  # the first launch compiles on some drivers
            begin = time.perf_counter()
            cl.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,)).wait()
            best = min(best, time.perf_counter() - begin)
        return best

    def launch(self, source: str, name: str, x: list[float], half: bool = False) -> float | None:
        """The float that one work-item writes; None where the driver refuses."""
        program = self.build(source)
        if program is None:
            return None
        out = np.full(1, np.nan, np.float32)
        try:
            read = self.buffer(np.array(x, np.float32))  # a kernel doesn't keep its arguments alive
            scratch, y = (cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 64) for _ in range(2))
            kernel = cl.Kernel(program, name)
            kernel.set_args(*((read, scratch, y) if half else (read, y)))
            cl.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,))
            cl.enqueue_copy(self.queue, out, y)
        except cl.Error as error:
            log.debug("probe %s: %s", name, error)
            return None
        return float(out[0])

    def build(self, source: str) -> Any:
        program = cl._cl._Program(self.context, source)  # past pyopencl's cache and its warnings
        try:
            program._build(b"-cl-std=CL1.2", [self.device])
        except cl.Error as error:
            log.debug("probe does not build: %s", error)
            return None
        return program

    def buffer(self, array: np.ndarray) -> Any:
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(self.context, flags, hostbuf=array)
