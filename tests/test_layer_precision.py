"""`precision={name or pattern: ..}`: which tensors are stored in which type, under ONNX names."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import jitcl
import jitcl.onnxruntime as ort
from jitcl.cli.main import cli
from jitcl.errors import OptionError
from jitcl.ir.parser import parse_graph
from jitcl.ops import OPS
from jitcl.ops.builder import infer
from jitcl.passes.options import Options

F = TensorProto.FLOAT


def weights(*shape: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) / 4).astype(np.float32)


def model_of(nodes, constants, functions=()):
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", F, [64, 64])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def matmul(source, w, result, name):
    return helper.make_node("MatMul", [source, w], [result], name)


def chain():
    """Four products; a ReLU is fused into the second."""
    return model_of(
        [matmul("x", "w", "a", "/net/first"), matmul("a", "w", "b", "/net/second"),
         helper.make_node("Relu", ["b"], ["c"], "/net/relu"),
         matmul("c", "w", "d", "/net/third"), matmul("d", "w", "y", "/net/last")],
        {"w": weights(64, 64, seed=0)})


def stored(model, precision, device="reference"):
    """The type of what each kernel writes, by the names of the nodes in it."""
    plan = jitcl.compile(model, device=device, precision=precision).plan
    return {tuple(dict.fromkeys(n for n, _ in s.origins)): plan.buffers[s.writes[0]].dtype
            for s in plan.steps}


SECOND = ("/net/second", "/net/relu")


@pytest.mark.parametrize("precision, halves", [
    ({"*": "low", "/net/second": "high"}, {"/net/third"}),
    ({"*": "low", "/net/relu": "high"}, {"/net/third"}),
    ({"/net/second": "low", "*": "high"}, set()),           # its ReLU says high
    ({"/net/t*": "normal"}, {"/net/third"}),
    ({"*": "high", "/net/[st]*": "low", "/net/relu": "normal"}, {"/net/third", SECOND[0]}),
    ({"/net/third": "low", "/net/*": "high"}, {"/net/third"}),      # a name before a pattern,
    ({"/net/t*": "low", "/net/*": "high"}, {"/net/third"}),         # the first pattern that fits
    ("normal;/net/*i*=high", {SECOND[0]}),
])
def test_layers_are_stored_as_they_are_asked_to_be(precision, halves):
    """The first product is of an input, which may be as large as sound; the last is the output."""
    found = stored(chain(), precision)
    assert {names[0] for names, dtype in found.items() if dtype == "f16"} == halves
    assert SECOND in found


def test_weights_are_those_of_their_reader():
    """One constant, which a high layer reads as it is, and a low one as halves."""
    plan = jitcl.compile(chain(), device="reference",
                         precision={"*": "low", "/net/second": "high"}).plan
    assert sorted(a.dtype for a in plan.constants.values()) == [np.float16, np.float32]


def folded():
    """Nodes of which no kernel keeps the name: a scale and an Identity that are folded away, and
    a product that is there twice."""
    return model_of(
        [matmul("x", "w", "a", "first"), matmul("a", "w", "b", "product"),
         helper.make_node("Mul", ["b", "two"], ["c"], "scale"),
         helper.make_node("Identity", ["c"], ["d"], "same"),
         matmul("d", "w", "e", "left"), matmul("d", "w", "f", "right"),
         helper.make_node("Add", ["e", "f"], ["g"], "sum"), matmul("g", "w", "y", "last")],
        {"w": weights(64, 64, seed=1), "two": np.float32(2)})


@pytest.mark.parametrize("name, stays", [
    ("product", 1), ("scale", 1), ("same", 1), ("right", 1), ("left", 1), ("first", 0)])
def test_names_survive_what_passes_make_of_the_nodes(name, stays):
    def halves(precision):
        return sum(dtype == "f16" for dtype in stored(folded(), precision).values())

    assert halves({"*": "normal", name: "high"}) == halves("normal") - stays


def body(name, op="Relu"):
    """A body "name" that multiplies by w, and applies a function."""
    out = helper.make_tensor_value_info(f"{name}_out", F, None)
    return helper.make_graph(
        [matmul("b", "w", f"{name}_p", f"{name}/product"),
         helper.make_node(op, [f"{name}_p"], [f"{name}_out"], f"{name}/{op}")], name, [], [out])


def conditional():
    return model_of(
        [matmul("x", "w", "a", "first"), matmul("a", "w", "b", "second"),
         helper.make_node("If", ["yes"], ["c"], "if", then_branch=body("then"),
                          else_branch=body("else", "Tanh")),
         matmul("c", "w", "y", "last")], {"w": weights(64, 64, seed=2), "yes": np.array(True)})


@pytest.mark.parametrize("name", ["if", "then/product", "then/*"])
def test_a_node_stands_for_its_body(name):
    found = stored(conditional(), {"*": "low", name: "high"})
    assert found["then/product", "then/Relu"] == "f32" and found["second",] == "f16"


def test_a_body_may_differ_from_its_node():
    found = stored(conditional(), {"*": "low", "if": "high", "then/*": "low"})
    assert found["then/product", "then/Relu"] == "f16"


def test_a_call_stands_for_its_function():
    twice = helper.make_function(
        "own", "Twice", ["a", "w"], ["c"],
        [matmul("a", "w", "b", "one"), matmul("b", "w", "c", "two")],
        [helper.make_opsetid("", 17)])
    call = helper.make_node("Twice", ["a", "w"], ["b"], "call", domain="own")
    model = model_of([matmul("x", "w", "a", "first"), call, matmul("b", "w", "y", "last")],
                     {"w": weights(64, 64, seed=3)}, [twice])
    high, one = (stored(model, {"*": "low", n: "high"}) for n in ("call", "call/one"))
    assert high["call/one",] == high["call/two",] == one["call/one",] == "f32"
    assert one["call/two",] == "f16"


def test_layers_of_a_program():
    """A loop that the host drives: its parts know the names of the whole model."""
    inner = helper.make_graph(
        [matmul("s", "w", "p", "step/product"), helper.make_node("Tanh", ["p"], ["q"], "step/tanh"),
         matmul("q", "w", "r", "step/last"),
         helper.make_node("Identity", ["going"], ["on"], "step/on")], "step",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("going", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", F, [64, 64])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("r", F, None)])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=inner)], "net",
        [helper.make_tensor_value_info("x", F, [64, 64]),
         helper.make_tensor_value_info("n", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(weights(64, 64, seed=4), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {"x": weights(64, 64, seed=5), "n": np.array(40)}
    dtypes = {}
    for name in ("step/product", "step/last"):
        with jitcl.compile(model, device="reference", precision={"*": "low", name: "high"}) as made:
            made.run(feeds)
            dtypes[name] = {p.buffers[s.writes[0]].dtype for p in made.plans for s in p.steps}
    assert "f16" not in dtypes["step/product"] and "f16" in dtypes["step/last"]


@pytest.mark.parametrize("given, wanted", [
    ({"*": "low", "/net/secnd": "high"},
     "precision: model net has no node '/net/secnd'\n"
     "  The nearest names are: '/net/second', "),
    ({"/NET/Second": "high"},
     "has no node '/NET/Second'\n  The nearest names are: '/net/second', "),
    ({"*": "auto"}, "precision of '*' is 'auto': use one of high, normal, low\n  auto is for a "),
    ("auto;/net/relu=high", "use one of high, normal, low\n  auto is for a whole model, in jitcl"),
    ({"/head/*": "high"}, "precision: no node of model net matches '/head/*'\n"
                          "  The nearest names are: "),
    ({"/net/relu": "fast"}, "precision of '/net/relu' is 'fast': use one of high, normal, low"),
    ({"/net/relu": None}, "precision of '/net/relu' is None: use one of"),
    ({3: "low"}, "precision: got 3 for the name of a layer, wanted the name of an ONNX node"),
    ({}, "precision: got an empty dict, wanted layers' names"),
    ("low;/net/relu=fast", "precision of '/net/relu' is 'fast'"),
    ("low;/net/relu", "precision of '*' is|says twice what '*' is"),
    ("low;/net/relu=high;/net/relu=low", "says twice what '/net/relu' is"),
    (["low"], r"precision=['low'] is not known: use one of high, normal, low"),
])
def test_what_is_wrong_is_said(given, wanted):
    with pytest.raises(OptionError) as error:
        jitcl.compile(chain(), device="reference", precision=given)
    assert any(part in str(error.value) for part in wanted.split("|"))


def test_a_text_graph_has_no_names():
    text = "graph @g(%x: f32[4]) {\n  %0 = relu(%x) : f32[4]\n  return %0\n}\n"
    graph = parse_graph(text, known_ops=OPS, infer=infer)
    with pytest.raises(OptionError, match="keeps no names of layers"):
        jitcl.compile(graph, device="reference", precision={"relu": "low"})


def test_names_with_the_characters_of_patterns():
    model = chain()
    model.graph.node[2].name = "relu[0];x=1"
    found = stored(model, {"*": "low", "relu[0];x=1": "high"})
    assert found["/net/second", "relu[0];x=1"] == "f32"
    said = Options({"*": "low", "relu[0];x=1": "high"}).said
    assert said == "low;relu[0]?x=1=high"
    assert Options("low;a=b=high").layers == (("a=b", "high"),)


def test_the_choice_is_part_of_the_key(tmp_path):
    """Each has a plan of its own, which the cache gives again without reading the model."""
    choices = ["low", {"*": "low", "/net/second": "high"}, {"*": "low", "/net/third": "high"}]
    for from_cache in (False, True):
        for choice in choices:
            model = jitcl.compile(chain(), device="reference", precision=choice,
                                  cache_dir=tmp_path)
            assert model.report().from_cache is from_cache
    assert model.source._model is None
    assert "precision: low;/net/third=high, tensors are stored as f16" in str(model.report())
    with pytest.raises(OptionError):
        jitcl.compile(chain(), device="reference", precision={"no": "low"}, cache_dir=tmp_path)


def test_the_command_line_takes_layers(tmp_path):
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain().SerializeToString())
    run = CliRunner().invoke(cli, ["run", str(path), "-d", "reference", "--random", "--precision",
                                    "low;/net/second=high", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["precision"] == "low;/net/second=high"
    wrong = CliRunner().invoke(cli, ["run", str(path), "--precision", "low;/net/second=3"])
    assert wrong.exit_code == 2 and "precision of '/net/second' is '3'" in wrong.output
    check = CliRunner().invoke(cli, ["check", str(path), "-d", "reference", "--against",
                                      "reference,precision=low;/net/second=high"])
    assert check.exit_code == 0 and "reference,precision=low;/net/second=high" in " ".join(
        check.output.split())


def test_provider_options_take_layers():
    session = ort.InferenceSession(
        chain().SerializeToString(), providers=[("CPUExecutionProvider", {
            "device": "reference", "precision": {"*": "low", "/net/relu": "high"}})])
    assert session.run(None, {"x": weights(64, 64, seed=6)})[0].shape == (64, 64)
    with pytest.raises(Exception, match="no node 'relu'"):
        ort.InferenceSession(chain().SerializeToString(), providers=[
            ("CPUExecutionProvider", {"device": "reference", "precision": {"relu": "low"}})])
