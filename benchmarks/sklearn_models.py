#!/usr/bin/env python3
"""Predictions of scikit-learn's models (tests/sklearn_models.py): jitcl beside onnxruntime.

    sklearn_models.py [--rows 10000] [--rounds 15] [--threads 2] [NAME ...]

Both engines run in turns, in processes of their own with as many threads; printed are the medians
in ms, their ratio (below 1: jitcl is faster), the largest difference of a number, and the nodes
that jitcl runs on the host. Labels that differ from those of onnxruntime with one thread are an
error (with more, it adds up trees in another order, and ties fall otherwise). Models are run
without ZipMap: making 10,000 dicts costs more than most predictions.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jitcl.bench.contest import Contest
from jitcl.bench.openers import jitcl_entrant
from jitcl.bench.peers import open_onnxruntime, peer_entrant

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    from tests.sklearn_models import MODELS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models; all without")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.rows} rows, {options.threads} threads, {options.rounds} rounds, load "
          f"{os.getloadavg()[0]:.1f}\n\n| model | jitcl | onnxruntime | ratio | error | host |\n"
          "|---|---|---|---|---|---|")
    for name in options.names or MODELS:
        print(row(name, options.rows, options.rounds, options.threads), flush=True)


def row(name: str, rows: int, rounds: int, threads: int) -> str:
    """One line of the table."""
    from tests.sklearn_models import exported
    model = exported(name, rows)
    data, feeds = without_maps(model.data), model.feeds
    entrants = [jitcl_entrant(data, feeds), peer_entrant("onnxruntime", data, feeds)]
    with Contest(entrants, threads) as contest:
        contest.open()
        contest.time(rounds)
    for entry in contest.entries:
        if entry.timing is None:
            raise SystemExit(f"{name}: {entry.name}: {entry.error}")
    ours, theirs = contest.entries
    alone = open_onnxruntime(data, feeds, threads=1).run()
    error = difference([ours.opened.outputs[n] for n in alone], list(alone.values()))
    host = ", ".join(ours.opened.about["host"])
    return (f"| {name} | {1e3 * ours.timing.median:.3f} | {1e3 * theirs.timing.median:.3f} | "
            f"{ours.ratio.median:.2f} | {error:.1e} | {host} |")


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
