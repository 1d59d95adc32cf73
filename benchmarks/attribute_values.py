#!/usr/bin/env python3
"""Tries every value that the text of any opset allows for an attribute, at every opset of its op
and one too late, and compares with onnxruntime (or ONNX's reference where that refuses).

    attribute_values.py [--all] [OP ...]

Operands are those of onnx's node tests. Outcomes:

    same      what onnxruntime or ONNX's reference gives
    other     both give something else
    known     so they do, and EXPLAINED says why
    refused   a JitclError, where onnxruntime or the reference give a result: listed, to be judged
    invalid   a JitclError, and they refuse as well
    alone     jitcl gives a result, and both refuse: nothing to compare with
    bare      an exception that is no JitclError: never acceptable

Exit status 1 if anything is other or bare.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

SAME, OTHER, KNOWN, REFUSED, INVALID, ALONE, BARE = (
    "same", "other", "known", "refused", "invalid", "alone", "bare")
BAD = (OTHER, BARE)
PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
               "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize")
DIRECTIONS = ("forward", "reverse", "bidirectional", "foward")
FLAG = (0, 1)
# attribute -> its values; (op, attribute) where the op has its own
VALUES: dict[Any, tuple[Any, ...]] = {
    "auto_pad": PADS, "direction": DIRECTIONS, "ceil_mode": FLAG, "count_include_pad": FLAG,
    "storage_order": FLAG, "exclude_outside": FLAG, "antialias": FLAG, "align_corners": FLAG,
    "keepdims": FLAG, "exclusive": FLAG, "reverse": FLAG, "select_last_index": FLAG,
    "largest": FLAG, "sorted": FLAG, "fmod": FLAG, "allowzero": FLAG, "layout": FLAG,
    "noop_with_empty_axes": FLAG, "linear_before_reset": FLAG, "input_forget": FLAG,
    "spatial": FLAG, "transA": FLAG, "transB": FLAG, "saturate": FLAG, "is_causal": FLAG,
    "onesided": FLAG, "inverse": FLAG, "upper": FLAG, "interleaved": FLAG, "periodic": FLAG,
    "detect_negative": FLAG, "detect_positive": FLAG, "center_point_box": FLAG, "is_test": FLAG,
    "training_mode": FLAG, "broadcast": FLAG, "stash_type": (1, 10, 11, 16),
    "approximate": ("none", "tanh"), "round_mode": ("up", "down", "nearest"),
    "batch_dims": (0, 1), "start": (-2, -1, 0, 1), "end": (-1, 1, 2), "p": (1, 2),
    "to": (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16), "output_datatype": (1, 6, 7, 10, 11),
    "axis": (-3, -2, -1, 0, 1, 2), "alpha": (0.0, 0.3, 1.5), "beta": (0.0, 0.3, 1.5),
    "gamma": (0.5, 2.0), "epsilon": (0.0, 1e-5, 0.1), "bias": (0.0, 0.5), "lambd": (0.0, 0.7),
    "reduction": ("none", "add", "mul", "max", "min", "mean", "sum"), "ratio": (0.0, 0.5),
    "padding_mode": ("zeros", "border", "reflection"), "cubic_coeff_a": (-0.5, -0.75),
    "coordinate_transformation_mode": COORDINATES, "extrapolation_value": (0.0, 3.5),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "axes": ([0], [-1], [0, 1], [1, -1], []), "kernel_shape": ([2, 2], [3, 3]),
    "strides": ([1, 1], [2, 2], [2, 1]), "dilations": ([1, 1], [2, 2]), "group": (1, 2),
    "pads": ([0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 2, 1]), "clip": (0.5, 3.0),
    "sampling_ratio": (0, 1, 3), "spatial_scale": (0.5, 1.0), "num_outputs": (1, 2, 3),
    "ignore_index": (-1, 0, 2), "qk_matmul_output_mode": (0, 1, 2, 3), "softcap": (0.0, 2.0),
    "blocksize": (1, 2), "perm": ([0, 1, 2], [2, 0, 1], [1, 0, 2]), "time_axis": FLAG,
    "batch_axis": FLAG, "detect": FLAG, "momentum": (0.5, 0.9), "size": (1, 3, 4),
    "scale": (0.25, 1.0), "activation": ("none", "silu", "swish"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"), ("SpaceToDepth", "mode"): ("DCR", "CRD"),
    ("GridSample", "mode"): ("bilinear", "nearest", "bicubic", "linear", "cubic"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"), ("RoiAlign", "mode"): ("avg", "max"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("NegativeLogLikelihoodLoss", "reduction"): ("none", "mean", "sum"),
    ("SoftmaxCrossEntropyLoss", "reduction"): ("none", "mean", "sum"),
    ("BitShift", "direction"): ("LEFT", "RIGHT"), ("Gemm", "alpha"): (0.0, 0.5),
    ("MeanVarianceNormalization", "axes"): ([0], [0, 2, 3], [1, 2]),
    ("MaxRoiPool", "pooled_shape"): ([1, 1], [2, 3]),
    ("AffineGrid", "align_corners"): FLAG, ("TfIdfVectorizer", "mode"): ("TF", "IDF", "TFIDF"),
}
RECURRENT = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
             "HardSigmoid", "Elu", "Softsign", "Softplus")
# onnx.reference has no such attribute, or takes it for something else; where onnxruntime refuses,
# nothing says what is right
UNJUDGED = {*itertools.product(("RNN", "GRU", "LSTM"), ("activations", "clip", "layout")),
            *itertools.product(("RNN", "GRU", "LSTM"), ("direction", "linear_before_reset")),
            ("AveragePool", "auto_pad")}
# (op, attribute, value as text) -> why another result is right; "" for all
EXPLAINED = {
    ("MaxUnpool", "", ""): "with output_shape, indices count in the pooled tensor's own shape, "
                               "as onnx's node test has it; onnxruntime counts in output_shape",
    ("GRU", "activations", "['Softplus', 'Softplus']"): "onnxruntime's Softplus overflows to -inf",
    ("GroupNormalization", "stash_type", "10"): "statistics in f16, which onnxruntime keeps in f32"}
SKIPPED = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
           "RandomUniformLike", "ImageDecoder", "If", "Loop", "Scan", "SequenceMap"}


@dataclass(frozen=True)
class Trial:
    """A node with an attribute at an opset."""

    op: str
    opset: int
    attribute: str
    value: Any
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]

    def __str__(self) -> str:
        what = f"{self.attribute}={self.value!r}" if self.attribute else "as it is"
        return f"{self.op}-{self.opset} {what}"


# ---- what is tried


def histories() -> dict[str, list[onnx.defs.OpSchema]]:
    """The schemas of ONNX's own ops, the oldest first."""
    found: dict[str, list[onnx.defs.OpSchema]] = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    return {n: sorted(s, key=lambda s: s.since_version) for n, s in found.items()}


def bases(most: int) -> dict[str, list[tuple[Any, dict[str, np.ndarray]]]]:
    """Op -> nodes of onnx's tests with their operands, which differ in rank or in how many they
    have."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, dict[Any, Any]] = collections.defaultdict(dict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = sorted(load_model_tests(kind="node"), key=lambda c: str(c.name))
    for case in cases:
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type in SKIPPED:
            continue
        inputs = [numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else a
                  for a in case.data_sets[0][0]]
        if not all(isinstance(a, np.ndarray) and a.dtype.kind in "biuf" for a in inputs):
            continue
        feeds = dict(zip((i.name for i in graph.input), inputs))
        look = tuple((a.ndim, a.dtype.name in ("float32", "int64", "bool")) for a in inputs)
        found[graph.node[0].op_type].setdefault(look, (graph.node[0], feeds))
    return {op: list(rows.values())[:most] for op, rows in found.items()}


def model_of(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in feeds.items()]
    # what decides shapes is a constant, as in models that exporters write
    names = list(node.input)
    fixed = [n for n in names[1:] if n in feeds and feeds[n].size <= 16 and (
        feeds[n].dtype == np.int64 or node.op_type in ("Resize", "Upsample"))]
    graph = helper.make_graph(
        [node], "g", [i for i in inputs if i.name not in fixed],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        [numpy_helper.from_array(feeds[n], n) for n in fixed])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        inferred = onnx.shape_inference.infer_shapes(built)
    except onnx.shape_inference.InferenceError:         # onnxruntime will refuse it
        return built
    types = {v.name: v for v in inferred.graph.output}
    for value in built.graph.output:
        value.CopyFrom(types[value.name])
    return built


def values_of(op: str, schema: onnx.defs.OpSchema, name: str) -> tuple[Any, ...]:
    if name == "activations":
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
        return tuple([a] * count for a in RECURRENT)
    return VALUES.get((op, name), VALUES.get(name, ()))


def trials(ops: list[str], most: int = 2) -> Iterator[Trial]:
    """Each op at each of its opsets; each attribute of any of them with each of its values."""
    schemas, found = histories(), bases(most)
    newest = onnx.defs.onnx_opset_version()
    for op in ops or sorted(found):
        history = schemas[op]
        attributes = {n: s for s in history for n in s.attributes}
        for node, feeds in found.get(op, []):
            known = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            versions = [s.since_version for s in history if not s.deprecated]
            for opset in sorted({v for v in (*versions, newest) if v <= newest}):
                for name, schema in [("", history[-1]), *attributes.items()]:
                    for value in values_of(op, schema, name) if name else (None,):
                        if name == "num_outputs" and value != len(node.output):
                            continue        # onnx 1.23 and onnxruntime 1.32 abort
                        changed = {**known, **({name: value} if name else {})}
                        if name == "activations":
                            changed["activation_alpha"] = [0.4] * len(value)
                            changed["activation_beta"] = [0.3] * len(value)
                        for form, operands in forms(op, changed, feeds, node, opset):
                            made = helper.make_node(op, operands, list(node.output))
                            made.attribute.extend(_attribute(k, v) for k, v in form.items())
                            given = {n: a for n, a in feeds.items() if n in operands}
                            built = model_of(made, given, opset)
                            yield Trial(op, opset, name, value, built, given)


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    empty = isinstance(value, list) and not value
    return helper.make_attribute(name, value,
                                 attr_type=onnx.AttributeProto.INTS if empty else None)


def forms(op: str, attrs: dict[str, Any], feeds: dict[str, np.ndarray], node: onnx.NodeProto,
          opset: int) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The node as it is; and with inputs as the attributes that they once were, up to the opset
    that took these away, which is one too late."""
    from jitcl.frontends.onnx.opsets import ATTRIBUTES

    inputs = list(node.input)
    yield attrs, inputs
    since, table = ATTRIBUTES.get(op, (0, {}))
    moved = {n: i for n, (i, _) in table.items() if i < len(inputs) and inputs[i] in feeds}
    if not moved or opset > since:
        return
    old = {n: feeds[inputs[i]].reshape(-1).tolist() for n, i in moved.items()}
    single = {n: v[0] if feeds[inputs[moved[n]]].ndim == 0 or n == "k" else v
              for n, v in old.items() if v}
    kept = [n for i, n in enumerate(inputs) if i not in moved.values()]
    yield {**attrs, **single}, kept


# ---- what comes of it


def by_jitcl(trial: Trial) -> list[Any]:
    """Import, then the ops' references."""
    from jitcl.errors import NeedsValue
    from jitcl.frontends.onnx import import_model, load
    from jitcl.ops.builder import evaluate

    model = load(trial.model)
    feeds = {i.name: trial.feeds[i.name] for i in trial.model.graph.input}
    values: dict[str, np.ndarray] = {}
    while True:
        try:
            graph = import_model(model, {n: a.shape for n, a in feeds.items() if n not in values},
                                 values)
            break
        except NeedsValue as error:
            values[error.input_name] = feeds[error.input_name]
    memo = {n: feeds[str(n.attr("name"))] for n in graph.inputs}
    return [evaluate(n, memo) for _, n in graph.outputs]


def by_onnxruntime(trial: Trial) -> list[Any]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(trial.model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(
        None, {i.name: trial.feeds[i.name] for i in trial.model.graph.input})
    return found


def by_reference(trial: Trial) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    onnx.checker.check_model(trial.model)
    found: list[Any] = ReferenceEvaluator(trial.model).run(
        None, {i.name: trial.feeds[i.name] for i in trial.model.graph.input})
    return found


def differ(got: list[Any], want: list[Any]) -> str:
    """What is different; "" if nothing is."""
    for i, (g, w) in enumerate(zip(got, want)):
        w = np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"output {i}: {g.dtype}{list(g.shape)}, wanted {w.dtype}{list(w.shape)}"
        a, b = (np.asarray(v, np.float64) for v in (g, w))
        scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
        loose = 5e-3 if w.dtype.itemsize == 2 and w.dtype.kind != "i" else 2e-4
        if not np.allclose(a, b, rtol=loose, atol=loose * scale, equal_nan=True):
            return f"output {i}: off by {np.nanmax(np.abs(a - b)):.3g} (largest {scale:.3g})"
    return ""


def outcome(trial: Trial) -> tuple[str, str]:
    """(outcome, what to say of it)."""
    from jitcl.errors import JitclError

    got, error = None, ""
    try:
        got = by_jitcl(trial)
    except JitclError as e:
        error = str(e).splitlines()[0][:150]
    except Exception as e:  # noqa: BLE001  whatever it is, that it came is the finding
        return BARE, f"{type(e).__name__}: {str(e)[:150]}"
    said = []
    unjudged = (trial.op, trial.attribute) in UNJUDGED
    for engine in (by_onnxruntime,) if unjudged else (by_onnxruntime, by_reference):
        try:
            with np.errstate(all="ignore"):
                want = engine(trial)
        except Exception:  # noqa: BLE001  it refuses, in one of its many ways
            continue
        if got is None:
            return REFUSED, f"{engine.__name__[3:]} runs it: {error}"
        said.append(f"{engine.__name__[3:]} {differ(got, want)}")
        if not differ(got, want):
            return SAME, ""
    if got is None:
        return INVALID, error
    known = {(trial.op, "", ""), (trial.op, trial.attribute, str(trial.value))} & {*EXPLAINED}
    return (KNOWN if known else OTHER, "; ".join(said)) if said else (ALONE, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="ops to try; all without")
    parser.add_argument("--all", action="store_true", help="print every trial")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for trial in trials(args.ops):
        what, why = outcome(trial)
        counts[what] += 1
        if args.all or what in (*BAD, REFUSED):
            print(f"{what:<8} {str(trial):<60} {why}", flush=True)
    print(", ".join(f"{counts[k]} {k}" for k in (
        SAME, *BAD, KNOWN, REFUSED, INVALID, ALONE)))
    return 1 if any(counts[k] for k in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
