"""The devices that tests run on: all that this machine has, each opened once. Whoever skips for
want of one asks here.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from platform import machine

import numpy as np
import pytest

from jitcl.devices.base import Device
from jitcl.devices.opencl import list_devices, pocl
from jitcl.devices.opencl.platform import Found
from jitcl.devices.select import open_device
from jitcl.errors import DeviceError
from jitcl.ir.graph import Graph
from jitcl.runtime.cache import kernel_cache
from tests.compiling import plan_on
from tests.lacking import missing, unless

# Those that CI must have: for people, and the platform's own name
DRIVERS = {"opencl:pocl": ("PoCL", "Portable Computing Language"),
           "opencl:intel": ("Intel's OpenCL runtime", "Intel(R) OpenCL")}
# and whatever else is here: somebody's GPU.
OTHERS = tuple(f.spec for f in list_devices() if f.platform not in dict(DRIVERS.values()).values())
SPECS = ("reference", "cpu", *DRIVERS, *OTHERS)


@functools.cache
def device(spec: str) -> Device | None:
    """The device, or None where this machine lacks it. Raises for one that is here and can't be
    opened."""
    try:
        return open_device(spec)
    except DeviceError:
        if spec in OTHERS or spec in DRIVERS and found(spec) is not None:
            raise
        return None


def found(spec: str) -> Found | None:
    """What the driver of an OpenCL device says of it; None where this machine lacks it."""
    name, platform = DRIVERS[spec]
    there = next((f for f in list_devices() if f.platform == platform), None)
    if there is None and machine() == "x86_64":
        missing(name)
    return there


def needs(spec: str) -> pytest.MarkDecorator:
    """The mark of tests that run on this device alone."""
    return unless(found(spec), f"{DRIVERS[spec][0]} is missing")


def needs_driver() -> pytest.MarkDecorator:
    """The mark of tests that run on any OpenCL driver."""
    return unless(OTHERS or any(map(found, DRIVERS)), "there is no OpenCL driver")


def needs_a_real_crash() -> pytest.MarkDecorator:
    """The mark of tests that have PoCL compile for a CPU which its library was not made for: it
    dies of 16-wide arithmetic where the library has AVX-512."""
    there = next((f for f in list_devices() if f.compiler_cpu), None)
    if there is None or not pocl.can_be_named(there.handle):
        return unless(False, "there is no PoCL whose CPU can be named")
    return unless("avx512f" in pocl.host_features(), "the CPU has no AVX-512")


def opened(spec: str) -> Device:
    """The device; the test is skipped where this machine lacks it."""
    place = device(spec)
    if place is None:                   # in CI `device` has raised by now, where it must be there
        pytest.skip(f"{DRIVERS[spec][0]} is missing")
    return place


def present() -> list[str]:
    """Those of SPECS that this machine has; the reference and the CPU path always are."""
    return [s for s in SPECS if s in ("reference", "cpu") or device(s) is not None]


def cpus() -> list[str]:
    """The OpenCL drivers of CPUs that are here: they pose as GPUs of any kind."""
    return [s for s in DRIVERS if device(s) is not None]


def run_graph(
    spec: str,
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    *,
    precision: str = "high",
    templates: bool = True,
) -> dict[str, np.ndarray]:
    """Passes, fusion, generation, build and run of a graph on a device; outputs by name. Where the
    device binds arrays, that gives the same bits (of OpenCL's, which take longer, some).
    """
    place = device(spec)
    assert place is not None, f"no device {spec}"
    plan = plan_on(place, graph, precision=precision, templates=templates)
    executable = place.load(plan, kernel_cache().for_target(place.target))
    outputs = executable.run([feeds[t.name] for t in plan.inputs])
    some = not spec.startswith("opencl") or zlib.crc32(repr(plan.steps).encode()) % 8 == 0
    bound = executable.bind() if some else None
    if bound is not None:
        for name, array in bound.inputs.items():
            array[...] = feeds[name]
        bound.compute()
        for t, copied in zip(plan.outputs, outputs):
            assert copied.tobytes() == bound.outputs[t.name].tobytes(), f"{t.name}: other bits"
    return {t.name: v for t, v in zip(plan.outputs, outputs)}
