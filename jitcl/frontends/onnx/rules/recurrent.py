"""ONNX's RNN, GRU and LSTM as a matrix product, a scan of `recurrent` and views of its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.ir.sizes import same
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import onnx_rule
from jitcl.ops.creation import counting
from jitcl.ops.recurrent import ACTIVATIONS, DIRECTIONS, Activation, Activations

# the activations that read alpha, and those that read beta
_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_NAMES = {name.lower(): name for name in ACTIVATIONS}


@dataclass(frozen=True)
class _Form:
    """What a node says: sizes, direction, activations, layout and the types around it."""

    gates: int
    directions: int
    hidden: int
    direction: str
    activations: Activations
    clip: float
    batch_first: bool
    dtype: str                               # of the node's tensors
    kind: str                                # computed in


def _form(node: Any, gates: int, defaults: tuple[str, ...]) -> _Form:
    x, w, r = node.input(0), node.input(1), node.input(2)
    direction = str(node.attrs.get("direction", "forward")).lower()
    if direction not in DIRECTIONS:
        raise ModelError(f"direction '{direction}': wanted one of {', '.join(DIRECTIONS)}")
    n = DIRECTIONS[direction]
    if x.type.rank != 3 or w.type.rank != 3 or r.type.rank != 3:
        raise ShapeError(f"X, W and R have 3 axes each, got {x.type}, {w.type} and {r.type}")
    hidden = r.type.dims[2]
    if w.type.dims != (n, gates * hidden, x.type.dims[2]) or r.type.dims[:2] != (n, gates * hidden):
        raise ShapeError(
            f"for X {x.type} and direction '{direction}', W is [{n},{gates}*hidden,"
            f"{x.type.dims[2]}] and R [{n},{gates}*hidden,hidden], got W {w.type} and R {r.type}")
    said = node.attrs.get("hidden_size")
    if said is not None and int(said) != hidden:
        raise ShapeError(f"hidden_size is {said}, but R {r.type} has {hidden} hidden units")
    kind = dtypes.compute(x.type.dtype)
    return _Form(gates, n, hidden, direction, _activations(node, n, defaults),
                 float(node.attrs.get("clip", 0.0)), bool(node.attrs.get("layout", 0)),
                 x.type.dtype, kind)


def _activations(node: Any, directions: int, defaults: tuple[str, ...]) -> Activations:
    """The functions of each direction. alpha and beta are taken in turn by those that read one."""
    names = [str(n) for n in node.attrs.get("activations") or defaults * directions]
    if len(names) != directions * len(defaults):
        raise ModelError(f"{len(names)} activations for {directions} directions of "
                         f"{len(defaults)} each: {', '.join(names)}")
    alphas, betas = (iter(node.attrs.get(f"activation_{k}") or ()) for k in ("alpha", "beta"))
    found: list[Activation] = []
    for given in names:
        name = _NAMES.get(given.lower())
        if name is None:
            raise UnsupportedError(f"activation '{given}': wanted one of {', '.join(ACTIVATIONS)}")
        alpha, beta = ACTIVATIONS[name]
        found.append((name, float(next(alphas, alpha)) if name in _ALPHA else 0.0,
                      float(next(betas, beta)) if name in _BETA else 0.0))
    each = len(defaults)
    return tuple(tuple(found[d * each:(d + 1) * each]) for d in range(directions))


# ---- operands

def _projected(g: GraphBuilder, node: Any, f: _Form, bias: Node | None) -> Node:
    """x @ W' + bias for all steps and directions: [steps, batch, directions, gates * hidden]."""
    x, w = (g.cast(node.input(k), to=f.kind) for k in (0, 1))
    if f.batch_first:
        x = g.transpose(x, perm=(1, 0, 2))
    steps, batch, size = x.type.dims
    wide = f.directions * f.gates * f.hidden
    columns = g.transpose(g.reshape(w, shape=(wide, size)), perm=(1, 0))
    y = g.matmul(g.reshape(x, shape=(steps * batch, size)), columns)
    if bias is not None:
        y = g.add(y, g.reshape(bias, shape=(wide,)))
    return g.reshape(y, shape=(steps, batch, f.directions, f.gates * f.hidden))


def _biases(g: GraphBuilder, node: Any, f: _Form) -> tuple[Node, Node] | None:
    """The biases of W and of R, [directions, gates * hidden] each; None where there are none."""
    b, wide = node.input(3), f.gates * f.hidden
    if b is None:
        return None
    _check(b, "B", (f.directions, 2 * wide))
    b = g.cast(b, to=f.kind)
    return _part(g, b, 0, wide), _part(g, b, wide, 2 * wide)


def _part(g: GraphBuilder, x: Node, start: int, end: int) -> Node:
    """Columns start .. end of a matrix."""
    return g.slice(x, starts=(0, start), ends=(x.type.dims[0], end), steps=(1, 1))


def _initial(g: GraphBuilder, node: Any, f: _Form, number: int, name: str, batch: int) -> Node:
    """An initial state, [directions, batch, hidden]; zeros where it is left out."""
    state = node.input(number)
    shape = (f.directions, batch, f.hidden)
    if state is None:
        return g.full(shape, 0, f.kind)
    _check(state, name, (batch, f.directions, f.hidden) if f.batch_first else shape)
    state = g.cast(state, to=f.kind)
    return g.transpose(state, perm=(1, 0, 2)) if f.batch_first else state


def _lengths(g: GraphBuilder, node: Any, steps: int, batch: int) -> Node | None:
    """The sequences' lengths, i32 [batch]; None where all are whole."""
    lengths = node.input(4)
    if lengths is None:
        return None
    _check(lengths, "sequence_lens", (batch,))
    if lengths.op == "const":
        known = lengths.data
        if known.size and not 0 <= int(known.min()) <= int(known.max()) <= steps:
            raise ModelError(f"sequence_lens are {known.tolist()}, but X has {steps} steps")
        if all(same(n, steps) for n in known.tolist()):
            return None
    return g.cast(lengths, to="i32")


def _check(x: Node, name: str, shape: tuple[int, ...]) -> None:
    if x.type.dims != shape:
        want = ",".join(map(str, shape))
        raise ShapeError(f"{name} is {x.type}, wanted [{want}]")


# ---- results

def _outputs(g: GraphBuilder, f: _Form, states: Node, lengths: Node | None,
             slots: Sequence[int]) -> tuple[Node, ...]:
    """Y, and the last state of each slot, in the node's layout and type."""
    y = g.recurrent_sequence(states, direction=f.direction)
    steps, _, batch, _ = y.type.dims
    if lengths is not None:                  # behind a sequence's end Y is 0, the states stay
        time = g.cast(counting(g, steps, (steps, 1, 1, 1)), to="i32")
        inside = g.less(time, g.reshape(lengths, shape=(1, 1, batch, 1)))
        y = g.where(inside, y, g.const(0, f.kind))
    if f.batch_first:
        y = g.transpose(y, perm=(2, 0, 1, 3))
    last = [_last(g, f, states, slot) for slot in slots]
    return tuple(g.cast(n, to=f.dtype) for n in (y, *last))


def _last(g: GraphBuilder, f: _Form, states: Node, slot: int) -> Node:
    directions, batch, rows, _, hidden = states.type.dims
    state = g.slice(states, starts=(0, 0, rows - 1, slot, 0),
                    ends=(directions, batch, rows, slot + 1, hidden), steps=(1,) * 5)
    state = g.reshape(state, shape=(directions, batch, hidden))
    return g.transpose(state, perm=(1, 0, 2)) if f.batch_first else state


# ---- rules

def _cell(g: GraphBuilder, node: Any, f: _Form, op: str, bias: Node | None,
          starts: Sequence[tuple[int, str]], extra: Sequence[Node], **attrs: Any
          ) -> tuple[Node, ...]:
    """Any of the three: its scan `op` on projected input, weights, states and `extra` operands."""
    xw = _projected(g, node, f, bias)
    steps, batch = xw.type.dims[:2]
    states = [_initial(g, node, f, number, name, batch) for number, name in starts]
    lengths = _lengths(g, node, steps, batch)
    if lengths is not None:
        extra = (*extra, lengths)
    r = node.input(2)
    if not attrs.get("scaled"):
        r = g.cast(r, to=f.kind)
    rows = g.op(op, xw, r, *states, *extra, direction=f.direction,
                activations=f.activations, clip=f.clip, lengths=lengths is not None, **attrs)
    return _outputs(g, f, rows, lengths, range(len(starts)))


def _both(g: GraphBuilder, biases: tuple[Node, Node] | None) -> Node | None:
    return None if biases is None else g.add(*biases)


@onnx_rule("RNN")
def _rnn(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    f = _form(node, 1, ("Tanh",))
    return _cell(g, node, f, "rnn_states", _both(g, _biases(g, node, f)), [(5, "initial_h")], ())


@onnx_rule("LSTM")
def lstm(g: GraphBuilder, node: Any, scales: Node | None = None) -> tuple[Node, ...]:
    """`scales`: R is i8, and these are what its rows are multiplied by, [directions, 4 * hidden].
    """
    f = _form(node, 4, ("Sigmoid", "Tanh", "Tanh"))
    peepholes = node.input(7)
    if peepholes is not None:
        _check(peepholes, "P", (f.directions, 3 * f.hidden))
    return _cell(g, node, f, "lstm_states", _both(g, _biases(g, node, f)),
                 [(5, "initial_h"), (6, "initial_c")],
                 [g.cast(n, to=f.kind) for n in (peepholes, scales) if n is not None],
                 **({} if scales is None else {"scaled": True}), peepholes=peepholes is not None,
                 input_forget=bool(node.attrs.get("input_forget", 0)))


@onnx_rule("GRU")
def _gru(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    f = _form(node, 3, ("Sigmoid", "Tanh"))
    biases = _biases(g, node, f)
    starts = [(5, "initial_h")]
    if not node.attrs.get("linear_before_reset", 0):
        return _cell(g, node, f, "gru_states", _both(g, biases), starts, ())
    n = f.hidden
    inner = g.const(np.zeros((f.directions, n)), f.kind)
    bias = None
    if biases is not None:                   # the new state's bias of R is reset with the product
        outer = g.add(_part(g, biases[0], 0, 2 * n), _part(g, biases[1], 0, 2 * n))
        bias = g.concat(outer, _part(g, biases[0], 2 * n, 3 * n), axis=1)
        inner = _part(g, biases[1], 2 * n, 3 * n)
    return _cell(g, node, f, "gru_states", bias, starts, (inner,), linear_before_reset=True)
