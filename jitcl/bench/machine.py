"""What a time was measured on: processor, cores, load."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from jitcl.cores import usable_cores

BUSY = 0.25                 # load a core: beyond that, somebody else computes


@dataclass(frozen=True)
class Machine:
    """load: processes that want to run, averaged over a minute; None where no one counts them."""

    cpu: str
    cores: int              # that this process may use
    system: str
    python: str
    load: float | None

    @property
    def busy(self) -> bool:
        return self.load is not None and self.load > BUSY * self.cores

    def __str__(self) -> str:
        load = "unknown load" if self.load is None else f"load average {self.load:.2f}"
        return f"{self.cpu}, {self.cores} cores, {self.system}, Python {self.python}, {load}"


def this_machine() -> Machine:
    return Machine(_processor(), usable_cores(),
                   f"{platform.system()} {platform.machine()}", platform.python_version(),
                   load_average())


def load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _processor() -> str:
    """As Linux calls it, else as Python's library does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for key in ("model name", "Hardware", "Model"):         # x86, then ARM boards
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine() or "unknown processor"
