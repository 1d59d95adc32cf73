"""The nodes of a program's scope: those of a graph or of a body, function calls expanded where a
program must cut inside of them; and the constants in sight."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, NodeProto

from jitcl.frontends.levels import State, Where
from jitcl.frontends.onnx import expand, functions, host, tensors
from jitcl.frontends.onnx.importer import constant_node
from jitcl.frontends.onnx.model import OnnxModel, constant, label, unreadable
from jitcl.frontends.onnx.scope import Opaque, Value
from jitcl.ir.graph import Node, Origin, graph_input
from jitcl.ir.types import TensorType


@dataclass(frozen=True)
class Unit:
    """A node by its place ("17", or "17.3" in an expanded call), with what it means there."""

    place: str
    proto: NodeProto
    opsets: Mapping[str, int]
    prefix: str = ""
    origin: Origin | None = None

    @property
    def shown(self) -> Origin:
        """The model's node that it stands for."""
        return self.origin or Origin(self.prefix + label(self.proto), self.proto.op_type)

    @property
    def domain(self) -> str:
        return functions.domain_of(self.proto)


@dataclass
class Units:
    """A scope at one state of expansion: nodes by place in order, and Constant nodes by result."""

    nodes: dict[str, Unit] = field(default_factory=dict)
    constants: dict[str, Unit] = field(default_factory=dict)

    def add(self, unit: Unit) -> None:
        if unit.proto.op_type == "Constant" and not unit.domain:
            self.constants[unit.proto.output[0]] = unit
        else:
            self.nodes[unit.place] = unit


class Body:
    """A graph of the model: the main one, or one in a node's attribute, which sees what is around
    it.
    """

    def __init__(
            self, model: OnnxModel, graph: GraphProto, opsets: Mapping[str, int], where: Where,
            around: tuple[Body, Units] | None = None, prefix: str = "", origin: Origin | None = None
    ) -> None:
        self.model, self.graph, self.opsets, self.where = model, graph, opsets, where
        self.around, self.prefix, self.origin = around, prefix, origin
        self.inputs = tuple(v.name for v in graph.input)
        self.outputs = tuple(dict.fromkeys(v.name for v in graph.output))
        self._stored = {t.name: t for t in graph.initializer} | {
            t.values.name: t for t in graph.sparse_initializer}
        self._made: dict[str, Value | None] = {}
        self._units: dict[tuple[tuple[str, str], ...], Units] = {}
        self._functions = {
            (f.domain, f.name, f.overload): f for f in model.proto.functions}

    # ---- nodes

    def units(self, state: State) -> Units:
        """All nodes and constants, with the calls expanded that the state says."""
        found = self._units.get(state.expanded)
        if found is None:
            found = Units()
            types = dict(state.expanded)
            for i, node in enumerate(self.graph.node):
                self._add(found, Unit(str(i), node, self.opsets, self.prefix, self.origin), types)
            self._units[state.expanded] = found
        return found

    def _add(self, units: Units, unit: Unit, types: Mapping[str, str]) -> None:
        if unit.place not in types:
            units.add(unit)
            return
        for inner in self.expand(unit, types[unit.place]) or ():
            self._add(units, inner, types)

    def expand(self, unit: Unit, types: str) -> list[Unit] | None:
        """The nodes of a call's body; None where it is no call. types: of its operands, JSON."""
        call = unit.proto
        function = self._functions.get((call.domain, call.op_type, call.overload))
        prefix, origin = f"{unit.prefix}{label(call)}/", unit.origin
        if function is None:
            prefix, origin = unit.prefix, unit.shown
            operands = [_operand(row) for row in json.loads(types)]
            opset = unit.opsets.get(unit.domain, 0)
            function = functions.standard_body(call, opset, operands, call.attribute)
        if function is None:
            return None
        opset = unit.opsets.get(unit.domain, 0)
        opsets = functions.versions(function, unit.opsets)
        nodes = expand.body_nodes(call, function, opset, f"{label(call)}~{unit.place}/")
        return [
            Unit(f"{unit.place}.{i}", node, opsets, prefix, origin)
            for i, node in enumerate(nodes)
        ]

    def body(self, where: Where, state: State, place: str, attribute: str) -> Body:
        """The body of a node that is control flow."""
        units = self.units(state)
        unit = units.nodes[place]
        graph = next(a.g for a in unit.proto.attribute if a.name == attribute)
        return Body(self.model, graph, unit.opsets, where, (self, units), unit.prefix, unit.origin)

    # ---- constants

    def constant(self, name: str, units: Units) -> Value | None:
        """The node of a constant in sight: an initialiser or a Constant node; None if there is
        none.
        """
        if name not in self._made:
            self._made[name] = self._constant(name, units)
        found = self._made[name]
        if found is None and self.around is not None and name not in self.inputs:
            outer, around = self.around
            return outer.constant(name, around)
        return found

    def _constant(self, name: str, units: Units) -> Value | None:
        if name in units.constants:
            unit = units.constants[name]
            return constant_node(list(unit.proto.attribute), self.model.base,
                                 f"node '{unit.shown.name}' (Constant)")
        if name not in self._stored:
            return None
        proto = self._stored[name]
        odd = unreadable(proto)
        if odd is not None:
            return odd
        if self.where.hops:
            return constant(proto, self.model.base, f"initialiser '{name}'")
        return self.model.constant(name)

    def value(self, name: str, units: Units) -> Any:
        """A constant's elements for the host: an array, of `str` for strings. KeyError if none."""
        if name in units.constants:
            unit = units.constants[name]
            return host.evaluator(unit.proto, unit.opsets, unit.shown.name)([])[0]
        found = self._made.get(name)
        if isinstance(found, Node) and found.op == "const":
            return found.data
        if name in self._stored and not self.where.hops and self.model.holds(name):
            return self.model.constant(name).data
        if name in self._stored:
            return host.stored(self._stored[name], self.model.base, f"initialiser '{name}'")
        if self.around is not None and name not in self.inputs:
            outer, around = self.around
            return outer.value(name, around)
        raise KeyError(name)


def _operand(row: list[Any] | None) -> Value | None:
    """An operand of which only the type counts."""
    if row is None:
        return None
    if len(row) == 2 and row[0] in tensors.ELEM_TYPES:
        return graph_input("operand", TensorType(row[0], tuple(row[1])))
    return Opaque("", tuple(row))


def captured(graph: GraphProto, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are not made by the graph itself, each once."""
    own = functions.own_names(graph)
    return tuple(dict.fromkeys(n for n in names if n and n not in own))


__all__ = ["Body", "Unit", "Units", "captured"]
