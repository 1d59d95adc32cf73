"""How far off an op's result may be by its formula, where errors of its operands and in units of
its result do not show it: sums that cancel, and what an op computes on the way and does not give.

Sums: in any order, n terms are off by gamma sum |terms| at most, gamma = n u / (1 - n u)
(N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). Halves are summed in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.corrected import evaluate, is_float, unit

Arrays = Sequence[np.ndarray | None]

# sums of products of operands: the op of the operands' absolutes is the sum of its terms'
SUMS = frozenset("""ReduceSum ReduceMean CumSum GlobalAveragePool AveragePool MatMul Gemm Conv
    ConvTranspose Einsum Sum Mean""".split())
# a factor or divisor is a sum of positive terms (or a root of it)
POSITIVE = frozenset("""ReduceL1 ReduceL2 ReduceSumSquare LpPool Softmax LpNormalization
    RMSNormalization LRN""".split())
LOGARITHMS = frozenset("ReduceLogSum ReduceLogSumExp LogSoftmax".split())       # of sums
PRODUCTS = frozenset("ReduceProd CumProd".split())
NORMALISING = frozenset("InstanceNormalization LayerNormalization GroupNormalization".split())


def off(proto: onnx.NodeProto, inputs: Arrays, result: np.ndarray, dtype: np.dtype) -> Any:
    """What the first output may be off by: a number or an array."""
    x, op = inputs[0], proto.op_type
    held = computed(dtype)
    u, info = unit(held), np.finfo(held)
    if op in SUMS:
        sizes = _of_absolutes(proto, inputs)
        return np.where(sizes > float(info.max), np.inf, gamma(_terms(proto, inputs, result), u)
                        * sizes)
    if op in POSITIVE or op in PRODUCTS:
        n = _terms(proto, inputs, result)
        # powers that are no normal numbers may be 0
        lost = (n * float(info.tiny)) ** (1 / _power(proto)) if op in ("ReduceL2", "LpPool") else 0
        return gamma(n, u) * np.abs(result) + lost
    if op in LOGARITHMS:                # of a sum s (1 + e): off by e
        e = gamma(_terms(proto, inputs, result), u)
        if op != "ReduceLogSum":
            return e
        total = _as(proto, "ReduceSum", inputs)
        return e * _of_absolutes(_called(proto, "ReduceSum"), inputs) / np.abs(total)
    if op in NORMALISING:
        return _normalised(proto, *inputs[:2], u)
    # x sigmoid(x): where the sigmoid is no normal number any more, it may be 0
    if op == "Swish":
        return float(info.tiny) * np.abs(x)
    if op == "SwiGLU":
        return float(info.tiny) * np.abs(x * inputs[1])
    return 0.0


def unknown(proto: onnx.NodeProto, samples: Sequence[Arrays], dtype: np.dtype) -> Any:
    """Where a right device may give anything, or anything of a wide range; `samples`: the node's
    inputs in each evaluation, the exact one first."""
    x, op = samples[0][0], proto.op_type
    if op in PRODUCTS:                  # some order of the factors meets an infinity or a zero
        info = np.finfo(computed(dtype))
        logs = np.log2(np.abs(x), where=(x != 0) & np.isfinite(x), out=np.zeros_like(x))
        name = "ReduceSum" if op == "ReduceProd" else "CumSum"
        rise, fall = (_as(proto, name, (part, *samples[0][1:]))
                      for part in (np.maximum(logs, 0), np.minimum(logs, 0)))
        return (rise > np.log2(float(info.max))) | (fall < np.log2(float(info.tiny)))
    if op in ("Sin", "Cos", "Tan"):     # a phase that errors move past a pole, or a quarter period
        turns = np.stack([s[0] for s in samples]) / np.pi
        if op == "Tan":
            return np.ptp(np.floor(turns + 0.5), axis=0) > 0
        return np.ptp(turns, axis=0) > 0.5
    if op == "Mod":                     # a - q b with another q
        whole = np.trunc if any(a.name == "fmod" and a.i for a in proto.attribute) else np.floor
        return np.ptp([whole(s[0] / s[1]) for s in samples], axis=0) > 0
    if op in ("Div", "Reciprocal"):     # by what may be 0
        divisors = np.stack([s[-1] for s in samples])
        away = np.abs(divisors - divisors[0]).max(axis=0)
        zero = (away > 0) & (away >= np.abs(divisors[0]))
        return np.broadcast_to(zero, np.broadcast_shapes(x.shape, zero.shape))
    if op == "ReduceL2":
        sums = _as(proto, "ReduceSumSquare", samples[0])
        return np.isfinite(sums) & (sums > float(np.finfo(computed(dtype)).max))
    if (sums := _powers(proto, x)) is not None:         # a sum of powers that overflows, or is lost
        info = np.finfo(computed(dtype))
        bad = np.isfinite(sums) & (sums > float(info.max))
        if op == "LpNormalization":     # it is divided by, and nothing is added
            bad |= (sums > 0) & (sums < x.size * float(info.tiny) / float(info.eps))
        return bad
    return False


def _power(proto: onnx.NodeProto) -> int:
    return int(attributes(proto).get("p", 2))


def _powers(proto: onnx.NodeProto, x: np.ndarray) -> np.ndarray | None:
    """The sum of powers that an op takes a root of, for each of its results."""
    op, axis = proto.op_type, attributes(proto).get("axis", -1)
    if op == "LpNormalization":
        sums = (np.abs(x) ** _power(proto)).sum(axis, keepdims=True)
    elif op == "RMSNormalization":
        sums = (x * x).sum(tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    elif op in NORMALISING:
        rows, axes = _rows(proto, x)
        sums = ((rows - rows.mean(axes, keepdims=True)) ** 2).sum(axes, keepdims=True)
        return np.broadcast_to(sums, rows.shape).reshape(x.shape)
    else:
        return None
    return np.broadcast_to(sums, x.shape)


def computed(dtype: np.dtype) -> np.dtype:
    """The type that values of a type are computed in."""
    return np.dtype(dtype if dtype.itemsize >= 4 else np.float32)


def gamma(n: int, u: float) -> float:
    return n * u / (1 - n * u)


def attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in proto.attribute}


def _called(proto: onnx.NodeProto, op: str) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    made.op_type = op
    return made


def _as(proto: onnx.NodeProto, op: str, inputs: Arrays) -> np.ndarray:
    """What another op of the same attributes makes of the inputs."""
    return evaluate(_called(proto, op), inputs)[0]


def _of_absolutes(proto: onnx.NodeProto, inputs: Arrays) -> np.ndarray:
    made = _called(proto, proto.op_type)
    for a in made.attribute:
        a.f = abs(a.f)                  # alpha and beta of Gemm
    return evaluate(made, [np.abs(a) if a is not None and is_float(a.dtype) else a
                           for a in inputs])[0]


def _terms(proto: onnx.NodeProto, inputs: Arrays, result: np.ndarray) -> int:
    """The number of terms (or factors) of an element of the result, at most."""
    x, attrs, op = inputs[0], attributes(proto), proto.op_type
    if op in ("MatMul", "Gemm"):
        k = x.shape[0 if attrs.get("transA") else -1]
        return int(k) + 1
    if op == "Conv":
        return math.prod(inputs[1].shape[1:]) + 1
    if op == "ConvTranspose":
        w = inputs[1].shape
        return w[0] // attrs.get("group", 1) * math.prod(w[2:]) + 1
    if op in ("AveragePool", "LpPool"):
        return math.prod(attrs["kernel_shape"])
    if op in ("Sum", "Mean"):
        return len(inputs)
    if op == "Einsum":
        return int(evaluate(proto, [np.ones_like(a) for a in inputs])[0].max(initial=1))
    if op == "LRN":
        return int(attrs["size"])
    if op in ("CumSum", "CumProd"):
        return x.shape[int(inputs[1])]
    if op in ("Softmax", "LogSoftmax", "LpNormalization"):
        return x.shape[attrs.get("axis", -1)]
    if op == "RMSNormalization":
        return math.prod(x.shape[attrs.get("axis", -1) % x.ndim:])
    return x.size // max(1, result.size)            # reductions


def _normalised(proto: onnx.NodeProto, x: np.ndarray, scale: np.ndarray, u: float) -> np.ndarray:
    """Of (x - mean) / deviation * scale: the mean of n is off by gamma mean |x|, which stays where
    x varies little (no error of x shows it: it moves the mean along); the deviation by half of what
    its square is, a mean of n squares and of the mean's error. What is added may cancel the rest.
    """
    rows, axes = _rows(proto, x)
    if proto.op_type != "LayerNormalization":
        scale = scale.reshape(-1, *(1,) * (x.ndim - 2))
    n = math.prod(rows.shape[a] for a in axes)
    square = rows.var(axes, keepdims=True) + attributes(proto).get("epsilon", 1e-5)
    mean_off = gamma(n + 2, u) * np.abs(rows).mean(axes, keepdims=True)
    normal = np.abs(rows - rows.mean(axes, keepdims=True)) / np.sqrt(square)
    # 14 u: a difference, OpenCL's 3 ulp of a root and 2.5 of a quotient, two products
    relative = gamma(n + 3, u) / 2 + mean_off ** 2 / (2 * square) + 14 * u
    error = mean_off / np.sqrt(square) + normal * relative
    return np.abs(error.reshape(x.shape) * scale)


def _rows(proto: onnx.NodeProto, x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """x in the shape that a normalisation has its mean of, and along which axes."""
    attrs = attributes(proto)
    if proto.op_type == "LayerNormalization":
        return x, tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim))
    groups = attrs.get("num_groups", x.shape[1])
    rows = x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
    return rows, tuple(range(2, rows.ndim))
