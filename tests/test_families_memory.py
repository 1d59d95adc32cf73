"""Hundreds of shapes in any order: memory and the cache stay as they are after the first few."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import jitcl
from benchmarks.free_dimensions import bert, resnet
from tests.devices import present
from tests.test_families_ops import CASES

Feed = Callable[..., dict[str, np.ndarray]]
DEVICES = [d for d in ("cpu", "opencl:pocl") if d in present()]
SHAPES, BEGINNING = 300, 50
GROWTH = 8 << 20                # bytes


def text(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(length).integers(0, 1000, (batch, length))}


def picture(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, 3, height, width), np.float32)}


# each model, what it is fed at a shape, and the shapes that there are
MODELS: tuple[tuple[onnx.ModelProto, Feed, tuple[range, ...]], ...] = (
    (bert(layers=1, width=64, heads=2), text, (range(1, 9), range(1, 257))),
    (resnet(width=16, stages=2), picture, (range(1, 4), range(64, 200), range(64, 200))),
    (CASES["lstm"][0], CASES["lstm"][1], (range(2, 300),)))


def resident() -> int:
    """Bytes of this process that lie in memory, without what malloc keeps of freed ones."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def held(folder: Path) -> dict[str, int]:
    """Files of a cache and their bytes."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*.jitcl")}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.slow if d == "cpu" else pytest.mark.long) for d in DEVICES])
def test_300_shapes_of_three_models_take_no_more_than_50(device: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    models = [jitcl.compile(m, device=device, cache_dir=tmp_path) for m, *_ in MODELS]
    shapes = [(k, tuple(int(rng.choice(r)) for r in MODELS[k][2]))
              for k in rng.integers(0, len(models), SHAPES)]
    # The largest come early: an arena is as large as the largest shape so far.
    shapes[:len(models)] = [(k, tuple(r[-1] for r in m[2])) for k, m in enumerate(MODELS)]
    for number, (k, shape) in enumerate(shapes):
        (found,) = list(models[k].run(MODELS[k][1](*shape)).values())[:1]
        assert np.isfinite(found).all()
        if number == BEGINNING:
            memory, files = resident(), held(tmp_path)
    assert held(tmp_path) == files
    assert resident() - memory < GROWTH
