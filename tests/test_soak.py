"""Thousands of runs of several models in several threads, with cancelling, resizing and closing in
between: the bits of a single-threaded run, and memory, handles and processes that stay as they are.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jitcl
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
WIDTH, THREADS = 48, 4
TEXTS = {
    "product": "%1 = matmul(%x, %w)\n  %y = relu(%1)",
    "rows": "%1 = softmax(%x) {axis=-1}\n  %y = matmul(%1, %w)",
    "sums": "%1 = matmul(%x, %w)\n  %2 = add(%1, %x)\n  %y = softmax(%2) {axis=-1}",
}
W = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)


def feeds(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32),
            "w": W}


def compiled(name: str, device: str) -> jitcl.Model:
    """A model that has met the first shapes in one order: the first two have plans of their own,
    the others one plan, whose sums may be in another order.
    """
    text = f"graph @{name}(%x: f32[n,{WIDTH}], %w: f32[{WIDTH},{WIDTH}]) {{\n  {TEXTS[name]}\n"
    model = jitcl.compile(jitcl.parse(text + "  return %y\n}"), device=device)
    for n in (1, 2, 3):
        model.run(feeds(n))
    return model


class Held:
    """What this process holds: bytes, file handles, threads, children."""

    def __init__(self) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        self.bytes = 1024 * int(status.split("VmRSS:")[1].split()[0])
        self.handles = len(os.listdir("/proc/self/fd"))
        self.children = sum(len(Path(f"/proc/self/task/{t}/children").read_text().split())
                            for t in os.listdir("/proc/self/task"))


def no_more(before: Held, after: Held) -> None:
    """A worker that builds kernels may have ended since: it waits for so long and no longer."""
    assert after.handles <= before.handles and after.children <= before.children
    assert after.bytes - before.bytes < 16 << 20, f"{(after.bytes - before.bytes) >> 10} KiB more"


class Soak:
    """Runs that threads take turns to ask for."""

    def __init__(self, device: str, shapes: int) -> None:
        self.device, self.sizes = device, range(1, shapes + 1)
        self.want = {}
        for name in TEXTS:
            with compiled(name, device) as model:
                self.want |= {(name, n): model.run(feeds(n))["y"].tobytes() for n in self.sizes}
        self.models = {name: compiled(name, device) for name in TEXTS}
        self.lock, self.done = threading.Lock(), 0
        self.cancelled = self.closed = 0

    def go_on(self, upto: int) -> None:
        """THREADS work until so many runs have ended; the first error is raised."""
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for ended in [pool.submit(self._work, t, upto) for t in range(THREADS)]:
                ended.result()

    def _work(self, number: int, upto: int) -> None:
        rng = np.random.default_rng([number, upto])
        while self.done < upto:
            name, n = str(rng.choice(list(TEXTS))), int(rng.choice(self.sizes))
            model, what = self.models[name], rng.random()
            try:
                got = self._one(model, n, what)
            except jitcl.ClosedError:               # another thread's doing
                self.closed += 1
                continue
            except concurrent.futures.CancelledError:
                self.cancelled += 1
                continue
            for y in got:
                assert y.tobytes() == self.want[name, n], (name, n, what)
            with self.lock:
                self.done += len(got)
            if what > 0.995:
                self.models[name] = compiled(name, self.device)
                model.close(cancel_queued=bool(rng.random() < 0.5))

    def _one(self, model: jitcl.Model, n: int, what: float) -> list[np.ndarray]:
        """Results of runs of one shape."""
        if what < 0.4:
            return [model.run(feeds(n))["y"]]
        if what < 0.6:
            runs = [model.submit(feeds(n)) for _ in range(3)]
            return [run.result(60)["y"] for run in runs]
        if what < 0.8:
            first, second = (model.submit(feeds(n)) for _ in range(2))
            second.cancel()
            return [run.result(60)["y"] for run in (first, second)]
        with model.run(feeds(n), keep_on_device=True)["y"] as kept, kept.map(write=False) as array:
            return [array.copy()]

    def close(self) -> None:
        for model in self.models.values():
            model.close()


def soak(device: str, runs: int, shapes: int) -> None:
    """The first tenth fills what is kept; from there on nothing grows."""
    found = Soak(device, shapes)
    found.go_on(runs // 10)
    before = Held()
    found.go_on(runs)
    after = Held()
    found.close()
    assert found.done >= runs and found.cancelled > 0
    no_more(before, after)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_soak(device):
    soak(device, 2_000, 12)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("device", DEVICES)
def test_soak_of_ten_thousand_runs(device):
    soak(device, 10_000, 50)


def pipeline(devices: Sequence[str], seconds: float) -> int:
    """Frames through a `Pipeline` of each device in turns, for so long: how many they were."""
    with contextlib.ExitStack() as stack:
        found = []
        for device in devices:
            a, b = (stack.enter_context(compiled(name, device)) for name in ("product", "rows"))
            want = [b.run({"x": a.run(feeds(n))["y"], "w": W})["y"].tobytes() for n in range(1, 9)]
            stages = jitcl.Pipeline([a, lambda y: {"x": y["y"], "w": W}, b])
            found.append((stack.enter_context(stages), want))
        begun, before, frames = time.monotonic(), None, 0
        while time.monotonic() < begun + seconds:
            for stages, want in found:
                for k, result in enumerate(stages.map(feeds(1 + k % 8) for k in range(200))):
                    assert result["y"].tobytes() == want[k % 8]
                    frames += 1
            if before is None and time.monotonic() > begun + seconds / 10:
                before = Held()
        after = Held()
    assert before is not None and frames >= 200
    no_more(before, after)
    return frames


@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.slow if d == "cpu" else pytest.mark.long) for d in DEVICES])
def test_soak_of_a_pipeline(device):
    pipeline([device], 4)


@pytest.mark.long
@pytest.mark.timeout(4000)
def test_a_pipeline_for_an_hour():
    pipeline(DEVICES, 3600)


def test_queued_runs_hold_bounded_memory():
    """A fast producer waits: no more than 64 runs, and their inputs, are there at once."""
    with compiled("product", "cpu") as model:
        compute, go = model.run, threading.Event()

        def run(fed):
            assert go.wait(60)
            return compute(fed)

        model.run = run
        runs: list[jitcl.Run] = []
        producer = threading.Thread(
            target=lambda: runs.extend(model.submit(feeds(8)) for _ in range(200)))
        producer.start()
        end = time.monotonic() + 60
        while jitcl.memory_stats().queued_runs < 65 and time.monotonic() < end:
            time.sleep(0.01)                        # 64 that wait, and the one under way
        time.sleep(0.05)
        held = jitcl.memory_stats()
        assert (held.queued_runs, held.queued_bytes) == (65, 65 * (8 * WIDTH * 4 + W.nbytes))
        go.set()
        producer.join()
        assert len([run.result(60) for run in runs]) == 200
        assert jitcl.memory_stats().queued_bytes == 0
