"""Models that f16 spoils for some inputs: each fits f32 well, and leaves f16's range inside.

`named`: a node in the layer that does it, as the guard's warning should say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

F, H, N = TensorProto.FLOAT, TensorProto.FLOAT16, 64


@dataclass
class Case:
    nodes: list[NodeProto]
    x: np.ndarray
    named: str
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    more: dict[str, np.ndarray] = field(default_factory=dict)     # inputs of integers and bools
    fine: np.ndarray | None = None                                # an input that f16 can take


def node(op: str, inputs: str, output: str, name: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], name or output, **attributes)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def uniform(*shape: int, seed: int = 0, high: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * high).astype(np.float32)


W = normal(N, N, scale=0.125)
P = uniform(N, N, seed=9, high=0.1)


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def before_a_norm() -> Case:
    """Activations of 1e5, and a norm behind them."""
    return Case([
        node("MatMul", "x w", "a"), node("MatMul", "a big", "b", "grows"),
        node("ReduceMean", "b", "mean", axes=[-1]), node("Sub", "b mean", "d"),
        node("Mul", "d tiny", "e"), node("Mul", "e e", "square"),
        node("ReduceMean", "square", "var", axes=[-1]), node("Sqrt", "var", "std"),
        node("Div", "e std", "y")],
        normal(N, N, seed=1, scale=30), "grows",
        {"w": W, "big": W * 4000, "tiny": scalar(1e-3)})


def long_sum() -> Case:
    """4096 terms, which are right in f32, and 1e5 as a result."""
    return Case([
        node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b ones", "c", "sum"),
        node("MatMul", "c tiny", "y")],
        normal(N, 32, seed=2), "sum",
        {"w": normal(32, 4096, scale=8), "ones": np.ones((4096, N), np.float32),
         "tiny": P * np.float32(1e-3)})


def large_logits() -> Case:
    """A softmax subtracts the largest, which is infinite."""
    return Case([
        node("MatMul", "x w", "q"), node("MatMul", "q big", "logits"),
        node("Softmax", "logits", "p", axis=-1), node("MatMul", "p w", "y")],
        normal(N, N, seed=3, scale=40), "logits", {"w": W, "big": W * 4000})


def tiny_epsilon() -> Case:
    """Of 1e-12, which f16 makes 0, below the square root of what it makes 0, too."""
    return Case([
        node("MatMul", "x w", "a"), node("Mul", "a small", "b"), node("Mul", "b b", "square"),
        node("MatMul", "square ones", "mean"), node("Add", "mean eps", "safe"),
        node("Sqrt", "safe", "root"), node("Div", "b root", "c"), node("MatMul", "c w", "y")],
        normal(N, N, seed=4), "square", {
            "w": W, "ones": np.full((N, N), 1 / N, np.float32), "small": scalar(2.0 ** -15),
            "eps": scalar(1e-12)})


def squared_sum() -> Case:
    """A division by a norm that is infinite: zeros."""
    return Case([
        node("MatMul", "x w", "a"), node("Mul", "a a", "square"),
        node("MatMul", "square ones", "sum"), node("Sqrt", "sum", "length"),
        node("Div", "a length", "b"), node("MatMul", "b w", "y")],
        normal(N, N, seed=5, scale=1500), "square", {"w": W, "ones": np.ones((N, N), np.float32)})


def small_divisor() -> Case:
    """x / (y + eps) where y is 0."""
    return Case([
        node("Relu", "x", "r"), node("Sign", "r", "mask"), node("Add", "mask eps", "safe"),
        node("MatMul", "x v", "b"), node("Div", "b safe", "q", "quotient"),
        node("MatMul", "q flat", "c"), node("MatMul", "c w", "y")],
        normal(N, N, seed=6), "quotient",
        {"w": W, "v": normal(N, N, seed=7, scale=0.5), "eps": scalar(2.0 ** -22),
         "flat": P * np.float32(1e-4)})


def fourier() -> Case:
    """A transform, a product, and the transform back: the mean is a sum in between."""
    turns = np.outer(np.arange(N), np.arange(N)) * (2 * np.pi / N)
    return Case([
        node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b cos", "rows"),
        node("MatMul", "cos rows", "spectrum"), node("Mul", "spectrum gain", "filtered"),
        node("MatMul", "icos filtered", "half"), node("MatMul", "half icos", "y")],
        normal(N, N, seed=8, scale=50), "spectrum",
        {"w": W, "cos": np.cos(turns).astype(np.float32), "gain": uniform(N, N, high=1.0),
         "icos": (np.cos(turns) / N).astype(np.float32)})


def image() -> Case:
    """Pixels of 0..1 are fine, of 0..255 not."""
    return Case([
        node("Conv", "pixels w", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
        node("Conv", "b v", "c", "second", pads=[1, 1, 1, 1]), node("Relu", "c", "d"),
        node("Conv", "d u", "y", "last")],
        uniform(1, 3, 32, 32, seed=10, high=255), "second",
        {"w": uniform(16, 3, 3, 3, high=2.0), "v": uniform(16, 16, 3, 3, seed=1),
         "u": uniform(3, 16, 1, 1, seed=2, high=1e-4)},
        fine=uniform(1, 3, 32, 32, seed=10))


def body(result: str, extra: list[NodeProto], inputs: list[Any], outputs: list[Any]) -> Any:
    """A body that leaves the range and comes back: `s` to `result`."""
    return helper.make_graph([
        node("MatMul", "s big", "p", f"{result}/product"), node("MatMul", "p small", "q"),
        node("Tanh", "q", result), *extra], result, inputs, outputs)


def in_a_loop() -> Case:
    """In the body of a loop as long as an input says."""
    inner = body("r", [node("Identity", "going", "on")], [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        helper.make_tensor_value_info("s", F, [N, N])], [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("r", F, None)])
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], "loop", body=inner)
    return Case([loop], normal(N, N, seed=11, scale=30), "r/product",
                {"big": P * 30000, "small": P * np.float32(1e-5)},
                {"count": np.array(40, np.int64)})


def in_a_branch() -> Case:
    """In the branch that an input chooses."""
    then, other = (body(n, [], [], [helper.make_tensor_value_info(n, F, None)])
                   for n in ("then", "other"))
    return Case([
        node("MatMul", "x w", "s", "first"),
        node("If", "yes", "t", then_branch=then, else_branch=other), node("MatMul", "t w", "y")],
        normal(N, N, seed=12, scale=30), "then/product",
        {"w": W, "big": W * 8000, "small": W * np.float32(1e-4)}, {"yes": np.array(True)})


def variance() -> Case:
    """Of nearly equal numbers, as the mean of squares less the square of the mean."""
    return Case([
        node("MatMul", "x w", "a"), node("Add", "a offset", "b"), node("Mul", "b b", "square"),
        node("MatMul", "square mean", "m2", "mean_of_squares"),
        node("MatMul", "b mean", "m", "mean_of_all"), node("Mul", "m m", "m_squared"),
        node("Sub", "m2 m_squared", "var"), node("Abs", "var", "positive"),
        node("Sqrt", "positive", "y")],
        normal(N, N, seed=13, scale=100), "square",
        {"w": W, "offset": scalar(600.0), "mean": np.full((N, N), 1 / N, np.float32)})


def residual_chain() -> Case:
    """Each block adds to what it reads."""
    nodes, value = [], "x"
    for k in range(8):
        nodes += [node("MatMul", f"{value} w", f"p{k}"), node("Relu", f"p{k}", f"r{k}"),
                  node("Add", f"{value} r{k}", f"s{k}", f"block{k}")]
        value = f"s{k}"
    return Case([*nodes, node("MatMul", f"{value} tiny", "y")],
                uniform(N, N, seed=14, high=60), "block",
                {"w": P, "tiny": P * np.float32(1e-3)})


CASES: dict[str, Callable[[], Case]] = {c.__name__: c for c in (
    before_a_norm, tiny_epsilon, long_sum, fourier, in_a_loop, squared_sum, residual_chain,
    small_divisor, image, large_logits, in_a_branch, variance)}     # tests take every 5th or 7th


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    return {"pixels" if case.x.ndim == 4 else "x": case.x, **case.more}


def model_of(case: Case, name: str = "net") -> ModelProto:
    """The f32 file."""
    kinds = {np.dtype("f4"): F, np.dtype("i8"): TensorProto.INT64, np.dtype("?"): TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape)
              for n, a in feeds_of(case).items()]
    graph = helper.make_graph(case.nodes, name, inputs,
                              [helper.make_tensor_value_info("y", F, None)],
                              [numpy_helper.from_array(a, n) for n, a in case.constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def halved(model: ModelProto) -> ModelProto:
    """The same as an f16 file, as converters make it: inputs and outputs stay f32."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    floats = [v.name for v in graph.input if v.type.tensor_type.elem_type == F]
    for tensor in graph.initializer:
        if tensor.data_type == F:
            with np.errstate(over="ignore"):
                tensor.CopyFrom(numpy_helper.from_array(
                    numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    nodes = list(graph.node)
    for inner in nodes:
        inner.input[:] = [f"{i}_half" if i in floats else i for i in inner.input]
        inner.output[:] = ["y_half" if o == "y" else o for o in inner.output]
        for attribute in inner.attribute:
            for value in attribute.g.input:
                if value.type.tensor_type.elem_type == F:
                    value.type.tensor_type.elem_type = H
            for value in attribute.g.output:
                if value.type.tensor_type.elem_type == F:
                    value.type.tensor_type.elem_type = H
    casts = [node("Cast", n, f"{n}_half", to=H) for n in floats]
    del graph.node[:]
    graph.node.extend([*casts, *nodes, node("Cast", "y_half", "y", "y_cast", to=F)])
    return made
