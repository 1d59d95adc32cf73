#!/usr/bin/env python3
"""What precision="low" makes of kernels on a device: their source, their time, their error.

    precision.py [--device opencl:nvidia] [MODEL.onnx ...]

Times a long chain of multiplications and additions over 16 million numbers, which is bound by
memory between kernels, and any models given (random inputs). Device time of one pass over the
steps: the median of 30, taken in turns. "half" counts kernels that compute in half; "stored" those
that read or write halves.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import jitcl
from jitcl.devices.base import Device
from jitcl.devices.select import open_device
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder

SIZE, LINKS, ROUNDS = 1 << 24, 240, 30
WARM = 1.0          # seconds
PRECISIONS = ("high", "normal", "low")


def chain() -> Graph:
    """y = x * c + d, LINKS times: kernels of up to 48 operations each, numbers from 0 to 2."""
    g = GraphBuilder()
    x = y = graph_input("x", TensorType("f32", (SIZE,)))
    for i in range(LINKS):
        y = g.mul(y, const(np.float32((0.8, 1.25)[i % 2])))
        y = g.add(y, const(np.float32((0.25, -0.25)[i % 2])))
    return Graph("chain", (x,), (("y", y),))


def feed(tensor: Any, rng: np.random.Generator) -> np.ndarray:
    shape = [d if isinstance(d, int) else 1 for d in tensor.shape]
    if tensor.dtype in ("f32", "f16"):
        dtype = np.float32 if tensor.dtype == "f32" else np.float16
        return rng.uniform(0, 1, shape).astype(dtype)
    return np.ones(shape, {"i32": np.int32, "bool": np.bool_}.get(tensor.dtype, np.int64))


def measure(name: str, model: Any, device: Device) -> None:
    rng = np.random.default_rng(0)
    models = {p: jitcl.compile(model, device=device, precision=p) for p in PRECISIONS}
    first = models["high"]
    feeds = {t.name: feed(t, rng) for t in first.inputs if not t.optional}
    results = {p: m.run(feeds) for p, m in models.items()}
    times: dict[str, list[float]] = {p: [] for p in PRECISIONS}
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:                # a GPU that rests runs at a low clock
        first.run(feeds)
    for _ in range(ROUNDS):
        for p, m in models.items():
            given = [feeds[t.name] for t in m.plan.inputs]
            times[p].append(m._last.executable.steady(given, 3))
    high = float(np.median(times["high"]))
    for p, m in models.items():
        error = max(float(np.abs(results[p][k].astype(np.float64) - v).max())
                    / max(float(np.abs(v).max()), 1e-30) for k, v in results["high"].items())
        kernels = m.plan.kernels
        half = sum("half" in k.features for k in kernels)
        stored = sum(bool({"half", "half_storage"} & k.features) for k in kernels)
        median = float(np.median(times[p]))
        print(f"{name:24} {p:7} {median * 1e3:9.3f} ms  ratio {median / high:5.2f}  "
              f"kernels {len(kernels):3}, half {half:3}, stored {stored:3}  error {error:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--device", default="opencl")
    options = parser.parse_args()
    device = open_device(options.device)
    target: Any = device.target
    print(f"{target.name}, {target.driver}: half arithmetic {target.fp16_arithmetic}")
    graph = chain()
    measure("chain", graph, device)
    low = jitcl.compile(graph, device=device, precision="low")
    low.run({"x": np.ones(SIZE, np.float32)})
    for kernel in low.plan.kernels:
        if "half" in kernel.features:
            print("\n".join(kernel.body.splitlines()[:16]))
            break
    for path in options.models:
        measure(path.stem, path, device)


if __name__ == "__main__":
    main()
