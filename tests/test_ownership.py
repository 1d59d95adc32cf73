"""Whose files are used: folders and entries of others, links, keys, homes that are not there.

Some tests need two users: they run as root, who becomes another, and skip otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitcl import ownership
from jitcl.devices.fault_file import replace_file
from jitcl.devices.faults import Fault, FaultDatabase, database_path, databases
from jitcl.devices.opencl import icd, remembered
from jitcl.devices.pending import Pending
from jitcl.errors import OptionError
from jitcl.runtime import digests, entry
from jitcl.runtime.cache import KernelCache, device_directory
from jitcl.target import Target
from tests.caches import get_or_build

pytestmark = pytest.mark.skipif(not ownership.POSIX, reason="owners and modes as POSIX has them")
as_root = pytest.mark.skipif(not ownership.POSIX or os.geteuid() != 0,
                             reason="needs root, to become another user")
REPO = Path(__file__).resolve().parent.parent
CPU = Target(kind="cpu", name="c")
OTHER, THIRD = 65534, 54321             # "nobody", and an id that no user has


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_decided", {})
    ownership._temporary.cache_clear()
    ownership._key_in.cache_clear()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users can reach and list."""
    path = Path(tempfile.mkdtemp(prefix="jitcl-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def cache(root: Path) -> Any:
    return KernelCache(root, limit=10**9).for_target(CPU)


def the_folder(root: Path, kind: str = "kernel") -> Path:
    return root / device_directory(CPU) / kind


def built(store: Any, name: str = "k", data: bytes = b"built") -> bytes:
    return get_or_build(store, "kernel", name, lambda: data)


def expect_unused(root: Path, caplog: pytest.LogCaptureFixture, *texts: str) -> None:
    """Nothing is read from a folder or written there, and one warning says why."""
    before = sorted(root.rglob("*"))
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        for _ in range(2):
            store = cache(root)
            assert built(store, "planted", b"mine") == b"mine"
            assert store.get("kernel", "planted") == b"mine"
    assert sorted(root.rglob("*")) == before
    assert store.cache.root != root and not store.cache.root.is_relative_to(root)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    said = caplog.text
    for text in (str(root), "is not used", "JITCL_CACHE_DIR", *texts):
        assert text in said, said


def plant(root: Path) -> None:
    """An entry as this user would have made it."""
    store = cache(root)
    store.put("kernel", "planted", b"planted")
    assert store.get("kernel", "planted") == b"planted"
    ownership._decided.clear()


# -- which folders are used ---------------------------------------------------------------------


def test_a_folder_that_all_may_write_is_not_used(tmp_path, caplog):
    root = tmp_path / "cache"
    plant(root)
    root.chmod(0o777)
    expect_unused(root, caplog, "may be written by all users (mode 0777)", f"chmod go-w '{root}'")


def test_a_folder_with_the_sticky_bit_is_not_used_itself(tmp_path, caplog):
    root = tmp_path / "cache"
    plant(root)
    root.chmod(0o1777)
    expect_unused(root, caplog, "may be written by all users")


def test_a_folder_under_one_that_all_may_write_is_not_used(tmp_path, caplog):
    above = tmp_path / "above"
    plant(above / "cache")
    above.chmod(0o777)
    expect_unused(above / "cache", caplog, f"{above}, on the way to it, may be written by all")


def test_a_folder_under_one_with_the_sticky_bit_is_used(tmp_path, caplog):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o1777)
    plant(above / "cache")
    assert cache(above / "cache").get("kernel", "planted") == b"planted" and not caplog.records


def test_a_link_that_others_may_replace_is_not_followed(tmp_path, caplog):
    (tmp_path / "open").mkdir()
    plant(tmp_path / "real")
    (tmp_path / "open" / "cache").symlink_to(tmp_path / "real")
    (tmp_path / "open").chmod(0o777)
    expect_unused(tmp_path / "open" / "cache", caplog, "on the way to it, may be written by all")


def test_a_link_of_the_users_own_is_followed(tmp_path, caplog):
    plant(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert cache(tmp_path / "link").get("kernel", "planted") == b"planted" and not caplog.records
    (tmp_path / "real").chmod(0o777)
    ownership._decided.clear()
    assert cache(tmp_path / "link").get("kernel", "planted") is None
    assert "real, on the way to it, may be written by all users" in caplog.text


@as_root
def test_a_folder_of_another_user_is_not_used(tmp_path, caplog):
    root = tmp_path / "cache"
    plant(root)
    os.chown(root, OTHER, -1)
    expect_unused(root, caplog, "belongs to user", "run as user 'root'", "sudo -H")


@as_root
def test_a_folder_under_one_of_another_user_is_not_used(tmp_path, caplog):
    plant(tmp_path / "theirs" / "cache")
    os.chown(tmp_path / "theirs", OTHER, -1)
    expect_unused(tmp_path / "theirs" / "cache", caplog, "theirs, on the way to it, belongs to")


@as_root
def test_a_folder_that_a_group_may_write_is_not_used(tmp_path, caplog):
    root = tmp_path / "cache"
    plant(root)
    os.chown(root, -1, THIRD)
    root.chmod(0o770)
    expect_unused(root, caplog, f"may be written by group {THIRD} (mode 0770)")


@as_root
def test_a_users_private_group_may_write(shared):
    import grp
    import pwd

    alone = [u for u in pwd.getpwall() if u.pw_uid and u.pw_gid in {
        g.gr_gid for g in grp.getgrall() if g.gr_name == u.pw_name and not g.gr_mem}]
    if not alone:                       # CI's image has such users; others may not
        pytest.skip("no user of this system has a group of its own")
    program = ("import grp, os, pwd, sys; from pathlib import Path; from jitcl import ownership; "
               "os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[2])); "
               "os.mkdir(sys.argv[1]); os.chmod(sys.argv[1], 0o770); "
               "print('said:', ownership.distrusted(Path(sys.argv[1])))")
    folder = shared / "of a user"
    folder.mkdir()
    os.chown(folder, alone[0].pw_uid, alone[0].pw_gid)
    done = python(program, folder / "cache", alone[0].pw_uid, alone[0].pw_gid)
    assert done.stdout.strip() == "said:", done.stdout + done.stderr


def test_folders_are_closed_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = cache(tmp_path / "home" / ".cache" / "jitcl")
        built(store)
        digests._remember(store.cache.root / "files" / "a.json", [1], "d")
        replace_file(store.cache.root / "faults" / "f.json", b"{}")
        icd_folder = ownership.below(store.cache.root, icd.OURS)
        icd._write(icd_folder / "a.icd", "text")
    finally:
        os.umask(before)
    made = sorted((tmp_path / "home").rglob("*"))
    assert len(made) >= 10
    for path in (tmp_path / "home", *made):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o022 == 0, path
        assert mode == (0o700 if path.is_dir() else 0o600), path


# -- what lies in them --------------------------------------------------------------------------


def expect_built_anew(root: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        store = cache(root)
        assert built(store, "planted", b"mine") == b"mine"
        assert cache(root).get("kernel", "planted") == b"mine"
    assert text in caplog.text and store.stats.corrupt == 1


def test_an_entry_that_others_may_write_is_built_anew(tmp_path, caplog):
    plant(tmp_path)
    (the_folder(tmp_path) / "planted.jitcl").chmod(0o666)
    expect_built_anew(tmp_path, caplog, "may be written by all users (mode 0666)")


@as_root
def test_an_entry_of_another_user_is_built_anew(tmp_path, caplog):
    plant(tmp_path)
    os.chown(the_folder(tmp_path) / "planted.jitcl", OTHER, -1)
    expect_built_anew(tmp_path, caplog, "belongs to user")


def test_an_entry_that_is_a_link_is_built_anew(tmp_path, caplog):
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    plant(root)
    path = the_folder(root) / "planted.jitcl"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    old = elsewhere.read_bytes()
    expect_built_anew(root, caplog, "it is a symbolic link")
    assert elsewhere.read_bytes() == old and not path.is_symlink()


def test_an_entry_that_is_a_pipe_is_not_waited_for(tmp_path, caplog):
    plant(tmp_path)
    path = the_folder(tmp_path) / "planted.jitcl"
    path.unlink()
    os.mkfifo(path)
    expect_built_anew(tmp_path, caplog, "it is no plain file")


@pytest.mark.parametrize("depth", ["device", "kind"])
def test_a_folder_that_is_a_link_is_not_followed(tmp_path, caplog, depth):
    """Neither to read nor to write, nor to lock, evict, tidy up or clear."""
    root, system = tmp_path / "cache", tmp_path / "system"
    plant(tmp_path / "made")
    shutil.copytree(tmp_path / "made" / device_directory(CPU), system)
    (system / "kernel" / "x.lock").touch()
    os.utime(system / "kernel" / "x.lock", (0, 0))
    root.mkdir(mode=0o700)
    if depth == "device":
        (root / device_directory(CPU)).symlink_to(system)
    else:
        (root / device_directory(CPU)).mkdir(mode=0o700)
        the_folder(root).symlink_to(system / "kernel")
    before = {p: p.stat().st_mtime_ns for p in system.rglob("*")}
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        store = cache(root)
        assert built(store, "planted", b"mine") == b"mine"
        assert store.get("kernel", "planted") == b"mine"        # from memory
        assert store.cache.ls() == [] and store.cache.clear() == 0
        KernelCache(root, limit=10)._wrote(100)
    assert {p: p.stat().st_mtime_ns for p in system.rglob("*")} == before
    assert "is a symbolic link, which is not followed; delete it" in caplog.text


@pytest.mark.parametrize("name", ["faults", "files", "opencl-probes", icd.OURS, icd.SCRATCH])
def test_no_folder_of_the_cache_is_written_through_a_link(tmp_path, name, monkeypatch):
    """Faults, notes of what is pending, digests, probes' answers, drivers' lists, PoCL's files."""
    root, system = tmp_path / "cache", tmp_path / "system"
    root.mkdir(mode=0o700)
    system.mkdir()
    (root / name).symlink_to(system)
    (system / "theirs.json").write_text('{"device": "x", "answers": [{"kind": "crash"}]}')
    monkeypatch.setenv("JITCL_CACHE_DIR", str(root))
    assert icd.writable(name) != root / name
    path = root / "faults" / "x--y--z.json"
    database = FaultDatabase(path)
    database.record(Fault("k", "build", "crash", "SIGSEGV"))
    assert database.rejects("k", frozenset())           # in memory
    with Pending(path).over(["k"]):
        pass
    digests._remember(root / "files" / "a.json", [1], "d")
    digests.forget(root)
    assert remembered.forget_fatal(root) == 0 or name not in ("opencl-probes",)
    assert [p.name for p in system.iterdir()] == ["theirs.json"]


def test_what_others_may_have_written_of_drivers_is_not_believed(tmp_path):
    root = tmp_path
    path = database_path(root, "v", "n", "d")
    FaultDatabase(path).record(Fault("k", "build", "crash", "SIGSEGV"))
    assert FaultDatabase(path).rejects("k", frozenset()) == "SIGSEGV"
    path.chmod(0o666)
    assert FaultDatabase(path).rejects("k", frozenset()) == ""
    digests._remember(root / "files" / "a.json", [1], "d")
    assert digests._remembered(root / "files" / "a.json", [1]) == "d"
    (root / "files" / "a.json").chmod(0o666)
    assert digests._remembered(root / "files" / "a.json", [1]) is None
    folder = ownership.below(root, icd.OURS)
    icd._write(folder / "a.icd", "libtheirs.so")
    (folder / "a.icd").chmod(0o666)
    icd._write(folder / "a.icd", "libtheirs.so")        # the same text: written anew all the same
    assert stat.S_IMODE((folder / "a.icd").stat().st_mode) == 0o600
    assert len(databases(root)) == 1


def test_a_lock_that_is_a_link_leaves_its_target_alone(tmp_path):
    (tmp_path / "target").write_text("kept")
    plant(tmp_path / "cache")
    lock = the_folder(tmp_path / "cache") / "k.lock"
    lock.symlink_to(tmp_path / "target")
    built(cache(tmp_path / "cache"))
    assert (tmp_path / "target").read_text() == "kept"


def test_a_dump_writes_through_no_link(tmp_path):
    (tmp_path / "target").write_text("kept")
    (tmp_path / "out").mkdir()
    for name in ("steps.txt", "00-import.jitcl", "memory.svg"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "target")
    (tmp_path / "m.jitcl").write_text(
        "graph @f(%x: f32[4]) {\n  %y = exp(%x)\n  return %y\n}\n")
    done = python("import sys; from jitcl.cli.main import main; main()", "dump",
                  tmp_path / "m.jitcl", "-d", "cpu", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "steps.txt").read_text().startswith("0 exp")
    assert (tmp_path / "target").read_text() == "kept"


# -- entries are this user's --------------------------------------------------------------------


def test_only_a_cache_away_from_home_has_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to("home")
    assert ownership.key(tmp_path / "home" / ".cache") == b""
    assert ownership.key(tmp_path / "link" / ".cache") == b""
    assert not (tmp_path / "home" / ".local").exists()
    secret = ownership.key(tmp_path / "cache")
    path = tmp_path / "home" / ".local" / "share" / "jitcl" / "cache-key"
    assert len(secret) == 32 and path.read_bytes() == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ownership._key_in.cache_clear()
    assert ownership.key(tmp_path / "other") == secret
    path.chmod(0o644)                           # others may have read it
    ownership._key_in.cache_clear()
    assert ownership.key(tmp_path / "cache") not in (secret, b"")


@pytest.mark.parametrize("before", ["nothing", "a key that others may read"])
def test_the_key_of_a_process_that_was_quicker_stays(tmp_path, monkeypatch, before):
    """It appears after this process looked, and before it writes: entries are made with it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    path, theirs = tmp_path / ".local" / "share" / "jitcl" / "cache-key", bytes(range(32))
    if before != "nothing":
        path.parent.mkdir(parents=True, mode=0o700)
        path.write_bytes(bytes(32))
    ours, asked = os.urandom, []

    def quicker(count):
        asked.append(count)
        (path.parent / "new").write_bytes(theirs)
        (path.parent / "new").chmod(0o600)
        os.replace(path.parent / "new", path)
        return ours(count)

    monkeypatch.setattr(ownership.os, "urandom", quicker)
    ownership._key_in.cache_clear()
    assert ownership.key(tmp_path.parent / "cache") == theirs and asked == [32]
    assert path.read_bytes() == theirs


@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_an_entry_made_with_another_key_is_built_anew(tmp_path, monkeypatch, caplog, nbytes):
    """As one that was unpacked from somebody's archive: it belongs to this user."""
    theirs, mine = bytes(nbytes), bytes([1]) * nbytes
    for user in ("them", "me"):
        (tmp_path / user).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "them"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    cache(tmp_path / "cache").put("kernel", "planted", theirs)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    store = cache(tmp_path / "cache")
    with caplog.at_level(logging.WARNING, "jitcl.cache"):
        assert built(store, "planted", mine) == mine
    assert "not made with this user's key" in caplog.text
    assert cache(tmp_path / "cache").get("kernel", "planted") == mine


def test_a_payload_is_authenticated_with_its_head(tmp_path):
    """A head that was copied with another payload of the same sum would not do."""
    identity, secret = {"device": "d", "kind": "k", "key": "e"}, b"s" * 32
    for nbytes in (10, 2 << 20):
        whole = entry.pack_head(identity, [bytes(nbytes)], secret) + bytes(nbytes)
        assert entry.check(memoryview(whole), identity, secret) == bytes(nbytes)
        assert '"sha256:' in str(whole[:400])
        unkeyed = entry.pack_head(identity, [bytes(nbytes)]) + bytes(nbytes)
        with pytest.raises(entry.DamagedEntry, match="not made with this user's key"):
            entry.check(memoryview(unkeyed), identity, secret)
        assert entry.check(memoryview(whole), identity) == bytes(nbytes)    # root's, by another
        weak = entry.pack_head({**identity, "kind": "weights"}, [bytes(nbytes)], secret)
        assert ("xxh3:" in str(weak)) == (nbytes > entry.SMALL)            # of numbers: 6 ms
        forged = bytearray(whole)
        forged[-1] ^= 1
        with pytest.raises(entry.DamagedEntry, match="payload does not match"):
            entry.check(memoryview(bytes(forged)), identity, secret)


# -- other users, whole programs ----------------------------------------------------------------

# What is imported, and the build processes, are root's: its Python may be closed to others.
PROGRAM = """
import grp, json, logging, os, platformdirs, pwd, sys, tempfile
import numpy as np
import jitcl

def run(op):
    g = jitcl.parse("graph @f(%x: f32[4]) {\\n  %y = " + op + "(%x)\\n  return %y\\n}\\n")
    model = jitcl.compile(g, device="cpu")
    return model, next(iter(model.run({"x": np.zeros(4, np.float32)}).values()))

with tempfile.TemporaryDirectory() as first:
    os.environ["JITCL_CACHE_DIR"] = first
    run("cos")
del os.environ["JITCL_CACHE_DIR"]
user, environment = json.loads(sys.argv[1])
for name, value in environment.items():
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
os.setgroups([])
os.setgid(user)
os.setuid(user)
logging.basicConfig(format="%(levelname)s %(message)s")
model, got = run("exp")
assert (got == 1).all()
stats = model.cache.stats
print(json.dumps({"root": str(model.cache.cache.root), "hits": stats.hits, "builds": stats.builds}))
"""


def python(program: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *map(str, args)], text=True, cwd="/",
                          env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True,
                          timeout=200, check=False)


def as_user(user: int, **environment: str | None) -> tuple[dict[str, Any], str]:
    """What PROGRAM says of its cache, and its warnings."""
    done = python(PROGRAM, json.dumps([user, {"XDG_DATA_HOME": None, "XDG_CACHE_HOME": None,
                                              **environment}]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("reader", [0, THIRD])
def test_a_cache_of_another_user_is_not_run(shared, reader):
    """What they planted is neither read nor changed, by root or by a third user."""
    root = shared / "cache"
    root.mkdir()
    os.chown(root, OTHER, OTHER)
    theirs = {"JITCL_CACHE_DIR": str(root), "HOME": str(shared / "no home")}
    for builds in (True, False):
        made, said = as_user(OTHER, **theirs)
        assert made["root"] == str(root) and (made["builds"] > 0) == builds and said == ""
    for path in (root, *root.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    made, said = as_user(reader, **theirs)
    assert not made["root"].startswith(str(root)) and not Path(made["root"]).exists()
    assert made["builds"] > 0
    assert said.count("WARNING") == 1 and "is not used: it belongs to user" in said
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


@pytest.mark.slow
@as_root
def test_a_cache_of_root_is_read_by_others(shared):
    """As in an image: filled when it was built, used by whoever runs it."""
    root, home = shared / "cache", shared / "home"
    made, said = as_user(0, JITCL_CACHE_DIR=str(root), HOME=str(shared))
    assert made["builds"] > 0 and said == ""
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    made, _ = as_user(OTHER, JITCL_CACHE_DIR=str(root), HOME=str(home))
    assert made["root"] == str(root) and made["builds"] == 0 and made["hits"] > 0


@as_root
@pytest.mark.parametrize("home", [None, *(
    pytest.param(h, marks=pytest.mark.slow) for h in ("/", "/nonexistent", "closed"))])
def test_a_user_without_a_home_still_works(home, shared):
    """As containers run programs: an id that the system has no user for, nowhere to write, or a
    home that is somebody else's.
    """
    if home == "closed":
        (shared / home).mkdir(mode=0o700)
        home = str(shared / home)
    made, said = as_user(THIRD, HOME=home)
    assert made["builds"] > 0 and "Kernels are kept for this process only" in said
    assert said.count("WARNING") == 1 and "Traceback" not in said


@as_root
@pytest.mark.slow
def test_a_user_without_a_home_has_the_cache_that_is_named(shared):
    root = shared / "cache"
    root.mkdir()
    os.chown(root, THIRD, THIRD)
    for builds in (True, False):
        made, said = as_user(THIRD, HOME=None, JITCL_CACHE_DIR=str(root))
        assert made["root"] == str(root) and (made["builds"] > 0) == builds and said == ""


def test_a_cache_of_no_user_is_an_error():
    with pytest.raises(OptionError, match="'~nobody-like-that/x': there is no such user"):
        ownership.usable(Path("~nobody-like-that/x"))
