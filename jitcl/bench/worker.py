"""The process of one engine: opens it, runs it when it is its turn, and is quiet in between.

Frames in: ("open", opener, arguments, threads), then ("turn", seconds) and ("ask", method,
arguments); out: ("ok", answer) or ("error", class, message). End of input ends the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jitcl.bench.turns import timed_turn
from jitcl.devices.messages import read_message, write_message
from jitcl.errors import JitclError


class Engine(Protocol):
    """What an opener returns. Other methods may be asked for by name."""

    @property
    def about(self) -> dict[str, Any]: ...      # after the first run

    def run(self) -> Mapping[str, Any]:
        """Outputs by name, of the inputs that it was opened with."""


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                               # what an engine prints cannot damage the frames
    engine: Engine | None = None
    while (request := read_message(sys.stdin.buffer)) is not None:
        try:
            if request[0] == "open":
                engine, answer = _open(*request[1:])
            else:
                assert engine is not None, "an engine is opened first"
                answer = _answer(engine, *request)
            write_message(out, ("ok", answer))
        except JitclError as error:
            write_message(out, ("error", type(error).__name__, str(error)))


def _open(opener: str, arguments: dict[str, Any], threads: int) -> tuple[Engine, Any]:
    limit_cores(threads)
    start = time.perf_counter()
    engine: Engine = find_opener(opener)(**arguments, threads=threads)
    outputs = dict(engine.run())
    seconds = time.perf_counter() - start
    return engine, (outputs, seconds, engine.about)


def _answer(engine: Engine, kind: str, *what: Any) -> Any:
    if kind == "turn":
        return timed_turn(engine.run, what[0])
    method, arguments = what
    return getattr(engine, method)(**arguments)


def find_opener(opener: str) -> Callable[..., Engine]:
    """The function that "module:function" or "file.py:function" names."""
    place, _, name = opener.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    spec = importlib.util.spec_from_file_location("jitcl_bench_engines", place)
    assert spec is not None and spec.loader is not None, place
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module             # dataclasses look their module up
    spec.loader.exec_module(module)
    return getattr(module, name)


def limit_cores(threads: int) -> None:
    """No more cores than threads, where the system can say so: OpenCL drivers for CPUs take all
    that the process may run on, whatever they are told.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if threads < len(cores):
        os.sched_setaffinity(0, cores[:threads])
