"""Classifiers with string labels: their numbers are compiled, their labels looked up on the host.

    %label, %score = TreeEnsembleClassifier(%x) {classlabels_strings=["no", "yes"]}
    =>
    %number, %score = TreeEnsembleClassifier(%x) {classlabels_int64s=[0, 1]}
    %label = Gather(["no", "yes"], %number)
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

CLASSIFIERS = {
    "TreeEnsembleClassifier": "classlabels_int64s", "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints"}
STRINGS = "classlabels_strings"
OPSET = 13                                   # of the lookups, where the model has no ops of ONNX's


def labels_apart(proto: ModelProto) -> ModelProto:
    """The model with labels of its classifiers as numbers and lookups; itself without strings."""
    if not any(_strings(node) for node in proto.graph.node):
        return proto
    result = ModelProto()
    result.CopyFrom(proto)
    nodes = list(result.graph.node)
    del result.graph.node[:]
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    for node in nodes:
        labels = _strings(node)
        if not labels:
            result.graph.node.append(node)
            continue
        _numbered(node, len(labels))
        lookup = _lookup(result.graph, node, labels, taken) if node.output[0] else None
        result.graph.node.extend([node] if lookup is None else [node, lookup])
    if not any(o.domain in ("", "ai.onnx") for o in result.opset_import):
        result.opset_import.append(helper.make_opsetid("", OPSET))
    return result


def _strings(node: NodeProto) -> list[bytes]:
    """The labels of a classifier that has them as strings."""
    if node.domain != "ai.onnx.ml" or node.op_type not in CLASSIFIERS:
        return []
    return next((list(a.strings) for a in node.attribute if a.name == STRINGS), [])


def _numbered(node: NodeProto, count: int) -> None:
    kept = [a for a in node.attribute if a.name not in (STRINGS, CLASSIFIERS[node.op_type])]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(helper.make_attribute(CLASSIFIERS[node.op_type], list(range(count))))


def _lookup(graph: GraphProto, node: NodeProto, labels: list[bytes], taken: set[str]) -> NodeProto:
    label, where = node.output[0], node.name or node.output[0]
    table, number = _fresh(f"{where}/labels", taken), _fresh(f"{where}/number", taken)
    graph.initializer.append(TensorProto(name=table, data_type=TensorProto.STRING,
                                         dims=[len(labels)], string_data=labels))
    node.output[0] = number
    return helper.make_node("Gather", [table, number], [label], name=f"{where}/label")


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
