"""What the progress callback and the bar are told: done never exceeds the total, and in the end
both are equal.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import jitcl
from jitcl.cli.console import progress_bar
from jitcl.devices.base import Tally
from jitcl.errors import DeviceError
from tests.devices import present

Told = list[tuple[int, int, str]]
GRAPH = """
graph @g(%x: f32[8,SIZE], %w: f32[SIZE,24]) {
  %1 = matmul(%x, %w)
  %2 = sigmoid(%1)
  %y = softmax(%2) {axis=-1}
  return %y
}
"""


def graph(size: int) -> jitcl.Graph:
    return jitcl.parse(GRAPH.replace("SIZE", str(size)))


def check(told: Told, growths: int) -> None:
    """What a person sees: a bar that only moves on, and grows so many times at most."""
    assert told
    assert all(0 <= done <= total and what for done, total, what in told)
    done, totals = [d for d, *_ in told], [t for _, t, _ in told]
    assert done == sorted(done) and totals == sorted(totals)
    assert len(set(totals)) <= growths
    assert done[-1] == totals[-1]
    assert len(set(told)) == len(told)                  # nothing twice


@pytest.mark.parametrize("device", present())
def test_a_compilation_counts_all_that_is_waited_for(device: str, tmp_path: Path) -> None:
    told: Told = []
    model = jitcl.compile(graph(40), device=device, cache_dir=tmp_path, isolation="never",
                          progress=lambda *t: told.append(t))
    check(told, 2)
    said = list(dict.fromkeys(what for *_, what in told))
    assert said[:3] == ["reading the model", "generating kernels", "building kernels"]
    if device.startswith("opencl"):
        assert said[3:] == ["computing what results must be", "checking results",
                            "keeping programs", "loading the model"]
        unchecked = [d for d, t, what in told if what == "checking results"]
        assert len(unchecked) > 1 and unchecked[0] < told[-1][1]      # it moves on meanwhile
    count = len(told)
    model.run({"x": np.zeros((8, 40), "f4"), "w": np.zeros((40, 24), "f4")})
    assert len(told) == count


@pytest.mark.parametrize("device", [s for s in present() if s.startswith("opencl")])
def test_workers_count_too(device: str, tmp_path: Path) -> None:
    told: Told = []
    jitcl.compile(graph(41), device=device, cache_dir=tmp_path, isolation="always",
                  progress=lambda *t: told.append(t))
    check(told, 3)
    assert "trying kernels in worker processes" in [what for *_, what in told]


def test_a_warm_start_builds_nothing(tmp_path: Path) -> None:
    jitcl.compile(graph(42), device="cpu", cache_dir=tmp_path)
    told: Told = []
    jitcl.compile(graph(42), device="cpu", cache_dir=tmp_path, progress=lambda *t: told.append(t))
    assert told == []


def test_models_of_several_shapes_go_on_counting() -> None:
    """Of all compilations of a model, in runs, too."""
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    proto = make.make_model(
        make.make_graph([make.make_node("Relu", ["x"], ["y"])], "g",
                        [make.make_tensor_value_info("x", 1, ["n", 7])],
                        [make.make_tensor_value_info("y", 1, ["n", 7])]),
        opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    told: Told = []
    model = jitcl.compile(proto, device="reference", progress=lambda *t: told.append(t))
    for rows in (3, 4):
        model.run({"x": np.zeros((rows, 7), "f4")})
        assert told[-1][0] == told[-1][1]
    check(told, 4)


def test_probes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of questions, asked or not."""
    from jitcl.devices.opencl.probes import survey

    told: Told = []
    names = [n for group in survey.GROUPS for n in group]
    monkeypatch.setattr(survey, "PROBES", {n: SimpleNamespace(
        name=n, needs=("half",) if n == "half_builtins" else (),
        skip=lambda found, n=n: "no vectors" if n in ("vec16", "half") else "") for n in names})
    monkeypatch.setattr(survey, "isolated", lambda found: SimpleNamespace(
        call=lambda request, seconds: {"answers": [
            {"probe": n, "kind": "good", "evidence": "", "fields": {}, "seconds": 0.0}
            for n in request[1].split("+")]}))
    found = SimpleNamespace(name="a device")
    answers = survey.survey(found, lambda *t: told.append(t))  # type: ignore[arg-type]
    assert [a.probe for a in answers] == names
    assert [a.probe for a in answers if a.kind == "skipped"] == ["vec16", "half", "half_builtins"]
    check(told, 1)
    assert told[-1] == (len(survey.GROUPS), len(survey.GROUPS), "probing a device")


def test_a_part_that_fails_counts_as_done() -> None:
    told: Told = []
    tally = Tally(lambda *t: told.append(t))
    with pytest.raises(DeviceError), tally.part(3, "building") as part:
        part.step()
        raise DeviceError("no")
    with tally.part(2, "building again") as part:
        part.step(7)                                    # no more than are left
    assert told == [(0, 3, "building"), (1, 3, "building"), (3, 5, "building again"),
                    (5, 5, "building again")]
    with tally.part(0, "nothing"):
        pass
    assert len(told) == 4


def test_a_callback_that_raises_ends_the_compilation(tmp_path: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jitcl.compile(graph(43), device="cpu", cache_dir=tmp_path, progress=stop)


def test_the_bar_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is under way and how much of it is done; nothing before that is known."""
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as progress:
        assert progress is not None
        tally = Tally(progress)
        with tally.part(2, "probing a device") as part:
            part.step()
            part.now("checking [results]")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "checking [results]" in shown and "2/2" in shown and "/?" not in shown
