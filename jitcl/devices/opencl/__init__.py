"""OpenCL: find drivers and devices, probe them, build and cache programs, run plans.

    open_device("opencl:pocl")     the device that a spec names, ready to load plans
    list_devices()                 what there is, without building anything

Nothing here makes an OpenCL call, or imports pyopencl, before one of these two is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitcl.devices.base import Progress, Tally
    from jitcl.devices.opencl.device import OpenClDevice
    from jitcl.devices.opencl.platform import Found


def list_devices() -> tuple[Found, ...]:
    """Every OpenCL device of this machine, in the order of indices; empty without a driver."""
    from jitcl.devices.opencl.platform import find_devices

    return find_devices()


def open_device(spec: str = "opencl", progress: Progress | Tally | None = None) -> OpenClDevice:
    """The device that `spec` names: 'opencl', 'opencl:0', 'opencl:0:1', 'opencl:pocl',
    'opencl:intel:epyc'. `progress` is told of probes, where the device was never seen before.

    Raises DeviceError, listing what there is, where the spec fits none or several platforms.
    """
    from jitcl.devices.opencl.device import OpenClDevice
    from jitcl.devices.opencl.platform import select

    return OpenClDevice(select(spec), progress=progress)


def shared_device(spec: str, progress: Progress | Tally | None = None) -> OpenClDevice:
    """The same, of which there is one in this process."""
    from jitcl.devices.opencl.device import shared_device as shared
    from jitcl.devices.opencl.platform import select

    return shared(select(spec), progress)
