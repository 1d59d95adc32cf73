"""What a model says of what it has compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jitcl.codegen.plan import Plan
from jitcl.devices.base import Device
from jitcl.ir.types import Sym
from jitcl.passes.options import Options
from jitcl.runtime.calls import Calls
from jitcl.runtime.source import Source, Tensor

if TYPE_CHECKING:
    from jitcl.runtime.program import Program
    from jitcl.runtime.report import Report  # a run does without: 0.6 MB
    from jitcl.runtime.specialise import Specialisation


class Inspected(Calls):
    """Of a model, what was compiled for the last shapes."""

    source: Source
    device: Device
    options: Options
    program: Program | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    _last: Specialisation | None

    def report(self) -> Report:
        """What was compiled for the last shapes: kernels, fused ops, memory; and what runs on the
        host.
        """
        from jitcl.runtime.program_report import report_of_program
        from jitcl.runtime.report import report_of

        self._check_open()
        name, device, options = self.source.name, self.device, self.options
        report = (report_of(name, device, self._last, options) if self.program is None
                  else report_of_program(name, device, self.program.last, options))
        free = ((t.name, f"[{', '.join(map(str, t.shape))}]") for t in self.inputs
                if any(isinstance(d, Sym) for d in t.shape))
        return replace(report, free=tuple(free))

    def _repr_html_(self) -> str:
        """What notebooks show: inputs and outputs, and the report where it is open."""
        from jitcl.codegen.text import html_table

        rows = [(kind, str(t)) for kind, tensors in (("input", self.inputs),
                                                     ("output", self.outputs)) for t in tensors]
        return html_table(f"{self.source.name} on {self.device.name}", ("", "tensor"), rows) + (
            "" if self.closed else self.report()._repr_html_())

    @property
    def plan(self) -> Plan | None:
        """The plan of the last shapes that were run or compiled; of a program, that of its first
        part.
        """
        return next(iter(self.plans), None)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all compiled parts that the last run met, in order."""
        return tuple(special.plan for special in self._met)

    @property
    def plans_of_run(self) -> tuple[Plan, ...]:
        """The same at the shapes of that run, where one plan serves many."""
        return tuple(special.plan_of_run for special in self._met)

    @property
    def _met(self) -> list[Specialisation]:
        if self.program is not None:
            return [r.special for r in self.program.last if r.special is not None]
        return [self._last] if self._last else []

    @property
    def last(self) -> Specialisation | None:
        """What was run or compiled last, of a model that is one graph."""
        return self._last


__all__ = ["Inspected"]
