"""Devices that aren't there: models compile for them, and nothing runs."""

from __future__ import annotations

from typing import Literal, NoReturn

from jitcl.codegen.plan import Plan
from jitcl.devices.base import Cache, Progress, Tally
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.errors import DeviceError
from jitcl.target import Target
from jitcl.target.profiles import find_profile


class ProfileDevice:
    """`profile:mali-g610`: what `jitcl dump` shows the code for. DeviceError for an unknown name.
    """

    memory_mode: Literal["arena", "slots"] = "slots"     # as for the OpenCL device itself
    faults: FaultDatabase | None = None
    host_target: Target | None = None

    def __init__(self, name: str) -> None:
        self.profile = find_profile(name)
        self.target = self.profile.target
        self.name = self.hardware = f"profile:{self.profile.name}"

    def reopen(self) -> None:
        """Nothing: nothing was opened."""

    def ahead(self, cache: Cache | None) -> None:
        """Nothing is built."""

    def load(self, plan: Plan, cache: Cache | None = None, progress: Progress | Tally | None = None,
             options: LoadOptions | None = None) -> NoReturn:
        """Always a DeviceError: there is no such device here."""
        raise DeviceError(
            f"'{self.name}' is a description of {self.target.name}, not a device: it compiles "
            f"{len(plan.kernels)} kernels, and can't run them\n"
            f"  See them with `jitcl dump MODEL --device {self.name} -o DIR`, or run on one of "
            f"those that `jitcl devices` lists.")
