"""What a process of the fault matrix does: compile, run, compare; prints what it saw as JSON.

Two processes that are given one folder for `turns` run in turns of it, so that they can be compared
on a machine that is busy with other things: both meet the same neighbours.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

import jitcl
from jitcl.errors import JitclError
from tests.drivers.posing import read_stats

ENOUGH = 0.3                            # seconds of runs, where they are short
MOST_RUNS = 60
TURN = 0.04                             # seconds of runs, before it is the other's turn
PATIENCE = 30.0                         # seconds to wait for the other


class Told(logging.Handler):
    """Keeps what jitcl tells the user."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def difference(out: np.ndarray, golden: np.ndarray) -> float:
    """Largest difference, in units of the golden output's largest magnitude; infinite where it is
    no number or of another shape.
    """
    out, golden = out.astype(np.float64), golden.astype(np.float64)
    if out.shape != golden.shape or not np.isfinite(out).all():
        return float("inf")
    return float(np.abs(out - golden).max() / (np.abs(golden).max() + 1e-6)) if out.size else 0.0


def main(path: str, golden: str, device: str, precision: str, runs: int, turns: str = "") -> None:
    """Compile, run once and at least `runs` times more; each result is compared."""
    told = Told()
    logging.getLogger("jitcl").addHandler(told)
    seen: dict[str, Any] = {"outcome": "right", "told": told.lines}
    try:
        seen |= _measure(path, golden, device, precision, runs, turns)
    except JitclError as error:
        seen |= {"outcome": type(error).__name__, "error": str(error)}
    gc.collect()
    stats = os.environ.get("POSE_STATS")
    held = read_stats(Path(stats)).live.get(os.getpid(), {}) if stats else {}
    print(json.dumps({**seen, "left": held.get("bytes", 0)}))


def in_turns(folder: str, enough: Callable[[], bool]) -> Iterator[None]:
    """Once for each run until there are enough; with a folder, in turns with its other process."""
    if not folder:
        while not enough():
            yield
        return
    (Path(folder) / f"{os.getpid()}.ready").touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(Path(folder).glob("*.ready"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    while not enough():
        with filelock.FileLock(Path(folder) / "turn").acquire(poll_interval=0.001):
            end = time.perf_counter() + TURN
            while time.perf_counter() < end and not enough():
                yield
        time.sleep(0.005)               # the other waits for the lock by looking every millisecond


def _measure(path: str, golden: str, device: str, precision: str, runs: int, turns: str
             ) -> dict[str, Any]:
    with np.load(golden) as z:
        feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
        expected = [z[k] for k in z.files if k.startswith("out")]
    begin = time.perf_counter()
    model = jitcl.compile(path, device=device, precision=precision)
    outputs = model.run(feeds)
    start = time.perf_counter() - begin
    times: list[float] = []

    def wrong() -> float:
        return max(difference(outputs[t.name], g) for t, g in zip(model.outputs, expected))

    worst = wrong()
    for _ in in_turns(turns, lambda: len(times) >= runs and (
            sum(times) > ENOUGH or len(times) >= MOST_RUNS)):
        begin = time.perf_counter()
        outputs = model.run(feeds)
        times.append(time.perf_counter() - begin)
        worst = max(worst, wrong())
    plan = model.plan
    assert plan is not None
    steps = [s for s in plan.steps if 0 not in s.global_size]
    counters = getattr(model.device, "counters", {})
    return {"difference": worst, "start": start, "runs": times, "steps": len(steps),
            "peak": plan.peak_bytes,
            "variants": sorted({s.variant for s in steps if s.variant}),
            "built": counters.get("kernels_built", 0),
            "loaded": counters.get("kernels_loaded", 0),
            "halves": sum("half" in k.body for k in plan.kernels)}
