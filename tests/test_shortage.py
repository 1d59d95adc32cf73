"""What the system lacks is told from what a driver can't do: a full disk, no files, no memory, a
process that was killed, a clock that goes back. The result is right or the error clear, nothing is
remembered, and the next healthy start is a fresh one.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitcl.devices import faults as faults_module
from jitcl.devices import shortage
from jitcl.devices.cpu import objects
from jitcl.devices.faults import Fault, FaultDatabase
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.opencl import list_devices, proving
from jitcl.devices.opencl.isolation import WorkerFault
from jitcl.devices.opencl.probe import _limits, _Record
from jitcl.devices.opencl.probes import survey
from jitcl.devices.opencl.probes.record import SHORT
from jitcl.devices.progress import Tally
from jitcl.errors import DeviceError, OutOfMemoryError
from jitcl.runtime.cache import KernelCache
from tests.caches import Memory, fresh
from tests.devices import found, needs, needs_driver
from tests.test_isolation import DOUBLE, chain, opened

REPO = Path(__file__).resolve().parent.parent
POCL, needs_pocl = found("opencl:pocl"), needs("opencl:pocl")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
CRASH = Fault("k", "build", "crash", "SIGSEGV: Stack dump", ("vec16",))

# -- what is told from what ---------------------------------------------------------------------


@pytest.mark.parametrize("said", [
    "clang: error: unable to make temporary file: No space left on device",
    "[Errno 122] Disk quota exceeded", "/usr/bin/ld: cannot find -lc: Too many open files",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "LLVM ERROR: out of memory", "can't start new thread", "SIGKILL", "SIGXFSZ: writing x.o",
    "cannot create /x: Read-only file system"])
def test_what_is_said_tells(said):
    assert shortage.shortage("something failed", said)


@pytest.mark.parametrize("said", [
    "SIGSEGV: Stack dump", "SIGABRT: LLVM ERROR: Cannot select: intrinsic", "exit status 1",
    "clBuildProgram: OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES at enqueue", "no end after 60 s",
    "error: line 6: declaring variable of type 'half' is not allowed", ""])
def test_what_drivers_say_of_themselves_is_theirs(said):
    assert shortage.shortage(said) == ""


@linux
def test_what_a_compiler_needs_is_looked_at(tmp_path, monkeypatch):
    import resource

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "made by PoCL"))
    assert shortage.shortage("failed to build") == ""
    with monkeypatch.context() as patched:
        patched.setattr(shortage.tempfile, "TemporaryFile", refuse)
        assert shortage.shortage("failed to build").startswith("No space left on device, in")
    with monkeypatch.context() as patched:
        patched.setattr(shortage.mmap, "mmap", refuse)
        assert shortage.shortage("failed to build").endswith("64 MiB")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, before[1]))
    try:
        assert "fewer than 24 may still be opened" in shortage.shortage("failed to build")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_python_errors_of_the_system_are_clear():
    @shortage.telling
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(DeviceError, match="lacks something: .*Too many open files\n.*ulimit"):
        fail(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    with pytest.raises(DeviceError, match="can't start new thread"):
        fail(RuntimeError("can't start new thread"))
    with pytest.raises(OutOfMemoryError, match="no memory left: Unable to allocate 8 EiB"):
        fail(MemoryError("Unable to allocate 8 EiB"))
    for other in (RuntimeError("a mistake of jitcl"), FileNotFoundError(2, "No such file")):
        with pytest.raises(type(other)):
            fail(other)


# -- nothing is remembered ----------------------------------------------------------------------


def test_a_fault_of_the_system_holds_for_this_process_alone(tmp_path, monkeypatch):
    path = tmp_path / "faults" / "x.json"
    mine = FaultDatabase(path)
    monkeypatch.setattr(faults_module, "shortage", lambda *_: "No space left on device")
    mine.record(CRASH)
    assert mine.rejects("k", frozenset()) and mine.rejects("other", frozenset(("vec16",)))
    assert mine.shortage == "No space left on device" and len(mine.faults) == 1
    assert FaultDatabase(path).faults == ()
    mine.record(dataclasses.replace(CRASH, entry="wrong", kind="wrong"))   # no disk does that
    assert [f.entry for f in FaultDatabase(path).faults] == ["wrong"]
    monkeypatch.setattr(faults_module, "shortage", lambda *_: "")
    mine.record(dataclasses.replace(CRASH, entry="later"))
    assert [f.entry for f in FaultDatabase(path).faults] == ["wrong", "later"]
    assert mine.retry() == 2 and mine.shortage == "" and mine.faults == ()


@needs_pocl
@pytest.mark.parametrize("stage", ["probe", "start"])
def test_probes_that_the_system_failed_are_asked_again(tmp_path, monkeypatch, caplog, stage):
    """One fails, and the others are good: nothing of it is kept."""
    class Pool:
        def call(self, request: Any, seconds: float) -> Any:
            raise WorkerFault("refused", stage, "", "no process: Too many open files")

    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(survey, "isolated", lambda found: Pool())
    record = _Record(POCL, _limits(POCL))
    with caplog.at_level(logging.WARNING, "jitcl.opencl"):
        answers = record.ask(Tally(None))
    asked = [a for a in answers if a.kind == SHORT]
    assert len(asked) > 5 and all(a.evidence == "Too many open files" for a in asked)
    assert "asked again at the next start" in caplog.text
    assert not record.path.exists()


@needs_driver()
@pytest.mark.parametrize("signature", ["SIGKILL", "SIGTERM: bye"])
def test_a_worker_that_was_killed_is_no_fault_of_its_kernel(monkeypatch, signature):
    """It is tried again by itself, and then counts as one that had no memory."""
    calls = []

    class Pool:
        size = 2

        def call(self, request: Any, owner: object = None) -> Any:
            calls.append(request)
            raise WorkerFault("crash", "build", DOUBLE.entry, signature)

    monkeypatch.setattr(proving, "isolated", lambda found: Pool())
    device = opened(list_devices()[0])
    with pytest.raises(OutOfMemoryError, match=f"ended from outside \\({signature}"):
        device.load(chain(DOUBLE), Memory(), options=LoadOptions("always"))
    assert len(calls) == 2 and device.faults.faults == ()


@pytest.mark.parametrize("forked", [True, False])
def test_a_cpu_build_that_was_killed_is_tried_again_alone(forked, monkeypatch):
    """The first build process is killed, as by a system without memory: a fork, or what was to
    become one."""
    made: list[Any] = []

    class Dying(objects._Worker):
        def __init__(self, loaded: Any) -> None:
            made.append(self)
            if len(made) == 1 and not forked:
                loaded.kill()
            super().__init__(loaded)
            if len(made) == 1 and forked:
                loaded.kill()

    monkeypatch.setattr(objects, "_workers", objects._Workers())
    monkeypatch.setattr(objects, "_Worker", Dying)
    text = "from jitcl.devices.cpu.native import *\n\ndef k(args, tid, nthreads):\n    pass\n"
    from jitcl.codegen.plan import KernelSource
    try:
        built = objects.compile_kernels([KernelSource("k", text, "numba")])
    finally:
        objects._workers.close()
    assert set(built) == {"k"} and len(made) == 2


# -- a clock that goes back ---------------------------------------------------------------------


def test_the_last_fault_is_the_last_whatever_the_clock_says(tmp_path, monkeypatch):
    database = FaultDatabase(tmp_path / "faults" / "x.json")
    database.record(CRASH)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    database.record(dataclasses.replace(CRASH, entry="second"))
    database.record(dataclasses.replace(CRASH, signature="SIGILL"))
    assert [f.entry for f in FaultDatabase(database.path).faults] == ["second", "k"]
    assert database.rejects("k", frozenset()) == "SIGILL"


def test_entries_of_the_future_go_first(tmp_path):
    """Else all that is written after the clock was put right would go at once."""
    cache = fresh(tmp_path, limit=50_000)
    for i in range(4):
        cache.put("kernel", f"future{i}", bytes(9_000))
        path = next(tmp_path.rglob(f"future{i}.jitcl"))
        os.utime(path, (time.time() + 10**7,) * 2)
    for i in range(4):
        cache.put("kernel", f"now{i}", bytes(9_000))
    kept = {e.digest for e in KernelCache(tmp_path).ls()}
    assert {"now0", "now1", "now2", "now3"} <= kept


# -- whole programs -----------------------------------------------------------------------------

PROGRAM = """
import json, logging, resource, sys, time
logging.basicConfig(format="%(levelname)s %(message)s")
import numpy as np
import jitcl
device, limit, clock = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
if limit:
    resource.setrlimit(getattr(resource, limit[0]), (limit[1], limit[1]))
if clock:
    real = time.time
    time.time = lambda: real() + clock
g = jitcl.parse("graph @f(%x: f32[64,64], %w: f32[64,64]) {\\n"
                "  %y = matmul(%x, %w)\\n  %z = exp(%y)\\n  return %z\\n}\\n")
try:
    model = jitcl.compile(g, device=device)
    x = np.eye(64, dtype=np.float32)
    (z,) = model.run({"x": x, "w": x}).values()
except jitcl.JitclError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
target, stats = model.device.target, model.cache.stats
print(json.dumps({"right": bool(np.allclose(z, np.exp(x), rtol=1e-5)), "key": target.key,
                  "width": target.max_vector_width, "proven": list(target.proven),
                  "builds": stats.builds, "variants": [s.variant for s in model.plan.steps]}))
"""


def started(device: str, cache: Path, limit: Any = None, clock: float = 0.0,
            **environment: str) -> dict[str, Any]:
    """What PROGRAM says in a process of its own, which ends well, with `said` on stderr."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "JITCL_CACHE_DIR": str(cache)}
    env.pop("POCL_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", PROGRAM, device, json.dumps(limit), str(clock)],
                          env={**env, **environment}, text=True, capture_output=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "said": done.stderr}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root on Linux")
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", folder],
                             capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no room; returns the file to delete."""
    path = folder / "filling"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return path


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A start that lacks nothing."""
    return started("opencl:pocl", tmp_path_factory.mktemp("healthy"))


def expect_as_fresh(cache: Path, healthy: dict[str, Any]) -> None:
    now = started("opencl:pocl", cache)
    for name in ("right", "key", "width", "proven", "variants"):
        assert now[name] == healthy[name], name
    assert "its driver failed" not in now["said"]


@needs_pocl
@pytest.mark.slow
def test_a_full_disk_under_a_driver_is_not_its_fault(small, tmp_path, healthy):
    """PoCL's folder is full at the first probes and the first build."""
    fill(small)
    got = started("opencl:pocl", tmp_path / "cache", POCL_CACHE_DIR=str(small))
    assert got["right"] and got["width"] == 1
    assert "No space left on device" in got["said"] and "not remembered" in got["said"]
    expect_as_fresh(tmp_path / "cache", healthy)


@needs_pocl
@pytest.mark.slow
def test_a_disk_that_is_full_after_probing(small, tmp_path, healthy):
    started("opencl:pocl", tmp_path / "cache", JITCL_DEVICE="cpu")
    assert list((tmp_path / "cache" / "opencl-probes").glob("*.json"))
    for plan in (tmp_path / "cache").rglob("*.jitcl"):
        plan.unlink()
    fill(small)
    got = started("opencl:pocl", tmp_path / "cache", POCL_CACHE_DIR=str(small))
    assert got["right"] and got["width"] == healthy["width"] and "not remembered" in got["said"]
    expect_as_fresh(tmp_path / "cache", healthy)


@pytest.mark.sampled(slow=3)
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("opencl:pocl", marks=needs_pocl)])
@pytest.mark.parametrize("full", [True, False])
def test_a_cache_of_two_megabytes(small, healthy, device, full):
    """Full from the beginning, or soon; what a driver writes goes elsewhere."""
    filling = fill(small) if full else None
    got = started(device, small / "cache")
    assert got["right"] and ("No space left" in got["said"]) == full
    if device != "cpu":
        assert got["width"] == healthy["width"]
    if filling is not None:
        filling.unlink()
        assert started(device, small / "cache")["right"]
    again = started(device, small / "cache")
    assert again["right"] and again["builds"] == 0


@pytest.mark.sampled(slow=4)
@pytest.mark.slow
@linux
@pytest.mark.parametrize(("device", "files"), [
    ("cpu", 8), ("cpu", 14), pytest.param("opencl:pocl", 8, marks=needs_pocl),
    pytest.param("opencl:pocl", 14, marks=needs_pocl)])
def test_few_files_may_be_open(tmp_path, healthy, device, files):
    got = started(device, tmp_path, ("RLIMIT_NOFILE", files))
    assert got.get("right") or "Too many open files" in got["error"]
    if device != "cpu":
        expect_as_fresh(tmp_path, healthy)


@pytest.mark.sampled(slow=3)
@pytest.mark.slow
@linux
@pytest.mark.parametrize("device", ["cpu", pytest.param("opencl:pocl", marks=needs_pocl)])
@pytest.mark.parametrize("limit", [
    pytest.param(("RLIMIT_AS", 700 << 20), marks=pytest.mark.long),        # 90 s on PoCL
    ("RLIMIT_AS", 900 << 20), ("RLIMIT_FSIZE", 4096)])
def test_little_memory_or_small_files(tmp_path, healthy, device, limit):
    got = started(device, tmp_path, limit)
    assert got.get("right") or "lacks something" in got["error"] or "memory" in got["error"]
    if device != "cpu":
        expect_as_fresh(tmp_path, healthy)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("opencl:pocl", marks=needs_pocl)])
def test_a_home_that_is_read_only(small, healthy, device):
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    got = started(device, small / "cache", HOME=str(small))
    assert got["right"] and "Read-only file system" in got["said"]
    if device != "cpu":
        assert got["width"] == healthy["width"]


@pytest.mark.slow
@pytest.mark.parametrize("years", [-10, pytest.param(10, marks=pytest.mark.long)])
def test_a_clock_that_is_wrong_for_a_while(tmp_path, years):
    """Right results, and entries are found before, then and after."""
    off = years * 365.0 * 86400
    results = [started("cpu", tmp_path, clock=clock) for clock in (0.0, off, 0.0)]
    assert all(r["right"] and r["said"] == "" for r in results)
    assert [r["builds"] > 0 for r in results] == [True, False, False]
