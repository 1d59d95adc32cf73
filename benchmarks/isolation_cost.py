#!/usr/bin/env python3
"""What isolation and result checks cost on a healthy driver: cold and warm starts, in turns.

    isolation_cost.py MODEL... [--device opencl:pocl] [--rounds 5]

Every start is a fresh process with fresh cache directories; what was probed of the device is
copied into them, since that is done once a driver and not once a model. Prints the median seconds
from `import jitcl` to the first result, and the ratios to a start without isolation and checks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = {                            # what a process is started with
    "bare": {"JITCL_ISOLATION": "never", "JITCL_CHECKS": "0"},
    "default": {"JITCL_ISOLATION": "untrusted", "JITCL_CHECKS": "1"},
    "always": {"JITCL_ISOLATION": "always", "JITCL_CHECKS": "1"},
}

START = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
import jitcl
model = jitcl.compile(sys.argv[1], device=sys.argv[2])
rng = np.random.default_rng(0)
def feed(t):
    shape = [d if isinstance(d, int) else 1 for d in t.shape]
    if t.dtype.startswith("f"):
        return rng.standard_normal(shape).astype({"f16": "float16", "f64": "float64"}.get(
            t.dtype, "float32"))
    return np.ones(shape, {"bool": "bool", "i32": "int32"}.get(t.dtype, "int64"))
model.run({t.name: feed(t) for t in model.inputs if not t.optional})
print(json.dumps(time.perf_counter() - begin))
"""


def start(model: Path, device: str, cache: Path, mode: str) -> float:
    """Seconds from import to the first result in a fresh process."""
    env = dict(os.environ, JITCL_CACHE_DIR=str(cache), PYOPENCL_NO_CACHE="1", **MODES[mode])
    done = subprocess.run([sys.executable, "-c", START, str(model), device], env=env, text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{model.name} on {device}, {mode}: exit status {done.returncode}\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def probed(device: str, folder: Path) -> Path:
    """A cache directory that holds what is probed of the device, and nothing else."""
    cache = folder / "probed"
    env = dict(os.environ, JITCL_CACHE_DIR=str(cache))
    code = "import sys, jitcl.devices.select as s; s.open_device(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, device], env=env, check=True)
    return cache


def measure(model: Path, device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of a cold and a warm start, by mode; modes take turns."""
    cold: dict[str, list[float]] = {m: [] for m in MODES}
    warm: dict[str, list[float]] = {m: [] for m in MODES}
    with tempfile.TemporaryDirectory(prefix="jitcl-isolation-") as name:
        fresh = probed(device, Path(name))
        for n in range(rounds):
            for mode in MODES:
                cache = Path(name) / f"{mode}-{n}"
                shutil.copytree(fresh, cache)
                cold[mode].append(start(model, device, cache, mode))
                warm[mode].append(start(model, device, cache, mode))
                shutil.rmtree(cache)
    return {m: {"cold": statistics.median(cold[m]), "warm": statistics.median(warm[m])}
            for m in MODES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--device", default="opencl:pocl")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'model':28} {'mode':8} {'cold s':>8} {'ratio':>6} {'warm s':>8} {'ratio':>6}")
    for model in options.models:
        seconds = measure(model, options.device, options.rounds)
        for mode, s in seconds.items():
            bare = seconds["bare"]
            print(f"{model.stem:28} {mode:8} {s['cold']:8.2f} {s['cold'] / bare['cold']:6.2f} "
                  f"{s['warm']:8.2f} {s['warm'] / bare['warm']:6.2f}", flush=True)


if __name__ == "__main__":
    main()
