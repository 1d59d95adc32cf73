"""A model that nobody holds gives its memory back at once: no cycle waits for the collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from tests.devices import present

X = np.arange(12, dtype="f4").reshape(3, 4)


def onnx_model(program: bool = False, free: bool = False) -> onnx.ModelProto:
    """y = relu(x w) + 1; a program: in a branch that data chooses."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["r"])]
    last = helper.make_node("Add", ["r", "one"], ["y"])
    if program:
        bodies = [helper.make_graph(
            [helper.make_node(op, ["r", "one"], [out])], out, [],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
            for op, out in (("Add", "a"), ("Sub", "s"))]
        nodes += [helper.make_node("ReduceSum", ["r"], ["t"], keepdims=0),
                  helper.make_node("Greater", ["t", "one"], ["c"])]
        last = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    w = np.ones((4, 2), "f4")
    graph = helper.make_graph(
        [*nodes, last], "dropped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n" if free else 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32(1), "one")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def many_shapes(model: jitcl.Model) -> None:
    for n in range(1, 6):
        model.run({"x": np.resize(X, (n, 4))})


USES: dict[str, tuple[dict[str, bool], Callable[[jitcl.Model], Any]]] = {
    "run": ({}, lambda m: m.run({"x": X})),
    "submitted": ({}, lambda m: m.submit({"x": X}).result()),
    "bound": ({}, lambda m: m.bind().run()),
    "inner tensors": ({}, lambda m: m.run({"x": X}, intermediates=["m"])),
    "a program": ({"program": True}, lambda m: m.run({"x": X})),
    "many shapes": ({"free": True}, many_shapes),
    "an error": ({}, lambda m: pytest.raises(jitcl.JitclError, m.run, {})),
    "a report": ({}, lambda m: (m.run({"x": X}), str(m.report()))),
}


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", present())
@pytest.mark.parametrize("use", USES)
def test_it_is_gone_at_once(use: str, device: str) -> None:
    form, used = USES[use]
    model = jitcl.compile(onnx_model(**form), device=device)
    gc.collect()
    gc.disable()
    try:
        used(model)
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
