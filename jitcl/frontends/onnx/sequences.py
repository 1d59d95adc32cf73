"""Sequences and optionals that are made and taken apart inside a model: import resolves them, so
that kernels only ever see tensors.

A rule returns None where the operands are for the op's ordinary rule, and raises UnsupportedError
where the sequence is known only when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto

from jitcl.errors import ModelError, UnsupportedError
from jitcl.frontends.onnx import tensors
from jitcl.frontends.onnx.scope import Empty, Opaque, Scope, Seq, Value
from jitcl.ir.graph import Node, const
from jitcl.ops.core import norm_axis

if TYPE_CHECKING:
    from jitcl.frontends.onnx.importer import Importer

Values = list["Value | None"]
Rule = Callable[["Importer", NodeProto, Values, dict[str, Any], Scope], "Values | None"]


def _construct(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    return [Seq(tuple(_node(x) for x in inputs))]


def _empty(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    return [Seq((), tensors.dtype_of(attrs.get("dtype", 1)))]


def _at(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    items = _sequence(inputs[0]).items
    return [items[_position(im, inputs[1], len(items), False)]]


def _insert(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    sequence = _sequence(inputs[0])
    items = list(sequence.items)
    at = len(items)
    if len(inputs) > 2 and inputs[2] is not None:
        at = _position(im, inputs[2], len(items), True)
    items.insert(at, _node(inputs[1]))
    return [Seq(tuple(items), sequence.dtype)]


def _erase(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    sequence = _sequence(inputs[0])
    items = list(sequence.items)
    at = len(items) - 1
    if len(inputs) > 1 and inputs[1] is not None:
        at = _position(im, inputs[1], len(items), False)
    if items:
        del items[at]
    return [Seq(tuple(items), sequence.dtype)]


def _length(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    return [const(np.int64(len(_sequence(inputs[0]).items)))]


def _concat(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    """ConcatFromSequence: along an axis, or along a new one."""
    items = [_node(x) for x in _sequence(inputs[0]).items]
    if not items:
        raise ModelError("the sequence is empty")
    axis = int(attrs["axis"])
    if attrs.get("new_axis", 0):
        at = norm_axis(axis, items[0].type.rank + 1)
        items = [im.g.reshape(x, shape=(*x.type.dims[:at], 1, *x.type.dims[at:])) for x in items]
        axis = at
    return [im.g.concat(*items, axis=norm_axis(axis, items[0].type.rank))]


def _split(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    """SplitToSequence: pieces of a known size along an axis."""
    x = _node(inputs[0])
    axis = norm_axis(int(attrs.get("axis", 0)), x.type.rank)
    extent = x.type.dims[axis]
    keep = True
    if len(inputs) > 1 and inputs[1] is not None:
        split = im.evaluate(_node(inputs[1]))
        if split.ndim:
            sizes = [int(n) for n in split]
        else:
            size = int(split)
            if size <= 0:
                raise ModelError(f"split is {size}, wanted a positive size")
            sizes = [min(size, extent - k) for k in range(0, extent, size)]
    else:
        sizes, keep = [1] * extent, bool(attrs.get("keepdims", 1))
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise ModelError(f"pieces of {sizes} do not make up axis {axis} of {x.type}")
    pieces: list[Node] = []
    start = 0
    for size in sizes:
        piece = im.g.slice_(x, starts=(start,), ends=(start + size,), axes=(axis,))
        if not keep:
            dims = x.type.dims
            piece = im.g.reshape(piece, shape=(*dims[:axis], *dims[axis + 1 :]))
        pieces.append(piece)
        start += size
    return [Seq(tuple(pieces), x.type.dtype)]


def _given(inputs: Values) -> Value | None:
    """What an optional is, None of no input."""
    given = inputs[0] if inputs else None
    if isinstance(given, Opaque):
        raise UnsupportedError(f"reads {given.what}")
    return given


def _optional(im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope) -> Values:
    given = _given(inputs)
    return [Empty() if given is None else given]


def _has_element(
    im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope
) -> Values:
    given = _given(inputs)
    return [const(np.bool_(given is not None and not isinstance(given, Empty)))]


def _get_element(
    im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope
) -> Values:
    given = _given(inputs)
    if given is None or isinstance(given, Empty):
        raise ModelError("the optional is empty")
    return [given]


def _identity(
    im: Importer, proto: NodeProto, inputs: Values, attrs: Any, scope: Scope
) -> Values | None:
    return [inputs[0]] if isinstance(inputs[0], (Seq, Empty)) else None


def _sequence(value: Value | None) -> Seq:
    if isinstance(value, Seq):
        return value
    what = value.what if isinstance(value, Opaque) else "what is no sequence"
    raise UnsupportedError(f"reads {what} that is there only when the model runs")


def _node(value: Value | None) -> Node:
    if isinstance(value, Node):
        return value
    what = value.what if isinstance(value, Opaque) else "what is no tensor"
    raise UnsupportedError(f"reads {what}")


def _position(im: Importer, value: Value | None, length: int, after: bool) -> int:
    """A position in a sequence; `after`: one past the end is allowed."""
    at = int(im.evaluate(_node(value)).reshape(-1)[0])
    if not -length <= at < length + after:
        raise ModelError(f"position {at} is outside a sequence of {length}")
    return at + length if at < 0 else at


RULES: dict[str, Rule] = {
    "SequenceConstruct": _construct, "SequenceEmpty": _empty, "SequenceAt": _at,
    "SequenceInsert": _insert, "SequenceErase": _erase, "SequenceLength": _length,
    "ConcatFromSequence": _concat, "SplitToSequence": _split, "Optional": _optional,
    "OptionalHasElement": _has_element, "OptionalGetElement": _get_element, "Identity": _identity}

__all__ = ["RULES"]
