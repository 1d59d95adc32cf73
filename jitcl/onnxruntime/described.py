"""A model's inputs, outputs and metadata in onnxruntime's words: 'tensor(float)', ['batch', 3]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitcl import dtypes
from jitcl.frontends.values import ValueType
from jitcl.ir.types import Dim, Sym
from jitcl.runtime.source import Tensor

SHORT_OF = {**dtypes.ONNX, 8: "string"}          # by ONNX's numbers
NUMBER_OF = {short: number for number, short in SHORT_OF.items()}
_NAME_OF = {                                     # ONNX's names: NumPy's, but for four
    **{d: dtypes.numpy_name(d).rpartition(".")[2].replace("_", "") for d in dtypes.STORED},
    "f32": "float", "f64": "double", "f8e8m0": "float8e8m0", "f4e2m1": "float4e2m1"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output. shape: numbers, names, and None for sizes that the model leaves open
    without a name; [] of what is no tensor."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the model's file says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def tensor_type(dtype: str) -> str:
    """"f32" -> "tensor(float)"."""
    return f"tensor({_NAME_OF.get(dtype, dtype)})"


def type_name(type: ValueType) -> str:
    """A type of any kind: "seq(map(int64,tensor(float)))"."""
    if type.kind == "tensor":
        return tensor_type(type.dtype)
    inner = type_name(type.of) if type.of is not None else ""
    if type.kind == "map":
        return f"map({_NAME_OF.get(type.dtype, type.dtype)},{inner})"
    return f"{'seq' if type.kind == 'sequence' else type.kind}({inner})"


def node_arg(tensor: Tensor, inferred: ValueType | None = None,
             fixed: Mapping[str, int] | None = None) -> NodeArg:
    """An input or output. `inferred`: its type, where the file does not say it; `fixed`: sizes of
    named dimensions.
    """
    type = inferred or tensor.value or ValueType("tensor", tensor.dtype, tensor.shape)
    dims = (type.shape or ()) if type.kind == "tensor" else ()
    return NodeArg(tensor.name, type_name(type),
                   [_dim(d, f"{tensor.name}.{i}", fixed or {}) for i, d in enumerate(dims)])


def _dim(dim: Dim, unnamed: str, fixed: Mapping[str, int]) -> int | str | None:
    """`unnamed` is what jitcl calls a dimension that the file has no name for."""
    if not isinstance(dim, Sym):
        return dim
    return None if dim.name == unnamed else fixed.get(dim.name, dim.name)


def dtype_of(element_type: Any) -> str:
    """jitcl's name of what onnxruntime takes as an element type: NumPy's, or ONNX's number; ""
    where it is none.
    """
    import numpy as np

    if isinstance(element_type, int) and not isinstance(element_type, bool):
        return SHORT_OF.get(element_type, "")
    try:
        dtype = np.dtype(element_type)
    except TypeError:
        return ""
    return dtypes.from_numpy(dtype) or ("string" if dtype.kind in "OUS" else "")


__all__ = ["NUMBER_OF", "ModelMetadata", "NodeArg", "dtype_of", "node_arg", "tensor_type"]
