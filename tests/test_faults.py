"""The database of driver faults: what is blamed, what is kept through damage, threads, processes
and directories that can't be written.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitcl.devices import faults
from jitcl.devices.fault_file import DamagedFile, Record, decode, encode, salvage
from jitcl.devices.faults import REMOVABLE, Fault, FaultDatabase, database_path, databases

CRASH = "SIGABRT: LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586"


def crash(entry: str, *features: str, **fields: object) -> Fault:
    return replace(Fault(entry, "build", "crash", CRASH, features), **fields)


def some(*features: str) -> frozenset[str]:
    return frozenset(features)


def blames(known: FaultDatabase) -> tuple[tuple[frozenset[str], Fault], ...]:
    """Sets of features that no kernel may combine, each with a fault that shows why."""
    known.rejects("", frozenset())                  # has it read its file again
    return known._blames


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database_path(tmp_path, "ARM", "Mali-G78 r0p1", "3.0")


# ---- what is blamed


def test_a_kernel_that_failed_is_rejected_with_what_happened():
    known = FaultDatabase(None)
    known.record(crash("softmax_1"))
    assert known.rejects("softmax_1", some()) == CRASH
    assert known.rejects("softmax_2", some("half")) == ""


def test_kernels_that_combine_all_features_which_failed_are_rejected():
    known = FaultDatabase(None)
    known.record(crash("softmax_1", "half", "local", "template:softmax", "call:exp"))
    blamed = some("half", "local", "template:softmax")
    assert [b for b, _ in blames(known)] == [blamed]
    assert known.rejects("other", blamed | {"vec4"}) == f"half+local+template:softmax: {CRASH}"
    for left_out in blamed:
        assert known.rejects("other", blamed - {left_out} | {"call:exp"}) == ""


def test_what_is_right_elsewhere_is_not_to_blame():
    known = FaultDatabase(None)
    known.record(crash("softmax_1", "half", "local", "template:softmax"))
    known.found_good(["local", "template:softmax", "half_storage"])
    assert [b for b, _ in blames(known)] == [some("half")]
    assert known.rejects("gemm_1", some("half", "vec4")) == f"half: {CRASH}"
    assert known.rejects("gemm_1", some("half_storage", "vec4")) == ""


def test_where_every_feature_is_right_elsewhere_only_the_kernel_is_to_blame():
    known = FaultDatabase(None)
    known.record(crash("softmax_1", "half"))
    known.found_good(["half"])
    assert blames(known) == ()
    assert known.rejects("softmax_1", some("half")) == CRASH
    assert known.rejects("softmax_2", some("half")) == ""


@pytest.mark.parametrize("kind", ["resources", "lost"])
def test_size_and_bad_moments_say_nothing_of_features(kind):
    known = FaultDatabase(None)
    known.record(crash("gemm_1", "half", "local", kind=kind))
    assert blames(known) == ()
    assert known.rejects("gemm_1", some("half", "local")) == CRASH
    assert known.rejects("gemm_2", some("half", "local")) == ""


def test_features_that_no_variant_takes_out_are_never_blamed():
    known = FaultDatabase(None)
    known.record(crash("k", "call:exp", "option:-cl-mad-enable", "fp64", "int64"))
    assert blames(known) == ()


def test_a_smaller_set_makes_larger_ones_needless():
    known = FaultDatabase(None)
    known.record(crash("a", "half", "local"), crash("b", "half"), crash("c", "vec16", "local"))
    assert {b for b, _ in blames(known)} == {some("half"), some("vec16", "local")}


def test_blame_of_one_fault_shrinks_as_more_is_known():
    known, fault = FaultDatabase(None), crash("a", "half", "local", "call:exp")
    known.record(fault)
    assert known.blame_of(fault) == some("half", "local")
    known.found_good(["local"])
    assert known.blame_of(fault) == some("half")


FEATURES = st.frozensets(st.sampled_from([*sorted(REMOVABLE)[:6], "template:a", "call:exp"]))


@given(st.lists(st.tuples(st.booleans(), FEATURES), max_size=12), FEATURES)
@settings(deadline=None)
def test_blame_by_its_definition(history, asked):
    """A kernel is rejected exactly if some failed kernel's features, less those found good, are
    among its own; in whatever order things were learnt.
    """
    known = FaultDatabase(None)
    for i, (right, features) in enumerate(history):
        if right:
            known.found_good(features)
        else:
            known.record(crash(f"k{i}", *features))
    good = frozenset().union(*(f for right, f in history if right))
    left = [frozenset(f for f in features if f != "call:exp") - good
            for right, features in history if not right]
    assert bool(known.rejects("new", asked)) == any(b and b <= asked for b in left)
    for right, features in history:
        # a kernel whose every feature was right in some kernel is never rejected for them
        assert not (right and known.rejects("new", features))


# ---- what is kept


def test_what_is_recorded_outlives_the_process(path):
    first = crash("softmax_1", "half", log="x" * 10_000, signature="SIGABRT:  two\nlines",
                  variant="no-local", when=5.0)
    FaultDatabase(path).record(first, crash("conv_1", when=4.0))
    FaultDatabase(path).found_good(["local", "call:exp"])
    known = FaultDatabase(path)
    assert known.faults == (
        crash("conv_1", when=4.0),
        replace(first, log="x" * faults.LOG_KEPT, signature="SIGABRT: two lines"))
    assert known.good == some("local") and known.epoch == 0


def test_a_fault_without_a_time_gets_one(path):
    known = FaultDatabase(path)
    known.record(crash("a"))
    assert known.faults[0].when > 1e9


def test_what_one_object_learns_others_know_at_once(path):
    a, b = FaultDatabase(path), FaultDatabase(path)
    for i in range(20):
        a.record(crash(f"k{i}", "half"))
        assert b.rejects(f"k{i}", some()) == CRASH
    b.found_good(["half"])
    assert blames(a) == ()


def test_retry_forgets_faults_in_every_process_and_keeps_what_was_good(path):
    a, b = FaultDatabase(path), FaultDatabase(path)
    a.record(crash("x", "half"), crash("y"))
    b.found_good(["local"])
    assert b.retry() == 2
    assert (a.epoch, a.faults, a.good) == (1, (), some("local"))
    assert a.rejects("x", some("half")) == ""
    a.record(crash("z"))
    assert [f.entry for f in b.faults] == ["z"]
    assert (a.retry(), b.retry(), a.epoch) == (1, 0, 3)


def test_its_size_is_bounded(path, monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_KEPT", 30)
    monkeypatch.setattr(faults, "LOGS_KEPT", 10)
    known = FaultDatabase(path)
    known.record(*(crash(f"k{i}", log="x" * 5000, when=float(i + 1)) for i in range(100)))
    kept = FaultDatabase(path).faults
    assert [f.entry for f in kept] == [f"k{i}" for i in range(70, 100)]
    assert [len(f.log) for f in kept] == [0] * 20 + [faults.LOG_KEPT] * 10
    assert path.stat().st_size < 10 * faults.LOG_KEPT + 30 * 400


def test_devices_and_drivers_have_files_of_their_own(tmp_path):
    names = {database_path(tmp_path, *parts) for parts in (
        ("ARM", "Mali-G78", "1"), ("ARM", "Mali-G78", "2"), ("ARM", "Mali-G7", "81"), ("", "", ""))}
    assert len(names) == 4
    FaultDatabase(next(iter(names))).record(crash("a"))
    assert [d.path for d in databases(tmp_path)] == [next(iter(names))]


# ---- damage


def test_a_cut_file_loses_the_cut_row_only(path, caplog):
    FaultDatabase(path).record(*(crash(f"k{i}", "half", when=float(i + 1)) for i in range(5)))
    FaultDatabase(path).found_good(["local"])
    FaultDatabase(path).retry()
    FaultDatabase(path).record(*(crash(f"k{i}", when=float(i + 1)) for i in range(5)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with caplog.at_level(logging.WARNING):
        known = FaultDatabase(path)
    assert [f.entry for f in known.faults] == ["k0", "k1", "k2", "k3"]
    assert (known.epoch, known.good) == (1, some("local"))
    (record,) = caplog.records
    assert "was damaged" in record.message and "4 faults of it were kept" in record.message
    assert path.with_suffix(".damaged").read_bytes() == whole[:-30]
    caplog.clear()
    assert FaultDatabase(path).faults == known.faults and not caplog.records


def test_what_a_process_knows_outlives_the_file(path):
    known = FaultDatabase(path)
    known.record(crash("a"), crash("b"))
    path.write_bytes(b"\0" * 100)
    assert {f.entry for f in known.faults} == {"a", "b"}
    assert {f.entry for f in FaultDatabase(path).faults} == {"a", "b"}
    path.unlink()
    known.record(crash("c"))
    assert {f.entry for f in FaultDatabase(path).faults} == {"a", "b", "c"}


GOOD = Record(3, ["half"], [vars(crash(f"k{i}", "half", log='a "log"\n\x00é', when=1.5))
                            for i in range(3)])


def test_bytes_and_back():
    assert decode(encode(GOOD)) == Record(3, ["half"], [dict(row) for row in GOOD.faults])
    assert json.loads(encode(GOOD))["version"] == 1


@pytest.mark.parametrize("data", [
    b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"version": 2}',
    encode(GOOD).replace(b'"when": 1.5', b'"when": NaN'),
    encode(GOOD).replace(b'"when": 1.5', b'"when": "now"'),
    encode(GOOD).replace(b'"epoch": 3', b'"epoch": -1'),
    encode(GOOD).replace(b'"features": ["half"]', b'"features": "half"'),
    encode(GOOD).replace(b'"stage": "build"', b'"stage": 7'),
    encode(GOOD).replace(b'"stage"', b'"page"')])
def test_what_is_no_record_is_damage(data):
    with pytest.raises(DamagedFile):
        decode(data)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_any_damage_is_survived_and_whole_rows_are_kept(data):
    whole = bytearray(encode(GOOD))
    place = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(max_size=8))
    end = data.draw(st.integers(place, min(place + 40, len(whole))))
    hurt = bytes(whole[:place]) + junk + bytes(whole[end:])
    try:
        record = decode(hurt)
    except DamagedFile as error:
        record = error.salvaged
    known = FaultDatabase(None)
    known._merge(record)
    lines = hurt.split(b"\n")
    intact = [row for row in encode(GOOD).split(b"\n")[1:-2] if row in lines]
    assert len(record.faults) >= len(intact)
    assert known.rejects("new", some()) == ""


def test_a_line_with_broken_bytes_is_not_kept():
    assert salvage(encode(GOOD).replace(b"k1", b"\xff1")).faults == [
        dict(GOOD.faults[0]), dict(GOOD.faults[2])]


# ---- directories that can't be written


def test_without_a_writable_directory_faults_are_kept_in_memory(tmp_path, caplog):
    (tmp_path / "faults").write_text("a file where the directory should be")
    known = FaultDatabase(database_path(tmp_path, "ARM", "Mali", "1"))
    with caplog.at_level(logging.WARNING):
        known.record(crash("a", "half"))
        known.record(crash("b"))
        known.found_good(["local"])
    assert known.rejects("new", some("half")) and known.good == some("local")
    assert known.retry() == 2 and known.epoch == 1 and known.faults == ()
    (record,) = caplog.records
    assert "remembered for this process only" in record.message
    assert "JITCL_CACHE_DIR" in record.message


def test_a_full_disk_loses_nothing_that_is_known(path, monkeypatch, caplog):
    known = FaultDatabase(path)
    known.record(crash("a"))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(faults, "replace_file", full)
        known.record(crash("b"))
        assert known.retry() == 2
        known.record(crash("c"))
        assert [f.entry for f in known.faults] == ["c"]
    assert len(caplog.records) == 1 and "No space left" in caplog.records[0].message
    assert [f.entry for f in FaultDatabase(path).faults] == ["a"]
    known.record(crash("d"))
    assert [f.entry for f in FaultDatabase(path).faults] == ["c", "d"]
    assert FaultDatabase(path).epoch == 1


def test_a_lock_that_is_never_freed_costs_its_time_and_a_warning(path, monkeypatch, caplog):
    monkeypatch.setattr(faults, "LOCK_SECONDS", 0.2)
    known, other = FaultDatabase(path), FaultDatabase(path)
    other.record(crash("a"))
    with other._file_lock, caplog.at_level(logging.WARNING):
        known.record(crash("b"))
    assert {f.entry for f in known.faults} == {"a", "b"}
    assert "held its lock" in caplog.records[0].message
    known.record(crash("c"))
    assert {f.entry for f in other.faults} == {"a", "b", "c"}


# ---- many at once


def test_threads_lose_nothing(path):
    known = FaultDatabase(path)

    def work(number: int) -> None:
        for i in range(15):
            known.record(crash(f"k{number}_{i}", "half"))
            known.found_good([f"template:{number}_{i}"])
            assert known.rejects(f"k{number}_{i}", some())
    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    again = FaultDatabase(path)
    assert len(again.faults) == 90 and len(again.good) == 90


WORKER = """
import sys
from pathlib import Path
from jitcl.devices.faults import Fault, FaultDatabase
known, number = FaultDatabase(Path(sys.argv[1])), sys.argv[2]
sys.stdin.readline()
for i in range(20):
    known.record(Fault(f"k{number}_{i}", "build", "crash", "SIGSEGV", ("half",)))
    if number == "0" and i % 5 == 0:
        known.path.write_bytes(known.path.read_bytes()[:-7])        # as a dying process might
    known.found_good([f"template:{number}_{i}"])
    known.rejects("x", frozenset(("half",)))
"""


def test_processes_lose_nothing_even_where_one_damages_the_file(path):
    """Each knows its own and what it read; so the last of them to write has everything but rows
    that were cut before anybody else had read them, and those their own process writes again.
    """
    started = [subprocess.Popen([sys.executable, "-c", WORKER, str(path), str(n)],
                                stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=Path(__file__).parent.parent) for n in range(5)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    known = FaultDatabase(path)
    entries = {f.entry for f in known.faults}
    lost = {f"k{n}_{i}" for n in range(1, 5) for i in range(20)} - entries
    assert len(lost) <= 4, lost                      # at most one a cut
    assert not [p for p in path.parent.iterdir() if p.suffix == ".tmp"]


def test_a_dead_process_holds_no_lock(path):
    code = ("import os, sys; from pathlib import Path; from jitcl.devices.faults import *; "
            "d = FaultDatabase(Path(sys.argv[1])); d.record(Fault('a', 'build', 'crash', 'x')); "
            "d._file_lock.acquire(); os._exit(1)")
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60,
                   cwd=Path(__file__).parent.parent, env=dict(os.environ))
    known = FaultDatabase(path)
    known.record(crash("b"))
    assert {f.entry for f in known.faults} == {"a", "b"}


def test_what_probes_proved_is_not_blamed_for_a_refusal_nor_on_a_good_driver():
    database = FaultDatabase(None)
    refused = Fault("a", "build", "refused", "error: half", ("half", "local"))
    database.record(refused)
    assert database.rejects("b", frozenset({"half", "local"}))
    database.probed(("local",), trusted=False)
    assert database.blame_of(refused) == {"half"}
    assert not database.rejects("b", frozenset({"local"}))
    crash = Fault("c", "build", "crash", CRASH, ("local", "vec16"))
    database.record(crash)
    assert database.blame_of(crash) == {"local", "vec16"}       # a crash gives no reason
    database.probed(("local",), trusted=True)
    assert database.blame_of(crash) == {"vec16"}
