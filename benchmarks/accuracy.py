#!/usr/bin/env python3
"""How far a model's results lie from those of 64 bits: jitcl's and onnxruntime's, side by side.

    accuracy.py [--models FOLDER] [--device cpu] [--precision high] [NAME ...]

FOLDER holds NAME.onnx in f32 and NAME.npz with its inputs by name. The model is made again in
doubles (weights, constants, casts) and computed by onnx's reference evaluator, which shares no code
with either engine. Printed: the largest difference of each engine over the largest result, and
jitcl's over onnxruntime's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import jitcl

DOUBLES = {TensorProto.FLOAT: TensorProto.DOUBLE}


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def in_doubles(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every f32 as f64. Raises ValueError where it has functions of its own."""
    if model.functions:
        raise ValueError("models with local functions are not made in doubles")
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    for graph in graphs(wide.graph):
        del graph.value_info[:]
        for tensor in graph.initializer:
            widen(tensor)
        for value in (*graph.input, *graph.output):
            of = value.type.tensor_type
            of.elem_type = DOUBLES.get(of.elem_type, of.elem_type)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    widen(attribute.t)
                elif attribute.name in ("to", "dtype") and node.op_type != "DequantizeLinear":
                    attribute.i = DOUBLES.get(attribute.i, attribute.i)
    return wide


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-300))


class GatherElements(OpRun):
    """onnx's own (1.23) fails on operands with one row."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        others = [slice(n) for n in indices.shape]
        others[axis] = slice(None)
        return (np.take_along_axis(data[tuple(others)], indices, axis=axis),)


class AveragePool(OpRun):
    """onnx's own (1.23) gives zeros where the window is larger than the image: EfficientNet's last
    one, of 1280 x 1280. That is the mean of the image; others are not made in doubles.
    """

    op_domain = ""

    def _run(self, x: np.ndarray, kernel_shape: list[int], pads: list[int] | None = None,
             **_: object) -> tuple[np.ndarray]:
        if any(pads or ()) or any(k < n for k, n in zip(kernel_shape, x.shape[2:])):
            raise ValueError(f"average pooling of {kernel_shape} is not made in doubles")
        return (x.mean(tuple(range(2, x.ndim)), keepdims=True),)


def compare(path: Path, device: str, precision: str) -> tuple[float, float]:
    """(jitcl's error, onnxruntime's), of the worst output."""
    import onnxruntime
    feeds = dict(np.load(path.with_suffix(".npz")))
    feeds.pop("out", None)
    wide = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in feeds.items()}
    model = in_doubles(onnx.load(path))
    want = ReferenceEvaluator(model, new_ops=[AveragePool, GatherElements]).run(None, wide)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"])
    theirs = session.run(None, feeds)
    ours = list(jitcl.compile(path, device=device, precision=precision).run(feeds).values())
    return (max(map(error, ours, want)), max(map(error, theirs, want)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="high")
    parser.add_argument("names", nargs="*", help="default: all models of the folder")
    options = parser.parse_args()
    names = options.names or sorted(p.stem for p in options.models.glob("*.onnx"))
    print(f"{'':20s}{'jitcl':>12s}{'onnxruntime':>14s}{'ratio':>8s}")
    for name in names:
        ours, theirs = compare(
            options.models / f"{name}.onnx", options.device, options.precision)
        print(f"{name:20s}{ours:12.1e}{theirs:14.1e}{ours / theirs:8.2f}", flush=True)


if __name__ == "__main__":
    main()
