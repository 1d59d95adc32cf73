"""Comparison, logic and bits, element by element; operands broadcast as in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import BOOL, F16, F32, I32, I64, Spec, elementwise, fixed, onnx_rule, sample

_COMPARED = [sample(F32(2, 3), F32(3)), sample(F16(4), F16(4)),
             sample(I64(3, 3, low=0, high=3), I64(1, 3, low=0, high=3)),
             sample(fixed(math.nan, 0.0, math.inf), fixed(math.nan, -0.0, math.inf))]
_LOGIC = [sample(BOOL(2, 9), BOOL(9))]
_BITS = [sample(I32(2, 9), I32(9)), sample(Spec((9,), "u8", 0, 255), Spec((9,), "u8", 0, 255))]
_SPECIAL = fixed(math.nan, -math.inf, math.inf, 0.0, 1e30)


# ---- comparison

@elementwise(onnx="Equal", result="bool", ref=np.equal, samples=[
    *_COMPARED, sample(BOOL(9), BOOL(9))])
def equal(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.eq(x, y)


@elementwise(onnx="Less", result="bool", ref=np.less, samples=_COMPARED)
def less(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x < y


@elementwise(onnx="LessOrEqual", result="bool", ref=np.less_equal, samples=_COMPARED)
def less_or_equal(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x <= y


@elementwise(onnx="Greater", result="bool", ref=np.greater, samples=_COMPARED)
def greater(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x > y


@elementwise(onnx="GreaterOrEqual", result="bool", ref=np.greater_equal, samples=_COMPARED)
def greater_or_equal(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x >= y


@elementwise(onnx="IsNaN", result="bool", ref=np.isnan, samples=[sample(_SPECIAL)])
def isnan(s: KernelBuilder, x: Expr) -> Expr:
    return s.isnan(x)


def _isinf_ref(x: np.ndarray, negative: bool = True, positive: bool = True) -> Any:
    return (np.isposinf(x) & positive) | (np.isneginf(x) & negative)


@elementwise(result="bool", ref=_isinf_ref, samples=[
    sample(_SPECIAL), sample(_SPECIAL, negative=False), sample(_SPECIAL, positive=False)])
def isinf(s: KernelBuilder, x: Expr, negative: bool = True, positive: bool = True) -> Expr:
    """Whether x is infinite, of the signs asked for."""
    if negative and positive:
        return s.isinf(x)
    if not (negative or positive):
        return s.const(False, "bool")
    return s.eq(x, -math.inf if negative else math.inf)


@onnx_rule("IsInf")
def _isinf_rule(g: GraphBuilder, node: Any) -> Node:
    return g.isinf(*node.inputs, negative=bool(node.attrs.get("detect_negative", 1)),
                   positive=bool(node.attrs.get("detect_positive", 1)))


# ---- logic

@elementwise(onnx="And", ref=np.logical_and, samples=_LOGIC)
def and_(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.and_(x, y)


@elementwise(onnx="Or", ref=np.logical_or, samples=_LOGIC)
def or_(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.or_(x, y)


@elementwise(onnx="Xor", ref=np.logical_xor, samples=_LOGIC)
def xor(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.xor(x, y)


@elementwise(onnx="Not", ref=np.logical_not, samples=[sample(BOOL(9))])
def not_(s: KernelBuilder, x: Expr) -> Expr:
    return s.not_(x)


# ---- bits

@elementwise(onnx="BitwiseAnd", ref=np.bitwise_and, samples=_BITS)
def bitwise_and(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.bitand(x, y)


@elementwise(onnx="BitwiseOr", ref=np.bitwise_or, samples=_BITS)
def bitwise_or(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.bitor(x, y)


@elementwise(onnx="BitwiseXor", ref=np.bitwise_xor, samples=_BITS)
def bitwise_xor(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return s.bitxor(x, y)


@elementwise(onnx="BitwiseNot", ref=np.bitwise_not, samples=[
    sample(I32(9)), sample(Spec((9,), "u8", 0, 255))])
def bitwise_not(s: KernelBuilder, x: Expr) -> Expr:
    return s.bitnot(x)


def _shift_ref(x: np.ndarray, y: np.ndarray, left: bool) -> np.ndarray:
    """Element by element on Python's unbounded integers."""
    bits = 8 * x.dtype.itemsize
    shifts = [(int(a), int(b) if 0 <= b < bits else bits) for a, b in np.broadcast(x, y)]
    wide = [(a << b if left else a >> b) & (2 ** 64 - 1) for a, b in shifts]
    return np.array(wide, np.uint64).astype(x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


@elementwise(ref=_shift_ref, samples=[
    *(sample(Spec((2, 9), t, 0, 99), Spec((9,), t, 0, 12), left=left)
      for t in ("u8", "u32", "u64") for left in (True, False)),
    sample(fixed(-3, -3, 5, -128, dtype="i8"), fixed(1, 9, -1, -1, dtype="i8"), left=False),
    sample(fixed(-3, -3, 5, 127, dtype="i8"), fixed(1, 9, -1, 1, dtype="i8"), left=True)])
def shift(s: KernelBuilder, x: Expr, y: Expr, left: bool) -> Expr:
    """x with its bits moved by y; by no valid count: all of them out, which leaves the sign's."""
    bits = 8 * dtypes.itemsize(x.dtype)
    valid = s.and_(y >= 0, y < bits)
    count = s.select(valid, y, bits - 1)
    if left:
        return s.select(valid, s.shl(x, count), 0)
    gone = s.shr(x, bits - 1) if x.dtype in dtypes.SIGNED else s.const(0, x.dtype)
    return s.select(valid, s.shr(x, count), gone)


@onnx_rule("BitShift")
def _shift(g: GraphBuilder, node: Any) -> Node:
    return g.shift(*node.inputs, left=node.attrs["direction"] == "LEFT")
