"""`jitcl.quantize`: a model with weights in few bits, as a file that loads again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jitcl
from jitcl.cli.main import cli
from tests.test_pack_weights import IDS12, net, normal

KINDS = [{"bits": 8}, {"bits": 4, "block": 32}, {"bits": 4, "symmetric": False},
         {"bits": 4, "block": 32, "calibrate": IDS12}]
ALL = ("filters", "pointwise", "table", "w1", "w_two")


def run(model, **options):
    with jitcl.compile(model, device="cpu", **options) as compiled:
        return compiled.run(IDS12)["y"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_file_gives_what_memory_gives(kind, tmp_path):
    file = tmp_path / "q.onnx"
    found = jitcl.quantize(net(), file, **kind)
    onnx.checker.check_model(str(file), full_check=True)
    memory = {n: v for n, v in kind.items() if n != "calibrate"}
    want = run(net(), memory={"block": 64, **memory}, calibrate=kind.get("calibrate"))
    got = run(file)
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
    assert found.weights == ALL and found.path == file
    assert found.bytes == file.stat().st_size < (0.33 if kind["bits"] == 8 else 0.2) * (
        found.bytes_before)
    off = np.abs(got - run(net())).max() / np.abs(want).max()
    assert 0 < off < (0.02 if kind["bits"] == 8 else 0.3)


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_another_engine_reads_it(kind, tmp_path):
    jitcl.quantize(net(), tmp_path / "q.onnx", **kind)
    (want,) = ReferenceEvaluator(str(tmp_path / "q.onnx")).run(None, IDS12)
    assert np.abs(run(tmp_path / "q.onnx") - want).max() <= 1e-5 * np.abs(want).max()


def test_calibrated_weights_lose_less(tmp_path):
    exact, off = run(net()), []
    for calibrate in (None, IDS12):
        jitcl.quantize(net(), tmp_path / "q.onnx", bits=4, block=32, calibrate=calibrate)
        off.append(np.linalg.norm(run(tmp_path / "q.onnx") - exact))
    assert off[1] < 0.7 * off[0]


def test_weights_stay_packed_in_the_plan(tmp_path):
    jitcl.quantize(net(), tmp_path / "q.onnx", bits=4)
    held = []
    for model in (net(), tmp_path / "q.onnx"):
        with jitcl.compile(model, device="cpu") as compiled:
            compiled.run(IDS12)
            held.append(jitcl.memory_stats().devices["cpu"].constants)
    assert held[1] - held[0] < 0 and held[1] < 0.6 * held[0]


def test_what_stays(tmp_path):
    """Skipped nodes' weights, small ones, matrices of a stack, a body's; a table that is read by a
    look-up and a product is decoded for each."""
    found = jitcl.quantize(net(), tmp_path / "q.onnx", skip=["/first", "/conv"])
    assert found.weights == ("pointwise", "table", "w_two")
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"]),
             helper.make_node("MatMul", ["e", "stack"], ["s"]),
             helper.make_node("MatMul", ["s", "small"], ["t"]),
             helper.make_node("Gemm", ["last", "table"], ["y"], transB=1)]
    nodes.insert(3, helper.make_node("ReduceSum", ["t", "zeroth"], ["last"], keepdims=0))
    sizes = {"table": (40, 64), "stack": (2, 64, 32), "small": (32, 31), "back": (31, 64)}
    weights = [numpy_helper.from_array(normal(*dims, seed=3).astype(np.float16), name)
               for name, dims in sizes.items()]
    nodes.insert(4, helper.make_node("MatMul", ["last", "back"], ["wide"]))
    nodes[-1].input[0] = "wide"
    weights.append(numpy_helper.from_array(np.array([0], np.int64), "zeroth"))
    graph = helper.make_graph(
        nodes, "tied", [helper.make_tensor_value_info("ids", TensorProto.INT64, [12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [12, 40])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = jitcl.quantize(model, tmp_path / "tied.onnx", bits=8, block=32)
    assert found.weights == ("table",)
    written = onnx.load(tmp_path / "tied.onnx")
    assert [n.op_type for n in written.graph.node if n.op_type == "DequantizeLinear"] == [
        "DequantizeLinear"]
    assert not {t.name for t in written.graph.initializer} & {"table"}
    want, got = run(model).astype("f4"), run(tmp_path / "tied.onnx").astype("f4")
    assert 0 < np.abs(got - want).max() < 0.03 * np.abs(want).max()


@pytest.mark.parametrize(("model", "options", "said"), [
    ("folder", {}, "quantize: '{0}' is no ONNX model\n  Language models take their weights' bits"),
    ("net", {"bits": 3}, "memory: bits is 3: use one of 4, 8"),
    ("net", {"skip": ["/frist"]}, "'/frist'\n  The nearest names are: '/first'"),
    ("graph", {}, "quantize: wanted an ONNX model, got a graph of jitcl's"),
    ("small", {}, "quantize: model small has no weights that would be packed"),
    ("old", {}, "onnx can't bring it from opset 6 to 21"),
], ids=lambda value: value if isinstance(value, str) and "\n" not in value else "")
def test_errors(model, options, said, tmp_path):
    text = "graph @g(%x: f32[4]) {\n  %y = neg(%x)\n  return %y\n}"
    vector = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    small = helper.make_model(
        helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "small", vector[:1], vector[1:]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    old = helper.make_model(helper.make_graph(
        [helper.make_node("Dropout", ["x"], ["y"], is_test=0)], "old", vector[:1], vector[1:]),
        opset_imports=[helper.make_opsetid("", 6)], ir_version=3)      # of training
    given = {"folder": tmp_path, "net": net(), "graph": jitcl.parse(text), "small": small,
             "old": old}[model]
    with pytest.raises(jitcl.JitclError) as error:
        jitcl.quantize(given, tmp_path / "q.onnx", **options)
    assert said.format(tmp_path) in str(error.value)
    assert not (tmp_path / "q.onnx").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(jitcl.OptionError, match="cannot write .*: there is no folder"):
        jitcl.quantize(net(), tmp_path / "none" / "q.onnx")


def test_the_command(tmp_path):
    onnx.save(net(), tmp_path / "net.onnx")
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", **IDS12)
    done = CliRunner().invoke(cli, [
        "quantize", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "q.onnx"), "--bits", "4",
        "--block", "32", "--skip", "/last", "--calibrate", str(tmp_path / "in")])
    assert done.exit_code == 0, done.output
    assert done.output == f"saved {tmp_path}/q.onnx: 4 weights in 4 bits, 0.07 -> 0.02 MiB\n"
    assert run(tmp_path / "q.onnx").shape == (1, 32, 4, 9)
