"""Find OpenCL devices, select one by index or name, and probe what it can do into a `Target`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from jitcl import forking
from jitcl.devices.opencl import icd, pocl
from jitcl.errors import DeviceError
from jitcl.forking import cached_property
from jitcl.target.quirks import Driver
from jitcl.target.target import Target

log = logging.getLogger("jitcl.opencl")
_lock = forking.lock()
_found: tuple[Found, ...] | None = None
_loader_error = ""
_found_in = 0                       # forking.generation: which process set the drivers up


@dataclass(frozen=True)
class Found:
    """A device that a driver offers. `handle` is pyopencl's Device."""

    platform_index: int
    device_index: int
    platform: str  # "Portable Computing Language"
    platform_version: str  # "OpenCL 3.0 PoCL 3.0-rc2 ..."
    name: str
    handle: Any
    compiler_cpu: str = ""  # PoCL: what its compiler generates code for

    @property
    def spec(self) -> str:
        """The spec that selects this device whatever other drivers are called."""
        return f"opencl:{self.platform_index}:{self.device_index}"

    @property
    def identity(self) -> dict[str, Any]:
        """What the view that another process has of the same device agrees in."""
        return {"platform_index": self.platform_index, "device_index": self.device_index,
                "platform": self.platform, "platform_version": self.platform_version,
                "name": self.name, "driver": self.handle.driver_version,
                "compiler_cpu": self.compiler_cpu}

    @cached_property
    def kind(self) -> str:
        """ "gpu", "accelerator" or "cpu"."""
        import pyopencl as cl

        bits = self.handle.type
        if bits & cl.device_type.GPU:
            return "gpu"
        return "accelerator" if bits & cl.device_type.ACCELERATOR else "cpu"

    @property
    def driver(self) -> Driver:
        """What the quirk table is asked about."""
        device = self.handle
        details = f"{self.platform_version} {_clean(device.version)}"
        return Driver(self.platform, device.driver_version, self.name, self.compiler_cpu, details,
                      _clean(device.extensions))

    def __str__(self) -> str:
        version = self.handle.driver_version
        return f"{self.spec}  {self.name}  ({self.platform}, {self.kind}, driver {version})"


def find_devices() -> tuple[Found, ...]:
    """Every device of every driver, in the loader's order; empty where there is no driver."""
    global _found, _found_in
    with _lock:
        if _found is None:
            _found, _found_in = _enumerate(), forking.generation
        return _found


def check_fork(found: Found, target: Target) -> None:
    """DeviceError where a driver that the parent of this process used can't be used in it."""
    if forking.generation == _found_in or target.fork_safe:
        return
    raise DeviceError(
        f"{found.name} ({found.platform}): this process was forked from one that had looked for "
        "OpenCL devices, and this driver does not work in such children: its threads are not "
        "copied\n"
        "  Start processes with multiprocessing.get_context('spawn') or 'forkserver' (gunicorn: "
        "without --preload).\n"
        "  Or let the children, and not their parent, call jitcl.devices() and jitcl.compile(); "
        "device='cpu' works in forked children.")


def _enumerate() -> tuple[Found, ...]:
    icd.setup()
    with forking.OPENCL:
        return _offered()


def loader_error() -> str:
    """Why pyopencl can't be imported, as without the OpenCL loader that it was built for; ""."""
    find_devices()
    return _loader_error


def _offered() -> tuple[Found, ...]:
    global _loader_error
    try:
        import pyopencl as cl
    except (ImportError, OSError) as error:
        _loader_error = str(error)
        log.warning("there are no OpenCL devices, as pyopencl can't be loaded: %s", error)
        return ()

    try:
        platforms = cl.get_platforms()
    except (
        cl.Error, RuntimeError) as error:  # RuntimeError: pyopencl's "no CL platforms available"
        log.debug("no OpenCL platform: %s", error)
        return ()
    found = []
    for p, platform in enumerate(platforms):
        try:
            handles = platform.get_devices()
        except cl.Error as error:  # a driver without a device
            log.debug("platform %s: %s", platform.name, error)
            continue
        for d, handle in enumerate(handles):
            cpu = pocl.name_cpu(handle)
            name = _clean(handle.name)
            found.append(
                Found(p, d, _clean(platform.name), _clean(platform.version), name, handle, cpu))
    return tuple(found)


def _clean(text: str) -> str:
    return " ".join(text.replace("\0", " ").split())


def select(spec: str) -> Found:
    """The device that 'opencl[:platform[:device]]' names, each part an index or part of a name.

    A name part is matched without regard to case against the platform's name and version, and
    where no platform has it, against the devices' names. Plain 'opencl' takes the first GPU, else
    the first device. Raises DeviceError, listing what there is, where nothing or more than one
    platform fits.
    """
    devices = find_devices()
    head, *parts = spec.split(":")
    if head.lower() != "opencl" or len(parts) > 2 or any(not p.strip() for p in parts):
        raise DeviceError(_message(f"'{spec}' is no OpenCL device", devices))
    if not devices:
        raise DeviceError(_no_driver(spec))
    if not parts:
        return min(devices, key=lambda f: ("gpu", "accelerator", "cpu").index(f.kind))
    chosen = _narrow(devices, parts, spec)
    if not chosen:
        raise DeviceError(_message(f"no OpenCL device fits '{spec}'", devices))
    return chosen[0]


def _narrow(devices: tuple[Found, ...], parts: list[str], spec: str) -> list[Found]:
    """The devices of the platform that parts[0] names, and of these the one that parts[1] names."""
    first = parts[0].strip().lower()
    if first.isdigit():
        chosen = [f for f in devices if f.platform_index == int(first)]
    else:
        chosen = [f for f in devices if first in f"{f.platform} {f.platform_version}".lower()]
        chosen = chosen or [f for f in devices if first in f.name.lower()]
        if len({f.platform_index for f in chosen}) > 1:
            raise DeviceError(_message(f"'{spec}' fits more than one platform", chosen))
    if len(parts) == 1:
        return chosen
    second = parts[1].strip().lower()
    if second.isdigit():
        return [f for f in chosen if f.device_index == int(second)]
    return [f for f in chosen if second in f.name.lower()]


def _message(what: str, devices: tuple[Found, ...] | list[Found]) -> str:
    lines = [f"{what}: wanted opencl[:platform[:device]], each an index or part of a name"]
    lines += [f"  {f}" for f in devices] or ["  (there is no OpenCL device)"]
    hint = icd.missing_parts()
    return "\n".join(lines + ([f"  {hint}"] if hint else []))


def _no_driver(spec: str) -> str:
    hint = icd.missing_parts() or "`jitcl doctor` says which this machine could have, and how."
    return f"'{spec}': no OpenCL driver offers a device\n  {hint}"
