"""Memory of results is taken again when nobody has them any more, and never before."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl.devices.results import AT_ONCE, LEAST, Results
from tests.devices import present
from tests.lacking import unless

F32 = np.dtype(np.float32)
COUNT = LEAST // 4 + 5          # floats of a result whose memory is taken again


def doubled() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    return helper.make_model(helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])],
                                               "doubled", [x], [y]),
                             opset_imports=[helper.make_opsetid("", 21)])


@pytest.fixture(params=[d for d in present() if d != "reference"])
def model(request: pytest.FixtureRequest) -> Iterator[jitcl.Model]:
    with jitcl.compile(doubled(), device=request.param) as made:
        yield made


def run(model: jitcl.Model, value: float, count: int = COUNT) -> np.ndarray:
    return model.run({"x": np.full(count, value, np.float32)})["y"]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_what_was_dropped_is_taken_again(model: jitcl.Model) -> None:
    y = run(model, 1)
    before = address(y)
    del y
    again = run(model, 2)
    assert address(again) == before and (again == 4).all()


def test_what_somebody_has_is_left_alone(model: jitcl.Model) -> None:
    kept = [run(model, k) for k in range(4)]
    assert len({address(y) for y in kept}) == 4
    for k, y in enumerate(kept):
        assert (y == 2 * k).all() and y.flags.writeable and y.flags.c_contiguous


def test_results_of_shapes_that_vary(model: jitcl.Model) -> None:
    """Their memory is asked for otherwise."""
    kept = []
    for k, count in enumerate((COUNT, 9 * COUNT, 5 * COUNT, 12 * COUNT, 5 * COUNT)):
        kept.append(run(model, k, count))
        assert kept[-1].flags.writeable and kept[-1].flags.c_contiguous
    assert [y.size // COUNT for y in kept] == [1, 9, 5, 12, 5]
    assert all((y == 2 * k).all() for k, y in enumerate(kept))
    before = address(kept.pop())
    assert address(run(model, 1, 5 * COUNT)) == before


@pytest.mark.parametrize("part", [
    lambda y: y[7:9], lambda y: y.reshape(1, -1)[:, :3], lambda y: y.view(np.uint32)[2:4],
    memoryview, lambda y: np.frombuffer(y, np.float32)[5:6], lambda y: np.from_dlpack(y)[1:]])
def test_a_part_keeps_all_of_it(model: jitcl.Model, part: object) -> None:
    y = run(model, 3)
    before = address(y)
    left = part(y)                          # type: ignore[operator]
    want = np.array(left)
    del y
    others = [run(model, k) for k in range(3)]
    assert before not in map(address, others)
    assert np.array_equal(np.array(left), want)


def test_a_small_result_does_not_hold_the_memory_of_a_large_one(model: jitcl.Model) -> None:
    y = run(model, 1, 4 * COUNT)
    before = address(y)
    del y
    small = run(model, 1)
    assert address(small) != before and (small == 2).all()


def test_nothing_is_kept_behind_the_end(model: jitcl.Model) -> None:
    first, second = run(model, 1), run(model, 2)
    del first
    gc.collect()
    kept = jitcl.memory_stats().devices["cpu"].bytes
    assert kept >= COUNT * 4
    model.close()
    assert (second == 4).all()
    del second
    gc.collect()
    after = jitcl.memory_stats().devices.get("cpu")
    assert (after.bytes if after else 0) <= kept - COUNT * 4


@pytest.mark.parametrize("end", [Results.clear, lambda results: None])
def test_what_somebody_has_holds_no_others_behind_the_end(end: Callable[[Results], None]) -> None:
    """Nor where who gave them is gone."""
    tracemalloc.start()
    try:
        results = Results()
        dropped, kept = results.all([((COUNT,), F32)] * 2, lambda: None)
        end(results)
        del results, dropped
        assert tracemalloc.get_traced_memory()[0] < 1.5 * kept.nbytes
    finally:
        tracemalloc.stop()


def test_threads_get_memory_of_their_own(model: jitcl.Model) -> None:
    """Dropped in one thread while others run."""
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(20):
            y = run(model, value)
            if not (y == 2 * value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@unless("opencl:pocl" in present(), "no PoCL here")
def test_a_run_at_the_end_of_python() -> None:
    """Where no thread begins any more."""
    code = """if True:
        import atexit, jitcl, numpy as np
        from tests.test_results import AT_ONCE, doubled
        model = jitcl.compile(doubled(), device="opencl:pocl")
        x = np.full(AT_ONCE, 3, np.float32)
        atexit.register(lambda: print(set(model.run({"x": x})["y"].tolist())))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{6.0}\n", done.stderr


def test_new_memory_has_its_pages() -> None:
    """Large ones begin with what the page's first byte was set to, by threads; small ones are as
    the allocator gives them.
    """
    results = Results()
    began: list[bool] = []
    found = results.all([((AT_ONCE // 4,), F32), ((3,), F32), ((0, 2), F32)],
                        lambda: began.append(True))
    assert began
    assert [x.shape for x in found] == [(AT_ONCE // 4,), (3,), (0, 2)]
    assert not found[0].view(np.uint8)[::4096].any()
    assert address(found[0]) % 64 == 0
