"""The search for faster kernels: what it keeps is right, kept once, and believed here alone."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl import config
from jitcl.cli.main import cli
from jitcl.codegen.plan import Plan
from jitcl.devices.faults import FaultDatabase
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.printer import print_graph
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.passes.fuse import fuse
from jitcl.runtime.cache import KernelCache
from jitcl.runtime.tuned import CachedResults, exported, imported
from jitcl.templates.gemm_opencl.template import GemmOpenCl
from jitcl.tuning.choices import Chosen, Only, described
from jitcl.tuning.found import LOOPS, Choice, Found
from jitcl.tuning.search import Search
from tests.devices import device, needs

POCL, needs_pocl = device("opencl:pocl"), needs("opencl:pocl")
b = GraphBuilder()


def product(m=24, k=40, n=36) -> Graph:
    """relu(a @ w)."""
    rng = np.random.default_rng(3)
    a = graph_input("a", TensorType("f32", (m, k)))
    w = const((rng.standard_normal((k, n)) / np.sqrt(k)).astype("f4"))
    return Graph("t", (a,), (("y", b.relu(b.matmul(a, w))),))


def group_text(graph: Graph) -> str:
    (group,) = fuse(graph)
    return described(group)


class Kept(dict):
    """Results in memory."""

    def put(self, group, found):
        self[group] = found


class Spoilt:
    """A device, some of whose kernels are miscompiled: `spoil(kernels, outputs, run)` is what a run
    gives. Kernels of a load are not tried, as if their driver had passed its trial by luck.
    """

    def __init__(self, spoil, seconds=None):
        self.target, self.name, self.faults = POCL.target, "spoilt", FaultDatabase(None)
        self.spoil, self.seconds, self.loads = spoil, seconds, 0

    def load(self, plan, cache=None, progress=None, options=None):
        self.loads += 1
        self.faults.found_good(f for k in plan.kernels for f in k.features)
        return SpoiltExecutable(self, plan, POCL.load(plan))


class SpoiltExecutable:
    def __init__(self, device, plan: Plan, real):
        self.device, self.plan, self.real, self.runs = device, plan, real, 0

    def run(self, arrays):
        self.runs += 1
        return self.device.spoil(self.plan.kernels, self.real.run(arrays), self.runs)

    def steady(self, arrays, runs):
        seconds = self.device.seconds
        return self.real.steady(arrays, 1) if seconds is None else seconds(self.plan.kernels)

    def close(self):
        self.real.close()


def searched(device, graph, mode="wide", results=None, seconds=None):
    results = Kept() if results is None else results
    search = Search(device, mode, results, KernelCache(limit=0).for_target(device.target), "never",
                    _tally(), seconds)
    return search.run(graph, fuse(graph)), results


def _tally():
    from jitcl.devices.progress import Tally

    return Tally(None)


def ways(graph) -> list[Choice]:
    (group,) = fuse(graph)
    return [Choice.of("gemm_opencl", c) for c in GemmOpenCl().candidates(group, POCL.target)]


def stem(choice: Choice) -> str:
    p = choice.parameters
    return f"gemm_{p['rows']}x{p['vectors']}x{p['width']}_"


# ---- what is kept is right


def fastest(name: str):
    """Seconds by which one kernel is the fastest of all by far."""
    return lambda kernels: 1e-6 if any(name in k.entry for k in kernels) else 1e-3


@needs_pocl
def test_the_fastest_is_taken():
    wanted = ways(product())[-1]
    device = Spoilt(lambda kernels, outputs, run: outputs, fastest(stem(wanted)))
    tuned, results = searched(device, product())
    (found,) = results.values()
    assert found.choice == wanted and found.before == 1e-3 and found.after == 1e-6
    assert found.tried == len(ways(product())) + 1 and not found.refused     # and loops
    assert tuned.chooser.choices == {group_text(product()): wanted}


@needs_pocl
def test_generated_loops_are_taken_where_they_are_faster():
    device = Spoilt(lambda kernels, outputs, run: outputs,
                    lambda kernels: 1e-3 if kernels[0].template else 1e-6)
    tuned, results = searched(device, product())
    (found,) = results.values()
    assert found.choice == Choice(LOOPS, {})
    from tests.compiling import compile_graph

    made = compile_graph(product(), POCL.target, passes=False, chooser=tuned.chooser)
    assert [k.template for k in made.plan.kernels] == [""]


@needs_pocl
def test_a_miscompiled_kernel_is_refused_and_remembered():
    """The fastest by far, of which one element is off by one in a thousand."""
    bad = ways(product())[2]

    def spoil(kernels, outputs, run):
        if any(stem(bad) in k.entry for k in kernels):
            outputs[0].reshape(-1)[7] += 1e-3
        return outputs

    device = Spoilt(spoil, fastest(stem(bad)))
    _, results = searched(device, product())
    (found,) = results.values()
    assert found.choice != bad
    ((way, why),) = found.refused
    assert way == str(bad) and "elements differ, worst y[0,7]" in why
    (fault,) = device.faults.faults
    assert fault.stage == "check" and fault.kind == "wrong" and stem(bad) in fault.entry


@needs_pocl
@pytest.mark.parametrize("first_wrong", [2, 3, 4])
def test_a_kernel_that_is_not_the_same_twice_is_refused(first_wrong):
    """The fastest by far, whose results differ by less than the interpreter can tell: before it is
    timed, or only when it is looked at once more.
    """
    bad = ways(product())[1]

    def spoil(kernels, outputs, run):
        if run >= first_wrong and any(stem(bad) in k.entry for k in kernels):
            flat = outputs[0].reshape(-1)
            flat[11] = np.nextafter(flat[11], np.float32(9))
        return outputs

    device = Spoilt(spoil, fastest(stem(bad)))
    _, results = searched(device, product())
    (found,) = results.values()
    assert found.choice != bad
    assert [way for way, _ in found.refused] == [str(bad)]
    assert re.search(r"not the same twice: \d of 3456 bytes differ", found.refused[0][1])


@needs_pocl
def test_one_that_strays_at_the_very_end_is_searched_for_anew():
    """What was fastest to the end gives something else when it is run a last time."""
    bad = ways(product())[0]

    def spoil(kernels, outputs, run):
        if run > 3 and any(stem(bad) in k.entry for k in kernels):
            outputs[0][...] = 0
        return outputs

    device = Spoilt(spoil, fastest(stem(bad)))
    _, results = searched(device, product())
    (found,) = results.values()
    assert found.choice != bad
    assert found.refused[0][0] == str(bad) and "not the same twice" in found.refused[0][1]


@needs_pocl
def test_nothing_is_kept_where_nothing_is_right():
    def spoil(kernels, outputs, run):
        outputs[0][...] = np.nan
        return outputs

    tuned, results = searched(Spoilt(spoil), product())
    assert results == {} and tuned.rows == () and tuned.left == 0


# ---- what is kept is kept once


@needs_pocl
def test_what_is_known_is_not_searched_for_again():
    device = Spoilt(lambda kernels, outputs, run: outputs)
    _, results = searched(device, product())
    loads = device.loads
    for mode in ("fast", "wide"):
        tuned, _ = searched(device, product(), mode, results)
        assert len(tuned.rows) == 1 and device.loads == loads
    searched(device, product(), "heavy", results)
    assert device.loads > loads
    (found,) = results.values()
    assert found.mode == "heavy"


@pytest.mark.slow
@needs_pocl
def test_a_search_out_of_time_keeps_what_is_known_and_goes_on_from_there():
    two = product(m=8), product()
    device = Spoilt(lambda kernels, outputs, run: outputs)
    tuned, results = searched(device, two[0], seconds=0)
    assert tuned.left == 1 and results == {} and device.loads == 0
    a = graph_input("a", TensorType("f32", (24, 40)))
    both = Graph("t", (a,), (("y", b.matmul(b.matmul(a, const(np.ones((40, 36), "f4"))),
                                            const(np.ones((36, 20), "f4")))),))
    times = iter([0.0, *[1.0] * (len(ways(product())) + 1), *[100.0] * 9])
    search = Search(device, "wide", results, KernelCache(limit=0).for_target(device.target),
                    "never", _tally(), 50, lambda: next(times))
    tuned = search.run(both, fuse(both))
    assert len(results) == len(tuned.rows) == 1 and tuned.left == 1


# ---- choices


def test_a_choice_is_what_json_keeps():
    choice = Choice.of("gemm_opencl", GemmOpenCl().candidates(fuse(product())[0], POCL.target)[0]
                       ) if POCL else Choice("gemm_opencl", {"tile": {"rows": 2}})
    found = Found(choice, "wide", 2e-3, 1e-3, 9, (("loops", "wrong"),))
    assert Found.of_row(json.loads(json.dumps(found.row()))) == found


def test_equal_layers_have_one_text_and_others_have_another():
    assert group_text(product()) == group_text(product())
    others = {group_text(product(*shape)) for shape in ((24, 40, 36), (25, 40, 36), (24, 41, 36))}
    assert len(others) == 3
    assert group_text(product()).splitlines() == [
        "x0: f32[24,40]", "x1: const f32[40,36]",
        "%0 = matmul(x0, x1) : f32[24,36]", "%1 = relu(%0) : f32[24,36]",
        "stores %1, anchor %0, computes f32"]


@needs_pocl
def test_a_chooser_takes_what_was_found_and_no_other_group():
    (group,) = fuse(product())
    candidates = GemmOpenCl().candidates(group, POCL.target)
    last = Choice.of("gemm_opencl", candidates[-1])
    chooser = Chosen({described(group): last})
    assert chooser.choose("gemm_opencl", group, candidates) is candidates[-1]
    assert chooser.choose("another", group, candidates) is None
    assert chooser.choose("gemm_opencl", group, candidates[:1]) is candidates[0]
    (other,) = fuse(product(m=7))
    assert chooser.choose("gemm_opencl", other, candidates) is candidates[0]
    assert Only(last).choose("gemm_opencl", group, candidates[:1]) is None


# ---- in compilation


def feeds():
    return {"a": np.random.default_rng(4).standard_normal((24, 40)).astype("f4")}


@needs_pocl
def test_a_second_process_tunes_nothing(tmp_path, monkeypatch):
    """Neither where it finds the plan, nor where only the results are left."""
    model = jitcl.compile(product(), device="opencl:pocl", tuning="fast", cache_dir=tmp_path)
    assert "tuned: " in str(model.report()) and len(model.report().tuned) == 1
    want = model.run(feeds())["y"]
    monkeypatch.setattr(Search, "_searched", None)
    again = jitcl.compile(product(), device="opencl:pocl", tuning="fast", cache_dir=tmp_path)
    assert again.report().from_cache and again.report().tuned == model.report().tuned
    for plans in tmp_path.glob("*/plan"):
        shutil.rmtree(plans)
    anew = jitcl.compile(product(), device="opencl:pocl", tuning="fast", cache_dir=tmp_path)
    assert not anew.report().from_cache and anew.report().tuned == model.report().tuned
    assert np.array_equal(anew.run(feeds())["y"], want)


@needs_pocl
def test_what_another_driver_was_found_fastest_on_is_not_believed(tmp_path):
    """A file that is moved into the folder of another driver version is dropped, not read."""
    newer = dataclasses.replace(POCL.target, driver=POCL.target.driver + ".1")
    cache = KernelCache(tmp_path)
    text, found = group_text(product()), Found(Choice(LOOPS, {}), "wide", 2e-3, 1e-3, 3)
    CachedResults(cache.for_target(POCL.target)).put(text, found)
    other = cache.for_target(newer)
    assert CachedResults(cache.for_target(POCL.target)).get(text) == found
    assert CachedResults(other).get(text) is None
    shutil.copytree(cache.for_target(POCL.target).directory, other.directory)
    before = cache.stats.corrupt
    assert CachedResults(other).get(text) is None and cache.stats.corrupt == before + 1


def test_files_are_merged_by_what_knows_more(tmp_path):
    target = POCL.target if POCL else None
    if target is None:
        pytest.skip("no PoCL")
    here, there = KernelCache(tmp_path / "a"), KernelCache(tmp_path / "b")
    text = group_text(product())
    fast = Found(Choice(LOOPS, {}), "fast", 2e-3, 1e-3, 3)
    heavy = dataclasses.replace(fast, mode="heavy", after=5e-4)
    CachedResults(here.for_target(target)).put(text, heavy)
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(exported(here)))
    CachedResults(there.for_target(target)).put(text, fast)
    assert imported(there, file) == 1
    assert CachedResults(there.for_target(target)).get(text) == heavy
    file.write_text(json.dumps(exported(there)).replace("heavy", "fast"))
    assert imported(here, file) == 0
    assert CachedResults(here.for_target(target)).get(text) == heavy


@pytest.mark.parametrize("text, message", [
    ("[]", "is no file of `jitcl cache export`, or is damaged"),
    ("{", "is no file of `jitcl cache export`, or is damaged"),
    ('{"file": "jitcl tuning", "code": "x"}', "another version of jitcl"),
])
def test_files_that_are_none(tmp_path, text, message):
    file = tmp_path / "tuned.json"
    file.write_text(text)
    with pytest.raises(jitcl.CacheError, match=message):
        imported(KernelCache(tmp_path / "cache"), file)


@needs_pocl
def test_a_file_that_names_a_folder_outside_is_refused(tmp_path):
    text, found = group_text(product()), Found(Choice(LOOPS, {}), "fast", 2e-3, 1e-3, 3)
    cache = KernelCache(tmp_path / "a")
    CachedResults(cache.for_target(POCL.target)).put(text, found)
    (name,) = (raw := exported(cache))["devices"]
    raw["devices"] = {f"../{name}": raw["devices"][name]}
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(jitcl.CacheError, match="is no device"):
        imported(KernelCache(tmp_path / "b"), file)


def test_there_is_nothing_to_search_on_other_devices():
    with pytest.raises(jitcl.OptionError, match="on device 'cpu': kernels are searched for on "
                       "OpenCL devices only; use tuning='none'"):
        jitcl.compile(product(), device="cpu", tuning="fast")


@needs_pocl
def test_the_command(tmp_path):
    model, cache = tmp_path / "m.jitcl", ["--cache-dir", str(tmp_path / "cache")]
    graph = product()
    constants = {}
    model.write_text(print_graph(graph, constants=constants, inline=None))
    args = ["tune", str(model), "-d", "opencl:pocl", *cache]
    cut = CliRunner().invoke(cli, [*args, "--budget", "0"])
    assert cut.exit_code == 0 and "no time for 1 more kinds of step" in cut.output, cut.output
    done = CliRunner().invoke(cli, [*args, "--mode", "fast", "--json"])
    assert done.exit_code == 0, done.output
    row, = json.loads(done.output)["steps"]
    assert row["step"] == "matmul_0" and row["mode"] == "fast" and row["after"] <= row["before"]
    with config.override(tuning_seconds=60):
        goes_on = CliRunner().invoke(cli, args)
    assert goes_on.exit_code == 0 and re.search("matmul_0 .*gemm_opencl|matmul_0 .*loops",
                                                goes_on.output), goes_on.output
    out = CliRunner().invoke(cli, ["cache", "export", str(tmp_path / "f.json"), *cache])
    assert out.exit_code == 0 and "1 groups of 1 devices" in out.output
    back = CliRunner().invoke(cli, ["cache", "import", str(tmp_path / "f.json"), "--cache-dir",
                                    str(tmp_path / "other")])
    assert back.exit_code == 0 and "1 groups that were not known" in back.output
