"""One directory of cached kernels for many processes and threads, and directories that refuse."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jitcl.runtime.cache import KernelCache
from jitcl.target import Target
from tests.caches import fresh, get_or_build, key

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def pocl(root):
    return fresh(root)


# -- many at once ------------------------------------------------------------------------------

WORKER = """
import sys, time
from pathlib import Path
from jitcl.runtime.cache import KernelCache
from jitcl.target import Target
from tests.caches import get_or_build

root, log = sys.argv[1:3]
cache = KernelCache(root, limit=10**9).for_target(Target(kind="cpu", name="c"))

def build(i):
    with open(log, "a") as file:
        file.write(f"{i}\\n")
    time.sleep(0.1)
    return bytes([i]) * (1 << 16)

for i in range(5):
    assert get_or_build(cache, "kernel", f"k{i}", lambda: build(i)) == bytes([i]) * (1 << 16)
print(cache.stats.builds)
"""


def start(script: str, *args: object, **options) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, args)], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_eight_processes_build_each_entry_once(root, tmp_path):
    workers = [start(WORKER, root, tmp_path / "log") for _ in range(8)]
    results = [w.communicate(timeout=200) for w in workers]
    assert [err for _, err in results] == [""] * 8
    assert [w.returncode for w in workers] == [0] * 8
    assert sum(int(out) for out, _ in results) == 5
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "1", "2", "3", "4"]
    assert not list(root.rglob("*.tmp"))


def test_threads_build_each_entry_once(pocl):
    calls = []

    def build() -> bytes:
        calls.append(1)
        time.sleep(0.05)
        return b"x"

    results = []
    threads = [threading.Thread(
        target=lambda: results.append(get_or_build(pocl, "kernel", key(), build)))
        for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert results == [b"x"] * 8
    assert len(calls) == 1


def test_a_thread_may_build_within_a_build(pocl):
    with pocl.building("plan", key()) as outer, pocl.building("kernel", "k") as inner:
        assert outer is None
        assert inner is None
        with pocl.building("plan", key()) as again:
            assert again is None
        pocl.put("plan", key(), b"p")
    assert pocl.get("plan", key()) == b"p"


HOLDER = """
import sys, time
from jitcl.runtime.cache import KernelCache
from jitcl.target import Target

cache = KernelCache(sys.argv[1], limit=10**9).for_target(Target(kind="cpu", name="c"))
with cache.building("kernel", "k") as found:
    print("holding", flush=True)
    time.sleep(100)
"""


def test_a_holder_that_dies_frees_the_others(root, caplog):
    holder = start(HOLDER, root)
    assert holder.stdout.readline() == "holding\n"
    cache = KernelCache(root, limit=10**9, wait_s=200).for_target(Target(kind="cpu", name="c"))
    threading.Timer(0.3, lambda: holder.send_signal(signal.SIGKILL)).start()
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        assert get_or_build(cache, "kernel", "k", lambda: b"mine") == b"mine"
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL and not caplog.records


def test_a_holder_that_hangs_is_waited_for_a_bounded_time(root, caplog):
    holder = start(HOLDER, root)
    try:
        assert holder.stdout.readline() == "holding\n"
        cache = KernelCache(root, limit=10**9, wait_s=0.3).for_target(
            Target(kind="cpu", name="c"))
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "jitcl.cache"):
            assert get_or_build(cache, "kernel", "k", lambda: b"mine") == b"mine"
        assert time.monotonic() - began > 0.2 and holder.poll() is None
        assert "building it too" in caplog.text
    finally:
        holder.kill()
        holder.communicate()


def test_a_thread_that_hangs_is_waited_for_a_bounded_time(root, caplog):
    cache = fresh(root, wait_s=0.2)
    release, holding = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.building("kernel", key()):
            holding.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holding.wait(10)
        with caplog.at_level(logging.WARNING, "jitcl.cache"):
            assert get_or_build(cache, "kernel", key(), lambda: b"mine") == b"mine"
        assert "another thread" in caplog.text
    finally:
        release.set()
        thread.join(10)


# -- directories that refuse -------------------------------------------------------------------


def expect_memory(cache, caplog, reason: str) -> None:
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        for name in "ab":
            got = get_or_build(cache, "kernel", key(name), lambda n=name: n.encode() * 9000)
            assert got == name.encode() * 9000
        assert cache.get("kernel", key("a")) == b"a" * 9000
        assert cache.get_mmap("kernel", key("b")) == b"b" * 9000
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "cannot write to the kernel cache" in caplog.text
    assert reason in caplog.text
    assert cache.stats.failed_writes == cache.stats.builds == 2


def test_a_root_that_is_no_directory_costs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    expect_memory(fresh(tmp_path / "file" / "cache"), caplog, "Not a directory")


@pytest.mark.parametrize(("number", "reason"), [
    (28, "No space left on device"), (30, "Read-only file system"), (13, "Permission denied")])
def test_a_write_that_fails_costs_a_warning(root, caplog, monkeypatch, number, reason):
    def refuse(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    expect_memory(fresh(root), caplog, reason)
    assert not list(root.rglob("*.tmp"))


FULL = """
import resource, sys
from jitcl.runtime.cache import KernelCache
from jitcl.target import Target
from tests.caches import get_or_build

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))    # the system refuses larger files
cache = KernelCache(sys.argv[1], limit=10**9).for_target(Target(kind="cpu", name="c"))
assert get_or_build(cache, "kernel", "k", lambda: bytes(10000)) == bytes(10000)
assert cache.get("kernel", "k") == bytes(10000)
assert cache.stats.failed_writes == 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_file_the_system_refuses_to_write_costs_a_warning(root):
    worker = start(FULL, root)
    _, err = worker.communicate(timeout=200)
    assert worker.returncode == 0, err
    assert err.count("cannot write to the kernel cache") == 1
    assert not [p for p in root.rglob("*") if p.suffix in (".tmp", ".jitcl")]


READ_ONLY = """
import os, sys
import filelock
from jitcl.runtime.cache import KernelCache
from jitcl.target import Target
from tests.caches import get_or_build

if os.getuid() == 0:
    os.setuid(65534)                                       # permissions do not stop root
cache = KernelCache(sys.argv[1], limit=10**9).for_target(Target(kind="cpu", name="c"))
assert cache.get("kernel", "old") == b"old"                # what is there is used
assert get_or_build(cache, "kernel", "k", lambda: b"new") == b"new"
assert cache.get("kernel", "k") == b"new"
assert cache.stats.as_dict() == dict(hits=2, misses=1, builds=1, writes=0, corrupt=0,
                                     evicted=0, failed_writes=1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions as POSIX has them")
def test_a_read_only_directory_is_read_and_costs_a_warning():
    import shutil
    import tempfile
    root = Path(tempfile.mkdtemp())                        # tmp_path is closed to other users
    try:
        cache = KernelCache(root, limit=10**9).for_target(Target(kind="cpu", name="c"))
        cache.put("kernel", "old", b"old")
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        worker = start(READ_ONLY, root)
        _, err = worker.communicate(timeout=200)
        assert worker.returncode == 0, err
        assert err.count("Permission denied. Kernels are kept for this process only") == 1
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o700)
        shutil.rmtree(root)
