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

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz import bounds
from tests.fuzz.corrected import Refused, evaluate, is_float, resized, unit

__all__ = ["Evaluation", "Refused", "Wanted", "difference", "evaluate", "wanted"]

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
# where Resize reads: a quotient of rounded numbers, less a half. Units of the input's extent
PLACES = 4.0


@dataclass(frozen=True)
class Wanted:
    """One output: its value, how far off each element may be, and which elements are judged."""

    value: np.ndarray
    tolerance: np.ndarray
    judged: np.ndarray


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
            results = self._evaluated(proto, inputs)
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
                wide = wide + size * self.rng.uniform(-1, 1, wide.shape)
                if name == proto.output[0]:
                    wide = wide + self._error(wide.shape) * np.where(
                        np.isfinite(found), bounds.off(proto, inputs, found, dtype), 0)
            self.values[name] = wide

    def _off(self, x: np.ndarray | None, dtype: np.dtype, units: float, position: int = 0
             ) -> np.ndarray | None:
        """x with relative errors of up to so many units; what is tiny may be flushed to zero."""
        if x is None or not is_float(dtype):
            return x
        error = self._error(x.shape) * (-1) ** position
        wrong = x * (1 + MARGIN * units * unit(dtype) * error)
        tiny = (x != 0) & (np.abs(x) < float(ml_dtypes.finfo(dtype).smallest_normal))
        return np.where(tiny & (self._error(x.shape) > 0), 0.0, wrong)

    def _error(self, shape: tuple[int, ...]) -> np.ndarray:
        """From -1 to 1: all at one end, or random."""
        return np.full(shape, self.lean) if self.lean else self.rng.uniform(-1, 1, shape)

    def _evaluated(self, proto: onnx.NodeProto, inputs: list[np.ndarray | None]
                   ) -> list[np.ndarray]:
        if proto.op_type == "Resize" and self.noisy:
            return resized(proto, inputs, lambda size, out: _moved(size) * self._error((out,)))
        return evaluate(proto, inputs)

    def spoil(self, name: str, at: np.ndarray) -> None:
        """Make known to all that reads it that a value may be anything there: what no two of these
        evaluations agree on is not judged."""
        if self.noisy:
            some = np.inf * self.lean if self.lean else self.rng.choice([np.nan, 0.0])
            self.values[name] = np.where(at, some, self.values[name])

    def _undefined(self, out: np.ndarray, x: np.ndarray, to: np.dtype) -> np.ndarray:
        """A conversion to integers of what they cannot hold: anything, each time something else."""
        if to.kind not in "iu" or x.dtype.kind != "f":
            return out
        info = np.iinfo(to)
        with np.errstate(all="ignore"):
            bad = ~((x > float(info.min) - 1) & (x < float(info.max) + 1))
        return np.where(bad, self.rng.integers(0, 100, x.shape), out).astype(to)


def _moved(size: int) -> float:
    """How far off a place among so many elements is drawn."""
    return MARGIN * PLACES * unit(np.dtype(np.float32)) * (size + 1)


def _unknown(proto: onnx.NodeProto, samples: list[list[np.ndarray | None]], dtype: np.dtype
             ) -> np.ndarray:
    """Where the first output may be anything; `samples`: the inputs in each evaluation."""
    x = samples[0][0]
    if proto.op_type == "Resize" and bounds.attributes(proto).get("mode", b"nearest") == b"nearest":
        places = [np.arange(1.0, x.size + 1).reshape(x.shape), *samples[0][1:]]
        before = resized(proto, places, lambda size, out: -_moved(size))[0]
        return before != resized(proto, places, lambda size, out: _moved(size))[0]
    return np.asarray(bounds.unknown(proto, samples, dtype))


def _largest(x: np.ndarray | None) -> float:
    """The largest finite magnitude."""
    if x is None or not is_float(x.dtype):
        return 0.0
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def wanted(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], types: Mapping[str, np.dtype],
           seed: int = 0) -> dict[str, Wanted]:
    """What the model's outputs should be; `types`: the element type of each value."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    runs = [Evaluation(types, k, seed) for k in range(SAMPLES + 2)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for run in runs:
            for name, array in {**stored, **feeds}.items():
                run.put(name, array)
        for proto in model.graph.node:
            for run in runs:
                run.run(proto)
            name = proto.output[0]
            if name in types and is_float(types[name]):
                samples = [[r.values[n] if n else None for n in proto.input] for r in runs]
                if (at := _unknown(proto, samples, types[name])).any():
                    for run in runs:
                        run.spoil(name, at)
        return {o.name: _judge([r.values[o.name] for r in runs], types[o.name])
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
