"""RNN, GRU and LSTM: the recurrent part as scans; the rules that import them: frontends/onnx/rules.

What does not depend on the previous step, x @ W' with its biases, is an ordinary matrix product
for all steps at once. The scans below do the rest, all steps of a sequence in one kernel:

    xw     [steps, batch, directions, gates * hidden]   the projected input
    r      [directions, gates * hidden, hidden]         recurrent weights, rows as ONNX has them
    h0, c0 [directions, batch, hidden]                  initial states
    states [directions, batch, steps + 1, slots, hidden]

`states[:, :, 0]` are the initial states, `states[:, :, k]` those after k steps. Slot 0 is the
hidden state h; slot 1 is the cell state of an LSTM, and r * h of a GRU that resets before the
product. A step of the reverse direction is later in `states` where it is earlier in time. Behind
the end of a shorter sequence (`lengths`) a step keeps the state.

Shared attributes: `direction` forward, reverse or bidirectional; `activations`, for each direction
and each of the cell's functions (name, alpha, beta); `clip`, the bound of what goes into them, 0
for none; `lengths`, whether the operand of sequence lengths (i32 [batch]) is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitcl.errors import ShapeError, TypeError_, UnsupportedError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.types import TensorType
from jitcl.ops.core import (
    F32,
    Index,
    Loader,
    Part,
    Sample,
    Scan,
    Spec,
    fixed,
    movement,
    recurrence,
    sample,
)

Array = np.ndarray[Any, Any]
Own = Callable[..., Expr]
Activation = tuple[str, float, float]                    # name, alpha, beta
Activations = tuple[tuple[Activation, ...], ...]         # of each direction
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

# name -> the alpha and beta that hold where none are given
ACTIVATIONS: dict[str, tuple[float, float]] = {
    "Relu": (0, 0), "Tanh": (0, 0), "Sigmoid": (0, 0), "Affine": (1, 0), "LeakyRelu": (0.01, 0),
    "ThresholdedRelu": (1, 0), "ScaledTanh": (1, 1), "HardSigmoid": (0.2, 0.5), "Elu": (1, 0),
    "Softsign": (0, 0), "Softplus": (0, 0)}


def activated(s: KernelBuilder, x: Expr, name: str, alpha: float, beta: float) -> Expr:
    """An activation of ONNX's recurrent ops. Raises UnsupportedError for an unknown name."""
    if name == "Relu":
        return s.max(x, 0.0)
    if name == "Tanh":
        return s.tanh(x)
    if name == "Sigmoid":
        return 1.0 / (1.0 + s.exp(-x))
    if name == "Affine":
        return x * alpha + beta
    if name == "LeakyRelu":
        return s.select(x >= 0.0, x, x * alpha)
    if name == "ThresholdedRelu":
        return s.select(x >= alpha, x, 0.0)
    if name == "ScaledTanh":
        return s.tanh(x * beta) * alpha
    if name == "HardSigmoid":
        return s.min(s.max(x * alpha + beta, 0.0), 1.0)
    if name == "Elu":
        return s.select(x >= 0.0, x, (s.exp(s.min(x, 0.0)) - 1.0) * alpha)
    if name == "Softsign":
        return x / (s.abs(x) + 1.0)
    if name == "Softplus":                               # of large x, exp(x) would overflow
        return s.max(x, 0.0) + s.log(s.exp(-s.abs(x)) + 1.0)
    raise UnsupportedError(f"activation '{name}': wanted one of {', '.join(ACTIVATIONS)}")


class Cell:
    """What the steps of all three cells share: where things lie, gates, activations, the end."""

    def __init__(self, s: KernelBuilder, own: Own, xw: Loader, r: Loader, direction: str,
                 activations: Activations, clip: float, lengths: Loader | None,
                 scales: Loader | None = None) -> None:
        self.s, self.own, self.xw, self.r, self.scales = s, own, xw, r, scales
        self.direction, self.activations, self.clip = direction, activations, clip
        self.lengths = lengths
        self.steps, self.batch, self.directions, _ = xw.shape
        self.hidden = r.shape[2]

    def scan(self, starts: Sequence[Loader], step: Callable[[Index, Expr], Sequence[Part]]) -> Scan:
        """The recurrence; `starts` are the initial states, one a slot, zeros for slots beyond."""
        def init(chain: Index) -> list[Part]:
            return [self.part(slot, chain, E.index(0), self._start(starts, slot, chain))
                    for slot in range(self.s.out.dims[3])]
        return Scan((self.directions, self.batch), self.steps, init, step)

    def _start(self, starts: Sequence[Loader], slot: int, chain: Index) -> Callable[[Expr], Expr]:
        if slot < len(starts):
            return lambda j: starts[slot](*chain, j)
        return lambda j: self.s.const(0, self.xw.dtype)

    def part(self, slot: int, chain: Index, row: Expr, value: Callable[[Expr], Expr]) -> Part:
        """One slot of the states' row `row`."""
        return Part((self.hidden,), lambda j: (*chain, row, E.index(slot), j), value)

    def time(self, d: Expr, t: Expr) -> Expr:
        """Which of the input's steps a direction's step t reads."""
        if self.direction == "forward":
            return t
        last = E.index(self.steps - 1)
        if self.direction == "reverse":
            return last - t
        return E.call("select", E.call("eq", d, E.index(0)), t, last - t)

    def gate(self, number: int, chain: Index, t: Expr, j: Expr) -> Expr:
        """The projected input of a gate's unit j at step t."""
        d, b = chain
        return self.xw(self.time(d, t), b, d, j + number * self.hidden)

    def product(self, number: int, chain: Index, row: Expr, slot: int, j: Expr) -> Expr:
        """A gate's unit j of r @ state, of one slot of the row `row`."""
        d, b = chain
        gate = j + number * self.hidden
        total = self.s.reduce("add", (self.hidden,), lambda k: (
            self.own(d, b, row, slot, k) * self.s.cast(self.r(d, gate, k), self.xw.dtype)))
        return total if self.scales is None else total * self.scales(d, gate)

    def act(self, number: int, d: Expr, x: Expr, clip: bool = True) -> Expr:
        """The cell's function of this number, clipped before where the model asks for it."""
        s = self.s
        if clip and self.clip:
            x = s.min(s.max(x, -self.clip), self.clip)
        first, *more = (activated(s, x, *of[number]) for of in self.activations)
        if not more or more[0] is first:
            return first
        return s.select(E.call("eq", d, E.index(0)), first, more[0])

    def kept(self, chain: Index, t: Expr, slot: int, j: Expr, new: Expr) -> Expr:
        """The new value, or behind the sequence's end the old one."""
        if self.lengths is None:
            return new
        d, b = chain
        alive = self.time(d, t) < self.s.index(self.lengths(b))
        return self.s.select(alive, new, self.own(d, b, t, slot, j))


# ---- types

def _states(gates: int, slots: int) -> Callable[..., TensorType]:
    """The type rule of a cell with so many gates and slots; checks operands and attributes."""
    def typed(xw: TensorType, r: TensorType, *rest: TensorType, direction: str,
              activations: Activations, clip: float = 0.0, lengths: bool = False,
              **more: Any) -> TensorType:
        floats = rest[:-1] if lengths else rest
        if more.get("scaled"):
            scales = floats[-1]
            if r.dtype != "i8" or scales.dims != r.dims[:2]:
                raise ShapeError(f"scaled weights are i8 with a scale for each row, got r {r} and "
                                 f"scales {scales}")
        else:
            floats = (r, *floats)
        if any(t.dtype != xw.dtype for t in floats) or xw.dtype not in ("f32", "f64"):
            raise TypeError_("recurrent cells compute in f32 or f64, all operands alike: cast them")
        want = DIRECTIONS.get(direction)
        if want is None or len(activations) != want:
            raise ShapeError(f"direction '{direction}' with {len(activations)} sets of activations:"
                             f" wanted one of {', '.join(DIRECTIONS)}, one set a direction")
        if xw.rank != 4 or r.rank != 3 or r.dims[1] != gates * r.dims[2] or (
                xw.dims[2] != want or r.dims[0] != want or xw.dims[3] != r.dims[1]):
            raise ShapeError(f"wanted xw [steps,batch,{want},{gates}*hidden] and "
                             f"r [{want},{gates}*hidden,hidden], got {xw} and {r}")
        steps, batch, _, _ = xw.dims
        if lengths and (rest[-1].dims != (batch,) or rest[-1].dtype != "i32"):
            raise ShapeError(f"lengths are i32 [{batch}], got {rest[-1]}")
        count = slots - 1 if more.get("linear_before_reset") else slots
        return xw.with_(shape=(want, batch, steps + 1, count, r.dims[2]))
    return typed


# ---- references: step by step over whole batches, in the order of time

_FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "Relu": lambda x, a, b: np.maximum(x, 0), "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 0.5 * (np.tanh(0.5 * x) + 1),
    "Affine": lambda x, a, b: a * x + b, "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x < a, 0, x),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x)}

Cells = Callable[..., tuple[Array, ...]]


def _walk(cell: Cells, xw: Array, r: Array, starts: Sequence[Array], direction: str,
          activations: Activations, clip: float, lengths: Array | None) -> Array:
    """states of a cell: `cell(d, x, r, fns, *state) -> state` is one step of direction d."""
    steps, batch, directions, _ = xw.shape
    rows = np.zeros((directions, batch, steps + 1, len(starts), r.shape[2]), xw.dtype)
    for d in range(directions):
        backwards = direction == "reverse" or d == 1
        fns = [lambda x, f=f, a=a, b=b: _FUNCTIONS[f](np.clip(x, -clip, clip) if clip else x, a, b)
               for f, a, b in activations[d]]
        state = tuple(start[d] for start in starts)
        rows[d, :, 0] = np.stack(state, axis=1)
        for k, time in enumerate(reversed(range(steps)) if backwards else range(steps)):
            new = cell(d, xw[time, :, d], r[d], fns, *state)
            if lengths is not None:
                alive = (time < lengths)[:, None]
                new = tuple(np.where(alive, n, old) for n, old in zip(new, state))
            state = new
            rows[d, :, k + 1] = np.stack(state, axis=1)
    return rows


def _lstm_ref(xw: Array, r: Array, h0: Array, c0: Array, *rest: Array, direction: str,
              activations: Activations, clip: float = 0.0, lengths: bool = False,
              peepholes: bool = False, input_forget: bool = False, scaled: bool = False) -> Array:
    n = r.shape[2]
    if scaled:
        r = r * rest[-2 if lengths else -1][:, :, None]

    def cell(d: int, x: Array, w: Array, fns: Any, h: Array, c: Array) -> tuple[Array, ...]:
        i, o, f, g = np.split(x + h @ w.T, 4, axis=1)
        pi, po, pf = rest[0][d].reshape(3, n) if peepholes else np.zeros((3, n), x.dtype)
        i = fns[0](i + pi * c)
        f = 1 - i if input_forget else fns[0](f + pf * c)
        c = f * c + i * fns[1](g)
        plain, a, b = activations[d][2]
        return fns[0](o + po * c) * _FUNCTIONS[plain](c, a, b), c
    return _walk(cell, xw, r, (h0, c0), direction, activations, clip, rest[-1] if lengths else None)


def _gru_ref(xw: Array, r: Array, h0: Array, *rest: Array, direction: str,
             activations: Activations, clip: float = 0.0, lengths: bool = False,
             linear_before_reset: bool = False) -> Array:
    n = r.shape[2]

    def cell(d: int, x: Array, w: Array, fns: Any, h: Array, *_: Array) -> tuple[Array, ...]:
        z, reset = np.split(fns[0](x[:, :2 * n] + h @ w[:2 * n].T), 2, axis=1)
        if linear_before_reset:
            new = fns[1](x[:, 2 * n:] + reset * (h @ w[2 * n:].T + rest[0][d]))
            return ((1 - z) * new + z * h,)
        new = fns[1](x[:, 2 * n:] + (reset * h) @ w[2 * n:].T)
        return (1 - z) * new + z * h, reset * h
    starts = (h0,) if linear_before_reset else (h0, np.zeros_like(h0))
    return _walk(cell, xw, r, starts, direction, activations, clip, rest[-1] if lengths else None)


def _rnn_ref(xw: Array, r: Array, h0: Array, *rest: Array, direction: str,
             activations: Activations, clip: float = 0.0, lengths: bool = False) -> Array:
    def cell(d: int, x: Array, w: Array, fns: Any, h: Array) -> tuple[Array, ...]:
        return (fns[0](x + h @ w.T),)
    return _walk(cell, xw, r, (h0,), direction, activations, clip, rest[-1] if lengths else None)


# ---- samples

def _set(*names: str) -> tuple[Activation, ...]:
    return tuple((name, *ACTIVATIONS[name]) for name in names)


def _sample(gates: int, states: int, *more: Spec, steps: int = 4, batch: int = 2, hidden: int = 5,
            direction: str = "forward", dtype: str = "f32", rtol: float = 1e-5, **attrs: Any
            ) -> Sample:
    n = DIRECTIONS[direction]
    weights = Spec((n, gates * hidden, hidden), dtype, -0.7, 0.7)
    start = [Spec((n, batch, hidden), dtype) for _ in range(states)]
    return sample(Spec((steps, batch, n, gates * hidden), dtype), weights, *start, *more, rtol=rtol,
                  direction=direction, **attrs)


def _bytes(*more: Spec, hidden: int, direction: str = "forward", **attrs: Any) -> Sample:
    """An LSTM of three sequences whose recurrent weights are bytes with a scale for each row."""
    n = DIRECTIONS[direction]
    lengths = (_LENGTHS,) if attrs.get("lengths") else ()
    given = [Spec((4, 3, n, 4 * hidden)), Spec((n, 4 * hidden, hidden), "i8", -127, 127),
             *[Spec((n, 3, hidden))] * 2, *more, Spec((n, 4 * hidden), "f32", 0.001, 0.006)]
    return sample(*given, *lengths, rtol=2e-4, direction=direction, activations=(_LSTM,) * n,
                  scaled=True, **attrs)


_SIG, _LSTM = _set("Sigmoid", "Tanh"), _set("Sigmoid", "Tanh", "Tanh")
_ODD = (("HardSigmoid", 0.3, 0.4), ("ScaledTanh", 1.2, 0.7), ("Softsign", 0.0, 0.0))
_LENGTHS = fixed(3, 0, 4, dtype="i32")


# ---- the cells

@recurrence(infer=_states(4, 2), ref=_lstm_ref, samples=[
    _sample(4, 2, activations=(_LSTM,)),
    _sample(4, 2, F32(2, 15), direction="bidirectional", activations=(_LSTM, _ODD), peepholes=True),
    _sample(4, 2, F32(1, 15), _LENGTHS, batch=3, direction="reverse", activations=(_ODD,),
            clip=0.5, peepholes=True, lengths=True),
    _sample(4, 2, steps=1, batch=1, hidden=17, activations=(_LSTM,), input_forget=True),
    _sample(4, 2, _LENGTHS, batch=3, hidden=33, direction="bidirectional",
            activations=(_LSTM, _LSTM), lengths=True),
    _sample(4, 2, dtype="f64", batch=1, activations=(_LSTM,), rtol=1e-12),
    _sample(4, 2, steps=0, activations=(_LSTM,)),
    _bytes(hidden=5), _bytes(hidden=35, direction="bidirectional"),
    _bytes(Spec((1, 3 * 22)), hidden=22, peepholes=True), _bytes(hidden=16, lengths=True)])
def lstm_states(s: KernelBuilder, own: Own, xw: Loader, r: Loader, h0: Loader, c0: Loader,
                *rest: Loader, direction: str, activations: Activations, clip: float = 0.0,
                lengths: bool = False, peepholes: bool = False, input_forget: bool = False,
                scaled: bool = False) -> Scan:
    """States of a long short-term memory (Hochreiter and Schmidhuber, 1997; peepholes: Gers,
    2002); gates in the order i, o, f, c. `peepholes`: an operand [directions, 3 * hidden] in the
    order i, o, f follows c0. `input_forget`: f = 1 - i. `scaled`: r is i8 and an operand
    [directions, 4 * hidden] of what its rows are multiplied by comes before the lengths."""
    *floats, last = rest if lengths else (*rest, None)
    cell = Cell(s, own, xw, r, direction, activations, clip, last, floats[-1] if scaled else None)
    n = cell.hidden

    def step(chain: Index, t: Expr) -> list[Part]:
        d, b = chain

        def gate(number: int, j: Expr, peephole: int, c: Expr) -> Expr:
            x = cell.gate(number, chain, t, j) + cell.product(number, chain, t, 0, j)
            return x + rest[0](d, j + peephole * n) * c if peepholes and peephole >= 0 else x

        def new_c(j: Expr) -> Expr:
            c = own(d, b, t, 1, j)
            i = cell.act(0, d, gate(0, j, 0, c))
            f = 1.0 - i if input_forget else cell.act(0, d, gate(2, j, 2, c))
            g = cell.act(1, d, gate(3, j, -1, c))
            return cell.kept(chain, t, 1, j, f * c + i * g)

        def new_h(j: Expr) -> Expr:
            c = own(d, b, t + 1, 1, j)
            h = cell.act(0, d, gate(1, j, 1, c)) * cell.act(2, d, c, clip=False)
            return cell.kept(chain, t, 0, j, h)
        return [cell.part(1, chain, t + 1, new_c), cell.part(0, chain, t + 1, new_h)]
    return cell.scan((h0, c0), step)


@recurrence(infer=_states(3, 2), ref=_gru_ref, samples=[
    _sample(3, 1, activations=(_SIG,)),
    _sample(3, 1, F32(2, 5), direction="bidirectional", activations=(_SIG, _ODD[:2]),
            linear_before_reset=True),
    _sample(3, 1, _LENGTHS, batch=3, hidden=18, direction="bidirectional", activations=(_SIG, _SIG),
            lengths=True),
    _sample(3, 1, F32(1, 33), _LENGTHS, batch=3, hidden=33, direction="reverse", clip=0.6,
            activations=(_SIG,), lengths=True, linear_before_reset=True),
    _sample(3, 1, dtype="f64", direction="reverse", activations=(_SIG,), rtol=1e-12)])
def gru_states(s: KernelBuilder, own: Own, xw: Loader, r: Loader, h0: Loader, *rest: Loader,
               direction: str, activations: Activations, clip: float = 0.0, lengths: bool = False,
               linear_before_reset: bool = False) -> Scan:
    """States of a gated recurrent unit (Cho et al., 2014); gates in the order z, r, h.
    `linear_before_reset`: r resets the product with the state, not the state; an operand
    [directions, hidden], the bias of that product, follows h0, and slot 1 is not there."""
    cell = Cell(s, own, xw, r, direction, activations, clip, rest[-1] if lengths else None)

    def step(chain: Index, t: Expr) -> list[Part]:
        d, b = chain

        def gate(number: int, j: Expr) -> Expr:
            return cell.act(0, d, cell.gate(number, chain, t, j)
                            + cell.product(number, chain, t, 0, j))

        def reset(j: Expr) -> Expr:
            value = gate(1, j) * own(d, b, t, 0, j)
            return cell.kept(chain, t, 1, j, value)

        def new_h(j: Expr) -> Expr:
            z, x, h = gate(0, j), cell.gate(2, chain, t, j), own(d, b, t, 0, j)
            if linear_before_reset:
                x = x + gate(1, j) * (cell.product(2, chain, t, 0, j) + rest[0](d, j))
            else:
                x = x + cell.product(2, chain, t + 1, 1, j)
            return cell.kept(chain, t, 0, j, (1.0 - z) * cell.act(1, d, x) + z * h)
        parts = [] if linear_before_reset else [cell.part(1, chain, t + 1, reset)]
        return [*parts, cell.part(0, chain, t + 1, new_h)]
    return cell.scan((h0,), step)


@recurrence(infer=_states(1, 1), ref=_rnn_ref, samples=[
    _sample(1, 1, activations=(_set("Tanh"),)),
    _sample(1, 1, _LENGTHS, batch=3, hidden=20, direction="bidirectional", lengths=True,
            activations=(_set("Relu"), _set("Affine"))),
    *(_sample(1, 1, batch=1, direction="reverse", clip=1.5, activations=(((name, a, b),),))
      for name, a, b in (("LeakyRelu", 0.1, 0.0), ("ThresholdedRelu", 0.3, 0.0),
                         ("Elu", 0.8, 0.0), ("Softplus", 0.0, 0.0), ("Softsign", 0.0, 0.0),
                         ("ScaledTanh", 0.9, 1.1), ("HardSigmoid", 0.2, 0.5)))])
def rnn_states(s: KernelBuilder, own: Own, xw: Loader, r: Loader, h0: Loader, *rest: Loader,
               direction: str, activations: Activations, clip: float = 0.0, lengths: bool = False
               ) -> Scan:
    """States of a simple recurrent network (Elman, 1990)."""
    cell = Cell(s, own, xw, r, direction, activations, clip, rest[-1] if lengths else None)

    def step(chain: Index, t: Expr) -> list[Part]:
        def new_h(j: Expr) -> Expr:
            x = cell.gate(0, chain, t, j) + cell.product(0, chain, t, 0, j)
            return cell.kept(chain, t, 0, j, cell.act(0, chain[0], x))
        return [cell.part(0, chain, t + 1, new_h)]
    return cell.scan((h0,), step)


# ---- the sequence of hidden states, in the order of time

def _sequence_type(states: TensorType, direction: str) -> TensorType:
    directions, batch, rows, _, hidden = states.dims
    return states.with_(shape=(rows - 1, directions, batch, hidden))


def _sequence_ref(states: Array, direction: str) -> Array:
    y = states[:, :, 1:, 0].transpose(2, 0, 1, 3)
    if direction == "bidirectional":
        return np.stack([y[:, 0], y[::-1, 1]], axis=1)
    return y[::-1] if direction == "reverse" else y


@movement(infer=_sequence_type, ref=_sequence_ref, samples=[
    sample(F32(1, 2, 5, 2, 3), direction="forward"), sample(F32(1, 2, 5, 1, 3),
                                                            direction="reverse"),
    sample(F32(2, 2, 4, 2, 3), direction="bidirectional")])
def recurrent_sequence(ix: Index, in_shape: Sequence[int], out_shape: Sequence[int], *,
                       direction: str) -> Index:
    """[directions, batch, steps + 1, slots, hidden] -> [steps, directions, batch, hidden]."""
    time, d, b, j = ix
    forward, backward = time + 1, E.index(out_shape[0]) - time
    if direction == "bidirectional":
        row = E.call("select", E.call("eq", d, E.index(0)), forward, backward)
    else:
        row = backward if direction == "reverse" else forward
    return d, b, row, E.index(0), j
