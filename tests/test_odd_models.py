"""Models that no exporter should write and some do: they run, or the error says what is wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.errors import ModelError, UnsupportedError

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).uniform(-1, 1, (2, 3)).astype(np.float32)


def info(name: str, shape: Any = (2, 3), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def made(nodes: Sequence[onnx.NodeProto], outputs: Sequence[Any] = ("y",), *,
         inputs: Sequence[Any] = ("x",), opset: int = 17, ir: int = 8, domains: Sequence[str] = (),
         functions: Sequence[onnx.FunctionProto] = (), **graph: Any) -> onnx.ModelProto:
    values = [[info(v) if isinstance(v, str) else v for v in vs] for vs in (inputs, outputs)]
    built = helper.make_graph(list(nodes), "odd", *values, **graph)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(built, opset_imports=imports, functions=list(functions), ir_version=ir)


def ran(model: Any, **feeds: Array) -> dict[str, Array]:
    return dict(jitcl.compile(model, device="reference").run(feeds or {"x": X}))


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(","), outputs.split(","), **attrs)


# ---- names


def test_names_that_are_no_identifiers() -> None:
    """Spaces, slashes, quotes, newlines, comment marks, other alphabets; very long ones."""
    names = ["a b", "c/d:0", "e\"f'g", "h\n*/ i //", "größe", "输入", "-1", "for", "x" * 5000,
             "%{}"]
    nodes = [helper.make_node("Relu" if i % 2 else "Neg", [a], [b], name=f"{b} *\\")
             for i, (a, b) in enumerate(zip(["x", *names], names))]
    want = X
    for i in range(len(names)):
        want = np.maximum(want, 0) if i % 2 else -want
    model = made(nodes, [names[-1]])
    got = jitcl.compile(model, device="cpu").run({"x": X})
    np.testing.assert_array_equal(got[names[-1]], want)


def test_odd_input_and_output_names() -> None:
    got = ran(made([helper.make_node("Neg", ["in put\n0"], ["out:0/*"])], ["out:0/*"],
                   inputs=["in put\n0"]), **{"in put\n0": X})
    np.testing.assert_array_equal(got["out:0/*"], -X)


def test_duplicate_and_empty_node_names() -> None:
    nodes = [node("Neg", "x", "a", name="same"), node("Neg", "a", "b", name="same"),
             node("Neg", "b", "y", name="")]
    np.testing.assert_array_equal(ran(made(nodes))["y"], -X)


# ---- graphs


def test_no_nodes() -> None:
    """Inputs and initialisers that are outputs."""
    model = made([], ["x", "w"], initializer=[numpy_helper.from_array(X * 2, "w")])
    got = ran(model)
    np.testing.assert_array_equal(got["x"], X)
    np.testing.assert_array_equal(got["w"], X * 2)


def test_an_output_twice() -> None:
    got = ran(made([node("Neg", "x", "y")], ["y", "y"]))
    np.testing.assert_array_equal(got["y"], -X)


def test_unused_input() -> None:
    got = ran(made([node("Neg", "x", "y")], inputs=["x", "unused"]), x=X, unused=X)
    np.testing.assert_array_equal(got["y"], -X)


def test_nodes_in_any_order() -> None:
    nodes = [node("Neg", "b", "y"), node("Relu", "a", "b"), node("Neg", "x", "a")]
    np.testing.assert_array_equal(ran(made(nodes))["y"], -np.maximum(-X, 0))


def test_outputs_without_type_or_shape() -> None:
    """The file does not say them; they are what the nodes make."""
    bare, unranked = helper.make_empty_tensor_value_info("y"), info("z", None)
    unknown = helper.make_tensor_value_info("w", TensorProto.UNDEFINED, [2, 3])
    nodes = [node("Neg", "x", "y"), node("ArgMax", "x", "z", axis=1), node("Abs", "x", "w")]
    got = ran(made(nodes, [bare, unranked, unknown]))
    np.testing.assert_array_equal(got["y"], -X)
    np.testing.assert_array_equal(got["z"], X.argmax(axis=1, keepdims=True))
    np.testing.assert_array_equal(got["w"], np.abs(X))


def test_wrong_intermediate_shapes_do_not_matter() -> None:
    wrong = helper.make_tensor_value_info("a", TensorProto.INT64, [7, 7])
    model = made([node("Neg", "x", "a"), node("Neg", "a", "y")], value_info=[wrong])
    np.testing.assert_array_equal(ran(model)["y"], X)


def test_metadata_and_training_info() -> None:
    model = made([node("Neg", "x", "y")])
    helper.set_model_props(model, {"author": "nobody", "ключ": "值"})
    model.graph.metadata_props.add(key="k", value="v")
    training = model.training_info.add()
    training.algorithm.CopyFrom(helper.make_graph([node("Nonsense", "q", "r")], "t", [], []))
    model.doc_string = "*/ \""
    np.testing.assert_array_equal(ran(model)["y"], -X)


# ---- versions


@pytest.mark.parametrize("ir", [3, 4, 8, 999])
def test_ir_versions(ir: int) -> None:
    """Initialisers that are no inputs before IR 4, and an IR newer than the installed onnx."""
    model = made([node("Add", "x,w", "y")], ir=ir,
                 initializer=[numpy_helper.from_array(np.float32(1), "w")])
    np.testing.assert_array_equal(ran(model)["y"], X + 1)


def test_first_ir_version_has_no_opset() -> None:
    model = made([node("Relu", "x", "y", consumed_inputs=[0])], ir=1)
    del model.opset_import[:]
    np.testing.assert_array_equal(ran(model)["y"], np.maximum(X, 0))


def test_overridable_initialiser() -> None:
    """Of IR version 3, where every initialiser is an input."""
    model = made([node("Add", "x,w", "y")], inputs=["x", info("w", (3,))], ir=3,
                 initializer=[numpy_helper.from_array(np.float32([1, 2, 3]), "w")])
    np.testing.assert_array_equal(ran(model)["y"], X + np.float32([1, 2, 3]))
    np.testing.assert_array_equal(ran(model, x=X, w=np.float32([5, 5, 5]))["y"], X + 5)


def test_domain_without_import() -> None:
    """com.microsoft's ops without their opset, as onnxruntime's own tools sometimes write them."""
    model = made([node("QuickGelu", "x", "y", domain="com.microsoft")])
    np.testing.assert_allclose(ran(model)["y"], X / (1 + np.exp(-1.702 * X)), rtol=1e-5)


def test_own_opset_missing() -> None:
    model = made([node("Neg", "x", "y")], domains=["com.microsoft"])
    del model.opset_import[0]
    with pytest.raises(ModelError, match=r"does not say which opset .*\(Neg is one\)(.|\n)*"
                                         r"make_opsetid\('', \d+\)"):
        ran(model)


def test_own_domain_by_its_long_name() -> None:
    model = made([node("Neg", "x", "y", domain="ai.onnx")])
    model.opset_import[0].domain = "ai.onnx"
    np.testing.assert_array_equal(ran(model)["y"], -X)


@pytest.mark.parametrize(("op", "domain", "text"), [
    ("Frobnicate", "", "'n' (Frobnicate)"),
    ("Frobnicate", "my.company", "'n' (Frobnicate of domain 'my.company')"),
    ("ATen", "org.pytorch.aten", "call into PyTorch"),
    ("BertTokenizer", "ai.onnx.contrib", "onnxruntime-extensions"),
    ("BeamSearch", "com.microsoft", "runs a whole generation loop"),
    ("Conv", "com.microsoft.nchwc", "saved after onnxruntime's layout optimisation"),
])
def test_unknown_ops(op: str, domain: str, text: str) -> None:
    model = made([node(op, "x", "y", domain=domain, name="n")], domains=[domain] if domain else [])
    with pytest.raises(UnsupportedError) as caught:
        ran(model)
    assert text in str(caught.value)


# ---- functions of the model


def function(name: str, inputs: str, outputs: str, nodes: Sequence[onnx.NodeProto], *,
             domain: str = "local", attributes: Sequence[str] = (), overload: str = "",
             domains: Sequence[str] = ("local",), **defaults: Any) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_function(
        domain, name, inputs.split(","), outputs.split(","), list(nodes), imports,
        list(attributes), [helper.make_attribute(k, v) for k, v in defaults.items()],
        overload=overload)


def reference(attribute: str, to: str, kind: Any) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=attribute, ref_attr_name=to, type=kind)


def leaky(to: str) -> onnx.NodeProto:
    found = node("LeakyRelu", "a", "b")
    found.attribute.append(reference("alpha", to, onnx.AttributeProto.FLOAT))
    return found


def test_nested_functions_with_attributes() -> None:
    """An attribute goes through two calls; another holds its default."""
    inner = function("Inner", "a", "b", [leaky("slope")], attributes=["slope"])
    call = node("Inner", "p", "q", domain="local")
    call.attribute.append(reference("slope", "steep", onnx.AttributeProto.FLOAT))
    outer = function("Outer", "p", "q", [call], steep=0.5)
    model = made([node("Outer", "x", "m", domain="local"),
                  node("Outer", "x", "n", domain="local", steep=0.25), node("Add", "m,n", "y")],
                 domains=["local"], functions=[inner, outer])
    np.testing.assert_allclose(ran(model)["y"], np.where(X < 0, X * 0.75, X * 2), rtol=1e-6)


def test_overloads() -> None:
    one = function("F", "a", "b", [node("Neg", "a", "b")], overload="negative")
    two = function("F", "a", "b", [node("Abs", "a", "b")], overload="positive")
    model = made([node("F", "x", "m", domain="local", overload="negative"),
                  node("F", "m", "y", domain="local", overload="positive")],
                 domains=["local"], functions=[one, two], ir=10)
    np.testing.assert_array_equal(ran(model)["y"], np.abs(X))


def test_function_that_shadows_a_standard_op() -> None:
    """What the model defines holds, in ONNX's own domain, too."""
    shadow = function("Relu", "a", "b", [node("Neg", "a", "b")], domain="", domains=())
    model = made([node("Relu", "x", "y")], functions=[shadow])
    np.testing.assert_array_equal(ran(model)["y"], -X)


def test_function_with_optional_operands_and_inner_names() -> None:
    """A left-out operand stays left out; inner names do not meet outer ones."""
    body = [node("Clip", "a,,top", "x"), node("Identity", "x", "b")]
    model = made([node("F", "x,", "m", domain="local"), node("F", "m,t", "y", domain="local")],
                 domains=["local"], functions=[function("F", "a,top", "b", body)],
                 initializer=[numpy_helper.from_array(np.float32(0.25), "t")])
    np.testing.assert_array_equal(ran(model)["y"], np.minimum(X, np.float32(0.25)))


def test_function_in_a_branch() -> None:
    """A function that holds an If, called in a branch of another."""
    def branch(op: str, source: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, source, "r")], op, [], [info("r", None)])
    body = [node("Constant", "", "c", value=numpy_helper.from_array(np.array(True))),
            node("If", "c", "b", then_branch=branch("Neg", "a"), else_branch=branch("Abs", "a"))]
    body[0].ClearField("input")
    inner = function("F", "a", "b", body)
    call = helper.make_graph([node("F", "x", "r", domain="local")], "call", [], [info("r", None)])
    model = made([node("If", "k", "y", then_branch=call, else_branch=branch("Abs", "x"))],
                 domains=["local"], functions=[inner],
                 initializer=[numpy_helper.from_array(np.array(True), "k")])
    np.testing.assert_array_equal(ran(model)["y"], -X)


def test_recursive_function() -> None:
    body = [node("F", "a", "b", domain="local")]
    model = made([node("F", "x", "y", domain="local")], domains=["local"],
                 functions=[function("F", "a", "b", body)])
    with pytest.raises(ModelError, match=r"must not be recursive"):
        ran(model)


# ---- initialisers


def test_sparse_initialisers() -> None:
    """Linear and coordinate indices."""
    values = np.float32([5, 7])
    linear = helper.make_sparse_tensor(numpy_helper.from_array(values, "a"),
                                       numpy_helper.from_array(np.int64([1, 5]), "ai"), [2, 3])
    pairs = helper.make_sparse_tensor(numpy_helper.from_array(values, "b"), numpy_helper.from_array(
        np.int64([[0, 0], [1, 2]]), "bi"), [2, 3])
    nodes = [node("Add", "x,a", "m"), node("Sub", "m,b", "y")]
    got = ran(made(nodes, sparse_initializer=[linear, pairs]))["y"]
    np.testing.assert_allclose(got, X + [[-5, 5, 0], [0, 0, 0]], rtol=1e-6)


def external(name: str, shape: tuple[int, ...], file: str, **entries: Any) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape,
                         data_location=TensorProto.EXTERNAL)
    for key, value in {"location": file, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def stored(folder: Path, tensors: Sequence[TensorProto], nodes: Sequence[onnx.NodeProto]) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(made(nodes, initializer=list(tensors)).SerializeToString())
    return path


def test_external_data_with_offsets(tmp_path: Path) -> None:
    """Two tensors in one file, one without a length, in a folder of its own."""
    (tmp_path / "sub").mkdir()
    a, b = np.float32([1, 2, 3]), np.float32([[10, 20, 30]])
    (tmp_path / "sub" / "weights.bin").write_bytes(b"pad!" + a.tobytes() + b.tobytes())
    path = stored(tmp_path, [external("a", (3,), "sub/weights.bin", offset=4, length=12),
                             external("b", (1, 3), "sub/weights.bin", offset=16)],
                  [node("Add", "x,a", "m"), node("Add", "m,b", "y")])
    np.testing.assert_allclose(ran(path)["y"], X + a + b, rtol=1e-6)


@pytest.mark.parametrize(("entries", "text"), [
    ({"offset": 4, "length": 12}, "weights.bin', which has 12"),
    ({"length": 8}, "its elements take 12 bytes, but 8 of 'weights.bin'"),
    ({"offset": -4}, "the offset of its elements in 'weights.bin' is '-4'"),
    ({"offset": "four"}, "is 'four', wanted a number of bytes"),
])
def test_external_data_that_does_not_fit(tmp_path: Path, entries: dict[str, Any], text: str
                                         ) -> None:
    """Beyond the file's end, too short for the shape, no number: the initialiser and file are
    named."""
    (tmp_path / "weights.bin").write_bytes(np.float32([1, 2, 3]).tobytes())
    path = stored(tmp_path, [external("w", (3,), "weights.bin", **entries)],
                  [node("Add", "x,w", "y")])
    with pytest.raises(ModelError) as caught:
        ran(path)
    assert text in str(caught.value) and "'w'" in str(caught.value)


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.float32([1, 2, 3]).tobytes())
    folder = tmp_path / "inner"
    folder.mkdir()
    path = stored(folder, [external("w", (3,), "../weights.bin")], [node("Add", "x,w", "y")])
    with pytest.raises(ModelError, match="'w'"):
        ran(path)


def test_linked_files(tmp_path: Path) -> None:
    """Model and data are symbolic links to files of other names in one folder, as in Hugging Face's
    cache: data beside the file that the model is, is the model's own.
    """
    blobs, view = tmp_path / "blobs", tmp_path / "view"
    blobs.mkdir()
    view.mkdir()
    path = stored(tmp_path, [external("w", (3,), "model.onnx_data")], [node("Add", "x,w", "y")])
    path.rename(blobs / "1a2b")
    (blobs / "3c4d").write_bytes(np.float32([1, 2, 3]).tobytes())
    (view / "model.onnx").symlink_to("../blobs/1a2b")
    (view / "model.onnx_data").symlink_to("../blobs/3c4d")
    got = ran(view / "model.onnx")["y"]
    np.testing.assert_allclose(got, X + np.float32([1, 2, 3]), rtol=1e-6)


def test_links_that_stay_in_the_folder(tmp_path: Path) -> None:
    """The folder itself may be reached by a link, and so may a file and a folder inside of it."""
    weights = tmp_path / "real" / "weights"
    weights.mkdir(parents=True)
    (weights / "a.bin").write_bytes(np.float32([1, 2, 3]).tobytes())
    (tmp_path / "real" / "linked").symlink_to("weights")
    (tmp_path / "real" / "b.bin").symlink_to("linked/a.bin")
    stored(tmp_path / "real", [external("a", (3,), "linked/a.bin"), external("b", (3,), "b.bin")],
           [node("Add", "x,a", "m"), node("Add", "m,b", "y")])
    (tmp_path / "view").symlink_to("real")
    np.testing.assert_allclose(ran(tmp_path / "view" / "model.onnx")["y"],
                               X + np.float32([2, 4, 6]), rtol=1e-6)


def _outside(place: str) -> Any:
    """What makes `place` in a model's folder a way to `secret` beside that folder."""
    def make(folder: Path) -> None:
        if place == "hard":
            os.link(folder.parent / "secret", folder / "hard")
        elif place == "chain":
            (folder / "chain").symlink_to("second")
            (folder / "second").symlink_to("../secret")
        elif place == "up/secret":
            (folder / "up").symlink_to("..")
        elif place == "sub/up/secret":
            (folder / "sub").mkdir()
            (folder / "sub" / "up").symlink_to(folder.parent)
        else:
            (folder / place).symlink_to("../secret")
    return make


@pytest.mark.parametrize(("place", "text"), [
    ("soft", "a symbolic link leads out of the model's folder"),
    ("chain", "a symbolic link leads out of the model's folder"),
    ("up/secret", "a symbolic link leads out of the model's folder"),
    ("sub/up/secret", "a symbolic link leads out of the model's folder"),
    ("hard", "has 2 names (hard links)"),
])
def test_external_data_by_a_link_to_elsewhere(tmp_path: Path, place: str, text: str) -> None:
    """A file of the user's that is not the model's own is not read, whichever part of the path is
    a link. onnx refuses these, too.
    """
    (tmp_path / "secret").write_bytes(np.float32([1, 2, 3]).tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    _outside(place)(folder)
    path = stored(folder, [external("w", (3,), place)], [node("Add", "x,w", "y")])
    with pytest.raises(ModelError) as caught:
        ran(path)
    assert text in str(caught.value) and "'w'" in str(caught.value)


@pytest.mark.parametrize("place", ["/etc/hostname", "../secret", "sub/../../secret", "..", "", "."])
def test_external_data_by_a_path_to_elsewhere(tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_bytes(np.float32([1, 2, 3]).tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    path = stored(folder, [external("w", (3,), place)], [node("Add", "x,w", "y")])
    with pytest.raises(ModelError, match="'w' keeps its elements in .*(not in|does not exist)"):
        ran(path)


def test_external_data_named_with_dots(tmp_path: Path) -> None:
    """A name that begins with two dots is no way out."""
    (tmp_path / "..weights").write_bytes(np.float32([1, 2, 3]).tobytes())
    path = stored(tmp_path, [external("w", (3,), "..weights")], [node("Add", "x,w", "y")])
    np.testing.assert_allclose(ran(path)["y"], X + np.float32([1, 2, 3]), rtol=1e-6)


def test_missing_external_file(tmp_path: Path) -> None:
    path = stored(tmp_path, [external("w", (3,), "gone.bin")], [node("Add", "x,w", "y")])
    with pytest.raises(ModelError, match=r"'w' keeps its elements in .*gone.bin', which does not"):
        ran(path)


@pytest.mark.slow
def test_beyond_two_gigabytes(tmp_path: Path) -> None:
    """A file of 3 GB with holes, of which a node reads a row: what is not read is not loaded."""
    rows, width = 3 << 18, 1 << 10
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(rows * width * 4)
        file.seek((rows - 1) * width * 4)
        file.write(np.arange(width, dtype=np.float32).tobytes())
    tail = external("tail", (width,), "weights.bin", offset=(rows - 1) * width * 4)
    whole = external("whole", (rows, width), "weights.bin")
    nodes = [node("ReduceSum", "tail", "t", keepdims=0), node("Add", "x,t", "y"),
             node("Gather", "whole,i", "unused")]
    index = numpy_helper.from_array(np.int64(0), "i")
    got = ran(stored(tmp_path, [tail, whole, index], nodes))["y"]
    np.testing.assert_allclose(got, X + width * (width - 1) / 2, rtol=1e-6)
