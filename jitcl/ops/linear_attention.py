"""LinearAttention: a matrix of state for each head, updated and read step by step.

    linear        S += k v'                          gated        S = exp(g) S + k v'
    delta         S += k (beta (v - S' k))'          gated_delta  S = exp(g) S, then as delta
    o = scale S' q

Each column of S, one value channel, is a chain of its own: all chains run in parallel, and each
keeps its d_k elements side by side. (Katharopoulos et al., 2020; Yang et al., 2024, "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length".)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import F32, Index, Loader, Part, Scan, onnx_rule, recurrence, sample

Array = np.ndarray[Any, Any]


def _states_type(q: TensorType, k: TensorType, v: TensorType, past: TensorType, *rest: TensorType,
                 gated: bool, delta: bool, scale: float) -> TensorType:
    if any(t.dtype != q.dtype for t in (k, v, past, *rest)) or q.dtype not in ("f32", "f64"):
        raise TypeError_("linear attention computes in f32 or f64, all operands alike: cast them")
    batch, heads, keys, values = past.dims
    steps, width = q.dims[1:]
    repeats = width // max(1, heads * keys)
    wanted = (repeats >= 1 and q.dims == (batch, steps, repeats * heads * keys)
              and k.dims == (batch, steps, heads * keys)
              and v.dims == (batch, steps, heads * values) and len(rest) == gated + delta)
    if not wanted:
        raise ShapeError(f"q {q}, k {k}, v {v} and a state {past} with {len(rest)} gates do not "
                         "fit together")
    kept = (2 if steps else 1) * keys
    return q.with_(shape=(batch, heads, values, steps * repeats + kept))


def _states_ref(q: Array, k: Array, v: Array, past: Array, *rest: Array, gated: bool, delta: bool,
                scale: float) -> Array:
    batch, heads, keys, values = past.shape
    steps = q.shape[1]
    gates = list(rest)
    decay = gates.pop(0) if gated else None
    beta = gates.pop(0) if delta else None
    state, older = past, past
    out = []
    for t in range(steps):
        older = state
        key = k[:, t].reshape(batch, heads, keys)
        value = v[:, t].reshape(batch, heads, values)
        if decay is not None:
            state = state * decay[:, t].reshape(batch, heads, -1, 1)
        if beta is not None:
            got = np.einsum("bhkv,bhk->bhv", state, key)
            value = beta[:, t].reshape(batch, -1, 1) * (value - got)
        state = state + np.einsum("bhk,bhv->bhkv", key, value)
        query = q[:, t].reshape(batch, heads, -1, keys)
        out.append(scale * np.einsum("bhkv,bhrk->bhvr", state, query))
    last = [state, older] if steps % 2 == 0 and steps else [older, state] if steps else [state]
    return np.concatenate([*out, *(s.transpose(0, 1, 3, 2) for s in last)], axis=3)


@recurrence(infer=_states_type, ref=_states_ref, samples=[
    sample(F32(2, 5, 12), F32(2, 5, 12), F32(2, 5, 6), F32(2, 3, 4, 2), gated=False, delta=False,
           scale=0.5),
    sample(F32(1, 4, 16, low=-1, high=1), F32(1, 4, 8, low=-0.5, high=0.5), F32(1, 4, 6),
           F32(1, 2, 4, 3), F32(1, 4, 8, low=0, high=1), F32(1, 4, 2, low=0, high=1), gated=True,
           delta=True, scale=0.5),
    sample(F32(2, 3, 8), F32(2, 3, 8, low=-0.5, high=0.5), F32(2, 3, 6), F32(2, 2, 4, 3),
           F32(2, 3, 1, low=0, high=1), gated=False, delta=True, scale=1.0),
    sample(F32(1, 1, 8), F32(1, 1, 8), F32(1, 1, 6), F32(1, 2, 4, 3), F32(1, 1, 2, low=0, high=1),
           gated=True, delta=False, scale=1.0),
    sample(F32(1, 0, 8), F32(1, 0, 8), F32(1, 0, 6), F32(1, 2, 4, 3), gated=False, delta=False,
           scale=1.0)])
def linear_attention_states(s: KernelBuilder, own: Callable[..., Expr], q: Loader, k: Loader,
                            v: Loader, past: Loader, *rest: Loader, gated: bool, delta: bool,
                            scale: float) -> Scan:
    """Outputs and states of linear attention, [batch, heads, d_v, steps * repeats + 2 * d_k].

    q [batch, steps, heads * repeats * d_k], k [batch, steps, heads * d_k], v [batch, steps,
    heads * d_v], past [batch, heads, d_k, d_v]; `gated`: the factors that the state fades by,
    [batch, steps, heads or heads * d_k]; `delta`: rates [batch, steps, heads or 1]. Behind a
    chain's outputs lie two states that take turns: that of step t is number t % 2.
    """
    batch, heads, keys, values = past.shape
    steps, repeats = q.shape[1], q.shape[2] // (heads * keys)
    gates = list(rest)
    decay = gates.pop(0) if gated else None
    beta = gates.pop(0) if delta else None

    def place(t: Expr, i: Expr) -> Expr:
        return (t % 2) * keys + i + steps * repeats

    def init(chain: Index) -> list[Part]:
        b, h, c = chain
        return [Part((keys,), lambda i: (*chain, place(E.index(0), i)),
                     lambda i: past(b, h, i, c))]

    def step(chain: Index, t: Expr) -> list[Part]:
        b, h, c = chain

        def faded(i: Expr) -> Expr:
            state = own(*chain, place(t, i))
            if decay is None:
                return state
            return state * decay(b, t, h if decay.shape[2] == heads else h * keys + i)

        def key(i: Expr) -> Expr:
            return k(b, t, h * keys + i)

        def written(i: Expr) -> Expr:
            value = v(b, t, h * values + c)
            if beta is not None:
                got = s.reduce("add", (keys,), lambda n: faded(n) * key(n))
                value = (value - got) * beta(b, t, 0 if beta.shape[2] == 1 else h)
            return faded(i) + key(i) * value

        def read(r: Expr) -> Expr:
            return scale * s.reduce("add", (keys,), lambda n: (
                own(*chain, place(t + 1, n)) * q(b, t, (h * repeats + r) * keys + n)))
        return [Part((keys,), lambda i: (*chain, place(t + 1, i)), written),
                Part((repeats,), lambda r: (*chain, t * repeats + r), read)]
    return Scan((batch, heads, values), steps, init, step)


# ---- import

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True),
          "gated_delta": (True, True)}


@onnx_rule("LinearAttention")
def _linear_attention(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    q, k, v, past, decay, beta = (*node.inputs, *(None,) * 6)[:6]
    rule = str(node.attrs.get("update_rule", "gated_delta"))
    if rule not in _RULES:
        raise ModelError(f"update_rule '{rule}': wanted one of {', '.join(_RULES)}")
    gated, delta = _RULES[rule]
    for gate, name, wanted in ((decay, "decay", gated), (beta, "beta", delta)):
        if (gate is not None) != wanted:
            raise ModelError(f"update_rule '{rule}' {'needs' if wanted else 'has no'} {name}")
    q_heads, heads = (int(node.attrs.get(n, 0)) for n in ("q_num_heads", "kv_num_heads"))
    _check_heads(q, k, v, q_heads, heads)
    keys, values = k.type.dims[2] // heads, v.type.dims[2] // heads
    batch, steps, _ = q.type.dims
    if decay is not None and decay.type.dims not in (
            (batch, steps, heads), (batch, steps, heads * keys)):
        raise ShapeError(f"decay is {decay.type}, wanted [{batch},{steps},{heads}] or "
                         f"[{batch},{steps},{heads * keys}]")
    if beta is not None and beta.type.dims not in ((batch, steps, heads), (batch, steps, 1)):
        raise ShapeError(f"beta is {beta.type}, wanted [{batch},{steps},{heads}] or "
                         f"[{batch},{steps},1]")
    kind = dtypes.compute(q.type.dtype)
    shape = (batch, heads, keys, values)
    if past is not None and past.type.dims != shape:
        raise ShapeError(f"past_state is {past.type}, wanted [{','.join(map(str, shape))}]")
    start = g.const(np.zeros(shape), kind) if past is None else g.cast(past, to=kind)
    gates = [] if decay is None else [g.exp(g.cast(decay, to=kind))]
    if beta is not None:
        gates.append(g.cast(beta, to=kind))
    scale = float(node.attrs.get("scale", 0.0)) or 1 / math.sqrt(keys)
    rows = g.linear_attention_states(*(g.cast(n, to=kind) for n in (q, k, v)), start, *gates,
                                     gated=gated, delta=delta, scale=scale)
    repeats = q_heads // heads
    y = g.reshape(_columns(g, rows, 0, steps * repeats),
                  shape=(batch, heads, values, steps, repeats))
    y = g.reshape(g.transpose(y, perm=(0, 3, 1, 4, 2)), shape=(batch, steps, q_heads * values))
    first = steps * repeats + (steps % 2) * keys
    present = g.transpose(_columns(g, rows, first, first + keys), perm=(0, 1, 3, 2))
    return (g.cast(y, to=q.type.dtype),
            g.cast(present, to=q.type.dtype if past is None else past.type.dtype))


def _check_heads(q: Node, k: Node, v: Node, q_heads: int, heads: int) -> None:
    if q_heads < 1 or heads < 1 or q_heads % heads:
        raise ModelError(f"q_num_heads is {q_heads} and kv_num_heads {heads}: wanted a positive "
                         "multiple")
    for x, name, count in ((q, "query", q_heads), (k, "key", heads), (v, "value", heads)):
        if x.type.rank != 3 or x.type.dims[2] % count:
            raise ShapeError(f"{name} is {x.type}, wanted [batch,steps,{count}*size]")
    if q.type.dims[:2] != k.type.dims[:2] or q.type.dims[:2] != v.type.dims[:2] or (
            q.type.dims[2] // q_heads != k.type.dims[2] // heads):
        raise ShapeError(f"query {q.type}, key {k.type} and value {v.type} do not fit together "
                         f"with {q_heads} and {heads} heads")


def _columns(g: GraphBuilder, x: Node, start: int, end: int) -> Node:
    """Elements start .. end of the last axis of four."""
    dims = x.type.dims
    return g.slice(x, starts=(0, 0, 0, start), ends=(*dims[:3], end), steps=(1, 1, 1, 1))
