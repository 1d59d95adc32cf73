#!/usr/bin/env python3
"""What a new shape costs a model whose dimensions are free, and what its shared plan costs a run.

    free_dimensions.py [--device cpu] [--shapes 10] [--seed 0] [--alone] [--untimed] [NAME ...]

Models are made here, with seeded weights: `bert`, four layers with batch and length free, and
`base` of BERT base's size; `resnet`, a ResNet-18, `mobilenet`, a MobileNetV2, and `yolox`, a
YOLOX-nano (sides in steps of 32), with batch, height and width free; `gpt2`, twelve layers of
GPT-2's size, and `whisper`, a step of a small decoder with attention to 1500 places of a sound,
with batch, new tokens and past free. Each runs on shapes drawn at random.
Printed for each: plans that were built for it, the first result's time, and the time of a warm run;
with --alone the warm run's time over that of a plan made for the shape alone; and over
onnxruntime's, which runs in a process of its own (with --untimed once a shape, for the error:
beside a GPU it would take most of the time). Warm times are medians of turns, with pauses between
them, so that noise falls on all alike and no engine's threads spin beside another's run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.bench.processes import EngineProcess, Entrant
from jitcl.bench.turns import Contestant, take_turns, timed_turn
from jitcl.cores import usable_cores

TURNS = 8


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

    def dense(self, x: str, n: int, m: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(n, m, scale=1 / math.sqrt(n))),
                       self.weight(m, scale=0.1))

    def norm(self, x: str, width: int) -> str:
        return self.op("LayerNormalization", x, self.weight(width, scale=1.0),
                       self.weight(width, scale=0.1), axis=-1)

    def gelu(self, x: str) -> str:
        error = self.op("Erf", self.op("Div", x, self.constant(np.array(math.sqrt(2), np.float32))))
        more = self.op("Add", error, self.constant(np.float32([1])))
        return self.op("Mul", self.op("Mul", x, more), self.constant(np.float32([0.5])))

    def attention(self, q: str, k: str, v: str, size: int) -> str:
        """Of heads [batch, heads, rows, size]; keys [batch, heads, size, rows]."""
        scores = self.op("Div", self.op("MatMul", q, k),
                         self.constant(np.array(math.sqrt(size), np.float32)))
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def model(self, name: str, inputs: dict[str, tuple[int, list[int | str]]], *outputs: str
              ) -> onnx.ModelProto:
        fed = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
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

    def headed(x: str, perm: list[int]) -> str:
        return b.op("Transpose", b.op("Reshape", b.dense(x, width, width), split), perm=perm)

    for _ in range(layers):
        q, k, v = headed(x, [0, 2, 1, 3]), headed(x, [0, 2, 3, 1]), headed(x, [0, 2, 1, 3])
        found = b.attention(q, k, v, width // heads)
        back = b.op("Reshape", b.op("Transpose", found, perm=[0, 2, 1, 3]), joined)
        x = b.norm(b.op("Add", x, b.dense(back, width, width)), width)
        x = b.norm(b.op("Add", x, b.dense(b.gelu(b.dense(x, width, 4 * width)), 4 * width, width)),
                   width)
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


def mobilenet() -> onnx.ModelProto:
    """Pictures [batch, 3, height, width] to 1000 logits."""
    b = Builder(3)
    ends = b.constant(np.array(0, np.float32)), b.constant(np.array(6, np.float32))

    def conv(x: str, c: int, k: int, size: int = 1, stride: int = 1, group: int = 1) -> str:
        return b.op("Conv", x, b.weight(k, c // group, size, size), b.weight(k, scale=0.1),
                    strides=[stride] * 2, pads=[size // 2] * 4, group=group)

    x, c = b.op("Clip", conv("x", 3, 32, 3, 2), *ends), 32
    for times, k, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                     (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            inner = c * times
            y = b.op("Clip", conv(x, c, inner), *ends) if times > 1 else x
            y = b.op("Clip", conv(y, inner, inner, 3, 1 if block else stride, inner), *ends)
            y = conv(y, inner, k)
            x, c = b.op("Add", x, y) if block else y, k
    x = b.op("Flatten", b.op("GlobalAveragePool", b.op("Clip", conv(x, c, 1280), *ends)))
    y = b.op("Gemm", x, b.weight(1000, 1280), b.weight(1000, scale=0.1), transB=1)
    return b.model("mobilenet", {"x": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}, y)


def yolox(width: int = 16, classes: int = 80) -> onnx.ModelProto:
    """Pictures [batch, 3, height, width], sides multiples of 32, to [batch, places, 5 + classes]: a
    YOLOX-nano (Ge and others 2021) without the arithmetic that turns places into boxes.
    """
    b = Builder(5)

    def conv(x: str, c: int, k: int, size: int = 1, stride: int = 1, group: int = 1) -> str:
        y = b.op("Conv", x, b.weight(k, c // group, size, size), b.weight(k, scale=0.1),
                 strides=[stride] * 2, pads=[size // 2] * 4, group=group)
        return b.op("Mul", y, b.op("Sigmoid", y))

    def light(x: str, c: int, k: int, stride: int = 1) -> str:
        return conv(conv(x, c, c, 3, stride, c), c, k)

    def joined(*parts: str) -> str:
        return b.op("Concat", *parts, axis=1)

    def stage(x: str, c: int, k: int, blocks: int = 1, skip: bool = False) -> str:
        half = k // 2
        y, beside = conv(x, c, half), conv(x, c, half)
        for _ in range(blocks):
            z = light(conv(y, half, half), half, half)
            y = b.op("Add", y, z) if skip else z
        return conv(joined(y, beside), k, k)

    def larger(x: str) -> str:
        return b.op("Resize", x, "", b.constant(np.float32([1, 1, 2, 2])), mode="nearest",
                    coordinate_transformation_mode="asymmetric", nearest_mode="floor")

    def every(axis: int, first: int, x: str) -> str:
        last = np.iinfo(np.int64).max
        return b.op("Slice", x, *(b.constant(np.array([v])) for v in (first, last, axis, 2)))

    c2, c3, c4, c5 = (width << k for k in range(1, 5))
    x = conv(joined(*(every(3, j, every(2, i, "x")) for j in (0, 1) for i in (0, 1))), 12, width, 3)
    x = stage(light(x, width, c2, 2), c2, c2, skip=True)
    p3 = stage(light(x, c2, c3, 2), c3, c3, 3, skip=True)
    p4 = stage(light(p3, c3, c4, 2), c4, c4, 3, skip=True)
    x = conv(light(p4, c4, c5, 2), c5, c4)
    pools = [b.op("MaxPool", x, kernel_shape=[s, s], strides=[1, 1], pads=[s // 2] * 4)
             for s in (5, 9, 13)]
    x = stage(conv(joined(x, *pools), 4 * c4, c5), c5, c5)
    top = conv(x, c5, c4)
    middle = conv(stage(joined(larger(top), p4), c5, c4), c4, c3)
    n3 = stage(joined(larger(middle), p3), c4, c3)
    n4 = stage(joined(light(n3, c3, c3, 2), middle), c4, c4)
    n5 = stage(joined(light(n4, c4, c4, 2), top), c5, c5)
    found = []
    for x, c in ((n3, c3), (n4, c4), (n5, c5)):
        kinds = boxes = conv(x, c, c3)
        for _ in range(2):
            kinds, boxes = light(kinds, c3, c3), light(boxes, c3, c3)
        ends = [b.op("Conv", y, b.weight(k, c3, 1, 1), b.weight(k, scale=0.1))
                for y, k in ((boxes, 4), (boxes, 1), (kinds, classes))]
        y = joined(ends[0], *(b.op("Sigmoid", end) for end in ends[1:]))
        found.append(b.op("Reshape", y, b.constant(np.array([0, 5 + classes, -1]))))
    y = b.op("Transpose", b.op("Concat", *found, axis=2), perm=[0, 2, 1])
    return b.model("yolox", {"x": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}, y)


def decoder(layers: int, width: int, heads: int, words: int, sound: int = 0) -> onnx.ModelProto:
    """Token numbers [batch, new] and keys and values [batch, heads, past, width / heads] to logits
    and keys and values with the new ones; `sound`: places of a sound to attend to, too.
    """
    b, size = Builder(4), width // heads
    shape = b.op("Shape", "ids")
    inputs: dict[str, tuple[int, list[int | str]]] = {"ids": (TensorProto.INT64, ["batch", "new"])}
    x, present = b.op("Gather", table := b.weight(words, width, scale=1.0), "ids"), []
    split = b.op("Concat", shape, b.constant(np.array([heads, size])), axis=0)
    joined = b.op("Concat", shape, b.constant(np.array([width])), axis=0)

    def headed(x: str) -> str:
        rows = b.op("Reshape", b.dense(x, width, width), split)
        return b.op("Transpose", rows, perm=[0, 2, 1, 3])

    def attended(x: str, q: str, k: str, v: str) -> str:
        found = b.attention(q, b.op("Transpose", k, perm=[0, 1, 3, 2]), v, size)
        back = b.op("Reshape", b.op("Transpose", found, perm=[0, 2, 1, 3]), joined)
        return b.op("Add", x, b.dense(back, width, width))

    for layer in range(layers):
        y, rows = b.norm(x, width), []
        for kind in ("key", "value"):
            inputs[f"{kind}{layer}"] = TensorProto.FLOAT, ["batch", heads, "past", size]
            rows.append(b.op("Concat", f"{kind}{layer}", headed(y), axis=2))
        x, present = attended(x, headed(y), *rows), [*present, *rows]
        if sound:
            for kind in ("sound_key", "sound_value"):
                inputs[f"{kind}{layer}"] = TensorProto.FLOAT, ["batch", heads, sound, size]
            x = attended(x, headed(b.norm(x, width)), f"sound_key{layer}", f"sound_value{layer}")
        y = b.gelu(b.dense(b.norm(x, width), width, 4 * width))
        x = b.op("Add", x, b.dense(y, 4 * width, width))
    logits = b.op("MatMul", b.norm(x, width), b.op("Transpose", table, perm=[1, 0]))
    return b.model("decoder", inputs, logits, *present)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert, "base": partial(bert, 12, 768, 12, 30522), "resnet": resnet,
    "mobilenet": mobilenet, "yolox": yolox, "gpt2": partial(decoder, 12, 768, 12, 50257),
    "whisper": partial(decoder, 4, 384, 6, 51865, 1500)}


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of a model at random shapes, without end."""
    step = 32 if model.graph.name == "yolox" else 1
    while True:
        sizes = {"batch": int(rng.integers(1, 9)), "length": int(rng.integers(1, 513)),
                 "past": int(rng.integers(1, 257)), "new": int(rng.choice([1, 1, 1, 4, 32])),
                 "height": int(rng.integers(97, 641)) // step * step,
                 "width": int(rng.integers(97, 641)) // step * step}
        fed = {}
        for value in model.graph.input:
            dims = [sizes.get(d.dim_param, d.dim_value)
                    for d in value.type.tensor_type.shape.dim]
            whole = value.type.tensor_type.elem_type == TensorProto.INT64
            fed[value.name] = rng.integers(0, 1000, dims) if whole else rng.standard_normal(
                dims).astype(np.float32)
        yield fed


class Peer:
    """onnxruntime, in a process of its own."""

    about: dict[str, Any] = {}

    def __init__(self, model: bytes, inputs: dict[str, np.ndarray], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.inputs = inputs
        self.session = onnxruntime.InferenceSession(model, options,
                                                    providers=["CPUExecutionProvider"])

    def run(self) -> dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names[:1], self.session.run(None, self.inputs)))

    def first(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The first output of inputs that are those of all runs from now on."""
        self.inputs = inputs
        return next(iter(self.run().values()))


class Own:
    """A model of ours, in this process."""

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name, self.run = name, run

    def turn(self, seconds: float) -> list[float]:
        return timed_turn(self.run, seconds)


def measure(name: str, device: str, count: int, seed: int, alone: bool, untimed: bool) -> None:
    made = MODELS[name]()
    proto = made.SerializeToString()
    model = jitcl.compile(proto, device=device)
    shapes = [inputs for inputs, _ in zip(feeds(made, np.random.default_rng(seed)), range(count))]
    entrant = Entrant("onnxruntime", f"{__file__}:Peer", {"model": proto, "inputs": shapes[0]})
    peer = EngineProcess(entrant, usable_cores())
    peer.open()
    over_alone, over_peer, late = [], [], []
    for inputs in shapes:
        run = partial(model.run, inputs)
        built, start = model.cache.stats.builds, time.perf_counter()
        found = next(iter(run().values()))
        first = 1e3 * (time.perf_counter() - start)
        built = model.cache.stats.builds - built
        report = model.report()
        want = peer.ask("first", inputs=inputs)
        error = float(np.abs(found - want).max() / np.abs(want).max())
        engines: list[Contestant] = [Own("shared", run), *([] if untimed else [peer])]
        if alone:
            own = jitcl.compile(proto, device=device,
                                shapes={n: x.shape for n, x in inputs.items()})
            own.run(inputs)
            engines.append(Own("alone", partial(own.run, inputs)))
        times = {n: 1e3 * t.median for n, t in take_turns(engines, TURNS).items()}
        warm = times["shared"]
        late.append(first - 1.5 * warm)
        line = (f"{name} {dict(s[:2] for s in report.sizes)}: {built} plans built, first "
                f"{first:.1f} ms, warm {warm:.2f} ms, error {error:.1e}")
        if not untimed:
            theirs = times["onnxruntime"]
            over_peer.append(warm / theirs)
            line += f", onnxruntime {theirs:.2f} ms ({over_peer[-1]:.2f})"
        if alone:
            over_alone.append(warm / times["alone"])
            line += f", a plan of its own {times['alone']:.2f} ms ({over_alone[-1]:.2f})"
        print(line, flush=True)
    peer.close()
    found = [f"first results later than 1.5 warm runs by at most {max(late[1:], default=0):.0f} ms "
             "after the first shape"]
    for ratios, whose in ((over_alone, "a plan's own"), (over_peer, "onnxruntime's time")):
        if ratios:
            found.insert(0, f"{statistics.geometric_mean(ratios):.2f} (at most {max(ratios):.2f}) "
                            f"of {whose}")
    print(f"{name}: {'; '.join(found)}")
    print(model.report())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--untimed", action="store_true")
    options = parser.parse_args()
    for name in options.names:
        measure(name, options.device, options.shapes, options.seed, options.alone,
                options.untimed)


if __name__ == "__main__":
    main()
