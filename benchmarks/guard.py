#!/usr/bin/env python3
"""What the guard of f16 costs: runs with guard="outputs" and "layers" beside "off".

    guard.py [--device cpu] [--precision normal] [--rounds 15] [--loads 1] MODEL.onnx ...

Inputs are MODEL.npz beside a model, else random. A round times each guard for a while, in an order
that turns; said are the median over rounds of a guard's time by that of "off" in the same round,
the mean of it over loads, as the same kernels differ from load to load, and how many tensors are
flagged. Threads: JITCL_THREADS.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from precision import feed

import jitcl

GUARDS = ("off", "outputs", "layers")
SECONDS = 0.08      # of a turn


def bound(path: Path, device: str, precision: str, guard: str) -> tuple[Any, Any]:
    model = jitcl.compile(path, device=device, precision=precision, guard=guard)
    recorded = dict(np.load(path.with_suffix(".npz"))) if path.with_suffix(".npz").exists() else {}
    rng = np.random.default_rng(0)
    feeds = {t.name: recorded.get(t.name, feed(t, rng)) for t in model.inputs if not t.optional}
    runs = model.bind({n: x.shape for n, x in feeds.items()})
    for name, x in feeds.items():
        runs.inputs[name] = x
    runs.run()
    return model, runs


def seconds(runs: Any) -> float:
    """Of one run, over a turn."""
    count, begin = 0, time.perf_counter()
    while True:
        runs.run()
        count += 1
        took = time.perf_counter() - begin
        if took > SECONDS:
            return took / count


def measured(path: Path, options: argparse.Namespace, load: int
             ) -> tuple[float, dict[str, float], str]:
    """(seconds of a run without a guard, each guard's time by that, tensors that are flagged), of
    one load of each, in an order that turns."""
    both = {g: bound(path, options.device, options.precision, g)
            for g in (*GUARDS[load % 3:], *GUARDS[:load % 3])}
    times: dict[str, list[float]] = {g: [] for g in GUARDS}
    for k in range(options.rounds + 1):
        for g in (*GUARDS[k % 3:], *GUARDS[:k % 3]):
            times[g].append(seconds(both[g][1]))
    ratio = {g: float(np.median(np.array(times[g][1:]) / times["off"][1:])) for g in GUARDS}
    flagged = " / ".join(str(len(both[g][0].plan.watched)) for g in GUARDS[1:])
    for model, runs in both.values():
        runs.close()
        model.close()
    return float(np.median(times["off"][1:])), ratio, flagged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="normal")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--loads", type=int, default=1)
    options = parser.parse_args()
    print("| model | ms | outputs | layers | flagged |\n|---|---|---|---|---|")
    totals: dict[str, list[float]] = {g: [] for g in GUARDS[1:]}
    for path in options.models:
        found = [measured(path, options, n) for n in range(options.loads)]
        ratio = {g: float(np.exp(np.mean([np.log(r[g]) for _, r, _ in found]))) for g in GUARDS}
        for g, ratios in totals.items():
            ratios.append(ratio[g])
        print(f"| {path.stem} | {np.median([t for t, _, _ in found]) * 1e3:.2f} | "
              f"{ratio['outputs']:.3f} | {ratio['layers']:.3f} | {found[0][2]} |", flush=True)
    means = " | ".join(f"{np.exp(np.mean(np.log(v))):.3f}" for v in totals.values())
    print(f"| geometric mean | | {means} | |")


if __name__ == "__main__":
    main()
