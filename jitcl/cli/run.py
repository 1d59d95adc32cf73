"""`jitcl run`: a model, its inputs from files, its outputs as a table and as files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import (
    Shape,
    guard_option,
    input_option,
    isolation_option,
    json_option,
    model_options_and_auto,
    named_shapes,
    picture_options,
)
from jitcl.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from jitcl.runtime.model import Model

EPILOG = """\b
Examples:
  jitcl run model.onnx --random --repeat 50
  jitcl run model.onnx -d cpu --random --shape image=1,3,224,224
  jitcl run classify.onnx -i cat.jpg --mean .485,.456,.406 --std .229,.224,.225 --labels names.txt
  jitcl run upscale.onnx -i image=cat.png --save-pictures -o out
  jitcl run bert.onnx -i input_ids=ids.npy -i attention_mask=mask.npy -o out.npz
  jitcl run reshape.onnx -i data=x.npy -i 'shape=[2, -1]'
  jitcl run model.onnx -i x.npz --precision auto --calibrate photos
  jitcl run dump/00-import.jitcl --random --json
"""


@click.command(epilog=EPILOG)
@model_options_and_auto
@input_option
@click.option("--random", is_flag=True, help="Random numbers for inputs that are not given.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Seed of --random.")
@picture_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT",
              help="Save outputs: OUT.npz, OUT.npy (one output), or a folder of .npy files.")
@click.option("--save-pictures", is_flag=True,
              help="Save outputs that look like pictures as PNG, in the output folder or here.")
@click.option("--labels", type=click.Path(path_type=Path), metavar="FILE",
              help="Names of classes, one a line.")
@click.option("--repeat", type=click.IntRange(0), default=0, metavar="N",
              help="Run N times more, and tell the median time.")
@guard_option
@isolation_option
@json_option
def run(model: Path, device: str, precision: str, tolerance: float | None,
        calibrate: Path | None, budget: float | None, memory: str, shapes: tuple[Shape, ...],
        cache_dir: Path | None, given: tuple[str, ...], random: bool, seed: int,
        scale: float | None, mean: tuple[float, ...], std: tuple[float, ...], bgr: bool,
        output: Path | None, save_pictures: bool, labels: Path | None, repeat: int, as_json: bool,
        **more: Any) -> None:
    """Run MODEL once: inputs from files, outputs as a table and as files."""
    from jitcl.cli import results
    from jitcl.cli.console import progress_bar
    from jitcl.cli.feeds import Scaling, complete_feeds
    from jitcl.compiling import chosen, found, within
    from jitcl.passes.options import Options
    from jitcl.passes.packing import tolerated
    from jitcl.runtime.model import open_model

    names = results.read_labels(labels) if labels else []
    start = time.perf_counter()
    with progress_bar(quiet=as_json) as progress:
        auto, (plain, limit) = precision == "auto", tolerated(memory)
        weights = Options("high", plain).weights
        more |= {"cache_dir": cache_dir, "progress": progress}
        opened = open_model(model, device=device, precision="high" if auto else precision,
                            memory=plain, **more)
        feeds = complete_feeds(opened, given, Scaling(scale, mean, std, bgr),
                               named_shapes(opened, shapes), random, seed)
        if not auto and not (tolerance is None and (budget is None or limit is not None) and (
                calibrate is None or weights)):
            raise OptionError("--tolerance, --calibrate and --budget are of --precision auto, "
                              "--calibrate of --memory 'bits=4', too, and --budget of --memory "
                              "'bits=4;tolerance=0.05', where weights' own tolerance stands")
        options: dict[str, Any] = {
            "device": opened.device, "precision": precision, "memory": memory,
            "cache_dir": cache_dir, "progress": progress}
        if calibrate is not None:
            options |= found(model, options, tolerance, calibrate, budget)
        else:
            made_up = random and not given
            if weights is not None and limit is not None:
                options["memory"], _ = within(model, options, weights, limit, [feeds], budget,
                                              rounded=False, made_up=made_up)
            if auto:
                options["precision"] = chosen(model, options, tolerance, [feeds], budget, None,
                                              made_up=made_up)
        if auto or calibrate is not None or limit is not None:
            opened = open_model(model, **{**options, **more, "device": device})
        outputs, seconds = _timed(opened, feeds, start, repeat)
    saved: list[tuple[Path, str]] = []
    if output is not None:
        saved += [(path, "") for path in results.save_arrays(outputs, output)]
    if save_pictures:
        folder = Path(".") if output is None else output.parent if output.suffix else output
        saved += results.save_pictures(outputs, folder)
    if as_json:
        _print_json(opened, feeds, outputs, seconds, saved)
    else:
        _print(opened, outputs, seconds, saved, names)


def _timed(model: Model, feeds: dict[str, np.ndarray], start: float, repeat: int,
           ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Outputs, and seconds: from `start` to the first result, and of `repeat` runs after it."""
    outputs = model.run(feeds)
    first = time.perf_counter() - start
    runs = []
    for _ in range(repeat):
        begin = time.perf_counter()
        model.run(feeds)
        runs.append(time.perf_counter() - begin)
    return outputs, {"to_first_result": first, "runs": runs,
                     "median": statistics.median(runs) if runs else None}


def _print(model: Model, outputs: dict[str, np.ndarray], seconds: dict[str, Any],
           saved: list[tuple[Path, str]], labels: Sequence[str]) -> None:
    from jitcl.cli.console import console, duration, table
    from jitcl.cli.results import best, class_lines, flattened, summary
    out = console()
    rows = table("", "output", "type", "min", "mean", "max", right=("min", "mean", "max"))
    flat = flattened(outputs)
    found_words = []
    for name, array in flat.items():
        row = summary(name, array)
        if row.get("words"):
            found_words.append(f"'{name}': {row['words']}")
        shape = ",".join(map(str, row["shape"]))
        figures = ["-" if row[k] is None else f"{row[k]:.6g}" for k in ("min", "mean", "max")]
        odd = f"  ({row['not_finite']} not finite)" if row["not_finite"] else ""
        rows.add_row(name, f"{row['dtype']}[{shape}]{odd}", *figures)
    out.print(rows)
    out.print(*found_words, sep="\n", end="\n" if found_words else "")
    for name, array in flat.items():
        found = best(array)
        if found:
            out.print(f"best of '{name}':", *class_lines(found, labels), sep="\n")
    for path, how in saved:
        out.print(f"saved {path}" + (f" ({how})" if how else ""))
    report = model.report()
    if report.program:
        out.print(str(report))
    if report.precision != "high":
        out.print(report.precision_line().strip())
    if report.held is not None:
        out.print(*report.weights_lines())
    if report.stepped_down and report.from_cache:           # a compilation has warned
        from jitcl.runtime.fallbacks import runs
        out.print(f"the driver failed before: {runs(report.stepped_down)}")
    how = ("plan from the cache" if report.from_cache
           else f"compiled, {model.cache.stats.writes} cache entries written")
    line = f"{report.device}: first result after {duration(seconds['to_first_result'])} ({how})"
    if seconds["runs"]:
        line += f", median of {len(seconds['runs'])} runs {duration(seconds['median'])}"
    out.print(line)


def _print_json(model: Model, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray],
                seconds: dict[str, Any], saved: list[tuple[Path, str]]) -> None:
    from jitcl.cli.console import print_json
    from jitcl.cli.results import best, flattened, summary
    report = model.report()
    print_json({
        "model": model.source.name, "device": report.device, "asked": report.asked,
        "inputs": [summary(n, a) for n, a in flattened(feeds).items()],
        "outputs": [{**summary(n, a), "best": best(a)} for n, a in flattened(outputs).items()],
        "seconds": seconds, "from_cache": report.from_cache, "steps": len(report.steps),
        "kernels": report.kernels, "peak_bytes": report.peak_bytes, "host": report.host,
        "program": [vars(row) for row in report.program],
        "precision": report.precision, "computes": report.computes,
        "precision_why": report.precision_why,
        "memory": report.memory, "memory_why": report.memory_why,
        **({"weights": vars(report.held)} if report.held is not None else {}),
        "stepped_down": [vars(s) for s in report.stepped_down],
        "cache": model.cache.stats.as_dict(), "saved": [str(path) for path, _ in saved]})
