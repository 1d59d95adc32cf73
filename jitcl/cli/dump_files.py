"""The files of `jitcl dump -o DIR`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jitcl.cli.drawings import groups_dot, memory_svg
from jitcl.cli.lowered import FUSE, Launched, LoweredModel, LoweredProgram
from jitcl.cli.overview import buffer_text, launch_text, unshared_bytes
from jitcl.codegen.generate import COMMENT
from jitcl.codegen.plan import KernelSource, Step
from jitcl.codegen.schedule_gpu import schedule_gpu
from jitcl.codegen.text import amount
from jitcl.errors import OptionError
from jitcl.ir.graph import Graph
from jitcl.ir.printer import print_kernel, save_graph, side_file
from jitcl.ownership import no_link
from jitcl.runtime.memory import lives

SUFFIX = {"numba": ".py", "opencl": ".cl", "jitcl": ".jitcl"}


def write(lowered: LoweredModel | LoweredProgram, folder: Path) -> list[Path]:
    """Write all files of a dump, those of a program's parts in folders of their own; returns them.
    Raises OptionError where `folder` refuses.
    """
    try:
        if isinstance(lowered, LoweredProgram):
            written = [p for k, part in enumerate(lowered.parts, 1)
                       for p in write(part, folder / f"part-{k}")]
            path = folder / "program.txt"
            no_link(path).write_text("\n".join([*lowered.rows(), ""]), encoding="utf-8")
            return [*written, path]
        folder.mkdir(parents=True, exist_ok=True)
        written = list(_graphs(lowered, folder))
        for path, text in _texts(lowered, folder):
            path.parent.mkdir(exist_ok=True)
            no_link(path).write_text(text, encoding="utf-8")
            written.append(path)
        return written
    except OSError as e:
        raise OptionError(f"cannot write the dump to '{folder}': {e.strerror or e}") from e


def _graphs(lowered: LoweredModel, folder: Path) -> Iterator[Path]:
    """The graph after each pass that changed it, and after fusion."""
    for k, stage in enumerate(lowered.stages):
        if stage.changed:
            path = folder / f"{k:02}-{stage.name}.jitcl"
            _save(stage.graph, path)
            yield path
    path = folder / f"{len(lowered.stages):02}-{FUSE}.jitcl"
    _save(lowered.fused_graph(), path)
    yield path


def _save(graph: Graph, path: Path) -> None:
    """Write a graph, and no file that a link in the folder leads to."""
    for file in (path, side_file(path)):
        no_link(file)
    save_graph(graph, path)


def _texts(lowered: LoweredModel, folder: Path) -> Iterator[tuple[Path, str]]:
    yield from _kernels(lowered, folder / "kernels")
    for g in lowered.groups:
        if g.steps:
            loops, scheduled = loops_of(lowered, g)
            yield folder / "loops" / f"{g.name}.jitcl", loops
            if scheduled:
                yield folder / "scheduled" / f"{g.name}.jitcl", scheduled
    yield folder / "steps.txt", steps_text(lowered)
    yield folder / "memory.txt", memory_text(lowered)
    yield folder / "memory.svg", memory_svg(lowered.plan)
    yield folder / "groups.dot", groups_dot(lowered)


def loops_of(lowered: LoweredModel, group: Launched) -> tuple[str, str]:
    """A group's kernel before it was scheduled, and spread over a GPU's work-items where it is for
    one and no template writes it, else "".
    """
    target = lowered.model.device.target
    kernel, scheduled = group.kernel_ir().kernel, ""
    gpu = target.kind == "opencl" and target.device_type != "cpu"
    if gpu and not any(lowered.kernels[s.kernel].template for s in group.steps):
        scheduled = print_kernel(schedule_gpu(kernel, target))
    return print_kernel(kernel), scheduled


def _kernels(lowered: LoweredModel, folder: Path) -> Iterator[tuple[Path, str]]:
    """One file a launch: its head comment and source; a kernel used before is referred to."""
    first: dict[str, str] = {}
    for k, step in enumerate(lowered.plan.steps):
        source = lowered.kernels[step.kernel]
        name = f"{k:03}-{step.name}{SUFFIX[source.language]}"
        yield folder / name, kernel_text(step, source, first.setdefault(step.kernel, name), name)


def kernel_text(step: Step, source: KernelSource, first: str, name: str) -> str:
    """Head comment, launch and source of one step's kernel, or where that source is."""
    mark = COMMENT[source.language]
    launch = launch_text(step, source)
    head = step.head + (f"{mark} launch: {launch}\n" if launch else "")
    if source.options:
        head += f"{mark} build options: {' '.join(source.options)}\n"
    if first != name:
        return f"{head}{mark} the same kernel as in {first}: {source.entry}\n"
    return f"{head}\n{source.body}"


def steps_text(lowered: LoweredModel) -> str:
    """All launches in order, with their buffers in the order of the kernel's arguments."""
    plan = lowered.plan
    lines = []
    for k, step in enumerate(plan.steps):
        lines.append(f"{k} {step.name}: {step.kernel}")
        lines.append(f"    {amount(step.flops, 'FLOP')}, {amount(step.bytes, 'B')}")
        launch = launch_text(step, lowered.kernels[step.kernel])
        if launch:
            lines.append(f"    launch {launch}")
        for b in step.buffers:
            spec = plan.buffers[b]
            way = "writes" if b in step.writes else "reads "
            where = f"slot {spec.slot} + {spec.offset}" if spec.kind == "temp" else spec.kind
            lines.append(f"    {way} {spec.name} {buffer_text(spec)}  {where}")
        if step.origins:
            nodes = ", ".join(f"'{name}' ({op})" for name, op in step.origins)
            lines.append(f"    from {nodes}")
    return "\n".join([*lines, ""])


def memory_text(lowered: LoweredModel) -> str:
    """Every buffer: bytes, place, and the steps between which it lives."""
    plan = lowered.plan
    life = dict(lives(plan))
    rows = [("buffer", "type", "bytes", "place", "steps")]
    for k, b in enumerate(plan.buffers):
        place = b.kind if b.kind != "temp" else f"slot {b.slot} at {b.offset}"
        if b.whole >= 0:
            place += f", in {plan.buffers[b.whole].name}"
        steps = f"{life[k].first}..{life[k].last}" if k in life else ""
        rows.append((b.name.partition(" ")[0], buffer_text(b), str(b.nbytes), place, steps))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f"peak {plan.peak_bytes} bytes ({amount(plan.peak_bytes, 'B')})",
             f"temporaries {sum(plan.slots)} bytes in {len(plan.slots)} allocations, "
             f"{unshared_bytes(plan)} if none were shared", ""]
    lines += ["  ".join(f"{text:<{w}}" for text, w in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, ""])
