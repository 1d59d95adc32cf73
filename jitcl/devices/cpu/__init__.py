"""The CPU device. Importing it imports llvmlite, never Numba: only build workers do that."""

from jitcl.devices.cpu.device import CpuDevice, CpuExecutable, probe_target

__all__ = ["CpuDevice", "CpuExecutable", "probe_target"]
