"""Memory of temporaries on the CPU: where it grows it keeps the pages that it has."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import jitcl
from jitcl.devices import results
from jitcl.devices.cpu.arena import Arena
from jitcl.devices.results import ALIGN, PAGE

SIZES = (0, 100, 3 * PAGE, 5 << 20, 64 << 20, 70, 9 << 20)
TEXT = """graph @f(%x: f32[n,64], %w: f32[64,64]) {
  %1 = matmul(%x, %w)
  %2 = softmax(%1) {axis=-1}
  %y = matmul(%2, %w)
  return %y
}"""


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_an_arena_of_any_size_becomes_one_of_any_other(
        platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mappings don't move, too."""
    monkeypatch.setattr(results.sys, "platform", platform)
    room = Arena(10)
    for nbytes in SIZES:
        room.resize(nbytes)
        part = room.part(0, nbytes)
        assert room.nbytes == part.nbytes == nbytes
        assert nbytes == 0 or part.ctypes.data % ALIGN == 0
        part[...] = 7
        del part


@pytest.mark.skipif(sys.platform != "linux", reason="mappings that move are Linux's")
def test_what_grows_keeps_its_pages() -> None:
    room = Arena(8 << 20)
    room.part(0, 8 << 20)[:] = 5
    room.resize(256 << 20)
    assert (room.part(0, 8 << 20) == 5).all()           # nothing else would say so


def test_who_holds_a_part_keeps_it() -> None:
    room = Arena(1 << 20)
    held = room.part(PAGE, PAGE)
    held[:] = 5
    room.resize(2 << 20)
    room.part(0, 2 << 20)[:] = 7
    assert (held == 5).all()


def test_what_is_bound_runs_beside_a_model_that_grows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64)).astype(np.float32)
    with jitcl.compile(jitcl.parse(TEXT), device="cpu", cache_dir=tmp_path) as model:
        small, large = ({"x": rng.standard_normal((n, 64)).astype(np.float32), "w": w}
                        for n in (5, 3000))
        want = model.run(small)["y"]
        bound = model.bind({name: array.shape for name, array in small.items()})
        for name, array in small.items():
            bound.inputs[name][...] = array
        first = model.run(large)["y"]
        for _ in range(2):
            np.testing.assert_array_equal(bound.run()["y"], want)
            np.testing.assert_array_equal(model.run(large)["y"], first)
