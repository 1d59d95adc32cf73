"""What a process of the fault matrix does: compile, run, compare; prints what it saw as JSON."""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import jitcl
from jitcl.errors import JitclError
from tests.drivers.posing import read_stats

ENOUGH = 0.3                            # seconds of runs, where they are short
MOST_RUNS = 60


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


def main(path: str, golden: str, device: str, precision: str, runs: int) -> None:
    """Compile, run once and at least `runs` times more; each result is compared."""
    told = Told()
    logging.getLogger("jitcl").addHandler(told)
    seen: dict[str, Any] = {"outcome": "right", "told": told.lines}
    try:
        seen |= _measure(path, golden, device, precision, runs)
    except JitclError as error:
        seen |= {"outcome": type(error).__name__, "error": str(error)}
    gc.collect()
    stats = os.environ.get("POSE_STATS")
    held = read_stats(Path(stats)).live.get(os.getpid(), {}) if stats else {}
    print(json.dumps({**seen, "left": held.get("bytes", 0)}))


def _measure(path: str, golden: str, device: str, precision: str, runs: int) -> dict[str, Any]:
    with np.load(golden) as z:
        feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
        expected = [z[k] for k in z.files if k.startswith("out")]
    begin = time.perf_counter()
    model = jitcl.compile(path, device=device, precision=precision)
    outputs = model.run(feeds)
    start, worst = time.perf_counter() - begin, 0.0
    times: list[float] = []
    cpu: list[float] = []
    while True:
        worst = max([worst, *(difference(outputs[t.name], g)
                              for t, g in zip(model.outputs, expected))])
        if len(times) >= runs and (sum(times) > ENOUGH or len(times) >= MOST_RUNS):
            break
        begin, busy = time.perf_counter(), time.process_time()
        outputs = model.run(feeds)
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - busy)
    plan = model.plan
    assert plan is not None
    steps = [s for s in plan.steps if 0 not in s.global_size]
    counters = getattr(model.device, "counters", {})
    return {"difference": worst, "start": start, "runs": times, "cpu": cpu, "steps": len(steps),
            "peak": plan.peak_bytes,
            "variants": sorted({s.variant for s in steps if s.variant}),
            "built": counters.get("kernels_built", 0),
            "loaded": counters.get("kernels_loaded", 0),
            "halves": sum("half" in k.body for k in plan.kernels)}
