#!/usr/bin/env python3
"""Predictions of scikit-learn's models (tests/sklearn_models.py): jitcl beside onnxruntime.

    sklearn_models.py [--rows 10000] [--rounds 15] [--threads 2] [NAME ...]

Both engines run in turns in one process, with as many threads; printed are the medians in ms, their
ratio (below 1: jitcl is faster), the largest difference of a number, and the nodes that jitcl runs
on the host. Labels that differ from those of onnxruntime with one thread are an error (with more,
it adds up trees in another order, and ties fall otherwise). Models are run without ZipMap: making
10,000 dicts costs more than most predictions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    from tests.sklearn_models import MODELS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models; all without")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["JITCL_THREADS"] = str(options.threads)
    print(f"{options.rows} rows, {options.threads} threads, {options.rounds} rounds, load "
          f"{os.getloadavg()[0]:.1f}\n\n| model | jitcl | onnxruntime | ratio | error | host |\n"
          "|---|---|---|---|---|---|")
    for name in options.names or MODELS:
        print(row(name, options.rows, options.rounds, options.threads), flush=True)


def row(name: str, rows: int, rounds: int, threads: int) -> str:
    """One line of the table."""
    import onnxruntime

    import jitcl
    from tests.sklearn_models import exported
    model = exported(name, rows)
    data, feeds = without_maps(model.data), model.feeds
    compiled = jitcl.compile(data, device="cpu")
    alone, session = (_session(onnxruntime, data, n) for n in (1, threads))
    names = [o.name for o in session.get_outputs()]
    results = compiled.run(feeds)
    error = difference([results[n] for n in names], alone.run(None, feeds))
    spent: tuple[list[float], list[float]] = ([], [])
    repeats = 1 if rows >= 1000 else 50
    for k in range(2 + rounds):
        for times, run in zip(spent, (lambda: compiled.run(feeds),
                                      lambda: session.run(None, feeds))):
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            if k >= 2:
                times.append((time.perf_counter() - start) / repeats * 1e3)
    mine, theirs = map(statistics.median, spent)
    host = ", ".join(op for _, op, _ in compiled.report().host)
    return f"| {name} | {mine:.3f} | {theirs:.3f} | {mine / theirs:.2f} | {error:.1e} | {host} |"


def _session(onnxruntime: Any, data: bytes, threads: int) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])


def without_maps(data: bytes) -> bytes:
    """The model with the scores that ZipMap reads as its outputs."""
    import onnx
    model = onnx.load_from_string(data)
    graph = model.graph
    for node in [n for n in graph.node if n.op_type == "ZipMap"]:
        graph.node.remove(node)
        output = next(o for o in graph.output if o.name == node.output[0])
        output.CopyFrom(onnx.helper.make_tensor_value_info(
            node.input[0], onnx.TensorProto.FLOAT, [None, None]))
    return bytes(model.SerializeToString())


def difference(got: list[Any], want: list[Any]) -> float:
    """The largest, relative to the largest number; SystemExit where labels differ."""
    worst = 0.0
    for a, b in zip(got, want):
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                raise SystemExit(f"{int((a != b).sum())} of {b.size} labels differ")
            continue
        worst = max(worst, float(np.abs(a - b).max() / max(1e-30, np.abs(b).max())))
    return worst


if __name__ == "__main__":
    main()
