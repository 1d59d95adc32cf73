"""A model on its way to kernels, with all that lies between: what `jitcl dump` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jitcl.cli.feeds import Scaling, complete_feeds, read_feeds
from jitcl.cli.options import full_shapes
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.plan import KernelSource, Plan, Step
from jitcl.errors import InputError, NeedsValue, NotOneGraph, OptionError
from jitcl.forking import cached_property
from jitcl.ir.graph import Graph, Node, Origin
from jitcl.ir.group import Group
from jitcl.ir.printer import print_graph
from jitcl.templates.base import FIRST, M, Match

if TYPE_CHECKING:
    from jitcl.runtime.model import Model
    from jitcl.runtime.report import Report
    from jitcl.runtime.source import Source

FUSE = "fuse"


@dataclass(frozen=True)
class Stage:
    """The graph after a pass. `seconds`: what the pass took."""

    name: str
    graph: Graph
    seconds: float
    changed: bool


@dataclass(frozen=True)
class Launched:
    """A group and the steps that compute it; none where it is only another view of a buffer."""

    number: int
    group: Group
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"{(self.group.anchor or self.group.root).op}_{self.number}"

    def kernel_ir(self) -> Lowered:
        """The group's unscheduled kernel, whether a template claimed it or not."""
        return lower(self.group, self.name)


class Choices(dict[Node, tuple[str, tuple[Match, ...]]]):
    """A chooser that takes what others would, and keeps for each group's root which template it was
    asked for last, with all candidates.
    """

    def choose(self, template: str, group: Group, candidates: tuple[M, ...]) -> M | None:
        self[group.root] = template, candidates
        return FIRST.choose(template, group, candidates)


@dataclass(frozen=True)
class LoweredModel:
    """All stages of one specialisation."""

    model: Model
    shapes: Mapping[str, tuple[int, ...]]
    stages: tuple[Stage, ...]
    groups: tuple[Launched, ...]
    plan: Plan
    choices: Choices

    @cached_property
    def kernels(self) -> dict[str, KernelSource]:
        return {k.entry: k for k in self.plan.kernels}

    @property
    def final(self) -> Graph:
        return self.stages[-1].graph

    def fused_graph(self) -> Graph:
        """The last graph; its nodes' comments say which group computes them."""
        inside: dict[Node, list[str]] = {}
        for g in self.groups:
            for node in g.group.members:
                inside.setdefault(node, []).append(g.name)
        origins = {node: Origin(" + ".join(names), "group") for node, names in inside.items()}
        graph = self.final
        return Graph(graph.name, graph.inputs, graph.outputs, origins)

    def text_after(self, name: str) -> str:
        """The graph after the last pass of this name; OptionError lists the passes."""
        if name == FUSE:
            return print_graph(self.fused_graph())
        for stage in reversed(self.stages):
            if stage.name == name:
                return print_graph(stage.graph)
        names = dict.fromkeys([s.name for s in self.stages] + [FUSE])
        raise OptionError(f"--after {name}: there is no such pass\n  Use one of {', '.join(names)}")


@dataclass(frozen=True)
class LoweredProgram:
    """All parts of a program, lowered, and the report of the run that found them."""

    parts: Sequence[LoweredModel]
    report: Report

    def text_after(self, name: str) -> str:
        """The graph of each part after a pass."""
        return "\n".join(f"// part {k}\n{p.text_after(name)}"
                         for k, p in enumerate(self.parts, 1))

    def rows(self) -> Iterator[str]:
        """The program's steps, its parts by their numbers."""
        number = 0
        for row in self.report.program:
            number += row.kind == "part"
            what = f"part {number}" if row.kind == "part" else str(row)
            yield f"  {'  ' * row.depth}{what}"


def lowered_for(model: Model, shapes: Mapping[str, tuple[int, ...]],
                given: Sequence[str]) -> LoweredModel | LoweredProgram:
    """The model lowered; its parts where it is no single graph."""
    if model.program is None:
        with suppress(NotOneGraph):
            return lower_for_dump(model, shapes, given)
    return _lower_program(model, shapes, given)


def lower_for_dump(model: Model, shapes: Mapping[str, tuple[int, ...]],
                   given: Sequence[str]) -> LoweredModel:
    """Lower a model without building anything. Raises what compiling it would raise."""
    values = read_feeds(model, given, Scaling(), shapes)
    concrete = full_shapes(model, shapes, known=tuple(values))
    concrete |= {name: array.shape for name, array in values.items()}
    decisive: dict[str, np.ndarray] = {}
    while True:
        try:
            return _lower_part(model, model.source, concrete, decisive)
        except NeedsValue as e:
            if e.input_name not in values:
                raise InputError(f"{e}\n  Give it: -i {e.input_name}='[...]' or a .npy") from e
            decisive[e.input_name] = values[e.input_name]


def _lower_program(model: Model, shapes: Mapping[str, tuple[int, ...]],
                   given: Sequence[str]) -> LoweredProgram:
    """What a part's inputs look like, data may decide: so the program runs once, on the CPU, with
    random numbers for what is not given, and each part is lowered for the device that was asked
    for, at the shapes that the run met.
    """
    from jitcl.devices.select import open_device
    from jitcl.runtime.model import Model as Opened

    feeds = complete_feeds(model, given, Scaling(), shapes, True, 0)
    found = Opened(model.source, open_device("cpu"), model.options, False,
                   model.cache.cache.root, None)
    found.run(feeds)
    assert found.program is not None
    parts = [_lower_part(model, ran.model.source, ran.shapes, ran.values)
             for ran in found.program.last if ran.model is not None]
    return LoweredProgram(parts, found.report())


def _lower_part(model: Model, source: Source, shapes: Mapping[str, tuple[int, ...]],
               values: Mapping[str, np.ndarray]) -> LoweredModel:
    """Lower a source, the model's own or that of a part of it, for its device and options."""
    from jitcl.runtime.lowering import Lowering
    stages: list[Stage] = []

    def observe(name: str, graph: Graph, seconds: float) -> None:
        stages.append(Stage(name, graph, seconds, not stages or graph != stages[-1].graph))

    choices = Choices()
    lowering = Lowering(source, shapes, values, model.device, model.options, observe)
    lowering.chooser = choices
    generated, plan = lowering.plan()
    groups = tuple(_launched(i, g, plan) for i, g in enumerate(generated.groups))
    return LoweredModel(model, shapes, tuple(stages), groups, plan, choices)


def _launched(number: int, group: Group, plan: Plan) -> Launched:
    """A group with its steps: one called like the group, before it those that arrange operands."""
    name = Launched(number, group, ()).name
    steps = [s for s in plan.steps if s.name == name or s.name.startswith(f"{name}_")]
    return Launched(number, group, tuple(steps))
