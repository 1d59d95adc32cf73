"""Run one scenario of the fault matrix on one driver and one model, and judge it.

    a process a phase      the driver fails as the row says
    the second run         a fresh process, the same cache, the driver fails as before
    the clean start        a fresh process, a copy of that cache, a driver without the faults

The second run is compared with the clean start: both read the plan that survived, so what differs
is only what the faults still cost. Times are medians of a process's runs. Where the second run is
slower, the machine may have been busy with other things: then both are started at once and run in
turns, where both meet the same neighbours, up to ATTEMPTS times. Of runs in turns the least ones
are compared, too: a neighbour can make a run longer, never shorter, and a run of a millisecond
beside another one's threads takes many times as long as alone. The table says where that was so.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.drivers.posing import CRASHES, POSES, Outcome, Pose, run_python
from tests.faults.models import Case
from tests.faults.scenarios import HALF, Phase, Scenario

RUNS = 7                            # after the first, at least, in each process
SLOWER = 1.10
BUSY = 2.0                          # of the median, where the least run is no longer
TIMER = 0.0003                      # seconds that a run may differ by
ATTEMPTS = 4
START_NOISE = 0.1                   # seconds that a start may differ by
SECONDS = 240.0                     # that a process may take


@dataclass
class Result:
    """What became of a scenario on one driver and model; `problems` is empty where it is as it
    must be.
    """

    scenario: str
    driver: str
    model: str
    outcome: str = ""                   # "right", or the JitclError that it ended with
    told: str = ""                      # the line that the user read
    variants: tuple[str, ...] = ()
    fired: dict[str, int] = field(default_factory=dict)
    cold: float = 0.0                   # seconds of the first process until its first result
    second: float = 0.0                 # of a run, in the second process
    clean: float = 0.0                  # of a run, after a clean start
    second_start: float = 0.0           # until the first result
    clean_start: float = 0.0
    least: float = 0.0                  # of the second process's runs in turns with a clean one's
    clean_least: float = 0.0
    by_least: bool = False              # it is no slower by the least run only
    problems: list[str] = field(default_factory=list)


def posed(scenario: Scenario, driver: str) -> Pose:
    pose = POSES[f"{scenario.pose}:{driver}" if scenario.pose else driver]
    return dataclasses.replace(
        pose, add=f"{pose.add} {scenario.add}" if scenario.add else pose.add,
        remove=f"{pose.remove} {scenario.remove}" if scenario.remove else pose.remove)


@dataclass
class Bench:
    """Runs processes of one scenario on one driver and model."""

    scenario: Scenario
    driver: str
    case: Case
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)      # of every process

    def __post_init__(self) -> None:
        if self.scenario.memory_share:
            peak = self.process(Phase(), self.folder.with_name("healthy")).value["peak"]
            self.settings = {"memory_limit": int(peak * self.scenario.memory_share)}

    def process(self, phase: Phase, cache: Path, turns: str = "") -> Outcome:
        traits, row = self.scenario.traits, self.scenario
        pose = posed(row, self.driver)
        device = "opencl:" + str(pose.info.get("CL_PLATFORM_NAME", self.driver))
        arguments = (str(self.case.path), str(self.case.golden), device, row.precision, RUNS, turns)
        rules = [r.replace("HALF", HALF[self.driver]) for r in (*traits.rules, *phase.rules)]
        return run_python(
            f"from tests.faults.child import main\nmain(*{arguments!r})", cache=cache, pose=pose,
            rules=rules, settings={**self.settings, **traits.settings, **phase.settings},
            variables=row.variables, timeout=SECONDS)

    def phase(self, phase: Phase) -> list[Outcome]:
        if phase.damage == "database":
            for path in (self.folder / "jitcl" / "faults").glob("*.json"):
                path.write_text('{"version": 1, "faults": [{"entry"')
        if phase.processes == 1:
            return [self.process(phase, self.folder)]
        with ThreadPoolExecutor(phase.processes) as threads:
            started = [threads.submit(self.process, phase, self.folder)
                       for _ in range(phase.processes)]
            return [s.result() for s in started]

    def clean_start(self, phase: Phase, number: int, turns: str = "") -> Outcome:
        """The same remembered, none of the faults."""
        copy = self.folder.with_name(f"{self.folder.name}-clean-{number}")
        shutil.copytree(self.folder, copy)
        return self.process(Phase((), phase.settings if "CL_PLATFORM_VERSION" in phase.settings
                                  else {}), copy, turns)

    def side_by_side(self, phase: Phase, number: int) -> tuple[Outcome, Outcome]:
        """A second run and a clean start at once, their runs in turns."""
        turns = self.folder.with_name(f"{self.folder.name}-turns-{number}")
        turns.mkdir()
        with ThreadPoolExecutor(2) as threads:
            clean = threads.submit(self.clean_start, phase, number, str(turns))
            second = threads.submit(self.process, phase, self.folder, str(turns))
            return second.result(), clean.result()


def check(scenario: Scenario, driver: str, case: Case, folder: Path) -> Result:
    """Run a scenario in a folder of its own."""
    result = Result(scenario.name, driver, case.name)
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(scenario, driver, case, folder)
    outcomes: list[Outcome] = []
    for phase in scenario.phases:
        outcomes += bench.phase(phase)
    seen = _judge_first(result, scenario, case, outcomes)
    if result.problems or seen is None or seen["outcome"] != "right":
        return result
    before = outcomes[-1].stats.faults
    last = dataclasses.replace(scenario.second or scenario.phases[-1], damage="", processes=1)
    second = bench.process(last, folder)
    again = {k: n - before[k] for k, n in second.stats.faults.items() if n > before[k]}
    got = _judge(result, "the second run", case, scenario, second)
    met = {k: n for k, n in again.items() if k in CRASHES or k not in scenario.again}
    if met:
        result.problems.append(f"the second run met {met}")
    if got is not None and got["outcome"] == "right":
        _compare(result, bench, last, got)
    return result


def _judge_first(result: Result, scenario: Scenario, case: Case,
                 outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    seen = None
    for n, outcome in enumerate(outcomes, 1):
        seen = _judge(result, f"process {n}", case, scenario, outcome)
    if seen is not None:
        result.outcome, result.cold = seen["outcome"], seen.get("start", 0.0)
        result.told = next((line for o in outcomes if o.returncode == 0
                            for line in o.value["told"]), "")
        result.variants = tuple(seen.get("variants", ()))
    result.fired = {k: n for k, n in outcomes[-1].stats.faults.items() if n}
    missing = [a for a in scenario.fires if not result.fired.get(a)]
    if missing:
        result.problems.append(f"the fault did not happen: {', '.join(missing)}")
    if scenario.steps and not result.variants:
        result.problems.append("no kernel stepped down: the fault did not happen")
    if scenario.tells and not re.search(scenario.tells, result.told):
        result.problems.append(f"the user reads '{result.told}', not '{scenario.tells}'")
    return seen


def _judge(result: Result, which: str, case: Case, scenario: Scenario,
           outcome: Outcome) -> dict[str, Any] | None:
    """What a process printed; None, and a problem, where it died."""
    if outcome.orphans:
        result.problems.append(f"{which} left processes behind")
    if outcome.returncode != 0:
        how = outcome.died or f"exit status {outcome.returncode}"
        tail = outcome.stderr.strip().splitlines()[-1:]
        result.problems.append(f"{which} died: {how} {' '.join(tail)[-300:]}")
        return None
    seen: dict[str, Any] = outcome.value
    if seen["left"]:
        result.problems.append(f"{which} left {seen['left']} bytes of device memory")
    if seen["outcome"] != "right":
        return seen
    if not seen["difference"] < case.tolerance(scenario.precision):
        result.problems.append(f"{which} is wrong by {seen['difference']:.1e}")
    if scenario.halves and result.driver == "intel" and not seen["halves"]:
        result.problems.append(f"{which} does without halves, which work here")
    return seen


def _compare(result: Result, bench: Bench, phase: Phase, got: dict[str, Any]) -> None:
    """The second run's times against those after a clean start."""
    for attempt in range(ATTEMPTS):
        if attempt:
            second, clean = (o.value for o in bench.side_by_side(phase, attempt))
        else:
            second, clean = got, bench.clean_start(phase, attempt).value
        for seen in (second, clean):
            if seen["outcome"] != "right":
                result.problems.append(f"a repeated run ended with {seen['outcome']}")
                return
        result.second, result.clean = (statistics.median(s["runs"]) for s in (second, clean))
        if attempt:
            result.least, result.clean_least = min(second["runs"]), min(clean["runs"])
        result.second_start, result.clean_start = second["start"], clean["start"]
        if _fast_enough(result):
            return
    result.problems.append(
        f"the second run takes {result.second * 1e3:.2f} ms (least {result.least * 1e3:.2f}, start "
        f"{result.second_start:.2f} s), after a clean start {result.clean * 1e3:.2f} ms (least "
        f"{result.clean_least * 1e3:.2f}, start {result.clean_start:.2f} s)")


def _fast_enough(result: Result) -> bool:
    starts = result.second_start <= result.clean_start * SLOWER + START_NOISE
    by_time = result.second <= result.clean * SLOWER + TIMER
    in_turns = result.clean_least > 0
    result.by_least = (not by_time and in_turns and result.second <= result.clean * BUSY
                       and result.least <= result.clean_least * SLOWER + TIMER)
    return starts and (by_time or result.by_least)
