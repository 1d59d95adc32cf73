"""`jitcl quantize`: a model with weights in few bits, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

EPILOG = """\b
Examples:
  jitcl quantize model.onnx -o int8.onnx
  jitcl quantize model.onnx -o int4.onnx --bits 4 --block 32 --calibrate photos
  jitcl quantize model.onnx -o int4.onnx --bits 4 --skip '/head/*'
  jitcl quantize model.onnx -o int4.onnx --bits 4 --calibrate photos --tolerance 0.05
  jitcl check int4.onnx --against-model model.onnx     what did it cost, and where?

\b
The file says it as ONNX does: DequantizeLinear in blocks, opset 21. jitcl keeps such weights
packed; other engines that know opset 21 read it, too.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE", help="The model to write.")
@click.option("--bits", type=click.Choice(("4", "8")), default="8", show_default=True,
              help="Of a weight.")
@click.option("--block", type=click.Choice(("32", "64", "128")), default="64", show_default=True,
              help="Weights of a sum that share a scale.")
@click.option("--asymmetric", is_flag=True, help="A zero point for each block, too.")
@click.option("--skip", multiple=True, metavar="NAME",
              help="A node, or a pattern of nodes, whose weights stay; repeatable.")
@click.option("--wide", multiple=True, metavar="NAME",
              help="The same, whose weights take 8 bits; repeatable.")
@click.option("--calibrate", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Inputs that weights are rounded for, each .npz or .npy in it.  [default: each "
              "weight goes to the nearest code]")
@click.option("--tolerance", type=click.FloatRange(0), metavar="X",
              help="Of an output's largest element: weights take 8 bits, or stay, those first that "
              "hurt most, until no output is off by more, on the inputs of --calibrate or random "
              "ones.")
@click.option("--budget", type=click.FloatRange(0), metavar="SECONDS",
              help="Of --tolerance: after that nothing more is tried.  [default: 300]")
@click.option("--cache-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="The kernel cache.  [default: the user's]")
def quantize(model: Path, output: Path, bits: str, block: str, asymmetric: bool, **options: Any
             ) -> None:
    """Write MODEL, an ONNX file, with weights in 8 or 4 bits."""
    from jitcl.cli.console import progress_bar
    from jitcl.quantising import quantize as write

    with progress_bar() as progress:
        found = write(model, output, bits=int(bits), block=int(block), symmetric=not asymmetric,
                      progress=progress, **options)
    click.echo(f"saved {found.path}: {len(found.weights)} weights in {bits} bits, "
               f"{found.bytes_before / 2**20:.2f} -> {found.bytes / 2**20:.2f} MiB")
    if found.held is not None:
        click.echo(f"weights: {found.held}")
