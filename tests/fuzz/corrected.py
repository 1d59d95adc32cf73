"""Single nodes by onnx's reference, which is corrected where it is wrong (onnx 1.23.2)."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_resize


class Refused(Exception):
    """onnx's reference does not compute this node."""


def unit(dtype: np.dtype) -> float:
    """The unit roundoff of a float type."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


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
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            corrected = CORRECTED.get(proto.op_type)
            found = corrected(proto, *arrays) if corrected else _by_reference(proto, arrays)
        except Exception as error:   # whatever NumPy or onnxruntime raises
            raise Refused(f"{proto.op_type}: {type(error).__name__}: {error}") from error
    return [np.asarray(a) for a in found]


def _by_reference(proto: onnx.NodeProto, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    feeds = {n: a for n, a in zip(proto.input, arrays) if n and a is not None}
    typed = tuple((n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items())
    return _evaluator(proto.SerializeToString(), typed).run(None, feeds)


# ---- corrections

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


def _average_pool(proto: onnx.NodeProto, x: np.ndarray) -> list[np.ndarray]:
    """What ceil_mode needs beyond the pads it lays before the picture, too: by ONNX's text (and
    PyTorch's) windows begin at the pads, and what reaches beyond them is not counted."""
    a = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    if not a.get("ceil_mode"):
        return _by_reference(proto, (x,))
    kernel, n = a["kernel_shape"], x.ndim - 2
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    pads = a.get("pads", [0] * 2 * n)
    ends, out = [], []
    for i, size in enumerate(x.shape[2:]):
        reach = dilations[i] * (kernel[i] - 1) + 1
        padded = size + pads[i] + pads[n + i]
        count = -(-(padded - reach) // strides[i]) + 1
        count -= (count - 1) * strides[i] >= size + pads[i]     # it would begin behind the picture
        out.append(count)
        ends.append(max(0, (count - 1) * strides[i] + reach - padded))
    around = [(0, 0), (0, 0), *zip(pads[:n], pads[n:])]
    beyond = [(0, 0), (0, 0), *((0, e) for e in ends)]
    counted = np.pad(np.ones_like(x), around, constant_values=a.get("count_include_pad", 0))
    planes = [np.pad(p, beyond) for p in (np.pad(x, around), counted)]
    total, terms = (sum(
        p[(..., *(slice(k * d, k * d + (c - 1) * s + 1, s)
                  for k, d, s, c in zip(at, dilations, strides, out)))]
        for at in np.ndindex(*kernel)) for p in planes)
    return [(total / terms).astype(x.dtype)]


def resized(proto: onnx.NodeProto, arrays: Sequence[np.ndarray | None],
            shift: Callable[[int, int], Any] = lambda size, out: 0.0) -> list[np.ndarray]:
    """Resize, with the places that outputs are read from moved: by `shift` of the extents of input
    and output. onnx's reference takes scale * size, which is no whole number, for the length of the
    output, has another place for the only element of pytorch_half_pixel, makes cubic weights in
    float32, and reads one element before a place that is 1e-16 above it.
    """
    own = op_resize._compute_x_ori

    def places(mode: str, y: np.ndarray, scale: float, size: int, length: float, out: int,
               roi: Any) -> Any:
        if mode != "half_pixel_symmetric":
            length = float(out)
        at, outside = own(mode, y, scale, size, length, out, roi)
        if mode == "pytorch_half_pixel" and out == 1:
            at = np.zeros(1)
        at = np.where(np.abs(at - np.rint(at)) < 1e-9, np.rint(at), at)
        return at + shift(size, out), outside

    wide = {name: functools.partial(_of_python_float, getattr(op_resize, name))
            for name in ("_cubic_coeffs", "_cubic_coeffs_antialias")}
    with mock.patch.multiple(op_resize, _compute_x_ori=places, **wide):
        return _by_reference(proto, arrays)


def _of_python_float(weights: Callable[..., np.ndarray], ratio: float, scale: float, A: Any
                     ) -> np.ndarray:
    return weights(ratio, scale, float(A))


def _resize(proto: onnx.NodeProto, *arrays: np.ndarray | None) -> list[np.ndarray]:
    return resized(proto, arrays)


CORRECTED = {"AveragePool": _average_pool, "ConvTranspose": _conv_transpose, "Erf": _erf,
             "Gelu": _gelu, "GlobalMaxPool": _max_of_all, "LRN": _local_response,
             "LogSoftmax": _log_softmax, "LpNormalization": _lp_normalised, "MaxPool": _max_pool,
             "Resize": _resize}


