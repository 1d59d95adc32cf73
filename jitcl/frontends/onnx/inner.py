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

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from jitcl.errors import InputError
from jitcl.frontends.onnx import tensors
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


def with_outputs(model: OnnxModel, names: Iterable[str]) -> OnnxModel:
    """The model which gives these tensors, too, behind its own outputs."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    given = {v.name for v in proto.graph.output}
    proto.graph.output.extend(ValueInfoProto(name=n) for n in names if n not in given)
    return _made_of(model, proto)


def own_name(tensor: str) -> str:
    """What a model that is cut open at a tensor calls its own result for it."""
    return f"{tensor}'"


def cut_open(model: OnnxModel, cuts: Mapping[str, tuple[str, tuple[int, ...]]],
             outputs: Iterable[str]) -> OnnxModel:
    """The model with the tensors of `cuts` (name -> dtype, shape) as further inputs, which gives
    `outputs`: those that are cut by their `own_name`.
    """
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    for node in graph.node:
        node.output[:] = [own_name(o) if o in cuts else o for o in node.output]
    del graph.output[:]
    graph.output.extend(
        ValueInfoProto(name=own_name(n) if n in cuts else n) for n in outputs)
    graph.input.extend(
        helper.make_tensor_value_info(name, tensors.ELEM_TYPES[dtype], shape)
        for name, (dtype, shape) in cuts.items())
    return _made_of(model, proto)


def _made_of(model: OnnxModel, proto: ModelProto) -> OnnxModel:
    """A model that shares the other's constants."""
    return OnnxModel(proto, model.source, model.base, model._constants)


__all__ = ["Layer", "cut_open", "layers", "own_name", "tensors_of", "with_outputs"]
