"""Nodes of com.microsoft with operands: what `test_contrib` gives to jitcl and to onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A node: operands by position (None: left out); those numbered in `fed` are graph inputs, the
    others are stored. `atol` of integers is in quanta. `judge` replaces onnxruntime where it has
    no kernel."""

    name: str
    op: str
    args: tuple[Array | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    fed: tuple[int, ...] = (0,)
    atol: float = 2e-5
    domain: str = MICROSOFT
    opset: int = 17
    judge: Callable[..., Sequence[Array]] | None = None
    rows: Callable[[Array], Array] | None = None     # the part of each output that is defined

    def model(self) -> onnx.ModelProto:
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.args)]
        while names and not names[-1]:
            names.pop()
        outs = [f"y{i}" if i in self.outputs else "" for i in range(max(self.outputs) + 1)]
        node = helper.make_node(self.op, names, outs, domain=self.domain, name="node", **self.attrs)
        inputs, stored = [], []
        for i, a in enumerate(self.args):
            if a is None:
                continue
            if i in self.fed:
                elem = helper.np_dtype_to_tensor_dtype(a.dtype)
                inputs.append(helper.make_tensor_value_info(f"x{i}", elem, a.shape))
            else:
                stored.append(numpy_helper.from_array(a, f"x{i}"))
        results = [helper.make_empty_tensor_value_info(f"y{i}") for i in self.outputs]
        graph = helper.make_graph([node], "case", inputs, results, stored)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": a for i in self.fed if (a := self.args[i]) is not None}


CASES: list[Case] = []


def case(name: str, op: str, *args: Array | None, outputs: Sequence[int] = (0,),
         fed: Sequence[int] = (0,), atol: float = 2e-5, domain: str = MICROSOFT,
         model_opset: int = 17,
         judge: Any = None, rows: Any = None, **attrs: Any) -> None:
    global _drawn
    _drawn = itertools.count()
    CASES.append(Case(name, op, args, attrs, tuple(outputs), tuple(fed), atol, domain,
                      model_opset, judge, rows))


_drawn = itertools.count()


def _rng(shape: tuple[int, ...]) -> np.random.Generator:
    """A case's data depends on the arrays that it drew before alone, so that no other case changes
    them."""
    return np.random.default_rng((5, next(_drawn), *shape))


def f32(*shape: int, low: float = -1.0, high: float = 1.0) -> Array:
    return _rng(shape).uniform(low, high, shape).astype(np.float32)


def f16(*shape: int) -> Array:
    return f32(*shape).astype(np.float16)


def u8(*shape: int, low: int = 0, high: int = 256) -> Array:
    return _rng(shape).integers(low, high, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    """In 7 bits: without VNNI onnxruntime adds two products with unsigned bytes in 16 bits, which
    saturate, and would judge wrongly."""
    return _rng(shape).integers(-64, 64, shape).astype(np.int8)


def i32(*values: Any) -> Array:
    return np.array(values, np.int32)


def i64(*values: Any) -> Array:
    return np.array(values, np.int64)


def one(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)
