"""Inputs that nobody should feed, and calls that nobody should make: what each must end with.

`python -m tests.hostile inputs|misuses NAME ...` runs rows one by one and prints a line of JSON for
each, so that one that hangs or ends the process is known by its name.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

import jitcl

MEMORY = 12 << 30               # bytes of addresses that a row may take


@dataclass(frozen=True)
class Row:
    """What is done, the class of error that it must end with, and a part of its message."""

    run: Callable[[], Any]
    kind: str
    text: str


# ---- models


def model(*nodes: onnx.NodeProto, x: Sequence[int | str] = (4,), dtype: int = T.FLOAT,
          inits: Sequence[Any] = (), functions: Sequence[Any] = (), opset: int = 20,
          y: int = T.FLOAT, name: str = "x") -> onnx.ModelProto:
    """A model of one input and the output y, which nothing has checked."""
    graph = h.make_graph(list(nodes), "g", [h.make_tensor_value_info(name, dtype, x)],
                         [h.make_tensor_value_info("y", y, None)], list(inits))
    opsets = [h.make_opsetid("", opset), h.make_opsetid("f", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))


def node(op: str, *inputs: str, out: Sequence[str] = ("y",), **attrs: Any) -> onnx.NodeProto:
    return h.make_node(op, list(inputs), list(out), name="it", **attrs)


def numbers(name: str, *values: float, dtype: int = T.INT64, shape: Sequence[int] | None = None
            ) -> onnx.TensorProto:
    return h.make_tensor(name, dtype, [len(values)] if shape is None else shape, values)


def scalar(name: str, value: float, dtype: int = T.INT64) -> onnx.TensorProto:
    return numbers(name, value, dtype=dtype, shape=[])


def replaced(made: onnx.ModelProto, old: bytes, new: bytes) -> bytes:
    data = made.SerializeToString()
    assert old in data and len(old) == len(new)
    return data.replace(old, new)


def calls(width: int, depth: int) -> onnx.ModelProto:
    """Functions each of which calls the next `width` times."""
    made = []
    for i in range(depth):
        op, domain = (f"f{i + 1}", "f") if i < depth - 1 else ("Relu", "")
        names = ["a", *(f"t{k}" for k in range(width - 1)), "c"]
        body = [h.make_node(op, [a], [b], domain=domain) for a, b in zip(names, names[1:])]
        made.append(h.make_function("f", f"f{i}", ["a"], ["c"], body,
                                    [h.make_opsetid("", 20), h.make_opsetid("f", 1)]))
    return model(h.make_node("f0", ["x"], ["y"], domain="f"), functions=made)


def in_a_circle() -> onnx.ModelProto:
    made = [h.make_function("f", f"f{i}", ["a"], ["c"],
                            [h.make_node(f"f{1 - i}", ["a"], ["c"], domain="f")],
                            [h.make_opsetid("f", 1)]) for i in (0, 1)]
    return model(h.make_node("f0", ["x"], ["y"], domain="f"), functions=made)


def typed(code: int, elements: int = 4) -> onnx.ModelProto:
    made = model(node("Add", "x", "w"), inits=[
        numbers("w", *[1.0] * elements, dtype=T.FLOAT)], x=(elements,))
    made.graph.initializer[0].data_type = code
    return made


def changed(made: onnx.ModelProto, change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    change(made)
    return made


def refused(made: onnx.ModelProto | bytes | str | Path) -> Callable[[], Any]:
    def run() -> Any:
        source = made.SerializeToString() if isinstance(made, onnx.ModelProto) else made
        return jitcl.compile(source, device="cpu")
    return run


def attribute(op: str, kind: str, text: str, *inputs: str, x: Sequence[int] = (1, 1, 4, 4),
              inits: Sequence[Any] = (), dtype: int = T.FLOAT, **attrs: Any) -> Row:
    return Row(lambda: refused(model(node(op, *inputs, **attrs), x=x, inits=inits, dtype=dtype))(),
               kind, text)


def bad(op: str, name: str, got: str, *inputs: str, **more: Any) -> Row:
    """An attribute with a value that ONNX has not: the message names node, op, attribute, got."""
    return attribute(op, "ModelError", f"node 'it' ({op}): attribute '{name}' is {got}", *inputs,
                     **more)


def sized(text: str, *nodes: onnx.NodeProto, kind: str = "ShapeError", **more: Any) -> Row:
    return Row(lambda: refused(model(*nodes, **more))(), kind, text)


def files() -> dict[str, Row]:
    """Paths that are no model's."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    rows = {}

    def path(name: str, make: Callable[[Path], Any], text: str) -> None:
        def run() -> Any:
            make(folder / name)
            return refused(folder / name)()
        rows[f"file {name}"] = Row(run, "ModelError", text)

    def listen(at: Path) -> None:
        os.chdir(at.parent)                  # the name of a socket must be short
        socket.socket(socket.AF_UNIX).bind(at.name)

    def holes(size: int) -> Callable[[Path], None]:
        def make(at: Path) -> None:
            at.touch()
            os.truncate(at, size)
        return make

    path("pipe.onnx", os.mkfifo, "It is a named pipe; only regular files are read")
    path("pipe.jitcl", os.mkfifo, "It is a named pipe; only regular files are read")
    path("zero.onnx", lambda p: p.symlink_to("/dev/zero"), "It is a device; only regular files")
    path("zero.jitcl", lambda p: p.symlink_to("/dev/zero"), "It is a device; only regular files")
    path("folder.onnx", Path.mkdir, "Is a directory")
    path("socket.onnx", listen, "It is a socket; only regular files")
    path("holes.onnx", holes(1 << 40), "It has 1099511627776 bytes; such a file has at most")
    path("holes.jitcl", holes(1 << 40), "It has 1099511627776 bytes; such a file has at most")
    path("small-holes.onnx", holes(64 << 20), "is not an ONNX model, or was cut off")
    path("loop.onnx", lambda p: p.symlink_to(p), "Too many levels of symbolic links")
    path("nodes.onnx", lambda p: p.write_bytes(
        b"\x08\x09\x3a\x80\x80\x80\x03" + b"\x0a\x00" * (3 << 20)), "nodes and tensors")
    path("text.jitcl", lambda p: p.write_bytes(b"\xff\xfe graph"), "")
    rows["file text.jitcl"] = Row(rows["file text.jitcl"].run, "ParseError", "is not UTF-8")
    return rows


NEG = node("Neg", "x")
WEIGHT = numbers("w", 1.0, dtype=T.FLOAT, shape=[1, 1, 1, 1])
SCALES = numbers("s", 1, 1, 2, 2, dtype=T.FLOAT)
CELL = [numbers("w", *[0.0] * 12, dtype=T.FLOAT, shape=[1, 6, 2]),
        numbers("r", *[0.0] * 12, dtype=T.FLOAT, shape=[1, 6, 2])]
UNKNOWN = "which ONNX does not define"


def inputs() -> dict[str, Row]:
    """Models and files."""
    text = {
        "node": (model(h.make_node("Neg", ["x"], ["y"], name="NAMEX")), b"NAMEX"),
        "input": (model(node("Neg", "NAMEX"), name="NAMEX"), b"NAMEX"),
        "value": (model(node("Neg", "x", out=["NAMEX"]), node("Abs", "NAMEX")), b"NAMEX"),
        "op": (model(node("NAMEX", "x")), b"NAMEX"),
        "dimension": (model(NEG, x=("NAMEX",)), b"NAMEX"),
        "domain": (model(node("Neg", "x", domain="NAMEX")), b"NAMEX"),
        "attribute": (model(node("Softmax", "x", NAMEX=1)), b"NAMEX"),
        "initialiser": (model(node("Add", "x", "NAMEX"), inits=[
            numbers("NAMEX", 1.0, dtype=T.FLOAT)]), b"NAMEX"),
    }
    big = [scalar("a", 0), scalar("b", 2 ** 45), scalar("c", 1)]
    return {
        **files(),
        "2^25 calls": Row(refused(calls(2, 25)), "ModelError", "become 67108862 nodes"),
        "3^20 calls": Row(refused(calls(3, 20)), "ModelError", "become 5230176600 nodes"),
        "calls in a circle": Row(refused(in_a_circle()), "ModelError",
                                 "must not be recursive: 'f0' -> 'f1' -> 'f0'"),
        "2000 calls deep": Row(refused(calls(1, 2000)), "ModelError", "depth exceeds limit"),
        **{f"element type {c}": Row(refused(typed(c)), "ModelError",
                                    f"initialiser 'w' has the element type {c}, {UNKNOWN}")
           for c in (99, 0, -1, 2 ** 31 - 1)},
        "element type 99 of many": Row(refused(typed(99, 1 << 16)), "ModelError", UNKNOWN),
        "input of type 99": Row(refused(model(NEG, dtype=99)), "ModelError",
                                f"input 'x' has the element type 99, {UNKNOWN}"),
        "input of type 0": Row(refused(model(NEG, dtype=0)), "ModelError", UNKNOWN),
        "output of type 99": Row(refused(model(NEG, y=99)), "ModelError",
                                 f"output 'y' has the element type 99, {UNKNOWN}"),
        "constant of type 99": Row(refused(changed(
            model(h.make_node("Constant", [], ["w"], name="it", value=numbers("v", 1.0, dtype=1)),
                  node("Add", "x", "w")),
            lambda m: setattr(m.graph.node[0].attribute[0].t, "data_type", 99))),
            "ModelError", "attribute 'value' of node 'it' (Constant) has the element type 99"),
        **{f"cast to {c}": bad("Cast", "to", str(c), "x", to=c) for c in (77, 0, -1, 2 ** 40)},
        "eye of type 77": Row(lambda: refused(model(node("EyeLike", "x", dtype=77), x=(4, 4)))(),
                              "ModelError", "node 'it' (EyeLike): attribute 'dtype' is 77"),
        "random of type 77": Row(lambda: refused(model(node("RandomNormalLike", "x", dtype=77)))(),
                                 "ModelError", "(RandomNormalLike): attribute 'dtype' is 77"),
        **{f"{what} that is no text": Row(refused(replaced(made, name, b"N\xff\xfeEX")),
                                          "ModelError", "is not UTF-8 text")
           for what, (made, name) in text.items()},
        "window of 0": bad("MaxPool", "kernel_shape", "(0, 0)", "x", kernel_shape=[0, 0]),
        "stride of 0": bad("Conv", "strides", "(0, 0)", "x", "w", inits=[WEIGHT], strides=[0, 0]),
        "no groups": bad("Conv", "group", "0", "x", "w", inits=[WEIGHT], group=0),
        "padding of another kind": bad("Conv", "auto_pad", "'SOMETIMES'", "x", "w",
                                       inits=[WEIGHT], auto_pad="SOMETIMES"),
        "resize of another kind": bad("Resize", "mode", "'cubicle'", "x", "", "s",
                                      inits=[SCALES], mode="cubicle"),
        "coordinates of another kind": bad(
            "Resize", "coordinate_transformation_mode", "'foo'", "x", "", "s", inits=[SCALES],
            mode="linear", coordinate_transformation_mode="foo"),
        "pad of another kind": bad("Pad", "mode", "'foo'", "x", "p", x=(4,),
                                   inits=[numbers("p", 1, 1)], mode="foo"),
        "activation of another kind": attribute(
            "GRU", "UnsupportedError", "activation 'Foo': wanted one of Relu", "x", "w", "r",
            x=(1, 1, 2), inits=CELL, activations=["Foo", "Tanh"], hidden_size=2),
        "scatter of another kind": bad("ScatterElements", "reduction", "'foo'", "x", "i", "u",
                                       x=(4,), reduction="foo", inits=[
                                           numbers("i", 0), numbers("u", 1.0, dtype=T.FLOAT)]),
        "shift to nowhere": Row(lambda: refused(model(
            node("BitShift", "x", "x", direction="UP"), dtype=T.UINT8, y=T.UINT8))(),
            "ModelError", "node 'it' (BitShift): attribute 'direction' is 'UP'"),
        "gelu of another kind": bad("Gelu", "approximate", "'foo'", "x", approximate="foo"),
        "blocks of 0": bad("DepthToSpace", "blocksize", "0", "x", x=(1, 4, 1, 1), blocksize=0),
        "a sum over -1": bad("LRN", "size", "-1", "x", size=-1),
        "no parts": bad("Split", "num_outputs", "0", "x", x=(4,), num_outputs=0),
        "more scanned than there is": Row(lambda: refused(model(node(
            "Scan", "x", num_scan_inputs=5, body=h.make_graph(
                [h.make_node("Neg", ["a"], ["o"])], "b", [h.make_tensor_value_info("a", 1, ())],
                [h.make_tensor_value_info("o", 1, ())]))))(),
            "ModelError", "attribute 'num_scan_inputs' is 5, but it has 1 inputs"),
        "parts below 0": sized("split sizes [-1, 5]", node("Split", "x", "s", out=["y", "z"]),
                               inits=[numbers("s", -1, 5)]),
        "range of 2^45": sized("node 'it' (Range)", node("Range", "a", "b", "c"), inits=big,
                               x=(1,), y=T.INT64),
        "range of 2^64": sized("more than any machine holds", node("Range", "a", "b", "c"),
                               inits=[scalar("a", -2 ** 63), scalar("b", 2 ** 63 - 1),
                                      scalar("c", 1)], x=(1,), y=T.INT64),
        "range of 2^40 floats": sized("while the model is read", node("Range", "a", "b", "c"),
                                      inits=[scalar("a", 0, T.FLOAT), scalar("b", 2.0 ** 40, 1),
                                             scalar("c", 1, T.FLOAT)], x=(1,)),
        "shape of 2^33 sizes": sized("would be computed while the model is read",
                                     node("Range", "a", "b", "c", out=["r"]),
                                     node("Reshape", "x", "r"), x=(1,),
                                     inits=[scalar("a", 0), scalar("b", 2 ** 33), scalar("c", 1)]),
        "expanded to 2^62": sized("more than any machine holds", node("Expand", "x", "s"), x=(1,),
                                  inits=[numbers("s", 2 ** 31, 2 ** 31)]),
        "expanded to -7": sized("sizes are 0 or more", node("Expand", "x", "s"), x=(1,),
                                inits=[numbers("s", -7)]),
        "tiled to 2^42": sized("the plan needs", node("Tile", "x", "s"), kind="OutOfMemoryError",
                               inits=[numbers("s", 2 ** 40)]),
        "padded by 2^62": sized("more than any machine holds", node("Pad", "x", "p"),
                                inits=[numbers("p", 2 ** 62, 2 ** 62)]),
        "one of 2^45 classes": sized("more than any machine holds", node("OneHot", "i", "d", "v"),
                                     inits=[numbers("i", 0, 1), numbers("d", 2 ** 45),
                                            numbers("v", 0.0, 1.0, dtype=T.FLOAT)]),
        "an eye of 2^44": sized("while the model is read", node("EyeLike", "x"),
                                x=(2 ** 22, 2 ** 22)),
        "mel filters of 2^62": sized(
            "while the model is read", node("MelWeightMatrix", "a", "b", "c", "d", "e"),
            inits=[scalar("a", 2 ** 31), scalar("b", 2 ** 31), scalar("c", 2 ** 31),
                   scalar("d", 0, T.FLOAT), scalar("e", 1, T.FLOAT)]),
        "a spectrum of 2^40": sized("while the model is read", node("DFT", "x", "n"), x=(1, 4, 1),
                                    inits=[scalar("n", 2 ** 40)]),
        "an input of 2^45": sized("the plan needs", NEG, x=(2 ** 44,), kind="OutOfMemoryError"),
        "an input of 2^60": sized("more than any machine holds", NEG, x=(2 ** 60,),
                                  kind="InputError"),
        "an input of 70 axes": sized("has 70 axes", NEG, x=[1] * 70, kind="ModelError"),
        "a sparse tensor of 2^51": Row(refused(changed(
            model(node("Add", "x", "w"), x=(1,)),
            lambda m: m.graph.sparse_initializer.append(h.make_sparse_tensor(
                numbers("w", 1.0, dtype=T.FLOAT), numbers("i", 2 ** 50), [2 ** 51])))),
            "ModelError", "a sparse tensor of shape [2251799813685248]"),
        "an axis of -2^63": sized("axis -9223372036854775808 is outside",
                                  node("Softmax", "x", axis=-2 ** 63)),
        "an order of one axis": sized("is no order of the 2 axes",
                                      node("Transpose", "x", perm=[0, 0]), x=(2, 2)),
        "a window that is too wide": sized("does not fit an axis of 4",
                                           node("Conv", "x", "w", dilations=[2 ** 40, 1]),
                                           x=(1, 1, 4, 4), inits=[numbers(
                                               "w", 1, 1, 1, dtype=T.FLOAT, shape=[1, 1, 3, 1])]),
        "opset 0": sized("of opset 0; ONNX's are numbered", NEG, opset=0, kind="ModelError"),
        "opset -1": sized("of opset -1; ONNX's are numbered", NEG, opset=-1, kind="ModelError"),
        "opset 2^62": sized("uses opset 4611686018427387904", NEG, opset=2 ** 62,
                            kind="ModelError"),
        "IR version -1": Row(refused(changed(model(NEG), lambda m: setattr(m, "ir_version", -1))),
                             "ModelError", "is not an ONNX model"),
        "sizes below 0": Row(refused(changed(
            typed(T.FLOAT), lambda m: m.graph.initializer[0].dims.__setitem__(0, -4))),
            "ModelError", "Negative dimension"),
        "two of one name": Row(refused(model(node("Neg", "x"), node("Abs", "x"))), "ModelError",
                               "single static assignment"),
    }


# ---- calls

TEXT = "graph @two(%a: f32[n,8], %b: f32[8]) {\n  %sum = add(%a, %b)\n  return %sum\n}"
A, B = np.zeros((2, 8), np.float32), np.zeros(8, np.float32)


class Fails:
    """An array of a library that refuses to give its elements (a tensor that requires grad)."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach()")


class OnAnotherDevice:
    """A tensor in a GPU's memory, as DLPack tells it."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("nobody may ask for it")


class NoCapsule:
    """Says that it is a tensor, and is none."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return "no capsule"


def misuses() -> dict[str, Row]:
    """Arguments of `compile`, `run`, `bind`, `parse` and the others that can't be."""
    graph = jitcl.parse(TEXT)
    two = jitcl.compile(graph, device="cpu")
    bound = two.bind({"a": (2, 8)})
    nested: list[Any] = []
    nested.append(nested)
    wanted = "wanted text such as 'auto', 'cpu'"

    def compiled(kind: str, text: str, **options: Any) -> Row:
        return Row(lambda: jitcl.compile(graph, **{"device": "cpu", **options}), kind, text)

    def source(value: Any, text: str, kind: str = "ModelError") -> Row:
        return Row(lambda: jitcl.compile(value, device="cpu"), kind, text)

    def fed(value: Any, text: str) -> Row:
        return Row(lambda: two.run({"a": value, "b": B}), "InputError", text)

    def put(name: Any, value: Any, text: str) -> Row:
        return Row(lambda: bound.inputs.__setitem__(name, value), "InputError", text)

    whole = "shapes: axis 0 of input 'a' f32[n,8] is "
    return {
        "device=3": compiled("DeviceError", f"device: got 3, {wanted}", device=3),
        "device=[]": compiled("DeviceError", f"device: got a list, {wanted}", device=[]),
        "device=Path": compiled("DeviceError", wanted, device=pathlib.Path("cpu")),
        "device=b'cpu'": compiled("DeviceError", "got b'cpu'", device=b"cpu"),
        "device=Target": compiled("DeviceError", "got a Target", device=two.device.target),
        "device=''": compiled("DeviceError", "no device ''", device=""),
        "device='opencl:99'": compiled("DeviceError", "99", device="opencl:99"),
        "device=half a character": compiled("DeviceError", "There are: ", device="\ud800"),
        "precision=None": compiled("OptionError", "use one of high, normal, low", precision=None),
        "precision=[]": compiled("OptionError", "use one of high, normal, low", precision=[]),
        "memory=0": compiled("OptionError", "use one of low, normal, high", memory=0),
        "tuning='fast'": compiled("OptionError", "use tuning='none'", device="cpu", tuning="fast"),
        "tuning='all'": compiled("OptionError", "use one of none, fast, wide, heavy", tuning="all"),
        "isolation=[]": compiled("OptionError", "always, untrusted, never", isolation=[]),
        "strict='no'": compiled("OptionError", "strict: got 'no', wanted True or False",
                                strict="no"),
        "strict=None": compiled("OptionError", "wanted True or False", strict=None),
        "progress=3": compiled("OptionError", "wanted a function progress(done", progress=3),
        "progress of no arguments": compiled("OptionError", "wanted a function progress(done",
                                             progress=lambda: None),
        "cache_dir=3": compiled("OptionError", "cache_dir: got 3, wanted the path", cache_dir=3),
        "cache_dir=True": compiled("OptionError", "got True, wanted the path", cache_dir=True),
        "cache_dir=b''": compiled("OptionError", "got b'/tmp/x', wanted", cache_dir=b"/tmp/x"),
        "cache_dir=''": compiled("OptionError", "'' is no path", cache_dir=""),
        "cache_dir of a zero byte": compiled("OptionError", "a zero byte", cache_dir="a\0b"),
        "cache_dir of half a character": compiled("OptionError", "is no path here",
                                                  cache_dir="\ud800"),
        "shapes=3": compiled("InputError", "shapes: got 3, wanted a dict", shapes=3),
        "shapes=[]": compiled("InputError", "shapes: got a list, wanted a dict", shapes=[1]),
        "shapes of None": compiled("InputError", whole + "None", shapes={"a": None}),
        "shapes of text": compiled("InputError", whole + "'28'", shapes={"a": "28"}),
        "shapes of floats": compiled("InputError", whole + "2.0", shapes={"a": (2.0, 8)}),
        "shapes of 2^40": compiled("OutOfMemoryError", "the plan needs", shapes={"a": (2**40, 8)}),
        "shapes of 2^62": compiled("InputError", "more than any machine", shapes={"a": (2**62, 8)}),
        "shapes of 2^70": compiled("InputError", "more than any machine", shapes={"a": (2**70, 8)}),
        "shapes by number": compiled("InputError", "there is no input '1'", shapes={1: (2, 8)}),
        "model=None": source(None, "cannot compile a NoneType"),
        "model=''": source("", "Is a directory"),
        "model of a zero byte": source("a\0.onnx", "cannot read model 'a\\x00.onnx'"),
        "model of half a character": source("\ud800.onnx", "cannot read model"),
        "model of a long name": source("x" * 5000 + ".onnx", "name too long"),
        "model=BytesIO": source(io.BytesIO(), "cannot compile a BytesIO"),
        "model=GraphProto": source(onnx.GraphProto(), "cannot compile a GraphProto"),
        "model=a class": source(onnx.ModelProto, "cannot compile a MessageMeta"),
        "model=Model": source(two, "cannot compile a Model"),
        "run(None)": Row(lambda: two.run(None), "InputError", "run() takes a dict"),
        "run by number": Row(lambda: two.run({1: A}), "InputError", "there is no input '1'"),
        "fed a tensor that requires grad": fed(Fails(), "Use tensor.detach()"),
        "fed a tensor on a GPU": fed(OnAnotherDevice(), "on a device (CUDA); copy it"),
        "fed no capsule": fed(NoCapsule(), "that can't be read"),
        "fed ragged lists": fed([[1, 2], [3]], "its lists are not of one length"),
        "fed a list in itself": fed(nested, "that is no array"),
        "fed text": fed("hello", "got a str, wanted an array of float32"),
        "fed texts": fed([["a"] * 8], "wanted numbers of type float32"),
        "fed None": fed(None, "got None, wanted an array of float32"),
        "fed None in a list": fed([[None] * 8], "with None in it"),
        "fed a set": fed({1}, "got a set, wanted an array"),
        "fed complex numbers": fed(A.astype(complex), "got dtype complex128, wanted float32"),
        "fed dates": fed(A.astype("M8[s]"), "got dtype datetime64[s], wanted float32"),
        "fed masked elements": fed(np.ma.masked_array(A, mask=True), "array.filled(value)"),
        "fed 1e39": fed([[1e39] * 8], "got 1e+39, which float32 can't hold"),
        "fed 2^43 elements": Row(lambda: two.run({
            "a": np.broadcast_to(np.float32(0), (2 ** 40, 8)), "b": B}), "OutOfMemoryError",
            "the plan needs"),
        "bind(3)": Row(lambda: two.bind(3), "InputError", "shapes: got 3, wanted a dict"),
        "bind()": Row(lambda: two.bind(), "InputError", "bind: the model leaves the shape"),
        "bind to 2^40": Row(lambda: two.bind({"a": (2 ** 40, 8)}), "OutOfMemoryError",
                            "the plan needs"),
        "bound to an unknown name": put("c", A, "there is no input 'c'; bound are a, b"),
        "bound to a list as a name": put([], A, "there is no input '[]'"),
        "bound to ragged lists": put("a", [[1], [1, 2]], "is no array"),
        "bound to a tensor that requires grad": put("a", Fails(), "Use tensor.detach()"),
        "bound to another shape": put("a", [1.0], "bind() once more for other shapes"),
        "a bound input that is not there": Row(lambda: bound.inputs["c"], "InputError",
                                               "there is no input 'c'"),
        "prepare(None)": Row(lambda: two.prepare(None), "InputError", "prepare: the model leaves"),
        "why(None)": Row(lambda: two.why(None), "InputError", "takes a dict"),
        "parse(None)": Row(lambda: jitcl.parse(None), "ParseError", "got NoneType"),
        "parse(b'')": Row(lambda: jitcl.parse(b"graph"), "ParseError", "got bytes"),
        "parse('')": Row(lambda: jitcl.parse(""), "ParseError", "the text holds nothing"),
        "parse of parentheses": Row(lambda: jitcl.parse(
            "graph @a(%x: f32[1]) { return " + "(" * 10000), "ParseError", "expected"),
    }


TABLES = {"inputs": inputs, "misuses": misuses}


def main(table: str, names: Sequence[str]) -> None:
    """Run rows, and print how each ended."""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rows = TABLES[table]()
    for name in names:
        print(json.dumps({"begun": name}), flush=True)
        start = time.monotonic()
        kind, text = "nothing", ""
        try:
            rows[name].run()
        except BaseException as error:      # noqa: BLE001  whatever it is, it is told
            kind, text = type(error).__name__, str(error)
            if not isinstance(error, jitcl.JitclError):
                kind = f"{kind}, which is no JitclError"
        print(json.dumps({"ended": name, "kind": kind, "text": text,
                          "seconds": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
