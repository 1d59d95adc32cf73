"""Series of launches by one native call: results of launches one by one, failures that are told."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import jitcl
from jitcl.devices.opencl import series
from jitcl.devices.opencl.host_steps import HostSection
from jitcl.devices.opencl.launches import Launch
from jitcl.errors import KernelFault
from tests.devices import present

OPENCL = [s for s in present() if s.startswith("opencl")]
TEXT = """graph @chain(%x: f32[n,8], %w: f32[8,8], %v: f32[8,8]) {
  %1 = matmul(%x, %w)
  %2 = softmax(%1) {axis=-1}
  %3 = matmul(%2, %v)
  %4 = tanh(%3)
  %5 = matmul(%4, %w)
  %6 = softmax(%5) {axis=-1}
  %7 = matmul(%6, %v)
  %8 = tanh(%7)
  %9 = matmul(%8, %w)
  %10 = tanh(%9)
  %y = matmul(%10, %v)
  return %y
}"""


def feeds(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {name: rng.standard_normal((rows, 8)).astype(np.float32)
            for name, rows in (("x", count), ("w", 8), ("v", 8))}


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("device", OPENCL)
@pytest.mark.parametrize("flushed", [1, 2, 24])
def test_series_give_the_bits_of_launches_one_by_one(device, flushed, monkeypatch):
    graph, sizes = jitcl.parse(TEXT), (2, 3, 5, 4, 2)          # from the second on, one plan
    with jitcl.compile(graph, device=device) as model:
        want = [model.run(feeds(n))["y"].tobytes() for n in sizes]
    monkeypatch.setenv("JITCL_TARGET", f"failures_last=1,flush_every={flushed}")
    begun = []
    start = series.Series.start
    monkeypatch.setattr(series.Series, "start", lambda self, queue: begun.append(
        len(self.launches)) or start(self, queue))
    with jitcl.compile(graph, device=device) as model:
        assert [model.run(feeds(n))["y"].tobytes() for n in sizes] == want
        assert begun and max(begun) <= flushed
        begun.clear()
        model.run(feeds(2))
        launched = sum(begun)
        with jitcl.profile() as profile:                       # an event each, all the same
            model.run(feeds(2))
        assert sum(k.launches for k in profile.kernels) == launched >= 4


@pytest.mark.parametrize("device", OPENCL[:1])
@pytest.mark.parametrize("refused", [0, 2])
def test_a_launch_that_is_refused_is_named(device, refused, monkeypatch, tmp_path):
    monkeypatch.setenv("JITCL_TARGET", "failures_last=1")
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    with jitcl.compile(jitcl.parse(TEXT), device=device) as model:
        model.run(feeds(2))
        found = model.run_specialised(feeds(2))[1].executable
        inner = getattr(found, "executable", found)              # of a plan for many shapes
        (whole,) = inner._series[False]
        whole._items[3 * refused] += 1                           # not whole groups, or no kernel's
        whole._groups[3 * refused] = 1 << 40
        whole.launches[refused].__dict__["local_size"] = (1 << 40,)
        with pytest.raises(KernelFault, match=whole.launches[refused].step.name):
            found.run([feeds(2)[n] for n in inner.plan.input_names])


def test_series_end_at_steps_of_the_host():
    launches = [object.__new__(Launch) for _ in range(5)]
    host = object.__new__(HostSection)
    found = []
    for action in series.in_series([], 3):
        found.append(action)
    assert not found
    made = []

    class Seen(series.Series):
        def __init__(self, launches):
            made.append(len(launches))

    usual, series.Series = series.Series, Seen
    try:
        actions = list(series.in_series([host, *launches[:4], host, launches[4], host], 3))
    finally:
        series.Series = usual
    assert made == [3, 1, 1]
    assert [isinstance(a, Seen) for a in actions] == [False, True, True, False, True, False]


@pytest.mark.skipif(not OPENCL, reason="no OpenCL driver")
def test_the_loop_stops_where_it_is_refused():
    """With a function in the driver's place."""
    seen = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, ctypes.c_uint32,
                            *[ctypes.c_void_p] * 3, ctypes.c_uint32, *[ctypes.c_void_p] * 2)

    def enqueue(queue, kernel, dims, offset, items, groups, waits, events, event):
        sides = ctypes.cast(items, ctypes.POINTER(ctypes.c_size_t))[:dims]
        group = ctypes.cast(groups, ctypes.POINTER(ctypes.c_size_t))[:dims] if groups else None
        seen.append((queue, kernel, dims, offset, sides, group, waits, events, event))
        return -5 if kernel == 13 else 0

    driver = kind(enqueue)
    loop, _, _ = series._loop()
    event = ctypes.c_void_p()

    def started(kernels, count):
        seen.clear()
        nine = ctypes.c_size_t * 9
        return loop(ctypes.cast(driver, ctypes.c_void_p), 7, (ctypes.c_void_p * 3)(*kernels),
                    (ctypes.c_uint32 * 3)(1, 2, 3), nine(8, 1, 1, 4, 5, 1, 2, 3, 6),
                    nine(4, 1, 1, 0, 1, 1, 1, 3, 2), count, ctypes.byref(event))

    assert started((11, 12, 14), 3) == 3
    last = seen[2][-1]
    assert last == ctypes.addressof(event)
    assert seen == [(7, 11, 1, None, [8], [4], 0, None, None),
                    (7, 12, 2, None, [4, 5], None, 0, None, None),
                    (7, 14, 3, None, [2, 3, 6], [1, 3, 2], 0, None, last)]
    assert started((11, 13, 14), 3) == 1 and len(seen) == 2
    assert started((11, 12, 14), 0) == 0 and not seen
