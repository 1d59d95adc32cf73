"""Engines for tests of contests: they are opened in processes of their own, by this file's path."""

from __future__ import annotations

import os
import sys
from typing import Any

from jitcl.errors import DeviceError


class Echo:
    """Gives back what it was opened with, and counts its runs."""

    def __init__(self, outputs: dict[str, Any], threads: int) -> None:
        self.outputs, self.threads, self.runs = outputs, threads, 0

    def run(self) -> dict[str, Any]:
        self.runs += 1
        print("whatever an engine prints, the answers stay whole")
        return self.outputs

    @property
    def about(self) -> dict[str, Any]:
        return {"device": "nowhere", "threads": self.threads}

    def told(self, factor: int) -> list[Any]:
        return [self.runs * factor, os.environ["OMP_NUM_THREADS"]]


    def environment(self, names: list[str]) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}


def echo(outputs: dict[str, Any], threads: int) -> Echo:
    return Echo(outputs, threads)


def refusing(threads: int) -> Echo:
    raise DeviceError("this engine takes no model\n  Take another.")


def dying(threads: int) -> Echo:
    sys.stderr.write("an assertion of its library\n")
    sys.stderr.flush()
    os._exit(3)
