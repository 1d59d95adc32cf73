"""`jitcl generate`, `jitcl chat`, `jitcl perplexity`: language models on the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import isolation_option, json_option, language_options
from jitcl.errors import InputError

if TYPE_CHECKING:
    from jitcl.lm import LanguageModel

EPILOG = """\b
Examples:
  jitcl generate models/smollm 'The capital of France is' -n 32
  jitcl generate models/smollm 'Once' --temperature 0.8 --top-p 0.95 --seed 1 -d opencl
"""
_SAMPLING: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--max-new-tokens", type=click.IntRange(1), default=256, show_default=True,
                 help="Tokens to write at most."),
    click.option("--temperature", type=float, help="0: the likeliest token.  [default: as "
                 "generation_config.json says, else 0]"),
    click.option("--top-k", type=int, help="Draw from so many of the likeliest tokens."),
    click.option("--top-p", type=float, help="Draw from the likeliest that make up this "
                 "probability."),
    click.option("--min-p", type=float, help="Draw from those that have this part of the "
                 "likeliest's probability."),
    click.option("--repetition-penalty", type=float, help="Above 1: fewer repetitions."),
    click.option("--seed", type=click.IntRange(0), help="The same gives the same text."),
    click.option("--stop", multiple=True, metavar="TEXT",
                 help="End before this text; repeatable."),
)


def _sampling(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def _opened(model: Path, device: str, precision: str, memory: str, cache_dir: Path | None,
            isolation: str | None, quiet: bool = False) -> LanguageModel:
    from jitcl.lm import load

    def said(done: int, total: int, what: str) -> None:
        if not quiet and done < total:
            click.echo(f"\r\x1b[K{what} ({done} of {total})", nl=False, err=True)
        elif not quiet:
            click.echo("\r\x1b[K", nl=False, err=True)

    watched = sys.stderr.isatty()
    return load(model, device=device, precision=precision, memory=memory, isolation=isolation,
                cache_dir=cache_dir, progress=said if watched else None)


def _told(pieces: Iterator[str]) -> str:
    """Print them as they come."""
    found = []
    for piece in pieces:
        click.echo(piece, nl=False)
        found.append(piece)
    click.echo()
    return "".join(found)


def _figures(model: LanguageModel) -> str:
    from jitcl import memory_stats

    held = sum(d.bytes for d in memory_stats().devices.values())
    return f"{model.device.name}: {model.last}; model {held / 2**20:.1f} MiB"


@click.command(epilog=EPILOG)
@language_options
@click.argument("prompt")
@_sampling
@isolation_option
@json_option
def generate(model: Path, prompt: str, device: str, precision: str, memory: str,
             cache_dir: Path | None, isolation: str | None, as_json: bool, **options: Any) -> None:
    """Write what follows PROMPT, by the language model in the folder MODEL. "-" reads the prompt
    from standard input. Speed and memory are told on standard error."""
    if prompt == "-":
        prompt = sys.stdin.read()
    with _opened(model, device, precision, memory, cache_dir, isolation, as_json) as opened:
        if not as_json:
            _told(opened.generate(prompt, stream=True, **options))
            click.echo(_figures(opened), err=True)
            return
        text = opened.generate(prompt, **options)
        from jitcl.cli.console import print_json
        print_json({"text": text, "device": opened.device.name, **vars(opened.last)})


@click.command()
@language_options
@click.option("--system", metavar="TEXT", help="What stands before the conversation.")
@_sampling
@isolation_option
def chat(model: Path, system: str | None, device: str, precision: str, memory: str,
         cache_dir: Path | None, isolation: str | None, **options: Any) -> None:
    """Talk with the language model in the folder MODEL: a line is a message, an empty one or the
    end of input ends. What was said is not computed again."""
    messages = [{"role": "system", "content": system}] if system else []
    with _opened(model, device, precision, memory, cache_dir, isolation) as opened:
        while True:
            click.echo("> ", nl=False, err=True)
            line = sys.stdin.readline().rstrip("\n")
            if not line:
                return
            messages.append({"role": "user", "content": line})
            said = _told(opened.generate(messages, stream=True, **options))
            messages.append({"role": "assistant", "content": said})
            click.echo(_figures(opened), err=True)


@click.command()
@language_options
@click.argument("text", type=click.Path(path_type=Path))
@click.option("--window", type=click.IntRange(2), metavar="N",
              help="Tokens that are looked at together.  [default: the model's context]")
@isolation_option
@json_option
def perplexity(model: Path, text: Path, device: str, precision: str, memory: str,
               cache_dir: Path | None, window: int | None, isolation: str | None, as_json: bool
               ) -> None:
    """How well the language model in the folder MODEL predicts the file TEXT: the loss in nats a
    token, and the perplexity."""
    try:
        content = text.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{text}: is no UTF-8 text: {error}") from None
    with _opened(model, device, precision, memory, cache_dir, isolation, as_json) as opened:
        begin = time.perf_counter()
        score = opened.score(content, window=window)
        seconds = time.perf_counter() - begin
        figures = {"tokens": len(score.ids), "loss": score.loss, "perplexity": score.perplexity,
                   "device": opened.device.name, "seconds": seconds}
    if as_json:
        from jitcl.cli.console import print_json
        print_json(figures)
        return
    click.echo(f"loss {score.loss:.4f} nats a token, perplexity {score.perplexity:.3f}, "
               f"{len(score.ids)} tokens, {len(score.ids) / seconds:.1f} tokens/s on "
               f"{figures['device']}")
