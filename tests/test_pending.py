"""Kernels that a process died over in its own driver: the next one tries them in a worker."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitcl.devices.faults import Fault, FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl import list_devices, programs
from jitcl.devices.opencl.isolation import Isolated
from jitcl.devices.pending import KEPT_SECONDS, Pending
from jitcl.errors import KernelFault
from tests.caches import Memory
from tests.devices import needs, needs_driver
from tests.drivers import posing
from tests.test_isolation import BROKEN, DOUBLE, SQUARE, Compared, X, chain, opened, source

DEVICES = list_devices()
ROOT = Path(__file__).resolve().parent.parent
NEGATED = source("negated_1", "-x[i]")
needs_device = needs_driver()

# -- the files -----------------------------------------------------------------------------------


def marks(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.pending"))


def left_behind(path: Path, *entries: str, pid: int = 0, born: str = "0", number: int = 1) -> Path:
    """The file of a process that has ended: this one's number, but it was born at another time."""
    file = path.with_suffix(f".{number}-0.pending")
    path.parent.mkdir(exist_ok=True)
    said = {"pid": pid or os.getpid(), "born": born, "entries": entries}
    file.write_text(json.dumps(said))
    return file


@pytest.fixture()
def path(tmp_path: Path) -> Path:
    return tmp_path / "faults" / "pocl-3.0--cpu--0123.json"


def test_a_file_is_there_during_the_block_and_not_after_it(path):
    with Pending(path).over(["a", "b"]):
        (mark,) = marks(path)
        assert json.loads(mark.read_text())["entries"] == ["a", "b"]
        assert set(Pending(path).died_over()) == frozenset()         # this process lives
    assert marks(path) == []
    with pytest.raises(KeyboardInterrupt), Pending(path).over(["a"]):
        raise KeyboardInterrupt
    assert list(path.parent.iterdir()) == []


def test_processes_that_ended_are_told_from_those_that_live(path):
    left_behind(path, "a")
    assert set(Pending(path).died_over()) == {"a"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    left_behind(path, "a", pid=child.pid, born=born)
    assert set(Pending(path).died_over()) == frozenset()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert set(Pending(path).died_over()) == {"a"}                   # a zombie has ended
    child.communicate()
    assert set(Pending(path).died_over()) == {"a"}
    assert not Pending(path.with_name("another--device--1.json")).died_over()


def test_what_is_settled_is_forgotten_and_the_rest_is_not(path):
    left_behind(path, "a", "b")
    Pending(path).settle(frozenset("c"))
    Pending(path).settle(frozenset("a"))
    assert set(Pending(path).died_over()) == {"b"}
    Pending(path).settle(frozenset("b"))
    assert marks(path) == []


@pytest.mark.parametrize("text", [
    "", "[]", '{"pid": 1}', '{"pid": "x", "born": "", "entries": []}'])
def test_files_that_say_nothing_are_removed(path, text):
    left_behind(path, "a").write_text(text)
    assert set(Pending(path).died_over()) == frozenset() and marks(path) == []


def test_old_files_are_removed(path):
    old = time.time() - KEPT_SECONDS - 60
    os.utime(left_behind(path, "a"), (old, old))
    assert set(Pending(path).died_over()) == frozenset() and marks(path) == []


def test_where_nothing_can_be_written_there_is_no_file_and_no_warning(tmp_path, caplog):
    (tmp_path / "faults").write_text("a file where the directory would be")
    with Pending(tmp_path / "faults" / "x.json").over(["a"]), Pending(None).over(["a"]):
        pass
    assert [r for r in caplog.records if r.levelno >= logging.INFO] == []


# -- loading -------------------------------------------------------------------------------------

DIES = """
import os, signal, sys
from pathlib import Path
from tests.caches import Memory
from tests.test_isolation import DEVICES, DOUBLE, Compared, chain, opened
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.faults import Fault, FaultDatabase
from jitcl.devices.opencl import loading, programs

def die(*_):
    if sys.argv[3] != "9":
        signal.signal(int(sys.argv[3]), signal.SIG_DFL)     # drivers install handlers
    os.kill(os.getpid(), int(sys.argv[3]))

if sys.argv[2] == "build":
    programs.from_source = die
else:
    loading.run_once = die
device = opened(DEVICES[0], FaultDatabase(Path(sys.argv[1])))
plan = chain(DOUBLE)
device.load(plan, Memory(), options=LoadOptions("untrusted", (Compared(plan),)))
"""


@pytest.fixture()
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The kernels of each job that a worker gets."""
    call, jobs = Isolated.call, []

    def listen(self: Isolated, request: tuple[str, Any], *a: Any, **k: Any) -> Any:
        jobs.append([s.entry for s in request[1].kernels])
        return call(self, request, *a, **k)

    monkeypatch.setattr(Isolated, "call", listen)
    return jobs


@pytest.mark.sampled(quick=3)
@needs_device
@pytest.mark.parametrize(("where", "number"), [
    ("build", signal.SIGKILL), ("build", signal.SIGABRT), ("launch", signal.SIGSEGV)])
def test_a_process_that_died_over_a_kernel_is_not_followed_by_another(path, asked, where, number):
    done = subprocess.run([sys.executable, "-c", DIES, str(path), where, str(int(number))],
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -number, done.stderr
    assert len(marks(path)) == 1
    device, plan, cache = opened(DEVICES[0], FaultDatabase(path)), chain(DOUBLE, SQUARE), Memory()
    (y,) = device.load(plan, cache, options=LoadOptions("untrusted")).run([X])
    np.testing.assert_array_equal(y, (2 * X) ** 2)
    assert sorted(asked) == [["double_1"], ["square_1"]]        # the driver is not trusted
    assert marks(path) == [] and device.faults.faults == ()
    again = opened(DEVICES[0], FaultDatabase(path))
    again.load(plan, cache, options=LoadOptions("untrusted"))
    assert len(asked) == 2 and again.counters["programs_built_from_source"] == 0
    again.load(chain(NEGATED), cache, options=LoadOptions("untrusted"))   # it is: they were right
    assert len(asked) == 2 and again.counters["programs_built_from_source"] == 1


@needs_device
def test_one_model_forgives_what_another_has_left(path, asked):
    """A process was killed over a model that nobody loads any more: its kernels stay suspected."""
    left_behind(path, "double_1")
    device = opened(DEVICES[0], FaultDatabase(path))
    device.load(chain(SQUARE), Memory(), options=LoadOptions("untrusted"))
    assert asked == [["square_1"]]
    device.load(chain(NEGATED), Memory(), options=LoadOptions("untrusted"))
    assert asked == [["square_1"]] and set(Pending(path).died_over()) == {"double_1"}
    device.load(chain(DOUBLE), Memory(), options=LoadOptions("untrusted"))
    assert asked == [["square_1"], ["double_1"]] and marks(path) == []


@needs_device
def test_a_driver_that_crashed_over_proven_features_is_not_trusted(path, asked):
    """Until `jitcl cache retry`; a crash over something unproven says nothing of the others."""
    crash = Fault("other_1", "build", "crash", "SIGABRT", ("vec16",))
    for features, wanted in ((("vec16",), []), (("call:exp",), [["square_1"]])):
        faults = FaultDatabase(path)
        faults.probed((), True)
        faults.record(replace(crash, features=features))
        opened(DEVICES[0], faults).load(chain(SQUARE), Memory(), options=LoadOptions("untrusted"))
        assert asked == wanted
        faults.retry()
    opened(DEVICES[0], faults).load(chain(SQUARE), Memory(), options=LoadOptions("untrusted"))
    assert len(asked) == 1


@needs_device
def test_what_died_again_after_a_worker_had_survived_it_has_failed(path, asked):
    left_behind(path, "double_1")
    left_behind(path, "double_1", number=2)
    faults = FaultDatabase(path)
    with pytest.raises(KernelFault, match="the process ended twice over it"):
        opened(DEVICES[0], faults).load(chain(DOUBLE), Memory(), options=LoadOptions("untrusted"))
    assert [f.kind for f in faults.faults] == ["crash"] and marks(path) == [] and asked == []


@needs_device
def test_what_a_worker_has_survived_is_on_file_while_it_is_built_here(path, monkeypatch):
    adopt, build, seen = programs.ProgramStore.adopt, programs.from_source, []

    def look() -> None:
        seen.append([e for m in marks(path) for e in json.loads(m.read_text())["entries"]])

    monkeypatch.setattr(programs.ProgramStore, "adopt",
                        lambda *a: (look(), adopt(*a))[1])
    monkeypatch.setattr(programs, "from_source", lambda *a: (look(), build(*a))[1])
    for reloadable in (True, False):
        device = opened(DEVICES[0], FaultDatabase(path), reloadable=reloadable)
        device.load(chain(DOUBLE), Memory(), options=LoadOptions("always"))
    assert seen == [["double_1"], ["double_1"]] and marks(path) == []


ABORTS = """
import json, sys
import numpy as np
import jitcl
g = jitcl.parse("graph @f(%x: f32[64]) {\\n  %y = " + sys.argv[1] + "(%x)\\n  return %y\\n}\\n")
model = jitcl.compile(g, device="opencl:pocl")
(y,) = model.run({"x": np.ones(64, np.float32)}).values()
print(json.dumps({"trusted": model.device.target.trusted, "y": float(y[0]),
                  "built": model.device.counters["programs_built_from_source"]}))
"""


@pytest.mark.slow
@posing.needed()
@needs("opencl:pocl")
def test_a_known_good_driver_that_aborts_on_every_build_ends_one_process(tmp_path):
    """Not one for each model, and not one for each start."""
    as_it_is = posing.Pose("PoCL as it is", posing.POCL)

    def start(op: str) -> posing.Outcome:
        code = ABORTS.replace("sys.argv[1]", repr(op))
        return posing.run_python(code, cache=tmp_path, pose=as_it_is,
                                 rules=[r"abort /_[0-9a-f]{10}\(/"])

    first = start("exp")
    assert first.died == "SIGABRT", first
    for op, wanted in (("exp", np.e), ("exp", np.e), ("sqrt", 1.0), ("cos", np.cos(1.0))):
        outcome = start(op)
        assert not outcome.died, outcome.stderr
        assert outcome.value["trusted"] and outcome.value["built"] == 0
        assert abs(outcome.value["y"] - wanted) < 1e-5


@needs_device
def test_kernels_on_file_are_those_under_way(path, monkeypatch):
    build, seen = programs.from_source, []

    def look(*a: Any) -> Any:
        seen.append([json.loads(m.read_text())["entries"] for m in marks(path)])
        return build(*a)

    monkeypatch.setattr(programs, "from_source", look)
    faults = FaultDatabase(path)
    opened(DEVICES[0], faults).load(chain(DOUBLE, SQUARE), options=LoadOptions("untrusted"))
    assert seen == [[["double_1", "square_1"]]]
    opened(DEVICES[0], faults).load(chain(DOUBLE), options=LoadOptions("never"))
    assert seen[1:] == [[]]
    with pytest.raises(KernelFault):
        opened(DEVICES[0], faults).load(chain(BROKEN), options=LoadOptions("untrusted"))
    assert seen[2:] == [[["broken_1"]]] and marks(path) == []


@needs_device
def test_a_stored_kernel_that_a_first_launch_died_over_is_tried_anew(path, asked):
    """It came into the cache where results were not compared."""
    plan, cache, faults = chain(DOUBLE), Memory(), FaultDatabase(path)
    opened(DEVICES[0], faults).load(plan, cache, options=LoadOptions("untrusted"))
    left_behind(path, "double_1")
    trial = Compared(plan)
    opened(DEVICES[0], faults).load(plan, cache, options=LoadOptions("untrusted", (trial,)))
    assert asked == [["double_1"]] and len(trial.seen) == 1 and marks(path) == []


@needs_device
def test_a_warm_start_looks_at_no_file(path, monkeypatch):
    plan, cache, faults = chain(DOUBLE), Memory(), FaultDatabase(path)
    opened(DEVICES[0], faults).load(plan, cache, options=LoadOptions("untrusted"))
    monkeypatch.setattr(Pending, "_left_behind", lambda _: pytest.fail("it looked"))
    monkeypatch.setattr(Pending, "_written", lambda *_: pytest.fail("it wrote"))
    opened(DEVICES[0], faults).load(plan, cache, options=LoadOptions("untrusted"))


# -- trials ---------------------------------------------------------------------------------------

@needs_device
@pytest.mark.parametrize("mode", ["untrusted", "always"])
@pytest.mark.parametrize("reason", ["", "no bound is known"])
def test_a_trial_that_cannot_judge_clears_nobody(mode, reason, caplog):
    four = source("four_1", "x[i] + ((float4)(1.0f)).x")
    device, trial = opened(DEVICES[0], proven=("vec4",)), Compared(chain(four), reason=reason)
    with caplog.at_level(logging.INFO, "jitcl.opencl"):
        (y,) = device.load(chain(four), Memory(), options=LoadOptions(mode, (trial,))).run([X])
    np.testing.assert_array_equal(y, X + 1)
    assert ("vec4" in device.faults.good) == bool(device.session.store.checked) == (not reason)
    assert ("can't be checked (no bound is known): four_1" in caplog.text) == bool(reason)


@needs_device
def test_a_trial_that_cannot_be_prepared_ends_the_loading():
    class Odd(Compared):
        def prepare(self) -> None:
            raise ValueError("no such operation")

    with pytest.raises(ValueError, match="no such operation"):
        odd = LoadOptions("untrusted", (Odd(chain(DOUBLE)),))
        opened(DEVICES[0]).load(chain(DOUBLE), options=odd)
