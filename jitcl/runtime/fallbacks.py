"""What stepped down, and how the user is told: which kernels, to which variant, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitcl.codegen.plan import Plan
from jitcl.devices.base import Device
from jitcl.devices.faults import Fault
from jitcl.errors import JitclError
from jitcl.target.variants import VARIANTS

if TYPE_CHECKING:
    from jitcl.codegen.generate import Generated

NAMES_SHOWN = 4
STAGES = {"build": "in the compiler", "load": "when its binary was made and loaded",
          "launch": "at the first launch", "check": "in a check of results", "run": "in a run",
          "probe": "in a probe", "try": "before a kernel was named"}
ENDED = re.compile(r"(SIG[A-Z0-9]+|exit status \d+): (.*)")       # a signature of a crash
MEMORY_SAYS = {             # of one of runtime/specialise.MEMORY_PLANS
    "low": "the model runs in the tightest memory plan",
    "streamed": "the model's buffers are made when they are needed, which is slower",
    "cpu": "the whole model runs on the CPU"}
_SAYS = {r.name: r.says for r in VARIANTS} | {"cpu": "on the CPU"}


@dataclass(frozen=True)
class KernelFallback:
    """A step that is not what it would be on a good driver. `variant`: of target/variants.py."""

    step: str
    kernel: str
    nodes: tuple[str, ...]
    variant: str
    why: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))      # a list, from the cache

    @property
    def says(self) -> str:
        """The variant for people: "without local memory"."""
        return _SAYS.get(self.variant, f"as variant '{self.variant}'")


@dataclass(frozen=True)
class MemoryFallback:
    """Why a whole model got a smaller plan, or the CPU: `device` ran out of memory.

    peak, largest: bytes in all, and of the largest allocation, of the plan that did not fit, where
    the device says itself that it has less; 0 where an allocation failed all the same.
    """

    device: str
    why: str
    peak: int = 0
    largest: int = 0

    @classmethod
    def of(cls, device: Device, plan: Plan, error: JitclError) -> MemoryFallback:
        """From the plan that did not fit, and the error that said so."""
        why = str(error).splitlines()[0].removeprefix(f"{device.name}: ")
        largest, _ = max(plan.allocations(), default=(0, ""))
        fallback = cls(device.name, why, plan.peak_bytes, largest)
        return cls(device.name, why) if fallback.fits_now(device) else fallback

    def fits_now(self, device: Device) -> bool:
        """Whether the device has room by now: a driver may report what is free at the moment."""
        target = device.target
        return bool(self.peak) and (
            self.peak <= target.global_memory and self.largest <= target.max_allocation)


def kernel_fallbacks(generated: Generated, plan: Plan) -> tuple[KernelFallback, ...]:
    """The steps of a plan that are on a lower variant."""
    return tuple(
        KernelFallback(s.name, s.kernel, tuple(n for n, _ in s.origins), s.variant,
                    generated.whys.get(s.group, ""))
        for s in plan.steps if s.variant)


def warning(device: str, stepped: Sequence[KernelFallback], new: Sequence[Fault], memory: str,
         fallback: MemoryFallback | None, shortage: str = "") -> str:
    """One line for the user: what failed, what runs otherwise, where it is remembered; "" where
    all is as it should be. `shortage`: what the system lacked, so that nothing is remembered.
    """
    parts = []
    if fallback is not None:
        parts.append(f"out of memory ({fallback.why}); {MEMORY_SAYS[memory]}")
    if stepped:
        parts.append(f"{_failed(stepped, new)}; {runs(stepped)}")
        parts.append(f"not remembered, as the system is to blame: {shortage}" if shortage else
                     "remembered: `jitcl devices` shows it, `jitcl cache retry` tries again")
    if not parts:
        return ""
    return f"{device}: " + "; ".join(" ".join(p.split()) for p in parts)


def _failed(stepped: Sequence[KernelFallback], new: Sequence[Fault]) -> str:
    """"its driver failed on 3 kernels (SIGABRT in the compiler: LLVM ERROR: ...)"."""
    if not new:
        why = next((s.why for s in stepped if s.why), "")
        return "its driver failed on such kernels before" + (f" ({why})" if why else "")
    count = len({f.entry for f in new})
    kinds = list(dict.fromkeys((f.stage, f.signature) for f in new))
    stage, signature = max(kinds, key=lambda k: sum((f.stage, f.signature) == k for f in new))
    where = STAGES.get(stage, f"at {stage}")
    crash = ENDED.fullmatch(signature)
    what = f"{crash[1]} {where}: {crash[2]}" if crash else f"{where}: {signature}"
    more = f", and in {len(kinds) - 1} other ways" if len(kinds) > 1 else ""
    return f"its driver failed on {count} kernel{'s' * (count > 1)} ({what}{more})"


def runs(stepped: Sequence[KernelFallback]) -> str:
    """"softmax_12, softmax_31 run without local memory, conv_7 on the CPU"."""
    by_variant: dict[str, list[str]] = {}
    for s in stepped:
        by_variant.setdefault(s.says, []).append(s.step)
    found: list[str] = []
    for says, steps in by_variant.items():
        names = ", ".join(steps[:NAMES_SHOWN])
        if len(steps) > NAMES_SHOWN:
            names += f" and {len(steps) - NAMES_SHOWN} more"
        verb = "" if found else (" run" if len(steps) > 1 else " runs")
        found.append(f"{names}{verb} {says}")
    return ", ".join(found)


__all__ = ["KernelFallback", "MemoryFallback", "kernel_fallbacks", "runs", "warning"]
