"""`jitcl.check`: measures, and planted faults that it must name."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.accuracy.engines import Configuration
from jitcl.accuracy.measures import bit_equal, difference
from jitcl.cli.main import cli
from jitcl.errors import InputError, OptionError, UnsupportedError
from tests.browser import browser
from tests.devices import present
from tests.drivers import posing
from tests.drivers.posing import POSES, run_python
from tests.lacking import unless

F = TensorProto.FLOAT
LAYERS = 6
WIDTH = 8


def model_of(nodes, constants, rows=3):
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", F, [rows, WIDTH])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def chain(seed, activations=("Relu", "Tanh", "Sigmoid", "Abs"), changes=None, rows=3):
    """Products and activations in turn, of random weights; `changes`: number of a layer -> what
    becomes of its weights, or its activation.
    """
    rng = np.random.default_rng(seed)
    nodes, constants, value = [], {}, "x"
    for k in range(LAYERS):
        weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2
        op = str(rng.choice(activations))
        change = (changes or {}).get(k)
        if callable(change):
            weights = change(weights)
        elif change is not None:
            op = change
        constants[f"w{k}"] = weights
        out = "y" if k == LAYERS - 1 else f"out{k}"
        nodes += [helper.make_node("MatMul", [value, f"w{k}"], [f"sum{k}"], f"product{k}"),
                  helper.make_node(op, [f"sum{k}"], [out], f"act{k}")]
        value = out
    return model_of(nodes, constants, rows)


def feeds(seed=0, rows=3):
    return {"x": np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)}


# ---- planted faults


@pytest.mark.sampled(quick=5, slow=6)
@pytest.mark.parametrize("seed", range(30))
def test_perturbed_weights_are_named(seed):
    """A tenth of the largest weight on one of them: the product is named, not its kernel."""
    rng = np.random.default_rng([seed, 1])
    place = int(rng.integers(LAYERS))
    row, column = rng.integers(WIDTH, size=2)

    def perturb(weights):
        weights = weights.copy()
        weights[row, column] += 0.1 * np.abs(weights).max()
        return weights

    rectified = ("LeakyRelu", "Tanh", "Elu")            # nothing is hidden by zeros
    found = jitcl.check(chain(seed, rectified, {place: perturb}), feeds(seed), device="cpu",
                        against_model=chain(seed, rectified), tolerance=1e-5)
    assert found.first.node == found.most.node == f"product{place}"
    assert not found.ok
    assert f"most is added by 'product{place}' (MatMul)" in str(found)
    others = [r for r in found.layers if not r.node.endswith(str(place))]
    assert len(others) >= LAYERS - 1 and all(r.own.relative < 1e-5 for r in others)


def quantised(seed, wrong=None, of="act"):
    """Products of quantised weights and activations, dequantised; the scale of one is wrong."""
    rng = np.random.default_rng(seed)
    nodes, constants, value = [], {"zero": np.int8(0)}, "x"
    for k in range(LAYERS):
        weights = rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        factors = {which: 1.3 if (k, of) == (wrong, which) else 1.0 for which in ("act", "w")}
        constants |= {f"w{k}": weights, f"ws{k}": np.float32(0.004 * factors["w"]),
                      f"s{k}": np.float32(0.03), f"sd{k}": np.float32(0.03 * factors["act"])}
        out = "y" if k == LAYERS - 1 else f"out{k}"
        nodes += [
            helper.make_node("QuantizeLinear", [value, f"s{k}", "zero"], [f"q{k}"], f"quant{k}"),
            helper.make_node("DequantizeLinear", [f"q{k}", f"sd{k}", "zero"], [f"d{k}"], f"act{k}"),
            helper.make_node("DequantizeLinear", [f"w{k}", f"ws{k}", "zero"], [f"wd{k}"], f"w{k}"),
            helper.make_node("MatMul", [f"d{k}", f"wd{k}"], [out], f"product{k}")]
        value = out
    return model_of(nodes, constants)


@pytest.mark.sampled(quick=5, slow=6)
@pytest.mark.parametrize("seed", range(30))
def test_a_wrong_scale_is_named(seed):
    of = ("act", "w")[seed % 2]
    place = int(np.random.default_rng([seed, 2]).integers(LAYERS))
    found = jitcl.check(quantised(seed, place, of), feeds(seed), device="cpu", tolerance=1e-2,
                        against_model=quantised(seed))
    assert found.most.node == found.first.node == f"{of}{place}"
    assert found.most.own.relative == pytest.approx(0.3, rel=0.01)


MISCOMPILED = """
import json, logging
import numpy as np
import jitcl
from tests.test_check import chain, feeds

found = []
for seed, place in PLACES:
    model = chain(seed, ("Relu", "Abs", "LeakyRelu"), {place: "Exp"})
    check = jitcl.check(model, feeds(seed), device="opencl:Mali")
    found.append([check.first.node, check.most.node])
print(json.dumps(found))
"""


@pytest.mark.slow
@posing.needed()
@pytest.mark.in_turn
@pytest.mark.parametrize("models", [3, pytest.param(10, marks=pytest.mark.slow),
                                    pytest.param(30, marks=pytest.mark.long)])
def test_a_miscompiled_kernel_is_named(models, tmp_path):
    """exp() is wrong in one layer's kernel, and nothing checks kernels before."""
    rng = np.random.default_rng(3)
    places = [(seed, int(rng.integers(LAYERS))) for seed in range(models)]
    outcome = run_python(
        MISCOMPILED.replace("PLACES", repr(places)), cache=tmp_path, pose=POSES["mali-g78:intel"],
        rules=[r"prelude /_[0-9a-f]{10}.*exp\(/ #define exp(x) (exp2(x))"],
        variables={"JITCL_CHECKS": "0"})
    assert outcome.value == [[f"act{k}", f"act{k}"] for _, k in places], outcome.stderr


def test_what_overflows_in_half():
    """The first layer that is infinite in f16 is named; what it hands on adds nothing."""
    rows = 17_000                               # small tensors stay in f32
    model = chain(0, ("Abs",), {2: lambda w: w * 2e4}, rows)
    found = jitcl.check(model, feeds(rows=rows), device="reference", precision="low", against="cpu")
    assert found.first.node == found.most.node == "act2"
    assert found.first.total.overflow > 0 and found.first.total.relative == float("inf")
    assert found.first.total.outside_half > 0
    assert found.most.own.relative == float("inf")


# ---- what is compared


@pytest.mark.parametrize("against", ["onnx", "onnxruntime", "reference", "cpu,templates=off"])
def test_engines(against):
    if against == "onnxruntime":
        pytest.importorskip("onnxruntime")
    for device in present():
        found = jitcl.check(chain(1), feeds(), device=device, against=against)
        assert found.ok and found.first is None, str(found)
        assert found.against.startswith(against.partition(",")[0])
        assert [r.node for r in found.layers][-1] == f"act{LAYERS - 1}"
        assert sum(len(r.fused) + 1 for r in found.layers) == 2 * LAYERS


def test_other_engines_are_compared_node_by_node():
    pytest.importorskip("onnxruntime")
    found = jitcl.check(chain(1), feeds(), device="onnxruntime", against="onnx")
    assert [r.node for r in found.layers] == [
        f"{kind}{k}" for k in range(LAYERS) for kind in ("product", "act")]


def test_the_worst_input_is_looked_into():
    """Only one of three inputs reaches the weight that is wrong."""
    def change(weights):
        weights = weights.copy()
        weights[2] *= 1.5
        return weights
    zeros = {"x": np.zeros((3, WIDTH), np.float32)}
    reaching = {"x": np.eye(3, WIDTH, dtype=np.float32)}
    missing = {"x": np.eye(3, WIDTH, k=3, dtype=np.float32)}
    found = jitcl.check(chain(3, ("Tanh",), {0: change}),
                        {"zeros": zeros, "reaching": reaching, "missing": missing}, device="cpu",
                        against_model=chain(3, ("Tanh",)))
    assert found.worst[0] == "reaching"
    assert [error > found.tolerance for _, error in found.inputs] == [False, True, False]
    assert found.most.node == "product0" and "worst of 3 inputs: reaching" in str(found)


def test_layers_that_the_other_model_lacks_are_listed():
    other = chain(4)
    for node in other.graph.node:
        if node.name == "product2":
            node.output[0] = "elsewhere"
        elif node.name == "act2":
            node.input[0] = "elsewhere"
    found = jitcl.check(chain(4), feeds(), device="reference", against_model=other)
    assert found.missing == ("product2",) and found.ok


class Unsteady:
    """A device whose every third run has one bit more."""

    def __init__(self):
        from jitcl.devices.reference import ReferenceDevice
        self._device, self.runs = ReferenceDevice(), 0

    def __getattr__(self, name):
        return getattr(self._device, name)

    def load(self, *args, **kwargs):
        loaded, run = self._device.load(*args, **kwargs), None
        run = loaded.run

        def unsteady(inputs, shapes=None):
            self.runs += 1
            results = run(inputs, shapes)
            if self.runs % 3 == 0:
                results[0].reshape(-1)[0] = np.nextafter(results[0].reshape(-1)[0], 9)
            return results
        loaded.run = unsteady
        return loaded


def test_repeated_runs_are_compared_to_the_last_bit():
    steady = jitcl.check(chain(5), feeds(), device="cpu", repeat=3)
    assert steady.repeats.equal and steady.ok and "3 more runs gave the same bits" in str(steady)
    found = jitcl.check(chain(5), feeds(), device=Unsteady(), against="cpu", repeat=4)
    assert not found.repeats.equal and not found.ok
    assert found.repeats.differs == "y" and 1 <= found.repeats.run <= 4
    assert "not repeatable: 'y' has other bits" in str(found)


def test_json_holds_all_measures():
    found = jitcl.check(chain(6), feeds(), device="cpu", repeat=1).as_dict()
    again = json.loads(json.dumps(found))
    assert again["layers"][0]["total"]["size"] == 3 * WIDTH
    assert len(again["layers"][0]["total"]["histogram"]) == len(again["bins"]) - 1
    assert again["ok"] is True and again["first"] is None


# ---- measures


def test_measures_of_a_difference():
    exact = np.array([1.0, -4.0, 1e-9, 0.0, 7e4, 2.0], np.float32)
    got = np.array([1.0, -4.5, 0.0, 0.0, np.inf, np.nextafter(np.float32(2), np.float32(3))])
    d = difference(got.astype(np.float32), exact)
    assert (d.overflow, d.underflow, d.zeros, d.exact_zeros, d.outside_half) == (1, 1, 2, 1, 2)
    assert d.relative == float("inf") and d.largest == 0.5 and d.exact_range == (-4.0, 7e4)
    finite = difference(got[[0, 1]].astype(np.float32), exact[[0, 1]])
    assert finite.relative == 0.125 and finite.mean == 0.25 and finite.ulps == 1 << 20
    assert finite.cosine == pytest.approx(19 / np.sqrt(17 * 21.25))
    assert sum(finite.histogram) == finite.size == 2


@pytest.mark.parametrize(("a", "b", "ulps"), [
    (np.float32(1), np.nextafter(np.float32(1), np.float32(2)), 1), (np.float32(-0.0), 0.0, 0),
    (np.float16(-6e-8), np.float16(6e-8), 2), (np.float64(-3), np.float64(3), None),
    (np.int8(-128), np.int8(127), 255), (np.uint8(3), np.uint8(250), 247),
    (np.uint64(1 << 63), np.uint64((1 << 63) - 1), 1), (True, False, None)])
def test_units_in_the_last_place(a, b, ulps):
    a, b = np.asarray([a]), np.asarray([b], np.asarray(a).dtype)
    found = difference(a, b).ulps
    if a.dtype == np.float64:
        assert found == 2 * int(np.float64(3).view(np.int64))
    else:
        assert found == ulps


def test_shapes_and_nans_of_a_difference():
    assert difference(np.zeros(3, np.float32), np.zeros(4, np.float32)).relative == float("inf")
    nan = np.array([np.nan, 1], np.float32)
    assert difference(nan, nan).equal
    assert difference(nan, np.array([0, 1], np.float32)).overflow == 1
    assert difference(np.zeros(0, np.float32), np.zeros(0, np.float32)).equal


def test_bits():
    zero = np.zeros(2, np.float32)
    assert bit_equal(zero, zero.copy()) and not bit_equal(zero, -zero)
    assert bit_equal([zero, "a"], [zero, "a"]) and not bit_equal([zero], [zero, zero])
    assert not bit_equal(zero, zero.astype(np.float64))


# ---- what is asked for


@pytest.mark.parametrize(("text", "wanted"), [
    ("cpu", Configuration("cpu")), ("", Configuration("auto")), ("onnx", Configuration("onnx")),
    ("opencl:Mali, precision=low , templates=off", Configuration(
        "opencl:Mali", "low", templates=False)),
    ({"device": "cpu", "memory": "low"}, Configuration("cpu", memory="low"))])
def test_configurations(text, wanted):
    assert Configuration.of(text) == wanted == Configuration.of(wanted)
    if isinstance(text, str) and text:
        assert Configuration.of(str(wanted)) == wanted


@pytest.mark.parametrize(("device", "asked", "wanted"), [
    ("reference,precision=low", {"templates": False}, "precision=low,templates=off"),
    ("reference,memory=low", {"precision": "normal"}, "precision=normal,memory=low"),
    ("reference,templates=on", {"templates": False}, "templates=off")])
def test_options_join_those_that_the_device_names(device, asked, wanted):
    """None is dropped, and what is said beside the device wins."""
    found = jitcl.check(chain(1), feeds(), device=device, against="reference", **asked)
    assert found.configuration.partition(",")[2] == wanted


@pytest.mark.parametrize(("options", "limit"), [
    ({}, 1e-3), ({"memory": "low"}, 1e-3), ({"memory": "bits=8"}, 1e-2),
    ({"precision": "high;act1=low"}, 1e-2), ({"memory": "bits=8", "tolerance": 1e-4}, 1e-4)])
def test_weights_in_few_bits_are_less_than_the_model_says(options, limit):
    found = jitcl.check(chain(1), feeds(), device="reference", against="reference", **options)
    assert found.tolerance == limit


def test_numbers_of_numpy():
    found = jitcl.check(chain(1), feeds(), device="reference", against="reference",
                        tolerance=np.float32(0.5), repeat=np.int64(1))
    assert found.tolerance == 0.5


@pytest.mark.parametrize(("asked", "error", "says"), [
    ({"against": "cpu,precison=low"}, OptionError, "'precison' is no option of a configuration"),
    ({"against": "cpu,precision=half"}, OptionError, "precision='half' is not known"),
    ({"against": "cpu,templates=no"}, OptionError, "templates='no': wanted on or off"),
    ({"against": "onnx,precision=low"}, OptionError, "onnx takes no options"),
    ({"tolerance": -1}, OptionError, "tolerance: got -1, wanted a number from 0 up"),
    ({"repeat": 1.5}, OptionError, "repeat: got 1.5, wanted a whole number"),
    ({"inputs": [1]}, InputError, "wanted a dict of input name -> array, a list"),
    ({"inputs": {"z": np.zeros(1)}}, InputError, "there is no input 'z'"),
    ({"inputs": {}}, InputError, "was not fed"),
])
def test_what_can_not_be_asked(asked, error, says):
    with pytest.raises(error, match=says):
        jitcl.check(chain(0), **{"device": "reference", **asked})


def test_text_graphs_have_no_layers():
    graph = jitcl.parse("graph @g(%x: f32[2]) {\n  %y = neg(%x)\n  return %y\n}")
    with pytest.raises(UnsupportedError, match="'g' is a text graph"):
        jitcl.check(graph)


def test_models_without_an_output_in_common():
    other = chain(0)
    other.graph.node[-1].output[0] = other.graph.output[0].name = "z"
    with pytest.raises(InputError, match="no output of chain is one of chain, too: y; z"):
        jitcl.check(chain(0), feeds(), device="reference", against_model=other)


# ---- the command


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs `jitcl check` with a model beside a perturbed one; (exit status, stdout, stderr)."""
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right.onnx").write_bytes(chain(7, ("Tanh",)).SerializeToString())
    wrong = chain(7, ("Tanh",), {3: lambda w: w * 1.1})
    (tmp_path / "wrong.onnx").write_bytes(wrong.SerializeToString())
    (tmp_path / "inputs").mkdir()
    np.save(tmp_path / "inputs" / "small.npy", feeds()["x"] / 1000)
    np.savez(tmp_path / "inputs" / "large.npz", **feeds())

    def run(*args):
        result = CliRunner().invoke(cli, ["check", *map(str, args)], catch_exceptions=False)
        return result.exit_code, result.stdout, result.stderr
    return run


def test_a_table_of_layers(command):
    status, out, _ = command("right.onnx", "--repeat", 1)
    assert status == 0 and "outputs agree" in out and "1 more runs gave the same bits" in out
    rows = re.findall(r"^ +(?:most +)?(act\d) +Tanh +(product\d) +f32\[3,8\]", out, re.MULTILINE)
    assert rows == [(f"act{k}", f"product{k}") for k in range(LAYERS)]


def test_a_fault_is_marked_and_ends_with_status_1(command):
    status, out, _ = command("wrong.onnx", "--against-model", "right.onnx")
    assert status == 1 and "they part at 'product3' (MatMul)" in out
    assert re.search(r"^ *first most +product3 +MatMul", out, re.MULTILINE)


def test_a_folder_of_inputs_and_json(command, tmp_path):
    status, out, err = command("wrong.onnx", "--against-model", "right.onnx", "--inputs", "inputs",
                               "--json", "found.json")
    assert status == 1 and "wrote found.json" in err
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name for name, _ in found["inputs"]} == {"small.npy", "large.npz"}
    assert found["most"] == "sum3" and found["worst"] == max(found["inputs"], key=lambda r: r[1])
    status, out, _ = command("wrong.onnx", "--against-model", "right.onnx", "--tolerance", 0.5,
                             "-i", "inputs/small.npy", "--json", "-")
    assert status == 0 and json.loads(out)["tolerance"] == 0.5


@pytest.mark.slow
@unless(shutil.which("chromium") is not None, "Chromium is not installed here")
def test_a_page(command, tmp_path):
    """All layers along the chart and in the table, in both colour schemes; a click leads to one."""
    status, _, err = command("wrong.onnx", "--against-model", "right.onnx", "--html", "found.html")
    assert status == 1 and "wrote found.html" in err
    text = (tmp_path / "found.html").read_text()
    assert "http" not in text.replace("http://www.w3.org", "") and "<script" not in text
    with browser() as at:
        papers = []
        for scheme in ("light", "dark"):
            at.ask("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": scheme}])
            at.open(tmp_path / "found.html", "", "document.querySelector('#chart .layer')")
            papers.append(at.run("getComputedStyle(document.body).backgroundColor"))
            rows = at.run("[...document.querySelectorAll('tbody tr')].map(r => r.innerText)")
            assert len(rows) == at.run("document.querySelectorAll('#chart .layer').length") > LAYERS
            wrong = [r for r in rows if "first most" in r]
            assert len(wrong) == 1 and "product3" in wrong[0]
            colours = at.run("[...document.querySelectorAll('#chart .layer rect')]"
                             ".map(r => getComputedStyle(r).fill)")
            assert len(set(colours)) > 1
            bars = at.run("document.querySelectorAll('tbody tr:last-child svg rect').length")
            assert bars > 1
        at.run("document.querySelectorAll('#chart .layer')[3].dispatchEvent("
               "new MouseEvent('click', {bubbles: true}))")
        at.wait("location.hash === '#layer4' && document.querySelector('tr:target')")
    assert papers[0] != papers[1]


def test_markup_in_names_is_text():
    made = chain(7, ("Tanh",))
    made.graph.node[1].name = "<b>act</b>"
    page = jitcl.check(made, feeds(), device="cpu").html()
    assert "&lt;b&gt;act" in page and "<b>act" not in page


@pytest.mark.parametrize(("args", "says"), [
    (("--inputs", "right.onnx"), "'right.onnx' is no folder"),
    (("--inputs", "empty"), "'empty' has no .npz or .npy file"),
    (("--against", "cpu,speed=9"), "'speed' is no option of a configuration: wanted DEVICE[,"),
    (("--against-model", "none.onnx"), "cannot read model 'none.onnx'"),
    (("-i", "y=[1]"), "there is no input 'y'"),
    (("--json", "empty"), "cannot write to 'empty'"),
])
def test_commands_that_can_not_be(command, tmp_path, args, says):
    (tmp_path / "empty").mkdir()
    status, out, err = command("right.onnx", *args)
    assert status == 1 and says in err and out == ""


def spoilt_by_two():
    """Six products, the third and fifth of which leave f16's range."""
    rng = np.random.default_rng(0)
    scales = {"w0": 1, "w1": 1, "w2": 3e4, "w3": 3e-5, "w4": 3e4, "w5": 3e-5}
    nodes = [helper.make_node("MatMul", [f"t{k}", f"w{k}"], [f"t{k + 1}"], f"layer{k}")
             for k in range(6)]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("t0", F, [64, 64])],
        [helper.make_tensor_value_info("t6", F, None)],
        [numpy_helper.from_array((rng.random((64, 64)) / 16 * s).astype(np.float32), n)
         for n, s in scales.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_cure_is_the_smallest_set_of_layers():
    model = spoilt_by_two()
    feeds = {"t0": np.random.default_rng(1).random((64, 64)).astype(np.float32)}
    found = jitcl.check(model, {"small": {"t0": feeds["t0"] / 1e4}, "large": feeds},
                        device="reference", precision="low", against="reference", cure=True)
    assert not found.ok and found.cure is not None
    assert found.cure.nodes == ("layer2", "layer4") and found.cure.layers == 6
    assert found.cure.tried < 12
    assert "cured by precision high for 2 of 6 layers: 'layer2', 'layer4'" in str(found)
    assert found.as_dict()["cure"]["nodes"] == ("layer2", "layer4")
    cured = jitcl.check(model, feeds, device="reference", against="reference", cure=True,
                        precision={"*": "low", "layer2": "high", "layer4": "high"})
    assert cured.ok and cured.cure is None


def test_what_no_precision_cures():
    """The other model has other weights."""
    other = spoilt_by_two()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(
        np.ones((64, 64), np.float32), "w0"))
    feeds = {"t0": np.random.default_rng(1).random((64, 64)).astype(np.float32)}
    found = jitcl.check(spoilt_by_two(), feeds, device="reference", precision="low",
                        against="reference", against_model=other, cure=True)
    assert found.cure is not None and not found.cure.found
    assert "no set of the 6 layers at precision high cures it" in str(found)


@pytest.mark.parametrize("options, wanted", [
    ({"cure": True}, "cure: reference computes all layers as the model says"),
    ({"cure": "yes", "precision": "low"}, "cure: got 'yes', wanted True or False")])
def test_a_cure_needs_a_lower_precision(options, wanted):
    with pytest.raises(OptionError, match=wanted):
        jitcl.check(spoilt_by_two(), device="reference", **options)


def test_the_command_line_names_a_cure(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(spoilt_by_two().SerializeToString())
    result = CliRunner().invoke(cli, [
        "check", str(path), "-d", "reference", "--against", "reference", "--precision",
        "low;layer4=high", "--cure"])
    assert result.exit_code == 1
    assert "cured by precision high for 1 of 6 layers: 'layer2'" in " ".join(result.output.split())


def test_sequences_and_text_are_compared():
    """Items under names of their own; labels that differ are an error without end."""
    def model(scale):
        names = helper.make_tensor("names", TensorProto.STRING, [WIDTH], [b"abcdefgh"[k:k + 1]
                                                                         for k in range(WIDTH)])
        made = model_of([
            helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
            helper.make_node("ArgMax", ["a"], ["best"], "best", axis=1, keepdims=0),
            helper.make_node("Gather", ["names", "best"], ["label"], "label"),
            helper.make_node("SplitToSequence", ["a", "one"], ["rows"], "split", axis=0)],
            {"w": np.eye(WIDTH, dtype=np.float32)[::scale], "one": np.array(1)})
        made.graph.initializer.append(names)
        del made.graph.output[:]
        made.graph.output.extend([
            helper.make_tensor_sequence_value_info("rows", F, None),
            helper.make_tensor_value_info("label", TensorProto.STRING, None)])
        return made

    same = jitcl.check(model(1), feeds(), device="cpu")
    assert same.ok and same.outputs.keys() == {"rows[0]", "rows[1]", "rows[2]", "label"}
    other = jitcl.check(model(1), feeds(), device="cpu", against_model=model(-1))
    assert not other.ok and other.outputs["label"].relative == float("inf")
    assert other.outputs["rows[1]"].relative > 0.1


def test_outputs_that_prove_nothing_are_told_of():
    found = jitcl.check(chain(0), {"x": np.full((3, WIDTH), np.nan, np.float32)}, device="cpu")
    assert found.ok and "note: outputs prove nothing here: the exact ones are infinite, NaN" in str(
        found)
    assert not jitcl.check(chain(0), feeds(), device="cpu").notes


def test_layers_of_bodies_count_as_their_node():
    """Whatever these are called: they belong to the If that the file has, and a cure names it."""
    def body(name):
        return helper.make_graph(
            [helper.make_node("MatMul", ["a", "w"], [f"{name} p"], f"{name}/product"),
             helper.make_node("Relu", [f"{name} p"], [f"{name} r"], f"{name}/relu")], name, [],
            [helper.make_tensor_value_info(f"{name} r", F, None)])

    wide = (np.random.default_rng(0).normal(size=(64, 64)) / 8).astype(np.float32)
    made = model_of([
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("If", ["yes"], ["b"], "if", then_branch=body("then"),
                         else_branch=body("else")),
        helper.make_node("MatMul", ["b", "w"], ["y"], "last")], {"w": wide})
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", F, [64, 64]))
    made.graph.input.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    fed = {"x": np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32),
           "yes": np.array(True)}
    found = jitcl.check(made, fed, device="reference", precision="low", tolerance=1e-5, cure=True)
    assert [r.node for r in found.layers] == ["first", "if", "last"]
    assert found.cure.found and "if" in found.cure.nodes


def test_a_loop_without_a_condition_goes_on():
    """For onnx's evaluator a condition that is left out is False, and the loop has no steps."""
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["r"], "step"),
         helper.make_node("Identity", ["going"], ["on"], "on")], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("going", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", F, [3, WIDTH])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("r", F, None)])
    for condition in (["n", ""], ["n", "yes"]):
        made = model_of([helper.make_node("Loop", [*condition, "x"], ["y"], "loop", body=inner)],
                        {"w": np.eye(WIDTH, dtype=np.float32) * 2, "n": np.array(5),
                         "yes": np.array(True)})
        assert jitcl.check(made, feeds(), device="reference").ok
