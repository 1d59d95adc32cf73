"""Faults at random times and places: build, load, launch, wait, read and allocation.

Crashes fall only on worker processes, as a driver's do that are not in its compiler's reach of the
user's process; everything else falls on both. Seeds are fixed, and a process meets a bounded number
of faults, so that tries again come to an end.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitcl.codegen.plan import KernelSource
from jitcl.devices.opencl import building
from tests.drivers import posing
from tests.drivers.posing import POSES, Outcome, run_python
from tests.faults.models import Case, case, missing
from tests.faults.scenarios import DRIVERS, WORKER

pytestmark = posing.needed()
OWN = ("superres", "block")
REAL = ("mnist8", "oww_embedding", "squeezenet1.0_fp16", "stories260K_kv_int4")
POSED = ("mali-g78", "mali-t860", "mali-g52", "adreno-640")
WANTED = 50                             # faults
# That a process may take: PoCL 3.0 needs 13 s of a quiet core for each of oww_embedding's tiles of
# 128 x 128 halves, and a fault in a run can have all 14 of them built again.
SECONDS = 600


def run_once(which: Case, driver: str, pose: str, settings: dict[str, str | int],
             cache: Path, precision: str = "high") -> Outcome:
    posed = POSES[f"{pose}:{driver}"]
    device = "opencl:" + str(posed.info["CL_PLATFORM_NAME"])
    arguments = (str(which.path), str(which.golden), device, precision, 4)
    return run_python(f"from tests.faults.child import main\nmain(*{arguments!r})", cache=cache,
                      pose=posed, settings=settings, timeout=SECONDS)


def assert_unharmed(done: Outcome, which: Case, precision: str, what: str) -> None:
    """A right result or a JitclError; nothing left behind."""
    assert done.returncode == 0, f"{what}: {done.died}\n{done.stderr[-3000:]}"
    seen = done.value
    assert done.orphans == () and done.stats.live == {}, what
    assert seen["left"] == 0, f"{what}: {seen['left']} bytes of device memory"
    if seen["outcome"] == "right":
        assert seen["difference"] < which.tolerance(precision), what


def chaos(seed: int, models: tuple[str, ...], folder: Path) -> int:
    """One process under chaos, and one after it without: the faults that the first met."""
    rng = random.Random(seed)
    which, driver, pose = case(rng.choice(models)), rng.choice(DRIVERS), rng.choice(POSED)
    precision = rng.choice(("high", "low"))
    stages = rng.sample(("build", "reload", "launch", "finish", "wait", "read", "allocate"), 4)
    settings: dict[str, str | int] = {
        "chaos": f"seed={seed} percent={rng.choice((1, 4, 15))} most={rng.randint(1, 4)} "
                 f"at={','.join(stages)} crash_where=@{WORKER}"}
    if rng.random() < 0.3:
        settings["lost_after"] = rng.randint(5, 80)
    what = f"seed {seed}: {which.name} on {pose}:{driver}, {precision}, {settings}"
    done = run_once(which, driver, pose, settings, folder, precision)
    assert_unharmed(done, which, precision, what)
    after = run_once(which, driver, pose, {}, folder, precision)
    assert_unharmed(after, which, precision, f"after {what}")
    assert after.value["outcome"] == "right", f"after {what}: {after.value}"
    return done.stats.fired


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_little_chaos(seed, tmp_path):
    chaos(seed, OWN, tmp_path)


@pytest.mark.timeout(2100)
@pytest.mark.parametrize("part", [
    pytest.param(k, marks=pytest.mark.slow if k < 2 else pytest.mark.long) for k in range(4)])
def test_fifty_faults(part, tmp_path):
    models = OWN + tuple(m for m in REAL if not missing(m))
    faults = seed = 0
    while faults < WANTED:
        faults += chaos(1000 * (part + 1) + seed, models, tmp_path / str(seed))
        seed += 1
        assert seed < 100, f"only {faults} faults in {seed} runs"


def test_a_driver_that_gives_no_build_log(monkeypatch):
    """Found by chaos: PoCL says INVALID_PROGRAM when it is asked why a build failed."""
    class Refusing:
        def __init__(self, *_: object) -> None: ...

        def _build(self, *_: object) -> None:
            raise RuntimeError("clBuildProgram failed: BUILD_PROGRAM_FAILURE")

        def get_build_info(self, *_: object) -> str:
            raise RuntimeError("clGetProgramBuildInfo failed: INVALID_PROGRAM")

    monkeypatch.setattr(building.cl._cl, "_Program", Refusing)
    source = KernelSource("k_1", "__kernel void k_1() {}", "opencl")
    with pytest.raises(building.RefusedBuild, match="BUILD_PROGRAM_FAILURE"):
        building.from_source(None, SimpleNamespace(name="Mali"), [source], ())
