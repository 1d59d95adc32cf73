"""`jitcl.Pipeline`: order, bounds, errors in their item's turn, an end at any moment."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.runtime import pipeline
from tests import test_forking
from tests.devices import present

FIRST = "graph @first(%x: f32[n,8]) {\n  %y = relu(%x)\n  return %y\n}"
SECOND = "graph @second(%a: f32[n,8]) {\n  %b = neg(%a)\n  return %b\n}"
TWO = "graph @two(%a: f32[n,8], %c: f32[n,8]) {\n  %b = add(%a, %c)\n  return %b\n}"


def items(count: int):
    return ({"x": np.full((2, 8), k - 3, np.float32)} for k in range(count))


@pytest.mark.parametrize("device", [s for s in present() if s != "reference"])
def test_results_are_those_of_one_after_the_other(device):
    other = "cpu" if device != "cpu" else "reference"
    seen = []

    def between(outputs):
        seen.append(threading.current_thread().name)
        return {"a": outputs["y"] + 1}

    stages = [jitcl.parse(FIRST), between, jitcl.parse(SECOND)]
    with jitcl.Pipeline(stages, devices=[device, None, other]) as pipeline:
        found = [r["b"] for r in pipeline.map(items(20))]
        again = [r["b"] for r in pipeline.map(items(3))]
    for k, y in enumerate(found):
        assert (y == -(max(k - 3, 0) + 1)).all()
    assert len(found) == 20 and [y.tobytes() for y in again] == [y.tobytes() for y in found[:3]]
    assert set(seen) == {"jitcl-stage-1"}
    assert all(stage.closed for stage in pipeline.stages if stage is not between)


def test_a_model_feeds_the_next_whatever_the_names_of_one_value():
    first = jitcl.compile(jitcl.parse(FIRST), device="cpu")
    with jitcl.Pipeline([first, jitcl.parse(SECOND)], devices=[None, "cpu"]) as pipeline:
        assert [float(r["b"][0, 0]) for r in pipeline.map(items(6))] == [0, 0, 0, 0, -1, -2]
        assert repr(pipeline) == "<jitcl.Pipeline: model first -> model second>"
    assert not first.closed                                 # it was given
    said = "the model before gives 'y', this one reads 'a', 'c'"
    two = jitcl.Pipeline([first, jitcl.parse(TWO)], devices=[None, "cpu"])
    with two, pytest.raises(jitcl.InputError, match=said):
        list(two.map(items(1)))


@pytest.mark.parametrize("cores, other, threads", [
    (16, "reference", 14), (8, "reference", 7), (4, "reference", 4), (16, "cpu", 16)])
def test_a_model_on_cpu_leaves_cores_to_stages_of_other_devices(cores, other, threads, monkeypatch):
    """One for each stage's thread, but no more than an eighth."""
    monkeypatch.setattr(pipeline, "usable_cores", lambda: cores)
    first, seen = jitcl.compile(jitcl.parse(FIRST), device="cpu"), []
    run = first.run
    monkeypatch.setattr(first, "run", lambda *args, **how: (
        seen.append(config.get("threads")), run(*args, **how))[1])
    with config.override(threads=cores), jitcl.Pipeline(
            [first, jitcl.parse(SECOND)], devices=[None, other]) as stages:
        assert len(list(stages.map(items(3)))) == 3
    with config.override(threads=2), jitcl.Pipeline([first, jitcl.parse(SECOND)],
                                                    devices=[None, other]) as stages:
        assert len(list(stages.map(items(1)))) == 1
    assert seen == [threads] * 3 + [2]                      # what was asked for, where it is less


@pytest.mark.parametrize("device", [s for s in present() if s.startswith("opencl")])
def test_between_models_of_one_device_nothing_is_copied(device):
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    texts = [f"graph @{n}(%x: f32[8,16]) {{\n  %y = {op}(%x)\n  return %y\n}}"
             for n, op in (("a", "tanh"), ("b", "neg"), ("c", "relu"))]
    with jitcl.Pipeline([jitcl.parse(t) for t in texts], device) as pipeline:
        want = np.maximum(-np.tanh(x), 0)
        with jitcl.profile() as p:
            for result in pipeline.map({"x": x} for _ in range(5)):
                assert np.allclose(result["y"], want, atol=1e-6)
    spans = [(r.model, s.name) for r in p.runs for s in r.spans if s.kind == "copy" and s.nbytes]
    assert set(spans) <= {("a", "input 'x'"), ("c", "output 'y'")}


def test_stages_work_at_the_same_time():
    meet = threading.Barrier(3)

    def stage(number):
        def work(value):
            if 2 - number <= value <= 9 - number:   # all are at work: nobody passes alone
                meet.wait(30)
            return value
        return work

    pipeline = jitcl.Pipeline([stage(0), stage(1), stage(2)])
    assert list(pipeline.map(range(10))) == list(range(10))


def test_no_more_items_are_taken_than_fit():
    taken, gate = [], threading.Event()

    def source():
        for k in range(100):
            taken.append(k)
            yield k

    def slow(value):
        gate.wait(30)
        return value

    pipeline = jitcl.Pipeline([lambda v: v, slow])
    results = pipeline.map(source(), ahead=3)
    threading.Timer(0.05, gate.set).start()
    assert next(results) == 0 and len(taken) == 6
    for k in range(1, 5):
        assert next(results) == k and len(taken) <= 6 + k
    results.close()
    assert len(taken) <= 12


@pytest.mark.parametrize("at", [0, 1])
def test_errors_come_in_their_items_turn(at):
    def fails(value):
        if value == 3:
            raise ZeroDivisionError("three")
        return value

    stages = [lambda v: v, lambda v: v]
    stages[at] = fails
    pipeline, found = jitcl.Pipeline(stages), []
    with pytest.raises(ZeroDivisionError, match="three") as raised:
        for value in pipeline.map(range(6)):
            found.append(value)
    assert found == [0, 1, 2]
    assert raised.value.__notes__ == [f"item 3, stage {at} (fails)"]
    found = list(pipeline.map(range(6), on_error="return"))
    assert found[:3] == [0, 1, 2] and found[4:] == [4, 5]
    assert isinstance(found[3], ZeroDivisionError)


def test_an_error_of_the_source_and_of_a_models_input():
    def source():
        yield {"x": np.ones((2, 8), np.float32)}
        raise OSError("the camera is gone")

    with jitcl.Pipeline([jitcl.parse(FIRST)], devices="cpu") as pipeline:
        results = pipeline.map(source(), ahead=1)
        assert next(results)["y"].all()
        with pytest.raises(OSError, match="the camera is gone"):
            next(results)
        with pytest.raises(jitcl.InputError, match="axis 1 is 7, wanted 8") as raised:
            list(pipeline.map([{"x": np.ones((2, 7), np.float32)}]))
        assert raised.value.__notes__ == ["item 0, stage 0 (model first)"]


def stage_threads() -> set[int | None]:
    return {t.ident for t in threading.enumerate() if t.name.startswith("jitcl-stage")}


def test_leaving_early_ends_what_is_under_way_and_its_threads_serve_the_next():
    before, at_work = stage_threads(), []

    def stage(value):
        at_work.append(value)
        time.sleep(0.02)
        at_work.remove(value)
        return value

    pipeline = jitcl.Pipeline([stage] * 3)
    for value in pipeline.map(range(1000)):
        if value == 2:
            break
    assert not at_work
    threads = stage_threads() - before
    assert len(threads) == 3
    for _ in range(5):
        assert list(pipeline.map(range(4))) == [0, 1, 2, 3]
        assert stage_threads() - before == threads
    both = zip(pipeline.map(range(3)), pipeline.map(range(3)))
    assert list(both) == [(0, 0), (1, 1), (2, 2)]           # at the same time: threads of its own
    pipeline.close()
    assert not stage_threads() - before


def test_threads_of_a_pipeline_that_was_dropped_end():
    before = stage_threads()
    assert list(jitcl.Pipeline([lambda v: v] * 3).map(range(5))) == list(range(5))
    end = time.monotonic() + 10
    while stage_threads() - before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert not stage_threads() - before


def test_a_stage_that_closes_its_pipeline():
    pipeline = jitcl.Pipeline([lambda v: pipeline.close() or v, lambda v: v])
    with pytest.raises(jitcl.ClosedError):
        list(pipeline.map(range(3)))


def test_closing_while_it_is_mapped():
    begun, gate = threading.Event(), threading.Event()

    def slow(value):
        begun.set()
        gate.wait(30)
        return value

    pipeline = jitcl.Pipeline([slow, lambda v: v])
    results = pipeline.map(range(9))
    begun.clear()
    threading.Thread(target=lambda: (begun.wait(30), gate.set(), pipeline.close())).start()
    with pytest.raises(jitcl.ClosedError):
        for _ in results:
            begun.wait(30)
            time.sleep(0.2)
    pipeline.close()
    with pytest.raises(jitcl.ClosedError):
        pipeline.map([])
    with pytest.raises(jitcl.ClosedError), pipeline:
        pass


@pytest.mark.parametrize(("stages", "options", "said"), [
    ([], {}, "stages: got [], wanted a list of models and functions"),
    ("model.onnx", {}, "stages: got 'model.onnx', wanted a list"),
    ([len], {"devices": ["cpu", "cpu"]}, "devices: got 2 for 1 stages"),
    ([len], {"devices": ["cpu"]}, "devices: stage 0 is a function"),
])
def test_wrong_stages(stages, options, said):
    with pytest.raises(jitcl.OptionError) as raised:
        jitcl.Pipeline(stages, **options)
    assert said in str(raised.value)


@pytest.mark.parametrize(("options", "said"), [
    ({"ahead": 0}, "ahead: got 0, wanted a whole number from 1 up"),
    ({"ahead": True}, "ahead: got True"),
    ({"on_error": "ignore"}, "on_error: got 'ignore', wanted 'raise' or 'return'"),
])
def test_wrong_options(options, said):
    with pytest.raises(jitcl.OptionError) as raised:
        jitcl.Pipeline([len]).map([], **options)
    assert said in str(raised.value)


def test_a_compiled_model_is_not_compiled_for_another_device():
    model = jitcl.compile(jitcl.parse(FIRST), device="cpu")
    with pytest.raises(jitcl.OptionError, match="stage 0 is compiled already"):
        jitcl.Pipeline([model], devices=["reference"])
    with pytest.raises(jitcl.DeviceError):
        jitcl.Pipeline([model, jitcl.parse(SECOND)], devices=[None, "opencl:nobody"])
    assert not model.closed


def test_in_a_forked_child():
    text = test_forking.run("cpu", """
        pipeline = jitcl.Pipeline([lambda v: v + 1, lambda v: 2 * v])
        results = pipeline.map(range(6))
        first = next(results)
        def forked():
            try:
                next(results)
            except jitcl.DeviceError as error:
                print(str(error).splitlines()[0], flush=True)
            return list(pipeline.map(range(3))) == [2, 4, 6]
        print(first, child(forked), list(results))
        """)
    assert text.splitlines() == [
        "this process was forked while a pipeline was at work: its threads are its parent's",
        "2 0 [4, 6, 8, 10, 12]"]
