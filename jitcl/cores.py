"""How many cores this process has: its affinity and its control groups (`docker --cpus`) say."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on, at least 1: those of its affinity where the system has one,
    or fewer where a control group allows less time than they have. root: where Linux's /proc and
    /sys are.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, _allowed(root) or cores)


@functools.cache                            # every run asks, and files of the kernel's take a while
def _allowed(root: Path) -> int | None:
    """Cores' worth of time that control groups allow, None where none has a bound. One and a half
    cores are two: a thread of one alone would leave a third of the time unused.
    """
    return min((-(-quota // period) for quota, period in _quotas(root)), default=None)


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Microseconds of CPU time in so many of the clock, of each control group that this process is
    in and that has a bound: its own and those around it.
    """
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):          # number:controllers:path
        controllers, colon, path = line.partition(":")[2].partition(":")
        if not colon:
            continue
        if not controllers:                     # version 2, which may lie beside version 1
            files: tuple[str, ...] = ("cpu.max",)
            folders = (mounted, mounted / "unified")
        elif "cpu" in controllers.split(","):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            folders = (mounted / controllers, mounted / "cpu")
        else:
            continue
        # In a container the path may be the host's: its folders aren't there, but the container's
        # own group is what is mounted, at the top.
        inside = Path(path.lstrip("/"))
        for folder in folders:
            for group in (inside, *inside.parents):
                found = " ".join(text for name in files for text in _lines(folder / group / name))
                quota, _, period = found.partition(" ")
                if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
                    yield int(quota), int(period)           # else "max", -1, or not there


def _lines(file: Path) -> list[str]:
    """The lines of a file of the kernel's; none where there is no such file to be read."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
