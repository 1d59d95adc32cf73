"""A real driver that dies: PoCL 3.0, told to compile for a CPU that its library was not made for,
takes the process down over 16-wide arithmetic (SIGSEGV, "LLVM ERROR: Do not know how to scalarize"
or a hang, by the kernel). Nothing is posed here.

Each run is a process of its own. They share a cache, in which the probes' answers are found once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from jitcl.devices.opencl import pocl
from tests.devices import needs_a_real_crash
from tests.real_models import MODELS, absent, goldens

ROOT = Path(__file__).resolve().parents[1]
SUPERRES = ROOT / "examples" / "superres-x3.onnx"
DEADLY = {"JITCL_POCL_CPU": "znver3"}
FORCED = {**DEADLY, "JITCL_TARGET": "max_vector_width=16,vector_width=16"}
SECONDS = 10                    # after which a build counts as hung
ERROR = 2e-3                    # of the largest magnitude: one f32 sum in another order

GRAPH = """
graph @small(%x: f32[1,8,24,24], %w: f32[16,8,3,3]) {
  %1 = conv(%x, %w) {strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1}
  %2 = sigmoid(%1)
  %3 = mul(%1, %2)
  %y = softmax(%3) {axis=-1}
  return %y
}
"""

CHILD = """
import json, logging, sys
import numpy as np
import jitcl
from jitcl.codegen.variants import features
from jitcl.devices.opencl import isolation
from jitcl.devices.select import open_device

class Told(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

logging.getLogger("jitcl").addHandler(Told(logging.WARNING))
path, feeds, out = sys.argv[1:]
device = open_device("opencl:pocl")
probing = sum(pool.started for pool in isolation._pools)
source = jitcl.parse(open(path).read()) if path.endswith(".jitcl") else path
model = jitcl.compile(source, device=device)
with np.load(feeds) as z:
    np.savez(out, **model.run(dict(z)))
report = model.report()
opencl = [k for k in model.plan.kernels if k.language == "opencl"]
print(json.dumps({
    "cpu": device.session.found.compiler_cpu, "told": Told.lines, "warm": report.from_cache,
    "workers": sum(pool.started for pool in isolation._pools) - probing,
    "built": device.counters["programs_built_from_source"],
    "stepped": [[s.step, s.variant, s.why] for s in report.stepped_down],
    "features": sorted(set().union(*map(features, opencl))), "kernels": len(opencl),
    "sources": [k.body for k in opencl], "form": device.target.multiply_add,
    "width": device.target.max_vector_width,
    "faults": [[f.entry, f.stage, f.kind, f.signature, list(f.features), f.when]
               for f in device.faults.faults]}))
"""


pytestmark = [needs_a_real_crash(), pytest.mark.timeout(900)]


@dataclass
class Bench:
    """A model with its feeds, in a folder with a cache of its own."""

    folder: Path
    model: Path
    feeds: Mapping[str, np.ndarray]

    def run(self, variables: Mapping[str, str]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What a process with these settings saw, and the model's outputs."""
        np.savez(self.folder / "in.npz", **self.feeds)
        done = self.python("-c", CHILD, str(self.model), str(self.folder / "in.npz"),
                           str(self.folder / "out.npz"), variables=variables)
        seen: dict[str, Any] = json.loads(done.stdout)
        assert seen["cpu"] == variables.get("JITCL_POCL_CPU", seen["cpu"])
        with np.load(self.folder / "out.npz") as out:
            return seen, [out[name] for name in out.files]

    def python(self, *arguments: str, variables: Mapping[str, str]
               ) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("JITCL_")}
        env |= {"JITCL_CACHE_DIR": str(self.folder / "cache"), "JITCL_BUILD_SECONDS": str(SECONDS),
                "POCL_CACHE_DIR": str(self.folder / "pocl"), **variables}
        (self.folder / "pocl").mkdir(exist_ok=True)
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, text=True,
                              capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done


def softmax_of_silu_of_conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What GRAPH computes, in f64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, w)
    silu = conv / (1 + np.exp(-conv))
    e = np.exp(silu - silu.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """GRAPH. Its cache knows what the probes found, from a run that nothing was forced in."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "small.jitcl").write_text(GRAPH)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((1, 8, 24, 24)).astype(np.float32),
             "w": rng.standard_normal((16, 8, 3, 3)).astype(np.float32)}
    return Bench(folder, folder / "small.jitcl", feeds)


@pytest.fixture(scope="module")
def unforced(small: Bench) -> tuple[dict[str, Any], list[np.ndarray]]:
    return small.run(DEADLY)


@pytest.fixture(scope="module")
def forced(small: Bench, unforced: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    return small.run(FORCED)


def check(outputs: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= ERROR * np.abs(want).max()


def stepped_down_and_told(seen: dict[str, Any]) -> None:
    """Kernels of 16 lanes failed, were written otherwise, and one line says so."""
    failed = [f for f in seen["faults"] if "vec16" in f[4]]
    assert failed and all(kind in ("crash", "hang") for _, _, kind, *_ in failed)
    assert "vec16" not in seen["features"] and seen["kernels"] and seen["width"] == 16
    assert not [f for f in seen["faults"] if f[0] == "program-binaries"]
    (line,) = (text for text in seen["told"] if "its driver failed on" in text)
    assert any(signature.split(": ")[-1] in line for _, _, _, signature, _, _ in failed)
    for step, variant, why in seen["stepped"][:4]:
        assert variant == "vectors-8" and step in line and why
    assert "run with vectors of at most 8" in line or "runs with vectors of at most 8" in line
    assert "jitcl cache retry" in line


# ---- forced upon 16 lanes


@pytest.mark.slow
def test_it_finishes_with_right_results_and_says_what_happened(small, forced):
    seen, outputs = forced
    check(outputs, [softmax_of_silu_of_conv(**small.feeds)])
    assert seen["stepped"] and not seen["warm"] and seen["workers"] > 0
    stepped_down_and_told(seen)


@pytest.mark.slow
def test_the_second_process_meets_no_crash_and_is_warm(small, forced):
    first, _ = forced
    seen, outputs = small.run(FORCED)
    check(outputs, [softmax_of_silu_of_conv(**small.feeds)])
    assert seen["faults"] == first["faults"] and seen["stepped"] == first["stepped"]
    assert seen["warm"] and seen["workers"] == seen["built"] == 0
    assert seen["told"] == []


@pytest.mark.slow
def test_retry_has_it_tried_again(small, forced, tmp_path):
    first, _ = forced
    shutil.copytree(small.folder / "cache", tmp_path / "cache")
    bench = Bench(tmp_path, small.model, small.feeds)
    said = bench.python("-m", "jitcl", "cache", "retry", variables=FORCED).stdout
    assert re.search(rf": {len(first['faults'])} faults? (is|are) forgotten", said)
    seen, outputs = bench.run(FORCED)
    check(outputs, [softmax_of_silu_of_conv(**small.feeds)])
    assert not seen["warm"] and seen["faults"]
    assert min(f[-1] for f in seen["faults"]) > max(f[-1] for f in first["faults"])
    stepped_down_and_told(seen)


# ---- left alone


@pytest.mark.slow
def test_unforced_the_probe_keeps_schedules_off_it(small, unforced):
    seen, outputs = unforced
    check(outputs, [softmax_of_silu_of_conv(**small.feeds)])
    assert seen["width"] == 8 and "vec16" not in seen["features"] and "vec8" in seen["features"]
    assert seen["faults"] == [] and seen["stepped"] == [] and seen["workers"] == 0
    (line,) = seen["told"]
    assert "probe vec16: the driver" in line


def calls_fma(seen: dict[str, Any]) -> bool:
    return any(re.search(r"\bfma\(", body) for body in seen["sources"])


@pytest.mark.slow
def test_the_form_of_multiply_add_is_the_one_that_is_fast_there(unforced, small, tmp_path):
    """fma() is a library call where the compiler's CPU and the library's differ."""
    seen, _ = unforced
    assert seen["form"] == "plain" and not calls_fma(seen)
    assert any(re.search(r"\w \* \w", body) for body in seen["sources"])
    well, outputs = Bench(tmp_path, small.model, small.feeds).run({})
    check(outputs, [softmax_of_silu_of_conv(**small.feeds)])
    assert pocl.INLINES_AVX512.search(well["cpu"]), well["cpu"]
    assert well["form"] == "fma" and calls_fma(well)
    assert well["width"] == 16 and not well["faults"] and not well["told"]


# ---- real models


@pytest.mark.long                       # the fault matrix has real models on posed drivers
@pytest.mark.parametrize("name", ["superres-x3", "squeezenet1.0_fp32"])
def test_a_real_model(name, tmp_path):
    if name == "superres-x3":
        path = SUPERRES
        model = onnx.load(path)
        (given,) = model.graph.input
        shape = [d.dim_value or (1 if i == 0 else 48)
                 for i, d in enumerate(given.type.tensor_type.shape.dim)]
        feeds = {given.name: np.random.default_rng(1).random(shape, np.float32)}
        wanted = ReferenceEvaluator(model).run(None, feeds)
    else:
        path = MODELS / f"{name}.onnx"
        if absent(name):
            pytest.skip(absent(name))
        feeds, outputs = goldens(name)[0]
        wanted = list(outputs.values())
    bench = Bench(tmp_path, path, feeds)
    first, outputs = bench.run(FORCED)
    check(outputs, wanted)
    stepped_down_and_told(first)
    second, outputs = bench.run(FORCED)
    check(outputs, wanted)
    assert second["warm"] and second["workers"] == 0 and second["told"] == []
    assert second["faults"] == first["faults"]
