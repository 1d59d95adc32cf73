"""Makes a failing case smaller: fewer outputs, and computed values become inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz import oracle
from tests.fuzz.drawing import Case, onnx_type
from tests.fuzz.engines import types_of


def reduced(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A case that still fails, and of which no single step of `_smaller` does."""
    while True:
        for smaller in _smaller(case):
            if fails(smaller):
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    graph = case.model.graph
    for output in graph.output if len(graph.output) > 1 else ():
        yield _kept(case, {output.name}, {})
    values = _values(case)
    ends = {o.name for o in graph.output}
    for node in graph.node:
        for name in node.output:
            if name in values and name not in ends:
                yield _kept(case, ends, {name: values[name]})
    for node in graph.node:             # the failure may show in a value that is no output
        for name in node.output:
            if name in values and name not in ends:
                yield _kept(case, {name}, {})


def _values(case: Case) -> dict[str, np.ndarray]:
    """All values for the case's feeds, each rounded to its type."""
    types = types_of(case)
    run = oracle.Evaluation(types, 1)
    for t in case.model.graph.initializer:
        run.put(t.name, numpy_helper.to_array(t))
    for name, array in case.feeds.items():
        run.put(name, array)
    for proto in case.model.graph.node:
        run.run(proto)
    with np.errstate(all="ignore"):
        return {n: a.astype(types[n]) for n, a in run.values.items()}


def _kept(case: Case, outputs: set[str], fixed: dict[str, np.ndarray]) -> Case:
    """The part of the model that gives these outputs, with `fixed` values fed instead."""
    graph = case.model.graph
    needed, nodes = set(outputs), []
    for node in reversed(graph.node):
        if any(o in needed and o not in fixed for o in node.output):
            nodes.insert(0, node)
            needed.update(n for n in node.input if n)
    types = types_of(case)
    inputs = [i for i in graph.input if i.name in needed]
    inputs += [helper.make_tensor_value_info(n, onnx_type(a.dtype), a.shape)
               for n, a in fixed.items() if n in needed]
    values = {**case.feeds, **fixed}
    shapes = {n: a.shape for n, a in _values(case).items()}
    made = helper.make_graph(
        nodes, "fuzz", inputs,
        [helper.make_tensor_value_info(o, onnx_type(types[o]), shapes[o]) for o in sorted(outputs)],
        [t for t in graph.initializer if t.name in needed])
    model = onnx.helper.make_model(made, opset_imports=case.model.opset_import)
    return Case(model, {i.name: values[i.name] for i in inputs})
