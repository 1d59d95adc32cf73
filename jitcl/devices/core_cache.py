"""The second-level cache of this machine's cores, for the CPU path and for OpenCL on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

from jitcl import config

_CPU0 = Path("/sys/devices/system/cpu/cpu0")


def second_level_cache() -> int:
    """Bytes of a core's share of it; 0 where the system does not say."""
    try:
        known = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (AttributeError, ValueError, OSError):       # as Python on aarch64
        known = 0
    return known if known > 0 else _share(_CPU0)


def _share(cpu: Path) -> int:
    """A core's share of the second-level cache that sysfs tells of a CPU, in bytes; 0 where it
    tells nothing. Small cores of ARM have one for several of them."""
    try:
        threads = _count((cpu / "topology/thread_siblings_list").read_text())
        for index in sorted(cpu.glob("cache/index*")):
            level, kind = ((index / name).read_text().strip() for name in ("level", "type"))
            if level == "2" and kind != "Instruction":
                users = _count((index / "shared_cpu_list").read_text())
                size = config.parse_bytes((index / "size").read_text().strip() + "i")
                return size * threads // max(threads, users)
    except (OSError, ValueError):
        return 0
    return 0


def _count(cpus: str) -> int:
    """How many CPUs a list of sysfs names, as 0-3,8."""
    ends = [part.split("-") for part in cpus.strip().split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


__all__ = ["second_level_cache"]
