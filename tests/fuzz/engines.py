"""Runs a case on a device and judges what comes back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

import jitcl
from jitcl.errors import JitclError, NeedsValue, UnsupportedError
from jitcl.frontends.onnx import import_model, load
from jitcl.ir.graph import Graph
from jitcl.ir.printer import print_graph
from jitcl.ops.builder import evaluate
from tests import devices
from tests.fuzz import oracle
from tests.fuzz.drawing import Case

DEVICES = ("refs", *devices.SPECS)      # "refs": the imported graph by the ops' NumPy references


@dataclass(frozen=True)
class Verdict:
    """ok, unsupported (with jitcl's words), wrong, error; undecided: there is no one answer."""

    outcome: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome in ("wrong", "error")


def types_of(case: Case) -> dict[str, np.dtype]:
    """The element type of every value, by ONNX's inference; where that says nothing (it does not
    look into the body of a GroupNormalization), as its reference computes it.
    """
    graph = onnx.shape_inference.infer_shapes(case.model).graph
    codes = {v.name: v.type.tensor_type.elem_type
             for v in (*graph.input, *graph.value_info, *graph.output)}
    codes |= {t.name: t.data_type for t in graph.initializer}
    codes = {n: c for n, c in codes.items() if c}
    types = {n: np.dtype(helper.tensor_dtype_to_np_dtype(c)) for n, c in codes.items()}
    if all(o in types for node in graph.node for o in node.output if o):
        return types
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    values: dict[str, np.ndarray] = {**stored, **case.feeds}
    for node in graph.node:
        found = oracle.evaluate(node, [values[n] if n else None for n in node.input])
        for name, array in zip(node.output, found):
            values[name] = array.astype(types.setdefault(name, array.dtype))
    return types


def imported(case: Case) -> Graph:
    """The case as jitcl's graph; inputs that decide shapes become constants."""
    loaded, values = load(case.model), {}
    while True:
        try:
            return import_model(loaded, {n: a.shape for n, a in case.feeds.items()}, values)
        except NeedsValue as error:
            values[error.input_name] = case.feeds[error.input_name]


def run(case: Case, device: str) -> dict[str, np.ndarray]:
    """jitcl's outputs by name."""
    if device != "refs":
        place = devices.device(device)
        assert place is not None, f"no device {device}"
        return jitcl.compile(case.model, device=place).run(case.feeds)
    graph = imported(case)
    memo = {n: case.feeds[n.attr("name")] for n in graph.inputs}
    return {name: evaluate(node, memo) for name, node in graph.outputs}


def judge(case: Case, device: str) -> Verdict:
    """What a device makes of a case."""
    try:
        outputs = run(case, device)
    except UnsupportedError as error:
        return Verdict("unsupported", str(error))
    except JitclError as error:
        return Verdict("error", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  any other exception is a find, too
        return Verdict("error", f"{type(error).__name__}: {error}")
    types = types_of(case)
    try:
        wanted = oracle.wanted(case.model, case.feeds, types)
    except oracle.Refused:
        return Verdict("undecided")
    for name, want in wanted.items():
        wrong = oracle.difference(np.asarray(outputs[name]), want, types[name])
        if wrong:
            return Verdict("wrong", f"output {name}: {wrong}")
    return Verdict("ok")


def ir_text(case: Case) -> str:
    """The model as jitcl's own text, or why it has none."""
    try:
        return print_graph(imported(case))
    except JitclError as error:
        return f"(not imported: {error})"
