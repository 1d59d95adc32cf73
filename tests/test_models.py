"""Real models against golden runs on real inputs: right, repeatable, wholly compiled, warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitcl
from tests.devices import present

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
NAMES = ("squeezenet1.0_fp32", "squeezenet1.0_fp16", "mnist8", "ultraface_rfb320", "yolox_nano",
         "selfie_segmentation", "super_resolution_espcn", "fns_candy_stdops", "hyperlpr_y5fu_320",
         "oww_melspectrogram", "oww_embedding", "minilm_l6_v2")
QUICK = ("mnist8", "squeezenet1.0_fp16", "oww_embedding")
DEVICES = [s for s in present() if s != "reference"]

pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="the folder of real models is not there")


def goldens(name: str) -> list[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
    """(feeds, expected outputs) of each golden call."""
    found = []
    for path in sorted((MODELS / "golden").glob(f"{name}.*.npz")):
        z = np.load(path)
        feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
        found.append((feeds, [z[k] for k in z.files if k.startswith("out")]))
    return found


def error(out: np.ndarray, golden: np.ndarray) -> float:
    """Largest difference, in units of the golden output's largest magnitude."""
    assert out.shape == golden.shape
    assert np.isfinite(out.astype(np.float64)).all()
    if not golden.size:
        return 0.0
    out, golden = out.astype(np.float64), golden.astype(np.float64)
    return float(np.abs(out - golden).max() / (np.abs(golden).max() + 1e-6))


def check_replay(name: str, device: str) -> None:
    model = jitcl.compile(MODELS / f"{name}.onnx", device=device)
    tolerance = 2e-2 if "fp16" in name else 2e-3
    for feeds, expected in goldens(name):
        outputs = model.run(feeds)
        for t, golden in zip(model.outputs, expected):
            assert error(outputs[t.name], golden) < tolerance
    report = model.report()
    assert report.steps and not report.host


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", QUICK)
def test_replay(name: str, device: str) -> None:
    check_replay(name, device)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in QUICK])
def test_replay_all(name: str, device: str) -> None:
    check_replay(name, device)


def check_repeatable(name: str, device: str, runs: int) -> None:
    """Bit-for-bit equal; inputs changed after the call and outputs kept across runs change nothing."""
    model = jitcl.compile(MODELS / f"{name}.onnx", device=device)
    feeds, _ = goldens(name)[0]
    first = model.run(feeds)
    kept = {n: v.copy() for n, v in first.items()}
    for _ in range(runs):
        mine = {n: v.copy() for n, v in feeds.items()}
        again = model.run(mine)
        for v in mine.values():
            v[...] = 0
        for n, v in again.items():
            np.testing.assert_array_equal(v.view(np.uint8), kept[n].view(np.uint8))
            v[...] = 0
    for n, v in first.items():
        np.testing.assert_array_equal(v.view(np.uint8), kept[n].view(np.uint8))


@pytest.mark.parametrize("device", DEVICES)
def test_repeatable(device: str) -> None:
    check_repeatable("mnist8", device, 100)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_repeatable_all(name: str, device: str) -> None:
    check_repeatable(name, device, 100)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_changes_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds, _ = goldens("oww_embedding")[0]
    model = jitcl.compile(MODELS / "oww_embedding.onnx", device="cpu")
    monkeypatch.setenv("JITCL_THREADS", "1")
    alone = model.run(feeds)
    monkeypatch.setenv("JITCL_THREADS", str(threads))
    for name, value in model.run(feeds).items():
        np.testing.assert_array_equal(value, alone[name])


FIRST_RESULT = """
import json, sys, time
start = time.perf_counter()
import numpy as np
import jitcl
z = np.load(sys.argv[2])
feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
model = jitcl.compile(sys.argv[1], device=sys.argv[3])
model.run(feeds)
print(json.dumps({"seconds": time.perf_counter() - start, **model.cache.stats.as_dict(),
                  "heavy": [m for m in ("numba", "onnx") if m in sys.modules]}))
"""


def first_result(name: str, device: str, cache: Path) -> dict[str, object]:
    """Seconds to the first result in a fresh process, imports included, with the cache's counters."""
    golden = sorted((MODELS / "golden").glob(f"{name}.*.npz"))[0]
    done = subprocess.run([sys.executable, "-c", FIRST_RESULT, str(MODELS / f"{name}.onnx"), str(golden), device],
                          env={**os.environ, "JITCL_CACHE_DIR": str(cache)}, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("device", DEVICES)
def test_warm_start_builds_nothing(device: str, tmp_path: Path) -> None:
    cold = first_result("mnist8", device, tmp_path)
    assert cold["builds"]
    warm = first_result("mnist8", device, tmp_path)
    assert warm["builds"] == 0 and warm["misses"] == 0
    assert warm["heavy"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("device, warm_s", [("cpu", 1.0), ("opencl:pocl", 1.5)])
def test_start_times(device: str, warm_s: float, tmp_path: Path) -> None:
    if device not in DEVICES:
        pytest.skip(f"{device} is not on this machine")
    assert first_result("yolox_nano", device, tmp_path)["seconds"] < 30  # type: ignore[operator]
    warm = [first_result("yolox_nano", device, tmp_path) for _ in range(3)]
    assert all(w["builds"] == 0 for w in warm)
    assert min(w["seconds"] for w in warm) < warm_s  # type: ignore[type-var]


@pytest.mark.timeout(300)
def test_eight_processes_share_one_empty_cache(tmp_path: Path) -> None:
    golden = sorted((MODELS / "golden").glob("mnist8.*.npz"))[0]
    env = {**os.environ, "JITCL_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FIRST_RESULT, str(MODELS / "mnist8.onnx"), str(golden), "cpu"]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for _ in range(8)]
    for p in running:
        _, err = p.communicate(timeout=240)
        assert p.returncode == 0, err[-2000:]
