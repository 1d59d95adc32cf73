"""`jitcl explore`: what a model becomes, as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jitcl.cli.options import Shape, model_options, named_shapes, value_option

EPILOG = """\b
Examples:
  jitcl explore model.onnx                      writes model.html
  jitcl explore model.onnx -d profile:mali-g610 -o mali.html
  jitcl explore model.onnx --open               and shows it
  jitcl profile model.onnx --save run.json
  jitcl explore model.onnx --profile run.json   with times and a timeline
  jitcl check model.onnx --precision low --json low.json
  jitcl explore model.onnx --precision low --errors low.json   with errors of layers

\b
The page needs no network. It shows the fused groups, and the graph before and after each pass;
of each kernel its source, loops, schedule, launch, cost, and why it is written so; memory over
time. On it: / searches, [ and ] go from pass to pass, arrows from node to node, + - 0 zoom.
"""


@click.command(epilog=EPILOG)
@model_options
@value_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The page.  [default: the model's name, with .html]")
@click.option("--profile", "profile_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Times and a timeline: what `jitcl profile --save FILE.json` wrote.")
@click.option("--errors", "errors_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Errors of layers: what `jitcl check --json FILE` wrote.")
@click.option("--open", "opened", is_flag=True, help="Show it in the browser.")
def explore(model: Path, shapes: tuple[Shape, ...], given: tuple[str, ...], output: Path | None,
            profile_file: Path | None, errors_file: Path | None, opened: bool, **options: Any
            ) -> None:
    """Write a page with MODEL's graphs, kernels and memory to look at. Nothing is run on DEVICE."""
    from jitcl.cli.console import write_text
    from jitcl.cli.explore_page import page, read_json
    from jitcl.cli.lowered import lowered_for
    from jitcl.runtime.model import open_model

    profile = errors = None
    if profile_file is not None:
        profile = read_json(profile_file, "runs", "`jitcl profile MODEL --save FILE.json`")
    if errors_file is not None:
        errors = read_json(errors_file, "layers", "`jitcl check MODEL --json FILE`")
    found = open_model(model, **options)
    lowered = lowered_for(found, named_shapes(found, shapes), given)
    path = output or Path(f"{model.stem}.html")
    write_text(path, page(lowered, profile, errors))
    click.echo(f"wrote {path}")
    if opened:
        click.launch(path.absolute().as_uri())


__all__ = ["explore"]
