"""`jitcl tune`: search for the fastest kernels of a model, and tell what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl import config
from jitcl.cli.options import (
    Shape,
    full_shapes,
    guard_option,
    isolation_option,
    json_option,
    named_shapes,
    tuned_options,
)
from jitcl.tuning.found import MODES

if TYPE_CHECKING:
    from jitcl.runtime.report import Report

EPILOG = """\b
Examples:
  jitcl tune model.onnx                         for `--tuning wide`, and thus `fast`
  jitcl tune model.onnx --mode heavy --budget 600
  jitcl tune bert.onnx --shape input_ids=1,128 --precision low
  jitcl cache export tuned.json                 for other machines like this one
"""


@click.command(epilog=EPILOG)
@tuned_options
@click.option("--mode", type=click.Choice(MODES), default="wide", show_default=True,
              help="How far to look; `--tuning` of other commands takes what was found by a mode "
              "at least as deep.")
@click.option("--budget", type=click.IntRange(0), metavar="SECONDS",
              help="Stop after so long; the next call goes on from there.  [default: "
              "JITCL_TUNING_SECONDS, or none]")
@guard_option
@isolation_option
@json_option
def tune(model: Path, shapes: tuple[Shape, ...], mode: str, budget: int | None, as_json: bool,
         **options: Any) -> None:
    """Search for the fastest kernels of MODEL on an OpenCL device.

    Candidates are compared with the interpreter before they are timed. Ctrl-C keeps what is known.
    """
    from jitcl.cli.console import print_json, progress_bar
    from jitcl.errors import InputError
    from jitcl.runtime.model import open_model

    if budget is None:
        budget = config.get("tuning_seconds")
    with progress_bar(quiet=as_json) as progress, config.here(
            tuning_seconds=NO_BOUND if budget is None else budget):
        opened = open_model(model, tuning=mode, progress=progress, **options)
        opened.prepare(full_shapes(opened, named_shapes(opened, shapes)))
    report = opened.report()
    if not report.steps:
        raise InputError(f"model '{opened.source.name}' is compiled when it is run, as values of "
                         f"its inputs decide shapes: `jitcl run --tuning {mode}` searches, too")
    if as_json:
        print_json({"model": report.model, "device": report.device, "mode": mode,
                    "left": report.unsearched, "steps": [
                        {"step": step, **found.row()} for step, found in report.tuned]})
    else:
        _print(report)


NO_BOUND = 10**9                # seconds


def _print(report: Report) -> None:
    from jitcl.cli.console import console, duration, table

    rows = table(f"{report.model} on {report.device}", "step", "kernels", "before", "now", "tried",
                 "refused", right=("before", "now", "tried", "refused"))
    for step, found in report.tuned:
        rows.add_row(step, str(found.choice), duration(found.before), duration(found.after),
                     str(found.tried), str(len(found.refused) or ""))
    out = console()
    out.print(rows)
    for step, found in report.tuned:
        for way, why in found.refused:
            out.print(f"{step}: {way} is not taken: {why}")
    if report.unsearched:
        out.print(f"no time for {report.unsearched} more kinds of step: call again to go on")
    elif not report.tuned:
        out.print("no step of this model has several ways to be written on this device")
