"""An engine in a process of its own, as the process that compares engines sees it.

Threads of one engine that wait for work spin beside the runs of the next (onnxruntime's and
OpenBLAS's do), and two OpenCL drivers in one process share thread pools: apart, and quiet between
turns, each runs as it would alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitcl import errors
from jitcl.devices.messages import child_command, read_message, write_message
from jitcl.errors import DeviceError, JitclError

_SAID = 400                 # characters of a dead engine's last line
# OpenBLAS takes them in place of what it finds, at up to half of its speed: engines run as they
# would for somebody who has set neither.
_DROPPED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Entrant:
    """An engine by name, and how it is opened in its process: `opener` is "module:function" or
    "file.py:function", `arguments` are what it is called with; see bench/openers.py.
    """

    name: str
    opener: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: bool = False          # not jitcl: what jitcl is compared with


@dataclass(frozen=True)
class Opened:
    """What an engine says after its first run. seconds: from opening it to the first result."""

    outputs: dict[str, Any]
    seconds: float
    about: dict[str, Any]       # "device", "version" and what else the engine tells


class EngineProcess:
    """A child with one engine. `open` first; then turns and questions; `close` ends it. Each raises
    the JitclError that the engine raised, and DeviceError where the child died.
    """

    def __init__(self, entrant: Entrant, threads: int) -> None:
        self.entrant, self.name = entrant, entrant.name
        package = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join([package, *(p for p in sys.path if p)])
        limits = {name: str(threads) for name in (
            "JITCL_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        self._process = subprocess.Popen(
            child_command("jitcl.bench.worker"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={**kept, "PYTHONPATH": paths, **limits},
            start_new_session=True)     # an interrupt from the keyboard is the caller's to handle
        self._threads = threads

    def open(self) -> Opened:
        """Open the engine and run it once."""
        given = (self.entrant.opener, dict(self.entrant.arguments), self._threads)
        return Opened(*self._answer(("open", *given)))

    def turn(self, seconds: float) -> list[float]:
        return list(self._answer(("turn", seconds)))

    def ask(self, method: str, **arguments: Any) -> Any:
        """The result of one of the engine's other methods."""
        return self._answer(("ask", method, arguments))

    def close(self) -> None:
        """End the child; one that is in the middle of something is killed."""
        with suppress(OSError):         # it died with a request unread
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()

    def _answer(self, request: tuple[Any, ...]) -> Any:
        try:
            write_message(self._process.stdin, request)  # type: ignore[arg-type]
            answer = read_message(self._process.stdout)  # type: ignore[arg-type]
        except OSError:
            answer = None
        if answer is None:
            raise DeviceError(f"{self.name}: its process ended with status "
                              f"{self._process.wait()}: {self._last_words()}")
        kind, *value = answer
        if kind == "error":
            raise _error(*value)
        return value[0]

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:_SAID] if lines else "it said nothing"


def _error(kind: str, message: str) -> JitclError:
    """An engine's error as its own class, where that takes a message alone."""
    found = getattr(errors, kind, JitclError)
    if found is errors.NeedsValue:
        found = JitclError
    error: JitclError = found(message)
    return error
