"""`Program`: a model that is no single graph, run level by level: compiled parts, and host steps
between them, on named values.

A level is looked up by what is there: the types of all values, and the elements of those that
decide shapes. It is found by an import attempt once, and kept in memory and in the cache. Parts are
`Model`s of their own, so that their specialisations and plans are kept like any model's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes, forking
from jitcl.devices import recording
from jitcl.errors import (
    JitclError,
    NeedsValue,
    NotOneGraph,
    OutOfMemoryError,
    StepsVary,
    UnsupportedError,
    closed_error,
)
from jitcl.frontends.levels import (
    Form,
    HostStep,
    Level,
    Part,
    Repeats,
    State,
    Where,
    digest,
)
from jitcl.frontends.values import plain, signature
from jitcl.ir.graph import Graph, ModelNode
from jitcl.ir.types import Sym
from jitcl.runtime import control
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.control import placed
from jitcl.runtime.repeated import Steps, Unsteady, compute, steps_of
from jitcl.runtime.sequence_ops import SEQUENCE_OPS
from jitcl.runtime.source import OnnxSource, Source, Tensor

if TYPE_CHECKING:
    from jitcl.runtime.model import Model
    from jitcl.runtime.specialise import Specialisation

START = State()
MAX_LEVELS = 1024               # kept in memory
MAX_PARTS = 256

Env = dict[str, Any]


class PartSource:
    """A part of a model as a source of its own."""

    whole = False

    def __init__(self, source: OnnxSource, where: Where, state: State, part: Part) -> None:
        self._source, self._where, self._state, self._part = source, where, state, part
        self.name = source.name
        self.digest = digest(source.digest, where.raw(), state.expanded, part.nodes, part.inputs,
                             part.outputs)

    def signature(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[str, ...]]:
        inputs = tuple(
            Tensor(name, dtype, tuple(Sym(f"?{name}.{axis}") for axis in range(rank)))
            for name, dtype, rank in self._part.inputs)
        outputs = tuple(Tensor(f"out{i}", "unknown", ()) for i in range(self._part.count))
        return inputs, outputs, tuple(map(str, self._source.beside()))

    def called(self, name: str) -> str:
        """A part reads what the caller feeds, and what the model has computed by then."""
        fed = not self._where.hops and name in self._source.model.value_types[0]
        return self._source.called(name) if fed else f"value '{name}', which the model computes"

    def graph(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
    ) -> Graph:
        return self._source.partition.graph(  # type: ignore[no-any-return]
            self._where, self._state, self._part, shapes, values)

    def nodes(self) -> Mapping[str, ModelNode]:
        return self._source.nodes()


@dataclass(frozen=True)
class Ran:
    """A level as a run met it: what was compiled for its part, for which shapes and values."""

    where: Where
    level: Level
    model: Model | None = None
    special: Specialisation | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


Trace = dict[Any, Ran]


class Program:
    """Runs one model. Thread-safe. `make`: opens a source as a model with the options of this one.
    """

    def __init__(self, source: OnnxSource, cache: DeviceCache, strict: bool,
                 make: Callable[[Source], Model]) -> None:
        self.source, self.cache, self.strict, self._make = source, cache, strict, make
        self.last: tuple[Ran, ...] = ()
        self._lock, self._closed = forking.rlock(), False
        self._levels: OrderedDict[Any, Level] = OrderedDict()
        self._at_any_shape: dict[Any, Level] = {}
        self._met: set[Any] = set()             # ranks of which a level was looked for
        self._by_value: dict[tuple[str, str], list[str]] = {}
        self._parts: OrderedDict[str, Model] = OrderedDict()

    # ---- running

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str]) -> Env:
        """Values of the outputs by name; none of them shares memory with what is fed."""
        trace: Trace = {}
        found = self.run_scope(Where(), dict(feeds), outputs, trace, set())
        self.last = tuple(trace.values())
        fed = list(feeds.values())
        return {name: _own(value, fed) for name, value in zip(outputs, found)}

    def run_scope(self, where: Where, env: Env, outputs: Sequence[str], trace: Trace,
                  computed: set[str]) -> list[Any]:
        """The outputs of a graph or body, for the values of its inputs and captures (`env`, which
        is used up). computed: those of them that are others in each run, not only where others are
        fed; grows by what is computed here.
        """
        state: State | None = START
        while state is not None:
            level = self._level(where, state, env)
            try:
                try:
                    ran = self._run_part(where, level, env, computed)
                except StepsVary:               # a loop of it is better left to the device
                    level = self._level(where, state, env, anew=True)
                    ran = self._run_part(where, level, env, computed)
            except NotOneGraph:                 # found at other shapes, and not so at these
                level = self._level(where, state, env, exact=True)
                ran = self._run_part(where, level, env, computed)
            trace[where, state.left] = ran
            for step in level.steps:
                with recording.span("host step", step.name or step.op_type):
                    values = self._run_step(where, level, step, env, trace, computed)
                for name, value in zip(step.outputs, values):
                    if name:
                        env[name] = value
                        computed.add(name)
            for name in level.drop:
                env.pop(name, None)
            state = level.after
        return [env[n] if n in env else self.constant(where, START, n) for n in outputs]

    def prepare(self, arrays: Mapping[str, Any]) -> None:
        """Find the first level for inputs like these and compile its part, where their elements
        don't matter. Raises what strict=True rules out.
        """
        try:
            level = self._level(Where(), START, dict(arrays), fed=False)
        except NeedsValue:
            return
        if level.part is not None and level.part.count:
            model = self._part(Where(), level, level.part, ())
            model.prepare({n: arrays[n].shape for n, _, _ in level.part.inputs})
            self.last = (Ran(Where(), level, model, model.last),)

    def first_part(self, arrays: Mapping[str, Any]) -> tuple[Model | None, dict[str, Any]]:
        """The part that a run with inputs like these begins with, and what it reads."""
        level = self._level(Where(), START, dict(arrays))
        if level.part is None or not level.part.count:
            return None, {}
        return (self._part(Where(), level, level.part, ()),
                {n: arrays[n] for n, _, _ in level.part.inputs})

    def _run_part(self, where: Where, level: Level, env: Env, computed: set[str]) -> Ran:
        """Run what is compiled, and name its results in `env`."""
        arrays: list[np.ndarray] = []
        ran, part = Ran(where, level), level.part
        if part is None:
            return ran
        if part.count:
            model = self._part(where, level, part, computed)
            feeds = {name: env[name] for name, _, _ in part.inputs}
            results, special = model.run_specialised(feeds)
            arrays = [results[f"out{i}"] for i in range(part.count)]
            ran = Ran(where, level, model, special, {n: a.shape for n, a in feeds.items()},
                      {n: feeds[n] for n in part.by_value})
        made = {name: _formed(form, arrays, env) for name, form in part.outputs}
        env.update(made)
        computed.update(name for name, form in part.outputs if isinstance(form, int))
        return ran

    def _run_step(self, where: Where, level: Level, step: HostStep, env: Env,
                  trace: Trace, computed: set[str]) -> Sequence[Any]:
        operands = [self._value(where, level, n, env) if n else None for n in step.inputs]
        host_op = SEQUENCE_OPS.get(step.op_type)
        if host_op is not None and not step.domain:
            return [host_op(step.name, operands)]
        if step.repeats is not None:
            try:
                return self._repeated(step, step.repeats, operands, env, trace, computed)
            except Unsteady:                            # at these shapes the host drives it
                if self.strict:
                    raise UnsupportedError(
                        f"{self.source.name}: node '{step.name}' ({step.op_type}) would be driven "
                        "by the host, which strict=True rules out: a step changes its state's "
                        "shape at these shapes\n  Feed a state of the shape that it becomes, or "
                        "leave strict out.") from None
        drive = control.DRIVERS.get(step.op_type) if step.bodies else None
        if drive is None:
            run = self.source.partition.host(where, level.here, step)
            return run(operands)                        # type: ignore[no-any-return]

        def body(name: str, given: Sequence[Any]) -> list[Any]:
            found = dict(step.bodies)[name]
            inner = {n: env[n] for n in found.captures if n in env}
            inner.update(zip(found.inputs, given))
            changing = {*found.inputs, *computed.intersection(found.captures)}
            return self.run_scope(found.where, inner, found.outputs, trace, changing)

        return drive(step, operands, body)

    def _repeated(self, step: HostStep, repeats: Repeats, operands: Sequence[Any], env: Env,
                  trace: Trace, computed: set[str]) -> Sequence[Any]:
        """The results of a loop, of one call for all of its steps."""
        try:
            steps = steps_of(step, operands, repeats)
            state, stacked = (self._all_steps(step, repeats, steps, env, trace, computed)
                              if steps.count else self._no_step(step, repeats, steps, env))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"node '{step.name}' ({step.op_type}): there is no memory for the results of all "
                f"its steps ({error})\n  Make the loop shorter.") from error
        return [*state, *(placed(step, stacked) if step.op_type == "Scan" else stacked)]

    def _all_steps(self, step: HostStep, repeats: Repeats, steps: Steps, env: Env, trace: Trace,
                   computed: set[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The state behind a loop's steps, and what is stacked of them."""
        body, part = dict(step.bodies)["body"], repeats.part
        inner = {**{n: env[n] for n in body.captures if n in env}, **steps.first}
        level = Level(repeats.here, part, (), (), (), (), None)
        model = self._part(body.where, level, part, {*body.inputs, *computed})
        feeds = {name: inner[name] for name, _, _ in part.inputs}
        run = compute(repeats, steps, inner, model.source.called)
        results, special = model.apply(feeds, run)
        trace[body.where, None] = Ran(body.where, level, model, special,
                                      {n: a.shape for n, a in feeds.items()})
        return results[: len(repeats.state)], results[len(repeats.state) :]

    def _no_step(self, step: HostStep, repeats: Repeats, steps: Steps, env: Env
                 ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Of a loop that makes none: the state as it was, and no rows of what a step would give."""
        body, part = dict(step.bodies)["body"], repeats.part
        inner = {**{n: env[n] for n in body.captures if n in env}, **steps.fixed, **steps.state}
        types = {n: signature(x) for n, x in inner.items()}
        types |= {n: [signature(x)[0], list(x.shape[1:])] for n, x in steps.rows.items()}
        given = self.source.partition.types(
            body.where, repeats.here, part, {n: tuple(types[n][1]) for n, _, _ in part.inputs})
        rows = [given[s] if isinstance(s, int) else types[s] for s in repeats.stacked]
        return ([steps.state[name] for name, _ in repeats.state],
                [np.zeros((0, *dims), dtypes.to_numpy(dtype)) for dtype, dims in rows])

    def _value(self, where: Where, level: Level, name: str, env: Env) -> Any:
        return env[name] if name in env else self.constant(where, level.here, name)

    def constant(self, where: Where, state: State, name: str) -> Any:
        """A constant of the model, for the host."""
        try:
            return self.source.partition.constant(where, state, name)
        except KeyError:
            raise JitclError(f"{self.source.name}: nothing makes '{name}' ({where.name})") from None

    @property
    def parts(self) -> list[Model]:
        """The compiled parts, those that were used last at the end."""
        with self._lock:
            return list(self._parts.values())

    def close(self) -> None:
        """Close the parts. A run that is under way ends with ClosedError where it needs another."""
        with self._lock:
            self._closed, parts, self.last = True, list(self._parts.values()), ()
            self._parts.clear()
        for part in parts:
            part.close()

    # ---- levels

    def _level(self, where: Where, state: State, env: Env, fed: bool = True,
               exact: bool = False, anew: bool = False) -> Level:
        """The next level of a scope for what is there; raises what strict=True rules out. `exact`:
        found at these very shapes. `anew`: in place of one that is known.
        """
        place = where.digest, state.digest
        with self._lock:
            by_value = self._value_names(place)
            while True:
                values = {n: env[n] for n in by_value if n in env}
                if values and not fed:          # what stands in their place is no model's input
                    raise NeedsValue(next(iter(values)), "its elements are not known yet")
                key = (place, tuple((n, _seen(v)) for n, v in env.items()),
                       tuple((n, np.asarray(v).tobytes()) for n, v in values.items()))
                level = None if anew else self._levels.get(key)
                ranks = place, tuple((n, _rank(v)) for n, v in env.items())
                if level is None and not exact and not anew:
                    level = self._at_any_shape.get(ranks)
                if level is None:
                    general = bool(values) or anew or ranks in self._met
                    try:
                        level = self._found(where, state, env, values, exact, general, anew)
                    except NeedsValue as error:
                        by_value.append(error.input_name)
                        self._store(Key({**self._key(place), "of": "values"}, ""), by_value)
                        if not fed:
                            raise
                        continue
                    self._levels[key] = level
                    self._met.add(ranks)
                    if holds_at_any_shape(level):
                        self._at_any_shape[ranks] = level
                    while len(self._levels) > MAX_LEVELS:
                        self._levels.popitem(last=False)
                break
        if self.strict and level.hosted:
            raise UnsupportedError(self._ruled_out(level))
        return level

    def _found(self, where: Where, state: State, env: Env, values: Mapping[str, np.ndarray],
               exact: bool, general: bool, anew: bool) -> Level:
        """A level from the cache, or by an import attempt. exact, general, anew: as in `_level` and
        `Partition.level`.
        """
        seen = {n: signature(v) for n, v in env.items()}
        place = {**self._key((where.digest, state.digest)), "of": "level"}
        here = Key({
            **place, "seen": digest(sorted(seen.items())),
            "values": digest(sorted((n, v.dtype.str, v.tolist()) for n, v in values.items())),
        }, f"model {self.source.name}")
        ranks = [(n, s[0], len(s[1]) if plain(s) else None) for n, s in sorted(seen.items())]
        anywhere = Key({**place, "seen": digest(ranks), "values": "any"}, here.subject)
        for key in () if anew else (here,) if exact else (anywhere, here):
            stored = self.cache.get("model", key)
            if stored is not None:
                return Level.decode(bytes(stored))
        level: Level = self.source.partition.level(where, state, seen, values,
                                                   general and not exact)
        holds = holds_at_any_shape(level) and not exact
        self.cache.put("model", anywhere if holds else here, level.encode())
        return level

    def _key(self, place: tuple[str, str]) -> dict[str, str]:
        return {"model": self.source.digest, "code": code_version(), "scope": place[0],
                "state": place[1]}

    def _value_names(self, place: tuple[str, str]) -> list[str]:
        """Names of inputs whose elements decide shapes at a place, as far as that is known."""
        found = self._by_value.get(place)
        if found is None:
            import json

            stored = self.cache.get("model", Key({**self._key(place), "of": "values"}, ""))
            found = self._by_value[place] = json.loads(bytes(stored)) if stored is not None else []
        return found

    def _store(self, key: Key, names: Sequence[str]) -> None:
        import json

        self.cache.put("model", key, json.dumps(list(names)).encode())

    def _ruled_out(self, level: Level) -> str:
        rows = [(s.name, s.op_type, s.why) for s in level.hosted] + list(level.never)
        count = f"{len(rows)} node" + ("s" if len(rows) > 1 else "")
        return "\n".join([
            f"{self.source.name}: {count} would run on the host, which strict=True rules out",
            *(f"  '{name}' ({op}): {why}" for name, op, why in dict.fromkeys(rows)),
            "  Replace these nodes when exporting, declare the ops (see CONTRIBUTING.md), or leave "
            "strict out."])

    def _part(self, where: Where, level: Level, part: Part, computed: Collection[str]) -> Model:
        source = PartSource(self.source, where, level.here, part)
        with self._lock:
            if self._closed:
                raise closed_error(f"model {self.source.name}")
            model = self._parts.pop(source.digest, None)
            if model is None:
                model = self._make(source)
                for name in part.by_value:
                    model.decides(name)
                model.computed(computed)
            self._parts[source.digest] = model
            while len(self._parts) > MAX_PARTS:
                self._parts.popitem(last=False)
            return model


def _seen(value: Any) -> Any:
    """What a level's key holds of a value: hashable, and quick for arrays."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUST":
        return value.dtype, value.shape
    return repr(signature(value))


def _rank(value: Any) -> Any:
    """What `_seen` says, less the sizes."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUST":
        return value.dtype, value.ndim
    return signature(value)[0]


def holds_at_any_shape(level: Level) -> bool:
    """Whether a level that was found at some shapes and values is right at others: no constant that
    may come of these is written into it, no node that may be a mere copy at one shape is left out,
    and no call was expanded for operands of a type. Its part is checked when it is imported for a
    shape, and the state of a loop that the device repeats when that runs.
    """
    if level.here.expanded or level.part is not None and not _any_shape(level.part, ()):
        return False
    return all(not s.bodies or s.op_type == "If" or _repeats_at_any_shape(s) for s in level.steps)


def _any_shape(part: Part, scalars: Collection[str]) -> bool:
    """scalars: names that a part may give back as they are, whatever the shapes."""
    return all(isinstance(form, int) or "cut" in form or "plain" in form
               or form.get("same") in scalars for _, form in part.outputs)


def _repeats_at_any_shape(step: HostStep) -> bool:
    if step.repeats is None:                    # at other shapes it may
        return False
    scalars = dict(step.bodies)["body"].inputs[:2] if step.op_type == "Loop" else ()
    return not step.repeats.here.expanded and _any_shape(step.repeats.part, scalars)


def _formed(form: Form, arrays: Sequence[np.ndarray], env: Env) -> Any:
    """The value that a form describes, from the arrays that a part gave."""
    if isinstance(form, int):
        return arrays[form]
    if "seq" in form:
        return [_formed(f, arrays, env) for f in form["seq"]]
    if "same" in form:
        return env[form["same"]]
    if "cut" in form:
        at, count, axis = form["cut"]
        size = int(arrays[count].reshape(-1)[0])
        return np.ascontiguousarray(
            arrays[at][(slice(None),) * axis + (slice(0, size),)])
    constant = form.get("const") or form.get("plain")
    if constant:
        dtype, shape, elements = constant
        return np.array(elements, dtypes.to_numpy(dtype)).reshape(shape)
    return None


def _own(value: Any, fed: Sequence[Any]) -> Any:
    """The value, copied where it may be (part of) something that was fed."""
    if isinstance(value, list):
        maps = all(type(v) is dict for v in value)          # one for each of many rows
        return list(value) if maps else [_own(v, fed) for v in value]
    if isinstance(value, np.ndarray):
        return value.copy() if _shared(value, fed) else value
    return value


def _shared(value: np.ndarray, fed: Sequence[Any]) -> bool:
    return any(_shared(value, f) if isinstance(f, list) else
               isinstance(f, np.ndarray) and np.may_share_memory(value, f) for f in fed)


__all__ = ["PartSource", "Program", "Ran"]
