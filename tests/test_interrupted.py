"""Runs that a signal's handler ends in the middle (Ctrl-C, a time limit): the next are right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import jitcl
from tests.devices import present

WIDTH = 48
SMALL, LARGE = 3, 600
TEXT = f"""graph @grows(%x: f32[n,{WIDTH}], %w: f32[{WIDTH},{WIDTH}]) {{
  %1 = matmul(%x, %w)
  %2 = add(%1, %x)
  %3 = softmax(%2) {{axis=-1}}
  %4 = matmul(%3, %w)
  %y = softmax(%4) {{axis=-1}}
  return %y
}}"""
# where a loaded plan takes other shapes, and other memory
CHANGE = {"_resize", "resized", "_share", "_moved", "move", "_give_back", "_fitted", "fit", "_bind",
          "bind", "allocate", "settle", "again", "_point", "_move", "resize", "mapping", "part",
          "vary", "_place", "_tables", "_look", "view", "<listcomp>", "<genexpr>"}
W = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)


class Interrupted(BaseException):
    """What the handler raises."""


@contextmanager
def interrupted(line: int) -> Iterator[list[str]]:
    """At the line of CHANGE that is the so many'th to be run; yields a list of it, if it came."""
    came: list[str] = []
    left = [line]

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if "jitcl/devices/" not in code.co_filename.replace("\\", "/") or (
                code.co_name not in CHANGE):
            return None
        left[0] -= event == "line"
        if event == "line" and left[0] == 0:
            came.append(f"{code.co_filename}:{frame.f_lineno}")
            raise Interrupted
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        yield came
    except Interrupted:
        pass
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("device", [d for d in present() if d != "reference"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("first", "second"), [(SMALL, LARGE), (LARGE, SMALL), (SMALL, SMALL + 1)])
def test_at_every_line_where_shapes_change(
        device: str, first: int, second: int, keep: bool) -> None:
    """Memory moves, too, where plans grow in place. keep: the run's results stay on the device."""
    sizes = SMALL, SMALL + 1, LARGE
    feeds = {n: {"x": np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32),
                 "w": W} for n in sizes}
    with jitcl.compile(jitcl.parse(TEXT), device=device) as model:
        found = {n: model.run_specialised(fed) for n, fed in feeds.items()}
        want = {n: outputs["y"].tobytes() for n, (outputs, _) in found.items()}

        def run(n: int) -> bytes:
            (y,) = model.computed_by(found[n][1], feeds[n])
            bits = y.tobytes()
            y[...] = np.nan                     # whoever has its memory next
            return bits

        line, came, lines = 0, ["at first"], set[str]()
        while came:
            line += 1
            assert run(first) == want[first]
            with interrupted(line) as came:
                model.computed_by(found[second][1], feeds[second], keep, keep)
            lines.update(came)
            for n in (second, first) if line % 2 else (first, second):
                assert run(n) == want[n], (came, n)
    assert len(lines) > 10
