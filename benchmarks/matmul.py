#!/usr/bin/env python3
"""A 1024x1024x1024 fp32 product on jitcl's CPU path beside NumPy's, in turns of half a second.

    matmul.py [--rounds 12] [--threads 2]

Each engine runs in a process of its own, so that neither meets the other's waiting threads. Prints
the median ms of each turn, and the ratio of medians round by round.
"""

from __future__ import annotations

import argparse

import numpy as np

from jitcl.bench.contest import Contest
from jitcl.bench.openers import JitclEngine
from jitcl.bench.processes import Entrant

SIZE = 1024
TURN = 0.5                                   # seconds


def operands() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.random((SIZE, SIZE), dtype=np.float32) for name in "ab"}


def open_jitcl(threads: int) -> JitclEngine:
    import jitcl
    model = jitcl.parse(f"graph @product(%a: f32[{SIZE},{SIZE}], %b: f32[{SIZE},{SIZE}]) {{\n"
                        f"  %y = matmul(%a, %b)\n  return %y\n}}\n")
    return JitclEngine(model, operands(), "cpu", threads, {})


class NumPy:
    """NumPy's product, by the BLAS that it comes with; its threads are set by the environment."""

    about = {"version": np.__version__}

    def __init__(self) -> None:
        self.a, self.b = operands().values()

    def run(self) -> dict[str, np.ndarray]:
        return {"y": self.a @ self.b}


def open_numpy(threads: int) -> NumPy:
    return NumPy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    entrants = [Entrant("jitcl", f"{__file__}:open_jitcl"),
                Entrant("numpy", f"{__file__}:open_numpy", peer=True)]
    with Contest(entrants, options.threads) as contest:
        contest.open()
        contest.time(options.rounds, TURN)
    for entry in contest.entries:
        if entry.timing is None:
            raise SystemExit(f"{entry.name}: {entry.error}")
        ms = 1e3 * np.array(entry.timing.rounds)
        print(f"{entry.name:6s} median {np.median(ms):6.2f} ms, turns {np.round(ms, 1)}")
    ours = contest.entries[0]
    np.testing.assert_array_less(ours.difference, 1e-5)
    print(f"ratio  median {ours.ratio.median:.2f}, worst round {ours.ratio.worst:.2f}")


if __name__ == "__main__":
    main()
