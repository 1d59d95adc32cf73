#!/usr/bin/env python3
"""What a new shape costs a model whose dimensions are free, and what its shared plan costs a run.

    free_dimensions.py [--device cpu] [--shapes 10] [--seed 0] [--alone] [NAME ...]

Two models are made here, with seeded weights: `bert`, four layers with batch and length free, and
`resnet`, a ResNet-18 with batch, height and width free. Each runs on shapes drawn at random.
Printed for each: kernels that were built for it, the first result's time, and the time of a warm
run; with --alone the warm run's time over that of a plan made for the shape alone; and over
onnxruntime's. Warm times are medians of runs in turns, so that noise falls on all alike.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jitcl

TURNS = 12


class Builder:
    """Nodes and weights of a model in the making."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        deviation = 1 / math.sqrt(math.prod(shape[1:]) or 1) if scale is None else scale
        array = self.rng.standard_normal(shape).astype(np.float32) * np.float32(deviation)
        return self.constant(array)

    def constant(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, name: str, inputs: dict[str, tuple[int, list[int | str]]], output: str
              ) -> onnx.ModelProto:
        fed = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        made = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, name, fed, made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                                 ir_version=8)


def bert(layers: int = 4, width: int = 256, heads: int = 4, words: int = 1000) -> onnx.ModelProto:
    """Token numbers [batch, length] to hidden states [batch, length, width]."""
    b = Builder(1)
    shape = b.op("Shape", "ids")
    x = b.op("Gather", b.weight(words, width, scale=1.0), "ids")
    split = b.op("Concat", shape, b.constant(np.array([heads, width // heads])), axis=0)
    joined = b.op("Concat", shape, b.constant(np.array([width])), axis=0)

    def dense(x: str, n: int, m: int) -> str:
        return b.op("Add", b.op("MatMul", x, b.weight(n, m, scale=1 / math.sqrt(n))),
                    b.weight(m, scale=0.1))

    def norm(x: str) -> str:
        return b.op("LayerNormalization", x, b.weight(width, scale=1.0),
                    b.weight(width, scale=0.1), axis=-1)

    def headed(x: str, perm: list[int]) -> str:
        return b.op("Transpose", b.op("Reshape", dense(x, width, width), split), perm=perm)

    for _ in range(layers):
        q, k, v = headed(x, [0, 2, 1, 3]), headed(x, [0, 2, 3, 1]), headed(x, [0, 2, 1, 3])
        scores = b.op("Div", b.op("MatMul", q, k),
                      b.constant(np.array(math.sqrt(width // heads), np.float32)))
        found = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
        back = b.op("Reshape", b.op("Transpose", found, perm=[0, 2, 1, 3]), joined)
        x = norm(b.op("Add", x, dense(back, width, width)))
        inner = dense(x, width, 4 * width)
        error = b.op("Erf", b.op("Div", inner, b.constant(np.array(math.sqrt(2), np.float32))))
        gelu = b.op("Mul", b.op("Mul", inner, b.op("Add", error, b.constant(np.float32([1])))),
                    b.constant(np.float32([0.5])))
        x = norm(b.op("Add", x, dense(gelu, 4 * width, width)))
    return b.model("bert", {"ids": (TensorProto.INT64, ["batch", "length"])}, x)


def resnet(width: int = 64, stages: int = 4) -> onnx.ModelProto:
    """Pictures [batch, 3, height, width] to 1000 logits."""
    b = Builder(2)

    def conv(x: str, c: int, k: int, size: int, stride: int) -> str:
        return b.op("Conv", x, b.weight(k, c, size, size), b.weight(k, scale=0.1),
                    strides=[stride] * 2, pads=[size // 2] * 4)

    x = b.op("Relu", conv("x", 3, width, 7, 2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    c = width
    for stage in range(stages):
        k = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = b.op("Relu", conv(x, c, k, 3, stride))
            y = conv(y, k, k, 3, 1)
            skip = conv(x, c, k, 1, stride) if c != k else x
            x, c = b.op("Relu", b.op("Add", y, skip)), k
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    y = b.op("Gemm", x, b.weight(1000, c), b.weight(1000, scale=0.1), transB=1)
    return b.model("resnet", {"x": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}, y)


def shapes(name: str, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Inputs of a model at random shapes, without end."""
    while True:
        batch = int(rng.integers(1, 9)) if name == "bert" else int(rng.integers(1, 4))
        if name == "bert":
            yield rng.integers(0, 1000, (batch, int(rng.integers(2, 257))))
        else:
            h, w = (int(n) for n in rng.integers(97, 400, 2))
            yield rng.standard_normal((batch, 3, h, w)).astype(np.float32)


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of one run."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def in_turns(runs: list[Callable[[], object]]) -> list[float]:
    """The median time of each. What runs behind another engine's run has its threads beside it,
    which go on spinning for a while: each order comes in turn."""
    times: list[list[float]] = [[] for _ in runs]
    orders = list(itertools.permutations(range(len(runs))))
    for turn in range(TURNS):
        for k in orders[turn % len(orders)]:
            times[k].append(timed(runs[k]))
    return [statistics.median(t) for t in times]


def measure(name: str, device: str, count: int, seed: int, alone: bool) -> None:
    import onnxruntime

    proto = {"bert": bert, "resnet": resnet}[name]().SerializeToString()
    model = jitcl.compile(proto, device=device)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    over_alone, over_peer, late = [], [], []
    for x, _ in zip(shapes(name, np.random.default_rng(seed)), range(count)):
        inputs = {feed: x}
        run, peer_run = partial(model.run, inputs), partial(session.run, None, inputs)
        start = time.perf_counter()
        found = next(iter(run().values()))
        first = 1e3 * (time.perf_counter() - start)
        report = model.report()
        want = peer_run()[0]
        error = float(np.abs(found - want).max() / np.abs(want).max())
        runs: list[Callable[[], object]] = [run, peer_run]
        if alone:
            own = jitcl.compile(proto, device=device, shapes={feed: x.shape})
            own.run(inputs)
            runs.append(partial(own.run, inputs))
        warm, peer, *rest = in_turns(runs)
        over_peer.append(warm / peer)
        late.append(first - 1.5 * warm)
        line = (f"{name} {list(x.shape)}: first {first:.1f} ms, {report.kernels} kernels, warm "
                f"{warm:.2f} ms, onnxruntime {peer:.2f} ms ({warm / peer:.2f}), error {error:.1e}")
        if rest:
            over_alone.append(warm / rest[0])
            line += f", a plan of its own {rest[0]:.2f} ms ({warm / rest[0]:.2f})"
        print(line, flush=True)
    print(f"{name}: {statistics.geometric_mean(over_peer):.2f} of onnxruntime's time"
          + (f", {statistics.geometric_mean(over_alone):.2f} (at most {max(over_alone):.2f}) of a "
             "plan's own" if over_alone else "")
          + f"; first results later than 1.5 warm runs by at most {max(late[3:], default=0):.0f} "
          "ms after the third shape")
    print(model.report())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=["bert", "resnet"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    for name in options.names:
        measure(name, options.device, options.shapes, options.seed, options.alone)


if __name__ == "__main__":
    main()
