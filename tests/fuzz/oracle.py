"""What a right answer is, and how far from it a right device may be.

A graph is evaluated node by node, by onnx's reference, in float64: once exactly, once with every
result rounded to its type, and a few times with errors put into it, as large as a device may make
them (`ROUNDING`: units in the last place of each op's operands and of its result). What these
evaluations give differs by what errors that large do to the results. This is stochastic arithmetic
(Vignes, "A stochastic arithmetic for reliable scientific computation", 1993): the tolerance follows
from types, ops and data. Elements that hang on an undecided comparison, rounding or overflow differ
wildly, and are not judged.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

SAMPLES = 6                     # with errors, beside the exact and the rounded evaluation
MARGIN = 4.0                    # errors are drawn so much larger: few samples miss the worst

# op -> units in the last place that (each operand, the result) may be off by. Of elementary
# functions: what OpenCL 1.2 allows (table 7.4.1). Sums: operands are off at random, which is how
# rounding spreads in a sum of any order.
_EXACT = frozenset("""Abs Neg Ceil Floor Round Sign Relu Not And Or Xor Equal Less LessOrEqual
    Greater GreaterOrEqual IsNaN IsInf Identity Where Max Min Transpose Reshape Flatten Squeeze
    Unsqueeze Expand Tile Concat Split Slice Pad DepthToSpace SpaceToDepth Trilu ReverseSequence
    Gather GatherElements GatherND OneHot EyeLike ConstantOfShape Shape Size Clip ArgMax
    ArgMin Hardmax TopK MaxPool GlobalMaxPool ReduceMax ReduceMin BitShift BitwiseAnd BitwiseOr
    BitwiseXor BitwiseNot MaxUnpool Dropout""".split())
ROUNDING: dict[str, tuple[float, float]] = {
    **dict.fromkeys(_EXACT, (0, 0)),
    **dict.fromkeys("Add Sub Mul Cast CastLike ThresholdedRelu LeakyRelu PRelu Shrink".split(),
                    (0, 1)),
    **dict.fromkeys("Div Sqrt Reciprocal Exp Log".split(), (0, 4)),
    **dict.fromkeys("Sin Cos Tan Sinh Cosh Tanh Asin Acos Atan Asinh Acosh Atanh".split(), (1, 6)),
    **dict.fromkeys("Erf Pow".split(), (1, 16)),
    **dict.fromkeys("Range Resize".split(), (0, 8)),
}
DEFAULT = (2.0, 8.0)            # anything composed of several operations
# ops that add what may cancel: errors in units of the largest operand, or of 1 if that is more
ABSOLUTE = {**dict.fromkeys("Gelu Mish Elu Celu Selu LogSoftmax ReduceLogSumExp Softplus".split(),
                            4.0), "Resize": 8.0, "GridSample": 16.0}

NORMALISING = ("InstanceNormalization", "LayerNormalization", "GroupNormalization")


# What onnx's reference gets wrong (onnx 1.23.2), and other nodes that say the same
def _max_of_all(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]     # it loses an axis of rank 3


def _lp_normalised(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    attrs = {a.name: a.i for a in proto.attribute}          # it sums without taking absolutes
    norm = np.linalg.norm(x, attrs.get("p", 2), attrs.get("axis", -1), keepdims=True)
    return [np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)]


def _local_response(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """It sums for as many channels as the batch has pictures."""
    a = {"alpha": float(np.float32(1e-4)), "beta": 0.75, "bias": 1.0,
         **{a.name: helper.get_attribute_value(a) for a in proto.attribute}}
    before, after = (a["size"] - 1) // 2, a["size"] // 2
    padded = np.pad(x**2, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
    sums = sum(padded[:, k:k + x.shape[1]] for k in range(a["size"]))
    return [x / (a["bias"] + a["alpha"] / a["size"] * sums) ** a["beta"]]


def _gelu(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """The function body that it runs holds its constants as float32."""
    if any(a.name == "approximate" and a.s == b"tanh" for a in proto.attribute):
        return [0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))]
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return [0.5 * x * (1 + erf(x.astype(np.float64) / np.sqrt(2)))]


def _max_pool(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """It takes pads that differ at the two ends of an axis for others."""
    kind = np.float32 if x.dtype.itemsize < 4 and is_float(x.dtype) else x.dtype
    return _onnxruntime(proto.SerializeToString(), kind.name if isinstance(kind, np.dtype)
                        else "float32", x.ndim).run(None, {proto.input[0]: x.astype(kind)})


@functools.lru_cache(256)
def _onnxruntime(serialised: bytes, dtype: str, rank: int) -> Any:
    """A session of one node with one input."""
    import onnxruntime

    proto = onnx.NodeProto.FromString(serialised)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    types = (kind, TensorProto.INT64)
    graph = helper.make_graph(
        [proto], "one", [helper.make_tensor_value_info(proto.input[0], kind, [None] * rank)],
        [helper.make_tensor_value_info(n, t, [None] * rank) for n, t in zip(proto.output, types)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def _erf(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """It rounds to float32 whatever it is given."""
    return [np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)]


def _log_softmax(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """It takes the logarithm of what has underflowed to zero."""
    axis = next((a.i for a in proto.attribute if a.name == "axis"), -1)
    less = x - x.max(axis=axis, keepdims=True)
    return [less - np.log(np.exp(less).sum(axis=axis, keepdims=True))]


def _conv_transpose(proto: onnx.NodeProto, x: np.ndarray, w: np.ndarray,
                    bias: np.ndarray | None = None) -> list[np.ndarray]:
    """It adds the first group's bias to all groups."""
    bare = onnx.NodeProto()
    bare.CopyFrom(proto)
    del bare.input[2:]
    (y,) = _by_reference(bare, (x, w))
    return [y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))]


CORRECTED = {"ConvTranspose": _conv_transpose, "Erf": _erf, "Gelu": _gelu,
             "GlobalMaxPool": _max_of_all,
             "LRN": _local_response, "LogSoftmax": _log_softmax, "LpNormalization": _lp_normalised,
             "MaxPool": _max_pool}


class Refused(Exception):
    """onnx's reference does not compute this node."""


@dataclass(frozen=True)
class Wanted:
    """One output: its value, how far off each element may be, and which elements are judged."""

    value: np.ndarray
    tolerance: np.ndarray
    judged: np.ndarray


def unit(dtype: np.dtype) -> float:
    """The unit roundoff of a float type."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


# ---- single nodes

Typed = tuple[tuple[str, int, tuple[int, ...]], ...]        # name, ONNX's element type, shape


@functools.lru_cache(4096)
def _evaluator(serialised: bytes, inputs: Typed) -> ReferenceEvaluator:
    proto = onnx.NodeProto.FromString(serialised)
    graph = helper.make_graph(
        [proto], "one", [helper.make_tensor_value_info(*i) for i in inputs],
        [onnx.ValueInfoProto(name=n) for n in proto.output if n])
    versions = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    if proto.domain:
        versions.append(helper.make_opsetid(proto.domain, 1))
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=versions))


def evaluate(proto: onnx.NodeProto, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """A node's outputs by onnx's reference; Refused where that fails."""
    if proto.op_type in CORRECTED:
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in CORRECTED[proto.op_type](proto, *arrays)]
    return _by_reference(proto, arrays)


def _by_reference(proto: onnx.NodeProto, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    feeds = {n: a for n, a in zip(proto.input, arrays) if n and a is not None}
    typed = tuple((n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = _evaluator(proto.SerializeToString(), typed).run(None, feeds)
        except Exception as error:   # whatever NumPy raises
            raise Refused(f"{proto.op_type}: {type(error).__name__}: {error}") from error
    return [np.asarray(a) for a in found]


# ---- graphs

class Evaluation:
    """Evaluation number k of a graph: 0 exact, 1 rounded, 2 and 3 with the largest errors, opposed
    in neighbouring operands, the others with random ones."""

    def __init__(self, types: Mapping[str, np.dtype], k: int, seed: int = 0) -> None:
        self.types, self.rounded, self.noisy = types, k == 1, k > 1
        self.lean = {2: 1.0, 3: -1.0}.get(k, 0.0)
        self.rng = np.random.default_rng((seed, k))
        self.values: dict[str, np.ndarray] = {}

    def put(self, name: str, array: np.ndarray) -> None:
        self.values[name] = array.astype(np.float64) if is_float(array.dtype) else array

    def run(self, proto: onnx.NodeProto) -> None:
        inputs = [self.values[n] if n else None for n in proto.input]
        before, after = ROUNDING.get(proto.op_type, DEFAULT)
        if self.noisy and before:
            inputs = [self._off(a, self.types[n], before, i) if n else None
                      for i, (n, a) in enumerate(zip(proto.input, inputs))]
        try:
            results = evaluate(proto, inputs)
        except Refused:         # an op that does not take float64: in the model's types
            results = evaluate(proto, [None if a is None else a.astype(self.types[n])
                                       for n, a in zip(proto.input, inputs)])
        if proto.op_type in ("Cast", "CastLike"):
            results = [self._undefined(results[0], inputs[0], self.types[proto.output[0]])]
        for name, found in zip(proto.output, results):
            if name not in self.types:          # neither read nor an output
                continue
            dtype = self.types[name]
            if not is_float(dtype):
                self.values[name] = found.astype(dtype)
                continue
            wide = found.astype(np.float64)
            if self.rounded:
                wide = wide.astype(dtype).astype(np.float64)
            elif self.noisy and after:
                wide = self._off(wide, dtype, after)
                size = MARGIN * ABSOLUTE.get(proto.op_type, 0)
                size *= unit(dtype) * max(1, _largest(inputs[0]))
                if proto.op_type in NORMALISING and name == proto.output[0]:
                    size = size + MARGIN * unit(dtype) * _rounded_mean(proto, *inputs[:2])
                wide = wide + size * self.rng.uniform(-1, 1, wide.shape)
            self.values[name] = wide

    def _off(self, x: np.ndarray | None, dtype: np.dtype, units: float, position: int = 0
             ) -> np.ndarray | None:
        """x with relative errors of up to so many units; what is tiny may be flushed to zero."""
        if x is None or not is_float(dtype):
            return x
        error = self.lean * (-1) ** position or self.rng.uniform(-1, 1, x.shape)
        wrong = x * (1 + MARGIN * units * unit(dtype) * error)
        tiny = (x != 0) & (np.abs(x) < float(ml_dtypes.finfo(dtype).smallest_normal))
        return np.where(tiny & (self.rng.random(x.shape) < 0.5), 0.0, wrong)

    def _undefined(self, out: np.ndarray, x: np.ndarray, to: np.dtype) -> np.ndarray:
        """A conversion to integers of what they cannot hold: anything, each time something else."""
        if to.kind not in "iu" or x.dtype.kind != "f":
            return out
        info = np.iinfo(to)
        with np.errstate(all="ignore"):
            bad = ~((x > float(info.min) - 1) & (x < float(info.max) + 1))
        return np.where(bad, self.rng.integers(0, 100, x.shape), out).astype(to)


def _rounded_mean(proto: onnx.NodeProto, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What (x - mean) / deviation * scale is off by where the mean is, by its largest element. No
    error of x does that: it moves the mean along, so that little is left where x varies little.
    """
    attrs = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    rows = x
    if proto.op_type == "LayerNormalization":
        axes = tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim))
    else:
        groups = attrs.get("num_groups", x.shape[1])
        rows = x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
        axes = tuple(range(2, rows.ndim))
        scale = scale.reshape(-1, *(1,) * (x.ndim - 2))
    deviation = np.sqrt(rows.var(axes, keepdims=True) + attrs.get("epsilon", 1e-5))
    off = np.abs(rows).max(axes, keepdims=True, initial=0) / deviation
    return np.abs(np.broadcast_to(off, rows.shape).reshape(x.shape) * scale)


def _largest(x: np.ndarray | None) -> float:
    """The largest finite magnitude."""
    if x is None or not is_float(x.dtype):
        return 0.0
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def wanted(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], types: Mapping[str, np.dtype],
           seed: int = 0) -> dict[str, Wanted]:
    """What the model's outputs should be; `types`: the element type of each value."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    runs = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for k in range(SAMPLES + 2):
            run = Evaluation(types, k, seed)
            for name, array in {**stored, **feeds}.items():
                run.put(name, array)
            for proto in model.graph.node:
                run.run(proto)
            runs.append(run.values)
        return {o.name: _judge([r[o.name] for r in runs], types[o.name])
                for o in model.graph.output}


def _judge(samples: list[np.ndarray], dtype: np.dtype) -> Wanted:
    exact = samples[0]
    if any(s.shape != exact.shape for s in samples):
        raise Refused("a shape hangs on rounding")
    if not is_float(dtype):
        judged = np.logical_and.reduce([s == exact for s in samples])
        return Wanted(exact, np.zeros(exact.shape), np.asarray(judged))
    # an overflow of the type is an infinity of the result
    limit = float(ml_dtypes.finfo(dtype).max)
    held = [np.where(np.abs(s) > limit, np.copysign(np.inf, s), s) for s in samples]
    exact = held[0]
    same = [np.isfinite(s) & np.isfinite(exact) | (s == exact) | (np.isnan(s) & np.isnan(exact))
            for s in held]
    judged = np.logical_and.reduce(same)
    finite = np.isfinite(exact) & judged
    spread = np.max([np.where(finite, np.abs(s - exact), 0) for s in held], axis=0)
    info = ml_dtypes.finfo(dtype)
    tolerance = spread + 2 * unit(dtype) * np.where(finite, np.abs(exact), 0)
    tolerance = tolerance + float(info.smallest_normal if dtype.itemsize > 2
                                  else info.smallest_subnormal)
    return Wanted(exact, tolerance, np.asarray(judged))


def difference(got: np.ndarray, want: Wanted, dtype: np.dtype) -> str:
    """What is wrong with an output; "" if nothing is."""
    if got.dtype != dtype or got.shape != want.value.shape:
        return f"{got.dtype}{list(got.shape)} instead of {dtype}{list(want.value.shape)}"
    if not is_float(dtype):
        bad = want.judged & (got != want.value)
    else:
        wide = got.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(wide - want.value) <= want.tolerance
        same = near | (wide == want.value) | (np.isnan(wide) & np.isnan(want.value))
        # at the edge of the type, rounding decides between its greatest value and infinity
        edge = np.abs(want.value) >= 0.99 * float(ml_dtypes.finfo(dtype).max)
        bad = want.judged & ~same & ~(edge & (np.abs(wide) >= 0.98 * float(
            ml_dtypes.finfo(dtype).max)) & (np.sign(wide) == np.sign(want.value)))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0]) if got.ndim else ()
    return (f"{int(bad.sum())} of {bad.size} elements differ; at {list(at)}: {got[at]} instead of "
            f"{want.value[at]} +- {np.asarray(want.tolerance)[at]:.3g}")
