"""`Partition`: an ONNX model as levels of compiled parts and host steps.

An attempt imports all nodes that are left, with the types (and, where needed, the values) of what
is there. What it could import is a part. A node that fails with all its operands at hand runs on
the host, or, if it is control flow, is driven by it. What waits for those, or for a value that the
part computes, is left for the next level.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import NodeProto

from jitcl import forking
from jitcl.errors import NotOneGraph, StepsVary, UnsupportedError
from jitcl.frontends import levels
from jitcl.frontends.levels import Form, HostStep, Level, Part, State, Where
from jitcl.frontends.onnx import host, tensors
from jitcl.frontends.onnx.control import RULES as CONTROL
from jitcl.frontends.onnx.importer import Importer, needed_nodes
from jitcl.frontends.onnx.model import OnnxModel, reads
from jitcl.frontends.onnx.problems import Cut
from jitcl.frontends.onnx.repeats import repeats
from jitcl.frontends.onnx.scope import (
    MISSING,
    Empty,
    Opaque,
    Scope,
    Seq,
    Sized,
    Value,
)
from jitcl.frontends.onnx.units import Body, Unit, Units, captured
from jitcl.frontends.values import Signature, described, plain
from jitcl.ir.graph import Graph, Node, Origin
from jitcl.ir.sizes import SizePinned, has_size
from jitcl.ir.types import TensorType
from jitcl.ops.core import Bounded

KEPT_GRAPHS = 4  # graphs of attempts that were not asked for yet
INLINE_ELEMENTS = 64  # constants that later nodes read are part of the level up to this size


class Inner(UnsupportedError):
    """A node of a body could not be imported."""


@dataclass
class Failure:
    """Why a node could not be imported; `ready`: its operands were there."""

    error: UnsupportedError
    ready: bool
    rows: list[Any]  # the operands' types; with sizes, where an import for many shapes fails

    @property
    def operands(self) -> str:
        """Their types, JSON."""
        return json.dumps(self.rows)


class _Attempt(Importer):
    """An import of some nodes of a scope that notes what fails instead of giving up."""

    def __init__(self, body: Body, units: Units, env: Mapping[str, Signature],
                 values: Mapping[str, np.ndarray[Any, Any]], loops: Collection[str] = ()) -> None:
        super().__init__(body.model, values)
        self._loops = loops                 # names of those that are not to be unrolled
        self.failures: dict[str, Failure] = {}
        self.sized: list[str] = []
        self.plain: set[str] = set()        # names that constants alone decide
        self.names: dict[str, Value | None] = {}
        self.inputs: dict[str, Node] = {}
        for name, found in env.items():
            if not plain(found):
                self.names[name] = Opaque(described(found), tuple(found))
            else:
                node = self.input(name, TensorType(found[0], tuple(found[1])))
                self.names[name] = self.inputs[name] = node
        self._body, self._all = body, units
        self._unit: Unit | None = None

    def import_units(self, units: Sequence[Unit], outputs: Sequence[str]) -> list[Unit]:
        """Import what the outputs need; the needed units."""
        kept = []
        by_proto = {id(u.proto): u for u in units}
        for proto, needed in needed_nodes([u.proto for u in units], outputs):
            unit = self._unit = by_proto[id(proto)]
            kept.append(unit)
            scope = Scope(self.names, lambda n: self._body.constant(n, self._all), unit.opsets,
                          prefix=unit.prefix, origin=unit.origin)
            self.node(proto, scope, needed)
            if all(n in self.plain or self._body.constant(n, self._all) is not None
                   for n in reads(proto) if n):
                self.plain.update(proto.output)
        return kept

    def failed(self, proto: NodeProto, origin: Origin, error: UnsupportedError, scope: Scope,
               ready: bool) -> None:
        if scope.depth:
            raise error if isinstance(error, Inner) else Inner(
                f"its {proto.op_type}" + (f": {error}" if str(error) else " has no import rule"))
        assert self._unit is not None
        rows = [] if not ready else [_row(scope.find(n)[1]) if n else None for n in proto.input]
        self.failures[self._unit.place] = Failure(error, ready, rows)

    def repeated(self, scope: Scope) -> bool:
        assert self._unit is not None
        return scope.depth == 0 and self._unit.shown.name in self._loops

    def bounded(self, found: Bounded) -> Sequence[Value | None]:
        if self._inside:
            return super().bounded(found)
        assert self._unit is not None
        self.sized.append(self._unit.place)
        return [x if x is None or axis is None else Sized(x, found.count, axis)
                for x, axis in zip(found.padded, found.axes)]


def _row(value: Value | None) -> Any:
    """A value's type, as `frontends.values.signature` tells it."""
    if isinstance(value, Node):
        return [value.type.dtype, list(value.type.dims)]
    if isinstance(value, Seq):
        first = _row(value.items[0]) if value.items else [value.dtype or "f32", []]
        return ["sequence", first, len(value.items)]
    if isinstance(value, Opaque):
        return list(value.signature)
    return ["none"] if isinstance(value, Empty) else None


@dataclass
class _Outputs:
    """The tensors that a part gives, numbered, and the forms of the names that stand for them."""

    flat: dict[Node, int] = field(default_factory=dict)

    def form(self, value: Value | None, written: str) -> Form:
        """written: how a small constant is: "const", "plain" where no shape decides it, "" as any
        tensor that the part gives.
        """
        if isinstance(value, Seq):
            return {"seq": [self.form(v, written) for v in value.items]}
        if isinstance(value, Sized):
            return {"cut": [self._number(value.padded), self._number(value.count), value.axis]}
        if not isinstance(value, Node):
            return {"none": 1}
        if value.op == "input":
            return {"same": value.attr("name")}
        if value.op == "const" and value.type.size <= INLINE_ELEMENTS and written:
            return {written: [value.type.dtype, list(value.type.dims),
                              value.data.reshape(-1).tolist()]}
        return self._number(value)

    def _number(self, node: Node) -> int:
        return self.flat.setdefault(node, len(self.flat))


class Partition:
    """A model's levels. Thread-safe."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        main = Body(model, model.proto.graph, model.opsets, Where())
        self._bodies: dict[Where, Body] = {Where(): main}
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._runs: dict[Any, host.Run] = {}
        self._constants: dict[Any, Any] = {}
        # names of loops that are not unrolled, as shapes say how many steps they make, and of
        # those that are all the same, as the host would have to drive them
        self.loops: set[str] = set()
        self._driven: set[str] = set()
        self._lock = forking.rlock()

    # ---- what runs ask for

    def level(self, where: Where, state: State, env: Mapping[str, Signature],
              values: Mapping[str, np.ndarray[Any, Any]], general: bool = False) -> Level:
        """The next level of a scope. env: what is there, by name; values: of inputs that decide
        shapes; general: what is a constant at these shapes and values is given by the part like
        any tensor, so that the level holds at others. Raises NeedsValue for another such input,
        UnsupportedError where nothing, not even onnx.reference, can run a node.
        """
        with self._lock:
            body = self._body(where)
            while True:
                units = body.units(state)
                kept = units.nodes if state.left is None else set(state.left)
                left = [u for u in units.nodes.values() if u.place in kept]
                attempt = _Attempt(body, units, env, values, self.loops)
                needed = attempt.import_units(left, body.outputs)
                expanded = self._expansions(body, attempt, needed, state)
                if expanded:
                    state = expanded
                    continue
                level = self._level(body, state, units, attempt, needed, env, values,
                                    general or bool(self.loops))
                driven = {s.name for s in level.steps if s.repeats is None} & self.loops
                if not driven:
                    return level
                self.loops -= driven
                self._driven |= driven

    def graph(self, where: Where, state: State, part: Part, shapes: Mapping[str, Any],
              values: Mapping[str, np.ndarray[Any, Any]]) -> Graph:
        """A part as a graph, for these shapes of its inputs."""
        with self._lock:
            if not has_size((*shapes.values(), *(tuple(v.flat) for v in values.values()))):
                known = self._graphs.pop(_graph_key(where, state, part, shapes, values), None)
                if known is not None:
                    return known
            body = self._body(where)
            units = body.units(state)
            env: dict[str, Signature] = {
                n: [dtype, list(shapes[n])] for n, dtype, _ in part.inputs}
            attempt = _Attempt(body, units, env, values)
            names = [name for name, _ in part.outputs]
            try:
                attempt.import_units([units.nodes[p] for p in part.nodes], names)
            except StepsVary as error:
                if error.node in self.loops | self._driven:
                    raise SizePinned(str(error)) from None
                self.loops.add(error.node)
                raise
            for place, failure in attempt.failures.items():
                origin = units.nodes[place].shown
                raise NotOneGraph(f"node '{origin.name}' ({origin.op_type}): {failure.error}")
            outputs = _Outputs()
            forms = tuple((name, outputs.form(attempt.names[name], _written(form)))
                          for name, form in part.outputs)
            if forms != part.outputs:       # what folds at one size may not where it is a symbol
                raise NotOneGraph(f"{self.model.source}: a part has other results at these shapes")
            return _graph(attempt, part, outputs, body)

    def constant(self, where: Where, state: State, name: str) -> Any:
        """A constant in sight of a scope, for the host; KeyError where there is none."""
        with self._lock:
            key = where, state.expanded, name
            if key not in self._constants:
                body = self._body(where)
                self._constants[key] = body.value(name, body.units(state))
            return self._constants[key]

    def host(self, where: Where, state: State, step: HostStep) -> host.Run:
        """What runs a step on the host."""
        with self._lock:
            key = where, state.expanded, step.node
            if key not in self._runs:
                unit = self._body(where).units(state).nodes[step.node]
                self._runs[key] = host.evaluator(unit.proto, unit.opsets, step.name)
            return self._runs[key]

    # ---- levels

    def _body(self, where: Where) -> Body:
        found = self._bodies.get(where)
        if found is None:
            outer = self._body(Where(where.hops[:-1], where.expanded[:-1]))
            place, attribute = where.hops[-1]
            state = State(None, where.expanded[-1])
            found = self._bodies[where] = outer.body(where, state, place, attribute)
        return found

    def _expansions(self, body: Body, attempt: _Attempt, needed: Sequence[Unit],
                    state: State) -> State | None:
        """The state with those calls expanded that failed inside; None if there are none."""
        found: dict[str, str] = {}
        left: list[str] = []
        for unit in needed:
            failure = attempt.failures.get(unit.place)
            inner = None
            if failure is not None and isinstance(failure.error, Inner) and not (
                    unit.proto.op_type in CONTROL and not unit.domain):
                inner = body.expand(unit, failure.operands)
            if inner is None:
                left.append(unit.place)
            else:
                assert failure is not None
                found[unit.place] = failure.operands
                left += [u.place for u in inner]
        if not found:
            return None
        return State(tuple(left), tuple(sorted({**dict(state.expanded), **found}.items())))

    def _level(self, body: Body, state: State, units: Units, attempt: _Attempt,
               needed: Sequence[Unit], env: Mapping[str, Signature],
               values: Mapping[str, np.ndarray[Any, Any]], general: bool) -> Level:
        imported: list[Unit] = []
        failing: list[Unit] = []
        later: list[Unit] = []
        waits, never = [], []
        for unit in needed:
            failure = attempt.failures.get(unit.place)
            row = (unit.shown.name, unit.shown.op_type)
            if failure is None:
                made = [attempt.names.get(o) for o in unit.proto.output if o]
                (later if any(v is MISSING for v in made) else imported).append(unit)
                if unit.place in attempt.sized:
                    waits.append((*row, "how long its result is, data decides"))
            elif not failure.ready or isinstance(failure.error, Cut):
                later.append(unit)
                if failure.ready:
                    waits.append((*row, str(failure.error)))
                elif not attempt.has_way(unit.proto, unit.domain,
                                         unit.opsets.get(unit.domain, 0)):
                    never.append((*row, _why(failure.error)))
            else:
                failing.append(unit)
        if needed and not imported and not failing:
            rows = "\n".join(f"  '{n}' ({op}): {why}" for n, op, why in waits)
            raise UnsupportedError(f"{self.model.source}: no node can be run:\n{rows}")
        self._check_host(failing, attempt)
        wanted = _wanted([*failing, *later], body.outputs)
        part = self._part(body, attempt, imported, wanted, env, values, state, general)
        after = State(tuple(u.place for u in later), state.expanded) if later else None
        made_now = {o for u in (*imported, *failing) for o in u.proto.output if o}
        keep = _wanted(later, body.outputs)
        drop = tuple(sorted(n for n in {*env, *made_now} if n not in keep))
        steps = tuple(self._step(body, state, units, u, attempt) for u in failing)
        return Level(State((), state.expanded), part, steps, drop, tuple(waits), tuple(never),
                     after)

    def _check_host(self, failing: Sequence[Unit], attempt: _Attempt) -> None:
        """UnsupportedError listing nodes that can't even run on the host."""
        rows = []
        for unit in failing:
            if unit.proto.op_type in CONTROL and not unit.domain:
                continue
            if not host.has_implementation(unit.proto, unit.opsets):
                origin, error = unit.shown, attempt.failures[unit.place].error
                domain = f" of domain '{unit.domain}'" if unit.domain else ""
                why = f": {error}" if str(error) else ""
                rows.append(f"  '{origin.name}' ({origin.op_type}{domain}){why}")
        if rows:
            are = "nodes are" if len(rows) > 1 else "node is"
            raise UnsupportedError("\n".join([
                f"{self.model.source}: {len(rows)} {are} not supported, and onnx.reference has "
                "no implementation for the host", *rows,
                "  Replace these nodes when exporting, or declare the ops: see CONTRIBUTING.md."]))

    def _part(self, body: Body, attempt: _Attempt, imported: Sequence[Unit], wanted: set[str],
              env: Mapping[str, Signature], values: Mapping[str, np.ndarray[Any, Any]],
              state: State, general: bool) -> Part | None:
        """What was imported, as far as later nodes or the outputs read it."""
        names = [o for u in imported for o in u.proto.output if o in wanted]
        if not names:
            return None
        outputs, other = _Outputs(), "" if general else "const"
        forms = tuple((n, outputs.form(attempt.names[n], "plain" if n in attempt.plain else other))
                      for n in dict.fromkeys(names))
        read = {n for u in imported for n in reads(u.proto)}
        inputs = tuple((n, env[n][0], len(env[n][1])) for n in env
                       if n in read and plain(env[n]))
        by_value = tuple(n for n, _, _ in inputs if n in values)
        part = Part(tuple(u.place for u in imported), inputs, forms, len(outputs.flat), by_value)
        if part.count:
            shapes = {n: tuple(env[n][1]) for n, _, _ in inputs}
            fixed = {n: values[n] for n in by_value}
            self._graphs[_graph_key(body.where, state, part, shapes, fixed)] = _graph(
                attempt, part, outputs, body)
            while len(self._graphs) > KEPT_GRAPHS:
                self._graphs.popitem(last=False)
        return part

    def _step(self, body: Body, state: State, units: Units, unit: Unit,
              attempt: _Attempt) -> HostStep:
        origin, proto, failure = unit.shown, unit.proto, attempt.failures[unit.place]
        step = HostStep(unit.place, origin.name, proto.op_type, _why(failure.error),
                        tuple(proto.input), tuple(proto.output), unit.domain)
        if proto.op_type not in CONTROL or unit.domain:
            return step
        attrs: dict[str, Any] = {"opset": unit.opsets.get("", 0)}
        bodies = []
        for a in proto.attribute:
            if not a.HasField("g"):
                attrs[a.name] = tensors.attribute(a, self.model.base, f"node '{origin.name}'")
                continue
            names = captured(a.g, (*(n for x in a.g.node for n in reads(x)),
                                   *(v.name for v in a.g.output)))
            bodies.append((a.name, levels.Body(
                body.where.enter(state, unit.place, a.name),
                tuple(v.name for v in a.g.input), tuple(v.name for v in a.g.output),
                tuple(n for n in names if body.constant(n, units) is None),
                tuple(_declared(v.type) for v in a.g.output))))
        step = replace(step, attrs=attrs, bodies=tuple(bodies))

        def seen(name: str) -> Any:
            return _row(attempt.names.get(name))

        return replace(step, repeats=repeats(self, step, json.loads(failure.operands), seen))

    def types(self, where: Where, state: State, part: Part, shapes: Mapping[str, Any]
              ) -> list[Signature]:
        """Of a part's outputs."""
        graph = self.graph(where, state, part, shapes, {})
        with self._lock:                    # it is asked for again
            self._graphs[_graph_key(where, state, part, shapes, {})] = graph
        return [[n.type.dtype, list(n.type.dims)] for _, n in graph.outputs]


def _graph(attempt: _Attempt, part: Part, outputs: _Outputs, body: Body) -> Graph:
    inputs = attempt.read_by(
        [attempt.inputs[n] for n, _, _ in part.inputs if n in attempt.inputs], outputs.flat)
    name = body.graph.name or "model"
    return Graph(name, inputs, tuple(zip(output_names(part.count), outputs.flat)),
                 attempt.origins)


def _written(form: Form) -> str:
    """How a form has it that constants are written."""
    while isinstance(form, dict) and form.get("seq"):
        form = form["seq"][0]
    return next((how for how in ("plain", "const") if isinstance(form, dict) and how in form), "")


def output_names(count: int) -> list[str]:
    """What a part's outputs are called."""
    return [f"out{i}" for i in range(count)]


def _graph_key(where: Where, state: State, part: Part, shapes: Mapping[str, Any],
               values: Mapping[str, np.ndarray[Any, Any]]) -> str:
    return levels.digest(
        where.raw(), state.expanded, part.nodes, part.outputs,
        sorted((n, list(shapes[n])) for n, _, _ in part.inputs),
        sorted((n, v.dtype.str, v.tolist()) for n, v in values.items()))


def _wanted(units: Sequence[Unit], outputs: Sequence[str]) -> set[str]:
    return {n for u in units for n in reads(u.proto)} | set(outputs)


def _why(error: UnsupportedError) -> str:
    return " ".join(str(error).split()) or "no import rule"


def _declared(type: Any) -> Any:
    """The signature of a body's output as far as the file says it."""
    if not type.HasField("tensor_type"):
        return None
    dtype = tensors.dtype_of(type.tensor_type.elem_type)
    if dtype is None:
        return None
    dims = [d.dim_value if d.HasField("dim_value") else None for d in type.tensor_type.shape.dim]
    return [dtype, dims if type.tensor_type.HasField("shape") else None]


__all__ = ["Partition", "output_names"]
