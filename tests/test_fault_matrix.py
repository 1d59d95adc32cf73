"""The fault matrix (tests/faults): whatever a driver does, a right result or a JitclError, and the
next run remembers. A handful on small models; each row on a real model with `-m slow`; more by
benchmarks/fault_matrix.py.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests import lm_models
from tests.drivers import posing
from tests.faults.child import difference
from tests.faults.models import case, missing
from tests.faults.running import check
from tests.faults.scenarios import HALF, KERNEL, SCENARIOS, Scenario

pytestmark = posing.needed()
QUICK = [s for s in SCENARIOS if s.quick]


def rows(chosen: list[Scenario]) -> pytest.MarkDecorator:
    """Each scenario on each of its drivers. Where nothing is posed, test_real_abort.py has the same
    death on a smaller model.
    """
    return pytest.mark.parametrize("scenario, driver", [
        pytest.param(s, d, id=f"{s.name}-{d}", marks=() if s.pose else pytest.mark.long)
        for s in chosen for d in s.drivers])


def passes(scenario: Scenario, driver: str, model: str, tmp_path) -> None:
    if why := scenario.impossible() or missing(model):
        pytest.skip(why)
    result = check(scenario, driver, case(model), tmp_path / "cache")
    assert result.problems == []
    assert result.outcome == "right"


@rows([dataclasses.replace(s, drivers=s.drivers[:1]) for s in QUICK])
def test_quick(scenario, driver, tmp_path):
    passes(scenario, driver, scenario.own, tmp_path)


# in turn on the drivers that a scenario is for
IN_TURN = [dataclasses.replace(s, drivers=(s.drivers[k % len(s.drivers)],))
           for k, s in enumerate(SCENARIOS)]
OTHERS = [dataclasses.replace(s, drivers=tuple(d for d in s.drivers if d not in t.drivers))
          for s, t in zip(SCENARIOS, IN_TURN)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@rows(IN_TURN)
def test_real_model(scenario, driver, tmp_path):
    passes(scenario, driver, scenario.models[0], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@rows(OTHERS)
def test_real_model_on_the_other_driver(scenario, driver, tmp_path):
    passes(scenario, driver, scenario.models[0], tmp_path)


def test_the_rows():
    assert len(SCENARIOS) >= 20 and len({s.name for s in SCENARIOS}) == len(SCENARIOS)
    for row in SCENARIOS:
        assert len(set(row.models)) >= 3 and row.says
        assert set(row.fires) | set(row.again) <= set(posing.ACTIONS)
        assert not set(row.again) & set(posing.CRASHES)


# ---- what a user sees

COMMAND = """
import sys
from jitcl.cli.main import main
sys.argv = ["jitcl", *{arguments!r}]
main()
"""


def command(tmp_path, *arguments: str) -> posing.Outcome:
    """`jitcl` on a Mali-G78 whose compiler has no instruction for some kernel with halves."""
    return posing.run_python(
        COMMAND.format(arguments=arguments), cache=tmp_path, pose=posing.POSES["mali-g78:intel"],
        rules=[f"abort /{KERNEL}.*({HALF['intel']})/"], timeout=200)


def prepared(folder: Path, model: str) -> tuple[Path, list[str], np.ndarray]:
    """The model's file, options that feed it, and its first output."""
    which = case(model)
    with np.load(which.golden) as z:
        feeds = {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}
        wanted = next(z[k] for k in z.files if k.startswith("out"))
    np.savez(folder / "feeds.npz", **feeds)
    return which.path, ["-i", str(folder / "feeds.npz")], wanted


@pytest.mark.parametrize("model", [
    pytest.param("halves", marks=pytest.mark.slow),
    pytest.param("squeezenet1.0_fp16", marks=pytest.mark.slow)])
def test_cannot_select(model, tmp_path):
    """It dies of "Cannot select: intrinsic %llvm.bifrost.2586" on kernels with halves."""
    if missing(model):
        pytest.skip(missing(model))
    path, feeds, wanted = prepared(tmp_path, model)
    done = command(tmp_path, "run", str(path), "-d", "opencl:arm", "--precision", "low", *feeds,
                   "-o", str(tmp_path / "out.npy"))
    assert done.returncode == 0, done.stderr
    assert difference(np.load(tmp_path / "out.npy"), wanted) < 2e-2
    assert done.stats.faults["abort"] >= 1
    told = [line for line in done.stderr.splitlines() if "Cannot select" in line]
    assert len(told) == 1
    assert "SIGABRT" in told[0] and "arithmetic in float32" in told[0], told

    again = command(tmp_path, "run", str(path), "-d", "opencl:arm", "--precision", "low", *feeds)
    assert again.returncode == 0
    assert again.stats.faults["abort"] == done.stats.faults["abort"]

    shown = command(tmp_path, "devices")
    assert shown.returncode == 0, shown.stderr
    assert "faults of opencl:" in shown.stdout
    assert "crash: SIGABRT: LLVM ERROR: Cannot select: intrinsic" in shown.stdout


WRITES = """
import jitcl
with jitcl.lm.load({folder!r}, device={device!r}, precision={precision!r}, memory={memory!r}) as m:
    m.ends = frozenset()
    print(m.generate("abc", max_new_tokens=12))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision, memory, kernels, spared", [
    ("low", "normal", HALF["intel"], False),        # the step after the prompt has no such kernel
    ("high", {"bits": 4, "block": 32}, "int4|& 15|0xf|>> 4", True)], ids=["halves", "four bits"])
def test_a_language_model_writes_where_the_compiler_aborts(precision, memory, kernels, spared,
                                                           tmp_path):
    """The text that `cpu` writes; one line says what happened, another that kernels of the step
    after the prompt are `spared` it; the second start meets no crash."""
    folder = str(lm_models.lettered("llama", tmp_path))
    options = {"folder": folder, "precision": precision, "memory": memory}
    wanted = posing.run_python(WRITES.format(device="cpu", **options), cache=tmp_path)
    found = [posing.run_python(
        WRITES.format(device="opencl:arm", **options), cache=tmp_path, timeout=250,
        pose=posing.POSES["mali-g78:intel"], rules=[f"abort /{KERNEL}.*({kernels})/"])
        for _ in range(2)]
    assert wanted.returncode == 0, wanted.stderr
    assert [done.returncode for done in found] == [0, 0], found[0].stderr + found[1].stderr
    assert wanted.stdout.strip() and [d.stdout for d in found] == [wanted.stdout] * 2
    first, second = (done.stats.faults["abort"] for done in found)
    assert second == first >= 1
    told = [line for line in found[0].stderr.splitlines() if "Cannot select" in line]
    assert ["SIGABRT in the compiler" in line for line in told] == [True, False][:1 + spared], (
        found[0].stderr)
    assert all("failed on such kernels before" in line for line in told[1:])
    assert "in the compiler" not in found[1].stderr
