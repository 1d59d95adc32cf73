"""The overview of `jitcl dump`: passes, launches and memory on one page, or as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from jitcl.cli.console import duration, node_names, table
from jitcl.cli.lowered import FUSE, LoweredModel, LoweredProgram
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step
from jitcl.codegen.text import amount

if TYPE_CHECKING:
    from rich.console import Console


def node_count(lowered_graph: Any) -> int:
    """Nodes that compute something."""
    return sum(n.op not in ("input", "const") for n in lowered_graph.nodes)


def kind_bytes(plan: Plan) -> dict[str, int]:
    """Bytes by what they are for; `temp` is what the allocations for temporaries hold."""
    found: dict[str, int] = {"const": 0, "input": 0, "output": 0}
    for b in plan.buffers:
        if b.kind != "temp":
            found[b.kind] += b.nbytes
    return {**found, "temp": sum(plan.slots)}


def unshared_bytes(plan: Plan) -> int:
    """Bytes of all temporaries if none shared memory with another; parts are in their wholes."""
    return sum(b.nbytes for b in plan.buffers
               if b.kind == "temp" and b.slot >= 0 and b.whole < 0)


def geometry(step: Step) -> str:
    """Launch geometry (OpenCL): "256x64 by 16x4", work-items by those of a work-group."""
    if not step.global_size:
        return ""
    local = "x".join(map(str, step.local_size)) or "the driver's choice"
    return f"{'x'.join(map(str, step.global_size))} by {local}"


def launch_text(step: Step, source: KernelSource) -> str:
    """Launch geometry, and the integer parameters behind the buffers: "each 1, tasks 64"."""
    params = ", ".join(f"{name} {value}" for name, value in zip(source.params, step.params))
    return "; ".join(filter(None, (geometry(step), params)))


def buffer_text(b: BufferSpec) -> str:
    return f"{b.dtype}[{','.join(map(str, b.shape))}]"


def show(lowered: LoweredModel | LoweredProgram, out: Console) -> None:
    """Print the overview; of a program its steps, then that of each part."""
    if isinstance(lowered, LoweredProgram):
        count = len(lowered.parts)
        out.print(f"{lowered.report.model}: a program of {count} part{'s' * (count != 1)}")
        for text in lowered.rows():
            out.print(text)
        for k, part in enumerate(lowered.parts, 1):
            out.print(f"\npart {k}")
            show(part, out)
        return
    plan, model = lowered.plan, lowered.model
    options = ", ".join(f"{k}={v}" for k, v in model.options.key_parts().items())
    out.print(f"{model.source.name} on {model.device.name} ({options})")
    for kind, tensors in (("in ", plan.inputs), ("out", plan.outputs)):
        for t in tensors:
            out.print(f"  {kind} '{t.name}' {t.dtype}[{','.join(map(str, t.shape))}]")
    out.print(_passes(lowered))
    out.print(_steps(lowered))
    sizes = kind_bytes(plan)
    out.print(f"{len(plan.steps)} launches of {len(plan.kernels)} kernels, "
              f"{amount(sum(s.flops for s in plan.steps), 'FLOP')}, "
              f"{amount(sum(s.bytes for s in plan.steps), 'B')} read and written")
    out.print(f"memory: {amount(plan.peak_bytes, 'B')} at peak = " + " + ".join(
        f"{amount(n, 'B')} {kind}" for kind, n in sizes.items() if n) +
        f" (temporaries unshared: {amount(unshared_bytes(plan), 'B')})")


def _passes(lowered: LoweredModel) -> Any:
    rows = table("passes", "#", "after", "nodes", "constants", "time",
                 right=("#", "nodes", "constants", "time"))
    for k, stage in enumerate(lowered.stages):
        constants = sum(n.type.nbytes for n in stage.graph.nodes if n.op == "const")
        rows.add_row(str(k), stage.name + ("" if stage.changed else "  (no change)"),
                     str(node_count(stage.graph)), amount(constants, "B"),
                     duration(stage.seconds) if k else "")
    views = sum(not g.steps for g in lowered.groups)
    free = f", {views} of them views" if views else ""
    rows.add_row(str(len(lowered.stages)), f"{FUSE}  ({len(lowered.groups)} groups{free})", "", "",
                 "")
    return rows


def _steps(lowered: LoweredModel) -> Any:
    rows = table("launches", "#", "name", "ops", "nodes", "result", "work", "moved", "template",
                 "launch", "kernel", right=("#", "work", "moved"))
    numbered = 0
    for g in lowered.groups:
        ops = Counter(n.op for n in g.group.members)
        text = " ".join(op if n == 1 else f"{op}({n})" for op, n in ops.items())
        for step in g.steps:
            template = lowered.kernels[step.kernel].template or "loops"
            rows.add_row(str(numbered), step.name, text,
                         node_names([n for n, _ in step.origins]), str(g.group.root.type),
                         amount(step.flops, "FLOP"), amount(step.bytes, "B"), template,
                         geometry(step), step.kernel)
            numbered += 1
    return rows


def as_dict(lowered: LoweredModel | LoweredProgram) -> dict[str, Any]:
    """The overview for programs: plain data, sizes in bytes."""
    if isinstance(lowered, LoweredProgram):
        return {"program": [vars(row) for row in lowered.report.program],
                "parts": [as_dict(p) for p in lowered.parts]}
    plan, model = lowered.plan, lowered.model
    tensors = {kind: [{"name": t.name, "dtype": t.dtype, "shape": t.shape} for t in specs]
               for kind, specs in (("inputs", plan.inputs), ("outputs", plan.outputs))}
    ops = {s.name: [n.op for n in g.group.members] for g in lowered.groups for s in g.steps}
    return {
        "model": model.source.name, "device": model.device.name,
        "options": model.options.key_parts(), **tensors,
        "passes": [{"name": s.name, "nodes": node_count(s.graph), "changed": s.changed,
                    "seconds": s.seconds} for s in lowered.stages],
        "groups": len(lowered.groups),
        "steps": [{
            "name": s.name, "kernel": s.kernel, "ops": ops[s.name],
            "template": lowered.kernels[s.kernel].template,
            "declined": s.declined, "flops": s.flops, "bytes": s.bytes,
            "global_size": s.global_size, "local_size": s.local_size, "params": s.params,
            "buffers": [plan.buffers[b].name for b in s.buffers],
            "writes": [plan.buffers[b].name for b in s.writes],
            "nodes": [{"name": n, "op_type": t} for n, t in s.origins]} for s in plan.steps],
        "kernels": len(plan.kernels),
        "memory": {"peak_bytes": plan.peak_bytes, **kind_bytes(plan), "slots": plan.slots,
                   "temp_unshared": unshared_bytes(plan)}}
