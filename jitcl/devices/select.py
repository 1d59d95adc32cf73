"""From the text that users write to a device: `cpu`, `opencl[:platform[:device]]`, `reference`, `auto`."""

from __future__ import annotations

from pathlib import Path

from jitcl import config
from jitcl.devices.base import Device, DeviceInfo
from jitcl.errors import DeviceError


def open_device(spec: str = "auto", cache_dir: Path | None = None) -> Device:
    """The device that `spec` names. DeviceError lists what there is for an unknown one."""
    spec = spec.strip()
    if spec == "auto":
        spec = str(config.get("device"))
    if spec == "auto":
        spec = preferred()
    kind, _, rest = spec.partition(":")
    if kind == "cpu" and not rest:
        from jitcl.devices.cpu.device import CpuDevice
        return CpuDevice()
    if kind == "opencl":
        from jitcl.devices.opencl.device import OpenClDevice
        return OpenClDevice(rest)
    if kind == "reference" and not rest:
        from jitcl.devices.reference import ReferenceDevice
        return ReferenceDevice()
    known = ", ".join(d.spec for d in devices())
    raise DeviceError(f"no device '{spec}'\n  There are: {known}\n"
                      f"  Write cpu, reference, opencl, opencl:<platform> or opencl:<platform>:<device>, "
                      f"each by number or by part of its name.")


def preferred() -> str:
    """A GPU where there is one, else the CPU path."""
    for info in _opencl():
        if info.target.device_type == "gpu":
            return info.spec
    return "cpu"


def devices() -> list[DeviceInfo]:
    """All devices of this machine: OpenCL ones first, then the CPU path and the reference."""
    from jitcl.devices.cpu.device import probe_target
    from jitcl.devices.reference import TARGET
    return [*_opencl(), DeviceInfo("cpu", probe_target(), "generated Numba code"),
            DeviceInfo("reference", TARGET, "NumPy interpreter of the kernels; slow, for checking")]


def _opencl() -> list[DeviceInfo]:
    from jitcl.devices.opencl.platform import list_devices
    return list_devices()
