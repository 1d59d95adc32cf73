"""The command `jitcl`: its subcommands, and how errors are told.

A `JitclError` is one message on stderr and exit status 1; with JITCL_DEBUG=1 or more it keeps its
traceback, as every other error does. Subcommands import what they need when they run, so that
`jitcl --help` and `jitcl cache ls` load neither numba nor onnx.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from typing import Any, NoReturn

import click

from jitcl import __version__, config
from jitcl.cli.bench import bench
from jitcl.cli.cache import cache
from jitcl.cli.check import check
from jitcl.cli.devices import devices
from jitcl.cli.doctor import doctor
from jitcl.cli.dump import dump
from jitcl.cli.explore import explore
from jitcl.cli.language import chat, generate, perplexity, serve
from jitcl.cli.profile import profile
from jitcl.cli.quantize import quantize
from jitcl.cli.run import run
from jitcl.cli.tune import tune
from jitcl.devices.shortage import system_error
from jitcl.errors import JitclError, OptionError

EPILOG = """\b
Examples:
  jitcl devices                                 what can run models here
  jitcl run model.onnx --random                 does it run, and how fast?
  jitcl run model.onnx -i image=cat.png -o out  a picture in, arrays out
  jitcl generate folder 'Once upon a'           a language model's text
  jitcl check model.onnx --precision low        which layer can't take it?
  jitcl bench model.onnx                        beside other engines, in turns
  jitcl profile model.onnx --save run.html      where does the time go?
  jitcl tune model.onnx                         the fastest kernels of this device
  jitcl quantize model.onnx -o small.onnx       weights in 8 or 4 bits, as a file
  jitcl dump model.onnx -o dump                 graphs, kernels, memory as files
  jitcl explore model.onnx --open               the same as a page to look at
  jitcl cache why model.onnx                    why was it compiled again?
  jitcl doctor --bundle report.zip              what is missing, and a report to send

\b
Environment variables (JITCL_DEBUG=1 shows where an error comes from):
"""


class Failure(click.ClickException):
    """A JitclError as its user sees it."""

    def __init__(self, error: JitclError) -> None:
        super().__init__(f"jitcl.{type(error).__name__.rstrip('_')}: {error}")

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class Commands(click.Group):
    """A group whose JitclErrors end as a message, not as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except JitclError as error:
            if _debug():
                raise
            raise Failure(error) from error
        except MemoryError as error:
            told = system_error(error)
            if told is None or _debug():
                raise
            raise Failure(told) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        lines = config.table(formatter.width - 2).splitlines()
        formatter.write("".join(f"  {line}\n" for line in lines))


def _debug() -> int:
    """JITCL_DEBUG; a wrong value there is reported by the command, not while an error is told."""
    try:
        return int(config.get("debug"))
    except OptionError:
        return 0


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jitcl", message="%(prog)s %(version)s")
def cli() -> None:
    """Run neural networks on any OpenCL device or CPU, with kernels written for it.

    MODEL is an ONNX file, or a text graph (.jitcl) as `jitcl dump` writes it; of generate, chat,
    perplexity and serve a folder as Hugging Face has it, or a .gguf file.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    for name in config.unknown():
        click.echo(f"warning: {name} means nothing to jitcl; `jitcl --help` lists its variables",
                   err=True)


for _command in (run, generate, chat, perplexity, serve, check, bench, profile, tune,
                 quantize, dump, explore, devices, doctor, cache):
    cli.add_command(_command)


def main() -> None:
    """Entry point of the command. What is written and does not arrive (a full disk, a pipe that is
    closed) is told in one line, or not at all where nobody reads on.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:       # closed by the caller, who wants none of it
            handle = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(handle, "w", encoding="utf-8"))
    if hasattr(sys.stdout, "reconfigure"):   # names that the terminal has no letters for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            cli(prog_name="jitcl")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if _debug() and error.filename is not None:
            raise
        _refused(error)


def _refused(error: OSError) -> NoReturn:
    """End with status 1, saying what the system refused; without a file's name it is the output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())      # for Python's own end
    if error.errno != errno.EPIPE:
        what = "write to standard output" if error.filename is None else f"use '{error.filename}'"
        with contextlib.suppress(OSError):
            click.echo(f"jitcl.JitclError: cannot {what}: {error.strerror or error}", err=True)
    sys.exit(1)
