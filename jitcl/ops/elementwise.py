"""Elementwise ops: arithmetic, comparison, logic, activations. One declaration each."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.types import TensorType
from jitcl.ops.core import F16, F32, I32, elementwise, onnx_rule, sample

_TWO = [sample(F32(2, 3), F32(3)), sample(F32(4, 1), F32(1, 5)), sample(F16(5), F16(5), rtol=1e-3)]


@elementwise(onnx="Add", ref=np.add, samples=[*_TWO, sample(I32(4), I32(4))])
def add(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x + y


@elementwise(onnx="Mul", ref=np.multiply, samples=_TWO)
def mul(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x * y


@elementwise(onnx="Relu", ref=lambda x: np.maximum(x, 0), samples=[sample(F32(2, 3)), sample(F16(7))])
def relu(s: KernelBuilder, x: Expr) -> Expr:
    return s.max(x, 0)


@elementwise(ref=lambda x, to: x.astype(to), infer=lambda x, to: TensorType(to, x.shape))
def cast(s: KernelBuilder, x: Expr, to: str) -> Expr:
    """Convert to dtype `to`."""
    return s.cast(x, to)


@onnx_rule("Identity")
def _identity(g: Any, node: Any) -> Any:
    return node.inputs[0]
