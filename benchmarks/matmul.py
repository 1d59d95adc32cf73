#!/usr/bin/env python3
"""A 1024x1024x1024 fp32 product on jitcl's CPU path beside NumPy's, in turns of half a second.

    matmul.py [--rounds 12] [--threads 2]

Each engine runs in a process of its own, so that neither meets the other's waiting threads. Prints
the median ms of each turn, and the ratio of medians round by round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import numpy as np

SIZE = 1024


def worker(engine: str) -> None:
    """Answers each line of stdin with the median ms of half a second of runs."""
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    if engine == "numpy":
        def run() -> np.ndarray:
            return a @ b
    else:
        import jitcl
        model = jitcl.parse(f"graph @product(%a: f32[{SIZE},{SIZE}], %b: f32[{SIZE},{SIZE}]) {{\n"
                            f"  %y = matmul(%a, %b)\n  return %y\n}}\n")
        compiled = jitcl.compile(model, device="cpu")

        def run() -> np.ndarray:
            return compiled(a, b)["y"]
    np.testing.assert_allclose(run(), a.astype(np.float64) @ b, rtol=1e-5)
    print("ready", flush=True)
    for _ in sys.stdin:
        times, end = [], time.perf_counter() + 0.5
        while time.perf_counter() < end:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(float(np.median(times)) * 1e3, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    env = dict(os.environ, JITCL_THREADS=str(options.threads),
               OPENBLAS_NUM_THREADS=str(options.threads))
    running = {e: subprocess.Popen([sys.executable, __file__, "--worker", e], env=env, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for e in ("jitcl", "numpy")}
    ms: dict[str, list[float]] = {e: [] for e in running}
    for process in running.values():
        process.stdout.readline()
    for _ in range(options.rounds):
        for engine, process in running.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            ms[engine].append(float(process.stdout.readline()))
    for process in running.values():
        process.stdin.close()
        process.wait()
    ratios = np.array(ms["jitcl"]) / np.array(ms["numpy"])
    for engine, found in ms.items():
        print(f"{engine:6s} median {np.median(found):6.2f} ms, turns {np.round(found, 1)}")
    print(f"ratio  median {np.median(ratios):.2f}, worst round {ratios.max():.2f}")


if __name__ == "__main__":
    main()
