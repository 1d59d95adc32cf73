"""jitcl as an engine of a replay harness: `replay.py --engine replay_engine:engine` from this
folder.

JITCL_DEVICE chooses the device, PRECISION the precision (default high).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

import jitcl


class Engine:
    """run(feeds) -> outputs as a list in graph-output order; refuses to hide host work."""

    def __init__(self, path: str) -> None:
        self.model = jitcl.compile(path, precision=os.environ.get("PRECISION", "high"), strict=True)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs = self.model.run(feeds)
        report = self.model.report()
        if report.host:
            raise RuntimeError(f"runs on the host: {report.host}")
        return [outputs[t.name] for t in self.model.outputs]


def engine(path: str) -> Engine:
    return Engine(path)
