"""`jitcl bench`: how fast a model runs here, beside other engines and beside the machine's roof."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import (
    Shape,
    input_option,
    isolation_option,
    model_options_but_device,
    named_shapes,
    picture_options,
)
from jitcl.errors import InputError, JitclError

if TYPE_CHECKING:
    from jitcl.bench.contest import Contest
    from jitcl.bench.processes import Entrant
    from jitcl.bench.roofline import Roofline
    from jitcl.bench.steps import StepTime
    from jitcl.bench.where import Place
    from jitcl.runtime.model import Model

LISTED = 10                 # kernels in the table that comes with --roofline
EPILOG = """\b
Examples:
  jitcl bench model.onnx                               beside onnxruntime and openvino
  jitcl bench model.onnx -d cpu -d opencl:pocl --peers none
  jitcl bench model.onnx -d cpu --shape image=1,3,224,224 --threads 1 --rounds 30
  jitcl bench bert.onnx -i input_ids=ids.npy -i attention_mask=mask.npy --json bench.json
  jitcl bench model.onnx -d cpu --roofline roof.svg    which kernels leave time lying about?
  jitcl bench model.onnx -d cpu --kernels 20 --peers none
  jitcl bench model.onnx --where                       the CPU or the GPU, and why?

\b
How to read it: each engine runs in a process of its own, and they take turns: a round is
a twentieth of a second of runs, or one run that lasts longer, of each. A time is the median
of the rounds' medians; a ratio is the median of the ratios round by round, below 1 where an
engine is faster than the fastest peer. "difference" is that of the results, relative to the
largest number of an output. Neighbours disturb all engines alike, but not to the percent:
repeat on a quiet machine what you want to publish.
"""


@click.command(epilog=EPILOG)
@click.option("-d", "--device", "devices", multiple=True, metavar="DEVICE",
              help="A device to time, as `jitcl run` takes it; repeatable.  [default: auto]")
@model_options_but_device
@input_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Seed of the random numbers for inputs that are not given.")
@picture_options
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True,
              help="Turns of each engine, after one to warm up.")
@click.option("--threads", type=click.IntRange(1), metavar="N",
              help="Threads of each engine, and cores that it may use.  [default: JITCL_THREADS, "
              "or all usable cores]")
@click.option("--peers", default="auto", show_default=True, metavar="NAMES",
              help="What to compare with: auto (those that are installed), none, or names: "
              "onnxruntime,openvino. They compute in float32.")
@click.option("--roofline", "svg", type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE.svg", help="Draw every kernel under the device's measured peaks.")
@click.option("--kernels", type=click.IntRange(0), metavar="N",
              help="List the N slowest kernels beside the peaks.  [default: 10 with --roofline, "
              "else 0]")
@click.option("--where", is_flag=True,
              help="Time it on all devices (or those of -d) and say which is fastest, and why: by "
              "parts of a run, and by the devices' measured peaks.  [peers: none, unless named]")
@isolation_option
@click.option("--json", "report", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              metavar="FILE", help="Write all of it as JSON; - is stdout, instead of the tables.")
def bench(model: Path, devices: tuple[str, ...], shapes: tuple[Shape, ...],
          cache_dir: Path | None, given: tuple[str, ...], seed: int, scale: float | None,
          mean: tuple[float, ...], std: tuple[float, ...], bgr: bool, rounds: int,
          threads: int | None, peers: str, svg: Path | None, kernels: int | None, where: bool,
          report: Path | None, **options: Any) -> None:
    """Time MODEL on jitcl's devices and on other engines, in turns, and compare the results."""
    from jitcl import config
    from jitcl.bench.contest import Contest
    from jitcl.bench.cutting import best_cut, cuts_of, measured
    from jitcl.bench.machine import this_machine
    from jitcl.bench.peers import choose_peers
    from jitcl.cli import bench_tables as tables
    from jitcl.cli.console import check_writable, write_json
    from jitcl.cli.feeds import Scaling, complete_feeds
    from jitcl.runtime.model import open_model

    files = [path for path in (svg, report) if path is not None]
    for path in files:
        check_writable(path)
    chosen, missing = choose_peers("none" if where and peers == "auto" else peers)
    threads = threads or int(config.get("threads"))
    machine = this_machine()                        # before the load is this command's own
    everywhere = where and not devices
    devices = tuple(dict.fromkeys(devices)) or (_everywhere() if where else ("auto",))
    options["cache_dir"] = None if cache_dir is None else str(cache_dir)
    opened = open_model(model, device="cpu", **options)     # to know the inputs: touches no driver
    feeds = complete_feeds(opened, given, Scaling(scale, mean, std, bgr),
                           named_shapes(opened, shapes), True, seed)
    taking_part, refused = entrants(model, devices, chosen, feeds, options)
    with tables.status() as say, Contest(taking_part, threads, say) as contest:
        contest.open()
        contest.time(rounds)
        _raise_if_none_ran(contest)
        wanted = kernels if kernels is not None else LISTED if svg is not None else 0
        rooflines, unplaced = (_rooflines(contest, model.name, say)
                               if wanted or svg or where else ([], {}))
        places = _places(contest, model.name, rooflines, say) if where else []
        steps = _steps(contest) if len(places) > 1 else {}
    if everywhere and places:
        _remember(opened, cache_dir, places)
    cut = best_cut(cuts_of(opened.source), places, steps) if steps else None
    if cut is not None:
        best = min(places, key=lambda p: p.seconds)
        cut = measured(str(model.absolute()), feeds, cut, best, threads, rounds, lambda text: None,
                       **options)
    results = tables.Results(
        model.name, machine, contest, rounds, options["precision"], feeds, tuple(given), seed,
        {**{p: f"is not installed: pip install {p}" for p in missing}, **refused},
        rooflines, unplaced, places, cut)
    if report is not None:
        write_json(report, results.document())
    if str(report) != "-":
        results.print(wanted)
    if svg is not None:
        _draw(svg, rooflines, unplaced)
    for path in files:
        if str(report) != "-":
            click.echo(f"saved {path}")


def _everywhere() -> tuple[str, ...]:
    from jitcl.devices.opencl import list_devices
    return ("cpu", *(found.spec for found in list_devices()))


def _places(contest: Contest, model: str, rooflines: list[Roofline], say: Any) -> list[Place]:
    """What each device took, by parts."""
    from jitcl.bench.where import place
    found, lines = [], {line.title: line for line in rooflines}
    for entry in contest.running:
        if entry.entrant.peer or entry.timing is None:
            continue
        say(f"taking the parts of a run on {entry.name}")
        device = entry.entrant.arguments["device"]
        found.append(place(device, entry.timing.median, entry.process.ask("parts"),
                           lines.get(f"{model}, {entry.name}")))
    return found


def _steps(contest: Contest) -> dict[str, tuple[StepTime, ...]]:
    """Of each device that can tell, in the model's order."""
    found = {}
    for entry in contest.running:
        if not entry.entrant.peer:
            with suppress(JitclError):              # said where kernels are listed
                times = entry.process.ask("steps")
                found[entry.entrant.arguments["device"]] = times.steps
    return found


def _remember(model: Model, cache_dir: Path | None, places: list[Place]) -> None:
    """For `device="auto"`."""
    from jitcl.bench.where import verdict
    from jitcl.runtime.placement import remember
    best = min(places, key=lambda p: p.seconds)
    remember(model.source, model.options, cache_dir, best.device, verdict([best])[0])


def entrants(model: Path, devices: tuple[str, ...], peers: list[str], feeds: dict[str, Any],
             options: dict[str, Any]) -> tuple[list[Entrant], dict[str, str]]:
    """(engines in the order of their turns, peers that are out from the start and why)."""
    from jitcl.bench.openers import jitcl_entrant
    from jitcl.bench.peers import peer_entrant
    path = str(model.absolute())
    ours = [jitcl_entrant(path, feeds, device, **options) for device in devices]
    if model.suffix.lower() == ".jitcl":
        return ours, dict.fromkeys(peers, "reads ONNX files only, not text graphs")
    return ours + [peer_entrant(p, path, feeds) for p in peers], {}


def _raise_if_none_ran(contest: Contest) -> None:
    """Without any device of jitcl's there is nothing to tell but its error."""
    ours = [e for e in contest.entries if not e.entrant.peer]
    if all(e.error is not None for e in ours):
        assert ours[0].error is not None
        raise ours[0].error


def _rooflines(contest: Contest, model: str, say: Any) -> tuple[list[Roofline], dict[str, str]]:
    """Kernels of each device under its roof; and why not, by name."""
    from jitcl.bench.roofline import roofline
    lines, unplaced = [], {}
    for entry in contest.running:
        if entry.entrant.peer:
            continue
        say(f"timing the kernels of {entry.name}")
        try:
            times = entry.process.ask("steps")
            say(f"measuring peaks for {entry.name}")
            lines.append(roofline(f"{model}, {entry.name}", times, entry.process.ask("peaks")))
        except JitclError as error:
            unplaced[entry.name] = str(error)
    return lines, unplaced


def _draw(path: Path, rooflines: list[Roofline], unplaced: dict[str, str]) -> None:
    from jitcl.bench.roofline import draw
    from jitcl.cli.console import write_text
    if not rooflines:
        why = "; ".join(f"{name}: {text}" for name, text in unplaced.items())
        raise InputError(f"--roofline: there are no kernels to draw\n  {why}")
    write_text(path, draw(rooflines))
