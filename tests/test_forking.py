"""Forks, and the end of a process, while its other threads are at work. Each case is a process of
its own, with a time limit.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyopencl as cl
import pytest

import jitcl
from jitcl import forking
from jitcl.devices.opencl.launches import Launch
from jitcl.devices.opencl.series import Series
from tests.devices import device as opened
from tests.devices import present
from tests.test_workers import gone

ROOT = Path(__file__).resolve().parents[1]
ALL = [s for s in present() if s != "reference"]
OPENCL = [s for s in ALL if s.startswith("opencl")]
BROKEN = [s for s in OPENCL if not opened(s).target.fork_safe]   # not in forked children
SAFE = [s for s in ALL if s not in BROKEN]
SECONDS = 120
GRAPH = """
graph @g(%x: f32[64,256], %w: f32[256,256]) {
  %1 = matmul(%x, %w)
  %y = relu(%1)
  return %y
}
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

COMMON = f"""
GRAPH = {GRAPH!r}
""" + """
import faulthandler, multiprocessing, os, signal, sys, threading, time
import numpy as np
import jitcl
from jitcl import config, forking
DEVICE = sys.argv[1]
W = (np.random.default_rng(0).standard_normal((256, 256)) / 16).astype("f4")
X = np.random.default_rng(1).standard_normal((64, 256)).astype("f4")
WANT = np.maximum(X @ W, 0)

def compiled(rows=64):
    text = GRAPH.replace("64,", f"{rows},")
    model = jitcl.compile(jitcl.parse(text), device=DEVICE)
    faulthandler.enable()                   # anew: Intel's driver takes the signals for itself
    return model

def right(model):
    return np.abs(model.run({"x": X, "w": W})["y"] - WANT).max() < 1e-3

def child(function):
    "Its exit status: of a forked child that runs the function, 99 for one that has no end."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 3
        try:
            code = 0 if function() else 1
        except jitcl.JitclError as error:
            print(type(error).__name__, error, flush=True)
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def busy(model, count=1):
    "Daemon threads that run the model for ever; returns when each has done so once."
    begun = threading.Barrier(count + 1)
    def work():
        model.run({"x": X, "w": W})
        begun.wait()
        while True:
            model.run({"x": X, "w": W})
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    begun.wait()
"""


def run(device: str, script: str, **env: str) -> str:
    """What a process prints that ends well: status 0, and no complaint on its stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c",
         COMMON + textwrap.dedent(script), device],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JITCL_THREADS": "2", **env},
        capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    assert complaints(done.stderr) == []
    return done.stdout


def complaints(stderr: str) -> list[str]:
    """Lines of runtimes and interpreters that go down; jitcl's own warnings are none."""
    signs = ("terminate called", "Traceback", "Exception", "Fatal", "bug report", "core dumped")
    return [line for line in stderr.splitlines() if any(sign in line for sign in signs)]


# -- forks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", SAFE)
def test_a_forked_child_runs_models(device: str) -> None:
    """Its parent's, at old and new shapes, bound ones, and its own; and so does its own child. The
    parent's goes on."""
    run(device, """
    model = compiled()
    bound = model.bind()
    bound.inputs["x"], bound.inputs["w"] = X, W
    assert right(model) and np.abs(bound.run()["y"] - WANT).max() < 1e-3
    assert child(lambda: right(model)) == 0
    assert child(lambda: np.abs(bound.run()["y"] - WANT).max() < 1e-3) == 0
    def anew():
        bound = model.bind()
        bound.inputs["x"], bound.inputs["w"] = X, W
        return np.abs(bound.run()["y"] - WANT).max() < 1e-3
    assert child(anew) == 0
    assert child(lambda: right(compiled())) == 0
    assert child(lambda: compiled(32).run({"x": X[:32], "w": W})["y"].shape == (32, 256)) == 0
    assert child(lambda: right(model) and child(lambda: right(model)) == 0 and right(model)) == 0
    assert right(model)
    """)


@pytest.mark.parametrize("device", BROKEN)
def test_a_driver_that_a_fork_breaks_is_refused_at_once(device: str) -> None:
    """Whether the parent has run a model, or only asked what there is; the CPU path works."""
    said = run(device, """
    from jitcl.devices.opencl import list_devices
    def refused(function):
        begin = time.monotonic()
        assert child(function) == 2
        assert time.monotonic() - begin < 10
    list_devices()
    refused(compiled)
    model = compiled()
    assert right(model)
    refused(lambda: right(model))
    refused(lambda: model.bind().run())
    refused(compiled)
    refused(lambda: compiled(32))
    assert child(lambda: len(jitcl.devices()) >= 2) == 0
    DEVICE = "cpu"
    assert child(lambda: right(compiled())) == 0
    DEVICE = sys.argv[1]
    assert right(model) and right(compiled())
    """)
    lines = said.splitlines()
    assert len(lines) == 15
    for error, advice, more in zip(lines[::3], lines[1::3], lines[2::3]):
        assert error.startswith("DeviceError ") and opened(device).session.found.platform in error
        assert "this process was forked from one that had looked for OpenCL devices" in error
        assert "get_context('spawn') or 'forkserver'" in advice and "without --preload" in advice
        assert "device='cpu' works in forked children" in more


@pytest.mark.parametrize("device", OPENCL)
def test_a_child_may_be_the_first_to_use_opencl(device: str) -> None:
    """Its parent has only used the CPU; children of such a child are forked from a user."""
    run(device, """
    DEVICE, there = "cpu", DEVICE
    assert right(compiled())
    DEVICE = there
    assert child(lambda: right(compiled())) == 0
    assert child(lambda: right(compiled())) == 0
    """)


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("device", SAFE)
def test_forks_while_threads_run(device: str) -> None:
    """The child meets no lock of theirs, and no driver in the middle of something."""
    run(device, """
    model = compiled()
    busy(model, 2)
    for _ in range(40):
        assert child(lambda: right(model)) == 0
    assert child(lambda: right(compiled())) == 0
    assert right(model)
    """)


@pytest.mark.slow
@pytest.mark.parametrize("device", SAFE)
def test_forks_while_a_thread_compiles(device: str) -> None:
    run(device, """
    model = compiled()
    assert right(model)
    rows = iter(range(65, 10**6))
    begun = threading.Event()
    def work():
        while True:
            compiled(next(rows))
            begun.set()
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    for _ in range(4):
        time.sleep(0.07)
        assert child(lambda: right(model) and right(compiled())) == 0
    """)


def test_a_fork_waits_for_the_lock_of_llvmlite() -> None:
    """Which it takes for each call, also where nothing of `forking.LLVM` is around it."""
    run("cpu", """
    import llvmlite.binding as llvm
    model, inside = compiled(), threading.Event()
    def work():
        with llvm.ffi.lib._lock:
            inside.set()
            time.sleep(0.3)
    threading.Thread(target=work).start()
    inside.wait()
    assert child(lambda: bool(llvm.get_host_cpu_name())) == 0
    """)


@pytest.mark.slow
@pytest.mark.parametrize("device", SAFE)
def test_forks_inside_of_a_callback(device: str) -> None:
    """While the thread that forks holds locks of its own."""
    run(device, """
    model = compiled()
    seen = []
    def progress(*told):
        if not seen:
            seen.append(child(lambda: right(model)))
    text = GRAPH.replace("relu", "sigmoid")
    jitcl.compile(jitcl.parse(text), device=DEVICE, progress=progress)
    assert seen == [0]
    """)


@pytest.mark.parametrize("device", SAFE)
def test_servers_that_load_first_and_fork_then(device: str) -> None:
    """As `gunicorn --preload` with threads, and as multiprocessing's pools and queues."""
    run(device, """
    from concurrent.futures import ThreadPoolExecutor
    model = compiled()
    assert right(model)
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            signal.alarm(100)
            with ThreadPoolExecutor(4) as threads:
                served = list(threads.map(lambda _: right(model), range(12)))
            sys.exit(0 if all(served) else 1)
        children.append(pid)
    assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in children)
    def serve(_):
        return bool(right(model) and right(compiled()))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(serve, range(4)).get(60) == [True] * 4
    """)


@pytest.mark.slow
def test_the_ways_that_the_advice_names(tmp_path: Path) -> None:
    """spawn and forkserver, from a process that uses OpenCL."""
    script = tmp_path / "serve.py"
    script.write_text(COMMON + textwrap.dedent("""
    def serve(queue):
        queue.put(bool(right(compiled())))

    if __name__ == "__main__":
        assert right(compiled())
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=serve, args=(queue,))
            process.start()
            assert queue.get(timeout=60)
            process.join(60)
            assert process.exitcode == 0
    """))
    done = subprocess.run([sys.executable, str(script), OPENCL[0] if OPENCL else "cpu"],
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]


def test_locks_of_other_threads_are_free_in_a_child() -> None:
    run("cpu", """
    class Slow:
        @forking.cached_property
        def value(self):
            time.sleep(30)
            return 1
    theirs, mine, kept = forking.lock(), forking.rlock(), Slow()
    again = forking.rlock()
    def hold():
        with theirs, again:
            kept.value
    threading.Thread(target=hold, daemon=True).start()
    while not theirs.locked():
        time.sleep(0.01)
    time.sleep(0.1)
    Slow.value.func = lambda self: 2
    def in_child():
        with theirs, again:
            pass
        with mine:
            pass
        return Slow().value == 2
    with mine:
        assert child(in_child) == 0
    assert theirs.locked()
    """)


def test_a_library_that_a_thread_does_not_leave() -> None:
    """A fork waits for so long, then the child is told; a child of a later fork is well."""
    said = run("cpu", """
    import logging
    logging.getLogger("jitcl").addHandler(logging.StreamHandler(sys.stdout))
    forking.FORK_SECONDS = 0.3
    library = forking.Library("a driver")
    leave, gone = threading.Event(), threading.Event()
    def stay():
        with library:
            leave.wait()
        gone.set()
    def enter():
        with library:
            return True
    threading.Thread(target=stay).start()
    assert child(enter) == 2
    leave.set()
    gone.wait()
    assert child(enter) == 0
    with library, library:
        assert child(enter) == 0                # its own thread is no other thread
    """)
    assert "a thread has been in a driver for 0 s" in said
    assert ("DeviceError this process was forked while another thread of its parent was in a "
            "driver, and can't use it") in said


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", ALL)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_end_with_busy_threads(device: str, threads: int) -> None:
    """Daemon threads in runs, some of them waiting for their turn."""
    assert run(device, f"""
    model = compiled()
    busy(model, {threads})
    time.sleep(0.1)
    print("end", flush=True)
    """) == "end\n"


@pytest.mark.slow
@pytest.mark.parametrize("device", ALL)
def test_the_end_with_threads_that_compile(device: str) -> None:
    """And their build processes, which are gone then."""
    said = run(device, """
    rows = iter(range(65, 10**6))
    begun = threading.Event()
    def work():
        while True:
            compiled(next(rows))
            begun.set()
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    def children():
        return [c for t in os.listdir("/proc/self/task")
                for c in open(f"/proc/self/task/{t}/children").read().split()]
    if DEVICE == "cpu":
        text = GRAPH.replace("relu", "sin")
        threading.Thread(target=lambda: jitcl.compile(jitcl.parse(text), device="cpu"),
                         daemon=True).start()
        while not children():
            time.sleep(0.01)
    print(*children(), flush=True)
    """)
    assert all(gone(int(pid)) for pid in said.split())


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", ALL)
def test_handlers_at_exit_run_models(device: str) -> None:
    """Registered before jitcl was imported, and after; while a daemon thread runs the same one."""
    assert run(device, """
    import atexit
    model = compiled()
    busy(model)
    atexit.register(lambda: print("after", right(model), flush=True))
    """).splitlines() == ["after True"]
    script = ("import atexit, sys\n"
              "atexit.register(lambda: print('before', right(model), right(compiled()), "
              "flush=True))\n" + COMMON + "model = compiled()\nbusy(model)\nright(model)\n")
    done = subprocess.run([sys.executable, "-c", script, device],
                          env={**os.environ, "PYTHONPATH": str(ROOT), "JITCL_THREADS": "2"},
                          capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "before True True\n")
    assert complaints(done.stderr) == []


@pytest.mark.slow
@pytest.mark.parametrize("device", ALL)
def test_sys_exit_in_a_thread_and_in_main(device: str) -> None:
    """A status of the user's own is the process's."""
    run(device, """
    model = compiled()
    def leave():
        right(model)
        sys.exit(5)
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert right(model)
    def status(code):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            sys.exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status(7) == 7
    """)
    done = subprocess.run(
        [sys.executable, "-c", COMMON + "model = compiled()\nbusy(model)\nsys.exit(7)", device],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=SECONDS)
    assert (done.returncode, complaints(done.stderr)) == (7, [])


# -- the rule -------------------------------------------------------------------------------------

# they make their locks anew in a child, or use none outside of a process's own workers
OF_THEIR_OWN = {"jitcl/forking.py", "jitcl/runtime/locks.py", "jitcl/devices/cpu/objects.py",
                "jitcl/devices/opencl/isolation.py", "jitcl/devices/cpu/executor.py"}


def test_locks_are_those_that_survive_a_fork() -> None:
    wrong = []
    for path in sorted((ROOT / "jitcl").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in OF_THEIR_OWN:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                what = f"{node.value.id}.{node.attr}"
                if what in ("functools.cached_property", "atexit.register",
                            "os.register_at_fork"):
                    wrong.append(f"{name}:{node.lineno} {what}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
                    node.func.attr in ("Lock", "RLock", "Condition", "Semaphore")) and (
                    ast.unparse(node) not in (              # the other is a lock of one thread's
                        "threading.Condition(forking.rlock())", "asyncio.Lock()")):
                wrong.append(f"{name}:{node.lineno} {node.func.attr}")
            if isinstance(node, ast.ImportFrom) and node.module in ("functools", "threading"):
                wrong += [f"{name}:{node.lineno} {a.name}" for a in node.names
                          if a.name in ("cached_property", "Lock", "RLock", "Condition")]
    assert wrong == [], "see jitcl/forking.py: a forked child finds such locks held for ever"


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("device", OPENCL)
def test_the_driver_is_called_inside(device: str, shares: bool, monkeypatch: Any) -> None:
    """Calls that let go of the interpreter's lock: outside, a daemon thread is in the driver's C++
    when the process ends, and takes it down."""
    if not shares:
        monkeypatch.setattr("jitcl.devices.opencl.arrays.shares_memory", lambda session: False)
        monkeypatch.setattr("jitcl.devices.opencl.executable.shares_memory", lambda session: False)
    inside, outside = 0, []

    def watched(holder: Any, name: str) -> None:
        real = getattr(holder, name)

        def called(*args: Any, **options: Any) -> Any:
            nonlocal inside
            if threading.get_ident() in forking.OPENCL._inside:
                inside += 1
            else:
                outside.append("".join(traceback.format_stack(limit=4)[:-1]))
            return real(*args, **options)
        monkeypatch.setattr(holder, name, called)

    for name in ("enqueue_copy", "enqueue_fill_buffer", "enqueue_nd_range_kernel",
                 "wait_for_events", "enqueue_map_buffer"):
        watched(cl, name)
    monkeypatch.setattr("jitcl.devices.opencl.arrays._enqueue_map", cl.enqueue_map_buffer)
    for name in ("finish", "flush"):
        watched(cl.CommandQueue, name)
    watched(cl.Event, "wait")

    with jitcl.compile(jitcl.parse(GRAPH), device=device) as model:
        feeds = {"x": np.ones((64, 256), "f4"), "w": np.ones((256, 256), "f4")}
        model.run(feeds)
        bound = model.bind()
        bound.run()
        kept = model.submit(feeds, keep_on_device=True).result()["y"]
        with kept.map() as array:
            array += 1
        model.run({**feeds, "x": kept})
        kept.numpy()
        with jitcl.profile():
            model.run(feeds)
        with monkeypatch.context() as patch:
            patch.setattr(Launch, "start", ends := Mock(side_effect=KeyboardInterrupt))
            patch.setattr(Series, "start", ends)
            for run in (lambda: model.run(feeds), bound.run):
                with pytest.raises(KeyboardInterrupt):
                    run()
        model.run(feeds)
    assert outside == [] and inside > 20


def test_unique_sorts() -> None:
    """`np.unique` of nothing but values hashes from NumPy 2.3 on, without the interpreter's lock,
    and a thread that is in it when the process ends takes it down: no exception leaves that C++.
    `isin` calls it."""
    wrong = []
    for path in sorted((ROOT / "jitcl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "np.unique", "np.isin", "np.union1d", "np.intersect1d", "np.setdiff1d"):
                names = {k.arg for k in node.keywords}
                if not names & {"return_index", "return_inverse", "return_counts"}:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == [], "see _distinct in jitcl/frontends/onnx/rules/ml_forest.py"


def test_the_end_with_a_thread_that_sorts() -> None:
    run("cpu", """
    x = np.random.default_rng(0).integers(0, 10**5, 10**5)
    def work():
        while True:
            np.unique(x, return_index=True)
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
    """)
