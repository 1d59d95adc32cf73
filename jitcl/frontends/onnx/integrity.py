"""What protocol buffers let through, and nothing later would tell from a fault of jitcl's: names
that are no text, element types that ONNX does not define, words that an attribute may not hold,
functions that call others until there are millions of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx import TypeProto as Type

from jitcl.errors import ModelError
from jitcl.frontends.onnx import tensors
from jitcl.ir.types import MOST_AXES

MOST_NODES = 500_000  # of a model whose functions are expanded: a minute of import
# attributes that hold a TensorProto.DataType; 0 stands for "as the operand" where a default is 0
TYPED = ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision",
         "stash_type", "to")
PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
WAYS = ("forward", "reverse", "bidirectional")
CELLS = ("GRU", "LSTM", "RNN")
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
               "HardSigmoid", "Elu", "Softsign", "Softplus")
SCATTERED = ("none", "add", "mul", "max", "min")
LOSSES = ("none", "mean", "sum")
SCORES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
# (op, attribute) -> the words that ONNX knows, of all opsets
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    **{(op, "auto_pad"): PADS for op in (
        "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "QLinearConv")},
    **{(op, "direction"): WAYS for op in CELLS},
    **{(op, "activations"): ACTIVATIONS for op in CELLS},
    **{(op, "reduction"): SCATTERED for op in ("ScatterElements", "ScatterND")},
    **{(op, "reduction"): LOSSES for op in (
        "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    **{(op, "post_transform"): SCORES for op in (
        "LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor",
        "TreeEnsembleClassifier", "TreeEnsembleRegressor")},
    **{(op, "kernel_type"): KERNELS for op in ("SVMClassifier", "SVMRegressor")},
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("bilinear", "nearest", "bicubic", "linear", "cubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("Normalizer", "norm"): ("MAX", "L1", "L2"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn"),
    ("Resize", "nearest_mode"): (
        "round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("StringNormalizer", "case_change_action"): ("LOWER", "UPPER", "NONE"),
    ("TfIdfVectorizer", "mode"): ("TF", "IDF", "TFIDF"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear", "cubic"),
}
ANY_CASE = ("activations", "direction")  # as ONNX says of activations, and exporters write
# attributes that are 1 or more in every op of ONNX that has them
POSITIVE = (
    "blocksize", "dilations", "group", "hidden_size", "kernel_shape", "kv_num_heads", "num_groups",
    "num_outputs", "num_scan_inputs", "output_height", "output_width", "p", "q_num_heads",
    "sample_size", "size", "strides")


def check(proto: ModelProto, source: str) -> None:
    """ModelError for the first name, element type or function that can't be."""
    try:
        for what, value in _texts(proto):
            if not isinstance(value, str):
                raise ModelError(_no_text(source, what, value))
    except UnicodeDecodeError as error:      # older protobuf decodes when it is asked
        raise ModelError(_no_text(source, "a name", error.object)) from error
    for what, code in _types(proto):
        if code not in tensors.NAMES:
            raise ModelError(f"{source}: {what} has the element type {code}, which ONNX does not "
                             f"define\n  {KNOWN}; export the model again.")
    for value in proto.graph.input:
        rank = len(value.type.tensor_type.shape.dim)
        if rank > MOST_AXES:
            raise ModelError(f"{source}: input '{value.name}' has {rank} axes; jitcl takes tensors "
                             f"of up to {MOST_AXES}")
    _check_calls(proto, source)


def check_attributes(node: NodeProto, domain: str, attrs: Mapping[str, Any],
                     host: bool = False) -> None:
    """ModelError where an attribute of one of ONNX's ops holds an element type or a word that ONNX
    does not know there; it begins with the attribute. `host`: onnx.reference is to run the node,
    which takes some words for others; else its import rule looks at these itself.
    """
    if domain not in ("", "ai.onnx.ml"):
        return
    for name, value in attrs.items():
        own = node.op_type in CELLS and name in ANY_CASE
        if own and not host:
            continue
        if name in TYPED and isinstance(value, int):
            unset = value == 0 and node.op_type != "Cast"
            if value not in tensors.NAMES and not unset:
                raise ModelError(f"attribute '{name}' is {value}, which is no element type of "
                                 f"ONNX\n  {KNOWN}.")
        allowed = WORDS.get((node.op_type, name), ())
        either = {w.lower() for w in allowed} if own else ()
        for item in value if isinstance(value, tuple) else (value,):
            if allowed and item not in allowed and str(item).lower() not in either:
                raise ModelError(
                    f"attribute '{name}' is {item!r}, wanted one of {', '.join(allowed)}")
            if name in POSITIVE and isinstance(item, int) and item < 1:
                raise ModelError(f"attribute '{name}' is {value}, wanted 1 or more")


KNOWN = "ONNX has " + ", ".join(f"{code} ({name})" for code, name in sorted(tensors.NAMES.items()))


def _no_text(source: str, what: str, value: Any) -> str:
    return (f"{source}: {what} is not UTF-8 text: {bytes(value)[:60]!r}\n"
            "  The file is damaged, or its exporter wrote names in another encoding; rename it "
            "there.")


# ---- the parts of a model


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    yield from _bodies(graph.node)


def _bodies(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for a in node.attribute:
            for body in [a.g] if a.HasField("g") else a.graphs:
                yield from _graphs(body)


def _all_graphs(proto: ModelProto) -> Iterator[GraphProto]:
    yield from _graphs(proto.graph)
    for function in proto.functions:
        yield from _bodies(function.node)


def _all_nodes(proto: ModelProto) -> Iterator[NodeProto]:
    for graph in _all_graphs(proto):
        yield from graph.node
    for function in proto.functions:
        yield from function.node


def _texts(proto: ModelProto) -> Iterator[tuple[str, Any]]:
    """Every name that the importer looks at, and what it is a name of."""
    for opset in proto.opset_import:
        yield "the domain of an opset", opset.domain
    for f in proto.functions:
        for text in (f.name, f.domain, *f.input, *f.output, *f.attribute):
            yield f"a name of function '{f.name}'", text
    for graph in _all_graphs(proto):
        yield "the name of a graph", graph.name
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield "the name of an input, output or value", value.name
            for dim in value.type.tensor_type.shape.dim:
                yield f"the name of a dimension of '{value.name}'", dim.dim_param
        for tensor in graph.initializer:
            yield "the name of an initialiser", tensor.name
            for entry in tensor.external_data:
                yield f"where the elements of '{tensor.name}' are", entry.value
        for sparse in graph.sparse_initializer:
            yield "the name of an initialiser", sparse.values.name
    for node in _all_nodes(proto):
        what = f"a name of node '{node.name or ', '.join(map(str, node.output))}'"
        for text in (node.op_type, node.domain, node.name, *node.input, *node.output):
            yield what, text
        for a in node.attribute:
            yield f"an attribute's name of node '{node.name}'", a.name
            yield f"an attribute's reference of node '{node.name}'", a.ref_attr_name


def _types(proto: ModelProto) -> Iterator[tuple[str, int]]:
    """Every element type, and of what."""
    for graph in _all_graphs(proto):
        for kind, values in (("input", graph.input), ("output", graph.output)):
            for value in values:
                for code in _codes(value.type):
                    if code or (kind == "input" and graph is proto.graph):
                        yield f"{kind} '{value.name}'", code
        for tensor in graph.initializer:
            yield f"initialiser '{tensor.name}'", tensor.data_type
        for sparse in graph.sparse_initializer:
            yield f"initialiser '{sparse.values.name}'", sparse.values.data_type
    for node in _all_nodes(proto):
        for a in node.attribute:
            held: Iterable[TensorProto] = [a.t] if a.HasField("t") else a.tensors
            for tensor in held:
                yield (f"attribute '{a.name}' of node "
                       f"'{node.name or next(iter(node.output), '')}' ({node.op_type})",
                       tensor.data_type)


def _codes(type: Type) -> Iterator[int]:
    """The element types in a declared type."""
    kind = type.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield getattr(type, kind).elem_type
    elif kind in ("sequence_type", "optional_type"):
        yield from _codes(getattr(type, kind).elem_type)
    elif kind == "map_type":
        yield type.map_type.key_type
        yield from _codes(type.map_type.value_type)


# ---- calls


def _check_calls(proto: ModelProto, source: str) -> None:
    """ModelError where functions call themselves, or expand to more than MOST_NODES nodes."""
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    if not functions:
        return
    sizes: dict[Any, int] = {}

    def nodes_of(owner: FunctionProto | GraphProto) -> Iterator[NodeProto]:
        yield from owner.node
        for body in _bodies(owner.node):
            yield from body.node

    def called(owner: FunctionProto | GraphProto) -> list[Any]:
        keys = ((n.domain, n.op_type, n.overload) for n in nodes_of(owner))
        return [k for k in keys if k in functions]

    # depth first, without recursion: calls may be as deep as there are functions
    calls = {key: called(f) for key, f in functions.items()}
    for start in functions:
        path, waiting = [start], [iter(calls[start])]
        while path:
            if path[-1] in sizes:
                path.pop()
                waiting.pop()
                continue
            below = next((k for k in waiting[-1] if k not in sizes), None)
            if below is None:
                own = sum(1 for _ in nodes_of(functions[path[-1]]))
                sizes[path[-1]] = own + sum(sizes[k] for k in calls[path[-1]])
            elif below in path:
                loop = " -> ".join(f"'{k[1]}'" for k in [*path[path.index(below):], below])
                raise ModelError(f"{source}: its functions must not be recursive: {loop}\n"
                                 "  Use Loop or Scan for what repeats.")
            else:
                path.append(below)
                waiting.append(iter(calls[below]))
    total = sum(sizes[k] for k in called(proto.graph))
    if total > MOST_NODES:
        worst = max(called(proto.graph), key=lambda k: sizes[k])
        raise ModelError(
            f"{source}: the functions that it calls become {total} nodes ('{worst[1]}' alone "
            f"{sizes[worst]}); jitcl takes up to {MOST_NODES}\n"
            "  Use Loop or Scan for what repeats.")


__all__ = ["check", "check_attributes"]
