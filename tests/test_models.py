"""Real models against golden runs on real inputs: right, wholly compiled, warm; their text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitcl
from jitcl.devices.cpu import CpuDevice
from jitcl.errors import NeedsValue
from jitcl.ir.graph import Graph, Node, const, rebuild
from jitcl.ir.parser import load_graph
from jitcl.ir.printer import save_graph
from jitcl.ops import OPS
from jitcl.ops.builder import infer
from jitcl.passes.base import run_passes
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.runtime.source import open_source
from jitcl.target import Target
from tests.devices import opened, present
from tests.generated.kernels import GPU
from tests.real_models import MODELS, goldens, needs_models
from tests.rounding import of_model

NAMES = ("squeezenet1.0_fp32", "squeezenet1.0_fp16", "mnist8", "ultraface_rfb320", "yolox_nano",
         "selfie_segmentation", "super_resolution_espcn", "fns_candy_stdops", "hyperlpr_y5fu_320",
         "oww_melspectrogram", "oww_embedding", "minilm_l6_v2", "stories260K_kv",
         "stories260K_kv_int4", "ultraface_qop_u8", "dtln_1", "gtcrn_stream_simple", "silero_vad")
QUICK = ("mnist8", "squeezenet1.0_fp16")
DEVICES = [s for s in present() if s != "reference"]
CPU_AND_GPU = {"cpu": CpuDevice().target, "gpu": GPU}

pytestmark = needs_models


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
    for feeds, expected in goldens(name):
        outputs = model.run(feeds)
        assert list(expected) == [t.name for t in model.outputs]
        for output, golden in expected.items():
            assert error(outputs[output], golden) < of_model(name)
    report = model.report()
    assert report.steps and not report.host


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", QUICK)
def test_replay(name: str, device: str) -> None:
    check_replay(name, device)


def places(turn: int, name: str) -> set[str]:
    """Where slow runs take a model: on the CPU path and on one OpenCL driver, in turn."""
    if name == "stories260K_kv":            # it writes a story on both: tests/test_generation.py
        return set()
    drivers = [s for s in DEVICES if s != "cpu"]
    return {"cpu", *drivers[turn % max(1, len(drivers)):][:1]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "device"), [
    pytest.param(name, device,
                 marks=pytest.mark.slow if device in places(k, name) else pytest.mark.long)
    for k, name in enumerate(n for n in NAMES if n not in QUICK) for device in DEVICES])
def test_replay_all(name: str, device: str) -> None:
    check_replay(name, device)


# -- text ------------------------------------------------------------------------------------


def check_text(name: str, target: Target, tmp_path: Path) -> None:
    """Each graph from the import to the last pass, dumped as text, is read back as the same."""
    feeds, _ = goldens(name)[0]
    source = open_source(MODELS / f"{name}.onnx")
    shapes, values = {n: a.shape for n, a in feeds.items()}, {}
    while True:
        try:
            graph = source.graph(shapes, values)
            break
        except NeedsValue as needed:            # silero_vad: an If over the sample rate
            values[needed.input_name] = feeds[needed.input_name]
    stages = {"import": graph}
    run_passes(graph, pipeline(target, Options()),
               observe=lambda after, graph, seconds: stages.setdefault(after, graph))
    assert len(stages) > 5
    for after in ("import", list(stages)[-1]):
        path = tmp_path / f"{after}.jitcl"
        save_graph(stages[after], path)
        again = load_graph(path, known_ops=OPS, infer=infer)
        assert again == by_elements(stages[after])


def by_elements(graph: Graph) -> Graph:
    """Constants that are known by how they were made as their elements."""
    def change(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op == "const":
            return const(node.data, node.type.dtype)
        return node if node.inputs == inputs else node.with_inputs(inputs)
    return rebuild(graph, change)


@pytest.mark.parametrize(("name", "target"), [
    pytest.param(name, target, marks=() if name in (*QUICK, "yolox_nano") else
                 pytest.mark.slow if k % 2 == j else pytest.mark.long)      # one target in turn
    for k, name in enumerate(NAMES) for j, target in enumerate(CPU_AND_GPU)])
def test_dumped_text_is_the_same_graph(name: str, target: str, tmp_path: Path) -> None:
    check_text(name, CPU_AND_GPU[target], tmp_path)


# -- starting ----------------------------------------------------------------------------------


FIRST_RESULT = """
import json, sys, time
import numpy as np
import jitcl
z = np.load(sys.argv[2])
feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
model = jitcl.compile(sys.argv[1], device=sys.argv[3])
model.run(feeds)
print(json.dumps({"seconds": time.process_time(), **model.cache.stats.as_dict(),
                  "heavy": [m for m in ("numba", "onnx") if m in sys.modules]}))
"""


def first_result(name: str, device: str, cache: Path) -> dict[str, object]:
    """CPU seconds until the first result of a fresh process, whatever else the machine does; and
    the cache's counters.
    """
    golden = sorted((MODELS / "golden").glob(f"{name}.*.npz"))[0]
    command = [sys.executable, "-c", FIRST_RESULT, MODELS / f"{name}.onnx", golden, device]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300,
                          env={**os.environ, "JITCL_CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.in_turn
@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", DEVICES)
def test_warm_start_builds_nothing(device: str, tmp_path: Path) -> None:
    cold = first_result("mnist8", device, tmp_path)
    assert cold["builds"]
    warm = first_result("mnist8", device, tmp_path)
    assert warm["builds"] == 0 and warm["misses"] == 0
    assert warm["heavy"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("device, warm_s", [
    ("cpu", 1.0), pytest.param("opencl:pocl", 1.5, marks=pytest.mark.long)])
def test_start_times(device: str, warm_s: float, tmp_path: Path) -> None:
    opened(device)
    assert first_result("yolox_nano", device, tmp_path)["seconds"] < 30  # type: ignore[operator]
    warm = [first_result("yolox_nano", device, tmp_path) for _ in range(3)]
    assert all(w["builds"] == 0 for w in warm)
    assert min(w["seconds"] for w in warm) < warm_s  # type: ignore[type-var]
