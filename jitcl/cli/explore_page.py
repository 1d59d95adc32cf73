"""The page of `jitcl explore`: what it is told of a model, and the text that a browser opens.

The page holds its data as JSON, its script (explorer/explorer.js) and the two libraries that lay
graphs out and move them (explorer/libraries.js, which the repository's folder `explorer` makes); it
asks for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from jitcl.cli.drawings import memory_svg
from jitcl.cli.dump_files import kernel_text, loops_of, memory_text
from jitcl.cli.lowered import FUSE, Launched, LoweredModel, LoweredProgram
from jitcl.cli.overview import (
    as_dict,
    buffer_text,
    geometry,
    kind_bytes,
    launch_text,
    node_count,
)
from jitcl.codegen.text import amount
from jitcl.codegen.writer import Writer
from jitcl.errors import OptionError
from jitcl.ir.graph import Node
from jitcl.ir.printer import attrs_text

FOLDER = Path(__file__).parent / "explorer"


def page(lowered: LoweredModel | LoweredProgram, profile: Mapping[str, Any] | None = None,
         errors: Mapping[str, Any] | None = None) -> str:
    """The page as text. profile: what `jitcl profile --save x.json` wrote; errors: what `jitcl
    check --json` wrote.
    """
    parts = lowered.parts if isinstance(lowered, LoweredProgram) else [lowered]
    data = {"parts": [_part(p) for p in parts],
            "program": list(lowered.rows()) if isinstance(lowered, LoweredProgram) else [],
            "profile": profile, "errors": errors}
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True,
                                     undefined=jinja2.StrictUndefined)
    return environment.get_template("page.html.j2").render(
        title=parts[0].model.source.name if parts else "no part",
        data=json.dumps(data).replace("<", "\\u003c"),           # no name ends the script
        **{name.replace(".", "_"): (FOLDER / name).read_text(encoding="utf-8")
           for name in ("explorer.css", "explorer.js", "libraries.js")})


def _part(lowered: LoweredModel) -> dict[str, Any]:
    """What the page knows of a graph and its kernels. Nodes of all passes are one list, as most
    are the same in many; groups, steps and passes refer to each other by their numbers.
    """
    plan = lowered.plan
    nodes = _Nodes()
    stages = [{"name": s.name, "changed": s.changed, "seconds": s.seconds,
               "nodes": [nodes.number(n, s.graph.origins.get(n))
                         for n in s.graph.nodes if n.op != "const"],
               "count": node_count(s.graph)} for s in lowered.stages]
    origins = lowered.final.origins
    groups, owner = [], {}
    for g in lowered.groups:
        owner[g.group.root] = g.number
        groups.append({
            "name": g.name, "type": str(g.group.root.type),
            "members": [nodes.number(n, origins.get(n)) for n in g.group.members],
            "reads": [owner[n] for n in g.group.operands if n in owner],
            "inputs": [str(n.attr("name")) for n in g.group.operands if n.op == "input"],
            "steps": [plan.steps.index(s) for s in g.steps], "why": _why(lowered, g),
            **dict(zip(("loops", "scheduled"), loops_of(lowered, g) if g.steps else ("", "")))})
    overview = as_dict(lowered)
    first: dict[str, str] = {}
    for step, row in zip(plan.steps, overview["steps"]):
        source = lowered.kernels[step.kernel]
        row |= {"group": next(g.number for g in lowered.groups if step in g.steps),
                "work": amount(step.flops, "FLOP"), "moved": amount(step.bytes, "B"),
                "launch": launch_text(step, source), "geometry": geometry(step),
                "variant": step.variant,
                "text": kernel_text(step, source, "", ""), "language": source.language,
                "same": first.setdefault(step.kernel, step.name),
                "buffers": [_buffer(lowered, step.writes, b) for b in step.buffers]}
    sizes = ", ".join(f"{amount(n, 'B')} {kind}" for kind, n in kind_bytes(plan).items() if n)
    return {**overview, "passes": None, "nodes": nodes.rows, "stages": stages, "groups": groups,
            "fuse": FUSE, "memory": {"svg": memory_svg(plan), "text": memory_text(lowered),
                                     "says": f"{amount(plan.peak_bytes, 'B')} at peak: {sizes}"}}


class _Nodes:
    """Nodes by number: [op, numbers of what it reads, attributes, type, its node of the model]."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[tuple[Node, Any], int] = {}
        self._last: dict[Node, int] = {}

    def number(self, node: Node, origin: Any) -> int:
        """A node's; what it reads, other than constants, has been numbered before."""
        found = self._numbers.get((node, origin))
        if found is None:
            found = self._numbers[node, origin] = len(self.rows)
            attrs = str(node.attr("name")) if node.op == "input" else attrs_text(node).strip()
            self.rows.append([node.op, [self._last[i] for i in node.inputs if i in self._last],
                              attrs, str(node.type), origin.name if origin else ""])
        self._last[node] = found
        return found


def _buffer(lowered: LoweredModel, writes: tuple[int, ...], number: int) -> list[str]:
    """[whether it is written, name, type, where it lies]."""
    b = lowered.plan.buffers[number]
    where = f"slot {b.slot} at {b.offset}" if b.kind == "temp" else b.kind
    return ["writes" if number in writes else "reads", b.name, buffer_text(b), where]


def _why(lowered: LoweredModel, group: Launched) -> str:
    """Which template writes a group, and why that one."""
    if not group.steps:
        return "No kernel: it is a view of what it reads, or written in place by those it joins."
    source = lowered.kernels[group.steps[-1].kernel]
    root = group.group.root
    offered, candidates = lowered.choices.get(root, ("", ()))
    asked = Writer(lowered.model.device.target).asked(group.group)
    names = [t.name for _, templates in asked for t in templates]
    if not source.template:
        return ("Generated loops: no template implements this group on this device. Asked were "
                f"{', '.join(names)}.")
    before = names[:names.index(source.template)] if source.template in names else ()
    text = f"Template {source.template}: the first that implements this group"
    text += f", behind {', '.join(before)}." if before else "."
    if offered == source.template and len(candidates) > 1:
        ways = [_parameters(c.parameters()) for c in candidates]
        text += (f"\nOf its {len(ways)} ways the best by its estimate of work and memory traffic:"
                 f"\n  {ways[0]}" + "".join(f"\n  then {way}" for way in ways[1:]))
    return text


def _parameters(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def read_json(path: Path, wanted: str, made_by: str) -> dict[str, Any]:
    """A document with the key `wanted`. OptionError where a file is none, saying what makes it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise OptionError(f"'{path}' is no JSON ({error})\n  Make it by {made_by}.") from error
    if not isinstance(found, dict) or wanted not in found:
        raise OptionError(f"'{path}' has no '{wanted}'\n  Make it by {made_by}.")
    return found


__all__ = ["page", "read_json"]
