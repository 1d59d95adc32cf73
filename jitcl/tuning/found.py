"""What a search finds of a group; the modes of `tuning=`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitcl.templates.base import Match  # a warm start needs no templates

MODES = ("fast", "wide", "heavy")           # each looks at all that those before it do
SECONDS = {"fast": 30.0, "wide": 300.0, "heavy": float("inf")}      # of a search, if not said
LOOPS = ""                      # in place of a template's name: generated loops


@dataclass(frozen=True)
class Choice:
    """One way to write a group: a template and its parameters, or LOOPS."""

    template: str
    parameters: Mapping[str, Any]

    @staticmethod
    def of(template: str, match: Match) -> Choice:
        return Choice(template, json.loads(json.dumps(match.parameters())))

    def __str__(self) -> str:
        if self.template == LOOPS:
            return "generated loops"
        given = ", ".join(f"{name} {value}" for name, value in _flat(self.parameters))
        return f"{self.template} ({given})" if given else self.template


def _flat(parameters: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in parameters.items():
        found += _flat(value) if isinstance(value, Mapping) else [(name, value)]
    return found


@dataclass(frozen=True)
class Found:
    """What a search of some depth says of a group. before: seconds of the first candidate that is
    right, after: of the choice. refused: candidates that must not be taken, and why.
    """

    choice: Choice
    mode: str
    before: float
    after: float
    tried: int
    refused: tuple[tuple[str, str], ...] = ()

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> Found:
        """ValueError, KeyError or TypeError where it is none."""
        choice = Choice(str(row["choice"]["template"]), dict(row["choice"]["parameters"]))
        if row["mode"] not in MODES:
            raise ValueError(f"mode {row['mode']!r}")
        refused = tuple((str(way), str(why)) for way, why in row["refused"])
        return Found(choice, row["mode"], float(row["before"]), float(row["after"]),
                     int(row["tried"]), refused)


def deeper(mode: str, than: str) -> bool:
    """Whether a mode looks at more than another."""
    return MODES.index(mode) > MODES.index(than)
