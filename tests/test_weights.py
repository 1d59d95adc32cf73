"""Weights by content: once in the cache, in memory and on a device, for all plans that use them;
never gone before these, and rebuilt where they are damaged. Programs and plans that nobody uses go.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import jitcl
from jitcl.devices.cpu.device import CpuDevice
from jitcl.runtime import cache, weights
from jitcl.runtime.cache import KernelCache
from jitcl.runtime.entry import Entry
from jitcl.runtime.mapping import mapped
from jitcl.runtime.pruning import doomed
from jitcl.runtime.source import OnnxSource
from jitcl.templates.gemm_cpu import template
from tests.devices import present
from tests.test_cache_models import model_of

DEVICES = [s for s in ("cpu", "opencl:pocl", "opencl:intel") if s in present()]
WIDTH = 80                      # a weight takes 25.6 kB
LAYERS = 3
WEIGHTS = LAYERS * WIDTH * WIDTH * 4


def layers(seed: int = 0) -> bytes:
    """y[n, 80] = relu(.. relu(x[n, 80] @ w0) ..): three weights, for any n."""
    rng = np.random.default_rng(seed)
    nodes, x = [], "x"
    constants = {}
    for i in range(LAYERS):
        y = "y" if i == LAYERS - 1 else f"y{i}"
        constants[f"w{i}"] = (rng.standard_normal((WIDTH, WIDTH)) / 9).astype(np.float32)
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]),
                  helper.make_node("Relu", [f"m{i}"], [y])]
        x = y
    return model_of(nodes, [("x", TensorProto.FLOAT, ["n", WIDTH])],
                    [("y", TensorProto.FLOAT, ["n", WIDTH])], **constants)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, WIDTH)).astype(np.float32)


def right(model: jitcl.Model, n: int, seed: int = 0) -> None:
    rng, x = np.random.default_rng(seed), rows(n)
    for _ in range(LAYERS):
        x = np.maximum(x @ (rng.standard_normal((WIDTH, WIDTH)) / 9).astype(np.float32), 0)
    np.testing.assert_allclose(model(rows(n))["y"], x, rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True)
def own_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for each shape: what families leave nothing to share of."""
    monkeypatch.setenv("JITCL_FAMILIES", "0")


def files(root: Path, kind: str) -> list[Path]:
    return sorted(root.glob(f"*/{kind}/*.jitcl"))


def forget() -> None:
    """As in a new process: nothing is in memory any more."""
    gc.collect()
    assert not weights._alive


# -- once


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_stored_once_for_many_shapes(device: str, tmp_path: Path) -> None:
    model = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    for n in (40, 41, 42, 44):
        right(model, n)
    plans = files(tmp_path, "plan")
    assert len(plans) == 4
    assert sum(p.stat().st_size for p in plans) < WEIGHTS           # of four: their text
    packed = files(tmp_path, "weights")
    assert len(packed) in (LAYERS, 2 * LAYERS)                      # for small tiles and large ones
    arrays = [a for special in model._kept.values() for a in special.plan.constants.values()
              if a.nbytes >= weights.LEAST]
    assert len(arrays) == 4 * LAYERS
    assert len({a.ctypes.data for a in arrays}) == len(packed)      # of all four plans


@pytest.mark.parametrize("device", DEVICES)
def test_a_later_process_takes_them_from_the_cache(device: str, tmp_path: Path) -> None:
    first = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    right(first, 40)
    del first
    forget()
    handles = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    root = KernelCache(tmp_path)
    again = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    before = again.cache.stats.builds
    right(again, 40)
    assert again.report().from_cache
    assert again.cache.stats.builds == before
    assert all(not a.flags.writeable and not a.flags.owndata for a in again.plan.constants.values())
    assert {e.kind for e in root.ls()} >= {"weights", "plan"}
    if handles:
        assert len(os.listdir("/proc/self/fd")) <= handles + 1      # a queue's, at most


def test_two_models_share_what_is_equal(tmp_path: Path) -> None:
    for source, n in ((layers(), 40), (layers(), 41), (layers(1), 40)):
        right(jitcl.compile(source, device="cpu", cache_dir=tmp_path), n, source == layers(1))
    assert len(files(tmp_path, "weights")) == 2 * LAYERS
    users = [e for e in KernelCache(tmp_path).ls() if e.uses]
    assert sorted(len([u for u in e.uses if "/" in u]) for e in users) == [3, 3, 3]


def test_what_was_digested_is_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def counted(data: memoryview) -> object:
        taken.append(data.nbytes)
        return hashlib.sha256(data)

    monkeypatch.setattr(weights, "hashlib", SimpleNamespace(sha256=counted))
    model = jitcl.compile(layers(), device="cpu", cache_dir=tmp_path)
    for n in (40, 41, 42, 44):
        right(model, n)
    assert len(taken) == len(files(tmp_path, "weights"))


def test_weights_leave_memory_while_a_plan_is_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is in the cache before the next but one is arranged."""
    held: list[list[bool]] = []
    arranged: list[weakref.ref[np.ndarray]] = []
    pack = template.pack_columns

    def watched(*args: Any) -> np.ndarray:
        held.append([a() is not None for a in arranged])
        found = pack(*args)
        arranged.append(weakref.ref(found))
        return found

    monkeypatch.setattr(weights, "_PENDING", 0)
    monkeypatch.setattr(template, "pack_columns", watched)
    right(jitcl.compile(layers(), device="cpu", cache_dir=tmp_path), 40)
    assert len(held) == LAYERS
    assert not any(h for row in held for h in row[:-1])


def test_an_empty_cache_has_the_compiler_start_before_the_model_is_read(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def note(kind: type, name: str) -> None:
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *args: (done.append(name), real(*args))[1])

    note(CpuDevice, "ahead")
    note(OnnxSource, "signature")
    right(jitcl.compile(layers(), device="cpu", cache_dir=tmp_path), 40)
    assert done == ["ahead", "signature", "ahead"]
    done.clear()
    jitcl.compile(layers(1), device="cpu", cache_dir=tmp_path)
    assert done == ["signature"]                    # what is there may be all that is needed


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_a_device_holds_them_once(device: str, tmp_path: Path) -> None:
    model = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    for n in (41, 43):
        right(model, n)
    memories = [s.executable.memory for s in model._kept.values()]
    held = [{id(w) for w in m._weights.values()} for m in memories]
    assert len(held) == 2
    assert held[0] == held[1]
    assert len(held[0]) == LAYERS
    memories[0].release()                           # the other one's are still there
    right(model, 43)
    right(model, 41)                                # and these come back


def test_weights_that_do_not_fit_stay_with_their_plan_in_memory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("JITCL_CACHE_SIZE", str(WEIGHTS))
    with caplog.at_level(logging.WARNING):
        model = jitcl.compile(layers(), device="cpu", cache_dir=tmp_path)
        right(model, 40)
    assert "does not fit into a cache" in caplog.text and "kept in memory" in caplog.text
    assert not files(tmp_path, "weights")
    assert not model.plan.weights


def test_weights_that_memory_does_not_keep_either_are_shared(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each process compiles the model, and its plans read the same bytes."""
    monkeypatch.setenv("JITCL_CACHE_SIZE", str(WEIGHTS))
    monkeypatch.setattr(cache, "IN_MEMORY", 0)
    with caplog.at_level(logging.WARNING):
        models = [jitcl.compile(layers(), device="cpu", cache_dir=tmp_path) for _ in range(2)]
        for model in models:
            right(model, 40)
    assert "made anew by each process" in caplog.text
    assert not files(tmp_path, "weights") and not files(tmp_path, "plan")
    places = [{a.ctypes.data for a in m.plan.constants.values() if a.nbytes >= weights.LEAST}
              for m in models]
    assert len(places[0]) == LAYERS and places[0] == places[1]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    model = jitcl.compile(layers(), device="cpu", cache_dir=tmp_path / "cache")
    right(model, 40)
    right(model, 41)
    assert len(set(model.plan.weights.values())) == LAYERS


# -- damaged, or gone


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("damage", ["flip", "cut", "other", "delete"])
@pytest.mark.parametrize("device", DEVICES[:2])
def test_damaged_weights_are_noticed_and_the_plan_is_rebuilt(
        device: str, damage: str, tmp_path: Path) -> None:
    model = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    right(model, 40)
    del model
    forget()
    paths = files(tmp_path, "weights")
    intact = [p.read_bytes() for p in paths]
    data = bytearray(intact[1])
    if damage == "flip":
        data[len(data) // 2] ^= 1
    paths[1].write_bytes({"flip": data, "cut": data[:-100], "other": intact[0],
                          "delete": b""}[damage])
    if damage == "delete":
        paths[1].unlink()
    again = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    before = again.cache.stats.corrupt
    asked = again.why({"x": rows(40)})
    assert asked.hit != (damage == "delete")
    assert ("1 of its weights" in str(asked)) == (damage == "delete")
    right(again, 40)
    assert again.cache.stats.corrupt == before + (damage != "delete")
    assert not again.report().from_cache
    assert [p.read_bytes() for p in files(tmp_path, "weights")] == intact


def test_weights_that_went_while_a_process_used_them_are_stored_again(tmp_path: Path) -> None:
    model = jitcl.compile(layers(), device="cpu", cache_dir=tmp_path)
    right(model, 40)
    for path in files(tmp_path, "weights"):
        path.unlink()
    right(model, 40)                                # mapped: they are still there
    right(model, 41)
    assert len(files(tmp_path, "weights")) == LAYERS


# -- what goes first


def test_a_mapped_file_outlives_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345" * 4000)
    with open(path, "rb") as file:
        view = mapped(file)
    path.unlink()
    assert bytes(view[-5:]) == b"12345"
    assert view.readonly
    path.write_bytes(b"")
    with open(path, "rb") as file:
        assert bytes(mapped(file)) == b""


def made(name: str, nbytes: int, used: float, *uses: str) -> Entry:
    kind, _, digest = name.partition("/")
    return Entry("device", kind, digest, nbytes, used, Path(name), uses=uses)


def test_a_plan_goes_before_its_weights_and_takes_its_own_along() -> None:
    entries = [made("weights/old", 100, 0, ), made("weights/both", 100, 1),
               made("plan/a", 10, 5, "weights/old", "weights/both"),
               made("plan/b", 10, 6, "weights/both"), made("kernel/new", 10, 9)]
    names = [str(e.path) for e in doomed(entries, 150)]
    assert names == ["plan/a", "weights/old"]
    assert [str(e.path) for e in doomed(entries, 20)] == [*names, "plan/b", "weights/both"]
    assert doomed(entries, 230) == []


def test_what_no_plan_uses_goes_in_its_turn() -> None:
    entries = [made("weights/a", 5, 0), made("kernel/k", 5, 1), made("plan/p", 5, 2, "weights/a"),
               made("weights/lost", 5, 3)]
    assert [str(e.path) for e in doomed(entries, 15)] == ["kernel/k"]
    assert doomed([], 0) == []


@given(st.lists(st.tuples(st.sampled_from(["plan", "weights"]), st.integers(1, 50),
                          st.integers(0, 9), st.sets(st.integers(0, 11), max_size=4)),
                max_size=12), st.integers(0, 300))
def test_nothing_goes_before_what_uses_it(drawn: list, bound: int) -> None:
    names = [f"{kind}/{i}" for i, (kind, *_) in enumerate(drawn)]
    known = [n for n in names if n.startswith("weights")]
    entries = [made(name, nbytes, used, *(n for i, n in enumerate(names)
                                          if i in uses and n in known and kind == "plan"))
               for name, (kind, nbytes, used, uses) in zip(names, drawn)]
    gone = doomed(entries, bound)
    left = [e for e in entries if e not in gone]
    assert len(gone) == len({e.path for e in gone})
    there = {f"{e.kind}/{e.digest}" for e in left}
    for e in left:
        assert set(e.uses) <= there
    total = sum(e.nbytes for e in left)
    newest = max(entries, key=lambda e: (e.used, entries.index(e)), default=None)
    if total > bound:                   # all that may stay is the newest, and what it uses
        assert newest is not None
        assert there <= {f"{newest.kind}/{newest.digest}", *newest.uses}


def test_a_cache_with_little_room_keeps_plans_whole(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models in room for two: whatever plan is left has its weights, and starts warm."""
    monkeypatch.setenv("JITCL_CACHE_SIZE", str(int(2.6 * WEIGHTS)))
    for seed in range(4):
        right(jitcl.compile(layers(seed), device="cpu", cache_dir=tmp_path), 40, seed)
        forget()
    cache = KernelCache(tmp_path)
    assert cache.size() <= 2.6 * WEIGHTS
    entries = cache.ls()
    plans = [e for e in entries if e.kind == "plan"]
    there = {f"{e.kind}/{e.digest}" for e in entries}
    assert plans
    for e in plans:
        assert {u for u in e.uses if "/" in u} <= there
    last = jitcl.compile(layers(3), device="cpu", cache_dir=tmp_path)
    right(last, 40, 3)
    assert last.report().from_cache


# -- programs and plans in memory


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_programs_that_no_plan_uses_are_let_go(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jitcl.devices.opencl import programs

    monkeypatch.setenv("JITCL_SPECIALISATIONS", "2")
    monkeypatch.setattr(programs, "SPARE", 2)
    model = jitcl.compile(layers(), device=device, cache_dir=tmp_path)
    store = model.device.session.store
    for n in range(40, 47):
        right(model, n)
    gc.collect()
    assert len(model._kept) == 2
    loaded = [s.executable for s in model._kept.values()]
    used = {id(p) for plan in store._users for p in plan.programs.values()}
    held = {id(p) for p in store._programs.values()}
    assert {id(p) for e in loaded for p in e.programs.values()} <= held
    assert len(held - used) <= 2 + len(loaded[-1].programs)
    assert store.checked <= store._programs.keys()
    built = store.counters.programs_built_from_source
    right(model, 40)                                # its program is in the cache
    assert store.counters.programs_built_from_source == built


FLAT = """
import gc, os, sys
import numpy as np
import jitcl
from tests.test_weights import layers, rows

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

def stored():
    return sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(sys.argv[2]) for f in fs)

model = jitcl.compile(layers(), device=sys.argv[1], cache_dir=sys.argv[2])
for count in range(60):
    model(rows(33 + count))
    if count in (29, 59):
        gc.collect()
        print(resident(), stored())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.slow if d == "opencl:intel" else pytest.mark.long)
    for d in DEVICES])
def test_memory_is_flat_over_sixty_shapes(device: str, tmp_path: Path) -> None:
    """Before, each shape took 4 MB of Intel's runtime, and each plan held all weights."""
    environment = {**os.environ, "JITCL_FAMILIES": "0", "JITCL_SPECIALISATIONS": "4"}
    ran = subprocess.run([sys.executable, "-c", FLAT, device, str(tmp_path)], env=environment,
                         cwd=Path(__file__).parent.parent, capture_output=True, text=True,
                         timeout=300, check=True)
    (memory, disk), (memory_then, disk_then) = [
        map(int, line.split()) for line in ran.stdout.splitlines()]
    assert memory_then - memory < 20 << 20
    assert disk_then - disk < 30 * WEIGHTS / 3
    assert len(files(tmp_path, "weights")) <= 3 * LAYERS
