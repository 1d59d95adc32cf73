#!/usr/bin/env python3
"""What the runtime adds to kernels, and what it overlaps: figures for docs/measurements.md.

    runtime.py dispatch --devices cpu opencl:pocl       us a kernel, of 100 of nearly no work
    runtime.py submit MODEL.onnx... --devices ..        ms until `submit` returns, 64 runs queued
    runtime.py parts MODEL.onnx... --devices ..         parts of a profile beside the clock outside
    runtime.py chain MODEL.onnx --devices ..            kernels of chained models beside each alone
    runtime.py pipeline --devices A B --size 1080 1920  100 frames through two models

Runs alone and runs together take turns, so that a noisy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jitcl

Feeds = dict[str, np.ndarray]
SMALL = 100                     # kernels of `dispatch`
CHANNELS = 16                   # of the filters of `chain` and `pipeline`


def clock(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def feeds_of(model: jitcl.Model) -> Feeds:
    """Random inputs."""
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in model.inputs}


# ---- models


def small_kernels(count: int) -> Any:
    """A chain of products of 4x4, which nothing fuses."""
    lines = [f"  %{k + 1} = matmul(%{k or 'x'}, %w)" for k in range(count)]
    return jitcl.parse("graph @chain(%x: f32[4,4], %w: f32[4,4]) {\n" + "\n".join(lines) +
                       f"\n  return %{count}\n}}")


def image_filter(name: str, height: int, width: int, layers: int) -> onnx.ModelProto:
    """A picture [1,3,H,W] to one of the same size, by 3x3 convolutions of CHANNELS channels."""
    rng = np.random.default_rng(len(name))
    widths = [3, *[CHANNELS] * (layers - 1), 3]
    nodes, weights = [], []
    for k, (before, after) in enumerate(zip(widths, widths[1:])):
        w = rng.standard_normal((after, before, 3, 3)) / (3 * before ** 0.5)
        weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{k}"))
        nodes += [helper.make_node("Conv", [f"t{k}", f"w{k}"], [f"c{k}"], pads=[1] * 4),
                  helper.make_node("Relu", [f"c{k}"], [f"t{k + 1}"])]
    shape = [1, 3, height, width]
    graph = helper.make_graph(
        nodes, name, [helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"t{layers}", TensorProto.FLOAT, shape)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# ---- figures


def dispatch(device: str, _: str, options: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    feeds = {k: rng.standard_normal((4, 4)).astype(np.float32) / 2 for k in "xw"}
    with (jitcl.compile(small_kernels(2), device=device) as few,
          jitcl.compile(small_kernels(SMALL + 2), device=device) as many):
        for model in (few, many):
            model.run(feeds)
        pairs = [(clock(lambda: few.run(feeds)), clock(lambda: many.run(feeds)))
                 for _ in range(options.runs)]
    least = [min(times) for times in zip(*pairs)]
    usual = [statistics.median(times) for times in zip(*pairs)]
    each = [1e6 * (t[1] - t[0]) / SMALL for t in (least, usual)]
    print(f"dispatch, {device}: {each[0]:.2f} us a kernel at best, {each[1]:.2f} usually "
          f"(2 kernels: {1e6 * usual[0]:.0f} us)")


def submit(device: str, path: str, options: argparse.Namespace) -> None:
    with jitcl.compile(path, device=device) as model:
        feeds = feeds_of(model)
        alone = statistics.median(clock(lambda: model.run(feeds)) for _ in range(20))
        taken, most, runs = [], 0, []
        for number in range(options.runs):
            begin = time.perf_counter()
            runs.append(model.submit(feeds))
            taken.append(time.perf_counter() - begin)
            if number % 64 == 63:
                most = max(most, jitcl.memory_stats().queued_bytes)
                for run in runs:
                    run.result(600)
                runs.clear()
        taken.sort()
        print(f"submit, {model.called} on {device}: {1e3 * taken[len(taken) // 2]:.3f} ms, "
              f"99 of 100 within {1e3 * taken[int(0.99 * len(taken))]:.3f}, longest "
              f"{1e3 * taken[-1]:.3f} (a run {1e3 * alone:.2f}); queued at most "
              f"{most / 2**20:.1f} MiB of inputs")


def parts(device: str, path: str, options: argparse.Namespace) -> None:
    with jitcl.compile(path, device=device) as model:
        feeds, found = feeds_of(model), []
        for _ in range(5):
            model.run(feeds)
        for _ in range(options.runs):
            with jitcl.profile() as profile:
                outside = clock(lambda: model.run(feeds))
            (time_,) = profile.models
            found.append((sum(time_.parts.values()) / outside, outside, time_.parts["kernel"]))
        usual = statistics.median(clock(lambda: model.run(feeds)) for _ in range(options.runs))
        ratio, outside, kernels = (statistics.median(x) for x in zip(*found))
        print(f"parts, {model.called} on {device}: parts / wall time {ratio:.4f} "
              f"({min(f[0] for f in found):.4f} to {max(f[0] for f in found):.4f}); profiled "
              f"run {1e3 * outside:.3f} ms, kernels {1e3 * kernels:.3f}; without profile "
              f"{1e3 * usual:.3f} ms")


def chain(device: str, path: str, options: argparse.Namespace) -> None:
    """A filter feeds a model. Alone, the model is fed a tensor that is on the device, too: behind a
    copy from the host an H100's first kernels take 2 us less each.
    """
    with jitcl.compile(path, device=device) as second:
        (name, shape), = ((t.name, t.shape) for t in second.inputs)
        proto = image_filter("filter", shape[-2], shape[-1], 4)
        with jitcl.compile(proto, device=device) as first:
            feeds = feeds_of(first)
            (out, middle), = first.run(feeds, keep_on_device=True).items()

            def chained() -> None:
                with first.run(feeds, keep_on_device=True)[out] as kept:
                    second.run({name: kept})

            def one(run: Callable[[], Any]) -> dict[str, float]:
                with jitcl.profile() as profile:
                    run()
                return {m.model: m.parts["kernel"] for m in profile.models}

            ways = (lambda: first.run(feeds), lambda: second.run({name: middle}), chained)
            for way in ways * 3:
                way()
            rounds = [[one(way) for way in ways] for _ in range(options.runs)]
            middle.close()
        for model in (first, second):
            label = next(k for k in rounds[0][2] if k in model.called)
            alone = statistics.median(r[0 if model is first else 1][label] for r in rounds)
            together = statistics.median(r[2][label] for r in rounds)
            print(f"chain, {label} on {device}: kernels alone {1e3 * alone:.4f} ms, chained "
                  f"{1e3 * together:.4f}, ratio {together / alone:.3f}")


def pipeline(devices: list[str], options: argparse.Namespace) -> None:
    height, width = options.size
    models = [jitcl.compile(image_filter(f"filter_{k}", height, width, layers), device=device)
              for k, (device, layers) in enumerate(zip(devices, options.layers))]
    frame = feeds_of(models[0])
    names = [(m.inputs[0].name, m.outputs[0].name) for m in models]
    stages = jitcl.Pipeline(models)

    def alone(k: int) -> float:
        """Results are dropped, as those of the pipeline are: memory that is kept is new each time.
        """
        fed = {names[k][0]: frame["t0"]}
        models[k].run(fed)
        return clock(lambda: sum(1 for _ in range(options.frames) if models[k].run(fed)))

    def together() -> float:
        return clock(lambda: sum(1 for _ in stages.map(frame for _ in range(options.frames))))

    def in_turn() -> None:
        """One behind the other: what a pipeline computes, with nothing at the same time."""
        for _ in range(options.frames):
            kept = models[0].run(frame, keep_on_device=True)
            models[1].run({names[1][0]: kept[names[0][1]]})
            kept[names[0][1]].close()

    together()
    rounds = [(alone(0), alone(1), together(), clock(in_turn)) for _ in range(options.rounds)]
    for r in rounds:
        print(f"  alone {1e3 * r[0]:.1f}, {1e3 * r[1]:.1f} ms; pipeline {1e3 * r[2]:.1f}; one "
              f"behind the other {1e3 * r[3]:.1f}")
    chained = statistics.median(r[2] / r[3] for r in rounds)
    slower = statistics.median(r[2] / max(r[:2]) for r in rounds)
    both = statistics.median(r[2] / (r[0] + r[1]) for r in rounds)
    print(f"pipeline, {options.frames} frames of {height}x{width} over {' and '.join(devices)}: "
          f"{slower:.3f} of the slower model's own time, {both:.3f} of the sum, {chained:.3f} of "
          "one behind the other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    figures = {"dispatch": dispatch, "submit": submit, "parts": parts, "chain": chain}
    parser.add_argument("figure", choices=[*figures, "pipeline"])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--devices", nargs="+", default=["cpu"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, nargs=2, default=[224, 224], metavar=("H", "W"))
    parser.add_argument("--layers", type=int, nargs=2, default=[4, 4], help="of both models")
    options = parser.parse_args()
    if options.figure == "pipeline":
        if len(options.devices) != 2:
            sys.exit("pipeline wants two devices: one twice, or two")
        pipeline(options.devices, options)
        return
    for device in options.devices:
        for path in options.models or [""]:
            figures[options.figure](device, path, options)


if __name__ == "__main__":
    main()
