"""Where commands write: tables on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jitcl.codegen.text import table as table
from jitcl.errors import OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from jitcl.devices.base import Progress

PIPED_WIDTH = 160            # columns where nobody watches


def console(file: TextIO | None = None) -> Console:
    """A rich console that shows `f32[batch,3]` as it stands, and is wide in pipes."""
    from rich.console import Console
    file = sys.stdout if file is None else file
    return Console(file=file, markup=False, highlight=False, emoji=False,
                   width=None if file.isatty() else PIPED_WIDTH)


def print_json(value: Any) -> None:
    """JSON on stdout. Infinities and NaN become null: they are no JSON."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """What `print_json` prints."""
    return json.dumps(_finite(value), indent=2)


def write_json(path: Path, value: Any) -> None:
    """JSON into a file, or on stdout for "-". Raises OptionError."""
    if str(path) == "-":
        print_json(value)
    else:
        write_text(path, json_text(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises OptionError where the file can't be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write to '{path}': {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """OptionError before an hour of work, not after it, where a file has no folder; "-" needs none.
    """
    if str(path) != "-" and not path.absolute().parent.is_dir():
        raise OptionError(f"cannot write '{path}': there is no folder '{path.parent}'\n"
                          "  Make it first, or name another place.")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress | None]:
    """A progress callback that draws a bar on stderr while a model is compiled; None if unwatched.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        task = bars.add_task("", visible=False)         # until there is something to count

        def progress(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total, description=what, visible=True)
        yield progress


def node_names(names: Sequence[str]) -> str:
    """Names of the model's nodes for a table: "/conv1/Conv, /relu1/Relu +1"."""
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")


def duration(seconds: float) -> str:
    """0.00123 -> "1.23 ms"."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


