"""Where plans run: `cpu`, `opencl`, `reference`; `jitcl.devices()` lists what this machine has.

Python binds an imported subpackage to its name in the package, so `jitcl.devices` is this module
whatever jitcl/__init__.py says; being callable, it is the function of the API as well.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitcl.devices.base import DeviceInfo


class _Devices(ModuleType):
    def __call__(self) -> list[DeviceInfo]:
        """All devices of this machine: OpenCL ones first, then the CPU path and the reference."""
        from jitcl.devices.select import devices
        return devices()


sys.modules[__name__].__class__ = _Devices
