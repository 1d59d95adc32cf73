"""`model.report()`: what was compiled, into which kernels, with how much memory, and what runs on
the host.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jitcl.codegen.plan import Plan
from jitcl.codegen.text import amount
from jitcl.devices.base import Device


@dataclass(frozen=True)
class StepReport:
    """One kernel launch: its name, its template ("" = generated loops), and the model's nodes
    inside.
    """

    name: str
    kernel: str
    template: str
    nodes: tuple[tuple[str, str], ...]  # (node name, op type)
    flops: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """Printable; `host` lists (node, op type, why) of all that does not run in a generated kernel.
    """

    model: str
    device: str
    steps: tuple[StepReport, ...]
    host: tuple[tuple[str, str, str], ...]
    kernels: int
    peak_bytes: int
    from_cache: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if not self.steps:
            return (
                f"{self.model} on {self.device}: not compiled yet "
                "(shapes are not known before the first run)"
            )
        flops = sum(s.flops for s in self.steps)
        by_template = sum(bool(s.template) for s in self.steps)
        lines = [
            f"{self.model} on {self.device}: {len(self.steps)} steps of {self.kernels} kernels "
            f"({by_template} steps by templates), {amount(flops, 'FLOP')}, "
            f"peak memory {amount(self.peak_bytes, 'B')}"
            + (", plan from the cache" if self.from_cache else "")
        ]
        lines += [f"  host: '{name}' ({op}): {why}" for name, op, why in self.host] or [
            "  every op runs in a generated kernel; none on the host"
        ]
        return "\n".join(lines)


def report_of(model: str, device: Device, plan: Plan | None, from_cache: bool) -> Report:
    """The report of a plan. Plans hold no host steps: what cannot be compiled is refused at import.
    """
    if plan is None:
        return Report(model, device.name, (), (), 0, 0, False)
    template = {k.entry: k.template for k in plan.kernels}
    steps = tuple(
        StepReport(s.name, s.kernel, template[s.kernel], s.origins, s.flops, s.bytes)
        for s in plan.steps
    )
    return Report(model, device.name, steps, (), len(plan.kernels), plan.peak_bytes, from_cache)
