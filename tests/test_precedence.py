"""Models of several priorities on one device: which run begins next."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

import jitcl
from jitcl.runtime import precedence
from tests.devices import cpus, present
from tests.drivers import posing

OPENCL = [s for s in present() if s.startswith("opencl")]
TEXT = "graph @NAME(%x: f32[4,8]) {\n  %y = neg(%x)\n  return %y\n}"
X = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)


def model(priority: str, device: str = "cpu") -> jitcl.Model:
    return jitcl.compile(jitcl.parse(TEXT.replace("NAME", priority)), device=device,
                         priority=priority)


class Busy:
    """A model's run that is under way until `end` is called."""

    def __init__(self, priority: str, device: str = "cpu") -> None:
        self.model, begun, self.gone = model(priority, device), threading.Event(), threading.Event()

        def run(feeds):
            begun.set()
            assert self.gone.wait(60)
            return {}

        self.model.run = run
        self.run = self.model.submit({"x": X})
        assert begun.wait(60)

    def end(self) -> None:
        self.gone.set()
        self.run.result(60)


@pytest.mark.parametrize("device", ["cpu", *OPENCL])
def test_a_queued_run_of_higher_priority_begins_first(device):
    low, normal, busy, order = model("low", device), model("normal", device), Busy(
        "high", device), []
    queued = []
    for one in (low, low, normal, normal):
        run = one.submit({"x": X})
        run.add_done_callback(lambda run: order.append(run.name))
        queued.append(run)
    assert not any(run.running() or run.done() for run in queued)
    busy.end()
    assert all((run.result(60)["y"] == -X).all() for run in queued)
    low.close()                                     # behind the callbacks
    normal.close()
    assert order == ["model normal"] * 2 + ["model low"] * 2


def test_run_and_bound_runs_wait_too_and_those_of_equal_priority_do_not():
    low, busy, order = model("low"), Busy("high"), []
    bound = low.bind()
    bound.inputs["x"] = X
    threads = [threading.Thread(target=lambda f=f: order.append(f()["y"].copy())) for f in (
        bound.run, lambda: low.run({"x": X}))]
    for thread in threads:
        thread.start()
    other = model("high")
    assert (other.run({"x": X})["y"] == -X).all() and not order     # beside the one under way
    assert (model("low", "reference").run({"x": X})["y"] == -X).all()   # another device
    busy.end()
    for thread in threads:
        thread.join(60)
    assert len(order) == 2 and all((y == -X).all() for y in order)


def test_what_waits_can_be_cancelled_and_closed():
    low, busy = model("low"), Busy("normal")
    first, second = low.submit({"x": X}), low.submit({"x": X})
    assert first.cancel() and not second.done()
    low.close(cancel_queued=True)                   # while the other is still under way
    assert second.cancelled()
    busy.end()
    assert (model("low").run({"x": X})["y"] == -X).all()


def test_a_callback_does_not_wait_for_the_runs_behind_it():
    """Which its own thread would have to compute."""
    low, busy, found = model("low"), Busy("high"), []
    busy.run.add_done_callback(lambda _: found.append(low.run({"x": X})["y"]))
    behind = busy.model.submit({"x": X})
    busy.end()
    assert behind.result(60) == {} and (found[0] == -X).all()


def test_a_run_that_gets_no_turn_is_told(caplog, monkeypatch):
    monkeypatch.setattr(precedence, "PATIENCE", 0.01)
    low, busy = model("low"), Busy("high")
    with caplog.at_level(logging.WARNING, "jitcl"):
        run = low.submit({"x": X})
        with pytest.raises(TimeoutError):
            run.result(0.5)
    busy.end()
    run.result(60)
    assert [r.message for r in caplog.records] == [
        "a run of model low (priority low) has waited 0 s for runs of a higher priority on its "
        "device, and waits on: these leave it no time"]


@pytest.mark.parametrize("wrong", ["urgent", 2, None])
def test_other_priorities_are_refused(wrong):
    with pytest.raises(jitcl.OptionError, match=f"priority: got {wrong!r}, wanted one of low, "):
        jitcl.compile(jitcl.parse(TEXT), device="cpu", priority=wrong)


@pytest.mark.parametrize("device", cpus()[:1])
def test_a_driver_that_refuses_the_hint_it_offers(device, monkeypatch, caplog):
    """No driver of CPUs takes it: another extension stands for the one that is claimed."""
    from jitcl.devices.opencl import session

    monkeypatch.setattr(session, "HINTS", "cl_khr_global_int32_base_atomics")
    with caplog.at_level(logging.WARNING, "jitcl.devices"):
        assert (model("high", device).run({"x": X})["y"] == -X).all()
        (told,) = [r.message for r in caplog.records]
        assert "refuses a queue of high priority" in told
        assert model("normal", device).run({"x": X}) and len(caplog.records) == 1


HINTED = f"""
import json
import numpy as np
import jitcl
x = np.ones((4, 8), np.float32)
for priority in ("high", "normal", "low"):
    model = jitcl.compile(jitcl.parse({TEXT!r}), device="opencl:arm", priority=priority)
    assert (model.run({{"x": x}})["y"] == -1).all()
print(json.dumps(None))
"""


@posing.needed()
@pytest.mark.in_turn
@pytest.mark.slow
def test_a_driver_that_takes_hints_gets_them(tmp_path):
    pose = posing.POSES["mali-g78:pocl"]
    counts = {}
    for extension in ("", "cl_khr_priority_hints"):
        posed = replace(pose, add=f"{pose.add} {extension}")
        counts[extension] = posing.run_python(
            HINTED, cache=tmp_path / f"with-{extension}", pose=posed).stats.totals["hints"]
    assert counts == {"": 0, "cl_khr_priority_hints": 2}
