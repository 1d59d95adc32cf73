"""memory={"bits": 4, "tolerance": 0.05}: which weights take 8 bits or stay, on inputs to try."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.accuracy import bits
from jitcl.accuracy.auto import Trial
from jitcl.accuracy.bits import Layer
from jitcl.cli.main import cli
from jitcl.devices.progress import Tally
from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.passes.options import Options
from jitcl.passes.packing import Packing, tolerated
from jitcl.runtime.inputs import random_feed
from tests.test_pack_weights import IDS12, net, normal

LAYERS, SIZE = 8, 128
TRIED = [{"x": normal(16, SIZE, seed=s)} for s in (1, 2)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """What was found is kept in the cache."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path / "cache"))


def planted(outlier: float = 12.0, bad: int = 3) -> onnx.ModelProto:
    """Layers, all alike but for one: it has weights in each block that are larger than the others,
    and multiplied with zeros, which steps of codes of 4 bits are as long as."""
    nodes, weights, sums = [], [], []
    keep = np.ones(SIZE, np.float32)
    keep[::32] = 0
    for k in range(LAYERS):
        w = normal(SIZE, SIZE, seed=k + 10) / np.float32(np.sqrt(SIZE))
        if k == bad:
            w[::32] = outlier * np.abs(w).max()
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        nodes.append(helper.make_node("MatMul", ["kept", f"w{k}"], [f"m{k}"], f"/layer{k}"))
        sums.append(f"m{k}")
    nodes.insert(0, helper.make_node("Mul", ["x", "keep"], ["kept"], "/keep"))
    nodes.append(helper.make_node("Concat", sums, ["y"], "/join", axis=1))
    return helper.make_model(helper.make_graph(
        nodes, "planted", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [*weights, numpy_helper.from_array(keep, "keep")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def off(model: Any, made: jitcl.Model, tried=TRIED, name: str = "y") -> float:
    """The largest error of an output, in units of its largest element."""
    with jitcl.compile(model, device="cpu") as exact:
        wanted = [exact.run(feeds)[name] for feeds in tried]
    return max(float(np.abs(made.run(feeds)[name] - want).max() / np.abs(want).max())
               for feeds, want in zip(tried, wanted))


def held_bytes(made: jitcl.Model) -> int:
    return sum(c.nbytes for c in made.plan.constants.values())


def never(*_: Any) -> None:
    pytest.fail("it was tried again")


# ---- what is chosen

class Summed:
    """In place of a model: outputs are off by the sum of what each layer does in its bits."""

    def __init__(self, effects: dict[str, dict[int, float]]) -> None:
        self.effects = effects
        self.layers = [Layer((n,), (n,), min(found), {4: 500, 8: 1000, 0: 4000})
                       for n, found in effects.items()]

    def run(self, k: int, said) -> dict[str, Any]:
        return {"y": np.float64(1 + sum(self.effects[layer.names[0]].get(b, 0.0)
                                        for layer, b in (said or {}).items()))}


def choice(effects, tolerance: float, budget: float = 300) -> tuple[dict[str, int], bits._Search]:
    """Bits of layers that got others than they had."""
    search = bits._Search(None, Packing(4), Trial(tolerance, ({},), False, budget), False, None,
                          Tally.of(None), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_checked", lambda candidates: candidates[0])
        found = search._found(Summed(effects))
    return {layer.names[0]: b for layer, b in found.items() if b != layer.bits}, search


SMALL = {4: 0.004, 8: 0.0002}


@pytest.mark.parametrize(("effects", "tolerance", "wanted"), [
    ({"a": SMALL, "b": SMALL}, 0.01, {}),
    ({"a": SMALL, "b": {4: 0.3, 8: 0.002}, "c": SMALL}, 0.015, {"b": 8}),
    ({"a": SMALL, "b": {4: 0.3, 8: 0.2}, "c": SMALL}, 0.015, {"b": 0}),
    ({"a": SMALL, "b": {4: 0.3, 8: 0.2}, "c": {4: 0.1, 8: 0.001}}, 0.015, {"b": 0, "c": 8}),
    ({"a": {4: 0.3, 8: 0.02}, "b": {4: 0.2, 8: 0.001}}, 0.005, {"a": 0, "b": 8}),
    ({"a": {8: 0.3}, "b": {8: 0.001}}, 0.005, {"a": 0}),
    ({"a": SMALL, "b": SMALL}, 0.0, {"a": 0, "b": 0}),
    # 8 bits of all would do: none stays, though that of the first does more for its bytes
    ({"a": {4: 0.4, 8: 0.38}, "b": {4: 0.03, 8: 0.0}}, 0.39, {"a": 8, "b": 8}),
    # 8 bits of the first would do, and of the two others
    ({"a": {4: 0.010, 8: 0.0}, "b": {4: 0.006, 8: 0.0}, "c": {4: 0.005, 8: 0.0}}, 0.011, {"a": 8}),
])
def test_the_fewest_bytes_that_hold_a_tolerance(effects, tolerance, wanted):
    found, _ = choice(effects, tolerance)
    assert found == wanted


def test_what_needs_not_be_raised_comes_back():
    """The first does more for its bytes, and goes up first; the other alone is enough."""
    found, _ = choice({"a": {4: 0.02, 8: 0.0}, "b": {4: 0.1, 8: 0.1}}, 0.05)
    assert found == {"b": 0}


def test_without_time_all_stay():
    found, search = choice({"a": SMALL, "b": {4: 0.3, 8: 0.002}}, 0.015, budget=0)
    assert found == {"a": 0, "b": 0} and search.short
    assert choice({"a": SMALL, "b": SMALL}, 0.01, budget=0)[0] == {}


# ---- models

@pytest.mark.parametrize("calibrate", [None, TRIED], ids=["random", "given"])
def test_the_layer_that_hurts_takes_more(calibrate):
    """One of eight; the others keep 4 bits, and the next process reads which."""
    model, options = planted(), {"device": "cpu", "calibrate": calibrate}
    few, eight = (jitcl.compile(model, memory={"bits": b}, **options) for b in (4, 8))
    memory = {"bits": 4, "tolerance": 0.2}
    found = jitcl.compile(model, memory=memory, **options)
    tried = calibrate or [{"x": random_feed(found.inputs[0], (16, SIZE), s)} for s in (0, 1)]
    assert off(model, few, tried) > 0.3
    assert off(model, found, tried) == pytest.approx(found.report().held.error) and (
        0.02 < found.report().held.error <= 0.2)
    assert found.options.weights.wide == ("/layer3",) and not found.options.weights.skip
    assert held_bytes(found) < 0.65 * held_bytes(eight) and held_bytes(few) < held_bytes(found)
    said = str(found.report())
    assert "weights: 4 bits, within 0.2: off by at most 0." in said
    assert "'/layer3' in 8 bits: in 4 bits its weights alone move outputs by 0." in said
    assert ("2 random inputs" in said) == ("tried on random inputs" in said) == (calibrate is None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits._Search, "run", never)
        again = jitcl.compile(model, memory=memory, **options)
    assert again.report().held == found.report().held
    assert (again.run(TRIED[0])["y"] == found.run(TRIED[0])["y"]).all()
    same = jitcl.compile(model, memory={"bits": 4, "wide": ["/layer3"]}, **options)
    assert (same.run(TRIED[0])["y"] == found.run(TRIED[0])["y"]).all()


def test_what_hurts_in_eight_bits_stays():
    found = jitcl.compile(planted(400.0), device="cpu", calibrate=TRIED,
                          memory="bits=4;block=32;tolerance=0.2")
    assert found.options.weights.skip == ("/layer3",) and not found.options.weights.wide
    assert "'/layer3' stays: in 8 bits its weights alone move outputs by 1" in str(found.report())
    assert off(planted(400.0), found) <= 0.2
    wide = jitcl.compile(planted(400.0), device="cpu", calibrate=TRIED,
                         memory={"bits": 8, "tolerance": 0.2})
    assert wide.options.weights.skip == ("/layer3",)
    assert wide.report().held.bits == 8 and 0.3 < wide.report().held.share < 0.4


def test_a_judge_of_ones_own():
    """Is given outputs and those of weights as they are; nothing is kept of what it said."""
    seen = []

    def close(got, want):
        seen.append(set(got) | set(want))
        return float(np.abs(got["y"] - want["y"]).max()) < 0.2 * np.abs(want["y"]).max()

    found = jitcl.compile(planted(), device="cpu", calibrate=TRIED,
                          memory={"bits": 4, "tolerance": close})
    assert found.options.weights.wide == ("/layer3",) and seen and all(s == {"y"} for s in seen)
    assert "close" in found.report().held.tolerance
    seen.clear()
    jitcl.compile(planted(), device="cpu", calibrate=TRIED, memory={"bits": 4, "tolerance": close})
    assert seen


def test_where_nothing_holds_it_is_said(caplog, tmp_path):
    never_fine = {"bits": 4, "tolerance": lambda got, want: False}
    found = jitcl.compile(planted(), device="cpu", calibrate=TRIED, memory=never_fine)
    assert off(planted(), found) == 0 and found.report().held.share == 1
    assert "all layers stay: no bits hold the tolerance, nor do weights as they are" in str(
        found.report())
    assert "all stay as they are" in caplog.text
    with pytest.raises(InputError, match="no weights whose bits hold the tolerance"):
        jitcl.quantize(planted(), tmp_path / "q.onnx", **never_fine, calibrate=TRIED)
    assert not (tmp_path / "q.onnx").exists()


def test_both_searches_at_once():
    """Weights first, on the same inputs, then precisions of what these leave."""
    found = jitcl.compile(planted(), device="cpu", calibrate=TRIED, precision="auto",
                          memory={"bits": 4, "tolerance": 0.2}, budget=60)
    report = found.report()
    assert found.options.weights.wide == ("/layer3",)
    assert report.chosen is not None and report.chosen.error <= 1e-2
    assert off(planted(), found) <= 0.2 + 1e-2


def test_any_layer_on_any_device():
    """Look-ups, products, convolutions; the weights of all devices are the same."""
    found = {}
    for device in ("cpu", "reference"):
        made = jitcl.compile(net(), device=device, calibrate=IDS12,
                             memory={"bits": 4, "tolerance": 0.03, "skip": ["/last"]})
        assert off(net(), made, [IDS12]) == pytest.approx(made.report().held.error, rel=1e-3)
        assert made.report().held.error <= 0.03
        found[device] = made.options.weights
    assert found["cpu"] == found["reference"] and found["cpu"].skip[0] == "/last"
    assert {n for n, _ in found["cpu"].held.reasons} <= {"/embed", "/first", "/second", "/conv"}


def test_one_table_of_two_readers_goes_up_as_one():
    """Its codes may be one constant."""
    table = 0.1 * normal(64, 64)
    table[:, ::32] *= 60
    made = helper.make_model(helper.make_graph(
        [helper.make_node("Gather", ["t", "ids"], ["e"], "embed"),
         helper.make_node("Tanh", ["e"], ["h"], "act"),
         helper.make_node("Gemm", ["h", "t"], ["y"], "head", transB=1)], "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "t")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = jitcl.compile(made, device="cpu", calibrate={"ids": np.arange(5) * 7},
                          memory={"bits": 4, "block": 32, "tolerance": 0.05})
    assert found.options.weights.wide == ("embed", "head")


def test_shapes_that_are_open():
    model = planted()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    memory = {"bits": 4, "tolerance": 0.2}
    with pytest.raises(InputError, match="shapes of inputs are open.*\n  Give inputs to try"):
        jitcl.compile(model, device="cpu", memory=memory)
    tried = [{"x": normal(rows, SIZE, seed=rows)} for rows in (3, 16)]
    found = jitcl.compile(model, device="cpu", memory=memory, calibrate=tried)
    assert found.options.weights.wide == ("/layer3",) and found.report().held.inputs == 2


# ---- files and commands

@pytest.mark.parametrize("calibrate", [None, TRIED], ids=["random", "given"])
def test_files(calibrate, tmp_path):
    found = jitcl.quantize(planted(), tmp_path / "q.onnx", bits=4, tolerance=0.2,
                           calibrate=calibrate)
    assert [n for n, _ in found.held.reasons] == ["/layer3"] and len(found.weights) == LAYERS
    kinds = [t.data_type for t in onnx.load(found.path).graph.initializer]
    assert (kinds.count(TensorProto.INT8), kinds.count(TensorProto.INT4)) == (1, LAYERS - 1)
    with jitcl.compile(found.path, device="cpu") as made:
        tried = calibrate or [{"x": random_feed(made.inputs[0], (16, SIZE), s)} for s in (0, 1)]
        assert off(planted(), made, tried) == pytest.approx(found.held.error, rel=1e-3)


def test_the_commands(tmp_path):
    onnx.save(planted(), tmp_path / "m.onnx")
    (tmp_path / "tried").mkdir()
    for k, feeds in enumerate(TRIED):
        np.savez(tmp_path / "tried" / f"{k}.npz", **feeds)
    np.save(tmp_path / "x.npy", TRIED[0]["x"])

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    path, folder = str(tmp_path / "m.onnx"), str(tmp_path / "tried")
    run = ["run", path, "-d", "cpu", "--memory", "bits=4;tolerance=0.2"]
    wanted = "'/layer3' in 8 bits: in 4 bits its weights alone move outputs by"
    assert wanted in said(*run, "-i", str(tmp_path / "x.npy"), "--calibrate", folder)
    mine = said(*run, "-i", str(tmp_path / "x.npy"), "--budget", "60")
    assert wanted in mine and "for 1 input," in mine and "random" not in mine
    assert "tried on random inputs" in said(*run, "--random")
    assert '"reasons": [ [ "/layer3",' in said(*run, "--random", "--json")
    assert wanted in said("quantize", path, "-o", str(tmp_path / "q.onnx"), "--bits", "4",
                          "--tolerance", "0.2", "--calibrate", folder)


# ---- what is wrong

def test_a_tolerance_as_text_says_the_same():
    assert tolerated("bits=4;tolerance=0.05;skip=/a") == ({"bits": 4, "skip": ["/a"]}, 0.05)
    assert tolerated({"bits": 4, "tolerance": np.float32(0.5)}) == ({"bits": 4}, 0.5)
    for given in ("low", "bits=4", {"bits": 4}, Packing(4)):
        assert tolerated(given) == (given, None)


@pytest.mark.parametrize(("given", "wanted"), [
    ({"bits": 4, "tolerance": -1}, "memory: tolerance is -1: use a number from 0 up"),
    ({"bits": 4, "tolerance": True}, "memory: tolerance is True: use a number from 0 up"),
    ({"bits": 4, "tolerance": float("nan")}, "memory: tolerance is nan: use a number from 0 up"),
    ("bits=4;tolerance=tight", "memory: tolerance is 'tight': use a number from 0 up"),
    ("bits=4;tolerance=1;tolerance=2", "says twice what 'tolerance' is"),
    ({"bits": 5, "tolerance": 0.1}, "memory: bits is 5: use one of 4, 8"),
    ({"bits": 4, "tolerance": 0.1, "skip": ["/layr1"]}, "The nearest names are: '/layer1'"),
    ({"bits": 4, "tolerance": lambda: True}, "wanted a number, or a function of (outputs,"),
    ({"bits": 4, "tolerance": lambda got, want: 0.1}, "gave 0.1, wanted True or False"),
])
def test_what_is_wrong_is_said(given, wanted):
    with pytest.raises(OptionError) as error:
        jitcl.compile(planted(), device="cpu", memory=given)
    assert wanted in str(error.value)


def test_where_nothing_is_looked_for_a_tolerance_is_refused():
    wanted = "looked for by jitcl.compile, jitcl.quantize and `jitcl run` alone"
    memory = {"bits": 4, "tolerance": 0.05}
    with pytest.raises(OptionError, match=wanted):
        Options("high", memory)
    with pytest.raises(OptionError, match=wanted):
        jitcl.lm.load("nowhere", memory=memory)
    result = CliRunner().invoke(cli, ["check", "m.onnx", "--memory", "bits=4;tolerance=0.05"])
    assert result.exit_code == 2 and "looked for by" in result.output


@pytest.mark.parametrize(("options", "kind", "wanted"), [
    ({"tolerance": 0.1}, OptionError, "where weights' own tolerance stands"),
    ({"calibrate": lambda run: None}, OptionError, "calibrate: got a function, and memory has"),
    ({"budget": -1}, OptionError, "budget: got -1, wanted a number from 0 up"),
    ({"calibrate": {"z": 1}}, InputError, "calibrate: "),
])
def test_options_that_do_not_fit(options, kind, wanted):
    with pytest.raises(kind, match=wanted):
        jitcl.compile(planted(), device="cpu", memory={"bits": 4, "tolerance": 0.1}, **options)
    with pytest.raises(OptionError, match="are of a tolerance"):
        jitcl.quantize(planted(), "q.onnx", budget=3)


def test_models_of_which_it_is_not_said():
    memory = {"bits": 4, "tolerance": 0.1}
    text = jitcl.parse("graph @g(%x: f32[4]) {\n  %y = neg(%x)\n  return %y\n}")
    with pytest.raises(UnsupportedError, match="is a text graph, which keeps no names"):
        jitcl.compile(text, device="cpu", memory=memory)
    one = helper.make_model(helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(InputError, match="no weights that would be packed"):
        jitcl.compile(one, device="cpu", memory=memory)


@pytest.mark.parametrize("rows", [None, 16], ids=["any", "fixed"])
@pytest.mark.parametrize("memory", [{"bits": 4, "tolerance": 0.2},
                                    {"bits": 4, "skip": ["/layer3"]}],
                         ids=["found", "by hand"])
def test_weights_into_which_a_scale_was_folded_have_their_own_name(memory, rows):
    """Not that of the scale, which it is for fixed shapes alone."""
    model = planted(400.0)
    graph = model.graph
    if rows is None:
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    for node in graph.node:
        if node.name == "/layer3":
            node.output[0] = "plain"
    graph.initializer.extend([numpy_helper.from_array(np.float32(2), "two"),
                              numpy_helper.from_array(np.array([-1, 2, 64]), "views"),
                              numpy_helper.from_array(np.array([-1, 128]), "back")])
    behind = [helper.make_node("Reshape", ["plain", "views"], ["view"], "/view"),
              helper.make_node("Mul", ["view", "two"], ["scaled"], "/scale"),
              helper.make_node("Reshape", ["scaled", "back"], ["m3"], "/back")]
    last = graph.node.pop()
    graph.node.extend([*behind, last])
    found = jitcl.compile(model, device="cpu", memory=memory,
                          calibrate=TRIED if "tolerance" in memory else None)
    assert off(model, found) <= 0.2
    if found.report().held is not None:
        assert [n for n, _ in found.report().held.reasons] == ["/layer3"]


def test_what_was_not_tried_stays():
    """A look-up of constants for the shapes that were tried, which a plan for many shapes packs."""
    table = 0.1 * normal(64, 64)
    table[:, ::32] *= 400
    made = helper.make_model(helper.make_graph(
        [helper.make_node("Shape", ["x"], ["rows"], "shape", end=1),
         helper.make_node("Squeeze", ["rows"], ["count"], "squeeze"),
         helper.make_node("Range", ["zero", "count", "one"], ["places"], "range"),
         helper.make_node("Gather", ["table", "places"], ["positions"], "positions"),
         helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
         helper.make_node("Mul", ["positions", "keep"], ["near"], "near"),
         helper.make_node("Add", ["product", "near"], ["y"], "sum")], "positioned",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "table"),
         numpy_helper.from_array(0.1 * normal(64, 64, seed=1), "w"),
         numpy_helper.from_array((np.arange(64) % 32 > 0).astype(np.float32), "keep"),
         numpy_helper.from_array(np.int64(0), "zero"),
         numpy_helper.from_array(np.int64(1), "one")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    tried = [{"x": normal(5, 64)}]
    found = jitcl.compile(made, device="cpu", memory={"bits": 4, "block": 32, "tolerance": 0.2},
                          calibrate=tried)
    assert "positions" in found.options.weights.skip and "product" not in (
        *found.options.weights.skip, *found.options.weights.wide)
    assert found.report().held.reasons == () and off(made, found, tried) <= 0.2
    assert off(made, found, [{"x": normal(7, 64)}]) <= 0.3
