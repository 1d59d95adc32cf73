"""`jitcl dump`: what a model becomes, as an overview or as files. Nothing is built or run for the
device; a model that is no single graph runs on the CPU, to know the shapes of its parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jitcl.cli.options import Shape, json_option, model_options, named_shapes, value_option

EPILOG = """\b
Examples:
  jitcl dump model.onnx                            passes, kernels, memory at a glance
  jitcl dump model.onnx -d cpu -o dump             everything as files, see below
  jitcl dump model.onnx -d profile:mali-g610       for a device that isn't here
  jitcl dump model.onnx --after fold-constants     the graph after a pass, on stdout
  jitcl dump model.onnx --after fuse               the same, saying which kernel each op is in
  jitcl dump model.onnx --shape image=1,3,64,64 --json | jq '.steps[] | [.name, .flops]'

\b
Files of -o DIR:
  00-import.jitcl ...    the graph after each pass that changed it, fit for `jitcl run`; large
                         constants lie beside it in .jitcl.npz
  kernels/007-conv_4.py  source of launch 7's kernel (.cl for OpenCL), what it does above it
  loops/conv_4.jitcl     the kernel before it was scheduled, as kernel IR
  scheduled/conv_4.jitcl for a GPU: the same spread over work-groups and work-items
  steps.txt              launches: kernel, buffers, parameters, geometry
  memory.txt, memory.svg where each buffer lives, and when
  groups.dot             which kernel reads what, for Graphviz: dot -Tsvg groups.dot
A model of several parts has a folder part-1, part-2 ... for each, and program.txt.
"""


@click.command(epilog=EPILOG)
@model_options
@value_option
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write files into this folder.")
@click.option("--after", metavar="PASS",
              help="Print the graph after this pass: import, a pass of the overview, or fuse.")
@json_option
def dump(model: Path, shapes: tuple[Shape, ...], given: tuple[str, ...], output: Path | None,
         after: str | None, as_json: bool, **options: Any) -> None:
    """Show what MODEL becomes: graphs, kernels, launches, memory."""
    from jitcl.cli import dump_files, overview
    from jitcl.cli.console import console, print_json
    from jitcl.cli.lowered import lowered_for
    from jitcl.runtime.model import open_model

    opened = open_model(model, **options)
    lowered = lowered_for(opened, named_shapes(opened, shapes), given)
    if after is not None:
        click.echo(lowered.text_after(after), nl=False)
    elif as_json:
        print_json(overview.as_dict(lowered))
    else:
        overview.show(lowered, console())
    if output is not None:
        written = dump_files.write(lowered, output)
        click.echo(f"wrote {len(written)} files to {output}", err=as_json or after is not None)
