"""ONNX's element types, tensors and attributes as NumPy and plain Python values."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from jitcl import dtypes
from jitcl.errors import ModelError, UnsupportedError
from jitcl.frontends.onnx import external
from jitcl.ir.graph import Node, apart, const, later
from jitcl.ops.builder import GraphBuilder

FEW = 1 << 10  # elements of less than a byte that are taken apart at once: zero points and the like
MOST_DENSE = 1 << 31  # bytes of a sparse tensor with its zeros
KEPT = 1 << 16  # bytes of a tensor that are kept once they are read from a file
NAMES = {code: name.lower() for name, code in TensorProto.DataType.items() if code}
ELEM_TYPES = {short: number for number, short in dtypes.ONNX.items()}


def dtype_of(elem_type: int) -> str | None:
    """The jitcl dtype of a TensorProto.DataType, or None where jitcl has none."""
    return dtypes.ONNX.get(elem_type)


def dtype_name(elem_type: int) -> str:
    """ONNX's own name of a data type, for messages."""
    return NAMES.get(elem_type, f"type {elem_type}")


def to_node(tensor: TensorProto, base: external.Folder | None, what: str,
            file: external.File | None = None) -> Node:
    """A tensor as a constant; weights of 4 and 2 bits as their bytes, which kernels take apart.

    Large ones in a file (`file`: which, if it is the model's own) are read when they are wanted.
    """
    shape, dtype = tuple(tensor.dims), dtype_of(tensor.data_type)
    outside = external.is_external(tensor)
    if outside:
        file = file or external.File(external.checked_path(tensor, base, what))
        tensor = _copy(tensor)               # for later: the model's own may be changed
    if dtype is None or dtypes.bits(dtype) >= 8 or math.prod(shape) <= FEW:
        packed, read = False, partial(to_array, tensor, base, what, file)
    else:
        packed, read = True, partial(_packed, tensor, dtypes.bits(dtype), base, what, file)
    if outside and dtype is not None and not packed:
        count, element = math.prod(shape), dtypes.to_numpy(dtype)
        if count * element.itemsize > KEPT:
            step = apart(count) * element.itemsize
            few = external.read(tensor, count * element.itemsize, base, what, file,
                                (element.itemsize, step))
            return later(dtype, shape, few.view(element), read)
    array = read()
    node = const(array, reload=read if outside and array.nbytes > KEPT else None)
    return GraphBuilder().unpack(node, to=dtype, shape=shape) if packed else node


def _copy(tensor: TensorProto) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    return copy


def _packed(tensor: TensorProto, bits: int, base: external.Folder | None, what: str,
            file: external.File | None = None) -> np.ndarray[Any, Any]:
    """The bytes of a tensor of 4 or 2 bits, the low bits of each the earliest element."""
    wanted = -(-math.prod(tensor.dims) * bits // 8)
    if external.is_external(tensor):
        return external.read(tensor, wanted, base, what, file)
    if tensor.HasField("raw_data"):
        array = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        array = np.asarray(tensor.int32_data, np.int32).astype(np.uint8)
    if array.size != wanted:
        raise ModelError(
            f"{what} is malformed: {math.prod(tensor.dims)} elements of {bits} bits take {wanted} "
            f"bytes, it has {array.size}\n"
            f"  The file is damaged or was written by a faulty exporter; export it again."
        )
    return array


def to_array(tensor: TensorProto, base: external.Folder | None, what: str,
             file: external.File | None = None) -> np.ndarray[Any, Any]:
    """A tensor's elements, external data read from beside the model; `what` names it in errors."""
    dtype = dtype_of(tensor.data_type)
    if dtype is None:
        raise UnsupportedError(
            f"{what} has elements of type {dtype_name(tensor.data_type)}, "
            f"which jitcl does not compute with"
        )
    if external.is_external(tensor):
        return _from_file(tensor, dtype, base, what, file)
    try:
        array = numpy_helper.to_array(tensor)
        if dtype == "bf16" and array.dtype == np.float32:  # onnx before 1.19 widens bfloat16
            array = array.astype(dtypes.to_numpy("bf16"))
        return array
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{what} is malformed: {error}\n"
            f"  The file is damaged or was written by a faulty exporter; export it again."
        ) from error


def _from_file(tensor: TensorProto, dtype: str, base: external.Folder | None, what: str,
               file: external.File | None) -> np.ndarray[Any, Any]:
    """The elements of a tensor that are in a file."""
    shape, bits = tuple(tensor.dims), dtypes.bits(dtype)
    if bits < 8:                             # two or four in a byte: onnx takes them apart
        full = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=shape)
        full.raw_data = _packed(tensor, bits, base, what, file).tobytes()
        return to_array(full, base, what)
    count = math.prod(shape) * bits // 8
    elements = external.read(tensor, count, base, what, file)
    return elements.view(dtypes.to_numpy(dtype)).reshape(shape)


def to_dense(sparse: onnx.SparseTensorProto, base: external.Folder | None, what: str
             ) -> np.ndarray[Any, Any]:
    """A sparse tensor (COO, linear or coordinate indices) with its zeros filled in."""
    values, indices = to_array(sparse.values, base, what), to_array(sparse.indices, base, what)
    nbytes = math.prod(sparse.dims) * values.itemsize
    if nbytes > MOST_DENSE or min(sparse.dims, default=0) < 0:
        raise ModelError(f"{what}: a sparse tensor of shape {list(sparse.dims)} takes {nbytes} "
                         f"bytes in full, which jitcl makes it; {MOST_DENSE} is the most")
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except IndexError as error:
        raise ModelError(
            f"{what}: a sparse tensor's index lies outside its shape {dense.shape}") from error
    return dense


def attribute(a: AttributeProto, base: external.Folder | None, what: str) -> Any:
    """An attribute as a plain value: int, float, str, tuples of these, ndarray; GraphProto as it
    is."""
    kind = AttributeProto
    if a.type == kind.FLOAT:
        return a.f
    if a.type == kind.INT:
        return a.i
    if a.type == kind.STRING:
        return a.s.decode("utf-8", "replace")
    if a.type == kind.TENSOR:
        return to_array(a.t, base, f"{what}, attribute '{a.name}'")
    if a.type == kind.SPARSE_TENSOR:
        return to_dense(a.sparse_tensor, base, f"{what}, attribute '{a.name}'")
    if a.type == kind.GRAPH:
        return a.g
    if a.type == kind.TYPE_PROTO:
        return a.tp
    if a.type == kind.FLOATS:
        return tuple(a.floats)
    if a.type == kind.INTS:
        return tuple(a.ints)
    if a.type == kind.STRINGS:
        return tuple(s.decode("utf-8", "replace") for s in a.strings)
    raise UnsupportedError(
        f"{what}: attribute '{a.name}' is a {kind.AttributeType.Name(a.type).lower()}, "
        f"which jitcl does not read"
    )
