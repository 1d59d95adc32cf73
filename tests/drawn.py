"""Random data of the test that runs: the same whichever tests ran before, or beside, it."""

from __future__ import annotations

import numpy as np

_running: list[np.random.Generator] = []


def rng() -> np.random.Generator:
    """The test's own generator, seeded as it starts. Outside a test, where the order of imports or
    of tests would decide what is drawn, an AssertionError.
    """
    assert _running, "random data is drawn inside a test, not while modules are imported"
    return _running[-1]


def start(seed: int = 0) -> None:
    """A test begins."""
    _running[:] = [np.random.default_rng(seed)]


def stop() -> None:
    """It ended."""
    _running.clear()
