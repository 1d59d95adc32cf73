"""Softmax and attention of scores that are masked by the largest numbers there are, by infinities
and beside NaN: what NumPy's formula gives, on every device.

    e = exp(s - max(s));  p = e / sum(e)

Equal finite scores have equal weights, however low they are: rows of padding are masked whole.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import jitcl
from jitcl import config
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from tests.devices import present
from tests.one_node import by_jitcl, by_onnxruntime, one_node

FLOAT = TensorProto.FLOAT
g = GraphBuilder()
LOWEST = float(np.finfo(np.float32).min)
LOW = (-np.inf, LOWEST, -1e30, -3e9, -1e9, -65504.0, -10000.0)
KEYS = 37
Array = np.ndarray


def rows() -> Array:
    """Masks [rows, KEYS]."""
    found = [[1e9] * KEYS, [-LOWEST] * KEYS, [LOWEST] + [-LOWEST] * (KEYS - 1)]
    for low in LOW:
        found += [[low] * KEYS, [low] * 20 + [0] * (KEYS - 20), [0] + [low] * (KEYS - 1),
                  [low] * (KEYS - 1) + [0], [low, -np.inf] * (KEYS // 2) + [low],
                  [low] * (KEYS - 1) + [np.inf], [low] * 20 + [np.nan] + [0] * (KEYS - 21)]
    return np.array(found, np.float32)


MASKS = rows()
DEVICES = [d for d in present() if d != "cpu"] + ["cpu", "cpu of 8 lanes", "cpu by loops"]


def softmax(s: Array, guarded: bool = False) -> Array:
    with np.errstate(all="ignore"):
        s = s.astype(np.float64)
        e = np.exp(s - s.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
    return np.where(np.isneginf(s).all(-1, keepdims=True) & guarded, 0, p)


def run(y: Node, feeds: dict[Node, Array], device: str) -> Array:
    spec, _, how = device.partition(" ")
    graph = Graph("t", tuple(feeds), (("y", y),))
    more = {"of 8 lanes": {"cpu_width": 8}, "by loops": {"templates": False}}.get(how, {})
    with config.override(**more):
        return jitcl.compile(graph, device=spec).run(
            {str(n.attr("name")): a for n, a in feeds.items()})["y"]


def fed(name: str, array: Array) -> tuple[Node, Array]:
    return graph_input(name, TensorType("f32", array.shape)), array.astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax(device: str, axis: int) -> None:
    s, array = fed("s", MASKS if axis else MASKS.T)
    want = softmax(MASKS) if axis else softmax(MASKS).T
    got = run(g.softmax(s, axis=axis), {s: array}, device)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    with np.errstate(divide="ignore"):
        logs = np.log(want)
    got = run(g.log_softmax(s, axis=axis), {s: array}, device)
    finite = np.isfinite(logs)                   # others are far below what f32 has weights for
    np.testing.assert_allclose(got[finite], logs[finite], rtol=1e-5, atol=1e-6)
    assert (np.isnan(got) == np.isnan(logs)).all() and (got[np.isneginf(logs)] < -80).all()


def plain(q: Node, k: Node, v: Node, mask: Node) -> Node:
    scores = g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2)))
    return g.matmul(g.softmax(g.add(scores, mask), axis=-1), v)


def chosen(q: Node, k: Node, v: Node, mask: Node) -> Node:
    """Scores that are masked are replaced, not added to."""
    scores = g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2)))
    scores = g.where(g.less(mask, -1.0), mask, g.add(scores, mask))
    return g.matmul(g.softmax(scores, axis=-1), v)


def op(guarded: bool, repeats: int = 1) -> object:
    def made(q: Node, k: Node, v: Node, mask: Node) -> Node:
        many = [g.concat(*[x] * repeats, axis=1) if repeats > 1 else x for x in (q, mask)]
        y = g.attention(many[0], k, v, many[1], scale=1.0, guarded=guarded)
        return g.slice(y, starts=(0,), ends=(1,), axes=(1,))
    return made


FORMS = {"plain": plain, "chosen": chosen, "op": op(True), "op, not guarded": op(False),
         "shared heads": op(True, 2), "shared heads, not guarded": op(False, 2)}


@pytest.mark.sampled(quick=10)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_attention(form: str, device: str) -> None:
    rng = np.random.default_rng(0)
    count = len(MASKS)
    quarters = [rng.integers(-4, 5, (1, 1, n, 8)) / 4 for n in (count, KEYS, KEYS)]
    inputs = dict(fed(name, a) for name, a in zip("qkv", quarters))
    mask, array = fed("mask", MASKS[None, None])
    q, k, v = inputs.values()
    scores = q @ k.swapaxes(-1, -2)              # of quarters: exact, in whatever order
    scores = np.where((array < -1) & (form == "chosen"), array, scores + array)
    got = run(FORMS[form](*inputs, mask), inputs | {mask: array}, device)
    guarded = form in ("op", "shared heads")
    np.testing.assert_allclose(got, softmax(scores, guarded) @ v, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("device", [d for d in present() if d != "reference"])
@pytest.mark.parametrize("op", ["MultiHeadAttention", "GroupQueryAttention"])
def test_operators_of_onnxruntime(op: str, device: str) -> None:
    rng = np.random.default_rng(0)
    masks = np.resize(MASKS, (KEYS, KEYS))[None, None]
    q, k, v = (rng.standard_normal((1, KEYS, n)).astype("f4") for n in (32, 16, 16))
    if op == "MultiHeadAttention":
        feeds = {"q": k, "k": k, "v": v, "bias": None, "padding": None, "mask": masks}
        model = one_node(op, feeds, domain="com.microsoft", result=FLOAT, num_heads=2)
    else:
        feeds = {"q": q, "k": k, "v": v, "past_k": None, "past_v": None,
                 "ends": np.array([KEYS - 1], "i4"), "total": np.array([KEYS], "i4"),
                 "cos": None, "sin": None, "places": None, "mask": masks}
        model = one_node(op, feeds, domain="com.microsoft", constants=("total",), result=FLOAT,
                         num_heads=4, kv_num_heads=2)
    (want,) = by_onnxruntime(model, feeds)
    (got,) = by_jitcl(model, feeds, device)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
