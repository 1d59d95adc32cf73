"""A profile's kernels under the measured peaks of their devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitcl import config
from jitcl.bench.peaks import Peaks, measure_peaks
from jitcl.bench.roofline import placed
from jitcl.bench.steps import StepTime
from jitcl.runtime.cache import kernel_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jitcl.profiling.profile import Profile
    from jitcl.runtime.cache import DeviceCache


def peaks_of(profile: Profile, cache: DeviceCache | None = None) -> dict[str, Peaks]:
    """Peaks of the devices that models ran on, by name: seconds of measuring each."""
    found = {}
    for name, device in profile.opened.items():
        if device.target.kind in ("cpu", "opencl"):
            kept = kernel_cache().for_target(device.target) if cache is None else cache
            found[name] = measure_peaks(device, kept, int(config.get("threads")))
    return found


def under_roof(profile: Profile, peaks: Mapping[str, Peaks]) -> None:
    """Say of each kernel what share of its roof it reaches."""
    for k in profile.kernels:
        if k.device in peaks and k.seconds > 0 and (k.flops or k.bytes):
            step = StepTime(k.name, k.name, "", k.ops, k.nodes, k.flops // k.launches,
                            k.bytes // k.launches, k.seconds / k.launches)
            found = placed(step, peaks[k.device], 0.0)
            k.of_roof, k.bound = found.of_roof, found.bound


__all__ = ["peaks_of", "under_roof"]
