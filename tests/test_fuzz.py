"""The fuzzer's fixed selection: the same graphs in each run. `python -m tests.fuzz` draws more."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from tests import devices
from tests.fuzz.drawing import Case
from tests.fuzz.engines import Verdict, ir_text, judge
from tests.fuzz.fixed import without_local_constants
from tests.fuzz.graphs import cases
from tests.fuzz.registry import DRAWS
from tests.fuzz.sized import judge_sizes

QUICK = {"refs": 10, "reference": 25, "cpu": 10}
LONG = {"reference": 500, "cpu": 500, "opencl:pocl": 100, "opencl:intel": 100}
SIZED = {"cpu": 200, "opencl:pocl": 40}
Judge = Callable[[Case, str], Verdict]


def fuzz(device: str, graphs: int, judge: Judge = judge) -> collections.Counter[str]:
    """Judges so many graphs; fails with the smallest failing one. Counts outcomes and ops."""
    count: collections.Counter[str] = collections.Counter()

    @settings(max_examples=graphs, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))
    @given(cases())
    def check(case: Case) -> None:
        verdict = judge(case, device)
        count.update([verdict.outcome, *case.ops()])
        if verdict.outcome not in ("ok", "undecided"):
            note(f"{verdict.outcome} on {device}: {verdict.detail}\n{ir_text(case)}\n{case!r}")
            raise AssertionError(verdict.outcome)

    with without_local_constants():
        check()
    return count


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("device", QUICK)
def test_a_few_graphs(device: str) -> None:
    assert fuzz(device, QUICK[device])["ok"] > 0.9 * QUICK[device]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", LONG)
def test_many_graphs(device: str) -> None:
    devices.opened(device)
    count = fuzz(device, LONG[device])
    assert count["ok"] > 0.98 * LONG[device]
    if LONG[device] >= 500:             # chance leaves out a few ops, not more
        assert len(set(DRAWS) - set(count)) <= len(DRAWS) // 10


def test_a_few_graphs_of_many_shapes() -> None:
    assert fuzz("cpu", 4, judge_sizes)["ok"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("device", SIZED)
def test_many_graphs_of_many_shapes(device: str) -> None:
    devices.opened(device)
    count = fuzz(device, SIZED[device], judge_sizes)
    assert count["ok"] > 0.4 * SIZED[device] and not count["unsupported"]
