"""The search: each group's candidates are built, compared with the interpreter, and raced.

    proven   built and run as any new kernel is (in a worker where the driver is not trusted), what
             it gives compared with the interpreter's enclosure, where it differs most from other
             candidates, too, and the same to the bit each time
    raced    against the fastest so far, in turns, launches counted; out at once where hopeless
    kept     what is known of a group, as soon as it is: a search that is stopped goes on from there

Costly groups come first. What fails is in the database of the driver's faults then, as always.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jitcl.codegen.flops import group_flops
from jitcl.codegen.generate import generate_alone
from jitcl.codegen.schedule_sized import group_is_sized
from jitcl.codegen.trial import GroupTrial, trial_of
from jitcl.codegen.variants import unpack
from jitcl.codegen.writer import Writer
from jitcl.devices.base import Cache, Device
from jitcl.devices.faults import Fault
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.progress import Tally
from jitcl.errors import BuildError, DeviceError, DeviceLostError, KernelFault, OutOfMemoryError
from jitcl.ir.graph import Graph
from jitcl.ir.group import Chain, Group, Join
from jitcl.ir.noise import Supply
from jitcl.tuning.choices import Chosen, Only, described
from jitcl.tuning.found import LOOPS, SECONDS, Choice, Found, deeper

CANDIDATES = 3                  # of the first template, that "fast" looks at
ROUNDS = {"fast": 2, "wide": 3, "heavy": 5}         # of a race
RUNS = 5                        # of one turn
SEED = 20261125                 # of the data that all candidates of a group are tried on
SAME = 3                        # runs that must give the same bits
HOPELESS = 1.5                  # times the fastest's time in the first round
GAIN = 0.97                     # of the fastest's time: what is worth another kernel
LOOPS_FLOPS = 1e8               # above which generated loops are no candidate
SHOWN = 200                     # characters of a reason

log = logging.getLogger("jitcl.tuning")


class Results(Protocol):
    """Where what was found is kept, by the text of the group: for this device and its driver."""

    def get(self, group: str) -> Found | None: ...
    def put(self, group: str, found: Found) -> None: ...


@dataclass(frozen=True)
class Tuned:
    """What a search gives. rows: (step, what was found), the costliest first. left: groups that
    there was no time for."""

    chooser: Chosen
    rows: tuple[tuple[str, Found], ...] = ()
    left: int = 0


@dataclass
class Proven:
    """A candidate that is right, loaded."""

    choice: Choice
    trial: GroupTrial
    executable: Any
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]

    def seconds(self) -> float:
        """Of all its steps and their launches, in passes behind each other: a median of RUNS."""
        return self.executable.steady(self.inputs, RUNS)    # type: ignore[no-any-return]

    def strays(self) -> str:
        """How another run differs from the first one; "" where it does not by one bit."""
        for a, b in zip(self.outputs, self.executable.run(self.inputs)):
            different = int((a.reshape(-1).view(np.uint8) != b.reshape(-1).view(np.uint8)).sum())
            if different:
                return f"not the same twice: {different} of {a.nbytes} bytes differ in another run"
        return ""


@dataclass
class Search:
    """One search over the groups of a graph. `isolation` is as LoadOptions has it; `seconds` None
    for those of the mode.
    """

    device: Device
    mode: str
    results: Results
    cache: Cache
    isolation: str
    tally: Tally
    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    _refused: list[tuple[str, str]] = field(default_factory=list)

    def run(self, graph: Graph, groups: Sequence[Group]) -> Tuned:
        """Search through the groups that `generate` left of a graph. Raises DeviceLostError, after
        what was found until then was kept."""
        limit = SECONDS[self.mode] if self.seconds is None else self.seconds
        end = self.clock() + limit
        choices: dict[str, Choice] = {}
        rows: list[tuple[str, Found]] = []
        left = 0
        todo = list(self._searchable(groups))
        units = sum(len(ways) for *_, ways in todo)
        with self.tally.part(units, "searching for faster kernels") as part:
            for name, group, text, ways in todo:
                part.now(f"searching: {name}, {len(ways)} ways")
                found = self.results.get(text)
                if found is None or deeper(self.mode, found.mode):
                    new = self._searched(graph, group, ways, end)
                    if new is not None:
                        self.results.put(text, new)
                    elif self.clock() >= end:
                        left += 1
                    found = new or found
                if found is not None:
                    choices[text] = found.choice
                    rows.append((name, found))
                    log.info("%s: %s, %.4g us (%.4g before, of %d)", name, found.choice,
                             found.after * 1e6, found.before * 1e6, found.tried)
                part.step(len(ways))
        return Tuned(Chosen(choices), tuple(rows), left)

    def _searchable(self, groups: Sequence[Group]
                    ) -> Iterator[tuple[str, Group, str, list[Choice]]]:
        """(step, group, its text, ways to write it) of different groups that can be written in
        several ways, the costliest first.
        """
        texts = set()
        target = self.device.target
        numbered = [(k, g) for k, g in enumerate(groups) if _several(g)]
        for number, group in sorted(numbered, key=lambda pair: -group_flops(pair[1])):
            written = group if target.packed_weights else unpack(group, {})
            text, ways = described(written), self._ways(written)
            if text not in texts and len(ways) > 1:
                texts.add(text)
                yield f"{(group.anchor or group.root).op}_{number}", group, text, ways

    def _ways(self, group: Group) -> list[Choice]:
        """What this mode looks at, what the templates hold for best first."""
        offered = [[Choice.of(t.name, c) for c in t.candidates(group, self.device.target)]
                   for _, templates in Writer(self.device.target).asked(group) for t in templates]
        first, *others = [found for found in offered if found] or [[]]
        if self.mode == "fast" or not first:
            return first[:CANDIDATES]
        more = [c for found in others for c in (found if self.mode == "heavy" else found[:1])]
        loops = [Choice(LOOPS, {})] if group_flops(group) <= LOOPS_FLOPS else []
        return [*first, *more, *loops]

    # ---- one group

    def _searched(self, graph: Graph, group: Group, ways: Sequence[Choice], end: float
                  ) -> Found | None:
        """What is fastest; None where the time is up before that is known, or nothing is right."""
        best: Proven | None = None
        before = after = 0.0
        self._refused = []
        supply = Supply()
        for choice in ways:
            if self.clock() >= end:
                return None
            other = self._proven(graph, group, choice, supply)
            if best is not None and other is not None:
                if self._fails(best, best.trial.wrong_beside(best.outputs, other.outputs)):
                    other.executable.close()
                    return self._searched(graph, group, ways, end)
                if self._fails(other, other.trial.wrong_beside(other.outputs, best.outputs)):
                    continue
            if other is None:
                continue
            if best is None:
                best, before = other, other.seconds()
                after = before
                continue
            mine, theirs = self._raced(best, other)
            if theirs < GAIN * mine and not self._strayed(other):
                before *= mine / after      # both were clocked anew: what counts is the ratio
                best, other, after = other, best, theirs
            other.executable.close()
        if best is None:
            return None
        if self._strayed(best):
            return self._searched(graph, group, ways, end)
        best.executable.close()
        return Found(best.choice, self.mode, before, after, len(ways) - len(self._refused),
                     tuple(self._refused))

    def _proven(self, graph: Graph, group: Group, choice: Choice, supply: Supply) -> Proven | None:
        """A candidate that gives what the interpreter does, the same each time; None, and why in
        `_refused`, where it doesn't or nobody can say.
        """
        try:
            made = generate_alone(graph, group, self.device.target, self.device.faults,
                                  Only(choice))
            if made.whys:
                self._refuse(choice, next(iter(made.whys.values())))
                return None
            trial = trial_of(made, made.plan, 0, made.plan.steps, supply, SEED)
            if trial.reason:
                self._refuse(choice, f"results can't be judged: {trial.reason}")
                return None
            loaded = self.device.load(trial.plan, self.cache, None,
                                      LoadOptions(self.isolation, (trial,)))
            inputs = trial.inputs()
            found = Proven(choice, trial, loaded, inputs, loaded.run(inputs))
        except DeviceLostError:
            raise
        except (KernelFault, BuildError, OutOfMemoryError, DeviceError) as error:
            self._refuse(choice, str(error))
            return None
        if self._fails(found, trial.wrong(found.outputs)):
            return None
        return None if any(self._strayed(found) for _ in range(SAME - 1)) else found

    def _strayed(self, found: Proven) -> bool:
        """Whether a candidate gives something else than it did."""
        return self._fails(found, found.strays())

    def _fails(self, found: Proven, why: str) -> bool:
        """Remember what is wrong with a candidate's kernels, if anything is."""
        if why and self.device.faults is not None:
            self.device.faults.record(*(
                Fault(k.entry, "check", "wrong", why, tuple(sorted(k.features)))
                for k in found.trial.plan.kernels))
        if why:
            self._refuse(found.choice, why)
            found.executable.close()
        return bool(why)

    def _refuse(self, choice: Choice, why: str) -> None:
        """Note why a candidate is not taken."""
        text = " ".join(why.split())
        log.info("%s is not taken: %s", choice, text)
        self._refused.append((str(choice), text[:SHOWN]))

    def _raced(self, best: Proven, other: Proven) -> tuple[float, float]:
        """Seconds of both, medians of turns; one turn is enough where the other is hopeless."""
        mine, theirs = [best.seconds()], [other.seconds()]
        if theirs[0] < HOPELESS * mine[0]:
            for turn in range(1, ROUNDS[self.mode]):
                for seconds, who in ((mine, best), (theirs, other))[::1 - 2 * (turn % 2)]:
                    seconds.append(who.seconds())
        return statistics.median(mine), statistics.median(theirs)


def _several(group: Group) -> bool:
    """Whether a group may be written in several ways: there is a heavy op that a template claims,
    and something to compute."""
    if isinstance(group, (Chain, Join)) or group.anchor is None or group_is_sized(group):
        return False
    return group.root.type.size > 0


__all__ = ["Results", "Search", "Tuned"]
