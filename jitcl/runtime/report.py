"""`model.report()`: what was compiled, into which kernels, with how much memory; what runs on the
host, and what stepped down.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from jitcl.codegen.plan import LANGUAGE, Plan
from jitcl.codegen.text import amount, html_table
from jitcl.devices.base import Device
from jitcl.passes.options import Chosen, Held, Options
from jitcl.runtime.fallbacks import MEMORY_SAYS, KernelFallback
from jitcl.runtime.precisions import AS_MODEL, precision_got
from jitcl.runtime.specialise import Specialisation
from jitcl.tuning.found import Found

SHOWN = 4                       # guards of a plan, and layers that stay f32, that are printed
LEAST = 0.01                    # of the FLOPs, for a reason to stay f32 to be printed


@dataclass(frozen=True)
class StepReport:
    """One kernel launch: its name, its template ("" = generated loops), and the model's nodes
    inside. kept: why it neither reads nor writes f16, where that was asked for. declined: templates
    that would have written it but for what is said of each.
    """

    name: str
    kernel: str
    template: str
    nodes: tuple[tuple[str, str], ...]  # (node name, op type)
    flops: int
    bytes: int
    kept: str = ""
    declined: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A line of a program. kind: "part" (compiled), "loop" (of the compiled part behind it), "host"
    (a node that runs there, or control flow that it drives) or "cut" (a node that waited for a
    value). depth: of the body it is in. sizes,
    no_family: of a part, as in Report.
    """

    kind: str
    depth: int
    node: str = ""
    op_type: str = ""
    why: str = ""
    steps: int = 0
    kernels: int = 0
    flops: int = 0
    peak_bytes: int = 0
    sizes: tuple[tuple[str, int, int], ...] = ()
    no_family: str = ""

    def __str__(self) -> str:
        if self.kind == "part":
            shapes = shared_shapes(self.sizes, self.no_family)
            return (f"part: {self.steps} steps of {self.kernels} kernels, "
                    f"{amount(self.flops, 'FLOP')}, peak memory {amount(self.peak_bytes, 'B')}"
                    + (f"; {shapes}" if shapes else ""))
        where = f"'{self.node}' ({self.op_type}): {self.why}"
        if self.kind == "loop":
            return f"loop: '{self.node}' ({self.op_type}): its steps follow without the host"
        return f"cut at {where}" if self.kind == "cut" else f"host: {where}"


@dataclass(frozen=True)
class Report:
    """Printable; `host` lists (node, op type, why) of all that does not run in a generated kernel
    of the device, `stepped_down` the steps whose first variants failed on its driver.

    device: what runs the model. asked: the device that was asked for. memory: "" for the plan as
    asked, else which of specialise.MEMORY_PLANS fitted; memory_why: what did not fit.
    program: parts, host steps and cuts in order, where the model is no single graph.
    precision: as it was asked for. computes: what tensors are stored and computed in.
    precision_why: why that is less than was asked for. promoted: nodes that the guard has put into
    f32 since, "*" for all.
    sizes: (dimension, its value, room for) of a plan that serves many shapes. no_family: why it
    does not, where shapes go on changing. guards: conditions of shapes that the plan is right for;
    others have another. free: the dimensions that the model leaves open, an input. took: seconds
    that the last shapes cost before they ran, when they were new: to compile, to load, or to
    evaluate a shared plan's sizes.
    tuned: (step, what a search found of its group), the costliest first; unsearched: groups that it
    had no time for. chosen, held: what precision="auto" came to, and a tolerance of memory.
    """

    model: str
    device: str
    steps: tuple[StepReport, ...]
    host: tuple[tuple[str, str, str], ...]
    kernels: int
    peak_bytes: int
    from_cache: bool
    asked: str = ""
    stepped_down: tuple[KernelFallback, ...] = ()
    memory: str = ""
    memory_why: str = ""
    program: tuple[Row, ...] = ()
    sizes: tuple[tuple[str, int, int], ...] = ()
    no_family: str = ""
    precision: str = "high"
    computes: str = ""
    precision_why: str = ""
    promoted: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    free: tuple[tuple[str, str], ...] = ()
    took: float = 0.0
    tuned: tuple[tuple[str, Found], ...] = ()
    unsearched: int = 0
    chosen: Chosen | None = None
    held: Held | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if not self.steps and not self.program:
            return (
                f"{self.model} on {self.device}: not compiled yet "
                "(shapes are not known before the first run)"
            )
        return "\n".join([self._sum(), *self._sizes(), *self._memory(), *self._host(),
                          *self._stepped(), *self._declined(), *self._tuned(),
                          self.precision_line(), *self.weights_lines()])

    def _tuned(self) -> list[str]:
        if not self.tuned and not self.unsearched:
            return []
        better = sum(f.after < f.before for _, f in self.tuned)
        left = f"; no time for {self.unsearched} more" if self.unsearched else ""
        return [f"  tuned: {better} of {len(self.tuned)} kinds of step got faster kernels{left}"]

    def _repr_html_(self) -> str:
        """What notebooks show: the first lines, and a table of the launches."""
        nodes = [", ".join(name for name, _ in s.nodes) for s in self.steps]
        rows = [(s.name, s.template or "loops", names, amount(s.flops, "FLOP"),
                 amount(s.bytes, "B"), s.kernel) for s, names in zip(self.steps, nodes)]
        head, _, more = str(self).partition("\n")
        columns = ("launch", "template", "nodes", "work", "moved", "kernel")
        return html_table(head, columns, rows) + (
            f"<pre>{html.escape(more)}</pre>" if more else "")

    def kept(self) -> dict[str, tuple[float, list[str]]]:
        """What neither reads nor writes f16 though that was asked for: why -> (share of the
        model's FLOPs, nodes), the largest first.
        """
        return self._shares(lambda step: (step.kept,) if step.kept else ())

    def declined(self) -> dict[str, tuple[float, list[str]]]:
        """What other templates would have written: which and why not, as `kept` has it."""
        return self._shares(lambda step: step.declined)

    def _shares(self, whys: Callable[[StepReport], tuple[str, ...]]
                ) -> dict[str, tuple[float, list[str]]]:
        found: dict[str, tuple[float, list[str]]] = {}
        total = sum(s.flops for s in self.steps)
        for step in sorted(self.steps, key=lambda s: -s.flops):
            for why in whys(step) if step.flops else ():
                share, nodes = found.get(why, (0.0, []))
                found[why] = (share + step.flops / total, [*nodes, *(n for n, _ in step.nodes)])
        return dict(sorted(found.items(), key=lambda row: -row[1][0]))

    def precision_line(self) -> str:
        """What was asked for, what was got, and why."""
        why = f": {self.precision_why}" if self.precision_why else ""
        reasons = dict(self.chosen.reasons) if self.chosen else {}
        since = [n for n in self.promoted if n not in reasons]
        kept = ", ".join("all layers" if n == "*" else f"'{n}'" for n in since)
        asked = self.chosen or self.precision
        return "".join([
            f"  precision: {asked}",
            f", tensors are {self.computes or AS_MODEL}{why}" if self.steps else "",
            f"; in f32 since f16 could not hold them: {kept}" if kept else "",
            *(f"\n    {'all layers' if n == '*' else repr(n)} in more: {why}"
              for n, why in reasons.items()),
            *(f"\n    f32, {share:.0%} of the FLOPs: {why}: {listed(nodes)}"
              for why, (share, nodes) in self.kept().items() if share >= LEAST),
            *(f"\n    {note}" for note in (self.chosen.notes if self.chosen else ()))])

    def weights_lines(self) -> list[str]:
        """What a tolerance of memory came to: which weights take more bits, and why."""
        return [] if self.held is None else [f"  weights: {self.held}"]

    def _sum(self) -> str:
        flops = sum(s.flops for s in self.steps)
        by_template = sum(bool(s.template) for s in self.steps)
        return (
            f"{self.model} on {self.device}: {self._counts()}"
            f"{len(self.steps)} steps of {self.kernels} kernels "
            f"({by_template} steps by templates), {amount(flops, 'FLOP')}, "
            f"peak memory {amount(self.peak_bytes, 'B')}"
            + (", plan from the cache" if self.from_cache else "")
        )

    def _counts(self) -> str:
        """"a program of 2 parts and 1 host step, " where it is one."""
        if not self.program:
            return ""
        parts, host = (sum(r.kind == kind for r in self.program) for kind in ("part", "host"))
        return (f"a program of {parts} part{'s' * (parts != 1)} and {host} host "
                f"step{'s' * (host != 1)}, ")

    def _sizes(self) -> list[str]:
        free = ", ".join(f"'{name}' {dims}" for name, dims in self.free)
        lines = [f"free dimensions: {free}"] if free else []
        lines += [said] if (said := shared_shapes(self.sizes, self.no_family)) else []
        if self.guards:
            more = len(self.guards) - SHOWN
            lines.append(f"right while {', '.join(self.guards[:SHOWN])}"
                         + (f" and {more} conditions more" if more > 0 else ""))
        if free and self.took:
            lines.append(f"these shapes took {1e3 * self.took:.3g} ms before their first run")
        return [f"  {line}" for line in lines]

    def _memory(self) -> list[str]:
        if not self.memory:
            return []
        return [f"  memory: {MEMORY_SAYS[self.memory]}: {self.asked} ran out of memory "
                f"({self.memory_why})"]

    def _host(self) -> list[str]:
        if self.program:
            rows = {(r.node, r.op_type, r.why) for r in self.program}
            other = [f"  host: '{n}' ({op}): {why}" for n, op, why in self.host
                     if (n, op, why) not in rows]
            return [f"  {'  ' * r.depth}{r}" for r in self.program] + other
        return [f"  host: '{name}' ({op}): {why}" for name, op, why in self.host] or [
            "  every op runs in a generated kernel; none on the host"
        ]

    def _stepped(self) -> list[str]:
        return [f"  stepped down: {s.step} runs {s.says}"
                + (f": {s.why}" if s.why else "") for s in self.stepped_down]


    def _declined(self) -> list[str]:
        return [f"  declined, {share:.0%} of the FLOPs: {why}: {listed(nodes)}"
                for why, (share, nodes) in self.declined().items() if share >= LEAST]


def listed(names: list[str]) -> str:
    """Some of them, and how many more."""
    names = list(dict.fromkeys(names))
    more = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def shared_shapes(sizes: tuple[tuple[str, int, int], ...], no_family: str) -> str:
    """What shapes a plan serves, "" where it was made for the only ones so far."""
    if no_family:
        return f"a plan for each set of shapes: {no_family}"
    listed = ", ".join(f"{name} = {value} (room for {room})" for name, value, room in sizes)
    return f"one plan for many shapes: {listed}" if listed else ""


def report_of(model: str, device: Device, special: Specialisation | None,
              options: Options | None = None) -> Report:
    """The report of a specialisation; of none, that nothing was compiled yet."""
    options = options or Options()
    if special is None:
        return Report(model, device.name, (), (), 0, 0, False, device.name, precision=options.said,
                      chosen=options.chosen, held=_held(options))
    plan, of_run = special.plan, special.plan_of_run
    template = {k.entry: k.template for k in plan.kernels}
    steps = tuple(
        StepReport(s.name, s.kernel, template[s.kernel], s.origins, s.flops, s.bytes, s.kept,
                   s.declined)
        for s in of_run.steps
    )
    own = LANGUAGE[special.device.target.kind]
    compiled = sum(k.language == own for k in plan.kernels)
    fallback = special.fallback
    got, why = precision_got(options, plan, special.device.target)
    return Report(
        model, special.device.name, steps, _host_rows(plan, special, own), compiled,
        plan.peak_bytes, special.from_cache, device.name, special.stepped, special.memory,
        fallback.why if fallback is not None else "", sizes=special.sizes,
        no_family=special.no_family, guards=special.guards, took=special.took,
        precision=options.said, computes=got, precision_why=why, promoted=options.promoted,
        tuned=special.tuned, unsearched=special.unsearched, chosen=options.chosen,
        held=_held(options))


def _held(options: Options) -> Held | None:
    return options.weights.held if options.weights is not None else None


def _host_rows(plan: Plan, special: Specialisation, own: str) -> tuple[tuple[str, str, str], ...]:
    """(node, op type, why) of the steps that run on the CPU path below the device."""
    foreign = {k.entry for k in plan.kernels if k.language != own}
    why = {s.step: s.why for s in special.stepped}
    rows = []
    for step in plan.steps:
        if step.kernel in foreign:
            reason = "on the CPU: the driver failed on every kernel for it"
            if why.get(step.name):
                reason += f" ({why[step.name]})"
            rows += [(node, op, reason) for node, op in step.origins or ((step.name, "step"),)]
    return tuple(dict.fromkeys(rows))
