"""What products cost on GPUs that aren't here, as Mesa's compilers for them count.

REACH_ROOT names the folder of the compilers (benchmarks/static_cost.py says where they come from).
"""

from __future__ import annotations

import argparse
import os

import pytest

from benchmarks import static_cost
from jitcl.codegen.plan import KernelSource
from jitcl.ir.graph import Node
from jitcl.ir.sizes import Space
from jitcl.ops.builder import GraphBuilder
from jitcl.target.profiles import PROFILES
from tests.test_golden import conv, weights, x
from tests.test_quirks import plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("REACH_ROOT"), reason="no REACH_ROOT: no compilers")]
g = GraphBuilder()


def pointwise(c: int, k: int, size: int) -> Node:
    y = conv(x("x", 1, c, size, size), weights(k, c, 1, 1), pads=(0,) * 4)
    return g.add(y, weights(k, 1, 1))


def gelu(y: Node) -> Node:
    return g.mul(g.mul(y, 0.5), g.add(g.erf(g.mul(y, 0.7071)), 1.0))


def silu(y: Node) -> Node:
    return g.div(y, g.add(g.exp(g.mul(y, -1.0)), 1.0))


GRAPHS = {                                       # and the least share of multiply-adds in its loop
    "relu": (lambda: g.relu(pointwise(96, 64, 28)), 0.6),
    "residual": (lambda: g.add(pointwise(96, 64, 28), x("z", 1, 64, 28, 28)), 0.6),
    "matmul": (lambda: g.add(g.matmul(x("a", 128, 96), weights(96, 64)), weights(64)), 0.45),
    "row": (lambda: g.mul(silu(x("z", 1, 64)), g.matmul(x("a", 1, 96), weights(96, 64))), 0.3),
    "gelu": (lambda: gelu(g.matmul(x("a", 128, 96), weights(96, 64))), 0.4),
}


def costs(kernels: dict[str, KernelSource]) -> dict[str, static_cost.Numbers]:
    """The numbers of kernels on a Mali-G610, by name."""
    reach, root = static_cost.compilers(argparse.Namespace(
        root=os.environ["REACH_ROOT"], reach=os.environ.get("REACH", static_cost.REACH)))
    said = static_cost.compiled({n: k.body for n, k in kernels.items()}, "mali-g610", reach, root)
    return {n: static_cost.numbers(said[n], k.body, False) for n, k in kernels.items()}


def test_products_keep_full_occupancy_and_multiply_most_of_the_time():
    target = PROFILES["mali-g610"].target
    kernels = {name: next(k for k in plan(make(), target).kernels
                          if k.template in ("gemm_opencl", "conv_opencl"))
               for name, (make, _) in GRAPHS.items()}
    for name, found in costs(kernels).items():
        assert (found["occupancy"], found["spills"]) == (1, 0), (name, found)
        assert found["useful"] >= GRAPHS[name][1], (name, found)


@pytest.mark.parametrize("keys", [300, 256])
def test_attention_of_one_query_keeps_full_occupancy(keys):
    q, k, v = (x(name, 1, 4, n, 64) for name, n in (("q", 1), ("k", keys), ("v", keys)))
    scores = g.add(g.mul(g.matmul(q, g.transpose(k, perm=(0, 1, 3, 2))), 0.125), x("mask", keys))
    made = plan(g.matmul(g.softmax(scores, axis=-1), v), PROFILES["mali-g610"].target)
    (found,) = costs({k.entry: k for k in made.kernels if k.entry.startswith("attention")}).values()
    assert (found["occupancy"], found["spills"]) == (1, 0), found


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_attention_over_a_cache_does_too(dtype):
    """For any number of multiples of 256 keys, as language models have them."""
    past = 256 * Space().symbol("rooms", 1)
    old, new = ([x(f"{name}{rows}", 1, rows, 2, 64, dtype=dtype) for name in "kv"]
                for rows in (past, 1))
    k, v = (g.transpose(g.cast(g.concat(a, b, axis=1), to="f32"), perm=(0, 2, 1, 3))
            for a, b in zip(old, new))
    scores = g.matmul(x("q", 1, 2, 7, 64), g.transpose(k, perm=(0, 1, 3, 2)))
    y = g.matmul(g.softmax(g.add(scores, x("mask", past + 1)), axis=-1), v)
    made = plan(y, PROFILES["mali-g610"].target)
    kernels = {k.entry: k for k in made.kernels}
    assert [name.split("_")[0] for name in kernels] == ["attention", "join"]
    for found in costs(kernels).values():
        assert (found["occupancy"], found["spills"]) == (1, 0), found
