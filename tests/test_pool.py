"""`jitcl.Pool`, and what `jitcl.memory_stats` says of it and of models that are closed."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

import jitcl
from jitcl import config
from tests import test_dropped
from tests.devices import present
from tests.test_async import run
from tests.test_forking import SAFE

TEXT = """graph @g(%x: f32[8,64], %w: f32[64,64]) {
  %1 = matmul(%x, %w)
  %2 = relu(%1)
  %y = matmul(%2, %w)
  return %y
}"""
W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def feeds(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full((8, 64), number, np.float32), "w": W}


class Gate:
    """A model of which runs wait until `open` is set."""

    def __init__(self) -> None:
        self.model = jitcl.compile(jitcl.parse(TEXT), device="cpu")
        compute, self.open = self.model.run, threading.Event()

        def run(feeds):
            assert self.open.wait(60)
            if feeds["x"][0, 0] < 0:
                raise jitcl.DeviceError(f"kernel k of node n failed at {feeds['x'][0, 0]:.0f}")
            return compute(feeds)

        self.model.run = run


@pytest.mark.parametrize("device", present())
def test_a_pool_gives_the_bits_of_run(device):
    """Each with its own userdata, called back once."""
    with jitcl.compile(jitcl.parse(TEXT), device=device) as model:
        wanted = [model.run(feeds(n))["y"].tobytes() for n in range(12)]
        pool, found = jitcl.Pool(model, jobs=3), {}
        pool.set_callback(lambda run, n: found.setdefault(n, []).append(run.result()["y"]))
        runs = [pool.start_async(feeds(n), n) for n in range(12)]
        pool.wait_all()
        assert [found[n][0].tobytes() for n in range(12)] == wanted
        assert all(len(got) == 1 for got in found.values())
        assert [run.result()["y"].tobytes() for run in runs] == wanted
        assert sorted(job.userdata for job in pool) == [9, 10, 11] and len(pool) == 3
        assert all(job.run.done() for job in pool) and pool[0].run in runs
        assert pool.is_ready()


def test_a_pool_that_is_full():
    gate = Gate()
    pool = jitcl.Pool(gate.model, 2)
    for n in range(2):
        assert pool.is_ready()
        pool.start_async(feeds(n))
    assert not pool.is_ready()
    with pytest.raises(jitcl.BusyError, match="all 2 jobs of the pool are under way"):
        pool.start_async(feeds(2), timeout=0.01)
    for odd in (-1, "1", float("nan")):
        with pytest.raises(jitcl.OptionError, match="timeout: got .*, wanted seconds from 0 up"):
            pool.start_async(feeds(2), timeout=odd)
    submit, left = gate.model.submit, []
    gate.model.submit = lambda feeds, timeout: left.append(timeout) or submit(feeds)
    threading.Timer(0.05, gate.open.set).start()
    assert pool.start_async(feeds(2), timeout=60).result()["y"].shape == (8, 64)
    for timeout in (None, 0, float("inf")):
        pool.wait_all()
        pool.start_async(feeds(2), timeout=timeout)
    assert 0 < left[0] <= 59.96 and left[1:3] == [None, 0] and left[3] > 1e6
    pool.wait_all()


def test_what_fails_in_a_pool():
    """The first error comes out of wait_all once; places are idle again whatever happens."""
    gate = Gate()
    gate.open.set()
    pool = jitcl.Pool(gate.model, 2)
    seen = []
    pool.set_callback(lambda run, n: seen.append((n, run.exception() is not None)))
    for n in (1, -2, -3, 4):
        pool.start_async(feeds(n), n)
    with pytest.raises(jitcl.DeviceError, match="failed at -2"):
        pool.wait_all()
    pool.wait_all()
    assert seen == [(1, False), (-2, True), (-3, True), (4, False)]
    for _ in range(4):
        with pytest.raises(jitcl.InputError, match="there is no input 'z'"):
            pool.start_async({"z": W})
    pool.set_callback(lambda run, n: 1 / 0)                     # logged
    for n in range(4):
        pool.start_async(feeds(n))
    pool.wait_all()
    gate.model.close()
    with pytest.raises(jitcl.ClosedError):
        pool.start_async(feeds(1))
    pool.wait_all()


def test_a_callback_does_not_wait_for_its_pool():
    gate, said = Gate(), []

    def call(run, userdata):
        for wait in (pool.wait_all, lambda: pool.start_async(feeds(1))):
            try:
                wait()
            except jitcl.JitclError as error:
                said.append(type(error).__name__)

    pool = jitcl.Pool(gate.model, 1)
    pool.set_callback(call)
    gate.open.set()
    pool.start_async(feeds(1))
    pool.wait_all()
    assert said == ["JitclError", "BusyError"]


def test_a_pool_whose_model_is_closed_with_runs_queued():
    gate = Gate()
    pool = jitcl.Pool(gate.model, 3)
    runs = [pool.start_async(feeds(n)) for n in range(3)]
    while not runs[0].running():
        pass
    threading.Timer(0.05, gate.open.set).start()
    gate.model.close(cancel_queued=True)
    pool.wait_all()
    assert runs[0].result()["y"].shape == (8, 64)
    for queued in runs[1:]:
        with pytest.raises(CancelledError):
            queued.result()


@pytest.mark.parametrize("jobs", [0, -1, 2.0, True, "4"])
def test_jobs_that_are_no_number(jobs):
    with pytest.raises(jitcl.OptionError, match="jobs: got .*, wanted a whole number from 1 up"):
        jitcl.Pool(None, jobs)


@pytest.mark.parametrize("device", SAFE[:1])
def test_a_forked_child_has_an_idle_pool(device):
    run(device, """
    held = Held()
    pool = jitcl.Pool(held.model, 1)
    mine = pool.start_async(FEEDS)
    def in_child():
        held.go()
        pool.wait_all()
        return ok(pool.start_async(FEEDS).result())
    assert child(in_child) == 0
    held.go()
    pool.wait_all()
    assert ok(mine.result())
    """)


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", present())
def test_a_closed_model_holds_nothing(device):
    """Of all its shapes, on its device; a model beside it keeps its own."""
    with jitcl.compile(jitcl.parse(TEXT), device=device) as beside:
        beside.run(feeds(1))
        before = jitcl.memory_stats()
        text = TEXT.replace("f32[8,", "f32[n,")
        model = jitcl.compile(jitcl.parse(text), device=device)
        for rows in (3, 300):
            model.run({"x": np.ones((rows, 64), np.float32), "w": W})
        place = beside.last.executable.place if device in ("cpu", "reference") else (
            beside.device.session.spec)
        during = jitcl.memory_stats().devices[place]
        held = before.devices[place]
        assert during.bytes - held.bytes >= 2 * (3 + 300) * 64 * 4 + 2 * W.nbytes
        assert during.allocations > held.allocations
        model.close()
        assert jitcl.memory_stats() == before
        assert beside.run(feeds(1))["y"].shape == (8, 64)


@pytest.mark.parametrize("use", ["inner tensors", "a program"])
def test_a_closed_model_holds_nothing_of_what_was_made_of_it(use):
    """Nor is that made anew, by a run that found the model open."""
    gc.collect()                                # what tests before it left
    before = jitcl.memory_stats()
    form, used = test_dropped.USES[use]
    model = jitcl.compile(test_dropped.onnx_model(**form), device="cpu")
    used(model)
    assert jitcl.memory_stats() != before
    feeds, late = {"x": test_dropped.X}, model.program or model._inner
    run = ((lambda: late.run(feeds, ["y"])) if use == "a program" else
           (lambda: late.model(("m",)).run(feeds)))
    run()
    model.close()
    for call in (run, lambda: used(model), lambda: model.why(feeds)):
        with pytest.raises(jitcl.ClosedError, match="model dropped: this model was closed"):
            call()
    assert jitcl.memory_stats() == before


def test_what_is_bound_while_the_model_is_closed():
    """`close` waits for it, and then closes it, too."""
    model = jitcl.compile(jitcl.parse(TEXT), device="cpu")
    executable, thread = model.last.executable, threading.Thread(target=model.close)
    bind = executable.bind

    def slow(given, **more):
        thread.start()
        thread.join(0.2)
        return bind(given, **more)

    executable.bind = slow
    bound = model.bind()
    thread.join()
    with pytest.raises(jitcl.ClosedError, match="model g, bound: this model was closed"):
        bound.run()


@pytest.mark.parametrize("device", [s for s in present() if s.startswith("opencl")])
def test_what_the_driver_was_asked_for_is_given_back(device, monkeypatch):
    """Counted where buffers are made and released, beside what is said of them."""
    from jitcl.devices.opencl import memory

    alive, make, give = {}, memory.cl.Buffer, memory.release

    def made(*args, **kwargs):
        buffer = make(*args, **kwargs)
        if not args[1] & memory.cl.mem_flags.ALLOC_HOST_PTR:    # pinned memory is the host's
            alive[id(buffer)] = buffer
        return buffer

    def given(buffer):
        alive.pop(id(buffer), None)
        give(buffer)

    monkeypatch.setattr(memory.cl, "Buffer", made)
    monkeypatch.setattr(memory, "release", given)
    before = jitcl.memory_stats().devices.get(present_spec(device))
    model = jitcl.compile(jitcl.parse(TEXT), device=device)
    model.submit(feeds(1)).result()
    after = jitcl.memory_stats().devices[model.device.session.spec]
    assert sum(b.size for b in alive.values()) == after.bytes - (before.bytes if before else 0)
    assert len(alive) == after.allocations - (before.allocations if before else 0) > 0
    model.close()
    assert alive == {}


def present_spec(device):
    """As `jitcl devices` lists it."""
    from tests.devices import device as opened

    return opened(device).session.spec


def test_queued_runs_hold_bounded_memory():
    """Their inputs, and these no longer than that."""
    gate, nbytes = Gate(), 8 * 64 * 4 + W.nbytes
    with config.override(queue=5):
        first = gate.model.submit(feeds(0))
        while not first.running():
            pass
        runs = [gate.model.submit(feeds(n)) for n in range(5)]
        with pytest.raises(jitcl.BusyError):
            gate.model.submit(feeds(9), timeout=0)
        stats = jitcl.memory_stats()
        assert (stats.queued_runs, stats.queued_bytes) == (6, 6 * nbytes)
        runs.pop().cancel()
        assert jitcl.memory_stats().queued_bytes == 5 * nbytes
        gate.open.set()
        gate.model.close()
    assert jitcl.memory_stats().queued_runs == 0
    assert all(run.result() for run in runs)
