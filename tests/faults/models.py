"""Models for the fault matrix: ones of our own, and real ones where their folder is present.

Each has feeds and what should come out, in the format of the real models' golden runs
("in0:<name>", "out0:<name>"), whose outputs are onnxruntime's; our own models' are the CPU path's.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jitcl
from tests.real_models import MODELS, absent

ROOT = Path(__file__).resolve().parents[2]
SUPERRES = ROOT / "examples" / "superres-x3.onnx"
LOW_BITS = 0.15                         # of int8 and int4: the engines round in other places
# Between CPU and GPU, or to onnxruntime; 2**-11 is a rounding to half. Under "high" only the fp16
# model stores halves; otherwise each layer of each model does.
TOLERANCES = {"high": 2e-3, "normal": 2e-2, "low": 2e-2}
CHANNELS, LENGTH = 64, 12


@dataclass(frozen=True)
class Case:
    """A model, and the file with its feeds and what should come out."""

    name: str
    path: Path
    golden: Path
    low_bits: bool = False

    def tolerance(self, precision: str) -> float:
        """Of the largest difference, in units of the largest magnitude."""
        return LOW_BITS if self.low_bits else TOLERANCES[precision]


def missing(name: str) -> str:
    """Why a model can't be had here, for skips; "" where it can."""
    if name == "minilm_int4":
        return missing("minilm_l6_v2")
    return "" if name in OWN else absent(name)


@functools.cache
def case(name: str) -> Case:
    """The model of this name; own ones are made, and computed on the CPU path."""
    if name not in OWN:
        return Case(name, MODELS / f"{name}.onnx", MODELS / "golden" / f"{name}.0.npz",
                    any(tag in name for tag in ("int8", "int4", "qop", "qdq")))
    folder = Path(tempfile.mkdtemp(prefix="jitcl-faults-"))
    path, feeds = OWN[name](folder)
    outputs = jitcl.compile(path, device="cpu", cache_dir=folder).run(feeds)
    named = {f"in{i}:{k}": v for i, (k, v) in enumerate(feeds.items())}
    named |= {f"out{i}:{k}": v for i, (k, v) in enumerate(outputs.items())}
    np.savez(folder / "golden.npz", **named)
    return Case(name, path, folder / "golden.npz", low_bits=False)


def _superres(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The example's network on a small picture: convolutions, an addition, an upscaling."""
    image = np.random.default_rng(1).random((1, 3, 20, 24), np.float32)
    return SUPERRES, {"image": image}


def _block(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A transformer's block with weights of 4 bits: products, a softmax, a normalisation, a GELU.
    """
    rng = np.random.default_rng(2)
    constants: dict[str, np.ndarray] = {}
    nodes = []

    def constant(name: str, value: np.ndarray) -> str:
        constants[name] = value
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def linear(x: str, output: str) -> str:
        packed = rng.integers(0, 256, (CHANNELS, CHANNELS // 32, 16), np.uint8)
        scales = (rng.random((CHANNELS, CHANNELS // 32)) * 0.02 + 0.01).astype(np.float32)
        return node("MatMulNBits", [x, constant(f"{output}.w", packed),
                                    constant(f"{output}.s", scales.reshape(-1))], output,
                    domain="com.microsoft", K=CHANNELS, N=CHANNELS, bits=4, block_size=32)

    q, k, v = (linear("x", n) for n in "qkv")
    scores = node("MatMul", [q, node("Transpose", [k], "kt", perm=[0, 2, 1])], "scores")
    scaled = node("Mul", [scores, constant("scale", np.float32(CHANNELS ** -0.5))], "scaled")
    mixed = node("MatMul", [node("Softmax", [scaled], "weights", axis=-1), v], "mixed")
    added = node("Add", ["x", linear(mixed, "o")], "added")
    normed = node("LayerNormalization", [
        added, constant("gamma", np.ones(CHANNELS, np.float32)),
        constant("beta", np.zeros(CHANNELS, np.float32))], "normed", axis=-1)
    root = constant("root", np.float32(2 ** 0.5))
    erf = node("Erf", [node("Div", [normed, root], "halved")], "erf")
    gelu = node("Mul", [normed, node("Add", [erf, constant("one", np.float32(1))], "shift")], "y")
    shape = [1, LENGTH, CHANNELS]
    graph = helper.make_graph(
        nodes, "block", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(gelu, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "block.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path, {"x": rng.standard_normal(shape).astype(np.float32)}


def _halves(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Two products, with a gate between them that precision "low" computes in halves."""
    rng = np.random.default_rng(4)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64), np.float32) / 8, name)
               for name in ("w", "v")]
    nodes = [helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes
             in (("MatMul", ["x", "w"], "a", {}), ("Tanh", ["a"], "b", {}),
                 ("Transpose", ["b"], "c", {"perm": [1, 0]}), ("Sigmoid", ["c"], "d", {}),
                 ("Mul", ["b", "d"], "e", {}), ("MatMul", ["e", "v"], "y", {}))]
    named = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (64, 64)) for n in "xy"]
    graph = helper.make_graph(nodes, "halves", named[:1], named[1:], weights)
    path = folder / "halves.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9),
              path)
    return path, {"x": rng.standard_normal((64, 64), np.float32)}


def _minilm_int4(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The sentence embedding with its weights in 4 bits, by blocks of 32 of a row."""
    model = onnx.load(MODELS / "minilm_l6_v2.onnx")
    graph = model.graph
    stored = {t.name: t for t in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in stored]:
        weights = numpy_helper.to_array(stored[node.input[1]]).T        # (N, K)
        n, k = weights.shape
        blocks = weights.reshape(n, k // 32, 32)
        scales = np.abs(blocks).max(axis=2) / 7
        levels = np.clip(np.rint(blocks / np.maximum(scales, 1e-9)[..., None]) + 8, 0, 15)
        packed = levels.astype(np.uint8)
        packed = packed[..., 0::2] | packed[..., 1::2] << 4
        name = node.input[1]
        graph.initializer.extend([
            numpy_helper.from_array(packed, f"{name}.w"),
            numpy_helper.from_array(scales.reshape(-1).astype(np.float32), f"{name}.s")])
        low = helper.make_node(
            "MatMulNBits", [node.input[0], f"{name}.w", f"{name}.s"], node.output, name=node.name,
            domain="com.microsoft", K=k, N=n, bits=4, block_size=32)
        node.CopyFrom(low)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = folder / "minilm_int4.onnx"
    onnx.save(model, path)
    with np.load(MODELS / "golden" / "minilm_l6_v2.0.npz") as z:
        return path, {k.split(":", 1)[1]: z[k] for k in z.files if k.startswith("in")}


OWN: dict[str, Callable[[Path], tuple[Path, dict[str, np.ndarray]]]] = {
    "superres": _superres, "block": _block, "halves": _halves, "minilm_int4": _minilm_int4}
