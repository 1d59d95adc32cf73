"""The kernel cache: keys, round trips, damage, devices kept apart, bounds, what people ask."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jitcl import config
from jitcl.errors import CacheError
from jitcl.runtime import cache as cache_module
from jitcl.runtime import entry
from jitcl.runtime.cache import KernelCache, Key, code_version, device_directory, kernel_cache
from jitcl.target import Target
from tests.caches import INTEL, POCL, fresh, get_or_build, key

BIG = bytes(range(256)) * 8192                    # 2 MiB: no SHA-256


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def pocl(root):
    return fresh(root)


def the_file(root: Path) -> Path:
    (path,) = root.rglob("*.jitcl")
    return path


# -- keys --------------------------------------------------------------------------------------


def test_a_digest_depends_on_all_parts_and_not_on_their_order_or_the_subject():
    assert Key({"a": "1", "b": "2"}).digest == Key({"b": "2", "a": "1"}, "model x").digest
    others = [{"a": "1"}, {"a": "1", "b": "3"}, {"a": "1b", "": "2"}, {"a": "2", "b": "1"},
              {"a": "1", "b": "2", "c": ""}, {"a": '1","b":"2'}]
    digests = {Key(parts).digest for parts in others} | {Key({"a": "1", "b": "2"}).digest}
    assert len(digests) == len(others) + 1


def test_a_part_must_be_text():
    with pytest.raises(CacheError, match="part 'threads' of a cache key is int, wanted text"):
        Key({"threads": 2})


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "a.b", "x" * 129])
def test_names_that_could_leave_the_directory_are_refused(pocl, bad):
    with pytest.raises(CacheError, match="cache key"):
        pocl.get("kernel", bad)
    with pytest.raises(CacheError, match="cache kind"):
        pocl.put(bad, "abc", b"")


# -- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"kernel" * 100, BIG, BIG + b"x"], ids=len)
@pytest.mark.parametrize("name", [key(), "0123abcd"], ids=["key", "digest"])
def test_what_is_put_is_got(root, pocl, name, data):
    assert pocl.get("kernel", name) is None
    pocl.put("kernel", name, data)
    assert pocl.get("kernel", name) == data
    other = fresh(root)
    assert other.get("kernel", name) == data
    assert other.get("plan", name) is None
    view = other.get_mmap("kernel", name)
    assert view == data
    assert view.readonly
    assert pocl.stats.as_dict() == {"hits": 1, "misses": 1, "builds": 0, "writes": 1,
                                    "corrupt": 0, "evicted": 0, "failed_writes": 0}
    assert other.stats.hits == 2
    assert other.stats.misses == 1


def test_pieces_are_stored_as_one_and_the_last_put_wins(root, pocl):
    pocl.put("plan", key(), b"old")
    pocl.put("plan", key(), [b"head", memoryview(BIG), bytearray(b"tail"), b""])
    assert fresh(root).get("plan", key()) == b"head" + BIG + b"tail"
    assert [e.digest for e in pocl.cache.ls()] == [key().digest]


def test_a_large_payload_is_mapped_on_a_page_and_outlives_its_file(root, pocl):
    pocl.put("plan", key(), BIG)
    view = fresh(root).get_mmap("plan", key())
    assert np.frombuffer(view, np.uint8).ctypes.data % entry.PAGE == 0
    pocl.cache.clear()
    assert not list(root.rglob("*.jitcl"))
    assert view == BIG


def test_what_was_just_written_is_mapped_without_being_summed_again(root, pocl, monkeypatch):
    sums = []
    monkeypatch.setattr(entry, "_checksum", lambda *a, real=entry._checksum: (
        sums.append(a), real(*a))[1])
    assert pocl.put_mmap("plan", key(), BIG) == BIG
    assert len(sums) == 1
    assert fresh(root).get_mmap("plan", key()) == BIG
    assert len(sums) == 2


@pytest.mark.parametrize("size", [entry.SMALL + 1, entry.SMALL + entry.PAGE])
def test_large_payloads_are_summed_alike_however_they_come_in_chunks(size):
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    whole = entry._checksum([data], size, False)
    for cuts in ([1], [entry.PAGE], [100, 200, entry.PAGE + 300], [5000, 5000, size - 1]):
        ends = [0, *cuts, size]
        chunks = [memoryview(data)[a:b] for a, b in zip(ends, ends[1:])]
        assert entry._checksum(chunks, size, False) == whole


def test_sums_notice_what_disks_do():
    page, size = entry.PAGE, entry.SMALL + 5
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    sums = {entry._checksum([data.tobytes()], size, False)}
    for at in (0, 7, page - 3, size - 1):       # a bit, of the last part page, too
        wrong = data.copy()
        wrong[at] ^= 128
        sums.add(entry._checksum([wrong.tobytes()], size, False))
    swapped, lost, moved = data.copy(), data.copy(), data.copy()
    swapped[:page], swapped[page:2 * page] = data[page:2 * page], data[:page]
    lost[page:2 * page] = 0
    moved[8:page] = data[:page - 8]
    sums |= {entry._checksum([x.tobytes()], size, False) for x in (swapped, lost, moved)}
    assert len(sums) == 8


def test_get_or_build_builds_once(root, pocl):
    calls = []

    def build() -> bytes:
        calls.append(1)
        return b"built"

    assert get_or_build(pocl, "kernel", key(), build) == b"built"
    assert get_or_build(pocl, "kernel", key(), build) == b"built"
    second = fresh(root)
    assert get_or_build(second, "kernel", key(), build) == b"built"
    assert len(calls) == pocl.stats.builds == 1
    assert second.stats.builds == 0


def test_a_build_that_fails_leaves_the_lock_free(pocl):
    def fails() -> bytes:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            get_or_build(pocl, "kernel", key(), fails)
    assert get_or_build(pocl, "kernel", key(), lambda: b"ok") == b"ok"


# -- damage ------------------------------------------------------------------------------------


def expect_rebuilt(root: Path, data: bytes, caplog) -> None:
    """A damaged entry is a miss that warns once; it is built again, and then hit."""
    for mapped in (False, True):
        caplog.clear()
        damaged = the_file(root).read_bytes()
        cache = fresh(root)
        with caplog.at_level(logging.WARNING, "jitcl.cache"):
            assert (cache.get_mmap if mapped else cache.get)("kernel", key()) is None
        assert cache.stats.corrupt == cache.stats.misses == 1
        assert len(caplog.records) == 1
        assert "dropped a damaged entry" in caplog.text
        assert not list(root.rglob("*.jitcl"))
        assert get_or_build(cache, "kernel", key(), lambda: data) == data
        assert fresh(root).get("kernel", key()) == data
        the_file(root).write_bytes(damaged)


def test_every_flipped_bit_of_a_small_entry_is_noticed(root, pocl):
    pocl.put("kernel", key(), b"some machine code")
    path = the_file(root)
    whole = path.read_bytes()
    identity = {"device": POCL.key, "kind": "kernel", "key": key().digest}
    assert entry.check(memoryview(whole), identity) == b"some machine code"
    for position in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            with pytest.raises(entry.DamagedEntry):
                entry.check(memoryview(flipped), identity)


@pytest.mark.parametrize("data", [b"some machine code", BIG], ids=["small", "large"])
@pytest.mark.parametrize("where", [0, 9, 13, 18, 30, 60, 100, -1, -7])
def test_a_flipped_bit_is_noticed_and_rebuilt(root, pocl, caplog, data, where):
    pocl.put("kernel", key(), data)
    whole = bytearray(the_file(root).read_bytes())
    whole[where] ^= 0x10
    the_file(root).write_bytes(whole)
    expect_rebuilt(root, data, caplog)


def test_a_flipped_bit_anywhere_in_a_large_payload_is_noticed(root, pocl):
    pocl.put("kernel", key(), BIG)
    whole = bytearray(the_file(root).read_bytes())
    identity = {"device": POCL.key, "kind": "kernel", "key": key().digest}
    for position in [*range(entry.PAGE, len(whole), 30011), len(whole) - 1]:
        whole[position] ^= 1
        with pytest.raises(entry.DamagedEntry, match="payload does not match"):
            entry.check(memoryview(whole), identity)
        whole[position] ^= 1


@pytest.mark.parametrize("keep", [0, 1, 63, 64, 200, -1])
@pytest.mark.parametrize("data", [b"some machine code", BIG], ids=["small", "large"])
def test_a_truncated_entry_is_noticed_and_rebuilt(root, pocl, caplog, data, keep):
    pocl.put("kernel", key(), data)
    whole = the_file(root).read_bytes()
    the_file(root).write_bytes(whole[:keep])
    expect_rebuilt(root, data, caplog)


def test_an_entry_with_bytes_behind_it_is_noticed(root, pocl, caplog):
    pocl.put("kernel", key(), b"code")
    the_file(root).write_bytes(the_file(root).read_bytes() + b"\0")
    expect_rebuilt(root, b"code", caplog)


def test_a_foreign_file_is_noticed(root, pocl, caplog):
    pocl.put("kernel", key(), b"code")
    the_file(root).write_bytes(b"GIF89a" + bytes(1000))
    expect_rebuilt(root, b"code", caplog)


@pytest.mark.parametrize("change", ["device", "kind", "key"])
def test_an_entry_of_another_device_kind_or_key_is_noticed(root, pocl, caplog, change):
    other = KernelCache(root, limit=10**9).for_target(INTEL if change == "device" else POCL)
    other.put("plan" if change == "kind" else "kernel",
              key("b") if change == "key" else key(), b"of another")
    path = root / device_directory(POCL) / "kernel" / f"{key().digest}.jitcl"
    path.parent.mkdir(parents=True, exist_ok=True)
    the_file(root).rename(path)
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        assert pocl.get("kernel", key()) is None
    assert pocl.stats.corrupt == 1
    assert f"foreign: {change} is" in caplog.text
    assert not path.exists()


def test_many_damaged_entries_warn_once(root, pocl, caplog):
    for name in "abc":
        pocl.put("kernel", key(name), b"x")
    for path in root.rglob("*.jitcl"):
        path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        assert [pocl.get("kernel", key(name)) for name in "abc"] == [None] * 3
    assert pocl.stats.corrupt == 3
    assert len(caplog.records) == 1


# -- devices -----------------------------------------------------------------------------------


def test_directories_read_well_and_differ_with_what_code_depends_on():
    assert device_directory(POCL) == f"pocl-3.0-rc2--pthread-amd-epyc-9v74-80-core--{POCL.key}"
    assert device_directory(INTEL) == f"intel-corporation-2026.2--amd-epyc-9v74--{INTEL.key}"
    cpu = Target(kind="cpu", name="AMD EPYC 9V74", vendor="AMD", driver="numba 0.61")
    assert device_directory(cpu) == f"cpu-numba-0.61--amd-epyc-9v74--{cpu.key}"
    odd = Target(kind="opencl", name="../../etc", vendor="", driver="")
    assert device_directory(odd) == f"opencl--etc--{odd.key}"
    more_units = dataclasses.replace(POCL, compute_units=2)
    assert device_directory(more_units) != device_directory(POCL)
    less_free = dataclasses.replace(POCL, global_memory=POCL.global_memory + 1)
    assert device_directory(less_free) == device_directory(POCL)      # PoCL: what is free now


def test_two_devices_never_share_an_entry(root):
    cache = KernelCache(root, limit=10**9)
    cache.for_target(POCL).put("kernel", key(), b"pocl")
    assert cache.for_target(INTEL).get("kernel", key()) is None
    cache.for_target(INTEL).put("kernel", key(), b"intel")
    assert cache.for_target(POCL).get("kernel", key()) == b"pocl"
    assert cache.devices() == tuple(sorted(map(device_directory, (POCL, INTEL))))


# -- bounds ------------------------------------------------------------------------------------


def age(root: Path, kind: str, name: str, seconds: float) -> None:
    path = root / device_directory(POCL) / kind / f"{name}.jitcl"
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_least_recently_used_entries_go_first(root):
    cache = fresh(root, limit=100_000)
    for i in range(9):                                   # 10 kB each with their headers
        cache.put("kernel", f"k{i}", bytes(9_800))
        age(root, "kernel", f"k{i}", 1000 - i)
    assert cache.get("kernel", "k0") is not None         # used: now the youngest
    cache.put("kernel", "new", bytes(15_000))
    kept = {e.digest for e in cache.cache.ls()}
    assert kept == {"k0", "k4", "k5", "k6", "k7", "k8", "new"}
    assert cache.stats.evicted == 3
    assert cache.cache.size() <= 80_000


def test_the_bound_holds_over_processes_and_devices(root):
    for target in (POCL, INTEL):
        for i in range(3):
            KernelCache(root, limit=50_000).for_target(target).put("kernel", f"k{i}", bytes(19_000))
            assert KernelCache(root).size() <= 50_000
    assert len(KernelCache(root).ls()) == 2


def test_an_entry_larger_than_the_bound_stays_in_memory(root, caplog):
    cache = fresh(root, limit=1000)
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        cache.put("plan", key(), bytes(5000))
    assert "does not fit into a cache of 1000" in caplog.text
    assert cache.get("plan", key()) == bytes(5000)
    assert not list(root.rglob("*.jitcl"))


def test_size_zero_keeps_everything_in_memory(root):
    cache = fresh(root, limit=0)
    cache.put("kernel", key(), b"")
    cache.put("kernel", key("b"), b"b")
    assert cache.get("kernel", key()) == b""
    assert cache.get_mmap("kernel", key("b")) == b"b"
    assert not root.exists()


def test_memory_is_bounded_too(root, monkeypatch):
    monkeypatch.setattr(cache_module, "IN_MEMORY", 1000)
    cache = fresh(root, limit=0)
    for i in range(5):
        cache.put("kernel", f"k{i}", bytes(400))
    assert [cache.get("kernel", f"k{i}") is None for i in range(5)] == [True] * 3 + [False] * 2


def test_leftovers_of_dead_processes_are_removed(root):
    cache = fresh(root, limit=30_000)
    cache.put("kernel", "k0", bytes(15_000))
    old, new = (root / device_directory(POCL) / "kernel" / f"{n}.tmp" for n in ("old", "new"))
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0, 0))
    cache.put("kernel", "k1", bytes(20_000))
    assert not old.exists()
    assert new.exists()


# -- what people ask ---------------------------------------------------------------------------


def test_ls_shows_what_entries_are_for(root, pocl):
    pocl.put("kernel", key("a", "kernel conv"), b"x")
    pocl.put("plan", key("b" * 500, "model m"), b"y")
    age(root, "kernel", key("a").digest, 100)
    plan, kernel = pocl.cache.ls()
    assert (plan.kind, plan.subject) == ("plan", "model m")
    assert plan.parts["source"].startswith("sha256:")
    assert plan.parts["source"].endswith("(500 characters)")
    assert (kernel.kind, kernel.subject) == ("kernel", "kernel conv")
    assert kernel.parts == {"source": "a", "options": "-cl-std=CL1.2"}
    assert kernel.device == device_directory(POCL)
    assert kernel.nbytes == kernel.path.stat().st_size
    assert pocl.cache.size() == plan.nbytes + kernel.nbytes
    plan.path.write_bytes(b"")
    assert "truncated" in next(e for e in pocl.cache.ls() if e.kind == "plan").damaged


def test_clear_touches_one_device_or_all_and_nothing_else(root):
    cache = KernelCache(root, limit=10**9)
    for target in (POCL, INTEL):
        cache.for_target(target).put("kernel", key(), b"x")
    (root / "mine.txt").write_text("not the cache's")
    with pytest.raises(CacheError, match=r"no device 'mali' in the cache(.|\n)*There are: "):
        cache.clear("mali")
    assert cache.clear(device_directory(POCL)) == 1
    assert cache.devices() == (device_directory(INTEL),)
    assert cache.clear() == 1
    assert cache.ls() == []
    assert [p.name for p in root.rglob("*")] == ["mine.txt"]
    cache.for_target(POCL).put("kernel", key(), b"y")
    assert cache.for_target(POCL).get("kernel", key()) == b"y"


def test_an_empty_cache_answers(root):
    cache = KernelCache(root, limit=10**9)
    assert (cache.ls(), cache.size(), cache.devices(), cache.clear()) == ([], 0, (), 0)


def test_why_names_the_part_that_missed(root, pocl):
    pocl.put("plan", key("v1", shapes="1x3", code="c1"), b"x")
    pocl.put("plan", key("v2", shapes="9x9", code="c9"), b"x")
    pocl.put("plan", key("v1", "model other", shapes="1x4"), b"x")
    assert pocl.why("plan", key("v1", shapes="1x3", code="c1")).hit
    why = pocl.why("plan", key("v1", shapes="1x3", code="c2"))
    assert not why.hit
    assert why.differs == (("code", "c2", "c1"),)
    assert str(why).splitlines()[1:] == ["  code", "    now    c2", "    stored c1"]
    missing = pocl.why("plan", key("v1", shapes="1x3"))
    assert missing.differs == (("code", "(not a part)", "c1"),)
    assert pocl.why("plan", key("v1", "model new")).nearest is None
    assert "never built" in str(pocl.why("plan", key("v1", "model new")))
    assert pocl.why("kernel", key("v1", shapes="1x3", code="c1")).nearest is None


def test_why_looks_at_other_devices_last(root, pocl):
    newer = KernelCache(root, limit=10**9).for_target(dataclasses.replace(POCL, driver="3.1"))
    pocl.put("plan", key("v1"), b"x")
    why = newer.why("plan", key("v1"))
    assert why.differs == (("device", newer.name, pocl.name),)
    newer.put("plan", key("v3", options="-O0", more="1"), b"x")
    assert [part for part, _, _ in newer.why("plan", key("v1")).differs] == [
        "more", "options", "source"]


def test_why_does_not_call_a_damaged_entry_a_hit(root, pocl):
    pocl.put("plan", key(), b"x")
    the_file(root).write_bytes(b"")
    assert not pocl.why("plan", key()).hit


# -- defaults ----------------------------------------------------------------------------------


def test_one_cache_for_a_process_and_directory(tmp_path):
    with config.override(cache_dir=tmp_path):
        assert kernel_cache().root == tmp_path
        assert kernel_cache() is kernel_cache(tmp_path)
        assert kernel_cache() is not kernel_cache(tmp_path / "x")
    with config.override(cache_dir=tmp_path, cache_size="3m"):
        assert kernel_cache().limit == 3_000_000
    with config.override(cache_dir=None):
        assert kernel_cache().root.name == "jitcl"


@pytest.mark.parametrize(("disk", "bound"), [(16 * 10**9, 2 * 10**9), (10**12, 5 * 10**10)])
def test_a_cache_may_take_a_twentieth_of_the_disk_it_lies_on(tmp_path, monkeypatch, disk, bound):
    def disk_usage(folder):
        if folder != tmp_path:
            raise FileNotFoundError(folder)
        return SimpleNamespace(total=disk)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    assert KernelCache(tmp_path / "not" / "there").limit == bound


def test_the_bound_where_the_system_tells_of_no_disk(tmp_path, monkeypatch):
    def disk_usage(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    assert KernelCache(tmp_path).limit == 2 * 10**9


def test_the_code_version_is_stable():
    first = code_version()
    assert len(first) == 16
    code_version.cache_clear()
    assert code_version() == first
