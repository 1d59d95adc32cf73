"""Control flow that import resolves: the taken branch of an If, and short loops, step by step.

What can't be resolved here runs as a program: the body compiled, the loop driven by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, NodeProto

from jitcl.errors import ModelError, StepsVary, UnsupportedError
from jitcl.frontends.onnx.model import constant, unreadable
from jitcl.frontends.onnx.scope import MISSING, Scope, Value, tensors_in
from jitcl.ir.graph import Node, const
from jitcl.ir.sizes import is_size
from jitcl.ops.core import norm_axis

if TYPE_CHECKING:
    from jitcl.frontends.onnx.importer import Importer

MAX_STEPS = 32  # longer loops are not unrolled
MAX_NODES = 2048  # nor those that would become more nodes than this
MOST_UNROLLED = 20_000  # nodes of bodies in one import, after which no further loop is unrolled

Values = list["Value | None"]
Rule = Callable[["Importer", NodeProto, Values, dict[str, Any], Scope], "Values | None"]


def branch(
    im: Importer, proto: NodeProto, inputs: Values, attrs: dict[str, Any], scope: Scope
) -> Values:
    """If: the results of the branch that a known condition takes."""
    condition = _tensor(inputs[0], "its condition")
    taken = bool(im.evaluate(condition).reshape(-1)[0])
    return run_body(im, attrs["then_branch" if taken else "else_branch"], [], scope)


def loop(
    im: Importer, proto: NodeProto, inputs: Values, attrs: dict[str, Any], scope: Scope
) -> Values:
    """Loop with a known trip count and conditions, unrolled."""
    body: GraphProto = attrs["body"]
    _same(body, max(2, len(inputs)), len(proto.output) + 1)
    trips = None
    if inputs[0] is not None:
        count = im.known(_tensor(inputs[0], "its trip count"))
        if count is None:
            raise UnsupportedError("its trip count is known only when the model runs")
        _unrollable(im, count.reshape(-1)[0], scope)
        trips = int(count.reshape(-1)[0])
    going = _condition(im, inputs[1] if len(inputs) > 1 else None)
    state: Values = list(inputs[2:])
    rows: list[list[Node]] = [[] for _ in body.output[1 + len(state) :]]
    step = 0
    while going and (trips is None or step < trips):
        _bound(im, step + 1 if trips is None else trips, body)
        given = [const(np.int64(step)), const(np.bool_(True)), *state]
        found = run_body(im, body, given, scope)
        if any(n is MISSING for v in found for n in tensors_in(v)):
            return [MISSING] * len(proto.output)
        going = _condition(im, found[0])
        state = found[1 : 1 + len(state)]
        for row, value in zip(rows, found[1 + len(state) :]):
            row.append(_tensor(value, "a result of each step"))
        step += 1
    if rows and not step:
        raise UnsupportedError("it makes no step, so that the shape of its results is not known")
    return [*state, *(_stacked(im, row, 0) for row in rows)]


def scan(
    im: Importer, proto: NodeProto, inputs: Values, attrs: dict[str, Any], scope: Scope
) -> Values:
    """Scan over few steps, unrolled (as opset 9 and newer has it)."""
    if scope.opsets.get("", 0) < 9:
        raise UnsupportedError("Scan of opset 8, with a batch axis")
    body: GraphProto = attrs["body"]
    many = int(attrs["num_scan_inputs"])
    _same(body, len(inputs), len(proto.output))
    if many > len(inputs):
        raise ModelError(f"attribute 'num_scan_inputs' is {many}, but it has {len(inputs)} inputs")
    tensors = [_tensor(x, "an input of it") for x in inputs]
    state: Values = list(tensors[: len(tensors) - many])
    over = tensors[len(tensors) - many :]
    axes = [norm_axis(a, x.type.rank) for a, x in zip(
        attrs.get("scan_input_axes") or (0,) * many, over)]
    steps = over[0].type.dims[axes[0]]
    _unrollable(im, steps, scope)
    _bound(im, steps, body)
    if not steps:
        raise UnsupportedError("it makes no step, so that the shape of its results is not known")
    backwards = attrs.get("scan_input_directions") or (0,) * many
    rows: list[list[Node]] = [[] for _ in body.output[len(state) :]]
    for step in range(steps):
        slices = [
            _picked(im, x, steps - 1 - step if back else step, axis)
            for x, axis, back in zip(over, axes, backwards)
        ]
        found = run_body(im, body, [*state, *slices], scope)
        if any(n is MISSING for v in found for n in tensors_in(v)):
            return [MISSING] * len(proto.output)
        state = found[: len(state)]
        for row, value in zip(rows, found[len(state) :]):
            row.append(_tensor(value, "a result of each step"))
    flips = attrs.get("scan_output_directions") or (0,) * len(rows)
    places = attrs.get("scan_output_axes") or (0,) * len(rows)
    return [*state, *(_stacked(im, row[::-1] if flip else row, at)
                      for row, flip, at in zip(rows, flips, places))]


def run_body(
    im: Importer, graph: GraphProto, given: Sequence[Value | None], scope: Scope
) -> Values:
    """The results of a body, which sees the names around it."""
    stored = {t.name: t for t in graph.initializer} | {
        t.values.name: t for t in graph.sparse_initializer}

    def find(name: str) -> Value | None:
        if name not in stored:
            return None
        what = f"initialiser '{name}'"
        return unreadable(stored[name]) or constant(stored[name], im.model.base, what)

    values: dict[str, Value | None] = dict(zip((v.name for v in graph.input), given))
    inner = Scope(values, find, scope.opsets, scope.bound, scope, scope.prefix, scope.origin,
                  scope.depth + 1)
    names = [v.name for v in graph.output]
    im.unrolled += len(graph.node)
    im.nodes(graph.node, names, inner)
    return [inner.find(name)[1] for name in names]


def _same(body: GraphProto, inputs: int, outputs: int) -> None:
    """ModelError where a body takes or gives another number of values than its node. (Outputs that
    nobody reads may be left out of a node.)
    """
    if len(body.input) != inputs or len(body.output) < outputs:
        raise ModelError(
            f"its body '{body.name}' takes {len(body.input)} values and gives {len(body.output)}, "
            f"but the node has {inputs} for it and wants {outputs}")


def _tensor(value: Value | None, what: str) -> Node:
    if not isinstance(value, Node):
        raise UnsupportedError(f"{what} is no tensor")
    return value


def _condition(im: Importer, value: Value | None) -> bool:
    """Whether a loop goes on; UnsupportedError where data decides."""
    if value is None:
        return True
    known = im.known(_tensor(value, "its condition"))
    if known is None:
        raise UnsupportedError("its condition is known only when the model runs")
    return bool(known.reshape(-1)[0])


def _unrollable(im: Importer, steps: Any, scope: Scope) -> None:
    """Raise where each number of steps would be a graph of its own."""
    if is_size(steps):
        raise StepsVary(f"it makes {steps} steps, and each number of them has a plan of its own")
    if im.repeated(scope):
        raise UnsupportedError("how many steps it makes, shapes say")


def _bound(im: Importer, steps: int, body: GraphProto) -> None:
    """UnsupportedError for a loop that is better not unrolled. Bodies of bodies multiply: what they
    have become so far counts, too.
    """
    many = steps > MAX_STEPS or steps * len(body.node) > MAX_NODES
    if many or im.unrolled > MOST_UNROLLED:
        raise UnsupportedError(
            f"its {steps} steps of {len(body.node)} nodes are too many to be unrolled")


def _picked(im: Importer, x: Node, at: int, axis: int) -> Node:
    """x[..., at, ...] without the axis."""
    part = im.g.slice_(x, starts=(at,), ends=(at + 1,), axes=(axis,))
    dims = x.type.dims
    return im.g.reshape(part, shape=(*dims[:axis], *dims[axis + 1 :]))


def _stacked(im: Importer, rows: Sequence[Node], axis: int) -> Node:
    """The rows along a new axis."""
    dims = rows[0].type.dims
    if any(r.type.dims != dims for r in rows):
        raise UnsupportedError("the results of its steps differ in shape")
    at = norm_axis(axis, len(dims) + 1)
    shape = (*dims[:at], 1, *dims[at:])
    return im.g.concat(*(im.g.reshape(r, shape=shape) for r in rows), axis=at)


RULES: dict[str, Rule] = {"If": branch, "Loop": loop, "Scan": scan}

__all__ = ["RULES", "branch", "loop", "run_body", "scan"]
