"""Worker processes: what ends one is told apart, its deadline holds, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitcl import config
from jitcl.devices.opencl.isolation import Aborted, Isolated, WorkerFault
from jitcl.devices.opencl.platform import Found
from tests.devices import found, needs

POCL = found("opencl:pocl")
ROOT = Path(__file__).resolve().parent.parent

# -- workers, with one that does as it is told --------------------------------------------------

FAKE = """
import os, sys, time
from jitcl.devices.messages import read_message, write_message
from jitcl.devices.opencl.worker import end_with_parent
end_with_parent(int(sys.argv[-1]))
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while (request := read_message(sys.stdin.buffer)) is not None:
    what, *more = request
    if what == "hello":
        write_message(out, ("done", None))
        continue
    if what == "try":
        with open(more[0], "r+b") as deaths:     # a byte for each that is still to come
            left = len(deaths.read())
            deaths.truncate(max(0, left - 1))
        if left:
            os._exit(9)
    write_message(out, ("stage", "build", "kernel_7"))
    if what == "signal":
        os.write(2, more[1].encode())
        os.kill(os.getpid(), more[0])
    elif what == "exit":
        os._exit(more[0])
    elif what == "spin":
        while True:
            pass
    elif what == "sleep":
        time.sleep(more[0])
        write_message(out, ("stage", "launch", "kernel_8"))
        time.sleep(more[0])
        write_message(out, ("done", os.getpid()))
    elif what == "fail":
        write_message(out, ("failed", *more))
    elif what == "child":
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        write_message(out, ("done", pid))
    else:
        print("the driver prints where it likes")
        write_message(out, ("done", more[0] if more else os.getpid()))
"""
FOUND = Found(0, 0, "p", "v", "n", SimpleNamespace(driver_version="1"))


@pytest.fixture()
def pool():
    made = Isolated(FOUND, [sys.executable, "-c", FAKE])
    made.size = 2
    made._reset()
    yield made
    made.close()


def gone(pid: int, patience: float = 30.0) -> bool:
    """Whether the process ends within some seconds (a zombie has ended)."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def ended(worker: Any, patience: float = 30.0) -> bool:
    """Whether the pool can see that a worker has ended: a zombie's other threads may still run."""
    deadline = time.monotonic() + patience
    while worker.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    return not worker.alive


def fault(pool: Isolated, *request: object, seconds: float = 20.0) -> WorkerFault:
    with pytest.raises(WorkerFault) as caught:
        pool.call(request, seconds)
    return caught.value


LLVM = "warning: whatever\nLLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586\nStack dump:\n"


@pytest.mark.parametrize(("number", "text", "signature"), [
    (signal.SIGSEGV, "", "SIGSEGV"), (signal.SIGKILL, "", "SIGKILL"),
    (signal.SIGFPE, "about to divide\n", "SIGFPE: about to divide"),
    (signal.SIGABRT, LLVM, "SIGABRT: LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586"),
])
def test_a_crash_names_signal_stage_kernel_and_the_last_words(pool, number, text, signature):
    found = fault(pool, "signal", int(number), text)
    assert (found.kind, found.stage, found.entry) == ("crash", "build", "kernel_7")
    assert found.signature == signature and found.log == text.strip()
    assert pool.call(("echo", 5)) == 5 and pool.started == 2


def test_an_exit_in_the_middle_of_a_job_is_a_crash(pool):
    assert fault(pool, "exit", 3).signature == "exit status 3"


def test_a_hang_is_ended_at_the_deadline(pool):
    (pid,) = {pool.call(("echo",))}
    begin = time.monotonic()
    found = fault(pool, "spin", seconds=0.5)
    assert time.monotonic() - begin > 0.4
    assert (found.kind, found.entry) == ("hang", "kernel_7") and "0.5 s" in found.signature
    assert gone(pid)


@pytest.mark.slow
def test_each_stage_has_the_whole_deadline(pool):
    assert pool.call(("sleep", 1.5), 2.5) > 0
    found = fault(pool, "sleep", 1.2, seconds=1.0)
    assert (found.kind, found.stage) == ("hang", "build")


def test_the_default_deadline_is_the_settings(pool):
    with config.override(build_seconds=1):
        found = fault(pool, "spin", seconds=None)                # type: ignore[arg-type]
    assert found.kind == "hang" and " 1 s" in found.signature


@pytest.mark.parametrize("kind", ["refused", "resources", "lost", "memory"])
def test_what_the_driver_reports_is_told(pool, kind):
    found = fault(pool, "fail", kind, "OUT_OF_RESOURCES", "the log")
    assert (found.kind, found.signature, found.log) == (kind, "OUT_OF_RESOURCES", "the log")


def test_a_refusal_leaves_its_worker_and_other_failures_do_not(pool):
    (pid,) = {pool.call(("echo",))}
    fault(pool, "fail", "refused", "x", "")
    assert pool.call(("echo",)) == pid
    fault(pool, "fail", "resources", "x", "")
    assert gone(pid) and pool.call(("echo",)) != pid


def test_last_words_are_of_this_job(pool):
    found = fault(pool, "signal", int(signal.SIGSEGV), "first\n")
    assert found.log == "first"
    assert fault(pool, "signal", int(signal.SIGSEGV), "").log == ""


def test_large_answers_and_requests_pass(pool):
    data = np.arange(3_000_000, dtype=np.float32)
    np.testing.assert_array_equal(pool.call(("echo", data)), data)


def test_jobs_run_at_the_same_time_and_no_more_than_there_are_places(pool):
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(pool.call(("sleep", 0.3), 9)))
               for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(answers) == 4 and len(set(answers)) == 2 == pool.started


def test_what_a_worker_started_ends_with_it(pool):
    """And does not hide its end, though it holds the same pipe."""
    child = pool.call(("child",))
    found = fault(pool, "signal", int(signal.SIGSEGV), "")
    assert (found.kind, found.signature) == ("crash", "SIGSEGV") and gone(child)


def test_workers_end_after_a_pause_and_start_again(pool, monkeypatch):
    monkeypatch.setattr("jitcl.devices.opencl.isolation.IDLE_SECONDS", 0.1)
    (pid,) = {pool.call(("echo",))}
    assert gone(pid)
    assert pool.call(("echo",)) != pid


def test_a_worker_that_somebody_ended_meanwhile_is_replaced(pool):
    """As Linux does where memory is short: the next job is not to blame."""
    (pid,) = {pool.call(("echo",)) for _ in range(2)}
    (worker,) = pool._idle
    os.kill(pid, signal.SIGKILL)
    assert ended(worker)
    assert pool.call(("echo", 5)) == 5 and pool.started == 2
    assert len(pool.pids) == 1 and pid not in pool.pids


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_a_worker_that_ends_before_its_job_begins_is_replaced_once(pool, tmp_path, deaths):
    """It may have ended between the look at it and the job: the job's kernels are not to blame."""
    left = tmp_path / "deaths"
    left.write_bytes(b"x" * deaths)
    if deaths < 2:
        assert pool.call(("try", str(left)), 20.0) == str(left)
    else:
        found = fault(pool, "try", str(left))
        assert (found.kind, found.stage, found.entry) == ("crash", "try", "")
    assert pool.started == min(2, deaths + 1) and left.read_bytes() == b""


def test_what_a_killed_worker_wrote_is_let_go(pool):
    pool.call(("echo",))
    (worker,) = pool._idle
    fault(pool, "spin", seconds=0.3)
    assert worker.errors.closed
    pool.call(("echo",))
    (worker,) = pool._idle
    os.kill(worker.process.pid, signal.SIGKILL)
    assert ended(worker) and pool.call(("echo", 5)) == 5
    assert worker.errors.closed


def test_jobs_can_be_given_up(pool):
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            pool.call(("spin",), 60, owner=pool)
        except Aborted as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not pool._busy:
        time.sleep(0.01)
    pool.abort("somebody else")
    pool.abort(pool)
    waiting.join(30)
    assert len(caught) == 1 and not isinstance(caught[0], WorkerFault)


def test_an_idle_worker_keeps_no_job_alive(pool):
    class Job:
        pass

    job = Job()
    gone = weakref.ref(job)
    pool.call(("echo",), owner=job)
    assert pool.pids
    del job
    assert gone() is None


def test_a_worker_that_cannot_start_says_how_to_go_on(tmp_path):
    with pytest.raises(WorkerFault, match="JITCL_ISOLATION=never"):
        Isolated(FOUND, [str(tmp_path / "no-python")]).call(("echo",))
    dying = Isolated(FOUND, [sys.executable, "-c", "raise SystemExit(4)"])
    with pytest.raises(WorkerFault, match="exit status 4") as caught:
        dying.call(("echo",))
    assert caught.value.stage == "start"


def test_a_frozen_program_does_not_start_itself(pool, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "no Python interpreter" in fault(pool, "echo").signature and pool.started == 0


@needs("opencl:pocl")
def test_a_worker_refuses_another_device():
    other = replace(POCL, name="Mali-G999")
    with pytest.raises(WorkerFault, match="does not find the device.*Mali-G999") as caught:
        Isolated(other).call(("probe", "x"))
    assert caught.value.stage == "start"


# -- nobody is left behind ----------------------------------------------------------------------

PARENT = """
import os, sys, threading, time
from types import SimpleNamespace
from jitcl.devices.opencl.isolation import Isolated
from jitcl.devices.opencl.platform import Found
found = Found(0, 0, "p", "v", "n", SimpleNamespace(driver_version="1"))
pool = Isolated(found, [sys.executable, "-c", {fake!r}])
pool.size = 2
pool._reset()
pool.call(("echo",))
threading.Thread(target=lambda: pool.call(("spin",), 60), daemon=True).start()
while not pool._busy:
    time.sleep(0.01)
pool.call(("echo",))
print(*pool.pids, flush=True)
{then}
"""


def parent(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with an idle and a spinning worker, and their numbers."""
    code = PARENT.format(fake=FAKE, then=textwrap.dedent(then))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               cwd=ROOT)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


def test_workers_end_with_a_killed_parent():
    process, pids = parent("time.sleep(60)")
    assert len(pids) == 2 and not any(gone(pid, 0.05) for pid in pids)
    process.kill()
    process.wait()
    assert all(gone(pid) for pid in pids)


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("then", ["", "raise ValueError('x')", "sys.exit(3)", "os._exit(0)"])
def test_workers_end_with_their_parent(then):
    process, pids = parent(then)
    process.wait(60)
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own():
    """And keeps none of its parent's alive."""
    process, pids = parent("""
        child = os.fork()
        if child == 0:
            own = pool.pids == () and pool.call(("echo", 7)) == 7
            print("own" if own else "shared", os.getpid(), flush=True)
            time.sleep(60)
        time.sleep(60)
        """)
    assert process.stdout is not None
    told, child = process.stdout.readline().split()
    try:
        assert told == "own"
        process.kill()
        process.wait()
        assert all(gone(pid) for pid in pids) and not gone(int(child), 0.05)
    finally:
        os.kill(int(child), signal.SIGKILL)
