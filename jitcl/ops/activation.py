"""Activations, element by element, and the softmax family along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F16,
    F32,
    I32,
    Spec,
    composite,
    elementwise,
    fixed,
    norm_axis,
    onnx_rule,
    sample,
)

_EDGES = fixed(-math.inf, -99.0, -0.0, 99.0, math.inf, math.nan)
_ONE = [sample(F32(2, 30, low=-8, high=8)), sample(F16(20), rtol=1e-3), sample(_EDGES)]
_FINITE = [sample(F32(2, 30, low=-8, high=8)), sample(F16(20), rtol=1e-3),
           sample(fixed(-99.0, -0.0, 99.0, math.nan))]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> Any:
    """To the last bits far below 0, too, where 1 + tanh(x / 2) cancels."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# ---- pieces of lines

@elementwise(onnx="Relu", ref=lambda x: np.maximum(x, 0), samples=[*_ONE, sample(I32(9))])
def relu(s: KernelBuilder, x: Expr) -> Expr:
    return s.max(x, 0)


@elementwise(onnx="LeakyRelu", ref=lambda x, alpha=0.01: np.where(x < 0, alpha * x, x),
             samples=[*_ONE, sample(F32(9), alpha=0.2)])
def leaky_relu(s: KernelBuilder, x: Expr, alpha: float = 0.01) -> Expr:
    """x, times alpha where negative."""
    return s.select(x < 0, x * alpha, x)


@elementwise(onnx="PRelu", ref=lambda x, slope: np.where(x < 0, slope * x, x),
             samples=[sample(F32(2, 3, 4), F32(3, 1)), sample(I32(9), I32(1)),
                      sample(F16(9), F16(9), rtol=1e-3)])
def prelu(s: KernelBuilder, x: Expr, slope: Expr) -> Expr:
    """x, times slope where negative (He et al., 2015, "Delving deep into rectifiers")."""
    return s.select(x < 0, x * slope, x)


@elementwise(onnx="ThresholdedRelu", ref=lambda x, alpha=1.0: np.where(x > alpha, x, 0),
             samples=[sample(F32(30)), sample(F32(9), alpha=0.5)])
def thresholded_relu(s: KernelBuilder, x: Expr, alpha: float = 1.0) -> Expr:
    """x where above alpha, else 0."""
    return s.select(x > alpha, x, 0)


@elementwise(ref=lambda x, bias=0.0, threshold=0.5: np.where(
    x < -threshold, x + bias, np.where(x > threshold, x - bias, 0)),
    samples=[sample(F32(30)), sample(F32(30), bias=0.5, threshold=1.5),
             sample(I32(9), bias=1.0, threshold=2.0)])
def shrink(s: KernelBuilder, x: Expr, bias: float = 0.0, threshold: float = 0.5) -> Expr:
    """x drawn toward 0 by bias, and 0 between -threshold and threshold."""
    wide = x if x.dtype in ("f32", "f64") else s.cast(x, "f32")
    moved = s.select(wide < -threshold, wide + bias, s.select(wide > threshold, wide - bias, 0))
    return s.cast(moved, x.dtype)


@onnx_rule("Shrink")
def _shrink(g: GraphBuilder, node: Any) -> Node:
    return g.shrink(*node.inputs, bias=node.attrs.get("bias", 0.0),
                    threshold=node.attrs.get("lambd", 0.5))


@elementwise(onnx="HardSigmoid", range="bounds",
             ref=lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
             samples=[*_ONE, sample(F32(9), alpha=0.5, beta=0.6)])
def hard_sigmoid(s: KernelBuilder, x: Expr, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """alpha * x + beta, clipped to 0..1."""
    return s.min(s.max(x * alpha + beta, 0), 1)


@composite(onnx="HardSwish", ref=lambda x: x * np.clip(x / 6 + 0.5, 0, 1), samples=_FINITE)
def hard_swish(g: GraphBuilder, x: Node) -> Node:
    """x * clip(x/6 + 1/2, 0, 1) (Howard et al., 2019, "Searching for MobileNetV3")."""
    return g.mul(x, g.hard_sigmoid(x, alpha=1 / 6, beta=0.5))


# ---- with exponentials

@elementwise(onnx="Sigmoid", range="bounds", ref=_sigmoid, samples=_ONE)
def sigmoid(s: KernelBuilder, x: Expr) -> Expr:
    """1 / (1 + exp(-x)); an exp that overflows gives the right 0."""
    return s.div(1.0, s.exp(-x) + 1.0)


@elementwise(onnx="Softplus", ref=lambda x: np.logaddexp(x, 0), samples=_ONE)
def softplus(s: KernelBuilder, x: Expr) -> Expr:
    """log(1 + exp(x)), written so that exp cannot overflow."""
    return s.max(x, 0.0) + s.log(s.exp(-s.abs(x)) + 1.0)


@elementwise(onnx="Softsign", range="bounds", ref=lambda x: x / (1 + np.abs(x)), samples=_FINITE)
def softsign(s: KernelBuilder, x: Expr) -> Expr:
    return x / (s.abs(x) + 1.0)


@elementwise(onnx="Elu", ref=lambda x, alpha=1.0: np.where(x < 0, alpha * np.expm1(x), x),
             samples=[*_ONE, sample(F32(9), alpha=2.0)])
def elu(s: KernelBuilder, x: Expr, alpha: float = 1.0) -> Expr:
    """x, or alpha * (exp(x) - 1) where negative (Clevert et al., 2015)."""
    return s.select(x < 0, (s.exp(x) - 1.0) * alpha, x)


@elementwise(onnx="Celu", samples=[*_ONE, sample(F32(9), alpha=2.0)],
             ref=lambda x, alpha=1.0: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)))
def celu(s: KernelBuilder, x: Expr, alpha: float = 1.0) -> Expr:
    """x, or alpha * (exp(x / alpha) - 1) where negative (Barron, 2017)."""
    return s.select(x < 0, (s.exp(x * (1 / alpha)) - 1.0) * alpha, x)


SELU_ALPHA, SELU_GAMMA = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _selu(x: np.ndarray, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Any:
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


@elementwise(onnx="Selu", ref=_selu, samples=[*_ONE, sample(F32(9), alpha=2.0, gamma=3.0)])
def selu(s: KernelBuilder, x: Expr, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Expr:
    """gamma * x, or gamma * alpha * (exp(x) - 1) where negative (Klambauer et al., 2017)."""
    return s.select(x <= 0, (s.exp(x) - 1.0) * (alpha * gamma), x * gamma)


@elementwise(onnx="Swish", ref=lambda x, alpha=1.0: x * _sigmoid(alpha * x),
             samples=[*_FINITE, sample(F32(9), alpha=1.702)])
def swish(s: KernelBuilder, x: Expr, alpha: float = 1.0) -> Expr:
    """x * sigmoid(alpha * x); SiLU where alpha is 1."""
    return x / (s.exp(x * -alpha) + 1.0)


@composite(onnx="SwiGLU", ref=lambda a, b, alpha=1.0: a * _sigmoid(alpha * a) * b,
           samples=[sample(F32(2, 9), F32(2, 9)), sample(F32(9), F32(9), alpha=1.5)])
def swiglu(g: GraphBuilder, a: Node, b: Node, alpha: float = 1.0) -> Node:
    """swish(a) * b (Shazeer, 2020, "GLU variants improve transformer")."""
    return g.mul(g.swish(a, alpha=alpha), b)


@elementwise(onnx="Mish", ref=lambda x: x * np.tanh(np.logaddexp(x, 0)), samples=_FINITE)
def mish(s: KernelBuilder, x: Expr) -> Expr:
    """x * tanh(softplus(x)) (Misra, 2019)."""
    return x * s.tanh(s.max(x, 0.0) + s.log(s.exp(-s.abs(x)) + 1.0))


def _gelu(x: np.ndarray, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


@elementwise(onnx="Gelu", ref=_gelu, samples=[
    *_FINITE, sample(F32(30, low=-8, high=8), approximate="tanh")])
def gelu(s: KernelBuilder, x: Expr, approximate: str = "none") -> Expr:
    """x times the normal distribution below x, exact or by tanh (Hendrycks and Gimpel, 2016)."""
    if approximate == "tanh":
        return x * 0.5 * (s.tanh((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (s.erf(x * math.sqrt(0.5)) + 1.0)


# ---- along an axis

def _softmax(x: np.ndarray, axis: int = -1) -> Any:
    e = np.exp(x - np.max(x, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)


_AXES = [sample(F32(3, 7)), sample(F32(2, 5, 3), axis=1), sample(F16(4, 9), rtol=1e-3),
         sample(F32(1, 9, low=-900, high=900))]


@composite(ref=_softmax, samples=_AXES)
def softmax(g: GraphBuilder, x: Node, axis: int = -1) -> Node:
    """exp(x) / sum(exp(x)) along an axis, shifted by the maximum so that exp cannot overflow."""
    e = g.exp(g.sub(x, g.reduce_max(x, axes=(axis,))))
    return g.div(e, g.reduce_sum(e, axes=(axis,)))


def _log_softmax(x: np.ndarray, axis: int = -1) -> Any:
    x = x.astype(np.float64)
    shifted = x - np.max(x, axis, keepdims=True)             # its exp may underflow, it does not
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


@composite(ref=_log_softmax, samples=_AXES)
def log_softmax(g: GraphBuilder, x: Node, axis: int = -1) -> Node:
    """log(softmax(x)) along an axis, without the log of a tiny number."""
    shifted = g.sub(x, g.reduce_max(x, axes=(axis,)))
    return g.sub(shifted, g.log(g.reduce_sum(g.exp(shifted), axes=(axis,))))


def _hardmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    y = np.zeros_like(x)
    np.put_along_axis(y, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
    return y


@composite(ref=_hardmax, samples=[*_AXES[:2], sample(Spec((1, 4), values=(1.0, 3.0, 3.0, 0.0)))])
def hardmax(g: GraphBuilder, x: Node, axis: int = -1) -> Node:
    """1 at the first maximum along an axis, else 0."""
    axis = norm_axis(axis, x.type.rank)
    places = np.arange(x.type.dims[axis]).reshape(-1, *(1,) * (x.type.rank - axis - 1))
    return g.cast(g.equal(g.argmax(x, axis=axis), g.const(places)), to=x.type.dtype)


@onnx_rule("Softmax", "LogSoftmax", "Hardmax")
def _along_axis(g: GraphBuilder, node: Any) -> Node:
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}[node.op_type]
    return g.op(name, node.inputs[0], axis=node.attrs.get("axis", -1))
