"""What is known of a device, as data: no other package asks for a device's name."""

from jitcl.target.cpu_core import CpuCore
from jitcl.target.target import Target

__all__ = ["CpuCore", "Target"]
