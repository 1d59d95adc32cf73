"""`jitcl check`: where two configurations of a model part, and which layer adds most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import Shape, input_option, named_shapes, tuned_options

if TYPE_CHECKING:
    import numpy as np

    from jitcl.accuracy.report import Check

EPILOG = """\b
A CONFIG is a device with options: cpu,precision=low,templates=off; or another engine: onnx (onnx's
reference evaluator), onnxruntime.

\b
An error is the largest one of a tensor, in units of its largest element. "error" is of a run from
the inputs; "own" is of the layer alone, on the other configuration's exact tensors. Layers of one
kernel are one line, named after the last of them; a kernel that errs is taken apart.

\b
Examples:
  jitcl check model.onnx -d opencl --precision low         which layer can't take f16?
  jitcl check model.onnx -d opencl --against cpu           a driver's fault, or the model's?
  jitcl check model.onnx --against cpu,templates=off       a template's fault?
  jitcl check int8.onnx --against-model float.onnx         what did quantisation cost, where?
  jitcl check model.onnx --inputs photos --json x.json     the worst of a folder of .npz or .npy
  jitcl check model.onnx --precision low --cure            the fewest layers in f32 that cure it
  jitcl check model.onnx --precision low --html low.html   a page to look at
  jitcl check model.onnx --repeat 20                       the same bits every time?

The exit status is 1 where outputs differ by more than the tolerance, or runs that are repeated by
any bit.
"""


@click.command(epilog=EPILOG)
@tuned_options
@click.option("--templates", type=click.Choice(("on", "off")),
              help="off: generated loops alone.  [default: JITCL_TEMPLATES, or on]")
@click.option("--against", default="onnx", show_default=True, metavar="CONFIG",
              help="What is taken as exact.")
@click.option("--against-model", type=click.Path(path_type=Path), metavar="FILE",
              help="The other one's model, where it is not MODEL; tensors are compared by name.")
@input_option
@click.option("--inputs", "folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Several inputs: each .npz or .npy in it; layers are compared for the worst.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Seed of random numbers, which inputs are that are not given.")
@click.option("--tolerance", type=click.FloatRange(0), metavar="X",
              help="Errors up to X are none.  [default: 1e-3 where both compute as the model says, "
                   "else 1e-2]")
@click.option("--repeat", type=click.IntRange(0), default=0, metavar="N",
              help="Run N times more: results must be equal to the last bit.")
@click.option("--cure", is_flag=True,
              help="Where outputs differ: the smallest set of layers that must be of precision "
                   "high.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True),
              metavar="FILE", help="All measures as JSON; - for standard output.")
@click.option("--html", "page_file", type=click.Path(path_type=Path), metavar="FILE",
              help="A page for a browser: errors along the model, and of each layer a histogram.")
def check(model: Path, memory: str, shapes: tuple[Shape, ...], cache_dir: Path | None,
          templates: str | None, given: tuple[str, ...], folder: Path | None, seed: int,
          json_file: Path | None, page_file: Path | None, **options: Any) -> None:
    """Compare MODEL on a device with another configuration, layer by layer."""
    from jitcl.accuracy.checking import check as compare
    from jitcl.cli.console import progress_bar, write_json

    to_stdout = json_file is not None and str(json_file) == "-"
    with progress_bar(quiet=to_stdout) as progress:
        inputs = _inputs(model, memory, cache_dir, given, folder, shapes, seed)
        found = compare(
            model, inputs, memory=memory, cache_dir=cache_dir, progress=progress,
            templates=None if templates is None else templates == "on", **options)
    if json_file is not None:
        write_json(json_file, found.as_dict())
    if page_file is not None:
        from jitcl.cli.console import write_text

        write_text(page_file, found.html())
    if not to_stdout:
        _print(found)
    for file in (json_file, page_file):
        if file is not None and not to_stdout:
            click.echo(f"wrote {file}", err=True)
    if not found.ok:
        raise SystemExit(1)


def _inputs(model: Path, memory: str, cache_dir: Path | None, given: Sequence[str],
            folder: Path | None, shapes: Sequence[Shape], seed: int
            ) -> Mapping[str, Mapping[str, np.ndarray]]:
    """Feeds by what they are called."""
    from jitcl.cli.feeds import Scaling, complete_feeds
    from jitcl.runtime.array_files import files_of
    from jitcl.runtime.model import open_model

    opened = open_model(model, device="reference", memory=memory, cache_dir=cache_dir)
    fixed = named_shapes(opened, shapes)
    if folder is None:
        name = ", ".join(given) or f"random numbers, seed {seed}"
        return {name: complete_feeds(opened, given, Scaling(), fixed, True, seed)}
    return {f.name: complete_feeds(opened, [*given, str(f)], Scaling(), fixed, False, seed)
            for f in files_of(folder, "--inputs", "\n  Of one file: -i FILE.")}


def _print(found: Check) -> None:
    from jitcl.cli.console import console, node_names, table

    out = console()
    if len(found.inputs) > 1:
        shown = table("inputs", "input", "error", right=("error",))
        for name, error in sorted(found.inputs, key=lambda row: -row[1]):
            shown.add_row(name, _number(error))
        out.print(shown)
    if found.layers:
        columns = ("", "layer", "op", "with", "tensor", "error", "own", "mean",
                   "cosine", "ulps", "range", "overflow", "underflow", "zeros")
        shown = table("layers", *columns, right=columns[5:10] + columns[11:])
        for column in shown.columns[4:]:
            column.no_wrap = True
        for row in found.layers:
            d = row.total
            marks = [m for m, r in (("first", found.first), ("most", found.most)) if r is row]
            shown.add_row(
                " ".join(marks), row.node, row.op_type, node_names(row.fused),
                f"{row.dtype}[{','.join(map(str, row.shape))}]", _number(d.relative),
                _number(row.own.relative) if row.own is not None else "", _number(d.mean),
                f"{d.cosine:.6f}", "" if d.ulps is None else str(d.ulps),
                "{:.3g} .. {:.3g}".format(*d.range), *map(_count, (d.overflow, d.underflow)),
                str(d.zeros))
        out.print(shown)
    if found.missing:
        out.print(f"not in the other model: {', '.join(found.missing)}")
    out.print(str(found))


def _number(value: float) -> str:
    return f"{value:.2g}" if value else "0"


def _count(value: int) -> str:
    return str(value) if value else ""


__all__ = ["check"]
