"""`jitcl dump` of a model that is no single graph: its parts, at the shapes that a run meets.

What a part's inputs look like, data may decide. So the program runs once, on the CPU, and each part
is lowered for the device that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl.cli.feeds import Scaling, random_feed, read_feeds
from jitcl.cli.lowered import LoweredModel, lower_part
from jitcl.cli.options import full_shapes
from jitcl.errors import InputError
from jitcl.ownership import no_link

if TYPE_CHECKING:
    from rich.console import Console

    from jitcl.runtime.model import Model
    from jitcl.runtime.report import Report


class DumpedProgram:
    """All parts of a program, lowered, and the report of the run that found them."""

    def __init__(self, parts: Sequence[LoweredModel], report: Report) -> None:
        self.parts, self.report = parts, report

    def text_after(self, name: str) -> str:
        """The graph of each part after a pass."""
        return "\n".join(f"// part {k}\n{p.text_after(name)}"
                         for k, p in enumerate(self.parts, 1))

    def as_dict(self) -> dict[str, Any]:
        return {"program": [vars(row) for row in self.report.program],
                "parts": [p.as_dict() for p in self.parts]}

    def show(self, out: Console) -> None:
        """Print the program's rows, then the overview of each part."""
        out.print(f"{self.report.model}: a program of {len(self.parts)} "
                  f"part{'s' * (len(self.parts) != 1)}")
        for text in self._rows():
            out.print(text)
        for k, part in enumerate(self.parts, 1):
            out.print(f"\npart {k}")
            part.show(out)

    def write(self, folder: Path) -> list[Path]:
        """The files of each part in a folder of its own, and the program's rows."""
        written = [p for k, part in enumerate(self.parts, 1)
                   for p in part.write(folder / f"part-{k}")]
        path = folder / "program.txt"
        no_link(path).write_text("\n".join([*self._rows(), ""]), encoding="utf-8")
        return [*written, path]

    def _rows(self) -> Iterator[str]:
        number = 0
        for row in self.report.program:
            number += row.kind == "part"
            what = f"part {number}" if row.kind == "part" else str(row)
            yield f"  {'  ' * row.depth}{what}"


def lower_program(model: Model, shapes: Mapping[str, tuple[int, ...]],
                  given: Sequence[str]) -> DumpedProgram:
    """Run the model on the CPU, with random numbers for what is not given, and lower its parts."""
    from jitcl.devices.select import open_device
    from jitcl.runtime.model import Model as Opened

    feeds = all_feeds(model, shapes, given)
    found = Opened(model.source, open_device("cpu"), model.options, False,
                   model.cache.cache.root, None)
    found.run(feeds)
    assert found.program is not None
    parts = [lower_part(model, ran.model.source, ran.shapes, ran.values)
             for ran in found.program.last if ran.model is not None]
    return DumpedProgram(parts, found.report())


def all_feeds(model: Model, shapes: Mapping[str, tuple[int, ...]],
              given: Sequence[str]) -> dict[str, np.ndarray]:
    """What was given, and random numbers for other tensors; InputError for what can't be random."""
    feeds = read_feeds(model, given, Scaling(), shapes)
    for t in model.inputs:
        if t.value is not None and t.name not in feeds and not t.optional and (
                t.value.kind != "optional"):
            raise InputError(f"input {t} was not given\n  Say what it is: -i {t.name}='[...]'")
    wanted = full_shapes(model, shapes, known=tuple(feeds))
    return feeds | {t.name: random_feed(t, wanted[t.name], 0)
                    for t in model.inputs if t.name in wanted}


__all__ = ["DumpedProgram", "all_feeds", "lower_program"]
