"""The report of a program: its parts, host steps and cuts, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitcl.codegen.plan import LANGUAGE
from jitcl.devices.base import Device
from jitcl.passes.options import Options
from jitcl.runtime.program import Ran
from jitcl.runtime.report import Report, Row, report_of


def report_of_program(model: str, device: Device, ran: Sequence[Ran],
                      options: Options | None = None) -> Report:
    """All parts as one report: steps and host rows over all, the highest peak of memory."""
    total = replace(report_of(model, device, None, options), from_cache=bool(ran))
    rows: list[Row] = []
    entries: set[str] = set()
    for r in ran:
        depth = len(r.where.hops)
        if r.special is not None:
            part = report_of(model, device, r.special,
                             r.model.options if r.model is not None else options)
            own = LANGUAGE[r.special.device.target.kind]
            entries |= {k.entry for k in r.special.plan.kernels if k.language == own}
            rows.append(Row("part", depth, steps=len(part.steps), kernels=part.kernels,
                            flops=sum(s.flops for s in part.steps), peak_bytes=part.peak_bytes,
                            sizes=part.sizes, no_family=part.no_family))
            total = replace(
                total, device=part.device, steps=(*total.steps, *part.steps),
                host=(*total.host, *part.host),
                kernels=len(entries), peak_bytes=max(total.peak_bytes, part.peak_bytes),
                from_cache=total.from_cache and part.from_cache,
                stepped_down=(*total.stepped_down, *part.stepped_down),
                computes=total.computes or part.computes,
                precision_why=total.precision_why or part.precision_why,
                promoted=tuple(dict.fromkeys((*total.promoted, *part.promoted))),
                tuned=(*total.tuned, *part.tuned),
                unsearched=total.unsearched + part.unsearched,
                memory=total.memory or part.memory, memory_why=total.memory_why or part.memory_why)
        for step in r.level.steps:
            kind = "host" if step.repeats is None else "loop"
            rows.append(Row(kind, depth, step.name, step.op_type, step.why))
        for node, op, why in r.level.waits:
            rows.append(Row("cut", depth, node, op, why))
    hosted = tuple((row.node, row.op_type, row.why) for row in rows if row.kind == "host")
    return replace(total, host=tuple(dict.fromkeys((*total.host, *hosted))), program=tuple(rows))


__all__ = ["report_of_program"]
