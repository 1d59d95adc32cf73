"""Probes of drivers: expected answers on those present, wrong results, crashes, what is remembered.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from jitcl import config
from jitcl.cli.main import cli
from jitcl.devices.opencl import isolation, list_devices, pocl, probe
from jitcl.devices.opencl import probes as asking
from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probe import fields_of, probe_target
from jitcl.devices.opencl.probes import PROBES, launching, run_probe, survey
from jitcl.devices.opencl.probes.bench import Bench, Out, Refused, first_wrong, ulps
from jitcl.devices.opencl.probes.halves import BUILTIN_ULPS, BUILTINS
from jitcl.devices.opencl.probes.record import (
    CRASH,
    GOOD,
    KINDS,
    REFUSED,
    SKIPPED,
    WRONG,
    Answer,
)
from jitcl.errors import OptionError
from jitcl.target.features import PATTERNS
from jitcl.target.target import Target
from tests import devices
from tests.drivers import posing

POCL = "Portable Computing Language"
DEVICES = [f for f in list_devices() if f.platform in (POCL, "Intel(R) OpenCL")]
NAMES = {POCL: "pocl", "Intel(R) OpenCL": "intel"}
ANSWERED = pytest.mark.parametrize("found", DEVICES, ids=[NAMES[f.platform] for f in DEVICES])
needs_pocl, needs_driver = devices.needs("opencl:pocl"), devices.needs_driver()


@pytest.fixture(scope="module")
def surveys() -> dict[str, dict[str, Answer]]:
    """All answers of each driver, asked once in worker processes."""
    return {f.spec: {a.probe: a for a in survey.survey(f)} for f in DEVICES}


@pytest.fixture()
def first() -> Found:
    return DEVICES[0]


@pytest.fixture()
def private(tmp_path, monkeypatch) -> Any:
    """A cache directory of the test's own."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    return tmp_path


# ---- what the drivers here answer

@ANSWERED
def test_every_probe_is_answered_with_evidence(found, surveys):
    answers = surveys[found.spec]
    assert list(answers) == list(PROBES)
    for answer in answers.values():
        assert answer.kind in KINDS and answer.evidence and "\n" not in answer.evidence
        assert Answer.from_dict(json.loads(json.dumps(answer.as_dict()))) == answer
        assert set(PROBES[answer.probe].fields(answer)) <= set(Target.__dataclass_fields__)
        assert set(PROBES[answer.probe].features) <= set(PATTERNS)


@ANSWERED
def test_healthy_drivers_compute_as_expected(found, surveys):
    answers = surveys[found.spec]
    good = {name for name, a in answers.items() if a.good}
    assert {"fp64", "vec4", "vec8", "int8", "int4", "half_storage", "local", "unroll", "events",
            "image", "image2d", "half_images"} <= good
    assert "bit for bit" in answers["half_storage"].evidence
    fields = fields_of(list(answers.values()))
    assert fields["fp16_storage"] and fields["fp64"] and fields["local_works"]
    assert fields["image_pixels"] >= 1 << 16
    assert {"local", "barrier", "int4", "int8", "vec8", "fp64", "image"} <= set(fields["proven"])
    assert answers["tensor_cores"].kind == answers["warpgroups"].kind == SKIPPED


@ANSWERED
def test_half_arithmetic(found, surveys):
    answers = surveys[found.spec]
    fields = fields_of(list(answers.values()))
    if found.platform == POCL and fields["fp16_arithmetic"] is False:
        assert answers["half"].kind == REFUSED and "half" in answers["half"].evidence
        assert answers["half_builtins"].kind == SKIPPED and "half" not in fields["proven"]
    else:
        assert "3 * 2.5 + 3 = 10.5" in answers["half"].evidence
        assert "bit for bit" in answers["half"].evidence
        told = answers["half_builtins"].evidence.removeprefix("largest error in ulp: ")
        errors = {name: int(n) for name, n in (one.split() for one in told.split(", "))}
        assert set(errors) == set(BUILTINS) and max(errors.values()) <= BUILTIN_ULPS
        assert errors["fabs"] == errors["floor"] == 0   # exp: 1 where the CPU computes in half
        assert answers["half_vectors"].good and "half" in fields["proven"]


@ANSWERED
def test_what_only_some_have(found, surveys):
    answers = surveys[found.spec]
    fields = fields_of(list(answers.values()))
    if NAMES[found.platform] == "intel":
        assert {"subgroups", "integer_dot", "odd_groups", "command_buffers",
                "image_from_buffer"} <= {name for name, a in answers.items() if a.good}
        assert fields["reloadable"]
        assert {"subgroup", "half", "vec16"} <= set(fields["proven"])
    if "subgroups" not in found.handle.extensions:
        assert answers["subgroups"].kind == SKIPPED and "subgroup" not in fields["proven"]


@needs_pocl
def test_repaired_pocl_keeps_its_widest_vectors(surveys):
    found = next(f for f in DEVICES if f.platform == POCL)
    if not pocl.can_be_named(found.handle) or config.get("pocl_cpu"):
        pytest.skip(f"PoCL {found.handle.driver_version} for '{found.compiler_cpu}' is left alone")
    assert pocl.wanted_cpu(found.compiler_cpu, pocl.host_features()) == found.compiler_cpu
    answers = surveys[found.spec]
    assert answers["vec16"].good and answers["fma"].good
    assert fields_of(list(answers.values()))["max_vector_width"] == 16


# ---- wrong results

COMPUTING = [n for n in PROBES if n not in ("fma", "mad", "events", "command_buffers",
                                            "tensor_cores", "warpgroups", "register_limit",
                                            "local_worth", "integer_dot")]


@needs_driver
@pytest.mark.parametrize("name", COMPUTING)
def test_a_wrong_value_is_a_missing_feature(name, monkeypatch):
    """Each probe, where one value of its result is another: the check can fail."""
    found = next((f for f in DEVICES if not PROBES[name].skip(f)
                  and (not name.startswith("half") or NAMES[f.platform] == "intel")), None)
    if found is None:                   # what the probe asks for is a GPU's, or another driver's
        pytest.skip("no driver here has it")
    run = Bench.run

    def spoilt(self: Bench, *args: Any) -> list[np.ndarray]:
        arrays = run(self, *args)
        middle = arrays[0].shape[0] // 2
        arrays[0][middle] = arrays[0][middle] + 1 if arrays[0][middle] < 100 else 0
        return arrays

    monkeypatch.setattr(Bench, "run", spoilt)
    (row,) = run_probe(found, name)["answers"]
    assert row["kind"] == WRONG and row["evidence"]
    assert not fields_of([Answer.from_dict(row)])["proven"]


@pytest.mark.parametrize(("launch", "loop", "events_see"), [
    (100e-6, 16e-9, 45e-6),         # PoCL on 16 cores: most of a launch is in the event's time
    (9e-6, 2e-9, 2e-6),             # a large GPU
    (300e-6, 50e-9, 10e-6),         # a Mali of 2 cores
    (2e-6, 300e-9, 1e-6),           # one core
])
def test_a_spinning_kernels_work_shows_beside_a_launch(launch, loop, events_see):
    loops = launching.loops_that_show(lambda loops: launch + loop * loops)
    short, long = (events_see + loop * loops * work for work in (1, 4))
    assert 1.5 * short < long < 0.01


def test_distances_of_halves():
    x = np.array([1.0, 65504, np.inf, np.nan, -0.0, 6e-8, 2.0, np.nan], np.float16)
    y = np.array([1.001, np.inf, -np.inf, np.nan, 0.0, 0.0, 1.999, 1.0], np.float16)
    found = ulps(x, y)
    assert found[:2].tolist() == [1, 1] and found[2] > 50_000 and found[7] > 50_000
    assert found[3:7].tolist() == [0, 0, 0, 1]


def test_the_first_wrong_value_is_named():
    assert first_wrong([1.0, np.inf], [1.0, np.inf]) == ""
    assert first_wrong([1.0, 2.0], [1.0, 2.5], 0.1) == "value 1 is 2, wanted 2.5"
    assert first_wrong([np.nan], [1.0], 10) == "value 0 is nan, wanted 1"


# ---- what answers mean for a Target

def answer(name: str, kind: str = GOOD, **fields: Any) -> Answer:
    return Answer(name, kind, "seen", fields)


@pytest.mark.parametrize(("bad", "width"), [
    ((), 16), (("vec16",), 8), (("vec16", "vec8"), 4), (("vec8",), 4), (("vec4",), 1)])
def test_the_widest_vectors(bad, width):
    answers = [answer(n, CRASH if n in bad else GOOD) for n in ("vec16", "vec8", "vec4")]
    assert fields_of(answers)["max_vector_width"] == width


@pytest.mark.parametrize("kind", [GOOD, REFUSED, CRASH, WRONG])
def test_math_of_halves_that_is_not_good_goes_by_way_of_floats(kind):
    fields = fields_of([answer("half"), answer("half_convert"), answer("half_builtins", kind)])
    assert fields["fp16_arithmetic"] and "half" in fields["proven"]
    assert fields.get("half_builtins", True) is (kind == GOOD)


@pytest.mark.parametrize(("kind", "arithmetic"), [(GOOD, True), (REFUSED, True), (WRONG, False)])
def test_wrong_conversions_turn_half_off(kind, arithmetic):
    """Where they are refused, kernels with half are built in isolation."""
    fields = fields_of([answer("half"), answer("half_convert", kind), answer("half_builtins")])
    assert fields["fp16_arithmetic"] is arithmetic
    assert ("half" in fields["proven"]) is (kind == GOOD)


def test_absent_features_take_schedules_with_them():
    fields = fields_of([answer("half_storage", WRONG), answer("local", CRASH),
                        answer("int4", REFUSED), answer("image", SKIPPED)])
    assert fields["soft_half"] and not fields["fp16_storage"]
    assert not fields["local_works"] and not fields["local_is_real"]
    assert not fields["packed_weights"] and fields["image_pixels"] == 0
    assert fields["proven"] == ()


# ---- crashes

CODE = """
import json
from jitcl.devices.opencl import list_devices
from jitcl.devices.opencl.probe import probe_target
from jitcl.devices.opencl.probes import survey
found = list_devices()[{index}]
counted = []
asked = survey.survey
survey.survey = lambda found, *more: counted.append(found) or asked(found, *more)
target = probe_target(found)
kept = json.loads(next(p for p in __import__("pathlib").Path({cache!r}).glob(
    "opencl-probes/*.json")).read_text())
print(json.dumps({{"asked": len(counted), "proven": target.proven, "width": target.max_vector_width,
                   "form": target.multiply_add, "half": target.fp16_arithmetic,
                   "cpu": found.compiler_cpu,
                   "answers": {{a["probe"]: a for a in kept["answers"]}}}}))
"""


def posed(cache: Any, pose: str | posing.Pose, *rules: str, **variables: str) -> posing.Outcome:
    pose = posing.POSES[pose] if isinstance(pose, str) else pose
    index = next(i for i, f in enumerate(list_devices()) if pose.platform in f.platform)
    code = CODE.format(index=index, cache=str(cache / "jitcl"))
    return posing.run_python(code, cache=cache, pose=pose, rules=rules,
                             variables={"JITCL_BUILD_SECONDS": "20", **variables})


POSED = [p for p in ("mali-g78:intel", "mali-g78:pocl")
         if p.split(":")[1] in {NAMES[f.platform] for f in DEVICES}]


@needs_driver
@posing.needed()
@pytest.mark.in_turn
@pytest.mark.parametrize("pose", POSED)
def test_crashes_are_answers_and_the_others_go_on(pose, tmp_path):
    """One probe of a group aborts, one segfaults, one does not build, one never runs."""
    rules = ("abort /vec8/", "segv /image_row/", "fail /int4_nibbles/ error: too low",
             "drop /local_tile/")
    outcome = posed(tmp_path, pose, *rules)
    told = outcome.value
    answers = told["answers"]
    assert not outcome.orphans
    assert answers["vec8"]["kind"] == CRASH and "SIGABRT: LLVM ERROR" in answers["vec8"]["evidence"]
    assert answers["image"]["kind"] == CRASH and "SIGSEGV" in answers["image"]["evidence"]
    assert answers["int4"]["kind"] == REFUSED and "too low" in answers["int4"]["evidence"]
    assert answers["local"]["kind"] == WRONG and "nan" in answers["local"]["evidence"]
    good = {"fp64", "vec4", "int8", "half_storage", "unroll", "events"} - (
        {"fp64"} if pose.endswith("intel") else set())
    assert {n for n in good if answers[n]["kind"] != GOOD} == set()
    assert told["width"] == 4
    assert not {"vec8", "image", "int4", "local", "barrier"} & set(told["proven"])
    assert {"vec4", "int8", "half_storage"} <= set(told["proven"])
    again = posed(tmp_path, pose, *rules)
    assert again.value["asked"] == 0 and again.value["proven"] == told["proven"]
    assert again.stats.crashes == outcome.stats.crashes


@needs_driver
@posing.needed()
@pytest.mark.slow
def test_a_hang_ends_at_its_deadline(tmp_path):
    outcome = posed(tmp_path, POSED[0], "hang:600 /image_row/", JITCL_BUILD_SECONDS="6")
    answers = outcome.value["answers"]
    assert answers["image"]["kind"] == "hang" and "6 s" in answers["image"]["evidence"]
    assert answers["vec8"]["kind"] == GOOD and not outcome.orphans


@needs_driver
@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_driver_that_survives_nothing_is_soon_left_alone(kind, first, monkeypatch):
    calls: list[str] = []

    def dies(pool: Any, request: tuple[str, str], seconds: float) -> Any:
        calls.append(request[1])
        raise isolation.WorkerFault(kind, "probe", request[1], "SIGSEGV")

    monkeypatch.setattr(isolation.Isolated, "call", dies)
    answers = survey.survey(first)
    assert len(calls) <= survey.HOPELESS + survey.WORKERS
    assert not any(a.good for a in answers) and {kind, SKIPPED} == {a.kind for a in answers}
    fields = fields_of(answers)
    assert fields["proven"] == () and fields["max_vector_width"] == 1
    assert not fields["fp16_arithmetic"] and not fields["cached_binaries"]


@needs_driver
@posing.needed()
def test_a_miscompiled_builtin_is_found(tmp_path):
    """All halves are stored with an error: what the extension's string says is of no use."""
    outcome = posed(tmp_path, POSED[0], "prelude /half_storage/ #define vstore_half_rte(x, i, p) "
                                        "vstore_half_rte((x) * 1.01f, i, p)")
    answers = outcome.value["answers"]
    assert answers["half_storage"]["kind"] == WRONG
    assert "half_storage" not in outcome.value["proven"]


@needs_driver
@posing.needed()
@pytest.mark.in_turn
@pytest.mark.parametrize("pose", POSED)
def test_what_the_driver_lists_is_not_believed(pose, tmp_path):
    """Half arithmetic on Intel's runtime that does not list it, and on PoCL that does."""
    works = pose.endswith("intel")
    lists = posing.POSES[pose]
    lists = replace(lists, add=lists.add.replace("cl_khr_fp16", ""),
                    remove=f"{lists.remove} cl_khr_fp16") if works else replace(
                        lists, add=f"{lists.add} cl_khr_fp16")
    told = posed(tmp_path, lists).value
    assert told["half"] is works and ("half" in told["proven"]) is works
    assert told["answers"]["half"]["kind"] == (GOOD if works else REFUSED)


@pytest.mark.long                       # test_real_abort.py meets the same probe
@devices.needs_a_real_crash()
@posing.needed()
def test_a_real_crash_of_pocl(tmp_path):
    """PoCL 3.0 for a CPU that its library was not made for dies of 16-wide arithmetic, and calls
    fma() in a library.
    """
    outcome = posed(tmp_path, "pocl", JITCL_POCL_CPU="znver3", JITCL_BUILD_SECONDS="8")
    told = outcome.value
    assert told["cpu"] == "znver3"
    assert "probe vec16: the driver" in outcome.stderr
    wide = told["answers"]["vec16"]
    assert wide["kind"] in ("crash", "hang") and wide["evidence"]
    assert told["width"] == 8 and told["form"] == "plain" and "vec16" not in told["proven"]
    assert {"vec8", "vec4", "local", "int4"} <= set(told["proven"])
    assert told["answers"]["fma"]["kind"] == WRONG


# ---- what is remembered

def answers_of(count: list[Found]) -> Any:
    """A survey that only counts how often it is made."""
    def counted(found: Found, progress: object) -> list[Answer]:
        count.append(found)
        return [answer("fp64"), answer("vec4"), answer("image", image_pixels=4096)]
    return counted


@needs_driver
def test_a_warm_start_asks_nothing(first, private, monkeypatch):
    count: list[Found] = []
    monkeypatch.setattr(survey, "survey", answers_of(count))
    one, two = probe_target(first), probe_target(first)
    assert one == two and count == [first]
    assert one.image_pixels == 4096 and one.fp64 and one.proven == ("fp64", "image", "vec4")


@needs_driver
def test_a_driver_update_asks_again(first, private, monkeypatch):
    count: list[Found] = []
    monkeypatch.setattr(survey, "survey", answers_of(count))
    probe_target(first)
    limits = probe._limits
    monkeypatch.setattr(probe, "_limits", lambda f: replace(limits(f), driver="99.0"))
    assert probe_target(first).driver == "99.0" and len(count) == 2
    probe_target(first)
    assert len(count) == 2
    monkeypatch.setattr(probe, "VERSION", probe.VERSION + 1)
    probe_target(first)
    assert len(count) == 3


@needs_driver
@pytest.mark.parametrize("damage", [
    lambda record: "{", lambda record: "", lambda record: "[]",
    lambda record: json.dumps({**record, "fields": {**record["fields"], "fp64": "yes"}}),
    lambda record: json.dumps({**record, "fields": {**record["fields"], "speed": 1}}),
    lambda record: json.dumps({**record, "fields": {}}),
])
def test_a_damaged_record_is_made_anew(damage, first, private, monkeypatch, caplog):
    count: list[Found] = []
    monkeypatch.setattr(survey, "survey", answers_of(count))
    whole = probe_target(first)
    (path,) = private.glob("opencl-probes/*.json")
    path.write_text(damage(json.loads(path.read_text())))
    assert probe_target(first) == whole and len(count) == 2
    assert "probed anew" in caplog.text
    assert probe_target(first) == whole and len(count) == 2


@needs_driver
def test_two_at_once_ask_once(first, private, monkeypatch):
    count: list[Found] = []
    inside, go_on = threading.Event(), threading.Event()

    def slow(found: Found, progress: object) -> list[Answer]:
        inside.set()
        assert go_on.wait(30)
        return answers_of(count)(found, progress)

    monkeypatch.setattr(survey, "survey", slow)
    targets: list[Target] = []
    threads = [threading.Thread(target=lambda: targets.append(probe_target(first)))
               for _ in range(2)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(count) == 1 and len(targets) == 2 and targets[0] == targets[1]


@needs_driver
def test_no_worker_is_an_error_that_is_not_remembered(first, private, monkeypatch):
    def none(*args: Any) -> Any:
        raise isolation.WorkerFault("refused", "start", "", "no process can be started")

    monkeypatch.setattr(isolation.Isolated, "call", none)
    with pytest.raises(isolation.WorkerFault, match="no process can be started"):
        probe_target(first)
    assert not list(private.glob("opencl-probes/*.json"))


@needs_driver
def test_without_isolation_probes_run_here(first, private, monkeypatch):
    def none(*args: Any) -> Any:
        raise AssertionError("a worker was asked")

    monkeypatch.setattr(isolation.Isolated, "call", none)
    monkeypatch.setattr(survey, "GROUPS", (("vec4", "vec8"), ("half",)))
    monkeypatch.setattr(survey, "PROBES", {n: PROBES[n] for n in ("vec4", "vec8", "half")})
    with config.override(isolation="never"):
        answers = survey.survey(first)
    assert [a.good for a in answers][:2] == [True, True]


@needs_driver
def test_a_lost_context_is_made_anew(first, monkeypatch):
    """A probe that kills its context does not take the others along."""
    broken: list[str] = []
    run = Bench.run

    def lose_once(self: Bench, program: Any, name: str, *args: Any) -> list[np.ndarray]:
        if name == "vec4" and not broken:
            broken.append(name)
            self.lost = True
            raise Refused("clEnqueueNDRangeKernel failed: <unknown error -9999>")
        return run(self, program, name, *args)

    monkeypatch.setattr(Bench, "run", lose_once)
    rows = run_probe(first, "vec4+vec8+int8")["answers"]
    assert [r["kind"] for r in rows] == [GOOD] * 3 and broken == ["vec4"]


@needs_driver
def test_a_context_that_there_is_not(first, monkeypatch):
    def refused(self: Bench, found: Found) -> None:
        raise Refused("clCreateContext failed: OUT_OF_HOST_MEMORY")

    monkeypatch.setattr(asking, "_benches", {})
    monkeypatch.setattr(Bench, "__init__", refused)
    rows = run_probe(first, "vec4+vec8")["answers"]
    assert [r["kind"] for r in rows] == [REFUSED] * 2
    assert "clCreateContext" in rows[0]["evidence"]


# ---- JITCL_TARGET and the command line

@needs_driver
def test_fields_are_overridden_by_hand(first, private, monkeypatch):
    monkeypatch.setattr(survey, "survey", answers_of([]))
    with config.override(target="max_vector_width=2,local_is_real=1,cl_std=CL1.1"):
        target = probe_target(first)
    assert (target.max_vector_width, target.local_is_real, target.cl_std) == (2, True, "CL1.1")
    assert target.proven == probe_target(first).proven
    for wrong, said in (("max_width=1", "got the field 'max_width'"), ("fp64=2", "wanted 0 or 1"),
                        ("queue_depth=x", "wanted a whole number"), ("proven=half", "'proven'")):
        with config.override(target=wrong), pytest.raises(OptionError, match=said):
            probe_target(first)


@needs_driver
def test_the_command_shows_answers_and_evidence(first, private, monkeypatch):
    count: list[Found] = []
    monkeypatch.setattr(survey, "survey", answers_of(count))
    probe_target(first)
    done = CliRunner().invoke(cli, ["devices", "--probe", "--json"], catch_exceptions=False)
    told = {d["spec"]: d for d in json.loads(done.stdout)["devices"]}[first.spec]
    assert len(count) == 1 + len(list_devices())        # anew, whatever is remembered
    row = told["answers"][2]
    assert (row["probe"], row["answer"], row["evidence"]) == ("image", "good", "seen")
    assert row["fields"] == {"image_pixels": 4096} and "image" in told["proven"]
    text = CliRunner().invoke(cli, ["devices", "--probe"], catch_exceptions=False).stdout
    assert "image1d_buffer" in text and "image_pixels=4096" in text and "proven: " in text


def test_groups_hold_each_probe_once():
    assert sorted(n for group in survey.GROUPS for n in group) == sorted(PROBES)
    for group in survey.GROUPS:
        if len(group) > 1:                  # or one missing feature would hide the others
            assert not any(PROBES[n].needs for n in group)


def test_outputs_begin_as_what_no_result_is():
    from jitcl.devices.opencl.probes.bench import _unset
    assert np.isnan(_unset(Out(2, np.float16))).all()
    assert _unset(Out(1, np.int32))[0] == np.int32(-0x5a5a5a5b)
