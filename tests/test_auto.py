"""precision="auto": what stays in f16, what does not and why, on inputs to try."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import NodeProto

import jitcl
from jitcl.accuracy import auto
from jitcl.cli.main import cli
from jitcl.errors import InputError, OptionError, UnsupportedError
from tests.devices import needs, present
from tests.overflowing import (
    CASES,
    Case,
    feeds_of,
    fourier,
    halved,
    image,
    large_logits,
    model_of,
    node,
    normal,
    scalar,
    uniform,
)
from tests.test_guard import F32_FILES, error, spoilt

SUPERRES = Path(__file__).parent.parent / "examples" / "superres-x3.onnx"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """What was found is kept in the cache."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path / "cache"))


def test_what_f16_cant_hold_is_in_f32(caplog):
    """Only that, with the reason; the next process reads it, and nothing is tried again."""
    caplog.set_level(logging.WARNING, "jitcl")
    case = large_logits()
    model, feeds = model_of(case), feeds_of(case)
    want = jitcl.compile(model, device="reference").run(feeds)["y"]
    for _ in range(2):
        found = jitcl.compile(model, device="reference", precision="auto", calibrate=feeds)
        assert error(found.run(feeds)["y"], want) < 1e-2
        chosen = found.report().chosen
        assert chosen.reasons == (("logits", "f16 can't hold magnitudes up to 5.36e+05"),)
        assert chosen.error < 1e-2 and chosen.inputs == 1 and not chosen.random
        assert 0.3 < chosen.share < 0.8
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(auto._Search, "run", lambda self: pytest.fail("it was tried again"))
            jitcl.compile(model, device="reference", precision="auto", calibrate=feeds)
    assert len(caplog.records) == 1                     # the guard, while it was looked for
    said = found.report().precision_line()
    assert "auto, within 0.01: off by at most 0.00025 for 1 input, " in said
    assert "'logits' in more: f16 can't hold magnitudes up to 5.36e+05" in said
    assert "since" not in said


@pytest.mark.slow
def test_the_fewest_layers_that_hold_a_tolerance():
    """No layer of the result can come back down; with half of its error, more go up."""
    case = fourier()
    case.x /= np.float32(1e3)
    model, feeds = model_of(case), feeds_of(case)

    def tried(**options):
        return jitcl.compile(model, device="reference", calibrate=feeds, **options)

    want = jitcl.compile(model, device="reference").run(feeds)["y"]
    low = error(tried(precision="auto").run(feeds)["y"], want)
    assert low > 1e-5
    found = tried(precision="auto", tolerance=low * 0.9)
    up = dict(found.options.layers)
    assert up and len(up) < 4 and set(up.values()) == {"high"}
    assert error(found.run(feeds)["y"], want) <= low * 0.9
    for name in up:
        fewer = {"*": "low", **{n: "high" for n in up if n != name}}
        less = jitcl.compile(model, device="reference", precision=fewer)
        assert error(less.run(feeds)["y"], want) > low * 0.9
    assert all("moves outputs by" in why for _, why in found.report().chosen.reasons)
    tight = tried(precision="auto", tolerance=low * 0.01)
    assert len(tight.options.layers) > len(up)


def test_a_tolerance_of_ones_own():
    """Is given outputs and those in f32, and decides."""
    case, seen = image(), []

    def same_best(got, want):
        seen.append(set(got) | set(want))
        return int(got["y"].argmax()) == int(want["y"].argmax())

    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          tolerance=same_best, calibrate=iter([feeds_of(case)]))
    assert seen and all(s == {"y"} for s in seen)
    assert "test_a_tolerance_of_ones_own" in found.report().chosen.tolerance


@needs("opencl:intel")
@pytest.mark.parametrize(("low", "taken"), [(1.0, "low"), (3.0, "normal")])
def test_f16_arithmetic_that_is_slow_is_not_used(low, taken, monkeypatch):
    """As on CPUs that have none, where a driver emulates it."""
    monkeypatch.setattr(auto._Search, "_seconds", lambda self, p: low if p == "low" else 1.0)
    case = Case([node("MatMul", "x w", "y")], uniform(16, 64), "", {"w": normal(64, 32, seed=1)})
    found = jitcl.compile(model_of(case), device="opencl:intel", precision="auto",
                          calibrate=feeds_of(case))
    chosen = found.report().chosen
    assert found.options.precision == taken and chosen.error <= 1e-2 and chosen.share == 1
    assert [n for n in chosen.notes if "f16 arithmetic takes 3.0 times as long as f32" in n] == (
        list(chosen.notes) if taken == "normal" else [])


def test_what_needs_no_search_needs_no_time():
    case = image()
    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          calibrate={"pixels": case.fine}, budget=0)
    assert found.report().chosen.error <= 1e-2 and found.options.precision == "low"


def test_no_time_means_that_all_layers_go_up():
    case = fourier()
    case.x /= np.float32(1e3)
    feeds = feeds_of(case)
    found = jitcl.compile(model_of(case), device="reference", precision="auto", tolerance=0,
                          calibrate=feeds, budget=0)
    assert set(dict(found.options.layers).values()) == {"high"} and found.options.layers
    assert found.report().chosen.notes == ("not all was tried: fewer layers may be enough",)
    assert found.report().chosen.error == 0
    assert {why for _, why in found.report().chosen.reasons} == {
        "there was no time to try f16 in parts"}


@pytest.mark.slow
def test_what_is_written_in_place_goes_up_with_the_rest():
    """Operands of a Concat are stored where it has them, unless their precision is another."""
    def conv(x: str, y: str) -> NodeProto:
        return node("Conv", f"{x} {y}.w", y, pads=[1, 1, 1, 1])

    case = Case([conv("pixels", "a"), conv("a", "b"), node("Concat", "a b", "both", axis=1),
                 conv("both", "y")], uniform(1, 3, 32, 32), "",
                {f"{n}.w": normal(*shape, 3, 3, seed=k) for k, (n, shape) in enumerate(
                    {"a": (16, 3), "b": (16, 16), "y": (3, 32)}.items())})
    for device in (d for d in present() if d != "opencl:intel"):    # as long as all others
        found = jitcl.compile(model_of(case), device=device, precision="auto", tolerance=0,
                              calibrate=feeds_of(case), budget=0)
        options = found.options
        assert {options.of_layer(n) or options.precision for n in ("a", "b", "both")} == {"high"}
        assert found.report().chosen.error == 0


def test_a_driver_that_gives_other_bits_is_told(monkeypatch, caplog):
    monkeypatch.setattr(auto, "bit_equal", lambda a, b: False)
    case = image()
    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          calibrate={"pixels": case.fine})
    assert "two runs on reference differ in their bits" in str(found.report())
    assert "net: two runs on reference differ in their bits" in caplog.text


@pytest.mark.slow
def test_inputs_to_try(tmp_path):
    """A folder; none, which is said."""
    case = image()
    np.savez(tmp_path / "a.npz", pixels=case.fine)
    np.save(tmp_path / "b.npy", case.fine * 0.5)
    found = jitcl.compile(model_of(case), device="cpu", precision="auto", calibrate=tmp_path)
    assert found.report().chosen.inputs == 2 and not found.report().chosen.random
    found = jitcl.compile(model_of(case), device="cpu", precision="auto")
    assert found.report().chosen.random
    assert "tried on random inputs: calibrate= takes real ones" in str(found.report())


@pytest.mark.parametrize("options, kind, text", [
    ({"tolerance": -1}, OptionError, "tolerance: got -1, wanted a number from 0 up"),
    ({"budget": "long"}, OptionError, "budget: got 'long', wanted a number from 0 up"),
    ({"calibrate": 3}, InputError, "calibrate: got 3, wanted a dict of input name -> array, an it"),
    ({"calibrate": []}, InputError, "calibrate: got a list, wanted"),
    ({"calibrate": "nowhere"}, InputError, "calibrate: 'nowhere' is no folder"),
    ({"calibrate": {"pixel": np.zeros(3)}}, InputError, "pixel"),
    ({"precision": "low", "tolerance": 1e-3}, OptionError, "are of precision='auto'"),
])
def test_wrong_arguments(options, kind, text):
    with pytest.raises(kind) as caught:
        jitcl.compile(model_of(image()), device="reference", **{"precision": "auto", **options})
    assert text in str(caught.value)


def test_what_has_no_names_or_shapes(tmp_path):
    graph = jitcl.parse("graph @g(%x: f32[4,4]) {\n  %0 = relu(%x)\n  return %0\n}\n")
    with pytest.raises(UnsupportedError, match="'g' is a text graph, which keeps no names of lay"):
        jitcl.compile(graph, device="reference", precision="auto")
    made = model_of(image())
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(InputError, match="shapes of inputs are open.*\n  Give inputs to try, cali"):
        jitcl.compile(made, device="reference", precision="auto")


@pytest.mark.slow
def test_the_command(tmp_path):
    picture = np.random.default_rng(0).random((1, 3, 24, 24)).astype(np.float32)
    np.save(tmp_path / "x.npy", picture)
    done = CliRunner().invoke(cli, ["run", str(SUPERRES), "-d", "cpu", "-i",
                                     str(tmp_path / "x.npy"), "--precision", "auto"])
    assert done.exit_code == 0, done.output
    assert "precision: auto, within 0.01: off by at most" in " ".join(done.output.split())
    done = CliRunner().invoke(cli, ["run", str(SUPERRES), "-i",
                                     str(tmp_path / "x.npy"), "--budget", "3"])
    assert done.exit_code != 0 and "are of --precision auto" in done.output


def longer(case: Case, want: np.ndarray) -> Case:
    """With layers behind that f16 takes, so that what overflows is a small part of the model."""
    rng, (outer, inner), pairs = np.random.default_rng(3), (64, 1024), 2
    op, window, pads = "MatMul", (), {}
    if case.x.ndim == 4:
        (outer, inner), pairs, op, window, pads = (3, 64), 4, "Conv", (3, 3), {"pads": [1] * 4}
    elif case.named == "sum":
        pairs = 8
    case.nodes[-1].output[0] = "first"
    case.nodes.append(node("Mul", "first scale", "t0"))
    case.constants["scale"] = np.array(1 / np.abs(want).max(), np.float32)
    for k in range(2 * pairs):
        shape = (outer, inner) if k % 2 == (op == "Conv") else (inner, outer)
        n = shape[0] if op == "MatMul" else shape[1] * 9
        case.constants[f"t{k}.w"] = (rng.normal(size=(*shape, *window)) / np.sqrt(n)).astype("f4")
        last = "y" if k == 2 * pairs - 1 else f"t{k + 1}"
        case.nodes.append(node(op, f"t{k} t{k}.w", last, **pads))
    return case


@pytest.mark.slow
@pytest.mark.sampled(slow=7)
@needs("opencl:intel")
@pytest.mark.parametrize("name", CASES)
def test_what_plain_f16_spoils_is_mostly_f16_on_intel(name, monkeypatch):
    if name in F32_FILES:                   # whose logits the CPU path's attention has as f32
        monkeypatch.setenv("JITCL_TARGET", "cpu_templates=0")
    first = CASES[name]()
    feeds = feeds_of(first)
    case = longer(first, jitcl.compile(model_of(CASES[name]()), device="reference").run(feeds)["y"])
    model = model_of(case, name)
    plain, precision = (model, "low") if name in F32_FILES else (halved(model), "high")
    assert spoilt(jitcl.compile(plain, device="opencl:intel", precision=precision,
                                guard="off").run(feeds)["y"])
    want = jitcl.compile(model, device="reference").run(feeds)["y"]
    found = jitcl.compile(model, device="opencl:intel", precision="auto", calibrate=feeds)
    assert error(found.run(feeds)["y"], want) < 1e-2
    assert found.report().chosen.share >= 0.8


def test_errors_that_grow_from_step_to_step():
    """What each recorded step allows, a stream of steps that read their own states may not."""
    turn = np.linalg.qr(normal(64, 64, seed=1))[0].astype(np.float32)
    case = Case([node("MatMul", "x turn", "a"), node("Mul", "a two", "b"), node("Sin", "b", "y")],
                uniform(64, 64), "", {"turn": turn, "two": scalar(2.0)})

    def steps(run):
        found = [case.x]
        for _ in range(8):
            found.append(run({"x": found[-1]})["y"])
        return found[1:]

    def chosen(calibrate):
        return jitcl.compile(model_of(case), device="reference", precision="auto",
                             calibrate=calibrate, budget=0)

    want = steps(jitcl.compile(model_of(case), device="reference").run)
    recorded = chosen([{"x": x} for x in (case.x, want[3])])
    assert error(steps(recorded.run)[-1], want[-1]) > 1e-2
    found = chosen(steps)
    assert error(steps(found.run)[-1], want[-1]) < 1e-2
    assert found.report().chosen.inputs == 8
    with pytest.raises(InputError, match="calibrate: the function ended without a run"):
        chosen(lambda run: None)


def test_reports_say_what_stays_in_f32_by_itself():
    case = Case([node("Exp", "x", "grown"), node("ReduceMean", "grown", "y", axes=[1])],
                np.zeros((64, 64), np.float32), "grown")
    for precision in ("normal", "high"):
        model = jitcl.compile(model_of(case), device="reference", precision=precision)
        model.run(feeds_of(case))
        line = "f32, 100% of the FLOPs: a reduction: 'grown', 'y'"
        assert (line in str(model.report())) == (precision == "normal")
