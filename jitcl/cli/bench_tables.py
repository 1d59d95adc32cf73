"""What `jitcl bench` found, as tables for people and as a document for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl.bench.compare import SUSPECT
from jitcl.bench.cutting import InTwo, cut_verdict
from jitcl.bench.machine import Machine, load_average
from jitcl.bench.where import Place, verdict
from jitcl.cli.console import console, duration, node_names, table
from jitcl.codegen.text import amount
from jitcl.passes.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from jitcl.bench.contest import Contest, Entry
    from jitcl.bench.roofline import Placed, Roofline


@contextmanager
def status() -> Iterator[Callable[[str], object]]:
    """A line on stderr that says what is being done; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with console(sys.stderr).status("starting") as shown:
        yield shown.update


@dataclass(frozen=True)
class Results:
    """All that one bench found. absent: peers that did not compete, and why; unplaced: devices
    whose kernels are not listed, and why. places, cut: of `--where`.
    """

    model: str
    machine: Machine
    contest: Contest
    rounds: int
    precision: str
    feeds: Mapping[str, Any]
    given: tuple[str, ...]
    seed: int
    absent: Mapping[str, str]
    rooflines: list[Roofline]
    unplaced: Mapping[str, str]
    places: Sequence[Place] = ()
    cut: InTwo | None = None

    # ---- for people

    def print(self, kernels: int) -> None:
        """The table of engines, remarks, and of each device its slowest `kernels`."""
        out = console()
        out.print(f"{self.model}: {self._inputs()}")
        out.print(self._engines())
        for line in self._remarks():
            out.print(line)
        for roof in self.rooflines:
            if kernels:
                _print_kernels(out, roof, kernels)
        for name, why in self.unplaced.items():
            out.print(f"{name}: no kernels listed: {why}")
        for line in verdict(self.places) if self.places else ():
            out.print(line)
        if self.cut is not None:
            for line in cut_verdict(self.cut, min(self.places, key=lambda p: p.seconds)):
                out.print(line)

    def _inputs(self) -> str:
        shown = []
        for name, value in self.feeds.items():
            array = value if isinstance(value, np.ndarray) else None
            shown.append(f"{name} {array.dtype}{list(array.shape)}" if array is not None
                         else f"{name} ({type(value).__name__})")
        return ", ".join(shown) or "no inputs"

    def _engines(self) -> Any:
        numbers = ("median", "best round", "worst round", "to fastest peer", "worst ratio", "runs",
                   "first result", "difference")
        rows = table("", "engine", *numbers, right=numbers)
        for entry in self.contest.entries:
            rows.add_row(*self._row(entry))
        return rows

    def _row(self, entry: Entry) -> tuple[str, ...]:
        if entry.error is not None or entry.timing is None or entry.opened is None:
            return (entry.name, "failed")
        t, r = entry.timing, entry.ratio
        base = entry.name == self.contest.fastest_peer
        ratios = ("-", "-") if r is None else ("1", "") if base else (
            f"{r.median:.2f}", f"{r.worst:.2f}")
        return (_named(entry), duration(t.median), duration(t.best), duration(t.worst), *ratios,
                str(t.runs), duration(entry.opened.seconds), self._difference(entry))

    def _difference(self, entry: Entry) -> str:
        if entry.name == self.contest.judge:
            return "the measure"
        if entry.difference is None:
            return "-"
        return f"{entry.difference:.1e}" + (" !" if self._suspect(entry) else "")

    def _suspect(self, entry: Entry) -> bool:
        limit = SUSPECT[Options(self.precision).least]
        return entry.difference is not None and entry.difference > limit

    def _remarks(self) -> Iterator[str]:
        contest, machine = self.contest, self.machine
        for entry in contest.entries:
            yield from _about(entry)
            if entry.error is not None:
                yield f"{entry.name} failed: {entry.error}"
            if self._suspect(entry):
                yield (f"! {entry.name}: its results differ from those of {contest.judge} by more "
                       "than rounding explains: look at them before the time")
        for name, why in self.absent.items():
            yield f"{name} {why}; not compared"
        if contest.judge is None:
            yield "results were compared with nobody's"
        if contest.fastest_peer is not None and self.precision != "high":
            yield f"peers computed in float32, jitcl with precision {self.precision}"
        yield (f"{self.rounds} round{'s' * (self.rounds > 1)}, {contest.threads} "
               f"thread{'s' * (contest.threads > 1)} each; inputs that were not given are random "
               f"(seed {self.seed})")
        if contest.threads > machine.cores:
            yield f"{contest.threads} threads took turns on {machine.cores} cores"
        now = load_average()
        yield f"{machine} before" + ("" if now is None else f", {now:.2f} after")
        if machine.busy:
            yield ("the machine was busy with something else: engines were disturbed in turns, "
                   "which ratios survive better than times")

    # ---- for programs

    def document(self) -> dict[str, Any]:
        return {
            "model": self.model, "machine": {**asdict(self.machine), "load_after": load_average()},
            "threads": self.contest.threads, "rounds": self.rounds, "precision": self.precision,
            "inputs": {n: {"dtype": str(v.dtype), "shape": list(v.shape)}
                       for n, v in self.feeds.items() if isinstance(v, np.ndarray)},
            "given": list(self.given), "seed": self.seed, "judge": self.contest.judge,
            "fastest_peer": self.contest.fastest_peer,
            "engines": [self._engine(e) for e in self.contest.entries],
            "absent": dict(self.absent), "no_kernels": dict(self.unplaced),
            "rooflines": [_roofline(line) for line in self.rooflines],
            "where": [p.document for p in self.places],
            "cut": None if self.cut is None else asdict(self.cut)}

    def _engine(self, entry: Entry) -> dict[str, Any]:
        t, opened = entry.timing, entry.opened
        return {
            "name": entry.name, "peer": entry.entrant.peer,
            "error": None if entry.error is None else str(entry.error),
            "about": None if opened is None else opened.about,
            "first_seconds": None if opened is None else opened.seconds,
            "seconds": None if t is None else {
                "median": t.median, "best": t.best, "worst": t.worst, "runs": t.runs,
                "rounds": list(t.rounds)},
            "ratio": None if entry.ratio is None else asdict(entry.ratio),
            "difference": None if entry.difference is None else str(entry.difference)
            if entry.difference == np.inf else entry.difference,
            "suspect": self._suspect(entry)}


def _named(entry: Entry) -> str:
    """`onnxruntime 1.20`; jitcl's version is that of this command."""
    about = {} if entry.opened is None or not entry.entrant.peer else entry.opened.about
    return f"{entry.name} {about.get('version', '')}".rstrip()


def _about(entry: Entry) -> Iterator[str]:
    """What runs under a name, where the name does not say it, and what does not run as asked."""
    about = {} if entry.opened is None else entry.opened.about
    device, stepped, host = (about.get(key) for key in ("device", "stepped_down", "host"))
    if device and not entry.name.endswith(f" {device}"):
        yield f"{entry.name} is {device}"
    if stepped:
        yield (f"{entry.name}: its driver failed on kernels, {stepped} of {about['steps']} steps "
               "run otherwise: see jitcl run")
    if host:
        yield f"{entry.name}: on the host run {', '.join(dict.fromkeys(host))}"


def _print_kernels(out: Console, line: Roofline, count: int) -> None:
    """The slowest kernels, and the peaks that they are beside."""
    numbers = ("time", "share", "GFLOP/s", "GB/s", "of roof")
    rows = table(f"{line.title}: slowest kernels", "step", "ops", "nodes", "template", *numbers,
                 "bound by",
                 right=numbers)
    for p in line.placed[:count]:
        rows.add_row(p.step.name, _ops(p), node_names(p.step.nodes), p.step.template or "-",
                     duration(p.step.seconds), f"{p.share:.1%}",
                     f"{p.flops / 1e9:.3g}" if p.step.flops else "-",
                     f"{p.rate / 1e9:.3g}", f"{p.of_roof:.0%}", p.bound)
    out.print(rows)
    peaks, total = line.peaks, sum(p.step.seconds for p in line.placed)
    alone = f" ({amount(peaks.flops_alone, 'FLOP/s')} with one)" if peaks.flops_alone else ""
    widths = ", ".join(f"{amount(b.rate, 'B/s')} within {b.set_bytes / 2**20:.3g} MiB"
                       for b in peaks.bandwidths)
    out.print(f"{len(line.placed)} steps one by one take {duration(total)}, all of them at the "
              f"roof {duration(sum(p.roof_seconds for p in line.placed))}")
    threads = f" with {peaks.threads} thread{'s' * (peaks.threads > 1)}" if peaks.threads else ""
    out.print(f"peaks measured here{threads}: {amount(peaks.flops, 'FLOP/s')}{alone}, f32; "
              f"{widths}")
    if any(p.of_roof > 1 for p in line.placed[:count]):
        out.print("above 100%: Winograd's kernels compute less than is counted, "
                  "operands lay in faster caches than a set of that size, or the peaks were "
                  "measured while others computed")


def _ops(p: Placed) -> str:
    shown = "+".join(p.step.ops[:4])
    return shown + ("+.." if len(p.step.ops) > 4 else "") or "-"


def _roofline(line: Roofline) -> dict[str, Any]:
    return {"title": line.title, "peaks": asdict(line.peaks),
            "kernels": [{**asdict(p.step), "share": p.share, "flops_per_second": p.flops,
                         "bytes_per_second": p.rate, "roof_seconds": p.roof_seconds,
                         "of_roof": p.of_roof, "bound": p.bound} for p in line.placed]}
