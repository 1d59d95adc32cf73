"""The same inputs give the same bits: over runs and over thread counts."""

from __future__ import annotations

import time

import numpy as np
import pytest

import jitcl
from tests.real_models import MODELS, goldens, needs_models
from tests.test_models import DEVICES, NAMES

pytestmark = needs_models


SECONDS, AT_LEAST = 3.0, 10             # of runs of a large model on a slow driver


def check_repeatable(name: str, device: str, runs: int) -> None:
    """Bit-for-bit equal; inputs changed after the call, and outputs kept, change nothing."""
    model = jitcl.compile(MODELS / f"{name}.onnx", device=device)
    feeds, _ = goldens(name)[0]
    first = model.run(feeds)
    kept = {n: v.copy() for n, v in first.items()}
    end = time.monotonic() + SECONDS
    for k in range(runs):
        if k >= AT_LEAST and time.monotonic() > end:
            break
        mine = {n: v.copy() for n, v in feeds.items()}
        again = model.run(mine)
        for v in mine.values():
            v[...] = 0
        for n, v in again.items():
            np.testing.assert_array_equal(v.view(np.uint8), kept[n].view(np.uint8))
            v[...] = 0
    for n, v in first.items():
        np.testing.assert_array_equal(v.view(np.uint8), kept[n].view(np.uint8))


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", DEVICES)
def test_repeatable(device: str) -> None:
    check_repeatable("mnist8", device, 100)


@pytest.mark.slow
@pytest.mark.sampled(slow=14)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_repeatable_all(name: str, device: str) -> None:
    check_repeatable(name, device, 100)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_changes_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds, _ = goldens("oww_embedding")[0]
    model = jitcl.compile(MODELS / "oww_embedding.onnx", device="cpu")
    monkeypatch.setenv("JITCL_THREADS", "1")
    alone = model.run(feeds)
    monkeypatch.setenv("JITCL_THREADS", str(threads))
    for name, value in model.run(feeds).items():
        np.testing.assert_array_equal(value, alone[name])
