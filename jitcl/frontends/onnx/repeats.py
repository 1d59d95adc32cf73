"""Loops whose steps need no host between them: those with a body that is one part, state that keeps
its type from step to step, and a condition that no data decides.

    Loop(M, cond, h0)                       rows      the step's number
      body(i, going, h):                    state     h -> output 0 of the part
        x_i = Gather(x, i)                  stacked   output 1
        h1  = Tanh(x_i @ w + h @ r)
        y   = h1 * 2
        going, h1, y
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitcl.errors import JitclError, NeedsValue, UnsupportedError
from jitcl.frontends.levels import Body, HostStep, Level, Repeats, Source, State
from jitcl.frontends.values import Signature, plain
from jitcl.ops.core import norm_axis

if TYPE_CHECKING:
    from jitcl.frontends.onnx.partition import Partition

Types = list[Signature | None]


def repeats(partition: Partition, step: HostStep, operands: Types,
            seen: Callable[[str], Signature | None]) -> Repeats | None:
    """How a loop's steps follow each other; None where the host has to drive them. operands: their
    types. seen: the type of a name around the loop.
    """
    make = _FORMS.get(step.op_type)
    if make is None or step.domain:
        return None
    body = dict(step.bodies)["body"]
    found = make(step, operands, body)
    if found is None:
        return None
    types, rows, going = found
    env = {n: seen(n) for n in body.captures} | types
    known = {n: t for n, t in env.items() if t is not None and plain(t)}
    if len(known) < len(env):
        return None
    try:
        level = partition.level(body.where, State(), known, {})
    except (NeedsValue, UnsupportedError):      # a value decides a shape; a node has no way at all
        return None
    return _matched(partition, body, level, known, types, rows, going)


def _matched(partition: Partition, body: Body, level: Level, env: Mapping[str, Signature],
             types: Mapping[str, Signature | None], rows: tuple[str, ...], going: str
             ) -> Repeats | None:
    part = level.part
    if part is None or not part.count or part.by_value or level.steps or level.after is not None:
        return None
    forms: dict[str, Any] = dict(part.outputs)
    read = {name for name, _, _ in part.inputs}

    def source(name: str) -> Source | None:
        form = forms.get(name, {"same": name})
        if isinstance(form, int):
            return form
        return form["same"] if "same" in form and form["same"] in env else None

    names = list(body.outputs)
    if going:
        first = names.pop(0)
        if source(first) != going and not _true(partition, body, first, forms):
            return None
    given = partition.types(body.where, level.here, part, {
        n: tuple(env[n][1]) for n, _, _ in part.inputs})
    state: list[tuple[str, Source]] = []
    formal = [n for n in types if n not in rows and n != going]

    def typed(found: Source) -> Signature:
        return given[found] if isinstance(found, int) else env[found]

    for name, out in zip(formal, names):
        found = source(out)
        if found is None or typed(found) != env[name]:
            return None
        if isinstance(found, str) and found != name and not {found, name} <= read:
            return None
        state.append((name, found))
    found_each = [source(out) for out in names[len(formal):]]
    stacked = [s for s in found_each if s is not None and (isinstance(s, int) or s in read)]
    if len(stacked) < len(found_each):
        return None
    return Repeats(level.here, part, tuple(state), tuple(n for n in rows if n in read),
                   tuple(stacked), tuple(typed(s) for s in stacked))


def _true(partition: Partition, body: Body, name: str, forms: Mapping[str, Any]) -> bool:
    """Whether a body's output is a constant, and true."""
    if name in forms:
        form = forms[name] if isinstance(forms[name], dict) else {}
        return (form.get("const") or form.get("plain")) == ["bool", [], [True]]
    try:
        value = partition.constant(body.where, State(), name)
    except (KeyError, JitclError):
        return False
    return bool(value.size == 1 and value.reshape(-1)[0])


# ---- (types of the formal inputs, those of rows, the condition's) of each kind of loop

Formal = tuple[dict[str, "Signature | None"], tuple[str, ...], str]


def _loop(step: HostStep, operands: Types, body: Body) -> Formal | None:
    if not step.inputs[0]:                      # nothing but a condition would end it
        return None
    number, going, *state = body.inputs
    types: dict[str, Signature | None] = {number: ["i64", []], going: ["bool", []]}
    types.update(zip(state, operands[2:]))
    return types, (number,), going


def _scan(step: HostStep, operands: Types, body: Body) -> Formal | None:
    if step.attrs["opset"] < 9 or not all(t is not None and plain(t) for t in operands):
        return None
    many = int(step.attrs["num_scan_inputs"])
    rows = body.inputs[len(body.inputs) - many:]
    types: dict[str, Signature | None] = dict(zip(body.inputs, operands))
    axes: Sequence[int] = step.attrs.get("scan_input_axes") or (0,) * many
    for name, axis in zip(rows, axes):
        dtype, dims = types[name] or ("", [])
        at = norm_axis(axis, len(dims))
        types[name] = [dtype, [*dims[:at], *dims[at + 1:]]]
    return types, tuple(rows), ""


_FORMS: Mapping[str, Callable[[HostStep, Types, Body], Formal | None]] = {
    "Loop": _loop, "Scan": _scan}

__all__ = ["repeats"]
