"""Tensors inside a model by their ONNX names: given as further outputs, or taken as inputs.

    x -> [conv] -a-> [relu] -b-> [conv] -> y

    with_outputs(["a"])                      the same model, which gives y and a
    cut_open({"b": ..}, ["b", "y"])          x -> [conv] -> [relu] -> b',  b -> [conv] -> y'

A model that is cut open reads at `b` what it is fed, and gives beside it what it would have made
of it itself (`own_name`): each piece runs on exact inputs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor
from onnx.reference import ReferenceEvaluator

from jitcl.errors import DeviceError, InputError
from jitcl.frontends.onnx import external, tensors
from jitcl.frontends.onnx.importer import needed_nodes
from jitcl.frontends.onnx.model import OnnxModel, label, reads

NEAREST = 3                     # names that an error proposes


@dataclass(frozen=True)
class Layer:
    """A node of the model's graph. inputs: all that it reads, its bodies' captures included.

    fed: whether an input of the model decides its results; else constants alone do.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fed: bool


def layers(model: OnnxModel) -> list[Layer]:
    """The nodes that the model's outputs need, each after what it reads."""
    graph = model.proto.graph
    fed = {v.name for v in graph.input}
    found = []
    for node, _ in needed_nodes(graph.node, [v.name for v in graph.output]):
        read = tuple(dict.fromkeys(reads(node)))
        if not fed.isdisjoint(read):
            fed.update(o for o in node.output if o)
        found.append(Layer(label(node), node.op_type, read, tuple(o for o in node.output if o),
                           not fed.isdisjoint(read)))
    return found


def tensors_of(model: OnnxModel, names: Iterable[str]) -> list[str]:
    """Names of tensors, for names of tensors or of nodes, of which all outputs count. Raises
    InputError for one that is neither, with the nearest names.
    """
    graph = model.proto.graph
    made = {o: node for node in graph.node for o in node.output if o}
    by_node: dict[str, NodeProto] = {}
    for node in graph.node:
        by_node.setdefault(label(node), node)
    found: dict[str, None] = {}
    for name in names:
        if name in made:
            found[name] = None
        elif name in by_node:
            found.update((o, None) for o in by_node[name].output if o)
        else:
            raise InputError(_unknown(model, name, [*made, *by_node]))
    return list(found)


def _unknown(model: OnnxModel, name: str, known: Sequence[str]) -> str:
    head = f"intermediates: {model.source} has no inner tensor and no node '{name}'"
    graph = model.proto.graph
    if name in {v.name for v in graph.input} | model.initialisers.keys():
        what = "a stored constant" if name in model.initialisers else "an input"
        return f"{head}: it is {what}, which no node computes"
    for node in graph.node:
        if any(name in _inside(a.g) or any(name in _inside(g) for g in a.graphs)
               for a in node.attribute):
            return (f"{head}: it is inside the body of '{label(node)}' ({node.op_type})\n"
                    f"  Ask for what that node gives: {', '.join(node.output)}.")
    near = difflib.get_close_matches(name, dict.fromkeys(known), NEAREST, 0.0)
    return f"{head}\n  The nearest names are: {', '.join(map(repr, near)) or 'none'}."


def _inside(graph: object) -> set[str]:
    return {o for node in getattr(graph, "node", ()) for o in (node.name, *node.output) if o}


def with_outputs(model: OnnxModel, names: Iterable[str],
                 stored: Mapping[str, str] | None = None) -> OnnxModel:
    """The model which gives these tensors, too, behind its own outputs; those in `stored` in
    another dtype and by their `own_name`, which leaves the tensor itself inside.
    """
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    kept = stored or {}
    proto.graph.node.extend(_cast(n, own_name(n), dtype) for n, dtype in kept.items())
    given = {v.name for v in proto.graph.output}
    proto.graph.output.extend(ValueInfoProto(name=own_name(n) if n in kept else n)
                              for n in names if n not in given)
    return _made_of(model, proto)


def own_name(tensor: str) -> str:
    """What a model that is cut open at a tensor calls its own result for it."""
    return f"{tensor}'"


@dataclass(frozen=True)
class Cut:
    """A tensor at which a model is cut open. dtype, shape: of what is fed there; given: the dtype
    in which the model's own result is given. The model computes with the tensor's own dtype.
    """

    dtype: str
    shape: tuple[int, ...]
    given: str
    own: str


def cut_open(model: OnnxModel, cuts: Mapping[str, Cut], outputs: Iterable[str]) -> OnnxModel:
    """The model with the tensors of `cuts` as further inputs, which gives `outputs`: those that are
    cut by their `own_name`.
    """
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    made = {n: f"{n}'{cut.own}" if cut.given != cut.own else own_name(n) for n, cut in cuts.items()}
    for node in graph.node:
        node.output[:] = [made.get(o, o) for o in node.output]
    before, behind = [], []
    for name, cut in cuts.items():
        fed = name if cut.dtype == cut.own else fed_name(name)
        graph.input.append(helper.make_tensor_value_info(
            fed, tensors.ELEM_TYPES[cut.dtype], cut.shape))
        if fed != name:
            before.append(_cast(fed, name, cut.own))
        if made[name] != own_name(name):
            behind.append(_cast(made[name], own_name(name), cut.given))
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.output[:]
    graph.output.extend(
        ValueInfoProto(name=own_name(n) if n in cuts else n) for n in outputs)
    return _made_of(model, proto)


def fed_name(tensor: str) -> str:
    """The input for a tensor that is fed in another dtype than its own."""
    return f"{tensor}'fed"


def _cast(source: str, target: str, dtype: str) -> NodeProto:
    return helper.make_node("Cast", [source], [target], target, to=tensors.ELEM_TYPES[dtype])


def whole(model: OnnxModel) -> ModelProto:
    """The model with all its elements in one proto, as other engines take it."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        if model.holds(tensor.name):
            tensor.CopyFrom(numpy_helper.from_array(model.constant(tensor.name).data, tensor.name))
        elif external.is_external(tensor):
            load_external_data_for_tensor(tensor, str(model.base.path if model.base else "."))
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.DEFAULT
    return proto


def evaluate(model: OnnxModel, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs, of onnx's reference evaluator. Raises DeviceError where it fails."""
    names = [v.name for v in model.proto.graph.output]
    fed = {n: v for n, v in feeds.items() if v is not None}
    proto = whole(model)
    for graph in (proto.graph, *proto.functions):
        _add_conditions(graph)
    try:
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(proto).run(None, fed)
    except Exception as error:              # whatever an implementation of an op raises
        raise DeviceError("onnx's reference evaluator failed: "
                          f"{type(error).__name__}: {error}\n  Compare with another engine: "
                          "onnxruntime, or a device of jitcl.") from error
    return {n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in zip(names, values)}


def _add_conditions(graph: Any) -> None:
    """Give loops that leave out their condition one, in a graph or a function and the bodies in it:
    the evaluator takes none for False.
    """
    nodes: list[NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _add_conditions(body)
        if node.op_type == "Loop" and not "".join(node.input[1:2]):
            going = f"{label(node)} goes on"
            nodes.append(helper.make_node("Constant", [], [going], value=numpy_helper.from_array(
                np.array(True))))
            node.input[:] = [*node.input[:1], going, *node.input[2:]]
        nodes.append(node)
    if len(nodes) != len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _made_of(model: OnnxModel, proto: ModelProto) -> OnnxModel:
    """A model that shares the other's constants."""
    return OnnxModel(proto, model.source, model.base, model._constants)


__all__ = ["Cut", "Layer", "cut_open", "evaluate", "fed_name", "layers", "own_name", "tensors_of",
           "whole", "with_outputs"]
