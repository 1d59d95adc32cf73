"""Import rules of ai.onnx.ml's feature transforms, as far as they compute with numbers.

Forms with strings or maps raise UnsupportedError: whoever imports may run them on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_, UnsupportedError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node, const
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import F32, I64, Index, Loader, Spec, indexed, onnx_rule, sample
from jitcl.ops.gather import in_range
from jitcl.ops.ml_scores import ML

Array = np.ndarray[Any, Any]


def _floats(g: GraphBuilder, x: Node) -> Node:
    return x if x.type.dtype == "f32" else g.cast(x, to="f32")


# ---- scaling

@onnx_rule("Scaler", domain=ML)
def _scaler(g: GraphBuilder, node: Any) -> Node:
    """(x - offset) * scale, of all features or of each."""
    x = _floats(g, node.inputs[0])
    offset, scale = (np.asarray(node.attrs.get(name, ()), np.float32)
                     for name in ("offset", "scale"))
    for name, found in (("offset", offset), ("scale", scale)):
        if len(found) not in (1, x.type.shape[-1] if x.type.rank else 1):
            raise ModelError(f"{name} has {len(found)} elements, wanted 1 or one for each of "
                             f"{x.type.shape[-1]} features")
    return g.mul(g.sub(x, const(offset)), const(scale))


@onnx_rule("Normalizer", domain=ML)
def _normalizer(g: GraphBuilder, node: Any) -> Node:
    """Rows over their norm; rows whose norm is 0 stay as they are. MAX is the greatest element,
    whatever its sign, as ONNX and onnxruntime have it."""
    x, norm = _floats(g, node.inputs[0]), node.attrs.get("norm", "MAX")
    if x.type.rank not in (1, 2):
        raise ShapeError(f"wanted features [N, F] or [F], got {x.type}")
    if norm == "MAX":
        size = g.reduce_max(x, axes=(-1,), keepdims=True)
    elif norm == "L1":
        size = g.reduce_l1(x, axes=(-1,), keepdims=True)
    elif norm == "L2":
        size = g.reduce_l2(x, axes=(-1,), keepdims=True)
    else:
        raise ModelError(f"norm is {norm!r}, wanted MAX, L1 or L2")
    return g.div(x, g.where(g.equal(size, 0.0), 1.0, size))


@onnx_rule("Binarizer", domain=ML)
def _binarizer(g: GraphBuilder, node: Any) -> Node:
    x = node.inputs[0]
    threshold = const(np.asarray(node.attrs.get("threshold", 0.0), np.float32))
    above = g.greater(g.cast(x, to="f32") if dtypes.is_int(x.type.dtype) else x,
                      threshold if x.type.dtype != "f64" else g.cast(threshold, to="f64"))
    return g.cast(above, to=x.type.dtype)


@onnx_rule("Imputer", domain=ML)
def _imputer(g: GraphBuilder, node: Any) -> Node:
    """What equals the replaced value (NaN: what is NaN) becomes the imputed one of its feature."""
    x, attrs = node.inputs[0], node.attrs
    kind = "floats" if dtypes.is_float(x.type.dtype) else "int64s"
    values = attrs.get(f"imputed_value_{kind}", ())
    replaced = attrs.get(f"replaced_value_{kind[:-1]}", 0)
    features = x.type.shape[-1] if x.type.rank else 1
    if len(values) not in (1, features):
        raise ModelError(f"imputed_value_{kind} has {len(values)} elements, wanted 1 or one for "
                         f"each of {features} features of {x.type}")
    missing = g.isnan(x) if replaced != replaced else g.equal(x, const(replaced, x.type.dtype))
    return g.where(missing, const(values, x.type.dtype), x)


# ---- columns

@onnx_rule("ArrayFeatureExtractor", domain=ML)
def _array_feature_extractor(g: GraphBuilder, node: Any) -> Node:
    """Elements along the last axis; of a vector, as one row."""
    x, at = node.inputs[:2]
    if not x.type.rank:
        raise ShapeError(f"wanted features with axes, got {x.type}")
    at = in_range(g, at, 0, x.type.dims[-1] - 1)
    picked = g.gather(x, g.reshape(at, shape=(at.type.size,)), axis=x.type.rank - 1)
    return g.reshape(picked, shape=(1, *picked.type.shape)) if x.type.rank == 1 else picked


@onnx_rule("FeatureVectorizer", domain=ML)
def _feature_vectorizer(g: GraphBuilder, node: Any) -> Node:
    """Inputs side by side, each cut or filled with zeros to its number of columns."""
    sizes = [int(v) for v in node.attrs.get("inputdimensions", ())]
    inputs = [x for x in node.inputs if x is not None]
    if len(sizes) != len(inputs):
        raise ModelError(f"inputdimensions has {len(sizes)} elements for {len(inputs)} inputs")
    parts = []
    for x, size in zip(inputs, sizes):
        x = _floats(g, x)
        if x.type.rank != 2:
            x = g.reshape(x, shape=(x.type.shape[0], x.type.size // max(1, x.type.dims[0]))
                          if x.type.rank > 2 else (1, x.type.size))
        have = x.type.dims[1]
        if size < have:
            x = g.slice(x, starts=(0,), ends=(size,), axes=(1,))
        elif size > have:
            x = g.pad(x, pads=(0, 0, 0, size - have))
        parts.append(x)
    return g.concat(*parts, axis=1) if len(parts) > 1 else parts[0]


# ---- categories

def _lookup_type(x: TensorType, keys: TensorType, values: TensorType) -> TensorType:
    if keys.rank != 1 or values.rank != 1 or values.shape[0] != keys.dims[0] + 1:
        raise ShapeError(f"wanted keys [K] and values [K + 1], the last for others, got {keys} "
                         f"and {values}")
    if x.dtype != keys.dtype:
        raise TypeError_(f"{x} is looked up among {keys}: wanted equal types")
    return TensorType(values.dtype, x.shape)


def _lookup_ref(x: Array, keys: Array, values: Array) -> Array:
    table: dict[Any, int] = {}
    for k, key in enumerate(keys.tolist()):
        table.setdefault("nan" if key != key else key, k)
    found = [table.get("nan" if v != v else v, len(keys)) for v in x.ravel().tolist()]
    return np.asarray(values[np.asarray(found, np.int64)].reshape(x.shape))


@indexed("contraction", range="exact", infer=_lookup_type, ref=_lookup_ref, samples=[
    sample(I64(3, 7, low=0, high=6), Spec((4,), "i64", values=(5, 1, 1, 3)), F32(5)),
    sample(Spec((5,), "f32", values=(0.5, float("nan"), -0.0, 3.0, 1.0)),
           Spec((3,), "f32", values=(float("nan"), 0.0, 1.0)), I64(4)),
    sample(I64(5), Spec((0,), "i64", values=()), I64(1))])
def lookup(s: KernelBuilder, ix: Index, x: Loader, keys: Loader, values: Loader) -> Expr:
    """values[k] of the first key that x equals (NaN equals NaN), values[K] where there is none."""
    value, count = x(*ix), keys.shape[0]

    def term(k: Expr) -> Expr:
        key = keys(k)
        same = s.eq(value, key)
        if dtypes.is_float(key.dtype):
            same = same | (s.isnan(value) & s.isnan(key))
        return s.select(same, k, E.index(count))
    place = s.reduce("min", [count], term, init=count) if count else E.index(0)
    return values(place)


def _keys(attrs: Mapping[str, Any], prefix: str) -> Array | None:
    """The attribute keys_* or values_* that is given; UnsupportedError for strings."""
    tensor = attrs.get(f"{prefix}_tensor")
    if isinstance(tensor, np.ndarray):
        if dtypes.from_numpy(tensor.dtype) is None:
            raise UnsupportedError(f"its {prefix} are strings; jitcl computes with numbers")
        return tensor.ravel()
    if attrs.get(f"{prefix}_strings"):
        raise UnsupportedError(f"its {prefix} are strings; jitcl computes with numbers")
    for name, dtype in (("floats", np.float32), ("int64s", np.int64)):
        found = attrs.get(f"{prefix}_{name}")
        if found is not None and len(found):
            return np.asarray(found, dtype)
    return None


@onnx_rule("LabelEncoder", domain=ML)
def _label_encoder(g: GraphBuilder, node: Any) -> Node:
    attrs = node.attrs
    if attrs.get("classes_strings"):
        raise UnsupportedError("it encodes strings; jitcl computes with numbers")
    keys, values = _keys(attrs, "keys"), _keys(attrs, "values")
    if keys is None or values is None or len(keys) != len(values):
        raise ModelError("wanted as many keys as values, got "
                         f"{0 if keys is None else len(keys)} and "
                         f"{0 if values is None else len(values)}")
    given = attrs.get("default_tensor")
    if isinstance(given, np.ndarray) and given.size:
        default = given.ravel()[0]
    elif dtypes.is_float(dtypes.from_numpy(values.dtype) or ""):
        default = attrs.get("default_float", -0.0)
    else:
        default = attrs.get("default_int64", -1)
    table = np.append(values, np.asarray(default, values.dtype))
    return g.lookup(node.inputs[0], const(keys), const(table))


@onnx_rule("OneHotEncoder", domain=ML)
def _one_hot_encoder(g: GraphBuilder, node: Any) -> Node:
    """A new last axis with 1 at the element's category. Floats are truncated first. With zeros = 0
    an unknown category is an error to ONNX, which a kernel cannot raise."""
    attrs, x = node.attrs, node.inputs[0]
    if attrs.get("cats_strings"):
        raise UnsupportedError("its categories are strings; jitcl computes with numbers")
    if not attrs.get("zeros", 1):
        raise UnsupportedError("zeros is 0: an unknown category would have to stop the run")
    cats = np.asarray(attrs.get("cats_int64s", ()), np.int64)
    whole = x if x.type.dtype == "i64" else g.cast(x, to="i64")
    spread = g.reshape(whole, shape=(*x.type.shape, 1))
    return g.cast(g.equal(spread, const(cats.reshape((1,) * x.type.rank + (-1,)))), to="f32")


@onnx_rule("CategoryMapper", "DictVectorizer", "CastMap", "ZipMap", domain=ML)
def _host_only(g: GraphBuilder, node: Any) -> Node:
    raise UnsupportedError("it reads or makes strings or maps; jitcl computes with numbers")
