"""A model as a program, as plain data: levels of compiled parts and host steps.

    level 0    part      the nodes that can be compiled from what is there
               steps     nodes that can't, in order: on the host, or control flow
    level 1    part ...  what became possible with the values of level 0

A level is found by an import attempt with the types of the values that are there (`Partition`), and
is stored as JSON, so that a warm start finds it without onnx. Nodes are named by their place:
"17" is node 17 of the graph, "17.3" node 3 of the function body that node 17 was expanded to.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from jitcl.forking import cached_property
from jitcl.frontends.values import Signature

# Where a scope lies: from the main graph down, (node, attribute) of each body that is entered.
Hops = tuple[tuple[str, str], ...]
# index of an output of the part | {"seq": [Form]} | {"none": 1} | {"cut": [index, count, axis]}
# | {"same": name of an input} | {"const": [dtype, shape, elements]} | {"plain": the same, of what
# constants alone decide}
Form = Any


@dataclass(frozen=True)
class State:
    """Where a run stands in a scope: the nodes that are left (None: all), and the function calls
    that were expanded, with the types of their operands.
    """

    left: tuple[str, ...] | None = None
    expanded: tuple[tuple[str, str], ...] = ()      # (node, operand types as JSON)

    @cached_property
    def digest(self) -> str:
        return digest(self.raw())

    def raw(self) -> list[Any]:
        return [self.left, self.expanded]

    @staticmethod
    def of_raw(raw: list[Any]) -> State:
        left, expanded = raw
        return State(None if left is None else tuple(left), tuple((a, b) for a, b in expanded))


@dataclass(frozen=True)
class Where:
    """A scope: the main graph (no hops), or a body of control flow in one."""

    hops: Hops = ()
    expanded: tuple[tuple[tuple[str, str], ...], ...] = ()  # of the scope that each hop starts from

    @cached_property
    def digest(self) -> str:
        return digest(self.raw())

    def enter(self, state: State, node: str, attribute: str) -> Where:
        return Where((*self.hops, (node, attribute)), (*self.expanded, state.expanded))

    def raw(self) -> list[Any]:
        return [self.hops, self.expanded]

    @staticmethod
    def of_raw(raw: list[Any]) -> Where:
        hops, expanded = raw
        return Where(tuple((a, b) for a, b in hops),
                     tuple(tuple((a, b) for a, b in e) for e in expanded))

    @property
    def name(self) -> str:
        """For people: "main", "node 17, body"."""
        return ", ".join(f"node {n}, {a}" for n, a in self.hops) or "main"


@dataclass(frozen=True)
class Part:
    """Nodes that are compiled together. inputs: name -> type; outputs: name -> form; `count`:
    tensors that the part gives, which forms number.
    """

    nodes: tuple[str, ...]
    inputs: tuple[tuple[str, str, int], ...]        # name, dtype, rank
    outputs: tuple[tuple[str, Form], ...]
    count: int
    by_value: tuple[str, ...]


@dataclass(frozen=True)
class Body:
    """A body of control flow: its scope, formal inputs and outputs, and what it captures.
    `types`: of the outputs, as a `Signature` with None for unknown dimensions, or None.
    """

    where: Where
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    types: tuple[Any, ...]


# what a value is behind a step of a loop: an output of the body's part, or what a name was before
Source = int | str


@dataclass(frozen=True)
class Repeats:
    """A Loop or Scan whose body is one part, with state of fixed shapes, and no condition that data
    decides: its steps follow each other on the device. here: as in Level. state: each formal input
    of state, and what it is for the next step. rows: formal inputs of which each step has its own.
    stacked: results of each step. types: of these, in one step.
    """

    here: State
    part: Part
    state: tuple[tuple[str, Source], ...]
    rows: tuple[str, ...]
    stacked: tuple[Source, ...]
    types: tuple[Signature, ...] = field(hash=False)


@dataclass(frozen=True)
class HostStep:
    """A node that runs on the host. `bodies`: of control flow, by attribute's name. repeats: of a
    loop that runs on the device all the same.
    """

    node: str
    name: str
    op_type: str
    why: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attrs: dict[str, Any] = field(default_factory=dict, hash=False)
    bodies: tuple[tuple[str, Body], ...] = ()
    repeats: Repeats | None = None


@dataclass(frozen=True)
class Level:
    """One level. here: the expansions that its nodes are named by. drop: names that nobody reads
    after it. waits: (node, op, why) of what had to wait for a value of this level. never: the same
    of later nodes that are known to be for the host.
    """

    here: State
    part: Part | None
    steps: tuple[HostStep, ...]
    drop: tuple[str, ...]
    waits: tuple[tuple[str, str, str], ...]
    never: tuple[tuple[str, str, str], ...]
    after: State | None                             # None: nothing is left

    @property
    def hosted(self) -> tuple[HostStep, ...]:
        """The steps that really run on the host."""
        return tuple(s for s in self.steps if s.repeats is None)

    def encode(self) -> bytes:
        raw = asdict(self)
        raw["here"] = self.here.raw()
        raw["after"] = None if self.after is None else self.after.raw()
        for step, row in zip(self.steps, raw["steps"]):
            for (_, body), (_, found) in zip(step.bodies, row["bodies"]):
                found["where"] = body.where.raw()
            if step.repeats is not None:
                row["repeats"]["here"] = step.repeats.here.raw()
        return json.dumps(raw).encode()

    @staticmethod
    def decode(data: bytes) -> Level:
        raw = json.loads(data)
        part = raw["part"]
        return Level(
            State.of_raw(raw["here"]),
            None if part is None else _part(part),
            tuple(_step(row) for row in raw["steps"]),
            tuple(raw["drop"]), _rows(raw["waits"]), _rows(raw["never"]),
            None if raw["after"] is None else State.of_raw(raw["after"]))


def _rows(raw: list[Any]) -> tuple[tuple[str, str, str], ...]:
    return tuple((a, b, c) for a, b, c in raw)


def _part(raw: dict[str, Any]) -> Part:
    return Part(tuple(raw["nodes"]), tuple((n, d, r) for n, d, r in raw["inputs"]),
                tuple((n, f) for n, f in raw["outputs"]), raw["count"], tuple(raw["by_value"]))


def _step(raw: dict[str, Any]) -> HostStep:
    bodies = tuple(
        (name, Body(Where.of_raw(b["where"]), tuple(b["inputs"]), tuple(b["outputs"]),
                    tuple(b["captures"]), tuple(b["types"])))
        for name, b in raw["bodies"])
    return HostStep(raw["node"], raw["name"], raw["op_type"], raw["why"], tuple(raw["inputs"]),
                    tuple(raw["outputs"]), raw["domain"], raw["attrs"], bodies,
                    None if raw["repeats"] is None else _repeats(raw["repeats"]))


def _repeats(raw: dict[str, Any]) -> Repeats:
    return Repeats(State.of_raw(raw["here"]), _part(raw["part"]),
                   tuple((a, b) for a, b in raw["state"]), tuple(raw["rows"]),
                   tuple(raw["stacked"]), tuple(raw["types"]))


def digest(*parts: Any) -> str:
    """A digest of JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


__all__ = ["Body", "Form", "HostStep", "Level", "Part", "Repeats", "Signature", "Source", "State",
           "Where", "digest"]
