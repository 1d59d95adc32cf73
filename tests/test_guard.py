"""The guard of f16: what its range spoilt is computed again, once, and one warning names the layer.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl.devices.opencl import arrays, executable
from jitcl.devices.opencl.series import Series
from jitcl.errors import OptionError, OutOfMemoryError
from jitcl.ir.group import Watched
from jitcl.runtime import guard as guards
from jitcl.runtime.guard import IN_VAIN, Guard
from tests.devices import needs, present
from tests.overflowing import (
    CASES,
    Case,
    N,
    P,
    W,
    before_a_norm,
    feeds_of,
    halved,
    image,
    large_logits,
    long_sum,
    model_of,
    node,
    normal,
    scalar,
    squared_sum,
    uniform,
)

OPENCL = [s for s in present() if s.startswith("opencl")]
DRIVERS = [pytest.param(s, marks=pytest.mark.slow if n else ()) for n, s in enumerate(OPENCL)]
# In an f16 file a softmax reads logits as f32 (jitcl/passes/wide_softmax.py); "low" stores them.
F32_FILES = ("large_logits",)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """What a guard found is kept in the cache."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "jitcl")
    return lambda: [r.getMessage() for r in caplog.records if "range of f16" in r.getMessage()]


def error(got, want):
    assert np.isfinite(got).all()
    return float(np.abs(got - want).max() / np.abs(want).max())


def spoilt(result):
    return not np.isfinite(result).all() or not result.any()


def both(name, case):
    """(the f32 file, the file that is computed, in which precision) of a case."""
    exact = model_of(case, name)
    return (exact, exact, "low") if name in F32_FILES else (exact, halved(exact), "high")


def cured(name: str, spec: str, warnings) -> None:
    case = CASES[name]()
    exact, model, precision = both(name, case)
    feeds = feeds_of(case)
    want = jitcl.compile(exact, device="reference").run(feeds)["y"]
    plain = jitcl.compile(model, device=spec, precision=precision, guard="off").run(feeds)["y"]
    assert spoilt(plain)
    for _ in range(2):                              # another process would find it so, too
        guarded = jitcl.compile(model, device=spec, precision=precision, guard="outputs")
        for _ in range(2):
            assert error(guarded.run(feeds)["y"], want) < 1e-2
    assert len(warnings()) == 1
    named = warnings()[0].split("range of f16")[0]
    assert f"'{case.named}" in named, named
    assert any(case.named in n for n in guarded.report().promoted)
    assert "in f32 since f16 could not hold them: '" in str(guarded.report())


@pytest.mark.slow
@pytest.mark.sampled(slow=5)
@needs("opencl:intel")
@pytest.mark.parametrize("name", CASES)
def test_what_plain_f16_spoils_is_cured_on_intel(name, warnings, monkeypatch):
    if name in F32_FILES:                   # whose logits the CPU path's attention has as f32
        monkeypatch.setenv("JITCL_TARGET", "cpu_templates=0")
    cured(name, "opencl:intel", warnings)


@pytest.mark.parametrize("name", ["squared_sum", "large_logits", "in_a_branch"])
def test_what_plain_f16_spoils_is_cured(name, warnings):
    cured(name, "reference", warnings)


@pytest.mark.parametrize("name", ["tiny_epsilon", "squared_sum", "small_divisor", "variance"])
def test_what_rules_keep_in_f32_needs_no_guard(name, warnings):
    """The f32 files of some, in low precision."""
    case = CASES[name]()
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    low = jitcl.compile(model_of(case), device="reference", precision="low")
    assert error(low.run(feeds_of(case))["y"], want) < 1e-2
    assert warnings() == []


def test_the_range_of_the_input_decides(warnings):
    """Nothing is caught for pixels of 0..1; the warning says the range of those that are."""
    case = image()
    model = halved(model_of(case))
    guarded = jitcl.compile(model, device="reference", guard="outputs")
    want = jitcl.compile(model_of(case), device="reference").run({"pixels": case.fine})["y"]
    assert error(guarded.run({"pixels": case.fine})["y"], want) < 1e-2
    assert warnings() == [] and guarded.report().promoted == ()
    guarded.run({"pixels": case.x})
    assert "'second' (Conv) with 'd' leaves the range of f16 (magnitudes up to 3" in warnings()[0]
    assert "for inputs 'pixels' 0.03818 to 254.9" in warnings()[0]


@pytest.mark.slow
@needs("opencl:pocl")
def test_large_results_are_looked_at_on_the_device(warnings, monkeypatch):
    """Their flags are a result that the caller never sees; the host reads what these accuse."""
    case = Case([node("MatMul", "x w", "a"), node("MatMul", "a big", "b", "grows"),
                 node("MatMul", "b tiny", "c"), node("MatMul", "c w", "d"),
                 node("MatMul", "d w", "y")], normal(1024, 64, scale=30), "grows",
                {"w": W, "big": W * 4000, "tiny": W / 4000})
    model = jitcl.compile(model_of(case), device="opencl:pocl", precision="normal")
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    found = model.run(feeds_of(case))
    assert list(found) == ["y"] and error(found["y"], want) < 1e-2
    assert len(warnings()) == 1 and "'grows'" in warnings()[0]
    read = []

    def reduce(x, **options):
        read.append(x.size)
        return x.sum(**options)

    monkeypatch.setattr(np, "add", SimpleNamespace(reduce=reduce))
    model.run(feeds_of(case))
    assert read == []


def grows(scale):
    """64 rows that f16 can take (1), or that become infinite in between (30)."""
    return Case([node("MatMul", "x w", "a"), node("MatMul", "a big", "b", "grows"),
                 node("MatMul", "b tiny", "y")], normal(N, N, scale=scale), "grows",
                {"w": W, "big": W * 4000, "tiny": W / 4000})


@pytest.mark.parametrize("device", DRIVERS)
@pytest.mark.parametrize("series", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_flags_are_cleared_where_the_last_run_set_one(device, series, monkeypatch):
    """Zeros that lie there already are not written again: the first launch is spared."""
    monkeypatch.setenv("JITCL_TARGET", f"failures_last={series}")
    launched = []
    enqueue = executable.OpenClExecutable._enqueue_all
    monkeypatch.setattr(executable.OpenClExecutable, "_enqueue_all", lambda self, queue, actions: (
        launched.append(sum(len(a.launches) if isinstance(a, Series) else 1 for a in actions))
        or enqueue(self, queue, actions)))
    with jitcl.compile(model_of(grows(1)), device=device, precision="normal",
                       guard="layers") as model:
        special = model.run_specialised(feeds_of(grows(1)))[1]
        run, steps = special.executable.run, len(special.plan.steps)
        launched.clear()
        fine, large = [grows(1).x], [grows(30).x]
        flagged = [run(x)[-1].any() for x in (fine, large, large, fine, fine)]
        assert flagged == [False, True, True, False, False]
        assert [steps - n for n in launched] == [1, 1, 0, 0, 1]
        special.executable.steady(fine, runs=2)
        special.executable.profile(large, runs=1)
        assert not run(fine)[-1].any()
        with jitcl.profile():                           # by events, or step by step
            assert run(large)[-1].any()
        assert not run(fine)[-1].any()
        assert run(large)[-1].any() and not run(fine)[-1].any()
        special.executable.memory.release()             # as after a failure: other memory
        assert not run(fine)[-1].any()


@pytest.mark.parametrize("device", DRIVERS)
@pytest.mark.parametrize("shared", [True, False])
def test_runs_in_threads_and_in_a_queue_read_their_own_flags(device, shared, warnings, monkeypatch):
    """Where memory is not shared, flags and small results come by way of pinned memory."""
    if not shared:
        for module in (arrays, executable):
            monkeypatch.setattr(module, "shares_memory", lambda session: False)
    with jitcl.compile(model_of(grows(1)), device=device, precision="normal",
                       guard="layers") as model:
        run = model.run_specialised(feeds_of(grows(1)))[1].executable.run

        def flagged(scale):
            return [run([grows(scale).x])[-1].any() for _ in range(20)]

        with ThreadPoolExecutor(2) as threads:
            assert [*threads.map(flagged, (1, 30))] == [[False] * 20, [True] * 20]
        seen = []
        signs = Guard.signs
        monkeypatch.setattr(Guard, "signs", lambda self, values, plan, arrays: (
            seen.append(bool(values[-1].any())), signs(self, values, plan, arrays) and [])[1])
        scales = [1, 30, 30, 1, 1, 30, 1]
        for queued in [model.submit(feeds_of(grows(s))) for s in scales]:
            queued.result()
        assert seen == [s > 1 for s in scales]
        bound, seen[:] = model.bind(), []
        for s in scales:
            bound.inputs["x"] = grows(s).x
            assert bound.run().keys() == {"y"}
        kept = [model.run(feeds_of(grows(s)), keep_on_device=True) for s in scales]
        assert seen == 2 * [s > 1 for s in scales]
        assert np.isfinite(kept[-1]["y"].numpy()).all()


@pytest.mark.parametrize("device", DRIVERS)
def test_small_results_and_flags_are_read_before_large_ones(device, monkeypatch):
    """Where memory is not shared, a driver waits for all that was enqueued before it copies a large
    one into the caller's memory: what is enqueued behind that would be waited for again."""
    for module in (arrays, executable):
        monkeypatch.setattr(module, "shares_memory", lambda session: False)
    x = np.ones((1, 1 << 15), np.float32)
    graph = jitcl.parse("graph @two(%x: f32[1,32768]) {\n  %large = neg(%x)\n"
                        "  %small = reduce_sum(%x) {axes=[1]}\n  return %large, %small\n}")
    with jitcl.compile(graph, device=device) as model:
        model.run({"x": x})
        read, copy = [], executable.cl.enqueue_copy

        def noting(queue, to, source, **how):
            if isinstance(to, np.ndarray):
                read.append(to.nbytes)
            return copy(queue, to, source, **how)

        monkeypatch.setattr(executable.cl, "enqueue_copy", noting)
        found = model.run({"x": x})
    assert read == [4, 4 << 15]
    assert (found["large"] == -1).all() and found["small"].item() == 1 << 15


def test_a_result_is_accused_once():
    """Not as itself and by its flag; one that its flag calls finite is not read, but for zeros."""
    model = jitcl.compile(model_of(squared_sum()), device="reference", precision="low")
    plan = replace(model.plan, watched=(Watched("flags", 3, (), 0), Watched("flags", 1, (), -1, 1)))

    def accused(result, *flags):
        values = [np.array(result, np.float32), np.array(flags, np.int32)]
        return [n for n, *_ in model.guard.signs(values, plan, {})]

    assert accused([1, np.inf], 1, 0) == [0]
    assert accused([1, np.inf], 0, 0) == []
    assert accused([0, 0], 0, 0) == [0] and accused([0, 1], 0, 0) == []
    assert accused([1, 2], 0, 1) == [~1]


def some_rows_vanish() -> Case:
    """A tenth of the rows becomes zeros: outputs are neither infinite nor zeros alone."""
    case = squared_sum()
    case.x = case.x * np.float32(0.002)
    case.x[::10] *= 500
    return case


def test_layers_are_looked_at_inside(warnings):
    """An infinity that no output shows."""
    case = some_rows_vanish()
    exact, model = model_of(case), halved(model_of(case))
    feeds = feeds_of(case)
    want = jitcl.compile(exact, device="reference").run(feeds)["y"]
    blind = jitcl.compile(model, device="reference", guard="outputs").run(feeds)["y"]
    assert error(blind, want) > 0.5 and warnings() == []
    seeing = jitcl.compile(model, device="reference", guard="layers")
    for _ in range(2):
        found = seeing.run(feeds)
        assert found.keys() == {"y"} and error(found["y"], want) < 1e-2
    assert len(warnings()) == 1 and "'square'" in warnings()[0]


def test_infinity_of_the_model_itself_is_no_hit(warnings):
    """f32 gives it, too: the result stays, and the run is not repeated for it again."""
    case = Case([node("MatMul", "x w", "a"), node("MatMul", "a w", "b"),
                 node("Div", "b zero", "y")], normal(64, 64), "",
                {"w": W, "zero": scalar(0.0)})
    model = jitcl.compile(model_of(case), device="reference", precision="low")
    loads = []
    load = type(model.device).load
    for k in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(model.device), "load",
                          lambda self, *a, **k: loads.append(1) or load(self, *a, **k))
            assert np.isinf(model.run(feeds_of(case))["y"]).all()
        assert len(loads) == 1                  # of the exact one, in the first run
    assert warnings() == [] and model.report().promoted == ()


def test_what_f32_never_betters_is_given_up(warnings, caplog):
    """Infinite elsewhere in each run, as its inputs are: a bounded number of repeats; then nobody
    looks any more, which is said."""
    case = Case([node("MatMul", "x w", "a"), node("MatMul", "a w", "y")], normal(64, 64), "",
                {"w": W})
    model = jitcl.compile(model_of(case), device="reference", precision="low")
    loads, load = [], type(model.device).load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.device), "load",
                      lambda self, *a, **k: loads.append(1) or load(self, *a, **k))
        for k in range(IN_VAIN + 4):
            x = case.x.copy()
            x[k] = np.nan
            assert np.isnan(model.run({"x": x})["y"][k]).all()
    assert len(loads) == IN_VAIN and warnings() == []
    assert [r.getMessage() for r in caplog.records] == [
        "net: output 'y' was infinite or NaN in f32, too, in 8 runs: the guard looks for that no "
        "more in this process"]


def shrinks() -> Case:
    """Zeros in between, for small inputs; for zeros, too, where they are right."""
    return Case([node("MatMul", "x small", "a"), node("MatMul", "a small", "b", "shrinks"),
                 node("MatMul", "b large", "c"), node("MatMul", "c large", "y")],
                uniform(N, N, high=0.01), "shrinks",
                {"small": P * np.float32(2.0 ** -12), "large": P * np.float32(2.0 ** 12)})


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_zeros_that_were_right_are_looked_at_again_for_other_inputs(device, warnings):
    case = shrinks()
    model = jitcl.compile(halved(model_of(case)), device=device, guard="outputs")
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    for _ in range(2):
        assert not model.run({"x": np.zeros_like(case.x)})["y"].any()
    assert warnings() == []
    assert error(model.run(feeds_of(case))["y"], want) < 1e-2
    assert len(warnings()) == 1 and "'shrinks'" in warnings()[0]
    assert "; f16 holds 3e-08 to 65504)" in warnings()[0]


@pytest.mark.parametrize("device", ["reference", *DRIVERS])
def test_infinities_of_inputs_hide_no_others(device, warnings, tmp_path):
    """All of NaN, which is right, then numbers that f16 can't hold; and both in one input."""
    case = grows(30)
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    for guard in ("outputs", "layers"):
        model = jitcl.compile(model_of(case), device=device, precision="low", guard=guard,
                              cache_dir=tmp_path / guard)
        assert np.isnan(model.run({"x": np.full_like(case.x, np.nan)})["y"]).all()
        x = case.x.copy()
        x[3, 5], x[7, 9] = np.nan, -np.inf
        got = model.run({"x": x})["y"]
        rows = np.delete(np.arange(N), [3, 7])
        assert error(got[rows], want[rows]) < 1e-2
        assert not np.isfinite(got[[3, 7]]).any() and model.report().promoted == ("grows",)
    assert len(warnings()) == 2


def test_no_memory_for_a_better_result(caplog):
    """The run gives what f16 made of it, and says so."""
    model = jitcl.compile(model_of(large_logits()), device="reference", precision="low")

    def refuse(*_, **__):
        raise OutOfMemoryError("none is left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.device), "load", refuse)
        for _ in range(2):
            assert not np.isfinite(model.run(feeds_of(large_logits()))["y"]).all()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and "net: results are infinite, NaN or zeros alone" in said[0]


def test_zeros_of_the_model_itself_are_no_hit(warnings):
    case = Case([node("MatMul", "x p", "a"), node("MatMul", "a p", "b"), node("Relu", "b", "y")],
                -uniform(64, 64), "", {"p": P})
    model = jitcl.compile(model_of(case), device="reference", precision="low")
    for _ in range(2):
        assert not model.run(feeds_of(case))["y"].any()
    assert warnings() == [] and {sign[:2] for sign in model.guard.known} == {(0, "zeros")}


@pytest.mark.parametrize("guard", [pytest.param("outputs", marks=pytest.mark.slow), "layers"])
def test_bound_arrays_get_the_better_results(guard, warnings):
    """The same arrays, before and after."""
    case = long_sum()
    case.constants["w"], case.constants["ones"] = (
        case.constants[n][s] * np.float32(16) for n, s in (
            ("w", np.s_[:, :256]), ("ones", np.s_[:256])))
    model, feeds = model_of(case), feeds_of(case)
    want = jitcl.compile(model, device="reference").run(feeds)["y"]
    bound = jitcl.compile(model, device="cpu", precision="normal", guard=guard).bind()
    assert bound.in_place and bound.outputs.keys() == {"y"}
    held = bound.outputs["y"]
    bound.inputs["x"] = feeds["x"] * np.float32(0.01)
    bound.run()
    assert np.isfinite(held).all() and bound.in_place
    bound.inputs["x"] = feeds["x"]
    for _ in range(2):
        assert bound.run()["y"] is held and error(held, want) < 1e-2
    assert len(warnings()) == 1 and not bound.in_place


@pytest.mark.parametrize("device", DRIVERS)
@pytest.mark.parametrize("rows", [N, 1024])         # read by the guard; told by a flag
def test_results_that_stay_on_the_device_are_looked_at(device, rows, warnings):
    case = grows(30)
    case.x = normal(rows, N, scale=30)
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    model = jitcl.compile(model_of(case), device=device, precision="normal")
    for _ in range(2):
        kept = model.run(feeds_of(case), keep_on_device=True)["y"]
        assert isinstance(kept, jitcl.DeviceTensor) and error(kept.numpy(), want) < 1e-2
    assert len(warnings()) == 1 and "'grows'" in warnings()[0]


@pytest.mark.parametrize("device", ["cpu", *DRIVERS])
def test_inputs_that_lie_on_the_device_are_told_of(device, warnings, tmp_path):
    """Their range, too, in runs and where they are bound."""
    case = grows(30)
    text = "graph @g(%x: f32[64,64]) {\n  %0 = neg(%x)\n  return %0\n}\n"
    maker = jitcl.compile(jitcl.parse(text), device=device)
    (there,) = maker.run({"x": -case.x}, keep_on_device=True).values()
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    for name in ("run", "bind"):
        with jitcl.compile(model_of(case), device=device, precision="normal",
                           cache_dir=tmp_path / name) as model:
            found = (model.run({"x": there}) if name == "run" else
                     model.bind(inputs={"x": there}).run())
            assert error(found["y"], want) < 1e-2
    assert [f"for inputs 'x' {case.x.min():.4g} to {case.x.max():.4g};" in w
            for w in warnings()] == [True, True]


def test_inner_tensors_and_later_parts_know_what_was_found(warnings):
    case = large_logits()
    model = jitcl.compile(model_of(case), device="reference", precision="low")
    model.run(feeds_of(case))
    found = model.run(feeds_of(case), intermediates=["p"])
    assert np.isfinite(found["p"]).all() and len(warnings()) == 1


def test_layers_that_f16_cant_spoil_are_not_looked_at():
    """A clip by what f16 holds, and halves that are only chosen from: their operands are."""
    for second, wanted in ((node("Clip", "a low high", "b"), {"c", "d"}),
                           (node("Relu", "a", "b"), {"a", "b", "c", "d"})):
        assert looked_at(second, node("Relu", "c", "d")) == wanted


def test_one_layer_tells_of_those_whose_infinities_come_to_it():
    """By sums and products: a convolution does, a ReLU makes 0 of what is below."""
    first, last = node("Relu", "a", "b"), node("Neg", "c", "d")
    assert looked_at(first, last) == {"c", "d"}
    assert looked_at(first, last, strides=[2, 2]) == {"a", "b", "c", "d"}


def test_a_layer_that_is_infinite_in_f32_too_tells_of_nobody(warnings):
    """'a' leaves f16's range, 'b' is infinite at some places whatever 'a' is."""
    far = np.zeros((64, 64), np.float32)
    far[:, ::7] = np.inf
    nodes = [node("MatMul", "x w", "product"), node("Neg", "product", "a"),
             node("MatMul", "a v", "moved"), node("Add", "moved far", "b"),
             node("Clip", "b low high", "c"), node("Clip", "b low top", "d"),
             node("MatMul", "c u", "y0"), node("MatMul", "d u", "y1"), node("Add", "y0 y1", "y")]
    case = Case(nodes, uniform(64, 64, high=100), "", {
        "w": uniform(64, 64, seed=1, high=100), "v": -uniform(64, 64, seed=2, high=1e-5),
        "u": uniform(64, 64, seed=3), "far": far, "low": scalar(0.0), "high": scalar(500.0),
        "top": scalar(400.0)})
    want = jitcl.compile(model_of(case), device="reference").run(feeds_of(case))["y"]
    model = jitcl.compile(model_of(case), device="reference", precision="low", guard="layers")
    assert not {"a"} & {n for w in model.plan.watched for n, _ in w.nodes}
    for _ in range(2):
        assert error(model.run(feeds_of(case))["y"], want) < 1e-2
    assert len(warnings()) == 1 and "layer 'product' (MatMul) with 'a' leaves" in warnings()[0]


def looked_at(second, fourth, **attrs):
    """Names of nodes in kernels that have a flag."""
    nodes = [node("Conv", "pixels w", "a", pads=[1, 1, 1, 1]), second,
             node("Conv", "b v", "c", pads=[1, 1, 1, 1], **attrs), fourth,
             node("MaxPool", "d", "e", kernel_shape=[2, 2]), node("Conv", "e u", "y")]
    case = Case(nodes, uniform(1, 3, 32, 32), "", {
        "w": uniform(16, 3, 3, 3), "v": uniform(16, 16, 3, 3), "u": uniform(3, 16, 1, 1),
        "low": scalar(0.0), "high": scalar(6.0)})
    model = jitcl.compile(model_of(case), device="reference", precision="low", guard="layers")
    return {n for w in model.plan.watched for n, _ in w.nodes}


def test_f16_files_are_as_they_say_unless_guarded():
    assert jitcl.compile(halved(model_of(image())), device="reference").options.guard == "off"
    assert jitcl.compile(model_of(image()), device="reference",
                         precision={"second": "low"}).options.guard == "outputs"
    low = jitcl.compile(model_of(image()), device="reference", precision="low", guard="off")
    assert spoilt(low.run(feeds_of(image()))["y"])


def test_a_graph_without_names_is_computed_in_f32(warnings):
    text = ("graph @g(%x: f32[64,64], %w: f32[64,64], %v: f32[64,64]) {\n"
            "  %0 = matmul(%x, %w)\n  %1 = matmul(%0, %w)\n  %2 = matmul(%1, %v)\n"
            "  return %2\n}\n")
    feeds = {"x": normal(64, 64, scale=1e3), "w": uniform(64, 64, seed=1, high=30),
             "v": uniform(64, 64, seed=2, high=1e-5)}
    want = jitcl.compile(jitcl.parse(text), device="reference").run(feeds)
    model = jitcl.compile(jitcl.parse(text), device="reference", precision="low")
    (name, got), = model.run(feeds).items()
    assert error(got, want[name]) < 1e-2
    assert "from now on the model is computed in f32" in warnings()[0]
    assert "in f32 since f16 could not hold them: all layers" in str(model.report())


def test_an_unknown_guard():
    with pytest.raises(OptionError, match="guard='on' is not known: use one of off, outputs, lay"):
        jitcl.compile(model_of(image()), device="reference", guard="on")


@pytest.mark.slow
def test_shapes_that_change(warnings):
    """A plan for many shapes is made anew with what was found."""
    graph = helper.make_graph(
        before_a_norm().nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(model_of(before_a_norm()).graph.initializer))
    onnx = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = jitcl.compile(onnx, device="cpu", precision="low", guard="layers")
    exact = jitcl.compile(onnx, device="reference")
    for n in (64, 65, 66, 67, 68):
        feeds = {"x": normal(n, 64, seed=n, scale=40 if n > 66 else 1)}
        assert error(model.run(feeds)["y"], exact.run(feeds)["y"]) < 1e-2
    assert len(warnings()) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [5, 3 * guards.SHORT])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_looking_at_a_result_warns_of_nothing(dtype: str, size: int) -> None:
    """NumPy does, where a square or a sum of large numbers is infinite; what is not seen to be fine
    is looked at again, number by number."""
    info = np.finfo(dtype)
    for value in (1, info.max, info.tiny, 0, np.inf, np.nan):
        x = np.full(size, value, dtype)
        if value in (1, 0) or not np.isfinite(value):
            assert guards._fine(x) == (value == 1)
            assert guards._any(x) == (value != 0)
        else:
            guards._fine(x), guards._any(x)
