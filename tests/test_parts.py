"""Concatenations written in place by what they join: where that is so, and that results are those
of copies.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl import config
from jitcl.cli.overview import unshared_bytes
from jitcl.codegen import generate as generating
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate

g = GraphBuilder()


def x(*shape: int) -> Node:
    return graph_input("x", TensorType("f32", shape))


def weights(*shape: int) -> Node:
    return g.const(np.random.default_rng(0).normal(size=shape).astype(np.float32) / 8)


def conv(data: Node, k: int, size: int = 1) -> Node:
    w = weights(k, data.type.dims[1], size, size)
    return g.conv(data, w, strides=(1, 1), pads=(size // 2,) * 4, dilations=(1, 1), group=1)


def product(data: Node, n: int) -> Node:
    return g.matmul(data, weights(data.type.dims[-1], n))


def rows(data: Node) -> Node:
    return product(g.concat(product(data, 16), product(g.neg(data), 16), axis=0), 8)


def squeeze(data: Node) -> Node:
    """SqueezeNet's fire: two convolutions side by side."""
    small = g.relu(conv(data, 32))
    return conv(g.concat(g.relu(conv(small, 64)), g.relu(conv(small, 64, 3)), axis=1), 32)


def tokens(data: Node) -> Node:
    """Tokens made pixels beside pixels: the copy would have transposed them."""
    n, c, h, w = data.type.dims
    flat = g.transpose(g.reshape(data, shape=(n, c, h * w)), perm=(0, 2, 1))
    pixels = g.reshape(g.transpose(product(flat, 32), perm=(0, 2, 1)), shape=(n, 32, h, w))
    return conv(g.concat(pixels, conv(data, 32, 3), axis=1), 16)


def nested(data: Node) -> Node:
    inner = g.concat(conv(data, 16), conv(data, 32, 3), axis=1)
    both = g.concat(g.sigmoid(inner), conv(data, 16, 3), axis=1)
    return g.add(conv(both, 16), conv(inner, 16))


def skipped(data: Node) -> Node:
    """A part that others read after the whole has been."""
    first = g.relu(conv(data, 32, 3))
    late = conv(g.concat(first, conv(data, 32, 3), axis=1), 32)
    return g.add(conv(g.sigmoid(late), 32), conv(first, 32))


def batch(data: Node) -> Node:
    return squeeze(g.concat(data, g.neg(data), axis=0))


def uneven(data: Node) -> Node:
    """Channels that fill no blocks lie in rows, which are contiguous, too."""
    return conv(g.concat(conv(data, 24), conv(data, 40, 3), axis=1), 32)


def halo(data: Node) -> Node:
    """The second reader wants zeros around what it reads."""
    y = g.relu(conv(data, 32, 3))
    return g.add(conv(g.concat(y, conv(data, 32), axis=1), 32), conv(y, 32, 3))


def heights(data: Node) -> Node:
    return conv(g.concat(conv(data, 32), conv(data, 32, 3), axis=2), 32)


def twice(data: Node) -> Node:
    y = g.relu(conv(data, 32, 3))
    return conv(g.concat(y, y, axis=1), 32)


def beside_the_input(data: Node) -> Node:
    return conv(g.concat(data, conv(data, 32, 3), axis=1), 32)


def itself_an_output(data: Node) -> Node:
    return g.concat(conv(data, 32), conv(data, 32, 3), axis=1)


IN_PLACE = {rows: (24, 48), squeeze: (1, 32, 12, 11), tokens: (1, 32, 8, 6),
            nested: (1, 16, 9, 10), skipped: (1, 16, 10, 10), uneven: (1, 32, 8, 8)}
COPIED = {batch: (1, 32, 8, 8), halo: (1, 32, 8, 8), heights: (1, 32, 8, 8), twice: (1, 32, 8, 8),
          beside_the_input: (1, 32, 8, 8),
          itself_an_output: (1, 32, 8, 8)}


def compiled(case, shape, tmp_path, **options):
    data = x(*shape)
    graph = Graph("f", (data,), (("y", case(data)),))
    model = jitcl.compile(graph, device="cpu", cache_dir=tmp_path, **options)
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    got = model.run({"x": array})["y"]
    want = evaluate(graph.outputs[0][1], {data: array})
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
    return model.plan, got


def copies(plan) -> list[str]:
    return [s.name for s in plan.steps if "concat" in s.head.partition("\n")[0]]


@pytest.mark.slow
@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize("case", IN_PLACE, ids=lambda c: c.__name__)
def test_in_place(case, tmp_path, monkeypatch):
    plan, got = compiled(case, IN_PLACE[case], tmp_path / "a")
    assert copies(plan) == []
    for part in (b for b in plan.buffers if b.whole >= 0):
        whole = plan.buffers[part.whole]
        assert part.slot == whole.slot and whole.offset <= part.offset
        assert part.offset + part.nbytes <= whole.offset + whole.nbytes
    with config.override(threads=1):
        assert compiled(case, IN_PLACE[case], tmp_path / "b")[1].tobytes() == got.tobytes()
    monkeypatch.setattr(generating, "in_place", lambda graph, groups: groups)
    plan, copied = compiled(case, IN_PLACE[case], tmp_path / "c")
    assert copies(plan) and copied.tobytes() == got.tobytes()


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("case", COPIED, ids=lambda c: c.__name__)
def test_copied(case, tmp_path):
    """Parts that are no run of bytes, or that have another place already."""
    plan, _ = compiled(case, COPIED[case], tmp_path)
    assert all(b.whole < 0 for b in plan.buffers) or case is batch
    assert copies(plan) or case is twice


def test_low_memory_copies(tmp_path):
    """A whole lives from its first part on."""
    plan, _ = compiled(squeeze, IN_PLACE[squeeze], tmp_path, memory="low")
    assert copies(plan) and all(b.whole < 0 for b in plan.buffers)


def test_any_batch(tmp_path):
    """Of sizes that are no numbers nothing is known to be contiguous."""
    rng = np.random.default_rng(3)
    stored = {n: rng.normal(size=(48, 32)).astype(np.float32) for n in "ab"}
    stored["c"] = rng.normal(size=(32, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["ya"]),
         helper.make_node("MatMul", ["x", "b"], ["yb"]),
         helper.make_node("Concat", ["ya", "yb"], ["both"], axis=0),
         helper.make_node("MatMul", ["both", "c"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 8])],
        [numpy_helper.from_array(a, n) for n, a in stored.items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    for n in (16, 3, 32, 16):
        array = rng.normal(size=(n, 48)).astype(np.float32)
        want = np.concatenate([array @ stored["a"], array @ stored["b"]]) @ stored["c"]
        got = model.run({"x": array})["y"]
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_memory_without_sharing_counts_parts_once(tmp_path):
    plan, _ = compiled(squeeze, IN_PLACE[squeeze], tmp_path, memory="high")
    assert any(b.whole >= 0 for b in plan.buffers)
    assert unshared_bytes(plan) == sum(plan.slots)


def test_a_warm_start_has_them_too(tmp_path):
    _, cold = compiled(squeeze, IN_PLACE[squeeze], tmp_path)
    plan, warm = compiled(squeeze, IN_PLACE[squeeze], tmp_path)
    assert copies(plan) == [] and any(b.whole >= 0 for b in plan.buffers)
    assert warm.tobytes() == cold.tobytes()
