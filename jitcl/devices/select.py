"""From the text that users write to a device: `cpu`, `opencl[:platform[:device]]`, `reference`,
`auto`, `profile:<device>`.
"""

from __future__ import annotations

import logging

from jitcl import config
from jitcl.devices.base import Device, DeviceInfo, Progress, Tally
from jitcl.errors import DeviceError

log = logging.getLogger("jitcl.devices")


def open_device(spec: str = "auto", progress: Progress | Tally | None = None, *,
                shared: bool = False) -> Device:
    """The device that `spec` names. DeviceError lists what there is for an unknown one. `progress`
    is told of probes, where a device was never seen before. shared: the one that this process has
    open already, if it has.
    """
    spec = spec.strip()
    if spec == "auto":
        spec, why = resolve_auto(progress)
        log.info("device 'auto' is '%s': %s", spec, why)
        config.say(1, f"device 'auto' is '{spec}': {why}")
    kind, _, rest = spec.partition(":")
    if kind == "cpu" and not rest:
        from jitcl.devices.cpu.device import CpuDevice

        return CpuDevice()
    if kind == "opencl":
        from jitcl.devices import opencl

        return (opencl.shared_device if shared else opencl.open_device)(spec, progress)
    if kind == "reference" and not rest:
        from jitcl.devices.reference import ReferenceDevice

        return ReferenceDevice()
    if kind == "profile":
        from jitcl.devices.profile import ProfileDevice

        return ProfileDevice(rest)
    known = ", ".join(d.spec for d in devices())
    raise DeviceError(
        f"no device '{spec}'\n  There are: {known}\n"
        f"  Write cpu, reference, opencl, opencl:<platform> or opencl:<platform>:<device>, "
        f"each by number or by part of its name, or profile:<device> to compile only."
    )


def resolve_auto(progress: Progress | Tally | None = None) -> tuple[str, str]:
    """(device, why): JITCL_DEVICE if it is set, else the first GPU, else the CPU path."""
    wanted = str(config.get("device"))
    if wanted != "auto":
        return wanted, "JITCL_DEVICE says so"
    from jitcl.devices.opencl import list_devices

    refused = []
    for found in list_devices():
        if found.kind == "gpu":
            from jitcl.devices.opencl.probe import probe_target

            if probe_target(found, progress).dependable:
                return found.spec, f"the first GPU, {found.name}"
            refused.append(found.name)
    if refused:
        return "cpu", f"{', '.join(refused)} can't be relied on: see jitcl devices"
    return "cpu", "there is no OpenCL GPU, and the CPU path is faster than OpenCL on a CPU"


def devices(progress: Progress | Tally | None = None) -> list[DeviceInfo]:
    """All devices of this machine: OpenCL ones first, then the CPU path and the reference.

    progress: called as progress(done, total, what is under way) where a device is probed.
    """
    from jitcl.devices.cpu.device import probe_target
    from jitcl.devices.reference import TARGET

    return [
        *_opencl(Tally.of(progress)), DeviceInfo("cpu", probe_target(), "generated Numba code"),
        DeviceInfo("reference", TARGET, "NumPy interpreter of the kernels; slow, for checking")]


def _opencl(tally: Tally) -> list[DeviceInfo]:
    from jitcl.devices.faults import fault_database
    from jitcl.devices.opencl import list_devices
    from jitcl.devices.opencl.probe import examine, probe_target

    found = []
    for f in list_devices():
        target = probe_target(f, tally)
        found.append(DeviceInfo(f.spec, target, f"OpenCL, {f.platform}", examine(f)[1],
                                fault_database(target).faults))
    return found
