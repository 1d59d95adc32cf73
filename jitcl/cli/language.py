"""`jitcl generate`, `chat`, `perplexity`, `serve`: language models on the command line."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import isolation_option, json_option, language_options
from jitcl.errors import InputError, OptionError

if TYPE_CHECKING:
    from jitcl.lm import LanguageModel

EPILOG = """\b
Examples:
  jitcl generate models/smollm 'The capital of France is' -n 32
  jitcl generate models/smollm 'Once' --temperature 0.8 --top-p 0.95 --seed 1 -d opencl
"""
_LOADING = ("device", "precision", "memory", "adapter", "cache_dir", "isolation")
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
    click.option("--schema", type=click.Path(path_type=Path), metavar="FILE",
                 help="The text is JSON of this JSON schema."),
    click.option("--grammar", type=click.Path(path_type=Path), metavar="FILE",
                 help="The text is what this grammar says, as Lark has them."),
    click.option("--draft", metavar="lookup|MODEL", help="Who guesses tokens, so that one step "
                 "looks at several: the text itself, or a smaller model on the same device. The "
                 "text is the same."),
)


def _sampling(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def _opened(model: Path, options: dict[str, Any], quiet: bool = False) -> LanguageModel:
    """The model, opened with those of a command's options that `load` takes."""
    from jitcl.lm import load

    def said(done: int, total: int, what: str) -> None:
        if not quiet and done < total:
            click.echo(f"\r\x1b[K{what} ({done} of {total})", nl=False, err=True)
        elif not quiet:
            click.echo("\r\x1b[K", nl=False, err=True)

    return load(model, progress=said if sys.stderr.isatty() else None,
                **{name: options.pop(name) for name in _LOADING})


@contextlib.contextmanager
def _writing(opened: LanguageModel, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What `LanguageModel.generate` takes for a command's options."""
    schema, grammar = options.pop("schema"), options.pop("grammar")
    if schema is not None and grammar is not None:
        raise OptionError("--schema and --grammar: a text has one of them")
    try:
        if schema is not None:
            options["form"] = json.loads(schema.read_text(encoding="utf-8"))
        elif grammar is not None:
            options["form"] = grammar.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{schema or grammar}: cannot be read: {error}") from None
    if options["draft"] in (None, "lookup"):
        yield options
        return
    from jitcl.lm import load

    with load(options["draft"], device=opened.device) as draft:
        yield {**options, "draft": draft}


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
def generate(model: Path, prompt: str, as_json: bool, **options: Any) -> None:
    """Write what follows PROMPT, by the language model in the folder MODEL. "-" reads the prompt
    from standard input. Speed and memory are told on standard error."""
    if prompt == "-":
        prompt = sys.stdin.read()
    with _opened(model, options, as_json) as opened, _writing(opened, options) as options:
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
def chat(model: Path, system: str | None, **options: Any) -> None:
    """Talk with the language model in the folder MODEL: a line is a message, an empty one or the
    end of input ends. What was said is not computed again."""
    messages = [{"role": "system", "content": system}] if system else []
    with _opened(model, options) as opened, _writing(opened, options) as options:
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
def perplexity(model: Path, text: Path, window: int | None, as_json: bool, **options: Any) -> None:
    """How well the language model in the folder MODEL predicts the file TEXT: the loss in nats a
    token, and the perplexity."""
    try:
        content = text.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{text}: is no UTF-8 text: {error}") from None
    with _opened(model, options, as_json) as opened:
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


@click.command()
@language_options
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where to listen. All but this machine's own need an --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="0: one that is free.")
@click.option("--api-key", "keys", multiple=True, metavar="KEY",
              help="What clients must know; repeatable. Other users of this machine can see it.")
@click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE",
              help="The same, a key a line.")
@click.option("--name", help="What clients call the model.  [default: the folder's or file's name]")
@click.option("--batch", type=click.IntRange(1), metavar="N",
              help="Texts that are written at once; others wait.  [default: 8, fewer where memory "
              "is short]")
@click.option("--max-clients", type=click.IntRange(1), default=64, show_default=True,
              help="Requests that are under way or wait; others are told to try again.")
@click.option("--max-body", type=click.IntRange(1), default=4 << 20, show_default=True,
              metavar="BYTES", help="Of a request.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(1),
              help="Of an answer.  [default: the model's context]")
@isolation_option
def serve(model: Path, host: str, port: int, keys: tuple[str, ...], api_key_file: Path | None,
          batch: int | None, **options: Any) -> None:
    """Serve the language model in the folder MODEL over HTTP to OpenAI's clients."""
    from jitcl.lm.extra import library

    for name in ("starlette", "uvicorn", "prometheus_client"):
        library(name, "jitcl serve", "serve")
    from jitcl.lm import server

    if api_key_file is not None:
        try:
            keys += tuple(filter(None, map(str.strip, api_key_file.read_text().splitlines())))
        except ValueError as error:
            raise InputError(f"{api_key_file}: is no text: {error}") from None
        if not keys:
            raise InputError(f"{api_key_file}: has no key\n  Write one a line.")
    if any(not key for key in keys):
        raise OptionError("--api-key: wanted a key that is not empty")
    if host not in server.LOOPBACK and not keys:
        raise OptionError(f"--host {host}: other machines may reach it, and there is no key\n"
                          "  Pass --api-key-file FILE.")
    with _opened(model, options) as opened, contextlib.suppress(KeyboardInterrupt):
        opened.batch = batch or opened.batch
        server.serve(opened, host, port, lambda told: click.echo(told, err=True), keys=keys,
                     **options)
