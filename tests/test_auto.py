"""precision="auto": what stays in f16, what does not and why, on inputs to try."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import NodeProto, TensorProto, helper, numpy_helper

import jitcl
from jitcl.accuracy import auto
from jitcl.accuracy.calibration import MOST
from jitcl.cli.main import cli
from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.runtime.inputs import digest_of
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


def test_shares_are_of_the_run_s_work():
    """A plan for many shapes has room for larger ones, where other layers may be most of it."""
    rng = np.random.default_rng(0)
    w, v = (numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
            for n, s in (("w", (256, 8)), ("v", (256, 256))))
    x, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in (("x", ["rows", 256]), ("z", [1, 256])))
    y, t = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in (("y", ["rows", 8]), ("t", [1, 256])))
    model = helper.make_model(helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "many"),
         helper.make_node("MatMul", ["z", "v"], ["u"], "one"),
         helper.make_node("MatMul", ["u", "v"], ["t"], "last")], "shares", [x, z], [y, t], [w, v]),
        opset_imports=[helper.make_opsetid("", 21)])
    feeds = {"x": rng.standard_normal((1, 256)).astype(np.float32),
             "z": rng.standard_normal((1, 256)).astype(np.float32)}
    found = jitcl.compile(model, device="cpu", precision={"many": "high", "*": "normal"})
    found.run({**feeds, "x": np.ones((300, 256), np.float32)})
    found.run(feeds)
    assert found.report().sizes[0][2] >= 300                # has room
    shares = [share for share, _ in found.report().kept().values()]
    assert sum(shares) + auto._share(found, {}) == pytest.approx(1) and max(shares) < 0.1


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
    ({"calibrate": []}, InputError, "calibrate: got a list that gives nothing"),
    ({"calibrate": iter(())}, InputError, "that gives nothing (an iterator gives what it has once"),
    ({"calibrate": [np.zeros(3)]}, InputError, "calibrate: element 0 of a list is a ndarray, want"),
    ({"calibrate": [{"pixels": image().fine}, {"pixels": np.zeros(3, "f4")}]}, InputError,
     "calibrate: element 1: input 'pixels' f32[1,3,32,32]: got 1 axes"),
    ({"calibrate": {}}, InputError, "calibrate: input 'pixels' f32[1,3,32,32] was not fed"),
    ({"calibrate": lambda: None}, OptionError, "calibrate: too many positional arguments; wanted"),
    ({"tolerance": lambda: True}, OptionError, "tolerance: too many positional arguments; wanted"),
    ({"tolerance": lambda got, want: None}, OptionError,
     "tolerance: <lambda> gave None, wanted True or False"),
    ({"tolerance": lambda got, want: 0.3}, OptionError, "gave 0.3, wanted True or False"),
    ({"tolerance": lambda got, want: got["y"] == want["y"]}, OptionError, "gave a ndarray, wanted"),
    ({"calibrate": "nowhere"}, InputError, "calibrate: 'nowhere' is no folder"),
    ({"calibrate": {"pixel": np.zeros(3)}}, InputError, "pixel"),
    ({"precision": "low", "tolerance": 1e-3}, OptionError, "are of precision='auto'"),
])
def test_wrong_arguments(options, kind, text):
    with pytest.raises(kind) as caught:
        jitcl.compile(model_of(image()), device="reference", **{"precision": "auto", **options})
    assert text in str(caught.value)


def damaged(folder: Path, name: str) -> None:
    """A file that is not what its name says, or does not fit the model."""
    file, pixels = folder / name, image().fine
    if name.startswith("fine"):
        np.savez(file, pixels=pixels)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.write_bytes(data)
    elif name.startswith("other"):
        np.savez(file, pixel=pixels)
    else:
        file.write_bytes(b"PK no archive" if name.endswith("z") else b"")


@pytest.mark.parametrize("name, text", [
    ("no.npz", "no.npz' holds no arrays as numpy.save writes them"),
    ("no.npy", "no.npy' holds no arrays as numpy.save writes them"),
    ("fine.npz", "fine.npz' holds arrays that cannot be read: Bad CRC-32"),
    ("other.npz", "other.npz': there is no input 'pixel'"),
    ("text.txt", "' has no .npz or .npy file\n  An .npz holds all inputs by name, an .npy the on"),
])
@pytest.mark.parametrize("options", [{"precision": "auto"}, {"memory": {"bits": 8}}])
def test_a_file_of_a_folder_that_is_wrong_is_named(name, text, options, tmp_path):
    damaged(tmp_path, name)
    with pytest.raises(InputError) as caught:
        jitcl.compile(model_of(image()), device="reference", calibrate=tmp_path, **options)
    assert text in str(caught.value)


def test_one_array_is_not_the_first_of_two_inputs(tmp_path):
    np.save(tmp_path / "x.npy", uniform(64, 64))
    case = Case([node("Add", "x z", "y")], uniform(64, 64), "",
                more={"z": np.zeros((64, 64), "i8")})
    with pytest.raises(InputError, match="x.npy' is one array, and the model has 2 inputs"):
        jitcl.compile(model_of(case), device="reference", precision="auto", calibrate=tmp_path)


def products(*last) -> Case:
    """Three products, and what is behind them."""
    return Case([node("MatMul", "x w", "a"), node("MatMul", "a w", "b"),
                 node("MatMul", "b w", "c"), *last], normal(64, 64, seed=3), "",
                {"w": normal(64, 64, seed=1, scale=0.1)})


def test_a_folder_may_hold_much_else_in_any_spelling(tmp_path):
    for k in range(MOST + 6):
        (tmp_path / f"a{k}.jpg").touch()
    case = products(node("Relu", "c", "y"))
    np.savez(tmp_path / "x.npz", **feeds_of(case))
    (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    found = jitcl.compile(model_of(case), device="reference", precision="auto", calibrate=tmp_path)
    assert found.report().chosen.inputs == 1


def test_an_iterator_may_fill_the_same_array_again():
    case, seen = products(node("Relu", "c", "y")), []

    def stream():
        buffer = np.empty_like(case.x)
        for k in (1, 2, 3):
            buffer[...] = case.x * k
            yield {"x": buffer}

    def judge(got, want):
        seen.append(float(want["y"].max()))
        want["y"].sort()                                # its own
        return True

    found = jitcl.compile(model_of(case), device="reference", precision="auto", calibrate=stream(),
                          tolerance=judge)
    assert len({round(x, 3) for x in seen}) == 3 and 0 < found.report().chosen.error < 1e-2


def test_a_use_may_write_to_what_it_gets():
    """What was computed is compared, not what the function made of it."""
    case = products(node("Relu", "c", "y"))
    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          calibrate=lambda run: run(feeds_of(case))["y"].fill(0))
    assert 1e-5 < found.report().chosen.error < 1e-2


def split(model):
    """With a sequence in place of its output."""
    kept = model.graph.output[0]
    model.graph.node[-1].output[0] = "whole"
    model.graph.initializer.append(numpy_helper.from_array(np.array(32), "rows"))
    model.graph.node.append(node("SplitToSequence", "whole rows", "y", axis=0))
    kept.CopyFrom(helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None))
    return model


def test_items_of_sequences_are_held_to_the_tolerance():
    case = products(node("Relu", "c", "y"))
    model, feeds = split(model_of(case)), feeds_of(case)
    want = jitcl.compile(model, device="cpu").run(feeds)["y"]
    errors = {}
    for tolerance in (1e-2, 1e-6):
        found = jitcl.compile(model, device="cpu", precision="auto", calibrate=feeds,
                              tolerance=tolerance)
        errors[tolerance] = max(map(error, found.run(feeds)["y"], want))
        assert errors[tolerance] == pytest.approx(found.report().chosen.error, abs=1e-7)
    assert 1e-6 < errors[1e-2] < 1e-2 and errors[1e-6] <= 1e-6


def test_sequences_of_other_lengths_are_fed():
    """Their elements are part of the key, however many there are."""
    model = split(model_of(products(node("Relu", "c", "y"))))
    given = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    model.graph.input[0].CopyFrom(given)
    model.graph.node.insert(0, node("ConcatFromSequence", "x", "rows of x", axis=0))
    model.graph.node[1].input[0] = "rows of x"
    model.graph.node[0].input[0] = "x"
    one, two = normal(48, 64), normal(16, 64, seed=5)
    keys = set()
    for feeds in ({"x": [one, two]}, {"x": [one, two * 2]}, {"x": [np.vstack([one, two])]}):
        jitcl.compile(model, device="cpu", precision="auto", calibrate=feeds)
        keys.add(digest_of([feeds]))
    assert len(keys) == 3
    with pytest.raises(UnsupportedError, match="calibrate: input 'x' of model net is no tensor"):
        jitcl.compile(model, device="cpu", memory={"bits": 8}, calibrate={"x": [one, two]})


def test_inputs_that_prove_nothing_are_told_of():
    case = products(node("Relu", "c", "y"))
    nothing = {"x": np.full_like(case.x, np.nan)}
    found = jitcl.compile(model_of(case), device="reference", precision="auto",
                          calibrate=[nothing, feeds_of(case)])
    assert ("1 of 2 runs prove nothing: in f32, too, all that they give is infinite, NaN, zero or "
            "empty") in str(found.report())


@pytest.mark.slow
def test_more_time_and_another_tolerance_are_tried_anew(monkeypatch):
    """What was found in too little time is kept for as little; a tolerance is one to all digits."""
    case, searched = products(node("Relu", "c", "y")), []
    run = auto._Search.run
    monkeypatch.setattr(auto._Search, "run", lambda self: searched.append(1) or run(self))

    def tried(**options):
        found = jitcl.compile(model_of(case), device="reference", precision="auto",
                              calibrate=feeds_of(case), **options)
        return len(searched), "no time" in str(found.report())

    assert tried(tolerance=1e-5, budget=0) == tried(tolerance=1e-5, budget=0) == (1, True)
    assert tried(tolerance=1e-5) == tried(tolerance=1e-5) == (2, False)
    assert tried(tolerance=1e-5, budget=0) == (2, False)
    assert tried(tolerance=1.00001e-5) == (3, False)
    monkeypatch.setenv("JITCL_TEMPLATES", "0")
    assert tried(tolerance=1e-5) == (4, False)


def test_the_plan_that_is_tried_is_the_one_for_the_shapes():
    """A plan for any number of rows stores more as f16 than the one for few does."""
    model = model_of(Case([node("MatMul", "x w", "a"), node("Add", "a z", "b"),
                           node("MatMul", "b w", "y")], normal(64, 64), "",
                          {"w": normal(64, 64, scale=0.1), "z": normal(1, 64)}))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    found = jitcl.compile(model, device="cpu", precision="auto", shapes={"x": (3, 64)})
    said = str(found.report())
    assert not found.plan.stores_f16 and "0% of the FLOPs in f16, tensors are stored as f32" in said


@pytest.mark.parametrize("name", ["before_a_norm", "fourier"])
def test_an_f16_file_beyond_any_set_of_layers_is_computed_in_f32(name):
    """Not as it says itself, which f16's range spoils."""
    case = CASES[name]()
    feeds, model = feeds_of(case), halved(model_of(case))
    want = jitcl.compile(model_of(case), device="reference").run(feeds)["y"]
    found = jitcl.compile(model, device="reference", precision="auto", calibrate=feeds, tolerance=0)
    assert error(found.run(feeds)["y"], want) < 1e-2
    said = found.report().precision_line()
    assert ("within 0: off by at most 0 for 1 input, 0% of the FLOPs in f16, tensors are stored "
            "as f32, computed in f32\n") in said
    assert "all layers in more: no set of layers was found that holds the tolerance" in said


def test_what_was_found_is_kept_under_any_names():
    """Text would lose their ends, and what has a meaning there."""
    case = products(node("Relu", "c", "y"))
    names = [" a ", "b;c=low", "[c]", "\ty"]
    for made, name in zip(case.nodes, names):
        made.name = name
    found = [jitcl.compile(model_of(case), device="reference", precision="auto",
                           calibrate=feeds_of(case), tolerance=1e-5).options for _ in range(2)]
    assert found[0] == found[1] and {n for n, _ in found[0].layers} <= {*names}
    assert {" a ", "b;c=low"} <= dict(found[0].layers).keys()


def test_a_body_beside_kernels_of_its_node_is_one_layer():
    """What a Scan stacks has its name: with that in "high", nothing of its body is left to try."""
    body = helper.make_graph(
        [node("MatMul", "s w", "p", "step/product"), node("Tanh", "p", "t", "step/tanh"),
         node("Add", "t e", "o", "step/add"), node("Identity", "o", "row", "step/row")], "step",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in "se"],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in ("o", "row")])
    scan = helper.make_node("Scan", ["b", "rows"], ["last", "y"], "scan", body=body,
                            num_scan_inputs=1)
    case = Case([node("MatMul", "x w", "a", "first"), node("MatMul", "a w", "b", "second"), scan],
                normal(64, 64), "", {"w": normal(64, 64, seed=1, scale=0.125)},
                {"rows": normal(3, 64, 64, seed=2)})
    model, feeds = model_of(case), feeds_of(case)
    want = jitcl.compile(model, device="reference").run(feeds)["y"]
    found = jitcl.compile(model, device="reference", precision="auto", calibrate=feeds,
                          tolerance=1e-4)
    assert error(found.run(feeds)["y"], want) < 1e-4
    reasons = dict(found.report().chosen.reasons)
    assert "scan" in reasons and not any(n.startswith("step/") for n in reasons)
    assert all(not why.endswith("by 0") for why in reasons.values())


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


def test_the_command_says_what_it_was_tried_on(tmp_path):
    """Numbers that --random made are random ones; weights in few bits are rounded for a folder."""
    def ran(*options):
        done = CliRunner().invoke(cli, ["run", str(tmp_path / "net.onnx"), "-d", "cpu", "-o",
                                         str(tmp_path / "y.npy"), *options])
        return " ".join(done.output.split()), done.exit_code

    case = products(node("Relu", "c", "y"))
    (tmp_path / "net.onnx").write_bytes(model_of(case).SerializeToString())
    (tmp_path / "tried").mkdir()
    np.save(tmp_path / "x.npy", case.x)
    np.save(tmp_path / "tried" / "x.npy", case.x)
    said, _ = ran("--random", "--precision", "auto")
    assert "for 1 random input, " in said and "tried on random inputs" in said
    said, _ = ran("-i", str(tmp_path / "x.npy"), "--precision", "auto")
    assert "for 1 input, " in said and "random" not in said

    want = jitcl.compile(model_of(case), device="cpu", memory="bits=4", calibrate=feeds_of(case))
    for precision in ("high", "auto"):
        said, status = ran("-i", str(tmp_path / "x.npy"), "--memory", "bits=4", "--precision",
                           precision, "--calibrate", str(tmp_path / "tried"))
        assert status == 0
        assert error(np.load(tmp_path / "y.npy"), want.run(feeds_of(case))["y"]) < 1e-2
    said, status = ran("-i", str(tmp_path / "x.npy"), "--memory", "bits=4", "--budget", "3")
    assert status == 1 and "--calibrate of --memory 'bits=4', too" in said


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
